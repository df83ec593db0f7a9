//! The device layer with a fault at every point: a refused request is an answer after which nothing
//! stays, and so is a lost device.

use super::support::{CHILD, Ended, build, child as run_child};
use plimsoll_backend_cuda::OpenError;
use plimsoll_backend_cuda::device::{
    Argument, Card, Comms, Event, Failure, Float, Gemm, Graph, Launch, Module, Part, Pinned,
    Region, Shape, Stream, cards,
};
use plimsoll_backend_cuda::kernels::IMAGE;
use plimsoll_core::units::Bytes;
use std::rc::Rc;

const SHAPE: Shape =
    Shape { rows: 4, outputs: 64, inputs: 32, float: Float::Bf16, wide: false, add: false };

/// What a rank of a server holds, in the order in which it is given back.
struct Rank {
    graph: Option<Graph>,
    gemm: Gemm,
    stream: Stream,
    done: Event,
    pinned: Pinned,
    region: Region,
    module: Module,
}

impl Rank {
    fn start(card: &Rc<Card>) -> Result<Self, Failure> {
        let mut region = Region::reserve(card, Bytes::mib(16), Bytes::mib(4))?;
        region.map(0..3)?;
        let stream = Stream::new(card)?;
        let workspace = region.part(0, 1 << 20)?;
        Ok(Self {
            graph: None,
            gemm: Gemm::new(card, workspace)?,
            done: Event::new(card)?,
            pinned: Pinned::take(card, Bytes::mib(2))?,
            module: Module::load(card, IMAGE)?,
            region,
            stream,
        })
    }

    /// Copies pinned memory in, multiplies, copies a block by a kernel: as a graph from then on.
    fn warm(&mut self) -> Result<(), Failure> {
        let planned = self.gemm.plan(SHAPE)?;
        let [x, w, y, z] = [4, 5, 6, 7].map(|mib| self.region.part(mib << 20, 1 << 20));
        let (x, w, y, z) = (x?, w?, y?, z?);
        let copy = self.module.function("copy_blocks")?;
        self.pinned.write::<i64>()?[..2].copy_from_slice(&[0, 1]);
        let step = || {
            self.stream.copy_in(x.slice(0, 16)?, &self.pinned, 0)?;
            self.gemm.run(planned, x, w, y, &self.stream)?;
            let places = [z, y, x].map(Argument::Pointer);
            let arguments: Vec<_> = places.into_iter().chain([Argument::U64(256)]).collect();
            let launch = Launch { grid: [1, 1, 1], block: [256, 1, 1], shared: 0 };
            copy.launch(&self.stream, launch, &arguments)
        };
        step()?;
        self.stream.synchronize()?;
        let graph = self.stream.capture(step)?;
        graph.upload(&self.stream)?;
        self.graph = Some(graph);
        Ok(())
    }

    fn step(&self) -> Result<(), Failure> {
        self.graph.as_ref().map_or(Ok(()), |graph| graph.launch(&self.stream))?;
        self.done.record(&self.stream)?;
        self.done.synchronize()
    }

    /// Lends a chunk back and takes it again.
    fn lend(&mut self) -> Result<(), Failure> {
        if let Some(elastic) = self.region.elastic() {
            elastic.unmap(2..3)?;
        }
        self.region.map(2..4)
    }
}

fn serve(cards: &[Rc<Card>]) -> Result<(), Failure> {
    let comms = Comms::new(cards)?;
    let mut ranks: Vec<Rank> = cards.iter().map(Rank::start).collect::<Result<_, _>>()?;
    for rank in &mut ranks {
        rank.warm()?;
    }
    for _ in 0..2 {
        for rank in &mut ranks {
            rank.step()?;
            rank.lend()?;
        }
        let part = |rank: &'_ Rank| rank.region.part(0, 64);
        let places: Vec<_> = ranks.iter().map(part).collect::<Result<_, _>>()?;
        let parts: Vec<Part<'_>> = places
            .into_iter()
            .zip(&ranks)
            .map(|(place, rank)| Part { place, stream: &rank.stream })
            .collect();
        comms.all_reduce(&parts, 16, None)?;
        for rank in &ranks {
            rank.stream.synchronize()?;
        }
    }
    Ok(())
}

/// Not a case of its own: what the others start.
#[test]
fn child() {
    if std::env::var_os(CHILD).is_none() {
        return;
    }
    let cards = match cards(&[0, 1]) {
        Ok(cards) => cards,
        Err(error @ (OpenError::CardFull(_) | OpenError::Backend(_) | OpenError::Probe(_))) => {
            println!("not opened: {error}");
            return;
        }
        Err(other) => panic!("{other:?}"),
    };
    match serve(&cards) {
        Ok(()) => println!("served"),
        Err(failure @ Failure::OutOfMemory(_)) => println!("refused: {failure}"),
        Err(failure @ Failure::Lost(_)) => println!("lost: {failure}"),
        Err(other) => panic!("{other:?}"),
    }
}

fn start(setting: &str, value: i64) -> Option<Ended> {
    let folder = build(&[])?;
    let value = value.to_string();
    let settings = [("FAKE_CUDA_DEVICES", "2"), (setting, &value)];
    Some(run_child("device_faults::child", "life", &folder, &settings))
}

#[test]
fn a_refusal_at_any_request_leaks_nothing() {
    let Some(calm) = start("FAKE_CUDA_FAIL_AT", 0) else { return };
    calm.nothing_leaked();
    assert!(calm.text.contains("served"), "{}", calm.text);
    let requests = calm.report["requests"];
    assert!(requests >= 24, "{:?}", calm.report);
    let mut calls = std::collections::BTreeSet::new();
    for at in 1..=requests {
        let ended = start("FAKE_CUDA_FAIL_AT", at).unwrap();
        ended.nothing_leaked();
        let told = ended.text.lines().find_map(|line| line.split_once("refused: "));
        match told {
            Some((_, call)) => drop(calls.insert(call.to_owned())),
            None => assert!(ended.text.contains("not opened: "), "{at}: {}", ended.text),
        }
    }
    for call in [
        "cuMemAddressReserve",
        "cuMemCreate",
        "cuMemHostAlloc",
        "cuModuleLoadData",
        "cuGraphInstantiate",
        "cublasLtCreate",
        "cublasLtMatmul",
        "ncclCommInitAll",
        "ncclGroupEnd",
    ] {
        assert!(calls.contains(&format!("{call}: out of memory")), "{call} is not in {calls:?}");
    }
}

#[test]
fn a_device_lost_at_any_call_is_an_answer() {
    let Some(calm) = start("FAKE_CUDA_LOST_AT", 0) else { return };
    let calls = calm.report["calls"];
    assert!(calls > 300, "{:?}", calm.report);
    let mut lost = 0;
    // Every third: each costs a process.
    for at in (1..calls).step_by(3) {
        let ended = start("FAKE_CUDA_LOST_AT", at).unwrap();
        assert_eq!(ended.report["contexts"], 0, "a lost context is released as well");
        lost += i64::from(ended.text.contains("719"));
    }
    // A loss that only giving back meets is told to nobody.
    assert!(lost >= calls / 3 * 2 / 3, "only {lost} of {} losses were seen", calls / 3);
}
