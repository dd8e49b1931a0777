//! Tries whether copies from one GPU to another arrive as they were sent.

use super::{CudaDevice, CudaError, GpuInfo, peer_access};
use std::time::Instant;

/// Bytes of a trial.
const BYTES: usize = 32 << 20;

/// How a trial went.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CopyTest {
    /// Whether the GPU that sends can access the memory of the other, which programs need.
    pub peer: bool,
    /// Bytes a second.
    pub bytes_per_second: f64,
    /// Whether all bytes arrived as they were sent.
    pub correct: bool,
}

/// Copies a pattern from the memory of one GPU to that of another and looks at what arrives.
///
/// # Errors
/// A GPU cannot be used or has too little memory.
pub fn copy_test(from: &GpuInfo, to: &GpuInfo) -> Result<CopyTest, CudaError> {
    let peer = peer_access(from, to)?;
    let (a, b) = (CudaDevice::open(from.ordinal)?, CudaDevice::open(to.ordinal)?);
    if peer {
        a.enable_peer(&b)?;
    }
    let sent: Vec<u8> = (0..BYTES).map(|i| (i as u8).wrapping_mul(31).wrapping_add(from.ordinal as u8)).collect();
    let mut got = vec![0; BYTES];
    let (x, y) = (a.allocate(BYTES)?, b.allocate(BYTES)?);
    // SAFETY: both allocations have that many bytes, and are freed after all that uses them has ended.
    let seconds = unsafe {
        a.write(x, &sent)?;
        b.fill(y, 0, BYTES)?;
        b.synchronize()?;
        // Once without the clock: the first copy sets links up.
        a.copy(0, y, x, BYTES)?;
        a.synchronize()?;
        let start = Instant::now();
        a.copy(0, y, x, BYTES)?;
        a.synchronize()?;
        let seconds = start.elapsed().as_secs_f64();
        b.read(y, &mut got)?;
        a.free(x)?;
        b.free(y)?;
        seconds
    };
    Ok(CopyTest { peer, bytes_per_second: BYTES as f64 / seconds, correct: got == sent })
}
