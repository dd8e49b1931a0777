//! From a tree of layers to a graph: walks the calls and hands each to its layer's import function.
//!
//! A layer that cannot be imported is a problem of its own; what depends on it is left out, everything else is imported,
//! so that all problems of a file come together.

mod kept;
mod leaf;
mod resolve;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use intwain_ir::{DType, Graph, Param, ParamKind, Rows, Shape, Type, Value};

use super::cx::{Cx, Fail, Out, OwnerId, T, misfit, unsupported};
use super::forced;
use super::inputs::{Inputs, Item};
use super::order;
use super::penalties::{Penalties, Penalty};
use super::phase::Phase;
use super::rows::stay_apart;
use super::{Entry, Import, Support, lookup, nearest_class};
use crate::frontend::cursor::Fields;
use crate::frontend::error::{ImportError, ImportErrorKind, ImportErrors, JsonPath};
use crate::frontend::json::Json;
use crate::frontend::model::{Arg, Call, InputSpec, KerasModel, Layer, LayerBody, ModelKind, Source};
use crate::frontend::weights::{Slot, VarTree};
use kept::{CallRows, rows};
use resolve::{Missing, Results, arguments, masked, resolve, resolve_all};

/// What a file leaves open.
#[derive(Clone, Debug, Default)]
pub struct ImportOptions {
    /// Rows of a call, for inputs that leave their first extent open.
    pub batch: usize,
    /// Extents (without the batch) by input name, for inputs that leave others open.
    pub shapes: BTreeMap<String, Vec<usize>>,
    /// The floating type in place of the file's.
    pub float: Option<DType>,
    /// What the graph is for.
    pub phase: Phase,
    /// When penalties are part of the graph.
    pub penalties: Penalties,
}

/// A model as a graph.
#[derive(Debug)]
pub struct Imported {
    /// The graph, at stage Imported. Its parameters are the inputs in model order, then the variables in the order of
    /// `vars`, then what is kept from call to call. Inputs are batched where every operation keeps the rows apart from
    /// input to output, else whole; for training, where the file leaves the rows open.
    ///
    /// Variables that a call in training changes are states whose next values are part of the graph, and [`STEP`](super::STEP) is
    /// the last parameter where something is random.
    pub graph: Graph,
    /// The variables.
    pub vars: VarTree,
    /// The extents of all results of each layer's first call, by the layer's path.
    pub results: BTreeMap<String, Vec<Vec<usize>>>,
    /// The mask that each output carries, a tensor of the graph.
    pub masks: Vec<Option<Value>>,
    /// What layers add to the loss for their results, in the order of calls, where it is wanted.
    pub penalties: Vec<Penalty>,
}

/// Names with `_1`, `_2`, … on repeats, passing over what others are called.
fn unique_names(names: &[&str]) -> Vec<String> {
    let mut unique: Vec<String> = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let numbered = (1..).map(|k| format!("{name}_{k}"));
        let own = (!names[..i].contains(name)).then(|| name.to_string());
        let free =
            |candidate: &String| !unique.contains(candidate) && (candidate == name || !names.contains(&&**candidate));
        unique.push(own.into_iter().chain(numbered).find(free).expect("numbers do not end"));
    }
    unique
}

/// Builds the graph of a model; `file` is for messages.
pub fn import(model: &KerasModel, file: &Path, options: &ImportOptions) -> Result<Imported, ImportErrors> {
    let mut imported = build(model, file, options, Ask::AsIs)?;
    if options.phase != Phase::Inference {
        // A step of training is a whole: what divides it over devices looks at every operation.
        return Ok(imported);
    }
    let rows = imported.graph.inputs().map(|p| imported.graph.shape(p.value).first().copied().unwrap_or(0)).min();
    // A batch of one row looks like any dimension of extent 1, so the question is put to a batch of two.
    let apart = match rows {
        None | Some(0 | 1) => {
            let two = ImportOptions { batch: 2, ..options.clone() };
            build(model, file, &two, Ask::TwoRows).is_ok_and(|i| stay_apart(&i.graph))
        }
        Some(_) => stay_apart(&imported.graph),
    };
    if !apart {
        for param in &mut imported.graph.params {
            if let ParamKind::Input { rows } = &mut param.kind {
                *rows = Rows::Whole;
            }
        }
    }
    Ok(imported)
}

/// What a graph is built for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ask {
    /// To be run.
    AsIs,
    /// To look at, with two rows in a call whatever the file says.
    TwoRows,
}

fn build(model: &KerasModel, file: &Path, options: &ImportOptions, ask: Ask) -> Result<Imported, ImportErrors> {
    let class = match model.kind {
        ModelKind::Sequential => "Sequential",
        ModelKind::Functional => "Functional",
    };
    let (float, phase) = (options.float, options.phase.clone());
    let cx = Cx::new(&model.name, class, model.trainable, model.generation, float, phase, options.penalties);
    let rows = rows(model, ask);
    let mut builder = Builder {
        cx,
        problems: Vec::new(),
        evidence: Evidence::Sound,
        owners: BTreeMap::new(),
        results: BTreeMap::new(),
        read: BTreeSet::new(),
        rows,
    };
    builder.unknown_classes(model);
    match builder.outermost(model, options) {
        Ok(imported) if builder.problems.is_empty() => return Ok(imported),
        Ok(_) => {}
        Err(fail) => builder.report(fail, &model.at, ""),
    }
    let mut problems = builder.problems;
    problems.sort_by_key(|p| p.path.indices());
    Err(ImportErrors { file: file.to_path_buf(), problems })
}

pub(super) struct Builder {
    pub(super) cx: Cx,
    problems: Vec<ImportError>,
    /// Whether what is imported now follows from something that could not be imported.
    evidence: Evidence,
    /// Where each layer's variables belong, by its path.
    owners: BTreeMap<String, OwnerId>,
    /// The extents of each layer's results.
    results: BTreeMap<String, Vec<Vec<usize>>>,
    /// Configurations whose keys have been checked: a shared layer reports an unknown key once.
    read: BTreeSet<JsonPath>,
    rows: CallRows,
}

/// What a problem is worth that an import function finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evidence {
    /// Its inputs are what the file says.
    Sound,
    /// Something before it could not be imported, and its inputs are guessed: what is wrong with its configuration is
    /// wrong all the same, what is wrong with shapes may be the guess.
    Guessed,
}

impl Builder {
    fn report(&mut self, fail: Fail, at: &JsonPath, layer: &str) {
        let sure = |e: &ImportError| !matches!(*e.kind, ImportErrorKind::Shape(_));
        match fail {
            Fail::Placed(errors) if self.evidence == Evidence::Guessed => {
                self.problems.extend(errors.into_iter().filter(sure));
            }
            Fail::Placed(errors) => self.problems.extend(errors),
            Fail::Here(_) if self.evidence == Evidence::Guessed => {}
            Fail::Here(kind) if layer.is_empty() => self.problems.push(kind.at(at)),
            Fail::Here(kind) => self.problems.push(kind.of(at, layer)),
        }
    }

    /// Every class that is not there, before anything is built.
    fn unknown_classes(&mut self, model: &KerasModel) {
        for layer in &model.layers {
            match &layer.body {
                LayerBody::Model(inner) => self.unknown_classes(inner),
                LayerBody::Leaf(_) => {
                    if let Err(kind) = importable(layer) {
                        self.problems.push(kind.of(&layer.at, &layer.path));
                    }
                }
                LayerBody::Input(_) => {}
            }
        }
    }

    fn outermost(&mut self, model: &KerasModel, options: &ImportOptions) -> Out<Imported> {
        let mut inputs = Vec::new();
        for (name, spec) in model.input_specs() {
            let layer = model.layers.iter().find(|l| l.name == name).expect("inputs are layers of the model");
            match self.input(name, spec, options) {
                Ok(value) => inputs.push(T::from(value)),
                Err(fail) => self.report(fail, &layer.at, &layer.path),
            }
        }
        if inputs.len() < model.inputs.len() {
            return Err(Fail::Placed(Vec::new()));
        }
        let mut extents = inputs.iter().map(|t| self.cx.g.shape(t.value).first().copied());
        self.cx.call_rows = extents.next().flatten().filter(|first| extents.all(|e| e == Some(*first)));
        self.declare(model, 0);
        let outputs = self.model(model, 0, &inputs)?;
        self.problems.extend(self.cx.account.take_refused());
        let Some(outputs) = outputs.filter(|_| self.problems.is_empty()) else { return Err(Fail::Placed(Vec::new())) };
        let names: Vec<&str> = model.outputs.iter().map(|source| model.layer(*source).name.as_str()).collect();
        for (name, output) in unique_names(&names).iter().zip(&outputs) {
            self.cx.g.output(name, output.value);
        }
        let (vars, values) = self.cx.tree();
        let results = std::mem::take(&mut self.results);
        let (mut graph, map) = in_order(&self.cx, &values)?;
        let masks = outputs.iter().map(|o| o.mask.map(|mask| map[&mask])).collect();
        if self.counts_rows() {
            // How many rows there are goes into the results: they are not computed in pieces.
            for param in &mut graph.params {
                if let ParamKind::Input { rows } = &mut param.kind {
                    *rows = Rows::Whole;
                }
            }
        }
        let penalties = self.cx.account.found().iter();
        let penalties = penalties.map(|p| Penalty { values: map[&p.values], ..p.clone() }).collect();
        Ok(Imported { graph, vars, results, masks, penalties })
    }

    /// Whether an output depends on a tensor that holds extents. Those that only say the shapes of others are gone by now.
    fn counts_rows(&self) -> bool {
        let graph = &self.cx.g;
        let mut seen: BTreeSet<Value> = BTreeSet::new();
        let mut open: Vec<Value> =
            if self.cx.extents.is_empty() { Vec::new() } else { graph.outputs.iter().map(|o| o.value).collect() };
        while let Some(value) = open.pop() {
            if seen.insert(value) {
                open.extend(graph.def_node(value).iter().flat_map(|id| graph.nodes[*id].args.iter().copied()));
            }
        }
        self.cx.extents.iter().any(|value| seen.contains(value))
    }

    fn input(&mut self, name: &str, spec: &InputSpec, options: &ImportOptions) -> Out<Value> {
        let Some(shape) = &spec.shape else { return Err(Fail::Here(ImportErrorKind::NoInputShape)) };
        let given = options.shapes.get(name);
        if given.is_some_and(|g| g.len() + 1 != shape.len()) {
            return Err(misfit(format!("the input has {} dimensions beside the batch", shape.len().saturating_sub(1))));
        }
        let kept = match self.rows {
            CallRows::Kept(rows) => Some(rows),
            CallRows::AsWritten | CallRows::Fixed | CallRows::Unknown => None,
        };
        let extent = |(d, open): (usize, &Option<usize>)| match (d, open, given) {
            (0, Some(rows), _) => Ok(kept.unwrap_or(*rows)),
            (0, None, _) => Ok(options.batch),
            (_, Some(fixed), Some(given)) if given[d - 1] != *fixed => {
                Err(misfit(format!("dimension {d} is {fixed} in the file and {} as given", given[d - 1])))
            }
            (_, Some(fixed), _) => Ok(*fixed),
            (_, None, Some(given)) => Ok(given[d - 1]),
            (_, None, None) => Err(Fail::Here(ImportErrorKind::Unsupported {
                what: format!("an input whose dimension {d} is left open"),
                remedy: Some("give its extents with --shape NAME=224x224x3, or data that has them"),
            })),
        };
        let dims = shape.iter().enumerate().map(extent).collect::<Out<Vec<_>>>()?;
        let has_rows = shape.first() == Some(&None) || kept.is_some() || self.rows == CallRows::Fixed;
        let rows = if has_rows { Rows::Batched } else { Rows::Whole };
        let dtype = self.input_type(spec)?;
        Ok(self.cx.g.input(name, Type::new(dtype, Shape::from(dims)), rows))
    }

    fn input_type(&self, spec: &InputSpec) -> Out<DType> {
        let dtype = match spec.dtype.as_deref() {
            None => DType::F32,
            Some(name) => element(name).ok_or_else(|| unsupported(format!("an input of type `{name}`")))?,
        };
        Ok(if dtype.is_float() { self.cx.float.unwrap_or(dtype) } else { dtype })
    }

    /// Refuses a layer that keeps states for so many rows unless every call of the model has these.
    pub(super) fn keeps_rows(&self, rows: usize) -> Out<()> {
        match self.rows {
            CallRows::Kept(all) if all == rows => Ok(()),
            CallRows::Kept(all) => Err(unsupported(format!(
                "a stateful layer that is given {rows} rows where the model is given {all}, as inside TimeDistributed"
            ))),
            CallRows::AsWritten | CallRows::Fixed | CallRows::Unknown => {
                Err(Fail::Here(ImportErrorKind::Unsupported {
                    what: "a stateful layer in a model whose inputs do not fix one number of rows".to_string(),
                    remedy: Some("give every input a batch_shape with the same batch, or set stateful to false"),
                }))
            }
        }
    }

    /// Makes an owner for every layer of a model, in the order of the file: positions in weight files count them.
    pub(super) fn declare(&mut self, model: &KerasModel, owner: OwnerId) {
        for layer in &model.layers {
            if matches!((&layer.body, model.kind), (LayerBody::Input(_), ModelKind::Sequential)) {
                continue;
            }
            self.declare_layer(layer, owner, Slot::Listed("layers"));
        }
    }

    fn declare_layer(&mut self, layer: &Layer, owner: OwnerId, slot: Slot) -> OwnerId {
        let trainable = match &layer.body {
            LayerBody::Model(inner) => inner.trainable,
            LayerBody::Leaf(config) => config.get("trainable") != Some(&Json::Bool(false)),
            LayerBody::Input(_) => true,
        };
        let class = match lookup(layer) {
            Some(entry) if matches!(layer.body, LayerBody::Leaf(_)) => entry.class,
            _ if layer.class == "Model" => "Functional",
            _ => layer.class.as_str(),
        };
        // Where the first could not be read, that is a problem already.
        if let Some(first) = layer.same_as.as_ref().and_then(|path| self.owners.get(path).copied()) {
            if !self.cx.has_part(owner, first) {
                // It counts where it stands, and has its variables elsewhere.
                self.cx.part_of(owner, slot, class, &layer.path, trainable);
            }
            return first;
        }
        let part = self.cx.part_of(owner, slot, class, &layer.path, trainable);
        self.owners.insert(layer.path.clone(), part);
        if let LayerBody::Model(inner) = &layer.body {
            self.declare(inner, part);
        }
        part
    }

    /// Reads the layer under a key of a wrapper's configuration.
    pub(super) fn inner_layer(&mut self, fields: &Fields<'_>, key: &str) -> Out<Layer> {
        let at = fields.require(key)?;
        let outer = self.cx.path().to_string();
        Ok(KerasModel::read_inner_layer(&at, self.cx.generation, &outer)?)
    }

    /// The owner of a wrapped layer's variables.
    pub(super) fn declare_inner(&mut self, layer: &Layer, slot: Slot) -> OwnerId {
        self.declare_layer(layer, self.cx.owner(), slot)
    }

    /// Imports the calls of a model. `None` where an output depends on a layer that could not be imported.
    fn model(&mut self, model: &KerasModel, owner: OwnerId, inputs: &[T]) -> Out<Option<Vec<T>>> {
        if inputs.len() != model.inputs.len() {
            return Err(misfit(format!(
                "the model takes {} tensor(s), {} are given",
                model.inputs.len(),
                inputs.len()
            )));
        }
        let mut results = Results::default();
        for (source, input) in model.inputs.iter().zip(inputs) {
            results.tensors.insert((source.layer, source.call), vec![*input]);
            self.keep_shapes(model.layer(*source), &[*input]);
        }
        let order = if order::matters(model) { order::as_run(model) } else { (0..model.calls.len()).collect() };
        let outer = self.evidence;
        for call in order.into_iter().map(|i| &model.calls[i]) {
            self.call(model, owner, call, &mut results);
            self.evidence = outer;
        }
        let outputs: Option<Vec<T>> = model.outputs.iter().map(|s| results.find(s).flatten()).collect();
        if outputs.is_none() && self.problems.is_empty() {
            return Err(misfit("an output is a result that its layer does not have"));
        }
        Ok(outputs)
    }

    /// Imports one call of a model's layer. What could not be imported has the shape of what it takes, for what follows
    /// to be looked through.
    fn call(&mut self, model: &KerasModel, owner: OwnerId, call: &Call, results: &mut Results) {
        let layer = &model.layers[call.layer];
        let find = |s: &Source| results.find(s).map(|found| found.map(|t| self.cx.as_found(t)));
        let args = resolve_all(&call.args, &find).and_then(|args| {
            let kwargs = call.kwargs.iter().map(|(k, a)| Ok((k.clone(), resolve(a, &find)?)));
            Ok(Inputs::new(args, kwargs.collect::<Result<_, Missing>>()?))
        });
        let inputs = match args {
            Ok(inputs) => inputs,
            Err(Missing::Call) => return,
            Err(Missing::Result(s)) => {
                let name = &model.layers[s.layer].name;
                let what = format!("takes result {} of the layer `{name}`, which has fewer", s.tensor);
                self.problems.push(ImportErrorKind::Shape(what).of(&call.at, &layer.path));
                return;
            }
        };
        let key = (call.layer, call.call);
        let mut sources = call.args.iter().chain(call.kwargs.values()).flat_map(Arg::tensors);
        if sources.any(|s| results.guessed.contains(&(s.layer, s.call))) {
            self.evidence = Evidence::Guessed;
            results.guessed.insert(key);
        }
        let part = self.declare_layer(layer, owner, Slot::Listed("layers"));
        match self.layer(layer, part, &inputs) {
            Ok(tensors) => {
                self.keep_shapes(layer, &tensors);
                results.tensors.insert(key, tensors);
            }
            Err(fail) => {
                if importable(layer).is_ok() {
                    self.report(fail, &layer.at, &layer.path);
                }
                let first = inputs.args.iter().chain(inputs.kwargs.values()).flat_map(Item::tensors).next();
                results.tensors.extend(first.map(|t| (key, vec![t])));
                results.guessed.insert(key);
            }
        }
    }

    fn keep_shapes(&mut self, layer: &Layer, tensors: &[T]) {
        let shapes = || tensors.iter().map(|t| self.cx.dims(t.value)).collect();
        self.results.entry(layer.path.clone()).or_insert_with(shapes);
    }

    /// Imports one call of a layer whose variables belong to `owner`.
    pub(super) fn layer(&mut self, layer: &Layer, owner: OwnerId, inputs: &Inputs) -> Out {
        let outer = self.cx.training;
        self.cx.training = outer.inside(self.cx.generation, inputs);
        let result = self.called(layer, owner, inputs);
        self.cx.training = outer;
        result
    }

    fn called(&mut self, layer: &Layer, owner: OwnerId, inputs: &Inputs) -> Out {
        match &layer.body {
            LayerBody::Input(_) => Err(misfit("an input layer is not called")),
            LayerBody::Model(inner) => {
                let mut tensors = masked(arguments(inner, inputs)?, inputs);
                inputs.finish()?;
                // A model casts what it is called with to the types of its inputs.
                for (t, (_, spec)) in tensors.iter_mut().zip(inner.input_specs()) {
                    let dtype = self.input_type(spec)?;
                    t.value = self.cx.g.cast(dtype, t.value)?;
                }
                self.model(inner, owner, &tensors)?.ok_or(Fail::Placed(Vec::new()))
            }
            LayerBody::Leaf(config) => {
                let (entry, import) = importable(layer)?;
                if self.cx.trains() && forced::differs(&layer.class, config) {
                    return Err(forced::refused(&self.cx, &layer.class));
                }
                self.leaf(layer, (entry, import), config, owner, inputs)
            }
        }
    }
}

/// The row and import function of a layer's class, or why there is none.
fn importable(layer: &Layer) -> Result<(&'static Entry, Import), ImportErrorKind> {
    if let Some(class) = layer.custom.clone() {
        return Err(ImportErrorKind::Custom { class });
    }
    let class = layer.class.clone();
    let Some(entry) = lookup(layer) else {
        let nearest = nearest_class(&class).map(str::to_string);
        return Err(ImportErrorKind::UnknownLayer { class, nearest });
    };
    match entry.support {
        Support::Import(import) => Ok((entry, import)),
        Support::Refused(refusal) => Err(ImportErrorKind::RefusedLayer { class, refusal }),
    }
}

/// 64 GiB of f32.
const MAX_ELEMENTS: usize = 1 << 34;

/// A Keras dtype that a tensor can have.
pub(super) fn element(name: &str) -> Option<DType> {
    Some(match name {
        "bool" => DType::Bool,
        "int8" => DType::I8,
        "int16" => DType::I16,
        "int32" | "int" => DType::I32,
        "int64" => DType::I64,
        "uint8" => DType::U8,
        "uint32" => DType::U32,
        "float16" => DType::F16,
        "bfloat16" => DType::BF16,
        "float32" | "float" => DType::F32,
        "float64" => DType::F64,
        _ => return None,
    })
}

/// The same graph with the variables in the given order behind the inputs, then what is kept, and ids in the order of
/// definition; and what became of each value.
fn in_order(cx: &Cx, weights: &[Value]) -> Out<(Graph, BTreeMap<Value, Value>)> {
    let graph = &cx.g;
    let mut out = Graph::new(&graph.name);
    let mut map: BTreeMap<Value, Value> = BTreeMap::new();
    let params: BTreeMap<Value, &Param> = graph.params.iter().map(|p| (p.value, p)).collect();
    let inputs = graph.inputs().map(|p| p.value);
    let kept = cx.all_kept().map(|k| k.before);
    for value in inputs.chain(weights.iter().copied()).chain(kept) {
        let param = params.get(&value).expect("all of them are parameters");
        map.insert(value, out.param(&param.name, graph.ty(value).clone(), param.kind.clone()));
    }
    for node in graph.nodes.values() {
        let args: Vec<Value> = node.args.iter().map(|a| map[a]).collect();
        out.origin = node.origin.clone();
        let results = out.push_all(node.op.clone(), &args)?;
        map.extend(node.results.iter().copied().zip(results));
    }
    out.origin = Default::default();
    for output in &graph.outputs {
        out.output(&output.name, map[&output.value]);
    }
    let changed = cx.all_kept().chain(cx.updated()).map(|k| (map[&k.before], map[&k.now]));
    let changed: BTreeMap<Value, Value> = changed.collect();
    for param in &mut out.params {
        if let Some(next) = changed.get(&param.value) {
            param.kind = ParamKind::State { next: Some(*next) };
        }
    }
    Ok((out, map))
}
