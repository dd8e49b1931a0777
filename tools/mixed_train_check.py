#!/usr/bin/env python3
"""Trains models under mixed policies and holds them against Keras: how far each ends from Keras in float32, and the sequence of loss scales.

    python tools/mixed_train_check.py BINARY [--models lenet,resnet50,gpt] [--policies mixed_float16,mixed_bfloat16] --out DIR

Errors: steps of SGD on the same weights and batches. The distance of the losses and that of what all steps changed in the weights from Keras in float32, root
mean squares both, may be twice that of Keras under the same policy, on one device, by rows and as a pipeline; the latter two give one device's bits. The loss scale is one
that overflows nowhere. resnet50 takes small steps, since not even float32 repeats larger ones.

Scales: a small model under mixed_float16 that overflows at first since its scale is too large, and again where a row of the batch is; the scale doubles after two finite
steps. Weights and everything that the optimizer keeps are compared with Keras's after every step, on one device and by rows, where the row is on the second device only.
"""
import argparse
import os
import subprocess
import sys
import tempfile

import h5py
import numpy as np

from train_check import Failure, intwain, weights
from train_models import LOSSES, draw

POLICIES = ("mixed_float16", "mixed_bfloat16")
BATCH, BOUND = 8, 2.0
RATES = {"lenet": 1e-2, "gpt": 1e-2, "resnet50": 1e-5}
STEPS = {"lenet": 32, "gpt": 16, "resnet50": 12}
ONE, DATA = ["--devices", "cpu:0"], ["--devices", "cpu:0,cpu:1", "--split", "data"]
PIPELINE = ["--devices", "cpu:0,cpu:1", "--split", "pipeline", "--micro-batches", "1"]
OVERFLOWS = (2, 3, 6)
SCALED_STEPS = 10


def fit(model, x, y, save=None):
    """The loss of each step; `save` is called behind each."""
    losses, pack = [], lambda values, rows: [v[rows] for v in values] if len(values) > 1 else values[0][rows]
    for k in range(len(x[0]) // BATCH):
        rows = slice(k * BATCH, (k + 1) * BATCH)
        losses.append(float(model.train_on_batch(pack(x, rows), pack(y, rows), return_dict=True)["loss"]))
        model.reset_metrics()
        if save:
            save(k + 1)
    return np.array(losses)


def make(name, out):
    """Keras in float32 and under each policy."""
    import keras
    import train_models

    start = train_models.build(name)
    x, y = draw(start, LOSSES[name], np.random.default_rng(7), STEPS[name] * BATCH)
    place = f"{out}/{name}"
    os.makedirs(place, exist_ok=True)
    np.savez(f"{place}/data.npz", **{f"x{i}": v for i, v in enumerate(x)}, **{f"y{i}": v for i, v in enumerate(y)})
    for policy in ("float32", *POLICIES):
        keras.config.set_dtype_policy(policy)
        model = train_models.build(name)
        model.set_weights(start.get_weights())
        optimizer = keras.optimizers.SGD(RATES[name])
        if policy == "mixed_float16":
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer, initial_scale=2.0**6)
        model.compile(optimizer, [keras.losses.SparseCategoricalCrossentropy(from_logits=True)])
        model.save(f"{place}/{policy}.keras")
        model.save_weights(f"{place}/{policy}.before.weights.h5")
        np.savez(f"{place}/{policy}.npz", loss=fit(model, x, y))
        model.save_weights(f"{place}/{policy}.weights.h5")
        keras.config.set_dtype_policy("float32")


def make_scaled(out):
    """A model that overflows in float16, and everything that Keras has behind each step."""
    import keras

    place = f"{out}/scaled"
    os.makedirs(place, exist_ok=True)
    keras.config.set_dtype_policy("mixed_float16")
    keras.utils.set_random_seed(3)
    i = keras.Input((6,))
    h = keras.layers.Dense(8, activation="relu")(i)
    model = keras.Model(i, keras.layers.Dense(1, dtype="float32")(h))
    rng = np.random.default_rng(5)
    x = rng.standard_normal((SCALED_STEPS * BATCH, 6)).astype("float32")
    for step in OVERFLOWS:
        x[step * BATCH + BATCH - 1] *= 3e4
    y = rng.standard_normal((SCALED_STEPS * BATCH, 1)).astype("float32")
    inner = keras.optimizers.Adam(0.01, global_clipnorm=0.5, weight_decay=0.01)
    model.compile(keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**20, dynamic_growth_steps=2), "mse")
    model.save(f"{place}/model.keras")
    np.savez(f"{place}/data.npz", x0=x, y0=y)
    fit(model, [x], [y], lambda k: model.save_weights(f"{place}/{k}.weights.h5"))


def train(binary, model, data, flags):
    with tempfile.TemporaryDirectory() as scratch:
        words = ["train", model, "--data", data, "--epochs", 1, "--batch", BATCH, "--no-shuffle", "-q"]
        intwain(binary, *words, "--history", f"{scratch}/h.npz", "-o", f"{scratch}/o.weights.h5", *flags)
        return np.load(f"{scratch}/h.npz")["loss"], weights(f"{scratch}/o.weights.h5"), everything(f"{scratch}/o.weights.h5")


def everything(path):
    found = {}
    with h5py.File(path) as file:
        file.visititems(lambda name, item: found.update({name: item[()]}) if isinstance(item, h5py.Dataset) and "seed" not in name else None)
    return found


def apart(one, other, before):
    """Root mean square differences of losses and of weights, in units of what changed."""
    moved = sum(float(np.sum((other[1][k].astype("f8") - before[k]) ** 2)) for k in before)
    off = sum(float(np.sum((one[1][k].astype("f8") - other[1][k]) ** 2)) for k in before)
    return float(np.sqrt(np.mean((one[0] - other[0]) ** 2))), float(np.sqrt(off / moved))


def check(binary, place, policy):
    before = weights(f"{place}/float32.before.weights.h5")
    exact, keras = ((np.load(f"{place}/{p}.npz")["loss"], weights(f"{place}/{p}.weights.h5")) for p in ("float32", policy))
    own, said, whole = apart(keras, exact, before), [], None
    for flags in (ONE, DATA, PIPELINE):
        got = train(binary, f"{place}/{policy}.keras", f"{place}/data.npz", flags)
        ours = apart(got, exact, before)
        said.append(tuple(o / max(k, 1e-12) for o, k in zip(ours, own)))
        whole = whole or got
        if got[0].tobytes() != whole[0].tobytes() or any(got[1][k].tobytes() != v.tobytes() for k, v in whole[1].items()):
            raise Failure(f"{' '.join(flags)}: other bits than on one device")
    text = ", ".join(f"{loss:.2f} and {moved:.2f}" for loss, moved in said)
    if not max(map(max, said)) <= BOUND:
        raise Failure(f"losses and weights are {text} times as far from float32 as Keras's ({own[0]:.1e} and {own[1]:.1e})")
    return f"losses and weights {text} times as far from float32 as Keras's"


def check_scales(binary, place):
    scales = []
    with np.load(f"{place}/data.npz") as data:
        x, y = data["x0"], data["y0"]
    for k in range(1, SCALED_STEPS + 1):
        want = everything(f"{place}/{k}.weights.h5")
        for flags in (ONE, DATA):
            with tempfile.TemporaryDirectory() as scratch:
                np.savez(f"{scratch}/d.npz", x0=x[: k * BATCH], y0=y[: k * BATCH])
                got = train(binary, f"{place}/model.keras", f"{scratch}/d.npz", flags)[2]
            if got.keys() != want.keys():
                raise Failure(f"other variables: {sorted(got.keys() ^ want.keys())}")
            for key, value in want.items():
                exact = value.ndim == 0
                if not (np.array_equal(got[key], value) if exact else np.allclose(got[key], value, rtol=0, atol=2e-3 * max(np.abs(value).max(), 1e-6))):
                    raise Failure(f"{' '.join(flags)}, {k} steps: {key} is {got[key]}, Keras has {value}")
        scales.append(max(float(v) for key, v in want.items() if v.ndim == 0))
    changes = [int(np.log2(s)) for s in scales]
    if not (min(np.diff(changes)) < 0 < max(np.diff(changes))):
        raise Failure(f"the scale neither rises nor falls: 2^{changes}")
    return f"scales 2^{changes}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--models", default=",".join(RATES))
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--out", default="target/mixed-train")
    parser.add_argument("--here", action="store_true", help="make the one model named in this very process")
    args = parser.parse_args()
    names = args.models.split(",")
    if args.here:
        return make_scaled(args.out) if names == ["scaled"] else make(names[0], args.out)
    failed = 0

    def attempt(title, act):
        nonlocal failed
        try:
            print(f"ok   {title}: {act()}", flush=True)
        except Failure as failure:
            failed += 1
            print(f"FAIL {title}: {failure}", flush=True)

    for name in ["scaled", *names]:
        last = f"{args.out}/{name}/" + (f"{SCALED_STEPS}.weights.h5" if name == "scaled" else f"{POLICIES[-1]}.weights.h5")
        if not os.path.exists(last):
            subprocess.run([sys.executable, __file__, args.binary, "--models", name, "--out", args.out, "--here"], check=True)
        if name == "scaled":
            attempt("loss scales", lambda: check_scales(args.binary, f"{args.out}/{name}"))
            continue
        for policy in args.policies.split(","):
            attempt(f"{name} {policy}", lambda: check(args.binary, f"{args.out}/{name}", policy))
    sys.exit(f"{failed} failed" if failed else 0)


if __name__ == "__main__":
    main()
