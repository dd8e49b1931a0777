//! A warp: 32 lanes in lockstep, split into groups of lanes that stand at the same instruction.
//!
//! # Divergence
//! Among the groups of a warp the one with the smallest instruction index runs, until its index reaches another
//! group's: then the two merge. Code is laid out so that joins follow the branches they join, so structured code
//! reconverges exactly at the join. A group that spins gives way to the others at the end of its slice, so one lane
//! may wait for another of its own warp, as independent thread scheduling allows.

use crate::access;
use crate::atom;
use crate::block::{Block, coordinates};
use crate::collective;
use crate::copy::{self, Copy};
use crate::error::{Fault, FaultKind};
use crate::fast;
use crate::grid::Context;
use crate::lower::Program;
use crate::memory::View;
use crate::mma;
use crate::op::{BarrierKind, Class, Inst, Op, Reg, Scope};
use crate::race::Observer;
use crate::regs::{Regs, lanes};
use crate::scalar::Compare;
use crate::shared::Who;
use crate::stats::Tally;
use crate::types::{Kind, Ty};

/// Warp instructions of one turn.
const SLICE: u64 = 50_000;
/// What a synchronising access takes from the slice, so that spinning soon ends the turn.
const SPIN_COST: u64 = SLICE / 16;

/// What a group waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    Ready,
    /// More lanes of its warp, at this instruction.
    Warp,
    Barrier(u32),
}

/// Lanes at one instruction.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    pub(crate) state: State,
}

/// Why a warp stopped running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// It waits, or has ended.
    Blocked,
    Slice,
    Spin,
}

/// A warp.
#[derive(Debug, Clone)]
pub(crate) struct Warp {
    pub(crate) index: u32,
    pub(crate) regs: Regs,
    pub(crate) groups: Vec<Group>,
    /// Lanes that have not exited.
    pub(crate) live: u32,
    /// Lanes that the block has.
    pub(crate) born: u32,
    pub(crate) copies: Vec<Copy>,
    pub(crate) committed: [u32; 32],
    pub(crate) clocks: Vec<u32>,
    /// Counts `bar.warp.sync` within a clock.
    pub(crate) step: u16,
    /// Accesses up to this clock are known, whichever warp made them.
    floor: u32,
    pub(crate) local: Vec<u8>,
    pub(crate) local_set: Vec<bool>,
    /// What it knows of other blocks, if global memory is checked for races.
    pub(crate) observer: Option<Box<Observer>>,
    pub(crate) executed: u64,
    turns: usize,
}

/// What an instruction does to the group that executed it.
pub(crate) enum Next {
    Forward,
    Jump(u32),
    /// The lanes of the mask jump, the others go on.
    Split(u32, u32),
    /// The lanes of the mask end.
    Exit(u32),
    Wait(State),
    /// Go on; counts towards spinning.
    Sync,
}

impl Warp {
    pub(crate) fn new(index: u32, warps: u32, live: u32, program: &Program) -> Warp {
        let local = program.local_bytes as usize * 32;
        let mut clocks = vec![0; warps as usize];
        clocks[index as usize] = 1;
        Warp {
            index,
            regs: program.template.clone(),
            groups: vec![Group { pc: 0, mask: live, state: State::Ready }],
            live,
            born: live,
            copies: Vec::new(),
            committed: [0; 32],
            clocks,
            step: 0,
            floor: 0,
            local: vec![0; local],
            local_set: vec![false; local],
            observer: None,
            executed: 0,
            turns: 0,
        }
    }

    /// Makes it the warp of another block: registers lose their values, except for those that every block starts with.
    pub(crate) fn reset(&mut self, program: &Program) {
        self.regs.forget(&program.template);
        self.groups.clear();
        self.groups.push(Group { pc: 0, mask: self.born, state: State::Ready });
        self.live = self.born;
        self.copies.clear();
        self.committed = [0; 32];
        self.clocks.fill(0);
        self.clocks[self.index as usize] = 1;
        (self.step, self.floor, self.executed, self.turns) = (0, 0, 0, 0);
        self.local_set.fill(false);
    }

    /// The next clock: what follows is not known to those who knew the last one.
    pub(crate) fn tick(&mut self) {
        let own = self.index as usize;
        let others = self.clocks.iter().enumerate().filter(|&(w, _)| w != own).map(|(_, &c)| c).min();
        self.floor = others.map_or(self.clocks[own], |c| c.min(self.clocks[own]));
        self.clocks[own] += 1;
        self.step = 0;
    }

    /// What lanes did before is known to all lanes of the warp.
    pub(crate) fn converge(&mut self) {
        match self.step.checked_add(1) {
            Some(step) => self.step = step,
            None => self.tick(),
        }
    }

    pub(crate) fn who(&self) -> Who<'_> {
        Who { first: (self.index * 32) as u16, step: self.step, clocks: &self.clocks, floor: self.floor }
    }

    /// Merges groups at the same instruction and picks the one to run, with the index at which it must look up again.
    fn pick(&mut self) -> Option<(usize, u32)> {
        self.groups.sort_by_key(|g| g.pc);
        let mut index = 1;
        while index < self.groups.len() {
            let (a, b) = (self.groups[index - 1], self.groups[index]);
            let waits = |s| matches!(s, State::Barrier(_));
            if a.pc == b.pc && !waits(a.state) && !waits(b.state) {
                self.groups[index - 1] = Group { mask: a.mask | b.mask, state: State::Ready, pc: a.pc };
                self.groups.remove(index);
            } else {
                index += 1;
            }
        }
        let ready: Vec<usize> = (0..self.groups.len()).filter(|&g| self.groups[g].state == State::Ready).collect();
        let &chosen = ready.get(self.turns % ready.len().max(1))?;
        let pc = self.groups[chosen].pc;
        let next = self.groups.iter().map(|g| g.pc).find(|&p| p > pc).unwrap_or(u32::MAX);
        Some((chosen, next))
    }
}

/// Everything an instruction may touch.
pub(crate) struct Machine<'a, 'c> {
    pub(crate) warp: &'a mut Warp,
    pub(crate) shared: &'a mut crate::shared::Shared,
    pub(crate) barriers: &'a mut [crate::block::Barrier],
    pub(crate) view: &'a mut View,
    pub(crate) tally: &'a mut Tally,
    pub(crate) context: &'a Context<'c>,
}

/// What stopped an instruction: the fault, its lane, its address.
pub(crate) type Trouble = (FaultKind, usize, Option<u64>);

impl Block {
    /// Runs warp `index` until it blocks or its slice ends.
    pub(crate) fn run(
        &mut self,
        index: usize,
        context: &Context<'_>,
        view: &mut View,
        tally: &mut Tally,
    ) -> Result<Stop, Box<Fault>> {
        #[cfg(target_arch = "x86_64")]
        if fast::vectors() {
            // SAFETY: the processor has the features.
            return unsafe { self.run_vectorised(index, context, view, tally) };
        }
        self.interpret(index, context, view, tally)
    }

    /// The interpreter compiled for processors with wide vectors.
    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,fma,bmi1,bmi2,popcnt,lzcnt")]
    fn run_vectorised(
        &mut self,
        index: usize,
        context: &Context<'_>,
        view: &mut View,
        tally: &mut Tally,
    ) -> Result<Stop, Box<Fault>> {
        self.interpret(index, context, view, tally)
    }

    #[inline(always)]
    fn interpret(
        &mut self,
        index: usize,
        context: &Context<'_>,
        view: &mut View,
        tally: &mut Tally,
    ) -> Result<Stop, Box<Fault>> {
        let code = &context.program.code;
        let warp = &mut self.warps[index];
        let mut m = Machine { warp, shared: &mut self.shared, barriers: &mut self.barriers, view, tally, context };
        let (mut budget, mut spins) = (SLICE, 0);
        loop {
            let Some((chosen, next)) = m.warp.pick() else { return Ok(Stop::Blocked) };
            let Group { mut pc, mask, .. } = m.warp.groups[chosen];
            loop {
                let inst = &code[pc as usize];
                let exec = match inst.guard {
                    None => mask,
                    Some((p, negated)) => {
                        if m.warp.regs.set_pred[p as usize] & mask != mask {
                            let lane = (mask & !m.warp.regs.set_pred[p as usize]).trailing_zeros() as usize;
                            let trouble = (FaultKind::UninitialisedRegister, lane, None);
                            return Err(fault(context, self.id, m.warp.index, inst, trouble));
                        }
                        let p = m.warp.regs.pred[p as usize];
                        mask & if negated { !p } else { p }
                    }
                };
                m.warp.executed += 1;
                m.tally.executed[pc as usize] += 1;
                m.tally.stats.thread_instructions += u64::from(exec.count_ones());
                budget = budget.saturating_sub(1);
                let step = if exec == 0 { Ok(Next::Forward) } else { m.step(inst, pc, exec, mask) };
                match step.map_err(|t| fault(context, self.id, m.warp.index, inst, t))? {
                    Next::Forward => pc += 1,
                    Next::Jump(target) => pc = target,
                    Next::Sync => {
                        spins += 1;
                        budget = budget.saturating_sub(SPIN_COST);
                        pc += 1;
                    }
                    Next::Split(target, taken) => {
                        m.warp.groups[chosen] = Group { pc: pc + 1, mask: mask & !taken, state: State::Ready };
                        m.warp.groups.push(Group { pc: target, mask: taken, state: State::Ready });
                        break;
                    }
                    Next::Exit(done) => {
                        m.warp.live &= !done;
                        m.warp.groups[chosen] = Group { pc: pc + 1, mask: mask & !done, state: State::Ready };
                        if mask == done {
                            m.warp.groups.remove(chosen);
                        }
                        break;
                    }
                    Next::Wait(state) => {
                        m.warp.groups[chosen] = Group { pc, mask, state };
                        break;
                    }
                }
                if pc >= next || budget == 0 {
                    m.warp.groups[chosen].pc = pc;
                    break;
                }
            }
            if budget == 0 {
                m.warp.turns += 1;
                return Ok(if spins >= 8 { Stop::Spin } else { Stop::Slice });
            }
        }
    }
}

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

fn fault(context: &Context<'_>, block: [u32; 3], warp: u32, inst: &Inst, (kind, lane, address): Trouble) -> Box<Fault> {
    let thread = coordinates(warp * 32 + lane as u32, context.launch.block);
    Box::new(Fault { kind, kernel: context.program.name.clone(), line: inst.line, block, thread, address })
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
    fn step(&mut self, inst: &Inst, pc: u32, exec: u32, mask: u32) -> Result<Next, Trouble> {
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
            Op::Load(a) => return access::load(self, a, pc, exec),
            Op::Store(a) => return access::store(self, a, pc, exec),
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
