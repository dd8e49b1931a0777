//! The text form of kernels, for people and for tests.

use super::{Access, Block, Entry, For, Inst, Kernel, Place, RegType, Stmt};
use std::fmt::{self, Display, Formatter, Write};

impl Display for RegType {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.dtype)?;
        if self.lanes > 1 { write!(f, "x{}", self.lanes) } else { Ok(()) }
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Place::Param(i) => write!(f, "p{i}"),
            Place::Buffer(i) => write!(f, "b{i}"),
        }
    }
}

impl Display for Kernel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match &self.entry {
            Entry::Tasks => writeln!(f, "kernel {} tasks {{", self.name)?,
            Entry::Tile => writeln!(f, "kernel {} tile {{", self.name)?,
            Entry::Grid { blocks, threads } => {
                writeln!(f, "kernel {} grid {blocks:?} threads {threads:?} {{", self.name)?;
            }
        }
        for (i, p) in self.params.iter().enumerate() {
            let access = match p.access {
                Access::Constant => "constant",
                Access::Read => "read",
                Access::Write => "write",
                Access::Update => "update",
            };
            writeln!(f, "  p{i}: {access} {}[{}] align {}", p.dtype, p.elements, p.align)?;
        }
        for (i, b) in self.buffers.iter().enumerate() {
            writeln!(f, "  b{i}: {}[{}]", b.dtype, b.elements)?;
        }
        Printer { kernel: self }.block(f, &self.body, 1)?;
        writeln!(f, "}}")
    }
}

struct Printer<'k> {
    kernel: &'k Kernel,
}

fn address(index: super::Reg, offset: i64) -> String {
    match offset {
        0 => format!("{index}"),
        c if c < 0 => format!("{index} - {}", c.unsigned_abs()),
        c => format!("{index} + {c}"),
    }
}

fn list(regs: &[super::Reg]) -> String {
    let mut s = String::new();
    for (i, r) in regs.iter().enumerate() {
        let _ = write!(s, "{}{r}", if i > 0 { ", " } else { "" });
    }
    s
}

impl Printer<'_> {
    fn block(&self, f: &mut Formatter<'_>, block: &Block, depth: usize) -> fmt::Result {
        block.0.iter().try_for_each(|s| self.stmt(f, s, depth))
    }

    fn stmt(&self, f: &mut Formatter<'_>, stmt: &Stmt, depth: usize) -> fmt::Result {
        let pad = "  ".repeat(depth);
        match stmt {
            Stmt::Let(r, inst) => writeln!(f, "{pad}{r}: {} = {}", self.kernel.regs[*r], Show(inst)),
            Stmt::Store { to, index, offset, value } => {
                writeln!(f, "{pad}{to}[{}] = {value}", address(*index, *offset))
            }
            Stmt::If { cond, then, otherwise, merges } => {
                for m in merges {
                    writeln!(
                        f,
                        "{pad}{}: {} = merge {}, {}",
                        m.result, self.kernel.regs[m.result], m.then, m.otherwise
                    )?;
                }
                writeln!(f, "{pad}if {cond} {{")?;
                self.block(f, then, depth + 1)?;
                if !otherwise.0.is_empty() {
                    writeln!(f, "{pad}}} else {{")?;
                    self.block(f, otherwise, depth + 1)?;
                }
                writeln!(f, "{pad}}}")
            }
            Stmt::For(l) => self.looped(f, l, depth),
            Stmt::Barrier => writeln!(f, "{pad}barrier"),
            Stmt::AsyncCopy { to, to_index, to_offset, from, from_index, from_offset, bytes, guard } => {
                let (into, out) = (address(*to_index, *to_offset), address(*from_index, *from_offset));
                write!(f, "{pad}async {to}[{into}] = {from}[{out}] {bytes} bytes")?;
                guard.map_or(Ok(()), |g| write!(f, " if {g}"))?;
                writeln!(f)
            }
            Stmt::AsyncCommit => writeln!(f, "{pad}commit"),
            Stmt::AsyncWait(n) => writeln!(f, "{pad}wait {n}"),
            Stmt::LoadMatrix { d, from, index, offset, form } => {
                writeln!(f, "{pad}{} = matrix {form:?} {from}[{}]", list(d), address(*index, *offset))
            }
            Stmt::Signal { to, index, value } => writeln!(f, "{pad}signal {to}[{index}] = {value}"),
            Stmt::Await { from, index, value } => writeln!(f, "{pad}await {from}[{index}] >= {value}"),
            Stmt::Mma { shape, d, a, b, c } => writeln!(
                f,
                "{pad}{} = mma m{}n{}k{} {} {} ({}), ({}), ({})",
                list(d),
                shape.m,
                shape.n,
                shape.k,
                shape.operand,
                shape.accumulator,
                list(a),
                list(b),
                list(c)
            ),
        }
    }

    fn looped(&self, f: &mut Formatter<'_>, l: &For, depth: usize) -> fmt::Result {
        let pad = "  ".repeat(depth);
        for c in &l.carried {
            writeln!(
                f,
                "{pad}{}: {} = carry {} from {} next {}",
                c.result, self.kernel.regs[c.result], c.arg, c.init, c.next
            )?;
        }
        writeln!(f, "{pad}for {} in {}..{} step {} {{", l.var, l.begin, l.end, l.step)?;
        self.block(f, &l.body, depth + 1)?;
        writeln!(f, "{pad}}}")
    }
}

struct Show<'a>(&'a Inst);

impl Display for Show<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.0 {
            Inst::Const(x) => write!(f, "{x}"),
            Inst::Id(id) => write!(f, "{id:?}"),
            Inst::Unary(op, x) => write!(f, "{} {x}", op.name()),
            Inst::Binary(op, x, y) => write!(f, "{} {x}, {y}", op.name()),
            Inst::Fma(x, y, z) => write!(f, "fma {x}, {y}, {z}"),
            Inst::Compare(op, x, y) => write!(f, "{} {x}, {y}", op.name()),
            Inst::Select(c, x, y) => write!(f, "select {c}, {x}, {y}"),
            Inst::Cast(x) => write!(f, "cast {x}"),
            Inst::Splat(x) => write!(f, "splat {x}"),
            Inst::Extract(x, lane) => write!(f, "extract {x}, {lane}"),
            Inst::Pack(xs) => write!(f, "pack {}", list(xs)),
            Inst::Load { from, index, offset } => write!(f, "{from}[{}]", address(*index, *offset)),
            Inst::Shuffle(how, x) => write!(f, "shuffle {how:?} {x}"),
            Inst::Bits(x) => write!(f, "bits {x}"),
            Inst::Tf32(x) => write!(f, "tf32 {x}"),
        }
    }
}
