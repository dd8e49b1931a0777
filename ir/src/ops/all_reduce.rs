//! `all_reduce`: combination of what the devices hold.

use super::prelude::*;

/// The combination of the devices' operands, in device order, on every device.
#[derive(Clone, Debug, PartialEq)]
pub struct AllReduce {
    /// Number of the communication.
    pub channel: usize,
    /// How elements combine.
    pub function: scalar::Reduce,
    /// This device.
    pub device: usize,
    /// Number of devices.
    pub devices: usize,
}

/// Combines tensors of one type in order.
pub(super) fn combine(function: scalar::Reduce, parts: &[Tensor]) -> Tensor {
    let mut total = parts[0].clone();
    for part in &parts[1..] {
        for i in 0..total.elements() {
            total.set(i, scalar::binary(function.combine(), total.get(i), part.get(i)));
        }
    }
    total
}

/// Every device's operand, in device order.
pub(super) fn gather(
    mine: &Tensor,
    channel: usize,
    device: usize,
    types: &[Type],
    exchange: &mut dyn Exchange,
) -> Result<Vec<Tensor>, EvalError> {
    for to in (0..types.len()).filter(|&d| d != device) {
        exchange.send(channel, to, mine)?;
    }
    (0..types.len())
        .map(|from| if from == device { Ok(mine.clone()) } else { exchange.recv(channel, from, &types[from]) })
        .collect()
}

impl OpDef for AllReduce {
    const NAME: &'static str = "all_reduce";
    attributes!(channel, function, device, devices);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        let [x] = exactly(args)?;
        ensure(self.device < self.devices, || format!("device {} of {}", self.device, self.devices))?;
        Ok(smallvec![x.clone()])
    }

    fn body(&self, _: &[&Type], _: &[&Type]) -> Body {
        Body::Communication
    }

    fn grad(&self, _: &mut GradCx<'_>) -> Grads {
        Err(GradError::None(Self::NAME.into()))
    }

    fn messages(&self, args: &[&Type], _: &[&Type]) -> Option<Messages> {
        let m = Messages::pair(self.channel, self.device, self.devices)?;
        let combined = Piece::combined(self.function, args[0], None, self.device);
        Some(m.sending(Piece::copy(Messages::OWN, args[0])).receiving(args[0].clone()).filling(combined))
    }

    fn eval(&self, args: &[&Tensor], _: &[Type], exchange: &mut dyn Exchange) -> Result<Vec<Tensor>, EvalError> {
        let types = vec![args[0].ty.clone(); self.devices];
        let parts = gather(args[0], self.channel, self.device, &types, exchange)?;
        Ok(vec![combine(self.function, &parts)])
    }
}
