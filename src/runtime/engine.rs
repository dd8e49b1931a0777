//! What executes the programs of each device, made once and used by every program that a session loads.

use super::cpu::CpuDevice;
use super::device::{self, Device, LoadError};
use super::devices::{DeviceKind, Devices};
use super::gpu::{self, Driver};
use super::links::Route;
use super::pool::{Pool, WeightKey};
use super::team::Team;
use crate::cuda::CudaError;
use crate::kernels::gpu::GpuCode;
use intwain_codegen::schedule::gpu::{Gpu, Precision};
use intwain_passes::program::{BufferId, DeviceProgram};
use std::sync::Arc;

/// Why devices cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Threads could not be started.
    #[error("cannot start the threads of a device: {0}")]
    Threads(#[from] std::io::Error),
    /// There is no such device.
    #[error("{devices}: {problem}; ptx:0 runs the same program on the CPU, cpu:0 the fastest there")]
    Absent {
        /// What was asked for.
        devices: Devices,
        /// Why it cannot be used, and what can.
        problem: String,
    },
    /// The devices make no asynchronous copies that this machine decides on.
    #[error("{0}: when copies happen can be chosen for ptx devices only")]
    Effects(Devices),
    /// The devices do not compute in that precision.
    #[error("{0} compute in f32 only; leave the precision out, or use ptx:0 or cuda:0")]
    Precision(Devices),
}

/// When asynchronous copies of `ptx` devices happen. Programs give the same under both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Effects {
    /// When they are waited for: shows reads that come too early.
    #[default]
    Late,
    /// When they are issued: shows memory that is overwritten too early.
    Early,
}

/// How the cores of this machine execute programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct HostOptions {
    /// Threads per CPU or `ptx` device; `None`: the machine's cores divided by the devices.
    pub threads: Option<usize>,
    /// When asynchronous copies happen.
    pub effects: Effects,
}

/// The devices of a session.
#[derive(Debug)]
pub(crate) enum Engines {
    /// The threads of each device.
    Cpu(Vec<Arc<Team>>),
    /// The driver of each device, and what kernels are made for.
    Gpu(Vec<Arc<dyn Driver>>, Gpu),
}

impl Engines {
    /// Opens devices.
    pub(crate) fn open(devices: &Devices, precision: Precision, host: HostOptions) -> Result<Engines, OpenError> {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = host.threads.unwrap_or((cores / devices.count()).max(1));
        match devices.kind() {
            DeviceKind::Cpu | DeviceKind::Cuda if host.effects != Effects::default() => {
                Err(OpenError::Effects(devices.clone()))
            }
            DeviceKind::Cpu if precision != Precision::F32 => Err(OpenError::Precision(devices.clone())),
            DeviceKind::Cpu => {
                let team = |_| Ok(Arc::new(Team::new(threads)?));
                Ok(Engines::Cpu((0..devices.count()).map(team).collect::<std::io::Result<_>>()?))
            }
            DeviceKind::Ptx => {
                Ok(Engines::Gpu(gpu::emulated(devices.ordinals(), threads, host.effects), Gpu { precision }))
            }
            DeviceKind::Cuda => {
                let absent = |e: CudaError| OpenError::Absent { devices: devices.clone(), problem: e.to_string() };
                Ok(Engines::Gpu(gpu::cuda(devices.ordinals()).map_err(absent)?, Gpu { precision }))
            }
        }
    }

    /// How many devices there are.
    pub(crate) fn count(&self) -> usize {
        match self {
            Engines::Cpu(teams) => teams.len(),
            Engines::Gpu(drivers, _) => drivers.len(),
        }
    }

    /// Loads one program per device, on as many devices as there are programs. `code` is what GPUs run instead of
    /// compiling the programs; `weights` says what each device's weights are, and `pool` has those that are in memory.
    pub(super) fn load(
        &self,
        programs: &[DeviceProgram],
        weights: &[Vec<(BufferId, WeightKey)>],
        pool: &Pool,
        code: Option<&[GpuCode]>,
    ) -> Result<Vec<Box<dyn Device>>, LoadError> {
        assert!(programs.len() <= self.count(), "{} programs for {} devices", programs.len(), self.count());
        match self {
            Engines::Cpu(teams) => {
                let load = |(i, team): (usize, &Arc<Team>)| -> Result<Box<dyn Device>, LoadError> {
                    Ok(Box::new(CpuDevice::new(programs[i].clone(), team.clone(), &weights[i], pool)?))
                };
                (0..programs.len()).zip(teams).map(load).collect()
            }
            Engines::Gpu(drivers, target) => gpu::load(programs, code, drivers, target),
        }
    }

    /// What devices send over links. GPUs send through each other's memory.
    pub(super) fn routes(&self, programs: &[DeviceProgram]) -> Vec<(Route, usize)> {
        match self {
            Engines::Cpu(_) => programs.iter().flat_map(device::routes).collect(),
            Engines::Gpu(..) => Vec::new(),
        }
    }

    /// The drivers of GPUs.
    pub(super) fn drivers(&self) -> &[Arc<dyn Driver>] {
        match self {
            Engines::Cpu(_) => &[],
            Engines::Gpu(drivers, _) => drivers,
        }
    }
}
