#!/usr/bin/env python3
"""A table of what becomes of model files that people wrote: each is equal to Keras, runs, or is refused with the reason.

    python tools/corpus.py CORPUS_DIR [--binary target/release/intwain] [--oracle keras_oracle.py --oracle-cache DIR] [--only TEXT]
                           [--jobs 2] [--markdown docs/compatibility.md]

CORPUS_DIR holds the files and `manifest.json`, which says of each what it is, whether Keras 3 or tf-keras load it, and whether the oracle
has values for it. With --oracle such values are made where the cache has none, one Keras process at a time.

A file that imports has to plan, compile, and run on one device and on two, under `data` and `tensor`, all giving the same; its inputs and
weights are the oracle's, and its outputs have to be Keras's, or else seeded. A file that Keras loads may be refused for custom code or
string tensors only; what is no Keras model has to be refused with an error that says what it is. Keras 1 files whose layers then meant
something else are also held against hand-written Keras 3 twins (`keras1_twins.py`). Exit 0 when every file fares as it should.

--markdown puts the totals and the reasons of refusal into that file, between the lines `<!-- corpus -->` and `<!-- /corpus -->`.
"""
import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np

from layer_check import FORWARD, unlike

ONE, TWO = ["--devices", "cpu:0"], ["--devices", "cpu:0,cpu:1", "--allow-one"]
OWN_CODE = re.compile(r"own code|custom|Lambda|lambda|string")
NO_MODEL = re.compile(r"not a Keras|graph model|not a .*model")
OPEN_EXTENT, ROWS = 8, 4


class Wrong(Exception):
    """What a file does and should not."""


class Refused(Exception):
    """The binary refuses the file."""


@dataclass
class Row:
    file: str
    kind: str
    classes: int
    verdict: str = ""
    reason: str = ""
    splits: list = field(default_factory=list)
    seconds: float = 0.0


class Checker:
    def __init__(self, args):
        self.corpus, self.binary, self.cache, self.timeout = args.corpus, os.path.abspath(args.binary), args.oracle_cache, args.timeout

    def intwain(self, *words):
        try:
            result = subprocess.run([self.binary, *map(str, words)], capture_output=True, text=True, timeout=self.timeout)
        except subprocess.TimeoutExpired:
            raise Wrong(f"{words[0]}: no answer in {self.timeout} s") from None
        if result.returncode == 1:
            raise Refused(result.stderr.strip())
        if result.returncode != 0:
            raise Wrong(f"{words[0]}: exit {result.returncode}: {' / '.join(result.stderr.strip().splitlines()[:4])[:400]}")
        return result

    def arrays(self, path, inputs, extra):
        """Outputs of a run, and on how many devices it was."""
        with tempfile.TemporaryDirectory() as folder:
            out = os.path.join(folder, "out.npz")
            said = self.intwain("run", path, "--inputs", inputs, "--outputs", out, "-v", *extra).stderr
            devices = re.search(r"on (\d+) device", said)
            with np.load(out) as arrays:
                return [arrays[k] for k in arrays.files], int(devices.group(1)) if devices else 0

    def row(self, entry):
        row = Row(entry["file"], entry["kind"], len(entry["classes"]))
        start = time.monotonic()
        try:
            self.imported(entry, row)
            if entry["kind"] == "not-keras":
                raise Wrong("imports, and is no Keras model")
        except Refused as refusal:
            row.verdict, row.reason = "refused", short(str(refusal), os.path.join(self.corpus, entry["file"]))
            self.judge_refusal(entry, row, str(refusal))
        except Wrong as wrong:
            row.verdict, row.reason = "WRONG", str(wrong)
        row.seconds = time.monotonic() - start
        return row

    def judge_refusal(self, entry, row, said):
        loads = any(entry[k] is True for k in ("loads_in_keras3", "loads_in_keras3_legacy_reader", "loads_in_keras2"))
        if entry["kind"] == "not-keras" and not NO_MODEL.search(said):
            row.verdict = "WRONG"
            row.reason = f"does not say what the file is: {row.reason}"
        elif loads and not OWN_CODE.search(said):
            row.verdict = "WRONG"
            row.reason = f"Keras loads it: {row.reason}"

    def imported(self, entry, row):
        path = os.path.join(self.corpus, entry["file"])
        oracle = os.path.join(self.cache, entry["file"][:-5]) if self.cache else ""
        known = entry["oracle"].startswith("ok") and os.path.exists(os.path.join(oracle, "done"))
        with tempfile.TemporaryDirectory() as folder:
            shapes, program = self.compiled(path, folder)
            self.intwain("plan", path, "--hardware", "cpu", "--batch", ROWS, "-q", *shapes)
            if known:
                inputs, weights = os.path.join(oracle, "inputs.npz"), self.weights(oracle)
                with np.load(os.path.join(oracle, "outputs.npz")) as arrays:
                    want = [arrays[f"out{i}"] for i in range(len(arrays.files))]
            else:
                inputs, weights, want = os.path.join(folder, "inputs.npz"), [], None
                np.savez(inputs, **draw_inputs(program, path))
            whole, _ = self.arrays(path, inputs, [*ONE, *weights])
            if want:
                same("Keras", whole, want)
            elif not all(np.isfinite(a).all() for a in whole if a.dtype.kind == "f"):
                raise Wrong("outputs on seeded weights are not finite")
            for split in ("data", "tensor"):
                got, devices = self.arrays(path, inputs, [*TWO, "--split", split, *weights])
                same(f"one device under {split}", got, whole)
                row.splits += [split] if devices == 2 else []
        row.verdict = "equal" if want else "runs"
        if not want and entry["oracle"].startswith("ok"):
            row.reason = "the oracle's values are not there"

    def weights(self, oracle):
        names = [n for n in ("weights_legacy.h5", "model.weights.h5") if os.path.exists(os.path.join(oracle, n))]
        with open(os.path.join(oracle, "done")) as file:
            return [] if "without weights" in file.read() else ["--weights", os.path.join(oracle, names[0])]

    def compiled(self, path, folder):
        """The options that close open extents, and the graph that the file is compiled from."""
        program, shapes = os.path.join(folder, "program"), []
        words = ["compile", path, "-o", program, "--hardware", "cpu", "--batch", ROWS, "-q"]
        try:
            self.intwain(*words)
        except Refused as refusal:
            open_inputs = list(dict.fromkeys(re.findall(r'"([^"]+)": an input whose dimension', str(refusal))))
            if not open_inputs:
                raise
            shapes = self.close(path, open_inputs, words)
        os.remove(os.path.join(program, "weights.safetensors"))
        with open(os.path.join(program, "whole.ir")) as file:
            return shapes, file.read()

    def close(self, path, names, words):
        """Compiles with extents for open inputs: one that the file leaves open everywhere, or that another input has."""
        declared = list(input_shapes(path))
        others = dict.fromkeys(extent for _, shape in declared for extent in shape if extent)
        for extent in (OPEN_EXTENT, *others):
            shapes = []
            for name in names:
                shape = next((s for n, s in declared if name in (n, f"{n}_input")), None)
                if shape is None:
                    raise Wrong(f"the file has no shape of the open input {name}")
                shapes += ["--shape", f"{name}={'x'.join(str(e or extent) for e in shape)}"]
            try:
                self.intwain(*words, *shapes)
                return shapes
            except Refused as refusal:
                last = refusal
        raise last


def same(whom, got, want):
    if len(got) != len(want):
        raise Wrong(f"{len(got)} outputs, {whom} has {len(want)}")
    for i, (a, b) in enumerate(zip(got, want)):
        why = unlike(a, b, *FORWARD)
        if why:
            raise Wrong(f"output {i} against {whom}: {why}")


def short(said, path):
    """The first problem of an error, without the file's name, and how many more there are."""
    lines = [line.strip() for line in said.replace(f"{path}:", "").splitlines()]
    problems = [line.removeprefix("error:").strip() for line in lines if not line.startswith("help:")]
    return problems[0] + (f" (and {len(problems) - 1} more)" if len(problems) > 1 else "") if problems else "no message"


def parsed(path):
    with open(path, encoding="utf-8-sig", errors="replace") as file:
        value = file.read()
    while isinstance(value, str):
        value = json.loads(value)
    return value


def objects(value):
    """Every object in a JSON value."""
    if isinstance(value, dict):
        yield value
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    for item in inner:
        yield from objects(item)


def input_shapes(path):
    """Names of layers that declare an input's shape, with that shape without the batch."""
    for config in objects(parsed(path)):
        shape = config.get("batch_input_shape") or config.get("batch_shape")
        if isinstance(shape, list):
            yield config.get("name"), shape[1:]


def draw_inputs(graph, path):
    """Seeded inputs of the graph in `whole.ir`; integers are below the vocabulary of the file's smallest embedding."""
    rng = np.random.default_rng(7)
    vocabulary = [c["input_dim"] for c in objects(parsed(path)) if isinstance(c.get("input_dim"), int) and "output_dim" in c]
    kinds = {"f16": "f4", "bf16": "f4", "f32": "f4", "f64": "f8", "bool": "?", "i1": "?", "u8": "u1", "i8": "i1"}
    arrays = {}
    for line in graph.splitlines()[1:]:
        found = re.match(r'\s*input %\d+ "(.*?)": (\w+)\[([\d, ]*)\]', line)
        if not found:
            break
        name, kind, shape = found.group(1), found.group(2), [int(n) for n in found.group(3).split(",") if n.strip()]
        kind = kinds.get(kind, kind.replace("i", "int"))
        if np.dtype(kind).kind == "f" and not vocabulary:
            arrays[name] = rng.standard_normal(shape).astype(kind)
        else:
            arrays[name] = rng.integers(0, min(vocabulary or [2]), shape).astype(kind)
    return arrays


def fill_cache(args, entries):
    """Makes the oracle's values that are not there yet."""
    for entry in entries:
        folder = os.path.join(args.oracle_cache, entry["file"][:-5])
        if not entry["oracle"].startswith("ok") or os.path.exists(os.path.join(folder, "done")):
            continue
        environment = dict(os.environ, ORACLE=entry["oracle"].split()[1], CUDA_VISIBLE_DEVICES="", TF_CPP_MIN_LOG_LEVEL="3")
        command = [sys.executable, args.oracle, os.path.join(args.corpus, entry["file"]), folder, "--no-h5", "--batch", str(ROWS)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        if result.returncode != 0:
            sys.exit(f"the oracle has no values for {entry['file']}: {result.stderr.strip().splitlines()[-1:]}")
        for left in ("model.keras",):
            if os.path.exists(os.path.join(folder, left)):
                os.remove(os.path.join(folder, left))
        with open(os.path.join(folder, "done"), "w") as file:
            file.write("without weights" if "params 0 " in result.stdout else "")


def print_table(rows):
    print(f"\n{'file':10} {'kind':15} {'classes':>7}  {'verdict':8} {'split under':13} reason")
    for row in rows:
        print(f"{row.file:10} {row.kind:15} {row.classes:>7}  {row.verdict:8} {','.join(row.splits):13} {row.reason}")


def totals(rows):
    lines = ["| kind | files | equal to Keras | runs | refused |", "| --- | --: | --: | --: | --: |"]
    kinds = list(dict.fromkeys(row.kind for row in rows))
    for kind in [*kinds, None]:
        counted = Counter(row.verdict for row in rows if kind in (None, row.kind))
        cells = [sum(counted.values()), counted["equal"], counted["runs"], counted["refused"]]
        lines.append(f"| {kind or 'all'} | " + " | ".join(map(str, cells)) + " |")
    return lines


def reasons(rows):
    """Reasons of refusal with how often each occurs; places and names of layers in the files do not matter."""
    said = Counter()
    for row in rows:
        if row.verdict == "refused":
            reason = re.sub(r" \(and \d+ more\)$", "", row.reason)
            reason = re.sub(r'^\$\S*\s*(?:"[^"]*")?:\s*', "", reason)
            said[reason.replace("|", "\\|")] += 1
    ordered = sorted(said.items(), key=lambda item: (-item[1], item[0]))
    return ["| refused, by the first reason | files |", "| --- | --: |", *(f"| {reason} | {count} |" for reason, count in ordered)]


def write_markdown(path, rows):
    with open(path) as file:
        text = file.read()
    begin, end = "<!-- corpus -->\n", "<!-- /corpus -->"
    if begin not in text or end not in text:
        sys.exit(f"{path} has no place for the table: lines {begin.strip()} and {end}")
    body = "\n".join([*totals(rows), "", *reasons(rows), ""])
    with open(path, "w") as file:
        file.write(text[: text.index(begin) + len(begin)] + body + text[text.index(end) :])


def check_twins(args):
    try:
        import keras1_twins
    except ModuleNotFoundError as missing:
        if missing.name != "keras1_twins":
            raise
        return ["keras1_twins.py is not there: Keras 1 files were not held against Keras 3"]
    return keras1_twins.check(args.corpus, os.path.abspath(args.binary))


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("corpus")
    parser.add_argument("--binary", default="target/release/intwain")
    parser.add_argument("--oracle", help="keras_oracle.py, to make the values that the cache has not")
    parser.add_argument("--oracle-cache", help="a folder with the oracle's values of each file")
    parser.add_argument("--only", default="", help="files whose names contain this text")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--timeout", type=float, default=300)
    parser.add_argument("--markdown", help="a file to put the totals into")
    parser.add_argument("--no-twins", action="store_true", help="leave the Keras 3 twins of Keras 1 files out")
    args = parser.parse_args()
    with open(os.path.join(args.corpus, "manifest.json")) as file:
        entries = [e for e in json.load(file) if args.only in e["file"]]
    if args.oracle:
        if not args.oracle_cache:
            sys.exit("--oracle needs --oracle-cache")
        fill_cache(args, entries)
    checker = Checker(args)
    with ThreadPoolExecutor(args.jobs) as pool:
        rows = list(pool.map(checker.row, entries))
    print_table(rows)
    wrong = [row for row in rows if row.verdict == "WRONG"]
    twins = [] if args.no_twins else check_twins(args)
    print()
    for row in wrong:
        print(f"WRONG {row.file} ({row.kind}): {row.reason}")
    for line in twins:
        print(f"WRONG twin: {line}")
    print("\n".join(totals(rows)))
    unknown = [row.file for row in rows if row.reason.startswith("the oracle's values")]
    if unknown:
        print(f"{len(unknown)} files were not compared with Keras, since the cache lacks their values: {', '.join(unknown)}")
    split = {s: sum(s in row.splits for row in rows) for s in ("data", "tensor")}
    print(f"split over two devices: {split['data']} under data, {split['tensor']} under tensor; {len(wrong) + len(twins)} wrong")
    if args.markdown:
        write_markdown(args.markdown, rows)
    sys.exit(1 if wrong or twins or unknown else 0)


if __name__ == "__main__":
    main()
