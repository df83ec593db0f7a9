//! What a run under load produced, by the names that scenarios claim.

use super::ServedRun;
use crate::{
    outcome::{Figure, Outcome},
    scenario::expect::Ending,
};
use plimsoll_core::{
    engine::serving::{Limit, PassFailure, ServeEnd, Totals},
    sched::Mode,
    units::{Bytes, Nanos},
};

/// How the run ended.
#[must_use]
pub(crate) const fn ending(end: &ServeEnd) -> Ending {
    match end {
        ServeEnd::Finished => Ending::Finished,
        ServeEnd::OutOfMemory(_) => Ending::OutOfMemory,
        ServeEnd::Hung => Ending::Hung,
        ServeEnd::Limit(Limit::Time) => Ending::MaxTime,
        // A run that the user ended proves as little as one that its limits ended.
        ServeEnd::Limit(Limit::Steps) | ServeEnd::Interrupted => Ending::MaxSteps,
        ServeEnd::Fatal(_) | ServeEnd::Lost(_) => Ending::Fatal,
    }
}

/// Adds the figures of a run.
pub(crate) fn add(outcome: &mut Outcome, run: &ServedRun) {
    outcome.ending = ending(&run.served.end);
    let totals = &run.served.totals;
    let mut put = |name: &str, figure: Figure| {
        // A name or kind that no scenario can claim is left out: no claim can pass on it.
        let _ = outcome.insert(name, figure);
    };
    for (name, count) in counts(totals) {
        put(name, Figure::Count(i64::try_from(count).unwrap_or(i64::MAX)));
    }
    for (name, bytes) in [
        ("peak_activations", totals.peak_allocated),
        ("peak_reserved", totals.peak_reserved),
        ("largest_request", totals.largest_request),
    ] {
        put(name, Figure::Bytes(bytes.0));
    }
    if let Some(Bytes(least)) = totals.least_free {
        put("least_free", Figure::Bytes(least));
    }
    // Of two pools the fuller one counts, as in the engine's metrics.
    let share = |used: u64, window: u64| {
        let of = |used: u64, pool: u64| used as f64 / pool.max(1) as f64;
        of(used, totals.pool_tokens).max(of(window, totals.window_pool_tokens))
    };
    let peak = share(totals.peak_used_tokens, totals.peak_used_window_tokens);
    put("peak_usage", Figure::Number(peak));
    // As the engine's log prints it.
    let window = totals.usage.window.map_or(0, |window| window.used());
    let end = share(totals.usage.used(), window);
    put("usage_at_end", Figure::Number((end * 100.0).round() / 100.0));
    if totals.window_pool_tokens > 0 {
        for (name, count) in [
            ("peak_used_window_tokens", totals.peak_used_window_tokens),
            ("evicted_window_tokens", totals.evicted_window_tokens),
        ] {
            put(name, Figure::Count(i64::try_from(count).unwrap_or(i64::MAX)));
        }
    }
    put("duration", Figure::Duration(totals.at));
    for (name, figure) in super::measured::figures(&run.metrics) {
        put(name, figure);
    }
    if let ServeEnd::OutOfMemory(failure) = &run.served.end {
        add_death(outcome, failure, totals.at, totals.steps);
    }
}

fn counts(totals: &Totals) -> [(&'static str, u64); 11] {
    [
        ("steps", totals.steps),
        ("prefill_steps", totals.prefill_steps),
        ("decode_steps", totals.decode_steps),
        ("evicted_tokens", totals.evicted_tokens),
        ("backed_up_tokens", totals.backed_up_tokens),
        ("loaded_back_tokens", totals.loaded_back_tokens),
        ("peak_used_tokens", totals.peak_used_tokens),
        ("used_tokens_at_end", totals.usage.used()),
        ("running_at_end", totals.usage.running),
        ("waiting_at_end", totals.usage.waiting),
        ("largest_chunk", totals.largest_chunk),
    ]
}

fn add_death(outcome: &mut Outcome, failure: &PassFailure, at: Nanos, step: u64) {
    let (refused, error) = (&failure.refused, &failure.refused.error);
    let text = |text: &str| Figure::Text(text.to_owned());
    let count = |n: u64| Figure::Count(i64::try_from(n).unwrap_or(i64::MAX));
    let mut put = |name: &str, figure: Figure| {
        let _ = outcome.insert(name, figure);
    };
    put("died_in", text(if failure.mode == Mode::Decode { "decode" } else { "prefill" }));
    put("died_at", Figure::Duration(at));
    put("died_at_step", count(step));
    if let Some(layer) = refused.buffer.layer {
        put("died_layer", count(u64::from(layer)));
    }
    put("died_buffer", text(refused.buffer.buffer.name));
    put("died_rank", count(u64::from(refused.rank.0)));
    put("died_requested", Figure::Bytes(error.requested));
    put("died_segment", Figure::Bytes(error.segment));
    put("died_free", Figure::Bytes(error.device_free));
    put("died_allocated", Figure::Bytes(error.allocated));
}
