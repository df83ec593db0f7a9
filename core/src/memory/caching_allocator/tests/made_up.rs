//! Made-up runs against the invariants.

use super::*;
use proptest::{prelude::*, test_runner::TestCaseError};

#[derive(Clone, Debug)]
enum Op {
    Alloc { bytes: u64, stream: u64 },
    Free { nth: usize },
    Record { nth: usize, stream: u64 },
    Reach { stream: u64 },
    Empty,
    Begin { pool: u64 },
    End { pool: u64 },
    Release { pool: u64 },
    Neighbour { free_mib: u64 },
    Options { which: usize },
}

const OPTIONS: [&str; 6] = [
    "",
    "expandable_segments:True",
    "max_split_size_mb:24",
    "garbage_collection_threshold:0.3,per_process_memory_fraction:0.9",
    "roundup_power2_divisions:8",
    "expandable_segments:True,roundup_power2_divisions:[1:2,>:4],large_segment_size_mb:32",
];

fn size() -> impl Strategy<Value = u64> {
    prop_oneof![1..4096_u64, 4096..2 * MIB, 2 * MIB..12 * MIB, 10 * MIB..90 * MIB]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        12 => (size(), 0..3_u64).prop_map(|(bytes, stream)| Op::Alloc { bytes, stream }),
        10 => any::<usize>().prop_map(|nth| Op::Free { nth }),
        2 => (any::<usize>(), 0..3_u64).prop_map(|(nth, stream)| Op::Record { nth, stream }),
        2 => (0..3_u64).prop_map(|stream| Op::Reach { stream }),
        1 => Just(Op::Empty),
        1 => (1..3_u64).prop_map(|pool| Op::Begin { pool }),
        2 => (1..3_u64).prop_map(|pool| Op::End { pool }),
        1 => (1..3_u64).prop_map(|pool| Op::Release { pool }),
        1 => (0..500_u64).prop_map(|free_mib| Op::Neighbour { free_mib }),
        1 => (0..OPTIONS.len()).prop_map(|which| Op::Options { which }),
    ]
}

struct Run {
    m: Machine,
    held: Vec<BlockId>,
    others: u64,
}

const TOTAL: u64 = 600 * MIB;

/// A request: blocks of other streams come free, memory goes back, memory is taken, then the end.
fn order_of_retry(events: &[Event]) -> Result<(), TestCaseError> {
    let gives = |e: &Event| matches!(e.action, Action::SegmentFree | Action::SegmentUnmap);
    if let Some(last) = events.last() {
        prop_assert!(matches!(last.action, Action::Alloc | Action::Oom), "{:?}", last);
    }
    let plain = events.iter().filter(|e| e.action == Action::SegmentAlloc).count();
    prop_assert!(plain <= 1, "two segments for one request");
    if let Some(taken) = events.iter().position(|e| e.action == Action::SegmentAlloc) {
        prop_assert!(!events[taken..].iter().any(gives), "given back after it was taken");
    }
    Ok(())
}

fn nothing_whole_is_cached(cache: &CachingAllocator) -> Result<(), TestCaseError> {
    for segment in cache.segments(0) {
        let whole = segment.blocks.len() == 1
            && segment.blocks[0].state == crate::memory::snapshot::BlockState::Inactive;
        let kept = segment.is_expandable || segment.pool != PoolId::DEFAULT;
        prop_assert!(!whole || kept, "refused with {} bytes cached", segment.total_size);
    }
    Ok(())
}

impl Run {
    fn step(&mut self, op: &Op) -> Result<(), TestCaseError> {
        let m = &mut self.m;
        match *op {
            Op::Alloc { bytes, stream } => {
                let before = m.cache.stats().allocated.current;
                let seen = m.cache.history().len();
                match m.cache.malloc(&mut m.device, bytes, StreamId(stream)) {
                    Ok(id) => {
                        let place = m.cache.place(id).unwrap();
                        prop_assert!(place.size >= bytes && place.requested == bytes);
                        prop_assert_eq!(m.cache.stats().allocated.current, before + place.size);
                        self.held.push(id);
                    }
                    Err(MallocError::OutOfMemory(oom)) => {
                        prop_assert_eq!(m.cache.stats().allocated.current, before);
                        prop_assert!(m.cache.is_capturing() || m.cache.awaiting() == 0);
                        prop_assert!(oom.device_free <= TOTAL);
                    }
                    Err(other) => return Err(TestCaseError::fail(other.to_string())),
                }
                let new: Vec<Event> = m.cache.history().skip(seen).copied().collect();
                order_of_retry(&new)?;
                if new.last().is_some_and(|e| e.action == Action::Oom) && !m.cache.is_capturing() {
                    nothing_whole_is_cached(&m.cache)?;
                }
            }
            Op::Free { nth } if !self.held.is_empty() => {
                let id = self.held.swap_remove(nth % self.held.len());
                m.cache.free(id).unwrap();
                prop_assert_eq!(m.cache.free(id), Err(Misuse::NotAllocated));
            }
            Op::Record { nth, stream } if !self.held.is_empty() => {
                let id = self.held[nth % self.held.len()];
                m.cache.record_stream(id, StreamId(stream)).unwrap();
            }
            Op::Reach { stream } => {
                if let Some(mark) = m.cache.last_event() {
                    m.cache.stream_reached(StreamId(stream), mark);
                }
            }
            Op::Empty => {
                let done = m.cache.empty_cache(&mut m.device);
                prop_assert_eq!(done.is_err(), m.cache.is_capturing());
            }
            // Some of these are misuse at that moment; then nothing may change.
            Op::Begin { pool } => {
                let _ = m.cache.begin_capture(PoolId(0, pool), CaptureScope::Stream(S0));
            }
            Op::End { pool } => {
                let _ = m.cache.end_capture(PoolId(0, pool));
            }
            Op::Release { pool } => {
                let _ = m.cache.release_pool(PoolId(0, pool));
            }
            Op::Neighbour { free_mib } => {
                self.others = TOTAL.saturating_sub(m.reserved()).min(free_mib * MIB);
                m.device.set_free(TOTAL - m.reserved() - self.others);
            }
            Op::Options { which } => {
                m.cache.set_options(Options::parse(OPTIONS[which], TorchVersion::NEWEST).unwrap());
            }
            Op::Free { .. } | Op::Record { .. } => {}
        }
        Ok(())
    }

    fn check(&self) -> Result<(), TestCaseError> {
        self.m.cache.verify().map_err(|e| TestCaseError::fail(e.to_string()))?;
        // Every byte of the device is free, reserved, or another program's.
        prop_assert_eq!(self.m.device.free() + self.m.reserved() + self.others, TOTAL);
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    #[test]
    fn invariants_hold_after_every_step(
        start in 0..OPTIONS.len(),
        ops in proptest::collection::vec(op(), 1..160),
    ) {
        let mut run = Run { m: Machine::with(TOTAL, OPTIONS[start]), held: Vec::new(), others: 0 };
        let mut twin = Run { m: Machine::with(TOTAL, OPTIONS[start]), held: Vec::new(), others: 0 };
        for op in &ops {
            run.step(op)?;
            run.check()?;
            twin.step(op)?;
        }
        prop_assert!(run.m.cache.history().eq(twin.m.cache.history()), "not deterministic");
        // What was freed comes back whole.
        for id in run.held.drain(..) {
            run.m.cache.free(id).unwrap();
        }
        for pool in [PoolId(0, 1), PoolId(0, 2)] {
            let _ = run.m.cache.end_capture(pool);
            while run.m.cache.release_pool(pool).is_ok() {}
        }
        run.m.empty();
        prop_assert_eq!(run.m.reserved(), 0);
        prop_assert_eq!(run.m.device.free() + run.others, TOTAL);
        let s = *run.m.cache.stats();
        prop_assert_eq!([s.allocated.current, s.active.current, s.requested.current], [0, 0, 0]);
    }

    #[test]
    fn a_restored_allocator_goes_on_as_the_old_one(
        before in proptest::collection::vec((size(), any::<bool>()), 1..60),
        after in proptest::collection::vec((size(), any::<bool>()), 1..60),
    ) {
        let mut old = Machine::with(8 * GIB, "");
        let mut held: BTreeMap<u64, BlockId> = BTreeMap::new();
        for (bytes, keep) in before {
            let id = old.get(bytes);
            if keep {
                held.insert(old.cache.place(id).unwrap().address, id);
            } else {
                old.free(id);
            }
        }
        let setup = Setup { order: AddressOrder::Logical, ..Setup::new(8 * GIB) };
        let (new, ids) = CachingAllocator::restore(setup, &old.cache.segments(0)).unwrap();
        new.verify().unwrap();
        prop_assert_eq!(ids.len(), held.len());
        let mut new = Machine { device: old.device.clone(), cache: new };
        let mut pairs: Vec<_> = ids.into_iter().map(|(at, id)| (held[&at], id)).collect();
        for (bytes, free_first) in after {
            if free_first && let Some((a, b)) = pairs.pop() {
                old.free(a);
                new.free(b);
            }
            let (a, b) = (old.get(bytes), new.get(bytes));
            let (p, q) = (old.cache.place(a).unwrap(), new.cache.place(b).unwrap());
            prop_assert_eq!((p.offset, p.size), (q.offset, q.size));
            pairs.push((a, b));
        }
        let now = |m: &Machine| m.cache.stats().reserved.current;
        prop_assert_eq!(now(&old), now(&new));
    }
}
