//! One CPU device of a program: its memory, its kernels and its commands.

use super::collective::{self, Part, View};
use super::device::{Device, DeviceError, LoadError, loops};
use super::links::Links;
use super::memory::Region;
use super::team::Team;
use crate::kernels;
use intwain_codegen::schedule::CpuCode;
use intwain_ir::ops::Op;
use intwain_ir::{Tensor, Type, interp};
use intwain_passes::program::{Action, BufferId, Command, DeviceProgram, Home, Loop};
use std::sync::Arc;

/// A command with its addresses.
struct Ready {
    /// Operands, then results.
    args: Vec<*mut u8>,
}

/// A device's program with memory and kernels.
pub(super) struct CpuDevice {
    program: DeviceProgram,
    team: Arc<Team>,
    code: CpuCode,
    persistent: Region,
    arena: Region,
    /// Rearranged operands, one per command that has one.
    packed: Region,
    prepare: Vec<Ready>,
    step: Vec<Ready>,
    /// (kernel, source, destination) of every rearrangement.
    packs: Vec<(usize, *const u8, *mut u8)>,
    /// The bodies of the loops, in the order of the commands.
    bodies: Vec<CpuDevice>,
    /// One piece per thread.
    scratch: Region,
    scratch_bytes: usize,
}

// SAFETY: the pointers lead into the regions that the device owns; who runs it runs it alone (`&mut self`).
unsafe impl Send for CpuDevice {}

impl CpuDevice {
    /// Compiles kernels, allocates memory and resolves addresses.
    pub(super) fn new(program: DeviceProgram, team: Arc<Team>) -> Result<CpuDevice, LoadError> {
        let code = kernels::compile(&program)?;
        let loops = program.prepare.iter().chain(&program.step).filter_map(|c| match &c.action {
            Action::Loop(l) => Some(l),
            Action::Kernel(_) | Action::Leaf(_) | Action::Communicate(_) => None,
        });
        let bodies = loops.map(|l| CpuDevice::new(l.body.clone(), team.clone())).collect::<Result<_, _>>()?;
        let persistent = Region::new(program.persistent_bytes)?;
        let arena = Region::new(program.arena_bytes)?;
        let scratch_bytes = (0..program.kernels.len()).map(|k| code.scratch_bytes(k)).max().unwrap_or(0);
        let scratch_bytes = scratch_bytes.next_multiple_of(super::memory::ALIGNMENT);
        let scratch = Region::new(scratch_bytes * team.threads())?;
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
        let mut device = CpuDevice {
            program,
            team,
            code,
            persistent,
            arena,
            packed,
            prepare: Vec::new(),
            step: Vec::new(),
            packs: Vec::new(),
            bodies,
            scratch,
            scratch_bytes,
        };
        let at = |d: &CpuDevice, k: usize, b: BufferId| {
            wanted.iter().position(|w| *w == (k, b)).map(|i| d.packed.at(offsets[i]))
        };
        let ready = |d: &CpuDevice, c: &Command| {
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

    /// Address and type of a buffer.
    fn buffer(&self, id: BufferId) -> (*mut u8, &Type) {
        (self.address(id), self.ty(id))
    }

    /// Rearranges operands, by where their rearranged copies are.
    fn rearrange(&self, wanted: impl Fn(*mut u8) -> bool) {
        for &(k, from, to) in self.packs.iter().filter(|(_, _, to)| wanted(*to)) {
            // SAFETY: addresses of an operand and of the room reserved for its copy.
            unsafe { self.code.pack(k, from, to) };
        }
    }

    /// Gives the body of a loop the tensors that every step sees and that are known when weights load, and lets it make
    /// what follows from them.
    fn prepare_body(&mut self, c: &Command, body: usize, links: &Links) -> Result<(), DeviceError> {
        let Action::Loop(l) = &c.action else { return Ok(()) };
        for (read, param) in c.reads.iter().zip(&l.params).skip(l.states + l.sequences) {
            if self.program.buffers[read.0 as usize].home == Home::Persistent {
                let (from, ty) = self.buffer(*read);
                let (to, _) = self.bodies[body].buffer(*param);
                // SAFETY: operand and parameter have one type, in memories of their own.
                unsafe { to.copy_from_nonoverlapping(from, ty.bytes()) };
            }
        }
        self.bodies[body].prepare(links)
    }

    /// Runs commands; `next_loop` numbers the body of the first loop among them.
    fn run(
        &self,
        commands: &[Command],
        ready: &[Ready],
        mut next_loop: usize,
        links: &Links,
    ) -> Result<(), DeviceError> {
        for (c, r) in commands.iter().zip(ready) {
            links.beat();
            match &c.action {
                Action::Loop(l) => {
                    self.repeat(l, &self.bodies[next_loop], r, links)?;
                    next_loop += 1;
                }
                Action::Kernel(k) => self.launch(*k, r),
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

    fn launch(&self, k: usize, ready: &Ready) {
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
        self.team.run(code.tasks(k), &|tasks, member| shared.run(code, k, tasks, member));
    }

    /// Runs the steps of a loop: states and the positions of the sequences go into the body's buffers, new states and
    /// stacked results come out of them.
    fn repeat(&self, l: &Loop, body: &CpuDevice, ready: &Ready, links: &Links) -> Result<(), DeviceError> {
        let (operands, results) = ready.args.split_at(l.params.len());
        let first_whole = l.states + l.sequences;
        let copy = |from: *const u8, to: *mut u8, bytes: usize| {
            // SAFETY: buffers of the types that the verifier has compared; bodies have memory of their own.
            unsafe { to.copy_from_nonoverlapping(from, bytes) };
        };
        let at = |base: *mut u8, step: usize, bytes: usize| base.wrapping_add(step * bytes);
        let param = |i: usize| body.buffer(l.params[i]);
        for i in (0..l.states).chain(first_whole..l.params.len()) {
            let (to, ty) = param(i);
            copy(operands[i], to, ty.bytes());
        }
        for step in 0..l.count {
            for (i, operand) in operands.iter().enumerate().take(first_whole).skip(l.states) {
                let (to, ty) = param(i);
                copy(at(*operand, step, ty.bytes()), to, ty.bytes());
            }
            body.run(&body.program.step, &body.step, loops(&body.program.prepare), links)?;
            for (o, result) in body.program.outputs.iter().zip(results).skip(l.states) {
                let (from, ty) = body.buffer(o.buffer);
                copy(from, at(*result, step, ty.bytes()), ty.bytes());
            }
            // New states may be the old ones of other states, so all leave before any enters.
            for (o, result) in body.program.outputs.iter().zip(results).take(l.states) {
                let (from, ty) = body.buffer(o.buffer);
                copy(from, *result, ty.bytes());
            }
            for (i, result) in results.iter().enumerate().take(l.states) {
                let (to, ty) = param(i);
                copy(*result, to, ty.bytes());
            }
        }
        if l.count == 0 {
            for i in 0..l.states {
                copy(operands[i], results[i], param(i).1.bytes());
            }
        }
        Ok(())
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
}

impl Device for CpuDevice {
    fn bytes(&self) -> usize {
        let own = self.persistent.len() + self.arena.len() + self.packed.len() + self.scratch.len();
        own + self.bodies.iter().map(|b| b.bytes()).sum::<usize>()
    }

    unsafe fn put(&mut self, id: BufferId, part: Option<&Part>, from: *const u8) -> Result<(), DeviceError> {
        let (to, ty) = self.buffer(id);
        match part {
            // SAFETY: by the caller's promise; the buffer has room for the part.
            Some(part) => unsafe { part.read(from, to) },
            // SAFETY: by the caller's promise.
            None => unsafe { to.copy_from_nonoverlapping(from, ty.bytes()) },
        }
        Ok(())
    }

    unsafe fn take(&mut self, id: BufferId, part: Option<&Part>, to: *mut u8) -> Result<(), DeviceError> {
        let (from, ty) = self.buffer(id);
        match part {
            // SAFETY: by the caller's promise; the buffer holds the part.
            Some(part) => unsafe { part.write(from, to) },
            // SAFETY: by the caller's promise.
            None => unsafe { to.copy_from_nonoverlapping(from, ty.bytes()) },
        }
        Ok(())
    }

    fn prepare(&mut self, links: &Links) -> Result<(), DeviceError> {
        let mut next_loop = 0;
        let loops = |c: &Command| usize::from(matches!(c.action, Action::Loop(_)));
        for i in 0..self.program.prepare.len() {
            let c = self.program.prepare[i].clone();
            // What it reads may be what the command before has made.
            self.prepare_body(&c, next_loop, links)?;
            let args = &self.prepare[i].args;
            self.rearrange(|to| args.contains(&to));
            self.run(std::slice::from_ref(&c), std::slice::from_ref(&self.prepare[i]), next_loop, links)?;
            next_loop += loops(&c);
        }
        for i in 0..self.program.step.len() {
            let c = self.program.step[i].clone();
            self.prepare_body(&c, next_loop, links)?;
            next_loop += loops(&c);
        }
        self.rearrange(|_| true);
        Ok(())
    }

    fn step(&mut self, links: &Links) -> Result<(), DeviceError> {
        let first = loops(&self.program.prepare);
        self.run(&self.program.step, &self.step, first, links)?;
        for (state, next) in &self.program.states {
            if let Some(next) = next {
                let (from, to) = (self.address(*next), self.address(state.buffer));
                // SAFETY: both have the state's type; the verifier checks it.
                unsafe { to.copy_from(from, self.ty(*next).bytes()) };
            }
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn reset(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }
}

/// The kernel of a command that wants an operand rearranged: kernel, operand, size.
fn pack_of(c: &Command, code: &CpuCode) -> Option<(usize, usize, usize)> {
    match c.action {
        Action::Kernel(k) => code.packed(k).map(|p| (k, p.operand, p.bytes)),
        Action::Leaf(_) | Action::Communicate(_) | Action::Loop(_) => None,
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
