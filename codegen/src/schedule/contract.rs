//! The contraction schedule: sums of products become one call of the packed micro-kernels, the rest of the expression
//! an epilogue on the rectangles that they finish.
//!
//! Recognised is a chain of fused multiply-adds, or a tree of such chains, over all result axes whose factors are plain loads of f32 or f64, or of f16
//! or bf16 widened to f32; where no result is of the sums' type, the sums stay in scratch. Axes
//! that only the left factor reads are rows, those that only the right factor reads are columns, those that both read
//! are batch, and the reduced ones are the inner axis. The result's innermost axes must be the columns; for a grouped
//! convolution the channel axis is divided into group and channel first. Guards become windows, so padding, strides and
//! dilations are read in place. The products are summed in the stated order by either schedule, with the same bits.

use super::nest::{Nest, Node, NodeId, Op, coefficient};
use super::roles::{divide_groups, join_leaves, orient, the_chains};
use intwain_ir::compute::{Atom, Axis, Guard, Index};
use intwain_ir::scalar::{Binary, Scalar};
use intwain_ir::{DType, Type};
use intwain_micro::{Contraction, Element, Operand, Output, RightForm, Start, Storage, Summation, Sums, Window};

/// A contraction with what follows it.
#[derive(Clone, Debug)]
pub(super) struct Recognised {
    /// The problem, operands as flat arrays.
    pub(super) contraction: Contraction,
    /// The operand that is the left factor.
    pub(super) a: usize,
    /// The operand that is the right factor.
    pub(super) b: usize,
    /// The result that holds the sums; `None` if they are in scratch.
    pub(super) c: Option<usize>,
    nest: Nest,
    sum: NodeId,
    operands: usize,
    /// Result axes by role.
    pub(super) batch: Vec<Axis>,
    /// Rows.
    pub(super) rows: Vec<Axis>,
    /// Columns.
    pub(super) columns: Vec<Axis>,
}

/// Recognises a contraction; `None` leaves the work to the loop schedule.
pub(super) fn recognise(nest: &Nest, operands: &[&Type], results: &[&Type]) -> Option<Recognised> {
    let mut nest = nest.clone();
    let mut chains = the_chains(&nest)?;
    divide_groups(&mut nest);
    let Op::Reduce { axes: chain, body, .. } = nest.nodes[chains.chain].op.clone() else { return None };
    let length = product(&nest, &chain);
    join_leaves(&mut nest, &mut chains);
    let sum = chains.sum;
    let summation = if sum == chains.chain { Summation::Chain } else { Summation::Tree { length: length.max(1) } };
    let inner: Vec<Axis> = chains.leaves.into_iter().chain(chain).collect();
    let Op::Binary(Binary::Mul, x, y) = nest.nodes[body].op else { return None };
    let element = match nest.nodes[sum].dtype {
        DType::F32 => Element::F32,
        DType::F64 => Element::F64,
        _ => return None,
    };
    let all = nest.axes.iter().fold(0u64, |s, a| s | 1 << a.0);
    if nest.nodes[sum].free != all {
        return None;
    }
    let (left, right) = orient(&nest, x, y)?;
    let (left, right, storage) = stored(&nest, left, right)?;
    let c = nest.results.iter().zip(results).position(|(_, t)| t.dtype == nest.nodes[sum].dtype);
    if c.is_none() && storage == Storage::Element {
        return None;
    }
    let only = |set: u64, not: u64| -> Vec<Axis> {
        nest.axes.iter().copied().filter(|a| set & (1 << a.0) != 0 && not & (1 << a.0) == 0).collect()
    };
    let (fa, fb) = (nest.nodes[left].free, nest.nodes[right].free);
    let (rows, columns) = (only(fa, fb), only(fb, fa));
    let batch: Vec<Axis> = only(fa & fb, 0);
    if !nest.axes.ends_with(&columns) || product(&nest, &columns) == 0 {
        return None;
    }
    let mut sides = Sides { nest: &nest, batch: &batch, rows: &rows, columns: &columns, inner: &inner, extra_k: 0 };
    let (a, a_operand, extra_rows) = sides.operand(left, operands, &rows)?;
    let (b, b_operand, extra_columns) = sides.operand(right, operands, &columns)?;
    let result = results[c.unwrap_or(0)];
    let mut contraction = sides.contraction(element, [a, b], [extra_rows, extra_columns], result)?;
    contraction.storage = storage;
    contraction.summation = summation;
    contraction.sums = if c.is_some() { Sums::Result } else { Sums::Scratch };
    let (a, b, operands) = (a_operand, b_operand, operands.len());
    Some(Recognised { contraction, a, b, c, nest, sum, operands, batch, rows, columns })
}

/// The loads behind the factors, and how their elements are stored.
fn stored(nest: &Nest, left: NodeId, right: NodeId) -> Option<(NodeId, NodeId, Storage)> {
    let narrow = |node: NodeId| match nest.nodes[node].op {
        Op::Cast(x) if nest.nodes[node].dtype == DType::F32 => match nest.nodes[x].dtype {
            DType::F16 => Some((x, Storage::F16)),
            DType::BF16 => Some((x, Storage::Bf16)),
            _ => None,
        },
        _ => None,
    };
    match (narrow(left), narrow(right)) {
        (None, None) => Some((left, right, Storage::Element)),
        (Some((a, s)), Some((b, t))) if s == t => Some((a, b, s)),
        _ => None,
    }
}

impl Recognised {
    /// What is computed from the sums, which it reads as one more operand; `None` if they are the result. `pitch` is the
    /// distance between rows of sums in scratch.
    pub(super) fn epilogue(&self, pitch: usize) -> Option<Nest> {
        if self.nest.results == [self.sum] {
            return None;
        }
        let at = match self.c {
            Some(_) => self.nest.store.clone(),
            None => self.number(&self.rows).times(pitch as i64) + self.number(&self.columns),
        };
        let mut rest = self.nest.clone();
        let fill = Scalar::zero(rest.nodes[self.sum].dtype);
        let load = Op::Load { operand: self.operands, at, guards: Vec::new(), fill };
        rest.nodes[self.sum] = Node { op: load, ..rest.nodes[self.sum].clone() };
        rest.prune();
        Some(rest)
    }

    /// Elements of the sums in scratch, as the epilogue numbers them.
    pub(super) fn sums(&self, pitch: usize) -> usize {
        (product(&self.nest, &self.rows) * pitch).max(1) + product(&self.nest, &self.columns)
    }

    /// Positions of axes in row-major order.
    fn number(&self, axes: &[Axis]) -> Index {
        let mut number = Index::constant(0);
        for axis in axes {
            number = number.times(self.nest.extent(*axis) as i64) + Index::axis(*axis);
        }
        number
    }
}

/// Whether the chain is over factors that both read the innermost result axis, as in a depthwise convolution: loops
/// compute that as well as anything.
pub(super) fn is_elementwise(nest: &Nest) -> bool {
    let product = the_chains(nest).map(|chains| nest.nodes[chains.chain].op.children().next());
    match product.flatten().map(|body| &nest.nodes[body].op) {
        Some(Op::Binary(Binary::Mul, x, y)) => orient(nest, *x, *y).is_none(),
        _ => false,
    }
}

fn product(nest: &Nest, axes: &[Axis]) -> usize {
    axes.iter().map(|a| nest.extent(*a)).product()
}

/// The axes of a contraction while its operands are described.
struct Sides<'a> {
    nest: &'a Nest,
    batch: &'a [Axis],
    rows: &'a [Axis],
    columns: &'a [Axis],
    inner: &'a [Axis],
    /// Dims of extent 1 appended to the inner axis for windows that lack one.
    extra_k: usize,
}

/// An operand's strides before all dims of the inner axis are known.
struct Side {
    operand: Operand,
}

impl Sides<'_> {
    /// Describes one factor; `outer` are its own axes. Gives the description, the operand's number, and how many dims
    /// of extent 1 its outer axis needs besides.
    fn operand(&mut self, node: NodeId, operands: &[&Type], outer: &[Axis]) -> Option<(Side, usize, usize)> {
        let Op::Load { operand, at, guards, fill } = &self.nest.nodes[node].op else { return None };
        if operands[*operand].dtype != self.nest.nodes[node].dtype {
            return None;
        }
        if !guards.is_empty() && fill.bits() != 0 {
            return None;
        }
        let (mut flat, mut windows, mut extra) = (at.clone(), Vec::new(), 0);
        let ranges: Vec<&Guard> = guards.iter().filter(|g| dilation_of(&g.index).is_none()).collect();
        let mut dilated: Vec<&Guard> = guards.iter().filter(|g| dilation_of(&g.index).is_some()).collect();
        for g in ranges {
            let (window, share) = self.window(g, &flat, &mut dilated, outer, &mut extra)?;
            flat = flat + share.times(-1);
            windows.push(window);
        }
        // Positions that hold no element where all of them lie inside.
        while let Some(Guard { index, .. }) = dilated.first() {
            let inner = match index.terms() {
                [t] => match &t.atom {
                    Atom::Mod(inner, _) => inner.as_ref().clone(),
                    Atom::Axis(_) | Atom::FloorDiv(..) => return None,
                },
                _ => return None,
            };
            let (lo, hi) = inner.range(&self.nest.extents);
            if lo < 0 {
                return None;
            }
            let (left, everywhere) = (dilated.len(), Guard { index: inner, lo: 0, hi: hi + 1 });
            let (window, share) = self.window(&everywhere, &flat, &mut dilated, outer, &mut extra)?;
            if dilated.len() == left {
                return None;
            }
            flat = flat + share.times(-1);
            windows.push(window);
        }
        let stride = |a: &Axis| coefficient(&flat, *a).map(|c| c as isize);
        let list = |axes: &[Axis]| axes.iter().map(stride).collect::<Option<Vec<isize>>>();
        let known = self.batch.iter().chain(outer).chain(self.inner).fold(0u64, |s, a| s | 1 << a.0);
        if flat.axes() & !known != 0 || flat.terms().iter().any(|t| !matches!(t.atom, Atom::Axis(_))) {
            return None;
        }
        let base = usize::try_from(flat.offset());
        // A window's address share may leave a negative rest only where it is compensated inside the window.
        let base = base.ok()?;
        let len = operands[*operand].shape.elements();
        let described =
            Operand { len, base, batch: list(self.batch)?, outer: list(outer)?, k: list(self.inner)?, windows };
        Some((Side { operand: described }, *operand, extra))
    }

    /// The window of a guard lo ≤ v < hi, and what it contributes to the address.
    fn window(
        &mut self,
        g: &Guard,
        flat: &Index,
        dilated: &mut Vec<&Guard>,
        outer: &[Axis],
        extra: &mut usize,
    ) -> Option<(Window, Index)> {
        let (mut along, mut across) = (None, None);
        for t in g.index.terms() {
            let Atom::Axis(a) = t.atom else { return None };
            let at = |axes: &[Axis]| axes.iter().position(|x| *x == a);
            match (at(outer), at(self.inner)) {
                (Some(i), _) if along.is_none() => along = Some((i, t.coeff, a)),
                (_, Some(i)) if across.is_none() => across = Some((i, t.coeff, a)),
                _ => return None,
            }
        }
        if along.is_some_and(|w| w.1 < 1) || across.is_some_and(|w| w.1 < 1) {
            return None;
        }
        let v = g.index.clone().plus(-g.lo);
        let (step, share_of_one) = self.dilation(&v, flat, dilated)?;
        let address = match step {
            1 => [along, across].into_iter().flatten().find_map(|(_, c, a)| Some(coefficient(flat, a)? / c))?,
            _ => {
                flat.terms()
                    .iter()
                    .find(|t| share_of_one.terms().iter().any(|s| s.atom == t.atom && is_division(&s.atom)))?
                    .coeff
            }
        };
        let extent = (g.hi - g.lo - 1) / step + 1;
        let dim = |w: Option<(usize, i64, Axis)>, dims: usize, extra: &mut usize| match w {
            Some((i, ..)) => i,
            None => {
                *extra += 1;
                dims + *extra - 1
            }
        };
        let window = Window {
            outer_dim: dim(along, outer.len(), extra),
            k_dim: dim(across, self.inner.len(), &mut self.extra_k),
            stride: along.map_or(1, |w| w.1) as usize,
            dilation: across.map_or(1, |w| w.1) as usize,
            low_pad: -(v.offset() as isize),
            input_dilation: step as usize,
            extent: usize::try_from(extent).ok()?,
            address_stride: address as isize,
        };
        Some((window, share_of_one.times(address)))
    }

    /// The distance of stored elements along v, and ⌊v / distance⌋; takes the guard that says so from the list.
    fn dilation(&self, v: &Index, flat: &Index, dilated: &mut Vec<&Guard>) -> Option<(i64, Index)> {
        let extents = &self.nest.extents;
        let found = dilated.iter().position(|g| {
            dilation_of(&g.index).is_some_and(|n| v.clone().modulo(n, extents) == g.index) && (g.lo, g.hi) == (0, 1)
        });
        let Some(i) = found else { return Some((1, v.clone())) };
        let n = dilation_of(&dilated[i].index)?;
        let share = v.clone().floor_div(n, extents);
        let divides = share.terms().iter().any(|t| is_division(&t.atom));
        if !divides || !flat.terms().iter().any(|t| share.terms().iter().any(|s| s.atom == t.atom)) {
            return None;
        }
        dilated.remove(i);
        Some((n, share))
    }

    fn contraction(
        &self,
        element: Element,
        [a, b]: [Side; 2],
        [extra_rows, extra_columns]: [usize; 2],
        result: &Type,
    ) -> Option<Contraction> {
        let nest = self.nest;
        let extents = |axes: &[Axis], extra: usize| -> Vec<usize> {
            axes.iter().map(|a| nest.extent(*a)).chain(std::iter::repeat_n(1, extra)).collect()
        };
        let stride = |axes: &[Axis], extra: usize| -> Option<Vec<isize>> {
            let each = axes.iter().map(|a| coefficient(&nest.store, *a).map(|c| c as isize));
            each.chain(std::iter::repeat_n(Some(0), extra)).collect()
        };
        let pad = |mut side: Side, extra: usize| {
            side.operand.outer.extend(std::iter::repeat_n(0, extra));
            side.operand.k.extend(std::iter::repeat_n(0, self.extra_k));
            side.operand
        };
        Some(Contraction {
            element,
            batch: extents(self.batch, 0),
            m: extents(self.rows, extra_rows),
            n: extents(self.columns, extra_columns),
            k: extents(self.inner, self.extra_k),
            a: pad(a, extra_rows),
            b: pad(b, extra_columns),
            c: Output {
                len: result.shape.elements(),
                base: usize::try_from(nest.store.offset()).ok()?,
                batch: stride(self.batch, 0)?,
                m: stride(self.rows, extra_rows)?,
                n: stride(self.columns, extra_columns)?,
            },
            start: Start::Zero,
            summation: Summation::Chain,
            right: RightForm::Plain,
            storage: Storage::Element,
            sums: Sums::Result,
        })
    }
}

fn is_division(atom: &Atom) -> bool {
    matches!(atom, Atom::FloorDiv(..))
}

/// n, where the index is `x mod n` and nothing else.
fn dilation_of(index: &Index) -> Option<i64> {
    match index.terms() {
        [t] if index.offset() == 0 && t.coeff == 1 => match t.atom {
            Atom::Mod(_, n) => Some(n),
            Atom::Axis(_) | Atom::FloorDiv(..) => None,
        },
        _ => None,
    }
}
