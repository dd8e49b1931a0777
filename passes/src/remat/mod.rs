//! Recomputation: where a step of training does not fit into memory, some of what the way forward makes is given up and
//! computed again before the way back reads it.
//!
//! The graph says so itself: it has the nodes twice, the second time with an [`Origin`](intwain_ir::Origin) that keeps
//! them from being merged. Everything behind placement sees ordinary nodes. A node that runs again has the same operands
//! or repetitions of them, so results keep their bits; random numbers follow from their places. What devices exchange is
//! not exchanged again.

mod choose;
mod early;
mod lives;
mod sequence;
#[cfg(test)]
mod tests;

pub use early::early_sums;

pub(crate) use choose::{Choice, Problem, choose};
pub(crate) use lives::{Copied, Lives, Sizes};

use intwain_ir::ops::TypeError;
use intwain_ir::{Graph, Value};

/// What a plan computes again so that it fits.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recomputed {
    /// The layers of what is given up and computed again, by bytes, most first.
    pub layers: Vec<RecomputedLayer>,
    /// Bytes of the predicted peak that are saved on each device.
    pub saved_bytes: Vec<f64>,
    /// Predicted seconds that it adds to a step.
    pub seconds: f64,
}

/// What is computed again of a layer.
#[derive(Clone, Debug, PartialEq)]
pub struct RecomputedLayer {
    /// The layer's path; empty for what the compiler adds.
    pub path: String,
    /// Bytes of the values that are given up, all devices together.
    pub bytes: f64,
    /// Seconds of its nodes that run again, on the slower device.
    pub seconds: f64,
}

impl Problem<'_> {
    /// The graph of a choice.
    pub(crate) fn apply(&self, choice: &Choice) -> Result<Graph, TypeError> {
        sequence::apply(self.lives.graph, &choice.steps)
    }

    /// The layers of a choice.
    pub(crate) fn layers(&self, choice: &Choice) -> Vec<RecomputedLayer> {
        let graph = self.lives.graph;
        let mut layers: Vec<RecomputedLayer> = Vec::new();
        let mut add = |path: &str, bytes: f64, seconds: f64| match layers.iter_mut().find(|l| l.path == path) {
            Some(layer) => {
                layer.bytes += bytes;
                layer.seconds += seconds;
            }
            None => layers.push(RecomputedLayer { path: path.to_string(), bytes, seconds }),
        };
        for id in sequence::repeated(&choice.steps) {
            add(graph.nodes[id].origin.path(), 0.0, self.seconds[id]);
        }
        for value in &choice.given_up {
            add(self.path(*value), self.lives.bytes(*value).iter().sum(), 0.0);
        }
        layers.sort_by(|a, b| b.bytes.total_cmp(&a.bytes));
        layers
    }

    fn path(&self, value: Value) -> &str {
        let graph = self.lives.graph;
        graph.def_node(value).map_or("", |id| graph.nodes[id].origin.path())
    }
}
