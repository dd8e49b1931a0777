use super::*;
use crate::partition::partition;
use crate::place::{Options, Planner, Sharding, StateSharding, Strategy};
use crate::reshard::{apply, reshard_states};
use crate::samples::{convnet, hardware, mlp, towers, trained, transformer};
use intwain_ir::Rewriter;
use intwain_ir::ops::{AllReduce, Iota, Op};

struct Divided {
    whole: Graph,
    explicit: Graph,
    locals: Vec<Graph>,
}

impl Divided {
    fn check(&self) -> Vec<PlacementFault> {
        check(&self.whole, &Interface::of(&self.explicit), &self.locals)
    }

    fn with(&self, device: usize, local: Graph) -> Vec<PlacementFault> {
        let mut locals = self.locals.clone();
        locals[device] = local;
        check(&self.whole, &Interface::of(&self.explicit), &locals)
    }

    fn name(&self) -> &str {
        &self.whole.name
    }
}

fn divide(graph: &Graph, strategy: Strategy, machine: &str) -> Divided {
    divide_states(graph, strategy, machine, Sharding::default())
}

fn divide_states(graph: &Graph, strategy: Strategy, machine: &str, sharding: Sharding) -> Divided {
    let options = Options { strategy: Some(strategy), sharding, ..Options::default() };
    let plan = Planner::new(graph, &hardware(machine), options).plan().unwrap();
    let explicit = reshard_states(&apply(graph, &plan), &plan.nodes, plan.sharding).unwrap();
    let locals = partition(&explicit).unwrap();
    Divided { whole: graph.clone(), explicit, locals }
}

fn models(rows: usize) -> Vec<Graph> {
    vec![mlp(rows, 16), mlp(rows, 7), towers(rows), convnet(rows), transformer(rows)]
}

fn divided(rows: usize, machine: &str) -> Vec<Divided> {
    let models = models(rows);
    let splits = models.iter().flat_map(|graph| Strategy::ALL.map(|strategy| divide(graph, strategy, machine)));
    let whole_below = 0;
    let parts = |states| divide_states(&trained(rows, 6), Strategy::Data, machine, Sharding { states, whole_below });
    splits.chain(StateSharding::ALL.map(parts)).collect()
}

fn all() -> Vec<Divided> {
    divided(5, "2xa100-nvlink")
}

#[test]
fn every_plan_is_proved() {
    for (rows, machine) in [(1, "2xa100-nvlink"), (4, "cpu"), (5, "a100-rtx4090")] {
        for divided in divided(rows, machine) {
            let faults = divided.check();
            assert!(faults.is_empty(), "{}: {}\n{}", divided.name(), faults[0], divided.locals[faults[0].device]);
        }
    }
}

#[test]
fn an_output_may_be_a_constant_and_no_other_one() {
    let model = |x: f64| {
        let mut g = mlp(4, 8);
        let constant = g.full(intwain_ir::DType::F32, x, &intwain_ir::Shape::from([3])).unwrap();
        g.output("constant", constant);
        g
    };
    let divided = divide(&model(0.0), Strategy::Data, "cpu");
    assert!(divided.check().is_empty(), "{}", divided.check()[0]);
    let other = Divided { whole: model(1.0), ..divided };
    assert!(other.check().iter().any(|fault| fault.to_string().contains("constant")));
}

#[test]
fn positions_that_repeat_along_many_rows_are_the_part_of_any_device() {
    use intwain_ir::{DType, scalar::Compare};
    let model = |along: usize| {
        let mut g = mlp(20, 8);
        let y = g.outputs[0].value;
        let shape = g.shape(y).clone();
        let iota = Iota { dtype: DType::I32, shape: shape.clone(), dim: along, start: 0 };
        let places = g.push(iota, &[]).unwrap();
        let one = g.full(DType::I32, 1.0, &shape).unwrap();
        let masked = g.compare(Compare::Lt, places, one).unwrap();
        let zero = g.full(DType::F32, 0.0, &shape).unwrap();
        let z = g.select(masked, zero, y).unwrap();
        g.output("masked", z);
        g
    };
    let divided = divide(&model(1), Strategy::Data, "cpu");
    assert!(divided.check().is_empty(), "{}", divided.check()[0]);
    // Positions along the rows are others on each device.
    let other = Divided { whole: model(0), ..divided };
    assert!(!other.check().is_empty());
}

#[test]
fn random_bits_are_those_of_the_rows_that_a_device_has() {
    use intwain_ir::ops::Random;
    use intwain_ir::{DType, ParamKind, Type, scalar::Compare};
    let model = |key: u64, first: usize| {
        let mut g = mlp(20, 8);
        let y = g.outputs[0].value;
        let shape = g.shape(y).clone();
        let step = g.param("@step", Type::new(DType::U32, []), ParamKind::State { next: None });
        let one = g.full(DType::U32, 1.0, &intwain_ir::Shape::from([])).unwrap();
        let next = g.add(step, one).unwrap();
        g.params.last_mut().unwrap().kind = ParamKind::State { next: Some(next) };
        let bits = g.push(Random { start: vec![first, 0], ..Random::whole(key, &shape) }, &[step]).unwrap();
        let half = g.full(DType::U32, f64::from(1u32 << 31), &shape).unwrap();
        let kept = g.compare(Compare::Lt, bits, half).unwrap();
        let zero = g.full(DType::F32, 0.0, &shape).unwrap();
        let z = g.select(kept, y, zero).unwrap();
        g.output("dropped", z);
        g
    };
    let divided = divide(&model(1, 3), Strategy::Data, "cpu");
    assert!(divided.check().is_empty(), "{}", divided.check()[0]);
    for (device, local) in divided.locals.iter().enumerate() {
        let random = local.nodes.iter().find(|(_, n)| matches!(n.op, Op::Random(_))).unwrap().0;
        let mut changed = local.clone();
        if let Op::Random(op) = &mut changed.nodes[random].op {
            assert!(op.shape[0] < 20, "not divided");
            op.start[0] += 1;
        }
        assert!(!divided.with(device, changed).is_empty(), "{device}");
    }
    for other in [model(2, 3), model(1, 2)] {
        assert!(!Divided { whole: other, ..divide(&model(1, 3), Strategy::Data, "cpu") }.check().is_empty());
    }
}

/// A local graph rebuilt with something done at one node.
fn rebuild(local: &Graph, at: NodeId, change: impl Fn(&mut Rewriter<'_>, NodeId)) -> Graph {
    let mut rewriter = Rewriter::new(local);
    for id in local.nodes.keys() {
        if id == at {
            change(&mut rewriter, id);
        } else if local.nodes[id].args.iter().all(|a| rewriter.has(*a)) {
            // A change of shape may leave later nodes without a meaning; the checker stops before them.
            let args = rewriter.args(id);
            if rewriter.copy_with(id, local.nodes[id].op.clone(), &args).is_err() {
                break;
            }
        }
    }
    let mut new = rewriter.new.clone();
    for output in &local.outputs {
        if rewriter.has(output.value) {
            new.output(&output.name, rewriter.value(output.value));
        }
    }
    new
}

fn collectives(local: &Graph) -> Vec<NodeId> {
    let is_collective =
        |op: &Op| matches!(op, Op::AllReduce(_) | Op::AllGather(_) | Op::AllToAll(_) | Op::ReduceScatter(_));
    local.nodes.iter().filter(|(_, n)| is_collective(&n.op)).map(|(id, _)| id).collect()
}

#[test]
fn a_dropped_collective_is_found_at_every_site() {
    let mut sites = 0;
    for divided in all() {
        let both: Vec<Vec<NodeId>> = divided.locals.iter().map(collectives).collect();
        for site in 0..both.first().map_or(0, Vec::len) {
            let mut locals = Vec::new();
            for (local, sites) in divided.locals.iter().zip(&both) {
                let drop = |rw: &mut Rewriter<'_>, id: NodeId| {
                    let (arg, result) = (rw.old().nodes[id].args[0], rw.old().nodes[id].results[0]);
                    rw.set(result, rw.value(arg));
                };
                locals.push(rebuild(local, sites[site], drop));
            }
            let faults = check(&divided.whole, &Interface::of(&divided.explicit), &locals);
            assert!(!faults.is_empty(), "{} site {site}", divided.name());
            sites += 1;
        }
    }
    assert!(sites > 10, "{sites}");
}

#[test]
fn a_reduction_on_one_device_only_is_found() {
    for divided in all().into_iter().filter(|d| d.locals.len() == 2) {
        for &site in &collectives(&divided.locals[0]) {
            let drop = |rw: &mut Rewriter<'_>, id: NodeId| {
                let (arg, result) = (rw.old().nodes[id].args[0], rw.old().nodes[id].results[0]);
                rw.set(result, rw.value(arg));
            };
            assert!(!divided.with(0, rebuild(&divided.locals[0], site, drop)).is_empty());
        }
    }
}

#[test]
fn a_doubled_reduction_is_found_at_every_site() {
    let mut sites = 0;
    for divided in all() {
        let both: Vec<Vec<NodeId>> = divided.locals.iter().map(collectives).collect();
        for site in 0..both.first().map_or(0, Vec::len) {
            let mut locals = Vec::new();
            for (device, (local, sites)) in divided.locals.iter().zip(&both).enumerate() {
                let twice = |rw: &mut Rewriter<'_>, id: NodeId| {
                    rw.copy(id).unwrap();
                    let result = rw.old().nodes[id].results[0];
                    let once = rw.value(result);
                    let function = intwain_ir::scalar::Reduce::Sum;
                    let op = AllReduce { channel: 1_000_000, function, device, devices: 2 };
                    let again = rw.new.push(op, &[once]).unwrap();
                    rw.set(result, again);
                };
                locals.push(rebuild(local, sites[site], twice));
            }
            let faults = check(&divided.whole, &Interface::of(&divided.explicit), &locals);
            assert!(!faults.is_empty(), "{} site {site}", divided.name());
            sites += 1;
        }
    }
    assert!(sites > 10, "{sites}");
}

#[test]
fn swapped_collectives_are_found() {
    let mut sites = 0;
    for divided in all().into_iter().filter(|d| d.locals.len() == 2) {
        let list = collectives(&divided.locals[1]);
        for pair in list.windows(2) {
            let mut local = divided.locals[1].clone();
            let (a, b) = (local.nodes[pair[0]].op.clone(), local.nodes[pair[1]].op.clone());
            local.nodes[pair[0]].op = with_channel(&a, channel(&b));
            local.nodes[pair[1]].op = with_channel(&b, channel(&a));
            assert!(!divided.with(1, local).is_empty(), "{}", divided.name());
            sites += 1;
        }
    }
    assert!(sites > 5, "{sites}");
}

fn channel(op: &Op) -> usize {
    match op {
        Op::AllReduce(o) => o.channel,
        Op::AllGather(o) => o.channel,
        Op::AllToAll(o) => o.channel,
        Op::ReduceScatter(o) => o.channel,
        _ => panic!("not a collective"),
    }
}

fn with_channel(op: &Op, channel: usize) -> Op {
    let mut op = op.clone();
    match &mut op {
        Op::AllReduce(o) => o.channel = channel,
        Op::AllGather(o) => o.channel = channel,
        Op::AllToAll(o) => o.channel = channel,
        Op::ReduceScatter(o) => o.channel = channel,
        _ => panic!("not a collective"),
    }
    op
}

#[test]
fn exchanged_halves_are_found_at_every_site() {
    let mut sites = 0;
    for divided in all().into_iter().filter(|d| d.locals.len() == 2) {
        // Both devices take the other's place: parts are joined in the wrong order.
        let both: Vec<Vec<NodeId>> = divided.locals.iter().map(collectives).collect();
        for site in 0..both[0].len() {
            let mut locals = divided.locals.clone();
            for (local, sites) in locals.iter_mut().zip(&both) {
                match &mut local.nodes[sites[site]].op {
                    Op::AllGather(o) => o.device = 1 - o.device,
                    Op::AllReduce(o) => o.device = 1 - o.device,
                    Op::AllToAll(o) => o.device = 1 - o.device,
                    Op::ReduceScatter(o) => o.device = 1 - o.device,
                    _ => panic!("not a collective"),
                }
            }
            assert!(!check(&divided.whole, &Interface::of(&divided.explicit), &locals).is_empty());
            sites += 1;
        }
        // The host exchanges the parts of a parameter or of an output.
        let good = Interface::of(&divided.explicit);
        let mut bad = Vec::new();
        for at in 0..good.params.len() {
            if let Layout::Split { dim, sizes } = &good.params[at]
                && sizes[0] != sizes[1]
            {
                let mut interface = good.clone();
                interface.params[at] = Layout::split(*dim, sizes.iter().rev().copied());
                bad.push(interface);
            }
        }
        for interface in bad {
            assert!(!check(&divided.whole, &interface, &divided.locals).is_empty());
            sites += 1;
        }
    }
    assert!(sites > 10, "{sites}");
}

#[test]
fn another_slice_is_found_at_every_site() {
    let mut sites = 0;
    for divided in all() {
        for (device, local) in divided.locals.iter().enumerate() {
            for (id, node) in &local.nodes {
                let Op::Slice(op) = &node.op else { continue };
                let shape = local.shape(node.args[0]);
                let Some(dim) = (0..shape.len()).find(|&d| op.start[d] != 0 || op.limit[d] != shape[d]) else {
                    continue;
                };
                let mut moved = op.clone();
                let length = op.limit[dim] - op.start[dim];
                moved.start[dim] = if op.start[dim] == 0 { shape[dim] - length } else { 0 };
                moved.limit[dim] = moved.start[dim] + length;
                if moved == *op {
                    continue;
                }
                let mut changed = local.clone();
                changed.nodes[id].op = moved.into();
                assert!(!divided.with(device, changed).is_empty(), "{} {id}", divided.name());
                sites += 1;
            }
        }
    }
    assert!(sites > 3, "{sites}");
}

#[test]
fn messages_that_go_astray_are_found_at_every_site() {
    let mut sites = 0;
    for divided in all() {
        for (device, local) in divided.locals.iter().enumerate() {
            for (id, node) in &local.nodes {
                let mut changed = local.clone();
                match &mut changed.nodes[id].op {
                    Op::Send(op) => op.channel += 1_000_000,
                    Op::Recv(op) => op.channel += 1_000_000,
                    _ => continue,
                }
                let faults = divided.with(device, changed);
                assert!(!faults.is_empty(), "{} {id} {}", divided.name(), node.op.name());
                sites += 1;
            }
        }
    }
    assert!(sites > 3, "{sites}");
}

#[test]
fn changed_attributes_and_operands_are_found() {
    let mut sites = 0;
    for divided in all() {
        for (device, local) in divided.locals.iter().enumerate() {
            for (id, node) in &local.nodes {
                let mut changed = local.clone();
                match &mut changed.nodes[id].op {
                    Op::Take(op) => op.base += 1,
                    Op::Binary(op) => op.function = intwain_ir::scalar::Binary::Sub,
                    Op::Conv(op) => op.pads[0].0 += 1,
                    Op::Iota(op) => op.start += 1,
                    _ => continue,
                }
                let faults = divided.with(device, changed);
                assert!(!faults.is_empty(), "{} {id} {}", divided.name(), node.op.name());
                sites += 1;
            }
        }
    }
    assert!(sites > 100, "{sites}");
}
