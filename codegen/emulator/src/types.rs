//! The fundamental types of PTX (PTX ISA 5.2).

/// What a type's bits mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// `.pred`
    Pred,
    /// `.bN`, untyped
    Bits,
    /// `.uN`
    Unsigned,
    /// `.sN`
    Signed,
    /// `.f16`, `.f32`, `.f64`
    Float,
    /// `.bf16`
    Brain,
    /// `.tf32`, held in 32 bits
    Tf32,
}

/// A fundamental type; `packed` types hold two elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ty {
    pub(crate) kind: Kind,
    /// Bits of one element.
    pub(crate) bits: u32,
    pub(crate) packed: bool,
}

impl Ty {
    pub(crate) const U32: Ty = Ty::new(Kind::Unsigned, 32);
    pub(crate) const U64: Ty = Ty::new(Kind::Unsigned, 64);
    pub(crate) const B32: Ty = Ty::new(Kind::Bits, 32);
    pub(crate) const F32: Ty = Ty::new(Kind::Float, 32);
    pub(crate) const F64: Ty = Ty::new(Kind::Float, 64);
    pub(crate) const F16: Ty = Ty::new(Kind::Float, 16);
    pub(crate) const BF16: Ty = Ty::new(Kind::Brain, 16);
    pub(crate) const PRED: Ty = Ty::new(Kind::Pred, 1);

    pub(crate) const fn new(kind: Kind, bits: u32) -> Ty {
        Ty { kind, bits, packed: false }
    }

    /// Reads a type name without its dot.
    pub(crate) fn parse(name: &str) -> Option<Ty> {
        let ty = match name {
            "pred" => Ty::PRED,
            "bf16" => Ty::BF16,
            "bf16x2" => Ty { packed: true, ..Ty::BF16 },
            "f16x2" => Ty { packed: true, ..Ty::F16 },
            "tf32" => Ty::new(Kind::Tf32, 32),
            _ => {
                let kind = match name.get(..1)? {
                    "b" => Kind::Bits,
                    "u" => Kind::Unsigned,
                    "s" => Kind::Signed,
                    "f" => Kind::Float,
                    _ => return None,
                };
                let bits = match (&name[1..], kind) {
                    ("8", Kind::Bits | Kind::Unsigned | Kind::Signed) => 8,
                    ("16", _) => 16,
                    ("32", _) => 32,
                    ("64", _) => 64,
                    _ => return None,
                };
                Ty::new(kind, bits)
            }
        };
        Some(ty)
    }

    /// Bits of the whole value.
    pub(crate) fn width(self) -> u32 {
        if self.packed { 2 * self.bits } else { self.bits }
    }

    /// Bytes of the whole value.
    pub(crate) fn bytes(self) -> u32 {
        self.width() / 8
    }

    pub(crate) fn is_float(self) -> bool {
        matches!(self.kind, Kind::Float | Kind::Brain | Kind::Tf32)
    }

    pub(crate) fn is_signed(self) -> bool {
        self.kind == Kind::Signed
    }

    pub(crate) fn name(self) -> String {
        let kind = match self.kind {
            Kind::Pred => return ".pred".to_owned(),
            Kind::Bits => "b",
            Kind::Unsigned => "u",
            Kind::Signed => "s",
            Kind::Float => "f",
            Kind::Brain => "bf",
            Kind::Tf32 => "tf",
        };
        format!(".{kind}{}{}", self.bits, if self.packed { "x2" } else { "" })
    }

    /// Whether a register of type `self` may stand where `wanted` is asked for (PTX ISA table "operand type checking").
    pub(crate) fn fits(self, wanted: Ty) -> bool {
        let integer = |t: Ty| matches!(t.kind, Kind::Unsigned | Kind::Signed);
        if self.kind == Kind::Pred || wanted.kind == Kind::Pred {
            return self.kind == wanted.kind;
        }
        self.width() == wanted.width()
            && (self.kind == Kind::Bits
                || wanted.kind == Kind::Bits
                || wanted.packed
                || wanted.kind == Kind::Tf32
                || wanted.kind == Kind::Brain
                || integer(self) && integer(wanted)
                || self.is_float() && wanted.is_float())
    }
}
