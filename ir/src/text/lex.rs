//! Text to tokens.

use super::ParseError;

/// A piece of text.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Token {
    /// A word: name, keyword, number.
    Word(String),
    /// A quoted string.
    Text(String),
    /// `%12`.
    Value(u32),
    /// One of `{ } [ ] ( ) , : =`.
    Mark(char),
    /// `# origin`, quoted where it would not read back.
    Origin(String),
}

/// The tokens with their line numbers.
pub(super) fn tokens(text: &str) -> Result<Vec<(usize, Token)>, ParseError> {
    let mut out = Vec::new();
    for (line, content) in (1..).zip(text.lines()) {
        let mut rest = content.trim_start();
        while let Some(first) = rest.chars().next() {
            let (token, after) = match first {
                '#' => match rest[1..].trim_start() {
                    quoted if quoted.starts_with('"') => match string(quoted, line)? {
                        (Token::Text(path), after) => (Token::Origin(path), after),
                        other => other,
                    },
                    plain => (Token::Origin(plain.trim_end().to_string()), ""),
                },
                '"' => string(rest, line)?,
                '%' => {
                    let end = rest[1..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |i| i + 1);
                    // The greatest number is no id.
                    let id = rest[1..end].parse().ok().filter(|id| *id != u32::MAX);
                    let id = id.ok_or_else(|| ParseError::new(line, format!("`{}` names no value", &rest[..end])))?;
                    (Token::Value(id), &rest[end..])
                }
                '{' | '}' | '[' | ']' | '(' | ')' | ',' | ':' | '=' => (Token::Mark(first), &rest[1..]),
                _ => {
                    let word = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-' | '+');
                    let end = rest.find(|c| !word(c)).unwrap_or(rest.len());
                    if end == 0 {
                        return Err(ParseError::new(line, format!("unexpected `{first}`")));
                    }
                    (Token::Word(rest[..end].to_string()), &rest[end..])
                }
            };
            out.push((line, token));
            rest = after.trim_start();
        }
    }
    Ok(out)
}

/// A string as Rust's `{:?}` writes it.
fn string(text: &str, line: usize) -> Result<(Token, &str), ParseError> {
    let mut value = String::new();
    let mut chars = text.char_indices().skip(1);
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => return Ok((Token::Text(value), &text[at + 1..])),
            '\\' => match chars.next().map(|(_, c)| c) {
                Some('n') => value.push('\n'),
                Some('t') => value.push('\t'),
                Some('r') => value.push('\r'),
                Some('0') => value.push('\0'),
                Some('u') => {
                    let hex: String =
                        chars.by_ref().map(|(_, c)| c).skip_while(|c| *c == '{').take_while(|c| *c != '}').collect();
                    let c = u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32);
                    value.push(c.ok_or_else(|| ParseError::new(line, "bad escape in a string".into()))?);
                }
                Some(c) => value.push(c),
                None => break,
            },
            c => value.push(c),
        }
    }
    Err(ParseError::new(line, "a string does not end on its line".into()))
}
