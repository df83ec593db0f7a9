//! The pool of token slots is full: refusals, retractions, lost slots. Slots, not bytes: no device memory is
//! short here.

use plimsoll_core::units::group_thousands;
use plimsoll_ingest::log::{Activity, Amount, Event, Sglang};

use super::levers::{FRACTION, Scale};
use super::settings::Settings;
use super::start::Start;
use crate::oom::size;
use crate::{Case, Cause, Confidence, Direction, Finding, Level, Lever, Move, Phase};

/// `Prefill out of memory`: admitted, and then no slots.
pub(super) fn prefill_exhausted(case: &Case) -> Vec<Finding> {
    let found = case.sglang().find_map(|(event, line)| match line {
        Sglang::PrefillPoolExhausted { tokens } => Some((event, *tokens)),
        _ => None,
    });
    let Some((event, tokens)) = found else { return Vec::new() };
    let settings = Settings::of(case);
    let headline = match tokens {
        Some(tokens) => format!(
            "a prefill was admitted that the token pool could not hold: {} slots asked",
            group_thousands(tokens)
        ),
        None => "a prefill was admitted that the token pool could not hold".to_owned(),
    };
    let mut finding = Finding::new("scheduler-bug", Cause::SchedulerBug, Phase::Retraction, headline)
        .also(&[Cause::PoolTooSmall, Cause::MisleadingMessage])
        .because(
            "\"Out of memory\" means slots of the pool here. Admission counts tokens, the allocator whole pages, \
             and requests in transfer hold slots that no running request shows.",
        )
        .sure(Confidence::Likely, 92)
        .seen(event)
        .set(
            Lever::new("--page-size", Move::Lower)
                .gives("each request wastes up to a page less one token"),
        )
        .set(Lever::new("--max-running-requests", Move::Lower).gives("fewer requests hold slots at once"))
        .useless(FRACTION, Some(Move::Lower), "a smaller pool is exhausted sooner; no bytes were short");
    if let Some(page) = settings.page_size.filter(|page| *page > 1)
        && let Some(requests) = largest(case, |a| a.prefill_requests.most)
    {
        finding = finding.sum(format!(
            "{requests:.0} requests × ({page} − 1) = up to {:.0} slots that admission does not see",
            requests * (page - 1) as f64
        ));
    }
    if let Some(moving) = largest(case, |a| a.transferring.most) {
        finding = finding
            .sum(format!("{moving:.0} requests were in transfer and held their slots"))
            .int("transferring_requests", moving as i64);
    }
    if let Some(usage) = largest(case, |a| a.usage.most) {
        finding =
            finding.sum(format!("pool usage before it: {usage:.2}")).float("pool_usage", usage);
    }
    vec![finding]
}

/// Largest of a figure over the ranks, where any printed it above zero.
fn largest(case: &Case, figure: impl Fn(&Activity) -> f64) -> Option<f64> {
    case.log.activity.values().map(figure).filter(|value| *value > 0.0).reduce(f64::max)
}

/// `Decode out of memory`, also after every other request was retracted.
pub(super) fn decode_exhausted(case: &Case) -> Vec<Finding> {
    let found = case.sglang().find_map(|(event, line)| {
        matches!(line, Sglang::DecodePoolExhausted { .. }).then_some(event)
    });
    let Some(event) = found else { return Vec::new() };
    let alone = event.text.contains("after retracting");
    // The scheduler retracts until the next step fits, so a full pool is no reason for this text by itself.
    let full = largest(case, |a| a.usage.most).is_some_and(|usage| usage >= 0.98);
    if !alone && !full {
        return vec![admitted_too_much(case, event)];
    }
    let headline = if alone {
        "one request alone needs more slots than the token pool has"
    } else {
        "decoding ran out of slots of the token pool"
    };
    let finding = Finding::new("pool-too-small", Cause::PoolTooSmall, Phase::Retraction, headline)
        .also(&[Cause::PreemptionStorm, Cause::SchedulerBug])
        .because("Slots of the pool are out, not bytes of the device.")
        .sure(if alone { Confidence::Certain } else { Confidence::Likely }, 92)
        .seen(event)
        .fraction(Direction::Raise);
    vec![larger_pool(case, finding).useless(
        FRACTION,
        Some(Move::Lower),
        "a smaller pool is exhausted sooner",
    )]
}

fn admitted_too_much(case: &Case, event: &Event) -> Finding {
    let headline =
        "a batch was let through that the token pool could not hold, though it was not full";
    let mut finding =
        Finding::new("scheduler-bug", Cause::SchedulerBug, Phase::Retraction, headline)
            .also(&[Cause::PoolTooSmall, Cause::PreemptionStorm, Cause::MisleadingMessage])
            .because(
                "Slots of the pool are out, not bytes of the device. Before each step the scheduler retracts until \
                 the step fits: that this one did not is a fault of its count.",
            )
            .sure(Confidence::Likely, 91)
            .seen(event)
            .set(Lever::new("--max-running-requests", Move::Lower).gives("fewer requests hold slots at once"))
            .set(Lever::new("--disable-overlap-schedule", Move::Set).gives("no step is under way while slots are counted"))
            .useless(FRACTION, Some(Move::Lower), "a smaller pool is exhausted sooner");
    if let Some(usage) = largest(case, |a| a.usage.most) {
        finding =
            finding.sum(format!("pool usage before it: {usage:.2}")).float("pool_usage", usage);
    }
    finding
}

/// What makes the pool larger, or less of it needed.
fn larger_pool(case: &Case, mut finding: Finding) -> Finding {
    let settings = Settings::of(case);
    let start = Start::tightest(case);
    let scale = Scale::of(case, &settings, start.as_ref(), None);
    let left = start.as_ref().and_then(Start::last_free);
    let mut raise = Lever::new(FRACTION, Move::Raise);
    if let Some(fraction) = settings.fraction.filter(|f| *f < 0.97) {
        raise = raise.to(format!("{:.2}", fraction + 0.02));
        if let (Some(base), Some((event, free))) = (scale.base, left) {
            let step = Amount::exact((0.02 * base.bytes as f64) as i64);
            let tokens = scale.cell.map_or(String::new(), |cell| {
                format!(" ({} tokens)", group_thousands((step.bytes / cell).unsigned_abs()))
            });
            raise = raise.gives(format!(
                "{} more for the pool{tokens}; {} stay free of {}",
                size(step),
                size(free - step),
                size(free)
            ));
            finding = finding.seen(event);
        }
    }
    if raise.gives.is_none() {
        raise = raise.gives("by 0.02 at a time, while what is left covers the largest prefill");
    }
    finding
        .set(raise)
        .set(
            Lever::new("--kv-cache-dtype", Move::Set)
                .to("fp8_e4m3")
                .gives("half the bytes a token"),
        )
        .set(
            Lever::new("--max-running-requests", Move::Lower)
                .gives("fewer requests share the pool"),
        )
}

/// `alloc_req_slots runs out of memory`.
pub(super) fn request_slots(case: &Case) -> Vec<Finding> {
    let found = case
        .sglang()
        .find_map(|(event, line)| matches!(line, Sglang::RequestSlotsExhausted).then_some(event));
    let Some(event) = found else { return Vec::new() };
    let headline = "more requests were admitted than the request table has rows";
    vec![
        Finding::new("scheduler-bug", Cause::SchedulerBug, Phase::Retraction, headline)
            .also(&[Cause::PoolTooSmall, Cause::RequestTable, Cause::MisleadingMessage])
            .because("Rows of a table are out, not memory of the device.")
            .sure(Confidence::Likely, 91)
            .seen(event)
            .set(Lever::new("--max-running-requests", Move::Lower).gives("fewer admitted at once"))
            .useless(FRACTION, None, "the table does not depend on it"),
    ]
}

/// A retraction line: requests, and the share of the longest answer reserved before and after.
type Retraction<'a> = (&'a Event, u64, Option<(f64, f64)>);

/// Retractions: requests are thrown out and computed again.
pub(super) fn retractions(case: &Case) -> Vec<Finding> {
    let lines: Vec<Retraction<'_>> = case
        .sglang()
        .filter_map(|(event, line)| match line {
            Sglang::Retract { requests, ratio, .. } => Some((event, *requests, *ratio)),
            _ => None,
        })
        .collect();
    let sum = |figure: fn(&Activity) -> u64| {
        case.log.activity.values().map(figure).fold(0, u64::saturating_add)
    };
    let counted = sum(|a| a.retractions);
    let times = counted.max(lines.len() as u64);
    if times == 0 {
        return Vec::new();
    }
    let listed = lines.iter().map(|(_, requests, _)| *requests).fold(0, u64::saturating_add);
    let thrown = sum(|a| a.retracted_requests).max(listed);
    let batches = sum(|a| a.running.count);
    // The scheduler starts optimistic and learns from each retraction: a few are its way of working.
    let storm = times.saturating_mul(20) >= batches;
    let headline = format!(
        "the token pool was full {times} times and {} requests were thrown out, to be computed again",
        group_thousands(thrown)
    );
    let level = if storm { Level::Warning } else { Level::Note };
    let mut finding =
        Finding::new("preemption-storm", Cause::PreemptionStorm, Phase::Retraction, headline)
            .also(&[Cause::PoolTooSmall])
            .level(level)
            .sure(Confidence::Likely, if storm { 60 } else { 30 })
            .fraction(Direction::Raise)
            .int("retractions", i64::try_from(times).unwrap_or(i64::MAX))
            .int("retracted_requests", i64::try_from(thrown).unwrap_or(i64::MAX));
    if let Some((event, _, ratio)) = lines.last() {
        finding = finding.seen(event);
        if let Some((_, after)) = ratio {
            finding = finding.sum(format!(
                "the scheduler now reserves {after:.2} of each request's longest answer"
            ));
        }
    }
    finding = larger_pool(case, finding);
    vec![
        finding.set(
            Lever::new("--schedule-conservativeness", Move::Raise)
                .to("1.3")
                .gives("admits later instead of throwing out"),
        ),
    ]
}

/// `Input length (… tokens) exceeds the maximum allowed length (… tokens)`.
pub(super) fn input_too_long(case: &Case) -> Vec<Finding> {
    let found = case.sglang().find_map(|(event, line)| match line {
        Sglang::InputTooLong { input, limit } => Some((event, *input, *limit)),
        _ => None,
    });
    let Some((event, input, limit)) = found else { return Vec::new() };
    let settings = Settings::of(case);
    // The limit is the smaller of context length and pool, each less a few tokens.
    let by_context = settings
        .context
        .is_some_and(|context| limit <= context && context - limit <= 64 + context / 1000);
    if by_context {
        return vec![longer_than_context(event, input, limit)];
    }
    let times = input as f64 / limit.max(1) as f64;
    let headline = format!(
        "a request of {} tokens was refused: the pool holds {}",
        group_thousands(input),
        group_thousands(limit)
    );
    let finding = Finding::new("pool-too-small", Cause::PoolTooSmall, Phase::Refused, headline)
        .because("The limit is the size of the token pool, not the context length; the server itself is fine.")
        .sure(Confidence::Certain, 55)
        .seen(event)
        .sum(format!(
            "{} / {} = {times:.2}: the pool would have to be so many times larger",
            group_thousands(input),
            group_thousands(limit)
        ))
        .int("input_tokens", i64::try_from(input).unwrap_or(i64::MAX))
        .int("limit_tokens", i64::try_from(limit).unwrap_or(i64::MAX))
        .fraction(Direction::Raise);
    vec![
        larger_pool(case, finding)
            .set(Lever::new("--tp", Move::Raise).gives("weights shrink, pools grow"))
            .useless("--context-length", Some(Move::Raise), "it does not make the pool larger"),
    ]
}

fn longer_than_context(event: &Event, input: u64, limit: u64) -> Finding {
    let headline = format!(
        "a request of {} tokens is longer than the context length allows ({})",
        group_thousands(input),
        group_thousands(limit)
    );
    Finding::new("not-memory", Cause::NotMemory, Phase::Refused, headline)
        .also(&[Cause::PoolTooSmall])
        .level(Level::Note)
        .sure(Confidence::Certain, 35)
        .seen(event)
        .set(Lever::new("--context-length", Move::Raise).gives("where the model allows it"))
        .useless(FRACTION, None, "the limit is the context length")
}

/// The pool is smaller than one request of the context length.
pub(super) fn smaller_than_context(case: &Case) -> Vec<Finding> {
    let settings = Settings::of(case);
    let summary = case.sglang().find_map(|(event, line)| match line {
        Sglang::Summary { max_total_num_tokens, context_len, .. } => {
            Some((event, *max_total_num_tokens, *context_len))
        }
        _ => None,
    });
    let Some((event, tokens, printed)) = summary else { return Vec::new() };
    let Some(context) = printed.or(settings.context_given) else { return Vec::new() };
    if tokens >= context || settings.max_total_tokens.is_some_and(|cap| cap <= context) {
        return Vec::new();
    }
    // Without the user asking for the context, a smaller pool is a remark: below what a whole start tells, above
    // what a log without readings can say.
    let (level, weight) =
        if settings.context_given.is_some() { (Level::Warning, 40) } else { (Level::Note, 25) };
    let headline = format!(
        "the pool holds {} tokens, {} fewer than one request of the context length",
        group_thousands(tokens),
        group_thousands(context - tokens)
    );
    // Whether the fraction can give so much: by what is free at the end, the reserve of a prefill left alone.
    let start = Start::tightest(case);
    let scale = Scale::of(case, &settings, start.as_ref(), None);
    let wanted = scale
        .cell
        .map(|cell| cell.saturating_mul(i64::try_from(context - tokens).unwrap_or(i64::MAX)));
    let free = start.as_ref().and_then(Start::last_free).map(|(_, free)| free.bytes);
    let reachable = wanted.zip(free).map(|(wanted, free)| wanted <= free / 2);
    let direction = match reachable {
        Some(true) => Direction::Raise,
        _ => Direction::NoEffect,
    };
    let mut finding = Finding::new("pool-too-small", Cause::PoolTooSmall, Phase::Refused, headline)
        .also(&[Cause::ModelTooBig])
        .level(level)
        .sure(Confidence::Certain, weight)
        .seen(event)
        .fraction(direction)
        .int("pool_tokens", i64::try_from(tokens).unwrap_or(i64::MAX))
        .int("context_tokens", i64::try_from(context).unwrap_or(i64::MAX));
    if let (Some(wanted), Some(free)) = (wanted, free) {
        finding = finding.sum(format!(
            "{} more are needed for it, {} are free",
            size(Amount::exact(wanted)),
            size(Amount::exact(free))
        ));
    }
    if direction == Direction::Raise {
        return vec![larger_pool(case, finding)];
    }
    vec![
        finding
            .set(
                Lever::new("--kv-cache-dtype", Move::Set)
                    .to("fp8_e4m3")
                    .gives("half the bytes a token"),
            )
            .set(Lever::new("--tp", Move::Raise).gives("weights shrink, pools grow"))
            .set(
                Lever::new("--context-length", Move::Lower)
                    .to(tokens)
                    .gives("refuses early what cannot fit"),
            )
            .useless(FRACTION, None, "what is free does not reach that far"),
    ]
}

/// Running requests were cut to what the pool can hold.
pub(super) fn running_capped(case: &Case) -> Vec<Finding> {
    let found = case.sglang().find_map(|(event, line)| match line {
        Sglang::RunningCapped { asked: Some(asked), left: Some(left) }
            if !event.text.contains("mamba") =>
        {
            Some((event, *asked, *left))
        }
        _ => None,
    });
    let Some((event, asked, left)) = found else { return Vec::new() };
    let headline = format!("the pool holds {left} running requests, not the {asked} asked for");
    let finding = Finding::new("pool-too-small", Cause::PoolTooSmall, Phase::Sizing, headline)
        .level(Level::Note)
        .sure(Confidence::Certain, 28)
        .seen(event)
        .fraction(Direction::Raise);
    vec![larger_pool(case, finding)]
}

/// The pool's own check found slots that nobody holds.
pub(super) fn lost_slots(case: &Case) -> Vec<Finding> {
    let found =
        case.sglang().find_map(|(event, line)| matches!(line, Sglang::PoolLeak).then_some(event));
    let Some(event) = found else { return Vec::new() };
    let headline = "the token pool lost slots: its own check found some that no request holds";
    vec![
        Finding::new("leak", Cause::Leak, Phase::Leak, headline)
            .also(&[Cause::SchedulerBug, Cause::AccountingBug])
            .because(
                "A fault of this release in counting slots; memory of the device is not short.",
            )
            .sure(Confidence::Likely, 93)
            .seen(event)
            .set(
                Lever::new("--disable-radix-cache", Move::Set)
                    .gives("takes the prefix cache out of it"),
            )
            .useless(FRACTION, None, "slots are lost at any size of the pool"),
    ]
}
