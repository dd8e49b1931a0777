#!/usr/bin/env python3
"""Writes `tests/goldens/ops.jsonl`: what NumPy and TensorFlow say every operation computes.

    python tools/make_op_goldens.py [OUT]

One case a line: `name`, `graph` (the text form, one node), `args` and `want` (tensors `{"type": "f32[2, 3]", "data": [...]}`), and `within`:
`"bits"`, `{"ulp": n}` or `{"scale": x}` (largest error as a part of the largest finite value wanted). NaN only has to be NaN.
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


def case(name, op, args, want, within="bits"):
    """`op` is the node in text form with %0, %1 … for its operands."""
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
    return np.where(x >= 0, 1 / (1 + np.exp(-np.abs(x))), np.exp(-np.abs(x)) / (1 + np.exp(-np.abs(x)))) + 0 * x


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
            case(f"{name} {dtype}", f"{name} %0", [x], want, "bits" if name in EXACT_UNARY else {"ulp": 4 if dtype in ("f32", "f64") else 1})
    for dtype in INTS:
        info = np.iinfo(TYPES[dtype])
        x = np.array([0, 1, 2, 7, 100, info.min, info.max, info.max - 1], TYPES[dtype])
        if dtype[0] == "i":
            x = np.concatenate([x, np.array([-1, -7, -100], TYPES[dtype])])
        with np.errstate(all="ignore"):
            for name, f in {"neg": np.negative, "abs": np.abs, "sign": np.sign, "not": np.invert}.items():
                case(f"{name} {dtype}", f"{name} %0", [x], f(x))
    case("not bool", "not %0", [np.array([True, False])], np.array([False, True]))
    for dtype in FLOATS:
        x = np.array([0.0, -0.0, 1.0, math.nan, math.inf, -math.inf, -2.5], TYPES[dtype])
        case(f"is_nan {dtype}", "is_nan %0", [x], np.isnan(x))
        case(f"is_finite {dtype}", "is_finite %0", [x], np.isfinite(x))


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
                case(f"{name} {dtype}", f"{name} %0, %1", [a, b], want, "bits" if name in EXACT_BINARY else {"ulp": 4 if dtype in ("f32", "f64") else 1})
            # Quotients well away from integers, where every definition of floor_div and mod agrees, and exact ones.
            a = np.array([7.5, -7.5, 7.5, -7.5, 6.0, -6.0, 0.25, -0.25, 5.0, math.nan, 1.0, math.inf], TYPES[dtype])
            b = np.array([2.0, 2.0, -2.0, -2.0, 3.0, 3.0, 1.0, 1.0, math.inf, 1.0, math.nan, 2.0], TYPES[dtype])
            case(f"floor_div {dtype}", "floor_div %0, %1", [a, b], np.floor(a / b))
            case(f"mod {dtype}", "mod %0, %1", [a, b], float_mod(a, b).astype(TYPES[dtype]))
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
                case(f"pow {dtype}", "pow %0, %1", [p, q], wrap([f(int(x), int(y)) for x, y in small], dtype))
                continue
            case(f"{name} {dtype}", f"{name} %0, %1", [a, b], wrap([f(int(x), int(y)) for x, y in zip(a, b)], dtype))
        shifts = [(x, y) for x in some for y in (0, 1, 3, info.bits - 1, info.bits)]
        p, q = (np.array(v, TYPES[dtype]) for v in zip(*shifts))
        case(f"shl {dtype}", "shl %0, %1", [p, q], wrap([0 if y >= info.bits else x << y for x, y in shifts], dtype))
        case(f"shr {dtype}", "shr %0, %1", [p, q], wrap([x >> y for x, y in shifts], dtype))
    a, b = np.array([False, False, True, True]), np.array([False, True, False, True])
    for name, want in {"and": a & b, "or": a | b, "xor": a ^ b, "add": a | b, "mul": a & b, "max": a | b, "min": a & b}.items():
        case(f"{name} bool", f"{name} %0, %1", [a, b], want)


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
            case(f"{name} {dtype}", COMPARE.format(name), [a, b], f(a, b))


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
            case(f"cast {source} to {to}", CAST.format(to), [x], want)


# Structure

def structure_cases():
    """Operations that move elements: exact for every type."""
    for dtype in ("f32", "f64", "i32", "bool", "f16", "bf16", "i8", "i64", "u32"):
        x = values("move" + dtype, (2, 3, 4), dtype)
        case(f"transpose {dtype}", transpose([2, 0, 1]), [x], x.transpose(2, 0, 1))
        case(f"reshape {dtype}", reshape(dtype, [4, 6]), [x], x.reshape(4, 6))
        case(f"concat {dtype}", concat(2, 1), [x, values("more" + dtype, (2, 1, 4), dtype)], np.concatenate([x, values("more" + dtype, (2, 1, 4), dtype)], 1))
    x = values("moved", (3, 4, 5))
    one = values("one", (1,))
    for shape, dims, to in [((3,), [1], (2, 3)), ((3,), [0], (3, 2)), ((), [], (2, 3)), ((2, 1), [0, 2], (2, 4, 3)), ((1, 4), [1, 2], (2, 3, 4)), ((0,), [1], (2, 0))]:
        v = values(f"b{shape}", shape)
        lifted = v.reshape([to[d] if d in dims and v.shape[dims.index(d)] != 1 else 1 for d in range(len(to))])
        case(f"broadcast {list(shape)} to {list(to)}", broadcast("f32", to, dims), [v], np.broadcast_to(lifted, to).copy())
    for target in ([60], [12, 5], [3, 2, 2, 5], [15, 4], [1, 3, 1, 20], [60, 1]):
        case(f"reshape to {target}", reshape("f32", target), [x], x.reshape(target))
    case("reshape a scalar", reshape("f32", [1, 1]), [np.float32(2.5)], np.full((1, 1), 2.5, "f4"))
    case("reshape nothing", reshape("f32", [0, 3]), [np.zeros((3, 0), "f4")], np.zeros((0, 3), "f4"))
    for start, limit, stride in [([0, 1, 2], [2, 4, 5], [1, 1, 1]), ([1, 0, 0], [3, 4, 5], [1, 2, 3]), ([0, 3, 1], [3, 4, 4], [2, 1, 2]), ([1, 1, 1], [1, 4, 5], [1, 1, 1])]:
        want = x[tuple(slice(a, b, c) for a, b, c in zip(start, limit, stride))]
        case(f"slice {start} {limit} {stride}", slice_(start, limit, stride), [x], want.copy())
    for low, high, interior in [([1, 0, 2], [0, 3, 1], [0, 0, 0]), ([0, 0, 0], [0, 0, 0], [1, 2, 0]), ([-1, 1, 0], [0, -2, 1], [0, 0, 0]), ([-1, 2, -3], [1, -1, 2], [2, 1, 1]), ([2, 0, 0], [-3, 0, 0], [1, 0, 0])]:
        for fill in (0.0, 7.5):
            case(f"pad {low} {high} {interior} with {fill}", pad(low, high, interior, fill), [x], padded(x, low, high, interior, fill))
    case("pad an empty tensor", pad([1, 0], [2, 1], [0, 0], 1.5), [np.zeros((0, 2), "f4")], padded(np.zeros((0, 2), "f4"), [1, 0], [2, 1], [0, 0], 1.5))
    parts = [values(f"part{n}", (2, n, 3)) for n in (1, 4, 0, 2)]
    case("concat of four", concat(4, 1), parts, np.concatenate(parts, 1))
    case("concat outermost", concat(2, 0), [x, x[:1]], np.concatenate([x, x[:1]], 0))
    case("concat innermost", concat(2, 2), [x, x[:, :, :1]], np.concatenate([x, x[:, :, :1]], 2))
    for dims in ([0], [2], [0, 1], [0, 1, 2]):
        case(f"reverse {dims}", reverse(dims), [x], np.flip(x, dims).copy())
    for perm in ([0, 2, 1], [1, 0, 2], [2, 1, 0]):
        case(f"transpose {perm}", transpose(perm), [x], x.transpose(perm))
    case("transpose of rank 5", transpose([4, 1, 3, 0, 2]), [values("r5", (2, 3, 1, 2, 3))], values("r5", (2, 3, 1, 2, 3)).transpose(4, 1, 3, 0, 2))
    for dtype in ("i32", "i64", "f32", "u8", "f16"):
        for shape, dim in (((5,), 0), ((2, 3), 0), ((2, 3), 1)):
            want = np.broadcast_to(np.arange(shape[dim]).reshape([-1 if d == dim else 1 for d in range(len(shape))]), shape)
            case(f"iota {dtype} {list(shape)} along {dim}", iota(dtype, shape, dim), [], want.astype(TYPES[dtype]))
    condition = values("c", (3, 4, 5), "bool")
    for dtype in ("f32", "f64", "i32", "bool", "f16", "bf16"):
        a, b = values("a" + dtype, (3, 4, 5), dtype), values("b" + dtype, (3, 4, 5), dtype)
        case(f"select {dtype}", SELECT, [condition, a, b], np.where(condition, a, b))
    a, b = np.array([math.nan, 1.0], "f4"), np.array([2.0, math.nan], "f4")
    case("select past NaN", SELECT, [np.array([False, True]), a, b], np.array([2.0, 1.0], "f4"))


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
                case(f"reduce {name} {dtype} over {axes}", reduce(name, axes), [x], want, within)
        empty = np.zeros((2, 0), "f4")
        identity = {"sum": 0.0, "prod": 1.0, "max": -math.inf, "min": math.inf}[name]
        case(f"reduce {name} of nothing", reduce(name, [1]), [empty], np.full(2, identity, "f4"))
        odd = np.array([[math.nan, 1, 2], [math.inf, -math.inf, 0], [-0.0, -0.0, -0.0], [math.inf, 1, 2], [3, -math.inf, 1]], "f4")
        with np.errstate(all="ignore"):
            want = f(odd, axis=1)
        case(f"reduce {name} of NaN and infinities", reduce(name, [1]), [odd], want.astype("f4"), {"ulp": 0} if name == "sum" else "bits")
    long = values("long", (3, 1031))
    case("reduce sum of a long row", reduce("sum", [1]), [long[:2, :257]], long[:2, :257].astype("f8").sum(1).astype("f4"), {"scale": 1e-6})
    for dtype in ("f32", "i32", "f64"):
        x = values("argmax" + dtype, (4, 7), dtype)
        x[1] = x[1, 3]
        x[2, 5] = x[2, 2] = 9
        for axis in (0, 1):
            case(f"argmax {dtype} along {axis}", argmax(axis), [x], np.argmax(x, axis).astype("i4"))
    odd = np.array([[1, math.nan, math.nan], [-math.inf, -math.inf, -math.inf], [-0.0, 0.0, -1.0], [math.inf, math.nan, 0]], "f4")
    case("argmax of NaN and infinities", argmax(1), [odd[1:2]], np.array([0], "i4"))


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
            case(f"contract {name} {dtype}", contract(batch, contracted), [a, b], want.astype(TYPES[dtype]), within)
    a, b = np.array([[1, math.inf], [math.nan, 0]], "f4"), np.array([[0, 1], [1, -1]], "f4")
    with np.errstate(all="ignore"):
        case("contract NaN and infinities", contract([], [(1, 0)]), [a, b], a @ b)


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


def conv_cases():
    for name, sx, sk, strides, pads, rd, ld, groups, batch_groups in CONVOLUTIONS:
        for dtype in ("f32", "f64", "i32") if name in ("2-D", "2-D groups", "2-D input dilation, negative pad") else ("f32",):
            x, k = values("conv" + name, sx, dtype), values("kernel" + name, sk, dtype)
            want = convolved(x, k, strides, pads, rd, ld, groups, batch_groups)
            if ld == [1] * len(ld) and batch_groups == 1 and dtype != "i32" and (max(rd) == 1 or max(strides) == 1):
                room = padded(x, [0] + [p[0] for p in pads] + [0], [0] + [p[1] for p in pads] + [0], [0] * x.ndim, 0.0)
                parts = [
                    tf.nn.convolution(a, b, strides=strides, padding="VALID", dilations=rd)
                    for a, b in zip(np.split(room, groups, -1), np.split(k, groups, -1))
                ]
                check(name, want, tf.concat(parts, -1), 1e-5)
            within = {"f32": {"scale": 2e-6}, "f64": {"scale": 1e-14}, "i32": "bits"}[dtype]
            case(f"conv {name} {dtype}", conv(strides, pads, rd, ld, groups, batch_groups), [x, k], want.astype(TYPES[dtype]), within)
    x = values("conv nan", (1, 4, 4, 1))
    x[0, 1, 2, 0], x[0, 3, 0, 0] = math.nan, math.inf
    k = values("conv nan kernel", (2, 2, 1, 1))
    case("conv NaN and infinity", conv([1, 1], [(0, 0)] * 2, [1, 1], [1, 1], 1, 1), [x, k], convolved(x, k, [1, 1], [(0, 0)] * 2, [1, 1], [1, 1], 1).astype("f4"), {"scale": 2e-6})


# Windows

def windowed(x, op, window, strides, pads, dilation):
    """Window over every dimension, edges filled with the identity."""
    fill = {"sum": 0, "prod": 1, "max": -math.inf, "min": math.inf}[op]
    if x.dtype.kind in "iu" and op in ("max", "min"):
        fill = np.iinfo(x.dtype).min if op == "max" else np.iinfo(x.dtype).max
    room = padded(x, [p[0] for p in pads], [p[1] for p in pads], [0] * x.ndim, fill)
    reach = [(w - 1) * d + 1 for w, d in zip(window, dilation)]
    size = [max((room.shape[i] - reach[i]) // strides[i] + 1, 0) for i in range(x.ndim)]
    out = np.full(size, fill, x.dtype)
    join = {"sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum}[op]
    for at in product(*map(range, window)):
        out = join(out, room[tuple(slice(a * d, a * d + (s - 1) * st + 1, st) for a, d, s, st in zip(at, dilation, size, strides))])
    return out


def window_cases():
    settings = [
        ("pool 2", (2, 4, 6, 3), [1, 2, 2, 1], [1, 2, 2, 1], [(0, 0)] * 4, [1] * 4),
        ("pool 3 stride 2 same", (1, 5, 6, 2), [1, 3, 3, 1], [1, 2, 2, 1], [(0, 0), (1, 1), (0, 1), (0, 0)], [1] * 4),
        ("pool 3 stride 1 same", (1, 4, 4, 2), [1, 3, 3, 1], [1, 1, 1, 1], [(0, 0), (1, 1), (1, 1), (0, 0)], [1] * 4),
        ("pool that leaves a rest", (1, 7, 5, 2), [1, 3, 2, 1], [1, 3, 2, 1], [(0, 0)] * 4, [1] * 4),
        ("1-D", (2, 9, 2), [1, 4, 1], [1, 3, 1], [(0, 0), (1, 2), (0, 0)], [1] * 3),
        ("3-D", (1, 4, 3, 4, 2), [1, 2, 2, 2, 1], [1, 2, 1, 2, 1], [(0, 0), (0, 0), (1, 0), (0, 0), (0, 0)], [1] * 5),
        ("dilated", (1, 7, 7, 1), [1, 3, 2, 1], [1, 1, 2, 1], [(0, 0)] * 4, [1, 2, 3, 1]),
    ]
    for name, shape, window, strides, pads, dilation in settings:
        for op in ("max", "min", "sum"):
            for dtype in ("f32", "f64", "i32") if name == "pool 3 stride 2 same" else ("f32",):
                x = values("window" + name + op, shape, dtype)
                want = windowed(x.astype("f8") if dtype != "i32" else x, op, window, strides, pads, dilation).astype(TYPES[dtype])
                if op == "max" and dtype != "i32" and max(dilation) == 1:
                    room = padded(x, [p[0] for p in pads], [p[1] for p in pads], [0] * x.ndim, -np.inf)
                    check(name, want, tf.nn.pool(room, window[1:-1], "MAX", strides[1:-1], "VALID"))
                within = "bits" if op != "sum" or dtype == "i32" else {"scale": 1e-6 if dtype == "f32" else 1e-14}
                case(f"window {op} {name} {dtype}", window_reduce(op, window, strides, pads, dilation), [x], want, within)
    x = np.array([[1, math.nan, 2, -math.inf, -math.inf, -0.0]], "f4")
    for op in ("max", "min"):
        want = windowed(x, op, [1, 2], [1, 2], [(0, 0)] * 2, [1, 1])
        case(f"window {op} of NaN and infinities", window_reduce(op, [1, 2], [1, 2], [(0, 0)] * 2, [1, 1]), [x], want)


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
                case(f"{'log_' if log else ''}softmax {dtype} along {axis}", softmax_op(log, axis), [x], want.astype(TYPES[dtype]), within)
    odd = np.array([[1e4, -1e4, 0], [-math.inf, 0, 1], [math.nan, 0, 0], [-1e30, -1e30, -1e30], [88, 89, 90]], "f4")
    for log in (False, True):
        case(f"{'log_' if log else ''}softmax far out", softmax_op(log, 1), [odd], softmax(odd, 1, log).astype("f4"), {"scale": 1e-6})
    case("softmax of a single column", softmax_op(False, 1), [values("column", (4, 1))], np.ones((4, 1), "f4"))


# Reading and adding by index

def gather_cases():
    for dtype in ("f32", "f64", "i32", "bool", "f16", "bf16"):
        table = values("table" + dtype, (7, 3), dtype)
        ids = rng("ids" + dtype).integers(0, 7, (2, 4)).astype("i4")
        case(f"gather rows {dtype}", gather(0), [table, ids], table[ids])
    table = values("table", (4, 5, 3))
    for axis in (0, 1, 2):
        for shape in ((), (3,), (2, 2), (0,)):
            ids = rng(f"{axis}{shape}").integers(0, table.shape[axis], shape).astype("i4")
            case(f"gather along {axis}, ids {list(shape)}", gather(axis), [table, ids], np.take(table, ids, axis))
    ids = rng("wide").integers(0, 5, (6,))
    case("gather with i64 ids", gather(1), [table, ids.astype("i8")], np.take(table, ids, 1))


def scatter_cases():
    for dtype in ("f32", "f64", "i32"):
        base, ids = values("base" + dtype, (6, 3), dtype), np.array([[2, 0, 2], [5, 2, 0]], "i4")
        updates = values("updates" + dtype, (2, 3, 3), dtype)
        want = base.astype("f8")
        np.add.at(want, ids, updates.astype("f8"))
        within = {"f32": {"scale": 4e-7}, "f64": {"scale": 1e-15}, "i32": "bits"}[dtype]
        case(f"scatter_add {dtype}", scatter_add(0), [base, ids, updates], want.astype(TYPES[dtype]), within)
    none = np.zeros((0,), "i4")
    base = values("kept", (4, 2))
    case("scatter_add of nothing", scatter_add(0), [base, none, np.zeros((0, 2), "f4")], base)


def main():
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "..", "tests", "goldens", "ops.jsonl")
    for make in (unary_cases, binary_cases, compare_cases, cast_cases, structure_cases, reduce_cases, contract_cases, conv_cases, window_cases, row_cases,
                 gather_cases, scatter_cases):
        make()
    names = [c["name"] for c in cases]
    assert len(set(names)) == len(names), sorted(n for n in names if names.count(n) > 1)
    with open(out, "w") as file:
        for c in cases:
            line = {"name": c["name"], "graph": graph(c), "args": [tensor(a) for a in c["args"]], "want": [tensor(w) for w in c["want"]], "within": c["within"]}
            file.write(json.dumps(line, separators=(",", ":"), allow_nan=False) + "\n")
    print(len(cases), "cases,", os.path.getsize(out), "bytes")


if __name__ == "__main__":
    main()
