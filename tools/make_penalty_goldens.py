#!/usr/bin/env python3
"""Writes `tests/goldens/penalties/`: what Keras's regularisers, constraints and activity regularisers give, in float64.

`values.json`: regularisers and constraints of tensors. `models3.json`, `models2.json`: small models of Keras 3 and tf_keras whose layers have
them, with inputs, weights, the penalty of each trainable weight, the classes of constraints, and the sum of what outputs add for these inputs.
Some models of Keras 3 are trained too: labels, the losses of three steps, and the weights after them.
"""
import json
import os
import sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import numpy as np

FOLDER = os.path.join(os.path.dirname(__file__), "..", "tests", "goldens", "penalties")


def numbers(shape, seed, low=-1.0):
    """Multiples of 1/64, which f32 holds."""
    return np.round(np.random.default_rng(seed).uniform(low, 1.0, shape) * 64) / 64


def flat(x):
    return [float(v) for v in np.asarray(x, dtype="float64").reshape(-1)]


TRAINED = ["dense", "activity", "separable", "norm", "embedding", "gru", "attention", "time distributed model", "shared", "nested", "frozen", "lstm"]


def values():
    import keras
    import tensorflow as tf
    import tf_keras

    keras.config.set_floatx("float64")
    tf_keras.backend.set_floatx("float64")
    R, C = keras.regularizers, keras.constraints
    cases = []
    for reg in [R.L1(0.3), R.L2(0.2), R.L1L2(0.1, 0.5), R.L1L2(), R.OrthogonalRegularizer(0.4), R.OrthogonalRegularizer(0.4, "columns")]:
        # Keras cannot compute the orthogonal one in float64.
        w, dtype = numbers((3, 4), 1), "float32" if isinstance(reg, R.OrthogonalRegularizer) else "float64"
        value = flat(reg(keras.ops.convert_to_tensor(w, dtype)))
        cases.append({"of": "regularizer", "config": R.serialize(reg), "shape": w.shape, "w": flat(w), "value": value})
    for name in ["l1", "l2", "l1_l2", "L1L2", "orthogonal_regularizer"]:
        w, reg = numbers((2, 3), 2), tf_keras.regularizers.get(name)
        cases.append({"of": "regularizer", "config": name, "shape": w.shape, "w": flat(w), "value": flat(reg(tf.constant(w)))})
    for constraint, shape in [
        (C.MaxNorm(0.8), (3, 4)), (C.MaxNorm(1.0, axis=[0, 1, 2]), (2, 2, 3, 2)), (C.MaxNorm(0.5, axis=-1), (3, 4)), (C.MaxNorm(1.5, axis=None), (3, 4)),
        (C.NonNeg(), (5,)), (C.UnitNorm(), (3, 2)), (C.UnitNorm(axis=1), (3, 2)), (C.MinMaxNorm(0.7, 0.9, 1.0), (3, 4)), (C.MinMaxNorm(0.7, 0.9, 0.25, axis=1), (3, 4)),
    ]:
        w = numbers(shape, 3)
        value = constraint(keras.ops.convert_to_tensor(w))
        cases.append({"of": "constraint", "config": C.serialize(constraint), "shape": shape, "w": flat(w), "value": flat(value)})
    for shape in [(4, 4, 2, 1), (5, 5, 1, 2), (2, 2, 1, 1), (3, 3, 1, 1)]:
        w, constraint = numbers(shape, 4), tf_keras.constraints.RadialConstraint()
        config = tf_keras.constraints.serialize(constraint, use_legacy_format=True)
        cases.append({"of": "constraint", "config": config, "shape": shape, "w": flat(w), "value": flat(constraint(tf.constant(w)))})
    return cases


def models(K):
    """Inputs by shape and type, and what is made of them."""
    L, R, C = K.layers, K.regularizers, K.constraints
    l1, l2, both = R.L1(0.1), R.L2(0.05), R.L1L2(0.02, 0.03)

    def one(shape, make, dtype="float64"):
        x = K.Input(shape, dtype=dtype)
        return K.Model(x, make(x))

    yield "dense", one((4,), lambda x: L.Dense(3, kernel_regularizer=l1, bias_regularizer=l2, activity_regularizer=both, kernel_constraint=C.MaxNorm(2), bias_constraint=C.NonNeg())(x))
    yield "no bias", one((4,), lambda x: L.Dense(3, use_bias=False, bias_regularizer=l2, kernel_regularizer="l2")(x))
    yield "activity", one((4,), lambda x: L.ActivityRegularization(l1=0.1, l2=0.2)(L.Dense(2, activity_regularizer="l1")(x)))
    yield "steps", one((3, 4), lambda x: L.Dense(2, activity_regularizer=l2)(x))
    yield "convolution", one((5, 5, 2), lambda x: L.Conv2D(2, 3, kernel_regularizer=l2, kernel_constraint=C.UnitNorm([0, 1, 2]), bias_constraint="non_neg", activity_regularizer=l1)(x))
    yield "depthwise", one((5, 5, 2), lambda x: L.DepthwiseConv2D(3, depthwise_regularizer=l1, depthwise_constraint=C.MaxNorm(1), bias_regularizer=l2)(x))
    yield "separable", one((5, 5, 2), lambda x: L.SeparableConv2D(2, 3, depthwise_regularizer=l1, pointwise_regularizer=l2, bias_regularizer=both, pointwise_constraint=C.NonNeg())(x))
    yield "transposed", one((3, 3, 2), lambda x: L.Conv2DTranspose(2, 2, kernel_regularizer=l1, bias_regularizer=l2, activity_regularizer=l2)(x))
    yield "norm", one((4, 3), lambda x: L.LayerNormalization(beta_regularizer=l1, gamma_regularizer=l2, gamma_constraint=C.NonNeg())(L.BatchNormalization(beta_regularizer=l2, gamma_regularizer=l1, beta_constraint=C.MaxNorm(1))(x)))
    yield "embedding", one((4,), lambda x: L.Embedding(5, 2, embeddings_regularizer=l2, embeddings_constraint=C.UnitNorm(1), activity_regularizer=l1)(x), "int32")
    yield "prelu", one((4,), lambda x: L.PReLU(alpha_regularizer=l1, alpha_constraint=C.NonNeg())(x))
    yield "einsum", one((3, 4), lambda x: L.EinsumDense("abc,cd->abd", (None, 2), bias_axes="d", kernel_regularizer=l2, bias_regularizer=l1, activity_regularizer=l2)(x))
    gates = dict(kernel_regularizer=l1, recurrent_regularizer=l2, bias_regularizer=both, recurrent_constraint=C.MaxNorm(1), activity_regularizer=l2)
    yield "lstm", one((3, 2), lambda x: L.LSTM(2, return_state=True, **gates)(x))
    yield "gru", one((3, 2), lambda x: L.GRU(2, return_sequences=True, **gates)(x))
    yield "cells", one((3, 2), lambda x: L.RNN(L.StackedRNNCells([L.LSTMCell(2, kernel_regularizer=l1), L.LSTMCell(3, recurrent_regularizer=l2, bias_constraint=C.NonNeg())]))(x))
    yield "bidirectional", one((3, 2), lambda x: L.Bidirectional(L.SimpleRNN(2, **gates))(x))
    yield "conv lstm", one((2, 4, 4, 1), lambda x: L.ConvLSTM2D(1, 2, kernel_regularizer=l1, recurrent_regularizer=l2, bias_regularizer=l1, activity_regularizer=l1)(x))
    yield "attention", one((3, 4), lambda x: L.MultiHeadAttention(2, 3, kernel_regularizer=l2, bias_regularizer=l1, kernel_constraint=C.MaxNorm(1), activity_regularizer=l2)(x, x))
    yield "time distributed", one((3, 4), lambda x: L.TimeDistributed(L.Dense(2, kernel_regularizer=l1, activity_regularizer=l2), activity_regularizer=l1)(x))
    inner = one((4,), lambda x: L.Dense(3, activity_regularizer=l1, kernel_regularizer=l1)(x))
    if K.__name__ == "keras":  # tf_keras runs the model once more for its mask, and counts what it adds to the loss twice
        yield "time distributed model", one((3, 4), lambda x: L.TimeDistributed(inner)(x))
    shared = L.Dense(4, kernel_regularizer=l2, activity_regularizer=l1)
    yield "shared", one((4,), lambda x: shared(shared(x)))
    part = one((4,), lambda x: L.Dense(3, kernel_regularizer=l2, activity_regularizer=l2)(x))
    yield "nested", one((4,), lambda x: L.Dense(2, bias_regularizer=l1)(part(x)))
    if hasattr(L, "GroupQueryAttention"):
        yield "grouped", one((3, 4), lambda x: L.GroupQueryAttention(2, 4, 2, kernel_regularizer=l2, activity_regularizer=l2)(x, x))
    frozen = L.Dense(3, kernel_regularizer=l2, activity_regularizer=l1, trainable=False)
    yield "frozen", one((4,), lambda x: L.Dense(2, kernel_regularizer=l1)(frozen(x)))


def record(K, name, model):
    import tensorflow as tf

    # Files do not hold all that layers have.
    model = K.models.model_from_json(model.to_json())
    x = model.inputs[0]
    shape = (3, *x.shape[1:])
    ids = "int" in str(x.dtype)
    given = np.random.default_rng(7).integers(0, 5, shape) if ids else numbers(shape, 8)
    weights = []
    for i, w in enumerate(model.weights):
        value = numbers(w.shape, 100 + i, 0.1 if "variance" in w.name else -1.0)
        w.assign(value)
        weights.append(flat(value))
    trained = model.trainable_variables
    owners = {}
    for layer in model._flatten_layers():
        for key in ("kernel", "bias", "recurrent_kernel", "depthwise_kernel", "pointwise_kernel", "gamma", "beta", "alpha", "embeddings", "_kernel"):
            var = getattr(layer, key, None)
            stem = key.strip("_").removesuffix("_kernel")
            if var is None:
                continue
            for kind in ("regularizer", "constraint"):
                found = getattr(layer, f"{stem}_{kind}", None)
                if found is not None:
                    owners.setdefault(id(var), {})[kind] = found
    said = [owners.get(id(v), {}) for v in trained]
    if K.__name__ == "keras":
        said = [{"regularizer": v.regularizer, "constraint": v.constraint} for v in trained]
    weight = [None if s.get("regularizer") is None else float(s["regularizer"](v)) for s, v in zip(said, trained)]
    constraints = [None if s.get("constraint") is None else type(s["constraint"]).__name__ for s in said]

    @tf.function(input_signature=[tf.TensorSpec((None, *x.shape[1:]), x.dtype)])
    def losses(x):
        model(x, training=False)
        return tf.add_n([tf.cast(loss, "float64") for loss in model.losses] or [tf.zeros((), "float64")])

    total = float(losses(tf.constant(given, x.dtype)))
    counted = sum(v for v in weight if v is not None)
    if K.__name__ != "keras":
        # tf_keras counts frozen weights too.
        frozen = [owners.get(id(v), {}).get("regularizer") for v in model.non_trainable_variables]
        counted += sum(float(r(v)) for r, v in zip(frozen, model.non_trainable_variables) if r is not None)
    entry = {
        "name": name, "model": json.loads(model.to_json()), "shape": shape, "x": flat(given), "ids": ids, "weights": weights,
        "regularization": weight, "constraints": constraints, "activity": total - counted,
    }
    if K.__name__ == "keras" and name in TRAINED:
        entry["training"] = train(K, model, given)
    return entry


def train(K, model, x):
    outputs = model.outputs
    labels = [numbers((3, *y.shape[1:]), 50 + i) for i, y in enumerate(outputs)]
    model.compile(K.optimizers.SGD(0.125, momentum=0.5), "mse")
    y = labels[0] if len(outputs) == 1 else labels
    losses = [float(model.train_on_batch(x, y, return_dict=True)["loss"]) for _ in range(3)]
    return {
        "labels": [{"shape": y.shape, "y": flat(y)} for y in labels], "losses": losses, "weights": [flat(w) for w in model.weights],
    }


def write(name, entries):
    with open(f"{FOLDER}/{name}.json", "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(e) for e in entries) + "\n]\n")


def main():
    which = sys.argv[1:] or ["values", "3", "2"]
    os.makedirs(FOLDER, exist_ok=True)
    if "values" in which:
        write("values", values())
    if "3" in which:
        import keras

        keras.config.set_floatx("float64")
        write("models3", [record(keras, name, model) for name, model in models(keras)])
    if "2" in which:
        import tf_keras

        tf_keras.backend.set_floatx("float64")
        write("models2", [record(tf_keras, name, model) for name, model in models(tf_keras)])


if __name__ == "__main__":
    main()
