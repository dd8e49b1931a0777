//! Splits PTX text into tokens (PTX ISA 4.2 to 4.5). Every token knows its line.

use crate::error::{ParseError, Problem};

/// One token.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token {
    /// A name, directive or opcode with its dots: `%tid.x`, `.reg`, `ld.global.v4.b32`.
    Word(String),
    /// An integer literal.
    Int(u64),
    /// `0fXXXXXXXX`.
    F32(u32),
    /// `0dXXXXXXXXXXXXXXXX`, or a decimal floating-point literal (which PTX holds as f64).
    F64(u64),
    /// A string, as in `.file`.
    Text,
    /// Punctuation.
    Sign(char),
}

/// Splits `text`; block and line comments vanish.
pub(crate) fn tokens(text: &str) -> Result<Vec<(Token, u32)>, ParseError> {
    let bytes = text.as_bytes();
    let (mut out, mut at, mut line) = (Vec::new(), 0, 1u32);
    while let Some(&c) = bytes.get(at) {
        match c {
            b'\n' => (line, at) = (line + 1, at + 1),
            c if c.is_ascii_whitespace() || c == 0 => at += 1,
            b'/' if bytes.get(at + 1) == Some(&b'/') => {
                at = bytes[at..].iter().position(|&c| c == b'\n').map_or(bytes.len(), |n| at + n);
            }
            b'/' if bytes.get(at + 1) == Some(&b'*') => {
                let end = bytes[at + 2..].windows(2).position(|w| w == b"*/");
                let end = at + 2 + end.ok_or_else(|| syntax(line, "comment without end"))?;
                line += bytes[at..end].iter().filter(|&&c| c == b'\n').count() as u32;
                at = end + 2;
            }
            b'"' => {
                let end = bytes[at + 1..].iter().position(|&c| c == b'"' || c == b'\n');
                let end = at
                    + 1
                    + end.filter(|&n| bytes[at + 1 + n] == b'"').ok_or_else(|| syntax(line, "string without end"))?;
                out.push((Token::Text, line));
                at = end + 1;
            }
            b'0'..=b'9' => {
                let end = at + number_length(&bytes[at..]);
                out.push((number(&text[at..end], line)?, line));
                at = end;
            }
            c if word_start(c) => {
                let end = at + word_length(&bytes[at..]);
                out.push((Token::Word(text[at..end].to_owned()), line));
                at = end;
            }
            c if c.is_ascii_punctuation() => {
                out.push((Token::Sign(c as char), line));
                at += 1;
            }
            _ => return Err(syntax(line, "a byte that PTX does not use")),
        }
    }
    Ok(out)
}

pub(crate) fn syntax(line: u32, message: impl Into<String>) -> ParseError {
    ParseError { line, problem: Problem::Syntax(message.into()) }
}

fn word_start(c: u8) -> bool {
    c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

fn word_length(bytes: &[u8]) -> usize {
    let mut at = 1;
    loop {
        match bytes.get(at) {
            Some(&c) if word_start(c) || c.is_ascii_digit() => at += 1,
            // `::` joins parts of a modifier (`.shared::cta`); a single colon ends a label.
            Some(b':') if bytes.get(at + 1) == Some(&b':') => at += 2,
            _ => return at,
        }
    }
}

fn number_length(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Some(&c) = bytes.get(at) {
        let exponent_sign = matches!(c, b'+' | b'-')
            && matches!(bytes[at - 1], b'e' | b'E')
            && !bytes.starts_with(b"0x")
            && bytes[..at].contains(&b'.');
        if !(c.is_ascii_alphanumeric() || c == b'.' || exponent_sign) {
            break;
        }
        at += 1;
    }
    at
}

fn number(text: &str, line: u32) -> Result<Token, ParseError> {
    let bad = || syntax(line, format!("`{text}` is not a number"));
    let hex = |digits: &str, width: usize| match digits.len() == width {
        true => u64::from_str_radix(digits, 16).map_err(|_| bad()),
        false => Err(bad()),
    };
    let lower = text.to_ascii_lowercase();
    if let Some(digits) = lower.strip_prefix("0f") {
        return Ok(Token::F32(hex(digits, 8)? as u32));
    }
    if let Some(digits) = lower.strip_prefix("0d") {
        return Ok(Token::F64(hex(digits, 16)?));
    }
    if let Some(digits) = lower.strip_prefix("0x") {
        return u64::from_str_radix(digits.trim_end_matches('u'), 16).map(Token::Int).map_err(|_| bad());
    }
    if lower.contains('.') {
        return lower.parse::<f64>().map(|v| Token::F64(v.to_bits())).map_err(|_| bad());
    }
    let digits = lower.strip_suffix('u').unwrap_or(&lower);
    let value = match digits.strip_prefix("0b") {
        Some(digits) => u64::from_str_radix(digits, 2),
        None if digits.len() > 1 && digits.starts_with('0') => u64::from_str_radix(&digits[1..], 8),
        None => digits.parse(),
    };
    value.map(Token::Int).map_err(|_| bad())
}
