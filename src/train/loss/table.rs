//! The losses of Keras by class and by name.

use std::sync::Arc;

use super::function::Function;
use super::{crossentropy, ctc, divergence, focal, hinge, overlap, regression, similarity};
use crate::frontend::{Fields, ImportError};

/// Reads a loss's own keys.
pub(crate) type Read = fn(&Fields<'_>) -> Result<Arc<dyn Function>, ImportError>;

/// A loss.
pub(crate) struct Row {
    /// Its class, if it has one.
    pub(crate) class: Option<&'static str>,
    /// The name of an object of the class that is given none.
    pub(crate) name: &'static str,
    /// Names of the function, of Keras 3 and Keras 2.
    pub(crate) functions: &'static [&'static str],
    /// Reads it.
    pub(crate) read: Read,
}

const fn row(class: &'static str, name: &'static str, functions: &'static [&'static str], read: Read) -> Row {
    Row { class: Some(class), name, functions, read }
}

#[rustfmt::skip]
pub(crate) const ROWS: &[Row] = &[
    row("MeanSquaredError", "mean_squared_error", &["mean_squared_error", "mse", "MSE"], regression::squared),
    row("MeanAbsoluteError", "mean_absolute_error", &["mean_absolute_error", "mae", "MAE"], regression::absolute),
    row("MeanAbsolutePercentageError", "mean_absolute_percentage_error",
        &["mean_absolute_percentage_error", "mape", "MAPE"], regression::percentage),
    row("MeanSquaredLogarithmicError", "mean_squared_logarithmic_error",
        &["mean_squared_logarithmic_error", "msle", "MSLE"], regression::squared_logarithmic),
    row("Huber", "huber_loss", &["huber", "huber_loss"], regression::huber),
    row("LogCosh", "log_cosh", &["log_cosh", "logcosh"], regression::log_cosh),
    row("BinaryCrossentropy", "binary_crossentropy", &["binary_crossentropy", "bce", "BCE"], crossentropy::binary),
    row("BinaryFocalCrossentropy", "binary_focal_crossentropy", &["binary_focal_crossentropy"], focal::binary),
    row("CategoricalCrossentropy", "categorical_crossentropy", &["categorical_crossentropy"], crossentropy::categorical),
    row("CategoricalFocalCrossentropy", "categorical_focal_crossentropy",
        &["categorical_focal_crossentropy"], focal::categorical),
    row("SparseCategoricalCrossentropy", "sparse_categorical_crossentropy",
        &["sparse_categorical_crossentropy"], crossentropy::sparse),
    row("KLDivergence", "kl_divergence",
        &["kl_divergence", "kld", "KLD", "kullback_leibler_divergence"], divergence::kullback_leibler),
    row("Poisson", "poisson", &["poisson"], divergence::poisson),
    row("CategoricalGeneralizedCrossEntropy", "categorical_generalized_cross_entropy",
        &["categorical_generalized_cross_entropy"], divergence::generalized),
    row("Hinge", "hinge", &["hinge"], hinge::linear),
    row("SquaredHinge", "squared_hinge", &["squared_hinge"], hinge::squared),
    row("CategoricalHinge", "categorical_hinge", &["categorical_hinge"], hinge::categorical),
    row("CosineSimilarity", "cosine_similarity", &["cosine_similarity"], similarity::cosine),
    row("CTC", "ctc", &["ctc"], ctc::ctc),
    row("Circle", "circle", &["circle"], similarity::circle),
    row("Dice", "dice", &["dice"], overlap::dice),
    row("Tversky", "tversky", &["tversky"], overlap::tversky),
    Row { class: None, name: "crossentropy", functions: &["crossentropy", "ce"], read: crossentropy::by_shapes },
];

/// The row of a class.
pub(crate) fn class(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.class == Some(name))
}

/// The row of a function.
pub(crate) fn function(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.functions.contains(&name))
}

/// Every class and function.
pub(crate) fn names() -> Vec<&'static str> {
    ROWS.iter().flat_map(|row| row.class.into_iter().chain(row.functions.iter().copied())).collect()
}
