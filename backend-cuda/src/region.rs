//! Reserved addresses that are backed in chunks: the pool of a server, which lends parts of itself
//! back, its weights and its arena. Addresses never change; a chunk is backed by physical memory
//! of its own, so that any chunk can be given back alone.

use crate::card::Card;
use crate::failure::Failure;
use crate::ffi::memory::DevicePointer;
use crate::memory::{AddressRange, Buffer, Mapped};
use plimsoll_core::units::Bytes;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

/// Addresses of a device with memory behind all or some of them.
pub enum Region {
    /// Backed chunk by chunk; chunks can be given back.
    Elastic(Elastic),
    /// One allocation, taken whole and given back whole: a device without virtual memory.
    Fixed(Fixed),
}

/// Addresses that are backed chunk by chunk.
pub struct Elastic {
    size: Bytes,
    chunk: Bytes,
    // By number; dropped before the addresses.
    mapped: BTreeMap<u64, Mapped>,
    addresses: AddressRange,
}

/// Memory that is there as a whole.
pub struct Fixed {
    size: Bytes,
    chunk: Bytes,
    buffer: Buffer,
}

const CALL: &str = "region";

impl Region {
    /// Reserves room for `most` bytes, in chunks of `chunk`, both rounded up to the card's page;
    /// the last chunk may be shorter. Nothing is backed yet, but on a device without virtual
    /// memory, where all is taken now.
    ///
    /// # Errors
    ///
    /// [`Failure`].
    pub fn reserve(card: &Rc<Card>, most: Bytes, chunk: Bytes) -> Result<Self, Failure> {
        let facts = card.facts();
        let page = if facts.virtual_memory { facts.page.0.max(1) } else { 1 };
        let whole = |bytes: Bytes| {
            let pages = bytes.0.max(1).checked_next_multiple_of(page);
            pages.map(Bytes).ok_or(Failure::OutOfMemory("cuMemAddressReserve"))
        };
        let (size, chunk) = (whole(most)?, whole(chunk)?);
        if facts.virtual_memory {
            let addresses = AddressRange::reserve(card, size)?;
            return Ok(Self::Elastic(Elastic { size, chunk, mapped: BTreeMap::new(), addresses }));
        }
        Ok(Self::Fixed(Fixed { size, chunk, buffer: Buffer::take(card, size)? }))
    }

    /// Reserved, in bytes.
    #[must_use]
    pub const fn size(&self) -> Bytes {
        match self {
            Self::Elastic(elastic) => elastic.size,
            Self::Fixed(fixed) => fixed.size,
        }
    }

    /// Length of a chunk, but for a shorter last one.
    #[must_use]
    pub const fn chunk(&self) -> Bytes {
        match self {
            Self::Elastic(elastic) => elastic.chunk,
            Self::Fixed(fixed) => fixed.chunk,
        }
    }

    /// Number of chunks.
    #[must_use]
    pub const fn chunks(&self) -> u64 {
        self.size().0.div_ceil(self.chunk().0)
    }

    /// What memory stands behind it.
    #[must_use]
    pub fn mapped(&self) -> Bytes {
        match self {
            Self::Elastic(elastic) => elastic.mapped.values().map(Mapped::size).sum(),
            Self::Fixed(fixed) => fixed.size,
        }
    }

    /// Whether a chunk is backed.
    #[must_use]
    pub fn is_mapped(&self, chunk: u64) -> bool {
        match self {
            Self::Elastic(elastic) => elastic.mapped.contains_key(&chunk),
            Self::Fixed(_) => chunk < self.chunks(),
        }
    }

    /// All its addresses, backed or not.
    #[must_use]
    pub fn pointer(&self) -> DevicePointer {
        match self {
            Self::Elastic(elastic) => elastic.addresses.pointer(),
            Self::Fixed(fixed) => fixed.buffer.pointer(),
        }
    }

    /// A part, all of it backed now.
    ///
    /// # Errors
    ///
    /// [`Failure::Misuse`] when it does not lie inside, or a chunk of it is not backed.
    pub fn part(&self, offset: u64, size: u64) -> Result<DevicePointer, Failure> {
        let part = self.pointer().slice(offset, size)?;
        let chunk = self.chunk().0;
        let mut touched = offset / chunk..offset.saturating_add(size).div_ceil(chunk);
        match touched.find(|number| !self.is_mapped(*number)) {
            Some(number) if size > 0 => {
                let what = format!("chunk {number} has no memory behind it");
                Err(Failure::misuse(CALL, what))
            }
            _ => Ok(part),
        }
    }

    /// Backs chunks; those that are backed already stay as they are.
    ///
    /// # Errors
    ///
    /// [`Failure`]; then none of the chunks that were not backed before is.
    pub fn map(&mut self, chunks: Range<u64>) -> Result<(), Failure> {
        inside(&chunks, self.chunks())?;
        match self {
            Self::Elastic(elastic) => elastic.map(chunks),
            Self::Fixed(_) => Ok(()),
        }
    }

    /// Backs all that is not.
    ///
    /// # Errors
    ///
    /// As [`Self::map`].
    pub fn map_all(&mut self) -> Result<(), Failure> {
        self.map(0..self.chunks())
    }

    /// What can give chunks back; `None` on a device where memory is taken whole.
    pub const fn elastic(&mut self) -> Option<&mut Elastic> {
        match self {
            Self::Elastic(elastic) => Some(elastic),
            Self::Fixed(_) => None,
        }
    }
}

fn inside(chunks: &Range<u64>, all: u64) -> Result<(), Failure> {
    if chunks.start <= chunks.end && chunks.end <= all {
        return Ok(());
    }
    Err(Failure::misuse(CALL, format!("chunks {chunks:?} of {all}")))
}

impl Elastic {
    fn map(&mut self, chunks: Range<u64>) -> Result<(), Failure> {
        let mut made = Vec::new();
        for number in chunks {
            if self.mapped.contains_key(&number) {
                continue;
            }
            let offset = Bytes(number * self.chunk.0);
            let size = self.chunk.min(self.size.saturating_sub(offset));
            made.push((number, self.addresses.map(offset, size)?));
        }
        self.mapped.extend(made);
        Ok(())
    }

    /// Gives the memory behind chunks back; those that are not backed stay as they are. No work
    /// that was put on a stream may still use them. The bytes given back.
    ///
    /// # Errors
    ///
    /// [`Failure::Misuse`] for chunks that are not there.
    pub fn unmap(&mut self, chunks: Range<u64>) -> Result<Bytes, Failure> {
        inside(&chunks, self.size.0.div_ceil(self.chunk.0))?;
        let gone = chunks.filter_map(|number| self.mapped.remove(&number));
        Ok(gone.map(|mapped| mapped.size()).sum())
    }
}
