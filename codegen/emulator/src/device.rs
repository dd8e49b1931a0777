//! The host's side: modules, devices, launches.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::block::{Block, Turn};
use crate::error::{HostError, LaunchError, ParseError};
use crate::lower::{Program, lower};
use crate::memory::AddressSpace;
use crate::syntax;

/// A parsed PTX module.
#[derive(Debug, Clone)]
pub struct Module {
    programs: Vec<Program>,
    target: String,
    version: (u64, u64),
}

impl Module {
    /// Reads PTX text.
    ///
    /// # Errors
    /// Malformed text, undeclared names, operands of wrong types, and whatever the emulator does not execute.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        let unit = syntax::parse(text)?;
        let programs = unit.entries.iter().map(|e| lower(e, &unit.variables)).collect::<Result<_, _>>()?;
        Ok(Module { programs, target: unit.target, version: unit.version })
    }

    /// Names of the kernels, in the order of the text.
    pub fn kernels(&self) -> impl Iterator<Item = &str> {
        self.programs.iter().map(|p| p.name.as_str())
    }

    /// Sizes of a kernel's parameters in bytes.
    pub fn parameters(&self, kernel: &str) -> Option<Vec<u64>> {
        let program = self.programs.iter().find(|p| p.name == kernel)?;
        Some(program.params.iter().map(|p| p.bytes).collect())
    }

    /// `.target`, such as `sm_80`.
    pub fn target(&self) -> &str {
        &self.target
    }

    /// `.version`, major and minor.
    pub fn version(&self) -> (u64, u64) {
        self.version
    }
}

/// When asynchronous copies take effect. A correct kernel gives the same results under both.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Schedule {
    /// At the wait that forces them: shows reads that come too early.
    #[default]
    Late,
    /// At issue: shows buffers that are overwritten too early.
    Early,
}

/// A kernel argument.
#[derive(Debug, Clone, PartialEq)]
pub enum Arg {
    /// `.u32`, `.s32` or `.b32`
    U32(u32),
    /// `.u64`, `.s64`, `.b64`: also device pointers
    U64(u64),
    /// `.f32`
    F32(f32),
    /// `.f64`
    F64(f64),
    /// A structure or any other size
    Bytes(Vec<u8>),
}

impl Arg {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Arg::U32(v) => v.to_le_bytes().to_vec(),
            Arg::U64(v) => v.to_le_bytes().to_vec(),
            Arg::F32(v) => v.to_le_bytes().to_vec(),
            Arg::F64(v) => v.to_le_bytes().to_vec(),
            Arg::Bytes(v) => v.clone(),
        }
    }
}

/// Shape of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Launch {
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
}

/// What a launch did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stats {
    /// Instructions executed, counted per warp.
    pub warp_instructions: u64,
    /// Instructions executed, counted per thread.
    pub thread_instructions: u64,
    /// Bytes requested from global memory by loads (copies included).
    pub global_read: u64,
    /// Bytes written to global memory.
    pub global_written: u64,
    /// `mma.sync` instructions.
    pub mma: u64,
    /// Barriers passed, counted per block.
    pub barriers: u64,
}

/// A device: some memory and the ability to run kernels. Launches block the caller; devices of one [`AddressSpace`] may
/// run in different threads at the same time and see each other's memory.
pub struct Device {
    space: AddressSpace,
    ordinal: u32,
    /// When asynchronous copies take effect.
    pub schedule: Schedule,
    /// Blocks that are resident at most; a block waiting for one that is not resident yet waits for ever, as on hardware.
    pub resident: usize,
    /// How long all blocks may spin on flags before the launch is called a deadlock.
    pub patience: Duration,
}

impl Device {
    /// A device of `space`.
    pub fn new(space: &AddressSpace, ordinal: u32) -> Device {
        let (schedule, patience) = (Schedule::default(), Duration::from_secs(20));
        Device { space: space.clone(), ordinal, schedule, resident: 264, patience }
    }

    /// Allocates bytes that have no values yet, aligned to 256.
    ///
    /// # Errors
    /// More than 256 GiB.
    pub fn alloc(&self, bytes: u64) -> Result<u64, HostError> {
        self.space.allocate(self.ordinal, bytes)
    }

    /// Allocates and fills.
    ///
    /// # Errors
    /// More than 256 GiB.
    pub fn upload(&self, data: &[u8]) -> Result<u64, HostError> {
        let address = self.alloc(data.len() as u64)?;
        self.write(address, data)?;
        Ok(address)
    }

    /// Frees an allocation.
    ///
    /// # Errors
    /// `address` is no allocation's start.
    pub fn free(&self, address: u64) -> Result<(), HostError> {
        self.space.free(address)
    }

    /// Copies from the host.
    ///
    /// # Errors
    /// The range is not inside one allocation.
    pub fn write(&self, address: u64, data: &[u8]) -> Result<(), HostError> {
        self.space.view().host_write(address, data)
    }

    /// Copies to the host.
    ///
    /// # Errors
    /// The range is not inside one allocation or holds bytes that nobody wrote.
    pub fn read(&self, address: u64, out: &mut [u8]) -> Result<(), HostError> {
        self.space.view().host_read(address, out)
    }

    /// Copies between allocations, of this or of peer devices.
    ///
    /// # Errors
    /// A range is not inside one allocation, or the source holds bytes that nobody wrote.
    pub fn copy(&self, to: u64, from: u64, bytes: u64) -> Result<(), HostError> {
        let (mut view, mut buffer) = (self.space.view(), vec![0; bytes.min(1 << 16) as usize]);
        let mut done = 0;
        while done < bytes {
            let step = (bytes - done).min(1 << 16) as usize;
            view.host_read(from + done, &mut buffer[..step])?;
            view.host_write(to + done, &buffer[..step])?;
            done += step as u64;
        }
        Ok(())
    }

    /// Runs a kernel to its end.
    ///
    /// # Errors
    /// A shape or arguments that do not fit the kernel, or a [`Fault`](crate::Fault) of its execution.
    pub fn launch(&self, module: &Module, kernel: &str, launch: Launch, args: &[Arg]) -> Result<Stats, LaunchError> {
        let program = module.programs.iter().find(|p| p.name == kernel);
        let program = program.ok_or_else(|| LaunchError::NoKernel(kernel.to_owned()))?;
        check_shape(program, launch)?;
        let context = Context {
            program,
            launch,
            params: arguments(program, args)?,
            schedule: self.schedule,
            device: self.ordinal,
        };
        let mut view = self.space.view();
        let mut stats = Stats::default();
        let total = launch.grid.iter().map(|&n| u64::from(n)).product::<u64>();
        let (mut started, mut resident) = (0u64, VecDeque::<Block>::new());
        let mut idle_since: Option<Instant> = None;
        while started < total || !resident.is_empty() {
            // A round: a new block if there is room, then a turn for everybody.
            if started < total && resident.len() < self.resident.max(1) {
                let [x, y, _] = launch.grid.map(u64::from);
                let id = [(started % x) as u32, (started / x % y) as u32, (started / (x * y)) as u32];
                resident.push_front(Block::new(&context, id));
                started += 1;
            }
            let mut idle = true;
            for _ in 0..resident.len() {
                let Some(mut block) = resident.pop_front() else { break };
                match block.turn(&context, &mut view, &mut stats)? {
                    Turn::Done => {
                        idle = false;
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
            if !idle || started < total && resident.len() < self.resident {
                idle_since = None;
                continue;
            }
            std::thread::yield_now();
            let since = *idle_since.get_or_insert_with(Instant::now);
            if since.elapsed() > self.patience {
                let block = resident.front().expect("an idle round has a resident block");
                return Err(block.spinning(&context).into());
            }
        }
        Ok(stats)
    }
}

/// What all blocks of a launch share.
pub(crate) struct Context<'a> {
    pub(crate) program: &'a Program,
    pub(crate) launch: Launch,
    pub(crate) params: Vec<u8>,
    pub(crate) schedule: Schedule,
    pub(crate) device: u32,
}

fn check_shape(program: &Program, launch: Launch) -> Result<(), LaunchError> {
    let wrong = |reason: String| Err(LaunchError::Shape { kernel: program.name.clone(), reason });
    let threads = launch.block.iter().map(|&n| u64::from(n)).product::<u64>();
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
    if let Some(most) = program.max_threads {
        let most = most.iter().map(|&n| u64::from(n)).product::<u64>();
        if threads > most {
            return wrong(format!("{threads} threads a block where .maxntid allows {most}"));
        }
    }
    let shared = program.shared_bytes + u64::from(launch.shared);
    if shared > 227 << 10 {
        return wrong(format!("{shared} bytes of shared memory; 232448 is the most that any target has"));
    }
    Ok(())
}

fn arguments(program: &Program, args: &[Arg]) -> Result<Vec<u8>, LaunchError> {
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
