"""Attention: dot-product, additive, multi-head and grouped-query, with every kind of mask."""
import numpy as np

T, S, D = 5, 6, 4


def tensors(keras, *shapes):
    return [keras.Input(shape, name=f"x{i}") for i, shape in enumerate(shapes)]


def plain(L, keras, layer, key=False, **call):
    """Called with a list [query, value] or [query, value, key]."""
    x = tensors(keras, (T, D), (S, D), *([(S, D)] if key else []))
    return keras.Model(x, layer(x, **call))


def masked_list(L, keras, layer, query=True, value=True, **call):
    """Masks of query and value from embeddings; the result's mask shows in a mean."""
    a, b = keras.Input((T,), dtype="int32", name="a"), keras.Input((S,), dtype="int32", name="b")
    q = L.Embedding(7, D, mask_zero=query)(a)
    v = L.Embedding(7, D, mask_zero=value)(b)
    y = layer([q, v], **call)
    return keras.Model([a, b], [y, L.GlobalAveragePooling1D()(y)])


def given_masks(L, keras, layer, query=True, value=True):
    q, v = tensors(keras, (T, D), (S, D))
    qm, vm = keras.Input((T,), dtype="bool", name="qm"), keras.Input((S,), dtype="bool", name="vm")
    y = layer([q, v], mask=[qm if query else None, vm if value else None])
    return keras.Model([q, v] + [qm] * query + [vm] * value, y)


def ranked(L, keras, layer):
    """A batch dimension more."""
    x = tensors(keras, (3, T, D), (3, S, D))
    return keras.Model(x, layer(x))


def heads(L, keras, layer, shapes=((T, D), (S, D)), mask=None, key=False, **call):
    """Called with query and value, a key of other features, and a mask of the given shape beside the batch."""
    shapes = list(shapes) + ([(*shapes[1][:-1], 3)] if key else [])
    x = tensors(keras, *shapes)
    named = dict(call)
    if key:
        named["key"] = x[2]
    if mask:
        x.append(keras.Input(mask, dtype="bool", name="mask"))
        named["attention_mask"] = x[-1]
    y = layer(x[0], x[1], **named)
    return keras.Model(x, list(y) if call.get("return_attention_scores") else y)


def implicit(L, keras, layer, query=True, value=True, key=None, **call):
    """Masks of query, value and key from embeddings."""
    names = ["a", "b"] + (["c"] if key is not None else [])
    i = [keras.Input((n,), dtype="int32", name=name) for name, n in zip(names, (T, S, S))]
    e = [L.Embedding(7, D, mask_zero=m)(x) for x, m in zip(i, (query, value, key))]
    if key is not None:
        call["key"] = e[2]
    y = layer(e[0], e[1], **call)
    y = list(y) if call.get("return_attention_scores") else [y]
    return keras.Model(i, [*y, L.GlobalAveragePooling1D()(y[0])])


def block(L, keras, heads=2, **kw):
    """A transformer block: the residual sum meets a tensor whose mask the attention took off, if it does."""
    i = keras.Input((S,), dtype="int32", name="ids")
    x = L.Embedding(7, D, mask_zero=True)(i)
    for _ in range(2):
        y = L.MultiHeadAttention(heads, 3, **kw)(x, x)
        x = L.LayerNormalization()(L.Add()([x, y]))
        x = L.Add()([x, L.Dense(D)(L.Dense(6, "relu")(x))])
    return keras.Model(i, [x, L.GlobalAveragePooling1D()(x), L.LSTM(2)(x)])


def decoder(L, keras):
    """Two cross attentions with the same values, whose mask both could see."""
    a, b = keras.Input((T,), dtype="int32", name="a"), keras.Input((S,), dtype="int32", name="b")
    x, memory = L.Embedding(7, D, mask_zero=True)(a), L.Embedding(7, D, mask_zero=True)(b)
    y = L.MultiHeadAttention(2, 3)(x, memory)
    z = L.MultiHeadAttention(2, 3)(L.Add()([x, y]), memory, use_causal_mask=True)
    return keras.Model([a, b], [y, z, L.GlobalAveragePooling1D()(memory)])


def maxima_behind(L, keras, turned):
    """Who runs before the attention still sees the mask: a maximum heeds masks while it runs."""
    a, b = keras.Input((S,), dtype="int32", name="a"), keras.Input((S,), dtype="int32", name="b")
    x, w = L.Embedding(7, D, mask_zero=True)(a), L.Embedding(7, D, mask_zero=True)(b)
    y = L.MultiHeadAttention(2, 3)(x, x)
    early, late = L.Maximum()([x, w]), L.Maximum()([x, L.Dense(D)(L.Dense(D)(w))])
    outputs = [y, early, late]
    return keras.Model([a, b], outputs[::-1] if turned else outputs)


def dropped_first(L, keras):
    """A dropout gives its tensor on as it is, mask included, so that the attention takes the mask off both."""
    a, b = keras.Input((S,), dtype="int32", name="a"), keras.Input((S,), dtype="int32", name="b")
    x = L.Embedding(7, D, mask_zero=True)(a)
    d = L.Dropout(0.3)(x)
    y = L.MultiHeadAttention(2, 3)(d, d)
    return keras.Model([a, b], L.Multiply()([x, L.Embedding(7, D, mask_zero=True)(b), y]))


def nested(L, keras):
    """The attention is inside a model used as a layer."""
    i = keras.Input((S, D))
    inner = keras.Model(i, L.Add()([i, L.MultiHeadAttention(2, 3)(i, i)]), name="inner")
    a = keras.Input((S,), dtype="int32", name="a")
    x = L.Embedding(7, D, mask_zero=True)(a)
    return keras.Model(a, [inner(x), L.Multiply()([L.Dense(D)(x), inner(x)])])


def written_mask(L, keras):
    """A mask that is a constant of the file."""
    x = keras.Input((T, D), name="x")
    mask = np.tril(np.ones((1, T, T), bool), 1)
    return keras.Model(x, L.MultiHeadAttention(2, 3)(x, x, attention_mask=mask))


def self_scores(L, keras, layer):
    x = keras.Input((S, D))
    return keras.Model(x, list(layer(x, x, return_attention_scores=True)))


def of_query(L, keras):
    """Masks that are given beside those tensors have."""
    a, b = keras.Input((T,), dtype="int32", name="a"), keras.Input((S,), dtype="int32", name="b")
    q, v = L.Embedding(7, D, mask_zero=True)(a), L.Embedding(7, D)(b)
    y = L.MultiHeadAttention(2, 3)(q, v, value_mask=keras.ops.not_equal(b, 0))
    return keras.Model([a, b], [y, L.GlobalAveragePooling1D()(y)])


def grouped_given(L, keras):
    q, v = tensors(keras, (T, D), (S, D))
    qm, km = keras.Input((T,), dtype="bool", name="qm"), keras.Input((S,), dtype="bool", name="km")
    y = L.GroupQueryAttention(3, 4, 2)(q, v, query_mask=qm, key_mask=km)
    return keras.Model([q, v, qm, km], y)


SHARED = {
    "Attention_plain": lambda L, keras: plain(L, keras, L.Attention()),
    "Attention_key": lambda L, keras: plain(L, keras, L.Attention(), key=True),
    "Attention_scale": lambda L, keras: plain(L, keras, L.Attention(use_scale=True)),
    "Attention_concat": lambda L, keras: plain(L, keras, L.Attention(score_mode="concat")),
    "Attention_concat_scale": lambda L, keras: plain(L, keras, L.Attention(score_mode="concat", use_scale=True)),
    "Attention_dropout": lambda L, keras: plain(L, keras, L.Attention(dropout=0.4)),
    "Attention_causal": lambda L, keras: plain(L, keras, L.Attention(), use_causal_mask=True),
    "Attention_scores": lambda L, keras: plain(L, keras, L.Attention(), return_attention_scores=True),
    "Attention_masked": lambda L, keras: masked_list(L, keras, L.Attention()),
    "Attention_masked_query": lambda L, keras: masked_list(L, keras, L.Attention(), value=False),
    "Attention_masked_value": lambda L, keras: masked_list(L, keras, L.Attention(), query=False),
    "Attention_masked_causal": lambda L, keras: masked_list(L, keras, L.Attention(), use_causal_mask=True),
    "Attention_given_masks": lambda L, keras: given_masks(L, keras, L.Attention()),
    "Attention_given_value_mask": lambda L, keras: given_masks(L, keras, L.Attention(), query=False),
    "Attention_given_query_mask": lambda L, keras: given_masks(L, keras, L.Attention(), value=False),
    "Attention_rank_4": lambda L, keras: ranked(L, keras, L.Attention()),
    "AdditiveAttention_plain": lambda L, keras: plain(L, keras, L.AdditiveAttention()),
    "AdditiveAttention_key": lambda L, keras: plain(L, keras, L.AdditiveAttention(), key=True),
    "AdditiveAttention_no_scale": lambda L, keras: plain(L, keras, L.AdditiveAttention(use_scale=False)),
    "AdditiveAttention_masked_causal": lambda L, keras: masked_list(L, keras, L.AdditiveAttention(), use_causal_mask=True),
    "AdditiveAttention_given_masks": lambda L, keras: given_masks(L, keras, L.AdditiveAttention()),
    "AdditiveAttention_scores": lambda L, keras: plain(L, keras, L.AdditiveAttention(), return_attention_scores=True),
    "MultiHeadAttention_plain": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3)),
    "MultiHeadAttention_value_dim": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3, value_dim=5)),
    "MultiHeadAttention_no_bias": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3, use_bias=False)),
    "MultiHeadAttention_output_shape": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3, output_shape=7)),
    "MultiHeadAttention_output_shapes": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3, output_shape=(2, 3))),
    "MultiHeadAttention_key": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3), key=True),
    "MultiHeadAttention_dropout": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3, dropout=0.4)),
    "MultiHeadAttention_scores": lambda L, keras: self_scores(L, keras, L.MultiHeadAttention(2, 3)),
    "MultiHeadAttention_causal": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3), use_causal_mask=True),
    "MultiHeadAttention_mask_rank_3": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3), mask=(T, S)),
    "MultiHeadAttention_mask_keys": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3), mask=(1, S)),
    "MultiHeadAttention_mask_rank_4": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3), mask=(2, T, S)),
    "MultiHeadAttention_mask_heads_alike": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3), mask=(1, T, S)),
    "MultiHeadAttention_mask_causal": lambda L, keras: heads(
        L, keras, L.MultiHeadAttention(2, 3), mask=(T, S), use_causal_mask=True
    ),
    "MultiHeadAttention_mask_dropout": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3, dropout=0.2), mask=(T, S)),
    "MultiHeadAttention_mask_written": written_mask,
    "MultiHeadAttention_masked": lambda L, keras: implicit(L, keras, L.MultiHeadAttention(2, 3)),
    "MultiHeadAttention_masked_query": lambda L, keras: implicit(L, keras, L.MultiHeadAttention(2, 3), value=False),
    "MultiHeadAttention_masked_value": lambda L, keras: implicit(L, keras, L.MultiHeadAttention(2, 3), query=False),
    "MultiHeadAttention_masked_key": lambda L, keras: implicit(L, keras, L.MultiHeadAttention(2, 3), key=True),
    "MultiHeadAttention_masked_key_alone": lambda L, keras: implicit(
        L, keras, L.MultiHeadAttention(2, 3), query=False, value=False, key=True
    ),
    "MultiHeadAttention_masked_causal": lambda L, keras: implicit(
        L, keras, L.MultiHeadAttention(2, 3), use_causal_mask=True
    ),
    "MultiHeadAttention_masked_dropout": lambda L, keras: implicit(L, keras, L.MultiHeadAttention(2, 3, dropout=0.2)),
    "MultiHeadAttention_axis": lambda L, keras: heads(
        L, keras, L.MultiHeadAttention(2, 3, attention_axes=2), ((3, T, D), (3, S, D))
    ),
    "MultiHeadAttention_axis_mask": lambda L, keras: heads(
        L, keras, L.MultiHeadAttention(2, 3, attention_axes=(2,)), ((3, T, D), (3, S, D)), mask=(3, T, S)
    ),
    "MultiHeadAttention_axes": lambda L, keras: heads(
        L, keras, L.MultiHeadAttention(2, 3, attention_axes=(1, 2)), ((2, 3, D), (2, 3, D))
    ),
    "MultiHeadAttention_all_axes": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3), ((2, 3, D), (3, 2, D))),
    "MultiHeadAttention_outer_axis": lambda L, keras: heads(
        L, keras, L.MultiHeadAttention(2, 3, attention_axes=(1,)), ((T, 2, D), (S, 2, D))
    ),
    "MultiHeadAttention_blocks": block,
    "MultiHeadAttention_decoder": decoder,
    "MultiHeadAttention_nested": nested,
    "MultiHeadAttention_behind_dropout": dropped_first,
}

def in_16_bits():
    """Fill values and sums in half precisions."""
    out = {}
    for kind in ("mixed_float16", "mixed_bfloat16", "float16"):
        for name, layer in {
            "Attention": lambda L, kind: L.Attention(use_scale=True, dtype=kind),
            "AdditiveAttention": lambda L, kind: L.AdditiveAttention(dtype=kind),
        }.items():
            out[f"{name}_masked_{kind}"] = lambda L, keras, f=layer, k=kind: given_masks(L, keras, f(L, k))
        for name, layer in {
            "MultiHeadAttention": lambda L, kind: L.MultiHeadAttention(2, 3, dtype=kind),
            "MultiHeadAttention_dropout": lambda L, kind: L.MultiHeadAttention(2, 3, dropout=0.2, dtype=kind),
            "GroupQueryAttention": lambda L, kind: L.GroupQueryAttention(3, 4, 2, dtype=kind),
        }.items():
            cls, _, what = name.partition("_")
            out[f"{cls}_mask_{what + '_' if what else ''}{kind}"] = lambda L, keras, f=layer, k=kind: heads(
                L, keras, f(L, k), mask=(T, S)
            )
    return out


CASES = {
    **SHARED,
    **in_16_bits(),
    "MultiHeadAttention_gate": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3, value_dim=5, use_gate=True)),
    "MultiHeadAttention_window": lambda L, keras: heads(L, keras, L.MultiHeadAttention(2, 3, sliding_window=2)),
    "MultiHeadAttention_window_causal": lambda L, keras: heads(
        L, keras, L.MultiHeadAttention(2, 3, sliding_window=3), use_causal_mask=True
    ),
    "MultiHeadAttention_maxima": lambda L, keras: maxima_behind(L, keras, False),
    "MultiHeadAttention_maxima_turned": lambda L, keras: maxima_behind(L, keras, True),
    "MultiHeadAttention_given_masks": of_query,
    "GroupQueryAttention_plain": lambda L, keras: heads(L, keras, L.GroupQueryAttention(3, 4, 2)),
    "GroupQueryAttention_one_head": lambda L, keras: heads(L, keras, L.GroupQueryAttention(3, 4, 1)),
    "GroupQueryAttention_all_heads": lambda L, keras: heads(L, keras, L.GroupQueryAttention(3, 2, 2)),
    "GroupQueryAttention_no_bias": lambda L, keras: heads(L, keras, L.GroupQueryAttention(3, 4, 2, use_bias=False)),
    "GroupQueryAttention_gate": lambda L, keras: heads(L, keras, L.GroupQueryAttention(3, 4, 2, use_gate=True)),
    "GroupQueryAttention_window": lambda L, keras: heads(L, keras, L.GroupQueryAttention(3, 4, 2, sliding_window=2)),
    "GroupQueryAttention_dropout": lambda L, keras: heads(L, keras, L.GroupQueryAttention(3, 4, 2, dropout=0.3)),
    "GroupQueryAttention_causal": lambda L, keras: heads(L, keras, L.GroupQueryAttention(3, 4, 2), use_causal_mask=True),
    "GroupQueryAttention_mask": lambda L, keras: heads(L, keras, L.GroupQueryAttention(3, 4, 2), mask=(T, S)),
    "GroupQueryAttention_masked": lambda L, keras: implicit(L, keras, L.GroupQueryAttention(3, 4, 2)),
    "GroupQueryAttention_masked_key": lambda L, keras: implicit(L, keras, L.GroupQueryAttention(3, 4, 2), key=True),
    "GroupQueryAttention_given_masks": grouped_given,
    "GroupQueryAttention_scores": lambda L, keras: heads(
        L, keras, L.GroupQueryAttention(3, 4, 2), return_attention_scores=True
    ),
}

LEGACY_CASES = SHARED
