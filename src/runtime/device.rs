//! One CPU device of a program: its memory, its kernels and its commands.

use super::collective::{self, View};
use super::links::{LinkError, Links, Route};
use super::memory::{OutOfMemory, Region};
use super::team::Team;
use intwain_codegen::schedule::CpuCode;
use intwain_ir::ops::Op;
use intwain_ir::{Tensor, Type, interp};
use intwain_passes::program::{Action, Binding, BufferId, Command, DeviceProgram, Home};

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
}

/// A command with its addresses.
struct Ready {
    /// Operands, then results.
    args: Vec<*mut u8>,
}

/// A device's program with memory and kernels.
pub(crate) struct Device {
    program: DeviceProgram,
    code: CpuCode,
    persistent: Region,
    arena: Region,
    /// Rearranged operands, one per command that has one.
    packed: Region,
    prepare: Vec<Ready>,
    step: Vec<Ready>,
    /// (kernel, source, destination) of every rearrangement.
    packs: Vec<(usize, *const u8, *mut u8)>,
    /// One piece per thread.
    scratch: Region,
    scratch_bytes: usize,
}

// SAFETY: the pointers lead into the regions that the device owns; who runs it runs it alone (`&mut self`).
unsafe impl Send for Device {}

impl Device {
    /// Allocates memory and resolves addresses. `code` has the kernels of the program, in order.
    pub(crate) fn new(program: DeviceProgram, code: CpuCode, threads: usize) -> Result<Device, OutOfMemory> {
        let persistent = Region::new(program.persistent_bytes)?;
        let arena = Region::new(program.arena_bytes)?;
        let scratch_bytes = (0..program.kernels.len()).map(|k| code.scratch_bytes(k)).max().unwrap_or(0);
        let scratch_bytes = scratch_bytes.next_multiple_of(super::memory::ALIGNMENT);
        let scratch = Region::new(scratch_bytes * threads)?;
        let mut wanted: Vec<(usize, BufferId)> = Vec::new();
        let mut bytes = 0usize;
        let mut offsets = Vec::new();
        for c in program.prepare.iter().chain(&program.step) {
            if let Some((k, operand, size)) = pack_of(c, &code)
                && !wanted.contains(&(k, c.reads[operand]))
            {
                wanted.push((k, c.reads[operand]));
                offsets.push(bytes);
                bytes += size.next_multiple_of(super::memory::ALIGNMENT);
            }
        }
        let packed = Region::new(bytes)?;
        let mut device = Device {
            program,
            code,
            persistent,
            arena,
            packed,
            prepare: Vec::new(),
            step: Vec::new(),
            packs: Vec::new(),
            scratch,
            scratch_bytes,
        };
        let at = |d: &Device, k: usize, b: BufferId| {
            wanted.iter().position(|w| *w == (k, b)).map(|i| d.packed.at(offsets[i]))
        };
        let ready = |d: &Device, c: &Command| {
            let mut args: Vec<*mut u8> = c.reads.iter().chain(&c.writes).map(|b| d.address(*b)).collect();
            if let Some((k, operand, _)) = pack_of(c, &d.code)
                && let Some(p) = at(d, k, c.reads[operand])
            {
                args[operand] = p;
            }
            Ready { args }
        };
        device.prepare = device.program.prepare.iter().map(|c| ready(&device, c)).collect();
        device.step = device.program.step.iter().map(|c| ready(&device, c)).collect();
        device.packs = wanted
            .iter()
            .zip(&offsets)
            .map(|((k, b), o)| (*k, device.address(*b).cast_const(), device.packed.at(*o)))
            .collect();
        Ok(device)
    }

    /// Memory held, in bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.persistent.len() + self.arena.len() + self.packed.len() + self.scratch.len()
    }

    pub(crate) fn program(&self) -> &DeviceProgram {
        &self.program
    }

    fn address(&self, id: BufferId) -> *mut u8 {
        let b = &self.program.buffers[id.0 as usize];
        match b.home {
            Home::Persistent => self.persistent.at(b.offset),
            Home::Arena => self.arena.at(b.offset),
        }
    }

    fn ty(&self, id: BufferId) -> &Type {
        &self.program.buffers[id.0 as usize].ty
    }

    /// Writes a weight. Runs before `prepare`.
    pub(crate) fn write(&mut self, binding: &Binding, bytes: &[u8]) {
        let len = self.ty(binding.buffer).bytes();
        assert_eq!(len, bytes.len(), "`{}` has another size", binding.name);
        // SAFETY: the buffer has that many bytes, and nobody else runs the device.
        unsafe { self.address(binding.buffer).copy_from_nonoverlapping(bytes.as_ptr(), len) };
    }

    /// Address and type of a binding's buffer.
    pub(crate) fn buffer(&self, id: BufferId) -> (*mut u8, &Type) {
        (self.address(id), self.ty(id))
    }

    /// Runs what depends on weights only, and rearranges operands for their kernels.
    pub(crate) fn run_prepare(&mut self, team: &Team, links: &Links) -> Result<(), DeviceError> {
        self.run(&self.program.prepare, &self.prepare, team, links)?;
        for &(k, from, to) in &self.packs {
            // SAFETY: addresses of an operand and of the room reserved for its copy.
            unsafe { self.code.pack(k, from, to) };
        }
        Ok(())
    }

    /// Runs the commands of a call. Inputs are in their buffers.
    pub(crate) fn run_step(&mut self, team: &Team, links: &Links) -> Result<(), DeviceError> {
        self.run(&self.program.step, &self.step, team, links)?;
        for (state, next) in &self.program.states {
            if let Some(next) = next {
                let (from, to) = (self.address(*next), self.address(state.buffer));
                // SAFETY: both have the state's type; the verifier checks it.
                unsafe { to.copy_from(from, self.ty(*next).bytes()) };
            }
        }
        Ok(())
    }

    fn run(&self, commands: &[Command], ready: &[Ready], team: &Team, links: &Links) -> Result<(), DeviceError> {
        for (c, r) in commands.iter().zip(ready) {
            match &c.action {
                Action::Kernel(k) => self.launch(*k, r, team),
                Action::Leaf(op) => self.leaf(op, c)?,
                Action::Communicate(op) => {
                    let operand = c.reads.first().map(|b| View { ty: self.ty(*b), at: r.args[0] });
                    let result = c.writes.first().map(|b| View { ty: self.ty(*b), at: r.args[c.reads.len()] });
                    // SAFETY: buffers of this device, which runs one command at a time.
                    unsafe { collective::perform(op, self.program.device, links, operand, result) }
                        .map_err(|problem| DeviceError::Link { layer: c.origin.to_string(), problem })?;
                }
            }
        }
        Ok(())
    }

    fn launch(&self, k: usize, ready: &Ready, team: &Team) {
        /// What the tasks of a kernel share.
        struct Shared<'a> {
            args: &'a [*mut u8],
            scratch: *mut u8,
            scratch_bytes: usize,
        }
        // SAFETY: tasks write disjoint bytes, and each thread has its own scratch.
        unsafe impl Sync for Shared<'_> {}
        impl Shared<'_> {
            fn run(&self, code: &CpuCode, k: usize, tasks: std::ops::Range<usize>, member: usize) {
                // SAFETY: scratch has a piece for every member of the team; addresses are those of buffers of the
                // kernel's types, and the plan keeps results apart from operands.
                unsafe {
                    let start = self.scratch.add(member * self.scratch_bytes);
                    let scratch = std::slice::from_raw_parts_mut(start, self.scratch_bytes);
                    code.run(k, self.args, tasks, scratch);
                }
            }
        }
        let code = &self.code;
        let shared = Shared { args: &ready.args, scratch: self.scratch.at(0), scratch_bytes: self.scratch_bytes };
        team.run(code.tasks(k), &|tasks, member| shared.run(code, k, tasks, member));
    }

    fn leaf(&self, op: &Op, c: &Command) -> Result<(), DeviceError> {
        let operands: Vec<Tensor> = c
            .reads
            .iter()
            // SAFETY: buffers of this device, which runs one command at a time.
            .map(|b| unsafe { tensor(self.ty(*b), self.address(*b)) })
            .collect();
        let operands: Vec<&Tensor> = operands.iter().collect();
        let types: Vec<Type> = c.writes.iter().map(|b| self.ty(*b).clone()).collect();
        let results = op
            .eval(&operands, &types, &mut interp::Alone)
            .map_err(|problem| DeviceError::Leaf { layer: c.origin.to_string(), problem })?;
        for (t, b) in results.iter().zip(&c.writes) {
            // SAFETY: as above; the result has the buffer's type.
            unsafe { self.address(*b).copy_from_nonoverlapping(t.data.as_ptr(), t.data.len()) };
        }
        Ok(())
    }

    /// The messages that the device sends, with their sizes.
    pub(crate) fn routes(program: &DeviceProgram) -> Vec<(Route, usize)> {
        let ty = |b: &BufferId| &program.buffers[b.0 as usize].ty;
        program
            .prepare
            .iter()
            .chain(&program.step)
            .filter_map(|c| match &c.action {
                Action::Communicate(op) => Some(collective::routes(op, program.device, c.reads.first().map(ty))),
                Action::Kernel(_) | Action::Leaf(_) => None,
            })
            .flatten()
            .collect()
    }
}

/// The kernel of a command that wants an operand rearranged: kernel, operand, size.
fn pack_of(c: &Command, code: &CpuCode) -> Option<(usize, usize, usize)> {
    match c.action {
        Action::Kernel(k) => code.packed(k).map(|p| (k, p.operand, p.bytes)),
        Action::Leaf(_) | Action::Communicate(_) => None,
    }
}

/// A copy of a tensor in memory.
///
/// # Safety
/// `at` points to a tensor of type `ty`.
unsafe fn tensor(ty: &Type, at: *const u8) -> Tensor {
    // SAFETY: by the caller's promise.
    let data = unsafe { std::slice::from_raw_parts(at, ty.bytes()) }.to_vec();
    Tensor { ty: ty.clone(), data }
}
