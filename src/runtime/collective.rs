//! Communication operations on CPU devices, over [`Links`], in two halves: what a device sends, and what it makes of what
//! it receives.

use super::links::{LinkError, Links, Route};
use super::memory::ALIGNMENT;
use intwain_ir::ops::{Kept, Op};
use intwain_ir::scalar::{self, Reduce, Scalar};
use intwain_ir::{DType, Shape, Type};

/// A tensor in memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct View<'a> {
    pub(crate) ty: &'a Type,
    pub(crate) at: *mut u8,
}

/// The messages that a communication sends from `device`, with their sizes.
pub(crate) fn routes(op: &Op, device: usize, operands: &[&Type]) -> Vec<(Route, usize)> {
    let to_all = |channel: usize, devices: usize, bytes: &dyn Fn(usize) -> usize| {
        let others = (0..devices).filter(|&d| d != device);
        others.map(|to| (Route { channel, from: device, to }, bytes(to))).collect::<Vec<_>>()
    };
    let Some(ty) = operands.first() else { return Vec::new() };
    let part = |dim: usize, size: usize| ty.with_shape(ty.shape.with(dim, size)).bytes();
    match op {
        Op::Send(s) => vec![(Route { channel: s.channel, from: device, to: s.to }, ty.bytes())],
        Op::AllReduce(r) => to_all(r.channel, r.devices, &|_| ty.bytes()),
        Op::AllGather(g) => to_all(g.channel, g.sizes.len(), &|_| ty.bytes()),
        Op::ReduceScatter(r) => to_all(r.channel, r.sizes.len(), &|to| part(r.dim, r.sizes[to])),
        Op::AllToAll(a) => to_all(a.channel, a.to_sizes.len(), &|to| part(a.to, a.to_sizes[to])),
        Op::Bucket(b) => to_all(b.channel, b.devices, &|to| packed(&b.kept, operands, to).1),
        _ => Vec::new(),
    }
}

/// Where in a bucket's message to a device the part of each operand begins, and the message's size.
fn packed(kept: &[Kept], operands: &[&Type], to: usize) -> (Vec<usize>, usize) {
    let mut end = 0;
    let place = |(kept, ty): (&Kept, &&Type)| {
        let start = end;
        end += kept_part(kept, ty, to).bytes().next_multiple_of(ALIGNMENT);
        start
    };
    let starts = kept.iter().zip(operands).map(place).collect();
    (starts, end)
}

/// What a device keeps of a combination, as a part of it.
fn kept_part(kept: &Kept, ty: &Type, device: usize) -> Part {
    match kept {
        Kept::All => Part::whole(ty),
        Kept::Part { dim, sizes } => Part::new(&ty.shape, *dim, sizes, device, ty.dtype),
    }
}

/// The first half of a communication: gives the operands to the link, and writes what the results have of them. The
/// operands are not read any more, so a device can go on until it needs the results.
///
/// # Safety
/// The views must point to memory of their types that no other thread touches meanwhile.
pub(crate) unsafe fn post(
    op: &Op,
    device: usize,
    links: &Links,
    operands: &[View<'_>],
    results: &[View<'_>],
) -> Result<(), LinkError> {
    // SAFETY: slots have room for what is sent; results and operands do not overlap, by the program checker; parts go to
    // their own positions.
    unsafe {
        match (op, operands, results) {
            (Op::Send(s), [x], []) => {
                let route = Route { channel: s.channel, from: device, to: s.to };
                links.send(route, |slot| slot.copy_from_nonoverlapping(x.at, x.ty.bytes()))
            }
            (Op::Recv(_), [], [_]) => Ok(()),
            (Op::AllReduce(r), [x], [y]) => {
                for route in others(r.channel, device, r.devices) {
                    links.send(route, |slot| slot.copy_from_nonoverlapping(x.at, x.ty.bytes()))?;
                }
                y.at.copy_from_nonoverlapping(x.at, x.ty.bytes());
                Ok(())
            }
            (Op::AllGather(g), [x], [y]) => {
                for route in others(g.channel, device, g.sizes.len()) {
                    links.send(route, |slot| slot.copy_from_nonoverlapping(x.at, x.ty.bytes()))?;
                }
                Part::new(&y.ty.shape, g.dim, &g.sizes, device, y.ty.dtype).write(x.at, y.at);
                Ok(())
            }
            (Op::ReduceScatter(r), [x], [y]) => {
                let part = |of: usize| Part::new(&x.ty.shape, r.dim, &r.sizes, of, x.ty.dtype);
                for route in others(r.channel, device, r.sizes.len()) {
                    links.send(route, |slot| part(route.to).read(x.at, slot))?;
                }
                part(device).read(x.at, y.at);
                Ok(())
            }
            (Op::AllToAll(a), [x], [y]) => {
                let part = |of: usize| Part::new(&x.ty.shape, a.to, &a.to_sizes, of, x.ty.dtype);
                for route in others(a.channel, device, a.to_sizes.len()) {
                    links.send(route, |slot| part(route.to).read(x.at, slot))?;
                }
                let into = Part::new(&y.ty.shape, a.from, &a.from_sizes, device, y.ty.dtype);
                Part::transfer(&part(device), x.at, &into, y.at);
                Ok(())
            }
            (Op::Bucket(b), _, _) => {
                let types: Vec<&Type> = operands.iter().map(|x| x.ty).collect();
                for route in others(b.channel, device, b.devices) {
                    let (starts, _) = packed(&b.kept, &types, route.to);
                    links.send(route, |slot| {
                        for ((kept, x), start) in b.kept.iter().zip(operands).zip(&starts) {
                            kept_part(kept, x.ty, route.to).read(x.at, slot.add(*start));
                        }
                    })?;
                }
                for ((kept, x), y) in b.kept.iter().zip(operands).zip(results) {
                    kept_part(kept, x.ty, device).read(x.at, y.at);
                }
                Ok(())
            }
            _ => unreachable!("the verifier checks operands and results of {}", op.name()),
        }
    }
}

/// The second half: waits for what the others have sent, and makes the results of it.
///
/// # Safety
/// As for [`post`], which came before; nothing has touched the results since.
pub(crate) unsafe fn complete(op: &Op, device: usize, links: &Links, results: &[View<'_>]) -> Result<(), LinkError> {
    // SAFETY: messages have the types that the operation says; parts go to their own positions.
    unsafe {
        match (op, results) {
            (Op::Send(_), []) => Ok(()),
            (Op::Recv(r), [y]) => {
                let route = Route { channel: r.channel, from: r.from, to: device };
                links.receive(route, |slot| y.at.copy_from_nonoverlapping(slot, y.ty.bytes()))
            }
            (Op::AllReduce(r), [y]) => combine_all(links, (r.channel, r.function), device, r.devices, &[(*y, 0)]),
            (Op::ReduceScatter(r), [y]) => {
                combine_all(links, (r.channel, r.function), device, r.sizes.len(), &[(*y, 0)])
            }
            (Op::Bucket(b), _) => {
                let (mut members, mut at) = (Vec::with_capacity(results.len()), 0);
                for y in results {
                    members.push((*y, at));
                    at += y.ty.bytes().next_multiple_of(ALIGNMENT);
                }
                combine_all(links, (b.channel, b.function), device, b.devices, &members)
            }
            (Op::AllGather(g), [y]) => {
                let part = |of: usize| Part::new(&y.ty.shape, g.dim, &g.sizes, of, y.ty.dtype);
                receive_parts(links, g.channel, device, g.sizes.len(), &part, y.at)
            }
            (Op::AllToAll(a), [y]) => {
                let part = |of: usize| Part::new(&y.ty.shape, a.from, &a.from_sizes, of, y.ty.dtype);
                receive_parts(links, a.channel, device, a.from_sizes.len(), &part, y.at)
            }
            _ => unreachable!("the verifier checks operands and results of {}", op.name()),
        }
    }
}

fn others(channel: usize, device: usize, devices: usize) -> impl Iterator<Item = Route> {
    (0..devices).filter(move |&d| d != device).map(move |to| Route { channel, from: device, to })
}

/// Combines what results have of the own operands with what the others have sent of theirs, in device order: for each
/// result where in the message its part begins. As every combination of two is commutative bit for bit or made in the order
/// of the devices, all devices get the same bits.
///
/// # Safety
/// The results hold this device's own operands or parts of them.
unsafe fn combine_all(
    links: &Links,
    (channel, function): (usize, Reduce),
    device: usize,
    devices: usize,
    results: &[(View<'_>, usize)],
) -> Result<(), LinkError> {
    debug_assert!(devices <= 2, "more devices need the own operand kept until its turn");
    for from in (0..devices).filter(|&d| d != device) {
        let route = Route { channel, from, to: device };
        let order = if from < device { Side::Left } else { Side::Right };
        links.receive(route, |slot| {
            for (y, start) in results {
                // SAFETY: the message has a part of each result's type there.
                unsafe { combine(function, y.ty, slot.add(*start), y.at, order) };
            }
        })?;
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

/// Puts the parts that other devices have sent where they belong.
///
/// # Safety
/// `y` is a tensor with room for all parts.
unsafe fn receive_parts(
    links: &Links,
    channel: usize,
    device: usize,
    devices: usize,
    part: &dyn Fn(usize) -> Part,
    y: *mut u8,
) -> Result<(), LinkError> {
    for from in (0..devices).filter(|&d| d != device) {
        let route = Route { channel, from, to: device };
        // SAFETY: the message is that device's part.
        links.receive(route, |slot| unsafe { part(from).write(slot, y) })?;
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

    /// All of a tensor.
    fn whole(ty: &Type) -> Part {
        Part { runs: 1, step: 0, start: 0, len: ty.bytes() }
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
