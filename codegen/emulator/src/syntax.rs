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

pub(crate) struct Parser {
    tokens: Vec<(Token, u32)>,
    pub(crate) at: usize,
}

impl Parser {
    pub(crate) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|t| &t.0)
    }

    pub(crate) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.1)
    }

    pub(crate) fn next(&mut self) -> Option<Token> {
        let token = self.peek().cloned();
        self.at += 1;
        token
    }

    pub(crate) fn unexpected(&self, wanted: &str) -> ParseError {
        let found = match self.peek() {
            Some(Token::Word(w)) => format!("`{w}`"),
            Some(Token::Sign(c)) => format!("`{c}`"),
            Some(Token::Text) => "a string".to_owned(),
            Some(Token::Int(_) | Token::F32(_) | Token::F64(_)) => "a number".to_owned(),
            None => "the end of the text".to_owned(),
        };
        syntax(self.line(), format!("expected {wanted}, found {found}"))
    }

    pub(crate) fn accept(&mut self, sign: char) -> bool {
        let found = self.peek() == Some(&Token::Sign(sign));
        self.at += usize::from(found);
        found
    }

    pub(crate) fn expect(&mut self, sign: char) -> Result<(), ParseError> {
        if self.accept(sign) { Ok(()) } else { Err(self.unexpected(&format!("`{sign}`"))) }
    }

    pub(crate) fn word(&mut self) -> Result<String, ParseError> {
        match self.peek() {
            Some(Token::Word(w)) => {
                let w = w.clone();
                self.at += 1;
                Ok(w)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    pub(crate) fn int(&mut self) -> Result<u64, ParseError> {
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
}
