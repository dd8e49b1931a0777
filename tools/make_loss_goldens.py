"""Values and gradients of losses and results of metrics, from Keras on TensorFlow, for the tests of src/train.

    python tools/make_loss_goldens.py [losses] [metrics] [fits] [page]      writes tests/goldens/{losses,metrics,fits}.jsonl and the tables in docs/losses.md

A line is a case. Of a loss: its document, labels, what the activation is applied to, weights, mask, the scalar and its gradient; null
stands for what is not finite. Of a metric: its document, the batches, and the result after each. Of a fit: a model, what it is trained with and on, what Keras reports after
each of two epochs, and the weights then.
"""

import inspect
import itertools
import json
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ["KERAS_BACKEND"] = "tensorflow"

import keras
import numpy as np
import tensorflow as tf
from keras.src import backend
from keras.src.trainers.compile_utils import get_metric
from keras.src.utils.naming import to_snake_case

HERE = os.path.dirname(os.path.abspath(__file__))
GOLDENS = os.path.join(HERE, "..", "tests", "goldens")


def plain(a):
    a = np.asarray(a)
    if a.dtype == bool:
        data = a.astype(int).ravel().tolist()
    elif np.issubdtype(a.dtype, np.integer):
        data = a.ravel().tolist()
    else:
        # The shortest decimal of a narrow type reads back to the same number.
        data = [float(str(x)) if np.isfinite(x) else None for x in a.ravel()]
    return {"dtype": str(a.dtype), "shape": list(a.shape), "data": data}


def numbers(a, digits):
    """Floats as short as tells them apart."""
    return [None if not np.isfinite(x) else float(f"{x:.{digits}g}") for x in np.asarray(a, dtype=np.float64).ravel()]


class Source:
    """Reproducible data, rounded so that lines stay short."""

    def __init__(self, seed):
        self.r = np.random.default_rng(seed)

    def normal(self, *shape):
        return np.round(self.r.normal(size=shape) * 1.5, 2)

    def unit(self, *shape):
        return np.round(self.r.uniform(size=shape), 2)

    def bits(self, *shape):
        return self.r.integers(0, 2, size=shape).astype(float)

    def classes(self, n, *shape):
        return self.r.integers(0, n, size=shape).astype("int32")

    def one_hot(self, *shape):
        return np.eye(shape[-1])[self.classes(shape[-1], *shape[:-1])]

    def shares(self, *shape):
        p = self.r.uniform(0.1, 1, size=shape)
        return np.round(p / p.sum(-1, keepdims=True), 2)

    def weights(self, *shape):
        return np.round(self.r.uniform(0, 2, size=shape), 1)

    def mask(self, *shape):
        return self.r.uniform(size=shape) < 0.6


def document(loss):
    return keras.saving.serialize_keras_object(loss)


class Losses:
    def __init__(self):
        self.lines = []

    def case(self, name, loss, y_true, x, activation=None, weight=None, mask=None, floatx="float32", within=None):
        """`loss` is a name, or a class with options; `within` is a tolerance where rounding is not all that differs."""
        keras.config.set_floatx(floatx)
        said, made = loss, None
        if isinstance(loss, str):
            made = keras.losses.get(loss)
            if not isinstance(made, keras.losses.Loss):
                made = keras.src.losses.losses.LossFunctionWrapper(made, name=loss)
        else:
            cls, options = loss
            made = cls(**options)
            said = {"class_name": cls.__name__, "config": {**document(made)["config"], **options}}
        y_true, x = np.asarray(y_true), np.asarray(x, dtype=floatx)
        y_true = y_true.astype(floatx) if y_true.dtype.kind == "f" else y_true
        v = tf.Variable(x)
        with tf.GradientTape() as tape:
            y_pred = tf.convert_to_tensor(v)
            if activation == "softmax":
                y_pred = keras.activations.softmax(y_pred)
            if activation == "sigmoid":
                y_pred = keras.activations.sigmoid(y_pred)
            if mask is not None:
                backend.set_keras_mask(y_pred, tf.constant(mask))
            w = None if weight is None else np.asarray(weight, dtype=floatx)
            value = made(tf.constant(y_true), y_pred, w)
            total = tf.reduce_sum(value)
        grad = tape.gradient(total, v)
        digits = 9 if floatx == "float32" else 17
        line = {"name": name, "loss": said, "y_true": plain(y_true), "x": plain(x)}
        if activation:
            line["activation"] = activation
        if weight is not None:
            line["weight"] = plain(w)
        if mask is not None:
            line["mask"] = plain(mask)
        line["value"] = numbers(total, digits)[0]
        if within is not None:
            line["within"] = within
        line["grad"] = numbers(np.zeros_like(x) if grad is None else grad, digits)
        self.lines.append(line)
        keras.config.set_floatx("float32")

    def both(self, *args, **kwargs):
        self.case(*args, **kwargs)
        self.case(args[0] + "_f64", *args[1:], floatx="float64", **kwargs)


def kinds(l):
    """Weights, masks and ranks, which are the same for all losses."""
    s = Source(1)
    K = keras.losses
    t3, p3 = s.normal(4, 3, 2), s.normal(4, 3, 2)
    for reduction in ["sum_over_batch_size", "sum", "mean_with_sample_weight", "mean", None]:
        loss = (K.MeanSquaredError, {"reduction": reduction})
        l.both(f"reduction_{reduction}", loss, t3, p3)
        for shape in [(4, 1), (4, 3), (4, 3, 1)]:
            l.case(f"reduction_{reduction}_weight_{len(shape)}_{shape[-1]}", loss, t3, p3, weight=s.weights(*shape))
        l.both(f"reduction_{reduction}_mask", loss, t3, p3, mask=s.mask(4, 3))
        l.case(f"reduction_{reduction}_mask_weight", loss, t3, p3, mask=s.mask(4, 3), weight=s.weights(4, 3))
        l.case(f"reduction_{reduction}_mask_column", loss, t3, p3, mask=s.mask(4, 3), weight=s.weights(4, 1))
        l.case(f"reduction_{reduction}_masked_out", loss, t3, p3, mask=np.zeros((4, 3), bool))
        l.case(f"reduction_{reduction}_weight_0", loss, t3, p3, weight=np.zeros((4, 3)))
        l.case(f"reduction_{reduction}_rows", loss, t3[:, 0], p3[:, 0], weight=s.weights(4))
        l.case(f"reduction_{reduction}_rows_column", loss, t3[:, 0], p3[:, 0], weight=s.weights(4, 1))
    l.both("labels_of_lower_rank", "mse", s.normal(5), s.normal(5, 1))
    l.both("labels_of_lower_rank_3", "mse", s.normal(5, 2), s.normal(5, 2, 1))
    l.both("labels_of_higher_rank", "mae", s.normal(5, 1), s.normal(5))
    l.case("labels_broadcast", "mae", s.normal(5, 1), s.normal(5, 3))
    l.case("integer_labels", "mse", s.classes(9, 5, 2), s.normal(5, 2))
    l.case("vector", "mse", s.normal(5), s.normal(5))
    l.case("vector_weighted", "mse", s.normal(5), s.normal(5), weight=s.weights(5))


def regression(l):
    s = Source(2)
    K = keras.losses
    for name in ["mse", "mae", "mape", "msle", "log_cosh", "huber", "poisson", "cosine_similarity", "hinge", "squared_hinge"]:
        positive = name in ("msle", "poisson")
        draw = (lambda *a: s.unit(*a)) if positive else s.normal
        l.both(name, name, draw(5, 3), draw(5, 3))
        l.case(name + "_weighted", name, draw(5, 3), draw(5, 3), weight=s.weights(5))
        l.case(name + "_steps", name, draw(4, 3, 2), draw(4, 3, 2), mask=s.mask(4, 3))
    for delta in [0.5, 2.0]:
        l.both(f"huber_{delta}", (K.Huber, {"delta": delta}), s.normal(4, 3), s.normal(4, 3))
    l.case("huber_at_delta", "huber", [[0.0, 0.0, 0.0]], [[1.0, -1.0, 0.0]])
    l.case("mae_at_0", "mae", [[1.0, 2.0]], [[1.0, 3.0]])
    l.case("mape_of_0", "mape", [[0.0, 2.0, -1e-8]], [[1.0, 3.0, 0.0]])
    l.both("msle_below", "msle", [[0.0, 2.0, -3.0, 1.0]], [[-1.0, 3.0, 0.5, 1e-7]])
    l.case("log_cosh_far", "log_cosh", [[0.0, 0.0, 0.0]], [[100.0, -100.0, 0.0]])
    l.both("poisson_at_0", "poisson", [[0.0, 2.0]], [[0.0, 0.0]])
    l.both("cosine_axis", (K.CosineSimilarity, {"axis": 1}), s.normal(4, 3, 2), s.normal(4, 3, 2))
    l.both("cosine_of_0", "cosine_similarity", [[0.0, 0.0], [1.0, 2.0]], [[1.0, 2.0], [1e-9, 0.0]])
    l.case("cosine_at_0", "cosine_similarity", [[1.0, 2.0]], [[0.0, 0.0]])
    for name in ["hinge", "squared_hinge"]:
        l.both(name + "_bits", name, s.bits(5, 3), s.normal(5, 3))
        l.both(name + "_signs", name, 2 * s.bits(5, 3) - 1, s.normal(5, 3))
        l.case(name + "_at_margin", name, [[1.0, 1.0, 0.0]], [[1.0, 2.0, -1.0]])
        l.case(name + "_vector", name, s.bits(5), s.normal(5, 1))
    l.both("categorical_hinge", "categorical_hinge", s.one_hot(5, 4), s.normal(5, 4))
    l.both("categorical_hinge_tie", "categorical_hinge", [[1.0, 0.0, 0.0]], [[0.3, 0.7, 0.7]])
    l.case("categorical_hinge_steps", "categorical_hinge", s.one_hot(3, 2, 4), s.normal(3, 2, 4), mask=s.mask(3, 2))
    l.both("kld", "kl_divergence", s.shares(5, 4), s.shares(5, 4))
    l.both("kld_ends", "kld", [[0.0, 1.0, 0.5, 1.5]], [[0.5, 0.0, 1.0, 2.0]])


def overlap(l):
    s = Source(3)
    K = keras.losses
    for axis in [None, -1, [1, 2], [0, 1]]:
        t, p = s.bits(3, 4, 2), s.unit(3, 4, 2)
        l.both(f"dice_{axis}", (K.Dice, {"axis": axis}), t, p)
        l.both(f"tversky_{axis}", (K.Tversky, {"axis": axis, "alpha": 0.3, "beta": 0.8}), t, p)
    l.case("dice_of_0", "dice", np.zeros((2, 3)), np.zeros((2, 3)))
    l.case("dice_weighted", "dice", s.bits(4, 3), s.unit(4, 3), weight=s.weights(4))
    l.case("dice_axis_weighted", (K.Dice, {"axis": [1, 2]}), s.bits(4, 3, 2), s.unit(4, 3, 2), weight=s.weights(4))
    l.case("dice_mask", "dice", s.bits(3, 4, 2), s.unit(3, 4, 2), mask=s.mask(3, 4))
    l.case("tversky_sigmoid", "tversky", s.bits(4, 3), s.normal(4, 3), activation="sigmoid")
    unit = lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    labels, x = np.array([0, 1, 0, 2, 1, 0], "int32"), unit(s.normal(6, 3))
    l.both("circle", "circle", labels, x)
    l.both("circle_column", (K.Circle, {"gamma": 10.0, "margin": 0.2}), labels[:, None], x)
    l.both("circle_diagonal", (K.Circle, {"gamma": 4.0, "remove_diagonal": False}), labels, x)
    l.case("circle_weighted", (K.Circle, {"gamma": 4.0}), labels, x, weight=s.weights(6))
    l.case("circle_sum", (K.Circle, {"gamma": 4.0, "reduction": "sum"}), labels, x)
    l.case("circle_all_alike", (K.Circle, {"gamma": 4.0}), labels * 0, x)
    l.case("circle_none_alike", (K.Circle, {"gamma": 4.0}), np.arange(6, dtype="int32"), x)


def entropies(l):
    s = Source(4)
    K = keras.losses
    bce, cce, sparse = K.BinaryCrossentropy, K.CategoricalCrossentropy, K.SparseCategoricalCrossentropy
    for smoothing in [0.0, 0.1]:
        for logits in [False, True]:
            options = {"from_logits": logits, "label_smoothing": smoothing}
            tag = f"{smoothing}_{'logits' if logits else 'p'}"
            l.both(f"bce_{tag}", (bce, options), s.bits(5, 3), s.normal(5, 3) if logits else s.unit(5, 3))
            l.both(f"cce_{tag}", (cce, options), s.one_hot(5, 3), s.normal(5, 3) if logits else s.shares(5, 3))
            focal = {**options, "gamma": 1.5, "alpha": 0.3}
            l.both(f"bfce_{tag}", (K.BinaryFocalCrossentropy, {**focal, "apply_class_balancing": smoothing > 0}),
                   s.bits(5, 3), s.normal(5, 3) if logits else s.unit(5, 3))
            l.both(f"cfce_{tag}", (K.CategoricalFocalCrossentropy, focal), s.one_hot(5, 3),
                   s.normal(5, 3) if logits else s.shares(5, 3))
    for activation in ["softmax", "sigmoid"]:
        for name in ["binary_crossentropy", "categorical_crossentropy", "binary_focal_crossentropy", "categorical_focal_crossentropy"]:
            l.both(f"{name}_of_{activation}", name, s.one_hot(4, 3), s.normal(4, 3), activation=activation)
        l.both(f"sparse_of_{activation}", "sparse_categorical_crossentropy", s.classes(3, 4), s.normal(4, 3), activation=activation)
        l.case(f"sparse_of_{activation}_far", "sparse_categorical_crossentropy", [0, 1], [[-90.0, 50, 0], [-90, 50, 0]], activation=activation)
        l.case(f"cce_of_{activation}_far", "categorical_crossentropy", [[1.0, 0, 0], [0, 1, 0]], [[-90.0, 50, 0], [-90, 50, 0]], activation=activation)
        l.case(f"bce_of_{activation}_far", "bce", [[1.0, 0, 0], [0, 1, 0]], [[-90.0, 50, 0], [-90, 50, 0]], activation=activation)
        l.case(f"bfce_logits_of_{activation}", (K.BinaryFocalCrossentropy, {"from_logits": True}), s.bits(4, 3), s.normal(4, 3), activation=activation)
    l.both("bce_ends", "bce", [[0.0, 1, 0, 1], [1, 0, 0.3, 1]], [[0.0, 1, 1, 0], [1e-7, 1 - 1e-7, 0.5, 2]])
    l.both("cce_ends", "categorical_crossentropy", [[1.0, 0, 0], [0, 1, 0], [0, 0, 1]], [[0.0, 1, 0], [0, 1, 0], [0.2, 0.2, 0.0]])
    l.both("cce_unnormalised", "categorical_crossentropy", [[1.0, 0]], [[0.2, 0.2]])
    l.both("cce_of_shares", (cce, {"from_logits": True}), [[0.3, 0.3, 0.1], [0, 0, 0], [1, 1, 0]], s.normal(3, 3))
    l.both("cce_axis", (cce, {"axis": 1}), np.moveaxis(s.one_hot(2, 4, 3), -1, 1), np.moveaxis(s.shares(2, 4, 3), -1, 1))
    l.case("cce_axis_logits", (cce, {"axis": 1, "from_logits": True}), np.moveaxis(s.one_hot(2, 4, 3), -1, 1), s.normal(2, 3, 4))
    l.case("bce_axis", (bce, {"axis": 1}), s.bits(2, 3, 4), s.unit(2, 3, 4))
    l.case("bce_vector", "bce", s.bits(5), s.normal(5, 1), activation="sigmoid")
    l.case("bce_squeezed", "bce", s.bits(5, 2), s.normal(5, 2, 1) * 9, activation="sigmoid")
    l.case("bce_weighted", "bce", s.bits(5, 3), s.unit(5, 3), weight=s.weights(5))
    l.case("bce_far", (bce, {"from_logits": True}), [[0.0, 1, 0, 1, 0]], [[200.0, 200, -200, -200, 0]])
    l.both("sparse", "sparse_categorical_crossentropy", s.classes(3, 5), s.shares(5, 3))
    l.both("sparse_column", "sparse_categorical_crossentropy", s.classes(3, 5, 1), s.shares(5, 3))
    l.case("sparse_floats", "sparse_categorical_crossentropy", s.classes(3, 5).astype("float32"), s.shares(5, 3))
    l.both("sparse_ends", "sparse_categorical_crossentropy", [0, 1, 0], [[0.0, 1, 0], [0, 1, 0], [0.0, 0.5, 0.0]])
    l.both("sparse_logits", (sparse, {"from_logits": True}), s.classes(3, 5), s.normal(5, 3))
    l.both("sparse_steps", (sparse, {"from_logits": True}), s.classes(3, 4, 2), s.normal(4, 2, 3), mask=s.mask(4, 2))
    l.case("sparse_steps_column", (sparse, {"from_logits": True}), s.classes(3, 4, 2, 1), s.normal(4, 2, 3), weight=s.weights(4, 2))
    ignored = np.array([[0, 1], [2, 255], [255, 255], [1, 2]], "int32")
    for reduction in ["sum_over_batch_size", "sum", "mean_with_sample_weight"]:
        options = {"ignore_class": 255, "reduction": reduction}
        l.both(f"sparse_ignored_{reduction}", (sparse, options), ignored, s.shares(4, 2, 3))
        l.case(f"sparse_ignored_{reduction}_logits", (sparse, {**options, "from_logits": True}), ignored, s.normal(4, 2, 3))
        l.case(f"sparse_ignored_{reduction}_softmax", (sparse, options), ignored, s.normal(4, 2, 3) * 9, activation="softmax")
        l.case(f"sparse_ignored_{reduction}_mask", (sparse, options), ignored, s.shares(4, 2, 3), mask=s.mask(4, 2), weight=s.weights(4, 2))
    l.case("sparse_ignored_first", (sparse, {"ignore_class": 0}), s.classes(3, 5, 1), s.shares(5, 3))
    l.case("sparse_ignored_below", (sparse, {"ignore_class": -1}), [[-1], [1], [2]], s.shares(3, 3))
    l.both("bfce_ends", "binary_focal_crossentropy", [[0.0, 1, 0, 1]], [[0.0, 1, 1, 0]])
    l.case("bfce_far", (K.BinaryFocalCrossentropy, {"from_logits": True}), [[0.0, 1, 0, 1, 0]], [[40.0, 40, -40, -40, 0]])
    l.both("cfce_ends", "categorical_focal_crossentropy", [[1.0, 0, 0], [0, 1, 0]], [[0.0, 1, 0], [0, 1, 0]])
    l.both("generalized", (K.CategoricalGeneralizedCrossEntropy, {"q": 0.7}), s.classes(3, 5), s.shares(5, 3))


def ctc(l):
    s = Source(5)
    ways = [[1, 2, 2, 0], [3, 0, 0, 0], [0, 0, 0, 0], [1, 2, 1, 3]]
    l.case("ctc", "ctc", np.array(ways, "int32"), s.normal(4, 6, 4))
    l.case("ctc_weighted", (keras.losses.CTC, {"reduction": "sum"}), np.array(ways, "int32"), s.normal(4, 7, 4), weight=s.weights(4))
    l.case("ctc_of_softmax", "ctc", np.array(ways, "int32"), s.normal(4, 6, 4), activation="softmax")
    l.case("ctc_only_way", "ctc", np.array([[1, 2, 1]], "int32"), s.normal(1, 3, 3))
    # Of labels that the steps are too few for, TensorFlow's value and gradient are not of one function.
    l.case("ctc_too_short", "ctc", np.array([[1, 1, 2], [1, 2, 0]], "int32"), s.normal(2, 3, 3), within=1e-3)
    l.case("ctc_far", "ctc", np.array([[1, 2, 1]], "int32"), 60 * s.normal(1, 5, 3))


BASES = {"Loss", "Metric", "Mean", "MeanMetricWrapper", "Sum"}


def covered(module, base, lines, key):
    """The cases of each class of a module of Keras."""
    classes = [c for c in vars(module).values() if inspect.isclass(c) and issubclass(c, base)]
    cases = {c.__name__: [] for c in classes if c.__name__ not in BASES}
    for line in lines:
        said = line[key]
        for c in classes:
            of = said["class_name"] == c.__name__ if isinstance(said, dict) else is_called(module, said, c)
            if of and c.__name__ in cases:
                cases[c.__name__].append(line["name"])
    return dict(sorted(cases.items()))


def uncovered(*args):
    return [name for name, cases in covered(*args).items() if not cases]


def is_called(module, name, cls):
    made = module.get(name) if name not in ("accuracy", "acc") else None
    return isinstance(made, cls) or getattr(made, "__name__", None) == to_snake_case(cls.__name__)


def losses():
    l = Losses()
    for group in (kinds, regression, overlap, entropies, ctc):
        group(l)
    return l.lines


def shapes():
    """Which ranks and extents go together: loss, shapes of labels, predictions and weights, and the value, null where Keras refuses them."""
    every = [(3,), (3, 1), (3, 2), (3, 2, 1), (3, 4, 2), (3, 4)]

    def made(shape, of):
        return np.array([of(i) for i in range(int(np.prod(shape)))], "float32").reshape(shape)

    lines = []
    for loss in ["mse", "bce", "categorical_crossentropy", "sparse_categorical_crossentropy", "hinge", "cosine_similarity"]:
        wrapped = keras.src.losses.losses.LossFunctionWrapper(keras.losses.get(loss), name=loss)
        for t, p, w in itertools.product(every, every, [None, *every]):
            y_true, y_pred = made(t, lambda i: i * 5 % 2), made(p, lambda i: (i * 7 % 11 + 1) / 12)
            weight = None if w is None else made(w, lambda i: (i % 3 + 1) / 2)
            try:
                value = numbers(wrapped(y_true, y_pred, weight), 9)[0]
            except (ValueError, tf.errors.InvalidArgumentError):
                value = None
            lines.append([loss, list(t), list(p), w and list(w), value])
    return lines


class Metrics:
    ROWS = (5, 1, 3)

    def __init__(self):
        self.lines = []

    def case(self, name, metric, draw, activation=None, weight=None, mask=None, floatx="float32", rows=ROWS):
        """`metric` is a name, or a class with options; `draw(rows)` gives labels and predictions; `weight` and `mask` draw theirs."""
        keras.config.set_floatx(floatx)
        said, made, batches, results = metric, None, [], []
        if not isinstance(metric, str):
            cls, options = metric
            made = cls(**options)
            said = {"class_name": cls.__name__, "config": {**document(made)["config"], **options}}
        for n in rows:
            y_true, x = draw(n)
            y_true, x = np.asarray(y_true), np.asarray(x, dtype=floatx)
            y_true = y_true.astype(floatx) if y_true.dtype.kind == "f" else y_true
            batch = {"y_true": plain(y_true), "x": plain(x)}
            y_pred = tf.convert_to_tensor(x)
            if activation:
                y_pred = getattr(keras.activations, activation)(y_pred)
            if mask is not None:
                which = mask(n)
                batch["mask"] = plain(which)
                backend.set_keras_mask(y_pred, tf.constant(which))
            w = None
            if weight is not None:
                w = np.asarray(weight(n), dtype=floatx)
                batch["weight"] = plain(w)
            if made is None:
                made = get_metric(metric, y_true, y_pred)
            made.update_state(tf.constant(y_true), y_pred, sample_weight=w)
            results.append(numbers(made.result(), 9))
            batches.append(batch)
        line = {"name": name, "metric": said, "batches": batches, "results": results}
        if activation:
            line["activation"] = activation
        self.lines.append(line)
        keras.config.set_floatx("float32")


def means(l):
    s = Source(11)
    M = keras.metrics
    regression = lambda n: (s.normal(n, 3), s.normal(n, 3))
    positive = lambda n: (s.unit(n, 3), s.unit(n, 3))
    steps = lambda n: (s.normal(n, 4, 3), s.normal(n, 4, 3))
    for name in ["mse", "mae", "mape", "RootMeanSquaredError", "CosineSimilarity", "LogCoshError", "Hinge", "squared_hinge",
                 "PearsonCorrelation", "concordance_correlation"]:
        l.case(name, name, regression)
        l.case(name + "_weighted", name, regression, weight=lambda n: s.weights(n))
        l.case(name + "_steps", name, steps, mask=lambda n: s.mask(n, 4))
        l.case(name + "_steps_weighted", name, steps, weight=lambda n: s.weights(n, 4))
    l.case("mse_mask_weight", "mse", steps, mask=lambda n: s.mask(n, 4), weight=lambda n: s.weights(n, 4))
    l.case("mse_steps_column", "mse", steps, weight=lambda n: s.weights(n, 1))
    l.case("mse_steps_rows", "mse", steps, weight=lambda n: s.weights(n))
    l.case("mse_steps_cells", "mse", steps, weight=lambda n: s.weights(n, 4, 1))
    l.case("mse_f64", "mse", regression, floatx="float64")
    l.case("mse_no_weight", "mse", regression, weight=lambda n: np.zeros(n))
    l.case("mse_vector", "mse", lambda n: (s.normal(n), s.normal(n, 1)))
    l.case("msle", "msle", positive)
    l.case("poisson", "poisson", positive)
    l.case("cosine_axis", (M.CosineSimilarity, {"axis": -1}), steps)
    shares = lambda n: (s.shares(n, 4), s.shares(n, 4))
    l.case("kld", "KLDivergence", shares)
    l.case("categorical_hinge", "categorical_hinge", lambda n: (s.one_hot(n, 4), s.normal(n, 4)))
    l.case("bce", "bce", lambda n: (s.bits(n, 1), s.normal(n, 1)), activation="sigmoid")
    l.case("bce_logits", (M.BinaryCrossentropy, {"from_logits": True, "label_smoothing": 0.1}), lambda n: (s.bits(n, 2), s.normal(n, 2)))
    l.case("cce", "categorical_crossentropy", lambda n: (s.one_hot(n, 3), s.normal(n, 3)), activation="softmax")
    l.case("cce_p", (M.CategoricalCrossentropy, {"label_smoothing": 0.2}), lambda n: (s.one_hot(n, 3), s.shares(n, 3)))
    l.case("sparse", "sparse_categorical_crossentropy", lambda n: (s.classes(3, n), s.normal(n, 3)), activation="softmax")
    ignored = (M.SparseCategoricalCrossentropy, {"ignore_class": 2})
    sparse_steps = lambda n: (s.classes(3, n, 4), s.shares(n, 4, 3))
    l.case("sparse_ignored", ignored, sparse_steps)
    l.case("sparse_ignored_weighted", ignored, sparse_steps, weight=lambda n: s.weights(n, 4))
    l.case("sparse_ignored_mask", ignored, sparse_steps, mask=lambda n: s.mask(n, 4))


def accuracies(l):
    s = Source(12)
    M = keras.metrics
    for name in ["accuracy", "acc"]:
        l.case(name + "_binary", name, lambda n: (s.bits(n, 1), s.unit(n, 1)))
        l.case(name + "_binary_vector", name, lambda n: (s.bits(n), s.unit(n, 1)))
        l.case(name + "_categorical", name, lambda n: (s.one_hot(n, 3), s.shares(n, 3)))
        l.case(name + "_sparse", name, lambda n: (s.classes(3, n), s.shares(n, 3)))
        l.case(name + "_sparse_column", name, lambda n: (s.classes(3, n, 1), s.shares(n, 3)), weight=lambda n: s.weights(n))
        l.case(name + "_sparse_steps", name, lambda n: (s.classes(3, n, 4), s.shares(n, 4, 3)), mask=lambda n: s.mask(n, 4))
        l.case(name + "_sparse_step", name, lambda n: (s.classes(3, n, 1), s.shares(n, 1, 3)))
        l.case(name + "_bits", name, lambda n: (s.bits(n, 4), s.unit(n, 4)))
    l.case("at_half", "accuracy", lambda n: (np.ones((n, 1)), np.full((n, 1), 0.5)))
    l.case("ties", "accuracy", lambda n: (s.classes(3, n), np.full((n, 3), 0.3)))
    l.case("CategoricalAccuracy", (M.CategoricalAccuracy, {}), lambda n: (s.one_hot(n, 4, 3), s.shares(n, 4, 3)), mask=lambda n: s.mask(n, 4))
    l.case("SparseCategoricalAccuracy", "sparse_categorical_accuracy", lambda n: (s.classes(3, n, 1), s.shares(n, 3)))
    l.case("Accuracy", (M.Accuracy, {}), lambda n: (s.classes(3, n, 2), s.classes(3, n, 2)))
    l.case("BinaryAccuracy", (M.BinaryAccuracy, {"threshold": 0.3}), lambda n: (s.bits(n, 4), s.unit(n, 4)), weight=lambda n: s.weights(n))
    for k in [1, 2, 3]:
        l.case(f"top_{k}", (M.TopKCategoricalAccuracy, {"k": k}), lambda n: (s.one_hot(n, 5), np.round(s.unit(n, 5), 1)))
        l.case(f"sparse_top_{k}", (M.SparseTopKCategoricalAccuracy, {"k": k}), lambda n: (s.classes(5, n), np.round(s.unit(n, 5), 1)))
    l.case("sparse_top_column", (M.SparseTopKCategoricalAccuracy, {"k": 2}), lambda n: (s.classes(5, n, 1), s.unit(n, 5)), weight=lambda n: s.weights(n))
    l.case("sparse_top_steps", (M.SparseTopKCategoricalAccuracy, {"k": 2}), lambda n: (s.classes(5, n, 3), s.unit(n, 3, 5)), mask=lambda n: s.mask(n, 3))
    sorted_ids = lambda n: (s.classes(5, n), np.stack([s.r.permutation(5) for _ in range(n)]))
    l.case("sorted_ids", (M.SparseTopKCategoricalAccuracy, {"k": 2, "from_sorted_ids": True}), sorted_ids)


def confusion(l):
    s = Source(13)
    M = keras.metrics
    one = lambda n: (s.bits(n, 1), s.unit(n, 1))
    many = lambda n: (s.bits(n, 3), np.round(s.unit(n, 3), 1))
    skewed = lambda n: ((lambda t: (t, np.clip(np.round(0.4 * t + 0.6 * s.unit(n, 3), 2), 0, 1)))(s.bits(n, 3)))
    for cls in [M.TruePositives, M.FalsePositives, M.TrueNegatives, M.FalseNegatives]:
        l.case(cls.__name__, (cls, {}), one)
        l.case(cls.__name__ + "_thresholds", (cls, {"thresholds": [0.2, 0.5, 0.6]}), many, weight=lambda n: s.weights(n))
        l.case(cls.__name__ + "_even", (cls, {"thresholds": [0.0, 0.5, 1.0]}), many, weight=lambda n: s.weights(n, 3))
    for cls in [M.Precision, M.Recall]:
        n_ = cls.__name__
        l.case(n_, n_.lower(), one)
        l.case(n_ + "_vector", (cls, {}), lambda n: (s.bits(n), s.unit(n, 1)), weight=lambda n: s.weights(n))
        l.case(n_ + "_thresholds", (cls, {"thresholds": [0.1, 0.7]}), many)
        l.case(n_ + "_even", (cls, {"thresholds": [0.0, 0.25, 0.5, 0.75, 1.0]}), many)
        l.case(n_ + "_top_k", (cls, {"top_k": 2}), many)
        l.case(n_ + "_class", (cls, {"class_id": 1}), many, weight=lambda n: s.weights(n))
        l.case(n_ + "_top_k_class", (cls, {"top_k": 1, "class_id": 2, "thresholds": 0.4}), many)
        l.case(n_ + "_steps", (cls, {}), lambda n: (s.bits(n, 4, 1), s.unit(n, 4, 1)), weight=lambda n: s.weights(n, 4))
        l.case(n_ + "_mask", (cls, {}), lambda n: (s.bits(n, 4, 1), s.unit(n, 4, 1)), mask=lambda n: s.mask(n, 4))
        l.case(n_ + "_none", (cls, {"thresholds": 1.0}), one)
    beyond = lambda n: (s.bits(n, 3), s.normal(n, 3))
    l.case("Precision_beyond", (M.Precision, {"thresholds": [0.0, 0.5, 1.0]}), beyond)
    l.case("Recall_beyond", (M.Recall, {"thresholds": [0.5, 1.0]}), beyond)
    l.case("auc_beyond", "auc", beyond)
    at = [(M.SensitivityAtSpecificity, "specificity"), (M.SpecificityAtSensitivity, "sensitivity"),
          (M.PrecisionAtRecall, "recall"), (M.RecallAtPrecision, "precision")]
    for cls, key in at:
        l.case(cls.__name__, (cls, {key: 0.6}), skewed)
        l.case(cls.__name__ + "_few", (cls, {key: 0.4, "num_thresholds": 5}), many, weight=lambda n: s.weights(n))
        l.case(cls.__name__ + "_one", (cls, {key: 0.4, "num_thresholds": 1}), many)
        l.case(cls.__name__ + "_class", (cls, {key: 0.5, "num_thresholds": 11, "class_id": 2}), skewed)
    l.case("auc", "auc", skewed)
    l.case("AUC", "AUC", one, weight=lambda n: s.weights(n))
    for curve in ["ROC", "PR", "PRGAIN"]:
        for method in ["interpolation", "majoring", "minoring"]:
            options = {"curve": curve, "summation_method": method}
            l.case(f"auc_{curve}_{method}", (M.AUC, options), skewed)
            l.case(f"auc_{curve}_{method}_listed", (M.AUC, {**options, "thresholds": [0.3, 0.1, 0.8]}), skewed, weight=lambda n: s.weights(n))
            l.case(f"auc_{curve}_{method}_labels", (M.AUC, {**options, "num_thresholds": 20, "multi_label": True}), skewed)
    l.case("auc_label_weights", (M.AUC, {"multi_label": True, "num_labels": 3, "label_weights": [0.5, 1.0, 2.0], "num_thresholds": 9}), skewed, weight=lambda n: s.weights(n))
    l.case("auc_cell_weights", (M.AUC, {"label_weights": [0.5, 1.0, 2.0], "thresholds": [0.5]}), skewed, weight=lambda n: s.weights(n))
    l.case("auc_even_listed", (M.AUC, {"thresholds": [0.25, 0.5, 0.75]}), many)
    l.case("auc_logits", (M.AUC, {"from_logits": True, "num_thresholds": 17}), lambda n: (s.bits(n, 2), s.normal(n, 2)))
    l.case("auc_of_sigmoid", "auc", lambda n: (s.bits(n, 1), s.normal(n, 1)), activation="sigmoid")


def others(l):
    s = Source(14)
    M = keras.metrics
    many = lambda n: (s.bits(n, 3), np.round(s.unit(n, 3), 1))
    single = lambda n: (s.one_hot(n, 3), s.shares(n, 3))
    for average in [None, "micro", "macro", "weighted"]:
        l.case(f"f1_{average}", (M.F1Score, {"average": average}), single)
        l.case(f"f1_{average}_threshold", (M.F1Score, {"average": average, "threshold": 0.4}), many, weight=lambda n: s.weights(n))
        l.case(f"fbeta_{average}", (M.FBetaScore, {"average": average, "beta": 2.0, "threshold": 0.5}), many)
    l.case("f1_zeros", (M.F1Score, {"average": "macro"}), lambda n: (s.one_hot(n, 3), np.zeros((n, 3))))
    for aggregation in [None, "uniform_average", "variance_weighted_average"]:
        for regressors in [0, 2]:
            options = {"class_aggregation": aggregation, "num_regressors": regressors}
            l.case(f"r2_{aggregation}_{regressors}", (M.R2Score, options), lambda n: (s.normal(n, 2), s.normal(n, 2)), rows=(5, 3))
            l.case(f"r2_{aggregation}_{regressors}_weighted", (M.R2Score, options), lambda n: (s.normal(n, 2), s.normal(n, 2)), weight=lambda n: s.weights(n), rows=(5, 3))
    l.case("r2_vector", "r2_score", lambda n: (s.normal(n), s.normal(n, 1)), rows=(5, 3))
    cells = lambda n: (s.classes(4, n, 3, 2), s.classes(4, n, 3, 2))
    rows = lambda n: (s.classes(3, n), s.classes(3, n))
    l.case("iou", (M.IoU, {"num_classes": 4, "target_class_ids": [1, 3]}), cells)
    l.case("iou_ignored", (M.IoU, {"num_classes": 4, "target_class_ids": [0, 1], "ignore_class": 1}), cells)
    l.case("mean_iou", (M.MeanIoU, {"num_classes": 3}), rows)
    l.case("mean_iou_beyond", (M.MeanIoU, {"num_classes": 3}), cells)
    l.case("mean_iou_whole_weights", (M.MeanIoU, {"num_classes": 4}), cells, weight=lambda n: s.weights(n, 3, 2))
    l.case("mean_iou_weights", (M.MeanIoU, {"num_classes": 4, "dtype": "float32"}), cells, weight=lambda n: s.weights(n, 3, 2))
    l.case("mean_iou_scores", (M.MeanIoU, {"num_classes": 3, "sparse_y_pred": False}), lambda n: (s.classes(3, n, 2), s.unit(n, 2, 3)))
    l.case("one_hot_iou", (M.OneHotIoU, {"num_classes": 3, "target_class_ids": [0, 2]}), lambda n: (s.one_hot(n, 2, 3), s.unit(n, 2, 3)))
    l.case("one_hot_mean_iou", (M.OneHotMeanIoU, {"num_classes": 3}), single)
    l.case("one_hot_mean_iou_numbers", (M.OneHotMeanIoU, {"num_classes": 3, "sparse_y_pred": True}), lambda n: (s.one_hot(n, 3), s.classes(3, n)))
    l.case("binary_iou", (M.BinaryIoU, {}), many)
    l.case("binary_iou_one", (M.BinaryIoU, {"target_class_ids": [1], "threshold": 0.3}), many)


def metrics():
    l = Metrics()
    for group in (means, accuracies, confusion, others):
        group(l)
    return l.lines


class Fits:
    """Small models that are trained: what Keras reports, and the weights after."""

    def __init__(self):
        self.lines = []

    def case(self, name, loss, y, head, metrics=(), weighted=(), x=None, weight=None, rate=0.05, before=()):
        """`head` is the last layer; `before` come first."""
        s = Source(len(self.lines))
        x = s.normal(10, 3).astype("float32") if x is None else x.astype("float32")
        y = np.asarray(y)
        y = y.astype("float32") if y.dtype.kind == "f" else y
        keras.utils.set_random_seed(7)
        hidden = keras.layers.Dense(5, activation="tanh", name="hidden")
        model = keras.Sequential([keras.layers.Input(x.shape[1:], name="x"), *before, hidden, head])
        paths = [("/".join(w.path.split("/")[-2:]), w) for w in model.weights]
        for _, w in paths:
            w.assign(s.normal(*w.shape) / 3)
        weights = [[path, plain(w.numpy())] for path, w in paths]
        model.compile(keras.optimizers.SGD(rate), loss, metrics=list(metrics), weighted_metrics=list(weighted))
        said = model.get_compile_config()
        w = None if weight is None else weight.astype("float32")
        fitted = model.fit(x, y, sample_weight=w, batch_size=4, epochs=2, shuffle=False, verbose=0)
        line = {"name": name, "layers": json.loads(model.to_json())["config"]["layers"], "weights": weights, "rate": rate,
                "loss": said["loss"], "metrics": said["metrics"] or [], "weighted_metrics": said["weighted_metrics"] or [],
                "x": plain(x), "y": plain(y)}
        if weight is not None:
            line["weight"] = plain(w)
        line["history"] = {key: [numbers(v, 9) for v in values] for key, values in fitted.history.items()}
        line["after"] = [[path, plain(w.numpy())] for path, w in paths]
        self.lines.append(line)


def fits():
    f = Fits()
    s = Source(21)
    K, M, Dense = keras.losses, keras.metrics, keras.layers.Dense
    numbers_ = s.normal(10, 2)
    regression = ["mae", "RootMeanSquaredError", M.R2Score(name="r2"), M.PearsonCorrelation(), M.CosineSimilarity(name="cosine")]
    f.case("mse", "mse", numbers_, Dense(2), metrics=regression, weighted=["mse"], weight=s.weights(10))
    f.case("mae", K.MeanAbsoluteError(), numbers_, Dense(2), metrics=["mse", M.LogCoshError()])
    f.case("mape", "mape", np.abs(numbers_) + 1, Dense(2), rate=1e-4)
    f.case("msle", "msle", np.abs(numbers_), Dense(2, activation="softplus"), metrics=["msle"])
    f.case("huber", K.Huber(), numbers_, Dense(2), weight=s.weights(10, 1))
    f.case("log_cosh", K.LogCosh(reduction="sum"), numbers_, Dense(2), rate=0.01)
    f.case("cosine", "cosine_similarity", numbers_, Dense(2))
    f.case("poisson", "poisson", np.abs(numbers_), Dense(2, activation="exponential"), metrics=["poisson"])
    f.case("vector", "mse", s.normal(10), Dense(1), metrics=["mae"], weight=s.weights(10), weighted=["mae"])
    bits = s.bits(10, 3)
    counts = ["accuracy", M.Precision(thresholds=[0.3, 0.6], name="p"), M.Recall(name="r"), M.TruePositives(name="tp"), M.FalseNegatives(name="fn")]
    f.case("bce", "binary_crossentropy", bits, Dense(3, activation="sigmoid"), metrics=[*counts, "auc"], weighted=["accuracy", M.AUC(curve="PR", name="pr")], weight=s.weights(10))
    f.case("bce_logits", K.BinaryCrossentropy(from_logits=True, label_smoothing=0.1), bits, Dense(3), metrics=[M.BinaryAccuracy(threshold=0.0), M.AUC(from_logits=True, name="auc", multi_label=True)])
    f.case("bfce", K.BinaryFocalCrossentropy(apply_class_balancing=True), bits, Dense(3, activation="sigmoid"), metrics=[M.BinaryIoU(name="iou")])
    f.case("bce_single", "bce", s.bits(10), Dense(1, activation="sigmoid"), metrics=["acc", M.SensitivityAtSpecificity(0.5, name="s"), M.PrecisionAtRecall(0.5, name="q")])
    f.case("hinge", "hinge", s.bits(10, 1), Dense(1), metrics=["hinge"])
    f.case("squared_hinge", "squared_hinge", 2 * s.bits(10, 1) - 1, Dense(1), metrics=["squared_hinge"])
    f.case("dice", K.Dice(), bits, Dense(3, activation="sigmoid"))
    f.case("tversky", K.Tversky(alpha=0.3, beta=0.7, axis=[1]), bits, Dense(3, activation="sigmoid"), weight=s.weights(10))
    one_hot, classes = s.one_hot(10, 4), s.classes(4, 10)
    f.case("cce", "categorical_crossentropy", one_hot, Dense(4, activation="softmax"), metrics=["accuracy", M.TopKCategoricalAccuracy(k=2, name="top"), M.F1Score(name="f1"), M.OneHotMeanIoU(num_classes=4, name="iou")])
    f.case("cce_smoothed", K.CategoricalCrossentropy(label_smoothing=0.2, reduction="mean_with_sample_weight"), one_hot, Dense(4, activation="softmax"), weight=s.weights(10))
    f.case("cfce", K.CategoricalFocalCrossentropy(), one_hot, Dense(4, activation="softmax"), metrics=["categorical_crossentropy"])
    f.case("kld", "kl_divergence", s.shares(10, 4), Dense(4, activation="softmax"), metrics=["kl_divergence"])
    f.case("categorical_hinge", "categorical_hinge", one_hot, Dense(4), metrics=["categorical_hinge"])
    f.case("sparse", "sparse_categorical_crossentropy", classes, Dense(4, activation="softmax"), metrics=["accuracy", M.SparseTopKCategoricalAccuracy(k=2, name="top"), "sparse_categorical_crossentropy"])
    f.case("sparse_logits", K.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1), classes[:, None], Dense(4), metrics=["accuracy"])
    f.case("generalized", K.CategoricalGeneralizedCrossEntropy(q=0.6), classes, Dense(4, activation="softmax"))
    f.case("circle", K.Circle(gamma=4.0), classes, keras.layers.UnitNormalization(), before=[Dense(4, name="wide")])
    steps = s.normal(10, 5, 3)
    masked = steps.copy()
    masked[s.r.uniform(size=(10, 5)) < 0.4] = 0
    f.case("ctc", "ctc", np.array([[1, 2, 2], [3, 0, 0]] * 5, "int32"), Dense(4), x=steps)
    tokens = s.classes(4, 10, 5)
    f.case("masked", "sparse_categorical_crossentropy", tokens, Dense(4, activation="softmax"), metrics=["accuracy"], weighted=["accuracy"], x=masked, before=[keras.layers.Masking()], weight=s.weights(10, 5))
    f.case("masked_mean", "mse", s.normal(10, 5, 2), Dense(2), metrics=["mae"], x=masked, before=[keras.layers.Masking()])
    f.case("masked_column", K.MeanSquaredError(), s.normal(10, 5, 2), Dense(2), weighted=["mae"], x=masked, before=[keras.layers.Masking()], weight=s.weights(10, 1))
    return f.lines


def write(name, lines):
    path = os.path.join(GOLDENS, name)
    with open(path, "w") as f:
        for line in lines:
            f.write(json.dumps(line, separators=(",", ":")) + "\n")
    print(f"{os.path.relpath(path)}: {len(lines)} cases")


def page():
    """Puts the tables of classes into docs/losses.md, between the marks there."""
    path = os.path.join(GOLDENS, "..", "..", "docs", "losses.md")
    with open(path) as f:
        text = f.read()
    for module, base, file, key in [
        (keras.losses, keras.losses.Loss, "losses.jsonl", "loss"), (keras.metrics, keras.metrics.Metric, "metrics.jsonl", "metric")
    ]:
        with open(os.path.join(GOLDENS, file)) as f:
            lines = [json.loads(line) for line in f]
        rows = ["| class | options | cases |", "| --- | --- | --: |"]
        for name, cases in covered(module, base, lines, key).items():
            options = [p for p in inspect.signature(getattr(module, name).__init__).parameters if p not in ("self", "name", "dtype")]
            rows.append(f"| `{name}` | {', '.join(f'`{o}`' for o in options)} | {len(cases)} |")
        begin, end = f"<!-- {key} -->\n", f"<!-- /{key} -->"
        head, rest = text.split(begin)
        text = head + begin + "\n".join(rows) + "\n" + end + rest.split(end)[1]
    with open(path, "w") as f:
        f.write(text)
    print(os.path.relpath(path))


if __name__ == "__main__":
    which = sys.argv[1:] or ["losses", "metrics", "fits", "page"]
    if "losses" in which:
        lines = losses()
        write("losses.jsonl", lines)
        write("loss_shapes.jsonl", shapes())
        print("losses without a case:", uncovered(keras.losses, keras.losses.Loss, lines, "loss") or "none")
    if "metrics" in which:
        lines = metrics()
        write("metrics.jsonl", lines)
        print("metrics without a case:", uncovered(keras.metrics, keras.metrics.Metric, lines, "metric") or "none")
    if "fits" in which:
        write("fits.jsonl", fits())
    if "page" in which:
        page()
