//! `intwain run`.

use super::args::{Common, DeviceArgs, ModelArgs, RunArgs};
use super::{Failure, data, output};
use crate::model::{Model, ModelOptions, WeightOrigin};
use crate::session::{Fallback, Session, SessionOptions};
use intwain_ir::Tensor;
use std::time::Instant;

/// Reads the model that the flags name.
pub(crate) fn open(a: &ModelArgs, common: &Common) -> Result<Model, Failure> {
    let options = ModelOptions {
        weights: a.weights.clone(),
        seed: a.seed,
        shapes: a.shape.iter().cloned().collect(),
        float: a.dtype,
    };
    let model = Model::open(&a.model, options)?;
    if model.weight_origin() == WeightOrigin::Initialised && !common.quiet {
        output::note(common, &format!("{}: no weights; initialised from seed {}", a.model.display(), a.seed));
    }
    Ok(model)
}

/// Reads the model that the flags name, for commands that do not look at its weights.
pub(crate) fn open_architecture(a: &ModelArgs, common: &Common) -> Result<Model, Failure> {
    open(a, &Common { quiet: true, ..common.clone() })
}

/// The devices, split and batch that the flags name.
pub(crate) fn session_options(a: &DeviceArgs) -> SessionOptions {
    SessionOptions {
        // Without a GPU the default is two CPU devices.
        devices: a.devices.map_or(2, |d| d.count),
        threads: a.threads,
        split: a.split.strategy(),
        fallback: if a.allow_one { Fallback::One } else { Fallback::Refuse },
        parts: a.parts,
        batch: a.batch,
    }
}

pub(crate) fn run(a: &RunArgs, common: &Common) -> Result<(), Failure> {
    let model = open(&a.model, common)?;
    let inputs = data::read_inputs(&a.inputs, &model.graph(1)?)?;
    let mut session = Session::new(&model, session_options(&a.devices))?;
    let mut outputs = session.run(&inputs)?;
    if let Some(n) = a.repeat {
        let mut seconds = Vec::with_capacity(n);
        for _ in 0..n {
            let start = Instant::now();
            outputs = session.run(&inputs)?;
            seconds.push(start.elapsed().as_secs_f64());
        }
        print_times(&mut seconds, common);
    }
    output::times(common, &session.timings);
    match &a.outputs {
        Some(path) => data::write_outputs(path, &outputs),
        None => {
            outputs.iter().for_each(|(name, t)| println!("{}", summary(name, t)));
            Ok(())
        }
    }
}

fn print_times(seconds: &mut [f64], common: &Common) {
    seconds.sort_by(f64::total_cmp);
    let at = |q: f64| seconds[((seconds.len() - 1) as f64 * q).round() as usize] * 1e3;
    let (median, low, high) = (at(0.5), at(0.1), at(0.9));
    if common.json {
        let n = seconds.len();
        println!("{{\"median_ms\": {median:.4}, \"p10_ms\": {low:.4}, \"p90_ms\": {high:.4}, \"runs\": {n}}}");
    } else {
        println!("median {median:.3} ms, 10 % below {low:.3} ms, 90 % below {high:.3} ms, {} runs", seconds.len());
    }
}

/// Shape, type, range and first values of an output.
fn summary(name: &str, t: &Tensor) -> String {
    let values = t.to_f64();
    let (mut low, mut high, mut sum) = (f64::INFINITY, f64::NEG_INFINITY, 0.0);
    for v in &values {
        (low, high, sum) = (low.min(*v), high.max(*v), sum + v);
    }
    let first: Vec<String> = values.iter().take(5).map(|v| format!("{v:.6}")).collect();
    let mean = sum / values.len().max(1) as f64;
    format!("{name}: {} min {low:.6} mean {mean:.6} max {high:.6} first {}", t.ty, first.join(" "))
}
