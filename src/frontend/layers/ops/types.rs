//! Which type operands of several types have in common.

use intwain_ir::DType;

use crate::frontend::json::Json;
use crate::frontend::layers::cx::{Out, unsupported};

/// The kind of a number in a call. It has no type of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Kind {
    Bool,
    Int,
    Float,
}

impl Kind {
    /// The kind of a number, or the greatest of nested lists.
    pub(super) fn of(json: &Json) -> Out<Kind> {
        match json {
            Json::Bool(_) => Ok(Kind::Bool),
            Json::Int(_) => Ok(Kind::Int),
            Json::Float(_) => Ok(Kind::Float),
            Json::Array(items) => {
                let kinds = items.iter().map(Kind::of).collect::<Out<Vec<_>>>()?;
                Ok(kinds.into_iter().max().unwrap_or(Kind::Float))
            }
            Json::Null | Json::String(_) | Json::Object(_) => Err(unsupported(format!("the operand {json}"))),
        }
    }

    /// The type of an operation on this number and an operand of type `dtype`.
    pub(super) fn beside(self, dtype: Option<DType>, float: DType) -> DType {
        match (self, dtype) {
            (Kind::Float, Some(d)) if d.is_float() => d,
            (Kind::Float, _) => float,
            (Kind::Int, Some(DType::Bool) | None) => DType::I32,
            (Kind::Bool, None) => DType::Bool,
            (Kind::Int | Kind::Bool, Some(d)) => d,
        }
    }
}

/// The type two operands have in common: a float before an integer, the wider of two of a kind; a signed and an unsigned
/// integer meet in the next wider signed one, and the two half precisions in f32.
pub(in crate::frontend::layers) fn promoted(a: DType, b: DType) -> DType {
    use DType::{BF16, Bool, F16, F32, F64, I8, I16, I32, I64, U8, U32};
    match (a, b) {
        _ if a == b => a,
        (Bool, other) | (other, Bool) => other,
        (F64, _) | (_, F64) => F64,
        (F32, _) | (_, F32) | (F16, BF16) | (BF16, F16) => F32,
        (F16, _) | (_, F16) => F16,
        (BF16, _) | (_, BF16) => BF16,
        (I64, _) | (_, I64) => I64,
        (U32, I8 | I16 | I32) | (I8 | I16 | I32, U32) => I64,
        (U32, U8 | U32) | (U8, U32) => U32,
        (I32, _) | (_, I32) => I32,
        (I16, _) | (_, I16) | (I8, U8) | (U8, I8) => I16,
        (I8, I8) => I8,
        (U8, U8) => U8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `keras.backend.result_type` of Keras 3.15.1.
    #[test]
    fn common_types_are_keras() {
        use DType::*;
        let cases = [
            (Bool, I8, I8),
            (I8, U8, I16),
            (I32, U32, I64),
            (U8, U32, U32),
            (I64, F16, F16),
            (F16, BF16, F32),
            (I64, F32, F32),
            (I16, U8, I16),
            (F32, F64, F64),
        ];
        for (a, b, want) in cases {
            assert_eq!((promoted(a, b), promoted(b, a)), (want, want));
        }
        assert_eq!(Kind::Float.beside(Some(I32), F32), F32);
        assert_eq!(Kind::Int.beside(Some(U8), F32), U8);
        assert_eq!(Kind::Int.beside(Some(Bool), F32), I32);
    }
}
