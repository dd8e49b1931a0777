//! A program on a GPU, or the body of a loop: its memory, its commands with addresses, and how they are given to the device.

use super::device::{Block, Surroundings};
use super::driver::{Address, Driver, DriverError, Event, Module, Shape};
use super::order::{self, Order};
use crate::kernels::gpu::{Communication, Launch, Launches, Leaf};
use crate::runtime::device::{DeviceError, LoadError};
use intwain_codegen::schedule::gpu::{Argument, ExchangeArgument};
use intwain_ir::Type;
use intwain_passes::listing::Stream;
use intwain_passes::program::{Action, BufferId, Command, DeviceProgram, Home, Loop};
use std::collections::BTreeMap;

/// A program, or the body of a loop, with addresses.
pub(super) struct Routine {
    pub(super) program: DeviceProgram,
    persistent: Block,
    arena: Block,
    /// Tensors that are written into the program.
    constants: Vec<Block>,
    prepare: Vec<Task>,
    step: Vec<Task>,
    /// The order of the commands of `step` among streams. Those of `prepare` are on one.
    order: Vec<Order>,
    /// Streams of `step` besides the one for computation.
    others: Vec<Stream>,
}

/// What a command makes the device do.
enum Task {
    /// Runs kernels.
    Launch(Vec<Ready>),
    /// Copies a tensor that is written into the program.
    Constant(Address),
    /// Repeats a body.
    Repeat(Box<Loop>, Box<Routine>),
}

/// A launch with its addresses.
struct Ready {
    kernel: usize,
    shape: Shape,
    args: Vec<Address>,
}

impl Ready {
    fn new<A>(launch: &Launch<A>, address: impl Fn(&A) -> Address) -> Ready {
        let shape = Shape { grid: launch.grid, block: launch.block, shared: launch.shared };
        Ready { kernel: launch.kernel, shape, args: launch.args.iter().map(address).collect() }
    }
}

/// Code that belongs to commands, in their order.
struct Own<'a> {
    leaves: std::slice::Iter<'a, Leaf>,
    bodies: std::slice::Iter<'a, Launches>,
    communications: std::slice::Iter<'a, Communication>,
}

/// What the commands of a device use.
#[derive(Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) driver: &'a dyn Driver,
    pub(super) module: &'a dyn Module,
}

/// Puts a command's layer on what a driver says.
fn at(command: &Command) -> impl Fn(DriverError) -> DeviceError {
    |problem| DeviceError::Gpu { layer: command.origin.to_string(), problem }
}

/// The same for copies from and to the host.
pub(super) fn copying(what: &'static str) -> impl Fn(DriverError) -> DeviceError {
    move |problem| DeviceError::Gpu { layer: what.to_string(), problem }
}

impl Routine {
    pub(super) fn new(
        program: DeviceProgram,
        launches: &Launches,
        around: &Surroundings<'_>,
    ) -> Result<Routine, LoadError> {
        let persistent = Block::new(around.driver, program.persistent_bytes)?;
        let arena = Block::new(around.driver, program.arena_bytes)?;
        let (prepare, step) = (Vec::new(), Vec::new());
        let mut routine = Routine {
            program,
            persistent,
            arena,
            constants: Vec::new(),
            prepare,
            step,
            order: Vec::new(),
            others: Vec::new(),
        };
        let mut own = Own {
            leaves: launches.leaves.iter(),
            bodies: launches.bodies.iter(),
            communications: launches.communications.iter(),
        };
        let (prepare, step) = (routine.program.prepare.clone(), routine.program.step.clone());
        let mut tasks = |commands: &[Command]| -> Result<Vec<Task>, LoadError> {
            commands.iter().map(|c| routine.task(c, launches, &mut own, around)).collect()
        };
        let (prepare, step) = (tasks(&prepare)?, tasks(&step)?);
        (routine.prepare, routine.step) = (prepare, step);
        routine.order = order::order(&routine.program, &routine.program.step);
        routine.others = order::others(&routine.program.step);
        Ok(routine)
    }

    fn task(
        &mut self,
        c: &Command,
        launches: &Launches,
        own: &mut Own<'_>,
        around: &Surroundings<'_>,
    ) -> Result<Task, LoadError> {
        match &c.action {
            Action::Kernel(k) => Ok(self.launches(&launches.kernels[*k], c, around)),
            Action::Leaf(_) => match own.leaves.next().expect("code is made for every leaf") {
                Leaf::Launch(made) => Ok(self.launches(made, c, around)),
                Leaf::Constant(value) => {
                    let block = Block::new(around.driver, value.data.len())?;
                    around.driver.write(block.at, &value.data)?;
                    let at = block.at;
                    self.constants.push(block);
                    Ok(Task::Constant(at))
                }
            },
            Action::Communicate(_) => {
                let made = own.communications.next().expect("code is made for every communication");
                let mailbox = |of: &BTreeMap<usize, Address>, at: usize| {
                    of.get(&made.channel).expect("both devices have mailboxes for a channel").after(at)
                };
                let address = |a: &ExchangeArgument| match *a {
                    ExchangeArgument::Operand(i) => self.address(c.reads[i]),
                    ExchangeArgument::Result(i) => self.address(c.writes[i]),
                    ExchangeArgument::Mailbox(at) => mailbox(&around.mailboxes, at),
                    ExchangeArgument::PeerMailbox(at) => mailbox(around.peer, at),
                };
                Ok(Task::Launch(made.launch.iter().map(|l| Ready::new(l, address)).collect()))
            }
            Action::Loop(l) => {
                let code = own.bodies.next().expect("code is made for every loop");
                let body = Routine::new(l.body.clone(), code, around)?;
                Ok(Task::Repeat(l.clone(), Box::new(body)))
            }
        }
    }

    fn launches(&self, made: &[Launch], c: &Command, around: &Surroundings<'_>) -> Task {
        let address = |a: &Argument| match *a {
            Argument::Operand(i) => self.address(c.reads[i]),
            Argument::Result(i) => self.address(c.writes[i]),
            Argument::Workspace(at) => around.workspace.after(at),
        };
        Task::Launch(made.iter().map(|l| Ready::new(l, address)).collect())
    }

    pub(super) fn bytes(&self) -> usize {
        let bodies = self.prepare.iter().chain(&self.step).map(|t| match t {
            Task::Repeat(_, body) => body.bytes(),
            Task::Launch(_) | Task::Constant(_) => 0,
        });
        let constants = self.constants.iter().map(|c| c.bytes).sum::<usize>();
        self.persistent.bytes + self.arena.bytes + constants + bodies.sum::<usize>()
    }

    pub(super) fn address(&self, id: BufferId) -> Address {
        let b = &self.program.buffers[id.0 as usize];
        match b.home {
            Home::Persistent | Home::State => self.persistent.at.after(b.offset),
            Home::Arena => self.arena.at.after(b.offset),
        }
    }

    pub(super) fn ty(&self, id: BufferId) -> &Type {
        &self.program.buffers[id.0 as usize].ty
    }

    /// Runs what depends on weights only, and that of the bodies of loops: of one that runs now before it runs, of the
    /// others once everything is there.
    pub(super) fn prepare(&self, cx: Context<'_>) -> Result<(), DeviceError> {
        for (c, task) in self.program.prepare.iter().zip(&self.prepare) {
            self.prepare_body(c, task, cx)?;
            self.perform(c, task, cx)?;
        }
        self.program.step.iter().zip(&self.step).try_for_each(|(c, task)| self.prepare_body(c, task, cx))
    }

    /// Gives the body of a loop the tensors that every step sees and that are known when weights load, and lets it make
    /// what follows from them.
    fn prepare_body(&self, c: &Command, task: &Task, cx: Context<'_>) -> Result<(), DeviceError> {
        let Task::Repeat(l, body) = task else { return Ok(()) };
        for (read, param) in c.reads.iter().zip(&l.params).skip(l.states + l.sequences) {
            if self.program.buffers[read.0 as usize].home == Home::Persistent {
                let bytes = self.ty(*read).bytes();
                cx.driver.copy(c.stream, self.address(*read), body.address(*param), bytes).map_err(at(c))?;
            }
        }
        body.prepare(cx)
    }

    /// Runs the commands of a step, each on its stream. Streams fork from the one for computation and join it again.
    pub(super) fn step(&self, cx: Context<'_>) -> Result<(), DeviceError> {
        let fork = copying("streams");
        if !self.others.is_empty() {
            let begin = cx.driver.record(Stream::Compute).map_err(&fork)?;
            self.others.iter().try_for_each(|s| begin.wait(*s)).map_err(&fork)?;
        }
        let mut done: BTreeMap<usize, Box<dyn Event>> = BTreeMap::new();
        for (i, (c, task)) in self.program.step.iter().zip(&self.step).enumerate() {
            let order = &self.order[i];
            for earlier in &order.waits {
                let event = done.get(earlier).expect("commands wait for earlier ones that signal");
                event.wait(c.stream).map_err(at(c))?;
            }
            self.perform(c, task, cx)?;
            if order.signals {
                done.insert(i, cx.driver.record(c.stream).map_err(at(c))?);
            }
        }
        for s in &self.others {
            let end = cx.driver.record(*s).map_err(&fork)?;
            end.wait(Stream::Compute).map_err(&fork)?;
        }
        Ok(())
    }

    fn perform(&self, c: &Command, task: &Task, cx: Context<'_>) -> Result<(), DeviceError> {
        match task {
            Task::Launch(launches) => {
                let mut launches = launches.iter();
                launches.try_for_each(|l| cx.module.launch(c.stream, l.kernel, l.shape, &l.args)).map_err(at(c))
            }
            Task::Constant(from) => {
                let (to, bytes) = (self.address(c.writes[0]), self.ty(c.writes[0]).bytes());
                cx.driver.copy(c.stream, *from, to, bytes).map_err(at(c))
            }
            Task::Repeat(l, body) => self.repeat(l, body, c, cx),
        }
    }

    /// Runs the steps of a loop: states and the positions of the sequences go into the body's buffers, new states and
    /// stacked results come out of them.
    fn repeat(&self, l: &Loop, body: &Routine, c: &Command, cx: Context<'_>) -> Result<(), DeviceError> {
        let first_whole = l.states + l.sequences;
        let copy =
            |from: Address, to: Address, ty: &Type| cx.driver.copy(c.stream, from, to, ty.bytes()).map_err(at(c));
        let enter = |i: usize, from: Address| copy(from, body.address(l.params[i]), body.ty(l.params[i]));
        let leave = |i: usize, to: Address| {
            let from = body.program.outputs[i].buffer;
            copy(body.address(from), to, body.ty(from))
        };
        if l.count == 0 {
            return (0..l.states)
                .try_for_each(|i| copy(self.address(c.reads[i]), self.address(c.writes[i]), self.ty(c.reads[i])));
        }
        for i in (0..l.states).chain(first_whole..l.params.len()) {
            enter(i, self.address(c.reads[i]))?;
        }
        for step in 0..l.count {
            for i in l.states..first_whole {
                enter(i, self.address(c.reads[i]).after(step * body.ty(l.params[i]).bytes()))?;
            }
            body.step(cx)?;
            for i in l.states..c.writes.len() {
                let bytes = body.ty(body.program.outputs[i].buffer).bytes();
                leave(i, self.address(c.writes[i]).after(step * bytes))?;
            }
            // New states may be the old ones of other states, so all leave before any enters.
            (0..l.states).try_for_each(|i| leave(i, self.address(c.writes[i])))?;
            if step + 1 < l.count {
                (0..l.states).try_for_each(|i| enter(i, self.address(c.writes[i])))?;
            }
        }
        Ok(())
    }
}
