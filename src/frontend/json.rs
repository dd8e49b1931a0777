//! JSON as Keras writes it: with NaN and Infinity tokens, a byte order mark, documents encoded twice.
//!
//! serde_json does the parsing. Before it, one scan over the text measures the nesting (so that no input can exhaust the
//! stack) and turns the tokens that JSON does not have into marked strings; after it, duplicate keys have become errors.

use std::fmt;

use indexmap::IndexMap;
use serde::de::{self, DeserializeSeed, MapAccess, SeqAccess, Visitor};

use super::error::ImportErrorKind;

/// Nesting no real model comes near: a model in a model takes four levels.
pub(super) const MAX_DEPTH: usize = 200;
/// How often a document may be the string of another document.
const MAX_ENCODINGS: usize = 4;

/// A JSON value whose numbers may be NaN or infinite.
#[derive(Clone, Debug, PartialEq)]
pub enum Json {
    /// `null`
    Null,
    /// `true` or `false`
    Bool(bool),
    /// A number without fraction or exponent that fits.
    Int(i64),
    /// Any other number.
    Float(f64),
    /// A string.
    String(String),
    /// An array.
    Array(Vec<Json>),
    /// An object, keys in file order.
    Object(IndexMap<String, Json>),
}

impl Json {
    /// Parses a document.
    pub fn parse(text: &str) -> Result<Json, ImportErrorKind> {
        let mut value = parse_once(text)?;
        for _ in 1..MAX_ENCODINGS {
            match value {
                Json::String(inner) => value = parse_once(&inner)?,
                other => return Ok(other),
            }
        }
        Ok(value)
    }

    /// The value under `key`, where this is an object that has it.
    pub fn get(&self, key: &str) -> Option<&Json> {
        match self {
            Json::Object(map) => map.get(key),
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) | Json::Array(_) => None,
        }
    }

    /// The string, where this is one.
    pub fn as_str(&self) -> Option<&str> {
        match self {
            Json::String(s) => Some(s),
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::Array(_) | Json::Object(_) => None,
        }
    }

    /// The elements, where this is an array.
    pub fn as_array(&self) -> Option<&[Json]> {
        match self {
            Json::Array(items) => Some(items),
            Json::Null | Json::Bool(_) | Json::Int(_) | Json::Float(_) | Json::String(_) | Json::Object(_) => None,
        }
    }

    /// The integer, where this is one (`3.0` is).
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Json::Int(i) => Some(*i),
            Json::Float(f) if f.fract() == 0.0 && f.abs() < 9e15 => Some(*f as i64),
            Json::Float(_) | Json::Null | Json::Bool(_) | Json::String(_) | Json::Array(_) | Json::Object(_) => None,
        }
    }
}

impl Json {
    /// The document, so that [`Json::parse`] gives it back.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        self.write(&mut out);
        out
    }

    fn write(&self, out: &mut String) {
        let quoted = |s: &str| serde_json::Value::from(s).to_string();
        match self {
            Json::Null | Json::Bool(_) | Json::Int(_) => out.push_str(&self.to_string()),
            // Rust's own form reads back as the same number, and has a point or an exponent.
            Json::Float(x) if x.is_finite() => out.push_str(&format!("{x:?}")),
            Json::Float(_) => out.push_str(&self.to_string()),
            Json::String(s) => out.push_str(&quoted(s)),
            Json::Array(items) => {
                out.push('[');
                for (i, item) in items.iter().enumerate() {
                    out.push_str(if i > 0 { ", " } else { "" });
                    item.write(out);
                }
                out.push(']');
            }
            Json::Object(map) => {
                out.push('{');
                for (i, (key, value)) in map.iter().enumerate() {
                    out.push_str(if i > 0 { ", " } else { "" });
                    out.push_str(&quoted(key));
                    out.push_str(": ");
                    value.write(out);
                }
                out.push('}');
            }
        }
    }
}

/// One line, shortened: for messages.
impl fmt::Display for Json {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Json::Null => f.write_str("null"),
            Json::Bool(b) => write!(f, "{b}"),
            Json::Int(i) => write!(f, "{i}"),
            Json::Float(x) if x.is_nan() => f.write_str("NaN"),
            Json::Float(x) if x.is_infinite() => f.write_str(if *x > 0.0 { "Infinity" } else { "-Infinity" }),
            Json::Float(x) => write!(f, "{x}"),
            Json::String(s) if s.chars().count() > 60 => write!(f, "{:?}…", s.chars().take(60).collect::<String>()),
            Json::String(s) => write!(f, "{s:?}"),
            Json::Array(items) if items.len() > 8 => write!(f, "a list of {}", items.len()),
            Json::Array(items) => {
                f.write_str("[")?;
                for (i, item) in items.iter().enumerate() {
                    write!(f, "{}{item}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
            Json::Object(map) => match map.get("class_name") {
                Some(class) => write!(f, "an object of class {class}"),
                None => write!(f, "an object with {} keys", map.len()),
            },
        }
    }
}

/// Marks a string that stands for a token JSON does not have. No text of ours or of Keras's starts with NUL.
const MARK: char = '\0';
const TOKENS: [(&str, &str, f64); 3] = [
    ("NaN", "\"\\u0000NaN\"", f64::NAN),
    ("-Infinity", "\"\\u0000-Infinity\"", f64::NEG_INFINITY),
    ("Infinity", "\"\\u0000Infinity\"", f64::INFINITY),
];

fn parse_once(text: &str) -> Result<Json, ImportErrorKind> {
    let text = scan(text.trim_start_matches('\u{feff}'))?;
    let mut parser = serde_json::Deserializer::from_str(&text);
    parser.disable_recursion_limit();
    let value = Seed.deserialize(&mut parser).and_then(|v| parser.end().map(|()| v));
    value.map_err(|e| ImportErrorKind::Json { why: e.to_string() })
}

/// Checks the nesting and replaces the tokens.
fn scan(text: &str) -> Result<String, ImportErrorKind> {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let (mut copied, mut at, mut depth) = (0, 0, 0usize);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => at = string_end(bytes, at),
            b'[' | b'{' => {
                depth += 1;
                if depth > MAX_DEPTH {
                    return Err(ImportErrorKind::TooDeep { limit: MAX_DEPTH });
                }
                at += 1;
            }
            b']' | b'}' => {
                depth = depth.saturating_sub(1);
                at += 1;
            }
            b'N' | b'I' | b'-' => match TOKENS.iter().find(|(token, _, _)| bytes[at..].starts_with(token.as_bytes())) {
                Some((token, quoted, _)) => {
                    out.push_str(&text[copied..at]);
                    out.push_str(quoted);
                    at += token.len();
                    copied = at;
                }
                None => at += 1,
            },
            _ => at += 1,
        }
    }
    out.push_str(&text[copied..]);
    Ok(out)
}

/// The offset behind the string that starts at `at`.
fn string_end(bytes: &[u8], at: usize) -> usize {
    let mut i = at + 1;
    while i < bytes.len() {
        match bytes[i] {
            b'\\' => i += 2,
            b'"' => return i + 1,
            _ => i += 1,
        }
    }
    bytes.len()
}

struct Seed;

impl<'de> DeserializeSeed<'de> for Seed {
    type Value = Json;

    fn deserialize<D: de::Deserializer<'de>>(self, deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, v: bool) -> Result<Json, E> {
        Ok(Json::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Json, E> {
        Ok(Json::Int(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Json, E> {
        Ok(i64::try_from(v).map_or(Json::Float(v as f64), Json::Int))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Json, E> {
        Ok(Json::Float(v))
    }

    fn visit_str<E>(self, v: &str) -> Result<Json, E> {
        let token = v.strip_prefix(MARK).and_then(|name| TOKENS.iter().find(|(token, _, _)| *token == name));
        Ok(token.map_or_else(|| Json::String(v.to_string()), |(_, _, value)| Json::Float(*value)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element_seed(Seed)? {
            items.push(item);
        }
        Ok(Json::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Json, A::Error> {
        let mut map = IndexMap::new();
        while let Some(key) = access.next_key::<String>()? {
            let value = access.next_value_seed(Seed)?;
            if map.contains_key(&key) {
                return Err(de::Error::custom(format_args!("the key `{key}` stands twice in one object")));
            }
            map.insert(key, value);
        }
        Ok(Json::Object(map))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_outside_strings_are_numbers() {
        let json = Json::parse(r#"{"a": NaN, "b": [-Infinity, Infinity, -1], "c": "NaN \" Infinity"}"#).unwrap();
        assert!(matches!(json.get("a"), Some(Json::Float(x)) if x.is_nan()));
        let expected = [Json::Float(f64::NEG_INFINITY), Json::Float(f64::INFINITY), Json::Int(-1)];
        assert_eq!(json.get("b").unwrap().as_array().unwrap(), expected);
        assert_eq!(json.get("c").unwrap().as_str(), Some("NaN \" Infinity"));
    }

    #[test]
    fn marks_and_double_encoding_are_seen_through() {
        let inner = r#"{"class_name": "Sequential"}"#;
        let outer = format!("\u{feff}{}", serde_json::to_string(inner).unwrap());
        assert_eq!(Json::parse(&outer).unwrap(), Json::parse(inner).unwrap());
    }

    #[test]
    fn hostile_text_is_an_error() {
        let deep = "[".repeat(10_000) + &"]".repeat(10_000);
        assert!(matches!(Json::parse(&deep), Err(ImportErrorKind::TooDeep { .. })));
        assert!(matches!(Json::parse(&"{\"a\":".repeat(10_000)), Err(ImportErrorKind::TooDeep { .. })));
        for bad in ["", "{", "{\"a\": 1,}", "{\"a\": 1, \"a\": 2}", "[1] 2", "\"\\u0000NaN", "{\"a\": \u{1}}", "tru"] {
            assert!(matches!(Json::parse(bad), Err(ImportErrorKind::Json { .. })), "{bad}");
        }
        let fine = "[".repeat(MAX_DEPTH) + &"]".repeat(MAX_DEPTH);
        assert!(Json::parse(&fine).is_ok());
    }
}
