#!/usr/bin/env python3
"""Builds Keras models and the values Keras computes for them, for `zoo_check.py` to hold Intwain against.

    python tools/zoo.py OUT_DIR [NAME ...] [--batches 1,3,4,5] [--list]

Every model gets a folder OUT_DIR/NAME with

    model.keras, model.json + model.weights.h5, model.h5   the same model in the formats Keras writes
    b{N}/inputs.npz, b{N}/outputs.npz                      inputs of N rows and what `model(x, training=False)` returns
    grads.npz, grads64.npz   (models of GRADIENTS)         cotangents, and gradients of the sum of out * cotangent, on b4's inputs; in float64
    facts.json                                             written last: a folder without it is made again

A final softmax or sigmoid is taken off, since it would flatten errors. The weights are drawn so that each layer has a visible effect, and
the tool refuses a model whose output would not show an error. One process per model keeps the memory of one model.
"""
import argparse
import json
import os
import subprocess
import sys

MEASURED = (
    "mlp lenet two_tower gpt vit unet resnet50 resnet50v2 vgg16 mobilenet mobilenetv2 densenet121 inceptionv3 xception "
    "efficientnetb0 convnexttiny"
).split()
IMPORTED = "lstm dlrm vgg19 mobilenetv3 efficientnetv2b0 inceptionresnetv2 nasnetmobile resnet50_224 vgg16_224".split()
GRADIENTS = "lenet resnet50 unet vit gpt two_tower".split()


def builders():
    """Model name to a function that builds it. Keras is imported here, so that `--list` and the checker do without it."""
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import keras
    from keras import layers as L

    def application(name, side=64, classes=10):
        return lambda: getattr(keras.applications, name)(weights=None, input_shape=(side, side, 3), classes=classes)

    def stack(shape, *layers, dtype=None):
        return lambda: keras.Sequential([keras.Input(shape, dtype=dtype), *layers])

    def encoder_block(x, width, heads, causal):
        y = L.LayerNormalization(epsilon=1e-6)(x)
        x = L.Add()([x, L.MultiHeadAttention(heads, width // heads)(y, y, use_causal_mask=causal)])
        y = L.LayerNormalization(epsilon=1e-6)(x)
        return L.Add()([x, L.Dense(width)(L.Dense(4 * width, activation="gelu")(y))])

    def gpt():
        tokens = keras.Input((64,), dtype="int32", name="token_ids")
        x = L.Embedding(512, 128)(tokens)
        for _ in range(4):
            x = encoder_block(x, 128, 4, causal=True)
        return keras.Model(tokens, L.Dense(512)(L.LayerNormalization(epsilon=1e-6)(x)))

    def vit():
        image = keras.Input((64, 64, 3))
        x = L.Reshape((64, 192))(L.Conv2D(192, 8, strides=8)(image))
        for _ in range(4):
            x = encoder_block(x, 192, 3, causal=False)
        return keras.Model(image, L.Dense(100)(L.GlobalAveragePooling1D()(L.LayerNormalization(epsilon=1e-6)(x))))

    def unet():
        def twice(x, width):
            for _ in range(2):
                x = L.ReLU()(L.BatchNormalization()(L.Conv2D(width, 3, padding="same", use_bias=False)(x)))
            return x

        image = keras.Input((64, 64, 3))
        x, skips = image, []
        for width in (16, 32, 64):
            x = twice(x, width)
            skips.append(x)
            x = L.MaxPooling2D()(x)
        x = twice(x, 128)
        for width, skip in ((64, skips[2]), (32, skips[1]), (16, skips[0])):
            x = twice(L.Concatenate()([L.Conv2DTranspose(width, 2, strides=2, padding="same")(x), skip]), width)
        return keras.Model(image, L.Conv2D(1, 1)(x))

    def two_tower():
        user, item = keras.Input((32,), name="user"), keras.Input((48,), name="item")
        shared = L.Dense(16, "relu", name="shared")
        u, i = shared(L.Dense(24, "tanh")(user)), shared(L.Dense(24, "tanh")(item))
        both = L.Concatenate()([u, i, L.Dot(axes=-1, normalize=True)([u, i])])
        return keras.Model([user, item], [L.Dense(1, name="click")(both), L.Dense(5, name="rating")(both)])

    def dlrm():
        ids = [keras.Input((1,), dtype="int32", name=f"field{k}") for k in range(8)]
        numeric = keras.Input((13,), name="numeric")
        x = L.Concatenate()([L.Flatten()(L.Embedding(20000, 32)(i)) for i in ids] + [L.Dense(32, "relu")(numeric)])
        x = L.Dense(128, "relu")(L.Dense(256, "relu")(x))
        return keras.Model([*ids, numeric], L.Dense(1)(x))

    return {
        "mlp": stack((784,), L.Dense(512, "relu"), L.Dropout(0.0), L.Dense(512, "relu"), L.Dense(10)),
        "lenet": stack((28, 28, 1), L.Conv2D(32, 3, activation="relu"), L.MaxPooling2D(), L.Conv2D(64, 3, activation="relu"),
                       L.MaxPooling2D(), L.Flatten(), L.Dropout(0.5), L.Dense(10)),
        "lstm": stack((40,), L.Embedding(1000, 64, mask_zero=True), L.Bidirectional(L.LSTM(32, return_sequences=True)), L.GRU(32),
                      L.Dense(16, "tanh"), L.Dense(1), dtype="int32"),
        "gpt": gpt, "vit": vit, "unet": unet, "two_tower": two_tower, "dlrm": dlrm,
        "resnet50": application("ResNet50"), "resnet50v2": application("ResNet50V2"), "vgg16": application("VGG16"), "vgg19": application("VGG19"),
        "mobilenet": application("MobileNet"), "mobilenetv2": application("MobileNetV2"), "mobilenetv3": application("MobileNetV3Small"),
        "densenet121": application("DenseNet121"), "inceptionv3": application("InceptionV3", 96), "xception": application("Xception", 96),
        "efficientnetb0": application("EfficientNetB0"), "efficientnetv2b0": application("EfficientNetV2B0"),
        "convnexttiny": application("ConvNeXtTiny"), "nasnetmobile": application("NASNetMobile", 224),
        "inceptionresnetv2": application("InceptionResNetV2", 96),
        "resnet50_224": application("ResNet50", 224, 1000), "vgg16_224": application("VGG16", 224, 1000),
    }


def make(name, folder, batches):
    import keras
    import numpy as np
    import tensorflow as tf

    model = builders()[name]()
    keras.utils.set_random_seed(1)
    rng = np.random.default_rng(sum(map(ord, name)))
    without_final_activation(model)
    embeddings = [layer for layer in model.layers if isinstance(layer, keras.layers.Embedding)]
    pixels = any(isinstance(layer, (keras.layers.Rescaling, keras.layers.Normalization)) for layer in model.layers[:3])

    def draw(n):
        values = {}
        for tensor in model.inputs:
            shape, key = (n, *tensor.shape[1:]), tensor._keras_history.operation.name
            if "int" in tensor.dtype:
                values[key] = rng.integers(0, min(layer.input_dim for layer in embeddings), shape).astype(tensor.dtype)
            else:
                values[key] = (rng.uniform(0, 255, shape) if pixels else rng.standard_normal(shape)).astype(tensor.dtype)
        return values

    def call(values, training=False):
        tensors = [tf.constant(v) for v in values.values()]
        return tf.nest.flatten(model(tensors if len(tensors) > 1 else tensors[0], training=training))

    draw_weights(model, rng, lambda: call(draw(4), training=True))
    rows = {n: draw(n) for n in batches}
    for n, values in rows.items():
        os.makedirs(f"{folder}/b{n}", exist_ok=True)
        np.savez(f"{folder}/b{n}/inputs.npz", **values)
        np.savez(f"{folder}/b{n}/outputs.npz", **{f"out{i}": np.asarray(v) for i, v in enumerate(call(values))})
    refuse_blind_values(model, name, lambda: call(rows[max(batches)]))
    if name in GRADIENTS:
        cotangents = [rng.standard_normal(out.shape).astype("float32") for out in call(rows[4])]
        named = {f"cot{i}": c for i, c in enumerate(cotangents)}
        np.savez(f"{folder}/grads.npz", **named, **gradients(model, rows[4], cotangents))
        keras.config.set_floatx("float64")
        keras.config.set_dtype_policy("float64")
        wide = builders()[name]()
        without_final_activation(wide)
        wide.set_weights(model.get_weights())
        np.savez(f"{folder}/grads64.npz", **gradients(wide, rows[4], cotangents))
        keras.config.set_floatx("float32")
        keras.config.set_dtype_policy("float32")
    with open(f"{folder}/model.json", "w") as f:
        f.write(model.to_json())
    model.save(f"{folder}/model.keras")
    model.save_weights(f"{folder}/model.weights.h5")
    facts = {"parameters": model.count_params(), "h5": reads_back(model, f"{folder}/model.h5", rows[batches[0]])}
    with open(f"{folder}/facts.json", "w") as f:
        json.dump(facts, f)
    print(name, facts, flush=True)


def without_final_activation(model):
    import keras

    for layer in model.layers:
        if getattr(layer, "activation", None) in (keras.activations.softmax, keras.activations.sigmoid):
            if any(layer.output is out for out in model.outputs):
                layer.activation = keras.activations.linear


def draw_weights(model, rng, training_pass):
    """Kernels keep the variance of what passes through them; normalisation statistics are those of a batch, then moved off them."""
    import keras
    import numpy as np

    for variable in model.weights:
        leaf, shape = variable.path.split("/")[-1], tuple(variable.shape)
        if "seed" in variable.path or "int" in str(variable.dtype):
            continue
        if leaf in ("gamma", "scale", "variance", "moving_variance"):
            value = rng.uniform(0.5, 1.5, shape)
        elif len(shape) >= 2 and "embedding" not in leaf:
            depthwise = "depthwise" in variable.path or "conv_dw" in variable.path or "dwconv" in variable.path
            value = rng.standard_normal(shape) * np.sqrt(1.6 / np.prod(shape[:2] if depthwise else shape[:-1]))
        else:
            value = 0.1 * rng.standard_normal(shape)
        variable.assign(value.astype("float32"))
    for layer in model.layers:
        if isinstance(layer, keras.layers.Normalization):
            layer.finalize_state()  # else it goes on with the statistics it was built with
    norms = [layer for layer in model.layers if isinstance(layer, keras.layers.BatchNormalization)]
    momenta = [layer.momentum for layer in norms]
    for layer in norms:
        layer.momentum = 0.0
    if norms:
        training_pass()
    for layer, momentum in zip(norms, momenta):
        layer.momentum = momentum
        mean, variance = np.asarray(layer.moving_mean), np.asarray(layer.moving_variance)
        layer.moving_mean.assign(mean + 0.1 * np.sqrt(variance) * rng.standard_normal(mean.shape))
        layer.moving_variance.assign(np.maximum(variance, 1e-6) * rng.uniform(0.7, 1.4, variance.shape))


def refuse_blind_values(model, name, outputs):
    """Rows that hardly differ, or an output that a zeroed kernel hardly moves, would let errors through."""
    import numpy as np

    want = [np.asarray(v) for v in outputs()]
    if max(np.abs(v - v[:1]).max() / np.abs(v).max() for v in want) < 0.01:
        sys.exit(f"{name}: the rows of the output are all but equal")
    kernels = [v for v in model.weights if v.path.endswith("kernel") and len(v.shape) >= 2]
    for kernel in kernels[:: max(1, len(kernels) // 3)]:
        kept = np.asarray(kernel)
        kernel.assign(np.zeros_like(kept))
        moved = max(np.abs(np.asarray(v) - w).max() / np.abs(w).max() for v, w in zip(outputs(), want))
        kernel.assign(kept)
        if not moved > 1e-3:
            sys.exit(f"{name}: zeroing {kernel.path} moves the output by {moved:.1g} of its scale")


def gradients(model, values, cotangents):
    """Gradients of the sum of out * cotangent, by `gin{i}` for floating inputs and `gw{j}` for trainable weights, in the model's precision."""
    import numpy as np
    import tensorflow as tf

    kind = model.compute_dtype
    tensors = [tf.constant(v.astype(kind) if v.dtype.kind == "f" else v) for v in values.values()]
    floating = {i: t for i, t in enumerate(tensors) if t.dtype.is_floating}
    with tf.GradientTape() as tape:
        tape.watch(list(floating.values()))
        outs = tf.nest.flatten(model(tensors if len(tensors) > 1 else tensors[0], training=False))
        total = sum(tf.reduce_sum(out * c.astype(kind)) for out, c in zip(outs, cotangents))
    weights = [variable.value for variable in model.trainable_weights]
    by_input, by_weight = tape.gradient(total, [list(floating.values()), weights], unconnected_gradients="zero")
    return {
        **{f"gin{i}": np.asarray(g) for i, g in zip(floating, by_input)},
        **{f"gw{j}": np.asarray(tf.convert_to_tensor(g)) for j, g in enumerate(by_weight)},
    }


def reads_back(model, path, values):
    """Writes the whole-model HDF5 file and tells whether Keras itself gets the same model out of it."""
    import keras
    import numpy as np
    import tensorflow as tf

    tensors = [tf.constant(v) for v in values.values()]
    packed = tensors if len(tensors) > 1 else tensors[0]
    try:
        model.save(path)
        again = keras.saving.load_model(path, compile=False)
        pairs = zip(tf.nest.flatten(model(packed)), tf.nest.flatten(again(packed)))
        return all(np.array_equal(a, b) for a, b in pairs)
    except Exception as error:  # Keras raises whatever the layer raises
        print(f"Keras cannot use {path}: {str(error).splitlines()[0]}", file=sys.stderr)
        return False


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out", nargs="?", default="target/zoo")
    parser.add_argument("names", nargs="*", help="default: the sixteen measured models")
    parser.add_argument("--batches", default="1,3,4,5")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--here", action="store_true", help="build the one model named in this very process")
    args = parser.parse_intermixed_args()
    if args.list:
        print("measured:", *MEASURED, "\nimported:", *IMPORTED)
        return
    batches = [int(n) for n in args.batches.split(",")]
    for name in args.names or MEASURED:
        folder = os.path.join(args.out, name)
        if args.here:
            os.makedirs(folder, exist_ok=True)
            make(name, folder, batches)
        elif not os.path.exists(f"{folder}/facts.json"):
            command = [sys.executable, __file__, args.out, name, "--here", "--batches", args.batches]
            subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
