//! SGLang's start: its settings, its pool, its host pool.

use super::startup::{
    CapacityByRank, FreeByRank, HostPlan, PoolPlan, Refused, SettingsPlan, StartPolicy,
};
use crate::{
    figure::{FigureValue, NamedFigure, Tag, Why},
    memory::ledger::Account,
    model::geometry::ModelGeometry,
    policy::sglang::{
        self, Pool, RankInputs, Resolved,
        args::ServerArgs,
        capacity::{CapacityProbe, SmiReading, capacity},
        facts::{MachineFacts, ModelFacts},
        from_model,
        geometry::{CellShape, Heads, Hybrid, KvGeometry},
        hicache::{self, HicacheInputs, HostMemory},
        pool::{PoolInputs, size_stages},
        readings::{UnbalancedRanks, check_balance, draft_weights_resident, min_over_ranks},
        refusal::Refusal,
        whys::Whys,
    },
    units::{Bytes, MIB, Tokens},
};

/// A model of which only the size of a token is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KnownCell {
    /// Bytes that one token takes on one rank.
    pub bytes_per_token: Bytes,
    /// Layers that share them, for the shape of buffers.
    pub layers: u64,
    /// Longest sequence, tokens.
    pub context_len: u64,
}

/// What is known of the model.
#[derive(Clone, PartialEq, Debug)]
pub enum SglangModel {
    /// Its geometry, and the draft model's where one is named.
    Known {
        /// The target.
        target: Box<ModelGeometry>,
        /// The draft.
        draft: Option<Box<ModelGeometry>>,
    },
    /// Only its cell.
    Cell(KnownCell),
}

/// The host, as far as the check of the host pool sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct HostFacts {
    /// What the control group still allows; `None` without a limit.
    pub cgroup_headroom: Option<Bytes>,
    /// Ranks of this server on one host.
    pub ranks_on_host: u64,
}

/// SGLang's rules for one launch.
pub struct SglangStart {
    args: ServerArgs,
    model: SglangModel,
    host: HostFacts,
    compute_capability: Option<(u32, u32)>,
    resolved: Option<Resolved>,
    inputs: Vec<PoolInputs>,
    pools: Vec<Pool>,
}

impl SglangStart {
    /// Rules for a launch of `model` with `args`.
    #[must_use]
    pub fn new(
        args: ServerArgs,
        model: SglangModel,
        host: HostFacts,
        compute_capability: Option<(u32, u32)>,
    ) -> Self {
        let (inputs, pools) = (Vec::new(), Vec::new());
        Self { args, model, host, compute_capability, resolved: None, inputs, pools }
    }

    /// The settings, once resolved.
    #[must_use]
    pub const fn resolved(&self) -> Option<&Resolved> {
        self.resolved.as_ref()
    }

    /// The pool of the first pipeline stage, once sized.
    #[must_use]
    pub fn pool(&self) -> Option<&Pool> {
        self.pools.first()
    }

    /// What the pools were sized from, one entry a pipeline stage.
    #[must_use]
    pub fn pool_inputs(&self) -> &[PoolInputs] {
        &self.inputs
    }

    fn facts(&self) -> ModelFacts {
        match &self.model {
            SglangModel::Known { target, .. } => from_model::model_facts(target),
            SglangModel::Cell(cell) => ModelFacts::text(cell.context_len),
        }
    }

    fn refused(&self, refusal: &Refusal) -> Refused {
        super::refused::sglang(refusal, self.args.version)
    }

    /// One entry a pipeline stage.
    fn geometry(&self, resolved: &Resolved) -> Result<(Vec<RankInputs>, Vec<String>), Refusal> {
        let at =
            |kv, draft| RankInputs { kv, draft, pre_load_free_gib: 0.0, avail_after_load_gib: 0.0 };
        match &self.model {
            SglangModel::Known { target, draft } => {
                let stages = from_model::stages(target, resolved, draft.as_deref())?;
                let ranks = stages.stages.iter().map(|s| at(s.kv, s.draft)).collect();
                Ok((ranks, stages.notes))
            }
            SglangModel::Cell(cell) => {
                let heads = Heads { kv_heads: 1, head_dim: 1, v_head_dim: 1 };
                let kv = KvGeometry {
                    shape: CellShape::Heads(heads),
                    layers: cell.layers,
                    attn_tp_size: resolved.attn_tp_size,
                    dtype: resolved.kv_cache_dtype,
                    hybrid: Hybrid::None,
                    cell_override: Some(cell.bytes_per_token.0),
                };
                Ok((vec![at(kv, None)], Vec::new()))
            }
        }
    }
}

impl StartPolicy for SglangStart {
    fn resolve(&mut self, devices: &CapacityByRank) -> Result<SettingsPlan, Refused> {
        let known = devices.total.iter().chain(&devices.tool).any(Option::is_some);
        let probe = probe(devices);
        let found = if known {
            match capacity(self.args.version, self.args.platform, &probe) {
                Ok(found) => Some(found),
                Err(error) => return Err(super::refused::capacity(&error)),
            }
        } else {
            None
        };
        let machine = MachineFacts {
            gpu_mem_mib: found.as_ref().and_then(|c| c.mib),
            compute_capability: self.compute_capability,
        };
        let resolved = sglang::resolve(&self.args, &machine, &self.facts())
            .map_err(|refusal| self.refused(&refusal))?;
        let mut plan = settings_plan(&resolved);
        plan.figures.push(max_prefill_tokens(&self.args));
        let why = found.map_or_else(unknown_capacity, |c| c.why);
        let gpu_mem = machine.gpu_mem_mib.map_or_else(
            || FigureValue::Text("unknown".to_owned()),
            |mib| FigureValue::Bytes(Bytes((mib * MIB as f64) as u64)),
        );
        plan.figures.insert(0, NamedFigure::new("gpu_mem_bytes", gpu_mem, why));
        self.resolved = Some(resolved);
        Ok(plan)
    }

    fn size(&mut self, before: &FreeByRank, after: &FreeByRank) -> Result<PoolPlan, Refused> {
        let Some(resolved) = self.resolved.clone() else { return Ok(PoolPlan::default()) };
        let p = min_over_ranks(&before.0);
        let a = min_over_ranks(&after.0);
        let most = before.0.iter().copied().max().unwrap_or_default();
        let unbalanced = match self.args.unbalanced_ranks_allowed {
            true => UnbalancedRanks::Allowed,
            false => UnbalancedRanks::Refused,
        };
        check_balance(p, most, self.args.tp_size, unbalanced)
            .map_err(|refusal| self.refused(&refusal))?;
        let (mut ranks, mut notes) =
            self.geometry(&resolved).map_err(|refusal| self.refused(&refusal))?;
        for rank in &mut ranks {
            rank.pre_load_free_gib = p;
            rank.avail_after_load_gib = a;
        }
        self.inputs = ranks.iter().map(|rank| resolved.pool_inputs(rank)).collect();
        let pools = size_stages(&self.inputs).map_err(|refusal| self.refused(&refusal))?;
        let Some(first) = pools.first() else { return Ok(PoolPlan::default()) };
        notes.extend(first.notes.iter().cloned());
        notes.extend(resolved.rules.note.clone());
        let stage_of = |rank: usize| rank / (self.args.tp_size.max(1) as usize) % pools.len();
        let ranks = 0..before.0.len();
        let mut segments: Vec<_> = ranks.map(|rank| segments(&pools[stage_of(rank)])).collect();
        // Up to 0.5.13 the draft is built once the target is complete.
        let late_segments = match draft_weights_resident(self.args.version) {
            true => Vec::new(),
            false => segments.iter_mut().map(take_draft_pool).collect(),
        };
        let figures = pool_figures(first);
        self.pools = pools;
        Ok(PoolPlan { figures, segments, late_segments, notes })
    }

    fn host_pool(&mut self, available: Bytes) -> Result<HostPlan, Refused> {
        let Some(resolved) = &self.resolved else { return Ok(HostPlan::default()) };
        let memory = HostMemory {
            os_available: available,
            cgroup_headroom: self.host.cgroup_headroom,
            ranks_on_host: self.host.ranks_on_host.max(1),
        };
        let mut per_rank = Vec::new();
        let mut first = None;
        for pool in &self.pools {
            let Some(inputs) = HicacheInputs::for_pool(resolved, pool, memory) else { break };
            let host = hicache::plan(&inputs).map_err(|refusal| self.refused(&refusal))?;
            per_rank.extend(std::iter::repeat_n(host.bytes, self.args.tp_size.max(1) as usize));
            first.get_or_insert(host);
        }
        let Some(host) = first else { return Ok(HostPlan::default()) };
        let why = |name: &str| why_of(&host.whys, name);
        let figures = vec![
            NamedFigure::new("host_pool_tokens", count(host.tokens), why("host_tokens")),
            NamedFigure::new("host_pool_bytes", FigureValue::Bytes(host.bytes), why("host_tokens")),
            NamedFigure::new(
                "host_required_bytes",
                FigureValue::Bytes(host.host_bytes),
                why("host_check"),
            ),
        ];
        let mut warnings = host.warnings;
        warnings.extend(host.overcommitted.map(|over| {
            format!(
                "the host pools of all ranks take {over} more than the host has beside the 10 GiB \
                 that must stay free; each rank is checked alone, so the engine does not see it"
            )
        }));
        Ok(HostPlan { figures, per_rank, warnings })
    }
}

fn probe(devices: &CapacityByRank) -> CapacityProbe {
    let totals: Vec<u64> = devices.tool.iter().flatten().map(|b| b.0 / MIB).collect();
    let runtime: Vec<Bytes> = devices.total.iter().flatten().copied().collect();
    let smi =
        if totals.is_empty() { SmiReading::NoNumber } else { SmiReading::Totals(totals.clone()) };
    CapacityProbe {
        smi,
        metal_working_set: devices.tool.iter().flatten().copied().min(),
        ram_total: runtime.first().copied(),
        device_totals: runtime,
        tool_totals_mib: totals,
        ..CapacityProbe::default()
    }
}

fn unknown_capacity() -> Why {
    Why::new(Tag::Measured, "no reading of the capacity works", "machine")
}

pub(super) fn count(tokens: Tokens) -> FigureValue {
    FigureValue::Count(tokens.0)
}

pub(super) fn why_of(whys: &Whys, name: &str) -> Why {
    whys.get(name).cloned().unwrap_or_else(|| Why::new(Tag::Computed, name, "SGLang"))
}

pub(super) fn settings_plan(resolved: &Resolved) -> SettingsPlan {
    let why = |name: &str| why_of(&resolved.whys, name);
    let mut figures = vec![
        NamedFigure::new(
            "mem_fraction_static",
            FigureValue::Float(resolved.mem_fraction_static),
            why("mem_fraction_static"),
        ),
        NamedFigure::new(
            "chunked_prefill_size",
            chunk(resolved.chunked_prefill_size_after_dp),
            why("chunked_prefill_size"),
        ),
        NamedFigure::new("page_size", FigureValue::Count(resolved.page_size), why("page_size")),
        NamedFigure::new(
            "context_len",
            FigureValue::Count(resolved.context_len),
            why("context_len"),
        ),
        NamedFigure::new(
            "kv_cache_dtype",
            FigureValue::Text(resolved.kv_cache_dtype.name().to_owned()),
            why("kv_cache_dtype"),
        ),
        NamedFigure::new(
            "decode_graph_batch_sizes",
            FigureValue::List(resolved.decode_bs.clone()),
            why("cuda_graph_max_bs"),
        ),
    ];
    if let Some(max_bs) = resolved.cuda_graph_max_bs {
        let value = FigureValue::Count(max_bs);
        figures.insert(2, NamedFigure::new("cuda_graph_max_bs", value, why("cuda_graph_max_bs")));
    }
    if let Some(reserve) = &resolved.reserve {
        let bytes = Bytes((reserve.total_mib.max(0.0) * MIB as f64).round() as u64);
        let value = FigureValue::Bytes(bytes);
        figures.push(NamedFigure::new("reserved_memory", value, why("mem_fraction_static")));
    }
    SettingsPlan { figures }
}

/// 16,384 unless given, in every release.
fn max_prefill_tokens(args: &ServerArgs) -> NamedFigure {
    let (tag, rule) = match args.max_prefill_tokens {
        Some(_) => (Tag::Measured, "as given"),
        None => (Tag::Computed, "16384 unless given"),
    };
    let value = FigureValue::Count(args.prefill_budget());
    NamedFigure::new("max_prefill_tokens", value, Why::new(tag, rule, "--max-prefill-tokens"))
}

/// -1 stands for "off".
fn chunk(size: i64) -> FigureValue {
    u64::try_from(size).map_or_else(|_| FigureValue::Text("-1".to_owned()), FigureValue::Count)
}

fn segments(pool: &Pool) -> Vec<(Account, Bytes)> {
    let bytes = &pool.bytes;
    vec![
        (Account::RequestTable, bytes.req_to_token + bytes.free_lists),
        (Account::StatePool, bytes.mamba_state + bytes.mamba_draft_state),
        (Account::KvPool, bytes.kv_pool + bytes.swa_pool),
        (Account::DraftPool, bytes.draft_pool),
    ]
}

fn take_draft_pool(segments: &mut Vec<(Account, Bytes)>) -> Vec<(Account, Bytes)> {
    segments.extract_if(.., |(account, _)| *account == Account::DraftPool).collect()
}

fn pool_figures(pool: &Pool) -> Vec<NamedFigure> {
    let why = |name: &str| why_of(&pool.whys, name);
    let bytes = |b: Bytes| FigureValue::Bytes(b);
    let budget = Bytes(u64::try_from(pool.budget_bytes.max(0)).unwrap_or(u64::MAX));
    let kv = pool.bytes.kv_pool + pool.bytes.swa_pool;
    let requests = pool.requests;
    let mut figures = vec![
        NamedFigure::new("kv_bytes_per_token", cell(pool), why("cell_size")),
        NamedFigure::new("kv_budget_bytes", bytes(budget), why("kv_budget")),
        NamedFigure::new(
            "max_total_num_tokens",
            count(pool.max_total_num_tokens),
            why("max_total_num_tokens"),
        ),
        NamedFigure::new("kv_pool_bytes", bytes(kv), why("max_total_num_tokens")),
        NamedFigure::new(
            "max_running_requests",
            FigureValue::Count(requests.max_running_requests),
            why("max_running_requests"),
        ),
        NamedFigure::new(
            "req_to_token_pool_size",
            FigureValue::Count(requests.req_pool_size),
            why("max_running_requests"),
        ),
        NamedFigure::new("req_to_token_bytes", bytes(pool.bytes.req_to_token), why("req_to_token")),
    ];
    let mut add = |name, value, key: &str| figures.push(NamedFigure::new(name, value, why(key)));
    if let Some(swa) = pool.swa {
        add("full_max_total_num_tokens", count(swa.full), "max_total_num_tokens");
        add("swa_max_total_num_tokens", count(swa.swa), "max_total_num_tokens");
    }
    if let Some(mamba) = pool.mamba {
        let slots = u64::try_from(mamba.slots).unwrap_or(0);
        add("max_mamba_cache_size", FigureValue::Count(slots), "max_mamba_cache_size");
        let state = pool.bytes.mamba_state + pool.bytes.mamba_draft_state;
        add("state_pool_bytes", FigureValue::Bytes(state), "max_mamba_cache_size");
    }
    if let Some(draft) = pool.draft_pool_tokens {
        add("draft_max_total_num_tokens", count(draft), "draft_pool_tokens");
    }
    figures
}

/// A cell is whole bytes, except for sliding-window hybrids from 0.5.11.
fn cell(pool: &Pool) -> FigureValue {
    match pool.cell.whole.and_then(|whole| u64::try_from(whole).ok()) {
        Some(whole) => FigureValue::Bytes(Bytes(whole)),
        None => FigureValue::Float(pool.cell.bytes),
    }
}
