#!/usr/bin/env python3
"""Whether Keras goes on where `intwain train` ended, and intwain where its own file ended.

    python tools/continue_check.py BINARY [--models mlp,two_tower] [--optimizers sgd,adam] [--floatx float64] --out DIR

intwain takes three steps and writes a .keras file. Keras must load it compiled, predict what `intwain run` computes, and take three more steps;
`intwain train` takes the same three from the same file. Losses and weights must agree: within 1e-9 in float64, 1e-4 in float32, weights within 100 times that.
"""
import argparse
import os
import sys
import tempfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import numpy as np

from train_check import Failure, intwain, weights
from train_models import ensure, folder

BATCH, STEPS = 4, 3


def close(what, got, want, allowed):
    off = np.abs(np.asarray(got, "f8") - want).max() / max(np.abs(want).max(), 1e-30)
    if not off <= allowed:
        raise Failure(f"{what} is off by {off:.2g} of its scale, {allowed:g} is allowed")
    return off


def check(binary, place, optimizer, floatx, scratch):
    import keras

    allowed = 1e-9 if floatx == "float64" else 1e-4
    with np.load(f"{place}/data.npz") as arrays:
        data = {k: arrays[k] for k in arrays.files}
    halves = [{k: v[part] for k, v in data.items()} for part in (slice(0, STEPS * BATCH), slice(STEPS * BATCH, 2 * STEPS * BATCH))]
    for k, half in enumerate(halves):
        np.savez(f"{scratch}/half{k}.npz", **half)
    inputs = {k: v[:BATCH] for k, v in halves[1].items() if k[0] == "x"}
    np.savez(f"{scratch}/inputs.npz", **inputs)
    common = ["--epochs", 1, "--batch", BATCH, "--no-shuffle", "-q", "--devices", "cpu:0"]
    first = f"{scratch}/first.keras"
    intwain(binary, "train", f"{place}/{optimizer}.keras", "--data", f"{scratch}/half0.npz", *common, "-o", first, "--dtype", floatx)

    keras.config.set_floatx(floatx)
    model = keras.models.load_model(first)
    if not model.compiled or int(model.optimizer.iterations) != STEPS:
        raise Failure(f"Keras loads it with compiled {model.compiled} behind {int(model.optimizer.iterations)} steps")
    pack = lambda values: values if len(values) > 1 else values[0]
    predicted = keras.tree.flatten(model.predict_on_batch(pack(list(inputs.values()))))
    intwain(binary, "run", first, "--inputs", f"{scratch}/inputs.npz", "--outputs", f"{scratch}/outputs.npz", "--devices", "cpu:0", "-q", "--dtype", floatx)
    with np.load(f"{scratch}/outputs.npz") as outputs:
        for name, want in zip(outputs.files, predicted, strict=True):
            close(f"prediction {name}", outputs[name], want, allowed)
    losses = []
    for k in range(STEPS):
        rows = slice(k * BATCH, (k + 1) * BATCH)
        x, y = ([v[rows] for name, v in halves[1].items() if name[0] == kind] for kind in "xy")
        losses.append(float(model.train_on_batch(pack(x), pack(y), return_dict=True)["loss"]))
        model.reset_metrics()
    model.save_weights(f"{scratch}/keras.weights.h5")

    flags = ["--history", f"{scratch}/h.npz", "-o", f"{scratch}/second.weights.h5", "--dtype", floatx]
    intwain(binary, "train", first, "--data", f"{scratch}/half1.npz", *common, *flags)
    worst = close("the losses", np.load(f"{scratch}/h.npz")["loss"], np.array(losses), allowed)
    got, want = weights(f"{scratch}/second.weights.h5"), weights(f"{scratch}/keras.weights.h5")
    if got.keys() != want.keys():
        raise Failure(f"the file of weights has other variables: {sorted(got.keys() ^ want.keys())[:6]}")
    apart = max(close(path, got[path], value, 100 * allowed) for path, value in want.items() if value.size)
    return f"losses within {worst:.1e}, weights within {apart:.1e}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--models", default="mlp,two_tower")
    parser.add_argument("--optimizers", default="sgd,adam")
    parser.add_argument("--floatx", default="float64", choices=("float32", "float64"))
    parser.add_argument("--out", default="target/train")
    args = parser.parse_args()
    optimizers, failed = args.optimizers.split(","), 0
    for name in args.models.split(","):
        ensure(args.out, [name], optimizers, args.floatx)
        for optimizer in optimizers:
            with tempfile.TemporaryDirectory() as scratch:
                try:
                    said = check(args.binary, folder(args.out, name, args.floatx, 10, 4), optimizer, args.floatx, scratch)
                    print(f"ok   {name} {optimizer} {args.floatx}: {said}", flush=True)
                except Failure as failure:
                    failed += 1
                    print(f"FAIL {name} {optimizer} {args.floatx}: {failure}", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
