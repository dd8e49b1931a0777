//! `send`: a value given to another device.

use super::prelude::*;

/// Gives the operand to a device; has no result. Paired with the [`Recv`](super::Recv) of the same channel there.
#[derive(Clone, Debug, PartialEq)]
pub struct Send {
    /// Number of the communication.
    pub channel: usize,
    /// The receiving device.
    pub to: usize,
}

impl OpDef for Send {
    const NAME: &'static str = "send";
    attributes!(channel, to);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [_] = exactly(args)?;
        Ok(smallvec![])
    }

    fn body(&self, _: &[&Type], _: &[&Type]) -> Body {
        Body::Communication
    }

    fn grad(&self, _: &mut GradCx<'_>) -> Grads {
        Err(GradError::None(Self::NAME.into()))
    }

    fn messages(&self, args: &[&Type], _: &[&Type]) -> Option<Messages> {
        Some(Messages::to(self.channel, self.to, args[0]))
    }

    fn eval(&self, args: &[&Tensor], _: &[Type], exchange: &mut dyn Exchange) -> Result<Vec<Tensor>, EvalError> {
        exchange.send(self.channel, self.to, args[0])?;
        Ok(vec![])
    }
}
