#!/usr/bin/env python3
"""Kills `intwain train` at random moments, resumes it, and holds the end against a run that nobody killed.

    python tools/kill_check.py BINARY [--times 5] [--seed 0] --out DIR

Model, optimizer and history at the end must be equal byte for byte. Then a checkpoint of two devices is resumed on one and in a pipeline.
"""
import argparse
import filecmp
import os
import random
import subprocess
import sys
import tempfile
import time

import numpy as np

from train_check import Failure, intwain
from train_models import ensure, folder

EPOCHS, BATCH, STEPS = 4, 16, 20
ONE = ["--devices", "cpu:0"]
ROWS = ["--devices", "cpu:0,cpu:1", "--split", "data", "--parts", "10,6"]
PIPELINE = ["--devices", "cpu:0,cpu:1", "--split", "pipeline", "--micro-batches", "4"]


def words(place, out, *more, epochs=EPOCHS):
    start = ["train", f"{place}/adam.keras", "--data", f"{place}/data.npz", "--epochs", epochs, "--batch", BATCH, "-q"]
    end = ["--checkpoint", f"{out}/checkpoints", "--checkpoint-every", 3, "--history", f"{out}/h.npz", "-o", f"{out}/o.keras"]
    return [str(w) for w in [*start, *end, *more]]


def same(one, other):
    a, b = (np.load(f"{folder}/h.npz")["loss"] for folder in (one, other))
    if a.tobytes() != b.tobytes():
        raise Failure(f"{b.size} losses are not the {a.size} of the run that was left alone")
    for name in ("h.npz", "o.keras"):
        if not filecmp.cmp(f"{one}/{name}", f"{other}/{name}", shallow=False):
            raise Failure(f"losses are equal, {name} is not")


def killed(binary, place, out, flags, after):
    """Whether the run was still going on when it was killed, and how many checkpoints it left."""
    process = subprocess.Popen([binary, *words(place, out, *flags)], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        process.wait(after)
        if process.returncode:
            raise Failure(f"exit {process.returncode}: {process.stderr.read().decode()[:600]}")
        return False, 0
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    folder = f"{out}/checkpoints"
    return True, len([n for n in os.listdir(folder) if n.endswith(".safetensors")]) if os.path.isdir(folder) else 0


def kill_once(binary, place, scratch, k, seconds, rng):
    """Tries until a run is killed before its end, then resumes it."""
    for attempt in range(20):
        out = f"{scratch}/{k}-{attempt}"
        os.mkdir(out)
        after = rng.uniform(0.1, 1.0) * seconds
        going, left = killed(binary, place, out, ONE, after)
        if going:
            intwain(binary, *words(place, out, *ONE, "--resume"))
            same(f"{scratch}/alone", out)
            return f"killed after {after:.2f} s, {left} checkpoints there"
        seconds *= 0.8
    raise Failure("every run ended before it was killed")


def other_devices(binary, place, scratch, flags, name):
    """A run that two devices begin and others end."""
    out = f"{scratch}/{name}"
    os.mkdir(out)
    intwain(binary, *words(place, out, *ROWS, epochs=2))
    intwain(binary, *words(place, out, *flags, "--resume"))
    same(f"{scratch}/alone", out)
    return "the same"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("binary")
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--model", default="lenet_dropout")
    parser.add_argument("--out", default="target/train")
    args = parser.parse_args()
    ensure(args.out, [args.model], ["adam"], steps=STEPS, batch=BATCH)
    place, rng, failed = folder(args.out, args.model, "float32", STEPS, BATCH), random.Random(args.seed), 0
    with tempfile.TemporaryDirectory() as scratch:
        start = time.time()
        os.mkdir(f"{scratch}/alone")
        intwain(args.binary, *words(place, f"{scratch}/alone", *ONE))
        seconds = time.time() - start
        trials = [(f"kill {k + 1}", lambda k=k: kill_once(args.binary, place, scratch, k, seconds, rng)) for k in range(args.times)]
        for name, flags in (("one device", ONE), ("a pipeline", PIPELINE)):
            trials.append((f"two devices, then {name}", lambda f=flags, n=name: other_devices(args.binary, place, scratch, f, n.replace(" ", "-"))))
        for title, act in trials:
            try:
                print(f"ok   {title}: {act()}", flush=True)
            except Failure as failure:
                failed += 1
                print(f"FAIL {title}: {failure}", flush=True)
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
