//! From a graph to programs: the only place where passes and code generation meet.

use crate::kernels::gpu::GpuCode;
use intwain_ir::{Graph, Layout, Target, Type};
use intwain_passes::buckets::buckets;
use intwain_passes::check::placement::Interface;
use intwain_passes::fuse::{self, Cluster};
use intwain_passes::hardware::Hardware;
use intwain_passes::partition::{PartitionError, partition};
use intwain_passes::pass::{self, GLOBAL, LOCAL};
use intwain_passes::place::{self, PlaceError, Plan, Planner, Relieved, Strategy};
use intwain_passes::program::{DeviceProgram, program};
use intwain_passes::remat::early_sums;
use intwain_passes::{Numerics, PassError, Timings, check, forest, reshard};
use std::sync::Arc;

/// Why a graph could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The model does not fit the machine or cannot be split as asked.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A pass failed: a defect.
    #[error(transparent)]
    Pass(#[from] PassError),
    /// Dividing the graph failed: a defect.
    #[error(transparent)]
    Partition(#[from] PartitionError),
    /// The divided graph is not equal to the whole: a defect.
    #[error("the split program was refused by its checker: {}", .0.join("; "))]
    Refused(Vec<String>),
}

impl CompileError {
    /// Whether the compiler is to blame rather than the input.
    pub fn is_defect(&self) -> bool {
        match self {
            CompileError::Place(_) => false,
            CompileError::Pass(_) | CompileError::Partition(_) | CompileError::Refused(_) => true,
        }
    }
}

/// A tensor that the host gives to the devices or takes from them.
#[derive(Clone, Debug)]
pub struct Port {
    /// Name of the parameter or output.
    pub name: Arc<str>,
    /// Type of the whole tensor.
    pub ty: Type,
    /// How it is divided.
    pub layout: Layout,
}

/// A graph on its way to programs, with what was decided on the way.
#[derive(Debug)]
pub struct Compiled {
    /// The whole graph after the passes before placement.
    pub graph: Graph,
    /// What was decided.
    pub plan: Plan,
    /// The whole graph with layouts and communication.
    pub explicit: Graph,
    /// Each device's graph.
    pub locals: Vec<Graph>,
    /// Each device's clusters.
    pub clusters: Vec<Vec<Cluster>>,
    /// Each device's program.
    pub programs: Vec<DeviceProgram>,
    /// Inputs and weights, in the order of the graph's parameters.
    pub params: Vec<Port>,
    /// Outputs, in order.
    pub outputs: Vec<Port>,
}

/// The passes after which [`Observer`]s see a graph, in order, with what they do.
pub fn passes() -> Vec<(&'static str, &'static str)> {
    let listed = |passes: &'static [pass::PassInfo]| passes.iter().map(|p| (p.name, p.doc));
    let mut all = vec![("import", "the model as it was read")];
    all.extend(listed(GLOBAL));
    all.extend([
        pass::ROW_BLOCKS,
        RECOMPUTE,
        ("shard", "writes the plan's layouts on all values"),
        ("reshard", "makes communication explicit"),
        BUCKETS,
        ("partition", "gives each device its graph"),
        FOREST,
    ]);
    all.extend(listed(LOCAL));
    all
}

/// The pass that follows `reshard`.
const BUCKETS: (&str, &str) = ("buckets", "exchanges gradients as soon as they are there, several in one message");

/// The pass that follows the checked division.
const FOREST: (&str, &str) = ("forest", "has each device add up what it holds of sums over rows");

/// Sees the graph, or a device's graph, after each pass.
pub type Observer<'a> = &'a mut dyn FnMut(&'static str, &Graph);

/// Runs the passes before placement.
pub fn prepare(
    graph: Graph,
    numerics: Numerics,
    timings: &mut Timings,
    after: Observer<'_>,
) -> Result<Graph, CompileError> {
    pass::check("import", &graph, timings)?;
    after("import", &graph);
    Ok(pass::run_global(graph, numerics, timings, after)?)
}

/// Plans a prepared graph.
pub fn plan(
    graph: &Graph,
    hardware: &Hardware,
    options: place::Options,
    timings: &mut Timings,
) -> Result<Plan, CompileError> {
    Ok(timings.time("place", || Planner::new(graph, hardware, options).plan())?)
}

/// The pass that plans what is computed again.
pub(crate) const RECOMPUTE: (&str, &str) =
    ("recompute", "computes activations of a step of training again where they do not fit into memory");

/// Plans a prepared graph of a step of training for which nothing fits, with some of its activations computed again.
pub fn relieve(
    graph: &Graph,
    hardware: &Hardware,
    options: place::Options,
    timings: &mut Timings,
) -> Result<Relieved, CompileError> {
    let graph = early(graph, timings)?;
    let relieved = timings.time(RECOMPUTE.0, || Planner::new(&graph, hardware, options).relieve())?;
    pass::check(RECOMPUTE.0, &relieved.graph, timings)?;
    Ok(relieved)
}

/// A graph of a step of training in an order that keeps what is added up no longer than it must be.
pub(crate) fn early(graph: &Graph, timings: &mut Timings) -> Result<Graph, CompileError> {
    let early = timings.time(RECOMPUTE.0, || early_sums(graph));
    Ok(early.map_err(PassError::from)?)
}

/// Makes the programs of a prepared graph under a plan.
pub fn lower(
    graph: Graph,
    plan: Plan,
    target: &dyn Target,
    timings: &mut Timings,
    after: Observer<'_>,
) -> Result<Compiled, CompileError> {
    let sharded = timings.time("shard", || reshard::apply(&graph, &plan));
    pass::check("shard", &sharded, timings)?;
    after("shard", &sharded);
    let explicit = timings.time("reshard", || reshard::reshard_states(&sharded, &plan.nodes, plan.sharding));
    let explicit = explicit.map_err(PassError::from)?;
    pass::check("reshard", &explicit, timings)?;
    after("reshard", &explicit);
    let explicit = match plan.strategy {
        Strategy::Data => timings.time(BUCKETS.0, || buckets(&explicit, plan.bucket_bytes)).map_err(PassError::from)?,
        Strategy::One | Strategy::Tensor | Strategy::Mixed | Strategy::Pipeline => explicit,
    };
    pass::check(BUCKETS.0, &explicit, timings)?;
    after(BUCKETS.0, &explicit);
    let raw = timings.time("partition", || partition(&explicit))?;
    let problems = timings.time("check", || check::placement::check(&graph, &Interface::of(&explicit), &raw));
    if !problems.is_empty() {
        return Err(CompileError::Refused(problems.iter().map(ToString::to_string).collect()));
    }
    for local in &raw {
        pass::check("partition", local, timings)?;
        after("partition", local);
    }
    let forests = timings.time(FOREST.0, || forest(&raw))?;
    let mut locals = Vec::new();
    for local in forests {
        pass::check(FOREST.0, &local, timings)?;
        after(FOREST.0, &local);
        locals.push(pass::run(LOCAL, local, timings, after)?);
    }
    let (clusters, programs) = programs(&locals, target, timings);
    let (params, outputs) = ports(&explicit);
    Ok(Compiled { graph, plan, explicit, locals, clusters, programs, params, outputs })
}

/// Each device's graph of a graph with layouts and communication: as it is divided, and as programs are made of it.
pub(crate) fn divided(explicit: &Graph, timings: &mut Timings) -> Result<(Vec<Graph>, Vec<Graph>), CompileError> {
    let raw = timings.time("partition", || partition(explicit))?;
    let forests = timings.time(FOREST.0, || forest(&raw))?;
    let locals = forests.into_iter().map(|local| pass::run(LOCAL, local, timings, &mut |_, _| {}));
    let locals = locals.collect::<Result<_, _>>()?;
    Ok((raw, locals))
}

/// Each device's clusters and program, from its graph.
pub fn programs(
    locals: &[Graph],
    target: &dyn Target,
    timings: &mut Timings,
) -> (Vec<Vec<Cluster>>, Vec<DeviceProgram>) {
    let clusters: Vec<Vec<Cluster>> = locals.iter().map(|g| timings.time("fuse", || fuse::fuse(g, target))).collect();
    let programs =
        locals.iter().zip(&clusters).map(|(g, c)| timings.time("program", || program(g, c, target))).collect();
    (clusters, programs)
}

/// Parameters and outputs of a graph with layouts.
pub fn ports(explicit: &Graph) -> (Vec<Port>, Vec<Port>) {
    let port = |name: &Arc<str>, v: intwain_ir::Value| Port {
        name: name.clone(),
        ty: explicit.ty(v).clone(),
        layout: explicit.layout(v),
    };
    let params = explicit.params.iter().map(|p| port(&p.name, p.value)).collect();
    let outputs = explicit.outputs.iter().map(|o| port(&o.name, o.value)).collect();
    (params, outputs)
}

/// What runs: programs, and how the host's tensors are divided among them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loadable<'a> {
    /// The whole graph, whose parameters and outputs the ports are.
    pub(crate) graph: &'a Graph,
    pub(crate) params: &'a [Port],
    pub(crate) outputs: &'a [Port],
    pub(crate) programs: &'a [DeviceProgram],
    /// Code for GPUs that was made before, one per program; without it GPUs compile the programs.
    pub(crate) code: Option<&'a [GpuCode]>,
}

impl Compiled {
    /// Rows of a call; `None` where the model has no row axis.
    pub fn rows(&self) -> Option<usize> {
        crate::report::batch(&self.graph)
    }

    /// What runs.
    pub(crate) fn loadable(&self) -> Loadable<'_> {
        let Compiled { graph, params, outputs, programs, .. } = self;
        Loadable { graph, params, outputs, programs, code: None }
    }
}
