//! What happened in a run, in the words that people need first: what, when, the number that was too small,
//! and the ways out.

use crate::{
    blind::blind,
    ledger_at::{Moment, ledger_at},
    plan::{self, MixKind, Plan},
    run::ScenarioRun,
    start::CaseLaunch,
    timeline::{Crash, End, Timeline, time},
};
use plimsoll_core::{
    engine::serving::ServeEnd,
    figure::FigureValue,
    memory::{caching_allocator::OutOfMemory, ledger::Account},
    plan::Advice,
    pyfloat,
    units::{Bytes, MIB, group_thousands},
};

/// A run in a few sentences.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Verdict {
    /// What happened, and when.
    pub what: String,
    /// The number that was too small, when one was.
    pub short: Option<String>,
    /// What a full prefill chunk takes on this server, where it died in one.
    pub chunk: Option<String>,
    /// How the pool and the requests stood.
    pub state: Option<String>,
    /// What the configuration alone predicts, where the run rests on calibrated readings.
    pub blind: Option<String>,
    /// Ways out, the best first.
    pub ways: Vec<String>,
}

/// The verdict on a run under load; `None` for a start alone.
#[must_use]
pub fn verdict(run: &ScenarioRun) -> Option<Verdict> {
    let served = &run.served.as_ref()?.served;
    let timeline = Timeline::of(&run.log)?;
    let state = Some(state(run, &timeline));
    let blind = blind(&run.assembled.case).map(|blind| blind.text());
    if let ServeEnd::Lost(why) = &served.end {
        let what = format!("the machine was lost after {} passes: {why}", served.totals.steps);
        return Some(Verdict { what, state, ..Verdict::default() });
    }
    Some(match &timeline.end {
        End::Crash(crash) => {
            let plan = plan::plan(&run.assembled.case).ok();
            let in_prefill = plan.as_ref().filter(|_| crash.mode != "decode");
            Verdict {
                what: died(crash),
                short: short(crash, &timeline),
                chunk: in_prefill.and_then(|plan| full_chunk(run, plan)),
                state,
                blind,
                ways: ways(run, crash, &timeline, plan.as_ref()),
            }
        }
        End::Over(_) | End::Cut => {
            let (what, ways) = ended(&served.end, &timeline, run);
            Verdict { what, short: None, chunk: None, state, blind, ways }
        }
    })
}

fn amount(bytes: u64) -> String {
    Bytes(bytes).to_string()
}

fn died(crash: &Crash) -> String {
    let at = time(crash.at_ns);
    if crash.requested == 0 {
        let (what, step) = (&crash.buffer, crash.step);
        return format!("the scheduler dies at {at} (step {step}): {what}");
    }
    let pass = match crash.mode.as_str() {
        "decode" => format!("a decode pass of {} requests", crash.requests),
        _ => format!("a prefill of {} tokens", group_thousands(crash.tokens)),
    };
    format!("out of memory at {at} in {pass} (step {})", crash.step)
}

/// The number that was too small.
fn short(crash: &Crash, timeline: &Timeline) -> Option<String> {
    if crash.requested == 0 {
        return None;
    }
    let rank = match (crash.rank, timeline.ranks) {
        (Some(rank), 2..) => format!(" on rank {rank}"),
        _ => String::new(),
    };
    let asked = amount(crash.requested);
    Some(format!("{} free{rank}, {asked} asked for {}", amount(crash.free), crash.buffer))
}

/// Peak and largest request of a full chunk, and what would have fitted.
fn full_chunk(run: &ScenarioRun, plan: &Plan) -> Option<String> {
    let tape = run.ran.basis.prefill_tape.as_ref()?;
    let (peak, largest) = (tape.peak().bytes, tape.largest()?.bytes);
    let tokens = match &run.ran.start.figure("chunked_prefill_size")?.value {
        FigureValue::Count(tokens) if *tokens > 0 => *tokens,
        _ => return None,
    };
    let each = peak.0 as f64 / tokens as f64 / MIB as f64;
    let mut out = format!(
        "a chunk of {} tokens peaks at {peak} ({each:.4} MiB a token), its largest request is {largest}",
        group_thousands(tokens)
    );
    let killed = plan.kills.plain.as_ref().filter(|killed| killed.kind == MixKind::OnePrompt);
    if let Some(killed) = killed.filter(|killed| killed.prefix_tokens == 0) {
        out.push_str(&format!("; {} tokens fit", group_thousands(killed.tokens - 1)));
    }
    Some(out)
}

fn state(run: &ScenarioRun, timeline: &Timeline) -> String {
    // The peak of the run counts the slots of a pass that failed too.
    let totals = run.served.as_ref().map(|served| &served.served.totals);
    let used = totals.map_or_else(|| timeline.peak_used(), |totals| totals.peak_used_tokens);
    let share = percent(used, timeline.pool_tokens);
    let pool = group_thousands(timeline.pool_tokens);
    let mut out = format!("at most {share} of {pool} tokens used");
    if let Some(totals) = totals.filter(|totals| totals.window_pool_tokens > 0) {
        let (used, pool) = (totals.peak_used_window_tokens, totals.window_pool_tokens);
        let (share, pool) = (percent(used, pool), group_thousands(pool));
        out.push_str(&format!(", {share} of {pool} window tokens"));
    }
    if let Some(totals) = totals {
        let counts = [
            (totals.usage.running, "running"),
            (totals.usage.waiting, "waiting"),
            (totals.finished, "finished"),
            (totals.aborted, "aborted"),
            (totals.refused, "refused"),
        ];
        for (count, name) in counts.into_iter().filter(|(count, _)| *count > 0) {
            out.push_str(&format!(", {} {name}", group_thousands(count)));
        }
        if totals.retractions > 0 {
            out.push_str(&format!(", {} retractions", group_thousands(totals.retractions)));
        }
    }
    out
}

/// `31.8 %`, rounded to the nearest tenth.
fn percent(part: u64, whole: u64) -> String {
    let tenths = (u128::from(part) * 2000 + u128::from(whole)) / (2 * u128::from(whole.max(1)));
    format!("{}.{} %", tenths / 10, tenths % 10)
}

/// An end that is no crash, and what to do about it.
fn ended(end: &ServeEnd, timeline: &Timeline, run: &ScenarioRun) -> (String, Vec<String>) {
    let at = time(timeline.end_ns);
    let totals = run.served.as_ref().map(|served| &served.served.totals);
    // A log of which only the ends are kept does not have the least.
    let least = totals.and_then(|totals| totals.least_free).map_or(u64::MAX, |free| free.0);
    let free = amount(timeline.least_free().min(least));
    let (finished, steps) = totals.map_or((0, 0), |totals| (totals.finished, totals.steps));
    let steps = group_thousands(steps);
    match end {
        ServeEnd::Finished => {
            let finished = group_thousands(finished);
            let what = format!("finished {finished} requests in {at}; least free {free}");
            (what, Vec::new())
        }
        ServeEnd::Hung => {
            let way = "a waiting request needs more slots than the pool can ever give: raise the \
                       pool, or shorten the prompt and max_new_tokens";
            (format!("hangs at {at}: requests wait and nothing runs"), vec![way.to_owned()])
        }
        ServeEnd::Limit(_) => {
            let way = "raise `limits.max_steps` or `limits.max_time`, or send fewer requests";
            let what = format!("stopped by its limits at {at}, after {steps} steps");
            (what, vec![way.to_owned()])
        }
        ServeEnd::Interrupted => (format!("interrupted at {at}, after {steps} steps"), Vec::new()),
        ServeEnd::Lost(why) => (format!("the device is lost at {at}: {why}"), Vec::new()),
        ServeEnd::Fatal(fatal) => {
            (format!("the scheduler dies at {at}: {}", fatal.code), Vec::new())
        }
        ServeEnd::OutOfMemory(_) => (format!("out of memory at {at}"), Vec::new()),
    }
}

/// What would have helped, from the numbers of the run.
fn ways(run: &ScenarioRun, crash: &Crash, timeline: &Timeline, plan: Option<&Plan>) -> Vec<String> {
    if crash.requested == 0 {
        return vec![
            "raise the pool, lower --max-running-requests, or raise \
             --schedule-conservativeness, so that fewer requests run at once"
                .to_owned(),
        ];
    }
    let mut ways = Vec::new();
    ways.extend(others(run, crash, timeline));
    ways.extend(leak(run, crash));
    let prefill = crash.mode != "decode";
    if let Some(plan) = plan.filter(|_| prefill) {
        ways.extend(fraction(plan));
        ways.extend(chunk(plan));
    }
    // MLX has an allocator of its own.
    let torch = refused(run).filter(|_| !crash.buffer.starts_with("mlx."));
    ways.extend(torch.and_then(pieces));
    ways.extend(refused(run).and_then(|error| fewer(run, crash, error)));
    // What this one request lacked is no advice where something else took the memory.
    if ways.is_empty() || (!prefill && others(run, crash, timeline).is_none()) {
        ways.push(missing(crash, plan));
    }
    ways
}

/// Torch's account of the failure.
fn refused(run: &ScenarioRun) -> Option<&OutOfMemory> {
    match &run.served.as_ref()?.served.end {
        ServeEnd::OutOfMemory(failure) => Some(&failure.refused.error),
        _ => None,
    }
}

/// Enough is cached, in pieces that are too small.
fn pieces(error: &OutOfMemory) -> Option<String> {
    let cached = error.unallocated();
    (!error.grows && cached.saturating_add(error.device_free) >= error.segment).then(|| {
        format!(
            "{} are cached in pieces that are too small: \
             PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True lets segments grow instead",
            amount(cached)
        )
    })
}

/// A decode batch whose own rows are too many.
fn fewer(run: &ScenarioRun, crash: &Crash, error: &OutOfMemory) -> Option<String> {
    let flag = match run.assembled.case.launch {
        CaseLaunch::Sglang(_) => "--max-running-requests",
        CaseLaunch::Vllm(_) => "--max-num-seqs",
    };
    let by_row = ["sampler.", "sort.", "logits"].iter().any(|head| crash.buffer.starts_with(head));
    let rows = by_row && crash.mode == "decode" && crash.requests > 1;
    let each = error.requested / crash.requests.max(1);
    (rows && each > 0).then(|| {
        format!(
            "run fewer requests at once: this buffer takes {} for each of {}, {flag} bounds them",
            amount(each),
            group_thousands(crash.requests)
        )
    })
}

/// Other programs that grew while the server ran.
fn others(run: &ScenarioRun, crash: &Crash, timeline: &Timeline) -> Option<String> {
    let rank = crash.rank.unwrap_or(timeline.rank);
    let held = |moment| {
        let at = ledger_at(&run.log, moment).ok()?;
        let rank = at.ranks.into_iter().find(|accounts| accounts.rank == rank)?;
        Some(rank.of(Account::OtherPrograms))
    };
    let grown = held(Moment::Crash)?.checked_sub(held(Moment::Ready)?)?;
    (grown > crash.requested.saturating_sub(crash.free) / 2 && grown > 0).then(|| {
        format!(
            "other programs took {} after the start: set the fraction for what stays free beside \
             them, not for the snapshot at the start",
            amount(grown)
        )
    })
}

fn leak(run: &ScenarioRun, crash: &Crash) -> Option<String> {
    let held = |moment| {
        let at = ledger_at(&run.log, moment).ok()?;
        let rank = at.ranks.into_iter().find(|accounts| Some(accounts.rank) == crash.rank)?;
        Some(rank.of(Account::Unaccounted))
    };
    let lost = held(Moment::Crash)?.checked_sub(held(Moment::Ready)?)?;
    (lost > 0)
        .then(|| format!("{} leaked while it ran: restart before that much is gone", amount(lost)))
}

fn fraction(plan: &Plan) -> Option<String> {
    let advised = plan.advised.filter(|_| matches!(plan.advice, Some(Advice::Lower { .. })))?;
    let tokens = advised
        .tokens
        .map_or_else(String::new, |tokens| format!(": {} tokens", group_thousands(tokens.0)));
    let fraction = pyfloat::repr(advised.fraction);
    Some(format!(
        "pass {} {fraction}{tokens}, {:.2} GiB left after graphs",
        plan.flag, advised.left_gib
    ))
}

fn chunk(plan: &Plan) -> Option<String> {
    let smaller = plan.smaller_chunk?;
    let limit = smaller.prompt_limit.map_or_else(String::new, |tokens| {
        format!(", and serves prompts up to {} tokens", group_thousands(tokens))
    });
    Some(format!(
        "or keep the fraction and pass --chunked-prefill-size {}: one chunk needs {}{limit}",
        smaller.tokens, smaller.need
    ))
}

/// How much was missing for this one request, and what that is in the fraction: SGLang's pool grows by the
/// fraction of free memory, vLLM's by that of the total (see `core::plan::LoadLine`).
fn missing(crash: &Crash, plan: Option<&Plan>) -> String {
    let missing = crash.requested.saturating_sub(crash.free);
    let base = plan.and_then(|plan| {
        let basis = &plan.ran.basis;
        let whole = match plan.ran.policy {
            crate::start::Policy::Vllm(_) => basis.total.value.mid,
            _ => basis.free_before_load.value.mid,
        };
        (whole > Bytes::ZERO).then(|| missing as f64 / whole.0 as f64)
    });
    let flag = plan.map_or("the fraction", |plan| plan.flag);
    let by = base.map_or_else(String::new, |by| format!(" by at least {:.3}", by.max(0.001)));
    format!("lower {flag}{by}: {} more must be free for this request alone", amount(missing))
}
