//! `reshard`: a change of layout, before the graph is divided.

use super::prelude::*;

/// The same value in another layout; the layouts are those of the operand and the result. Partitioning turns it into
/// slices, sends and collectives. Several partial values are combined by one message.
#[derive(Clone, Debug, PartialEq)]
pub struct Reshard {
    /// Number of the communication, unique in the graph and equal on all devices.
    pub channel: usize,
}

impl OpDef for Reshard {
    const NAME: &'static str = "reshard";
    attributes!(channel);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        ensure(!args.is_empty(), || "takes an operand at least".to_string())?;
        Ok(args.iter().map(|x| (*x).clone()).collect())
    }

    fn body(&self, _: &[&Type], _: &[&Type]) -> Body {
        Body::Communication
    }

    fn grad(&self, _: &mut GradCx<'_>) -> Grads {
        Err(GradError::None(Self::NAME.into()))
    }

    fn eval(&self, args: &[&Tensor], _: &[Type], _: &mut dyn Exchange) -> Result<Vec<Tensor>, EvalError> {
        Ok(args.iter().map(|x| (*x).clone()).collect())
    }
}
