//! Resolves operands: names to registers, literals and special values to registers that hold them from the start.

use crate::error::{ParseError, Problem};
use crate::lex::syntax;
use crate::lower::{Lower, Special, Symbol, class};
use crate::lower_memory::window;
use crate::op::{Address, Class, Reg, Space};
use crate::syntax::{Operand, unsupported};
use crate::types::{Kind, Ty};

impl Lower {
    fn symbol(&mut self, name: &str) -> Option<Symbol> {
        let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number: Option<u32> = name[stem.len()..].parse().ok();
        for scope in self.scopes.iter_mut().rev() {
            if let Some(symbol) = scope.get(name) {
                return Some(symbol.clone());
            }
            if let (Some(Symbol::Family(ty, count)), Some(number)) = (scope.get(stem), number)
                && number < *count
            {
                let symbol = Symbol::Register(*ty, self.program.template.fresh(class(*ty)));
                scope.insert(name.to_owned(), symbol.clone());
                return Some(symbol);
            }
        }
        None
    }

    pub(crate) fn wrong(&self, message: String) -> ParseError {
        syntax(self.line, message)
    }

    fn undeclared(&self, name: &str) -> ParseError {
        ParseError { line: self.line, problem: Problem::Undeclared(name.to_owned()) }
    }

    fn mismatch(&self, operand: &str, found: Ty, wanted: Ty) -> ParseError {
        let (found, wanted) = (found.name(), wanted.name());
        let problem = Problem::Operand { instruction: self.opcode.clone(), operand: operand.to_owned(), found, wanted };
        ParseError { line: self.line, problem }
    }

    /// A register and its declared type.
    pub(crate) fn typed(&mut self, name: &str) -> Result<(Ty, Reg), ParseError> {
        match self.symbol(name) {
            Some(Symbol::Register(ty, reg)) => Ok((ty, reg)),
            Some(_) => Err(syntax(self.line, format!("`{name}` is not a register"))),
            None => Err(self.undeclared(name)),
        }
    }

    /// A register of a type that fits `ty`.
    pub(crate) fn register(&mut self, name: &str, ty: Ty) -> Result<Reg, ParseError> {
        let (found, reg) = self.typed(name)?;
        if found.fits(ty) { Ok(reg) } else { Err(self.mismatch(name, found, ty)) }
    }

    /// A destination register of exactly the instruction's type.
    pub(crate) fn dest(&mut self, operand: &Operand, ty: Ty) -> Result<Reg, ParseError> {
        match operand {
            Operand::Name(name) => self.register(name, ty),
            _ => Err(syntax(self.line, "the destination must be a register")),
        }
    }

    /// A destination or source register that may be wider than the type (PTX ISA 9.4.1), with its width.
    pub(crate) fn wider(&mut self, operand: &Operand, ty: Ty) -> Result<(Reg, u32), ParseError> {
        let Operand::Name(name) = operand else { return Err(syntax(self.line, "expected a register")) };
        let (found, reg) = self.typed(name)?;
        if found.width() < ty.width() || (found.kind == Kind::Pred) != (ty.kind == Kind::Pred) {
            return Err(self.mismatch(name, found, ty));
        }
        Ok((reg, found.width()))
    }

    /// A source operand: register, literal, special register or the address of a variable.
    pub(crate) fn source(&mut self, operand: &Operand, ty: Ty) -> Result<Reg, ParseError> {
        match operand {
            Operand::Name(name) => {
                if let Some(reg) = self.special(name)? {
                    return if ty.width() == 32 { Ok(reg) } else { Err(self.mismatch(name, Ty::U32, ty)) };
                }
                match self.symbol(name) {
                    Some(Symbol::Variable(_, at)) => Ok(self.immediate(at, ty)),
                    Some(Symbol::Module(index)) if ty.width() == 64 => Ok(self.value(Special::Variable(index))),
                    Some(Symbol::Module(_)) => Err(self.mismatch(name, Ty::U64, ty)),
                    _ => self.register(name, ty),
                }
            }
            &Operand::Int(_) if ty.is_float() && !ty.packed => {
                Err(syntax(self.line, "an integer literal where a floating-point one is needed"))
            }
            &Operand::Int(v) => Ok(self.immediate(v, ty)),
            &Operand::F32(v) if ty.width() == 32 => Ok(self.immediate(u64::from(v), ty)),
            &Operand::F64(v) if ty == Ty::F32 => {
                Ok(self.immediate(u64::from((f64::from_bits(v) as f32).to_bits()), ty))
            }
            &Operand::F64(v) if ty.width() == 64 => Ok(self.immediate(v, ty)),
            _ => Err(syntax(self.line, format!("an operand that does not fit {}", ty.name()))),
        }
    }

    /// A source that may be wider than its type, as `st` and `cvt` take.
    pub(crate) fn wide_source(&mut self, operand: &Operand, ty: Ty) -> Result<Reg, ParseError> {
        match operand {
            Operand::Name(name) => match self.special(name)? {
                Some(reg) if ty.width() <= 32 => Ok(reg),
                Some(_) => Err(self.mismatch(name, Ty::U32, ty)),
                None => self.wider(operand, ty).map(|r| r.0),
            },
            _ => self.source(operand, ty),
        }
    }

    pub(crate) fn immediate(&mut self, v: u64, ty: Ty) -> Reg {
        let v = crate::scalar::keep(v, ty.width());
        let class = class(ty);
        if let Some(&reg) = self.immediates.get(&(class == Class::W64, v)).filter(|r| r.class == class) {
            return reg;
        }
        let reg = self.program.template.fresh(class);
        self.program.template.fill(reg, |_| v);
        self.immediates.insert((class == Class::W64, v), reg);
        reg
    }

    fn special(&mut self, name: &str) -> Result<Option<Reg>, ParseError> {
        let Some(special) = special(name) else {
            if ["%clock", "%smid", "%nsmid", "%globaltimer", "%envreg", "%pm", "%cluster", "%is_"]
                .iter()
                .any(|p| name.starts_with(p))
            {
                return Err(unsupported(self.line, name, "special register as an operand", "10"));
            }
            return Ok(None);
        };
        Ok(Some(self.value(special)))
    }

    /// The register that holds a special value.
    fn value(&mut self, special: Special) -> Reg {
        let class = if matches!(special, Special::Variable(_)) { Class::W64 } else { Class::W32 };
        *self.specials.entry(special).or_insert_with(|| self.program.template.fresh(class))
    }

    /// A predicate, perhaps negated.
    pub(crate) fn predicate(&mut self, operand: &Operand) -> Result<(u32, bool), ParseError> {
        match operand {
            Operand::Name(name) => Ok((self.register(name, Ty::PRED)?.slot, false)),
            Operand::Not(name) => Ok((self.register(name, Ty::PRED)?.slot, true)),
            Operand::Int(v) => {
                let reg = self.program.template.fresh(Class::Pred);
                self.program.template.fill(reg, |_| v & 1);
                Ok((reg.slot, false))
            }
            _ => Err(syntax(self.line, "expected a predicate")),
        }
    }

    /// An address that an instruction accesses in `space`.
    pub(crate) fn address(&mut self, operand: &Operand, space: Space) -> Result<Address, ParseError> {
        let Operand::Address(base, offset) = operand else {
            return Err(syntax(self.line, "expected an address in brackets"));
        };
        let Some(name) = base else { return Ok(Address { base: None, offset: *offset }) };
        match self.symbol(name) {
            Some(Symbol::Variable(found, at)) if found == space || space == Space::Generic => {
                let base = if space == Space::Generic { window(found) } else { 0 };
                Ok(Address { base: None, offset: offset.wrapping_add(at.wrapping_add(base) as i64) })
            }
            Some(Symbol::Module(index)) if matches!(space, Space::Global | Space::Generic) => {
                Ok(Address { base: Some(self.value(Special::Variable(index))), offset: *offset })
            }
            Some(Symbol::Module(_)) => Err(syntax(self.line, format!("`{name}` lies in another state space"))),
            Some(Symbol::Variable(..)) => Err(syntax(self.line, format!("`{name}` lies in another state space"))),
            Some(Symbol::Register(ty, reg)) if matches!(ty.bits, 32 | 64) => {
                Ok(Address { base: Some(reg), offset: *offset })
            }
            Some(_) => Err(syntax(self.line, format!("`{name}` is no address"))),
            None => Err(self.undeclared(name)),
        }
    }

    /// The elements of a vector operand, or the operand itself.
    pub(crate) fn elements(operand: &Operand) -> &[Operand] {
        match operand {
            Operand::Vector(parts) => parts,
            one => std::slice::from_ref(one),
        }
    }
}

fn special(name: &str) -> Option<Special> {
    let axis = |rest: &str| match rest {
        ".x" => Some(0),
        ".y" => Some(1),
        ".z" => Some(2),
        _ => None,
    };
    let mask = |below, equal, above| Some(Special::LaneMask { below, equal, above });
    match name {
        "%laneid" => Some(Special::LaneId),
        "%warpid" => Some(Special::WarpId),
        "%nwarpid" => Some(Special::WarpCount),
        "%lanemask_lt" => mask(true, false, false),
        "%lanemask_le" => mask(true, true, false),
        "%lanemask_eq" => mask(false, true, false),
        "%lanemask_ge" => mask(false, true, true),
        "%lanemask_gt" => mask(false, false, true),
        "%dynamic_smem_size" => Some(Special::DynamicShared),
        _ => None,
    }
    .or_else(|| name.strip_prefix("%tid").and_then(axis).map(Special::Tid))
    .or_else(|| name.strip_prefix("%ntid").and_then(axis).map(Special::Ntid))
    .or_else(|| name.strip_prefix("%ctaid").and_then(axis).map(Special::Ctaid))
    .or_else(|| name.strip_prefix("%nctaid").and_then(axis).map(Special::Nctaid))
}
