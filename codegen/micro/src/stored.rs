//! Elements of A and B as they are stored: as the kernels read them, or 16 bits wide and converted where they are copied.

/// An element of an operand.
pub(crate) trait Stored<T>: Copy + 'static {
    /// Whether kernels can read operands in place.
    const IN_PLACE: bool;

    /// Copies neighbouring elements.
    ///
    /// # Safety
    /// Both sides hold `count` elements and are apart; the processor has the instructions that the type is made for.
    unsafe fn copy(source: *const Self, target: *mut T, count: usize);

    /// The element as the kernels read it.
    fn value(self) -> T;
}

macro_rules! in_place {
    ($($t:ty)+) => {
        $(impl Stored<$t> for $t {
            const IN_PLACE: bool = true;

            #[inline]
            unsafe fn copy(source: *const $t, target: *mut $t, count: usize) {
                // SAFETY: the caller's promise, passed on.
                unsafe { crate::pack::copy_short(source, target, count) }
            }

            #[inline]
            fn value(self) -> $t {
                self
            }
        })+
    };
}

in_place!(f32 f64);

/// The value of an f16.
#[inline]
fn f16(bits: u16) -> f32 {
    let magnitude = u32::from(bits & 0x7fff) << 13;
    let finite = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let special = f32::from_bits(magnitude | 0x7f80_0000);
    let value = if magnitude < 0x0f80_0000 { finite } else { special };
    f32::from_bits(value.to_bits() | u32::from(bits & 0x8000) << 16)
}

/// The value of a bf16.
#[inline]
fn bf16(bits: u16) -> f32 {
    f32::from_bits(u32::from(bits) << 16)
}

macro_rules! half {
    ($name:ident, $value:path, $copy:path) => {
        #[derive(Debug, Clone, Copy)]
        #[repr(transparent)]
        pub(crate) struct $name(u16);

        impl Stored<f32> for $name {
            const IN_PLACE: bool = false;

            #[inline]
            unsafe fn copy(source: *const $name, target: *mut f32, count: usize) {
                // SAFETY: the caller's promise, passed on; the type is two bytes.
                unsafe { $copy(source.cast(), target, count) }
            }

            #[inline]
            fn value(self) -> f32 {
                $value(self.0)
            }
        }
    };
}

/// # Safety
/// Both sides hold `count` elements.
unsafe fn copy_f16(source: *const u16, target: *mut f32, count: usize) {
    for i in 0..count {
        // SAFETY: the caller's promise.
        unsafe { *target.add(i) = f16(*source.add(i)) };
    }
}

/// # Safety
/// Both sides hold `count` elements.
unsafe fn copy_bf16(source: *const u16, target: *mut f32, count: usize) {
    for i in 0..count {
        // SAFETY: the caller's promise.
        unsafe { *target.add(i) = bf16(*source.add(i)) };
    }
}

half!(F16, f16, copy_f16);
half!(Bf16, bf16, copy_bf16);

#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Bf16Avx2, Bf16Avx512, F16Avx2, F16Avx512};

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Stored, bf16, f16};
    use std::arch::x86_64::*;

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn f16_512(x: __m256i) -> __m512 {
        _mm512_cvtph_ps(x)
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn bf16_512(x: __m256i) -> __m512 {
        _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(x)))
    }

    #[inline]
    #[target_feature(enable = "avx2,f16c")]
    fn f16_256(x: __m128i) -> __m256 {
        _mm256_cvtph_ps(x)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn bf16_256(x: __m128i) -> __m256 {
        _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(x)))
    }

    macro_rules! convert {
        ($copy:ident, $feature:literal, $lanes:literal, $read:ident, $widen:ident, $write:ident) => {
            /// # Safety
            /// Both sides hold `count` elements, and the processor has the instructions.
            #[target_feature(enable = $feature)]
            unsafe fn $copy(source: *const u16, target: *mut f32, count: usize) {
                let whole = count / $lanes * $lanes;
                // SAFETY: every vector lies inside `0..count`, the last one inside a copy.
                unsafe {
                    for i in (0..whole).step_by($lanes) {
                        $write(target.add(i), $widen($read(source.add(i).cast())));
                    }
                    if whole < count {
                        let (mut last, mut wide) = ([0u16; $lanes], [0f32; $lanes]);
                        last.as_mut_ptr().copy_from_nonoverlapping(source.add(whole), count - whole);
                        $write(wide.as_mut_ptr(), $widen($read(last.as_ptr().cast())));
                        target.add(whole).copy_from_nonoverlapping(wide.as_ptr(), count - whole);
                    }
                }
            }
        };
    }

    convert!(copy_f16_512, "avx512f", 16, _mm256_loadu_si256, f16_512, _mm512_storeu_ps);
    convert!(copy_bf16_512, "avx512f", 16, _mm256_loadu_si256, bf16_512, _mm512_storeu_ps);
    convert!(copy_f16_256, "avx2,f16c", 8, _mm_loadu_si128, f16_256, _mm256_storeu_ps);
    convert!(copy_bf16_256, "avx2", 8, _mm_loadu_si128, bf16_256, _mm256_storeu_ps);

    half!(F16Avx512, f16, copy_f16_512);
    half!(Bf16Avx512, bf16, copy_bf16_512);
    half!(F16Avx2, f16, copy_f16_256);
    half!(Bf16Avx2, bf16, copy_bf16_256);
}
