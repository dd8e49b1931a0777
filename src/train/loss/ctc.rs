//! Connectionist temporal classification: −log of the probability of all ways in which the steps can spell the labels.
//!
//! Between labels, before the first and behind the last one there may be blanks (class 0); a label may take several steps. The
//! states are blanks and labels in turn, 2·L + 1 of them, and a step goes on to the same state, to the next, or over a blank
//! between two different labels. A scan over the steps adds up probabilities of all ways to every state, as logarithms.

use std::sync::Arc;

use intwain_ir::ops::{Contract, LogSoftmax, Pad, Scan, TypeError};
use intwain_ir::scalar::{Binary as B, Compare, Reduce, Unary};
use intwain_ir::{DType, Graph, Rows, Scalar, Shape, Type, Value};

use super::function::{Function, Pair, Values};
use super::{Coupling, crossentropy};
use crate::frontend::{Fields, ImportError};
use crate::train::math::{Made, Math};

/// The logarithm of a step that cannot be. Finite, so that sums of impossible ways have gradients.
const NEVER: f64 = -1e30;

/// What it costs to begin or to end elsewhere than at the ends: log 10^−307, as in TensorFlow. It is what labels get that the steps
/// are too few for.
const AMISS: f64 = -706.893_623_549_172;

#[derive(Clone, Copy, Debug)]
struct Ctc;

pub(super) fn ctc(_: &Fields<'_>) -> Result<Arc<dyn Function>, ImportError> {
    Ok(Arc::new(Ctc))
}

impl Function for Ctc {
    fn values(&self, m: &mut Math<'_>, pair: &Pair) -> Result<Values, TypeError> {
        let pair = pair.same_rank(m)?;
        let (labels, scores) = (m.shape(pair.labels), m.shape(pair.predicted));
        if labels.len() != 2 || scores.len() != 3 || labels[0] != scores[0] || labels[1] == 0 {
            let found = format!("labels of shape {labels} for scores of shape {scores}");
            return Err(TypeError::new(format!("{found}; takes [rows, labels] and [rows, steps, classes]")));
        }
        let classes = m.g.cast(DType::I32, pair.labels)?;
        // Labels are padded with blanks.
        let said = m.is(classes, Compare::Ne, 0.0)?;
        let dtype = m.dtype(pair.predicted);
        let said = m.g.cast(dtype, said)?;
        let length = m.sum(said, &[1])?;
        let around =
            Pad { low: vec![0, 1], high: vec![0, 1], interior: vec![0, 1], value: vec![Scalar::zero(DType::I32)] };
        let states = m.g.push(around, &[classes])?;
        let emissions = emissions(m, states, pair.predicted)?;
        let last = walked(m, states, emissions)?;
        Ok(Values::all(spelled(m, last, length)?, Coupling::Apart))
    }
}

/// The logarithm of each state's probability at each step: `[steps, rows, states]`.
fn emissions(m: &mut Math<'_>, states: Value, scores: Value) -> Made {
    let log = m.g.push(LogSoftmax { dim: 2 }, &[scores])?;
    let log = m.at_least(log, NEVER)?;
    let (rows, count) = (m.shape(states)[0], m.shape(states)[1]);
    let wide = Shape::from([rows, count, m.shape(scores)[2]]);
    let like = m.g.full(m.dtype(scores), 0.0, &wide)?;
    let own = crossentropy::one_hot(m, states, like, 2)?;
    let own = m.g.cast(m.dtype(scores), own)?;
    let each = m.g.push(Contract { batch: vec![(0, 0)], contract: vec![(2, 2)] }, &[log, own])?;
    m.g.transpose(each, &[1, 0, 2])
}

/// A row of states moved on by some, nothing coming in from before.
fn moved(m: &mut Math<'_>, x: Value, by: i64, fill: Scalar) -> Made {
    let pad = Pad { low: vec![0, by], high: vec![0, -by], interior: vec![0, 0], value: vec![fill] };
    m.g.push(pad, &[x])
}

/// The logarithm of the probability of all ways to every state after the last step.
fn walked(m: &mut Math<'_>, states: Value, emissions: Value) -> Made {
    let (dtype, shape) = (m.dtype(emissions), m.shape(states));
    let before = moved(m, states, 2, Scalar::zero(DType::I32))?;
    let another = m.g.compare(Compare::Ne, states, before)?;
    let (never, free) = (m.g.full(dtype, NEVER, &shape)?, m.g.full(dtype, 0.0, &shape)?);
    // Over the blank between two labels that differ; blanks do not differ from blanks.
    let over = m.g.select(another, free, never)?;
    let place = m.positions(&shape, 1)?;
    let first = m.is(place, Compare::Eq, 0.0)?;
    let amiss = m.g.full(dtype, AMISS, &shape)?;
    let start = m.g.select(first, free, amiss)?;
    let count = m.shape(emissions)[0];
    let body = Arc::new(step(Type::new(dtype, shape))?);
    m.g.push(Scan { count, states: 1, sequences: 1, body }, &[start, emissions, over])
}

fn step(ty: Type) -> Result<Graph, TypeError> {
    let mut g = Graph::new("ctc");
    let ways = g.input("ways", ty.clone(), Rows::Whole);
    let emission = g.input("emission", ty.clone(), Rows::Whole);
    let over = g.input("over", ty.clone(), Rows::Whole);
    let mut m = Math { g: &mut g };
    let never = Scalar::from_f64(ty.dtype, NEVER);
    let from_last = moved(&mut m, ways, 1, never)?;
    let from_before = moved(&mut m, ways, 2, never)?;
    let from_before = m.add(from_before, over)?;
    let all = [ways, from_last, from_before];
    let most = m.g.binary(B::Max, ways, from_last)?;
    let most = m.g.binary(B::Max, most, from_before)?;
    let most = m.constant(most)?;
    let mut sum = None;
    for x in all {
        let d = m.sub(x, most)?;
        let e = m.unary(Unary::Exp, d)?;
        sum = Some(sum.map_or(Ok(e), |sum| m.add(sum, e))?);
    }
    let log = sum.map_or(Ok(most), |sum| m.log(sum))?;
    let next = m.add(log, most)?;
    let next = m.add(next, emission)?;
    g.output("ways", next);
    Ok(g)
}

/// −log of the probability of being at the last label or at the blank behind it.
fn spelled(m: &mut Math<'_>, ways: Value, length: Value) -> Made {
    let shape = m.shape(ways);
    let place = m.positions(&shape, 1)?;
    let place = m.g.cast(m.dtype(ways), place)?;
    let end = m.times(length, 2.0)?;
    let end = m.g.broadcast(end, &shape, &[0])?;
    let before = m.plus(end, -1.0)?;
    let (blank, label) = (m.g.compare(Compare::Eq, place, end)?, m.g.compare(Compare::Eq, place, before)?);
    let last = m.g.binary(B::Or, blank, label)?;
    let (amiss, free) = (m.like(ways, AMISS)?, m.like(ways, 0.0)?);
    let cost = m.g.select(last, free, amiss)?;
    let ways = m.add(ways, cost)?;
    let most = m.g.reduce(Reduce::Max, ways, &[1])?;
    let most = m.constant(most)?;
    let beside = m.g.broadcast(most, &shape, &[0])?;
    let d = m.sub(ways, beside)?;
    let e = m.unary(Unary::Exp, d)?;
    let sum = m.sum(e, &[1])?;
    let log = m.log(sum)?;
    let log = m.add(log, most)?;
    m.neg(log)
}
