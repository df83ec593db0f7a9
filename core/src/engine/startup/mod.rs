//! The life of a server from its first reading to the moment when it is ready, or is refused.
//!
//! One sequence for every engine; a [`StartPolicy`] puts in the engine's rules. Readings are taken
//! at the same points and in the same order as the engines take them. Between two readings memory
//! may be taken and given back again: a small card dies of that too.

mod capture;
mod phase;
mod take;

pub use capture::{Capture, CaptureFailed, Shares};
pub use phase::Taking;

use crate::{
    backend::{Backend, BackendError, Rank},
    decision::{DecisionSink, Record, Value},
    figure::{FigureValue, NamedFigure},
    memory::ledger::Account,
    units::Bytes,
};

/// The moments between which other programs may come and go, in order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Phase {
    /// Before the first reading that enters the budget.
    BeforeLoad,
    /// Weights are in place; the pool is not yet sized.
    AfterLoad,
    /// Between the reading for the pool and the allocation of the pool.
    DuringSizing,
    /// The pool stands; graphs are not yet captured.
    BeforeGraphs,
}

impl Phase {
    /// Name in scenario files and in the decision log.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::BeforeLoad => "before_load",
            Self::AfterLoad => "after_load",
            Self::DuringSizing => "during_sizing",
            Self::BeforeGraphs => "before_graphs",
        }
    }
}

/// Another program changes what it holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TenantChange {
    /// When.
    pub phase: Phase,
    /// On which device.
    pub rank: Rank,
    /// What all other programs hold from then on.
    pub held: Bytes,
}

/// What the server takes on one rank outside the pools, in the order of taking.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RankLoad {
    /// Context, loaded code, communicators: taken before the first reading.
    pub context: Bytes,
    /// Weights and what loading leaves behind.
    pub weights: Bytes,
    /// Copies beside the weights while they load; given back before the next reading.
    pub load_scratch: Bytes,
    /// Weights of a draft model that is resident when the pool is sized.
    pub draft_weights: Bytes,
    /// Weights of a draft model that loads once the target is complete.
    pub late_draft_weights: Bytes,
    /// Workspaces, taken after the pools.
    pub workspaces: Bytes,
    /// What kernels under tuning try out; given back before graphs are captured.
    pub autotune_scratch: Bytes,
    /// Captured graphs.
    pub graphs: Bytes,
    /// Captured graphs of the draft model.
    pub draft_graphs: Bytes,
    /// Known to be taken by then, for what is not known.
    pub unaccounted: Bytes,
}

impl RankLoad {
    /// The same without all that is taken after the pools.
    #[must_use]
    pub const fn without_graphs(&self) -> Self {
        let nothing = Bytes::ZERO;
        Self {
            workspaces: nothing,
            autotune_scratch: nothing,
            graphs: nothing,
            late_draft_weights: nothing,
            draft_graphs: nothing,
            unaccounted: nothing,
            ..*self
        }
    }
}

/// Free memory of every rank at one moment, in rank order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FreeByRank(pub Vec<Bytes>);

impl FreeByRank {
    /// The rank with least free memory.
    #[must_use]
    pub fn least(&self) -> Bytes {
        self.0.iter().copied().min().unwrap_or_default()
    }
}

/// What every rank's device says about its size, in rank order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CapacityByRank {
    /// What the vendor's tool prints; `None` where it cannot say.
    pub tool: Vec<Option<Bytes>>,
    /// What programs see as total; `None` where the reading fails.
    pub total: Vec<Option<Bytes>>,
}

/// What the policy decided from the capacity alone.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct SettingsPlan {
    /// Resolved settings with their derivations.
    pub figures: Vec<NamedFigure>,
}

/// What the policy decided from the readings.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PoolPlan {
    /// Sizes with their derivations.
    pub figures: Vec<NamedFigure>,
    /// Segments that each rank takes on its device, in order of taking; one entry a rank.
    pub segments: Vec<Vec<(Account, Bytes)>>,
    /// Segments that follow once the target is complete, graphs included; one entry a rank, or none.
    pub late_segments: Vec<Vec<(Account, Bytes)>>,
    /// What the rules used say about themselves, and what is weaker than a verified rule.
    pub notes: Vec<String>,
}

/// What the policy decided about host memory.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct HostPlan {
    /// Sizes with their derivations.
    pub figures: Vec<NamedFigure>,
    /// Bytes that each rank takes on the host; empty when there is no host pool.
    pub per_rank: Vec<Bytes>,
    /// What the engine would warn about.
    pub warnings: Vec<String>,
}

/// A start that the policy or the machine refused.
#[derive(Clone, PartialEq, Debug)]
pub struct Refused {
    /// Stable code, for example `not_enough_memory`.
    pub code: &'static str,
    /// One sentence with the numbers.
    pub message: String,
    /// The engine's own words, where it has some.
    pub engine_message: Option<String>,
    /// Ways out: flag, direction and value.
    pub remedies: Vec<Remedy>,
}

/// One way out of a refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Remedy {
    /// The flag as typed.
    pub flag: String,
    /// `raise`, `lower`, `set` or `remove`.
    pub direction: &'static str,
    /// The value, when it follows from the numbers.
    pub value: Option<String>,
    /// What it does, and what else moves with it.
    pub effect: String,
}

/// An engine's rules for the start.
pub trait StartPolicy {
    /// Settings from the capacities of the devices.
    ///
    /// # Errors
    ///
    /// [`Refused`] when the engine stops here.
    fn resolve(&mut self, capacity: &CapacityByRank) -> Result<SettingsPlan, Refused>;

    /// Pools from free memory before loading and at profiling, by rank.
    ///
    /// # Errors
    ///
    /// [`Refused`] when the engine stops here.
    fn size(&mut self, before: &FreeByRank, after: &FreeByRank) -> Result<PoolPlan, Refused>;

    /// What [`Self::size`] had found when it refused; nothing unless a policy keeps it.
    fn found(&self) -> Vec<NamedFigure> {
        Vec::new()
    }

    /// The host pool, when the launch asks for one; `available` is what programs can still take.
    ///
    /// # Errors
    ///
    /// [`Refused`] when the engine stops here.
    fn host_pool(&mut self, available: Bytes) -> Result<HostPlan, Refused>;
}

/// How a start ended.
#[derive(Clone, PartialEq, Debug)]
pub enum StartEnd {
    /// The server is ready.
    Ready,
    /// The policy refused; nothing was wrong with the machine.
    Refused(Refused),
    /// The machine refused a segment.
    OutOfMemory(BackendError),
}

/// The result of a start: all that was decided and read until its end.
#[derive(Clone, PartialEq, Debug)]
pub struct Start {
    /// How it ended.
    pub end: StartEnd,
    /// Settings.
    pub settings: SettingsPlan,
    /// Pools; when sizing was refused, only the figures found until then.
    pub pool: PoolPlan,
    /// Host pool; empty when there is none.
    pub host: HostPlan,
    /// Free at each reading that was reached, by name and rank.
    pub readings: Vec<(&'static str, FreeByRank)>,
    /// What the start was doing when memory was refused; `None` when it was not.
    pub died: Option<Taking>,
}

impl Start {
    /// Free memory at a named reading.
    #[must_use]
    pub fn reading(&self, name: &str) -> Option<&FreeByRank> {
        self.readings.iter().find(|(n, _)| *n == name).map(|(_, free)| free)
    }

    /// All figures, in the order of deciding.
    pub fn figures(&self) -> impl Iterator<Item = &NamedFigure> {
        let late = self.pool.figures.iter().chain(&self.host.figures);
        self.settings.figures.iter().chain(late)
    }

    /// A figure by name.
    #[must_use]
    pub fn figure(&self, name: &str) -> Option<&NamedFigure> {
        self.figures().find(|f| f.name == name)
    }
}

/// What a server takes, and what happens around it meanwhile.
#[derive(Clone, Copy, Debug)]
pub struct StartLoads<'a> {
    /// One entry a rank.
    pub ranks: &'a [RankLoad],
    /// Graphs that every rank captures; nothing where only their sum is known.
    pub capture: &'a Capture,
    /// Other programs that come and go.
    pub tenants: &'a [TenantChange],
}

/// Starts a server.
pub fn start<B: Backend + ?Sized, P: StartPolicy, S: DecisionSink>(
    backend: &mut B,
    policy: &mut P,
    sink: &mut S,
    loads: &StartLoads<'_>,
) -> Start {
    let StartLoads { ranks: loads, capture, tenants } = *loads;
    let doing = Taking::Context;
    let mut starter =
        Starter { backend, sink, loads, capture, tenants, doing, start: Start::empty() };
    let end = match starter.run(policy) {
        Ok(()) => StartEnd::Ready,
        Err(end) => *end,
    };
    starter.close(&end);
    starter.start.end = end;
    starter.start
}

impl Start {
    const fn empty() -> Self {
        Self {
            end: StartEnd::Ready,
            settings: SettingsPlan { figures: Vec::new() },
            pool: PoolPlan {
                figures: Vec::new(),
                segments: Vec::new(),
                late_segments: Vec::new(),
                notes: Vec::new(),
            },
            host: HostPlan { figures: Vec::new(), per_rank: Vec::new(), warnings: Vec::new() },
            readings: Vec::new(),
            died: None,
        }
    }
}

/// The end of a start that did not get ready; boxed, for it is rare and large.
type Stop = Box<StartEnd>;

struct Starter<'a, B: ?Sized, S> {
    backend: &'a mut B,
    sink: &'a mut S,
    loads: &'a [RankLoad],
    capture: &'a Capture,
    tenants: &'a [TenantChange],
    doing: Taking,
    start: Start,
}

impl From<BackendError> for Stop {
    fn from(error: BackendError) -> Self {
        Self::new(StartEnd::OutOfMemory(error))
    }
}

impl From<Refused> for Stop {
    fn from(refused: Refused) -> Self {
        Self::new(StartEnd::Refused(refused))
    }
}

impl<B: Backend + ?Sized, S: DecisionSink> Starter<'_, B, S> {
    fn run<P: StartPolicy>(&mut self, policy: &mut P) -> Result<(), Stop> {
        let capacity = self.capacity()?;
        let settings = policy.resolve(&capacity)?;
        self.sink.record(figures_record("settings_resolved", &settings.figures));
        self.start.settings = settings;

        self.take_each(Account::Context, |load| load.context)?;
        self.change_tenants(Phase::BeforeLoad)?;
        let before = self.read("before_load")?;

        self.load()?;
        self.change_tenants(Phase::AfterLoad)?;
        let after = self.read("after_load")?;

        let pool = match policy.size(&before, &after) {
            Ok(pool) => pool,
            Err(refused) => {
                self.start.pool.figures = policy.found();
                return Err(refused.into());
            }
        };
        self.sink.record(figures_record("pool_sized", &pool.figures));
        self.start.pool = pool;
        self.change_tenants(Phase::DuringSizing)?;
        self.take_pools()?;
        self.read("after_pool")?;

        self.change_tenants(Phase::BeforeGraphs)?;
        self.take_outside_the_pool()?;
        self.read("after_graphs")?;
        self.take_host_pool(policy)
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> + use<B, S> {
        (0..self.backend.ranks()).map(Rank)
    }

    fn capacity(&mut self) -> Result<CapacityByRank, Stop> {
        let mut capacity = CapacityByRank::default();
        for rank in self.ranks() {
            let reading = self.backend.memory(rank)?;
            capacity.tool.push(reading.capacity);
            capacity.total.push(reading.total);
            let record = Record::of("capacity_read", rank);
            let record = record.with("tool_bytes", reading.capacity.map(|b| b.0));
            let record = record.with("total_bytes", reading.total.map(|b| b.0));
            let others = reading.others.unwrap_or_default();
            self.sink.record(match reading.common {
                None => record.with("others_bytes", others.0),
                Some(host) => record
                    .with("others_bytes", others.saturating_sub(host.others).0)
                    .with("memory", "unified")
                    .with("host_others_bytes", host.others.0)
                    .with("system_bytes", host.system.0)
                    .with("page_cache_bytes", host.page_cache.0),
            });
        }
        Ok(capacity)
    }

    fn read(&mut self, name: &'static str) -> Result<FreeByRank, Stop> {
        let mut free = Vec::new();
        for rank in self.ranks() {
            let reading = self.backend.memory(rank)?;
            free.push(reading.free);
            let record = Record::of("reading", rank).with("point", name);
            let record = record.with("free_bytes", reading.free.0);
            self.sink.record(match reading.measured_free {
                Some(measured) => record.measured("measured_free_bytes", measured.0),
                None => record,
            });
        }
        let free = FreeByRank(free);
        self.start.readings.push((name, free.clone()));
        Ok(free)
    }

    fn change_tenants(&mut self, phase: Phase) -> Result<(), Stop> {
        for change in self.tenants.iter().filter(|c| c.phase == phase) {
            self.backend.set_others(change.rank, change.held)?;
            let record = Record::of("tenant_changed", change.rank).with("phase", phase.name());
            self.sink.record(record.with("held_bytes", change.held.0));
        }
        Ok(())
    }

    fn close(&mut self, end: &StartEnd) {
        match end {
            StartEnd::Ready => self.sink.record(Record::new("ready")),
            StartEnd::Refused(refused) => {
                let record = Record::new("refused").with("code", refused.code);
                self.sink.record(record.with("message", refused.message.as_str()));
            }
            StartEnd::OutOfMemory(error) => {
                self.start.died = Some(self.doing);
                self.record_failure(error);
            }
        }
    }

    fn record_failure(&mut self, error: &BackendError) {
        let record = match error {
            BackendError::OutOfMemory { rank, account, requested, free } => {
                let record = Record::of("out_of_memory", *rank).with("account", account.name());
                let record = record.with("requested_bytes", requested.0);
                record.with("free_bytes", free.0).with("phase", self.doing.name())
            }
            BackendError::TooLarge { rank, account, requested, capacity } => {
                let record = Record::of("out_of_memory", *rank).with("account", account.name());
                let record = record.with("requested_bytes", requested.0);
                record.with("capacity_bytes", capacity.0).with("phase", self.doing.name())
            }
            BackendError::HostOutOfMemory { rank, account, limit, requested, free } => {
                let record = Record::of("out_of_memory", *rank).with("account", account.name());
                let record = record.with("requested_bytes", requested.0).with("free_bytes", free.0);
                record.with("killed_by", limit.name()).with("phase", self.doing.name())
            }
            BackendError::Unknown(_) | BackendError::DeviceLost(_) => {
                Record::new("device_lost").with("message", error.to_string().as_str())
            }
        };
        self.sink.record(record);
        let ranks: Vec<Rank> = self.ranks().collect();
        for rank in ranks {
            for (account, bytes) in self.backend.held(rank).unwrap_or_default() {
                let record = Record::of("ledger", rank).with("account", account.name());
                self.sink.record(record.with("held_bytes", bytes.0));
            }
        }
    }
}

fn figures_record(kind: &'static str, figures: &[NamedFigure]) -> Record {
    figures.iter().fold(Record::new(kind), |record, figure| {
        let value = match &figure.value {
            FigureValue::Bytes(bytes) => Value::from(bytes.0),
            FigureValue::Count(n) => Value::from(*n),
            FigureValue::Float(x) => Value::from(*x),
            FigureValue::Text(text) => Value::from(text.as_str()),
            FigureValue::List(list) => Value::Ints(list.clone()),
        };
        record.with(figure.name, value)
    })
}
