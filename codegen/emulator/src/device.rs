//! The host's side: modules, devices, launches.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::error::{HostError, LaunchError, ParseError};
use crate::grid::{self, Races};
use crate::known::Known;
use crate::lower::{Program, lower};
use crate::memory::AddressSpace;
use crate::race::DEVICES;
use crate::stats::Stats;
use crate::syntax::{self, Variable};

/// A parsed PTX module.
#[derive(Debug, Clone)]
pub struct Module {
    programs: Vec<Program>,
    target: String,
    version: (u64, u64),
    /// Variables in global memory; each device has its own.
    variables: Arc<[Variable]>,
}

impl Module {
    /// Reads PTX text.
    ///
    /// # Errors
    /// Malformed text, undeclared names, operands of wrong types, and whatever the emulator does not execute.
    pub fn parse(text: &str) -> Result<Module, ParseError> {
        let unit = syntax::parse(text)?;
        let programs = unit.entries.iter().map(|e| lower(e, &unit.variables)).collect::<Result<_, _>>()?;
        let variables: Vec<Variable> = unit.variables.into_iter().filter(|v| v.space == "global").collect();
        Ok(Module { programs, target: unit.target, version: unit.version, variables: variables.into() })
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
    pub(crate) fn bytes(&self) -> Vec<u8> {
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

/// A device: some memory and the ability to run kernels. Launches block the caller; devices of one [`AddressSpace`] may
/// run in different threads at the same time and see each other's memory.
pub struct Device {
    space: AddressSpace,
    ordinal: u32,
    /// When asynchronous copies take effect.
    pub schedule: Schedule,
    /// Blocks that are resident at most; a block waiting for one that is not resident yet waits for ever, as on hardware.
    pub resident: usize,
    /// How long all blocks may spin on flags, while no other device of the space goes on, before the launch is called a
    /// deadlock.
    pub patience: Duration,
    /// Host threads that share the blocks of a launch whose blocks cannot communicate: a kernel without atomics, ordered
    /// accesses and fences. Results and faults are those of one thread.
    pub workers: usize,
    /// Set by anybody, it ends running and later launches with [`FaultKind::Cancelled`](crate::FaultKind::Cancelled). Give several devices
    /// the same flag to stop one that waits for another which failed.
    pub cancel: Arc<AtomicBool>,
    /// Whether global memory is checked for races between warps, blocks and devices, and `.nc` loads for bytes that
    /// their launch writes. All devices of a space need the same answer; launches of one device must not overlap; 16
    /// devices are told apart. Blocks then run in one thread.
    pub global_races: Check,
    /// What its launches learned of other devices so far.
    known: Mutex<Known>,
    /// Where the variables of modules lie that it has met.
    variables: Mutex<Vec<Placed>>,
}

/// The variables of a module in a device's memory.
struct Placed {
    variables: Arc<[Variable]>,
    addresses: Vec<u64>,
}

/// Whether an optional check is made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Check {
    /// It is not.
    #[default]
    Off,
    /// It is.
    On,
}

impl Device {
    /// A device of `space`.
    pub fn new(space: &AddressSpace, ordinal: u32) -> Device {
        Device {
            space: space.clone(),
            ordinal,
            schedule: Schedule::default(),
            resident: 264,
            patience: Duration::from_secs(20),
            workers: 1,
            cancel: Arc::default(),
            global_races: Check::default(),
            known: Mutex::default(),
            variables: Mutex::default(),
        }
    }

    /// The number by which its space knows it.
    pub fn ordinal(&self) -> u32 {
        self.ordinal
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

    /// Fills with one byte, as `cuMemsetD8` does.
    ///
    /// # Errors
    /// The range is not inside one allocation.
    pub fn fill(&self, address: u64, value: u8, bytes: u64) -> Result<(), HostError> {
        let (mut view, buffer) = (self.space.view(), vec![value; bytes.min(1 << 16) as usize]);
        let mut done = 0;
        while done < bytes {
            let step = (bytes - done).min(1 << 16);
            view.host_write(address + done, &buffer[..step as usize])?;
            done += step;
        }
        Ok(())
    }

    /// The addresses of a module's variables, which begin as its text says or as zeros.
    fn place(&self, module: &Module) -> Result<Vec<u64>, LaunchError> {
        if module.variables.is_empty() {
            return Ok(Vec::new());
        }
        let mut placed = self.variables.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = placed.iter().find(|p| Arc::ptr_eq(&p.variables, &module.variables)) {
            return Ok(known.addresses.clone());
        }
        let addresses = module.variables.iter().map(|v| {
            let mut data = v.init.clone();
            data.resize(v.bytes as usize, 0);
            self.upload(&data)
        });
        let addresses = addresses.collect::<Result<Vec<_>, _>>()?;
        placed.push(Placed { variables: module.variables.clone(), addresses: addresses.clone() });
        Ok(addresses)
    }

    /// Runs a kernel to its end.
    ///
    /// # Errors
    /// A shape or arguments that do not fit the kernel, or a [`Fault`](crate::Fault) of its execution.
    pub fn launch(&self, module: &Module, kernel: &str, launch: Launch, args: &[Arg]) -> Result<Stats, LaunchError> {
        let program = module.programs.iter().find(|p| p.name == kernel);
        let program = program.ok_or_else(|| LaunchError::NoKernel(kernel.to_owned()))?;
        grid::check_shape(program, launch)?;
        let checked = self.global_races == Check::On && (self.ordinal as usize) < DEVICES;
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let context = grid::Context {
            program,
            launch,
            params: grid::arguments(program, args)?,
            variables: self.place(module)?,
            schedule: self.schedule,
            device: self.ordinal,
            resident: self.resident.max(1),
            patience: self.patience,
            cancel: &self.cancel,
            beats: self.space.beats(),
            races: checked.then(|| Races::new(&self.space, self.ordinal, known().clone())),
        };
        let stats = match self.workers {
            2.. if program.independent && !checked => grid::run_parallel(&context, &self.space, self.workers),
            _ => grid::run(&context, &self.space),
        };
        if let Some(races) = context.races {
            *known() = races.end();
        }
        stats
    }
}
