//! Packed CPU micro-kernels for matrix products and convolutions.
//!
//! One descriptor, [`Contraction`], covers matrix products, batched products, convolutions of any rank, stride,
//! dilation, padding and grouping, transposed convolutions and weight gradients:
//!
//! ```text
//! C[b, m, n] (+)= Σ_k A[b, m, k] · B[b, k, n]
//! ```
//!
//! Each of b, m, n, k is a list of dims, flattened row-major. A and B are strided over them; a [`Window`] couples a dim
//! of m (or n) with a dim of k, as the place of a convolution's result is coupled with the place under its kernel. An
//! element whose window coordinate falls into padding, between dilated elements or past the end is absent: its value
//! is 0. So a convolution is `m = (batch, y, x)`, `k = (ky, kx, channel)`, `n = filter`, with one window per spatial
//! dim; groups are a batch dim; a transposed convolution has `input_dilation`; and a weight gradient is the same two
//! windows with the parts of m and k exchanged: `m = (ky, kx, channel)`, `k = (batch, y, x)`.
//!
//! [`Plan::new`] checks a descriptor (every address that can be reached lies inside its buffer) and fixes blocking and
//! layout for one [`Isa`]. [`Plan::run`] runs a range of its tasks on the caller's thread, without allocating.
//!
//! # Numerics
//!
//! Every element of C is one chain of fused multiply-adds over k in row-major order of k's dims, strictly sequential,
//! starting from +0 ([`Start::Zero`]) or from the old value of C ([`Start::Accumulate`]):
//!
//! ```text
//! c = start;  for k in 0..K { c = fma(A[b, m, k], B[b, k, n], c) }
//! ```
//!
//! The bits of C therefore depend neither on M and N, nor on blocks, tiles, tasks, threads, the form of B or the
//! instruction set: AVX-512, AVX2 and portable kernels agree. A block of k continues the chain from C's stored value,
//! which is exact. Absent elements take part as 0 like any other element: beside a NaN or infinite weight they give
//! NaN, and `fma(0, w, -0)` is +0. Only the payload of NaNs is unspecified. With K = 0, C becomes +0 (or stays).
//!
//! With [`Summation::Tree`], k falls into blocks of a given length. Each is such a chain from +0, and a balanced tree over the
//! blocks, which depends on their number only, adds them up. It costs no traffic: the finished block of a tile joins those
//! before it while it is in registers.
//!
//! A and B may be stored as f16 or bf16 ([`Storage`]): they are converted to f32, which holds every one of them, where they
//! are copied or packed, and the chains are those of f32. Sums of which nothing but the epilogue wants to know stay in
//! scratch ([`Sums::Scratch`]).
//!
//! # How it works
//!
//! *Canonical form* (`view`). Dims of extent 1 go, windows that never miss become strides, an input dilation that all
//! indices are multiples of is divided out, and neighbouring dims that every array steps through evenly merge: a 1×1
//! convolution becomes a plain matrix product. An operand is then *lines* along the axis in which it is contiguous;
//! a line is a sequence of *runs*, evenly spaced elements of which one interval is present.
//!
//! *Tiles* (`kernel`). A micro-kernel keeps a tile of C in registers while k runs: up to 14 rows × 2 vectors (AVX-512),
//! 6 × 2 (AVX2), 4 × 2 (portable), and for few rows up to 8 vectors, so that a small batch still has enough independent
//! chains. For each k it broadcasts elements of A and multiplies them with vectors of B. Every number of rows has a
//! kernel of its own; columns past the edge are masked when C is read and written. A is read by rows (k contiguous) or
//! by columns (m contiguous) at any distance.
//!
//! *A* is read in place where its rows or columns are evenly spaced. Convolutions over channels-last images run on a
//! padded copy of the image rows under a block (`image`): each pixel is copied once, not once per kernel element, the
//! rows of a tile are `stride · channels` apart, and each kernel row is one segment of k. If nothing is padded the
//! image itself serves. What is left (odd layouts, input dilation, rows that would meet in one cache set) is packed
//! tile by tile into first-cache scratch: as `[row][k]`, or `[k][row]` if m is the contiguous axis. Absent elements are
//! written as zeros; there is no column buffer.
//!
//! *B* is packed in panels of two vectors' columns, `[panel][k][column]`, the last one padded with zeros: ahead of time
//! into a buffer of the caller ([`Plan::pack`], [`Plan::packed_len`], one copy per distinct batch entry), or on the fly
//! per block of k. Small B, and B under few rows, is read in place.
//!
//! *Loops*. Task = rectangle of C; blocks of about 1 KiB of k; then tile rows; then panels. So a tile's rows of A stay
//! in the first cache, a block of B streams from the second, and rows of C are written from end to end. Adjacent tasks
//! of one call are joined into blocks of up to some hundred rows that share copied and packed operands. After the last
//! block of k the [`Epilogue`] is called on a few finished rows at a time, still in the first cache. Of a tree, the chain at
//! work is in C, and finished subtrees wait in scratch: those of one tile where all of k is one block, else those of the
//! rectangle.
//!
//! # Limits
//!
//! C must be contiguous along n (exchange A and B if m is the contiguous axis). One output channel per group
//! (depthwise convolution) is correct, but uses one lane of each vector. An axis may have 8 dims after merging, an
//! operand 6 windows that can miss.

mod descriptor;
mod error;
mod image;
mod isa;
mod kernel;
mod left;
mod pack;
mod plan;
mod run;
mod stored;
mod view;

pub use descriptor::{Contraction, Element, Operand, Output, RightForm, Start, Storage, Summation, Sums, Window};
pub use error::{Array, Error};
pub use isa::Isa;
pub use plan::{ALIGNMENT, Epilogue, EpilogueFn, Plan};
