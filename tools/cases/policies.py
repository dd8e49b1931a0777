"""Dtype policies: every layer that has variables or statistics, in 16 bits, in float64 and with layers of other types between."""


def policies(L, keras, name, layers, shape=(6,), dtype=None):
    """The layers one after another under a policy."""
    x = inputs = keras.Input(shape, dtype=dtype)
    for layer in layers(lambda cls, *args, **kwargs: cls(*args, **{"dtype": name, **kwargs})):
        x = layer(x)
    return keras.Model(inputs, x)


def attention(L, keras, name, **kwargs):
    query, value = keras.Input((5, 8)), keras.Input((7, 8))
    return keras.Model([query, value], L.MultiHeadAttention(2, 4, dtype=name)(query, value, **kwargs))


def dot_attention(L, keras, name, cls):
    query, value, ids = keras.Input((5, 8)), keras.Input((7, 8)), keras.Input((7,), dtype="int32")
    masked = L.Embedding(20, 8, mask_zero=True, dtype=name)(ids)
    return keras.Model([query, value, ids], [cls(dtype=name)([query, value]), cls(dtype=name)([query, masked])])


def overriding(L, keras, name):
    """Layers of other types between those of one policy, and integers that must not change."""
    ids, x = keras.Input((4,), dtype="int32", name="ids"), keras.Input((4, 6))
    e = L.Embedding(3000, 6, dtype=name)(ids + 2000)
    y = L.Add(dtype=name)([e, L.Dense(6, dtype="float32")(L.Dense(5, "gelu", dtype=name)(x))])
    y = L.LayerNormalization(dtype=name)(y)
    z = L.Dense(3, dtype="float32")(y[:, 1:, ::-1])
    return keras.Model([ids, x], [L.Activation("softmax", dtype="float32")(z), y, ids[:, 1:]])


def nested(L, keras, name):
    """A model casts what it is called with to the types of its inputs."""
    inner_in = keras.Input((8,))
    inner = keras.Model(inner_in, L.Dense(5, "relu", dtype=name)(L.LayerNormalization(dtype="float32")(inner_in)))
    x = keras.Input((4,))
    return keras.Model(x, inner(L.Dense(8, "tanh", dtype=name)(x)))


def rnn_cell(L, keras, name):
    x = keras.Input((5, 4))
    return keras.Model(x, L.RNN(L.LSTMCell(6, dtype=name), return_sequences=True, dtype="float32")(x))


def mapped(L, keras, name):
    x = keras.Input((5, 8))
    policy = keras.dtype_policies.DTypePolicyMap(name, {"attention/attention_output": keras.DTypePolicy("float32")})
    return keras.Model(x, L.MultiHeadAttention(2, 4, name="attention", dtype=policy)(x, x))


def cases(name):
    """One model of each kind under a policy."""
    c = lambda layers, shape, dtype=None: lambda L, keras: policies(L, keras, name, lambda of: layers(L, of), shape, dtype)
    return {
        "Dense": c(lambda L, of: [of(L.Dense, 9, "relu"), of(L.Dense, 4)], (6,)),
        "EinsumDense": c(lambda L, of: [of(L.EinsumDense, "abc,cde->abde", (None, 2, 3), bias_axes="de")], (5, 6)),
        "Conv2D": c(lambda L, of: [of(L.Conv2D, 5, 3, padding="same", activation="relu"), of(L.Conv2D, 3, 2)], (7, 6, 3)),
        "DepthwiseConv2D": c(lambda L, of: [of(L.DepthwiseConv2D, 3, depth_multiplier=2, padding="same")], (6, 5, 3)),
        "SeparableConv1D": c(lambda L, of: [of(L.SeparableConv1D, 5, 3)], (9, 4)),
        "Conv2DTranspose": c(lambda L, of: [of(L.Conv2DTranspose, 4, 3, strides=2)], (4, 5, 3)),
        "BatchNormalization": c(lambda L, of: [of(L.BatchNormalization)], (4, 5, 3)),
        "LayerNormalization": c(lambda L, of: [of(L.LayerNormalization)], (4, 10)),
        "GroupNormalization": c(lambda L, of: [of(L.GroupNormalization, 2)], (4, 5, 6)),
        "RMSNormalization": c(lambda L, of: [of(L.RMSNormalization)], (4, 10)),
        "UnitNormalization": c(lambda L, of: [of(L.UnitNormalization)], (4, 10)),
        "AveragePooling2D": c(lambda L, of: [of(L.AveragePooling2D, 3, 1, "same")], (6, 5, 3)),
        "GlobalAveragePooling2D": c(lambda L, of: [of(L.GlobalAveragePooling2D)], (16, 15, 3)),
        "MaxPooling2D": c(lambda L, of: [of(L.MaxPooling2D)], (6, 5, 3)),
        "Embedding": c(lambda L, of: [of(L.Embedding, 30, 6), of(L.Flatten), of(L.Dense, 3)], (5,), "int32"),
        "LSTM": c(lambda L, of: [of(L.LSTM, 6, return_sequences=True), of(L.LSTM, 5)], (6, 4)),
        "GRU": c(lambda L, of: [of(L.GRU, 6)], (6, 4)),
        "SimpleRNN": c(lambda L, of: [of(L.SimpleRNN, 6)], (6, 4)),
        "Softmax": c(lambda L, of: [of(L.Dense, 9), of(L.Softmax)], (6,)),
        "PReLU": c(lambda L, of: [of(L.Dense, 9), of(L.PReLU, alpha_initializer="glorot_uniform")], (6,)),
        "Rescaling": c(lambda L, of: [of(L.Rescaling, 1 / 127.5, -1.0), of(L.Dense, 3)], (6,)),
        "MultiHeadAttention": lambda L, keras: attention(L, keras, name),
        "MultiHeadAttention_causal": lambda L, keras: attention(L, keras, name, use_causal_mask=True),
        "MultiHeadAttention_scores": lambda L, keras: attention(L, keras, name, return_attention_scores=True),
        "Attention": lambda L, keras: dot_attention(L, keras, name, L.Attention),
        "AdditiveAttention": lambda L, keras: dot_attention(L, keras, name, L.AdditiveAttention),
        "Dense_overriding": lambda L, keras: overriding(L, keras, name),
        "Dense_nested": lambda L, keras: nested(L, keras, name),
        "RNN_cell": lambda L, keras: rnn_cell(L, keras, name),
        "MultiHeadAttention_map": lambda L, keras: mapped(L, keras, name),
        **{f"Activation_{f}": c(lambda L, of, f=f: [of(L.Activation, f)], (40,)) for f in ACTIVATIONS},
    }


ACTIVATIONS = "gelu silu softplus elu selu mish tanh sigmoid exponential hard_sigmoid softsign".split()


def labelled(name):
    for key, build in cases(name).items():
        layer, _, what = key.partition("_")
        yield f"{layer}_{name}" + (f"_{what}" if what else ""), build


CASES = {key: build for name in ("mixed_float16", "mixed_bfloat16", "float16", "float64") for key, build in labelled(name)}
INPUTS = {key: {"ids": lambda rng: rng.integers(0, 1000, (4, 4)).astype("int32")} for key in CASES if key.endswith("_overriding")}


def legacy(name):
    """Models of tf-keras, whose normalisations and casts differ."""

    def stack(layers, shape, dtype=None):
        return lambda L, keras: keras.Sequential([keras.Input(shape, dtype=dtype), *layers(L)])

    def both(L, keras):
        query, value = keras.Input((5, 8)), keras.Input((7, 8))
        y = L.MultiHeadAttention(2, 4, dtype=name)(query, value)
        y = L.Add(dtype=name)([query, y])
        return keras.Model([query, value], L.Dense(4, dtype="float32")(L.LayerNormalization(dtype=name)(y)))

    return {
        f"BatchNormalization_{name}_fused": stack(lambda L: [L.Conv2D(4, 3, dtype=name), L.BatchNormalization(dtype=name)], (6, 6, 3)),
        f"BatchNormalization_{name}_plain": stack(lambda L: [L.BatchNormalization(dtype=name), L.Dense(3, dtype=name)], (7,)),
        f"Dense_{name}_nested": lambda L, keras: nested(L, keras, name),
        f"LSTM_{name}": stack(lambda L: [L.Embedding(20, 5, dtype=name), L.LSTM(4, dtype=name)], (6,), "int32"),
        f"LayerNormalization_{name}": stack(lambda L: [L.LayerNormalization(dtype=name)], (4, 10)),
        f"MultiHeadAttention_{name}": both,
    }


LEGACY_CASES = {key: build for name in ("mixed_float16", "mixed_bfloat16") for key, build in legacy(name).items()}
