//! Readings of a start that the engine refused, where its log prints too few of them.

use super::{
    death::{Death, How},
    draft::{Draft, Entry, Reading, Solved, amount, as_written},
    trial::{self, Trial},
};
use plimsoll_core::units::GIB;
use plimsoll_ingest::log::Amount;
use plimsoll_replay::start::Ran;
use std::path::Path;

/// Completes the readings so that the refusal of the log follows from them.
pub(super) fn complete(draft: &mut Draft, death: &Death, base: &Path) -> Result<(), String> {
    match &death.how {
        How::WeightsTooLarge { code, fraction, above, minimum } => {
            // The suggestion is the floor, rounded up to thousandths.
            let floor = minimum.or_else(|| above.map(|above| above - 0.0005));
            let place = death.place();
            match (floor, draft.version.since(5, 14) && *code == "not_enough_memory") {
                (Some(floor), _) => from_floor(draft, floor, &place, base),
                // These releases say so where something is left, and too little for a page.
                (None, true) => at_the_edge(draft, *fraction, -EDGE, &place, base),
                (None, false) => at_the_edge(draft, *fraction, EDGE, &place, base),
            }
        }
        How::HostPool { free: Some(free), .. } => host(draft, *free, &death.place(), base),
        _ => Ok(()),
    }
}

/// Bytes by which a budget misses what a first page takes, or has less than one: below the bytes of a token.
const EDGE: i64 = 4096;

/// The start as the other readings have it, and what is free before it loads; `None` where what loading took
/// is printed, so that nothing is to be completed.
fn open(draft: &Draft, base: &Path) -> Result<Option<(Ran, i64)>, String> {
    if draft.reading("free_after_load").is_some() || draft.reading("weights").is_some() {
        return Ok(None);
    }
    let ran = Trial::settings(draft, base)?;
    let before = match draft.reading("free_before_load") {
        Some(reading) => reading.least(),
        None => trial::free(&ran, "before_load").unwrap_or(0),
    };
    Ok(Some((ran, before)))
}

fn from_floor(draft: &mut Draft, floor: f64, place: &str, base: &Path) -> Result<(), String> {
    if let Some((_, before)) = open(draft, base)? {
        let source = format!("solved from the floor of {floor} at {place}");
        draft.set(reading("weights", (floor * before as f64) as i64, source));
    }
    Ok(())
}

/// Without any size: estimates where they are refused by themselves, else the least that is refused.
fn at_the_edge(
    draft: &mut Draft,
    fraction: Option<f64>,
    over: i64,
    place: &str,
    base: &Path,
) -> Result<(), String> {
    let Some((ran, before)) = open(draft, base)? else { return Ok(()) };
    let refused = trial::refused(&ran).is_some_and(|refused| over > 0 || refused.code == EMPTY);
    if refused && draft.model.is_none() {
        return Ok(());
    }
    if let Some(fraction) = fraction.or_else(|| used_fraction(&ran)) {
        let source = format!("the least that is refused at {fraction}; {place} prints no size");
        let bytes = (fraction * before as f64) as i64 + over;
        draft.set(reading("weights", bytes, source));
    }
    Ok(())
}

/// The refusal of a budget that is there and holds nothing.
const EMPTY: &str = "not_enough_memory";

fn used_fraction(ran: &Ran) -> Option<f64> {
    match ran.start.figure("mem_fraction_static")?.value {
        plimsoll_core::figure::FigureValue::Float(x) => Some(x),
        _ => None,
    }
}

fn reading(key: &'static str, bytes: i64, source: String) -> Reading {
    Reading { key, values: vec![as_written(bytes)], source, solved: Solved::Yes }
}

/// Kept free on the host beside the pools.
///
/// Source: SGLang `HostKVCache.__init__`, `HICACHE_HOST_MEMORY_RESERVE_BYTES`.
const RESERVE: i64 = 10 * GIB as i64;

/// The host memory that makes the engine print this figure: releases count the reserve and the ranks of the
/// host differently.
fn host(draft: &mut Draft, free: Amount, place: &str, base: &Path) -> Result<(), String> {
    let ranks = i64::from(draft_ranks(draft, base)?);
    let mut fits = None;
    let ways = [
        free.bytes + RESERVE,
        free.bytes,
        free.bytes.saturating_mul(ranks) + RESERVE,
        free.bytes.saturating_mul(ranks),
    ];
    for available in ways {
        let mut tried = draft.clone();
        tried.machine.retain(|entry| entry.key != "host_available");
        let note = format!("what makes the engine print {:.2} GB free at {place}", decimal(free));
        tried.machine.push(Entry::new("host_available", amount(available), note));
        let ran = Trial::start(&tried, base)?;
        let Some(refused) = trial::refused(&ran) else { continue };
        let printed = format!("{:.2} GB free", decimal(free));
        if refused.engine_message.as_deref().is_some_and(|text| text.contains(&printed)) {
            *draft = tried;
            return Ok(());
        }
        fits.get_or_insert(tried);
    }
    if let Some(tried) = fits {
        *draft = tried;
    }
    Ok(())
}

/// The engine prints decimal gigabytes here.
fn decimal(amount: Amount) -> f64 {
    amount.bytes as f64 / 1e9
}

fn draft_ranks(draft: &Draft, base: &Path) -> Result<u32, String> {
    Ok(u32::try_from(
        Trial::start(draft, base)?.start.readings.first().map_or(1, |(_, r)| r.0.len()),
    )
    .unwrap_or(1))
}
