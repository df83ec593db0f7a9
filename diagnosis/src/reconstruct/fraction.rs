//! The fraction in force: printed, given, or solved from the lines.

use plimsoll_core::policy::vllm::rules::Rules;
use plimsoll_ingest::launch::EngineLaunch;
use plimsoll_ingest::log::{Amount, Server, Sglang, Vllm};

use crate::Case;

/// How a fraction is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Known {
    /// The server prints it.
    Printed,
    /// The launch gives it.
    Given,
    /// The rules of the release give it for this launch on this device.
    Automatic,
    /// Solved from what the lines say was taken.
    Solved,
}

/// The fraction in force.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Fraction {
    /// Best value.
    pub value: f64,
    /// How far off it may be; 0 unless it is solved.
    pub half: f64,
    /// How it is known.
    pub known: Known,
}

impl Fraction {
    const fn exact(value: f64, known: Known) -> Self {
        Self { value, half: 0.0, known }
    }

    /// From its ends.
    pub(crate) fn solved(low: f64, high: f64) -> Option<Self> {
        let sound = low.is_finite() && high.is_finite() && high > 0.0 && low < 1.0;
        sound.then(|| Self {
            value: f64::midpoint(low, high),
            half: (high - low).abs() / 2.0,
            known: Known::Solved,
        })
    }
}

/// The fraction that the server prints or the launch gives; `None` when neither does.
///
/// A release that changes a given value (aiter's 0.85, multimodal in 0.4.6) prints what it uses, so what is
/// printed wins.
#[must_use]
pub fn known_fraction(case: &Case) -> Option<Fraction> {
    let (name, given) = match case.server()? {
        Server::Sglang => ("mem_fraction_static", given(case)),
        Server::Vllm => ("gpu_memory_utilization", given(case)),
        _ => return None,
    };
    let printed = case.arg(name).and_then(|text| text.parse::<f64>().ok()).or_else(|| lines(case));
    let sound = |f: &f64| f.is_finite() && *f > 0.0 && *f <= 1.0;
    let printed = printed.filter(sound).map(|f| Fraction::exact(f, Known::Printed));
    let given = given.filter(sound).map(|f| Fraction::exact(f, Known::Given));
    printed.or(given).or_else(|| default(case))
}

/// vLLM's default, where the release is known and the launch leaves the flag out.
fn default(case: &Case) -> Option<Fraction> {
    let EngineLaunch::Vllm(args) = &case.launch.as_ref()?.engine else { return None };
    let rules = Rules::of(case.version()?, args.generation);
    Some(Fraction::exact(rules.default_utilization, Known::Automatic))
}

fn given(case: &Case) -> Option<f64> {
    match &case.launch.as_ref()?.engine {
        EngineLaunch::Sglang(args) => args.mem_fraction_static,
        EngineLaunch::Vllm(args) => args.gpu_memory_utilization,
    }
}

/// Lines that name the fraction beside something else.
fn lines(case: &Case) -> Option<f64> {
    let sglang = case.sglang().find_map(|(_, line)| match line {
        Sglang::NotEnoughMemory { fraction } | Sglang::WeightsLeaveNothing { fraction, .. } => {
            *fraction
        }
        _ => None,
    });
    sglang.or_else(|| {
        case.vllm().find_map(|(_, line)| match line {
            Vllm::FreeAtStart { utilization, .. } => *utilization,
            Vllm::Budget { utilization, .. } => Some(*utilization),
            Vllm::UtilizationNote { current, .. } => *current,
            Vllm::Usage { utilization, .. } | Vllm::Profile { utilization, .. } => *utilization,
            _ => None,
        })
    })
}

/// A cap on tokens: the fraction is a gate and does not size the pool.
#[must_use]
pub fn capped(case: &Case) -> bool {
    let set = |name: &str| case.arg(name).is_some_and(|value| !value.is_empty() && value != "None");
    if set("max_total_tokens") || set("kv_cache_memory_bytes") || set("num_gpu_blocks_override") {
        return true;
    }
    match case.launch.as_ref().map(|launch| &launch.engine) {
        Some(EngineLaunch::Sglang(args)) => args.max_total_tokens.is_some(),
        Some(EngineLaunch::Vllm(args)) => {
            args.kv_cache_memory_bytes.is_some() || args.num_gpu_blocks_override.is_some()
        }
        None => false,
    }
}

/// SGLang: `f = 1 − (after − pool) / before`, from printed digits. `slack` is what rounding down to a page
/// may leave of the budget, and what padding rows may take beyond it.
pub(crate) fn solve_sglang(
    before: Amount,
    after: Amount,
    pool: Amount,
    slack: i64,
) -> Option<Fraction> {
    if before.least() <= 0 {
        return None;
    }
    let rest_low = after.least().saturating_sub(pool.most()).saturating_sub(slack);
    let rest_high = after.most().saturating_sub(pool.least()).saturating_add(slack);
    let share = |rest: i64, before: i64| rest as f64 / before as f64;
    let ends = [
        share(rest_low, before.least()),
        share(rest_low, before.most()),
        share(rest_high, before.least()),
        share(rest_high, before.most()),
    ];
    let low = ends.iter().copied().fold(f64::INFINITY, f64::min);
    let high = ends.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    Fraction::solved(1.0 - high, 1.0 - low)
}
