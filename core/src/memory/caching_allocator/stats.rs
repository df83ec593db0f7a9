//! Counters, as `torch.cuda.memory_stats` reports them for all pools together.

/// An amount with its history.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stat {
    /// Now.
    pub current: u64,
    /// Largest value since the start or the last reset of peaks.
    pub peak: u64,
    /// Sum of all increases.
    pub allocated: u64,
    /// Sum of all decreases.
    pub freed: u64,
}

impl Stat {
    #[inline]
    pub(super) const fn grow(&mut self, by: u64) {
        self.current += by;
        self.allocated += by;
        if self.current > self.peak {
            self.peak = self.current;
        }
    }

    /// What was added and taken since `before` is so again, `times` times; the value is the same after each.
    const fn repeat(&mut self, before: &Self, times: u64) {
        self.allocated += (self.allocated - before.allocated) * times;
        self.freed += (self.freed - before.freed) * times;
    }

    #[inline]
    pub(super) const fn shrink(&mut self, by: u64) {
        self.current -= by;
        self.freed += by;
    }
}

/// The counters; bytes unless said otherwise.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Stats {
    /// Blocks in use, rounded sizes with slack (`allocated_bytes`).
    pub allocated: Stat,
    /// In use or waiting for another stream (`active_bytes`).
    pub active: Stat,
    /// What active blocks were asked for (`requested_bytes`).
    pub requested: Stat,
    /// Segments and mapped ranges (`reserved_bytes`).
    pub reserved: Stat,
    /// Free blocks of segments that are split; growing ranges do not count
    /// (`inactive_split_bytes`).
    pub inactive_split: Stat,
    /// Blocks in use (`allocation`), a count.
    pub allocations: Stat,
    /// Plain segments (`segment`), a count.
    pub segments: Stat,
    /// Requests that failed once and were tried again after everything cached was released.
    pub num_alloc_retries: u64,
    /// Requests that failed.
    pub num_ooms: u64,
    /// Times that the device was asked for memory with success.
    pub num_device_alloc: u64,
    /// Times that memory went back to the device.
    pub num_device_free: u64,
}

impl Stats {
    /// What happened since `before` happens `times` times more, and each time ends as it began.
    pub(super) const fn repeat(&mut self, before: &Self, times: u64) {
        self.allocated.repeat(&before.allocated, times);
        self.active.repeat(&before.active, times);
        self.requested.repeat(&before.requested, times);
        self.reserved.repeat(&before.reserved, times);
        self.inactive_split.repeat(&before.inactive_split, times);
        self.allocations.repeat(&before.allocations, times);
        self.segments.repeat(&before.segments, times);
    }

    /// Sets every peak to its current value (`reset_peak_memory_stats`).
    pub const fn reset_peaks(&mut self) {
        self.allocated.peak = self.allocated.current;
        self.active.peak = self.active.current;
        self.requested.peak = self.requested.current;
        self.reserved.peak = self.reserved.current;
        self.inactive_split.peak = self.inactive_split.current;
        self.allocations.peak = self.allocations.current;
        self.segments.peak = self.segments.current;
    }
}
