//! Memory of the driver API: plain device memory, pinned host memory, and virtual memory in its
//! three parts (addresses, physical memory, the mapping between them).
//!
//! What was taken is a value that is not `Copy`; giving it back uses it up.

use super::{Code, Driver, LoadError, check, symbol};
use std::ffi::{c_int, c_uint, c_void};

/// Plain device memory (`cuMemAlloc`).
#[derive(Debug)]
pub(crate) struct DeviceMemory(Span);

/// Page-locked host memory (`cuMemHostAlloc`).
#[derive(Debug)]
pub(crate) struct PinnedMemory {
    pub(super) address: *mut c_void,
    pub(super) size: u64,
}

/// Physical device memory without an address (`cuMemCreate`).
#[derive(Debug)]
pub(crate) struct Physical {
    handle: u64,
    size: u64,
}

/// Reserved device addresses (`cuMemAddressReserve`).
#[derive(Debug)]
pub(crate) struct Addresses(Span);

/// A piece of the device's address space.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Span {
    pub(super) address: u64,
    pub(super) size: u64,
}

impl Span {
    /// The part from `offset` of at most `size` bytes that lies inside.
    pub(crate) fn part(self, offset: u64, size: u64) -> Self {
        let offset = offset.min(self.size);
        Self { address: self.address + offset, size: size.min(self.size - offset) }
    }

    /// Length in bytes.
    pub(crate) const fn size(self) -> u64 {
        self.size
    }
}

impl DeviceMemory {
    /// All of it.
    pub(crate) const fn span(&self) -> Span {
        self.0
    }
}

impl Addresses {
    /// All of it.
    pub(crate) const fn span(&self) -> Span {
        self.0
    }
}

impl Physical {
    /// Length in bytes.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }
}

/// Which granularity of physical memory is asked for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Granularity {
    /// The smallest that works.
    Minimum,
    /// The one for best speed.
    Recommended,
}

/// `CUmemLocation` as it is up to CUDA 13.1.
#[repr(C)]
#[derive(Clone, Copy)]
struct Location {
    kind: c_int,
    id: c_int,
}

/// `CUmemAllocationProp`.
#[repr(C)]
struct Properties {
    kind: c_int,
    handle_types: c_int,
    location: Location,
    win32_meta: *mut c_void,
    flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
struct Access {
    location: Location,
    flags: c_int,
}

const LOCATION_DEVICE: c_int = 1;
const ALLOCATION_PINNED: c_int = 1;
const ACCESS_READ_WRITE: c_int = 3;

const fn on_device(device: i32) -> Location {
    Location { kind: LOCATION_DEVICE, id: device }
}

const fn properties(device: i32) -> Properties {
    Properties {
        kind: ALLOCATION_PINNED,
        handle_types: 0,
        location: on_device(device),
        win32_meta: std::ptr::null_mut(),
        flags: [0; 8],
    }
}

type Create = unsafe extern "C" fn(*mut u64, usize, *const Properties, u64) -> c_int;

/// The memory functions; all but `cuInit`-time ones need a current context.
#[derive(Clone, Copy)]
pub(crate) struct MemoryApi {
    alloc: unsafe extern "C" fn(*mut u64, usize) -> c_int,
    free: unsafe extern "C" fn(u64) -> c_int,
    host_alloc: unsafe extern "C" fn(*mut *mut c_void, usize, c_uint) -> c_int,
    host_free: unsafe extern "C" fn(*mut c_void) -> c_int,
    granularity: unsafe extern "C" fn(*mut usize, *const Properties, c_int) -> c_int,
    reserve: unsafe extern "C" fn(*mut u64, usize, usize, u64, u64) -> c_int,
    unreserve: unsafe extern "C" fn(u64, usize) -> c_int,
    create: Create,
    release: unsafe extern "C" fn(u64) -> c_int,
    map: unsafe extern "C" fn(u64, usize, usize, u64, u64) -> c_int,
    unmap: unsafe extern "C" fn(u64, usize) -> c_int,
    set_access: unsafe extern "C" fn(u64, usize, *const Access, usize) -> c_int,
}

impl MemoryApi {
    /// Finds the symbols; `_driver` says that the library is loaded.
    pub(crate) fn load(_driver: &Driver) -> Result<Self, LoadError> {
        Ok(Self {
            alloc: symbol("cuMemAlloc_v2")?,
            free: symbol("cuMemFree_v2")?,
            host_alloc: symbol("cuMemHostAlloc")?,
            host_free: symbol("cuMemFreeHost")?,
            granularity: symbol("cuMemGetAllocationGranularity")?,
            reserve: symbol("cuMemAddressReserve")?,
            unreserve: symbol("cuMemAddressFree")?,
            create: symbol("cuMemCreate")?,
            release: symbol("cuMemRelease")?,
            map: symbol("cuMemMap")?,
            unmap: symbol("cuMemUnmap")?,
            set_access: symbol("cuMemSetAccess")?,
        })
    }

    /// Takes device memory.
    pub(crate) fn alloc(&self, size: u64) -> Result<DeviceMemory, Code> {
        let mut address = 0;
        // SAFETY: the pointer is valid for the call.
        check(unsafe { (self.alloc)(&raw mut address, size as usize) })?;
        Ok(DeviceMemory(Span { address, size }))
    }

    /// Gives device memory back.
    pub(crate) fn free(&self, memory: DeviceMemory) -> Result<(), Code> {
        // SAFETY: `memory` came from `alloc` and is used up here.
        check(unsafe { (self.free)(memory.0.address) })
    }

    /// Takes page-locked host memory.
    pub(crate) fn host_alloc(&self, size: u64) -> Result<PinnedMemory, Code> {
        let mut address: *mut c_void = std::ptr::null_mut();
        // SAFETY: the pointer is valid for the call; no flags.
        check(unsafe { (self.host_alloc)(&raw mut address, size as usize, 0) })?;
        Ok(PinnedMemory { address, size })
    }

    /// Gives page-locked host memory back.
    pub(crate) fn host_free(&self, memory: PinnedMemory) -> Result<(), Code> {
        // SAFETY: `memory` came from `host_alloc` and is used up here; no copy uses it, since
        // every copy is waited for before its call returns.
        check(unsafe { (self.host_free)(memory.address) })
    }

    /// Sizes of physical memory are multiples of this many bytes.
    pub(crate) fn granularity(&self, device: i32, which: Granularity) -> Result<u64, Code> {
        let mut bytes = 0_usize;
        let properties = properties(device);
        let which = match which {
            Granularity::Minimum => 0,
            Granularity::Recommended => 1,
        };
        // SAFETY: both pointers are valid for the call.
        check(unsafe { (self.granularity)(&raw mut bytes, &raw const properties, which) })?;
        Ok(bytes as u64)
    }

    /// Reserves addresses; costs no device memory.
    pub(crate) fn reserve(&self, size: u64) -> Result<Addresses, Code> {
        let mut address = 0;
        // SAFETY: the pointer is valid; alignment 0, no wish for an address, no flags.
        check(unsafe { (self.reserve)(&raw mut address, size as usize, 0, 0, 0) })?;
        Ok(Addresses(Span { address, size }))
    }

    /// Gives addresses back.
    pub(crate) fn unreserve(&self, addresses: Addresses) -> Result<(), Code> {
        let Addresses(Span { address, size }) = addresses;
        // SAFETY: the addresses came from `reserve` and are used up here.
        check(unsafe { (self.unreserve)(address, size as usize) })
    }

    /// Takes physical memory, without an address.
    pub(crate) fn create(&self, device: i32, size: u64) -> Result<Physical, Code> {
        let mut handle = 0;
        let properties = properties(device);
        // SAFETY: both pointers are valid for the call; no flags.
        check(unsafe { (self.create)(&raw mut handle, size as usize, &raw const properties, 0) })?;
        Ok(Physical { handle, size })
    }

    /// Gives physical memory back; the driver keeps it while it is mapped.
    pub(crate) fn release(&self, physical: Physical) -> Result<(), Code> {
        // SAFETY: the handle came from `create` and is used up here.
        check(unsafe { (self.release)(physical.handle) })
    }

    /// Maps physical memory at `offset` of a range, for the device to read and write.
    pub(crate) fn map(
        &self,
        device: i32,
        range: &Addresses,
        offset: u64,
        physical: &Physical,
    ) -> Result<(), Code> {
        let part = range.0.part(offset, physical.size);
        // SAFETY: addresses and memory are held by the caller; the driver checks that they fit.
        check(unsafe { (self.map)(part.address, part.size as usize, 0, physical.handle, 0) })?;
        let access = Access { location: on_device(device), flags: ACCESS_READ_WRITE };
        // SAFETY: the part was mapped just now; the pointer is valid for the call.
        let allowed = check(unsafe {
            (self.set_access)(part.address, part.size as usize, &raw const access, 1)
        });
        if allowed.is_err() {
            let _ = self.unmap(part);
        }
        allowed
    }

    /// Takes a mapping away, all that one `map` made.
    pub(crate) fn unmap(&self, part: Span) -> Result<(), Code> {
        // SAFETY: the driver checks that the part is a whole mapping; nothing runs on it, since
        // every pass is waited for before its call returns.
        check(unsafe { (self.unmap)(part.address, part.size as usize) })
    }
}
