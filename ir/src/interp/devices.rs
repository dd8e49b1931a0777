//! Runs the Local graphs of several devices at once, a thread a device.

use super::{EvalError, Exchange, run_with};
use crate::{Graph, Tensor, Type};
use std::sync::mpsc::{Receiver, Sender, channel};

/// Queues to and from every other device.
struct Peers {
    to: Vec<Option<Sender<(usize, Tensor)>>>,
    from: Vec<Option<Receiver<(usize, Tensor)>>>,
}

impl Exchange for Peers {
    fn send(&mut self, channel: usize, to: usize, value: &Tensor) -> Result<(), EvalError> {
        let peer = self.to.get(to).and_then(Option::as_ref);
        let sent = peer.is_some_and(|p| p.send((channel, value.clone())).is_ok());
        if sent { Ok(()) } else { Err(EvalError::NoPeer { channel, peer: to }) }
    }

    fn recv(&mut self, channel: usize, from: usize, ty: &Type) -> Result<Tensor, EvalError> {
        let peer = self.from.get(from).and_then(Option::as_ref);
        let Some((got_channel, value)) = peer.and_then(|p| p.recv().ok()) else {
            return Err(EvalError::NoPeer { channel, peer: from });
        };
        if got_channel != channel || value.ty != *ty {
            let (want, got) = (Box::new(ty.clone()), Box::new(value.ty));
            return Err(EvalError::Unexpected { channel, peer: from, want, got_channel, got });
        }
        Ok(value)
    }
}

/// Runs one Local graph per device, with their arguments; gives each device's outputs.
pub fn run_devices(graphs: &[Graph], args: Vec<Vec<Tensor>>) -> Result<Vec<Vec<Tensor>>, EvalError> {
    let n = graphs.len();
    let mut peers: Vec<Peers> =
        (0..n).map(|_| Peers { to: (0..n).map(|_| None).collect(), from: (0..n).map(|_| None).collect() }).collect();
    for a in 0..n {
        for b in (0..n).filter(|&b| b != a) {
            let (tx, rx) = channel();
            peers[a].to[b] = Some(tx);
            peers[b].from[a] = Some(rx);
        }
    }
    std::thread::scope(|scope| {
        let workers: Vec<_> = graphs
            .iter()
            .zip(args)
            .zip(peers)
            .map(|((graph, args), mut exchange)| scope.spawn(move || run_with(graph, args, &mut exchange)))
            .collect();
        let results: Vec<_> = workers.into_iter().map(|w| w.join().expect("the interpreter does not panic")).collect();
        // A device that stopped makes the others miss it: report what stopped first, whoever noticed first.
        let missed =
            |device: usize, e: &EvalError| matches!(e, EvalError::NoPeer { peer, .. } if *peer < n && *peer != device);
        let cause = results.iter().enumerate().find_map(|(d, r)| r.as_ref().err().filter(|e| !missed(d, e)));
        if let Some(e) = cause {
            return Err(e.clone());
        }
        results.into_iter().collect()
    })
}
