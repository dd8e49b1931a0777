//! `program.json`: what a program directory holds, for scripts to read and for [`super::ProgramDir`] to hold it against
//! what the graphs say.

use crate::driver::{Loadable, Port};
use intwain_passes::program::{Action, Binding, BufferId, Command, DeviceProgram, Home};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;

/// The version of the directory's format. Any change of what files mean is another version.
pub const FORMAT: u32 = 1;

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
    /// The machine that it was planned for.
    pub hardware: Machine,
    /// Hash of every file but this one and the weights, which may be replaced by others of the same shapes.
    pub files: BTreeMap<String, String>,
    /// The file of the weights.
    pub weights: String,
    /// A program per number of rows; the first is for full calls.
    pub variants: Vec<VariantManifest>,
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
}

/// A command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CommandManifest {
    /// `kernel 3`, `loop 40`, or an operation as in the graph's text.
    pub run: String,
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
    let devices = program.programs.iter().zip(targets).map(|(p, t)| device(p, t)).collect();
    (program.params.iter().map(port).collect(), program.outputs.iter().map(port).collect(), devices)
}

fn device(program: &DeviceProgram, target: &str) -> DeviceManifest {
    let bindings = |list: &[Binding]| list.iter().map(|b| (b.name.to_string(), b.buffer.0)).collect();
    DeviceManifest {
        device: program.device,
        target: target.to_string(),
        persistent_bytes: program.persistent_bytes,
        arena_bytes: program.arena_bytes,
        buffers: program
            .buffers
            .iter()
            .map(|b| BufferManifest {
                ty: b.ty.to_string(),
                memory: match b.home {
                    Home::Persistent => "persistent".to_string(),
                    Home::Arena => "arena".to_string(),
                },
                offset: b.offset,
            })
            .collect(),
        kernels: program
            .kernels
            .iter()
            .map(|k| {
                let operands: Vec<String> = k.operands.iter().map(|(ty, _)| ty.to_string()).collect();
                let results: Vec<String> = k.results.iter().map(ToString::to_string).collect();
                let hash = sha256(format!("{}\n{operands:?}\n{results:?}", k.compute).as_bytes());
                KernelManifest { name: k.name.clone(), hash, operands, results }
            })
            .collect(),
        prepare: program.prepare.iter().map(command).collect(),
        step: program.step.iter().map(command).collect(),
        inputs: bindings(&program.inputs),
        weights: bindings(&program.weights),
        outputs: bindings(&program.outputs),
    }
}

fn command(c: &Command) -> CommandManifest {
    let numbers = |ids: &[BufferId]| ids.iter().map(|b| b.0).collect();
    CommandManifest {
        run: match &c.action {
            Action::Kernel(k) => format!("kernel {k}"),
            Action::Leaf(op) | Action::Communicate(op) => op.to_string(),
            Action::Loop(l) => format!("loop {}", l.count),
        },
        body: match &c.action {
            Action::Loop(l) => Some(Box::new(device(&l.body, "loop"))),
            Action::Kernel(_) | Action::Leaf(_) | Action::Communicate(_) => None,
        },
        reads: numbers(&c.reads),
        writes: numbers(&c.writes),
        layer: c.origin.to_string(),
    }
}

/// SHA-256 as 64 hexadecimal digits.
pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}
