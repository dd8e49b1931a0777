#!/usr/bin/env python3
"""Holds what Intwain counts in every model of keras.applications against what Keras counts.

    python tools/applications.py OUT_DIR [NAME ...] [--binary target/release/intwain] [--small]

For each constructor (weights=None) OUT_DIR receives NAME.json, the architecture, and NAME.facts.json: parameters, trainable and not, output
shapes, and parameters of each layer. They are made when they are not there, in one process per model, which keeps the memory of one model.
`inspect --layers --json` has to give the same numbers. --small takes three small ones.

The logits of one model per family are compared by `zoo_check.py`; a family that `zoo.py` has no model of fails here.
"""
import argparse
import json
import os
import subprocess
import sys

SMALL = "MobileNetV2 EfficientNetB0 DenseNet121".split()
# The modules of keras.applications and the models of zoo.py that stand for them.
FAMILIES = {
    "convnext": "convnexttiny", "densenet": "densenet121", "efficientnet": "efficientnetb0", "efficientnet_v2": "efficientnetv2b0",
    "inception_resnet_v2": "inceptionresnetv2", "inception_v3": "inceptionv3", "mobilenet": "mobilenet", "mobilenet_v2": "mobilenetv2",
    "mobilenet_v3": "mobilenetv3", "nasnet": "nasnetmobile", "resnet": "resnet50", "resnet_v2": "resnet50v2", "vgg16": "vgg16",
    "vgg19": "vgg19", "xception": "xception",
}


def keras_applications():
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import keras

    return keras.applications


def constructors():
    """Names of models, with the module of each."""
    applications = keras_applications()
    named = {name: getattr(applications, name) for name in dir(applications) if name[0].isupper()}
    return {name: make.__module__.rsplit(".", 1)[1] for name, make in named.items()}


def make(name, out):
    import math

    model = getattr(keras_applications(), name)(weights=None)
    layers = {layer.name: layer.count_params() for layer in model.layers}
    count = lambda weights: sum(math.prod(weight.shape) for weight in weights)
    facts = {
        "total_params": model.count_params(),
        "trainable_params": count(model.trainable_weights),
        "non_trainable_params": count(model.non_trainable_weights),
        "outputs": [list(tensor.shape) for tensor in model.outputs],
        "layers": layers,
    }
    with open(f"{out}/{name}.json", "w") as file:
        file.write(model.to_json())
    with open(f"{out}/{name}.facts.json", "w") as file:
        json.dump(facts, file)


def unlike(binary, path, facts):
    """What Intwain counts otherwise than Keras."""
    result = subprocess.run([binary, "inspect", path, "--layers", "--json"], capture_output=True, text=True)
    if result.returncode != 0:
        return [f"exit {result.returncode}: {' / '.join(result.stderr.strip().splitlines()[:4])[:400]}"]
    told, wrong = json.loads(result.stdout), []
    for key in ("total_params", "trainable_params", "non_trainable_params"):
        if told[key] != facts[key]:
            wrong.append(f"{key} is {told[key]}, Keras has {facts[key]}")
    parameters = {layer["name"]: layer["parameters"] for layer in told["layers"]}
    for name, count in facts["layers"].items():
        if parameters.get(name) != count:
            wrong.append(f"layer {name} has {parameters.get(name)} parameters, in Keras {count}")
    last = told["layers"][-1]["output_shape"]
    if [last] != facts["outputs"] and last != facts["outputs"]:
        wrong.append(f"the output is {last}, in Keras {facts['outputs']}")
    return wrong[:5]


def main():
    parser = argparse.ArgumentParser(formatter_class=argparse.RawDescriptionHelpFormatter, description=__doc__)
    parser.add_argument("out")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--binary", default="target/release/intwain")
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--here", action="store_true", help="make the one model named in this very process")
    args = parser.parse_intermixed_args()
    os.makedirs(args.out, exist_ok=True)
    if args.here:
        make(args.names[0], args.out)
        return
    from zoo import IMPORTED, MEASURED

    failures = 0
    names = args.names or (SMALL if args.small else None)
    if not names:
        known = constructors()
        names = sorted(known)
        for family in sorted(set(known.values())):
            if FAMILIES.get(family) not in (*MEASURED, *IMPORTED):
                failures += 1
                print(f"FAIL zoo.py has no model of keras.applications.{family}")
    for name in names:
        facts = f"{args.out}/{name}.facts.json"
        if not os.path.exists(facts):
            subprocess.run([sys.executable, __file__, args.out, name, "--here"], check=True)
        with open(facts) as file:
            wrong = unlike(os.path.abspath(args.binary), f"{args.out}/{name}.json", json.load(file))
        failures += bool(wrong)
        for line in wrong:
            print(f"FAIL {name}: {line}", flush=True)
    print(f"{len(names)} models, {failures} failed")
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main()
