//! What Keras's convolutions, pooling, padding, activations, normalisation and preprocessing mean: values from Keras, TensorFlow's
//! hashes, and closed forms.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use intwain::arrays::FileBytes;
use intwain::frontend::{ImportErrors, ImportOptions, Imported, KerasModel, import, open_model_bytes};
use intwain_ir::{DType, Tensor, Type, interp, verify};
use serde_json::{Value as Json, json};

/// A model of one layer, as the given generation of Keras writes it.
fn model(keras: u8, class: &str, config: Json, shape: &[usize], dtype: &str) -> Json {
    let shape: Vec<Json> = std::iter::once(Json::Null).chain(shape.iter().map(|&d| json!(d))).collect();
    let mut config = config;
    config["name"] = json!("l");
    let input = if keras == 2 { "batch_input_shape" } else { "batch_shape" };
    let layers = json!([
        {"class_name": "InputLayer", "config": {"name": "x", "dtype": dtype, input: shape}},
        {"class_name": class, "module": "keras.layers", "config": config},
    ]);
    let mut model = json!({"class_name": "Sequential", "config": {"name": "m", "layers": layers}});
    match keras {
        2 => model["keras_version"] = json!("2.15.0"),
        _ => model["module"] = json!("keras"),
    }
    model
}

fn build(model: &Json, rows: usize) -> Result<Imported, ImportErrors> {
    let path = Path::new("model.json");
    let file = open_model_bytes(path, FileBytes::from(model.to_string().into_bytes()))?;
    let options = ImportOptions { batch: rows, ..ImportOptions::default() };
    import(&KerasModel::read(&file)?, path, &options)
}

/// The output's extents and elements; weights are given by what their names end in.
fn run(model: &Json, input: Tensor, weights: &[(&str, &[f32])]) -> (Vec<usize>, Vec<f64>) {
    let graph = build(model, input.ty.shape[0]).unwrap_or_else(|e| panic!("{e}\n{model:#}")).graph;
    verify(&graph).unwrap();
    let mut args = vec![input];
    for param in graph.weights() {
        let (_, values) =
            weights.iter().find(|(end, _)| param.name.ends_with(end)).unwrap_or_else(|| panic!("{}", param.name));
        args.push(Tensor::from_f32(graph.ty(param.value).shape.to_vec(), values));
    }
    let outputs = interp::run(&graph, args).unwrap();
    (outputs[0].ty.shape.to_vec(), outputs[0].to_f64())
}

/// One row through a layer of Keras 3.
fn one(class: &str, config: Json, shape: &[usize], x: &[f32], weights: &[(&str, &[f32])]) -> Vec<f64> {
    of(3, class, config, shape, x, weights)
}

fn of(keras: u8, class: &str, config: Json, shape: &[usize], x: &[f32], weights: &[(&str, &[f32])]) -> Vec<f64> {
    let dims: Vec<usize> = [1].into_iter().chain(shape.iter().copied()).collect();
    run(&model(keras, class, config, shape, "float32"), Tensor::from_f32(dims, x), weights).1
}

fn extents(class: &str, config: Json, shape: &[usize]) -> Vec<usize> {
    let graph = build(&model(3, class, config, shape, "float32"), 1).unwrap_or_else(|e| panic!("{e}")).graph;
    graph.ty(graph.outputs[0].value).shape[1..].to_vec()
}

fn integers(shape: &[usize], values: &[i64]) -> Tensor {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    Tensor::from_bytes(Type::new(DType::I64, shape.to_vec()), bytes).unwrap()
}

fn looked_up(class: &str, config: Json, x: &[i64]) -> Vec<f64> {
    run(&model(3, class, config, &[x.len()], "int64"), integers(&[1, x.len()], x), &[]).1
}

fn refused(keras: u8, class: &str, config: Json, shape: &[usize]) -> String {
    build(&model(keras, class, config, shape, "float32"), 1).unwrap_err().to_string()
}

#[track_caller]
fn close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{got:?} is not {want:?}");
    assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() <= 2e-6 * w.abs().max(1.0)), "{got:?} is not {want:?}");
}

#[test]
fn convolutions_pad_behind_first() {
    let conv = json!({"filters": 1, "kernel_size": 3, "strides": 2, "padding": "same", "use_bias": false});
    close(&one("Conv1D", conv, &[4, 1], &[1., 2., 3., 4.], &[("kernel", &[1., 10., 100.])]), &[321., 43.]);
    let depthwise = json!({"kernel_size": 3, "strides": 2, "dilation_rate": 3, "padding": "same", "use_bias": false});
    assert_eq!(extents("DepthwiseConv2D", depthwise, &[14, 14, 1]), [7, 7, 1]);
    let causal = json!({"filters": 1, "kernel_size": 2, "padding": "causal", "dilation_rate": 2, "use_bias": false});
    close(&one("Conv1D", causal, &[4, 1], &[1., 2., 3., 4.], &[("kernel", &[10., 1.])]), &[1., 2., 13., 24.]);
    let both = json!({"filters": 1, "kernel_size": 3, "strides": 2, "dilation_rate": 2});
    let said = refused(3, "Conv1D", both, &[9, 1]);
    assert!(said.contains("strides and dilation rates above 1 do not go together"), "{said}");
}

#[test]
fn transposed_convolutions_spread_and_crop() {
    let layer = |k: usize, s: usize| json!({"filters": 1, "kernel_size": k, "strides": s, "padding": "same", "use_bias": false});
    let got = one("Conv1DTranspose", layer(3, 2), &[2, 1], &[1., 2.], &[("kernel", &[1., 10., 100.])]);
    close(&got, &[1., 10., 102., 20.]);
    let got = one("Conv1DTranspose", layer(4, 2), &[2, 1], &[1., 2.], &[("kernel", &[1., 10., 100., 1000.])]);
    close(&got, &[10., 102., 1020., 200.]);
}

#[test]
fn pooling_counts_real_cells_only() {
    let pool = |size: usize, strides: Json| json!({"pool_size": size, "strides": strides, "padding": "same"});
    close(&one("AveragePooling2D", pool(3, json!(1)), &[3, 3, 1], &[1.0; 9], &[]), &[1.0; 9]);
    close(&one("AveragePooling2D", pool(3, Json::Null), &[2, 2, 1], &[1., 2., 3., 4.], &[]), &[2.5]);
    let ramp: Vec<f32> = (0..9).map(|i| i as f32).collect();
    close(&one("AveragePooling2D", pool(2, Json::Null), &[3, 3, 1], &ramp, &[]), &[2., 3.5, 6.5, 8.]);
    let low = [f32::NEG_INFINITY; 4];
    let got = one("MaxPooling1D", json!({"pool_size": 2, "padding": "same"}), &[4, 1], &low, &[]);
    assert_eq!(got, [f64::NEG_INFINITY; 2]);
}

#[test]
fn adaptive_windows_overlap_where_sizes_do_not_divide() {
    let x: Vec<f32> = (1..=7).map(|i| i as f32).collect();
    // Windows 0..2, 1..3, 2..5, 4..6, 5..7.
    let size = json!({"output_size": [5]});
    close(&one("AdaptiveAveragePooling1D", size.clone(), &[7, 1], &x, &[]), &[1.5, 2.5, 4., 5.5, 6.5]);
    close(&one("AdaptiveMaxPooling1D", size, &[7, 1], &x, &[]), &[2., 3., 5., 6., 7.]);
}

#[test]
fn enlarged_images_have_centres_between_pixels() {
    let up = |interpolation: &str| json!({"size": [1, 2], "interpolation": interpolation});
    close(&one("UpSampling2D", up("bilinear"), &[1, 2, 1], &[1., 2.], &[]), &[1., 1.25, 1.75, 2.]);
    close(&one("UpSampling2D", up("nearest"), &[1, 2, 1], &[1., 2.], &[]), &[1., 1., 2., 2.]);
}

#[test]
fn flattening_moves_channels_behind() {
    let first = json!({"data_format": "channels_first"});
    close(&one("Flatten", first, &[2, 1, 2], &[1., 2., 3., 4.], &[]), &[1., 3., 2., 4.]);
    close(&one("Flatten", json!({}), &[2, 1, 2], &[1., 2., 3., 4.], &[]), &[1., 2., 3., 4.]);
}

#[test]
fn cropping_all_is_an_error() {
    let said = refused(3, "Cropping1D", json!({"cropping": [2, 3]}), &[5, 1]);
    assert!(said.contains("crops 2 and 3 of 5 elements"), "{said}");
}

#[test]
fn relu_has_a_slope_a_limit_and_a_threshold() {
    let relu = json!({"max_value": 6.0, "negative_slope": 0.1, "threshold": 1.0});
    close(&one("ReLU", relu, &[6], &[-2., 0., 0.5, 1., 2., 7.], &[]), &[-0.3, -0.1, -0.05, 0., 2., 6.]);
    close(&one("ReLU", json!({"threshold": 1.0}), &[3], &[0.5, 1., 1.5], &[]), &[0., 0., 1.5]);
    let x = [-2., -0.5, 0.5, 7.];
    close(&one("ReLU", json!({"threshold": -1.0}), &[4], &x, &[]), &[0., -0.5, 0.5, 7.]);
    close(&one("ReLU", json!({"threshold": -1.0, "max_value": 6.0}), &[4], &x, &[]), &[0., 0., 0.5, 6.]);
    close(&one("LeakyReLU", json!({}), &[2], &[-1., 2.], &[]), &[-0.3, 2.]);
    close(&of(2, "LeakyReLU", json!({"alpha": 0.5}), &[2], &[-1., 2.], &[]), &[-0.5, 2.]);
}

/// TensorFlow casts the root of 2 in `gelu` from float32, which float64 shows.
#[test]
fn gelu_in_float64_has_the_constant_of_tensorflow() {
    let x = Tensor::from_f64(DType::F64, [1, 3], &[1.0, -2.0, 0.3]);
    let config = json!({"activation": "gelu", "dtype": "float64"});
    let got = run(&model(3, "Activation", config, &[3], "float64"), x, &[]).1;
    let want = [0.8413447419273903, -0.04550026759242268, 0.18537342606924007];
    assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() < 1e-15), "{got:?}, not {want:?}");
}

#[test]
fn named_activations() {
    let named =
        |keras: u8, name: &str, x: &[f32]| of(keras, "Activation", json!({"activation": name}), &[x.len()], x, &[]);
    let x = [-3., -2.9, -2.5, 0., 1., 2.5, 3.];
    close(&named(3, "hard_sigmoid", &x), &[0., 0.1 / 6., 0.5 / 6., 0.5, 4. / 6., 5.5 / 6., 1.]);
    close(&named(2, "hard_sigmoid", &[-2.5, 0., 1., 2.5]), &[0., 0.5, 0.7, 1.]);
    close(&named(3, "gelu", &[1., -2.]), &[0.841_344_75, -0.045_500_26]);
    close(&named(3, "leaky_relu", &[-1., 2.]), &[-0.2, 2.]);
    close(&named(3, "softsign", &[-3., 1.]), &[-0.75, 0.5]);
    close(&named(3, "selu", &[1., -1.]), &[1.050_700_99, -1.111_330_74]);
    // Keras's threshold takes the running sums of the support, not their last: here (2 + 3.5 − 1) / 2.
    close(&named(3, "sparsemax", &[2., 1.5, -1.]), &[0., 0., 0.]);
    let said = refused(3, "Activation", json!({"activation": "sigmiod"}), &[2]);
    assert!(said.contains("sigmiod"), "{said}");
}

#[test]
fn activations_as_objects() {
    let dense = |activation: Json| json!({"units": 1, "use_bias": false, "activation": activation});
    let run = |activation: Json| one("Dense", dense(activation), &[1], &[-2.], &[("kernel", &[1.])]);
    close(&run(json!({"class_name": "LeakyReLU", "config": {"negative_slope": 0.25}})), &[-0.5]);
    close(&run(json!({"class_name": "function", "config": "relu"})), &[0.]);
    close(&run(Json::Null), &[-2.]);
}

#[test]
fn normalisation_of_few_numbers() {
    let layer = json!({"epsilon": 1e-3, "center": false, "scale": false});
    close(&one("LayerNormalization", layer, &[2], &[0., 0.02], &[]), &[-0.301_511_34, 0.301_511_34]);
    close(&one("UnitNormalization", json!({"axis": -1}), &[2], &[0., 0.], &[]), &[0., 0.]);
    close(&one("UnitNormalization", json!({"axis": -1}), &[2], &[3., 4.], &[]), &[0.6, 0.8]);
    let rms = one("RMSNormalization", json!({"epsilon": 1e-6}), &[2], &[3., 4.], &[("scale", &[1., 2.])]);
    close(&rms, &[3. / 12.5f64.sqrt(), 8. / 12.5f64.sqrt()]);
    let given = |invert: bool| json!({"axis": -1, "mean": [1.0, 2.0], "variance": [4.0, 0.0], "invert": invert});
    close(&one("Normalization", given(false), &[2], &[3., 2.], &[]), &[1., 0.]);
    close(&one("Normalization", given(true), &[2], &[1., 0.], &[]), &[3., 2.]);
    close(&one("Rescaling", json!({"scale": 0.5, "offset": [1.0, -1.0]}), &[2], &[4., 4.], &[]), &[3., 1.]);
    let said = refused(2, "BatchNormalization", json!({"axis": [1], "virtual_batch_size": 4}), &[3]);
    assert!(said.contains("virtual_batch_size"), "{said}");
}

#[test]
fn bins_begin_at_their_boundaries() {
    let bins = json!({"bin_boundaries": [0.0, 1.0, 2.0]});
    close(&one("Discretization", bins, &[5], &[-1., 0., 0.5, 2., f32::NAN], &[]), &[0., 1., 1., 3., 3.]);
    let hot = json!({"bin_boundaries": [0.0, 1.0], "output_mode": "count"});
    close(&one("Discretization", hot, &[4], &[-1., 0.5, 0., 3.], &[]), &[1., 2., 1.]);
    let said = refused(3, "Discretization", json!({"num_bins": 4}), &[5]);
    assert!(said.contains("not in the model's configuration"), "{said}");
}

#[test]
fn vocabularies_of_integers() {
    let x = [12, 1138, 42, 42, 1000, 36];
    let words = json!([12, 36, 1138, 42]);
    close(&looked_up("IntegerLookup", json!({"vocabulary": words}), &x), &[1., 3., 4., 4., 0., 2.]);
    let two = json!({"vocabulary": words, "num_oov_indices": 2});
    close(&looked_up("IntegerLookup", two, &[12, 1138, 42, 37, 1000, 36]), &[2., 4., 5., 1., 0., 3.]);
    let masked = json!({"vocabulary": words, "mask_token": 0});
    close(&looked_up("IntegerLookup", masked, &[0, 12, 7]), &[0., 2., 1.]);
    let back = json!({"vocabulary": words, "invert": true});
    close(&looked_up("IntegerLookup", back, &[1, 3, 4, 4, 0, 9]), &[12., 1138., 42., 42., -1., -1.]);
    let count = json!({"vocabulary": words, "output_mode": "count"});
    close(&looked_up("IntegerLookup", count, &[42, 7, 36, 7]), &[2., 0., 1., 0., 1.]);
    let said = refused(3, "IntegerLookup", json!({"output_mode": "int"}), &[5]);
    assert!(said.contains("get_vocabulary"), "{said}");
}

/// Integers whose texts have 1 to 20 characters, hashed by `tf.strings.to_hash_bucket_fast` and `_strong`.
#[test]
fn numbers_hash_as_their_texts() {
    let farm = json!({"vocabulary": [10, 20, 30], "num_oov_indices": 4, "oov_method": "farmhash"});
    close(&looked_up("IntegerLookup", farm, &[100, 300, 700, 1100, 1700, 2000]), &[3., 3., 2., 2., 0., 1.]);
    let numbers = [
        (0, 77635, 97436),
        (-7, 92208, 51985),
        (42, 91188, 12122),
        (-999, 93414, 64272),
        (1234, 59491, 2336),
        (-12345, 93701, 26042),
        (1234567, 89980, 25726),
        (-1234567, 29257, 20048),
        (12345678, 36008, 53793),
        (-98765432, 58197, 74040),
        (123456789012345, 65553, 10775),
        (-123456789012345, 20826, 92218),
        (1234567890123456, 67503, 54244),
        (12345678901234567, 83663, 13675),
        (-(1 << 62), 51672, 14370),
        (i64::MAX, 64280, 72118),
        (i64::MIN, 411, 55890),
    ];
    let x: Vec<i64> = numbers.iter().map(|n| n.0).collect();
    let hashed = |salt: Json| looked_up("Hashing", json!({"num_bins": 99991, "salt": salt, "dtype": "int64"}), &x);
    assert_eq!(hashed(Json::Null), numbers.map(|n| f64::from(n.1)));
    assert_eq!(hashed(json!([133, 137])), numbers.map(|n| f64::from(n.2)));
}

#[test]
fn categories_are_encoded() {
    let encoded =
        |mode: &str, x: &[i64]| looked_up("CategoryEncoding", json!({"num_tokens": 4, "output_mode": mode}), x);
    close(&encoded("multi_hot", &[0, 3, 3]), &[1., 0., 0., 1.]);
    close(&encoded("count", &[0, 3, 3]), &[1., 0., 0., 2.]);
    close(&encoded("one_hot", &[2, 0]), &[0., 0., 1., 0., 1., 0., 0., 0.]);
    close(&encoded("one_hot", &[1]), &[0., 1., 0., 0.]);
}

#[test]
fn augmentation_passes_images_on() {
    let x: Vec<f32> = (0..16).map(|i| i as f32).collect();
    let want: Vec<f64> = (0..16).map(f64::from).collect();
    let flip = json!({"mode": "horizontal", "seed": null, "data_format": "channels_last"});
    close(&one("RandomFlip", flip, &[4, 4, 1], &x, &[]), &want);
    let crop = json!({"height": 2, "width": 2, "seed": 1});
    close(&one("RandomCrop", crop.clone(), &[4, 4, 1], &x, &[]), &want);
    // Keras 2 resizes what it does not crop.
    close(&of(2, "RandomCrop", crop, &[4, 4, 1], &x, &[]), &[2.5, 4.5, 10.5, 12.5]);
}
