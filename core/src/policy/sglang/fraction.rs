//! The reserve in MiB and the automatic `mem_fraction_static`, in the engine's order of float operations.

use super::{
    args::{DisaggregationMode, Platform, ServerArgs},
    facts::{ModelFacts, Multimodal},
    prefill_graph::PrefillGraph,
    refusal::Refusal,
    version::Version,
    whys::computed,
};
use crate::{
    figure::Why,
    pyfloat::{repr, round_digits},
};

/// One part of the reserve.
#[derive(Clone, PartialEq, Debug)]
pub struct ReserveTerm {
    /// What it is for.
    pub name: &'static str,
    /// MiB.
    pub mib: f64,
}

/// What the automatic fraction keeps outside weights and pool.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Reserve {
    /// In the order in which they are added; the floor appears as what it adds.
    pub terms: Vec<ReserveTerm>,
    /// Sum in MiB.
    pub total_mib: f64,
}

impl Reserve {
    fn add(&mut self, name: &'static str, mib: f64) {
        self.total_mib += mib;
        if mib != 0.0 {
            self.terms.push(ReserveTerm { name, mib });
        }
    }

    fn raise_to(&mut self, name: &'static str, floor_mib: f64) {
        if floor_mib > self.total_mib {
            self.terms.push(ReserveTerm { name, mib: floor_mib - self.total_mib });
            self.total_mib = floor_mib;
        }
    }
}

/// The automatic value and where it comes from.
#[derive(Clone, PartialEq, Debug)]
pub struct AutoFraction {
    /// `mem_fraction_static`; may be zero or less on small devices with large chunks.
    pub value: f64,
    /// Its reserve, where the version works with one and the capacity is known.
    pub reserve: Option<Reserve>,
    /// Derivation.
    pub why: Why,
}

/// What the automatic fraction depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FractionQuestion<'a> {
    pub(crate) version: Version,
    pub(crate) args: &'a ServerArgs,
    pub(crate) model: &'a ModelFacts,
    pub(crate) gpu_mem_mib: Option<f64>,
    /// Before division by dp.
    pub(crate) chunk: i64,
    /// `None` only to 0.5.2.
    pub(crate) max_bs: Option<u64>,
    pub(crate) prefill: &'a PrefillGraph,
    pub(crate) decode_graphs: bool,
}

impl FractionQuestion<'_> {
    /// Source: SGLang `ServerArgs.__post_init__` (to 0.5.2), `_handle_gpu_memory_settings` (later).
    ///
    /// # Errors
    /// [`Refusal::CapacityUnknown`] from 0.4.6 to 0.4.6.post4.
    pub(crate) fn answer(&self) -> Result<AutoFraction, Refusal> {
        let v = self.version;
        if !v.since_post(4, 7, 1) {
            return self.by_constants();
        }
        let reserve = if v.since(5, 3) { self.reserve() } else { self.reserve_by_capacity() };
        let unknown = if v.since(5, 20) { 0.95 } else { 0.88 };
        let bare = match self.gpu_mem_mib {
            Some(g) => round_digits((g - reserve.total_mib) / g, 3),
            None => unknown,
        };
        let value = self.after_multimodal(bare);
        let why = self.why(bare, value, &reserve);
        let reserve = self.gpu_mem_mib.map(|_| reserve);
        Ok(AutoFraction { value, reserve, why })
    }

    fn why(&self, bare: f64, value: f64, reserve: &Reserve) -> Why {
        let function =
            if self.version.since(5, 3) { "_handle_gpu_memory_settings" } else { "__post_init__" };
        let Some(g) = self.gpu_mem_mib else {
            let rule = "capacity unknown: a constant";
            return computed(self.version, function, rule).with("mem_fraction_static", repr(value));
        };
        let mut why = computed(self.version, function, "round((gpu_mem - reserve) / gpu_mem, 3)")
            .with("gpu_mem", format!("{g} MiB"));
        for term in &reserve.terms {
            why = why.with(term.name, format!("{} MiB", term.mib));
        }
        why = why.with("reserve", format!("{} MiB", reserve.total_mib));
        if value != bare {
            why = why.with("before the multimodal change", repr(bare));
        }
        why
    }

    // 0.4.6 to 0.4.7: constants by parallel size.
    fn by_constants(&self) -> Result<AutoFraction, Refusal> {
        let v = self.version;
        if self.gpu_mem_mib.is_none() && !v.since_post(4, 6, 5) {
            return Err(Refusal::CapacityUnknown { version: v });
        }
        let width =
            if v.since_post(4, 6, 2) { self.parallel() } else { f64::from(self.args.tp_size) };
        let table = [(16.0, 0.79), (8.0, 0.81), (4.0, 0.85), (2.0, 0.87)];
        let by_width = table.iter().find(|(least, _)| width >= *least).map_or(0.88, |(_, f)| *f);
        let small = self.gpu_mem_mib.is_some_and(|g| g <= 81_920.0);
        let constant = if small { by_width } else { 0.88 };
        let value = match self.gpu_mem_mib {
            Some(g) if !v.since_post(4, 6, 2) && !small => (g - 13_312.0) / g,
            _ if !v.since_post(4, 6, 2) => constant,
            known => self.adjusted(constant, known),
        };
        let why = computed(
            v,
            "__post_init__",
            "a constant by tp (later tp*pp); large devices by a reserve",
        )
        .with("tp*pp", self.parallel())
        .with("gpu_mem", self.gpu_mem_mib.map_or("unknown".into(), |g| format!("{g} MiB")));
        Ok(AutoFraction { value: self.after_multimodal(value), reserve: None, why })
    }

    // 0.4.6.post2 to 0.4.7: large devices keep more of the free share, speculation a little less.
    fn adjusted(&self, f: f64, gpu_mem_mib: Option<f64>) -> f64 {
        let last = self.version.since(4, 7);
        let speculating = last && self.args.speculative_algorithm.is_some();
        match gpu_mem_mib {
            Some(g) if last && g > 180_000.0 && self.args.platform == Platform::Cuda => 0.79,
            Some(g) if g > 98_304.0 => {
                let kept = if speculating { 20_480.0 } else { 18_432.0 };
                let raised = f + 49_152.0 * (1.0 - f) / g;
                raised.min((g - kept) / g)
            }
            _ if speculating => f * 0.95,
            _ => f,
        }
    }

    fn parallel(&self) -> f64 {
        f64::from(self.args.tp_size) * f64::from(self.args.pp_size)
    }

    // 0.4.7.post1 to 0.5.2: by capacity, independent of chunk and graphs.
    fn reserve_by_capacity(&self) -> Reserve {
        let mut reserve = Reserve::default();
        let Some(g) = self.gpu_mem_mib else { return reserve };
        let p = self.parallel();
        let gib = if g < 35_840.0 {
            2.8 + p / 10.0
        } else if g < 92_160.0 {
            9.5 + p / 2.0
        } else if g < 163_840.0 {
            12.0 + p / 2.0
        } else {
            32.0
        };
        reserve.add("by capacity and tp*pp", gib * 1024.0);
        if let Some(algorithm) = self.args.speculative_algorithm.as_deref() {
            let own_draft = algorithm == "STANDALONE" && self.version.since(5, 2);
            reserve.add("speculation", if own_draft { 6_144.0 } else { 2_048.0 });
        }
        if self.args.enable_dp_attention {
            reserve.add("DP attention", 4_096.0);
        }
        reserve
    }

    // 0.5.3 and later.
    fn reserve(&self) -> Reserve {
        let v = self.version;
        let mut r = Reserve::default();
        let share = self.parallel() / 8.0 * 1024.0;
        if self.post_capture() {
            r.add("metadata", if v.since(5, 18) { 1_536.0 } else { 512.0 });
            r.add("tp*pp", share);
            return r;
        }
        r.add("metadata", 512.0);
        r.add("activations", self.activation_tokens() * 1.5);
        r.add("tp*pp", share);
        self.add_decode_terms(&mut r);
        self.add_prefill_terms(&mut r);
        if self.gpu_mem_mib.is_some_and(|g| g > 61_440.0) {
            r.raise_to("floor of 10 GiB", 10_240.0);
        }
        self.add_terms_after_the_floor(&mut r);
        r
    }

    /// The role as the reserve sees it: only from 0.5.15.
    fn role(&self) -> DisaggregationMode {
        if self.version.since(5, 15) {
            self.args.disaggregation_mode
        } else {
            DisaggregationMode::Null
        }
    }

    fn bs(&self) -> f64 {
        self.max_bs.unwrap_or(0) as f64
    }

    fn activation_tokens(&self) -> f64 {
        let a = self.args;
        if self.role() == DisaggregationMode::Decode {
            let given = |n: Option<u64>| n.filter(|&n| n > 0);
            let requests = given(a.max_running_requests).or(given(self.max_bs)).unwrap_or(1);
            let draft = given(a.speculative_num_draft_tokens).unwrap_or(1);
            return (requests as f64 * draft as f64).max(2_048.0);
        }
        let chunk = match self.chunk {
            c if c > 0 => c as f64,
            _ => a.prefill_budget() as f64,
        };
        chunk.max(2_048.0)
    }

    fn add_decode_terms(&self, r: &mut Reserve) {
        let (v, a) = (self.version, self.args);
        if self.role() == DisaggregationMode::Prefill {
            return;
        }
        if self.decode_graphs || !v.since(5, 15) {
            r.add("decode graphs", 2.0 * self.bs());
        }
        let dp = f64::from(a.dp_size);
        if a.enable_dp_attention && (a.dp_size > 1 || !v.since(5, 15)) {
            r.add("DP attention", self.bs() * dp * 3.0);
            if self.bs() > 300.0 {
                r.add("DP attention, large batches", self.bs() * dp * 1.5);
            }
        }
    }

    fn add_prefill_terms(&self, r: &mut Reserve) {
        let v = self.version;
        let on = self.prefill.backend.is_on() && self.role() != DisaggregationMode::Decode;
        if !on || !v.since(5, 8) {
            return;
        }
        if self.model.attention.is_mla() && v.since(5, 10) {
            r.add("prefill graphs", 1_536.0);
        } else {
            r.add("prefill graphs", 8.0 * self.prefill.sizes.len() as f64);
        }
        let breakable = self.prefill.backend == super::prefill_graph::GraphBackend::Breakable;
        if v.since(5, 17) && breakable && self.deepep() {
            r.add("prefill graphs with DeepEP", 1_024.0);
        }
    }

    fn deepep(&self) -> bool {
        self.args.moe_a2a_backend.as_deref() == Some("deepep")
    }

    fn add_terms_after_the_floor(&self, r: &mut Reserve) {
        let v = self.version;
        if !v.since(5, 14)
            && let Some(algorithm) = self.args.speculative_algorithm.as_deref()
        {
            let draft = match algorithm {
                "STANDALONE" => 6_144.0,
                "NGRAM" => 0.0,
                _ if v.since(5, 10) => 4_096.0,
                _ => 2_048.0,
            };
            r.add("speculation", draft);
        }
        let max_tokens = self.prefill.max_tokens.unwrap_or(0);
        if self.prefill.backend.is_on() && v.since_post(5, 5, 1) && !v.since(5, 8) {
            let divisor = if v.since(5, 7) { 8 } else { 4 };
            r.add("prefill graphs", max_tokens.div_euclid(divisor) as f64);
        }
        let decode_role = self.role() != DisaggregationMode::Prefill;
        if v.since(5, 15) && decode_role && self.decode_graphs && self.deepep() {
            r.add("decode graphs with DeepEP", 2_048.0);
        }
        if v.since(5, 20) && self.args.platform == Platform::Xpu {
            r.add("XPU", 2_048.0);
        }
    }

    /// Whether the pool is sized after graph capture, so that the reserve is small (0.5.16 and later).
    pub(crate) fn post_capture(&self) -> bool {
        let (v, a) = (self.version, self.args);
        if !v.since(5, 16) || !a.post_capture_kv_sizing || self.model.attention.is_mla() {
            return false;
        }
        let decodes = a.disaggregation_mode != DisaggregationMode::Prefill;
        let prefills = a.disaggregation_mode != DisaggregationMode::Decode;
        if (decodes && !self.decode_graphs) || (prefills && !self.prefill.backend.is_on()) {
            return false;
        }
        if !v.since(5, 17) {
            let platform = matches!(a.platform, Platform::Cuda | Platform::Rocm);
            return platform && !a.enable_dp_attention;
        }
        let largest = self.prefill.sizes.last().copied().unwrap_or(0);
        let covered = u64::try_from(self.chunk).is_ok_and(|c| c > 0 && c <= largest);
        let excluded = a.enable_memory_saver || a.dcp_size > 1;
        a.platform == Platform::Cuda && !excluded && (covered || !prefills)
    }

    fn after_multimodal(&self, f: f64) -> f64 {
        let (v, a) = (self.version, self.args);
        let decode_role = a.disaggregation_mode == DisaggregationMode::Decode && v.since(5, 17);
        let text_only = a.language_only && v.since(5, 9);
        if self.model.multimodal == Multimodal::No || decode_role || text_only || !v.since(4, 9) {
            return f;
        }
        if !v.since_post(4, 9, 3) {
            return f * 0.9;
        }
        if v.since(5, 20) && self.post_capture() {
            return self.gpu_mem_mib.map_or(f, |g| f - 8_192.0 / g);
        }
        match self.model.multimodal {
            Multimodal::WithVisionConfig { layers, hidden } => {
                f * vision_factor(layers.unwrap_or(24), hidden.unwrap_or(1024))
            }
            _ => f,
        }
    }
}

/// `0.95 * clamp(1 - 0.1 (s - 1), 0.8, 1.05)` with `s` the tower's size against 24 layers of 1024.
fn vision_factor(layers: u64, hidden: u64) -> f64 {
    let size = layers as f64 * (hidden as f64 * hidden as f64);
    let scale = size / (24.0 * 1024.0 * 1024.0);
    0.95 * (1.0 - 0.1 * (scale - 1.0)).clamp(0.8, 1.05)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vision_factor_is_clamped() {
        assert_eq!(vision_factor(24, 1024), 0.95);
        assert_eq!(vision_factor(45, 3200), 0.95 * 0.8);
        assert_eq!(vision_factor(1, 64), 0.95 * 1.05);
    }

    #[test]
    fn the_floor_shows_what_it_adds() {
        let mut r = Reserve::default();
        r.add("a", 512.0);
        r.raise_to("floor", 10_240.0);
        r.raise_to("floor", 10.0);
        assert_eq!(r.total_mib, 10_240.0);
        assert_eq!(r.terms.last().map(|t| t.mib), Some(9_728.0));
        assert_eq!(r.terms.len(), 2);
    }
}
