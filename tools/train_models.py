#!/usr/bin/env python3
"""Models that are compiled for training, data for them, and what Keras makes of both in ten steps.

    python tools/train_models.py DIR NAME... [--optimizers sgd,adam] [--floatx float64] [--steps 10] [--batch 4] [--reference]

DIR/NAME-FLOATX gets `data.npz` (x0, …, y0, … of all steps, one after the other) and, for each optimizer, `OPTIMIZER.keras`, the compiled
model. With `--reference` also `OPTIMIZER.npz` (`loss` of each step) and `OPTIMIZER.weights.h5`, the weights behind the last, and the same as
`OPTIMIZER.reversed.…` for batches with their rows reversed, which shows how far Keras is from itself.

`lenet_dropout` is the zoo's lenet; in `lenet` nothing is dropped, since random numbers are not Keras's. A file that is there is not made again.
"""
import argparse
import os
import subprocess
import sys

OPTIMIZERS = {
    "sgd": ("SGD", {"learning_rate": 0.01, "momentum": 0.9}),
    "adam": ("Adam", {}), "adamw": ("AdamW", {}), "rmsprop": ("RMSprop", {}), "adagrad": ("Adagrad", {}), "lion": ("Lion", {}),
}
COMMON = list(OPTIMIZERS)
# Every other class, options that change the formula, and every schedule; the latter are arguments of the rate. With Adafactor's own epsilon_1
# its moments of units that never fire underflow in float32, in Keras too, and are NaN divided by.
OPTIMIZERS |= {
    "nesterov": ("SGD", {"learning_rate": 0.01, "momentum": 0.9, "nesterov": True}),
    "amsgrad": ("Adam", {"amsgrad": True}), "centered": ("RMSprop", {"centered": True, "momentum": 0.5}),
    "adadelta": ("Adadelta", {"learning_rate": 0.5}), "adafactor": ("Adafactor", {"epsilon_1": 1e-18}), "adamax": ("Adamax", {}), "ftrl": ("Ftrl", {}),
    "lamb": ("Lamb", {}), "muon": ("Muon", {}), "nadam": ("Nadam", {}), "schedule_free": ("ScheduleFreeAdamW", {}),
    "clipped": ("Adam", {"global_clipnorm": 0.1, "weight_decay": 0.01}), "averaged": ("Adam", {"use_ema": True, "ema_overwrite_frequency": 3}),
    "accumulated": ("Adam", {"gradient_accumulation_steps": 3}),
    "cosine": ("SGD", {"learning_rate": ("CosineDecay", {"initial_learning_rate": 0.01, "decay_steps": 6, "warmup_target": 0.1, "warmup_steps": 3})}),
    "restarts": ("SGD", {"learning_rate": ("CosineDecayRestarts", {"initial_learning_rate": 0.1, "first_decay_steps": 3})}),
    "exponential": ("SGD", {"learning_rate": ("ExponentialDecay", {"initial_learning_rate": 0.1, "decay_steps": 3, "decay_rate": 0.5})}),
    "inverse": ("SGD", {"learning_rate": ("InverseTimeDecay", {"initial_learning_rate": 0.1, "decay_steps": 3, "decay_rate": 0.5, "staircase": True})}),
    "piecewise": ("SGD", {"learning_rate": ("PiecewiseConstantDecay", {"boundaries": [2, 5], "values": [0.1, 0.05, 0.01]})}),
    "polynomial": ("SGD", {"learning_rate": ("PolynomialDecay", {"initial_learning_rate": 0.1, "decay_steps": 4, "power": 2.0, "cycle": True})}),
}
CLASSES, YES_NO, VALUES = "SparseCategoricalCrossentropy", "BinaryCrossentropy", "MeanSquaredError"
LOSSES = {
    "mlp": [CLASSES], "lenet": [CLASSES], "lenet_dropout": [CLASSES], "resnet50": [CLASSES], "unet": [YES_NO], "vit": [CLASSES],
    "gpt": [CLASSES], "lstm": [YES_NO], "two_tower": [YES_NO, VALUES], "dlrm": [YES_NO],
}


def folder(out, name, floatx, steps, batch):
    return os.path.join(out, f"{name}-{floatx}-{steps}x{batch}")


def ensure(out, names, optimizers, floatx="float32", steps=10, batch=4, reference=False):
    """Makes what is not there, in one process a model."""
    for name in names:
        place = folder(out, name, floatx, steps, batch)
        ends = [".reversed.weights.h5"] if reference else [".keras"]
        missing = [o for o in optimizers if not all(os.path.exists(f"{place}/{o}{e}") for e in ends)]
        if missing:
            words = [sys.executable, __file__, out, name, "--optimizers", ",".join(missing), "--floatx", floatx, "--steps", str(steps)]
            subprocess.run([*words, "--batch", str(batch), "--here", *(["--reference"] if reference else [])], check=True)


def build(name):
    """The model, the same at every call, with weights that let each layer have a visible effect."""
    import keras
    import numpy as np
    import zoo

    keras.utils.set_random_seed(1)
    model = zoo.builders()[name.removesuffix("_dropout")]()
    zoo.without_final_activation(model)
    if not name.endswith("_dropout"):
        for layer in model.layers:
            if isinstance(layer, keras.layers.Dropout):
                layer.rate = 0.0
    rng = np.random.default_rng(sum(map(ord, name)))
    inputs, _ = draw(model, [], rng, 4)
    zoo.draw_weights(model, rng, lambda: model(inputs if len(inputs) > 1 else inputs[0], training=True))
    return model


def draw(model, losses, rng, rows):
    import keras

    vocabulary = [layer.input_dim for layer in model._flatten_layers() if isinstance(layer, keras.layers.Embedding)]
    x, y = [], []
    for tensor in model.inputs:
        shape = (rows, *tensor.shape[1:])
        whole = "int" in tensor.dtype
        x.append((rng.integers(0, min(vocabulary), shape) if whole else rng.standard_normal(shape)).astype(tensor.dtype))
    for tensor, loss in zip(model.outputs, losses):
        shape = (rows, *tensor.shape[1:])
        if loss == CLASSES:
            y.append(rng.integers(0, shape[-1], shape[:-1]).astype("int32"))
        else:
            y.append((rng.integers(0, 2, shape) if loss == YES_NO else rng.standard_normal(shape)).astype("float32"))
    return x, y


def compiled(name, optimizer):
    import keras

    model = build(name)
    kind, config = OPTIMIZERS[optimizer]
    schedule = config.get("learning_rate")
    if isinstance(schedule, tuple):
        config = {**config, "learning_rate": getattr(keras.optimizers.schedules, schedule[0])(**schedule[1])}
    losses = [getattr(keras.losses, k)(**({} if k == VALUES else {"from_logits": True})) for k in LOSSES[name]]
    model.compile(getattr(keras.optimizers, kind)(**config), losses if len(losses) > 1 else losses[0])
    if kind == "ScheduleFreeAdamW":
        # Built by `fit`, it begins with zeros in place of the variables.
        model.optimizer.build(model.trainable_variables)
    return model


def make(place, name, optimizers, floatx, steps, batch, reference):
    import keras
    import numpy as np

    keras.config.set_floatx(floatx)
    os.makedirs(place, exist_ok=True)
    x, y = draw(build(name), LOSSES[name], np.random.default_rng(7), steps * batch)
    arrays = {f"x{i}": v for i, v in enumerate(x)} | {f"y{i}": v for i, v in enumerate(y)}
    np.savez(f"{place}/data.npz", **arrays)
    pack = lambda values: values if len(values) > 1 else values[0]
    for optimizer in optimizers:
        model = compiled(name, optimizer)
        model.save(f"{place}/{optimizer}.keras")
        if not reference:
            continue
        for suffix, order in (("", 1), (".reversed", -1)):
            model = compiled(name, optimizer)
            losses = []
            for k in range(steps):
                rows = [[v[k * batch:(k + 1) * batch][::order] for v in values] for values in (x, y)]
                losses.append(float(model.train_on_batch(*map(pack, rows), return_dict=True)["loss"]))
                model.reset_metrics()
            # As `fit` ends: averages take the place of the variables.
            model.optimizer.finalize_variable_values(model.trainable_variables)
            np.savez(f"{place}/{optimizer}{suffix}.npz", loss=np.array(losses, "float64"))
            model.save_weights(f"{place}/{optimizer}{suffix}.weights.h5")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("names", nargs="+", choices=list(LOSSES))
    parser.add_argument("--optimizers", default="sgd,adam")
    parser.add_argument("--floatx", default="float32")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--reference", action="store_true", help="let Keras train, too")
    parser.add_argument("--here", action="store_true", help="make the one model named in this very process")
    args = parser.parse_args()
    optimizers = args.optimizers.split(",")
    if not args.here:
        ensure(args.out, args.names, optimizers, args.floatx, args.steps, args.batch, args.reference)
        return
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    name = args.names[0]
    make(folder(args.out, name, args.floatx, args.steps, args.batch), name, optimizers, args.floatx, args.steps, args.batch, args.reference)


if __name__ == "__main__":
    main()
