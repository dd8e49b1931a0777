//! Graphs to text.

use crate::ops::Op;
use crate::{Graph, ParamKind, Rows, Stage, Trainable, Value};
use std::fmt;

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "graph {:?} {}", &*self.name, self.stage)?;
        if self.devices != 1 {
            write!(f, " devices {}", self.devices)?;
        }
        if self.stage == Stage::Local {
            write!(f, " device {}", self.device)?;
        }
        writeln!(f, " {{")?;
        for p in &self.params {
            let word = match p.kind {
                ParamKind::Input { .. } => "input",
                ParamKind::Weight { .. } => "weight",
                ParamKind::State { .. } => "state",
            };
            write!(f, "  {word} {} {:?}: {}", p.value, &*p.name, self.ty(p.value))?;
            match p.kind {
                ParamKind::Input { rows: Rows::Batched } => f.write_str(" batched")?,
                ParamKind::Weight { trainable: Trainable::Yes } => f.write_str(" trainable")?,
                ParamKind::State { next: Some(v) } => write!(f, " next {v}")?,
                ParamKind::Input { rows: Rows::Whole }
                | ParamKind::Weight { trainable: Trainable::Frozen }
                | ParamKind::State { next: None } => {}
            }
            self.write_layout(f, p.value)?;
            writeln!(f)?;
        }
        for node in self.nodes.values() {
            f.write_str("  ")?;
            for (i, r) in node.results.iter().enumerate() {
                write!(f, "{}{r}", if i > 0 { ", " } else { "" })?;
            }
            if !node.results.is_empty() {
                f.write_str(" = ")?;
            }
            write!(f, "{}", node.op)?;
            for a in &node.args {
                write!(f, " {a}")?;
            }
            for (i, r) in node.results.iter().enumerate() {
                write!(f, "{} {}", if i > 0 { "," } else { " :" }, self.ty(*r))?;
                self.write_layout(f, *r)?;
            }
            if node.origin.is_again() {
                f.write_str(" again")?;
            }
            if let Some(turn) = node.origin.turn() {
                write!(f, " in {turn}")?;
            }
            if !node.origin.path().is_empty() {
                write_origin(f, node.origin.path())?;
            }
            writeln!(f)?;
        }
        for o in &self.outputs {
            writeln!(f, "  output {:?} {}", &*o.name, o.value)?;
        }
        f.write_str("}")
    }
}

impl Graph {
    fn write_layout(&self, f: &mut fmt::Formatter<'_>, v: Value) -> fmt::Result {
        match &self.values[v].layout {
            Some(l) => write!(f, " {l}"),
            None => Ok(()),
        }
    }
}

/// The origin as it is, or quoted where it would not read back.
fn write_origin(f: &mut fmt::Formatter<'_>, path: &str) -> fmt::Result {
    let plain = path.trim() == path && !path.starts_with('"') && !path.contains(char::is_control);
    if plain { write!(f, " # {path}") } else { write!(f, " # {path:?}") }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        let attrs = self.attrs();
        if attrs.0.is_empty() {
            return Ok(());
        }
        f.write_str("{")?;
        for (i, (name, value)) in attrs.0.iter().enumerate() {
            write!(f, "{}{name}={value}", if i > 0 { ", " } else { "" })?;
        }
        f.write_str("}")
    }
}
