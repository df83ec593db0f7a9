//! Whether prefill runs in CUDA graphs, by which backend, up to how many tokens, and why not.

use super::{
    args::{DisaggregationMode, GraphRequest, Platform, ServerArgs},
    facts::{AttentionArch, Checkpoint, Family, ModelFacts, Multimodal},
    graphs::{prefill_sizes, prefill_sizes_deepep},
    version::Version,
};

/// How the graphs of one phase are made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GraphBackend {
    /// No graphs.
    Off,
    /// Pieces compiled by torch (`piecewise`, later `tc_piecewise`).
    Piecewise,
    /// One graph with breaks.
    Breakable,
    /// One graph.
    Full,
}

impl GraphBackend {
    /// Whether graphs are captured.
    #[must_use]
    pub const fn is_on(self) -> bool {
        !matches!(self, Self::Off)
    }

    /// The engine's word for it in `version`.
    #[must_use]
    pub const fn name(self, version: Version) -> &'static str {
        match (self, version.since(5, 14)) {
            (Self::Off, false) => "off",
            (Self::Off, true) => "disabled",
            (Self::Piecewise, false) => "piecewise",
            (Self::Piecewise, true) => "tc_piecewise",
            (Self::Breakable, _) => "breakable",
            (Self::Full, _) => "full",
        }
    }
}

/// The decision about prefill graphs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PrefillGraph {
    /// What runs.
    pub backend: GraphBackend,
    /// What was chosen before the role of a disaggregated server switched it off.
    pub before_role: GraphBackend,
    /// Why it is so.
    pub reason: &'static str,
    /// Largest size, tokens; `None` before 0.5.4. Kept also where the backend is off.
    pub max_tokens: Option<i64>,
    /// Sizes, tokens, rising; kept also where the backend is off.
    pub sizes: Vec<u64>,
}

/// What the decision depends on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PrefillQuestion<'a> {
    pub(crate) version: Version,
    pub(crate) args: &'a ServerArgs,
    pub(crate) model: &'a ModelFacts,
    /// `chunked_prefill_size` before division by dp.
    pub(crate) chunk: i64,
}

impl PrefillQuestion<'_> {
    /// Source: SGLang `_handle_piecewise_cuda_graph` (0.5.10 to 0.5.13) and
    /// `handle_cuda_graph_config` (later); opt-in flag before.
    pub(crate) fn decide(&self) -> PrefillGraph {
        let (before_role, mut reason) = self.before_role();
        let mut backend = before_role;
        let v = self.version;
        let by_default = self.args.prefill_graph == GraphRequest::Default;
        let decode_role = self.args.disaggregation_mode == DisaggregationMode::Decode;
        if self.version.since(5, 16) && decode_role && by_default && backend.is_on() {
            (backend, reason) = (GraphBackend::Off, "the decode role does not prefill");
        }
        if self.args.platform == Platform::Xpu && v.since(5, 14) && !v.since(5, 15) {
            backend = GraphBackend::Off;
        }
        let mut max_tokens = self.max_tokens(backend);
        let mut sizes = max_tokens.map_or_else(Vec::new, |max| prefill_sizes(self.version, max));
        let deepep = self.a2a() == "deepep" && self.version.since(5, 17);
        if deepep && before_role == GraphBackend::Breakable {
            sizes = prefill_sizes_deepep(self.version);
            max_tokens = sizes.last().and_then(|&n| i64::try_from(n).ok());
        }
        PrefillGraph { backend, before_role, reason, max_tokens, sizes }
    }

    /// `--moe-a2a-backend`, `none` when not given.
    fn a2a(&self) -> &str {
        self.args.moe_a2a_backend.as_deref().unwrap_or("none")
    }

    fn default_backend(&self) -> GraphBackend {
        let (v, cuda) = (self.version, self.args.platform == Platform::Cuda);
        if !v.since(5, 10) || (v.since(5, 22) && !cuda) {
            GraphBackend::Off
        } else if v.since(5, 15) && cuda {
            GraphBackend::Breakable
        } else {
            GraphBackend::Piecewise
        }
    }

    fn before_role(&self) -> (GraphBackend, &'static str) {
        use GraphBackend::{Breakable, Full, Off, Piecewise};
        let v = self.version;
        if !v.since(5, 4) {
            return (Off, "this release has none");
        }
        match self.args.prefill_graph {
            GraphRequest::Off => return (Off, "switched off by a flag"),
            GraphRequest::Default => {}
            _ if !v.since(5, 14) => return (Piecewise, "asked for by a flag"),
            GraphRequest::Breakable => return (Breakable, "asked for by a flag"),
            GraphRequest::Full => return (Full, "asked for by a flag"),
            GraphRequest::TcPiecewise => return (Piecewise, "asked for by a flag"),
            GraphRequest::On => {
                let named = self.default_backend();
                let backend = if named.is_on() { named } else { Piecewise };
                return (backend, "asked for by a flag");
            }
        }
        let chosen = self.default_backend();
        let objection = match chosen {
            Piecewise => self.objection_to_piecewise(),
            Breakable => self.objection_to_breakable(),
            _ => None,
        };
        match (chosen, objection) {
            (Off, _) => (Off, "off by default in this release and on this platform"),
            (_, Some(reason)) => (Off, reason),
            (on, None) => (on, "on by default"),
        }
    }

    /// Multimodal as the graph rules see it.
    fn multimodal(&self) -> bool {
        let text_only = self.args.language_only && self.version.since(5, 9);
        self.model.multimodal != Multimodal::No && !text_only
    }

    fn objection_to_piecewise(&self) -> Option<&'static str> {
        let (v, a) = (self.version, self.args);
        let dp = a.enable_dp_attention && (a.dp_size > 1 || !v.since(5, 15));
        let objections = [
            (a.platform != Platform::Cuda, "not a CUDA device"),
            (a.speculative_algorithm.is_some() && !v.since(5, 11), "speculation"),
            (dp, "DP attention"),
            (a.pp_size > 1, "pipeline stages"),
            (self.a2a() != "none", "a MoE all-to-all backend"),
            (self.multimodal(), "multimodal model"),
            (a.disaggregation_mode != DisaggregationMode::Null, "disaggregated role"),
            (a.enable_torch_compile, "torch.compile"),
            (a.enable_lora, "LoRA"),
            (self.model.checkpoint == Checkpoint::Gguf, "GGUF weights"),
            (a.cpu_offload_gb.is_some_and(|gb| gb > 0.0), "CPU offload"),
            (a.enable_hierarchical_cache, "hierarchical cache"),
            (a.enable_deterministic_inference, "deterministic inference"),
            (a.enable_symm_mem, "symmetric memory"),
            (a.records_expert_distribution, "expert distribution recorder"),
            (a.attention_cp_size > 1, "attention context parallelism"),
        ];
        first_true(&objections)
    }

    fn objection_to_breakable(&self) -> Option<&'static str> {
        let (v, a, m) = (self.version, self.args, self.model);
        let early = !v.since(5, 17);
        let mla = match m.attention {
            AttentionArch::Mha => false,
            AttentionArch::Mla => !v.since(5, 18),
            AttentionArch::Dsa => early,
        };
        let a2a = match self.a2a() {
            "none" => false,
            "deepep" | "megamoe" | "flashinfer" => early,
            _ => true,
        };
        let objections = [
            (self.multimodal(), "multimodal model that is not on the allow-list"),
            (mla, "latent attention"),
            (a.pp_size > 1 && v.since(5, 19), "pipeline stages"),
            (a.enable_dp_attention && a.dp_size > 1 && early, "DP attention"),
            (a2a, "this MoE all-to-all backend"),
            (a.enable_lora && early, "LoRA"),
            (m.family == Family::DeepseekV4, "DeepSeek-V4"),
            (m.family == Family::NemotronH && v.since(5, 17) && !v.since(5, 18), "Nemotron-H"),
            (m.family == Family::Kda && v.since(5, 20), "KDA linear attention"),
            (a.attention_cp_size > 1, "attention context parallelism"),
            (a.dcp_size > 1 && v.since(5, 16), "decode context parallelism"),
            (a.enable_two_batch_overlap && v.since(5, 17), "two-batch overlap"),
        ];
        first_true(&objections)
    }

    fn max_tokens(&self, backend: GraphBackend) -> Option<i64> {
        let (v, a) = (self.version, self.args);
        let mla = self.model.attention.is_mla();
        let asked = a.prefill_graph_max_tokens.and_then(|n| i64::try_from(n).ok());
        let mut max = match asked {
            Some(asked) => asked,
            None if !v.since(5, 4) => return None,
            None if !v.since(5, 7) => 4_096,
            None if mla && v.since(5, 23) => self.chunk.min(8_192),
            None if mla && v.since(5, 8) => 2_048,
            None => self.chunk,
        };
        if v.since(5, 19) && a.pp_size > 1 && backend == GraphBackend::Breakable {
            max = max.min(8_192);
        }
        if v.since(5, 10) {
            let cap = a.max_total_tokens.and_then(|n| i64::try_from(n).ok());
            max = max.min(cap.unwrap_or(i64::MAX));
            if a.model_path.to_lowercase().contains("llama-2") {
                max = max.min(4_096);
            }
        }
        if v.since(5, 13) && !v.since(5, 17) {
            let context = a.context_length.and_then(|n| i64::try_from(n).ok());
            max = max.min(context.unwrap_or(i64::MAX));
        }
        Some(max)
    }
}

fn first_true(objections: &[(bool, &'static str)]) -> Option<&'static str> {
    objections.iter().find(|(holds, _)| *holds).map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decide(version: &str, change: impl Fn(&mut ServerArgs, &mut ModelFacts)) -> PrefillGraph {
        let version = version.parse().unwrap();
        let mut args = ServerArgs::new(version, "m");
        let mut model = ModelFacts::text(131_072);
        change(&mut args, &mut model);
        PrefillQuestion { version, args: &args, model: &model, chunk: 8_192 }.decide()
    }

    #[test]
    fn latent_attention_gets_graphs_from_0_5_18() {
        let mla = |_: &mut ServerArgs, m: &mut ModelFacts| m.attention = AttentionArch::Mla;
        assert_eq!(decide("0.5.17", mla).backend, GraphBackend::Off);
        assert_eq!(decide("0.5.18", mla).backend, GraphBackend::Breakable);
        assert_eq!(decide("0.5.22", mla).max_tokens, Some(2_048));
        assert_eq!(decide("0.5.23", mla).max_tokens, Some(8_192));
        let dsa = |_: &mut ServerArgs, m: &mut ModelFacts| m.attention = AttentionArch::Dsa;
        assert_eq!(decide("0.5.17", dsa).backend, GraphBackend::Breakable);
        assert_eq!(decide("0.5.16", dsa).backend, GraphBackend::Off);
    }

    #[test]
    fn features_that_switch_piecewise_graphs_off() {
        let plain = |_: &mut ServerArgs, _: &mut ModelFacts| {};
        assert_eq!(decide("0.5.10", plain).backend, GraphBackend::Piecewise);
        assert_eq!(decide("0.5.9", plain).backend, GraphBackend::Off);
        let spec = |a: &mut ServerArgs, _: &mut ModelFacts| {
            a.speculative_algorithm = Some("EAGLE".to_owned());
        };
        assert_eq!(decide("0.5.10", spec).reason, "speculation");
        assert_eq!(decide("0.5.11", spec).backend, GraphBackend::Piecewise);
        let lora = |a: &mut ServerArgs, _: &mut ModelFacts| a.enable_lora = true;
        assert_eq!(decide("0.5.16", lora).backend, GraphBackend::Off);
        assert_eq!(decide("0.5.17", lora).backend, GraphBackend::Breakable);
    }

    #[test]
    fn a_flag_overrules_the_objections() {
        let forced = |a: &mut ServerArgs, _: &mut ModelFacts| {
            a.pp_size = 2;
            a.prefill_graph = GraphRequest::Breakable;
            a.chunked_prefill_size = Some(16_384);
            a.prefill_graph_max_tokens = Some(16_384);
        };
        let graph = decide("0.5.23", forced);
        assert_eq!((graph.backend, graph.max_tokens), (GraphBackend::Breakable, Some(8_192)));
    }
}
