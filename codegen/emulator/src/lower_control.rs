//! Lowers control flow and synchronisation (PTX ISA 9.7.9.6, 9.7.12, 9.7.13).

use crate::error::ParseError;
use crate::lower::Lower;
use crate::lower_alu::bool_op;
use crate::lower_memory::{order, scope};
use crate::op::{BarrierKind, Op, Scope, Shuffle, Vote};
use crate::opcode::Code;
use crate::scalar::{BoolOp, IntOp, Scalar};
use crate::syntax::Operand;
use crate::types::Ty;

fn vote(name: &str) -> Option<Vote> {
    match name {
        "all" => Some(Vote::All),
        "any" => Some(Vote::Any),
        "uni" => Some(Vote::Uni),
        "ballot" => Some(Vote::Ballot),
        _ => None,
    }
}

impl Lower {
    /// Lowers control flow and synchronisation; false if it is none of it.
    pub(crate) fn control(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<bool, ParseError> {
        let name = c.name;
        match name {
            "bra" => {
                c.take("uni");
                let [Operand::Name(label)] = o else { return Err(c.refuse("the target must be a label", "9.7.12.3")) };
                self.branch(label);
            }
            "ret" | "exit" => {
                c.take("uni");
                self.push(Op::Exit);
            }
            "trap" => self.push(Op::Trap),
            "call" | "brx" => return Err(c.refuse("calls and indirect branches", "9.7.12")),
            "bar" | "barrier" => self.barrier(c, o)?,
            "membar" | "fence" => {
                if c.take("proxy") {
                    return Err(c.refuse("proxy fences", "9.7.13.4"));
                }
                c.take("sc");
                c.take_map(order);
                let named = if c.take("gl") { Some(Scope::Gpu) } else { c.take_map(scope) };
                let scope = named.ok_or_else(|| c.refuse("no scope is named", "9.7.13.4"))?;
                self.push(Op::Fence { scope });
            }
            "shfl" if c.take("sync") => {
                let mode = c.take_map(|m| match m {
                    "up" => Some(Shuffle::Up),
                    "down" => Some(Shuffle::Down),
                    "bfly" => Some(Shuffle::Bfly),
                    "idx" => Some(Shuffle::Idx),
                    _ => None,
                });
                let mode = mode.ok_or_else(|| c.refuse("no mode is named", "9.7.9.6"))?;
                let ty = c.ty()?;
                let [d, a, b, e, mask] = c.operands(o)?;
                let (d, p) = match d {
                    Operand::Pair(d, p) if p == "_" => (self.register(d, ty)?, None),
                    Operand::Pair(d, p) => (self.register(d, ty)?, Some(self.register(p, Ty::PRED)?.slot)),
                    d => (self.dest(d, ty)?, None),
                };
                let (b, e) = (self.source(b, Ty::U32)?, self.source(e, Ty::U32)?);
                let (a, mask) = (self.source(a, ty)?, self.source(mask, Ty::B32)?);
                self.push(Op::Shfl { mode, d, p, a, b, c: e, mask });
            }
            "vote" if c.take("sync") => {
                let mode = c.take_map(vote).ok_or_else(|| c.refuse("no mode is named", "9.7.13.9"))?;
                let ty = c.ty()?;
                let [d, p, mask] = c.operands(o)?;
                let (p, negated) = self.predicate(p)?;
                let (d, mask) = (self.dest(d, ty)?, self.source(mask, Ty::B32)?);
                self.push(Op::Vote { mode, d, p, negated, mask });
            }
            "redux" if c.take("sync") => {
                let op = c.take_map(|m| match m {
                    "add" => Some(IntOp::Add),
                    "min" => Some(IntOp::Min),
                    "max" => Some(IntOp::Max),
                    "and" => Some(IntOp::And),
                    "or" => Some(IntOp::Or),
                    "xor" => Some(IntOp::Xor),
                    _ => None,
                });
                let op = op.ok_or_else(|| c.refuse("this function", "9.7.13.12"))?;
                let ty = c.ty()?;
                if ty.is_float() {
                    return Err(c.refuse("redux of floats", "9.7.13.12"));
                }
                let [d, a, mask] = c.operands(o)?;
                let (d, a, mask) = (self.dest(d, ty)?, self.source(a, ty)?, self.source(mask, Ty::B32)?);
                self.push(Op::Redux { f: Scalar::Int(op, ty), d, a, mask });
            }
            "match" if c.take("sync") => {
                let all = c.take("all");
                if !all && !c.take("any") {
                    return Err(c.refuse("no mode is named", "9.7.13.10"));
                }
                let ty = c.ty()?;
                let [d, a, mask] = c.operands(o)?;
                let (d, p) = match d {
                    Operand::Pair(d, p) => (self.register(d, Ty::B32)?, Some(self.register(p, Ty::PRED)?.slot)),
                    d => (self.dest(d, Ty::B32)?, None),
                };
                let (a, mask) = (self.source(a, ty)?, self.source(mask, Ty::B32)?);
                self.push(Op::Match { all, d, p, a, mask });
            }
            "elect" if c.take("sync") => {
                let [Operand::Pair(d, p), mask] = o else { return Err(c.refuse("these operands", "9.7.13.14")) };
                let d = if d == "_" { None } else { Some(self.register(d, Ty::B32)?) };
                let (p, mask) = (self.register(p, Ty::PRED)?.slot, self.source(mask, Ty::B32)?);
                self.push(Op::Elect { d, p, mask });
            }
            "activemask" => {
                let ty = c.ty()?;
                let [d] = c.operands(o)?;
                let d = self.dest(d, ty)?;
                self.push(Op::ActiveMask { d });
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn barrier(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
        let (warp, aligned) = (c.take("warp"), c.name == "bar" || c.take("aligned"));
        if c.take("cluster") {
            return Err(c.refuse("clusters", "9.7.13.3"));
        }
        c.take("cta");
        if warp && c.take("sync") {
            let [mask] = c.operands(o)?;
            let mask = self.source(mask, Ty::B32)?;
            self.push(Op::WarpSync { mask });
            return Ok(());
        }
        let (kind, o) = if c.take("sync") {
            (BarrierKind::Sync, o)
        } else if c.take("arrive") {
            (BarrierKind::Arrive, o)
        } else if c.take("red") && o.len() >= 3 {
            let count = c.take("popc");
            let how = match c.take_map(bool_op) {
                Some(BoolOp::Or) => Vote::Any,
                _ => Vote::All,
            };
            let ty = c.ty()?;
            let (p, negated) = self.predicate(&o[o.len() - 1])?;
            let d = self.dest(&o[0], ty)?;
            (BarrierKind::Reduce { how, count, d, p, negated }, &o[1..o.len() - 1])
        } else {
            return Err(c.refuse("this kind of barrier", "9.7.13.1"));
        };
        let (id, threads) = match o {
            [id] if kind != BarrierKind::Arrive => (self.source(id, Ty::U32)?, None),
            [id, n] => (self.source(id, Ty::U32)?, Some(self.source(n, Ty::U32)?)),
            _ => return Err(c.refuse("this number of operands", "9.7.13.1")),
        };
        self.push(Op::Barrier { kind, aligned, id, threads });
        Ok(())
    }
}
