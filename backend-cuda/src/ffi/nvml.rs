//! The four functions of NVML that say what a context cost: it reads a device's memory without a
//! context of our own, and knows the total that `nvidia-smi` prints. Absent, nothing else fails.

use libloading::Library;
use std::ffi::{CString, c_char, c_int, c_void};

/// `nvmlMemory_t`.
#[repr(C)]
#[derive(Default)]
struct Memory {
    total: u64,
    free: u64,
    used: u64,
}

type Handle = *mut c_void;

/// A loaded and initialised NVML.
pub(crate) struct Nvml {
    library: Library,
}

/// What NVML says about a device: bytes in all, bytes free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ToolReading {
    /// What `nvidia-smi` prints as the total.
    pub(crate) total: u64,
    /// Free now.
    pub(crate) free: u64,
}

impl Nvml {
    /// Opens the library; `None` when it is not there or does not start.
    pub(crate) fn load() -> Option<Self> {
        // SAFETY: opening a library runs its initialisers; this is a part of the NVIDIA driver.
        let library = unsafe { Library::new("libnvidia-ml.so.1") }.ok()?;
        let nvml = Self { library };
        // SAFETY: documented signature.
        let init = unsafe { nvml.library.get::<unsafe extern "C" fn() -> c_int>("nvmlInit_v2") };
        let init = *init.ok()?;
        // SAFETY: takes nothing.
        (unsafe { init() } == 0).then_some(nvml)
    }

    /// Reads the memory of the device or MIG slice with this identity.
    pub(crate) fn memory(&self, uuid: [u8; 16]) -> Option<ToolReading> {
        let handle = self.handle("GPU", uuid).or_else(|| self.handle("MIG", uuid))?;
        type Read = unsafe extern "C" fn(Handle, *mut Memory) -> c_int;
        // SAFETY: documented signature.
        let read = *unsafe { self.library.get::<Read>("nvmlDeviceGetMemoryInfo") }.ok()?;
        let mut memory = Memory::default();
        // SAFETY: the handle came from NVML; the pointer is valid for the call.
        let code = unsafe { read(handle, &raw mut memory) };
        (code == 0).then_some(ToolReading { total: memory.total, free: memory.free })
    }

    fn handle(&self, kind: &str, uuid: [u8; 16]) -> Option<Handle> {
        let hex: String = uuid.iter().map(|byte| format!("{byte:02x}")).collect();
        let (a, b, c, d, e) = (&hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]);
        let text = CString::new(format!("{kind}-{a}-{b}-{c}-{d}-{e}")).ok()?;
        type Find = unsafe extern "C" fn(*const c_char, *mut Handle) -> c_int;
        // SAFETY: documented signature.
        let find = *unsafe { self.library.get::<Find>("nvmlDeviceGetHandleByUUID") }.ok()?;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: the text ends in a zero; the pointer is valid for the call.
        (unsafe { find(text.as_ptr(), &raw mut handle) } == 0).then_some(handle)
    }
}

impl Drop for Nvml {
    fn drop(&mut self) {
        // SAFETY: documented signature; matches the init.
        let shutdown =
            unsafe { self.library.get::<unsafe extern "C" fn() -> c_int>("nvmlShutdown") };
        if let Ok(shutdown) = shutdown {
            // SAFETY: takes nothing.
            let _ = unsafe { shutdown() };
        }
    }
}
