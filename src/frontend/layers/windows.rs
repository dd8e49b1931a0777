//! Sliding windows: sizes, strides and padding of convolution and pooling, and the two data formats.

use intwain_ir::Value;

use super::cx::{Cx, Out, misfit};
use crate::frontend::cursor::{At, Fields};
use crate::frontend::error::ImportError;
use crate::frontend::weights::Channels;

/// Where the channels are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// Behind the spatial dimensions.
    Last,
    /// In front of them.
    First,
}

impl Format {
    /// Reads `data_format`.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Format, ImportError> {
        Ok(match fields.choice("data_format", &["channels_last", "channels_first"])? {
            0 => Format::Last,
            _ => Format::First,
        })
    }

    /// The same for what is known of a layer's variables.
    pub(super) fn channels(self) -> Channels {
        match self {
            Format::Last => Channels::Last,
            Format::First => Channels::First,
        }
    }

    /// The tensor with its channels last.
    pub(super) fn to_last(self, cx: &mut Cx, x: Value) -> Out<Value> {
        let rank = cx.rank(x);
        match self {
            Format::First if rank > 2 => {
                let perm: Vec<usize> = [0].into_iter().chain(2..rank).chain([1]).collect();
                Ok(cx.g.transpose(x, &perm)?)
            }
            Format::First | Format::Last => Ok(x),
        }
    }

    /// A channels-last tensor in this format.
    pub(super) fn of_last(self, cx: &mut Cx, x: Value) -> Out<Value> {
        let rank = cx.rank(x);
        match self {
            Format::First if rank > 2 => {
                let perm: Vec<usize> = [0, rank - 1].into_iter().chain(1..rank - 1).collect();
                Ok(cx.g.transpose(x, &perm)?)
            }
            Format::First | Format::Last => Ok(x),
        }
    }
}

/// How windows meet the border.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Padding {
    Valid,
    Same,
    Causal,
}

impl Padding {
    /// Reads `padding` where it is `valid` or `same`.
    pub(super) fn read(fields: &Fields<'_>) -> Result<Padding, ImportError> {
        Ok([Padding::Valid, Padding::Same][fields.choice("padding", &["valid", "same"])?])
    }

    /// Reads `padding` where it may be `causal` too.
    pub(super) fn read_causal(fields: &Fields<'_>) -> Result<Padding, ImportError> {
        Ok([Padding::Valid, Padding::Same, Padding::Causal][fields.choice("padding", &["valid", "same", "causal"])?])
    }
}

/// Windows of one operation, per spatial dimension.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    pub(super) size: Vec<usize>,
    pub(super) stride: Vec<usize>,
    pub(super) dilation: Vec<usize>,
    pub(super) padding: Padding,
}

impl Windows {
    /// Elements added before and after each spatial dimension of an input of these extents.
    pub(super) fn pads(&self, spatial: &[usize]) -> Out<Vec<(i64, i64)>> {
        let mut pads = Vec::new();
        for (d, &n) in spatial.iter().enumerate() {
            let reach = (self.size[d] - 1) * self.dilation[d] + 1;
            pads.push(match self.padding {
                Padding::Same => {
                    let out = n.div_ceil(self.stride[d]);
                    let total = (out.saturating_sub(1) * self.stride[d] + reach).saturating_sub(n) as i64;
                    (total / 2, total - total / 2)
                }
                Padding::Causal => (reach as i64 - 1, 0),
                Padding::Valid if n < reach => {
                    return Err(misfit(format!(
                        "a window of {reach} does not fit into {n} elements of dimension {}",
                        d + 1
                    )));
                }
                Padding::Valid => (0, 0),
            });
        }
        Ok(pads)
    }
}

/// `n` integers of at least 1: a list, or one for all.
pub(super) fn sizes(at: &At<'_>, n: usize) -> Result<Vec<usize>, ImportError> {
    if at.json.as_array().is_none() {
        return Ok(vec![at.positive()?; n]);
    }
    let items = at.array()?.iter().map(At::positive).collect::<Result<Vec<_>, _>>()?;
    match items.len() {
        1 => Ok(vec![items[0]; n]),
        len if len == n => Ok(items),
        _ => Err(at.expected("as many sizes as there are spatial dimensions")),
    }
}

/// [`sizes`] of a key, with a default.
pub(super) fn sizes_or(fields: &Fields<'_>, key: &str, n: usize, default: usize) -> Result<Vec<usize>, ImportError> {
    fields.opt(key).map_or(Ok(vec![default; n]), |at| sizes(&at, n))
}
