//! Memory snapshots and options of PyTorch's allocator.

use crate::{assert_message, in_time, text};
use plimsoll_core::memory::{
    caching_allocator::{
        AddressOrder, CachingAllocator, CountingSource, Options, Setup, StreamId, TorchVersion,
        rounded_size, segment_size,
    },
    snapshot::{self, PickleProtocol},
};

/// A memory snapshot, JSON or pickle. What was read reads back from both forms; segments that can be
/// restored make an allocator whose invariants hold, also after every block was freed.
pub fn memory_snapshot(data: &[u8]) {
    let mut read = match in_time(|| snapshot::from_bytes(data)) {
        Ok(read) => read,
        Err(error) => return assert_message(&error.to_string()),
    };
    // Free-form parts may hold what JSON lacks, such as infinities.
    read.allocator_settings = None;
    read.external_annotations = None;
    let json = snapshot::to_json(&read);
    let again = snapshot::from_json(json.as_bytes()).map(|again| snapshot::to_json(&again));
    assert_eq!(again.as_ref(), Ok(&json), "its own JSON");
    let pickle = snapshot::to_pickle(&read, PickleProtocol::V2);
    let again = snapshot::from_pickle(&pickle).map(|again| snapshot::to_json(&again));
    assert_eq!(again.as_ref(), Ok(&json), "its own pickle");
    for order in [AddressOrder::Logical, AddressOrder::Source] {
        let setup = Setup { order, ..Setup::new(1 << 40) };
        let Ok((mut cache, held)) = CachingAllocator::restore(setup, &read.segments) else {
            continue;
        };
        assert_eq!(cache.verify(), Ok(()), "restored");
        let mut device = CountingSource::new(1 << 30);
        for (_, block) in held {
            assert_eq!(cache.free(block), Ok(()), "a block of the snapshot");
        }
        assert_eq!(cache.empty_cache(&mut device), Ok(()), "no capture is under way");
        assert_eq!(cache.verify(), Ok(()), "emptied");
    }
}

/// The text of `PYTORCH_CUDA_ALLOC_CONF`. Errors name a column that is there; options that were read
/// serve requests of every size, or refuse them, with invariants that hold.
pub fn alloc_conf(data: &[u8]) {
    let Some(text) = text(data) else { return };
    for version in [TorchVersion::new(2, 1), TorchVersion::NEWEST] {
        let options = match in_time(|| Options::parse(text, version)) {
            Ok(options) => options,
            Err(error) => {
                assert!(error.at <= text.len(), "column {} of {}", error.at, text.len());
                assert_message(&error.to_string());
                continue;
            }
        };
        for shift in 0..64 {
            let size = (1 << shift) - 1;
            if let Some(rounded) = rounded_size(size, &options) {
                assert!(rounded >= size, "{size} became {rounded}");
                let segment = segment_size(rounded, &options);
                assert!(segment.is_none_or(|segment| segment >= rounded), "{rounded}: {segment:?}");
            }
        }
        let total = 1 << 30;
        let mut cache = CachingAllocator::new(Setup { options, ..Setup::new(total) });
        let mut device = CountingSource::new(total);
        for size in [1, 700_000, 3 << 20, 40 << 20, 100 << 20] {
            if let Ok(block) = cache.malloc(&mut device, size, StreamId(0)) {
                assert_eq!(cache.free(block), Ok(()), "just allocated");
            }
            assert_eq!(cache.verify(), Ok(()));
        }
    }
}

/// A small life of an allocator, in both forms.
pub(crate) fn snapshots() -> Vec<Vec<u8>> {
    let options = Options::parse("roundup_power2_divisions:[256:1,>:4]", TorchVersion::NEWEST);
    let setup = Setup {
        options: options.unwrap_or_default(),
        history: plimsoll_core::memory::caching_allocator::History::All,
        ..Setup::new(1 << 30)
    };
    let (mut cache, mut device) = (CachingAllocator::new(setup), CountingSource::new(1 << 30));
    for (size, stream) in [(100, 0), (3 << 20, 0), (30 << 20, 7), (2 << 30, 0), (4 << 20, 0)] {
        if let Ok(block) = cache.malloc(&mut device, size, StreamId(stream))
            && size > 3 << 20
            && cache.record_stream(block, StreamId(1)).is_ok()
        {
            let _ = cache.free(block);
        }
    }
    let taken = cache.snapshot(0);
    vec![
        snapshot::to_json(&taken).into_bytes(),
        snapshot::to_pickle(&taken, PickleProtocol::V2),
        snapshot::to_pickle(&taken, PickleProtocol::V4),
    ]
}
