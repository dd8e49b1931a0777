//! Optimizers and schedules: steps on the interpreter against values of Keras 3.15.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;

use intwain::frontend::{At, Json, open_model};
use intwain::train::loss::Loss;
use intwain::train::optimizer::{Given, Initial, Optimizer};
use intwain::train::schedule::Schedule;
use intwain::train::step::Objective;
use intwain::train::trainer::{Batch, Recipe, Trainer};
use intwain::{DType, DeviceKind, Devices, Model, ModelOptions, SessionOptions, Shape, Tensor, Type};
use intwain_ir::scalar::Binary;
use intwain_ir::{Graph, Layout, ParamKind, Rows, Value, interp, verify};
use intwain_passes::check::placement::Interface;
use intwain_passes::hardware::Catalogue;
use intwain_passes::partition::partition;
use intwain_passes::place::{self, Strategy};
use intwain_passes::reshard;
use serde_json::Value as Golden;
use support::repository;

/// An optimizer with the variables that it changes.
struct Run {
    graph: Graph,
    variables: Vec<Tensor>,
    slots: Vec<Tensor>,
    roles: Vec<&'static str>,
}

/// What is not so for every variable.
#[derive(Default)]
struct Odd {
    /// Variables that have no gradient.
    missing: Vec<usize>,
    /// Variables whose negative elements become 0.
    nonneg: Vec<usize>,
}

impl Run {
    fn new(optimizer: &Optimizer, named: &[(String, Type)], variables: Vec<Tensor>, odd: &Odd) -> Run {
        let listed = optimizer.slots(named);
        let slots = listed.iter().map(|slot| match &slot.initial {
            Initial::Value(tensor) => tensor.clone(),
            Initial::Filled(x) => {
                Tensor::from_f64(slot.ty.dtype, slot.ty.shape.clone(), &vec![*x; slot.ty.shape.elements()])
            }
            Initial::Variable => variables[slot.variable.unwrap()].clone(),
        });
        let slots = slots.collect();
        Run {
            graph: step(optimizer, named, odd),
            variables,
            slots,
            roles: listed.iter().map(|slot| slot.role).collect(),
        }
    }

    fn step(&mut self, gradients: &[Tensor]) {
        let args = [&self.variables[..], gradients, &self.slots[..]].concat();
        let mut results = interp::run(&self.graph, args).unwrap();
        self.slots = results.split_off(self.variables.len());
        self.variables = results;
    }

    fn slot(&self, role: &str) -> f64 {
        let place = self.roles.iter().position(|r| *r == role).unwrap();
        self.slots[place].to_f64()[0]
    }
}

/// The graph of a step: variables, gradients and slots to variables and slots.
fn step(optimizer: &Optimizer, named: &[(String, Type)], odd: &Odd) -> Graph {
    let mut g = Graph::new("step");
    let variables: Vec<_> =
        named.iter().map(|(path, ty)| g.param(path, ty.clone(), ParamKind::State { next: None })).collect();
    let gradients: Vec<Value> =
        named.iter().map(|(path, ty)| g.input(&format!("{path}@grad"), ty.clone(), Rows::Whole)).collect();
    let gradients: Vec<_> =
        gradients.into_iter().enumerate().map(|(i, value)| (!odd.missing.contains(&i)).then_some(value)).collect();
    let slots: Vec<_> = optimizer
        .slots(named)
        .iter()
        .map(|slot| g.param(&slot.path, slot.ty.clone(), ParamKind::State { next: None }))
        .collect();
    let given = Given { named, variables: &variables, gradients: &gradients, slots: &slots };
    let mut constrain = |g: &mut Graph, i: usize, w: Value| {
        if !odd.nonneg.contains(&i) {
            return Ok(w);
        }
        let (dtype, shape) = (g.ty(w).dtype, g.shape(w).clone());
        let zero = g.full(dtype, 0.0, &shape)?;
        g.binary(Binary::Max, w, zero)
    };
    let updated = optimizer.step(&mut g, &given, &mut constrain).unwrap();
    for (i, value) in updated.variables.iter().chain(&updated.slots).enumerate() {
        g.output(&format!("next{i}"), *value);
    }
    verify(&g).unwrap_or_else(|problems| panic!("{problems:?}"));
    g
}

fn read(config: &str) -> Optimizer {
    Optimizer::read(&At::root(&Json::parse(config).unwrap())).unwrap_or_else(|e| panic!("{config}: {e}"))
}

fn named(shapes: &[&[usize]], dtype: DType) -> Vec<(String, Type)> {
    let each = shapes.iter().enumerate();
    each.map(|(i, dims)| (format!("layer_{i}/kernel"), Type::new(dtype, Shape::from(*dims)))).collect()
}

/// A scalar that starts at 1 and gets the same gradient in every step.
fn from_one(config: &str, gradient: f64, steps: usize) -> Vec<f64> {
    let named = named(&[&[]], DType::F32);
    let scalar = |x: f64| Tensor::from_f64(DType::F32, Shape::default(), &[x]);
    let mut run = Run::new(&read(config), &named, vec![scalar(1.0)], &Odd::default());
    let mut next = || {
        run.step(&[scalar(gradient)]);
        run.variables[0].to_f64()[0]
    };
    (0..steps).map(|_| next()).collect()
}

#[track_caller]
fn near(got: &[f64], want: &[f64], within: f64) {
    let same = got.len() == want.len() && got.iter().zip(want).all(|(g, w)| (g - w).abs() <= within);
    assert!(same, "{got:?} is not {want:?}");
}

#[test]
fn known_first_steps() {
    let cases: [(&str, &[f64]); 14] = [
        (r#"{"class_name": "SGD", "config": {"learning_rate": 0.1, "momentum": 0.9}}"#, &[0.95, 0.855, 0.7195]),
        (
            r#"{"class_name": "SGD", "config": {"learning_rate": 0.1, "momentum": 0.9, "nesterov": true}}"#,
            &[0.905, 0.7695, 0.59755],
        ),
        (r#"{"class_name": "Adam", "config": {"learning_rate": 0.1}}"#, &[0.900001, 0.800003, 0.700004]),
        (r#"{"class_name": "Adam", "config": {"lr": 0.1, "amsgrad": true}}"#, &[0.900001, 0.800003, 0.700004]),
        (r#"{"class_name": "AdamW", "config": {"learning_rate": 0.1, "weight_decay": 0.1}}"#, &[0.890001, 0.781103]),
        (r#"{"class_name": "RMSprop", "config": {"learning_rate": 0.1}}"#, &[0.683773, 0.454357]),
        (r#"{"class_name": "RMSprop", "config": {"learning_rate": 0.1, "centered": true}}"#, &[0.666667, 0.411761]),
        (r#"{"class_name": "RMSprop", "config": {"learning_rate": 0.1, "momentum": 0.9}}"#, &[0.683773, 0.169753]),
        (r#"{"class_name": "Adagrad", "config": {"learning_rate": 0.1}}"#, &[0.915485, 0.850935]),
        (r#"{"class_name": "Adadelta", "config": {"learning_rate": 1.0}}"#, &[0.998586, 0.997154]),
        (r#"{"class_name": "Adamax", "config": {"learning_rate": 0.1}}"#, &[0.9, 0.8]),
        (r#"{"class_name": "Nadam", "config": {"learning_rate": 0.1}}"#, &[0.893721, 0.816362]),
        (r#"{"class_name": "Lion", "config": {"learning_rate": 0.1}}"#, &[0.9, 0.8]),
        (r#"{"class_name": "Ftrl", "config": {"learning_rate": 0.1}}"#, &[0.380962, 0.316412]),
    ];
    for (config, want) in cases {
        near(&from_one(config, 0.5, want.len()), want, 2e-6);
    }
}

#[test]
fn gradients_are_clipped() {
    let clipped = |key: &str| {
        let named = named(&[&[2], &[1]], DType::F64);
        let tensor = |xs: &[f64]| Tensor::from_f64(DType::F64, [xs.len()], xs);
        let config = format!(r#"{{"class_name": "SGD", "config": {{"learning_rate": 1.0, "{key}": 1.0}}}}"#);
        let mut run = Run::new(&read(&config), &named, vec![tensor(&[0.0, 0.0]), tensor(&[0.0])], &Odd::default());
        run.step(&[tensor(&[3.0, 4.0]), tensor(&[12.0])]);
        [run.variables[0].to_f64(), run.variables[1].to_f64()].concat()
    };
    near(&clipped("clipnorm"), &[-0.6, -0.8, -1.0], 1e-12);
    near(&clipped("global_clipnorm"), &[-0.2307692, -0.3076923, -0.9230769], 1e-7);
    near(&clipped("clipvalue"), &[-1.0, -1.0, -1.0], 1e-12);
}

#[test]
fn the_schedule_sees_every_step_and_the_optimizer_its_updates() {
    let config = r#"{"class_name": "SGD", "config": {"gradient_accumulation_steps": 2, "learning_rate":
        {"class_name": "PiecewiseConstantDecay", "config": {"boundaries": [1], "values": [1.0, 10.0]}}}}"#;
    let named = named(&[&[]], DType::F64);
    let scalar = |x: f64| Tensor::from_f64(DType::F64, Shape::default(), &[x]);
    let mut run = Run::new(&read(config), &named, vec![scalar(0.0)], &Odd::default());
    let mut weights = Vec::new();
    for _ in 0..4 {
        run.step(&[scalar(1.0)]);
        weights.push(run.variables[0].to_f64()[0]);
    }
    near(&weights, &[0.0, -1.0, -1.0, -11.0], 0.0);
    near(&[run.slot("iteration")], &[4.0], 0.0);
}

fn lines(path: &str) -> Vec<Golden> {
    std::fs::read_to_string(repository(&format!("tests/goldens/optimizers/{path}")))
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn number(x: &Golden) -> f64 {
    x.as_f64().unwrap_or_else(|| x.as_str().unwrap().parse().unwrap())
}

fn numbers(list: &Golden) -> Vec<f64> {
    list.as_array().unwrap().iter().map(number).collect()
}

fn all_numbers(lists: &Golden) -> Vec<Vec<f64>> {
    lists.as_array().unwrap().iter().map(numbers).collect()
}

fn places(case: &Golden, key: &str) -> Vec<usize> {
    case[key].as_array().into_iter().flatten().map(|i| i.as_u64().unwrap() as usize).collect()
}

fn dtype(name: &str) -> DType {
    match name {
        "float32" => DType::F32,
        "float64" => DType::F64,
        "int64" => DType::I64,
        "int32" => DType::I32,
        other => panic!("{other}"),
    }
}

fn ty(dtype: DType, shape: &Golden) -> Type {
    Type::new(dtype, Shape::new(shape.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize)))
}

/// Where a tensor is not what Keras has, at most `within` of the greatest magnitude away.
fn differs(got: &Tensor, want: &[f64], within: f64) -> Option<String> {
    let got = got.to_f64();
    let scale = want.iter().filter(|w| w.is_finite()).fold(1e-30, |most: f64, w| most.max(w.abs()));
    let same = |(g, w): (&f64, &f64)| g == w || g.is_nan() && w.is_nan() || (g - w).abs() <= within * scale;
    let all = got.len() == want.len() && got.iter().zip(want).all(same);
    (!all).then(|| format!("{got:?} is not {want:?}"))
}

fn trajectory(head: &Golden, case: &Golden) -> Result<(), String> {
    let float = dtype(case["dtype"].as_str().unwrap());
    let within = if float == DType::F64 { 1e-12 } else { 2e-6 };
    let paths = head["paths"].as_array().unwrap().iter().map(|path| path.as_str().unwrap().to_string());
    let named: Vec<(String, Type)> =
        paths.zip(head["shapes"].as_array().unwrap().iter().map(|s| ty(float, s))).collect();
    let tensors = |lists: &Golden| -> Vec<Tensor> {
        let each = named.iter().zip(all_numbers(lists));
        each.map(|((_, ty), xs)| Tensor::from_f64(ty.dtype, ty.shape.clone(), &xs)).collect()
    };
    let optimizer = read(&case["config"].to_string());
    let odd = Odd { missing: places(case, "missing"), nonneg: places(case, "nonneg") };
    let mut run = Run::new(&optimizer, &named, tensors(&head["start"]), &odd);
    let listed: Vec<Type> = run.slots.iter().map(|slot| slot.ty.clone()).collect();
    let wanted = case["slots"].as_array().unwrap().iter();
    let wanted: Vec<Type> = wanted.map(|s| ty(dtype(s["dtype"].as_str().unwrap()), &s["shape"])).collect();
    if listed != wanted {
        return Err(format!("keeps {listed:?}, not {wanted:?}"));
    }
    let same = |got: &[Tensor], want: &Golden, when: &str| {
        let pairs = got.iter().zip(all_numbers(want)).enumerate();
        let found = pairs.filter_map(|(i, (got, want))| Some((i, differs(got, &want, within)?))).next();
        found.map_or(Ok(()), |(i, why)| Err(format!("{when}, tensor {i}: {why}")))
    };
    same(&run.slots, &case["start"], "at first")?;
    let gradients = head["gradients"][case["gradients"].as_str().unwrap()].as_array().unwrap();
    for (n, (given, after)) in gradients.iter().zip(case["after"].as_array().unwrap()).enumerate() {
        run.step(&tensors(given));
        let all = [&run.variables[..], &run.slots[..]].concat();
        same(&all, after, &format!("after step {}", n + 1))?;
    }
    Ok(())
}

#[test]
fn steps_are_those_of_keras() {
    let lines = lines("steps.jsonl");
    let (head, cases) = lines.split_first().unwrap();
    let said = |case: &Golden, why: String| format!("{} {}: {why}", case["name"], case["dtype"]);
    let failed: Vec<_> = cases.iter().filter_map(|case| trajectory(head, case).err().map(|e| said(case, e))).collect();
    assert!(failed.is_empty(), "{} of {} cases fail\n{}", failed.len(), cases.len(), failed.join("\n"));
}

/// Keras names slots after their variables, but for those of Adafactor and the product of Nadam.
#[test]
fn slots_have_the_names_of_keras() {
    let lines = lines("steps.jsonl");
    let (head, cases) = lines.split_first().unwrap();
    let paths: Vec<String> =
        head["paths"].as_array().unwrap().iter().map(|path| path.as_str().unwrap().to_string()).collect();
    for case in cases {
        let named: Vec<(String, Type)> =
            paths.iter().map(|path| (path.clone(), Type::new(DType::F32, [2, 2]))).collect();
        let class = case["config"]["class_name"].as_str().unwrap();
        let slots = read(&case["config"].to_string()).slots(&named);
        for (slot, want) in slots.iter().zip(case["slots"].as_array().unwrap()) {
            let want = want["path"].as_str().unwrap();
            let own = class == "Adafactor" && ["row", "column"].contains(&slot.role) || slot.role == "u_product";
            // Outside of a step, Keras builds the optimizer inside without the name of the one around it.
            let same = slot.path == want || slot.path == format!("loss_scale_optimizer/{want}");
            assert!(own || class == "Muon" || same, "{class}: {} is not {want}", slot.path);
        }
    }
}

#[test]
fn configurations_read_back() {
    for case in &lines("steps.jsonl")[1..] {
        let optimizer = read(&case["config"].to_string());
        let again: Golden = serde_json::from_str(&optimizer.config().to_text()).unwrap();
        assert_eq!(again, as_floats(&case["config"], &again), "{}", case["name"]);
    }
}

/// The wanted document with integers where the other has numbers with a point.
fn as_floats(want: &Golden, like: &Golden) -> Golden {
    match (want, like) {
        (Golden::Object(map), _) => {
            Golden::Object(map.iter().map(|(key, x)| (key.clone(), as_floats(x, &like[key]))).collect())
        }
        (Golden::Number(x), Golden::Number(y)) if x.as_f64() == y.as_f64() => like.clone(),
        _ => want.clone(),
    }
}

#[test]
fn rates_are_those_of_keras() {
    for case in lines("schedules.jsonl") {
        let json = Json::parse(&case["config"].to_string()).unwrap();
        let schedule = Schedule::read(&At::root(&json)).unwrap();
        let mut g = Graph::new("rate");
        let step = g.input("step", Type::new(DType::I64, Shape::default()), Rows::Whole);
        let rate = schedule.at(&mut g, step).unwrap();
        g.output("rate", rate);
        for (t, want) in numbers(&case["steps"]).iter().zip(numbers(&case["rates"])) {
            let got = interp::run(&g, vec![Tensor::from_f64(DType::I64, Shape::default(), &[*t])]).unwrap();
            // Where a rate is all but 0, it is the rest of a sum of numbers like 1.
            let (got, scale) = (got[0].to_f64()[0], want.abs().max(0.1));
            assert!((got - want).abs() <= 2e-6 * scale, "{}: {got}, not {want}, at {t}", case["config"]);
        }
        let again: Golden = serde_json::from_str(&schedule.config().to_text()).unwrap();
        assert_eq!(again, as_floats(&case["config"], &again));
    }
}

/// Files of Keras with what their optimizers keep, and one more step.
#[test]
fn trainings_are_taken_up_from_files() {
    for case in lines("continued.jsonl") {
        let file = case["file"].as_str().unwrap();
        let path = repository(&format!("tests/goldens/optimizers/files/{file}"));
        let model = Model::open(&path, ModelOptions::default()).unwrap();
        let config = open_model(&path).unwrap().compile_config.unwrap();
        let optimizer = Optimizer::read(&At::root(config.get("optimizer").or(config.get("optimizer_config")).unwrap()));
        let optimizer = optimizer.unwrap();
        let named: Vec<(String, Type)> = model
            .trainable_paths()
            .map(|path| (path.to_string(), Type::new(DType::F32, Shape::from(model.weight_shape(path).unwrap()))))
            .collect();
        let variables: Vec<Tensor> = named.iter().map(|(path, _)| model.weight(path).unwrap()).collect();
        let restored = optimizer.restore(&named, &model).unwrap().unwrap();
        let same = |got: &[Tensor], want: &Golden, when: &str| {
            let want = all_numbers(want);
            assert_eq!(got.len(), want.len(), "{file}");
            for (i, (got, want)) in got.iter().zip(want).enumerate() {
                let why = differs(got, &want, 2e-6);
                assert!(why.is_none(), "{file} {when} the step, tensor {i}: {}", why.unwrap());
            }
        };
        same(&restored, &case["before"], "before");
        let mut run = Run::new(&optimizer, &named, variables, &Odd::default());
        run.slots = restored;
        let gradients = named.iter().zip(all_numbers(&case["gradients"]));
        let gradients: Vec<Tensor> =
            gradients.map(|((_, ty), xs)| Tensor::from_f64(ty.dtype, ty.shape.clone(), &xs)).collect();
        run.step(&gradients);
        same(&[&run.variables[..], &run.slots[..]].concat(), &case["after"], "after");
        let state = model.optimizer().unwrap().unwrap();
        assert!(state.iterations == Some(7) && state.slots.iter().all(|slot| slot.role.is_some()), "{file}");
    }
}

#[test]
fn the_state_of_another_optimizer_is_refused() {
    let path = repository("tests/goldens/optimizers/files/nadam.keras");
    let model = Model::open(&path, ModelOptions::default()).unwrap();
    let named: Vec<(String, Type)> = model
        .trainable_paths()
        .map(|path| (path.to_string(), Type::new(DType::F32, Shape::from(model.weight_shape(path).unwrap()))))
        .collect();
    let sgd = Optimizer::read(&At::root(&Json::String("sgd".into()))).unwrap();
    let why = sgd.restore(&named, &model).unwrap_err().to_string();
    assert!(why.contains("does not hold the state of SGD"), "{why}");
}

/// What two devices make of a step, each with consecutive rows of variables, gradients and slots.
fn on_two(g: &Graph, args: &[Tensor], parts: [usize; 2]) -> (Vec<Tensor>, usize) {
    let hardware = Catalogue::built_in().get("2xh100-nvlink").unwrap();
    let options = place::Options {
        strategy: Some(Strategy::Data),
        parts: Some(parts),
        survey: place::Survey::Asked,
        ..place::Options::default()
    };
    let plan = place::Planner::new(g, &hardware, options).plan().unwrap();
    let explicit = reshard::reshard(&reshard::apply(g, &plan), &plan.nodes).unwrap();
    verify(&explicit).unwrap_or_else(|problems| panic!("{problems:?}"));
    let locals = partition(&explicit).unwrap();
    let layouts = Interface::of(&explicit);
    let of = |local: &Graph| -> Vec<Tensor> {
        let place = |name: &str| g.params.iter().position(|p| *p.name == *name).unwrap();
        let param = |p: &intwain_ir::Param| args[place(&p.name)].part(&layouts.params[place(&p.name)], local.device);
        local.params.iter().map(param).collect()
    };
    let results = interp::run_devices(&locals, locals.iter().map(of).collect()).unwrap();
    let whole = |(i, o): (usize, &intwain_ir::Output)| match explicit.layout(o.value) {
        Layout::Split { dim, .. } => {
            let part = |(local, results): (&Graph, &Vec<Tensor>)| {
                results[local.outputs.iter().position(|l| l.name == o.name).unwrap()].clone()
            };
            Tensor::join(&locals.iter().zip(&results).map(part).collect::<Vec<_>>(), dim)
        }
        Layout::Replicated | Layout::Partial(_) | Layout::On(_) => results[0][i].clone(),
    };
    let outputs = explicit.outputs.iter().enumerate().map(whole).collect();
    let cut = layouts.params.iter().filter(|layout| matches!(layout, Layout::Split { dim: 0, .. })).count();
    (outputs, cut)
}

/// Every optimizer, its variables and slots cut at row 3 of 5.
#[test]
fn devices_that_share_the_variables_take_the_same_steps() {
    let lines = lines("steps.jsonl");
    for case in lines[1..].iter().filter(|case| case["dtype"] == "float32") {
        let name = case["name"].as_str().unwrap();
        let optimizer = read(&case["config"].to_string());
        let named = named(&[&[5, 2], &[5]], DType::F32);
        let numbers = |ty: &Type, seed: usize| {
            let x = |i: usize| ((i * 7 + seed * 13 + 3) % 23) as f64 / 11.0 - 1.0;
            let elements: Vec<f64> = (0..ty.shape.elements()).map(x).collect();
            Tensor::from_f64(ty.dtype, ty.shape.clone(), &elements)
        };
        let variables: Vec<Tensor> = named.iter().enumerate().map(|(i, (_, ty))| numbers(ty, i)).collect();
        let mut run = Run::new(&optimizer, &named, variables, &Odd::default());
        let gradients: Vec<Tensor> = named.iter().enumerate().map(|(i, (_, ty))| numbers(ty, i + 5)).collect();
        // So that no slot is as it was at first.
        run.step(&gradients);
        let args = [&run.variables[..], &gradients, &run.slots[..]].concat();
        let mut g = run.graph.clone();
        for param in &mut g.params {
            let rows = if g.values[param.value].ty.shape.first() == Some(&5) { Rows::Batched } else { Rows::Whole };
            param.kind = ParamKind::Input { rows };
        }
        let whole = interp::run(&g, args.clone()).unwrap();
        let (split, cut) = on_two(&g, &args, [3, 2]);
        assert!(cut >= 4, "{name}: only {cut} parameters are cut");
        let sums = ["clipnorm", "lamb", "adafactor", "muon", "global"].iter().any(|word| name.contains(word));
        for (i, (split, whole)) in split.iter().zip(&whole).enumerate() {
            let why = differs(split, &whole.to_f64(), 1e-6).unwrap_or_default();
            assert!(split == whole || sums && why.is_empty(), "{name}, output {i}: {why} {split:?} {whole:?}");
        }
    }
}

/// What is left of a training of some steps, by the states' names.
fn trained(what: &str, model: &Model, optimizer: &Optimizer, options: SessionOptions) -> BTreeMap<String, Tensor> {
    let objective = Objective {
        loss: Some(Loss::named("mse").unwrap()),
        weight: 1.0,
        metrics: Vec::new(),
        weighted_metrics: Vec::new(),
    };
    let recipe = Recipe::new(vec![objective], Some(optimizer.clone()));
    let numbers = |n: usize, seed: usize| -> Vec<f32> {
        (0..n).map(|i| ((i * 7 + seed * 13 + 3) % 23) as f32 / 11.0 - 1.0).collect()
    };
    let mut trainer = Trainer::new(model, recipe, options).unwrap();
    for step in 0..4 {
        let batch = Batch {
            inputs: vec![Tensor::from_f32([5, 3], &numbers(15, step))],
            labels: vec![Some(Tensor::from_f32([5, 2], &numbers(10, step + 9)))],
            weights: vec![None],
        };
        if let Err(e) = trainer.step(&batch) {
            panic!("{what}: {e}");
        }
    }
    trainer.states().unwrap().iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect()
}

/// Compiled steps of every optimizer: two CPUs that share rows have the bits of one, and a GPU comes near.
#[test]
fn every_optimizer_trains_on_every_kind_of_device() {
    let on = |kind: DeviceKind, devices: u32, split: Option<Strategy>, parts: Option<[usize; 2]>| SessionOptions {
        devices: Devices::new(kind, 0..devices).unwrap(),
        threads: Some(1),
        split,
        parts,
        ..SessionOptions::default()
    };
    let path = repository("tests/goldens/optimizers/files/adam.keras");
    let model = Model::open(&path, ModelOptions::default()).unwrap();
    for case in lines("steps.jsonl")[1..].iter().filter(|case| case["dtype"] == "float32") {
        let name = case["name"].as_str().unwrap();
        let optimizer = read(&case["config"].to_string());
        let one = trained(name, &model, &optimizer, on(DeviceKind::Cpu, 1, None, None));
        let halves = on(DeviceKind::Cpu, 2, Some(Strategy::Data), Some([3, 2]));
        assert_eq!(trained(name, &model, &optimizer, halves), one, "{name}");
        // One case of each class.
        if name.contains(' ') {
            continue;
        }
        let gpu = trained(name, &model, &optimizer, on(DeviceKind::Ptx, 1, None, None));
        for ((path, want), got) in one.iter().zip(gpu.values()) {
            let why = differs(got, &want.to_f64(), 1e-4).unwrap_or_default();
            assert!(why.is_empty(), "{name}: {path}: {why}");
        }
    }
}

/// What a configuration becomes, as Keras 3 writes it.
fn becomes(config: &str) -> Golden {
    serde_json::from_str(&read(config).config().to_text()).unwrap()
}

#[test]
fn configurations_of_all_generations_are_read() {
    let name = Optimizer::read(&At::root(&Json::String("RMSprop".into()))).unwrap();
    assert_eq!(name.config(), read(r#"{"class_name": "RMSprop", "config": {}}"#).config());
    // Keras 2's older optimizers divide the rate.
    let older = becomes(
        r#"{"class_name": "SGD", "config": {"name": "SGD", "learning_rate": 0.5, "decay": 0.25, "momentum": 0.0,
            "nesterov": false, "is_legacy_optimizer": true}}"#,
    );
    let rate = &older["config"]["learning_rate"];
    assert_eq!(rate["class_name"], "InverseTimeDecay");
    assert_eq!(rate["config"]["decay_rate"], 0.25);
    near(
        &from_one(r#"{"class_name": "SGD", "config": {"lr": 0.5, "decay": 0.25}}"#, 0.5, 3),
        &[0.75, 0.55, 0.383333],
        1e-6,
    );
    // Keras 2's newer ones.
    let newer = becomes(
        r#"{"class_name": "Custom>Adam", "config": {"name": "Adam", "weight_decay": null, "clipnorm": null,
            "global_clipnorm": null, "clipvalue": null, "use_ema": false, "ema_momentum": 0.99,
            "ema_overwrite_frequency": null, "jit_compile": true, "is_legacy_optimizer": false, "learning_rate": 0.01,
            "beta_1": 0.9, "beta_2": 0.999, "epsilon": null, "amsgrad": false}}"#,
    );
    assert_eq!((&newer["class_name"], &newer["config"]["epsilon"]), (&"Adam".into(), &1e-7.into()));
    // A scale that is not dynamic is a factor.
    let fixed = becomes(
        r#"{"class_name": "LossScaleOptimizer", "config": {"inner_optimizer": {"class_name": "SGD", "config": {}},
            "dynamic": false, "initial_scale": 64.0, "dynamic_growth_steps": null}}"#,
    );
    assert_eq!((&fixed["class_name"], &fixed["config"]["loss_scale_factor"]), (&"SGD".into(), &64.0.into()));
}

#[test]
fn configurations_that_mean_nothing_are_refused() {
    let cases = [
        (r#"{"class_name": "Adan", "config": {}}"#, "is \"Adan\"; accepted: Adadelta,"),
        (r#"{"class_name": "Adam", "config": {"beta1": 0.9}}"#, "the key `beta1` is not known here"),
        (r#"{"class_name": "SGD", "config": {"momentum": 1.5}}"#, "accepted: a number from 0 to 1"),
        (r#"{"class_name": "SGD", "config": {"clipnorm": 1.0, "clipvalue": 0.5}}"#, "only one of `clipnorm`"),
        (r#"{"class_name": "SGD", "config": {"gradient_accumulation_steps": 1}}"#, "an integer of at least 2"),
        (r#"{"class_name": "SGD", "config": {"use_ema": true, "ema_momentum": 2}}"#, "a number from 0 to 1"),
        (r#"{"class_name": "AdamW", "config": {"weight_decay": null}}"#, "expected a finite number"),
        (r#"{"class_name": "Lion", "config": {"beta_1": 0}}"#, "a number above 0 and at most 1"),
        (r#"{"class_name": "Ftrl", "config": {"learning_rate_power": 0.5}}"#, "a number of at most 0"),
        (r#"{"class_name": "Muon", "config": {"exclude_layers": ["a.*"]}}"#, "a regular expression"),
        (r#"{"class_name": "MultiOptimizer", "config": {}}"#, "an optimizer of several"),
        (r#"{"module": "keras.optimizers", "class_name": "SGD", "config": {"decay": 0.1}}"#, "does not heed"),
        (
            r#"{"class_name": "SGD", "config": {"learning_rate": {"class_name": "Decay", "config": {}}}}"#,
            "accepted: CosineDecay,",
        ),
        (
            r#"{"class_name": "SGD", "config": {"learning_rate": {"class_name": "CosineDecay", "config":
                {"initial_learning_rate": 0.1, "decay_steps": 0}}}}"#,
            "a number above 0",
        ),
        (
            r#"{"class_name": "LossScaleOptimizer", "config": {"clipnorm": 1.0, "inner_optimizer": "sgd"}}"#,
            "`clipnorm`: 1 is not supported",
        ),
    ];
    for (config, why) in cases {
        let error = Optimizer::read(&At::root(&Json::parse(config).unwrap())).unwrap_err().to_string();
        assert!(error.contains(why), "{config}: {error}");
    }
}
