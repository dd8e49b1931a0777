//! What warps know of the past of other blocks and devices, and how releases and acquires pass it on (PTX ISA 8.9).

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::op::{Order, Scope};
use crate::race::{Agent, DEVICES, Event};

/// What has reached a warp of the past of other blocks.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Known {
    /// Of each device, warps with smaller numbers are known entirely.
    floors: [u64; DEVICES],
    /// By the first warp of a block, the clocks of its warps.
    blocks: BTreeMap<Agent, Arc<[u32]>>,
}

impl Known {
    pub(crate) fn raise(&mut self, device: u32, floor: u64) {
        if let Some(own) = self.floors.get_mut(device as usize) {
            *own = floor.max(*own);
        }
    }

    fn learn(&mut self, block: Agent, clocks: &[u32]) {
        let old = self.blocks.get(&block).cloned();
        let clocks = match old {
            Some(old) => old.iter().zip(clocks).map(|(&a, &b)| a.max(b)).collect(),
            None => clocks.into(),
        };
        self.blocks.insert(block, clocks);
    }

    pub(crate) fn join(&mut self, other: &Known) {
        self.floors.iter_mut().zip(other.floors).for_each(|(a, b)| *a = b.max(*a));
        other.blocks.iter().for_each(|(&block, clocks)| self.learn(block, clocks));
        let floors = self.floors;
        self.blocks.retain(|first, clocks| first.number() + clocks.len() as u64 > floors[first.device()]);
    }

    /// All that several warps know.
    pub(crate) fn together(mut all: impl Iterator<Item = Arc<Known>>) -> Arc<Known> {
        let mut first = all.next().unwrap_or_default();
        for next in all.filter(|next| !Arc::ptr_eq(next, &first)).collect::<Vec<_>>() {
            if *next != *first {
                Arc::make_mut(&mut first).join(&next);
            }
        }
        first
    }

    pub(crate) fn includes(&self, event: Event) -> bool {
        let agent = event.agent();
        agent.number() < self.floors[agent.device()]
            || self.blocks.range(..=agent).next_back().is_some_and(|(first, clocks)| {
                let clock = clocks.get(agent.after(*first) as usize);
                first.device() == agent.device() && clock.is_some_and(|&c| event.clock() <= c)
            })
    }
}

/// What another warp gets that acquires from where a warp has released.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    scope: Scope,
    block: Agent,
    known: Arc<Known>,
}

/// A warp as the race check sees it.
#[derive(Debug, Clone)]
pub(crate) struct Observer {
    /// The first warp of its block.
    pub(crate) block: Agent,
    pub(crate) index: u32,
    /// The first warp of its launch.
    pub(crate) launch: u64,
    pub(crate) known: Arc<Known>,
    /// What stores after a fence pass on.
    fenced: Option<Message>,
    /// What relaxed loads saw, for a fence to acquire.
    seen: Vec<Message>,
}

impl Observer {
    pub(crate) fn new(block: Agent, index: u32, launch: u64, known: Arc<Known>) -> Observer {
        Observer { block, index, launch, known, fenced: None, seen: Vec::new() }
    }

    pub(crate) fn agent(&self) -> Agent {
        self.block.next(self.index)
    }

    /// Whether scopes of an access there and one here reach each other.
    fn reaches(&self, message: &Message, scope: Scope) -> bool {
        let narrower = match (message.scope, scope) {
            (Scope::Sys, Scope::Sys) => return true,
            (Scope::Cta, _) | (_, Scope::Cta) => Scope::Cta,
            _ => Scope::Gpu,
        };
        message.block == self.block || narrower == Scope::Gpu && message.block.device() == self.block.device()
    }

    /// What a release passes on; the warp's clock must tick after it.
    fn message(&self, scope: Scope, clocks: &[u32]) -> Message {
        let mut known = (*self.known).clone();
        known.learn(self.block, clocks);
        Message { scope, block: self.block, known: Arc::new(known) }
    }

    /// What a store with this order and scope passes on; nothing if it orders nothing.
    pub(crate) fn passes(&self, order: Order, scope: Scope, clocks: &[u32]) -> Option<Message> {
        match order {
            Order::Release | Order::AcqRel => Some(self.message(scope, clocks)),
            Order::Relaxed | Order::Acquire => {
                let fenced = self.fenced.clone()?;
                Some(Message { scope: narrower(fenced.scope, scope), ..fenced })
            }
            Order::Weak => None,
        }
    }

    /// Takes what a load with this order and scope has met.
    pub(crate) fn meets(&mut self, message: Message, order: Order, scope: Scope) {
        match order {
            Order::Acquire | Order::AcqRel if self.reaches(&message, scope) => self.hear(&message.known),
            Order::Relaxed | Order::Release => {
                self.seen.push(Message { scope: narrower(message.scope, scope), ..message })
            }
            Order::Acquire | Order::AcqRel | Order::Weak => {}
        }
    }

    /// A fence acquires what relaxed loads saw and is what relaxed stores release.
    pub(crate) fn fence(&mut self, scope: Scope, clocks: &[u32]) {
        for message in std::mem::take(&mut self.seen) {
            if self.reaches(&message, scope) {
                self.hear(&message.known);
            }
        }
        self.fenced = Some(self.message(scope, clocks));
    }

    pub(crate) fn hear(&mut self, known: &Arc<Known>) {
        if !Arc::ptr_eq(&self.known, known) && *self.known != **known {
            Arc::make_mut(&mut self.known).join(known);
        }
    }
}

impl Message {
    /// Adds what was there before: a read-modify-write continues a release sequence.
    pub(crate) fn continues(mut self, older: Option<&Message>) -> Message {
        if let Some(older) = older {
            Arc::make_mut(&mut self.known).join(&older.known);
        }
        self
    }
}

fn narrower(a: Scope, b: Scope) -> Scope {
    match (a, b) {
        (Scope::Cta, _) | (_, Scope::Cta) => Scope::Cta,
        (Scope::Gpu, _) | (_, Scope::Gpu) => Scope::Gpu,
        (Scope::Sys, Scope::Sys) => Scope::Sys,
    }
}
