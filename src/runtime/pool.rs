//! Weights in the memory of this machine, one copy for all programs and devices that only read them.

use super::memory::{OutOfMemory, Region};
use intwain_ir::Type;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// What is read: a weight, or a device's part of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct WeightKey {
    /// Its name in the graph.
    pub(super) name: Arc<str>,
    /// The type of what the device has.
    pub(super) ty: Type,
    /// The dimension that is divided, and where in it the part begins.
    pub(super) from: Option<(usize, usize)>,
}

/// In which form it lies in memory.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Form {
    /// Row-major.
    Plain,
    /// As kernels of this packing want it.
    Packed(Arc<str>),
}

/// A weight in memory. It is filled while its program loads, and never written again.
#[derive(Debug)]
pub(super) struct Piece {
    pub(super) region: Region,
    filled: AtomicBool,
}

impl Piece {
    /// Memory of one program's own.
    pub(super) fn new(bytes: usize) -> Result<Arc<Piece>, OutOfMemory> {
        Ok(Arc::new(Piece { region: Region::new(bytes)?, filled: AtomicBool::new(false) }))
    }

    pub(super) fn is_filled(&self) -> bool {
        self.filled.load(Ordering::Acquire)
    }

    pub(super) fn fill(&self) {
        self.filled.store(true, Ordering::Release);
    }

    /// Where it is, and its size: equal for those who share it.
    pub(super) fn place(&self) -> (usize, usize) {
        (self.region.at(0) as usize, self.region.len())
    }
}

/// The weights of one model that some program has in memory. Programs of other values need another pool.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    pieces: Mutex<HashMap<(WeightKey, Form), Weak<Piece>>>,
}

impl Pool {
    /// The piece of this form, made where no program has it.
    pub(super) fn piece(&self, key: &WeightKey, form: Form, bytes: usize) -> Result<Arc<Piece>, OutOfMemory> {
        // The map is consistent between any two operations on it.
        let mut pieces = self.pieces.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (key.clone(), form);
        if let Some(known) = pieces.get(&key).and_then(Weak::upgrade) {
            return Ok(known);
        }
        let piece = Piece::new(bytes)?;
        pieces.retain(|_, piece| piece.strong_count() > 0);
        pieces.insert(key, Arc::downgrade(&piece));
        Ok(piece)
    }
}

/// Where weights come from when a program loads.
pub(crate) trait WeightReader<E> {
    /// Writes the rows of a whole weight along its first dimension, in its type in the graph; a scalar has one row. `param`
    /// is its position among the graph's parameters.
    fn read(&mut self, param: usize, rows: Range<usize>, to: &mut [u8]) -> Result<(), E>;
}

/// Whole tensors, for programs whose weights are small or made.
impl<E, F: FnMut(usize) -> Result<intwain_ir::Tensor, E>> WeightReader<E> for F {
    fn read(&mut self, param: usize, rows: Range<usize>, to: &mut [u8]) -> Result<(), E> {
        let tensor = self(param)?;
        let row = to.len().checked_div(rows.len()).unwrap_or(0);
        to.copy_from_slice(&tensor.data[rows.start * row..rows.end * row]);
        Ok(())
    }
}

/// What a device wants of a weight.
#[derive(Debug)]
pub(super) enum Destination {
    /// Nothing: it has it.
    Ready,
    /// Its bytes, or those of the device's part, here.
    Memory(*mut u8),
    /// To be given the whole.
    Copy,
}
