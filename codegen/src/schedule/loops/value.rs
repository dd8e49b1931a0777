//! Values of several lanes.

use super::{Loops, Vectors};
use intwain_ir::DType;
use intwain_ir::kernel::{Inst, Reg, RegType};
use smallvec::SmallVec;

/// A value of `regs.len() * lanes` elements.
#[derive(Clone, Debug)]
pub(crate) struct Val {
    pub(crate) regs: SmallVec<[Reg; 8]>,
    /// Elements of each register.
    pub(crate) lanes: u8,
}

/// Whether CPUs have vectors of this type.
pub(crate) fn vectorizes(dtype: DType) -> bool {
    matches!(dtype, DType::F16 | DType::BF16 | DType::F32 | DType::I32 | DType::U32 | DType::Bool)
}

impl Val {
    pub(crate) fn one(r: Reg) -> Val {
        Val { regs: SmallVec::from_iter([r]), lanes: 1 }
    }

    /// Whether it is one element, the same in all lanes.
    pub(super) fn is_single(&self) -> bool {
        self.regs.len() == 1 && self.lanes == 1
    }

    pub(super) fn single(&self) -> Option<Reg> {
        self.is_single().then(|| self.regs[0])
    }

    pub(super) fn map(&self, f: impl FnMut(Reg) -> Reg) -> Val {
        Val { regs: self.regs.iter().copied().map(f).collect(), lanes: self.lanes }
    }

    pub(super) fn zip(&self, other: &Val, mut f: impl FnMut(Reg, Reg) -> Reg) -> Val {
        debug_assert_eq!(self.regs.len(), other.regs.len());
        Val { regs: self.regs.iter().zip(&other.regs).map(|(&a, &b)| f(a, b)).collect(), lanes: self.lanes }
    }
}

impl Loops<'_> {
    /// Whether elements of this type are kept in vectors here.
    pub(super) fn holds_vectors(&self, dtype: DType) -> bool {
        self.vectors == Vectors::Held && vectorizes(dtype)
    }

    /// Number of registers, and lanes of each, for a value of `width` elements.
    pub(super) fn layout(&self, dtype: DType, width: usize) -> (usize, u8) {
        if self.holds_vectors(dtype) && width.is_multiple_of(4) { (width / 4, 4) } else { (width, 1) }
    }

    /// Every lane in a register of its own.
    pub(super) fn scalars(&mut self, v: Val, dtype: DType) -> Val {
        if v.lanes == 1 {
            return v;
        }
        let ty = RegType::scalar(dtype);
        let regs = v
            .regs
            .iter()
            .flat_map(|&r| (0..v.lanes).map(move |lane| (r, lane)))
            .map(|(r, lane)| self.b.inst(ty, Inst::Extract(r, lane)))
            .collect();
        Val { regs, lanes: 1 }
    }

    /// Single elements, one a lane, in the form that the type has.
    pub(super) fn gather(&mut self, lanes: Vec<Reg>, dtype: DType) -> Val {
        let (_, per) = self.layout(dtype, lanes.len());
        if per == 1 {
            return Val { regs: lanes.into(), lanes: 1 };
        }
        let ty = RegType { dtype, lanes: per };
        let regs =
            lanes.chunks(per as usize).map(|four| self.b.inst(ty, Inst::Pack(SmallVec::from_slice(four)))).collect();
        Val { regs, lanes: per }
    }

    /// The form that values of this type and width have.
    pub(super) fn reshape(&mut self, v: Val, dtype: DType, width: usize) -> Val {
        let (count, lanes) = self.layout(dtype, width);
        if v.lanes == lanes || v.is_single() {
            debug_assert!(v.is_single() || v.regs.len() == count);
            return v;
        }
        if lanes == 1 { self.scalars(v, dtype) } else { self.gather(v.regs.to_vec(), dtype) }
    }
}
