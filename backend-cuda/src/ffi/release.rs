//! Libraries that are only asked for their release: opened, asked, closed again.

use super::symbol;
use libloading::Library;
use std::ffi::{CStr, c_char, c_int, c_uint};

/// A library that is open.
pub(crate) struct Opened(Library);

/// Address in this process of a function of the driver, which must be loaded.
pub(crate) fn driver_address() -> Option<usize> {
    // A function is as large as its address.
    symbol::<usize>("cuInit").ok()
}

impl Opened {
    /// Opens a library by its file name, as the loader finds it; the loader's complaint otherwise.
    pub(crate) fn open(file: &str) -> Result<Self, String> {
        // SAFETY: opening runs the library's initialisers; these are NVIDIA's own libraries.
        unsafe { Library::new(file) }.map(Self).map_err(|error| complaint(&error))
    }

    fn get<F: Copy>(&self, name: &str) -> Option<F> {
        // SAFETY: each caller asks for the C signature that the library documents for the name.
        unsafe { self.0.get::<F>(name.as_bytes()) }.ok().map(|f| *f)
    }

    /// Address in this process of one of its functions.
    pub(crate) fn address(&self, name: &str) -> Option<usize> {
        // A function is as large as its address.
        self.get::<usize>(name)
    }

    /// `cublasLtGetVersion` and its like: a number that is returned.
    pub(crate) fn returned(&self, name: &str) -> Option<u64> {
        let get = self.get::<unsafe extern "C" fn() -> usize>(name)?;
        // SAFETY: takes nothing.
        u64::try_from(unsafe { get() }).ok()
    }

    /// `ncclGetVersion` and its like: a number that is written, 0 for success.
    pub(crate) fn written(&self, name: &str) -> Option<u64> {
        let get = self.get::<unsafe extern "C" fn(*mut c_int) -> c_int>(name)?;
        let mut version = 0;
        // SAFETY: the pointer is valid for the call.
        let code = unsafe { get(&raw mut version) };
        (code == 0).then_some(u64::try_from(version).ok()?)
    }

    /// `nvrtcVersion`: two numbers that are written, 0 for success.
    pub(crate) fn written_pair(&self, name: &str) -> Option<(u32, u32)> {
        let get = self.get::<unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int>(name)?;
        let (mut major, mut minor) = (0, 0);
        // SAFETY: both pointers are valid for the call.
        let code = unsafe { get(&raw mut major, &raw mut minor) };
        (code == 0).then_some((u32::try_from(major).ok()?, u32::try_from(minor).ok()?))
    }

    /// Release of the driver by NVML (`580.65.06`): starts it, asks, and ends it. The error is the code of
    /// the start.
    pub(crate) fn driver_release(&self) -> Result<Option<String>, c_int> {
        const LEN: usize = 80;
        type Plain = unsafe extern "C" fn() -> c_int;
        type Ask = unsafe extern "C" fn(*mut c_char, c_uint) -> c_int;
        let Some(init) = self.get::<Plain>("nvmlInit_v2") else { return Ok(None) };
        // SAFETY: takes nothing.
        let code = unsafe { init() };
        if code != 0 {
            return Err(code);
        }
        let mut buffer = [0_u8; LEN];
        let said = self.get::<Ask>("nvmlSystemGetDriverVersion").map(|ask| {
            // SAFETY: the buffer has the length that is passed.
            unsafe { ask(buffer.as_mut_ptr().cast(), LEN as c_uint) }
        });
        if let Some(end) = self.get::<Plain>("nvmlShutdown") {
            // SAFETY: takes nothing; matches the start.
            let _ = unsafe { end() };
        }
        let text = CStr::from_bytes_until_nul(&buffer).ok().map(CStr::to_string_lossy);
        Ok(text.filter(|_| said == Some(0)).map(|text| text.trim().to_owned()))
    }
}

/// The loader's own words, which stand behind the error.
fn complaint(error: &libloading::Error) -> String {
    let cause = std::error::Error::source(error).map(ToString::to_string);
    cause.unwrap_or_else(|| error.to_string())
}
