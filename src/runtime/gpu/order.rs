//! Which commands of a program must wait for commands of other streams.
//!
//! Commands are given to their streams in the order of the program. Two of them that touch the same bytes, at least one to
//! write, keep that order; everything else may overlap, so that communication runs beside computation.

use intwain_passes::listing::Stream;
use intwain_passes::program::{BufferId, Command, DeviceProgram, Home};
use std::ops::Range;

/// What a command waits for, and whether anybody waits for it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Order {
    /// Earlier commands of other streams, by place in the list.
    pub(super) waits: Vec<usize>,
    /// Whether a later command of another stream waits for this one.
    pub(super) signals: bool,
}

/// Bytes in one of a device's memories.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Span {
    home: Home,
    bytes: Range<usize>,
}

impl Span {
    fn meets(&self, other: &Span) -> bool {
        self.home == other.home && self.bytes.start < other.bytes.end && other.bytes.start < self.bytes.end
    }
}

/// The order of commands among streams.
pub(super) fn order(program: &DeviceProgram, commands: &[Command]) -> Vec<Order> {
    let span = |id: &BufferId| {
        let b = &program.buffers[id.0 as usize];
        Span { home: b.home, bytes: b.offset..b.offset + b.ty.bytes() }
    };
    let spans = |ids: &[BufferId]| ids.iter().map(span).collect::<Vec<Span>>();
    let touched: Vec<(Vec<Span>, Vec<Span>)> = commands.iter().map(|c| (spans(&c.reads), spans(&c.writes))).collect();
    let meet = |a: &[Span], b: &[Span]| a.iter().any(|a| b.iter().any(|b| a.meets(b)));
    let conflict = |i: usize, j: usize| {
        let ((reads, writes), (earlier_reads, earlier_writes)) = (&touched[i], &touched[j]);
        meet(writes, earlier_reads) || meet(writes, earlier_writes) || meet(reads, earlier_writes)
    };
    let mut orders = vec![Order::default(); commands.len()];
    // For each pair of streams: up to where the first has already waited for the second.
    let mut waited: Vec<(Stream, Stream, usize)> = Vec::new();
    for i in 0..commands.len() {
        let own = commands[i].stream;
        for other in [Stream::Compute, Stream::CopyIn, Stream::CopyOut].into_iter().filter(|s| *s != own) {
            let last = (0..i).rev().find(|&j| commands[j].stream == other && conflict(i, j));
            let Some(last) = last else { continue };
            let known = waited.iter_mut().find(|w| (w.0, w.1) == (own, other));
            match known {
                Some(known) if known.2 >= last => continue,
                Some(known) => known.2 = last,
                None => waited.push((own, other, last)),
            }
            orders[i].waits.push(last);
            orders[last].signals = true;
        }
    }
    orders
}

/// The streams besides [`Stream::Compute`] that commands are on.
pub(super) fn others(commands: &[Command]) -> Vec<Stream> {
    let used = |s: &Stream| commands.iter().any(|c| c.stream == *s);
    [Stream::CopyIn, Stream::CopyOut].into_iter().filter(used).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use intwain_ir::{DType, Origin, Type};
    use intwain_passes::program::{Action, Buffer};

    /// Commands as (stream, buffers read, buffers written), over buffers of 64 bytes.
    fn ordered(commands: &[(Stream, &[u32], &[u32])], offsets: &[usize]) -> Vec<Order> {
        let buffer = |&offset: &usize| Buffer { ty: Type::new(DType::F32, [16]), home: Home::Arena, offset };
        let program = DeviceProgram {
            device: 0,
            buffers: offsets.iter().map(buffer).collect(),
            persistent_bytes: 0,
            arena_bytes: 1024,
            arena_lower_bound: 0,
            kernels: Vec::new(),
            prepare: Vec::new(),
            step: Vec::new(),
            inputs: Vec::new(),
            weights: Vec::new(),
            states: Vec::new(),
            outputs: Vec::new(),
        };
        let ids = |list: &[u32]| list.iter().map(|&b| BufferId(b)).collect();
        let command = |&(stream, reads, writes): &(Stream, &[u32], &[u32])| Command {
            action: Action::Kernel(0),
            stream,
            reads: ids(reads),
            writes: ids(writes),
            origin: Origin::default(),
            nodes: Vec::new(),
        };
        let commands: Vec<Command> = commands.iter().map(command).collect();
        order(&program, &commands)
    }

    use Stream::{Compute, CopyIn, CopyOut};

    #[test]
    fn readers_wait_for_writers_of_other_streams() {
        let got = ordered(&[(Compute, &[], &[0]), (CopyOut, &[0], &[1]), (Compute, &[1], &[2])], &[0, 64, 128]);
        assert_eq!(got[0], Order { waits: vec![], signals: true });
        assert_eq!(got[1], Order { waits: vec![0], signals: true });
        assert_eq!(got[2], Order { waits: vec![1], signals: false });
    }

    #[test]
    fn memory_is_reused_after_its_readers() {
        // Buffer 1 has the bytes of buffer 0, half of them.
        let got = ordered(&[(CopyOut, &[0], &[]), (Compute, &[], &[1])], &[0, 32]);
        assert_eq!(got[1].waits, [0]);
        let apart = ordered(&[(CopyOut, &[0], &[]), (Compute, &[], &[1])], &[0, 64]);
        assert_eq!(apart[1].waits, [0; 0]);
    }

    #[test]
    fn what_was_waited_for_is_not_waited_for_again() {
        let commands: [(Stream, &[u32], &[u32]); 5] = [
            (CopyIn, &[], &[0]),
            (CopyIn, &[], &[1]),
            (Compute, &[1], &[2]),
            (Compute, &[0], &[3]),
            (Compute, &[2], &[4]),
        ];
        let got = ordered(&commands, &[0, 64, 128, 192, 256]);
        assert_eq!(got[2].waits, [1]);
        assert_eq!(got[3].waits, [0; 0]);
        assert!(!got[0].signals && got[1].signals);
    }
}
