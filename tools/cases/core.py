"""Dense and embedding layers, and layers that do something in training only."""


def sequential(keras, shape, *layers, **kw):
    return keras.Sequential([keras.Input(shape, **kw), *layers])


def reversible(L, keras, **kw):
    layer = L.ReversibleEmbedding(7, 4, **kw)
    ids = keras.Input((5,), dtype="int32", name="ids")
    x = layer(ids)
    return keras.Model(ids, [x, layer(L.Dense(4, "tanh")(x), reverse=True)])


def reversible_masked(L, keras):
    layer = L.ReversibleEmbedding(7, 4, mask_zero=True)
    ids = keras.Input((5,), dtype="int32", name="ids")
    x = layer(ids)
    return keras.Model(ids, [L.GlobalAveragePooling1D()(x), layer(L.LSTM(4, return_sequences=True)(x), reverse=True)])


def shared_dense(L, keras):
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    dense = L.Dense(3, "relu")
    return keras.Model([a, b], [dense(a), dense(b)])


def structure(L, keras):
    """An identity of several tensors."""
    a, b = keras.Input((4,), name="a"), keras.Input((3,), name="b")
    x, y = L.Identity()([a, b])
    return keras.Model([a, b], [L.Dense(2)(x), y])


def optional_input(L, keras):
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b", optional=True)
    return keras.Model([a, b], L.Add()([a, b]))


def einsum(equation, output, shape=(5, 4), **kw):
    return lambda L, keras: sequential(keras, shape, L.EinsumDense(equation, output, **kw))


def dropouts(L):
    return {
        "Dropout": lambda: L.Dropout(0.4),
        "Dropout_noise_shape": lambda: L.Dropout(0.4, noise_shape=(None, 1, 4), seed=5),
        "Dropout_zero": lambda: L.Dropout(0.0),
        "AlphaDropout": lambda: L.AlphaDropout(0.4),
        "GaussianDropout": lambda: L.GaussianDropout(0.4, seed=2),
        "GaussianNoise": lambda: L.GaussianNoise(0.4, seed=2),
        "SpatialDropout1D": lambda: L.SpatialDropout1D(0.4),
        "ActivityRegularization": lambda: L.ActivityRegularization(0.1, 0.2),
    }


def of_convnext(L, keras, name, *args):
    """A layer that models of `keras.applications` bring along, under a mask."""
    layer = getattr(keras.src.applications.convnext, name)(*args)
    first = [keras.Input((5,), dtype="int32"), L.Embedding(7, 4, mask_zero=True)]
    return keras.Sequential([*first, layer, L.GlobalAveragePooling1D()])


class Layers:
    """Stands for `keras.layers` where only the names of cases are wanted."""

    def __getattr__(self, name):
        return None


def quiet():
    """Layers that outside of training give what they get, between two that do not."""
    out = {}
    for name in dropouts(Layers()):
        out[f"{name}_inference"] = lambda L, keras, n=name: sequential(keras, (5, 4), L.Dense(4), dropouts(L)[n](), L.Dense(3))
    for rank, shape in ((2, (4, 5, 3)), (3, (2, 3, 4, 3))):
        out[f"SpatialDropout{rank}D_inference"] = lambda L, keras, r=rank, s=shape: sequential(
            keras, s, getattr(L, f"SpatialDropout{r}D")(0.4, data_format="channels_first" if r == 2 else None), L.Dense(2)
        )
    return out


SHARED = {
    **quiet(),
    "StochasticDepth_masked": lambda L, keras: of_convnext(L, keras, "StochasticDepth", 0.3),
    "LayerScale_masked": lambda L, keras: of_convnext(L, keras, "LayerScale", 0.5, 4),
    "Dense_rank_2": lambda L, keras: sequential(keras, (4,), L.Dense(3)),
    "Dense_rank_3": lambda L, keras: sequential(keras, (5, 4), L.Dense(3, "tanh")),
    "Dense_rank_4": lambda L, keras: sequential(keras, (2, 5, 4), L.Dense(3, use_bias=False)),
    "Dense_rank_5": lambda L, keras: sequential(keras, (2, 3, 2, 4), L.Dense(3)),
    "Dense_integers": lambda L, keras: sequential(keras, (4,), L.Dense(3), dtype="int32"),
    "Dense_shared": shared_dense,
    "Dense_no_steps_mixed": lambda L, keras: sequential(keras, (5, 1), L.Dense(3)),
    "EinsumDense_dense": einsum("ab,bc->ac", 3, (4,), bias_axes="c"),
    "EinsumDense_steps": einsum("abc,cd->abd", (None, 3), bias_axes="d", activation="relu"),
    "EinsumDense_no_bias": einsum("abc,cd->abd", (5, 3)),
    "EinsumDense_heads": einsum("abc,cde->abde", (None, 2, 3), bias_axes="de"),
    "EinsumDense_heads_bias_of_one": einsum("abc,cde->abde", (None, 2, 3), bias_axes="d"),
    "EinsumDense_join_heads": einsum("abde,dec->abc", (None, 3), (5, 2, 4), bias_axes="c"),
    "EinsumDense_ellipsis": einsum("...x,xy->...y", 3, (2, 5, 4), bias_axes="y"),
    "EinsumDense_ellipsis_behind": einsum("ab...,bc->ac...", (3, 4), (5, 4), bias_axes="c"),
    "EinsumDense_mixes_steps": einsum("abc,bd->adc", (3, 4)),
    "EinsumDense_per_step": einsum("abc,bcd->abd", (5, 3), bias_axes="bd"),
    "EinsumDense_depthwise": einsum("abc,c->abc", (5, 4), bias_axes="c"),
    "EinsumDense_turned": einsum("abc,dc->adb", (3, 5), bias_axes="d"),
    "Embedding_plain": lambda L, keras: sequential(keras, (5,), L.Embedding(7, 4), dtype="int32"),
    "Embedding_int64": lambda L, keras: sequential(keras, (5,), L.Embedding(7, 4), dtype="int64"),
    "Embedding_uint8": lambda L, keras: sequential(keras, (5,), L.Embedding(7, 4), dtype="uint8"),
    "Embedding_float_ids": lambda L, keras: sequential(keras, (5,), L.Embedding(7, 4)),
    "Embedding_rank_1": lambda L, keras: sequential(keras, (), L.Embedding(7, 4), dtype="int32"),
    "Embedding_rank_3": lambda L, keras: sequential(keras, (2, 3), L.Embedding(7, 4), L.Dense(2), dtype="int32"),
    "Embedding_one_row": lambda L, keras: sequential(keras, (5,), L.Embedding(1, 4), dtype="int32"),
}

CASES = {
    **SHARED,
    "AlphaDropout_noise_shape": lambda L, keras: sequential(keras, (5, 4), L.AlphaDropout(0.4, noise_shape=(None, 5, 1)), L.Dense(3)),
    "Identity_plain": lambda L, keras: sequential(keras, (5, 4), L.Identity(), L.Dense(2)),
    "Identity_several": structure,
    "InputLayer_optional": optional_input,
    "InputLayer_batch_shape": lambda L, keras: keras.Sequential([keras.Input(batch_shape=(4, 5)), L.Dense(2)]),
    "ReversibleEmbedding_tied": reversible,
    "ReversibleEmbedding_untied": lambda L, keras: reversible(L, keras, tie_weights=False),
    "ReversibleEmbedding_capped": lambda L, keras: reversible(L, keras, logit_soft_cap=2.0),
    "ReversibleEmbedding_reverse_dtype": lambda L, keras: reversible(L, keras, reverse_dtype="float32"),
    "ReversibleEmbedding_masked": reversible_masked,
}

LEGACY_CASES = {
    **SHARED,
    "Embedding_input_length": lambda L, keras: keras.Sequential([L.Embedding(7, 4, input_length=5), L.Flatten(), L.Dense(2)]),
    "Dense_input_shape": lambda L, keras: keras.Sequential([L.Dense(3, input_shape=(4,)), L.Dense(2)]),
    "InputLayer_batch_shape": lambda L, keras: keras.Sequential([keras.Input(batch_shape=(4, 5)), L.Dense(2)]),
}

