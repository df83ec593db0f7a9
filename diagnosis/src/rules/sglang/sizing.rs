//! Refusals while the pools are sized: the fraction, the weights, a cap above what fits.
//!
//! Rule of every release: budget = free after loading − free before loading × (1 − fraction). Source: SGLang
//! 0.4.6 to 0.5.23 `ModelRunner.profile_max_num_token` and its successors.

use plimsoll_core::model::kv;
use plimsoll_ingest::log::{Amount, Event, Sglang};

use super::levers::{FRACTION, Scale, fraction_text, gib};
use super::settings::Settings;
use super::start::Start;
use crate::oom::size;
use crate::{Case, Cause, Confidence, Direction, Finding, Level, Lever, Move, Phase};

/// What a release before 0.5.14 takes by itself for one device with speculation: 0.88 × 0.95. What stays outside
/// at this value it counts on for the draft model, graphs and activations. Source: SGLang 0.4.7
/// `ServerArgs.__post_init__`.
const AUTOMATIC_WITH_DRAFT: f64 = 0.836;

/// Above this printed minimum no fraction below 1 leaves memory to run.
const NO_ROOM: f64 = 0.985;

/// `Loaded weights leave no GPU memory …` (0.5.14 and later).
pub(super) fn weights_leave_nothing(case: &Case) -> Vec<Finding> {
    let settings = Settings::of(case);
    let found = case.sglang().find_map(|(event, line)| match line {
        Sglang::WeightsLeaveNothing { fraction, above, minimum } => {
            Some((event, *fraction, minimum.or(*above)))
        }
        _ => None,
    });
    let Some((event, printed, floor)) = found else { return Vec::new() };
    let settings = Settings { fraction: printed.or(settings.fraction), ..settings };
    let start = Start::of_rank(case, event.rank);
    let floor = floor.or_else(|| start.as_ref().and_then(floor_of));
    vec![match floor {
        Some(floor) if floor >= NO_ROOM => too_big(event, &settings, start.as_ref(), floor),
        _ => below_weights(case, event, &settings, start.as_ref(), floor, 96),
    }]
}

/// `Not enough memory. Please try to increase --mem-fraction-static.`
pub(super) fn not_enough_memory(case: &Case) -> Vec<Finding> {
    let found = case.sglang().find_map(|(event, line)| match line {
        Sglang::NotEnoughMemory { fraction } => Some((event, *fraction)),
        _ => None,
    });
    let Some((event, printed)) = found else { return Vec::new() };
    let settings = Settings::of(case);
    let settings = Settings { fraction: printed.or(settings.fraction), ..settings };
    let start = Start::of_rank(case, event.rank);
    let floor = start.as_ref().and_then(floor_of);
    let finding = if floor.is_some_and(|floor| floor >= NO_ROOM) {
        too_big(event, &settings, start.as_ref(), floor.unwrap_or(1.0))
    } else if window_is_empty(&settings, floor) {
        empty_window(event, &settings, start.as_ref(), floor)
    } else {
        below_weights(case, event, &settings, start.as_ref(), floor, 94)
    };
    vec![finding]
}

/// The least fraction that leaves a pool: what loading took over what was free before. Where the line before is
/// missing, what loading took stands for it.
fn floor_of(start: &Start<'_>) -> Option<f64> {
    let before = start.base()?;
    let (_, after) = start.after?;
    (after.bytes <= before.bytes).then(|| 1.0 - after.bytes as f64 / before.bytes as f64)
}

fn below_weights(
    case: &Case,
    event: &Event,
    settings: &Settings,
    start: Option<&Start<'_>>,
    floor: Option<f64>,
    weight: u8,
) -> Finding {
    let named = settings.fraction.map_or("the fraction".to_owned(), |f| {
        let own = if settings.fraction_given.yes() { "" } else { " (automatic)" };
        format!("{FRACTION} {}{own}", fraction_text(f))
    });
    let above = settings.fraction.zip(floor).is_some_and(|(f, floor)| f > floor);
    let headline = match floor {
        Some(floor) if above => format!(
            "{named} is above the weights' share {}, but pools of fixed size take what is left",
            fraction_text(floor)
        ),
        Some(floor) => format!(
            "{named} leaves nothing for the pool: the weights alone take {}",
            fraction_text(floor)
        ),
        None => format!("{named} leaves nothing for the pool after the weights"),
    };
    let scale = Scale::of(case, settings, start, None);
    let mut finding = Finding::new(
        "weights-above-fraction",
        Cause::WeightsAboveFraction,
        Phase::Sizing,
        headline,
    )
    .also(&[Cause::ModelTooBig, Cause::SharedOrUnifiedMemory, Cause::NeighbourDuringSizing])
    .sure(if floor.is_some() { Confidence::Certain } else { Confidence::Likely }, weight)
    .seen(event)
    .fraction(Direction::Raise)
    .useless(
        FRACTION,
        Some(Move::Lower),
        "at start the fraction holds weights and pool; a lower one leaves still less",
    )
    .useless("--max-total-tokens", None, "a cap is applied after the budget was found empty");
    if settings.speculative.is_some() {
        finding = finding.also(&[Cause::DraftNotBudgeted]);
    }
    if let Some(start) = start {
        finding = budget(finding, settings, start);
    }
    if let (Some(floor), Some(base)) = (floor, scale.base) {
        let weights = Amount::exact((floor * base.bytes as f64) as i64);
        finding = finding.sum(format!(
            "{} × {} = {} that loading took",
            size(base),
            fraction_text(floor),
            size(weights)
        ));
    }
    // The printed minimum is where the pool is empty; a pool begins above it.
    let floor = match (floor, settings.fraction) {
        (Some(floor), Some(f)) => Some(floor.max(f)),
        (floor, f) => floor.or(f.filter(|_| settings.fraction_given.yes())),
    };
    finding = match floor {
        Some(floor) if floor < NO_ROOM => {
            finding.set(scale.raise_above(floor)).window(floor, 1.0).float("floor_fraction", floor)
        }
        _ => finding.set(Lever::new(FRACTION, Move::Raise).gives(
            "above (free before the weights − free after them) / free before; the two `Load weight` lines give it",
        )),
    };
    for lever in smaller_needs(case, settings) {
        finding = finding.set(lever);
    }
    finding
}

/// `21.73 − 188.32 × (1 − 0.69) = −36.65 GiB`.
fn budget(mut finding: Finding, settings: &Settings, start: &Start<'_>) -> Finding {
    for (event, _) in [start.before, start.after].into_iter().flatten() {
        finding = finding.seen(event);
    }
    let (Some(before), Some((_, after))) = (start.base(), start.after) else { return finding };
    let Some(fraction) = settings.fraction else { return finding };
    let held = Amount::exact((before.bytes as f64 * (1.0 - fraction)) as i64);
    let rest = after - held;
    finding
        .sum(format!(
            "{} after loading − {} before × (1 − {}) = {} for the pools",
            size(after),
            size(before),
            fraction_text(fraction),
            size(rest)
        ))
        .int("pool_budget_bytes", rest.bytes)
}

/// What makes the weights or the fixed pools smaller.
fn smaller_needs(case: &Case, settings: &Settings) -> Vec<Lever> {
    let mut levers = Vec::new();
    if case.sglang().any(|(_, line)| matches!(line, Sglang::MambaAllocated { .. })) {
        let flag = if settings.max_running.is_some() {
            "--max-running-requests"
        } else {
            "--max-mamba-cache-size"
        };
        levers.push(Lever::new(flag, Move::Lower).gives("state slots come before the KV pool"));
    }
    if settings.speculative.is_some() {
        levers.push(
            Lever::new("--speculative-num-draft-tokens", Move::Lower)
                .gives("less state and fewer slots held per request"),
        );
    }
    levers
        .push(Lever::new("--tp", Move::Raise).gives("the weights of a rank shrink with the ranks"));
    levers
}

fn too_big(event: &Event, settings: &Settings, start: Option<&Start<'_>>, floor: f64) -> Finding {
    let usage = start.and_then(|s| s.usage).map(|(_, usage)| format!(" ({})", size(usage)));
    let headline = format!(
        "the weights{} fill the device: no fraction below 1 leaves a pool",
        usage.unwrap_or_default()
    );
    let mut finding = Finding::new("model-too-big", Cause::ModelTooBig, Phase::Load, headline)
        .also(&[Cause::WrongOrUnknownCapacity, Cause::WeightsAboveFraction, Cause::EmptyFeasibleWindow])
        .because(
            "The printed advice to raise above 1 cannot be followed. Where exactly nothing is left after \
             loading, the weights are cut off at the device: the model is larger than the figure says.",
        )
        .sure(Confidence::Certain, 97)
        .seen(event)
        .float("floor_fraction", floor)
        .set(Lever::new("--tp", Move::Raise).gives("the weights of a rank shrink with the ranks"))
        .set(Lever::new("--quantization", Move::Set).gives("or a quantised checkpoint"))
        .useless(FRACTION, None, "at most 1 can be given, and the weights alone take that");
    if let Some(start) = start {
        finding = budget(finding, settings, start);
    }
    finding
}

/// Whether speculation stands outside the pool in this release and the refused fraction is already so high that
/// what is outside is less than the release itself counts on.
fn window_is_empty(settings: &Settings, floor: Option<f64>) -> bool {
    let outside = settings.since(5, 14) != Some(true);
    let high = settings.fraction.is_some_and(|f| f >= AUTOMATIC_WITH_DRAFT)
        || floor.is_some_and(|floor| floor >= AUTOMATIC_WITH_DRAFT);
    settings.speculative.is_some() && outside && high
}

fn empty_window(
    event: &Event,
    settings: &Settings,
    start: Option<&Start<'_>>,
    floor: Option<f64>,
) -> Finding {
    let fraction = settings.fraction.unwrap_or_default();
    let headline = format!(
        "{FRACTION} {} is too low for the target's weights, and above it the draft model and its graphs do not fit",
        fraction_text(fraction)
    );
    let mut finding =
        Finding::new("empty-window", Cause::EmptyFeasibleWindow, Phase::Sizing, headline)
            .also(&[Cause::WeightsAboveFraction, Cause::DraftNotBudgeted, Cause::ModelTooBig])
            .because(format!(
                "Before 0.5.14 the draft's weights and pool stand outside the fraction. With speculation the \
                 release itself would take {AUTOMATIC_WITH_DRAFT} and count on the rest."
            ))
            .sure(Confidence::Likely, 95)
            .seen(event)
            .command(format!("speculation: {}", settings.speculative.as_deref().unwrap_or_default()))
            .set(Lever::new("--tp", Move::Raise).gives("a smaller share of weights opens the window"))
            .set(Lever::new("--cuda-graph-max-bs", Move::Lower).to(8).gives("smaller graphs outside"))
            .set(Lever::new("--disable-cuda-graph", Move::Set).gives("no graphs outside"))
            .useless(FRACTION, None, "lower: no pool; higher: the draft has no room")
            .useless("--chunked-prefill-size", None, "it is not what is missing at start")
            .useless("--max-running-requests", None, "it does not shrink weights");
    if let Some(start) = start {
        finding = budget(finding, settings, start);
    }
    finding.float("floor_fraction", floor.unwrap_or(fraction))
}

/// `max_total_tokens=… is larger than the profiled value …`.
pub(super) fn profiled_below_asked(case: &Case) -> Vec<Finding> {
    let found = case.sglang().find_map(|(event, line)| match line {
        Sglang::ProfiledBelowAsked { asked, profiled } => Some((event, *asked, *profiled)),
        _ => None,
    });
    let Some((event, asked, profiled)) = found else { return Vec::new() };
    let settings = Settings::of(case);
    let start = Start::of_rank(case, event.rank);
    if profiled > 0 {
        return vec![cap_above_pool(event, asked, profiled)];
    }
    let floor = start.as_ref().and_then(floor_of);
    let mut finding = below_weights(case, event, &settings, start.as_ref(), floor, 95)
        .int("profiled_tokens", profiled);
    finding.headline = format!(
        "{profiled} tokens were profiled: the fraction in force leaves less than nothing after the weights"
    );
    if let (Some(floor), Some(fraction)) = (floor, settings.fraction)
        && fraction > floor
    {
        // The given value would have left a pool: it is not what the server used.
        finding = finding.also(&[Cause::WrongOrUnknownCapacity]).sum(format!(
            "{} was given and the weights take {}: a negative count means that a lower value was in force",
            fraction_text(fraction),
            fraction_text(floor)
        ));
        if let Some(solved) = solved_fraction(&settings, start.as_ref(), profiled) {
            finding = finding.float("fraction_in_force", solved.0).sum(solved.1);
        }
        finding.feasible = Some((floor, 1.0));
        finding.help.retain(|lever| lever.flag != FRACTION);
        finding.help.insert(
            0,
            Scale::of(case, &settings, start.as_ref(), None).raise_above(floor).gives(
                "and see in `server_args=` that it is the value in force: this count is of a lower one",
            ),
        );
    }
    vec![finding]
}

/// The fraction in force from a negative count: `1 − f = (after − tokens × bytes) / before`. Needs the bytes of a
/// token from the catalog; bfloat16, tensor parallelism as launched.
fn solved_fraction(
    settings: &Settings,
    start: Option<&Start<'_>>,
    tokens: i64,
) -> Option<(f64, String)> {
    let model = plimsoll_catalog::models::find(settings.model.as_deref()?).ok()?.model;
    let layers = model.geometry.layers.len();
    let tp = settings.ranks_per_host.checked_div(settings.dp.max(1)).unwrap_or(1).max(1);
    let cell = kv::cell(&model, 0..layers, model.geometry.dtype, tp);
    let cell = i64::try_from(cell.full.0.checked_add(cell.index.0)?).ok().filter(|c| *c > 0)?;
    let start = start?;
    let (before, (_, after)) = (start.base()?, start.after?);
    let budget = tokens.checked_mul(cell)?;
    let fraction = 1.0 - after.bytes.saturating_sub(budget) as f64 / before.bytes as f64;
    (fraction > 0.0 && fraction < 1.0).then(|| {
        let text = format!(
            "{tokens} tokens × {cell} B = {}; 1 − ({} + {}) / {} = {fraction:.3} was in force",
            size(Amount::exact(budget)),
            size(after),
            size(Amount::exact(budget.saturating_neg())),
            size(before)
        );
        (fraction, text)
    })
}

fn cap_above_pool(event: &Event, asked: i64, profiled: i64) -> Finding {
    let headline = format!("--max-total-tokens {asked} has no effect: {profiled} tokens fit");
    Finding::new("pool-too-small", Cause::PoolTooSmall, Phase::None, headline)
        .level(Level::Note)
        .sure(Confidence::Certain, 15)
        .seen(event)
        .int("profiled_tokens", profiled)
        .useless("--max-total-tokens", Some(Move::Raise), "a cap only makes the pool smaller")
}

/// After loading nothing is free, though no refusal is in the log: it was cut before it.
pub(super) fn nothing_after_load(case: &Case) -> Vec<Finding> {
    let refused = case.sglang().any(|(_, line)| {
        matches!(line, Sglang::WeightsLeaveNothing { .. } | Sglang::NotEnoughMemory { .. })
    });
    let starts = Start::all(case);
    let full = starts.iter().find_map(|start| {
        let (event, after) = start.after?;
        (after.bytes < gib(1) / 10 && start.pool_end.is_none()).then_some((event, start))
    });
    match full {
        Some((event, start)) if !refused => {
            vec![too_big(event, &Settings::of(case), Some(start), 1.0)]
        }
        _ => Vec::new(),
    }
}
