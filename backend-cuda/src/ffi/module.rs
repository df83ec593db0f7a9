//! Modules of device code, their functions, and launches.

use super::stream::{Raw, RawStream};
use super::{Code, Driver, LoadError, check, symbol};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// Loaded device code; unloading uses it up.
#[derive(Debug)]
pub(crate) struct RawModule(Raw);

/// A function of a module that is loaded.
#[derive(Debug)]
pub(crate) struct RawFunction(Raw);

/// `CUfunction_attribute`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FunctionAttribute {
    /// Most threads of a block.
    MaxThreads = 0,
    /// Static shared memory, in bytes.
    SharedBytes = 1,
    /// Local memory of a thread (spills, stack), in bytes.
    LocalBytes = 3,
    /// Registers of a thread.
    Registers = 4,
}

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
const MAX_DYNAMIC_SHARED: c_int = 8;
/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: c_int = 1;
/// Arguments of one launch at most.
pub(crate) const ARGUMENTS_MAX: usize = 24;

type LaunchFn = unsafe extern "C" fn(
    Raw,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    c_uint,
    Raw,
    *mut *mut c_void,
    *mut *mut c_void,
) -> c_int;

/// Functions of modules; all need a current context.
#[derive(Clone, Copy)]
pub(crate) struct ModuleApi {
    load: unsafe extern "C" fn(*mut Raw, *const c_void) -> c_int,
    unload: unsafe extern "C" fn(Raw) -> c_int,
    function: unsafe extern "C" fn(*mut Raw, Raw, *const c_char) -> c_int,
    attribute: unsafe extern "C" fn(*mut c_int, c_int, Raw) -> c_int,
    set_attribute: unsafe extern "C" fn(Raw, c_int, c_int) -> c_int,
    launch: LaunchFn,
    parameter: Option<unsafe extern "C" fn(Raw, usize, *mut usize, *mut usize) -> c_int>,
}

impl ModuleApi {
    /// Finds the symbols; `_driver` says that the library is loaded.
    pub(crate) fn load(_driver: &Driver) -> Result<Self, LoadError> {
        Ok(Self {
            load: symbol("cuModuleLoadData")?,
            unload: symbol("cuModuleUnload")?,
            function: symbol("cuModuleGetFunction")?,
            attribute: symbol("cuFuncGetAttribute")?,
            set_attribute: symbol("cuFuncSetAttribute")?,
            launch: symbol("cuLaunchKernel")?,
            // Since CUDA 12.4; only checks.
            parameter: symbol("cuFuncGetParamInfo").ok(),
        })
    }

    /// Loads a cubin, a fat binary, or the text of PTX. The driver reads as far as the image's own
    /// headers say, or to the zero behind a text; `image` is copied to an aligned place with a
    /// zero behind it.
    pub(crate) fn load_image(&self, image: &[u8]) -> Result<RawModule, Code> {
        let mut aligned = vec![0_u64; image.len() / 8 + 1];
        let bytes: *mut u8 = aligned.as_mut_ptr().cast();
        // SAFETY: there is room for more than the image's bytes.
        unsafe { std::ptr::copy_nonoverlapping(image.as_ptr(), bytes, image.len()) };
        let mut module: Raw = std::ptr::null_mut();
        // SAFETY: the image is alive during the call, after which the driver has its own copy.
        check(unsafe { (self.load)(&raw mut module, bytes.cast()) })?;
        Ok(RawModule(module))
    }

    /// Unloads a module.
    pub(crate) fn unload(&self, module: RawModule) -> Result<(), Code> {
        // SAFETY: it came from `load_image` and is used up here; its functions' owners hold it.
        check(unsafe { (self.unload)(module.0) })
    }

    /// Finds a function of a module.
    pub(crate) fn function(&self, module: &RawModule, name: &CStr) -> Result<RawFunction, Code> {
        let mut function: Raw = std::ptr::null_mut();
        // SAFETY: the module is alive; the name ends in a zero; the pointer is valid.
        check(unsafe { (self.function)(&raw mut function, module.0, name.as_ptr()) })?;
        Ok(RawFunction(function))
    }

    /// The sizes of a function's parameters; `None` when the driver cannot say.
    pub(crate) fn parameters(&self, function: &RawFunction) -> Option<Vec<usize>> {
        let info = self.parameter?;
        let mut sizes = Vec::new();
        for index in 0..ARGUMENTS_MAX {
            let (mut offset, mut size) = (0_usize, 0_usize);
            // SAFETY: the function is alive; both pointers are valid. An index behind the last
            // parameter is an error code.
            match unsafe { info(function.0, index, &raw mut offset, &raw mut size) } {
                0 => sizes.push(size),
                INVALID_VALUE => break,
                // A device that is lost says nothing of parameters.
                _ => return None,
            }
        }
        Some(sizes)
    }

    /// One attribute of a function.
    pub(crate) fn attribute(
        &self,
        function: &RawFunction,
        attribute: FunctionAttribute,
    ) -> Result<i32, Code> {
        let mut value = 0;
        // SAFETY: the function is alive; the pointer is valid for the call.
        check(unsafe { (self.attribute)(&raw mut value, attribute as c_int, function.0) })?;
        Ok(value)
    }

    /// Allows launches with this much dynamic shared memory.
    pub(crate) fn allow_shared(&self, function: &RawFunction, bytes: i32) -> Result<(), Code> {
        // SAFETY: the function is alive.
        check(unsafe { (self.set_attribute)(function.0, MAX_DYNAMIC_SHARED, bytes) })
    }

    /// Launches a function. Each argument stands in eight bytes, its own bytes first; the caller
    /// has compared them with the function's parameters.
    pub(crate) fn launch(
        &self,
        function: &RawFunction,
        (grid, block, shared): ([u32; 3], [u32; 3], u32),
        arguments: &mut [u64; ARGUMENTS_MAX],
        stream: &RawStream,
    ) -> Result<(), Code> {
        let mut pointers = [std::ptr::null_mut::<c_void>(); ARGUMENTS_MAX];
        for (pointer, argument) in pointers.iter_mut().zip(arguments) {
            *pointer = std::ptr::from_mut(argument).cast();
        }
        let ([x, y, z], [a, b, c]) = (grid, block);
        // SAFETY: function and stream are alive. The driver copies as many arguments as the
        // function has parameters, none wider than eight bytes, and every pointer leads to eight;
        // what the kernel does to device memory is the device's error.
        check(unsafe {
            (self.launch)(
                function.0,
                x,
                y,
                z,
                a,
                b,
                c,
                shared,
                stream.0,
                pointers.as_mut_ptr(),
                std::ptr::null_mut(),
            )
        })
    }
}
