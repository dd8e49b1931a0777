//! Emission of statements: loops, conditionals and memory.

use super::lanes::clif_type;
use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, Function, InstBuilder, MemFlagsData, Value, types};
use cranelift_codegen::isa::TargetIsa;
use cranelift_frontend::{FunctionBuilder, FunctionBuilderContext};
use intwain_ir::DType;
use intwain_ir::kernel::{Access, Block, Entry, For, Id, Inst, Kernel, Merge, Place, Reg, RegType, Stmt};
use intwain_ir::scalar::Scalar;
use std::collections::HashMap;

/// How x·y + z is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FusedMultiply {
    /// By an instruction.
    Native,
    /// By a library function.
    Call,
}

/// The state of emission.
pub(super) struct Emitter<'a, 'f> {
    pub(super) kernel: &'a Kernel,
    pub(super) b: FunctionBuilder<'f>,
    pub(super) fma: FusedMultiply,
    pub(super) isa: &'a dyn TargetIsa,
    values: HashMap<Reg, Value>,
    constants: HashMap<Reg, Scalar>,
    params: Vec<Value>,
    buffers: Vec<Value>,
    arguments: Vec<Value>,
}

/// Emits the kernel, which has been verified, as a function.
pub(super) fn function(
    kernel: &Kernel,
    func: &mut Function,
    scratch: &mut FunctionBuilderContext,
    isa: &dyn TargetIsa,
    fma: FusedMultiply,
) {
    let mut b = FunctionBuilder::new(func, scratch);
    let entry = b.create_block();
    b.append_block_params_for_function_params(entry);
    b.switch_to_block(entry);
    b.seal_block(entry);
    let arguments = b.block_params(entry).to_vec();
    let fixed = MemFlagsData::new().with_notrap().with_readonly().with_can_move();
    let params =
        (0..kernel.params.len()).map(|i| b.ins().load(types::I64, fixed, arguments[0], 8 * i as i32)).collect();
    let (offsets, _) = kernel.buffer_offsets();
    let buffers = match kernel.entry {
        Entry::Tasks => offsets.iter().map(|&o| b.ins().iadd_imm_s(arguments[3], o as i64)).collect(),
        Entry::Tile | Entry::Grid { .. } => Vec::new(),
    };
    let mut e =
        Emitter { kernel, b, fma, isa, values: HashMap::new(), constants: HashMap::new(), params, buffers, arguments };
    e.block(&kernel.body);
    e.b.ins().return_(&[]);
    let Emitter { b, .. } = e;
    b.finalize(isa.frontend_config());
}

impl Emitter<'_, '_> {
    pub(super) fn ty(&self, r: Reg) -> RegType {
        self.kernel.regs[r]
    }

    pub(super) fn value(&self, r: Reg) -> Value {
        self.values[&r]
    }

    pub(super) fn constant(&self, r: Reg) -> Option<Scalar> {
        self.constants.get(&r).copied()
    }

    fn block(&mut self, block: &Block) {
        for s in &block.0 {
            self.stmt(s);
        }
    }

    fn stmt(&mut self, stmt: &Stmt) {
        match stmt {
            Stmt::Let(r, inst) => {
                if let Inst::Const(x) = inst {
                    self.constants.insert(*r, *x);
                }
                let v = match inst {
                    Inst::Id(id) => self.id(*id),
                    Inst::Load { from, index, offset } => self.load(self.ty(*r), *from, *index, *offset),
                    other => self.inst(self.ty(*r), other),
                };
                self.values.insert(*r, v);
            }
            Stmt::Store { to, index, offset, value } => self.store(*to, *index, *offset, *value),
            Stmt::If { cond, then, otherwise, merges } => self.conditional(*cond, then, otherwise, merges),
            Stmt::For(l) => self.looped(l),
            Stmt::Barrier
            | Stmt::AsyncCopy { .. }
            | Stmt::AsyncCommit
            | Stmt::AsyncWait(_)
            | Stmt::LoadMatrix { .. }
            | Stmt::Signal { .. }
            | Stmt::Await { .. }
            | Stmt::Mma { .. } => {
                unreachable!("the verifier keeps GPU statements out of CPU kernels")
            }
        }
    }

    fn id(&self, id: Id) -> Value {
        let at = match id {
            Id::TaskBegin | Id::Batch => 1,
            Id::TaskEnd | Id::RowBegin => 2,
            Id::RowEnd => 3,
            Id::ColumnBegin => 4,
            Id::ColumnEnd => 5,
            Id::Block(_) | Id::Thread(_) => unreachable!("the verifier keeps GPU ids out of CPU kernels"),
        };
        self.arguments[at]
    }

    fn conditional(&mut self, cond: Reg, then: &Block, otherwise: &Block, merges: &[Merge]) {
        let (yes, no, after) = (self.b.create_block(), self.b.create_block(), self.b.create_block());
        let cond = self.value(cond);
        self.b.ins().brif(cond, yes, &[], no, &[]);
        for m in merges {
            let ty = clif_type(self.ty(m.result));
            let v = self.b.append_block_param(after, ty);
            self.values.insert(m.result, v);
        }
        for (clif, block, pick) in
            [(yes, then, (|m: &Merge| m.then) as fn(&Merge) -> Reg), (no, otherwise, |m: &Merge| m.otherwise)]
        {
            self.b.switch_to_block(clif);
            self.b.seal_block(clif);
            self.block(block);
            let args: Vec<BlockArg> = merges.iter().map(|m| self.value(pick(m)).into()).collect();
            self.b.ins().jump(after, &args);
        }
        self.b.switch_to_block(after);
        self.b.seal_block(after);
    }

    /// A loop tested at its end, behind a test of whether it runs at all.
    fn looped(&mut self, l: &For) {
        let (body, after) = (self.b.create_block(), self.b.create_block());
        let var = self.b.append_block_param(body, types::I64);
        self.values.insert(l.var, var);
        for c in &l.carried {
            let ty = clif_type(self.ty(c.init));
            let (inside, outside) = (self.b.append_block_param(body, ty), self.b.append_block_param(after, ty));
            self.values.insert(c.arg, inside);
            self.values.insert(c.result, outside);
        }
        let (begin, end) = (self.value(l.begin), self.value(l.end));
        let inits: Vec<BlockArg> = l.carried.iter().map(|c| self.value(c.init).into()).collect();
        let enter: Vec<BlockArg> = std::iter::once(begin.into()).chain(inits.iter().copied()).collect();
        let known = match (self.constant(l.begin), self.constant(l.end)) {
            (Some(a), Some(b)) => Some(a.to_i64() < b.to_i64()),
            _ => None,
        };
        match known {
            Some(true) => {
                self.b.ins().jump(body, &enter);
            }
            Some(false) | None => {
                let some = self.b.ins().icmp(IntCC::SignedLessThan, begin, end);
                self.b.ins().brif(some, body, &enter, after, &inits);
            }
        }
        self.b.switch_to_block(body);
        self.block(&l.body);
        let next = self.b.ins().iadd_imm_s(var, l.step);
        let more = self.b.ins().icmp(IntCC::SignedLessThan, next, end);
        let carried: Vec<BlockArg> = l.carried.iter().map(|c| self.value(c.next).into()).collect();
        let again: Vec<BlockArg> = std::iter::once(next.into()).chain(carried.iter().copied()).collect();
        self.b.ins().brif(more, body, &again, after, &carried);
        self.b.seal_block(body);
        self.b.seal_block(after);
        self.b.switch_to_block(after);
    }

    /// Base address in bytes and constant displacement.
    fn address(&mut self, place: Place, index: Reg, offset: i64) -> (Value, i32) {
        let base = match place {
            Place::Param(i) => self.params[i as usize],
            Place::Buffer(i) => self.buffers[i as usize],
        };
        let size = self.kernel.place(place).map_or(1, |p| p.0.size()) as i64;
        let (base, bytes) = match self.constant(index) {
            Some(c) => (base, (c.to_i64() + offset) * size),
            None => {
                let index = self.value(index);
                let scaled = match size {
                    1 => index,
                    n => self.b.ins().ishl_imm_u(index, n.ilog2() as i64),
                };
                (self.b.ins().iadd(base, scaled), offset * size)
            }
        };
        match i32::try_from(bytes) {
            Ok(d) => (base, d),
            Err(_) => (self.b.ins().iadd_imm_s(base, bytes), 0),
        }
    }

    fn flags(&self, place: Place) -> MemFlagsData {
        let plain = MemFlagsData::new().with_notrap();
        match place {
            Place::Param(i) => match self.kernel.params[i as usize].access {
                Access::Constant => plain.with_readonly().with_can_move(),
                Access::Read | Access::Write | Access::Update => plain,
            },
            Place::Buffer(_) => plain,
        }
    }

    fn load(&mut self, ty: RegType, from: Place, index: Reg, offset: i64) -> Value {
        let flags = self.flags(from);
        let (base, at) = self.address(from, index, offset);
        if matches!(ty.dtype, DType::F16 | DType::BF16) {
            let raw = match ty.lanes {
                1 => self.b.ins().uload16(types::I32, flags, base, at),
                _ => self.b.ins().uload16x4(flags, base, at),
            };
            return self.widen(ty.dtype, raw);
        }
        if ty.lanes == 1 {
            return self.b.ins().load(memory_type(ty.dtype), flags, base, at);
        }
        if ty.dtype == DType::Bool {
            let bytes = self.b.ins().load(types::I32, flags, base, at);
            return self.mask_from_bytes(bytes);
        }
        self.b.ins().load(clif_type(ty), flags, base, at)
    }

    fn store(&mut self, to: Place, index: Reg, offset: i64, value: Reg) {
        let flags = self.flags(to);
        let ty = self.ty(value);
        let (base, at) = self.address(to, index, offset);
        let v = self.value(value);
        if matches!(ty.dtype, DType::F16 | DType::BF16) {
            let bits = self.narrow(ty.dtype, v);
            if ty.lanes == 1 {
                self.b.ins().istore16(flags, bits, base, at);
                return;
            }
            let halves = self.b.ins().unarrow(bits, bits);
            let halves = self.bitcast(types::I64X2, halves);
            let four = self.b.ins().extractlane(halves, 0);
            self.b.ins().store(flags, four, base, at);
        } else if ty.lanes == 1 {
            self.b.ins().store(flags, v, base, at);
        } else if ty.dtype == DType::Bool {
            let bytes = self.bytes_from_mask(v);
            self.b.ins().store(flags, bytes, base, at);
        } else {
            self.b.ins().store(flags, v, base, at);
        }
    }
}

/// The type of an element in memory.
pub(super) fn memory_type(dtype: DType) -> cranelift_codegen::ir::Type {
    match dtype {
        DType::Bool | DType::I8 | DType::U8 => types::I8,
        DType::I16 | DType::F16 | DType::BF16 => types::I16,
        DType::I32 | DType::U32 => types::I32,
        DType::I64 => types::I64,
        DType::F32 => types::F32,
        DType::F64 => types::F64,
    }
}
