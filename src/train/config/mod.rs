//! What a model is trained with: optimizer, and for each output losses, weights and metrics.
//!
//! A model file says it (`compile_config` of Keras 3, `training_config` of HDF5 files), a user may say it in its place
//! ([`Said`]). Either is a Keras name or what Keras serialises, alone or in lists and dictionaries that follow the model's
//! outputs. [`TrainConfig::read`] brings it to the outputs, by the rules of the Keras that wrote it; what a loss or metric
//! is, is read by [`Loss::read`](super::loss::Loss::read) and its like from the places given here.

mod matching;
mod tree;

#[cfg(test)]
mod tests;

use crate::frontend::{At, Generation, ImportError, ImportErrorKind, Json, JsonPath, KerasModel, Nest};
use matching::{Rules, losses, metrics, weights};
use tree::Tree;

/// The outputs of a model, for what is said of each.
#[derive(Clone, Debug)]
pub struct Outputs {
    /// Names of the layers they come from, as Keras flattens outputs.
    layers: Vec<String>,
    /// The keys of a dictionary, else those names made unique.
    names: Vec<String>,
    nest: Nest,
}

/// What a user says in place of the model file.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// The optimizer.
    pub optimizer: Option<Argument>,
    /// Losses. The weights of those in the file go with them.
    pub loss: Option<Argument>,
    /// What losses are multiplied by.
    pub loss_weights: Option<Argument>,
    /// Metrics, which heed no sample weights.
    pub metrics: Option<Argument>,
    /// Metrics that heed sample weights.
    pub weighted_metrics: Option<Argument>,
}

/// What was given for one thing.
#[derive(Clone, Debug, PartialEq)]
pub enum Argument {
    /// Names, which hold for every output.
    Names(Vec<Json>),
    /// A document, arranged as Keras 3 wants it.
    Document(Json),
}

/// What a model is trained with.
#[derive(Clone, Debug)]
pub struct TrainConfig<'j> {
    /// The optimizer, where anybody names one.
    pub optimizer: Option<At<'j>>,
    /// For each output as Keras flattens them.
    pub outputs: Vec<OutputConfig<'j>>,
    /// Whether Keras 3 puts a changing loss scale around the optimizer where the model's policy is `mixed_float16`.
    pub scales_loss: bool,
    /// How metrics are named.
    pub naming: Naming,
}

/// What an output is judged by.
#[derive(Clone, Debug)]
pub struct OutputConfig<'j> {
    /// What it is called in names of losses and metrics. Several outputs of Keras 3 may have one name.
    pub name: String,
    /// Its loss; none where it does not matter.
    pub loss: Option<At<'j>>,
    /// What the loss is multiplied by.
    pub weight: f64,
    /// Metrics, which heed no sample weights.
    pub metrics: Vec<At<'j>>,
    /// Metrics that heed sample weights.
    pub weighted_metrics: Vec<At<'j>>,
}

/// Whether metrics are called by output and metric.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Naming {
    /// They are, where there are several outputs.
    #[default]
    ByOutput,
    /// Their own names have the output in them: Keras 2 writes them so into HDF5 files.
    AsWritten,
}

impl Naming {
    /// What stands before the name of a metric of an output of this name, where there are several.
    pub fn before<'o>(self, output: &'o str, metric: &str) -> Option<&'o str> {
        let has_it = || metric.strip_prefix(output).is_some_and(|rest| rest.starts_with('_'));
        match self {
            Naming::ByOutput => Some(output),
            Naming::AsWritten => (!has_it()).then_some(output),
        }
    }
}

/// Where something that cannot be used was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the model file.
    File,
    /// In an argument of this name.
    Argument(&'static str),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::File => f.write_str("what the model file was compiled with"),
            Place::Argument(name) => f.write_str(name),
        }
    }
}

/// What a model is trained with cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{place}: {problem}")]
pub struct ConfigError {
    /// Where it was said.
    pub place: Place,
    /// What is wrong.
    #[source]
    pub problem: ImportError,
}

impl Argument {
    /// Reads what a user writes: names of Keras with commas between them, or a JSON document.
    pub fn parse(text: &str) -> Result<Argument, ImportErrorKind> {
        if text.trim_start().starts_with(['{', '[', '"']) {
            return Ok(match Json::parse(text)? {
                name @ Json::String(_) => Argument::Names(vec![name]),
                document => Argument::Document(document),
            });
        }
        let json = |word: &str| match word.parse::<f64>() {
            Ok(number) => Json::Float(number),
            Err(_) => Json::String(word.to_string()),
        };
        Ok(Argument::Names(text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(json).collect()))
    }

    /// What [`Argument::parse`] reads as the same.
    pub fn to_text(&self) -> String {
        let word = |json: &Json| json.as_str().map_or_else(|| json.to_text(), str::to_string);
        match self {
            Argument::Names(names) => names.iter().map(word).collect::<Vec<_>>().join(","),
            Argument::Document(json) => json.to_text(),
        }
    }

    fn tree(&self) -> Result<Tree<'_>, ImportError> {
        match self {
            Argument::Names(names) => Ok(Tree::Everywhere(names.iter().map(At::root).collect())),
            Argument::Document(json) => Tree::of(&At::root(json)),
        }
    }
}

impl Outputs {
    /// Those of a model.
    pub fn of(model: &KerasModel) -> Outputs {
        let layers: Vec<String> = model.outputs.iter().map(|source| model.layers[source.layer].name.clone()).collect();
        let keys = match &model.nest {
            Nest::Named(entries) if entries.iter().all(|(_, nest)| *nest == Nest::One) => {
                Some(entries.iter().map(|(key, _)| key.clone()).collect())
            }
            Nest::One | Nest::List(_) | Nest::Named(_) => None,
        };
        let names = keys.unwrap_or_else(|| unique(&layers));
        Outputs { layers, names, nest: model.nest.clone() }
    }
}

impl Outputs {
    /// What they are called in what is reported: Keras 3 does not make names unique, Keras 2 overlooks keys.
    fn shown(&self, rules: Rules) -> Vec<String> {
        match (rules, &self.nest) {
            (Rules::Keras3, Nest::Named(_)) => self.names.clone(),
            (Rules::Keras3, Nest::One | Nest::List(_)) => self.layers.clone(),
            (Rules::Keras2, _) => unique(&self.layers),
        }
    }
}

/// Names with `_1`, `_2`, … on repeats.
fn unique(names: &[String]) -> Vec<String> {
    let mut out: Vec<String> = Vec::new();
    for name in names {
        let numbered = (1..).map(|k| format!("{name}_{k}"));
        let free = std::iter::once(name.clone()).chain(numbered).find(|candidate| !out.contains(candidate));
        out.push(free.expect("numbers do not end"));
    }
    out
}

impl<'j> TrainConfig<'j> {
    /// Brings what a file and a user say to the outputs of a model. `file` is [what the model file
    /// holds](crate::frontend::ModelFile::compile_config), `generation` who wrote it.
    ///
    /// # Errors
    /// Everything that cannot be used.
    pub fn read(
        file: Option<&'j Json>,
        generation: Generation,
        said: &'j Said,
        outputs: &Outputs,
    ) -> Result<TrainConfig<'j>, Vec<ConfigError>> {
        let mut problems = Vec::new();
        let stored = Stored::read(file, generation, &mut problems);
        // Who gives losses gives their weights.
        let stored_weights = if said.loss.is_some() { None } else { stored.loss_weights.clone() };
        let mut choose = |name, said: &'j Option<Argument>, in_file: &Option<At<'j>>| {
            Source::choose(name, said.as_ref(), in_file.as_ref(), stored.rules, &mut problems)
        };
        let loss = choose("--loss", &said.loss, &stored.loss);
        let factor = choose("--loss-weights", &said.loss_weights, &stored_weights);
        let metric = choose("--metrics", &said.metrics, &stored.metrics);
        let weighted = choose("--weighted-metrics", &said.weighted_metrics, &stored.weighted_metrics);
        let optimizer = match &said.optimizer {
            None => stored.optimizer,
            Some(argument) => noted(one(argument), Place::Argument("--optimizer"), &mut problems),
        };
        let losses = noted(losses(&loss.tree, outputs, loss.rules), loss.place, &mut problems);
        let weights = weights(&factor.tree, &loss.tree, outputs, factor.rules);
        let weights = noted(weights, factor.place, &mut problems);
        let unweighted = noted(metrics(&metric.tree, outputs, metric.rules), metric.place, &mut problems);
        let weighted = noted(metrics(&weighted.tree, outputs, weighted.rules), weighted.place, &mut problems);
        let (Some(losses), Some(weights), Some(unweighted), Some(weighted), true) =
            (losses, weights, unweighted, weighted, problems.is_empty())
        else {
            return Err(problems);
        };
        let shown = outputs.shown(stored.rules);
        let each = shown.iter().zip(losses).zip(weights).zip(unweighted.into_iter().zip(weighted));
        let each = each.map(|(((name, loss), weight), (metrics, weighted_metrics))| OutputConfig {
            name: name.clone(),
            loss,
            weight,
            metrics,
            weighted_metrics,
        });
        let (outputs, scales_loss, naming) = (each.collect(), stored.scales_loss, stored.naming);
        Ok(TrainConfig { optimizer, outputs, scales_loss, naming })
    }
}

/// The value under each key of a file.
struct Stored<'j> {
    optimizer: Option<At<'j>>,
    loss: Option<At<'j>>,
    loss_weights: Option<At<'j>>,
    metrics: Option<At<'j>>,
    weighted_metrics: Option<At<'j>>,
    scales_loss: bool,
    rules: Rules,
    naming: Naming,
}

impl<'j> Stored<'j> {
    fn read(file: Option<&'j Json>, generation: Generation, problems: &mut Vec<ConfigError>) -> Stored<'j> {
        let rules = match generation {
            Generation::Three => Rules::Keras3,
            Generation::One | Generation::Two => Rules::Keras2,
        };
        let mut stored = Stored {
            optimizer: None,
            loss: None,
            loss_weights: None,
            metrics: None,
            weighted_metrics: None,
            scales_loss: true,
            rules,
            naming: Naming::ByOutput,
        };
        let Some(file) = file.filter(|json| **json != Json::Null) else { return stored };
        let Some(fields) = noted(At::root(file).fields(), Place::File, problems) else { return stored };
        stored.optimizer = fields.opt_any(&["optimizer", "optimizer_config"]);
        if fields.opt("optimizer_config").is_some() && rules == Rules::Keras2 {
            stored.naming = Naming::AsWritten;
        }
        stored.loss = fields.opt("loss");
        stored.loss_weights = fields.opt("loss_weights");
        stored.metrics = fields.opt("metrics");
        stored.weighted_metrics = fields.opt("weighted_metrics");
        stored.scales_loss = noted(fields.bool_or("auto_scale_loss", true), Place::File, problems).unwrap_or(true);
        // How Keras executes, and that weights of steps may be given, as they always may here.
        fields.irrelevant(&["run_eagerly", "steps_per_execution", "jit_compile", "sample_weight_mode"]);
        let unknown = fields.finish().into_iter();
        problems.extend(unknown.map(|problem| ConfigError { place: Place::File, problem }));
        stored
    }
}

/// What is said of one thing, where it was said and by whose rules.
struct Source<'j> {
    tree: Tree<'j>,
    place: Place,
    rules: Rules,
}

impl<'j> Source<'j> {
    fn choose(
        name: &'static str,
        said: Option<&'j Argument>,
        stored: Option<&At<'j>>,
        by_file: Rules,
        problems: &mut Vec<ConfigError>,
    ) -> Source<'j> {
        let (tree, place, rules) = match (said, stored) {
            (Some(argument), _) => (argument.tree(), Place::Argument(name), Rules::Keras3),
            (None, Some(at)) => (Tree::of(at), Place::File, by_file),
            (None, None) => (Ok(Tree::Nothing), Place::File, by_file),
        };
        Source { tree: noted(tree, place, problems).unwrap_or(Tree::Nothing), place, rules }
    }
}

/// What was read, or a note of the problem.
fn noted<X>(read: Result<X, ImportError>, place: Place, problems: &mut Vec<ConfigError>) -> Option<X> {
    read.map_err(|problem| problems.push(ConfigError { place, problem })).ok()
}

/// The only thing in an argument.
fn one(argument: &Argument) -> Result<At<'_>, ImportError> {
    match argument {
        Argument::Document(json) => Ok(At::root(json)),
        Argument::Names(names) => match names.as_slice() {
            [name] => Ok(At::root(name)),
            _ => {
                Err(ImportErrorKind::Shape(format!("{} names where one is wanted", names.len())).at(&JsonPath::root()))
            }
        },
    }
}
