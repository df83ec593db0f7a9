//! A device that fails: at any call, once or for good.

use super::*;

/// Fails one call, and counts.
struct Failing {
    device: CountingSource,
    calls: u64,
    fail_at: u64,
    error: SourceError,
}

impl Failing {
    fn call(&mut self) -> Result<&mut CountingSource, SourceError> {
        self.calls += 1;
        if self.calls == self.fail_at { Err(self.error.clone()) } else { Ok(&mut self.device) }
    }
}

impl SegmentSource for Failing {
    fn allocate(&mut self, size: u64) -> Result<SegmentAddress, SourceError> {
        self.call()?.allocate(size)
    }
    fn release(&mut self, segment: SegmentAddress, size: u64) -> Result<(), SourceError> {
        self.call()?.release(segment, size)
    }
    fn free_bytes(&mut self) -> Result<u64, SourceError> {
        self.call()?.free_bytes()
    }
    fn reserve(&mut self, size: u64) -> Result<SegmentAddress, SourceError> {
        self.call()?.reserve(size)
    }
    fn map(&mut self, range: SegmentAddress, at: u64, size: u64) -> Result<(), SourceError> {
        self.call()?.map(range, at, size)
    }
    fn unmap(&mut self, range: SegmentAddress, at: u64, size: u64) -> Result<(), SourceError> {
        self.call()?.unmap(range, at, size)
    }
    fn unreserve(&mut self, range: SegmentAddress, size: u64) -> Result<(), SourceError> {
        self.call()?.unreserve(range, size)
    }
}

/// A life in little memory; answers how often the device was called.
fn life(conf: &str, fail_at: u64, error: SourceError) -> u64 {
    let total = 120 * MIB;
    let options = Options::parse(conf, TorchVersion::NEWEST).unwrap();
    let mut cache = CachingAllocator::new(Setup { options, ..Setup::new(total) });
    let mut source = Failing { device: CountingSource::new(total), calls: 0, fail_at, error };
    let mut held = VecDeque::new();
    for step in 0..60_u64 {
        let size = [600, 3 * MIB, 12 * MIB, MIB, 45 * MIB, 25 * MIB][(step % 6) as usize] + step;
        if let Ok(id) = cache.malloc(&mut source, size, StreamId(step % 2)) {
            held.push_back(id);
        }
        if step % 3 != 0
            && let Some(id) = held.pop_front()
        {
            cache.free(id).unwrap();
        }
        if step % 20 == 19 {
            let _ = cache.empty_cache(&mut source);
        }
        cache.verify().unwrap();
        assert_eq!(source.device.free() + cache.stats().reserved.current, total, "step {step}");
    }
    for id in held {
        cache.free(id).unwrap();
    }
    // The device that failed once serves again.
    let _ = cache.empty_cache(&mut source);
    cache.empty_cache(&mut source).unwrap();
    assert_eq!((cache.stats().reserved.current, source.device.free()), (0, total));
    source.calls
}

#[test]
fn a_device_that_fails_at_any_call_leaks_nothing() {
    for conf in ["", "expandable_segments:True", "max_split_size_mb:24"] {
        let calls = life(conf, 0, SourceError::OutOfMemory);
        assert!(calls > 20, "{conf}: {calls}");
        for fail_at in 1..=calls {
            life(conf, fail_at, SourceError::OutOfMemory);
            life(conf, fail_at, SourceError::Lost("once".into()));
        }
    }
}
