#!/usr/bin/env python3
"""Compares our kernels, assembled for sm_80, with those of Triton at equal tiles.

usage: sass_compare.py PTX_DIRECTORY [--ptxas PATH] [--nvdisasm PATH] [--strict]

PTX_DIRECTORY holds what `cargo run -p intwain-codegen --example ptx_samples -- PTX_DIRECTORY` writes. A file
NAME.ptx or NAME_tail.ptx is compared with the kernel NAME of tests/ptx/triton_sm80.json. With --strict the exit status
is 1 where registers and spills, the total, or one of the counted classes is greater.
"""

import argparse
import collections
import json
import pathlib
import re
import subprocess
import sys
import tempfile

BASELINES = pathlib.Path(__file__).parent.parent / "tests" / "ptx" / "triton_sm80.json"
CLASSES = ["HMMA", "LDSM", "LDS", "STS", "LDGSTS", "BAR"]
SHOWN = CLASSES + ["LDG", "STG", "MUFU"]


def assemble(ptxas, nvdisasm, ptx):
    """Registers, spilled bytes, SASS total and counts by opcode."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as cubin:
        log = subprocess.run([ptxas, "-v", "-arch=sm_80", str(ptx), "-o", cubin.name], capture_output=True, text=True)
        if log.returncode != 0:
            sys.exit(f"{ptx}: {log.stderr}")
        text = subprocess.run([nvdisasm, "-c", cubin.name], capture_output=True, text=True, check=True).stdout
    registers = int(re.search(r"Used (\d+) registers", log.stderr).group(1))
    spills = sum(int(n) for n in re.findall(r"(\d+) bytes spill", log.stderr))
    opcodes = collections.Counter()
    for line in text.splitlines():
        found = re.match(r"\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?([A-Z][A-Z0-9_]*)", line)
        if found:
            opcodes[found.group(1)] += 1
    return registers, spills, sum(opcodes.values()), opcodes


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--ptxas", default="ptxas")
    parser.add_argument("--nvdisasm", default="nvdisasm")
    parser.add_argument("--strict", action="store_true")
    parser.add_argument("--all", action="store_true", help="show all opcodes")
    args = parser.parse_args()
    theirs = {k["name"]: k for k in json.loads(BASELINES.read_text())["kernels"]}
    print("| kernel | | regs | spills | SASS | " + " | ".join(SHOWN) + " |")
    print("|---|---|---|---|---|" + "---|" * len(SHOWN))
    worse = []
    for path in sorted(args.directory.glob("*.ptx")):
        registers, spills, total, opcodes = assemble(args.ptxas, args.nvdisasm, path)
        counts = " | ".join(str(opcodes[c]) for c in SHOWN)
        print(f"| {path.stem} | ours | {registers} | {spills} | {total} | {counts} |")
        if args.all:
            print(dict(opcodes.most_common()))
        base = theirs.get(path.stem.removesuffix("_tail"))
        if base is None:
            continue
        c = base["classes"]
        counts = " | ".join(str(c[x]) for x in SHOWN)
        print(f"| | Triton | {base['registers']} | {base['spills']} | {base['sass']} | {counts} |")
        pairs = [("registers and spills", registers + spills, base["registers"] + base["spills"])]
        pairs += [("SASS", total, base["sass"])] + [(x, opcodes[x], c[x]) for x in CLASSES]
        worse += [f"{path.stem}: {what} {ours}, Triton's {other}" for what, ours, other in pairs if ours > other]
    for line in worse:
        print(line)
    return 1 if worse and args.strict else 0


if __name__ == "__main__":
    sys.exit(main())
