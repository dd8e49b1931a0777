//! Optimizers: what they keep from step to step, and a step as part of a graph.
//!
//! ```text
//! Optimizer::read(&At) -> Result<Optimizer, ImportError>          a name ("adam") or what Keras 2 or 3 serialises
//! optimizer.config() -> Json                                     what Keras 3 serialises
//! optimizer.slots(&[(String, Type)]) -> Vec<Slot>                in the order in which Keras 3.15 saves them
//! optimizer.loss_scale(g, &slots) -> Result<Option<Value>, _>    what the loss is multiplied with before differentiation
//! optimizer.step(g, &Given { .. }, &mut |g, i, w| …) -> Result<Updated, _>
//! optimizer.finalize(&[(String, Type)]) -> Vec<Option<usize>>    per variable the slot that it becomes when training ends
//! optimizer.restore(&[(String, Type)], &Model) -> Result<Option<Vec<Tensor>>, _>    slots as the model's file has them
//! ```
//!
//! A step is made of ordinary operations on whole variables: slots are cut like the variables they are kept for, and the
//! exchange that a norm over a divided variable needs is the planner's. Nothing that changes is a literal: the counter is
//! an i64 scalar, the learning rate a scalar slot or a function of the counter.
//!
//! A class of optimizers is a file and a row of `classes`.

mod adadelta;
mod adafactor;
mod adagrad;
mod adam;
mod adamax;
mod classes;
mod clip;
mod formula;
mod ftrl;
mod keep;
mod lamb;
mod lion;
mod lookups;
mod loss_scale;
mod muon;
mod nadam;
mod read;
mod restore;
mod rmsprop;
mod schedule_free_adamw;
mod sgd;
mod step;

use std::sync::Arc;

use intwain_ir::ops::TypeError;
use intwain_ir::{DType, Graph, Shape, Tensor, Type, Value};

pub(crate) use formula::{Formula, number, of};
pub(crate) use lookups::each;
pub use restore::RestoreError;

use crate::frontend::Json;
use crate::train::schedule::{Rate, serialised};
use classes::{Class, Rule};
use keep::{Keep, float};
use loss_scale::LossScale;
use read::Common;

/// A tensor that an optimizer keeps from step to step.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    /// Keras's path: `adam/iteration`, `adam/learning_rate`, `adam/dense_kernel_momentum`.
    pub path: String,
    /// What it is: the last part of Keras's name for it, without the variable.
    pub role: &'static str,
    /// Its type.
    pub ty: Type,
    /// What it is before the first step.
    pub initial: Initial,
    /// The trainable variable that it is kept for, by position.
    pub variable: Option<usize>,
}

/// What a slot is before the first step.
#[derive(Clone, Debug, PartialEq)]
pub enum Initial {
    /// A value.
    Value(Tensor),
    /// All elements are this.
    Filled(f64),
    /// What the slot's variable is.
    Variable,
}

/// What a step is made from.
#[derive(Clone, Copy, Debug)]
pub struct Given<'a> {
    /// Paths and types of the trainable variables.
    pub named: &'a [(String, Type)],
    /// The variables before the step.
    pub variables: &'a [Value],
    /// The gradient of each; a variable without one is left as it is, as Keras does.
    pub gradients: &'a [Option<Value>],
    /// The slots before the step, in the order of [`Optimizer::slots`].
    pub slots: &'a [Value],
}

/// What an update gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Updated {
    /// The trainable variables after the step, in order.
    pub variables: Vec<Value>,
    /// The slots after the step, in order.
    pub slots: Vec<Value>,
}

/// An optimizer.
#[derive(Clone, Debug)]
pub struct Optimizer {
    inner: Inner,
    scale: Option<LossScale>,
}

/// An optimizer without a changing loss scale.
#[derive(Clone, Debug)]
struct Inner {
    class: &'static Class,
    name: String,
    rate: Rate,
    common: Common,
    rule: Arc<dyn Rule>,
}

impl Optimizer {
    /// Keras's class; that of the optimizer inside where the loss is scaled.
    pub fn class(&self) -> &'static str {
        self.inner.class.name
    }

    /// Its learning rate.
    pub fn rate(&self) -> &Rate {
        &self.inner.rate
    }

    /// What it keeps for trainable variables of these paths and types, in the order in which Keras saves it.
    ///
    /// Of a changing loss scale, Keras saves everything under `optimizer/vars`, and what is behind
    /// [`Optimizer::inner_from`] once more under `optimizer/inner_optimizer/vars`.
    pub fn slots(&self, variables: &[(String, Type)]) -> Vec<Slot> {
        let mut keep = Keep::new(variables);
        let float = float(variables);
        if let Some(scale) = &self.scale {
            scale.keep(&mut keep, float);
        }
        self.inner.keep(&mut keep, float, self.scale.as_ref().map(LossScale::name));
        keep.finish()
    }

    /// The first slot of the optimizer inside, where the loss is scaled by a changing number.
    pub fn inner_from(&self) -> Option<usize> {
        self.scale.as_ref().map(|_| loss_scale::OWN)
    }

    /// A scalar, to be cast to the loss's type, that the loss is multiplied with before it is differentiated.
    pub fn loss_scale(&self, g: &mut Graph, slots: &[Value]) -> Result<Option<Value>, TypeError> {
        match (&self.scale, self.inner.common.loss_scale_factor) {
            (Some(_), _) => Ok(slots.get(loss_scale::OWN - 1).copied()),
            (None, Some(factor)) => g.full(DType::F64, factor, &Shape::default()).map(Some),
            (None, None) => Ok(None),
        }
    }

    /// Appends a step. `constrain` applies the constraint of a variable, by position, where it has one.
    pub fn step(
        &self,
        g: &mut Graph,
        given: &Given<'_>,
        constrain: &mut dyn FnMut(&mut Graph, usize, Value) -> Result<Value, TypeError>,
    ) -> Result<Updated, TypeError> {
        let listed = self.slots(given.named);
        let n = given.named.len();
        if given.variables.len() != n || given.gradients.len() != n || given.slots.len() != listed.len() {
            let problem = format!(
                "{} variables, {} gradients and {} slots for {n} variables and {} slots",
                given.variables.len(),
                given.gradients.len(),
                given.slots.len(),
                listed.len()
            );
            return Err(TypeError::new(problem).of("optimizer"));
        }
        if given.gradients.iter().all(Option::is_none) {
            return Err(TypeError::new("no variable has a gradient").of("optimizer"));
        }
        match &self.scale {
            Some(scale) => scale.step(&self.inner, g, given, &listed, constrain),
            None => self.inner.step(g, given, &listed, constrain),
        }
    }

    /// What is to be done when training ends: for each variable, the slot whose value it takes.
    pub fn finalize(&self, variables: &[(String, Type)]) -> Vec<Option<usize>> {
        let slots = self.slots(variables);
        let average = |i| slots.iter().position(|slot| slot.role == "average" && slot.variable == Some(i));
        (0..variables.len()).map(average).collect()
    }

    /// What Keras 3 serialises.
    pub fn config(&self) -> Json {
        let mut config =
            vec![("name", Json::String(self.inner.name.clone())), ("learning_rate", self.inner.rate.config())];
        config.extend(self.inner.common.config());
        config.extend(self.inner.rule.config());
        let inner = serialised("keras.optimizers", self.inner.class.name, config);
        match &self.scale {
            Some(scale) => serialised("keras.optimizers", "LossScaleOptimizer", scale.config(inner)),
            None => inner,
        }
    }
}

impl Inner {
    /// Lists what it keeps; `outer` is the name of the optimizer around it.
    fn keep(&self, keep: &mut Keep<'_>, float: DType, outer: Option<&str>) {
        let scope = outer.map_or(self.name.clone(), |outer| format!("{outer}/{}", self.name));
        let zero = || Initial::Filled(0.0);
        keep.once(&self.name, "iteration", Type::new(DType::I64, Shape::default()), zero());
        if let Rate::Constant(rate) = self.rate {
            let initial = Initial::Value(Tensor::from_f64(float, Shape::default(), &[rate]));
            keep.once(&self.name, "learning_rate", Type::new(float, Shape::default()), initial);
        }
        if self.common.ema.is_some() {
            keep.each(&scope, &[("average", zero())]);
        }
        if self.common.gradient_accumulation_steps.is_some() {
            keep.each(&scope, &[("gradient_accumulator", zero())]);
        }
        self.rule.keep(&scope, keep);
    }
}
