//! A block: its warps, shared memory and barriers, scheduled round-robin.

use crate::grid::Context;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::error::{Fault, FaultKind, LaunchError};
use crate::known::{Known, Observer};
use crate::lower::Special;
use crate::op::{BarrierKind, Op, Vote};
use crate::regs::lanes;
use crate::shared::Shared;
use crate::stats::Tally;
use crate::view::View;
use crate::warp::{State, Stop, Warp};

/// How a block's turn ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    Done,
    /// Out of its slice of instructions.
    Slice,
    /// Everybody waits for a flag to change.
    Spin,
}

/// A named barrier (PTX ISA 9.7.13.1).
#[derive(Debug, Clone, Default)]
pub(crate) struct Barrier {
    /// Threads that have arrived.
    pub(crate) arrived: u32,
    /// Threads awaited, if the instruction names a number.
    pub(crate) threads: Option<u32>,
    /// What those that arrived without waiting knew.
    pub(crate) clocks: Vec<u32>,
    /// The same for what they knew of other blocks.
    pub(crate) heard: Vec<Arc<Known>>,
    pub(crate) votes: u32,
}

/// A resident block.
pub(crate) struct Block {
    pub(crate) id: [u32; 3],
    pub(crate) warps: Vec<Warp>,
    pub(crate) shared: Shared,
    pub(crate) barriers: Vec<Barrier>,
}

impl Block {
    pub(crate) fn new(context: &Context<'_>, id: [u32; 3]) -> Block {
        let (program, launch) = (context.program, context.launch);
        let threads: u32 = launch.block.iter().product();
        let count = threads.div_ceil(32);
        let warps = (0..count).map(|index| {
            let live = threads - index * 32;
            let live = if live >= 32 { u32::MAX } else { (1 << live) - 1 };
            let mut warp = Warp::new(index, count, live, program);
            for &(special, reg) in &program.specials {
                warp.regs.fill(reg, |lane| special_value(special, context, id, index, lane as u32, count));
            }
            warp
        });
        let shared = Shared::new(program.shared_bytes + u64::from(launch.shared), program.granule);
        let mut block = Block { id, warps: warps.collect(), shared, barriers: vec![Barrier::default(); 16] };
        block.observe(context);
        block
    }

    /// Numbers the warps for the race check of global memory.
    fn observe(&mut self, context: &Context<'_>) {
        let Some(races) = &context.races else { return };
        let first = races.number(context.device, self.warps.len() as u64);
        for (index, warp) in self.warps.iter_mut().enumerate() {
            warp.observer = Some(Box::new(Observer::new(first, index as u32, races.launch, races.start.clone())));
        }
    }

    /// What its warps have learned of other blocks.
    pub(crate) fn learned(&self) -> impl Iterator<Item = &Arc<Known>> {
        self.warps.iter().filter_map(|w| w.observer.as_ref().map(|o| &o.known))
    }

    /// Makes it another block of the same launch.
    pub(crate) fn reset(&mut self, context: &Context<'_>, id: [u32; 3]) {
        self.id = id;
        self.shared.reset();
        self.barriers.fill(Barrier::default());
        self.observe(context);
        for warp in &mut self.warps {
            warp.reset(context.program);
            for &(special, reg) in &context.program.specials {
                match special {
                    Special::Ctaid(axis) => warp.regs.fill(reg, |_| u64::from(id[usize::from(axis)])),
                    _ => warp.regs.mark(reg, u32::MAX),
                }
            }
        }
    }

    /// Runs every warp until it blocks, spins or has used its slice.
    pub(crate) fn turn(
        &mut self,
        context: &Context<'_>,
        view: &mut View,
        tally: &mut Tally,
    ) -> Result<Turn, LaunchError> {
        loop {
            if context.cancel.load(Ordering::Relaxed) {
                return Err(self.first(context, FaultKind::Cancelled).into());
            }
            let (mut moved, mut spun, mut sliced) = (false, false, false);
            for index in 0..self.warps.len() {
                let before = self.warps[index].executed;
                let stop = self.run(index, context, view, tally)?;
                moved |= self.warps[index].executed != before;
                spun |= stop == Stop::Spin;
                sliced |= stop == Stop::Slice;
            }
            if self.warps.iter().all(|w| w.groups.is_empty()) {
                return Ok(Turn::Done);
            }
            let passed = self.release(context, tally)?;
            if sliced {
                return Ok(Turn::Slice);
            }
            if spun && !passed {
                return Ok(Turn::Spin);
            }
            if !passed && !moved {
                return Err(self.deadlock(context).into());
            }
        }
    }

    /// Opens the barriers whose threads have all arrived.
    fn release(&mut self, context: &Context<'_>, tally: &mut Tally) -> Result<bool, Box<Fault>> {
        let live: u32 = self.warps.iter().map(|w| w.live.count_ones()).sum();
        let mut any = false;
        for id in 0..self.barriers.len() {
            let barrier = &self.barriers[id];
            if barrier.arrived == 0 || barrier.arrived < barrier.threads.unwrap_or(live) {
                continue;
            }
            let barrier = std::mem::take(&mut self.barriers[id]);
            any = true;
            tally.stats.barriers += 1;
            let waits = |w: &Warp| w.groups.iter().any(|g| g.state == State::Barrier(id as u32));
            let mut known = barrier.clocks.clone();
            known.resize(self.warps.len(), 0);
            for warp in self.warps.iter().filter(|w| waits(w)) {
                known.iter_mut().zip(&warp.clocks).for_each(|(k, &c)| *k = (*k).max(c));
            }
            if context.races.is_some() {
                let all = self.warps.iter().filter(|w| waits(w)).filter_map(|w| w.observer.as_ref()).map(|o| &o.known);
                let together = Known::together(all.chain(&barrier.heard).cloned());
                for observer in self.warps.iter_mut().filter(|w| waits(w)).filter_map(|w| w.observer.as_mut()) {
                    observer.known = together.clone();
                }
            }
            for warp in self.warps.iter_mut().filter(|w| waits(w)) {
                warp.clocks.iter_mut().zip(&known).for_each(|(c, &k)| *c = (*c).max(k));
                warp.tick();
                pass(warp, id as u32, &barrier, context);
            }
        }
        Ok(any)
    }

    fn deadlock(&self, context: &Context<'_>) -> Box<Fault> {
        let mut waiting = Vec::new();
        for warp in self.warps.iter().filter(|w| !w.groups.is_empty()) {
            for g in &warp.groups {
                let line = context.program.code[g.pc as usize].line;
                waiting.push(format!("warp {} lanes {:#010x} wait at line {line}", warp.index, g.mask));
            }
        }
        waiting.truncate(6);
        self.first(context, FaultKind::Deadlock(waiting.join("; ")))
    }

    /// The fault of a block whose warps spin without end.
    pub(crate) fn spinning(&self, context: &Context<'_>) -> Box<Fault> {
        self.first(context, FaultKind::Deadlock("every resident block spins on memory that nobody changes".to_owned()))
    }

    /// The fault of a block that runs on and on.
    pub(crate) fn endless(&self, context: &Context<'_>) -> Box<Fault> {
        self.first(context, FaultKind::Deadlock("the block does not end".to_owned()))
    }

    fn first(&self, context: &Context<'_>, kind: FaultKind) -> Box<Fault> {
        let waiting = self.warps.iter().find_map(|w| w.groups.first().map(|g| (w.index, g)));
        let (warp, lane, pc) = waiting.map_or((0, 0, 0), |(w, g)| (w, g.mask.trailing_zeros(), g.pc));
        Box::new(Fault {
            kind,
            kernel: context.program.name.clone(),
            line: context.program.code[pc as usize].line,
            block: self.id,
            thread: coordinates(warp * 32 + lane, context.launch.block),
            address: None,
        })
    }
}

fn pass(warp: &mut Warp, id: u32, barrier: &Barrier, context: &Context<'_>) {
    for index in 0..warp.groups.len() {
        let group = warp.groups[index];
        if group.state != State::Barrier(id) {
            continue;
        }
        if let Op::Barrier { kind: BarrierKind::Reduce { how, count, d, .. }, .. } =
            context.program.code[group.pc as usize].op
        {
            let v = match (how, count) {
                (_, true) => u64::from(barrier.votes),
                (Vote::Any, _) => u64::from(barrier.votes > 0),
                _ => u64::from(barrier.votes == barrier.arrived),
            };
            lanes(group.mask).for_each(|lane| warp.regs.put(d, lane, v));
            warp.regs.mark(d, group.mask);
        }
        warp.groups[index].state = State::Ready;
        warp.groups[index].pc += 1;
    }
}

/// `%tid` of a linear thread index.
pub(crate) fn coordinates(thread: u32, block: [u32; 3]) -> [u32; 3] {
    [thread % block[0], thread / block[0] % block[1], thread / (block[0] * block[1])]
}

fn special_value(special: Special, context: &Context<'_>, id: [u32; 3], warp: u32, lane: u32, warps: u32) -> u64 {
    u64::from(match special {
        Special::Variable(index) => return context.variables[index as usize],
        Special::Tid(axis) => coordinates(warp * 32 + lane, context.launch.block)[usize::from(axis)],
        Special::Ntid(axis) => context.launch.block[usize::from(axis)],
        Special::Ctaid(axis) => id[usize::from(axis)],
        Special::Nctaid(axis) => context.launch.grid[usize::from(axis)],
        Special::LaneId => lane,
        Special::WarpId => warp,
        Special::WarpCount => warps,
        Special::LaneMask { below, equal, above } => {
            let at = 1u32 << lane;
            let part = |wanted: bool, mask: u32| if wanted { mask } else { 0 };
            part(below, at - 1) | part(equal, at) | part(above, !(at | (at - 1)))
        }
        Special::DynamicShared => context.launch.shared,
    })
}
