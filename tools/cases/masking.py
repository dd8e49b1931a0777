"""Masks: what every kind of layer makes of one, shown by a layer behind it that heeds masks."""
import numpy as np


def ids(keras, steps=6, name="ids"):
    return keras.Input((steps,), dtype="int32", name=name)


def embedded(L, keras, x, width=4):
    return L.Embedding(7, width, mask_zero=True)(x)


def shown(L, keras, layer, consumer="mean"):
    """Embedding, a layer, and a consumer that gives another result without the mask."""
    x = ids(keras)
    y = layer(embedded(L, keras, x))
    y = L.GlobalAveragePooling1D()(y) if consumer == "mean" else L.LSTM(3)(y)
    return keras.Model(x, y)


def two(L, keras, layer, masked=(True, True), last="mean", steps=(6, 6)):
    """Two embeddings of ids of their own, a merging layer, and a consumer; the merged tensor comes out too."""
    a, b = ids(keras, steps[0], "a"), ids(keras, steps[1], "b")
    x, y = (L.Embedding(7, 4, mask_zero=m)(i) for i, m in zip((a, b), masked))
    merged = layer([x, y])
    return keras.Model([a, b], [merged, L.GlobalAveragePooling1D()(merged) if last == "mean" else L.LSTM(3)(merged)])


def masked_rows(steps, features, value=0.0):
    """Sequences in which some steps hold the mask value everywhere and some in part."""

    def draw(rng):
        x = rng.normal(size=(4, steps, features)).astype("f4")
        x[rng.random((4, steps)) < 0.4] = value
        x[0, 1, 0] = np.ravel(value)[0]
        return x

    return draw


def passing(L):
    return {
        "Activation": lambda: L.Activation("tanh"),
        "Activation_linear": lambda: L.Activation("linear"),
        "ActivityRegularization": lambda: L.ActivityRegularization(0.1),
        "AlphaDropout": lambda: L.AlphaDropout(0.3),
        "BatchNormalization": lambda: L.BatchNormalization(),
        "Dense": lambda: L.Dense(3, "relu"),
        "Dropout": lambda: L.Dropout(0.3),
        "Dropout_noise_shape": lambda: L.Dropout(0.3, noise_shape=(None, 1, 4), seed=3),
        "ELU": lambda: L.ELU(),
        "GaussianDropout": lambda: L.GaussianDropout(0.3),
        "GaussianNoise": lambda: L.GaussianNoise(0.3),
        "Identity": lambda: L.Identity(),
        "LayerNormalization": lambda: L.LayerNormalization(),
        "LeakyReLU": lambda: L.LeakyReLU(),
        "Normalization": lambda: L.Normalization(mean=0.1, variance=2.0),
        "PReLU": lambda: L.PReLU(shared_axes=[1]),
        "ReLU": lambda: L.ReLU(),
        "Rescaling": lambda: L.Rescaling(2.0, 0.5),
        "SpatialDropout1D": lambda: L.SpatialDropout1D(0.3),
        "UnitNormalization": lambda: L.UnitNormalization(),
        "LSTM": lambda: L.LSTM(3, return_sequences=True),
        "GRU": lambda: L.GRU(3, return_sequences=True),
        "SimpleRNN": lambda: L.SimpleRNN(3, return_sequences=True),
        "RNN": lambda: L.RNN([L.LSTMCell(3), L.GRUCell(2)], return_sequences=True),
        "Bidirectional": lambda: L.Bidirectional(L.LSTM(3, return_sequences=True)),
        "Bidirectional_sum": lambda: L.Bidirectional(L.GRU(3, return_sequences=True), merge_mode="sum"),
        "TimeDistributed": lambda: L.TimeDistributed(L.Dense(3)),
        "SpectralNormalization": lambda: L.SpectralNormalization(L.Dense(3)),
    }


def dropping(L):
    return {
        "AveragePooling1D": lambda: L.AveragePooling1D(2),
        "Conv1D": lambda: L.Conv1D(3, 2),
        "Conv1DTranspose": lambda: L.Conv1DTranspose(3, 2),
        "Cropping1D": lambda: L.Cropping1D(1),
        "DepthwiseConv1D": lambda: L.DepthwiseConv1D(2, padding="same"),
        "EinsumDense": lambda: L.EinsumDense("abc,cd->abd", (None, 3)),
        "MaxPooling1D": lambda: L.MaxPooling1D(2, padding="same"),
        "Permute": lambda: L.Permute((2, 1)),
        "Reshape": lambda: L.Reshape((3, 8)),
        "Reshape_same": lambda: L.Reshape((6, 4)),
        "SeparableConv1D": lambda: L.SeparableConv1D(3, 2),
        "UpSampling1D": lambda: L.UpSampling1D(2),
        "ZeroPadding1D": lambda: L.ZeroPadding1D(1),
    }


class Layers:
    """Stands for `keras.layers` where only the names of cases are wanted."""

    def __getattr__(self, name):
        return None


def table(kinds, verb):
    def case(name):
        cls, _, what = name.partition("_")
        key = f"{cls}_{verb}_mask" + (f"_{what}" if what else "")
        return key, lambda L, keras: shown(L, keras, kinds(L)[name]())

    return dict(case(name) for name in kinds(Layers()))


def merging(L):
    return {
        "Add": L.Add,
        "Average": L.Average,
        "Concatenate": L.Concatenate,
        "Maximum": L.Maximum,
        "Minimum": L.Minimum,
        "Multiply": L.Multiply,
        "Subtract": L.Subtract,
    }


def merges(one_masked=True):
    out = {}
    for name in merging(Layers()):
        out[f"{name}_two_masks"] = lambda L, keras, n=name: two(L, keras, merging(L)[n]())
        if one_masked:
            out[f"{name}_first_mask"] = lambda L, keras, n=name: two(L, keras, merging(L)[n](), (True, False))
            out[f"{name}_second_mask"] = lambda L, keras, n=name: two(L, keras, merging(L)[n](), (False, True))
    out["Concatenate_steps_masks"] = lambda L, keras: two(L, keras, L.Concatenate(axis=1), steps=(5, 3))
    return out


def three_maxima(L, keras):
    inputs = [ids(keras, 6, f"i{i}") for i in range(3)]
    x = [L.Embedding(7, 4, mask_zero=i != 1)(v) for i, v in enumerate(inputs)]
    y = [L.Embedding(7, 4, mask_zero=True)(v) for v in inputs]
    return keras.Model(inputs, [L.Maximum()(x), L.Minimum()(y), L.Multiply()(x), L.GlobalAveragePooling1D()(L.Maximum()(y))])


def lower_rank(L, keras):
    """A tensor of lower rank, which is reshaped first and loses its mask on the way."""
    i, v = ids(keras), keras.Input((4,), name="v")
    x = embedded(L, keras, i)
    return keras.Model([i, v], [L.Multiply()([x, v]), L.Maximum()([v, x]), L.Add()([x, v])])


def nested(L, keras, inside):
    """A mask that enters a model used as a layer and leaves it."""
    i = keras.Input((6, 4))
    inner = keras.Model(i, inside(L, i), name="inner")
    x = ids(keras)
    return keras.Model(x, L.GlobalAveragePooling1D()(inner(embedded(L, keras, x))))


def made_inside(L, keras):
    """A mask that a model used as a layer makes, twice called."""
    i = ids(keras, name="i")
    inner = keras.Model(i, L.Dense(3)(embedded(L, keras, i)), name="inner")
    a, b = ids(keras, name="a"), ids(keras, name="b")
    return keras.Model([a, b], [L.LSTM(2)(inner(a)), L.GlobalAveragePooling1D()(inner(b))])


def nested_sequential(L, keras):
    inner = keras.Sequential([keras.Input((6, 4)), L.Dense(3), L.LSTM(3, return_sequences=True)], name="inner")
    return keras.Sequential([keras.Input((6,), dtype="int32"), L.Embedding(7, 4, mask_zero=True), inner, L.GRU(2)])


def nested_two(L, keras):
    """A model of two masked inputs, of which one comes out as it is merged."""
    p, q = keras.Input((6, 4), name="p"), keras.Input((6, 4), name="q")
    inner = keras.Model([p, q], [L.Concatenate()([p, q]), L.Dense(2)(q)], name="inner")
    a, b = ids(keras, name="a"), ids(keras, name="b")
    both, second = inner([embedded(L, keras, a), embedded(L, keras, b)])
    return keras.Model([a, b], [L.GlobalAveragePooling1D()(both), L.LSTM(2)(second)])


def explicit(L, keras, layer, **kw):
    x, m = keras.Input((6, 4), name="x"), keras.Input((6,), dtype="bool", name="m")
    y = layer(x, mask=m)
    return keras.Model([x, m], y if not kw.get("then") else kw["then"](y))


def channels_first(L, keras):
    x, m = keras.Input((4, 6), name="x"), keras.Input((6,), dtype="bool", name="m")
    return keras.Model([x, m], L.GlobalAveragePooling1D(data_format="channels_first")(x, mask=m))


def with_state(L, keras, layer, states):
    x = ids(keras)
    given = [keras.Input((3,), name=f"s{i}") for i in range(states)]
    return keras.Model([x, *given], layer(embedded(L, keras, x), initial_state=given))


def state_returned(L, keras):
    x = ids(keras)
    y, h, c = L.LSTM(3, return_sequences=True, return_state=True)(embedded(L, keras, x))
    return keras.Model(x, [y, h, c, L.GlobalAveragePooling1D()(y)])


def two_ways(L, keras):
    x = ids(keras)
    f, b = L.Bidirectional(L.LSTM(3, return_sequences=True), merge_mode=None)(embedded(L, keras, x))
    return keras.Model(x, [L.GlobalAveragePooling1D()(f), L.GRU(2)(b)])


def words_of_sentences(L, keras, outer):
    """Steps of steps: every sentence becomes a vector, its mask one element."""
    x = keras.Input((5, 3), dtype="int32", name="ids")
    y = L.TimeDistributed(L.LSTM(3))(embedded(L, keras, x))
    return keras.Model(x, outer(y))


def model_of_steps(L, keras):
    """A model with a mask of its own at every step."""
    i = keras.Input((3,), dtype="int32")
    inner = keras.Model(i, L.LSTM(3)(embedded(L, keras, i)), name="inner")
    x = keras.Input((5, 3), dtype="int32", name="ids")
    return keras.Model(x, L.LSTM(2)(L.TimeDistributed(inner)(x)))


def operations(L, keras):
    """Bare operations drop masks."""
    x = ids(keras)
    y = embedded(L, keras, x)
    return keras.Model(x, [L.GlobalAveragePooling1D()(y * 2.0), L.GlobalAveragePooling1D()(keras.ops.relu(y))])


def softmax_mask(L, keras, rank, **kw):
    x, m = keras.Input((3, 5), name="x"), keras.Input((3, 5) if rank == 3 else (1, 5), dtype="bool", name="m")
    return keras.Model([x, m], L.Softmax(**kw)(x, mask=m))


def softmax_of_ids(L, keras):
    """A mask of the rank of its tensor, which a softmax finds by itself."""
    x, i = keras.Input((6,), name="x"), ids(keras)
    return keras.Model([x, i], L.Softmax()(x, mask=keras.ops.not_equal(i, 0)))


def softmax_mask_written(L, keras):
    x = keras.Input((3, 5), name="x")
    mask = np.arange(15).reshape(1, 3, 5) % 4 > 0
    return keras.Model(x, L.Softmax()(x, mask=keras.ops.convert_to_tensor(mask)))


def float_ids(L, keras):
    x = keras.Input((6,), name="x")
    y = L.Embedding(7, 4, mask_zero=True)(x)
    return keras.Model(x, [y, L.GlobalAveragePooling1D()(y)])


def halves(rng):
    x = rng.integers(0, 7, (4, 6)).astype("f4")
    x[0, :3] = (0.5, 0.0, 3.75)
    return x


def masking(L, keras, value, dtype=None, features=3, consumer=None):
    i = keras.Input((6, features), name="x", dtype=dtype)
    x = L.Masking(value)(i)
    y = (consumer or L.LSTM(2))(keras.ops.cast(x, "float32") if dtype else x)
    return keras.Model(i, [x, y])


def image_steps(L, keras):
    i = keras.Input((4, 3, 2), name="x")
    return keras.Model(i, L.Masking()(i))


SHARED = {
    **merges(one_masked=False),
    "Multiply_lower_rank_masked": lower_rank,
    "Model_mask_through": lambda L, keras: nested(L, keras, lambda L, i: L.LSTM(3, return_sequences=True)(L.Dense(5)(i))),
    "Model_mask_dropped": lambda L, keras: nested(L, keras, lambda L, i: L.Conv1D(3, 2)(i)),
    "Model_mask_made_inside": made_inside,
    "Sequential_mask_through": nested_sequential,
    "Model_two_masks": nested_two,
    "LSTM_explicit_mask": lambda L, keras: explicit(L, keras, L.LSTM(3)),
    "LSTM_explicit_mask_passed": lambda L, keras: explicit(
        L, keras, L.LSTM(3, return_sequences=True), then=L.GlobalAveragePooling1D()
    ),
    "Bidirectional_explicit_mask": lambda L, keras: explicit(L, keras, L.Bidirectional(L.GRU(3, return_sequences=True))),
    "GlobalAveragePooling1D_explicit_mask": lambda L, keras: explicit(L, keras, L.GlobalAveragePooling1D()),
    "GlobalAveragePooling1D_explicit_mask_channels_first": channels_first,
    "BatchNormalization_explicit_mask": lambda L, keras: explicit(L, keras, L.BatchNormalization(), then=L.LSTM(2)),
    "LSTM_masked_states_given": lambda L, keras: with_state(L, keras, L.LSTM(3, return_sequences=True), 2),
    "GRU_masked_state_given": lambda L, keras: with_state(L, keras, L.GRU(3), 1),
    "LSTM_masked_states_returned": state_returned,
    "LSTM_masked_zero_output": lambda L, keras: shown(
        L, keras, L.LSTM(3, return_sequences=True, zero_output_for_mask=True), "LSTM"
    ),
    "LSTM_masked_backwards_mean": lambda L, keras: shown(L, keras, L.LSTM(3, return_sequences=True, go_backwards=True)),
    "Bidirectional_masked_two_ways": two_ways,
    "GlobalMaxPooling1D_masked": lambda L, keras: keras.Sequential(
        [keras.Input((6,), dtype="int32"), L.Embedding(7, 4, mask_zero=True), L.GlobalMaxPooling1D(), L.Dense(2)]
    ),
    "GlobalAveragePooling1D_masked_keepdims": lambda L, keras: keras.Sequential(
        [keras.Input((6,), dtype="int32"), L.Embedding(7, 4, mask_zero=True), L.GlobalAveragePooling1D(keepdims=True)]
    ),
    "Flatten_masked": lambda L, keras: keras.Sequential(
        [keras.Input((6,), dtype="int32"), L.Embedding(7, 4, mask_zero=True), L.Flatten(), L.RepeatVector(3), L.LSTM(2)]
    ),
    "TimeDistributed_model_with_mask": model_of_steps,
    "Softmax_mask": lambda L, keras: softmax_mask(L, keras, 3),
    "Softmax_mask_broadcast": lambda L, keras: softmax_mask(L, keras, 2),
    "Softmax_mask_axes": lambda L, keras: softmax_mask(L, keras, 3, axis=[1, 2]),
    "Embedding_float_ids_masked": float_ids,
    "Masking_zero": lambda L, keras: masking(L, keras, 0.0),
    "Masking_value": lambda L, keras: masking(L, keras, -1.5, consumer=L.GlobalAveragePooling1D()),
    "Masking_images": image_steps,
}

CASES = {
    **table(passing, "passes"),
    **table(dropping, "drops"),
    **merges(),
    **SHARED,
    "Maximum_three_masks": three_maxima,
    "GroupNormalization_passes_mask": lambda L, keras: shown(L, keras, L.GroupNormalization(2)),
    "RMSNormalization_drops_mask": lambda L, keras: shown(L, keras, L.RMSNormalization()),
    "Operations_drop_mask": operations,
    "Masking_per_feature": lambda L, keras: masking(L, keras, np.array([0.5, -1.0, 2.0], "f4")),
    "Masking_integers": lambda L, keras: masking(L, keras, 0, "int32"),
    "Masking_integers_fraction": lambda L, keras: masking(L, keras, 1.5, "int32"),
    "Softmax_mask_written": softmax_mask_written,
    "Softmax_masked_by_ids": softmax_of_ids,
}


def thresholded(L):
    return {"ThresholdedReLU": lambda: L.ThresholdedReLU(0.3)}


def legacy_passing(L):
    kept = {k: v for k, v in passing(L).items() if k not in ("Identity", "Normalization", "Rescaling", "SpectralNormalization")}
    return {**kept, **thresholded(L)}


def legacy_dropping(L):
    return {
        **dropping(L),
        "Identity": lambda: L.Identity(),
        "Normalization": lambda: L.Normalization(mean=0.1, variance=2.0),
        "Rescaling": lambda: L.Rescaling(2.0, 0.5),
    }


LEGACY_CASES = {
    **table(legacy_passing, "passes"),
    **table(legacy_dropping, "drops"),
    **{k: v for k, v in merges().items() if "Concatenate" not in k or "steps" not in k},
    **SHARED,
    "TimeDistributed_sentences": lambda L, keras: words_of_sentences(L, keras, L.LSTM(2)),
    "TimeDistributed_sentences_mean": lambda L, keras: words_of_sentences(L, keras, L.GlobalAveragePooling1D()),
    "Softmax_robust_mask": lambda L, keras: softmax_mask(L, keras, 3, robust_masking=True),
}

INPUTS = {
    "Masking_zero": {"x": masked_rows(6, 3)},
    "Masking_value": {"x": masked_rows(6, 3, -1.5)},
    "Masking_per_feature": {"x": masked_rows(6, 3, (0.5, -1.0, 2.0))},
    "Masking_integers": {"x": lambda rng: rng.integers(0, 2, (4, 6, 3)).astype("i4")},
    "Masking_integers_fraction": {"x": lambda rng: rng.integers(1, 3, (4, 6, 3)).astype("i4")},
    "Masking_images": {"x": lambda rng: rng.integers(0, 2, (4, 4, 3, 2)).astype("f4")},
    "Embedding_float_ids_masked": {"x": halves},
}
