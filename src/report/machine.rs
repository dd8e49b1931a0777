//! A machine of the catalogue.

use super::text::{Align, Table, bytes, count};
use intwain_passes::hardware::{Access, Arithmetic, DeviceKind, DeviceSpec, Figure, Hardware};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt;

/// What a machine is taken to be.
#[derive(Clone, Debug, Serialize)]
pub struct MachineReport {
    /// Its name.
    pub name: String,
    /// Hash of every fact.
    pub hash: String,
    /// Its devices.
    pub devices: Vec<DeviceFigures>,
    /// The device that a program using one device gets.
    pub alone: DeviceFigures,
    /// What connects them.
    pub link: LinkFigures,
}

/// A number and how it is known.
#[derive(Clone, Debug, Serialize)]
pub struct FigureReport {
    /// The number, in SI units.
    pub value: f64,
    /// Measured, interpolated or assumed.
    pub basis: &'static str,
}

/// What a device is taken to be.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceFigures {
    /// Its name.
    pub name: String,
    /// `cpu` or `gpu`.
    pub kind: &'static str,
    /// What code is generated for.
    pub target: String,
    /// Bytes.
    pub memory: FigureReport,
    /// Bytes per second.
    pub bandwidth: FigureReport,
    /// Seconds to start a kernel.
    pub launch: FigureReport,
    /// Operations per second by arithmetic.
    pub rates: BTreeMap<&'static str, FigureReport>,
}

/// What a link is taken to be.
#[derive(Clone, Debug, Serialize)]
pub struct LinkFigures {
    /// `nvlink`, `pcie` or `shared-memory`.
    pub kind: &'static str,
    /// `peer` or `host`.
    pub access: &'static str,
    /// Seconds.
    pub latency: FigureReport,
    /// Bytes per second, one direction.
    pub bandwidth: FigureReport,
}

fn figure(f: Figure) -> FigureReport {
    FigureReport { value: f.value, basis: f.basis.name() }
}

fn device(d: &DeviceSpec) -> DeviceFigures {
    DeviceFigures {
        name: d.name.clone(),
        kind: match d.kind {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Gpu => "gpu",
        },
        target: d.target.clone(),
        memory: figure(d.memory),
        bandwidth: figure(d.bandwidth),
        launch: figure(d.launch),
        rates: Arithmetic::ALL.iter().map(|a| (a.name(), figure(d.rate(*a)))).collect(),
    }
}

impl MachineReport {
    /// Reports a machine.
    pub fn new(hardware: &Hardware) -> MachineReport {
        let link = &hardware.link;
        MachineReport {
            name: hardware.name.clone(),
            hash: hardware.hash(),
            devices: hardware.devices.iter().map(device).collect(),
            alone: device(&hardware.alone),
            link: LinkFigures {
                kind: link.kind.name(),
                access: match link.access {
                    Access::Peer => "peer",
                    Access::Host => "host",
                },
                latency: figure(link.latency),
                bandwidth: figure(link.bandwidth),
            },
        }
    }

    /// A table of machines.
    pub fn table(machines: &[MachineReport]) -> impl fmt::Display {
        let mut table = Table::new(&[
            ("name", Align::Left),
            ("devices", Align::Left),
            ("memory", Align::Right),
            ("bandwidth", Align::Right),
            ("f32", Align::Right),
            ("tf32", Align::Right),
            ("bf16", Align::Right),
            ("link", Align::Left),
            ("one way", Align::Right),
        ]);
        for m in machines {
            let mut names: Vec<&str> = m.devices.iter().map(|d| d.name.as_str()).collect();
            names.dedup();
            let Some(first) = m.devices.first() else { continue };
            let rate = |a: Arithmetic| first.rates.get(a.name()).map_or("-".to_string(), |r| count(r.value));
            table.row(vec![
                m.name.clone(),
                names.join(" + "),
                bytes(first.memory.value),
                format!("{}/s", bytes(first.bandwidth.value)),
                rate(Arithmetic::F32),
                rate(Arithmetic::Tf32),
                rate(Arithmetic::Bf16),
                format!("{} ({})", m.link.kind, m.link.access),
                format!("{}/s", bytes(m.link.bandwidth.value)),
            ]);
        }
        table
    }
}
