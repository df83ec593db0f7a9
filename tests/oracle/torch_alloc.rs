//! The caching allocator against traces of real PyTorch, and against the project's own vectors.
//!
//! `PLIMSOLL_SHARED=<folder>` holds `data/alloc/*.json` (default: `../shared` beside the checkout).

use super::{is_elsewhere, read_text, vector_folder};
use plimsoll_core::{
    memory::{
        caching_allocator::{
            AddressOrder, BlockId, CachingAllocator, CaptureScope, CountingSource, Event, History,
            MallocError, Options, PoolId, SegmentAddress, SegmentSource, Setup, SizeClass,
            SourceError, StreamId, TorchVersion,
        },
        snapshot::{self, BlockState, PickleProtocol, Segment, StackId},
    },
    units::{GIB, MIB},
};
use serde_json::Value;
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Path, PathBuf},
};

/// The folders that may hold traces: that of the environment, or `../shared` and the vectors.
fn trace_files() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let shared = match std::env::var_os("PLIMSOLL_SHARED") {
        Some(folder) if !folder.is_empty() => PathBuf::from(folder),
        _ => root.join("../shared"),
    };
    let folder = shared.join("data/alloc");
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: no folder {}; PLIMSOLL_SHARED names another", folder.display());
        return Vec::new();
    };
    let mut files: Vec<PathBuf> = entries
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "json"))
        .collect();
    files.sort();
    files
}

/// A device whose addresses come from the trace: the driver's choice is no rule.
struct Recorded {
    next: Option<u64>,
    released: Vec<(u64, u64)>,
}

impl SegmentSource for Recorded {
    fn allocate(&mut self, _size: u64) -> Result<SegmentAddress, SourceError> {
        let address =
            self.next.take().ok_or_else(|| SourceError::Lost("not in the trace".into()))?;
        Ok(SegmentAddress(address))
    }
    fn release(&mut self, segment: SegmentAddress, size: u64) -> Result<(), SourceError> {
        self.released.push((segment.0, size));
        Ok(())
    }
    fn free_bytes(&mut self) -> Result<u64, SourceError> {
        Ok(1 << 60)
    }
    fn reserve(&mut self, _: u64) -> Result<SegmentAddress, SourceError> {
        Err(SourceError::OutOfMemory)
    }
    fn map(&mut self, _: SegmentAddress, _: u64, _: u64) -> Result<(), SourceError> {
        Err(SourceError::OutOfMemory)
    }
    fn unmap(&mut self, _: SegmentAddress, _: u64, _: u64) -> Result<(), SourceError> {
        Ok(())
    }
    fn unreserve(&mut self, _: SegmentAddress, _: u64) -> Result<(), SourceError> {
        Ok(())
    }
}

/// What was compared in one file.
#[derive(Default, Debug)]
struct Count {
    allocs: u64,
    addresses: u64,
    segments: u64,
    segments_equal: u64,
    frees: u64,
    released: usize,
    finals: usize,
    finals_equal: usize,
    differences: Vec<String>,
}

type Map = Vec<(u64, u64, SizeClass, Vec<(u64, u64, bool)>)>;

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value} is not a whole number"))
}

/// Segments of the file's form `[address, size, class, stream, [[address, size, requested, held]]]`.
fn segments(list: &Value) -> Vec<Segment> {
    let block = |b: &Value| snapshot::Block {
        address: number(&b[0]),
        size: number(&b[1]),
        requested_size: number(&b[2]),
        state: if b[3] == 1 { BlockState::ActiveAllocated } else { BlockState::Inactive },
        stack: StackId::EMPTY,
    };
    let segment = |s: &Value| Segment {
        device: 0,
        address: number(&s[0]),
        total_size: number(&s[1]),
        allocated_size: 0,
        active_size: 0,
        requested_size: 0,
        stream: StreamId(number(&s[3])),
        class: if s[2] == "small" { SizeClass::Small } else { SizeClass::Large },
        pool: PoolId::DEFAULT,
        is_expandable: false,
        stack: StackId::EMPTY,
        blocks: s[4].as_array().unwrap().iter().map(block).collect(),
    };
    list.as_array().unwrap().iter().map(segment).collect()
}

fn map_of(segments: &[Segment]) -> Map {
    let held = |b: &snapshot::Block| b.state == BlockState::ActiveAllocated;
    let mut map: Map = segments
        .iter()
        .map(|s| {
            let blocks = s.blocks.iter().map(|b| (b.address, b.size, held(b))).collect();
            (s.address, s.total_size, s.class, blocks)
        })
        .collect();
    map.sort();
    map
}

struct Replay<'a> {
    events: &'a [Value],
    device: Recorded,
    cache: CachingAllocator,
    held: BTreeMap<u64, BlockId>,
    count: Count,
}

impl Replay<'_> {
    /// Drives one event; answers how many entries of the trace it covers.
    fn step(&mut self, at: usize) -> usize {
        let event = &self.events[at];
        let (address, size) = (number(&event[1]), number(&event[2]));
        let stream = StreamId(number(&event[3]));
        match event[0].as_str().unwrap() {
            "segment_free" => self.released(at),
            "segment_alloc" => {
                self.count.segments += 1;
                self.device.next = Some(address);
                let request = &self.events[at + 1];
                assert_eq!(request[0], "alloc", "event {at}: a segment without its request");
                let taken = self.alloc(at + 1, number(&request[1]), number(&request[2]), stream);
                if taken == Some(size) {
                    self.count.segments_equal += 1;
                } else {
                    self.differs(at, &format!("a segment of {size}, here {taken:?}"));
                }
                2
            }
            "alloc" => {
                let taken = self.alloc(at, address, size, stream);
                if let Some(taken) = taken {
                    self.differs(at, &format!("no segment, here one of {taken}"));
                }
                1
            }
            "free_requested" => {
                self.count.frees += 1;
                match self.held.remove(&address) {
                    Some(id) => self.cache.free(id).unwrap(),
                    None => self.differs(at, "a free of a block that is not held here"),
                }
                1
            }
            other => panic!("event {at}: {other}"),
        }
    }

    /// Serves a request; answers the size of the segment that it took.
    fn alloc(&mut self, at: usize, address: u64, size: u64, stream: StreamId) -> Option<u64> {
        self.count.allocs += 1;
        let before = self.cache.stats().reserved.current;
        match self.cache.malloc(&mut self.device, size, stream) {
            Ok(id) => {
                let placed = self.cache.place(id).unwrap().address;
                if placed == address {
                    self.count.addresses += 1;
                } else {
                    self.differs(at, &format!("{size} bytes at {address:#x}, here {placed:#x}"));
                }
                self.held.insert(address, id);
            }
            Err(error) => self.differs(at, &error.to_string()),
        }
        Some(self.cache.stats().reserved.current - before).filter(|taken| *taken > 0)
    }

    /// A run of released segments is an emptied cache: the set has to be equal.
    fn released(&mut self, at: usize) -> usize {
        let run = self.events[at..].iter().take_while(|e| e[0] == "segment_free");
        let mut wanted: Vec<(u64, u64)> = run.map(|e| (number(&e[1]), number(&e[2]))).collect();
        let length = wanted.len();
        self.device.released.clear();
        self.cache.empty_cache(&mut self.device).unwrap();
        let mut got = std::mem::take(&mut self.device.released);
        wanted.sort_unstable();
        got.sort_unstable();
        self.count.released += wanted.len();
        if wanted != got {
            self.differs(at, &format!("{} segments released, here {}", wanted.len(), got.len()));
        }
        length
    }

    fn differs(&mut self, at: usize, what: &str) {
        self.count.differences.push(format!("event {at}: {what}"));
    }
}

fn replay(file: &Value) -> (Count, CachingAllocator) {
    let conf = file["torch_conf"].as_str().unwrap_or("");
    let setup = Setup {
        options: Options::parse(conf, TorchVersion::NEWEST).unwrap(),
        order: AddressOrder::Source,
        ..Setup::new(1 << 60)
    };
    let (cache, held) = CachingAllocator::restore(setup, &segments(&file["initial"])).unwrap();
    let mut replay = Replay {
        events: file["events"].as_array().unwrap(),
        device: Recorded { next: None, released: Vec::new() },
        cache,
        held: held.into_iter().collect(),
        count: Count::default(),
    };
    let mut at = 0;
    while at < replay.events.len() && replay.count.differences.len() < 20 {
        at += replay.step(at);
    }
    let wanted = map_of(&segments(&file["final"]));
    let got = map_of(&replay.cache.segments(0));
    replay.count.finals = wanted.len();
    replay.count.finals_equal = wanted.iter().filter(|s| got.binary_search(s).is_ok()).count();
    if wanted != got {
        replay.differs(at, &format!("{} segments at the end, here {}", wanted.len(), got.len()));
    }
    (replay.count, replay.cache)
}

#[test]
fn every_real_trace_replays_with_every_address_segment_and_map_equal() {
    let mut unequal = 0;
    for path in trace_files() {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let file: Value = serde_json::from_str(&read_text(&path)).unwrap();
        let (c, cache) = replay(&file);
        println!(
            "{name}: {} of {} addresses, {} of {} segments, {} frees, {} released, {} of {} final maps equal, \
             {} B reserved, {} B allocated",
            c.addresses,
            c.allocs,
            c.segments_equal,
            c.segments,
            c.frees,
            c.released,
            c.finals_equal,
            c.finals,
            cache.stats().reserved.current,
            cache.stats().allocated.current,
        );
        cache.verify().unwrap();
        for difference in &c.differences {
            println!("  {difference}");
        }
        unequal += c.differences.len();
        assert!(c.allocs > 0 && c.finals > 0, "{name} holds nothing to compare");
    }
    assert_eq!(unequal, 0, "traces differ; the lines above name where");
}

#[test]
fn a_wrong_address_in_a_trace_is_seen() {
    let text = r#"{"initial":[],"events":[["segment_alloc",4096,2097152,0],["alloc",4096,100,0],
        ["alloc",ADDRESS,100,0]],"final":[[4096,2097152,"small",0,[[4096,512,100,1],[4608,512,100,1],
        [5120,2096128,0,0]]]]}"#;
    let run = |address: &str| {
        let file: Value = serde_json::from_str(&text.replace("ADDRESS", address)).unwrap();
        replay(&file).0.differences
    };
    assert_eq!(run("4608"), Vec::<String>::new());
    assert_eq!(run("5120"), ["event 2: 100 bytes at 0x1400, here 0x1200"]);
}

/// SplitMix64: the events of a vector follow from its seed alone.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }

    /// Small, middle and large sizes, as a forward pass mixes them.
    fn size(&mut self) -> u64 {
        match self.below(8) {
            0..=2 => 1 + self.below(8 * 1024),
            3 => 1 + self.below(2 * MIB),
            4..=5 => MIB + self.below(9 * MIB),
            6 => 10 * MIB + self.below(60 * MIB),
            // Sizes that come back, as those of layers do.
            _ => (1 + self.below(4)) * 3 * MIB,
        }
    }
}

/// The options that vectors are made for; one line of the file each.
const CASES: &[(u64, &str)] = &[
    (1, ""),
    (2, ""),
    (3, "expandable_segments:True"),
    (4, "expandable_segments:True,large_segment_size_mb:32"),
    (5, "max_split_size_mb:32"),
    (6, "max_split_size_mb:24,max_non_split_rounding_mb:64"),
    (7, "roundup_power2_divisions:[16:8,32:4,>:2]"),
    (8, "garbage_collection_threshold:0.4,per_process_memory_fraction:0.8"),
    (9, "per_process_memory_fraction:0.3"),
    (10, "expandable_segments:True"),
    (12, "expandable_segments:True,roundup_power2_divisions:4"),
    (14, "max_split_size_mb:40"),
];

/// Steps of one case.
const STEPS: u64 = 400;

/// Plays the events of a seed and answers their results, one line an event: what was asked, where it
/// came to lie by logical address, and what happened to segments.
fn play(seed: u64, conf: &str) -> String {
    // Every other device is too small for what is asked of it.
    let total = if seed.is_multiple_of(2) { 400 * MIB } else { GIB };
    let mut numbers = Numbers(seed);
    let options = Options::parse(conf, TorchVersion::NEWEST).unwrap();
    let setup = Setup { options, history: History::All, ..Setup::new(total) };
    let (mut cache, mut device) = (CachingAllocator::new(setup), CountingSource::new(total));
    let mut held: Vec<(u64, BlockId)> = Vec::new();
    let mut names = 0;
    let mut out = format!("case {seed} {conf}\n");
    let pool = PoolId(0, seed);
    for step in 0..STEPS {
        let full = held.len() as u64 > 40 + numbers.below(40);
        match numbers.below(40) {
            0 if cache.is_capturing() => {
                cache.end_capture(pool).unwrap();
                out += "end_capture";
            }
            0 => {
                let begun = cache.begin_capture(pool, CaptureScope::Stream(StreamId(0)));
                write!(out, "begin_capture {}", if begun.is_ok() { "ok" } else { "refused" })
                    .unwrap();
            }
            1 => {
                let done = cache.empty_cache(&mut device);
                write!(out, "empty_cache {}", if done.is_ok() { "ok" } else { "refused" }).unwrap();
            }
            2 if !held.is_empty() => {
                let (name, id) = held[numbers.below(held.len() as u64) as usize];
                cache.record_stream(id, StreamId(2)).unwrap();
                write!(out, "record_stream {name} 2").unwrap();
            }
            3 => {
                if let Some(mark) = cache.last_event() {
                    cache.stream_reached(StreamId(2), mark);
                }
                out += "stream_reached 2";
            }
            4 => {
                let released = cache.release_pool(pool);
                write!(out, "release_pool {}", if released.is_ok() { "ok" } else { "refused" })
                    .unwrap();
            }
            n if !held.is_empty() && (full || n < 18) => {
                let (name, id) = held.swap_remove(numbers.below(held.len() as u64) as usize);
                cache.free(id).unwrap();
                write!(out, "free {name}").unwrap();
            }
            n => {
                let (size, stream) = (numbers.size(), StreamId(u64::from(n == 39)));
                write!(out, "alloc {names} {size} {}", stream.0).unwrap();
                match cache.malloc(&mut device, size, stream) {
                    Ok(id) => {
                        let place = cache.place(id).unwrap();
                        write!(out, " = {}+{} {}", place.segment, place.offset, place.size)
                            .unwrap();
                        held.push((names, id));
                    }
                    Err(MallocError::OutOfMemory(oom)) => {
                        write!(out, " = oom {} {}", oom.segment, oom.device_free).unwrap();
                    }
                    Err(error) => panic!("{error}"),
                }
                names += 1;
            }
        }
        for Event { action, size, .. } in cache.take_history() {
            if action.name().starts_with("segment") {
                write!(out, " {} {size}", action.name()).unwrap();
            }
        }
        out.push('\n');
        cache.verify().unwrap_or_else(|e| panic!("case {seed}, step {step}: {e}"));
        assert_eq!(
            device.free() + cache.stats().reserved.current,
            total,
            "case {seed}, step {step}"
        );
    }
    let s = cache.stats();
    writeln!(
        out,
        "end allocated {} active {} reserved {} inactive_split {} peak_allocated {} peak_reserved {} \
         retries {} ooms {}",
        s.allocated.current,
        s.active.current,
        s.reserved.current,
        s.inactive_split.current,
        s.allocated.peak,
        s.reserved.peak,
        s.num_alloc_retries,
        s.num_ooms
    )
    .unwrap();
    snapshots_survive(&cache);
    out
}

/// A snapshot of any state reads back equal in both forms.
fn snapshots_survive(cache: &CachingAllocator) {
    let mut taken = cache.snapshot(0);
    taken.stacks = vec![Vec::new()];
    let json = snapshot::to_json(&taken);
    assert_eq!(snapshot::from_bytes(json.as_bytes()).unwrap(), taken);
    let pickle = snapshot::to_pickle(&taken, PickleProtocol::V4);
    assert_eq!(snapshot::from_bytes(&pickle).unwrap(), taken);
}

const VECTORS: &str = "alloc-generated.txt";

#[test]
fn generated_event_streams_give_the_recorded_results() {
    let path = vector_folder().join(format!("{VECTORS}.gz"));
    let got: String = CASES.iter().map(|(seed, conf)| play(*seed, conf)).collect();
    if std::env::var_os("PLIMSOLL_WRITE_VECTORS").is_some_and(|v| v == "1") {
        let file = std::fs::File::create(&path).unwrap();
        let mut gz = flate2::GzBuilder::new().mtime(0).write(file, flate2::Compression::best());
        std::io::Write::write_all(&mut gz, got.as_bytes()).unwrap();
        gz.finish().unwrap();
        println!("{VECTORS}: written");
        return;
    }
    if is_elsewhere() && !path.exists() {
        println!("skipped: no {VECTORS}.gz in {}", vector_folder().display());
        return;
    }
    let wanted = read_text(&path);
    let lines = wanted.lines().count();
    let first = wanted.lines().zip(got.lines()).position(|(a, b)| a != b);
    println!("{VECTORS}: {} cases, {lines} lines, first difference: {first:?}", CASES.len());
    if let Some(line) = first {
        let nth = |text: &str| text.lines().nth(line).unwrap_or_default().to_owned();
        panic!("line {}: recorded `{}`, here `{}`", line + 1, nth(&wanted), nth(&got));
    }
    assert_eq!(wanted, got);
    for word in ["oom", "segment_free", "segment_unmap", "begin_capture ok", "release_pool ok"] {
        assert!(wanted.contains(word), "the vectors never reach `{word}`");
    }
}
