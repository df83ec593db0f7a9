//! The CUDA driver API by its C symbols, loaded at run time. Result codes stay integers: the
//! bindings' enums know only the codes of their own release, and a newer driver may return others.
#![expect(unsafe_code, reason = "calls into the driver library")]

pub(crate) mod cublaslt;
pub(crate) mod library;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod nccl;
pub(crate) mod nvml;
pub(crate) mod nvrtc;
pub(crate) mod release;
pub(crate) mod stream;

pub(crate) use library::LoadError;
use library::symbol;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};

/// `CUDA_SUCCESS`.
const SUCCESS: c_int = 0;

/// What a driver call returned instead of success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Code(pub(crate) c_int);

fn check(code: c_int) -> Result<(), Code> {
    if code == SUCCESS { Ok(()) } else { Err(Code(code)) }
}

type Context = *mut c_void;

/// A retained primary context; only this module makes one, and releasing it uses it up.
#[derive(Debug)]
pub(crate) struct PrimaryContext {
    context: Context,
    device: c_int,
}

/// The driver functions of the probe; all of them exist in every driver since CUDA 11.
#[derive(Clone, Copy)]
pub(crate) struct Driver {
    init: unsafe extern "C" fn(c_uint) -> c_int,
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
    count: unsafe extern "C" fn(*mut c_int) -> c_int,
    get: unsafe extern "C" fn(*mut c_int, c_int) -> c_int,
    name: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
    total: unsafe extern "C" fn(*mut usize, c_int) -> c_int,
    attribute: unsafe extern "C" fn(*mut c_int, c_int, c_int) -> c_int,
    retain: unsafe extern "C" fn(*mut Context, c_int) -> c_int,
    release: unsafe extern "C" fn(c_int) -> c_int,
    push: unsafe extern "C" fn(Context) -> c_int,
    pop: unsafe extern "C" fn(*mut Context) -> c_int,
    memory: unsafe extern "C" fn(*mut usize, *mut usize) -> c_int,
}

/// `cuDeviceGetAttribute` numbers.
pub(crate) const MULTIPROCESSORS: c_int = 16;
pub(crate) const INTEGRATED: c_int = 18;
pub(crate) const CAPABILITY_MAJOR: c_int = 75;
pub(crate) const CAPABILITY_MINOR: c_int = 76;
/// Dynamic shared memory that a block may ask for, in bytes.
pub(crate) const SHARED_OPT_IN: c_int = 97;
/// Whether addresses and physical memory can be taken apart.
pub(crate) const VIRTUAL_MEMORY: c_int = 102;

impl Driver {
    /// Opens the library and finds every symbol; calls nothing.
    pub(crate) fn load() -> Result<Self, LoadError> {
        Ok(Self {
            init: symbol("cuInit")?,
            version: symbol("cuDriverGetVersion")?,
            count: symbol("cuDeviceGetCount")?,
            get: symbol("cuDeviceGet")?,
            name: symbol("cuDeviceGetName")?,
            total: symbol("cuDeviceTotalMem_v2")?,
            attribute: symbol("cuDeviceGetAttribute")?,
            retain: symbol("cuDevicePrimaryCtxRetain")?,
            release: symbol("cuDevicePrimaryCtxRelease_v2")?,
            push: symbol("cuCtxPushCurrent_v2")?,
            pop: symbol("cuCtxPopCurrent_v2")?,
            memory: symbol("cuMemGetInfo_v2")?,
        })
    }

    /// `cuInit`; needed before all but `version`.
    pub(crate) fn init(&self) -> Result<(), Code> {
        // SAFETY: flags must be 0.
        check(unsafe { (self.init)(0) })
    }

    /// CUDA release of the driver: 1000 × major + 10 × minor.
    pub(crate) fn version(&self) -> Result<i32, Code> {
        let mut version = 0;
        // SAFETY: the pointer is valid for the call.
        check(unsafe { (self.version)(&raw mut version) })?;
        Ok(version)
    }

    /// Number of visible devices.
    pub(crate) fn count(&self) -> Result<i32, Code> {
        let mut count = 0;
        // SAFETY: the pointer is valid for the call.
        check(unsafe { (self.count)(&raw mut count) })?;
        Ok(count)
    }

    /// Handle of a device.
    pub(crate) fn device(&self, ordinal: i32) -> Result<i32, Code> {
        let mut device = 0;
        // SAFETY: the pointer is valid for the call; a wrong ordinal is an error code.
        check(unsafe { (self.get)(&raw mut device, ordinal) })?;
        Ok(device)
    }

    /// Name of a device.
    pub(crate) fn name(&self, device: i32) -> Result<String, Code> {
        const LEN: usize = 256;
        let mut buffer = [0_u8; LEN];
        // SAFETY: the buffer has the length that is passed.
        check(unsafe { (self.name)(buffer.as_mut_ptr().cast(), LEN as c_int, device) })?;
        let text = CStr::from_bytes_until_nul(&buffer).map(CStr::to_string_lossy);
        Ok(text.map_or_else(|_| String::new(), |name| name.trim().to_owned()))
    }

    /// Total memory of a device in bytes.
    pub(crate) fn total(&self, device: i32) -> Result<u64, Code> {
        let mut bytes = 0_usize;
        // SAFETY: the pointer is valid for the call.
        check(unsafe { (self.total)(&raw mut bytes, device) })?;
        Ok(bytes as u64)
    }

    /// One attribute of a device.
    pub(crate) fn attribute(&self, device: i32, attribute: c_int) -> Result<i32, Code> {
        let mut value = 0;
        // SAFETY: the pointer is valid for the call; an unknown attribute is an error code.
        check(unsafe { (self.attribute)(&raw mut value, attribute, device) })?;
        Ok(value)
    }

    /// Free and total bytes of a device, inside its primary context, which is let go again: when
    /// nobody else in this process holds it, nothing stays.
    pub(crate) fn memory(&self, device: i32) -> Result<(u64, u64), Code> {
        let mut context: Context = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call; the release below matches.
        check(unsafe { (self.retain)(&raw mut context, device) })?;
        let reading = self.memory_in(context);
        // SAFETY: matches the retain above.
        let released = check(unsafe { (self.release)(device) });
        let reading = reading?;
        released?;
        Ok(reading)
    }

    fn memory_in(&self, context: Context) -> Result<(u64, u64), Code> {
        // SAFETY: the context is retained by the caller.
        check(unsafe { (self.push)(context) })?;
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both pointers are valid; a context is current.
        let read = check(unsafe { (self.memory)(&raw mut free, &raw mut total) });
        let mut popped: Context = std::ptr::null_mut();
        // SAFETY: matches the push above.
        let popped = check(unsafe { (self.pop)(&raw mut popped) });
        read?;
        popped?;
        Ok((free as u64, total as u64))
    }

    /// Retains a device's primary context; it is not yet current.
    pub(crate) fn retain(&self, device: i32) -> Result<PrimaryContext, Code> {
        let mut context: Context = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call.
        check(unsafe { (self.retain)(&raw mut context, device) })?;
        Ok(PrimaryContext { context, device })
    }

    /// Lets a retained context go; the driver destroys it when nobody else holds it.
    pub(crate) fn release(&self, context: PrimaryContext) -> Result<(), Code> {
        // SAFETY: matches the retain that made `context`, which is used up here.
        check(unsafe { (self.release)(context.device) })
    }

    /// Free and total bytes of the device whose context is current.
    pub(crate) fn memory_now(&self) -> Result<(u64, u64), Code> {
        let (mut free, mut total) = (0_usize, 0_usize);
        // SAFETY: both pointers are valid; without a current context it is an error code.
        check(unsafe { (self.memory)(&raw mut free, &raw mut total) })?;
        Ok((free as u64, total as u64))
    }
}

/// What is needed beside [`Driver`]: the current context, names of errors, identities.
#[derive(Clone, Copy)]
pub(crate) struct ContextApi {
    set_current: unsafe extern "C" fn(Context) -> c_int,
    error_name: unsafe extern "C" fn(c_int, *mut *const c_char) -> c_int,
    uuid: Option<unsafe extern "C" fn(*mut [u8; 16], c_int) -> c_int>,
    graph_memory: unsafe extern "C" fn(c_int, c_int, *mut u64) -> c_int,
}

impl ContextApi {
    /// Finds the symbols; `_driver` says that the library is loaded.
    pub(crate) fn load(_driver: &Driver) -> Result<Self, LoadError> {
        Ok(Self {
            set_current: symbol("cuCtxSetCurrent")?,
            error_name: symbol("cuGetErrorName")?,
            // Since CUDA 11.4; only needed to find the device in NVML.
            uuid: symbol("cuDeviceGetUuid_v2").ok(),
            graph_memory: symbol("cuDeviceGetGraphMemAttribute")?,
        })
    }

    /// Makes a context current on this thread.
    pub(crate) fn set_current(&self, context: &PrimaryContext) -> Result<(), Code> {
        // SAFETY: a `PrimaryContext` is retained as long as it lives.
        check(unsafe { (self.set_current)(context.context) })
    }

    /// The driver's name of a code (`CUDA_ERROR_OUT_OF_MEMORY`), when it knows it.
    pub(crate) fn error_name(&self, code: Code) -> Option<String> {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the pointer is valid for the call; the driver's texts are static.
        let found = check(unsafe { (self.error_name)(code.0, &raw mut text) });
        if found.is_err() || text.is_null() {
            return None;
        }
        // SAFETY: a zero-ended static text of the driver.
        Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
    }

    /// Identity of a device or slice, when the driver can say.
    pub(crate) fn uuid(&self, device: i32) -> Option<[u8; 16]> {
        let mut uuid = [0_u8; 16];
        let get = self.uuid?;
        // SAFETY: the pointer is valid for the call and as long as the driver's type.
        check(unsafe { get(&raw mut uuid, device) }).ok()?;
        Some(uuid)
    }

    /// Bytes that the driver holds for memory nodes of graphs.
    pub(crate) fn graph_memory(&self, device: i32) -> Result<u64, Code> {
        /// `CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT`.
        const RESERVED_NOW: c_int = 2;
        let mut bytes = 0;
        // SAFETY: the attribute is 64 bits wide; the pointer is valid for the call.
        check(unsafe { (self.graph_memory)(device, RESERVED_NOW, &raw mut bytes) })?;
        Ok(bytes)
    }
}
