//! vLLM's start: its settings, the budget of each rank, its pool.

use super::{
    sglang_start::KnownCell,
    startup::{CapacityByRank, FreeByRank, HostPlan, PoolPlan, Refused, SettingsPlan, StartPolicy},
};
use crate::{
    figure::{FigureValue, NamedFigure, Tag, Why},
    memory::ledger::Account,
    model::geometry::ModelGeometry,
    policy::vllm::{
        args::{EngineArgs, Generation},
        budget::{self, AtStart, Requested},
        capacity::{self, Rank},
        defaults::{Device, MemoryKind, Usage},
        from_model,
        profile::{self, Profile},
        refusal::Refusal,
        settings::{self, AttentionKind, ModelFacts, Settings, StateKind},
        spec::{Heads, Kind, LayerSpec},
        v0,
    },
    units::{Bytes, Tokens},
};

/// What is known of the model.
#[derive(Clone, PartialEq, Debug)]
pub enum VllmModel {
    /// Its geometry.
    Known(Box<ModelGeometry>),
    /// Only its cell.
    Cell(KnownCell),
}

/// vLLM's rules for one launch.
pub struct VllmStart {
    args: EngineArgs,
    model: VllmModel,
    device_name: String,
    memory: MemoryKind,
    compute_capability: Option<(u32, u32)>,
    /// What profiling charges on each rank.
    profiles: Vec<Profile>,
    settings: Option<Settings>,
    ranks: Vec<Rank>,
    total: Bytes,
    /// What sizing has found so far.
    found: Vec<NamedFigure>,
}

/// The device as vLLM's defaults see it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VllmDevice {
    /// Name as the driver prints it.
    pub name: String,
    /// Own or shared memory.
    pub memory: MemoryKind,
    /// CUDA compute capability, when known.
    pub compute_capability: Option<(u32, u32)>,
}

impl VllmStart {
    /// Rules for a launch of `model` with `args`; `profiles` has one entry a rank.
    #[must_use]
    pub fn new(
        args: EngineArgs,
        model: VllmModel,
        device: VllmDevice,
        profiles: Vec<Profile>,
    ) -> Self {
        let VllmDevice { name, memory, compute_capability } = device;
        Self {
            args,
            model,
            device_name: name,
            memory,
            compute_capability,
            profiles,
            settings: None,
            ranks: Vec::new(),
            total: Bytes::ZERO,
            found: Vec::new(),
        }
    }

    /// The settings, once resolved.
    #[must_use]
    pub const fn settings(&self) -> Option<&Settings> {
        self.settings.as_ref()
    }

    /// Layers and available memory of each rank, once measured (also when the sizing then refuses).
    #[must_use]
    pub fn ranks(&self) -> &[Rank] {
        &self.ranks
    }

    /// Total memory that the fraction is a fraction of.
    #[must_use]
    pub const fn total(&self) -> Bytes {
        self.total
    }

    fn device(&self) -> Device {
        Device {
            name: self.device_name.clone(),
            total: self.total,
            memory: self.memory,
            compute_capability: self.compute_capability,
        }
    }

    fn layers(&self, settings: &Settings, stage: usize) -> Result<Vec<LayerSpec>, Refused> {
        match &self.model {
            VllmModel::Known(model) => from_model::layer_specs(model, &self.args, settings, stage)
                .map_err(|error| input_error(&error)),
            VllmModel::Cell(cell) => {
                let bytes = cell.bytes_per_token.0;
                let heads = Heads { kv_heads: 1, head_size: bytes, head_size_v: 0, element: 1 };
                Ok(vec![LayerSpec::heads(Kind::Full, heads, settings.block_size)])
            }
        }
    }

    fn facts(&self) -> ModelFacts {
        match &self.model {
            VllmModel::Known(model) => from_model::facts(model),
            VllmModel::Cell(cell) => ModelFacts {
                context_len: Tokens(cell.context_len),
                attention: AttentionKind::Heads,
                state: StateKind::Absent,
            },
        }
    }
}

fn input_error(error: &dyn std::error::Error) -> Refused {
    Refused {
        code: "out_of_range",
        message: error.to_string(),
        engine_message: None,
        remedies: Vec::new(),
    }
}

impl StartPolicy for VllmStart {
    fn resolve(&mut self, devices: &CapacityByRank) -> Result<SettingsPlan, Refused> {
        self.total = devices.total.iter().flatten().copied().min().unwrap_or_default();
        let settings = settings::resolve(&self.args, &self.device(), Usage::Server, self.facts())
            .map_err(|error| input_error(&error))?;
        let figures = settings_figures(&settings);
        self.settings = Some(settings);
        Ok(SettingsPlan { figures })
    }

    fn size(&mut self, before: &FreeByRank, after: &FreeByRank) -> Result<PoolPlan, Refused> {
        let Some(settings) = self.settings.clone() else { return Ok(PoolPlan::default()) };
        let refused = |refusal: Refusal| super::refused::vllm(&refusal, &settings.rules);
        let device = self.device();
        let mut ranks = Vec::new();
        let mut first: Option<(Requested, profile::Available)> = None;
        let tp = self.args.tensor_parallel_size.max(1) as usize;
        let stages = self.args.pipeline_parallel_size.max(1) as usize;
        for (rank, (free, terms)) in before.0.iter().zip(&self.profiles).enumerate() {
            let at_start = AtStart {
                host_available: Some(*free),
                device_index: u32::try_from(rank).unwrap_or(0),
                ..AtStart::free(*free)
            };
            self.found = vec![requested_figure(&budget::budget(&settings, &device, at_start))];
            let requested = budget::requested(&settings, &device, at_start).map_err(&refused)?;
            check_growth(&settings, *free, after.0.get(rank), terms).map_err(&refused)?;
            let available = profile::available_kv(&settings, &requested, terms);
            let layers = self.layers(&settings, rank / tp % stages)?;
            ranks.push(Rank { layers, available: available.bytes });
            let least = first.as_ref().is_none_or(|(_, a)| available.bytes < a.bytes);
            if least {
                first = Some((requested, available));
            }
        }
        let Some((requested, available)) = first else { return Ok(PoolPlan::default()) };
        let mut figures = budget_figures(&requested, &available);
        self.found.clone_from(&figures);
        let count = ranks.len();
        let sized = match settings.rules.generation {
            Generation::V1 => v1(&settings, &ranks),
            Generation::V0 => v0(&settings, &ranks),
        };
        // Kept before a refusal leaves: what was available says by how much it fails.
        self.ranks = ranks;
        let (bytes, sized) = sized.map_err(&refused)?;
        figures.extend(sized);
        let notes = settings.notes.clone();
        let segments = vec![vec![(Account::KvPool, bytes)]; count];
        Ok(PoolPlan { figures, segments, notes, ..PoolPlan::default() })
    }

    fn found(&self) -> Vec<NamedFigure> {
        self.found.clone()
    }

    fn host_pool(&mut self, _available: Bytes) -> Result<HostPlan, Refused> {
        Ok(HostPlan::default())
    }
}

/// The check after profiling, in V1 when it measures: what is free then is what is free after loading less
/// the growth outside torch.
fn check_growth(
    settings: &Settings,
    initial: Bytes,
    after_load: Option<&Bytes>,
    terms: &Profile,
) -> Result<(), Refusal> {
    let measures = settings.kv_cache_memory_bytes.is_none();
    match after_load {
        Some(after) if measures && settings.rules.generation == Generation::V1 => {
            budget::check_growth(settings, initial, after.saturating_sub(terms.non_torch))
        }
        _ => Ok(()),
    }
}

fn v1(settings: &Settings, ranks: &[Rank]) -> Result<(Bytes, Vec<NamedFigure>), Refusal> {
    let pool = capacity::size_pool(settings, ranks)?;
    let why = |name: &str| {
        let found = pool.whys.iter().find(|(n, _)| *n == name).map(|(_, why)| why.clone());
        found.unwrap_or_else(|| Why::new(Tag::Computed, name, settings.rules.release()))
    };
    let count = |n: u64| FigureValue::Count(n);
    let figure = NamedFigure::new;
    let mut figures = vec![
        figure("bytes_per_block", FigureValue::Bytes(pool.bytes_per_block), why("bytes_per_block")),
        figure("block_size", count(pool.grouping.min_block_size()), why("block_size")),
        figure("num_gpu_blocks", count(pool.num_blocks), why("num_gpu_blocks")),
        figure("kv_cache_tokens", count(pool.kv_cache_tokens.0), why("kv_cache_tokens")),
        figure("max_model_len", count(pool.max_model_len), why("max_model_len")),
        figure("max_concurrency", FigureValue::Float(pool.max_concurrency), why("max_concurrency")),
        figure("kv_pool_bytes", FigureValue::Bytes(pool.bytes()), why("num_gpu_blocks")),
    ];
    // One group on one rank's own tokens: a token takes its share of a block. Several groups have no
    // such number.
    if pool.grouping.groups.len() == 1 && settings.decode_context_parallel_size == 1 {
        let block = pool.grouping.min_block_size();
        figures.extend(per_token(pool.bytes_per_block, block, settings));
    }
    Ok((pool.bytes(), figures))
}

fn v0(settings: &Settings, ranks: &[Rank]) -> Result<(Bytes, Vec<NamedFigure>), Refusal> {
    let available: Vec<i64> = ranks.iter().map(|rank| rank.available).collect();
    let layers = ranks.first().map(|rank| rank.layers.as_slice()).unwrap_or_default();
    let pool = v0::size_pool(settings, layers, &available)?;
    let why = || pool.why.clone();
    let count = |n: u64| FigureValue::Count(n);
    let bytes = Bytes(pool.gpu_blocks.saturating_mul(pool.block_bytes.0));
    let figure = NamedFigure::new;
    let mut figures = vec![
        figure("bytes_per_block", FigureValue::Bytes(pool.block_bytes), why()),
        figure("num_gpu_blocks", count(pool.gpu_blocks), why()),
        figure("num_cpu_blocks", count(pool.cpu_blocks), why()),
        figure("kv_cache_tokens", count(pool.slots.0), why()),
        figure("max_model_len", count(pool.max_model_len), why()),
        figure("max_concurrency", FigureValue::Float(pool.max_concurrency), why()),
        figure("kv_pool_bytes", FigureValue::Bytes(bytes), why()),
    ];
    figures.extend(per_token(pool.block_bytes, settings.block_size, settings));
    Ok((bytes, figures))
}

/// Bytes of one token on one rank, where a block is whole tokens.
fn per_token(bytes_per_block: Bytes, block_size: u64, settings: &Settings) -> Option<NamedFigure> {
    if block_size == 0 || !bytes_per_block.0.is_multiple_of(block_size) {
        return None;
    }
    let source = format!("{} kv_cache_interface", settings.rules.release());
    let why = Why::new(Tag::Computed, "bytes_per_block / block_size, one group", source)
        .with("bytes_per_block", bytes_per_block.0)
        .with("block_size", block_size);
    let value = FigureValue::Bytes(Bytes(bytes_per_block.0 / block_size));
    Some(NamedFigure::new("kv_bytes_per_token", value, why))
}

fn settings_figures(settings: &Settings) -> Vec<NamedFigure> {
    let why = |name: &str| {
        let found = settings.why(name).cloned();
        found.unwrap_or_else(|| Why::new(Tag::Computed, name, settings.rules.release()))
    };
    let count = |name, n: u64| NamedFigure::new(name, FigureValue::Count(n), why(name));
    vec![
        NamedFigure::new(
            "gpu_memory_utilization",
            FigureValue::Float(settings.gpu_memory_utilization),
            why("gpu_memory_utilization"),
        ),
        count("max_num_batched_tokens", settings.max_num_batched_tokens),
        count("max_num_seqs", settings.max_num_seqs),
        NamedFigure::new(
            "cudagraph_capture_sizes",
            FigureValue::List(settings.capture_sizes.clone()),
            why("cudagraph_capture_sizes"),
        ),
    ]
}

fn requested_figure(requested: &Requested) -> NamedFigure {
    let value = FigureValue::Bytes(requested.floor());
    NamedFigure::new("requested_memory", value, requested.why.clone())
}

fn budget_figures(requested: &Requested, available: &profile::Available) -> Vec<NamedFigure> {
    let kv = Bytes(u64::try_from(available.bytes).unwrap_or(0));
    vec![
        requested_figure(requested),
        NamedFigure::new(
            "available_kv_cache_memory",
            FigureValue::Bytes(kv),
            available.why.clone(),
        ),
    ]
}
