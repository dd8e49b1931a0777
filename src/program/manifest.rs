//! `program.json`: what a program directory holds, for scripts to read and for [`super::ProgramDir`] to hold it against
//! what the graphs say.

use crate::driver::{Loadable, Port};
use crate::kernels::gpu::{Communication, Launch, Launches, Leaf};
use intwain_codegen::schedule::gpu::{Argument, ExchangeArgument};
use intwain_passes::program::{Action, Binding, BufferId, Command, DeviceProgram, Home, KernelSpec};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// The version of the directory's format. Any change of what files mean is another version.
pub const FORMAT: u32 = 2;

/// The compiler's version.
pub const COMPILER: &str = env!("CARGO_PKG_VERSION");

/// A program directory's contents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the format.
    pub format: u32,
    /// Version of the compiler.
    pub compiler: String,
    /// The model.
    pub model: String,
    /// Hash of the graph: operations, shapes and names, not the values of weights.
    pub architecture: String,
    /// How the model was read, so that other weights are read for the same one.
    pub import: ImportManifest,
    /// The machine that it was planned for.
    pub hardware: Machine,
    /// How GPUs round the factors of products: `f32`, `tf32` or `bf16`.
    pub precision: String,
    /// Hash of every file but this one and the weights, which may be replaced by others of the same shapes.
    pub files: BTreeMap<String, String>,
    /// The file of the weights.
    pub weights: String,
    /// The code of each GPU, with the kernels of all variants; none for CPUs, which compile the graphs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub modules: Vec<ModuleManifest>,
    /// Of a step of training: how it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub training: Option<TrainingManifest>,
    /// A program per number of rows; the first is for full calls.
    pub variants: Vec<VariantManifest>,
}

/// What a program of a step of training is made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingManifest {
    /// The model's file as it was given: training starts from its weights and its optimizer's state.
    pub model: SourceManifest,
    /// The file of other weights, where one was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights: Option<SourceManifest>,
    /// Whether they were taken by the names of layers.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_name: bool,
    /// The seed of weights that are initialised, of random layers and of the order of rows.
    pub seed: u64,
    /// The flags that say what a step does and how it is split, as `train` takes them.
    pub arguments: Vec<String>,
}

/// A file that was copied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SourceManifest {
    /// Its name here.
    pub file: String,
    /// Its hash.
    pub hash: String,
}

/// How a model was read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImportManifest {
    /// The file of the architecture.
    pub model: String,
    /// Extents of inputs that the architecture leaves open.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// The floating type in place of the architecture's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
}

/// The code of a GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModuleManifest {
    /// The file, PTX.
    pub file: String,
    /// Names of its kernels, in order.
    pub kernels: Vec<String>,
}

/// The machine that a program was planned for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// Its name.
    pub name: String,
    /// Hash of every fact.
    pub hash: String,
}

/// The program for one number of rows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VariantManifest {
    /// Rows of a call; `None` where the model has no row axis.
    pub rows: Option<usize>,
    /// The strategy.
    pub strategy: String,
    /// Micro-batches of a pipeline, else 1.
    pub micro_batches: usize,
    /// The file of the whole graph with layouts and communication.
    pub whole: String,
    /// The file of each device's graph.
    pub graphs: Vec<String>,
    /// Inputs and weights in order.
    pub params: Vec<PortManifest>,
    /// Outputs in order.
    pub outputs: Vec<PortManifest>,
    /// Each device's program.
    pub devices: Vec<DeviceManifest>,
    /// What is where: the document that `inspect --json` prints.
    pub placement: serde_json::Value,
}

/// A tensor that the host gives or takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PortManifest {
    /// Its name.
    pub name: String,
    /// Its type.
    #[serde(rename = "type")]
    pub ty: String,
    /// How it is divided.
    pub layout: String,
}

/// A device's program.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeviceManifest {
    /// The device.
    pub device: usize,
    /// What code is generated for.
    pub target: String,
    /// Bytes kept from call to call.
    pub persistent_bytes: usize,
    /// Bytes reused within a call.
    pub arena_bytes: usize,
    /// Bytes that the launches of a command share on a GPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace_bytes: Option<usize>,
    /// Places of tensors.
    pub buffers: Vec<BufferManifest>,
    /// Kernels.
    pub kernels: Vec<KernelManifest>,
    /// Run once, when weights load.
    pub prepare: Vec<CommandManifest>,
    /// Run with every call.
    pub step: Vec<CommandManifest>,
    /// Buffers of the inputs.
    pub inputs: BTreeMap<String, u32>,
    /// Buffers of the weights.
    pub weights: BTreeMap<String, u32>,
    /// Buffers of the outputs.
    pub outputs: BTreeMap<String, u32>,
}

/// A place of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BufferManifest {
    /// The tensor's type.
    #[serde(rename = "type")]
    pub ty: String,
    /// `persistent` or `arena`.
    pub memory: String,
    /// First byte.
    pub offset: usize,
}

/// A kernel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelManifest {
    /// The layer that uses it first.
    pub name: String,
    /// Hash of what it computes and of its types.
    pub hash: String,
    /// Types of the operands.
    pub operands: Vec<String>,
    /// Types of the results.
    pub results: Vec<String>,
    /// What a GPU launches for it, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<LaunchManifest>,
}

/// A launch of a kernel of the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LaunchManifest {
    /// The kernel's name in the module.
    pub kernel: String,
    /// Blocks along x, y, z.
    pub grid: [u32; 3],
    /// Threads of a block along x, y, z.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared_bytes: u32,
    /// What its parameters point to: `operand 0` and `result 0` are the command's first buffer read and written,
    /// `workspace 64` and `mailbox 384` those memories from that byte on, `peer 384` the other device's mailbox.
    pub args: Vec<String>,
}

/// What a GPU does for a communication.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExchangeManifest {
    /// The channel, whose mailbox the device keeps.
    pub channel: usize,
    /// Bytes of the mailbox, into which the other device writes; its first bytes are 0 before the first call.
    pub mailbox_bytes: usize,
    /// The launch; none where there is nothing to do.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launch: Option<LaunchManifest>,
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandManifest {
    /// `kernel 3`, `loop 40`, or an operation as in the graph's text.
    pub run: String,
    /// What a GPU launches for an operation that is no kernel of its own, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub launches: Vec<LaunchManifest>,
    /// What a GPU does for a communication.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exchange: Option<ExchangeManifest>,
    /// What a loop repeats.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Box<DeviceManifest>>,
    /// Buffers read.
    pub reads: Vec<u32>,
    /// Buffers written.
    pub writes: Vec<u32>,
    /// The layer.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub layer: String,
}

/// Ports and devices of a program.
pub(super) fn describe(
    program: Loadable<'_>,
    targets: &[String],
) -> (Vec<PortManifest>, Vec<PortManifest>, Vec<DeviceManifest>) {
    let port = |p: &Port| PortManifest { name: p.name.to_string(), ty: p.ty.to_string(), layout: p.layout.to_string() };
    let code = |d: usize| program.code.map(|c| &c[d]);
    let device = |(d, (p, t)): (usize, (&DeviceProgram, &String))| {
        let made = code(d).map(|c| Made { kernels: &c.kernels, launches: &c.launches });
        DeviceManifest { workspace_bytes: code(d).map(|c| c.workspace), ..device(p, t, made) }
    };
    let devices = program.programs.iter().zip(targets).enumerate().map(device).collect();
    (program.params.iter().map(port).collect(), program.outputs.iter().map(port).collect(), devices)
}

/// What was made for a GPU of a program, or of the body of a loop.
#[derive(Clone, Copy)]
struct Made<'c> {
    /// Names of the module's kernels.
    kernels: &'c [String],
    launches: &'c Launches,
}

impl Made<'_> {
    fn launch<A>(&self, l: &Launch<A>, arg: impl Fn(&A) -> String) -> LaunchManifest {
        LaunchManifest {
            kernel: self.kernels[l.kernel].clone(),
            grid: l.grid,
            block: l.block,
            shared_bytes: l.shared,
            args: l.args.iter().map(arg).collect(),
        }
    }

    fn all(&self, launches: &[Launch]) -> Vec<LaunchManifest> {
        let arg = |a: &Argument| match a {
            Argument::Operand(i) => format!("operand {i}"),
            Argument::Result(i) => format!("result {i}"),
            Argument::Workspace(at) => format!("workspace {at}"),
        };
        launches.iter().map(|l| self.launch(l, arg)).collect()
    }

    fn leaf(&self, leaf: &Leaf) -> Vec<LaunchManifest> {
        match leaf {
            Leaf::Launch(launches) => self.all(launches),
            Leaf::Constant(_) => Vec::new(),
        }
    }

    fn exchange(&self, c: &Communication) -> ExchangeManifest {
        let arg = |a: &ExchangeArgument| match a {
            ExchangeArgument::Operand(i) => format!("operand {i}"),
            ExchangeArgument::Result(i) => format!("result {i}"),
            ExchangeArgument::Mailbox(at) => format!("mailbox {at}"),
            ExchangeArgument::PeerMailbox(at) => format!("peer {at}"),
        };
        let launch = c.launch.as_ref().map(|l| self.launch(l, arg));
        ExchangeManifest { channel: c.channel, mailbox_bytes: c.mailbox, launch }
    }
}

fn device(program: &DeviceProgram, target: &str, made: Option<Made<'_>>) -> DeviceManifest {
    let bindings = |list: &[Binding]| list.iter().map(|b| (b.name.to_string(), b.buffer.0)).collect();
    let mut own = Own { made, leaves: 0, communications: 0, bodies: 0 };
    DeviceManifest {
        device: program.device,
        target: target.to_string(),
        persistent_bytes: program.persistent_bytes,
        arena_bytes: program.arena_bytes,
        workspace_bytes: None,
        buffers: program
            .buffers
            .iter()
            .map(|b| BufferManifest {
                ty: b.ty.to_string(),
                memory: match b.home {
                    Home::Persistent => "persistent".to_string(),
                    Home::State => "state".to_string(),
                    Home::Arena => "arena".to_string(),
                },
                offset: b.offset,
            })
            .collect(),
        kernels: program.kernels.iter().enumerate().map(|(k, spec)| kernel(k, spec, made)).collect(),
        prepare: program.prepare.iter().map(|c| own.command(c)).collect(),
        step: program.step.iter().map(|c| own.command(c)).collect(),
        inputs: bindings(&program.inputs),
        weights: bindings(&program.weights),
        outputs: bindings(&program.outputs),
    }
}

fn kernel(k: usize, spec: &KernelSpec, made: Option<Made<'_>>) -> KernelManifest {
    let operands: Vec<String> = spec.operands.iter().map(|(ty, _)| ty.to_string()).collect();
    let results: Vec<String> = spec.results.iter().map(ToString::to_string).collect();
    let hash = sha256(format!("{}\n{operands:?}\n{results:?}", spec.compute).as_bytes());
    let launches = made.map_or(Vec::new(), |m| m.all(&m.launches.kernels[k]));
    KernelManifest { name: spec.name.clone(), hash, operands, results, launches }
}

/// What was made for commands, which take theirs in order.
struct Own<'c> {
    made: Option<Made<'c>>,
    leaves: usize,
    communications: usize,
    bodies: usize,
}

impl Own<'_> {
    fn command(&mut self, c: &Command) -> CommandManifest {
        let numbers = |ids: &[BufferId]| ids.iter().map(|b| b.0).collect();
        let (mut launches, mut exchange, mut body) = (Vec::new(), None, None);
        match &c.action {
            Action::Kernel(_) => {}
            Action::Leaf(_) => {
                launches = self.made.map_or(launches, |m| m.leaf(&m.launches.leaves[self.leaves]));
                self.leaves += 1;
            }
            Action::Communicate(_) => {
                exchange = self.made.map(|m| m.exchange(&m.launches.communications[self.communications]));
                self.communications += 1;
            }
            Action::Loop(l) => {
                let made = self.made.map(|m| Made { launches: &m.launches.bodies[self.bodies], ..m });
                self.bodies += 1;
                body = Some(Box::new(device(&l.body, "loop", made)));
            }
        }
        CommandManifest {
            run: match &c.action {
                Action::Kernel(k) => format!("kernel {k}"),
                Action::Leaf(op) | Action::Communicate(op) => op.to_string(),
                Action::Loop(l) => format!("loop {}", l.count),
            },
            launches,
            exchange,
            body,
            reads: numbers(&c.reads),
            writes: numbers(&c.writes),
            layer: c.origin.to_string(),
        }
    }
}

/// SHA-256 as 64 hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}
