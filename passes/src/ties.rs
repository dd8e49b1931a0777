//! Dimensions that are cut together.
//!
//! A factor of a node ties dimensions of its operands and results: cutting one cuts the others at the same fraction.
//! Following the ties through a graph gives groups of dimensions; of each is known how many units its cuts fall between.

use cranelift_entity::SecondaryMap;
use intwain_ir::shard::{FactorDim, ShardingRule};
use intwain_ir::{Graph, NodeId, ParamKind, Rows, Value};
use petgraph::unionfind::UnionFind;
use std::collections::BTreeMap;

/// The rule of every node.
pub(crate) type Rules = SecondaryMap<NodeId, ShardingRule>;

/// The rules of a graph's nodes.
pub(crate) fn rules(graph: &Graph) -> Rules {
    let mut rules = Rules::new();
    for id in graph.nodes.keys() {
        rules[id] = graph.rule(id);
    }
    rules
}

/// A dimension whose positions are blocks of those of another, the last block being shorter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ragged {
    /// The group of the dimension that is divided into blocks.
    pub(crate) of: usize,
    /// Its extent.
    pub(crate) extent: usize,
    /// Positions of a block.
    pub(crate) size: usize,
    /// The group of the dimension that counts blocks.
    pub(crate) blocks: usize,
}

/// The groups of a graph's dimensions.
#[derive(Clone, Debug)]
pub(crate) struct Ties {
    offset: SecondaryMap<Value, usize>,
    root: Vec<usize>,
    units: Vec<usize>,
    ragged: Vec<Ragged>,
}

impl Ties {
    /// The groups that follow from the rules.
    pub(crate) fn new(graph: &Graph, rules: &Rules) -> Ties {
        Ties::among(graph, rules, |_| true)
    }

    /// The groups that follow from the rules where only values that come from rows tie dimensions: micro-batches that
    /// read the same constants and weights stay apart.
    pub(crate) fn of_rows(graph: &Graph, rules: &Rules) -> Ties {
        let mut from_rows: SecondaryMap<Value, bool> = SecondaryMap::new();
        batched(graph).for_each(|value| from_rows[value] = true);
        for node in graph.nodes.values() {
            let any = node.args.iter().any(|a| from_rows[*a]);
            node.results.iter().for_each(|r| from_rows[*r] = any);
        }
        Ties::among(graph, rules, |value| from_rows[value])
    }

    fn among(graph: &Graph, rules: &Rules, ties: impl Fn(Value) -> bool) -> Ties {
        let mut offset = SecondaryMap::new();
        let mut extents = Vec::new();
        for (value, data) in &graph.values {
            offset[value] = extents.len();
            extents.extend(data.ty.shape.iter().copied());
        }
        let mut find = UnionFind::new(extents.len());
        let mut counts: Vec<(usize, usize)> = Vec::new();
        let mut ragged = Vec::new();
        for (id, node) in &graph.nodes {
            for factor in &rules[id].factors {
                let operands = node.args.iter().zip(&factor.operands);
                let results = node.results.iter().zip(&factor.results);
                let dims: Vec<(Value, FactorDim)> =
                    operands.chain(results).filter_map(|(v, d)| d.map(|d| (*v, d))).filter(|(v, _)| ties(*v)).collect();
                let slot = |(value, dim): &(Value, FactorDim)| offset[*value] + dim.dim;
                let mut first = None;
                for dim in dims.iter().filter(|d| d.1.end.is_none()) {
                    find.union(*first.get_or_insert(slot(dim)), slot(dim));
                }
                counts.extend(first.map(|slot| (slot, factor.extent)));
                for dim in &dims {
                    if let (Some(extent), Some(blocks)) = (dim.1.end, first) {
                        ragged.push(Ragged { of: slot(dim), extent, size: dim.1.unit, blocks });
                    }
                }
            }
        }
        let root: Vec<usize> = (0..extents.len()).map(|slot| find.find(slot)).collect();
        let mut units = vec![0; extents.len()];
        for (slot, extent) in extents.iter().enumerate().map(|(s, &e)| (s, e)).chain(counts) {
            units[root[slot]] = gcd(units[root[slot]], extent);
        }
        for r in &mut ragged {
            (r.of, r.blocks) = (root[r.of], root[r.blocks]);
        }
        Ties { offset, root, units, ragged }
    }

    /// The group of a dimension.
    pub(crate) fn of(&self, value: Value, dim: usize) -> usize {
        self.root[self.offset[value] + dim]
    }

    /// The number of units of a group: cuts fall between them.
    pub(crate) fn units(&self, group: usize) -> usize {
        self.units[group]
    }

    /// The dimensions that count blocks, where the last block is shorter.
    pub(crate) fn ragged(&self) -> &[Ragged] {
        &self.ragged
    }

    /// The groups that hold the rows of inputs, with how many these are.
    pub(crate) fn rows(&self, graph: &Graph) -> BTreeMap<usize, usize> {
        let mut rows = BTreeMap::new();
        for value in batched(graph) {
            let count = graph.shape(value)[0];
            let known: &mut usize = rows.entry(self.of(value, 0)).or_insert(count);
            *known = gcd(*known, count);
        }
        rows
    }
}

/// The inputs that have rows.
fn batched(graph: &Graph) -> impl Iterator<Item = Value> {
    let is_batched = |kind: &ParamKind| matches!(kind, ParamKind::Input { rows: Rows::Batched });
    graph.params.iter().filter(move |p| is_batched(&p.kind) && graph.ty(p.value).rank() > 0).map(|p| p.value)
}

pub(crate) fn gcd(a: usize, b: usize) -> usize {
    if b == 0 { a } else { gcd(b, a % b) }
}
