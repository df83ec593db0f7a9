//! Device memory that gives itself back: plain allocations, physical memory, reserved addresses,
//! and physical memory mapped into them.

use crate::card::Card;
use crate::failure::Failure;
use crate::ffi::memory::{Addresses, DeviceMemory, DevicePointer, Physical};
use plimsoll_core::units::Bytes;
use std::rc::Rc;

/// Plain device memory (`cuMemAlloc`).
pub struct Buffer {
    card: Rc<Card>,
    memory: Option<DeviceMemory>,
}

impl Buffer {
    /// Takes `size` bytes; the driver rounds up.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn take(card: &Rc<Card>, size: Bytes) -> Result<Self, Failure> {
        let memory = card.call("cuMemAlloc", |api| api.memory.alloc(size.0))?;
        Ok(Self { card: Rc::clone(card), memory: Some(memory) })
    }

    /// Where it lies.
    #[must_use]
    pub fn pointer(&self) -> DevicePointer {
        self.memory.as_ref().map_or(DevicePointer::NULL, DeviceMemory::pointer)
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            self.card.quiet("cuMemFree", |api| api.memory.free(memory));
        }
    }
}

/// Physical device memory without an address.
pub(crate) struct Chunk {
    card: Rc<Card>,
    physical: Option<Physical>,
}

impl Chunk {
    /// Takes `size` bytes, a multiple of the card's page.
    pub(crate) fn take(card: &Rc<Card>, size: Bytes) -> Result<Self, Failure> {
        let physical = card.call("cuMemCreate", |api| api.memory.create(card.device(), size.0))?;
        Ok(Self { card: Rc::clone(card), physical: Some(physical) })
    }

    /// Its length.
    pub(crate) fn size(&self) -> Bytes {
        Bytes(self.physical.as_ref().map_or(0, Physical::size))
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        if let Some(physical) = self.physical.take() {
            self.card.quiet("cuMemRelease", |api| api.memory.release(physical));
        }
    }
}

/// Reserved addresses; nothing may be mapped when they are given back.
pub(crate) struct AddressRange {
    card: Rc<Card>,
    addresses: Option<Addresses>,
}

impl AddressRange {
    /// Reserves `size` bytes of addresses, a multiple of the card's page.
    pub(crate) fn reserve(card: &Rc<Card>, size: Bytes) -> Result<Self, Failure> {
        let addresses = card.call("cuMemAddressReserve", |api| api.memory.reserve(size.0))?;
        Ok(Self { card: Rc::clone(card), addresses: Some(addresses) })
    }

    /// All of it.
    pub(crate) fn pointer(&self) -> DevicePointer {
        self.addresses.as_ref().map_or(DevicePointer::NULL, Addresses::pointer)
    }

    /// Takes memory and maps it at `offset`; both are multiples of the card's page.
    pub(crate) fn map(&self, offset: Bytes, size: Bytes) -> Result<Mapped, Failure> {
        let nothing = || Failure::misuse("cuMemMap", "nothing is reserved");
        let addresses = self.addresses.as_ref().ok_or_else(nothing)?;
        let chunk = Chunk::take(&self.card, size)?;
        let physical = chunk.physical.as_ref().ok_or_else(nothing)?;
        self.card.call("cuMemMap", |api| {
            api.memory.map(self.card.device(), addresses, offset.0, physical)
        })?;
        let pointer = addresses.pointer().part(offset.0, size.0);
        Ok(Mapped { card: Rc::clone(&self.card), pointer, chunk })
    }
}

impl Drop for AddressRange {
    fn drop(&mut self) {
        if let Some(addresses) = self.addresses.take() {
            self.card.quiet("cuMemAddressFree", |api| api.memory.unreserve(addresses));
        }
    }
}

/// Memory mapped into a range; unmaps and gives itself back.
pub(crate) struct Mapped {
    card: Rc<Card>,
    pointer: DevicePointer,
    chunk: Chunk,
}

impl Mapped {
    /// Where it lies.
    pub(crate) const fn pointer(&self) -> DevicePointer {
        self.pointer
    }

    /// Its length.
    pub(crate) fn size(&self) -> Bytes {
        self.chunk.size()
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // The chunk is released after this, by its own drop.
        let pointer = self.pointer;
        self.card.quiet("cuMemUnmap", |api| api.memory.unmap(pointer));
    }
}
