//! Values that are measured, declared or calibrated, and how a row of the ledger says where it is from.

use super::{Basis, HostMemory};
use crate::{profile::AppliedProfile, scenario::WeakerRank};
use plimsoll_core::{
    engine::startup::Start,
    estimate::Figure,
    figure::{Estimate, Tag, Why},
    memory::ledger::Account,
    units::Bytes,
};

/// A value that replaces an estimate: one for all ranks, or one a rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fact {
    /// At least one; the last stands for the ranks beyond.
    pub values: Vec<Bytes>,
    /// Measured or calibrated.
    pub tag: Tag,
    /// Where it was read.
    pub source: String,
}

impl Fact {
    /// One value for all ranks.
    #[must_use]
    pub fn all(value: Bytes, tag: Tag, source: impl Into<String>) -> Self {
        Self { values: vec![value], tag, source: source.into() }
    }

    /// The value of a rank.
    #[must_use]
    pub fn get(&self, rank: usize) -> Bytes {
        let last = self.values.len().saturating_sub(1);
        self.values.get(rank.min(last)).copied().unwrap_or_default()
    }

    /// The smallest value.
    #[must_use]
    pub fn least(&self) -> Bytes {
        self.values.iter().copied().min().unwrap_or_default()
    }

    /// As a figure without doubt.
    #[must_use]
    pub fn figure(&self, rule: &str) -> Figure {
        let why = Why::new(self.tag, rule, &self.source);
        Figure { value: Estimate::exact(self.least()), why }
    }
}

/// What is known of one start; `None` leaves the estimate.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Facts {
    /// Free before the weights load.
    pub free_before_load: Option<Fact>,
    /// What loading took: free before minus free after.
    pub used_by_load: Option<Fact>,
    /// Free when the pool is sized.
    pub free_after_load: Option<Fact>,
    /// Free after graph capture.
    pub free_after_graphs: Option<Fact>,
    /// What loading holds beside the weights at its peak.
    pub load_peak: Option<Fact>,
    /// What kernels under tuning take.
    pub autotune_scratch: Option<Fact>,
    /// What graph capture took.
    pub graph_memory: Option<Fact>,
    /// Held by other programs on each device.
    pub others: Option<Fact>,
    /// What programs see as the device's total.
    pub total: Option<Fact>,
    /// vLLM: growth outside torch.
    pub non_torch: Option<Fact>,
    /// vLLM: activation peak of the profile run.
    pub activation_peak: Option<Fact>,
    /// vLLM: estimate of the graphs.
    pub graph_estimate: Option<Fact>,
    /// MLX: active bytes once the weights are there.
    pub mlx_active: Option<Fact>,
    /// Metal's recommended working set.
    pub working_set: Option<Fact>,
    /// Ranks whose device has less than the others.
    pub weaker: Vec<WeakerRank>,
    /// The host's memory besides what programs can still take of it.
    pub host: HostMemory,
    /// Host memory that programs can still take.
    pub host_available: Option<Fact>,
    /// What the control group allows in all.
    pub cgroup_limit: Option<Bytes>,
    /// What a profile says of times.
    pub profile: Option<Box<AppliedProfile>>,
}

impl Facts {
    /// What loading takes, given directly or by the two readings around it.
    #[must_use]
    pub fn load(&self) -> Option<Fact> {
        if let Some(used) = &self.used_by_load {
            return Some(used.clone());
        }
        let (before, after) = (self.free_before_load.as_ref()?, self.free_after_load.as_ref()?);
        let ranks = before.values.len().max(after.values.len());
        let values =
            (0..ranks).map(|r| before.get(r).saturating_sub(after.get(r))).collect::<Vec<_>>();
        let source = format!("{}; {}", before.source, after.source);
        Some(Fact { values, tag: before.tag.max(after.tag), source })
    }
}

/// Interval and derivation of one account, whose best value is `bytes`.
pub(super) fn row(account: Account, bytes: Bytes, basis: &Basis, start: &Start) -> (Estimate, Why) {
    let of = |figure: &Figure| (around(figure.value, bytes), figure.why.clone());
    let sized = |name: &str| {
        let why = start.figure(name).map(|figure| figure.why.clone());
        let why = why.unwrap_or_else(|| Why::new(Tag::Computed, "pool sizing", "this start"));
        (Estimate::exact(bytes), why)
    };
    match account {
        Account::Weights => of(&basis.load),
        Account::DraftWeights => of(&basis.draft),
        Account::Graphs => of(&basis.graphs),
        Account::DraftGraphs => of(&basis.draft_graphs),
        Account::LoadScratch => of(&basis.load_scratch),
        Account::AutotuneScratch => of(&basis.autotune_scratch),
        Account::Workspaces => of(&basis.workspaces),
        Account::RequestTable => sized("req_to_token_bytes"),
        Account::KvPool => sized("kv_pool_bytes"),
        Account::DraftPool => sized("draft_max_total_num_tokens"),
        Account::StatePool => sized("state_pool_bytes"),
        Account::Context => {
            let mut why = basis.free_before_load.why.clone();
            why.rule = format!("total - other programs - free before loading ({})", why.rule);
            (Estimate::exact(bytes), why)
        }
        Account::DriverReserve => {
            let rule = "capacity - total that programs see";
            (Estimate::exact(bytes), Why::new(Tag::Calibrated, rule, "device catalog"))
        }
        Account::Unaccounted => {
            let rule = "measured free memory - all that the estimates explain";
            (Estimate::exact(bytes), Why::new(Tag::Measured, rule, "this start"))
        }
        Account::OtherPrograms => {
            let rule =
                "as given; in memory in common with the host what is neither free nor the server's";
            // On a laptop that is as certain as what was available.
            let tag = match basis.free_before_load.why.tag {
                Tag::Assumed => Tag::Assumed,
                _ => Tag::Measured,
            };
            (Estimate::exact(bytes), Why::new(tag, rule, "this start"))
        }
        Account::Activations | Account::Free => {
            let rule = "capacity - all other accounts";
            (Estimate::exact(bytes), Why::new(Tag::Computed, rule, "this start"))
        }
    }
}

/// The interval of an estimate moved so that it holds `bytes`.
fn around(estimate: Estimate, bytes: Bytes) -> Estimate {
    if estimate.mid == bytes { estimate } else { Estimate::exact(bytes) }
}
