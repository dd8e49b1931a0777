//! The reference interpreter of CPU kernels: every address is checked, private memory must be written before it is
//! read.

use super::{Access, Block, Id, Inst, Kernel, Place, Reg, Stmt};
use crate::DType;
use crate::scalar::{self, Scalar};
use cranelift_entity::SecondaryMap;
use smallvec::SmallVec;

/// Why a kernel could not be run to its end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// An access outside a place.
    #[error("{place} has {elements} elements; element {at} was accessed")]
    OutOfBounds {
        /// The place.
        place: String,
        /// Its size.
        elements: usize,
        /// The element.
        at: i64,
    },
    /// Private memory read before it was written.
    #[error("{place}[{at}] was read before it was written")]
    Uninitialised {
        /// The place.
        place: String,
        /// The element.
        at: i64,
    },
    /// Parameters given that the kernel doesn't have, or of another size.
    #[error("parameter {param}: {problem}")]
    Parameter {
        /// Which.
        param: usize,
        /// What is wrong.
        problem: String,
    },
    /// A statement that only a GPU can execute.
    #[error("this interpreter runs kernels for CPUs only")]
    NotCpu,
}

/// Elements of a parameter, as little-endian bytes.
pub type Memory = Vec<u8>;

type Lanes = SmallVec<[Scalar; 4]>;

/// Runs a kernel. `ids` gives the numbers of its entry; parameters are changed in place.
pub fn run(kernel: &Kernel, params: &mut [Memory], ids: &dyn Fn(Id) -> i64) -> Result<(), Fault> {
    let problem = |param: usize, problem: String| Err(Fault::Parameter { param, problem });
    if params.len() != kernel.params.len() {
        return problem(params.len(), format!("the kernel has {}", kernel.params.len()));
    }
    for (i, (given, p)) in params.iter().zip(&kernel.params).enumerate() {
        if given.len() != p.elements * p.dtype.size() {
            return problem(i, format!("{} bytes given for {} {}", given.len(), p.elements, p.dtype));
        }
    }
    let buffers = kernel.buffers.iter().map(|b| vec![None; b.elements]).collect();
    let mut m = Machine { kernel, params, buffers, ids, regs: SecondaryMap::new() };
    m.block(&kernel.body)
}

struct Machine<'a> {
    kernel: &'a Kernel,
    params: &'a mut [Memory],
    buffers: Vec<Vec<Option<Scalar>>>,
    ids: &'a dyn Fn(Id) -> i64,
    regs: SecondaryMap<Reg, Lanes>,
}

impl Machine<'_> {
    fn index(&self, r: Reg) -> i64 {
        self.regs[r][0].to_i64()
    }

    fn block(&mut self, block: &Block) -> Result<(), Fault> {
        block.0.iter().try_for_each(|s| self.stmt(s))
    }

    fn stmt(&mut self, stmt: &Stmt) -> Result<(), Fault> {
        match stmt {
            Stmt::Let(r, inst) => {
                let value = self.inst(*r, inst)?;
                self.regs[*r] = value;
            }
            Stmt::Store { to, index, offset, value } => {
                let lanes = self.regs[*value].clone();
                let first = self.index(*index) + offset;
                for (i, x) in lanes.into_iter().enumerate() {
                    self.write(*to, first + i as i64, x)?;
                }
            }
            Stmt::If { cond, then, otherwise, merges } => {
                let holds = self.regs[*cond][0].bits() != 0;
                self.block(if holds { then } else { otherwise })?;
                for m in merges {
                    self.regs[m.result] = self.regs[if holds { m.then } else { m.otherwise }].clone();
                }
            }
            Stmt::For(l) => {
                let mut carried: Vec<Lanes> = l.carried.iter().map(|c| self.regs[c.init].clone()).collect();
                let (mut at, end) = (self.index(l.begin), self.index(l.end));
                while at < end {
                    self.regs[l.var] = SmallVec::from_iter([Scalar::from_i64(DType::I64, at)]);
                    for (c, value) in l.carried.iter().zip(carried.drain(..)) {
                        self.regs[c.arg] = value;
                    }
                    self.block(&l.body)?;
                    carried.extend(l.carried.iter().map(|c| self.regs[c.next].clone()));
                    at += l.step;
                }
                for (c, value) in l.carried.iter().zip(carried) {
                    self.regs[c.result] = value;
                }
            }
            Stmt::Barrier
            | Stmt::AsyncCopy { .. }
            | Stmt::AsyncCommit
            | Stmt::AsyncWait(_)
            | Stmt::LoadMatrix { .. }
            | Stmt::Signal { .. }
            | Stmt::Await { .. }
            | Stmt::Mma { .. } => {
                return Err(Fault::NotCpu);
            }
        }
        Ok(())
    }

    fn inst(&mut self, r: Reg, inst: &Inst) -> Result<Lanes, Fault> {
        let ty = self.kernel.regs[r];
        let lanes = ty.lanes as usize;
        let one = |x: Scalar| -> Lanes { SmallVec::from_elem(x, lanes) };
        let reg = |r: &Reg| &self.regs[*r];
        let map = |f: &dyn Fn(usize) -> Scalar| -> Lanes { (0..lanes).map(f).collect() };
        Ok(match inst {
            Inst::Const(x) => one(*x),
            Inst::Id(id) => one(Scalar::from_i64(DType::I64, (self.ids)(*id))),
            Inst::Unary(op, x) => map(&|i| scalar::unary(*op, reg(x)[i])),
            Inst::Binary(op, x, y) => map(&|i| scalar::binary(*op, reg(x)[i], reg(y)[i])),
            Inst::Fma(x, y, z) => map(&|i| scalar::fma(reg(x)[i], reg(y)[i], reg(z)[i])),
            Inst::Compare(op, x, y) => {
                map(&|i| Scalar::from_bits(DType::Bool, u64::from(scalar::compare(*op, reg(x)[i], reg(y)[i]))))
            }
            Inst::Select(c, x, y) => map(&|i| if reg(c)[i].bits() != 0 { reg(x)[i] } else { reg(y)[i] }),
            Inst::Cast(x) => map(&|i| scalar::cast(ty.dtype, reg(x)[i])),
            Inst::Splat(x) => one(reg(x)[0]),
            Inst::Extract(x, lane) => one(reg(x)[*lane as usize]),
            Inst::Pack(xs) => xs.iter().map(|x| reg(x)[0]).collect(),
            Inst::Load { from, index, offset } => {
                let first = self.index(*index) + offset;
                (0..lanes as i64).map(|i| self.read(*from, first + i)).collect::<Result<_, _>>()?
            }
            Inst::Shuffle(..) | Inst::Bits(_) | Inst::Tf32(_) => return Err(Fault::NotCpu),
        })
    }

    fn at(&self, place: Place, at: i64) -> Result<usize, Fault> {
        let elements = self.kernel.place(place).map_or(0, |p| p.1);
        match usize::try_from(at) {
            Ok(i) if i < elements => Ok(i),
            _ => Err(Fault::OutOfBounds { place: place.to_string(), elements, at }),
        }
    }

    fn read(&self, place: Place, at: i64) -> Result<Scalar, Fault> {
        let i = self.at(place, at)?;
        match place {
            Place::Param(p) => {
                let dtype = self.kernel.params[p as usize].dtype;
                Ok(Scalar::read(dtype, &self.params[p as usize][i * dtype.size()..]))
            }
            Place::Buffer(b) => {
                self.buffers[b as usize][i].ok_or_else(|| Fault::Uninitialised { place: place.to_string(), at })
            }
        }
    }

    fn write(&mut self, place: Place, at: i64, x: Scalar) -> Result<(), Fault> {
        let i = self.at(place, at)?;
        match place {
            Place::Param(p) => {
                debug_assert!(matches!(self.kernel.params[p as usize].access, Access::Write | Access::Update));
                x.write(&mut self.params[p as usize][i * x.dtype().size()..]);
            }
            Place::Buffer(b) => self.buffers[b as usize][i] = Some(x),
        }
        Ok(())
    }
}
