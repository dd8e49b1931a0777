//! `--train` of `plan`, `inspect`, `compile` and `verify`, and programs of training.

#![allow(clippy::unwrap_used, reason = "a test fails where something is missing")]

use intwain::arrays::{Array, write_npz};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const STEP: [&str; 5] = ["--train", "--loss", "mse", "--optimizer", "adam"];

/// Trained elements of `two_tower.json`, by Keras's `count_params()`.
const PARAMETERS: u64 = 2572;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn model() -> String {
    root().join("examples/two_tower.json").display().to_string()
}

fn folder(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("training_commands").join(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn intwain(words: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_intwain"));
    command.env_remove("LD_LIBRARY_PATH").args(words).current_dir(root()).output().unwrap()
}

fn ok(words: &[&str]) -> String {
    let out = intwain(words);
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn document(words: &[&str]) -> Value {
    serde_json::from_str(&ok(&[words, &["--json"]].concat())).unwrap()
}

fn fails(code: i32, words: &[&str]) -> String {
    let out = intwain(words);
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(code), "{words:?}: {said}");
    said
}

fn numbers(value: &Value, key: &str) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|d| d[key].as_u64().unwrap()).collect()
}

fn candidate<'a>(plan: &'a Value, strategy: &str) -> &'a Value {
    plan["candidates"].as_array().unwrap().iter().find(|c| c["strategy"] == strategy).unwrap()
}

#[test]
fn a_plan_of_training_says_what_devices_keep_and_exchange() {
    let words = |optimizer, rest: &[&'static str]| -> Vec<String> {
        let first = ["--train", "--loss", "mse", "--optimizer", optimizer, "--hardware", "cpu"];
        let all = ["plan".to_string(), model()].into_iter().chain(first.map(String::from));
        all.chain(rest.iter().map(|w| w.to_string())).collect()
    };
    let plan = |optimizer, rest: &[&'static str]| {
        let words = words(optimizer, rest);
        document(&words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let data = plan("adam", &["--split", "data", "--no-exact"]);
    let memory = &data["training"]["devices"];
    assert_eq!(numbers(memory, "variable_bytes"), [4 * PARAMETERS; 2]);
    assert_eq!(numbers(memory, "gradient_bytes"), [4 * PARAMETERS; 2]);
    // Two moments for each element, a step of 8 bytes and a rate of 4.
    assert_eq!(numbers(memory, "optimizer_bytes"), [8 * PARAMETERS + 12; 2]);
    assert_eq!(data["batch"], 32);
    let names: Vec<&Value> = data["candidates"].as_array().unwrap().iter().map(|c| &c["strategy"]).collect();
    assert_eq!(names, ["one", "data", "tensor", "mixed", "pipeline"]);
    // Each device sends its part of every gradient and of the two outputs' losses.
    assert_eq!(candidate(&data, "data")["communication_bytes"], 2 * 4 * (PARAMETERS + 2));

    let sgd = plan("sgd", &["--split", "pipeline", "--micro-batches", "4"]);
    assert_eq!(numbers(&sgd["training"]["devices"], "variable_bytes").iter().sum::<u64>(), 4 * PARAMETERS);
    assert_eq!(sgd["training"]["micro_batches"], json!([8, 8, 8, 8]));
    assert_eq!(candidate(&sgd, "pipeline")["micro_batches"], 4);
    assert_eq!(candidate(&sgd, "pipeline")["verdict"], "chosen");

    // Where bits are promised, auto takes no pipeline that would not give them.
    let half = plan("sgd", &["--dtype", "float16"]);
    assert_eq!(candidate(&half, "pipeline")["verdict"], "not_possible");
    assert!(candidate(&half, "pipeline")["reason"].as_str().unwrap().contains("16 bits"));

    let said = fails(2, &["plan", &model(), "--loss", "mse", "--hardware", "cpu"]);
    assert!(said.contains("--loss") && said.contains("--train"), "{said}");
    let said = fails(1, &["plan", &model(), "--train", "--optimizer", "adam", "--hardware", "cpu"]);
    assert!(said.contains("--loss"), "{said}");
}

#[test]
fn a_plan_of_training_says_how_gradients_are_exchanged() {
    let words = ["plan", &model(), "--train", "--loss", "mse", "--optimizer", "adam", "--split", "data"];
    let on = |machine| document(&[&words[..], &["--no-exact", "--hardware", machine]].concat());
    let (gpus, cpu) = (on("2xa100-nvlink"), on("cpu"));
    let of = |plan: &Value| plan["training"]["exchanges"].clone();
    let messages = |plan: &Value| of(plan)["messages"].as_array().unwrap().clone();
    let sum = |plan: &Value, key: &str| messages(plan).iter().map(|m| m[key].as_u64().unwrap()).sum::<u64>();
    // Each device sends its part of every gradient; sums of losses may be among what is exchanged beside them.
    for plan in [&gpus, &cpu] {
        assert_eq!(sum(plan, "gradients"), of(plan)["gradients"].as_u64().unwrap());
        assert!((4 * PARAMETERS..4 * PARAMETERS + 16).contains(&sum(plan, "bytes")), "{}", of(plan));
    }
    let exposed = of(&gpus)["exposed_seconds"].as_f64().unwrap();
    assert!((0.0..gpus["seconds"].as_f64().unwrap()).contains(&exposed), "{}", of(&gpus));
    assert_eq!(of(&cpu)["exposed_seconds"], Value::Null);
    assert_eq!(sum(&gpus, "bytes"), sum(&cpu, "bytes"));
    assert!(messages(&gpus).len() < messages(&cpu).len() / 2, "{}", of(&gpus));
    assert_eq!(of(&cpu)["bucket_bytes"], Value::Null);
    assert!(messages(&cpu).iter().all(|m| m["gradients"] == 1));
    let most = of(&gpus)["bucket_bytes"].as_u64().unwrap();
    let fits = |m: &Value| m["gradients"] == 1 || m["bytes"].as_u64().unwrap() <= most;
    assert!(messages(&gpus).iter().all(fits), "{}", of(&gpus));
    let said = ok(&[&words[..], &["--no-exact", "--hardware", "2xa100-nvlink"]].concat());
    let line = said.lines().find(|l| l.contains("gradients are exchanged in")).unwrap();
    assert!(line.contains("exposed") && line.contains("of up to"), "{line}");
}

/// Dense layers one behind the other.
fn chain(folder: &Path, units: usize, layers: usize) -> String {
    let input = json!({"class_name": "InputLayer", "config": {"batch_shape": [null, units], "name": "x"}});
    let dense = |i| json!({"class_name": "Dense", "config": {"name": format!("dense_{i}"), "units": units, "activation": "relu"}});
    let all: Vec<Value> = std::iter::once(input).chain((0..layers).map(dense)).collect();
    let model = json!({"class_name": "Sequential", "config": {"name": "chain", "layers": all}});
    let path = folder.join("chain.json");
    std::fs::write(&path, model.to_string()).unwrap();
    path.display().to_string()
}

#[test]
fn auto_takes_a_pipeline_where_weights_are_large_and_the_link_is_slow() {
    let model = chain(&folder("auto"), 4096, 6);
    let words = ["plan", &model, "--train", "--loss", "mse", "--optimizer", "adam", "--hardware", "2xrtx4090-pcie"];
    let plan = document(&[&words[..], &["--batch", "4096"]].concat());
    assert_eq!(plan["strategy"], "pipeline", "{}", plan["candidates"]);
    let pieces = candidate(&plan, "pipeline")["micro_batches"].as_u64().unwrap();
    assert!(pieces > 1);
    let seconds = plan["seconds"].as_f64().unwrap();
    for c in plan["candidates"].as_array().unwrap() {
        assert_eq!(c["verdict"] == "chosen", c["strategy"] == "pipeline");
        assert!(c["seconds"].as_f64().unwrap() >= seconds);
    }
    // Half or twice as many micro-batches take longer.
    for other in [pieces / 2, pieces * 2] {
        let other = other.to_string();
        let named = ["--batch", "4096", "--split", "pipeline", "--micro-batches", &other];
        let named = document(&[&words[..], &named].concat());
        assert!(named["seconds"].as_f64().unwrap() >= seconds, "{other}");
    }
    // A few rows are better off with the weights divided, and where the link is slow, rows are not shared.
    let few = document(&[&words[..], &["--batch", "64"]].concat());
    assert_ne!(few["strategy"], "pipeline");
}

#[test]
fn a_step_that_does_not_fit_says_what_it_computes_again_and_its_program_trains_alike() {
    let folder = folder("recompute");
    let path = |name: &str| folder.join(name).display().to_string();
    let model = chain(&folder, 16, 10);
    let step = ["--train", "--loss", "mse", "--optimizer", "sgd", "--batch", "256", "--split", "one"];
    let plan = document(&[&["plan", &model, "--hardware", "cpu"], &step[..]].concat());
    assert!(plan["training"].get("recomputed").is_none(), "{plan}");
    let peak = candidate(&plan, "one")["peak_bytes"][0].as_u64().unwrap();
    let machine = |share: f64| {
        let memory = format!("memory = {}", (peak as f64 * share).round());
        let text = ok(&["hardware", "cpu"]).replace("memory = 8e9", &memory).replace("memory = 1.6e10", &memory);
        let text = text.replace("[machine.cpu]", "[machine.small]");
        assert!(text.contains(&memory));
        let file = path("small.toml");
        std::fs::write(&file, text).unwrap();
        file
    };
    let small = machine(0.75);
    let words = [&["plan", &model, "--hardware", &small], &step[..]].concat();
    let again = document(&words);
    let recomputed = &again["training"]["recomputed"];
    let saved = recomputed["saved_bytes"][0].as_u64().unwrap();
    assert!(saved as f64 >= 0.25 * peak as f64, "{recomputed}");
    assert_eq!(peak - saved, candidate(&again, "one")["peak_bytes"][0].as_u64().unwrap());
    let layers = recomputed["layers"].as_array().unwrap();
    assert!(layers.iter().any(|l| l["layer"].as_str().unwrap().starts_with("dense_")), "{recomputed}");
    assert!(ok(&words).contains("computed again so that the step fits: saves"), "{}", ok(&words));

    let (x, y) = (array(&[256, 16], |i| (i as f32 * 0.37).sin()), array(&[256, 16], |i| (i as f32 * 0.13).sin()));
    write_npz(&folder.join("data.npz"), [("x", &x), ("y0", &y)]).unwrap();
    let data = path("data.npz");
    let train = ["--data", &data, "--epochs", "3", "-q"];
    let (program, one, other) = (path("program"), path("one.h5"), path("other.h5"));
    ok(&[&["compile", &model, "--hardware", &small, "-o", &program, "-q", "--seed", "3"], &step[..]].concat());
    assert!(std::fs::read_to_string(folder.join("program/graph0.ir")).unwrap().contains(" again"));
    let how = ["--loss", "mse", "--optimizer", "sgd", "--seed", "3", "--split", "one", "--batch", "256"];
    ok(&[&["train", &model, "-o", &one], &how[..], &train].concat());
    ok(&[&["train", &program, "-o", &other], &train[..]].concat());
    assert!(std::fs::read(&one).unwrap() == std::fs::read(&other).unwrap());
    assert_eq!(document(&["verify", &program])["verified"], true);

    let said = fails(1, &[&["plan", &model, "--hardware", &machine(0.1)], &step[..]].concat());
    assert!(said.contains("no plan fits into memory") && said.contains("is held by `dense_"), "{said}");
}

#[test]
fn inspect_shows_states_and_the_order_of_micro_batches() {
    let order = |schedule: &str| {
        let words = ["inspect", &model(), "--hardware", "cpu", "--split", "pipeline", "--micro-batches", "4"];
        let words = [&words[..], &STEP, &["--schedule", schedule]].concat();
        document(&words)["training"].clone()
    };
    // As the schedules are drawn by their authors (Huang et al. 2019, Narayanan et al. 2021).
    let gpipe = ["F0", "F1", "F2", "F3", "B0", "B1", "B2", "B3"];
    assert_eq!(order("gpipe")["order"], json!([gpipe, gpipe]));
    let first = ["F0", "F1", "B0", "F2", "B1", "F3", "B2", "B3"];
    let last = ["F0", "B0", "F1", "B1", "F2", "B2", "F3", "B3"];
    let one = order("1f1b");
    assert_eq!(one["order"], json!([first, last]));
    let zero = order("zero-bubble")["order"].to_string();
    assert!(zero.contains("W0") && zero.contains("W3"), "{zero}");

    let states = one["states"].as_array().unwrap();
    let of = |kind: &str| states.iter().filter(|s| s["kind"] == kind).count();
    // Five kernels and five biases, two moments of each, the step and the rate.
    assert_eq!((of("variable"), of("optimizer"), states.len()), (10, 22, 32));
    for s in states.iter().filter(|s| s["kind"] == "variable") {
        assert!(["X(0)", "X(1)"].contains(&s["layout"].as_str().unwrap()), "{s}");
    }
    let after = ok(&[&["inspect", &model(), "--hardware", "cpu", "--after", "reshard"], &STEP[..]].concat());
    assert!(after.contains("dense_6/kernel"), "{after}");
}

#[test]
fn every_split_of_training_is_proved() {
    let report = document(&[&["verify", &model(), "--devices", "cpu:0,cpu:1"], &STEP[..]].concat());
    assert_eq!(report["verified"], true);
    let programs = report["programs"].as_array().unwrap();
    let names: Vec<&str> = programs.iter().map(|p| p["strategy"].as_str().unwrap()).collect();
    assert_eq!(names, ["data", "tensor", "mixed", "pipeline"]);
    for p in programs.iter().filter(|p| ["data", "pipeline"].contains(&p["strategy"].as_str().unwrap())) {
        let execution = &p["execution"];
        assert_eq!((&execution["unequal"], &execution["promised_equal"]), (&json!(0), &json!(true)), "{p}");
        // Of two steps: the loss and those of two outputs; every variable with two moments; a step and a rate.
        assert_eq!(execution["elements"], 2 * 3 + 3 * PARAMETERS + 2);
        assert!(p["communications"].as_u64().unwrap() > 0);
    }
}

#[test]
fn pipelines_that_normalise_are_proved_against_as_many_micro_batches() {
    let folder = folder("normalised");
    let layers = json!([
        {"class_name": "InputLayer", "config": {"batch_shape": [null, 8], "name": "x"}},
        {"class_name": "Dense", "config": {"name": "a", "units": 16, "activation": "relu"}},
        {"class_name": "BatchNormalization", "config": {"name": "normal"}},
        {"class_name": "Dropout", "config": {"name": "drop", "rate": 0.25}},
        {"class_name": "Dense", "config": {"name": "b", "units": 4, "activation": "softmax"}},
    ]);
    let model = folder.join("normal.json");
    let text = json!({"class_name": "Sequential", "config": {"name": "normal", "layers": layers}}).to_string();
    std::fs::write(&model, text).unwrap();
    let model = model.display().to_string();
    let step = ["--train", "--loss", "sparse_categorical_crossentropy", "--optimizer", "adam", "--batch", "16"];
    let words = [&["verify", &model], &step[..], &["--micro-batches", "4", "--split", "pipeline"]].concat();
    assert!(fails(1, &words).contains("--bn micro-batch"));
    let words = [&words[..], &["--bn", "micro-batch"]].concat();
    let report = document(&words);
    assert_eq!(report["programs"][0]["execution"]["unequal"], 0, "{report}");
    let plan = document(&[&["plan", &model, "--hardware", "cpu"], &step[..]].concat());
    let reason = candidate(&plan, "pipeline")["reason"].as_str().unwrap().to_string();
    assert!(reason.contains("normal/moving_mean"), "{reason}");
}

fn array(shape: &[usize], at: impl Fn(usize) -> f32) -> Array {
    let data: Vec<u8> = (0..shape.iter().product::<usize>()).flat_map(|i| at(i).to_le_bytes()).collect();
    Array::from_bytes(intwain::DType::F32, shape.to_vec(), &data).unwrap()
}

/// 43 rows, so that the last step of an epoch has 11.
fn data(folder: &Path) -> String {
    let wave = |f: f32| move |i: usize| (i as f32 * f).sin();
    let arrays = [
        ("user", array(&[43, 32], wave(0.37))),
        ("item", array(&[43, 48], wave(0.71))),
        ("y0", array(&[43, 1], |i| (i % 2) as f32)),
        ("y1", array(&[43, 5], wave(0.13))),
    ];
    let path = folder.join("data.npz");
    write_npz(&path, arrays.iter().map(|(name, a)| (*name, a))).unwrap();
    path.display().to_string()
}

#[test]
fn a_program_of_training_trains_as_the_model_does() {
    let folder = folder("program");
    let data = data(&folder);
    let path = |name: &str| folder.join(name).display().to_string();
    let (program, one, other) = (path("program"), path("one.keras"), path("other.keras"));
    let how = ["--loss", "mse", "--optimizer", "adam", "--metrics", "mae", "--seed", "3"];
    let train = ["--data", &data, "--epochs", "2", "-q"];
    for (split, batch, more) in [
        ("one", "16,11", &[][..]),
        ("data", "16,11", &["--zero", "2"]),
        ("tensor", "16,11", &[]),
        ("pipeline", "16", &["--micro-batches", "2", "--schedule", "gpipe"]),
    ] {
        let compile = ["compile", &model(), "--train", "--hardware", "cpu", "-o", &program, "-q"];
        ok(&[&compile[..], &how, more, &["--split", split, "--batch", batch]].concat());
        let direct = ["train", &model(), "-o", &one, "--split", split, "--batch", "16"];
        let history = (path("one.npz"), path("other.npz"));
        ok(&[&direct[..], &how, more, &train, &["--history", &history.0]].concat());
        ok(&[&["train", &program, "-o", &other, "--history", &history.1], &train[..]].concat());
        assert!(std::fs::read(&one).unwrap() == std::fs::read(&other).unwrap(), "{split}");
        assert!(std::fs::read(&history.0).unwrap() == std::fs::read(&history.1).unwrap(), "{split}");
        let report = ok(&["inspect", &program]);
        assert!(report.contains("a step of training: mse + mse, Adam"), "{report}");
        let report = document(&["verify", &program]);
        assert_eq!(report["verified"], true, "{report}");
        for p in report["programs"].as_array().unwrap().iter().filter(|_| split != "tensor") {
            assert_eq!(p["execution"]["unequal"], 0, "{split}: {p}");
            assert!(p["execution"]["elements"].as_u64().unwrap() > 3 * PARAMETERS, "{split}: {p}");
        }
    }
    let with = |words: &[&str]| fails(1, &[&["train", &program, "-o", &other], words, &train].concat());
    assert!(with(&["--loss", "mae"]).contains("--loss was decided"));
    assert!(with(&["--split", "one"]).contains("--split was decided"));
    assert!(with(&["--no-exact"]).contains("--no-exact was decided"));
    assert!(with(&["--devices", "cpu:0"]).contains("for 2 device(s)"));
    assert!(with(&["--devices", "ptx:0,ptx:1"]).contains("compiled for CPUs"));
    assert!(fails(1, &["run", &program, "--inputs", &data]).contains("`train` runs it"));
    let source = folder.join("program/source.json");
    let text = std::fs::read_to_string(&source).unwrap();
    std::fs::write(&source, text.replace("relu", "tanh")).unwrap();
    assert!(with(&[]).contains("its hash differs"));
    std::fs::write(&source, text).unwrap();
    let graph = folder.join("program/graph0.ir");
    std::fs::write(&graph, std::fs::read_to_string(&graph).unwrap() + "\n").unwrap();
    assert!(with(&[]).contains("its hash differs"));

    ok(&["compile", &model(), "--hardware", "cpu", "-o", &program, "-q"]);
    assert!(with(&[]).contains("compile the model with --train"));
}

#[test]
fn emulated_gpus_train_with_a_program() {
    let folder = folder("ptx");
    let data = data(&folder);
    let path = |name: &str| folder.join(name).display().to_string();
    let (program, one, other) = (path("program"), path("one.keras"), path("other.keras"));
    let how = ["--loss", "mse", "--optimizer", "adam", "--split", "data", "--hardware", "2xa100-nvlink"];
    ok(&[&["compile", &model(), "--train", "-o", &program, "-q", "--batch", "16,11"], &how[..]].concat());
    let train = ["--data", &data, "--epochs", "1", "-q", "--devices", "ptx:0,ptx:1"];
    ok(&[&["train", &model(), "-o", &one, "--batch", "16"], &how[..], &train].concat());
    ok(&[&["train", &program, "-o", &other], &train[..]].concat());
    assert!(std::fs::read(&one).unwrap() == std::fs::read(&other).unwrap());
}

#[test]
fn a_run_goes_on_with_as_many_rows_only() {
    let folder = folder("rows");
    let data = data(&folder);
    let checkpoints = folder.join("checkpoints").display().to_string();
    let train = |epochs| {
        let model = model();
        let words = ["train", &model, "--data", &data, "--loss", "mse", "--optimizer", "adam", "--batch", "16", "-q"];
        words
            .iter()
            .chain(&["--checkpoint", &checkpoints, "--epochs", epochs])
            .map(|w| w.to_string())
            .collect::<Vec<_>>()
    };
    let words = |more: &[&str], epochs| train(epochs).into_iter().chain(more.iter().map(|w| w.to_string())).collect();
    let said = |words: Vec<String>| intwain(&words.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(said(words(&[], "1")).status.success());
    let other = said(words(&["--resume", "--validation-split", "0.2"], "2"));
    let text = String::from_utf8_lossy(&other.stderr).into_owned();
    assert_eq!(other.status.code(), Some(1));
    assert!(text.contains("rows of data") && text.contains("43") && text.contains("34"), "{text}");
    assert!(said(words(&["--resume"], "2")).status.success());
}

/// What two devices have saved and one has loaded and saved again is the same file.
#[test]
fn a_model_is_the_same_file_wherever_its_states_were() {
    let folder = folder("same_file");
    let (data, model, kept) = (data(&folder), model(), folder.join("kept").display().to_string());
    let [first, second] = ["two.weights.h5", "one.weights.h5"].map(|name| folder.join(name).display().to_string());
    let train = |more: &[&str]| {
        let words = [
            "train",
            &model,
            "--data",
            &data,
            "--epochs",
            "1",
            "--batch",
            "16",
            "--loss",
            "mse",
            "--optimizer",
            "adam",
        ];
        ok(&[&words[..], &["--checkpoint", &kept, "-q"], more].concat())
    };
    train(&["--devices", "cpu:0,cpu:1", "--split", "data", "--zero", "3", "-o", &first]);
    // Nothing is left to be trained: one device takes up what the checkpoint has, and writes it.
    train(&["--devices", "cpu:0", "--resume", "-o", &second]);
    assert!(std::fs::read(&first).unwrap() == std::fs::read(&second).unwrap());
}
