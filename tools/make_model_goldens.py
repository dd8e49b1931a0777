#!/usr/bin/env python3
"""Writes `tests/goldens/models/`: small Keras models, each with the values Keras computes for it, for tests that have no Keras.

NAME.keras is the model; NAME.npz has `in{i}` and `out{i}` for five rows, cotangents `cot{i}`, and the gradients of the sum of out * cotangent
to floating inputs (`gin{i}`) and trainable weights (`gw{j}`), all in inference mode.
"""
import os

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras
import numpy as np
import tensorflow as tf
from keras import layers as L

from zoo import builders, draw_weights, gradients

FOLDER = os.path.join(os.path.dirname(__file__), "..", "tests", "goldens", "models")


def dense():
    return keras.Sequential([keras.Input((13,)), L.Dense(17, "relu"), L.Dense(8, "tanh"), L.Dense(5)])


def residual():
    """Convolutions, batch normalisation and pooling as ResNets have them, odd sizes."""
    image = keras.Input((11, 9, 3))
    x = L.MaxPooling2D(3, 2, padding="same")(L.ReLU()(L.BatchNormalization()(L.Conv2D(8, 3, padding="same", use_bias=False)(image))))
    y = L.BatchNormalization()(L.Conv2D(12, 3, strides=2, padding="same")(x))
    x = L.ReLU()(L.Add()([y, L.Conv2D(12, 1, strides=2)(x)]))
    return keras.Model(image, L.Dense(4)(L.GlobalAveragePooling2D()(x)))


def mobile():
    """Depthwise and separable convolutions, relu6, explicit padding, a squeeze-and-excite gate."""
    image = keras.Input((10, 10, 3))
    x = L.ReLU(6.0)(L.BatchNormalization()(L.Conv2D(6, 3, strides=2, padding="same", use_bias=False)(image)))
    x = L.DepthwiseConv2D(3, strides=2, padding="valid")(L.ZeroPadding2D(((0, 1), (1, 0)))(x))
    gate = L.Dense(6, "sigmoid")(L.Dense(3, "swish")(L.GlobalAveragePooling2D(keepdims=True)(x)))
    x = L.SeparableConv2D(7, 3, padding="same", activation="swish")(L.Multiply()([x, gate]))
    return keras.Model(image, L.Dense(3)(L.GlobalMaxPooling2D()(x)))


def upward():
    """A U: transposed convolutions and a concatenated skip, one output per pixel."""
    image = keras.Input((8, 8, 2))
    skip = L.Conv2D(4, 3, padding="same", activation="elu")(image)
    x = L.Conv2D(6, 3, padding="same", activation="gelu")(L.AveragePooling2D(2)(skip))
    x = L.Conv2DTranspose(4, 3, strides=2, padding="same")(x)
    x = L.Concatenate()([L.UpSampling2D(1)(x), skip])
    return keras.Model(image, L.Conv2DTranspose(2, 2)(x))


def decoder():
    """Token embedding and one causal attention block with three heads."""
    ids = keras.Input((7,), dtype="int32", name="ids")
    x = L.Embedding(23, 12)(ids)
    y = L.LayerNormalization()(x)
    x = L.Add()([x, L.MultiHeadAttention(3, 4)(y, y, use_causal_mask=True)])
    x = L.Add()([x, L.Dense(12)(L.Dense(24, activation="gelu")(L.LayerNormalization()(x)))])
    return keras.Model(ids, L.Dense(23)(x))


def nested():
    """A model inside a model, called twice, and a layer with several outputs' worth of consumers."""
    inner = keras.Sequential([keras.Input((6,)), L.Dense(9, "relu"), L.Dense(4)], name="inner")
    a, b = keras.Input((6,), name="left"), keras.Input((6,), name="right")
    u, v = inner(a), inner(b)
    return keras.Model([a, b], {"far": L.Subtract()([u, v]), "near": L.Dense(2)(L.Concatenate()([u, v, L.Maximum()([u, v])]))})


def masked():
    """A mask from an embedding that an LSTM takes, and choices by comparison: Keras writes both as bare operations."""
    ids = keras.Input((7,), dtype="int32", name="ids")
    x = L.Embedding(23, 5, mask_zero=True)(ids)
    y = L.LSTM(6)(x)
    high = keras.ops.logical_or(keras.ops.greater(y, 0.1), keras.ops.less_equal(y, -0.2))
    return keras.Model(ids, L.Dense(3)(keras.ops.where(high, y, y * 0.5)))


MODELS = {f.__name__: f for f in (dense, residual, mobile, upward, decoder, nested, masked)}


def main():
    os.makedirs(FOLDER, exist_ok=True)
    for name, build in {**MODELS, "two_tower": builders()["two_tower"]}.items():
        keras.backend.clear_session()
        rng = np.random.default_rng(sum(map(ord, name)))
        model = build()

        def draw(n):
            tensors = [(t, (n, *t.shape[1:])) for t in model.inputs]
            return {f"in{i}": rng.integers(0, 23, s).astype("int32") if "int" in t.dtype else rng.standard_normal(s).astype("float32")
                    for i, (t, s) in enumerate(tensors)}

        def call(values, training=False):
            tensors = [tf.constant(v) for v in values.values()]
            return tf.nest.flatten(model(tensors if len(tensors) > 1 else tensors[0], training=training))

        draw_weights(model, rng, lambda: call(draw(8), training=True))
        rows = draw(5)
        outs = {f"out{i}": np.asarray(v) for i, v in enumerate(call(rows))}
        model.save(os.path.join(FOLDER, f"{name}.keras"))
        cotangents = [rng.standard_normal(v.shape).astype("float32") for v in outs.values()]
        named = {f"cot{i}": c for i, c in enumerate(cotangents)}
        np.savez_compressed(os.path.join(FOLDER, f"{name}.npz"), **rows, **outs, **named, **gradients(model, rows, cotangents))
        print(name, model.count_params(), [v.shape for v in outs.values()])


if __name__ == "__main__":
    main()
