//! The KV pool of one rank: budget, tokens, caps, pages, splits, limits, and every byte that they take.

use super::{args::DisaggregationMode, geometry::CellShape};
use super::{
    cell::{Cell, CellQuestion},
    geometry::{DraftKv, KvGeometry},
    mamba::{self, MambaNumbers},
    pool_bytes::{PoolBytes, pool_bytes, pool_whys},
    refusal::{Refusal, in_range},
    requests::{LimitQuestion, Requests},
    rules::RulesFor,
    settings::Resolved,
    speculation::{DraftKind, Speculation},
    swa::{self, LayerBytes, SwaNumbers, page_floor, tokens_of},
    version::Version,
    whys::Whys,
};
use crate::{
    pyfloat::{floor_div, trunc_i64},
    units::{GIB, Tokens},
};

/// Whether prefixes are kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RadixCache {
    /// The default.
    Enabled,
    /// `--disable-radix-cache`.
    Disabled,
}

/// Whether scheduling overlaps with execution.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Overlap {
    /// The default.
    Enabled,
    /// `--disable-overlap-schedule`.
    Disabled,
}

/// Everything that the pool of one rank depends on. Memory figures are GiB as the engine reads them.
#[derive(Clone, PartialEq, Debug)]
pub struct PoolInputs {
    /// Release.
    pub version: Version,
    /// Geometry of the rank.
    pub kv: KvGeometry,
    /// Draft KV.
    pub draft: Option<DraftKv>,
    /// `page_size`, tokens.
    pub page_size: u64,
    /// `context_len`, tokens.
    pub context_len: u64,
    /// P: free before loading, the minimum over ranks ([`super::readings::min_over_ranks`]).
    pub pre_load_free_gib: f64,
    /// A: free when the pool is sized, the minimum over ranks.
    pub avail_after_load_gib: f64,
    /// Fraction that the budget uses ([`Resolved::pool_fraction`]).
    pub mem_fraction_static: f64,
    /// MiB taken from the budget before anything else (multimodal caches, 0.5.18 and later).
    pub withheld_mib: f64,
    /// `max_total_tokens`.
    pub max_total_tokens: Option<u64>,
    /// `max_running_requests`, with the default that speculation sets.
    pub max_running_requests: Option<u64>,
    /// `max_running_requests` as the user gave it.
    pub user_max_running_requests: Option<u64>,
    /// Attention-DP width.
    pub attn_dp_size: u64,
    /// `chunked_prefill_size` after division by dp.
    pub chunked_prefill_size: i64,
    /// Speculation.
    pub speculation: Option<Speculation>,
    /// Radix cache.
    pub radix_cache: RadixCache,
    /// Overlap.
    pub overlap: Overlap,
    /// Role.
    pub role: DisaggregationMode,
    /// Smallest count of the pipeline stages, when the rank is one of several.
    pub pp_min_tokens: Option<u64>,
}

impl PoolInputs {
    /// Whether this is the decode side of a disaggregated server.
    #[must_use]
    pub fn decode_role(&self) -> bool {
        self.role == DisaggregationMode::Decode
    }

    /// Extra request slots of the decode role: twice the table when it has at most 32 rows.
    #[must_use]
    pub fn extra_slots(&self, table: i128) -> u64 {
        u64::try_from(table).ok().filter(|&n| n <= 32).map_or(0, |n| 2 * n)
    }

    /// Memory for state slots and KV: `A - P * (1 - f)` less what is withheld, GiB; below zero where
    /// the engine refuses.
    #[must_use]
    pub fn budget_gib(&self) -> f64 {
        let budget =
            self.avail_after_load_gib - self.pre_load_free_gib * (1.0 - self.mem_fraction_static);
        if self.withheld_mib > 0.0 { budget - self.withheld_mib / 1024.0 } else { budget }
    }

    fn check(&self) -> Result<(), Refusal> {
        self.kv.check()?;
        in_range("page_size", self.page_size, 1, 1 << 20)?;
        in_range("context_len", self.context_len, 1, 1 << 40)?;
        in_range("free before load in GiB", self.pre_load_free_gib, 1e-6, 1e6)?;
        in_range("free after load in GiB", self.avail_after_load_gib, -1e6, 1e6)?;
        in_range("mem_fraction_static", self.mem_fraction_static, -100.0, 100.0)?;
        in_range("withheld MiB", self.withheld_mib, 0.0, 1e9)?;
        in_range("max_total_tokens", self.max_total_tokens.unwrap_or(1), 1, 1 << 40)?;
        in_range("max_running_requests", self.max_running_requests.unwrap_or(1), 1, 1 << 32)?;
        in_range("attention dp size", self.attn_dp_size, 1, 1 << 16)?;
        if let Some(s) = &self.speculation {
            in_range("speculative_num_steps", s.num_steps, 1, 65_536)?;
            in_range("speculative_eagle_topk", s.topk, 1, 65_536)?;
            in_range("speculative_num_draft_tokens", s.num_draft_tokens, 1, 65_536)?;
        }
        in_range("draft layers", self.draft.map_or(0, |d| d.layers), 0, 10_000)
    }
}

/// Tokens of the two pools of a sliding-window hybrid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SwaTokens {
    /// `full_layer_tokens`; 0 when every layer slides.
    pub full: Tokens,
    /// `swa_layer_tokens`.
    pub swa: Tokens,
}

/// State slots of a linear-attention hybrid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MambaSlots {
    /// `max_mamba_cache_size`, without the padding slot.
    pub slots: i64,
    /// Slots of one running request.
    pub per_request: u64,
}

/// One rank's pool.
#[derive(Clone, PartialEq, Debug)]
pub struct Pool {
    /// Rules used.
    pub rules: RulesFor,
    /// Bytes of a token.
    pub cell: Cell,
    /// `A - P (1 - f)` less what is withheld, GiB.
    pub budget_gib: f64,
    /// The same in whole bytes, before state slots; may be negative only in a refusal.
    pub budget_bytes: i128,
    /// `max_total_num_tokens`.
    pub max_total_num_tokens: Tokens,
    /// Sliding-window hybrid.
    pub swa: Option<SwaTokens>,
    /// Tokens of the draft's pool.
    pub draft_pool_tokens: Option<Tokens>,
    /// Linear-attention hybrid.
    pub mamba: Option<MambaSlots>,
    /// Request limits and table.
    pub requests: Requests,
    /// Bytes of each account.
    pub bytes: PoolBytes,
    /// What is weaker than a verified rule here.
    pub notes: Vec<String>,
    /// Derivations: `kv_budget`, `cell_size`, `max_total_num_tokens`, `req_to_token`, and more.
    pub whys: Whys,
}

/// The numbers without derivations.
#[derive(Clone, Debug)]
pub(crate) struct Numbers {
    pub(crate) cell: Cell,
    pub(crate) budget_gib: f64,
    pub(crate) budget_bytes: i128,
    pub(crate) tokens: i128,
    pub(crate) swa: Option<SwaNumbers>,
    pub(crate) draft_pool: Option<i128>,
    pub(crate) mamba: Option<MambaNumbers>,
    pub(crate) requests: Requests,
}

/// Sizes one rank's pool with all its bytes and derivations.
///
/// # Errors
/// [`Refusal`]: whatever makes the engine stop here, or values out of range.
pub fn size(inputs: &PoolInputs) -> Result<Pool, Refusal> {
    let rules = RulesFor::version(inputs.version);
    let n = numbers(inputs)?;
    let tokens = |t: i128| Tokens(u64::try_from(t.max(0)).unwrap_or(u64::MAX));
    let mut whys = Whys::default();
    pool_whys(rules.used, inputs, &n, &mut whys);
    Ok(Pool {
        budget_gib: n.budget_gib,
        budget_bytes: n.budget_bytes,
        max_total_num_tokens: tokens(n.tokens),
        swa: n.swa.map(|s| SwaTokens { full: tokens(s.full), swa: tokens(s.swa) }),
        draft_pool_tokens: n.draft_pool.map(tokens),
        mamba: n.mamba.map(|m| MambaSlots {
            slots: i64::try_from(m.slots).unwrap_or(i64::MAX),
            per_request: u64::try_from(m.per_request).unwrap_or(1),
        }),
        requests: n.requests,
        bytes: pool_bytes(rules.used, inputs, &n),
        notes: notes(rules.used, inputs),
        cell: n.cell,
        rules,
        whys,
    })
}

/// Only `max_total_num_tokens`; the same rules without derivations.
///
/// # Errors
/// As [`size`].
pub fn tokens(inputs: &PoolInputs) -> Result<Tokens, Refusal> {
    numbers(inputs).map(|n| Tokens(u64::try_from(n.tokens.max(0)).unwrap_or(u64::MAX)))
}

/// Sizes the ranks of a pipeline: each stage by its own geometry, all cut to the smallest count.
///
/// # Errors
/// The first rank's refusal.
pub fn size_stages(stages: &[PoolInputs]) -> Result<Vec<Pool>, Refusal> {
    let mut least: Option<u64> = None;
    if stages.len() > 1 {
        for stage in stages {
            let own = local_tokens(stage)?;
            least = Some(least.map_or(own, |n| n.min(own)));
        }
    }
    stages.iter().map(|stage| size(&PoolInputs { pp_min_tokens: least, ..stage.clone() })).collect()
}

/// What a stage brings to the minimum: its count before (to 0.5.10) or after the split.
fn local_tokens(inputs: &PoolInputs) -> Result<u64, Refusal> {
    let sizing = Sizing::start(inputs)?;
    let n = if sizing.v.since(5, 11) {
        sizing.late_counts(inputs.max_total_tokens.map(i128::from))?.1
    } else {
        sizing.early_uniform().capped
    };
    Ok(u64::try_from(n.max(0)).unwrap_or(u64::MAX))
}

pub(crate) fn numbers(inputs: &PoolInputs) -> Result<Numbers, Refusal> {
    let sizing = Sizing::start(inputs)?;
    if sizing.v.since(5, 11) { sizing.late() } else { sizing.early() }
}

/// A sizing under way: budget after state slots, cell, geometry.
struct Sizing<'a> {
    v: Version,
    i: &'a PoolInputs,
    cell: Cell,
    layer: Option<LayerBytes>,
    budget_gib: f64,
    rest_gib: f64,
    mamba: Option<MambaNumbers>,
}

/// Counts to 0.5.10 before the split.
struct EarlyCounts {
    uncapped: i128,
    enlarged: i128,
    capped: i128,
}

impl<'a> Sizing<'a> {
    fn start(i: &'a PoolInputs) -> Result<Self, Refusal> {
        i.check()?;
        let v = RulesFor::version(i.version).used;
        if i.kv.swa(v).is_some() && i.page_size > 1 && !v.since(5, 8) {
            return Err(Refusal::SwaNeedsPageOne { version: v, page_size: i.page_size });
        }
        let question = CellQuestion {
            version: v,
            kv: &i.kv,
            speculation: i.speculation.as_ref(),
            draft_layers: i.draft.map_or(0, |d| d.layers),
            draft_cell: i.draft.and_then(|d| d.cell_bytes),
        };
        let cell = question.answer();
        let layer = match (i.kv.swa(v), &i.kv.shape) {
            (Some(swa), CellShape::Heads(full)) => Some(LayerBytes {
                full: question.layer_bytes(full),
                swa: question.layer_bytes(&swa.swa_heads),
                draft: i128::from(question.charged_draft()),
            }),
            _ => None,
        };
        let budget_gib = i.budget_gib();
        let mut sizing = Self { v, i, cell, layer, budget_gib, rest_gib: budget_gib, mamba: None };
        if let Some(hybrid) = i.kv.mamba() {
            let m = mamba::size(v, i, hybrid, budget_gib)?;
            sizing.rest_gib = m.rest_gib;
            sizing.mamba = Some(m);
        }
        if v.since(5, 14) && sizing.rest_gib <= 0.0 {
            return Err(sizing.weights_refusal());
        }
        Ok(sizing)
    }

    fn weights_refusal(&self) -> Refusal {
        let minimum = 1.0 - self.i.avail_after_load_gib / self.i.pre_load_free_gib;
        Refusal::WeightsLeaveNoMemory {
            fraction: self.i.mem_fraction_static,
            minimum,
            suggested: (minimum * 1000.0).ceil() / 1000.0,
            budget_gib: self.rest_gib,
        }
    }

    fn not_enough(&self, tokens: i128) -> Refusal {
        Refusal::NotEnoughMemory {
            fraction: self.i.mem_fraction_static,
            budget_bytes: whole(self.rest_gib * GIB as f64),
            cell_bytes: self.cell.bytes,
            tokens,
            page_size: self.i.page_size,
        }
    }

    fn by_state(&self) -> Option<i128> {
        self.mamba.map(|m| m.slots.div_euclid(m.per_request.max(1)))
    }

    /// The user's cap and the other stages' minimum.
    fn limit(&self) -> Option<i128> {
        let caps = [self.i.max_total_tokens, self.i.pp_min_tokens];
        caps.into_iter().flatten().min().map(i128::from)
    }

    // ---- to 0.5.10: cap, page, split --------------------------------------------------------

    fn early_uniform(&self) -> EarlyCounts {
        let budget = self.rest_gib * GIB as f64;
        let uncapped = match self.cell.whole {
            Some(cell) if self.v.since(5, 7) => whole(budget).div_euclid(cell.max(1)),
            _ => whole(floor_div(budget, self.cell.bytes)),
        };
        let enlarged = uncapped + self.draft_enlargement(uncapped);
        let cap = self.i.max_total_tokens.map_or(enlarged, |n| enlarged.min(i128::from(n)));
        EarlyCounts { uncapped, enlarged, capped: page_floor(cap, self.i.page_size) }
    }

    /// To 0.5.6 the target's pool is made larger by what the draft writes ahead.
    fn draft_enlargement(&self, uncapped: i128) -> i128 {
        let Some(s) = &self.i.speculation else { return 0 };
        let applies = match self.v.since(5, 3) {
            true => s.kind == DraftKind::Model && !self.v.since(5, 7),
            false => true,
        };
        if !applies {
            return 0;
        }
        let n = self.limits(uncapped, uncapped).table();
        let ahead = i128::from(s.num_steps) * i128::from(s.topk) + i128::from(s.num_draft_tokens);
        n * ahead + 100
    }

    fn limits(&self, uncapped: i128, tokens: i128) -> LimitQuestion<'a> {
        let by_state = self.by_state();
        LimitQuestion { version: self.v, inputs: self.i, uncapped, tokens, by_state }
    }

    fn early(self) -> Result<Numbers, Refusal> {
        let counts = self.early_uniform();
        let mut tokens = match self.i.pp_min_tokens {
            Some(least) if self.v.since(5, 2) => counts.capped.min(i128::from(least)),
            _ => counts.capped,
        };
        let mut split = None;
        if let (Some(hybrid), Some(layer)) = (self.i.kv.swa(self.v), self.layer) {
            let s = swa::split_uniform(self.v, tokens, hybrid, layer, self.i.page_size);
            tokens = s.total();
            split = Some(s);
        }
        if tokens <= 0 {
            return Err(self.not_enough(tokens));
        }
        let draft_pool = self.early_draft_pool(&counts, tokens);
        let requests = self.limits(counts.uncapped, tokens).answer();
        Ok(self.finish(tokens, split, draft_pool, requests))
    }

    /// To 0.5.6 the enlarged count; in 0.5.7 and 0.5.8 what stood before the cap; then the final count.
    fn early_draft_pool(&self, counts: &EarlyCounts, tokens: i128) -> Option<i128> {
        let kind = self.i.speculation.as_ref()?.kind;
        let model = kind == DraftKind::Model;
        match self.v {
            v if v.since(5, 9) => Some(tokens),
            v if v.since(5, 8) => Some(counts.uncapped),
            v if v.since(5, 7) => model.then_some(counts.uncapped),
            v if v.since(5, 3) => model.then_some(counts.enlarged),
            _ => Some(counts.enlarged),
        }
    }

    // ---- 0.5.11 and later: page or split, cap, again ----------------------------------------

    /// The split (for hybrids) and the final count under `limit`.
    fn late_counts(&self, limit: Option<i128>) -> Result<(Option<SwaNumbers>, i128), Refusal> {
        let budget = whole(self.rest_gib * GIB as f64);
        let page = self.i.page_size;
        let own = tokens_of(budget, self.cell.bytes, self.cell.whole);
        let (Some(hybrid), Some(layer)) = (self.i.kv.swa(self.v), self.layer) else {
            let tokens = page_floor(own, page);
            return Ok((None, self.capped(tokens, limit)?.unwrap_or(tokens)));
        };
        if hybrid.layers.full == 0 {
            let tokens = page_floor(own, page);
            let swa = self.capped(tokens, limit)?.unwrap_or(tokens);
            return Ok((Some(SwaNumbers { full: 0, swa }), swa));
        }
        if let Some(cap) = swa::request_cap(self.v, self.i, hybrid) {
            let mut s = swa::split_capped(budget, cap, self.i, hybrid, layer)?;
            if let Some(full) = self.capped(s.full, limit)? {
                s = SwaNumbers { full, swa: s.swa.min(limit.unwrap_or(s.swa)) };
            }
            return Ok((Some(s), s.full));
        }
        let mut s = swa::split_full(self.v, own, hybrid, page)?;
        if let Some(limit) = limit
            && self.capped(s.full, Some(limit))?.is_some()
        {
            s = swa::split_full(self.v, limit, hybrid, page)?;
        }
        Ok((Some(s), s.full))
    }

    /// The page-floored cap when it is below `tokens`.
    fn capped(&self, tokens: i128, limit: Option<i128>) -> Result<Option<i128>, Refusal> {
        if tokens <= 0 {
            return Err(self.not_enough(tokens));
        }
        let page = self.i.page_size;
        Ok(limit.filter(|&limit| limit < tokens).map(|limit| page_floor(limit, page)))
    }

    fn late(self) -> Result<Numbers, Refusal> {
        let (split, tokens) = self.late_counts(self.limit())?;
        if tokens <= 0 {
            return Err(self.not_enough(tokens));
        }
        let question = self.limits(tokens, tokens);
        if let Some(m) = self.mamba
            && self.v.since(5, 13)
            && question.table() <= 0
        {
            let per_request = u64::try_from(m.per_request).unwrap_or(1);
            return Err(Refusal::NoRequestPerMambaSlots { slots: m.slots, per_request });
        }
        let draft_pool = self.i.speculation.as_ref().map(|_| tokens);
        let requests = question.answer();
        Ok(self.finish(tokens, split, draft_pool, requests))
    }

    fn finish(
        self,
        tokens: i128,
        swa: Option<SwaNumbers>,
        draft_pool: Option<i128>,
        requests: Requests,
    ) -> Numbers {
        Numbers {
            budget_gib: self.budget_gib,
            budget_bytes: whole(self.budget_gib * GIB as f64),
            cell: self.cell,
            tokens,
            swa,
            draft_pool,
            mamba: self.mamba,
            requests,
        }
    }
}

fn whole(x: f64) -> i128 {
    i128::from(trunc_i64(x))
}

/// Where the rules were read but never run.
fn notes(v: Version, i: &PoolInputs) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |holds: bool, text: &str| {
        if holds {
            notes.push(text.to_owned());
        }
    };
    note(
        i.kv.mamba().is_some() && !v.since(5, 2),
        "linear-attention hybrids have pools from 0.5.2; this release does not run them",
    );
    let speculation = i.speculation.as_ref();
    let capped = i.kv.swa(v).is_some_and(|s| swa::request_cap(v, i, s).is_some());
    note(
        capped && speculation.is_some(),
        "the request-capped SWA pool with speculation was not compared with the engine",
    );
    note(
        speculation.is_some_and(|s| s.topk > 1) && i.page_size > 1 && v.since(5, 13),
        "request table columns with top-k above 1 and pages were not compared with the engine",
    );
    note(
        speculation.is_some_and(|s| s.kind == DraftKind::Block),
        "block drafts (DFlash) are charged by their own geometry, which is not modelled here",
    );
    note(
        i.kv.dtype == super::facts::KvDtype::Fp4 && v.since(5, 21),
        "FP4 recipes of 0.5.21 and later differ by backend; the block-of-16 layout is assumed",
    );
    note(
        i.kv.mamba().is_some_and(|m| m.strategy != super::geometry::MambaStrategy::NoBuffer),
        "extra-buffer state slots were not compared with the engine",
    );
    notes
}

/// Readings and geometry that settings do not have.
#[derive(Clone, PartialEq, Debug)]
pub struct RankInputs {
    /// Geometry of the rank.
    pub kv: KvGeometry,
    /// Draft KV.
    pub draft: Option<DraftKv>,
    /// P, GiB, the minimum over ranks.
    pub pre_load_free_gib: f64,
    /// A, GiB, the minimum over ranks.
    pub avail_after_load_gib: f64,
}

impl Resolved {
    /// The pool's inputs: these settings with a rank's geometry and readings.
    #[must_use]
    pub fn pool_inputs(&self, rank: &RankInputs) -> PoolInputs {
        let a = &self.args;
        let v = self.rules.used;
        let multimodal = self.multimodal && v.since(5, 18);
        PoolInputs {
            version: a.version,
            kv: rank.kv,
            draft: rank.draft,
            page_size: self.page_size,
            context_len: self.context_len,
            pre_load_free_gib: rank.pre_load_free_gib,
            avail_after_load_gib: rank.avail_after_load_gib,
            mem_fraction_static: self.pool_fraction,
            withheld_mib: if multimodal { 100.0 } else { 0.0 },
            max_total_tokens: a.max_total_tokens,
            max_running_requests: self.max_running_requests,
            user_max_running_requests: a.max_running_requests,
            attn_dp_size: self.attn_dp_size,
            chunked_prefill_size: self.scheduler_chunk,
            speculation: self.speculation.clone(),
            radix_cache: self.radix_cache(),
            overlap: self.overlap(),
            role: a.disaggregation_mode,
            pp_min_tokens: None,
        }
    }

    /// The radix cache: off by flag, and for the decode role.
    #[must_use]
    pub fn radix_cache(&self) -> RadixCache {
        let off = self.args.disable_radix_cache
            || self.args.disaggregation_mode == DisaggregationMode::Decode;
        if off { RadixCache::Disabled } else { RadixCache::Enabled }
    }

    /// Overlap: off by flag, and with speculation to 0.5.13.
    #[must_use]
    pub fn overlap(&self) -> Overlap {
        let v1 = self.speculation.is_some() && !self.rules.used.since(5, 14);
        if self.args.disable_overlap_schedule || v1 { Overlap::Disabled } else { Overlap::Enabled }
    }
}

/// The pool of one rank under resolved settings.
///
/// # Errors
/// As [`size`].
pub fn size_pool(resolved: &Resolved, rank: &RankInputs) -> Result<Pool, Refusal> {
    size(&resolved.pool_inputs(rank))
}
