//! Graph capture and warm-up, after the pool is there: what the budget does not hold.

use plimsoll_core::units::{GIB, group_thousands};
use plimsoll_ingest::log::{Amount, Event, Kind, TorchOom, Vllm};

use super::figures::Figures;
use super::levers::{self, UTILIZATION};
use super::settings::Settings;
use crate::{Case, Cause, Confidence, Direction, Finding, Level, Lever, Move, Phase};

/// Bytes of a row's entry in the sampler's sort: a float32 copy and int64 indices.
const SORT_ENTRY: i64 = 12;
/// Vocabularies of published models lie between these.
const VOCABULARIES: std::ops::Range<i64> = 30_000..300_000;

/// `CUDA out of memory occurred when warming up sampler with … dummy requests`.
pub(super) fn sampler(case: &Case) -> Vec<Finding> {
    let warmup = case.vllm().find_map(|(event, line)| match line {
        Vllm::SamplerWarmup { requests } => Some((event, *requests)),
        _ => None,
    });
    let Some((event, rows)) = warmup else { return Vec::new() };
    let (settings, figures) = (Settings::of(case), Figures::of(case));
    let oom = case.torch_ooms().find(|(_, oom)| oom.requested.is_some());
    let missing = oom.and_then(|(_, oom)| Some(oom.requested? - oom.free?));
    let rows = rows.or(settings.max_num_seqs);
    let mut finding = Finding::new(
        "sampler-buffers",
        Cause::SamplerBuffers,
        Phase::Capture,
        headline(rows, oom.map(|(_, oom)| oom)),
    )
    .also(&[Cause::GraphsOrWorkspace, Cause::LoraBuffers])
    .sure(Confidence::Certain, 95)
    .because(
        "After the graphs, the server samples max_num_seqs rows once. The pool has taken the whole budget by then, so \
         graphs and these rows share what the fraction leaves outside.",
    )
    .seen(event)
    .fraction(Direction::Lower);
    if let Some((line, oom)) = oom {
        finding = finding.seen(line);
        finding = factored(finding, rows, oom);
    }
    if let Some((graphs, line)) = figures.graphs {
        finding = finding.sum(format!("{graphs} of graphs are outside the budget too")).seen(line);
    }
    finding = finding.set(rows_that_fit(rows, oom.map(|(_, oom)| oom)));
    if let Some(note) = lora_doubles(&settings, case) {
        finding = finding.sum(note);
    }
    vec![
        finding
            .set(levers::lower(&settings, &figures, missing))
            .useless(
                UTILIZATION,
                Some(Move::Raise),
                "less stays outside the budget, where this was asked for",
            )
            .useless(
                "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                Some(Move::Set),
                "the memory is taken, not in pieces",
            ),
    ]
}

fn headline(rows: Option<u64>, oom: Option<&TorchOom>) -> String {
    let rows =
        rows.map_or("its dummy requests".to_owned(), |rows| format!("{rows} dummy requests"));
    match oom.and_then(|oom| oom.requested.zip(oom.free)) {
        Some((asked, free)) => {
            format!("sampling {rows} at warm-up asked for {asked}, {free} were free")
        }
        None => format!("sampling {rows} at warm-up did not fit outside the pool"),
    }
}

/// The request as rows × vocabulary × 12 B identifies itself where a vocabulary comes out.
fn factored(finding: Finding, rows: Option<u64>, oom: &TorchOom) -> Finding {
    let (Some(rows), Some(asked)) = (rows.and_then(|rows| i64::try_from(rows).ok()), oom.requested)
    else {
        return finding;
    };
    let vocabulary = asked.bytes / (rows.max(1) * SORT_ENTRY);
    if !VOCABULARIES.contains(&vocabulary) {
        return finding;
    }
    let printed = group_thousands(u64::try_from(vocabulary).unwrap_or(0));
    finding.sum(format!(
        "{asked} = {rows} rows × about {printed} entries of the vocabulary × {SORT_ENTRY} B (float32 and int64)"
    ))
}

/// The largest power of two of rows whose request fits what was free, with a half to spare.
fn rows_that_fit(rows: Option<u64>, oom: Option<&TorchOom>) -> Lever {
    let lever = Lever::new("--max-num-seqs", Move::Lower);
    let Some(rows) = rows.filter(|rows| *rows > 1) else { return lever };
    let figures = oom.and_then(|oom| oom.requested.zip(oom.free)).filter(|(a, _)| a.bytes > 0);
    let fit = figures.map_or(rows as f64 / 4.0, |(asked, free)| {
        rows as f64 * (free.bytes as f64 / asked.bytes as f64) * 0.5
    });
    let power = 1_u64 << (fit.max(1.0) as u64).min(1 << 20).ilog2();
    let to = power.clamp(1, rows / 2);
    let gives = figures.map_or_else(
        || format!("{:.0} % of the rows, and fewer graphs", 100.0 * to as f64 / rows as f64),
        |(asked, _)| {
            let needs = asked.bytes as f64 * to as f64 / rows as f64 / GIB as f64;
            format!("the same request is {needs:.2} GiB, and there are fewer graphs")
        },
    );
    lever.to(to).gives(gives)
}

/// With LoRA every size is captured with and without adapters.
/// Source: vLLM 0.11.1 and later `CudagraphDispatcher`.
fn lora_doubles(settings: &Settings, case: &Case) -> Option<String> {
    let graphs = captured(case)?;
    settings.lora.then(|| {
        format!("{graphs} graphs of one mode: LoRA captures each size with and without adapters")
    })
}

fn captured(case: &Case) -> Option<u64> {
    case.vllm()
        .filter_map(|(_, line)| match line {
            Vllm::Capturing { progress: Some((_, all)), .. } => Some(*all),
            _ => None,
        })
        .max()
}

/// LoRA, and the log ends in the middle of capture or right behind it: graphs that the budget does not hold.
pub(super) fn lora_graphs(case: &Case) -> Vec<Finding> {
    let (settings, figures) = (Settings::of(case), Figures::of(case));
    if !settings.lora || finished(case) || failed(case) {
        return Vec::new();
    }
    let graphs = case.vllm().rev().find_map(|(event, line)| match line {
        Vllm::Capturing { progress, .. } => Some((event, progress.map(|(_, all)| all))),
        Vllm::GraphAddresses { count } => Some((event, Some(*count))),
        _ => None,
    });
    let Some((event, count)) = graphs else { return Vec::new() };
    let count = count.map_or(String::new(), |count| format!(" ({})", group_thousands(count)));
    vec![
        Finding::new(
            "outside-pool-too-small",
            Cause::GraphsOrWorkspace,
            Phase::Capture,
            format!("the log ends with graph capture{count}, which LoRA makes larger"),
        )
        .level(Level::Warning)
        .also(&[Cause::LoraBuffers, Cause::SamplerBuffers])
        .sure(Confidence::Possible, 60)
        .because(
            "Sizes are captured with and without adapters, outside the budget in releases that do not measure graphs \
             first; the next steps are sampling and the first request.",
        )
        .seen(event)
        .fraction(Direction::Lower)
        .set(levers::fewer_requests(&settings))
        .set(levers::lower(&settings, &figures, None))
        .set(Lever::new("--enforce-eager", Move::Set).gives("no graphs at all, slower decoding")),
    ]
}

fn finished(case: &Case) -> bool {
    case.vllm().any(|(_, line)| matches!(line, Vllm::CaptureEnd { .. } | Vllm::Ready))
        || case.log.activity.values().any(|activity| activity.lines.is_some())
}

fn failed(case: &Case) -> bool {
    case.events().any(|event| matches!(event.kind, Kind::TorchOom(_)))
}

/// `CUDA graph pool memory: … (actual), … (estimated)`: the printed difference has no sign; only more than
/// estimated is a danger, for the pool was sized by the estimate.
pub(super) fn graphs_above_estimate(case: &Case) -> Vec<Finding> {
    let worst = case.vllm().filter_map(|(event, line)| match line {
        Vllm::GraphPool { actual, estimated } => Some((event, *actual, *estimated)),
        _ => None,
    });
    let Some((event, actual, estimated)) = worst.max_by_key(|(_, a, e)| a.bytes - e.bytes) else {
        return Vec::new();
    };
    let over = actual - estimated;
    let settings = Settings::of(case);
    // Text models miss by a few tenths of a GiB either way; the margin of the budget is there for it.
    let tolerated =
        settings.total.map_or(GIB as i64 / 2, |total| (total.bytes / 100).max(GIB as i64 / 2));
    if over.bytes <= tolerated {
        return Vec::new();
    }
    vec![above_estimate(case, &settings, event, (actual, estimated, over))]
}

fn above_estimate(
    case: &Case,
    settings: &Settings,
    event: &Event,
    (actual, estimated, over): (Amount, Amount, Amount),
) -> Finding {
    let encoder = case.vllm().find(|(_, line)| matches!(line, Vllm::EncoderGraphs));
    let figures = Figures::of(case);
    let mut finding = Finding::new(
        "outside-pool-too-small",
        Cause::GraphsOrWorkspace,
        Phase::Capture,
        format!(
            "graphs took {actual}, {over} more than the {estimated} that the pool was sized by"
        ),
    )
    .level(Level::Warning)
    .also(&[Cause::Encoder])
    .sure(Confidence::Certain, 70)
    .because(if encoder.is_some() {
        "Graphs of the encoder are not in the estimate. What they took is missing outside the pool."
    } else {
        "What graphs took above the estimate is missing outside the pool."
    })
    .sum(format!("{actual} actual − {estimated} estimated = {over}"))
    .seen(event)
    .fraction(Direction::Lower)
    .int("graphs_above_estimate_bytes", over.bytes)
    .set(levers::lower(settings, &figures, Some(over)))
    .set(levers::fewer_requests(settings));
    if let Some((line, _)) = encoder {
        finding = finding.seen(line);
    }
    finding
}
