//! Communication operations on CPU devices, over [`Links`].

use super::links::{LinkError, Links, Route};
use intwain_ir::ops::Op;
use intwain_ir::scalar::{self, Reduce, Scalar};
use intwain_ir::{DType, Shape, Type};

/// A tensor in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) ty: &'a Type,
    pub(crate) at: *mut u8,
}

/// The messages that a communication sends from `device`, with their sizes.
pub(crate) fn routes(op: &Op, device: usize, operand: Option<&Type>) -> Vec<(Route, usize)> {
    let to_all = |channel: usize, devices: usize, bytes: &dyn Fn(usize) -> usize| {
        let others = (0..devices).filter(|&d| d != device);
        others.map(|to| (Route { channel, from: device, to }, bytes(to))).collect::<Vec<_>>()
    };
    let Some(ty) = operand else { return Vec::new() };
    let part = |dim: usize, size: usize| ty.with_shape(ty.shape.with(dim, size)).bytes();
    match op {
        Op::Send(s) => vec![(Route { channel: s.channel, from: device, to: s.to }, ty.bytes())],
        Op::AllReduce(r) => to_all(r.channel, r.devices, &|_| ty.bytes()),
        Op::AllGather(g) => to_all(g.channel, g.sizes.len(), &|_| ty.bytes()),
        Op::ReduceScatter(r) => to_all(r.channel, r.sizes.len(), &|to| part(r.dim, r.sizes[to])),
        Op::AllToAll(a) => to_all(a.channel, a.to_sizes.len(), &|to| part(a.to, a.to_sizes[to])),
        _ => Vec::new(),
    }
}

/// Performs a communication: reads the operand, if there is one, and writes the result, if there is one.
///
/// # Safety
/// The views must point to memory of their types that no other thread touches meanwhile.
pub(crate) unsafe fn perform(
    op: &Op,
    device: usize,
    links: &Links,
    operand: Option<View<'_>>,
    result: Option<View<'_>>,
) -> Result<(), LinkError> {
    match (op, operand, result) {
        (Op::Send(s), Some(x), None) => {
            let route = Route { channel: s.channel, from: device, to: s.to };
            // SAFETY: the slot has room for the operand.
            links.send(route, |slot| unsafe { slot.copy_from_nonoverlapping(x.at, x.ty.bytes()) })
        }
        (Op::Recv(r), None, Some(y)) => {
            let route = Route { channel: r.channel, from: r.from, to: device };
            // SAFETY: the message has the result's type.
            links.receive(route, |slot| unsafe { y.at.copy_from_nonoverlapping(slot, y.ty.bytes()) })
        }
        (Op::AllReduce(r), Some(x), Some(y)) => {
            for route in others(r.channel, device, r.devices) {
                // SAFETY: as for Send.
                links.send(route, |slot| unsafe { slot.copy_from_nonoverlapping(x.at, x.ty.bytes()) })?;
            }
            // SAFETY: operand and result have one type; messages have it too.
            unsafe { combine_all(links, r.channel, r.function, device, r.devices, x, y) }
        }
        (Op::AllGather(g), Some(x), Some(y)) => {
            for route in others(g.channel, device, g.sizes.len()) {
                // SAFETY: as for Send.
                links.send(route, |slot| unsafe { slot.copy_from_nonoverlapping(x.at, x.ty.bytes()) })?;
            }
            // SAFETY: each part goes to its own positions of the result.
            unsafe { join(links, g.channel, device, g.dim, &g.sizes, x, y) }
        }
        (Op::ReduceScatter(r), Some(x), Some(y)) => {
            for route in others(r.channel, device, r.sizes.len()) {
                let part = Part::new(&x.ty.shape, r.dim, &r.sizes, route.to, x.ty.dtype);
                // SAFETY: the slot has room for the part.
                links.send(route, |slot| unsafe { part.read(x.at, slot) })?;
            }
            // The own part is copied to the result first; as the combination is commutative bit for bit for two
            // devices, and the order below is that of the devices, every device gets the same bits.
            let part = Part::new(&x.ty.shape, r.dim, &r.sizes, device, x.ty.dtype);
            // SAFETY: the part has the result's type.
            unsafe {
                part.read(x.at, y.at);
                combine_all(links, r.channel, r.function, device, r.sizes.len(), y, y)
            }
        }
        (Op::AllToAll(a), Some(x), Some(y)) => {
            for route in others(a.channel, device, a.to_sizes.len()) {
                let part = Part::new(&x.ty.shape, a.to, &a.to_sizes, route.to, x.ty.dtype);
                // SAFETY: the slot has room for the part.
                links.send(route, |slot| unsafe { part.read(x.at, slot) })?;
            }
            let mine = Part::new(&x.ty.shape, a.to, &a.to_sizes, device, x.ty.dtype);
            let into = Part::new(&y.ty.shape, a.from, &a.from_sizes, device, y.ty.dtype);
            // SAFETY: both walk rows of the same length over equal numbers of elements; see `Part::transfer`.
            unsafe { Part::transfer(&mine, x.at, &into, y.at) };
            for from in (0..a.from_sizes.len()).filter(|&d| d != device) {
                let part = Part::new(&y.ty.shape, a.from, &a.from_sizes, from, y.ty.dtype);
                let route = Route { channel: a.channel, from, to: device };
                // SAFETY: the message is that part of the result.
                links.receive(route, |slot| unsafe { part.write(slot, y.at) })?;
            }
            Ok(())
        }
        _ => unreachable!("the verifier checks operands and results of {}", op.name()),
    }
}

fn others(channel: usize, device: usize, devices: usize) -> impl Iterator<Item = Route> {
    (0..devices).filter(move |&d| d != device).map(move |to| Route { channel, from: device, to })
}

/// Combines the operands of all devices in device order.
///
/// # Safety
/// `x` and `y` have one type and are the same or do not overlap.
unsafe fn combine_all(
    links: &Links,
    channel: usize,
    function: Reduce,
    device: usize,
    devices: usize,
    x: View<'_>,
    y: View<'_>,
) -> Result<(), LinkError> {
    debug_assert!(devices <= 2, "more devices need the own operand kept until its turn");
    if x.at != y.at {
        // SAFETY: by the caller's promise.
        unsafe { y.at.copy_from_nonoverlapping(x.at, x.ty.bytes()) };
    }
    for from in (0..devices).filter(|&d| d != device) {
        let route = Route { channel, from, to: device };
        let order = if from < device { Side::Left } else { Side::Right };
        // SAFETY: the message has the result's type.
        links.receive(route, |slot| unsafe { combine(function, y.ty, slot, y.at, order) })?;
    }
    Ok(())
}

/// On which side of the accumulated value an operand stands.
#[derive(Clone, Copy)]
enum Side {
    Left,
    Right,
}

/// y = other ∘ y or y ∘ other, element by element.
///
/// # Safety
/// Both point to tensors of type `ty`.
unsafe fn combine(function: Reduce, ty: &Type, other: *const u8, y: *mut u8, side: Side) {
    let n = ty.shape.elements();
    if ty.dtype == DType::F32 && function == Reduce::Sum {
        // SAFETY: n elements of f32 each, aligned as all buffers and slots are.
        let (a, b) = unsafe {
            (std::slice::from_raw_parts(other.cast::<f32>(), n), std::slice::from_raw_parts_mut(y.cast::<f32>(), n))
        };
        // Addition of two is commutative bit for bit, up to the payload of NaN.
        b.iter_mut().zip(a).for_each(|(b, a)| *b += a);
        return;
    }
    let size = ty.dtype.size();
    for i in 0..n {
        // SAFETY: element i is within both tensors.
        let (a, b) = unsafe {
            (
                std::slice::from_raw_parts(other.add(i * size), size),
                std::slice::from_raw_parts_mut(y.add(i * size), size),
            )
        };
        let (a, old) = (Scalar::read(ty.dtype, a), Scalar::read(ty.dtype, b));
        let new = match side {
            Side::Left => scalar::binary(function.combine(), a, old),
            Side::Right => scalar::binary(function.combine(), old, a),
        };
        new.write(b);
    }
}

/// Puts the parts of all devices one after another.
///
/// # Safety
/// `x` is this device's part of `y` along `dim`.
unsafe fn join(
    links: &Links,
    channel: usize,
    device: usize,
    dim: usize,
    sizes: &[usize],
    x: View<'_>,
    y: View<'_>,
) -> Result<(), LinkError> {
    let part = |d: usize| Part::new(&y.ty.shape, dim, sizes, d, y.ty.dtype);
    // SAFETY: by the caller's promise.
    unsafe { part(device).write(x.at, y.at) };
    for from in (0..sizes.len()).filter(|&d| d != device) {
        let route = Route { channel, from, to: device };
        // SAFETY: the message is that device's part.
        links.receive(route, |slot| unsafe { part(from).write(slot, y.at) })?;
    }
    Ok(())
}

/// Consecutive positions of one dimension of a tensor, as equally spaced runs of bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    runs: usize,
    /// Bytes from run to run in the whole tensor.
    step: usize,
    /// Bytes before the first run.
    start: usize,
    /// Bytes of a run.
    len: usize,
}

impl Part {
    /// The part of device `device` when dimension `dim` of `shape` is divided into `sizes`.
    pub(crate) fn new(shape: &Shape, dim: usize, sizes: &[usize], device: usize, dtype: DType) -> Part {
        Part::range(shape, dim, sizes[..device].iter().sum(), sizes[device], dtype)
    }

    /// `size` positions from `start` of dimension `dim`.
    pub(crate) fn range(shape: &Shape, dim: usize, start: usize, size: usize, dtype: DType) -> Part {
        let inner = shape[dim + 1..].iter().product::<usize>() * dtype.size();
        let runs = shape[..dim].iter().product();
        Part { runs, step: shape[dim] * inner, start: start * inner, len: size * inner }
    }

    /// Its size.
    pub(crate) fn bytes(&self) -> usize {
        self.runs * self.len
    }

    /// Copies the part from the whole tensor to dense memory.
    ///
    /// # Safety
    /// `whole` is the tensor, `dense` has room for the part, and they do not overlap.
    pub(crate) unsafe fn read(&self, whole: *const u8, dense: *mut u8) {
        for r in 0..self.runs {
            // SAFETY: run r is within the tensor.
            unsafe {
                dense.add(r * self.len).copy_from_nonoverlapping(whole.add(self.start + r * self.step), self.len);
            }
        }
    }

    /// Copies the part from dense memory to the whole tensor.
    ///
    /// # Safety
    /// As for `read`.
    pub(crate) unsafe fn write(&self, dense: *const u8, whole: *mut u8) {
        for r in 0..self.runs {
            // SAFETY: run r is within the tensor.
            unsafe {
                whole.add(self.start + r * self.step).copy_from_nonoverlapping(dense.add(r * self.len), self.len);
            }
        }
    }

    /// Copies a part of one tensor to a part of another with as many elements in the same order.
    ///
    /// # Safety
    /// The pointers are the whole tensors; they do not overlap.
    unsafe fn transfer(from: &Part, x: *const u8, to: &Part, y: *mut u8) {
        let total = from.runs * from.len;
        debug_assert_eq!(total, to.runs * to.len);
        let mut at = 0;
        while at < total {
            let (a, b) = (at % from.len, at % to.len);
            let n = (from.len - a).min(to.len - b);
            // SAFETY: both spans are within one run of each part.
            unsafe {
                let source = x.add(from.start + at / from.len * from.step + a);
                y.add(to.start + at / to.len * to.step + b).copy_from_nonoverlapping(source, n);
            }
            at += n;
        }
    }
}
