//! Communication between two GPUs over peer memory, as one kernel a device.
//!
//! For every channel each device keeps a *mailbox* in its own memory, which the peer writes too:
//!
//! ```text
//! sent[32] taken[32] epochs[32] (u32)   slot 0   slot 1
//! ```
//!
//! The kernels of both devices have the same number of blocks, at most 32, all resident. An *epoch* numbers the uses of
//! the channel from 1 on; each block counts its own in device memory, so that launches carry no number and can be
//! replayed. In epoch e:
//!
//! 1. Threads wait until every block of the peer has taken what epoch e − 2 left in slot e mod 2 of the peer's mailbox.
//! 2. The block packs its share of the message into that slot; thread 0 then says so in the peer's `sent`.
//! 3. What the result has of the own operand alone is written.
//! 4. Threads wait until every block of the peer has sent; the block then makes its share of the rest of the result.
//! 5. Thread 0 says so in the peer's `taken`, and stores e.
//!
//! Operands that share a message (`bucket`) have their parts in the slot one after another, each aligned, and every step
//! is done for all of them. A device that only sends does 1, 2 and 5's store, one that only receives does 3 to 5. Flags are stored with release
//! and read with acquire semantics in system scope (PTX ISA 8.9); the barriers between a flag and the accesses of the
//! block's other threads carry the order on. Every block packs before it waits for a message, so neither device can
//! keep the other from going on.

mod share;

#[cfg(test)]
mod tests;

use super::launch::identifier;
use super::{ALIGNMENT, Gpu};
use intwain_ir::kernel::{Access, Block, Bound, Builder, Entry, Id, Kernel, Place, Reg, Stmt};
use intwain_ir::messages::{Messages, Piece};
use intwain_ir::scalar::{Binary, Compare, Scalar};
use intwain_ir::{DType, Type};
use share::{Share, Slot};

/// Blocks of an exchange at most: few enough to be resident on any GPU whatever else runs.
const BLOCKS: usize = 32;

/// Threads of a block.
const THREADS: u32 = 256;

/// Bytes that a block packs before another is worth its while.
const BLOCK_BYTES: usize = 16 << 10;

/// Blocks of a kernel that only copies within a device.
const COPY_BLOCKS: usize = 1024;

/// First bytes of a mailbox, which must be 0 before its first use and are never touched by the host afterwards.
pub const FLAG_BYTES: usize = (3 * BLOCKS * size_of::<u32>()).next_multiple_of(ALIGNMENT as usize);

/// First bytes of a mailbox that the peer writes flags to. With 0x7f in all of them, nobody waits any more.
pub const PEER_FLAG_BYTES: usize = EPOCHS;

const SENT: usize = 0;
const TAKEN: usize = BLOCKS * size_of::<u32>();
const EPOCHS: usize = 2 * BLOCKS * size_of::<u32>();

/// What a parameter of an exchange is bound to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ExchangeArgument {
    /// An operand of the communication.
    Operand(usize),
    /// A result.
    Result(usize),
    /// The own mailbox, from this byte on.
    Mailbox(usize),
    /// The peer's mailbox, from this byte on.
    PeerMailbox(usize),
}

/// The kernel of a communication on one device.
#[derive(Clone, Debug)]
pub struct Exchange {
    /// One launch per use of the channel; how many blocks it has is its entry.
    pub kernel: Kernel,
    /// One per parameter.
    pub args: Vec<ExchangeArgument>,
    /// Bytes of the own mailbox, which begins with [`FLAG_BYTES`] zeros; 0 if nothing is sent either way.
    pub mailbox: usize,
    /// Bytes of the peer's mailbox, as the peer's own exchange says.
    pub peer_mailbox: usize,
}

impl Gpu {
    /// The kernel that does what `members` say, one for each operand and result that share the message; `None` if nothing
    /// is to be done. Both devices of a channel have one or neither sends nor receives. `name` says in listings what the
    /// kernel is for.
    pub fn exchange(
        &self,
        name: &str,
        members: &[Messages],
        operands: &[&Type],
        results: &[&Type],
    ) -> Option<Exchange> {
        if members.iter().all(|m| m.incoming.is_none() && m.outgoing.is_none() && m.result.is_empty()) {
            return None;
        }
        let parts = Part::of_all(members);
        let end = parts.last().map_or([0, 0], |p| p.end);
        let communicates = end != [0, 0];
        let blocks = match communicates {
            true => end[0].max(end[1]).div_ceil(BLOCK_BYTES).clamp(1, BLOCKS),
            false => results.iter().map(|r| r.bytes()).sum::<usize>().div_ceil(BLOCK_BYTES).clamp(1, COPY_BLOCKS),
        };
        let entry = Entry::Grid { blocks: [blocks as u32, 1, 1], threads: [THREADS, 1, 1] };
        let w = Writer {
            b: Builder::new(identifier(name), entry, Bound::Memory),
            params: Vec::new(),
            blocks,
            operands,
            results,
            slots: end,
        };
        let (kernel, args) = w.write(members, &parts);
        let mailbox = |slot: usize| if communicates { FLAG_BYTES + 2 * slot } else { 0 };
        Some(Exchange { kernel, args, mailbox: mailbox(end[INCOMING]), peer_mailbox: mailbox(end[OUTGOING]) })
    }
}

const INCOMING: usize = 0;
const OUTGOING: usize = 1;

/// Where a member's part of a message is, in bytes from the start of the slot, by direction.
#[derive(Clone, Copy)]
struct Part {
    start: [usize; 2],
    /// Where the next begins.
    end: [usize; 2],
}

impl Part {
    fn of_all(members: &[Messages]) -> Vec<Part> {
        let mut at = [0, 0];
        let part = |m: &Messages| {
            let bytes = [m.incoming.as_ref().map_or(0, Type::bytes), m.outgoing.as_ref().map_or(0, |p| p.ty.bytes())];
            let start = at;
            at = [INCOMING, OUTGOING].map(|way| start[way] + bytes[way].next_multiple_of(ALIGNMENT as usize));
            Part { start, end: at }
        };
        members.iter().map(part).collect()
    }
}

/// One operand and result of the communication.
#[derive(Clone, Copy)]
struct Member<'a> {
    at: usize,
    messages: &'a Messages,
    part: Part,
}

/// The epoch in registers.
#[derive(Clone, Copy)]
struct Epoch {
    /// The number, u32.
    number: Reg,
    /// The slot that it uses, i64.
    slot: Reg,
}

/// Writes the kernel of an exchange.
struct Writer<'a> {
    b: Builder,
    /// Parameters made so far: what they are bound to, and as elements of which type they are seen.
    params: Vec<(ExchangeArgument, DType, Place)>,
    blocks: usize,
    operands: &'a [&'a Type],
    results: &'a [&'a Type],
    /// Bytes of a slot in each direction.
    slots: [usize; 2],
}

impl Writer<'_> {
    fn write(mut self, members: &[Messages], parts: &[Part]) -> (Kernel, Vec<ExchangeArgument>) {
        let each = members.iter().zip(parts).enumerate();
        let each: Vec<Member<'_>> = each.map(|(at, (messages, part))| Member { at, messages, part: *part }).collect();
        let epoch = (self.slots != [0, 0]).then(|| self.epoch());
        if let Some(epoch) = epoch.filter(|_| self.slots[OUTGOING] > 0) {
            let two = self.b.constant(Scalar::from_i64(DType::U32, 2));
            let before = self.b.binary(Binary::Sub, epoch.number, two);
            self.wait(TAKEN, before);
            for member in &each {
                if let Some(piece) = &member.messages.outgoing {
                    self = self.share(*member, piece, Target::Message, Some(epoch));
                }
            }
            self.signal(SENT, epoch.number);
        }
        self = self.results(&each, |piece| !piece.reads_message(), epoch);
        if let Some(epoch) = epoch.filter(|_| self.slots[INCOMING] > 0) {
            self.wait(SENT, epoch.number);
            self = self.results(&each, Piece::reads_message, Some(epoch));
            self.signal(TAKEN, epoch.number);
        }
        if let Some(epoch) = epoch {
            let epochs = self.flags(ExchangeArgument::Mailbox(EPOCHS), Access::Update);
            let block = self.b.id(Id::Block(0));
            let store = Stmt::Store { to: epochs, index: block, offset: 0, value: epoch.number };
            self.first_thread(store);
        }
        (self.b.finish(), self.params.into_iter().map(|p| p.0).collect())
    }

    /// Computes the block's share of some pieces of all results.
    fn results(mut self, members: &[Member<'_>], wanted: fn(&Piece) -> bool, epoch: Option<Epoch>) -> Self {
        for member in members {
            for piece in member.messages.result.iter().filter(|p| wanted(p)) {
                self = self.share(*member, piece, Target::Result, epoch);
            }
        }
        self
    }

    /// The block's next epoch.
    fn epoch(&mut self) -> Epoch {
        let epochs = self.flags(ExchangeArgument::Mailbox(EPOCHS), Access::Update);
        let block = self.b.id(Id::Block(0));
        let last = self.b.load(epochs, block, 0, 1);
        let one = self.b.constant(Scalar::one(DType::U32));
        let number = self.b.binary(Binary::Add, last, one);
        let parity = self.b.binary(Binary::And, number, one);
        Epoch { number, slot: self.b.cast(DType::I64, parity) }
    }

    /// A parameter for what the argument is bound to, seen as `elements` elements of a type.
    fn param(&mut self, arg: ExchangeArgument, dtype: DType, elements: usize, access: Access) -> Place {
        let known = self.params.iter().find(|p| (p.0, p.1) == (arg, dtype)).map(|p| p.2);
        known.unwrap_or_else(|| {
            let place = self.b.aligned_param(dtype, elements, access, ALIGNMENT);
            self.params.push((arg, dtype, place));
            place
        })
    }

    fn flags(&mut self, arg: ExchangeArgument, access: Access) -> Place {
        self.param(arg, DType::U32, BLOCKS, access)
    }

    /// Waits until the flags of all blocks of the peer have reached an epoch. All threads go on together.
    fn wait(&mut self, flags: usize, epoch: Reg) {
        let from = self.flags(ExchangeArgument::Mailbox(flags), Access::Read);
        let thread = self.b.id(Id::Thread(0));
        let blocks = self.b.index(self.blocks as i64);
        let waits = self.b.compare(Compare::Lt, thread, blocks);
        self.b.open_block();
        self.b.push(Stmt::Await { from, index: thread, value: epoch });
        let then = self.b.take_block();
        self.b.conditional(waits, (then, &[]), (Block::default(), &[]));
        self.b.push(Stmt::Barrier);
    }

    /// Says to the peer that all threads of the block are done.
    fn signal(&mut self, flags: usize, epoch: Reg) {
        let to = self.flags(ExchangeArgument::PeerMailbox(flags), Access::Update);
        self.b.push(Stmt::Barrier);
        let block = self.b.id(Id::Block(0));
        self.first_thread(Stmt::Signal { to, index: block, value: epoch });
    }

    fn first_thread(&mut self, stmt: Stmt) {
        let (thread, zero) = (self.b.id(Id::Thread(0)), self.b.index(0));
        let first = self.b.compare(Compare::Eq, thread, zero);
        self.b.open_block();
        self.b.push(stmt);
        let then = self.b.take_block();
        self.b.conditional(first, (then, &[]), (Block::default(), &[]));
    }

    /// Computes the block's share of a piece.
    fn share(mut self, member: Member<'_>, piece: &Piece, target: Target, epoch: Option<Epoch>) -> Self {
        let Member { at, messages, part } = member;
        let nowhere = Type::new(piece.ty.dtype, [0]);
        let mut operands = [&nowhere; 2];
        operands[Messages::OWN] = self.operands.get(at).copied().unwrap_or(&nowhere);
        operands[Messages::MESSAGE] = messages.incoming.as_ref().unwrap_or(&nowhere);
        let (slots, whole, size) = (self.slots, self.results.get(at).copied(), piece.ty.dtype.size());
        let message = |way: usize| Slot { first: part.start[way] / size, step: slots[way] / size };
        let share = match target {
            Target::Message => Share::new(piece, &operands, &piece.ty, [Slot::NONE, message(OUTGOING)]),
            Target::Result => {
                let whole = whole.expect("a communication with pieces of a result has one");
                Share::new(piece, &operands, whole, [message(INCOMING), Slot::NONE])
            }
        };
        let mut see = |arg: ExchangeArgument, bytes: usize, access: Access| {
            self.param(arg, share.dtype, bytes / share.dtype.size(), access)
        };
        let own = share
            .reads(Messages::OWN)
            .then(|| see(ExchangeArgument::Operand(at), operands[Messages::OWN].bytes(), Access::Constant));
        let message = share
            .reads(Messages::MESSAGE)
            .then(|| see(ExchangeArgument::Mailbox(FLAG_BYTES), 2 * slots[INCOMING], Access::Read));
        let to = match target {
            Target::Message => see(ExchangeArgument::PeerMailbox(FLAG_BYTES), 2 * slots[OUTGOING], Access::Write),
            Target::Result => see(ExchangeArgument::Result(at), whole.map_or(0, Type::bytes), Access::Write),
        };
        let mut places = [to; 2];
        places[Messages::OWN] = own.unwrap_or(to);
        places[Messages::MESSAGE] = message.unwrap_or(to);
        let slot = epoch.map_or_else(|| self.b.index(0), |e| e.slot);
        let grid = self.blocks as i64 * i64::from(THREADS);
        let b = share.write(self.b, places.to_vec(), to, slot, grid);
        Writer { b, ..self }
    }
}

/// Where a piece goes.
#[derive(Clone, Copy)]
enum Target {
    /// To the peer's slot.
    Message,
    /// To its place in the result.
    Result,
}
