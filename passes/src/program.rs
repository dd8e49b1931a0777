//! A device's program: buffers with addresses, and the commands that fill them.
//!
//! Values become buffers; views share their operand's. Weights and what follows from them alone are *persistent*: they
//! are written once, by the `prepare` commands. Everything else lives in the *arena*, at offsets that the memory plan
//! chose from the order of the `step` commands. The next value of a state is written in the state's place where nothing
//! reads the old one afterwards and every element follows from the old element at its own position (`in_place`).

mod in_place;

use crate::fuse::{Cluster, Region, Work, fuse};
use crate::listing::Stream;
use crate::memory::{self, Storage};
use cranelift_entity::SecondaryMap;
use in_place::Replaced;
use intwain_ir::compute::Compute;
use intwain_ir::ops::{Op, Scan};
use intwain_ir::{Graph, NodeId, Origin, Param, ParamKind, Rows, Target, Trainable, Type, Value};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Which memory a buffer is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Home {
    /// Kept from call to call, and written once, when weights load.
    Persistent,
    /// A state: kept from call to call, in the same memory, and changed by calls.
    State,
    /// Reused within a call.
    Arena,
}

impl Home {
    /// Whether what is there outlives a call.
    pub fn is_kept(self) -> bool {
        match self {
            Home::Persistent | Home::State => true,
            Home::Arena => false,
        }
    }
}

/// A place for a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Buffer {
    /// The tensor's type.
    pub ty: Type,
    /// Which memory.
    pub home: Home,
    /// First byte in that memory.
    pub offset: usize,
}

/// The number of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BufferId(pub u32);

/// A kernel to be generated. Equal kernels are generated once.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelSpec {
    /// The name of the layer that uses it first.
    pub name: String,
    /// What it computes.
    pub compute: Compute,
    /// Types of the operands, and whether each is written once, by the prepare commands.
    pub operands: Vec<(Type, Home)>,
    /// Types of the results.
    pub results: Vec<Type>,
}

/// What a command does.
#[derive(Clone, Debug, PartialEq)]
pub enum Action {
    /// Runs a kernel.
    Kernel(usize),
    /// Performs a leaf operation.
    Leaf(Op),
    /// Communicates.
    Communicate(Op),
    /// Repeats a program.
    Loop(Box<Loop>),
}

/// A program that is repeated, its states carried from step to step: a `scan`.
///
/// The body's parameters are, in order, the states, one position of each sequence, and tensors that every step sees;
/// its outputs are the new states, then what is stacked. Of the tensors that every step sees, those that are known when
/// weights load are weights of the body, so that its `prepare` commands run once.
#[derive(Clone, Debug, PartialEq)]
pub struct Loop {
    /// Number of steps.
    pub count: usize,
    /// Number of states.
    pub states: usize,
    /// Number of sequences.
    pub sequences: usize,
    /// For each parameter of the body its buffer there.
    pub params: Vec<BufferId>,
    /// One step.
    pub body: DeviceProgram,
}

/// What a device does next.
#[derive(Clone, Debug, PartialEq)]
pub struct Command {
    /// What it does.
    pub action: Action,
    /// The queue it is put in.
    pub stream: Stream,
    /// Buffers read, in operand order, with the types under which they are read.
    pub reads: Vec<BufferId>,
    /// Buffers written, in result order.
    pub writes: Vec<BufferId>,
    /// The layer it comes from.
    pub origin: Origin,
    /// The nodes it stands for.
    pub nodes: Vec<NodeId>,
}

/// A name that the host knows, and its buffer.
#[derive(Clone, Debug, PartialEq)]
pub struct Binding {
    /// Name of the parameter or output.
    pub name: Arc<str>,
    /// Its buffer.
    pub buffer: BufferId,
}

/// What one device holds and does.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceProgram {
    /// The device.
    pub device: usize,
    /// All buffers. A view has its own, at the address of what it views.
    pub buffers: Vec<Buffer>,
    /// Size of the persistent memory in bytes.
    pub persistent_bytes: usize,
    /// Size of the arena in bytes.
    pub arena_bytes: usize,
    /// The least arena that this order of commands allows.
    pub arena_lower_bound: usize,
    /// The kernels.
    pub kernels: Vec<KernelSpec>,
    /// Run once, when weights load.
    pub prepare: Vec<Command>,
    /// Run with every call.
    pub step: Vec<Command>,
    /// Inputs.
    pub inputs: Vec<Binding>,
    /// Weights.
    pub weights: Vec<Binding>,
    /// States: where the state is, and where its next value appears; `None` where that is the state's own place.
    pub states: Vec<(Binding, Option<BufferId>)>,
    /// Outputs.
    pub outputs: Vec<Binding>,
}

/// Makes the program of a Local graph from its clusters. Bodies of loops are fused for `target` here.
pub fn program(graph: &Graph, clusters: &[Cluster], target: &dyn Target) -> DeviceProgram {
    build(graph, clusters, target, &[])
}

/// The same, where the memory of some parameters is not used for anything else.
fn build(graph: &Graph, clusters: &[Cluster], target: &dyn Target, kept: &[Param]) -> DeviceProgram {
    let mut b = Builder::new(graph, clusters, target);
    for (at, cluster) in clusters.iter().enumerate() {
        b.cluster(at, cluster);
    }
    for p in kept {
        b.read(p.value);
    }
    b.finish()
}

/// Where a value lives: its storage, shared by views, and its own buffer.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    buffer: Option<BufferId>,
}

/// A piece of memory, used by a tensor and its views.
#[derive(Clone, Debug)]
struct Piece {
    bytes: usize,
    home: Home,
    first: usize,
    last: usize,
}

struct Builder<'g> {
    graph: &'g Graph,
    target: &'g dyn Target,
    places: SecondaryMap<Value, Place>,
    replaced: Replaced,
    pieces: Vec<Piece>,
    /// For each buffer: type and piece.
    buffers: Vec<(Type, usize)>,
    kernels: Vec<KernelSpec>,
    known: BTreeMap<String, usize>,
    prepare: Vec<Command>,
    step: Vec<Command>,
}

impl<'g> Builder<'g> {
    fn new(graph: &'g Graph, clusters: &[Cluster], target: &'g dyn Target) -> Builder<'g> {
        let mut b = Builder {
            graph,
            target,
            places: SecondaryMap::new(),
            replaced: if target.updates_in_place() { Replaced::new(graph, clusters) } else { Replaced::default() },
            pieces: Vec::new(),
            buffers: Vec::new(),
            kernels: Vec::new(),
            known: BTreeMap::new(),
            prepare: Vec::new(),
            step: Vec::with_capacity(clusters.len()),
        };
        for p in &graph.params {
            let home = match p.kind {
                ParamKind::Input { .. } => Home::Arena,
                ParamKind::Weight { .. } => Home::Persistent,
                ParamKind::State { .. } => Home::State,
            };
            b.define(p.value, home);
        }
        b
    }

    fn define(&mut self, value: Value, home: Home) -> BufferId {
        let ty = self.graph.ty(value).clone();
        // Inputs are written before the first command, other values by the command about to be added.
        let now = self.step.len();
        self.pieces.push(Piece { bytes: ty.bytes(), home, first: now, last: now });
        self.buffer(value, ty, self.pieces.len() - 1)
    }

    fn buffer(&mut self, value: Value, ty: Type, piece: usize) -> BufferId {
        let id = BufferId(self.buffers.len() as u32);
        self.buffers.push((ty, piece));
        self.places[value].buffer = Some(id);
        id
    }

    fn read(&mut self, value: Value) -> BufferId {
        let id = self.places[value].buffer.expect("clusters read parameters and earlier results");
        let piece = self.buffers[id.0 as usize].1;
        self.pieces[piece].last = self.step.len();
        id
    }

    fn cluster(&mut self, at: usize, c: &Cluster) {
        let reads: Vec<BufferId> = c.args.iter().map(|a| self.read(*a)).collect();
        let home = match c.region {
            Region::Prepare => Home::Persistent,
            Region::Step => Home::Arena,
        };
        let action = match &c.work {
            Work::View => {
                let piece = self.buffers[reads[0].0 as usize].1;
                self.buffer(c.results[0], self.graph.ty(c.results[0]).clone(), piece);
                return;
            }
            Work::Kernel(compute) => Action::Kernel(self.kernel(compute, &reads, c)),
            Work::Leaf(Op::Scan(scan)) => Action::Loop(Box::new(self.scan(scan, &reads))),
            Work::Leaf(op) => Action::Leaf(op.clone()),
            Work::Communication(op) => Action::Communicate(op.clone()),
        };
        let stream = match &c.work {
            Work::Communication(Op::Recv(_)) => Stream::CopyIn,
            Work::Communication(_) => Stream::CopyOut,
            Work::View | Work::Kernel(_) | Work::Leaf(_) => Stream::Compute,
        };
        let mut write = |r: &Value| match self.replaced.by(at, *r) {
            Some(state) => {
                let place = self.read(state);
                let piece = self.buffers[place.0 as usize].1;
                self.buffer(*r, self.graph.ty(*r).clone(), piece)
            }
            None => self.define(*r, home),
        };
        let writes = c.results.iter().map(&mut write).collect();
        let (origin, nodes) = (c.origin.clone(), c.nodes.clone());
        let command = Command { action, stream, reads, writes, origin, nodes };
        match c.region {
            Region::Prepare => self.prepare.push(command),
            Region::Step => self.step.push(command),
        }
    }

    fn scan(&self, scan: &Scan, reads: &[BufferId]) -> Loop {
        let mut body = (*scan.body).clone();
        let first_whole = scan.states + scan.sequences;
        for (i, (p, read)) in body.params.iter_mut().zip(reads).enumerate() {
            let home = self.pieces[self.buffers[read.0 as usize].1].home;
            p.kind = match home {
                Home::Persistent if i >= first_whole => ParamKind::Weight { trainable: Trainable::Frozen },
                Home::Persistent | Home::State | Home::Arena => ParamKind::Input { rows: Rows::Whole },
            };
        }
        let clusters = fuse(&body, self.target);
        // What every step sees is written once, before the first step.
        let program = build(&body, &clusters, self.target, &body.params[first_whole..]);
        let find = |name: &str| {
            let all = program.inputs.iter().chain(&program.weights);
            all.into_iter().find(|b| *b.name == *name).map(|b| b.buffer).expect("every parameter has a buffer")
        };
        let params = body.params.iter().map(|p| find(&p.name)).collect();
        Loop { count: scan.count, states: scan.states, sequences: scan.sequences, params, body: program }
    }

    fn kernel(&mut self, compute: &Compute, reads: &[BufferId], c: &Cluster) -> usize {
        let operands: Vec<(Type, Home)> = reads
            .iter()
            .map(|r| {
                let (ty, piece) = &self.buffers[r.0 as usize];
                (ty.clone(), self.pieces[*piece].home)
            })
            .collect();
        let results: Vec<Type> = c.results.iter().map(|r| self.graph.ty(*r).clone()).collect();
        let key = format!("{compute}{operands:?}{results:?}");
        if let Some(&k) = self.known.get(&key) {
            return k;
        }
        let k = self.kernels.len();
        let name = c.origin.path().to_string();
        self.kernels.push(KernelSpec { name, compute: compute.clone(), operands, results });
        self.known.insert(key, k);
        k
    }

    fn finish(mut self) -> DeviceProgram {
        let end = self.step.len();
        let bind = |b: &Self, name: &Arc<str>, v: Value| Binding {
            name: name.clone(),
            buffer: b.places[v].buffer.expect("outputs and parameters have buffers"),
        };
        let outputs: Vec<Binding> = self.graph.outputs.iter().map(|o| bind(&self, &o.name, o.value)).collect();
        let (mut inputs, mut weights, mut states) = (Vec::new(), Vec::new(), Vec::new());
        for p in &self.graph.params {
            let binding = bind(&self, &p.name, p.value);
            match &p.kind {
                ParamKind::Input { .. } => inputs.push(binding),
                ParamKind::Weight { .. } => weights.push(binding),
                ParamKind::State { next } => {
                    let next = next.filter(|v| !self.replaced.replaces(*v, p.value));
                    states.push((binding, next.and_then(|v| self.places[v].buffer)));
                }
            }
        }
        for id in outputs.iter().map(|o| o.buffer).chain(states.iter().filter_map(|s| s.1)) {
            let piece = self.buffers[id.0 as usize].1;
            self.pieces[piece].last = end;
        }
        let (offsets, persistent_bytes, plan) = self.addresses();
        let buffers = self.buffers.into_iter().map(|(ty, piece)| {
            let home = self.pieces[piece].home;
            Buffer { ty, home, offset: offsets[piece] }
        });
        DeviceProgram {
            device: self.graph.device,
            buffers: buffers.collect(),
            persistent_bytes,
            arena_bytes: plan.size,
            arena_lower_bound: plan.lower_bound,
            kernels: self.kernels,
            prepare: self.prepare,
            step: self.step,
            inputs,
            weights,
            states,
            outputs,
        }
    }

    /// Offsets of the pieces, the persistent size, and the arena's plan.
    fn addresses(&self) -> (Vec<usize>, usize, memory::MemoryPlan) {
        let mut offsets = vec![0; self.pieces.len()];
        let mut persistent = 0;
        let (mut arena, mut which) = (Vec::new(), Vec::new());
        for (i, p) in self.pieces.iter().enumerate() {
            match p.home {
                Home::Persistent | Home::State => {
                    offsets[i] = persistent;
                    persistent += p.bytes.next_multiple_of(memory::CPU_ALIGNMENT);
                }
                Home::Arena => {
                    arena.push(memory::Buffer { size: p.bytes, life: p.first..=p.last, storage: Storage::Own });
                    which.push(i);
                }
            }
        }
        let plan = memory::plan(&arena, memory::CPU_ALIGNMENT);
        for (&i, &offset) in which.iter().zip(&plan.offsets) {
            offsets[i] = offset;
        }
        (offsets, persistent, plan)
    }
}
