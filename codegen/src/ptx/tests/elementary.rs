//! Elementary functions on numbers, with approximations as bad as the instruction set allows, against f64.

use crate::ptx::elementary::{Arithmetic, exp, reciprocal, reciprocal_root, root};

/// f32 with approximations that are off by a part of what is allowed: −1 to 1.
struct Numbers {
    off: f64,
}

fn flushed(x: f32) -> f32 {
    if x.abs() < f32::MIN_POSITIVE { 0.0f32.copysign(x) } else { x }
}

/// The distance from x to the next number away from 0.
fn ulp(x: f64) -> f64 {
    2f64.powi((x.abs().log2().floor() as i32).max(-126) - 23)
}

impl Numbers {
    fn moved(&self, exact: f64, most: f64) -> f32 {
        if exact == 0.0 || !exact.is_finite() {
            return flushed(exact as f32);
        }
        let there = exact as f32;
        let moved = (exact + self.off * most) as f32;
        // No farther than allowed.
        let moved = if (f64::from(moved) - exact).abs() > most { there } else { moved };
        flushed(moved.abs()).copysign(exact as f32)
    }
}

impl Arithmetic for Numbers {
    type V = f32;
    type P = bool;

    fn constant(&mut self, x: f32) -> f32 {
        x
    }
    fn negated(&mut self, x: f32) -> f32 {
        -x
    }
    fn magnitude(&mut self, x: f32) -> f32 {
        x.abs()
    }
    fn times(&mut self, x: f32, y: f32) -> f32 {
        x * y
    }
    fn fused(&mut self, x: f32, y: f32, z: f32) -> f32 {
        x.mul_add(y, z)
    }
    fn at_least(&mut self, x: f32, y: f32) -> f32 {
        if x.is_nan() { x } else { x.max(y) }
    }
    fn at_most(&mut self, x: f32, y: f32) -> f32 {
        if x.is_nan() { x } else { x.min(y) }
    }
    fn number_at_most(&mut self, x: f32, y: f32) -> f32 {
        x.min(y)
    }
    fn less(&mut self, x: f32, y: f32) -> bool {
        x < y
    }
    fn same(&mut self, x: f32, y: f32) -> bool {
        x == y
    }
    fn either(&mut self, p: bool, x: f32, y: f32) -> f32 {
        if p { x } else { y }
    }
    fn ex2(&mut self, x: f32) -> f32 {
        let y = f64::from(flushed(x)).exp2();
        self.moved(y, 2.0 * ulp(y))
    }
    fn rcp(&mut self, x: f32) -> f32 {
        let y = 1.0 / f64::from(flushed(x));
        self.moved(y, ulp(y))
    }
    fn rsqrt(&mut self, x: f32) -> f32 {
        let y = 1.0 / f64::from(flushed(x)).sqrt();
        self.moved(y, y * 2f64.powf(-22.9))
    }
}

const OFF: [f64; 5] = [-1.0, -0.5, 0.0, 0.5, 1.0];

/// Positive numbers of all magnitudes, subnormal ones too.
fn positive() -> impl Iterator<Item = f32> {
    (1..0x7f80_0000u32).step_by(9_973).chain((0x3f80_0000..0x4080_0000).step_by(61)).map(f32::from_bits)
}

fn assert_near(what: &str, x: f32, y: f32, exact: f64, most: f64) {
    if exact >= 2f64.powi(128) - 2f64.powi(103) {
        assert_eq!(y, f32::INFINITY, "{what}({x:e})");
        return;
    }
    let error = (f64::from(y) - exact).abs() / ulp(exact);
    assert!(error <= most, "{what}({x:e}) is {y:e}, off by {error}");
}

#[test]
fn exponential() {
    for off in OFF {
        let mut n = Numbers { off };
        let xs = (-104_000..89_000).map(|i| i as f32 / 1000.0 + (i % 7) as f32 / 7000.0);
        let tiny = (-60..0).flat_map(|e| [1.3f32, -1.7].map(|m| m * 2f32.powi(e)));
        for x in xs.chain(tiny) {
            let (y, exact) = (exp(&mut n, x), f64::from(x).exp());
            let unit = ulp((f64::from(x) * std::f64::consts::LOG2_E).exp2());
            let power = f64::from(x * std::f32::consts::LOG2_E).exp2();
            let unit = unit.max(ulp(power));
            let most = if off == 0.0 { 1.01 } else { 2.51 } * unit / ulp(exact);
            if exact < f64::from(f32::MIN_POSITIVE) * 1.000_001 {
                assert!(y == 0.0 || (f64::from(y) - exact).abs() <= 2.51 * unit, "exp({x:e}) is {y:e}");
            } else if (x - 88.722_84).abs() > 1.0e-4 {
                assert_near("exp", x, y, exact, most);
            }
        }
        let limits = [(f32::NEG_INFINITY, 0.0), (f32::INFINITY, f32::INFINITY), (88.73, f32::INFINITY)];
        for (x, y) in limits.into_iter().chain([(1.0e30, f32::INFINITY), (-1.0e30, 0.0), (-104.5, 0.0)]) {
            assert_eq!(exp(&mut n, x), y, "exp({x})");
        }
        assert!(exp(&mut n, f32::NAN).is_nan());
        assert!(off != 0.0 || exp(&mut n, 0.0) == 1.0 && exp(&mut n, -0.0) == 1.0);
    }
}

#[test]
fn reciprocals() {
    for off in OFF {
        let mut n = Numbers { off };
        for x in positive().flat_map(|x| [x, -x]) {
            let (y, exact) = (reciprocal(&mut n, x), 1.0 / f64::from(x));
            let most = if exact.abs() < f64::from(f32::MIN_POSITIVE) { 1.0 } else { 0.5 + 2f64.powi(-20) };
            assert_near("reciprocal", x, y.copysign(1.0), exact.abs(), most);
            assert_eq!(y.is_sign_negative(), x.is_sign_negative());
        }
        for e in -126..=126 {
            assert_eq!(reciprocal(&mut n, 2f32.powi(e)), 2f32.powi(-e));
        }
        let inf = f32::INFINITY;
        for (x, y) in [(0.0, inf), (-0.0, -inf), (inf, 0.0), (-inf, -0.0), (1.0e-40, inf)] {
            assert_eq!(reciprocal(&mut n, x).to_bits(), y.to_bits(), "1/{x}");
        }
        assert!(reciprocal(&mut n, f32::NAN).is_nan());
    }
}

#[test]
fn roots() {
    for off in OFF {
        let mut n = Numbers { off };
        for x in positive() {
            let exact = f64::from(x).sqrt();
            assert_near("root", x, root(&mut n, x), exact, 0.5 + 2f64.powi(-18));
            assert_near("reciprocal root", x, reciprocal_root(&mut n, x), 1.0 / exact, 1.1);
        }
        for i in 0..=4096u16 {
            let i = f32::from(i);
            for scale in [1.0, 2f32.powi(-40), 2f32.powi(-60), 2f32.powi(40)] {
                assert_eq!(root(&mut n, i * scale * (i * scale)), i * scale);
            }
        }
        for e in -63..=63 {
            assert_eq!(reciprocal_root(&mut n, 2f32.powi(2 * e)), 2f32.powi(-e));
        }
        let inf = f32::INFINITY;
        for (x, y, inverse) in [(0.0, 0.0, inf), (-0.0, -0.0, -inf), (inf, inf, 0.0f32)] {
            assert_eq!(root(&mut n, x).to_bits(), f32::to_bits(y), "√{x}");
            assert_eq!(reciprocal_root(&mut n, x).to_bits(), inverse.to_bits(), "1/√{x}");
        }
        for x in [f32::NAN, -1.0, -inf, -1.0e-40] {
            // A negative subnormal is scaled before it is flushed.
            assert!(root(&mut n, x).is_nan() && reciprocal_root(&mut n, x).is_nan(), "√{x}");
        }
    }
}
