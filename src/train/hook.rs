//! A function of the library's user between the gradients and the optimizer.

use super::step::StepError;
use intwain_ir::ops::TypeError;
use intwain_ir::{Graph, Value};
use std::sync::Arc;

/// The gradient of the loss of the whole batch by one variable, before it is clipped, decayed or accumulated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gradient<'a> {
    /// The variable's path.
    pub path: &'a str,
    /// The variable before the step.
    pub variable: Value,
    /// Its gradient, of the same type; that of the loss itself, whatever a loss scale multiplies it by.
    pub value: Value,
}

type Function = dyn Fn(&mut Graph, &[Gradient<'_>]) -> Result<Vec<Value>, TypeError> + Send + Sync;

/// What becomes of the gradients: a function that appends operations to the step and gives a value for each gradient, in order.
///
/// It runs once for every program that is compiled, not once a step: what it appends is split, fused and compiled with the rest, for
/// every device. So what changes from step to step has to be in the graph.
///
/// ```
/// use intwain::train::hook::WithGradients;
/// use intwain_ir::scalar::Reduce;
///
/// // Gradient centralisation: the mean of each kernel's gradient over its inputs becomes zero (Yong et al. 2020).
/// let centred = WithGradients::new(|g, gradients| {
///     let centre = |g: &mut intwain_ir::Graph, x| {
///         let shape = g.shape(x).clone();
///         if shape.len() < 2 {
///             return Ok(x);
///         }
///         let dims: Vec<usize> = (0..shape.len() - 1).collect();
///         let sum = g.reduce(Reduce::Sum, x, &dims)?;
///         let count: usize = dims.iter().map(|&d| shape[d]).product();
///         let count = g.full(g.ty(x).dtype, count as f64, &g.shape(sum).clone())?;
///         let mean = g.div(sum, count)?;
///         let mean = g.broadcast_to(mean, &shape)?;
///         g.sub(x, mean)
///     };
///     gradients.iter().map(|of| centre(g, of.value)).collect()
/// });
/// ```
#[derive(Clone)]
pub struct WithGradients(Arc<Function>);

impl WithGradients {
    /// What this function makes of the gradients.
    pub fn new(
        function: impl Fn(&mut Graph, &[Gradient<'_>]) -> Result<Vec<Value>, TypeError> + Send + Sync + 'static,
    ) -> WithGradients {
        WithGradients(Arc::new(function))
    }

    /// Applies it.
    ///
    /// # Errors
    /// Where there is not one value for each gradient, or one has another type than its gradient.
    pub(super) fn apply(&self, g: &mut Graph, gradients: &[Gradient<'_>]) -> Result<Vec<Value>, StepError> {
        let hook = |variable: &str, problem: TypeError| StepError::Hook { variable: variable.to_string(), problem };
        let changed = (self.0)(g, gradients).map_err(|problem| hook("all", problem))?;
        if changed.len() != gradients.len() {
            let problem = format!("{} values for {} gradients", changed.len(), gradients.len());
            return Err(hook("all", TypeError::new(problem)));
        }
        for (of, value) in gradients.iter().zip(&changed) {
            let (is, was) = (g.ty(*value), g.ty(of.value));
            if is != was {
                return Err(hook(of.path, TypeError::new(format!("{is} in the place of {was}"))));
            }
        }
        Ok(changed)
    }
}

impl std::fmt::Debug for WithGradients {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("WithGradients(..)")
    }
}
