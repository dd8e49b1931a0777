//! One GPU of a program: its memory, its module and its commands.

use super::driver::{Address, Driver, DriverError, Module, Reach};
use super::routine::{Context, Routine, copying};
use crate::kernels::gpu::GpuCode;
use crate::runtime::collective::Part;
use crate::runtime::device::{Device, DeviceError, LoadError};
use crate::runtime::links::Links;
use intwain_codegen::schedule::gpu::FLAG_BYTES;
use intwain_passes::listing::Stream;
use intwain_passes::program::{Binding, BufferId, DeviceProgram};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A device's program with memory and code.
pub(super) struct GpuDevice {
    driver: Arc<dyn Driver>,
    module: Box<dyn Module>,
    workspace: Block,
    mailboxes: Mailboxes,
    main: Routine,
}

/// What a device keeps for each channel: the memory into which the other sends.
pub(super) struct Mailboxes(BTreeMap<usize, Block>);

impl Mailboxes {
    /// Allocates what the code of a device's program asks for.
    pub(super) fn new(driver: &Arc<dyn Driver>, code: &GpuCode) -> Result<Mailboxes, DriverError> {
        let used = code.launches.communications.iter().filter(|c| c.mailbox > 0);
        let boxes = used.map(|c| Ok((c.channel, Block::reaching(driver, c.mailbox, Reach::Both)?)));
        let mailboxes = Mailboxes(boxes.collect::<Result<_, DriverError>>()?);
        mailboxes.clear()?;
        Ok(mailboxes)
    }

    /// Says that nothing was sent yet. That is done when this returns: the peer may send next.
    fn clear(&self) -> Result<(), DriverError> {
        for b in self.0.values() {
            b.driver.clear(b.at, b.bytes.min(FLAG_BYTES))?;
            b.driver.synchronise()?;
        }
        Ok(())
    }

    /// The addresses, for the device itself and for its peer.
    pub(super) fn addresses(&self) -> BTreeMap<usize, Address> {
        self.0.iter().map(|(channel, b)| (*channel, b.at)).collect()
    }

    fn bytes(&self) -> usize {
        self.0.values().map(|b| b.bytes).sum()
    }
}

/// Where the launches of a device find what is not in its program's buffers.
pub(super) struct Surroundings<'a> {
    pub(super) driver: &'a Arc<dyn Driver>,
    pub(super) workspace: Address,
    pub(super) mailboxes: BTreeMap<usize, Address>,
    pub(super) peer: &'a BTreeMap<usize, Address>,
}

/// Memory of a device, freed with it.
pub(super) struct Block {
    driver: Arc<dyn Driver>,
    pub(super) at: Address,
    pub(super) bytes: usize,
    reach: Reach,
}

impl Block {
    /// Memory of the device alone.
    pub(super) fn new(driver: &Arc<dyn Driver>, bytes: usize) -> Result<Block, DriverError> {
        Block::reaching(driver, bytes, Reach::Own)
    }

    fn reaching(driver: &Arc<dyn Driver>, bytes: usize, reach: Reach) -> Result<Block, DriverError> {
        Ok(Block { driver: driver.clone(), at: driver.allocate(bytes, reach)?, bytes, reach })
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        self.driver.free(self.at, self.reach);
    }
}

impl GpuDevice {
    /// Loads code, allocates memory and resolves addresses; `peer` is where the mailboxes of the other device are.
    pub(super) fn new(
        program: DeviceProgram,
        driver: Arc<dyn Driver>,
        code: &GpuCode,
        mailboxes: Mailboxes,
        peer: &BTreeMap<usize, Address>,
    ) -> Result<GpuDevice, LoadError> {
        let module = driver.load(&code.text, &code.kernels)?;
        let workspace = Block::new(&driver, code.workspace)?;
        let around = Surroundings { driver: &driver, workspace: workspace.at, mailboxes: mailboxes.addresses(), peer };
        let main = Routine::new(program, &code.launches, &around)?;
        Ok(GpuDevice { driver, module, workspace, mailboxes, main })
    }

    fn context(&self) -> Context<'_> {
        Context { driver: &*self.driver, module: &*self.module }
    }
}

impl Device for GpuDevice {
    fn bytes(&self) -> usize {
        self.workspace.bytes + self.mailboxes.bytes() + self.main.bytes()
    }

    unsafe fn put(&mut self, id: BufferId, part: Option<&Part>, from: *const u8) -> Result<(), DeviceError> {
        let bytes = self.main.ty(id).bytes();
        let to = self.main.address(id);
        let written = match part {
            Some(part) => {
                let mut dense = vec![0u8; bytes];
                // SAFETY: by the caller's promise; there is room for the part.
                unsafe { part.read(from, dense.as_mut_ptr()) };
                self.driver.write(to, &dense)
            }
            // SAFETY: by the caller's promise.
            None => self.driver.write(to, unsafe { std::slice::from_raw_parts(from, bytes) }),
        };
        written.map_err(copying("inputs and weights"))
    }

    unsafe fn take(&mut self, id: BufferId, part: Option<&Part>, to: *mut u8) -> Result<(), DeviceError> {
        let mut dense = vec![0u8; self.main.ty(id).bytes()];
        self.driver.read(self.main.address(id), &mut dense).map_err(copying("outputs"))?;
        match part {
            // SAFETY: by the caller's promise; `dense` is the part.
            Some(part) => unsafe { part.write(dense.as_ptr(), to) },
            // SAFETY: by the caller's promise.
            None => unsafe { to.copy_from_nonoverlapping(dense.as_ptr(), dense.len()) },
        }
        Ok(())
    }

    fn prepare(&mut self, _: &Links) -> Result<(), DeviceError> {
        let cx = self.context();
        self.main.prepare(cx)
    }

    fn step(&mut self, _: &Links) -> Result<(), DeviceError> {
        let cx = self.context();
        self.main.step(cx)
    }

    fn advance(&mut self) -> Result<(), DeviceError> {
        let main = &self.main;
        let failed = |state: &Binding| {
            let layer = state.name.to_string();
            move |problem| DeviceError::Gpu { layer, problem }
        };
        let moves = main.program.states.iter().filter_map(|(state, next)| Some((state, (*next)?)));
        let (kept, made): (Vec<_>, Vec<_>) =
            moves.partition(|(_, next)| main.program.buffers[next.0 as usize].home.is_kept());
        let mut leaving = Vec::new();
        for &(state, next) in &kept {
            let mut data = vec![0u8; main.ty(next).bytes()];
            self.driver.read(main.address(next), &mut data).map_err(failed(state))?;
            leaving.push((state, data));
        }
        for (state, next) in made {
            let (from, to) = (main.address(next), main.address(state.buffer));
            self.driver.copy(Stream::Compute, from, to, main.ty(next).bytes()).map_err(failed(state))?;
        }
        for (state, data) in leaving {
            self.driver.write(main.address(state.buffer), &data).map_err(failed(state))?;
        }
        Ok(())
    }

    fn forget(&mut self) -> Result<(), DeviceError> {
        let main = &self.main;
        for (state, _) in &main.program.states {
            let cleared = self.driver.clear(main.address(state.buffer), main.ty(state.buffer).bytes());
            cleared.map_err(copying("states"))?;
        }
        Ok(())
    }

    fn settle(&mut self) -> Result<(), DeviceError> {
        self.driver.synchronise().map_err(copying("what was not done yet"))
    }

    fn reset(&mut self) -> Result<(), DeviceError> {
        self.mailboxes.clear().map_err(copying("mailboxes"))
    }
}
