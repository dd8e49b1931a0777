//! Clipping of gradients, by norms over whole variables or element by element.

use intwain_ir::ops::TypeError;
use intwain_ir::scalar::{Binary, Compare, Reduce, Unary};
use intwain_ir::{DType, Graph, Shape, Value};

use super::formula::of;
use super::lookups::{each, squares};

/// How gradients are clipped.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Clip {
    /// Each variable's to this norm.
    Norm(f64),
    /// All together to this norm.
    Global(f64),
    /// Each element to this magnitude.
    Value(f64),
}

/// The sum over all elements.
pub(super) fn total(g: &mut Graph, x: Value) -> Result<Value, TypeError> {
    let dims: Vec<usize> = (0..g.shape(x).len()).collect();
    if dims.is_empty() { Ok(x) } else { g.reduce(Reduce::Sum, x, &dims) }
}

fn sum_of_squares(g: &mut Graph, x: Value) -> Result<Value, TypeError> {
    let squares = match squares(g, x)? {
        Some(of_rows) => of_rows,
        None => of(x).square().build(g)?,
    };
    total(g, squares)
}

/// Clips gradients, which stand beside the positions of their variables.
pub(super) fn clip(g: &mut Graph, how: &Clip, gradients: &mut [(usize, Value)]) -> Result<(), TypeError> {
    match how {
        Clip::Norm(limit) => {
            for (_, gradient) in gradients {
                let squared = sum_of_squares(g, *gradient)?;
                let positive = of(squared).is(Compare::Gt, 0.0).build(g)?;
                let root = of(positive).choose(of(squared), 1.0).sqrt();
                let norm = of(positive).choose(root, of(squared));
                let norm = norm.max(*limit).build(g)?;
                *gradient = each(g, *gradient, &|g, x| (of(x) * *limit / of(norm)).build(g))?;
            }
        }
        Clip::Global(limit) => {
            let dtype = gradients.iter().map(|(_, x)| g.ty(*x).dtype).max_by_key(|d| d.size()).unwrap_or(DType::F32);
            let mut squared = Vec::new();
            for (_, gradient) in gradients.iter() {
                squared.push(of(sum_of_squares(g, *gradient)?).cast(dtype));
            }
            let Some(squared) = squared.into_iter().reduce(|sum, x| sum + x) else { return Ok(()) };
            let norm = of(squared.sqrt().build(g)?);
            // A norm that is not finite makes every gradient NaN.
            let scale = *limit * (1.0 / norm.clone()).min(1.0 / limit) + (norm.clone() - norm);
            let scale = of(scale.build(g)?);
            for (_, gradient) in gradients {
                let dtype = g.ty(*gradient).dtype;
                *gradient = (of(*gradient) * scale.clone().cast(dtype)).build(g)?;
            }
        }
        Clip::Value(limit) => {
            for (_, gradient) in gradients {
                *gradient = each(g, *gradient, &|g, x| of(x).min(*limit).max(-limit).build(g))?;
            }
        }
    }
    Ok(())
}

/// Whether all elements of all tensors are finite: a bool scalar.
pub(super) fn all_finite(g: &mut Graph, tensors: &[Value]) -> Result<Value, TypeError> {
    let mut all = g.full(DType::Bool, 1.0, &Shape::default())?;
    for x in tensors {
        let bad = of(*x).map(Unary::IsFinite).map(Unary::Not).cast(DType::I32).build(g)?;
        let dims: Vec<usize> = (0..g.shape(bad).len()).collect();
        let worst = if dims.is_empty() { bad } else { g.reduce(Reduce::Max, bad, &dims)? };
        all = of(all).with(Binary::And, of(worst).is(Compare::Lt, 1.0)).build(g)?;
    }
    Ok(all)
}
