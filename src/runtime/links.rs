//! Messages between devices: for every channel and direction a ring of slots in memory of its own.
//!
//! The sender copies into a free slot and goes on; the receiver takes what is there and frees the slot. So a device
//! may run ahead of the other by as many messages as a ring has slots, and its own buffers are free at once.

use super::memory::{OutOfMemory, Region};
use super::team::pause;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Slots of a ring.
const SLOTS: u64 = 2;

/// How long a device waits while no device goes on before it gives up: only a defect makes it.
const PATIENCE: Duration = Duration::from_secs(300);

/// A direction of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Route {
    pub(crate) channel: usize,
    pub(crate) from: usize,
    pub(crate) to: usize,
}

/// Why a message did not come through.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkError {
    /// The other device failed; its own error says why.
    #[error("another device stopped")]
    Stopped,
    /// The other device did not answer.
    #[error("device {device} waited for channel {channel}, and no device went on for {seconds} s")]
    TimedOut {
        /// The device that waits.
        device: usize,
        /// The communication.
        channel: usize,
        /// How long.
        seconds: u64,
    },
}

#[derive(Debug)]
struct Ring {
    memory: Region,
    slot: usize,
    sent: AtomicU64,
    taken: AtomicU64,
}

/// The rings of a program.
#[derive(Debug)]
pub(crate) struct Links {
    rings: BTreeMap<Route, Ring>,
    stop: AtomicBool,
    /// Counts commands of all devices.
    beats: AtomicU64,
    patience: Duration,
}

impl Links {
    /// Rings for messages of the sizes given.
    pub(crate) fn new(routes: impl IntoIterator<Item = (Route, usize)>) -> Result<Links, OutOfMemory> {
        let ring = |bytes: usize| -> Result<Ring, OutOfMemory> {
            let slot = bytes.next_multiple_of(super::memory::ALIGNMENT);
            let memory = Region::new(slot * SLOTS as usize)?;
            Ok(Ring { memory, slot, sent: AtomicU64::new(0), taken: AtomicU64::new(0) })
        };
        let rings = routes.into_iter().map(|(r, bytes)| Ok((r, ring(bytes)?))).collect::<Result<_, OutOfMemory>>()?;
        Ok(Links { rings, stop: AtomicBool::new(false), beats: AtomicU64::new(0), patience: PATIENCE })
    }

    /// Makes every wait end with an error: a device has failed.
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::Release);
    }

    /// Says that a device goes on, so that one that waits for it has patience.
    pub(crate) fn beat(&self) {
        self.beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Forgets messages that a call which failed has left, and lets devices wait again.
    pub(crate) fn reset(&mut self) {
        for ring in self.rings.values_mut() {
            (*ring.sent.get_mut(), *ring.taken.get_mut()) = (0, 0);
        }
        *self.stop.get_mut() = false;
    }

    fn ring(&self, route: Route) -> &Ring {
        self.rings.get(&route).expect("rings exist for every communication of the programs")
    }

    fn wait(&self, device: usize, route: Route, ready: impl Fn() -> bool) -> Result<(), LinkError> {
        let mut spins = 0;
        let mut since: Option<(u64, Instant)> = None;
        while !ready() {
            pause(&mut spins);
            if self.stop.load(Ordering::Acquire) {
                return Err(LinkError::Stopped);
            }
            if spins % 256 == 0 {
                let beats = self.beats.load(Ordering::Relaxed);
                match since {
                    Some((then, time)) if then == beats => {
                        if time.elapsed() > self.patience {
                            let seconds = self.patience.as_secs();
                            return Err(LinkError::TimedOut { device, channel: route.channel, seconds });
                        }
                    }
                    Some(_) | None => since = Some((beats, Instant::now())),
                }
            }
        }
        Ok(())
    }

    /// Waits for a free slot, lets `fill` write the message, and passes it on.
    pub(crate) fn send(&self, route: Route, fill: impl FnOnce(*mut u8)) -> Result<(), LinkError> {
        let ring = self.ring(route);
        let sent = ring.sent.load(Ordering::Relaxed);
        self.wait(route.from, route, || sent - ring.taken.load(Ordering::Acquire) < SLOTS)?;
        fill(ring.memory.at((sent % SLOTS) as usize * ring.slot));
        ring.sent.store(sent + 1, Ordering::Release);
        Ok(())
    }

    /// Waits for the next message, lets `take` read it, and frees its slot.
    pub(crate) fn receive(&self, route: Route, take: impl FnOnce(*const u8)) -> Result<(), LinkError> {
        let ring = self.ring(route);
        let taken = ring.taken.load(Ordering::Relaxed);
        self.wait(route.to, route, || ring.sent.load(Ordering::Acquire) > taken)?;
        take(ring.memory.at((taken % SLOTS) as usize * ring.slot));
        ring.taken.store(taken + 1, Ordering::Release);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_call_that_failed_are_forgotten() {
        let route = Route { channel: 0, from: 0, to: 1 };
        let mut links = Links::new([(route, 1)]).unwrap();
        // SAFETY: a slot has the byte that the route carries.
        let send = |links: &Links, byte: u8| links.send(route, |slot| unsafe { *slot = byte });
        send(&links, 1).unwrap();
        send(&links, 2).unwrap();
        links.stop();
        assert_eq!(send(&links, 3), Err(LinkError::Stopped));
        links.reset();
        send(&links, 4).unwrap();
        let mut got = 0;
        // SAFETY: as above.
        links.receive(route, |slot| got = unsafe { *slot }).unwrap();
        assert_eq!(got, 4);
    }

    #[test]
    fn a_device_waits_as_long_as_the_other_goes_on() {
        let route = Route { channel: 7, from: 0, to: 1 };
        let mut links = Links::new([(route, 1)]).unwrap();
        links.patience = Duration::from_secs(1);
        std::thread::scope(|scope| {
            let links = &links;
            scope.spawn(move || {
                for _ in 0..30 {
                    std::thread::sleep(Duration::from_millis(50));
                    links.beat();
                }
                links.send(route, |_| {}).unwrap();
            });
            assert_eq!(links.receive(route, |_| {}), Ok(()));
        });
        let late = links.receive(route, |_| {});
        assert_eq!(late, Err(LinkError::TimedOut { device: 1, channel: 7, seconds: 1 }));
    }
}
