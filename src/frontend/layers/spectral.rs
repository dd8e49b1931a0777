//! Spectral normalisation: a wrapper that divides the kernel of what it wraps by its greatest singular value.
//!
//! Outside of training the kernel is used as it is. A call in training takes steps of power iteration from the vector that is
//! kept, divides the kernel, keeps both, and calls the layer with the new kernel. So a trainable variable is changed by the
//! call itself: what is differentiated and what the optimizer moves is its new value.

use intwain_ir::scalar::{Compare, Reduce};
use intwain_ir::{Shape, Trainable, Value};

use super::build::Builder;
use super::cx::{Cx, Out, OwnerId, unsupported};
use super::inputs::Inputs;
use super::norm::l2_normalized;
use crate::frontend::cursor::Fields;
use crate::frontend::file::Generation;
use crate::frontend::init::{Distribution, Initializer};
use crate::frontend::weights::Slot;

/// A kernel to be divided before it is used.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spectral {
    /// The wrapper, which keeps the vector.
    wrapper: OwnerId,
    /// The layer that the kernel belongs to.
    layer: OwnerId,
    iterations: usize,
}

/// The variables that are normalised.
const KERNELS: [&str; 2] = ["kernel", "embeddings"];

pub(super) fn spectral_normalization(b: &mut Builder, fields: &Fields<'_>, inputs: &Inputs) -> Out {
    let iterations = fields.positive_or("power_iterations", 1)?;
    let inner = b.inner_layer(fields, "layer")?;
    let part = b.declare_inner(&inner, Slot::Attribute("layer"));
    let x = inputs.one()?;
    let spectral = Spectral { wrapper: b.cx.owner(), layer: part, iterations };
    let now = b.cx.trains().then_some(spectral);
    let outer = std::mem::replace(&mut b.cx.spectral, now);
    let outputs = b.layer(&inner, part, &Inputs::single(x));
    b.cx.spectral = outer;
    let mut outputs = outputs?;
    let cx = &mut b.cx;
    let columns = KERNELS.iter().find_map(|name| cx.var_shape(part, name)?.last().copied());
    let columns = columns.ok_or_else(|| unsupported(format!("spectral normalisation of {}", inner.class)))?;
    vector(cx, columns)?;
    // The wrapper holds the wrapped layer's kernel as its own too.
    cx.repeats(1);
    if cx.generation == Generation::Three {
        // Keras 3 gives the type of the input, also where that is one of integers.
        let dtype = cx.g.ty(x.value).dtype;
        for y in &mut outputs {
            y.value = cx.g.cast(dtype, y.value)?;
        }
    }
    Ok(outputs)
}

/// The vector that is kept, a variable of the current owner.
fn vector(cx: &mut Cx, columns: usize) -> Out<Value> {
    let normal = Initializer::Random { distribution: Distribution::TruncatedNormal, a: 0.0, b: 0.02 };
    cx.var("vector_u", &[1, columns], normal, Trainable::Frozen)
}

impl Cx {
    /// A variable as its layer reads it first in a call: a kernel that is normalised changes here.
    pub(super) fn normalised(&mut self, name: &str, held: Value) -> Out<Value> {
        let Some(spectral) = self.spectral.filter(|s| s.layer == self.owner() && KERNELS.contains(&name)) else {
            return Ok(held);
        };
        // Once a call.
        self.spectral = None;
        if self.updated().iter().any(|known| known.now == held) {
            return Err(unsupported("spectral normalisation of a layer that is called more than once, in training"));
        }
        let kernel = if self.dtype.is_float() { self.g.cast(self.dtype, held)? } else { held };
        let dims = self.dims(kernel);
        let columns = *dims.last().unwrap_or(&1);
        let layer = self.enter(spectral.wrapper);
        let kept = vector(self, columns);
        let normal = kept.and_then(|kept| divided(self, kernel, kept, spectral.iterations));
        let (kernel, kept) = match normal {
            Ok(normal) => normal,
            Err(fail) => {
                self.enter(layer);
                return Err(fail);
            }
        };
        self.update("vector_u", kept)?;
        self.enter(layer);
        self.update(name, kernel)?;
        self.updated_var(self.g.ty(held).dtype, name)
    }
}

/// The kernel divided by its greatest singular value as power iteration finds it, and the vector behind it. A kernel of
/// zeros stays, and so does the vector.
fn divided(cx: &mut Cx, kernel: Value, kept: Value, iterations: usize) -> Out<(Value, Value)> {
    let shape = cx.g.shape(kernel).clone();
    let columns = *shape.last().unwrap_or(&1);
    let rows = shape.elements() / columns.max(1);
    let flat = cx.g.reshape(kernel, &Shape::from([rows, columns]))?;
    let turned = cx.g.transpose(flat, &[1, 0])?;
    let (mut u, mut v) = (kept, kept);
    for _ in 0..iterations {
        let product = cx.g.matmul(u, turned)?;
        v = l2_normalized(cx, product, &[0, 1])?;
        let product = cx.g.matmul(v, flat)?;
        u = l2_normalized(cx, product, &[0, 1])?;
    }
    let image = cx.g.matmul(v, flat)?;
    let column = cx.g.transpose(u, &[1, 0])?;
    let sigma = cx.g.matmul(image, column)?;
    let sigma = cx.g.reshape(sigma, &Shape::from([]))?;
    let sigma = cx.g.broadcast(sigma, &shape, &[])?;
    let normal = cx.g.div(kernel, sigma)?;

    let zero = cx.g.full(cx.g.ty(flat).dtype, 0.0, &cx.g.shape(flat).clone())?;
    let differs = cx.g.compare(Compare::Ne, flat, zero)?;
    // The sum of booleans is any.
    let any = cx.g.reduce(Reduce::Sum, differs, &[0, 1])?;
    let wide = cx.g.broadcast(any, &shape, &[])?;
    let normal = cx.g.select(wide, normal, kernel)?;
    let wide = cx.g.broadcast(any, &cx.g.shape(kept).clone(), &[])?;
    Ok((normal, cx.g.select(wide, u, kept)?))
}
