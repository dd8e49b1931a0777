"""Writes tests/fixtures/weights: one small model of tf_keras in the containers people have, and what it computes.

    python tools/make_weight_fixtures.py tests/fixtures/weights

Needs tf_keras, keras and h5py. TensorFlow.js files are written here as its converter and its own `save` write them.
"""
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
import h5py
import keras
import numpy as np
import tf_keras

OUT = Path(sys.argv[1])
L = tf_keras.layers


def fill(model, seed):
    rng = np.random.default_rng(seed)
    draw = lambda w: rng.uniform(0.5, 1.5, w.shape) if "variance" in w.name else rng.normal(0, 0.4, w.shape)
    for w in model.weights:
        w.assign(draw(w).astype(w.dtype.as_numpy_dtype))


def everything():
    """Normalisation, recurrence both ways, a shared layer, nested models with frozen parts, names with slashes."""
    x = tf_keras.Input((6, 4), name="x")
    shared = L.Dense(4, activation="tanh", name="block1/shared")
    y = L.Conv1D(4, 3, padding="same", name="zeta")(shared(x))
    y = shared(L.BatchNormalization(name="norm")(y))
    inner = tf_keras.Sequential(
        [L.Dense(3, name="in_a", trainable=False), L.BatchNormalization(name="in_norm"), L.Dense(4, name="in_b")], name="inner"
    )
    y = inner(y)
    y = L.Bidirectional(L.LSTM(2, return_sequences=True), name="both")(y)
    y = L.GRU(3, name="alpha")(y)
    y = L.Dense(2, trainable=False, name="frozen")(y)
    return tf_keras.Model(x, L.Dense(2, name="beta")(y), name="everything")


def topology(model):
    text = json.loads(model.to_json())
    return {
        "keras_version": text["keras_version"],
        "backend": "tensorflow",
        "model_config": {"class_name": text["class_name"], "config": text["config"]},
    }


def stored(model, how):
    """(name, array) in the order of the converter (by layer) or of TensorFlow.js's own `save` (as model.weights)."""
    name = lambda w: w.name.removesuffix(":0")
    if how == "saved":
        return [(name(w), w.numpy()) for w in model.weights]
    layers = sorted((l for l in model.layers if l.weights), key=lambda l: l.name)
    return [(name(w), w.numpy()) for l in layers for w in l.weights]


def quantise(array, how):
    """What the converter's --quantize_… makes of an array: bytes, the manifest's entry, and the values it stands for."""
    if how == "float16":
        half = array.astype("float16")
        return half.tobytes(), {"dtype": "float16", "original_dtype": "float32"}, half.astype("float32")
    low, high = float(array.min()), float(array.max())
    scale = (high - low) / np.iinfo(how).max
    if scale == 0:
        scale = 1.0
    q = np.round((array.astype("float64") - low) / scale).astype(how)
    value = (q.astype("float64") * scale + low).astype("float32")
    return q.tobytes(), {"dtype": how, "scale": scale, "min": low, "original_dtype": "float32"}, value


def tfjs(folder, model, how="converted", quantised=None, shard=700):
    folder.mkdir(parents=True, exist_ok=True)
    data, weights, values = b"", [], {}
    for name, array in stored(model, how):
        entry = {"name": name, "shape": list(array.shape), "dtype": str(array.dtype)}
        raw, values[name] = array.tobytes(), array
        if quantised:
            raw, entry["quantization"], values[name] = quantise(array, quantised)
        data += raw
        weights.append(entry)
    parts = [data[i : i + shard] for i in range(0, len(data), shard)]
    paths = [f"group1-shard{i + 1}of{len(parts)}.bin" for i in range(len(parts))]
    for path, part in zip(paths, parts):
        (folder / path).write_bytes(part)
    document = {"format": "layers-model", "generatedBy": "keras", "convertedBy": "TensorFlow.js Converter", "modelTopology": topology(model)}
    if how == "saved":
        document["modelTopology"] = document["modelTopology"]["model_config"] | {"keras_version": "tfjs-layers 4.22.0", "backend": "tensor_flow.js"}
        paths = ["./" + path for path in paths]
    document["weightsManifest"] = [{"paths": paths, "weights": weights}]
    (folder / "model.json").write_text(json.dumps(document))
    return values


def nested(k):
    """A frozen layer inside of a nested model, between layers that train."""
    inner = [k.layers.Dense(3, name="a", trainable=False), k.layers.BatchNormalization(name="n"), k.layers.Dense(4, name="b")]
    x = k.Input((4,), name="x")
    y = k.Sequential(inner, name="inner")(k.layers.Dense(4, name="first")(x))
    return k.Model(x, k.layers.Dense(2, name="last")(y), name="nested")


def trained(k, generation, keeps):
    """One model in both containers, with an optimizer whose state is numbered; values are the same in float16."""
    model = nested(k)
    optimizer = k.optimizers.Adam(0.25, amsgrad=True)
    model.compile(optimizer, "mse")
    optimizer.build(model.trainable_variables)
    rng = np.random.default_rng(3)
    model.set_weights([rng.integers(-64, 64, w.shape).astype("float32") / 32 for w in model.get_weights()])
    variables = optimizer.variables
    for i, v in enumerate(variables() if callable(variables) else variables):
        if "iteration" in v.name:
            v.assign(7)
        elif "learning_rate" not in v.name:
            v.assign(np.full(v.shape, i, "float32"))
    # Keras 3 forgets the optimizer's configuration when it writes HDF5.
    model.save(OUT / f"nested{generation}.keras")
    model.save(OUT / f"nested{generation}.h5")
    for w in model.weights:
        keeps[f"{generation}/{w.path if generation == 3 else w.name}"] = np.asarray(w)
    return model


def rewritten(source, target):
    """A weights file as others write it: a new superblock, compressed chunks, the other byte order, lists in pieces."""
    with h5py.File(source) as old, h5py.File(target, "w", libver="latest") as new:
        old = old["model_weights"]
        names = [n for n in old.attrs["layer_names"]]
        new.attrs["layer_names0"], new.attrs["layer_names1"] = names[:2], names[2:]
        for name in reversed(names):
            group = new.create_group(name)
            weights = [n for n in old[name].attrs["weight_names"]]
            group.attrs["weight_names0"], group.attrs["weight_names1"] = weights[:1], weights[1:]
            for i, weight in enumerate(weights):
                how = [{"dtype": ">f4"}, {"dtype": "<f2"}, {"dtype": "<f8"}][i % 3]
                if len(old[name][weight].shape) == 2:
                    how |= {"chunks": (1, 2), "compression": "gzip", "shuffle": True}
                group.create_dataset(weight, data=old[name][weight][()], **how)


def cudnn(arrays):
    """Weights that CuDNNLSTM and CuDNNGRU saved, and what the layers without cuDNN compute with them."""
    x = tf_keras.Input((5, 4), name="x")
    y = L.LSTM(3, return_sequences=True, name="one")(x)
    y = L.Bidirectional(L.GRU(2, return_sequences=True), name="two")(y)
    model = tf_keras.Model(x, L.GRU(2, name="three")(y), name="cudnn")
    (OUT / "cudnn.json").write_text(model.to_json())
    model.save_weights(OUT / "cudnn.h5")
    rng = np.random.default_rng(4)
    with h5py.File(OUT / "cudnn.h5", "a") as file:
        names = []
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
        for name in names:
            shape = file[name].shape
            if name.endswith("bias:0"):
                shape = (shape[0] * 2,) if len(shape) == 1 else (shape[0] * shape[1],)
            del file[name]
            file[name] = rng.normal(0, 0.5, shape).astype("float32")
    model.load_weights(OUT / "cudnn.h5")
    arrays["x"] = rng.normal(size=(3, 5, 4)).astype("float32")
    arrays["three"] = outputs(model, arrays["x"])
    for w in model.weights:
        arrays[w.name.removesuffix(":0")] = w.numpy()


def outputs(model, x):
    return model(x, training=False).numpy()


def cyclic(path):
    """Groups that hold each other, twice in each: every path through them goes on for ever."""
    with h5py.File(path, "w") as file:
        a = file.create_group("layers/dense")
        b = a.create_group("vars")
        b["0"] = np.zeros((2, 2), "float32")
        for i in range(2):
            a[f"again{i}"] = b[f"again{i}"] = file["layers"]
        file["soft"] = h5py.SoftLink("/soft")
        file["outside"] = h5py.ExternalLink("/etc/hostname", "/")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    model = everything()
    fill(model, 1)
    x = np.random.default_rng(2).normal(size=(3, 6, 4)).astype("float32")
    out = {"whole": outputs(model, x)}
    tfjs(OUT / "tfjs", model)
    tfjs(OUT / "tfjs_saved", model, how="saved", shard=1 << 20)
    kept = model.get_weights()
    for kind in ("uint8", "uint16", "float16"):
        values = tfjs(OUT / f"tfjs_{kind}", model, quantised=kind, shard=1 << 20)
        model.set_weights([values[w.name.removesuffix(":0")] for w in model.weights])
        out[kind] = outputs(model, x)
        model.set_weights(kept)
    np.savez_compressed(OUT / "everything.npz", x=x, **out)
    keeps, arrays = {}, {}
    trained(tf_keras, 2, keeps)
    trained(keras, 3, keeps)
    rewritten(OUT / "nested2.h5", OUT / "rewritten.h5")
    np.savez_compressed(OUT / "nested.npz", **keeps)
    cudnn(arrays)
    cyclic(OUT / "cyclic.h5")
    np.savez_compressed(OUT / "cudnn.npz", **arrays)


main()
