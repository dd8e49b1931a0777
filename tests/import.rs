//! Small Keras models against the values Keras computed for them (`tests/goldens/models`, made by `tools/make_model_goldens.py`), as graphs
//! run by the interpreter: outputs, and gradients.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use intwain::arrays::Array;
use intwain::frontend::{ImportOptions, Imported, KerasModel, Weights, import, open_model};
use intwain_ir::{Graph, ParamKind, Rows, Tensor, Trainable, Type, Value, grad, interp, verify};
use std::collections::BTreeMap;
use support::{Elements, read_npz, repository};

fn tensor(array: &support::Array) -> Tensor {
    match &array.elements {
        Elements::F32(v) => Tensor::from_f32(array.shape.clone(), v),
        Elements::I32(v) => {
            let bytes = v.iter().flat_map(|x| x.to_le_bytes()).collect();
            Tensor::from_bytes(Type::new(intwain_ir::DType::I32, array.shape.clone()), bytes).unwrap()
        }
    }
}

fn weight(array: &Array) -> Tensor {
    Tensor::from_bytes(Type::new(array.dtype(), array.shape().to_vec()), array.bytes().to_vec()).unwrap()
}

struct Model {
    graph: Graph,
    weights: Vec<Tensor>,
    golden: BTreeMap<String, support::Array>,
}

impl Model {
    fn load(name: &str) -> Model {
        let path = repository(&format!("tests/goldens/models/{name}.keras"));
        let golden: BTreeMap<_, _> =
            read_npz(&path.with_extension("npz")).into_iter().map(|a| (a.name.clone(), a)).collect();
        let mut file = open_model(&path).unwrap();
        let model = KerasModel::read(&file).unwrap();
        let options = ImportOptions { batch: golden["in0"].shape[0], ..Default::default() };
        let Imported { graph, vars, .. } = import(&model, &path, &options).unwrap();
        verify(&graph).unwrap();
        let stored = Weights::new(&vars, file.weights.take(), 0).unwrap();
        let weights = (0..stored.specs().len()).map(|i| weight(&stored.read(i).unwrap())).collect();
        Model { graph, weights, golden }
    }

    fn numbered(&self, prefix: &str) -> Vec<Tensor> {
        (0..).map_while(|i| self.golden.get(&format!("{prefix}{i}"))).map(tensor).collect()
    }

    /// Arguments of the graph: inputs, then variables.
    fn args(&self) -> Vec<Tensor> {
        self.numbered("in").into_iter().chain(self.weights.iter().cloned()).collect()
    }
}

fn assert_close(what: &str, got: &Tensor, want: &Tensor, floor: f64, tolerance: f64) {
    assert_eq!(got.ty, want.ty, "{what}");
    let scale = want.to_f64().iter().fold(floor, |m, x| x.abs().max(m));
    for (i, (g, w)) in got.to_f64().iter().zip(want.to_f64()).enumerate() {
        assert!((g - w).abs() <= tolerance * scale, "{what}: element {i} is {g}, Keras has {w}");
    }
}

fn outputs(name: &str) {
    let model = Model::load(name);
    let got = interp::run(&model.graph, model.args()).unwrap();
    let want = model.numbered("out");
    assert_eq!(got.len(), want.len());
    for (i, (got, want)) in got.iter().zip(&want).enumerate() {
        assert_close(&format!("{name} out{i}"), got, want, 1e-30, 1e-5);
    }
}

fn gradients(name: &str) {
    let mut model = Model::load(name);
    let args = model.args();
    let g = &mut model.graph;
    let values: Vec<Value> = g.outputs.iter().map(|o| o.value).collect();
    let seeds: Vec<(Value, Value)> = values
        .into_iter()
        .enumerate()
        .map(|(i, v)| (v, g.input(&format!("cot{i}"), g.ty(v).clone(), Rows::Whole)))
        .collect();
    let trains = |kind: &ParamKind| matches!(kind, ParamKind::Weight { trainable: Trainable::Yes });
    let wanted: Vec<(String, Value)> = g
        .inputs()
        .take(args.len() - model.weights.len())
        .enumerate()
        .filter(|(_, p)| g.ty(p.value).dtype.is_float())
        .map(|(i, p)| (format!("gin{i}"), p.value))
        .chain(g.weights().filter(|p| trains(&p.kind)).enumerate().map(|(j, p)| (format!("gw{j}"), p.value)))
        .collect();
    let grads = grad::backward(g, &seeds, &wanted.iter().map(|(_, v)| *v).collect::<Vec<_>>()).unwrap();
    g.outputs.clear();
    for ((name, _), d) in wanted.iter().zip(&grads) {
        g.output(name, d.unwrap_or_else(|| panic!("{name} has no gradient")));
    }
    verify(g).unwrap();
    let all: Vec<Tensor> =
        args.into_iter().chain((0..seeds.len()).map(|i| tensor(&model.golden[&format!("cot{i}")]))).collect();
    let got = interp::run(&model.graph, all).unwrap();
    // The gradient of a key's bias is zero but for rounding, since softmax does not see a shift: hence a floor.
    let want: Vec<Tensor> = wanted.iter().map(|(name, _)| tensor(&model.golden[name])).collect();
    let floor = 1e-3 * want.iter().flat_map(Tensor::to_f64).fold(0.0, |m, x| x.abs().max(m));
    for ((got, want), (key, _)) in got.iter().zip(&want).zip(&wanted) {
        assert_close(&format!("{name} {key}"), got, want, floor, 1e-4);
    }
    let stored = model.golden.keys().filter(|k| k.starts_with("gin") || k.starts_with("gw")).count();
    assert_eq!(stored, wanted.len(), "{name} has other trainable weights or floating inputs than Keras");
}

macro_rules! models {
    ($($name:ident)+) => { $(mod $name {
        #[test]
        fn outputs() { super::outputs(stringify!($name)); }
        #[test]
        fn gradients() { super::gradients(stringify!($name)); }
    })+ };
}

models! { dense residual mobile upward decoder nested masked two_tower }
