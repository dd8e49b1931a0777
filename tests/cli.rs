//! The `intwain` command: what scripts rely on, and what hostile input gets.

#![allow(clippy::unwrap_used, reason = "a test fails where something is missing")]

use intwain::arrays::{Array, Npz, write_npz};
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn example(name: &str) -> String {
    root().join("examples").join(name).display().to_string()
}

fn intwain(words: &[&str]) -> Output {
    // Without what cargo adds to the search path: a stand-in for the driver that other tests load.
    let mut command = Command::new(env!("CARGO_BIN_EXE_intwain"));
    command.env_remove("LD_LIBRARY_PATH").args(words).current_dir(root()).output().unwrap()
}

/// Standard output of a command that must succeed.
fn ok(words: &[&str]) -> String {
    let out = intwain(words);
    assert!(out.status.success(), "{words:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

fn json(words: &[&str]) -> Value {
    let text = ok(&[words, &["--json"]].concat());
    serde_json::from_str(&text).unwrap()
}

/// The message of a command that must fail with this code: nothing on stdout, at most a screen on stderr.
fn fails(code: i32, words: &[&str]) -> String {
    let out = intwain(words);
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(code), "{words:?}: {said}");
    assert!(out.stdout.is_empty(), "{words:?} prints {}", String::from_utf8_lossy(&out.stdout));
    assert!(said.lines().count() <= 26, "{words:?} says more than a screen:\n{said}");
    assert!(said.len() < 6000, "{words:?} says too much: {} bytes", said.len());
    assert!(!said.contains("panicked"), "{said}");
    said
}

fn arrays(path: &Path) -> Vec<(String, Array)> {
    let npz = Npz::open(path).unwrap();
    npz.names().map(|n| (n.to_string(), npz.read(n).unwrap())).collect()
}

#[test]
fn plan_compares_every_strategy() {
    let plan = json(&["plan", &example("two_tower.json"), "--hardware", "2xa100-nvlink", "--batch", "64"]);
    let names: Vec<&str> =
        plan["candidates"].as_array().unwrap().iter().map(|c| c["strategy"].as_str().unwrap()).collect();
    assert_eq!(names, ["one", "data", "tensor", "mixed", "pipeline"]);
    assert_eq!(plan["batch"], 64);
    let chosen = plan["strategy"].as_str().unwrap();
    let fastest = plan["seconds"].as_f64().unwrap();
    for c in plan["candidates"].as_array().unwrap() {
        assert_eq!(c["verdict"] == "chosen", c["strategy"] == chosen);
        assert!(c["seconds"].as_f64().is_none_or(|s| s >= fastest * 0.98), "{c}");
        assert!(!c["reason"].as_str().unwrap().is_empty());
    }
    let text = ok(&["plan", &example("two_tower.json"), "--hardware", "2xa100-nvlink", "--batch", "64"]);
    for name in names {
        assert!(text.lines().any(|l| l.starts_with(name)), "{name} is missing in\n{text}");
    }
}

#[test]
fn machines_come_from_the_catalogue_or_a_file() {
    let said = fails(1, &["plan", &example("two_tower.json")]);
    assert!(said.contains("--hardware") && said.contains("2xh100-nvlink") && said.contains("cpu"), "{said}");
    let said = fails(1, &["plan", &example("two_tower.json"), "--hardware", "2xh100-nvlnk"]);
    assert!(said.contains("2xh100-nvlink"), "{said}");

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("mine.toml");
    std::fs::write(&file, ok(&["hardware", "2xrtx3090-nvlink"])).unwrap();
    let [named, read] = ["2xrtx3090-nvlink", file.to_str().unwrap()]
        .map(|h| json(&["plan", &example("two_tower.json"), "--hardware", h]));
    assert_eq!(named, read);
    std::fs::write(&file, "[machine.x]\ndevices = 3\n").unwrap();
    let said = fails(1, &["hardware", file.to_str().unwrap()]);
    assert!(said.contains("mine.toml") && said.contains("devices"), "{said}");

    let all = json(&["hardware"]);
    let names: Vec<&str> = all.as_array().unwrap().iter().map(|m| m["name"].as_str().unwrap()).collect();
    for name in
        ["2xa100-nvlink", "2xh100-nvlink", "2xh200-nvlink", "2xl40s-pcie", "2xrtx3090-pcie", "2xrtx4090-pcie", "cpu"]
    {
        assert!(names.contains(&name), "{name} is not in {names:?}");
    }
    assert!(ok(&["devices"]).contains("cpu:0"));
}

#[test]
fn inspect_shows_the_same_facts_as_text_and_json() {
    let words = ["inspect", &example("two_tower.json"), "--hardware", "cpu", "--split", "tensor", "--batch", "6"];
    let (text, report) = (ok(&words), json(&words));
    assert_eq!(
        ok(&[&words[..], &["--format", "json"]].concat()).trim(),
        serde_json::to_string_pretty(&report).unwrap()
    );
    let layers = report["layers"].as_array().unwrap();
    assert!(text.lines().count() <= layers.len() + 20);
    for layer in layers {
        let name = layer["name"].as_str().unwrap();
        let line = text.lines().find(|l| l.split_whitespace().next() == Some(name)).unwrap();
        assert!(line.contains(layer["layout"].as_str().unwrap()), "{line}");
    }
    assert!(report["devices"][1]["kernels"].as_array().is_some_and(|k| !k.is_empty()));
    let said = fails(2, &[&words[..], &["--format", "dot"]].concat());
    assert!(said.contains("dot"), "{said}");
}

#[test]
fn inspect_explains_layers_and_passes() {
    let words = ["inspect", &example("two_tower.json"), "--hardware", "cpu", "--split", "data"];
    let why = json(&[&words[..], &["--why", "shared"]].concat());
    assert_eq!(why["layer"], "shared");
    assert!(why["runner_up"]["more_seconds"].is_number());
    assert!(ok(&[&words[..], &["--why", "shared"]].concat()).contains("runner-up"));
    let said = fails(1, &[&words[..], &["--why", "shred"]].concat());
    assert!(said.contains("`shred`") && said.contains("shared"), "{said}");
    let text = ok(&[&words[..], &["--after", "partition"]].concat());
    assert_eq!(text.matches("local devices 2 device").count(), 2, "{text}");
    let said = fails(1, &[&words[..], &["--after", "fold"]].concat());
    assert!(said.contains("local-simplify"), "{said}");
}

fn run(folder: &Path, model: &str, words: &[&str]) -> Vec<(String, Array)> {
    let out = folder.join("out.npz");
    let inputs = example("pairs.npz");
    let base = ["run", model, "--inputs", &inputs, "--outputs", out.to_str().unwrap(), "-q"];
    ok(&[&base[..], words].concat());
    arrays(&out)
}

fn same_bits(a: &[(String, Array)], b: &[(String, Array)]) {
    assert_eq!(a.len(), b.len());
    for ((name, x), (other, y)) in a.iter().zip(b) {
        assert_eq!((name, x.shape()), (other, y.shape()));
        assert_eq!(x.bytes(), y.bytes(), "{name}");
    }
}

#[test]
fn a_program_directory_runs_as_the_model_does() {
    let folder = tempfile::tempdir().unwrap();
    let model = example("two_tower.json");
    let whole = run(folder.path(), &model, &["--devices", "cpu:0"]);
    assert_eq!(whole[0].1.shape()[0], 5, "the example has five rows");
    for (split, batch) in [("data", "4"), ("pipeline", "2,1"), ("one", "5"), ("data", "32"), ("tensor", "3,2")] {
        let dir = folder.path().join(format!("{split}-{batch}"));
        let dir = dir.to_str().unwrap();
        ok(&["compile", &model, "-o", dir, "--hardware", "cpu", "--split", split, "--batch", batch, "-q"]);
        let found = run(folder.path(), dir, &[]);
        if split == "tensor" {
            assert_eq!(found.len(), whole.len());
        } else {
            same_bits(&found, &whole);
        }
        assert!(ok(&["inspect", dir]).contains(split));
        assert_eq!(json(&["inspect", dir])["strategy"], split);
        assert_eq!(json(&["verify", dir])["verified"], true);
    }
}

#[test]
fn compiling_twice_gives_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let mut all = Vec::new();
    for name in ["a", "b", "a"] {
        let dir = folder.path().join(name);
        let words = ["--hardware", "cpu", "--split", "tensor", "--batch", "8,3", "-q"];
        ok(&[&["compile", &example("two_tower.json"), "-o", dir.to_str().unwrap()][..], &words].concat());
        let mut files: Vec<(String, Vec<u8>)> = std::fs::read_dir(&dir)
            .unwrap()
            .map(|e| e.unwrap().path())
            .map(|p| (p.file_name().unwrap().to_str().unwrap().to_string(), std::fs::read(&p).unwrap()))
            .collect();
        files.sort();
        all.push(files);
    }
    assert_eq!(all[0], all[1]);
    assert_eq!(all[0], all[2], "a program that is there is replaced");
    let names: Vec<&str> = all[0].iter().map(|f| f.0.as_str()).collect();
    let expected = [
        "graph0.ir",
        "graph0.rows3.ir",
        "graph1.ir",
        "graph1.rows3.ir",
        "model.json",
        "plan.txt",
        "program.json",
        "weights.safetensors",
    ];
    assert!(expected.iter().all(|n| names.contains(n)), "{names:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2, "nothing partial is left");
}

/// Changes a file of a program and gives what `run` says of it.
fn tampered(name: &str, change: impl Fn(String) -> String) -> String {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("p");
    let words = ["--hardware", "cpu", "--split", "data", "--batch", "4", "-q"];
    ok(&[&["compile", &example("two_tower.json"), "-o", dir.to_str().unwrap()][..], &words].concat());
    let file = dir.join(name);
    std::fs::write(&file, change(std::fs::read_to_string(&file).unwrap())).unwrap();
    let out = folder.path().join("out.npz");
    let inputs = example("pairs.npz");
    let words = ["run", dir.to_str().unwrap(), "--inputs", &inputs, "--outputs", out.to_str().unwrap()];
    let said = fails(1, &words);
    assert!(!out.exists(), "nothing is written");
    assert!(said.contains(dir.to_str().unwrap()), "{said}");
    said
}

#[test]
fn changed_programs_are_refused_with_the_reason() {
    assert!(tampered("graph1.ir", |t| t.replace("add", "mul")).contains("hash"));
    assert!(tampered("plan.txt", |t| t + "x").contains("hash"));
    assert!(tampered("program.json", |t| t.replace("\"format\": 2", "\"format\": 3")).contains("format 3"));
    assert!(
        tampered("program.json", |t| t.replacen("\"hash\": \"", "\"hash\": \"0", 1)).contains("planned for another")
    );
    assert!(tampered("program.json", |t| t[..t.len() / 2].to_string()).contains("manifest"));
    assert!(tampered("program.json", |t| t.replace("graph0.ir", "../graph0.ir")).contains("../graph0.ir"));
    assert!(
        tampered("program.json", |t| t.replace("\"architecture\": \"", "\"architecture\": \"0"))
            .contains("architecture")
    );
    assert!(tampered("program.json", |t| t.replacen("\"offset\": 64", "\"offset\": 128", 1)).contains("commands"));
    let said = fails(1, &["run", root().to_str().unwrap(), "--inputs", &example("pairs.npz")]);
    assert!(said.contains("program.json"), "{said}");
}

#[test]
fn compile_writes_only_where_it_may() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("p");
    let words = ["compile", &example("two_tower.json"), "-o", dir.to_str().unwrap(), "--hardware"];
    let said = fails(1, &[&words[..], &["2xh100-nvlnk"]].concat());
    assert!(said.contains("2xh100-nvlink"), "{said}");
    assert!(!dir.exists());
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("mine.txt"), "keep").unwrap();
    let said = fails(1, &[&words[..], &["cpu"]].concat());
    assert!(said.contains("other files"), "{said}");
    assert_eq!(std::fs::read_to_string(dir.join("mine.txt")).unwrap(), "keep");
    let said = fails(1, &["compile", &example("two_tower.json"), "-o", dir.to_str().unwrap()]);
    assert!(said.contains("no GPU"), "{said}");
}

#[test]
fn verify_proves_every_split() {
    let report = json(&["verify", &example("two_tower.json")]);
    assert_eq!(report["verified"], true);
    let programs = report["programs"].as_array().unwrap();
    assert_eq!(programs.len(), 4);
    for p in programs {
        let rounds = p["strategy"] == "tensor" || p["strategy"] == "mixed";
        assert!(p["execution"]["unequal"] == 0 || rounds, "{p}");
    }
    assert!(ok(&["verify", &example("two_tower.json"), "--split", "pipeline"]).ends_with("verified\n"));
}

#[test]
fn wrong_usage_is_told_apart_from_wrong_input() {
    fails(2, &[]);
    fails(2, &["plan"]);
    fails(2, &["plan", &example("two_tower.json"), "--batch", "0"]);
    fails(2, &["plan", &example("two_tower.json"), "--split", "half"]);
    fails(2, &["run", &example("two_tower.json")]);
    let help = ok(&["--help"]);
    for command in ["plan", "inspect", "compile", "run", "grad", "train", "evaluate", "verify", "hardware", "devices"] {
        assert!(help.contains(command), "{help}");
    }
    // Nothing would be kept.
    fails(2, &["train", &example("two_tower.json"), "--data", "d.npz", "--epochs", "1"]);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_intwain"))
        .args(["inspect", &example("resnet50.json"), "--hardware", "cpu", "--split", "data", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert!(child.wait().unwrap().success(), "{said}");
    assert_eq!(said, "");
}

/// A model of one dense layer whose text can be changed.
const DENSE: &str = r#"{"class_name": "Sequential", "config": {"name": "s", "layers": [
  {"class_name": "InputLayer", "config": {"batch_shape": [null, 4], "name": "in", "dtype": "float32"}},
  {"class_name": "Dense", "config": {"name": "d", "units": 3, "activation": "relu", "use_bias": true}}]}}"#;

#[test]
fn hostile_models_get_a_screen_and_nothing_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let cycle = r#"{"class_name": "Functional", "config": {"name": "f", "layers": [
      {"class_name": "InputLayer", "name": "in", "config": {"batch_shape": [null, 4], "name": "in"}, "inbound_nodes": []},
      {"class_name": "Add", "name": "a", "config": {"name": "a"}, "inbound_nodes": [[["in", 0, 0, {}], ["b", 0, 0, {}]]]},
      {"class_name": "Activation", "name": "b", "config": {"name": "b", "activation": "relu"}, "inbound_nodes": [[["a", 0, 0, {}]]]}],
      "input_layers": [["in", 0, 0]], "output_layers": [["b", 0, 0]]}}"#;
    let many: Vec<String> =
        (0..300).map(|i| format!(r#"{{"class_name": "Nonsense{i}", "config": {{"name": "n{i}"}}}}"#)).collect();
    let many = DENSE.replace("]}}", &format!(", {}]}}}}", many.join(", ")));
    let files: Vec<(&str, Vec<u8>, &[&str])> = vec![
        ("empty.json", vec![], &[]),
        ("noise.bin", (0..4096u32).map(|i| (i * 197 % 251) as u8).collect(), &[]),
        ("truncated.json", DENSE.as_bytes()[..DENSE.len() / 2].to_vec(), &["JSON"]),
        ("truncated.zip", b"PK\x03\x04\x14\0\0\0\0\0 half a zip".to_vec(), &[]),
        ("truncated.h5", b"\x89HDF\r\n\x1a\n and no more".to_vec(), &[]),
        ("deep.json", "[".repeat(10_000).into_bytes(), &[]),
        ("nested.json", ("{\"a\":".repeat(10_000) + "1" + &"}".repeat(10_000)).into_bytes(), &[]),
        ("duplicate.json", DENSE.replace("\"units\": 3", "\"units\": 3, \"units\": 4").into_bytes(), &["units"]),
        ("nan.json", DENSE.replace("\"units\": 3", "\"units\": NaN").into_bytes(), &["units", "\"d\""]),
        ("negative.json", DENSE.replace("\"units\": 3", "\"units\": -3").into_bytes(), &["units", "-3"]),
        ("huge.json", DENSE.replace("[null, 4]", "[null, 1099511627776]").into_bytes(), &[]),
        ("units.json", DENSE.replace("\"units\": 3", "\"units\": 1099511627776").into_bytes(), &[]),
        ("unknown-key.json", DENSE.replace("\"use_bias\"", "\"use_bais\"").into_bytes(), &["use_bais", "use_bias"]),
        ("unknown-layer.json", DENSE.replace("\"Dense\"", "\"Dence\"").into_bytes(), &["Dence", "Dense"]),
        ("many.json", many.into_bytes(), &["Nonsense0", "more"]),
        ("cycle.json", cycle.as_bytes().to_vec(), &["cycle"]),
        ("lambda.json", DENSE.replace("\"Dense\"", "\"Lambda\"").into_bytes(), &["\"d\""]),
    ];
    for (name, bytes, expected) in &files {
        let file = folder.path().join(name);
        std::fs::write(&file, bytes).unwrap();
        let out = folder.path().join("out");
        for words in [
            vec!["plan", file.to_str().unwrap(), "--hardware", "cpu"],
            vec!["compile", file.to_str().unwrap(), "-o", out.to_str().unwrap(), "--hardware", "cpu"],
        ] {
            let said = fails(1, &words);
            assert!(said.contains(name), "{name}: {said}");
            assert!(expected.iter().all(|e| said.contains(e)), "{name} lacks {expected:?}: {said}");
            assert!(!out.exists(), "{name}: something is written");
        }
    }
    let said = fails(1, &["plan", "absent.keras", "--hardware", "cpu"]);
    assert!(said.contains("absent.keras"), "{said}");
}

#[test]
fn inputs_that_do_not_fit_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, arrays: &[(&str, Array)]| -> PathBuf {
        let path = folder.path().join(name);
        write_npz(&path, arrays.iter().map(|(n, a)| (*n, a))).unwrap();
        path
    };
    let floats = |shape: &[usize]| {
        let n: usize = shape.iter().product();
        let data: Vec<u8> = (0..n).flat_map(|i| (i as f32).to_le_bytes()).collect();
        Array::from_bytes(intwain::DType::F32, shape.to_vec(), &data).unwrap()
    };
    let cases = [
        ("missing.npz", vec![("user", floats(&[3, 32]))], vec!["user", "item"]),
        ("names.npz", vec![("a", floats(&[3, 32])), ("b", floats(&[3, 48])), ("c", floats(&[1]))], vec!["item", "in0"]),
        ("shape.npz", vec![("user", floats(&[3, 31])), ("item", floats(&[3, 48]))], vec!["user", "31", "32"]),
        ("rows.npz", vec![("user", floats(&[3, 32])), ("item", floats(&[4, 48]))], vec!["`item`", "4 rows", "has 3"]),
    ];
    let out = folder.path().join("out.npz");
    for (name, arrays, expected) in cases {
        let file = write(name, &arrays);
        let model = example("two_tower.json");
        let words = ["run", &model, "--inputs", file.to_str().unwrap(), "--outputs", out.to_str().unwrap(), "-q"];
        let said = fails(1, &words);
        assert!(expected.iter().all(|e| said.contains(e)), "{name} lacks {expected:?}: {said}");
        assert!(!out.exists());
    }
    let model = example("two_tower.json");
    let said = fails(1, &["run", &model, "--inputs", &model, "--outputs", out.to_str().unwrap(), "-q"]);
    assert!(said.contains("two_tower.json"), "{said}");
    let said = fails(1, &["run", &model, "--inputs", &example("pairs.npz"), "--devices", "cuda:0,cuda:1"]);
    assert!(said.contains("cuda:0"), "{said}");
}

fn array(shape: &[usize], value: f32) -> Array {
    let data: Vec<u8> = (0..shape.iter().product::<usize>()).flat_map(|_| value.to_le_bytes()).collect();
    Array::from_bytes(intwain::DType::F32, shape.to_vec(), &data).unwrap()
}

#[test]
fn arrays_that_no_input_takes_are_noted() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("in.npz");
    let all = [("in0", array(&[2, 32], 0.5)), ("in1", array(&[2, 48], 0.5)), ("label", array(&[2], 1.0))];
    write_npz(&path, all.iter().map(|(n, a)| (*n, a))).unwrap();
    let words = ["run", &example("two_tower.json"), "--inputs", path.to_str().unwrap(), "--devices", "cpu:0"];
    let out = intwain(&words);
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(out.status.success() && said.contains("no input takes label"), "{said}");
    assert!(String::from_utf8(out.stdout).unwrap().starts_with("click: f32[2, 1]"));
    let quiet = intwain(&[&words[..], &["-q"]].concat());
    assert!(quiet.status.success() && quiet.stderr.is_empty());
}

#[test]
fn gradients_have_their_names_and_want_every_cotangent() {
    let folder = tempfile::tempdir().unwrap();
    let (cotangents, out) = (folder.path().join("c.npz"), folder.path().join("g.npz"));
    let model = example("two_tower.json");
    let inputs = example("pairs.npz");
    let [c, o] = [&cotangents, &out].map(|p| p.to_str().unwrap());
    let words = ["grad", &model, "--inputs", &inputs, "--cotangents", c, "--outputs", o, "-q"];
    let write = |arrays: &[(&str, Array)]| write_npz(&cotangents, arrays.iter().map(|(n, a)| (*n, a))).unwrap();

    write(&[("cot0", array(&[5, 1], 1.0))]);
    let said = fails(1, &words);
    assert!(said.contains("cot1") && !out.exists(), "{said}");
    write(&[("cot0", array(&[5, 1], 1.0)), ("cot1", array(&[4, 5], 1.0))]);
    let said = fails(1, &words);
    assert!(said.contains("cot1") && !out.exists(), "{said}");

    write(&[("cot0", array(&[5, 1], 1.0)), ("cot1", array(&[5, 5], 0.0))]);
    let [one, two] = [["cpu:0", "auto"], ["cpu:0,cpu:1", "data"]].map(|[devices, split]| {
        ok(&[&words[..], &["--devices", devices, "--split", split]].concat());
        arrays(&out)
    });
    let names: Vec<&str> = one.iter().map(|(n, _)| n.as_str()).collect();
    assert_eq!(names, ["gin0", "gin1", "gw0", "gw1", "gw2", "gw3", "gw4", "gw5", "gw6", "gw7", "gw8", "gw9"]);
    // Output 0 is linear in its bias: the gradient is the sum of five ones; output 1 takes no part.
    let numbers =
        |a: &Array| a.bytes().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect::<Vec<_>>();
    let bias = one.iter().find(|(_, a)| a.shape() == [1]).unwrap();
    let other = one.iter().find(|(_, a)| a.shape() == [5]).unwrap();
    assert!(numbers(&other.1).iter().all(|x| *x == 0.0), "{}", other.0);
    assert_eq!(numbers(&bias.1), [5.0], "{}", bias.0);
    for ((name, a), (_, b)) in one.iter().zip(&two) {
        for (x, y) in numbers(a).iter().zip(numbers(b)) {
            assert!((x - y).abs() <= 1e-5, "{name}: {x} against {y}");
        }
    }
}
