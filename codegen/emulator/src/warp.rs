//! A warp: 32 lanes in lockstep, split into groups of lanes that stand at the same instruction.
//!
//! # Divergence
//! Among the groups of a warp the one with the smallest instruction index runs, until its index reaches another
//! group's: then the two merge. Code is laid out so that joins follow the branches they join, so structured code
//! reconverges exactly at the join. A group that spins gives way to the others at the end of its slice, so one lane
//! may wait for another of its own warp, as independent thread scheduling allows.

use crate::block::{Block, coordinates};
use crate::copy::Copy;
use crate::error::{Fault, FaultKind};
use crate::fast;
use crate::grid::Context;
use crate::known::Observer;
use crate::lower::Program;
use crate::op::Inst;
use crate::regs::Regs;
use crate::shared::Who;
use crate::stats::Tally;
use crate::view::View;

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

fn fault(context: &Context<'_>, block: [u32; 3], warp: u32, inst: &Inst, (kind, lane, address): Trouble) -> Box<Fault> {
    let thread = coordinates(warp * 32 + lane as u32, context.launch.block);
    Box::new(Fault { kind, kernel: context.program.name.clone(), line: inst.line, block, thread, address })
}
