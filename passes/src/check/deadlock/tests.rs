use super::*;
use crate::listing::{Action, Command, Message, Motion, Span, Stream};
use intwain_ir::DType;

fn message(bytes: usize) -> Message {
    Message { kind: "send".to_owned(), bytes, dtype: DType::F32 }
}

fn work(label: &str) -> Command {
    Command::new(label, Stream::Compute, Action::Work)
}

fn send(label: &str, channel: u32) -> Command {
    Command::new(label, Stream::Compute, Action::Send { channel, message: message(64) })
}

fn recv(label: &str, channel: u32) -> Command {
    Command::new(label, Stream::Compute, Action::Recv { channel, message: message(64) })
}

fn listing(devices: [Vec<Command>; 2]) -> Listing {
    Listing { devices: devices.to_vec(), rings: Default::default() }
}

#[test]
fn matched_transfers_pass() {
    let lists = listing([vec![work("a"), send("a→b", 0), recv("c→d", 1)], vec![recv("a→b", 0), send("c→d", 1)]]);
    assert_eq!(check(&lists), vec![]);
}

#[test]
fn crossed_sends_and_receives_are_a_cycle_with_names() {
    let lists = listing([vec![send("dense_1", 0), recv("dense_2", 1)], vec![send("dense_2", 1), recv("dense_1", 0)]]);
    let faults = check(&lists);
    let [ListingFault::Deadlock { cycle }] = &faults[..] else { panic!("{faults:?}") };
    assert_eq!(cycle.len(), 2);
    assert!(faults[0].to_string().contains("dense_1") && faults[0].to_string().contains("dense_2"));
}

/// The naive order of transfers of a pipeline with one forward and one backward at a time.
fn one_forward_one_backward() -> [Vec<Command>; 2] {
    let (mut first, mut second) = (vec![send("F0", 0), send("F1", 0)], Vec::new());
    for k in 0..4 {
        first.push(recv(&format!("B{k}"), 1));
        if k + 2 < 4 {
            first.push(send(&format!("F{}", k + 2), 0));
        }
        second.push(recv(&format!("F{k}"), 0));
        second.push(send(&format!("B{k}"), 1));
        second.push(Command::new(format!("release{k}"), Stream::Compute, Action::Release { channel: 0 }));
    }
    [first, second]
}

#[test]
fn naive_pipeline_order_is_rejected_and_rings_make_it_right() {
    let mut lists = listing(one_forward_one_backward());
    assert!(matches!(check(&lists)[0], ListingFault::Deadlock { .. }));
    lists.rings.insert(0, 2);
    assert_eq!(check(&lists), vec![]);
    lists.rings.insert(0, 1);
    assert!(matches!(check(&lists)[0], ListingFault::Deadlock { .. }));
}

#[test]
fn loops_are_joined_iteration_by_iteration() {
    let body =
        |commands: Vec<Command>| vec![Command::new("loop", Stream::Compute, Action::Loop { count: 5, body: commands })];
    let good = listing([body(vec![send("x", 0), recv("y", 1)]), body(vec![recv("x", 0), send("y", 1)])]);
    assert_eq!(check(&good), vec![]);
    let crossed = listing([body(vec![send("x", 0), recv("y", 1)]), body(vec![send("y", 1), recv("x", 0)])]);
    assert!(matches!(check(&crossed)[0], ListingFault::Deadlock { .. }));
}

#[test]
fn unmatched_and_different_ends_are_named() {
    let lists = listing([vec![send("a", 0), send("b", 0)], vec![recv("a", 0)]]);
    assert!(
        matches!(&check(&lists)[0], ListingFault::Join(JoinFault::Unmatched { channel: 0, what }) if what.contains('b'))
    );
    let mut other = recv("a", 0);
    other.action = Action::Recv { channel: 0, message: message(32) };
    let lists = listing([vec![send("a", 0)], vec![other]]);
    assert!(matches!(check(&lists)[0], ListingFault::Join(JoinFault::Mismatch { .. })));
}

#[test]
fn a_collective_needs_everybody() {
    let reduce =
        |label: &str| Command::new(label, Stream::Compute, Action::Collective { channel: 7, message: message(8) });
    assert_eq!(check(&listing([vec![reduce("g")], vec![reduce("g")]])), vec![]);
    for lists in [listing([vec![reduce("g")], vec![]]), listing([vec![reduce("g"), reduce("h")], vec![reduce("g")]])] {
        assert!(matches!(check(&lists)[0], ListingFault::Join(JoinFault::Unmatched { .. })));
    }
}

/// A copy on another stream reads what a kernel then overwrites.
fn reuse(ordered: bool) -> Listing {
    let buffer = Span::fixed(0, 0, 64);
    let mut make = work("make");
    make.writes = vec![buffer];
    make.signals = Some(0);
    let mut copy = send("out", 0);
    copy.stream = Stream::CopyOut;
    copy.waits = vec![0];
    copy.reads = vec![buffer];
    copy.signals = Some(1);
    let mut overwrite = work("overwrite");
    overwrite.writes = vec![Span::fixed(0, 32, 64)];
    if ordered {
        overwrite.waits = vec![1];
    }
    listing([vec![make, copy, overwrite], vec![recv("out", 0)]])
}

#[test]
fn early_reuse_is_a_race_and_an_event_orders_it() {
    assert_eq!(check(&reuse(true)), vec![]);
    let faults = check(&reuse(false));
    let [ListingFault::Race { device: 0, byte: 32, first, second }] = &faults[..] else { panic!("{faults:?}") };
    let mut pair = [first.as_str(), second.as_str()];
    pair.sort_unstable();
    assert_eq!(pair, ["device 0: out", "device 0: overwrite"]);
}

/// The sender writes slots in the memory of the receiver, which reads them with a kernel and gives them back.
fn ring(slots: usize, released_after_use: bool) -> Listing {
    let slot = Span { device: 1, start: 0, len: 64, motion: Motion::Ring { step: 64, slots: 2 } };
    let mut write = send("write", 0);
    write.writes = vec![slot];
    let mut use_slot = work("use");
    use_slot.reads = vec![slot];
    let release = Command::new("release", Stream::Compute, Action::Release { channel: 0 });
    let body = if released_after_use {
        vec![recv("arrive", 0), use_slot, release]
    } else {
        vec![recv("arrive", 0), release, use_slot]
    };
    let repeat = |body| vec![Command::new("loop", Stream::Compute, Action::Loop { count: 6, body })];
    let mut lists = listing([repeat(vec![write]), repeat(body)]);
    lists.rings.insert(0, slots);
    lists
}

#[test]
fn a_slot_is_written_again_only_after_its_release() {
    assert_eq!(check(&ring(2, true)), vec![]);
    assert!(matches!(check(&ring(2, false))[0], ListingFault::Race { device: 1, .. }));
    assert!(matches!(check(&ring(3, true))[0], ListingFault::Race { device: 1, .. }));
}
