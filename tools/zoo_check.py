#!/usr/bin/env python3
"""Holds the `intwain` binary against what Keras computed for the models of `zoo.py`.

    python tools/zoo_check.py ZOO_DIR [NAME ...] [--binary target/release/intwain] [--only run,formats,grad,placement] [--batches 1,3,4,5]

run        every batch on one device and under every split on two: within 2e-4 of the output's scale; `data` and `pipeline` equal to one
           device bit for bit
formats    the same from model.json + model.weights.h5 and from model.h5 where Keras reads that back
grad       gradients on one device and under `data` and `tensor`: within 1e-3 of each gradient's scale; on one device in float64: 1e-6
placement  what `inspect --json` says about the splits: that they split

Needs NumPy only. Prints each failure with the command that shows it, then a table of the largest errors; exit 0 when nothing failed.
"""
import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time

import numpy as np

from zoo import GRADIENTS, MEASURED

ONE = ("cpu:0", None)
SPLITS = ("data", "tensor", "pipeline", "auto")
RUN_TOLERANCE, GRAD_TOLERANCE = 2e-4, 1e-3
# Of how many little moves of the inputs the gradients are looked at.
DRAWS = 4


class Failure(Exception):
    pass


class Checker:
    def __init__(self, binary, timeout):
        self.binary, self.timeout = binary, timeout
        self.failures, self.worst, self.passed = [], {}, 0

    def check(self, title, act):
        """Runs one check; a failure is kept and printed, so that one run of the tool shows all of them."""
        try:
            act()
            self.passed += 1
        except Failure as failure:
            self.failures.append(title)
            print(f"FAIL {title}: {failure}", flush=True)

    def intwain(self, *words):
        command = [self.binary, *map(str, words)]
        try:
            result = subprocess.run(command, capture_output=True, text=True, timeout=self.timeout)
        except subprocess.TimeoutExpired:
            raise Failure(f"no answer in {self.timeout} s\n    {shlex.join(command)}") from None
        if result.returncode != 0:
            said = "\n    ".join(result.stderr.strip().splitlines()[:12])
            raise Failure(f"exit {result.returncode}\n    {shlex.join(command)}\n    {said}")
        return result.stdout

    def arrays(self, verb, model, files, device, split, extra=()):
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out.npz")
            words = [verb, *model, "--outputs", out, "--devices", device, "-q", *extra]
            for option, path in files.items():
                words += [f"--{option}", path]
            self.intwain(*words, *(["--split", split] if split else []))
            with np.load(out) as arrays:
                return {name: arrays[name] for name in arrays.files}

    def compare(self, column, name, got, want, scale, tolerance):
        if got.shape != want.shape or got.dtype != want.dtype:
            raise Failure(f"{name} is {got.dtype}{list(got.shape)}, Keras has {want.dtype}{list(want.shape)}")
        with np.errstate(all="ignore"):
            error = float(np.max(np.abs(got.astype("f8") - want), initial=0.0)) / scale
        self.worst[column] = max(self.worst.get(column, 0.0), error if error == error else np.inf)
        if not error <= tolerance:
            raise Failure(f"{name} is off by {error:.3g} of its scale {scale:.3g}; {tolerance:g} is allowed")

    def outputs(self, column, got, want):
        if len(got) != len(want):
            raise Failure(f"{len(got)} outputs ({', '.join(got)}), Keras has {len(want)}")
        for (name, array), key in zip(got.items(), sorted(want, key=lambda k: int(k[3:]))):
            self.compare(column, name, array, want[key], max(float(np.abs(want[key]).max()), 1e-30), RUN_TOLERANCE)


def load(path):
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def rows_folder(folder, batch):
    sub = os.path.join(folder, f"b{batch}")
    return sub if os.path.isdir(sub) else folder


def check_run(checker, name, folder, batches):
    model = [f"{folder}/model.keras"]
    for batch in batches:
        rows = rows_folder(folder, batch)
        files, want, whole = {"inputs": f"{rows}/inputs.npz", "batch": batch}, load(f"{rows}/outputs.npz"), {}

        def one():
            whole.update(checker.arrays("run", model, files, *ONE))
            checker.outputs((name, "one"), whole, want)

        checker.check(f"{name} run batch {batch} one", one)
        for split in SPLITS:

            def two():
                got = checker.arrays("run", model, files, "cpu:0,cpu:1", split)
                checker.outputs((name, split), got, want)
                if split in ("data", "pipeline") and whole:
                    same_bits(got, whole)

            checker.check(f"{name} run batch {batch} {split}", two)


def same_bits(got, whole):
    for key, array in whole.items():
        if got[key].tobytes() != array.tobytes():
            unlike = int(np.sum(got[key] != array))
            raise Failure(f"{key}: {unlike} of {array.size} numbers differ from the one-device run, which has to be equal bit for bit")


def check_formats(checker, name, folder):
    rows = rows_folder(folder, 4)
    files, want = {"inputs": f"{rows}/inputs.npz"}, load(f"{rows}/outputs.npz")
    forms = {"model.json": [f"{folder}/model.json", "--weights", f"{folder}/model.weights.h5"]}
    notes = next((f"{folder}/{n}" for n in ("facts.json", "note.json") if os.path.exists(f"{folder}/{n}")))
    with open(notes) as file:
        if json.load(file)["h5"] is True:
            forms["model.h5"] = [f"{folder}/model.h5"]
    for form, model in forms.items():
        checker.check(
            f"{name} {form}",
            lambda: checker.outputs((name, form.split(".")[1]), checker.arrays("run", model, files, *ONE), want),
        )


def farthest(got, want, scale):
    return max(float(np.abs(got[key].astype("f8") - want[key]).max(initial=0.0)) / scale[key] for key in want)


def sensitivity(checker, model, files, rows, want, scale):
    """How far the gradients of float64 move when the inputs move so little that the outputs move as far as float32 is off in Keras.

    Where a unit of a deep model is near the kink of its relu, this is far, and any rounding may do the same.
    """
    inputs, told = load(files["inputs"]), load(f"{rows}/outputs.npz")
    floats = [name for name, array in inputs.items() if array.dtype.kind == "f"]
    if not floats:
        return 0.0
    wide = ["--dtype", "float64"]
    exact = list(checker.arrays("run", model, {"inputs": files["inputs"]}, *ONE, wide).values())
    told = [told[key] for key in sorted(told, key=lambda k: int(k[3:]))]
    off = lambda outputs: max(float(np.abs(a - b).max()) / max(float(np.abs(b).max()), 1e-30) for a, b in zip(outputs, exact))
    rng = np.random.default_rng(7)
    size, most = 1e-6, 0.0
    with tempfile.TemporaryDirectory() as folder:
        moved = {**files, "inputs": os.path.join(folder, "inputs.npz")}
        for draw in range(DRAWS + 1):
            noise = {name: inputs[name].astype("f8") * (1 + size * rng.uniform(-1, 1, inputs[name].shape)) for name in floats}
            np.savez(moved["inputs"], **{**inputs, **noise})
            if draw == 0:
                outputs = checker.arrays("run", model, {"inputs": moved["inputs"]}, *ONE, wide).values()
                size *= off(told) / max(off(list(outputs)), 1e-30)
            else:
                most = max(most, farthest(checker.arrays("grad", model, moved, *ONE, wide), want, scale))
    return most


def check_grad(checker, name, folder):
    """Gradients against Keras's in float64. In float32 no two programs agree where a deep model's relu is at its kink, Keras with itself
    neither: there an error as large as Keras's own is allowed, or twice what rounding does to the exact gradient (see `sensitivity`)."""
    model, values, want = [f"{folder}/model.keras"], load(f"{folder}/grads.npz"), load(f"{folder}/grads64.npz")
    # The gradient of a key's bias is zero but for rounding: softmax does not see a shift. Hence the floor.
    floor = 1e-3 * max(float(np.abs(array).max()) for array in want.values())
    scale = {key: max(float(np.abs(array).max()), floor) for key, array in want.items()}
    kinks = farthest(values, want, scale)
    cotangents = f"{folder}/cotangents.npz"
    np.savez(cotangents, **{key: array for key, array in values.items() if key.startswith("cot")})
    rows = rows_folder(folder, 4)
    files = {"inputs": f"{rows}/inputs.npz", "cotangents": cotangents}
    two = "cpu:0,cpu:1"
    for device, split, dtype in ((*ONE, "float64"), (*ONE, None), (two, "data", None), (two, "tensor", None)):

        def act():
            got = checker.arrays("grad", model, files, device, split, ["--dtype", dtype] if dtype else [])
            if sorted(got) != sorted(want):
                raise Failure(f"missing {sorted(set(want) - set(got))}, too many {sorted(set(got) - set(want))}")
            allowed = 1e-6 if dtype else max(GRAD_TOLERANCE, kinks)
            column = (name, "moved float64")
            if not dtype and farthest(got, want, scale) > allowed:
                if column not in checker.worst:
                    checker.worst[column] = sensitivity(checker, model, files, rows, want, scale)
                allowed = max(allowed, 2 * checker.worst[column])
            for key, array in want.items():
                array = array.astype(dtype or "float32")
                checker.compare((name, f"grad {dtype or split or 'one'}"), key, got[key], array, scale[key], allowed)

        checker.check(f"{name} grad {dtype or split or 'one'}", act)
    checker.worst[name, "Keras f32"] = kinks


def check_placement(checker, name, folder):
    """`tensor` cuts at least 90 % of the weights and of the work, no device has more than 60 %; a segment of `pipeline` has at least 25 % of
    the work, unless one layer alone forbids it; `data` deals the rows out."""

    def inspect(split, batch):
        words = ["--hardware", "cpu", "--split", split, "--batch", batch, "--json"]
        return json.loads(checker.intwain("inspect", f"{folder}/model.keras", *words))

    def tensor():
        totals = inspect("tensor", 4)["totals"]
        for what in ("split_weight_bytes", "split_flops"):
            demand(totals[what] >= 0.9, f"{what} is {totals[what]:.3f}")
        for what in ("device_weight_bytes", "device_flops"):
            share = max(totals[what]) / max(sum(totals[what]), 1)
            demand(share <= 0.6, f"one device has {share:.3f} of {what}")

    def pipeline():
        report = inspect("pipeline", 4)
        flops = report["totals"]["device_flops"]
        share, heaviest = min(flops) / sum(flops), max(report["layers"], key=lambda layer: layer["flops"])
        forbidden = heaviest["flops"] > 0.5 * sum(flops)
        demand(share >= 0.25 or forbidden, f"a segment has {share:.3f} of the flops")
        if share < 0.25:
            print(f"{name}: a segment has {share:.3f} of the flops, since layer {heaviest['name']} has {heaviest['flops'] / sum(flops):.3f}")

    def data():
        rows = [device["rows"] for device in inspect("data", 5)["devices"]]
        demand(sorted(rows) == [2, 3], f"5 rows are dealt out as {rows}")

    for split in (tensor, pipeline, data):
        checker.check(f"{name} placement {split.__name__}", split)


def demand(holds, otherwise):
    if not holds:
        raise Failure(otherwise)


def table(worst):
    columns = list(dict.fromkeys(column for _, column in worst))
    print(f"\nlargest error as a part of the scale\n{'':16}" + "".join(f"{column:>13}" for column in columns))
    for name in dict.fromkeys(name for name, _ in worst):
        cells = (f"{worst[name, column]:13.1e}" if (name, column) in worst else f"{'':13}" for column in columns)
        print(f"{name:16}" + "".join(cells))


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("zoo")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--binary", default="target/release/intwain")
    parser.add_argument("--only", default="run,formats,grad,placement")
    parser.add_argument("--batches", default="1,3,4,5")
    parser.add_argument("--timeout", type=float, default=300)
    args = parser.parse_intermixed_args()
    checker, parts = Checker(os.path.abspath(args.binary), args.timeout), args.only.split(",")
    for name in args.names or MEASURED:
        folder, start = os.path.join(args.zoo, name), time.monotonic()
        if not os.path.isdir(folder):
            sys.exit(f"{folder} is not there: make it with tools/zoo.py")
        if "run" in parts:
            check_run(checker, name, folder, [int(n) for n in args.batches.split(",")])
        if "formats" in parts:
            check_formats(checker, name, folder)
        if "grad" in parts and name in GRADIENTS:
            check_grad(checker, name, folder)
        if "placement" in parts:
            check_placement(checker, name, folder)
        print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    if checker.worst:
        table(checker.worst)
    print(f"\n{checker.passed} checks passed, {len(checker.failures)} failed")
    sys.exit(1 if checker.failures else 0)


if __name__ == "__main__":
    main()
