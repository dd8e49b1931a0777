//! The optimizer's state in a model file: how far training went, and what is kept beside each weight.
//!
//! Files list an optimizer's tensors in the order in which it made them, which differs between versions of Keras. What each
//! is follows from [what the optimizer keeps](Optimizer::slots) where number, shapes and types agree with one of the orders;
//! else the tensors are found and keep their keys only.

use intwain_ir::Type;

use crate::arrays::ArrayError;
use crate::train::optimizer::{Optimizer, Slot};

use super::cursor::At;
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

/// A tensor of a file with what it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    /// Its role among the optimizer's slots.
    pub(crate) role: &'static str,
    /// The trainable variable it is kept for, by position.
    pub(crate) variable: Option<usize>,
    /// Its key in the file.
    pub(crate) key: String,
}

/// A slot as files have it.
#[derive(Clone, Debug, PartialEq)]
struct Kept {
    role: &'static str,
    variable: Option<usize>,
    ty: Type,
}

const ITERATION: &str = "iteration";
const RATE: &str = "learning_rate";

/// The class of an optimizer, that of the one inside where it scales losses.
fn class(optimizer: &Json) -> Option<String> {
    if let Some(inner) = optimizer.get("config").and_then(|config| config.get("inner_optimizer")) {
        return class(inner);
    }
    let name = optimizer.as_str().or_else(|| optimizer.get("class_name").and_then(Json::as_str))?;
    Some(name.trim_start_matches("Custom>").to_string())
}

/// The orders in which versions of Keras keep these slots, the present one first.
fn orders(slots: &[Slot], inner_from: usize) -> Vec<Vec<Kept>> {
    let kept = |slot: &Slot| Kept { role: slot.role, variable: slot.variable, ty: slot.ty.clone() };
    let all: Vec<Kept> = slots.iter().map(kept).collect();
    let (outer, inner) = all.split_at(inner_from);
    let rest: Vec<Kept> = inner.iter().filter(|k| k.role != ITERATION && k.role != RATE).cloned().collect();
    // Nadam made its product first.
    let mut once_first = rest.clone();
    once_first.sort_by_key(|k| k.variable.is_some());
    // The optimizers of Keras before 2.11 make one slot of all weights, then the next.
    let first_of = |role: &str| once_first.iter().position(|k| k.role == role);
    let mut one_by_one = once_first.clone();
    one_by_one.sort_by_key(|k| first_of(k.role));
    let scalar = |role: &'static str, like: &str| {
        let ty = inner.iter().find(|k| k.role == like).map(|k| k.ty.clone());
        ty.map(|ty| Kept { role, variable: None, ty })
    };
    let counter = scalar(ITERATION, ITERATION);
    // Keras 2 keeps the rate of the last step where it follows a schedule.
    let float = Type::new(intwain_ir::DType::F32, intwain_ir::Shape::default());
    let rate = scalar(RATE, RATE).or(Some(Kept { role: RATE, variable: None, ty: float }));
    let has_rate = inner.iter().any(|k| k.role == RATE);
    let mut counters = [[counter.clone(), rate.clone()], [counter, None], [None, rate], [None, None]];
    if !has_rate {
        counters.swap(0, 1);
    }
    let mut orders: Vec<Vec<Kept>> = Vec::new();
    for outer in [outer, &[]] {
        // Where the optimizer that scales losses keeps its own, that inside has all of its counters.
        let counters = if outer.is_empty() { &counters[..] } else { &counters[..1] };
        for counters in counters {
            for rest in [&rest, &once_first, &one_by_one] {
                let order: Vec<Kept> = outer.iter().chain(counters.iter().flatten()).chain(rest).cloned().collect();
                if !orders.contains(&order) {
                    orders.push(order);
                }
            }
        }
    }
    orders
}

/// Whether names and roles agree: some part of the names is one for each slot.
fn told_by_names(tensors: &[OptimizerTensor], order: &[Kept]) -> bool {
    let second = |name: &str| name.split('/').nth(1).unwrap_or_default().to_string();
    let last =
        |name: &str| name.rsplit('/').next().unwrap_or_default().split(':').next().unwrap_or_default().to_string();
    let ending = |name: &str| name.rsplit('_').next().unwrap_or_default().to_string();
    let agree = |part: &dyn Fn(&str) -> String| {
        let mut pairs: Vec<(&str, String)> = tensors
            .iter()
            .zip(order)
            .filter(|(_, kept)| kept.variable.is_some())
            .map(|(t, kept)| (kept.role, part(t.name.as_deref().unwrap_or_default())))
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

/// What these tensors are, where one of the orders fits.
fn told(orders: &[Vec<Kept>], tensors: &[OptimizerTensor], source: &WeightSource) -> Option<Vec<Found>> {
    let fits = |kept: &Kept, tensor: &OptimizerTensor| {
        let shape = source.shape(&tensor.key);
        let counts = source.dtype(&tensor.key).is_some_and(|dtype| !dtype.is_float());
        shape.is_some_and(|shape| shape[..] == kept.ty.shape[..]) && counts != kept.ty.dtype.is_float()
    };
    let fit = |order: &&Vec<Kept>| order.len() == tensors.len() && order.iter().zip(tensors).all(|(k, t)| fits(k, t));
    let ways: Vec<&Vec<Kept>> = orders.iter().filter(fit).collect();
    let named = tensors.iter().all(|tensor| tensor.name.is_some());
    let way = match &ways[..] {
        // Names that say nothing are of the oldest files.
        [_, _, ..] if named => ways.iter().find(|way| told_by_names(tensors, way)).or(ways.last()),
        ways => ways.first(),
    };
    let found = |(kept, tensor): (&Kept, &OptimizerTensor)| Found {
        role: kept.role,
        variable: kept.variable,
        key: tensor.key.clone(),
    };
    way.map(|way| way.iter().zip(tensors).map(found).collect())
}

/// The tensors that an optimizer keeps in a file for these trainable variables, where they are known.
pub(super) fn find(
    source: &WeightSource,
    optimizer: &Optimizer,
    trained: &[&VarSpec],
) -> Result<Option<Vec<Found>>, ArrayError> {
    let named: Vec<(String, Type)> =
        trained.iter().map(|var| (var.path.clone(), Type::new(var.dtype, var.shape.clone()))).collect();
    let slots = optimizer.slots(&named);
    let orders = orders(&slots, optimizer.inner_from().unwrap_or(0));
    let files = source.optimizer()?;
    Ok(files.iter().filter(|tensors| !tensors.is_empty()).find_map(|tensors| told(&orders, tensors, source)))
}

/// The optimizer's state beside a model's weights; `trained` are its trainable variables in order.
pub(super) fn state(
    source: &WeightSource,
    compile_config: Option<&Json>,
    trained: &[&VarSpec],
) -> Result<Option<OptimizerState>, ArrayError> {
    let files = source.optimizer()?;
    let Some(tensors) = files.iter().rfind(|tensors| !tensors.is_empty()) else { return Ok(None) };
    let configured = compile_config.and_then(|c| c.get("optimizer").or_else(|| c.get("optimizer_config")));
    let mut state =
        OptimizerState { class: configured.and_then(class), iterations: None, learning_rate: None, slots: Vec::new() };
    let value = |key: &str| -> Result<Option<f64>, ArrayError> { Ok(source.read(key)?.to_f64().first().copied()) };
    let optimizer = configured.and_then(|json| Optimizer::read(&At::root(json)).ok());
    let found = optimizer.map(|optimizer| find(source, &optimizer, trained)).transpose()?.flatten();
    match found {
        Some(found) => {
            for Found { role, variable, key } in found {
                match role {
                    ITERATION => state.iterations = value(&key)?.map(|n| n as i64),
                    RATE => state.learning_rate = value(&key)?,
                    _ if role.starts_with("outer_") => {}
                    slot => {
                        let variable = variable.map(|v| trained[v].path.clone());
                        state.slots.push(OptimizerSlot { role: Some(SlotRole { slot, variable }), key });
                    }
                }
            }
        }
        None => unknown(&mut state, tensors, source)?,
    }
    let number = |key: &str| match configured?.get("config")?.get(key)? {
        Json::Int(i) => Some(*i as f64),
        Json::Float(x) => Some(*x),
        Json::Null | Json::Bool(_) | Json::String(_) | Json::Array(_) | Json::Object(_) => None,
    };
    state.learning_rate = state.learning_rate.or_else(|| number("learning_rate")).or_else(|| number("lr"));
    Ok(Some(state))
}

/// What can be said of tensors of an optimizer that nobody knows.
fn unknown(state: &mut OptimizerState, tensors: &[OptimizerTensor], source: &WeightSource) -> Result<(), ArrayError> {
    let scalar = |tensor: &OptimizerTensor| source.shape(&tensor.key).is_some_and(|shape| shape.is_empty());
    let value = |key: &str| -> Result<Option<f64>, ArrayError> { Ok(source.read(key)?.to_f64().first().copied()) };
    let mut rest = tensors;
    if let Some((first, others)) = rest.split_first()
        && scalar(first)
        && source.dtype(&first.key).is_some_and(|dtype| !dtype.is_float())
    {
        state.iterations = value(&first.key)?.map(|n| n as i64);
        rest = others;
    }
    if let Some((rate, others)) = rest.split_first()
        && scalar(rate)
        && rate.name.as_deref().is_some_and(|name| name.contains("learning_rate"))
    {
        state.learning_rate = value(&rate.key)?;
        rest = others;
    }
    state.slots = rest.iter().map(|t| OptimizerSlot { role: None, key: t.key.clone() }).collect();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `LossScaleOptimizer(SGD())` keeps six numbers. Saved before it is built, it has four of them: its counter and rate, and
    /// those of SGD. None of them is a scale.
    #[test]
    fn a_scale_is_only_found_beside_all_counters() {
        let json = Json::parse(
            r#"{"class_name": "LossScaleOptimizer", "config": {"inner_optimizer": {"class_name": "SGD", "config": {}}}}"#,
        )
        .unwrap();
        let optimizer = Optimizer::read(&At::root(&json)).unwrap();
        let orders = orders(&optimizer.slots(&[]), optimizer.inner_from().unwrap());
        let with_scale: Vec<_> = orders.iter().filter(|o| o.iter().any(|k| k.role == "dynamic_scale")).collect();
        assert!(!with_scale.is_empty() && with_scale.iter().all(|order| order.len() == 6), "{with_scale:?}");
    }
}
