//! Writes a model with other weights, and with the state of an optimizer, as training would leave them:
//! `cargo run --example export -- MODEL OUT.keras adam NUMBERS.npz`. `tools/export_check.py` has Keras load the result.

use intwain::arrays::write_npz;
use intwain::export::{self, Compile, Kept, Trained};
use intwain::frontend::{At, Json};
use intwain::model::to_array;
use intwain::train::optimizer::{Initial, Optimizer};
use intwain::{DType, Model, ModelOptions, Tensor, Type};
use std::collections::BTreeMap;
use std::error::Error;

/// Numbers near the old ones, other in each element.
fn moved(old: &Tensor, seed: usize) -> Tensor {
    if !old.ty.dtype.is_float() {
        return old.clone();
    }
    let numbers: Vec<f64> =
        old.to_f64().iter().enumerate().map(|(i, x)| x * 1.0625 + made(i + 31 * seed) / 256.0).collect();
    Tensor::from_f64(old.ty.dtype, old.ty.shape.clone(), &numbers)
}

fn made(i: usize) -> f64 {
    ((i * 2_654_435_761) % 1009) as f64 / 1009.0
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, out, optimizer, numbers] = &args[..] else { return Err("MODEL OUT OPTIMIZER NUMBERS.npz".into()) };
    let mut options = ModelOptions::default();
    if std::env::var("FLOAT64").is_ok() {
        options.float = Some(DType::F64);
    }
    let model = Model::open(model.as_ref(), options)?;
    let tree = model.variables()?;
    let mut weights = BTreeMap::new();
    for (i, spec) in tree.flatten().into_iter().enumerate() {
        weights.insert(spec.path.clone(), moved(&model.weight(&spec.path)?, i));
    }
    let trainable = tree.flatten().into_iter().zip(tree.trainable()).filter(|(_, trains)| *trains);
    let variables: Vec<(String, Type)> =
        trainable.map(|(spec, _)| (spec.path.clone(), Type::new(spec.dtype, &spec.shape[..]))).collect();

    let json = if optimizer.starts_with('{') { Json::parse(optimizer)? } else { Json::String(optimizer.clone()) };
    let optimizer = Optimizer::read(&At::root(&json))?;
    let slots = optimizer.slots(&variables);
    let value = |(i, slot): (usize, &intwain::train::optimizer::Slot)| {
        let elements = slot.ty.shape.elements();
        match &slot.initial {
            _ if !slot.ty.dtype.is_float() => {
                Tensor::from_f64(slot.ty.dtype, slot.ty.shape.clone(), &vec![7.0; elements])
            }
            Initial::Value(value) => value.clone(),
            Initial::Filled(_) | Initial::Variable => {
                let numbers: Vec<f64> = (0..elements).map(|e| made(e + 17 * i)).collect();
                Tensor::from_f64(slot.ty.dtype, slot.ty.shape.clone(), &numbers)
            }
        }
    };
    let values: Vec<Tensor> = slots.iter().enumerate().map(value).collect();

    let compile = Compile {
        optimizer: optimizer.config(),
        loss: Json::String("mse".into()),
        loss_weights: Json::Null,
        metrics: Json::Null,
        weighted_metrics: Json::Null,
    };
    let kept =
        Kept { slots: slots.iter().map(|slot| &*slot.path).zip(&values).collect(), inner_from: optimizer.inner_from() };
    let trained = Trained {
        weights: weights.iter().map(|(path, value)| (&**path, value)).collect(),
        optimizer: Some(kept),
        compile: Some(compile),
    };
    export::write(out.as_ref(), &model, &trained)?;

    let mut arrays: Vec<(String, Tensor)> = Vec::new();
    for (i, spec) in tree.flatten().into_iter().enumerate() {
        arrays.push((format!("w:{i:05}:{}", spec.path), weights[&spec.path].clone()));
    }
    arrays.extend(values.into_iter().enumerate().map(|(i, value)| (format!("o:{i:05}"), value)));
    let arrays: Vec<(String, intwain::arrays::Array)> =
        arrays.iter().map(|(name, value)| (name.clone(), to_array(value))).collect();
    Ok(write_npz(numbers.as_ref(), arrays.iter().map(|(name, array)| (name.as_str(), array)))?)
}
