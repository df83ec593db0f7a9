//! vLLM's flags with values and what they give, from the figures of the log itself.

use plimsoll_core::units::{GIB, group_thousands};
use plimsoll_ingest::log::Amount;

use super::figures::{Figures, budget};
use super::settings::Settings;
use crate::{Lever, Move};

/// The flag of the fraction.
pub(super) const UTILIZATION: &str = "--gpu-memory-utilization";
/// The flag that pins the pool.
pub(super) const KV_BYTES: &str = "--kv-cache-memory-bytes";
/// Above this fraction the context and the graphs of any model no longer fit beside the budget.
pub(super) const HIGHEST: f64 = 0.98;

/// Tokens with separators.
pub(super) fn tokens(count: u64) -> String {
    format!("{} tokens", group_thousands(count))
}

/// A fraction rounded up to hundredths.
fn up(fraction: f64) -> f64 {
    (fraction * 100.0 - 1e-6).ceil() / 100.0
}

/// A fraction rounded down to hundredths.
pub(super) fn down(fraction: f64) -> f64 {
    (fraction * 100.0 + 1e-6).floor() / 100.0
}

/// The fraction at which `missing` more goes to the pool: utilization + missing / total, to the next hundredth.
pub(super) fn fraction_for(settings: &Settings, missing: Amount) -> Option<f64> {
    let (total, utilization) = (settings.total?, settings.utilization?);
    (total.bytes > 0).then(|| up(utilization + missing.most() as f64 / total.bytes as f64))
}

/// Raises the fraction by what is missing. Without the device's memory or the fraction in force, the formula.
pub(super) fn raise(settings: &Settings, missing: Option<Amount>) -> Lever {
    if let Some(pinned) = settings.kv_bytes {
        let lever = Lever::new(KV_BYTES, Move::Raise);
        let more = missing.and_then(|missing| u64::try_from(missing.most()).ok());
        return match more.and_then(|more| pinned.checked_add(more)) {
            Some(bytes) => {
                lever.to(bytes).gives("what is missing; the fraction has no part in a given pool")
            }
            None => lever,
        };
    }
    let lever = Lever::new(UTILIZATION, Move::Raise);
    let Some(missing) = missing.filter(|missing| missing.bytes > 0) else { return lever };
    match (fraction_for(settings, missing), settings.total, settings.utilization) {
        (Some(fraction), Some(total), Some(now)) if fraction <= HIGHEST => {
            let more = (fraction - now) * total.bytes as f64;
            let spare = Amount::exact(more as i64) - missing;
            lever.to(format!("{fraction:.2}")).gives(format!(
                "{:.2} GiB more for the pool: the {missing} missing and {spare}",
                more / GIB as f64
            ))
        }
        (Some(_), ..) => {
            lever.gives(format!("{missing} are missing: more than the scale has left"))
        }
        _ => lever.gives(format!(
            "the fraction in force + {missing} ÷ the device's memory, which the log does not print"
        )),
    }
}

/// Lowers the fraction so that `missing` and a little more stays outside the budget.
pub(super) fn lower(settings: &Settings, figures: &Figures<'_>, missing: Option<Amount>) -> Lever {
    lower_by(settings, figures, missing, 0.02)
}

/// As [`lower`], by `least` at least.
pub(super) fn lower_by(
    settings: &Settings,
    figures: &Figures<'_>,
    missing: Option<Amount>,
    least: f64,
) -> Lever {
    if let Some(pinned) = settings.kv_bytes {
        return pin_below(pinned, missing);
    }
    let lever = Lever::new(UTILIZATION, Move::Lower);
    let (Some(total), Some(now)) = (settings.total.filter(|t| t.bytes > 0), settings.utilization)
    else {
        return lever.gives("each 0.01 leaves 1 % of the device's memory more outside the budget");
    };
    let need = missing.map_or(0.0, |missing| missing.most().max(0) as f64 / total.bytes as f64);
    let step = ((need * 100.0).ceil() / 100.0).max(least);
    let fraction = down(now - step);
    if fraction <= 0.0 {
        return lever;
    }
    let freed = (now - fraction) * total.bytes as f64;
    let lost = figures
        .cell()
        .map(|cell| format!(", {} fewer in the pool", tokens((freed / cell) as u64)))
        .unwrap_or_default();
    lever
        .to(format!("{fraction:.2}"))
        .gives(format!("{:.2} GiB more outside the budget{lost}", freed / GIB as f64))
}

/// A pinned pool is lowered itself: the fraction has no part in it.
fn pin_below(pinned: u64, missing: Option<Amount>) -> Lever {
    let lever = Lever::new(KV_BYTES, Move::Lower);
    let missing = missing.map_or(0, |missing| missing.most().max(0)).max(GIB as i64 / 2);
    match u64::try_from(missing).ok().and_then(|missing| pinned.checked_sub(missing)) {
        Some(bytes) if bytes > 0 => {
            lever.to(bytes).gives(format!("{} more outside the pool", Amount::exact(missing)))
        }
        _ => lever,
    }
}

/// A smaller batch of the profile run, with what it gives in proportion.
pub(super) fn smaller_batch(settings: &Settings, figures: &Figures<'_>) -> Lever {
    let lever = Lever::new("--max-num-batched-tokens", Move::Lower);
    let to = match settings.max_num_batched_tokens {
        Some(now) if now > 4096 => 2048,
        Some(now) if now > 1024 => now / 2,
        Some(_) => return lever,
        None => 2048,
    };
    let gives = match (settings.max_num_batched_tokens, figures.profiled(settings)) {
        (Some(now), Some(peak)) => {
            let won = peak.bytes as f64 * (1.0 - to as f64 / now as f64);
            format!("up to {:.2} GiB of the profile run's {peak} go to the pool", won / GIB as f64)
        }
        _ => "the profile run's peak shrinks with it, and the pool grows by that".to_owned(),
    };
    lever.to(to).gives(gives)
}

/// Fewer requests at once: smaller graphs and sampling buffers.
pub(super) fn fewer_requests(settings: &Settings) -> Lever {
    let to = settings.max_num_seqs.map_or(64, |now| if now > 64 { 64 } else { (now / 2).max(1) });
    let lever = Lever::new("--max-num-seqs", Move::Lower).to(to);
    lever.gives("fewer graphs, and sampling buffers in proportion")
}

/// More ranks share the weights.
pub(super) fn more_ranks(settings: &Settings, figures: &Figures<'_>) -> Lever {
    let to = settings.tp.saturating_mul(2);
    let lever = Lever::new("--tensor-parallel-size", Move::Raise).to(to);
    match figures.weights {
        Some((weights, _)) => lever.gives(format!(
            "about {:.2} GiB of weights a rank instead of {weights}",
            weights.as_gib() / 2.0
        )),
        None => lever,
    }
}

/// `0.90 × 79.19 GiB = 71.27 GiB`: the budget, where it is known.
pub(super) fn budget_line(settings: &Settings) -> Option<String> {
    let (total, utilization) = (settings.total?, settings.utilization?);
    Some(format!("{utilization} × {total} = {} for the budget", budget(settings)?))
}
