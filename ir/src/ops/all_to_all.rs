//! `all_to_all`: from parts along one dimension to parts along another.

use super::prelude::*;

/// The value's part along `to` on every device, from parts along `from`.
#[derive(Clone, Debug, PartialEq)]
pub struct AllToAll {
    /// Number of the communication.
    pub channel: usize,
    /// The dimension divided before.
    pub from: usize,
    /// Extent of every device's part before.
    pub from_sizes: Vec<usize>,
    /// The dimension divided after.
    pub to: usize,
    /// Extent of every device's part after.
    pub to_sizes: Vec<usize>,
    /// This device.
    pub device: usize,
}

impl OpDef for AllToAll {
    const NAME: &'static str = "all_to_all";
    attributes!(channel, from, from_sizes, to, to_sizes, device);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        let fits = self.from < x.rank()
            && self.to < x.rank()
            && self.from_sizes.get(self.device) == Some(&x.shape[self.from])
            && self.to_sizes.len() == self.from_sizes.len()
            && self.from != self.to
            && total(&self.to_sizes) == Some(x.shape[self.to]);
        let whole = total(&self.from_sizes).filter(|_| fits);
        let problem = || TypeError::new(format!("part {x} of {:?} to {:?}", self.from_sizes, self.to_sizes));
        let shape = x.shape.with(self.from, whole.ok_or_else(problem)?);
        Ok(smallvec![x.with_shape(shape.with(self.to, self.to_sizes[self.device]))])
    }

    fn body(&self, _: &[&Type], _: &[&Type]) -> Body {
        Body::Communication
    }

    fn grad(&self, _: &mut GradCx<'_>) -> Grads {
        Err(GradError::None(Self::NAME.into()))
    }

    fn messages(&self, args: &[&Type], _: &[&Type]) -> Option<Messages> {
        let m = Messages::pair(self.channel, self.device, self.to_sizes.len())?;
        let part = |device: usize| Piece::part(args[0], self.to, &self.to_sizes, device);
        let mine = part(self.device);
        let arriving = mine.ty.with_shape(mine.ty.shape.with(self.from, self.from_sizes[m.peer]));
        let other = Piece::copy(Messages::MESSAGE, &arriving).placed(self.from, &self.from_sizes, m.peer);
        let sent = part(m.peer);
        let m = m.sending(sent).receiving(arriving);
        Some(m.filling(mine.placed(self.from, &self.from_sizes, self.device)).filling(other))
    }

    fn eval(&self, args: &[&Tensor], _: &[Type], exchange: &mut dyn Exchange) -> Result<Vec<Tensor>, EvalError> {
        let layout = Layout::split(self.to, self.to_sizes.iter().copied());
        for to in (0..self.to_sizes.len()).filter(|&d| d != self.device) {
            exchange.send(self.channel, to, &args[0].part(&layout, to))?;
        }
        let mine = args[0].part(&layout, self.device);
        let parts: Result<Vec<Tensor>, EvalError> = (0..self.from_sizes.len())
            .map(|from| {
                let ty = mine.ty.with_shape(mine.ty.shape.with(self.from, self.from_sizes[from]));
                if from == self.device { Ok(mine.clone()) } else { exchange.recv(self.channel, from, &ty) }
            })
            .collect();
        Ok(vec![Tensor::join(&parts?, self.from)])
    }
}
