//! The plan of one launch: verdict, account of every byte, window of the fraction, what to pass.

mod killed;
mod passes;
mod prefill;
mod question;
mod smaller_chunk;

pub use killed::{KilledBy, Kills, MixKind};
pub use passes::Death;
pub use prefill::PrefillTrial;
pub use smaller_chunk::SmallerChunk;

use crate::start::{self, Case, CaseError, CaseLaunch, Policy, Ran};
use passes::Passes;
use plimsoll_core::{
    device::MemoryKind,
    engine::startup::{Refused, StartEnd},
    estimate::Figure,
    figure::{Estimate, FigureValue, Tag},
    plan::{Advice, AdviceInputs, Evidence, LoadLine, Tenancy, Window, advise},
    units::{Bytes, GIB, Tokens},
};
use question::Question;

/// How near the line a start is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Level {
    /// It holds with room, as far as is known.
    Ok,
    /// It may hold; too little is left, or too little is known.
    Low,
    /// The heaviest known step does not fit, or the machine has no memory for the start itself.
    Oom,
    /// The engine refuses to start.
    Refused,
}

impl Level {
    /// The word that people see.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Low => "low",
            Self::Oom => "OOM",
            Self::Refused => "refused",
        }
    }
}

/// Tokens of the pool when the uncertain figures fall either way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TokenRange {
    /// With less free memory and heavier weights.
    pub low: Tokens,
    /// Best value.
    pub mid: Tokens,
    /// With more free memory and lighter weights.
    pub high: Tokens,
}

/// Memory for the pool on the rank that decides, bytes; below zero where the engine refuses. SGLang:
/// state slots and KV; vLLM: "Available KV cache memory".
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PoolBudget {
    /// When what is uncertain falls the wrong way.
    pub low: i64,
    /// Best value.
    pub mid: i64,
    /// When it falls the right way.
    pub high: i64,
}

/// A fraction and what a start with it would have.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct AtFraction {
    /// The value to pass.
    pub fraction: f64,
    /// Tokens of the pool there; `None` when there is none.
    pub tokens: Option<Tokens>,
    /// Left after graphs there, GiB; below zero over the line.
    pub left_gib: f64,
}

/// The plan of one launch.
pub struct Plan {
    /// How near the line.
    pub level: Level,
    /// The verdict in one sentence.
    pub headline: String,
    /// The start behind it.
    pub ran: Ran,
    /// The fraction of the launch, given or automatic; `None` when the engine stopped before it.
    pub fraction: Option<f64>,
    /// The flag that sets the fraction.
    pub flag: &'static str,
    /// Tokens of the pool.
    pub pool: Option<TokenRange>,
    /// Memory for the pool; `None` when the start stopped before it or memory is shared with programs
    /// (Metal).
    pub budget: Option<PoolBudget>,
    /// Left after graphs.
    pub left: Option<Estimate>,
    /// The heaviest known step and what it needs.
    pub need: Option<(String, Figure)>,
    /// One full prefill chunk, played through the caching allocator over what is left.
    pub prefill: Option<PrefillTrial>,
    /// The least free memory over which the allocator serves the heaviest passes of plain requests;
    /// `None` where the layers have no tape.
    pub allocator_need: Option<Bytes>,
    /// The smallest mix of requests that kills the start.
    pub kills: Kills,
    /// The window of the fraction; `None` when the pool does not follow it (a cap decides).
    pub window: Option<Window>,
    /// What to do with the fraction.
    pub advice: Option<Advice>,
    /// The advised fraction, when there is another one.
    pub advised: Option<AtFraction>,
    /// The engine's automatic fraction, when it is not the one used.
    pub automatic: Option<AtFraction>,
    /// A smaller chunk that would fit at the same fraction.
    pub smaller_chunk: Option<SmallerChunk>,
    /// The next step of 0.02.
    pub next_step: Option<AtFraction>,
    /// Requests of the full context that the pool holds at once.
    pub full_context_requests: Option<f64>,
    /// The context, tokens.
    pub context_len: Option<u64>,
    /// What is said about rules and inputs.
    pub notes: Vec<String>,
}

impl Plan {
    /// Left after graphs minus what the heaviest known step needs, bytes.
    #[must_use]
    pub fn margin(&self) -> Option<i64> {
        let need = &self.need.as_ref()?.1.value;
        let left = i64::try_from(self.left?.mid.0).ok()?;
        Some(left - i64::try_from(need.mid.0).ok()?)
    }

    /// The refusal, when there is one.
    #[must_use]
    pub const fn refusal(&self) -> Option<&Refused> {
        match &self.ran.start.end {
            StartEnd::Refused(refused) => Some(refused),
            StartEnd::Ready | StartEnd::OutOfMemory(_) => None,
        }
    }
}

/// Plans a case.
///
/// # Errors
///
/// [`CaseError`] when a value is missing or impossible; a refusal is a plan.
pub fn plan(case: &Case) -> Result<Plan, CaseError> {
    let ran = start::run(case)?;
    let question = Question::of(case, &ran);
    let fraction = question.fraction();
    let need = ran.basis.need.clone();
    let mut passes = Passes::of(case, &ran);
    let allocator_need = passes.as_mut().map(|passes| passes.needs(&passes.limits.heaviest()));
    let closed = need.as_ref().map(|(_, figure)| figure.value);
    let line = question.load_line(at_least(closed, allocator_need));
    let window = line.as_ref().map(LoadLine::window);
    let left = left(&ran, line.as_ref(), fraction);
    let kills = kills(passes.as_mut(), &ran);
    let automatic = automatic(case, fraction);
    let useful = window.map(|w| question.useful(w));
    let advice = advice(case, fraction, automatic, window.zip(useful));
    let at = |fraction: f64| AtFraction {
        fraction,
        tokens: question.tokens_at(fraction),
        left_gib: line.as_ref().map_or(0.0, |line| line.left_at(fraction) / GIB as f64),
    };
    let advised = match advice {
        Some(Advice::Lower { to } | Advice::Raise { to }) => Some(at(to)),
        Some(Advice::Keep | Advice::NoFraction) | None => None,
    };
    let context_len = question.context_len();
    let pool = question.token_range();
    let budget = question.budget();
    let mut plan = Plan {
        level: Level::Ok,
        headline: String::new(),
        fraction,
        flag: question.flag(),
        pool,
        budget,
        left,
        allocator_need,
        kills,
        window,
        advice,
        advised,
        automatic: automatic
            .filter(|a| Some(*a) != fraction && useful.is_none_or(|u| *a > u))
            .map(at),
        smaller_chunk: None,
        next_step: fraction.filter(|f| f + 0.02 < 1.0).map(|f| at(thousandths(f + 0.02))),
        full_context_requests: full_context_requests(pool, context_len),
        context_len,
        notes: notes(case, &ran),
        prefill: prefill::trial(&ran),
        need,
        ran,
    };
    plan.smaller_chunk = smaller_chunk::find(case, &plan);
    plan.level = level(&plan);
    plan.headline = headline(&plan);
    Ok(plan)
}

/// The closed form, or what the allocator needs where that is more.
fn at_least(closed: Option<Estimate>, allocator: Option<Bytes>) -> Option<Estimate> {
    let Some(least) = allocator else { return closed };
    let closed = closed.unwrap_or(Estimate::ZERO);
    let up = |bytes: Bytes| bytes.max(least);
    Some(Estimate { low: closed.low, mid: up(closed.mid), high: up(closed.high) })
}

fn kills(passes: Option<&mut Passes>, ran: &Ran) -> Kills {
    let left = ran.start.reading("after_graphs").map(|free| free.least());
    passes.zip(left).map(|(passes, left)| killed::find(passes, left)).unwrap_or_default()
}

fn thousandths(f: f64) -> f64 {
    (f * 1000.0).round() / 1000.0
}

/// Left after graphs: read on the simulated machine, with the interval of what is uncertain.
fn left(ran: &Ran, line: Option<&LoadLine>, fraction: Option<f64>) -> Option<Estimate> {
    let free = ran.start.reading("after_graphs")?.least();
    let spread = line.zip(fraction).map(|(line, f)| line.left_estimate(f));
    Some(spread.map_or(Estimate::exact(free), |around| Estimate {
        low: free.saturating_sub(around.mid.saturating_sub(around.low)),
        mid: free,
        high: free + around.high.saturating_sub(around.mid),
    }))
}

/// The fraction that the engine would choose by itself (vLLM: its default).
fn automatic(case: &Case, used: Option<f64>) -> Option<f64> {
    let (name, launch) = match &case.launch {
        CaseLaunch::Sglang(args) if args.mem_fraction_static.is_none() => return used,
        CaseLaunch::Vllm(args) if args.gpu_memory_utilization.is_none() => return used,
        CaseLaunch::Sglang(args) => {
            let mut free = args.clone();
            free.mem_fraction_static = None;
            ("mem_fraction_static", CaseLaunch::Sglang(free))
        }
        CaseLaunch::Vllm(args) => {
            let mut free = args.clone();
            free.gpu_memory_utilization = None;
            ("gpu_memory_utilization", CaseLaunch::Vllm(free))
        }
    };
    let ran = start::run(&Case { launch, ..case.clone() }).ok()?;
    match ran.start.figure(name)?.value {
        FigureValue::Float(f) => Some(f),
        _ => None,
    }
}

fn advice(
    case: &Case,
    fraction: Option<f64>,
    automatic: Option<f64>,
    window: Option<(Window, f64)>,
) -> Option<Advice> {
    let (current, (window, useful)) = (fraction?, window?);
    let unified = case.device.memory == MemoryKind::Integrated;
    let shared = unified || case.facts.others.is_some() || !case.tenants.is_empty();
    let tenancy = if shared { Tenancy::Shared } else { Tenancy::Dedicated };
    let measured = case.facts.free_after_graphs.is_some();
    let evidence = if measured { Evidence::Measured } else { Evidence::Estimated };
    Some(advise(&AdviceInputs { current, automatic, window, useful, tenancy, evidence }))
}

fn full_context_requests(pool: Option<TokenRange>, context: Option<u64>) -> Option<f64> {
    let (pool, context) = (pool?, context?);
    (context > 0).then(|| pool.mid.0 as f64 / context as f64)
}

fn notes(case: &Case, ran: &Ran) -> Vec<String> {
    let mut notes = ran.start.pool.notes.clone();
    notes.extend(ran.start.host.warnings.iter().cloned());
    notes.extend(case.model.notes.iter().cloned());
    notes.extend(case.facts.profile.iter().flat_map(|profile| profile.notes.clone()));
    if case.device.memory == MemoryKind::Integrated {
        let note = "one memory with the host: other programs and the page cache share it, and a reading at \
                    the start does not hold for the life of the server";
        notes.push(note.to_owned());
    }
    notes.dedup();
    notes
}

fn level(plan: &Plan) -> Level {
    match &plan.ran.start.end {
        StartEnd::Refused(_) => return Level::Refused,
        StartEnd::OutOfMemory(_) => return Level::Oom,
        StartEnd::Ready => {}
    }
    if matches!(plan.ran.policy, Policy::Mlx(_)) {
        // One memory for all: the reading at the start does not hold for the life of the server.
        return Level::Low;
    }
    let Some(left) = plan.left else { return Level::Low };
    match &plan.need {
        Some((_, need)) if left.mid < need.value.mid => Level::Oom,
        // The allocator's segments need more than the sum of what lives.
        Some(_) if matches!(plan.prefill, Some(PrefillTrial::Dies { .. })) => Level::Oom,
        Some(_) if plan.kills.plain.as_ref().is_some_and(KilledBy::is_prompts) => Level::Oom,
        Some((_, need)) if left.low < need.value.high => Level::Low,
        // Without the model's layers neither graphs nor a prefill are known.
        None => Level::Low,
        Some(_) => match plan.advice {
            Some(Advice::Lower { .. } | Advice::Raise { .. }) => Level::Low,
            Some(Advice::Keep | Advice::NoFraction) | None => Level::Ok,
        },
    }
}

fn headline(plan: &Plan) -> String {
    match &plan.ran.start.end {
        StartEnd::Refused(refused) => return refused.message.clone(),
        StartEnd::OutOfMemory(error) => {
            let doing = plan.ran.start.died.map_or("", |doing| doing.words());
            return format!("the start dies {doing}: {error}");
        }
        StartEnd::Ready => {}
    }
    let Some(left) = plan.left else { return "nothing is known of what is left".to_owned() };
    // What rounds to nothing in GiB is shown in its own unit.
    let gib = |bytes: Bytes| match bytes.as_gib_f64() {
        gib if gib < 0.05 => bytes.to_string(),
        gib => format!("{gib:.2} GiB"),
    };
    if matches!(plan.ran.policy, Policy::Mlx(_)) {
        return format!(
            "{} of memory that other programs share is left beside the pool; a snapshot at start \
             does not hold for the life of the server",
            gib(left.mid)
        );
    }
    if let (Some(Advice::Raise { .. }), Some(pool)) = (plan.advice, plan.pool) {
        return format!("the pool holds {} tokens, less than one prefill chunk", pool.mid);
    }
    let known = plan.ran.basis.load.why.tag <= Tag::Computed || left.is_exact();
    let about = if known { "" } else { "about " };
    match &plan.need {
        Some((name, need)) => {
            let (left, need) = (gib(left.mid), gib(need.value.mid));
            format!("{about}{left} left after graphs; {name} needs {need}")
        }
        None => format!(
            "{about}{} left for graphs, workspaces and a prefill, which are not known without the \
             model's layers",
            gib(left.mid)
        ),
    }
}
