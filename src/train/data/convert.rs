//! Elements of one type as another's: floats are rounded to floats, everything else must stay the same value.

use half::{bf16, f16};
use intwain_ir::DType;

/// The first element that the wanted type does not have.
pub(super) struct Inexact {
    pub(super) index: usize,
    pub(super) value: String,
}

/// Converts little-endian elements.
pub(super) fn convert(bytes: Vec<u8>, from: DType, to: DType) -> Result<Vec<u8>, Inexact> {
    if from == to {
        return Ok(bytes);
    }
    fn each<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> {
        bytes.as_chunks::<N>().0.iter().copied()
    }
    match from {
        DType::Bool | DType::U8 => integers(bytes.iter().map(|&b| b.into()), to),
        DType::I8 => integers(bytes.iter().map(|&b| (b as i8).into()), to),
        DType::I16 => integers(each(&bytes).map(|b| i16::from_le_bytes(b).into()), to),
        DType::I32 => integers(each(&bytes).map(|b| i32::from_le_bytes(b).into()), to),
        DType::U32 => integers(each(&bytes).map(|b| u32::from_le_bytes(b).into()), to),
        DType::I64 => integers(each(&bytes).map(i64::from_le_bytes), to),
        DType::F16 => floats(each(&bytes).map(|b| f16::from_le_bytes(b).to_f64()), to),
        DType::BF16 => floats(each(&bytes).map(|b| bf16::from_le_bytes(b).to_f64()), to),
        DType::F32 => floats(each(&bytes).map(|b| f32::from_le_bytes(b).into()), to),
        DType::F64 => floats(each(&bytes).map(f64::from_le_bytes), to),
    }
}

/// Collects elements as long as each has a value of the wanted type.
fn collect<X: Copy + ToString, const N: usize>(
    values: impl Iterator<Item = X>,
    exact: impl Fn(X) -> Option<[u8; N]>,
) -> Result<Vec<u8>, Inexact> {
    let mut out = Vec::with_capacity(values.size_hint().0 * N);
    for (index, value) in values.enumerate() {
        out.extend(exact(value).ok_or_else(|| Inexact { index, value: value.to_string() })?);
    }
    Ok(out)
}

fn integers(values: impl Iterator<Item = i64>, to: DType) -> Result<Vec<u8>, Inexact> {
    // Floats are compared in i128, which holds them all where they are whole and of this size.
    match to {
        DType::Bool => collect(values, |x| (x == 0 || x == 1).then_some([x as u8])),
        DType::I8 => collect(values, |x| i8::try_from(x).ok().map(i8::to_le_bytes)),
        DType::I16 => collect(values, |x| i16::try_from(x).ok().map(i16::to_le_bytes)),
        DType::I32 => collect(values, |x| i32::try_from(x).ok().map(i32::to_le_bytes)),
        DType::I64 => collect(values, |x| Some(x.to_le_bytes())),
        DType::U8 => collect(values, |x| u8::try_from(x).ok().map(u8::to_le_bytes)),
        DType::U32 => collect(values, |x| u32::try_from(x).ok().map(u32::to_le_bytes)),
        DType::F16 => collect(values, |x| {
            let y = f16::from_f64(x as f64);
            (y.is_finite() && y.to_f64() as i128 == i128::from(x)).then(|| y.to_le_bytes())
        }),
        DType::BF16 => collect(values, |x| {
            let y = bf16::from_f64(x as f64);
            (y.to_f64() as i128 == i128::from(x)).then(|| y.to_le_bytes())
        }),
        DType::F32 => collect(values, |x| (x as f32 as i128 == i128::from(x)).then(|| (x as f32).to_le_bytes())),
        DType::F64 => collect(values, |x| (x as f64 as i128 == i128::from(x)).then(|| (x as f64).to_le_bytes())),
    }
}

fn floats(values: impl Iterator<Item = f64>, to: DType) -> Result<Vec<u8>, Inexact> {
    let whole = |x: f64| (x.trunc() == x && x.abs() < 9.3e18).then_some(x as i128);
    match to {
        DType::Bool => collect(values, |x| (x == 0.0 || x == 1.0).then_some([x as u8])),
        DType::I8 => collect(values, |x| whole(x).and_then(|x| i8::try_from(x).ok()).map(i8::to_le_bytes)),
        DType::I16 => collect(values, |x| whole(x).and_then(|x| i16::try_from(x).ok()).map(i16::to_le_bytes)),
        DType::I32 => collect(values, |x| whole(x).and_then(|x| i32::try_from(x).ok()).map(i32::to_le_bytes)),
        DType::I64 => collect(values, |x| whole(x).and_then(|x| i64::try_from(x).ok()).map(i64::to_le_bytes)),
        DType::U8 => collect(values, |x| whole(x).and_then(|x| u8::try_from(x).ok()).map(u8::to_le_bytes)),
        DType::U32 => collect(values, |x| whole(x).and_then(|x| u32::try_from(x).ok()).map(u32::to_le_bytes)),
        DType::F16 => collect(values, |x| Some(f16::from_f64(x).to_le_bytes())),
        DType::BF16 => collect(values, |x| Some(bf16::from_f64(x).to_le_bytes())),
        DType::F32 => collect(values, |x| Some((x as f32).to_le_bytes())),
        DType::F64 => collect(values, |x| Some(x.to_le_bytes())),
    }
}
