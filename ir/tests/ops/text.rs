//! parse(print(x)) == x, and any other text is an error, not a panic.

use crate::cases::{Random, cases};
use intwain_ir::ops::{self, Op};
use intwain_ir::scalar::Reduce;
use intwain_ir::text::parse;
use intwain_ir::{
    DType, Graph, Layout, Origin, ParamKind, Rows, Scalar, Shape, Stage, Trainable, Turn, Type, Way, interp, verify,
};
use proptest::prelude::*;
use std::sync::Arc;

#[track_caller]
fn reads_back(g: &Graph) {
    let text = g.to_string();
    let read = parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
    assert_eq!(read.to_string(), text);
    assert_eq!(read, *g, "\n{text}");
}

#[test]
fn every_case_reads_back() {
    for case in cases() {
        let mut g = case.graph();
        g.nodes.values_mut().for_each(|n| n.origin = Origin::new("encoder/layer_1"));
        reads_back(&g);
        let read = parse(&g.to_string()).unwrap();
        let want = interp::run(&g, case.args.clone()).unwrap();
        assert_eq!(interp::run(&read, case.args.clone()).unwrap(), want);
    }
}

/// Layouts of every kind, at the stages that have them.
#[test]
fn every_stage_reads_back() {
    for case in cases() {
        let mut g = case.graph();
        (g.stage, g.devices) = (Stage::Sharded, 3);
        let values: Vec<_> = g.values.keys().collect();
        for (i, v) in values.into_iter().enumerate() {
            let shape = g.shape(v).clone();
            g.values[v].layout = Some(match i % 4 {
                0 if !shape.is_empty() => Layout::split(0, [shape[0], 0, 0]),
                1 => Layout::Partial(Reduce::ALL[i / 4 % Reduce::ALL.len()]),
                2 => Layout::On(i % 3),
                _ => Layout::Replicated,
            });
        }
        reads_back(&g);
        g.stage = Stage::Explicit;
        let last = g.outputs.last().map(|o| o.value);
        if let Some(v) = last {
            let moved = g.push(ops::Reshard { channel: 17 }, &[v]).unwrap();
            g.values[moved].layout = Some(Layout::Replicated);
        }
        reads_back(&g);
    }
}

/// A device's graph with all communication.
fn local() -> Graph {
    let mut g = Graph::new("local");
    (g.stage, g.devices, g.device) = (Stage::Local, 2, 1);
    let x = g.input("x", Type::new(DType::F32, [2, 4]), Rows::Batched);
    let sum = ops::AllReduce { channel: 0, function: Reduce::Sum, device: 1, devices: 2 };
    let y = g.push(sum, &[x]).unwrap();
    let y = g.push(ops::AllGather { channel: 1, dim: 0, sizes: vec![3, 2], device: 1 }, &[y]).unwrap();
    let scatter = ops::ReduceScatter { channel: 2, function: Reduce::Max, dim: 1, sizes: vec![4, 0], device: 1 };
    let z = g.push(scatter, &[y]).unwrap();
    g.origin = Origin::new("out");
    g.push_all(ops::Send { channel: 3, to: 0 }, &[z]).unwrap();
    g.push_all(ops::Send { channel: 6, to: 0 }, &[y]).unwrap();
    let w = g.push(ops::Recv { channel: 4, from: 0, ty: Type::new(DType::BF16, [1, 2]) }, &[]).unwrap();
    let turn = ops::AllToAll { channel: 5, from: 0, from_sizes: vec![0, 1], to: 1, to_sizes: vec![1, 1], device: 1 };
    let v = g.push(turn, &[w]).unwrap();
    let kept = vec![ops::Kept::All, ops::Kept::Part { dim: 0, sizes: vec![1, 4] }];
    let bucket = ops::Bucket { channel: 7, function: Reduce::Sum, kept, device: 1, devices: 2 };
    let sums = g.push_all(bucket, &[v, y]).unwrap();
    g.output("part", sums[1]);
    g.output("v", v);
    g.origin = Origin::default();
    g
}

#[test]
fn local_graphs_read_back() {
    let g = local();
    verify(&g).unwrap();
    reads_back(&g);
    let names: Vec<&str> = g.nodes.values().map(|n| n.op.name()).collect();
    for name in crate::cases::COMMUNICATION {
        assert!(names.contains(name) || *name == "reshard", "`{name}` has no text test");
    }
}

#[test]
fn strange_numbers_and_names_read_back() {
    let mut g = Graph::new("a \"quoted\" \\ name\n\t\u{7f}é\u{301}\u{202e}");
    let odd = ["", " ", "#", "\"", " # x", "a # b", "\u{a0}x", "x\r", "x\ny", "%1 = {", "\u{2028}", "é\u{301}", "x "];
    for dtype in [DType::F16, DType::BF16, DType::F32, DType::F64] {
        let nan = if dtype == DType::F64 { 0x7ff8_0000_0000_0bad } else { 0x7fc0_0bad };
        let numbers = [f64::NAN, -0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY, 1e-45, 0.1, -1.0 / 3.0, 6e-8, 65504.0];
        let mut elements: Vec<Scalar> = numbers.iter().map(|x| Scalar::from_f64(dtype, *x)).collect();
        elements.push(Scalar::from_bits(dtype, nan));
        elements.push(Scalar::from_bits(dtype, u64::MAX));
        elements.push(Scalar::from_bits(dtype, 1));
        let n = elements.len();
        g.push(ops::Constant { shape: Shape::from([n]), elements }, &[]).unwrap();
    }
    for dtype in [DType::Bool, DType::I8, DType::I16, DType::I32, DType::I64, DType::U8, DType::U32] {
        let elements = vec![Scalar::lowest(dtype), Scalar::highest(dtype), Scalar::one(dtype)];
        g.push(ops::Constant { shape: Shape::from([3]), elements }, &[]).unwrap();
    }
    let ty = Type::new(DType::F64, [2]);
    for (i, name) in odd.iter().enumerate() {
        g.param(name, ty.clone(), ParamKind::Weight { trainable: [Trainable::Yes, Trainable::Frozen][i % 2] });
    }
    let x = g.param("state", ty.clone(), ParamKind::State { next: None });
    let mut last = x;
    for name in odd {
        g.origin = Origin::new(name);
        last = g.unary(intwain_ir::scalar::Unary::Neg, last).unwrap();
        let turn = Turn { segment: 1, micro_batch: 3, way: Way::Backward };
        g.origin = g.origin.in_turn(Some(turn));
        last = g.unary(intwain_ir::scalar::Unary::Neg, last).unwrap();
        g.origin = g.origin.again();
        last = g.unary(intwain_ir::scalar::Unary::Neg, last).unwrap();
        g.origin = Origin::new(name).again();
        last = g.unary(intwain_ir::scalar::Unary::Neg, last).unwrap();
        let epsilon = [1e-300, f64::INFINITY, 0.1][g.nodes.len() % 3];
        g.push(ops::Standardize { dims: vec![0], epsilon }, &[last]).unwrap();
        g.output(name, last);
    }
    g.origin = Origin::default();
    let state = g.params.len() - 1;
    g.params[state].kind = ParamKind::State { next: Some(last) };
    reads_back(&reordered(&g));
}

/// The same graph with parameters first, as the text has them.
fn reordered(g: &Graph) -> Graph {
    let next = g.params.iter().find_map(|p| match p.kind {
        ParamKind::State { next } => next,
        ParamKind::Input { .. } | ParamKind::Weight { .. } => None,
    });
    let mut without = g.clone();
    for p in &mut without.params {
        if let ParamKind::State { next } = &mut p.kind {
            *next = None;
        }
    }
    let mut rw = intwain_ir::Rewriter::new(&without);
    let nodes: Vec<_> = g.nodes.keys().collect();
    nodes.iter().for_each(|n| rw.copy(*n).unwrap());
    let next = next.map(|n| rw.value(n));
    let mut new = rw.finish();
    for p in &mut new.params {
        if let ParamKind::State { next: n } = &mut p.kind {
            *n = next;
        }
    }
    new
}

#[test]
fn nesting_is_bounded() {
    let lists =
        format!("graph \"g\" imported {{\n  %0 = reshape{{shape={}{}}}\n}}", "[".repeat(100_000), "]".repeat(100_000));
    assert!(parse(&lists).unwrap_err().to_string().contains("nested too deeply"));
    let graphs = "graph \"g\" imported {\n scan{body=".repeat(100_000);
    assert!(parse(&graphs).unwrap_err().to_string().contains("nested too deeply"));
    // As deep as it may be.
    let mut g = Graph::new("leaf");
    for _ in 0..15 {
        let mut outer = Graph::new("outer");
        outer.push_all(ops::Scan { count: 0, states: 0, sequences: 0, body: Arc::new(g) }, &[]).unwrap();
        g = outer;
    }
    reads_back(&g);
    verify(&g).unwrap();
}

#[test]
fn errors_name_the_line() {
    let bad = [
        ("", "line 1: expected `graph`"),
        ("graph \"g\" imported {\n", "line 1: the text ends too early"),
        ("graph \"g\" nowhere {\n}", "line 1: `nowhere` is no stage"),
        ("graph \"g\" imported {\n  %0 = nothing : f32[]\n}", "line 2: `nothing` is no operation"),
        ("graph \"g\" imported {\n  input %1 \"x\": f32[]\n}", "value %1 is defined where %0 comes next"),
        ("graph \"g\" imported {\n  input %0 \"x\": f33[]\n}", "`f33` is no element type"),
        ("graph \"g\" imported {\n  input %0 \"x\": f32[-1]\n}", "`-1` is not a number"),
        ("graph \"g\" imported {\n\n  output \"y\" %3\n}", "line 3: %3 is not defined"),
        ("graph \"g\" imported {\n  output \"y\n\" %3\n}", "line 2: a string does not end on its line"),
        ("graph \"g\" imported {\n  %4294967295 = iota\n}", "line 2: `%4294967295` names no value"),
        ("graph \"g\" imported {\n  %0 = unary{function=foo} : f32[]\n}", "`foo` is not a function of one value"),
        ("graph \"g\" imported {\n  %0 = unary{} : f32[]\n}", "line 2"),
        ("graph \"g\" imported {\n  %0 = unary{function=neg, more=1} : f32[]\n}", "attribute `more` is not known"),
        ("graph \"g\" imported {\n  %0 = unary : f32[]\n}", "attribute `function` is missing"),
        ("graph \"g\" imported {\n}\n}", "line 2: text after the graph"),
        ("graph \"g\" imported {\n  input %0 \"x\": f32[2] S(0,[1,1]\n}", "line 2: expected `)`"),
        ("graph \"g\" imported {\n  input %0 \"x\": f32[2] P(avg)\n}", "`avg` is no reduction"),
        ("graph \"g\" imported {\n  é\n}", "line 2: unexpected `é`"),
        ("graph \"g\\u{d800}\" imported {\n}", "bad escape"),
    ];
    for (text, want) in bad {
        let e = parse(text).expect_err(text).to_string();
        assert!(e.contains(want), "{text:?}: {e}");
    }
}

/// Text of all cases together.
fn corpus() -> Vec<String> {
    let mut all: Vec<String> = cases().iter().map(|c| c.graph().to_string()).collect();
    let mut sharded = cases().remove(0).graph();
    sharded.stage = Stage::Explicit;
    sharded.devices = 2;
    let values: Vec<_> = sharded.values.keys().collect();
    values.into_iter().for_each(|v| sharded.values[v].layout = Some(Layout::split(0, [2, 3])));
    all.extend([local().to_string(), sharded.to_string()]);
    all
}

/// Cuts, doubles, swaps and replaces pieces of text.
fn mutate(text: &str, random: &mut Random) -> String {
    let words = [
        "%0",
        "%1",
        "%4294967294",
        "{",
        "}",
        "[",
        "]",
        "(",
        ")",
        ",",
        ":",
        "=",
        "\"",
        "#",
        "graph",
        "-1",
        "0",
        "4294967296",
        "9223372036854775807",
        "-9223372036854775808",
        "18446744073709551615",
        "S(0,[1,1])",
        "P(sum)",
        "X(9)",
        "R",
        "imported",
        "explicit",
        "local",
        "state",
        "next",
        "\\u{110000}",
        "1e999",
        "NaN",
        "0xffffffffffffffff",
        "\u{0}",
        "é",
        "\n",
        "f64[]",
        "bool[2]",
        "i32[1, 1]",
    ];
    let mut pieces: Vec<String> = Vec::new();
    let mut piece = String::new();
    for c in text.chars() {
        if !(c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '%')) {
            pieces.push(std::mem::take(&mut piece));
            pieces.push(c.to_string());
        } else {
            piece.push(c);
        }
    }
    for _ in 0..1 + random.below(4) {
        let (i, j) = (random.below(pieces.len()), random.below(pieces.len()));
        match random.below(6) {
            0 => pieces[i].clear(),
            1 => pieces[i] = pieces[j].clone(),
            2 => pieces.swap(i, j),
            3 => pieces[i] = words[random.below(words.len())].into(),
            4 => pieces.truncate(i.max(1)),
            _ => {
                // A number: where they matter most.
                let numbers: Vec<usize> = (0..pieces.len()).filter(|&k| pieces[k].parse::<f64>().is_ok()).collect();
                if !numbers.is_empty() {
                    pieces[numbers[random.below(numbers.len())]] = words[random.below(words.len())].into();
                }
            }
        }
    }
    pieces.concat()
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 3000, ..ProptestConfig::default() })]

    /// Neither reading, nor verifying what was read, nor its rules and costs, panic.
    #[test]
    fn hostile_text_never_panics(seed: u64) {
        thread_local! { static CORPUS: Vec<String> = corpus(); }
        let mut random = Random::new(seed);
        let text = CORPUS.with(|c| mutate(&c[random.below(c.len())], &mut random));
        if let Ok(g) = parse(&text) {
            prop_assert_eq!(parse(&g.to_string()).map(|g| g.to_string()), Ok(g.to_string()));
            if verify(&g).is_ok() {
                for n in g.nodes.keys() {
                    let _ = (g.rule(n), g.flops(n));
                }
            }
        }
    }

    #[test]
    fn noise_never_panics(text in "\\PC{0,200}") {
        let _ = parse(&text);
        let _ = parse(&format!("graph \"g\" imported {{\n{text}\n}}"));
    }
}

#[test]
fn operations_print_as_they_parse() {
    for name in Op::NAMES {
        assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '_'), "`{name}`");
        assert!(Op::parse(name, Default::default()).is_some());
    }
    assert!(Op::parse("nothing", Default::default()).is_none());
}
