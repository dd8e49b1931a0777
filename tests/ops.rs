//! Every operation: its values against NumPy and TensorFlow (`tests/goldens/ops.jsonl`, made by `tools/make_op_goldens.py`), its gradient
//! against differences, its text form, and every way its rule allows to cut it.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use intwain_ir::ops::{LocalCx, Op};
use intwain_ir::scalar::{self, Reduce};
use intwain_ir::shard::{Factor, FactorKind};
use intwain_ir::{DType, Graph, Layout, Tensor, Type, Value, grad, interp, text, verify};
use support::goldens::{Case, Golden, cases, compare};

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
        ["all_gather", "all_reduce", "all_to_all", "recv", "reduce_scatter", "reshard", "send"];
    let missing: Vec<_> = Op::NAMES.iter().filter(|n| !communication.contains(n) && !tried.iter().any(|t| t == *n)).collect();
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
