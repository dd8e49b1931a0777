//! `random`: random bits.
//!
//! A counter-based generator (Threefry-2x32 of 13 rounds; Salmon, Moraes, Dror and Shaw 2011): the bits at a position are a
//! function of the key, the step and the position in the whole tensor, so that parts of it can be made anywhere, in any
//! order, again and again.
//!
//! With E the cipher, the words of the step are s = E(key, (step, 0)), and those of the element with the row-major index i
//! in the whole tensor E(s, (i mod 2³², ⌊i / 2³²⌋)), of which the first is taken.

use super::prelude::*;
use crate::compute::ExprId;
use crate::scalar::Binary as B;

/// Bits for a step: `u32 → u32[shape]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Random {
    /// What other random tensors differ in.
    pub key: u64,
    /// The extents of the whole tensor. The first one does not matter.
    pub extents: Shape,
    /// The position of the first element in the whole tensor.
    pub start: Vec<usize>,
    /// The extents.
    pub shape: Shape,
}

impl Random {
    /// A whole tensor.
    pub fn whole(key: u64, shape: &Shape) -> Random {
        Random { key, extents: shape.clone(), start: vec![0; shape.len()], shape: shape.clone() }
    }

    /// The row-major index in the whole tensor, where it fits.
    fn index(&self) -> Option<Index> {
        let mut index = Index::constant(0);
        let mut stride = 1i64;
        let mut last = 0i64;
        for d in (0..self.shape.len()).rev() {
            let start = i64::try_from(self.start[d]).ok()?;
            let end = i64::try_from(self.shape[d].saturating_sub(1)).ok()?.checked_add(start)?;
            last = end.checked_mul(stride)?.checked_add(last)?;
            index = index + Index::axis(Axis(d as u8)).plus(start).times(stride);
            stride = stride.checked_mul(i64::try_from(self.extents[d].max(1)).ok()?)?;
        }
        Some(index)
    }
}

/// Rotations of Threefry-2x32.
const ROTATIONS: [u32; 8] = [13, 15, 26, 6, 17, 29, 16, 24];

/// Rounds that pass all tests of BigCrush. The authors' default has seven more for those who sleep badly.
const ROUNDS: usize = 13;

/// Threefry-2x32: two words under a key of two.
fn threefry(c: &mut Compute, key: [ExprId; 2], words: [ExprId; 2]) -> [ExprId; 2] {
    let parity = c.constant(Scalar::from_i64(DType::U32, 0x1bd1_1bda));
    let third = c.binary(B::Xor, key[0], key[1]);
    let third = c.binary(B::Xor, third, parity);
    let schedule = [key[0], key[1], third];
    let mut x = [c.binary(B::Add, words[0], key[0]), c.binary(B::Add, words[1], key[1])];
    for round in 0..ROUNDS {
        let left = ROTATIONS[round % 8];
        let (l, r) = (c.number(DType::U32, left.into()), c.number(DType::U32, (32 - left).into()));
        x[0] = c.binary(B::Add, x[0], x[1]);
        let (high, low) = (c.binary(B::Shl, x[1], l), c.binary(B::Shr, x[1], r));
        let turned = c.binary(B::Or, high, low);
        x[1] = c.binary(B::Xor, turned, x[0]);
        if round % 4 == 3 {
            let turn = round / 4 + 1;
            let count = c.number(DType::U32, turn as f64);
            let tweaked = c.binary(B::Add, schedule[(turn + 1) % 3], count);
            x = [c.binary(B::Add, x[0], schedule[turn % 3]), c.binary(B::Add, x[1], tweaked)];
        }
    }
    x
}

impl OpDef for Random {
    const NAME: &'static str = "random";
    attributes!(key, extents, start, shape);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [step] = exactly(args)?;
        ensure(step.dtype == DType::U32 && step.rank() == 0, || format!("{step} is not one u32"))?;
        let rank = self.shape.len();
        ensure(self.extents.len() == rank && self.start.len() == rank, || {
            format!("{} extents and {} starts for {}", self.extents.len(), self.start.len(), self.shape)
        })?;
        ensure(self.index().is_some(), || format!("positions of {} do not fit 63 bits", self.extents))?;
        Ok(smallvec![Type::new(DType::U32, self.shape.clone())])
    }

    fn body(&self, args: &[&Type], _: &[&Type]) -> Body {
        let mut c = Compute::new(&self.shape);
        let index = self.index().expect("`infer` has found it to fit");
        let high = index.clone().floor_div(1 << 32, c.extents());
        let element = [c.index_value(DType::U32, index), c.index_value(DType::U32, high)];
        let key = [self.key as u32, (self.key >> 32) as u32];
        let key = key.map(|word| c.constant(Scalar::from_i64(DType::U32, word.into())));
        let step = [c.load(0, args[0], vec![]), c.number(DType::U32, 0.0)];
        let step = threefry(&mut c, key, step);
        let [bits, _] = threefry(&mut c, step, element);
        Body::Compute(c.with_results([bits]))
    }

    fn grad(&self, _: &mut GradCx<'_>) -> Grads {
        Ok(vec![None])
    }

    fn rule(&self, _: &[&Type], results: &[&Type]) -> ShardingRule {
        let factor = |dim: usize| Factor {
            extent: results[0].shape[dim],
            kind: FactorKind::Pass,
            operands: vec![None],
            results: vec![Some(FactorDim::new(dim, 1))],
        };
        ShardingRule { factors: (0..results[0].rank()).map(factor).collect(), linear: vec![] }
    }

    fn localize(&self, cx: &LocalCx<'_>) -> Random {
        let whole = &cx.global_results[0].shape;
        let first = |dim: usize| cx.result_layouts[0].region(whole, dim, cx.device).start;
        let start = self.start.iter().enumerate().map(|(dim, start)| start + first(dim)).collect();
        Random { start, shape: cx.results[0].shape.clone(), ..self.clone() }
    }
}
