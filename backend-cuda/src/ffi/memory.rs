//! Memory of the driver API: plain device memory, pinned host memory, and virtual memory in its
//! three parts (addresses, physical memory, the mapping between them).
//!
//! What was taken is a value that is not `Copy`; giving it back uses it up.

use super::{Code, Driver, LoadError, check, symbol};
use crate::failure::Failure;
use std::ffi::{c_int, c_uint, c_void};

/// Plain device memory (`cuMemAlloc`).
#[derive(Debug)]
pub(crate) struct DeviceMemory(DevicePointer);

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
pub(crate) struct Addresses(DevicePointer);

/// A piece of a device's address space. Parts of it are checked here, before a kernel or a copy
/// is given the address.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DevicePointer {
    pub(super) address: u64,
    pub(super) size: u64,
}

impl DevicePointer {
    /// No memory: what a kernel takes for "not wanted".
    pub const NULL: Self = Self { address: 0, size: 0 };

    /// The part from `offset` of at most `size` bytes that lies inside.
    pub(crate) fn part(self, offset: u64, size: u64) -> Self {
        let offset = offset.min(self.size);
        Self { address: self.address + offset, size: size.min(self.size - offset) }
    }

    /// The `size` bytes from `offset`.
    ///
    /// # Errors
    ///
    /// [`Failure::Misuse`] when they do not lie inside.
    pub fn slice(self, offset: u64, size: u64) -> Result<Self, Failure> {
        let inside = offset.checked_add(size).is_some_and(|end| end <= self.size);
        if inside {
            return Ok(Self { address: self.address + offset, size });
        }
        let Self { size: all, .. } = self;
        let what = format!("bytes {offset} to {offset} + {size} of {all}");
        Err(Failure::misuse("a part of device memory", what))
    }

    /// Everything from `offset` on.
    ///
    /// # Errors
    ///
    /// [`Failure::Misuse`] when `offset` lies behind the end.
    pub fn tail(self, offset: u64) -> Result<Self, Failure> {
        self.slice(offset, self.size.saturating_sub(offset))
    }

    /// Length in bytes.
    #[must_use]
    pub const fn size(self) -> u64 {
        self.size
    }

    /// Whether it is [`Self::NULL`].
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.address == 0
    }

    /// The address itself; for alignment and messages.
    #[must_use]
    pub const fn address(self) -> u64 {
        self.address
    }
}

impl PinnedMemory {
    /// Length in bytes.
    pub(crate) const fn size(&self) -> u64 {
        self.size
    }

    /// Its bytes. Nothing may be copying into it: the owner knows what it put on which stream.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: `host_alloc` gave `size` bytes at this address, which live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.address.cast(), self.size as usize) }
    }

    /// Its bytes, to write. Nothing may be copying from or into it.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`; `self` is borrowed for as long as they are.
        unsafe { std::slice::from_raw_parts_mut(self.address.cast(), self.size as usize) }
    }
}

impl DeviceMemory {
    /// All of it.
    pub(crate) const fn pointer(&self) -> DevicePointer {
        self.0
    }
}

impl Addresses {
    /// All of it.
    pub(crate) const fn pointer(&self) -> DevicePointer {
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
        Ok(DeviceMemory(DevicePointer { address, size }))
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
        // SAFETY: `memory` came from `host_alloc` and is used up here; its owner has waited for
        // every copy that uses it.
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
        Ok(Addresses(DevicePointer { address, size }))
    }

    /// Gives addresses back.
    pub(crate) fn unreserve(&self, addresses: Addresses) -> Result<(), Code> {
        let Addresses(DevicePointer { address, size }) = addresses;
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
    pub(crate) fn unmap(&self, part: DevicePointer) -> Result<(), Code> {
        // SAFETY: the driver checks that the part is a whole mapping; work of the device that
        // still uses it is an error of the device, not of this process.
        check(unsafe { (self.unmap)(part.address, part.size as usize) })
    }
}
