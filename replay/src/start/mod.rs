//! From a launch, a model and a machine to a start on the simulator: the same for `plan` and `run`.

mod facts;
mod host;
mod mlx;
mod model;
mod sglang;
mod sglang_tape;
#[cfg(test)]
mod tests;
mod transients;
mod vllm;
mod weaker;

pub use facts::{Fact, Facts};
pub use host::HostMemory;
pub use model::{CaseModel, DividedModel, KnownCellModel, ModelKind};
pub(crate) use sglang_tape::pass_inputs;

use crate::scenario::value::MAX_RANKS;
use plimsoll_backend_sim::{DeviceSpec, MachineSpec, SimBackend, TotalReading};
use plimsoll_core::{
    backend::{Backend, BackendError, Rank},
    decision::DecisionSink,
    device::DeviceProfile,
    engine::{
        MlxStart, SglangStart, VllmStart,
        startup::{self, Capture, RankLoad, Start, StartLoads, TenantChange},
    },
    estimate::Figure,
    memory::ledger::{Ledger, Overdrawn},
    policy::{sglang::args::ServerArgs, vllm::args::EngineArgs},
    tape::Tape,
    units::{Bytes, MIB},
};

/// The launch, as read from a command or from flags.
#[derive(Clone, PartialEq, Debug)]
pub enum CaseLaunch {
    /// SGLang.
    Sglang(Box<ServerArgs>),
    /// vLLM.
    Vllm(Box<EngineArgs>),
}

/// How the capacity is read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum CapacityReading {
    /// As the catalog has it.
    Catalog,
    /// The vendor's tool prints this.
    Known(Bytes),
    /// No reading works.
    Unknown,
}

/// Everything that a start depends on.
#[derive(Clone, Debug)]
pub struct Case {
    /// Flags.
    pub launch: CaseLaunch,
    /// Model.
    pub model: CaseModel,
    /// Device of every rank.
    pub device: DeviceProfile,
    /// How its capacity is read.
    pub capacity: CapacityReading,
    /// Ranks of the server.
    pub ranks: u32,
    /// Measured, declared or calibrated values, which replace estimates.
    pub facts: Facts,
    /// Other programs that come and go.
    pub tenants: Vec<TenantChange>,
}

/// The engine's rules, put on the case.
pub enum Policy {
    /// SGLang on a device.
    Sglang(Box<SglangStart>),
    /// SGLang on a laptop.
    Mlx(Box<MlxStart>),
    /// vLLM.
    Vllm(Box<VllmStart>),
}

/// What is known or estimated beside the pools; each with its interval and derivation.
pub struct Basis {
    /// Free before loading (vLLM: free at start) on one rank.
    pub free_before_load: Figure,
    /// What loading takes on one rank.
    pub load: Figure,
    /// Weights of a draft model that is resident while the pool is sized.
    pub draft: Figure,
    /// Copies beside the weights while they load; given back before the next reading.
    pub load_scratch: Figure,
    /// What kernels under tuning take before the graphs, and give back.
    pub autotune_scratch: Figure,
    /// Graphs of a draft model.
    pub draft_graphs: Figure,
    /// Workspaces taken after the pools.
    pub workspaces: Figure,
    /// Captured graphs.
    pub graphs: Figure,
    /// What the heaviest known step needs when the server is ready; its name.
    pub need: Option<(String, Figure)>,
    /// What one prefill chunk allocates and frees, where it is known and not paid when ready.
    pub prefill_tape: Option<Tape>,
    /// vLLM: what profiling charges beside the weights, in bytes that do not stay.
    pub transient: Figure,
    /// All that the budget pays before the pool, part by part. Their errors are independent, so the
    /// interval of the pool adds them as squares.
    pub charged: Vec<Figure>,
    /// Total that programs see, which vLLM's fraction is a fraction of.
    pub total: Figure,
    /// What is not known, in words.
    pub unknown: Vec<String>,
}

/// A case made ready: machine, loads and rules.
pub struct Prepared {
    /// The simulated machine.
    pub machine: MachineSpec,
    /// One entry a rank.
    pub loads: Vec<RankLoad>,
    /// Graphs that every rank captures.
    pub capture: Capture,
    /// Rules.
    pub policy: Policy,
    /// Estimates and facts behind the loads.
    pub basis: Basis,
}

/// A case that cannot be started at all: a value is missing or impossible.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CaseError {
    /// A value is needed that nothing gives.
    #[error("{what} is not known: give {how}")]
    Missing {
        /// What.
        what: String,
        /// Which flag or key gives it.
        how: String,
    },
    /// Declared readings that the machine cannot have.
    #[error("{0}")]
    Impossible(String),
    /// The simulator refused the machine.
    #[error(transparent)]
    Machine(#[from] BackendError),
}

/// A start that was run, with what it left on the machine.
pub struct Ran {
    /// What was decided and read.
    pub start: Start,
    /// Rules after the start, for questions about other fractions.
    pub policy: Policy,
    /// Estimates and facts.
    pub basis: Basis,
    /// Account of the first rank at the end.
    pub ledger: Ledger,
}

/// Starts the case on the simulator.
///
/// # Errors
///
/// [`CaseError`]; a start that the engine refuses is a result, not an error.
pub fn run(case: &Case) -> Result<Ran, CaseError> {
    run_on(case, simulator, &mut Vec::new()).map(|(ran, _)| ran)
}

/// A machine that a start is made on.
pub type Machine = Box<dyn Backend>;

/// Builds a machine from its description.
pub type MakeMachine<'a> = &'a dyn Fn(&MachineSpec) -> Result<Machine, CaseError>;

/// The simulator of a machine.
///
/// # Errors
///
/// [`CaseError::Machine`].
pub fn simulator(spec: &MachineSpec) -> Result<Machine, CaseError> {
    Ok(Box::new(SimBackend::new(spec.clone())?))
}

/// Whose readings decide.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Readings {
    /// The declared machine's.
    #[default]
    Declared,
    /// The machine's own; what it answers is recorded.
    Device,
    /// Those of a live run that was recorded.
    Recorded,
}

/// Starts the case on the machine that `make` builds, and hands that machine back with the server's
/// segments on it. Every decision goes to `sink`.
///
/// # Errors
///
/// [`CaseError`], also when `make` fails.
pub fn run_on<S: DecisionSink>(
    case: &Case,
    make: impl FnOnce(&MachineSpec) -> Result<Machine, CaseError>,
    sink: &mut S,
) -> Result<(Ran, Machine), CaseError> {
    run_by(case, Readings::Declared, make, sink)
}

/// The same by declared readings or by the machine's own. With its own, context is what the device says,
/// and no segment stands for it.
///
/// # Errors
///
/// As [`run_on`].
pub fn run_by<S: DecisionSink>(
    case: &Case,
    readings: Readings,
    make: impl FnOnce(&MachineSpec) -> Result<Machine, CaseError>,
    sink: &mut S,
) -> Result<(Ran, Machine), CaseError> {
    let mut prepared = prepare(case)?;
    settle_graphs(case, &mut prepared)?;
    let Prepared { machine, mut loads, capture, mut policy, basis } = prepared;
    if readings != Readings::Declared {
        for load in &mut loads {
            load.context = Bytes::ZERO;
        }
    }
    let mut backend = make(&machine)?;
    let loads = StartLoads { ranks: &loads, capture: &capture, tenants: &case.tenants };
    let start = drive(backend.as_mut(), &mut policy, sink, &loads);
    let ledger = ledger(backend.as_ref(), &basis, &start)?;
    Ok((Ran { start, policy, basis, ledger }, backend))
}

fn prepare(case: &Case) -> Result<Prepared, CaseError> {
    if !(1..=MAX_RANKS).contains(&u64::from(case.ranks)) {
        let ranks = case.ranks;
        let message = format!("a server of {ranks} ranks; allowed: 1 to {MAX_RANKS}");
        return Err(CaseError::Impossible(message));
    }
    match &case.launch {
        CaseLaunch::Sglang(args) if mlx::applies(args) => mlx::prepare(case, args),
        CaseLaunch::Sglang(args) => sglang::prepare(case, args),
        CaseLaunch::Vllm(args) => vllm::prepare(case, args),
    }
}

fn drive<S: DecisionSink>(
    backend: &mut dyn Backend,
    policy: &mut Policy,
    sink: &mut S,
    loads: &StartLoads<'_>,
) -> Start {
    match policy {
        Policy::Sglang(policy) => startup::start(backend, policy.as_mut(), sink, loads),
        Policy::Mlx(policy) => startup::start(backend, policy.as_mut(), sink, loads),
        Policy::Vllm(policy) => startup::start(backend, policy.as_mut(), sink, loads),
    }
}

/// Where the free memory after graphs is known, the graphs' account takes what a start without them
/// leaves over it; what the estimates do not explain of that stays unaccounted.
fn settle_graphs(case: &Case, prepared: &mut Prepared) -> Result<(), CaseError> {
    let Some(known) = &case.facts.free_after_graphs else { return Ok(()) };
    let bare: Vec<RankLoad> = prepared.loads.iter().map(RankLoad::without_graphs).collect();
    let mut backend = SimBackend::new(prepared.machine.clone())?;
    // A policy decides anew at every start, so the same one serves both.
    let policy = &mut prepared.policy;
    let nothing = Capture::default();
    let loads = StartLoads { ranks: &bare, capture: &nothing, tenants: &case.tenants };
    let start = drive(&mut backend, policy, &mut Vec::new(), &loads);
    let Some(after_pool) = start.reading("after_pool") else { return Ok(()) };
    for (rank, load) in prepared.loads.iter_mut().enumerate() {
        let Some(free) = after_pool.0.get(rank) else { continue };
        let late = start.pool.late_segments.get(rank).into_iter().flatten();
        let late: Bytes = late.map(|(_, bytes)| *bytes).sum();
        let mut rest = free.saturating_sub(late).saturating_sub(known.get(rank));
        let mut give = |wanted: Bytes| {
            let given = wanted.min(rest);
            rest = rest.saturating_sub(given);
            given
        };
        load.late_draft_weights = give(load.late_draft_weights);
        load.workspaces = give(load.workspaces);
        load.graphs = give(load.graphs);
        load.draft_graphs = give(load.draft_graphs);
        load.unaccounted = rest;
    }
    Ok(())
}

/// The device of every rank: capacity as physical, the driver's reserve, and how it is read.
pub(crate) fn device_spec(case: &Case, total: Bytes) -> DeviceSpec {
    let tool = match case.capacity {
        CapacityReading::Catalog => {
            case.device.smi_total_mib.as_ref().map(|mib| Bytes(mib.value * MIB))
        }
        CapacityReading::Known(bytes) => Some(bytes),
        CapacityReading::Unknown => None,
    };
    let capacity = tool.unwrap_or(total).max(total);
    DeviceSpec {
        capacity,
        tool_capacity: tool,
        total: match case.capacity {
            CapacityReading::Unknown => TotalReading::Fails,
            CapacityReading::Catalog | CapacityReading::Known(_) => TotalReading::Works,
        },
        driver_reserve: capacity.saturating_sub(total),
        others: case.facts.others.as_ref().map_or(Bytes::ZERO, |fact| fact.get(0)),
        memory: host::device_memory(case),
        ..DeviceSpec::of_capacity(capacity)
    }
}

/// The account of rank 0 at the end, every row with its derivation.
fn ledger(backend: &dyn Backend, basis: &Basis, start: &Start) -> Result<Ledger, CaseError> {
    let held = backend.held(Rank(0))?;
    let capacity = held.iter().map(|(_, bytes)| *bytes).sum();
    let mut ledger = Ledger::new(capacity);
    for (account, bytes) in held {
        let (estimate, why) = facts::row(account, bytes, basis, start);
        ledger.hold(account, estimate, why);
    }
    match ledger.rest() {
        Ok(rest) if rest == Bytes::ZERO => Ok(ledger),
        Ok(rest) => Err(CaseError::Impossible(format!("the ledger leaves {rest} without account"))),
        Err(Overdrawn { held, capacity }) => {
            Err(CaseError::Impossible(format!("the ledger holds {held} of {capacity}")))
        }
    }
}
