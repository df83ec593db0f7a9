//! Where segments come from: a device, a simulator, a recording.

/// What the source calls a segment or a virtual range: a pointer, an id. Opaque to the allocator,
/// except under [`AddressOrder::Source`](super::AddressOrder::Source).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct SegmentAddress(pub u64);

/// Why a source cannot serve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SourceError {
    /// Too little memory now; a later try may succeed.
    #[error("out of device memory")]
    OutOfMemory,
    /// The device is gone, or it cannot do what was asked; no later try can succeed.
    #[error("device lost: {0}")]
    Lost(String),
}

/// A device's memory as the allocator sees it. A failed call changes nothing.
///
/// `reserve` to `unreserve` serve `expandable_segments` only.
pub trait SegmentSource {
    /// Takes `size` bytes (`cudaMalloc`).
    ///
    /// # Errors
    ///
    /// [`SourceError::OutOfMemory`] when they do not fit now.
    fn allocate(&mut self, size: u64) -> Result<SegmentAddress, SourceError>;

    /// Gives a segment of `size` bytes back, all of it (`cudaFree`).
    ///
    /// # Errors
    ///
    /// [`SourceError::Lost`].
    fn release(&mut self, segment: SegmentAddress, size: u64) -> Result<(), SourceError>;

    /// Bytes free on the device now, all programs counted (`cudaMemGetInfo`).
    ///
    /// # Errors
    ///
    /// [`SourceError::Lost`].
    fn free_bytes(&mut self) -> Result<u64, SourceError>;

    /// Reserves `size` bytes of addresses; costs no memory.
    ///
    /// # Errors
    ///
    /// [`SourceError::OutOfMemory`] when there are no addresses left.
    fn reserve(&mut self, size: u64) -> Result<SegmentAddress, SourceError>;

    /// Backs `size` bytes at `offset` of a range with memory; both are multiples of the handle.
    ///
    /// # Errors
    ///
    /// [`SourceError::OutOfMemory`]: nothing of this call is mapped.
    fn map(&mut self, range: SegmentAddress, offset: u64, size: u64) -> Result<(), SourceError>;

    /// Takes the memory behind `size` bytes at `offset` away again.
    ///
    /// # Errors
    ///
    /// [`SourceError::Lost`].
    fn unmap(&mut self, range: SegmentAddress, offset: u64, size: u64) -> Result<(), SourceError>;

    /// Gives the addresses of a range back; nothing of it is mapped.
    ///
    /// # Errors
    ///
    /// [`SourceError::Lost`].
    fn unreserve(&mut self, range: SegmentAddress, size: u64) -> Result<(), SourceError>;
}

/// A device that only counts: a total, and what others hold.
///
/// Segments cost what they are; torch asks for multiples of 2 MiB, the granularity of the device.
#[derive(Clone, Debug)]
pub struct CountingSource {
    free: u64,
    next: u64,
}

impl CountingSource {
    /// `free` bytes to hand out.
    #[must_use]
    pub const fn new(free: u64) -> Self {
        Self { free, next: 1 }
    }

    /// What is free now.
    #[must_use]
    pub const fn free(&self) -> u64 {
        self.free
    }

    /// Sets what is free now: other programs grow or leave.
    pub const fn set_free(&mut self, free: u64) {
        self.free = free;
    }

    fn take(&mut self, size: u64) -> Result<(), SourceError> {
        self.free = self.free.checked_sub(size).ok_or(SourceError::OutOfMemory)?;
        Ok(())
    }

    const fn name(&mut self) -> SegmentAddress {
        let name = self.next;
        self.next += 1;
        SegmentAddress(name)
    }
}

impl SegmentSource for CountingSource {
    fn allocate(&mut self, size: u64) -> Result<SegmentAddress, SourceError> {
        self.take(size)?;
        Ok(self.name())
    }

    fn release(&mut self, _segment: SegmentAddress, size: u64) -> Result<(), SourceError> {
        self.free = self.free.saturating_add(size);
        Ok(())
    }

    fn free_bytes(&mut self) -> Result<u64, SourceError> {
        Ok(self.free)
    }

    fn reserve(&mut self, _size: u64) -> Result<SegmentAddress, SourceError> {
        Ok(self.name())
    }

    fn map(&mut self, _range: SegmentAddress, _offset: u64, size: u64) -> Result<(), SourceError> {
        self.take(size)
    }

    fn unmap(
        &mut self,
        _range: SegmentAddress,
        _offset: u64,
        size: u64,
    ) -> Result<(), SourceError> {
        self.free = self.free.saturating_add(size);
        Ok(())
    }

    fn unreserve(&mut self, _range: SegmentAddress, _size: u64) -> Result<(), SourceError> {
        Ok(())
    }
}
