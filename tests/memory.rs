//! How much memory weights take: one copy for all that only read them, and little more while they are read.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use intwain::{DeviceKind, Devices, Model, ModelOptions, Session, SessionOptions, Strategy, Tensor};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use support::{Array, said, write_npz};

/// A chain of layers without bias on inputs of `width` numbers.
fn chain(folder: &Path, width: usize, layers: usize) -> PathBuf {
    let dense = |i: usize| {
        let input = if i == 0 { format!(r#", "batch_input_shape": [null, {width}]"#) } else { String::new() };
        format!(
            r#"{{"class_name": "Dense", "config": {{"name": "d{i}", "units": {width}, "use_bias": false{input}}}}}"#
        )
    };
    let layers: Vec<String> = (0..layers).map(dense).collect();
    let config = format!(r#"{{"name": "m", "layers": [{}]}}"#, layers.join(", "));
    let file = folder.join("m.json");
    let text = format!(r#"{{"class_name": "Sequential", "keras_version": "2.9.0", "config": {config}}}"#);
    std::fs::write(&file, text).unwrap();
    file
}

#[test]
fn devices_and_programs_share_the_weights_that_they_read() {
    let folder = tempfile::tempdir().unwrap();
    let model = Model::open(&chain(folder.path(), 64, 3), ModelOptions::default()).unwrap();
    let weights = 3 * 64 * 64 * 4;
    let inputs = |rows: usize| {
        let values: Vec<f32> = (0..rows * 64).map(|i| (i % 13) as f32 / 8.0 - 0.75).collect();
        BTreeMap::from([("d0_input".to_string(), Tensor::from_f32([rows, 64], &values))])
    };
    let run = |devices: Devices, split: Strategy| {
        let options = SessionOptions { devices, split: Some(split), batch: Some(4), ..SessionOptions::default() };
        let mut session = Session::new(&model, options).unwrap();
        session.run(&inputs(4)).unwrap();
        let first = session.memory();
        let out = session.run(&inputs(6)).unwrap().remove(0).1;
        assert_eq!(session.programs().count(), 2);
        (first, session.memory(), out)
    };
    let (_, one, expected) = run(Devices::one(DeviceKind::Cpu), Strategy::One);
    assert_eq!(one.shared, 0);
    assert!((weights..2 * weights).contains(&one.devices[0]), "{one:?}");
    let (first, both, out) = run(Devices::two(DeviceKind::Cpu), Strategy::Data);
    assert_eq!(out.data, expected.data);
    // One copy, in the form that kernels want, whatever the number of devices and programs.
    assert_eq!((first.shared, both.shared), (weights, weights));
    assert!(both.devices.iter().all(|own| *own < weights), "{both:?}");
    let (_, split, _) = run(Devices::two(DeviceKind::Cpu), Strategy::Tensor);
    assert!(split.shared + split.devices.iter().sum::<usize>() < 2 * weights, "{split:?}");
}

/// The most memory that a command had which is no file's, as far as looking often shows.
#[cfg(target_os = "linux")]
fn peak(words: &[&str]) -> usize {
    let mut child = Command::new(env!("CARGO_BIN_EXE_intwain")).args(words).stderr(Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut most = 0;
    while child.try_wait().unwrap().is_none() {
        let text = std::fs::read_to_string(&status).unwrap_or_default();
        // Until it is the command, it is a copy of this process.
        let ours = text.lines().next().is_some_and(|name| name.contains("intwain"));
        let line = text.lines().filter(|_| ours).find_map(|line| line.strip_prefix("RssAnon:"));
        let now = line.and_then(|l| l.trim().trim_end_matches(" kB").parse::<usize>().ok()).unwrap_or(0);
        most = most.max(now * 1024);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let result = child.wait_with_output().unwrap();
    assert!(result.status.success(), "{}", said(&result.stderr));
    most
}

#[cfg(target_os = "linux")]
#[test]
fn reading_weights_takes_their_size_and_the_largest_tensor_at_most() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (width, layers) = (2048, 6);
    chain(folder.path(), width, layers);
    let largest = width * width * 4;
    let tensor = vec![0x3au8; largest];
    let views = (0..layers).map(|i| {
        let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![width, width], &tensor);
        (format!("d{i}/kernel"), view.unwrap())
    });
    std::fs::write(path("w.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    let small = tempfile::tempdir().unwrap();
    let base = chain(small.path(), 16, layers).display().to_string();
    for (devices, split) in [("cpu:0", "one"), ("cpu:0,cpu:1", "data"), ("cpu:0,cpu:1", "tensor")] {
        let common = ["--devices", devices, "--split", split, "--outputs"];
        let run = |model: &str, weights: Option<&str>, width: usize| {
            write_npz(Path::new(&path("in.npz")), &[Array::f32("x0", &[2, width], vec![0.5; 2 * width])]);
            let (inputs, out) = (path("in.npz"), path("out.npz"));
            let mut words = vec!["run", model, "--inputs", &inputs, "-q"];
            words.extend(common);
            words.push(&out);
            if let Some(weights) = weights {
                words.extend(["--weights", weights]);
            }
            peak(&words)
        };
        // What the compiler takes for such a model without large weights.
        let alone = run(&base, None, 16);
        let taken = run(&path("m.json"), Some(&path("w.safetensors")), width).saturating_sub(alone);
        // What is scratch for products of this width is no weight.
        let allowed = (layers + 1) * largest + (2 << 20);
        assert!(taken <= allowed, "{devices} {split}: {taken} bytes for {allowed}");
        assert!(taken >= layers * largest / 2, "{devices} {split}: {taken} bytes were seen");
    }
}
