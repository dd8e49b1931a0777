"""Every activation by its name, and the layers with parameters."""


def model(keras, shape, *layers, **kw):
    return keras.Sequential([keras.Input(shape, **kw), *layers])


NAMES = [
    *["celu", "elu", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid", "hard_silu", "hard_swish", "hard_tanh"],
    *["leaky_relu", "linear", "log_sigmoid", "log_softmax", "mish", "relu", "relu6", "selu", "sigmoid", "silu", "soft_shrink"],
    *["softmax", "softplus", "softsign", "sparse_plus", "sparse_sigmoid", "sparsemax", "squareplus", "swish", "tanh"],
    "tanh_shrink",
]
LEGACY_NAMES = [
    *["elu", "exponential", "gelu", "hard_sigmoid", "linear", "mish", "relu", "relu6", "selu", "sigmoid", "softmax"],
    *["softplus", "softsign", "swish", "tanh", "leaky_relu", "log_softmax", "silu"],
]


def named(name):
    return lambda L, keras: model(keras, (5, 6), L.Activation(name))


def nested(make):
    """A layer object as the activation of another layer."""
    return lambda L, keras: model(keras, (6,), L.Dense(4, activation=make(L, keras)))


CASES = {f"Activation_{name}": named(name) for name in NAMES} | {
    "Dense_with_relu_layer": nested(lambda L, keras: L.ReLU(max_value=1.0, negative_slope=0.2, threshold=0.1)),
    "Dense_with_leaky_layer": nested(lambda L, keras: L.LeakyReLU(negative_slope=0.15)),
    "Dense_with_elu_layer": nested(lambda L, keras: L.ELU(alpha=0.7)),
    "Dense_with_softmax_layer": nested(lambda L, keras: L.Softmax()),
    "Dense_with_activation_layer": nested(lambda L, keras: L.Activation("mish")),
    "Dense_with_function": nested(lambda L, keras: keras.activations.hard_silu),
    "Conv2D_with_leaky": lambda L, keras: model(keras, (5, 6, 2), L.Conv2D(3, 3, activation="leaky_relu")),
    "ReLU_limits": lambda L, keras: model(keras, (5, 6), L.ReLU(max_value=0.9, negative_slope=0.1, threshold=0.3)),
    "LeakyReLU_default": lambda L, keras: model(keras, (5, 6), L.LeakyReLU()),
    "ELU_alpha": lambda L, keras: model(keras, (5, 6), L.ELU(0.4)),
    "PReLU_shared": lambda L, keras: model(keras, (4, 5, 3), L.PReLU(shared_axes=[1, 2])),
    "PReLU_whole": lambda L, keras: model(keras, (5, 6), L.PReLU()),
    "Softmax_axes": lambda L, keras: model(keras, (4, 5, 3), L.Softmax(axis=[1, 2])),
    "Softmax_first": lambda L, keras: model(keras, (4, 5), L.Softmax(axis=1)),
}

LEGACY_CASES = {f"Activation_{name}": named(name) for name in LEGACY_NAMES} | {
    "ThresholdedReLU_half": lambda L, keras: model(keras, (5, 6), L.ThresholdedReLU(0.5)),
    "ReLU_limits": lambda L, keras: model(keras, (5, 6), L.ReLU(max_value=0.9, negative_slope=0.1, threshold=0.3)),
    "LeakyReLU_alpha": lambda L, keras: model(keras, (5, 6), L.LeakyReLU(alpha=0.2)),
    "ELU_alpha": lambda L, keras: model(keras, (5, 6), L.ELU(0.4)),
    "PReLU_shared": lambda L, keras: model(keras, (4, 5, 3), L.PReLU(shared_axes=[1, 2])),
    "Softmax_axes": lambda L, keras: model(keras, (4, 5, 3), L.Softmax(axis=[1, 2])),
    "Dense_with_leaky_layer": nested(lambda L, keras: L.LeakyReLU(alpha=0.15)),
}
