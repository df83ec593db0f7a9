//! From a model's path to an engine that serves: what it will hold is decided first, then it is loaded.

mod ask;
mod cuda;
mod host;
mod lend;
#[cfg(test)]
mod tests;
mod thread;

use std::{
    convert::Infallible,
    path::Path,
    sync::{
        Arc,
        mpsc::{Receiver, channel as lives},
    },
    thread::{JoinHandle, sleep},
    time::Duration,
};

use plimsoll_backend_host::{HostError, model::LoadError};
use plimsoll_checkpoint::{ChatTemplate, Checkpoint, CheckpointError, Tokenizer};
use plimsoll_core::{
    decision::DecisionSink,
    engine::{live::LiveSettings, serving::Watcher},
    policy::plimsoll::{CellError, Refusal},
};

use crate::{
    engine::{
        Engine, EngineEnd, EngineError, EngineInfo, Loaded, MemoryRow, Phase, Pressure, Totals,
        channel, run,
    },
    plan::{MemoryOf, MemoryPlan, PlannedRow},
};

pub use ask::{Ask, CudaAsk, DEFAULT_CONTEXT, Half, HostAsk, On};
pub use thread::LoadFailure;

use host::Parts;
use lend::Watch;
use thread::{Load, Ready, Waiting};

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The machine cannot be read.
    #[error(transparent)]
    Host(#[from] HostError),
    /// It does not fit.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// No such page.
    #[error(transparent)]
    Cell(#[from] CellError),
    /// What loading would refuse.
    #[error(transparent)]
    Load(#[from] LoadError<Infallible>),
    /// A mistake of the checkpoint.
    #[error("the size of the weights cannot be told")]
    Weights,
    /// A device that is not there, or does not hold the model.
    #[error("{0}")]
    Device(String),
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The model's files.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The plan.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// No thread for the engine.
    #[error("cannot start the engine's thread: {0}")]
    Thread(std::io::Error),
    /// The engine's thread ended in a panic.
    #[error("the engine's thread ended in a panic")]
    Panic,
}

/// A model whose memory is planned. On the host nothing is taken yet; on devices all is taken but what the weights
/// fill, and goes back when this is dropped.
#[derive(Debug)]
pub struct Planned {
    /// How its scheduler will be set.
    pub settings: LiveSettings,
    /// What it will hold.
    pub memory: MemoryPlan,
    info: EngineInfo,
    lend: bool,
    texts: Texts,
    waiting: Waiting,
}

/// What of a model is text.
#[derive(Debug)]
struct Texts {
    tokenizer: Arc<Tokenizer>,
    template: Option<Arc<ChatTemplate>>,
    eos: Vec<u32>,
}

/// Reads the headers of a model and plans its memory.
///
/// # Errors
///
/// [`StartError`]; nothing is held then.
pub fn plan(ask: Ask) -> Result<Planned, StartError> {
    let Checkpoint { shape, weights, tokenizer, template, eos } = Checkpoint::open(&ask.path)?;
    let parts = Parts { shape, weights, vocabulary: tokenizer.size() as u64 };
    let tokenizer = Arc::new(tokenizer);
    let texts = Texts { tokenizer, template: template.map(Arc::new), eos };
    let wanted = ask.clone();
    let (memory, waiting) = thread::open(move || match &wanted.on {
        On::Host(own) => host::open(&wanted, *own, parts),
        On::Cuda(own) => cuda::open(&wanted, own, parts),
    })?;
    let settings = settings(&ask, &memory);
    let info = info(&ask, &settings, &memory);
    Ok(Planned { settings, memory, info, lend: ask.lend, texts, waiting })
}

fn settings(ask: &Ask, memory: &MemoryPlan) -> LiveSettings {
    let formed = memory.settings;
    LiveSettings {
        pool_pages: memory.pages,
        page_size: ask.page_size,
        chunked_prefill_size: formed.chunked_prefill_size,
        max_running_requests: formed.max_running_requests,
        max_queued_requests: ask.max_queued_requests,
        context_length: formed.context_length,
        policy: ask.policy,
        conservativeness: ask.conservativeness,
        by_priority: ask.by_priority,
        prefix_cache: ask.prefix_cache,
    }
}

fn info(ask: &Ask, settings: &LiveSettings, memory: &MemoryPlan) -> EngineInfo {
    let rows = |memory: &MemoryOf| {
        let device = memory.device.clone();
        let row = move |row: &PlannedRow| MemoryRow {
            device: device.clone(),
            name: row.name.to_owned(),
            bytes: row.bytes(),
        };
        memory.rows.iter().map(row).collect::<Vec<_>>()
    };
    EngineInfo {
        model: ask.name.clone().unwrap_or_else(|| name_of(&ask.path)),
        path: ask.path.display().to_string(),
        created: ask.now,
        context_length: settings.context_length,
        max_total_num_tokens: settings.pool_pages * settings.page_size,
        page_size: settings.page_size,
        max_running_requests: settings.max_running_requests,
        max_queued_requests: settings.max_queued_requests,
        chunked_prefill_size: settings.chunked_prefill_size,
        device: memory.device(),
        precision: memory.precision.clone(),
        memory: memory.memories.iter().flat_map(rows).collect(),
    }
}

/// The last part of a path, without what says that it is a GGUF file.
fn name_of(path: &Path) -> String {
    let last = path.file_name().map(|name| name.to_string_lossy().into_owned());
    let last = last.unwrap_or_else(|| path.display().to_string());
    last.strip_suffix(".gguf").map_or(last.clone(), str::to_owned)
}

/// How an engine's life ended: what it did, and its sink and watcher.
pub type Life<S, W> = (Result<Totals, LifeError>, S, W);

/// Why an engine's life ended before it was drained.
#[derive(Debug, thiserror::Error)]
pub enum LifeError {
    /// It was not loaded.
    #[error(transparent)]
    Load(#[from] LoadFailure),
    /// It died.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl LifeError {
    /// Whether files or the machine are not as they must be, and nothing was lost that had begun.
    #[must_use]
    pub const fn is_of_input(&self) -> bool {
        matches!(self, Self::Load(LoadFailure::Host(_) | LoadFailure::Device(_)))
    }
}

impl Planned {
    /// Name under which the model is served.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.info.model
    }

    /// Where it computes: `host`, `cuda:0`, `cuda:0,1`.
    #[must_use]
    pub fn device(&self) -> &str {
        &self.info.device
    }

    /// Reads the weights, proves the plan and serves, all on a thread of its own. `sink` keeps its log, `watcher`
    /// hears everything; both come back at the end.
    ///
    /// # Errors
    ///
    /// [`StartError::Panic`].
    pub fn start<S, W>(self, sink: S, watcher: W) -> Result<Running<S, W>, StartError>
    where
        S: DecisionSink + Send + 'static,
        W: Watcher + Send + 'static,
    {
        let Self { settings, memory, info, lend, texts, waiting } = self;
        let Texts { tokenizer, template, eos } = texts;
        let (engine, end) = channel(info);
        let (tell, life) = lives();
        let parts = Beside { tokenizer: Arc::clone(&tokenizer), eos, settings, memory, lend };
        let thread = waiting.start(Box::new(move |load| {
            // Who does not want to know has dropped his end.
            drop(tell.send(live(load, parts, &end, sink, watcher)));
        }))?;
        Ok(Running { engine, tokenizer, template, thread, life })
    }
}

/// What an engine needs beside its model.
struct Beside {
    tokenizer: Arc<Tokenizer>,
    eos: Vec<u32>,
    settings: LiveSettings,
    memory: MemoryPlan,
    lend: bool,
}

/// A life, from the weights to the end.
fn live<S: DecisionSink, W: Watcher>(
    load: Load,
    parts: Beside,
    end: &EngineEnd,
    mut sink: S,
    mut watcher: W,
) -> Life<S, W> {
    let Ready { model, held, room } = match load() {
        Ok(ready) => ready,
        Err(error) => {
            end.enter(Phase::Failed(error.to_string()));
            return (Err(error.into()), sink, watcher);
        }
    };
    end.set(|status| status.held = held);
    let Beside { tokenizer, eos, settings, memory, lend } = parts;
    let watch = lend.then(|| Watch::new(room, &memory, settings.page_size));
    let pressure = watch.map(|watch| Box::new(watch) as Box<dyn Pressure>);
    let mut loaded = Loaded { model, tokenizer, eos, settings, pressure };
    let result = run(end, &mut loaded, &mut sink, &mut watcher);
    (result.map_err(LifeError::from), sink, watcher)
}

/// An engine that is loading or serving.
pub struct Running<S, W> {
    /// Who sends requests.
    pub engine: Engine,
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template, where it has one.
    pub template: Option<Arc<ChatTemplate>>,
    thread: JoinHandle<()>,
    life: Receiver<Life<S, W>>,
}

/// How often a start is looked at.
const LOOK: Duration = Duration::from_millis(2);

impl<S, W> Running<S, W> {
    /// Waits until it is proven; false when it has ended before.
    #[must_use]
    pub fn wait_ready(&self) -> bool {
        loop {
            match self.engine.status().phase {
                Phase::Loading | Phase::Proving => sleep(LOOK),
                Phase::Ready => return true,
                Phase::Draining | Phase::Stopped | Phase::Failed(_) => return false,
            }
        }
    }

    /// Whether its thread has ended, by itself or drained.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// Drains it and waits for its end; `None` when its thread panicked.
    pub fn end(self) -> Option<Life<S, W>> {
        self.engine.drain();
        self.thread.join().ok()?;
        self.life.recv().ok()
    }
}
