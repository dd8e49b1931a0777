//! How groups of dimensions that are cut together are divided over two devices.
//!
//! Every factor counts its units; a group is cut in multiples of the greatest common divisor, so that
//! `(rows, 7, 96) → (rows·7, 96)` is cut as `[3, 2]` rows and `[21, 14]` positions, and heads stay whole. Where rows
//! stand in blocks, they are cut between blocks only; a last block that is shorter is cut off like any other.

use crate::ties::{Ties, gcd};
use intwain_ir::shard::{Factor, Sizes};
use intwain_ir::{Graph, ParamKind, Value};
use std::collections::{BTreeMap, BTreeSet};

/// A set of dimensions that are cut together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Group(usize);

/// The groups of a graph's dimensions, and how each is divided.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    ties: Ties,
    rows: BTreeSet<usize>,
    /// Of groups of rows that stand in unlike blocks: units of a block.
    steps: BTreeMap<usize, usize>,
    /// Of groups that count such blocks: the group of the rows, and its units in a block.
    blocks: BTreeMap<usize, (usize, usize)>,
    /// Groups that hold a dimension of a weight.
    weights: BTreeSet<usize>,
    shares: [f64; 2],
    row_shares: [f64; 2],
}

impl Groups {
    /// The groups of dimensions that are tied. Devices take `shares` of each group, and `row_shares` of the rows.
    pub(super) fn new(graph: &Graph, ties: Ties, shares: [f64; 2], row_shares: [f64; 2]) -> Groups {
        let mut rows: BTreeSet<usize> = ties.rows(graph).into_keys().collect();
        let (mut steps, mut blocks) = (BTreeMap::new(), BTreeMap::new());
        for ragged in ties.ragged().iter().filter(|r| rows.contains(&r.of)).copied().collect::<Vec<_>>() {
            let units = ties.units(ragged.of);
            // Units of a block; where blocks end within a unit, the rows cannot be cut at all.
            let step = match (ragged.size * units).checked_rem(ragged.extent) {
                Some(0) => ragged.size * units / ragged.extent,
                Some(_) | None => units.max(1),
            };
            let all: &mut usize = steps.entry(ragged.of).or_insert(step);
            *all = *all / gcd(*all, step) * step;
            blocks.insert(ragged.blocks, (ragged.of, step));
        }
        rows.extend(blocks.keys().copied());
        let dims = |value: Value| (0..graph.ty(value).rank()).map(move |dim| (value, dim));
        let held = graph.params.iter().filter(|p| !matches!(p.kind, ParamKind::Input { .. }));
        let weights = held.flat_map(|p| dims(p.value)).map(|(value, dim)| ties.of(value, dim)).collect();
        Groups { ties, rows, steps, blocks, weights, shares, row_shares }
    }

    /// The group of a dimension.
    pub(super) fn of(&self, value: Value, dim: usize) -> Group {
        Group(self.ties.of(value, dim))
    }

    /// Whether a group holds the rows of an input, or blocks of them.
    pub(super) fn is_rows(&self, group: Group) -> bool {
        self.rows.contains(&group.0)
    }

    /// Whether cutting a group can be worth it: it divides rows or weights. Other dimensions, such as those of images,
    /// would only add states.
    fn is_worth_cutting(&self, group: Group) -> bool {
        self.is_rows(group) || self.weights.contains(&group.0)
    }

    /// Whether there are rows at all.
    pub(super) fn has_rows(&self) -> bool {
        !self.rows.is_empty()
    }

    /// The dimension of a value that counts rows.
    pub(super) fn row_dim(&self, graph: &Graph, value: Value) -> Option<usize> {
        (0..graph.ty(value).rank()).find(|&dim| self.is_rows(self.of(value, dim)))
    }

    /// The group of a factor; `None` if it cuts nothing.
    pub(super) fn of_factor(&self, args: &[Value], results: &[Value], factor: &Factor) -> Option<Group> {
        let operands = args.iter().zip(&factor.operands);
        let results = results.iter().zip(&factor.results);
        let dims = operands.chain(results).filter_map(|(v, d)| d.map(|d| (*v, d)));
        // A factor counts the units of the dimensions that have no shorter last one.
        let mut all = dims.clone().filter(|(_, d)| d.end.is_none()).chain(dims.filter(|(_, d)| d.end.is_some()));
        all.next().map(|(v, d)| self.of(v, d.dim))
    }

    /// How many of `extent` units each device takes when the group is cut; `None` if it cannot be cut.
    pub(super) fn cut(&self, group: Group, extent: usize) -> Option<Sizes> {
        let units = self.ties.units(group.0);
        if units == 0 || !extent.is_multiple_of(units) || !self.is_worth_cutting(group) {
            return None;
        }
        let first = match self.blocks.get(&group.0) {
            Some(&(rows, step)) => {
                let first = self.first(Group(rows))?.div_ceil(step);
                (units == self.ties.units(rows).div_ceil(step)).then_some(first)?
            }
            None => self.first(group)?,
        };
        let scale = extent / units;
        Some([first * scale, (units - first) * scale].into_iter().collect())
    }

    /// Where rows can be cut, in positions of a dimension of `extent`.
    pub(super) fn ends(&self, group: Group, extent: usize) -> Vec<usize> {
        let units = self.ties.units(group.0).max(1);
        let step = self.steps.get(&group.0).copied().unwrap_or(1);
        (0..=units.div_ceil(step)).map(|block| (block * step).min(units) * (extent / units)).collect()
    }

    /// Units of the first device.
    fn first(&self, group: Group) -> Option<usize> {
        let units = self.ties.units(group.0);
        let share = |shares: [f64; 2], n: usize| (n as f64 * shares[0] / (shares[0] + shares[1])).round() as usize;
        if self.is_rows(group) {
            let step = self.steps.get(&group.0).copied().unwrap_or(1);
            return Some((share(self.row_shares, units.div_ceil(step)) * step).min(units));
        }
        (units >= 2).then(|| share(self.shares, units).clamp(1, units - 1))
    }
}
