//! What a model is imported for: to be run, or to be trained.
//!
//! In training, layers that keep statistics use those of the batch and change the ones they keep, and layers with
//! randomness draw. What training itself changes (moving statistics and the like, not what an optimizer does) are states
//! of the graph in the place of weights; see [`Imported`](super::Imported).

/// The name of the state that counts calls, from 0 on: random numbers depend on it. A `u32` without dimensions.
pub const STEP: &str = "@step";

/// What a model is imported for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Phase {
    /// To be run.
    #[default]
    Inference,
    /// To be trained.
    Training(TrainingPhase),
}

/// How a model is imported for training.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrainingPhase {
    /// What random numbers depend on, beside the layer, the step and the place in the batch.
    pub seed: u64,
    /// The place of the call's first row in the batch: not 0 where the call is a part of it.
    pub first_row: usize,
    /// What rows share their statistics.
    pub statistics: Statistics,
}

/// What rows batch normalisation takes its statistics from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Statistics {
    /// All rows of the call.
    #[default]
    Global,
    /// Consecutive rows, so many each, which are all rows of the call. Moving statistics are updated by one group after
    /// the other.
    Groups(Vec<usize>),
    /// The same; moving statistics follow the mean of what the groups give, whatever their sizes: what the copies of the
    /// replicas of `tf.distribute` amount to, which are averaged where they are read.
    Devices(Vec<usize>),
}
