"""Bare operations: `keras.ops` in functional models, and TensorFlow's operations in those of tf-keras."""


def ops_model(keras, shapes, *functions, dtypes=None):
    dtypes = dtypes or ["float32"] * len(shapes)
    inputs = [keras.Input(s, dtype=t, name=f"in{i}") for i, (s, t) in enumerate(zip(shapes, dtypes))]
    outputs = []
    for function in functions:
        made = function(*inputs)
        outputs += list(made) if isinstance(made, (list, tuple)) else [made]
    return keras.Model(inputs, outputs)


def one(*functions, shape=(4, 6)):
    return lambda L, keras: ops_model(keras, [shape], *[bind(keras, f) for f in functions])


def two(*functions, shapes=((4, 6), (4, 6)), dtypes=None):
    return lambda L, keras: ops_model(keras, shapes, *[bind(keras, f) for f in functions], dtypes=dtypes)


def bind(keras, function):
    return lambda *inputs: function(keras.ops, *inputs)


def each(names):
    return [lambda o, x, n=n: getattr(o, n)(x) for n in names.split()]


def each_pair(names):
    return [lambda o, x, y, n=n: getattr(o, n)(x, y) for n in names.split()]


def positive(*functions):
    return lambda L, keras: ops_model(keras, [(4, 6)], *[lambda x, f=f: f(keras.ops, keras.ops.abs(x) + 0.3) for f in functions])


def within(*functions):
    return lambda L, keras: ops_model(keras, [(4, 6)], *[lambda x, f=f: f(keras.ops, keras.ops.tanh(x) * 0.9) for f in functions])


def halves(kind, *functions):
    """Operations on what a layer of that type gives."""
    return lambda L, keras: ops_model(keras, [(4, 6)], *[lambda x, f=f: f(keras.ops, half(x)) for half in [L.Activation("linear", dtype=kind)] for f in functions])


CASES = {
    "Add_pairs": two(*each_pair("add subtract multiply maximum minimum arctan2 hypot logaddexp logaddexp2 fmax fmin heaviside")),
    "Divide_pairs": two(*[lambda o, x, y, n=n: getattr(o, n)(x, o.abs(y) + 0.5) for n in "divide true_divide floor_divide mod fmod divide_no_nan".split()]),
    "Add_numbers": one(lambda o, x: x + 1, lambda o, x: 2 - x, lambda o, x: x * 2.5, lambda o, x: x / 4, lambda o, x: 3 / (x + 9), lambda o, x: -x, lambda o, x: x // 0.7, lambda o, x: x % 0.7),
    "Power_positive": positive(lambda o, x: x ** 2.5, lambda o, x: o.power(x, -1), lambda o, x: o.power(2.0, x), lambda o, x: o.sqrt(x), lambda o, x: o.rsqrt(x), lambda o, x: o.log(x), lambda o, x: o.log2(x), lambda o, x: o.log10(x), lambda o, x: o.log1p(x), lambda o, x: o.reciprocal(x), lambda o, x: o.arccosh(x + 1), lambda o, x: o.cbrt(x)),
    "Sin_functions": one(*each("sin cos tan sinh cosh tanh arcsinh arctan exp expm1 exp2 sigmoid erf sinc deg2rad rad2deg square sign negative abs floor ceil round trunc")),
    "Arcsin_functions": within(*each("arcsin arccos arctanh erfinv")),
    "Round_decimals": one(lambda o, x: o.round(x, 1)),
    "Greater_comparisons": two(*each_pair("greater greater_equal less less_equal equal not_equal isclose logical_and logical_or logical_xor"), lambda o, x, y: o.logical_not(x > 0), lambda o, x, y: o.isfinite(x), lambda o, x, y: o.isnan(x), lambda o, x, y: o.isinf(x)),
    "BitwiseAnd_integers": two(*each_pair("bitwise_and bitwise_or bitwise_xor"), lambda o, x, y: o.bitwise_not(x), lambda o, x, y: o.left_shift(x, 2), lambda o, x, y: o.floor_divide(x, y + 1), lambda o, x, y: o.sum(x), dtypes=["int32", "int32"]),
    "Add_promotions": two(lambda o, x, y: x + y, lambda o, x, y: x / y, lambda o, x, y: y * 2, lambda o, x, y: y * 2.5, lambda o, x, y: o.mean(y, axis=1), lambda o, x, y: o.sqrt(y), lambda o, x, y: o.cast(x, "int32"), lambda o, x, y: o.sum(y > 2, axis=1), dtypes=["float32", "int32"]),
    "Clip_bounds": one(lambda o, x: o.clip(x, -0.5, 0.5), lambda o, x: o.where(x > 0, x, 0), lambda o, x: o.where(x > 0, x, o.zeros_like(x)), lambda o, x: o.nan_to_num(x), lambda o, x: o.select([x > 1, x > 0], [x, 2 * x], 7.0)),
    "Sum_axes": one(lambda o, x: o.sum(x, axis=1), lambda o, x: o.mean(x, axis=-1, keepdims=True), lambda o, x: o.prod(x, axis=(1, 2)), lambda o, x: o.max(x, axis=1), lambda o, x: o.min(x, axis=[1, 2], keepdims=True), lambda o, x: o.var(x, axis=1), lambda o, x: o.std(x, axis=-1), lambda o, x: o.any(x > 0, axis=1), lambda o, x: o.all(x > 0, axis=1), lambda o, x: o.argmax(x, axis=1), lambda o, x: o.argmin(x, axis=-1), lambda o, x: o.count_nonzero(x > 0, axis=1), lambda o, x: o.logsumexp(x, axis=1), lambda o, x: o.norm(x, axis=1), lambda o, x: o.norm(x, ord=1, axis=1), lambda o, x: o.average(x, axis=1), lambda o, x: o.ptp(x, axis=1), lambda o, x: o.moments(x, axes=[1])),
    "Mean_of_all": one(lambda o, x: o.mean(x) + x),
    "StopGradient_factors": two(lambda o, x, y: x * o.stop_gradient(x * y), lambda o, x, y: o.tanh(x - o.stop_gradient(o.mean(x, axis=1, keepdims=True))), lambda o, x, y: o.stop_gradient(o.exp(y)) + y),
    "Moments_forms": one(lambda o, x: o.moments(x, axes=[1]), lambda o, x: o.moments(x, axes=[1, -1], keepdims=True), lambda o, x: o.moments(x * x, axes=[2])),
    **{f"Mean_{kind}": halves(kind, lambda o, x: o.mean(x, axis=1), lambda o, x: o.var(x, axis=-1), lambda o, x: o.average(x, axis=1), lambda o, x: o.moments(x, axes=[1])) for kind in ("float16", "bfloat16")},
    "Cumsum_axes": one(lambda o, x: o.cumsum(x, axis=1), lambda o, x: o.cumprod(x, axis=-1), lambda o, x: o.diff(x, axis=1)),
    "Sort_axes": one(lambda o, x: o.sort(x, axis=1), lambda o, x: o.argsort(x, axis=-1), lambda o, x: o.top_k(x, 3), lambda o, x: o.median(x, axis=1), lambda o, x: o.quantile(x, 0.3, axis=1)),
    "Reshape_forms": one(lambda o, x: o.reshape(x, (-1, 24)), lambda o, x: o.transpose(x, (0, 2, 1)), lambda o, x: o.swapaxes(x, 1, 2), lambda o, x: o.moveaxis(x, 1, -1), lambda o, x: o.expand_dims(x, 1), lambda o, x: o.squeeze(o.expand_dims(x, -1), -1), lambda o, x: o.flip(x, axis=1), lambda o, x: o.roll(x, 2, axis=1), lambda o, x: o.repeat(x, 2, axis=1), lambda o, x: o.tile(x, (1, 2, 3)), lambda o, x: o.rot90(x, axes=(1, 2))),
    "Reshape_shape": one(lambda o, x: o.reshape(x, (o.shape(x)[0], -1)) if False else o.reshape(x, (-1, o.shape(x)[1] * o.shape(x)[2]))),
    "Concatenate_forms": two(lambda o, x, y: o.concatenate([x, y], axis=-1), lambda o, x, y: o.stack([x, y], axis=1), lambda o, x, y: o.hstack([x, y]), lambda o, x, y: o.unstack(x, axis=1), lambda o, x, y: o.split(x, 2, axis=1), lambda o, x, y: o.split(x, [1, 4], axis=2), lambda o, x, y: o.append(x, y, axis=1)),
    "Pad_modes": one(lambda o, x: o.pad(x, ((0, 0), (1, 2), (0, 1))), lambda o, x: o.pad(x, ((0, 0), (1, 2), (2, 1)), mode="reflect"), lambda o, x: o.pad(x, ((0, 0), (1, 2), (2, 1)), mode="symmetric"), lambda o, x: o.pad(x, ((0, 0), (1, 1), (0, 0)), constant_values=3.0)),
    "GetItem_forms": one(lambda o, x: x[:, 0], lambda o, x: x[:, ::-1], lambda o, x: x[..., None], lambda o, x: x[:, 1:3, ::2], lambda o, x: x[:, -1, :], lambda o, x: x[:, None, ..., 2:]),
    "Take_forms": one(lambda o, x: o.take(x, [0, 2, -1], axis=1), lambda o, x: o.take(x, 1, axis=2), lambda o, x: o.take_along_axis(x, o.argsort(x, axis=1), axis=1)),
    "Take_integers": two(lambda o, x, y: o.take_along_axis(x, o.clip(y, 0, 3), axis=2), lambda o, x, y: o.one_hot(o.clip(y, 0, 6), 7) * 2.0, lambda o, x, y: o.one_hot(y, 7), lambda o, x, y: o.multi_hot(y, 7), dtypes=["float32", "int32"]),
    "Tril_forms": one(lambda o, x: o.tril(x), lambda o, x: o.triu(x, k=1), lambda o, x: o.full_like(x, 2.0) * x, lambda o, x: o.ones_like(x) + x),
    "Matmul_forms": two(lambda o, x, y: o.matmul(x, o.transpose(y, (0, 2, 1))), lambda o, x, y: o.einsum("bij,bkj->bik", x, y), lambda o, x, y: o.einsum("bij->bj", x), lambda o, x, y: o.trace(o.matmul(x, o.transpose(y, (0, 2, 1))), axis1=1, axis2=2), lambda o, x, y: o.diagonal(x, axis1=1, axis2=2)),
    "Relu_activations": one(*each("relu relu6 leaky_relu elu selu gelu softplus softsign silu hard_silu hard_sigmoid log_sigmoid hard_tanh celu squareplus soft_shrink hard_shrink tanh_shrink sparse_plus sparse_sigmoid glu"), lambda o, x: o.gelu(x, approximate=False), lambda o, x: o.softmax(x), lambda o, x: o.softmax(x, axis=1), lambda o, x: o.log_softmax(x), lambda o, x: o.threshold(x, 0.1, 0.5)),
    "Normalize_forms": one(lambda o, x: o.normalize(x), lambda o, x: o.normalize(x, axis=1, order=1), lambda o, x: o.layer_normalization(x), lambda o, x: o.rms_normalization(x)),
    "MaxPool_forms": one(lambda o, x: o.max_pool(x, 2), lambda o, x: o.average_pool(x, 3, strides=2, padding="same"), shape=(6, 6, 3)),
    "Conv_tensors": two(lambda o, x, y: o.conv(x, o.ones((2, 2, 3, 4)) * 0.3, padding="same") + 0 * o.sum(y), shapes=((6, 6, 3), (2,))),
    "DotProductAttention_forms": two(lambda o, x, y: o.dot_product_attention(x, y, y), lambda o, x, y: o.dot_product_attention(x, y, y, is_causal=True), shapes=((5, 2, 4), (5, 2, 4))),
    "Resize_forms": one(lambda o, x: o.image.resize(x, (7, 5)), lambda o, x: o.image.resize(x, (8, 8), interpolation="nearest"), lambda o, x: o.image.rgb_to_grayscale(x), shape=(4, 6, 3)),
    "DepthToSpace_forms": one(lambda o, x: o.depth_to_space(x, 2), lambda o, x: o.space_to_depth(x, 2), shape=(4, 4, 8)),
}


def legacy(*functions, shape=(4, 6)):
    def build(L, keras):
        import tensorflow as tf

        x = keras.Input(shape, name="in0")
        outputs = []
        for function in functions:
            made = function(tf, x)
            outputs += list(made) if isinstance(made, (list, tuple)) else [made]
        return keras.Model(x, outputs)

    return build


LEGACY_CASES = {
    "TFOpLambda_stops": legacy(lambda t, x: x * t.stop_gradient(x * x), lambda t, x: t.nn.moments(x, [1]), lambda t, x: t.nn.moments(x * x, axes=[1, 2], keepdims=True)),
    "TFOpLambda_arithmetic": legacy(lambda t, x: x + 1, lambda t, x: 2 - x, lambda t, x: x * 2.5, lambda t, x: x / 4, lambda t, x: -x, lambda t, x: t.math.subtract(x, 1), lambda t, x: t.maximum(x, 0.1), lambda t, x: t.minimum(x, x * 2), lambda t, x: t.pow(t.abs(x) + 1, 1.5), lambda t, x: t.math.squared_difference(x, x * 3), lambda t, x: t.math.divide_no_nan(x, x), lambda t, x: x // 0.7, lambda t, x: x + [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]),
    "TFOpLambda_functions": legacy(*[lambda t, x, n=n: getattr(t.math, n)(x) for n in "exp sqrt_ sin cos tanh sigmoid square sign floor ceil abs negative erf softplus".replace("sqrt_ ", "").split()], lambda t, x: t.sqrt(t.abs(x) + 0.1), lambda t, x: t.math.log(t.abs(x) + 0.1), lambda t, x: t.math.rsqrt(t.abs(x) + 0.1), lambda t, x: t.round(x)),
    "TFOpLambda_nn": legacy(lambda t, x: t.nn.relu(x), lambda t, x: t.nn.relu6(x), lambda t, x: t.nn.leaky_relu(x), lambda t, x: t.nn.elu(x), lambda t, x: t.nn.selu(x), lambda t, x: t.nn.gelu(x), lambda t, x: t.nn.softmax(x), lambda t, x: t.nn.softmax(x, axis=1), lambda t, x: t.nn.log_softmax(x), lambda t, x: t.nn.swish(x), lambda t, x: t.nn.l2_normalize(x, axis=-1), lambda t, x: t.clip_by_value(x, -0.5, 0.5)),
    "TFOpLambda_reductions": legacy(lambda t, x: t.reduce_mean(x, axis=1), lambda t, x: t.reduce_sum(x, axis=[1, 2], keepdims=True), lambda t, x: t.reduce_max(x, axis=-1), lambda t, x: t.reduce_min(x, axis=1), lambda t, x: t.reduce_prod(x, axis=1), lambda t, x: t.math.reduce_std(x, axis=1), lambda t, x: t.math.reduce_variance(x, axis=1), lambda t, x: t.reduce_logsumexp(x, axis=1), lambda t, x: t.argmax(x, axis=-1), lambda t, x: t.argmin(x, axis=1), lambda t, x: t.cumsum(x, axis=1), lambda t, x: t.norm(x, axis=-1), lambda t, x: t.reduce_any(x > 0, axis=1)),
    "TFOpLambda_shapes": legacy(lambda t, x: t.reshape(x, [t.shape(x)[0], -1]), lambda t, x: t.reshape(x, (-1, t.shape(x)[1] * t.shape(x)[2])), lambda t, x: t.transpose(x, [0, 2, 1]), lambda t, x: t.expand_dims(x, 1), lambda t, x: t.squeeze(t.expand_dims(x, -1), -1), lambda t, x: t.tile(x, [1, 2, 1]), lambda t, x: t.concat([x, x], axis=-1), lambda t, x: t.stack([x, x * 2], axis=1), lambda t, x: t.unstack(x, axis=1), lambda t, x: t.split(x, 2, axis=1), lambda t, x: t.split(x, [1, 5], axis=2), lambda t, x: t.pad(x, [[0, 0], [1, 1], [2, 0]]), lambda t, x: t.repeat(x, 2, axis=1), lambda t, x: t.reverse(x, axis=[1]), lambda t, x: t.roll(x, 1, axis=1), lambda t, x: t.zeros((t.shape(x)[0], 3)) + x[:, 0, :3]),
    "TFOpLambda_choices": legacy(lambda t, x: t.where(x > 0, x, t.zeros_like(x)), lambda t, x: t.gather(x, [0, 2], axis=1), lambda t, x: t.one_hot(t.cast(t.abs(x[:, :, 0]), t.int32), 5) + 0 * x[:, :, :5], lambda t, x: t.math.top_k(x, 2).values, lambda t, x: t.sort(x, axis=1), lambda t, x: t.cast(x, "int32"), lambda t, x: t.slice(x, [0, 1, 0], [-1, 2, -1]), lambda t, x: x + t.cast(t.range(t.shape(x)[2]), "float32")),
    "TFOpLambda_products": legacy(lambda t, x: t.matmul(x, x, transpose_b=True), lambda t, x: t.tensordot(x, t.ones((6, 3)), axes=1), lambda t, x: t.linalg.matmul(x, t.transpose(x, [0, 2, 1]))),
    "TFOpLambda_resize": legacy(lambda t, x: t.image.resize(x, (7, 5)), lambda t, x: t.image.resize(x, (8, 8), method="nearest"), shape=(4, 6, 3)),
    "TFOpLambda_images": legacy(lambda t, x: t.nn.depth_to_space(x, 2), lambda t, x: t.nn.space_to_depth(x, 2), lambda t, x: t.nn.max_pool2d(x, 2, 2, "VALID"), lambda t, x: t.nn.avg_pool2d(x, 3, 1, "SAME"), lambda t, x: t.nn.conv2d(x, t.ones((2, 2, 8, 3)) * 0.3, 1, "SAME"), shape=(4, 4, 8)),
    "SlicingOpLambda_forms": legacy(lambda t, x: x[:, 0], lambda t, x: x[:, ::-1], lambda t, x: x[..., t.newaxis], lambda t, x: x[:, 1:3, ::2], lambda t, x: x[:, -1], lambda t, x: x[:, 1 : t.shape(x)[1], ::-1]),
}
