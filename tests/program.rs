//! Program directories for GPUs: what they hold is what runs, on emulated GPUs and on CPUs.

#![allow(clippy::unwrap_used, reason = "a test fails where something is missing")]

mod support;

use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use support::{Array, intwain, read_npz, repository, said};

const GPUS: &str = "2xa100-nvlink";
const PTX: &str = "ptx:0,ptx:1";

fn example(name: &str) -> String {
    repository("examples").join(name).display().to_string()
}

fn fixture(name: &str) -> String {
    repository("tests/fixtures/keras").join(name).display().to_string()
}

/// What the command prints; it must succeed.
fn ok(words: &[&str]) -> String {
    let out = intwain(words);
    assert!(out.status.success(), "{words:?}: {}", said(&out.stderr));
    said(&out.stdout)
}

/// What the command says when it fails for its input.
fn refused(words: &[&str]) -> String {
    let out = intwain(words);
    let said = said(&out.stderr);
    assert_eq!(out.status.code(), Some(1), "{words:?}: {said}");
    said
}

/// A directory with a program in it.
struct Program {
    folder: tempfile::TempDir,
    path: String,
}

impl Program {
    fn compile(model: &str, words: &[&str]) -> Program {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("p").display().to_string();
        ok(&[&["compile", model, "-o", &path, "-q"], words].concat());
        Program { folder, path }
    }

    fn two_tower(split: &str, batch: &str) -> Program {
        Program::compile(&example("two_tower.json"), &["--hardware", GPUS, "--split", split, "--batch", batch])
    }

    fn file(&self, name: &str) -> PathBuf {
        Path::new(&self.path).join(name)
    }

    fn text(&self, name: &str) -> String {
        std::fs::read_to_string(self.file(name)).unwrap()
    }

    fn manifest(&self) -> Value {
        serde_json::from_str(&self.text("program.json")).unwrap()
    }

    fn change(&self, name: &str, change: impl Fn(&str) -> String) {
        let (old, file) = (self.text(name), self.file(name));
        let new = change(&old);
        assert_ne!(old, new, "nothing changes in {name}");
        std::fs::write(file, new).unwrap();
    }

    fn run(&self, words: &[&str]) -> Vec<Array> {
        outputs(self.folder.path(), &self.path, &example("pairs.npz"), words)
    }

    /// Why it does not run on emulated GPUs.
    fn fails(&self) -> String {
        refused(&["run", &self.path, "--inputs", &example("pairs.npz"), "--devices", PTX])
    }
}

fn outputs(folder: &Path, model: &str, inputs: &str, words: &[&str]) -> Vec<Array> {
    let out = folder.join("out.npz").display().to_string();
    ok(&[&["run", model, "--inputs", inputs, "--outputs", &out, "-q"], words].concat());
    read_npz(Path::new(&out))
}

fn near(found: &[Array], want: &[Array]) {
    assert_eq!(found.len(), want.len());
    for (f, w) in found.iter().zip(want) {
        assert_eq!((&f.name, &f.shape), (&w.name, &w.shape));
        let scale = w.floats().iter().fold(1e-3f32, |m, x| m.max(x.abs()));
        let worst = f.floats().iter().zip(w.floats()).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
        assert!(worst <= 2e-6 * scale, "{}: differs by {worst}", f.name);
    }
}

#[test]
fn a_program_for_gpus_runs_everywhere() {
    let model = example("two_tower.json");
    let folder = tempfile::tempdir().unwrap();
    let whole = outputs(folder.path(), &model, &example("pairs.npz"), &["--devices", "cpu:0"]);
    for (split, batch) in [("data", "4"), ("pipeline", "2,1"), ("tensor", "3,2"), ("data", "8")] {
        let p = Program::two_tower(split, batch);
        near(&p.run(&["--devices", PTX]), &whole);
        near(&p.run(&["--devices", "cpu:0,cpu:1"]), &whole);
        near(&p.run(&[]), &whole);
        assert!(ok(&["inspect", &p.path]).contains(split));
        assert!(ok(&["verify", &p.path]).ends_with("verified\n"));
        assert!(ok(&["verify", &p.path, "--devices", PTX]).ends_with("verified\n"));
    }
    let one = Program::two_tower("one", "5");
    near(&one.run(&["--devices", "ptx:0"]), &whole);
    assert!(!one.file("device1.ptx").exists());
    assert!(one.fails().contains("1 device(s)"));
}

/// Models of Keras 2 and 3 as programs, each with its own weights in place of the program's, give what Keras gave.
#[test]
fn keras_models_give_what_keras_gave() {
    let folder = tempfile::tempdir().unwrap();
    for (name, split) in [("conv", "data"), ("nest", "pipeline"), ("ops", "tensor"), ("rnn", "tensor")] {
        let model = fixture(&format!("{name}.h5"));
        let p = Program::compile(&model, &["--hardware", GPUS, "--split", split, "--batch", "4"]);
        let inputs = fixture(&format!("{name}_in.npz"));
        let want = read_npz(Path::new(&fixture(&format!("{name}_out.npz"))));
        let found = outputs(folder.path(), &p.path, &inputs, &["--devices", PTX, "--weights", &model]);
        for (f, w) in found.iter().zip(&want) {
            assert_eq!(f.shape, w.shape, "{name}");
            let scale = w.floats().iter().fold(1e-3f32, |m, x| m.max(x.abs()));
            let worst = f.floats().iter().zip(w.floats()).fold(0f32, |m, (a, b)| m.max((a - b).abs()));
            assert!(worst <= 1e-5 * scale, "{name} {}: differs by {worst}", f.name);
        }
    }
}

/// Every launch of a program's devices, loops included.
fn launches<'m>(devices: &'m [Value], found: &mut Vec<(usize, &'m Value)>) {
    for device in devices {
        let number = device["device"].as_u64().unwrap() as usize;
        for kernel in device["kernels"].as_array().unwrap() {
            let all = kernel["launches"].as_array().map_or(&[][..], |l| &l[..]);
            found.extend(all.iter().map(|l| (number, l)));
        }
        for command in ["prepare", "step"].iter().flat_map(|list| device[list].as_array().unwrap()) {
            let launch = &command["exchange"]["launch"];
            found.extend((!launch.is_null()).then_some((number, launch)));
            found.extend(command["launches"].as_array().into_iter().flatten().map(|l| (number, l)));
            if !command["body"].is_null() {
                launches(std::slice::from_ref(&command["body"]), found);
            }
        }
    }
}

/// The kernels in the PTX of each device are those that `program.json` launches, of all variants, and no other.
#[test]
fn modules_hold_what_is_launched() {
    for split in ["data", "tensor", "pipeline"] {
        let p = Program::two_tower(split, "6,3");
        let manifest = p.manifest();
        let mut found = Vec::new();
        for v in manifest["variants"].as_array().unwrap() {
            launches(v["devices"].as_array().unwrap(), &mut found);
        }
        for d in 0..2 {
            let text = p.text(&format!("device{d}.ptx"));
            let entry = |l: &str| l.strip_prefix(".visible .entry ").map(|n| n.trim_end_matches('(').to_string());
            let there: BTreeSet<String> = text.lines().filter_map(entry).collect();
            let launched = found.iter().filter(|(n, _)| *n == d);
            let launched: BTreeSet<String> = launched.map(|(_, l)| l["kernel"].as_str().unwrap().to_string()).collect();
            assert_eq!(there, launched, "{split} device {d}");
            let listed = manifest["modules"][d]["kernels"].as_array().unwrap();
            assert_eq!(listed.len(), there.len(), "{split} device {d}");
        }
        for (_, launch) in &found {
            for arg in launch["args"].as_array().unwrap() {
                let (what, number) = arg.as_str().unwrap().split_once(' ').unwrap();
                assert!(["operand", "result", "workspace", "mailbox", "peer"].contains(&what), "{arg}");
                number.parse::<u64>().unwrap();
            }
        }
    }
}

/// Both ends of a channel have as many blocks, and mailboxes have room for flags and two messages.
#[test]
fn exchanges_come_in_pairs() {
    let p = Program::two_tower("tensor", "6");
    let manifest = p.manifest();
    let mut ends: BTreeMap<u64, Vec<Value>> = BTreeMap::new();
    for device in manifest["variants"][0]["devices"].as_array().unwrap() {
        for command in device["step"].as_array().unwrap().iter().filter(|c| !c["exchange"].is_null()) {
            let exchange = &command["exchange"];
            ends.entry(exchange["channel"].as_u64().unwrap()).or_default().push(exchange.clone());
        }
    }
    assert!(!ends.is_empty());
    for (channel, both) in ends {
        assert_eq!(both.len(), 2, "channel {channel}");
        assert_eq!(both[0]["launch"]["grid"], both[1]["launch"]["grid"]);
        assert!(both.iter().all(|e| e["mailbox_bytes"].as_u64().is_some_and(|b| b >= 384)));
    }
}

#[test]
fn compiling_for_gpus_twice_gives_the_same_bytes() {
    let [a, b] = [0, 1].map(|_| Program::two_tower("tensor", "8,3"));
    for file in std::fs::read_dir(&a.path).unwrap().map(|e| e.unwrap().file_name()) {
        let read = |p: &Program| std::fs::read(Path::new(&p.path).join(&file)).unwrap();
        assert!(read(&a) == read(&b), "{file:?} differs");
    }
}

fn sha256(text: &str) -> String {
    Sha256::digest(text).iter().map(|b| format!("{b:02x}")).collect()
}

#[test]
fn changed_code_is_refused() {
    let shut = |t: &str| t.replacen("add.", "sub.", 1);
    let p = Program::two_tower("tensor", "4");
    p.change("device1.ptx", shut);
    assert!(p.fails().contains("hash"), "{}", p.fails());
    // Whoever changes the hash too is told that the graphs give other code.
    let (before, after) =
        (sha256(&Program::two_tower("tensor", "4").text("device1.ptx")), sha256(&p.text("device1.ptx")));
    p.change("program.json", |t| t.replace(&before, &after));
    assert!(p.fails().contains("device1.ptx") && p.fails().contains("graphs give"), "{}", p.fails());

    let p = Program::two_tower("tensor", "4");
    p.change("program.json", |t| t.replacen("\"shared_bytes\": ", "\"shared_bytes\": 6", 1));
    assert!(p.fails().contains("commands"), "{}", p.fails());
    let p = Program::two_tower("tensor", "4");
    p.change("program.json", |t| t.replacen("\"operand 0\"", "\"operand 7\"", 1));
    assert!(p.fails().contains("commands"), "{}", p.fails());
}

#[test]
fn programs_of_another_time_or_machine_are_refused() {
    let p = Program::two_tower("data", "4");
    p.change("program.json", |t| t.replacen("\"format\": 2", "\"format\": 1", 1));
    assert!(p.fails().contains("format 1"), "{}", p.fails());
    let p = Program::two_tower("data", "4");
    p.change("program.json", |t| t.replacen("\"name\": \"2xa100-nvlink\"", "\"name\": \"2xh100-nvlink\"", 1));
    assert!(p.fails().contains("planned for another"), "{}", p.fails());
    let cpu = Program::compile(&example("two_tower.json"), &["--hardware", "cpu", "--split", "data", "--batch", "4"]);
    assert!(cpu.fails().contains("no PTX"), "{}", cpu.fails());
    assert!(refused(&["verify", &cpu.path, "--devices", PTX]).contains("no PTX"));
}

/// Another version of the compiler is warned of; its code runs only as the graphs say, and the graphs always run.
#[test]
fn programs_of_other_compilers_run_with_a_warning() {
    let p = Program::two_tower("data", "4");
    let version = p.manifest()["compiler"].as_str().unwrap().to_string();
    p.change("program.json", |t| t.replacen(&format!("\"compiler\": \"{version}\""), "\"compiler\": \"0.0.0\"", 1));
    let out = intwain(["run", &p.path, "--inputs", &example("pairs.npz"), "--devices", PTX]);
    assert!(out.status.success() && said(&out.stderr).contains("0.0.0"), "{}", said(&out.stderr));
    p.change("program.json", |t| t.replacen("\"shared_bytes\": ", "\"shared_bytes\": 6", 1));
    assert!(p.fails().contains("0.0.0"), "{}", p.fails());
    assert!(!p.run(&["--devices", "cpu:0,cpu:1"]).is_empty());

    // What its code does wrong is no defect of this version.
    let p = Program::two_tower("data", "4");
    let before = sha256(&p.text("device0.ptx"));
    for file in ["device0.ptx", "device1.ptx"] {
        p.change(file, |t| t.replacen("ld.global", "ld.nowhere", 1));
    }
    let after = sha256(&p.text("device0.ptx"));
    p.change("program.json", |t| t.replace(&before, &after));
    p.change("program.json", |t| t.replacen(&format!("\"compiler\": \"{version}\""), "\"compiler\": \"0.0.0\"", 1));
    assert!(p.fails().contains("made by intwain 0.0.0") && p.fails().contains("nowhere"), "{}", p.fails());
}

/// What a program was compiled for cannot be asked for again, and it runs on as many devices.
#[test]
fn what_was_decided_is_not_asked_again() {
    let p = Program::two_tower("data", "4");
    let inputs = example("pairs.npz");
    for devices in ["ptx:0", "cpu:0"] {
        for words in [&["verify", &p.path][..], &["run", &p.path, "--inputs", &inputs]] {
            let said = refused(&[words, &["--devices", devices]].concat());
            assert!(said.contains("2 device(s)") && said.contains(devices), "{said}");
        }
    }
    for flag in [["--split", "data"], ["--batch", "9"], ["--dtype", "float64"], ["--hardware", GPUS]] {
        for words in [&["verify", &p.path][..], &["run", &p.path, "--inputs", &inputs], &["inspect", &p.path]] {
            let said = refused(&[words, &flag].concat());
            assert!(said.contains(flag[0]), "{said}");
        }
    }
    assert!(refused(&["verify", &p.path, "--weights", &fixture("conv.h5")]).contains("--weights"));
    assert!(refused(&["plan", &p.path, "--hardware", GPUS]).contains("is a directory"));
    let early = ["--effects", "early"];
    assert!(refused(&[&["run", &p.path, "--inputs", &inputs][..], &early].concat()).contains("ptx"));
    ok(&[&["verify", &p.path, "--devices", PTX][..], &early].concat());
}

/// Weights of every format take the place of a program's.
#[test]
fn weights_are_replaced() {
    let p = Program::compile(&fixture("nested3.json"), &["--hardware", GPUS, "--split", "tensor", "--batch", "4"]);
    let folder = tempfile::tempdir().unwrap();
    let model = fixture("nested3.keras");
    let inputs = folder.path().join("in.npz");
    inputs_of(&p.manifest(), 5, &inputs);
    let inputs = inputs.display().to_string();
    let want = outputs(folder.path(), &model, &inputs, &["--devices", "cpu:0"]);
    let own = outputs(folder.path(), &p.path, &inputs, &["--devices", PTX]);
    assert!(own.iter().zip(&want).any(|(a, b)| a.floats() != b.floats()), "the model has other weights");
    for file in ["nested3.weights.h5", "nested3.h5", "nested3.keras", "nested3_paths.npz"] {
        near(&outputs(folder.path(), &p.path, &inputs, &["--devices", PTX, "--weights", &fixture(file)]), &want);
    }
    let other = Program::compile(&model, &["--hardware", "cpu", "--batch", "4"]);
    let stored = other.file("weights.safetensors").display().to_string();
    near(&outputs(folder.path(), &p.path, &inputs, &["--weights", &stored]), &want);
    let wrong = fixture("conv.h5");
    let said = refused(&["run", &p.path, "--inputs", &inputs, "--weights", &wrong]);
    assert!(said.contains("conv.h5"), "{said}");
}

/// Numbers for each input of a program.
fn inputs_of(manifest: &Value, rows: usize, file: &Path) {
    let variant = &manifest["variants"][0];
    let taken = variant["devices"][0]["inputs"].as_object().unwrap();
    let mut arrays = Vec::new();
    for port in variant["params"].as_array().unwrap() {
        let name = port["name"].as_str().unwrap();
        if !taken.contains_key(name) {
            continue;
        }
        let ty = port["type"].as_str().unwrap();
        let dims = ty.trim_start_matches("f32[").trim_end_matches(']');
        let mut shape: Vec<usize> = dims.split(", ").map(|d| d.parse().unwrap()).collect();
        shape[0] = rows;
        let count = shape.iter().product::<usize>();
        arrays.push(Array::f32(name, &shape, (0..count).map(|i| (i % 13) as f32 / 8.0 - 0.75).collect()));
    }
    support::write_npz(file, &arrays);
}
