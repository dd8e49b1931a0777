#!/usr/bin/env python3
"""Writes `tests/goldens/training.jsonl`: small models without randomness, called in training mode by Keras 3 and tf-keras.

    python tools/make_training_goldens.py [OUT]

One model a line: `name`, `keras` (2 or 3), `model` (its architecture), `in`, `weights` (`model.weights` before the call), `out` and `after`
(outputs, and `model.weights` after the call), `cot` (cotangents of the outputs), `gin` and `gw` (gradients of the sum of output * cotangent to inputs
and to `model.trainable_weights`, null where unconnected). Tensors are `{"type": "f32[2, 3]", "data": [...]}`. Gradients are left out where a call
changes what it differentiates by.
"""
import json
import os
import sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import keras
import numpy as np
import tensorflow as tf
import tf_keras

lines = []


def tensor(array):
    array = np.asarray(array)
    kind = {"f4": "f32", "f2": "f16", "i4": "i32"}[array.dtype.str[1:]]
    return {"type": f"{kind}[{', '.join(map(str, array.shape))}]", "data": [float(str(x)) for x in array.reshape(-1)]}


def case(name, make, shape, masked=False, gradients=True):
    for number, K in ((2, tf_keras), (3, keras)):
        if name.endswith("_keras_2") and number == 3 or name.endswith("_keras_3") and number == 2:
            continue
        K.backend.clear_session() if number == 2 else K.utils.clear_session()
        rng = np.random.default_rng(abs(hash_of(name)))
        model = make(K, K.layers)
        for w in model.weights:
            drawn = rng.uniform(0.4, 1.6, w.shape) if "variance" in w.name or "stddev" in w.name or "gamma" in w.name else rng.normal(0, 0.6, w.shape)
            w.assign(drawn.astype("f4"))
        x = (rng.normal(0, 2, shape) + rng.normal(0, 1, shape[-1:])).astype("f4")
        if masked:
            x[0, 3:] = 0
            x[1, :1] = 0
        before = [tensor(w) for w in model.weights]
        watched = tf.constant(x)
        with tf.GradientTape() as tape:
            tape.watch(watched)
            outputs = tf.nest.flatten(model(watched, training=True))
            cotangents = [rng.normal(0, 1, y.shape).astype("f4") for y in outputs]
            total = tf.add_n([tf.reduce_sum(tf.cast(y, "float32") * c) for y, c in zip(outputs, cotangents)])
        line = {"name": name, "keras": number, "model": json.loads(model.to_json()), "in": [tensor(x)], "weights": before}
        line |= {"out": [tensor(y) for y in outputs], "after": [tensor(w) for w in model.weights]}
        if gradients:
            trainable = [getattr(w, "value", w) if number == 3 else w for w in model.trainable_weights]
            found = tape.gradient(total, [watched, *trainable])
            found = [None if g is None else tensor(g) for g in found]
            line |= {"cot": [tensor(c) for c in cotangents], "gin": found[:1], "gw": found[1:]}
        lines.append(line)


def hash_of(text):
    value = 0
    for c in text:
        value = (value * 131 + ord(c)) % (1 << 31)
    return value


def one(layer, shape):
    """A model of one layer between two dense ones, so that gradients pass through."""
    return lambda K, L: K.Sequential([L.Input(shape), layer(L)])


def shared(K, L):
    x = L.Input((3,))
    norm = L.BatchNormalization(momentum=0.5)
    y = norm(x)
    return K.Model(x, L.Concatenate()([y, norm(L.ReLU()(y))]))


def frozen(K, L):
    return K.Sequential([L.Input((3,)), L.BatchNormalization(trainable=False), L.Dense(2)])


def nested(K, L):
    inner = K.Sequential([L.Input((4,)), L.BatchNormalization(momentum=0.8), L.Dense(3)])
    return K.Sequential([L.Input((4,)), L.Dense(4), inner, L.BatchNormalization()])


def told(value):
    """The argument `training` written into the call, which only tf-keras heeds."""

    def make(K, L):
        x = L.Input((3,))
        return K.Model(x, L.Dense(2)(L.BatchNormalization(momentum=0.9)(x, training=value)))

    return make


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", "tests", "goldens", "training.jsonl")
    norm = lambda **config: lambda L: L.BatchNormalization(**config)
    case("batch_rank_2", one(norm(momentum=0.9), (3,)), (4, 3))
    case("batch_one_row", one(norm(momentum=0.9), (2,)), (1, 2))
    case("batch_rank_3", one(norm(center=False), (5, 3)), (2, 5, 3))
    case("batch_rank_4", one(norm(momentum=0.7, epsilon=1e-2), (3, 4, 2)), (3, 3, 4, 2))
    case("batch_rank_4_first", one(norm(axis=1, scale=False, momentum=0.7), (2, 4, 3)), (3, 2, 4, 3))
    case("batch_rank_5", one(norm(momentum=0.7), (2, 2, 3, 2)), (2, 2, 2, 3, 2))
    case("batch_masked", lambda K, L: K.Sequential([L.Input((5, 3)), L.Masking(), L.BatchNormalization(momentum=0.6)]), (3, 5, 3), masked=True)
    limits = {"rmax": 1.4, "rmin": 0.8, "dmax": 0.3}
    case("batch_renorm", one(norm(renorm=True, momentum=0.6, renorm_momentum=0.7), (3,)), (6, 3))
    case("batch_renorm_limited", one(norm(renorm=True, renorm_clipping=limits, renorm_momentum=0.7, momentum=0.6), (5, 3)), (4, 5, 3))
    case("batch_shared", shared, (5, 3))
    case("batch_frozen", frozen, (5, 3))
    case("batch_nested", nested, (6, 4))
    case("batch_per_step", lambda K, L: K.Sequential([L.Input((4, 3)), L.TimeDistributed(L.BatchNormalization(momentum=0.5))]), (3, 4, 3))
    case("told_true", told(True), (5, 3))
    case("told_false", told(False), (5, 3))
    case("layer_norm", one(lambda L: L.LayerNormalization(), (3,)), (4, 3))
    spectral = lambda inner, **config: lambda L: L.SpectralNormalization(inner(L), **config)
    case("spectral_dense_keras_3", one(spectral(lambda L: L.Dense(2)), (3,)), (4, 3), gradients=False)
    case("spectral_conv_keras_3", one(spectral(lambda L: L.Conv1D(3, 2), power_iterations=3), (5, 2)), (2, 5, 2), gradients=False)
    # Both bounds are the same, so that nothing is left to chance.
    image = (5, 6, 2)
    moved = lambda name, layer, **kw: case(name, one(layer, image), (2, *image), gradients=False, **kw)
    for fill in ("reflect", "wrap", "constant", "nearest"):
        for way in ("bilinear", "nearest"):
            look = {"fill_mode": fill, "interpolation": way, "fill_value": 0.5}
            moved(f"rotation_{fill}_{way}", lambda L: L.RandomRotation((0.13, 0.13), **look))
            moved(f"translation_{fill}_{way}", lambda L: L.RandomTranslation((0.47, 0.47), (-0.35, -0.35), **look))
    moved("zoom_out", lambda L: L.RandomZoom((0.6, 0.6), fill_mode="wrap"))
    moved("zoom_in", lambda L: L.RandomZoom((-0.4, -0.4), (0.3, 0.3)))
    moved("zoom_far", lambda L: L.RandomZoom((0.9, 0.9), (0.8, 0.8), fill_mode="reflect"))
    moved("brightness", lambda L: L.RandomBrightness((0.3, 0.3), value_range=(-2, 3)))
    with open(out, "w") as file:
        for line in lines:
            file.write(json.dumps(line, separators=(",", ":")) + "\n")
    print(len(lines), "models,", os.path.getsize(out), "bytes")


if __name__ == "__main__":
    main()
