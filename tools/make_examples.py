#!/usr/bin/env python3
"""Writes the files of `examples/`: two architectures as Keras writes them, and rows to run them on."""
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras
import numpy as np

from zoo import builders

FOLDER = os.path.join(os.path.dirname(__file__), "..", "examples")


def images(n, side):
    """Coloured waves, a different direction in each row: distinct images that compress to little."""
    y, x = np.mgrid[0:side, 0:side] / side
    rows = []
    for row in range(n):
        angle = np.pi * row / n
        phase = np.cos(angle) * x + np.sin(angle) * y
        rows.append(np.stack([127.5 + 127.5 * np.sin(2 * np.pi * (row + 1) * phase + c) for c in range(3)], axis=-1))
    return np.round(np.array(rows)).astype("uint8")


def main():
    models = {"resnet50": keras.applications.ResNet50(weights=None), "two_tower": builders()["two_tower"]()}
    for name, model in models.items():
        with open(os.path.join(FOLDER, f"{name}.json"), "w") as file:
            file.write(model.to_json())
    rng = np.random.default_rng(7)
    np.savez_compressed(os.path.join(FOLDER, "images.npz"), images=images(5, 224))
    np.savez(
        os.path.join(FOLDER, "pairs.npz"),
        user=rng.standard_normal((5, 32)).astype("float32"),
        item=rng.standard_normal((5, 48)).astype("float32"),
    )


if __name__ == "__main__":
    main()
