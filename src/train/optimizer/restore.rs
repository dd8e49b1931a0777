//! Taking up a training where a file left it: an optimizer's slots from what Keras saved.

use intwain_ir::{Scalar, Tensor, Type};

use super::{Initial, Optimizer, Slot};
use crate::arrays::ArrayError;
use crate::frontend::Origin;
use crate::model::{Model, ModelError, to_tensor};

/// Why the state of an optimizer could not be taken from a file.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The file cannot be read.
    #[error(transparent)]
    Array(#[from] ArrayError),
    /// The model's weights cannot be read.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The file holds the state of another optimizer.
    #[error(
        "{file} does not hold the state of {class}: the {found} tensors of its optimizer are not those that {class} keeps \
         ({wanted}) for this model; train without the file's state, or with the optimizer it was saved with"
    )]
    Other {
        /// The file.
        file: String,
        /// The optimizer's class.
        class: &'static str,
        /// Tensors that are there.
        found: usize,
        /// Tensors that should be there.
        wanted: usize,
    },
    /// A weight that is stored in another form than it is computed with.
    #[error(
        "`{path}` is stored in another form than Keras 3 keeps it in, and so is what the optimizer keeps for it; train \
         without the file's state"
    )]
    Form {
        /// The weight.
        path: String,
    },
}

impl Optimizer {
    /// The slots, in order, as the file of the model's weights has them; none where it has no optimizer's state.
    /// `variables` are the model's trainable variables in order.
    pub fn restore(&self, variables: &[(String, Type)], model: &Model) -> Result<Option<Vec<Tensor>>, RestoreError> {
        let weights = model.weights();
        let Some(source) = weights.source() else { return Ok(None) };
        let slots = self.slots(variables);
        let Some(found) = weights.optimizer_tensors(self)? else {
            let Some(state) = model.optimizer()? else { return Ok(None) };
            // Compiled and never trained: a counter and a rate only.
            let rate = match &state.slots[..] {
                [] => Some(state.learning_rate),
                [one] => {
                    Some(to_tensor(&source.read(&one.key)?)).filter(|t| t.elements() == 1).map(|t| Some(t.to_f64()[0]))
                }
                _ => None,
            };
            if let Some(rate) = rate {
                return Ok(Some(self.begun(&slots, state.iterations, rate, variables, model)?));
            }
            let file = source.path().display().to_string();
            let found = state.slots.len() + usize::from(state.iterations.is_some());
            return Err(RestoreError::Other { file, class: self.class(), found, wanted: slots.len() });
        };
        for (i, spec) in weights.specs().iter().enumerate() {
            if weights.trainable(i) && matches!(weights.origin(i), Origin::Made { .. }) {
                return Err(RestoreError::Form { path: spec.path.clone() });
            }
        }
        let mut restored = Vec::new();
        for slot in &slots {
            let stored = found.iter().find(|f| f.role == slot.role && f.variable == slot.variable);
            restored.push(match (stored, &slot.initial, slot.variable) {
                (Some(found), _, _) => to_tensor(&source.read(&found.key)?).cast(slot.ty.dtype),
                (None, Initial::Value(value), _) => value.clone(),
                (None, Initial::Variable, Some(i)) => model.weight(&variables[i].0)?.cast(slot.ty.dtype),
                (None, Initial::Filled(x), _) => filled(&slot.ty, *x),
                (None, Initial::Variable, None) => filled(&slot.ty, 0.0),
            });
        }
        Ok(Some(restored))
    }
}

impl Optimizer {
    /// The slots where the file has a counter and a rate only: the model was compiled and never trained.
    fn begun(
        &self,
        slots: &[Slot],
        iterations: Option<i64>,
        rate: Option<f64>,
        variables: &[(String, Type)],
        model: &Model,
    ) -> Result<Vec<Tensor>, RestoreError> {
        let mut begun = Vec::new();
        for slot in slots {
            let stored = match slot.role {
                "iteration" => iterations.map(|n| n as f64),
                "learning_rate" => rate,
                _ => None,
            };
            begun.push(match (stored, &slot.initial, slot.variable) {
                (Some(x), _, _) => filled(&slot.ty, x),
                (None, Initial::Value(value), _) => value.clone(),
                (None, Initial::Filled(x), _) => filled(&slot.ty, *x),
                (None, Initial::Variable, Some(i)) => model.weight(&variables[i].0)?.cast(slot.ty.dtype),
                (None, Initial::Variable, None) => filled(&slot.ty, 0.0),
            });
        }
        Ok(begun)
    }
}

/// A tensor of one number.
fn filled(ty: &Type, x: f64) -> Tensor {
    Tensor::from_scalars(ty.clone(), &[Scalar::from_f64(ty.dtype, x)])
}
