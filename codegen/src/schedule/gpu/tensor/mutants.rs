//! Kernels with one mistake: the emulator must find each, or the values must be wrong.

use super::tests::{SMALL, compute_of, integers, matmul, types};
use super::*;
use crate::schedule::gpu::{Gpu, harness};
use intwain_emulator::{FaultKind, LaunchError, Schedule};
use intwain_ir::kernel::{Block, Inst, Kernel, Stmt};
use intwain_ir::scalar::{Binary, Compare};
use intwain_ir::{DType, Tensor, Type, interp};

/// How a mistake shows.
#[derive(Debug, PartialEq)]
enum Finding {
    Fault(FaultKind),
    Wrong,
    Nothing,
}

/// A contraction with tails and more steps than stages.
struct Subject {
    kernel: GpuKernel,
    operands: Vec<Tensor>,
    results: Vec<Type>,
    want: Vec<Tensor>,
}

impl Subject {
    fn new(dtype: DType, [m, n, k]: [usize; 3]) -> Subject {
        let args = [Type::new(dtype, [m, k]), Type::new(dtype, [k, n])];
        let (c, results) = compute_of(matmul((1, 0)), &args);
        let gpu = Gpu { precision: Precision::Tf32 };
        let kernel = gpu.schedule_tile("product", &c, &types(&args), &types(&results), &SMALL).unwrap();
        let operands: Vec<Tensor> = args.iter().enumerate().map(|(i, t)| integers(t, i as u64 + 1)).collect();
        let want = interp::evaluate(&c, &operands.iter().collect::<Vec<_>>(), &types(&results));
        Subject { kernel, operands, results, want }
    }

    /// What is found under either schedule in the kernel with a change; `None` if the change changes nothing.
    fn find(&self, change: impl FnOnce(&mut Kernel)) -> Option<Finding> {
        let mut mutant = self.kernel.clone();
        change(&mut mutant.launches[0].kernel);
        if mutant.launches[0].kernel == self.kernel.launches[0].kernel {
            return None;
        }
        let operands: Vec<&Tensor> = self.operands.iter().collect();
        for schedule in [Schedule::Late, Schedule::Early] {
            match harness::attempt(&mutant, &operands, &types(&self.results), schedule) {
                Err(LaunchError::Fault(f)) => return Some(Finding::Fault(f.kind)),
                Err(e) => panic!("{e}"),
                Ok(out) if out.results != self.want => return Some(Finding::Wrong),
                Ok(_) => {}
            }
        }
        Some(Finding::Nothing)
    }

    /// The findings of a change made in one place after another.
    fn everywhere(&self, mut change: impl FnMut(&mut Stmt) -> bool) -> Vec<Finding> {
        let mut findings = Vec::new();
        for n in 0.. {
            let mut left = n;
            let mut done = false;
            let found = self.find(|k| {
                edit(&mut k.body, &mut |s| {
                    let mut copy = s.clone();
                    if done || !change(&mut copy) {
                        return;
                    }
                    if left == 0 {
                        (*s, done) = (copy, true);
                    } else {
                        left -= 1;
                    }
                });
            });
            match found {
                Some(f) => findings.push(f),
                None if done => {}
                None => break,
            }
        }
        findings
    }
}

/// Visits all statements in order.
fn edit(block: &mut Block, f: &mut dyn FnMut(&mut Stmt)) {
    for s in &mut block.0 {
        f(s);
        match s {
            Stmt::If { then, otherwise, .. } => {
                edit(then, f);
                edit(otherwise, f);
            }
            Stmt::For(l) => edit(&mut l.body, f),
            _ => {}
        }
    }
}

/// A statement that does nothing.
fn nothing() -> Stmt {
    Stmt::AsyncCommit
}

fn caught(findings: &[Finding], least: usize, what: &str) {
    assert!(findings.len() >= least, "{what}: {findings:?}");
    assert!(!findings.contains(&Finding::Nothing), "{what}: {findings:?}");
}

const SHAPE: [usize; 3] = [65, 72, 168];

#[test]
fn removed_barriers_race() {
    // Sums of f32 go through shared memory, in the stage that the last step is in.
    for (dtype, barriers) in [(DType::BF16, 1), (DType::F32, 3)] {
        let findings = Subject::new(dtype, [65, 72, 200]).everywhere(|s| {
            let is = *s == Stmt::Barrier;
            *s = nothing();
            is
        });
        assert_eq!(findings.len(), barriers);
        let races = findings.iter().all(|f| matches!(f, Finding::Fault(FaultKind::Race { .. } | FaultKind::InFlight)));
        assert!(races, "{findings:?}");
    }
}

#[test]
fn lax_waits_meet_copies_in_flight() {
    let findings = Subject::new(DType::BF16, SHAPE).everywhere(|s| match s {
        Stmt::AsyncWait(n) => {
            *n += 1;
            true
        }
        _ => false,
    });
    assert_eq!(findings, [Finding::Fault(FaultKind::InFlight)]);
}

/// Every turn of chunks, on the side that writes and on the side that reads.
#[test]
fn dropped_swizzles_give_wrong_values() {
    for dtype in [DType::BF16, DType::F32] {
        let findings = Subject::new(dtype, SHAPE).everywhere(|s| match s {
            Stmt::Let(_, inst @ Inst::Binary(Binary::Xor, ..)) => {
                let Inst::Binary(_, x, _) = *inst else { return false };
                *inst = Inst::Binary(Binary::Or, x, x);
                true
            }
            _ => false,
        });
        caught(&findings, 6, "swizzles");
    }
}

#[test]
fn the_live_stage_must_not_be_filled() {
    let found = Subject::new(DType::BF16, SHAPE).find(|k| {
        edit(&mut k.body, &mut |s| {
            if let Stmt::For(l) = s
                && let [.., now, before] = &mut l.carried[..]
            {
                (before.init, before.next) = (now.init, now.next);
            }
        });
    });
    assert!(matches!(found, Some(Finding::Fault(_) | Finding::Wrong)), "{found:?}");
}

#[test]
fn missing_copies_are_uninitialised() {
    let findings = Subject::new(DType::BF16, SHAPE).everywhere(|s| {
        let is = matches!(s, Stmt::AsyncCopy { .. });
        *s = nothing();
        is
    });
    // The stages' first uses are of what nobody wrote, later ones of what an earlier step left.
    caught(&findings, 12, "copies");
    let uninitialised = Finding::Fault(FaultKind::Uninitialised("shared"));
    assert!(findings.iter().filter(|f| **f == uninitialised).count() >= 8, "{findings:?}");
}

/// Conditions on positions let one more through: wherever that position occurs it is outside.
#[test]
fn tails_that_are_off_by_one() {
    for (dtype, shape) in [(DType::BF16, [65, 72, 168]), (DType::F32, [65, 68, 164])] {
        let findings = Subject::new(dtype, shape).everywhere(|s| match s {
            Stmt::Let(_, Inst::Compare(op @ Compare::Lt, ..)) => {
                *op = Compare::Le;
                true
            }
            _ => false,
        });
        // Positions of other pieces of a tile never meet the extent.
        let found = findings.iter().filter(|f| **f != Finding::Nothing).count();
        assert!(found >= 6, "{findings:?}");
    }
}
