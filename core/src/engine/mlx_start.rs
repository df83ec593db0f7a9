//! SGLang's laptop backend (MLX on Metal): memory is shared with everything else on the machine.

use super::{
    sglang_start::{count, settings_plan, why_of},
    startup::{CapacityByRank, FreeByRank, HostPlan, PoolPlan, Refused, SettingsPlan, StartPolicy},
};
use crate::{
    figure::{FigureValue, NamedFigure},
    memory::ledger::Account,
    model::geometry::{Attention, ModelGeometry, Span},
    policy::sglang::{
        self, Resolved,
        args::ServerArgs,
        capacity::{CapacityProbe, capacity},
        facts::{MachineFacts, ModelFacts},
        from_model,
        mlx::{self, MlxInputs},
        refusal::Refusal,
    },
    units::{Bytes, MIB},
};

/// Layers and heads that the slots are made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MlxShape {
    /// Attention layers.
    pub attention_layers: u64,
    /// Full-attention layers.
    pub full_attention_layers: u64,
    /// KV heads.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Bytes of an element.
    pub itemsize: u64,
    /// Longest sequence, tokens.
    pub context_len: u64,
}

impl MlxShape {
    /// From a model: its attention layers, and the heads of the first of them.
    #[must_use]
    pub fn of(model: &ModelGeometry) -> Self {
        let mut shape = Self {
            attention_layers: 0,
            full_attention_layers: 0,
            kv_heads: 0,
            head_dim: 0,
            itemsize: model.dtype.size(),
            context_len: model.context_len.0,
        };
        for layer in &model.layers {
            if let Attention::Gqa { kv_heads, head_dim, span, .. } = layer.attention {
                shape.attention_layers += 1;
                shape.full_attention_layers += u64::from(span == Span::Full);
                if shape.kv_heads == 0 {
                    (shape.kv_heads, shape.head_dim) = (kv_heads, head_dim);
                }
            }
        }
        shape
    }
}

/// The laptop backend's rules for one launch.
pub struct MlxStart {
    args: ServerArgs,
    facts: ModelFacts,
    shape: MlxShape,
    /// Active bytes of MLX once the weights are there.
    active: Bytes,
    working_set: Bytes,
    resolved: Option<Resolved>,
}

impl MlxStart {
    /// Rules for a launch of `model`.
    #[must_use]
    pub fn new(args: ServerArgs, model: &ModelGeometry, active: Bytes) -> Self {
        let facts = from_model::model_facts(model);
        Self {
            args,
            facts,
            shape: MlxShape::of(model),
            active,
            working_set: Bytes::ZERO,
            resolved: None,
        }
    }

    /// Rules for a model of which only the shape of its slots is known.
    #[must_use]
    pub fn of_shape(args: ServerArgs, shape: MlxShape, active: Bytes) -> Self {
        let facts = ModelFacts::text(shape.context_len);
        Self { args, facts, shape, active, working_set: Bytes::ZERO, resolved: None }
    }

    /// The settings, once resolved.
    #[must_use]
    pub const fn resolved(&self) -> Option<&Resolved> {
        self.resolved.as_ref()
    }

    /// What a sizing on this machine depends on, at `available` RAM.
    #[must_use]
    pub fn inputs(&self, available: Bytes) -> Option<MlxInputs> {
        let resolved = self.resolved.as_ref()?;
        Some(MlxInputs {
            mem_fraction_static: resolved.pool_fraction,
            working_set: self.working_set,
            mlx_active: self.active,
            system_available: available,
            attention_layers: self.shape.attention_layers,
            full_attention_layers: self.shape.full_attention_layers,
            kv_heads: self.shape.kv_heads,
            head_dim: self.shape.head_dim,
            kv_itemsize: self.shape.itemsize,
            max_total_tokens: self.args.max_total_tokens,
            max_running_requests: self.args.max_running_requests,
        })
    }

    fn refused(&self, refusal: &Refusal) -> Refused {
        super::refused::sglang(refusal, self.args.version)
    }
}

impl StartPolicy for MlxStart {
    fn resolve(&mut self, devices: &CapacityByRank) -> Result<SettingsPlan, Refused> {
        let set = devices.tool.iter().flatten().copied().min();
        let memory = devices.total.iter().flatten().copied().min();
        self.working_set = set.or(memory).unwrap_or_default();
        let probe = CapacityProbe { metal_working_set: set, ..CapacityProbe::default() };
        let found = capacity(self.args.version, self.args.platform, &probe)
            .map_err(|error| super::refused::capacity(&error))?;
        let machine = MachineFacts { gpu_mem_mib: found.mib, compute_capability: None };
        let resolved = sglang::resolve(&self.args, &machine, &self.facts)
            .map_err(|refusal| self.refused(&refusal))?;
        let mut plan = settings_plan(&resolved);
        let gpu_mem = found.mib.map_or_else(
            || FigureValue::Text("unknown".to_owned()),
            |mib| FigureValue::Bytes(Bytes((mib * MIB as f64) as u64)),
        );
        plan.figures.insert(0, NamedFigure::new("gpu_mem_bytes", gpu_mem, found.why));
        self.resolved = Some(resolved);
        Ok(plan)
    }

    fn size(&mut self, _before: &FreeByRank, after: &FreeByRank) -> Result<PoolPlan, Refused> {
        let Some(inputs) = self.inputs(after.least()) else { return Ok(PoolPlan::default()) };
        let pool = mlx::size(&inputs).map_err(|refusal| self.refused(&refusal))?;
        let slots = why_of(&pool.whys, "pool_slots");
        let figure = NamedFigure::new;
        let figures = vec![
            figure("kv_bytes_per_token", FigureValue::Bytes(pool.bytes_per_slot), slots.clone()),
            figure(
                "kv_budget_bytes",
                FigureValue::Bytes(pool.budget),
                why_of(&pool.whys, "kv_budget"),
            ),
            figure("max_total_num_tokens", count(pool.slots), slots.clone()),
            figure("kv_pool_bytes", FigureValue::Bytes(pool.pool_bytes), slots.clone()),
            figure("max_running_requests", FigureValue::Count(pool.max_running_requests), slots),
        ];
        let segments = vec![vec![(Account::KvPool, pool.pool_bytes)]; after.0.len()];
        let notes = self.resolved.as_ref().and_then(|r| r.rules.note.clone());
        let notes = notes.into_iter().collect();
        Ok(PoolPlan { figures, segments, notes, ..PoolPlan::default() })
    }

    fn host_pool(&mut self, _available: Bytes) -> Result<HostPlan, Refused> {
        Ok(HostPlan::default())
    }
}
