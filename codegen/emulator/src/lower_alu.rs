//! Lowers arithmetic, comparison, logic and conversion (PTX ISA 9.7.1 to 9.7.9.5).

use crate::error::ParseError;
use crate::fast::{Fast32, Fast64};
use crate::float::Round;
use crate::lower::{Code, Lower};
use crate::op::{Class, Op, Reg, Shift};
use crate::scalar::{Approx, BoolOp, Compare, Convert, FloatOp, IntOp, Mods, Scalar};
use crate::syntax::Operand;
use crate::types::{Kind, Ty};

const ZERO: Reg = Reg { class: Class::W32, slot: 0 };

pub(crate) fn bool_op(name: &str) -> Option<BoolOp> {
    match name {
        "and" => Some(BoolOp::And),
        "or" => Some(BoolOp::Or),
        "xor" => Some(BoolOp::Xor),
        _ => None,
    }
}

fn rounding(name: &str) -> Option<Round> {
    match name {
        "rn" => Some(Round::Nearest),
        "rna" => Some(Round::Away),
        "rz" => Some(Round::Zero),
        "rm" => Some(Round::Down),
        "rp" => Some(Round::Up),
        _ => None,
    }
}

fn integral(name: &str) -> Option<Round> {
    rounding(name.strip_suffix('i')?)
}

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
    /// Lowers an arithmetic instruction; false if it is none.
    pub(crate) fn alu(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<bool, ParseError> {
        let name = c.name;
        match name {
            "mov" => self.mov(c, o)?,
            "cvt" => self.convert(c, o)?,
            "setp" => self.setp(c, o)?,
            "set" => self.set(c, o)?,
            "slct" => self.slct(c, o)?,
            "testp" => self.testp(c, o)?,
            "selp" => {
                let ty = c.ty()?;
                let [d, a, b, p] = c.operands(o)?;
                let (a, b) = (self.source(a, ty)?, self.source(b, ty)?);
                let (p, negated) = self.predicate(p)?;
                let d = self.dest(d, ty)?;
                let (a, b) = if negated { (b, a) } else { (a, b) };
                self.push(Op::Select { d, a, b, p });
            }
            "and" | "or" | "xor" | "not" if c.take("pred") => self.predicates(c, o)?,
            "lop3" => {
                let ty = c.ty()?;
                let [d, a, b, e, table] = c.operands(o)?;
                if ty.width() != 32 {
                    return Err(c.refuse("this type", "9.7.8.6"));
                }
                let &Operand::Int(table) = table else {
                    return Err(c.refuse("the table must be a literal", "9.7.8.6"));
                };
                self.emit(Scalar::Int(IntOp::Lop3(table as u8), ty), ty, d, &[(a, ty), (b, ty), (e, ty)])?;
            }
            "bfi" => {
                let ty = c.ty()?;
                let [d, a, b, position, length] = c.operands(o)?;
                let parts = vec![self.source(position, Ty::U32)?, self.source(length, Ty::U32)?];
                let both = self.fresh(Ty::U64);
                self.push(Op::Pack { d: both, parts, bits: 32 });
                let src = [self.source(a, ty)?, self.source(b, ty)?, both];
                let d = self.dest(d, ty)?;
                self.push(Op::Scalar { f: Scalar::Int(IntOp::Insert, ty), d, src });
            }
            "shf" => {
                let left = c.take("l");
                if !left && !c.take("r") {
                    return Err(c.refuse("a direction is missing", "9.7.8.7"));
                }
                let wrap = c.take("wrap");
                if !wrap && !c.take("clamp") {
                    return Err(c.refuse("a mode is missing", "9.7.8.7"));
                }
                let ty = c.ty()?;
                if ty.width() != 32 {
                    return Err(c.refuse("this type", "9.7.8.7"));
                }
                let [d, a, b, n] = c.operands(o)?;
                let f = if left { IntOp::FunnelLeft { wrap } } else { IntOp::FunnelRight { wrap } };
                self.emit(Scalar::Int(f, ty), ty, d, &[(a, ty), (b, ty), (n, Ty::U32)])?;
            }
            _ => {
                if !self.integer_op(name, c, o)? {
                    return self.float_op(name, c, o);
                }
            }
        }
        Ok(true)
    }

    /// `slct`: the first operand where the third is not negative (9.7.6.4).
    fn slct(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
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
    fn testp(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
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

    fn emit(&mut self, f: Scalar, to: Ty, d: &Operand, from: &[(&Operand, Ty)]) -> Result<(), ParseError> {
        let mut src = [ZERO; 3];
        for (slot, (operand, ty)) in src.iter_mut().zip(from) {
            *slot = self.source(operand, *ty)?;
        }
        let d = self.dest(d, to)?;
        self.push(quicken(f, d, src));
        Ok(())
    }

    fn integer_op(&mut self, name: &str, c: &mut Code<'_>, o: &[Operand]) -> Result<bool, ParseError> {
        let mut probe = c.take_map(|m| Ty::parse(m).filter(|t| !t.is_float() && t.kind != Kind::Pred));
        let Some(ty) = probe.take() else { return Ok(false) };
        if c.take("cc") || matches!(name, "addc" | "subc" | "madc") {
            return Err(c.refuse("carry arithmetic", "9.7.2"));
        }
        let wide = Ty { bits: ty.bits * 2, ..ty };
        let (f, to, types): (IntOp, Ty, Vec<Ty>) = match name {
            "add" => (if c.take("sat") { IntOp::AddSaturated } else { IntOp::Add }, ty, vec![ty; 2]),
            "sub" => (if c.take("sat") { IntOp::SubSaturated } else { IntOp::Sub }, ty, vec![ty; 2]),
            "mul" if c.take("wide") => (IntOp::MulWide, wide, vec![ty; 2]),
            "mul" if c.take("hi") => (IntOp::MulHigh, ty, vec![ty; 2]),
            "mul" if c.take("lo") => (IntOp::MulLow, ty, vec![ty; 2]),
            "mad" if c.take("wide") => (IntOp::MadWide, wide, vec![ty, ty, wide]),
            "mad" if c.take("hi") => (IntOp::MadHigh, ty, vec![ty; 3]),
            "mad" if c.take("lo") => (IntOp::MadLow, ty, vec![ty; 3]),
            "mul24" if c.take("lo") => (IntOp::Mul24Low, ty, vec![ty; 2]),
            "sad" => (IntOp::Sad, ty, vec![ty; 3]),
            "div" => (IntOp::Div, ty, vec![ty; 2]),
            "rem" => (IntOp::Rem, ty, vec![ty; 2]),
            "abs" => (IntOp::Abs, ty, vec![ty]),
            "neg" => (IntOp::Neg, ty, vec![ty]),
            "min" => (IntOp::Min, ty, vec![ty; 2]),
            "max" => (IntOp::Max, ty, vec![ty; 2]),
            "and" => (IntOp::And, ty, vec![ty; 2]),
            "or" => (IntOp::Or, ty, vec![ty; 2]),
            "xor" => (IntOp::Xor, ty, vec![ty; 2]),
            "not" => (IntOp::Not, ty, vec![ty]),
            "cnot" => (IntOp::CNot, ty, vec![ty]),
            "shl" => (IntOp::ShiftLeft, ty, vec![ty, Ty::U32]),
            "shr" => (IntOp::ShiftRight, ty, vec![ty, Ty::U32]),
            "bfe" => (IntOp::Extract, ty, vec![ty, Ty::U32, Ty::U32]),
            "popc" => (IntOp::Count, Ty::U32, vec![ty]),
            "clz" => (IntOp::LeadingZeros, Ty::U32, vec![ty]),
            "brev" => (IntOp::Reverse, ty, vec![ty]),
            "bfind" => (IntOp::FindHigh { shift: c.take("shiftamt") }, Ty::U32, vec![ty]),
            "prmt" => (IntOp::Permute, ty, vec![ty, ty, Ty::U32]),
            _ => return Err(c.refuse("no such integer instruction is executed", "9.7.1")),
        };
        let narrow = matches!(name, "prmt" | "mul24");
        if ty.bits != 32 && (narrow || ty.bits < 32 && matches!(name, "bfe" | "popc" | "clz" | "brev" | "bfind")) {
            return Err(c.refuse("this type", "9.7.1"));
        }
        if o.len() != types.len() + 1 {
            return Err(self.wrong(format!("`{}` takes {} operands, found {}", c.full, types.len() + 1, o.len())));
        }
        let from: Vec<_> = o[1..].iter().zip(types).collect();
        self.emit(Scalar::Int(f, ty), to, &o[0], &from)?;
        Ok(true)
    }

    fn float_op(&mut self, name: &str, c: &mut Code<'_>, o: &[Operand]) -> Result<bool, ParseError> {
        let nan = c.take("NaN");
        let bounded = c.take("approx") | c.take("full");
        let (f, n): (Option<FloatOp>, usize) = match name {
            "add" => (Some(FloatOp::Add), 2),
            "sub" => (Some(FloatOp::Sub), 2),
            "mul" => (Some(FloatOp::Mul), 2),
            "fma" | "mad" => (Some(FloatOp::Fma), 3),
            "div" => (Some(FloatOp::Div), 2),
            "sqrt" => (Some(FloatOp::Sqrt), 1),
            "rcp" => (Some(FloatOp::Rcp), 1),
            "min" => (Some(FloatOp::Min { nan }), 2),
            "max" => (Some(FloatOp::Max { nan }), 2),
            "abs" => (Some(FloatOp::Abs), 1),
            "neg" => (Some(FloatOp::Neg), 1),
            "copysign" => (Some(FloatOp::CopySign), 2),
            "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh" => (None, 1),
            _ => return Ok(false),
        };
        let mods = mods(c);
        let ty = c.ty()?;
        if !ty.is_float() || ty.kind == Kind::Tf32 {
            return Err(c.refuse("this type", "9.7.3"));
        }
        if ty.bits == 64 && mods.round != Round::Nearest {
            return Err(c.refuse("directed rounding of f64", "9.7.3"));
        }
        if bounded && !matches!(name, "div" | "sqrt" | "rcp" | "rsqrt" | "ex2" | "lg2" | "sin" | "cos" | "tanh") {
            return Err(c.refuse("modifier .approx", "9.7.3"));
        }
        if o.len() != n + 1 {
            return Err(self.wrong(format!("`{}` takes {} operands, found {}", c.full, n + 1, o.len())));
        }
        let f = match f {
            Some(f) => Scalar::Float(f, ty, mods),
            None => Scalar::Approx(approx(name), ty, mods),
        };
        let from: Vec<_> = o[1..].iter().map(|o| (o, ty)).collect();
        self.emit(f, ty, &o[0], &from)?;
        Ok(true)
    }

    fn mov(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
        let ty = c.ty()?;
        let [d, s] = c.operands(o)?;
        if let (Operand::Vector(parts), _) | (_, Operand::Vector(parts)) = (s, d)
            && (!matches!(parts.len(), 2 | 4 | 8) || ty.width() / (parts.len() as u32) < 8)
        {
            return Err(c.refuse("this number of elements", "9.7.9.4"));
        }
        if let Operand::Vector(parts) = s {
            let bits = ty.width() / parts.len().max(1) as u32;
            let part = Ty::new(Kind::Bits, bits);
            let parts = parts.iter().map(|p| self.source(p, part)).collect::<Result<_, _>>()?;
            let d = self.dest(d, ty)?;
            self.push(Op::Pack { d, parts, bits });
        } else if let Operand::Vector(parts) = d {
            let bits = ty.width() / parts.len().max(1) as u32;
            let part = Ty::new(Kind::Bits, bits);
            let mut regs = Vec::new();
            for p in parts {
                regs.push(if *p == Operand::Name("_".to_owned()) { None } else { Some(self.dest(p, part)?) });
            }
            let s = self.source(s, ty)?;
            self.push(Op::Unpack { parts: regs, s, bits });
        } else if matches!(s, Operand::Name(n) if matches!(n.as_str(), "%clock" | "%clock64" | "%globaltimer")) {
            let d = self.dest(d, ty)?;
            self.push(Op::Clock { d });
        } else {
            let s = if ty == Ty::PRED {
                Reg { class: Class::Pred, slot: self.predicate(s)?.0 }
            } else {
                self.source(s, ty)?
            };
            let d = self.dest(d, ty)?;
            if d.class != s.class {
                return Err(c.refuse("a source of another width", "9.7.9.3"));
            }
            self.push(Op::Mov { d, s });
        }
        Ok(())
    }

    fn convert(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
        let integral = c.take_map(integral);
        let mut mods = mods(c);
        mods.round = integral.unwrap_or(mods.round);
        let (to, from) = (c.ty()?, c.ty()?);
        if to == Ty::F64 && from.bits == 64 && !from.is_float() && mods.round != Round::Nearest {
            return Err(c.refuse("directed rounding to f64", "9.7.9.20"));
        }
        let f = Scalar::Convert(Convert { to, from, mods, integral: integral.is_some() });
        if to.packed {
            let [d, a, b] = c.operands(o)?;
            return self.emit(f, to, d, &[(a, from), (b, from)]);
        }
        let [d, a] = c.operands(o)?;
        let a = self.wide_source(a, from)?;
        let (d, width) = self.wider(d, to)?;
        self.push(match (a.class, d.class, to.is_float() || to.is_signed()) {
            (Class::W32, Class::W32, true) => quicken(f, d, [a, ZERO, ZERO]),
            _ => widen(Convert { to, from, mods, integral: integral.is_some() }, d, a),
        });
        if to.is_signed() && width > to.bits {
            let extend = Convert {
                to: Ty::new(Kind::Signed, width),
                from: to,
                mods: Mods { saturate: false, ..mods },
                integral: false,
            };
            self.push(Op::Scalar { f: Scalar::Convert(extend), d, src: [d, ZERO, ZERO] });
        }
        Ok(())
    }

    fn comparison(&mut self, c: &mut Code<'_>) -> Result<Compare, ParseError> {
        let found = c.take_map(compare).ok_or_else(|| c.refuse("no comparison is named", "9.7.6"))?;
        Ok(Compare { flush: c.take("ftz"), ..found })
    }

    fn setp(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
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

    fn set(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
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

    fn predicates(&mut self, c: &mut Code<'_>, o: &[Operand]) -> Result<(), ParseError> {
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

fn mods(c: &mut Code<'_>) -> Mods {
    Mods {
        round: c.take_map(rounding).unwrap_or(Round::Nearest),
        flush: c.take("ftz"),
        saturate: c.take("sat"),
        relu: c.take("relu"),
    }
}

fn approx(name: &str) -> Approx {
    match name {
        "rsqrt" => Approx::Rsqrt,
        "ex2" => Approx::Ex2,
        "lg2" => Approx::Lg2,
        "sin" => Approx::Sin,
        "cos" => Approx::Cos,
        _ => Approx::Tanh,
    }
}

/// Replaces frequent operations by their vectorised form.
fn quicken(f: Scalar, d: Reg, src: [Reg; 3]) -> Op {
    let slots = src.map(|r| r.slot);
    let plain = |m: Mods| m.round == Round::Nearest && !m.flush && !m.saturate && !m.relu;
    let (narrow, wide) = match f {
        Scalar::Int(op, ty) if ty.bits == 32 && !ty.packed => (narrow_int(op, ty), None),
        Scalar::Int(op, ty) if ty.bits == 64 => (None, wide_int(op, ty)),
        Scalar::Float(op, ty, m) if ty == Ty::F32 && plain(m) => (narrow_float(op), None),
        Scalar::Float(op, ty, m) if ty == Ty::F64 && plain(m) => (None, wide_float(op)),
        Scalar::Convert(convert) if plain(convert.mods) && !convert.integral => (conversion(convert), None),
        _ => (None, None),
    };
    if let (Scalar::Int(IntOp::MulWide | IntOp::MadWide, ty), Class::W64) = (f, d.class)
        && ty.bits == 32
    {
        return Op::Wide { signed: ty.is_signed(), d: d.slot, a: slots[0], b: slots[1], c: slots[2] };
    }
    if let (Scalar::Int(op @ (IntOp::ShiftLeft | IntOp::ShiftRight), ty), Class::W64) = (f, d.class) {
        let f = match (op, ty.is_signed()) {
            (IntOp::ShiftLeft, _) => Shift::Left,
            (_, true) => Shift::RightSigned,
            (_, false) => Shift::Right,
        };
        return Op::Shift64 { f, d: d.slot, a: slots[0], by: slots[1] };
    }
    match (narrow, wide) {
        (Some(f), _) => Op::Fast32 { f, d: d.slot, src: slots },
        (_, Some(f)) => Op::Fast64 { f, d: d.slot, src: slots },
        _ => Op::Scalar { f, d, src },
    }
}

fn narrow_int(op: IntOp, ty: Ty) -> Option<Fast32> {
    Some(match op {
        IntOp::Add => Fast32::Add,
        IntOp::Sub => Fast32::Sub,
        IntOp::MulLow => Fast32::MulLow,
        IntOp::MadLow => Fast32::MadLow,
        IntOp::And => Fast32::And,
        IntOp::Or => Fast32::Or,
        IntOp::Xor => Fast32::Xor,
        IntOp::ShiftLeft => Fast32::ShiftLeft,
        IntOp::ShiftRight if ty.is_signed() => Fast32::ShiftRightSigned,
        IntOp::ShiftRight => Fast32::ShiftRight,
        IntOp::MulHigh if ty.is_signed() => Fast32::MulHighSigned,
        IntOp::MulHigh => Fast32::MulHigh,
        IntOp::Not => Fast32::Not,
        IntOp::Neg => Fast32::Negate,
        IntOp::Min if ty.is_signed() => Fast32::MinSigned,
        IntOp::Max if ty.is_signed() => Fast32::MaxSigned,
        IntOp::Min => Fast32::Min,
        IntOp::Max => Fast32::Max,
        _ => return None,
    })
}

fn wide_int(op: IntOp, ty: Ty) -> Option<Fast64> {
    Some(match op {
        IntOp::Add => Fast64::Add,
        IntOp::Sub => Fast64::Sub,
        IntOp::MulLow => Fast64::MulLow,
        IntOp::MadLow => Fast64::MadLow,
        IntOp::And => Fast64::And,
        IntOp::Or => Fast64::Or,
        IntOp::Xor => Fast64::Xor,
        IntOp::MulHigh if !ty.is_signed() => Fast64::MulHigh,
        IntOp::Min if ty.is_signed() => Fast64::MinSigned,
        IntOp::Max if ty.is_signed() => Fast64::MaxSigned,
        IntOp::Min => Fast64::Min,
        IntOp::Max => Fast64::Max,
        _ => return None,
    })
}

fn narrow_float(op: FloatOp) -> Option<Fast32> {
    Some(match op {
        FloatOp::Add => Fast32::FAdd,
        FloatOp::Sub => Fast32::FSub,
        FloatOp::Mul => Fast32::FMul,
        FloatOp::Fma => Fast32::Fma,
        FloatOp::Min { nan: false } => Fast32::FMin,
        FloatOp::Max { nan: false } => Fast32::FMax,
        FloatOp::Min { nan: true } => Fast32::FMinNan,
        FloatOp::Max { nan: true } => Fast32::FMaxNan,
        FloatOp::Neg => Fast32::FNegate,
        FloatOp::Abs => Fast32::FAbs,
        FloatOp::Div => Fast32::FDiv,
        FloatOp::Sqrt => Fast32::FSqrt,
        FloatOp::Rcp => Fast32::FRcp,
        FloatOp::CopySign => return None,
    })
}

fn wide_float(op: FloatOp) -> Option<Fast64> {
    Some(match op {
        FloatOp::Add => Fast64::FAdd,
        FloatOp::Sub => Fast64::FSub,
        FloatOp::Mul => Fast64::FMul,
        FloatOp::Fma => Fast64::Fma,
        _ => return None,
    })
}

/// Conversions with a vectorised form; those from integers of 32 bits must not be saturated or partial.
fn conversion(c: Convert) -> Option<Fast32> {
    Some(match (c.to, c.from) {
        (Ty { packed: true, kind: Kind::Brain, .. }, Ty::F32) => Fast32::ToBrains,
        (Ty::F32, Ty::BF16) => Fast32::FromBrain,
        (Ty::F32, Ty { kind: Kind::Signed, bits: 32, packed: false }) => Fast32::FromSigned,
        (Ty::F32, Ty::U32) => Fast32::FromUnsigned,
        _ => return None,
    })
}

/// Conversions between 32-bit and 64-bit integers as what they are, sums and copies.
fn widen(c: Convert, d: Reg, a: Reg) -> Op {
    let whole = |t: Ty| !t.is_float() && matches!(t.bits, 32 | 64);
    if whole(c.to) && whole(c.from) && !c.mods.saturate {
        match (a.class, d.class) {
            (Class::W32, Class::W64) if c.from.bits == 32 && c.to.bits == 64 => {
                return Op::Extend { signed: c.from.is_signed(), d: d.slot, a: a.slot };
            }
            (Class::W64, Class::W32) if c.from.bits == 64 && c.to.bits == 32 => {
                return Op::Truncate { d: d.slot, a: a.slot };
            }
            _ => {}
        }
    }
    Op::Scalar { f: Scalar::Convert(c), d, src: [a, ZERO, ZERO] }
}
