#!/usr/bin/env python3
"""Writes `tests/goldens/shared/`: a model whose layers and inner model are parts of several models, with the values Keras computes for it.

Keras 3.15 saves such a model and does not read it back: the archive has the weights of a layer once, where it comes first.
"""
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras
import numpy as np
from keras import layers as L

FOLDER = os.path.join(os.path.dirname(__file__), "..", "tests", "goldens", "shared")


def two_models():
    shared, norm = L.Dense(4, name="shared"), L.BatchNormalization(name="norm")
    x = keras.Input((4,), name="i1")
    first = keras.Model(x, L.Dense(4, name="own1")(norm(shared(x))), name="m1")
    x = keras.Input((4,), name="i2")
    second = keras.Model(x, L.Dense(3, name="own2")(shared(norm(first(x)))), name="m2")
    chain = keras.Sequential([keras.Input((4,)), shared, L.Dense(4, name="own3")], name="s")
    x = keras.Input((4,), name="x")
    return keras.Model(x, [second(first(x)), chain(shared(x))], name="outer")


def main():
    os.makedirs(FOLDER, exist_ok=True)
    model, rng = two_models(), np.random.default_rng(5)
    for v in model.weights:
        drawn = rng.standard_normal(v.shape) * 0.5
        v.assign(1.0 + np.abs(drawn) if "variance" in v.path else drawn)
    x = rng.standard_normal((2, 4)).astype("float32")
    model.save(os.path.join(FOLDER, "two_models.keras"))
    outputs = {f"out{i}": np.asarray(y) for i, y in enumerate(model(x))}
    np.savez(os.path.join(FOLDER, "two_models.npz"), in0=x, **outputs)


if __name__ == "__main__":
    main()
