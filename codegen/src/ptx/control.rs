//! Loops and conditionals.

use super::EmitError;
use super::emit::{Emitter, Lanes};
use super::int::jumps;
use super::text::{Agreement, Class, Value, When, int, long};
use intwain_ir::kernel::{Block, For, Inst, Merge, Reg, Stmt};
use intwain_ir::scalar::{Binary, expand};
use smallvec::SmallVec;

/// Statements that are guarded one by one rather than jumped over.
const GUARDED: usize = 12;

/// One side of a conditional: its block and which value each merge takes from it.
type Side<'b> = (&'b Block, fn(&Merge) -> Reg);

impl Emitter<'_> {
    pub(super) fn conditional(
        &mut self,
        cond: Reg,
        then: &Block,
        otherwise: &Block,
        merges: &[Merge],
    ) -> Result<(), EmitError> {
        let sides: [Side<'_>; 2] = [(then, |m| m.then), (otherwise, |m| m.otherwise)];
        let c = self.value(cond);
        if let Value::Literal(_, bits) = c {
            let (block, pick) = sides[usize::from(bits == 0)];
            return self.inline(block, merges, pick);
        }
        let [first, second] = sides;
        if self.cheap(otherwise) && self.guardable(then) {
            self.predicated(c, When::True, first, second, merges)
        } else if self.cheap(then) && self.guardable(otherwise) {
            self.predicated(c, When::False, second, first, merges)
        } else if self.guardable(then) && self.guardable(otherwise) && then.0.len() + otherwise.0.len() <= GUARDED {
            self.both_predicated(c, [first, second], merges)
        } else {
            let agreement = if self.divergence.uniform(cond) { Agreement::Uniform } else { Agreement::Divergent };
            self.jumped(c, agreement, sides, merges)
        }
    }

    /// The side that is known to be taken.
    fn inline(&mut self, block: &Block, merges: &[Merge], pick: fn(&Merge) -> Reg) -> Result<(), EmitError> {
        let results: Vec<Lanes> = merges.iter().map(|m| self.fresh_lanes(m.result)).collect();
        self.side((block, pick), merges, &results)?;
        self.define_merges(merges, results);
        Ok(())
    }

    /// Whether a block is nothing that needs to be skipped.
    fn cheap(&self, block: &Block) -> bool {
        block.0.iter().all(|s| matches!(s, Stmt::Let(_, Inst::Const(_) | Inst::Splat(_))))
    }

    /// Whether a block is short and straight.
    fn guardable(&self, block: &Block) -> bool {
        let plain = |s: &Stmt| match s {
            Stmt::Let(r, inst) => match inst {
                Inst::Unary(op, x) => {
                    let dtype = self.ty(*x).dtype;
                    !dtype.is_float() || expand::means(*op, dtype) == expand::Means::Native
                }
                Inst::Binary(op, ..) => {
                    let dtype = self.ty(*r).dtype;
                    let heavy = matches!(op, Binary::Pow | Binary::Atan2)
                        || dtype.is_float() && matches!(op, Binary::Mod | Binary::Div | Binary::FloorDiv);
                    !heavy && !jumps(*op, dtype)
                }
                Inst::Shuffle(..) => false,
                _ => true,
            },
            Stmt::Store { .. } | Stmt::AsyncCopy { guard: None, .. } => true,
            _ => false,
        };
        block.0.len() <= GUARDED && block.0.iter().all(plain)
    }

    /// Without jumps: the other side's values first, then the guarded side over them.
    fn predicated(
        &mut self,
        cond: Value,
        when: When,
        guarded: Side<'_>,
        other: Side<'_>,
        merges: &[Merge],
    ) -> Result<(), EmitError> {
        let results: Vec<Lanes> = merges.iter().map(|m| self.fresh_lanes(m.result)).collect();
        self.side(other, merges, &results)?;
        for (m, lanes) in merges.iter().zip(&results) {
            let last = guarded.0.0.iter().any(|s| matches!(s, Stmt::Let(r, Inst::Load { .. }) if *r == (guarded.1)(m)));
            let once = merges.iter().filter(|n| (guarded.1)(n) == (guarded.1)(m)).count() == 1;
            if last && once && lanes[0].class() != Class::Pred {
                self.targets.insert((guarded.1)(m), lanes.clone());
            }
        }
        self.t.guard(Some((cond, when)));
        self.side(guarded, merges, &results)?;
        self.t.guard(None);
        self.define_merges(merges, results);
        Ok(())
    }

    /// Without jumps: each side under its own guard.
    fn both_predicated(&mut self, cond: Value, sides: [Side<'_>; 2], merges: &[Merge]) -> Result<(), EmitError> {
        let results: Vec<Lanes> = merges.iter().map(|m| self.fresh_lanes(m.result)).collect();
        for (side, when) in sides.into_iter().zip([When::True, When::False]) {
            self.t.guard(Some((cond, when)));
            self.side(side, merges, &results)?;
            self.t.guard(None);
        }
        self.define_merges(merges, results);
        Ok(())
    }

    fn jumped(
        &mut self,
        cond: Value,
        agreement: Agreement,
        sides: [Side<'_>; 2],
        merges: &[Merge],
    ) -> Result<(), EmitError> {
        let results: Vec<Lanes> = merges.iter().map(|m| self.fresh_lanes(m.result)).collect();
        let (no, after) = (self.t.label("else"), self.t.label("endif"));
        let two = !sides[1].0.0.is_empty() || !merges.is_empty();
        self.t.jump_if(cond, When::False, agreement, if two { &no } else { &after });
        self.side(sides[0], merges, &results)?;
        if two {
            self.t.jump(&after);
            self.t.place(&no);
            self.side(sides[1], merges, &results)?;
        }
        self.t.place(&after);
        self.define_merges(merges, results);
        Ok(())
    }

    fn define_merges(&mut self, merges: &[Merge], results: Vec<Lanes>) {
        for (m, lanes) in merges.iter().zip(results) {
            self.define(m.result, lanes);
        }
    }

    /// One side, and its values in the registers of the results. Those are new, so order is free.
    fn side(&mut self, (block, pick): Side<'_>, merges: &[Merge], results: &[Lanes]) -> Result<(), EmitError> {
        self.block(block)?;
        for (m, lanes) in merges.iter().zip(results) {
            for (d, s) in lanes.iter().zip(self.lanes(pick(m))) {
                self.assign(*d, s);
            }
        }
        Ok(())
    }

    /// Copies a value to a register that may be of another width.
    fn assign(&mut self, d: Value, s: Value) {
        let s = if matches!(d.class(), Class::Int | Class::Long) { self.fit(s, d.class()) } else { s };
        self.t.copy(d, s);
    }

    /// A loop tested at its end, behind a test of whether it runs at all.
    pub(super) fn looped(&mut self, l: &For) -> Result<(), EmitError> {
        let class = if self.ranges.narrow_loop(l) { Class::Int } else { Class::Long };
        let (begin, end) = (self.value(l.begin), self.value(l.end));
        let (begin, end) = (self.fit(begin, class), self.fit(end, class));
        let args: Vec<Lanes> = l.carried.iter().map(|c| self.fresh_lanes(c.arg)).collect();
        for (c, lanes) in l.carried.iter().zip(&args) {
            for (d, s) in lanes.iter().zip(self.lanes(c.init)) {
                self.assign(*d, s);
            }
            self.define(c.arg, lanes.clone());
        }
        if let (Some(a), Some(b)) = (begin.known(), end.known())
            && a < b
            && b - a <= l.step
        {
            self.once(l, begin)?;
        } else {
            self.repeated(l, class, begin, end)?;
        }
        for (c, lanes) in l.carried.iter().zip(args) {
            self.define(c.result, lanes);
        }
        Ok(())
    }

    /// The body of a loop of one trip, and its values in the registers of the arguments.
    fn once(&mut self, l: &For, begin: Value) -> Result<(), EmitError> {
        let begin = begin.known().map_or(begin, long);
        self.define(l.var, SmallVec::from_elem(begin, 1));
        self.block(&l.body)?;
        self.hand_on(l);
        Ok(())
    }

    fn repeated(&mut self, l: &For, class: Class, begin: Value, end: Value) -> Result<(), EmitError> {
        let ty = if class == Class::Int { "s32" } else { "s64" };
        let step = if class == Class::Int { int(l.step as i32) } else { long(l.step) };
        let agree = self.divergence.uniform(l.begin) && self.divergence.uniform(l.end);
        let agreement = if agree { Agreement::Uniform } else { Agreement::Divergent };
        let var = self.t.fresh(class);
        self.t.copy(var, begin);
        self.define(l.var, SmallVec::from_elem(var, 1));
        let (again, after) = (self.t.label("loop"), self.t.label("done"));
        let runs = matches!((begin.known(), end.known()), (Some(a), Some(b)) if a < b);
        if !runs {
            let none = self.t.op(Class::Pred, &format!("setp.ge.{ty}"), &[var, end]);
            self.t.jump_if(none, When::True, agreement, &after);
        }
        self.t.mark(&again);
        self.block(&l.body)?;
        self.hand_on(l);
        self.t.to(var, &format!("add.{ty}"), &[var, step]);
        let more = self.t.op(Class::Pred, &format!("setp.lt.{ty}"), &[var, end]);
        self.t.jump_if(more, When::True, agreement, &again);
        self.t.place(&after);
        Ok(())
    }

    /// The carried values at the end of a trip go to the registers of the arguments.
    fn hand_on(&mut self, l: &For) {
        let mut moves = Vec::new();
        for c in &l.carried {
            for (d, s) in self.lanes(c.arg).into_iter().zip(self.lanes(c.next)) {
                let s = if matches!(d.class(), Class::Int | Class::Long) { self.fit(s, d.class()) } else { s };
                moves.push((d, s));
            }
        }
        self.parallel_copy(moves);
    }

    /// Copies as if all sources were read before any destination is written. Destinations are distinct.
    fn parallel_copy(&mut self, mut moves: Vec<(Value, Value)>) {
        moves.retain(|(d, s)| d != s);
        while !moves.is_empty() {
            match moves.iter().position(|(d, _)| moves.iter().all(|(_, s)| s != d)) {
                Some(i) => {
                    let (d, s) = moves.remove(i);
                    self.t.copy(d, s);
                }
                None => {
                    // Only cycles are left: set one source aside.
                    let s = moves[0].1;
                    let aside = self.t.fresh(s.class());
                    self.t.copy(aside, s);
                    moves.iter_mut().filter(|m| m.1 == s).for_each(|m| m.1 = aside);
                }
            }
        }
    }
}
