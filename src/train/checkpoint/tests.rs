use super::*;
use intwain_ir::DType;

fn identity() -> Identity {
    let settings = [("batch", "32"), ("optimizer", "adam"), ("seed", "7")];
    Identity {
        model: "lenet".into(),
        architecture: "abc".into(),
        settings: settings.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect(),
    }
}

fn checkpoint(steps: u64) -> Checkpoint {
    // A NaN whose bits are its own.
    let odd = f32::from_bits(0x7fc0_1234);
    Checkpoint {
        identity: identity(),
        states: BTreeMap::from([
            ("dense/kernel".into(), Tensor::from_f32([2, 2], &[1.5, -0.0, odd, steps as f32])),
            ("adam/iteration".into(), Tensor::from_f64(DType::I64, [], &[steps as f64])),
            ("@step".into(), Tensor::from_f64(DType::U32, [], &[4_000_000_000.0])),
            ("half".into(), Tensor::from_f64(DType::BF16, [3], &[1.0, 2.0, 3.0])),
            ("none".into(), Tensor::from_f64(DType::F64, [0, 2], &[])),
        ]),
        series: BTreeMap::from([("loss".into(), vec![0.1, f64::INFINITY, 1e-310]), ("accuracy".into(), vec![])]),
        steps,
        position: Position { epoch: 3, batch: 1 << 40 },
    }
}

fn same(a: &Checkpoint, b: &Checkpoint) -> bool {
    // Bits, and not numbers: NaN is itself here.
    let bits = |c: &Checkpoint| {
        let states: Vec<_> = c.states.iter().map(|(n, t)| (n.clone(), t.ty.clone(), t.data.clone())).collect();
        let series: Vec<_> =
            c.series.iter().map(|(n, s)| (n.clone(), s.iter().map(|x| x.to_bits()).collect::<Vec<_>>())).collect();
        (c.identity.clone(), states, series, c.steps, c.position)
    };
    bits(a) == bits(b)
}

fn folder() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a folder");
    let path = dir.path().join("run/checkpoints");
    (dir, path)
}

fn all(folder: &Path) -> Vec<String> {
    let mut names = names(folder).expect("a folder");
    names.sort();
    names
}

#[test]
fn what_is_saved_is_found_bit_for_bit() {
    let (_dir, folder) = folder();
    let run = Checkpoints::begin(&folder).expect("a new folder");
    assert!(latest(&folder).expect("an empty folder").is_none());
    let first = std::fs::read(run.save(&checkpoint(10)).expect("a checkpoint")).expect("a file");
    let again = std::fs::read(run.save(&checkpoint(10)).expect("once more")).expect("a file");
    assert!(first == again, "equal checkpoints are equal files");
    let (_, found) = Checkpoints::resume(&folder, &identity()).expect("the same run");
    let found = found.expect("a checkpoint");
    assert!(same(&found.checkpoint, &checkpoint(10)));
    assert!(found.damaged.is_empty());
}

#[test]
fn the_two_newest_are_kept() {
    let (_dir, folder) = folder();
    let run = Checkpoints::begin(&folder).expect("a new folder");
    for steps in [5, 10, 100, 1_000_000] {
        run.save(&checkpoint(steps)).expect("a checkpoint");
    }
    assert_eq!(all(&folder), ["checkpoint-000000000100.safetensors", "checkpoint-000001000000.safetensors"]);
}

#[test]
fn a_run_that_was_killed_goes_on_from_the_newest_complete_one() {
    let (_dir, folder) = folder();
    let run = Checkpoints::begin(&folder).expect("a new folder");
    run.save(&checkpoint(1)).expect("a checkpoint");
    run.save(&checkpoint(2)).expect("a checkpoint");
    // Killed while writing the third: before it had its name.
    let whole = std::fs::read(folder.join("checkpoint-000000000002.safetensors")).expect("a file");
    let partial = folder.join(".checkpoint-000000000003.safetensors.4711.partial");
    std::fs::write(&partial, &whole[..whole.len() / 2]).expect("half a file");
    let (run, found) = Checkpoints::resume(&folder, &identity()).expect("the same run");
    assert_eq!(found.expect("a checkpoint").checkpoint.steps, 2);
    run.save(&checkpoint(3)).expect("a checkpoint");
    assert_eq!(all(&folder), ["checkpoint-000000000002.safetensors", "checkpoint-000000000003.safetensors"]);

    // A disk that lost the end of a file which had its name.
    std::fs::write(folder.join("checkpoint-000000000003.safetensors"), &whole[..100]).expect("a short file");
    let (run, found) = Checkpoints::resume(&folder, &identity()).expect("the one before can be read");
    let found = found.expect("a checkpoint");
    assert_eq!((found.checkpoint.steps, found.damaged.len()), (2, 1));
    let mut earlier = checkpoint(2);
    earlier.steps = 2;
    run.save(&earlier).expect("a checkpoint");
    assert_eq!(all(&folder), ["checkpoint-000000000002.safetensors"]);
}

#[test]
fn a_file_that_was_cut_or_changed_is_refused() {
    let (_dir, folder) = folder();
    let run = Checkpoints::begin(&folder).expect("a new folder");
    let path = run.save(&checkpoint(9)).expect("a checkpoint");
    let whole = std::fs::read(&path).expect("a file");
    for end in (0..whole.len()).step_by(5) {
        std::fs::write(&path, &whole[..end]).expect("a short file");
        let message = latest(&folder).expect_err("a short file").to_string();
        assert!(message.starts_with(&path.display().to_string()), "{end}: {message}");
    }
    for at in (0..whole.len()).step_by(3) {
        let mut changed = whole.clone();
        changed[at] ^= 1 << (at % 8);
        std::fs::write(&path, &changed).expect("a changed file");
        match latest(&folder) {
            Err(error) => assert!(error.to_string().contains("checkpoint-"), "{at}: {error}"),
            // Where nothing but the writing of the same JSON changed.
            Ok(found) => assert!(same(&found.expect("a file").checkpoint, &checkpoint(9)), "byte {at}"),
        }
    }
    std::fs::write(&path, [&whole[..], b"more"].concat()).expect("a long file");
    assert!(latest(&folder).is_err());
}

#[test]
fn another_run_is_refused_by_name() {
    let (_dir, folder) = folder();
    let run = Checkpoints::begin(&folder).expect("a new folder");
    let path = run.save(&checkpoint(4)).expect("a checkpoint");
    let refused = |other: &Identity| Checkpoints::resume(&folder, other).expect_err("another run").to_string();
    let at = path.display();

    let message = Checkpoints::begin(&folder).expect_err("occupied").to_string();
    assert!(message.contains("has checkpoints of an earlier run") && message.contains("--resume"), "{message}");
    let other = Identity { model: "gpt".into(), architecture: "xyz".into(), ..identity() };
    assert_eq!(refused(&other), format!("{at}: is of another run: its model is `lenet`, this one is `gpt`"));
    let other = Identity { architecture: "xyz".into(), ..identity() };
    assert_eq!(refused(&other), format!("{at}: is of another run: its model `lenet` has another architecture"));
    let mut other = identity();
    other.settings.insert("batch".into(), "64".into());
    other.settings.remove("seed");
    other.settings.insert("shuffle".into(), "off".into());
    let message = refused(&other);
    let want = "batch was `32`, now it is `64`; shuffle was not set, now it is `off`; seed was `7`, now it is not set";
    assert_eq!(message, format!("{at}: is of another run: {want}"));

    let found = latest(&folder).expect("readable").expect("there");
    let kernel = Type::new(DType::F32, [2, 2]);
    let wrong = Type::new(DType::F32, [4]);
    let message = found.states([("dense/kernel", &wrong), ("dense/bias", &kernel)]).expect_err("others").to_string();
    assert!(message.contains("`dense/kernel` is f32[2, 2], the step takes f32[4]"), "{message}");
    assert!(message.contains("`dense/bias` is missing") && message.contains("`@step` is no state"), "{message}");
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error() {
    let (dir, folder) = folder();
    let run = Checkpoints::begin(&folder).expect("a new folder");
    std::fs::remove_dir_all(dir.path().join("run")).expect("the folder goes away");
    assert!(matches!(run.save(&checkpoint(1)), Err(CheckpointError::Io { .. } | CheckpointError::Array(_))));
}
