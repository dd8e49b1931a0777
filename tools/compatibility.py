#!/usr/bin/env python3
"""Writes docs/compatibility.md: every layer class of Keras 3 and tf-keras and every operation, whether it is read, and what tests it.

    python tools/compatibility.py --cases DIR [--cases DIR ...] --zoo DIR [--conformance DIR] [--check]

Which classes there are is asked of the installed packages, which of them are read of the library (`cargo run --example layers`). What tests
a class are the cases of `layer_cases.py` (their folders, by --cases), other conformance cases (--conformance; where that is not given, those
that the page names already stay) and the models of `zoo.py`. The totals of `corpus.py` on the page stay as they are.

--check writes nothing and fails when the page is not what would be written, when a class that is read has nothing that tests it, or when a
layer is neither read nor refused with a reason.
"""
import argparse
import inspect
import json
import os
import re
import subprocess
import sys

import keras1_cases
from zoo import MEASURED

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
PAGE = os.path.join(ROOT, "docs", "compatibility.md")
# Classes of the packages that no file can name as a layer.
NEVER_STORED = {
    "Layer": "the base class",
    "Wrapper": "the base class of wrappers",
    "InputSpec": "not a layer",
    "AbstractRNNCell": "the base class of cells",
    "SegmentReduction": "a base class",
    "Function": "the base class of models",
    "Operation": "the base class",
}
# What tests classes that Keras cannot make, or not here: a file and a function in it.
RUST_TESTS = {
    "CuDNNGRU": ("tests/weights.rs", "cudnn_layers_compute_what_layers_without_cudnn_do"),
    "CuDNNLSTM": ("tests/weights.rs", "cudnn_layers_compute_what_layers_without_cudnn_do"),
}
# Operations that no model can be made with, so that there are no values of Keras.
NO_VALUES = {
    "Arange": "Keras's own call of it in a model fails",
    "ConvTranspose": "Keras's own call of it in a model fails",
    "Ndim": "Keras's own call of it in a model fails",
}
CORPUS = ("<!-- corpus -->\n", "<!-- /corpus -->")

HEAD = """# What is read

Every layer class of Keras {keras} and tf-keras {tf_keras} and every operation of `keras.ops`, with what tests it: a case of `tools/cases` (`Class_what`), a
conformance case of Keras's own tests (`ClassTest_test_…`) or a model of `tools/zoo.py` (its bare name). What is refused is refused with this reason and
with what to do instead; so is every class that is not here, by its name, all of a file's at once. Written by `tools/compatibility.py`.

"""


def keras_classes():
    """Layers of Keras 3 and of tf-keras by class name with their other names, those of keras.applications, and operations by module."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import keras
    import tf_keras
    from keras.src.ops.operation import Operation

    def named(module):
        found = {}
        for name in dir(module):
            value = getattr(module, name)
            if inspect.isclass(value):
                found.setdefault(value.__name__, set()).add(name)
        return {name: sorted(names - {name}) for name, names in found.items()}

    def below(base):
        for sub in base.__subclasses__():
            yield sub
            yield from below(sub)

    layer = keras.layers.Layer
    operations, applications = {}, set()
    for sub in below(Operation):
        if sub.__module__.startswith("keras.src.applications"):
            applications.add(sub.__name__)
        elif sub.__module__.startswith("keras.src.ops") and not issubclass(sub, layer):
            operations[sub.__name__] = sub.__module__.rsplit(".", 1)[1]
    old = named(tf_keras.layers)
    for name in ("SyncBatchNormalization", "RandomFourierFeatures"):
        if hasattr(tf_keras.layers.experimental, name):
            old.setdefault(name, [])
    versions = {"keras": keras.__version__, "tf_keras": tf_keras.__version__}
    return named(keras.layers), old, applications, operations, versions


def known_classes():
    """What the library says of classes: (kind, class or alias) to its row."""
    command = ["cargo", "run", "--quiet", "--locked", "--example", "layers"]
    rows = json.loads(subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return rows, {(row["kind"], name): row for row in rows for name in (row["class"], *row["aliases"])}


class Evidence:
    """What tests a class: own cases, then other conformance cases, then models."""

    def __init__(self, args, page):
        self.cases, self.others, self.models, self.old = {}, {}, {}, {}
        for name, (document, _) in keras1_cases.CASES.items():
            for class_ in dict.fromkeys(stored_classes(document)):
                self.old.setdefault(class_, []).append(name)
        for folder in args.cases:
            with open(os.path.join(folder, "index.json")) as file:
                for line in json.load(file):
                    self.add_case(line)
        if args.conformance:
            with open(os.path.join(args.conformance, "index.json")) as file:
                for line in json.load(file):
                    self.others.setdefault(line["layer"], []).append(line["case"])
        else:
            for name, tests in re.findall(r"^\| `(\w+)`.*\| ([^|]*) \|$", page, re.M):
                self.others.setdefault(name, []).extend(re.findall(r"`(\w+Test_test_\w+)`", tests))
        for name in MEASURED:
            with open(os.path.join(args.zoo, name, "model.json")) as file:
                for class_ in stored_classes(json.load(file)):
                    self.models.setdefault(class_, []).append(name)

    def add_case(self, line):
        own = {line["layer"], f"ops.{line['layer']}"} & set(line["classes"])
        for class_ in line["classes"]:
            at = 0 if class_ in own else 1
            self.cases.setdefault(class_, ([], []))[at].append(line["case"])

    def of(self, names, prefix=""):
        """At most two names of tests, the most specific first."""
        own, within, others, models = [], [], [], []
        for name in names:
            a, b = self.cases.get(prefix + name, ([], []))
            own += a
            within += b
            others += [] if prefix else self.others.get(name, [])
            models += self.models.get(prefix + name, [])
        # Layers that only Keras 1 had are tested by documents of it, in `keras1_cases.py`.
        old = [] if prefix or own or others or within or models else [t for name in names for t in self.old.get(name, [])]
        tests = list(dict.fromkeys([*own, *others, *within, *models, *old]))
        if not tests and names[0] in RUST_TESTS:
            file, function = RUST_TESTS[names[0]]
            with open(os.path.join(ROOT, file)) as source:
                tests = [f"{file}: {function}"] if f"fn {function}(" in source.read() else []
        return ", ".join(f"`{test}`" for test in tests[:2])


def stored_classes(value):
    """Class names in a model's JSON; those of operations begin with `ops.`."""
    if isinstance(value, dict):
        if isinstance(value.get("class_name"), str):
            module = value.get("module") or ""
            yield ("ops." if module.startswith("keras.src.ops") else "") + value["class_name"]
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from stored_classes(item)


class Page:
    def __init__(self, known, evidence):
        self.known, self.evidence, self.lines, self.problems = known, evidence, [], []
        self.counts = {}

    def table(self, title, text, kind, classes):
        """A section with a row for each class; `classes` has their other names."""
        self.lines += [f"## {title}", "", *([text, ""] if text else [])]
        self.lines += ["| class | read | tested by |", "| --- | --- | --- |"]
        for name in sorted(classes):
            self.lines.append(self.row(kind, name, classes[name], title))
        self.lines.append("")

    def row(self, kind, name, aliases, title):
        also = "".join(f", `{a}`" for a in aliases)
        if name in NEVER_STORED:
            return f"| `{name}`{also} | not in files: {NEVER_STORED[name]} | |"
        if name == "InputLayer":
            self.count(title, "read")
            return f"| `{name}`{also} | yes | every model |"
        row = next((self.known[kind, n] for n in (name, *aliases) if (kind, n) in self.known), None)
        if row is None:
            if kind == "layer":
                self.problems.append(f"{name} is neither read nor refused with a reason")
            self.count(title, "refused")
            return f"| `{name}`{also} | refused: not built | |"
        if row["refused"]:
            self.count(title, "refused")
            return f"| `{name}`{also} | refused: {row['refused']['why']} | |"
        tests = self.evidence.of([name, *aliases], "ops." if kind == "operation" else "")
        if not tests and kind == "operation" and name in NO_VALUES:
            tests = f"nothing: {NO_VALUES[name]}"
        if not tests:
            self.problems.append(f"nothing tests {kind} {name}")
        self.count(title, "read")
        return f"| `{name}`{also} | yes | {tests} |"

    def count(self, title, what):
        self.counts.setdefault(title, {"read": 0, "refused": 0})[what] += 1


def render(args, old):
    new_layers, old_layers, applications, operations, versions = keras_classes()
    rows, known = known_classes()
    page = Page(known, Evidence(args, old))
    page.table("Layers of Keras 3", "", "layer", new_layers)
    only_old = {name: names for name, names in old_layers.items() if name not in new_layers}
    page.table("Layers that only tf-keras has", "", "layer", only_old)
    page.table("Layers of keras.applications", "", "layer", {name: [] for name in applications})
    listed = {*new_layers, *old_layers, *applications, *(a for names in (*new_layers.values(), *old_layers.values()) for a in names)}
    others = {r["class"]: [] for r in rows if r["kind"] == "layer" and not listed & {r["class"], *r["aliases"]}}
    text = "Layers of Keras 1, nodes that TensorFlow's functions leave in Keras 2 files, and classes that TensorFlow kept elsewhere."
    page.table("Other classes that files name", text, "layer", others)
    text = "As calls of `keras.ops` (and of Python's operators) in a functional model leave them."
    page.table("Operations", text, "operation", {name: [] for name in operations})
    corpus = old[old.index(CORPUS[0]) + len(CORPUS[0]) : old.index(CORPUS[1])] if CORPUS[0] in old else "Not run yet.\n"
    totals = ["| | read | refused |", "| --- | --: | --: |"]
    totals += [f"| {title} | {count['read']} | {count['refused']} |" for title, count in page.counts.items()]
    files = ["## Files that people wrote", "", "What `tools/corpus.py` makes of architectures found in public repositories.", ""]
    body = HEAD.format(**versions) + "\n".join([*totals, "", *files]) + "\n" + CORPUS[0] + corpus + CORPUS[1] + "\n\n" + "\n".join(page.lines)
    return body, page.problems


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("--cases", action="append", required=True)
    parser.add_argument("--zoo", default="target/zoo")
    parser.add_argument("--conformance")
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    old = ""
    if os.path.exists(PAGE):
        with open(PAGE) as file:
            old = file.read()
    text, problems = render(args, old)
    if args.check and text != old:
        problems.append("docs/compatibility.md is stale: run tools/compatibility.py without --check")
    if not args.check:
        with open(PAGE, "w") as file:
            file.write(text)
    print("\n".join(problems) or "every class that is read is tested, every other layer is refused with a reason")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
