//! Commands and flags. `docs/cli.md` is the contract.

use crate::runtime::{Devices, Effects};
use crate::train::config::Argument;
use crate::train::trainer::Schedule;
use clap::{Args, Parser, Subcommand, ValueEnum};
use intwain_codegen::schedule::gpu::Precision;
use intwain_ir::DType;
use intwain_passes::place::{StateSharding, Strategy};
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
    /// Compare strategies for a call or a step of training: predicted time, memory, communication. Touches no device.
    Plan(Box<PlanArgs>),
    /// Show what is where, the graph after any pass, or why a layer is where it is.
    Inspect(Box<InspectArgs>),
    /// Write a program directory, of calls or of steps of training.
    Compile(Box<CompileArgs>),
    /// Run a model, or a program directory, on all rows of its inputs.
    Run(Box<RunArgs>),
    /// Gradients of the outputs, weighted by cotangents.
    Grad(Box<GradArgs>),
    /// Train a model, or with a program directory.
    Train(Box<TrainArgs>),
    /// Loss and metrics of a model on data.
    Evaluate(Box<EvaluateArgs>),
    /// Prove the split programs of a model, its training or a program directory equal to the whole, and free of deadlock.
    Verify(Box<VerifyArgs>),
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
    /// Sum over rows so that results do not depend on how many devices there are: the default for CPUs.
    #[arg(long, overrides_with = "no_exact")]
    pub(crate) exact: bool,
    /// Sum over rows as is fastest.
    #[arg(long, overrides_with = "exact")]
    pub(crate) no_exact: bool,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    #[command(flatten)]
    pub(crate) target: TargetArgs,
    #[command(flatten)]
    pub(crate) training: TrainingArgs,
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
    #[command(flatten)]
    pub(crate) training: TrainingArgs,
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
    #[command(flatten)]
    pub(crate) training: TrainingArgs,
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
    #[command(flatten)]
    pub(crate) training: TrainingArgs,
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
    /// Sum over rows so that results do not depend on how many devices there are: the default on cpu devices.
    #[arg(long, overrides_with = "no_exact")]
    pub(crate) exact: bool,
    /// Sum over rows as is fastest.
    #[arg(long, overrides_with = "exact")]
    pub(crate) no_exact: bool,
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
    /// Call the model in training mode, with all rows at once; outputs are followed by tw0, …: the weights after the call.
    #[arg(long)]
    pub(crate) training: bool,
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

/// What a model is judged by and updated with, where its file does not say so or something else is wanted. Each is a
/// name of Keras, several with commas between them, or what Keras serialises.
#[derive(Clone, Debug, Args)]
pub(crate) struct SaidArgs {
    /// Loss: mse, sparse_categorical_crossentropy, or JSON by output.
    #[arg(long, value_name = "NAME|JSON", value_parser = parse_said)]
    pub(crate) loss: Option<Argument>,
    /// What the losses of several outputs are multiplied by.
    #[arg(long, value_name = "NUMBERS|JSON", value_parser = parse_said)]
    pub(crate) loss_weights: Option<Argument>,
    /// Metrics that sample weights do not enter: accuracy,auc.
    #[arg(long, value_name = "NAMES|JSON", value_parser = parse_said)]
    pub(crate) metrics: Option<Argument>,
    /// Metrics that sample weights enter.
    #[arg(long, value_name = "NAMES|JSON", value_parser = parse_said)]
    pub(crate) weighted_metrics: Option<Argument>,
}

/// What a step of training does, and how: the same for every command that speaks of one.
#[derive(Clone, Debug, Args)]
pub(crate) struct StepArgs {
    #[command(flatten)]
    pub(crate) said: SaidArgs,
    /// Optimizer: adam, or what Keras serialises.
    #[arg(long, value_name = "NAME|JSON", value_parser = parse_said)]
    pub(crate) optimizer: Option<Argument>,
    /// Rows that batch normalisation takes its statistics from: global, the batch; device, those of each device; micro-batch,
    /// each micro-batch.
    #[arg(long, value_enum, default_value_t = BatchNorm::Global)]
    pub(crate) bn: BatchNorm,
    /// Parts of a batch that are worked on one after the other, or in a pipeline at the same time.
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(crate) micro_batches: Option<usize>,
    /// In which order the segments of a pipeline work on them: gpipe, 1f1b or zero-bubble.
    #[arg(long, value_name = "NAME", default_value = "1f1b", value_parser = parse_schedule)]
    pub(crate) schedule: Schedule,
    /// What devices that share rows keep in parts (ZeRO): 0 nothing, 1 the optimizer's state, 2 gradients too, 3 variables too.
    #[arg(long, value_name = "STAGE", default_value = "0", value_parser = parse_zero)]
    pub(crate) zero: StateSharding,
    /// Steps after which gradients are applied, so that no step waits for what it exchanges; 0: in their own.
    #[arg(long, value_name = "STEPS", default_value_t = 0)]
    pub(crate) staleness: usize,
}

/// Whether a command speaks of a step of training rather than of a call.
#[derive(Clone, Debug, Args)]
pub(crate) struct TrainingArgs {
    /// Of a step of training in place of a call: forward, losses, gradients and updates.
    #[arg(long)]
    pub(crate) train: bool,
    #[command(flatten)]
    pub(crate) step: StepArgs,
    /// With --train, data whose labels and sample weights say of which types they are; else the losses say it.
    #[arg(long, value_name = "FILE", num_args = 1.., requires = "train")]
    pub(crate) data: Vec<PathBuf>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct TrainArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Inputs, labels y0, y1, … and sample weights: an .npz, .npy files, or a directory of them.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) data: Vec<PathBuf>,
    /// Passes over the data.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) epochs: u64,
    #[command(flatten)]
    pub(crate) step: StepArgs,
    /// Where the trained model goes: .keras, .h5 or .weights.h5.
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output: Option<PathBuf>,
    /// Directory for checkpoints: after every epoch, when interrupted, and as --checkpoint-every says.
    #[arg(long, value_name = "DIR")]
    pub(crate) checkpoint: Option<PathBuf>,
    /// Steps between checkpoints within an epoch.
    #[arg(long, value_name = "STEPS", value_parser = positive, requires = "checkpoint")]
    pub(crate) checkpoint_every: Option<usize>,
    /// Go on where the newest checkpoint stands, if there is one.
    #[arg(long, requires = "checkpoint")]
    pub(crate) resume: bool,
    /// Data that the model is judged on after every epoch.
    #[arg(long, value_name = "FILE", num_args = 1.., conflicts_with = "validation_split")]
    pub(crate) validation_data: Vec<PathBuf>,
    /// Share of the data, from its end, that the model is judged on and not trained on.
    #[arg(long, value_name = "SHARE")]
    pub(crate) validation_split: Option<f64>,
    /// Weights of classes: {"0": 1, "1": 5}.
    #[arg(long, value_name = "JSON")]
    pub(crate) class_weight: Option<String>,
    /// Take the rows in the order of the file.
    #[arg(long)]
    pub(crate) no_shuffle: bool,
    /// End when nothing has become better for so many epochs.
    #[arg(long, value_name = "EPOCHS", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) early_stop: Option<u64>,
    /// What early stopping looks at: loss, val_loss or a metric. Without it val_loss, or loss where nothing validates.
    #[arg(long, value_name = "NAME", requires = "early_stop")]
    pub(crate) monitor: Option<String>,
    /// Where the loss of every step and the metrics of every epoch go, an .npz.
    #[arg(long, value_name = "FILE")]
    pub(crate) history: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
    /// In place of training, write the PTX of a step on the first batch, one module a device; for ptx and cuda devices.
    #[arg(long, value_name = "DIR")]
    pub(crate) emit_ptx: Option<PathBuf>,
    /// In place of training, take this many steps on the first batch and print the median time and spread.
    #[arg(long, value_parser = positive)]
    pub(crate) repeat: Option<usize>,
}

#[derive(Clone, Debug, Args)]
pub(crate) struct EvaluateArgs {
    #[command(flatten)]
    pub(crate) model: ModelArgs,
    /// Inputs, labels y0, y1, … and sample weights: an .npz, .npy files, or a directory of them.
    #[arg(long, value_name = "FILE", required = true, num_args = 1..)]
    pub(crate) data: Vec<PathBuf>,
    #[command(flatten)]
    pub(crate) said: SaidArgs,
    #[command(flatten)]
    pub(crate) devices: DeviceArgs,
}

/// Whose rows batch normalisation takes its statistics from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum BatchNorm {
    /// Those of the whole batch.
    Global,
    /// Those of each device.
    Device,
    /// Those of each micro-batch.
    MicroBatch,
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

/// A stage of ZeRO.
pub(crate) fn parse_zero(text: &str) -> Result<StateSharding, String> {
    let stage = text.parse().ok().and_then(|stage: usize| StateSharding::ALL.get(stage));
    stage.copied().ok_or_else(|| format!("`{text}`: there are 0, 1, 2 and 3"))
}

fn parse_said(text: &str) -> Result<Argument, String> {
    Argument::parse(text).map_err(|e| e.to_string())
}

fn parse_schedule(text: &str) -> Result<Schedule, String> {
    let known = Schedule::ALL.into_iter().find(|s| s.name() == text);
    known.ok_or_else(|| format!("`{text}`: gpipe, 1f1b and zero-bubble are supported"))
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
