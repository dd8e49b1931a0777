//! Command lists, reduced to what matters for order: who waits for whom, how long it takes and which bytes it touches.
//!
//! The checkers of communication and the timeline simulator read this form. Whatever produces command lists writes it.

use intwain_ir::DType;
use std::collections::BTreeMap;

/// The command lists of all devices.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// One list per device.
    pub devices: Vec<Vec<Command>>,
    /// Channels that are not rendezvous: rings with this many slots.
    pub rings: BTreeMap<u32, usize>,
}

/// What a device does next on one of its streams.
#[derive(Clone, Debug)]
pub struct Command {
    /// Names the command in reports, with its layer.
    pub label: String,
    /// The queue it is put in; commands of one queue run in order.
    pub stream: Stream,
    /// How long it takes once it can start; for a transfer, the time on the link.
    pub seconds: f64,
    /// Events of this device that must have been signalled since they were last signalled in list order.
    pub waits: Vec<u32>,
    /// The event that the command signals when done.
    pub signals: Option<u32>,
    /// What it does.
    pub action: Action,
    /// Bytes it reads.
    pub reads: Vec<Span>,
    /// Bytes it writes.
    pub writes: Vec<Span>,
}

impl Command {
    /// A command that waits for nothing and touches nothing.
    pub fn new(label: impl Into<String>, stream: Stream, action: Action) -> Command {
        Command {
            label: label.into(),
            stream,
            seconds: 0.0,
            waits: Vec::new(),
            signals: None,
            action,
            reads: Vec::new(),
            writes: Vec::new(),
        }
    }
}

/// A queue of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Stream {
    /// Kernels.
    Compute,
    /// Copies to this device.
    CopyIn,
    /// Copies from this device.
    CopyOut,
}

/// What a command does.
#[derive(Clone, Debug)]
pub enum Action {
    /// A kernel or a local copy.
    Work,
    /// Gives a message to the channel.
    Send {
        /// The channel; its k-th send meets its k-th receive.
        channel: u32,
        /// What is sent.
        message: Message,
    },
    /// Takes a message from the channel.
    Recv {
        /// The channel.
        channel: u32,
        /// What is expected.
        message: Message,
    },
    /// Gives the oldest slot in use of a ring back to the sender. A ring without any gives it back when received.
    Release {
        /// The channel.
        channel: u32,
    },
    /// Takes part in a collective.
    Collective {
        /// The channel; the k-th collective of every device on it are one.
        channel: u32,
        /// What takes part.
        message: Message,
    },
    /// Repeats commands.
    Loop {
        /// How often.
        count: usize,
        /// What is repeated.
        body: Vec<Command>,
    },
}

/// What both ends of a communication must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// `send`, `all_reduce sum`, ….
    pub kind: String,
    /// Its size.
    pub bytes: usize,
    /// Its element type.
    pub dtype: DType,
}

/// A range of bytes in the memory of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// Whose memory.
    pub device: usize,
    /// First byte, in iteration 0.
    pub start: usize,
    /// Number of bytes.
    pub len: usize,
    /// How the start moves from one iteration of the innermost loop to the next.
    pub motion: Motion,
}

/// How an address depends on the iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Motion {
    /// Not at all.
    Fixed,
    /// Forward by so many bytes each time.
    Step(usize),
    /// Through a ring of `slots`, `step` bytes apart.
    Ring {
        /// Bytes from slot to slot.
        step: usize,
        /// Number of slots.
        slots: usize,
    },
}

impl Span {
    /// A range that does not move.
    pub fn fixed(device: usize, start: usize, len: usize) -> Span {
        Span { device, start, len, motion: Motion::Fixed }
    }

    /// The first byte in an iteration.
    pub fn start_at(&self, iteration: usize) -> usize {
        match self.motion {
            Motion::Fixed => self.start,
            Motion::Step(step) => self.start + step * iteration,
            Motion::Ring { step, slots } => self.start + step * (iteration % slots.max(1)),
        }
    }
}
