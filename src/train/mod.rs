//! Training: losses, metrics, optimizers and learning-rate schedules as Keras defines them, written as graphs.
//!
//! One step of training is one graph: the model in training mode, the losses, the gradients and the updates. Weights and
//! what the optimizer keeps are states of it, so that devices hold them from step to step.

pub mod assemble;
pub mod checkpoint;
pub mod config;
pub mod data;
pub mod fit;
pub mod history;
pub mod hook;
pub mod loss;
mod math;
pub mod metric;
pub mod optimizer;
pub mod pieces;
pub mod recipe;
pub mod schedule;
pub mod step;
pub mod trainer;
pub mod weights;
