#!/usr/bin/env python3
"""Writes `tests/goldens/training_configs.json`: what files of Keras 3 and tf_keras say about training, and what those that wrote them make of it.

Each entry has the arrangement and names of a model's outputs, the file's training configuration (without what the optimizer is set to), which outputs have
losses, their names and weights, and the names under which metrics are reported.
"""
import json
import os
import tempfile
import zipfile

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import h5py
import keras
import numpy as np
import tf_keras

GOLDEN = os.path.join(os.path.dirname(__file__), "..", "tests", "goldens", "training_configs.json")
SPARSE = "sparse_categorical_crossentropy"


def model(K, arrangement):
    x = K.Input((3,), name="x")
    a, b = K.layers.Dense(1, name="a"), K.layers.Dense(4, activation="softmax", name="b")
    outputs = {
        "one": lambda: b(x),
        "list": lambda: [a(x), b(x)],
        "reversed": lambda: [b(x), a(x)],
        "named": lambda: {"q": b(x), "p": a(x)},
        "twice": lambda: [b(x), b(K.layers.Rescaling(2.0)(x))],
    }[arrangement]()
    return K.Model(x, outputs)


def cases(K):
    """Arrangement, what `compile` is given, whether b's labels are classes."""
    L, M = K.losses, K.metrics
    yield "one", dict(loss="mse", metrics=["mae"]), False
    yield "one", dict(loss=L.CategoricalCrossentropy(label_smoothing=0.1), metrics=["accuracy", M.TopKCategoricalAccuracy(2)], weighted_metrics=["accuracy", "mse"], run_eagerly=True, steps_per_execution=2), False
    yield "one", dict(loss=L.mean_squared_error, metrics=[M.mean_absolute_error]), False
    yield "one", dict(loss={"b": SPARSE}, metrics={"b": ["accuracy"]}), True
    yield "one", dict(loss=["mse"], loss_weights=[0.5]), False
    yield "list", dict(loss={"a": "mse", "b": SPARSE}, loss_weights={"a": 0.5, "b": 2.0}, metrics={"b": ["accuracy", "categorical_crossentropy" if K is keras else "crossentropy"]}), True
    yield "reversed", dict(loss={"a": "mse", "b": SPARSE}, loss_weights={"a": 0.5, "b": 2.0}, metrics={"a": "mae"}), True
    yield "list", dict(loss=["mse", SPARSE], loss_weights=[0.5, 1.5], metrics=[["mae"], []], weighted_metrics=[[], ["acc"]]), True
    yield "list", dict(loss=["mse", None], metrics=[["mae", "mse"], "mae"]), False
    yield "list", dict(loss="mse", metrics=["mae"] if K is tf_keras else ["mae", "mse"], loss_weights=0.5), False
    yield "named", dict(loss={"p": "mse", "q": SPARSE}, metrics={"q": "accuracy"}, loss_weights={"p": 3.0, "q": 0.25}), True
    yield "named", dict(loss={"q": SPARSE}, metrics={"q": ["accuracy"]}), True
    yield "list", dict(loss=("mse", "mae"), metrics=(("mae",), ("mse",)), weighted_metrics=(("mae",), ("mse",))), False
    yield "twice", dict(loss=["mse", "mae"], metrics=[["mae"], ["mse"]]), False


def stored(path):
    if path.endswith("keras"):
        return json.loads(zipfile.ZipFile(path).read("config.json"))["compile_config"]
    with h5py.File(path) as f:
        return json.loads(f.attrs["training_config"])


def labels(net, sparse):
    def of(units):
        return np.array([1, 2]) if sparse and units == 4 else np.full((2, units), 0.25)

    outputs = net.outputs
    units = [int(t.shape[-1]) for t in outputs]
    if isinstance(net.output, dict):
        return {key: of(int(t.shape[-1])) for key, t in net.output.items()}
    return of(units[0]) if not isinstance(net.output, (list, tuple)) else [of(u) for u in units]


def record(K, folder, arrangement, given, sparse):
    for kind in ("keras", "h5"):
        net = model(K, arrangement)
        net.compile("sgd", **given)
        x, y = np.ones((2, 3)), labels(net, sparse)
        if K is keras and arrangement == "named" and len(given["loss"]) == 1:
            y = {**y, "p": np.zeros((2, 1))}
        net.evaluate(x, y, verbose=0)
        path = f"{folder}/m.{kind}"
        net.save(path)
        config = stored(path)
        key = "optimizer" if "optimizer" in config else "optimizer_config"
        config[key] = "sgd" if isinstance(config[key], str) else {"class_name": config[key]["class_name"], "config": {"name": "SGD"}}
        loaded = net
        if kind == "keras" or K is tf_keras:  # Keras 3 does not find all losses again that it writes into HDF5 files
            loaded = K.models.load_model(path)
            loaded.evaluate(x, y, verbose=0)
        names = list(net.output) if isinstance(net.output, dict) else net.output_names
        if isinstance(net.output, dict):
            names = sorted(names)
        if K is keras:
            flat = loaded._compile_loss._flat_losses
            losses = [[loss.name, loss.loss_weights] for loss in flat]
            metrics = list(loaded._compile_metrics.result()) if loaded._compile_metrics else []
        else:
            c = loaded.compiled_loss
            losses = [[names[i], c._loss_weights[i]] for i in range(len(names)) if c._losses[i] is not None]
            metrics = [m.name for m in loaded.compiled_metrics.metrics] if loaded.compiled_metrics else []
        yield {
            "keras": 3 if K is keras else 2, "file": kind, "arrangement": arrangement, "layers": [t for t in net.output_names], "names": names,
            "config": config, "losses": losses, "metrics": metrics,
        }


def main():
    entries = []
    with tempfile.TemporaryDirectory() as folder:
        for K in (keras, tf_keras):
            for case in cases(K):
                try:
                    entries += record(K, folder, *case)
                except Exception as error:  # noqa: BLE001
                    print(K.__name__, case, type(error).__name__, str(error)[:300])
    with open(GOLDEN, "w") as f:
        f.write("[\n" + ",\n".join(json.dumps(e) for e in entries) + "\n]\n")
    print(len(entries))


if __name__ == "__main__":
    main()
