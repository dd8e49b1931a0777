//! Adafactor: second moments of matrices as the product of one of rows and one of columns, and steps relative to the
//! size of the variable.

use std::sync::Arc;

use intwain_ir::ops::TypeError;
use intwain_ir::scalar::Reduce;
use intwain_ir::{DType, Graph, Shape, Type, Value};

use super::Initial;
use super::classes::Rule;
use super::formula::{Formula, of};
use super::keep::Keep;
use super::step::{Of, Update};
use crate::frontend::{Fields, ImportError, Json};

#[derive(Debug)]
struct Adafactor {
    beta_2_decay: f64,
    epsilon_1: f64,
    epsilon_2: f64,
    clip_threshold: f64,
    relative_step: bool,
}

pub(super) fn read(fields: &Fields<'_>) -> Result<Arc<dyn Rule>, ImportError> {
    Ok(Arc::new(Adafactor {
        beta_2_decay: fields.f64_or("beta_2_decay", -0.8)?,
        epsilon_1: fields.f64_or("epsilon_1", 1e-30)?,
        epsilon_2: fields.f64_or("epsilon_2", 1e-3)?,
        clip_threshold: fields.f64_or("clip_threshold", 1.0)?,
        relative_step: fields.bool_or("relative_step", true)?,
    }))
}

/// The mean along dimensions.
fn mean(g: &mut Graph, x: Formula, dims: &[usize]) -> Result<Formula, TypeError> {
    let x = x.build(g)?;
    let count: usize = dims.iter().map(|d| g.shape(x)[*d]).product();
    let sum = if dims.is_empty() { x } else { g.reduce(Reduce::Sum, x, dims)? };
    Ok(of(sum) / count as f64)
}

/// The root of the mean of all squares.
fn rms(g: &mut Graph, x: Value) -> Result<Formula, TypeError> {
    let dims: Vec<usize> = (0..g.shape(x).len()).collect();
    mean(g, of(x).square(), &dims).map(Formula::sqrt)
}

/// The same elements with a dimension of extent 1 in front of dimension `dim`.
fn with_dim(g: &mut Graph, x: Formula, dim: usize) -> Result<Formula, TypeError> {
    let x = x.build(g)?;
    let mut dims = g.shape(x).to_vec();
    dims.insert(dim, 1);
    g.reshape(x, &Shape::from(dims)).map(of)
}

impl Adafactor {
    /// The second moment of a matrix, or of a stack of them.
    fn factored(&self, cx: &mut Update<'_>, v: &Of<'_>, square: Value, keep: Formula) -> Result<Formula, TypeError> {
        let rank = v.ty.rank();
        for (role, dim) in [("row", rank - 1), ("column", rank - 2)] {
            let new = mean(cx.g, of(square), &[dim])?;
            let moved = keep.clone() * cx.slot(role, Some(v.index))? + (1.0 - keep.clone()) * new;
            cx.set(role, Some(v.index), moved)?;
        }
        let (row, column) = (cx.slot("row", Some(v.index))?, cx.slot("column", Some(v.index))?);
        let whole = mean(cx.g, row.clone(), &[rank - 2])?;
        let whole = with_dim(cx.g, whole, rank - 2)?;
        let row = with_dim(cx.g, row / whole, rank - 1)?;
        Ok(row * with_dim(cx.g, column, rank - 2)?)
    }
}

impl Rule for Adafactor {
    fn keep(&self, scope: &str, keep: &mut Keep<'_>) {
        let zero = || Initial::Filled(0.0);
        for i in 0..keep.variables().len() {
            let ty = keep.variables()[i].1.clone();
            let rank = ty.rank();
            let without = |dim: usize| {
                let kept = ty.shape.iter().enumerate().filter(|(d, _)| *d != dim).map(|(_, n)| *n);
                ty.with_shape(Shape::new(kept))
            };
            // Keras keeps integers that nobody uses for what is no matrix.
            let unused = Type::new(DType::I32, Shape::default());
            let factored = rank >= 2;
            let (row, column) =
                if factored { (without(rank - 1), without(rank - 2)) } else { (unused.clone(), unused) };
            keep.beside(scope, i, "row", row, zero());
            keep.beside(scope, i, "column", column, zero());
            keep.like(scope, i, "velocity", zero());
        }
    }

    fn update(&self, cx: &mut Update<'_>, v: &Of<'_>) -> Result<Formula, TypeError> {
        let dtype = v.ty.dtype;
        let limit = of((1.0 / cx.number(dtype).sqrt()).build(cx.g)?);
        let mut rate = cx.rate(dtype);
        if self.relative_step && !cx.scheduled {
            rate = rate.min(limit.clone());
        }
        let rate = rate.min(limit);
        let size = rms(cx.g, v.value)?.max(cx.constant(dtype, self.epsilon_2)?);
        let alpha = of((size * rate).build(cx.g)?);
        let square = (v.square() + self.epsilon_1).build(cx.g)?;
        let keep = of((1.0 - cx.number(dtype).pow(self.beta_2_decay)).build(cx.g)?);
        let moment = if v.ty.rank() >= 2 {
            self.factored(cx, v, square, keep)?
        } else {
            keep.clone() * cx.slot("velocity", Some(v.index))? + (1.0 - keep) * of(square)
        };
        let moment = cx.set("velocity", Some(v.index), moment)?;
        let step = (of(v.gradient) / moment.sqrt()).build(cx.g)?;
        let excess = (rms(cx.g, step)? / self.clip_threshold).max(1.0);
        Ok(of(v.value) - alpha * (of(step) / excess))
    }

    fn config(&self) -> Vec<(&'static str, Json)> {
        vec![
            ("beta_2_decay", Json::Float(self.beta_2_decay)),
            ("epsilon_1", Json::Float(self.epsilon_1)),
            ("epsilon_2", Json::Float(self.epsilon_2)),
            ("clip_threshold", Json::Float(self.clip_threshold)),
            ("relative_step", Json::Bool(self.relative_step)),
        ]
    }
}
