#!/usr/bin/env python3
"""Holds the `intwain` binary against conformance cases, those of `layer_cases.py` and others of the format described there.

    python tools/layer_check.py CASES_DIR [--binary target/release/intwain] [--devices cpu:0] [--split data] [--grad] [--training] [--only TEXT] [--jobs 2]

Outputs have to be within 2e-4 of the element and 2e-5 of the output's scale (gradients 1e-3 and 1e-4), integers and booleans equal; cases
computed in half precisions within two units of rounding of the element and of the scale (gradients eight). With --split, which implies
`--allow-one`, it says how many cases really were split, and names those that were not under -v. Needs NumPy only. Exit 0 when none failed.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np

FORWARD, GRADIENT = (2e-4, 2e-5), (1e-3, 1e-4)
HALF = {"float16": 2.0**-10, "bfloat16": 2.0**-7}  # units of rounding


def unlike(got, want, relative, absolute):
    """What is wrong with an array, or None."""
    if got.shape != want.shape:
        return f"shape {list(got.shape)}, Keras has {list(want.shape)}"
    if "V" in (got.dtype.kind, want.dtype.kind):
        return f"type {got.dtype}, Keras has {want.dtype}"
    if want.dtype.kind in "iub":
        wrong = int((got.astype("i8") != want.astype("i8")).sum()) if got.dtype.kind in "iub" else got.size
        return f"{wrong} of {want.size} integers differ ({got.dtype})" if wrong else None
    if got.dtype.kind != "f":
        return f"type {got.dtype}, Keras has {want.dtype}"
    g, w = got.astype("f8"), want.astype("f8")
    if (np.isnan(g) != np.isnan(w)).any():
        return f"{int((np.isnan(g) != np.isnan(w)).sum())} of {w.size} are NaN here or there only"
    infinite = np.isinf(w) | np.isinf(g)
    if (g[infinite] != w[infinite]).any():
        return "infinities differ"
    finite = np.isfinite(w)
    if not finite.any():
        return None
    scale = max(1.0, float(np.abs(w[finite]).max()))
    error = np.abs(g[finite] - w[finite])
    if (error <= absolute * scale + relative * np.abs(w[finite])).all():
        return None
    return f"off by {error.max():.3g}, scale {scale:.3g}"


class Runner:
    def __init__(self, args):
        self.args = args
        index = os.path.join(args.cases, "index.json")
        lines = json.load(open(index)) if os.path.exists(index) else []
        self.precision = {line["case"]: line.get("precision", "float32") for line in lines}

    def intwain(self, verb, case, model, data, extra):
        """Arrays and the number of devices, or what went wrong."""
        with np.load(data) as arrays:
            rows = arrays["in0"].shape[0] if "in0" in arrays.files and arrays["in0"].ndim else 1
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out.npz")
            command = [self.args.binary, verb, model, "--inputs", data, *extra, "--outputs", out, "--batch", str(rows), "-v"]
            command += ["--devices", self.args.devices] if self.args.devices else []
            command += ["--split", self.args.split, "--allow-one"] if self.args.split else []
            try:
                result = subprocess.run(command, capture_output=True, text=True, timeout=self.args.timeout)
            except subprocess.TimeoutExpired:
                return f"{verb}: no answer in {self.args.timeout} s", None
            if result.returncode != 0:
                said = [l for l in result.stderr.strip().splitlines() if "no input takes" not in l] or ["no message"]
                return f"{verb}: exit {result.returncode}: {' / '.join(l.strip() for l in said[:3])[:300]}", None
            chosen = re.search(r"on (\d+) device", result.stderr)
            with np.load(out) as arrays:
                return {k: arrays[k] for k in arrays.files}, int(chosen.group(1)) if chosen else None

    def case(self, name):
        folder = os.path.join(self.args.cases, name)
        data = os.path.join(folder, "case.npz")
        model = next((p for n in ("model.keras", "model.h5") if os.path.exists(p := os.path.join(folder, n))), None)
        if model is None:
            return "has no model", None
        with np.load(data) as arrays:
            want = {k: arrays[k] for k in arrays.files}
        unit = HALF.get(self.precision.get(name), 0.0)
        got, devices = self.intwain("run", name, model, data, [])
        if isinstance(got, str):
            return got, None
        names = sorted((k for k in want if k.startswith("out")), key=lambda k: int(k[3:]))
        if len(got) != len(names):
            return f"run: {len(got)} outputs, Keras has {len(names)}", devices
        pairs = [(k, v, want[k], FORWARD) for k, v in zip(names, got.values())]
        if self.args.grad and any(k.startswith("cot") for k in want):
            got, _ = self.intwain("grad", name, model, data, ["--cotangents", data])
            if isinstance(got, str):
                return got, devices
            names = [k for k in want if re.match(r"g(in|w)\d", k)]
            missing = [k for k in names if k not in got]
            if missing:
                return f"grad: without {', '.join(missing[:4])}", devices
            pairs += [(k, got[k], want[k], GRADIENT) for k in names]
        # Cases with something random have no values of training.
        if self.args.training and any(k.startswith("tout") for k in want):
            got, _ = self.intwain("run", name, model, data, ["--training"])
            if isinstance(got, str):
                return got, devices
            names = sorted((k for k in want if k.startswith("tout")), key=lambda k: int(k[4:]))
            outputs = [k for k in got if not re.fullmatch(r"tw\d+", k)]
            if len(outputs) != len(names):
                return f"run --training: {len(outputs)} outputs, Keras has {len(names)}", devices
            pairs += [(k, got[o], want[k], GRADIENT) for k, o in zip(names, outputs)]
            weights = [k for k in want if re.fullmatch(r"tw\d+", k)]
            missing = [k for k in weights if k not in got]
            if missing:
                return f"run --training: without {', '.join(missing[:4])}", devices
            pairs += [(k, got[k], want[k], GRADIENT) for k in weights]
        for key, value, wanted, bounds in pairs:
            units = (2 if bounds is FORWARD else 8) * unit
            why = unlike(value, wanted, *(max(bound, units) for bound in bounds))
            if why:
                return f"{key}: {why}", devices
        return None, devices


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("cases")
    parser.add_argument("--binary", default="target/release/intwain")
    parser.add_argument("--devices", default="cpu:0")
    parser.add_argument("--split", default="")
    parser.add_argument("--grad", action="store_true")
    parser.add_argument("--training", action="store_true", help="outputs and weights of a call in training mode too")
    parser.add_argument("--only", default="", help="names that contain this text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=120)
    parser.add_argument("-v", "--verbose", action="store_true")
    args = parser.parse_args()
    args.binary = os.path.abspath(args.binary)
    present = lambda c: args.only in c and os.path.exists(os.path.join(args.cases, c, "case.npz"))
    names = sorted(filter(present, os.listdir(args.cases)))
    if not names:
        sys.exit(f"{args.cases} has no cases: make them with tools/layer_cases.py")
    runner = Runner(args)
    with ThreadPoolExecutor(args.jobs) as pool:
        results = dict(zip(names, pool.map(runner.case, names)))
    failures = {name: why for name, (why, _) in results.items() if why}
    for name, why in failures.items():
        print(f"FAIL {name}: {why}")
    if args.split:
        whole = [name for name, (_, devices) in results.items() if devices == 1]
        split = [name for name, (_, devices) in results.items() if devices == 2]
        print(f"{len(split)} split over two devices, {len(whole)} on one")
        if args.verbose and whole:
            print("on one:", ", ".join(whole))
    print(f"{len(names) - len(failures)} passed, {len(failures)} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
