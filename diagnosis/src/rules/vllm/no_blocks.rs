//! Nothing is left for the pool: `No available memory for the cache blocks`, a budget below zero.

use plimsoll_core::units::GIB;
use plimsoll_ingest::log::{Amount, Event, Vllm};

use super::figures::{Figures, budget};
use super::levers::{self, HIGHEST, UTILIZATION};
use super::settings::Settings;
use crate::{Case, Cause, Confidence, Direction, Finding, Lever, Move, Phase};

/// Above this share of the budget the weights, not the profile run, are what does not fit.
const WEIGHTS_DECIDE: f64 = 0.8;

/// The budget ends before the pool.
pub(super) fn no_blocks(case: &Case) -> Vec<Finding> {
    let refusal = case.vllm().rev().find(|(_, line)| {
        matches!(line, Vllm::NoBlocks | Vllm::AutoFitFailed)
            || matches!(line, Vllm::AvailableKv { amount } if amount.most() <= 0)
    });
    let Some((event, _)) = refusal else { return Vec::new() };
    let (settings, figures) = (Settings::of(case), Figures::of(case));
    // Zero blocks of a pool that is there are a block size too large for it, told by the request's refusal.
    let missing = figures.kv.map(|(kv, _)| Amount::default() - kv).filter(|m| m.bytes > 0);
    vec![finding(&settings, &figures, event, missing)]
}

/// Above this share of the device, what is neither weights nor printed is not a profile run's but others'.
const OTHERS_DECIDE: f64 = 0.25;
/// An estimate of graphs above this is no model's: real ones take 0.1 to 4 GiB.
/// Source: startup logs of vLLM 0.18 to 0.33.
const GRAPHS_AT_MOST: i64 = 8 * GIB as i64;

/// The estimate of graphs alone is what is missing, and is larger than graphs are.
fn graphs_misjudged(figures: &Figures<'_>, missing: Option<Amount>) -> bool {
    figures.graphs_estimated.zip(missing).is_some_and(|((graphs, _), missing)| {
        graphs.bytes > GRAPHS_AT_MOST && graphs.bytes > missing.bytes
    })
}

/// Others' memory that was charged to this start: what the budget lacks beside weights and printed peak.
/// Source: vLLM 0.8 and 0.9 charge all that is used on the device; later releases what grew since the start.
fn others(settings: &Settings, figures: &Figures<'_>) -> Option<Amount> {
    if figures.foreign.is_some() {
        return figures.foreign;
    }
    let (budget, total, (kv, _)) = (budget(settings)?, settings.total?, figures.kv?);
    let peak = figures.peak.map_or(Amount::default(), |(peak, _)| peak);
    let graphs = figures.graphs_estimated.map_or(Amount::default(), |(graphs, _)| graphs);
    let rest = budget - figures.held()? - peak - graphs - kv;
    (rest.bytes as f64 > OTHERS_DECIDE * total.bytes as f64).then_some(rest)
}

/// Whether the release charges only what grew since the start: what others held before is no part of it then.
/// Source: vLLM 0.10 `MemorySnapshot` and later.
fn meanwhile(settings: &Settings) -> bool {
    settings.rules().is_some_and(|rules| {
        !settings.is_v0() && (rules.version.major, rules.version.minor) >= (0, 10)
    })
}

/// What decides between weights and the profile run, and whether any fraction helps.
fn judge(
    settings: &Settings,
    figures: &Figures<'_>,
    missing: Option<Amount>,
) -> (&'static str, Cause, Direction) {
    if graphs_misjudged(figures, missing) {
        return ("accounting-bug", Cause::AccountingBug, Direction::NoEffect);
    }
    if others(settings, figures).is_some() {
        return if meanwhile(settings) {
            ("neighbour-while-sizing", Cause::NeighbourDuringSizing, Direction::Raise)
        } else {
            ("shared-memory-machine", Cause::SharedOrUnifiedMemory, Direction::Raise)
        };
    }
    let held = figures.held();
    let needed = missing.and_then(|missing| levers::fraction_for(settings, missing));
    let too_big = held.zip(settings.total).is_some_and(|(held, total)| held.bytes >= total.bytes)
        || needed.is_some_and(|fraction| fraction > HIGHEST + 0.02);
    if too_big && held.is_some() {
        return ("model-too-big", Cause::ModelTooBig, Direction::NoEffect);
    }
    if let (Some(held), Some(budget)) = (held, budget(settings))
        && (held.bytes as f64) < WEIGHTS_DECIDE * budget.bytes as f64
    {
        return ("profile-run-peak", Cause::ProfileRunPeak, Direction::Raise);
    }
    ("weights-above-fraction", Cause::WeightsAboveFraction, Direction::Raise)
}

fn finding(
    settings: &Settings,
    figures: &Figures<'_>,
    event: &Event,
    missing: Option<Amount>,
) -> Finding {
    let (code, cause, direction) = judge(settings, figures, missing);
    let mut finding = Finding::new(code, cause, Phase::Sizing, headline(figures, missing))
        .also(&[
            Cause::WeightsAboveFraction,
            Cause::ProfileRunPeak,
            Cause::ModelTooBig,
            Cause::EmptyFeasibleWindow,
            Cause::SharedOrUnifiedMemory,
            Cause::NeighbourDuringSizing,
        ])
        .sure(if missing.is_some() { Confidence::Certain } else { Confidence::Likely }, 90)
        .because(because(cause))
        .fraction(direction);
    finding = evidence(finding, settings, figures, missing).seen(event);
    if let (Direction::Raise, Some(total), Some(now), Some(missing)) =
        (direction, settings.total, settings.utilization, missing)
    {
        finding = finding.window(now + missing.bytes as f64 / total.bytes as f64, 1.0);
    }
    if cause == Cause::AccountingBug {
        finding = finding.set(
            Lever::new("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", Move::Set)
                .to(0)
                .gives("graphs are not charged; leave room for them with a lower fraction"),
        );
    }
    if matches!(cause, Cause::SharedOrUnifiedMemory | Cause::NeighbourDuringSizing) {
        finding = finding.set(Lever::new("other programs on the device", Move::Unset).gives(
            "what they hold, or took while the server measured; start one server at a time",
        ));
    }
    if cause != Cause::ModelTooBig {
        let batch = levers::smaller_batch(settings, figures);
        let raise = levers::raise(settings, missing);
        let (first, second) =
            if cause == Cause::ProfileRunPeak { (batch, raise) } else { (raise, batch) };
        finding = finding.set(first).set(second).set(levers::fewer_requests(settings));
    }
    if settings.lora {
        finding = finding.also(&[Cause::LoraBuffers]).set(
            Lever::new("--max-loras, --max-lora-rank", Move::Lower)
                .gives("smaller buffers of adapters, which count as weights"),
        );
    }
    finding
        .set(levers::more_ranks(settings, figures))
        .set(Lever::new("--cpu-offload-gb", Move::Raise).gives("weights in host memory, slowly"))
        .useless(
            UTILIZATION,
            Some(Move::Lower),
            "it is what the budget is made of: less of it is less pool",
        )
        .useless(
            "--max-model-len",
            Some(Move::Lower),
            "there is no pool to hold a shorter request either",
        )
}

fn headline(figures: &Figures<'_>, missing: Option<Amount>) -> String {
    match (missing, figures.held()) {
        (Some(missing), Some(held)) => format!(
            "no memory is left for the KV cache: weights hold {held}, and the budget is {missing} short"
        ),
        (Some(missing), None) => {
            format!("no memory is left for the KV cache: the budget is {missing} short")
        }
        (None, Some(held)) => {
            format!("no memory is left for the KV cache: weights hold {held}")
        }
        (None, None) => "no memory is left for the KV cache".to_owned(),
    }
}

fn because(cause: Cause) -> &'static str {
    match cause {
        Cause::ModelTooBig => {
            "What is missing is more than the device has beside the budget: no fraction helps."
        }
        Cause::AccountingBug => {
            "The estimate of graphs, from two trial captures, is larger than graphs are; it alone takes the pool."
        }
        Cause::SharedOrUnifiedMemory | Cause::NeighbourDuringSizing => {
            "Weights and peak do not explain it: what other programs hold, or took meanwhile, is charged to this server."
        }
        Cause::ProfileRunPeak => {
            "The weights leave room; the dry run of max_num_batched_tokens tokens takes it."
        }
        _ => {
            "The pool is what the fraction of the device's memory leaves after weights, what grew outside torch and the peak of the profile run."
        }
    }
}

fn evidence(
    mut finding: Finding,
    settings: &Settings,
    figures: &Figures<'_>,
    missing: Option<Amount>,
) -> Finding {
    for (_, event) in
        [figures.weights, figures.consumed, figures.peak, figures.kv].into_iter().flatten()
    {
        finding = finding.seen(event);
    }
    if let Some((graphs, event)) = figures.graphs_estimated {
        finding = finding.sum(format!("{graphs} are charged for graphs, by estimate")).seen(event);
    }
    if let Some(line) = levers::budget_line(settings) {
        finding = finding.sum(line);
    }
    if let Some(foreign) = figures.foreign {
        finding = finding.sum(format!(
            "in use before the profile run − its peak = {foreign} at least, which other programs hold"
        ));
    }
    if let (Some(budget), Some(held), Some((kv, _))) =
        (budget(settings), figures.held(), figures.kv)
    {
        let rest = budget - held - kv;
        finding = finding.sum(format!(
            "{budget} − {held} of weights − {rest} of the profile run and growth outside torch = {kv}"
        ));
    }
    if let (Some(missing), Some(total), Some(now)) = (missing, settings.total, settings.utilization)
    {
        let share = missing.bytes as f64 / total.bytes as f64;
        finding = finding
            .sum(format!(
                "{now} + {missing} ÷ {total} = {:.4}: the fraction with an empty pool",
                now + share
            ))
            .float("gpu_memory_utilization_floor", now + share);
    }
    if let Some(missing) = missing {
        finding = finding.int("missing_bytes", missing.bytes);
    }
    finding
}
