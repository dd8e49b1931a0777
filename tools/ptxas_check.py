#!/usr/bin/env python3
"""Assembles emitted PTX with several versions of ptxas and compares what became of it with a table.

    python tools/ptxas_check.py PATH... [--cache DIR] [--table FILE] [--bless] [--subset] [--clean] [--ends] [--update] [--jobs N]

A PATH is a `.ptx` file, a program directory or a directory of either. Every distinct kernel text is assembled once by every ptxas for
each of its targets. It fails on any error or warning, on spills and on local memory. Registers, shared memory and the instructions of
sm_80 (by the ptxas that `TABLE_BY` names) are compared with the table, exactly; `--bless` writes them there, and keeps what the table
says of programs that were not given. A program that only the table knows is a failure unless `--subset` is said. `--clean` leaves
the table alone and the sizes out. `--ends` leaves out all but the
first target of the older ptxas and the last of the newest.

The tools come from PyPI's wheels, unpacked under the cache directory, where they are looked for first; `--update` asks PyPI for newer
ones where the newest is wanted. The standard library is enough.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

AMPERE_TO_HOPPER = ["sm_80", "sm_86", "sm_89", "sm_90"]
ALL_TARGETS = AMPERE_TO_HOPPER + ["sm_100", "sm_120"]
# Package, version (None: the newest) and targets.
ASSEMBLERS = [
    ("nvidia-cuda-nvcc-cu12", "12.4.131", AMPERE_TO_HOPPER),
    ("nvidia-cuda-nvcc-cu12", "12.9.86", ALL_TARGETS),
    ("nvidia-cuda-nvcc", None, ALL_TARGETS),
]
DISASSEMBLER = ("nvidia-cuda-nvdisasm", None)
# The table must not change when PyPI gets a newer version.
TABLE_BY, TABLE_TARGET = "12.9.86", "sm_80"
# Kernels that one call of ptxas gets.
BATCH = 32
FLAGS = ["-v", "-Werror", "--warn-on-spills", "--warn-on-local-memory-usage"]

ENTRY = re.compile(r"^(?:\.visible )?\.entry (\w+)", re.M)
SHARED = re.compile(r"^//   b\d+: .* of (\d+)$", re.M)
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z][\w.]*)", re.M)
CLASSES = {
    "HMMA": "mma", "LDSM": "ldmatrix", "LDGSTS": "copy", "LDS": "shared load", "STS": "shared store", "LDG": "load", "STG": "store",
    "BAR": "barrier", "SHFL": "shuffle", "MUFU": "mufu", "FFMA": "f32", "FADD": "f32", "FMUL": "f32", "FMNMX": "f32", "FSETP": "f32",
    "FSEL": "f32", "FCHK": "f32", "DADD": "f64", "DMUL": "f64", "DFMA": "f64", "DSETP": "f64", "DMNMX": "f64", "BRA": "branch",
    "BSSY": "branch", "BSYNC": "branch", "CALL": "branch", "RET": "branch", "WARPSYNC": "branch", "LDL": "local", "STL": "local",
}


class Problem(Exception):
    """What makes the check fail before it can report on kernels."""


def find_tool(cache, package, version, tool):
    """The path of a tool that is unpacked in the cache, and its version."""
    found = []
    for directory in cache.glob(f"x_{package.replace('-', '_')}-*"):
        have = directory.name.rsplit("-", 1)[1]
        if version in (None, have):
            found += [(tuple(int(n) for n in have.split(".")), path) for path in directory.rglob(tool) if path.parent.name == "bin"]
    if not found:
        return None
    numbers, path = max(found)
    path.chmod(path.stat().st_mode | 0o111)
    return path, ".".join(map(str, numbers))


def get_tool(cache, package, version, tool, update):
    """The same, downloaded if it isn't there, or if a newer one may be."""
    have = find_tool(cache, package, version, tool)
    if have is None or update and version is None:
        cache.mkdir(parents=True, exist_ok=True)
        wanted = package if version is None else f"{package}=={version}"
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "-d", str(cache), wanted]
        if subprocess.run(command).returncode != 0:
            raise Problem(f"{wanted} can't be downloaded to {cache}")
        for wheel in cache.glob(f"{package.replace('-', '_')}-*.whl"):
            target = cache / f"x_{'-'.join(wheel.name.split('-')[:2])}"
            if not target.exists():
                with zipfile.ZipFile(wheel) as archive:
                    archive.extractall(target)
        have = find_tool(cache, package, version, tool)
    if have is None:
        raise Problem(f"{package} has no {tool}")
    return have


class Kernel:
    """One distinct kernel text; its name is replaced by one that its hash gives."""

    def __init__(self, header, comments, name, text):
        body = ENTRY.sub(lambda m: m[0].replace(m[1], "KERNEL"), text, count=1)
        self.header = header
        self.symbol = "k_" + hashlib.sha256((header + body).encode()).hexdigest()[:16]
        self.text = ENTRY.sub(lambda m: m[0].replace(m[1], self.symbol), text, count=1)
        self.shared = max((int(n) for n in SHARED.findall(comments)), default=0)
        self.called = name


def split(path):
    """The kernels of a module."""
    text = path.read_text()
    entries = list(ENTRY.finditer(text))
    if not entries:
        print(f"{path}: no kernel")
        return
    begin = []
    for entry in entries:
        # The comment lines right above an entry are its own.
        lines = text[: entry.start()].splitlines(keepends=True)
        at = entry.start()
        while lines and lines[-1].startswith("//"):
            at -= len(lines.pop())
        begin.append(at)
    header = text[: begin[0]]
    for entry, at, end in zip(entries, begin, begin[1:] + [len(text)]):
        yield Kernel(header, text[at : entry.start()], entry[1], text[entry.start() : end])


def modules(paths):
    """Each `.ptx` file with the name that the table has for it."""
    for path in map(pathlib.Path, paths):
        files = sorted(path.rglob("*.ptx")) if path.is_dir() else [path]
        if not files or not all(f.is_file() for f in files):
            raise Problem(f"{path}: no .ptx file")
        # A program is called as its directory is, wherever that stands.
        base = path.resolve()
        if path.is_file() or (path / "program.json").exists():
            base = base.parent
        for file in files:
            yield str(file.resolve().relative_to(base).with_suffix("")), file


def assemble(ptxas, target, kernels, keep=None):
    """What ptxas says of some kernels: what is wrong, and registers by symbol."""
    with tempfile.TemporaryDirectory() as directory:
        source, cubin = pathlib.Path(directory, "batch.ptx"), keep or pathlib.Path(directory, "batch.cubin")
        source.write_text(kernels[0].header + "\n".join(k.text for k in kernels))
        command = [str(ptxas), f"-arch={target}", *FLAGS, str(source), "-o", str(cubin)]
        done = subprocess.run(command, capture_output=True, text=True)
    said = done.stdout + done.stderr
    wrong, registers, current = [], {}, None
    for line in said.splitlines():
        if m := re.search(r"(?:Compiling entry function '|Function properties for )(\w+)", line):
            current = m[1]
        elif m := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line):
            if any(int(n) for n in m.groups()):
                wrong.append(f"{current}: {line.strip()}")
        elif m := re.search(r"Used (\d+) registers", line):
            registers[current] = int(m[1])
        elif not re.search(r"info\s+: (\d+ bytes gmem|Compile time)|^\s*$", line):
            wrong.append(line.strip())
    if done.returncode != 0 and not wrong:
        wrong.append(f"exit status {done.returncode}")
    if not wrong and set(registers) != {k.symbol for k in kernels}:
        wrong.append("ptxas did not report on every kernel:\n" + said)
    return wrong, registers


def check_batch(ptxas, version, target, kernels):
    """Failures of a batch, each with the kernel that it is about."""
    wrong, _ = assemble(ptxas, target, kernels)
    if not wrong:
        return []
    failures = []
    for k in kernels:
        wrong, _ = assemble(ptxas, target, [k])
        failures += [f"ptxas {version}, {target}, kernel {k.called}: {w}" for w in wrong]
    return failures or [f"ptxas {version}, {target}: a batch fails though each of its kernels is well: {wrong}"]


def instruction_class(opcode):
    base, *modifiers = opcode.split(".")
    name = CLASSES.get(base, "other")
    width = next((m for m in modifiers if m in ("64", "128")), "")
    return f"{name} {width}".strip() if name in ("load", "store", "shared load", "shared store", "copy") else name


def measure(ptxas, nvdisasm, kernels):
    """Failures of a batch where the table is made; registers, shared memory and instructions by symbol."""
    with tempfile.TemporaryDirectory() as directory:
        cubin = pathlib.Path(directory, "batch.cubin")
        wrong, registers = assemble(ptxas, TABLE_TARGET, kernels, cubin)
        if wrong:
            return check_batch(ptxas, TABLE_BY, TABLE_TARGET, kernels), {}
        done = subprocess.run([str(nvdisasm), "-c", str(cubin)], capture_output=True, text=True)
    if done.returncode != 0:
        raise Problem(f"nvdisasm: {done.stderr.strip()}")
    sections = re.split(r"^\s*\.section\s+\.text\.(\w+)", done.stdout, flags=re.M)
    out = {}
    for symbol, text in zip(sections[1::2], sections[2::2]):
        opcodes = [o for o in INSTRUCTION.findall(text) if o != "NOP"]
        # Behind the last exit there is only a branch to itself.
        counts = collections.Counter(instruction_class(o) for o in opcodes)
        shared = next(k.shared for k in kernels if k.symbol == symbol)
        out[symbol] = {"registers": registers[symbol], "shared": shared, "total": len(opcodes), "sass": dict(sorted(counts.items()))}
    return [], out


def compare(table, found, subset):
    """How the table differs from what was found, as lines."""
    lines = []
    programs = {key.split(":")[0] for key in found}
    for key in sorted(set(table) | set(found)):
        if key not in found:
            if key.split(":")[0] in programs:
                lines.append(f"{key}: in the table, but not emitted any more")
            elif not subset:
                lines.append(f"{key}: in the table, but its program was not given (--subset allows that)")
        elif key not in table:
            lines.append(f"{key}: not in the table")
        elif table[key] != found[key]:
            lines.append(f"{key}: the table says {json.dumps(table[key])}, found {json.dumps(found[key])}")
    return lines


def run(args):
    cache = pathlib.Path(args.cache)
    assemblers = [(*get_tool(cache, package, version, "ptxas", args.update), targets) for package, version, targets in ASSEMBLERS]
    nvdisasm, _ = get_tool(cache, *DISASSEMBLER, "nvdisasm", args.update)
    if args.ends:
        assemblers = [
            (path, version, targets[-1:] if version not in (ASSEMBLERS[0][1], TABLE_BY) else [TABLE_TARGET])
            for path, version, targets in assemblers
        ]
    distinct, names = {}, {}
    for program, file in modules(args.paths):
        for kernel in split(file):
            distinct.setdefault(kernel.symbol, kernel)
            names[f"{program}:{kernel.called}"] = kernel.symbol
    # Kernels of one header can stand in one module.
    by_header = collections.defaultdict(list)
    for kernel in distinct.values():
        by_header[kernel.header].append(kernel)
    batches = [ks[i : i + BATCH] for ks in by_header.values() for i in range(0, len(ks), BATCH)]
    reference = next(path for path, version, _ in assemblers if version == TABLE_BY)
    failures, measured = [], {}
    with concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        checks = [
            pool.submit(check_batch, path, version, target, batch)
            for path, version, targets in assemblers
            for target in targets
            if (version, target) != (TABLE_BY, TABLE_TARGET)
            for batch in batches
        ]
        tables = [pool.submit(measure, reference, nvdisasm, batch) for batch in batches]
        for check in checks:
            failures += check.result()
        for part in tables:
            wrong, of = part.result()
            failures += wrong
            measured.update(of)
    found = {key: measured[symbol] for key, symbol in names.items() if symbol in measured}
    runs = ", ".join(f"{version} ({len(targets)} targets)" for _, version, targets in assemblers)
    print(f"{len(names)} kernels, {len(distinct)} distinct, ptxas {runs}")
    if args.clean:
        return failures
    path = pathlib.Path(args.table)
    table = json.loads(path.read_text())["kernels"] if path.exists() else {}
    if args.bless:
        given = {key.split(":")[0] for key in found}
        kept = {key: value for key, value in table.items() if key.split(":")[0] not in given}
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted({**kept, **found}.items()))
        path.write_text(f'{{"ptxas": "{TABLE_BY}", "target": "{TABLE_TARGET}", "kernels": {{\n{rows}\n}}}}\n')
    else:
        failures += compare(table, found, args.subset)
    return failures


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("paths", nargs="+", metavar="PATH")
    parser.add_argument("--cache", default=os.path.expanduser("~/.cache/intwain/ptxas"))
    parser.add_argument("--table", default="tests/ptx/table.json")
    parser.add_argument("--bless", action="store_true")
    parser.add_argument("--subset", action="store_true")
    parser.add_argument("--clean", action="store_true")
    parser.add_argument("--ends", action="store_true")
    parser.add_argument("--update", action="store_true")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    try:
        failures = run(parser.parse_args())
    except Problem as problem:
        failures = [str(problem)]
    for failure in failures:
        print(f"FAILED {failure}", file=sys.stderr)
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
