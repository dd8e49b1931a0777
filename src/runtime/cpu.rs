//! One CPU device of a program: its memory, its kernels and its commands.

use super::collective::{self, Part, View};
use super::device::{Device, DeviceError, LoadError, loops, needed};
use super::links::Links;
use super::memory::Region;
use super::pool::{Destination, Form, Piece, Pool, WeightKey};
use super::team::Team;
use crate::kernels;
use intwain_codegen::schedule::{CpuCode, Packed};
use intwain_ir::ops::Op;
use intwain_ir::{Tensor, Type, interp};
use intwain_passes::program::{Action, Buffer, BufferId, Command, DeviceProgram, Home, Loop};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// A command with its addresses.
struct Ready {
    /// Operands, then results.
    args: Vec<*mut u8>,
    /// For communication the place in the list of the first later command that touches a result.
    needed: usize,
}

/// A weight of the program.
struct Weight {
    buffer: BufferId,
    /// Row-major; `None` where kernels want it packed only.
    plain: Option<Arc<Piece>>,
    /// The rearrangements of it.
    packs: Vec<usize>,
}

/// A rearrangement of an operand.
struct Pack {
    kernel: usize,
    source: BufferId,
    target: Arc<Piece>,
    /// What is rearranged: a weight as it was read, or what commands made of weights.
    of: PackedOf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum PackedOf {
    Weight,
    Prepared,
}

/// A device's program with memory and kernels.
pub(super) struct CpuDevice {
    program: DeviceProgram,
    team: Arc<Team>,
    code: CpuCode,
    /// Persistent buffers but for the weights.
    persistent: Region,
    arena: Region,
    /// By buffer; null where a weight is there in packed form only.
    addresses: Vec<*mut u8>,
    weights: Vec<Weight>,
    prepare: Vec<Ready>,
    step: Vec<Ready>,
    packs: Vec<Pack>,
    /// Room for a weight that is read in order to be packed.
    staging: Option<Region>,
    /// The bodies of the loops, in the order of the commands.
    bodies: Vec<CpuDevice>,
    /// One piece per thread.
    scratch: Region,
    scratch_bytes: usize,
}

// SAFETY: the pointers lead into the regions and pieces that the device holds; who runs it runs it alone (`&mut self`), and
// pieces that others hold too are only read once they are filled.
unsafe impl Send for CpuDevice {}

impl CpuDevice {
    /// Compiles kernels, allocates memory and resolves addresses. `weights` are what the pool may have; other weights are
    /// the program's own.
    pub(super) fn new(
        program: DeviceProgram,
        team: Arc<Team>,
        weights: &[(BufferId, WeightKey)],
        pool: &Pool,
    ) -> Result<CpuDevice, LoadError> {
        let code = kernels::compile(&program)?;
        let loops = program.prepare.iter().chain(&program.step).filter_map(|c| match &c.action {
            Action::Loop(l) => Some(l),
            Action::Kernel(_) | Action::Leaf(_) | Action::Communicate(_) => None,
        });
        let body = |l: &Loop| CpuDevice::new(l.body.clone(), team.clone(), &[], pool);
        let bodies = loops.map(|l| body(l)).collect::<Result<_, _>>()?;
        let arena = Region::new(program.arena_bytes)?;
        let scratch_bytes = (0..program.kernels.len()).map(|k| code.scratch_bytes(k)).max().unwrap_or(0);
        let scratch_bytes = scratch_bytes.next_multiple_of(super::memory::ALIGNMENT);
        let scratch = Region::new(scratch_bytes * team.threads())?;
        let keys: BTreeMap<usize, &WeightKey> = weights
            .iter()
            .filter(|(_, key)| key.ty.bytes() > 0)
            .map(|(id, key)| (program.buffers[id.0 as usize].offset, key))
            .collect();
        let packs = packs(&program, &code, &keys, pool)?;
        let read_plain = read_plain(&program, &code);
        let (persistent, mut addresses) = lay_out(&program, &arena, &keys)?;
        let mut known = Vec::new();
        for (id, key) in weights.iter().filter(|(_, key)| key.ty.bytes() > 0) {
            let offset = program.buffers[id.0 as usize].offset;
            let of_it = |p: &Pack| p.of == PackedOf::Weight && program.buffers[p.source.0 as usize].offset == offset;
            let own: Vec<usize> = (0..packs.len()).filter(|&i| of_it(&packs[i])).collect();
            let plain = match own.is_empty() || read_plain.contains(&offset) {
                true => Some(pool.piece(key, Form::Plain, key.ty.bytes())?),
                false => None,
            };
            let at = plain.as_ref().map_or(std::ptr::null_mut(), |p| p.region.at(0));
            for (b, address) in program.buffers.iter().zip(&mut addresses) {
                if b.home == Home::Persistent && b.offset == offset {
                    *address = at;
                }
            }
            known.push(Weight { buffer: *id, plain, packs: own });
        }
        let mut device = CpuDevice {
            program,
            team,
            code,
            persistent,
            arena,
            addresses,
            weights: known,
            prepare: Vec::new(),
            step: Vec::new(),
            packs,
            staging: None,
            bodies,
            scratch,
            scratch_bytes,
        };
        // Prepare commands run one by one.
        device.prepare = device.program.prepare.iter().map(|c| device.ready(c, 0)).collect();
        let step = &device.program.step;
        device.step = step.iter().enumerate().map(|(at, c)| device.ready(c, needed(&device.program, at))).collect();
        Ok(device)
    }

    fn ready(&self, c: &Command, needed: usize) -> Ready {
        let mut args: Vec<*mut u8> = c.reads.iter().chain(&c.writes).map(|b| self.address(*b)).collect();
        if let Some((kernel, packed)) = pack_of(c, &self.code)
            && let Some(p) = self.packs.iter().find(|p| (p.kernel, p.source) == (kernel, c.reads[packed.operand]))
        {
            args[packed.operand] = p.target.region.at(0);
        }
        Ready { args, needed }
    }

    fn address(&self, id: BufferId) -> *mut u8 {
        self.addresses[id.0 as usize]
    }

    fn ty(&self, id: BufferId) -> &Type {
        &self.program.buffers[id.0 as usize].ty
    }

    /// Address and type of a buffer.
    fn buffer(&self, id: BufferId) -> (*mut u8, &Type) {
        (self.address(id), self.ty(id))
    }

    /// Rearranges what commands have made of weights, by where the rearranged copies are.
    fn rearrange(&self, wanted: impl Fn(*mut u8) -> bool) {
        for p in self.packs.iter().filter(|p| p.of == PackedOf::Prepared && wanted(p.target.region.at(0))) {
            // SAFETY: addresses of an operand and of the room reserved for its copy.
            unsafe { self.code.pack(p.kernel, self.address(p.source), p.target.region.at(0)) };
        }
    }

    /// Makes the rearranged copies of a weight that nobody has made.
    fn pack(&self, weight: &Weight, from: *const u8) {
        for p in weight.packs.iter().map(|&i| &self.packs[i]).filter(|p| !p.target.is_filled()) {
            // SAFETY: `from` is the weight, in the operand's type; the target is as large as the packing says.
            unsafe { self.code.pack(p.kernel, from, p.target.region.at(0)) };
            p.target.fill();
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

    /// Runs commands; `next_loop` numbers the body of the first loop among them. What communication brings is received
    /// when a command needs it.
    fn run(
        &self,
        commands: &[Command],
        ready: &[Ready],
        mut next_loop: usize,
        links: &Links,
    ) -> Result<(), DeviceError> {
        let mut under_way: Vec<usize> = Vec::new();
        for (at, (c, r)) in commands.iter().zip(ready).enumerate() {
            links.beat();
            let (due, later) = under_way.into_iter().partition(|&i| ready[i].needed <= at);
            under_way = later;
            self.receive(due, commands, ready, links)?;
            match &c.action {
                Action::Loop(l) => {
                    self.repeat(l, &self.bodies[next_loop], r, links)?;
                    next_loop += 1;
                }
                Action::Kernel(k) => self.launch(*k, r),
                Action::Leaf(op) => self.leaf(op, c)?,
                Action::Communicate(op) => {
                    let (operands, results) = self.views(c, r);
                    // SAFETY: buffers of this device, which runs one command at a time.
                    unsafe { collective::post(op, self.program.device, links, &operands, &results) }
                        .map_err(|problem| DeviceError::Link { layer: c.origin.to_string(), problem })?;
                    under_way.push(at);
                }
            }
        }
        self.receive(under_way, commands, ready, links)
    }

    /// Operands and results of a command.
    fn views(&self, c: &Command, r: &Ready) -> (Vec<View<'_>>, Vec<View<'_>>) {
        let (operands, results) = r.args.split_at(c.reads.len());
        let view = |(b, at): (&BufferId, &*mut u8)| View { ty: self.ty(*b), at: *at };
        (c.reads.iter().zip(operands).map(view).collect(), c.writes.iter().zip(results).map(view).collect())
    }

    /// Ends communications, by their places in the list.
    fn receive(
        &self,
        which: Vec<usize>,
        commands: &[Command],
        ready: &[Ready],
        links: &Links,
    ) -> Result<(), DeviceError> {
        for at in which {
            let c = &commands[at];
            let Action::Communicate(op) = &c.action else { continue };
            let (_, results) = self.views(c, &ready[at]);
            // SAFETY: as for the first half; no command since has touched the results.
            unsafe { collective::complete(op, self.program.device, links, &results) }
                .map_err(|problem| DeviceError::Link { layer: c.origin.to_string(), problem })?;
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
        let made = self.packs.iter().filter(|p| p.of == PackedOf::Prepared).map(|p| p.target.place().1);
        let own = self.persistent.len() + self.arena.len() + self.scratch.len() + made.sum::<usize>();
        own + self.bodies.iter().map(|b| b.bytes()).sum::<usize>()
    }

    fn shared(&self) -> Vec<(usize, usize)> {
        let plain = self.weights.iter().filter_map(|w| w.plain.as_ref());
        let packed = self.packs.iter().filter(|p| p.of == PackedOf::Weight).map(|p| &p.target);
        plain.chain(packed).map(|piece| piece.place()).collect()
    }

    fn destination(&mut self, id: BufferId) -> Result<Destination, LoadError> {
        let Some(weight) = self.weights.iter().find(|w| w.buffer == id) else { return Ok(Destination::Ready) };
        let packed = weight.packs.iter().all(|&i| self.packs[i].target.is_filled());
        match &weight.plain {
            Some(plain) if plain.is_filled() => {
                self.pack(weight, plain.region.at(0));
                Ok(Destination::Ready)
            }
            Some(plain) => Ok(Destination::Memory(plain.region.at(0))),
            None if packed => Ok(Destination::Ready),
            None => {
                let bytes = self.ty(id).bytes();
                // The old room goes before there is a larger one.
                self.staging = self.staging.take().filter(|room| room.len() >= bytes);
                let room = match self.staging.take() {
                    Some(room) => room,
                    None => Region::new(bytes)?,
                };
                Ok(Destination::Memory(self.staging.insert(room).at(0)))
            }
        }
    }

    fn loaded(&mut self, id: BufferId) {
        let Some(weight) = self.weights.iter().find(|w| w.buffer == id) else { return };
        if let Some(from) = weight.plain.as_ref().map(|p| &p.region).or(self.staging.as_ref()) {
            self.pack(weight, from.at(0));
        }
        weight.plain.iter().for_each(|p| p.fill());
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
        self.staging = None;
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
        self.run(&self.program.step, &self.step, first, links)
    }

    fn advance(&mut self) -> Result<(), DeviceError> {
        let moves = self.program.states.iter().filter_map(|(state, next)| Some(((*next)?, state.buffer)));
        let (kept, made): (Vec<_>, Vec<_>) =
            moves.partition(|(next, _)| self.program.buffers[next.0 as usize].home.is_kept());
        let leaving = kept.iter().map(|&(next, state)| {
            let (from, ty) = self.buffer(next);
            // SAFETY: a buffer of this device, which runs one command at a time.
            (unsafe { tensor(ty, from) }.data, state)
        });
        let leaving: Vec<(Vec<u8>, BufferId)> = leaving.collect();
        for (next, state) in made {
            let (from, ty) = self.buffer(next);
            // SAFETY: both have the state's type, the verifier checks it, and are in memories of their own.
            unsafe { self.address(state).copy_from_nonoverlapping(from, ty.bytes()) };
        }
        for (bytes, state) in leaving {
            // SAFETY: they have the state's type.
            unsafe { self.address(state).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        }
        Ok(())
    }

    fn forget(&mut self) -> Result<(), DeviceError> {
        for (state, _) in &self.program.states {
            let (at, ty) = self.buffer(state.buffer);
            // SAFETY: a buffer of this device, which runs one command at a time.
            unsafe { at.write_bytes(0, ty.bytes()) };
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

/// The kernel of a command that wants an operand rearranged, and how.
fn pack_of(c: &Command, code: &CpuCode) -> Option<(usize, Packed)> {
    match c.action {
        Action::Kernel(k) => code.packed(k).map(|p| (k, p)),
        Action::Leaf(_) | Action::Communicate(_) | Action::Loop(_) => None,
    }
}

/// The rearrangements of a program, one of each operand and kernel. `keys` are the weights of the pool by their offsets.
fn packs(
    program: &DeviceProgram,
    code: &CpuCode,
    keys: &BTreeMap<usize, &WeightKey>,
    pool: &Pool,
) -> Result<Vec<Pack>, LoadError> {
    let mut packs: Vec<Pack> = Vec::new();
    let mut known = BTreeSet::new();
    for c in program.prepare.iter().chain(&program.step) {
        let Some((kernel, packed)) = pack_of(c, code) else { continue };
        let source = c.reads[packed.operand];
        if !known.insert((kernel, source)) {
            continue;
        }
        let b = &program.buffers[source.0 as usize];
        let (target, of) = match keys.get(&b.offset).filter(|_| b.home == Home::Persistent) {
            Some(key) => (pool.piece(key, Form::Packed(packed.form), packed.bytes)?, PackedOf::Weight),
            None => (Piece::new(packed.bytes)?, PackedOf::Prepared),
        };
        packs.push(Pack { kernel, source, target, of });
    }
    Ok(packs)
}

/// Offsets of the persistent buffers that something reads as they are.
fn read_plain(program: &DeviceProgram, code: &CpuCode) -> BTreeSet<usize> {
    let mut read: BTreeSet<BufferId> = program.outputs.iter().map(|o| o.buffer).collect();
    for (state, next) in &program.states {
        read.insert(state.buffer);
        read.extend(*next);
    }
    for c in program.prepare.iter().chain(&program.step) {
        let packed = pack_of(c, code).map(|(_, packed)| packed.operand);
        read.extend(c.reads.iter().enumerate().filter(|(i, _)| Some(*i) != packed).map(|(_, b)| *b));
    }
    let buffers = read.iter().map(|id| &program.buffers[id.0 as usize]);
    buffers.filter(|b| b.home.is_kept()).map(|b| b.offset).collect()
}

/// Memory for the persistent buffers that are no weights of the pool, and the addresses of all buffers: those of the
/// pool's are null.
fn lay_out(
    program: &DeviceProgram,
    arena: &Region,
    keys: &BTreeMap<usize, &WeightKey>,
) -> Result<(Region, Vec<*mut u8>), LoadError> {
    // Views have the offset of what they view.
    let mut sizes: BTreeMap<usize, usize> = BTreeMap::new();
    for b in program.buffers.iter().filter(|b| b.home.is_kept() && !keys.contains_key(&b.offset)) {
        let size = sizes.entry(b.offset).or_default();
        *size = b.ty.bytes().max(*size);
    }
    let mut bytes = 0;
    for place in sizes.values_mut() {
        let size = std::mem::replace(place, bytes);
        bytes += size.next_multiple_of(super::memory::ALIGNMENT);
    }
    let persistent = Region::new(bytes)?;
    let address = |b: &Buffer| match b.home {
        Home::Arena => arena.at(b.offset),
        Home::Persistent | Home::State => sizes.get(&b.offset).map_or(std::ptr::null_mut(), |at| persistent.at(*at)),
    };
    let addresses = program.buffers.iter().map(address).collect();
    Ok((persistent, addresses))
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
