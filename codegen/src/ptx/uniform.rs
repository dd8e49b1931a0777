//! Which registers are the same for all threads that are together in one place: those that follow from block ids,
//! constants and constant memory.

use intwain_ir::kernel::{Access, Block, For, Id, Inst, Kernel, Place, Reg, Stmt};
use std::collections::HashSet;

/// The registers that may differ between threads.
#[derive(Debug)]
pub(super) struct Divergence<'k> {
    kernel: &'k Kernel,
    differ: HashSet<Reg>,
}

impl<'k> Divergence<'k> {
    pub(super) fn new(kernel: &'k Kernel) -> Divergence<'k> {
        let mut d = Divergence { kernel, differ: HashSet::new() };
        d.block(&kernel.body);
        d
    }

    /// Whether all threads agree on the register.
    pub(super) fn uniform(&self, r: Reg) -> bool {
        !self.differ.contains(&r)
    }

    fn block(&mut self, block: &Block) {
        for s in &block.0 {
            match s {
                Stmt::Let(r, inst) => {
                    if self.inst(inst) {
                        self.differ.insert(*r);
                    }
                }
                Stmt::If { cond, then, otherwise, merges } => {
                    self.block(then);
                    self.block(otherwise);
                    for m in merges {
                        if ![*cond, m.then, m.otherwise].iter().all(|r| self.uniform(*r)) {
                            self.differ.insert(m.result);
                        }
                    }
                }
                Stmt::For(l) => self.looped(l),
                Stmt::LoadMatrix { d, .. } | Stmt::Mma { d, .. } => self.differ.extend(d),
                Stmt::Store { .. }
                | Stmt::Barrier
                | Stmt::AsyncCopy { .. }
                | Stmt::AsyncCommit
                | Stmt::AsyncWait(_)
                | Stmt::Signal { .. }
                | Stmt::Await { .. } => {}
            }
        }
    }

    fn looped(&mut self, l: &For) {
        let counted = self.uniform(l.begin) && self.uniform(l.end);
        if !counted {
            self.differ.insert(l.var);
        }
        loop {
            let before = self.differ.len();
            for c in &l.carried {
                if !(counted && self.uniform(c.init) && self.uniform(c.next)) {
                    self.differ.extend([c.arg, c.result]);
                }
            }
            self.block(&l.body);
            if self.differ.len() == before {
                return;
            }
        }
    }

    /// Whether the result may differ between threads.
    fn inst(&self, inst: &Inst) -> bool {
        let operands = inst.uses().iter().any(|r| !self.uniform(*r));
        match inst {
            Inst::Id(Id::Thread(_)) | Inst::Shuffle(..) => true,
            Inst::Load { from, .. } => {
                let constant = match from {
                    Place::Param(i) => self.kernel.params[*i as usize].access == Access::Constant,
                    Place::Buffer(_) => false,
                };
                operands || !constant
            }
            _ => operands,
        }
    }
}
