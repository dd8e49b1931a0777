//! What Keras layers mean: a table row and an import function for each.
//!
//! An import function reads its configuration key by key, declares its variables in Keras's creation order and appends the
//! layer's operations. Tensors are channels-last; `channels_first` becomes a transposition before and after.

mod activations;
mod adaptive;
mod attention;
mod audio;
mod augment;
mod batch_norm;
mod build;
mod cells;
mod conv;
mod conv_lstm;
mod core;
mod cx;
mod dense_attention;
mod dropout;
mod forced;
mod hashing;
mod image;
mod inputs;
mod legacy;
mod local;
mod lost;
mod masks;
mod merge;
mod noise;
mod norm;
mod ops;
mod order;
mod penalties;
mod phase;
mod policy;
mod pool;
mod preprocessing;
mod recurrent;
mod rows;
mod shape;
mod shapes;
mod softmax;
mod spectral;
mod steps;
mod tables;
mod tf;
mod transform;
mod windows;
mod wrappers;

pub use build::{ImportOptions, Imported, import};
pub use penalties::{Penalties, Penalty};
pub use phase::{Phase, STEP, Statistics, TrainingPhase};
pub use shapes::{Extent, ResultShapes, result_shapes, variables};

use build::Builder;
use cx::Out;
use inputs::Inputs;
use masks::Masks;

use super::cursor::Fields;
use super::error::Refusal;
use super::model::Layer;
use super::names::nearest;

type Import = fn(&mut Builder, &Fields<'_>, &Inputs) -> Out;

/// Layers and bare operations have names of their own: the same name may be both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClassKind {
    /// Of `keras.layers` or `keras.applications`.
    Layer,
    /// Of `keras.ops`, whose arguments are in the call.
    Operation,
}

/// What is made of a class.
#[derive(Clone, Copy, Debug)]
enum Support {
    Import(Import),
    Refused(Refusal),
}

/// A layer class.
#[derive(Debug)]
struct Entry {
    /// The class name, which positions in weight files are made of.
    class: &'static str,
    /// Other spellings.
    aliases: &'static [&'static str],
    kind: ClassKind,
    masks: Masks,
    support: Support,
}

const fn layer(class: &'static str, import: Import) -> Entry {
    Entry { class, aliases: &[], kind: ClassKind::Layer, masks: Masks::Own, support: Support::Import(import) }
}

const fn passing(class: &'static str, import: Import) -> Entry {
    Entry { masks: Masks::Pass, ..layer(class, import) }
}

const fn op(class: &'static str, import: Import) -> Entry {
    Entry { kind: ClassKind::Operation, ..layer(class, import) }
}

/// A class of Keras that is known and never imported: `why` reads "it …", `remedy` says what its user can do.
const fn refused(class: &'static str, why: &'static str, remedy: &'static str) -> Entry {
    let support = Support::Refused(Refusal { why, remedy });
    Entry { class, aliases: &[], kind: ClassKind::Layer, masks: Masks::Own, support }
}

const STRINGS: &str = "it works on strings, which no tensor here holds";
const BEFORE: &str = "apply it to the data, and save the model that begins behind it";
const CODE: &str = "it runs code that is not in the file as layers";
const EXPAND: &str = "replace it by built-in layers or operations of `keras.ops`, and save the model again";

impl Entry {
    const fn or(self, aliases: &'static [&'static str]) -> Entry {
        Entry { aliases, ..self }
    }

    const fn masks(self, masks: Masks) -> Entry {
        Entry { masks, ..self }
    }
}

/// Every class that is known.
const CLASSES: &[Entry] = &[
    passing("Activation", activations::activation),
    passing("ActivityRegularization", core::activity_regularization),
    layer("AdaptiveAveragePooling1D", adaptive::average_1d),
    layer("AdaptiveAveragePooling2D", adaptive::average_2d),
    layer("AdaptiveAveragePooling3D", adaptive::average_3d),
    layer("AdaptiveMaxPooling1D", adaptive::max_1d),
    layer("AdaptiveMaxPooling2D", adaptive::max_2d),
    layer("AdaptiveMaxPooling3D", adaptive::max_3d),
    layer("Add", merge::add).or(&["add"]).masks(Masks::Merge),
    layer("AdditiveAttention", dense_attention::additive).masks(Masks::Query),
    passing("AlphaDropout", dropout::alpha_dropout),
    layer("Attention", dense_attention::dot_product).masks(Masks::Query),
    layer("AugMix", augment::cast),
    layer("AutoContrast", augment::auto_contrast),
    layer("Average", merge::average).masks(Masks::Merge),
    layer("AveragePooling1D", pool::average_1d).or(&["AvgPool1D"]),
    layer("AveragePooling2D", pool::average_2d).or(&["AvgPool2D"]),
    layer("AveragePooling3D", pool::average_3d).or(&["AvgPool3D"]),
    passing("BatchNormalization", batch_norm::batch).or(&["BatchNormalizationV1", "SyncBatchNormalization"]),
    layer("Bidirectional", wrappers::bidirectional),
    layer("CategoryEncoding", preprocessing::category_encoding),
    layer("CenterCrop", image::center_crop),
    layer("Concatenate", merge::concatenate).masks(Masks::Concatenate),
    refused(
        "ContrastLimitedAdaptiveHistogramEqualization",
        "it equalises histograms of the image at every call",
        BEFORE,
    ),
    layer("Conv1D", conv::conv_1d).or(&["Convolution1D"]),
    layer("Conv1DTranspose", conv::transpose_1d).or(&["Convolution1DTranspose"]),
    layer("Conv2D", conv::conv_2d).or(&["Convolution2D"]),
    layer("Conv2DTranspose", conv::transpose_2d).or(&["Convolution2DTranspose"]),
    layer("Conv3D", conv::conv_3d).or(&["Convolution3D"]),
    layer("Conv3DTranspose", conv::transpose_3d).or(&["Convolution3DTranspose"]),
    layer("ConvLSTM1D", conv_lstm::conv_lstm_1d).masks(Masks::Sequence),
    layer("ConvLSTM2D", conv_lstm::conv_lstm_2d).masks(Masks::Sequence),
    layer("ConvLSTM3D", conv_lstm::conv_lstm_3d).masks(Masks::Sequence),
    layer("Cropping1D", shape::crop_1d),
    layer("Cropping2D", shape::crop_2d),
    layer("Cropping3D", shape::crop_3d),
    layer("CuDNNGRU", recurrent::cudnn_gru),
    layer("CuDNNLSTM", recurrent::cudnn_lstm),
    layer("CustomScaleLayer", merge::custom_scale),
    layer("CutMix", augment::cast),
    passing("Dense", core::dense),
    refused("DenseFeatures", "it reads feature columns, which are code of TensorFlow 1", BEFORE),
    layer("DepthwiseConv1D", conv::depthwise_1d),
    layer("DepthwiseConv2D", conv::depthwise_2d),
    layer("Deconvolution2D", conv::deconvolution_2d),
    layer("Discretization", preprocessing::discretization),
    layer("Dot", merge::dot),
    passing("Dropout", dropout::dropout),
    passing("ELU", activations::elu),
    layer("EinsumDense", core::einsum_dense),
    layer("Embedding", core::embedding),
    layer("Equalization", augment::same),
    layer("Flatten", shape::flatten),
    refused("FlaxLayer", CODE, EXPAND),
    layer("GRU", recurrent::gru).masks(Masks::Sequence),
    layer("GRUCell", recurrent::gru_cell),
    layer("GroupedQueryAttention", attention::grouped_query).or(&["GroupQueryAttention"]).masks(Masks::Query),
    passing("GaussianDropout", dropout::gaussian_dropout),
    passing("GaussianNoise", dropout::gaussian_noise),
    layer("GlobalAveragePooling1D", pool::global_average_1d).or(&["GlobalAvgPool1D"]),
    layer("GlobalAveragePooling2D", pool::global_average).or(&["GlobalAvgPool2D"]),
    layer("GlobalAveragePooling3D", pool::global_average).or(&["GlobalAvgPool3D"]),
    layer("GlobalMaxPooling1D", pool::global_max).or(&["GlobalMaxPool1D"]),
    layer("GlobalMaxPooling2D", pool::global_max).or(&["GlobalMaxPool2D"]),
    layer("GlobalMaxPooling3D", pool::global_max).or(&["GlobalMaxPool3D"]),
    passing("GroupNormalization", norm::group),
    layer("HashedCrossing", hashing::hashed_crossing),
    layer("Hashing", hashing::hashing),
    layer("Highway", legacy::highway),
    layer("Identity", core::identity).masks(Masks::PassInThree),
    layer("IntegerLookup", preprocessing::integer_lookup),
    refused("JaxLayer", CODE, EXPAND),
    refused("Lambda", CODE, EXPAND),
    layer("LSTM", recurrent::lstm).masks(Masks::Sequence),
    layer("LSTMCell", recurrent::lstm_cell),
    layer("LayerScale", norm::layer_scale),
    passing("LayerNormalization", norm::layer),
    passing("LeakyReLU", activations::leaky_relu),
    layer("LocallyConnected1D", local::locally_connected_1d),
    layer("LocallyConnected2D", local::locally_connected_2d),
    layer("Masking", core::masking),
    layer("MaxNumBoundingBoxes", augment::same),
    layer("MaxPooling1D", pool::max_1d).or(&["MaxPool1D"]),
    layer("MaxPooling2D", pool::max_2d).or(&["MaxPool2D"]),
    layer("MaxPooling3D", pool::max_3d).or(&["MaxPool3D"]),
    layer("Maximum", merge::maximum).masks(Masks::Merge),
    layer("MaxoutDense", legacy::maxout_dense),
    layer("MelSpectrogram", audio::mel_spectrogram),
    layer("Merge", legacy::merge),
    layer("Minimum", merge::minimum).masks(Masks::Merge),
    layer("MixUp", augment::same),
    layer("MultiHeadAttention", attention::multi_head).masks(Masks::Query),
    layer("Multiply", merge::multiply).masks(Masks::Merge),
    layer("Normalization", norm::normalization).masks(Masks::PassInThree),
    passing("PReLU", activations::prelu),
    layer("ParametricSoftplus", legacy::parametric_softplus),
    layer("Permute", shape::permute),
    layer("Pipeline", augment::pipeline),
    layer("RNN", recurrent::rnn).masks(Masks::Sequence),
    layer("RMSNormalization", norm::rms),
    layer("RandAugment", augment::cast),
    layer("RandomBrightness", transform::random_brightness),
    layer("RandomColorDegeneration", augment::same),
    layer("RandomColorJitter", augment::same),
    layer("RandomContrast", transform::random_contrast),
    layer("RandomCrop", transform::random_cutout),
    layer("RandomElasticTransform", augment::cast),
    layer("RandomErasing", augment::cast),
    layer("RandomFlip", transform::random_flip),
    layer("RandomFourierFeatures", core::random_fourier_features),
    layer("RandomGaussianBlur", augment::cast),
    layer("RandomGrayscale", augment::same),
    layer("RandomHeight", augment::cast),
    layer("RandomHue", augment::same),
    layer("RandomInvert", augment::same),
    layer("RandomPerspective", augment::cast),
    layer("RandomPosterization", augment::same),
    layer("RandomRotation", transform::random_rotation),
    layer("RandomSaturation", augment::same),
    layer("RandomSharpness", augment::cast),
    layer("RandomShear", augment::cast),
    layer("RandomTranslation", transform::random_translation),
    layer("RandomWidth", augment::cast),
    layer("RandomZoom", transform::random_zoom),
    passing("ReLU", activations::relu),
    layer("RepeatVector", shape::repeat_vector),
    layer("Rescaling", norm::rescaling).masks(Masks::PassInThree),
    layer("Reshape", shape::reshape),
    layer("Resizing", image::resizing),
    layer("ReversibleEmbedding", core::reversible_embedding),
    layer("SReLU", legacy::srelu),
    layer("SeparableConv1D", conv::separable_1d).or(&["SeparableConvolution1D"]),
    layer("SeparableConv2D", conv::separable_2d).or(&["SeparableConvolution2D"]),
    layer("STFTSpectrogram", audio::stft_spectrogram),
    layer("SimpleRNN", recurrent::simple_rnn).masks(Masks::Sequence),
    layer("SimpleRNNCell", recurrent::simple_rnn_cell),
    passing("Softmax", softmax::softmax),
    layer("Solarization", augment::cast),
    passing("SpatialDropout1D", dropout::spatial_dropout),
    passing("SpatialDropout2D", dropout::spatial_dropout),
    passing("SpatialDropout3D", dropout::spatial_dropout),
    layer("SpectralNormalization", spectral::spectral_normalization),
    layer("StackedRNNCells", recurrent::stacked_cells),
    layer("StochasticDepth", dropout::stochastic_depth),
    refused("StringLookup", STRINGS, BEFORE),
    layer("Subtract", merge::subtract).masks(Masks::Merge),
    layer("SlicingOpLambda", tf::slicing),
    refused("TextVectorization", STRINGS, BEFORE),
    layer("TFOpLambda", tf::call),
    layer("TensorFlowOpLayer", tf::node),
    refused("TFSMLayer", CODE, EXPAND),
    passing("ThresholdedReLU", activations::thresholded_relu),
    layer("TimeDistributed", wrappers::time_distributed),
    refused("TorchModuleWrapper", CODE, EXPAND),
    passing("UnitNormalization", norm::unit),
    layer("UpSampling1D", image::up_sampling_1d),
    layer("UpSampling2D", image::up_sampling_2d),
    layer("UpSampling3D", image::up_sampling_3d),
    layer("ZeroPadding1D", shape::pad_1d),
    layer("ZeroPadding2D", shape::pad_2d),
    layer("ZeroPadding3D", shape::pad_3d),
];

/// Layers, then operations.
fn rows() -> impl Iterator<Item = &'static Entry> {
    CLASSES.iter().chain(ops::ROWS)
}

/// The row of a layer's class.
fn lookup(layer: &Layer) -> Option<&'static Entry> {
    let bare = layer.module.as_deref().is_some_and(|m| m.starts_with("keras.src.ops") || m.starts_with("keras.ops"));
    let kind = if bare { ClassKind::Operation } else { ClassKind::Layer };
    let named = |e: &&Entry| e.class == layer.class || e.aliases.contains(&layer.class.as_str());
    rows().filter(|e| e.kind == kind).find(named)
}

/// A class of Keras and what is made of it, for lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownClass {
    /// The class name.
    pub class: &'static str,
    /// Other spellings.
    pub aliases: &'static [&'static str],
    /// Whether it is an operation of `keras.ops` rather than a layer.
    pub kind: ClassKind,
    /// Why it is refused; `None` where it is imported.
    pub refused: Option<Refusal>,
}

/// Every class that is known, in the order of the table.
pub fn known_classes() -> impl Iterator<Item = KnownClass> {
    rows().map(|e| KnownClass {
        class: e.class,
        aliases: e.aliases,
        kind: e.kind,
        refused: match e.support {
            Support::Import(_) => None,
            Support::Refused(refusal) => Some(refusal),
        },
    })
}

/// The class closest to an unknown one.
fn nearest_class(class: &str) -> Option<&'static str> {
    let importable = |e: &&Entry| e.kind == ClassKind::Layer && matches!(e.support, Support::Import(_));
    nearest(class, CLASSES.iter().filter(importable).map(|e| e.class))
}
