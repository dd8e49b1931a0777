//! Random numbers of layers.
//!
//! Every draw is a [`Random`] of the graph: its bits are a function of the seed of the training, the layer's path and own
//! seed, which of the layer's draws it is, the step, and the element's place in the tensor of the whole batch. So devices,
//! pieces of a batch and the backward pass see the same numbers.
//!
//! From 32 bits b follow, the same in graphs of every type:
//!
//! * a choice: true with probability p where b < p·2³²;
//! * a uniform number: ⌊b / 2⁸⌋ / 2²⁴, in [0, 1), exact in f32;
//! * a normal number, of two words: √(−2·ln(1 − u))·cos(2πv) with u and v uniform as above, computed in f32 or f64.

use intwain_ir::ops::Random;
use intwain_ir::scalar::{Binary, Compare, Unary};
use intwain_ir::{DType, ParamKind, Rows, Scalar, Shape, Type, Value};

use super::cx::{Cx, Kept, Out, misfit};
use super::forced::Training;
use super::phase::{Phase, STEP, TrainingPhase};
use crate::frontend::cursor::{At, Fields};
use crate::frontend::error::ImportError;
use crate::frontend::json::Json;

/// A probability in units of 2⁻³².
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Chance(u64);

impl Chance {
    const CERTAIN: u64 = 1 << 32;

    fn of(p: f64) -> Chance {
        Chance((p.clamp(0.0, 1.0) * Chance::CERTAIN as f64).round() as u64)
    }
}

/// What is drawn.
#[derive(Clone, Debug)]
pub(super) struct Draw {
    /// The extents.
    pub(super) shape: Shape,
    /// Whether dimension 0 counts rows.
    pub(super) rows: Rows,
    /// The layer's own seed.
    pub(super) seed: Option<i64>,
}

/// The `seed` of a layer, a number or a generator's configuration.
pub(super) fn own_seed(fields: &Fields<'_>) -> Result<Option<i64>, ImportError> {
    fn read(at: &At<'_>) -> Result<Option<i64>, ImportError> {
        match at.json {
            Json::Object(_) => match at.require("config")?.get("seed") {
                Some(inner) if !inner.is_null() => read(&inner),
                Some(_) | None => Ok(None),
            },
            _ => at.int().map(Some),
        }
    }
    fields.opt("seed").map_or(Ok(None), |at| read(&at))
}

impl Cx {
    /// Whether the layers of the current call behave as in training.
    pub(super) fn trains(&self) -> bool {
        match (self.training, &self.phase) {
            (Training::Always, _) | (Training::AsRun, Phase::Training(_)) => true,
            (Training::Never, _) | (Training::AsRun, Phase::Inference) => false,
        }
    }

    /// How the model is trained. Where it is not and a layer of it behaves so all the same, this is the default.
    pub(super) fn training_phase(&self) -> TrainingPhase {
        match &self.phase {
            Phase::Training(phase) => phase.clone(),
            Phase::Inference => TrainingPhase::default(),
        }
    }

    /// Positions of dimension 0 for each row of the call, where so many positions are there.
    pub(super) fn positions_per_row(&self, extent: usize) -> usize {
        match self.call_rows {
            Some(rows) if rows > 0 && extent.is_multiple_of(rows) => extent / rows,
            Some(_) | None => 1,
        }
    }

    /// Random words.
    pub(super) fn bits(&mut self, draw: &Draw) -> Out<Value> {
        let phase = self.training_phase();
        let drawn = self.draws.entry(self.path().to_string()).or_default();
        let count = *drawn;
        *drawn += 1;
        let mut op = Random::whole(key(phase.seed, self.path(), draw.seed, count), &draw.shape);
        if let (Rows::Batched, Some(extent)) = (draw.rows, draw.shape.first()) {
            op.start[0] = phase.first_row * self.positions_per_row(*extent);
        }
        let step = self.step()?;
        Ok(self.g.push(op, &[step])?)
    }

    /// The number of the call: a state that is there from the first draw on.
    fn step(&mut self) -> Out<Value> {
        if let Some(known) = &self.step {
            return Ok(known.before);
        }
        let ty = Type::new(DType::U32, []);
        let before = self.g.param(STEP, ty, ParamKind::State { next: None });
        let one = self.g.full(DType::U32, 1.0, &Shape::from([]))?;
        let now = self.g.add(before, one)?;
        self.step = Some(Kept { path: STEP.to_string(), before, now });
        Ok(before)
    }

    /// Booleans that are false with a probability.
    pub(super) fn kept_of(&mut self, rate: f64, draw: &Draw) -> Out<Value> {
        let Chance(lost) = Chance::of(rate);
        if lost == Chance::CERTAIN {
            return Ok(self.g.full(DType::Bool, 0.0, &draw.shape)?);
        }
        let bits = self.bits(draw)?;
        let least = Scalar::from_i64(DType::U32, lost as i64);
        let least = self.g.push(intwain_ir::ops::Constant { shape: draw.shape.clone(), elements: vec![least] }, &[])?;
        Ok(self.g.compare(Compare::Ge, bits, least)?)
    }

    /// Uniform numbers of [0, 1).
    pub(super) fn uniform(&mut self, dtype: DType, draw: &Draw) -> Out<Value> {
        let bits = self.bits(draw)?;
        let eight = self.g.full(DType::U32, 8.0, &draw.shape)?;
        let high = self.g.binary(Binary::Shr, bits, eight)?;
        // Vectors have a conversion from signed integers, and 24 bits are positive.
        let high = self.g.cast(DType::I32, high)?;
        let number = self.g.cast(dtype, high)?;
        let unit = self.g.full(dtype, 1.0 / f64::from(1 << 24), &draw.shape)?;
        Ok(self.g.mul(number, unit)?)
    }

    /// Normal numbers, in at least f32.
    pub(super) fn normal(&mut self, dtype: DType, mean: f64, deviation: f64, draw: &Draw) -> Out<Value> {
        let wide = dtype.accumulator();
        let (u, v) = (self.uniform(wide, draw)?, self.uniform(wide, draw)?);
        let shape = &draw.shape;
        let g = &mut self.g;
        let mut number = |x: f64| g.full(wide, x, shape);
        let (one, scale, turn) = (number(1.0)?, number(-2.0)?, number(std::f64::consts::TAU)?);
        let (deviation, mean) = (number(deviation)?, number(mean)?);
        let left = g.sub(one, u)?;
        let log = g.unary(Unary::Log, left)?;
        let square = g.mul(log, scale)?;
        let radius = g.unary(Unary::Sqrt, square)?;
        let angle = g.mul(v, turn)?;
        let cosine = g.unary(Unary::Cos, angle)?;
        let standard = g.mul(radius, cosine)?;
        let scaled = g.mul(standard, deviation)?;
        let moved = g.add(scaled, mean)?;
        Ok(g.cast(dtype, moved)?)
    }

    /// Inverted dropout: elements are 0 with a probability, the others grow by what is lost. The choice is made for every
    /// element of `draw`, which is broadcast.
    pub(super) fn dropped(&mut self, x: Value, rate: f64, draw: &Draw) -> Out<Value> {
        let ty = self.g.ty(x).clone();
        if !ty.dtype.is_float() {
            return Err(misfit(format!("drops elements of a floating tensor in training, its input is {ty}")));
        }
        let zero = self.g.full(ty.dtype, 0.0, &ty.shape)?;
        if rate >= 1.0 {
            return Ok(zero);
        }
        let kept = self.kept_of(rate, draw)?;
        let kept = self.g.broadcast_to(kept, &ty.shape)?;
        let scale = self.g.full(ty.dtype, 1.0 / (1.0 - rate), &ty.shape)?;
        let scaled = self.g.mul(x, scale)?;
        Ok(self.g.select(kept, scaled, zero)?)
    }
}

/// A key that is as good as one of its own for every draw: FNV-1a of the path, mixed with the numbers as splitmix64 does.
fn key(seed: u64, path: &str, own: Option<i64>, count: u64) -> u64 {
    let hash = path.bytes().fold(0xcbf2_9ce4_8422_2325, |h: u64, b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3));
    let own = own.map_or([0, 0], |own| [1, own as u64]);
    [seed, own[0], own[1], count].into_iter().fold(hash, |h, word| {
        let mut z = (h ^ word).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    })
}
