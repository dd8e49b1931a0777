//! What verification is for: every seeded defect, at every place where it can be, is found.
//!
//! Runs on the small models that are checked in; with `INTWAIN_ZOO=DIR` also on `lenet`, `unet` and `gpt` of that folder.

#![allow(clippy::unwrap_used, reason = "a test fails where something is missing")]

use intwain::build::{self, Request};
use intwain::{Catalogue, Compiled, Model, ModelOptions, Strategy, Timings};
use intwain_ir::ops::{AllReduce, Constant, Op, Pad};
use intwain_ir::scalar::{Binary, Reduce};
use intwain_ir::{Graph, NodeId, Rewriter, Scalar, Type, Value};
use intwain_passes::check;
use intwain_passes::check::placement::Interface;
use intwain_passes::program::{Action, DeviceProgram};
use std::path::PathBuf;

fn models() -> Vec<PathBuf> {
    let goldens = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/goldens/models");
    let mut models: Vec<PathBuf> =
        ["decoder", "residual", "two_tower"].iter().map(|n| goldens.join(format!("{n}.keras"))).collect();
    if let Some(zoo) = std::env::var_os("INTWAIN_ZOO") {
        models.extend(["lenet", "unet", "gpt"].iter().map(|n| PathBuf::from(&zoo).join(n).join("model.keras")));
    }
    models
}

/// Every model under every strategy that divides it.
fn programs(visit: impl Fn(&str, &Compiled)) {
    for file in models() {
        let model = Model::open(&file, ModelOptions::default()).unwrap();
        for strategy in [Strategy::Tensor, Strategy::Pipeline, Strategy::Data] {
            let request = Request::new(Catalogue::built_in().get("cpu").unwrap(), 5).split(strategy);
            let compiled = build::compile(&model, &request, &mut Timings::default(), &mut |_, _| {}).unwrap();
            assert!(placement(&compiled, &compiled.locals).is_empty());
            assert!(check::program::check(&compiled.programs).is_empty());
            let folder = file.parent().and_then(|p| p.file_name()).map(|n| n.to_string_lossy().into_owned());
            visit(&format!("{}/{} under {strategy}", folder.unwrap_or_default(), model.name()), &compiled);
        }
    }
}

fn placement(compiled: &Compiled, locals: &[Graph]) -> Vec<String> {
    let faults = check::placement::check(&compiled.graph, &Interface::of(&compiled.explicit), locals);
    faults.iter().map(ToString::to_string).collect()
}

/// Where the devices meet: the node of each device, by the number of the communication.
fn meetings(locals: &[Graph], is_site: fn(&Op) -> bool) -> Vec<Vec<NodeId>> {
    let sites = |g: &Graph| g.nodes.iter().filter(|(_, n)| is_site(&n.op)).map(|(id, _)| id).collect::<Vec<_>>();
    let all: Vec<Vec<NodeId>> = locals.iter().map(sites).collect();
    (0..all[0].len()).map(|i| all.iter().map(|ids| ids[i]).collect()).collect()
}

fn is_collective(op: &Op) -> bool {
    matches!(op, Op::AllReduce(_) | Op::AllGather(_) | Op::ReduceScatter(_) | Op::AllToAll(_))
}

/// A graph with something else in the place of one node's results.
fn replaced(local: &Graph, at: NodeId, change: impl Fn(&mut Rewriter<'_>, NodeId)) -> Graph {
    let mut rw = Rewriter::new(local);
    for id in local.nodes.keys() {
        if id == at { change(&mut rw, id) } else { rw.copy(id).unwrap() }
    }
    rw.finish()
}

fn all_replaced(locals: &[Graph], sites: &[NodeId], change: impl Fn(&mut Rewriter<'_>, NodeId)) -> Vec<Graph> {
    locals.iter().zip(sites).map(|(g, id)| replaced(g, *id, &change)).collect()
}

fn only(rw: &Rewriter<'_>, id: NodeId) -> (Value, Value) {
    let node = &rw.old().nodes[id];
    (rw.value(node.args[0]), node.results[0])
}

/// What a device has in place of a result that nobody sent.
fn zeros(rw: &mut Rewriter<'_>, ty: &Type) -> Value {
    let op = Constant { shape: ty.shape.clone(), elements: vec![Scalar::zero(ty.dtype)] };
    rw.new.push(op, &[]).unwrap()
}

/// The own part with nothing around it.
fn padded(rw: &mut Rewriter<'_>, part: Value, dim: usize, sizes: &[usize], device: usize) -> Value {
    let ty = rw.new.ty(part).clone();
    let (mut low, mut high) = (vec![0; ty.rank()], vec![0; ty.rank()]);
    low[dim] = sizes[..device].iter().sum::<usize>() as i64;
    high[dim] = sizes[device + 1..].iter().sum::<usize>() as i64;
    let pad = Pad { low, high, interior: vec![0; ty.rank()], value: vec![Scalar::zero(ty.dtype)] };
    rw.new.push(pad, &[part]).unwrap()
}

fn dropped(rw: &mut Rewriter<'_>, id: NodeId) {
    let (part, result) = only(rw, id);
    let ty = rw.old().ty(result).clone();
    let value = match rw.old().nodes[id].op.clone() {
        Op::AllReduce(_) => part,
        Op::AllGather(o) => padded(rw, part, o.dim, &o.sizes, o.device),
        Op::ReduceScatter(o) => {
            let start: usize = o.sizes[..o.device].iter().sum();
            rw.new.slice_dim(part, o.dim, start..start + o.sizes[o.device]).unwrap()
        }
        _ => zeros(rw, &ty),
    };
    rw.set(result, value);
}

#[test]
fn a_dropped_collective_is_found() {
    let sites = std::cell::Cell::new(0);
    programs(|name, compiled| {
        for (i, site) in meetings(&compiled.locals, is_collective).iter().enumerate() {
            let faults = placement(compiled, &all_replaced(&compiled.locals, site, dropped));
            assert!(!faults.is_empty(), "{name}, site {i}");
            sites.set(sites.get() + 1);
        }
    });
    assert!(sites.get() > 5, "{} sites", sites.get());
}

#[test]
fn a_collective_on_one_device_only_is_found() {
    programs(|name, compiled| {
        for (i, site) in meetings(&compiled.locals, is_collective).iter().enumerate() {
            for device in 0..2 {
                let mut locals = compiled.locals.clone();
                locals[device] = replaced(&locals[device], site[device], dropped);
                assert!(!placement(compiled, &locals).is_empty(), "{name}, site {i}, device {device}");
            }
        }
    });
}

#[test]
fn a_doubled_collective_is_found() {
    programs(|name, compiled| {
        for (i, site) in meetings(&compiled.locals, is_collective).iter().enumerate() {
            let double = |rw: &mut Rewriter<'_>, id: NodeId| {
                rw.copy(id).unwrap();
                let result = rw.old().nodes[id].results[0];
                let device = rw.old().device;
                let op = AllReduce { channel: 1_000_000, function: Reduce::Sum, device, devices: 2 };
                let once = rw.value(result);
                let twice = rw.new.push(op, &[once]).unwrap();
                rw.set(result, twice);
            };
            let faults = placement(compiled, &all_replaced(&compiled.locals, site, double));
            assert!(!faults.is_empty(), "{name}, site {i}");
        }
    });
}

#[test]
fn a_partial_sum_fed_to_relu_is_found() {
    let sites = std::cell::Cell::new(0);
    programs(|name, compiled| {
        let is_sum = |op: &Op| matches!(op, Op::AllReduce(_) | Op::ReduceScatter(_));
        for (i, site) in meetings(&compiled.locals, is_sum).iter().enumerate() {
            let relu = |rw: &mut Rewriter<'_>, id: NodeId| {
                let (part, _) = only(rw, id);
                let ty = rw.new.ty(part).clone();
                let zero = zeros(rw, &ty);
                let positive = rw.new.binary(Binary::Max, part, zero).unwrap();
                let op = rw.old().nodes[id].op.clone();
                rw.copy_with(id, op, &[positive]).unwrap();
            };
            let faults = placement(compiled, &all_replaced(&compiled.locals, site, relu));
            assert!(!faults.is_empty(), "{name}, site {i}");
            sites.set(sites.get() + 1);
        }
    });
    assert!(sites.get() > 3, "{} sites", sites.get());
}

#[test]
fn exchanged_halves_are_found() {
    let sites = std::cell::Cell::new(0);
    programs(|name, compiled| {
        // Parts of a gather put together in the wrong order.
        let is_gather = |op: &Op| matches!(op, Op::AllGather(_));
        for (i, site) in meetings(&compiled.locals, is_gather).iter().enumerate() {
            let exchange = |rw: &mut Rewriter<'_>, id: NodeId| {
                rw.copy(id).unwrap();
                let result = rw.old().nodes[id].results[0];
                let Op::AllGather(o) = &rw.old().nodes[id].op else { unreachable!() };
                let (whole, first) = (rw.value(result), o.sizes[0]);
                let all: usize = o.sizes.iter().sum();
                let front = rw.new.slice_dim(whole, o.dim, 0..first).unwrap();
                let back = rw.new.slice_dim(whole, o.dim, first..all).unwrap();
                let swapped = rw.new.push(intwain_ir::ops::Concat { dim: o.dim }, &[back, front]).unwrap();
                rw.set(result, swapped);
            };
            let faults = placement(compiled, &all_replaced(&compiled.locals, site, exchange));
            assert!(!faults.is_empty(), "{name}, gather {i}");
            sites.set(sites.get() + 1);
        }
        // Parts of the host's tensors given to the other device, where the sizes are equal.
        let interface = Interface::of(&compiled.explicit);
        let mut mirrored = compiled.locals.clone();
        mirrored.swap(0, 1);
        for (k, g) in mirrored.iter_mut().enumerate() {
            g.device = k;
        }
        let faults = check::placement::check(&compiled.graph, &interface, &mirrored);
        assert!(!faults.is_empty(), "{name}: devices exchanged");
    });
    assert!(sites.get() > 0, "{} sites", sites.get());
}

#[test]
fn a_dropped_message_is_found() {
    let sites = std::cell::Cell::new(0);
    programs(|name, compiled| {
        for (device, local) in compiled.locals.iter().enumerate() {
            for (id, node) in &local.nodes {
                let mut locals = compiled.locals.clone();
                match &node.op {
                    Op::Send(_) => locals[device] = replaced(local, id, |_, _| {}),
                    Op::Recv(o) => {
                        let nothing = |rw: &mut Rewriter<'_>, id: NodeId| {
                            let zero = zeros(rw, &o.ty);
                            rw.set(rw.old().nodes[id].results[0], zero);
                        };
                        locals[device] = replaced(local, id, nothing);
                    }
                    _ => continue,
                }
                assert!(!placement(compiled, &locals).is_empty(), "{name}, {id} of device {device}");
                sites.set(sites.get() + 1);
            }
        }
    });
    assert!(sites.get() > 5, "{} sites", sites.get());
}

fn communications(program: &DeviceProgram) -> Vec<usize> {
    let is = |i: &usize| matches!(program.step[*i].action, Action::Communicate(_));
    (0..program.step.len()).filter(is).collect()
}

/// One device does two communications in the other order: they wait for each other, or what meets does not fit.
#[test]
fn crossed_orders_are_found_and_the_circle_is_named() {
    let (sites, circles) = (std::cell::Cell::new(0), std::cell::Cell::new(0));
    programs(|name, compiled| {
        for device in 0..2 {
            let at = communications(&compiled.programs[device]);
            for pair in at.windows(2) {
                let mut programs = compiled.programs.clone();
                programs[device].step.swap(pair[0], pair[1]);
                let faults: Vec<String> = check::program::check(&programs).iter().map(ToString::to_string).collect();
                let sends =
                    |i: usize| matches!(&compiled.programs[device].step[i].action, Action::Communicate(Op::Send(_)));
                let recvs =
                    |i: usize| matches!(&compiled.programs[device].step[i].action, Action::Communicate(Op::Recv(_)));
                // Two sends, or two receives, may cross where the other device's order allows it; a send that overtakes
                // a receive that does not wait for it as well.
                let harmless = (sends(pair[0]) || recvs(pair[0])) && faults.is_empty();
                assert!(!faults.is_empty() || harmless, "{name}, commands {pair:?} of device {device}");
                if let Some(circle) = faults.iter().find(|f| f.contains("deadlock")) {
                    assert!(circle.contains(" of "), "names no layer: {circle}");
                    circles.set(circles.get() + 1);
                }
                sites.set(sites.get() + 1);
            }
        }
    });
    assert!(sites.get() > 5, "{} sites", sites.get());
    assert!(circles.get() > 0, "{} circles", circles.get());
}
