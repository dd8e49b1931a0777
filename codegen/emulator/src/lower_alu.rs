//! Lowers arithmetic, comparison, logic and conversion (PTX ISA 9.7.1 to 9.7.9.5).

use crate::error::ParseError;
use crate::float::Round;
use crate::lower::Lower;
use crate::op::{Class, Op, Reg};
use crate::opcode::Code;
use crate::quicken::{ZERO, quicken, widen};
use crate::scalar::{Approx, BoolOp, Convert, FloatOp, IntOp, Mods, Scalar};
use crate::syntax::Operand;
use crate::types::{Kind, Ty};

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
