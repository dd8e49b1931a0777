//! `all_gather`: the parts of all devices, on every device.

use super::prelude::*;

/// The devices' parts along `dim`, one after another, on every device.
#[derive(Clone, Debug, PartialEq)]
pub struct AllGather {
    /// Number of the communication.
    pub channel: usize,
    /// The dimension that is divided.
    pub dim: usize,
    /// Extent of every device's part.
    pub sizes: Vec<usize>,
    /// This device.
    pub device: usize,
}

impl OpDef for AllGather {
    const NAME: &'static str = "all_gather";
    attributes!(channel, dim, sizes, device);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        let fits = self.dim < x.rank() && self.sizes.get(self.device) == Some(&x.shape[self.dim]);
        let whole = total(&self.sizes).filter(|_| fits);
        let whole = whole.ok_or_else(|| TypeError::new(format!("part {x} of {:?} in dimension {}", self.sizes, self.dim)))?;
        Ok(smallvec![x.with_shape(x.shape.with(self.dim, whole))])
    }

    fn body(&self, _: &[&Type], _: &[&Type]) -> Body {
        Body::Communication
    }

    fn grad(&self, _: &mut GradCx<'_>) -> Grads {
        Err(GradError::None(Self::NAME.into()))
    }

    fn messages(&self, args: &[&Type], _: &[&Type]) -> Option<Messages> {
        let m = Messages::pair(self.channel, self.device, self.sizes.len())?;
        let theirs = args[0].with_shape(args[0].shape.with(self.dim, self.sizes[m.peer]));
        let own = Piece::copy(Messages::OWN, args[0]);
        let other = Piece::copy(Messages::MESSAGE, &theirs).placed(self.dim, &self.sizes, m.peer);
        let m = m.sending(own.clone()).receiving(theirs);
        Some(m.filling(own.placed(self.dim, &self.sizes, self.device)).filling(other))
    }

    fn eval(&self, args: &[&Tensor], _: &[Type], exchange: &mut dyn Exchange) -> Result<Vec<Tensor>, EvalError> {
        let x = args[0];
        let types: Vec<Type> = self.sizes.iter().map(|&s| x.ty.with_shape(x.ty.shape.with(self.dim, s))).collect();
        let parts = super::all_reduce::gather(x, self.channel, self.device, &types, exchange)?;
        Ok(vec![Tensor::join(&parts, self.dim)])
    }
}
