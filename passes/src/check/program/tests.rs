use super::*;
use crate::fuse::fuse;
use crate::place::{Options, Planner, Strategy};
use crate::program::program;
use crate::reshard::{apply, reshard};
use crate::samples::{convnet, hardware, mlp, towers, transformer};
use intwain_ir::compute::Compute;
use intwain_ir::{Graph, Target};

struct Everything;

impl Target for Everything {
    fn can_fuse(&self, _: &Compute, _: &[&Type], _: &[&Type]) -> bool {
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
