//! `pad`: a constant around and between elements.

use super::prelude::*;

/// Adds `low` elements before, `high` after and `interior` between those of every dimension. Negative edges crop.
#[derive(Clone, Debug, PartialEq)]
pub struct Pad {
    /// Elements added before.
    pub low: Vec<i64>,
    /// Elements added after.
    pub high: Vec<i64>,
    /// Elements added between neighbours.
    pub interior: Vec<usize>,
    /// The element added, as a list of one.
    pub value: Vec<Scalar>,
}

impl Pad {
    fn extent(&self, x: usize, d: usize) -> i64 {
        spread(x, self.interior[d]) + self.low[d] + self.high[d]
    }
}

fn spread(x: usize, interior: usize) -> i64 {
    if x == 0 { 0 } else { (x as i64 - 1) * (interior as i64 + 1) + 1 }
}

impl OpDef for Pad {
    const NAME: &'static str = "pad";
    attributes!(low, high, interior, value);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        let n = x.rank();
        let counts = self.low.len() == n && self.high.len() == n && self.interior.len() == n;
        ensure(counts, || format!("edges of another rank than {x}"))?;
        ensure(self.value.len() == 1 && self.value[0].dtype() == x.dtype, || format!("one {} to pad with", x.dtype))?;
        let edges: Vec<(i64, i64)> = self.low.iter().copied().zip(self.high.iter().copied()).collect();
        steps(&self.interior.iter().map(|i| i.saturating_add(1)).collect::<Vec<_>>(), &edges)?;
        for d in 0..n {
            ensure(self.extent(x.shape[d], d) >= 0, || format!("crops more than dimension {d} of {x} has"))?;
        }
        Ok(smallvec![x.with_shape(Shape::new((0..n).map(|d| self.extent(x.shape[d], d) as usize)))])
    }

    fn body(&self, args: &[&Type], results: &[&Type]) -> Body {
        let mut c = Compute::new(&results[0].shape);
        let (mut index, mut guards) = (Vec::new(), Vec::new());
        for (d, a) in c.axes().enumerate() {
            let (step, x) = (self.interior[d] as i64 + 1, args[0].shape[d]);
            let i = Index::axis(a).plus(-self.low[d]);
            guards.push(Guard { index: i.clone(), lo: 0, hi: spread(x, self.interior[d]) });
            if step > 1 {
                guards.push(Guard { index: i.clone().modulo(step, c.extents()), lo: 0, hi: 1 });
            }
            index.push(i.floor_div(step, c.extents()));
        }
        let x = c.load_guarded(0, args[0], index, guards, self.value[0]);
        Body::Compute(c.with_results([x]))
    }

    fn grad(&self, cx: &mut GradCx<'_>) -> Grads {
        let (ty, dy) = (cx.ty(0), cx.dy());
        if !ty.dtype.is_float() {
            return Ok(vec![None]);
        }
        let n = ty.rank();
        let negate = |v: &[i64]| v.iter().map(|x| -x).collect::<Vec<_>>();
        let crop = Pad {
            low: negate(&self.low),
            high: negate(&self.high),
            interior: vec![0; n],
            value: vec![Scalar::zero(ty.dtype)],
        };
        let inner = cx.g.push(crop, &[dy])?;
        if self.interior.iter().all(|&i| i == 0) {
            return Ok(vec![Some(inner)]);
        }
        let limit = cx.g.shape(inner).to_vec();
        let stride = self.interior.iter().map(|i| i + 1).collect();
        Ok(vec![Some(cx.g.push(super::Slice { start: vec![0; n], limit, stride }, &[inner])?)])
    }
}
