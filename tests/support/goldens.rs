//! Reads `tests/goldens/ops.jsonl` and compares values with it.
#![allow(dead_code, clippy::unwrap_used, reason = "each test program uses a part, and a test fails by panicking")]

use intwain_ir::{DType, Scalar, Shape, Type};
use serde_json::Value;

/// How near a value has to be.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Within {
    /// The same bits; NaN is NaN.
    Bits,
    /// At most so many representable numbers apart.
    Ulp(u64),
    /// At most this part of the largest finite value wanted.
    Scale(f64),
}

/// A tensor of a case.
pub(crate) struct Golden {
    pub(crate) ty: Type,
    pub(crate) data: Vec<Scalar>,
}

/// One operation with operands and results.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) op: String,
    pub(crate) args: Vec<Golden>,
    pub(crate) want: Vec<Golden>,
    pub(crate) within: Within,
}

impl Case {
    /// The operation's name.
    pub(crate) fn op_name(&self) -> &str {
        self.op.split('{').next().unwrap()
    }
}

/// All cases.
pub(crate) fn cases() -> Vec<Case> {
    let text = std::fs::read_to_string(super::repository("tests/goldens/ops.jsonl")).unwrap();
    text.lines().map(|line| case(&serde_json::from_str(line).unwrap())).collect()
}

fn case(line: &Value) -> Case {
    let word = |key: &str| line[key].as_str().unwrap().to_owned();
    let tensors = |key: &str| line[key].as_array().unwrap().iter().map(golden).collect();
    let within = match &line["within"] {
        Value::String(_) => Within::Bits,
        limit => match limit["ulp"].as_u64() {
            Some(n) => Within::Ulp(n),
            None => Within::Scale(limit["scale"].as_f64().unwrap()),
        },
    };
    Case { name: word("name"), op: word("op"), args: tensors("args"), want: tensors("want"), within }
}

fn golden(tensor: &Value) -> Golden {
    let text = tensor["type"].as_str().unwrap();
    let (dtype, dims) = text.strip_suffix(']').unwrap().split_once('[').unwrap();
    let dims = dims.split(", ").filter(|d| !d.is_empty()).map(|d| d.parse::<usize>().unwrap());
    let ty = Type::new(DType::from_name(dtype).unwrap(), Shape::new(dims));
    let data = tensor["data"].as_array().unwrap().iter().map(|v| element(ty.dtype, v)).collect();
    Golden { ty, data }
}

fn element(dtype: DType, value: &Value) -> Scalar {
    match value {
        Value::Bool(b) => Scalar::from_i64(dtype, i64::from(*b)),
        Value::String(word) => Scalar::from_f64(dtype, word.parse().unwrap()),
        number if dtype.is_float() => Scalar::from_f64(dtype, number.as_f64().unwrap()),
        number => Scalar::from_i64(dtype, number.as_i64().unwrap()),
    }
}

/// Says where `got` is not as near to the case's result as it has to be.
pub(crate) fn compare(got: &[Scalar], want: &Golden, within: Within) -> Result<(), String> {
    if got.len() != want.data.len() {
        return Err(format!("{} elements, not {}", got.len(), want.data.len()));
    }
    let scale = want.data.iter().map(|w| w.to_f64().abs()).filter(|w| w.is_finite()).fold(1e-300, f64::max);
    for (i, (&g, &w)) in got.iter().zip(&want.data).enumerate() {
        if !near(g, w, within, scale) {
            return Err(format!("element {i} is {g} ({:#x}), not {w} ({:#x})", g.bits(), w.bits()));
        }
    }
    Ok(())
}

fn near(got: Scalar, want: Scalar, within: Within, scale: f64) -> bool {
    if got.dtype() != want.dtype() {
        return false;
    }
    let (g, w) = (got.to_f64(), want.to_f64());
    if got == want || got.dtype().is_float() && g.is_nan() && w.is_nan() {
        return true;
    }
    match within {
        Within::Bits => false,
        Within::Ulp(n) => rank(got).abs_diff(rank(want)) <= n,
        Within::Scale(part) => (g - w).abs() <= part * scale,
    }
}

/// Position among the numbers of the type in ascending order; both zeros are 0.
fn rank(x: Scalar) -> i64 {
    let width = x.dtype().size() * 8;
    let sign = 1u64 << (width - 1);
    let magnitude = (x.bits() & (sign - 1)) as i64;
    if x.bits() & sign != 0 { -magnitude } else { magnitude }
}
