//! From a model's path to an engine that serves: what it will hold is decided first, then it is loaded.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    thread::{self, JoinHandle},
    time::Duration,
};

use plimsoll_backend_host::{
    audit::Audit,
    model::{HostModel, Keep, LoadError},
    pressure::{Pressure as HostPressure, plan_readings},
};
use plimsoll_checkpoint::{ChatTemplate, Checkpoint, CheckpointError, Tokenizer};
use plimsoll_core::{
    decision::DecisionSink,
    engine::{live::LiveSettings, serving::Watcher},
    policy::plimsoll::{KvFormat, Lending, Move, Part, Plan, PlanRow, PoolPages},
    sched::sglang::QueuePolicy,
    units::Bytes,
};

use crate::engine::{
    Engine, EngineError, EngineInfo, Loaded, MemoryRow, Phase, Pressure, Totals, channel, run,
};

pub use crate::plan::{PlanError, PlannedMemory};

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
    let (plan, formed) = (&memory.plan, memory.plan.settings);
    let settings = LiveSettings {
        pool_pages: plan.pages,
        page_size: ask.page_size,
        chunked_prefill_size: formed.chunked_prefill_size,
        max_running_requests: formed.max_running_requests,
        max_queued_requests: ask.max_queued_requests,
        context_length: formed.context_length,
        policy: ask.policy,
        conservativeness: ask.conservativeness,
        by_priority: ask.by_priority,
        prefix_cache: ask.prefix_cache,
    };
    let name = ask.name.clone().unwrap_or_else(|| name_of(&ask.path));
    Ok(Planned { checkpoint, settings, memory, name, ask })
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

/// Looks at the machine's memory and says how many pages are to be lent.
struct Watch {
    pressure: HostPressure,
    lending: Lending,
    pages: u64,
    /// Pages that stay, whatever the machine says.
    kept: u64,
}

/// How often memory is looked at.
const EVERY: Duration = Duration::from_millis(100);

impl Pressure for Watch {
    fn every(&self) -> Duration {
        EVERY
    }

    fn target(&mut self, lent: u64) -> u64 {
        // A reading that fails says nothing.
        let Ok(room) = self.pressure.room() else { return lent };
        let spare = self.pages.saturating_sub(self.kept).saturating_sub(lent);
        match self.lending.decide(room, PoolPages { spare, lent }) {
            Move::Stay => lent,
            Move::Give(pages) => lent.saturating_add(pages),
            Move::Take(pages) => lent.saturating_sub(pages),
        }
    }
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
        let plan = &self.memory.plan;
        let one = plan.settings.chunked_prefill_size.min(plan.settings.context_length);
        let watch = Watch {
            pressure: HostPressure::new(self.ask.memory_limit),
            lending: Lending { margin: plan.of(Part::Margin), page: plan.page },
            pages: plan.pages,
            kept: (plan.cell.pages_for(one) + 1).min(plan.pages),
        };
        self.ask.lend.then(|| Box::new(watch) as Box<dyn Pressure>)
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
        let Self { checkpoint, settings, memory, .. } = self;
        let options = memory.options;
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
            end.set(|status| status.held = held(&memory.plan, &model));
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
        let row = |row: &PlanRow| MemoryRow { name: row.part.name().to_owned(), bytes: row.bytes };
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
            memory: memory.plan.rows.iter().map(row).collect(),
        }
    }
}

/// What the parts of a loaded model hold, by the names of the plan, and the process as a whole.
fn held(plan: &Plan, model: &HostModel) -> Vec<MemoryRow> {
    let row = |name: &str, bytes| MemoryRow { name: name.to_owned(), bytes };
    // A system that does not say what the process holds is a row less.
    let resident = plan_readings().map(|now| now.resident).unwrap_or_default();
    let audit = Audit::new(plan, &model.memory(), resident);
    let parts = audit.rows.iter().filter_map(|part| Some(row(part.part.name(), part.held?)));
    let whole = [("resident", audit.resident), ("beyond_plan", audit.beyond())];
    parts.chain(whole.map(|(name, bytes)| row(name, bytes))).collect()
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
