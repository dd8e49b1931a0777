//! Parses declarations of registers and variables (PTX ISA 5.4).

use crate::error::ParseError;
use crate::lex::syntax;
use crate::syntax::{Item, Operand, Parser, Variable, unsupported};
use crate::types::Ty;

/// Bound on declared registers of one name, so that hostile text cannot ask for all memory.
const MAX_REGISTERS: u64 = 1 << 20;
/// Bound on a declared variable.
const MAX_VARIABLE: u64 = 1 << 20;

impl Parser {
    pub(crate) fn registers(&mut self, body: &mut Vec<Item>) -> Result<(), ParseError> {
        self.next();
        let line = self.line();
        let name = self.word()?;
        if matches!(name.as_str(), ".v2" | ".v4" | ".b128") {
            return Err(unsupported(line, &format!(".reg {name}"), "vector and 128-bit registers", "5.4.2"));
        }
        let ty = Ty::parse(&name[1..]).ok_or_else(|| syntax(line, format!("`{name}` is not a type")))?;
        loop {
            let (line, name) = (self.line(), self.word()?);
            let mut count = None;
            if self.accept('<') {
                let n = self.int()?;
                self.expect('>')?;
                if n > MAX_REGISTERS {
                    return Err(syntax(line, format!("{n} registers are more than {MAX_REGISTERS}")));
                }
                count = Some(n as u32);
            }
            body.push(Item::Registers { ty, name, count, line });
            if !self.accept(',') {
                return self.expect(';');
            }
        }
    }

    pub(crate) fn variables(&mut self, out: &mut Vec<Variable>) -> Result<(), ParseError> {
        out.push(self.variable()?);
        if self.accept(';') {
            return Ok(());
        }
        Err(unsupported(self.line(), "variable list", "declare one variable a statement", "5.4.1"))
    }

    /// `.space [.align N] .type [.ptr …] name [dims] [= init]`.
    pub(crate) fn variable(&mut self) -> Result<Variable, ParseError> {
        let line = self.line();
        let (mut space, mut align, mut ty, mut vector, mut external) = (None, 0, None, 1, false);
        let mut pointer = false;
        let name = loop {
            let word = self.word()?;
            match word.as_str() {
                ".extern" => external = true,
                ".visible" | ".weak" => {}
                ".ptr" => pointer = true,
                // Behind `.ptr` it is the alignment of what the pointer points at.
                ".align" if pointer => drop(self.int()?),
                ".align" => align = self.int()?,
                ".v2" => vector = 2,
                ".v4" => vector = 4,
                ".param" | ".const" | ".local" | ".global" | ".shared" | ".shared::cta" if space.is_none() => {
                    space = Some(word[1..].trim_end_matches("::cta").to_owned());
                }
                ".global" | ".const" | ".local" | ".shared" | ".generic" => {}
                w if w.starts_with('.') => {
                    ty = Some(Ty::parse(&w[1..]).ok_or_else(|| unsupported(line, w, "in a declaration", "5.4"))?);
                }
                _ => break word,
            }
        };
        let ty = ty.ok_or_else(|| syntax(line, format!("`{name}` has no type")))?;
        let space = space.ok_or_else(|| syntax(line, format!("`{name}` has no state space")))?;
        let (mut count, mut dynamic) = (vector, false);
        while self.accept('[') {
            if self.accept(']') {
                dynamic = true;
            } else {
                count = self.int()?.saturating_mul(count);
                self.expect(']')?;
            }
        }
        let element = u64::from(ty.bytes().max(1));
        let bytes = count.checked_mul(element).filter(|&b| b <= MAX_VARIABLE);
        let mut bytes = bytes.ok_or_else(|| syntax(line, format!("`{name}` is too large")))?;
        let init = if self.accept('=') { self.initialiser(ty)? } else { Vec::new() };
        if dynamic && init.is_empty() != external {
            return Err(syntax(line, format!("`{name}` has no size")));
        }
        if dynamic {
            bytes = init.len() as u64;
        } else if init.len() as u64 > bytes {
            return Err(syntax(line, format!("`{name}` has more initial values than elements")));
        }
        let align = if align == 0 { element * vector } else { align };
        if !align.is_power_of_two() || align > 1 << 16 {
            return Err(syntax(line, format!("`{name}`: alignment {align} is no power of two up to 65536")));
        }
        Ok(Variable { name, line, space, align, bytes, dynamic: dynamic && external, init })
    }

    fn initialiser(&mut self, ty: Ty) -> Result<Vec<u8>, ParseError> {
        let (mut out, mut depth) = (Vec::new(), 0);
        loop {
            if self.accept('{') {
                depth += 1;
            } else if self.accept('}') {
                depth -= 1;
            } else if depth > 0 && self.accept(',') {
            } else {
                let line = self.line();
                let value = match self.operand()? {
                    Operand::Int(v) => v,
                    Operand::F32(v) => u64::from(v),
                    Operand::F64(v) if ty == Ty::F32 => u64::from((f64::from_bits(v) as f32).to_bits()),
                    Operand::F64(v) => v,
                    _ => return Err(unsupported(line, "initialiser", "only numbers", "5.4.4")),
                };
                out.extend_from_slice(&value.to_le_bytes()[..ty.bytes() as usize]);
            }
            if depth == 0 {
                return Ok(out);
            }
        }
    }
}
