//! What a model consists of: its layers with classes, result shapes, numbers of parameters and connections.

use std::fmt;

use serde::Serialize;

use super::REPORT_VERSION;
use super::text::{Align, Table};
use crate::Model;
use crate::frontend::{Arg, Extent, KerasModel, Layer, LayerBody, ModelKind, ResultShapes, VarTree};
use crate::model::ModelError;

/// A model's layers, as `model.summary()` of Keras lists them.
#[derive(Clone, Debug, Serialize)]
pub struct LayersReport {
    /// The version of the form.
    pub version: u32,
    /// The model's name.
    pub name: String,
    /// Its layers in the order of the file.
    pub layers: Vec<LayerRow>,
    /// Elements of all variables, each counted once: `model.count_params()`.
    pub total_params: usize,
    /// Those that train.
    pub trainable_params: usize,
    /// The others: frozen layers, moving statistics.
    pub non_trainable_params: usize,
    /// The optimizer whose state is in the file of the weights.
    pub optimizer: Option<OptimizerRow>,
}

/// An optimizer's state.
#[derive(Clone, Debug, Serialize)]
pub struct OptimizerRow {
    /// Its class, where the file names it.
    pub class: Option<String>,
    /// Steps taken.
    pub iterations: Option<i64>,
    /// Tensors it keeps beside its counters.
    pub slots: usize,
}

/// A layer.
#[derive(Clone, Debug, Serialize)]
pub struct LayerRow {
    /// Its name in its model.
    pub name: String,
    /// Its class.
    pub class: String,
    /// The shape of each result of its first call; `null` where an extent is open. Empty for a layer that is not called.
    pub output_shapes: Vec<Vec<Extent>>,
    /// The shape of its only result, else `null`.
    pub output_shape: Option<Vec<Extent>>,
    /// Elements of its variables. A layer shared by two models is counted in both rows and once in the totals.
    pub parameters: usize,
    /// Elements of those that train.
    pub trainable_parameters: usize,
    /// What its calls take, as `layer[call][tensor]`.
    pub connected_to: Vec<String>,
    /// The layers of a model used as a layer.
    pub layers: Vec<LayerRow>,
}

/// The layers of a model.
pub fn layers(model: &Model) -> Result<LayersReport, ModelError> {
    let (shapes, vars) = model.result_shapes()?;
    let keras = model.keras();
    let (total, trainable) = count(&vars, true);
    Ok(LayersReport {
        version: REPORT_VERSION,
        name: keras.name.clone(),
        layers: rows(keras, &shapes, Some(&vars), vars.trainable),
        total_params: total,
        trainable_params: trainable,
        non_trainable_params: total - trainable,
        optimizer: model.optimizer()?.map(|state| OptimizerRow {
            class: state.class,
            iterations: state.iterations,
            slots: state.slots.len(),
        }),
    })
}

fn rows(model: &KerasModel, shapes: &ResultShapes, vars: Option<&VarTree>, trains: bool) -> Vec<LayerRow> {
    let row = |(i, layer): (usize, &Layer)| {
        let part = vars.and_then(|v| v.parts.iter().find(|p| p.path == layer.path));
        let (parameters, trainable) = part.map_or((0, 0), |p| count(p, trains));
        let output_shapes = shapes.get(&layer.path).cloned().unwrap_or_default();
        LayerRow {
            name: layer.name.clone(),
            class: layer.class.clone(),
            output_shape: if let [one] = &output_shapes[..] { Some(one.clone()) } else { None },
            output_shapes,
            parameters,
            trainable_parameters: trainable,
            connected_to: connections(model, i),
            layers: match &layer.body {
                LayerBody::Model(inner) => rows(inner, shapes, part, trains && inner.trainable),
                LayerBody::Input(_) | LayerBody::Leaf(_) => Vec::new(),
            },
        }
    };
    // Keras lists no input layer of a Sequential model.
    let shown = |(_, layer): &(usize, &Layer)| {
        model.kind == ModelKind::Functional || !matches!(layer.body, LayerBody::Input(_))
    };
    model.layers.iter().enumerate().filter(shown).map(row).collect()
}

fn connections(model: &KerasModel, layer: usize) -> Vec<String> {
    let calls = model.calls.iter().filter(|c| c.layer == layer);
    let sources = calls.flat_map(|c| c.args.iter().chain(c.kwargs.values()).flat_map(Arg::tensors));
    sources.map(|s| format!("{}[{}][{}]", model.layer(s).name, s.call, s.tensor)).collect()
}

/// Elements of all variables, and of those that train.
fn count(vars: &VarTree, outer_trains: bool) -> (usize, usize) {
    let trains = outer_trains && vars.trainable;
    let own = vars.vars.iter().map(|v| {
        let n = v.shape.iter().product::<usize>();
        (n, if trains && v.trainable { n } else { 0 })
    });
    // Low-rank factors train in place of the kernel.
    let kernel = vars.vars.first().filter(|_| trains && vars.factors > 0).map_or(0, |v| v.shape.iter().product());
    let factors = (vars.factors, if trains { vars.factors } else { 0 });
    let parts = vars.parts.iter().map(|p| count(p, trains)).chain([factors]);
    let sum = own.chain(parts).fold((0, 0), |sum, n| (sum.0 + n.0, sum.1 + n.1));
    (sum.0, sum.1 - kernel)
}

impl fmt::Display for LayersReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let head =
            [("layer", Align::Left), ("class", Align::Left), ("result", Align::Left), ("parameters", Align::Right)];
        let mut table = Table::new(&[&head[..], &[("connected to", Align::Left)]].concat());
        fill(&mut table, &self.layers, 0);
        writeln!(f, "{}\n\n{table}", self.name)?;
        writeln!(f, "parameters:    {}", grouped(self.total_params))?;
        writeln!(f, "trainable:     {}", grouped(self.trainable_params))?;
        writeln!(f, "non-trainable: {}", grouped(self.non_trainable_params))?;
        let Some(optimizer) = &self.optimizer else { return Ok(()) };
        let class = optimizer.class.as_deref().unwrap_or("of unknown class");
        let steps = optimizer.iterations.map(|n| format!(" after {n} steps")).unwrap_or_default();
        writeln!(f, "optimizer:     {class}{steps}, {} tensors", optimizer.slots)
    }
}

fn fill(table: &mut Table, rows: &[LayerRow], depth: usize) {
    for row in rows {
        let shapes: Vec<String> = row.output_shapes.iter().map(|s| shape(s)).collect();
        let connected = row.connected_to.join(", ");
        let name = format!("{}{}", "  ".repeat(depth), row.name);
        table.row(vec![name, row.class.clone(), shapes.join(", "), grouped(row.parameters), connected]);
        fill(table, &row.layers, depth + 1);
    }
}

fn shape(extents: &[Extent]) -> String {
    let each: Vec<String> = extents.iter().map(|e| e.map_or("None".to_string(), |n| n.to_string())).collect();
    format!("({})", each.join(", "))
}

/// Digits in groups of three.
fn grouped(n: usize) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_from_the_end() {
        assert_eq!(
            ["0", "12", "123", "1,234", "123,456", "25,636,712"],
            [0, 12, 123, 1234, 123_456, 25_636_712].map(grouped)[..]
        );
    }
}
