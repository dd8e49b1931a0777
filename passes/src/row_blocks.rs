//! Gives every sum over rows an order that depends on the number of rows only.
//!
//! The rows of a batch of B form blocks of s = ⌈B / 8⌉; the last may be shorter. A node that sums over rows is written as
//! the same operation for every block, in its usual order, and a `tree_sum` of the blocks' results. Wherever rows are cut
//! between blocks, every device then computes nodes of that tree, and the result has the same bits:
//!
//! ```text
//! contract{contract=[(0, 0)]} x y     x, y: [B, ..] → blocks [n, s, ..]
//!                                     contract{batch=[(0, 0)], contract=[(1, 1)]}: [n, ..]
//!                                     tree_sum: [..]
//! ```
//!
//! Which dimensions are rows follows from the operations' rules, as in placement. What sums over rows in another way
//! (`scatter_add`, a scan's body) stays: it is not cut along them, and so its order is that of the rows. Sums that are added
//! are added before they are made; see `sums`.

mod sums;

use crate::simplify::{dead_code, simplify};
use crate::ties::{Rules, Ties, rules};
use crate::{Exact, PassError};
use cranelift_entity::SecondaryMap;
use intwain_ir::ops::{self, Op, TypeError};
use intwain_ir::scalar::{Binary, Reduce};
use intwain_ir::shard::FactorKind;
use intwain_ir::{Graph, NodeId, ParamKind, Rewriter, Shape, Value};
use smallvec::SmallVec;
use std::collections::BTreeMap;
use sums::{Sum, Tree};

/// Most blocks that a batch is divided into.
const MOST_BLOCKS: usize = 8;

/// Rows of a block in a batch.
pub fn block_rows(batch: usize) -> usize {
    batch.div_ceil(MOST_BLOCKS).max(1)
}

/// Rewrites every sum over rows. See the module's documentation.
pub fn row_blocks(graph: &Graph, exact: Exact) -> Result<Graph, PassError> {
    let rules = rules(graph);
    let ties = Ties::of_rows(graph, &rules);
    let rows = ties.rows(graph);
    if rows.is_empty() {
        return Ok(graph.clone());
    }
    let mut readers: SecondaryMap<Value, usize> = SecondaryMap::new();
    for value in graph.nodes.values().flat_map(|n| &n.args).copied().chain(results(graph)) {
        readers[value] += 1;
    }
    let (rw, pending) = (Rewriter::new(graph), SecondaryMap::new());
    let mut pass = Pass { rw, rows, ties, rules, exact, readers, pending };
    let mut changed = false;
    for id in graph.nodes.keys() {
        match pass.sum(id)? {
            Some(sum) => {
                pass.pending[graph.nodes[id].results[0]] = Some(sum);
                changed = true;
            }
            None => {
                graph.nodes[id].args.iter().try_for_each(|arg| pass.make(*arg))?;
                pass.rw.copy(id)?;
            }
        }
    }
    results(graph).try_for_each(|value| pass.make(value))?;
    if changed { dead_code(&simplify(&pass.rw.finish())?) } else { Ok(graph.clone()) }
}

/// What comes out of a graph: its outputs, and what its states become.
fn results(graph: &Graph) -> impl Iterator<Item = Value> {
    let next = graph.params.iter().filter_map(|p| match p.kind {
        ParamKind::State { next } => next,
        ParamKind::Input { .. } | ParamKind::Weight { .. } => None,
    });
    graph.outputs.iter().map(|o| o.value).chain(next)
}

/// Whether a graph sums floating numbers over rows; only then the number of devices could show in its results.
pub(crate) fn sums_rows(graph: &Graph, ties: &Ties, rules: &Rules) -> bool {
    let rows = ties.rows(graph);
    graph.nodes.iter().any(|(id, node)| {
        matches!(node.op, Op::TreeSum(_)) || over_rows(graph, ties, &rows, rules, id).next().is_some()
    })
}

/// A sum over rows.
struct OverRows {
    /// Their group of dimensions.
    group: usize,
    /// How many they are.
    rows: usize,
    /// For each operand the dimension.
    dims: SmallVec<[Option<usize>; 2]>,
}

/// The factors along which a node sums floating numbers over rows.
fn over_rows<'a>(
    graph: &'a Graph,
    ties: &'a Ties,
    rows: &'a BTreeMap<usize, usize>,
    rules: &'a Rules,
    id: NodeId,
) -> impl Iterator<Item = OverRows> + 'a {
    let node = &graph.nodes[id];
    let float = node.results.iter().any(|r| graph.ty(*r).dtype.is_float());
    let sums = rules[id].factors.iter().filter(move |f| float && f.kind == FactorKind::Reduce(Reduce::Sum));
    sums.filter_map(move |f| {
        let groups = node.args.iter().zip(&f.operands).filter_map(|(v, d)| d.map(|d| ties.of(*v, d.dim)));
        let (group, rows) = groups.filter_map(|group| Some((group, *rows.get(&group)?))).next()?;
        Some(OverRows { group, rows, dims: f.operands.iter().map(|d| d.map(|d| d.dim)).collect() })
    })
}

struct Pass<'g> {
    rw: Rewriter<'g>,
    ties: Ties,
    rows: BTreeMap<usize, usize>,
    rules: Rules,
    exact: Exact,
    /// How often each value of the old graph is read.
    readers: SecondaryMap<Value, usize>,
    /// Values of the old graph that are sums not made yet.
    pending: SecondaryMap<Value, Option<Sum>>,
}

/// How rows stand in blocks.
#[derive(Clone, Copy)]
struct Division {
    rows: usize,
    /// Rows of a block.
    block: usize,
}

impl Pass<'_> {
    /// Makes a value of the old graph that was pending.
    fn make(&mut self, value: Value) -> Result<(), TypeError> {
        if let Some(sum) = self.pending[value].take()
            && let Some(made) = sum.make(&mut self.rw.new)?
        {
            self.rw.set(value, made);
        }
        Ok(())
    }

    /// The sum over rows that a node's result is; `None` where the node is to be copied.
    fn sum(&mut self, id: NodeId) -> Result<Option<Sum>, TypeError> {
        let node = &self.rw.old().nodes[id];
        // What others read too is made.
        for arg in &node.args {
            if self.readers[*arg] > 1 {
                self.make(*arg)?;
            }
        }
        match (&node.op, node.args.as_slice()) {
            (Op::Binary(op), &[x, y]) if op.function == Binary::Add && x != y => {
                let (Some(a), Some(b)) = (self.pending[x].clone(), self.pending[y].clone()) else { return Ok(None) };
                a.joined(&mut self.rw.new, b, &node.origin)
            }
            (op, &[x]) => match self.pending[x].clone() {
                Some(sum) => match sum.moved(&mut self.rw.new, op, &node.origin)? {
                    Some(moved) => Ok(Some(moved)),
                    None => self.over_rows(id),
                },
                None => self.over_rows(id),
            },
            _ => self.over_rows(id),
        }
    }

    /// A node that sums over rows, in blocks; `None` where it is none, or cannot be divided.
    fn over_rows(&mut self, id: NodeId) -> Result<Option<Sum>, TypeError> {
        let old = self.rw.old();
        let node = &old.nodes[id];
        let sum = over_rows(old, &self.ties, &self.rows, &self.rules, id).next();
        let Some(OverRows { group, rows, dims }) = sum else { return Ok(None) };
        node.args.iter().try_for_each(|arg| self.make(*arg))?;
        let origin = node.origin.clone();
        self.rw.new.origin = origin.clone();
        let args = self.rw.args(id);
        let whole_rows = |(v, d): (&Value, &Option<usize>)| {
            d.is_none_or(|d| self.rw.new.shape(*v)[d].is_multiple_of(rows) && self.rw.new.shape(*v)[d] > 0)
        };
        if !args.iter().zip(&dims).all(whole_rows) {
            return Ok(None);
        }
        if let (Op::ScatterAdd(op), &[Some(dim), _]) = (&node.op, dims.as_slice()) {
            return Ok(Some(Sum::of_table(group, op.clone(), dim, &args, origin)));
        }
        let by = Division { rows, block: block_rows(self.exact.batch.unwrap_or(rows)) };
        // One block is summed in the usual order.
        if rows <= by.block {
            let only = self.rw.new.push(node.op.clone(), &args)?;
            return Ok(Some(Sum::of_blocks(group, Tree::Made(only), origin)));
        }
        let blocks = match (&node.op, dims.as_slice()) {
            (Op::Reduce(op), &[Some(dim)]) => self.reduce(by, op, args[0], dim)?,
            (Op::Contract(op), &[Some(x), Some(y)]) => self.contract(by, op, [args[0], args[1]], [x, y])?,
            (Op::Conv(op), &[Some(x), Some(w)])
                if (x, w) == (op.stride.len() + 1, op.stride.len()) && op.groups == 1 =>
            {
                self.conv(by, op, args[0], args[1])?
            }
            _ => return Ok(None),
        };
        Ok(Some(Sum::of_blocks(group, Tree::Blocks(blocks), origin)))
    }

    /// A value with dimension `dim` as two: blocks, and positions within a block.
    fn divided(&mut self, by: Division, value: Value, dim: usize) -> Result<Value, TypeError> {
        let g = &mut self.rw.new;
        let shape = g.shape(value).clone();
        // What is permuted is divided before: permutations in a row become one.
        if let Some(id) = g.def_node(value)
            && let Op::Transpose(op) = g.nodes[id].op.clone()
        {
            let from = op.perm[dim];
            let below = g.nodes[id].args[0];
            let below = self.divided(by, below, from)?;
            let moved = |d: &usize| if *d > from { d + 1 } else { *d };
            let behind = op.perm[dim + 1..].iter().map(moved);
            let perm: Vec<usize> = op.perm[..dim].iter().map(moved).chain([from, from + 1]).chain(behind).collect();
            return self.rw.new.transpose(below, &perm);
        }
        let size = by.block * (shape[dim] / by.rows);
        if !shape[dim].is_multiple_of(size) {
            return g.push(ops::Blocks { dim, size }, &[value]);
        }
        let both = [shape[dim] / size, size];
        let shape = shape[..dim].iter().copied().chain(both).chain(shape[dim + 1..].iter().copied());
        g.reshape(value, &Shape::new(shape))
    }

    fn reduce(&mut self, by: Division, op: &ops::Reduce, x: Value, dim: usize) -> Result<Value, TypeError> {
        let x = self.divided(by, x, dim)?;
        let dims: Vec<usize> = op.dims.iter().map(|&d| if d >= dim { d + 1 } else { d }).collect();
        // The dimension of the blocks among those that are kept.
        let at = (0..dim).filter(|d| !dims.contains(d)).count();
        let y = self.rw.new.reduce(op.function, x, &dims)?;
        self.blocks_first(y, at)
    }

    fn blocks_first(&mut self, value: Value, dim: usize) -> Result<Value, TypeError> {
        let rank = self.rw.new.shape(value).len();
        let perm: Vec<usize> = std::iter::once(dim).chain((0..rank).filter(|d| *d != dim)).collect();
        self.rw.new.transpose(value, &perm)
    }

    fn contract(
        &mut self,
        by: Division,
        op: &ops::Contract,
        args: [Value; 2],
        dims: [usize; 2],
    ) -> Result<Value, TypeError> {
        let x = self.divided(by, args[0], dims[0])?;
        let y = self.divided(by, args[1], dims[1])?;
        let moved = |&(a, b): &(usize, usize)| (a + usize::from(a >= dims[0]), b + usize::from(b >= dims[1]));
        let batch = std::iter::once((dims[0], dims[1])).chain(op.batch.iter().map(moved)).collect();
        let contract = op.contract.iter().map(moved).collect();
        self.rw.new.push(ops::Contract { batch, contract }, &[x, y])
    }

    /// A convolution that sums over rows as channels: blocks become groups of channels, beside those groups of the result
    /// that read rows of their own (`q`, the groups of the convolution whose kernel's gradient it is).
    fn conv(&mut self, by: Division, op: &ops::Conv, x: Value, w: Value) -> Result<Value, TypeError> {
        let (n, q) = (op.stride.len(), op.batch_groups);
        // x: [(q, c), space.., (n, s)] → [c, space.., (n, q, s)]
        let x = self.divided(by, x, n + 1)?;
        let g = &mut self.rw.new;
        let shape = g.shape(x).to_vec();
        let (count, size, rows) = (shape[n + 1], shape[n + 2], shape[0] / q);
        let x = g.reshape(x, &Shape::new([q, rows].into_iter().chain(shape[1..].iter().copied())))?;
        let perm: Vec<usize> = (1..n + 2).chain([n + 2, 0, n + 3]).collect();
        let x = g.transpose(x, &perm)?;
        let channels = count * q * size;
        let x = g.reshape(x, &Shape::new([rows].into_iter().chain(shape[1..=n].iter().copied()).chain([channels])))?;
        // w: [space.., (n, s), (q, o)] → [space.., s, (n, q, o)]
        let w = self.divided(by, w, n)?;
        let g = &mut self.rw.new;
        let perm: Vec<usize> = (0..n).chain([n + 1, n, n + 2]).collect();
        let w = g.transpose(w, &perm)?;
        let shape = g.shape(w).to_vec();
        let outputs = shape[n + 2];
        let w = g.reshape(w, &Shape::new(shape[..=n].iter().copied().chain([count * outputs])))?;
        let op = ops::Conv { groups: count * q, batch_groups: 1, ..op.clone() };
        let y = g.push(op, &[x, w])?;
        // [c, out.., (n, q, o)] → [n, c, out.., (q, o)]
        let shape = g.shape(y).to_vec();
        let y = g.reshape(y, &Shape::new(shape[..=n].iter().copied().chain([count, outputs])))?;
        self.blocks_first(y, n + 1)
    }
}

#[cfg(test)]
mod tests;
