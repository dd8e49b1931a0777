//! Executes PTX text on the CPU, warp by warp, and checks every access.
//!
//! The input is the exact text that a driver would get; nothing is shared with the code that wrote it. A
//! [`Module`] is parsed text, a [`Device`] owns memory and runs kernels, several devices share an [`AddressSpace`].
//! [`Device::launch`] either finishes with [`Stats`] or stops at the first [`Fault`], which names the kernel, the line of
//! the text, the thread and the address.
//!
//! # What is executed
//! Sections are those of the PTX ISA manual 9.1. Everything else is a [`ParseError`] that names instruction, line and
//! section.
//!
//! | instructions | forms | section |
//! |---|---|---|
//! | `add sub mul mad mul24 sad div rem abs neg min max popc clz bfind brev bfe bfi` | all integer types, `.lo .hi .wide .sat`; no carry | 9.7.1 |
//! | `add sub mul fma min max abs neg copysign` | f32 (all roundings, `.ftz .sat .NaN`), f64 (`.rn`) | 9.7.3 |
//! | `div sqrt rcp` | `.rn` and directed f32, f64 `.rn`; `.approx` and `.full` are correctly rounded | 9.7.3 |
//! | `rsqrt ex2 lg2 sin cos tanh` | computed in f64, rounded once: error 0.5 ulp, far inside the ISA's bounds | 9.7.3 |
//! | the same on `f16 f16x2 bf16 bf16x2` | rounded once from the exact result | 9.7.4 |
//! | `set setp selp slct` | all comparisons, combination with a predicate; no packed forms | 9.7.6, 9.7.7 |
//! | `testp` | f32, f64 | 9.7.3.1 |
//! | `and or xor not cnot lop3 shf shl shr` | `.pred` too | 9.7.8 |
//! | `mov` | packing, unpacking, `_`, addresses, special registers of section 10 | 9.7.9.3 |
//! | `shfl.sync` | `up down bfly idx` | 9.7.9.6 |
//! | `prmt` | default mode | 9.7.9.7 |
//! | `.global .const` | variables of the module with numbers as initial values | 5.1, 5.4 |
//! | `ld ldu st` | all state spaces, vectors, `.weak .relaxed .volatile .acquire .release`, cache hints ignored | 9.7.9.8 to 11 |
//! | `cvta cvt prefetch` | all roundings among ints, f16, bf16, tf32, f32, f64; `.sat .ftz .relu`; no fp8 | 9.7.9 |
//! | `cp.async` | `.ca .cg`, zero fill, `commit_group wait_group wait_all`; no bulk copies | 9.7.9.25 |
//! | `bra ret exit trap` | no calls, no indirect branches | 9.7.12 |
//! | `bar barrier` | `sync arrive red`, named, counted | 9.7.13.1 |
//! | `bar.warp.sync vote.sync match.sync redux.sync activemask elect.sync` | integers | 9.7.13 |
//! | `membar fence` | no proxies | 9.7.13.4 |
//! | `atom red` | integers, `add` of floats; no vectors | 9.7.13.5 |
//! | `ldmatrix` | `.m8n8.b16`, `.trans` | 9.7.14.5.15 |
//! | `mma.sync` | `m16n8k16 m16n8k8` f16 and bf16, `m16n8k8 m16n8k4` tf32; f32 (and f16) accumulators | 9.7.14.5.14 |
//!
//! Fused multiply-adds happen only where the text says `fma` or `mad`; `mul` followed by `add` keeps two roundings.
//!
//! # What is checked
//! - Every access: inside one allocation (red zones lie between them), aligned to its whole size.
//! - Every read: of a byte of global, shared or local memory, or a register lane, that has been written.
//! - Shared memory: races between threads by happens-before (module `shared` tells the model), accesses to the
//!   destination of a `cp.async` not waited for, under [`Schedule::Late`] and [`Schedule::Early`].
//! - Barriers reached by part of a warp, member masks that do not fit, inconsistent named barriers, deadlock.
//! - Synchronisation with a scope that does not reach the other device.
//! - On demand ([`Device::global_races`]), global memory: races between warps, blocks and devices by happens-before,
//!   through barriers, releases, acquires and fences whose scopes include each other; `.nc` loads of bytes that their
//!   launch writes. Launches of one device follow each other; the host's own copies count as ordered.
//!
//! # What is counted
//! [`Stats`] tells instructions by class, bytes requested, distinct bytes, sectors and widths of global accesses, and
//! passes over the banks of shared memory with how many of them only conflicts cause. Counting is always on.
//!
//! # Progress
//! Warps of a block, resident blocks of a grid and devices (each launch in its own host thread) all take turns, so a
//! kernel may spin on a flag that another block or device sets. The order is fixed: one device computes the same bits
//! every time, races or not. Blocks of a kernel without atomics, ordered accesses and fences run one after another, or on
//! several host threads ([`Device::workers`]). A launch that only waits ends as a deadlock after [`Device::patience`],
//! or when the host sets [`Device::cancel`].
//!
//! # Speed
//! One match per warp instruction, inner loops over 32 lanes vectorised by the compiler (AVX2 where there is), addresses
//! checked a warp at a time, shared memory by the distinct places of a pattern that is remembered for each instruction.
//! On one core of a server of 2023 that was shared with others, checks and counters included
//! (`cargo bench -p intwain-emulator`), in 10⁹ thread instructions a second:
//!
//! | loop | |
//! |---|---|
//! | chain of FMAs | 3.0 to 3.9 |
//! | f32 matrix product through shared memory, an `ld.shared` for each operand | 0.8 |
//! | the same with `global_races` | 0.6 |
//! | pointwise kernel of 16-byte accesses, with and without `global_races` | 0.37, 0.42 |
//!
//! `mma.sync.m16n8k16` with its `ldmatrix`: 10 to 13 GFLOP/s; all of Triton's product in tiles of 32×32: 2 to 3 GFLOP/s.

mod access;
mod atom;
mod banks;
mod block;
mod collective;
mod copy;
mod declare;
mod device;
mod error;
mod fast;
mod float;
mod grid;
mod host;
mod known;
mod lex;
mod load;
mod lower;
mod lower_alu;
mod lower_compare;
mod lower_control;
mod lower_memory;
mod memory;
mod mma;
mod op;
mod opcode;
mod operand;
mod page;
mod parse_operand;
mod quicken;
mod race;
mod regs;
mod scalar;
mod scalar_float;
mod shared;
mod stats;
mod step;
mod store;
mod syntax;
mod types;
mod view;
mod warp;

pub use device::{Arg, Check, Device, Launch, Module, Schedule};
pub use error::{Fault, FaultKind, HostError, LaunchError, ParseError, Problem};
pub use memory::AddressSpace;
pub use stats::{Classes, Stats};
