//! The metrics of Keras by class and by name.

use std::sync::Arc;

use super::Measure;
use super::{accuracy, auc, correlation, counts, f_score, iou, operating, r2};
use crate::frontend::{Fields, ImportError, Refusal};
use crate::train::loss::table as losses;

/// How a metric is read.
pub(super) enum Read {
    /// By its own keys.
    With(fn(&Fields<'_>) -> Result<Arc<dyn Measure>, ImportError>),
    /// As the mean of the loss of that function.
    MeanOf(&'static str),
    /// As the root of a mean of squares.
    RootMeanSquared,
    /// Not at all.
    Never(Refusal),
}

/// A metric.
pub(super) struct Row {
    /// Its class.
    pub(super) class: &'static str,
    /// The name of an object of the class that is given none.
    pub(super) name: &'static str,
    /// Other names: the class in lower case where that is another, abbreviations, functions.
    pub(super) names: &'static [&'static str],
    /// How it is read.
    pub(super) read: Read,
}

const fn row(class: &'static str, name: &'static str, names: &'static [&'static str], read: Read) -> Row {
    Row { class, name, names, read }
}

const VALUES: Refusal = Refusal {
    why: "it takes values, not labels and predictions",
    remedy: "name a metric that compares predictions with labels",
};

#[rustfmt::skip]
pub(super) const ROWS: &[Row] = &[
    row("MeanSquaredError", "mean_squared_error", &["mse", "MSE"], Read::MeanOf("mse")),
    row("RootMeanSquaredError", "root_mean_squared_error", &[], Read::RootMeanSquared),
    row("MeanAbsoluteError", "mean_absolute_error", &["mae", "MAE"], Read::MeanOf("mae")),
    row("MeanAbsolutePercentageError", "mean_absolute_percentage_error", &["mape", "MAPE"], Read::MeanOf("mape")),
    row("MeanSquaredLogarithmicError", "mean_squared_logarithmic_error", &["msle", "MSLE"], Read::MeanOf("msle")),
    row("CosineSimilarity", "cosine_similarity", &[], Read::With(correlation::cosine)),
    row("LogCoshError", "logcosh", &["log_cosh_error"], Read::MeanOf("log_cosh")),
    row("R2Score", "r2_score", &[], Read::With(r2::r2)),
    row("AUC", "auc", &[], Read::With(auc::auc)),
    row("TruePositives", "true_positives", &[], Read::With(counts::true_positives)),
    row("FalsePositives", "false_positives", &[], Read::With(counts::false_positives)),
    row("TrueNegatives", "true_negatives", &[], Read::With(counts::true_negatives)),
    row("FalseNegatives", "false_negatives", &[], Read::With(counts::false_negatives)),
    row("Precision", "precision", &[], Read::With(counts::precision)),
    row("Recall", "recall", &[], Read::With(counts::recall)),
    row("SensitivityAtSpecificity", "sensitivity_at_specificity", &[], Read::With(operating::sensitivity_at_specificity)),
    row("SpecificityAtSensitivity", "specificity_at_sensitivity", &[], Read::With(operating::specificity_at_sensitivity)),
    row("PrecisionAtRecall", "precision_at_recall", &[], Read::With(operating::precision_at_recall)),
    row("RecallAtPrecision", "recall_at_precision", &[], Read::With(operating::recall_at_precision)),
    row("PearsonCorrelation", "pearson_correlation", &[], Read::With(correlation::pearson)),
    row("ConcordanceCorrelation", "concordance_correlation", &[], Read::With(correlation::concordance)),
    row("Hinge", "hinge", &[], Read::MeanOf("hinge")),
    row("SquaredHinge", "squared_hinge", &[], Read::MeanOf("squared_hinge")),
    row("CategoricalHinge", "categorical_hinge", &[], Read::MeanOf("categorical_hinge")),
    row("KLDivergence", "kl_divergence", &["kld", "KLD", "kullback_leibler_divergence"], Read::MeanOf("kl_divergence")),
    row("Poisson", "poisson", &[], Read::MeanOf("poisson")),
    row("BinaryCrossentropy", "binary_crossentropy", &["bce", "BCE"], Read::MeanOf("binary_crossentropy")),
    row("CategoricalCrossentropy", "categorical_crossentropy", &[], Read::MeanOf("categorical_crossentropy")),
    row("SparseCategoricalCrossentropy", "sparse_categorical_crossentropy", &[],
        Read::MeanOf("sparse_categorical_crossentropy")),
    row("Accuracy", "accuracy", &[], Read::With(accuracy::equal)),
    row("BinaryAccuracy", "binary_accuracy", &[], Read::With(accuracy::binary)),
    row("CategoricalAccuracy", "categorical_accuracy", &[], Read::With(accuracy::categorical)),
    row("SparseCategoricalAccuracy", "sparse_categorical_accuracy", &[], Read::With(accuracy::sparse)),
    row("TopKCategoricalAccuracy", "top_k_categorical_accuracy", &[], Read::With(accuracy::top_k)),
    row("SparseTopKCategoricalAccuracy", "sparse_top_k_categorical_accuracy", &[], Read::With(accuracy::sparse_top_k)),
    row("F1Score", "f1_score", &[], Read::With(f_score::f1)),
    row("FBetaScore", "fbeta_score", &["f_beta_score"], Read::With(f_score::f_beta)),
    row("IoU", "io_u", &[], Read::With(iou::iou)),
    row("BinaryIoU", "binary_io_u", &[], Read::With(iou::binary_iou)),
    row("MeanIoU", "mean_io_u", &[], Read::With(iou::mean_iou)),
    row("OneHotIoU", "one_hot_io_u", &[], Read::With(iou::one_hot_iou)),
    row("OneHotMeanIoU", "one_hot_mean_io_u", &[], Read::With(iou::one_hot_mean_iou)),
    row("Mean", "mean", &[], Read::Never(VALUES)),
    row("Sum", "sum", &[], Read::Never(VALUES)),
    row("MeanTensor", "mean_tensor", &[], Read::Never(VALUES)),
    row("MeanRelativeError", "mean_relative_error", &[], Read::Never(Refusal {
        why: "it holds an array of its own, and Keras 3 has dropped it",
        remedy: "use `mean_absolute_percentage_error`",
    })),
];

/// The row of a class.
pub(super) fn class(name: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.class == name)
}

/// The row of a name.
pub(super) fn named(name: &str) -> Option<&'static Row> {
    // `accuracy` is no name of the class `Accuracy`: what it means is told by shapes.
    ROWS.iter().find(|row| row.class == name || row.name == name || row.names.contains(&name))
}

/// Every class and name, losses' functions included.
pub(super) fn names() -> Vec<&'static str> {
    let own = ROWS.iter().flat_map(|row| [row.class, row.name].into_iter().chain(row.names.iter().copied()));
    let mut names: Vec<&str> = own.chain(losses::ROWS.iter().flat_map(|row| row.functions.iter().copied())).collect();
    names.sort_unstable();
    names.dedup();
    names
}
