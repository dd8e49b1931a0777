//! `keras.ops.nn`: activations, normalisation, convolution, pooling, attention.

use intwain_ir::ops::{Conv, LogSoftmax, Pool, Reverse};
use intwain_ir::scalar::{Binary, Compare, Reduce, Unary};
use intwain_ir::{DType, Shape, Value};

use super::args::{Call, integers, operations};
use super::arith::{choose, scaled};
use super::linear::matrix_product;
use super::reduce::standardized;
use super::shaping::band;
use crate::frontend::json::Json;
use crate::frontend::layers::activations::{Activation, Keras2, softmax_over};
use crate::frontend::layers::conv::{depthwise_product, plain, transposed_pads};
use crate::frontend::layers::cx::{Out, misfit, unsupported};
use crate::frontend::layers::image::{Antialias, KERNELS, resized};
use crate::frontend::layers::norm::l2_normalized;
use crate::frontend::layers::windows::{Format, Padding, Windows};

operations! {
    relu = |c| activation(c, &Activation::Relu { slope: 0.0, max: None, threshold: 0.0 });
    relu_6 = |c| activation(c, &Activation::Relu { slope: 0.0, max: Some(6.0), threshold: 0.0 });
    leaky_relu = |c| {
        let slope = c.number("negative_slope")?.unwrap_or(0.2);
        activation(c, &Activation::LeakyRelu { slope })
    };
    elu = |c| { let alpha = c.number("alpha")?.unwrap_or(1.0); activation(c, &Activation::Elu { alpha }) };
    celu = |c| { let alpha = c.number("alpha")?.unwrap_or(1.0); activation(c, &Activation::Celu { alpha }) };
    selu = |c| activation(c, &Activation::Selu);
    // The bare operation approximates unless told otherwise, the activation does not.
    gelu = |c| {
        let exact = c.attr("approximate")? == Some(Json::Bool(false));
        activation(c, if exact { &Activation::Gelu } else { &Activation::GeluTanh })
    };
    gelu_exact = |c| {
        let rough = c.flag("approximate")?;
        activation(c, if rough { &Activation::GeluTanh } else { &Activation::Gelu })
    };
    softplus = |c| activation(c, &Activation::Softplus);
    softsign = |c| activation(c, &Activation::Softsign);
    silu = |c| { c.neutral("beta", &[Json::Float(1.0), Json::Int(1)])?; activation(c, &Activation::Silu) };
    hard_silu = |c| activation(c, &Activation::HardSilu);
    hard_sigmoid = |c| activation(c, &Activation::HardSigmoid { keras_2: Keras2::No });
    log_sigmoid = |c| activation(c, &Activation::LogSigmoid);
    sparse_plus = |c| activation(c, &Activation::SparsePlus);
    sparse_sigmoid = |c| activation(c, &Activation::SparseSigmoid);
    tanh_shrink = |c| activation(c, &Activation::TanhShrink);
    hard_tanh = |c| activation(c, &Activation::HardTanh);
    hard_shrink = |c| {
        let t = c.number("threshold")?.unwrap_or(0.5);
        let x = c.floating(0, "x")?;
        let (abs, t, zero) = (c.cx.g.unary(Unary::Abs, x)?, c.like(x, t)?, c.like(x, 0.0)?);
        let inside = c.cx.g.compare(Compare::Le, abs, t)?;
        Ok(c.cx.g.select(inside, zero, x)?)
    };
    soft_shrink = |c| {
        let t = c.number("threshold")?.unwrap_or(0.5);
        let x = c.floating(0, "x")?;
        let (high, low, zero) = (c.like(x, t)?, c.like(x, -t)?, c.like(x, 0.0)?);
        let (down, up) = (c.cx.g.sub(x, high)?, c.cx.g.sub(x, low)?);
        let (above, below) = (c.cx.g.compare(Compare::Gt, x, high)?, c.cx.g.compare(Compare::Lt, x, low)?);
        let rest = c.cx.g.select(below, up, zero)?;
        Ok(c.cx.g.select(above, down, rest)?)
    };
    threshold = |c| {
        let t = c.number("threshold")?.ok_or_else(|| misfit("has no threshold"))?;
        let other = c.number("default_value")?.ok_or_else(|| misfit("has no default value"))?;
        let x = c.floating(0, "x")?;
        let (t, other) = (c.like(x, t)?, c.like(x, other)?);
        let above = c.cx.g.compare(Compare::Gt, x, t)?;
        Ok(c.cx.g.select(above, x, other)?)
    };
    squareplus = |c| {
        let b = c.number("b")?.unwrap_or(4.0);
        let x = c.floating(0, "x")?;
        let (square, b) = (c.cx.g.mul(x, x)?, c.like(x, b)?);
        let sum = c.cx.g.add(square, b)?;
        let root = c.cx.g.unary(Unary::Sqrt, sum)?;
        let sum = c.cx.g.add(x, root)?;
        scaled(c, sum, 0.5)
    };
    glu = |c| {
        let x = c.floating(0, "x")?;
        let dim = c.dim_or("axis", -1, c.cx.rank(x))?.ok_or_else(|| misfit("has no axis"))?;
        let n = c.cx.dims(x)[dim];
        if !n.is_multiple_of(2) {
            return Err(misfit(format!("halves {n} channels")));
        }
        let (a, b) = (c.cx.g.slice_dim(x, dim, 0..n / 2)?, c.cx.g.slice_dim(x, dim, n / 2..n)?);
        let gate = c.cx.g.unary(Unary::Logistic, b)?;
        Ok(c.cx.g.mul(a, gate)?)
    };
    softmax = |c| {
        let x = c.floating(0, "x")?;
        let dims = softmax_dims(c, x)?;
        softmax_over(c.cx, x, &dims)
    };
    log_softmax = |c| {
        let x = c.floating(0, "x")?;
        let dims = softmax_dims(c, x)?;
        match dims.as_slice() {
            [dim] => Ok(c.cx.g.push(LogSoftmax { dim: *dim }, &[x])?),
            _ => Err(unsupported("a logarithm of a softmax over several axes")),
        }
    };

    normalize = |c| {
        let x = c.floating(0, "x")?;
        let rank = c.cx.rank(x);
        let dims = c.dims("axis", rank)?.unwrap_or_else(|| (0..rank).collect());
        let order = c.number("order")?.unwrap_or(2.0);
        c.neutral("epsilon", &[])?;
        let abs = c.cx.g.unary(Unary::Abs, x)?;
        let norm = match order {
            2.0 => return l2_normalized(c.cx, x, &dims),
            1.0 => c.cx.g.reduce_keep(Reduce::Sum, abs, &dims)?,
            f64::INFINITY => c.cx.g.reduce_keep(Reduce::Max, abs, &dims)?,
            other => return Err(unsupported(format!("normalising by the norm of order {other}"))),
        };
        let least = c.like(norm, 1e-7)?;
        let norm = c.cx.g.binary(Binary::Max, norm, least)?;
        c.binary(Binary::Div, x, norm)
    };
    // x·rsqrt(max(Σx², ε))
    l2_normalize = |c| {
        let x = c.floating(0, "x")?;
        let rank = c.cx.rank(x);
        let dims = c.dims("axis", rank)?.unwrap_or_else(|| (0..rank).collect());
        let epsilon = c.number("epsilon")?.unwrap_or(1e-12);
        let square = c.cx.g.mul(x, x)?;
        let sum = c.cx.g.reduce_keep(Reduce::Sum, square, &dims)?;
        let least = c.like(sum, epsilon)?;
        let sum = c.cx.g.binary(Binary::Max, sum, least)?;
        let factor = c.cx.g.unary(Unary::Rsqrt, sum)?;
        c.binary(Binary::Mul, x, factor)
    };
    batch_norm = |c| {
        let x = c.floating(0, "x")?;
        let (mean, variance) = (c.floating(1, "mean")?, c.floating(2, "variance")?);
        let (offset, scale) = (c.maybe_tensor(3, "offset")?, c.maybe_tensor(4, "scale")?);
        let epsilon = c.number("epsilon")?.unwrap_or(1e-3);
        let rank = c.cx.rank(x);
        let dims = c.dims("axis", rank)?;
        let shape = c.cx.g.shape(x).clone();
        let wide = |c: &mut Call<'_>, v: Value| -> Out<Value> {
            match &dims {
                Some(dims) if c.cx.rank(v) == dims.len() => Ok(c.cx.g.broadcast(v, &shape, dims)?),
                _ => Ok(c.cx.g.broadcast_to(v, &shape)?),
            }
        };
        let epsilon = c.like(variance, epsilon)?;
        let spread = c.cx.g.add(variance, epsilon)?;
        let mut factor = c.cx.g.unary(Unary::Rsqrt, spread)?;
        if let Some(scale) = scale {
            factor = c.binary(Binary::Mul, factor, scale)?;
        }
        let (mean, factor) = (wide(c, mean)?, wide(c, factor)?);
        let centred = c.cx.g.sub(x, mean)?;
        let y = c.cx.g.mul(centred, factor)?;
        match offset {
            None => Ok(y),
            Some(offset) => {
                let offset = wide(c, offset)?;
                Ok(c.cx.g.add(y, offset)?)
            }
        }
    };
    layer_norm = |c| {
        c.neutral("rms_scaling", &[Json::Bool(false)])?;
        let x = c.floating(0, "x")?;
        let (gamma, beta) = (c.maybe_tensor(1, "gamma")?, c.maybe_tensor(2, "beta")?);
        let dims = norm_dims(c, x)?;
        let epsilon = c.number("epsilon")?.unwrap_or(1e-7);
        let mut y = standardized(c, x, dims.clone(), epsilon)?;
        let shape = c.cx.g.shape(y).clone();
        for (v, function) in [(gamma, Binary::Mul), (beta, Binary::Add)] {
            if let Some(v) = v {
                let v = along(c, v, &shape, &dims)?;
                y = c.cx.g.binary(function, y, v)?;
            }
        }
        Ok(y)
    };
    rms_norm = |c| {
        let x = c.floating(0, "x")?;
        let scale = c.maybe_tensor(1, "scale")?;
        let dims = norm_dims(c, x)?;
        let epsilon = c.number("epsilon")?.unwrap_or(1e-7);
        let shape = c.cx.g.shape(x).clone();
        let n: usize = dims.iter().map(|&d| shape[d]).product();
        let square = c.cx.g.mul(x, x)?;
        let sum = c.cx.g.reduce_keep(Reduce::Sum, square, &dims)?;
        let mean = scaled(c, sum, 1.0 / n as f64)?;
        let epsilon = c.like(mean, epsilon)?;
        let sum = c.cx.g.add(mean, epsilon)?;
        let factor = c.cx.g.unary(Unary::Rsqrt, sum)?;
        let y = c.binary(Binary::Mul, x, factor)?;
        match scale {
            None => Ok(y),
            Some(scale) => {
                let scale = along(c, scale, &shape, &dims)?;
                Ok(c.cx.g.mul(y, scale)?)
            }
        }
    };

    conv = |c| {
        let (x, kernel, window) = convolved(c, "kernel")?;
        let spatial = c.cx.dims(x)[1..=window.n].to_vec();
        let (inputs, wanted) = (c.cx.dims(x)[window.n + 1], c.cx.dims(kernel)[window.n]);
        if wanted == 0 || !inputs.is_multiple_of(wanted) {
            return Err(misfit(format!("a kernel of {wanted} channels for {inputs}")));
        }
        let y = plain(c.cx, x, kernel, &window.windows, &spatial, inputs / wanted)?;
        window.format.of_last(c.cx, y)
    };
    depthwise_conv = |c| {
        let (x, kernel, window) = convolved(c, "kernel")?;
        let spatial = c.cx.dims(x)[1..=window.n].to_vec();
        let y = depthwise_product(c.cx, x, kernel, &window.windows, &spatial)?;
        window.format.of_last(c.cx, y)
    };
    separable_conv = |c| {
        let (x, kernel, window) = convolved(c, "depthwise_kernel")?;
        let pointwise = c.floating(2, "pointwise_kernel")?;
        let n = window.n;
        let spatial = c.cx.dims(x)[1..=n].to_vec();
        let y = depthwise_product(c.cx, x, kernel, &window.windows, &spatial)?;
        let ones = Windows { size: vec![1; n], stride: vec![1; n], dilation: vec![1; n], padding: Padding::Valid };
        let spatial = c.cx.dims(y)[1..=n].to_vec();
        let y = plain(c.cx, y, pointwise, &ones, &spatial, 1)?;
        window.format.of_last(c.cx, y)
    };
    conv_transpose = |c| {
        let extra = c.ints("output_padding")?;
        let (x, kernel, window) = convolved(c, "kernel")?;
        let n = window.n;
        let spatial = c.cx.dims(x)[1..=n].to_vec();
        let Windows { size, stride, dilation, padding } = &window.windows;
        let mut pads = Vec::new();
        for d in 0..n {
            let extra = extra.as_ref().map(|e| if e.len() == 1 { e[0] } else { e.get(d).copied().unwrap_or(0) });
            let extra = extra.and_then(|e| usize::try_from(e).ok());
            pads.push(transposed_pads(spatial[d], (size[d] - 1) * dilation[d] + 1, stride[d], *padding, extra)?);
        }
        let flipped = c.cx.g.push(Reverse { dims: (0..n).collect() }, &[kernel])?;
        let perm: Vec<usize> = (0..n).chain([n + 1, n]).collect();
        let flipped = c.cx.g.transpose(flipped, &perm)?;
        let op = Conv {
            stride: vec![1; n],
            pads,
            input_dilation: stride.clone(),
            kernel_dilation: dilation.clone(),
            groups: 1,
            batch_groups: 1,
        };
        let y = c.cx.g.push(op, &[x, flipped])?;
        window.format.of_last(c.cx, y)
    };
    max_pool = |c| pooled(c, Reduce::Max);
    average_pool = |c| pooled(c, Reduce::Sum);

    dot_product_attention = |c| attention(c);
    psnr = |c| {
        let (x, y) = c.float_pair()?;
        let top = c.number("max_val")?.ok_or_else(|| misfit("has no greatest value"))?;
        let d = c.binary(Binary::Sub, x, y)?;
        let square = c.cx.g.mul(d, d)?;
        let dims: Vec<usize> = (0..c.cx.rank(square)).collect();
        let n = c.cx.g.shape(square).elements();
        let sum = c.cx.g.reduce(Reduce::Sum, square, &dims)?;
        let mean = scaled(c, sum, 1.0 / n as f64)?;
        let log = c.cx.g.unary(Unary::Log, mean)?;
        let log = scaled(c, log, -10.0 * std::f64::consts::LOG10_E)?;
        let offset = c.like(log, 20.0 * top.log10())?;
        Ok(c.cx.g.add(log, offset)?)
    };
    resize = |c| {
        for key in ["crop_to_aspect_ratio", "pad_to_aspect_ratio", "preserve_aspect_ratio"] {
            c.neutral(key, &[Json::Bool(false)])?;
        }
        c.irrelevant(&["fill_mode", "fill_value"]);
        let size = c.ints("size")?.ok_or_else(|| misfit("has no size"))?;
        let &[height, width] = super::shaping::extents(&size, |_| None)?.as_slice() else {
            return Err(misfit("brings images to a height and a width"));
        };
        let name = c.text("interpolation")?.unwrap_or_else(|| "bilinear".to_string());
        let kernel = KERNELS.iter().find(|(known, _)| *known == name).map(|(_, kernel)| *kernel);
        let kernel = kernel.ok_or_else(|| unsupported(format!("the interpolation `{name}`")))?;
        let antialias = if c.flag("antialias")? { Antialias::Yes } else { Antialias::No };
        let format = format(c)?;
        let x = c.floating(0, "images")?;
        let rank = c.cx.rank(x);
        if !(3..=4).contains(&rank) {
            return Err(misfit(format!("takes images of rank 3 or 4, given {:?}", c.cx.dims(x))));
        }
        let first = if format == Format::Last { rank - 3 } else { rank - 2 };
        let y = resized(c.cx, x, first, height, kernel, antialias)?;
        resized(c.cx, y, first + 1, width, kernel, antialias)
    };
    rgb_to_grayscale = |c| {
        let format = format(c)?;
        let x = c.floating(0, "images")?;
        let rank = c.cx.rank(x);
        let dim = if format == Format::Last { rank - 1 } else { rank - 3 };
        if c.cx.dims(x)[dim] != 3 {
            return Err(misfit("takes images of three channels"));
        }
        let mut sum = None;
        for (i, share) in [0.2989, 0.587, 0.114].into_iter().enumerate() {
            let part = c.cx.g.slice_dim(x, dim, i..i + 1)?;
            let part = scaled(c, part, share)?;
            sum = Some(match sum {
                None => part,
                Some(sum) => c.cx.g.add(sum, part)?,
            });
        }
        sum.ok_or_else(|| misfit("takes images of three channels"))
    };
    depth_to_space = |c| blocks(c, Blocks::Opened);
    space_to_depth = |c| blocks(c, Blocks::Closed);
    bias_add = |c| {
        let (x, bias) = c.pair_of("x", "bias")?;
        let format = format(c)?;
        let rank = c.cx.rank(x);
        let shape = c.cx.g.shape(x).clone();
        let dim = if format == Format::First { 1 } else { rank - 1 };
        let bias = c.cx.g.broadcast(bias, &shape, &[dim])?;
        Ok(c.cx.g.add(x, bias)?)
    };
}

fn activation(c: &mut Call<'_>, function: &Activation) -> Out<Value> {
    let x = c.floating(0, "x")?;
    function.apply(c.cx, x)
}

fn softmax_dims(c: &mut Call<'_>, x: Value) -> Out<Vec<usize>> {
    let rank = c.cx.rank(x);
    match c.written("axis")? {
        None => Ok(vec![c.cx.axis(-1, rank)?]),
        // TensorFlow's functions write null where they mean their default, Keras means all dimensions.
        Some(Json::Null) if c.positional() => Ok((0..rank).collect()),
        Some(Json::Null) => Ok(vec![c.cx.axis(-1, rank)?]),
        Some(axes) => integers(&axes)?.iter().map(|&a| c.cx.axis(a, rank)).collect(),
    }
}

fn norm_dims(c: &mut Call<'_>, x: Value) -> Out<Vec<usize>> {
    let rank = c.cx.rank(x);
    let mut dims = c.dims("axis", rank)?.unwrap_or_else(|| vec![rank - 1]);
    dims.sort_unstable();
    Ok(dims)
}

/// A tensor along some dimensions, or one that broadcasts.
fn along(c: &mut Call<'_>, v: Value, shape: &Shape, dims: &[usize]) -> Out<Value> {
    match c.cx.rank(v) == dims.len() {
        true => Ok(c.cx.g.broadcast(v, shape, dims)?),
        false => Ok(c.cx.g.broadcast_to(v, shape)?),
    }
}

/// Where the channels are, `NHWC` in TensorFlow's words.
pub(super) fn format(c: &mut Call<'_>) -> Out<Format> {
    match c.text("data_format")?.as_deref() {
        None | Some("channels_last") => Ok(Format::Last),
        Some("channels_first") => Ok(Format::First),
        Some(word) if word.starts_with("NC") && word.len() > 2 => Ok(Format::First),
        Some(word) if word.starts_with('N') => Ok(Format::Last),
        Some(other) => Err(unsupported(format!("the data format `{other}`"))),
    }
}

/// Sizes of as many spatial dimensions; TensorFlow also writes those of rows and channels.
fn sizes(c: &mut Call<'_>, key: &str, n: usize, format: Format) -> Out<Option<Vec<usize>>> {
    let Some(sizes) = c.ints(key)? else { return Ok(None) };
    let wrong = || misfit(format!("`{key}` = {sizes:?} for {n} dimensions"));
    let positive: Option<Vec<usize>> = sizes.iter().map(|&s| usize::try_from(s).ok().filter(|&s| s > 0)).collect();
    let sizes = positive.ok_or_else(wrong)?;
    match sizes.len() {
        1 => Ok(Some(vec![sizes[0]; n])),
        len if len == n => Ok(Some(sizes)),
        len if len == n + 2 && format == Format::Last && sizes[0] == 1 && sizes[n + 1] == 1 => {
            Ok(Some(sizes[1..=n].to_vec()))
        }
        len if len == n + 2 && format == Format::First && sizes[0] == 1 && sizes[1] == 1 => {
            Ok(Some(sizes[2..].to_vec()))
        }
        _ => Err(wrong()),
    }
}

fn padding(c: &mut Call<'_>) -> Out<Padding> {
    match c.text("padding")?.map(|p| p.to_lowercase()).as_deref() {
        None | Some("valid") => Ok(Padding::Valid),
        Some("same") => Ok(Padding::Same),
        Some("causal") => Ok(Padding::Causal),
        Some(other) => Err(unsupported(format!("the padding `{other}`"))),
    }
}

struct Window {
    n: usize,
    format: Format,
    windows: Windows,
}

/// The input, channels last, the kernel, and how one moves over the other.
fn convolved(c: &mut Call<'_>, kernel: &str) -> Out<(Value, Value, Window)> {
    let x = c.floating(0, "inputs")?;
    let kernel = c.floating(1, kernel)?;
    let dtype = c.cx.g.ty(x).dtype;
    let kernel = c.cx.g.cast(dtype, kernel)?;
    let n = c.cx.rank(x).saturating_sub(2);
    if n == 0 || c.cx.rank(kernel) != n + 2 {
        return Err(misfit(format!("a kernel of rank {} for an input of rank {}", c.cx.rank(kernel), c.cx.rank(x))));
    }
    let format = format(c)?;
    let x = format.to_last(c.cx, x)?;
    let stride = sizes(c, "strides", n, format)?.unwrap_or_else(|| vec![1; n]);
    let dilation = sizes(c, "dilation_rate", n, format)?.unwrap_or_else(|| vec![1; n]);
    let size = c.cx.dims(kernel)[..n].to_vec();
    let padding = padding(c)?;
    Ok((x, kernel, Window { n, format, windows: Windows { size, stride, dilation, padding } }))
}

fn pooled(c: &mut Call<'_>, function: Reduce) -> Out<Value> {
    let x = c.floating(0, "inputs")?;
    let n = c.cx.rank(x).saturating_sub(2);
    let format = format(c)?;
    let size = sizes(c, "pool_size", n, format)?.ok_or_else(|| misfit("has no window"))?;
    let stride = sizes(c, "strides", n, format)?.unwrap_or_else(|| size.clone());
    let windows = Windows { size: size.clone(), stride: stride.clone(), dilation: vec![1; n], padding: padding(c)? };
    let x = format.to_last(c.cx, x)?;
    let dims = c.cx.dims(x);
    let pads = windows.pads(&dims[1..=n])?;
    let op = Pool { function, size, stride, pads, dilation: vec![1; n], input_dilation: vec![1; n] };
    let mut y = c.cx.g.push(op.clone(), &[x])?;
    if function == Reduce::Sum {
        let ty = c.cx.g.ty(y).clone();
        let ones: Vec<usize> = [1].into_iter().chain(dims[1..=n].iter().copied()).chain([1]).collect();
        let ones = c.cx.g.full(ty.dtype, 1.0, &Shape::from(ones))?;
        let count = c.cx.g.push(op, &[ones])?;
        let count = c.cx.g.broadcast_to(count, &ty.shape)?;
        y = c.cx.g.div(y, count)?;
    }
    format.of_last(c.cx, y)
}

/// softmax(q·kᵀ·scale + bias)·v for tensors [rows, steps, heads, features]; heads of keys are repeated for those of queries.
fn attention(c: &mut Call<'_>) -> Out<Value> {
    c.irrelevant(&["flash_attention"]);
    let (query, key, value) = (c.floating(0, "query")?, c.floating(1, "key")?, c.floating(2, "value")?);
    let (bias, mask) = (c.maybe_tensor(3, "bias")?, c.maybe_tensor(4, "mask")?);
    let scale = c.maybe_operand(5, "scale")?;
    let cap = c.number("attn_logits_soft_cap")?;
    let causal = c.flag("is_causal")?;
    let dims = c.cx.dims(query);
    if dims.len() != 4 || c.cx.rank(key) != 4 || c.cx.rank(value) != 4 {
        return Err(misfit("takes tensors of rank 4"));
    }
    let heads = |c: &mut Call<'_>, x: Value| -> Out<Value> {
        let own = c.cx.dims(x);
        let times = dims[2].checked_div(own[2]).filter(|t| t * own[2] == dims[2]);
        let times = times.ok_or_else(|| misfit(format!("{} heads of queries for {}", dims[2], own[2])))?;
        let wide = Shape::from([own[0], own[1], own[2], times, own[3]]);
        let x = c.cx.g.broadcast(x, &wide, &[0, 1, 2, 4])?;
        let x = c.cx.g.reshape(x, &Shape::from([own[0], own[1], dims[2], own[3]]))?;
        Ok(c.cx.g.transpose(x, &[0, 2, 1, 3])?)
    };
    let (key, value) = (heads(c, key)?, heads(c, value)?);
    let query = c.cx.g.transpose(query, &[0, 2, 1, 3])?;
    let factor = match scale {
        None => c.like(query, 1.0 / (dims[3] as f64).sqrt())?,
        Some(scale) => {
            let dtype = c.cx.g.ty(query).dtype;
            c.typed(&scale, dtype)?
        }
    };
    let turned = c.cx.g.transpose(key, &[0, 1, 3, 2])?;
    let scores = matrix_product(c, query, turned)?;
    let factor = if c.cx.rank(factor) == 0 { factor } else { c.like(scores, 1.0 / (dims[3] as f64).sqrt())? };
    let mut scores = c.binary(Binary::Mul, scores, factor)?;
    if let Some(cap) = cap {
        scores = scaled(c, scores, 1.0 / cap)?;
        scores = c.cx.g.unary(Unary::Tanh, scores)?;
        scores = scaled(c, scores, cap)?;
    }
    if let Some(bias) = bias {
        scores = c.binary(Binary::Add, scores, bias)?;
    }
    let shape = c.cx.g.shape(scores).clone();
    let mut allowed = mask;
    if causal {
        let past = band(c, &Shape::from(&shape[2..]), Compare::Le, 0)?;
        allowed = Some(match allowed {
            None => past,
            Some(mask) => {
                let mask = c.cx.g.cast(DType::Bool, mask)?;
                c.binary(Binary::And, mask, past)?
            }
        });
    }
    if let Some(allowed) = allowed {
        let lowest = if c.cx.g.ty(scores).dtype == DType::F16 { -65504.0 * 0.7 } else { f64::from(f32::MIN) * 0.7 };
        let lowest = c.like(scores, lowest)?;
        scores = choose(c, allowed, scores, lowest)?;
    }
    let weights = softmax_over(c.cx, scores, &[3])?;
    let y = matrix_product(c, weights, value)?;
    Ok(c.cx.g.transpose(y, &[0, 2, 1, 3])?)
}

/// Whether blocks of space become channels or channels blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Blocks {
    Opened,
    Closed,
}

fn blocks(c: &mut Call<'_>, way: Blocks) -> Out<Value> {
    let x = c.tensor(0, "x")?;
    let size = c.count("block_size")?.filter(|&s| s > 0).ok_or_else(|| misfit("has no block size"))?;
    let format = format(c)?;
    let x = format.to_last(c.cx, x)?;
    let &[n, h, w, channels] = c.cx.dims(x).as_slice() else { return Err(misfit("takes a tensor of rank 4")) };
    let y = match way {
        Blocks::Opened => {
            if !channels.is_multiple_of(size * size) {
                return Err(misfit(format!("{channels} channels in blocks of {size}×{size}")));
            }
            let depth = channels / (size * size);
            let y = c.cx.g.reshape(x, &Shape::from([n, h, w, size, size, depth]))?;
            let y = c.cx.g.transpose(y, &[0, 1, 3, 2, 4, 5])?;
            c.cx.g.reshape(y, &Shape::from([n, h * size, w * size, depth]))?
        }
        Blocks::Closed => {
            if !h.is_multiple_of(size) || !w.is_multiple_of(size) {
                return Err(misfit(format!("{h}×{w} in blocks of {size}×{size}")));
            }
            let y = c.cx.g.reshape(x, &Shape::from([n, h / size, size, w / size, size, channels]))?;
            let y = c.cx.g.transpose(y, &[0, 1, 3, 2, 4, 5])?;
            c.cx.g.reshape(y, &Shape::from([n, h / size, w / size, channels * size * size]))?
        }
    };
    format.of_last(c.cx, y)
}
