//! The device layer: launches, graphs, copies, regions. Kernels are the project's own, over the
//! fake driver.

use super::support::{CHILD, Ended, build, child as run_child, without_libraries};
use plimsoll_backend_cuda::device::{
    Argument, Buffer, Card, Comms, DevicePointer, Event, Failure, FunctionAttribute, Gemm, Launch,
    Module, Pinned, Region, Stream, cards,
};
use plimsoll_backend_cuda::kernels::IMAGE;
use plimsoll_core::units::Bytes;
use std::rc::Rc;

/// A card, a stream, and pinned memory of one page.
pub(crate) struct Bench {
    pub(crate) stream: Stream,
    pub(crate) pinned: Pinned,
    pub(crate) card: Rc<Card>,
}

pub(crate) fn bench() -> Bench {
    let card = cards(&[0]).unwrap().remove(0);
    bench_on(card)
}

pub(crate) fn bench_on(card: Rc<Card>) -> Bench {
    let stream = Stream::new(&card).unwrap();
    let pinned = Pinned::take(&card, Bytes::mib(4)).unwrap();
    Bench { stream, pinned, card }
}

impl Bench {
    /// Puts values into device memory.
    pub(crate) fn put<T: bytemuck::Pod>(&mut self, to: DevicePointer, values: &[T]) {
        let bytes: &[u8] = bytemuck::cast_slice(values);
        self.pinned.write::<u8>().unwrap()[..bytes.len()].copy_from_slice(bytes);
        let to = to.slice(0, bytes.len() as u64).unwrap();
        self.stream.copy_in(to, &self.pinned, 0).unwrap();
        self.stream.synchronize().unwrap();
    }

    /// Reads values from device memory.
    pub(crate) fn get<T: bytemuck::Pod>(&self, from: DevicePointer, count: usize) -> Vec<T> {
        let from = from.slice(0, (count * size_of::<T>()) as u64).unwrap();
        self.stream.copy_out(&self.pinned, 0, from).unwrap();
        self.stream.synchronize().unwrap();
        self.pinned.read::<T>().unwrap()[..count].to_vec()
    }
}

#[track_caller]
pub(crate) fn refused<T>(answer: Result<T, Failure>, because: &str) {
    match answer {
        Err(Failure::Misuse { call, what }) => {
            let text = format!("{call} {what}");
            assert!(text.contains(because), "{text}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("not refused: {because}"),
    }
}

const LAUNCH: Launch = Launch { grid: [3, 1, 1], block: [256, 1, 1], shared: 0 };

/// Three blocks of 64 bytes in reverse order, by a plain launch and by a graph that is launched
/// over changed memory.
fn launches() {
    let mut bench = bench();
    let module = Module::load(&bench.card, IMAGE).unwrap();
    let copy = module.function("copy_blocks").unwrap();
    assert_eq!(copy.attribute(FunctionAttribute::LocalBytes), Ok(0));
    let memory = Buffer::take(&bench.card, Bytes(4096)).unwrap();
    let [from, to, pairs] =
        [0, 1024, 2048].map(|offset| memory.pointer().slice(offset, 192).unwrap());
    let pairs = pairs.slice(0, 48).unwrap();
    bench.put(pairs, &[0_i64, 2, 1, 1, 2, 0]);
    let numbers: Vec<u32> = (0..48).collect();
    bench.put(from, &numbers);
    let arguments =
        |pairs| [to, from, pairs].map(Argument::Pointer).into_iter().chain([Argument::U64(64)]);
    let all: Vec<Argument> = arguments(pairs).collect();
    copy.launch(&bench.stream, LAUNCH, &all).unwrap();
    let turned = |numbers: &[u32]| numbers.chunks(16).rev().flatten().copied().collect::<Vec<_>>();
    assert_eq!(bench.get::<u32>(to, 48), turned(&numbers));
    // A graph holds the values of its arguments, not of the memory behind them.
    let mut kept = all.clone();
    let graph = bench.stream.capture(|| copy.launch(&bench.stream, LAUNCH, &kept)).unwrap();
    kept[0] = Argument::Pointer(DevicePointer::NULL);
    assert_eq!((graph.nodes(), graph.kernels()), (1, 1));
    assert!(!bench.stream.is_capturing().unwrap());
    graph.upload(&bench.stream).unwrap();
    for round in 1..4 {
        let numbers: Vec<u32> = (0..48).map(|n| n * 7 + round).collect();
        bench.put(from, &numbers);
        graph.launch(&bench.stream).unwrap();
        assert_eq!(bench.get::<u32>(to, 48), turned(&numbers));
    }
    assert_eq!(bench.card.graph_memory(), Ok(Bytes::ZERO));
    // What cannot be launched is refused, and the card works on.
    refused(copy.launch(&bench.stream, LAUNCH, &all[..3]), "arguments that are not");
    let wide = Launch { block: [2048, 1, 1], ..LAUNCH };
    refused(copy.launch(&bench.stream, wide, &all), "CUDA_ERROR_INVALID_VALUE (1)");
    let greedy = Launch { shared: 64 << 10, ..LAUNCH };
    refused(copy.launch(&bench.stream, greedy, &all), "CUDA_ERROR_INVALID_VALUE (1)");
    copy.allow_shared(64 << 10).unwrap();
    copy.launch(&bench.stream, greedy, &all).unwrap();
    refused(copy.allow_shared(1 << 20), "CUDA_ERROR_INVALID_VALUE (1)");
    refused(module.function("nothing"), "no kernel nothing");
    refused(Module::load(&bench.card, &[]), "no device code");
    refused(Module::load(&bench.card, &[0, 1]), "CUDA_ERROR_INVALID_IMAGE (200)");
    let none = Launch { grid: [0, 1, 1], ..LAUNCH };
    copy.launch(&bench.stream, none, &[]).unwrap();
    bench.stream.synchronize().unwrap();
}

/// Pinned memory is not seen while a copy uses it, also one inside a graph.
fn pinned() {
    let mut bench = bench();
    let memory = Buffer::take(&bench.card, Bytes(64)).unwrap();
    let place = memory.pointer();
    bench.pinned.write::<u64>().unwrap()[..8].copy_from_slice(&[7; 8]);
    bench.stream.copy_in(place, &bench.pinned, 0).unwrap();
    refused(bench.pinned.write::<u64>(), "not waited for");
    assert_eq!(bench.pinned.read::<u64>().unwrap()[0], 7, "a copy that reads disturbs no reader");
    let event = Event::new(&bench.card).unwrap();
    event.record(&bench.stream).unwrap();
    event.synchronize().unwrap();
    bench.pinned.write::<u64>().unwrap()[..8].copy_from_slice(&[9; 8]);
    let copy_out = |bench: &Bench| bench.stream.copy_out(&bench.pinned, 64, place);
    {
        let _seen = bench.pinned.read::<u8>().unwrap();
        refused(copy_out(&bench), "looked at");
    }
    copy_out(&bench).unwrap();
    refused(bench.pinned.read::<u64>(), "not waited for");
    bench.stream.synchronize().unwrap();
    assert_eq!(bench.pinned.read::<u64>().unwrap()[8], 7);
    let graph = bench.stream.capture(|| copy_out(&bench)).unwrap();
    assert_eq!(graph.kernels(), 0);
    {
        let _seen = bench.pinned.read::<u8>().unwrap();
        refused(graph.launch(&bench.stream), "looked at");
    }
    graph.launch(&bench.stream).unwrap();
    refused(bench.pinned.read::<u64>(), "not waited for");
    bench.stream.synchronize().unwrap();
    refused(bench.stream.copy_out(&bench.pinned, Bytes::mib(4).0 - 8, place), "bytes 4194296");
    refused(place.slice(60, 8), "bytes 60 to 60 + 8 of 64");
    refused(bench.stream.fill_words(place.slice(0, 6).unwrap(), 1), "whole number of words");
    bench.stream.fill_words(place, 0xABCD_0123).unwrap();
    assert_eq!(bench.get::<u32>(place, 2), [0xABCD_0123; 2]);
    // The graph holds the memory that it copies.
    drop(bench.pinned);
    graph.launch(&bench.stream).unwrap();
    bench.stream.synchronize().unwrap();
}

/// Two streams in the order that an event gives, and a capture that something spoils.
fn order() {
    let mut bench = bench();
    let memory = Buffer::take(&bench.card, Bytes(64)).unwrap();
    let place = memory.pointer();
    let copies = Stream::new(&bench.card).unwrap();
    let (from, to) = (Event::timed(&bench.card).unwrap(), Event::timed(&bench.card).unwrap());
    assert!(from.is_done().unwrap(), "what was never recorded is not waited for");
    from.record(&copies).unwrap();
    copies.fill(place, 1).unwrap();
    to.record(&copies).unwrap();
    bench.stream.wait(&to).unwrap();
    bench.stream.copy_within(place.slice(0, 8).unwrap(), place.slice(56, 8).unwrap()).unwrap();
    assert_eq!(bench.get::<u8>(place, 1), [1]);
    assert!(to.is_done().unwrap() && to.since(&from).is_ok());
    let untimed = Event::new(&bench.card).unwrap();
    untimed.record(&copies).unwrap();
    refused(untimed.since(&from), "cuEventElapsedTime");
    // A body that fails ends the capture and leaves nothing.
    let stop = || Failure::Lost("stop".to_owned());
    assert_eq!(bench.stream.capture(|| Err(stop())).err(), Some(stop()));
    refused(bench.stream.capture(|| bench.stream.synchronize()), "CAPTURE_UNSUPPORTED (900)");
    let takes = || Buffer::take(&bench.card, Bytes(64)).map(drop);
    refused(bench.stream.capture(takes), "CAPTURE_UNSUPPORTED (900)");
    let ignores = || Buffer::take(&bench.card, Bytes(64)).map(drop).or(Ok(()));
    refused(bench.stream.capture(ignores), "CAPTURE_INVALIDATED (901)");
    bench.put(place, &[5_u8; 64]);
    bench.stream.capture(|| bench.stream.fill(place, 3)).unwrap().launch(&bench.stream).unwrap();
    assert_eq!(bench.get::<u8>(place, 64), [3; 64]);
}

/// A region of five chunks of 4 MiB and one of 2, lent in parts and taken again.
fn region() {
    let mut bench = bench();
    let free = |bench: &Bench| bench.card.memory().unwrap().0;
    let start = free(&bench);
    let mut region = Region::reserve(&bench.card, Bytes::mib(22), Bytes::mib(4)).unwrap();
    assert_eq!(
        (region.chunks(), region.chunk(), region.size()),
        (6, Bytes::mib(4), Bytes::mib(22))
    );
    assert_eq!(free(&bench), start, "addresses cost nothing");
    refused(region.part(0, 1), "chunk 0 has no memory");
    region.map(4..6).unwrap();
    region.map(0..2).unwrap();
    assert_eq!(
        (region.mapped(), start.saturating_sub(free(&bench))),
        (Bytes::mib(14), Bytes::mib(14))
    );
    region.map_all().unwrap();
    assert_eq!(region.mapped(), Bytes::mib(22));
    let last = region.part(Bytes::mib(22).0 - 8, 8).unwrap();
    bench.put(last, &[0x1234_u64]);
    refused(region.part(Bytes::mib(22).0 - 8, 9), "bytes");
    refused(region.map(5..7), "chunks 5..7 of 6");
    let elastic = region.elastic().unwrap();
    assert_eq!(elastic.unmap(1..4), Ok(Bytes::mib(12)));
    assert_eq!(elastic.unmap(1..4), Ok(Bytes::ZERO));
    assert_eq!(start.saturating_sub(free(&bench)), Bytes::mib(10));
    refused(region.part(0, Bytes::mib(5).0), "chunk 1 has no memory");
    assert_eq!(bench.get::<u64>(last, 1), [0x1234], "the rest keeps its contents and addresses");
    region.map(2..3).unwrap();
    assert!(region.is_mapped(2) && !region.is_mapped(1));
    // More than there is: what was not backed before is not backed after.
    let mut wide = Region::reserve(&bench.card, Bytes::gib(9), Bytes::gib(1)).unwrap();
    wide.map(3..4).unwrap();
    let before = free(&bench);
    assert_eq!(wide.map_all(), Err(Failure::OutOfMemory("cuMemCreate")));
    assert_eq!((wide.mapped(), free(&bench)), (Bytes::gib(1), before));
    drop((region, wide));
    assert_eq!(free(&bench), start);
}

/// Without virtual memory a region is taken whole, and nothing can be given back.
fn fixed_region() {
    let bench = bench();
    assert!(!bench.card.facts().virtual_memory);
    let start = bench.card.memory().unwrap().0;
    let mut region = Region::reserve(&bench.card, Bytes::mib(22), Bytes::mib(4)).unwrap();
    assert_eq!(start.saturating_sub(bench.card.memory().unwrap().0), Bytes::mib(22));
    assert!(region.is_mapped(5) && !region.is_mapped(6) && region.elastic().is_none());
    region.map_all().unwrap();
    bench.stream.fill(region.part(0, Bytes::mib(22).0).unwrap(), 1).unwrap();
    bench.stream.synchronize().unwrap();
}

/// A kernel that writes to a chunk which was given back, or behind the end of an allocation, loses
/// the device.
fn stray(beyond: bool) {
    let mut bench = bench();
    let mut region = Region::reserve(&bench.card, Bytes::mib(8), Bytes::mib(2)).unwrap();
    region.map_all().unwrap();
    let whole = region.pointer();
    let pairs = Buffer::take(&bench.card, Bytes(16)).unwrap();
    bench.put(pairs.pointer(), &[0_i64, 3]);
    let module = Module::load(&bench.card, IMAGE).unwrap();
    let copy = module.function("copy_blocks").unwrap();
    let places = [whole, whole, pairs.pointer()].map(Argument::Pointer);
    let arguments: Vec<_> = places.into_iter().chain([Argument::U64(2 << 20)]).collect();
    let one = Launch { grid: [1, 1, 1], ..LAUNCH };
    copy.launch(&bench.stream, one, &arguments).unwrap();
    bench.stream.synchronize().unwrap();
    region.elastic().unwrap().unmap(3..4).unwrap();
    if beyond {
        // Back again, and a block that ends 256 bytes behind a plain allocation.
        region.map_all().unwrap();
        let plain = Buffer::take(&bench.card, Bytes(256)).unwrap();
        bench.put(pairs.pointer(), &[0_i64, 0]);
        let places = [plain.pointer(), whole, pairs.pointer()].map(Argument::Pointer);
        let arguments: Vec<_> = places.into_iter().chain([Argument::U64(512)]).collect();
        let told = copy.launch(&bench.stream, one, &arguments);
        println!("{}", told.and_then(|()| bench.stream.synchronize()).unwrap_err());
        return;
    }
    let told = copy
        .launch(&bench.stream, one, &arguments)
        .and_then(|()| bench.stream.synchronize())
        .unwrap_err();
    println!("{told}");
    assert!(matches!(told, Failure::Lost(_)));
    assert_eq!(bench.card.check(), Err(told), "a lost card stays lost");
}

/// What is not there is named.
fn missing() {
    let card = cards(&[0]).unwrap().remove(0);
    let gemm = Gemm::new(&card, DevicePointer::NULL).err().unwrap();
    let comms = Comms::new(&[card]).err().unwrap();
    println!("{gemm}\n{comms}");
}

/// Not a case of its own: what the others start.
#[test]
fn child() {
    let Some(part) = std::env::var_os(CHILD) else { return };
    match part.to_str().unwrap() {
        "launches" => launches(),
        "pinned" => pinned(),
        "order" => order(),
        "region" => region(),
        "fixed region" => fixed_region(),
        "stray" => stray(false),
        "beyond" => stray(true),
        "missing" => missing(),
        other => panic!("no part {other}"),
    }
}

fn start(part: &str, settings: &[(&str, &str)]) -> Option<Ended> {
    let folder = build(&[])?;
    Some(run_child("device::child", part, &folder, settings))
}

#[test]
fn kernels_are_launched_and_captured() {
    let Some(ended) = start("launches", &[]) else { return };
    ended.nothing_leaked();
    assert_eq!(ended.report["kernels"], 5);
    // Whatever the order of a kernel's threads.
    start("launches", &[("FAKE_CUDA_SEED", "3")]).unwrap().nothing_leaked();
}

#[test]
fn pinned_memory_is_seen_between_copies() {
    if let Some(ended) = start("pinned", &[]) {
        ended.nothing_leaked();
    }
}

#[test]
fn streams_have_an_order_and_captures_end() {
    if let Some(ended) = start("order", &[]) {
        ended.nothing_leaked();
    }
}

#[test]
fn regions_lend_chunks() {
    if let Some(ended) = start("region", &[]) {
        ended.nothing_leaked();
    }
}

#[test]
fn without_virtual_memory_a_region_is_whole() {
    if let Some(ended) = start("fixed region", &[("FAKE_CUDA_VMM", "0")]) {
        ended.nothing_leaked();
    }
}

#[test]
fn a_stray_kernel_loses_the_device() {
    for part in ["stray", "beyond"] {
        let Some(ended) = start(part, &[]) else { return };
        assert!(ended.text.contains("CUDA_ERROR_ILLEGAL_ADDRESS (700)"), "{}", ended.text);
        assert_eq!((ended.report["lost"], ended.report["contexts"]), (700, 0));
    }
}

#[test]
fn missing_libraries_and_symbols_are_named() {
    let Some(folder) = without_libraries() else { return };
    let text = run_child("device::child", "missing", &folder, &[]).text;
    assert!(text.contains("cuBLASLt is not found (tried libcublasLt.so.13,"), "{text}");
    assert!(text.contains("NCCL is not found (tried libnccl.so.2,"), "{text}");
    let old = build(&["-DFAKE_OLD_LIBRARIES"]).unwrap();
    let text = run_child("device::child", "missing", &old, &[]).text;
    assert!(text.contains("cuBLASLt is too old (it has no cublasLtGetVersion)"), "{text}");
    assert!(text.contains("NCCL is too old (it has no ncclGroupEnd)"), "{text}");
}
