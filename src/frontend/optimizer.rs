//! The optimizer's state in a model file: how far training went, and what is kept beside each weight.
//!
//! Files list an optimizer's tensors in the order in which it made them. What each is follows from the class and its
//! configuration where number and shapes agree with them; else the tensors are found and keep their keys only.

use crate::arrays::ArrayError;

use super::json::Json;
use super::source::{OptimizerTensor, WeightSource};
use super::weights::VarSpec;

/// What an optimizer left in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerState {
    /// Its class, where the file names it.
    pub class: Option<String>,
    /// Steps taken.
    pub iterations: Option<i64>,
    /// The rate of the last step; of a schedule, none is kept.
    pub learning_rate: Option<f64>,
    /// Everything else, in the order of the file.
    pub slots: Vec<OptimizerSlot>,
}

/// A tensor of an optimizer. [`WeightSource::read`] gives its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptimizerSlot {
    /// What it is, where that is known.
    pub role: Option<SlotRole>,
    /// Its key in the file.
    pub key: String,
}

/// What a tensor of an optimizer is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlotRole {
    /// Keras 3's name: `momentum`, `velocity`, `accumulator`, …
    pub slot: &'static str,
    /// The weight it is kept for; none where it is kept once.
    pub variable: Option<String>,
}

/// Tensors that an optimizer makes together.
#[derive(Clone, Debug)]
enum Group {
    /// One for all weights.
    Once(&'static str),
    /// These for the first weight, then for the second.
    Each(Vec<&'static str>),
}

/// An optimizer's class and configuration.
struct Named<'j> {
    class: &'j str,
    config: &'j Json,
}

impl<'j> Named<'j> {
    fn of(compile_config: &'j Json) -> Option<Named<'j>> {
        let optimizer = compile_config.get("optimizer").or_else(|| compile_config.get("optimizer_config"))?;
        let named = |json: &'j Json| {
            let class = json.as_str().or_else(|| json.get("class_name").and_then(Json::as_str))?;
            Some(Named {
                class: class.trim_start_matches("Custom>"),
                config: json.get("config").unwrap_or(&Json::Null),
            })
        };
        let outer = named(optimizer)?;
        match outer.config.get("inner_optimizer") {
            Some(inner) => named(inner),
            None => Some(outer),
        }
    }

    fn number(&self, key: &str) -> Option<f64> {
        match self.config.get(key) {
            Some(Json::Int(i)) => Some(*i as f64),
            Some(Json::Float(x)) => Some(*x),
            _ => None,
        }
    }

    fn asks(&self, key: &str) -> bool {
        self.config.get(key) == Some(&Json::Bool(true)) || self.number(key).is_some_and(|x| x != 0.0)
    }

    /// What it makes behind iterations and rate. `None` of a class that is not known here.
    fn groups(&self) -> Option<Vec<Group>> {
        let each = |slots: &[&'static str]| Group::Each(slots.to_vec());
        let when = |key: &str, slot: &'static str| self.asks(key).then(|| each(&[slot]));
        let mut groups: Vec<Group> = when("use_ema", "average").into_iter().collect();
        match self.class.to_ascii_lowercase().as_str() {
            "sgd" => groups.extend(when("momentum", "momentum")),
            "adam" | "adamw" => {
                groups.push(each(&["momentum", "velocity"]));
                groups.extend(when("amsgrad", "velocity_hat"));
            }
            "lamb" => groups.push(each(&["momentum", "velocity"])),
            "nadam" => groups.extend([Group::Once("u_product"), each(&["momentum", "velocity"])]),
            "adamax" => groups.push(each(&["momentum", "norm"])),
            "adagrad" => groups.push(each(&["accumulator"])),
            "adadelta" => groups.push(each(&["accumulated_gradient", "accumulated_delta_var"])),
            "rmsprop" => {
                groups.push(each(&["velocity"]));
                groups.extend(when("momentum", "momentum"));
                groups.extend(when("centered", "average_gradient"));
            }
            "ftrl" => groups.push(each(&["accumulator", "linear"])),
            "lion" => groups.push(each(&["momentum"])),
            _ => return None,
        }
        Some(groups)
    }
}

/// The optimizers of Keras before 2.11 make one slot of all weights, then the next.
fn one_by_one(groups: &[Group]) -> Vec<Group> {
    let apart = |group: &Group| match group {
        Group::Once(slot) => vec![Group::Once(slot)],
        Group::Each(slots) => slots.iter().map(|slot| Group::Each(vec![slot])).collect(),
    };
    groups.iter().flat_map(apart).collect()
}

/// Slot and weight of every tensor of these groups.
fn listed<'v>(groups: &[Group], vars: &[&'v VarSpec]) -> Vec<(&'static str, Option<&'v VarSpec>)> {
    let of = |group: &Group| -> Vec<(&'static str, Option<&'v VarSpec>)> {
        match group {
            Group::Once(slot) => vec![(*slot, None)],
            Group::Each(slots) => vars.iter().flat_map(|var| slots.iter().map(|slot| (*slot, Some(*var)))).collect(),
        }
    };
    groups.iter().flat_map(of).collect()
}

/// Whether names and roles agree: some part of the names is one for each slot.
fn told_by_names(tensors: &[OptimizerTensor], roles: &[(&'static str, Option<&VarSpec>)]) -> bool {
    let second = |name: &str| name.split('/').nth(1).unwrap_or_default().to_string();
    let last =
        |name: &str| name.rsplit('/').next().unwrap_or_default().split(':').next().unwrap_or_default().to_string();
    let ending = |name: &str| name.rsplit('_').next().unwrap_or_default().to_string();
    let agree = |part: &dyn Fn(&str) -> String| {
        let mut pairs: Vec<(&str, String)> = tensors
            .iter()
            .zip(roles)
            .map(|(t, (slot, _))| (*slot, part(t.name.as_deref().unwrap_or_default())))
            .collect();
        pairs.sort();
        pairs.dedup();
        let mut parts: Vec<&String> = pairs.iter().map(|(_, part)| part).collect();
        parts.sort();
        parts.dedup();
        let mut slots: Vec<&str> = pairs.iter().map(|(slot, _)| *slot).collect();
        slots.dedup();
        pairs.len() == slots.len() && parts.len() == slots.len()
    };
    agree(&second) || agree(&last) || agree(&ending)
}

/// The roles of an optimizer's tensors behind iterations and rate, where they are known.
fn roles<'v>(
    named: Option<&Named<'_>>,
    tensors: &[OptimizerTensor],
    source: &WeightSource,
    vars: &[&'v VarSpec],
) -> Option<Vec<(&'static str, Option<&'v VarSpec>)>> {
    let groups = named?.groups()?;
    let fits = |roles: &Vec<(&'static str, Option<&VarSpec>)>| {
        let shape = |var: &Option<&VarSpec>| var.map(|var| var.shape.clone()).unwrap_or_default();
        roles.len() == tensors.len()
            && roles.iter().zip(tensors).all(|((_, var), t)| source.shape(&t.key) == Some(shape(var)))
    };
    let ways = [listed(&groups, vars), listed(&one_by_one(&groups), vars)].into_iter().filter(fits);
    let ways: Vec<_> = ways.collect();
    let named = tensors.iter().all(|tensor| tensor.name.is_some());
    match &ways[..] {
        [first, second] if named && first != second => {
            // Names that say nothing are of the oldest files.
            let told = ways.iter().find(|roles| told_by_names(tensors, roles));
            Some(told.unwrap_or(second).clone())
        }
        ways => ways.first().cloned(),
    }
}

/// The optimizer's state beside a model's weights; `trained` are its trainable variables in order.
pub(super) fn state(
    source: &WeightSource,
    compile_config: Option<&Json>,
    trained: &[&VarSpec],
) -> Result<Option<OptimizerState>, ArrayError> {
    let tensors = source.optimizer()?;
    if tensors.is_empty() {
        return Ok(None);
    }
    let named = compile_config.and_then(Named::of);
    let scalar = |tensor: &OptimizerTensor| source.shape(&tensor.key).is_some_and(|shape| shape.is_empty());
    let value = |key: &str| -> Result<Option<f64>, ArrayError> { Ok(source.read(key)?.to_f64().first().copied()) };
    let mut rest = &tensors[..];
    let mut state = OptimizerState { class: None, iterations: None, learning_rate: None, slots: Vec::new() };
    if let Some((first, others)) = rest.split_first()
        && scalar(first)
        && source.dtype(&first.key).is_some_and(|dtype| !dtype.is_float())
    {
        state.iterations = value(&first.key)?.map(|n| n as i64);
        rest = others;
    }
    let mut found = roles(named.as_ref(), rest, source, trained);
    if found.is_none()
        && let Some((rate, others)) = rest.split_first()
        && scalar(rate)
        && rate.name.as_deref().is_none_or(|name| name.contains("learning_rate"))
    {
        found = roles(named.as_ref(), others, source, trained);
        if found.is_some() || rate.name.is_some() {
            state.learning_rate = value(&rate.key)?;
            rest = others;
        }
    }
    state.learning_rate =
        state.learning_rate.or_else(|| named.as_ref()?.number("learning_rate").or(named.as_ref()?.number("lr")));
    state.class = named.map(|named| named.class.to_string());
    let role = |i: usize| {
        let (slot, var) = found.as_ref()?[i];
        Some(SlotRole { slot, variable: var.map(|var| var.path.clone()) })
    };
    state.slots = rest.iter().enumerate().map(|(i, t)| OptimizerSlot { role: role(i), key: t.key.clone() }).collect();
    Ok(Some(state))
}
