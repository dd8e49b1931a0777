//! A change of layout as one device's operations.

use intwain_ir::ops::{AllGather, AllReduce, AllToAll, Concat, Kept, Pad, Recv, ReduceScatter, Send, TypeError};
use intwain_ir::scalar::Reduce;
use intwain_ir::shard::Sizes;
use intwain_ir::{Graph, Layout, Type, Value};

/// What a device knows when it changes the layout of a value.
#[derive(Debug)]
pub(super) struct Conversion<'a> {
    /// The whole value's type.
    pub(super) ty: &'a Type,
    pub(super) devices: usize,
    pub(super) device: usize,
    /// The conversion's number in the whole graph.
    pub(super) channel: usize,
    /// The device's part before, where it has one.
    pub(super) here: Option<Value>,
}

/// Why a conversion cannot be built.
#[derive(Debug)]
pub(super) enum Failure {
    /// The layouts do not mean the same value.
    Meaningless,
    /// The device has no part of the value where it needs one.
    Missing,
    /// An operation does not accept its operands.
    Operation(TypeError),
}

impl From<TypeError> for Failure {
    fn from(error: TypeError) -> Failure {
        Failure::Operation(error)
    }
}

/// The local number of a collective.
pub(super) fn collective(channel: usize, devices: usize) -> usize {
    channel * devices * devices
}

/// How a partial value is combined, and what devices keep of the combination; `None` for other changes of layout.
pub(super) fn kept(from: &Layout, to: &Layout) -> Option<(Reduce, Kept)> {
    match (from, to) {
        (Layout::Partial(function), Layout::Replicated) => Some((*function, Kept::All)),
        (Layout::Partial(function), Layout::Split { dim, sizes }) => {
            Some((*function, Kept::Part { dim: *dim, sizes: sizes.to_vec() }))
        }
        (Layout::Partial(_), Layout::Partial(_) | Layout::On(_))
        | (Layout::Replicated | Layout::Split { .. } | Layout::On(_), _) => None,
    }
}

type Built = Result<Option<Value>, Failure>;

impl Conversion<'_> {
    /// Appends the operations and gives the device's part after, where it has one.
    pub(super) fn build(&self, g: &mut Graph, from: &Layout, to: &Layout) -> Built {
        use Layout::{On, Partial, Replicated, Split};
        match (from, to) {
            _ if from == to => Ok(self.here),
            (Replicated, Replicated) => Ok(self.here),
            (Replicated, Split { dim, .. }) => self.keep(g, to, *dim),
            (Replicated, On(k)) => Ok(self.here.filter(|_| *k == self.device)),
            (Replicated, Partial(op)) => self.one_keeps(g, *op, 0),
            (Split { dim, sizes }, Replicated) => self.gather(g, *dim, sizes),
            (Split { dim: a, sizes: x }, Split { dim: b, sizes: y }) if a != b => self.exchange(g, (*a, x), (*b, y)),
            (Split { dim, sizes }, Split { .. }) => self.shift(g, *dim, sizes, to),
            (Split { dim, sizes }, On(k)) => self.collect(g, *dim, sizes, *k),
            (Split { dim, .. }, Partial(op)) => self.pad(g, from, *dim, *op),
            (Partial(function), Replicated) => self.reduce(g, *function),
            (Partial(function), Split { dim, sizes }) => self.reduce_scatter(g, *function, *dim, sizes),
            (Partial(function), On(k)) => self.combine_on(g, *function, *k),
            (Partial(_), Partial(_)) => Err(Failure::Meaningless),
            (On(k), Replicated) => self.broadcast(g, *k),
            (On(k), On(j)) => self.hand_over(g, *k, *j),
            (On(k), Split { .. }) => self.scatter(g, *k, to),
            (On(k), Partial(op)) => self.one_keeps(g, *op, *k),
        }
    }

    fn part(&self) -> Result<Value, Failure> {
        self.here.ok_or(Failure::Missing)
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let device = self.device;
        (0..self.devices).filter(move |&k| k != device)
    }

    /// The local number of a collective.
    fn collective(&self) -> usize {
        collective(self.channel, self.devices)
    }

    /// The local number of what one device sends to another. Device 0 sends nothing to itself, so no pair has the
    /// collective's number.
    fn pair(&self, from: usize, to: usize) -> usize {
        self.collective() + from * self.devices + to
    }

    fn send(&self, g: &mut Graph, value: Value, to: usize) -> Result<(), Failure> {
        g.push_all(Send { channel: self.pair(self.device, to), to }, &[value])?;
        Ok(())
    }

    fn recv(&self, g: &mut Graph, ty: Type, from: usize) -> Result<Value, Failure> {
        Ok(g.push(Recv { channel: self.pair(from, self.device), from, ty }, &[])?)
    }

    fn slice(&self, g: &mut Graph, whole: Value, layout: &Layout, dim: usize, device: usize) -> Result<Value, Failure> {
        Ok(g.slice_dim(whole, dim, layout.region(&self.ty.shape, dim, device))?)
    }

    fn keep(&self, g: &mut Graph, to: &Layout, dim: usize) -> Built {
        self.slice(g, self.part()?, to, dim, self.device).map(Some)
    }

    /// Device `k` keeps the value, the others take what changes nothing when combined.
    fn one_keeps(&self, g: &mut Graph, op: Reduce, k: usize) -> Built {
        if self.device == k {
            return self.part().map(Some);
        }
        let elements = vec![op.identity(self.ty.dtype)];
        let shape = self.ty.shape.clone();
        Ok(Some(g.push(intwain_ir::ops::Constant { shape, elements }, &[])?))
    }

    fn gather(&self, g: &mut Graph, dim: usize, sizes: &Sizes) -> Built {
        let op = AllGather { channel: self.collective(), dim, sizes: sizes.to_vec(), device: self.device };
        Ok(Some(g.push(op, &[self.part()?])?))
    }

    fn exchange(&self, g: &mut Graph, (from, a): (usize, &Sizes), (to, b): (usize, &Sizes)) -> Built {
        let op = AllToAll {
            channel: self.collective(),
            from,
            from_sizes: a.to_vec(),
            to,
            to_sizes: b.to_vec(),
            device: self.device,
        };
        Ok(Some(g.push(op, &[self.part()?])?))
    }

    /// Other sizes along the same dimension: neighbours would do, but this is rare, so everybody gets everything first.
    fn shift(&self, g: &mut Graph, dim: usize, sizes: &Sizes, to: &Layout) -> Built {
        let Some(whole) = self.gather(g, dim, sizes)? else { return Err(Failure::Missing) };
        self.slice(g, whole, to, dim, self.device).map(Some)
    }

    fn collect(&self, g: &mut Graph, dim: usize, sizes: &Sizes, k: usize) -> Built {
        if self.device != k {
            self.send(g, self.part()?, k)?;
            return Ok(None);
        }
        let mut parts = Vec::with_capacity(self.devices);
        for from in 0..self.devices {
            let ty = self.ty.with_shape(self.ty.shape.with(dim, sizes[from]));
            parts.push(if from == k { self.part()? } else { self.recv(g, ty, from)? });
        }
        Ok(Some(g.push(Concat { dim }, &parts)?))
    }

    /// The part, with what changes nothing around it.
    fn pad(&self, g: &mut Graph, from: &Layout, dim: usize, op: Reduce) -> Built {
        let region = from.region(&self.ty.shape, dim, self.device);
        let rank = self.ty.rank();
        let (mut low, mut high) = (vec![0; rank], vec![0; rank]);
        (low[dim], high[dim]) = (region.start as i64, (self.ty.shape[dim] - region.end) as i64);
        let value = vec![op.identity(self.ty.dtype)];
        Ok(Some(g.push(Pad { low, high, interior: vec![0; rank], value }, &[self.part()?])?))
    }

    fn reduce(&self, g: &mut Graph, function: Reduce) -> Built {
        let op = AllReduce { channel: self.collective(), function, device: self.device, devices: self.devices };
        Ok(Some(g.push(op, &[self.part()?])?))
    }

    fn reduce_scatter(&self, g: &mut Graph, function: Reduce, dim: usize, sizes: &Sizes) -> Built {
        let channel = self.collective();
        let op = ReduceScatter { channel, function, dim, sizes: sizes.to_vec(), device: self.device };
        Ok(Some(g.push(op, &[self.part()?])?))
    }

    /// Combines on device `k`, in device order.
    fn combine_on(&self, g: &mut Graph, function: Reduce, k: usize) -> Built {
        if self.device != k {
            self.send(g, self.part()?, k)?;
            return Ok(None);
        }
        let mut total = None;
        for from in 0..self.devices {
            let part = if from == k { self.part()? } else { self.recv(g, self.ty.clone(), from)? };
            total = Some(match total {
                Some(sum) => g.binary(function.combine(), sum, part)?,
                None => part,
            });
        }
        Ok(total)
    }

    fn broadcast(&self, g: &mut Graph, k: usize) -> Built {
        if self.device != k {
            return self.recv(g, self.ty.clone(), k).map(Some);
        }
        let value = self.part()?;
        for to in self.others() {
            self.send(g, value, to)?;
        }
        Ok(Some(value))
    }

    fn hand_over(&self, g: &mut Graph, from: usize, to: usize) -> Built {
        if self.device == from {
            self.send(g, self.part()?, to)?;
            return Ok(None);
        }
        if self.device == to { self.recv(g, self.ty.clone(), from).map(Some) } else { Ok(None) }
    }

    fn scatter(&self, g: &mut Graph, k: usize, to: &Layout) -> Built {
        let Layout::Split { dim, .. } = to else { return Err(Failure::Meaningless) };
        if self.device != k {
            let ty = to.local_type(self.ty, self.device).ok_or(Failure::Missing)?;
            return self.recv(g, ty, k).map(Some);
        }
        let value = self.part()?;
        for other in self.others() {
            let part = self.slice(g, value, to, *dim, other)?;
            self.send(g, part, other)?;
        }
        self.slice(g, value, to, *dim, k).map(Some)
    }
}
