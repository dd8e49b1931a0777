//! Keras's constraints: what a weight is projected to after each update.

use intwain_ir::ops::{Broadcast, Constant, TypeError};
use intwain_ir::scalar::{Binary, Reduce, Unary};
use intwain_ir::{DType, Graph, Scalar, Shape, Type, Value};

use super::cursor::At;
use super::error::ImportError;
use super::named::Named;

/// A projection of a weight.
#[derive(Clone, Debug, PartialEq)]
pub enum Constraint {
    /// Norms over some axes of at most `limit`.
    MaxNorm {
        /// The largest norm.
        limit: f64,
        /// What norms are taken over.
        axes: Axes,
    },
    /// No element below 0.
    NonNegative,
    /// Norms over some axes of 1.
    UnitNorm {
        /// What norms are taken over.
        axes: Axes,
    },
    /// Norms over some axes that are moved towards an interval.
    MinMaxNorm {
        /// The smallest norm.
        least: f64,
        /// The largest norm.
        most: f64,
        /// How far a norm outside is moved: 1 is all the way.
        rate: f64,
        /// What norms are taken over.
        axes: Axes,
    },
    /// Kernels of images whose elements are equal on each ring around the centre. Of Keras 2 only.
    Radial,
}

/// Dimensions of a weight.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Axes {
    /// Every dimension.
    All,
    /// These; negative ones count from the end.
    These(Vec<i64>),
}

const NAMES: [&str; 5] = ["MaxNorm", "NonNeg", "UnitNorm", "MinMaxNorm", "RadialConstraint"];

/// Keras adds this to what it divides by.
const EPSILON: f64 = 1e-7;

impl Constraint {
    /// Reads a name, or an object with `class_name` and `config`. `null` is none.
    pub fn read(at: &At<'_>) -> Result<Option<Constraint>, ImportError> {
        if at.is_null() {
            return Ok(None);
        }
        let named = Named::read(at)?;
        let config = &named.config;
        let axes = || match config.get("axis") {
            None => Ok(Axes::These(vec![0])),
            Some(at) if at.is_null() => Ok(Axes::All),
            Some(at) => Ok(Axes::These(at.one_or_many().iter().map(At::int).collect::<Result<_, ImportError>>()?)),
        };
        let read = match named.class.str()? {
            "MaxNorm" | "max_norm" | "maxnorm" => {
                Constraint::MaxNorm { limit: config.f64_or("max_value", 2.0)?, axes: axes()? }
            }
            "NonNeg" | "non_neg" | "nonneg" => Constraint::NonNegative,
            "UnitNorm" | "unit_norm" | "unitnorm" => Constraint::UnitNorm { axes: axes()? },
            "MinMaxNorm" | "min_max_norm" | "minmaxnorm" => Constraint::MinMaxNorm {
                least: config.f64_or("min_value", 0.0)?,
                most: config.f64_or("max_value", 1.0)?,
                rate: config.f64_or("rate", 1.0)?,
                axes: axes()?,
            },
            "RadialConstraint" | "radial_constraint" => Constraint::Radial,
            _ => return Err(named.class.accepted(&NAMES)),
        };
        named.finish()?;
        Ok(Some(read))
    }

    /// The projected weight, in its type.
    pub fn apply(&self, g: &mut Graph, w: Value) -> Result<Value, TypeError> {
        let held = g.ty(w).dtype;
        let w = g.cast(held.accumulator(), w)?;
        let projected = match self {
            Constraint::NonNegative => {
                let zero = full_like(g, w, 0.0)?;
                g.binary(Binary::Max, w, zero)?
            }
            Constraint::MaxNorm { limit, axes } => {
                let norms = norms(g, w, axes)?;
                let desired = clipped(g, norms, 0.0, *limit)?;
                rescaled(g, w, norms, desired)?
            }
            Constraint::UnitNorm { axes } => {
                let norms = norms(g, w, axes)?;
                let divisor = above(g, norms)?;
                g.binary_broadcast(Binary::Div, w, divisor)?
            }
            Constraint::MinMaxNorm { least, most, rate, axes } => {
                let norms = norms(g, w, axes)?;
                let inside = clipped(g, norms, *least, *most)?;
                let (weight, rest) = (full_like(g, norms, *rate)?, full_like(g, norms, 1.0 - rate)?);
                let (moved, kept) = (g.mul(weight, inside)?, g.mul(rest, norms)?);
                let desired = g.add(moved, kept)?;
                rescaled(g, w, norms, desired)?
            }
            Constraint::Radial => radial(g, w)?,
        };
        g.cast(held, projected)
    }
}

impl Axes {
    fn of(&self, rank: usize) -> Result<Vec<usize>, TypeError> {
        let Axes::These(axes) = self else { return Ok((0..rank).collect()) };
        let from_start = |&axis: &i64| {
            let found = usize::try_from(if axis < 0 { axis + rank as i64 } else { axis }).ok();
            let known = found.filter(|&d| d < rank);
            known.ok_or_else(|| TypeError::new(format!("a constraint of axis {axis} on a weight of rank {rank}")))
        };
        axes.iter().map(from_start).collect()
    }
}

fn full_like(g: &mut Graph, x: Value, value: f64) -> Result<Value, TypeError> {
    let Type { dtype, shape } = g.ty(x).clone();
    g.full(dtype, value, &shape)
}

/// √Σw² over the axes, which get the extent 1.
fn norms(g: &mut Graph, w: Value, axes: &Axes) -> Result<Value, TypeError> {
    let dims = axes.of(g.shape(w).len())?;
    let squares = g.mul(w, w)?;
    let sums = if dims.is_empty() { squares } else { g.reduce_keep(Reduce::Sum, squares, &dims)? };
    g.unary(Unary::Sqrt, sums)
}

fn clipped(g: &mut Graph, x: Value, least: f64, most: f64) -> Result<Value, TypeError> {
    let (least, most) = (full_like(g, x, least)?, full_like(g, x, most)?);
    let x = g.binary(Binary::Min, x, most)?;
    g.binary(Binary::Max, x, least)
}

fn above(g: &mut Graph, norms: Value) -> Result<Value, TypeError> {
    let epsilon = full_like(g, norms, EPSILON)?;
    g.add(epsilon, norms)
}

fn rescaled(g: &mut Graph, w: Value, norms: Value, desired: Value) -> Result<Value, TypeError> {
    let divisor = above(g, norms)?;
    let ratio = g.div(desired, divisor)?;
    g.binary_broadcast(Binary::Mul, w, ratio)
}

/// Every ring around the centre takes one element of the diagonal: Keras walks from the centre to the last corner.
fn radial(g: &mut Graph, w: Value) -> Result<Value, TypeError> {
    let shape = g.shape(w).clone();
    let &[size, columns, channels, filters] = &shape[..] else {
        return Err(TypeError::new(format!("the radial constraint takes kernels of rank 4, not {shape}")));
    };
    if size != columns || size < 2 {
        return Err(TypeError::new(format!("the radial constraint takes square kernels of at least 2×2, not {shape}")));
    }
    let start = size / 2;
    let first = size % 2;
    // The ring, counted from the centre, of a row or column; an even size has two centres.
    let distance = |i: usize| if i >= start { i - start } else { start - 1 + first - i };
    let on_diagonal = |ring: usize| match ring {
        0 => start - 1,
        ring => start + ring - first,
    };
    let mut out: Option<Value> = None;
    for ring in 0..start + first {
        let d = on_diagonal(ring);
        let row = g.slice_dim(w, 0, d..d + 1)?;
        let element = g.slice_dim(row, 1, d..d + 1)?;
        let element = g.reshape(element, &Shape::from([channels, filters]))?;
        let element = g.push(Broadcast { shape: shape.clone(), dims: vec![2, 3] }, &[element])?;
        out = Some(match out {
            None => element,
            Some(inner) => {
                let at = |i: usize| distance(i / size).max(distance(i % size)) == ring;
                let elements =
                    (0..size * size).map(|i| Scalar::from_f64(DType::Bool, f64::from(u8::from(at(i))))).collect();
                let mask = g.push(Constant { shape: Shape::from([size, size]), elements }, &[])?;
                let mask = g.push(Broadcast { shape: shape.clone(), dims: vec![0, 1] }, &[mask])?;
                g.select(mask, element, inner)?
            }
        });
    }
    Ok(out.expect("there is a ring at least"))
}
