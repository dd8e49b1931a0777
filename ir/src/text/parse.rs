//! Text to graphs. Any text gives a graph or an error; nesting is bounded.

use super::lex::{Token, tokens};
use crate::attr::{Attr, Attrs};
use crate::ops::Op;
use crate::scalar::Reduce;
use crate::{
    DType, Def, Graph, Layout, Node, Origin, Param, ParamKind, Rows, Shape, Stage, Trainable, Type, Value, ValueData,
};
use cranelift_entity::EntityRef;
use std::sync::Arc;

const MAX_DEPTH: usize = 16;

/// Text that is not a graph.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ParseError {
    /// Line number, from 1.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
}

impl ParseError {
    pub(super) fn new(line: usize, problem: String) -> ParseError {
        ParseError { line, problem }
    }
}

type Parsed<T> = Result<T, ParseError>;

/// Reads a graph. The result has the types and layouts written; [`verify`](crate::verify) tells whether they are right.
pub fn parse(text: &str) -> Parsed<Graph> {
    let mut p = Parser { tokens: tokens(text)?, at: 0, depth: 0 };
    let graph = p.graph()?;
    match p.peek() {
        None => Ok(graph),
        Some(_) => Err(p.error("text after the graph")),
    }
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    at: usize,
    depth: usize,
}

impl Parser {
    fn error(&self, problem: impl Into<String>) -> ParseError {
        // The line of the last token read.
        let line = self.tokens.get(self.at.saturating_sub(1)).map_or(1, |t| t.0);
        ParseError::new(line, problem.into())
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|t| &t.1)
    }

    fn next(&mut self) -> Parsed<Token> {
        let token = self.peek().cloned().ok_or_else(|| self.error("the text ends too early"))?;
        self.at += 1;
        Ok(token)
    }

    fn accept(&mut self, token: &Token) -> bool {
        let found = self.peek() == Some(token);
        self.at += usize::from(found);
        found
    }

    fn accept_word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(w)) if w == word);
        self.at += usize::from(found);
        found
    }

    fn mark(&mut self, mark: char) -> Parsed<()> {
        if self.accept(&Token::Mark(mark)) { Ok(()) } else { Err(self.error(format!("expected `{mark}`"))) }
    }

    fn word(&mut self) -> Parsed<String> {
        match self.next()? {
            Token::Word(w) => Ok(w),
            t => Err(self.error(format!("expected a word, found {t:?}"))),
        }
    }

    fn text(&mut self) -> Parsed<String> {
        match self.next()? {
            Token::Text(w) => Ok(w),
            t => Err(self.error(format!("expected a string, found {t:?}"))),
        }
    }

    fn number<T: std::str::FromStr>(&mut self) -> Parsed<T> {
        let w = self.word()?;
        w.parse().map_err(|_| self.error(format!("`{w}` is not a number that fits here")))
    }

    fn graph(&mut self) -> Parsed<Graph> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.error("graphs are nested too deeply"));
        }
        if !self.accept_word("graph") {
            return Err(self.error("expected `graph`"));
        }
        let mut g = Graph::new(&self.text()?);
        let stage = self.word()?;
        g.stage = Stage::from_name(&stage).ok_or_else(|| self.error(format!("`{stage}` is no stage")))?;
        if self.accept_word("devices") {
            g.devices = self.number()?;
        }
        if self.accept_word("device") {
            g.device = self.number()?;
        }
        self.mark('{')?;
        while !self.accept(&Token::Mark('}')) {
            self.line(&mut g)?;
        }
        self.depth -= 1;
        Ok(g)
    }

    fn line(&mut self, g: &mut Graph) -> Parsed<()> {
        match self.peek() {
            Some(Token::Word(w)) if matches!(w.as_str(), "input" | "weight" | "state") => self.param(g),
            Some(Token::Word(w)) if w == "output" => {
                self.at += 1;
                let name = self.text()?;
                let value = self.value(g)?;
                g.output(&name, value);
                Ok(())
            }
            _ => self.node(g),
        }
    }

    fn param(&mut self, g: &mut Graph) -> Parsed<()> {
        let word = self.word()?;
        let value = self.definition(g)?;
        let name = self.text()?;
        self.mark(':')?;
        let ty = self.ty()?;
        let kind = match word.as_str() {
            "input" => {
                let rows = if self.accept_word("batched") { Rows::Batched } else { Rows::Whole };
                ParamKind::Input { rows }
            }
            "weight" => {
                let trainable = if self.accept_word("trainable") { Trainable::Yes } else { Trainable::Frozen };
                ParamKind::Weight { trainable }
            }
            _ => {
                // The next value is defined later; its number is checked by the verifier.
                let next = self.accept_word("next").then(|| self.value_id()).transpose()?;
                ParamKind::State { next: next.map(|id| Value::new(id as usize)) }
            }
        };
        let layout = self.layout()?;
        g.values.push(ValueData { ty, def: Def::Param(g.params.len()), layout });
        g.params.push(Param { value, name: Arc::from(name), kind });
        Ok(())
    }

    fn node(&mut self, g: &mut Graph) -> Parsed<()> {
        let id = g.nodes.next_key();
        let mut n = 0;
        if matches!(self.peek(), Some(Token::Value(_))) {
            loop {
                let expected = g.values.len() + n;
                let found = self.value_id()? as usize;
                if found != expected {
                    return Err(self.error(format!("value %{found} is defined where %{expected} comes next")));
                }
                n += 1;
                if !self.accept(&Token::Mark(',')) {
                    break;
                }
            }
            self.mark('=')?;
        }
        let name = self.word()?;
        let attrs = if self.accept(&Token::Mark('{')) { self.attrs()? } else { Attrs::default() };
        let op = match Op::parse(&name, attrs) {
            Some(Ok(op)) => op,
            Some(Err(e)) => return Err(self.error(format!("{name}: {e}"))),
            None => return Err(self.error(format!("`{name}` is no operation"))),
        };
        let mut node = Node { op, args: Default::default(), results: Default::default(), origin: Origin::default() };
        while matches!(self.peek(), Some(Token::Value(_))) && !self.defines_next() {
            let arg = self.value(g)?;
            node.args.push(arg);
        }
        for i in 0..n {
            self.mark(if i == 0 { ':' } else { ',' })?;
            let ty = self.ty()?;
            let layout = self.layout()?;
            node.results.push(g.values.push(ValueData { ty, def: Def::Node(id, i), layout }));
        }
        let again = !self.defines_next() && self.accept(&Token::Word("again".into()));
        let mut turn = None;
        if !self.defines_next() && self.accept(&Token::Word("in".into())) {
            let word = self.word()?;
            turn = Some(word.parse().map_err(|()| self.error(format!("`{word}` is no place in a pipelined step")))?);
        }
        if let Some(Token::Origin(path)) = self.peek() {
            node.origin = Origin::new(path);
            self.at += 1;
        }
        node.origin = node.origin.in_turn(turn);
        if again {
            node.origin = node.origin.again();
        }
        g.nodes.push(node);
        Ok(())
    }

    /// Whether the values ahead begin the next line: a node without results ends where another begins.
    fn defines_next(&self) -> bool {
        let line = |i: usize| self.tokens.get(i).map(|t| t.0);
        self.at > 0 && line(self.at) != line(self.at - 1)
    }

    fn attrs(&mut self) -> Parsed<Attrs> {
        let mut attrs = Attrs::default();
        loop {
            let name = self.word()?;
            self.mark('=')?;
            let value = self.attr(0)?;
            attrs.0.push((name, value));
            if self.accept(&Token::Mark('}')) {
                return Ok(attrs);
            }
            self.mark(',')?;
        }
    }

    fn attr(&mut self, depth: usize) -> Parsed<Attr> {
        if depth > MAX_DEPTH {
            return Err(self.error("lists are nested too deeply"));
        }
        match self.peek() {
            Some(Token::Word(w)) if w == "graph" => Ok(Attr::Graph(Arc::new(self.graph()?))),
            Some(Token::Mark('[')) => {
                self.at += 1;
                let mut items = Vec::new();
                while !self.accept(&Token::Mark(']')) {
                    if !items.is_empty() {
                        self.mark(',')?;
                    }
                    items.push(self.attr(depth + 1)?);
                }
                Ok(Attr::List(items))
            }
            _ => match self.next()? {
                Token::Word(w) => Ok(Attr::Word(w)),
                Token::Text(t) => Ok(Attr::Text(t)),
                t => Err(self.error(format!("expected an attribute, found {t:?}"))),
            },
        }
    }

    fn value_id(&mut self) -> Parsed<u32> {
        match self.next()? {
            Token::Value(id) => Ok(id),
            t => Err(self.error(format!("expected a value, found {t:?}"))),
        }
    }

    fn value(&mut self, g: &Graph) -> Parsed<Value> {
        let id = self.value_id()?;
        let value = Value::new(id as usize);
        if g.values.get(value).is_some() { Ok(value) } else { Err(self.error(format!("%{id} is not defined"))) }
    }

    fn definition(&mut self, g: &Graph) -> Parsed<Value> {
        let id = self.value_id()? as usize;
        let next = g.values.len();
        if id == next {
            Ok(Value::new(id))
        } else {
            Err(self.error(format!("value %{id} is defined where %{next} comes next")))
        }
    }

    fn ty(&mut self) -> Parsed<Type> {
        let word = self.word()?;
        let dtype = DType::from_name(&word).ok_or_else(|| self.error(format!("`{word}` is no element type")))?;
        Ok(Type::new(dtype, Shape::from(self.list()?)))
    }

    fn list(&mut self) -> Parsed<Vec<usize>> {
        self.mark('[')?;
        let mut items = Vec::new();
        while !self.accept(&Token::Mark(']')) {
            if !items.is_empty() {
                self.mark(',')?;
            }
            items.push(self.number()?);
        }
        Ok(items)
    }

    fn layout(&mut self) -> Parsed<Option<Layout>> {
        let Some(Token::Word(w)) = self.peek() else { return Ok(None) };
        let layout = match w.as_str() {
            "R" => {
                self.at += 1;
                Layout::Replicated
            }
            "S" | "P" | "X" if self.tokens.get(self.at + 1).map(|t| &t.1) == Some(&Token::Mark('(')) => {
                let w = self.word()?;
                self.mark('(')?;
                let layout = match w.as_str() {
                    "S" => {
                        let dim = self.number()?;
                        self.mark(',')?;
                        Layout::split(dim, self.list()?)
                    }
                    "P" => {
                        let name = self.word()?;
                        let op = Reduce::from_name(&name);
                        Layout::Partial(op.ok_or_else(|| self.error(format!("`{name}` is no reduction")))?)
                    }
                    _ => Layout::On(self.number()?),
                };
                self.mark(')')?;
                layout
            }
            _ => return Ok(None),
        };
        Ok(Some(layout))
    }
}
