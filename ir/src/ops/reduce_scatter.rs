//! `reduce_scatter`: each device's part of the combination.

use super::prelude::*;

/// This device's part along `dim` of the combination of the devices' operands, combined in device order.
#[derive(Clone, Debug, PartialEq)]
pub struct ReduceScatter {
    /// Number of the communication.
    pub channel: usize,
    /// How elements combine.
    pub function: scalar::Reduce,
    /// The dimension that is divided.
    pub dim: usize,
    /// Extent of every device's part.
    pub sizes: Vec<usize>,
    /// This device.
    pub device: usize,
}

impl OpDef for ReduceScatter {
    const NAME: &'static str = "reduce_scatter";
    attributes!(channel, function, dim, sizes, device);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        let fits = self.dim < x.rank() && total(&self.sizes) == Some(x.shape[self.dim]);
        ensure(fits && self.device < self.sizes.len(), || {
            format!("parts {:?} of dimension {} of {x}", self.sizes, self.dim)
        })?;
        Ok(smallvec![x.with_shape(x.shape.with(self.dim, self.sizes[self.device]))])
    }

    fn body(&self, _: &[&Type], _: &[&Type]) -> Body {
        Body::Communication
    }

    fn grad(&self, _: &mut GradCx<'_>) -> Grads {
        Err(GradError::None(Self::NAME.into()))
    }

    fn messages(&self, args: &[&Type], results: &[&Type]) -> Option<Messages> {
        let m = Messages::pair(self.channel, self.device, self.sizes.len())?;
        let combined = Piece::combined(self.function, args[0], Some((self.dim, &self.sizes)), self.device);
        let theirs = Piece::part(args[0], self.dim, &self.sizes, m.peer);
        Some(m.sending(theirs).receiving(results[0].clone()).filling(combined))
    }

    fn eval(&self, args: &[&Tensor], _: &[Type], exchange: &mut dyn Exchange) -> Result<Vec<Tensor>, EvalError> {
        let layout = Layout::split(self.dim, self.sizes.iter().copied());
        let part = |to: usize| args[0].part(&layout, to);
        for to in (0..self.sizes.len()).filter(|&d| d != self.device) {
            exchange.send(self.channel, to, &part(to))?;
        }
        let mine = part(self.device);
        let parts: Result<Vec<Tensor>, EvalError> = (0..self.sizes.len())
            .map(|from| {
                if from == self.device { Ok(mine.clone()) } else { exchange.recv(self.channel, from, &mine.ty) }
            })
            .collect();
        Ok(vec![super::all_reduce::combine(self.function, &parts?)])
    }
}
