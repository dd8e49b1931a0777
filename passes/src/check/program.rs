//! Proves of the programs of all devices that they never wait for each other in a circle, that ends of a communication
//! agree, and that every command reads what was written for it: no byte is overwritten before its last reader.

use super::deadlock::{self, ListingFault};
use crate::listing::{Action as Step, Command as Listed, Listing, Message, Span, Stream};
use crate::program::{Action, BufferId, Command, DeviceProgram, Home};
use intwain_ir::compute::{Axis, Compute, Expr, Index, Order};
use intwain_ir::ops::Op;
use intwain_ir::{Shape, Type};
use std::collections::BTreeMap;

/// What is wrong with a set of programs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramFault {
    /// Commands wait for each other, or ends disagree.
    #[error(transparent)]
    Order(#[from] ListingFault),
    /// A command reads bytes that are not, or no longer, what was written for it.
    #[error("device {device}: {command} reads buffer {buffer}, whose bytes {problem}")]
    Stale {
        /// The device.
        device: usize,
        /// The command.
        command: String,
        /// The buffer.
        buffer: u32,
        /// What is wrong with them.
        problem: String,
    },
    /// A command writes over what it reads, and not element by element.
    #[error("device {device}: {command} writes buffer {buffer} over what it reads elsewhere")]
    Overwrites {
        /// The device.
        device: usize,
        /// The command.
        command: String,
        /// The buffer.
        buffer: u32,
    },
    /// A buffer does not lie in its memory.
    #[error("device {device}: buffer {buffer} ends outside its memory")]
    Outside {
        /// The device.
        device: usize,
        /// The buffer.
        buffer: u32,
    },
}

/// Every fault; none if the programs run to their end on what they should.
pub fn check(programs: &[DeviceProgram]) -> Vec<ProgramFault> {
    let mut faults: Vec<ProgramFault> =
        deadlock::check(&listing(programs)).into_iter().map(ProgramFault::from).collect();
    for program in programs {
        faults.extend(outside(program));
        faults.extend(stale(program));
        faults.extend(overwrites(program));
        for command in program.prepare.iter().chain(&program.step) {
            if let Action::Loop(l) = &command.action {
                faults.extend(check(std::slice::from_ref(&l.body)));
            }
        }
    }
    faults
}

/// The step commands of all devices in the order of execution: a device runs one command after another.
pub fn listing(programs: &[DeviceProgram]) -> Listing {
    Listing { devices: programs.iter().map(list).collect(), rings: BTreeMap::new() }
}

fn list(program: &DeviceProgram) -> Vec<Listed> {
    let spans = |ids: &[BufferId]| ids.iter().map(|id| span(program, *id)).collect::<Vec<_>>();
    let listed = |command: &Command| Listed {
        reads: spans(&command.reads),
        writes: spans(&command.writes),
        ..Listed::new(label(command), Stream::Compute, step(program, command))
    };
    program.step.iter().map(listed).collect()
}

fn label(command: &Command) -> String {
    let what = match &command.action {
        Action::Kernel(_) => "kernel",
        Action::Loop(_) => "loop",
        Action::Leaf(op) | Action::Communicate(op) => op.name(),
    };
    match command.origin.path() {
        "" => what.to_owned(),
        layer => format!("{what} of {layer}"),
    }
}

/// Persistent memory lies behind the arena.
fn span(program: &DeviceProgram, id: BufferId) -> Span {
    let buffer = &program.buffers[id.0 as usize];
    let base = match buffer.home {
        Home::Arena => 0,
        Home::Persistent | Home::State => program.arena_bytes,
    };
    Span::fixed(program.device, base + buffer.offset, buffer.ty.bytes())
}

fn step(program: &DeviceProgram, command: &Command) -> Step {
    let Action::Communicate(op) = &command.action else { return Step::Work };
    let operand = command.reads.first().map(|id| &program.buffers[id.0 as usize].ty);
    match op {
        Op::Send(o) => Step::Send { channel: o.channel as u32, message: message("send".to_owned(), operand) },
        Op::Recv(o) => Step::Recv { channel: o.channel as u32, message: message("send".to_owned(), Some(&o.ty)) },
        Op::AllReduce(o) => {
            let kind = format!("all_reduce {} of {}", o.function.name(), o.devices);
            Step::Collective { channel: o.channel as u32, message: message(kind, operand) }
        }
        Op::AllGather(o) => {
            let kind = format!("all_gather {} {:?}", o.dim, o.sizes);
            let whole = operand.map(|ty| with(ty, o.dim, &o.sizes));
            Step::Collective { channel: o.channel as u32, message: message(kind, whole.as_ref()) }
        }
        Op::ReduceScatter(o) => {
            let kind = format!("reduce_scatter {} {} {:?}", o.function.name(), o.dim, o.sizes);
            Step::Collective { channel: o.channel as u32, message: message(kind, operand) }
        }
        Op::Bucket(o) => {
            let kept: Vec<String> = o.kept.iter().map(|k| format!("{k:?}")).collect();
            let types: Vec<&Type> = command.reads.iter().map(|id| &program.buffers[id.0 as usize].ty).collect();
            let shown: Vec<String> = types.iter().map(ToString::to_string).collect();
            let kind = format!("bucket {} of {}: {} {}", o.function.name(), o.devices, kept.join(" "), shown.join(" "));
            let bytes = types.iter().map(|ty| ty.bytes()).sum();
            let dtype = operand.map_or(intwain_ir::DType::Bool, |ty| ty.dtype);
            Step::Collective { channel: o.channel as u32, message: Message { kind, bytes, dtype } }
        }
        Op::AllToAll(o) => {
            let kind = format!("all_to_all {} {:?} {} {:?}", o.from, o.from_sizes, o.to, o.to_sizes);
            let whole = operand.map(|ty| with(ty, o.from, &o.from_sizes));
            Step::Collective { channel: o.channel as u32, message: message(kind, whole.as_ref()) }
        }
        _ => Step::Work,
    }
}

fn with(ty: &Type, dim: usize, sizes: &[usize]) -> Type {
    let shape: Shape = ty.shape.with(dim, sizes.iter().sum());
    ty.with_shape(shape)
}

fn message(kind: String, ty: Option<&Type>) -> Message {
    let (bytes, dtype) = ty.map_or((0, intwain_ir::DType::Bool), |ty| (ty.bytes(), ty.dtype));
    Message { kind, bytes, dtype }
}

fn outside(program: &DeviceProgram) -> impl Iterator<Item = ProgramFault> {
    let ends_outside = |buffer: &crate::program::Buffer| {
        let size = match buffer.home {
            Home::Arena => program.arena_bytes,
            Home::Persistent | Home::State => program.persistent_bytes,
        };
        buffer.offset.checked_add(buffer.ty.bytes()).is_none_or(|end| end > size)
    };
    let all = program.buffers.iter().enumerate();
    all.filter(move |(_, b)| ends_outside(b))
        .map(|(at, _)| ProgramFault::Outside { device: program.device, buffer: at as u32 })
}

/// Who wrote a byte last: nobody, the host or a prepare command before the step, or a step command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writer {
    Nobody,
    Before(BufferId),
    Step(usize, BufferId),
}

/// Walks the step and looks at what every read finds. A buffer that is written must be found as it was last written; a
/// view, which nothing writes, must be found as one write left it.
fn stale(program: &DeviceProgram) -> Vec<ProgramFault> {
    let mut memory = Bytes::new(program);
    let mut last: BTreeMap<BufferId, Writer> = BTreeMap::new();
    let before = [&program.inputs, &program.weights].into_iter().flatten().map(|b| b.buffer);
    let states = program.states.iter().map(|(b, _)| b.buffer);
    let prepared = program.prepare.iter().flat_map(|c| c.writes.iter().copied());
    for id in before.chain(states).chain(prepared) {
        memory.write(program, id, Writer::Before(id));
        last.insert(id, Writer::Before(id));
    }
    let mut faults = Vec::new();
    let mut read = |memory: &Bytes, last: &BTreeMap<BufferId, Writer>, id: BufferId, command: String| {
        let found = memory.read(program, id);
        let problem = match (found.as_slice(), last.get(&id)) {
            ([], _) => None,
            ([Writer::Nobody], _) => Some("were never written".to_owned()),
            ([one], Some(own)) => (one != own).then(|| "were overwritten".to_owned()),
            ([_], None) => None,
            (_, _) => Some("come from several writes".to_owned()),
        };
        if let Some(problem) = problem {
            faults.push(ProgramFault::Stale { device: program.device, command, buffer: id.0, problem });
        }
    };
    for (at, command) in program.step.iter().enumerate() {
        for id in &command.reads {
            read(&memory, &last, *id, label(command));
        }
        for id in &command.writes {
            memory.write(program, *id, Writer::Step(at, *id));
            last.insert(*id, Writer::Step(at, *id));
        }
    }
    for output in &program.outputs {
        read(&memory, &last, output.buffer, format!("output `{}`", output.name));
    }
    for (state, next) in &program.states {
        if let Some(next) = next {
            read(&memory, &last, *next, format!("state `{}`", state.name));
        }
    }
    faults
}

/// Looks at commands that write bytes which they read. Only a kernel may, where both are the same buffer's bytes and every
/// element that is read there belongs to the result element that takes its place; what it accumulates must not be there.
fn overwrites(program: &DeviceProgram) -> Vec<ProgramFault> {
    let mut faults = Vec::new();
    for command in &program.step {
        for (id, (at, from)) in
            command.writes.iter().flat_map(|id| command.reads.iter().enumerate().map(move |read| (id, read)))
        {
            let (write, read) = (span(program, *id), span(program, *from));
            let apart = write.start + write.len <= read.start || read.start + read.len <= write.start;
            let same = (write.start, write.len) == (read.start, read.len);
            let elementwise = match &command.action {
                Action::Kernel(k) => element_by_element(&program.kernels[*k].compute, at),
                Action::Leaf(_) | Action::Communicate(_) | Action::Loop(_) => false,
            };
            if !(apart || write.len == 0 || read.len == 0 || (same && elementwise)) {
                let (device, command) = (program.device, label(command));
                faults.push(ProgramFault::Overwrites { device, command, buffer: id.0 });
            }
        }
    }
    faults
}

/// Whether result elements need no other element of the operand than their own, before anything is written.
fn element_by_element(c: &Compute, operand: usize) -> bool {
    let needed = c.reachable();
    for (id, expr) in c.exprs() {
        let fits = match expr {
            Expr::Load { operand: o, index, .. } => {
                let own = |(d, i): (usize, &Index)| i.bare() == Some(Axis(d as u8));
                *o != operand || (index.len() == c.rank() && index.iter().enumerate().all(own))
            }
            Expr::Take { operand: o, .. } => *o != operand,
            Expr::Reduce { order, .. } => *order != Order::Fma,
            Expr::Const(_)
            | Expr::Position(..)
            | Expr::InRange(_)
            | Expr::Unary(..)
            | Expr::Binary(..)
            | Expr::Compare(..)
            | Expr::Select(..)
            | Expr::Cast(..)
            | Expr::ArgMax { .. } => true,
        };
        if needed[id.0 as usize] && !fits {
            return false;
        }
    }
    true
}

/// The last writer of every range of bytes.
struct Bytes {
    cuts: Vec<usize>,
    writers: Vec<Writer>,
}

impl Bytes {
    fn new(program: &DeviceProgram) -> Bytes {
        let ids = (0..program.buffers.len()).map(|id| span(program, BufferId(id as u32)));
        let mut cuts: Vec<usize> = ids.flat_map(|s| [s.start, s.start + s.len]).collect();
        cuts.sort_unstable();
        cuts.dedup();
        Bytes { writers: vec![Writer::Nobody; cuts.len()], cuts }
    }

    fn range(&self, program: &DeviceProgram, id: BufferId) -> std::ops::Range<usize> {
        let span = span(program, id);
        let index = |byte: usize| self.cuts.partition_point(|&c| c < byte);
        index(span.start)..index(span.start + span.len)
    }

    fn write(&mut self, program: &DeviceProgram, id: BufferId, writer: Writer) {
        let range = self.range(program, id);
        self.writers[range].fill(writer);
    }

    fn read(&self, program: &DeviceProgram, id: BufferId) -> Vec<Writer> {
        let mut found = self.writers[self.range(program, id)].to_vec();
        found.dedup();
        found
    }
}

#[cfg(test)]
mod tests;
