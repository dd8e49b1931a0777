//! Dimensions that are cut together.
//!
//! A factor of a node ties dimensions of its operands and results: cutting one cuts the others. Following the ties
//! through the graph gives groups of dimensions that can be cut at the same fraction with no communication between
//! their nodes. Every factor counts its units; a group is cut in multiples of the greatest common divisor, so that
//! `(rows, 7, 96) → (rows·7, 96)` is cut as `[3, 2]` rows and `[21, 14]` positions, and heads stay whole.

use cranelift_entity::SecondaryMap;
use intwain_ir::shard::{Factor, ShardingRule, Sizes};
use intwain_ir::{Graph, NodeId, ParamKind, Rows, Value};
use petgraph::unionfind::UnionFind;
use std::collections::BTreeSet;

/// A set of dimensions that are cut together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Group(usize);

/// The groups of a graph's dimensions, and how each is divided.
#[derive(Clone, Debug)]
pub(super) struct Groups {
    offset: SecondaryMap<Value, usize>,
    root: Vec<usize>,
    units: Vec<usize>,
    rows: BTreeSet<usize>,
    /// Groups that hold a dimension of a weight.
    weights: BTreeSet<usize>,
    shares: [f64; 2],
    row_shares: [f64; 2],
}

/// The rule of every node.
pub(super) type Rules = SecondaryMap<NodeId, ShardingRule>;

impl Groups {
    /// The groups that follow from the rules. Devices take `shares` of each group, and `row_shares` of the rows.
    pub(super) fn new(graph: &Graph, rules: &Rules, shares: [f64; 2], row_shares: [f64; 2]) -> Groups {
        let mut offset = SecondaryMap::new();
        let mut extents = Vec::new();
        for (value, data) in &graph.values {
            offset[value] = extents.len();
            extents.extend(data.ty.shape.iter().copied());
        }
        let mut find = UnionFind::new(extents.len());
        let mut counts: Vec<(usize, usize)> = Vec::new();
        for (id, node) in &graph.nodes {
            for factor in &rules[id].factors {
                let operands = node.args.iter().zip(&factor.operands);
                let results = node.results.iter().zip(&factor.results);
                let mut first = None;
                for (value, dim) in operands.chain(results).filter_map(|(v, d)| d.map(|d| (*v, d.dim))) {
                    let slot = offset[value] + dim;
                    find.union(*first.get_or_insert(slot), slot);
                }
                counts.extend(first.map(|slot| (slot, factor.extent)));
            }
        }
        let root: Vec<usize> = (0..extents.len()).map(|slot| find.find(slot)).collect();
        let mut units = vec![0; extents.len()];
        for (slot, extent) in extents.iter().enumerate().map(|(s, &e)| (s, e)).chain(counts) {
            units[root[slot]] = gcd(units[root[slot]], extent);
        }
        let is_batched = |kind: &ParamKind| matches!(kind, ParamKind::Input { rows: Rows::Batched });
        let batched = graph.params.iter().filter(|p| is_batched(&p.kind) && graph.ty(p.value).rank() > 0);
        let rows = batched.map(|p| root[offset[p.value]]).collect();
        let slots = |p: &intwain_ir::Param| offset[p.value]..offset[p.value] + graph.ty(p.value).rank();
        let weights = graph.weights().flat_map(slots).map(|slot| root[slot]).collect();
        Groups { offset, root, units, rows, weights, shares, row_shares }
    }

    /// The group of a dimension.
    pub(super) fn of(&self, value: Value, dim: usize) -> Group {
        Group(self.root[self.offset[value] + dim])
    }

    /// Whether a group holds the rows of an input.
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
        operands.chain(results).find_map(|(v, d)| d.map(|d| self.of(*v, d.dim)))
    }

    /// How many of `extent` units each device takes when the group is cut; `None` if it cannot be cut.
    pub(super) fn cut(&self, group: Group, extent: usize) -> Option<Sizes> {
        let units = self.units[group.0];
        if units == 0 || !extent.is_multiple_of(units) || !self.is_worth_cutting(group) {
            return None;
        }
        let rows = self.is_rows(group);
        let shares = if rows { self.row_shares } else { self.shares };
        let mut first = (units as f64 * shares[0] / (shares[0] + shares[1])).round() as usize;
        if !rows {
            if units < 2 {
                return None;
            }
            first = first.clamp(1, units - 1);
        }
        let scale = extent / units;
        Some([first * scale, (units - first) * scale].into_iter().collect())
    }
}

fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
