"""Whether Keras loads what intwain writes, and goes on with it.

    python -m venv .oracle && .oracle/bin/pip install keras==3.15.1 tensorflow-cpu==2.21.0
    cargo build --example export
    .oracle/bin/python tools/export_check.py target/debug/examples/export MODEL.keras... [--optimizers adam,sgd] [--formats keras,weights.h5,h5]

The example moves a model's weights and makes up an optimizer's state. Keras must load the file compiled, without a warning;
hold bit for bit the weights and the optimizer's variables that were written; predict what it predicts with the weights set
by hand; and take the same training step as a model compiled and filled by hand.
"""

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import h5py
import keras
import numpy as np

warnings.filterwarnings("error", message="Skipping|.*could not be loaded|.*rror in loading")

def serialized(module, name, **config):
    return {"module": module, "class_name": name, "config": config, "registered_name": None}


OPTIMIZERS = {
    "sgd": json.dumps(serialized("keras.optimizers", "SGD", learning_rate=0.01, momentum=0.9)),
    "adam": "adam",
    "amsgrad": json.dumps(serialized("keras.optimizers", "Adam", amsgrad=True, use_ema=True)),
    "scaled": json.dumps(serialized("keras.optimizers", "LossScaleOptimizer", inner_optimizer=serialized("keras.optimizers", "Adam"))),
    "scheduled": json.dumps(serialized("keras.optimizers", "Adam", learning_rate=serialized(
        "keras.optimizers.schedules", "ExponentialDecay", initial_learning_rate=0.01, decay_steps=10, decay_rate=0.9))),
}


def draw(model, rng, rows=2):
    most = min((l.input_dim for l in model._flatten_layers() if isinstance(l, keras.layers.Embedding)), default=7)
    out = []
    for x in model.inputs:
        shape = [rows] + [8 if d is None else d for d in x.shape[1:]]
        integer = "int" in str(x.dtype)
        out.append(rng.integers(0, most, shape).astype(x.dtype) if integer or most != 7 else rng.random(shape).astype(x.dtype))
    return out if len(out) > 1 else out[0]


def flat(y):
    return [np.asarray(v) for v in keras.tree.flatten(y)]


def pairs(one, other):
    plain = [[v for v in m.variables if "seed_generator" not in v.path] for m in (one, other)]
    return list(zip(*plain, strict=True))


def stored_optimizer(path, model):
    """The optimizer's variables in a .h5 file, by the names that Keras gives them."""
    with h5py.File(path) as f:
        group = f["optimizer_weights"]
        names = [str(n) for n in group.attrs["weight_names"]]
        kind = lambda path: path.split("/")[-1].split("_")[-1]
        theirs = [v.path for v in model.optimizer.variables]
        # Keras numbers optimizers, and has a recurrent layer's cell in the path.
        assert len(names) == len(theirs) and all(kind(a) == kind(b) for a, b in zip(names, theirs)), [p for p in zip(names, theirs) if p[0] != p[1]][:5]
        for name, v in zip(names, model.optimizer.variables):
            assert np.array_equal(group[name][()], v.numpy()), (name, group[name][()], v.numpy())


def check(binary, path, optimizer, ending, folder):
    out, numbers = folder / f"out.{ending}", folder / "numbers.npz"
    subprocess.run([binary, str(path), str(out), OPTIMIZERS[optimizer], str(numbers)], check=True)
    written = np.load(numbers)
    weights = {k.split(":", 2)[2]: written[k] for k in sorted(written.files) if k.startswith("w:")}
    slots = [written[k] for k in sorted(written.files) if k.startswith("o:")]

    # The model filled by hand. Variables are told apart by their paths, in creation order, which is that of the tree.
    hand = keras.models.load_model(path, compile=False)
    mine = {v.path: v for v in hand.variables}
    known = {p: w for p, w in weights.items() if p in mine}
    for p, w in known.items():
        mine[p].assign(w)
    # The cell of a recurrent layer is a part of its own to Keras: what is left goes by order.
    rest = [v for v in hand.variables if v.path not in known and "seed_generator" not in v.path]
    by_order = [w for p, w in weights.items() if p not in known]
    assert len(rest) == len(by_order), ([v.path for v in rest], [p for p in weights if p not in known])
    for v, w in zip(rest, by_order):
        v.assign(w)
    opt = keras.optimizers.get(json.loads(OPTIMIZERS[optimizer]) if OPTIMIZERS[optimizer][0] == "{" else OPTIMIZERS[optimizer])
    hand.compile(opt, "mse")
    hand.optimizer.build(hand.trainable_variables)
    assert len(hand.optimizer.variables) == len(slots), (len(hand.optimizer.variables), len(slots))
    for v, w in zip(hand.optimizer.variables, slots):
        v.assign(w)

    if ending == "weights.h5":
        model = keras.models.load_model(path, compile=False)
        model.compile(keras.optimizers.get(hand.optimizer.get_config() and keras.optimizers.serialize(hand.optimizer)), "mse")
        model.optimizer.build(model.trainable_variables)
        model.load_weights(out)
    else:
        model = keras.models.load_model(out)
    if model.compiled is False or type(model.optimizer) is not type(hand.optimizer):
        raise AssertionError(f"compiled: {model.compiled}, {model.optimizer}")
    for a, b in pairs(hand, model):
        assert np.array_equal(a.numpy(), b.numpy()), a.path
    if ending == "h5":
        # Keras 3 builds the optimizer of a .h5 file for no variables, also where it wrote the file: iterations and rate
        # are restored, and training goes on without the rest.
        stored_optimizer(out, hand)
    else:
        for a, b in zip(hand.optimizer.variables, model.optimizer.variables, strict=True):
            assert np.array_equal(a.numpy(), b.numpy()), a.path
    rng = np.random.default_rng(0)
    x = draw(model, rng)
    predicted = [m.predict(x, verbose=0) for m in (hand, model)]
    for a, b in zip(*map(flat, predicted), strict=True):
        assert np.array_equal(a, b, equal_nan=True), "predictions differ"
    if ending == "h5":
        return f"{len(weights)} weights, {len(slots)} slots in the file"
    y = [rng.random(p.shape).astype("float32") for p in flat(predicted[0])]
    y = y if len(y) > 1 else y[0]
    losses = []
    for m in (hand, model):
        # Equal masks of dropout.
        keras.utils.set_random_seed(0)
        for l in m._flatten_layers():
            if getattr(l, "seed_generator", None) is not None:
                l.seed_generator.state.assign([1, 2])
        losses.append([float(np.ravel(m.train_on_batch(x, y))[0]) for _ in range(2)])
    assert losses[0] == losses[1], f"training goes on otherwise: {losses}"
    for a, b in pairs(hand, model):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-5, atol=1e-6, err_msg=a.path)
    return f"{len(weights)} weights, {len(slots)} slots" + (f", {len(by_order)} by order" if by_order else "")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("binary")
    p.add_argument("models", nargs="+", type=pathlib.Path)
    p.add_argument("--optimizers", default="adam")
    p.add_argument("--formats", default="keras,weights.h5,h5")
    a = p.parse_args()
    failed = 0
    for path in a.models:
        for optimizer in a.optimizers.split(","):
            for ending in a.formats.split(","):
                with tempfile.TemporaryDirectory() as folder:
                    name = f"{path.parent.name}/{path.name} {optimizer} {ending}"
                    try:
                        print("ok", name, check(a.binary, path, optimizer, ending, pathlib.Path(folder)), flush=True)
                    except Exception as e:
                        failed += 1
                        print("FAILED", name, type(e).__name__, str(e)[:600], flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
