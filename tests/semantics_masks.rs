//! What Keras's layers mean where masks, attention and core layers are commonly got wrong: values from Keras and from closed forms.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::path::Path;

use intwain::arrays::FileBytes;
use intwain::frontend::{ImportErrors, ImportOptions, Imported, KerasModel, import, open_model_bytes};
use intwain_ir::{DType, Tensor, Type, interp, verify};
use serde_json::{Value as Json, json};

/// Who writes a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Keras {
    Two,
    Three,
}

/// A model being written down.
struct Net {
    keras: Keras,
    layers: Vec<Json>,
    inputs: Vec<String>,
}

/// A tensor of a model: a layer's name, the number of the call and of the result.
#[derive(Clone)]
struct At(String, usize, usize);

impl Net {
    fn new(keras: Keras) -> Net {
        Net { keras, layers: Vec::new(), inputs: Vec::new() }
    }

    fn reference(&self, t: &At) -> Json {
        match self.keras {
            Keras::Two => json!([t.0, t.1, t.2]),
            Keras::Three => json!({"class_name": "__keras_tensor__", "config": {"keras_history": [t.0, t.1, t.2]}}),
        }
    }

    fn input(&mut self, name: &str, shape: &[usize], dtype: &str) -> At {
        let shape: Vec<Json> = std::iter::once(Json::Null).chain(shape.iter().map(|&d| json!(d))).collect();
        let key = if self.keras == Keras::Two { "batch_input_shape" } else { "batch_shape" };
        let config = json!({"name": name, "dtype": dtype, key: shape});
        self.layers.push(json!({"class_name": "InputLayer", "name": name, "config": config, "inbound_nodes": []}));
        self.inputs.push(name.to_string());
        At(name.to_string(), 0, 0)
    }

    /// Calls a new layer, with tensors among its named arguments.
    fn call(&mut self, class: &str, config: Json, args: &[&At], kwargs: &[(&str, Json)]) -> At {
        let name = format!("l{}", self.layers.len());
        let mut config = config;
        config["name"] = json!(name);
        let kwargs: serde_json::Map<String, Json> = kwargs.iter().map(|(k, v)| (k.to_string(), v.clone())).collect();
        let node = match self.keras {
            Keras::Two => {
                let entry = |(i, t): (usize, &&At)| {
                    let kwargs = if i == 0 { Json::Object(kwargs.clone()) } else { json!({}) };
                    json!([t.0, t.1, t.2, kwargs])
                };
                Json::Array(args.iter().enumerate().map(entry).collect())
            }
            Keras::Three => {
                let tensors: Vec<Json> = args.iter().map(|t| self.reference(t)).collect();
                let listed = ["Add", "Attention", "AdditiveAttention", "Concatenate", "Dot", "Maximum", "Multiply"];
                let args = if listed.contains(&class) { json!([tensors]) } else { json!(tensors) };
                json!({"args": args, "kwargs": kwargs})
            }
        };
        let module = if class == "NotEqual" { "keras.src.ops.numpy" } else { "keras.layers" };
        let layer =
            json!({"class_name": class, "module": module, "name": name, "config": config, "inbound_nodes": [node]});
        self.layers.push(layer);
        At(name, 0, 0)
    }

    fn layer(&mut self, class: &str, config: Json, x: &At) -> At {
        self.call(class, config, &[x], &[])
    }

    /// Embedded ids, of which 0 is masked.
    fn words(&mut self, name: &str, steps: usize) -> At {
        let ids = self.input(name, &[steps], "int32");
        self.layer("Embedding", json!({"input_dim": 5, "output_dim": 2, "mask_zero": true}), &ids)
    }

    fn mean(&mut self, x: &At) -> At {
        self.layer("GlobalAveragePooling1D", json!({}), x)
    }

    fn model(&self, outputs: &[&At]) -> Json {
        let inputs: Vec<Json> = self.inputs.iter().map(|i| json!([i, 0, 0])).collect();
        let outputs: Vec<Json> = outputs.iter().map(|o| json!([o.0, o.1, o.2])).collect();
        let config = json!({"name": "m", "layers": self.layers, "input_layers": inputs, "output_layers": outputs});
        let mut model = json!({"class_name": "Functional", "config": config});
        match self.keras {
            Keras::Two => model["keras_version"] = json!("2.15.0"),
            Keras::Three => model["module"] = json!("keras"),
        }
        model
    }
}

fn floats(shape: &[usize], values: &[f32]) -> Tensor {
    Tensor::from_f32(shape.to_vec(), values)
}

fn of_type(dtype: DType, shape: &[usize], values: &[i32]) -> Tensor {
    let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    Tensor::from_bytes(Type::new(DType::I32, shape.to_vec()), bytes).unwrap().cast(dtype)
}

fn ids(values: &[i32]) -> Tensor {
    of_type(DType::I32, &[1, values.len()], values)
}

fn build(model: &Json, rows: usize) -> Result<Imported, ImportErrors> {
    let path = Path::new("model.json");
    let file = open_model_bytes(path, FileBytes::from(model.to_string().into_bytes()))?;
    let options = ImportOptions { batch: rows, ..ImportOptions::default() };
    import(&KerasModel::read(&file)?, path, &options)
}

/// Outputs with weights given by what their names end in.
fn run(model: &Json, inputs: &[Tensor], weights: &[(&str, &[f32])]) -> Vec<Vec<f64>> {
    let graph = build(model, inputs[0].ty.shape[0]).unwrap_or_else(|e| panic!("{e}\n{model:#}")).graph;
    verify(&graph).unwrap();
    let mut args = inputs.to_vec();
    for param in graph.weights() {
        let (_, values) =
            weights.iter().find(|(end, _)| param.name.ends_with(end)).unwrap_or_else(|| panic!("{}", param.name));
        args.push(floats(&graph.ty(param.value).shape, values));
    }
    interp::run(&graph, args).unwrap().iter().map(Tensor::to_f64).collect()
}

fn close(got: &[f64], want: &[f64]) {
    assert_eq!(got.len(), want.len(), "{got:?} is not {want:?}");
    assert!(got.iter().zip(want).all(|(g, w)| (g - w).abs() <= 1e-5 * w.abs().max(1.0)), "{got:?} is not {want:?}");
}

/// Rows 0 to 4 of the table are (0, 10), (1, 11), …
const TABLE: (&str, &[f32]) = ("embeddings", &[0., 10., 1., 11., 2., 12., 3., 13., 4., 14.]);

#[test]
fn dense_acts_on_the_last_dimension_of_any_rank() {
    let mut net = Net::new(Keras::Three);
    let x = net.input("x", &[2, 1, 2], "float32");
    let y = net.layer("Dense", json!({"units": 1}), &x);
    let weights: [(&str, &[f32]); 2] = [("kernel", &[10., 1.]), ("bias", &[0.5])];
    close(&run(&net.model(&[&y]), &[floats(&[1, 2, 1, 2], &[1., 2., 3., 4.])], &weights)[0], &[12.5, 34.5]);
}

#[test]
fn float_ids_are_cut_to_integers_and_masked_as_they_are() {
    for keras in [Keras::Two, Keras::Three] {
        let mut net = Net::new(keras);
        let x = net.input("x", &[3], "float32");
        let e = net.layer("Embedding", json!({"input_dim": 5, "output_dim": 2, "mask_zero": true}), &x);
        let mean = net.mean(&e);
        let got = run(&net.model(&[&e, &mean]), &[floats(&[1, 3], &[0.5, 0.0, 3.75])], &[TABLE]);
        close(&got[0], &[0., 10., 0., 10., 3., 13.]);
        close(&got[1], &[1.5, 11.5]);
    }
}

#[test]
fn dot_normalizes_along_what_it_contracts() {
    let mut net = Net::new(Keras::Three);
    let (a, b) = (net.input("a", &[2], "float32"), net.input("b", &[2], "float32"));
    let y = net.call("Dot", json!({"axes": 1, "normalize": true}), &[&a, &b], &[]);
    close(&run(&net.model(&[&y]), &[floats(&[1, 2], &[3., 4.]), floats(&[1, 2], &[4., 3.])], &[])[0], &[0.96]);
}

#[test]
fn softmax_under_a_mask() {
    for (mask, three, two) in [
        ([1, 1, 0], [0.268941, 0.731059, 0.0], [0.268941, 0.731059, 0.0]),
        // Keras 2 lowers scores by 1e9, which leaves nothing of their differences.
        ([0, 0, 0], [0.0; 3], [1.0 / 3.0; 3]),
    ] {
        for (keras, want) in [(Keras::Three, three), (Keras::Two, two)] {
            let mut net = Net::new(keras);
            let (x, m) = (net.input("x", &[3], "float32"), net.input("m", &[3], "bool"));
            let named = [("mask", net.reference(&m))];
            let y = net.call("Softmax", json!({"axis": -1}), &[&x], &named);
            let inputs = [floats(&[1, 3], &[1., 2., 3.]), of_type(DType::Bool, &[1, 3], &mask)];
            close(&run(&net.model(&[&y]), &inputs, &[])[0], &want);
        }
    }
}

#[test]
fn the_mean_over_steps_is_of_those_that_are_left() {
    let mut net = Net::new(Keras::Three);
    let e = net.words("ids", 4);
    let mean = net.mean(&e);
    let max = net.layer("GlobalMaxPooling1D", json!({}), &e);
    let got = run(&net.model(&[&mean, &max]), &[ids(&[1, 0, 4, 0])], &[TABLE]);
    close(&got[0], &[2.5, 12.5]);
    close(&got[1], &[4., 14.]);
}

#[test]
fn masking_leaves_steps_with_any_other_value_and_clears_the_rest() {
    let value = |value: Json, x: &[f32], cleared: &[f64], mean: &[f64]| {
        for keras in [Keras::Two, Keras::Three] {
            let mut net = Net::new(keras);
            let i = net.input("x", &[3, 2], "float32");
            let y = net.layer("Masking", json!({"mask_value": value}), &i);
            let m = net.mean(&y);
            let got = run(&net.model(&[&y, &m]), &[floats(&[1, 3, 2], x)], &[]);
            close(&got[0], cleared);
            close(&got[1], mean);
        }
    };
    value(json!(0.0), &[0., 2., 0., 0., 4., 6.], &[0., 2., 0., 0., 4., 6.], &[2., 4.]);
    value(json!(-1.0), &[-1., 2., -1., -1., 4., 6.], &[-1., 2., 0., 0., 4., 6.], &[1.5, 4.]);
    let each = json!({"class_name": "__numpy__", "config": {"value": [1.0, 2.0], "dtype": "float32"}});
    value(each, &[1., 2., 2., 1., 4., 6.], &[0., 0., 2., 1., 4., 6.], &[3., 3.5]);
}

#[test]
fn masks_go_through_some_layers_and_not_through_others() {
    // Of ids 1, 0, 4 the mean is 2.5 under the mask, 5/3 without; the second feature is 10 more.
    let (with, without) = ([2.5, 12.5], [5.0 / 3.0, 35.0 / 3.0]);
    let cases: [(&str, Json, [f64; 2], [f64; 2]); 8] = [
        ("Activation", json!({"activation": "relu"}), with, with),
        ("Dropout", json!({"rate": 0.5}), with, with),
        ("ActivityRegularization", json!({"l1": 0.1}), with, with),
        ("Identity", json!({}), with, without),
        ("Rescaling", json!({"scale": 1.0}), with, without),
        ("Reshape", json!({"target_shape": [3, 2]}), without, without),
        ("UpSampling1D", json!({"size": 1}), without, without),
        ("MaxPooling1D", json!({"pool_size": 1}), without, without),
    ];
    for (class, config, three, two) in cases {
        for (keras, want) in [(Keras::Three, three), (Keras::Two, two)] {
            let mut net = Net::new(keras);
            let e = net.words("ids", 3);
            let x = net.layer(class, config.clone(), &e);
            let mean = net.mean(&x);
            let got = run(&net.model(&[&mean]), &[ids(&[1, 0, 4])], &[TABLE]);
            assert!(
                (got[0][0] - want[0]).abs() < 1e-5 && (got[0][1] - want[1]).abs() < 1e-4,
                "{class} of Keras {keras:?}: {got:?}"
            );
        }
    }
}

#[test]
fn merged_masks_are_any_in_keras_3_and_all_in_keras_2() {
    // Steps: in both, in the second, in neither, in the first.
    let (a, b) = ([1, 0, 0, 3], [4, 2, 0, 0]);
    let sums = [5.0, 2.0, 0.0, 3.0];
    for (keras, want) in [(Keras::Three, (sums[0] + sums[1] + sums[3]) / 3.0), (Keras::Two, sums[0])] {
        let mut net = Net::new(keras);
        let (x, y) = (net.words("a", 4), net.words("b", 4));
        let sum = net.call("Add", json!({}), &[&x, &y], &[]);
        let mean = net.mean(&sum);
        close(&run(&net.model(&[&mean]), &[ids(&a), ids(&b)], &[TABLE])[0][..1], &[want]);
        let joined = net.call("Concatenate", json!({"axis": -1}), &[&x, &y], &[]);
        let mean = net.mean(&joined);
        let want = if keras == Keras::Three { [4.0 / 3.0, 2.0] } else { [1.0, 4.0] };
        let got = run(&net.model(&[&mean]), &[ids(&a), ids(&b)], &[TABLE]);
        close(&[got[0][0], got[0][2]], &want);
    }
    // One mask alone: Keras 3 drops it, Keras 2 keeps it.
    for (keras, want) in [(Keras::Three, 5.5), (Keras::Two, 8.0)] {
        let mut net = Net::new(keras);
        let x = net.words("a", 2);
        let y = net.input("y", &[2, 2], "float32");
        let sum = net.call("Add", json!({}), &[&x, &y], &[]);
        let mean = net.mean(&sum);
        let inputs = [ids(&[3, 0]), floats(&[1, 2, 2], &[5., 0., 3., 0.])];
        close(&run(&net.model(&[&mean]), &inputs, &[TABLE])[0][..1], &[want]);
    }
}

#[test]
fn products_and_maxima_of_keras_3_pass_over_what_is_masked() {
    for (class, three, two) in [
        // First features 3·4, then 2 alone, then nothing.
        ("Multiply", [12.0, 2.0, 0.0], [12.0, 0.0, 0.0]),
        ("Maximum", [4.0, 2.0, 0.0], [4.0, 2.0, 0.0]),
    ] {
        for (keras, want) in [(Keras::Three, three), (Keras::Two, two)] {
            let mut net = Net::new(keras);
            let (x, y) = (net.words("a", 3), net.words("b", 3));
            let z = net.call(class, json!({}), &[&x, &y], &[]);
            let got = run(&net.model(&[&z]), &[ids(&[3, 0, 0]), ids(&[4, 2, 0])], &[TABLE]);
            close(&[got[0][0], got[0][2], got[0][4]], &want);
        }
    }
}

/// A recurrent layer that adds its inputs up: h' = x·(1, 0) + h.
const ADDS: [(&str, &[f32]); 3] = [("/kernel", &[1., 0.]), ("recurrent_kernel", &[1.]), TABLE];

fn adding(more: Json) -> Json {
    let mut config = json!({"units": 1, "activation": "linear", "use_bias": false});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

#[test]
fn masked_steps_hold_the_state_and_repeat_the_output() {
    let mut net = Net::new(Keras::Three);
    let e = net.words("ids", 4);
    let all = net.layer("SimpleRNN", adding(json!({"return_sequences": true})), &e);
    let last = net.layer("SimpleRNN", adding(json!({})), &e);
    let got = run(&net.model(&[&all, &last]), &[ids(&[0, 3, 0, 4])], &ADDS);
    close(&got[0], &[0., 3., 3., 7.]);
    close(&got[1], &[7.]);
}

#[test]
fn a_given_state_keeps_masks_out_in_keras_3() {
    // Without its mask the step of id 0 counts as 0 in the sum, so the table has another row 0.
    let table: (&str, &[f32]) = ("embeddings", &[100., 10., 1., 11., 2., 12., 3., 13., 4., 14.]);
    for (keras, want) in [(Keras::Three, 113.0), (Keras::Two, 13.0)] {
        let mut net = Net::new(keras);
        let e = net.words("ids", 2);
        let h = net.input("h", &[1], "float32");
        let y = match keras {
            Keras::Three => {
                let state = [("initial_state", json!([net.reference(&h)]))];
                net.call("SimpleRNN", adding(json!({})), &[&e], &state)
            }
            Keras::Two => net.call("SimpleRNN", adding(json!({})), &[&e, &h], &[]),
        };
        let weights = [ADDS[0], ADDS[1], table];
        close(&run(&net.model(&[&y]), &[ids(&[0, 3]), floats(&[1, 1], &[10.])], &weights)[0], &[want]);
    }
}

/// softmax(scores), of which those not left are out.
fn weights(scores: &[f64], left: &[bool]) -> Vec<f64> {
    let e: Vec<f64> = scores.iter().zip(left).map(|(s, l)| if *l { s.exp() } else { 0.0 }).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|x| x / sum).collect()
}

#[test]
fn dot_product_attention_has_no_root_and_masks_values_and_queries() {
    let mut net = Net::new(Keras::Three);
    let (q, v) = (net.input("q", &[2, 2], "float32"), net.input("v", &[3, 2], "float32"));
    let (qm, vm) = (net.input("qm", &[2], "bool"), net.input("vm", &[3], "bool"));
    let plain = net.call("Attention", json!({"use_scale": true}), &[&q, &v], &[]);
    let masks = json!([net.reference(&qm), net.reference(&vm)]);
    let named = [("mask", masks), ("use_causal_mask", json!(false))];
    let masked = net.call("Attention", json!({}), &[&q, &v], &named);
    let inputs = [
        floats(&[1, 2, 2], &[0.5, -1., 2., 1.]),
        floats(&[1, 3, 2], &[1., 0., 0., 1., -1., 2.]),
        of_type(DType::Bool, &[1, 2], &[1, 0]),
        of_type(DType::Bool, &[1, 3], &[1, 1, 0]),
    ];
    let got = run(&net.model(&[&plain, &masked]), &inputs, &[("scale", &[0.5])]);
    let values = [[1., 0.], [0., 1.], [-1., 2.]];
    let mix = |w: &[f64]| [0, 1].map(|f| w.iter().zip(values).map(|(w, v)| w * v[f]).sum::<f64>());
    let first = mix(&weights(&[0.25, -0.5, -1.25], &[true; 3]));
    let second = mix(&weights(&[1.0, 0.5, 0.0], &[true; 3]));
    close(&got[0], &[first, second].concat());
    // The masked query's row is 0.
    let left = mix(&weights(&[0.5, -1.0, -2.5], &[true, true, false]));
    close(&got[1], &[left[0], left[1], 0., 0.]);
}

#[test]
fn the_causal_key_of_keras_2_and_the_argument_are_one() {
    for keras in [Keras::Two, Keras::Three] {
        let mut net = Net::new(keras);
        let (q, v) = (net.input("q", &[2, 1], "float32"), net.input("v", &[2, 1], "float32"));
        let y = match keras {
            Keras::Two => net.call("Attention", json!({"causal": true}), &[&q, &v], &[]),
            Keras::Three => net.call("Attention", json!({}), &[&q, &v], &[("use_causal_mask", json!(true))]),
        };
        let inputs = [floats(&[1, 2, 1], &[1., 2.]), floats(&[1, 2, 1], &[0.5, -1.])];
        let second = weights(&[1.0, -2.0], &[true; 2]);
        close(&run(&net.model(&[&y]), &inputs, &[])[0], &[0.5, second[0] * 0.5 - second[1]]);
    }
}

#[test]
fn additive_attention_sums_scaled_tangents() {
    let mut net = Net::new(Keras::Three);
    let (q, v) = (net.input("q", &[1, 2], "float32"), net.input("v", &[2, 2], "float32"));
    let y = net.call("AdditiveAttention", json!({"use_scale": true}), &[&q, &v], &[]);
    let inputs = [floats(&[1, 1, 2], &[0.5, -0.5]), floats(&[1, 2, 2], &[1., 2., -1., 0.5])];
    let got = run(&net.model(&[&y]), &inputs, &[("scale", &[2.0, -1.0])]);
    let score = |a: f64, b: f64| 2.0 * a.tanh() - b.tanh();
    let w = weights(&[score(1.5, 1.5), score(-0.5, 0.0)], &[true; 2]);
    close(&got[0], &[w[0] - w[1], 2.0 * w[0] + 0.5 * w[1]]);
}

/// One head of one feature: query x₀, key x₀, value x₁, output (y, 0) + (0.25, 0).
const HEAD: [(&str, &[f32]); 9] = [
    ("query/kernel", &[2., 0.]),
    ("query/bias", &[0.]),
    ("key/kernel", &[1., 0.]),
    ("key/bias", &[0.]),
    ("value/kernel", &[0., 1.]),
    ("value/bias", &[0.]),
    ("attention_output/kernel", &[1., 0.]),
    ("attention_output/bias", &[0.25, 0.]),
    TABLE,
];

fn one_head(more: Json) -> Json {
    let mut config = json!({"num_heads": 1, "key_dim": 1});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    config
}

fn attended(net: &mut Net, config: Json, q: &At, v: &At, more: &[(&str, Json)]) -> At {
    let mut named = more.to_vec();
    match net.keras {
        Keras::Three => net.call("MultiHeadAttention", config, &[q, v], &named),
        Keras::Two => {
            named.push(("value", net.reference(v)));
            net.call("MultiHeadAttention", config, &[q], &named)
        }
    }
}

#[test]
fn multi_head_attention_divides_by_the_root_of_the_key_width() {
    let mut net = Net::new(Keras::Three);
    let (q, v) = (net.input("q", &[1, 2], "float32"), net.input("v", &[2, 2], "float32"));
    // Four features per head: those of the key are x₀ in each, those of the query 2·x₀.
    let y = attended(&mut net, json!({"num_heads": 1, "key_dim": 4, "value_dim": 1, "use_bias": false}), &q, &v, &[]);
    let weights_of: [(&str, &[f32]); 4] = [
        ("query/kernel", &[2., 2., 2., 2., 0., 0., 0., 0.]),
        ("key/kernel", &[1., 1., 1., 1., 0., 0., 0., 0.]),
        ("value/kernel", &[0., 1.]),
        ("attention_output/kernel", &[1., 0.]),
    ];
    let inputs = [floats(&[1, 1, 2], &[0.5, 0.]), floats(&[1, 2, 2], &[1., 7., -1., 3.])];
    let w = weights(&[4.0 / 2.0, -4.0 / 2.0], &[true; 2]);
    close(&run(&net.model(&[&y]), &inputs, &weights_of)[0], &[7.0 * w[0] + 3.0 * w[1], 0.0]);
}

#[test]
fn queries_to_which_nothing_is_left() {
    // Step 1 is masked. Keras's fused attention gives such a query the mean of all values, its other one no weights at all,
    // which leaves the bias; Keras 2 lowers all scores alike, which is the mean again.
    let mean = (11.0 + 10.0 + 13.0) / 3.0;
    for (keras, config, want) in [
        (Keras::Three, json!({}), mean),
        (Keras::Three, json!({"dropout": 0.1}), 0.0),
        (Keras::Two, json!({}), mean),
        (Keras::Two, json!({"dropout": 0.1}), mean),
    ] {
        let mut net = Net::new(keras);
        let e = net.words("ids", 3);
        let y = attended(&mut net, one_head(config.clone()), &e, &e, &[]);
        let got = run(&net.model(&[&y]), &[ids(&[1, 0, 3])], &HEAD);
        let row = |q: f64| {
            let w = weights(&[2.0 * q, 0.0, 6.0 * q], &[true, false, true]);
            11.0 * w[0] + 13.0 * w[2] + 0.25
        };
        close(&got[0], &[row(1.0), 0., want + 0.25, 0., row(3.0), 0.]);
    }
}

#[test]
fn keras_3_attention_takes_the_masks_off_its_arguments() {
    // A product of Keras 3 takes what is masked as 1 where another factor has no mask: 2·1, and 0·2·1 behind the attention.
    let (ones, table) = (("bias", &[1., 1.][..]), TABLE);
    for behind in [false, true] {
        let mut net = Net::new(Keras::Three);
        let (x, w) = (net.words("a", 2), net.input("w", &[2, 2], "float32"));
        let y = if behind {
            attended(&mut net, one_head(json!({})), &x, &x, &[])
        } else {
            net.input("y", &[2, 2], "float32")
        };
        let y = net.layer("Dense", json!({"units": 2}), &y);
        let z = net.call("Multiply", json!({}), &[&x, &w, &y], &[]);
        let mut weights = if behind { HEAD.to_vec() } else { vec![table] };
        weights.extend([("kernel", &[0., 0., 0., 0.][..]), ones]);
        let mut inputs = vec![ids(&[0, 3]), floats(&[1, 2, 2], &[2., 0., 5., 0.])];
        if !behind {
            inputs.push(floats(&[1, 2, 2], &[0.; 4]));
        }
        let got = run(&net.model(&[&z]), &inputs, &weights);
        close(&[got[0][0], got[0][2]], &[if behind { 0.0 } else { 2.0 }, 15.0]);
    }
    // Twice the same values: the second attention sees them unmasked.
    for (keras, second) in [(Keras::Three, [true, true]), (Keras::Two, [true, false])] {
        let mut net = Net::new(keras);
        let q = net.input("q", &[1, 2], "float32");
        let memory = net.words("ids", 2);
        let first = attended(&mut net, one_head(json!({})), &q, &memory, &[]);
        let then = attended(&mut net, one_head(json!({})), &first, &memory, &[]);
        let got = run(&net.model(&[&first, &then]), &[floats(&[1, 1, 2], &[0.1, 0.]), ids(&[3, 0])], &HEAD);
        close(&got[0], &[13.25, 0.0]);
        let w = weights(&[2.0 * 13.25 * 3.0, 0.0], &second);
        close(&got[1], &[13.0 * w[0] + 10.0 * w[1] + 0.25, 0.0]);
    }
}

#[test]
fn who_runs_before_the_attention_still_sees_the_mask() {
    // Keras runs what is equally far from the outputs in the order of their list turned round.
    for (attention_last, want) in [(false, -5.0), (true, 0.0)] {
        let mut net = Net::new(Keras::Three);
        let (x, w) = (net.words("a", 2), net.input("w", &[2, 2], "float32"));
        let y = attended(&mut net, one_head(json!({})), &x, &x, &[]);
        let max = net.call("Maximum", json!({}), &[&x, &w], &[]);
        let outputs = if attention_last { [&max, &y] } else { [&y, &max] };
        let got = run(&net.model(&outputs), &[ids(&[0, 3]), floats(&[1, 2, 2], &[-5., 0., -5., 0.])], &HEAD);
        close(&[got[usize::from(!attention_last)][0]], &[want]);
    }
}

#[test]
fn grouped_heads_serve_several_queries() {
    let mut net = Net::new(Keras::Three);
    let (q, v) = (net.input("q", &[1, 2], "float32"), net.input("v", &[2, 2], "float32"));
    let config = json!({"head_dim": 1, "num_query_heads": 2, "num_key_value_heads": 1, "use_bias": false});
    let y = net.call("GroupQueryAttention", config, &[&q, &v], &[]);
    let kernels: [(&str, &[f32]); 4] = [
        ("query/kernel", &[1., -1., 0., 0.]),
        ("key/kernel", &[1., 0.]),
        ("value/kernel", &[0., 1.]),
        ("attention_output/kernel", &[1., 0., 0., 1.]),
    ];
    let inputs = [floats(&[1, 1, 2], &[1., 0.]), floats(&[1, 2, 2], &[1., 5., -1., 9.])];
    let (a, b) = (weights(&[1., -1.], &[true; 2]), weights(&[-1., 1.], &[true; 2]));
    close(&run(&net.model(&[&y]), &inputs, &kernels)[0], &[5. * a[0] + 9. * a[1], 5. * b[0] + 9. * b[1]]);
}

#[test]
fn einsum_dense_has_a_bias_of_the_letters_named() {
    let mut net = Net::new(Keras::Three);
    let x = net.input("x", &[2, 2], "float32");
    let config = json!({"equation": "abc,cd->abd", "output_shape": [2, 1], "bias_axes": "b"});
    let y = net.layer("EinsumDense", config, &x);
    let weights: [(&str, &[f32]); 2] = [("kernel", &[10., 1.]), ("bias", &[0.5, -0.5])];
    close(&run(&net.model(&[&y]), &[floats(&[1, 2, 2], &[1., 2., 3., 4.])], &weights)[0], &[12.5, 33.5]);
}

#[test]
fn steps_of_steps_are_masked_where_none_is_left() {
    // Two sentences of two words, the second without any: the outer layer passes over it in Keras 2.
    let mut net = Net::new(Keras::Two);
    let x = net.input("ids", &[2, 2], "int32");
    let e = net.layer("Embedding", json!({"input_dim": 5, "output_dim": 2, "mask_zero": true}), &x);
    let inner = json!({"class_name": "SimpleRNN", "config": adding(json!({"name": "inner"}))});
    let y = net.layer("TimeDistributed", json!({"layer": inner}), &e);
    let mean = net.mean(&y);
    let model = net.model(&[&y, &mean]);
    let got = run(&model, &[of_type(DType::I32, &[1, 2, 2], &[3, 4, 0, 0])], &ADDS);
    close(&got[0], &[7., 0.]);
    close(&got[1], &[7.]);
}

#[test]
fn masks_stand_in_the_graph_as_booleans() {
    let mut net = Net::new(Keras::Three);
    let e = net.words("ids", 3);
    let d = net.layer("Dropout", json!({"rate": 0.5}), &e);
    let y = net.layer("SimpleRNN", adding(json!({})), &d);
    let graph = build(&net.model(&[&y]), 2).unwrap().graph;
    let text = graph.to_string();
    assert!(text.lines().any(|l| l.contains("bool[2, 3]") && l.contains("compare")), "{text}");
}

#[test]
fn a_dropout_that_keras_2_always_applies_is_applied_outside_of_training_too() {
    for (keras, applied) in [(Keras::Two, true), (Keras::Three, false)] {
        let mut net = Net::new(keras);
        let x = net.input("x", &[3], "float32");
        let y = net.call("Dropout", json!({"rate": 0.5}), &[&x], &[("training", json!(true))]);
        let graph = build(&net.model(&[&y]), 1).unwrap().graph;
        assert_eq!(graph.to_string().contains("random"), applied, "Keras {keras:?}");
    }
}

#[test]
fn masks_that_do_not_fit_are_errors_that_name_the_layer() {
    let refuse = |what: &str, net: &Net, y: &At| match build(&net.model(&[y]), 2) {
        Ok(_) => panic!("{what} is imported"),
        Err(errors) => {
            let said = errors.to_string();
            assert!(said.contains(&format!("\"{}\"", y.0)), "{what}: {said}");
        }
    };
    for keras in [Keras::Two, Keras::Three] {
        let mut net = Net::new(keras);
        let e = net.words("ids", 3);
        let y = net.layer("Softmax", json!({"axis": -1}), &e);
        refuse("a mask of lower rank than what a softmax is of", &net, &y);
        for (class, config) in [
            ("GlobalAveragePooling1D", json!({})),
            ("SimpleRNN", adding(json!({}))),
            (
                "Bidirectional",
                json!({"layer": {"class_name": "SimpleRNN", "config": adding(json!({"name": "inner"}))}}),
            ),
        ] {
            for shape in [&[4][..], &[3, 2], &[]] {
                let mut net = Net::new(keras);
                let (x, m) = (net.input("x", &[3, 2], "float32"), net.input("m", shape, "bool"));
                let named = [("mask", net.reference(&m))];
                let y = net.call(class, config.clone(), &[&x], &named);
                refuse(&format!("{class} under a mask of {shape:?}"), &net, &y);
            }
        }
        for mask in [json!([[[true, false], [true]]]), json!([[[true, "no"]]]), json!([[[true, false, true, true]]])] {
            let mask = match keras {
                Keras::Two => mask,
                Keras::Three => json!({"class_name": "__numpy__", "config": {"value": mask, "dtype": "bool"}}),
            };
            let mut net = Net::new(keras);
            let x = net.input("x", &[3, 2], "float32");
            let y = attended(&mut net, one_head(json!({})), &x, &x, &[("attention_mask", mask.clone())]);
            refuse(&format!("attention under {mask}"), &net, &y);
        }
    }
    let mut net = Net::new(Keras::Three);
    let x = net.input("x", &[3, 2], "float32");
    let each = json!({"class_name": "__numpy__", "config": {"value": [1.0, 2.0, 3.0], "dtype": "float32"}});
    let y = net.layer("Masking", json!({"mask_value": each}), &x);
    refuse("three mask values for two features", &net, &y);
    let mut net = Net::new(Keras::Two);
    let e = net.words("ids", 3);
    let y = net.layer("GroupNormalization", json!({"groups": 1}), &e);
    refuse("group normalisation under a mask", &net, &y);
}
