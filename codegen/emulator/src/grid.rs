//! Runs the blocks of a grid: in turns where they may wait for each other, else one after another or in parallel.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::block::{Block, Turn};
use crate::device::{Arg, Launch, Schedule};
use crate::error::LaunchError;
use crate::known::Known;
use crate::lower::Program;
use crate::memory::AddressSpace;
use crate::race::Agent;
use crate::stats::{Stats, Tally};
use crate::view::View;

/// What all blocks of a launch share.
pub(crate) struct Context<'a> {
    pub(crate) program: &'a Program,
    pub(crate) launch: Launch,
    pub(crate) params: Vec<u8>,
    /// Addresses of the module's variables.
    pub(crate) variables: Vec<u64>,
    pub(crate) schedule: Schedule,
    pub(crate) device: u32,
    pub(crate) resident: usize,
    pub(crate) patience: Duration,
    pub(crate) cancel: &'a AtomicBool,
    /// Counts turns that do not only wait, of all devices.
    pub(crate) beats: &'a AtomicU64,
    pub(crate) races: Option<Races<'a>>,
}

/// The race check of global memory during a launch.
pub(crate) struct Races<'a> {
    space: &'a AddressSpace,
    /// The number of the launch's first warp.
    pub(crate) launch: u64,
    /// What every warp knows at its start.
    pub(crate) start: Arc<Known>,
    /// What those that have ended knew.
    learned: Mutex<Known>,
}

impl<'a> Races<'a> {
    pub(crate) fn new(space: &'a AddressSpace, device: u32, mut known: Known) -> Races<'a> {
        let launch = space.begin(device, &mut known);
        Races { space, launch, start: Arc::new(known), learned: Mutex::default() }
    }

    /// Numbers the warps of a block.
    pub(crate) fn number(&self, device: u32, warps: u64) -> Agent {
        Agent::new(device, self.space.number(device, warps))
    }

    /// Keeps what a block knew at its end.
    fn learn(&self, block: &Block) {
        for known in block.learned().filter(|k| !Arc::ptr_eq(k, &self.start)) {
            self.learned.lock().unwrap_or_else(PoisonError::into_inner).join(known);
        }
    }

    /// What later launches of the device know.
    pub(crate) fn end(self) -> Known {
        let mut known = self.learned.into_inner().unwrap_or_else(PoisonError::into_inner);
        known.join(&self.start);
        known
    }
}

impl Context<'_> {
    fn blocks(&self) -> u64 {
        self.launch.grid.iter().map(|&n| u64::from(n)).product()
    }

    /// A block, made from one that has ended if there is one.
    fn block(&self, index: u64, spare: Option<Block>) -> Block {
        let [x, y, _] = self.launch.grid.map(u64::from);
        let id = [(index % x) as u32, (index / x % y) as u32, (index / (x * y)) as u32];
        match spare {
            Some(mut block) => {
                block.reset(self, id);
                block
            }
            None => Block::new(self, id),
        }
    }

    fn finish(&self, tally: Tally) -> Stats {
        tally.finish(self.program.code.iter().map(|i| &i.op))
    }
}

/// Runs all blocks in this thread.
pub(crate) fn run(context: &Context<'_>, space: &AddressSpace) -> Result<Stats, LaunchError> {
    let (mut view, mut tally) = (space.view(), Tally::new(&context.program.code));
    if context.program.independent {
        let mut spare = None;
        for index in 0..context.blocks() {
            run_block(context, index, &mut spare, &mut view, &mut tally)?;
        }
    } else {
        take_turns(context, &mut view, &mut tally)?;
    }
    Ok(context.finish(tally))
}

/// Runs a block that waits for nobody else.
fn run_block(
    context: &Context<'_>,
    index: u64,
    spare: &mut Option<Block>,
    view: &mut View,
    tally: &mut Tally,
) -> Result<(), LaunchError> {
    let (mut block, mut begun) = (context.block(index, spare.take()), None);
    while block.turn(context, view, tally)? != Turn::Done {
        context.beats.fetch_add(1, Ordering::Relaxed);
        // Without a flag it can only wait for one that was meant to be one.
        if begun.get_or_insert_with(Instant::now).elapsed() > context.patience {
            return Err(block.endless(context).into());
        }
    }
    context.beats.fetch_add(1, Ordering::Relaxed);
    context.races.iter().for_each(|r| r.learn(&block));
    *spare = Some(block);
    Ok(())
}

/// Runs blocks that communicate: every resident one has its turn in a fixed order.
fn take_turns(context: &Context<'_>, view: &mut View, tally: &mut Tally) -> Result<(), LaunchError> {
    let total = context.blocks();
    let (mut started, mut resident, mut spare) = (0u64, VecDeque::<Block>::new(), None);
    let mut idle_since: Option<(u64, Instant)> = None;
    while started < total || !resident.is_empty() {
        // A round: a new block if there is room, then a turn for everybody.
        if started < total && resident.len() < context.resident {
            resident.push_front(context.block(started, spare.take()));
            started += 1;
        }
        let mut idle = true;
        for _ in 0..resident.len() {
            let Some(mut block) = resident.pop_front() else { break };
            match block.turn(context, view, tally)? {
                Turn::Done => {
                    idle = false;
                    context.races.iter().for_each(|r| r.learn(&block));
                    spare = Some(block);
                    // Others that did not need to wait keep the pool small: start the next block at once.
                    if started < total {
                        break;
                    }
                }
                Turn::Slice => {
                    idle = false;
                    resident.push_back(block);
                }
                Turn::Spin => resident.push_back(block),
            }
        }
        if !idle || started < total && resident.len() < context.resident {
            context.beats.fetch_add(1, Ordering::Relaxed);
            idle_since = None;
            continue;
        }
        std::thread::yield_now();
        let beats = context.beats.load(Ordering::Relaxed);
        // Another device that goes on may yet set the flag.
        idle_since = idle_since.filter(|since| since.0 == beats);
        let since = idle_since.get_or_insert_with(|| (beats, Instant::now()));
        if since.1.elapsed() > context.patience {
            let block = resident.front().expect("an idle round has a resident block");
            return Err(block.spinning(context).into());
        }
    }
    Ok(())
}

/// Runs independent blocks in several threads. A fault is that of the first faulty block in order of the grid, as if
/// they ran one after another: blocks before it are still finished, blocks after it no longer begun.
pub(crate) fn run_parallel(context: &Context<'_>, space: &AddressSpace, workers: usize) -> Result<Stats, LaunchError> {
    let (total, next) = (context.blocks(), AtomicU64::new(0));
    let first_fault: Mutex<Option<(u64, LaunchError)>> = Mutex::new(None);
    let faulty = AtomicU64::new(u64::MAX);
    let work = || {
        let (mut view, mut tally, mut spare) = (space.view(), Tally::new(&context.program.code), None);
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            if index >= total || index > faulty.load(Ordering::Acquire) {
                return tally;
            }
            if let Err(error) = run_block(context, index, &mut spare, &mut view, &mut tally) {
                let mut first = first_fault.lock().unwrap_or_else(PoisonError::into_inner);
                if first.as_ref().is_none_or(|f| index < f.0) {
                    *first = Some((index, error));
                    faulty.store(index, Ordering::Release);
                }
            }
        }
    };
    let tallies: Vec<Tally> = std::thread::scope(|scope| {
        let others: Vec<_> = (1..workers).map(|_| scope.spawn(work)).collect();
        let own = work();
        std::iter::once(own)
            .chain(others.into_iter().map(|t| t.join().expect("an interpreter does not panic")))
            .collect()
    });
    if let Some((_, error)) = first_fault.into_inner().unwrap_or_else(PoisonError::into_inner) {
        return Err(error);
    }
    let mut all = Tally::new(&context.program.code);
    tallies.into_iter().for_each(|t| all.merge(t));
    Ok(context.finish(all))
}

/// Checks a launch against the kernel's and the hardware's limits.
pub(crate) fn check_shape(program: &Program, launch: Launch) -> Result<(), LaunchError> {
    let wrong = |reason: String| Err(LaunchError::Shape { kernel: program.name.clone(), reason });
    let product = |extents: [u32; 3]| extents.iter().fold(1u64, |n, &e| n.saturating_mul(e.into()));
    let threads = product(launch.block);
    let [x, y, z] = launch.grid;
    if launch.block.contains(&0) || threads > 1024 || launch.block[2] > 64 {
        return wrong(format!("a block of {:?} threads; 1 to 1024 are possible, z up to 64", launch.block));
    }
    if x == 0 || y == 0 || z == 0 || x > i32::MAX as u32 || y > 65535 || z > 65535 {
        return wrong(format!("a grid of {:?} blocks; x may be 1 to 2147483647, y and z 1 to 65535", launch.grid));
    }
    if let Some(exact) = program.exact_threads.filter(|&e| e != launch.block) {
        return wrong(format!("blocks of {:?} threads where .reqntid asks for {exact:?}", launch.block));
    }
    if let Some(most) = program.max_threads.map(product).filter(|&most| threads > most) {
        return wrong(format!("{threads} threads a block where .maxntid allows {most}"));
    }
    let shared = program.shared_bytes + u64::from(launch.shared);
    if shared > 227 << 10 {
        return wrong(format!("{shared} bytes of shared memory; 232448 is the most that any target has"));
    }
    Ok(())
}

/// The parameter block.
pub(crate) fn arguments(program: &Program, args: &[Arg]) -> Result<Vec<u8>, LaunchError> {
    let wrong = |wanted: String, found: String| LaunchError::Arguments { kernel: program.name.clone(), wanted, found };
    if args.len() != program.params.len() {
        return Err(wrong(format!("{} arguments", program.params.len()), args.len().to_string()));
    }
    let mut block = vec![0; program.param_bytes as usize];
    for (index, (arg, param)) in args.iter().zip(&program.params).enumerate() {
        let bytes = arg.bytes();
        if bytes.len() as u64 != param.bytes {
            return Err(wrong(format!("{} bytes as argument {index}", param.bytes), format!("{} bytes", bytes.len())));
        }
        block[param.offset as usize..][..bytes.len()].copy_from_slice(&bytes);
    }
    Ok(block)
}
