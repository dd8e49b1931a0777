//! Runs programs on devices: memory, threads, messages between devices, and calls.
//!
//! A `Variant` is a program for one number of rows, on one or two devices. Each device runs the calls of a request
//! one after another, driven by a thread of its own; nothing but messages makes a device wait for the other, so calls of a
//! pipeline overlap.

mod collective;
mod cpu;
mod device;
mod devices;
mod engine;
mod gpu;
mod links;
mod memory;
mod pool;
mod team;
#[cfg(test)]
mod tests;

pub use device::{DeviceError, LoadError};
pub use devices::{DeviceKind, Devices, DevicesError};
pub use engine::{Effects, HostOptions, OpenError};
pub use gpu::DriverError;
pub use links::LinkError;
pub use memory::OutOfMemory;

pub(crate) use engine::Engines;
pub(crate) use pool::{Pool, WeightReader};

use crate::driver::{Loadable, Port};
use collective::Part;
use device::Device;
use gpu::Driver;
use intwain_ir::{Layout, ParamKind, Tensor, Type};
use intwain_passes::program::{Binding, BufferId, DeviceProgram};
use links::Links;
use pool::{Destination, WeightKey};
use std::ops::Range;
use std::sync::Arc;

/// A program with memory and threads, for one number of rows.
pub(crate) struct Variant {
    devices: Vec<Box<dyn Device>>,
    /// Those of GPUs.
    drivers: Vec<Arc<dyn Driver>>,
    links: Links,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
    states: Vec<Place>,
    state: State,
}

/// Whether what devices have exchanged is consistent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Sound,
    /// A call failed somewhere.
    Broken,
}

impl std::fmt::Debug for Variant {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Variant on {} devices", self.devices.len())
    }
}

/// A tensor of the host, and where each device has it or its part.
#[derive(Debug)]
struct Place {
    port: Port,
    buffers: Vec<Option<BufferId>>,
}

/// Rows of the host's tensors that one call works on; `None`: the whole tensors.
pub(crate) type Rows = Option<Range<usize>>;

impl Variant {
    /// Allocates memory for a compiled graph, and reads its weights.
    pub(crate) fn new<E: From<LoadError> + From<DeviceError>>(
        compiled: Loadable<'_>,
        engines: &Engines,
        weights: impl WeightReader<E>,
    ) -> Result<Variant, E> {
        Variant::sharing(compiled, engines, &Pool::default(), weights)
    }

    /// The same with weights that other programs have in memory: those of `pool` are the values that `weights` reads.
    pub(crate) fn sharing<E: From<LoadError> + From<DeviceError>>(
        compiled: Loadable<'_>,
        engines: &Engines,
        pool: &Pool,
        mut weights: impl WeightReader<E>,
    ) -> Result<Variant, E> {
        let programs = compiled.programs;
        let links = Links::new(engines.routes(programs)).map_err(LoadError::from)?;
        let buffer = |list: &[Binding], port: &Port| list.iter().find(|b| b.name == port.name).map(|b| b.buffer);
        let holders = |port: &Port| -> Vec<(usize, BufferId)> {
            let found = programs.iter().map(|p| buffer(&p.weights, port)).enumerate();
            found.filter_map(|(d, b)| Some((d, b?))).collect()
        };
        let held: Vec<Vec<(usize, BufferId)>> = compiled.params.iter().map(holders).collect();
        let mut keys: Vec<Vec<(BufferId, WeightKey)>> = vec![Vec::new(); programs.len()];
        for (port, holders) in compiled.params.iter().zip(&held) {
            for &(d, id) in holders {
                let key = weight_key(port, d);
                assert_eq!(key.ty, programs[d].buffers[id.0 as usize].ty, "`{}` has another type", port.name);
                keys[d].push((id, key));
            }
        }
        let mut devices = engines.load(programs, &keys, pool, compiled.code)?;
        let place = |port: &Port, list: fn(&DeviceProgram) -> &[Binding]| Place {
            port: port.clone(),
            buffers: programs.iter().map(|p| buffer(list(p), port)).collect(),
        };
        let is_input = |p: &&Port| compiled.graph.inputs().any(|i| *i.name == *p.name);
        let inputs = compiled.params.iter().filter(is_input).map(|p| place(p, |d| &d.inputs)).collect();
        let outputs = compiled.outputs.iter().map(|p| place(p, |d| &d.outputs)).collect();
        let is_state = |p: &&Port| {
            let mut params = compiled.graph.params.iter();
            params.any(|i| *i.name == *p.name && matches!(i.kind, ParamKind::State { .. }))
        };
        let state = |port: &Port| Place {
            port: port.clone(),
            buffers: programs
                .iter()
                .map(|p| p.states.iter().find(|(b, _)| b.name == port.name).map(|(b, _)| b.buffer))
                .collect(),
        };
        let states = compiled.params.iter().filter(is_state).map(state).collect();
        for (i, (port, holders)) in compiled.params.iter().zip(&held).enumerate() {
            let mut whole = None;
            for &(d, id) in holders {
                match devices[d].destination(id)? {
                    Destination::Ready => {}
                    Destination::Memory(to) => {
                        // SAFETY: there is room for the device's part, which nobody else touches while it is read.
                        unsafe { read_part(&mut weights, i, port, d, to) }?;
                        devices[d].loaded(id);
                    }
                    Destination::Copy => {
                        let whole = match &mut whole {
                            Some(whole) => whole,
                            none => none.insert(read_whole(&mut weights, i, port)?),
                        };
                        // SAFETY: the tensor has the port's type, of which the buffer has the device's part.
                        unsafe { devices[d].put(id, part(port, d).as_ref(), whole.data.as_ptr()) }?;
                    }
                }
            }
        }
        for d in &mut devices {
            d.prepare(&links)?;
            d.forget()?;
        }
        Ok(Variant {
            devices,
            drivers: engines.drivers().to_vec(),
            links,
            inputs,
            outputs,
            states,
            state: State::Sound,
        })
    }

    /// Whether the host's tensors have what a call reads and writes.
    fn fits<'t>(
        &self,
        rows: &Rows,
        inputs: impl ExactSizeIterator<Item = &'t Tensor>,
        outputs: impl ExactSizeIterator<Item = &'t Tensor>,
    ) -> bool {
        let fit = |place: &Place, host: &Tensor| {
            let (port, host) = (&place.port.ty, &host.ty);
            let same = port.dtype == host.dtype && port.shape.get(1..) == host.shape.get(1..);
            let enough = match (rows, port.shape.first(), host.shape.first()) {
                (Some(rows), Some(&n), Some(&all)) => rows.len() == n && rows.end <= all,
                (_, ours, theirs) => ours == theirs,
            };
            same && enough
        };
        let counts = inputs.len() == self.inputs.len() && outputs.len() == self.outputs.len();
        counts && self.inputs.iter().zip(inputs).chain(self.outputs.iter().zip(outputs)).all(|(p, t)| fit(p, t))
    }

    /// Makes the devices and what is between them usable again where a call has failed.
    fn reset(&mut self) -> Result<(), DeviceError> {
        self.links.reset();
        if self.state == State::Broken {
            // None may still send to one that is reset.
            self.devices.iter_mut().try_for_each(|d| d.settle())?;
            self.devices.iter_mut().try_for_each(|d| d.reset())?;
            // What the call has left of them is not known.
            self.forget()?;
            self.state = State::Sound;
        }
        Ok(())
    }

    /// Makes all states zero.
    pub(crate) fn forget(&mut self) -> Result<(), DeviceError> {
        self.devices.iter_mut().try_for_each(|d| d.forget())
    }

    /// The names and types of what is kept from call to call.
    pub(crate) fn states(&self) -> impl Iterator<Item = (&Arc<str>, &Type)> {
        self.states.iter().map(|s| (&s.port.name, &s.port.ty))
    }

    /// What is kept, in the order of [`Variant::states`].
    pub(crate) fn read_states(&mut self) -> Result<Vec<Tensor>, DeviceError> {
        let mut tensors: Vec<Tensor> = self.states.iter().map(|s| Tensor::zeros(s.port.ty.clone())).collect();
        let hosts: Vec<Host> = tensors.iter_mut().map(Host::new).collect();
        for (index, device) in self.devices.iter_mut().enumerate() {
            device.settle()?;
            copy_out(&mut **device, index, &self.states, &hosts, &None)?;
        }
        drop(hosts);
        Ok(tensors)
    }

    /// Makes what is kept these tensors, in the order and of the types of [`Variant::states`].
    pub(crate) fn write_states(&mut self, tensors: &[&Tensor]) -> Result<(), DeviceError> {
        let fit = self.states.iter().zip(tensors).all(|(s, t)| s.port.ty == t.ty);
        assert!(fit && tensors.len() == self.states.len(), "states of other types than the program's");
        for (index, device) in self.devices.iter_mut().enumerate() {
            copy_in(&mut **device, index, &self.states, tensors, &None)?;
            device.settle()?;
        }
        Ok(())
    }

    /// Says that a call on the same devices has failed, even one of another variant: stopping devices spoils what all
    /// have exchanged.
    pub(crate) fn distrust(&mut self) {
        self.state = State::Broken;
    }

    /// Waits until all devices are done with what they were told, in a call or ever.
    fn settle(&mut self) {
        for d in &mut self.devices {
            // Whoever used the device was told of its failure.
            let _ = d.settle();
        }
    }

    /// Memory held by each device, in bytes, without what may be shared.
    pub(crate) fn bytes(&self) -> Vec<usize> {
        self.devices.iter().map(|d| d.bytes()).collect()
    }

    /// Place and size of each device's weights that may be shared.
    pub(crate) fn shared(&self) -> Vec<Vec<(usize, usize)>> {
        self.devices.iter().map(|d| d.shared()).collect()
    }
}

impl Drop for Variant {
    /// Devices write into each other's memory: none of it is freed before all are done.
    fn drop(&mut self) {
        self.settle();
    }
}

/// A call: a variant and the rows it works on.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    /// Which of the variants.
    pub(crate) variant: usize,
    /// The rows.
    pub(crate) rows: Rows,
}

/// Runs calls in order. `inputs` and `outputs` are the host's whole tensors, in the order of the graph; where a call has
/// no rows they are of the types of its ports, else of those types but for the number of rows.
pub(crate) fn run(
    variants: &mut [&mut Variant],
    calls: &[Call],
    inputs: &[&Tensor],
    outputs: &mut [Tensor],
) -> Result<(), DeviceError> {
    for call in calls {
        let v = &variants[call.variant];
        assert!(
            v.fits(&call.rows, inputs.iter().copied(), outputs.iter()),
            "tensors of other types than the program's"
        );
    }
    variants.iter_mut().try_for_each(|v| v.reset())?;
    // Also where a device panics.
    variants.iter_mut().for_each(|v| v.distrust());
    let done = run_devices(variants, calls, inputs, outputs);
    match done {
        Ok(()) => variants.iter_mut().for_each(|v| v.state = State::Sound),
        Err(_) => {
            variants.iter_mut().for_each(|v| v.settle());
            // Other programs may be loaded next.
            variants.iter().flat_map(|v| &v.drivers).for_each(|d| d.resume());
        }
    }
    done
}

/// Runs each device's part of the calls in a thread of its own.
fn run_devices(
    variants: &mut [&mut Variant],
    calls: &[Call],
    inputs: &[&Tensor],
    outputs: &mut [Tensor],
) -> Result<(), DeviceError> {
    let outputs: Vec<Host> = outputs.iter_mut().map(Host::new).collect();
    // For each device, its half of every variant; a variant may use fewer devices than another.
    let devices = variants.iter().map(|v| v.devices.len()).max().unwrap_or(0);
    let mut halves: Vec<Vec<Option<&mut Box<dyn Device>>>> = (0..devices).map(|_| Vec::new()).collect();
    let mut shared: Vec<Shared<'_>> = Vec::new();
    for v in variants.iter_mut() {
        let mut own = v.devices.iter_mut();
        halves.iter_mut().for_each(|half| half.push(own.next()));
        shared.push(Shared { drivers: &v.drivers, links: &v.links, inputs: &v.inputs, outputs: &v.outputs });
    }
    let hosts = (inputs, &outputs[..]);
    let work = |index: usize, half| serve(index, half, calls, &shared, hosts);
    let work = &work;
    let mut halves = halves.into_iter().enumerate();
    let first = halves.next();
    let results: Vec<Result<(), DeviceError>> = std::thread::scope(|scope| {
        let threads: Vec<_> = halves.map(|(i, half)| scope.spawn(move || work(i, half))).collect();
        // The first device works on this thread.
        let mut results: Vec<_> = first.into_iter().map(|(i, half)| work(i, half)).collect();
        results.extend(threads.into_iter().map(|t| t.join().unwrap_or_else(|p| std::panic::resume_unwind(p))));
        results
    });
    // A device that fails stops the others: report the cause.
    let mut errors: Vec<DeviceError> = results.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(DeviceError::is_consequence);
    errors.into_iter().next().map_or(Ok(()), Err)
}

/// What the devices of a variant share.
#[derive(Clone, Copy)]
struct Shared<'v> {
    drivers: &'v [Arc<dyn Driver>],
    links: &'v Links,
    inputs: &'v [Place],
    outputs: &'v [Place],
}

/// Stops all devices when dropped, unless it was called off: one that fails or panics must not leave others waiting.
struct Alarm<'s>(&'s [Shared<'s>]);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        for shared in self.0 {
            shared.links.stop();
            shared.drivers.iter().for_each(|d| d.stop());
        }
    }
}

/// One device's work on all calls, with its half of every variant.
fn serve(
    index: usize,
    mut half: Vec<Option<&mut Box<dyn Device>>>,
    calls: &[Call],
    shared: &[Shared<'_>],
    (inputs, outputs): (&[&Tensor], &[Host]),
) -> Result<(), DeviceError> {
    let alarm = Alarm(shared);
    let mut call = |call: &Call| -> Result<(), DeviceError> {
        let Shared { links, inputs: ins, outputs: outs, .. } = shared[call.variant];
        let Some(device) = &mut half[call.variant] else { return Ok(()) };
        copy_in(&mut ***device, index, ins, inputs, &call.rows)?;
        device.step(links)?;
        copy_out(&mut ***device, index, outs, outputs, &call.rows)?;
        device.advance()
    };
    let done = calls.iter().try_for_each(&mut call);
    // The other device may still be sent something: nobody frees memory before that is done. After a failure the alarm
    // comes last, since what is sent after it would make the other wait again. What was given to a device waits for
    // nothing that its peer was not given before, so this ends.
    let settled = half.iter_mut().flatten().try_for_each(|d| d.settle());
    done.and(settled)?;
    std::mem::forget(alarm);
    Ok(())
}

/// A tensor of the host that devices write parts of.
struct Host {
    at: *mut u8,
    ty: Type,
}

// SAFETY: devices write disjoint parts: rows of different calls, and of one call the parts that the layout gives them.
unsafe impl Sync for Host {}

impl Host {
    fn new(t: &mut Tensor) -> Host {
        Host { at: t.data.as_mut_ptr(), ty: t.ty.clone() }
    }
}

/// First byte of a call's rows in a whole tensor.
fn row_offset(ty: &Type, rows: &Rows) -> usize {
    rows.as_ref().map_or(0, |r| {
        let row = ty.shape.get(1..).map_or(1, |d| d.iter().product::<usize>()) * ty.dtype.size();
        r.start * row
    })
}

/// Device `index`'s part of a port; `None` where it has the whole tensor.
fn part(port: &Port, index: usize) -> Option<Part> {
    match &port.layout {
        Layout::Split { dim, sizes } => Some(Part::new(&port.ty.shape, *dim, sizes, index, port.ty.dtype)),
        Layout::Replicated | Layout::On(_) | Layout::Partial(_) => None,
    }
}

/// What device `index` has of a weight.
fn weight_key(port: &Port, index: usize) -> WeightKey {
    let (ty, from) = match &port.layout {
        Layout::Split { dim, sizes } => {
            let ty = port.ty.with_shape(port.ty.shape.with(*dim, sizes[index]));
            (ty, Some((*dim, sizes[..index].iter().sum())))
        }
        Layout::Replicated | Layout::On(_) | Layout::Partial(_) => (port.ty.clone(), None),
    };
    WeightKey { name: port.name.clone(), ty, from }
}

fn read_whole<E>(weights: &mut impl WeightReader<E>, param: usize, port: &Port) -> Result<Tensor, E> {
    let mut whole = Tensor::zeros(port.ty.clone());
    weights.read(param, 0..port.ty.shape.first().copied().unwrap_or(1), &mut whole.data)?;
    Ok(whole)
}

/// Bytes of a weight that are in memory beside the parts of it, while those are read: little enough for the allocator to
/// keep and give again.
const BLOCK: usize = 1 << 18;

/// Reads device `index`'s part of a weight.
///
/// # Safety
/// `to` has room for the part, and nobody else touches it.
unsafe fn read_part<E>(
    weights: &mut impl WeightReader<E>,
    param: usize,
    port: &Port,
    index: usize,
    to: *mut u8,
) -> Result<(), E> {
    let shape = &port.ty.shape;
    let all = shape.first().copied().unwrap_or(1);
    let row = port.ty.bytes().checked_div(all).unwrap_or(0);
    let rows = match &port.layout {
        Layout::Split { dim: 0, sizes } => {
            let start = sizes[..index].iter().sum();
            start..start + sizes[index]
        }
        Layout::Split { dim, sizes } => {
            let lines = (BLOCK / row.max(1)).clamp(1, all.max(1));
            let mut block = vec![0u8; lines * row];
            let mut to = to;
            for start in (0..all).step_by(lines) {
                let lines = lines.min(all - start);
                weights.read(param, start..start + lines, &mut block[..lines * row])?;
                let part = Part::new(&shape.with(0, lines), *dim, sizes, index, port.ty.dtype);
                // SAFETY: the block has these lines, and there is room for the device's part of all lines.
                unsafe {
                    part.read(block.as_ptr(), to);
                    to = to.add(part.bytes());
                }
            }
            return Ok(());
        }
        Layout::Replicated | Layout::On(_) | Layout::Partial(_) => 0..all,
    };
    // SAFETY: by the caller's promise.
    let to = unsafe { std::slice::from_raw_parts_mut(to, rows.len() * row) };
    weights.read(param, rows, to)
}

/// Copies a call's inputs, or the device's parts of them, to the device.
fn copy_in(
    device: &mut dyn Device,
    index: usize,
    places: &[Place],
    inputs: &[&Tensor],
    rows: &Rows,
) -> Result<(), DeviceError> {
    for (place, host) in places.iter().zip(inputs) {
        let Some(id) = place.buffers[index] else { continue };
        let from = host.data[row_offset(&host.ty, rows)..].as_ptr();
        // SAFETY: the call's rows have the port's type, of which the buffer has the device's part.
        unsafe { device.put(id, part(&place.port, index).as_ref(), from) }?;
    }
    Ok(())
}

/// Copies a call's outputs, or the device's parts of them, to the host. Equal copies are taken from device 0.
fn copy_out(
    device: &mut dyn Device,
    index: usize,
    places: &[Place],
    outputs: &[Host],
    rows: &Rows,
) -> Result<(), DeviceError> {
    for (place, host) in places.iter().zip(outputs) {
        let Some(id) = place.buffers[index] else { continue };
        match &place.port.layout {
            Layout::Replicated | Layout::Partial(_) if index != 0 => continue,
            Layout::Split { .. } | Layout::Replicated | Layout::On(_) | Layout::Partial(_) => {}
        }
        // SAFETY: the offset is that of a row of the tensor, whose rows of this call have the port's type. Parts of
        // different devices are disjoint, and only this device writes the whole ones.
        unsafe {
            let to = host.at.add(row_offset(&host.ty, rows));
            device.take(id, part(&place.port, index).as_ref(), to)?;
        }
    }
    Ok(())
}
