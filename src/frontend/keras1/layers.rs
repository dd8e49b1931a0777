//! Each layer class of Keras 1 in the words of Keras 2.

use super::super::error::{ImportError, ImportErrorKind};
use super::super::json::Json;
use super::{Config, Translator, Written};
use indexmap::IndexMap;

/// A class of Keras 2 and its configuration.
pub(super) type Leaf = (&'static str, IndexMap<String, Json>);

/// Kernel and bias in both languages.
const WEIGHTS: [(&str, &str); 2] = [("W", "kernel"), ("b", "bias")];

type Outcome = Result<&'static str, ImportError>;

impl Translator {
    /// A layer that is no model. `None` where Keras 1 has no such class.
    pub(super) fn leaf(&mut self, written: &Written<'_>, outer: &str) -> Result<Option<Leaf>, ImportError> {
        let mut config = Config::of(written)?;
        let found = match written.class {
            "InputLayer" => input_layer(&mut config),
            "Activation" => plain(&mut config, "Activation", &["activation"]),
            "Masking" => plain(&mut config, "Masking", &["mask_value"]),
            "ActivityRegularization" => plain(&mut config, "ActivityRegularization", &["l1", "l2"]),
            "Flatten" => plain(&mut config, "Flatten", &[]),
            "Permute" => plain(&mut config, "Permute", &["dims"]),
            "RepeatVector" => plain(&mut config, "RepeatVector", &["n"]),
            "Reshape" => reshape(&mut config),
            "Dropout" => rate(&mut config, "Dropout"),
            "SpatialDropout1D" => rate(&mut config, "SpatialDropout1D"),
            "SpatialDropout2D" => self.spatial_dropout(&mut config, "SpatialDropout2D"),
            "SpatialDropout3D" => self.spatial_dropout(&mut config, "SpatialDropout3D"),
            "GaussianDropout" => rate(&mut config, "GaussianDropout"),
            "GaussianNoise" => noise(&mut config),
            "Dense" => dense(&mut config, Steps::None),
            "TimeDistributedDense" => dense(&mut config, Steps::Some),
            "Highway" => highway(&mut config),
            "MaxoutDense" => maxout_dense(&mut config),
            "Embedding" => embedding(&mut config),
            "BatchNormalization" => batch_normalization(&mut config),
            "LeakyReLU" => plain(&mut config, "LeakyReLU", &["alpha"]),
            "ELU" => plain(&mut config, "ELU", &["alpha"]),
            "ThresholdedReLU" => plain(&mut config, "ThresholdedReLU", &["theta"]),
            "PReLU" => prelu(&mut config),
            "ParametricSoftplus" => {
                plain(&mut config, "ParametricSoftplus", &["alpha_init", "beta_init", "shared_axes"])
            }
            "SReLU" => srelu(&mut config),
            "Convolution1D" | "AtrousConvolution1D" => convolution_1d(&mut config, "Conv1D"),
            "LocallyConnected1D" => convolution_1d(&mut config, "LocallyConnected1D"),
            "Convolution2D" | "AtrousConvolution2D" => self.convolution_2d(&mut config, "Conv2D"),
            "LocallyConnected2D" => self.convolution_2d(&mut config, "LocallyConnected2D"),
            "Deconvolution2D" => self.deconvolution(&mut config),
            "SeparableConvolution2D" => self.separable(&mut config),
            "Convolution3D" => self.convolution_3d(&mut config),
            "ConvLSTM2D" => self.conv_lstm(&mut config),
            "MaxPooling1D" => pooling_1d(&mut config, "MaxPooling1D"),
            "AveragePooling1D" => pooling_1d(&mut config, "AveragePooling1D"),
            "MaxPooling2D" => self.pooling(&mut config, "MaxPooling2D"),
            "AveragePooling2D" => self.pooling(&mut config, "AveragePooling2D"),
            "MaxPooling3D" => self.pooling(&mut config, "MaxPooling3D"),
            "AveragePooling3D" => self.pooling(&mut config, "AveragePooling3D"),
            "GlobalMaxPooling1D" => plain(&mut config, "GlobalMaxPooling1D", &[]),
            "GlobalAveragePooling1D" => plain(&mut config, "GlobalAveragePooling1D", &[]),
            "GlobalMaxPooling2D" => self.image(&mut config, "GlobalMaxPooling2D"),
            "GlobalAveragePooling2D" => self.image(&mut config, "GlobalAveragePooling2D"),
            "GlobalMaxPooling3D" => self.image(&mut config, "GlobalMaxPooling3D"),
            "GlobalAveragePooling3D" => self.image(&mut config, "GlobalAveragePooling3D"),
            "UpSampling1D" => up_sampling_1d(&mut config),
            "UpSampling2D" => self.image_with(&mut config, "UpSampling2D", "size"),
            "UpSampling3D" => self.image_with(&mut config, "UpSampling3D", "size"),
            "ZeroPadding1D" => edges_1d(&mut config, "ZeroPadding1D", "padding"),
            "ZeroPadding2D" => self.edges(&mut config, "ZeroPadding2D", "padding"),
            "ZeroPadding3D" => self.image_with(&mut config, "ZeroPadding3D", "padding"),
            "Cropping1D" => edges_1d(&mut config, "Cropping1D", "cropping"),
            "Cropping2D" => self.edges(&mut config, "Cropping2D", "cropping"),
            "Cropping3D" => self.image_with(&mut config, "Cropping3D", "cropping"),
            "SimpleRNN" => recurrent(&mut config, "SimpleRNN"),
            "GRU" => recurrent(&mut config, "GRU"),
            "LSTM" => recurrent(&mut config, "LSTM"),
            "TimeDistributed" => self.wrapper(&mut config, "TimeDistributed", outer),
            "Bidirectional" => self.wrapper(&mut config, "Bidirectional", outer),
            // `Merge` and `Lambda` among them, which Keras 2 writes as Keras 1 did.
            _ => return Ok(None),
        };
        let class = found?;
        let (map, unknown) = config.finish();
        self.problems.extend(unknown);
        Ok(Some((class, map)))
    }

    fn image(&self, config: &mut Config<'_>, class: &'static str) -> Outcome {
        config.format(self)?;
        Ok(class)
    }

    fn spatial_dropout(&self, config: &mut Config<'_>, class: &'static str) -> Outcome {
        // Which elements are dropped together matters in training, and where the file does not tell, nothing else does.
        if config.fields.opt("dim_ordering").is_some() || matches!(self.ordering, super::Ordering::Known(_)) {
            config.format(self)?;
        }
        rate(config, class)
    }

    fn convolution_2d(&self, config: &mut Config<'_>, class: &'static str) -> Outcome {
        config.list(&["nb_row", "nb_col"], "kernel_size")?;
        config.renamed(&[("subsample", "strides"), ("atrous_rate", "dilation_rate")]);
        config.format(self)?;
        convolution(config)?;
        Ok(class)
    }

    fn deconvolution(&self, config: &mut Config<'_>) -> Outcome {
        config.same(&["output_shape"]);
        self.convolution_2d(config, "Deconvolution2D")
    }

    fn convolution_3d(&self, config: &mut Config<'_>) -> Outcome {
        config.list(&["kernel_dim1", "kernel_dim2", "kernel_dim3"], "kernel_size")?;
        config.renamed(&[("subsample", "strides")]);
        config.format(self)?;
        convolution(config)?;
        Ok("Conv3D")
    }

    fn separable(&self, config: &mut Config<'_>) -> Outcome {
        config.initializer("init", "depthwise_initializer")?;
        config.initializer("init", "pointwise_initializer")?;
        config.same(&["depth_multiplier"]);
        let names = [("depthwise", "depthwise"), ("pointwise", "pointwise"), ("b", "bias")];
        config.training(&names)?;
        config.list(&["nb_row", "nb_col"], "kernel_size")?;
        config.renamed(&[("nb_filter", "filters"), ("subsample", "strides"), ("bias", "use_bias")]);
        config.same(&["activation"]);
        config.padding()?;
        config.format(self)?;
        Ok("SeparableConv2D")
    }

    fn conv_lstm(&self, config: &mut Config<'_>) -> Outcome {
        config.list(&["nb_row", "nb_col"], "kernel_size")?;
        config.renamed(&[("nb_filter", "filters"), ("subsample", "strides")]);
        config.padding()?;
        config.format(self)?;
        gates(config)?;
        config.same(&["return_sequences", "go_backwards", "stateful"]);
        Ok("ConvLSTM2D")
    }

    fn pooling(&self, config: &mut Config<'_>, class: &'static str) -> Outcome {
        config.same(&["pool_size", "strides"]);
        config.padding()?;
        self.image(config, class)
    }

    fn image_with(&self, config: &mut Config<'_>, class: &'static str, key: &str) -> Outcome {
        config.same(&[key]);
        self.image(config, class)
    }

    fn edges(&self, config: &mut Config<'_>, class: &'static str, key: &str) -> Outcome {
        config.edges(key, &["top_pad", "bottom_pad", "left_pad", "right_pad"])?;
        self.image(config, class)
    }

    fn wrapper(&mut self, config: &mut Config<'_>, class: &'static str, outer: &str) -> Outcome {
        config.same(&["merge_mode"]);
        let inner = self.layer_at(&config.fields.require("layer")?, outer)?;
        config.put("layer", inner);
        Ok(class)
    }
}

fn plain(config: &mut Config<'_>, class: &'static str, keys: &[&str]) -> Outcome {
    config.same(keys);
    Ok(class)
}

fn input_layer(config: &mut Config<'_>) -> Outcome {
    config.renamed(&[("input_dtype", "dtype")]);
    config.same(&["sparse"]);
    Ok("InputLayer")
}

fn reshape(config: &mut Config<'_>) -> Outcome {
    config.renamed(&[("dims", "target_shape"), ("target_shape", "target_shape")]);
    Ok("Reshape")
}

fn rate(config: &mut Config<'_>, class: &'static str) -> Outcome {
    config.renamed(&[("p", "rate")]);
    Ok(class)
}

fn noise(config: &mut Config<'_>) -> Outcome {
    config.renamed(&[("sigma", "stddev")]);
    Ok("GaussianNoise")
}

/// Whether a layer's input has steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Steps {
    None,
    Some,
}

/// Shapes that a first layer declares in Keras 0.3 by the extents of its input.
fn input_by_extents(config: &mut Config<'_>, steps: Steps) -> Result<(), ImportError> {
    let (dim, length) = (config.fields.opt("input_dim"), config.fields.opt("input_length"));
    if let (Some(dim), false) = (dim, config.out.contains_key("batch_input_shape")) {
        let length = length.map_or(Json::Null, |at| at.json.clone());
        let middle = (steps == Steps::Some).then_some(length);
        let shape = [Json::Null].into_iter().chain(middle).chain([dim.json.clone()]);
        config.put("batch_input_shape", Json::Array(shape.collect()));
    }
    Ok(())
}

fn dense(config: &mut Config<'_>, steps: Steps) -> Outcome {
    input_by_extents(config, steps)?;
    config.renamed(&[("output_dim", "units"), ("bias", "use_bias")]);
    config.same(&["activation"]);
    config.initializer("init", "kernel_initializer")?;
    config.training(&WEIGHTS)?;
    Ok("Dense")
}

/// What layers without a successor have, in their own words.
fn with_old_words(config: &mut Config<'_>) -> Result<(), ImportError> {
    input_by_extents(config, Steps::None)?;
    config.same(&["bias"]);
    config.initializer("init", "init")?;
    config.training(&[("W", "W"), ("b", "b")])
}

fn highway(config: &mut Config<'_>) -> Outcome {
    with_old_words(config)?;
    // 0.3 and 1.0 let the bias of the gate begin elsewhere.
    config.same(&["activation", "transform_bias"]);
    Ok("Highway")
}

fn maxout_dense(config: &mut Config<'_>) -> Outcome {
    with_old_words(config)?;
    config.same(&["output_dim", "nb_feature"]);
    Ok("MaxoutDense")
}

fn embedding(config: &mut Config<'_>) -> Outcome {
    config.same(&["input_dim", "output_dim", "input_length", "mask_zero"]);
    config.initializer("init", "embeddings_initializer")?;
    config.training(&[("W", "embeddings")])?;
    // Rows of the table are dropped in training only, and training reads that from the file.
    if let Some(at) = config.fields.opt("dropout") {
        at.f64()?;
    }
    Ok("Embedding")
}

fn batch_normalization(config: &mut Config<'_>) -> Outcome {
    if let Some(at) = config.fields.opt("mode")
        && at.int()? != 0
    {
        let what = match at.int()? {
            1 => "`mode` 1 of BatchNormalization (each row by its own statistics)",
            2 => "`mode` 2 of BatchNormalization (each batch by its own statistics also outside of training)",
            _ => return Err(at.accepted(&["0"])),
        };
        return Err(at.error(ImportErrorKind::Unsupported {
            what: what.to_string(),
            remedy: Some("Keras 2 has mode 0 only; for mode 1, LayerNormalization comes closest"),
        }));
    }
    config.same(&["epsilon", "momentum", "axis"]);
    config.initializer("beta_init", "beta_initializer")?;
    config.initializer("gamma_init", "gamma_initializer")?;
    config.training(&[("beta", "beta"), ("gamma", "gamma")])?;
    Ok("BatchNormalization")
}

fn prelu(config: &mut Config<'_>) -> Outcome {
    config.initializer("init", "alpha_initializer")?;
    config.same(&["shared_axes"]);
    Ok("PReLU")
}

fn srelu(config: &mut Config<'_>) -> Outcome {
    for key in ["t_left_init", "a_left_init", "t_right_init", "a_right_init"] {
        config.initializer(key, key)?;
    }
    config.same(&["shared_axes"]);
    Ok("SReLU")
}

/// What all convolutions have.
fn convolution(config: &mut Config<'_>) -> Result<(), ImportError> {
    config.renamed(&[("nb_filter", "filters"), ("bias", "use_bias")]);
    config.same(&["activation"]);
    config.padding()?;
    config.initializer("init", "kernel_initializer")?;
    config.training(&WEIGHTS)
}

fn convolution_1d(config: &mut Config<'_>, class: &'static str) -> Outcome {
    input_by_extents(config, Steps::Some)?;
    config.list(&["filter_length"], "kernel_size")?;
    config.renamed(&[("subsample_length", "strides"), ("atrous_rate", "dilation_rate")]);
    convolution(config)?;
    Ok(class)
}

fn pooling_1d(config: &mut Config<'_>, class: &'static str) -> Outcome {
    config.renamed(&[("pool_length", "pool_size"), ("stride", "strides")]);
    config.padding()?;
    Ok(class)
}

fn up_sampling_1d(config: &mut Config<'_>) -> Outcome {
    config.renamed(&[("length", "size")]);
    Ok("UpSampling1D")
}

fn edges_1d(config: &mut Config<'_>, class: &'static str, key: &str) -> Outcome {
    config.edges(key, &["left_pad", "right_pad"])?;
    Ok(class)
}

/// Activations, initializers and dropout of recurrent layers.
fn gates(config: &mut Config<'_>) -> Result<(), ImportError> {
    config.same(&["activation"]);
    config.renamed(&[
        ("inner_activation", "recurrent_activation"),
        ("dropout_W", "dropout"),
        ("dropout_U", "recurrent_dropout"),
    ]);
    config.initializer("init", "kernel_initializer")?;
    config.initializer("inner_init", "recurrent_initializer")?;
    config.training(&[("W", "kernel"), ("U", "recurrent"), ("b", "bias")])?;
    let Some(forget) = config.fields.opt("forget_bias_init") else { return Ok(()) };
    match forget.str()? {
        "one" => config.put("unit_forget_bias", Json::Bool(true)),
        "zero" => config.put("unit_forget_bias", Json::Bool(false)),
        _ => return Err(forget.accepted(&["one", "zero"])),
    }
    Ok(())
}

fn recurrent(config: &mut Config<'_>, class: &'static str) -> Outcome {
    input_by_extents(config, Steps::Some)?;
    config.renamed(&[("output_dim", "units")]);
    config.same(&["return_sequences", "go_backwards", "stateful", "unroll"]);
    // How the products are grouped in memory.
    config.fields.choice("consume_less", &["cpu", "mem", "gpu"])?;
    gates(config)?;
    match class {
        "GRU" => {
            config.put("reset_after", Json::Bool(false));
            hard_gates(config);
        }
        "LSTM" => hard_gates(config),
        _ => {}
    }
    Ok(class)
}

/// The default of `inner_activation`.
fn hard_gates(config: &mut Config<'_>) {
    config.out.entry("recurrent_activation".to_string()).or_insert_with(|| super::values::text("hard_sigmoid"));
}
