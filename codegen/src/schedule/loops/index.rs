//! Positions and conditions as registers, hoisted term by term.

use super::{Loops, Val, Vectors};
use crate::schedule::nest::{coefficient, range};
use intwain_ir::DType;
use intwain_ir::compute::{Atom, Axis, Guard, Index, Term};
use intwain_ir::kernel::{Inst, Reg, RegType};
use intwain_ir::scalar::{Binary, Compare, Scalar};

impl Loops<'_> {
    /// The variable part of an index at the current positions (of the first lane), and the constant to be added.
    pub(in crate::schedule) fn address(&mut self, index: &Index) -> (Reg, i64) {
        let mut terms: Vec<(usize, &Term)> = index
            .terms()
            .iter()
            .map(|t| {
                let axes = match &t.atom {
                    Atom::Axis(a) => 1 << a.0,
                    Atom::FloorDiv(inner, _) | Atom::Mod(inner, _) => inner.axes(),
                };
                (self.home(axes), t)
            })
            .collect();
        // Outer terms first, so that their sum is formed outside.
        terms.sort_by_key(|(home, _)| *home);
        let (mut sum, mut offset) = (self.b.index(0), index.offset());
        for (home, t) in terms {
            let depth = self.scopes[home].depth;
            let mut atom = self.atom(&t.atom, depth);
            if self.vectors == Vectors::Aligned {
                let (part, shift) = self.b.parts_of(atom);
                (atom, offset) = (part, offset + shift * t.coeff);
            }
            let coeff = self.b.index(t.coeff);
            let scaled = self.b.binary_at(depth, Binary::Mul, atom, coeff);
            sum = self.b.binary_at(depth, Binary::Add, sum, scaled);
        }
        match self.b.constant_of(sum) {
            Some(c) => (self.b.index(c.to_i64() + offset), 0),
            None => (sum, offset),
        }
    }

    fn atom(&mut self, atom: &Atom, depth: usize) -> Reg {
        match atom {
            Atom::Axis(a) => self.bound(*a).expect("expressions are emitted inside the loops of their axes").base,
            Atom::FloorDiv(inner, n) | Atom::Mod(inner, n) => {
                let x = self.index(inner);
                let n = self.b.index(*n);
                let op = if matches!(atom, Atom::Mod(..)) { Binary::Mod } else { Binary::FloorDiv };
                self.b.binary_at(depth, op, x, n)
            }
        }
    }

    /// The whole index as a register.
    pub(in crate::schedule) fn index(&mut self, index: &Index) -> Reg {
        let home = self.home(index.axes());
        if let Some(&r) = self.scopes[home].indices.get(index) {
            return r;
        }
        let (r, offset) = self.address(index);
        let offset = self.b.index(offset);
        let depth = self.scopes[home].depth;
        let r = self.b.binary_at(depth, Binary::Add, r, offset);
        self.scopes[home].indices.insert(index.clone(), r);
        r
    }

    /// Whether a guard holds (in the first lane), tested at its home.
    pub(super) fn guard(&mut self, g: &Guard) -> Reg {
        let home = self.home(g.index.axes());
        if let Some(&r) = self.scopes[home].guards.get(g) {
            return r;
        }
        let (lo, hi) = range(&g.index, &|a| self.range_of(a));
        let aside = self.enter(home);
        let x = self.index(&g.index);
        let mut parts = Vec::new();
        if lo < g.lo {
            let bound = self.b.index(g.lo);
            parts.push(self.b.compare(Compare::Ge, x, bound));
        }
        if hi >= g.hi {
            let bound = self.b.index(g.hi);
            parts.push(self.b.compare(Compare::Lt, x, bound));
        }
        let r = match parts[..] {
            [] => self.b.constant(Scalar::one(DType::Bool)),
            [a] => a,
            _ => self.b.binary(Binary::And, parts[0], parts[1]),
        };
        self.leave(aside);
        self.scopes[home].guards.insert(g.clone(), r);
        r
    }

    /// What the index of the first lane is known to be a multiple of; 0 if it is 0.
    pub(in crate::schedule) fn multiple(&self, index: &Index) -> i64 {
        gcd(self.multiple_of_terms(index), index.offset())
    }

    fn multiple_of_terms(&self, index: &Index) -> i64 {
        multiple_of_terms(index, &|a| match self.bound(a) {
            Some(b) if b.range.0 == b.range.1 && b.width == 1 => b.range.0,
            Some(b) => b.multiple,
            None => 1,
        })
    }

    /// Whether a guard is the same in all lanes: its bounds fall between lane groups.
    pub(super) fn is_even(&self, g: &Guard) -> bool {
        let Some(axis) = self.lane_axis(g.index.axes()) else { return true };
        let (Some(step), Some(b)) = (coefficient(&g.index, axis), self.bound(axis)) else { return false };
        falls_between(g, step, b.width, self.multiple_of_terms(&g.index))
    }

    /// By how much an index grows from lane to lane; `None` if unevenly. 0 for indices without a lane axis.
    pub(super) fn lane_step(&self, index: &Index) -> Option<i64> {
        match self.lane_axis(index.axes()) {
            None => Some(0),
            Some(axis) => coefficient(index, axis),
        }
    }

    /// A position as an element.
    pub(super) fn position(&mut self, dtype: DType, index: &Index, width: usize) -> Val {
        let (lo, hi) = range(index, &|a| self.range_of(a));
        let fits = i32::try_from(lo).is_ok() && i32::try_from(hi).is_ok();
        match self.lane_step(index) {
            Some(step)
                if width > 1
                    && width.is_multiple_of(4)
                    && self.holds_vectors(dtype)
                    && fits
                    && dtype != DType::Bool =>
            {
                self.stepped_position(dtype, index, step, width)
            }
            _ if width > 1 => {
                let axis = self.lane_axis(index.axes()).expect("a wide position has a lane axis");
                let lanes = self.per_lane(axis, width, |l| l.position_element(dtype, index));
                self.gather(lanes, dtype)
            }
            _ => Val::one(self.position_element(dtype, index)),
        }
    }

    fn position_element(&mut self, dtype: DType, index: &Index) -> Reg {
        let x = self.index(index);
        match dtype {
            DType::F16 | DType::BF16 => {
                let x = self.b.cast(DType::F64, x);
                self.b.cast(dtype, x)
            }
            _ => self.b.cast(dtype, x),
        }
    }

    /// base + 0·step, base + 1·step, … in i32, where it can't overflow.
    fn stepped_position(&mut self, dtype: DType, index: &Index, step: i64, width: usize) -> Val {
        let first = self.index(index);
        let first = self.b.cast(DType::I32, first);
        let ty = RegType { dtype: DType::I32, lanes: 4 };
        let regs = (0..width as i64 / 4)
            .map(|i| {
                let steps = (0..4)
                    .map(|lane| self.b.constant(Scalar::from_i64(DType::I32, (4 * i + lane) * step)))
                    .collect::<smallvec::SmallVec<[Reg; 4]>>();
                let steps = self.b.inst_at(0, ty, Inst::Pack(steps));
                let base = self.b.inst(ty, Inst::Splat(first));
                let x = self.b.binary(Binary::Add, base, steps);
                self.b.cast(dtype, x)
            })
            .collect();
        Val { regs, lanes: 4 }
    }
}

/// What the variable part of an index is a multiple of, where each axis is a multiple of what `of` says.
fn multiple_of_terms(index: &Index, of: &dyn Fn(Axis) -> i64) -> i64 {
    index.terms().iter().fold(0, |n, t| {
        let whole = |inner: &Index| gcd(multiple_of_terms(inner, of), inner.offset());
        let atom = match &t.atom {
            Atom::Axis(a) => of(*a),
            Atom::FloorDiv(inner, n) => match whole(inner) {
                m if m % n == 0 => m / n,
                _ => 1,
            },
            Atom::Mod(inner, n) => gcd(whole(inner), *n),
        };
        gcd(n, atom * t.coeff)
    })
}

/// Whether both bounds of a guard fall between groups of `width` lanes, where the index grows by `step` from lane to
/// lane and its variable part is a multiple of `unit` in the first.
fn falls_between(g: &Guard, step: i64, width: usize, unit: i64) -> bool {
    let reach = step * (width as i64 - 1);
    let between = |bound: i64| (g.index.offset() - bound).rem_euclid(unit) + reach < unit;
    step > 0 && unit > 0 && between(g.lo) && between(g.hi)
}

/// Whether groups of `width` positions of an axis are accessed as one: the address steps along it and is a multiple of
/// the width, and no guard falls into a group.
pub(in crate::schedule) fn moves_groups(at: &Index, guards: &[Guard], axis: Axis, width: usize) -> bool {
    let of = |a: Axis| if a == axis { width as i64 } else { 1 };
    let whole = gcd(multiple_of_terms(at, &of), at.offset()) % width as i64 == 0;
    let even = |g: &Guard| match coefficient(&g.index, axis) {
        Some(0) => true,
        Some(step) => falls_between(g, step, width, multiple_of_terms(&g.index, &of)),
        None => false,
    };
    coefficient(at, axis) == Some(1) && whole && guards.iter().all(even)
}

/// Greatest common divisor; that of 0 and n is n.
pub(super) fn gcd(a: i64, b: i64) -> i64 {
    let (mut a, mut b) = (a.abs(), b.abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}
