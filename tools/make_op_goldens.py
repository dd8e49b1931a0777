#!/usr/bin/env python3
"""Writes `tests/goldens/ops.jsonl`: what NumPy and TensorFlow say every operation computes.

    python tools/make_op_goldens.py [OUT]

One case a line: `name`, `op` (the text form of the operation with its attributes), `args` and `want` (tensors
`{"type": "f32[2, 3]", "data": [...]}`), and `within`: `"bits"`, `{"ulp": n}` or `{"scale": x}` (largest error as a part of the largest finite
value wanted). NaN only has to be NaN.
Numbers are the shortest decimals that read back exactly; NaN and infinities are strings.

Values come from NumPy in extended precision or from loops over float64 written down here from the definition; wherever TensorFlow has the
operation too, the two are compared while the file is written.
"""
import json
import math
import os
import sys
from itertools import product

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["CUDA_VISIBLE_DEVICES"] = ""
import ml_dtypes
import numpy as np
import tensorflow as tf

TYPES = {
    "bool": np.bool_, "i8": np.int8, "i16": np.int16, "i32": np.int32, "i64": np.int64, "u8": np.uint8, "u32": np.uint32,
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "f32": np.float32, "f64": np.float64,
}
NAMES = {np.dtype(t): n for n, t in TYPES.items()}
FLOATS, INTS = ("f16", "bf16", "f32", "f64"), ("i8", "i16", "i32", "i64", "u8", "u32")
HALVES = ("f16", "bf16")

cases = []


def type_text(array):
    return f"{NAMES[array.dtype]}[{', '.join(map(str, array.shape))}]"


def number(x):
    if isinstance(x, np.bool_):
        return bool(x)
    if isinstance(x, np.integer):
        return int(x)
    wide = float(x)
    if not math.isfinite(wide):
        return "nan" if wide != wide else "inf" if wide > 0 else "-inf"
    # The shortest decimal of a narrow type, which also reads back to the same number by way of float64.
    return float(str(x)) if isinstance(x, np.floating) else wide


def tensor(array):
    return {"type": type_text(array), "data": [number(x) for x in array.reshape(-1)]}


def op(name, **attributes):
    """An operation in text form: `pad{low=[0], value=[f32, 0.0]}`."""

    def word(value):
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(word, value))}]"
        return repr(value) if isinstance(value, float) else str(value)

    listed = ", ".join(f"{key}={word(value)}" for key, value in attributes.items())
    return f"{name}{{{listed}}}" if listed else name


def case(name, op, args, want, within="bits"):
    args, want = [np.asarray(a) for a in args], [np.asarray(w) for w in (want if isinstance(want, (list, tuple)) else [want])]
    cases.append({"name": name, "op": op, "args": args, "want": want, "within": within})


def rng(name):
    return np.random.default_rng(sum((i + 1) * ord(c) for i, c in enumerate(name)))


def values(name, shape, dtype="f32"):
    r = rng(name)
    if dtype == "bool":
        return r.integers(0, 2, shape).astype(bool)
    if dtype in INTS:
        return r.integers(0 if dtype[0] == "u" else -9, 10, shape).astype(TYPES[dtype])
    return np.round(r.standard_normal(shape), 3).astype(TYPES[dtype])


def check(name, ours, theirs, tolerance=1e-6):
    """Ours against TensorFlow's, while the file is written."""
    ours, theirs = np.asarray(ours, "f8"), np.asarray(theirs, "f8")
    assert ours.shape == theirs.shape, (name, ours.shape, theirs.shape)
    scale = max(np.abs(theirs[np.isfinite(theirs)]).max(initial=0), 1e-30)
    with np.errstate(invalid="ignore"):
        unlike = ~((ours == theirs) | (np.abs(ours - theirs) <= tolerance * scale) | (np.isnan(ours) & np.isnan(theirs)))
    assert not unlike.any(), (name, ours[unlike][:5], theirs[unlike][:5])


# Scalar functions

SPECIAL = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 0.49999997, 3.0, -3.0, 1e-30, -1e-30, 1e-42,
           -1e-42, 1e-5, -1e-5, 0.1, -0.3, 0.7, 0.99, 1e30, -1e30, 8388609.0, -8388609.5, 20.0, -20.0, 87.5, 88.5, 88.9, 89.0, -87.0, -88.0,
           -100.0, -104.0, 710.0, -750.0, 9.5, -9.5, 4.2, -4.2, 100.25, -12345.678]


def erf(x):
    return np.array([math.erf(float(v)) for v in x], dtype=x.dtype)


def logistic(x):
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x))))


FLOAT_UNARY = {
    "neg": np.negative, "abs": np.abs, "sign": np.sign, "sqrt": np.sqrt, "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc,
    "rsqrt": lambda x: 1 / np.sqrt(x), "exp": np.exp, "expm1": np.expm1, "log": np.log, "log1p": np.log1p, "tanh": np.tanh, "logistic": logistic,
    "erf": erf, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "sinh": np.sinh,
    "cosh": np.cosh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
}
EXACT_UNARY = {"neg", "abs", "sign", "sqrt", "floor", "ceil", "round", "trunc"}
LARGE_ANGLES = {"sin", "cos", "tan"}


def unary_cases():
    for name, f in FLOAT_UNARY.items():
        for dtype in FLOATS:
            some = SPECIAL if dtype in ("f32", "f64") else SPECIAL[:8] + [0.1, -0.3, 3.0, -3.0, 2.5, 9.5]
            x = np.concatenate([np.array(some), rng(name + dtype).standard_normal(24) * 3, rng(name).uniform(-1, 1, 8)])
            if name in LARGE_ANGLES:
                x = x[~((np.abs(x) > 1e4) & np.isfinite(x))]
            with np.errstate(all="ignore"):
                x = x.astype(TYPES[dtype])
                want = f(x.astype(np.longdouble)).astype(TYPES[dtype])
                if name == "sign":
                    want = np.where(x == 0, x, want)
            case(f"{name} {dtype}", op("unary", function=name), [x], want, "bits" if name in EXACT_UNARY else {"ulp": 4 if dtype in ("f32", "f64") else 1})
    for dtype in INTS:
        info = np.iinfo(TYPES[dtype])
        x = np.array([0, 1, 2, 7, 100, info.min, info.max, info.max - 1], TYPES[dtype])
        if dtype[0] == "i":
            x = np.concatenate([x, np.array([-1, -7, -100], TYPES[dtype])])
        with np.errstate(all="ignore"):
            for name, f in {"neg": np.negative, "abs": np.abs, "sign": np.sign, "not": np.invert}.items():
                case(f"{name} {dtype}", op("unary", function=name), [x], f(x))
    case("not bool", op("unary", function="not"), [np.array([True, False])], np.array([False, True]))
    for dtype in FLOATS:
        x = np.array([0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, -2.5], TYPES[dtype])
        case(f"is_nan {dtype}", op("unary", function="is_nan"), [x], np.isnan(x))
        case(f"is_finite {dtype}", op("unary", function="is_finite"), [x], np.isfinite(x))


def ieee_extreme(f):
    """maximum and minimum of IEEE 754: NaN if either is, and +0 above −0."""

    def g(a, b):
        negative_zero = np.signbit(a) & np.signbit(b) if f is np.maximum else np.signbit(a) | np.signbit(b)
        zero = np.where(negative_zero, -0.0, 0.0).astype(a.dtype)
        return np.where((a == 0) & (b == 0), zero, f(a, b)).astype(a.dtype)

    return g


def float_mod(a, b):
    r = np.fmod(a, b)
    return np.where((r != 0) & ((r < 0) != (b < 0)), r + b, np.where(r == 0, np.copysign(0, b), r))


FLOAT_BINARY = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": ieee_extreme(np.maximum), "min": ieee_extreme(np.minimum),
    "pow": np.power, "atan2": np.arctan2,
}
EXACT_BINARY = {"add", "sub", "mul", "div", "max", "min"}


def c_div(a, b):
    return np.where(b == 0, 0, np.sign(a) * np.sign(b) * (abs(a) // np.where(b == 0, 1, abs(b))))


def wrap(x, dtype):
    bits = np.iinfo(TYPES[dtype]).bits
    low = [int(v) & ((1 << bits) - 1) for v in x]
    return np.array([v - (1 << bits) if dtype[0] == "i" and v >> (bits - 1) else v for v in low], TYPES[dtype])


def int_pow(a, b):
    if b >= 0:
        return a**b
    return {1: 1, -1: 1 if b % 2 == 0 else -1}.get(a, 0)


INT_BINARY = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "max": max, "min": min,
    "div": lambda a, b: 0 if b == 0 else abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1),
    "floor_div": lambda a, b: 0 if b == 0 else a // b, "mod": lambda a, b: 0 if b == 0 else a % b, "pow": int_pow,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b,
}


def binary_cases():
    specials = [0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 2.0, -2.5, 0.5, -3.0, 1e30]
    grid = np.array(list(product(specials, specials)))
    for dtype in FLOATS:
        random = rng(dtype).standard_normal((24, 2)) * 3
        some = np.concatenate([grid, random]) if dtype in ("f32", "f64") else np.concatenate([grid[::7], random])
        with np.errstate(all="ignore"):
            a, b = some[:, 0].astype(TYPES[dtype]), some[:, 1].astype(TYPES[dtype])
            for name, f in FLOAT_BINARY.items():
                wide = np.longdouble if name in ("pow", "atan2") or dtype in HALVES else a.dtype
                want = f(a.astype(wide), b.astype(wide)).astype(TYPES[dtype])
                case(f"{name} {dtype}", op("binary", function=name), [a, b], want, "bits" if name in EXACT_BINARY else {"ulp": 4 if dtype in ("f32", "f64") else 1})
            # Quotients well away from integers, where every definition of floor_div and mod agrees, and exact ones.
            a = np.array([7.5, -7.5, 7.5, -7.5, 6.0, -6.0, 0.25, -0.25, 5.0, math.nan, 1.0, math.inf], TYPES[dtype])
            b = np.array([2.0, 2.0, -2.0, -2.0, 3.0, 3.0, 1.0, 1.0, math.inf, 1.0, math.nan, 2.0], TYPES[dtype])
            case(f"floor_div {dtype}", op("binary", function="floor_div"), [a, b], np.floor(a / b))
            case(f"mod {dtype}", op("binary", function="mod"), [a, b], float_mod(a, b).astype(TYPES[dtype]))
            if dtype in ("f32", "f64"):
                check("floor_div", np.floor(a / b), tf.math.floordiv(a, b))
                check("mod", float_mod(a, b), tf.math.floormod(a, b))
    for dtype in INTS:
        info = np.iinfo(TYPES[dtype])
        some = [0, 1, 2, 3, 7, info.max, info.min] + ([-1, -2, -7] if dtype[0] == "i" else [100])
        a, b = (np.array(v, TYPES[dtype]) for v in zip(*product(some, some)))
        for name, f in INT_BINARY.items():
            if name == "pow":
                small = [(x, y) for x in some for y in (0, 1, 2, 3, 5) + ((-1, -2) if dtype[0] == "i" else ())if not (x == 0 and y < 0)]
                p, q = (np.array(v, TYPES[dtype]) for v in zip(*small))
                case(f"pow {dtype}", op("binary", function="pow"), [p, q], wrap([f(int(x), int(y)) for x, y in small], dtype))
                continue
            case(f"{name} {dtype}", op("binary", function=name), [a, b], wrap([f(int(x), int(y)) for x, y in zip(a, b)], dtype))
        shifts = [(x, y) for x in some for y in (0, 1, 3, info.bits - 1, info.bits)]
        p, q = (np.array(v, TYPES[dtype]) for v in zip(*shifts))
        case(f"shl {dtype}", op("binary", function="shl"), [p, q], wrap([0 if y >= info.bits else x << y for x, y in shifts], dtype))
        case(f"shr {dtype}", op("binary", function="shr"), [p, q], wrap([x >> y for x, y in shifts], dtype))
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    for name, want in {"and": a & b, "or": a | b, "xor": a ^ b, "add": a | b, "mul": a & b, "max": a | b, "min": a & b}.items():
        case(f"{name} bool", op("binary", function=name), [a, b], want)


def compare_cases():
    fs = {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal}
    for dtype in (*FLOATS, *INTS, "bool"):
        if dtype == "bool":
            some = [False, True]
        elif dtype in INTS:
            some = [0, 1, 5, np.iinfo(TYPES[dtype]).max, np.iinfo(TYPES[dtype]).min]
        else:
            some = [0.0, -0.0, 1.0, -1.5, math.nan, math.inf, -math.inf]
        a, b = (np.array(v, TYPES[dtype]) for v in zip(*product(some, some)))
        for name, f in fs.items():
            case(f"{name} {dtype}", op("compare", relation=name), [a, b], f(a, b))


def cast_value(x, to):
    """Nearest, ties to even, for floats; truncation that saturates for integers, NaN to 0; integers wrap; bool is x ≠ 0."""
    if to == "bool":
        return bool(x != 0)
    if to in FLOATS:
        return TYPES[to](x)
    info = np.iinfo(TYPES[to])
    if isinstance(x, (float, np.floating)) or np.asarray(x).dtype == ml_dtypes.bfloat16:
        x = float(x)
        return 0 if x != x else info.min if x <= info.min else info.max if x >= info.max else int(x)
    return int(wrap([int(x)], to)[0])


def cast_cases():
    for source in TYPES:
        if source == "bool":
            x = np.array([False, True])
        elif source in INTS:
            info = np.iinfo(TYPES[source])
            x = np.array([0, 1, 2, 100, info.max, info.min, info.max - 1] + ([-1, -100] if source[0] == "i" else []) +
                         ([16777217, 33554435, 2049, 257] if info.bits >= 32 else []), TYPES[source])
        else:
            with np.errstate(all="ignore"):
                x = np.array([0.0, -0.0, 0.5, -0.5, 1.5, 2.5, -2.75, 127.9, 128.0, -129.0, 255.5, 300.0, 65519.0, 65520.0, 1e10, -1e10, 3e38,
                              1e-40, 1.0009765, 2049.0, 16777217.0, math.nan, math.inf, -math.inf], TYPES[source])
        for to in TYPES:
            if to == source:
                continue
            with np.errstate(all="ignore"):
                want = np.array([cast_value(v, to) for v in x], TYPES[to])
            case(f"cast {source} to {to}", op("cast", to=to), [x], want)


# Structure

def structure_cases():
    """Operations that move elements: exact for every type."""
    for dtype in ("f32", "f64", "i32", "bool", "f16", "bf16", "i8", "i64", "u32"):
        x = values("move" + dtype, (2, 3, 4), dtype)
        case(f"transpose {dtype}", op("transpose", perm=[2, 0, 1]), [x], x.transpose(2, 0, 1))
        case(f"reshape {dtype}", op("reshape", shape=[4, 6]), [x], x.reshape(4, 6))
        case(f"concat {dtype}", op("concat", dim=1), [x, values("more" + dtype, (2, 1, 4), dtype)], np.concatenate([x, values("more" + dtype, (2, 1, 4), dtype)], 1))
    x = values("moved", (3, 4, 5))
    one = values("one", (1,))
    for shape, dims, to in [((3,), [1], (2, 3)), ((3,), [0], (3, 2)), ((), [], (2, 3)), ((2, 1), [0, 2], (2, 4, 3)), ((1, 4), [1, 2], (2, 3, 4)), ((0,), [1], (2, 0))]:
        v = values(f"b{shape}", shape)
        lifted = v.reshape([to[d] if d in dims and v.shape[dims.index(d)] != 1 else 1 for d in range(len(to))])
        case(f"broadcast {list(shape)} to {list(to)}", op("broadcast", shape=list(to), dims=dims), [v], np.broadcast_to(lifted, to).copy())
    for target in ([60], [12, 5], [3, 2, 2, 5], [15, 4], [1, 3, 1, 20], [60, 1]):
        case(f"reshape to {target}", op("reshape", shape=target), [x], x.reshape(target))
    case("reshape a scalar", op("reshape", shape=[1, 1]), [np.float32(2.5)], np.full((1, 1), 2.5, "f4"))
    case("reshape nothing", op("reshape", shape=[0, 3]), [np.zeros((3, 0), "f4")], np.zeros((0, 3), "f4"))
    for start, limit, stride in [([0, 1, 2], [2, 4, 5], [1, 1, 1]), ([1, 0, 0], [3, 4, 5], [1, 2, 3]), ([0, 3, 1], [3, 4, 4], [2, 1, 2]), ([1, 1, 1], [1, 4, 5], [1, 1, 1])]:
        want = x[tuple(slice(a, b, c) for a, b, c in zip(start, limit, stride))]
        case(f"slice {start} {limit} {stride}", op("slice", start=start, limit=limit, stride=stride), [x], want.copy())
    for low, high, interior in [([1, 0, 2], [0, 3, 1], [0, 0, 0]), ([0, 0, 0], [0, 0, 0], [1, 2, 0]), ([-1, 1, 0], [0, -2, 1], [0, 0, 0]), ([-1, 2, -3], [1, -1, 2], [2, 1, 1]), ([2, 0, 0], [-3, 0, 0], [1, 0, 0])]:
        for fill in (0.0, 7.5):
            case(f"pad {low} {high} {interior} with {fill}", op("pad", low=low, high=high, interior=interior, value=["f32", fill]), [x], padded(x, low, high, interior, fill))
    case("pad an empty tensor", op("pad", low=[1, 0], high=[2, 1], interior=[0, 0], value=["f32", 1.5]), [np.zeros((0, 2), "f4")], padded(np.zeros((0, 2), "f4"), [1, 0], [2, 1], [0, 0], 1.5))
    for dim, size in [(0, 1), (0, 2), (0, 3), (0, 5), (1, 2), (1, 4), (2, 3)]:
        shape, count = list(x.shape), -(-x.shape[dim] // size)
        shape[dim : dim + 1] = [count, size]
        filled = np.concatenate([x, np.zeros([count * size - n if d == dim else n for d, n in enumerate(x.shape)], "f4")], dim)
        case(f"blocks of {size} of dimension {dim}", op("blocks", dim=dim, size=size), [x], filled.reshape(shape))
    case("blocks of nothing", op("blocks", dim=0, size=3), [np.zeros((0, 2), "f4")], np.zeros((0, 3, 2), "f4"))
    parts = [values(f"part{n}", (2, n, 3)) for n in (1, 4, 0, 2)]
    case("concat of four", op("concat", dim=1), parts, np.concatenate(parts, 1))
    case("concat outermost", op("concat", dim=0), [x, x[:1]], np.concatenate([x, x[:1]], 0))
    case("concat innermost", op("concat", dim=2), [x, x[:, :, :1]], np.concatenate([x, x[:, :, :1]], 2))
    for dims in ([0], [2], [0, 1], [0, 1, 2]):
        case(f"reverse {dims}", op("reverse", dims=dims), [x], np.flip(x, dims).copy())
    for dtype in ("f32", "bf16", "i32", "bool"):
        y = values("stopped", (3, 5), dtype)
        case(f"stop_gradient {dtype}", op("stop_gradient"), [y], tf.stop_gradient(tf.constant(y)).numpy())
    for perm in ([0, 2, 1], [1, 0, 2], [2, 1, 0]):
        case(f"transpose {perm}", op("transpose", perm=perm), [x], x.transpose(perm))
    case("transpose of rank 5", op("transpose", perm=[4, 1, 3, 0, 2]), [values("r5", (2, 3, 1, 2, 3))], values("r5", (2, 3, 1, 2, 3)).transpose(4, 1, 3, 0, 2))
    for dtype in ("i32", "i64", "f32", "u8", "f16"):
        for shape, dim in (((5,), 0), ((2, 3), 0), ((2, 3), 1)):
            want = np.broadcast_to(np.arange(shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(shape))]), shape)
            case(f"iota {dtype} {list(shape)} along {dim}", op("iota", dtype=dtype, shape=list(shape), dim=dim, start=0), [], want.astype(TYPES[dtype]))
        case(f"iota {dtype} from 3", op("iota", dtype=dtype, shape=[2, 3], dim=1, start=3), [], np.array([[3, 4, 5]] * 2, TYPES[dtype]))
    for dtype, elements in {"f32": [1.5, -0.0, math.inf, math.nan, -2.25, 1e-40], "i32": [1, -2, 3, 4, 5, -2147483648], "bool": [True, False] * 3,
                            "f16": [0.1, 65504.0, 6e-8, -1.0, 2.0, 3.0], "bf16": [0.1, 3e38, 1.0, -1.0, 2.0, 3.0]}.items():
        array = np.array(elements, TYPES[dtype]).reshape(2, 3)
        spelled = [dtype] + [str(number(v)).lower() for v in array.reshape(-1)]
        case(f"constant {dtype}", op("constant", shape=[2, 3], elements=spelled), [], array)
        case(f"constant {dtype} that fills", op("constant", shape=[2, 3], elements=spelled[:2]), [], np.full((2, 3), array[0, 0]))
    condition = values("c", (3, 4, 5), "bool")
    for dtype in ("f32", "f64", "i32", "bool", "f16", "bf16"):
        a, b = values("a" + dtype, (3, 4, 5), dtype), values("b" + dtype, (3, 4, 5), dtype)
        case(f"select {dtype}", op("select"), [condition, a, b], np.where(condition, a, b))
    a, b = np.array([math.nan, 1.0], "f4"), np.array([2.0, math.nan], "f4")
    case("select past NaN", op("select"), [np.array([False, True]), a, b], np.array([2.0, 1.0], "f4"))


def padded(x, low, high, interior, fill):
    """Elements spread by `interior`, then edges added or, where negative, cut."""
    spread = np.full([n + max(n - 1, 0) * i for n, i in zip(x.shape, interior)], fill, x.dtype)
    spread[tuple(slice(None, None, i + 1) for i in interior)] = x
    out = np.pad(spread, [(max(a, 0), max(b, 0)) for a, b in zip(low, high)], constant_values=fill)
    return out[tuple(slice(max(-a, 0), out.shape[d] - max(-b, 0)) for d, (a, b) in enumerate(zip(low, high)))].copy()


# Reductions

def reduce_cases():
    fs = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}
    for name, f in fs.items():
        for dtype in ("f32", "f64", "i32", "i64", "f16", "bf16", "i8", "bool"):
            if dtype == "bool" and name == "prod":
                continue
            x = values("reduce" + name + dtype, (3, 4, 5), dtype)
            for axes in ([0], [1], [2], [0, 2], [0, 1, 2]):
                if name == "prod" and dtype in INTS and len(axes) > 1:
                    continue
                if dtype in FLOATS:
                    wide = x.astype("f8")
                    want = np.asarray(f(wide, axis=tuple(axes))).astype(TYPES[dtype])
                    within = "bits" if name in ("max", "min") else {"scale": 4e-7 if dtype == "f32" else 1e-15 if dtype == "f64" else 1e-3 if dtype == "f16" else 8e-3}
                elif dtype == "bool":
                    want, within = {"sum": np.any, "max": np.any, "min": np.all}[name](x, axis=tuple(axes)), "bits"
                else:
                    want, within = np.asarray(f(x, axis=tuple(axes), **({"dtype": x.dtype} if name in ("sum", "prod") else {}))), "bits"
                case(f"reduce {name} {dtype} over {axes}", op("reduce", function=name, dims=axes), [x], want, within)
        empty = np.zeros((2, 0), "f4")
        identity = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}[name]
        case(f"reduce {name} of nothing", op("reduce", function=name, dims=[1]), [empty], np.full(2, identity, "f4"))
        odd = np.array([[math.nan, 1, 2], [math.inf, -math.inf, 0], [-0.0, -0.0, -0.0], [math.inf, 1, 2], [3, -math.inf, 1]], "f4")
        with np.errstate(all="ignore"):
            want = f(odd, axis=1)
        case(f"reduce {name} of NaN and infinities", op("reduce", function=name, dims=[1]), [odd], want.astype("f4"), {"ulp": 0} if name == "sum" else "bits")
    long = values("long", (3, 1031))
    case("reduce sum of a long row", op("reduce", function="sum", dims=[1]), [long[:2, :257]], long[:2, :257].astype("f8").sum(1).astype("f4"), {"scale": 1e-6})
    for dtype in ("f32", "i32", "f64"):
        x = values("argmax" + dtype, (4, 7), dtype)
        x[1] = x[1, 3]
        x[2, 5] = x[2, 2] = 9
        for axis in (0, 1):
            case(f"arg_max {dtype} along {axis}", op("arg_max", dim=axis), [x], np.argmax(x, axis).astype("i4"))
    odd = np.array([[1, math.nan, math.nan], [-math.inf, -math.inf, -math.inf], [-0.0, 0.0, -1.0], [math.inf, math.nan, 0]], "f4")
    case("arg_max of NaN and infinities", op("arg_max", dim=1), [odd], np.argmax(odd, 1).astype("i4"))


def tree_sum(x):
    """Adjacent pairs, then adjacent pairs of those; an odd last one goes on."""
    level = list(x.astype("f4") if x.dtype.name in ("float16", "bfloat16") else x)
    while len(level) > 1:
        level = [a[0] + a[1] if len(a) == 2 else a[0] for a in (level[i : i + 2] for i in range(0, len(level), 2))]
    return np.asarray(level[0]).astype(x.dtype)


def tree_cases():
    for dtype in ("f32", "f64", "f16", "bf16", "i32"):
        for count in (1, 2, 5, 7, 8, 23):
            x = values(f"tree{count}{dtype}", (count, 3), dtype)
            want = tree_sum(x)
            if dtype in FLOATS:
                exact = x.astype("f8").sum(0)
                assert np.abs(want.astype("f8") - exact).max() <= {"f16": 2e-2, "bf16": 1e-1}.get(dtype, 1e-5), (dtype, count)
            case(f"tree_sum of {count} {dtype}", op("tree_sum", spans=[1] * count), [x], want)
    for spans in ([4, 3], [1, 1, 2, 3], [2, 2, 1, 1, 1], [8, 1], [6]):
        x = values(f"tree{spans}", (sum(spans), 2, 3))
        ends = np.cumsum(spans)
        items = np.stack([tree_sum(x[end - span : end]) for span, end in zip(spans, ends)])
        case(f"tree_sum of nodes {spans}", op("tree_sum", spans=spans), [items], tree_sum(x))
    case("tree_sum of nothing", op("tree_sum", spans=[]), [np.zeros((0, 2), "f4")], np.zeros(2, "f4"))
    case("tree_sum of -0", op("tree_sum", spans=[1, 1, 1]), [np.full((3, 2), -0.0, "f4")], np.full(2, -0.0, "f4"))


# Contractions

def contract_cases():
    # batch, contracting, shapes
    settings = [
        ("matrix product", (4, 5), (5, 3), [], [(1, 0)]), ("one row", (1, 7), (7, 5), [], [(1, 0)]), ("one column", (6, 3), (3, 1), [], [(1, 0)]),
        ("outer product", (3,), (4,), [], []), ("inner product", (9,), (9,), [], [(0, 0)]), ("nothing to contract over", (3, 0), (0, 2), [], [(1, 0)]),
        ("transposed left", (5, 4), (5, 3), [], [(0, 0)]), ("transposed right", (4, 5), (3, 5), [], [(1, 1)]),
        ("batched", (2, 3, 4), (2, 4, 5), [(0, 0)], [(2, 1)]), ("heads", (2, 3, 4, 5), (2, 6, 4, 5), [(0, 0), (2, 2)], [(3, 3)]),
        ("two contracted", (3, 4, 5), (4, 5, 2), [], [(1, 0), (2, 1)]), ("two contracted, crossed", (3, 4, 5), (5, 2, 4), [], [(1, 2), (2, 0)]),
        ("two free each", (2, 3, 4), (5, 4, 2), [], [(2, 1)]), ("batch inside", (3, 2, 4), (4, 5, 2), [(1, 2)], [(2, 0)]), ("primes", (13, 17), (17, 11), [], [(1, 0)]),
    ]
    for name, sa, sb, batch, contracted in settings:
        for dtype in ("f32", "f64", "i32", "f16", "bf16") if name in ("matrix product", "heads", "transposed right") else ("f32",):
            a, b = values("lhs" + name + dtype, sa, dtype), values("rhs" + name + dtype, sb, dtype)
            letters = iter("abcdefghijklmnopqrstuvwxyz")
            la, lb = [next(letters) for _ in sa], [next(letters) for _ in sb]
            for i, j in batch + contracted:
                lb[j] = la[i]
            gone = {la[i] for i, _ in contracted}
            shared = [la[i] for i, _ in batch]
            out = shared + [c for c in la if c not in gone and c not in shared] + [c for c in lb if c not in gone and c not in shared]
            equation = f"{''.join(la)},{''.join(lb)}->{''.join(out)}"
            want = np.einsum(equation, a.astype("f8"), b.astype("f8"))
            if dtype in ("f32", "f64"):
                check(name, want, tf.einsum(equation, a, b), 1e-5)
            within = {"f32": {"scale": 2e-6}, "f64": {"scale": 1e-14}, "i32": "bits", "f16": {"scale": 1e-3}, "bf16": {"scale": 8e-3}}[dtype]
            case(f"contract {name} {dtype}", op("contract", batch=batch, contract=contracted), [a, b], want.astype(TYPES[dtype]), within)
    a, b = np.array([[1, math.inf], [math.nan, 0]], "f4"), np.array([[0, 1], [1, -1]], "f4")
    with np.errstate(all="ignore"):
        case("contract NaN and infinities", op("contract", batch=[], contract=[(1, 0)]), [a, b], a @ b)


# Convolutions

def convolved(x, k, strides, pads, rhs_dilation, lhs_dilation, groups, batch_groups=1):
    """x `[batch, …, c]`, k `[…, c / groups, o]`: the definition, in float64."""
    x, k = x.astype("f8"), k.astype("f8")
    n = x.ndim - 2
    spread = padded(x, [0] + [p[0] for p in pads] + [0], [0] + [p[1] for p in pads] + [0], [0] + [d - 1 for d in lhs_dilation] + [0], 0.0)
    reach = [(k.shape[d] - 1) * rhs_dilation[d] + 1 for d in range(n)]
    size = [max((spread.shape[d + 1] - reach[d]) // strides[d] + 1, 0) for d in range(n)]
    rows, per_in, per_out = x.shape[0] // batch_groups, k.shape[-2], k.shape[-1] // (groups * batch_groups)
    out = np.zeros((rows, *size, k.shape[-1]))
    for bg, g in product(range(batch_groups), range(groups)):
        o = (bg * groups + g) * per_out
        for at in product(*map(range, k.shape[:n])):
            window = tuple(slice(a * r, a * r + (s - 1) * st + 1, st) for a, r, s, st in zip(at, rhs_dilation, size, strides))
            if min(size, default=1) == 0:
                continue
            part = spread[(slice(bg * rows, (bg + 1) * rows), *window, slice(g * per_in, (g + 1) * per_in))]
            out[..., o : o + per_out] += part @ k[(*at, slice(None), slice(o, o + per_out))]
    return out


CONVOLUTIONS = [
    # name, input, kernel, strides, pads, kernel dilation, input dilation, groups, batch groups
    ("1-D", (2, 9, 3), (3, 3, 4), [1], [(0, 0)], [1], [1], 1, 1),
    ("1-D same, stride 2", (2, 9, 3), (4, 3, 4), [2], [(1, 2)], [1], [1], 1, 1),
    ("1-D causal, dilated", (1, 7, 2), (3, 2, 3), [1], [(4, 0)], [2], [1], 1, 1),
    ("2-D", (2, 6, 7, 3), (3, 3, 3, 4), [1, 1], [(0, 0), (0, 0)], [1, 1], [1, 1], 1, 1),
    ("2-D one by one", (2, 3, 4, 5), (1, 1, 5, 3), [1, 1], [(0, 0), (0, 0)], [1, 1], [1, 1], 1, 1),
    ("2-D one by one, stride 2", (1, 5, 4, 3), (1, 1, 3, 2), [2, 2], [(0, 0), (0, 0)], [1, 1], [1, 1], 1, 1),
    ("2-D same", (1, 5, 5, 2), (3, 3, 2, 3), [1, 1], [(1, 1), (1, 1)], [1, 1], [1, 1], 1, 1),
    ("2-D uneven pads and strides", (2, 7, 6, 2), (3, 2, 2, 3), [2, 3], [(0, 1), (2, 1)], [1, 1], [1, 1], 1, 1),
    ("2-D dilated", (1, 8, 9, 2), (3, 2, 2, 2), [1, 1], [(2, 1), (0, 3)], [2, 3], [1, 1], 1, 1),
    ("2-D strided and dilated", (1, 9, 9, 2), (2, 3, 2, 2), [2, 2], [(1, 1), (0, 2)], [3, 2], [1, 1], 1, 1),
    ("2-D groups", (2, 5, 5, 6), (3, 3, 2, 9), [1, 1], [(1, 1), (1, 1)], [1, 1], [1, 1], 3, 1),
    ("2-D depthwise", (1, 6, 5, 4), (3, 3, 1, 4), [1, 1], [(1, 1), (1, 1)], [1, 1], [1, 1], 4, 1),
    ("2-D depthwise, multiplier 2, stride 2", (1, 7, 6, 3), (3, 3, 1, 6), [2, 2], [(0, 1), (1, 1)], [1, 1], [1, 1], 3, 1),
    ("2-D negative pads", (1, 7, 7, 2), (3, 3, 2, 2), [1, 1], [(-1, 0), (1, -2)], [1, 1], [1, 1], 1, 1),
    ("2-D transposed: input dilation", (1, 3, 4, 2), (3, 3, 2, 3), [1, 1], [(2, 1), (1, 2)], [1, 1], [2, 2], 1, 1),
    ("2-D input dilation, negative pad", (1, 4, 3, 2), (2, 3, 2, 2), [1, 1], [(-1, 1), (2, -1)], [1, 1], [3, 2], 1, 1),
    ("2-D input and kernel dilation, strided", (1, 4, 5, 2), (3, 2, 2, 2), [2, 1], [(1, 2), (3, 0)], [2, 2], [2, 3], 1, 1),
    ("2-D batch groups", (4, 5, 4, 3), (2, 2, 3, 6), [1, 1], [(1, 0), (0, 1)], [1, 1], [1, 1], 1, 2),
    ("2-D window of one row", (1, 5, 5, 1), (5, 5, 1, 3), [1, 1], [(0, 0), (0, 0)], [1, 1], [1, 1], 1, 1),
    ("3-D", (1, 4, 3, 5, 2), (2, 3, 2, 2, 3), [1, 1, 2], [(0, 1), (1, 1), (0, 0)], [1, 1, 1], [1, 1, 1], 1, 1),
    ("3-D dilated", (1, 5, 4, 4, 1), (2, 2, 2, 1, 2), [1, 1, 1], [(0, 0), (1, 0), (0, 2)], [2, 1, 3], [1, 1, 1], 1, 1),
]


def conv_op(stride, pads, kernel_dilation, input_dilation, groups, batch_groups):
    return op("conv", stride=stride, pads=pads, input_dilation=input_dilation, kernel_dilation=kernel_dilation, groups=groups, batch_groups=batch_groups)


def conv_cases():
    for name, sx, sk, strides, pads, rd, ld, groups, batch_groups in CONVOLUTIONS:
        for dtype in ("f32", "f64", "f16", "bf16") if name in ("2-D", "2-D groups", "2-D input dilation, negative pad") else ("f32",):
            x, k = values("conv" + name, sx, dtype), values("kernel" + name, sk, dtype)
            want = convolved(x, k, strides, pads, rd, ld, groups, batch_groups)
            if ld == [1] * len(ld) and batch_groups == 1 and dtype in ("f32", "f64") and (max(rd) == 1 or max(strides) == 1):
                room = padded(x, [0] + [p[0] for p in pads] + [0], [0] + [p[1] for p in pads] + [0], [0] * x.ndim, 0.0)
                parts = [
                    tf.nn.convolution(a, b, strides=strides, padding="VALID", dilations=rd)
                    for a, b in zip(np.split(room, groups, -1), np.split(k, groups, -1))
                ]
                check(name, want, tf.concat(parts, -1), 1e-5)
            within = {"scale": {"f32": 2e-6, "f64": 1e-14, "f16": 1e-3, "bf16": 8e-3}[dtype]}
            case(f"conv {name} {dtype}", conv_op(strides, pads, rd, ld, groups, batch_groups), [x, k], want.astype(TYPES[dtype]), within)
    x = values("conv nan", (1, 4, 4, 1))
    x[0, 1, 2, 0], x[0, 3, 0, 0] = math.nan, math.inf
    k = values("conv nan kernel", (2, 2, 1, 1))
    case("conv NaN and infinity", conv_op([1, 1], [(0, 0)] * 2, [1, 1], [1, 1], 1, 1), [x, k], convolved(x, k, [1, 1], [(0, 0)] * 2, [1, 1], [1, 1], 1).astype("f4"), {"scale": 2e-6})


# Windows

def positions(shape, size, stride, pads, dilation, input_dilation):
    """For each output position and each offset in the window, row-major: the input position touched, or None."""
    spans = [(n - 1) * step + 1 if n else 0 for n, step in zip(shape, input_dilation)]
    out = [max((s + low + high - ((k - 1) * d + 1)) // st + 1, 0) for s, (low, high), k, d, st in zip(spans, pads, size, dilation, stride)]
    table = {}
    for p in product(*map(range, out)):
        table[p] = []
        for k in product(*map(range, size)):
            at = [pp * st + kk * d - low for pp, st, kk, d, (low, _) in zip(p, stride, k, dilation, pads)]
            real = all(0 <= i < s and i % step == 0 for i, s, step in zip(at, spans, input_dilation))
            table[p].append(tuple(i // step for i, step in zip(at, input_dilation)) if real else None)
    return out, table


WINDOWS = [
    # name, input, size, stride, pads, dilation
    ("2", (2, 4, 6, 3), [2, 2], [2, 2], [(0, 0), (0, 0)], [1, 1]),
    ("3 stride 2 same", (1, 5, 6, 2), [3, 3], [2, 2], [(1, 1), (0, 1)], [1, 1]),
    ("3 stride 1 same", (1, 4, 4, 2), [3, 3], [1, 1], [(1, 1), (1, 1)], [1, 1]),
    ("that leaves a rest", (1, 7, 5, 2), [3, 2], [3, 2], [(0, 0), (0, 0)], [1, 1]),
    ("of one", (2, 3, 3, 1), [1, 1], [2, 1], [(0, 0), (0, 0)], [1, 1]),
    ("cropped", (1, 6, 6, 2), [2, 3], [1, 2], [(-1, 1), (0, -1)], [1, 1]),
    ("1-D", (2, 9, 2), [4], [3], [(1, 2)], [1]),
    ("3-D", (1, 4, 3, 4, 2), [2, 2, 2], [2, 1, 2], [(0, 0), (1, 0), (0, 0)], [1, 1, 1]),
    ("dilated", (1, 7, 7, 1), [3, 2], [1, 2], [(0, 0), (0, 0)], [2, 3]),
    ("bigger than the input", (1, 2, 2, 1), [3, 3], [1, 1], [(0, 0), (0, 0)], [1, 1]),
]


def window_cases():
    for name, shape, size, stride, pads, dilation in WINDOWS:
        once = [1] * len(size)
        geometry = dict(size=size, stride=stride, pads=pads, dilation=dilation)
        out, table = positions(shape[1:-1], size, stride, pads, dilation, once)
        result = (shape[0], *out, shape[-1])
        for dtype in ("f32", "f64", "i32", "f16", "bf16") if name == "3 stride 2 same" else ("f32",):
            x = values("window" + name, shape, dtype)
            x[0, ..., 0] = np.round(x[0, ..., 0].astype("f8"))  # ties
            wide = x.astype("f8")
            total, most, which = np.zeros(result), np.full(result, -np.inf), np.zeros(result, "i4")
            for p, touched in table.items():
                cells = [np.full((shape[0], shape[-1]), -np.inf) if at is None else wide[(slice(None), *at)] for at in touched]
                most[(slice(None), *p)], which[(slice(None), *p)] = np.max(cells, 0), np.argmax(cells, 0)
                total[(slice(None), *p)] = sum(wide[(slice(None), *at)] for at in touched if at is not None)
            if dtype in ("f32", "f64") and max(dilation) == 1 and min(min(pads)) >= 0:
                room = padded(x, [0] + [p[0] for p in pads] + [0], [0] + [p[1] for p in pads] + [0], [0] * x.ndim, -np.inf)
                if min(out) > 0 and name != "of one":
                    check(name, most, tf.nn.pool(room, size, "MAX", stride, "VALID"))
            within = "bits" if dtype == "i32" else {"scale": {"f32": 1e-6, "f64": 1e-14, "f16": 1e-3, "bf16": 8e-3}[dtype]}
            case(f"pool max {name} {dtype}", op("pool", function="max", **geometry, input_dilation=once), [x], most.astype(TYPES[dtype]))
            case(f"pool sum {name} {dtype}", op("pool", function="sum", **geometry, input_dilation=once), [x], total.astype(TYPES[dtype]), within)
            case(f"pool_arg_max {name} {dtype}", op("pool_arg_max", **geometry), [x], which)
            case(f"pick {name} {dtype}", op("pick", **geometry), [which, x], np.where(np.isfinite(most), most, 0).astype(TYPES[dtype]), {"ulp": 0})
            y = values("unpool" + name, result, dtype)
            back = np.zeros(shape)
            for p, touched in table.items():
                for n, c in product(range(shape[0]), range(shape[-1])):
                    at = touched[which[(n, *p, c)]]
                    if at is not None:
                        back[(n, *at, c)] += float(y[(n, *p, c)])
            if dtype == "f32" and max(dilation) == 1 and min(min(pads)) >= 0 and min(out) > 0 and name not in ("of one", "3 stride 2 same", "3-D"):  # TensorFlow gives 3-D ties to all
                with tf.GradientTape() as tape:
                    v = tf.constant(x)
                    tape.watch(v)
                    room = tf.pad(v, [(0, 0), *pads, (0, 0)], constant_values=-1e30)
                    pooled = tf.nn.pool(room, size, "MAX", stride, "VALID")
                check("unpool " + name, back, tape.gradient(pooled, v, tf.constant(y)), 1e-5)
            case(f"unpool {name} {dtype}", op("unpool", **geometry, input=list(shape[1:-1])), [which, y], back.astype(TYPES[dtype]), within)
    for size, stride, pads, dilation, step in [([2, 2], [1, 1], [(1, 1), (1, 1)], [1, 1], [2, 2]), ([3, 2], [2, 1], [(0, 2), (1, 0)], [1, 2], [3, 1]), ([2, 3], [1, 1], [(-1, 2), (2, -1)], [1, 1], [2, 3])]:
        x = values("spread" + str(size), (1, 4, 3, 2))
        out, table = positions((4, 3), size, stride, pads, dilation, step)
        total = np.zeros((1, *out, 2))
        for p, touched in table.items():
            total[(slice(None), *p)] = sum(x[(slice(None), *at)].astype("f8") for at in touched if at is not None)
        node = op("pool", function="sum", size=size, stride=stride, pads=pads, dilation=dilation, input_dilation=step)
        case(f"pool sum of spread input, window {size}, {step} apart", node, [x], total.astype("f4"), {"scale": 1e-6})
    x = np.array([1, math.nan, 2, -math.inf, -math.inf, -math.inf, -0.0, 0.0, 0.0, -0.0, math.inf, math.nan], "f4").reshape(1, 12, 1)
    two = dict(size=[2], stride=[2], pads=[(0, 0)], dilation=[1])
    case("pool max of NaN and infinities", op("pool", function="max", **two, input_dilation=[1]), [x], np.array([math.nan, 2, -math.inf, 0, 0, math.nan], "f4").reshape(1, 6, 1))
    with np.errstate(all="ignore"):
        case("pool sum of NaN and infinities", op("pool", function="sum", **two, input_dilation=[1]), [x], x[:, ::2] + x[:, 1::2])
    case("pool_arg_max of NaN and infinities", op("pool_arg_max", **two), [x], np.array([1, 0, 0, 0, 0, 1], "i4").reshape(1, 6, 1))


# Rows

def softmax(x, axis, log=False):
    x = x.astype(np.longdouble)
    with np.errstate(all="ignore"):
        shifted = x - np.max(x, axis, keepdims=True)
        total = np.sum(np.exp(shifted), axis, keepdims=True)
        return shifted - np.log(total) if log else np.exp(shifted) / total


def row_cases():
    for dtype in ("f32", "f64", "f16", "bf16"):
        x = values("softmax" + dtype, (2, 3, 5), dtype) * TYPES[dtype](4)
        for axis in (0, 1, 2):
            for log in (False, True):
                want = softmax(x, axis, log)
                if dtype in ("f32", "f64"):
                    check("softmax", want, (tf.nn.log_softmax if log else tf.nn.softmax)(x, axis), 1e-6)
                within = {"scale": {"f32": 1e-6, "f64": 1e-14, "f16": 1e-3, "bf16": 8e-3}[dtype]}
                case(f"{'log_' if log else ''}softmax {dtype} along {axis}", op("log_softmax" if log else "softmax", dim=axis), [x], want.astype(TYPES[dtype]), within)
    odd = np.array([[1e4, -1e4, 0], [-math.inf, 0, 1], [math.nan, 0, 0], [-1e30, -1e30, -1e30], [88, 89, 90]], "f4")
    for log in (False, True):
        case(f"{'log_' if log else ''}softmax far out", op("log_softmax" if log else "softmax", dim=1), [odd], softmax(odd, 1, log).astype("f4"), {"scale": 1e-6})
    case("softmax of a single column", op("softmax", dim=1), [values("column", (4, 1))], np.ones((4, 1), "f4"))


def standardize_cases():
    for dtype in ("f32", "f64", "f16", "bf16"):
        x = values("standardize" + dtype, (3, 4, 5), dtype) * TYPES[dtype](3) + TYPES[dtype](2)
        for dims in ([2], [1], [1, 2], [0]):
            for epsilon in (1e-3, 1e-6):
                wide = x.astype("f8")
                mean, variance = wide.mean(tuple(dims), keepdims=True), wide.var(tuple(dims), keepdims=True)
                within = {"scale": {"f32": 2e-6, "f64": 1e-14, "f16": 1e-3, "bf16": 8e-3}[dtype]}
                want = ((wide - mean) / np.sqrt(variance + epsilon)).astype(TYPES[dtype])
                case(f"standardize {dtype} over {dims}, epsilon {epsilon}", op("standardize", dims=dims, epsilon=epsilon), [x], want, within)
    x = np.array([[0, 0.02], [5, 5], [1e4, 1e4 + 1]], "f4")
    wide = x.astype("f8")
    want = (wide - wide.mean(1, keepdims=True)) / np.sqrt(wide.var(1, keepdims=True) + 1e-3)
    case("standardize close values", op("standardize", dims=[1], epsilon=1e-3), [x], want.astype("f4"), {"scale": 2e-6})


# Reading and adding by index

def take_each_cases():
    for dtype in ("f32", "f16", "i32"):
        tables = values("tables" + dtype, (3, 5, 2), dtype)
        ids = rng("each" + dtype).integers(0, 5, (3, 2, 4)).astype("i4")
        case(f"take_each {dtype}", op("take_each"), [tables, ids], np.stack([t[i] for t, i in zip(tables, ids)]))
    tables, ids = values("tables", (2, 4)), np.array([[0, -1, 3, 4], [2, 2, -5, 1]], "i8")
    inside = (ids >= 0) & (ids < 4)
    want = np.where(inside, np.take_along_axis(tables, np.clip(ids, 0, 3), 1), np.float32(0))
    case("take_each past the ends", op("take_each"), [tables, ids], want)


def take_cases():
    for dtype in TYPES:
        table = values("table" + dtype, (7, 3), dtype)
        ids = rng("ids" + dtype).integers(0, 7, (2, 4)).astype("i4")
        case(f"take {dtype}", op("take", base=0), [table, ids], table[ids])
    table = values("table", (5, 2, 3))
    for shape in ((), (3,), (2, 2), (0,)):
        ids = rng(f"take{shape}").integers(0, 5, shape).astype("i4")
        case(f"take, ids {list(shape)}", op("take", base=0), [table, ids], table[ids])
    for dtype in ("i64", "u8", "i8", "u32"):
        ids = rng("wide").integers(0, 5, (6,)).astype(TYPES[dtype])
        case(f"take with {dtype} ids", op("take", base=0), [table, ids], table[ids])
    ids = np.array([3, 7, 8, 2, 12, 5, -1, 2147483647], "i4")
    part = np.stack([table[i - 3] if 3 <= i < 8 else np.zeros((2, 3), "f4") for i in ids])
    case("take from a part of a table", op("take", base=3), [table, ids], part)
    case("take numbers", op("take", base=0), [values("flat", (9,)), np.array([[8, 0], [4, 4]], "i4")], values("flat", (9,))[[[8, 0], [4, 4]]])


def scatter_cases():
    ids = np.array([[2, 0, 2], [5, 2, 0]], "i4")
    for dtype in ("f32", "f64", "i32", "i64", "f16", "bf16"):
        updates = values("updates" + dtype, (2, 3, 3), dtype)
        for base in (0, 2):
            want = np.zeros((4 if base else 6, 3))
            for at in np.ndindex(ids.shape):
                if 0 <= ids[at] - base < len(want):
                    want[ids[at] - base] += updates[at].astype("f8")
            within = "bits" if dtype in INTS else {"scale": {"f32": 4e-7, "f64": 1e-15, "f16": 1e-3, "bf16": 8e-3}[dtype]}
            case(f"scatter_add {dtype} from {base}", op("scatter_add", rows=len(want), base=base), [ids, updates], want.astype(TYPES[dtype]), within)
    nothing = [np.zeros((0,), "i4"), np.zeros((0, 2), "f4")]
    case("scatter_add of nothing", op("scatter_add", rows=4, base=0), nothing, np.zeros((4, 2), "f4"))
    case("scatter_add of numbers", op("scatter_add", rows=3, base=0), [np.array([1, 1, 9, -1], "i4"), np.array([0.5, 0.25, 1, 2], "f4")], np.array([0, 0.75, 0], "f4"))
    # 1 + 2⁻²⁴ + … in the order of the rows stays 1; in another order it does not.
    case("scatter_add in row order", op("scatter_add", rows=1, base=0), [np.zeros(5, "i4"), np.array([1, 2**-24, 2**-24, 2**-24, 2**-24], "f4")], np.array([1], "f4"))


# Steps

def scan_cases():
    add = '''graph "step" imported { input %0 "s": f32[3] input %1 "x": f32[3] %2 = binary{function=add} %0 %1 : f32[3] output "s" %2 output "all" %2 }'''
    for count in (4, 1, 0):
        start, xs = values("start", (3,)), values("steps", (count, 3))
        running = start + np.cumsum(np.concatenate([np.zeros((1, 3)), xs.astype("f8")]), 0)
        want = [running[-1].astype("f4"), running[1:].astype("f4")]
        case(f"scan of {count} running sums", op("scan", count=count, states=1, sequences=1, body=add), [start, xs], want, {"scale": 4e-7})
    # h ← tanh(x + h·U), every h given out.
    rnn = (
        'graph "step" imported { input %0 "h": f32[2, 3] input %1 "x": f32[2, 3] input %2 "u": f32[3, 3] '
        "%3 = contract{batch=[], contract=[[1, 0]]} %0 %2 : f32[2, 3] %4 = binary{function=add} %3 %1 : f32[2, 3] "
        '%5 = unary{function=tanh} %4 : f32[2, 3] output "h" %5 output "all" %5 }'
    )
    h0, xs, u = values("h0", (2, 3)), values("rnn", (5, 2, 3)), values("u", (3, 3))
    h, every = h0.astype("f8"), []
    for x in xs:
        h = np.tanh(x + h @ u)
        every.append(h)
    want = [h.astype("f4"), np.array(every).astype("f4")]
    case("scan of a recurrent layer", op("scan", count=5, states=1, sequences=1, body=rnn), [h0, xs, u], want, {"scale": 2e-6})
    # Two states that swap, an integer one among them, and two sequences.
    swap = (
        'graph "step" imported { input %0 "a": f32[2] input %1 "b": f32[2] input %2 "n": i32[] input %3 "x": f32[2] input %4 "y": f32[2] '
        "%5 = binary{function=mul} %0 %3 : f32[2] %6 = binary{function=add} %1 %4 : f32[2] "
        "%7 = constant{shape=[], elements=[i32, 1]} : i32[] %8 = binary{function=add} %2 %7 : i32[] "
        'output "a" %6 output "b" %5 output "n" %8 output "product" %5 output "at" %2 }'
    )
    a, b, n, xs, ys = values("sa", (2,)), values("sb", (2,)), np.int32(7), values("sx", (3, 2)), values("sy", (3, 2))
    p, q, products = a.astype("f8"), b.astype("f8"), []
    for x, y in zip(xs.astype("f8"), ys.astype("f8")):
        p, q = q + y, p * x
        products.append(q)
    want = [p.astype("f4"), q.astype("f4"), np.int32(10), np.array(products).astype("f4"), np.array([7, 8, 9], "i4")]
    case("scan of three states", op("scan", count=3, states=3, sequences=2, body=swap), [a, b, n, xs, ys], want, {"scale": 1e-6})


def threefry(rounds, key, words):
    """Threefry-2x32 as its authors define it, checked with their vectors."""
    wrap = 0xFFFFFFFF
    schedule = [key[0], key[1], key[0] ^ key[1] ^ 0x1BD11BDA]
    a, b = (words[0] + key[0]) & wrap, (words[1] + key[1]) & wrap
    for i in range(rounds):
        r = (13, 15, 26, 6, 17, 29, 16, 24)[i % 8]
        a = (a + b) & wrap
        b = ((b << r | b >> (32 - r)) & wrap) ^ a
        if i % 4 == 3:
            t = i // 4 + 1
            a, b = (a + schedule[t % 3]) & wrap, (b + schedule[(t + 1) % 3] + t) & wrap
    return a, b


VECTORS = {
    13: ((0x9D1C5EC6, 0x8BD50731), (0xFD36D048, 0x2D17272C), (0xBA3E4725, 0xF27D669E)),
    20: ((0x6B200159, 0x99BA4EFE), (0x1CB996FC, 0xBB002BE7), (0xC4923A9C, 0x483DF7A0)),
}


def random_cases():
    for rounds, want in VECTORS.items():
        ones = 0xFFFFFFFF
        asked = (((0, 0), (0, 0)), ((ones, ones), (ones, ones)), ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3)))
        assert tuple(threefry(rounds, key, words) for key, words in asked) == want, rounds

    def bits(key, extents, start, shape, step):
        words = threefry(13, (key & 0xFFFFFFFF, key >> 32), (step, 0))
        strides = [math.prod(extents[d + 1 :]) for d in range(len(extents))]
        at = lambda p: sum((s + i) * n for s, i, n in zip(start, p, strides))
        made = [threefry(13, words, (at(p) & 0xFFFFFFFF, at(p) >> 32))[0] for p in np.ndindex(*shape)]
        return np.array(made, "u4").reshape(shape)

    far = (1 << 32) // 15 + 1
    for what, key, extents, start, shape, step in (
        ("one", 7, (), (), (), 0), ("whole", 0x0123456789ABCDEF, (4, 3, 5), (0, 0, 0), (4, 3, 5), 0), ("step", 0x0123456789ABCDEF, (4, 3, 5), (0, 0, 0), (4, 3, 5), 1),
        ("part", 0x0123456789ABCDEF, (4, 3, 5), (1, 0, 2), (2, 3, 3), 1), ("last", 2**64 - 1, (9,), (0,), (9,), 2**32 - 1),
        ("past 32 bits", 3, (1, 3, 5), (far - 2, 0, 0), (4, 3, 5), 9), ("none", 1, (2, 3), (0, 0), (0, 3), 0),
    ):
        text = op("random", key=key, extents=list(extents), start=list(start), shape=list(shape))
        case(f"random {what}", text, [np.uint32(step)], bits(key, extents, start, shape, step))


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", "tests", "goldens", "ops.jsonl")
    for make in (unary_cases, binary_cases, compare_cases, cast_cases, structure_cases, reduce_cases, tree_cases, contract_cases, conv_cases, window_cases, row_cases,
                 standardize_cases, take_cases, take_each_cases, scatter_cases, scan_cases, random_cases):
        make()
    names = [c["name"] for c in cases]
    assert len(set(names)) == len(names), sorted(n for n in names if names.count(n) > 1)
    with open(out, "w") as file:
        for c in cases:
            line = {"name": c["name"], "op": c["op"], "args": [tensor(a) for a in c["args"]], "want": [tensor(w) for w in c["want"]], "within": c["within"]}
            file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
    print(len(cases), "cases,", os.path.getsize(out), "bytes")


if __name__ == "__main__":
    main()
