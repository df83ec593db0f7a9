//! Each start of the server finds less memory free than the one before.

use plimsoll_core::units::GIB;
use plimsoll_ingest::log::{Amount, Event, Kind, Rank, Sglang, Vllm};

use crate::study::Study;
use crate::{Case, Cause, Confidence, Finding, Level, Phase};

pub(super) fn find(study: &Study<'_>) -> Option<Finding> {
    let readings = readings(study.case);
    let (first, last) = (readings.first()?, readings.last()?);
    let falls = readings.is_sorted_by(|a, b| a.2.most() >= b.2.least());
    let lost = first.2 - last.2;
    // A context or a library more is below 1 GiB and one part in fifty.
    let much = i64::try_from(GIB).unwrap_or(i64::MAX).max(first.2.bytes / 50);
    if readings.len() < 2 || !falls || lost.least() <= much {
        return None;
    }
    let headline = format!("each start finds less: {} free at first, {} now", first.2, last.2);
    let finding = Finding::new(
        "shared-memory-machine",
        Cause::SharedOrUnifiedMemory,
        Phase::Load,
        headline,
    )
    .level(Level::Warning)
    .sure(Confidence::Likely, 45)
    .because("Something still holds the device: a process of the start before, or another program. A pool is \
              sized from what is free, so it shrinks with every start.")
    .sum(format!("{} − {} = {lost}", first.2, last.2))
    .int("free_at_start_bytes", last.2.bytes)
    .seen(first.1)
    .seen(last.1);
    Some(finding)
}

/// Free before loading of each start, of the rank that says so first.
fn readings(case: &Case) -> Vec<(u32, &Event, Amount)> {
    let mut rank: Option<Rank> = None;
    let mut readings: Vec<(u32, &Event, Amount)> = Vec::new();
    for event in &case.log.events {
        let free = match &event.kind {
            Kind::Sglang(Sglang::LoadBegin { avail }) => *avail,
            Kind::Vllm(Vllm::FreeAtStart { free, .. }) => *free,
            _ => continue,
        };
        let of = *rank.get_or_insert(event.rank);
        if of == event.rank && readings.last().is_none_or(|last| last.0 != event.start) {
            readings.push((event.start, event, free));
        }
    }
    readings
}
