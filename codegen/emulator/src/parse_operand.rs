//! Parses operands (PTX ISA 6).

use crate::error::ParseError;
use crate::lex::{Token, syntax};
use crate::syntax::{Operand, Parser};

impl Parser {
    pub(crate) fn operand(&mut self) -> Result<Operand, ParseError> {
        let line = self.line();
        if self.accept('{') {
            let mut parts = Vec::new();
            loop {
                match self.operand()? {
                    Operand::Vector(_) => return Err(syntax(line, "a vector within a vector")),
                    part => parts.push(part),
                }
                if self.accept('}') {
                    return Ok(Operand::Vector(parts));
                }
                self.expect(',')?;
            }
        }
        if self.accept('[') {
            return self.address();
        }
        if self.accept('!') {
            return Ok(Operand::Not(self.word()?));
        }
        if self.accept('-') {
            return match self.next() {
                Some(Token::Int(v)) => Ok(Operand::Int(v.wrapping_neg())),
                Some(Token::F64(v)) => Ok(Operand::F64(v ^ 1 << 63)),
                Some(Token::F32(v)) => Ok(Operand::F32(v ^ 1 << 31)),
                _ => Err(syntax(line, "expected a number after `-`")),
            };
        }
        match self.next() {
            Some(Token::Int(v)) => Ok(Operand::Int(v)),
            Some(Token::F32(v)) => Ok(Operand::F32(v)),
            Some(Token::F64(v)) => Ok(Operand::F64(v)),
            Some(Token::Word(name)) if self.accept('|') => Ok(Operand::Pair(name, self.word()?)),
            Some(Token::Word(name)) => Ok(Operand::Name(name)),
            _ => {
                self.at -= 1;
                Err(self.unexpected("an operand"))
            }
        }
    }

    fn address(&mut self) -> Result<Operand, ParseError> {
        let base = match self.peek() {
            Some(Token::Word(_)) => Some(self.word()?),
            _ => None,
        };
        let mut offset = 0i64;
        loop {
            if base.is_some() && self.accept(']') {
                return Ok(Operand::Address(base, offset));
            }
            let negative = match (self.accept('+'), self.accept('-')) {
                (_, true) => true,
                (true, false) => false,
                (false, false) if base.is_none() => false,
                _ => return Err(self.unexpected("`]`")),
            };
            let value = self.int()? as i64;
            offset = offset.wrapping_add(if negative { value.wrapping_neg() } else { value });
            if self.accept(']') {
                return Ok(Operand::Address(base, offset));
            }
        }
    }
}
