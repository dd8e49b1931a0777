use super::*;
use crate::arrays::FileBytes;
use crate::frontend::open_model;
use crate::model::{ModelOptions, to_tensor};
use hdf5::TEXTS;
use intwain_ir::{DType, Type};

/// All element types, extents, and more members than one leaf or one node of an index holds.
#[test]
fn what_is_written_is_read_back() {
    let mut tensors: Vec<(String, Tensor)> = Vec::new();
    for dtype in DType::ALL {
        let numbers = [1.0, 0.0, 1.0, 0.0, 1.0, 1.0];
        tensors.push((format!("types/{}", dtype), Tensor::from_f64(dtype, [2, 3], &numbers)));
    }
    tensors.push(("scalar".into(), Tensor::from_f64(DType::I64, [], &[-7.0])));
    tensors.push(("none".into(), Tensor::zeros(Type::new(DType::F32, [0, 4]))));
    for i in 0..1500 {
        tensors.push((format!("many/vars/{i}"), Tensor::from_f32([1], &[i as f32])));
    }
    let mut root = Group::default();
    for (name, tensor) in &tensors {
        root.put(name, dataset(tensor)).expect("names are new");
    }
    root.text("long", "é".repeat(100_000));
    let names: Vec<String> = (0..TEXTS * 2 + 1).map(|i| format!("layer_{i}")).collect();
    root.group("lists").expect("a new group").texts("layer_names", names.clone());
    root.group("lists").expect("a known group").texts("nothing", Vec::new());
    let mut bytes = Vec::new();
    hdf5::write(&root, &mut bytes).expect("memory takes it");
    let mut again = Vec::new();
    hdf5::write(&root, &mut again).expect("memory takes it");
    assert!(bytes == again, "equal contents are equal bytes");

    let h5 = crate::frontend::H5::open("memory".as_ref(), FileBytes::from(bytes)).expect("a file of ours");
    assert_eq!(h5.datasets("").expect("groups of ours").len(), tensors.len());
    for (name, tensor) in &tensors {
        let read = to_tensor(&h5.read(name).unwrap_or_else(|e| panic!("{name}: {e}")));
        assert_eq!(&read, tensor, "{name}");
    }
    assert_eq!(h5.string("", "long").map(|s| s.chars().count()), Some(100_000));
    assert_eq!(h5.strings("lists", "layer_names").expect("a list"), Some(names));
    assert_eq!(h5.strings("lists", "nothing").expect("a list"), Some(Vec::new()));
}

#[test]
fn a_name_is_one_thing() {
    let tensor = Tensor::from_f32([], &[0.0]);
    let mut root = Group::default();
    root.put("a/b", dataset(&tensor)).expect("a new name");
    assert_eq!(root.put("a/b", dataset(&tensor)).expect_err("twice").path, "a/b");
    assert_eq!(root.put("a/b/c", dataset(&tensor)).expect_err("a dataset has no members").path, "a/b");
    assert!(root.put("a", dataset(&tensor)).is_err());
}

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/models").join(name)
}

/// Moved weights of a model, and an optimizer's state that is made up.
fn trained(model: &Model) -> (BTreeMap<String, Tensor>, Vec<(String, Tensor)>) {
    let tree = model.variables().expect("a model that imports");
    let mut weights = BTreeMap::new();
    let mut slots = vec![("adam/iteration".to_string(), Tensor::from_f64(DType::I64, [], &[5.0]))];
    for spec in tree.flatten() {
        let old = model.weight(&spec.path).expect("a weight of the model");
        let new: Vec<f64> = old.to_f64().iter().map(|x| x + 0.5).collect();
        slots.push((format!("adam/{}_momentum", spec.path.replace('/', "_")), Tensor::zeros(old.ty.clone())));
        weights.insert(spec.path.clone(), Tensor::from_f64(old.ty.dtype, old.ty.shape.clone(), &new));
    }
    (weights, slots)
}

#[test]
fn a_model_reads_back_as_it_was_written() {
    let dir = tempfile::tempdir().expect("a folder");
    let mut tried = 0;
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(example("")).expect("golden models").map(|e| e.expect("an entry").path()).collect();
    files.sort();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "keras" || e == "json" || e == "h5")) {
        let Ok(model) = Model::open(file, ModelOptions::default()) else { continue };
        let (weights, slots) = trained(&model);
        let compile = Compile {
            optimizer: Json::String("adam".into()),
            loss: Json::String("mse".into()),
            loss_weights: Json::Null,
            metrics: Json::Array(vec![Json::String("accuracy".into())]),
            weighted_metrics: Json::Null,
        };
        let given = Trained {
            weights: weights.iter().map(|(path, value)| (&**path, value)).collect(),
            optimizer: Some(Kept { slots: slots.iter().map(|(p, v)| (&**p, v)).collect(), inner_from: None }),
            compile: Some(compile),
        };
        for ending in ["keras", "weights.h5", "h5"] {
            let out = dir.path().join(format!("out.{ending}"));
            if let Err(refused) = check(&out, &model) {
                assert!(matches!(refused, ExportError::Unfit { .. }), "{}: {refused}", file.display());
                continue;
            }
            write(&out, &model, &given).unwrap_or_else(|e| panic!("{} as {ending}: {e}", file.display()));
            let again = match ending {
                "weights.h5" => {
                    let options = ModelOptions { weights: Some(out.clone()), ..ModelOptions::default() };
                    Model::open(file, options)
                }
                _ => Model::open(&out, ModelOptions::default()),
            };
            let again = again.unwrap_or_else(|e| panic!("{} as {ending}: {e}", file.display()));
            for (path, value) in &weights {
                let read = again.weight(path).unwrap_or_else(|e| panic!("{} as {ending}: {e}", file.display()));
                assert!(&read == value, "{} as {ending}: {path}", file.display());
            }
            let state = again.optimizer().expect("an optimizer").expect("its state");
            assert_eq!((state.iterations, state.slots.len()), (Some(5), slots.len() - 1), "{}", file.display());
            if ending != "weights.h5" {
                let text = open_model(&out).expect("a model file").compile_config.expect("a compiled model").to_text();
                assert!(text.contains("\"adam\"") && text.contains("accuracy"), "{text}");
            }
            let first = std::fs::read(&out).expect("a file");
            write(&out, &model, &given).expect("once more");
            assert!(std::fs::read(&out).expect("a file") == first, "equal models are equal files");
            tried += 1;
        }
    }
    assert!(tried >= 10, "{tried} files were written");
    let left: Vec<_> = std::fs::read_dir(dir.path()).expect("the folder").collect();
    assert!(left.len() <= 3, "no partial file stays: {left:?}");
}

#[test]
fn what_cannot_be_written_is_refused_by_name() {
    let file = std::fs::read_dir(example("")).expect("golden models").map(|e| e.expect("an entry").path());
    let file = file.filter(|f| f.extension().is_some_and(|e| e == "keras")).min().expect("a model of Keras 3");
    let model = Model::open(&file, ModelOptions::default()).expect("a model that imports");
    let message = check("out.npz".as_ref(), &model).expect_err("no format").to_string();
    assert_eq!(message, "out.npz: the name says no format; models are written as .keras, .weights.h5 or .h5");
    let scalar = Tensor::from_f32([], &[0.0]);
    let given = Trained { weights: BTreeMap::from([("no/such", &scalar)]), ..Trained::default() };
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("out.keras");
    let message = write(&out, &model, &given).expect_err("an unknown weight").to_string();
    assert_eq!(message, "the model has no weights no/such");
    let missing = dir.path().join("no/such/folder/out.keras");
    assert!(matches!(write(&missing, &model, &Trained::default()), Err(ExportError::Io { .. })));
}

#[test]
fn types_of_layers_follow_the_float_type() {
    let text = r#"{"module": "keras", "class_name": "Functional", "keras_version": "3.1.0", "config": {"layers": [
        {"module": "keras.layers", "class_name": "Dense", "config": {"dtype": {"module": "keras", "class_name": "DTypePolicy",
            "config": {"name": "mixed_float16"}}, "kernel_initializer": {"class_name": "Zeros", "config": {}}},
         "inbound_nodes": [{"args": [{"class_name": "__keras_tensor__", "config": {"dtype": "float32", "shape": [1]}}]}]},
        {"module": "keras.layers", "class_name": "Embedding", "config": {"dtype": "float32"}},
        {"module": "keras.src.ops.core", "class_name": "Cast", "config": {"dtype": "float16"}},
        {"module": "keras.layers", "class_name": "InputLayer", "config": {"dtype": "int32"}}]}}"#;
    let json = Json::parse(text).expect("a document");
    let out = config::archive(&json, Some(DType::F64), None).expect("Keras 3").to_text();
    assert!(out.contains(r#""config": {"name": "float64"}"#), "{out}");
    assert!(out.contains(r#""config": {"dtype": "float64", "shape": [1]}"#), "{out}");
    assert!(out.contains(r#""Embedding", "config": {"dtype": "float64"}"#), "{out}");
    assert!(out.contains(r#""Cast", "config": {"dtype": "float16"}"#), "{out}");
    assert!(out.contains(r#""dtype": "int32""#) && !out.contains("keras_version"), "{out}");
    let same = config::archive(&json, None, None).expect("Keras 3").to_text();
    assert!(same.contains("mixed_float16"), "{same}");
}

/// The keys of files that Keras 3.15 wrote for these layers.
#[test]
fn projections_have_the_names_that_keras_gives_them() {
    use crate::frontend::{Initializer, Slot, VarSpec};
    let part = |name: &'static str| {
        let path = format!("a/{name}");
        let var = VarSpec { path: path.clone(), ..spec() };
        VarTree::leaf("EinsumDense", &path, true, vec![var]).at(Slot::Attribute(name))
    };
    fn spec() -> VarSpec {
        VarSpec {
            path: String::new(),
            shape: vec![1],
            dtype: DType::F32,
            initializer: Initializer::ZEROS,
            trainable: true,
            regularizer: None,
            constraint: None,
        }
    }
    let keys = |class: &str| {
        let layer =
            VarTree { parts: vec![part("query_dense"), part("gate_dense")], ..VarTree::leaf(class, "a", true, vec![]) };
        let model = VarTree { parts: vec![layer], ..VarTree::leaf("Functional", "", true, vec![]) };
        Positions::of(&model).keys
    };
    let mha = "layers/multi_head_attention";
    assert_eq!(keys("MultiHeadAttention"), [format!("{mha}/query_dense/vars/0"), format!("{mha}/_gate_dense/vars/0")]);
    let gqa = "layers/grouped_query_attention";
    assert_eq!(
        keys("GroupedQueryAttention"),
        [format!("{gqa}/_query_dense/vars/0"), format!("{gqa}/_gate_dense/vars/0")]
    );
}

/// Where files of Keras have their weights is where we would write them.
#[test]
fn keys_are_those_of_the_files_that_are_read() {
    let mut tried = 0;
    for folder in ["models", "policies", "recurrent", "shared"] {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens").join(folder);
        for entry in std::fs::read_dir(folder).expect("golden models") {
            let file = entry.expect("an entry").path();
            if file.extension().is_none_or(|e| e != "keras") {
                continue;
            }
            let Ok(model) = Model::open(&file, ModelOptions::default()) else { continue };
            let tree = model.variables().expect("a model that imports");
            let weights = open_model(&file).expect("a model file").weights.expect("weights in it");
            let found = crate::frontend::assign(&tree, &weights).expect("weights that fit");
            for (key, origin) in Positions::of(&tree).keys.into_iter().zip(found) {
                assert_eq!(origin, crate::frontend::Origin::Stored { key }, "{}", file.display());
            }
            tried += 1;
        }
    }
    assert!(tried >= 8, "{tried} models");
}

/// What Keras saves of a model that it has compiled and not yet trained.
#[test]
fn an_optimizer_that_took_no_step_is_taken_up_as_a_new_one() {
    use crate::train::optimizer::Optimizer;
    let dir = tempfile::tempdir().expect("a folder");
    let out = dir.path().join("out.keras");
    let model = Model::open(&example("dense.keras"), ModelOptions::default()).expect("a model that imports");
    let tree = model.variables().expect("a model that imports");
    let specs: Vec<_> = tree.flatten().into_iter().zip(tree.trainable()).filter(|(_, t)| *t).map(|(s, _)| s).collect();
    let variables: Vec<(String, Type)> =
        specs.iter().map(|s| (s.path.clone(), Type::new(s.dtype, &s.shape[..]))).collect();
    let adam = Optimizer::read(&crate::frontend::At::root(&Json::String("adam".into()))).expect("Keras's name");
    let rate = Tensor::from_f32([], &[0.001]);
    let compile = Compile {
        optimizer: adam.config(),
        loss: Json::String("mse".into()),
        loss_weights: Json::Null,
        metrics: Json::Null,
        weighted_metrics: Json::Null,
    };
    let restored = |steps: f64| {
        let steps = Tensor::from_f64(DType::I64, [], &[steps]);
        let slots = vec![("adam/iteration", &steps), ("adam/learning_rate", &rate)];
        let kept = Some(Kept { slots, inner_from: None });
        let given = Trained { optimizer: kept, compile: Some(compile.clone()), ..Trained::default() };
        write(&out, &model, &given).expect("a file");
        let again = Model::open(&out, ModelOptions::default()).expect("our file");
        adam.restore(&variables, &again).expect("a state").expect("one that begins")
    };
    for steps in [0.0, 3.0] {
        let slots = restored(steps);
        assert_eq!(slots.len(), adam.slots(&variables).len());
        assert_eq!((slots[0].to_f64(), slots[1].to_f64()), (vec![steps], rate.to_f64()));
        assert!(slots[2..].iter().all(|slot| slot.to_f64().iter().all(|x| *x == 0.0)));
    }
}
