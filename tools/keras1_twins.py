#!/usr/bin/env python3
"""Keras 1 files held against Keras 3 models that were translated by hand.

    python tools/keras1_twins.py CORPUS_DIR [--binary target/release/intwain] [--only TEXT]

A twin is the same model written with Keras 3's layers: those of the corpus are in `TWINS`, and `keras1_cases.py` has small documents
for each class and meaning that later versions changed. Weights are drawn, written as Keras 1 wrote them (its order and layouts, no
version), and the outputs of `intwain run` have to be Keras's. Images of `th` ordering are turned before and after, since the twin's
layers have channels last: what is compared is the meaning and not a translation of the same words. Exit 0 when all are equal.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile

import numpy as np

from keras1_cases import CASES, CHANNELS_FIRST, CHANNELS_LAST, Twin, hard_sigmoid, lstm
from layer_check import FORWARD, unlike

ROWS = 3


def image_net(shape, filters, pool, dense, padding="same"):
    """Two or four convolutions with pooling, of `th` ordering, and two dense layers."""

    def twin(keras):
        L = keras.layers
        layers = [keras.Input(shape), L.Permute(CHANNELS_LAST)]
        for i, n in enumerate(filters):
            layers += [L.Conv2D(n, 3, padding=padding if i < 2 else "valid"), L.ReLU()]
            if i % 2:
                layers.append(pool(L))
        layers += [L.Permute(CHANNELS_FIRST), L.Flatten(), L.Dense(dense, "relu"), L.Dense(10, "softmax")]
        return Twin(keras.Sequential(layers), "th")

    return twin


def dense_net(width, *layers):
    def twin(keras):
        L = keras.layers
        dense = [L.Dense(units, activation) for units, activation in layers]
        return Twin(keras.Sequential([keras.Input((width,)), *dense]))

    return twin


def file_007(keras):
    L = keras.layers
    layers = [keras.Input((10, 2)), lstm(L, 3, return_sequences=True), lstm(L, 2, return_sequences=True)]
    return Twin(keras.Sequential([*layers, L.Dense(3, "softmax")]))


def file_008(keras):
    L = keras.layers
    layers = [keras.Input((200,)), L.Embedding(20000, 64), L.Bidirectional(lstm(L, 32)), L.Dense(1, "sigmoid")]
    return Twin(keras.Sequential(layers))


def file_013(keras):
    L = keras.layers
    layers = [keras.Input((8, 8, 3)), L.Conv2D(2, (3, 2), activation="sigmoid"), L.Conv2D(1, (2, 3), activation="relu")]
    return Twin(keras.Sequential([*layers, L.MaxPooling2D(5), L.Flatten(), L.Dense(2, "relu"), L.Dense(3, "softmax")]))


def small_norm(activation):
    def twin(keras):
        L = keras.layers
        layers = [keras.Input((4,)), L.Dense(3), activation(L), L.BatchNormalization(epsilon=1e-3)]
        return Twin(keras.Sequential([*layers, L.Dense(2, "tanh"), L.Dense(3, "softmax")]))

    return twin


def file_017(keras):
    L = keras.layers
    leak = lambda: L.LeakyReLU(negative_slope=0.1)
    layers = [keras.Input((3, 448, 448)), L.Permute(CHANNELS_LAST)]
    for i, n in enumerate((16, 32, 64, 128, 256, 512, 1024, 1024, 1024)):
        layers += [L.Conv2D(n, 3, padding="same"), leak(), *([L.MaxPooling2D(2)] if i < 6 else [])]
    layers += [L.Permute(CHANNELS_FIRST), L.Flatten(), L.Dense(256), L.Dense(4096), leak(), L.Dense(1470)]
    return Twin(keras.Sequential(layers), "th")


def file_021(keras):
    L = keras.layers
    layers = [keras.Input((9,)), L.Embedding(20000, 128), lstm(L, 128, return_sequences=True), L.Dense(1, "sigmoid")]
    return Twin(keras.Sequential(layers))


def file_029(keras):
    L = keras.layers
    return Twin(keras.Sequential([keras.Input((1, 1)), lstm(L, 50), L.Dense(1)]))


def file_032(keras):
    L = keras.layers
    layers = [keras.Input((1000, 4))]
    for filters, size, padding, pool in ((300, 19, "valid", 3), (200, 11, "same", 4), (200, 7, "same", 4)):
        layers += [L.Conv1D(filters, size, padding=padding), L.BatchNormalization(epsilon=1e-3), L.PReLU(), L.MaxPooling1D(pool)]
    layers.append(L.Flatten())
    for _ in range(2):
        layers += [L.Dense(1000), L.BatchNormalization(epsilon=1e-3), L.PReLU()]
    return Twin(keras.Sequential([*layers, L.Dense(1, "sigmoid")]))


def file_214(keras):
    L = keras.layers
    state, action = keras.Input((29,), name="input_3"), keras.Input((3,), name="action2")
    hidden = L.Dense(600, name="dense_13")(L.Dense(300, "relu", name="dense_11")(state))
    sum_ = L.Add()([hidden, L.Dense(600, name="dense_12")(action)])
    out = L.Dense(3, name="dense_15")(L.Dense(600, "relu", name="dense_14")(sum_))
    return Twin(keras.Model([state, action], out), order="file")


def file_009(keras):
    """Inception v3 as `keras.applications` had it in 1.1: a bias, and the rectifier before the normalisation."""
    L = keras.layers
    image = keras.Input((299, 299, 3), name="input_1")

    def conv(x, number, filters, rows, cols, padding="same", strides=1):
        x = L.Conv2D(filters, (rows, cols), strides, padding, activation="relu", name=f"convolution2d_{number}")(x)
        return L.BatchNormalization(epsilon=1e-5, name=f"batchnormalization_{number}")(x)

    def pool(x):
        return L.AveragePooling2D(3, 1, "same")(x)

    def join(*parts):
        return L.Concatenate()(list(parts))

    x = conv(image, 1, 32, 3, 3, "valid", 2)
    x = conv(conv(x, 2, 32, 3, 3, "valid"), 3, 64, 3, 3)
    x = conv(conv(L.MaxPooling2D(3, 2)(x), 4, 80, 1, 1, "valid"), 5, 192, 3, 3, "valid")
    x = L.MaxPooling2D(3, 2)(x)
    for n in (6, 13, 20):
        five = conv(conv(x, n + 1, 48, 1, 1), n + 2, 64, 5, 5)
        three = conv(conv(conv(x, n + 3, 64, 1, 1), n + 4, 96, 3, 3), n + 5, 96, 3, 3)
        x = join(conv(x, n, 64, 1, 1), five, three, conv(pool(x), n + 6, 32, 1, 1))
    three = conv(conv(conv(x, 28, 64, 1, 1), 29, 96, 3, 3), 30, 96, 3, 3, "valid", 2)
    x = join(conv(x, 27, 384, 3, 3, "valid", 2), three, L.MaxPooling2D(3, 2)(x))
    for n, first, inner in ((31, 128, 128), (41, 160, 160), (51, 160, 160), (61, 160, 192)):
        short = conv(conv(conv(x, n + 1, inner, 1, 1), n + 2, inner, 1, 7), n + 3, 192, 7, 1)
        long = conv(conv(conv(x, n + 4, first, 1, 1), n + 5, inner, 7, 1), n + 6, inner, 1, 7)
        long = conv(conv(long, n + 7, inner, 7, 1), n + 8, 192, 1, 7)
        x = join(conv(x, n, 192, 1, 1), short, long, conv(pool(x), n + 9, 192, 1, 1))
    three = conv(conv(x, 71, 192, 1, 1), 72, 320, 3, 3, "valid", 2)
    seven = conv(conv(conv(x, 73, 192, 1, 1), 74, 192, 1, 7), 75, 192, 7, 1)
    x = join(three, conv(seven, 76, 192, 3, 3, "valid", 2), L.AveragePooling2D(3, 2)(x))
    for n in (77, 86):
        three = conv(x, n + 1, 384, 1, 1)
        three = join(conv(three, n + 2, 384, 1, 3), conv(three, n + 3, 384, 3, 1))
        long = conv(conv(x, n + 4, 448, 1, 1), n + 5, 384, 3, 3)
        long = join(conv(long, n + 6, 384, 1, 3), conv(long, n + 7, 384, 3, 1))
        x = join(conv(x, n, 320, 1, 1), three, long, conv(pool(x), n + 8, 192, 1, 1))
    x = L.Flatten()(L.AveragePooling2D(8)(x))
    return Twin(keras.Model(image, L.Dense(1000, "softmax", name="predictions")(x)), order="file")


def max_2(L):
    return L.MaxPooling2D(2)


def average_2(L):
    return L.AveragePooling2D(2)


TWINS = {
    "001.json": image_net((3, 32, 32), (32, 32, 64, 64), max_2, 512),
    "003.json": image_net((1, 28, 28), (32, 32), average_2, 128, "valid"),
    "006.json": image_net((3, 32, 32), (32, 32, 32, 32), average_2, 512),
    "007.json": file_007,
    "008.json": file_008,
    "009.json": file_009,
    "013.json": file_013,
    "014.json": small_norm(lambda L: L.ReLU()),
    "016.json": small_norm(lambda L: L.LeakyReLU(negative_slope=0.3)),
    "017.json": file_017,
    "018.json": dense_net(8, (1024, "softplus"), (512, "softplus"), (1, "sigmoid")),
    "020.json": dense_net(784, (512, "relu"), (512, "relu"), (10, "softmax")),
    "021.json": file_021,
    "024.json": dense_net(784, (512, "relu"), (512, "relu"), (512, "relu"), (10, "softmax")),
    "026.json": image_net((1, 28, 28), (32, 32), max_2, 128, "valid"),
    "029.json": file_029,
    "030.json": dense_net(70, (256, "tanh"), (2, None)),
    "032.json": file_032,
    "034.json": dense_net(784, (128, "relu"), (128, "relu"), (10, "softmax")),
    "035.json": image_net((1, 28, 28), (32, 32), max_2, 128, "valid"),
    "214.json": file_214,
}


# What `cargo test` checks without Keras.
GOLDEN = {
    *("Sequential_0.3", "Graph_shared", "Merge_cos", "Merge_nested", "LSTM_cpu", "LSTM_gpu", "GRU_cpu", "Bidirectional_masked"),
    *("Highway_1.0", "MaxoutDense", "ParametricSoftplus", "SReLU", "BatchNormalization_th", "Convolution1D_strided"),
    *("AtrousConvolution2D", "SeparableConvolution2D", "Deconvolution2D_th", "ConvLSTM2D_th", "Padding_th", "Steps"),
}


def twins():
    """The corpus files that have a twin, each with a function that makes it of Keras."""
    return dict(TWINS)


def layers_of(document):
    """Names of a functional document's layers, in its order."""
    while isinstance(document, str):
        document = json.loads(document)
    return [layer["name"] for layer in document["config"]["layers"]]


def settle(twin, document, rng):
    """Draws the model's variables: variances stay positive, everything else is small enough to keep activations alive."""
    if twin.order == "file":
        known = {layer.name for layer in twin.model.layers}
        twin.order = [name for name in layers_of(document) if name in known]
    for v in twin.model.weights:
        fan = int(np.prod(v.shape[:-1])) if len(v.shape) > 1 else 1
        drawn = rng.standard_normal(v.shape) * (1.4 / np.sqrt(fan) if len(v.shape) > 1 else 0.1)
        if "moving_variance" in v.path or v.path.endswith("gamma"):
            drawn = 1.0 + 0.3 * np.abs(drawn)
        v.assign(drawn.astype("float32"))


def write_weights(path, groups, names, document):
    """A weight file as Keras 1 wrote it: names of layers and of their weights in attributes, no version. Keras 0.3 wrote numbers. A whole
    model has the architecture and its version around that."""
    import h5py

    with h5py.File(path, "w") as file:
        if names == "numbered":
            file.attrs["nb_layers"] = len(groups)
            for i, (_, tensors) in enumerate(groups):
                group = file.create_group(f"layer_{i}")
                group.attrs["nb_params"] = len(tensors)
                for p, tensor in enumerate(tensors):
                    group.create_dataset(f"param_{p}", data=tensor)
            return
        if names == "whole":
            file.attrs["model_config"] = json.dumps(document).encode()
            file.attrs["keras_version"] = document["keras_version"].encode()
            file = file.create_group("model_weights")
        file.attrs["layer_names"] = [name.encode() for name, _ in groups]
        for name, tensors in groups:
            group = file.create_group(name)
            names = [f"{name}_{i}" for i in range(len(tensors))]
            group.attrs["weight_names"] = [n.encode() for n in names]
            for key, tensor in zip(names, tensors):
                group.create_dataset(key, data=tensor)


def draw_inputs(model, rng):
    vocabulary = next((layer.input_dim for layer in model.layers if type(layer).__name__ == "Embedding"), 0)
    shapes = [[ROWS, *x.shape[1:]] for x in model.inputs]
    if vocabulary:
        return [rng.integers(0, vocabulary, shape).astype("float32") for shape in shapes]
    return [rng.standard_normal(shape).astype("float32") for shape in shapes]


def compare(binary, keras, document, make, keep):
    """Runs a document and its twin on the same weights and inputs; the difference in words, or None. What was compared is left at the
    path `keep` with several endings, where that is given."""
    keras.utils.clear_session()
    rng = np.random.default_rng(11)
    twin = make(keras)
    settle(twin, document, rng)
    inputs = draw_inputs(twin.model, rng)
    want = twin.model(inputs if len(inputs) > 1 else inputs[0], training=False)
    want = [np.asarray(w) for w in (want if isinstance(want, (list, tuple)) else [want])]
    with tempfile.TemporaryDirectory() as folder:
        at = lambda file: os.path.join(folder, file)
        with open(at("model.json"), "w") as file:
            file.write(document if isinstance(document, str) else json.dumps(document))
        write_weights(at("weights.h5"), twin.stored(), twin.names, document)
        if keep:
            np.savez(f"{keep}.npz", **{f"in{i}": x for i, x in enumerate(inputs)}, **{f"out{i}": x for i, x in enumerate(want)})
            shutil.copy(at("weights.h5"), f"{keep}.h5")
            shutil.copy(at("model.json"), f"{keep}.json")
        words = ["run", at("model.json"), "--weights", at("weights.h5"), "--devices", "cpu:0", "--outputs", at("out.npz")]
        lines, shapes = input_lines(binary, at("model.json"), inputs)
        given = [line.split('"')[1] for line in lines]
        np.savez(at("in.npz"), **dict(zip(given, inputs)))
        result = subprocess.run([binary, *words, *shapes, "--inputs", at("in.npz")], capture_output=True, text=True)
        if result.returncode != 0:
            return " / ".join(result.stderr.strip().splitlines()[:4])
        with np.load(at("out.npz")) as arrays:
            got = [arrays[k] for k in arrays.files]
    if len(got) != len(want):
        return f"{len(got)} outputs, Keras has {len(want)}"
    for i, (a, b) in enumerate(zip(got, want)):
        if a.shape != b.shape:
            return f"output {i} has the shape {a.shape}, Keras's {b.shape}"
        why = unlike(a, b, *FORWARD)
        if why:
            return f"output {i}: {why}"
    return None


def input_lines(binary, path, inputs):
    """The lines of the graph that declare inputs, and the options that close open extents."""
    shapes = []
    while True:
        result = subprocess.run([binary, "inspect", path, "--hardware", "cpu", "--after", "import", *shapes], capture_output=True, text=True)
        if result.returncode == 0:
            return [line for line in result.stdout.splitlines() if line.strip().startswith("input %")], shapes
        left = [line.split('"')[1] for line in result.stderr.splitlines() if "left open" in line]
        if not left or shapes:
            sys.exit(f"{path}: {result.stderr.strip()}")
        for name, value in zip(left, inputs):
            shapes += ["--shape", f"{name}={'x'.join(map(str, value.shape[1:]))}"]


def cases(corpus):
    """Every document with its twin: the corpus's, then the small ones."""
    for name, make in TWINS.items():
        with open(os.path.join(corpus, name)) as file:
            yield name, file.read(), make
    for name, (document, make) in CASES.items():
        yield name, document, make


def check(corpus, binary, only="", goldens=None):
    """What differs between Keras 1 files and their twins, a line for each."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
    import keras

    # Under its own name it would be Keras 3's, which is another function, once a wrapper copies its layer.
    keras.saving.register_keras_serializable("keras1")(hard_sigmoid)
    wrong = []
    for name, document, make in cases(corpus):
        if only in name:
            keep = os.path.join(goldens, name) if goldens and name in GOLDEN else None
            why = compare(binary, keras, document, make, keep)
            print(f"twin {name}: {why or 'equal'}", flush=True)
            wrong += [f"{name}: {why}"] if why else []
    return wrong


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("corpus")
    parser.add_argument("--binary", default="target/release/intwain")
    parser.add_argument("--only", default="", help="names that contain this text")
    parser.add_argument("--goldens", metavar="DIR", help="leave what tests/formats.rs reads there: tests/goldens/keras1")
    args = parser.parse_args()
    wrong = check(args.corpus, os.path.abspath(args.binary), args.only, args.goldens)
    print(f"{len(wrong)} wrong")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
