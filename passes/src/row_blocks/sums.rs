//! Sums over rows that are not made yet.
//!
//! A weight that is read in several places, or by several micro-batches, gets several sums, which are added. So that the
//! result does not depend on the number of micro-batches, everything that is added for one block is added before the
//! blocks are: `tree_sum(a) + tree_sum(b)` is `tree_sum(a + b)`. Tables' gradients, which are summed in the order of the
//! rows, are made at the very end from the rows of all micro-batches.

use intwain_ir::ops::{self, Op, TypeError};
use intwain_ir::{DType, Graph, Origin, Shape, Value};

/// The rows that a sum runs over: those of one input, or of several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    /// The rows of this group of dimensions, a micro-batch.
    Rows(usize),
    /// The rows of several micro-batches.
    Several,
}

/// What is summed: blocks, and rows that go to a table.
#[derive(Clone, Debug)]
pub(super) struct Sum {
    of: Of,
    tree: Option<Tree>,
    /// What moves the elements of the tree's sum, in order.
    then: Vec<Op>,
    tables: Vec<Table>,
    /// Where what makes the sum belongs.
    origin: Origin,
}

/// A sum of blocks.
#[derive(Clone, Copy, Debug)]
pub(super) enum Tree {
    /// The blocks are dimension 0.
    Blocks(Value),
    /// They are added up.
    Made(Value),
}

/// Rows that are added up in a table.
#[derive(Clone, Debug)]
pub(super) struct Table {
    op: ops::ScatterAdd,
    /// The dimension of the rows.
    dim: usize,
    at: Vec<Value>,
    rows: Vec<Value>,
    /// What becomes of the table, in order.
    then: Vec<Op>,
}

impl Sum {
    /// The sum of a node that reads blocks, or is the only block.
    pub(super) fn of_blocks(group: usize, tree: Tree, origin: Origin) -> Sum {
        Sum { of: Of::Rows(group), tree: Some(tree), then: Vec::new(), tables: Vec::new(), origin }
    }

    /// The table of a node that adds up rows, which are dimension `dim` of its positions.
    pub(super) fn of_table(group: usize, op: ops::ScatterAdd, dim: usize, args: &[Value], origin: Origin) -> Sum {
        let table = Table { op, dim, at: vec![args[0]], rows: vec![args[1]], then: Vec::new() };
        Sum { of: Of::Rows(group), tree: None, then: Vec::new(), tables: vec![table], origin }
    }

    /// The sum after an operation that only moves or widens its elements; `None` if it is another. Elements are moved when
    /// the sum is made, and widened before: sums are rounded in the type that they end in.
    pub(super) fn moved(mut self, g: &mut Graph, op: &Op, origin: &Origin) -> Result<Option<Sum>, TypeError> {
        match op {
            Op::Cast(cast) if self.dtype(g).is_some_and(|from| widens(from, cast.to)) => {
                self.move_blocks(g)?;
                g.origin = origin.clone();
                self.tree = match self.tree {
                    Some(Tree::Blocks(v)) => Some(Tree::Blocks(g.push(op.clone(), &[v])?)),
                    Some(Tree::Made(v)) => Some(Tree::Made(g.push(op.clone(), &[v])?)),
                    None => None,
                };
            }
            _ if moves(op) => self.then.push(op.clone()),
            _ => return Ok(None),
        }
        self.tables.iter_mut().for_each(|t| t.then.push(op.clone()));
        Ok(Some(Sum { origin: origin.clone(), ..self }))
    }

    /// The type of what is added.
    fn dtype(&self, g: &Graph) -> Option<DType> {
        let tree = self.tree.map(|(Tree::Blocks(v) | Tree::Made(v))| v);
        tree.or(self.tables.first().map(|t| t.rows[0])).map(|v| g.ty(v).dtype)
    }

    /// Moves the elements of the blocks.
    fn move_blocks(&mut self, g: &mut Graph) -> Result<(), TypeError> {
        g.origin = self.origin.clone();
        for op in std::mem::take(&mut self.then) {
            self.tree = match self.tree {
                Some(Tree::Blocks(v)) => Some(Tree::Blocks(g.push(behind(&op, g.shape(v)[0]), &[v])?)),
                Some(Tree::Made(v)) => Some(Tree::Made(g.push(op, &[v])?)),
                None => None,
            };
        }
        Ok(())
    }

    /// The sum of two; `None` where they cannot be joined.
    pub(super) fn joined(mut self, g: &mut Graph, mut other: Sum, origin: &Origin) -> Result<Option<Sum>, TypeError> {
        let same = self.of == other.of && self.of != Of::Several;
        match (self.tree, other.tree) {
            (Some(_), Some(_)) if self.then != other.then => {
                self.move_blocks(g)?;
                other.move_blocks(g)?;
            }
            (None, _) => self.then = std::mem::take(&mut other.then),
            (Some(_), _) => {}
        }
        let tree = match (self.tree, other.tree) {
            (Some(Tree::Blocks(x)), Some(Tree::Blocks(y))) if same && g.ty(x) == g.ty(y) => {
                g.origin = origin.clone();
                Some(Tree::Blocks(g.add(x, y)?))
            }
            (Some(x), Some(y)) => {
                let (x, y) = (made(g, x, &self.origin)?, made(g, y, &other.origin)?);
                g.origin = origin.clone();
                Some(Tree::Made(g.add(x, y)?))
            }
            (x, y) => x.or(y),
        };
        let mut tables = self.tables;
        if same {
            tables.extend(other.tables);
        } else {
            let fits = |(a, b): (&Table, &Table)| a.op == b.op && a.dim == b.dim && a.then == b.then;
            if tables.len() != other.tables.len() || !tables.iter().zip(&other.tables).all(fits) {
                return Ok(None);
            }
            for (all, more) in tables.iter_mut().zip(other.tables) {
                all.at.extend(more.at);
                all.rows.extend(more.rows);
            }
        }
        let of = if same { self.of } else { Of::Several };
        Ok(Some(Sum { of, tree, then: self.then, tables, origin: origin.clone() }))
    }

    /// Makes the sum: the blocks', then the tables, in order.
    pub(super) fn make(&self, g: &mut Graph) -> Result<Option<Value>, TypeError> {
        let mut total = self.tree.map(|tree| made(g, tree, &self.origin)).transpose()?;
        g.origin = self.origin.clone();
        if let Some(sum) = &mut total {
            for op in &self.then {
                *sum = g.push(op.clone(), &[*sum])?;
            }
        }
        for table in &self.tables {
            let at = joined_rows(g, &table.at, table.dim)?;
            let rows = joined_rows(g, &table.rows, table.dim)?;
            let mut sum = g.push(table.op.clone(), &[at, rows])?;
            for op in &table.then {
                sum = g.push(op.clone(), &[sum])?;
            }
            total = Some(match total {
                Some(before) => g.add(before, sum)?,
                None => sum,
            });
        }
        Ok(total)
    }
}

fn joined_rows(g: &mut Graph, parts: &[Value], dim: usize) -> Result<Value, TypeError> {
    if let [only] = parts { Ok(*only) } else { g.push(ops::Concat { dim }, parts) }
}

/// The sum of blocks in the order of a tree. Nodes of the tree may be made on different devices, so they are not rounded to
/// 16 bits.
fn made(g: &mut Graph, tree: Tree, origin: &Origin) -> Result<Value, TypeError> {
    let blocks = match tree {
        Tree::Made(v) => return Ok(v),
        Tree::Blocks(v) => v,
    };
    g.origin = origin.clone();
    let (dtype, count) = (g.ty(blocks).dtype, g.shape(blocks)[0]);
    let wide = g.cast(dtype.accumulator(), blocks)?;
    let sum = g.push(ops::TreeSum::of_leaves(count), &[wide])?;
    g.cast(dtype, sum)
}

fn widens(from: DType, to: DType) -> bool {
    from.is_float() && to.is_float() && to.size() > from.size()
}

/// Whether an operation only moves elements. Zeros may come in: their sum is zero.
fn moves(op: &Op) -> bool {
    match op {
        Op::Transpose(_) | Op::Reshape(_) | Op::Broadcast(_) | Op::Slice(_) | Op::Reverse(_) => true,
        Op::Pad(p) => p.value[0].bits() == 0,
        _ => false,
    }
}

/// What an operation that moves elements is behind a dimension of blocks.
fn behind(op: &Op, count: usize) -> Op {
    let dims = |dims: &[usize]| std::iter::once(0).chain(dims.iter().map(|d| d + 1)).collect::<Vec<_>>();
    let shape = |shape: &Shape| Shape::new(std::iter::once(count).chain(shape.iter().copied()));
    let ahead = |v: &[usize], first: usize| std::iter::once(first).chain(v.iter().copied()).collect::<Vec<_>>();
    let edges = |v: &[i64]| std::iter::once(0).chain(v.iter().copied()).collect::<Vec<_>>();
    match op {
        Op::Transpose(t) => ops::Transpose { perm: dims(&t.perm) }.into(),
        Op::Reshape(r) => ops::Reshape { shape: shape(&r.shape) }.into(),
        Op::Broadcast(b) => ops::Broadcast { shape: shape(&b.shape), dims: dims(&b.dims) }.into(),
        Op::Slice(s) => {
            ops::Slice { start: ahead(&s.start, 0), limit: ahead(&s.limit, count), stride: ahead(&s.stride, 1) }.into()
        }
        Op::Reverse(r) => ops::Reverse { dims: r.dims.iter().map(|d| d + 1).collect() }.into(),
        Op::Pad(p) => ops::Pad {
            low: edges(&p.low),
            high: edges(&p.high),
            interior: ahead(&p.interior, 0),
            value: p.value.clone(),
        }
        .into(),
        other => other.clone(),
    }
}
