//! Formulas: arithmetic on tensors, scalars and numbers written as arithmetic.
//!
//! A number takes the type of what it meets, and a scalar is repeated where it meets a tensor. Every operation rounds, in the
//! order in which it is written.

use intwain_ir::ops::TypeError;
use intwain_ir::scalar::{Binary, Compare, Unary};
use intwain_ir::{DType, Graph, Shape, Value};

/// An expression that is not yet part of a graph.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Formula {
    /// What the graph has.
    Value(Value),
    /// A number of the type of what it meets.
    Number(f64),
    /// A function of each element.
    Unary(Unary, Box<Formula>),
    /// A function of pairs of elements.
    Binary(Binary, Box<[Formula; 2]>),
    /// A comparison of pairs of elements.
    Compare(Compare, Box<[Formula; 2]>),
    /// The second where the first is true, else the third.
    Select(Box<[Formula; 3]>),
    /// A conversion.
    Cast(DType, Box<Formula>),
}

/// What the graph has, as a formula.
pub(crate) fn of(value: Value) -> Formula {
    Formula::Value(value)
}

/// A number, as a formula.
pub(crate) fn number(x: f64) -> Formula {
    Formula::Number(x)
}

impl Formula {
    /// Appends the formula to a graph.
    pub(crate) fn build(&self, g: &mut Graph) -> Result<Value, TypeError> {
        match self {
            Formula::Value(value) => Ok(*value),
            Formula::Number(x) => Err(TypeError::new(format!("the number {x} meets nothing that has a type"))),
            Formula::Unary(function, x) => {
                let x = x.build(g)?;
                g.unary(*function, x)
            }
            Formula::Binary(function, pair) => {
                let (x, y) = both(g, &pair[0], &pair[1])?;
                g.binary(*function, x, y)
            }
            Formula::Compare(relation, pair) => {
                let (x, y) = both(g, &pair[0], &pair[1])?;
                g.compare(*relation, x, y)
            }
            Formula::Select(parts) => {
                let [condition, yes, no] = &**parts;
                let condition = condition.build(g)?;
                let (yes, no) = both(g, yes, no)?;
                let shape = g.shape(yes).clone();
                let condition = g.broadcast_to(condition, &shape)?;
                g.select(condition, yes, no)
            }
            Formula::Cast(to, x) => {
                let x = x.build(g)?;
                g.cast(*to, x)
            }
        }
    }

    /// The square root.
    pub(crate) fn sqrt(self) -> Formula {
        Formula::Unary(Unary::Sqrt, Box::new(self))
    }

    /// The product with itself.
    pub(crate) fn square(self) -> Formula {
        self.clone() * self
    }

    /// A function of each element.
    pub(crate) fn map(self, function: Unary) -> Formula {
        Formula::Unary(function, Box::new(self))
    }

    /// A power.
    pub(crate) fn pow(self, exponent: impl Into<Formula>) -> Formula {
        Formula::Binary(Binary::Pow, Box::new([self, exponent.into()]))
    }

    /// The smaller of two.
    pub(crate) fn min(self, other: impl Into<Formula>) -> Formula {
        Formula::Binary(Binary::Min, Box::new([self, other.into()]))
    }

    /// The greater of two.
    pub(crate) fn max(self, other: impl Into<Formula>) -> Formula {
        Formula::Binary(Binary::Max, Box::new([self, other.into()]))
    }

    /// A function of pairs.
    pub(crate) fn with(self, function: Binary, other: impl Into<Formula>) -> Formula {
        Formula::Binary(function, Box::new([self, other.into()]))
    }

    /// A comparison.
    pub(crate) fn is(self, relation: Compare, other: impl Into<Formula>) -> Formula {
        Formula::Compare(relation, Box::new([self, other.into()]))
    }

    /// One of two, by this condition.
    pub(crate) fn choose(self, yes: impl Into<Formula>, no: impl Into<Formula>) -> Formula {
        Formula::Select(Box::new([self, yes.into(), no.into()]))
    }

    /// A conversion.
    pub(crate) fn cast(self, to: DType) -> Formula {
        Formula::Cast(to, Box::new(self))
    }
}

/// Both sides with one type and shape.
fn both(g: &mut Graph, x: &Formula, y: &Formula) -> Result<(Value, Value), TypeError> {
    let like = |g: &mut Graph, value: Value, n: f64| {
        let (dtype, shape): (DType, Shape) = (g.ty(value).dtype, g.shape(value).clone());
        g.full(dtype, n, &shape)
    };
    match (x, y) {
        (Formula::Number(n), _) => {
            let y = y.build(g)?;
            Ok((like(g, y, *n)?, y))
        }
        (_, Formula::Number(n)) => {
            let x = x.build(g)?;
            Ok((x, like(g, x, *n)?))
        }
        _ => {
            let (x, y) = (x.build(g)?, y.build(g)?);
            g.broadcast_pair(x, y)
        }
    }
}

impl From<f64> for Formula {
    fn from(x: f64) -> Formula {
        Formula::Number(x)
    }
}

impl From<Value> for Formula {
    fn from(value: Value) -> Formula {
        Formula::Value(value)
    }
}

/// Arithmetic of formulas with formulas, values and numbers on either side.
macro_rules! arithmetic {
    ($($trait:ident $method:ident),+) => { $(
        impl<T: Into<Formula>> std::ops::$trait<T> for Formula {
            type Output = Formula;
            fn $method(self, other: T) -> Formula {
                Formula::Binary(Binary::$trait, Box::new([self, other.into()]))
            }
        }

        impl std::ops::$trait<Formula> for f64 {
            type Output = Formula;
            fn $method(self, other: Formula) -> Formula {
                Formula::Binary(Binary::$trait, Box::new([Formula::Number(self), other]))
            }
        }
    )+ };
}

arithmetic!(Add add, Sub sub, Mul mul, Div div);

impl std::ops::Neg for Formula {
    type Output = Formula;
    fn neg(self) -> Formula {
        self.map(Unary::Neg)
    }
}
