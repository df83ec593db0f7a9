//! Memory that a log shows beside what the rules predict.

use crate::{CalibrateError, Evidence};
use plimsoll_core::{
    figure::Tag,
    units::{Bytes, Tokens},
};
use plimsoll_ingest::log::{LogFigures, Seen};
use plimsoll_replay::{
    profile::{Remainder, RemainderName},
    start::{self, Case, CaseLaunch, Fact, Policy},
};

/// What the logs of the evidence say; the last log that says a figure wins.
pub(crate) fn remainders(
    case: &Case,
    evidence: &Evidence,
) -> Result<Vec<Remainder>, CalibrateError> {
    let mut found: Vec<Remainder> = Vec::new();
    for (file, figures) in &evidence.starts {
        for remainder in of_log(case, file, figures)? {
            found.retain(|other| other.name != remainder.name);
            found.push(remainder);
        }
    }
    found.sort_by_key(|remainder| remainder.name);
    Ok(found)
}

fn of_log(case: &Case, file: &str, figures: &LogFigures) -> Result<Vec<Remainder>, CalibrateError> {
    let ran = start::run(case)?;
    let basis = &ran.basis;
    let mut out = Vec::new();
    let mut add = |name, seen: Option<(Bytes, usize)>, predicted: Bytes| {
        if let Some((measured, line)) = seen {
            out.push(Remainder {
                name,
                measured_bytes: measured.0,
                predicted_bytes: predicted.0,
                place: format!("{file}:{line}"),
            });
        }
    };
    let plain = |seen: Option<Seen<Bytes>>| seen.map(|seen| (seen.value, seen.line));
    let before = basis.free_before_load.value.mid;
    add(RemainderName::FreeBeforeLoad, plain(figures.free_before_load), before);
    let taken = |from: Option<Seen<Bytes>>, to: Option<Seen<Bytes>>| {
        let (from, to) = (from?, to?);
        Some((from.value.saturating_sub(to.value), to.line))
    };
    let weights = taken(figures.free_before_load, figures.free_after_load);
    let weights = weights.or_else(|| plain(figures.weights));
    add(RemainderName::Weights, weights, basis.load.value.mid);
    let graphs = taken(figures.free_after_pool, figures.free_after_graphs);
    let graphs = graphs.or_else(|| plain(figures.graphs));
    add(RemainderName::GraphMemory, graphs, basis.graphs.value.mid);
    if matches!(case.launch, CaseLaunch::Vllm(_)) {
        let mut known = case.clone();
        out.iter().for_each(|remainder| put(&mut known, remainder));
        if let Some(peak) = activation_peak(&known, figures)? {
            out.push(Remainder { place: format!("{file}:{}", peak.1), ..peak.0 });
        }
    }
    Ok(out)
}

/// vLLM prints what it leaves for KV: what the rules leave beyond that, the profile run took, and no line says
/// whether torch or somebody else held it. It counts as the activation peak.
fn activation_peak(
    case: &Case,
    figures: &LogFigures,
) -> Result<Option<(Remainder, usize)>, CalibrateError> {
    let Some(seen) = figures.available_kv else { return Ok(None) };
    let ran = start::run(case)?;
    let Policy::Vllm(start) = &ran.policy else { return Ok(None) };
    let Some(predicted) = start.ranks().iter().map(|rank| rank.available).min() else {
        return Ok(None);
    };
    let more = predicted.saturating_sub(i64::try_from(seen.value.0).unwrap_or(i64::MAX));
    let peak = ran.basis.transient.value.mid;
    let remainder = Remainder {
        name: RemainderName::ActivationPeak,
        measured_bytes: peak.0.saturating_add_signed(more),
        predicted_bytes: peak.0,
        place: String::new(),
    };
    Ok(Some((remainder, seen.line)))
}

/// The amount as a fact of the case, measured.
pub(crate) fn put(case: &mut Case, remainder: &Remainder) {
    let facts = &mut case.facts;
    let slot = match remainder.name {
        RemainderName::FreeBeforeLoad => &mut facts.free_before_load,
        RemainderName::Weights => &mut facts.used_by_load,
        RemainderName::GraphMemory => &mut facts.graph_memory,
        RemainderName::NonTorch => &mut facts.non_torch,
        RemainderName::ActivationPeak => &mut facts.activation_peak,
        RemainderName::GraphEstimate => &mut facts.graph_estimate,
    };
    let fact = Fact::all(remainder.measured(), Tag::Measured, remainder.place.clone());
    slot.get_or_insert(fact);
}

/// Tokens of the pool of a start.
pub(crate) fn pool(ran: &start::Ran) -> Tokens {
    use plimsoll_core::figure::FigureValue;
    let count = |name: &str| match ran.start.figure(name).map(|figure| &figure.value) {
        Some(FigureValue::Count(n)) => Some(*n),
        _ => None,
    };
    Tokens(count("max_total_num_tokens").or_else(|| count("kv_cache_tokens")).unwrap_or(0))
}
