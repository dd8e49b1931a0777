//! One step of any optimizer: what comes before and after the update of its class, in Keras's order.
//!
//! Gradients are unscaled and accumulated; where the step updates, their mean is clipped, weights decay and the class's
//! update follows. Averages of the variables, their overwriting and constraints come in every step, updating or not, and
//! so does the counter.

use intwain_ir::ops::TypeError;
use intwain_ir::scalar::{Binary, Compare};
use intwain_ir::{DType, Graph, Shape, Type, Value};

use super::clip::clip;
use super::formula::{Formula, of};
use super::keep::{Kept, Places, float};
use super::lookups::squares;
use super::{Given, Inner, Slot, Updated};
use crate::train::schedule::Rate;

/// The f32 nearest to a number.
pub(super) fn by_f32(x: f64) -> f64 {
    f64::from(x as f32)
}

/// Applies a variable's constraint to it.
pub(super) type Constrain<'a> = &'a mut dyn FnMut(&mut Graph, usize, Value) -> Result<Value, TypeError>;

/// What the update of a class is written with.
#[derive(Debug)]
pub(super) struct Update<'g> {
    pub(super) g: &'g mut Graph,
    kept: Kept,
    rate: Value,
    /// Updates done before this one.
    count: Value,
    /// Whether the rate follows a schedule.
    pub(super) scheduled: bool,
    /// The type of scalars.
    pub(super) float: DType,
}

/// A variable that is updated.
#[derive(Clone, Debug)]
pub(super) struct Of<'a> {
    /// Its position among the variables.
    pub(super) index: usize,
    /// Its path.
    pub(super) path: &'a str,
    /// Its type.
    pub(super) ty: Type,
    /// Its value, decayed.
    pub(super) value: Value,
    /// Its gradient, clipped, of its type.
    pub(super) gradient: Value,
    /// The squares that the gradient stands for where these are not its own; see [`squares`].
    squares: Option<Value>,
}

impl Of<'_> {
    /// The square of the gradient.
    pub(super) fn square(&self) -> Formula {
        self.squares.map_or_else(|| of(self.gradient).square(), of)
    }
}

impl Update<'_> {
    /// A slot of a variable, or one for all, as it is by now.
    pub(super) fn slot(&self, role: &'static str, variable: Option<usize>) -> Result<Formula, TypeError> {
        self.place(role, variable).map(|place| of(self.kept.values[place]))
    }

    /// Changes a slot, and gives what it is from now on.
    pub(super) fn set(
        &mut self,
        role: &'static str,
        variable: Option<usize>,
        to: Formula,
    ) -> Result<Formula, TypeError> {
        let place = self.place(role, variable)?;
        let value = to.build(self.g)?;
        self.kept.values[place] = value;
        Ok(of(value))
    }

    fn place(&self, role: &'static str, variable: Option<usize>) -> Result<usize, TypeError> {
        let none = || TypeError::new(format!("the optimizer keeps no {role}")).of("optimizer");
        self.kept.places.find(role, variable).ok_or_else(none)
    }

    /// The learning rate.
    pub(super) fn rate(&self, dtype: DType) -> Formula {
        of(self.rate).cast(dtype)
    }

    /// The number of this update, from 1.
    pub(super) fn number(&self, dtype: DType) -> Formula {
        (of(self.count) + 1.0).cast(dtype)
    }

    /// The number of the update after this one.
    pub(super) fn number_after(&self, dtype: DType) -> Formula {
        (of(self.count) + 2.0).cast(dtype)
    }

    /// A number that Keras casts to a type before it computes with it. TensorFlow makes an f32 of it on the way, also
    /// where the type is f64.
    pub(super) fn constant(&mut self, dtype: DType, x: f64) -> Result<Formula, TypeError> {
        self.g.full(dtype, by_f32(x), &Shape::default()).map(of)
    }

    /// β^t with both in the type.
    pub(super) fn power(&mut self, dtype: DType, beta: f64) -> Result<Formula, TypeError> {
        let number = self.number(dtype);
        Ok(self.constant(dtype, beta)?.pow(number))
    }
}

/// Where accumulation stands: what is added up, and whether this step updates.
struct Accumulation {
    steps: usize,
    updates: Value,
}

impl Inner {
    /// Appends a step.
    pub(super) fn step(
        &self,
        g: &mut Graph,
        given: &Given<'_>,
        listed: &[Slot],
        constrain: Constrain<'_>,
    ) -> Result<Updated, TypeError> {
        let float = float(given.named);
        let places = Places::of(listed);
        let slot = |role, variable| places.find(role, variable).map(|place| given.slots[place]);
        let raw = slot("iteration", None).ok_or_else(|| TypeError::new("the counter is missing").of("optimizer"))?;
        let rate = match &self.rate {
            Rate::Constant(_) => {
                slot("learning_rate", None).ok_or_else(|| TypeError::new("the rate is missing").of("optimizer"))?
            }
            Rate::Schedule(schedule) => schedule.at(g, raw)?,
        };
        let accumulation = match self.common.gradient_accumulation_steps {
            Some(steps) => {
                let due = (of(raw) + 1.0).with(Binary::Mod, steps as f64).is(Compare::Eq, 0.0);
                Some(Accumulation { steps, updates: due.build(g)? })
            }
            None => None,
        };
        let count = match &accumulation {
            Some(a) => of(raw).with(Binary::FloorDiv, a.steps as f64).build(g)?,
            None => raw,
        };
        let kept = Kept { places, values: given.slots.to_vec() };
        let scheduled = matches!(self.rate, Rate::Schedule(_));
        let mut cx = Update { g, kept, rate, count, scheduled, float };
        let mut variables = self.update(&mut cx, given, accumulation.as_ref())?;
        self.average(&mut cx, &mut variables)?;
        for (i, variable) in variables.iter_mut().enumerate() {
            if given.gradients[i].is_some() {
                *variable = constrain(cx.g, i, *variable)?;
            }
        }
        cx.set("iteration", None, of(raw) + 1.0)?;
        Ok(Updated { variables, slots: cx.kept.values })
    }

    /// Variables after accumulation, clipping, decay and the update of the class.
    fn update(
        &self,
        cx: &mut Update<'_>,
        given: &Given<'_>,
        accumulation: Option<&Accumulation>,
    ) -> Result<Vec<Value>, TypeError> {
        let mut variables = given.variables.to_vec();
        let mut summed: Vec<(usize, Value)> = Vec::new();
        for (i, gradient) in given.gradients.iter().enumerate() {
            let Some(gradient) = gradient else { continue };
            let mut formula = of(*gradient).cast(given.named[i].1.dtype);
            if let Some(scale) = self.common.loss_scale_factor {
                formula = formula / scale;
            }
            if accumulation.is_some() {
                formula = formula + cx.slot("gradient_accumulator", Some(i))?;
            }
            summed.push((i, formula.build(cx.g)?));
        }
        let mut gradients = summed.clone();
        if let Some(a) = accumulation {
            for (_, gradient) in &mut gradients {
                *gradient = (of(*gradient) / a.steps as f64).build(cx.g)?;
            }
        }
        if let Some(kind) = &self.common.clip {
            clip(cx.g, kind, &mut gradients)?;
        }
        let before = cx.kept.values.clone();
        for (i, _) in &gradients {
            variables[*i] = self.decayed(cx, &given.named[*i], variables[*i])?;
        }
        self.rule.begin(cx)?;
        for (i, gradient) in &gradients {
            let (path, ty) = &given.named[*i];
            let squares = squares(cx.g, *gradient)?;
            let of = Of { index: *i, path, ty: ty.clone(), value: variables[*i], gradient: *gradient, squares };
            variables[*i] = self.rule.update(cx, &of)?.build(cx.g)?;
        }
        let Some(a) = accumulation else { return Ok(variables) };
        let updates = || of(a.updates);
        for (value, before) in variables.iter_mut().zip(given.variables).filter(|(value, before)| value != before) {
            *value = updates().choose(*value, *before).build(cx.g)?;
        }
        for (value, before) in cx.kept.values.iter_mut().zip(before).filter(|(value, before)| **value != *before) {
            *value = updates().choose(*value, before).build(cx.g)?;
        }
        // A variable without a gradient has an accumulator too, which stays 0.
        for (i, sum) in summed {
            cx.set("gradient_accumulator", Some(i), updates().choose(0.0, of(sum)))?;
        }
        Ok(variables)
    }

    fn decayed(&self, cx: &mut Update<'_>, named: &(String, Type), variable: Value) -> Result<Value, TypeError> {
        let (path, ty) = named;
        let Some(decay) = self.rule.decay(&self.common, path, ty) else { return Ok(variable) };
        let (w, decay, rate) = (of(variable), cx.constant(ty.dtype, decay)?, cx.rate(ty.dtype));
        (w.clone() - w * decay * rate).build(cx.g)
    }

    /// Averages of the variables, and variables that become their averages.
    fn average(&self, cx: &mut Update<'_>, variables: &mut [Value]) -> Result<(), TypeError> {
        let Some(ema) = &self.common.ema else { return Ok(()) };
        let overwrites = match ema.overwrite_frequency {
            Some(n) => {
                let due = (of(cx.count) + 1.0).with(Binary::Mod, n as f64).is(Compare::Eq, 0.0);
                Some(due.build(cx.g)?)
            }
            None => None,
        };
        for (i, variable) in variables.iter_mut().enumerate() {
            let dtype = cx.g.ty(*variable).dtype;
            let momentum = (of(cx.count).is(Compare::Ne, 0.0).cast(dtype) * ema.momentum).build(cx.g)?;
            let kept = of(momentum) * cx.slot("average", Some(i))?;
            let average = cx.set("average", Some(i), kept + (1.0 - of(momentum)) * of(*variable))?;
            if let Some(due) = overwrites {
                *variable = of(due).choose(average, of(*variable)).build(cx.g)?;
            }
        }
        Ok(())
    }
}
