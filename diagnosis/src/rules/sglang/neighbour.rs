//! Who else was on the device while the server measured it: capacity against the first reading, readings that
//! rise, ranks that differ.

use plimsoll_ingest::log::{Amount, Event, Kind, Sglang, System};

use super::levers::{FRACTION, gib};
use super::start::Start;
use crate::oom::size;
use crate::{Case, Cause, Confidence, Direction, Finding, Level, Lever, Move, Phase};

/// What a context, communicators and a driver's reserve take before the weights, at most, as a share.
const ORDINARY_SHARE: f64 = 0.15;

/// `The memory capacity is unbalanced.`
pub(super) fn unbalanced(case: &Case) -> Vec<Finding> {
    let found =
        case.sglang().find_map(|(event, line)| matches!(line, Sglang::Unbalanced).then_some(event));
    let Some(event) = found else { return Vec::new() };
    let headline = "the ranks see different free memory before loading: another program holds part of one device";
    let mut finding = Finding::new(
        "shared-memory-machine",
        Cause::SharedOrUnifiedMemory,
        Phase::Load,
        headline,
    )
    .also(&[Cause::NeighbourDuringSizing])
    .because(
        "The smallest reading decides for all ranks, so the release refuses a large difference.",
    )
    .sure(Confidence::Likely, 93)
    .seen(event)
    .useless(FRACTION, None, "the check comes before the fraction is used");
    for start in Start::all(case) {
        if let Some((event, before)) = start.before {
            finding = finding.seen(event).sum(format!("{}: {} free", start.rank, size(before)));
        }
    }
    vec![finding]
}

/// Free memory before loading against the capacity of the device.
pub(super) fn first_reading(case: &Case) -> Vec<Finding> {
    let known = case.capacity().or_else(|| table(case));
    let Some(capacity) = known.or_else(|| above_every_device(case)) else { return Vec::new() };
    let mut starts = Start::all(case);
    starts.retain(|start| start.before.is_some());
    let read = |start: &Start<'_>| start.before.map_or(0, |(_, amount)| amount.bytes);
    let (Some(least), Some(most)) =
        (starts.iter().min_by_key(|s| read(s)), starts.iter().max_by_key(|s| read(s)))
    else {
        return Vec::new();
    };
    if read(most) as f64 > capacity.bytes as f64 * 1.02 {
        return most
            .before
            .map(|(event, free)| more_than_there_is(case, event, free, capacity))
            .into_iter()
            .collect();
    }
    let held = capacity.bytes.saturating_sub(read(least));
    if held as f64 > capacity.bytes as f64 * ORDINARY_SHARE && held > gib(4) {
        return least
            .before
            .map(|(event, free)| held_before(case, event, free, capacity))
            .into_iter()
            .collect();
    }
    Vec::new()
}

/// Where no line names the device, a reading above the largest there is can only be the host's. Source: the device
/// catalog, whose largest has 288 GB.
fn above_every_device(case: &Case) -> Option<Amount> {
    let largest = Amount::exact(gib(290));
    let above =
        |start: &Start<'_>| start.before.is_some_and(|(_, free)| free.bytes > largest.bytes);
    Start::all(case).iter().any(above).then_some(largest)
}

/// Capacity from a pasted table of devices.
fn table(case: &Case) -> Option<Amount> {
    case.system().find_map(|(_, line)| match line {
        System::SmiRow { total, .. } => Some(*total),
        _ => None,
    })
}

fn more_than_there_is(case: &Case, event: &Event, free: Amount, capacity: Amount) -> Finding {
    let headline = format!(
        "{} were read as free on a device of {}: the reading is the host's",
        size(free),
        size(capacity)
    );
    Finding::new("wrong-capacity", Cause::WrongOrUnknownCapacity, Phase::Sizing, headline)
        .also(&[Cause::SharedOrUnifiedMemory, Cause::HostMemory])
        .because("Devices that share memory with the host answer with the host's; a pool sized from it kills the process.")
        .level(if case.died() { Level::Error } else { Level::Warning })
        .sure(Confidence::Certain, 90)
        .seen(event)
        .int("free_read_bytes", free.bytes)
        .int("capacity_bytes", capacity.bytes)
        .set(Lever::new("--max-total-tokens", Move::Lower).gives("a cap holds whatever the reading says"))
        .useless(FRACTION, None, "it is a fraction of the wrong reading")
}

fn held_before(case: &Case, event: &Event, free: Amount, capacity: Amount) -> Finding {
    let held = capacity - free;
    let headline =
        format!("before loading {} of {} were already taken", size(held), size(capacity));
    let failed = case.torch_ooms().next().is_some() || refused(case);
    Finding::new("shared-memory-machine", Cause::SharedOrUnifiedMemory, Phase::Load, headline)
        .also(&[Cause::ModelTooBig, Cause::NeighbourDuringSizing, Cause::WeightsAboveFraction])
        .because("Another program, or a server that died and is not gone yet, holds the rest. Look who does, wait until it is free again, then start.")
        .level(if failed { Level::Error } else { Level::Warning })
        .sure(Confidence::Certain, if failed { 97 } else { 45 })
        .seen(event)
        .sum(format!("{} − {} free = {} held", size(capacity), size(free), size(held)))
        .int("held_before_bytes", held.bytes)
        .useless(FRACTION, None, "it divides what was free, and that is what is missing")
}

fn refused(case: &Case) -> bool {
    case.sglang().any(|(_, line)| {
        matches!(line, Sglang::NotEnoughMemory { .. } | Sglang::WeightsLeaveNothing { .. })
    })
}

/// A second start in one log that sees less than the first did: the first is not gone.
pub(super) fn smaller_than_last_time(case: &Case) -> Vec<Finding> {
    let readings: Vec<(&Event, Amount)> = case
        .log
        .events
        .iter()
        .filter_map(|event| match &event.kind {
            Kind::Sglang(Sglang::LoadBegin { avail }) => Some((event, *avail)),
            _ => None,
        })
        .collect();
    let Some((last, now)) = readings.last().copied() else { return Vec::new() };
    let earlier =
        readings.iter().filter(|(event, _)| event.start < last.start && event.rank == last.rank);
    let Some((first, then)) = earlier.max_by_key(|(_, amount)| amount.bytes).copied() else {
        return Vec::new();
    };
    let lost = then - now;
    // Of a start that lives, `alive` says it.
    if lost.bytes < gib(1) || !case.died() {
        return Vec::new();
    }
    let headline = format!(
        "this start sees {} less than an earlier one: {} instead of {}",
        size(lost),
        size(now),
        size(then)
    );
    let failed = refused(case) || case.torch_ooms().next().is_some();
    vec![
        Finding::new("shared-memory-machine", Cause::SharedOrUnifiedMemory, Phase::Load, headline)
            .also(&[Cause::NeighbourDuringSizing, Cause::Leak])
            .because("The earlier server, or another program, still holds it: it was started again too early.")
            .level(Level::Error)
            .sure(Confidence::Likely, if failed { 95 } else { 44 })
            .seen(first)
            .seen(last)
            .int("lost_bytes", lost.bytes)
            .useless(FRACTION, None, "wait until free memory is back at its baseline"),
    ]
}

/// Free memory that rises between the pools and the end of the start: someone left, or garbage of loading went.
pub(super) fn readings_rise(case: &Case) -> Vec<Finding> {
    Start::all(case)
        .iter()
        .find_map(|start| garbage(start).or_else(|| left(start)))
        .into_iter()
        .collect()
}

/// A capture that took less than nothing: temporaries of loading were counted as used.
fn garbage(start: &Start<'_>) -> Option<Finding> {
    let (event, usage) = start.graphs.iter().min_by_key(|(_, usage)| usage.bytes).copied()?;
    if usage.most() > -gib(1) / 2 {
        return None;
    }
    let back = Amount { bytes: usage.bytes.saturating_neg(), half: usage.half };
    let headline = format!(
        "{} came back during graph capture: garbage of loading that was counted as used when the pool was sized",
        size(back)
    );
    Some(
        Finding::new("load-time-garbage", Cause::LoadTimeGarbage, Phase::Sizing, headline)
            .also(&[Cause::NeighbourDuringSizing, Cause::PoolTooSmall])
            .because("The pool is that much smaller than it could be; releases from 0.5.19 collect garbage before they measure.")
            .level(Level::Warning)
            .sure(Confidence::Likely, 55)
            .seen(event)
            .int("returned_bytes", back.bytes)
            .fraction(Direction::Raise)
            .set(Lever::new(FRACTION, Move::Raise).gives(format!(
                "only if the pool fills: up to {} more can go to it",
                size(back)
            ))),
    )
}

/// More free at the end than after the pools, with no capture that could have given it back.
fn left(start: &Start<'_>) -> Option<Finding> {
    let (pools, before) = start.pool_end?;
    let (event, after) = start.last_free()?;
    let rise = after - before;
    if rise.least() < gib(1) || start.graphs.iter().any(|(_, usage)| usage.bytes < 0) {
        return None;
    }
    let headline =
        format!("{} became free while the server started: another program left", size(rise));
    Some(
        Finding::new("neighbour-while-sizing", Cause::NeighbourDuringSizing, Phase::Sizing, headline)
            .also(&[Cause::SharedOrUnifiedMemory])
            .because("The pool was sized with it still there; a start alone gives a larger pool at the same fraction.")
            .level(Level::Note)
            .sure(Confidence::Likely, 40)
            .seen(pools)
            .seen(event)
            .int("returned_bytes", rise.bytes),
    )
}
