//! Executes one instruction of a warp.

use crate::atom;
use crate::collective;
use crate::copy;
use crate::error::FaultKind;
use crate::fast;
use crate::load;
use crate::mma;
use crate::op::{BarrierKind, Class, Inst, Op, Reg, Scope};
use crate::regs::{Regs, lanes};
use crate::scalar::Compare;
use crate::store;
use crate::types::{Kind, Ty};
use crate::warp::{Group, Machine, Next, State, Trouble};

/// A comparison of 32-bit values in all lanes.
#[inline(always)]
fn compare(f: Compare, ty: Ty, a: &[u32; 32], b: &[u32; 32]) -> u32 {
    let view = match ty.kind {
        Kind::Signed => fast::View32::Signed,
        Kind::Float | Kind::Brain | Kind::Tf32 => fast::View32::Float,
        Kind::Unsigned | Kind::Bits | Kind::Pred => fast::View32::Unsigned,
    };
    fast::compare32(view, f, a, b)
}

impl Machine<'_, '_> {
    fn fence(&mut self, scope: Scope) {
        if let Some(observer) = &mut self.warp.observer {
            observer.fence(scope, &self.warp.clocks);
            self.warp.tick();
        }
    }

    /// Checks that the lanes have values.
    #[inline]
    pub(crate) fn need(&self, set: u32, exec: u32) -> Result<(), Trouble> {
        match exec & !set {
            0 => Ok(()),
            bad => Err((FaultKind::UninitialisedRegister, bad.trailing_zeros() as usize, None)),
        }
    }

    pub(crate) fn need_reg(&self, r: Reg, exec: u32) -> Result<(), Trouble> {
        self.need(self.warp.regs.set_lanes(r), exec)
    }

    fn pred(&self, p: u32, exec: u32) -> Result<u32, Trouble> {
        self.need(self.warp.regs.set_pred[p as usize], exec)?;
        Ok(self.warp.regs.pred[p as usize])
    }

    fn set_pred(&mut self, p: u32, v: u32, exec: u32) {
        let slot = &mut self.warp.regs.pred[p as usize];
        *slot = *slot & !exec | v & exec;
        self.warp.regs.set_pred[p as usize] |= exec;
    }

    /// Writes `f(lane)` to a register.
    pub(crate) fn write(&mut self, d: Reg, exec: u32, mut f: impl FnMut(&Regs, usize) -> u64) {
        for lane in lanes(exec) {
            let v = f(&self.warp.regs, lane);
            self.warp.regs.put(d, lane, v);
        }
        self.warp.regs.mark(d, exec);
    }

    #[inline(always)]
    pub(crate) fn step(&mut self, inst: &Inst, pc: u32, exec: u32, mask: u32) -> Result<Next, Trouble> {
        match &inst.op {
            &Op::Fast32 { f, d, src } => {
                let set = &self.warp.regs.set32;
                self.need(set[src[0] as usize] & set[src[1] as usize] & set[src[2] as usize], exec)?;
                fast::run32(f, &mut self.warp.regs, d, src, exec);
                self.warp.regs.set32[d as usize] |= exec;
            }
            &Op::Fast64 { f, d, src } => {
                let set = &self.warp.regs.set64;
                self.need(set[src[0] as usize] & set[src[1] as usize] & set[src[2] as usize], exec)?;
                fast::run64(f, &mut self.warp.regs, d, src, exec);
                self.warp.regs.set64[d as usize] |= exec;
            }
            &Op::Wide { signed, d, a, b, c } => {
                let regs = &self.warp.regs;
                self.need(regs.set32[a as usize] & regs.set32[b as usize] & regs.set64[c as usize], exec)?;
                fast::run_wide(signed, &mut self.warp.regs, d, [a, b, c], exec);
                self.warp.regs.set64[d as usize] |= exec;
            }
            &Op::Extend { signed, d, a } => {
                self.need(self.warp.regs.set32[a as usize], exec)?;
                fast::extend(signed, &mut self.warp.regs, d, a, exec);
                self.warp.regs.set64[d as usize] |= exec;
            }
            &Op::Truncate { d, a } => {
                self.need(self.warp.regs.set64[a as usize], exec)?;
                fast::truncate(&mut self.warp.regs, d, a, exec);
                self.warp.regs.set32[d as usize] |= exec;
            }
            &Op::Shift64 { f, d, a, by } => {
                self.need(self.warp.regs.set64[a as usize] & self.warp.regs.set32[by as usize], exec)?;
                fast::shift64(f, &mut self.warp.regs, d, [a, by], exec);
                self.warp.regs.set64[d as usize] |= exec;
            }
            &Op::Scalar { f, d, src } => {
                for r in src {
                    self.need_reg(r, exec)?;
                }
                self.write(d, exec, |r, lane| f.eval(r.get(src[0], lane), r.get(src[1], lane), r.get(src[2], lane)));
            }
            &Op::Mov { d, s } => {
                // A copy of a register without a value is a register without a value.
                let set = self.warp.regs.set_lanes(s);
                if d.class == Class::W64 {
                    fast::copy64(&mut self.warp.regs, d.slot, s.slot, exec);
                    self.warp.regs.mark(d, exec);
                } else if d.class == Class::W32 {
                    fast::copy32(&mut self.warp.regs, d.slot, s.slot, exec);
                    self.warp.regs.mark(d, exec);
                } else {
                    self.write(d, exec, |r, lane| r.get(s, lane));
                }
                self.warp.regs.unmark(d, exec & !set);
            }
            Op::Branch { target } if exec == mask => return Ok(Next::Jump(*target)),
            Op::Branch { target } => return Ok(Next::Split(*target, exec)),
            &Op::Setp { f, ty, a, b, p, q, with } => {
                self.need_reg(a, exec)?;
                self.need_reg(b, exec)?;
                let regs = &self.warp.regs;
                let holds = if ty.width() == 32 && !f.flush {
                    compare(f, ty, &regs.w32[a.slot as usize], &regs.w32[b.slot as usize])
                } else if ty.width() == 64 && !ty.is_float() {
                    fast::compare64(ty.is_signed(), f, &regs.w64[a.slot as usize], &regs.w64[b.slot as usize])
                } else {
                    let one = |l: usize| u32::from(f.eval(ty, regs.get(a, l), regs.get(b, l))) << l;
                    lanes(exec).fold(0, |all, l| all | one(l))
                };
                let (mut yes, mut no) = (holds, !holds);
                if let Some((op, c, negated)) = with {
                    let c = self.pred(c, exec)? ^ if negated { u32::MAX } else { 0 };
                    (yes, no) = (op.eval(holds, c), op.eval(!holds, c));
                }
                p.into_iter().for_each(|p| self.set_pred(p, yes, exec));
                q.into_iter().for_each(|q| self.set_pred(q, no, exec));
            }
            &Op::Set { f, ty, float, a, b, d } => {
                self.need_reg(a, exec)?;
                self.need_reg(b, exec)?;
                let yes = if float { u64::from(1f32.to_bits()) } else { 0xffff_ffff };
                self.write(d, exec, |r, lane| if f.eval(ty, r.get(a, lane), r.get(b, lane)) { yes } else { 0 });
            }
            &Op::Select { d, a, b, p } => {
                let p = self.pred(p, exec)?;
                let set = self.warp.regs.set_lanes(a) & p | self.warp.regs.set_lanes(b) & !p;
                match d.class {
                    Class::W32 => fast::select32(&mut self.warp.regs, d.slot, [a.slot, b.slot], p, exec),
                    _ => self.write(d, exec, |r, lane| r.get(if p >> lane & 1 == 1 { a } else { b }, lane)),
                }
                self.warp.regs.mark(d, exec);
                self.warp.regs.unmark(d, exec & !set);
            }
            &Op::Predicate { f, d, a, b, negate } => {
                let flip = |v: u32, negate: bool| if negate { !v } else { v };
                let v = f.eval(flip(self.pred(a, exec)?, negate[0]), flip(self.pred(b, exec)?, negate[1]));
                self.set_pred(d, v, exec);
            }
            Op::Pack { d, parts, bits }
                if matches!((parts.len(), d.class, bits), (2, Class::W32, 16) | (2, Class::W64, 32)) =>
            {
                let set = &self.warp.regs.set32;
                let [low, high] = [parts[0].slot, parts[1].slot];
                self.need(set[low as usize] & set[high as usize], exec)?;
                fast::pack(&mut self.warp.regs, *d, [low, high], exec);
                self.warp.regs.mark(*d, exec);
            }
            Op::Unpack { parts, s, bits }
                if matches!((parts.len(), s.class, bits), (2, Class::W32, 16) | (2, Class::W64, 32)) =>
            {
                self.need_reg(*s, exec)?;
                fast::unpack(&mut self.warp.regs, [parts[0], parts[1]].map(|p| p.map(|p| p.slot)), *s, exec);
                parts.iter().flatten().for_each(|&p| self.warp.regs.mark(p, exec));
            }
            Op::Pack { d, parts, bits } => {
                for &part in parts {
                    self.need_reg(part, exec)?;
                }
                self.write(*d, exec, |r, lane| {
                    parts.iter().rev().fold(0, |all, &p| all << bits | crate::scalar::keep(r.get(p, lane), *bits))
                });
            }
            Op::Unpack { parts, s, bits } => {
                self.need_reg(*s, exec)?;
                let whole: [u64; 32] = std::array::from_fn(|lane| self.warp.regs.get(*s, lane));
                for (at, part) in parts.iter().enumerate() {
                    let shift = at as u32 * bits;
                    if let Some(part) = *part {
                        self.write(part, exec, |_, lane| crate::scalar::keep(whole[lane] >> shift, *bits));
                    }
                }
            }
            &Op::Clock { d } => {
                let now = self.warp.executed;
                self.write(d, exec, |_, _| if d.class == Class::W64 { now } else { now & 0xffff_ffff });
            }
            Op::Exit => {
                copy::wait(self, None, exec);
                return Ok(Next::Exit(exec));
            }
            Op::Trap => return Err((FaultKind::Trap, exec.trailing_zeros() as usize, None)),
            &Op::Fence { scope } => self.fence(scope),
            Op::Load(a) => return load::load(self, a, pc, exec),
            Op::Store(a) => return store::store(self, a, pc, exec),
            Op::Atom(a) => return atom::run(self, a, exec),
            Op::CopyAsync { shared, global, bytes, source } => {
                copy::issue(self, [*shared, *global], *bytes, *source, pc, exec)?
            }
            Op::CopyCommit => copy::commit(self, exec),
            Op::CopyWait { pending } => copy::wait(self, *pending, exec),
            &Op::Barrier { kind, aligned, id, threads } => return self.barrier(kind, aligned, id, threads, exec, mask),
            Op::LoadMatrix { d, address, transposed } => mma::load(self, d, *address, *transposed, pc, exec)?,
            Op::Mma { f, k, half_accumulators, d, a, b, c } => {
                mma::multiply(self, *f, *k as usize, *half_accumulators, mma::Operands { d, a, b, c }, exec)?
            }
            _ => return collective::step(self, inst, exec),
        }
        Ok(Next::Forward)
    }

    fn barrier(
        &mut self,
        kind: BarrierKind,
        aligned: bool,
        id: Reg,
        threads: Option<Reg>,
        exec: u32,
        mask: u32,
    ) -> Result<Next, Trouble> {
        let lane = exec.trailing_zeros() as usize;
        self.need_reg(id, exec)?;
        if aligned && exec != self.warp.live {
            // Lanes that are behind may still come; lanes that are ahead or guarded off never will.
            if exec == mask
                && self.warp.groups.len() > 1
                && self
                    .warp
                    .groups
                    .iter()
                    .any(|g| g.mask != mask && g.state == State::Ready && g.mask & mask == 0 && self.behind(g, mask))
            {
                return Ok(Next::Wait(State::Warp));
            }
            return Err((FaultKind::DivergentBarrier { arrived: exec, live: self.warp.live }, lane, None));
        }
        let id = self.warp.regs.get(id, lane) as u32;
        let wrong = |reason| Err((FaultKind::Barrier { id, reason }, lane, None));
        let threads = threads.map(|t| self.warp.regs.get(t, lane) as u32);
        if id > 15 {
            return wrong("only 0 to 15 exist");
        }
        if threads.is_some_and(|n| n == 0 || n % 32 != 0) {
            return wrong("the number of threads must be a multiple of 32");
        }
        let votes = match kind {
            BarrierKind::Reduce { p, negated, .. } => (self.pred(p, exec)? ^ if negated { u32::MAX } else { 0 }) & exec,
            BarrierKind::Sync | BarrierKind::Arrive => 0,
        };
        let barrier = &mut self.barriers[id as usize];
        if barrier.arrived > 0 && barrier.threads != threads {
            return wrong("others wait at it for another number of threads");
        }
        barrier.threads = threads;
        barrier.arrived += if aligned && threads.is_some() { 32 } else { exec.count_ones() };
        barrier.votes += votes.count_ones();
        if threads.is_some_and(|n| barrier.arrived > n) {
            return wrong("more threads arrived than it waits for");
        }
        if kind != BarrierKind::Arrive {
            if exec != mask {
                return wrong("a guard splits the warp at it");
            }
            return Ok(Next::Wait(State::Barrier(id)));
        }
        barrier.clocks.resize(self.warp.clocks.len(), 0);
        barrier.clocks.iter_mut().zip(&self.warp.clocks).for_each(|(b, &c)| *b = (*b).max(c));
        barrier.heard.extend(self.warp.observer.as_ref().map(|o| o.known.clone()));
        self.warp.tick();
        Ok(Next::Forward)
    }

    fn behind(&self, other: &Group, mask: u32) -> bool {
        self.warp.groups.iter().find(|g| g.mask == mask).is_some_and(|own| other.pc <= own.pc)
    }
}
