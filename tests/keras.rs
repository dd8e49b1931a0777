//! Small Keras models against the values Keras computed for them (`tests/goldens/models`, made by `tools/make_model_goldens.py`): whole,
//! and cut across two devices every way there is.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::path::Path;
use support::{Array, intwain, read_npz, repository, said, write_npz};

struct Golden {
    model: String,
    arrays: BTreeMap<String, Array>,
    folder: tempfile::TempDir,
}

impl Golden {
    fn load(name: &str) -> Golden {
        let path = |end: &str| repository(&format!("tests/goldens/models/{name}.{end}"));
        let arrays = read_npz(&path("npz")).into_iter().map(|a| (a.name.clone(), a)).collect();
        Golden { model: path("keras").display().to_string(), arrays, folder: tempfile::tempdir().unwrap() }
    }

    fn starting_with(&self, prefix: &str) -> Vec<Array> {
        let numbered = |name: &str| name.strip_prefix(prefix).and_then(|n| n.parse::<usize>().ok());
        let mut found: Vec<_> = self.arrays.values().filter_map(|a| Some((numbered(&a.name)?, a.clone()))).collect();
        found.sort_by_key(|(n, _)| *n);
        found.into_iter().map(|(_, a)| a).collect()
    }

    /// Runs a verb of the command on the first `rows` rows and returns what it wrote.
    fn call(&self, verb: &str, rows: usize, words: &[&str]) -> Vec<Array> {
        let file = |name: &str| self.folder.path().join(name);
        let first = |arrays: Vec<Array>| arrays.iter().map(|a| a.rows(rows)).collect::<Vec<_>>();
        write_npz(&file("in.npz"), &first(self.starting_with("in")));
        write_npz(&file("cot.npz"), &first(self.starting_with("cot")));
        let text = |path: &Path| path.display().to_string();
        let (inputs, cotangents, out) = (text(&file("in.npz")), text(&file("cot.npz")), text(&file("out.npz")));
        let mut all = vec![verb, &self.model, "--inputs", &inputs, "--outputs", &out, "-q"];
        if verb == "grad" {
            all.extend(["--cotangents", &cotangents]);
        }
        all.extend(words);
        let result = intwain(&all);
        assert!(result.status.success(), "intwain {}\n{}", all.join(" "), said(&result.stderr));
        read_npz(&file("out.npz"))
    }

    fn run(&self, rows: usize, split: Option<&str>) -> Vec<Array> {
        match split {
            None => self.call("run", rows, &["--devices", "cpu:0"]),
            Some(split) => self.call("run", rows, &["--devices", "cpu:0,cpu:1", "--split", split]),
        }
    }
}

fn assert_close(what: &str, got: &Array, want: &Array, scale: f32, tolerance: f32) {
    assert_eq!(got.shape, want.shape, "{what} {}", want.name);
    for (i, (g, w)) in got.floats().iter().zip(want.floats()).enumerate() {
        let error = (g - w).abs() / scale;
        assert!(error <= tolerance, "{what} {}: element {i} is {g}, Keras has {w}", want.name);
    }
}

fn scale(array: &Array) -> f32 {
    array.floats().iter().fold(1e-30, |m, x| x.abs().max(m))
}

fn outputs_equal_keras(name: &str) {
    let golden = Golden::load(name);
    let want = golden.starting_with("out");
    for rows in [1, 3, 5] {
        let whole = golden.run(rows, None);
        for split in [None, Some("data"), Some("tensor"), Some("pipeline"), Some("auto")] {
            let got = golden.run(rows, split);
            let what = format!("{name}, {rows} rows, split {}", split.unwrap_or("none"));
            assert_eq!(got.len(), want.len(), "{what}");
            for ((got, want), whole) in got.iter().zip(&want).zip(&whole) {
                assert_close(&what, got, &want.rows(rows), scale(want), 1e-5);
                if matches!(split, Some("data" | "pipeline")) {
                    assert_eq!(got, whole, "{what}: not the bits of one device");
                }
            }
        }
    }
}

fn gradients_equal_keras(name: &str) {
    let golden = Golden::load(name);
    let mut want = golden.starting_with("gin");
    want.extend(golden.starting_with("gw"));
    // The gradient of a key's bias is zero but for rounding, since softmax does not see a shift.
    let floor = 1e-3 * want.iter().map(scale).fold(0.0, f32::max);
    for words in [
        &["--devices", "cpu:0"][..],
        &["--devices", "cpu:0,cpu:1", "--split", "data"],
        &["--devices", "cpu:0,cpu:1", "--split", "tensor"],
    ] {
        let got: BTreeMap<_, _> = golden.call("grad", 5, words).into_iter().map(|a| (a.name.clone(), a)).collect();
        assert_eq!(
            got.keys().collect::<Vec<_>>(),
            want.iter().map(|a| &a.name).collect::<std::collections::BTreeSet<_>>().into_iter().collect::<Vec<_>>()
        );
        for want in &want {
            assert_close(&format!("{name} grad {words:?}"), &got[&want.name], want, scale(want).max(floor), 1e-4);
        }
    }
}

macro_rules! models {
    ($($name:ident)+) => { $(mod $name {
        #[test]
        fn outputs() { super::outputs_equal_keras(stringify!($name)); }
        #[test]
        fn gradients() { super::gradients_equal_keras(stringify!($name)); }
    })+ };
}

models! { dense residual mobile upward decoder nested masked two_tower }
