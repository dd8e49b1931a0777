use super::*;
use crate::samples::{arguments, f32s, run_explicit};
use intwain_ir::interp::run;
use intwain_ir::ops::{Contract, Reshard};
use intwain_ir::scalar::Reduce;
use intwain_ir::{Rows, verify};

/// `x` in a layout, brought into another, and back to every device if that is partial.
fn conversion(devices: usize, from: &Layout, to: &Layout) -> (Graph, Graph) {
    let mut whole = Graph::new("conversion");
    let mut explicit = Graph::new("conversion");
    (explicit.stage, explicit.devices) = (Stage::Explicit, devices);
    for (g, divided) in [(&mut whole, false), (&mut explicit, true)] {
        let push = |g: &mut Graph, op: Op, args: &[Value], layout: &Layout| {
            let value = g.push(op, args).unwrap();
            g.values[value].layout = divided.then(|| layout.clone());
            value
        };
        let param = |g: &mut Graph, name: &str, shape: [usize; 2], layout: Layout| {
            let value = g.input(name, f32s(shape), Rows::Whole);
            g.values[value].layout = divided.then_some(layout);
            value
        };
        let x = if matches!(from, Layout::Partial(_)) {
            // A product over a dimension that is divided leaves a partial sum.
            let sizes: Vec<usize> = (0..devices).map(|k| if k == 0 { 4 - (devices - 1) } else { 1 }).collect();
            let a = param(g, "a", [5, 4], Layout::split(1, sizes.clone()));
            let b = param(g, "b", [4, 6], Layout::split(0, sizes));
            push(g, Contract { batch: vec![], contract: vec![(1, 0)] }.into(), &[a, b], from)
        } else {
            param(g, "x", [5, 6], from.clone())
        };
        let mut y = x;
        if divided {
            y = push(g, Reshard { channel: 0 }.into(), &[x], to);
            if matches!(to, Layout::Partial(_)) {
                y = push(g, Reshard { channel: 1 }.into(), &[y], &Layout::Replicated);
            }
        }
        g.output("y", y);
    }
    (whole, explicit)
}

#[test]
fn every_conversion_keeps_the_value() {
    let layouts = |devices: usize| -> Vec<Layout> {
        let splits: &[(usize, &[usize])] = match devices {
            2 => &[(0, &[3, 2]), (0, &[1, 4]), (0, &[5, 0]), (1, &[3, 3]), (1, &[0, 6])],
            _ => &[(0, &[2, 2, 1]), (0, &[0, 5, 0]), (1, &[1, 2, 3])],
        };
        let splits = splits.iter().map(|(dim, sizes)| Layout::split(*dim, sizes.iter().copied()));
        let others = [Layout::Replicated, Layout::Partial(Reduce::Sum)];
        splits.chain(others).chain((0..devices).map(Layout::On)).collect()
    };
    for devices in [2, 3] {
        for from in layouts(devices) {
            for to in layouts(devices).into_iter().filter(|to| *to != from) {
                let (whole, explicit) = conversion(devices, &from, &to);
                verify(&explicit).unwrap_or_else(|p| panic!("{from} to {to}: {}", p[0]));
                let args = arguments(&whole, 5);
                let (want, got) = (run(&whole, args.clone()).unwrap(), run_explicit(&explicit, &args));
                for (x, y) in want[0].to_f64().iter().zip(got[0].to_f64()) {
                    assert!((x - y).abs() < 1e-6, "{from} to {to}");
                }
            }
        }
    }
}

#[test]
fn between_different_partial_values_there_is_no_way() {
    let (_, mut explicit) = conversion(2, &Layout::Partial(Reduce::Sum), &Layout::Partial(Reduce::Max));
    explicit.stage = Stage::Explicit;
    let error = partition(&explicit).unwrap_err();
    assert!(matches!(error, PartitionError::Conversion { .. }), "{error}");
}

#[test]
fn only_explicit_graphs_are_divided() {
    let graph = crate::samples::mlp(2, 4);
    assert_eq!(partition(&graph).unwrap_err(), PartitionError::Stage(Stage::Imported));
}

#[test]
fn a_value_that_is_elsewhere_is_named() {
    let mut g = Graph::new("elsewhere");
    (g.stage, g.devices) = (Stage::Explicit, 2);
    let x = g.input("x", f32s([4]), Rows::Whole);
    g.values[x].layout = Some(Layout::On(0));
    g.origin = intwain_ir::Origin::new("layer");
    let y = crate::samples::relu(&mut g, x);
    for (_, value) in g.values.iter_mut() {
        value.layout.get_or_insert(Layout::On(1));
    }
    g.output("y", y);
    let error = partition(&g).unwrap_err();
    assert!(error.to_string().contains("(layer) on device 1 reads %0"), "{error}");
}
