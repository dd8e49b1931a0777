//! GPUs through NVIDIA's driver: absent, and as the emulator behind the driver's interface.

#![allow(clippy::unwrap_used, reason = "a test fails where something is missing")]

use intwain::arrays::{Array, write_npz};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, Instant};

fn example(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name).display().to_string()
}

/// Whether the GPUs reach each other's memory.
#[derive(Clone, Copy, Debug)]
enum Peers {
    Reached,
    Apart,
}

fn intwain(words: &[&str], libraries: Option<(&Path, Peers)>) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_intwain"));
    command.args(words).env_remove("LD_LIBRARY_PATH");
    if let Some((folder, peers)) = libraries {
        command.env("LD_LIBRARY_PATH", folder);
        if let Peers::Apart = peers {
            command.env("MOCK_NO_PEERS", "1");
        }
    }
    command.output().unwrap()
}

/// A folder with the driver of `tests/cuda` under the name that NVIDIA's has.
fn driver() -> tempfile::TempDir {
    let built: PathBuf = std::env::current_exe().unwrap().with_file_name("libcuda.so");
    assert!(built.is_file(), "{} is built with the tests", built.display());
    let folder = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(built, folder.path().join("libcuda.so")).unwrap();
    folder
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn without_a_driver_devices_says_why_and_cuda_devices_are_refused() {
    if intwain::cuda::devices() != Err(intwain::cuda::NoCuda::NoLibrary) {
        return;
    }
    let listed = intwain(&["devices"], None);
    assert!(listed.status.success());
    let listed = text(&listed.stdout);
    let lines: Vec<&str> = listed.lines().filter(|l| l.contains("cuda")).collect();
    assert!(matches!(lines[..], [line] if line.contains("libcuda.so")), "{listed}");
    let inputs = example("pairs.npz");
    let run = intwain(&["run", &example("two_tower.json"), "--inputs", &inputs, "--devices", "cuda:0"], None);
    assert_eq!(run.status.code(), Some(1));
    let said = text(&run.stderr);
    assert!(said.contains("cuda:0") && said.contains("driver is not installed") && said.contains("ptx:0"), "{said}");
}

#[test]
fn gpus_are_listed_with_their_links() {
    let folder = driver();
    let listed = intwain(&["devices"], Some((folder.path(), Peers::Reached)));
    assert!(listed.status.success(), "{}", text(&listed.stderr));
    let listed = text(&listed.stdout);
    for part in ["cuda:0  PTX emulator, sm_80", "cuda:1", "cuda:0 → cuda:1  peer access", "cuda:1 → cuda:0"] {
        assert!(listed.contains(part), "{listed}");
    }
}

#[test]
fn gpus_that_do_not_reach_each_other_are_told() {
    let folder = driver();
    let listed = intwain(&["devices"], Some((folder.path(), Peers::Apart)));
    assert!(text(&listed.stdout).contains("cuda:0 → cuda:1  through the host"), "{}", text(&listed.stdout));
}

#[test]
fn gpus_of_the_machine_are_planned_for_and_used_where_nothing_else_is_said() {
    let (folder, out) = (driver(), tempfile::tempdir().unwrap());
    let here = Some((folder.path(), Peers::Reached));
    let model = example("two_tower.json");
    let planned = intwain(&["plan", &model], here);
    assert!(text(&planned.stdout).contains("on this (cuda0, cuda1)"), "{}", text(&planned.stdout));
    let dir = out.path().join("program").display().to_string();
    let compiled = intwain(&["compile", &model, "--batch", "8", "--split", "data", "-o", &dir], here);
    assert!(compiled.status.success(), "{}", text(&compiled.stderr));
    let ran = |words: &[&str]| {
        let run = intwain(&[&["run", dir.as_str(), "--inputs", &example("pairs.npz")], words].concat(), here);
        assert!(run.status.success(), "{}", text(&run.stderr));
        text(&run.stdout)
    };
    assert_eq!(ran(&[]), ran(&["--devices", "ptx:0,ptx:1"]));
}

#[test]
fn programs_give_the_same_through_the_driver_as_on_emulated_devices() {
    let (libraries, folder) = (driver(), tempfile::tempdir().unwrap());
    let run = |devices: &str, split: &str, peers: Peers| -> Vec<u8> {
        let out = folder.path().join("out.npz");
        let (inputs, outputs) = (example("pairs.npz"), out.display().to_string());
        let model = example("two_tower.json");
        let words =
            ["run", &model, "--inputs", &inputs, "--outputs", &outputs, "--devices", devices, "--split", split, "-q"];
        let ran = intwain(&words, Some((libraries.path(), peers)));
        assert!(ran.status.success(), "{devices} {split}: {}", text(&ran.stderr));
        std::fs::read(out).unwrap()
    };
    assert_eq!(run("cuda:0", "auto", Peers::Reached), run("ptx:0", "auto", Peers::Reached));
    for split in ["data", "tensor"] {
        let emulated = run("ptx:0,ptx:1", split, Peers::Reached);
        for (devices, peers) in
            [("cuda:0,cuda:1", Peers::Reached), ("cuda:0,cuda:0", Peers::Reached), ("cuda:0,cuda:1", Peers::Apart)]
        {
            assert_eq!(run(devices, split, peers), emulated, "{devices} {split} {peers:?}");
        }
    }
}

/// Gradients that share messages, on both sorts of memory.
#[test]
fn gradients_are_the_same_through_the_driver_as_on_emulated_devices() {
    let (libraries, folder) = (driver(), tempfile::tempdir().unwrap());
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (cotangents, outputs) = (path("cotangents.npz"), path("gradients.npz"));
    let ones = |shape: &[usize]| {
        let data: Vec<u8> = (0..shape.iter().product::<usize>()).flat_map(|_| 1.0f32.to_le_bytes()).collect();
        Array::from_bytes(intwain::DType::F32, shape.to_vec(), &data).unwrap()
    };
    let arrays = [("cot0", ones(&[5, 1])), ("cot1", ones(&[5, 5]))];
    write_npz(Path::new(&cotangents), arrays.iter().map(|(name, array)| (*name, array))).unwrap();
    let (inputs, model) = (example("pairs.npz"), example("two_tower.json"));
    let grad = |devices: &str, peers: Peers| -> Vec<u8> {
        let files = ["grad", &model, "--inputs", &inputs, "--cotangents", &cotangents, "--outputs", &outputs];
        let words = [&files[..], &["--devices", devices, "--split", "data", "-q"]].concat();
        let ran = intwain(&words, Some((libraries.path(), peers)));
        assert!(ran.status.success(), "{devices}: {}", text(&ran.stderr));
        std::fs::read(&outputs).unwrap()
    };
    let emulated = grad("ptx:0,ptx:1", Peers::Reached);
    for (devices, peers) in [("cuda:0,cuda:1", Peers::Reached), ("cuda:0,cuda:1", Peers::Apart)] {
        assert_eq!(grad(devices, peers), emulated, "{devices} {peers:?}");
    }
}

/// Whichever launch fails, on whichever device: the other does not wait for it.
#[test]
fn a_gpu_that_fails_stops_the_other() {
    let libraries = driver();
    let (inputs, model) = (example("pairs.npz"), example("two_tower.json"));
    let run = |fails: usize| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_intwain"));
        command.args(["run", &model, "--inputs", &inputs, "--devices", "cuda:0,cuda:1", "--split", "tensor"]);
        command.env("LD_LIBRARY_PATH", libraries.path()).env("MOCK_FAILS", fails.to_string());
        command.output().unwrap()
    };
    let start = Instant::now();
    let mut launches = 0;
    loop {
        let ran = run(launches);
        if ran.status.success() {
            break;
        }
        assert_eq!(ran.status.code(), Some(70));
        // A kernel that is released reads a message that never came, which the emulator may report first.
        let said = text(&ran.stderr);
        let known = said.contains("on purpose") || said.contains("uninitialised global memory");
        assert!(said.contains("layer `") && known, "{said}");
        launches += 1;
    }
    assert!(launches > 4, "only {launches} launches");
    assert!(start.elapsed() < Duration::from_secs(60), "a device waited for one that had failed");
}
