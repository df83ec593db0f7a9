//! What a start answers about other fractions, engine by engine.

use super::TokenRange;
use crate::start::{Case, CaseLaunch, Policy, Ran};
use plimsoll_core::{
    engine::{MlxStart, SglangStart, VllmStart},
    figure::{Estimate, FigureValue},
    memory::ledger::Account,
    plan::LoadLine,
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
            Policy::Vllm(start) => (Estimate::exact(start.total()), self.covered_vllm()),
            Policy::Sglang(_) | Policy::Mlx(_) => {
                (base, self.ran.basis.load.value.plus(self.ran.basis.draft.value))
            }
        };
        let mid = self.outside(base.mid, scale.mid, fraction)?;
        let spread = self.ran.basis.graphs.value.plus(self.ran.basis.workspaces.value);
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

    fn covered_vllm(&self) -> Estimate {
        let basis = &self.ran.basis;
        basis.load.value.plus(basis.transient.value).plus(basis.workspaces.value)
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

    /// How much less and more memory the pool may get, bytes.
    fn half_widths(&self) -> (i64, i64) {
        let basis = &self.ran.basis;
        let fraction = self.fraction().unwrap_or(1.0);
        let free = basis.free_before_load.value;
        let load = basis.load.value;
        let (free, others): (Estimate, Vec<Estimate>) = match &self.ran.policy {
            Policy::Sglang(_) => (free, vec![load, basis.draft.value]),
            Policy::Mlx(_) => (free, Vec::new()),
            // The total is known; what profiling charges is not.
            Policy::Vllm(_) => {
                (Estimate::ZERO, vec![load, basis.transient.value, basis.workspaces.value])
            }
        };
        let below = |e: Estimate| e.mid.0.abs_diff(e.low.0) as f64;
        let above = |e: Estimate| e.high.0.abs_diff(e.mid.0) as f64;
        let squares = |parts: Vec<f64>| parts.iter().map(|x| x * x).sum::<f64>().sqrt() as i64;
        let mut down = vec![fraction * below(free)];
        down.extend(others.iter().map(|e| above(*e)));
        let mut up = vec![fraction * above(free)];
        up.extend(others.iter().map(|e| below(*e)));
        (squares(down), squares(up))
    }
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
