//! The figures of a log as the readings of a scenario file.

use super::{
    death::{Death, How},
    draft::{Draft, Reading, Solved},
    server::Known,
};
use crate::logged::{At, ByRank, Logged};
use plimsoll_core::units::GIB;
use plimsoll_ingest::{launch::Engine, log::Amount};

/// Puts in what the log prints of memory before the pool.
pub(super) fn put(draft: &mut Draft, known: &Known, logged: &Logged, death: &Death) {
    match known.engine() {
        Engine::Sglang if known.mlx() => mlx(draft, logged),
        Engine::Sglang => sglang(draft, known, logged, death),
        Engine::Vllm => vllm(draft, known, logged, death),
    }
}

fn sglang(draft: &mut Draft, known: &Known, logged: &Logged, death: &Death) {
    let ranks = known.ranks();
    let rank = deciding(logged, death, known);
    let before = printed("free_before_load", "before loading", &logged.before, ranks, rank);
    let after = printed("free_after_load", "after loading", &logged.after, ranks, rank);
    let both = before.is_some() && after.is_some();
    before.into_iter().chain(after).for_each(|reading| draft.set(reading));
    if !both
        && let Some(weights) = printed("weights", "what loading took", &logged.weights, ranks, rank)
    {
        draft.set(weights);
    }
}

/// The rank whose figures stand for all where not every rank printed its own: that of the death, else the one
/// with the least memory left.
fn deciding(logged: &Logged, death: &Death, known: &Known) -> Option<usize> {
    let died = death.rank().filter(|rank| !rank.is_none());
    let died = died.map(|rank| crate::logged::index(rank, known.tp()));
    let least = |ranks: &ByRank<Amount>| {
        ranks.iter().min_by_key(|(_, at)| at.value.bytes).map(|(rank, _)| *rank)
    };
    died.filter(|rank| logged.before.contains_key(rank) || logged.after.contains_key(rank))
        .or_else(|| least(&logged.after))
        .or_else(|| least(&logged.before))
}

/// One amount a rank where all ranks printed it and it differs, else that of one rank.
fn printed(
    key: &'static str,
    what: &str,
    ranks: &ByRank<Amount>,
    count: usize,
    rank: Option<usize>,
) -> Option<Reading> {
    let one = rank.and_then(|rank| ranks.get(&rank)).or_else(|| ranks.values().next())?;
    let all: Option<Vec<At<Amount>>> = (0..count).map(|rank| ranks.get(&rank).copied()).collect();
    let differ = |all: &Vec<At<Amount>>| all.iter().any(|at| at.value != one.value);
    let (values, place) = match all.filter(differ) {
        Some(all) => {
            let last = all.last().map_or_else(String::new, At::place);
            (all.iter().map(|at| at.value.bytes).collect(), format!("{} to {last}", one.place()))
        }
        None => (vec![one.value.bytes], one.place()),
    };
    let source = format!("{what}, from the log, {place}");
    Some(Reading { key, values, source, solved: Solved::No })
}

fn single(key: &'static str, what: &str, at: &At<Amount>) -> Reading {
    let source = format!("{what}, from the log, {}", at.place());
    Reading { key, values: vec![at.value.bytes], source, solved: Solved::No }
}

fn mlx(draft: &mut Draft, logged: &Logged) {
    let Some((at, available)) = logged.mlx.and_then(|at| Some((at, at.value.available?))) else {
        return;
    };
    let at = At { value: available, file: at.file, line: at.line };
    draft.set(single("host_available_at_sizing", "sys_available", &at));
}

fn vllm(draft: &mut Draft, known: &Known, logged: &Logged, death: &Death) {
    let ranks = known.ranks();
    let mut one = |key: &'static str, what: &str, at: &Option<At<Amount>>| {
        if let Some(at) = at {
            draft.set(single(key, what, at));
        }
    };
    one("total", "total memory", &logged.total);
    one("free_at_start", "free memory at startup", &logged.free_at_start);
    one("non_torch", "memory outside of PyTorch", &logged.non_torch);
    one("activation_peak", "peak of the profile run", &logged.activation_peak);
    one("graph_estimate", "estimate of the graphs", &logged.graph_estimate);
    if let How::OutOfMemory { shortage, .. } = &death.how
        && let (None, Some(capacity), Some(place)) = (&logged.total, shortage.capacity, death.at)
    {
        let at = At { value: capacity, file: place.file, line: place.line };
        draft.set(single("total", "total capacity", &at));
    }
    let heaviest =
        logged.weights.iter().max_by_key(|(_, at)| at.value.bytes).map(|(rank, _)| *rank);
    match printed("weights", "what loading took", &logged.weights, ranks, heaviest) {
        Some(weights) => draft.set(weights),
        // A stand-in for the model has no weights, and this start ends before it loads.
        None if death.how == How::FreeBelow && draft.model.is_some() => draft.set(Reading {
            key: "weights",
            values: vec![GIB as i64],
            source: "assumed; the start ends before it loads".to_owned(),
            solved: Solved::No,
        }),
        None => {}
    }
}
