use super::*;
use crate::fuse::fuse;
use crate::place::{Options, Planner, Strategy};
use crate::program::program;
use crate::reshard::{apply, reshard};
use crate::samples::{convnet, hardware, mlp, towers, transformer};
use intwain_ir::compute::Compute;
use intwain_ir::{Graph, ParamKind, Target, Trainable};

struct Everything;

impl Target for Everything {
    fn can_fuse(&self, _: &Compute, _: &[&Type], _: &[&Type]) -> bool {
        true
    }

    fn updates_in_place(&self) -> bool {
        true
    }
}

fn programs(graph: &Graph, strategy: Strategy) -> Vec<DeviceProgram> {
    let options = Options { strategy: Some(strategy), ..Options::default() };
    let plan = Planner::new(graph, &hardware("2xa100-nvlink"), options).plan().unwrap();
    let explicit = reshard(&apply(graph, &plan), &plan.nodes).unwrap();
    let locals = crate::partition::partition(&explicit).unwrap();
    locals.iter().map(|g| program(g, &fuse(g, &Everything), &Everything)).collect()
}

fn all() -> Vec<Vec<DeviceProgram>> {
    let models = [mlp(4, 16), towers(4), convnet(4), transformer(4)];
    models.iter().flat_map(|graph| Strategy::ALL.map(|strategy| programs(graph, strategy))).collect()
}

#[test]
fn every_program_is_proved() {
    for programs in all() {
        assert_eq!(check(&programs), vec![]);
    }
}

fn communications(program: &DeviceProgram) -> Vec<usize> {
    let is = |c: &Command| matches!(c.action, Action::Communicate(_));
    program.step.iter().enumerate().filter(|(_, c)| is(c)).map(|(at, _)| at).collect()
}

#[test]
fn a_missing_or_crossed_communication_is_found_at_every_site() {
    let mut sites = 0;
    for programs in all() {
        for device in 0..programs.len() {
            let list = communications(&programs[device]);
            for &at in &list {
                let mut changed = programs.clone();
                changed[device].step.remove(at);
                assert!(!check(&changed).is_empty());
                sites += 1;
            }
            for pair in list.windows(2) {
                let mut changed = programs.clone();
                changed[device].step.swap(pair[0], pair[1]);
                let faults = check(&changed);
                assert!(faults.iter().any(|f| f.to_string().contains("deadlock") || f.to_string().contains("reads")));
                sites += 1;
            }
        }
    }
    assert!(sites > 20, "{sites}");
}

#[test]
fn reused_memory_is_found_at_every_site() {
    let mut sites = 0;
    for programs in all() {
        let program = &programs[0];
        for (at, command) in program.step.iter().enumerate() {
            // The result is put on top of an operand that is read later again.
            let later = |id: &BufferId| program.step[at + 1..].iter().any(|c| c.reads.contains(id));
            let Some(kept) = command.reads.iter().find(|id| later(id)) else { continue };
            let Some(&result) = command.writes.first() else { continue };
            let mut changed = programs.clone();
            let victim = changed[0].buffers[kept.0 as usize].clone();
            if victim.ty.bytes() == 0 || changed[0].buffers[result.0 as usize].ty.bytes() == 0 {
                continue;
            }
            changed[0].buffers[result.0 as usize].home = victim.home;
            changed[0].buffers[result.0 as usize].offset = victim.offset;
            assert!(!check(&changed).is_empty(), "command {at}");
            sites += 1;
        }
        let mut small = programs.clone();
        small[0].arena_bytes /= 2;
        assert!(!check(&small).is_empty());
    }
    assert!(sites > 10, "{sites}");
}

/// Plain descent: w' = w − g, m' = m / 2 + g, and a state that shows the old w.
fn descent(reads_later: bool, transposed: bool) -> Graph {
    let mut g = Graph::new("descent");
    let ty = Type::new(intwain_ir::DType::F32, [4, 4]);
    let x = g.input("x", ty.clone(), intwain_ir::Rows::Whole);
    let w = g.weight("w", ty.clone(), Trainable::Yes);
    let m = g.weight("m", ty.clone(), Trainable::Yes);
    let d = g.matmul(x, w).unwrap();
    let slope = g.matmul(x, d).unwrap();
    let half = g.full(ty.dtype, 0.5, &ty.shape).unwrap();
    let kept = g.mul(m, half).unwrap();
    let momentum = g.add(kept, slope).unwrap();
    let old = if transposed { g.transpose(w, &[1, 0]).unwrap() } else { w };
    let next = g.sub(old, momentum).unwrap();
    if reads_later {
        let late = g.matmul(next, w).unwrap();
        g.output("late", late);
    }
    g.output("y", d);
    for (state, next) in [(w, next), (m, momentum)] {
        let param = g.params.iter_mut().find(|p| p.value == state).unwrap();
        param.kind = ParamKind::State { next: Some(next) };
    }
    g
}

#[test]
fn states_are_updated_in_place_where_nothing_needs_the_old_value() {
    let places = |g: &Graph| -> Vec<bool> {
        let p = program(g, &fuse(g, &Everything), &Everything);
        assert_eq!(check(std::slice::from_ref(&p)), vec![]);
        p.states.iter().map(|(_, next)| next.is_none()).collect()
    };
    assert_eq!(places(&descent(false, false)), [true, true]);
    assert_eq!(places(&descent(true, false)), [false, true]);
    assert_eq!(places(&descent(false, true)), [false, true]);
}

/// The program that writes in place what may not be.
#[test]
fn a_state_overwritten_too_early_is_found() {
    for (late, transposed) in [(true, false), (false, true)] {
        let g = descent(late, transposed);
        let mut p = program(&g, &fuse(&g, &Everything), &Everything);
        let (state, next) = (p.states[0].0.buffer, p.states[0].1.unwrap());
        p.buffers[next.0 as usize] = p.buffers[state.0 as usize].clone();
        p.states[0].1 = None;
        let faults = check(std::slice::from_ref(&p));
        assert!(!faults.is_empty(), "{late} {transposed}");
    }
}
