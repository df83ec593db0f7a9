//! From a model's path to an engine that serves: what it will hold is decided first, then it is loaded.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use plimsoll_backend_host::model::{HostModel, Keep, LoadError, ModelOptions};
use plimsoll_checkpoint::{ChatTemplate, Checkpoint, CheckpointError, Tokenizer};
use plimsoll_core::{
    decision::DecisionSink,
    engine::{live::LiveSettings, serving::Watcher},
    sched::sglang::QueuePolicy,
    units::Bytes,
};

use crate::engine::{
    Engine, EngineError, EngineInfo, Loaded, MemoryRow, Phase, Pressure, Totals, channel, run,
};

pub use crate::plan::{KvFormat, PlanError, PlannedMemory};

/// What is asked of a server; `None` is the engine's own choice.
#[derive(Clone, Debug)]
pub struct Ask {
    /// A folder from the hub or a `.gguf` file.
    pub path: PathBuf,
    /// Name under which the model is served; `None`: the path's last part.
    pub name: Option<String>,
    /// All that the process may hold.
    pub memory_limit: Option<Bytes>,
    /// What is kept free of the machine's memory.
    pub margin: Option<Bytes>,
    /// Longest sequence; `None`: the model's own, at most [`DEFAULT_CONTEXT`].
    pub context_length: Option<u64>,
    /// Requests that run at once.
    pub max_running_requests: u64,
    /// Requests that may wait.
    pub max_queued_requests: Option<u64>,
    /// Token slots of the pool; `None`: as many as memory allows and requests can use.
    pub max_total_tokens: Option<u64>,
    /// Tokens of a prefill pass.
    pub chunked_prefill_size: u64,
    /// Token slots of a page.
    pub page_size: u64,
    /// Order of the waiting queue.
    pub policy: QueuePolicy,
    /// `schedule_conservativeness`.
    pub conservativeness: f64,
    /// Scheduling by priority.
    pub by_priority: bool,
    /// Whether prefixes are kept.
    pub prefix_cache: bool,
    /// How keys and values are kept.
    pub kv: KvFormat,
    /// How matrices are kept.
    pub keep: Keep,
    /// Threads of the model; `None`: one a core.
    pub threads: Option<usize>,
    /// Whether pages are lent when the machine runs short.
    pub lend: bool,
    /// Seconds since 1970.
    pub now: u64,
}

/// Longest sequence unless another is asked for: a table of positions is held for all of it.
pub const DEFAULT_CONTEXT: u64 = 8192;

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
}

/// A model whose memory is planned, and not yet taken.
#[derive(Debug)]
pub struct Planned {
    checkpoint: Checkpoint,
    options: ModelOptions,
    /// How its scheduler will be set.
    pub settings: LiveSettings,
    /// What it will hold.
    pub memory: PlannedMemory,
    name: String,
    ask: Ask,
}

/// Reads the headers of a model and plans its memory.
///
/// # Errors
///
/// [`StartError`]; nothing was taken.
pub fn plan(ask: Ask) -> Result<Planned, StartError> {
    let checkpoint = Checkpoint::open(&ask.path)?;
    let memory = crate::plan::memory(&ask, &checkpoint)?;
    let settings = LiveSettings {
        pool_pages: memory.pool_pages,
        page_size: ask.page_size,
        chunked_prefill_size: memory.chunked_prefill_size,
        max_running_requests: memory.max_running_requests,
        max_queued_requests: ask.max_queued_requests,
        context_length: memory.context_length,
        policy: ask.policy,
        conservativeness: ask.conservativeness,
        by_priority: ask.by_priority,
        prefix_cache: ask.prefix_cache,
    };
    let options = ModelOptions {
        threads: memory.threads,
        limits: memory.limits,
        pages: memory.pool_pages as usize,
        page_tokens: ask.page_size as usize,
        context: memory.context_length,
        keep: ask.keep,
        kv: ask.kv,
    };
    let name = ask.name.clone().unwrap_or_else(|| name_of(&ask.path));
    Ok(Planned { checkpoint, options, settings, memory, name, ask })
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
    Load(#[from] LoadError<CheckpointError>),
    /// It died.
    #[error(transparent)]
    Engine(#[from] EngineError),
}

impl Planned {
    /// Name under which the model is served.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Who watches the machine's memory, where pages may be lent.
    #[must_use]
    pub fn pressure(&self) -> Option<Box<dyn Pressure>> {
        None
    }

    /// Takes the memory, reads the weights, proves the plan and serves, all on a thread of its own. `sink` keeps
    /// its log, `watcher` hears everything; both come back at the end.
    ///
    /// # Errors
    ///
    /// [`StartError::Thread`].
    pub fn start<S, W>(
        self,
        pressure: Option<Box<dyn Pressure>>,
        mut sink: S,
        mut watcher: W,
    ) -> Result<Running<S, W>, StartError>
    where
        S: DecisionSink + Send + 'static,
        W: Watcher + Send + 'static,
    {
        let info = self.info();
        let Self { checkpoint, options, settings, .. } = self;
        let Checkpoint { shape, mut weights, tokenizer, template, eos } = checkpoint;
        let tokenizer = Arc::new(tokenizer);
        let (engine, end) = channel(info);
        let ours = Arc::clone(&tokenizer);
        let life = move || {
            let model = match HostModel::load(&shape, &mut weights, &options) {
                Ok(model) => model,
                Err(error) => {
                    end.enter(Phase::Failed(error.to_string()));
                    return (Err(error.into()), sink, watcher);
                }
            };
            end.set(|status| status.held = held(&model));
            let mut loaded = Loaded { model, tokenizer: ours, eos, settings, pressure };
            let result = run(&end, &mut loaded, &mut sink, &mut watcher);
            (result.map_err(LifeError::from), sink, watcher)
        };
        let thread = thread::Builder::new().name("engine".to_owned()).spawn(life);
        let thread = thread.map_err(StartError::Thread)?;
        Ok(Running { engine, tokenizer, template: template.map(Arc::new), thread })
    }

    fn info(&self) -> EngineInfo {
        let Self { settings, memory, name, ask, .. } = self;
        let row =
            |(name, planned): &(String, Bytes)| MemoryRow { name: name.clone(), bytes: *planned };
        EngineInfo {
            model: name.clone(),
            path: ask.path.display().to_string(),
            created: ask.now,
            context_length: settings.context_length,
            max_total_num_tokens: settings.pool_pages * settings.page_size,
            page_size: settings.page_size,
            max_running_requests: settings.max_running_requests,
            max_queued_requests: settings.max_queued_requests,
            chunked_prefill_size: settings.chunked_prefill_size,
            precision: format!("weights {:?}, KV {}", ask.keep, ask.kv.name()),
            memory: memory.rows.iter().map(row).collect(),
        }
    }
}

/// What the parts of a loaded model hold, by the names of the plan.
fn held(model: &HostModel) -> Vec<MemoryRow> {
    let held = model.memory();
    let rows = [
        ("weights", held.weights),
        ("rope", held.rope),
        ("arena", held.arena),
        ("kv_pool", held.kv),
    ];
    rows.map(|(name, bytes)| MemoryRow { name: name.to_owned(), bytes: Bytes(bytes) }).to_vec()
}

/// An engine that is loading or serving.
pub struct Running<S, W> {
    /// Who sends requests.
    pub engine: Engine,
    /// The model's tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Its chat template, where it has one.
    pub template: Option<Arc<ChatTemplate>>,
    thread: JoinHandle<Life<S, W>>,
}

/// How often a start is looked at.
const LOOK: Duration = Duration::from_millis(2);

impl<S, W> Running<S, W> {
    /// Waits until it is proven; false when it has ended before.
    #[must_use]
    pub fn wait_ready(&self) -> bool {
        loop {
            match self.engine.status().phase {
                Phase::Loading | Phase::Proving => thread::sleep(LOOK),
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
        self.thread.join().ok()
    }
}
