//! What a program is planned for: devices, the link between them, and where each figure comes from.
//!
//! A machine comes from the catalogue that is compiled in (`devices.toml`, `machines.toml`) or from a TOML file of the
//! same form. Nothing here looks at the devices that are plugged in, so that a plan is a function of its inputs.

mod catalogue;
mod read;

use intwain_ir::DType;
use sha2::{Digest, Sha256};
use std::fmt;

pub use catalogue::{Catalogue, HardwareError};

/// How a figure is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Basis {
    /// Measured on such a device.
    Measured,
    /// Computed from measurements nearby.
    Interpolated,
    /// Taken from a data sheet or from experience.
    Assumed,
}

impl Basis {
    /// The name in TOML and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Basis::Measured => "measured",
            Basis::Interpolated => "interpolated",
            Basis::Assumed => "assumed",
        }
    }

    /// The basis of a figure computed from this one and another: the weaker.
    pub fn weaker(self, other: Basis) -> Basis {
        self.max(other)
    }
}

/// A positive number and how it is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    /// The number, in SI units (bytes, seconds, operations per second).
    pub value: f64,
    /// How it is known.
    pub basis: Basis,
}

/// The arithmetic that a matrix unit or vector unit does; a rate is stated for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arithmetic {
    /// IEEE f32.
    F32,
    /// f32 operands rounded to TF32 in matrix products.
    Tf32,
    /// bfloat16 operands, f32 accumulation.
    Bf16,
    /// f16 operands, f32 accumulation.
    F16,
    /// 8-bit integers.
    I8,
    /// IEEE f64.
    F64,
}

impl Arithmetic {
    /// Every arithmetic, in catalogue order.
    pub const ALL: [Arithmetic; 6] =
        [Arithmetic::F32, Arithmetic::Tf32, Arithmetic::Bf16, Arithmetic::F16, Arithmetic::I8, Arithmetic::F64];

    /// The key in TOML.
    pub fn name(self) -> &'static str {
        match self {
            Arithmetic::F32 => "f32",
            Arithmetic::Tf32 => "tf32",
            Arithmetic::Bf16 => "bf16",
            Arithmetic::F16 => "f16",
            Arithmetic::I8 => "i8",
            Arithmetic::F64 => "f64",
        }
    }

    /// The arithmetic for elements of `dtype`, with f32 products done as `f32`.
    pub fn of(dtype: DType, f32: Arithmetic) -> Arithmetic {
        match dtype {
            DType::F16 => Arithmetic::F16,
            DType::BF16 => Arithmetic::Bf16,
            DType::F32 => f32,
            DType::F64 | DType::I64 => Arithmetic::F64,
            DType::Bool | DType::I8 | DType::U8 => Arithmetic::I8,
            DType::I16 | DType::I32 | DType::U32 => Arithmetic::F32,
        }
    }
}

/// A class of operation whose kernels reach a similar share of a device's peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum OpClass {
    /// Matrix products.
    Contraction,
    /// Convolutions and their gradients.
    Convolution,
    /// Fused attention.
    Attention,
    /// Pointwise operations, reductions, windows, copies: bound by memory.
    Memory,
    /// Reads and writes at computed addresses.
    Gather,
    /// Loops whose steps depend on each other.
    Sequential,
}

impl OpClass {
    /// Every class, in catalogue order.
    pub const ALL: [OpClass; 6] = [
        OpClass::Contraction,
        OpClass::Convolution,
        OpClass::Attention,
        OpClass::Memory,
        OpClass::Gather,
        OpClass::Sequential,
    ];

    /// The key in TOML.
    pub fn name(self) -> &'static str {
        match self {
            OpClass::Contraction => "contraction",
            OpClass::Convolution => "convolution",
            OpClass::Attention => "attention",
            OpClass::Memory => "memory",
            OpClass::Gather => "gather",
            OpClass::Sequential => "sequential",
        }
    }
}

/// What kind of device it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// A set of cores of the host.
    Cpu,
    /// A graphics card.
    Gpu,
}

/// One device.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceSpec {
    /// Its key in the catalogue.
    pub name: String,
    /// CPU or GPU.
    pub kind: DeviceKind,
    /// What code is generated for: `sm_90`, `x86_64`.
    pub target: String,
    /// Memory in bytes.
    pub memory: Figure,
    /// Memory bandwidth in bytes per second.
    pub bandwidth: Figure,
    /// Seconds to start one kernel.
    pub launch: Figure,
    rates: [Figure; Arithmetic::ALL.len()],
    efficiency: [Figure; OpClass::ALL.len()],
}

impl DeviceSpec {
    /// Peak operations per second.
    pub fn rate(&self, arithmetic: Arithmetic) -> Figure {
        self.rates[arithmetic as usize]
    }

    /// Share of the peak that a class of operation reaches.
    pub fn efficiency(&self, class: OpClass) -> Figure {
        self.efficiency[class as usize]
    }

    /// Bytes per second that streaming kernels reach.
    pub fn stream_bandwidth(&self) -> f64 {
        self.bandwidth.value * self.efficiency(OpClass::Memory).value
    }
}

/// What carries bytes between two devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LinkKind {
    /// NVLink.
    NvLink,
    /// PCI Express.
    Pcie,
    /// The memory of the host.
    SharedMemory,
}

impl LinkKind {
    /// The name in TOML and in reports.
    pub fn name(self) -> &'static str {
        match self {
            LinkKind::NvLink => "nvlink",
            LinkKind::Pcie => "pcie",
            LinkKind::SharedMemory => "shared-memory",
        }
    }
}

/// How a device reaches the other's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Access {
    /// Directly.
    Peer,
    /// Through pinned memory of the host; a byte crosses the bus twice.
    Host,
}

/// The connection between the devices of a machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Link {
    /// NVLink, PCIe or shared memory.
    pub kind: LinkKind,
    /// Peer access or staging.
    pub access: Access,
    /// Seconds before the first byte arrives.
    pub latency: Figure,
    /// Bytes per second, one direction.
    pub bandwidth: Figure,
}

impl Link {
    /// Seconds to bring `bytes` from one device to the other.
    pub fn transfer(&self, bytes: f64) -> f64 {
        match self.access {
            Access::Peer => self.latency.value + bytes / self.bandwidth.value,
            Access::Host => 2.0 * self.latency.value + 2.0 * bytes / self.bandwidth.value,
        }
    }
}

/// A set of devices and the link between them.
#[derive(Clone, Debug, PartialEq)]
pub struct Hardware {
    /// The machine's name.
    pub name: String,
    /// Its devices, in order.
    pub devices: Vec<DeviceSpec>,
    /// The device that a program using one device gets.
    pub alone: DeviceSpec,
    /// What connects every two of them.
    pub link: Link,
}

impl Hardware {
    /// Whether the devices have the same speed and memory.
    pub fn is_even(&self) -> bool {
        self.devices.windows(2).all(|pair| DeviceSpec { name: pair[0].name.clone(), ..pair[1].clone() } == pair[0])
    }

    /// A hash of every fact of the machine, equal on every run and platform: 64 hexadecimal digits.
    pub fn hash(&self) -> String {
        let digest = Sha256::digest(self.to_string().as_bytes());
        digest.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

fn write_figure(f: &mut fmt::Formatter<'_>, key: &str, figure: Figure) -> fmt::Result {
    match figure.basis {
        Basis::Assumed => writeln!(f, "{key} = {:e}", figure.value),
        Basis::Measured | Basis::Interpolated => {
            writeln!(f, "{key} = {{ value = {:e}, basis = \"{}\" }}", figure.value, figure.basis.name())
        }
    }
}

impl DeviceSpec {
    fn write_toml(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Gpu => "gpu",
        };
        writeln!(f, "\n[device.{}]\nkind = \"{kind}\"\ntarget = \"{}\"", self.name, self.target)?;
        write_figure(f, "memory", self.memory)?;
        write_figure(f, "bandwidth", self.bandwidth)?;
        write_figure(f, "launch", self.launch)?;
        for arithmetic in Arithmetic::ALL {
            write_figure(f, &format!("rates.{}", arithmetic.name()), self.rate(arithmetic))?;
        }
        for class in OpClass::ALL {
            write_figure(f, &format!("efficiency.{}", class.name()), self.efficiency(class))?;
        }
        Ok(())
    }
}

/// The machine as the TOML file that defines it; reading it back gives an equal machine.
impl fmt::Display for Hardware {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "[machine.{}]", self.name)?;
        let names: Vec<String> = self.devices.iter().map(|d| format!("\"{}\"", d.name)).collect();
        writeln!(f, "devices = [{}]", names.join(", "))?;
        writeln!(f, "alone = \"{}\"", self.alone.name)?;
        let access = match self.link.access {
            Access::Peer => "peer",
            Access::Host => "host",
        };
        writeln!(f, "link.kind = \"{}\"\nlink.access = \"{access}\"", self.link.kind.name())?;
        write_figure(f, "link.latency", self.link.latency)?;
        write_figure(f, "link.bandwidth", self.link.bandwidth)?;
        let mut written: Vec<&str> = Vec::new();
        for device in self.devices.iter().chain([&self.alone]) {
            if !written.contains(&device.name.as_str()) {
                written.push(&device.name);
                device.write_toml(f)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
