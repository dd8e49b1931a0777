//! Parses tokens into kernels: declarations and instructions, names not yet resolved (PTX ISA 4, 5, 11).

use crate::error::{ParseError, Problem};
use crate::lex::{Token, syntax, tokens};
use crate::types::Ty;

/// A parsed operand.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Operand {
    Name(String),
    /// `!%p`
    Not(String),
    /// `%p|%q`
    Pair(String, String),
    Int(u64),
    F32(u32),
    F64(u64),
    Vector(Vec<Operand>),
    /// `[base+offset]`; the base is absent for an absolute address.
    Address(Option<String>, i64),
}

/// A parsed instruction.
#[derive(Debug, Clone)]
pub(crate) struct Statement {
    pub(crate) line: u32,
    /// The guard predicate, negated or not.
    pub(crate) guard: Option<(String, bool)>,
    pub(crate) opcode: String,
    pub(crate) operands: Vec<Operand>,
}

/// A variable in memory.
#[derive(Debug, Clone)]
pub(crate) struct Variable {
    pub(crate) name: String,
    pub(crate) line: u32,
    pub(crate) space: String,
    pub(crate) align: u64,
    pub(crate) bytes: u64,
    /// `.extern .shared x[]`: sized at launch.
    pub(crate) dynamic: bool,
    /// Initial bytes; empty when there is no initialiser.
    pub(crate) init: Vec<u8>,
}

/// An item of a kernel body.
#[derive(Debug, Clone)]
pub(crate) enum Item {
    Open,
    Close,
    Label(String, u32),
    Registers { ty: Ty, name: String, count: Option<u32>, line: u32 },
    Variable(Variable),
    Statement(Statement),
}

/// A kernel.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) params: Vec<Variable>,
    pub(crate) max_threads: Option<[u32; 3]>,
    pub(crate) exact_threads: Option<[u32; 3]>,
    pub(crate) body: Vec<Item>,
}

/// A module.
#[derive(Debug, Clone)]
pub(crate) struct Unit {
    pub(crate) version: (u64, u64),
    pub(crate) target: String,
    pub(crate) variables: Vec<Variable>,
    pub(crate) entries: Vec<Entry>,
}

/// Bound on declared registers of one name, so that hostile text cannot ask for all memory.
const MAX_REGISTERS: u64 = 1 << 20;
/// Bound on a declared variable.
const MAX_VARIABLE: u64 = 1 << 20;

pub(crate) fn parse(text: &str) -> Result<Unit, ParseError> {
    let mut p = Parser { tokens: tokens(text)?, at: 0 };
    let mut unit = Unit { version: (0, 0), target: String::new(), variables: Vec::new(), entries: Vec::new() };
    while let Some(token) = p.peek() {
        let line = p.line();
        let Token::Word(word) = token.clone() else { return Err(p.unexpected("a directive")) };
        match word.as_str() {
            ".version" => {
                p.next();
                unit.version = p.version()?;
                if !matches!(unit.version.0, 6..=9) {
                    return Err(unsupported(line, ".version", "only PTX 6 to 9 is known", "11.1.1"));
                }
            }
            ".target" => {
                p.next();
                unit.target = p.word()?;
                while p.accept(',') {
                    p.word()?;
                }
            }
            ".address_size" => {
                p.next();
                if p.int()? != 64 {
                    return Err(unsupported(line, ".address_size", "only 64-bit addresses", "11.1.3"));
                }
            }
            ".file" | ".loc" => p.skip_line(),
            ".section" => p.skip_section()?,
            ".visible" | ".extern" | ".weak" | ".common" if p.begins_entry() => p.at += 1,
            ".entry" => {
                p.next();
                let entry = p.entry()?;
                unit.entries.push(entry);
            }
            ".func" | ".alias" => return Err(unsupported(line, &word, "functions are not executed", "11.2.2")),
            _ => p.variables(&mut unit.variables)?,
        }
    }
    if unit.version == (0, 0) {
        return Err(syntax(1, "no .version"));
    }
    Ok(unit)
}

pub(crate) fn unsupported(line: u32, instruction: &str, reason: &str, section: &'static str) -> ParseError {
    let (instruction, reason) = (instruction.to_owned(), reason.to_owned());
    ParseError { line, problem: Problem::Unsupported { instruction, reason, section } }
}

struct Parser {
    tokens: Vec<(Token, u32)>,
    at: usize,
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|t| &t.0)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.1)
    }

    fn next(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.at += 1;
        token
    }

    fn unexpected(&self, wanted: &str) -> ParseError {
        let found = match self.peek() {
            Some(Token::Word(w)) => format!("`{w}`"),
            Some(Token::Sign(c)) => format!("`{c}`"),
            Some(Token::Text) => "a string".to_owned(),
            Some(Token::Int(_) | Token::F32(_) | Token::F64(_)) => "a number".to_owned(),
            None => "the end of the text".to_owned(),
        };
        syntax(self.line(), format!("expected {wanted}, found {found}"))
    }

    fn accept(&mut self, sign: char) -> bool {
        let found = self.peek() == Some(&Token::Sign(sign));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: char) -> Result<(), ParseError> {
        if self.accept(sign) { Ok(()) } else { Err(self.unexpected(&format!("`{sign}`"))) }
    }

    fn word(&mut self) -> Result<String, ParseError> {
        match self.peek() {
            Some(Token::Word(w)) => {
                let w = w.clone();
                self.at += 1;
                Ok(w)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    fn int(&mut self) -> Result<u64, ParseError> {
        match self.peek() {
            Some(&Token::Int(v)) => {
                self.at += 1;
                Ok(v)
            }
            _ => Err(self.unexpected("an integer")),
        }
    }

    fn version(&mut self) -> Result<(u64, u64), ParseError> {
        let line = self.line();
        match self.next() {
            Some(Token::F64(bits)) => {
                let tenths = (f64::from_bits(bits) * 10.0).round();
                Ok(((tenths / 10.0) as u64, (tenths % 10.0) as u64))
            }
            _ => Err(syntax(line, ".version takes a number such as 7.4")),
        }
    }

    fn skip_line(&mut self) {
        let line = self.line();
        while self.at < self.tokens.len() && self.line() == line {
            self.at += 1;
        }
    }

    fn skip_section(&mut self) -> Result<(), ParseError> {
        while !matches!(self.peek(), None | Some(Token::Sign('{'))) {
            self.at += 1;
        }
        self.expect('{')?;
        let mut depth = 1;
        while depth > 0 {
            match self.next() {
                Some(Token::Sign('{')) => depth += 1,
                Some(Token::Sign('}')) => depth -= 1,
                Some(_) => {}
                None => return Err(self.unexpected("`}`")),
            }
        }
        Ok(())
    }

    fn begins_entry(&self) -> bool {
        matches!(self.tokens.get(self.at + 1), Some((Token::Word(w), _)) if w == ".entry" || w == ".func")
    }

    fn entry(&mut self) -> Result<Entry, ParseError> {
        let name = self.word()?;
        let mut entry = Entry { name, params: Vec::new(), max_threads: None, exact_threads: None, body: Vec::new() };
        if self.accept('(') && !self.accept(')') {
            loop {
                let param = self.variable()?;
                if param.space != "param" {
                    return Err(syntax(param.line, "a parameter must be in .param"));
                }
                entry.params.push(param);
                if self.accept(')') {
                    break;
                }
                self.expect(',')?;
            }
        }
        while !self.accept('{') {
            let line = self.line();
            match self.word()?.as_str() {
                ".maxntid" => entry.max_threads = Some(self.extents()?),
                ".reqntid" => entry.exact_threads = Some(self.extents()?),
                ".minnctapersm" | ".maxnreg" | ".maxnctapersm" => drop(self.int()?),
                ".pragma" => self.skip_line(),
                other => return Err(unsupported(line, other, "not a known directive of an entry", "11.4")),
            }
        }
        let mut depth = 1;
        loop {
            match self.peek() {
                Some(Token::Sign('{')) => depth += 1,
                Some(Token::Sign('}')) => depth -= 1,
                Some(_) => {}
                None => return Err(self.unexpected("`}`")),
            }
            if depth == 0 {
                self.at += 1;
                return Ok(entry);
            }
            self.read_item(&mut entry.body)?;
        }
    }

    fn extents(&mut self) -> Result<[u32; 3], ParseError> {
        let mut extents = [1; 3];
        for (axis, extent) in extents.iter_mut().enumerate() {
            if axis > 0 && !self.accept(',') {
                break;
            }
            let line = self.line();
            *extent = u32::try_from(self.int()?).map_err(|_| syntax(line, "too many threads"))?;
        }
        Ok(extents)
    }

    fn read_item(&mut self, body: &mut Vec<Item>) -> Result<(), ParseError> {
        let line = self.line();
        if self.accept('{') {
            body.push(Item::Open);
        } else if self.accept('}') {
            body.push(Item::Close);
        } else if self.accept(';') {
        } else if self.peek() == Some(&Token::Sign('@')) {
            body.push(Item::Statement(self.statement()?));
        } else if let Some(Token::Word(word)) = self.peek().cloned() {
            match word.as_str() {
                ".loc" | ".file" => self.skip_line(),
                ".pragma" => {
                    while !self.accept(';') {
                        self.next().ok_or_else(|| syntax(line, ".pragma without end"))?;
                    }
                }
                ".reg" => self.registers(body)?,
                w if w.starts_with('.') => {
                    let mut variables = Vec::new();
                    self.variables(&mut variables)?;
                    body.extend(variables.into_iter().map(Item::Variable));
                }
                _ if matches!(self.tokens.get(self.at + 1), Some((Token::Sign(':'), _))) => {
                    self.at += 2;
                    body.push(Item::Label(word, line));
                }
                _ => body.push(Item::Statement(self.statement()?)),
            }
        } else {
            return Err(self.unexpected("an instruction"));
        }
        Ok(())
    }

    fn registers(&mut self, body: &mut Vec<Item>) -> Result<(), ParseError> {
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

    fn variables(&mut self, out: &mut Vec<Variable>) -> Result<(), ParseError> {
        out.push(self.variable()?);
        if self.accept(';') {
            return Ok(());
        }
        Err(unsupported(self.line(), "variable list", "declare one variable a statement", "5.4.1"))
    }

    /// `.space [.align N] .type [.ptr …] name [dims] [= init]`.
    fn variable(&mut self) -> Result<Variable, ParseError> {
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

    fn statement(&mut self) -> Result<Statement, ParseError> {
        let line = self.line();
        let mut guard = None;
        if self.accept('@') {
            let negated = self.accept('!');
            guard = Some((self.word()?, negated));
        }
        let opcode = self.word()?;
        let mut operands = Vec::new();
        if self.accept(';') {
            return Ok(Statement { line, guard, opcode, operands });
        }
        loop {
            operands.push(self.operand()?);
            if self.accept(';') {
                return Ok(Statement { line, guard, opcode, operands });
            }
            self.expect(',')?;
        }
    }

    fn operand(&mut self) -> Result<Operand, ParseError> {
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
