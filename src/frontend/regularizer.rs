//! Keras's regularisers: what a weight or a layer's output adds to the loss.

use intwain_ir::ops::{Contract, Iota, TypeError};
use intwain_ir::scalar::{Binary, Compare, Reduce, Unary};
use intwain_ir::{DType, Graph, Shape, Type, Value};

use super::cursor::{At, Fields};
use super::error::{ImportError, ImportErrorKind};
use super::named::Named;

/// What is added to the loss for a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum Regularizer {
    /// `l1`·Σ|w| + `l2`·Σw².
    Norms {
        /// The factor of the sum of absolute values.
        l1: f64,
        /// The factor of the sum of squares.
        l2: f64,
    },
    /// The mean of |cos| between different rows or columns of a matrix, times a factor.
    Orthogonal {
        /// The factor.
        factor: f64,
        /// What is to be orthogonal.
        lines: Lines,
    },
}

/// The vectors that a matrix is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lines {
    /// Its rows.
    Rows,
    /// Its columns.
    Columns,
}

const NAMES: [&str; 4] = ["L1", "L2", "L1L2", "OrthogonalRegularizer"];

/// Keras bounds the inverse of a norm by the inverse of this.
const EPSILON: f64 = 1e-7;

impl Regularizer {
    /// Reads a name, or an object with `class_name` and `config`. `null` is none.
    pub fn read(at: &At<'_>) -> Result<Option<Regularizer>, ImportError> {
        if at.is_null() {
            return Ok(None);
        }
        let named = Named::read(at)?;
        let config = &named.config;
        let read = match named.class.str()? {
            // Old files call the factor `l`.
            "L1" | "l1" => Regularizer::Norms { l1: factor(config, &["l1", "l"], 0.01)?, l2: 0.0 },
            "L2" | "l2" => Regularizer::Norms { l1: 0.0, l2: factor(config, &["l2", "l"], 0.01)? },
            // As a name alone this is a function of Keras 2 with defaults of its own.
            "l1_l2" if named.is_bare() => Regularizer::Norms { l1: f64::from(0.01f32), l2: f64::from(0.01f32) },
            "L1L2" | "l1l2" | "l1_l2" => Regularizer::norms(config)?,
            "OrthogonalRegularizer" | "orthogonal_regularizer" => Regularizer::Orthogonal {
                factor: factor(config, &["factor"], 0.01)?,
                lines: [Lines::Rows, Lines::Columns][config.choice("mode", &["rows", "columns"])?],
            },
            _ => return Err(named.class.accepted(&NAMES)),
        };
        named.finish()?;
        Ok(Some(read))
    }

    /// Reads `l1` and `l2`, each 0 where it is not given.
    pub(super) fn norms(config: &Fields<'_>) -> Result<Regularizer, ImportError> {
        Ok(Regularizer::Norms { l1: factor(config, &["l1"], 0.0)?, l2: factor(config, &["l2"], 0.0)? })
    }

    /// The penalty of a weight: a scalar in its type, of at least f32.
    pub fn penalty(&self, g: &mut Graph, w: Value) -> Result<Value, TypeError> {
        let w = accumulated(g, w)?;
        match self {
            Regularizer::Norms { l1, l2 } => {
                let terms = norms(g, w, *l1, *l2, |g, x| {
                    let dims: Vec<usize> = (0..g.shape(x).len()).collect();
                    if dims.is_empty() { Ok(x) } else { g.reduce(Reduce::Sum, x, &dims) }
                })?;
                let dtype = g.ty(w).dtype;
                terms.map_or_else(|| g.full(dtype, 0.0, &Shape::default()), Ok)
            }
            Regularizer::Orthogonal { factor, lines } => orthogonal(g, w, *factor, *lines),
        }
    }

    /// Whether the penalty of a tensor is the sum of those of its elements.
    pub fn is_sum(&self) -> bool {
        match self {
            Regularizer::Norms { .. } => true,
            Regularizer::Orthogonal { .. } => false,
        }
    }

    /// The penalty of a tensor element by element, in its type, of at least f32. `None` where it is 0 whatever the tensor
    /// is; fails where it [is no sum](Regularizer::is_sum).
    pub fn activity(&self, g: &mut Graph, y: Value) -> Result<Option<Value>, TypeError> {
        let y = accumulated(g, y)?;
        match self {
            Regularizer::Norms { l1, l2 } => norms(g, y, *l1, *l2, |_, x| Ok(x)),
            Regularizer::Orthogonal { .. } => Err(TypeError::new("the orthogonal regulariser is no sum over elements")),
        }
    }
}

/// A factor, under the first of several keys that is there. Keras takes none that is negative, and rounds it to f32 also
/// where it computes in f64.
fn factor(config: &Fields<'_>, keys: &[&str], default: f64) -> Result<f64, ImportError> {
    let Some(at) = config.opt_any(keys) else { return Ok(f64::from(default as f32)) };
    match at.f64()? {
        x if x >= 0.0 => Ok(f64::from(x as f32)),
        _ => {
            let (found, expected) = (at.json.to_string(), "a number that is not negative");
            Err(at.error(ImportErrorKind::WrongType { found, expected }))
        }
    }
}

fn accumulated(g: &mut Graph, x: Value) -> Result<Value, TypeError> {
    let dtype = g.ty(x).dtype;
    g.cast(if dtype.is_float() { dtype.accumulator() } else { DType::F32 }, x)
}

fn scaled(g: &mut Graph, x: Value, factor: f64) -> Result<Value, TypeError> {
    let Type { dtype, shape } = g.ty(x).clone();
    let factor = g.full(dtype, factor, &shape)?;
    g.mul(x, factor)
}

/// `l1`·sum(|x|) + `l2`·sum(x²), without what has the factor 0.
fn norms(
    g: &mut Graph,
    x: Value,
    l1: f64,
    l2: f64,
    sum: impl Fn(&mut Graph, Value) -> Result<Value, TypeError>,
) -> Result<Option<Value>, TypeError> {
    let mut total = None;
    for (factor, is_square) in [(l1, false), (l2, true)] {
        if factor == 0.0 {
            continue;
        }
        let each = if is_square { g.mul(x, x)? } else { g.unary(Unary::Abs, x)? };
        let each = sum(g, each)?;
        let term = scaled(g, each, factor)?;
        total = Some(match total {
            Some(before) => g.add(before, term)?,
            None => term,
        });
    }
    Ok(total)
}

fn orthogonal(g: &mut Graph, w: Value, factor: f64, lines: Lines) -> Result<Value, TypeError> {
    let Type { dtype, shape } = g.ty(w).clone();
    let (axis, line) = match lines {
        Lines::Rows => (1, 0),
        Lines::Columns => (0, 1),
    };
    if shape.len() != 2 || shape[line] < 2 {
        return Err(TypeError::new(format!(
            "the orthogonal regulariser takes matrices of two lines or more, not {shape}"
        )));
    }
    let n = shape[line];
    let squares = g.mul(w, w)?;
    let sums = g.reduce_keep(Reduce::Sum, squares, &[axis])?;
    let inverse = g.unary(Unary::Rsqrt, sums)?;
    let shape = g.shape(inverse).clone();
    let bound = g.full(dtype, 1.0 / EPSILON, &shape)?;
    let inverse = g.binary(Binary::Min, inverse, bound)?;
    let unit = g.binary_broadcast(Binary::Mul, w, inverse)?;
    let products = g.push(Contract { batch: vec![], contract: vec![(axis, axis)] }, &[unit, unit])?;
    let cosines = g.unary(Unary::Abs, products)?;
    let square = Shape::from([n, n]);
    let [row, column] = [0, 1].map(|dim| g.push(Iota { dtype: DType::I32, shape: square.clone(), dim, start: 0 }, &[]));
    let diagonal = g.compare(Compare::Eq, row?, column?)?;
    let zero = g.full(dtype, 0.0, &square)?;
    let others = g.select(diagonal, zero, cosines)?;
    let sum = g.reduce(Reduce::Sum, others, &[0, 1])?;
    let pairs = (n * (n - 1)) as f64 / 2.0;
    scaled(g, sum, factor * 0.5 / pairs)
}
