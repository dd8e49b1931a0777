//! One GPU of a program: its memory, its module and its commands.

use super::driver::{Address, Driver, DriverError, Event, Module, Shape};
use super::order::{self, Order};
use crate::kernels::gpu::{Communication, GpuCode, Launch, Launches};
use crate::runtime::collective::Part;
use crate::runtime::device::{Device, DeviceError, LoadError};
use crate::runtime::links::Links;
use intwain_codegen::schedule::gpu::{Argument, ExchangeArgument, FLAG_BYTES};
use intwain_ir::ops::Op;
use intwain_ir::{Tensor, Type, interp};
use intwain_passes::listing::Stream;
use intwain_passes::program::{Action, BufferId, Command, DeviceProgram, Home, Loop};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A device's program with memory and code.
pub(super) struct GpuDevice {
    driver: Arc<dyn Driver>,
    module: Box<dyn Module>,
    workspace: Block,
    mailboxes: Mailboxes,
    main: Routine,
}

/// What a device keeps for each channel: the memory into which the other sends.
pub(super) struct Mailboxes(BTreeMap<usize, Block>);

impl Mailboxes {
    /// Allocates what the code of a device's program asks for.
    pub(super) fn new(driver: &Arc<dyn Driver>, code: &GpuCode) -> Result<Mailboxes, DriverError> {
        let used = code.launches.communications.iter().filter(|c| c.mailbox > 0);
        let boxes = used.map(|c| Ok((c.channel, Block::new(driver, c.mailbox)?)));
        let mailboxes = Mailboxes(boxes.collect::<Result<_, DriverError>>()?);
        mailboxes.clear()?;
        Ok(mailboxes)
    }

    /// Says that nothing was sent yet.
    fn clear(&self) -> Result<(), DriverError> {
        self.0.values().try_for_each(|b| b.driver.clear(b.at, b.bytes.min(FLAG_BYTES)))
    }

    /// The addresses, for the device itself and for its peer.
    pub(super) fn addresses(&self) -> BTreeMap<usize, Address> {
        self.0.iter().map(|(channel, b)| (*channel, b.at)).collect()
    }

    fn bytes(&self) -> usize {
        self.0.values().map(|b| b.bytes).sum()
    }
}

/// Where the launches of a device find what is not in its program's buffers.
struct Surroundings<'a> {
    driver: &'a Arc<dyn Driver>,
    workspace: Address,
    mailboxes: BTreeMap<usize, Address>,
    peer: &'a BTreeMap<usize, Address>,
}

/// Memory of a device, freed with it.
struct Block {
    driver: Arc<dyn Driver>,
    at: Address,
    bytes: usize,
}

impl Block {
    fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Block, DriverError> {
        Ok(Block { driver: driver.clone(), at: driver.allocate(bytes)?, bytes })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.driver.free(self.at);
    }
}

/// A program, or the body of a loop, with addresses.
struct Routine {
    program: DeviceProgram,
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
    /// Lets the host compute.
    Host(Op),
    /// Repeats a body.
    Repeat(Loop, Box<Routine>),
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
    bodies: std::slice::Iter<'a, Launches>,
    communications: std::slice::Iter<'a, Communication>,
}

/// What the commands of a device use.
#[derive(Clone, Copy)]
struct Context<'a> {
    driver: &'a dyn Driver,
    module: &'a dyn Module,
}

impl GpuDevice {
    /// Loads code, allocates memory and resolves addresses; `peer` is where the mailboxes of the other device are.
    pub(super) fn new(
        program: DeviceProgram,
        driver: Arc<dyn Driver>,
        code: &GpuCode,
        mailboxes: Mailboxes,
        peer: &BTreeMap<usize, Address>,
    ) -> Result<GpuDevice, LoadError> {
        let module = driver.load(&code.text, &code.kernels)?;
        let workspace = Block::new(&driver, code.workspace)?;
        let around = Surroundings { driver: &driver, workspace: workspace.at, mailboxes: mailboxes.addresses(), peer };
        let main = Routine::new(program, &code.launches, &around)?;
        Ok(GpuDevice { driver, module, workspace, mailboxes, main })
    }

    fn context(&self) -> Context<'_> {
        Context { driver: &*self.driver, module: &*self.module }
    }
}

/// Puts a command's layer on what a driver says.
fn at(command: &Command) -> impl Fn(DriverError) -> DeviceError {
    |problem| DeviceError::Gpu { layer: command.origin.to_string(), problem }
}

/// The same for copies from and to the host.
fn copying(what: &'static str) -> impl Fn(DriverError) -> DeviceError {
    move |problem| DeviceError::Gpu { layer: what.to_string(), problem }
}

impl Device for GpuDevice {
    fn bytes(&self) -> usize {
        self.workspace.bytes + self.mailboxes.bytes() + self.main.bytes()
    }

    unsafe fn put(&mut self, id: BufferId, part: Option<&Part>, from: *const u8) -> Result<(), DeviceError> {
        let bytes = self.main.ty(id).bytes();
        let to = self.main.address(id);
        let written = match part {
            Some(part) => {
                let mut dense = vec![0u8; bytes];
                // SAFETY: by the caller's promise; there is room for the part.
                unsafe { part.read(from, dense.as_mut_ptr()) };
                self.driver.write(to, &dense)
            }
            // SAFETY: by the caller's promise.
            None => self.driver.write(to, unsafe { std::slice::from_raw_parts(from, bytes) }),
        };
        written.map_err(copying("inputs and weights"))
    }

    unsafe fn take(&mut self, id: BufferId, part: Option<&Part>, to: *mut u8) -> Result<(), DeviceError> {
        let mut dense = vec![0u8; self.main.ty(id).bytes()];
        self.driver.read(self.main.address(id), &mut dense).map_err(copying("outputs"))?;
        match part {
            // SAFETY: by the caller's promise; `dense` is the part.
            Some(part) => unsafe { part.write(dense.as_ptr(), to) },
            // SAFETY: by the caller's promise.
            None => unsafe { to.copy_from_nonoverlapping(dense.as_ptr(), dense.len()) },
        }
        Ok(())
    }

    fn prepare(&mut self, _: &Links) -> Result<(), DeviceError> {
        let cx = self.context();
        self.main.prepare(cx)
    }

    fn step(&mut self, _: &Links) -> Result<(), DeviceError> {
        let cx = self.context();
        let main = &self.main;
        main.step(cx)?;
        for (state, next) in &main.program.states {
            if let Some(next) = next {
                let (from, to) = (main.address(*next), main.address(state.buffer));
                if from != to {
                    let copied = self.driver.copy(Stream::Compute, from, to, main.ty(*next).bytes());
                    copied.map_err(|problem| DeviceError::Gpu { layer: state.name.to_string(), problem })?;
                }
            }
        }
        Ok(())
    }

    fn reset(&mut self) -> Result<(), DeviceError> {
        self.driver.resume();
        let cleared = self.driver.synchronise().and_then(|()| self.mailboxes.clear());
        cleared.map_err(copying("mailboxes"))
    }
}

impl Routine {
    fn new(program: DeviceProgram, launches: &Launches, around: &Surroundings<'_>) -> Result<Routine, LoadError> {
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
        let mut own = Own { bodies: launches.bodies.iter(), communications: launches.communications.iter() };
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
            Action::Kernel(k) => {
                let address = |a: &Argument| match *a {
                    Argument::Operand(i) => self.address(c.reads[i]),
                    Argument::Result(i) => self.address(c.writes[i]),
                    Argument::Workspace(at) => around.workspace.after(at),
                };
                Ok(Task::Launch(launches.kernels[*k].iter().map(|l| Ready::new(l, address)).collect()))
            }
            Action::Leaf(op) => self.leaf(op, c, around.driver),
            Action::Communicate(_) => {
                let made = own.communications.next().expect("code is made for every communication");
                let mailbox = |of: &BTreeMap<usize, Address>, at: usize| {
                    of.get(&made.channel).expect("both devices have mailboxes for a channel").after(at)
                };
                let address = |a: &ExchangeArgument| match *a {
                    ExchangeArgument::Operand => self.address(c.reads[0]),
                    ExchangeArgument::Result => self.address(c.writes[0]),
                    ExchangeArgument::Mailbox(at) => mailbox(&around.mailboxes, at),
                    ExchangeArgument::PeerMailbox(at) => mailbox(around.peer, at),
                };
                Ok(Task::Launch(made.launch.iter().map(|l| Ready::new(l, address)).collect()))
            }
            Action::Loop(l) => {
                let code = own.bodies.next().expect("code is made for every loop");
                let body = Routine::new(l.body.clone(), code, around)?;
                Ok(Task::Repeat((**l).clone(), Box::new(body)))
            }
        }
    }

    /// A leaf without operands is evaluated now.
    fn leaf(&mut self, op: &Op, c: &Command, driver: &Arc<dyn Driver>) -> Result<Task, LoadError> {
        if !matches!(op, Op::Constant(_)) {
            return Ok(Task::Host(op.clone()));
        }
        let ty = self.ty(c.writes[0]).clone();
        match op.eval(&[], &[ty], &mut interp::Alone) {
            Ok(values) => {
                let block = Block::new(driver, values[0].data.len())?;
                driver.write(block.at, &values[0].data)?;
                let at = block.at;
                self.constants.push(block);
                Ok(Task::Constant(at))
            }
            // Fails where it runs, with its layer.
            Err(_) => Ok(Task::Host(op.clone())),
        }
    }

    fn bytes(&self) -> usize {
        let bodies = self.prepare.iter().chain(&self.step).map(|t| match t {
            Task::Repeat(_, body) => body.bytes(),
            Task::Launch(_) | Task::Constant(_) | Task::Host(_) => 0,
        });
        let constants = self.constants.iter().map(|c| c.bytes).sum::<usize>();
        self.persistent.bytes + self.arena.bytes + constants + bodies.sum::<usize>()
    }

    fn address(&self, id: BufferId) -> Address {
        let b = &self.program.buffers[id.0 as usize];
        match b.home {
            Home::Persistent => self.persistent.at.after(b.offset),
            Home::Arena => self.arena.at.after(b.offset),
        }
    }

    fn ty(&self, id: BufferId) -> &Type {
        &self.program.buffers[id.0 as usize].ty
    }

    /// Runs what depends on weights only, and that of the bodies of loops: of one that runs now before it runs, of the
    /// others once everything is there.
    fn prepare(&self, cx: Context<'_>) -> Result<(), DeviceError> {
        for (c, task) in self.program.prepare.iter().zip(&self.prepare) {
            self.prepare_body(c, task, cx)?;
            self.perform(c, task, cx)?;
        }
        self.program.step.iter().zip(&self.step).try_for_each(|(c, task)| self.prepare_body(c, task, cx))
    }

    /// Gives the body of a loop the tensors that are known when weights load.
    fn prepare_body(&self, c: &Command, task: &Task, cx: Context<'_>) -> Result<(), DeviceError> {
        let Task::Repeat(l, body) = task else { return Ok(()) };
        for (read, param) in c.reads.iter().zip(&l.params) {
            if self.program.buffers[read.0 as usize].home == Home::Persistent {
                let bytes = self.ty(*read).bytes();
                cx.driver.copy(c.stream, self.address(*read), body.address(*param), bytes).map_err(at(c))?;
            }
        }
        body.prepare(cx)
    }

    /// Runs the commands of a step, each on its stream. Streams fork from the one for computation and join it again.
    fn step(&self, cx: Context<'_>) -> Result<(), DeviceError> {
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
            Task::Host(op) => self.host(op, c, cx),
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

    /// Lets the host perform a leaf operation.
    fn host(&self, op: &Op, c: &Command, cx: Context<'_>) -> Result<(), DeviceError> {
        let read = |b: &BufferId| -> Result<Tensor, DeviceError> {
            let mut t = Tensor::zeros(self.ty(*b).clone());
            cx.driver.read(self.address(*b), &mut t.data).map_err(at(c))?;
            Ok(t)
        };
        let operands: Vec<Tensor> = c.reads.iter().map(read).collect::<Result<_, _>>()?;
        let types: Vec<Type> = c.writes.iter().map(|b| self.ty(*b).clone()).collect();
        let results = op
            .eval(&operands.iter().collect::<Vec<_>>(), &types, &mut interp::Alone)
            .map_err(|problem| DeviceError::Leaf { layer: c.origin.to_string(), problem })?;
        let mut written = results.iter().zip(&c.writes);
        written.try_for_each(|(t, b)| cx.driver.write(self.address(*b), &t.data)).map_err(at(c))
    }
}
