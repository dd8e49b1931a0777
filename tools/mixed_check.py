#!/usr/bin/env python3
"""Holds models under 16-bit dtype policies against Keras: how far each is from Keras in float32, on the same weights.

    python tools/mixed_check.py OUT_DIR [NAME ...] [--binary target/release/intwain] [--policies mixed_float16,mixed_bfloat16]
                                [--devices cpu:0,cpu:1] [--one cpu:0] [--splits data,tensor,pipeline]

The models are those of `zoo.py`, made once: a folder OUT_DIR/NAME/POLICY holds `model.keras` under the policy, `inputs.npz`, and in
`outputs.npz` what Keras computes under the policy (`out{i}`) and in float32 (`ref{i}`). Intwain passes where each output's largest and root
mean square distance from `ref` are at most twice those of Keras: on one device and under every split of two; `data` and `pipeline` give one
device's bits on CPUs.

Prints a table of the quotients; exit 0 when nothing failed.
"""
import argparse
import json
import os
import subprocess
import sys
import tempfile

import numpy as np

NAMES = ("lenet", "resnet50", "gpt")
POLICIES = ("mixed_float16", "mixed_bfloat16", "float16", "bfloat16")
BATCH, BOUND = 4, 2.0


def make(name, out):
    """Writes the folders of one model."""
    from zoo import builders, draw_weights, without_final_activation

    import keras
    import tensorflow as tf

    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(sum(map(ord, name)))
    model = builders()[name]()
    without_final_activation(model)
    rows = {}
    for tensor in model.inputs:
        shape, key = (BATCH, *tensor.shape[1:]), tensor._keras_history.operation.name
        drawn = rng.integers(0, 512, shape) if "int" in tensor.dtype else rng.standard_normal(shape)
        rows[key] = drawn.astype(tensor.dtype)

    def call(of, training=False):
        outs = of(tf.constant(next(iter(rows.values()))), training=training)
        return [np.asarray(tf.cast(out, "float32")) for out in tf.nest.flatten(outs)]

    draw_weights(model, rng, lambda: call(model, training=True))
    reference = {f"ref{i}": v for i, v in enumerate(call(model))}
    for policy in POLICIES:
        folder = os.path.join(out, name, policy)
        os.makedirs(folder, exist_ok=True)
        keras.config.set_dtype_policy(policy)
        narrow = builders()[name]()
        without_final_activation(narrow)
        narrow.set_weights([np.asarray(w, "float32") for w in model.get_weights()])
        values = {f"out{i}": v for i, v in enumerate(call(narrow))}
        narrow.save(f"{folder}/model.keras")
        keras.config.set_dtype_policy("float32")
        keys = dict(zip((t._keras_history.operation.name for t in narrow.inputs), rows.values()))
        np.savez(f"{folder}/inputs.npz", **keys)
        np.savez(f"{folder}/outputs.npz", **values, **reference)
        with open(f"{folder}/facts.json", "w") as f:
            json.dump({"outputs": len(values)}, f)


def load(path):
    with np.load(path) as arrays:
        return {name: arrays[name] for name in arrays.files}


def distances(array, reference):
    error = np.abs(array.astype("f8") - reference)
    return float(error.max()), float(np.sqrt(np.mean(error**2)))


class Checker:
    def __init__(self, args):
        self.args, self.failures = args, []

    def run(self, folder, devices, split):
        """The outputs in order, or why there are none."""
        with tempfile.TemporaryDirectory() as scratch:
            out = os.path.join(scratch, "out.npz")
            command = [self.args.binary, "run", f"{folder}/model.keras", "--inputs", f"{folder}/inputs.npz", "--outputs", out]
            command += ["--batch", str(BATCH), "--devices", devices, "-q", *(["--split", split] if split else [])]
            result = subprocess.run(command, capture_output=True, text=True)
            if result.returncode != 0:
                return f"exit {result.returncode}: {result.stderr.strip()[:400]}"
            return list(load(out).values())

    def fail(self, title, why):
        self.failures.append(title)
        print(f"FAIL {title}: {why}", flush=True)

    def check(self, name, policy):
        """One line of the table: the largest quotient of each way to run."""
        folder = os.path.join(self.args.out, name, policy)
        values = load(f"{folder}/outputs.npz")
        whole, line = None, []
        for split in ("", *self.args.splits.split(",")):
            title = f"{name} {policy} {split or 'one'}"
            got = self.run(folder, self.args.devices if split else self.args.one, split)
            if isinstance(got, str) or len(got) != sum(k.startswith("out") for k in values):
                self.fail(title, got if isinstance(got, str) else f"{len(got)} outputs")
                line.append("-")
                continue
            worst = 0.0
            for i, array in enumerate(got):
                keras, ours = distances(values[f"out{i}"], values[f"ref{i}"]), distances(array, values[f"ref{i}"])
                worst = max([worst, *(o / max(k, 1e-30) for o, k in zip(ours, keras))])
            if not worst <= BOUND:
                self.fail(title, f"{worst:.2f} times as far from float32 as Keras")
            if split in ("data", "pipeline") and "ptx" not in self.args.devices and whole is not None:
                if any(a.tobytes() != b.tobytes() for a, b in zip(got, whole)):
                    self.fail(title, "other bits than on one device")
            whole = got if not split else whole
            line.append(f"{worst:.2f}")
        return line


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("out", nargs="?", default="target/mixed")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--binary", default="target/release/intwain")
    parser.add_argument("--policies", default="mixed_float16,mixed_bfloat16")
    parser.add_argument("--one", default="cpu:0")
    parser.add_argument("--devices", default="cpu:0,cpu:1")
    parser.add_argument("--splits", default="data,tensor,pipeline")
    parser.add_argument("--here", action="store_true", help="make the one model named in this very process")
    args = parser.parse_intermixed_args()
    if args.here:
        return make(args.names[0], args.out)
    names, policies = args.names or NAMES, args.policies.split(",")
    for name in names:
        if not all(os.path.exists(os.path.join(args.out, name, policy, "facts.json")) for policy in policies):
            subprocess.run([sys.executable, __file__, args.out, name, "--here"], check=True)
    checker = Checker(args)
    print("error in units of Keras's own".ljust(30), "one", *args.splits.split(","), sep="\t")
    for name in names:
        for policy in policies:
            print(f"{name} {policy}".ljust(30), *checker.check(name, policy), sep="\t", flush=True)
    sys.exit(f"{len(checker.failures)} failed" if checker.failures else 0)


if __name__ == "__main__":
    main()
