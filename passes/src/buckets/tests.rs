use super::timeline::{Forecast, choose, forecast, listing, rates};
use super::*;
use crate::check;
use crate::check::placement::Interface;
use crate::cost::CostModel;
use crate::differentiate::gradients;
use crate::fuse::fuse;
use crate::hardware::{Arithmetic, Hardware};
use crate::listing::{Action, Stream};
use crate::partition::partition;
use crate::place::{Options, Planner, Sharding, StateSharding, Strategy};
use crate::program::program;
use crate::reshard::{apply, reshard_states};
use crate::samples::{
    arguments, convnet, dense, f32s, hardware, mlp, relu, run_explicit, towers, trained, transformer,
};
use crate::simulate::simulate;
use intwain_ir::compute::Compute;
use intwain_ir::ops::{Bucket, Kept};
use intwain_ir::{Rows, Target, Type, text, verify};

struct Everything;

impl Target for Everything {
    fn can_fuse(&self, _: &Compute, _: &[&Type], _: &[&Type]) -> bool {
        true
    }
}

/// A data split before exchanges are moved.
fn explicit(graph: &Graph, machine: &Hardware, parts: Option<[usize; 2]>, states: StateSharding) -> Graph {
    let sharding = Sharding { states, whole_below: 0 };
    let options = Options { strategy: Some(Strategy::Data), parts, sharding, ..Options::default() };
    let plan = Planner::new(graph, machine, options).plan().unwrap();
    reshard_states(&apply(graph, &plan), &plan.nodes, plan.sharding).unwrap()
}

/// Graphs with gradients of dense layers, tables, convolutions and attention, and whole steps under every sharding.
fn cases(parts: [usize; 2]) -> Vec<(Graph, Graph)> {
    let rows = parts.iter().sum();
    let machine = hardware("2xa100-nvlink");
    let models = [mlp(rows, 8), towers(rows), convnet(rows), transformer(rows)];
    let mut all: Vec<(Graph, StateSharding)> =
        models.iter().map(|m| (gradients(m).unwrap(), StateSharding::Replicated)).collect();
    all.extend(StateSharding::ALL.map(|s| (trained(rows, 6), s)));
    let divided = |(whole, states): (Graph, StateSharding)| {
        let explicit = explicit(&whole, &machine, Some(parts), states);
        (whole, explicit)
    };
    all.into_iter().map(divided).collect()
}

fn collectives(local: &Graph) -> usize {
    let sums = |op: &Op| matches!(op, Op::AllReduce(_) | Op::Bucket(_) | Op::ReduceScatter(_));
    local.nodes.values().filter(|n| sums(&n.op)).count()
}

#[test]
fn buckets_are_proved_and_change_no_bit() {
    let mut joined = 0;
    for parts in [[3, 3], [4, 2]] {
        for (whole, before) in cases(parts) {
            let args = arguments(&whole, 3);
            let want = run_explicit(&before, &args);
            for bytes in [None, Some(100), Some(1 << 20)] {
                let after = buckets(&before, bytes).unwrap();
                verify(&after).unwrap_or_else(|p| panic!("{}: {}", whole.name, p[0]));
                assert_eq!(text::parse(&after.to_string()).unwrap().to_string(), after.to_string());
                let locals = partition(&after).unwrap();
                let faults = check::placement::check(&whole, &Interface::of(&after), &locals);
                assert!(faults.is_empty(), "{} {bytes:?}: {}\n{after}", whole.name, faults[0]);
                for local in &locals {
                    assert_eq!(text::parse(&local.to_string()).unwrap().to_string(), local.to_string());
                }
                let programs: Vec<_> = locals.iter().map(|g| program(g, &fuse(g, &Everything), &Everything)).collect();
                assert_eq!(check::program::check(&programs), vec![], "{} {bytes:?}", whole.name);
                assert_eq!(run_explicit(&after, &args), want, "{} {bytes:?}", whole.name);
                joined += locals[0].nodes.values().filter(|n| matches!(n.op, Op::Bucket(_))).count();
            }
        }
    }
    assert!(joined > 20, "{joined} buckets");
}

#[test]
fn messages_are_as_many_as_groups() {
    for (whole, before) in cases([3, 3]) {
        let early = buckets(&before, None).unwrap();
        let found = Exchanges::find(&early).unwrap();
        let apart = collectives(&partition(&early).unwrap()[0]);
        let sizes: Vec<usize> = found.nodes.iter().map(|id| message_bytes(&early, *id)).collect();
        for bytes in [64, 300, 1000, 1 << 20] {
            let after = buckets(&before, Some(bytes)).unwrap();
            let made = collectives(&partition(&after).unwrap()[0]);
            let groups = size::groups(&sizes, Some(bytes)).len();
            assert_eq!(apart - made, sizes.len() - groups, "{} with {bytes} bytes: {sizes:?}", whole.name);
        }
    }
}

/// Every exchange follows what it sends, and whatever reads one follows all of them.
#[test]
fn exchanges_begin_early_and_are_waited_for_late() {
    for (whole, before) in cases([4, 2]) {
        for bytes in [None, Some(200)] {
            let after = buckets(&before, bytes).unwrap();
            let found = Exchanges::find(&after).unwrap();
            let sums: Vec<NodeId> = found.nodes.clone();
            for id in &sums {
                let since = ready(&after, *id).map_or(0, |d| d.as_u32() + 1);
                let between = (since..id.as_u32()).map(NodeId::from_u32);
                assert!(between.into_iter().all(|n| sums.contains(&n)), "{}: {id} is late", whole.name);
            }
            let last = sums.iter().max().unwrap();
            let reads = |node: &intwain_ir::Node| {
                node.args.iter().filter_map(|a| after.def_node(*a)).any(|d| sums.contains(&d))
            };
            let first = after.nodes.iter().find(|(_, n)| reads(n)).map(|(id, _)| id);
            assert!(first.is_none_or(|f| f > *last), "{}: {first:?} before {last}", whole.name);
        }
    }
}

/// Layers of one size, so that gradients appear evenly; nothing reads them.
fn deep(rows: usize, width: usize, layers: usize) -> Graph {
    let mut g = Graph::new("deep");
    let mut x = g.input("x", f32s([rows, width]), Rows::Batched);
    for k in 0..layers {
        let h = dense(&mut g, &format!("d{k}"), x, width);
        x = relu(&mut g, h);
    }
    g.output("y", x);
    let mut g = gradients(&g).unwrap();
    g.outputs.retain(|o| &*o.name != "gin0");
    for at in 0..g.outputs.len() {
        let made = g.def_node(g.outputs[at].value).unwrap();
        if matches!(g.nodes[made].op, Op::Transpose(_)) {
            g.outputs[at].value = g.nodes[made].args[0];
        }
    }
    crate::simplify::dead_code(&g).unwrap()
}

/// Two GPUs with a link of this latency in seconds and bandwidth in bytes per second.
fn linked(latency: f64, bandwidth: f64) -> Hardware {
    let mut machine = hardware("2xh100-pcie");
    (machine.link.latency.value, machine.link.bandwidth.value) = (latency, bandwidth);
    machine
}

fn predicted(explicit: &Graph, bytes: Option<usize>, model: &CostModel<'_>) -> Forecast {
    forecast(&buckets(explicit, bytes).unwrap(), model).unwrap()
}

#[test]
fn the_simulation_shows_what_the_formula_says() {
    let (rows, width, layers) = (256, 128, 64);
    let graph = deep(rows, width, layers);
    // The link keeps up; the link is what takes longest.
    for (latency, bandwidth) in [(2e-4, 5e10), (1e-4, 1e9)] {
        let machine = linked(latency, bandwidth);
        let model = CostModel::new(&machine, Arithmetic::F32);
        let explicit = explicit(&graph, &machine, None, StateSharding::Replicated);
        let r = rates(&explicit, &model).unwrap();
        assert_eq!(r.bytes, (layers * (width * width + width) * 4) as f64);
        let best = r.best();
        let tensors = best / (width * width * 4) as f64;
        assert!((2.0..layers as f64 / 3.0).contains(&tensors), "{r:?}: {tensors} tensors in a message");
        let chosen = choose(&explicit, &model);
        let got = predicted(&explicit, chosen, &model);
        // A message ends at a tensor's end: one layer's work and bytes more or less, and one message more.
        let rounding = (r.seconds + r.bytes / bandwidth) / layers as f64 + latency;
        let want = r.finish(best) - r.seconds;
        assert!((got.exposed - want).abs() <= rounding, "{r:?}: {} for {want} ± {rounding}", got.exposed);
        for bytes in [None, Some(1 << 40)] {
            let other = predicted(&explicit, bytes, &model);
            assert!(got.seconds < other.seconds, "{bytes:?} instead of {chosen:?}: {got:?} {other:?}");
        }
        for tensors in 1..layers {
            let other = predicted(&explicit, Some(tensors * width * width * 4), &model);
            assert!(got.seconds < other.seconds + rounding, "{tensors} instead of {chosen:?}: {got:?} {other:?}");
        }
    }
}

#[test]
fn waiting_in_the_middle_is_slower() {
    let machine = hardware("2xh100-pcie");
    let model = CostModel::new(&machine, Arithmetic::F32);
    let explicit = explicit(&deep(4096, 512, 24), &machine, None, StateSharding::Replicated);
    let joined = buckets(&explicit, Some(4 << 20)).unwrap();
    let locals = partition(&joined).unwrap();
    let early = listing(&locals, &model, &[]);
    // Devices that compute nothing while they exchange.
    let mut naive = early.clone();
    naive.devices.iter_mut().flatten().for_each(|c| c.stream = Stream::Compute);
    let (early, naive) = (simulate(&early).unwrap().makespan, simulate(&naive).unwrap().makespan);
    let link: f64 = listing(&locals, &model, &[]).devices[0]
        .iter()
        .filter(|c| matches!(c.action, Action::Collective { .. }))
        .map(|c| c.seconds)
        .sum();
    let alone = forecast(&joined, &model).unwrap();
    assert!((naive - (alone.seconds - alone.exposed) - link).abs() < 1e-9);
    assert!(early < naive - link / 2.0, "{early} against {naive}, {link} on the link");
}

#[test]
fn cpu_devices_join_nothing_unless_asked() {
    let graph = gradients(&mlp(8, 16)).unwrap();
    let chosen = |machine: &str, buckets| {
        let options = Options { strategy: Some(Strategy::Data), buckets, ..Options::default() };
        Planner::new(&graph, &hardware(machine), options).plan().unwrap().bucket_bytes
    };
    assert_eq!(chosen("cpu", Buckets::Auto), None);
    assert_eq!(chosen("cpu", Buckets::Bytes(100)), Some(100));
    assert_eq!(chosen("2xa100-nvlink", Buckets::Apart), None);
    // Little work and a few kilobytes: one message is best.
    let machine = hardware("2xa100-nvlink");
    let r =
        rates(&explicit(&graph, &machine, None, StateSharding::Replicated), &CostModel::new(&machine, Arithmetic::F32));
    let bytes = chosen("2xa100-nvlink", Buckets::Auto).unwrap();
    let best = r.unwrap().best();
    assert!((0.5 * best..=2.0 * best + 1.0).contains(&(bytes as f64)), "{bytes} for {best}");
}

/// The graphs with another operation or operands at the bucket of that number.
fn changed(
    locals: &[Graph],
    which: usize,
    devices: &[usize],
    change: &dyn Fn(&mut Bucket, &mut Vec<Value>),
) -> Vec<Graph> {
    let one = |local: &Graph| {
        let mut rw = Rewriter::new(local);
        let buckets = local.nodes.iter().filter(|(_, n)| matches!(n.op, Op::Bucket(_)));
        let at = buckets.map(|(id, _)| id).nth(which).unwrap();
        for (id, node) in &local.nodes {
            match &node.op {
                Op::Bucket(op) if id == at && devices.contains(&local.device) => {
                    let (mut op, mut args) = (op.clone(), rw.args(id).to_vec());
                    change(&mut op, &mut args);
                    rw.copy_with(id, op.into(), &args).unwrap();
                }
                _ => rw.copy(id).unwrap(),
            }
        }
        rw.finish()
    };
    locals.iter().map(one).collect()
}

/// The graphs with the operand of a member in the place of its combination, on both devices.
fn dropped(locals: &[Graph], which: usize, member: usize) -> Vec<Graph> {
    let one = |local: &Graph| {
        let mut rw = Rewriter::new(local);
        let buckets = local.nodes.iter().filter(|(_, n)| matches!(n.op, Op::Bucket(_)));
        let at = buckets.map(|(id, _)| id).nth(which).unwrap();
        for (id, node) in &local.nodes {
            let (Op::Bucket(op), true) = (&node.op, id == at) else {
                rw.copy(id).unwrap();
                continue;
            };
            let (mut op, mut args) = (op.clone(), rw.args(id).to_vec());
            op.kept.remove(member);
            let own = args.remove(member);
            let mut made = rw.new.push_all(op, &args).unwrap().into_iter();
            for (k, result) in node.results.iter().enumerate() {
                let value = if k == member { own } else { made.next().unwrap() };
                rw.set(*result, value);
            }
        }
        rw.finish()
    };
    locals.iter().map(one).collect()
}

#[test]
fn mutants_are_found_at_every_member() {
    let mut sites = 0;
    for (whole, before) in cases([4, 2]) {
        let after = buckets(&before, Some(400)).unwrap();
        let locals = partition(&after).unwrap();
        let faults = |locals: &[Graph]| check::placement::check(&whole, &Interface::of(&after), locals);
        let made: Vec<(Bucket, Vec<Type>)> = locals[0]
            .nodes
            .iter()
            .filter_map(|(id, n)| match &n.op {
                Op::Bucket(op) => Some((op.clone(), locals[0].arg_types(id).into_iter().cloned().collect())),
                _ => None,
            })
            .collect();
        for (which, (op, types)) in made.iter().enumerate() {
            for member in 0..types.len() {
                if op.kept[member] == Kept::All {
                    assert!(!faults(&dropped(&locals, which, member)).is_empty(), "{}: {member} dropped", whole.name);
                    sites += 1;
                }
                let next = (member + 1) % types.len();
                if next != member && types[member] == types[next] && op.kept[member] == op.kept[next] {
                    // On one device sums are of different things, on both the results are.
                    for devices in [&[0][..], &[0, 1]] {
                        let swap = |_: &mut Bucket, args: &mut Vec<Value>| args.swap(member, next);
                        let mutant = changed(&locals, which, devices, &swap);
                        assert!(!faults(&mutant).is_empty(), "{}: {member} swapped on {devices:?}", whole.name);
                        sites += 1;
                    }
                }
                let double = |_: &mut Bucket, args: &mut Vec<Value>| args[member] = args[next];
                if next != member && types[member] == types[next] && op.kept[member] == op.kept[next] {
                    assert!(!faults(&changed(&locals, which, &[0, 1], &double)).is_empty(), "{}", whole.name);
                    sites += 1;
                }
            }
            // Unequal parts do not even have the types that are read.
            let even = |k: &Kept| matches!(k, Kept::Part { sizes, .. } if sizes[0] == sizes[1]) || *k == Kept::All;
            if !op.kept.iter().all(even) {
                continue;
            }
            let place = |op: &mut Bucket, _: &mut Vec<Value>| op.device = 1 - op.device;
            assert!(!faults(&changed(&locals, which, &[0, 1], &place)).is_empty(), "{}", whole.name);
            sites += 1;
        }
    }
    assert!(sites > 40, "{sites} sites");
}
