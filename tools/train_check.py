#!/usr/bin/env python3
"""Holds ten steps of `intwain train` against ten steps of Keras.

    python tools/train_check.py BINARY [--models mlp,lenet] [--optimizers sgd,adam] [--floatx float64] [--full] [--split] --out DIR

In float64 losses must agree within 1e-9 relative at the first step and 1e-6 at the tenth, and every weight, by its largest element, within 1e-9; or within 10 times
what Keras shows against itself with the rows of each batch reversed: at that step (Lion takes signs, also of what is zero but for rounding), and in the weight where
that is most (which weight rounding moves is chance). In float32 losses must
agree within 1e-4, or twice what Keras's own float32 is from its float64 where that is more (signs of what is zero but for rounding decide under Lion), those of models
with batch normalisation at the first step. mlp is trained with every optimizer and schedule of Keras in float32. `--split` trains on two devices, by rows, as
well. What Keras computed stays in DIR.
"""
import argparse
import os
import shlex
import subprocess
import sys
import tempfile
import time

import h5py
import numpy as np

from train_models import COMMON, LOSSES, OPTIMIZERS, ensure, folder

FULL = "mlp lenet resnet50 unet vit gpt lstm two_tower dlrm".split()
NORMALISED = ("resnet50", "unet")
ONE, TWO = ["--devices", "cpu:0"], ["--devices", "cpu:0,cpu:1", "--split", "data"]


class Failure(Exception):
    pass


def intwain(binary, *words):
    """Runs the binary; its failure becomes ours, with the command that shows it."""
    command = [binary, *map(str, words)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        said = "\n    ".join(result.stderr.strip().splitlines()[:12])
        raise Failure(f"exit {result.returncode}\n    {shlex.join(command)}\n    {said}")
    return result.stdout


def weights(path):
    """The model's variables in a .weights.h5 file by their place; states of generators and of the optimizer are left out."""
    found = {}

    def visit(name, item):
        if isinstance(item, h5py.Dataset) and "seed_generator" not in name and not name.startswith("optimizer"):
            found[name] = item[()]

    with h5py.File(path) as file:
        file.visititems(visit)
    return found


def relative(got, want):
    if got.shape != want.shape:
        raise Failure(f"{got.size} steps, Keras took {want.size}")
    return np.abs(got - want) / np.maximum(np.abs(want), 1e-30)


def check(binary, out, name, optimizer, floatx, devices):
    place, double = (folder(out, name, x, 10, 4) for x in (floatx, "float64"))
    with tempfile.TemporaryDirectory() as scratch:
        words = ["train", f"{place}/{optimizer}.keras", "--data", f"{place}/data.npz", "--epochs", 1, "--batch", 4, "--no-shuffle", "-q"]
        words += ["--history", f"{scratch}/h.npz", "-o", f"{scratch}/o.weights.h5", "--dtype", floatx, *devices]
        intwain(binary, *words)
        error = relative(np.load(f"{scratch}/h.npz")["loss"].astype("f8"), np.load(f"{place}/{optimizer}.npz")["loss"])
        got = weights(f"{scratch}/o.weights.h5")
    want, again = weights(f"{place}/{optimizer}.weights.h5"), weights(f"{place}/{optimizer}.reversed.weights.h5")
    if got.keys() != want.keys():
        raise Failure(f"the file of weights has other variables: {sorted(got.keys() ^ want.keys())[:6]}")
    text = f"loss {error[0]:.1e} at step 1, {error[-1]:.1e} at step {len(error)}"
    if floatx == "float32":
        exact = np.load(f"{double}/{optimizer}.npz")["loss"]
        allowed = np.maximum(1e-4, 2 * relative(np.load(f"{place}/{optimizer}.npz")["loss"], exact))
        judged = slice(1 if name in NORMALISED else None)
        if not (error <= allowed)[judged].all():
            raise Failure(f"{text}: allowed are {allowed[judged]}, they are {error[judged]}")
        return text
    itself = relative(np.load(f"{place}/{optimizer}.reversed.npz")["loss"], np.load(f"{place}/{optimizer}.npz")["loss"])
    allowed = max(1e-9, 10 * itself[0]), max(1e-6, 10 * itself[-1])
    if not (error[0] <= allowed[0] and error[-1] <= allowed[1]):
        raise Failure(f"{text}: {allowed[0]:.0e} and {allowed[1]:.0e} are allowed\n    intwain {shlex.join(map(str, words))}")
    sizes = {path: np.abs(value).max() for path, value in want.items() if value.size}
    own = max(np.abs(again[path] - want[path]).max() / max(size, 1e-300) for path, size in sizes.items())
    worst, where = 0.0, ""
    for path, size in sizes.items():
        off = np.abs(got[path].astype("f8") - want[path]).max() / (max(10 * own, 1e-9) * max(size, 1e-300))
        worst, where = max((worst, where), (off if off == off else np.inf, path))
    if worst > 1:
        raise Failure(f"{text}; {where} is off by {worst:.2g} of what is allowed\n    intwain {shlex.join(map(str, words))}")
    return f"{text}, weights at {worst:.2g} of what is allowed"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--models", default="")
    parser.add_argument("--optimizers", default="")
    parser.add_argument("--floatx", choices=("float32", "float64"))
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--split", action="store_true")
    parser.add_argument("--out", default="target/train")
    args = parser.parse_args()
    asked = args.optimizers.split(",") if args.optimizers else COMMON if args.full else ["sgd", "adam"]
    named = args.models.split(",") if args.models else None
    runs = {"float64": named or (FULL if args.full else "mlp lenet lstm two_tower".split()), "float32": named or (FULL if args.full else ["mlp"])}
    unknown = [n for n in (named or []) if n not in LOSSES] + [o for o in asked if o not in OPTIMIZERS]
    if unknown:
        parser.error(f"no such model or optimizer: {', '.join(unknown)}; there are {', '.join(LOSSES)} and {', '.join(OPTIMIZERS)}")
    passed = failed = 0
    for floatx in [args.floatx] if args.floatx else runs:
        for name in runs[floatx]:
            # One small model is trained with everything that there is. Keras computes schedules in float32 always.
            optimizers = list(OPTIMIZERS) if (name, floatx) == ("mlp", "float32") and not args.optimizers else asked
            for needed in {floatx, "float64"}:
                ensure(args.out, [name], optimizers, needed, reference=True)
            for optimizer in optimizers:
                for devices in [ONE, TWO] if args.split else [ONE]:
                    title = f"{name} {optimizer} {floatx}" + (" two devices" if devices is TWO else "")
                    start = time.time()
                    try:
                        said = check(args.binary, args.out, name, optimizer, floatx, devices)
                        passed += 1
                        print(f"ok   {title}: {said} ({time.time() - start:.1f} s)", flush=True)
                    except Failure as failure:
                        failed += 1
                        print(f"FAIL {title}: {failure}", flush=True)
    print(f"{passed} trajectories as Keras's, {failed} not")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
