//! Quasi-affine indices: sums of axes with constant coefficients, with floor division and remainder by constants.

use smallvec::SmallVec;
use std::fmt;
use std::ops::Add;

/// An axis of a [`Compute`](super::Compute): result axes come first, then those that reductions bind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Axis(pub u8);

impl fmt::Display for Axis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a{}", self.0)
    }
}

/// What a coefficient of an [`Index`] multiplies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Atom {
    /// The position along an axis.
    Axis(Axis),
    /// ⌊index / n⌋ with n ≥ 2.
    FloorDiv(Box<Index>, i64),
    /// index mod n, in 0..n, with n ≥ 2.
    Mod(Box<Index>, i64),
}

/// coeff · atom.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Term {
    /// What is multiplied.
    pub atom: Atom,
    /// Never 0.
    pub coeff: i64,
}

/// Σ coeff·atom + offset, in canonical form: atoms are distinct and sorted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Index {
    terms: SmallVec<[Term; 1]>,
    offset: i64,
}

impl Index {
    /// A constant.
    pub fn constant(offset: i64) -> Index {
        Index { terms: SmallVec::new(), offset }
    }

    /// The position along an axis.
    pub fn axis(axis: Axis) -> Index {
        Index::atom(Atom::Axis(axis))
    }

    /// One term.
    pub(crate) fn term(term: Term) -> Index {
        Index { terms: SmallVec::from_iter([term]), offset: 0 }
    }

    fn atom(atom: Atom) -> Index {
        Index { terms: SmallVec::from_iter([Term { atom, coeff: 1 }]), offset: 0 }
    }

    /// The terms, sorted by atom.
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// The constant part.
    pub fn offset(&self) -> i64 {
        self.offset
    }

    /// This index plus a constant.
    pub fn plus(mut self, offset: i64) -> Index {
        self.offset += offset;
        self
    }

    /// This index times a constant.
    pub fn times(mut self, factor: i64) -> Index {
        if factor == 0 {
            return Index::constant(0);
        }
        self.offset *= factor;
        for t in &mut self.terms {
            t.coeff *= factor;
        }
        self
    }

    /// ⌊self / n⌋, simplified with the axis extents given.
    pub fn floor_div(self, n: i64, extents: &[usize]) -> Index {
        debug_assert!(n > 0, "division by {n}");
        if n == 1 {
            return self;
        }
        let (whole, rest) = self.split_multiples(n);
        let (lo, hi) = rest.range(extents);
        if lo >= 0 && hi < n {
            return whole;
        }
        if rest.terms.is_empty() {
            return whole.plus(rest.offset.div_euclid(n));
        }
        whole + Index::atom(Atom::FloorDiv(Box::new(rest), n))
    }

    /// self mod n, simplified with the axis extents given.
    pub fn modulo(self, n: i64, extents: &[usize]) -> Index {
        debug_assert!(n > 0, "remainder by {n}");
        if n == 1 {
            return Index::constant(0);
        }
        let (_, rest) = self.split_multiples(n);
        let (lo, hi) = rest.range(extents);
        if lo >= 0 && hi < n {
            return rest;
        }
        if rest.terms.is_empty() {
            return Index::constant(rest.offset.rem_euclid(n));
        }
        Index::atom(Atom::Mod(Box::new(rest), n))
    }

    /// Splits self into n·whole + rest, where rest has no term that n divides and an offset in 0..n.
    fn split_multiples(self, n: i64) -> (Index, Index) {
        let mut whole = Index::constant(self.offset.div_euclid(n));
        let mut rest = Index::constant(self.offset.rem_euclid(n));
        for t in self.terms {
            if t.coeff % n == 0 {
                whole.terms.push(Term { coeff: t.coeff / n, atom: t.atom });
            } else {
                rest.terms.push(t);
            }
        }
        (whole, rest)
    }

    /// Smallest and greatest value over all positions; (0, 0) bounds for axes of extent 0.
    pub fn range(&self, extents: &[usize]) -> (i64, i64) {
        let (mut lo, mut hi) = (self.offset, self.offset);
        for t in &self.terms {
            let (a, b) = match &t.atom {
                Atom::Axis(axis) => (0, (extents[axis.0 as usize] as i64 - 1).max(0)),
                Atom::FloorDiv(inner, n) => {
                    let (a, b) = inner.range(extents);
                    (a.div_euclid(*n), b.div_euclid(*n))
                }
                Atom::Mod(inner, n) => {
                    let (a, b) = inner.range(extents);
                    if a >= 0 && b < *n { (a, b) } else { (0, n - 1) }
                }
            };
            let (a, b) = (a.saturating_mul(t.coeff), b.saturating_mul(t.coeff));
            lo = lo.saturating_add(a.min(b));
            hi = hi.saturating_add(a.max(b));
        }
        (lo, hi)
    }

    /// The value at a position.
    pub fn eval(&self, at: &[i64]) -> i64 {
        self.terms.iter().fold(self.offset, |sum, t| {
            sum + t.coeff
                * match &t.atom {
                    Atom::Axis(axis) => at[axis.0 as usize],
                    Atom::FloorDiv(inner, n) => inner.eval(at).div_euclid(*n),
                    Atom::Mod(inner, n) => inner.eval(at).rem_euclid(*n),
                }
        })
    }

    /// Replaces every axis by an index; `extents` are those of the axes in the replacements.
    pub fn substitute(&self, by: &dyn Fn(Axis) -> Index, extents: &[usize]) -> Index {
        self.terms.iter().fold(Index::constant(self.offset), |sum, t| {
            let atom = match &t.atom {
                Atom::Axis(axis) => by(*axis),
                Atom::FloorDiv(inner, n) => inner.substitute(by, extents).floor_div(*n, extents),
                Atom::Mod(inner, n) => inner.substitute(by, extents).modulo(*n, extents),
            };
            sum + atom.times(t.coeff)
        })
    }

    /// Whether the axis occurs anywhere.
    pub fn uses(&self, axis: Axis) -> bool {
        self.axes() & (1 << axis.0) != 0
    }

    /// The set of axes that occur, as bits.
    pub fn axes(&self) -> u64 {
        self.terms.iter().fold(0, |set, t| {
            set | match &t.atom {
                Atom::Axis(axis) => 1 << axis.0,
                Atom::FloorDiv(inner, _) | Atom::Mod(inner, _) => inner.axes(),
            }
        })
    }

    /// The axis, when the index is nothing but its position.
    pub fn bare(&self) -> Option<Axis> {
        match self.terms.as_slice() {
            [Term { atom: Atom::Axis(axis), coeff: 1 }] if self.offset == 0 => Some(*axis),
            _ => None,
        }
    }

    /// The coefficient of each axis, when no division or remainder occurs.
    pub fn affine(&self) -> Option<Vec<(Axis, i64)>> {
        self.terms
            .iter()
            .map(|t| match t.atom {
                Atom::Axis(axis) => Some((axis, t.coeff)),
                Atom::FloorDiv(..) | Atom::Mod(..) => None,
            })
            .collect()
    }
}

impl Add for Index {
    type Output = Index;
    fn add(mut self, other: Index) -> Index {
        self.offset += other.offset;
        for t in other.terms {
            match self.terms.binary_search_by(|s| s.atom.cmp(&t.atom)) {
                Ok(i) => {
                    self.terms[i].coeff += t.coeff;
                    if self.terms[i].coeff == 0 {
                        self.terms.remove(i);
                    }
                }
                Err(i) => self.terms.insert(i, t),
            }
        }
        self
    }
}

impl fmt::Display for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for t in &self.terms {
            if !first {
                f.write_str(" + ")?;
            }
            first = false;
            if t.coeff != 1 {
                write!(f, "{}*", t.coeff)?;
            }
            match &t.atom {
                Atom::Axis(axis) => write!(f, "{axis}")?,
                Atom::FloorDiv(inner, n) => write!(f, "({inner})/{n}")?,
                Atom::Mod(inner, n) => write!(f, "({inner})%{n}")?,
            }
        }
        match (first, self.offset) {
            (true, c) => write!(f, "{c}"),
            (false, 0) => Ok(()),
            (false, c) if c < 0 => write!(f, " - {}", -c),
            (false, c) => write!(f, " + {c}"),
        }
    }
}

/// A condition on a position: lo ≤ index < hi.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Guard {
    /// What is bounded.
    pub index: Index,
    /// Inclusive lower bound.
    pub lo: i64,
    /// Exclusive upper bound.
    pub hi: i64,
}

impl Guard {
    /// Whether the condition holds at a position.
    pub fn holds(&self, at: &[i64]) -> bool {
        let v = self.index.eval(at);
        self.lo <= v && v < self.hi
    }

    /// Whether the condition holds at every position.
    pub fn always(&self, extents: &[usize]) -> bool {
        let (lo, hi) = self.index.range(extents);
        self.lo <= lo && hi < self.hi
    }
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} <= {} < {}", self.lo, self.index, self.hi)
    }
}
