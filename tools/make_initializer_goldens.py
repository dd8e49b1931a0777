#!/usr/bin/env python3
"""Writes `tests/goldens/initializers.json`: mean, deviation and extremes of what Keras's random initializers draw, for shapes whose fans differ."""
import json
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras
import numpy as np

GOLDEN = os.path.join(os.path.dirname(__file__), "..", "tests", "goldens", "initializers.json")


def initializers():
    I = keras.initializers
    yield from [I.RandomNormal(), I.RandomNormal(0.5, 0.1), I.TruncatedNormal(), I.TruncatedNormal(0.2, 2.0), I.RandomUniform(), I.RandomUniform(-1, 3)]
    for mode in ("fan_in", "fan_out", "fan_avg"):
        for distribution in ("truncated_normal", "untruncated_normal", "uniform"):
            yield I.VarianceScaling(1.5, mode, distribution)
    yield from [I.GlorotUniform(), I.GlorotNormal(), I.HeUniform(), I.HeNormal(), I.LecunUniform(), I.LecunNormal()]


def main():
    entries = []
    for initializer in initializers():
        for shape in [(300, 100), (3, 3, 20, 200), (40000,)]:
            x = np.concatenate([np.asarray(initializer.clone()(shape), "float64").reshape(-1)])
            entries.append({
                "config": keras.initializers.serialize(initializer), "shape": shape,
                "mean": float(x.mean()), "deviation": float(x.std()), "least": float(x.min()), "most": float(x.max()),
            })
    with open(GOLDEN, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(e) for e in entries) + "\n]\n")


if __name__ == "__main__":
    keras.utils.set_random_seed(1)
    main()
