#!/usr/bin/env python3
"""Writes `tests/goldens/policies/`: a model of many layers side by side under each dtype policy, with the values Keras computes for it.

POLICY.keras is the model, POLICY.npz has `in{i}` and `out{i}` of three rows; outputs are stored in float32, which holds 16-bit numbers exactly.
"""
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras
import numpy as np
from keras import layers as L

FOLDER = os.path.join(os.path.dirname(__file__), "..", "tests", "goldens", "policies")


def build(policy):
    """Every output is what one layer makes of an input, but for the last two: layers of several types one after another."""
    keras.config.set_dtype_policy(policy)
    image, steps, ids = keras.Input((6, 5, 4)), keras.Input((5, 8)), keras.Input((5,), dtype="int32")
    outputs = [
        L.Dense(7, "relu")(steps),
        L.EinsumDense("abc,cde->abde", (None, 2, 3), bias_axes="de")(steps),
        L.Conv2D(5, 3, padding="same")(image),
        L.DepthwiseConv2D(3)(image),
        L.Conv2DTranspose(3, 2, strides=2)(image),
        L.BatchNormalization()(image),
        L.LayerNormalization()(steps),
        L.GroupNormalization(2)(image),
        L.RMSNormalization()(steps),
        L.AveragePooling2D(3, 1, "same")(image),
        L.GlobalAveragePooling2D()(image),
        L.MaxPooling2D()(image),
        L.Embedding(2060, 2)(ids),
        L.Softmax()(steps),
        L.Activation("gelu")(steps),
        L.MultiHeadAttention(2, 4)(steps, steps, use_causal_mask=True),
        L.Attention()([steps, steps]),
        L.LSTM(4)(steps),
    ]
    mixed = L.Add()([L.Dense(2, dtype="float32")(L.Dense(5)(steps)), L.Embedding(2060, 2)(ids)])
    outputs += [mixed, L.Dense(3, dtype="float32")(mixed[:, 1:])]
    keras.config.set_dtype_policy("float32")
    return keras.Model([image, steps, ids], outputs)


def main():
    os.makedirs(FOLDER, exist_ok=True)
    for policy in ("mixed_float16", "mixed_bfloat16", "float16"):
        keras.utils.set_random_seed(3)
        rng = np.random.default_rng(5)
        model = build(policy)
        for variable in model.weights:
            shift = 1.0 if variable.path.split("/")[-1] in ("gamma", "scale", "moving_variance") else 0.0
            variable.assign((shift + 0.3 * rng.uniform(-1, 1, variable.shape)).astype("float32"))
        image, steps = (rng.uniform(-2, 2, (3, *t.shape[1:])).astype("float32") for t in model.inputs[:2])
        ids = rng.integers(2040, 2060, (3, 5)).astype("int32")
        outputs = [np.asarray(keras.ops.cast(out, "float32")) for out in model([image, steps, ids])]
        model.save(f"{FOLDER}/{policy}.keras")
        arrays = {"in0": image, "in1": steps, "in2": ids, **{f"out{i}": v for i, v in enumerate(outputs)}}
        np.savez(f"{FOLDER}/{policy}.npz", **arrays)


if __name__ == "__main__":
    main()
