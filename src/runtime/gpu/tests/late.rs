//! A driver that does as late as it may what the streams besides the one for computation are given.

use crate::runtime::gpu::driver::{Address, Driver, DriverError, Event, Module, Reach, Shape};
use intwain_passes::listing::Stream;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

/// A device that executes what is on other streams than the one for computation only when an event demands it: as
/// late as a GPU may.
pub(super) struct Late {
    pub(super) inner: Arc<dyn Driver>,
    pub(super) queues: Arc<Queues>,
    pub(super) heed: Heed,
}

/// Whether events are heeded.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Heed {
    Events,
    Nothing,
}

/// What streams have not done yet.
#[derive(Default)]
pub(super) struct Queues(Mutex<BTreeMap<Stream, Queue>>);

#[derive(Default)]
struct Queue {
    done: usize,
    waiting: VecDeque<Deferred>,
}

enum Deferred {
    Run(Box<dyn FnOnce() -> Result<(), DriverError> + Send>),
    /// Another stream must have done so many commands.
    Await(Stream, usize),
}

impl Queues {
    fn push(&self, stream: Stream, what: Deferred) -> Result<(), DriverError> {
        let mut all = self.0.lock().unwrap();
        let queue = all.entry(stream).or_default();
        queue.waiting.push_back(what);
        let given = queue.done + queue.waiting.len();
        if stream == Stream::Compute { Queues::go(&mut all, stream, given) } else { Ok(()) }
    }

    fn go(all: &mut BTreeMap<Stream, Queue>, stream: Stream, until: usize) -> Result<(), DriverError> {
        loop {
            let queue = all.entry(stream).or_default();
            if queue.done >= until {
                return Ok(());
            }
            queue.done += 1;
            match queue.waiting.pop_front().expect("events are of commands that were given") {
                Deferred::Run(f) => f()?,
                Deferred::Await(other, count) => Queues::go(all, other, count)?,
            }
        }
    }

    fn given(&self, stream: Stream) -> usize {
        self.0.lock().unwrap().get(&stream).map_or(0, |q| q.done + q.waiting.len())
    }
}

struct LateEvent {
    queues: Arc<Queues>,
    stream: Stream,
    count: usize,
    heed: Heed,
}

impl Event for LateEvent {
    fn wait(&self, stream: Stream) -> Result<(), DriverError> {
        match self.heed {
            Heed::Events => self.queues.push(stream, Deferred::Await(self.stream, self.count)),
            Heed::Nothing => Ok(()),
        }
    }
}

struct LateModule {
    inner: Arc<dyn Module>,
    queues: Arc<Queues>,
}

impl Module for LateModule {
    fn launch(&self, stream: Stream, kernel: usize, shape: Shape, args: &[Address]) -> Result<(), DriverError> {
        let (inner, args) = (self.inner.clone(), args.to_vec());
        self.queues.push(stream, Deferred::Run(Box::new(move || inner.launch(stream, kernel, shape, &args))))
    }
}

impl Driver for Late {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn allocate(&self, bytes: usize, reach: Reach) -> Result<Address, DriverError> {
        self.inner.allocate(bytes, reach)
    }

    fn free(&self, at: Address, reach: Reach) {
        self.inner.free(at, reach);
    }

    fn write(&self, to: Address, data: &[u8]) -> Result<(), DriverError> {
        self.inner.write(to, data)
    }

    fn read(&self, from: Address, out: &mut [u8]) -> Result<(), DriverError> {
        self.inner.read(from, out)
    }

    fn copy(&self, stream: Stream, from: Address, to: Address, bytes: usize) -> Result<(), DriverError> {
        let inner = self.inner.clone();
        self.queues.push(stream, Deferred::Run(Box::new(move || inner.copy(stream, from, to, bytes))))
    }

    fn clear(&self, at: Address, bytes: usize) -> Result<(), DriverError> {
        self.inner.clear(at, bytes)
    }

    fn load(&self, text: &str, kernels: &[String]) -> Result<Box<dyn Module>, DriverError> {
        let inner = Arc::from(self.inner.load(text, kernels)?);
        Ok(Box::new(LateModule { inner, queues: self.queues.clone() }))
    }

    fn record(&self, stream: Stream) -> Result<Box<dyn Event>, DriverError> {
        let (queues, count) = (self.queues.clone(), self.queues.given(stream));
        Ok(Box::new(LateEvent { queues, stream, count, heed: self.heed }))
    }

    fn synchronise(&self) -> Result<(), DriverError> {
        let mut all = self.queues.0.lock().unwrap();
        let given: Vec<(Stream, usize)> = all.iter().map(|(s, q)| (*s, q.done + q.waiting.len())).collect();
        given.into_iter().try_for_each(|(s, count)| Queues::go(&mut all, s, count))
    }

    fn stop(&self) {
        self.inner.stop();
    }

    fn resume(&self) {
        self.inner.resume();
    }
}
