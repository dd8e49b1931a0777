#!/usr/bin/env python3
"""Times `intwain train --repeat` against `fit` of Keras on TensorFlow, taking turns in one session.

    python tools/bench_training.py [NAME:BATCH ...] [--binary target/release/intwain] [--rounds 3] [--seconds 3] --out DIR

Models are those of `train_models.py`, compiled with Adam, in float32. Keras runs with oneDNN on, on all cores, in its own process, which sleeps while the others run; a
step is what is quicker of an epoch of `fit` divided by its steps and a `train_on_batch` of tensors, at its quickest in all rounds. Of ours a step is the median of a run's, the quickest run of all rounds.
Printed are milliseconds a step, and as ratios how much quicker each is than Keras and than one device with one thread.
"""
import argparse
import json
import os
import subprocess
import sys
import time

import numpy as np

from train_models import ensure, folder

CONTESTANTS = {
    "two devices": ["--devices", "cpu:0,cpu:1"],
    "two devices, --no-exact": ["--devices", "cpu:0,cpu:1", "--no-exact"],
    "one device": ["--devices", "cpu:0"],
    "one device, one thread": ["--devices", "cpu:0", "--threads", "1"],
    "one device, one thread, --no-exact": ["--devices", "cpu:0", "--threads", "1", "--no-exact"],
}
DEFAULT = ["mlp:128", "resnet50:32"]
ALONE = "one device, one thread"


def keras_worker(place, batch):
    """Reads for how many seconds to train from stdin, a line a round, and answers with the seconds of a step."""
    import keras

    import tensorflow as tf

    model = keras.saving.load_model(f"{place}/adam.keras")
    with np.load(f"{place}/data.npz") as arrays:
        x, y = ([arrays[k] for k in sorted(arrays.files) if k[0] == kind] for kind in "xy")
    steps = 1
    tensors = [[tf.constant(v) for v in values] for values in (x, y)]
    tensors = [values if len(values) > 1 else values[0] for values in tensors]

    def single():
        start = time.perf_counter()
        model.train_on_batch(*tensors)
        return time.perf_counter() - start

    def epoch():
        rows = [[np.concatenate([v] * steps) for v in values] for values in (x, y)]
        packed = [values if len(values) > 1 else values[0] for values in rows]
        start = time.perf_counter()
        model.fit(*packed, batch_size=batch, epochs=1, verbose=0, shuffle=False)
        return (time.perf_counter() - start) / steps

    epoch()
    single()
    steps = max(1, int(0.7 / min(epoch(), epoch())))
    print("ready", flush=True)
    for line in sys.stdin:
        until, seconds = time.perf_counter() + float(line), []
        while not seconds or time.perf_counter() < until:
            seconds += [epoch(), min(single() for _ in range(max(3, steps)))]
        print(min(seconds), flush=True)


def start_keras(place, batch):
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_") and key != "OMP_NUM_THREADS"}
    env |= {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, __file__, "--worker", place, str(batch)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
    while (line := worker.stdout.readline()) != "ready\n":
        if not line:
            sys.exit(f"Keras could not train {place}")
    return worker


def ours(binary, place, batch, seconds, like, words):
    """Seconds of a step; `like` is about what one takes."""
    steps = max(3, int(seconds / like))
    command = [binary, "train", f"{place}/adam.keras", "--data", f"{place}/data.npz", "--epochs", "1", "--batch", str(batch)]
    result = subprocess.run([*command, "--repeat", str(steps), "--json", *words], capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(command + words)}\n{result.stderr}")
    return json.loads(result.stdout)["median_ms"] / 1e3


def bench(args, name, batch):
    ensure(args.out, [name], ["adam"], steps=1, batch=batch)
    place = folder(args.out, name, "float32", 1, batch)
    worker = start_keras(place, batch)
    best = {}
    for _ in range(args.rounds):
        worker.stdin.write(f"{args.seconds}\n")
        worker.stdin.flush()
        best["Keras"] = min(best.get("Keras", np.inf), float(worker.stdout.readline()))
        for title, words in CONTESTANTS.items():
            best[title] = min(best.get(title, np.inf), ours(args.binary, place, batch, args.seconds, best["Keras"], words))
    worker.stdin.close()
    worker.wait()
    print(f"\n{name}, batch {batch}".ljust(44) + "ms a step   of Keras   of one thread")
    for title, seconds in best.items():
        print(f"    {title.ljust(38)}{1e3 * seconds:10.2f}{best['Keras'] / seconds:11.2f}{best[ALONE] / seconds:16.2f}", flush=True)


def main():
    if sys.argv[1:2] == ["--worker"]:
        return keras_worker(sys.argv[2], int(sys.argv[3]))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=DEFAULT)
    parser.add_argument("--binary", default="target/release/intwain")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--out", default="target/train")
    args = parser.parse_args()
    for model in args.models:
        name, _, batch = model.partition(":")
        bench(args, name, int(batch or 32))


if __name__ == "__main__":
    main()
