//! Sums over the steps of a scan, made after it.
//!
//! What a whole tensor gets from a step is often a contraction (a kernel's gradient: the step's input against its
//! output's gradient) or a sum over rows (a bias's). Then the factors are stacked, and the contraction or sum runs over
//! all steps and rows at once: cheaper than adding up a tensor of the kernel's size in every step, and one sum in one
//! order. Views, permutations and paddings of such a sum, and its products with what every step sees whole, are made
//! after the scan too.

use super::prelude::*;
use super::{Contract, Conv, Op, Pad, Reduce, Scan, scan_cuts};
use crate::scalar::{Binary as B, Reduce as R, Unary as U};
use crate::{Def, Graph};
use cranelift_entity::SecondaryMap;

/// A sum over all steps of a value of the step.
#[derive(Debug)]
pub(super) enum Sum {
    /// Of two sums.
    Both(Box<Sum>, Box<Sum>),
    /// An operation that is linear in the operand at a position; the others are the same in every step.
    Linear { op: Op, at: usize, of: Box<Sum>, args: Vec<Value> },
    /// Of contractions of two values of the step.
    Contract { op: Contract, args: [Value; 2] },
    /// Of convolutions of two values of the step.
    Conv { op: Conv, args: [Value; 2] },
    /// Of a value of the step over some of its dimensions.
    Elements { dims: Vec<usize>, of: Value },
}

/// What is summed after a scan, in terms of a draft of its step.
pub(super) struct Hoist<'a> {
    scan: &'a Scan,
    /// Values that differ from step to step.
    varies: SecondaryMap<Value, bool>,
    /// Inputs of the draft that are stacked anyway.
    given: SecondaryMap<Value, bool>,
    reads: SecondaryMap<Value, bool>,
    defs: SecondaryMap<Value, Option<(Op, Vec<Value>)>>,
    stacks: Vec<Value>,
    wholes: Vec<Value>,
    /// For every operand whether it has the rows of the first state: then what it gets is no sum over rows.
    has_rows: Vec<bool>,
}

impl<'a> Hoist<'a> {
    /// `given` are the draft's inputs that are positions of stacked tensors, `wholes` those that every step sees whole.
    pub(super) fn new(scan: &'a Scan, draft: &Graph, given: &[Value], wholes: &[Value]) -> Hoist<'a> {
        let mut varies = SecondaryMap::new();
        let mut defs: SecondaryMap<Value, Option<(Op, Vec<Value>)>> = SecondaryMap::new();
        for p in &draft.params {
            varies[p.value] = !wholes.contains(&p.value);
        }
        for node in draft.nodes.values() {
            let any = node.args.iter().any(|a| varies[*a]);
            for r in &node.results {
                varies[*r] = any;
            }
            if let [only] = node.results.as_slice() {
                defs[*only] = Some((node.op.clone(), node.args.to_vec()));
            }
        }
        let mut is_given = SecondaryMap::new();
        for v in given {
            is_given[*v] = true;
        }
        let params = &scan.body.params;
        let cuts = scan_cuts::cuts(scan);
        let rows = cuts.iter().find(|c| params.first().is_some_and(|p| c.cuts_rows(p.value)));
        let has_rows = params.iter().map(|p| rows.is_some_and(|c| c.cuts(p.value))).collect();
        Hoist {
            scan,
            varies,
            given: is_given,
            reads: SecondaryMap::new(),
            defs,
            stacks: Vec::new(),
            wholes: wholes.to_vec(),
            has_rows,
        }
    }

    /// The addends of what operand `i` gets: those that are summed after the scan, and those to be carried.
    pub(super) fn divide(&mut self, i: usize, contribution: Value) -> (Vec<Sum>, Vec<Value>) {
        let (mut outside, mut inside, mut pending) = (Vec::new(), Vec::new(), vec![contribution]);
        while let Some(v) = pending.pop() {
            match &self.defs[v] {
                Some((Op::Binary(op), args)) if op.function == B::Add && self.varies[v] => {
                    pending.extend(args.iter().rev());
                }
                _ => match self.sum(v, self.has_rows[i]).filter(|_| self.scan.count > 0) {
                    Some(sum) => {
                        self.stack_all(&sum);
                        outside.push(sum);
                    }
                    None => inside.push(v),
                },
            }
        }
        (outside, inside)
    }

    /// Values of the step to be stacked.
    pub(super) fn stacks(&self) -> Vec<Value> {
        self.stacks.clone()
    }

    /// Whether sums read a stacked input directly.
    pub(super) fn reads(&self, input: Value) -> bool {
        self.reads[input]
    }

    fn sum(&self, v: Value, has_rows: bool) -> Option<Sum> {
        let (op, args) = self.defs[v].as_ref()?;
        if !self.varies[v] {
            return None;
        }
        let linear = |at: usize| {
            let fixed = args.iter().enumerate().all(|(i, a)| i == at || !self.varies[*a]);
            let of = self.sum(args[at], has_rows).filter(|_| fixed)?;
            Some(Sum::Linear { op: op.clone(), at, of: Box::new(of), args: args.clone() })
        };
        let two = |args: &[Value]| match *args {
            [x, y] if self.varies[x] && self.varies[y] => Some([x, y]),
            _ => None,
        };
        match op {
            Op::Contract(c) => match two(args) {
                Some(args) => Some(Sum::Contract { op: c.clone(), args }),
                None => self.product(op, args),
            },
            Op::Conv(c) => match two(args) {
                Some(args) => Some(Sum::Conv { op: c.clone(), args }),
                None => self.product(op, args),
            },
            Op::Reduce(r) if r.function == R::Sum && !has_rows => {
                Some(Sum::Elements { dims: r.dims.clone(), of: args[0] })
            }
            Op::Binary(b) => match b.function {
                B::Add => {
                    let (x, y) = (self.sum(args[0], has_rows)?, self.sum(args[1], has_rows)?);
                    Some(Sum::Both(Box::new(x), Box::new(y)))
                }
                B::Mul => linear(0).or_else(|| linear(1)),
                B::Div => linear(0),
                _ => None,
            },
            Op::Pad(Pad { value, .. }) if value[0] == Scalar::zero(value[0].dtype()) => linear(0),
            Op::Unary(u) if u.function == U::Neg => linear(0),
            Op::Reshape(_) | Op::Transpose(_) | Op::Slice(_) | Op::Reverse(_) | Op::Broadcast(_) => linear(0),
            _ => None,
        }
    }

    /// A contraction or convolution of a value of the step with one that is the same in every step.
    fn product(&self, op: &Op, args: &[Value]) -> Option<Sum> {
        let at = args.iter().position(|a| self.varies[*a])?;
        let of = Box::new(Sum::Elements { dims: Vec::new(), of: args[at] });
        Some(Sum::Linear { op: op.clone(), at, of, args: args.to_vec() })
    }

    fn stack_all(&mut self, sum: &Sum) {
        match sum {
            Sum::Both(x, y) => {
                self.stack_all(x);
                self.stack_all(y);
            }
            Sum::Linear { of, .. } => self.stack_all(of),
            Sum::Contract { args, .. } | Sum::Conv { args, .. } => args.iter().for_each(|a| self.stack(*a)),
            Sum::Elements { of, .. } => self.stack(*of),
        }
    }

    fn stack(&mut self, v: Value) {
        match &self.defs[v] {
            Some((op, args)) if moves(op) => self.stack(args[0]),
            _ if self.given[v] => self.reads[v] = true,
            _ if self.stacks.contains(&v) => {}
            _ => self.stacks.push(v),
        }
    }

    /// What makes the sums, given what is stacked, in the order of the walk backwards, and the whole tensors.
    pub(super) fn outside<'b>(
        &'b self,
        draft: &'b Graph,
        stacked: SecondaryMap<Value, Option<Value>>,
        wholes: &[Value],
    ) -> Outside<'b> {
        let mut fixed = SecondaryMap::new();
        for (w, outer) in self.wholes.iter().zip(wholes) {
            fixed[*w] = Some(*outer);
        }
        Outside { count: self.scan.count, draft, stacked, fixed }
    }
}

/// Whether an operation only moves its operand's elements, so that the operand is stacked instead of the result.
fn moves(op: &Op) -> bool {
    matches!(op, Op::Reshape(_) | Op::Transpose(_) | Op::Broadcast(_))
}

/// Makes the sums after the scan.
pub(super) struct Outside<'a> {
    count: usize,
    draft: &'a Graph,
    stacked: SecondaryMap<Value, Option<Value>>,
    fixed: SecondaryMap<Value, Option<Value>>,
}

impl Outside<'_> {
    /// Appends a sum.
    pub(super) fn make(&mut self, g: &mut Graph, sum: &Sum) -> Result<Value, TypeError> {
        match sum {
            Sum::Both(x, y) => {
                let (x, y) = (self.make(g, x)?, self.make(g, y)?);
                g.add(x, y)
            }
            Sum::Linear { op, at, of, args } => {
                let mut new = Vec::with_capacity(args.len());
                for (i, a) in args.iter().enumerate() {
                    new.push(if i == *at { self.make(g, of)? } else { self.fixed(g, *a)? });
                }
                g.push(op.clone(), &new)
            }
            Sum::Contract { op, args: [x, y] } => {
                let behind = |pairs: &[(usize, usize)]| pairs.iter().map(|&(a, b)| (a + 1, b + 1)).collect::<Vec<_>>();
                let steps = std::iter::once((0, 0));
                let contract = steps.chain(behind(&op.contract)).collect();
                let (x, y) = (self.stack(g, *x)?, self.stack(g, *y)?);
                g.push(Contract { batch: behind(&op.batch), contract }, &[x, y])
            }
            Sum::Conv { op, args: [x, w] } => {
                let n = op.stride.len();
                let (x, w) = (self.stack(g, *x)?, self.stack(g, *w)?);
                // Steps become channels, within those there are: a group's stay together.
                let x = self.fold(g, x, n + 2)?;
                let w = self.fold(g, w, n + 1)?;
                g.push(op.clone(), &[x, w])
            }
            Sum::Elements { dims, of } => {
                let x = self.stack(g, *of)?;
                let dims = std::iter::once(0).chain(dims.iter().map(|d| d + 1)).collect();
                g.push(Reduce { function: R::Sum, dims }, &[x])
            }
        }
    }

    /// `[T, .., C, ..]` as `[.., C·T, ..]`, where C is dimension `dim` of the stacked tensor.
    fn fold(&self, g: &mut Graph, x: Value, dim: usize) -> Result<Value, TypeError> {
        let rank = g.shape(x).len();
        let perm: Vec<usize> = (1..=dim).chain([0]).chain(dim + 1..rank).collect();
        let x = g.transpose(x, &perm)?;
        let shape = g.shape(x).clone();
        let merged = shape[dim - 1] * shape[dim];
        g.reshape(
            x,
            &Shape::new(shape[..dim - 1].iter().copied().chain([merged]).chain(shape[dim + 1..].iter().copied())),
        )
    }

    /// A value of all steps.
    fn stack(&mut self, g: &mut Graph, v: Value) -> Result<Value, TypeError> {
        if let Some(made) = self.stacked[v] {
            return Ok(made);
        }
        let node = &self.draft.nodes[self.draft.def_node(v).expect("what is not stacked is moved from what is")];
        let x = self.stack(g, node.args[0])?;
        let behind = |dims: &[usize]| std::iter::once(0).chain(dims.iter().map(|d| d + 1)).collect::<Vec<_>>();
        let shape = Shape::new(std::iter::once(self.count).chain(self.draft.shape(v).iter().copied()));
        let made = match &node.op {
            Op::Transpose(op) => g.transpose(x, &behind(&op.perm))?,
            Op::Broadcast(op) => g.broadcast(x, &shape, &behind(&op.dims))?,
            _ => g.reshape(x, &shape)?,
        };
        self.stacked[v] = Some(made);
        Ok(made)
    }

    /// A value that is the same in every step, computed once.
    fn fixed(&mut self, g: &mut Graph, v: Value) -> Result<Value, TypeError> {
        if let Some(made) = self.fixed[v] {
            return Ok(made);
        }
        let Def::Node(id, _) = self.draft.values[v].def else {
            return Err(TypeError::new("a parameter of the step that is neither stacked nor whole"));
        };
        let node = &self.draft.nodes[id];
        let args = node.args.iter().map(|a| self.fixed(g, *a)).collect::<Result<Vec<_>, _>>()?;
        let results = g.push_all(node.op.clone(), &args)?;
        for (old, new) in node.results.iter().zip(results) {
            self.fixed[*old] = Some(new);
        }
        Ok(self.fixed[v].expect("just made"))
    }
}
