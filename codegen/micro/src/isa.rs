//! Instruction sets and their run-time detection.

use std::sync::OnceLock;

/// The instruction set a plan's micro-kernels use. Every choice gives the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Plain Rust with `mul_add`; runs everywhere.
    Portable,
    /// 256-bit vectors with FMA and conversions of f16.
    Avx2,
    /// 512-bit vectors.
    Avx512,
}

impl Isa {
    /// The widest set this processor supports, detected once.
    #[must_use]
    pub fn detect() -> Isa {
        static FOUND: OnceLock<Isa> = OnceLock::new();
        *FOUND.get_or_init(probe)
    }

    /// Whether this processor supports the set.
    #[must_use]
    pub fn is_supported(self) -> bool {
        self <= Isa::detect()
    }

    /// Every set this processor supports, narrowest first.
    #[must_use]
    pub fn supported() -> Vec<Isa> {
        [Isa::Portable, Isa::Avx2, Isa::Avx512].into_iter().filter(|isa| isa.is_supported()).collect()
    }
}

#[cfg(target_arch = "x86_64")]
fn probe() -> Isa {
    let avx2 = std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("fma")
        && std::is_x86_feature_detected!("f16c");
    if avx2 && std::is_x86_feature_detected!("avx512f") {
        Isa::Avx512
    } else if avx2 {
        Isa::Avx2
    } else {
        Isa::Portable
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn probe() -> Isa {
    Isa::Portable
}
