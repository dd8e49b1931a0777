//! Commands and flags. `docs/cli.md` is the contract.

use crate::runtime::{Devices, Effects};
use clap::{Args, Parser, Subcommand, ValueEnum};
use intwain_codegen::schedule::gpu::Precision;
use intwain_ir::DType;
use intwain_passes::place::Strategy;
use std::path::PathBuf;

/// A tensor compiler that splits a Keras model across two devices.
#[derive(Debug, Parser)]
#[command(name = "intwain", version, about)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) command: Command,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Flags of every command.
#[derive(Clone, Debug, Args)]
pub(crate) struct Common {
    /// Print one machine-readable document.
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print errors only.
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    /// Say what was chosen and what it takes.
    #[arg(short, long, global = true)]
    pub(crate) verbose: bool,
    /// Print how long each pass took, and making and loading kernels.
    #[arg(long, global = true)]
    pub(crate) time: bool,
    /// Color errors.
    #[arg(long, global = true, value_enum, default_value_t = Color::Auto, value_name = "WHEN")]
    pub(crate) color: Color,
}

/// When to use color.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    /// On a terminal.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Compare strategies: predicted time, memory and communication. Touches no device.
    Plan(PlanArgs),
    /// Show what is where, the graph after any pass, or why a layer is where it is.
    Inspect(InspectArgs),
    /// Write a program directory.
    Compile(CompileArgs),
    /// Run a model, or a program directory, on all rows of its inputs.
    Run(RunArgs),
    /// Gradients of the outputs, weighted by cotangents.
    Grad(GradArgs),
    /// Prove the split programs of a model, or of a program directory, equal to the whole one and free of deadlock.
    Verify(VerifyArgs),
    /// List the machines that can be planned for, or show one as TOML.
    Hardware(HardwareArgs),
    /// List the devices of this machine and test copies between them.
    Devices,
}

/// What to plan for.
#[derive(Clone, Debug, Args)]
pub(crate) struct TargetArgs {
    /// Machine to plan for: a name that `intwain hardware` lists, or a TOML file.
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) hardware: Option<String>,
    /// How the model is split.
    #[arg(long, value_enum, default_value_t = Split::Auto)]
    pub(crate) split: Split,
    /// Plan for one device where the split is not possible.
    #[arg(long)]
    pub(crate) allow_one: bool,
    /// Rows per device of a data split, a ratio in other splits (not for pipelines): 3,2.
    #[arg(long, value_name = "N,N", value_parser = parse_parts)]
    pub(crate) parts: Option<[usize; 2]>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Rows of a call.
    #[arg(long, default_value_t = BATCH, value_parser = positive)]
    pub(crate) batch: usize,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct InspectArgs {
    /// The model, or a program directory.
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Rows of a call.
    #[arg(long, default_value_t = BATCH, value_parser = positive)]
    pub(crate) batch: usize,
    /// text or json.
    #[arg(long, default_value = "text", value_parser = parse_format)]
    pub(crate) format: Format,
    /// Print the graph after a pass, or each device's.
    #[arg(long, value_name = "PASS")]
    pub(crate) after: Option<String>,
    /// Say why a layer is where it is, what the runner-up was and what it would cost.
    #[arg(long, value_name = "LAYER", conflicts_with = "after")]
    pub(crate) why: Option<String>,
    /// List the model's layers: class, shape of the result, parameters, connections. Plans nothing.
    #[arg(long, conflicts_with_all = ["after", "why"])]
    pub(crate) layers: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct CompileArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Directory to write.
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: PathBuf,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    /// Rows of a call; further numbers are variants for left-over rows: 32,5.
    #[arg(long, default_value = "32", value_delimiter = ',', value_parser = positive, value_name = "N[,M…]")]
    pub(crate) batch: Vec<usize>,
    /// How GPUs round the factors of products: f32, tf32 or bf16.
    #[arg(long, default_value = "f32", value_name = "FORMAT", value_parser = parse_precision)]
    pub(crate) precision: Precision,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct VerifyArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct HardwareArgs {
    /// Machine to show: a name, or a TOML file.
    #[arg(value_name = "NAME|FILE")]
    pub(crate) name: Option<String>,
}

/// Rows of a call where nothing says how many.
pub(crate) const BATCH: usize = 32;

/// How a report is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people.
    Text,
    /// For scripts.
    Json,
}

fn parse_format(text: &str) -> Result<Format, String> {
    match text {
        "text" => Ok(Format::Text),
        "json" => Ok(Format::Json),
        "dot" | "html" => Err(format!("`{text}` is not supported by this version; text and json are")),
        _ => Err(format!("`{text}`: text and json are supported")),
    }
}

/// How a model file is read.
#[derive(Clone, Debug, Args)]
pub(crate) struct ModelArgs {
    /// Model: architecture JSON, .keras, whole-model .h5, or model.json of TensorFlow.js.
    pub(crate) model: PathBuf,
    /// Weights in place of the model's: .weights.h5, .h5, .safetensors or .npz.
    #[arg(long, value_name = "FILE")]
    pub(crate) weights: Option<PathBuf>,
    /// Takes weights of an .h5 of Keras 2 by the names of layers, those that it has.
    #[arg(long, requires = "weights")]
    pub(crate) by_name: bool,
    /// Seed of weights that are initialised because there are none.
    #[arg(long, default_value_t = 0)]
    pub(crate) seed: u64,
    /// Extents that the model leaves open, without the batch: NAME=224x224x3.
    #[arg(long, value_name = "NAME=EXTENTS", value_parser = parse_shape)]
    pub(crate) shape: Vec<(String, Vec<usize>)>,
    /// Floating type in place of the model's: float16, bfloat16, float32 or float64.
    #[arg(long, value_name = "TYPE", value_parser = parse_float)]
    pub(crate) dtype: Option<DType>,
}

/// Where and how a program runs.
#[derive(Clone, Debug, Args)]
pub(crate) struct DeviceArgs {
    /// One or two devices of a kind: cpu:0,cpu:1 for this machine's threads, ptx:0,ptx:1 for the GPUs' PTX run and
    /// checked on the CPU, cuda:0,cuda:1 for GPUs.
    #[arg(long)]
    pub(crate) devices: Option<Devices>,
    /// Machine to plan for in place of the devices: a name that `intwain hardware` lists, or a TOML file.
    #[arg(long, value_name = "NAME|FILE")]
    pub(crate) hardware: Option<String>,
    /// When asynchronous copies of ptx devices happen: late, when they are waited for, or early, when they are issued.
    #[arg(long, default_value = "late", value_name = "WHEN", value_parser = parse_effects)]
    pub(crate) effects: Effects,
    /// How GPUs round the factors of products: f32, tf32 or bf16.
    #[arg(long, default_value = "f32", value_name = "FORMAT", value_parser = parse_precision)]
    pub(crate) precision: Precision,
    /// How the model is split.
    #[arg(long, value_enum, default_value_t = Split::Auto)]
    pub(crate) split: Split,
    /// Run on one device where the split is not possible.
    #[arg(long)]
    pub(crate) allow_one: bool,
    /// Rows per device of a data split, a ratio in other splits (not for pipelines): 3,2.
    #[arg(long, value_name = "N,N", value_parser = parse_parts)]
    pub(crate) parts: Option<[usize; 2]>,
    /// Rows of a call.
    #[arg(long, value_parser = positive)]
    pub(crate) batch: Option<usize>,
    /// Threads per device.
    #[arg(long, value_parser = positive)]
    pub(crate) threads: Option<usize>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Inputs: an .npz, or an .npy for a model with one input.
    #[arg(long, value_name = "FILE")]
    pub(crate) inputs: PathBuf,
    /// Where outputs go, an .npz; without it a summary is printed.
    #[arg(long, value_name = "FILE")]
    pub(crate) outputs: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    /// Run this often and print the median time and spread.
    #[arg(long, value_parser = positive)]
    pub(crate) repeat: Option<usize>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct GradArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Inputs: an .npz, or an .npy for a model with one input.
    #[arg(long, value_name = "FILE")]
    pub(crate) inputs: PathBuf,
    /// Cotangents of the floating outputs: cot0, cot1, …
    #[arg(long, value_name = "FILE")]
    pub(crate) cotangents: PathBuf,
    /// Where gradients go: gin0, … of the floating inputs, gw0, … of the trainable weights.
    #[arg(long, value_name = "FILE")]
    pub(crate) outputs: PathBuf,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
}

/// How a model is split.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Split {
    /// The fastest.
    Auto,
    /// Not at all.
    One,
    /// By rows.
    Data,
    /// By channels, heads and vocabularies.
    Tensor,
    /// In two segments.
    Pipeline,
}

impl Split {
    /// The planner's name for it.
    pub(crate) fn strategy(self) -> Option<Strategy> {
        match self {
            Split::Auto => None,
            Split::One => Some(Strategy::One),
            Split::Data => Some(Strategy::Data),
            Split::Tensor => Some(Strategy::Tensor),
            Split::Pipeline => Some(Strategy::Pipeline),
        }
    }
}

fn parse_effects(text: &str) -> Result<Effects, String> {
    match text {
        "late" => Ok(Effects::Late),
        "early" => Ok(Effects::Early),
        _ => Err(format!("`{text}`: late and early are supported")),
    }
}

fn parse_precision(text: &str) -> Result<Precision, String> {
    let known = Precision::ALL.into_iter().find(|p| p.name() == text);
    known.ok_or_else(|| format!("`{text}`: f32, tf32 and bf16 are supported"))
}

fn parse_shape(text: &str) -> Result<(String, Vec<usize>), String> {
    let help = || format!("`{text}`: write NAME=224x224x3");
    let (name, extents) = text.split_once('=').ok_or_else(help)?;
    let extents: Result<Vec<usize>, _> = extents.split('x').map(str::parse).collect();
    Ok((name.to_string(), extents.map_err(|_| help())?))
}

fn parse_float(text: &str) -> Result<DType, String> {
    match text {
        "float32" => Ok(DType::F32),
        "float64" => Ok(DType::F64),
        "float16" => Ok(DType::F16),
        "bfloat16" => Ok(DType::BF16),
        _ => Err(format!("`{text}`: float16, bfloat16, float32 and float64 are supported")),
    }
}

fn parse_parts(text: &str) -> Result<[usize; 2], String> {
    let parts: Result<Vec<usize>, _> = text.split(',').map(|p| p.trim().parse()).collect();
    match parts.as_deref() {
        Ok([a, b]) if a + b > 0 => Ok([*a, *b]),
        _ => Err(format!("`{text}`: write two numbers, such as 3,2")),
    }
}

fn positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|n| *n > 0).ok_or_else(|| format!("`{text}` is not a number above 0"))
}
