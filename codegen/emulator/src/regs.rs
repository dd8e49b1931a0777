//! The register file of a warp: for every register an array over the 32 lanes, and which lanes hold a value.

use crate::op::{Class, Reg};

/// Registers of one warp. Slot 0 of every file is the constant 0.
#[derive(Debug, Clone)]
pub(crate) struct Regs {
    pub(crate) w32: Vec<[u32; 32]>,
    pub(crate) w64: Vec<[u64; 32]>,
    /// One bit a lane.
    pub(crate) pred: Vec<u32>,
    pub(crate) set32: Vec<u32>,
    pub(crate) set64: Vec<u32>,
    pub(crate) set_pred: Vec<u32>,
}

impl Regs {
    pub(crate) fn new() -> Regs {
        Regs {
            w32: vec![[0; 32]],
            w64: vec![[0; 32]],
            pred: vec![0],
            set32: vec![u32::MAX],
            set64: vec![u32::MAX],
            set_pred: vec![u32::MAX],
        }
    }

    /// Adds a slot without a value.
    pub(crate) fn fresh(&mut self, class: Class) -> Reg {
        let slot = match class {
            Class::Pred => {
                self.pred.push(0);
                self.set_pred.push(0);
                self.pred.len()
            }
            Class::W32 => {
                self.w32.push([0; 32]);
                self.set32.push(0);
                self.w32.len()
            }
            Class::W64 => {
                self.w64.push([0; 32]);
                self.set64.push(0);
                self.w64.len()
            }
        };
        Reg { class, slot: (slot - 1) as u32 }
    }

    /// Takes all values away but those of the template.
    pub(crate) fn forget(&mut self, template: &Regs) {
        self.set32.copy_from_slice(&template.set32);
        self.set64.copy_from_slice(&template.set64);
        self.set_pred.copy_from_slice(&template.set_pred);
    }

    /// Lanes in which `r` holds a value.
    pub(crate) fn set_lanes(&self, r: Reg) -> u32 {
        match r.class {
            Class::Pred => self.set_pred[r.slot as usize],
            Class::W32 => self.set32[r.slot as usize],
            Class::W64 => self.set64[r.slot as usize],
        }
    }

    pub(crate) fn mark(&mut self, r: Reg, lanes: u32) {
        match r.class {
            Class::Pred => self.set_pred[r.slot as usize] |= lanes,
            Class::W32 => self.set32[r.slot as usize] |= lanes,
            Class::W64 => self.set64[r.slot as usize] |= lanes,
        }
    }

    pub(crate) fn unmark(&mut self, r: Reg, lanes: u32) {
        match r.class {
            Class::Pred => self.set_pred[r.slot as usize] &= !lanes,
            Class::W32 => self.set32[r.slot as usize] &= !lanes,
            Class::W64 => self.set64[r.slot as usize] &= !lanes,
        }
    }

    #[inline]
    pub(crate) fn get(&self, r: Reg, lane: usize) -> u64 {
        match r.class {
            Class::Pred => u64::from(self.pred[r.slot as usize] >> lane & 1),
            Class::W32 => u64::from(self.w32[r.slot as usize][lane]),
            Class::W64 => self.w64[r.slot as usize][lane],
        }
    }

    #[inline]
    pub(crate) fn put(&mut self, r: Reg, lane: usize, v: u64) {
        match r.class {
            Class::Pred => {
                let word = &mut self.pred[r.slot as usize];
                *word = *word & !(1 << lane) | ((v & 1) as u32) << lane;
            }
            Class::W32 => self.w32[r.slot as usize][lane] = v as u32,
            Class::W64 => self.w64[r.slot as usize][lane] = v,
        }
    }

    /// Fills all lanes, which then hold a value.
    pub(crate) fn fill(&mut self, r: Reg, mut v: impl FnMut(usize) -> u64) {
        (0..32).for_each(|lane| self.put(r, lane, v(lane)));
        self.mark(r, u32::MAX);
    }
}

/// The lanes of a mask, lowest first.
pub(crate) fn lanes(mut mask: u32) -> impl Iterator<Item = usize> {
    std::iter::from_fn(move || {
        let lane = mask.trailing_zeros();
        mask &= mask.wrapping_sub(1);
        (lane < 32).then_some(lane as usize)
    })
}
