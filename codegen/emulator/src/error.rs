//! What can go wrong: text that cannot be executed ([`ParseError`]) and executions that are wrong ([`Fault`]).

use std::fmt;

/// PTX text that is malformed or asks for something that is not implemented.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("PTX line {line}: {problem}")]
pub struct ParseError {
    /// Line of the text, from 1.
    pub line: u32,
    /// What is wrong there.
    pub problem: Problem,
}

/// The reason of a [`ParseError`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Problem {
    /// The text is not PTX.
    #[error("{0}")]
    Syntax(String),
    /// A name that nothing declares.
    #[error("`{0}` is not declared")]
    Undeclared(String),
    /// An operand whose type or size the instruction does not take.
    #[error("`{instruction}`: operand {operand} is {found}, the instruction takes {wanted} (PTX ISA 9.4)")]
    Operand {
        /// The opcode with its modifiers.
        instruction: String,
        /// The operand as written.
        operand: String,
        /// Its declared type.
        found: String,
        /// The type that would do.
        wanted: String,
    },
    /// Valid PTX that this emulator does not execute.
    #[error("`{instruction}` is not supported: {reason} (PTX ISA {section})")]
    Unsupported {
        /// The opcode with its modifiers, or the directive.
        instruction: String,
        /// Which part of it.
        reason: String,
        /// The section of the PTX ISA 9.1 manual that defines it.
        section: &'static str,
    },
}

/// A launch that cannot start.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LaunchError {
    /// No entry of that name.
    #[error("the module has no entry `{0}`")]
    NoKernel(String),
    /// Arguments do not match the parameters.
    #[error("kernel `{kernel}` takes {wanted}, but {found} was given")]
    Arguments {
        /// The entry.
        kernel: String,
        /// What it declares.
        wanted: String,
        /// What the caller gave.
        found: String,
    },
    /// Grid or block outside what the kernel or the hardware allows.
    #[error("kernel `{kernel}` cannot be launched: {reason}")]
    Shape {
        /// The entry.
        kernel: String,
        /// The violated limit.
        reason: String,
    },
    /// The module's variables could not be placed.
    #[error(transparent)]
    Memory(#[from] HostError),
    /// The kernel ran and did something wrong.
    #[error(transparent)]
    Fault(#[from] Box<Fault>),
}

/// Memory misused by the host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("host access to {bytes} bytes at {address:#x}: {kind}")]
pub struct HostError {
    /// First byte.
    pub address: u64,
    /// Length of the access.
    pub bytes: u64,
    /// What is wrong with it.
    pub kind: FaultKind,
}

/// An execution stopped by a check. Names the kernel, the PTX line, the thread and the address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct Fault {
    /// What happened.
    pub kind: FaultKind,
    /// The entry.
    pub kernel: String,
    /// Line of the PTX text, from 1.
    pub line: u32,
    /// `%ctaid`.
    pub block: [u32; 3],
    /// `%tid` of the first thread concerned.
    pub thread: [u32; 3],
    /// The address, for memory faults.
    pub address: Option<u64>,
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fault { kind, kernel, line, block: b, thread: t, address } = self;
        write!(f, "kernel `{kernel}`, line {line}, block ({}, {}, {}), ", b[0], b[1], b[2])?;
        write!(f, "thread ({}, {}, {}): {kind}", t[0], t[1], t[2])?;
        match address {
            Some(address) => write!(f, " at {address:#x}"),
            None => Ok(()),
        }
    }
}

/// The kinds of faults.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum FaultKind {
    /// No allocation holds the address.
    #[error("{0} access out of bounds")]
    OutOfBounds(&'static str),
    /// The address is no multiple of the access size.
    #[error("access of {0} bytes misaligned")]
    Misaligned(u32),
    /// A read of bytes that nobody wrote.
    #[error("read of uninitialised {0} memory")]
    Uninitialised(&'static str),
    /// A read of a register that has no value.
    #[error("read of a register without a value")]
    UninitialisedRegister,
    /// Two unordered accesses to shared memory, at least one a write.
    #[error("shared memory race with thread {other} of the block ({how})")]
    Race {
        /// Linear index of the other thread.
        other: u32,
        /// Which pair of accesses.
        how: &'static str,
    },
    /// Two accesses to global memory, at least one a write, that no release and acquire orders.
    #[error("global memory race with {} ({how})", other_party(*device, *block))]
    GlobalRace {
        /// Which pair of accesses.
        how: &'static str,
        /// The device that made the other access.
        device: u32,
        /// Linear index of the other block, if it belongs to the same launch.
        block: Option<u64>,
    },
    /// A `.nc` load of bytes that the same launch writes.
    #[error("ld.global.nc of bytes that the same launch writes")]
    NonCoherent,
    /// An access to bytes that an asynchronous copy has not delivered.
    #[error("access to the destination of a cp.async that its issuer has not waited for")]
    InFlight,
    /// An aligned barrier reached by part of a warp.
    #[error("barrier reached by lanes {arrived:#010x} of a warp whose live lanes are {live:#010x}")]
    DivergentBarrier {
        /// Lanes at the barrier.
        arrived: u32,
        /// Lanes that have not exited.
        live: u32,
    },
    /// A warp-wide instruction whose member mask does not fit the lanes that execute it.
    #[error("member mask {mask:#010x} does not fit the executing lanes {lanes:#010x}")]
    MemberMask {
        /// The mask operand.
        mask: u32,
        /// Lanes executing the instruction.
        lanes: u32,
    },
    /// Nobody can run any more.
    #[error("deadlock: {0}")]
    Deadlock(String),
    /// An acquire, release or atomic on another device's memory with a scope narrower than `.sys`.
    #[error("scope .{0} does not reach the other device; .sys is needed")]
    Scope(&'static str),
    /// A write to read-only memory.
    #[error("write to {0} memory")]
    ReadOnly(&'static str),
    /// `trap` was executed.
    #[error("trap")]
    Trap,
    /// The host set [`Device::cancel`](crate::Device::cancel).
    #[error("cancelled by the host")]
    Cancelled,
    /// A named barrier used inconsistently.
    #[error("barrier {id}: {reason}")]
    Barrier {
        /// Which barrier.
        id: u32,
        /// What is inconsistent.
        reason: &'static str,
    },
}

fn other_party(device: u32, block: Option<u64>) -> String {
    match block {
        Some(block) => format!("block {block} of the launch"),
        None => format!("device {device}"),
    }
}
