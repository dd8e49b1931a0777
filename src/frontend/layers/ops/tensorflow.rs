//! TensorFlow's names: which operation a symbol is, and what its arguments are called here.

use indexmap::IndexMap;

use super::{arith, index, linear, nn, reduce, shaping};
use crate::frontend::json::Json;
use crate::frontend::layers::Import;
use crate::frontend::layers::cx::{Out, misfit, unsupported};
use crate::frontend::layers::inputs::Item;

/// An argument that a name implies.
#[derive(Clone, Copy, Debug)]
pub(in crate::frontend::layers) enum Fixed {
    Int(i64),
    Word(&'static str),
}

impl Fixed {
    pub(in crate::frontend::layers) fn json(self) -> Json {
        match self {
            Fixed::Int(i) => Json::Int(i),
            Fixed::Word(s) => Json::String(s.to_string()),
        }
    }
}

type Names = &'static [(&'static str, &'static str)];

/// An operation, its arguments in TensorFlow's order under both names, and those that the name implies.
pub(in crate::frontend::layers) struct Operation {
    pub(in crate::frontend::layers) import: Import,
    pub(in crate::frontend::layers) names: Names,
    pub(in crate::frontend::layers) fixed: &'static [(&'static str, Fixed)],
}

const PAIR: Names = &[("x", "x1"), ("y", "x2")];
const BITS: Names = &[("x", "x"), ("y", "y")];
const ONE: Names = &[("x", "x")];
const INPUT: Names = &[("input", "x")];
const FEATURES: Names = &[("features", "x")];
const REDUCED: Names = &[("input_tensor", "x"), ("axis", "axis"), ("keepdims", "keepdims")];
const REDUCED_BY_KERAS: Names = &[("x", "x"), ("axis", "axis"), ("keepdims", "keepdims")];
const LOGITS: Names = &[("logits", "x"), ("axis", "axis")];
const CONCAT: Names = &[("values", "xs"), ("axis", "axis")];
const CLIP: Names = &[("t", "x"), ("clip_value_min", "x_min"), ("clip_value_max", "x_max")];
const RUNNING: Names = &[("x", "x"), ("axis", "axis"), ("exclusive", "exclusive"), ("reverse", "reverse")];
const MATMUL: Names = &[
    ("a", "x1"),
    ("b", "x2"),
    ("transpose_a", "transpose_a"),
    ("transpose_b", "transpose_b"),
    ("adjoint_a", "adjoint_a"),
    ("adjoint_b", "adjoint_b"),
    ("a_is_sparse", "a_is_sparse"),
    ("b_is_sparse", "b_is_sparse"),
];
const ARG: Names = &[("input", "x"), ("axis", "axis"), ("output_type", "output_type")];
const CONV: Names = &[
    ("input", "inputs"),
    ("filters", "kernel"),
    ("filter", "kernel"),
    ("strides", "strides"),
    ("padding", "padding"),
    ("data_format", "data_format"),
    ("dilations", "dilation_rate"),
];
const POOL: Names = &[
    ("input", "inputs"),
    ("ksize", "pool_size"),
    ("strides", "strides"),
    ("padding", "padding"),
    ("data_format", "data_format"),
];
const NORMAL: Names = &[("x", "x"), ("axis", "axis"), ("epsilon", "epsilon")];
const BLOCKS: Names = &[("input", "x"), ("block_size", "block_size"), ("data_format", "data_format")];
const GATHER: Names = &[
    ("params", "x"),
    ("indices", "indices"),
    ("validate_indices", "validate_indices"),
    ("axis", "axis"),
    ("batch_dims", "batch_dims"),
];
const ALL_LIKE: Names = &[("input", "x"), ("dtype", "dtype")];
const FIRST_AXIS: &[(&str, Fixed)] = &[("axis", Fixed::Int(0))];
const LAST_AXIS: &[(&str, Fixed)] = &[("axis", Fixed::Int(-1))];
const LONG: &[(&str, Fixed)] = &[("axis", Fixed::Int(0)), ("output_type", Fixed::Word("int64"))];

/// The operation behind a symbol of TensorFlow's interface, `tf.` and `compat.v1.` aside.
pub(in crate::frontend::layers) fn named(symbol: &str) -> Option<Operation> {
    let symbol = symbol.strip_prefix("tf.").unwrap_or(symbol);
    // Images of TensorFlow 1 have their pixels elsewhere.
    if symbol.starts_with("compat.v1.image.") {
        return None;
    }
    let symbol = symbol.strip_prefix("compat.v1.").or(symbol.strip_prefix("compat.v2.")).unwrap_or(symbol);
    if let Some(name) = symbol.strip_prefix("keras.activations.") {
        return by_keras(name);
    }
    // What several modules of TensorFlow offer goes by its last name.
    let short = ["math.", "nn.", "linalg.", "__operators__.", "nest.", "dtypes.", "image.", "bitwise."];
    let name = short.iter().find_map(|module| symbol.strip_prefix(module)).unwrap_or(symbol);
    let (import, names, fixed) = symbol_row(name)?;
    Some(Operation { import, names, fixed })
}

type Row = (Import, Names, &'static [(&'static str, Fixed)]);

fn by_keras(name: &str) -> Option<Operation> {
    let import: Import = match name {
        "relu" => nn::relu,
        "sigmoid" => arith::sigmoid,
        "tanh" => arith::tanh,
        "softmax" => nn::softmax,
        "elu" => nn::elu,
        "selu" => nn::selu,
        "gelu" => nn::gelu_exact,
        "softplus" => nn::softplus,
        "softsign" => nn::softsign,
        "swish" | "silu" => nn::silu,
        "exponential" => arith::exp,
        "linear" => shaping::identity,
        _ => return None,
    };
    let names = &[("x", "x"), ("axis", "axis"), ("alpha", "alpha"), ("approximate", "approximate")];
    Some(Operation { import, names, fixed: &[] })
}

fn symbol_row(name: &str) -> Option<Row> {
    let (import, names): (Import, Names) = match name {
        "add" | "add_v2" => (arith::add, PAIR),
        "subtract" => (arith::subtract, PAIR),
        "multiply" => (arith::multiply, PAIR),
        "truediv" | "divide" | "div" | "realdiv" => (arith::divide, PAIR),
        "divide_no_nan" | "div_no_nan" => (arith::divide_no_nan, PAIR),
        "floordiv" | "floor_div" => (arith::floor_divide, PAIR),
        "floormod" | "mod" => (arith::modulo, PAIR),
        "truncatemod" => (arith::fmod, PAIR),
        "truncatediv" => (arith::truncated_divide, PAIR),
        "maximum" => (arith::maximum, PAIR),
        "minimum" => (arith::minimum, PAIR),
        "pow" => (arith::power, PAIR),
        "squared_difference" => (arith::squared_difference, PAIR),
        "atan2" => (arith::arctan_2, &[("y", "x1"), ("x", "x2")]),
        "equal" => (arith::equal, PAIR),
        "not_equal" => (arith::not_equal, PAIR),
        "greater" => (arith::greater, PAIR),
        "greater_equal" => (arith::greater_equal, PAIR),
        "less" => (arith::less, PAIR),
        "less_equal" => (arith::less_equal, PAIR),
        "eq" => (arith::equal, &[("self", "x1"), ("other", "x2")]),
        "ne" => (arith::not_equal, &[("self", "x1"), ("other", "x2")]),
        "logical_and" => (arith::logical_and, PAIR),
        "logical_or" => (arith::logical_or, PAIR),
        "logical_xor" => (arith::logical_xor, PAIR),
        "logical_not" => (arith::logical_not, ONE),
        "bitwise_and" => (arith::bitwise_and, BITS),
        "bitwise_or" => (arith::bitwise_or, BITS),
        "bitwise_xor" => (arith::bitwise_xor, BITS),
        "left_shift" => (arith::shift_left, BITS),
        "right_shift" => (arith::shift_right, BITS),
        "invert" => (arith::bitwise_not, ONE),
        "add_n" | "accumulate_n" => (arith::add_n, &[("inputs", "xs")]),
        "negative" | "neg" => (arith::negative, ONE),
        "abs" => (arith::absolute, ONE),
        "sign" => (arith::sign, ONE),
        "exp" => (arith::exp, ONE),
        "expm1" => (arith::expm1, ONE),
        "log" => (arith::log, ONE),
        "log1p" => (arith::log1p, ONE),
        "sqrt" => (arith::sqrt, ONE),
        "rsqrt" => (arith::rsqrt, ONE),
        "square" => (arith::square, ONE),
        "reciprocal" => (arith::reciprocal, ONE),
        "sigmoid" => (arith::sigmoid, ONE),
        "tanh" => (arith::tanh, ONE),
        "sin" => (arith::sin, ONE),
        "cos" => (arith::cos, ONE),
        "tan" => (arith::tan, ONE),
        "asin" => (arith::arcsin, ONE),
        "acos" => (arith::arccos, ONE),
        "atan" => (arith::arctan, ONE),
        "sinh" => (arith::sinh, ONE),
        "cosh" => (arith::cosh, ONE),
        "asinh" => (arith::arcsinh, ONE),
        "acosh" => (arith::arccosh, ONE),
        "atanh" => (arith::arctanh, ONE),
        "erf" => (arith::erf, ONE),
        "erfc" => (arith::erfc, ONE),
        "erfinv" => (arith::erfinv, ONE),
        "floor" => (arith::floor, ONE),
        "ceil" => (arith::ceil, ONE),
        "round" | "rint" => (arith::round, ONE),
        "is_nan" => (arith::is_nan, ONE),
        "is_inf" => (arith::is_inf, ONE),
        "is_finite" => (arith::is_finite, ONE),
        "log_sigmoid" => (nn::log_sigmoid, ONE),
        "softplus" => (nn::softplus, FEATURES),
        "softsign" => (nn::softsign, FEATURES),
        "relu" => (nn::relu, FEATURES),
        "relu6" => (nn::relu_6, FEATURES),
        "leaky_relu" => (nn::leaky_relu, &[("features", "x"), ("alpha", "negative_slope")]),
        "elu" => (nn::elu, FEATURES),
        "selu" => (nn::selu, FEATURES),
        "gelu" => (nn::gelu_exact, &[("features", "x"), ("approximate", "approximate")]),
        "swish" | "silu" => (nn::silu, &[("features", "x"), ("beta", "beta")]),
        "softmax" => (nn::softmax, LOGITS),
        "log_softmax" => (nn::log_softmax, LOGITS),
        "l2_normalize" => (nn::l2_normalize, NORMAL),
        "bias_add" => (nn::bias_add, &[("value", "x"), ("bias", "bias"), ("data_format", "data_format")]),
        "clip_by_value" => (arith::clip, CLIP),
        "reduce_mean" => (reduce::mean, REDUCED),
        "reduce_sum" => (reduce::sum, REDUCED),
        "reduce_prod" => (reduce::prod, REDUCED),
        "reduce_max" => (reduce::max, REDUCED),
        "reduce_min" => (reduce::min, REDUCED),
        "reduce_any" => (reduce::any, REDUCED),
        "reduce_all" => (reduce::all, REDUCED),
        "reduce_variance" => (reduce::stepwise_variance, REDUCED),
        "reduce_std" => (reduce::std, REDUCED),
        "reduce_logsumexp" => (reduce::log_sum_exp, REDUCED),
        "reduce_euclidean_norm" => (reduce::norm, REDUCED),
        "mean" => (reduce::mean, REDUCED_BY_KERAS),
        "count_nonzero" => (reduce::count_nonzero, &[("input", "x"), ("axis", "axis"), ("keepdims", "keepdims")]),
        "norm" => (reduce::norm, &[("tensor", "x"), ("ord", "ord"), ("axis", "axis"), ("keepdims", "keepdims")]),
        "moments" => {
            let names = &[("x", "x"), ("axes", "axes"), ("shift", "shift"), ("keepdims", "keepdims")];
            (reduce::unclipped_moments, names)
        }
        "stop_gradient" => (arith::stop_gradient, &[("input", "variable")]),
        "matmul" => (linear::matmul, MATMUL),
        "tensordot" => (linear::tensordot, &[("a", "x1"), ("b", "x2"), ("axes", "axes")]),
        "einsum" => (linear::einsum, &[("equation", "subscripts"), ("inputs", "operands")]),
        "trace" => (linear::trace, ONE),
        "concat" => (shaping::concatenate, CONCAT),
        "stack" => (shaping::stack, CONCAT),
        "unstack" => (shaping::unstack, &[("value", "x"), ("num", "num"), ("axis", "axis")]),
        "split" => {
            let names = &[("value", "x"), ("num_or_size_splits", "size_splits"), ("axis", "axis"), ("num", "num")];
            (shaping::split, names)
        }
        "expand_dims" => (shaping::expand_dims, &[("input", "x"), ("axis", "axis")]),
        "squeeze" => (shaping::squeeze, &[("input", "x"), ("axis", "axis")]),
        "reshape" => (shaping::reshape, &[("tensor", "x"), ("shape", "newshape")]),
        "transpose" => (shaping::transpose, &[("a", "x"), ("perm", "axes"), ("conjugate", "conjugate")]),
        "matrix_transpose" => (shaping::matrix_transpose, &[("a", "x"), ("conjugate", "conjugate")]),
        "reverse" => (shaping::flip, &[("tensor", "x"), ("axis", "axis")]),
        "roll" => (shaping::roll, &[("input", "x"), ("shift", "shift"), ("axis", "axis")]),
        "repeat" => (shaping::repeat, &[("input", "x"), ("repeats", "repeats"), ("axis", "axis")]),
        "tile" => (shaping::tile, &[("input", "x"), ("multiples", "repeats")]),
        "broadcast_to" => (shaping::broadcast_to, &[("input", "x"), ("shape", "shape")]),
        "pad" => {
            let names = &[
                ("tensor", "x"),
                ("paddings", "pad_width"),
                ("mode", "mode"),
                ("name", "unused"),
                ("constant_values", "constant_values"),
            ];
            (shaping::pad, names)
        }
        "cast" => (shaping::cast, &[("x", "x"), ("dtype", "dtype")]),
        "saturate_cast" => (shaping::saturate_cast, &[("value", "x"), ("dtype", "dtype")]),
        "identity" => (shaping::identity, INPUT),
        "convert_to_tensor" => (shaping::identity, &[("value", "x"), ("dtype", "dtype")]),
        "shape" => (shaping::shape, &[("input", "x"), ("out_type", "out_type")]),
        "size" => (shaping::size, &[("input", "x"), ("out_type", "out_type")]),
        "rank" => (shaping::ndim, INPUT),
        "zeros_like" => (shaping::zeros_like, ALL_LIKE),
        "ones_like" => (shaping::ones_like, ALL_LIKE),
        "zeros" => (shaping::zeros, &[("shape", "shape"), ("dtype", "dtype")]),
        "ones" => (shaping::ones, &[("shape", "shape"), ("dtype", "dtype")]),
        "fill" => (shaping::full, &[("dims", "shape"), ("value", "fill_value")]),
        "eye" => (shaping::eye, &[("num_rows", "N"), ("num_columns", "M")]),
        "range" => (shaping::arange, &[("start", "start"), ("limit", "stop"), ("delta", "step"), ("dtype", "dtype")]),
        "where" | "where_v2" => (arith::where_, &[("condition", "condition"), ("x", "x1"), ("y", "x2")]),
        "slice" => (index::slice, &[("input_", "inputs"), ("begin", "start_indices"), ("size", "shape")]),
        "resize" => {
            let names = &[
                ("images", "images"),
                ("size", "size"),
                ("method", "interpolation"),
                ("preserve_aspect_ratio", "preserve_aspect_ratio"),
                ("antialias", "antialias"),
            ];
            (nn::resize, names)
        }
        "rgb_to_grayscale" => (nn::rgb_to_grayscale, &[("images", "images")]),
        "depth_to_space" => (nn::depth_to_space, BLOCKS),
        "space_to_depth" => (nn::space_to_depth, BLOCKS),
        "conv1d" | "conv2d" | "conv3d" | "convolution" => (nn::conv, CONV),
        "max_pool1d" | "max_pool2d" | "max_pool3d" | "max_pool" => (nn::max_pool, POOL),
        "avg_pool1d" | "avg_pool2d" | "avg_pool3d" | "avg_pool" => (nn::average_pool, POOL),
        "getitem" => (index::get_item, &[("tensor", "x"), ("slice_spec", "key")]),
        _ => return implied(name),
    };
    Some((import, names, &[]))
}

/// Symbols whose defaults differ from Keras's.
fn implied(name: &str) -> Option<Row> {
    Some(match name {
        "argmax" => (reduce::argmax, ARG, LONG),
        "argmin" => (reduce::argmin, ARG, LONG),
        "cumsum" => (reduce::cumsum, RUNNING, FIRST_AXIS),
        "cumprod" => (reduce::cumprod, RUNNING, FIRST_AXIS),
        "gather" => (index::take, GATHER, FIRST_AXIS),
        "top_k" => (reduce::top_k, &[("input", "x"), ("k", "k"), ("sorted", "sorted")], &[]),
        "sort" => (reduce::sort, &[("values", "x"), ("axis", "axis"), ("direction", "direction")], LAST_AXIS),
        "argsort" => {
            let names = &[("values", "x"), ("axis", "axis"), ("direction", "direction"), ("stable", "stable")];
            (reduce::argsort, names, LAST_AXIS)
        }
        "one_hot" => {
            let names = &[
                ("indices", "x"),
                ("depth", "num_classes"),
                ("on_value", "on_value"),
                ("off_value", "off_value"),
                ("axis", "axis"),
                ("dtype", "dtype"),
            ];
            (index::one_hot, names, LAST_AXIS)
        }
        _ => return None,
    })
}

/// The operation of a node of a graph, whose operands are positional.
pub(in crate::frontend::layers) fn node(op: &str) -> Option<Operation> {
    let symbol = match op {
        "Add" | "AddV2" => "add",
        "AddN" => "add_n",
        "BiasAdd" => "bias_add",
        "Sub" => "subtract",
        "Mul" => "multiply",
        "RealDiv" | "Div" => "divide",
        "DivNoNan" => "div_no_nan",
        "FloorDiv" => "floordiv",
        "FloorMod" => "floormod",
        "Maximum" => "maximum",
        "Minimum" => "minimum",
        "Pow" => "pow",
        "SquaredDifference" => "squared_difference",
        "Neg" => "negative",
        "Abs" => "abs",
        "Sign" => "sign",
        "Exp" => "exp",
        "Log" => "log",
        "Log1p" => "log1p",
        "Sqrt" => "sqrt",
        "Rsqrt" => "rsqrt",
        "Square" => "square",
        "Reciprocal" | "Inv" => "reciprocal",
        "Sigmoid" => "sigmoid",
        "Tanh" => "tanh",
        "Sin" => "sin",
        "Cos" => "cos",
        "Erf" => "erf",
        "Floor" => "floor",
        "Ceil" => "ceil",
        "Round" => "round",
        "Relu" => "relu",
        "Relu6" => "relu6",
        "LeakyRelu" => "leaky_relu",
        "Elu" => "elu",
        "Selu" => "selu",
        "Softplus" => "softplus",
        "Softsign" => "softsign",
        "Softmax" => "softmax",
        "LogSoftmax" => "log_softmax",
        "Equal" => "equal",
        "NotEqual" => "not_equal",
        "Greater" => "greater",
        "GreaterEqual" => "greater_equal",
        "Less" => "less",
        "LessEqual" => "less_equal",
        "LogicalAnd" => "logical_and",
        "LogicalOr" => "logical_or",
        "LogicalNot" => "logical_not",
        "Mean" => "reduce_mean",
        "Sum" => "reduce_sum",
        "Prod" => "reduce_prod",
        "Max" => "reduce_max",
        "Min" => "reduce_min",
        "Any" => "reduce_any",
        "All" => "reduce_all",
        "ArgMax" => "argmax",
        "ArgMin" => "argmin",
        "MatMul" | "BatchMatMul" | "BatchMatMulV2" => "matmul",
        "ConcatV2" => "concat",
        "Pack" => "stack",
        "Unpack" => "unstack",
        "Split" | "SplitV" => "split",
        "ExpandDims" => "expand_dims",
        "Squeeze" => "squeeze",
        "Reshape" => "reshape",
        "Transpose" => "transpose",
        "Tile" => "tile",
        "BroadcastTo" => "broadcast_to",
        "Pad" | "PadV2" | "MirrorPad" => "pad",
        "Cast" => "cast",
        "Identity" => "identity",
        "StopGradient" => "stop_gradient",
        "Shape" => "shape",
        "ZerosLike" => "zeros_like",
        "OnesLike" => "ones_like",
        "Fill" => "fill",
        "Range" => "range",
        "Select" | "SelectV2" => "where",
        "GatherV2" | "Gather" => "gather",
        "OneHot" => "one_hot",
        "Slice" => "slice",
        "StridedSlice" => "getitem",
        "ClipByValue" => "clip_by_value",
        "DepthToSpace" => "depth_to_space",
        "SpaceToDepth" => "space_to_depth",
        "TopKV2" => "top_k",
        "Cumsum" => "cumsum",
        _ => return None,
    };
    named(symbol)
}

type Arguments = (Vec<Item>, IndexMap<String, Item>);

/// The arguments of a node: operands, then what its attributes say under the names of the interface.
pub(in crate::frontend::layers) fn arguments(
    op: &str,
    mut operands: Vec<Item>,
    attributes: &IndexMap<String, Json>,
) -> Out<Arguments> {
    let mut kwargs = IndexMap::new();
    let lacks = || misfit(format!("the node {op} has too few operands"));
    match op {
        "AddN" | "Pack" => operands = vec![Item::List(operands)],
        "ConcatV2" => {
            let axis = operands.pop().ok_or_else(lacks)?;
            operands = vec![Item::List(operands), axis];
        }
        "Split" if operands.len() == 2 => {
            let axis = operands.remove(0);
            kwargs.insert("axis".to_string(), axis);
        }
        "SplitV" if operands.len() == 3 => {
            let axis = operands.pop().ok_or_else(lacks)?;
            kwargs.insert("axis".to_string(), axis);
        }
        "Gather" | "GatherV2" if operands.len() == 3 => {
            let axis = operands.pop().ok_or_else(lacks)?;
            kwargs.insert("axis".to_string(), axis);
        }
        "PadV2" if operands.len() == 3 => {
            let value = operands.pop().ok_or_else(lacks)?;
            kwargs.insert("constant_values".to_string(), value);
        }
        "StridedSlice" => operands = strided(&operands, attributes)?,
        _ => {}
    }
    for (key, value) in attributes {
        let Some((name, json)) = attribute(op, key, value)? else { continue };
        kwargs.insert(name.to_string(), Item::Const(json));
    }
    Ok((operands, kwargs))
}

/// The value of an attribute: `{"i": "1"}`, `{"f": 0.2}`, `{"b": true}`, `{"s": "base64"}`, `{"type": "DT_FLOAT"}`.
fn plain(value: &Json) -> Option<Json> {
    let Json::Object(map) = value else { return None };
    let (kind, inner) = map.first()?;
    match (kind.as_str(), inner) {
        ("i", Json::String(text)) => text.parse().ok().map(Json::Int),
        ("i" | "f" | "b", other) => Some(other.clone()),
        ("type", Json::String(name)) => element(name).map(|n| Json::String(n.to_string())),
        ("list", list) => match list.get("i") {
            Some(Json::Array(items)) => {
                let one = |j: &Json| j.as_int().or_else(|| j.as_str()?.parse().ok()).map(Json::Int);
                items.iter().map(one).collect::<Option<Vec<_>>>().map(Json::Array)
            }
            _ => Some(Json::Array(Vec::new())),
        },
        _ => None,
    }
}

fn element(name: &str) -> Option<&'static str> {
    Some(match name {
        "DT_FLOAT" => "float32",
        "DT_DOUBLE" => "float64",
        "DT_HALF" => "float16",
        "DT_BFLOAT16" => "bfloat16",
        "DT_INT32" => "int32",
        "DT_INT64" => "int64",
        "DT_INT16" => "int16",
        "DT_INT8" => "int8",
        "DT_UINT8" => "uint8",
        "DT_BOOL" => "bool",
        _ => return None,
    })
}

/// What an attribute is called in the interface; `None` where it says nothing that operands do not.
fn attribute(op: &str, key: &str, value: &Json) -> Out<Option<(&'static str, Json)>> {
    let name = match (op, key) {
        (_, "keep_dims") => "keepdims",
        (_, "transpose_a" | "adj_x") => "transpose_a",
        (_, "transpose_b" | "adj_y") => "transpose_b",
        ("Pack" | "Unpack" | "OneHot", "axis") => "axis",
        ("Squeeze", "squeeze_dims") => "axis",
        ("LeakyRelu", "alpha") => "alpha",
        ("Cast", "DstT") => "dtype",
        ("ArgMax" | "ArgMin", "output_type") => "output_type",
        ("Shape", "out_type") => "out_type",
        ("Split", "num_split") => "num_or_size_splits",
        ("Gather" | "GatherV2", "batch_dims") => "batch_dims",
        ("Cumsum", "exclusive") => "exclusive",
        ("Cumsum", "reverse") => "reverse",
        ("DepthToSpace" | "SpaceToDepth", "block_size") => "block_size",
        ("MirrorPad", "mode") => return Err(unsupported("mirrored padding in a node of a graph")),
        (_, "data_format") => match value.get("s").and_then(Json::as_str) {
            None | Some("TkhXQw==" | "NHWC") => return Ok(None),
            Some(_) => return Err(unsupported("a node with channels first")),
        },
        _ => return Ok(None),
    };
    match plain(value) {
        Some(json) => Ok(Some((name, json))),
        None => Err(unsupported(format!("the attribute `{key}` = {value} of a node"))),
    }
}

/// Bounds of every dimension, and masks that say what becomes of them, as an index.
fn strided(operands: &[Item], attributes: &IndexMap<String, Json>) -> Out<Vec<Item>> {
    let [x, begin, end, step] = operands else { return Err(misfit("a slice takes four operands")) };
    let list = |item: &Item| match item {
        Item::Const(Json::Array(items)) => Ok(items.clone()),
        Item::Const(one) => Ok(vec![one.clone()]),
        _ => Err(unsupported("a slice with bounds that are tensors")),
    };
    let (begin, end, step) = (list(begin)?, list(end)?, list(step)?);
    let mask = |key: &str, i: usize| {
        let bits = attributes.get(key).and_then(plain).and_then(|j| j.as_int()).unwrap_or(0);
        bits >> i & 1 == 1
    };
    let mut parts = Vec::new();
    for (i, first) in begin.iter().enumerate() {
        let null = Item::Const(Json::Null);
        let at = |list: &[Json]| list.get(i).cloned().map_or(null.clone(), Item::Const);
        parts.push(if mask("ellipsis_mask", i) {
            Item::Ellipsis
        } else if mask("new_axis_mask", i) {
            null.clone()
        } else if mask("shrink_axis_mask", i) {
            Item::Const(first.clone())
        } else {
            let start = if mask("begin_mask", i) { null.clone() } else { Item::Const(first.clone()) };
            let stop = if mask("end_mask", i) { null.clone() } else { at(&end) };
            Item::Slice(Box::new([start, stop, at(&step)]))
        });
    }
    Ok(vec![x.clone(), Item::List(parts)])
}
