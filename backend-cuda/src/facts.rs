//! What a card's driver takes for what is asked, measured: the figures that the simulator's rules
//! stand for. Needs the card for itself: what other programs do meanwhile enters the readings.

use crate::card::Card;
use crate::exercise::{Exercise, STAGING};
use crate::failure::{Failure, OpenError};
use crate::memory::{AddressRange, Buffer, Chunk};
use crate::open::{CardState, open_alone};
use crate::pinned::Pinned;
use plimsoll_core::units::{Bytes, GIB, KIB, MIB};
use std::rc::Rc;
use std::time::Instant;

/// What `count` equal requests took from the card.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cost {
    /// The driver call.
    pub call: &'static str,
    /// Asked for, each.
    pub size: Bytes,
    /// How many were granted; fewer than asked for means that the card was full.
    pub count: u64,
    /// How much less was free with all of them.
    pub taken: Bytes,
    /// How much less was free after all were given back.
    pub kept: Bytes,
    /// Nanoseconds of the requests together.
    pub nanos: u64,
}

/// Free memory before and after one graph more.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GraphCost {
    /// Requests of the batch; nodes follow it between 4 and 64.
    pub batch: u64,
    /// Taken by this graph alone.
    pub taken: Bytes,
}

/// Measured facts of a card.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Facts {
    /// Total that programs read.
    pub total: Bytes,
    /// Total of the vendor's tool; `None` without NVML.
    pub tool_total: Option<Bytes>,
    /// What the context and two staging buffers took.
    pub context: Bytes,
    /// Held by other programs; `None` without NVML.
    pub foreign: Option<Bytes>,
    /// Free after opening.
    pub free: Bytes,
    /// Smallest and recommended piece of physical memory.
    pub pages: (Bytes, Bytes),
    /// Requests of every kind.
    pub costs: Vec<Cost>,
    /// 32 graphs, in order.
    pub graphs: Vec<GraphCost>,
    /// How much less is free after all graphs were destroyed.
    pub graphs_kept: Bytes,
    /// A single plain allocation that succeeds: all that is free, or less by 1, 3, 7, 15, … pages.
    pub largest: Bytes,
    /// Whether the card still works after a refusal.
    pub works_after_refusal: bool,
    /// Bytes that a fill wrote and the nanoseconds it took by events of the device.
    pub fill: (Bytes, u64),
    /// Bytes copied to the host and back, piece by piece, and the nanoseconds of each way.
    pub copy: (Bytes, u64, u64),
    /// Nanoseconds of one reading of free memory, the mean of 1000.
    pub reading_nanos: u64,
}

/// Plain allocations that are tried: below, at and above the steps of a driver's rounding.
const PLAIN: [(u64, u64); 16] = [
    (1, 512),
    (4 * KIB, 512),
    (10 * KIB, 512),
    (64 * KIB, 512),
    (96 * KIB, 256),
    (384 * KIB, 64),
    (512 * KIB, 64),
    (768 * KIB, 64),
    (MIB, 64),
    (MIB + 1, 64),
    (3 * MIB / 2, 64),
    (2 * MIB, 64),
    (2 * MIB + 1, 64),
    (3 * MIB, 64),
    (20 * MIB, 16),
    (GIB, 2),
];

/// Measures a card; takes seconds, gives all back.
///
/// # Errors
///
/// [`OpenError`] when the card cannot be opened or is lost meanwhile.
pub fn measure(device: u32) -> Result<Facts, OpenError> {
    let state = open_alone(device)?;
    measured(&state).map_err(|failure| failure.plain().into())
}

fn measured(state: &CardState) -> Result<Facts, Failure> {
    let CardState { card, exercise, .. } = state;
    let facts = card.facts();
    let (free, _) = card.memory()?;
    let costs = costs(card)?;
    let (graphs, graphs_kept) = graphs(card, exercise)?;
    let largest = largest(card)?;
    let works_after_refusal = Buffer::take(card, free.saturating_add(free)).is_err()
        && exercise.start_fill(&[], 1).and_then(|()| exercise.end_fill()).is_ok();
    Ok(Facts {
        total: facts.total,
        tool_total: facts.tool_total,
        context: facts.context,
        foreign: facts.foreign,
        free,
        pages: (facts.page, facts.page_recommended),
        costs,
        graphs,
        graphs_kept,
        largest,
        works_after_refusal,
        fill: fill(card, exercise)?,
        copy: copy(exercise)?,
        reading_nanos: reading(card)?,
    })
}

fn costs(card: &Rc<Card>) -> Result<Vec<Cost>, Failure> {
    let page = card.facts().page;
    let mut costs = Vec::new();
    for (size, count) in PLAIN {
        let size = Bytes(size);
        costs.push(cost(card, "cuMemAlloc", size, count, || Buffer::take(card, size))?);
    }
    for (size, count) in [(page, 64), (Bytes(page.0 * 10), 16), (Bytes(page.0 * 512), 2)] {
        costs.push(cost(card, "cuMemCreate", size, count, || Chunk::take(card, size))?);
    }
    for (size, count) in [(page, 256), (Bytes(page.0 * 10), 64)] {
        let range = AddressRange::reserve(card, Bytes(size.0 * count))?;
        let mut next = 0;
        costs.push(cost(card, "cuMemCreate, Map, SetAccess", size, count, || {
            next += 1;
            range.map(Bytes(size.0 * (next - 1)), size)
        })?);
    }
    let wide = Bytes(card.facts().total.0 / 8 * 9).round_up_to(page);
    let reserve = || AddressRange::reserve(card, wide);
    costs.push(cost(card, "cuMemAddressReserve", wide, 4, reserve)?);
    for (size, count) in [(MIB, 64), (256 * MIB, 2)] {
        let size = Bytes(size);
        costs.push(cost(card, "cuMemHostAlloc", size, count, || Pinned::take(card, size))?);
    }
    Ok(costs)
}

/// Makes `count` of something, reads, and gives all back. A full card ends the making.
fn cost<T>(
    card: &Rc<Card>,
    call: &'static str,
    size: Bytes,
    count: u64,
    mut make: impl FnMut() -> Result<T, Failure>,
) -> Result<Cost, Failure> {
    let (before, _) = card.memory()?;
    let started = Instant::now();
    let mut made = Vec::new();
    while (made.len() as u64) < count {
        match make() {
            Ok(thing) => made.push(thing),
            Err(Failure::OutOfMemory(_)) => break,
            Err(other) => return Err(other),
        }
    }
    let nanos = nanos_since(started);
    let (during, _) = card.memory()?;
    let count = made.len() as u64;
    drop(made);
    let (after, _) = card.memory()?;
    let (taken, kept) = (before.saturating_sub(during), before.saturating_sub(after));
    Ok(Cost { call, size, count, taken, kept, nanos })
}

fn nanos_since(started: Instant) -> u64 {
    u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX)
}

fn graphs(card: &Rc<Card>, exercise: &Exercise) -> Result<(Vec<GraphCost>, Bytes), Failure> {
    let (start, _) = card.memory()?;
    let (mut before, mut held, mut graphs) = (start, Vec::new(), Vec::new());
    for batch in [1, 2, 4, 8, 12, 16, 24, 32].into_iter().chain((5..29).map(|n| n * 8)) {
        match exercise.graph(batch) {
            Ok(graph) => held.push(graph),
            Err(Failure::OutOfMemory(_)) => break,
            Err(other) => return Err(other),
        }
        let (free, _) = card.memory()?;
        graphs.push(GraphCost { batch, taken: before.saturating_sub(free) });
        before = free;
    }
    drop(held);
    let (end, _) = card.memory()?;
    Ok((graphs, start.saturating_sub(end)))
}

/// The largest plain allocation: all that is free, or less by steps that double.
fn largest(card: &Rc<Card>) -> Result<Bytes, Failure> {
    let page = card.facts().page.0.max(1);
    let (free, _) = card.memory()?;
    let (mut pages, mut step) = (free.0 / page, 1);
    while pages > 0 {
        match Buffer::take(card, Bytes(pages * page)) {
            Ok(_) => break,
            Err(Failure::OutOfMemory(_)) => pages = pages.saturating_sub(step),
            Err(other) => return Err(other),
        }
        step *= 2;
    }
    Ok(Bytes(pages * page))
}

/// Writes up to 1 GiB and reads the device's clock.
fn fill(card: &Rc<Card>, exercise: &Exercise) -> Result<(Bytes, u64), Failure> {
    let (free, _) = card.memory()?;
    let size = Bytes((free.0 / 64).clamp(MIB, GIB));
    let buffer = Buffer::take(card, size)?;
    let all = [buffer.pointer()];
    // The first pass warms up.
    exercise.start_fill(&all, 0).and_then(|()| exercise.end_fill())?;
    exercise.start_fill(&all, 1)?;
    Ok((size, exercise.end_fill()?.0))
}

fn copy(exercise: &Exercise) -> Result<(Bytes, u64, u64), Failure> {
    let size = STAGING * 64;
    exercise.copy_to_host(STAGING)?;
    let started = Instant::now();
    exercise.copy_to_host(size)?;
    let to_host = nanos_since(started);
    let started = Instant::now();
    exercise.copy_to_device(size)?;
    Ok((Bytes(size), to_host, nanos_since(started)))
}

fn reading(card: &Rc<Card>) -> Result<u64, Failure> {
    const TIMES: u64 = 1000;
    let started = Instant::now();
    for _ in 0..TIMES {
        card.memory()?;
    }
    Ok(nanos_since(started) / TIMES)
}
