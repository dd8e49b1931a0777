//! Kernels for CPUs: what a schedule made, compiled, and how it is run.
//!
//! [`Cpu::schedule`] turns a Compute into a [`CpuKernel`], [`CpuCode::compile`] compiles many of them into one block of
//! memory, and [`CpuCode::run`] executes a range of a kernel's tasks on the calling thread. Tasks don't depend on each
//! other; any division of them over threads gives the same bits. Nothing is allocated while kernels run.

use super::contract::{self, Recognised};
use super::nest::Nest;
use super::rows::{self, Style};
use super::tile;
use crate::clif::{CompileError, Function, Jit, JitCode};
use intwain_ir::compute::Compute;
use intwain_ir::kernel::{BUFFER_ALIGN, Kernel};
use intwain_ir::scalar::Reduce;
use intwain_ir::{DType, Target, Type};
use intwain_micro::{Contraction, Epilogue, EpilogueFn, Isa, RightForm};
use smallvec::SmallVec;
use std::ops::Range;
use std::sync::Arc;

/// When an operand's elements are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Timing {
    /// With every call.
    Call,
    /// Once, before the first call: weights and what follows from them. Such an operand may be packed.
    Load,
}

/// An operand of a kernel.
#[derive(Clone, Copy, Debug)]
pub struct Operand<'a> {
    /// Its type.
    pub ty: &'a Type,
    /// When its elements are known.
    pub timing: Timing,
}

/// The CPU that kernels are made for.
#[derive(Clone, Copy, Debug)]
pub struct Cpu {
    isa: Isa,
}

/// What a kernel does.
#[derive(Clone, Debug)]
enum Work {
    Loops(rows::TaskKernel),
    Contraction(Box<Product>),
}

#[derive(Clone, Debug)]
struct Product {
    contraction: Contraction,
    a: usize,
    b: usize,
    /// Position of the sums among the parameters; `None` if they are in scratch.
    c: Option<usize>,
    epilogue: Option<Kernel>,
}

/// A scheduled kernel. Its parameters are the operands, then the results.
#[derive(Clone, Debug)]
pub struct CpuKernel {
    work: Work,
    params: usize,
}

/// An operand that a kernel wants in another form, made once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Packed {
    /// Which operand.
    pub operand: usize,
    /// Bytes of the form that takes its place among the parameters.
    pub bytes: usize,
    /// Names the form: where it is equal, the same operand becomes the same bytes.
    pub form: Arc<str>,
}

impl Cpu {
    /// The machine that this runs on.
    pub fn host() -> Cpu {
        Cpu { isa: Isa::detect() }
    }

    /// Chooses how to compute something. `name` says in listings what the kernel is for.
    pub fn schedule(&self, name: &str, compute: &Compute, operands: &[Operand<'_>], results: &[&Type]) -> CpuKernel {
        let types: Vec<&Type> = operands.iter().map(|o| o.ty).collect();
        let params = types.len() + results.len();
        let nest = Nest::new(compute, &types);
        if let Some(product) = self.product(name, &nest, operands, &types, results) {
            return CpuKernel { work: Work::Contraction(Box::new(product)), params };
        }
        CpuKernel { work: Work::Loops(rows::schedule(name, nest, &types, results, Style::Fast)), params }
    }

    /// The plain schedule: one element after another, without vectors or micro-kernels. The same bits, slowly.
    pub fn schedule_naive(&self, name: &str, compute: &Compute, operands: &[&Type], results: &[&Type]) -> CpuKernel {
        let nest = Nest::new(compute, operands);
        let params = operands.len() + results.len();
        CpuKernel { work: Work::Loops(rows::schedule(name, nest, operands, results, Style::Naive)), params }
    }

    fn product(
        &self,
        name: &str,
        nest: &Nest,
        operands: &[Operand<'_>],
        types: &[&Type],
        results: &[&Type],
    ) -> Option<Product> {
        let r = contract::recognise(nest, types, results)?;
        let mut contraction = r.contraction.clone();
        let Recognised { a, b, c, .. } = r;
        if operands[b].timing == Timing::Load {
            contraction.right = RightForm::Packed;
        }
        let pitch = intwain_micro::Plan::new(&contraction, self.isa).ok()?.sums_pitch();
        let sums = c.map_or(tile::Sums::Scratch(r.sums(pitch)), tile::Sums::Result);
        let roles = tile::Roles { batch: &r.batch, rows: &r.rows, columns: &r.columns, sums };
        let epilogue = r.epilogue(pitch).map(|nest| tile::schedule(name, nest, &roles, types, results));
        Some(Product { contraction, a, b, c: c.map(|c| types.len() + c), epilogue })
    }
}

impl Target for Cpu {
    /// An element is stored after everything that is computed from it.
    fn updates_in_place(&self) -> bool {
        true
    }

    /// A contraction keeps its micro-kernels only while its factors are plain loads and it is the only reduction.
    fn can_fuse(&self, compute: &Compute, operands: &[&Type], results: &[&Type]) -> bool {
        use intwain_ir::compute::{Expr, Order};
        let live = compute.reachable();
        let sums = compute.exprs().filter(|(id, e)| {
            let chain = matches!(e, Expr::Reduce { op: Reduce::Sum, order: Order::Fma, .. });
            live[id.0 as usize] && chain && matches!(compute.dtype(*id), DType::F32 | DType::F64)
        });
        match sums.count() {
            0 => true,
            _ => {
                let nest = Nest::new(compute, operands);
                contract::recognise(&nest, operands, results).is_some() || contract::is_elementwise(&nest)
            }
        }
    }
}

impl CpuKernel {
    /// The kernel IR that the schedule wrote, for listings: the loops, or the epilogue of a contraction.
    pub fn kernel(&self) -> Option<&Kernel> {
        match &self.work {
            Work::Loops(k) => Some(&k.kernel),
            Work::Contraction(p) => p.epilogue.as_ref(),
        }
    }

    /// Which schedule it is.
    pub fn schedule_name(&self) -> &'static str {
        match &self.work {
            Work::Loops(_) => "loops",
            Work::Contraction(_) => "contraction",
        }
    }

    /// Number of parameters: operands and results.
    pub fn params(&self) -> usize {
        self.params
    }
}

/// A compiled kernel.
#[derive(Debug)]
enum Entry {
    Loops {
        function: usize,
        tasks: usize,
        scratch: usize,
    },
    Contraction {
        plan: Box<intwain_micro::Plan>,
        a: usize,
        b: usize,
        c: Option<usize>,
        epilogue: Option<EpilogueFn>,
        /// The form that B is packed in.
        packed: Option<Arc<str>>,
    },
}

/// Compiled kernels.
#[derive(Debug)]
pub struct CpuCode {
    code: JitCode,
    entries: Vec<Entry>,
}

impl CpuCode {
    /// Compiles kernels on up to `threads` threads; they keep their order.
    pub fn compile(jit: &Jit, cpu: &Cpu, kernels: &[&CpuKernel], threads: usize) -> Result<CpuCode, CompileError> {
        let mut functions: Vec<&Kernel> = Vec::new();
        let places: Vec<Option<usize>> = kernels
            .iter()
            .map(|k| {
                let kernel = k.kernel()?;
                functions.push(kernel);
                Some(functions.len() - 1)
            })
            .collect();
        let code = jit.compile(&functions, threads)?;
        let entries =
            kernels.iter().zip(places).map(|(k, place)| entry(k, place, &code, cpu)).collect::<Result<_, _>>()?;
        Ok(CpuCode { code, entries })
    }

    /// Number of independent tasks of a kernel; 0 if its results are empty.
    pub fn tasks(&self, kernel: usize) -> usize {
        match &self.entries[kernel] {
            Entry::Loops { tasks, .. } => *tasks,
            Entry::Contraction { plan, .. } => plan.tasks(),
        }
    }

    /// Bytes of scratch that each thread needs, aligned to [`SCRATCH_ALIGN`].
    pub fn scratch_bytes(&self, kernel: usize) -> usize {
        match &self.entries[kernel] {
            Entry::Loops { scratch, .. } => *scratch,
            Entry::Contraction { plan, .. } => plan.scratch_bytes(),
        }
    }

    /// The operand that must be packed before the first call, if there is one.
    pub fn packed(&self, kernel: usize) -> Option<Packed> {
        match &self.entries[kernel] {
            Entry::Contraction { plan, b, packed: Some(form), .. } => {
                let bytes = plan.packed_len() * plan.element_bytes();
                Some(Packed { operand: *b, bytes, form: form.clone() })
            }
            Entry::Contraction { .. } | Entry::Loops { .. } => None,
        }
    }

    /// Writes the packed form of the operand that [`CpuCode::packed`] names.
    ///
    /// # Safety
    /// `operand` points to that operand's elements, `target` to as many bytes as `packed` says, aligned to
    /// [`SCRATCH_ALIGN`]; they don't overlap.
    pub unsafe fn pack(&self, kernel: usize, operand: *const u8, target: *mut u8) {
        if let Entry::Contraction { plan, packed: Some(_), .. } = &self.entries[kernel] {
            // SAFETY: the caller's promise, passed on.
            unsafe { plan.pack(operand, target) };
        }
    }

    /// Runs tasks of a kernel on this thread.
    ///
    /// # Safety
    /// `params` points to the operands (packed where [`CpuCode::packed`] says so), then the results, of the types the
    /// kernel was scheduled for, each aligned for its elements (a packed one to [`SCRATCH_ALIGN`]). Results overlap
    /// neither each other nor operands. Nobody writes the operands meanwhile, and no task runs twice at once. `scratch`
    /// is aligned to [`SCRATCH_ALIGN`], has [`CpuCode::scratch_bytes`], and is this call's alone.
    pub unsafe fn run(&self, kernel: usize, params: &[*mut u8], tasks: Range<usize>, scratch: &mut [u8]) {
        match &self.entries[kernel] {
            Entry::Loops { function, .. } => {
                // SAFETY: the caller's promise, passed on.
                unsafe {
                    self.code.run(*function, params, tasks.start as i64, tasks.end as i64, scratch.as_mut_ptr());
                }
            }
            Entry::Contraction { plan, a, b, c, epilogue, .. } => {
                // The parameters that the epilogue was compiled for: where the sums are in scratch, their address is the last.
                let mut context: SmallVec<[*mut u8; PARAMS]> = SmallVec::from_slice(params);
                context.push(std::ptr::null_mut());
                let context = context.as_mut_ptr();
                let sums = context.wrapping_add(params.len());
                let result = c.map_or(std::ptr::null_mut(), |c| params[c]);
                let epilogue =
                    epilogue.map(|function| Epilogue { function, context: context.cast_const().cast(), sums });
                // SAFETY: the caller's promise, passed on; the epilogue works in place on its rectangle.
                unsafe { plan.run(params[*a], params[*b], result, epilogue, tasks, scratch) };
            }
        }
    }
}

/// Parameters that a contraction has without room of its own for their addresses.
const PARAMS: usize = 32;

/// Alignment of scratch and of packed operands.
pub const SCRATCH_ALIGN: usize =
    if BUFFER_ALIGN > intwain_micro::ALIGNMENT { BUFFER_ALIGN } else { intwain_micro::ALIGNMENT };

fn entry(k: &CpuKernel, place: Option<usize>, code: &JitCode, cpu: &Cpu) -> Result<Entry, CompileError> {
    match &k.work {
        Work::Loops(t) => Ok(Entry::Loops {
            function: place.expect("loops have a function"),
            tasks: t.tasks,
            scratch: t.kernel.buffer_offsets().1,
        }),
        Work::Contraction(p) => {
            let plan =
                intwain_micro::Plan::new(&p.contraction, cpu.isa).map_err(|e| CompileError::Machine(e.to_string()))?;
            let epilogue = place.and_then(|i| match code.function(i) {
                // SAFETY: the two types differ in the signedness of integers and in what the first pointer points to.
                Function::Tile(f) => Some(unsafe { std::mem::transmute::<crate::clif::TileFn, EpilogueFn>(f) }),
                Function::Tasks(_) => None,
            });
            let Contraction { element, batch, n, k, b, right, .. } = &p.contraction;
            // What the packed form depends on, besides the instruction set, which a process has one of.
            let packed =
                (*right == RightForm::Packed).then(|| format!("{element:?} {batch:?} {n:?} {k:?} {b:?}").into());
            Ok(Entry::Contraction { plan: Box::new(plan), a: p.a, b: p.b, c: p.c, epilogue, packed })
        }
    }
}
