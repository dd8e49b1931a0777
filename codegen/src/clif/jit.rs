//! Compilation of kernels and the memory that holds their code.

use super::emit;
use cranelift_codegen::control::ControlPlane;
use cranelift_codegen::ir::{AbiParam, Signature, types};
use cranelift_codegen::isa::{CallConv, OwnedTargetIsa, TargetIsa};
use cranelift_codegen::settings::{self, Configurable};
use cranelift_codegen::{Context, FinalizedMachReloc};
use cranelift_frontend::FunctionBuilderContext;
use cranelift_jit::{JITBuilder, JITModule};
use cranelift_module::{Linkage, Module, default_libcall_names};
use intwain_ir::kernel::{self, Bound, Entry, Kernel};
use std::sync::Mutex;

/// Why kernels could not be compiled.
#[derive(Debug, thiserror::Error)]
pub enum CompileError {
    /// The machine lacks instructions that generated code needs.
    #[error("this processor is not supported: {0}")]
    Machine(String),
    /// A kernel breaks the rules of kernels: a defect of the schedule that made it.
    #[error("{0}")]
    Invalid(kernel::Defect),
    /// A kernel for another kind of device.
    #[error("kernel {0} is not for a CPU")]
    NotCpu(String),
    /// Cranelift refused a function: a defect of the emitter.
    #[error("kernel {kernel}: {problem}")]
    Codegen {
        /// The kernel.
        kernel: String,
        /// What Cranelift said.
        problem: String,
    },
    /// The code could not be brought into memory.
    #[error("the code could not be loaded: {0}")]
    Memory(String),
}

/// A compiler for the machine that it runs on.
pub struct Jit {
    /// Optimises freely.
    speed: OwnedTargetIsa,
    /// Keeps instructions where the kernel has them.
    plain: OwnedTargetIsa,
    fma: emit::FusedMultiply,
}

impl std::fmt::Debug for Jit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Jit").field("isa", &self.speed.name()).finish_non_exhaustive()
    }
}

/// Machine code of one kernel.
struct Compiled {
    bytes: Vec<u8>,
    align: u64,
}

impl Jit {
    /// A compiler for this machine.
    pub fn new() -> Result<Jit, CompileError> {
        let isa = |opt: &str| -> Result<OwnedTargetIsa, CompileError> {
            let machine = |e: &dyn std::fmt::Display| CompileError::Machine(e.to_string());
            let mut flags = settings::builder();
            for (name, value) in [
                ("use_colocated_libcalls", "false"),
                ("is_pic", "false"),
                ("enable_verifier", if cfg!(debug_assertions) { "true" } else { "false" }),
                ("opt_level", opt),
            ] {
                flags.set(name, value).map_err(|e| machine(&e))?;
            }
            let builder = cranelift_native::builder().map_err(|e| machine(&e))?;
            builder.finish(settings::Flags::new(flags)).map_err(|e| machine(&e))
        };
        let (speed, plain) = (isa("speed")?, isa("none")?);
        let has = |name: &str| speed.isa_flags().iter().any(|f| f.name == name && f.as_bool() == Some(true));
        if cfg!(target_arch = "x86_64") && !has("has_sse41") {
            return Err(CompileError::Machine("SSE 4.1 is needed for rounding and vectors".into()));
        }
        let native = !cfg!(target_arch = "x86_64") || has("has_fma");
        let fma = if native { emit::FusedMultiply::Native } else { emit::FusedMultiply::Call };
        Ok(Jit { speed, plain, fma })
    }

    /// Compiles kernels on up to `threads` threads. The functions have the order of the kernels.
    pub fn compile(&self, kernels: &[&Kernel], threads: usize) -> Result<JitCode, CompileError> {
        let threads = threads.clamp(1, kernels.len().max(1));
        let share = kernels.len().div_ceil(threads).max(1);
        let compiled: Vec<Compiled> = if threads == 1 {
            self.compile_all(kernels)?
        } else {
            let parts: Vec<Result<Vec<Compiled>, CompileError>> = std::thread::scope(|s| {
                let handles: Vec<_> =
                    kernels.chunks(share).map(|part| s.spawn(move || self.compile_all(part))).collect();
                handles.into_iter().map(|h| h.join().expect("compilation does not panic")).collect()
            });
            parts.into_iter().collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect()
        };
        self.load(kernels, &compiled)
    }

    fn compile_all(&self, kernels: &[&Kernel]) -> Result<Vec<Compiled>, CompileError> {
        let mut scratch = FunctionBuilderContext::new();
        kernels.iter().map(|k| self.compile_one(k, &mut scratch)).collect()
    }

    fn compile_one(&self, kernel: &Kernel, scratch: &mut FunctionBuilderContext) -> Result<Compiled, CompileError> {
        kernel::verify(kernel).map_err(|mut defects| CompileError::Invalid(defects.swap_remove(0)))?;
        let isa: &dyn TargetIsa = match kernel.bound {
            Bound::Memory => &*self.speed,
            Bound::Arithmetic => &*self.plain,
        };
        let mut context = Context::new();
        context.func.signature = signature(kernel, isa.default_call_conv())?;
        emit::function(kernel, &mut context.func, scratch, isa, self.fma);
        let problem = |p: String| CompileError::Codegen { kernel: kernel.name.clone(), problem: p };
        let code = context
            .compile(isa, &mut ControlPlane::default())
            .map_err(|e| problem(cranelift_codegen::print_errors::pretty_error(e.func, e.inner)))?;
        let relocations: &[FinalizedMachReloc] = code.buffer.relocs();
        if let Some(r) = relocations.first() {
            return Err(problem(format!("calls {:?}, which nothing provides", r.target)));
        }
        Ok(Compiled { bytes: code.code_buffer().to_vec(), align: u64::from(code.buffer.alignment) })
    }

    fn load(&self, kernels: &[&Kernel], compiled: &[Compiled]) -> Result<JitCode, CompileError> {
        let memory = |e: &dyn std::fmt::Display| CompileError::Memory(e.to_string());
        let mut module = JITModule::new(JITBuilder::with_isa(self.speed.clone(), default_libcall_names()));
        let mut ids = Vec::with_capacity(compiled.len());
        for (i, (kernel, code)) in kernels.iter().zip(compiled).enumerate() {
            let sig = signature(kernel, self.speed.default_call_conv())?;
            // Numbered, because two programs may give different kernels one name.
            let name = format!("{}.{i}", kernel.name);
            let id = module.declare_function(&name, Linkage::Export, &sig).map_err(|e| memory(&e))?;
            module.define_function_bytes(id, code.align, &code.bytes, &[]).map_err(|e| memory(&e))?;
            ids.push(id);
        }
        module.finalize_definitions().map_err(|e| memory(&e))?;
        let functions = kernels
            .iter()
            .zip(ids)
            .map(|(kernel, id)| {
                let address = module.get_finalized_function(id);
                // SAFETY: the address is that of code with the signature that `signature` gives for this entry.
                unsafe {
                    match kernel.entry {
                        Entry::Tile => Function::Tile(std::mem::transmute::<*const u8, TileFn>(address)),
                        Entry::Tasks | Entry::Grid { .. } => {
                            Function::Tasks(std::mem::transmute::<*const u8, TasksFn>(address))
                        }
                    }
                }
            })
            .collect();
        let bytes = compiled.iter().map(|c| c.bytes.len()).sum();
        Ok(JitCode { module: Mutex::new(Some(module)), functions, bytes })
    }
}

/// `fn(params, begin, end, scratch)`.
pub type TasksFn = unsafe extern "C" fn(*const *mut u8, i64, i64, *mut u8);
/// `fn(params, batch, row begin, row end, column begin, column end)`.
pub type TileFn = unsafe extern "C" fn(*const *mut u8, i64, i64, i64, i64, i64);

/// The entry of a compiled kernel; valid as long as the [`JitCode`] that it came from.
#[derive(Clone, Copy, Debug)]
pub enum Function {
    /// Of [`Entry::Tasks`].
    Tasks(TasksFn),
    /// Of [`Entry::Tile`].
    Tile(TileFn),
}

/// Executable memory with compiled kernels; freed on drop.
pub struct JitCode {
    module: Mutex<Option<JITModule>>,
    functions: Vec<Function>,
    bytes: usize,
}

impl std::fmt::Debug for JitCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("JitCode").field("functions", &self.functions.len()).field("bytes", &self.bytes).finish()
    }
}

impl JitCode {
    /// The function of the kernel at this position.
    pub fn function(&self, i: usize) -> Function {
        self.functions[i]
    }

    /// Size of the code.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Runs tasks of a kernel.
    ///
    /// # Safety
    /// `params` has the kernel's parameters in order, each with as many elements and the alignment it states, and what
    /// its access says about aliasing holds. `scratch` has the bytes of the kernel's buffers, aligned to
    /// [`kernel::BUFFER_ALIGN`]. The tasks exist, and no task is run twice at once.
    pub unsafe fn run(&self, i: usize, params: &[*mut u8], begin: i64, end: i64, scratch: *mut u8) {
        match self.functions[i] {
            // SAFETY: the caller's promise, passed on; the memory lives as long as `self`.
            Function::Tasks(f) => unsafe { f(params.as_ptr(), begin, end, scratch) },
            Function::Tile(_) => debug_assert!(false, "a kernel on rectangles has no tasks"),
        }
    }
}

impl Drop for JitCode {
    fn drop(&mut self) {
        let module = self.module.get_mut().ok().and_then(Option::take);
        if let Some(module) = module {
            // SAFETY: functions can be called through `self` only, which is going away.
            unsafe { module.free_memory() };
        }
    }
}

fn signature(kernel: &Kernel, convention: CallConv) -> Result<Signature, CompileError> {
    let mut sig = Signature::new(convention);
    let arguments = match kernel.entry {
        Entry::Tasks => 4,
        Entry::Tile => 6,
        Entry::Grid { .. } => return Err(CompileError::NotCpu(kernel.name.clone())),
    };
    sig.params = vec![AbiParam::new(types::I64); arguments];
    Ok(sig)
}
