//! Dropout inside recurrent cells: masks that hold for a whole sequence, drawn before it is walked.

use intwain_ir::ops::Concat;
use intwain_ir::{Rows, Shape, Value};

use super::cx::{Cx, Out};
use super::noise::{Draw, own_seed};
use crate::frontend::cursor::Fields;

/// What a cell loses of its input and of its state in training.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CellLoss {
    input: f64,
    state: f64,
    gates: Gates,
    seed: Option<i64>,
}

/// Whether the gates of a cell see the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Gates {
    /// One mask for all.
    #[default]
    Together,
    /// A mask for each.
    Apart,
}

/// Masks of a sequence: none, one, or one for each gate. What is kept has 1 / (1 − rate), what is lost 0.
#[derive(Clone, Debug, Default)]
pub(super) struct CellMasks {
    /// For the inputs of steps.
    pub(super) input: Vec<Value>,
    /// For the state that products are made of.
    pub(super) state: Vec<Value>,
}

impl CellLoss {
    /// Of a cell with a dense kernel. Keras has two ways to compute those with gates: the first, which it takes where the
    /// configuration says so or something of the state is lost, gives each gate a mask of its own.
    pub(super) fn read(fields: &Fields<'_>, gates: usize) -> Out<CellLoss> {
        let loss = CellLoss::read_apart(fields)?;
        let first = fields.opt("implementation").map(|at| at.int()).transpose()? == Some(1);
        let apart = gates > 1 && (first || loss.state > 0.0);
        Ok(CellLoss { gates: if apart { Gates::Apart } else { Gates::Together }, ..loss })
    }

    /// Of a cell that always gives each gate a mask of its own.
    pub(super) fn read_apart(fields: &Fields<'_>) -> Out<CellLoss> {
        let rate = |key: &str| -> Out<f64> {
            let Some(at) = fields.opt(key) else { return Ok(0.0) };
            match at.f64()? {
                rate if (0.0..=1.0).contains(&rate) => Ok(rate),
                _ => Err(at.expected("a number from 0 to 1").into()),
            }
        };
        let (input, state) = (rate("dropout")?, rate("recurrent_dropout")?);
        Ok(CellLoss { input, state, gates: Gates::Apart, seed: own_seed(fields)? })
    }

    /// Draws for one sequence, whose steps and states have these extents with the rows.
    pub(super) fn draw(&self, cx: &mut Cx, gates: usize, input: &[usize], state: &[usize]) -> Out<CellMasks> {
        let count = if self.gates == Gates::Apart { gates } else { 1 };
        Ok(CellMasks {
            input: self.masks(cx, self.input, count, input)?,
            state: self.masks(cx, self.state, count, state)?,
        })
    }

    fn masks(&self, cx: &mut Cx, rate: f64, count: usize, shape: &[usize]) -> Out<Vec<Value>> {
        // Keras loses nothing where everything would be lost.
        if rate <= 0.0 || rate >= 1.0 || !cx.trains() {
            return Ok(Vec::new());
        }
        let draw = Draw { shape: Shape::from(shape), rows: Rows::Batched, seed: self.seed };
        let ones = cx.g.full(cx.dtype, 1.0, &draw.shape)?;
        (0..count).map(|_| cx.dropped(ones, rate, &draw)).collect()
    }
}

/// What several masks leave of a tensor, each given to a product of its own, the products side by side. Without masks there
/// is one product.
pub(super) fn products(
    cx: &mut Cx,
    x: Value,
    masks: &[Value],
    factors: &[Value],
    mut product: impl FnMut(&mut Cx, Value, Value) -> Out<Value>,
) -> Out<Value> {
    let mut parts = Vec::new();
    for (i, &factor) in factors.iter().enumerate() {
        let left = match masks.get(i) {
            Some(&mask) => cx.g.mul(x, mask)?,
            None => x,
        };
        parts.push(product(cx, left, factor)?);
    }
    match parts.as_slice() {
        [one] => Ok(*one),
        parts => {
            let dim = cx.rank(parts[0]) - 1;
            Ok(cx.g.push(Concat { dim }, parts)?)
        }
    }
}

/// A kernel for each mask: whole, or cut into the gates' columns.
pub(super) fn columns_for(cx: &mut Cx, kernel: Value, masks: &[Value]) -> Out<Vec<Value>> {
    let count = masks.len().max(1);
    let last = cx.rank(kernel) - 1;
    let each = cx.dims(kernel)[last] / count;
    (0..count).map(|i| Ok(cx.g.slice_dim(kernel, last, i * each..(i + 1) * each)?)).collect()
}
