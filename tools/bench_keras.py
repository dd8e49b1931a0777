#!/usr/bin/env python3
"""Times `intwain run --repeat` against Keras on TensorFlow, taking turns in one session.

    python tools/bench_keras.py ZOO_DIR [NAME[:BATCH] ...] [--binary target/release/intwain] [--rounds 5] [--repeat 10] [--json FILE]

Keras runs the model as one compiled graph (`tf.function`) with oneDNN on, in its own process, which sleeps while the others run. A round
times every contestant once; what is printed is the median over all calls of all rounds, its spread (quartiles), and the ratio of medians
to Keras's. Models come from `zoo.py`. With `--patience S`, what ran while other programs took more than a tenth of the machine is timed
again, for at most S seconds a model.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

import numpy as np

CONTESTANTS = {
    "two devices": ["--devices", "cpu:0,cpu:1"],
    "one device": ["--devices", "cpu:0"],
    "one device, one thread": ["--devices", "cpu:0", "--threads", "1"],
}
DEFAULT = ["resnet50_224:8", "mobilenetv2:8", "vit:8", "gpt:8"]


def keras_worker(model_path, inputs_path):
    """Reads how many calls to time from stdin, a line a round, and answers with their seconds as JSON."""
    import keras
    import tensorflow as tf

    model = keras.saving.load_model(model_path, compile=False)
    with np.load(inputs_path) as arrays:
        tensors = [tf.constant(arrays[name]) for name in arrays.files]
    inputs = tensors if len(tensors) > 1 else tensors[0]
    call = tf.function(lambda x: model(x, training=False), jit_compile=False)
    for _ in range(3):
        tf.nest.flatten(call(inputs))[0].numpy()
    print("ready", flush=True)
    for line in sys.stdin:
        seconds = []
        for _ in range(int(line)):
            start = time.perf_counter()
            for out in tf.nest.flatten(call(inputs)):
                out.numpy()
            seconds.append(time.perf_counter() - start)
        print(json.dumps(seconds), flush=True)


def start_keras(model_path, inputs_path):
    env = {key: value for key, value in os.environ.items() if not key.startswith("OPENBLAS_") and key != "OMP_NUM_THREADS"}
    env |= {"TF_ENABLE_ONEDNN_OPTS": "1", "TF_CPP_MIN_LOG_LEVEL": "3", "KERAS_BACKEND": "tensorflow", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, __file__, "--worker", model_path, inputs_path]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=env)
    while (line := worker.stdout.readline()) != "ready\n":
        if not line:
            sys.exit(f"Keras could not run {model_path}")
    return worker


def keras_seconds(worker, calls):
    worker.stdin.write(f"{calls}\n")
    worker.stdin.flush()
    return json.loads(worker.stdout.readline())


def intwain_seconds(binary, model_path, inputs_path, batch, calls, words):
    command = [binary, "run", model_path, "--inputs", inputs_path, "--batch", str(batch), "--repeat", str(calls), "--json", *words]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        sys.exit(f"{' '.join(command)}\n{result.stderr}")
    return json.loads(result.stdout)["repeat"]["seconds"]


def busy_seconds():
    """Processor seconds that the whole machine has worked."""
    with open("/proc/stat") as file:
        user, nice, system = map(int, file.readline().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def own_seconds(pid):
    """Processor seconds of the Keras process and of the programs that have ended."""
    with open(f"/proc/{pid}/stat") as file:
        user, system = map(int, file.read().rsplit(")", 1)[1].split()[11:13])
    ended = os.times()
    return (user + system) / os.sysconf("SC_CLK_TCK") + ended.children_user + ended.children_system


def undisturbed(act, pid, until):
    """The result of the first run that had the machine to itself, or of the last one."""
    while True:
        start, busy, own = time.monotonic(), busy_seconds(), own_seconds(pid)
        result = act()
        wall = time.monotonic() - start
        others = (busy_seconds() - busy) - (own_seconds(pid) - own)
        if time.monotonic() > until or others < 0.1 * wall * os.cpu_count():
            return result, others / (wall * os.cpu_count())


def rows_of(model_folder, batch, path):
    """`batch` rows, made by repeating those the model's folder has."""
    source = next(p for p in (f"{model_folder}/b4/inputs.npz", f"{model_folder}/inputs.npz") if os.path.exists(p))
    with np.load(source) as arrays:
        np.savez(path, **{name: np.resize(arrays[name], (batch, *arrays[name].shape[1:])) for name in arrays.files})


def bench(args, name, batch):
    folder = os.path.join(args.zoo, name)
    model = f"{folder}/model.keras"
    with tempfile.TemporaryDirectory() as temporary:
        inputs = os.path.join(temporary, "inputs.npz")
        rows_of(folder, batch, inputs)
        worker = start_keras(model, inputs)
        times = {"Keras": []} | {title: [] for title in CONTESTANTS if not args.keras_only}
        until, disturbance = time.monotonic() + args.patience, 0.0
        for _ in range(args.rounds):
            for title in times:

                def act():
                    if title == "Keras":
                        return keras_seconds(worker, args.repeat)
                    return intwain_seconds(args.binary, model, inputs, batch, args.repeat, CONTESTANTS[title])

                seconds, others = undisturbed(act, worker.pid, until)
                times[title] += seconds
                disturbance = max(disturbance, others)
        if disturbance >= 0.1:
            print(f"disturbed: other programs took up to {100 * disturbance:.0f} % of the machine")
        worker.stdin.close()
        worker.wait()
    return {title: statistics.quantiles([1e3 * s for s in seconds], n=4) for title, seconds in times.items()}


def main():
    if sys.argv[1:2] == ["--worker"]:
        return keras_worker(*sys.argv[2:])
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("zoo")
    parser.add_argument("models", nargs="*", default=DEFAULT)
    parser.add_argument("--binary", default="target/release/intwain")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--patience", type=float, default=0)
    parser.add_argument("--keras-only", action="store_true")
    parser.add_argument("--json")
    args = parser.parse_intermixed_args()
    everything = {}
    for entry in args.models:
        name, _, batch = entry.partition(":")
        result = everything[entry] = bench(args, name, int(batch or 8))
        print(f"{name}, batch {batch or 8}")
        for title, (low, middle, high) in result.items():
            print(f"  {title:24}{middle:10.2f} ms  ({low:.2f} to {high:.2f})  {middle / result['Keras'][1]:6.2f} of Keras")
        sys.stdout.flush()
    if args.json:
        with open(args.json, "w") as file:
            json.dump(everything, file, indent=1)


if __name__ == "__main__":
    main()
