//! Kernels on a GPU.

use super::device::{CudaDevice, CudaError};
use super::message;
use cudarc::driver::{result, sys};
use std::ffi::{CStr, CString, c_void};
use std::os::raw::c_char;
use std::sync::Arc;

/// Kernels on one GPU.
#[derive(Debug)]
pub(crate) struct CudaModule {
    device: Arc<CudaDevice>,
    module: sys::CUmodule,
    functions: Vec<sys::CUfunction>,
}

// SAFETY: as for the device.
unsafe impl Send for CudaModule {}
// SAFETY: as for the device.
unsafe impl Sync for CudaModule {}

/// Bytes of the assembler's messages that are kept.
const LOG: usize = 8 << 10;

impl CudaModule {
    /// Assembles PTX, and loads the named kernels.
    pub(crate) fn load(device: Arc<CudaDevice>, ptx: &str, kernels: &[String]) -> Result<CudaModule, CudaError> {
        let text = CString::new(ptx).map_err(|_| CudaError::Module { log: "the text has a zero byte".into() })?;
        let mut log = vec![0u8; LOG];
        let mut options =
            [sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER, sys::CUjit_option::CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES];
        let mut values = [log.as_mut_ptr().cast::<c_void>(), std::ptr::without_provenance_mut(LOG)];
        let mut module = std::ptr::null_mut();
        // SAFETY: the text ends with a zero; options and values are two each, and the buffer has the size that they say.
        let loaded = device.call("load a module", || {
            Ok(unsafe {
                sys::cuModuleLoadDataEx(
                    &mut module,
                    text.as_ptr().cast(),
                    options.len() as u32,
                    options.as_mut_ptr(),
                    values.as_mut_ptr(),
                )
            })
        })?;
        if let Err(e) = loaded.result() {
            log[LOG - 1] = 0;
            // SAFETY: the buffer ends with a zero.
            let said = unsafe { CStr::from_ptr(log.as_ptr().cast::<c_char>()) }.to_string_lossy().trim().to_string();
            return Err(CudaError::Module { log: if said.is_empty() { message(e) } else { said } });
        }
        let mut this = CudaModule { device, module, functions: Vec::new() };
        for name in kernels {
            let f = this.function(name)?;
            this.functions.push(f);
        }
        Ok(this)
    }

    /// A kernel, by its place among the names.
    pub(super) fn kernel(&self, index: usize) -> sys::CUfunction {
        self.functions[index]
    }

    fn function(&self, name: &str) -> Result<sys::CUfunction, CudaError> {
        use sys::CUfunction_attribute::{
            CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as SHARED, CU_FUNC_ATTRIBUTE_NUM_REGS,
        };
        let c_name = CString::new(name).map_err(|_| CudaError::Module { log: format!("`{name}` has a zero byte") })?;
        self.device.call("find a kernel", || {
            // SAFETY: the module lives as long as this value.
            let f = unsafe { result::module::get_function(self.module, c_name) }?;
            // Asking for a fact loads the kernel now.
            // SAFETY: the function is of a living module.
            unsafe { result::function::get_function_attribute(f, CU_FUNC_ATTRIBUTE_NUM_REGS) }?;
            // Kernels may ask for more shared memory than the 48 KiB that are allowed without this.
            // SAFETY: as above.
            unsafe { result::function::set_function_attribute(f, SHARED, self.device.shared) }?;
            Ok(f)
        })
    }
}

impl Drop for CudaModule {
    fn drop(&mut self) {
        // Nobody is left to tell of a failure.
        let _ = self.device.synchronize();
        // SAFETY: the module was loaded in this context, and nothing of it runs.
        let _ = self.device.call("unload a module", || unsafe { result::module::unload(self.module) });
    }
}
