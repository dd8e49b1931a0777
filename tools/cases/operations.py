"""Operations that `ops.py` leaves out: other names of the same, those of vectors and matrices, and those that make or cut arrays."""

import numpy as np


def fixed(shapes, *functions, dtypes=None):
    """A model whose inputs have all extents, an output for each result."""

    def build(L, keras):
        kinds = dtypes or ["float32"] * len(shapes)
        inputs = [keras.Input(batch_shape=s, dtype=t, name=f"in{i}") for i, (s, t) in enumerate(zip(shapes, kinds))]
        outputs = []
        for function in functions:
            made = function(keras.ops, *inputs)
            outputs += list(made) if isinstance(made, (list, tuple)) else [made]
        return keras.Model(inputs, outputs)

    return build


def numbered(o, x):
    """Every element by its place, so that results of constants are not all equal."""
    return o.cast(o.arange(6), "float32") + x


CASES = {
    "AllClose_pair": fixed([(4, 6), (4, 6)], lambda o, x, y: o.allclose(x, y), lambda o, x, y: o.allclose(x, x), lambda o, x, y: x + y),
    "Amax_axes": fixed([(4, 6)], lambda o, x: o.amax(x, axis=1), lambda o, x: o.amin(x, axis=0), lambda o, x: o.amax(x, axis=(0, 1), keepdims=True)),
    "Angle_reals": fixed([(4, 6)], lambda o, x: o.angle(x), lambda o, x: o.real(x), lambda o, x: o.imag(x), lambda o, x: o.conjugate(x), lambda o, x: o.conj(x), lambda o, x: o.isreal(x)),
    "Arange_and_others": fixed([(4, 6)], lambda o, x: numbered(o, x), lambda o, x: x * o.linspace(0.0, 1.0, 6), lambda o, x: x + o.full((6,), 2.5), lambda o, x: o.empty_like(x) * 0 + x),
    "Array_copies": fixed([(4, 6)], lambda o, x: o.array(x), lambda o, x: o.copy(x), lambda o, x: o.fabs(x), lambda o, x: o.erfc(x), lambda o, x: o.signbit(x), lambda o, x: o.isneginf(x), lambda o, x: o.isposinf(x)),
    "ArraySplit_uneven": fixed([(4, 6)], lambda o, x: o.array_split(x, 4, axis=1), lambda o, x: o.hsplit(x, 3), lambda o, x: o.vsplit(x, 2)),
    "BatchNorm_statistics": fixed([(4, 6), (6,), (6,)], lambda o, x, m, v: o.batch_normalization(x, m, o.abs(v) + 0.1, axis=-1)),
    "BitwiseInvert_shifts": fixed([(4, 6), (4, 6)], lambda o, x, y: o.bitwise_invert(x), lambda o, x, y: o.bitwise_left_shift(x, y), lambda o, x, y: o.bitwise_right_shift(x, y), lambda o, x, y: o.right_shift(x + 9, y), dtypes=["int32", "int32"]),
    "BroadcastTo_rows": fixed([(6,)], lambda o, x: o.broadcast_to(x, (4, 6))),
    "Conv_image": fixed([(2, 7, 6, 3), (3, 2, 3, 4)], lambda o, x, k: o.conv(x, k, strides=2, padding="same"), lambda o, x, k: o.conv(x, k, padding="valid", dilation_rate=2)),
    "DepthwiseConv_image": fixed([(2, 7, 6, 3), (3, 3, 3, 2)], lambda o, x, k: o.depthwise_conv(x, k, strides=1, padding="same")),
    "SeparableConv_image": fixed([(2, 7, 6, 3), (3, 3, 3, 2), (1, 1, 6, 5)], lambda o, x, d, p: o.separable_conv(x, d, p, strides=1, padding="valid")),
    "Cross_vectors": fixed([(4, 3), (4, 3)], lambda o, x, y: o.cross(x, y)),
    "Diag_matrices": fixed([(5,), (4, 6)], lambda o, v, m: o.diag(v), lambda o, v, m: o.diag(m, k=1), lambda o, v, m: o.diagflat(m), lambda o, v, m: o.diag(v, k=-2)),
    "Digitize_bins": fixed([(4, 6)], lambda o, x: o.digitize(x, np.array([-0.5, 0.0, 0.7])), lambda o, x: o.searchsorted(o.cast(o.arange(5), "float32"), o.reshape(x, (24,)))),
    "Dot_ranks": fixed([(4, 6), (6, 5), (6,)], lambda o, a, b, v: o.dot(a, b), lambda o, a, b, v: o.dot(a, v), lambda o, a, b, v: o.dot(v, v), lambda o, a, b, v: o.inner(a, v), lambda o, a, b, v: o.vdot(v, v), lambda o, a, b, v: o.outer(v, v)),
    "Tensordot_axes": fixed([(4, 3, 2), (3, 2, 5)], lambda o, a, b: o.tensordot(a, b, axes=2), lambda o, a, b: o.tensordot(a, b, axes=[[1], [0]])),
    "Kron_matrices": fixed([(2, 3), (3, 2)], lambda o, a, b: o.kron(a, b)),
    "Dsplit_depth": fixed([(2, 3, 4)], lambda o, x: o.dsplit(x, 2)),
    "Dstack_pairs": fixed([(4, 6), (4, 6)], lambda o, x, y: o.dstack([x, y]), lambda o, x, y: o.vstack([x, y]), lambda o, x, y: o.hstack([x, y]), lambda o, x, y: o.meshgrid(x[0], y[0, :3])),
    "Fliplr_flipud": fixed([(4, 6)], lambda o, x: o.fliplr(x), lambda o, x: o.flipud(x), lambda o, x: o.ravel(x)),
    "Full_of_element": fixed([(4, 6)], lambda o, x: o.full((3, 2), x[0, 1]) + x[:3, :2]),
    "Linspace_between": fixed([(6,), (6,)], lambda o, x, y: o.linspace(x, y, 5), lambda o, x, y: o.linspace(x, y, 4, endpoint=False)),
    "InTopK_classes": fixed([(5,), (5, 8)], lambda o, t, p: o.in_top_k(t, p, 3), lambda o, t, p: p * 2, dtypes=["int32", "float32"]),
    "IsIn_values": fixed([(4, 6)], lambda o, x: o.isin(x, [1, 3, 5]), dtypes=["int32"]),
    "Ldexp_integers": fixed([(4, 6), (4, 6)], lambda o, x, y: o.ldexp(x, y), dtypes=["float32", "int32"]),
    "Size_of_all": fixed([(4, 6)], lambda o, x: o.size(x), lambda o, x: x),
    "PSNR_pair": fixed([(4, 6), (4, 6)], lambda o, x, y: o.psnr(x, y, 2.0), lambda o, x, y: x - y),
    "Percentile_axes": fixed([(4, 6)], lambda o, x: o.percentile(x, 30.0, axis=1), lambda o, x: o.percentile(x, [25.0, 75.0], axis=0)),
    "SaturateCast_bytes": fixed([(4, 6)], lambda o, x: o.saturate_cast(x * 200, "uint8"), lambda o, x: o.saturate_cast(x * 200, "int8")),
    "Scatter_rows": fixed([(3, 2)], lambda o, x: o.scatter([[0], [3], [1]], x, (5, 2))),
    "ScatterUpdate_rows": fixed([(4, 6), (2, 6)], lambda o, x, u: o.scatter_update(x, [[2], [0]], u)),
    "Slice_window": fixed([(4, 6)], lambda o, x: o.slice(x, (1, 2), (2, 3))),
    "SliceUpdate_window": fixed([(4, 6), (2, 3)], lambda o, x, u: o.slice_update(x, (1, 2), u)),
    "StopGradient_half": fixed([(4, 6)], lambda o, x: o.stop_gradient(x) * x),
}
