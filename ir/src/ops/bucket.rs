//! `bucket`: several combinations in one message.

use super::prelude::*;
use super::{AllReduce, Op, ReduceScatter};
use crate::attr::{Attr, Attribute};

/// For each operand what [`AllReduce`] or [`ReduceScatter`] makes of it: the combination of the devices' operands, in
/// device order. One message each way carries all of them.
#[derive(Clone, Debug, PartialEq)]
pub struct Bucket {
    /// Number of the communication.
    pub channel: usize,
    /// How elements combine.
    pub function: scalar::Reduce,
    /// What a device keeps of each combination.
    pub kept: Vec<Kept>,
    /// This device.
    pub device: usize,
    /// Number of devices.
    pub devices: usize,
}

/// What a device keeps of a combination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kept {
    /// All of it.
    All,
    /// Its part along a dimension.
    Part {
        /// The dimension that is divided.
        dim: usize,
        /// Extent of every device's part.
        sizes: Vec<usize>,
    },
}

impl Attribute for Kept {
    const WANT: &'static str = "`all`, or a dimension and extents";

    fn to_attr(&self) -> Attr {
        match self {
            Kept::All => Attr::Word("all".into()),
            Kept::Part { dim, sizes } => Attr::List(vec![dim.to_attr(), sizes.to_attr()]),
        }
    }

    fn from_attr(attr: &Attr) -> Option<Kept> {
        match attr {
            Attr::Word(w) if w == "all" => Some(Kept::All),
            Attr::List(items) if items.len() == 2 => {
                Some(Kept::Part { dim: usize::from_attr(&items[0])?, sizes: Attribute::from_attr(&items[1])? })
            }
            Attr::Word(_) | Attr::List(_) | Attr::Text(_) | Attr::Graph(_) => None,
        }
    }
}

impl Bucket {
    /// The operation that makes one of the results alone.
    fn member(&self, kept: &Kept) -> Op {
        let Bucket { channel, function, device, devices, .. } = *self;
        match kept {
            Kept::All => AllReduce { channel, function, device, devices }.into(),
            Kept::Part { dim, sizes } => {
                ReduceScatter { channel, function, dim: *dim, sizes: sizes.clone(), device }.into()
            }
        }
    }
}

impl OpDef for Bucket {
    const NAME: &'static str = "bucket";
    attributes!(channel, function, kept, device, devices);

    fn infer(&self, args: &[&Type]) -> Result<Types, TypeError> {
        ensure(args.len() == self.kept.len() && !args.is_empty(), || {
            format!("{} operands for {} results", args.len(), self.kept.len())
        })?;
        let mut types = Types::new();
        for (kept, x) in self.kept.iter().zip(args) {
            if let Kept::Part { sizes, .. } = kept {
                ensure(sizes.len() == self.devices, || format!("parts {sizes:?} for {} devices", self.devices))?;
            }
            types.extend(self.member(kept).infer(&[x])?);
        }
        Ok(types)
    }

    fn body(&self, _: &[&Type], _: &[&Type]) -> Body {
        Body::Communication
    }

    fn grad(&self, _: &mut GradCx<'_>) -> Grads {
        Err(GradError::None(Self::NAME.into()))
    }

    fn members(&self, args: &[&Type], results: &[&Type]) -> Option<Vec<Messages>> {
        let each = self.kept.iter().zip(args.iter().zip(results));
        each.map(|(kept, (x, y))| self.member(kept).messages(&[x], &[y])).collect()
    }

    fn eval(&self, args: &[&Tensor], results: &[Type], exchange: &mut dyn Exchange) -> Result<Vec<Tensor>, EvalError> {
        let mut all = Vec::with_capacity(args.len());
        for ((kept, x), y) in self.kept.iter().zip(args).zip(results) {
            all.extend(self.member(kept).eval(&[x], std::slice::from_ref(y), exchange)?);
        }
        Ok(all)
    }
}
