//! The rules one by one; faults of the device and made-up runs in the files below.

use super::*;
use crate::units::{GIB, MIB};

const S0: StreamId = StreamId(0);
const S1: StreamId = StreamId(1);

struct Machine {
    device: CountingSource,
    cache: CachingAllocator,
}

impl Machine {
    fn with(total: u64, conf: &str) -> Self {
        let options = Options::parse(conf, TorchVersion::NEWEST).unwrap();
        let setup = Setup { options, history: History::All, ..Setup::new(total) };
        Self { device: CountingSource::new(total), cache: CachingAllocator::new(setup) }
    }

    fn on(&mut self, bytes: u64, stream: StreamId) -> BlockId {
        let id = self.cache.malloc(&mut self.device, bytes, stream).unwrap();
        self.cache.verify().unwrap();
        id
    }

    fn get(&mut self, bytes: u64) -> BlockId {
        self.on(bytes, S0)
    }

    fn refuse(&mut self, bytes: u64) -> OutOfMemory {
        let refused = self.cache.malloc(&mut self.device, bytes, S0);
        self.cache.verify().unwrap();
        match refused {
            Err(MallocError::OutOfMemory(oom)) => *oom,
            other => panic!("{other:?}"),
        }
    }

    fn free(&mut self, id: BlockId) {
        self.cache.free(id).unwrap();
        self.cache.verify().unwrap();
    }

    fn empty(&mut self) {
        self.cache.empty_cache(&mut self.device).unwrap();
        self.cache.verify().unwrap();
    }

    fn reserved(&self) -> u64 {
        self.cache.stats().reserved.current
    }

    fn place(&self, id: BlockId) -> (u64, u64) {
        let place = self.cache.place(id).unwrap();
        (place.segment, place.offset)
    }

    /// Actions since the last call, with sizes.
    fn did(&mut self) -> Vec<(&'static str, u64)> {
        self.cache.take_history().iter().map(|e| (e.action.name(), e.size)).collect()
    }
}

/// The worked example: step, placed at (segment from 1, offset), allocated, reserved, inactive split.
/// Each row was computed by hand from the rules.
const EXAMPLE: &str = "\
a 100 | 1 0 | 512 2097152 2096640
b 614400 | 1 512 | 614912 2097152 1482240
c 1048576 | 1 614912 | 1663488 2097152 433664
d 1048577 | 2 0 | 2712576 23068672 20356096
e 3145728 | 2 1049088 | 5858304 23068672 17210368
f 12582912 | 2 4194816 | 18441216 23068672 4627456
g 10485248 | 3 0 | 28926464 44040192 15113728
h 52428801 | 4 0 | 81355776 98566144 17210368
free b | | 80741376 98566144 17824768
i 512000 | 1 512 | 81253376 98566144 17312768
free e | | 78107648 98566144 20458496
j 2097152 | 2 1049088 | 81253376 98566144 17312768
free h | | 28824064 98566144 15216128
k 51642368 | 4 0 | 80466432 98566144 18099712
free k | | 28824064 98566144 15216128
l 31457280 | 4 0 | 60281344 98566144 38284800
free f | | 47698432 98566144 50867712
free l | | 16241152 98566144 27799040
m 12320768 | 2 4194816 | 28561920 98566144 15478272
free c | | 27513344 98566144 16526848
free j | | 24367616 98566144 19672576
empty | | 24367616 44040192 19672576
free m | | 12046848 44040192 31993344
empty | | 12046848 44040192 31993344";

#[test]
fn the_worked_example_holds_row_by_row() {
    let mut m = Machine::with(80 * GIB, "");
    let mut held = BTreeMap::new();
    for row in EXAMPLE.lines() {
        let parts: Vec<Vec<&str>> =
            row.split('|').map(|part| part.split_whitespace().collect()).collect();
        match parts[0][..] {
            ["empty"] => m.empty(),
            ["free", name] => m.free(held.remove(name).unwrap()),
            [name, bytes] => {
                let id = m.get(bytes.parse().unwrap());
                let (segment, offset) = m.place(id);
                let placed = [(segment + 1).to_string(), offset.to_string()];
                assert_eq!(parts[1], placed, "{row}");
                held.insert(name, id);
            }
            _ => panic!("{row}"),
        }
        let s = m.cache.stats();
        let now = [s.allocated.current, s.reserved.current, s.inactive_split.current];
        assert_eq!(parts[2], now.map(|n| n.to_string()), "{row}");
    }
    let segments = m.cache.segments(0);
    let blocks: Vec<Vec<u64>> =
        segments.iter().map(|s| s.blocks.iter().map(|b| b.size).collect()).collect();
    assert_eq!(
        blocks,
        [vec![512, 512_000, 1_584_640], vec![1_049_088, 19_922_432], vec![10_485_248, 10_486_272]]
    );
}

#[test]
fn growing_ranges_map_and_unmap_by_handles() {
    let mut m = Machine::with(80 * GIB, "expandable_segments:True");
    let x = m.get(30 * MIB);
    assert_eq!(m.reserved(), 40 * MIB);
    let y = m.get(9 * MIB);
    assert_eq!(m.reserved(), 40 * MIB, "the rest of the second handle serves it");
    m.get(5 * MIB);
    assert_eq!(m.reserved(), 60 * MIB);
    let old = m.place(x);
    m.free(x);
    m.did();
    m.empty();
    assert_eq!(m.did(), [("segment_unmap", 20 * MIB)], "only handle 0 lies wholly in the hole");
    assert_eq!(m.reserved(), 40 * MIB);
    let again = m.get(25 * MIB);
    assert_eq!((m.place(again), m.reserved()), (old, 60 * MIB), "the hole is filled again");
    assert_eq!(m.cache.stats().segments.current, 0, "ranges are no segments");
    assert_eq!(m.cache.stats().inactive_split.current, 0);
    m.free(y);
    m.free(again);
    // One mapped run shows as one segment.
    assert_eq!(m.cache.segments(0).len(), 1);
}

#[test]
fn growing_ranges_map_only_what_is_missing() {
    let mut m = Machine::with(80 * GIB, "expandable_segments:True");
    let mut maps = Vec::new();
    for bytes in [100, 716_800, 2 * MIB, 25 * MIB, 3 * MIB] {
        m.get(bytes);
        let mapped = m.did().into_iter().filter(|(a, _)| *a == "segment_map");
        maps.push(mapped.map(|(_, size)| size / MIB).sum::<u64>());
    }
    assert_eq!(maps, [2, 0, 20, 20, 0]);
    assert_eq!(m.reserved(), 44_040_192);
}

#[test]
fn a_plain_hole_beats_the_tail_that_can_grow() {
    let mut m = Machine::with(80 * GIB, "expandable_segments:True");
    let hole = m.get(12 * MIB);
    m.get(2 * MIB);
    let last = m.get(25 * MIB);
    m.free(hole);
    m.free(last);
    // Mapped 40 MiB: a hole of 12, 2 in use, a tail of 26 with addresses behind it.
    let id = m.get(11 * MIB);
    assert_eq!(m.place(id), (0, 0));
    let mut both = Machine::with(80 * GIB, "expandable_segments:True");
    let hole = both.get(28 * MIB);
    both.get(2 * MIB);
    let tail = both.get(9 * MIB);
    both.free(hole);
    both.free(tail);
    // The tail (10 MiB and endless addresses) fits tighter; the hole of 28 MiB is taken.
    let id = both.get(8 * MIB);
    assert_eq!(both.place(id), (0, 0));
}

#[test]
fn a_range_whose_memory_is_gone_is_given_up() {
    let mut m = Machine::with(GIB, "expandable_segments:True");
    let a = m.get(100 * MIB);
    m.free(a);
    m.empty();
    assert_eq!((m.reserved(), m.device.free()), (0, GIB));
    assert!(m.cache.segments(0).is_empty());
    let b = m.get(100 * MIB);
    assert_eq!(m.place(b), (1, 0), "a new range");
    assert_eq!(m.refuse(GIB).unallocated(), 0);
}

#[test]
fn oversize_blocks_are_kept_whole_for_oversize_requests() {
    let mut m = Machine::with(10 * GIB, "max_split_size_mb:100");
    let big = m.get(300 * MIB);
    m.free(big);
    let small = m.get(50 * MIB);
    assert_eq!(m.place(small), (1, 0), "a new segment of its own");
    let fits = m.get(290 * MIB);
    assert_eq!(m.place(fits), (0, 0));
    assert_eq!(m.cache.place(fits).unwrap().size, 300 * MIB, "whole");
    m.free(fits);
    let other = m.get(200 * MIB);
    assert_eq!(m.place(other), (2, 0), "300 is 20 MiB or more above 200");
}

#[test]
fn oversize_blocks_go_back_before_the_rest() {
    let mut m = Machine::with(500 * MIB, "max_split_size_mb:100");
    let [a, b, small] = [120, 130, 40].map(|mib| m.get(mib * MIB));
    for id in [a, b, small] {
        m.free(id);
    }
    m.did();
    // 210 MiB are free on the device: 240 need the larger two... of which both are needed.
    m.get(240 * MIB);
    let did = m.did();
    assert_eq!(did[..2], [("segment_free", 130 * MIB), ("segment_free", 120 * MIB)]);
    assert_eq!(m.cache.stats().num_alloc_retries, 0, "the 40 MiB stayed cached");
}

#[test]
fn cached_segments_go_back_before_a_request_fails() {
    let mut m = Machine::with(100 * MIB, "");
    let a = m.get(60 * MIB);
    m.free(a);
    m.did();
    m.get(80 * MIB);
    assert_eq!(
        m.did(),
        [("segment_free", 60 * MIB), ("segment_alloc", 80 * MIB), ("alloc", 80 * MIB)]
    );
    let oom = m.refuse(30 * MIB + 1);
    assert_eq!((oom.segment, oom.device_free), (32 * MIB, 20 * MIB));
    assert_eq!(m.did(), [("oom", 30 * MIB + 512)]);
    assert_eq!(m.cache.stats().num_alloc_retries, 2);
    assert_eq!(m.cache.stats().num_ooms, 1);
}

#[test]
fn a_split_segment_stays_when_the_cache_is_emptied() {
    let mut m = Machine::with(100 * MIB, "");
    let [a, b] = [40 * MIB, 30 * MIB].map(|n| m.get(n));
    m.free(a);
    // 15 MiB split the 40.
    let c = m.get(15 * MIB);
    let oom = m.refuse(40 * MIB);
    assert_eq!(oom.unallocated(), 25 * MIB, "fragmentation: free, and of no use");
    m.free(c);
    m.get(40 * MIB);
    m.free(b);
}

#[test]
fn a_fraction_refuses_before_the_device_does() {
    let mut m = Machine::with(100 * MIB, "per_process_memory_fraction:0.5");
    assert_eq!(m.cache.limit(), Some(50 * MIB));
    m.get(40 * MIB);
    let oom = m.refuse(12 * MIB);
    assert_eq!((oom.limit, oom.device_free), (Some(50 * MIB), 60 * MIB));
    m.cache.set_memory_fraction(None);
    m.get(12 * MIB);
}

#[test]
fn old_segments_are_collected_above_the_threshold() {
    let conf = "garbage_collection_threshold:0.5,per_process_memory_fraction:1";
    let mut m = Machine::with(260 * MIB, conf);
    let [old, young] = [70 * MIB, 50 * MIB].map(|n| m.get(n));
    m.free(old);
    // Three searches of the pool, on another stream so that they leave the old block alone.
    for _ in 0..3 {
        m.on(5 * MIB, S1);
    }
    m.free(young);
    assert_eq!(m.reserved(), 140 * MIB);
    m.did();
    // A miss with 10 MiB too much reserved: what is at least as old as the mean goes.
    m.get(90 * MIB);
    assert_eq!(
        m.did(),
        [("segment_free", 70 * MIB), ("segment_alloc", 90 * MIB), ("alloc", 90 * MIB)]
    );
    // Now 30 MiB too much, and one segment to choose from.
    m.get(60 * MIB);
    assert_eq!(m.did()[0], ("segment_free", 50 * MIB));
}

#[test]
fn other_streams_hold_a_block_until_they_are_done() {
    let mut m = Machine::with(GIB, "");
    let a = m.get(30 * MIB);
    m.cache.record_stream(a, S0).unwrap();
    m.cache.record_stream(a, S1).unwrap();
    m.cache.record_stream(a, StreamId(2)).unwrap();
    m.free(a);
    let stats = m.cache.stats();
    assert_eq!((stats.allocated.current, stats.active.current), (0, 30 * MIB));
    let mark = m.cache.last_event().unwrap();
    m.cache.stream_reached(S1, mark);
    let b = m.get(30 * MIB);
    assert_eq!(m.place(b), (1, 0), "stream 2 is still at work");
    m.cache.stream_reached(StreamId(2), mark);
    let c = m.get(30 * MIB);
    assert_eq!(m.place(c), (0, 0));
    // No reuse across streams.
    m.free(c);
    let d = m.on(30 * MIB, S1);
    assert_eq!(m.place(d), (2, 0));
}

#[test]
fn a_request_that_would_fail_waits_for_other_streams() {
    let mut m = Machine::with(100 * MIB, "");
    let a = m.get(80 * MIB);
    m.cache.record_stream(a, S1).unwrap();
    m.free(a);
    m.get(60 * MIB);
    assert_eq!(m.cache.awaiting(), 0);
}

#[test]
fn a_graph_pool_keeps_its_high_water_mark() {
    let mut m = Machine::with(GIB, "");
    let pool = PoolId(0, 1);
    m.cache.begin_capture(pool, CaptureScope::AnyStream).unwrap();
    let big = m.get(50 * MIB);
    m.free(big);
    m.cache.end_capture(pool).unwrap();
    // A second graph that shares the pool reuses it.
    m.cache.begin_capture(pool, CaptureScope::Stream(S0)).unwrap();
    let small = m.get(30 * MIB);
    assert_eq!(m.place(small), (0, 0));
    let outside = m.on(30 * MIB, S1);
    assert_eq!(m.place(outside), (1, 0), "another stream stays outside");
    m.free(small);
    assert_eq!(
        m.cache.empty_cache(&mut m.device),
        Err(ReleaseError::Misuse(Misuse::CaptureUnderWay))
    );
    m.cache.end_capture(pool).unwrap();
    m.empty();
    assert_eq!(m.reserved(), 80 * MIB);
    assert_eq!(m.cache.private_free(), 50 * MIB);
    m.cache.release_pool(pool).unwrap();
    m.empty();
    assert_eq!(m.reserved(), 80 * MIB, "one graph still uses it");
    m.cache.release_pool(pool).unwrap();
    m.empty();
    assert_eq!(m.reserved(), 30 * MIB);
    assert_eq!(m.cache.release_pool(pool), Err(Misuse::NoSuchPool));
}

#[test]
fn a_capture_fails_although_the_cache_could_give_back() {
    let mut m = Machine::with(100 * MIB, "");
    let cached = m.get(60 * MIB);
    m.free(cached);
    m.cache.begin_capture(PoolId(1, 0), CaptureScope::AnyStream).unwrap();
    let oom = m.refuse(50 * MIB);
    assert_eq!(oom.unallocated(), 60 * MIB);
    m.cache.end_capture(PoolId(1, 0)).unwrap();
    m.get(50 * MIB);
}

#[test]
fn frees_for_other_streams_wait_for_the_end_of_a_capture() {
    let mut m = Machine::with(GIB, "");
    let a = m.get(30 * MIB);
    m.cache.record_stream(a, S1).unwrap();
    m.cache.begin_capture(PoolId(1, 0), CaptureScope::Stream(S1)).unwrap();
    m.free(a);
    assert_eq!(m.cache.last_event(), None, "nothing is recorded inside a capture");
    m.cache.end_capture(PoolId(1, 0)).unwrap();
    m.get(512);
    assert!(m.cache.last_event().is_some());
}

#[test]
fn a_pool_that_lends_serves_before_the_request_fails() {
    let mut m = Machine::with(100 * MIB, "");
    let pool = PoolId(1, 0);
    m.cache.lend_pool(pool).unwrap();
    m.cache.begin_capture(pool, CaptureScope::AnyStream).unwrap();
    let inside = m.get(60 * MIB);
    m.free(inside);
    m.cache.end_capture(pool).unwrap();
    let borrowed = m.get(50 * MIB);
    assert_eq!(m.place(borrowed), (0, 0));
    assert_eq!(m.refuse(50 * MIB).private_free, 10 * MIB);
}

#[test]
fn misuse_is_an_error_and_changes_nothing() {
    let mut m = Machine::with(GIB, "");
    let a = m.get(512);
    m.free(a);
    assert_eq!(m.cache.free(a), Err(Misuse::NotAllocated));
    let b = m.get(512);
    assert_ne!(a, b, "ids are not reused");
    assert_eq!(m.cache.free(a), Err(Misuse::NotAllocated));
    assert_eq!(m.cache.record_stream(a, S1), Err(Misuse::NotAllocated));
    assert_eq!(m.cache.malloc(&mut m.device, 0, S0), Err(MallocError::Zero));
    let huge = m.cache.malloc(&mut m.device, u64::MAX, S0);
    assert_eq!(huge, Err(MallocError::TooLarge(u64::MAX)));
    assert_eq!(m.refuse(u64::MAX - (4 << 20)).device_free, GIB - 2 * MIB);
    let default = m.cache.begin_capture(PoolId::DEFAULT, CaptureScope::AnyStream);
    assert_eq!(default, Err(Misuse::DefaultPool));
    assert_eq!(m.cache.end_capture(PoolId(3, 3)), Err(Misuse::NoSuchPool));
    m.cache.verify().unwrap();
}

#[test]
fn a_lost_device_is_told_apart_from_a_full_one() {
    struct Dead;
    impl SegmentSource for Dead {
        fn allocate(&mut self, _: u64) -> Result<SegmentAddress, SourceError> {
            Err(SourceError::Lost("unplugged".into()))
        }
        fn release(&mut self, _: SegmentAddress, _: u64) -> Result<(), SourceError> {
            Ok(())
        }
        fn free_bytes(&mut self) -> Result<u64, SourceError> {
            Ok(0)
        }
        fn reserve(&mut self, _: u64) -> Result<SegmentAddress, SourceError> {
            Ok(SegmentAddress(0))
        }
        fn map(&mut self, _: SegmentAddress, _: u64, _: u64) -> Result<(), SourceError> {
            Err(SourceError::Lost("unplugged".into()))
        }
        fn unmap(&mut self, _: SegmentAddress, _: u64, _: u64) -> Result<(), SourceError> {
            Ok(())
        }
        fn unreserve(&mut self, _: SegmentAddress, _: u64) -> Result<(), SourceError> {
            Ok(())
        }
    }
    let mut cache = CachingAllocator::new(Setup::new(GIB));
    for conf in ["", "expandable_segments:True"] {
        cache.set_options(Options::parse(conf, TorchVersion::NEWEST).unwrap());
        let lost = cache.malloc(&mut Dead, 512, S0);
        assert_eq!(lost, Err(MallocError::Lost("unplugged".into())));
        cache.verify().unwrap();
    }
}

mod faults;
mod made_up;
