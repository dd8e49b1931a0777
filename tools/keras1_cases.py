"""Small documents of Keras 1 (and 0.3) and their Keras 3 twins, for `keras1_twins.py`.

Each holds a class or a meaning that later versions changed or dropped, with the keys that Keras 1.2.2's `get_config` writes. What
Keras 1 computes is written out here from its documentation and source, in Keras 3's layers and operations.
"""
import numpy as np

CHANNELS_LAST, CHANNELS_FIRST = (2, 3, 1), (3, 1, 2)


class Twin:
    """A Keras 3 model and what Keras 1 would have stored for it: groups of tensors, in order."""

    def __init__(self, model, ordering="tf", order=None, gates="apart", groups=None, names="written"):
        self.model, self.ordering, self.order, self.gates, self.groups = model, ordering, order, gates, groups
        self.names = names

    def stored(self):
        if self.groups:
            return self.groups()
        layers = [self.model.get_layer(n) for n in self.order] if self.order else self.model.layers
        return [(layer.name, self.tensors(layer)) for layer in layers if layer.weights]

    def tensors(self, layer):
        """A layer's variables in Keras 1's layout."""
        kind, values = type(layer).__name__, [v.numpy() for v in layer.weights]
        if kind == "Bidirectional":
            return self.tensors(layer.forward_layer) + self.tensors(layer.backward_layer)
        if kind == "TimeDistributed":
            return self.tensors(layer.layer)
        if kind == "Conv1D":
            return [values[0][:, None], *values[1:]]
        if kind == "Conv2D" and self.ordering == "th":
            return [values[0].transpose(3, 2, 0, 1), *values[1:]]
        if kind == "Conv3D" and self.ordering == "th":
            return [values[0].transpose(4, 3, 0, 1, 2), *values[1:]]
        if kind == "Conv2DTranspose":
            return [values[0].transpose((2, 3, 0, 1) if self.ordering == "th" else (0, 1, 3, 2)), *values[1:]]
        if kind == "SeparableConv2D" and self.ordering == "th":
            return [values[0].transpose(3, 2, 0, 1), values[1].transpose(3, 2, 0, 1), *values[2:]]
        if kind in ("LSTM", "ConvLSTM2D") and self.gates == "apart":
            return apart(values, [0, 2, 1, 3], self.ordering == "th" and kind == "ConvLSTM2D")
        if kind == "GRU" and self.gates == "apart":
            return apart(values, [0, 1, 2], False)
        return values


def apart(values, order, first):
    """Kernel, recurrent kernel and bias of each gate; Keras 1 has the candidate before the forget gate."""
    parts = [np.split(v, len(order), axis=-1) for v in values]
    gates = [[part[gate] for part in parts] for gate in order]
    return [t.transpose(3, 2, 0, 1) if first and t.ndim == 4 else t for gate in gates for t in gate]


def hard_sigmoid(x):
    from keras import ops

    return ops.clip(0.2 * x + 0.5, 0.0, 1.0)


def lstm(L, units, **more):
    return L.LSTM(units, recurrent_activation=hard_sigmoid, **more)


REGULARISED = {key: None for key in ("W_regularizer", "b_regularizer", "activity_regularizer", "W_constraint", "b_constraint")}


def sequential(*layers, version="1.2.2"):
    return {"class_name": "Sequential", "keras_version": version, "config": list(layers)}


def layer(kind, name, shape=None, **config):
    config = {"name": name, "trainable": True, **config}
    if shape:
        config.update(batch_input_shape=[None, *shape], input_dtype="float32")
    return {"class_name": kind, "config": config}


def dense(name, units, shape=None, activation="linear", **more):
    config = dict(output_dim=units, init="glorot_uniform", activation=activation, bias=True, input_dim=None, **REGULARISED)
    return layer("Dense", name, shape, **{**config, **more})


def conv2d(kind, name, filters, size, shape, ordering, mode="valid", subsample=(1, 1), **more):
    config = dict(nb_filter=filters, nb_row=size[0], nb_col=size[1], init="he_normal", activation="relu", border_mode=mode)
    return layer(kind, name, shape, **config, subsample=list(subsample), dim_ordering=ordering, bias=True, **REGULARISED, **more)


def conv1d(kind, name, filters, length, shape, mode="valid", stride=1, **more):
    config = dict(nb_filter=filters, filter_length=length, init="glorot_uniform", activation="tanh", border_mode=mode)
    more = dict(bias=True, input_dim=shape[-1], input_length=shape[0], **REGULARISED, **more)
    return layer(kind, name, shape, **config, subsample_length=stride, **more)


def recurrent(kind, name, units, shape=None, sequences=False, less="cpu", **more):
    config = dict(output_dim=units, init="glorot_uniform", inner_init="orthogonal", activation="tanh", dropout_W=0.0, dropout_U=0.0)
    config.update(return_sequences=sequences, go_backwards=False, stateful=False, unroll=False, consume_less=less)
    config.update(input_dim=None, input_length=None, W_regularizer=None, U_regularizer=None, b_regularizer=None)
    if kind != "SimpleRNN":
        config["inner_activation"] = "hard_sigmoid"
    if kind == "LSTM":
        config["forget_bias_init"] = "one"
    return layer(kind, name, shape, **{**config, **more})


def wrapper(kind, name, inner, shape=None, **more):
    return layer(kind, name, shape, layer=inner, **more)


def merge(name, mode, layers=None, concat_axis=-1, dot_axes=-1):
    config = dict(name=name, mode=mode, mode_type="raw", concat_axis=concat_axis, dot_axes=dot_axes, output_shape=None)
    config.update(output_shape_type="raw", output_mask=None, output_mask_type="raw", arguments={})
    if layers:
        config["layers"] = layers
    return {"class_name": "Merge", "config": config}


def chain(shape, *make, **more):
    """A twin whose layers stand in a row."""

    def twin(keras):
        return Twin(keras.Sequential([keras.Input(shape), *(m(keras.layers) for m in make)]), **more)

    return twin


def th(shape, *make):
    """A row of channels-last layers between turns of the image."""
    turned = (lambda L: L.Permute(CHANNELS_LAST), *make, lambda L: L.Permute(CHANNELS_FIRST))
    return chain(shape, *turned, ordering="th")


def merged(combine, shapes=((4,), (4,)), groups=None):
    """Two dense layers brought together, as functions of the twin's `ops`."""

    def twin(keras):
        inputs = [keras.Input(shape) for shape in shapes]
        left, right = (keras.layers.Dense(5)(x) for x in inputs)
        return Twin(keras.Model(inputs, combine(keras.ops, left, right)), groups=groups)

    return twin


def two_dense(*after):
    first = sequential(dense("a", 5, [4]))
    second = sequential(dense("b", 5, [4]))
    return lambda mode, **more: sequential(merge("m", mode, [strip(first), strip(second)], **more), *after)


def strip(model):
    return {key: value for key, value in model.items() if key != "keras_version"}


def cosine(ops, a, b):
    """Keras 1 inserts a dimension behind the batch."""
    norm = ops.sqrt(ops.sum(a * a, -1, keepdims=True) * ops.sum(b * b, -1, keepdims=True))
    return (ops.sum(a * b, -1, keepdims=True) / ops.maximum(norm, 1e-7))[:, None]


def highway(keras):
    L, ops = keras.layers, keras.ops
    x = keras.Input((6,))
    inner, gate = L.Dense(6, "tanh"), L.Dense(6, "sigmoid")
    t = gate(x)
    model = keras.Model(x, inner(x) * t + (1.0 - t) * x)
    values = lambda: [v.numpy() for v in (inner.kernel, gate.kernel, inner.bias, gate.bias)]
    return Twin(model, groups=lambda: [("highway_1", values())])


def highway_1_0(keras):
    twin = highway(keras)
    order = lambda t: [t[0], t[2], t[1], t[3]]
    newer = twin.groups
    twin.groups = lambda: [(name, order(tensors)) for name, tensors in newer()]
    return twin


def maxout(keras):
    L, ops = keras.layers, keras.ops
    x = keras.Input((6,))
    parts = [L.Dense(3) for _ in range(4)]
    y = parts[0](x)
    for part in parts[1:]:
        y = ops.maximum(y, part(x))
    stacked = lambda what: np.stack([getattr(p, what).numpy() for p in parts])
    return Twin(keras.Model(x, y), groups=lambda: [("maxoutdense_1", [stacked("kernel"), stacked("bias")])])


def with_parameters(names, function):
    """A layer that is a function of the input and of parameters as large as a row."""

    def twin(keras):
        class Parameters(keras.layers.Layer):
            def build(self, shape):
                for name in names:
                    setattr(self, name, self.add_weight(shape=shape[1:], name=name))

            def call(self, x):
                return function(keras.ops, x, *(getattr(self, name) for name in names))

        return Twin(keras.Sequential([keras.Input((3, 4)), Parameters(name="p")]))

    return twin


def srelu(ops, x, t_left, a_left, t_right, a_right):
    right = t_left + ops.abs(t_right)
    inside = ops.where(x <= t_left, t_left + a_left * (x - t_left), x)
    return ops.where(x >= right, right + a_right * (x - right), inside)


def thresholded(x):
    from keras import ops

    return x * ops.cast(x > -0.1, "float32")


def masked_both_ways(keras):
    """Masked steps repeat the output before them, going back as well."""
    L, ops = keras.layers, keras.ops
    x = keras.Input((5,))
    embedded = L.Embedding(7, 3, mask_zero=True)(x)
    mask = ops.not_equal(x, 0)
    forward = lstm(L, 4, return_sequences=True)
    backward = lstm(L, 4, return_sequences=True, go_backwards=True)
    y = ops.concatenate([forward(embedded, mask=mask), ops.flip(backward(embedded, mask=mask), 1)], -1)
    model = keras.Model(x, y)
    table = next(layer for layer in model.layers if type(layer).__name__ == "Embedding")
    twin = Twin(model)
    both = lambda: twin.tensors(forward) + twin.tensors(backward)
    twin.groups = lambda: [("embedding_1", [table.embeddings.numpy()]), ("bidirectional_1", both())]
    return twin


def deconvolved(ordering):
    """13 rows of 7 with a stride of 2: one row less than `same` padding gives by itself."""

    def twin(keras):
        L = keras.layers
        shape, turn, back = ((2, 7, 6), CHANNELS_LAST, CHANNELS_FIRST) if ordering == "th" else ((7, 6, 2), (1, 2, 3), (1, 2, 3))
        deconv = L.Conv2DTranspose(3, 3, 2, "valid", activation="relu")
        # The gradient of a `same` convolution of 13 rows: one row and column are cut from either end of what `valid` gives.
        cut = L.Cropping2D(((1, 1), (1, 1)))
        return Twin(keras.Sequential([keras.Input(shape), L.Permute(turn), deconv, cut, L.Permute(back)]), ordering)

    return twin


def shared_graph(keras):
    L = keras.layers
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    both = L.Dense(3, name="both")
    x, y = both(a), both(b)
    head = L.Dense(2, name="head")
    out = head(L.Concatenate()([x, y]))
    tail = L.Dense(2, "tanh", name="tail")
    return Twin(keras.Model([a, b], [out, tail(L.Multiply()([x, y]))]), order=["both", "head", "tail"])


def graph_document():
    """`Graph` of 1.0: a shared node with names for its two results, merges implied by nodes, an output that renames one."""
    shared = dense("both", 3)
    node = dict(input=None, concat_axis=-1, dot_axes=-1, create_output=False)
    nodes = [
        dict(name="both", layer=shared, inputs=["a", "b"], merge_mode=None, concat_axis=-1, dot_axes=-1, outputs=["x", "y"], create_output=False),
        dict(node, name="head", inputs=["x", "y"], merge_mode="concat"),
        dict(node, name="tail", inputs=["x", "y"], merge_mode="mul"),
    ]
    output = dict(inputs=[], merge_mode="concat", concat_axis=-1, dot_axes=-1)
    config = dict(
        input_config=[dict(name=name, dtype="float32", input_shape=[4]) for name in ("a", "b")],
        node_config=nodes,
        output_config=[dict(output, name="out", input="head"), dict(output, name="tail", input="tail")],
        nodes={"both": {**shared, "shared": True}, "head": dense("head", 2), "tail": dense("tail", 2, activation="tanh")},
    )
    return {"class_name": "Graph", "keras_version": "1.0.3", "config": config}


def document_0_3():
    """A compiled chain of 0.3: the class under `name`, what `compile` was given around it."""
    flat = lambda kind, **config: {"name": kind, "trainable": True, **config}
    old = dict(init="glorot_uniform", activation="tanh", **REGULARISED)
    layers = [
        flat("Dense", output_dim=5, input_dim=4, custom_name="first", input_shape=[4], cache_enabled=True, **old),
        flat("Dropout", p=0.5, cache_enabled=True, custom_name="dropout"),
        flat("Dense", output_dim=2, input_dim=None, custom_name="dense", cache_enabled=True, **old),
    ]
    optimizer = {"name": "SGD", "lr": 0.01, "momentum": 0.0, "decay": 0.0, "nesterov": False}
    return {"name": "Sequential", "layers": layers, "loss": "mse", "optimizer": optimizer, "class_mode": "categorical", "sample_weight_mode": None}


def nested_heads():
    """A chain that begins with a merge of chains, one of which begins with a merge itself."""
    inner = strip(sequential(merge("inner", "mul", [strip(sequential(dense("a", 5, [4]))), strip(sequential(dense("b", 5, [4])))]), dense("c", 5)))
    return sequential(merge("outer", "ave", [inner, strip(sequential(dense("d", 5, [3])))]), dense("e", 2))


def model_head():
    """A chain that begins with a merge of a functional model and a chain; the model's layers are the whole's own in weight files."""
    node = lambda name: [[[name, 0, 0]]]
    entry = lambda made, nodes: {**made, "name": made["config"]["name"], "inbound_nodes": nodes}
    inputs = [entry(layer("InputLayer", name, [3], sparse=False), []) for name in ("x", "y")]
    for made in inputs:
        del made["config"]["trainable"]
    both = [[["dx", 0, 0], ["dy", 0, 0]]]
    layers = [*inputs, entry(dense("dx", 4), node("x")), entry(dense("dy", 4), node("y")), entry(merge("xy", "mul"), both)]
    config = {"name": "model_1", "layers": layers, "input_layers": [["x", 0, 0], ["y", 0, 0]], "output_layers": [["xy", 0, 0]]}
    model = {"class_name": "Model", "config": config}
    return sequential(merge("outer", "concat", [model, strip(sequential(dense("d", 5, [3])))]), dense("e", 2))


def model_head_twin(keras):
    L = keras.layers
    inputs = [keras.Input((3,)) for _ in range(3)]
    dx, dy, d, e = (L.Dense(n, name=name) for n, name in ((4, "dx"), (4, "dy"), (5, "d"), (2, "e")))
    joined = L.Concatenate()([L.Multiply()([dx(inputs[0]), dy(inputs[1])]), d(inputs[2])])
    return Twin(keras.Model(inputs, e(joined)), order=["dx", "dy", "d", "e"])


def nested_heads_twin(keras):
    L = keras.layers
    inputs = [keras.Input((4,)), keras.Input((4,)), keras.Input((3,))]
    a, b, c, d, e = (L.Dense(n, name=name) for n, name in ((5, "a"), (5, "b"), (5, "c"), (5, "d"), (2, "e")))
    joined = L.Average()([c(L.Multiply()([a(inputs[0]), b(inputs[1])])), d(inputs[2])])
    return Twin(keras.Model(inputs, e(joined)), order="abcde")


def image(kind, name, **more):
    return layer(kind, name, **more)


STEPS = (6, 3)
PARAMETERS = {
    "alpha": ("alphas", "betas"),
    "srelu": ("t_left", "a_left", "t_right", "a_right"),
}
join_two = two_dense()
CONV_TF = lambda *args, **more: conv2d(*args, ordering="tf", **more)
CASES = {
    "Sequential_0.3": (document_0_3(), chain((4,), lambda L: L.Dense(5, "tanh"), lambda L: L.Dense(2, "tanh"), names="numbered")),
    "Graph_shared": (graph_document(), shared_graph),
    "Merge_sum": (join_two("sum"), merged(lambda o, a, b: a + b)),
    "Merge_mul": (join_two("mul"), merged(lambda o, a, b: a * b)),
    "Merge_ave": (join_two("ave"), merged(lambda o, a, b: (a + b) / 2.0)),
    "Merge_max": (join_two("max"), merged(lambda o, a, b: o.maximum(a, b))),
    "Merge_concat": (join_two("concat"), merged(lambda o, a, b: o.concatenate([a, b], -1))),
    "Merge_dot": (join_two("dot"), merged(lambda o, a, b: o.sum(a * b, -1, keepdims=True))),
    "Merge_cos": (join_two("cos", dot_axes=1), merged(cosine)),
    "Merge_nested": (nested_heads(), nested_heads_twin),
    "Merge_model": (model_head(), model_head_twin),
    "LSTM_cpu": (sequential(recurrent("LSTM", "lstm", 4, STEPS, True)), chain(STEPS, lambda L: lstm(L, 4, return_sequences=True))),
    "LSTM_gpu": (sequential(recurrent("LSTM", "lstm", 4, STEPS, less="gpu")), chain(STEPS, lambda L: lstm(L, 4), gates="together")),
    "GRU_cpu": (
        sequential(recurrent("GRU", "gru", 4, STEPS, True)),
        chain(STEPS, lambda L: L.GRU(4, recurrent_activation=hard_sigmoid, reset_after=False, return_sequences=True), names="whole"),
    ),
    "SimpleRNN": (
        sequential(recurrent("SimpleRNN", "rnn", 4, STEPS, go_backwards=True)),
        chain(STEPS, lambda L: L.SimpleRNN(4, go_backwards=True)),
    ),
    "Bidirectional_sum": (
        sequential(wrapper("Bidirectional", "bidirectional", recurrent("GRU", "gru", 4, None, True), STEPS, merge_mode="sum")),
        chain(STEPS, lambda L: L.Bidirectional(
            L.GRU(4, recurrent_activation=hard_sigmoid, reset_after=False, return_sequences=True), merge_mode="sum")),
    ),
    "Bidirectional_masked": (
        sequential(
            layer("Embedding", "embedding_1", [5], input_dim=7, output_dim=3, init="uniform", input_length=5, mask_zero=True,
                  activity_regularizer=None, W_regularizer=None, W_constraint=None, dropout=0.1),
            wrapper("Bidirectional", "bidirectional_1", recurrent("LSTM", "lstm", 4, None, True), merge_mode="concat"),
        ),
        masked_both_ways,
    ),
    "TimeDistributed_conv": (
        sequential(wrapper("TimeDistributed", "td", CONV_TF("Convolution2D", "c", 2, (2, 2), None), (3, 5, 5, 2))),
        chain((3, 5, 5, 2), lambda L: L.TimeDistributed(L.Conv2D(2, 2, activation="relu"))),
    ),
    "TimeDistributedDense": (
        sequential(layer("TimeDistributedDense", "tdd", STEPS, output_dim=4, init="uniform", activation="relu", bias=True,
                         input_dim=3, input_length=6, **REGULARISED)),
        chain(STEPS, lambda L: L.Dense(4, "relu")),
    ),
    "Highway": (sequential(layer("Highway", "highway_1", [6], init="glorot_uniform", activation="tanh", bias=True, input_dim=6, **REGULARISED)), highway),
    "Highway_1.0": (
        sequential(layer("Highway", "highway_1", [6], init="glorot_uniform", transform_bias=-2, activation="tanh", bias=True,
                         input_dim=6, **REGULARISED), version="1.0.3"),
        highway_1_0,
    ),
    "MaxoutDense": (
        sequential(layer("MaxoutDense", "maxoutdense_1", [6], output_dim=3, init="glorot_uniform", nb_feature=4, bias=True, input_dim=6, **REGULARISED)),
        maxout,
    ),
    "ParametricSoftplus": (
        sequential(layer("ParametricSoftplus", "p", (3, 4), alpha_init=0.2, beta_init=5.0)),
        with_parameters(PARAMETERS["alpha"], lambda o, x, a, b: a * o.softplus(b * x)),
    ),
    "SReLU": (
        sequential(layer("SReLU", "s", (3, 4), t_left_init="zero", a_left_init="glorot_uniform", t_right_init="glorot_uniform", a_right_init="one")),
        with_parameters(PARAMETERS["srelu"], srelu),
    ),
    "LeakyReLU_ELU_Thresholded": (
        sequential(dense("d", 5, [4]), layer("LeakyReLU", "l", alpha=0.3), layer("ELU", "e", alpha=0.7), layer("ThresholdedReLU", "t", theta=-0.1)),
        chain((4,), lambda L: L.Dense(5), lambda L: L.LeakyReLU(negative_slope=0.3), lambda L: L.ELU(0.7),
              lambda L: L.Activation(thresholded)),
    ),
    "BatchNormalization_th": (
        sequential(conv2d("Convolution2D", "c", 3, (2, 2), (2, 5, 5), "th"),
                   layer("BatchNormalization", "b", epsilon=1e-3, mode=0, axis=1, gamma_regularizer=None, beta_regularizer=None, momentum=0.99)),
        th((2, 5, 5), lambda L: L.Conv2D(3, 2, activation="relu"), lambda L: L.BatchNormalization(epsilon=1e-3)),
    ),
    "Convolution1D_strided": (sequential(conv1d("Convolution1D", "c", 4, 3, (9, 2), "same", 2)), chain((9, 2), lambda L: L.Conv1D(4, 3, 2, "same", activation="tanh"))),
    "AtrousConvolution1D": (
        sequential(conv1d("AtrousConvolution1D", "c", 4, 3, (9, 2), atrous_rate=2)),
        chain((9, 2), lambda L: L.Conv1D(4, 3, dilation_rate=2, activation="tanh")),
    ),
    "AtrousConvolution2D": (
        sequential(conv2d("AtrousConvolution2D", "c", 4, (3, 2), (2, 9, 8), "th", "same", atrous_rate=[2, 2])),
        th((2, 9, 8), lambda L: L.Conv2D(4, (3, 2), padding="same", dilation_rate=2, activation="relu")),
    ),
    "SeparableConvolution2D": (
        sequential(layer("SeparableConvolution2D", "s", (6, 6, 2), nb_filter=4, nb_row=3, nb_col=2, init="glorot_uniform",
                         activation="tanh", border_mode="same", subsample=[2, 2], depth_multiplier=2, dim_ordering="tf", bias=True,
                         depthwise_regularizer=None, pointwise_regularizer=None, b_regularizer=None, activity_regularizer=None,
                         depthwise_constraint=None, pointwise_constraint=None, b_constraint=None)),
        chain((6, 6, 2), lambda L: L.SeparableConv2D(4, (3, 2), 2, "same", depth_multiplier=2, activation="tanh")),
    ),
    "Deconvolution2D_tf": (
        sequential(conv2d("Deconvolution2D", "d", 3, (3, 3), (7, 6, 2), "tf", "same", (2, 2), output_shape=[None, 13, 11, 3])),
        deconvolved("tf"),
    ),
    "Deconvolution2D_th": (
        sequential(conv2d("Deconvolution2D", "d", 3, (3, 3), (2, 7, 6), "th", "same", (2, 2), output_shape=[None, 3, 13, 11])),
        deconvolved("th"),
    ),
    "Convolution3D_th": (
        sequential(layer("Convolution3D", "c", (2, 4, 5, 6), nb_filter=3, kernel_dim1=2, kernel_dim2=3, kernel_dim3=2, dim_ordering="th",
                         init="glorot_uniform", activation="relu", border_mode="same", subsample=[1, 2, 1], bias=True, **REGULARISED),
                   layer("MaxPooling3D", "p", pool_size=[2, 2, 2], strides=[2, 2, 2], border_mode="valid", dim_ordering="th")),
        chain((2, 4, 5, 6), lambda L: L.Permute((2, 3, 4, 1)), lambda L: L.Conv3D(3, (2, 3, 2), (1, 2, 1), "same", activation="relu"),
              lambda L: L.MaxPooling3D(2), lambda L: L.Permute((4, 1, 2, 3)), ordering="th"),
    ),
    "ConvLSTM2D_th": (
        sequential(layer("ConvLSTM2D", "c", (3, 2, 5, 5), nb_filter=3, nb_row=3, nb_col=2, init="glorot_uniform", inner_init="orthogonal",
                         forget_bias_init="one", activation="tanh", inner_activation="hard_sigmoid", dim_ordering="th", border_mode="same",
                         return_sequences=False, go_backwards=False, stateful=False)),
        chain((3, 2, 5, 5), lambda L: L.Permute((1, 3, 4, 2)),
              lambda L: L.ConvLSTM2D(3, (3, 2), padding="same", recurrent_activation=hard_sigmoid), lambda L: L.Permute(CHANNELS_FIRST), ordering="th"),
    ),
    "Padding_th": (
        sequential(image("ZeroPadding2D", "z", shape=(2, 4, 5), padding=[1, 2]), conv2d("Convolution2D", "c", 3, (2, 2), None, "th"),
                   image("UpSampling2D", "u", size=[2, 3]), image("Cropping2D", "k", cropping=[[1, 0], [2, 1]]),
                   layer("AveragePooling2D", "a", pool_size=[2, 2], strides=[1, 2], border_mode="same", dim_ordering="th"),
                   layer("GlobalMaxPooling2D", "g", dim_ordering="th")),
        chain((2, 4, 5), lambda L: L.Permute(CHANNELS_LAST), lambda L: L.ZeroPadding2D((1, 2)), lambda L: L.Conv2D(3, 2, activation="relu"),
              lambda L: L.UpSampling2D((2, 3)), lambda L: L.Cropping2D(((1, 0), (2, 1))),
              lambda L: L.AveragePooling2D(2, (1, 2), "same"), lambda L: L.GlobalMaxPooling2D(), ordering="th"),
    ),
    "Padding_dict": (
        sequential(image("ZeroPadding2D", "z", shape=(4, 5, 2), padding={"top_pad": 1, "right_pad": 2}),
                   conv2d("Convolution2D", "c", 3, (2, 2), None, "tf"),
                   layer("GlobalAveragePooling2D", "g", dim_ordering="tf")),
        chain((4, 5, 2), lambda L: L.ZeroPadding2D(((1, 0), (0, 2))), lambda L: L.Conv2D(3, 2, activation="relu"), lambda L: L.GlobalAveragePooling2D()),
    ),
    "Steps": (
        sequential(layer("ZeroPadding1D", "z", (5, 3), padding={"left_pad": 1, "right_pad": 2}), layer("Cropping1D", "c", cropping=[1, 0]),
                   layer("UpSampling1D", "u", length=2), layer("AveragePooling1D", "p", pool_length=3, stride=2, border_mode="same"),
                   layer("Permute", "q", dims=[2, 1]), layer("Reshape", "r", target_shape=[7, -1]), layer("GaussianNoise", "n", sigma=0.1),
                   layer("GaussianDropout", "g", p=0.2), layer("SpatialDropout1D", "s", p=0.2), layer("Flatten", "f"), layer("RepeatVector", "v", n=2)),
        chain((5, 3), lambda L: L.ZeroPadding1D((1, 2)), lambda L: L.Cropping1D((1, 0)), lambda L: L.UpSampling1D(2),
              lambda L: L.AveragePooling1D(3, 2, "same"), lambda L: L.Permute((2, 1)), lambda L: L.Reshape((7, -1)), lambda L: L.Flatten(),
              lambda L: L.RepeatVector(2)),
    ),
}
