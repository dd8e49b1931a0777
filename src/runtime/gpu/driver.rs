//! What a program needs of a GPU. The emulator and CUDA implement it; nothing above it knows which.

use intwain_passes::listing::Stream;
use std::fmt;

/// A place in the memory of a device. Addresses of all devices are of one space: a device that reaches another uses that
/// one's addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Address(pub(crate) u64);

impl Address {
    /// So many bytes further.
    pub(crate) fn after(self, bytes: usize) -> Address {
        Address(self.0 + bytes as u64)
    }
}

/// Why a device did not do what it was told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverError {
    /// The device has too little memory.
    #[error("{device} cannot allocate {bytes} bytes of memory")]
    Memory {
        /// The device.
        device: String,
        /// What was asked for.
        bytes: usize,
    },
    /// The device does not take the code: a defect.
    #[error("{device} refuses the program's PTX: {problem}")]
    Code {
        /// The device.
        device: String,
        /// What is wrong with it.
        problem: String,
    },
    /// A kernel or copy failed: a defect.
    #[error("{device}: {problem}")]
    Fault {
        /// The device.
        device: String,
        /// What happened and where.
        problem: String,
    },
    /// The device was told to stop because another failed.
    #[error("stopped because another device failed")]
    Stopped,
}

/// How often a kernel runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Blocks along x, y, z.
    pub(crate) grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub(crate) block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub(crate) shared: u32,
}

/// Who reaches a memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    /// The device itself.
    Own,
    /// The other device of the program too.
    Both,
}

/// Code on a device.
pub(crate) trait Module: Send + Sync {
    /// Launches a kernel, by its place in the list that the module was loaded with. Parameters are pointers.
    fn launch(&self, stream: Stream, kernel: usize, shape: Shape, args: &[Address]) -> Result<(), DriverError>;
}

/// What a stream was given up to some moment.
pub(crate) trait Event: Send {
    /// Makes a stream of the same device go on only when that is done.
    fn wait(&self, stream: Stream) -> Result<(), DriverError>;
}

/// A GPU: memory, copies and code. The commands of a stream are executed one after another, those of different streams in
/// any order or at the same time unless an event orders them. Calls may return before their commands are done, except
/// where it says otherwise.
pub(crate) trait Driver: Send + Sync {
    /// The device's name, such as `ptx:0`.
    fn name(&self) -> &str;

    /// Allocates memory, aligned to at least 256 bytes, with no defined content.
    fn allocate(&self, bytes: usize, reach: Reach) -> Result<Address, DriverError>;

    /// Frees an allocation of this reach, which no command uses any more.
    fn free(&self, at: Address, reach: Reach);

    /// Copies from the host, whose memory can be reused at once; a command of [`Stream::Compute`].
    fn write(&self, to: Address, data: &[u8]) -> Result<(), DriverError>;

    /// Copies to the host, and returns when that is done; a command of [`Stream::Compute`].
    fn read(&self, from: Address, out: &mut [u8]) -> Result<(), DriverError>;

    /// Copies between places that do not overlap, of this device or of one that it reaches.
    fn copy(&self, stream: Stream, from: Address, to: Address, bytes: usize) -> Result<(), DriverError>;

    /// Writes zeros; a command of [`Stream::Compute`].
    fn clear(&self, at: Address, bytes: usize) -> Result<(), DriverError>;

    /// Loads PTX text with kernels of these names.
    fn load(&self, text: &str, kernels: &[String]) -> Result<Box<dyn Module>, DriverError>;

    /// What a stream was given so far.
    fn record(&self, stream: Stream) -> Result<Box<dyn Event>, DriverError>;

    /// Waits until all commands of all streams are done.
    fn synchronise(&self) -> Result<(), DriverError>;

    /// Makes kernels that wait for another device end, and launches fail with [`DriverError::Stopped`]. Any thread may call
    /// it.
    fn stop(&self);

    /// Takes [`Driver::stop`] back.
    fn resume(&self);
}

impl fmt::Debug for dyn Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
