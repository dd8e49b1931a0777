//! Scalar values and the table of scalar operations: their names, types and exact meaning.
//!
//! The table is the only place that says what an operation on elements means. The interpreter evaluates it, the back
//! ends emit it, and operations that a back end lacks are expanded into simpler ones by `expand`, once for all. GPUs have
//! exp, sqrt, rsqrt and 1/x of f32 of their own, within bounds that the PTX emitter states.

mod eval;
pub mod expand;
mod lanes;
mod libcall;
mod value;

#[cfg(test)]
mod tests;

pub use eval::{binary, cast, compare, fma, unary};
pub use lanes::unary_slice_f32;
pub use libcall::Libcall;
pub use value::Scalar;

/// Declares an enum of scalar operations with their text names.
macro_rules! scalar_ops {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// Every operation, in declaration order.
            pub const ALL: &'static [$name] = &[$($name::$variant),+];

            /// The name in the text form.
            pub fn name(self) -> &'static str {
                match self { $($name::$variant => $text),+ }
            }

            /// The operation with this text name.
            pub fn from_name(name: &str) -> Option<$name> {
                $name::ALL.iter().copied().find(|op| op.name() == name)
            }
        }
    };
}

scalar_ops! {
    /// Functions of one element. The result has the operand's type; `is_nan`, `is_finite` and `not` give bool.
    Unary {
        /// −x; wraps for integers, flips the sign bit (of NaN too) for floats.
        Neg = "neg",
        /// |x|.
        Abs = "abs",
        /// −1, 0 or 1; NaN and ±0 are kept.
        Sign = "sign",
        /// Square root, correctly rounded.
        Sqrt = "sqrt",
        /// 1/√x, as 1 divided by the correctly rounded root.
        Rsqrt = "rsqrt",
        /// Largest integer not above x.
        Floor = "floor",
        /// Smallest integer not below x.
        Ceil = "ceil",
        /// Nearest integer, ties to even.
        Round = "round",
        /// Integer part, towards zero.
        Trunc = "trunc",
        /// e^x.
        Exp = "exp",
        /// e^x − 1 without cancellation.
        Expm1 = "expm1",
        /// Natural logarithm.
        Log = "log",
        /// log(1 + x) without cancellation.
        Log1p = "log1p",
        /// Hyperbolic tangent.
        Tanh = "tanh",
        /// 1/(1 + e^−x), without overflow.
        Logistic = "logistic",
        /// Error function.
        Erf = "erf",
        /// Sine.
        Sin = "sin",
        /// Cosine.
        Cos = "cos",
        /// Tangent.
        Tan = "tan",
        /// Inverse sine.
        Asin = "asin",
        /// Inverse cosine.
        Acos = "acos",
        /// Inverse tangent.
        Atan = "atan",
        /// Hyperbolic sine.
        Sinh = "sinh",
        /// Hyperbolic cosine.
        Cosh = "cosh",
        /// Inverse hyperbolic sine.
        Asinh = "asinh",
        /// Inverse hyperbolic cosine.
        Acosh = "acosh",
        /// Inverse hyperbolic tangent.
        Atanh = "atanh",
        /// Logical negation of a bool, bitwise negation of an integer.
        Not = "not",
        /// Whether x is NaN; gives bool.
        IsNan = "is_nan",
        /// Whether x is neither NaN nor infinite; gives bool.
        IsFinite = "is_finite",
    }
}

scalar_ops! {
    /// Functions of two elements of one type; the result has that type.
    Binary {
        /// Sum; for bool, or.
        Add = "add",
        /// Difference.
        Sub = "sub",
        /// Product; for bool, and.
        Mul = "mul",
        /// Quotient; integers truncate towards zero, x/0 is 0 for integers.
        Div = "div",
        /// ⌊x/y⌋; x/0 is 0 for integers.
        FloorDiv = "floor_div",
        /// x − y·⌊x/y⌋, with the sign of y; x mod 0 is 0 for integers, NaN for floats.
        Mod = "mod",
        /// IEEE 754 maximum: NaN if either is NaN, +0 above −0.
        Max = "max",
        /// IEEE 754 minimum: NaN if either is NaN, −0 below +0.
        Min = "min",
        /// x^y with the special cases of IEEE 754 pow; integer powers wrap, negative exponents truncate.
        Pow = "pow",
        /// Angle of the point (y, x): first operand is y.
        Atan2 = "atan2",
        /// Logical or bitwise and.
        And = "and",
        /// Logical or bitwise or.
        Or = "or",
        /// Logical or bitwise exclusive or.
        Xor = "xor",
        /// Left shift; shifts of the width or more give 0.
        Shl = "shl",
        /// Right shift, arithmetic for signed types; shifts of the width or more give the sign.
        Shr = "shr",
    }
}

scalar_ops! {
    /// Comparisons of two elements of one type; the result is bool. Comparisons with NaN are false, except `ne`.
    Compare {
        /// Equal; −0 equals +0.
        Eq = "eq",
        /// Not equal.
        Ne = "ne",
        /// Less.
        Lt = "lt",
        /// Less or equal.
        Le = "le",
        /// Greater.
        Gt = "gt",
        /// Greater or equal.
        Ge = "ge",
    }
}

scalar_ops! {
    /// How a reduction combines elements. Each is associative over the reals with an identity.
    Reduce {
        /// Sum; identity 0. For bool, any.
        Sum = "sum",
        /// Product; identity 1.
        Prod = "prod",
        /// IEEE 754 maximum; identity −∞ or the least integer.
        Max = "max",
        /// IEEE 754 minimum; identity +∞ or the greatest integer.
        Min = "min",
    }
}

impl Unary {
    /// Type of the result for an operand of type `dtype`.
    pub fn result(self, dtype: crate::DType) -> crate::DType {
        match self {
            Unary::IsNan | Unary::IsFinite => crate::DType::Bool,
            _ => dtype,
        }
    }
}

impl Reduce {
    /// The element that changes nothing when combined.
    pub fn identity(self, dtype: crate::DType) -> Scalar {
        match self {
            Reduce::Sum => Scalar::zero(dtype),
            Reduce::Prod => Scalar::one(dtype),
            Reduce::Max => Scalar::lowest(dtype),
            Reduce::Min => Scalar::highest(dtype),
        }
    }

    /// The two-operand form.
    pub fn combine(self) -> Binary {
        match self {
            Reduce::Sum => Binary::Add,
            Reduce::Prod => Binary::Mul,
            Reduce::Max => Binary::Max,
            Reduce::Min => Binary::Min,
        }
    }
}
