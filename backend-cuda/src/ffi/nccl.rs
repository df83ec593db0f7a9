//! The sums over devices of NCCL, for the devices of one process.

use super::library::{MissingLibrary, Wanted};
use super::memory::DevicePointer;
use super::stream::{Raw, RawStream};
use std::ffi::{CStr, c_char, c_int};
use std::sync::OnceLock;

/// The library.
pub(crate) const WANTED: Wanted = Wanted {
    library: "NCCL",
    names: &["libnccl.so.2", "libnccl.so"],
    fix: "install `nvidia-nccl-cu13` (PyPI) or the package libnccl2, and add its folder to LD_LIBRARY_PATH",
};

/// A result that is not success.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NcclResult(pub(crate) c_int);

impl NcclResult {
    /// `ncclUnhandledCudaError`.
    const CUDA_ERROR: Self = Self(1);
}

/// A zero-ended static text of the library.
fn text_at(text: *const c_char) -> Option<String> {
    // SAFETY: the library's texts end in a zero and stay.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

fn check(result: c_int) -> Result<(), NcclResult> {
    if result == 0 { Ok(()) } else { Err(NcclResult(result)) }
}

/// `ncclDataType_t`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NcclData {
    F16 = 6,
    F32 = 7,
    Bf16 = 9,
}

/// `ncclSum`.
const SUM: c_int = 0;

/// A device's membership in a group; destroying uses it up.
#[derive(Debug)]
pub(crate) struct RawComm(Raw);

type AllReduce = unsafe extern "C" fn(u64, u64, usize, c_int, c_int, Raw, Raw) -> c_int;

/// The functions of NCCL.
pub(crate) struct Nccl {
    version: unsafe extern "C" fn(*mut c_int) -> c_int,
    init_all: unsafe extern "C" fn(*mut Raw, c_int, *const c_int) -> c_int,
    destroy: unsafe extern "C" fn(Raw) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    all_reduce: AllReduce,
    error: unsafe extern "C" fn(c_int) -> *const c_char,
    last_error: Option<unsafe extern "C" fn(Raw) -> *const c_char>,
}

impl Nccl {
    /// Opens the library, once in a process, and finds every symbol.
    pub(crate) fn load() -> Result<&'static Self, MissingLibrary> {
        static LOADED: OnceLock<Result<Nccl, MissingLibrary>> = OnceLock::new();
        LOADED.get_or_init(Self::open).as_ref().map_err(Clone::clone)
    }

    fn open() -> Result<Self, MissingLibrary> {
        let library = Box::leak(Box::new(WANTED.open()?));
        Ok(Self {
            version: WANTED.symbol(library, "ncclGetVersion")?,
            init_all: WANTED.symbol(library, "ncclCommInitAll")?,
            destroy: WANTED.symbol(library, "ncclCommDestroy")?,
            group_start: WANTED.symbol(library, "ncclGroupStart")?,
            group_end: WANTED.symbol(library, "ncclGroupEnd")?,
            all_reduce: WANTED.symbol(library, "ncclAllReduce")?,
            error: WANTED.symbol(library, "ncclGetErrorString")?,
            // Since 2.13; only needed to tell a lack of memory.
            last_error: WANTED.symbol(library, "ncclGetLastError").ok(),
        })
    }

    /// Release of the library: 10000 × major + 100 × minor + patch.
    pub(crate) fn version(&self) -> Result<i32, NcclResult> {
        let mut version = 0;
        // SAFETY: the pointer is valid for the call.
        check(unsafe { (self.version)(&raw mut version) })?;
        Ok(version)
    }

    /// What a result means.
    pub(crate) fn name(&self, result: NcclResult) -> String {
        // SAFETY: takes any result.
        let text = text_at(unsafe { (self.error)(result.0) });
        text.unwrap_or_else(|| "an unknown result".to_owned())
    }

    /// Whether what failed last did so for lack of device memory: NCCL has one result for all that
    /// CUDA answers, and says more in a text.
    pub(crate) fn lacked_memory(&self, result: NcclResult) -> bool {
        let Some(last) = self.last_error.filter(|_| result == NcclResult::CUDA_ERROR) else {
            return false;
        };
        // SAFETY: no member is needed.
        let text = text_at(unsafe { last(std::ptr::null_mut()) });
        text.is_some_and(|text| text.contains("out of memory"))
    }

    /// Joins devices, by their CUDA ordinals, to a group; a member for each.
    pub(crate) fn join(&self, ordinals: &[c_int]) -> Result<Vec<RawComm>, NcclResult> {
        let mut raw: Vec<Raw> = vec![std::ptr::null_mut(); ordinals.len()];
        let count = c_int::try_from(ordinals.len()).map_err(|_| NcclResult(4))?;
        // SAFETY: there is room for as many members as there are ordinals.
        check(unsafe { (self.init_all)(raw.as_mut_ptr(), count, ordinals.as_ptr()) })?;
        Ok(raw.into_iter().map(RawComm).collect())
    }

    /// Ends a membership.
    pub(crate) fn destroy(&self, comm: RawComm) -> Result<(), NcclResult> {
        // SAFETY: it came from `join` and is used up here.
        check(unsafe { (self.destroy)(comm.0) })
    }

    /// Calls between this and [`Self::group_end`] are one operation.
    pub(crate) fn group_start(&self) -> Result<(), NcclResult> {
        // SAFETY: takes nothing.
        check(unsafe { (self.group_start)() })
    }

    /// Ends what [`Self::group_start`] began, and puts it on the streams.
    pub(crate) fn group_end(&self) -> Result<(), NcclResult> {
        // SAFETY: takes nothing.
        check(unsafe { (self.group_end)() })
    }

    /// Sums `count` numbers over all members, in place.
    pub(crate) fn all_reduce(
        &self,
        comm: &RawComm,
        (place, count, data): (DevicePointer, u64, NcclData),
        stream: &RawStream,
    ) -> Result<(), NcclResult> {
        let at = place.address;
        // SAFETY: member and stream are alive; the caller has compared the sizes.
        check(unsafe {
            (self.all_reduce)(at, at, count as usize, data as c_int, SUM, comm.0, stream.0)
        })
    }
}
