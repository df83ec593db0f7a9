//! The compiler of device code, NVRTC: source text to code for one architecture, without a device.

use super::library::{MissingLibrary, Wanted};
use super::stream::Raw;
use std::ffi::{CStr, CString, c_char, c_int};

/// The library.
pub(crate) const WANTED: Wanted = Wanted {
    library: "NVRTC",
    names: &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    fix: "install `nvidia-cuda-nvrtc` (PyPI) or the CUDA toolkit, and add its folder to LD_LIBRARY_PATH",
};

type Create = unsafe extern "C" fn(
    *mut Raw,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> c_int;

/// Why device code was not compiled.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CompileError {
    /// There is no compiler.
    #[error(transparent)]
    Missing(#[from] MissingLibrary),
    /// The compiler refuses it.
    #[error("{call} returned {status}: {log}")]
    Refused {
        /// Which call.
        call: &'static str,
        /// NVRTC's name of the result.
        status: String,
        /// What the compiler says.
        log: String,
    },
}

/// The functions of NVRTC.
pub(crate) struct Nvrtc {
    create: Create,
    destroy: unsafe extern "C" fn(*mut Raw) -> c_int,
    compile: unsafe extern "C" fn(Raw, c_int, *const *const c_char) -> c_int,
    log_size: unsafe extern "C" fn(Raw, *mut usize) -> c_int,
    log: unsafe extern "C" fn(Raw, *mut c_char) -> c_int,
    code_size: unsafe extern "C" fn(Raw, *mut usize) -> c_int,
    code: unsafe extern "C" fn(Raw, *mut c_char) -> c_int,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
}

impl Nvrtc {
    /// Opens the library and finds every symbol.
    pub(crate) fn load() -> Result<Self, MissingLibrary> {
        let library = Box::leak(Box::new(WANTED.open()?));
        Ok(Self {
            create: WANTED.symbol(library, "nvrtcCreateProgram")?,
            destroy: WANTED.symbol(library, "nvrtcDestroyProgram")?,
            compile: WANTED.symbol(library, "nvrtcCompileProgram")?,
            log_size: WANTED.symbol(library, "nvrtcGetProgramLogSize")?,
            log: WANTED.symbol(library, "nvrtcGetProgramLog")?,
            code_size: WANTED.symbol(library, "nvrtcGetCUBINSize")?,
            code: WANTED.symbol(library, "nvrtcGetCUBIN")?,
            error: WANTED.symbol(library, "nvrtcGetErrorString")?,
        })
    }

    /// Compiles `source`, which may include `headers` by their names, for one architecture; the
    /// code and what the compiler says.
    pub(crate) fn compile(
        &self,
        source: &str,
        headers: &[(&str, &str)],
        options: &[String],
    ) -> Result<(Vec<u8>, String), CompileError> {
        let bad = |_| self.refused("nvrtcCreateProgram", 3, "a zero byte in the source".to_owned());
        let text = |text: &str| CString::new(text).map_err(bad);
        let (source, name) = (text(source)?, text("kernels.cu")?);
        let names: Result<Vec<_>, _> = headers.iter().map(|(name, _)| text(name)).collect();
        let bodies: Result<Vec<_>, _> = headers.iter().map(|(_, body)| text(body)).collect();
        let options: Result<Vec<_>, _> = options.iter().map(|option| text(option)).collect();
        let (names, bodies, options) = (names?, bodies?, options?);
        let pointers = |texts: &[CString]| texts.iter().map(|t| t.as_ptr()).collect::<Vec<_>>();
        let (at_names, at_bodies) = (pointers(&names), pointers(&bodies));
        let at_options = pointers(&options);
        let count = |texts: &[CString]| c_int::try_from(texts.len()).unwrap_or(0);
        let mut program: Raw = std::ptr::null_mut();
        // SAFETY: all texts end in zeros and live until the program is destroyed; as many are
        // named as there are.
        let made = unsafe {
            (self.create)(
                &raw mut program,
                source.as_ptr(),
                name.as_ptr(),
                count(&names),
                at_bodies.as_ptr(),
                at_names.as_ptr(),
            )
        };
        self.check("nvrtcCreateProgram", made, String::new)?;
        // SAFETY: the program is alive; as many options are named as there are.
        let compiled = unsafe { (self.compile)(program, count(&options), at_options.as_ptr()) };
        let log = self.read(program, self.log_size, self.log);
        let log = String::from_utf8_lossy(&log).trim_end_matches('\0').trim().to_owned();
        let done = self.check("nvrtcCompileProgram", compiled, || log.clone());
        let code = done.map(|()| self.read(program, self.code_size, self.code));
        // SAFETY: the program came from `create` and is used up here.
        let _ = unsafe { (self.destroy)(&raw mut program) };
        Ok((code?, log))
    }

    fn read(
        &self,
        program: Raw,
        size: unsafe extern "C" fn(Raw, *mut usize) -> c_int,
        get: unsafe extern "C" fn(Raw, *mut c_char) -> c_int,
    ) -> Vec<u8> {
        let mut length = 0_usize;
        // SAFETY: the program is alive; the pointer is valid for the call.
        if unsafe { size(program, &raw mut length) } != 0 {
            return Vec::new();
        }
        let mut bytes = vec![0_u8; length];
        // SAFETY: there is room for as many bytes as the library says.
        let got = unsafe { get(program, bytes.as_mut_ptr().cast()) };
        if got == 0 { bytes } else { Vec::new() }
    }

    fn check(
        &self,
        call: &'static str,
        result: c_int,
        log: impl FnOnce() -> String,
    ) -> Result<(), CompileError> {
        if result == 0 { Ok(()) } else { Err(self.refused(call, result, log())) }
    }

    fn refused(&self, call: &'static str, result: c_int, log: String) -> CompileError {
        // SAFETY: takes any result; the texts are static.
        let text = unsafe { (self.error)(result) };
        let status = if text.is_null() {
            format!("result {result}")
        } else {
            // SAFETY: a zero-ended static text of the library.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        CompileError::Refused { call, status, log }
    }
}
