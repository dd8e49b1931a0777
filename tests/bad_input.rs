//! Files and arguments that cannot be used: each gives one screen that names the file and the trouble, exit code 1, no panic, and no output.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::{Value, json};
use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use support::{Array, Elements, intwain, read_npz, repository, said, write_npz};

/// Where a test puts its files, with good inputs for the two-tower model in `in.npz`.
struct Desk(tempfile::TempDir);

impl Desk {
    fn new() -> Desk {
        let desk = Desk(tempfile::tempdir().unwrap());
        write_npz(&desk.path("in.npz"), &pairs());
        desk
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn file(&self, name: &str, bytes: impl AsRef<[u8]>) -> PathBuf {
        fs::write(self.path(name), bytes).unwrap();
        self.path(name)
    }

    /// Runs a model that cannot be run and checks how that is said; the message has each of `words` in it.
    fn refused(&self, model: &Path, more: &[&str], words: &[&str]) {
        let (inputs, out) = (self.path("in.npz"), self.path("out.npz"));
        let mut all = vec!["run", model.to_str().unwrap(), "--devices", "cpu:0", "--outputs", out.to_str().unwrap()];
        if !more.contains(&"--inputs") {
            all.extend(["--inputs", inputs.to_str().unwrap()]);
        }
        all.extend(more);
        let start = Instant::now();
        let result = intwain(&all);
        let message = said(&result.stderr);
        let told = format!("intwain {}\n{message}", all.join(" "));
        assert_eq!(result.status.code(), Some(1), "{told}");
        assert!(!message.contains("panicked") && !message.contains("RUST_BACKTRACE"), "{told}");
        assert!((1..=40).contains(&message.lines().count()), "not one screen: {told}");
        for word in words {
            assert!(message.contains(word), "nothing about {word}: {told}");
        }
        assert!(start.elapsed() < Duration::from_secs(20), "slow: {told}");
        let left: Vec<_> = fs::read_dir(self.0.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert!(left.iter().all(|name| !name.to_string_lossy().contains("out")), "left {left:?}: {told}");
    }
}

fn pairs() -> Vec<Array> {
    let ramp = |n: usize| (0..n).map(|i| (i % 17) as f32 * 0.125 - 1.0).collect();
    vec![Array::f32("user", &[3, 32], ramp(96)), Array::f32("item", &[3, 48], ramp(144))]
}

fn two_tower() -> Value {
    serde_json::from_slice(&fs::read(repository("examples/two_tower.json")).unwrap()).unwrap()
}

/// The layer of this name in a Functional model's JSON.
fn layer<'a>(model: &'a mut Value, name: &str) -> &'a mut Value {
    let layers = model["config"]["layers"].as_array_mut().unwrap();
    layers.iter_mut().find(|layer| layer["config"]["name"] == name).unwrap()
}

fn sequential(layers: &[Value]) -> String {
    let input =
        json!({"class_name": "InputLayer", "config": {"batch_shape": [null, 32], "dtype": "float32", "name": "user"}});
    let all: Vec<_> = std::iter::once(&input).chain(layers).collect();
    json!({"class_name": "Sequential", "config": {"name": "sequential", "layers": all}, "keras_version": "3.15.1"})
        .to_string()
}

fn member(archive: &Path, name: &str) -> Vec<u8> {
    let mut zip = zip::ZipArchive::new(fs::File::open(archive).unwrap()).unwrap();
    let mut bytes = Vec::new();
    zip.by_name(name).unwrap().read_to_end(&mut bytes).unwrap();
    bytes
}

fn archive(path: &Path, members: &[(&str, &[u8])]) {
    let mut zip = zip::ZipWriter::new(fs::File::create(path).unwrap());
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in members {
        zip.start_file(*name, stored).unwrap();
        zip.write_all(bytes).unwrap();
    }
    zip.finish().unwrap();
}

#[test]
fn good_input_is_not_refused() {
    let desk = Desk::new();
    let (inputs, out) = (desk.path("in.npz"), desk.path("result.npz"));
    let model = repository("examples/two_tower.json");
    let result = intwain([Path::new("run"), &model, "--inputs".as_ref(), &inputs, "--outputs".as_ref(), &out]);
    assert!(result.status.success(), "{}", said(&result.stderr));
    assert_eq!(read_npz(&out).iter().map(|a| a.shape.clone()).collect::<Vec<_>>(), [[3, 1], [3, 5]]);
}

#[test]
fn no_file_and_no_model() {
    let desk = Desk::new();
    desk.refused(&desk.path("nowhere.keras"), &[], &["nowhere.keras"]);
    for (name, bytes) in [
        ("empty.json", &b""[..]),
        ("noise.keras", &[0x9f; 300]),
        ("list.json", b"[1, 2]"),
        ("text.json", b"\"\\\"x\\\"\""),
    ] {
        desk.refused(&desk.file(name, bytes), &[], &[name]);
    }
    desk.refused(self::repository("examples").as_path(), &[], &["examples"]);
}

#[test]
fn truncated_json() {
    let desk = Desk::new();
    let text = fs::read(repository("examples/two_tower.json")).unwrap();
    for part in [1, text.len() / 3, text.len() - 1] {
        desk.refused(&desk.file("cut.json", &text[..part]), &[], &["cut.json"]);
    }
}

#[test]
fn truncated_archives() {
    let desk = Desk::new();
    let whole = fs::read(repository("tests/goldens/models/two_tower.keras")).unwrap();
    for part in [4, 30, whole.len() / 2, whole.len() - 25, whole.len() - 1] {
        desk.refused(&desk.file("cut.keras", &whole[..part]), &[], &["cut.keras"]);
    }
    let golden = repository("tests/goldens/models/two_tower.keras");
    let (config, weights) = (member(&golden, "config.json"), member(&golden, "model.weights.h5"));
    archive(&desk.path("bare.keras"), &[("model.weights.h5", &weights)]);
    desk.refused(&desk.path("bare.keras"), &[], &["bare.keras", "config.json"]);
    archive(&desk.path("light.keras"), &[("config.json", &config)]);
    desk.refused(&desk.path("light.keras"), &[], &["light.keras", "model.weights.h5"]);
}

#[test]
fn truncated_and_damaged_hdf5() {
    let desk = Desk::new();
    let weights = member(&repository("tests/goldens/models/two_tower.keras"), "model.weights.h5");
    let model = repository("examples/two_tower.json");
    for part in [8, 100, weights.len() / 4, weights.len() / 2, weights.len() - 1000] {
        let cut = desk.file("cut.weights.h5", &weights[..part]);
        desk.refused(&model, &["--weights", cut.to_str().unwrap()], &["cut.weights.h5"]);
    }
    let cut = desk.file("cut.h5", &weights[..weights.len() / 2]);
    desk.refused(&cut, &[], &["cut.h5"]);
    // Any byte may be wrong: an answer or an error, never a panic.
    for at in (8..weights.len()).step_by(weights.len() / 40) {
        let mut damaged = weights.clone();
        damaged[at] ^= 0xff;
        let file = desk.file("damaged.weights.h5", &damaged);
        let result = intwain([
            Path::new("run"),
            &model,
            "--weights".as_ref(),
            &file,
            "--inputs".as_ref(),
            &desk.path("in.npz"),
            "--devices".as_ref(),
            "cpu:0".as_ref(),
        ]);
        assert!(matches!(result.status.code(), Some(0 | 1)), "byte {at}: {}", said(&result.stderr));
    }
}

#[test]
fn weights_of_another_model() {
    let desk = Desk::new();
    let golden = repository("tests/goldens/models/dense.keras");
    let other = desk.file("other.weights.h5", member(&golden, "model.weights.h5"));
    desk.refused(
        &repository("examples/two_tower.json"),
        &["--weights", other.to_str().unwrap()],
        &["other.weights.h5"],
    );
    // The right layers, one with another width.
    let golden = repository("tests/goldens/models/two_tower.keras");
    let right = desk.file("right.weights.h5", member(&golden, "model.weights.h5"));
    let mut model = two_tower();
    layer(&mut model, "rating")["config"]["units"] = json!(6);
    let wide = desk.file("wide.json", model.to_string());
    desk.refused(&wide, &["--weights", right.to_str().unwrap()], &["rating"]);
}

/// A TensorFlow.js model of one layer with these weights in its manifest.
fn tfjs(paths: Value, weights: Value) -> String {
    let config = json!({"name": "d", "units": 2, "use_bias": false, "batch_input_shape": [null, 2]});
    let layers = json!([{"class_name": "Dense", "config": config}]);
    let topology = json!({"class_name": "Sequential", "config": layers, "keras_version": "tfjs-layers 4.22.0"});
    json!({"modelTopology": topology, "weightsManifest": [{"paths": paths, "weights": weights}]}).to_string()
}

#[test]
fn damaged_weights_of_tensorflow_js() {
    let desk = Desk::new();
    desk.file("w.bin", [0u8; 16]);
    let kernel = |shape: Value| json!([{"name": "d/kernel", "shape": shape, "dtype": "float32"}]);
    let quantised = |q: Value| json!([{"name": "d/kernel", "shape": [2, 2], "dtype": "float32", "quantization": q}]);
    let whole = || kernel(json!([2, 2]));
    let cases: [(Value, Value, &[&str]); 17] = [
        (json!(["w.bin"]), kernel(json!([2, 3])), &["d/kernel", "24 bytes", "16"]),
        (json!(["w.bin"]), kernel(json!([1, 2])), &["16 bytes", "8"]),
        (json!(["w.bin"]), kernel(json!([1u64 << 40, 1u64 << 40])), &["d/kernel", "declares"]),
        (json!(["w.bin"]), kernel(json!([-1, 4])), &["d/kernel", "shape"]),
        (json!(["w.bin"]), kernel(json!("2x2")), &["d/kernel", "shape"]),
        (json!(["w.bin"]), kernel(json!([4])), &["d/kernel", "[2, 2]", "[4]"]),
        (json!(["w.bin", "gone.bin"]), whole(), &["gone.bin"]),
        (json!(["../w.bin"]), whole(), &["../w.bin", "beside"]),
        (json!(["/etc/hostname"]), whole(), &["/etc/hostname", "beside"]),
        (json!([".."]), whole(), &["beside"]),
        (json!([""]), whole(), &["beside"]),
        (json!(7), whole(), &["paths"]),
        (
            json!(["w.bin"]),
            json!([{"name": "e/kernel", "shape": [2, 2], "dtype": "float32"}]),
            &["d/kernel", "e/kernel"],
        ),
        (json!(["w.bin"]), json!([{"name": "d/kernel", "shape": [2, 2], "dtype": "string"}]), &["d/kernel", "string"]),
        (json!(["w.bin"]), quantised(json!({"dtype": "uint32", "scale": 1, "min": 0})), &["d/kernel", "uint32"]),
        (json!(["w.bin"]), quantised(json!({"dtype": "uint8", "min": 0})), &["d/kernel", "scale"]),
        (
            json!(["w.bin"]),
            json!([
                {"name": "d/kernel", "shape": [2, 1], "dtype": "float32"},
                {"name": "d/kernel", "shape": [2, 1], "dtype": "float32"}
            ]),
            &["d/kernel", "two"],
        ),
    ];
    for (paths, weights, words) in cases {
        let model = desk.file("model.json", tfjs(paths, weights));
        desk.refused(&model, &[], words);
    }
    // The same file is whole where nothing is wrong with it, and is an architecture where no weights are beside it.
    write_npz(&desk.path("two.npz"), &[Array::f32("x0", &[1, 2], vec![1.0, 2.0])]);
    let inputs = desk.path("two.npz");
    for (paths, note) in [(json!(["./w.bin"]), false), (json!(["gone.bin"]), true)] {
        let model = desk.file("model.json", tfjs(paths, whole()));
        let result = intwain([Path::new("run"), &model, "--inputs".as_ref(), &inputs]);
        let message = said(&result.stderr);
        assert!(result.status.success(), "{message}");
        assert_eq!(message.contains("no weights; initialised"), note, "{message}");
    }
}

#[test]
fn an_index_of_shards_that_reaches_elsewhere() {
    let desk = Desk::new();
    let model = repository("examples/two_tower.json");
    for name in [json!("../m.weights.h5"), json!("/etc/hostname"), json!(".."), json!(7), json!(["gone.weights.h5"])] {
        let index = json!({"metadata": {}, "weight_map": {"/layers/dense/vars": name}}).to_string();
        let index = desk.file("m.weights.json", index);
        let word = name.as_array().map_or("no file beside it", |_| "gone.weights.h5");
        desk.refused(&model, &["--weights", index.to_str().unwrap()], &[word]);
    }
}

#[test]
fn groups_that_hold_each_other() {
    let desk = Desk::new();
    let model = repository("examples/two_tower.json");
    let cyclic = repository("tests/fixtures/weights/cyclic.h5");
    desk.refused(&model, &["--weights", cyclic.to_str().unwrap()], &["cyclic.h5", "groups"]);
    desk.refused(&cyclic, &[], &["cyclic.h5", "model_config"]);
}

#[test]
fn duplicate_keys() {
    let desk = Desk::new();
    let text = fs::read_to_string(repository("examples/two_tower.json")).unwrap();
    let twice = text.replacen("\"name\": \"shared\"", "\"name\": \"shared\", \"name\": \"shared\"", 1);
    assert_ne!(text, twice);
    desk.refused(&desk.file("twice.json", twice), &[], &["twice.json", "name"]);
}

#[test]
fn numbers_that_cannot_be_meant() {
    let desk = Desk::new();
    let norm = r#"{"class_name": "BatchNormalization", "config": {"name": "norm", "axis": -1, "epsilon": 0.001}}"#;
    let text = sequential(&[serde_json::from_str(norm).unwrap()]);
    for token in ["NaN", "Infinity", "-Infinity"] {
        desk.refused(&desk.file("norm.json", text.replace("0.001", token)), &[], &["norm.json", "epsilon", "norm"]);
    }
    for units in [json!(0), json!(-3), json!(1.5), json!("many"), json!(null), json!(1u64 << 40), json!(i64::MAX)] {
        let dense = json!({"class_name": "Dense", "config": {"name": "wide", "units": units}});
        desk.refused(&desk.file("units.json", sequential(&[dense])), &[], &["units.json", "wide"]);
    }
}

#[test]
fn deep_nesting() {
    let desk = Desk::new();
    for (open, close) in
        [("[", "]"), ("{\"config\":", "}"), ("{\"class_name\":\"Sequential\",\"config\":{\"layers\":[", "]}}")]
    {
        let text = format!("{}{}{}", open.repeat(10_000), if open == "[" { "" } else { "null" }, close.repeat(10_000));
        desk.refused(&desk.file("deep.json", text), &[], &["deep.json"]);
    }
}

#[test]
fn shapes_beyond_memory() {
    let desk = Desk::new();
    let mut model = two_tower();
    layer(&mut model, "user")["config"]["batch_shape"] = json!([null, 1u64 << 40]);
    desk.refused(&desk.file("vast.json", model.to_string()), &[], &["vast.json"]);
    for dim in [json!(-4), json!(u64::MAX), json!(1e30), json!("x")] {
        layer(&mut model, "user")["config"]["batch_shape"] = json!([null, dim]);
        desk.refused(&desk.file("odd.json", model.to_string()), &[], &["odd.json"]);
    }
}

#[test]
fn a_cycle() {
    let desk = Desk::new();
    let mut model = two_tower();
    let keras_history = |layer: &mut Value, from: &str| {
        layer["inbound_nodes"][0]["args"][0]["config"]["keras_history"] = json!([from, 0, 0]);
    };
    let towers: Vec<String> = model["config"]["layers"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|l| l["class_name"] == "Dense" && l["config"]["units"] == 24)
        .map(|l| l["config"]["name"].as_str().unwrap().to_owned())
        .collect();
    keras_history(layer(&mut model, &towers[0]), "shared");
    desk.refused(&desk.file("cycle.json", model.to_string()), &[], &["cycle.json", &towers[0]]);
    let mut model = two_tower();
    keras_history(layer(&mut model, &towers[0]), "nobody");
    desk.refused(&desk.file("loose.json", model.to_string()), &[], &["loose.json", "nobody"]);
}

#[test]
fn all_unsupported_layers_at_once() {
    let desk = Desk::new();
    let unknown = |class: &str, name: &str| json!({"class_name": class, "config": {"name": name}});
    let text = sequential(&[unknown("Fluxer", "one"), unknown("Dense3D", "two"), unknown("Fluxer", "three")]);
    desk.refused(&desk.file("odd.json", text), &[], &["odd.json", "Fluxer", "Dense3D"]);
}

#[test]
fn keys_nobody_knows() {
    let desk = Desk::new();
    let mut model = two_tower();
    layer(&mut model, "shared")["config"]["sharpness"] = json!(3);
    desk.refused(&desk.file("key.json", model.to_string()), &[], &["key.json", "sharpness", "shared"]);
}

#[test]
fn arrays_that_do_not_fit() {
    let desk = Desk::new();
    let model = repository("tests/goldens/models/two_tower.keras");
    let refused = |name: &str, arrays: &[Array], words: &[&str]| {
        let path = desk.path(name);
        write_npz(&path, arrays);
        desk.refused(&model, &["--inputs", path.to_str().unwrap()], &[words, &[name]].concat());
    };
    let good = pairs();
    refused("none.npz", &[], &["user", "item"]);
    refused("one.npz", &good[..1], &["item"]);
    refused("names.npz", &["a", "b", "c"].map(|n| Array { name: n.into(), ..good[0].clone() }), &["user", "item"]);
    refused("narrow.npz", &[good[0].clone(), Array::f32("item", &[3, 47], vec![0.0; 141])], &["item", "48", "47"]);
    refused("rank.npz", &[good[0].clone(), Array::f32("item", &[144], vec![0.0; 144])], &["item"]);
    refused("rows.npz", &[good[0].rows(2), good[1].clone()], &["user", "item"]);
    let whole = fs::read(desk.path("in.npz")).unwrap();
    for part in [10, whole.len() / 2, whole.len() - 4] {
        let cut = desk.file("cut.npz", &whole[..part]);
        desk.refused(&model, &["--inputs", cut.to_str().unwrap()], &["cut.npz"]);
    }
    let decoder = repository("tests/goldens/models/decoder.keras");
    for (name, elements) in [
        ("half.npz", Elements::F32(vec![0.5; 7])),
        ("beyond.npz", Elements::I32(vec![23; 7])),
        ("below.npz", Elements::I32(vec![-24; 7])),
    ] {
        write_npz(&desk.path(name), &[Array { name: "ids".into(), shape: vec![1, 7], elements }]);
        desk.refused(&decoder, &["--inputs", desk.path(name).to_str().unwrap()], &["ids"]);
    }
}

#[test]
fn an_npz_that_declares_more_than_it_holds() {
    let desk = Desk::new();
    let path = desk.path("vast.npz");
    let header = "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776, 32), }";
    let padded = (10 + header.len() + 1).next_multiple_of(64) - 11;
    let mut npy = b"\x93NUMPY\x01\x00".to_vec();
    npy.extend((padded as u16 + 1).to_le_bytes());
    npy.extend(format!("{header:padded$}\n").into_bytes());
    archive(&path, &[("user.npy", &npy), ("item.npy", b"\x93NUMPY\x01\x00")]);
    desk.refused(&repository("examples/two_tower.json"), &["--inputs", path.to_str().unwrap()], &["vast.npz"]);
}

#[test]
fn wrong_usage_is_two() {
    let model = repository("examples/two_tower.json");
    let model = model.to_str().unwrap();
    for words in [
        &["run"][..],
        &["juggle"],
        &["run", model, "--no-such-flag"],
        &["run", model, "--inputs", "x.npz", "--split", "half"],
        &["inspect"],
    ] {
        let result = intwain(words);
        assert_eq!(result.status.code(), Some(2), "intwain {}\n{}", words.join(" "), said(&result.stderr));
    }
}
