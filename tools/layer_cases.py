#!/usr/bin/env python3
"""Makes conformance cases: small models around one layer each, with the values Keras computes for them.

    python tools/layer_cases.py OUT_DIR [--legacy] [--only TEXT] [--list]

The models come from the tables in `tools/cases/*.py`: `CASES` of Keras 3, `LEGACY_CASES` of tf-keras (made with --legacy), each a
dictionary from a name `Class_what` to a function of `keras.layers` and `keras` that returns a model. `INPUTS` may give the arrays of a
case, by the input's name, as functions of a random generator; other inputs are drawn by type, ids below what the model's embeddings and
encodings know. `CONSTANT` may name cases whose outputs are all equal by nature, `UNMOVED` those with a kernel that rightly has no effect.

A case is a folder with `model.keras` (legacy: `model.h5`), and `case.npz` with `in{i}` (i-th of `model.inputs`), `out{i}` (outputs of the
inference call, flattened), `cot{i}`, `gin{i}` and `gw{j}` (cotangents of floating outputs, and the gradients of the sum of out * cotangent
to floating inputs and to `model.trainable_weights[j]`) and, where training has nothing random, `tout{i}` and `tw{j}` (outputs of the
training call, and `model.weights[j]` after it). bfloat16 is stored as float32. `index.json` lists the cases with the layer each is named
after, the classes in its model and the precision it is computed in. `layer_check.py` holds Intwain against them.

A case that could not show an error is refused: equal outputs, or a kernel that can be zeroed without effect.
"""
import argparse
import importlib.util
import json
import os
import sys
import traceback
import zlib

LAYER_BATCH, OPEN_EXTENT = 4, 6


def tables(kind):
    """The rows of one kind from all files of `cases`, by name: (area, builder, inputs); the cases exempt from a check, by check; and names that
    are there twice."""
    rows, exempt, clashes = {}, {"CONSTANT": set(), "UNMOVED": set()}, []
    folder = os.path.join(os.path.dirname(os.path.abspath(__file__)), "cases")
    for file in sorted(os.listdir(folder)):
        if not file.endswith(".py") or file.startswith("_"):
            continue
        spec = importlib.util.spec_from_file_location(f"cases_{file[:-3]}", os.path.join(folder, file))
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        inputs = getattr(module, "INPUTS", {})
        unknown = set(inputs) - set(getattr(module, "CASES", {})) - set(getattr(module, "LEGACY_CASES", {}))
        if unknown:
            sys.exit(f"cases/{file}: INPUTS names no case: {', '.join(sorted(unknown))}")
        for name, build in getattr(module, kind, {}).items():
            if name in rows:
                clashes.append(f"cases/{file}: {name} is also in cases/{rows[name][0]}.py")
                continue
            rows[name] = (file[:-3], build, inputs.get(name, {}))
        for check, names in exempt.items():
            names.update(getattr(module, check, ()))
    return rows, exempt, clashes


class Worthless(Exception):
    """The values of a case could not show an error."""


class Maker:
    """Keras 3 or tf-keras, and what differs between them."""

    def __init__(self, legacy):
        os.environ.setdefault("KERAS_BACKEND", "tensorflow")
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        if legacy:
            import tf_keras as keras
        else:
            import keras
        import numpy
        import tensorflow

        self.legacy, self.keras, self.np, self.tf = legacy, keras, numpy, tensorflow

    def case(self, name, build, drawn, folder, exempt):
        """Makes one case and returns its line of the index."""
        np, keras = self.np, self.keras
        keras.backend.clear_session() if self.legacy else keras.utils.clear_session()
        seed = zlib.crc32(name.encode())
        keras.utils.set_random_seed(seed % 2**31)
        rng = np.random.default_rng(seed)
        model = build(keras.layers, keras)
        arrays = self.inputs(model, drawn, rng)
        tensors = [self.tf.constant(a) for a in arrays]
        self.draw_weights(model, rng, tensors)
        state = [np.asarray(w) for w in model.weights]
        saved = os.path.join(folder, "model.h5" if self.legacy else "model.keras")
        model.save(saved)

        outputs, values = self.gradients(model, tensors, rng)
        self.restore(model, state)
        if name not in exempt["CONSTANT"]:
            refuse_constant(np, outputs)
        if name not in exempt["UNMOVED"]:
            self.refuse_unmoved(model, tensors, state, outputs)
        once, after = self.train(model, tensors, state)
        again, _ = self.train(model, tensors, state)
        fixed = all(np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(once, again))
        if fixed:
            values.update({f"tout{i}": v for i, v in enumerate(once)})
            values.update({f"tw{j}": v for j, v in enumerate(after)})
        values.update({f"in{i}": a for i, a in enumerate(arrays)})
        values.update({f"out{i}": v for i, v in enumerate(outputs)})
        np.savez(os.path.join(folder, "case.npz"), **values)
        parts = [part for layer in model._flatten_layers() for part in (layer, *getattr(layer, "operations", ()))]
        classes = sorted({self.class_of(part) for part in parts if part is not model})
        return {
            "case": name,
            "layer": name.split("_")[0],
            "classes": classes,
            "precision": self.precision(model),
            "random_in_training": not fixed,
            "legacy": self.legacy,
        }

    def class_of(self, layer):
        module = type(layer).__module__
        return ("ops." if module.startswith("keras.src.ops") else "") + type(layer).__name__

    def precision(self, model):
        kinds = {str(getattr(layer, "compute_dtype", None)) for layer in model._flatten_layers()}
        return next((k for k in ("bfloat16", "float16", "float32") if k in kinds), "float64")

    def inputs(self, model, drawn, rng):
        np, L = self.np, self.keras.layers
        layers = list(model._flatten_layers())
        known = [l.input_dim for l in layers if isinstance(l, L.Embedding)]
        known += [l.num_tokens for l in layers if isinstance(l, L.CategoryEncoding) and l.num_tokens]
        names = list(model.input_names) if self.legacy else [t._keras_history.operation.name for t in model.inputs]
        unknown = set(drawn) - set(names)
        if unknown:
            raise ValueError(f"INPUTS has {sorted(unknown)}, the model's inputs are {names}")
        arrays = []
        for name, tensor in zip(names, model.inputs):
            shape = [extent or (OPEN_EXTENT if axis else LAYER_BATCH) for axis, extent in enumerate(tensor.shape)]
            kind = self.tf.as_dtype(tensor.dtype).as_numpy_dtype
            if name in drawn:
                array = np.asarray(drawn[name](rng)).astype(kind)
            elif kind == np.bool_:
                array = rng.integers(0, 2, shape).astype(kind)
            elif np.issubdtype(kind, np.integer) or self.reaches(model, tensor, L.Embedding):
                array = rng.integers(0, min(known or [8]), shape).astype(kind)
            else:
                array = rng.standard_normal(shape).astype(kind)
                for layer in self.reaches(model, tensor, L.Masking):
                    steps = rng.uniform(size=shape[:-1]) < 0.35
                    array[steps] = layer.mask_value
            arrays.append(array)
        return arrays

    def reaches(self, model, tensor, class_):
        """The layers of a class that take a model input."""
        found = []
        for layer in model._flatten_layers():
            if isinstance(layer, class_):
                nodes = layer._inbound_nodes
                taken = [t for node in nodes for t in (self.tf.nest.flatten(node.input_tensors))]
                # A Sequential calls its layers on its own inputs, which are not the model's.
                if any(t is tensor for t in taken) or (len(model.inputs) == 1 and layer is model.layers[0]):
                    found.append(layer)
        return found

    def call(self, model, tensors, training):
        np, tf = self.np, self.tf
        struct = getattr(model, "_nested_inputs" if self.legacy else "_inputs_struct", None)
        if struct is not None and not hasattr(struct, "shape"):
            packed = tf.nest.pack_sequence_as(struct, tensors) if self.legacy else self.keras.tree.pack_sequence_as(struct, tensors)
        else:
            packed = tensors if len(tensors) > 1 else tensors[0]
        return tf.nest.flatten(model(packed, training=training))

    def plain(self, value):
        value = self.tf.convert_to_tensor(value)
        return self.np.asarray(self.tf.cast(value, "float32") if value.dtype == self.tf.bfloat16 else value)

    def restore(self, model, state):
        for weight, value in zip(model.weights, state):
            weight.assign(value)

    def train(self, model, tensors, state):
        outputs = [self.plain(v) for v in self.call(model, tensors, True)]
        after = [self.plain(w) for w in model.weights]
        self.restore(model, state)
        return outputs, after

    def gradients(self, model, tensors, rng):
        tf, np = self.tf, self.np
        with tf.GradientTape(persistent=True, watch_accessed_variables=False) as tape:
            watched = [w if self.legacy else w.value for w in model.trainable_weights]
            for tensor in [t for t in tensors if t.dtype.is_floating] + watched:
                tape.watch(tensor)
            outputs = self.call(model, tensors, False)
            floating = {i: v for i, v in enumerate(outputs) if v.dtype.is_floating}
            cots = {i: rng.standard_normal(v.shape).astype("float32") for i, v in floating.items()}
            wide = "float64" if any(v.dtype == tf.float64 for v in floating.values()) else "float32"
            total = sum(tf.reduce_sum(tf.cast(v, wide) * cots[i].astype(wide)) for i, v in floating.items())
        values = {}
        if floating and self.differentiable(tape, total, tensors):
            values.update({f"cot{i}": c.astype(self.plain(floating[i]).dtype) for i, c in cots.items()})

            def gradient(source):
                got = tape.gradient(total, source)
                return np.zeros(source.shape, self.plain(source).dtype) if got is None else self.plain(got)

            values.update({f"gin{i}": gradient(t) for i, t in enumerate(tensors) if t.dtype.is_floating})
            values.update({f"gw{j}": gradient(w) for j, w in enumerate(watched)})
        return [self.plain(v) for v in outputs], values

    def differentiable(self, tape, total, tensors):
        """Whether TensorFlow has gradients of every operation."""
        try:
            tape.gradient(total, tensors)
            return True
        except LookupError:
            return False

    def draw_weights(self, model, rng, tensors):
        """Kernels keep the variance of what passes through them; statistics are those of the inputs, then moved off them."""
        np, L = self.np, self.keras.layers
        for weight in model.weights:
            path = weight.name.split(":")[0] if self.legacy else weight.path
            kind = self.tf.as_dtype(weight.dtype)
            if not kind.is_floating or "seed" in path:
                continue
            leaf, shape = path.split("/")[-1], tuple(weight.shape)
            if "variance" in leaf or leaf in ("gamma", "scale"):
                value = rng.uniform(0.5, 1.5, shape)
            elif len(shape) >= 2:
                inputs = 1.6 if "embedding" in leaf else max(1, np.prod(shape[:-2] if "depthwise" in path else shape[:-1]))
                value = rng.standard_normal(shape) * np.sqrt(1.6 / inputs)
            else:
                value = 0.3 * rng.standard_normal(shape)
            weight.assign(value.astype("float32" if kind == self.tf.bfloat16 else kind.as_numpy_dtype))
        layers = list(model._flatten_layers())
        for layer in layers:
            if isinstance(layer, L.Normalization) and hasattr(layer, "finalize_state"):
                layer.finalize_state()
        norms = [l for l in layers if isinstance(l, L.BatchNormalization)]
        momenta = [l.momentum for l in norms]
        for layer in norms:
            layer.momentum = 0.0
        if norms:
            self.call(model, tensors, True)
        for layer, momentum in zip(norms, momenta):
            layer.momentum = momentum
            mean, variance = np.asarray(layer.moving_mean), np.asarray(layer.moving_variance)
            layer.moving_mean.assign(mean + 0.1 * np.sqrt(variance) * rng.standard_normal(mean.shape))
            layer.moving_variance.assign(np.maximum(variance, 1e-3) * rng.uniform(0.7, 1.4, variance.shape))

    def refuse_unmoved(self, model, tensors, state, outputs):
        np = self.np
        for index, weight in enumerate(model.weights):
            path = weight.name.split(":")[0] if self.legacy else weight.path
            if not path.endswith("kernel") or len(weight.shape) < 2:
                continue
            weight.assign(np.zeros(weight.shape, "float32"))
            moved = [self.plain(v) for v in self.call(model, tensors, False)]
            self.restore(model, state)
            if all(np.allclose(a, b, rtol=1e-3, atol=1e-6, equal_nan=True) for a, b in zip(moved, outputs)):
                raise Worthless(f"zeroing {path} does not move the outputs")


def refuse_constant(np, outputs):
    for i, value in enumerate(outputs):
        if value.dtype.kind == "f" and np.isnan(value).all():
            raise Worthless(f"output {i} is nothing but NaN")
    if all(value.size > 1 and (value == value.flat[0]).all() for value in outputs):
        raise Worthless("all elements of the outputs are equal")


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("out")
    parser.add_argument("--legacy", action="store_true", help="the cases of tf-keras")
    parser.add_argument("--only", default="", help="names that contain this text")
    parser.add_argument("--area", default="", help="only the cases of tools/cases/AREA.py")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    rows, exempt, clashes = tables("LEGACY_CASES" if args.legacy else "CASES")
    rows = {n: r for n, r in rows.items() if args.only in n and args.area in ("", r[0])}
    if args.list:
        print(*(f"{area}: {name}" for name, (area, _, _) in rows.items()), sep="\n")
        return
    maker, lines, failed = Maker(args.legacy), [], len(clashes)
    for clash in clashes:
        print(f"FAIL {clash}")
    for name, (area, build, drawn) in rows.items():
        folder = os.path.join(args.out, name)
        os.makedirs(folder, exist_ok=True)
        for stale in os.listdir(folder):
            os.remove(os.path.join(folder, stale))
        try:
            lines.append({"area": area, **maker.case(name, build, drawn, folder, exempt)})
        except Exception as error:  # a table's mistakes are whatever Keras raises
            failed += 1
            where = [f for f in traceback.extract_tb(error.__traceback__) if "/cases/" in f.filename]
            line = f" (line {where[-1].lineno})" if where else ""
            said = (str(error).strip().splitlines() or [""])[0]
            print(f"FAIL cases/{area}.py{line} {name}: {type(error).__name__}: {said[:300]}", flush=True)
            for left in os.listdir(folder):
                os.remove(os.path.join(folder, left))
            os.rmdir(folder)
    with open(os.path.join(args.out, "index.json"), "w") as file:
        json.dump(lines, file, indent=1)
    print(f"{len(lines)} cases made, {failed} refused")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
