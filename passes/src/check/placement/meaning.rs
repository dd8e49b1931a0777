//! What a device's value is, in terms of the whole graph's values.

use intwain_ir::scalar::Reduce;
use intwain_ir::{Layout, Scalar, Shape, Value};
use std::collections::BTreeMap;
use std::ops::Range;

/// A true statement about a device's value. A value may have several.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Meaning {
    /// It equals a whole value.
    Full(Value),
    /// It is a range of one dimension of a whole value.
    Piece { value: Value, dim: usize, range: Range<usize> },
    /// It is a range of that length of one dimension of a whole value, wherever it begins: the value repeats along it.
    Uniform { value: Value, dim: usize, length: usize },
    /// It is one addend of a whole value: combining those of all devices gives the value if the shares tile.
    Term { value: Value, op: Reduce, shares: Shares },
    /// Every element is this one.
    Splat(Scalar),
}

/// For each thing that was divided, which part of it went into an addend, and how many parts there are.
pub(super) type Shares = BTreeMap<Basis, (Range<usize>, usize)>;

/// What was divided so that addends came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Basis {
    /// A reduction of the node that defines this value, along one of its factors.
    Factor(Value, usize),
    /// A value that one device adds whole.
    Copy(Value),
    /// A value whose parts along a dimension devices add.
    Part(Value, usize),
}

impl Meaning {
    /// Whether the statement is about a certain whole value.
    pub(super) fn concerns(&self, whole: Value) -> bool {
        match self {
            Meaning::Full(v)
            | Meaning::Piece { value: v, .. }
            | Meaning::Uniform { value: v, .. }
            | Meaning::Term { value: v, .. } => *v == whole,
            Meaning::Splat(_) => false,
        }
    }

    /// Whether it is this range of a dimension of a whole value.
    pub(super) fn is_piece(&self, whole: Value, along: usize, wanted: &Range<usize>) -> bool {
        match self {
            Meaning::Piece { value, dim, range } => (*value, *dim) == (whole, along) && range == wanted,
            Meaning::Uniform { value, dim, length } => (*value, *dim) == (whole, along) && *length == wanted.len(),
            Meaning::Full(_) | Meaning::Term { .. } | Meaning::Splat(_) => false,
        }
    }

    /// The layout by which operations localise: the part is device 1 of `[before, part, after]`.
    pub(super) fn layout(&self, shape: &Shape) -> Layout {
        match self {
            Meaning::Full(_) | Meaning::Splat(_) => Layout::Replicated,
            Meaning::Piece { dim, range, .. } => {
                Layout::split(*dim, [range.start, range.len(), shape[*dim] - range.end])
            }
            Meaning::Uniform { dim, length, .. } => Layout::split(*dim, [0, *length, shape[*dim] - length]),
            Meaning::Term { op, .. } => Layout::Partial(*op),
        }
    }

    /// The value that it equals, if it does.
    pub(super) fn as_full(&self, extent: impl Fn(Value, usize) -> usize) -> Option<Value> {
        match self {
            Meaning::Full(v) => Some(*v),
            Meaning::Piece { value, dim, range } => (*range == (0..extent(*value, *dim))).then_some(*value),
            Meaning::Term { value, shares, .. } => {
                shares.values().all(|(range, n)| *range == (0..*n)).then_some(*value)
            }
            Meaning::Uniform { .. } | Meaning::Splat(_) => None,
        }
    }

    /// As an addend of a whole value under `op`. What has all of every basis is the value, what has nothing of any is nothing,
    /// from whatever it was made: so a device that holds all rows fits one that holds none.
    pub(super) fn as_term(&self, whole: Value, op: Reduce) -> Option<Shares> {
        let copy = |copies: usize| -> Shares { [(Basis::Copy(whole), (0..copies, 1))].into() };
        match self {
            Meaning::Full(v) => (*v == whole).then(|| copy(1)),
            Meaning::Term { value, op: o, shares } => (*value == whole && *o == op).then(|| {
                let each = |is: fn(&Range<usize>, usize) -> bool| {
                    !shares.is_empty() && shares.values().all(|(r, n)| *n > 0 && is(r, *n))
                };
                match (each(|range, parts| *range == (0..parts)), each(|range, _| range.is_empty())) {
                    (true, _) => copy(1),
                    (false, true) => copy(0),
                    (false, false) => shares.clone(),
                }
            }),
            Meaning::Splat(x) => (*x == op.identity(x.dtype())).then(|| copy(0)),
            Meaning::Piece { .. } | Meaning::Uniform { .. } => None,
        }
    }
}

/// Joins shares of two addends that are added on one device; `None` if they disagree about something.
pub(super) fn unite(a: Shares, b: &Shares) -> Option<Shares> {
    let mut all = a;
    for (basis, share) in b {
        match all.get(basis) {
            Some(known) if known != share => return None,
            Some(_) => {}
            None => {
                all.insert(*basis, share.clone());
            }
        }
    }
    Some(all)
}

/// What is wrong with addends that are combined.
pub(super) fn untiled(addends: &[Shares]) -> Option<String> {
    let mut all: BTreeMap<Basis, (Vec<Range<usize>>, usize)> = BTreeMap::new();
    for shares in addends {
        for (basis, (range, parts)) in shares {
            let entry = all.entry(*basis).or_insert_with(|| (Vec::new(), *parts));
            entry.0.push(range.clone());
        }
    }
    for (basis, (mut ranges, parts)) in all {
        ranges.retain(|r| !r.is_empty());
        ranges.sort_by_key(|r| r.start);
        let mut reached = 0;
        for range in ranges {
            if range.start != reached {
                let problem = if range.start < reached { "counted twice" } else { "left out" };
                return Some(format!("{} is {problem} in positions {:?}", describe(basis), range));
            }
            reached = range.end;
        }
        if reached != parts {
            return Some(format!("{} is left out from position {reached} of {parts}", describe(basis)));
        }
    }
    None
}

fn describe(basis: Basis) -> String {
    match basis {
        Basis::Factor(v, factor) => format!("factor {factor} of {v}"),
        Basis::Copy(v) => format!("{v}"),
        Basis::Part(v, dim) => format!("dimension {dim} of {v}"),
    }
}
