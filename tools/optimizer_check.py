#!/usr/bin/env python3
"""Trains small models with every optimizer by turns with Keras and Intwain, and holds weights and optimizers against Keras alone.

    python tools/optimizer_check.py [--bin target/debug/intwain] [--devices cpu:0,cpu:1] [--suffix .h5] [NAME ...]

A model is compiled and saved by Keras; Intwain trains it, writes it with the optimizer's state, and Keras goes on from that file; and the other
way round. Both have to end where Keras alone ends.
"""
import argparse
import os
import subprocess
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras
import numpy as np

from make_optimizer_goldens import listed

ROWS, BATCH, FIRST, SECOND = 12, 4, 2, 2


def compiled(make):
    keras.backend.clear_session()
    keras.utils.set_random_seed(4)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, "tanh", name="a"), keras.layers.Dense(2, name="b")], name="m")
    model.compile(make(), "mse")
    if isinstance(model.optimizer, keras.optimizers.ScheduleFreeAdamW):
        # Built by `fit`, it begins with zeros in place of the variables.
        model.optimizer.build(model.trainable_variables)
    return model


def fit(model, x, y, epochs):
    model.fit(x, y, batch_size=BATCH, epochs=epochs, shuffle=False, verbose=0)


def state(model):
    return [np.asarray(v) for v in model.trainable_variables + model.optimizer.variables]


def difference(got, want):
    if len(got) != len(want):
        return f"{len(got)} tensors instead of {len(want)}"
    worst = 0.0
    for g, w in zip(got, want):
        if g.shape != w.shape:
            return f"{g.shape} instead of {w.shape}"
        worst = max(worst, float(np.max(np.abs(g.astype("f8") - w)) / max(np.max(np.abs(w)), 1e-6)))
    return worst


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--bin", default="target/debug/intwain")
    parser.add_argument("--devices", default="cpu:0")
    parser.add_argument("--suffix", default=".keras")
    parser.add_argument("--within", type=float, default=2e-4)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(ROWS, 3)).astype("float32"), rng.normal(size=(ROWS, 2)).astype("float32")
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        data, start, middle, end = (os.path.join(folder, name) for name in ("data.npz", "a" + args.suffix, "b" + args.suffix, "c" + args.suffix))

        def train(source, target):
            command = [args.bin, "train", source, "--data", data, "--epochs", str(FIRST), "--batch", str(BATCH), "--no-shuffle",
                       "--devices", args.devices, "-o", target, "-q"]
            done = subprocess.run(command, capture_output=True, text=True)
            return done.stderr.strip() if done.returncode else None

        np.savez(data, x0=x, y0=y)
        for name, make, more in listed():
            # Lamb is not among the classes that Keras reads.
            if more or "lamb" in name or (args.names and name not in args.names):
                continue
            # Averages take the variables' place at the end of every fit, so Keras alone stops in between as well.
            alone = compiled(make)
            alone.save(start)
            fit(alone, x, y, FIRST)
            alone.save(middle)
            fit(alone, x, y, SECOND)
            want = state(alone)
            said = train(middle, end)
            forth = said or difference(state(keras.models.load_model(end)), want)
            said = train(start, end)
            if not said:
                model = keras.models.load_model(end)
                fit(model, x, y, SECOND)
            back = said or difference(state(model), want)
            good = all(isinstance(d, float) and d <= args.within for d in (forth, back))
            failed += not good
            print(f"{'ok  ' if good else 'FAIL'} {name}: Keras then Intwain {forth}, Intwain then Keras {back}", flush=True)
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
