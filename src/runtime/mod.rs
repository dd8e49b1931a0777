//! Runs programs on CPU devices: memory, threads, messages between devices, and calls.
//!
//! A `Variant` is a program for one number of rows, on one or two devices. Each device runs the calls of a request
//! one after another on its own threads; nothing but messages makes a device wait for the other, so calls of a
//! pipeline overlap.

mod collective;
mod device;
mod links;
mod memory;
mod team;
#[cfg(test)]
mod tests;

pub use device::{DeviceError, LoadError};
pub use links::LinkError;
pub use memory::OutOfMemory;

pub(crate) use team::Team;

use crate::driver::{Loadable, Port};
use collective::Part;
use device::Device;
use intwain_ir::{Layout, Tensor, Type};
use intwain_passes::program::BufferId;
use links::Links;
use std::ops::Range;

/// A program with memory and threads, for one number of rows.
pub(crate) struct Variant {
    devices: Vec<Device>,
    links: Links,
    inputs: Vec<Place>,
    outputs: Vec<Place>,
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
    /// Allocates memory for a compiled graph. `weight` gives the weights by position among the graph's parameters.
    pub(crate) fn new<E: From<LoadError> + From<DeviceError>>(
        compiled: Loadable<'_>,
        teams: &[Team],
        mut weight: impl FnMut(usize) -> Result<Tensor, E>,
    ) -> Result<Variant, E> {
        let routes = compiled.programs.iter().flat_map(Device::routes);
        let links = Links::new(routes).map_err(LoadError::from)?;
        let mut devices = Vec::new();
        for (program, team) in compiled.programs.iter().zip(teams) {
            devices.push(Device::new(program.clone(), team.threads())?);
        }
        let find = |name: &str, list: fn(&Device) -> &[intwain_passes::program::Binding]| {
            devices.iter().map(|d| list(d).iter().find(|b| *b.name == *name).map(|b| b.buffer)).collect()
        };
        let place = |port: &Port, list: fn(&Device) -> &[intwain_passes::program::Binding]| Place {
            port: port.clone(),
            buffers: find(&port.name, list),
        };
        let is_input = |p: &&Port| compiled.graph.inputs().any(|i| *i.name == *p.name);
        let inputs = compiled.params.iter().filter(is_input).map(|p| place(p, |d| &d.program().inputs)).collect();
        let outputs = compiled.outputs.iter().map(|p| place(p, |d| &d.program().outputs)).collect();
        for (i, port) in compiled.params.iter().enumerate() {
            let holders: Vec<usize> = (0..devices.len())
                .filter(|&d| devices[d].program().weights.iter().any(|b| *b.name == *port.name))
                .collect();
            if holders.is_empty() {
                continue;
            }
            let whole = weight(i)?;
            for d in holders {
                let binding = devices[d].program().weights.iter().find(|b| *b.name == *port.name).cloned();
                if let Some(b) = binding {
                    let part = whole.part(&port.layout, d);
                    devices[d].write(&b, &part.data);
                }
            }
        }
        for (d, team) in devices.iter_mut().zip(teams) {
            d.run_prepare(team, &links)?;
        }
        Ok(Variant { devices, links, inputs, outputs })
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

    /// Memory held by each device, in bytes.
    pub(crate) fn bytes(&self) -> Vec<usize> {
        self.devices.iter().map(Device::bytes).collect()
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
    teams: &[Team],
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
    let outputs: Vec<Host> = outputs.iter_mut().map(Host::new).collect();
    // For each device, its half of every variant; a variant may use fewer devices than another.
    let mut halves: Vec<Vec<Option<&mut Device>>> = (0..teams.len()).map(|_| Vec::new()).collect();
    let mut shared: Vec<Shared<'_>> = Vec::new();
    for v in variants.iter_mut() {
        v.links.reset();
        let mut own = v.devices.iter_mut();
        halves.iter_mut().for_each(|half| half.push(own.next()));
        shared.push(Shared { links: &v.links, inputs: &v.inputs, outputs: &v.outputs });
    }
    let hosts = (inputs, &outputs[..]);
    let work = |index: usize, half| serve(index, half, &teams[index], calls, &shared, hosts);
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
    let stopped = |e: &DeviceError| matches!(e, DeviceError::Link { problem: LinkError::Stopped, .. });
    let mut errors: Vec<DeviceError> = results.into_iter().filter_map(Result::err).collect();
    errors.sort_by_key(stopped);
    errors.into_iter().next().map_or(Ok(()), Err)
}

/// What the devices of a variant share.
#[derive(Clone, Copy)]
struct Shared<'v> {
    links: &'v Links,
    inputs: &'v [Place],
    outputs: &'v [Place],
}

/// Stops all devices when dropped, unless it was called off: one that fails or panics must not leave others waiting.
struct Alarm<'s>(&'s [Shared<'s>]);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        self.0.iter().for_each(|s| s.links.stop());
    }
}

/// One device's work on all calls, with its half of every variant.
fn serve(
    index: usize,
    mut half: Vec<Option<&mut Device>>,
    team: &Team,
    calls: &[Call],
    shared: &[Shared<'_>],
    (inputs, outputs): (&[&Tensor], &[Host]),
) -> Result<(), DeviceError> {
    let alarm = Alarm(shared);
    for call in calls {
        let Shared { links, inputs: ins, outputs: outs } = shared[call.variant];
        let Some(device) = &mut half[call.variant] else { continue };
        copy_in(device, index, ins, inputs, &call.rows);
        device.run_step(team, links)?;
        copy_out(device, index, outs, outputs, &call.rows);
    }
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

/// Copies a call's inputs, or the device's parts of them, to the device.
fn copy_in(device: &Device, index: usize, places: &[Place], inputs: &[&Tensor], rows: &Rows) {
    for (place, host) in places.iter().zip(inputs) {
        let Some(id) = place.buffers[index] else { continue };
        let (to, ty) = device.buffer(id);
        let from = host.data[row_offset(&host.ty, rows)..].as_ptr();
        match &place.port.layout {
            Layout::Split { dim, sizes } => {
                let part = Part::new(&place.port.ty.shape, *dim, sizes, index, ty.dtype);
                // SAFETY: the call's rows have the port's type; the buffer has the part's.
                unsafe { part.read(from, to) };
            }
            // SAFETY: the buffer has the port's type.
            Layout::Replicated | Layout::On(_) | Layout::Partial(_) => unsafe {
                to.copy_from_nonoverlapping(from, ty.bytes());
            },
        }
    }
}

/// Copies a call's outputs, or the device's parts of them, to the host. Equal copies are taken from device 0.
fn copy_out(device: &Device, index: usize, places: &[Place], outputs: &[Host], rows: &Rows) {
    for (place, host) in places.iter().zip(outputs) {
        let Some(id) = place.buffers[index] else { continue };
        let (from, ty) = device.buffer(id);
        // SAFETY: the offset is that of a row of the tensor.
        let to = unsafe { host.at.add(row_offset(&host.ty, rows)) };
        match &place.port.layout {
            Layout::Split { dim, sizes } => {
                let part = Part::new(&place.port.ty.shape, *dim, sizes, index, ty.dtype);
                // SAFETY: parts of different devices are disjoint.
                unsafe { part.write(from, to) };
            }
            Layout::Replicated | Layout::Partial(_) if index != 0 => {}
            // SAFETY: the call's rows of the host have the buffer's type, and only this device writes them.
            Layout::Replicated | Layout::On(_) | Layout::Partial(_) => unsafe {
                to.copy_from_nonoverlapping(from, ty.bytes());
            },
        }
    }
}
