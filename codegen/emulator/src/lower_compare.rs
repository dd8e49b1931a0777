//! Lowers comparisons and operations on predicates (PTX ISA 9.7.3.1, 9.7.6, 9.7.8).

use crate::error::ParseError;
use crate::lower::Lower;
use crate::lower_alu::bool_op;
use crate::op::Op;
use crate::opcode::Code;
use crate::quicken::{ZERO, quicken};
use crate::scalar::{BoolOp, Compare, IntOp, Scalar};
use crate::syntax::Operand;
use crate::types::{Kind, Ty};

fn compare(name: &str) -> Option<Compare> {
    let (name, unordered) = match name {
        "num" | "nan" | "ltu" | "leu" | "gtu" | "geu" | "equ" | "neu" => (name.trim_end_matches('u'), name != "num"),
        _ => (name, false),
    };
    let (less, equal, greater) = match name {
        "eq" => (false, true, false),
        "ne" => (true, false, true),
        "lt" | "lo" => (true, false, false),
        "le" | "ls" => (true, true, false),
        "gt" | "hi" => (false, false, true),
        "ge" | "hs" => (false, true, true),
        "num" => (true, true, true),
        "nan" => (false, false, false),
        _ => return None,
    };
    Some(Compare { less, equal, greater, unordered, flush: false })
}

impl Lower {
    /// `slct`: the first operand where the third is not negative (9.7.6.4).
    pub(crate) fn slct(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
        let flush = c.take("ftz");
        let (ty, by) = (c.ty()?, c.ty()?);
        let [d, a, b, e] = c.operands(o)?;
        if by != Ty::F32 && by != Ty::new(Kind::Signed, 32) {
            return Err(c.refuse("this type of the last operand", "9.7.6.4"));
        }
        let (a, b, e) = (self.source(a, ty)?, self.source(b, ty)?, self.source(e, by)?);
        let zero = self.immediate(0, by);
        let p = self.fresh(Ty::PRED).slot;
        let f = Compare { less: false, equal: true, greater: true, unordered: false, flush };
        self.push(Op::Setp { f, ty: by, a: e, b: zero, p: Some(p), q: None, with: None });
        let d = self.dest(d, ty)?;
        self.push(Op::Select { d, a, b, p });
        Ok(())
    }

    /// `testp` as comparisons of the magnitude's bits (9.7.3.1).
    pub(crate) fn testp(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
        const NAMES: [&str; 6] = ["finite", "infinite", "number", "notanumber", "normal", "subnormal"];
        let name = c.take_map(|m| NAMES.iter().position(|n| *n == m));
        let name = name.ok_or_else(|| c.refuse("no property is named", "9.7.3.1"))?;
        let ty = c.ty()?;
        if ty != Ty::F32 && ty != Ty::F64 {
            return Err(c.refuse("this type", "9.7.3.1"));
        }
        let [d, a] = c.operands(o)?;
        let (a, d) = (self.source(a, ty)?, self.dest(d, Ty::PRED)?.slot);
        let (bits, digits) = (Ty::new(Kind::Unsigned, ty.bits), if ty.bits == 32 { 23 } else { 52 });
        let infinity = (1u64 << (ty.bits - 1)) - (1 << digits);
        // Bounds on the bits of the magnitude: at least the first, less than the second.
        let (low, high) = match NAMES[name] {
            "finite" => (0, infinity),
            "infinite" => (infinity, infinity + 1),
            "number" => (0, infinity + 1),
            "notanumber" => (infinity + 1, 1 << (ty.bits - 1)),
            "normal" => (1 << digits, infinity),
            _ => (1, 1 << digits),
        };
        let magnitude = self.fresh(bits);
        let mask = self.immediate(crate::scalar::keep(u64::MAX, ty.bits - 1), bits);
        self.push(quicken(Scalar::Int(IntOp::And, bits), magnitude, [a, mask, ZERO]));
        let (low, high) = (self.immediate(low, bits), self.immediate(high, bits));
        let above = self.fresh(Ty::PRED).slot;
        let compare = |less, equal, greater| Compare { less, equal, greater, unordered: false, flush: false };
        let (at_least, below) = (compare(false, true, true), compare(true, false, false));
        self.push(Op::Setp { f: at_least, ty: bits, a: magnitude, b: low, p: Some(above), q: None, with: None });
        let with = Some((BoolOp::And, above, false));
        self.push(Op::Setp { f: below, ty: bits, a: magnitude, b: high, p: Some(d), q: None, with });
        Ok(())
    }

    fn comparison(&mut self, c: &mut Code<'_>) -> Result<Compare, ParseError> {
        let found = c.take_map(compare).ok_or_else(|| c.refuse("no comparison is named", "9.7.6"))?;
        Ok(Compare { flush: c.take("ftz"), ..found })
    }

    pub(crate) fn setp(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
        let f = self.comparison(c)?;
        let combine = c.take_map(bool_op);
        let ty = c.ty()?;
        if ty.packed {
            return Err(c.refuse("packed comparison", "9.7.7.2"));
        }
        let (d, a, b, with) = match (o, combine) {
            ([d, a, b], None) => (d, a, b, None),
            ([d, a, b, e], Some(op)) => {
                let (p, negated) = self.predicate(e)?;
                (d, a, b, Some((op, p, negated)))
            }
            _ => return Err(c.refuse("this number of operands", "9.7.6.2")),
        };
        let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
        let pred = |l: &mut Lower, name: &String| match name.as_str() {
            "_" => Ok(None),
            name => l.register(name, Ty::PRED).map(|r| Some(r.slot)),
        };
        let (p, q) = match d {
            Operand::Name(p) => (pred(self, p)?, None),
            Operand::Pair(p, q) => (pred(self, p)?, pred(self, q)?),
            _ => return Err(c.refuse("a destination that is no predicate", "9.7.6.2")),
        };
        self.push(Op::Setp { f, ty, a, b, p, q, with });
        Ok(())
    }

    pub(crate) fn set(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
        let f = self.comparison(c)?;
        let (to, ty) = (c.ty()?, c.ty()?);
        if to.packed || ty.packed || to.width() != 32 {
            return Err(c.refuse("this result type", "9.7.6.1"));
        }
        let [d, a, b] = c.operands(o)?;
        let (a, b, d) = (self.source(a, ty)?, self.source(b, ty)?, self.dest(d, to)?);
        self.push(Op::Set { f, ty, float: to.is_float(), a, b, d });
        Ok(())
    }

    pub(crate) fn predicates(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
        let (f, d, a, b) = match (c.name, o) {
            ("not", [d, a]) => (BoolOp::Xor, d, a, &Operand::Int(1)),
            (name, [d, a, b]) if name != "not" => (bool_op(name).unwrap_or(BoolOp::And), d, a, b),
            _ => return Err(c.refuse("this number of operands", "9.7.8")),
        };
        let ((a, na), (b, nb)) = (self.predicate(a)?, self.predicate(b)?);
        let d = self.dest(d, Ty::PRED)?.slot;
        self.push(Op::Predicate { f, d, a, b, negate: [na, nb] });
        Ok(())
    }
}
