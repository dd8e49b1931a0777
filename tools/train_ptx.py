#!/usr/bin/env python3
"""One step of training as PTX on two emulated devices, held against the CPU's machine code, in float64.

    python tools/train_ptx.py BINARY [--models lenet_dropout,lstm] [--splits data,tensor,pipeline] [--emit DIR] --out DIR

Demanded of the loss and of what the step changed in each weight: |ptx - f64| <= 2 max|cpu - f64| + 1e-6 of the scale, where f64 is `--dtype float64` on `cpu:0`
and cpu is float32 on CPU devices. Where rounding moves a deep model is chance (relu and pooling have kinks), so the largest error of any weight under any split
counts for all. The optimizer is SGD with momentum and a rate of 1, so that a change is the gradient and not lost in the rounding of the weight. The emulator reports every access that is out of bounds, misaligned, uninitialised, racing or in flight; any report is a failure.
`--emit DIR` writes the modules of a step of Adam, as DIR/NAME-SPLIT/deviceN.ptx, for `tools/ptxas_check.py`, and runs nothing.
"""
import argparse
import os
import sys
import tempfile
import time

import numpy as np

from train_check import Failure, intwain, weights
from train_models import ensure, folder

MODELS = "lenet_dropout lstm gpt dlrm unet resnet50".split()
SPLITS = "data tensor pipeline".split()
ROWS = 4
SGD = '{"class_name": "SGD", "config": {"learning_rate": %s, "momentum": 0.9}}'


def devices(kind, split):
    return ["--devices", f"{kind}:0,{kind}:1", "--split", split, *(["--micro-batches", 1] if split == "pipeline" else [])]


def words(place):
    return ["train", f"{place}/adam.keras", "--data", f"{place}/data.npz", "--epochs", 1, "--batch", ROWS, "--no-shuffle", "-q"]


def step(binary, place, flags, rate=1.0):
    """The loss of the step and the weights behind it."""
    with tempfile.TemporaryDirectory() as scratch:
        intwain(binary, *words(place), "--optimizer", SGD % rate, "--history", f"{scratch}/h.npz", "-o", f"{scratch}/o.weights.h5", *flags)
        return float(np.load(f"{scratch}/h.npz")["loss"][0]), {k: v.astype("f8") for k, v in weights(f"{scratch}/o.weights.h5").items()}


def distance(one, other, before):
    """How far two steps are apart: in the loss, and at most in a weight, of the largest change that the step made to one of the same size."""
    moved = {key: np.abs(value - before[key]).max(initial=0.0) for key, value in other[1].items()}
    largest = max(moved.values())
    apart = {key: np.abs(one[1][key] - value).max(initial=0.0) / max(moved[key], 1e-2 * largest, 1e-30) for key, value in other[1].items()}
    where = max(apart, key=apart.get)
    return abs(one[0] - other[0]) / max(abs(other[0]), 1e-30), apart[where], where


class Yardstick:
    """A step in float64, and how far the CPU's float32 is from it."""

    def __init__(self, binary, place, splits):
        flags = ["--dtype", "float64", "--devices", "cpu:0"]
        self.before, self.exact = step(binary, place, flags, 0.0)[1], step(binary, place, flags)
        own = [self.off(step(binary, place, devices("cpu", split))) for split in splits]
        self.loss, self.weights = max(o[0] for o in own), max(o[1] for o in own)

    def off(self, got):
        return distance(got, self.exact, self.before)

    def hold(self, got):
        loss, moved, where = self.off(got)
        text = f"loss {loss:.1e}, weights {moved:.1e} from float64; the CPU's {self.loss:.1e} and {self.weights:.1e}"
        if not (loss <= 2 * self.loss + 1e-6 and moved <= 2 * self.weights + 1e-6):
            raise Failure(f"{text} ({where})")
        return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--splits", default=",".join(SPLITS))
    parser.add_argument("--emit")
    parser.add_argument("--out", default="target/train")
    args = parser.parse_args()
    passed = failed = 0
    for name in args.models.split(","):
        ensure(args.out, [name], ["adam"], steps=1, batch=ROWS)
        place, yardstick = folder(args.out, name, "float32", 1, ROWS), None
        for split in args.splits.split(","):
            start = time.time()
            try:
                if args.emit:
                    said = ""
                    intwain(args.binary, *words(place), *devices("ptx", split), "--emit-ptx", f"{args.emit}/{name}-{split}")
                else:
                    yardstick = yardstick or Yardstick(args.binary, place, SPLITS)
                    said = ": " + yardstick.hold(step(args.binary, place, devices("ptx", split)))
                passed += 1
                print(f"ok   {name} {split}{said} ({time.time() - start:.1f} s)", flush=True)
            except Failure as failure:
                failed += 1
                print(f"FAIL {name} {split}: {failure}", flush=True)
    print(f"{passed} steps {'written' if args.emit else 'as they should be'}, {failed} not")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
