//! What stands beside the KV pool at start: states of Mamba layers, LoRA buffers, the workspace of AITER.

use plimsoll_ingest::log::{Amount, Event, Kind, Sglang, System};

use super::levers::{FRACTION, Scale, gib};
use super::settings::Settings;
use super::start::{Mamba, Start};
use crate::oom::size;
use crate::{Case, Cause, Confidence, Direction, Finding, Level, Lever, Move, Phase};

/// What the workspace of the AITER backend took of the KV bytes in a start that printed both (51.75 GiB of 152.9).
const AITER_SHARE: f64 = 0.34;

/// Whether the log shows a failure whose text is missing or says nothing of memory.
fn failed_without_text(case: &Case) -> Option<&Event> {
    let spoken = case.events().any(|event| {
        matches!(&event.kind, Kind::TorchOom(_) | Kind::System(System::DeviceError { .. }))
    });
    if spoken {
        return None;
    }
    case.events().find(|event| match &event.kind {
        Kind::Sglang(Sglang::SchedulerException) => true,
        Kind::System(System::Exit { code }) => *code != 0,
        _ => false,
    })
}

/// States of Mamba layers, and their copies for draft tokens, decide what is left.
pub(super) fn mamba(case: &Case) -> Vec<Finding> {
    let starts = Start::all(case);
    let Some((start, mamba)) = starts.iter().find_map(|s| Some((s, s.mamba?))) else {
        return Vec::new();
    };
    let all = mamba.states + mamba.intermediate;
    let copies =
        mamba.intermediate.bytes / 2 > mamba.states.bytes && mamba.intermediate.bytes > gib(4);
    let pool = start.pool_bytes().map_or(0, |pool| pool.bytes);
    match failed_without_text(case) {
        Some(event) if copies || all.bytes > pool => vec![mamba_failed(case, start, mamba, event)],
        _ => Vec::new(),
    }
}

fn mamba_failed(case: &Case, start: &Start<'_>, mamba: Mamba<'_>, event: &Event) -> Finding {
    let settings = Settings::of(case);
    let headline = format!(
        "it died after {} of Mamba states, of which {} are copies for draft tokens",
        size(mamba.states + mamba.intermediate),
        size(mamba.intermediate)
    );
    let mut finding = Finding::new("mamba-state", Cause::MambaState, Phase::Capture, headline)
        .also(&[Cause::DraftNotBudgeted, Cause::GraphsOrWorkspace])
        .because(
            "The text of the failure is not in the log. Copies of the state are slots × draft tokens × state, \
             beside the states; then the draft's own pool and several captures follow.",
        )
        .sure(Confidence::Likely, 72)
        .seen(mamba.event)
        .seen(event)
        .fraction(Direction::Lower);
    if mamba.states.bytes > 0 {
        let times = mamba.intermediate.bytes as f64 / mamba.states.bytes as f64;
        finding = finding.sum(format!(
            "{} of copies = {times:.1} × {} of states",
            size(mamba.intermediate),
            size(mamba.states)
        ));
    }
    let graphs =
        start.graphs.iter().map(|(_, usage)| usage.bytes.max(0)).fold(0, i64::saturating_add);
    if graphs > 0 {
        finding = finding.sum(format!(
            "{} captures took {} after it",
            start.graphs.len(),
            size(Amount::exact(graphs))
        ));
    }
    let slots = Lever::new("--max-mamba-cache-size", Move::Lower);
    let slots = match mamba.slots.filter(|slots| *slots > 1) {
        Some(slots) => {
            let half = Amount::exact((mamba.states + mamba.intermediate).bytes / 2);
            Lever::new("--max-mamba-cache-size", Move::Lower)
                .to(slots / 2)
                .gives(format!("{} back", size(half)))
        }
        None => slots.gives("states and copies shrink with the slots"),
    };
    finding
        .set(slots)
        .set(
            Lever::new("--speculative-num-draft-tokens", Move::Lower)
                .gives("copies shrink with the draft tokens"),
        )
        .set(Scale::of(case, &settings, Some(start), None).lower(None))
}

/// It failed right after the weights with LoRA on, and no text says of what.
pub(super) fn lora(case: &Case) -> Vec<Finding> {
    let settings = Settings::of(case);
    let pooled = case.sglang().any(|(_, line)| {
        matches!(
            line,
            Sglang::KvAllocated { .. }
                | Sglang::PoolEnd { .. }
                | Sglang::Summary { .. }
                | Sglang::NotEnoughMemory { .. }
                | Sglang::WeightsLeaveNothing { .. }
        )
    });
    let Some(event) = failed_without_text(case).filter(|_| settings.lora.yes() && !pooled) else {
        return Vec::new();
    };
    let headline = "it died between the weights and the pool, where LoRA takes its buffers; the log has no text of it";
    vec![
        Finding::new("lora-buffers", Cause::LoraBuffers, Phase::Sizing, headline)
            .also(&[Cause::WeightsAboveFraction, Cause::ModelTooBig, Cause::NotMemory])
            .because(
                "LoRA buffers are slots × rank × the adapted layers, for every rank, before the pool is sized. \
                 The traceback above the line decides.",
            )
            .sure(Confidence::Possible, 50)
            .seen(event)
            .fraction(Direction::Unknown)
            .set(Lever::new("--max-loras-per-batch", Move::Lower).to(1).gives("one slot"))
            .set(Lever::new("--max-lora-rank", Move::Lower).gives("the rank that the adapters have"))
            .set(Lever::new("--lora-target-modules", Move::Set).gives("only the layers that they adapt")),
    ]
}

/// The AITER backend takes a workspace that grows with the pool, after it, and the start ends there.
///
/// Source: SGLang before the workspace was subtracted from the budget, `AiterAttnBackend`.
pub(super) fn aiter(case: &Case) -> Vec<Finding> {
    let settings = Settings::of(case);
    if settings.attention.as_deref() != Some("aiter") || went_on(case) {
        return Vec::new();
    }
    let Some(start) = Start::tightest(case) else { return Vec::new() };
    let Some(pool) = start.pool_bytes() else { return Vec::new() };
    let left = start.pool_end.map(|(_, left)| left).or_else(|| Some(start.after?.1 - pool));
    let left = left.or_else(|| start.base().map(|base| base - pool));
    let workspace = Amount::exact((pool.bytes as f64 * AITER_SHARE) as i64);
    // Without a reading after the pool the share of the pool alone decides.
    if left.is_some_and(|left| workspace.bytes <= left.bytes) {
        return Vec::new();
    }
    let failed = case.torch_ooms().next().is_some();
    let headline = format!(
        "AITER's workspace grows with the pool: about {} for {} of KV, and {} are left",
        size(workspace),
        size(pool),
        left.map_or("an unknown amount".to_owned(), size)
    );
    let mut finding =
        Finding::new("attention-workspace", Cause::AttentionWorkspace, Phase::Capture, headline)
            .also(&[Cause::GraphsOrWorkspace])
            .because(
                "It is taken after the pool and is not in the budget. The start ends here, before any capture.",
            )
            .sure(Confidence::Likely, if failed { 93 } else { 68 })
            .fraction(Direction::Lower)
            .sum(format!("{} × {AITER_SHARE} = {}", size(pool), size(workspace)))
            .int("workspace_bytes_estimated", workspace.bytes);
    if let Some((event, tokens, _)) = start.pools.first() {
        finding = finding.seen(event);
        if let Some(left) = left {
            let whole = (pool + left).bytes as f64;
            // KV and workspace together must leave a tenth of what there is.
            let fit = (tokens.unwrap_or(0) as f64 * whole * 0.9
                / (pool.bytes as f64 * (1.0 + AITER_SHARE))) as u64;
            let fit = fit / 100_000 * 100_000;
            if fit > 0 {
                finding = finding.set(
                    Lever::new("--max-total-tokens", Move::Lower)
                        .to(fit)
                        .gives("pool and workspace then leave a tenth of what there is"),
                );
            }
        }
    }
    if let Some((event, _)) = start.pool_end {
        finding = finding.seen(event);
    }
    vec![
        finding
            .set(
                Scale::of(case, &settings, Some(&start), None)
                    .lower(left.map(|left| workspace - left)),
            )
            .set(
                Lever::new("--attention-backend", Move::Set)
                    .to("triton")
                    .gives("no such workspace"),
            )
            .useless(FRACTION, Some(Move::Raise), "a larger pool needs a larger workspace"),
    ]
}

fn went_on(case: &Case) -> bool {
    case.sglang().any(|(_, line)| {
        matches!(
            line,
            Sglang::Capturing { .. }
                | Sglang::CaptureBegin { .. }
                | Sglang::CaptureEnd { .. }
                | Sglang::Summary { .. }
                | Sglang::Ready
        )
    })
}

/// `max_running_requests … capped` by state slots.
pub(super) fn capped_by_state(case: &Case) -> Vec<Finding> {
    let found = case.sglang().find_map(|(event, line)| match line {
        Sglang::RunningCapped { asked, left } if event.text.contains("mamba") => {
            Some((event, *asked, *left))
        }
        _ => None,
    });
    let Some((event, asked, left)) = found else { return Vec::new() };
    let words = |n: Option<u64>| n.map_or("fewer".to_owned(), |n| n.to_string());
    let headline = format!(
        "state slots, not the KV pool, limit the running requests to {} (asked: {})",
        words(left),
        words(asked)
    );
    vec![
        Finding::new("mamba-state", Cause::MambaState, Phase::Decode, headline)
            .also(&[Cause::PoolTooSmall])
            .level(Level::Note)
            .sure(Confidence::Certain, 28)
            .seen(event)
            .set(
                Lever::new("--max-mamba-cache-size", Move::Raise)
                    .gives("several slots serve one request"),
            )
            .useless(FRACTION, None, "the number of slots is what limits"),
    ]
}
