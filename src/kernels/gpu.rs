//! Kernels for GPUs: all kernels of a device's programs as one PTX module, and what each command launches.

use intwain_codegen::ptx::{self, EmitError};
use intwain_codegen::schedule::gpu::{Argument, ExchangeArgument, Gpu, GpuKernel};
use intwain_ir::kernel::{Entry, Kernel};
use intwain_ir::ops::Op;
use intwain_ir::{Tensor, Type, interp};
use intwain_passes::program::{Action, BufferId, Command, DeviceProgram, KernelSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The code of a device's program.
#[derive(Clone, Debug)]
pub(crate) struct GpuCode {
    /// The PTX module. Programs for other numbers of rows may have kernels in it too.
    pub(crate) text: Arc<str>,
    /// Names of its kernels.
    pub(crate) kernels: Arc<[String]>,
    /// What the program launches.
    pub(crate) launches: Launches,
    /// Bytes that the launches of a command share.
    pub(crate) workspace: usize,
}

/// What a program launches.
#[derive(Clone, Debug, Default)]
pub(crate) struct Launches {
    /// For each kernel of the program, its launches in order.
    pub(crate) kernels: Vec<Vec<Launch>>,
    /// Its leaves, in the order of the commands, those of `prepare` first.
    pub(crate) leaves: Vec<Leaf>,
    /// Its communications, in the order of the commands, those of `prepare` first.
    pub(crate) communications: Vec<Communication>,
    /// The bodies of its loops, in the order of the commands, those of `prepare` first.
    pub(crate) bodies: Vec<Launches>,
}

/// One kernel of the module and what its parameters are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Launch<A = Argument> {
    /// Place in the module's list.
    pub(crate) kernel: usize,
    /// Blocks along x, y, z.
    pub(crate) grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub(crate) block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub(crate) shared: u32,
    /// What its parameters are.
    pub(crate) args: Vec<A>,
}

/// What a device does for a leaf operation.
#[derive(Clone, Debug)]
pub(crate) enum Leaf {
    /// Launches kernels.
    Launch(Vec<Launch>),
    /// Copies a tensor that is written into the program.
    Constant(Tensor),
}

/// What a device does for a communication.
#[derive(Clone, Debug)]
pub(crate) struct Communication {
    /// The channel, whose mailbox the device keeps.
    pub(crate) channel: usize,
    /// Bytes of the mailbox; 0 if nothing is sent either way.
    pub(crate) mailbox: usize,
    /// The kernel; none if there is nothing to do.
    pub(crate) launch: Option<Launch<ExchangeArgument>>,
}

/// Schedules and emits the kernels of the devices' programs and of the bodies of their loops.
pub(crate) fn compile(gpu: &Gpu, programs: &[DeviceProgram]) -> Result<Vec<GpuCode>, EmitError> {
    Ok(compile_variants(gpu, &[programs])?.remove(0))
}

/// The same for several programs of one device, whose kernels are in one module.
fn compile_all(gpu: &Gpu, programs: &[&DeviceProgram]) -> Result<Vec<GpuCode>, EmitError> {
    let mut module =
        Collector { gpu, kernels: Vec::new(), known: BTreeMap::new(), names: BTreeSet::new(), workspace: 0 };
    let mut made = Vec::new();
    for program in programs {
        module.workspace = 0;
        let launches = module.program(program)?;
        made.push((launches, module.workspace));
    }
    let text: Arc<str> = ptx::module(&module.kernels.iter().collect::<Vec<_>>())?.into();
    let kernels: Arc<[String]> = module.kernels.into_iter().map(|k| k.name).collect();
    let code = |(launches, workspace)| GpuCode { text: text.clone(), kernels: kernels.clone(), launches, workspace };
    Ok(made.into_iter().map(code).collect())
}

/// The code of the devices of several programs for one model, in the order of the programs: each device has one module.
/// Devices are worked on at the same time; those that do the same share what is made.
pub(crate) fn compile_variants(gpu: &Gpu, variants: &[&[DeviceProgram]]) -> Result<Vec<Vec<GpuCode>>, EmitError> {
    let devices = variants.iter().map(|v| v.len()).max().unwrap_or(0);
    let of = |d: usize| variants.iter().filter_map(|v| v.get(d)).collect::<Vec<&DeviceProgram>>();
    let programs: Vec<Vec<&DeviceProgram>> = (0..devices).map(of).collect();
    // For each device the first that does the same.
    let like = |d: usize| (0..d).find(|&e| alike(&programs[e], &programs[d])).unwrap_or(d);
    let like: Vec<usize> = (0..devices).map(like).collect();
    let code: Vec<Option<Vec<GpuCode>>> = std::thread::scope(|scope| {
        let compile = |d: usize| {
            let programs = &programs[d];
            (like[d] == d).then(|| scope.spawn(move || compile_all(gpu, programs)))
        };
        let started: Vec<_> = (0..devices).map(compile).collect();
        let ended = started
            .into_iter()
            .map(|work| work.map(|w| w.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))).transpose());
        ended.collect::<Result<_, _>>()
    })?;
    let mut made: Vec<Vec<GpuCode>> = variants.iter().map(|_| Vec::new()).collect();
    for (d, like) in like.iter().enumerate() {
        let with = made.iter_mut().zip(variants).filter(|(_, v)| d < v.len()).map(|(list, _)| list);
        with.zip(code[*like].iter().flatten()).for_each(|(list, code)| list.push(code.clone()));
    }
    Ok(made)
}

/// Whether two devices do the same in all programs.
fn alike(a: &[&DeviceProgram], b: &[&DeviceProgram]) -> bool {
    let same = |(a, b): (&&DeviceProgram, &&DeviceProgram)| **a == DeviceProgram { device: a.device, ..(*b).clone() };
    a.len() == b.len() && a.iter().zip(b).all(same)
}

/// The channel of a communication.
fn channel(op: &Op) -> Option<usize> {
    match op {
        Op::Send(o) => Some(o.channel),
        Op::Recv(o) => Some(o.channel),
        Op::AllReduce(o) => Some(o.channel),
        Op::AllGather(o) => Some(o.channel),
        Op::ReduceScatter(o) => Some(o.channel),
        Op::AllToAll(o) => Some(o.channel),
        Op::Bucket(o) => Some(o.channel),
        _ => None,
    }
}

/// A module under construction.
struct Collector<'g> {
    gpu: &'g Gpu,
    kernels: Vec<Kernel>,
    /// Kernels by what they are but for their names.
    known: BTreeMap<String, usize>,
    names: BTreeSet<String>,
    workspace: usize,
}

impl Collector<'_> {
    fn program(&mut self, program: &DeviceProgram) -> Result<Launches, EmitError> {
        let kernels = program.kernels.iter().map(|spec| self.spec(spec)).collect::<Result<_, _>>()?;
        let (mut leaves, mut communications, mut bodies) = (Vec::new(), Vec::new(), Vec::new());
        for c in program.prepare.iter().chain(&program.step) {
            match &c.action {
                Action::Communicate(op) => communications.push(self.communication(op, c, program)?),
                Action::Loop(l) => bodies.push(self.program(&l.body)?),
                Action::Leaf(op) => leaves.push(self.leaf(op, c, program)?),
                Action::Kernel(_) => {}
            }
        }
        Ok(Launches { kernels, leaves, communications, bodies })
    }

    fn leaf(&mut self, op: &Op, c: &Command, program: &DeviceProgram) -> Result<Leaf, EmitError> {
        let ty = |b: BufferId| &program.buffers[b.0 as usize].ty;
        let unsupported = |what: String| EmitError::Unsupported { kernel: c.origin.to_string(), what };
        match (op, &c.reads[..], &c.writes[..]) {
            (Op::Constant(_), [], [result]) => {
                let made = op.eval(&[], &[ty(*result).clone()], &mut interp::Alone);
                let made = made.map_err(|e| unsupported(e.to_string()))?.pop();
                made.map(Leaf::Constant).ok_or_else(|| unsupported("a constant without a value".into()))
            }
            (Op::ScatterAdd(s), [at, rows], [table]) => {
                let name = format!("{}_{}", c.origin.path(), op.name());
                let scheduled = self.gpu.scatter_add(&name, ty(*at), ty(*rows), ty(*table), s.base);
                Ok(Leaf::Launch(self.add(scheduled)?))
            }
            _ => Err(unsupported(format!("the operation `{}`", op.name()))),
        }
    }

    fn communication(&mut self, op: &Op, c: &Command, program: &DeviceProgram) -> Result<Communication, EmitError> {
        let ty = |b: &BufferId| &program.buffers[b.0 as usize].ty;
        let (args, results): (Vec<&Type>, Vec<&Type>) =
            (c.reads.iter().map(ty).collect(), c.writes.iter().map(ty).collect());
        let unsupported = || EmitError::Unsupported { kernel: c.origin.to_string(), what: op.name().to_string() };
        let (channel, members) = channel(op).zip(op.members(&args, &results)).ok_or_else(unsupported)?;
        let name = format!("{}_{}", c.origin.path(), op.name());
        let exchange = self.gpu.exchange(&name, &members, &args, &results);
        let mailbox = exchange.as_ref().map_or(0, |e| e.mailbox);
        let launch = exchange.map(|e| self.launch(e.kernel, e.args)).transpose()?;
        Ok(Communication { channel, mailbox, launch })
    }

    fn spec(&mut self, spec: &KernelSpec) -> Result<Vec<Launch>, EmitError> {
        let operands: Vec<&Type> = spec.operands.iter().map(|(ty, _)| ty).collect();
        let results: Vec<&Type> = spec.results.iter().collect();
        let scheduled = self.gpu.schedule(&spec.name, &spec.compute, &operands, &results);
        self.add(scheduled)
    }

    fn add(&mut self, scheduled: GpuKernel) -> Result<Vec<Launch>, EmitError> {
        self.workspace = self.workspace.max(scheduled.workspace);
        scheduled.launches.into_iter().map(|l| self.launch(l.kernel, l.args)).collect()
    }

    fn launch<A>(&mut self, kernel: Kernel, args: Vec<A>) -> Result<Launch<A>, EmitError> {
        match kernel.entry {
            Entry::Grid { blocks: grid, threads: block } => {
                let shared = kernel.buffer_offsets().1 as u32;
                Ok(Launch { kernel: self.kernel(kernel), grid, block, shared, args })
            }
            Entry::Tasks | Entry::Tile => {
                Err(EmitError::Unsupported { kernel: kernel.name, what: "an entry for CPUs".into() })
            }
        }
    }

    /// The place of a kernel in the module. Equal ones are there once, under the name of the first.
    fn kernel(&mut self, mut kernel: Kernel) -> usize {
        let name = std::mem::take(&mut kernel.name);
        let text = kernel.to_string();
        if let Some(&known) = self.known.get(&text) {
            return known;
        }
        kernel.name = self.name(&name);
        self.kernels.push(kernel);
        self.known.insert(text, self.kernels.len() - 1);
        self.kernels.len() - 1
    }

    /// A name that PTX allows and no other kernel has.
    fn name(&mut self, wanted: &str) -> String {
        let allowed = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        let mut plain: String = wanted.chars().map(allowed).collect();
        if !plain.starts_with(|c: char| c.is_ascii_alphabetic()) {
            plain.insert(0, 'k');
        }
        let numbered = (2..).map(|n| format!("{plain}_{n}"));
        let names = &self.names;
        let free = std::iter::once(plain.clone()).chain(numbered).find(|n| !names.contains(n));
        let name = free.expect("there are more numbers than names");
        self.names.insert(name.clone());
        name
    }
}
