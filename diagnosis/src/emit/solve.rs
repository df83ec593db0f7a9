//! Values that a log rounds or leaves out, solved from what it prints with all digits: the number of
//! token slots, what is left in the end, and what an allocation asked for when it was refused.

use super::{
    death::Shortage,
    draft::{Draft, Reading, Solved, amount, as_written},
    server::Known,
    trial::{self, Trial},
};
use crate::logged::{At, ByRank, Logged};
use plimsoll_core::{figure::FigureValue, units::group_thousands};
use plimsoll_ingest::{launch::Engine, log::Amount};
use plimsoll_replay::start::{Policy, Ran};
use std::path::Path;

/// Most starts that are tried for one value.
const TRIES: usize = 12;

/// Fits the readings to the printed number of token slots, within what their rounding allows. What cannot be
/// met is left as printed; the claims then say so.
pub(super) fn pool(
    draft: &mut Draft,
    known: &Known,
    logged: &Logged,
    base: &Path,
) -> Result<(), String> {
    if known.engine() == Engine::Vllm {
        available(draft, logged, base)?;
    }
    let ran = Trial::start(draft, base)?;
    if draft.reading("free_after_load").is_some() && draft.reading("free_before_load").is_none() {
        draft.set(estimated_before(&ran));
    }
    let Some(target) = target(logged, &ran) else { return Ok(()) };
    let now = trial::count(&ran, target.name);
    let Some(cell) = cell(&ran, logged, target.name) else { return Ok(()) };
    let Some(handle) = handle(draft, known, logged, &ran) else { return Ok(()) };
    fit(draft, &handle, &target, cell, now, base)
}

/// A count that the log prints with all digits.
struct Target {
    name: &'static str,
    count: u64,
    place: String,
}

/// What is moved to meet the count.
struct Handle {
    key: &'static str,
    start: Vec<i64>,
    source: String,
    /// By how much every value may be moved; `None` for a value that no line prints.
    half: Option<i64>,
    /// Bytes of the budget that a byte of it gives.
    gives: f64,
    /// A second value, which takes what the first has no room for.
    second: Option<Box<Handle>>,
}

fn fit(
    draft: &mut Draft,
    handle: &Handle,
    target: &Target,
    cell: f64,
    now: Option<u64>,
    base: &Path,
) -> Result<(), String> {
    let before = draft.clone();
    let (mut count, mut moved) = (now.unwrap_or(0), 0.0);
    for _ in 0..TRIES {
        if count == target.count {
            return Ok(());
        }
        // To the middle of the slot: rounding of the text must not lose it.
        moved += (target.count as f64 - count as f64 + 0.5) * cell;
        let Some(readings) = handle.moved(moved, target) else { break };
        readings.into_iter().for_each(|reading| draft.set(reading));
        count = trial::count(&Trial::start(draft, base)?, target.name).unwrap_or(0);
    }
    if count != target.count {
        *draft = before;
    }
    Ok(())
}

impl Handle {
    /// The readings when the budget moves by `bytes`; `None` when that is more than rounding allows.
    fn moved(&self, bytes: f64, target: &Target) -> Option<Vec<Reading>> {
        let wanted = bytes / self.gives;
        let half = self.half.map_or(f64::INFINITY, |half| half as f64);
        let own = wanted.clamp(-half, half);
        let rest = (wanted - own) * self.gives;
        let mut readings = match &self.second {
            Some(second) if rest != 0.0 => second.moved(rest, target)?,
            _ if rest.abs() >= 1.0 => return None,
            _ => Vec::new(),
        };
        let within = match self.half {
            Some(_) => "; moved within the rounding of the print",
            None => "; solved",
        };
        let (tokens, place) = (group_thousands(target.count), &target.place);
        let source = format!("{}{within} so that the pool is the {tokens} of {place}", self.source);
        let values = self.start.iter().map(|v| as_written(v.saturating_add(own as i64))).collect();
        readings.push(Reading { key: self.key, values, source, solved: Solved::Yes });
        Some(readings)
    }

    fn of(draft: &Draft, key: &'static str, half: Option<i64>, gives: f64) -> Option<Self> {
        let reading = draft.reading(key)?;
        let (start, source) = (reading.values.clone(), reading.source.clone());
        Some(Self { key, start, source, half, gives, second: None })
    }

    /// A value that no line prints, from its estimate.
    fn free(key: &'static str, start: i64, gives: f64) -> Self {
        let source = "not in the log".to_owned();
        Self { key, start: vec![start], source, half: None, gives, second: None }
    }
}

fn handle(draft: &Draft, known: &Known, logged: &Logged, ran: &Ran) -> Option<Handle> {
    let half = |ranks: &ByRank<Amount>| ranks.values().map(|at| at.value.half).max().unwrap_or(0);
    let fraction = fraction(ran)?;
    if known.mlx() {
        let half = logged.mlx.and_then(|at| at.value.available).map_or(0, |a| a.half);
        return Handle::of(draft, "host_available_at_sizing", Some(half), fraction);
    }
    if known.engine() == Engine::Vllm {
        let halves = [logged.activation_peak, logged.non_torch, logged.total];
        let halves = halves.iter().flatten().map(|at| at.value.half).sum::<i64>();
        let halves = halves + half(&logged.weights) + half(&logged.available_kv);
        let free =
            || Handle::free("activation_peak", estimate(ran.basis.transient.value.mid.0), -1.0);
        return Handle::of(draft, "activation_peak", Some(halves), -1.0).or_else(|| Some(free()));
    }
    let second = Handle::of(draft, "free_before_load", Some(half(&logged.before)), fraction - 1.0);
    if let Some(first) = Handle::of(draft, "free_after_load", Some(half(&logged.after)), 1.0) {
        let printed = !logged.before.is_empty() && fraction < 1.0;
        return Some(Handle { second: second.map(Box::new).filter(|_| printed), ..first });
    }
    let before = trial::free(ran, "before_load")?;
    if draft.reading("weights").is_some() {
        return Some(Handle::free("free_before_load", before, fraction));
    }
    Some(Handle::free("weights", before - trial::free(ran, "after_load")?, -1.0))
}

fn estimate(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

fn estimated_before(ran: &Ran) -> Reading {
    Reading {
        key: "free_before_load",
        values: vec![trial::free(ran, "before_load").unwrap_or(0)],
        source: "not in the log; the estimate for this device".to_owned(),
        solved: Solved::Yes,
    }
}

fn fraction(ran: &Ran) -> Option<f64> {
    let float = |name: &str| match ran.start.figure(name)?.value {
        FigureValue::Float(x) => Some(x),
        _ => None,
    };
    float("mem_fraction_static").or_else(|| float("gpu_memory_utilization"))
}

fn target(logged: &Logged, ran: &Ran) -> Option<Target> {
    let tokens = logged.tokens.map(|at| {
        let name = match ran.policy {
            Policy::Vllm(_) => "kv_cache_tokens",
            Policy::Sglang(_) | Policy::Mlx(_) => "max_total_num_tokens",
        };
        Target { name, count: at.value, place: at.place() }
    });
    let of = |name, at: At<u64>| Target { name, count: at.value, place: at.place() };
    let tokens = tokens.or_else(|| logged.blocks.map(|at| of("num_gpu_blocks", at)));
    tokens.or_else(|| logged.longest.map(|at| of(trial::LONGEST, at)))
}

/// Bytes of the budget that one more of the count takes.
fn cell(ran: &Ran, logged: &Logged, name: &str) -> Option<f64> {
    let figure = ran.start.figure("kv_bytes_per_token").map(|figure| &figure.value);
    let bytes = match (figure, logged.request) {
        (Some(FigureValue::Bytes(bytes)), _) => bytes.0 as f64,
        (Some(FigureValue::Float(bytes)), _) => *bytes,
        // A refused start has no pool; its own arithmetic has the size of a token.
        (None, Some((needed, length))) => needed.bytes as f64 / length as f64,
        _ => return None,
    };
    let block = match name {
        "num_gpu_blocks" => trial::count(ran, "block_size").unwrap_or(16) as f64,
        _ => 1.0,
    };
    (bytes > 0.0).then_some(bytes * block)
}

/// vLLM from V1 on prints what is left for the cache and not what the profile run took: that is solved.
fn available(draft: &mut Draft, logged: &Logged, base: &Path) -> Result<(), String> {
    let least = logged.available_kv.values().min_by_key(|at| at.value.bytes);
    let Some(least) = least.filter(|_| logged.activation_peak.is_none()) else { return Ok(()) };
    let ran = Trial::start(draft, base)?;
    let Policy::Vllm(start) = &ran.policy else { return Ok(()) };
    let Some(now) = start.ranks().iter().map(|rank| rank.available).min() else { return Ok(()) };
    let peak = i64::try_from(ran.basis.transient.value.mid.0).unwrap_or(i64::MAX);
    let peak = peak.saturating_add(now).saturating_sub(least.value.bytes);
    let source = format!(
        "solved from the {:.2} GiB for the cache at {}, beside estimates of the rest",
        least.value.as_gib(),
        least.place()
    );
    draft.set(Reading {
        key: "activation_peak",
        values: vec![as_written(peak)],
        source,
        solved: Solved::Yes,
    });
    Ok(())
}

/// Memory that is gone behind the pool and that no account explains: as small as such remainders are, it is put
/// down as what it is. A larger one is another pool or another program, and the claims say that it differs.
pub(super) fn remainder(draft: &mut Draft, logged: &Logged, base: &Path) -> Result<(), String> {
    let Some(at) = logged.after_pool.values().min_by_key(|at| at.value.bytes) else {
        return Ok(());
    };
    let ran = Trial::start(draft, base)?;
    let Some(free) = trial::free(&ran, "after_pool") else { return Ok(()) };
    let gone = free - at.value.bytes;
    if gone > at.value.half && gone <= REMAINDER {
        let (what, place) = (shown(at.value), at.place());
        draft.start_events.push(format!(
            "{{ at: during_sizing, others_hold: {} }} # no account explains it; {what} are free at {place}",
            amount(as_written(gone))
        ));
    }
    Ok(())
}

/// The largest remainder that is put down as one.
const REMAINDER: i64 = 512 << 20;

/// What the graphs take so that the printed figure is left in the end.
pub(super) fn left(draft: &mut Draft, logged: &Logged, base: &Path) -> Result<(), String> {
    let Some(least) = logged.after_graphs.values().min_by_key(|at| at.value.bytes) else {
        return Ok(());
    };
    let note = format!("solved from the {} left at {}", shown(least.value), least.place());
    leave(draft, least.value.bytes, &note, base).map(|_| ())
}

/// Sets what the graphs take so that `left` is free when the server is ready; gives what is free without
/// them. More than that cannot be left: then nothing is set.
pub(super) fn leave(
    draft: &mut Draft,
    left: i64,
    note: &str,
    base: &Path,
) -> Result<Option<i64>, String> {
    let Some(bare) = without_graphs(draft, base)? else { return Ok(None) };
    if bare >= left {
        draft.set(graphs(bare - left, note.to_owned()));
    }
    Ok(Some(bare))
}

/// What was taken when so much was left, and the block that was refused then.
fn taken(shortage: Shortage, place: &str) -> Option<(i64, i64, String)> {
    let requested = shortage.requested?;
    let Some(free) = shortage.free else {
        let note = format!("just more than there is: {place} does not print what was left");
        return Some((MORE, 0, note));
    };
    let note = format!(
        "at least: what was taken when {} were left, and the {} refused at {place}",
        shown(free),
        shown(requested)
    );
    Some((requested.bytes, free.bytes, note))
}

/// What is asked for too much where no line tells.
const MORE: i64 = 2 << 20;

/// An amount of a log in the unit that fits it.
pub(super) fn shown(amount: Amount) -> String {
    plimsoll_core::units::Bytes(amount.bytes.unsigned_abs()).to_string()
}

/// A capture that dies.
pub(super) fn capture(
    draft: &mut Draft,
    shortage: Shortage,
    place: &str,
    base: &Path,
) -> Result<(), String> {
    let Some((requested, free, note)) = taken(shortage, place) else { return Ok(()) };
    if let Some(bare) = without_graphs(draft, base)? {
        draft.set(graphs((bare - free).max(0).saturating_add(requested), note));
    }
    Ok(())
}

/// Loading that dies though the loaded weights would fit: what was held beside them.
pub(super) fn load_peak(
    draft: &mut Draft,
    shortage: Shortage,
    place: &str,
    base: &Path,
) -> Result<(), String> {
    let Some((requested, free, note)) = taken(shortage, place) else { return Ok(()) };
    let ran = Trial::start(draft, base)?;
    let (before, after) = (trial::free(&ran, "before_load"), trial::free(&ran, "after_load"));
    // Without a reading after loading it died there by itself.
    if let (Some(before), Some(after)) = (before, after) {
        let peak = (before - free).saturating_add(requested) - (before - after);
        let values = vec![as_written(peak.max(0))];
        draft.set(Reading { key: "load_peak", values, source: note, solved: Solved::Yes });
    }
    Ok(())
}

fn graphs(bytes: i64, source: String) -> Reading {
    let values = vec![as_written(bytes)];
    Reading { key: "graph_memory", values, source, solved: Solved::Yes }
}

/// Free when ready without anything captured; `None` when the start does not get so far.
fn without_graphs(draft: &Draft, base: &Path) -> Result<Option<i64>, String> {
    let mut bare = draft.clone();
    bare.set(Reading {
        key: "graph_memory",
        values: vec![0],
        source: "none, to see what is free without".to_owned(),
        solved: Solved::No,
    });
    let ran = Trial::start(&bare, base)?;
    Ok(trial::free(&ran, "after_graphs"))
}
