//! Along what a scan can be cut: the batch of its states and sequences, never what the recurrence mixes.

use crate::cases::{Case, Fill, Random, cases_of, nested_body, recurrent_body};
use crate::rules::run_cut;
use intwain_ir::shard::{FactorDim, FactorKind};
use intwain_ir::{DType, Graph, Rows, Shape, Tensor, Type, interp, ops};
use std::sync::Arc;

fn dim(dim: usize, unit: usize) -> Option<FactorDim> {
    Some(FactorDim::new(dim, unit))
}

#[test]
fn a_recurrence_is_cut_along_its_batch_only() {
    let body = Arc::new(recurrent_body(4, 3, 2));
    let case = cases_of("scan recurrent").remove(0);
    let op = ops::Scan { count: 5, states: 2, sequences: 1, body };
    let g = case.graph();
    assert_eq!(g.nodes.values().next().unwrap().op, op.into());
    let rule = g.rule(g.nodes.keys().next().unwrap());
    let [f] = rule.factors.as_slice() else { panic!("{rule:?}") };
    assert_eq!((f.extent, f.kind), (4, FactorKind::Pass));
    assert_eq!(f.operands, [dim(0, 1), dim(0, 1), dim(1, 1), None, None, None]);
    assert_eq!(f.results, [dim(0, 1), dim(0, 1), dim(1, 1)]);
}

/// What the body handles column by column can be cut with the weights that belong to the columns.
#[test]
fn columns_are_cut_with_their_weights() {
    let case = cases_of("scan nested").remove(0);
    let g = case.graph();
    let rule = g.rule(g.nodes.keys().next().unwrap());
    let operands: Vec<_> = rule.factors.iter().map(|f| f.operands.clone()).collect();
    assert_eq!(operands, [vec![dim(0, 1), dim(2, 1), None], vec![dim(1, 1), dim(3, 1), dim(0, 1)]]);
    assert!(nested_body().nodes.values().any(|n| n.op.name() == "scan"));
}

/// A body that reshapes [n·2, 3] to [n, 6] is cut in units of two rows; one that sorts rows into columns is not cut.
#[test]
fn units_follow_reshapes() {
    let body = |second: [usize; 2]| {
        let mut g = Graph::new("body");
        let s = g.input("s", Type::new(DType::F64, [4, 3]), Rows::Whole);
        let x = g.input("x", Type::new(DType::F64, [4, 3]), Rows::Whole);
        let sum = g.add(s, x).unwrap();
        let folded = g.reshape(sum, &Shape::from(second)).unwrap();
        g.output("s", sum);
        g.output("y", folded);
        Arc::new(g)
    };
    let mut random = Random::new(5);
    let real = Fill::Real(DType::F64, -1.0, 1.0);
    let args: Vec<Tensor> = vec![real.tensor(&[4, 3], &mut random), real.tensor(&[3, 4, 3], &mut random)];
    let scan = ops::Scan { count: 3, states: 1, sequences: 1, body: body([2, 6]) };
    let case = Case { name: "scan folding".into(), op: scan.into(), args };
    let g = case.graph();
    let rule = g.rule(g.nodes.keys().next().unwrap());
    let [f] = rule.factors.as_slice() else { panic!("{rule:?}") };
    assert_eq!((f.extent, &f.operands, &f.results), (2, &vec![dim(0, 2), dim(1, 2)], &vec![dim(0, 2), dim(1, 1)]));
    let want = interp::run(&g, case.args.clone()).unwrap();
    for units in [[1, 1], [0, 2]] {
        let (args, results) = (f.operand_layouts(&units), f.result_layouts(&units));
        let part = |d: usize| case.args.iter().zip(&args).map(|(t, l)| t.part(l, d)).collect();
        let got = run_cut(&case, &args, &results, &[part(0), part(1)]);
        assert_eq!(got, want);
    }
}
