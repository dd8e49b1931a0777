//! An instruction's opcode while it is lowered.

use crate::error::ParseError;
use crate::lex::syntax;
use crate::syntax::{Operand, unsupported};
use crate::types::Ty;

/// An opcode with its modifiers; each must be used exactly once by the lowering, or it is refused.
pub(crate) struct Code<'a> {
    pub(crate) full: &'a str,
    pub(crate) name: &'a str,
    mods: Vec<(&'a str, bool)>,
    line: u32,
}

impl<'a> Code<'a> {
    pub(crate) fn new(full: &'a str, line: u32) -> Self {
        let mut parts = full.split('.');
        let name = parts.next().unwrap_or_default();
        Code { full, name, mods: parts.map(|m| (m, false)).collect(), line }
    }

    /// Whether the modifier is there; uses it.
    pub(crate) fn take(&mut self, modifier: &str) -> bool {
        let found = self.mods.iter_mut().find(|m| m.0 == modifier && !m.1);
        found.map(|m| m.1 = true).is_some()
    }

    /// The first modifier that `f` knows; uses it.
    pub(crate) fn take_map<T>(&mut self, f: impl Fn(&str) -> Option<T>) -> Option<T> {
        let found = self.mods.iter_mut().filter(|m| !m.1).find_map(|m| f(m.0).map(|v| (m, v)));
        found.map(|(m, v)| {
            m.1 = true;
            v
        })
    }

    /// The next type among the modifiers.
    pub(crate) fn ty(&mut self) -> Result<Ty, ParseError> {
        let ty = self.take_map(Ty::parse);
        ty.ok_or_else(|| syntax(self.line, format!("`{}` has no type", self.full)))
    }

    pub(crate) fn refuse(&self, reason: &str, section: &'static str) -> ParseError {
        unsupported(self.line, self.full, reason, section)
    }

    /// The operands, if there are exactly `N`.
    pub(crate) fn operands<'o, const N: usize>(&self, operands: &'o [Operand]) -> Result<&'o [Operand; N], ParseError> {
        let n = operands.len();
        operands.try_into().map_err(|_| syntax(self.line, format!("`{}` takes {N} operands, found {n}", self.full)))
    }

    pub(crate) fn finish(&self) -> Result<(), ParseError> {
        match self.mods.iter().find(|m| !m.1) {
            Some((modifier, _)) => Err(self.refuse(&format!("modifier .{modifier}"), "9.7")),
            None => Ok(()),
        }
    }
}
