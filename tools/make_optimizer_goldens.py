#!/usr/bin/env python3
"""Writes `tests/goldens/optimizers/`: what Keras's optimizers and schedules compute.

steps.jsonl: a first line with the variables' `paths`, `shapes` and values (`start`) and with sets of `gradients`, a list a step; then one case a
line: `name`, `dtype`, `config` (as Keras serialises it), the name of its set of `gradients`, the positions of variables without one (`missing`),
`slots` (path, type and shape of the optimizer's variables in Keras's order), `start` (their values before the first step) and `after` (for each
step the values of variables and slots after it). `nonneg` are the positions of variables with that constraint. Numbers of the first line are
float64 and are rounded to a case's type.

schedules.jsonl: `config`, `steps` and `rates`.

files/: models saved after some steps, and continued.jsonl with what becomes of them in one more: `file`, `gradients`, the slots
`before` the step, and `after` as above.

Numbers are written so that they read back exactly.
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
from keras.src.optimizers.lamb import Lamb

O = keras.optimizers
S = keras.optimizers.schedules
FOLDER = os.path.join(os.path.dirname(__file__), "..", "tests", "goldens", "optimizers")
STEPS = 6
PATHS = ["dense/kernel", "dense/bias"]
SHAPES = [(3, 2), (3,)]


def listed():
    """Name, what makes the optimizer, and what else the case is."""
    cases = [
        ("sgd", lambda: O.SGD(0.1)),
        ("sgd momentum", lambda: O.SGD(0.1, momentum=0.9)),
        ("sgd nesterov decayed", lambda: O.SGD(0.1, momentum=0.9, nesterov=True, weight_decay=0.01)),
        ("sgd clipnorm", lambda: O.SGD(0.1, clipnorm=0.5)),
        ("sgd global_clipnorm", lambda: O.SGD(0.1, momentum=0.5, global_clipnorm=0.5)),
        ("sgd global_clipnorm above", lambda: O.SGD(0.1, global_clipnorm=100.0)),
        ("sgd clipvalue", lambda: O.SGD(0.1, clipvalue=0.3)),
        ("sgd clipnorm 0", lambda: O.SGD(0.1, clipnorm=0.0)),
        ("sgd ema", lambda: O.SGD(0.1, momentum=0.9, use_ema=True, ema_momentum=0.8)),
        ("sgd ema overwriting", lambda: O.SGD(0.1, use_ema=True, ema_momentum=0.7, ema_overwrite_frequency=2)),
        ("sgd accumulating", lambda: O.SGD(0.1, momentum=0.9, gradient_accumulation_steps=2, weight_decay=0.02)),
        ("adam accumulating clipped", lambda: O.Adam(0.05, gradient_accumulation_steps=3, clipnorm=0.4)),
        ("adam accumulating ema",
         lambda: O.Adam(0.05, gradient_accumulation_steps=2, use_ema=True, ema_momentum=0.6, ema_overwrite_frequency=2)),
        ("sgd loss_scale_factor", lambda: O.SGD(0.1, momentum=0.9, loss_scale_factor=8.0)),
        ("sgd schedule accumulating",
         lambda: O.SGD(S.PiecewiseConstantDecay([1, 3], [0.1, 0.5, 0.02]), gradient_accumulation_steps=2)),
        ("rmsprop", lambda: O.RMSprop(0.05)),
        ("rmsprop momentum", lambda: O.RMSprop(0.05, rho=0.8, momentum=0.9, epsilon=1e-4)),
        ("rmsprop centered", lambda: O.RMSprop(0.05, centered=True, momentum=0.5, weight_decay=0.1)),
        ("adam", lambda: O.Adam(0.05)),
        ("adam amsgrad", lambda: O.Adam(0.05, beta_1=0.8, beta_2=0.9, epsilon=1e-3, amsgrad=True)),
        ("adam schedule", lambda: O.Adam(S.ExponentialDecay(0.05, 4, 0.5), weight_decay=0.02, global_clipnorm=1.0)),
        ("adamw", lambda: O.AdamW(0.05)),
        ("adamw amsgrad", lambda: O.AdamW(0.05, weight_decay=0.1, amsgrad=True)),
        ("adadelta", lambda: O.Adadelta(1.0)),
        ("adadelta options", lambda: O.Adadelta(0.5, rho=0.7, epsilon=1e-3)),
        ("adagrad", lambda: O.Adagrad(0.1)),
        ("adagrad options", lambda: O.Adagrad(0.1, initial_accumulator_value=0.5, epsilon=1e-2)),
        ("adamax", lambda: O.Adamax(0.05)),
        ("adamax options", lambda: O.Adamax(0.05, beta_1=0.7, beta_2=0.8, epsilon=1e-3, weight_decay=0.1)),
        ("nadam", lambda: O.Nadam(0.05)),
        ("nadam options", lambda: O.Nadam(0.05, beta_1=0.7, beta_2=0.8, epsilon=1e-3, use_ema=True)),
        ("nadam accumulating", lambda: O.Nadam(0.05, gradient_accumulation_steps=2)),
        ("ftrl", lambda: O.Ftrl(0.1)),
        ("ftrl options",
         lambda: O.Ftrl(0.1, learning_rate_power=-0.7, initial_accumulator_value=0.3, l1_regularization_strength=0.05,
                        l2_regularization_strength=0.02, l2_shrinkage_regularization_strength=0.03, beta=0.4)),
        ("lion", lambda: O.Lion(0.01)),
        ("lion options", lambda: O.Lion(0.01, beta_1=0.6, beta_2=0.7, weight_decay=0.3)),
        ("lamb", lambda: Lamb(0.05)),
        ("lamb options", lambda: Lamb(0.05, beta_1=0.7, beta_2=0.8, epsilon=1e-3, weight_decay=0.1)),
        ("adafactor", lambda: O.Adafactor(0.5)),
        ("adafactor options",
         lambda: O.Adafactor(0.05, beta_2_decay=-0.5, epsilon_1=1e-8, epsilon_2=1e-2, clip_threshold=0.5, relative_step=False)),
        ("adafactor schedule", lambda: O.Adafactor(S.CosineDecay(0.9, 10))),
        ("muon", lambda: O.Muon(0.05)),
        ("muon options",
         lambda: O.Muon(0.05, adam_beta_1=0.8, adam_weight_decay=None, weight_decay=0.1, momentum=0.8, nesterov=False, ns_steps=3,
                        rms_rate=None, adam_lr_ratio=0.5)),
        ("muon excluded", lambda: O.Muon(0.05, exclude_layers=["dense"])),
        ("schedule_free_adamw", lambda: O.ScheduleFreeAdamW(0.05)),
        ("schedule_free_adamw warmup", lambda: O.ScheduleFreeAdamW(0.05, beta_1=0.8, warmup_steps=4, weight_decay=0.1)),
        ("loss scale", lambda: O.LossScaleOptimizer(O.SGD(0.1, momentum=0.9), initial_scale=16.0, dynamic_growth_steps=2)),
        ("loss scale adam",
         lambda: O.LossScaleOptimizer(O.Adam(S.InverseTimeDecay(0.05, 2, 0.5), use_ema=True), initial_scale=4.0, dynamic_growth_steps=3)),
        ("loss scale accumulating",
         lambda: O.LossScaleOptimizer(O.Adam(0.05, gradient_accumulation_steps=2), initial_scale=4.0, dynamic_growth_steps=1)),
    ]
    for name, make in cases:
        yield name, make, {}
    yield "sgd constraints", lambda: O.SGD(0.1, use_ema=True, ema_momentum=0.5, ema_overwrite_frequency=3), {"nonneg": [0]}
    yield "adam without a gradient", lambda: O.Adam(0.05, weight_decay=0.1, use_ema=True), {"missing": [1]}


def numbers(array):
    array = np.asarray(array).reshape(-1)
    if array.dtype.kind in "iu":
        return [int(x) for x in array]
    words = {"inf": "inf", "-inf": "-inf", "nan": "nan"}
    return [words.get(str(x)) or float(str(x)) for x in array]


def gradient_sets():
    """Six steps, and the same with overflows for losses that are scaled."""
    rng = np.random.default_rng(7)
    plain = [[rng.normal(0.0, 0.7, shape).astype("float32").astype("float64") for shape in SHAPES] for _ in range(STEPS)]
    overflowing = [[4 * g for g in step] for step in plain]
    overflowing[1][0][2, 1] = np.inf
    overflowing[4][1][0] = np.nan
    return {"plain": plain, "overflowing": overflowing}


def starts():
    rng = np.random.default_rng(3)
    return [rng.normal(0.0, 1.0, shape).astype("float32").astype("float64") for shape in SHAPES]


def steps_case(name, make, more, dtype):
    keras.backend.clear_session()
    keras.config.set_floatx(dtype)
    variables = []
    for path, start in zip(PATHS, starts()):
        scope, last = path.split("/")
        with keras.name_scope(scope):
            v = keras.Variable(start.astype(dtype), dtype=dtype, name=last)
        if len(variables) in more.get("nonneg", []):
            v.constraint = keras.constraints.NonNeg()
        assert v.path == path, v.path
        variables.append(v)
    optimizer = make()
    config = O.serialize(optimizer)
    optimizer.build(variables)
    slots = [{"path": v.path, "dtype": str(v.dtype), "shape": list(v.shape)} for v in optimizer.variables]
    start = [numbers(v) for v in optimizer.variables]
    used = "overflowing" if name.startswith("loss scale") else "plain"
    missing, after = more.get("missing", []), []
    for given in gradient_sets()[used]:
        tensors = [None if i in missing else tf.constant(g.astype(dtype)) for i, g in enumerate(given)]
        optimizer.apply(tensors, variables)
        after.append([numbers(v) for v in variables + optimizer.variables])
    case = {"name": name, "dtype": dtype, "config": config, "gradients": used, **more}
    return {**case, "slots": slots, "start": start, "after": after}


def schedules():
    """In float32, which they are computed in whatever Keras's float type is."""
    keras.config.set_floatx("float32")
    every = [
        S.ExponentialDecay(0.1, 10, 0.5), S.ExponentialDecay(0.1, 4, 0.9, staircase=True),
        S.InverseTimeDecay(0.1, 10, 0.5), S.InverseTimeDecay(0.1, 3, 0.25, staircase=True),
        S.PiecewiseConstantDecay([10, 20], [1.0, 0.5, 0.1]), S.PiecewiseConstantDecay([5], [0.3, 0.7]),
        S.PiecewiseConstantDecay([1, 5, 9, 20], [1.0, 0.5, 0.25, 0.1, 0.05]),
        S.PolynomialDecay(0.1, 10, 0.01, power=2.0), S.PolynomialDecay(0.1, 10, 0.01, cycle=True), S.PolynomialDecay(0.3, 7),
        S.CosineDecay(0.1, 10), S.CosineDecay(0.1, 20, alpha=0.1), S.CosineDecay(0.0, 10, warmup_target=0.1, warmup_steps=5),
        S.CosineDecay(0.02, 15, alpha=0.05, warmup_target=0.2, warmup_steps=3),
        S.CosineDecayRestarts(0.1, 10), S.CosineDecayRestarts(0.1, 5, t_mul=1.0, m_mul=0.8, alpha=0.1),
        S.CosineDecayRestarts(0.1, 4, t_mul=1.5, m_mul=0.9),
    ]
    steps = list(range(0, 32)) + [50, 100, 1000]
    for schedule in every:
        rates = [numbers(schedule(tf.constant(t, "int64")))[0] for t in steps]
        yield {"config": S.serialize(schedule), "steps": steps, "rates": rates}


def saved():
    """Files with the state of an optimizer, and the step after it."""
    files = [
        ("adam.keras", lambda: O.Adam(0.05, amsgrad=True, use_ema=True, ema_overwrite_frequency=3)),
        ("nadam.keras", lambda: O.Nadam(0.05)),
        ("accumulating.keras", lambda: O.SGD(S.ExponentialDecay(0.1, 4, 0.5), momentum=0.9, gradient_accumulation_steps=2)),
        ("adafactor.keras", lambda: O.Adafactor(0.05)),
        ("muon.keras", lambda: O.Muon(0.05)),
        ("scaled.keras", lambda: O.LossScaleOptimizer(O.RMSprop(0.05, momentum=0.5), initial_scale=16.0, dynamic_growth_steps=3)),
        ("scaled.h5", lambda: O.LossScaleOptimizer(O.Adam(0.05), initial_scale=16.0, dynamic_growth_steps=3)),
        ("ftrl.h5", lambda: O.Ftrl(0.05)),
    ]
    keras.config.set_floatx("float32")
    os.makedirs(os.path.join(FOLDER, "files"), exist_ok=True)
    for file, make in files:
        keras.backend.clear_session()
        rng = np.random.default_rng(11)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2, name="dense")], name="model")
        model.layers[0].set_weights([rng.normal(size=v.shape) for v in model.weights])
        model.compile(make(), "mse")
        x = rng.normal(size=(7, 3)).astype("float32")
        model.fit(x, rng.normal(size=(7, 2)), batch_size=1, shuffle=False, verbose=0)
        model.save(os.path.join(FOLDER, "files", file))
        before = [numbers(v) for v in model.optimizer.variables]
        given = [rng.normal(size=v.shape).astype("float32") for v in model.trainable_variables]
        model.optimizer.apply([tf.constant(g) for g in given], model.trainable_variables)
        after = [numbers(v) for v in model.trainable_variables + model.optimizer.variables]
        yield {"file": file, "gradients": [numbers(g) for g in given], "before": before, "after": after}


def main():
    os.makedirs(FOLDER, exist_ok=True)
    with open(os.path.join(FOLDER, "steps.jsonl"), "w") as out:
        sets = {name: [[numbers(g) for g in step] for step in steps] for name, steps in gradient_sets().items()}
        head = {"paths": PATHS, "shapes": SHAPES, "start": [numbers(v) for v in starts()], "gradients": sets}
        out.write(json.dumps(head) + "\n")
        for dtype in ("float32", "float64"):
            for name, make, more in listed():
                out.write(json.dumps(steps_case(name, make, more, dtype)) + "\n")
    with open(os.path.join(FOLDER, "schedules.jsonl"), "w") as out:
        for case in schedules():
            out.write(json.dumps(case) + "\n")
    with open(os.path.join(FOLDER, "continued.jsonl"), "w") as out:
        for case in saved():
            out.write(json.dumps(case) + "\n")
    print(FOLDER, file=sys.stderr)


if __name__ == "__main__":
    main()
