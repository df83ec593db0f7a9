//! While it serves: preemption, swap, and what a log says beside failures.

use plimsoll_core::units::group_thousands;
use plimsoll_ingest::log::{Server, Vllm};

use super::figures::Figures;
use super::levers::{self, UTILIZATION};
use super::settings::Settings;
use crate::{Case, Cause, Confidence, Direction, Finding, Level, Lever, Move, Phase};

/// Preemptions below this are noise of a full pool, not a storm: vLLM prints every fiftieth.
const STORM: u64 = 50;

/// Requests are thrown out of a full pool: the first engine's line, the second engine's counter.
pub(super) fn preemption(case: &Case) -> Vec<Finding> {
    let line = case.vllm().rev().find_map(|(event, line)| match line {
        Vllm::Preempted { mode, total } if *total != Some(0) => {
            Some((event, mode.as_deref(), *total))
        }
        _ => None,
    });
    if case.server() != Some(Server::Vllm) {
        return Vec::new();
    }
    let counted: u64 = case.log.activity.values().map(|activity| activity.retracted_requests).sum();
    if line.is_none() && counted == 0 {
        return Vec::new();
    }
    let (settings, figures) = (Settings::of(case), Figures::of(case));
    let count = line.and_then(|(_, _, total)| total).unwrap_or(counted);
    let mut finding = Finding::new(
        "preemption-storm",
        Cause::PreemptionStorm,
        Phase::Retraction,
        format!("{} requests were thrown out of a full pool", group_thousands(count)),
    )
    .level(if line.is_some() || count >= STORM { Level::Warning } else { Level::Note })
    .also(&[Cause::PoolTooSmall, Cause::HostMemory])
    .sure(Confidence::Certain, 80)
    .because("What they had computed is lost and computed again; the pool holds fewer requests than run at once.")
    .fraction(Direction::Raise)
    .set(levers::raise(&settings, None).gives("a larger pool, if free memory outside it allows"))
    .set(levers::fewer_requests(&settings).gives("fewer requests share the pool, each to its end"))
    .set(levers::more_ranks(&settings, &figures));
    if let Some(usage) = peak_usage(case) {
        finding = finding.sum(format!("largest use of the pool seen: {:.1} %", usage * 100.0));
    }
    if let Some((event, mode, _)) = line {
        finding = finding.seen(event);
        if mode == Some("SWAP") {
            finding = finding.set(
                Lever::new("--swap-space", Move::Raise)
                    .gives("room on the host for requests that cannot be computed again"),
            );
        }
    }
    vec![finding]
}

/// `Aborted due to the lack of CPU swap space`: several sequences of one request share blocks and cannot be
/// computed again, so they are swapped.
pub(super) fn no_swap_space(case: &Case) -> Vec<Finding> {
    let Some((event, _)) = case.vllm().find(|(_, line)| matches!(line, Vllm::NoSwapSpace)) else {
        return Vec::new();
    };
    let settings = Settings::of(case);
    let mut finding = Finding::new(
        "preemption-storm",
        Cause::PreemptionStorm,
        Phase::Retraction,
        "the pool was full and so was the swap space on the host",
    )
    .also(&[Cause::HostMemory, Cause::PoolTooSmall])
    .sure(Confidence::Certain, 90)
    .because(
        "Requests with several sequences (n, best_of, beams) are swapped to the host when they are preempted; its \
         limit is --swap-space, not what the host has free.",
    )
    .seen(event)
    .fraction(Direction::Raise)
    .set(levers::fewer_requests(&settings).gives("fewer requests share the pool"))
    .set(Lever::new("--swap-space", Move::Raise).gives("GiB a rank on the host for preempted requests"))
    .set(levers::raise(&settings, None).gives("a larger pool"));
    if let Some(usage) = peak_usage(case) {
        finding = finding.sum(format!("largest use of the pool seen: {:.1} %", usage * 100.0));
    }
    vec![finding]
}

fn peak_usage(case: &Case) -> Option<f64> {
    let most = case.log.activity.values().map(|a| a.usage.most).fold(0.0_f64, f64::max);
    (most > 0.0).then_some(most)
}

/// On models with state or window layers, tokens ÷ max_model_len is not the number of requests that fit.
pub(super) fn hybrid_pool(case: &Case) -> Vec<Finding> {
    let layout = case.vllm().find(|(_, line)| matches!(line, Vllm::HybridLayout { .. }));
    let (settings, figures) = (Settings::of(case), Figures::of(case));
    let (Some((event, _)), Some((tokens, line)), Some(times), Some(length)) =
        (layout, figures.tokens, figures.times, settings.max_model_len.filter(|l| *l > 0))
    else {
        return Vec::new();
    };
    let quotient = tokens as f64 / length as f64;
    if (quotient - times).abs() < 0.02 * times.max(1.0) {
        return Vec::new();
    }
    vec![
        Finding::new(
            "misleading-message",
            Cause::MisleadingMessage,
            Phase::None,
            format!("{times} requests of {} fit; tokens ÷ length says {quotient:.2}", levers::tokens(length)),
        )
        .level(Level::Note)
        .sure(Confidence::Certain, 10)
        .because("The model has layers whose state does not grow with the context; the printed concurrency counts them, the tokens do not.")
        .sum(format!("{} ÷ {length} = {quotient:.2}, printed {times}", levers::tokens(tokens)))
        .seen(event)
        .seen(line)
        .useless(UTILIZATION, None, "nothing is wrong"),
    ]
}

/// Sleep mode's allocator keeps memory that some releases count as not taken, so the pool comes out too large.
pub(super) fn sleep_mode(case: &Case) -> Vec<Finding> {
    let (settings, figures) = (Settings::of(case), Figures::of(case));
    let (true, Some((kv, event)), None) = (settings.sleep, figures.kv, settings.kv_bytes) else {
        return Vec::new();
    };
    let served = case.vllm().any(|(_, line)| matches!(line, Vllm::Ready | Vllm::CaptureEnd { .. }));
    if served || kv.bytes <= 0 {
        return Vec::new();
    }
    vec![
        Finding::new(
            "wrong-capacity",
            Cause::WrongOrUnknownCapacity,
            Phase::Sizing,
            format!("with sleep mode the pool of {kv} may be larger than what there is"),
        )
        .level(Level::Warning)
        .also(&[Cause::AccountingBug, Cause::GraphsOrWorkspace])
        .sure(Confidence::Possible, 65)
        .because(
            "Its allocator inflates what PyTorch counts as reserved; what grew outside PyTorch then comes out too small \
             or below zero, and the pool too large. A start without it shows the right figure.",
        )
        .seen(event)
        .fraction(Direction::Lower)
        .set(
            Lever::new(levers::KV_BYTES, Move::Set)
                .gives("the pool of a start without sleep mode, in bytes"),
        )
        .set(levers::lower(&settings, &figures, None))
        .set(Lever::new("--enable-sleep-mode", Move::Unset).gives("the right count"))
        .useless(
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
            Some(Move::Set),
            "sleep mode's allocator refuses it",
        ),
    ]
}

/// The profile run is shorter than the encoder's worst case: it failed there, or a large image will.
pub(super) fn encoder_worst(case: &Case) -> Vec<Finding> {
    let budget = case.vllm().find_map(|(event, line)| match line {
        Vllm::EncoderBudget { worst: Some(worst), profiled } => Some((event, *worst, *profiled)),
        _ => None,
    });
    let Some((event, worst, profiled)) = budget else { return Vec::new() };
    let ended = case.vllm().find(|(_, line)| matches!(line, Vllm::EngineFailed));
    let oom = case.torch_ooms().next();
    let died = ended.is_some() || oom.is_some();
    let settings = Settings::of(case);
    let mut finding = Finding::new(
        "encoder",
        Cause::Encoder,
        Phase::Encoder,
        format!("the encoder's worst case is {}", levers::tokens(worst)),
    )
    .level(if died { Level::Error } else { Level::Warning })
    .also(&[Cause::ProfileRunPeak, Cause::ModelTooBig])
    .sure(if died { Confidence::Likely } else { Confidence::Possible }, 88)
    .because(
        "The profile run encodes the largest images or videos that the limits allow. It runs before the fraction is \
         applied, so no fraction makes room for it.",
    )
    .seen(event)
    .fraction(Direction::NoEffect)
    .set(
        Lever::new("--mm-processor-kwargs", Move::Set)
            .to("'{\"max_pixels\":602112}'")
            .gives("at most 768 tokens an image where a patch of 28 × 28 pixels is a token"),
    )
    .set(Lever::new("--limit-mm-per-prompt", Move::Lower).gives("the worst case in proportion"))
    .set(levers::smaller_batch(&settings, &Figures::of(case)))
    .useless(UTILIZATION, Some(Move::Raise), "the profile run comes before the fraction is applied");
    if let Some(profiled) = profiled {
        finding = finding.sum(format!(
            "{} in the worst case, {} profiled",
            levers::tokens(worst),
            levers::tokens(profiled)
        ));
    }
    for event in [ended.map(|(e, _)| e), oom.map(|(e, _)| e)].into_iter().flatten() {
        finding = finding.seen(event);
    }
    vec![finding]
}

/// Each running request holds a block of state, and there are fewer blocks than requests allowed.
pub(super) fn mamba_blocks(case: &Case) -> Vec<Finding> {
    let refusal = case.vllm().find_map(|(event, line)| match line {
        Vllm::MambaBlocks { requests, blocks } => Some((event, *requests, *blocks)),
        _ => None,
    });
    let Some((event, requests, blocks)) = refusal else { return Vec::new() };
    let settings = Settings::of(case);
    vec![
        Finding::new(
            "mamba-state",
            Cause::MambaState,
            Phase::Capture,
            format!("the pool has {blocks} blocks of state, and {requests} requests may run"),
        )
        .also(&[Cause::PoolTooSmall])
        .sure(Confidence::Certain, 95)
        .because(
            "Layers with a state of fixed size take a block of the pool for every running request.",
        )
        .sum(format!(
            "{requests} allowed − {blocks} blocks = {} too many",
            requests.saturating_sub(blocks)
        ))
        .seen(event)
        .fraction(Direction::Raise)
        .set(
            Lever::new("--max-num-seqs", Move::Lower).to(blocks).gives(
                "as many requests as there are blocks; fewer leave tokens for their contexts",
            ),
        )
        .set(levers::raise(&settings, None).gives("blocks in proportion to the pool"))
        .useless(
            "--max-model-len",
            Some(Move::Lower),
            "a state has the same size at any length",
        ),
    ]
}

/// One image or video is larger than the encoder cache: that request is refused, the server lives.
pub(super) fn encoder_item(case: &Case) -> Vec<Finding> {
    let refusal = case.vllm().find_map(|(event, line)| match line {
        Vllm::EncoderItemTooLarge { tokens, limit } => Some((event, *tokens, *limit)),
        _ => None,
    });
    let Some((event, tokens, limit)) = refusal else { return Vec::new() };
    let named = |count: Option<u64>| count.map_or("more".to_owned(), levers::tokens);
    let lever = Lever::new("--max-num-batched-tokens", Move::Raise);
    let lever = match tokens {
        Some(tokens) => lever.to(tokens.next_power_of_two()),
        None => lever,
    };
    vec![
        Finding::new(
            "encoder",
            Cause::Encoder,
            Phase::Refused,
            format!("one item of {} was refused, the encoder cache holds {}", named(tokens), named(limit)),
        )
        .level(Level::Warning)
        .sure(Confidence::Certain, 60)
        .because("The encoder cache is as large as a batch, or as the largest item that the limits allow.")
        .seen(event)
        .set(lever.gives("a larger encoder cache and a larger profile run"))
        .set(Lever::new("--mm-processor-kwargs", Move::Set).gives("smaller items"))
        .useless(UTILIZATION, None, "the cache does not follow the fraction"),
    ]
}

/// A workspace that was locked after warm-up must grow.
pub(super) fn workspace_locked(case: &Case) -> Vec<Finding> {
    let locked = case.vllm().find_map(|(event, line)| match line {
        Vllm::WorkspaceLocked { required, current } => Some((event, *required, *current)),
        _ => None,
    });
    let Some((event, required, current)) = locked else { return Vec::new() };
    let headline = match (required, current) {
        (Some(required), Some(current)) => {
            format!(
                "a workspace of {current} had to grow to {required} after warm-up had fixed its size"
            )
        }
        _ => "a workspace had to grow after warm-up had fixed its size".to_owned(),
    };
    vec![
        Finding::new("moe-workspace", Cause::MoeWorkspace, Phase::Prefill, headline)
            .also(&[Cause::AttentionWorkspace, Cause::AccountingBug])
            .sure(Confidence::Certain, 90)
            .because("Warm-up did not meet the largest batch; the size is fixed so that graphs keep their addresses.")
            .seen(event)
            .set(levers::smaller_batch(&Settings::of(case), &Figures::of(case)))
            .useless(UTILIZATION, None, "it is not refused for want of memory"),
    ]
}
