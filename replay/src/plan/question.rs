//! What a start answers about other fractions, engine by engine.

use super::{PoolBudget, TokenRange};
use crate::start::{Case, CaseLaunch, Policy, Ran};
use plimsoll_core::{
    engine::{MlxStart, SglangStart, VllmStart},
    figure::{Estimate, FigureValue},
    memory::ledger::Account,
    plan::{LoadLine, Window},
    policy::{
        sglang::{
            mlx,
            pool::{PoolInputs, tokens},
            window,
        },
        vllm::{
            args::Generation, capacity, profile::Profile, settings::Settings, v0,
            window as vllm_window,
        },
    },
    units::{Bytes, GIB, Tokens},
};

/// One start, ready to be asked.
pub(super) struct Question<'a> {
    case: &'a Case,
    ran: &'a Ran,
}

impl<'a> Question<'a> {
    pub(super) const fn of(case: &'a Case, ran: &'a Ran) -> Self {
        Self { case, ran }
    }

    pub(super) const fn flag(&self) -> &'static str {
        match self.ran.policy {
            Policy::Sglang(_) | Policy::Mlx(_) => "--mem-fraction-static",
            Policy::Vllm(_) => "--gpu-memory-utilization",
        }
    }

    fn float(&self, name: &str) -> Option<f64> {
        match self.ran.start.figure(name)?.value {
            FigureValue::Float(f) => Some(f),
            _ => None,
        }
    }

    fn count(&self, name: &str) -> Option<u64> {
        match self.ran.start.figure(name)?.value {
            FigureValue::Count(n) => Some(n),
            _ => None,
        }
    }

    pub(super) fn fraction(&self) -> Option<f64> {
        self.float("mem_fraction_static").or_else(|| self.float("gpu_memory_utilization"))
    }

    pub(super) fn context_len(&self) -> Option<u64> {
        self.count("max_model_len").or_else(|| self.count("context_len"))
    }

    fn tokens(&self) -> Option<Tokens> {
        let name = match self.ran.policy {
            Policy::Vllm(_) => "kv_cache_tokens",
            Policy::Sglang(_) | Policy::Mlx(_) => "max_total_num_tokens",
        };
        self.count(name).map(Tokens)
    }

    /// The straight line of what is left; `None` when a cap decides the pool, or nothing does.
    pub(super) fn load_line(&self, need: Option<Estimate>) -> Option<LoadLine> {
        if matches!(self.ran.policy, Policy::Mlx(_)) || self.capped() {
            return None;
        }
        let fraction = self.fraction()?;
        let base = self.ran.basis.free_before_load.value.plus(self.given_back());
        let (scale, covered) = match &self.ran.policy {
            Policy::Vllm(start) => {
                (moved(self.ran.basis.total.value, start.total()), self.covered())
            }
            Policy::Sglang(_) | Policy::Mlx(_) => (base, self.covered()),
        };
        let mid = self.outside(base.mid, scale.mid, fraction)?;
        let basis = &self.ran.basis;
        let spread = root_sum([basis.graphs.value, basis.workspaces.value].into_iter());
        let measured = self.case.facts.free_after_graphs.is_some();
        let outside = if measured { Estimate::exact(mid) } else { moved(spread, mid) };
        Some(LoadLine { base, scale, outside, covered, need: need.unwrap_or(Estimate::ZERO) })
    }

    /// vLLM's budget pays for the activation peak and for its graph estimate, which do not stay: they
    /// are free again when the server is ready, so what is outside the budget may be less than nothing.
    fn given_back(&self) -> Estimate {
        let basis = &self.ran.basis;
        match self.ran.policy {
            Policy::Vllm(_) => Estimate::exact(basis.transient.value.mid + basis.graphs.value.mid),
            Policy::Sglang(_) | Policy::Mlx(_) => Estimate::ZERO,
        }
    }

    /// The fraction from which the pool holds one prefill chunk (vLLM refuses less by itself).
    pub(super) fn useful(&self, window: Window) -> f64 {
        let chunk = self.count("chunked_prefill_size").unwrap_or(0);
        let free = self.ran.basis.free_before_load.value.mid.0;
        let cell = match self.ran.start.figure("kv_bytes_per_token").map(|f| &f.value) {
            Some(FigureValue::Bytes(bytes)) => bytes.0 as f64,
            Some(FigureValue::Float(bytes)) => *bytes,
            _ => 0.0,
        };
        if free == 0 { window.floor } else { window.floor + chunk as f64 * cell / free as f64 }
    }

    /// A cap on tokens or a size in bytes: the fraction does not move the pool.
    fn capped(&self) -> bool {
        match &self.case.launch {
            CaseLaunch::Sglang(args) => args.max_total_tokens.is_some(),
            CaseLaunch::Vllm(args) => {
                args.kv_cache_memory_bytes.is_some() || args.num_gpu_blocks_override.is_some()
            }
        }
    }

    /// Taken outside the fraction: what is missing to `base - f * scale` when the server is ready.
    fn outside(&self, base: Bytes, scale: Bytes, fraction: f64) -> Option<Bytes> {
        if let Some(left) = self.ran.start.reading("after_graphs") {
            let line = base.0 as f64 - fraction * scale.0 as f64 - left.least().0 as f64;
            return Some(Bytes(line.round().max(0.0) as u64));
        }
        // The start was refused: the accounts beside the pool are what they would be.
        let basis = &self.ran.basis;
        let rows = self.ran.ledger.rows().iter();
        let table: Bytes =
            rows.filter(|r| r.account == Account::RequestTable).map(|r| r.bytes.mid).sum();
        Some(table + basis.graphs.value.mid + basis.workspaces.value.mid)
    }

    /// What the budget pays before the pool; the parts' errors add as squares.
    fn covered(&self) -> Estimate {
        root_sum(self.ran.basis.charged.iter().map(|figure| figure.value))
    }

    /// Memory for the pool on the rank that decides.
    pub(super) fn budget(&self) -> Option<PoolBudget> {
        let least = match &self.ran.policy {
            Policy::Sglang(start) => {
                let budgets = start.pool_inputs().iter().map(PoolInputs::budget_gib);
                (budgets.reduce(f64::min)? * GIB as f64) as i64
            }
            Policy::Vllm(start) => start.ranks().iter().map(|rank| rank.available).min()?,
            Policy::Mlx(_) => return None,
        };
        let (down, up) = self.half_widths();
        Some(PoolBudget {
            low: least.saturating_sub(down),
            mid: least,
            high: least.saturating_add(up),
        })
    }

    /// Tokens at another fraction.
    pub(super) fn tokens_at(&self, fraction: f64) -> Option<Tokens> {
        match &self.ran.policy {
            Policy::Sglang(start) => sglang_tokens(start.pool_inputs(), fraction),
            Policy::Mlx(start) => mlx_tokens(start, self.available()?, fraction),
            Policy::Vllm(start) => self.vllm_tokens(start, fraction),
        }
    }

    fn available(&self) -> Option<Bytes> {
        self.ran.start.reading("after_load").map(|free| free.least())
    }

    fn vllm_tokens(&self, start: &VllmStart, fraction: f64) -> Option<Tokens> {
        let settings = start.settings()?;
        let rank = start.ranks().first()?;
        if settings.rules.generation == Generation::V0 {
            let now = settings.gpu_memory_utilization;
            let moved = (fraction - now) * start.total().0 as f64;
            let available = rank.available.saturating_add(moved as i64);
            let pool = v0::size_pool(settings, &rank.layers, &[available]).ok()?;
            return Some(pool.slots);
        }
        let profile = Profile { weights: charged(settings, start, rank), ..Profile::default() };
        let launch = vllm_window::Launch {
            settings,
            total: start.total(),
            free_at_start: self.ran.basis.free_before_load.value.mid,
            profile: &profile,
            layers: &rank.layers,
        };
        launch.tokens_at(fraction).ok()
    }

    /// Tokens when what is uncertain falls either way: free memory and weights are independent of each
    /// other, so their half-widths add as squares.
    pub(super) fn token_range(&self) -> Option<TokenRange> {
        let mid = self.tokens()?;
        let (down, up) = self.half_widths();
        let shifted = |bytes: i64| match &self.ran.policy {
            Policy::Sglang(start) => sglang_shifted(start, bytes),
            Policy::Mlx(start) => {
                let available = self.available()?.0.saturating_add_signed(bytes);
                mlx_tokens(start, Bytes(available), self.fraction()?)
            }
            Policy::Vllm(start) => vllm_shifted(start, bytes),
        };
        let none = Tokens(0);
        Some(TokenRange {
            low: if down == 0 { mid } else { shifted(-down).unwrap_or(none).min(mid) },
            mid,
            high: if up == 0 { mid } else { shifted(up).unwrap_or(mid).max(mid) },
        })
    }

    /// How much less and more memory the pool may get, bytes: the fraction of what it is a fraction of,
    /// and all that is paid before the pool. None of them knows of the others, so they add as squares.
    fn half_widths(&self) -> (i64, i64) {
        if self.capped() {
            return (0, 0);
        }
        let basis = &self.ran.basis;
        let fraction = self.fraction().unwrap_or(1.0);
        let (fraction, of) = match &self.ran.policy {
            Policy::Sglang(_) => (fraction, basis.free_before_load.value),
            // What is shifted there is the RAM that is available, before the fraction.
            Policy::Mlx(_) => (1.0, basis.free_before_load.value),
            Policy::Vllm(_) => (fraction, basis.total.value),
        };
        let below = |e: Estimate| e.mid.0.abs_diff(e.low.0) as f64;
        let above = |e: Estimate| e.high.0.abs_diff(e.mid.0) as f64;
        let charged = || basis.charged.iter().map(|figure| figure.value);
        let down = charged().map(above).chain([fraction * below(of)]);
        let up = charged().map(below).chain([fraction * above(of)]);
        (squares(down) as i64, squares(up) as i64)
    }
}

/// Root of the sum of squares.
fn squares(parts: impl Iterator<Item = f64>) -> f64 {
    parts.map(|part| part * part).sum::<f64>().sqrt()
}

/// Sum of independent parts: best values add, half-widths add as squares.
fn root_sum(parts: impl Iterator<Item = Estimate> + Clone) -> Estimate {
    let mid = parts.clone().fold(Bytes::ZERO, |sum, part| sum.saturating_add(part.mid));
    let below = squares(parts.clone().map(|part| part.mid.0.abs_diff(part.low.0) as f64));
    let above = squares(parts.map(|part| part.high.0.abs_diff(part.mid.0) as f64));
    let (low, high) = (Bytes(below as u64), Bytes(above as u64));
    Estimate { low: mid.saturating_sub(low), mid, high: mid.saturating_add(high) }
}

/// The interval of an estimate around another best value.
fn moved(estimate: Estimate, mid: Bytes) -> Estimate {
    Estimate {
        low: mid.saturating_sub(estimate.mid.saturating_sub(estimate.low)),
        mid,
        high: mid + estimate.high.saturating_sub(estimate.mid),
    }
}

/// The smallest over pipeline stages.
fn sglang_tokens(stages: &[PoolInputs], fraction: f64) -> Option<Tokens> {
    stages.iter().map(|stage| window::tokens_at(stage, fraction).ok()).min()?
}

fn sglang_shifted(start: &SglangStart, bytes: i64) -> Option<Tokens> {
    let shift = bytes as f64 / GIB as f64;
    let stages = start.pool_inputs().iter();
    let shifted = stages.map(|stage| {
        let avail_after_load_gib = stage.avail_after_load_gib + shift;
        tokens(&PoolInputs { avail_after_load_gib, ..stage.clone() }).ok()
    });
    shifted.min()?
}

fn mlx_tokens(start: &MlxStart, available: Bytes, fraction: f64) -> Option<Tokens> {
    let mut inputs = start.inputs(available)?;
    inputs.mem_fraction_static = fraction;
    mlx::size(&inputs).ok().map(|pool| pool.slots)
}

fn vllm_shifted(start: &VllmStart, bytes: i64) -> Option<Tokens> {
    let settings = start.settings()?;
    let mut ranks = start.ranks().to_vec();
    for rank in &mut ranks {
        rank.available = rank.available.saturating_add(bytes);
    }
    match settings.rules.generation {
        Generation::V1 => {
            capacity::size_pool(settings, &ranks).ok().map(|pool| pool.kv_cache_tokens)
        }
        Generation::V0 => {
            let available: Vec<i64> = ranks.iter().map(|rank| rank.available).collect();
            let layers = &ranks.first()?.layers;
            v0::size_pool(settings, layers, &available).ok().map(|pool| pool.slots)
        }
    }
}

/// All that the budget of this start pays before KV.
fn charged(settings: &Settings, start: &VllmStart, rank: &capacity::Rank) -> Bytes {
    let budget = settings.gpu_memory_utilization * start.total().0 as f64;
    Bytes((budget - rank.available as f64).max(0.0) as u64)
}
