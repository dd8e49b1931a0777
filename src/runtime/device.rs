//! What the runtime needs of a device that has a program loaded, whatever it is.

use super::collective::{self, Part};
use super::gpu::DriverError;
use super::links::{LinkError, Links, Route};
use super::memory::OutOfMemory;
use super::pool::Destination;
use intwain_codegen::clif::CompileError;
use intwain_codegen::ptx::EmitError;
use intwain_ir::interp;
use intwain_passes::program::{Action, BufferId, Command, DeviceProgram, Home};

/// Why a device could not go on.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Communication failed.
    #[error("layer `{layer}`: {problem}")]
    Link {
        /// The layer.
        layer: String,
        /// What happened.
        problem: LinkError,
    },
    /// A leaf operation failed: a defect.
    #[error("layer `{layer}`: {problem}")]
    Leaf {
        /// The layer.
        layer: String,
        /// What happened.
        problem: interp::EvalError,
    },
    /// A kernel or copy of a GPU failed: a defect, or the GPU's.
    #[error("layer `{layer}`: {problem}")]
    Gpu {
        /// The layer, or what is copied.
        layer: String,
        /// What happened.
        problem: DriverError,
    },
}

impl DeviceError {
    /// Whether the device stopped only because another failed.
    pub(super) fn is_consequence(&self) -> bool {
        match self {
            DeviceError::Link { problem, .. } => *problem == LinkError::Stopped,
            DeviceError::Gpu { problem, .. } => *problem == DriverError::Stopped,
            DeviceError::Leaf { .. } => false,
        }
    }
}

/// Why a device could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The machine has too little memory.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
    /// A kernel could not be compiled: a defect.
    #[error(transparent)]
    Code(#[from] CompileError),
    /// A kernel has no PTX: a defect.
    #[error(transparent)]
    Ptx(#[from] EmitError),
    /// A GPU has too little memory or does not take the code.
    #[error(transparent)]
    Driver(#[from] DriverError),
}

impl LoadError {
    /// Whether the compiler is to blame rather than the machine.
    pub fn is_defect(&self) -> bool {
        match self {
            LoadError::Memory(_) | LoadError::Driver(DriverError::Memory { .. }) => false,
            LoadError::Code(_) | LoadError::Ptx(_) | LoadError::Driver(_) => true,
        }
    }
}

/// A device with a program: its memory, its kernels and its commands.
pub(super) trait Device: Send {
    /// Memory held, in bytes, without what may be shared.
    fn bytes(&self) -> usize;

    /// Place and size of what may be shared with other programs and devices.
    fn shared(&self) -> Vec<(usize, usize)> {
        Vec::new()
    }

    /// Where a weight is wanted.
    fn destination(&mut self, _weight: BufferId) -> Result<Destination, LoadError> {
        Ok(Destination::Copy)
    }

    /// Says that a weight is where [`Device::destination`] wanted it.
    fn loaded(&mut self, _weight: BufferId) {}

    /// Fills a buffer from a tensor of the host, or from the device's part of it.
    ///
    /// # Safety
    /// `from` points to a tensor of the buffer's type, or to one of which the buffer is the part.
    unsafe fn put(&mut self, id: BufferId, part: Option<&Part>, from: *const u8) -> Result<(), DeviceError>;

    /// Copies a buffer to a tensor of the host, or to the device's part of it.
    ///
    /// # Safety
    /// `to` points to a tensor of the buffer's type, or to one of which the buffer is the part; nobody else touches those
    /// bytes meanwhile.
    unsafe fn take(&mut self, id: BufferId, part: Option<&Part>, to: *mut u8) -> Result<(), DeviceError>;

    /// Runs what depends on weights only. The weights are in their buffers.
    fn prepare(&mut self, links: &Links) -> Result<(), DeviceError>;

    /// Runs the commands of a call. Inputs are in their buffers.
    fn step(&mut self, links: &Links) -> Result<(), DeviceError>;

    /// Gives the states of a call their next values, once its outputs were taken. All leave before any enters, since the
    /// next value of one may be another as it was.
    fn advance(&mut self) -> Result<(), DeviceError>;

    /// Makes all states zero.
    fn forget(&mut self) -> Result<(), DeviceError>;

    /// Waits until the device has done all that it was told.
    fn settle(&mut self) -> Result<(), DeviceError>;

    /// Makes the device usable after a call has failed somewhere. All devices have settled.
    fn reset(&mut self) -> Result<(), DeviceError>;
}

/// The messages that a device sends, with their sizes.
pub(super) fn routes(program: &DeviceProgram) -> Vec<(Route, usize)> {
    let ty = |b: &BufferId| &program.buffers[b.0 as usize].ty;
    let sent = |c: &Command| match &c.action {
        Action::Communicate(op) => collective::routes(op, program.device, &c.reads.iter().map(ty).collect::<Vec<_>>()),
        Action::Kernel(_) | Action::Leaf(_) | Action::Loop(_) => Vec::new(),
    };
    program.prepare.iter().chain(&program.step).flat_map(sent).collect()
}

/// Number of loops among commands.
pub(super) fn loops(commands: &[Command]) -> usize {
    commands.iter().filter(|c| matches!(c.action, Action::Loop(_))).count()
}

/// The place of the first command behind one of the step that reads or writes bytes of its results.
pub(super) fn needed(program: &DeviceProgram, at: usize) -> usize {
    let place = |id: &BufferId| {
        let b = &program.buffers[id.0 as usize];
        (b.home, b.offset, b.offset + b.ty.bytes())
    };
    let made: Vec<(Home, usize, usize)> = program.step[at].writes.iter().map(place).collect();
    let meets = |id: &BufferId| {
        let (home, start, end) = place(id);
        made.iter().any(|(h, s, e)| *h == home && *s < end && start < *e)
    };
    let later = program.step.iter().enumerate().skip(at + 1);
    let first = later.into_iter().find(|(_, c)| c.reads.iter().chain(&c.writes).any(meets));
    first.map_or(program.step.len(), |(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use intwain_ir::{DType, Origin, Type};
    use intwain_passes::listing::Stream;
    use intwain_passes::program::Buffer;

    /// A program of kernels as (buffers read, buffers written), over buffers of 64 bytes at these places.
    fn program(commands: &[(&[u32], &[u32])], places: &[(Home, usize)]) -> DeviceProgram {
        let buffer = |&(home, offset): &(Home, usize)| Buffer { ty: Type::new(DType::F32, [16]), home, offset };
        let ids = |list: &[u32]| list.iter().map(|&b| BufferId(b)).collect();
        let command = |&(reads, writes): &(&[u32], &[u32])| Command {
            action: Action::Kernel(0),
            stream: Stream::Compute,
            reads: ids(reads),
            writes: ids(writes),
            origin: Origin::default(),
            nodes: Vec::new(),
        };
        DeviceProgram {
            device: 0,
            buffers: places.iter().map(buffer).collect(),
            persistent_bytes: 1024,
            arena_bytes: 1024,
            arena_lower_bound: 0,
            kernels: Vec::new(),
            prepare: Vec::new(),
            step: commands.iter().map(command).collect(),
            inputs: Vec::new(),
            weights: Vec::new(),
            states: Vec::new(),
            outputs: Vec::new(),
        }
    }

    #[test]
    fn results_are_needed_where_their_bytes_are_touched() {
        use Home::{Arena, State};
        // 1 shares half of its bytes with 2; 3 is at the place of 1 in another memory.
        let places = [(Arena, 0), (Arena, 64), (Arena, 96), (State, 64)];
        let first = |commands: &[(&[u32], &[u32])]| needed(&program(commands, &places), 0);
        assert_eq!(first(&[(&[0], &[1]), (&[0], &[3]), (&[1], &[])]), 2);
        assert_eq!(first(&[(&[0], &[1]), (&[0], &[0]), (&[], &[1])]), 2);
        assert_eq!(first(&[(&[0], &[1]), (&[2], &[])]), 1);
        assert_eq!(first(&[(&[1], &[0]), (&[1], &[2]), (&[3], &[])]), 3, "the operand is free at once");
    }
}
