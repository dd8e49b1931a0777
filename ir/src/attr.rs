//! Attributes of operations as text: `pad{low=[0, 1], value=-inf}`.
//!
//! An op lists its fields once with [`attributes!`](crate::attributes); printing and parsing follow.

use crate::scalar::{Compare, Reduce, Unary};
use crate::{DType, Graph, Scalar, Shape, Type};
use std::fmt;
use std::sync::Arc;

/// An attribute's value.
#[derive(Clone, Debug, PartialEq)]
pub enum Attr {
    /// An integer, float or name, as written.
    Word(String),
    /// A quoted string.
    Text(String),
    /// A list.
    List(Vec<Attr>),
    /// A nested graph.
    Graph(Arc<Graph>),
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Word(w) => f.write_str(w),
            Attr::Text(t) => write!(f, "{t:?}"),
            Attr::List(items) => {
                f.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
            Attr::Graph(g) => write!(f, "{g}"),
        }
    }
}

/// The attributes of an operation, by name, in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Attrs(pub Vec<(String, Attr)>);

impl Attrs {
    /// Takes the attribute `name` and converts it.
    pub fn take<T: Attribute>(&mut self, name: &str) -> Result<T, AttrError> {
        let Some(i) = self.0.iter().position(|(n, _)| n == name) else {
            return Err(AttrError { name: name.into(), problem: "is missing".into() });
        };
        let (_, attr) = self.0.remove(i);
        T::from_attr(&attr)
            .ok_or_else(|| AttrError { name: name.into(), problem: format!("`{attr}` is not {}", T::WANT) })
    }

    /// Fails if an attribute was not taken.
    pub fn finish(self) -> Result<(), AttrError> {
        match self.0.into_iter().next() {
            Some((name, _)) => Err(AttrError { name, problem: "is not known".into() }),
            None => Ok(()),
        }
    }
}

/// A missing, unknown or malformed attribute.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("attribute `{name}` {problem}")]
pub struct AttrError {
    /// The attribute.
    pub name: String,
    /// What is wrong.
    pub problem: String,
}

/// A type that can stand in an attribute.
pub trait Attribute: Sized {
    /// What a value looks like, for errors.
    const WANT: &'static str;
    /// The text form.
    fn to_attr(&self) -> Attr;
    /// The inverse of `to_attr`.
    fn from_attr(attr: &Attr) -> Option<Self>;
}

macro_rules! word_attribute {
    ($($ty:ty, $want:literal, |$x:ident| $to:expr, |$w:ident| $from:expr;)+) => {$(
        impl Attribute for $ty {
            const WANT: &'static str = $want;
            fn to_attr(&self) -> Attr { let $x = self; Attr::Word($to) }
            fn from_attr(attr: &Attr) -> Option<Self> {
                match attr { Attr::Word($w) => $from, Attr::Text(_) | Attr::List(_) | Attr::Graph(_) => None }
            }
        }
    )+};
}

word_attribute! {
    usize, "a non-negative integer", |x| x.to_string(), |w| w.parse().ok();
    u64, "a non-negative integer", |x| x.to_string(), |w| w.parse().ok();
    i64, "an integer", |x| x.to_string(), |w| w.parse().ok();
    f64, "a number", |x| format!("{x:?}"), |w| w.parse().ok();
    DType, "an element type", |x| x.name().into(), |w| DType::from_name(w);
    Unary, "a function of one value", |x| x.name().into(), |w| Unary::from_name(w);
    crate::scalar::Binary, "a function of two values", |x| x.name().into(), |w| crate::scalar::Binary::from_name(w);
    Compare, "a comparison", |x| x.name().into(), |w| Compare::from_name(w);
    Reduce, "a reduction", |x| x.name().into(), |w| Reduce::from_name(w);
}

impl<T: Attribute> Attribute for Vec<T> {
    const WANT: &'static str = "a list";
    fn to_attr(&self) -> Attr {
        Attr::List(self.iter().map(T::to_attr).collect())
    }
    fn from_attr(attr: &Attr) -> Option<Self> {
        match attr {
            Attr::List(items) => items.iter().map(T::from_attr).collect(),
            Attr::Word(_) | Attr::Text(_) | Attr::Graph(_) => None,
        }
    }
}

impl<T: Attribute> Attribute for (T, T) {
    const WANT: &'static str = "a pair";
    fn to_attr(&self) -> Attr {
        Attr::List(vec![self.0.to_attr(), self.1.to_attr()])
    }
    fn from_attr(attr: &Attr) -> Option<Self> {
        match attr {
            Attr::List(items) if items.len() == 2 => Some((T::from_attr(&items[0])?, T::from_attr(&items[1])?)),
            Attr::List(_) | Attr::Word(_) | Attr::Text(_) | Attr::Graph(_) => None,
        }
    }
}

impl Attribute for Shape {
    const WANT: &'static str = "a list of extents";
    fn to_attr(&self) -> Attr {
        self.to_vec().to_attr()
    }
    fn from_attr(attr: &Attr) -> Option<Self> {
        Vec::<usize>::from_attr(attr).map(Shape::from)
    }
}

impl Attribute for Arc<Graph> {
    const WANT: &'static str = "a graph";
    fn to_attr(&self) -> Attr {
        Attr::Graph(self.clone())
    }
    fn from_attr(attr: &Attr) -> Option<Self> {
        match attr {
            Attr::Graph(g) => Some(g.clone()),
            Attr::Word(_) | Attr::Text(_) | Attr::List(_) => None,
        }
    }
}

/// Elements of one type: `[f32, 1.0, nan]`.
impl Attribute for Vec<Scalar> {
    const WANT: &'static str = "a list of an element type and elements";
    fn to_attr(&self) -> Attr {
        let dtype = self.first().map_or(DType::F32, |s| s.dtype());
        let words = self.iter().map(|s| Attr::Word(s.to_string()));
        Attr::List(std::iter::once(dtype.to_attr()).chain(words).collect())
    }
    fn from_attr(attr: &Attr) -> Option<Self> {
        let Attr::List(items) = attr else { return None };
        let dtype = DType::from_attr(items.first()?)?;
        items[1..]
            .iter()
            .map(|i| match i {
                Attr::Word(w) => Scalar::parse(dtype, w),
                Attr::Text(_) | Attr::List(_) | Attr::Graph(_) => None,
            })
            .collect()
    }
}

impl Attribute for Type {
    const WANT: &'static str = "an element type and extents";
    fn to_attr(&self) -> Attr {
        Attr::List(vec![self.dtype.to_attr(), self.shape.to_attr()])
    }
    fn from_attr(attr: &Attr) -> Option<Self> {
        match attr {
            Attr::List(items) if items.len() == 2 => {
                Some(Type::new(DType::from_attr(&items[0])?, Shape::from_attr(&items[1])?))
            }
            Attr::List(_) | Attr::Word(_) | Attr::Text(_) | Attr::Graph(_) => None,
        }
    }
}

/// Implements the attribute half of [`OpDef`](crate::ops::OpDef) from a list of an op's fields.
#[macro_export]
macro_rules! attributes {
    ($($field:ident),* $(,)?) => {
        fn attrs(&self) -> $crate::attr::Attrs {
            $crate::attr::Attrs(vec![$((stringify!($field).to_string(), $crate::attr::Attribute::to_attr(&self.$field))),*])
        }
        #[allow(unused_mut, reason = "an op may have no attributes")]
        fn from_attrs(mut attrs: $crate::attr::Attrs) -> Result<Self, $crate::attr::AttrError> {
            let op = Self { $($field: attrs.take(stringify!($field))?),* };
            attrs.finish()?;
            Ok(op)
        }
    };
}
