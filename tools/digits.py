#!/usr/bin/env python3
"""Handwritten digits (scikit-learn's load_digits, 8 x 8) and two Keras models that learn to read them.

    python tools/digits.py OUT_DIR
    python tools/digits.py --judge HISTORY.npz [--at-least 0.97]

Writes digits_train.npz and digits_val.npz (`x0`: images between 0 and 1, `y0`: digits; every fifth row is kept to validate), and the compiled models
digits_mlp.keras and digits_conv.keras. docs/training.md has the commands that train them. `--judge` reads what `--history` wrote and fails
where the last epoch's validation accuracy is below the bound.
"""
import argparse
import os
import sys

import numpy as np

EPOCHS = {"mlp": 60, "conv": 20}  # of each model, over which its rate falls to zero
BATCH = 32


def write(out):
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import keras
    from keras import layers as L
    from sklearn.datasets import load_digits

    os.makedirs(out, exist_ok=True)
    digits = load_digits()
    images = (digits.images / 16).astype("float32")[..., None]
    labels = digits.target.astype("int32")
    kept = np.arange(len(labels)) % 5 == 4
    np.savez(f"{out}/digits_train.npz", x0=images[~kept], y0=labels[~kept])
    np.savez(f"{out}/digits_val.npz", x0=images[kept], y0=labels[kept])
    bodies = {
        "mlp": [L.Flatten(), L.GaussianNoise(0.2), L.Dense(512, "relu"), L.Dropout(0.5), L.Dense(512, "relu"), L.Dropout(0.5)],
        "conv": [L.Conv2D(32, 3, padding="same", activation="relu"), L.MaxPooling2D(), L.Conv2D(64, 3, padding="same", activation="relu"),
                 L.MaxPooling2D(), L.Flatten(), L.Dropout(0.25)],
    }
    for name, epochs in EPOCHS.items():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((8, 8, 1)), *bodies[name], L.Dense(10, "softmax")], name=f"digits_{name}")
        steps = epochs * -(-int((~kept).sum()) // BATCH)
        rate = keras.optimizers.schedules.CosineDecay(0.002 if name == "mlp" else 0.003, decay_steps=steps)
        model.compile(keras.optimizers.Adam(rate), "sparse_categorical_crossentropy", metrics=["accuracy"])
        model.save(f"{out}/digits_{name}.keras")


def judge(path, bound):
    with np.load(path) as history:
        accuracy = history["val_accuracy"]
    print(f"{path}: validation accuracy {accuracy[-1]:.4f} behind {len(accuracy)} epochs, {bound} is wanted")
    sys.exit(not accuracy[-1] >= bound)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", default="target/digits")
    parser.add_argument("--judge", metavar="HISTORY", help="look at a history in place of writing files")
    parser.add_argument("--at-least", type=float, default=0.97)
    args = parser.parse_args()
    if args.judge:
        judge(args.judge, args.at_least)
    else:
        write(args.out)


if __name__ == "__main__":
    main()
