//! A started server under its workload: the scheduler, the passes and the clients of a case put together.

pub(crate) mod figures;
mod measured;
mod sglang;
mod time;
mod vllm;

pub(crate) use measured::page_size;

/// Layers of a case's model; 0 where they are not known.
#[must_use]
pub fn layers(case: &Case) -> u64 {
    time::layers(case)
}

use crate::{
    assemble::Assembled,
    start::{Case, CaseLaunch, Policy, Ran},
};
use plimsoll_core::{
    backend::Backend,
    decision::{DecisionSink, Record},
    engine::{
        metrics::{Metrics, MetricsReport, Slo},
        serving::{
            self, Clients, Limits, Pace, PassTapes, ServeEnd, Served, Serving, TimedChange,
            Watcher, Watchers, Wording,
        },
    },
    estimate::time_inputs::TimeBasis,
    figure::NamedFigure,
    memory::caching_allocator::{Options, TorchVersion},
    sched::{LogDetail, Scheduler},
};
use plimsoll_ingest::launch::EnvVar;

/// What a started server is put under.
pub struct Load<'a> {
    /// Who sends requests.
    pub clients: &'a mut dyn Clients,
    /// What happens to the machine, in the order of happening.
    pub changes: &'a [TimedChange],
    /// Where the run stops.
    pub limits: Limits,
    /// How much the log tells.
    pub detail: LogDetail,
    /// Limits that a good answer keeps.
    pub slo: Slo,
    /// Whether quiet stretches are skipped.
    pub pace: Pace,
    /// Told everything that happens.
    pub watcher: &'a mut dyn Watcher,
    /// Whether the user wants the run to end now.
    pub interrupted: &'a dyn Fn() -> bool,
}

/// A case that cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ServeError {
    /// The start did not produce what serving needs.
    #[error("{0} is not known after this start, and nothing can be served without it")]
    Missing(&'static str),
    /// An engine or a setting whose steps are not executed yet.
    #[error("{0}")]
    NotExecuted(String),
    /// The scheduler does not take these settings.
    #[error("the scheduler cannot run so: {0}")]
    Settings(String),
    /// `PYTORCH_CUDA_ALLOC_CONF` with a mistake.
    #[error("{name}: {why}")]
    AllocatorConf {
        /// Name of the variable.
        name: String,
        /// What is wrong.
        why: String,
    },
}

/// What serves a case.
pub(crate) struct Parts {
    pub(crate) scheduler: Box<dyn Scheduler>,
    pub(crate) tapes: Box<dyn PassTapes>,
    pub(crate) time: TimeBasis,
    pub(crate) wording: Wording,
    /// The record that opens the run.
    pub(crate) started: Record,
    /// Settings that the run does not execute, in words.
    pub(crate) notes: Vec<String>,
}

/// A run under load, with what of the launch it did not execute.
pub struct ServedRun {
    /// How it ended.
    pub served: Served,
    /// Settings that the run does not execute.
    pub notes: Vec<String>,
    /// What the times of its passes rest on, each figure with its derivation.
    pub time: Vec<NamedFigure>,
    /// Its metrics.
    pub metrics: MetricsReport,
}

/// A server's scheduler and what its passes take, without memory: for who wants times alone.
pub struct TimedServer {
    /// The scheduler, as the start sized it.
    pub scheduler: Box<dyn Scheduler>,
    /// The time model, with the profile of the case where it has one.
    pub time: TimeBasis,
}

/// The scheduler and the time model of a started case.
///
/// # Errors
///
/// [`ServeError`], as [`serve`].
pub fn timed(case: &Case, ran: &Ran) -> Result<TimedServer, ServeError> {
    let parts = parts(case, ran)?;
    Ok(TimedServer { scheduler: parts.scheduler, time: parts.time })
}

fn parts(case: &Case, ran: &Ran) -> Result<Parts, ServeError> {
    match (&case.launch, &ran.policy) {
        (CaseLaunch::Sglang(args), Policy::Sglang(_) | Policy::Mlx(_)) => {
            sglang::parts(case, args, ran)
        }
        (CaseLaunch::Vllm(args), Policy::Vllm(_)) => vllm::parts(case, args, ran),
        _ => Err(ServeError::Missing("the engine that started")),
    }
}

/// Puts a started server under load; its decisions go to `sink` after those of the start.
///
/// # Errors
///
/// [`ServeError`]; a server that dies is a result.
pub fn serve(
    assembled: &Assembled,
    ran: &Ran,
    machine: &mut dyn Backend,
    load: Load<'_>,
    sink: &mut dyn DecisionSink,
) -> Result<ServedRun, ServeError> {
    let case = &assembled.case;
    let mut parts = parts(case, ran)?;
    parts.notes.extend(case.facts.profile.iter().flat_map(|profile| profile.notes.clone()));
    let options = allocator_options(&assembled.launch.env)?;
    sink.record(parts.started);
    let mut metrics = Metrics::new(page_size(ran), load.slo);
    let mut ending = measured::HoldsEnd::new(sink);
    let serving = Serving {
        scheduler: parts.scheduler.as_mut(),
        clients: load.clients,
        tapes: parts.tapes.as_mut(),
        time: &parts.time.model,
        changes: load.changes,
        options,
        wording: parts.wording,
        limits: load.limits,
        detail: load.detail,
        host_token: sglang::host_token(ran),
        pace: load.pace,
        watcher: &mut Watchers(vec![&mut metrics, load.watcher]),
        interrupted: load.interrupted,
    };
    let served = serving::serve(machine, serving, &mut ending);
    let metrics = metrics.report(served.totals.at);
    // A run that somebody ended is compared with a whole one as far as it goes.
    let told = (served.end != ServeEnd::Interrupted).then(|| measured::record(&metrics));
    ending.close(told);
    Ok(ServedRun { served, notes: parts.notes, time: parts.time.figures, metrics })
}

/// Variables that set torch's allocator up; the later one wins.
///
/// Source: torch `CUDAAllocatorConfig`; `PYTORCH_ALLOC_CONF` from 2.9.
const ALLOC_CONF: [&str; 3] =
    ["PYTORCH_HIP_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"];

fn allocator_options(env: &[EnvVar]) -> Result<Options, ServeError> {
    let mut options = Options::default();
    for name in ALLOC_CONF {
        let Some(var) = env.iter().rev().find(|var| var.name == name) else { continue };
        options = Options::parse(&var.value, TorchVersion::NEWEST).map_err(|error| {
            ServeError::AllocatorConf { name: name.to_owned(), why: error.to_string() }
        })?;
    }
    Ok(options)
}
