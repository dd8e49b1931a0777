//! Which devices a program runs on, by the names that people give them.

use crate::cuda;
use std::fmt;
use std::str::FromStr;

/// What executes a device's program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum DeviceKind {
    /// Threads of this machine.
    Cpu,
    /// The PTX that a GPU would get, executed and checked on the CPU.
    Ptx,
    /// A GPU.
    Cuda,
}

impl DeviceKind {
    /// How devices of this kind are named.
    pub fn name(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "cpu",
            DeviceKind::Ptx => "ptx",
            DeviceKind::Cuda => "cuda",
        }
    }

    /// What reports of verification call kernels on such devices.
    pub(crate) fn engine(self) -> &'static str {
        match self {
            DeviceKind::Cpu => "compiled",
            DeviceKind::Ptx | DeviceKind::Cuda => self.name(),
        }
    }
}

/// One or two devices of one kind, such as `cpu:0,cpu:1`. One that is named twice is two logical devices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Devices {
    kind: DeviceKind,
    ordinals: Vec<u32>,
}

/// Why a list of devices cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DevicesError {
    /// A name that no device has.
    #[error("`{0}` is no device; use cpu:0, ptx:0 or cuda:0, or two of a kind: cpu:0,cpu:1")]
    Unknown(String),
    /// None, or more than a program is divided over.
    #[error("{0} devices; one or two can be used")]
    Count(usize),
    /// Devices of several kinds.
    #[error("`{0}` and `{1}` are of different kinds; a program runs on devices of one kind")]
    Mixed(String, String),
}

impl Devices {
    /// Devices of a kind, by number.
    ///
    /// # Errors
    /// There are none, or more than two.
    pub fn new(kind: DeviceKind, ordinals: impl IntoIterator<Item = u32>) -> Result<Devices, DevicesError> {
        let ordinals: Vec<u32> = ordinals.into_iter().collect();
        match ordinals.len() {
            1 | 2 => Ok(Devices { kind, ordinals }),
            n => Err(DevicesError::Count(n)),
        }
    }

    /// `kind:0`.
    pub fn one(kind: DeviceKind) -> Devices {
        Devices { kind, ordinals: vec![0] }
    }

    /// `kind:0,kind:1`.
    pub fn two(kind: DeviceKind) -> Devices {
        Devices { kind, ordinals: vec![0, 1] }
    }

    /// The best of this machine, at most `most`: GPUs where there are any, else CPU devices.
    pub fn found(most: usize) -> Devices {
        let usable: Vec<u32> = match cuda::devices() {
            Ok(gpus) => gpus.iter().filter(|g| g.is_usable()).map(|g| g.ordinal as u32).take(most.min(2)).collect(),
            Err(_) => Vec::new(),
        };
        match usable.is_empty() {
            false => Devices { kind: DeviceKind::Cuda, ordinals: usable },
            true if most < 2 => Devices::one(DeviceKind::Cpu),
            true => Devices::two(DeviceKind::Cpu),
        }
    }

    /// What they are.
    pub fn kind(&self) -> DeviceKind {
        self.kind
    }

    /// Their numbers.
    pub fn ordinals(&self) -> &[u32] {
        &self.ordinals
    }

    /// How many there are: 1 or 2.
    pub fn count(&self) -> usize {
        self.ordinals.len()
    }
}

/// One CPU device.
impl Default for Devices {
    fn default() -> Devices {
        Devices::one(DeviceKind::Cpu)
    }
}

impl fmt::Display for Devices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, n) in self.ordinals.iter().enumerate() {
            write!(f, "{}{}:{n}", if i > 0 { "," } else { "" }, self.kind.name())?;
        }
        Ok(())
    }
}

impl FromStr for Devices {
    type Err = DevicesError;

    fn from_str(text: &str) -> Result<Devices, DevicesError> {
        let names: Vec<&str> = text.split(',').map(str::trim).collect();
        let read = |name: &&str| -> Result<(DeviceKind, u32), DevicesError> {
            let unknown = || DevicesError::Unknown((*name).to_string());
            let (kind, number) = name.split_once(':').ok_or_else(unknown)?;
            let kinds = [DeviceKind::Cpu, DeviceKind::Ptx, DeviceKind::Cuda];
            let kind = kinds.into_iter().find(|k| k.name() == kind).ok_or_else(unknown)?;
            Ok((kind, number.parse().map_err(|_| unknown())?))
        };
        let read: Vec<(DeviceKind, u32)> = names.iter().map(read).collect::<Result<_, _>>()?;
        let kind = read[0].0;
        if let Some(other) = read.iter().position(|r| r.0 != kind) {
            return Err(DevicesError::Mixed(names[0].to_string(), names[other].to_string()));
        }
        Devices::new(kind, read.into_iter().map(|r| r.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_and_written() {
        for text in ["cpu:0", "cpu:0,cpu:1", "ptx:0,ptx:0", "cuda:1"] {
            assert_eq!(text.parse::<Devices>().unwrap().to_string(), text);
        }
        assert_eq!("cpu:0, cpu:1".parse(), Ok(Devices::two(DeviceKind::Cpu)));
    }

    #[test]
    fn other_names_are_refused() {
        let refused = |text: &str| text.parse::<Devices>().unwrap_err();
        for text in ["", "cpu", "gpu:0", "cpu:-1", "cpu:0,", "ptx:x"] {
            assert!(matches!(refused(text), DevicesError::Unknown(_)), "{text}");
        }
        assert_eq!(refused("cpu:0,ptx:1"), DevicesError::Mixed("cpu:0".into(), "ptx:1".into()));
        assert_eq!(refused("cpu:0,cpu:1,cpu:2"), DevicesError::Count(3));
    }
}
