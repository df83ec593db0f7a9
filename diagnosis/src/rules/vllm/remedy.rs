//! What to set after a failed allocation, and what will not help.

use plimsoll_core::units::GIB;

use super::crash::Scene;
use super::levers::{self, KV_BYTES, UTILIZATION};
use super::stage::Stage;
use crate::oom::{Verdict, factor, size};
use crate::{Cause, Direction, Finding, Lever, Move, Phase};

/// The allocator's setting that PyTorch's text recommends everywhere.
const SEGMENTS: &str = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True";

/// Levers of the cause, best first, then what will not help.
pub(super) fn levers(finding: Finding, scene: &Scene<'_>, verdict: &Verdict) -> Finding {
    let finding = match verdict.cause {
        Cause::ModelTooBig | Cause::LoadTimePeak => too_big(finding, scene),
        Cause::ProfileRunPeak => profile(finding, scene),
        Cause::LoraBuffers => finding
            .set(Lever::new("--max-loras", Move::Lower).gives("buffers in proportion"))
            .set(Lever::new("--max-lora-rank", Move::Lower).gives("buffers in proportion")),
        Cause::Fragmentation if verdict.fraction == Direction::NoEffect => {
            profile(segments(finding, scene), scene)
        }
        Cause::Encoder => encoder(finding, scene, verdict),
        Cause::MoeWorkspace => moe(finding, scene, verdict),
        Cause::SharedOrUnifiedMemory => shared(finding, scene, verdict),
        Cause::WrongOrUnknownCapacity => finding
            .set(Lever::new(KV_BYTES, Move::Set).gives("the pool of a start without sleep mode"))
            .set(lower(scene))
            .set(Lever::new("--enable-sleep-mode", Move::Unset).gives("the right count")),
        Cause::DraftNotBudgeted => draft(finding, scene),
        Cause::SamplerBuffers => {
            finding.set(levers::fewer_requests(&scene.settings)).set(lower(scene))
        }
        Cause::PromptLogprobs => finding
            .set(chunk(scene))
            .set(
                Lever::new("--enable-chunked-prefill", Move::Set).gives("a bound on tokens a pass"),
            )
            .set(Lever::new("--max-logprobs", Move::Lower).gives("requests for them are refused")),
        _ if verdict.phase == Phase::Capture => capture(finding, scene),
        _ => serving(finding, scene, verdict),
    };
    useless(finding, scene, verdict)
}

fn lower(scene: &Scene<'_>) -> Lever {
    levers::lower(&scene.settings, &scene.figures, scene.judged.accounts.missing)
}

/// A smaller batch: the largest power of two of tokens whose request fits what was free.
fn chunk(scene: &Scene<'_>) -> Lever {
    let accounts = &scene.judged.accounts;
    let fits = accounts.requested.zip(accounts.free).zip(scene.settings.max_num_batched_tokens);
    let lever = Lever::new("--max-num-batched-tokens", Move::Lower);
    match fits {
        Some(((asked, free), now)) => match factor::chunk_that_fits(asked, free, now) {
            Some(tokens) => lever.to(tokens).gives(format!(
                "the same request is {:.2} GiB",
                asked.as_gib() * tokens as f64 / now as f64
            )),
            None => lever.to((now / 2).max(512)).gives("half of such a request"),
        },
        None => lever.gives("activations in proportion"),
    }
}

fn too_big(finding: Finding, scene: &Scene<'_>) -> Finding {
    finding
        .set(levers::more_ranks(&scene.settings, &scene.figures))
        .set(
            Lever::new("--cpu-offload-gb", Move::Raise)
                .gives("GiB of weights in host memory, slowly"),
        )
        .set(
            Lever::new("--quantization", Move::Set)
                .gives("smaller weights; or a quantised checkpoint"),
        )
        .useless("--max-model-len", Some(Move::Lower), "no pool was there yet")
}

fn profile(finding: Finding, scene: &Scene<'_>) -> Finding {
    finding
        .set(levers::smaller_batch(&scene.settings, &scene.figures))
        .set(levers::fewer_requests(&scene.settings))
        .set(
            Lever::new("--limit-mm-per-prompt", Move::Lower)
                .gives("a smaller worst case of images and video"),
        )
        .set(levers::more_ranks(&scene.settings, &scene.figures))
}

fn encoder(finding: Finding, scene: &Scene<'_>, verdict: &Verdict) -> Finding {
    let finding = finding
        .set(
            Lever::new("--mm-processor-kwargs", Move::Set)
                .to("'{\"max_pixels\":602112}'")
                .gives("smaller images at most"),
        )
        .set(
            Lever::new("--limit-mm-per-prompt", Move::Lower)
                .gives("fewer images or videos a request"),
        );
    if verdict.fraction == Direction::Lower { finding.set(lower(scene)) } else { finding }
}

fn moe(finding: Finding, scene: &Scene<'_>, verdict: &Verdict) -> Finding {
    let finding = finding
        .set(Lever::new("--moe-backend", Move::Set).gives("another backend has another workspace"))
        .set(chunk(scene));
    if verdict.fraction == Direction::Lower { finding.set(lower(scene)) } else { finding }
}

fn shared(finding: Finding, scene: &Scene<'_>, verdict: &Verdict) -> Finding {
    let mut finding = finding;
    if verdict.fraction == Direction::Lower {
        finding = finding
            .set(lower(scene))
            .set(Lever::new(KV_BYTES, Move::Set).gives("a pool of fixed size, whatever else runs"));
    }
    if scene.judged.accounts.others_decide() {
        let others = scene.judged.accounts.others.unwrap_or_default();
        finding = finding.set(
            Lever::new("other programs on the device", Move::Unset)
                .gives(format!("{} back", size(others))),
        );
    }
    finding
}

fn draft(finding: Finding, scene: &Scene<'_>) -> Finding {
    let missing = scene.judged.accounts.missing.unwrap_or_default();
    let outside = scene.siblings().map_or(missing, |siblings| siblings + missing);
    let lever = levers::lower(&scene.settings, &scene.figures, Some(outside));
    let gives = lever.gives.clone().unwrap_or_default();
    finding
        .set(
            lever.gives(format!("{gives}; the draft's weights, which no line prints, come on top")),
        )
        .set(
            Lever::new("--speculative-draft-tensor-parallel-size", Move::Lower)
                .to(1)
                .gives("the draft on one device, if that has room for all of it"),
        )
        .set(
            Lever::new("--speculative-model", Move::Unset)
                .gives("no draft; the second engine counts it"),
        )
}

/// What was missing at the first graph that failed says little of those that were still to come: a step of 0.05.
const CAPTURE_STEP: f64 = 0.05;

fn capture(finding: Finding, scene: &Scene<'_>) -> Finding {
    let missing = scene.judged.accounts.missing;
    finding
        .set(levers::lower_by(&scene.settings, &scene.figures, missing, CAPTURE_STEP))
        .set(levers::fewer_requests(&scene.settings))
        .set(Lever::new("--cudagraph-capture-sizes", Move::Lower).gives("fewer graphs"))
        .set(Lever::new("--enforce-eager", Move::Set).gives("no graphs, slower decoding"))
        .useless(
            "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0",
            Some(Move::Set),
            "the pool would take what graphs need; the text that recommends it is for estimates too large",
        )
}

fn serving(finding: Finding, scene: &Scene<'_>, verdict: &Verdict) -> Finding {
    let mut finding = finding;
    let long = verdict.cause == Cause::GrowsWithContext;
    let grown = scene.grown().filter(|grown| long && grown.bytes > GIB as i64 / 2);
    // What grew beside the profile is what must stay free.
    finding = finding.set(match grown {
        Some(grown) => levers::lower(&scene.settings, &scene.figures, Some(grown)),
        None => lower(scene),
    });
    if verdict.cause == Cause::Fragmentation {
        finding = segments(finding, scene);
    }
    if long {
        finding = finding.set(
            Lever::new("--max-model-len", Move::Lower)
                .gives("shorter contexts, smaller such buffers"),
        );
    }
    finding.set(chunk(scene))
}

fn segments(finding: Finding, scene: &Scene<'_>) -> Finding {
    if !segments_work(scene) {
        return finding;
    }
    finding.set(
        Lever::new("PYTORCH_CUDA_ALLOC_CONF", Move::Set)
            .to("expandable_segments:True")
            .gives("idle pieces serve larger requests"),
    )
}

/// Where the allocator's expandable segments do good: not with sleep mode, not where device and host share one
/// memory, not under WSL2.
fn segments_work(scene: &Scene<'_>) -> bool {
    !scene.settings.sleep && !scene.machine.unified && scene.judged.accounts.artefact.is_none()
}

fn useless(mut finding: Finding, scene: &Scene<'_>, verdict: &Verdict) -> Finding {
    let why = match (verdict.fraction, scene.stage) {
        (Direction::NoEffect, Stage::Profile) => "the fraction is applied after the profile run",
        (Direction::NoEffect, _) => {
            "the failure comes before the fraction is used, or does not depend on it"
        }
        _ => "the pool would take more of what was missing",
    };
    let change = if verdict.fraction == Direction::NoEffect { None } else { Some(Move::Raise) };
    finding = finding.useless(UTILIZATION, change, why);
    let why = if scene.settings.sleep {
        "sleep mode's allocator refuses it"
    } else if scene.machine.unified {
        "on machines with one memory it maps many small pages, which fails first"
    } else if scene.settings.expandable {
        "it is set already"
    } else if verdict.cause == Cause::Fragmentation || scene.judged.accounts.idle.is_none() {
        return finding;
    } else {
        "too little is idle: the memory is taken, not in pieces"
    };
    finding.useless(SEGMENTS, Some(Move::Set), why)
}
