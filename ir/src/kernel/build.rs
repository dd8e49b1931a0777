//! Building kernels: blocks nest as a stack, and code can be placed in any open block.
//!
//! A loop or conditional enters its parent block when it is closed, so what is placed in an enclosing block while the
//! inner one is open runs before it: that is how schedules hoist.

use super::{
    Access, Block, Bound, Buffer, Carried, Entry, For, Id, Inst, Kernel, Merge, Param, Place, Reg, RegType, Stmt,
};
use crate::DType;
use crate::scalar::{self, Binary, Compare, Scalar, Unary};
use cranelift_entity::PrimaryMap;
use std::collections::HashMap;

/// A kernel under construction.
#[derive(Debug)]
pub struct Builder {
    kernel: Kernel,
    open: Vec<Open>,
    constants: HashMap<Reg, Scalar>,
    /// Sums of a register and a constant.
    shifted: HashMap<Reg, (Reg, i64)>,
}

/// A block being filled, with the cheap values already in it.
#[derive(Debug, Default)]
struct Open {
    block: Block,
    known: HashMap<Key, Reg>,
}

/// Instructions worth sharing: constants and address arithmetic.
#[derive(Debug, PartialEq, Eq, Hash)]
enum Key {
    Const(Scalar, u8),
    Id(Id),
    Binary(Binary, Reg, Reg),
    Splat(Reg),
}

/// An open loop.
#[derive(Debug)]
pub struct Loop {
    begin: Reg,
    end: Reg,
    step: i64,
    var: Reg,
    carried: Vec<(Reg, Reg)>,
}

impl Loop {
    /// The counter.
    pub fn var(&self) -> Reg {
        self.var
    }

    /// The values handed on, at the start of a trip.
    pub fn args(&self) -> impl Iterator<Item = Reg> {
        self.carried.iter().map(|c| c.1)
    }
}

impl Builder {
    /// An empty kernel.
    pub fn new(name: impl Into<String>, entry: Entry, bound: Bound) -> Builder {
        let kernel = Kernel {
            name: name.into(),
            entry,
            bound,
            params: Vec::new(),
            buffers: Vec::new(),
            regs: PrimaryMap::new(),
            body: Block::default(),
        };
        Builder { kernel, open: vec![Open::default()], constants: HashMap::new(), shifted: HashMap::new() }
    }

    /// Adds a parameter, aligned to its elements.
    pub fn param(&mut self, dtype: DType, elements: usize, access: Access) -> Place {
        self.kernel.params.push(Param { dtype, elements, access, align: dtype.size() as u32 });
        Place::Param(self.kernel.params.len() as u32 - 1)
    }

    /// Adds a parameter with a guaranteed alignment in bytes.
    pub fn aligned_param(&mut self, dtype: DType, elements: usize, access: Access, align: u32) -> Place {
        self.kernel.params.push(Param { dtype, elements, access, align });
        Place::Param(self.kernel.params.len() as u32 - 1)
    }

    /// Adds a private buffer.
    pub fn buffer(&mut self, dtype: DType, elements: usize) -> Place {
        self.kernel.buffers.push(Buffer { dtype, elements });
        Place::Buffer(self.kernel.buffers.len() as u32 - 1)
    }

    /// The kernel, once all loops are closed.
    pub fn finish(mut self) -> Kernel {
        debug_assert_eq!(self.open.len(), 1, "loops are still open");
        if let Some(open) = self.open.pop() {
            self.kernel.body = open.block;
        }
        self.kernel
    }

    /// The type of a register.
    pub fn ty(&self, r: Reg) -> RegType {
        self.kernel.regs[r]
    }

    /// The element type of a place.
    pub fn place_type(&self, place: Place) -> DType {
        self.kernel.place(place).map_or(DType::F32, |p| p.0)
    }

    /// The value of a register that holds a constant.
    pub fn constant_of(&self, r: Reg) -> Option<Scalar> {
        self.constants.get(&r).copied()
    }

    /// A register that differs from an i64 register by a constant, and the constant: those that it was made from, where
    /// it is such a sum, else itself and 0.
    pub fn parts_of(&self, r: Reg) -> (Reg, i64) {
        self.shifted.get(&r).copied().unwrap_or((r, 0))
    }

    /// Depth of the innermost open block; the body is 0.
    pub fn depth(&self) -> usize {
        self.open.len() - 1
    }

    /// Takes the blocks deeper than `depth` aside, so that whole loops can be placed in the block at `depth`.
    pub fn suspend(&mut self, depth: usize) -> Suspended {
        Suspended(self.open.split_off(depth + 1))
    }

    /// Brings suspended blocks back.
    pub fn resume(&mut self, suspended: Suspended) {
        self.open.extend(suspended.0);
    }

    fn define(&mut self, depth: usize, ty: RegType, inst: Inst) -> Reg {
        let r = self.kernel.regs.push(ty);
        self.open[depth].block.0.push(Stmt::Let(r, inst));
        r
    }

    /// An instruction in the innermost block.
    pub fn inst(&mut self, ty: RegType, inst: Inst) -> Reg {
        self.inst_at(self.depth(), ty, inst)
    }

    /// An instruction in the block at `depth`.
    pub fn inst_at(&mut self, depth: usize, ty: RegType, inst: Inst) -> Reg {
        let key = match &inst {
            Inst::Const(x) => Some(Key::Const(*x, ty.lanes)),
            Inst::Id(id) => Some(Key::Id(*id)),
            Inst::Splat(x) => Some(Key::Splat(*x)),
            Inst::Binary(op, x, y) if ty == RegType::INDEX => Some(Key::Binary(*op, *x, *y)),
            _ => None,
        };
        let Some(key) = key else { return self.define(depth, ty, inst) };
        if let Some(r) = self.open[..=depth].iter().find_map(|o| o.known.get(&key)) {
            return *r;
        }
        let constant = match inst {
            Inst::Const(x) => Some(x),
            _ => None,
        };
        let sum = match inst {
            Inst::Binary(Binary::Add, x, y) => {
                self.constant_of(y).map(|c| (x, c)).or(self.constant_of(x).map(|c| (y, c)))
            }
            _ => None,
        };
        let r = self.define(depth, ty, inst);
        if let Some(x) = constant {
            self.constants.insert(r, x);
        }
        if let Some((x, c)) = sum {
            let (x, before) = self.parts_of(x);
            self.shifted.insert(r, (x, before.wrapping_add(c.to_i64())));
        }
        self.open[depth].known.insert(key, r);
        r
    }

    /// A constant; it stands in the body, before everything that is open.
    pub fn constant(&mut self, x: Scalar) -> Reg {
        self.inst_at(0, RegType::scalar(x.dtype()), Inst::Const(x))
    }

    /// A constant i64.
    pub fn index(&mut self, x: i64) -> Reg {
        self.constant(Scalar::from_i64(DType::I64, x))
    }

    /// A number that the entry gives.
    pub fn id(&mut self, id: Id) -> Reg {
        self.inst_at(0, RegType::INDEX, Inst::Id(id))
    }

    /// A function of one value.
    pub fn unary(&mut self, op: Unary, x: Reg) -> Reg {
        let ty = self.ty(x);
        self.inst(RegType { dtype: op.result(ty.dtype), ..ty }, Inst::Unary(op, x))
    }

    /// A function of two values of one type.
    pub fn binary(&mut self, op: Binary, x: Reg, y: Reg) -> Reg {
        self.binary_at(self.depth(), op, x, y)
    }

    /// [`Builder::binary`] in the block at `depth`; sums and products of known i64 are folded.
    pub fn binary_at(&mut self, depth: usize, op: Binary, x: Reg, y: Reg) -> Reg {
        let ty = self.ty(x);
        if ty == RegType::INDEX {
            let (a, b) = (self.constant_of(x), self.constant_of(y));
            match (op, a.map(Scalar::to_i64), b.map(Scalar::to_i64)) {
                (_, Some(a), Some(b)) => {
                    let int = |x| Scalar::from_i64(DType::I64, x);
                    return self.constant(scalar::binary(op, int(a), int(b)));
                }
                (Binary::Add, Some(0), _) | (Binary::Mul, Some(1), _) => return y,
                (Binary::Add | Binary::Sub, _, Some(0)) | (Binary::Mul | Binary::FloorDiv, _, Some(1)) => return x,
                (Binary::Mul, Some(0), _) | (Binary::Mul, _, Some(0)) => return self.index(0),
                _ => {}
            }
        }
        self.inst_at(depth, ty, Inst::Binary(op, x, y))
    }

    /// x·y + z, rounded once.
    pub fn fma(&mut self, x: Reg, y: Reg, z: Reg) -> Reg {
        let ty = self.ty(x);
        self.inst(ty, Inst::Fma(x, y, z))
    }

    /// A comparison.
    pub fn compare(&mut self, op: Compare, x: Reg, y: Reg) -> Reg {
        let ty = self.ty(x);
        self.inst(RegType { dtype: DType::Bool, ..ty }, Inst::Compare(op, x, y))
    }

    /// The second where the first holds, else the third.
    pub fn select(&mut self, cond: Reg, x: Reg, y: Reg) -> Reg {
        let ty = self.ty(x);
        self.inst(ty, Inst::Select(cond, x, y))
    }

    /// Conversion.
    pub fn cast(&mut self, dtype: DType, x: Reg) -> Reg {
        let ty = self.ty(x);
        if ty.dtype == dtype { x } else { self.inst(RegType { dtype, ..ty }, Inst::Cast(x)) }
    }

    /// Neighbouring elements.
    pub fn load(&mut self, from: Place, index: Reg, offset: i64, lanes: u8) -> Reg {
        let dtype = self.place_type(from);
        self.inst(RegType { dtype, lanes }, Inst::Load { from, index, offset })
    }

    /// Writes neighbouring elements.
    pub fn store(&mut self, to: Place, index: Reg, offset: i64, value: Reg) {
        self.push(Stmt::Store { to, index, offset, value });
    }

    /// A statement that defines nothing, in the innermost block.
    pub fn push(&mut self, stmt: Stmt) {
        if let Some(open) = self.open.last_mut() {
            open.block.0.push(stmt);
        }
    }

    /// A new register without definition, for statements that define several.
    pub fn reg(&mut self, ty: RegType) -> Reg {
        self.kernel.regs.push(ty)
    }

    /// Opens a loop in the innermost block.
    pub fn open_loop(&mut self, begin: Reg, end: Reg, step: i64, carried: &[Reg]) -> Loop {
        let var = self.reg(RegType::INDEX);
        let carried = carried.iter().map(|&init| (init, self.reg(self.ty(init)))).collect();
        self.open.push(Open::default());
        Loop { begin, end, step, var, carried }
    }

    /// Closes the innermost block, a loop, with the carried values at the end of a trip; gives them after the loop.
    pub fn close_loop(&mut self, l: Loop, next: &[Reg]) -> Vec<Reg> {
        debug_assert_eq!(l.carried.len(), next.len(), "one value per carried value");
        let body = self.open.pop().map(|o| o.block).unwrap_or_default();
        let carried: Vec<Carried> = l
            .carried
            .iter()
            .zip(next)
            .map(|(&(init, arg), &next)| Carried { init, arg, next, result: self.reg(self.ty(init)) })
            .collect();
        let results = carried.iter().map(|c| c.result).collect();
        self.push(Stmt::For(For { var: l.var, begin: l.begin, end: l.end, step: l.step, carried, body }));
        results
    }

    /// Opens a block of a conditional.
    pub fn open_block(&mut self) {
        self.open.push(Open::default());
    }

    /// Takes the innermost block.
    pub fn take_block(&mut self) -> Block {
        self.open.pop().map(|o| o.block).unwrap_or_default()
    }

    /// Adds a conditional from two blocks taken before, and the values each ends with; gives the merged values.
    pub fn conditional(&mut self, cond: Reg, then: (Block, &[Reg]), otherwise: (Block, &[Reg])) -> Vec<Reg> {
        let merges: Vec<Merge> = then
            .1
            .iter()
            .zip(otherwise.1)
            .map(|(&t, &o)| Merge { then: t, otherwise: o, result: self.reg(self.ty(t)) })
            .collect();
        let results = merges.iter().map(|m| m.result).collect();
        self.push(Stmt::If { cond, then: then.0, otherwise: otherwise.0, merges });
        results
    }
}

/// Blocks taken aside by [`Builder::suspend`].
#[derive(Debug)]
pub struct Suspended(Vec<Open>);
