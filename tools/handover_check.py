"""Training that goes from intwain to Keras and back, against training that stays.

    python -m venv .oracle && .oracle/bin/pip install keras==3.15.1 tensorflow-cpu==2.21.0
    .oracle/bin/python tools/handover_check.py target/debug/intwain MODEL.keras... [--optimizer adam] [--devices cpu:0,cpu:1]

Two epochs of a few batches, in the order of the file. In Keras; in intwain; the first in intwain and the second in Keras, which
loads what intwain wrote; and the other way round. Losses of all steps and the last weights must agree but for rounding.
"""

import argparse
import os
import pathlib
import subprocess
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras
import numpy as np

ROWS, BATCH = 22, 8


class Losses(keras.callbacks.Callback):
    def __init__(self):
        super().__init__()
        self.means, self.losses = [], []

    def on_train_batch_end(self, batch, logs=None):
        # Keras reports the mean of the epoch so far.
        rows = min(BATCH, ROWS - batch * BATCH)
        seen = batch * BATCH
        before = self.means[-1] * seen if batch else 0.0
        self.means.append(float(logs["loss"]))
        self.losses.append((self.means[-1] * (seen + rows) - before) / rows)


def fit(model, x, y):
    seen = Losses()
    model.fit(x, y, batch_size=BATCH, epochs=1, shuffle=False, verbose=0, callbacks=[seen])
    return seen.losses


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary")
    p.add_argument("models", nargs="+")
    p.add_argument("--optimizer", default="adam")
    p.add_argument("--devices", default="cpu:0,cpu:1")
    a = p.parse_args()
    failed = 0
    for path in a.models:
        with tempfile.TemporaryDirectory() as folder:
            name = f"{pathlib.Path(path).parent.name} {a.optimizer}"
            try:
                print("ok", name, check(a, path, pathlib.Path(folder)), flush=True)
            except Exception as e:
                failed += 1
                print("FAILED", name, type(e).__name__, str(e)[:600], flush=True)
    sys.exit(bool(failed))


def check(a, path, folder):
    def load(file):
        return keras.models.load_model(file)

    model = keras.models.load_model(path, compile=False)
    model.compile(a.optimizer, "mse")
    start = folder / "start.keras"
    model.save(start)
    rng = np.random.default_rng(0)
    arrays, x = {}, []
    most = min((l.input_dim for l in model._flatten_layers() if isinstance(l, keras.layers.Embedding)), default=7)
    for i, t in enumerate(model.inputs):
        shape = [ROWS] + [8 if d is None else d for d in t.shape[1:]]
        integer = "int" in str(t.dtype) or most != 7
        x.append(rng.integers(0, most, shape).astype(t.dtype) if integer else rng.random(shape).astype("float32"))
        arrays[f"in{i}"] = x[-1]
    y = [rng.random([ROWS, *o.shape[1:]]).astype("float32") for o in model.outputs]
    arrays.update({f"y{i}": v for i, v in enumerate(y)})
    np.savez(folder / "d.npz", **arrays)
    x, y = (v if len(v) > 1 else v[0] for v in (x, y))

    def train(file, out, epochs):
        history = folder / "h.npz"
        command = [a.binary, "train", str(file), "--data", str(folder / "d.npz"), "--epochs", str(epochs), "--batch", str(BATCH)]
        command += ["--no-shuffle", "-q", "--devices", a.devices, "--split", "data", "--allow-one", "--history", str(history), "-o", str(out)]
        subprocess.run(command, check=True)
        return list(np.load(history)["loss"])

    stays = load(start)
    keras_losses = fit(stays, x, y) + fit(stays, x, y)
    own_losses = train(start, folder / "own.keras", 2)
    first = train(start, folder / "first.keras", 1)
    taken = load(folder / "first.keras")
    assert int(taken.optimizer.iterations) == len(first), taken.optimizer.iterations
    to_keras = first + fit(taken, x, y)
    back = load(start)
    there = fit(back, x, y)
    back.save(folder / "back.keras")
    from_keras = there + train(folder / "back.keras", folder / "end.keras", 1)
    worst = 0.0
    for losses in (own_losses, to_keras, from_keras):
        np.testing.assert_allclose(losses, keras_losses, rtol=2e-4)
        worst = max(worst, float(np.max(np.abs(np.array(losses) / keras_losses - 1))))
    ends = [stays, load(folder / "own.keras"), taken, load(folder / "end.keras")]
    for v in zip(*([w for w in m.weights if "seed_generator" not in w.path] for m in ends), strict=True):
        for other in v[1:]:
            np.testing.assert_allclose(other.numpy(), v[0].numpy(), rtol=2e-2, atol=2e-4, err_msg=v[0].path)
    assert [int(m.optimizer.iterations) for m in ends] == [len(keras_losses)] * 4
    return f"{len(keras_losses)} steps, losses within {worst:.1e}"


if __name__ == "__main__":
    main()
