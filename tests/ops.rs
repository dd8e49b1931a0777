//! Every operation: its values against NumPy and TensorFlow (`tests/goldens/ops.jsonl`, made by `tools/make_op_goldens.py`), its gradient
//! against differences, its text form, and every way its rule allows to cut it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use intwain_ir::ops::{LocalCx, Op};
use intwain_ir::scalar::{self, Reduce};
use intwain_ir::shard::{Factor, FactorKind};
use intwain_ir::{DType, Graph, Layout, Tensor, Type, Value, grad, interp, text, verify};
use support::goldens::{Case, Golden, Within, cases, compare};

/// Runs a check on every case and lists those that fail.
fn for_every_case(check: impl Fn(&Case) -> Result<(), String>) {
    let failed: Vec<String> =
        cases().iter().filter_map(|c| check(c).err().map(|e| format!("{}: {e}\n    {}", c.name, c.op))).collect();
    assert!(failed.is_empty(), "{} cases fail\n{}", failed.len(), failed.join("\n"));
}

/// The graph of one operation as text.
fn source(op: &str, args: &[Type], results: &[Type]) -> String {
    let mut text = String::from("graph \"case\" imported {\n");
    for (i, ty) in args.iter().enumerate() {
        text += &format!("  input %{i} \"x{i}\": {ty}\n");
    }
    let ids = |from: usize, n: usize| (from..from + n).map(|i| format!("%{i}")).collect::<Vec<_>>();
    let types: Vec<String> = results.iter().map(Type::to_string).collect();
    let defined = ids(args.len(), results.len());
    text += &format!("  {} = {op} {} : {}\n", defined.join(", "), ids(0, args.len()).join(" "), types.join(", "));
    for (i, id) in defined.iter().enumerate() {
        text += &format!("  output \"y{i}\" {id}\n");
    }
    text + "}"
}

fn graph_of(op: &str, args: &[Type], results: &[Type]) -> Result<Graph, String> {
    let graph = text::parse(&source(op, args, results)).map_err(|e| e.to_string())?;
    verify(&graph).map_err(|problems| problems.iter().map(|p| format!("{p}\n")).collect::<String>())?;
    Ok(graph)
}

fn graph(case: &Case) -> Result<Graph, String> {
    let types = |goldens: &[Golden]| goldens.iter().map(|g| g.ty.clone()).collect::<Vec<_>>();
    graph_of(&case.op, &types(&case.args), &types(&case.want))
}

fn tensors(goldens: &[Golden]) -> Vec<Tensor> {
    let tensor = |g: &Golden| {
        let mut t = Tensor::zeros(g.ty.clone());
        g.data.iter().enumerate().for_each(|(i, x)| t.set(i, *x));
        t
    };
    goldens.iter().map(tensor).collect()
}

#[test]
fn values_are_those_of_numpy_and_tensorflow() {
    for_every_case(|case| {
        let got = interp::run(&graph(case)?, tensors(&case.args)).map_err(|e| e.to_string())?;
        got.iter().zip(&case.want).try_for_each(|(got, want)| compare(&got.scalars(), want, case.within))
    });
}

#[test]
fn every_operation_has_values() {
    let tried: Vec<String> = cases().iter().map(|c| c.op_name().to_owned()).collect();
    let communication =
        ["all_gather", "all_reduce", "all_to_all", "bucket", "recv", "reduce_scatter", "reshard", "send"];
    let missing: Vec<_> =
        Op::NAMES.iter().filter(|n| !communication.contains(n) && !tried.iter().any(|t| t == *n)).collect();
    assert!(missing.is_empty(), "no values for {missing:?}");
}

#[test]
fn text_reads_back() {
    for_every_case(|case| {
        let graph = graph(case)?;
        let again = text::parse(&graph.to_string()).map_err(|e| e.to_string())?;
        if again == graph { Ok(()) } else { Err(format!("reads back as\n{again}")) }
    });
}

/// A number in [0, 1) that depends on a seed and an index.
fn noise(seed: usize, i: usize) -> f64 {
    let mixed = (i as u64 + 1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(seed as u64)
        .wrapping_mul(0xbf58_476d_1ce4_e5b9);
    ((mixed ^ (mixed >> 29)).wrapping_mul(0x94d0_49bb_1331_11eb) >> 11) as f64 / (1u64 << 53) as f64
}

/// The operand in f64, at values where the operation is smooth: no ties, and for scalar functions within their domain.
fn smooth(case: &Case, operand: usize) -> Tensor {
    let golden = &case.args[operand];
    if !golden.ty.dtype.is_float() {
        return tensors(std::slice::from_ref(golden)).remove(0);
    }
    let n = golden.data.len();
    let numbers: Vec<f64> = match (case.op_name(), case.op.contains("acosh")) {
        ("unary", true) => (0..n).map(|i| 1.3 + noise(1, i)).collect(),
        ("unary", false) => (0..n).map(|i| 0.1 + 0.75 * noise(2, i)).collect(),
        ("binary", _) => (0..n).map(|i| 0.3 + 0.4 * operand as f64 + 0.9 * noise(3 + operand, i)).collect(),
        _ => golden.data.iter().enumerate().map(|(i, x)| x.to_f64() + 3e-4 * noise(5, i)).collect(),
    };
    Tensor::from_f64(DType::F64, golden.ty.shape.clone(), &numbers)
}

fn weighted(outputs: &[Tensor], cotangents: &[Tensor]) -> f64 {
    let pairs = outputs.iter().filter(|y| y.ty.dtype.is_float()).zip(cotangents);
    pairs.map(|(y, c)| y.to_f64().iter().zip(c.to_f64()).map(|(y, c)| y * c).sum::<f64>()).sum()
}

#[test]
fn gradients_are_those_of_differences() {
    for_every_case(|case| {
        let usable = |g: &Golden| !matches!(g.ty.dtype, DType::F64 | DType::F16 | DType::BF16);
        let tame = |g: &Golden| g.data.iter().all(|x| x.to_f64().abs() < 50.0) || !g.ty.dtype.is_float();
        let scalar_function = matches!(case.op_name(), "unary" | "binary");
        let floats = case.args.iter().any(|a| a.ty.dtype.is_float()) && case.want.iter().any(|w| w.ty.dtype.is_float());
        if !floats
            || !case.args.iter().chain(&case.want).all(usable)
            || !(scalar_function || case.args.iter().all(tame))
            // Its gradient is not its derivative.
            || case.op_name() == "stop_gradient"
        {
            return Ok(());
        }
        difference(case)
    });
}

/// Compares the gradient in random directions with central differences, in f64.
fn difference(case: &Case) -> Result<(), String> {
    let double = |t: &Type| if t.dtype == DType::F32 { t.with_dtype(DType::F64) } else { t.clone() };
    let types = |goldens: &[Golden]| goldens.iter().map(|g| double(&g.ty)).collect::<Vec<_>>();
    let (arg_types, result_types) = (types(&case.args), types(&case.want));
    let forward = graph_of(&case.op.replace("f32", "f64"), &arg_types, &result_types)?;
    let args: Vec<Tensor> = (0..case.args.len()).map(|i| smooth(case, i)).collect();
    let random = |ty: &Type, seed: usize| {
        let numbers: Vec<f64> = (0..ty.shape.elements()).map(|i| 2.0 * noise(seed, i) - 1.0).collect();
        Tensor::from_f64(DType::F64, ty.shape.clone(), &numbers)
    };

    let mut backward = forward.clone();
    let outputs: Vec<Value> =
        forward.outputs.iter().map(|o| o.value).filter(|v| forward.ty(*v).dtype.is_float()).collect();
    let cotangents: Vec<Tensor> = outputs.iter().enumerate().map(|(i, v)| random(forward.ty(*v), 11 + i)).collect();
    // Parameters precede nodes in text only; the graph takes them at any time.
    let seeds: Vec<(Value, Value)> = outputs
        .iter()
        .enumerate()
        .map(|(i, v)| (*v, backward.input(&format!("cot{i}"), forward.ty(*v).clone(), intwain_ir::Rows::Whole)))
        .collect();
    let wrt: Vec<Value> = forward.params.iter().map(|p| p.value).filter(|v| forward.ty(*v).dtype.is_float()).collect();
    let grads = grad::backward(&mut backward, &seeds, &wrt).map_err(|e| e.to_string())?;
    backward.outputs.clear();
    for (i, g) in grads.iter().enumerate() {
        if let Some(g) = g {
            backward.output(&format!("g{i}"), *g);
        }
    }
    verify(&backward).map_err(|problems| problems.iter().map(|p| format!("{p}\n")).collect::<String>())?;
    let all: Vec<Tensor> = args.iter().chain(&cotangents).cloned().collect();
    let mut found = interp::run(&backward, all).map_err(|e| e.to_string())?.into_iter();
    let which: Vec<usize> = (0..args.len()).filter(|i| args[*i].ty.dtype.is_float()).collect();
    for (&operand, gradient) in which.iter().zip(&grads) {
        let gradient = gradient.map(|_| found.next().unwrap().to_f64());
        for seed in [21, 22, 23] {
            let direction = random(&args[operand].ty, seed).to_f64();
            let at = |step: f64| {
                let mut moved = args.clone();
                let numbers: Vec<f64> =
                    args[operand].to_f64().iter().zip(&direction).map(|(x, d)| x + step * d).collect();
                moved[operand] = Tensor::from_f64(DType::F64, args[operand].ty.shape.clone(), &numbers);
                interp::run(&forward, moved).map(|y| weighted(&y, &cotangents)).map_err(|e| e.to_string())
            };
            let differences = (at(1e-6)? - at(-1e-6)?) / 2e-6;
            let terms: Vec<f64> = gradient.iter().flatten().zip(&direction).map(|(g, d)| g * d).collect();
            let (slope, size) = (terms.iter().sum::<f64>(), terms.iter().map(|t| t.abs()).sum::<f64>());
            if (slope - differences).abs() > 1e-6 * (1.0 + size) {
                return Err(format!("operand {operand}: gradient {slope}, differences {differences}"));
            }
        }
    }
    Ok(())
}

/// What one device computes of its parts.
fn local(
    case: &Case,
    whole: &Graph,
    device: usize,
    layouts: (&[Layout], &[Layout]),
    args: &[Tensor],
) -> Result<Vec<Tensor>, String> {
    let (arg_layouts, result_layouts) = layouts;
    let node = whole.nodes.keys().next().unwrap();
    let (globals, global_results) = (whole.arg_types(node), whole.result_types(node));
    let results: Vec<Type> =
        global_results.iter().zip(result_layouts).map(|(t, l)| l.local_type(t, device).unwrap()).collect();
    let cx = LocalCx {
        device,
        args: &globals,
        arg_layouts,
        results: &results,
        global_results: &global_results,
        result_layouts,
    };
    let op = whole.nodes[node].op.localize(&cx);
    let types: Vec<Type> = args.iter().map(|a| a.ty.clone()).collect();
    let graph = graph_of(&op.to_string(), &types, &results).map_err(|e| format!("device {device} runs {op}: {e}"))?;
    interp::run(&graph, args.to_vec()).map_err(|e| format!("{}: {e}", case.name))
}

fn combine(function: Reduce, a: &Tensor, b: &Tensor) -> Tensor {
    let both = a.scalars().into_iter().zip(b.scalars());
    let elements: Vec<_> = both.map(|(x, y)| scalar::binary(function.combine(), x, y)).collect();
    let mut out = a.clone();
    elements.iter().enumerate().for_each(|(i, x)| out.set(i, *x));
    out
}

/// Runs the operation cut along a factor and compares with the whole: bit for bit, but for sums.
fn cut(case: &Case, whole: &Graph, factor: &Factor, units: [usize; 2]) -> Result<(), String> {
    let (args, want) = (factor.operand_layouts(&units), factor.result_layouts(&units));
    let globals = tensors(&case.args);
    let parts: Vec<Vec<Tensor>> = (0..2)
        .map(|k| {
            let mine: Vec<Tensor> = globals.iter().zip(&args).map(|(t, l)| t.part(l, k)).collect();
            local(case, whole, k, (&args, &want), &mine)
        })
        .collect::<Result<_, _>>()?;
    let expected = interp::run(whole, globals).map_err(|e| e.to_string())?;
    for (i, (layout, expected)) in want.iter().zip(&expected).enumerate() {
        let pair = [parts[0][i].clone(), parts[1][i].clone()];
        let (got, exact) = match layout {
            Layout::Split { dim, .. } => (Tensor::join(&pair, *dim), true),
            Layout::Partial(f) => (combine(*f, &pair[0], &pair[1]), factor.kind != FactorKind::Reduce(Reduce::Sum)),
            Layout::Replicated | Layout::On(_) => (pair[0].clone(), true),
        };
        let golden = Golden { ty: expected.ty.clone(), data: expected.scalars() };
        let within = if exact && !matches!(factor.kind, FactorKind::Reduce(Reduce::Prod)) {
            Within::Ulp(0)
        } else {
            loose(case)
        };
        compare(&got.scalars(), &golden, within)
            .map_err(|e| format!("cut {units:?} along {factor:?}, result {i}: {e}"))?;
    }
    Ok(())
}

/// For sums in another order.
fn loose(case: &Case) -> Within {
    let narrow = case.want.iter().any(|w| matches!(w.ty.dtype, DType::F16 | DType::BF16));
    Within::Scale(if narrow { 2e-2 } else { 4e-6 })
}

#[test]
fn every_cut_that_a_rule_allows_gives_the_whole() {
    for_every_case(|case| {
        let whole = graph(case)?;
        let rule = whole.rule(whole.nodes.keys().next().unwrap());
        for factor in &rule.factors {
            let n = factor.extent;
            for units in [[n.div_ceil(2), n / 2], [n, 0], [0, n], [1.min(n), n - 1.min(n)]] {
                // Without its batch groups a convolution has no rows that tell how many rows the result has.
                if units.contains(&0)
                    && case.name.contains("batch groups")
                    && factor.operands.iter().all(Option::is_some)
                {
                    continue;
                }
                cut(case, &whole, factor, units)?;
            }
        }
        Ok(())
    });
}

#[test]
fn every_partial_sum_that_a_rule_allows_gives_the_whole() {
    for_every_case(|case| {
        let whole = graph(case)?;
        let rule = whole.rule(whole.nodes.keys().next().unwrap());
        let globals = tensors(&case.args);
        let finite = globals.iter().all(|t| t.to_f64().iter().all(|x| x.is_finite()));
        let fits = globals.iter().all(|t| Layout::Partial(Reduce::Sum).fits(&t.ty, 2));
        for &set in rule.linear.iter().filter(|_| finite && fits) {
            let partial = |i: usize| set >> i & 1 == 1;
            let sum = Layout::Partial(Reduce::Sum);
            let args: Vec<Layout> =
                (0..globals.len()).map(|i| if partial(i) { sum.clone() } else { Layout::Replicated }).collect();
            let results = vec![sum; case.want.len()];
            let parts: Vec<Vec<Tensor>> = (0..2)
                .map(|k| {
                    let share = |i: usize, t: &Tensor| if partial(i) { share(t, k) } else { t.clone() };
                    let mine: Vec<Tensor> = globals.iter().enumerate().map(|(i, t)| share(i, t)).collect();
                    local(case, &whole, k, (&args, &results), &mine)
                })
                .collect::<Result<_, _>>()?;
            let expected = interp::run(&whole, globals.clone()).map_err(|e| e.to_string())?;
            for (i, expected) in expected.iter().enumerate() {
                let golden = Golden { ty: expected.ty.clone(), data: expected.scalars() };
                let got = combine(Reduce::Sum, &parts[0][i], &parts[1][i]);
                compare(&got.scalars(), &golden, loose(case)).map_err(|e| format!("partial operands {set:#b}: {e}"))?;
            }
        }
        Ok(())
    });
}

/// One of two addends of a tensor: whole numbers, so that integers divide too.
fn share(t: &Tensor, device: usize) -> Tensor {
    let mut part = t.clone();
    for i in 0..t.elements() {
        let first = scalar::cast(t.ty.dtype, intwain_ir::Scalar::from_i64(DType::I64, i as i64 % 5 - 2));
        let rest = scalar::binary(scalar::Binary::Sub, t.get(i), first);
        part.set(i, if device == 0 { first } else { rest });
    }
    part
}

/// Operation, operand types, and the layouts of operands and result that its rule has to allow.
const MUST_ALLOW: &[(&str, &[&str], &[&str])] = &[
    ("unary{function=exp}", &["f32[6, 4]"], &["S(0,[3,3]) -> S(0,[3,3])", "S(1,[3,1]) -> S(1,[3,1])"]),
    ("unary{function=neg}", &["f32[6, 4]"], &["P(sum) -> P(sum)"]),
    (
        "binary{function=add}",
        &["f32[6]", "f32[6]"],
        &["S(0,[4,2]) S(0,[4,2]) -> S(0,[4,2])", "P(sum) P(sum) -> P(sum)"],
    ),
    ("binary{function=mul}", &["f32[6]", "f32[6]"], &["P(sum) R -> P(sum)", "R P(sum) -> P(sum)"]),
    ("binary{function=div}", &["f32[6]", "f32[6]"], &["P(sum) R -> P(sum)"]),
    ("compare{relation=lt}", &["f32[6]", "f32[6]"], &["S(0,[3,3]) S(0,[3,3]) -> S(0,[3,3])"]),
    (
        "select",
        &["bool[6]", "f32[6]", "f32[6]"],
        &["S(0,[5,1]) S(0,[5,1]) S(0,[5,1]) -> S(0,[5,1])", "R P(sum) P(sum) -> P(sum)"],
    ),
    ("cast{to=f64}", &["f32[6]"], &["S(0,[3,3]) -> S(0,[3,3])", "P(sum) -> P(sum)"]),
    (
        "broadcast{shape=[5, 4], dims=[1]}",
        &["f32[4]"],
        &["R -> S(0,[3,2])", "S(0,[2,2]) -> S(1,[2,2])", "P(sum) -> P(sum)"],
    ),
    (
        "reshape{shape=[6, 20]}",
        &["f32[6, 4, 5]"],
        &["S(0,[4,2]) -> S(0,[4,2])", "S(1,[3,1]) -> S(1,[15,5])", "P(sum) -> P(sum)"],
    ),
    ("reshape{shape=[24, 5]}", &["f32[6, 4, 5]"], &["S(0,[4,2]) -> S(0,[16,8])", "S(2,[2,3]) -> S(1,[2,3])"]),
    ("reshape{shape=[6, 4, 5]}", &["f32[24, 5]"], &["S(0,[16,8]) -> S(0,[4,2])"]),
    ("transpose{perm=[1, 0]}", &["f32[6, 4]"], &["S(0,[3,3]) -> S(1,[3,3])", "P(sum) -> P(sum)"]),
    (
        "slice{start=[0, 1], limit=[6, 4], stride=[1, 2]}",
        &["f32[6, 4]"],
        &["S(0,[3,3]) -> S(0,[3,3])", "P(sum) -> P(sum)"],
    ),
    (
        "pad{low=[0, 1], high=[0, 2], interior=[0, 0], value=[f32, 0.0]}",
        &["f32[6, 4]"],
        &["S(0,[3,3]) -> S(0,[3,3])", "P(sum) -> P(sum)"],
    ),
    ("concat{dim=1}", &["f32[6, 4]", "f32[6, 2]"], &["S(0,[3,3]) S(0,[3,3]) -> S(0,[3,3])", "P(sum) P(sum) -> P(sum)"]),
    ("reverse{dims=[1]}", &["f32[6, 4]"], &["S(0,[3,3]) -> S(0,[3,3])"]),
    (
        "reduce{function=sum, dims=[1]}",
        &["f32[6, 4]"],
        &["S(0,[3,3]) -> S(0,[3,3])", "S(1,[2,2]) -> P(sum)", "P(sum) -> P(sum)"],
    ),
    ("reduce{function=max, dims=[1]}", &["f32[6, 4]"], &["S(0,[3,3]) -> S(0,[3,3])", "S(1,[2,2]) -> P(max)"]),
    ("arg_max{dim=1}", &["f32[6, 4]"], &["S(0,[3,3]) -> S(0,[3,3])"]),
    (
        "contract{batch=[], contract=[[1, 0]]}",
        &["f32[5, 4]", "f32[4, 7]"],
        &[
            "S(0,[3,2]) R -> S(0,[3,2])",
            "R S(1,[4,3]) -> S(1,[4,3])",
            "S(1,[2,2]) S(0,[2,2]) -> P(sum)",
            "P(sum) R -> P(sum)",
        ],
    ),
    (
        "contract{batch=[[0, 0], [2, 2]], contract=[[3, 3]]}",
        &["f32[5, 6, 4, 8]", "f32[5, 7, 4, 8]"],
        &[
            "S(0,[3,2]) S(0,[3,2]) -> S(0,[3,2])",
            "S(2,[3,1]) S(2,[3,1]) -> S(1,[3,1])",
            "S(1,[3,3]) R -> S(2,[3,3])",
            "S(3,[4,4]) S(3,[4,4]) -> P(sum)",
        ],
    ),
    (
        "conv{stride=[2, 1], pads=[[1, 1], [0, 0]], input_dilation=[1, 1], kernel_dilation=[1, 1], groups=1, batch_groups=1}",
        &["f32[5, 8, 8, 6]", "f32[3, 3, 6, 4]"],
        &["S(0,[3,2]) R -> S(0,[3,2])", "R S(3,[3,1]) -> S(3,[3,1])", "S(3,[3,3]) S(2,[3,3]) -> P(sum)"],
    ),
    (
        "conv{stride=[1, 1], pads=[[1, 1], [1, 1]], input_dilation=[1, 1], kernel_dilation=[1, 1], groups=6, batch_groups=1}",
        &["f32[5, 8, 8, 6]", "f32[3, 3, 1, 12]"],
        &["S(0,[3,2]) R -> S(0,[3,2])", "S(3,[4,2]) S(3,[8,4]) -> S(3,[8,4])"],
    ),
    (
        "pool{function=max, size=[2, 2], stride=[2, 2], pads=[[0, 0], [0, 0]], dilation=[1, 1], input_dilation=[1, 1]}",
        &["f32[5, 8, 8, 6]"],
        &["S(0,[3,2]) -> S(0,[3,2])", "S(3,[4,2]) -> S(3,[4,2])"],
    ),
    (
        "pool{function=sum, size=[2, 2], stride=[2, 2], pads=[[0, 0], [0, 0]], dilation=[1, 1], input_dilation=[1, 1]}",
        &["f32[5, 8, 8, 6]"],
        &["S(0,[3,2]) -> S(0,[3,2])", "S(3,[4,2]) -> S(3,[4,2])", "P(sum) -> P(sum)"],
    ),
    ("softmax{dim=2}", &["f32[5, 4, 6]"], &["S(0,[3,2]) -> S(0,[3,2])", "S(1,[2,2]) -> S(1,[2,2])"]),
    ("log_softmax{dim=1}", &["f32[5, 4]"], &["S(0,[3,2]) -> S(0,[3,2])"]),
    (
        "standardize{dims=[2], epsilon=0.001}",
        &["f32[5, 4, 6]"],
        &["S(0,[3,2]) -> S(0,[3,2])", "S(1,[2,2]) -> S(1,[2,2])"],
    ),
    (
        "take{base=0}",
        &["f32[10, 6]", "i32[5, 7]"],
        &["R S(0,[3,2]) -> S(0,[3,2])", "S(1,[3,3]) R -> S(2,[3,3])", "S(0,[5,5]) R -> P(sum)", "P(sum) R -> P(sum)"],
    ),
    (
        "scatter_add{rows=10, base=0}",
        &["i32[5]", "f32[5, 6]"],
        &["R S(1,[3,3]) -> S(1,[3,3])", "R R -> S(0,[5,5])", "S(0,[3,2]) S(0,[3,2]) -> P(sum)"],
    ),
];

fn types(texts: &[&str]) -> Vec<Type> {
    let lines: String = texts.iter().enumerate().map(|(i, t)| format!("input %{i} \"x{i}\": {t}\n")).collect();
    let graph = text::parse(&format!("graph \"types\" imported {{\n{lines}}}")).unwrap();
    graph.params.iter().map(|p| graph.ty(p.value).clone()).collect()
}

fn layout(word: &str) -> Layout {
    let graph =
        text::parse(&format!("graph \"layout\" sharded devices 2 {{\ninput %0 \"x\": f32[] {word}\n}}")).unwrap();
    graph.layout(graph.params[0].value)
}

#[test]
fn the_cuts_that_matter_are_allowed() {
    let mut missing = Vec::new();
    for (op, args, wanted) in MUST_ALLOW {
        let args = types(args);
        let mut graph = Graph::new("rule");
        let values: Vec<Value> = args
            .iter()
            .enumerate()
            .map(|(i, t)| graph.input(&format!("x{i}"), t.clone(), intwain_ir::Rows::Whole))
            .collect();
        let parsed = text::parse(&format!(
            "graph \"op\" imported {{\n{}\n%{} = {op} {} : f32[]\n}}",
            args.iter().enumerate().map(|(i, t)| format!("input %{i} \"x{i}\": {t}")).collect::<Vec<_>>().join("\n"),
            args.len(),
            (0..args.len()).map(|i| format!("%{i}")).collect::<Vec<_>>().join(" ")
        ))
        .unwrap();
        graph.push(parsed.nodes.values().next().unwrap().op.clone(), &values).unwrap();
        let rule = graph.rule(graph.nodes.keys().next().unwrap());
        for line in *wanted {
            let (operands, result) = line.split_once(" -> ").unwrap();
            let operands: Vec<Layout> = operands.split(' ').map(layout).collect();
            if !rule.allows(&operands, &[layout(result)]) {
                missing.push(format!("{op}: {line}"));
            }
        }
    }
    assert!(missing.is_empty(), "not allowed:\n{}", missing.join("\n"));
}
