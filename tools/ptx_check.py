#!/usr/bin/env python3
"""Runs the models of `zoo.py` as PTX on the emulator and holds them against the CPU's machine code, in float64.

    python tools/ptx_check.py ZOO_DIR [NAME ...] [--binary target/release/intwain] [--only run,grad] [--batch 3] [--splits one,data,tensor,pipeline]

run    outputs on `ptx:0` (one) and on `ptx:0,ptx:1` under every split
grad   gradients likewise, of the models that zoo.py lists for it, under one, data and tensor

Demanded of every output, and of all gradients together: max|ptx - f64| <= 2 max|cpu - f64| + 1e-6 of the scale, where f64 is `--dtype float64` on `cpu:0` and cpu is
float32 on CPU devices under the same plan. The emulator reports every access that is out of bounds, misaligned, uninitialised, racing or in flight; any report is a
failure. `--effects early` is passed on: asynchronous copies then happen when they are issued, not when they are waited for. Needs NumPy only; exit 0 when nothing failed.
"""
import argparse
import os
import sys
import time

import numpy as np

from zoo import GRADIENTS, MEASURED
from zoo_check import Checker, Failure, load, rows_folder, table

HARDWARE = "2xa100-nvlink"
SPLITS = ("one", "data", "tensor", "pipeline")


def scale_of(array):
    return max(float(np.abs(array).max(initial=0.0)), 1e-30)


def hold(checker, column, got, cpu, exact, verb):
    if sorted(got) != sorted(exact):
        raise Failure(f"missing {sorted(set(exact) - set(got))}, too many {sorted(set(got) - set(exact))}")
    # Gradients that are zero but for rounding, such as that of a key's bias, are measured against the largest.
    floor = 1e-2 * max(scale_of(array) for array in exact.values())
    scale = {key: max(scale_of(want), floor) for key, want in exact.items()}
    own = {key: float(np.max(np.abs(cpu[key].astype("f8") - want), initial=0.0)) / scale[key] for key, want in exact.items()}
    # How far rounding moves single gradients of a deep model is chance, where relu and pooling have their kinks above all: the worst counts.
    if verb == "grad":
        own = dict.fromkeys(own, max(own.values()))
    for key, want in exact.items():
        checker.compare(column, key, got[key].astype("f8"), want, scale[key], 2 * own[key] + 1e-6)


def check(checker, verb, name, model, files, splits, extra):
    exact = {}

    def reference():
        found = checker.arrays(verb, model, files, "cpu:0", None, ["--dtype", "float64"])
        exact.update({key: array.astype("f8") for key, array in found.items()})

    checker.check(f"{name} {verb} float64", reference)
    for split in splits if exact else ():

        def act():
            devices, named = (1, None) if split == "one" else (2, split)
            on = {kind: ",".join(f"{kind}:{i}" for i in range(devices)) for kind in ("cpu", "ptx")}
            cpu = checker.arrays(verb, model, files, on["cpu"], named, ["--hardware", HARDWARE])
            start = time.monotonic()
            got = checker.arrays(verb, model, files, on["ptx"], named, ["--hardware", HARDWARE, *extra])
            print(f"{name} {verb} {split}: {time.monotonic() - start:.1f} s", flush=True)
            hold(checker, (name, f"{verb} {split}"), got, cpu, exact, verb)

        checker.check(f"{name} {verb} {split}", act)


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("zoo")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--binary", default="target/release/intwain")
    parser.add_argument("--only", default="run,grad")
    parser.add_argument("--batch", type=int, default=3)
    parser.add_argument("--splits", default=",".join(SPLITS))
    parser.add_argument("--precision")
    parser.add_argument("--effects")
    parser.add_argument("--timeout", type=float, default=1200)
    args = parser.parse_intermixed_args()
    checker, parts, splits = Checker(os.path.abspath(args.binary), args.timeout), args.only.split(","), args.splits.split(",")
    given = {"--precision": args.precision, "--effects": args.effects}
    extra = [word for flag, value in given.items() if value for word in (flag, value)]
    for name in args.names or MEASURED:
        folder = os.path.join(args.zoo, name)
        if not os.path.isdir(folder):
            sys.exit(f"{folder} is not there: make it with tools/zoo.py")
        model, rows = [f"{folder}/model.keras"], rows_folder(folder, args.batch)
        files = {"inputs": f"{rows}/inputs.npz"}
        if "run" in parts:
            check(checker, "run", name, model, {**files, "batch": args.batch}, splits, extra)
        if "grad" in parts and name in GRADIENTS:
            values = load(f"{folder}/grads.npz")
            cotangents = f"{folder}/cotangents.npz"
            np.savez(cotangents, **{key: array for key, array in values.items() if key.startswith("cot")})
            files = {"inputs": f"{rows_folder(folder, 4)}/inputs.npz", "cotangents": cotangents}
            check(checker, "grad", name, model, files, [s for s in splits if s != "pipeline"], extra)
    if checker.worst:
        table(checker.worst)
    print(f"\n{checker.passed} checks passed, {len(checker.failures)} failed")
    sys.exit(1 if checker.failures else 0)


if __name__ == "__main__":
    main()
