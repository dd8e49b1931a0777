#!/usr/bin/env python3
"""Whether training gives the same bits however it is divided between CPU devices.

    python tools/exact_check.py BINARY [--models lenet_dropout,gpt,lstm,resnet50] [--steps 20] --out DIR

Batches of 16 on one device, by rows as 8,8 and 10,6, and as pipelines of 2, 4 and 8 micro-batches; losses of all steps and the file of the trained
weights, optimizer included, must be equal byte for byte. resnet50, whose batch normalisation is over the batch, is trained by rows, as a pipeline of
one micro-batch, and, with statistics of each micro-batch, in 4 on one device and in a pipeline. lenet_dropout is trained in batches of 5 as 3,2, too.
"""
import argparse
import filecmp
import os
import sys
import tempfile
import time

import numpy as np

from train_check import Failure, intwain
from train_models import ensure, folder

ONE = ["--devices", "cpu:0"]
TWO = ["--devices", "cpu:0,cpu:1"]
ROWS = [[*TWO, "--split", "data", "--parts", parts] for parts in ("8,8", "10,6")]


def pipeline(n, *more):
    return [*TWO, "--split", "pipeline", "--micro-batches", str(n), *more]


def groups(name):
    """Batch, the flags of the run on one device, and those of the runs that must equal it."""
    if name == "resnet50":
        each = ["--bn", "micro-batch"]
        yield 16, ONE, [*ROWS, pipeline(1)]
        yield 16, [*ONE, "--micro-batches", "4", *each], [pipeline(4, *each)]
        return
    yield 16, ONE, [*ROWS, *map(pipeline, (2, 4, 8))]
    if name == "lenet_dropout":
        yield 5, ONE, [[*TWO, "--split", "data", "--parts", "3,2"]]


def train(binary, place, batch, flags, out):
    os.makedirs(out)
    words = ["train", f"{place}/adam.keras", "--data", f"{place}/data.npz", "--epochs", 1, "--batch", batch, "-q"]
    intwain(binary, *words, "--history", f"{out}/h.npz", "-o", f"{out}/o.weights.h5", *flags)
    return f"intwain {' '.join(map(str, words))} {' '.join(flags)}"


def compare(one, other):
    a, b = (np.load(f"{place}/h.npz")["loss"] for place in (one, other))
    if a.tobytes() != b.tobytes():
        apart = np.flatnonzero(a != b)
        first = apart[0] if apart.size else 0
        raise Failure(f"losses are apart from step {first + 1} of {a.size} on: {a[first]!r}, {b[first]!r}")
    if not filecmp.cmp(f"{one}/o.weights.h5", f"{other}/o.weights.h5", shallow=False):
        raise Failure("losses are equal, the files of weights are not")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--models", default="lenet_dropout,gpt,lstm,resnet50")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--out", default="target/train")
    args = parser.parse_args()
    passed = failed = 0
    for name in args.models.split(","):
        for batch, flags, others in groups(name):
            ensure(args.out, [name], ["adam"], steps=args.steps, batch=batch)
            place = folder(args.out, name, "float32", args.steps, batch)
            with tempfile.TemporaryDirectory() as scratch:
                one, whole = f"{scratch}/one", None
                for k, divided in enumerate([None, *others]):
                    title, start = f"{name}, batch {batch}, {' '.join(divided or flags)}", time.time()
                    try:
                        if divided is None:
                            whole = train(args.binary, place, batch, flags, one)
                        elif whole is None:
                            raise Failure("there is no run on one device to compare with")
                        else:
                            shown = train(args.binary, place, batch, divided, f"{scratch}/{k}")
                            try:
                                compare(one, f"{scratch}/{k}")
                            except Failure as failure:
                                raise Failure(f"{failure}\n    {whole}\n    {shown}") from None
                        passed += 1
                        print(f"ok   {title} ({time.time() - start:.1f} s)", flush=True)
                    except Failure as failure:
                        failed += 1
                        print(f"FAIL {title}: {failure}", flush=True)
    print(f"{passed} runs of {args.steps} steps as they should be, {failed} not")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
