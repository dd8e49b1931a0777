//! `recv`: a value from another device.

use super::prelude::*;

/// The value that a device gave with the [`Send`](super::Send) of the same channel.
#[derive(Clone, Debug, PartialEq)]
pub struct Recv {
    /// Number of the communication.
    pub channel: usize,
    /// The sending device.
    pub from: usize,
    /// The value's type.
    pub ty: Type,
}

impl OpDef for Recv {
    const NAME: &'static str = "recv";
    attributes!(channel, from, ty);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [] = exactly(args)?;
        Ok(smallvec![self.ty.clone()])
    }

    fn body(&self, _: &[&Type], _: &[&Type]) -> Body {
        Body::Communication
    }

    fn grad(&self, _: &mut GradCx<'_>) -> Grads {
        Err(GradError::None(Self::NAME.into()))
    }

    fn messages(&self, _: &[&Type], results: &[&Type]) -> Option<Messages> {
        Some(Messages::from(self.channel, self.from, results[0]))
    }

    fn eval(&self, _: &[&Tensor], _: &[Type], exchange: &mut dyn Exchange) -> Result<Vec<Tensor>, EvalError> {
        Ok(vec![exchange.recv(self.channel, self.from, &self.ty)?])
    }
}
