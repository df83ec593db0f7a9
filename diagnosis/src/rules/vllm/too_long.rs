//! One request of `max_model_len` does not fit the pool: refusals of both engines.

use plimsoll_ingest::log::{Amount, Event, Vllm};

use super::figures::{Figures, budget};
use super::levers::{self, UTILIZATION};
use super::settings::Settings;
use crate::{Case, Cause, Confidence, Direction, Finding, Lever, Move, Phase};

/// Tokens of the profile run with chunked prefill, in the first engine.
const CHUNKED: u64 = 2048;
/// The first engine switches chunked prefill on by itself above this length.
/// Source: vLLM 0.5 to 0.8 `EngineArgs.create_engine_config`.
const CHUNKED_ABOVE: u64 = 32_768;

/// From here on the fraction has next to nothing left to give.
const NEARLY_ALL: f64 = 0.95;

/// The refusal, as figures.
struct Refusal<'a> {
    event: &'a Event,
    /// `max_model_len`.
    length: Option<u64>,
    /// Bytes of one request of that length.
    needed: Option<Amount>,
    /// Bytes of the pool.
    available: Option<Amount>,
    /// The longest that fits.
    fits: Option<u64>,
}

impl Refusal<'_> {
    fn missing(&self) -> Option<Amount> {
        self.needed.zip(self.available).map(|(needed, available)| needed - available)
    }
}

/// A request of the largest length needs more than the pool.
pub(super) fn too_long(case: &Case) -> Vec<Finding> {
    let (settings, figures) = (Settings::of(case), Figures::of(case));
    let Some(refusal) = case.vllm().rev().find_map(|(event, line)| read(event, line, &figures))
    else {
        return Vec::new();
    };
    vec![finding(&settings, &figures, &refusal)]
}

fn read<'a>(event: &'a Event, line: &Vllm, figures: &Figures<'_>) -> Option<Refusal<'a>> {
    match *line {
        Vllm::OneRequestTooLong { max_model_len: length, needed, available, estimated } => {
            // Where the engine prints no estimate: in proportion, which holds for full attention.
            let share = || {
                let (needed, available) = (needed?, available?);
                let fits = length? as f64 * available.least() as f64 / needed.most() as f64;
                (fits >= 1.0).then_some(fits as u64)
            };
            Some(Refusal { event, length, needed, available, fits: estimated.or_else(share) })
        }
        Vllm::LongerThanPool { max_model_len, tokens } => {
            let available = figures.kv.map(|(kv, _)| kv);
            let needed = available.filter(|_| tokens > 0).map(|kv| {
                let times = max_model_len as f64 / tokens as f64;
                let scaled = |bytes: i64| (bytes as f64 * times).round() as i64;
                Amount { bytes: scaled(kv.bytes), half: scaled(kv.half) }
            });
            let length = Some(max_model_len);
            Some(Refusal { event, length, needed, available, fits: Some(tokens) })
        }
        _ => None,
    }
}

/// What took the pool: the profile run, if without it the request would fit; a neighbour, if others held
/// memory that this release charges to itself; else the pool is simply too small.
fn judge(
    settings: &Settings,
    figures: &Figures<'_>,
    refusal: &Refusal<'_>,
) -> (&'static str, Cause) {
    if let (Some(peak), Some(missing)) =
        (long_profile(settings, figures, refusal), refusal.missing())
        && peak.bytes > missing.bytes
    {
        return ("profile-run-peak", Cause::ProfileRunPeak);
    }
    if charged_to_us(settings, figures).zip(refusal.missing()).is_some_and(|(o, m)| o > m.bytes) {
        return ("shared-memory-machine", Cause::SharedOrUnifiedMemory);
    }
    ("pool-too-small", Cause::PoolTooSmall)
}

/// What chunked prefill would take off the profile run: the first engine runs `max_model_len` tokens at once
/// without it. In the second engine, a peak that a batch of 2,048 would not have.
fn long_profile(
    settings: &Settings,
    figures: &Figures<'_>,
    refusal: &Refusal<'_>,
) -> Option<Amount> {
    let peak = figures.peak?.0;
    let profiled = if settings.is_v0() {
        let length = refusal.length?;
        let whole = settings.chunked_prefill != Some(true) && length <= CHUNKED_ABOVE;
        settings.max_num_batched_tokens.or(whole.then_some(length))?
    } else {
        settings.max_num_batched_tokens?
    };
    (profiled > CHUNKED).then(|| {
        Amount::exact((peak.bytes as f64 * (1.0 - CHUNKED as f64 / profiled as f64)) as i64)
    })
}

/// Others' memory that is charged to this instance: V1 before 0.10 takes all that is used on the device.
/// Source: vLLM 0.8.5 `gpu_worker.determine_available_memory`.
fn charged_to_us(settings: &Settings, figures: &Figures<'_>) -> Option<i64> {
    let rules = settings.rules()?;
    let before = !settings.is_v0() && (rules.version.major, rules.version.minor) < (0, 10);
    let (free, total) = (figures.free_at_start?.0, settings.total?);
    before.then(|| (total - free).bytes)
}

fn finding(settings: &Settings, figures: &Figures<'_>, refusal: &Refusal<'_>) -> Finding {
    let (code, cause) = judge(settings, figures, refusal);
    let certain = refusal.needed.is_some() && refusal.available.is_some();
    let mut finding = Finding::new(code, cause, Phase::Sizing, headline(refusal))
        .also(&[
            Cause::PoolTooSmall,
            Cause::ProfileRunPeak,
            Cause::SharedOrUnifiedMemory,
            Cause::WeightsAboveFraction,
        ])
        .sure(if certain { Confidence::Certain } else { Confidence::Likely }, 92)
        .because(because(cause, settings))
        .fraction(if settings.kv_bytes.is_some() { Direction::NoEffect } else { Direction::Raise })
        .seen(refusal.event);
    finding = sums(finding, settings, figures, refusal);
    if cause == Cause::ProfileRunPeak {
        finding = profile_levers(finding, settings, figures);
    }
    finding = length_lever(finding, refusal);
    if cause != Cause::ProfileRunPeak {
        finding = finding.set(levers::smaller_batch(settings, figures));
    }
    finding = finding.set(levers::raise(settings, refusal.missing()));
    if settings.utilization.is_some_and(|utilization| utilization >= NEARLY_ALL) {
        finding = finding.set(levers::fewer_requests(settings));
    }
    if !settings.fp8_kv {
        finding = finding.set(
            Lever::new("--kv-cache-dtype", Move::Set)
                .to("fp8")
                .gives("half the bytes a token, where the model and device take it"),
        );
    }
    finding.useless(UTILIZATION, Some(Move::Lower), "the pool is a part of it: it would hold less")
}

fn headline(refusal: &Refusal<'_>) -> String {
    let length = refusal.length.map_or("max_model_len".to_owned(), levers::tokens);
    match (refusal.needed, refusal.available) {
        (Some(needed), Some(available)) => {
            format!("one request of {length} needs {needed} of KV cache, the pool has {available}")
        }
        _ => match refusal.fits {
            Some(fits) => {
                format!("one request of {length} does not fit a pool of {}", levers::tokens(fits))
            }
            None => format!("one request of {length} does not fit the pool"),
        },
    }
}

fn because(cause: Cause, settings: &Settings) -> &'static str {
    match cause {
        Cause::ProfileRunPeak if settings.is_v0() => {
            "Without chunked prefill the profile run takes max_model_len tokens at once, so a longer context leaves a smaller pool."
        }
        Cause::ProfileRunPeak => "The profile run's peak took more than what is missing.",
        Cause::SharedOrUnifiedMemory => {
            "This release charges what other programs hold on the device to itself."
        }
        _ => "The pool must hold one request of the full length, or the server refuses to start.",
    }
}

fn sums(
    mut finding: Finding,
    settings: &Settings,
    figures: &Figures<'_>,
    refusal: &Refusal<'_>,
) -> Finding {
    if let (Some(needed), Some(available)) = (refusal.needed, refusal.available) {
        let missing = needed - available;
        finding = finding
            .sum(format!("{needed} needed − {available} available = {missing} missing"))
            .int("missing_bytes", missing.bytes);
        if let Some(length) = refusal.length.filter(|length| *length > 0) {
            let cell = needed.bytes as f64 / length as f64;
            finding =
                finding.sum(format!("{needed} ÷ {} = {cell:.0} B a token", levers::tokens(length)));
        }
    }
    for (_, event) in [figures.weights, figures.peak, figures.kv].into_iter().flatten() {
        finding = finding.seen(event);
    }
    if let (Some(line), Some(budget), Some(held), Some((kv, _))) =
        (levers::budget_line(settings), budget(settings), figures.held(), figures.kv)
    {
        let rest = budget - held - kv;
        finding = finding
            .sum(line)
            .sum(format!("{budget} − {held} of weights − {rest} of the profile run = {kv}"));
    }
    if let Some(fits) = refusal.fits.and_then(|fits| i64::try_from(fits).ok()) {
        finding = finding.int("max_model_len_that_fits_tokens", fits);
    }
    finding
}

fn profile_levers(finding: Finding, settings: &Settings, figures: &Figures<'_>) -> Finding {
    if settings.is_v0() && settings.chunked_prefill != Some(true) {
        let peak = figures.peak.map_or(String::new(), |(peak, _)| format!(" instead of {peak}"));
        return finding
            .set(
                Lever::new("--enable-chunked-prefill", Move::Set)
                    .gives(format!("a profile run of max_num_batched_tokens tokens{peak}")),
            )
            .set(Lever::new("--max-num-batched-tokens", Move::Set).to(CHUNKED));
    }
    finding.set(levers::smaller_batch(settings, figures))
}

fn length_lever(finding: Finding, refusal: &Refusal<'_>) -> Finding {
    let lever = Lever::new("--max-model-len", Move::Lower);
    finding.set(match refusal.fits {
        Some(fits) => lever.to(fits).gives("the longest request that the pool holds"),
        None => lever.gives("at most available ÷ needed of it fits"),
    })
}
