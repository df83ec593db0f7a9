//! The attention backend: the flags' or the engine's own choice. It decides the page, parts of the fraction and
//! the workspaces.

use super::{
    args::{Platform, ServerArgs},
    facts::{AttentionArch, MachineFacts, ModelFacts},
    settings::Origin,
    version::Version,
    whys::{assumed, computed},
};
use crate::{estimate::workspace::AttentionBackend, figure::Why};

/// Backends of both phases, by the names of `--attention-backend`.
#[derive(Clone, PartialEq, Debug)]
pub struct AttentionChoice {
    /// For prefill; `None` where the engine's own choice is not known here.
    pub prefill: Option<String>,
    /// For decode.
    pub decode: Option<String>,
    /// What `attention_backend` itself ends up as; a phase's own flag goes before it.
    pub general: Option<String>,
    /// Whether flags name both phases.
    pub origin: Origin,
    /// Why.
    pub why: Why,
}

impl AttentionChoice {
    /// One of the two phases runs on `name`.
    #[must_use]
    pub fn uses(&self, name: &str) -> bool {
        [&self.prefill, &self.decode].iter().any(|backend| backend.as_deref() == Some(name))
    }

    /// What the prefill backend takes beside the pool; decode graphs of another backend differ little.
    #[must_use]
    pub fn buffers(&self, arch: AttentionArch) -> AttentionBackend {
        match self.prefill.as_deref() {
            Some("flashinfer") if arch.is_mla() => AttentionBackend::FlashinferMla,
            Some("flashinfer") => AttentionBackend::Flashinfer,
            Some("trtllm_mha") => AttentionBackend::TrtllmMha,
            Some("trtllm_mla") => AttentionBackend::TrtllmMla,
            Some("triton") => AttentionBackend::Triton,
            Some("fa3" | "fa4") => AttentionBackend::FlashAttention,
            _ => AttentionBackend::Other,
        }
    }
}

/// Chooses the backends.
///
/// Source: SGLang 0.4.6 `ModelRunner.model_specific_adjustment`; 0.5.5 to 0.5.23
/// `ServerArgs._handle_attention_backend_compatibility`, `_get_default_attn_backend` and the adjustments
/// by architecture. Taken for granted: CUDA 12.8 on Blackwell, 12.3 on Hopper, FlashInfer installed.
#[must_use]
pub fn choose(
    v: Version,
    args: &ServerArgs,
    machine: &MachineFacts,
    model: &ModelFacts,
) -> AttentionChoice {
    let function = "attention backend handlers";
    let (pre, dec) = (&args.prefill_attention_backend, &args.decode_attention_backend);
    let same = pre.clone().filter(|_| pre == dec);
    let given = same.or_else(|| args.attention_backend.clone());
    if given.is_some() || (pre.is_some() && dec.is_some()) {
        let (prefill, decode) =
            (pre.clone().or_else(|| given.clone()), dec.clone().or_else(|| given.clone()));
        let why = named(computed(v, function, "as given"), &prefill, &decode);
        return AttentionChoice { prefill, decode, general: given, origin: Origin::Given, why };
    }
    let question = Question { v, args, machine, model };
    let (backend, rule) = match question.answer() {
        Some(choice) => (Some(choice.0), choice.1),
        None => (None, "the engine's own choice on this platform is not known here"),
    };
    let general = backend.map(str::to_owned);
    let prefill = pre.clone().or_else(|| general.clone());
    let decode = dec.clone().or_else(|| general.clone());
    let unknown = backend.is_none() || question.capability().is_none();
    let why = if unknown { assumed(v, function, rule) } else { computed(v, function, rule) };
    let why = why.with("--attention-backend", "not given");
    let why = match machine.compute_capability {
        Some((major, minor)) => why.with("compute capability", format!("{major}.{minor}")),
        None => why,
    };
    let why = named(why, &prefill, &decode);
    AttentionChoice { prefill, decode, general, origin: Origin::Automatic, why }
}

fn named(why: Why, prefill: &Option<String>, decode: &Option<String>) -> Why {
    let text = |name: &Option<String>| name.clone().unwrap_or_else(|| "unknown".to_owned());
    match prefill == decode {
        true => why.with("backend", text(prefill)),
        false => why.with("prefill backend", text(prefill)).with("decode backend", text(decode)),
    }
}

/// A backend and the rule that picks it.
type Choice = (&'static str, &'static str);

/// DeepSeek-V3 and what is handled like it, with the first release that does.
const LIKE_DEEPSEEK: [(&str, Version); 5] = [
    ("DeepseekV3ForCausalLM", Version::new(0, 5, 4)),
    ("MistralLarge3ForCausalLM", Version::new(0, 5, 7)),
    ("PixtralForConditionalGeneration", Version::new(0, 5, 7)),
    ("KimiK25ForConditionalGeneration", Version::new(0, 5, 9)),
    ("KimiK3ForConditionalGeneration", Version::new(0, 5, 23)),
];

struct Question<'a> {
    v: Version,
    args: &'a ServerArgs,
    machine: &'a MachineFacts,
    model: &'a ModelFacts,
}

impl Question<'_> {
    /// Major compute capability; nothing off CUDA.
    fn capability(&self) -> Option<u32> {
        let cuda = self.args.platform == Platform::Cuda;
        self.machine.compute_capability.filter(|_| cuda).map(|(major, _)| major)
    }

    fn answer(&self) -> Option<Choice> {
        match self.args.platform {
            Platform::Cuda => {}
            Platform::Rocm => return Some(self.rocm()),
            Platform::Npu => return Some(("ascend", "Ascend")),
            _ => return None,
        }
        if self.model.attention == AttentionArch::Dsa {
            let name = if self.v.since(5, 13) { "dsa" } else { "nsa" };
            return Some((name, "sparse attention"));
        }
        self.by_architecture().or_else(|| Some(self.generic()))
    }

    /// aiter needs 16 or 128 heads a rank for latents. Source: `_get_default_attn_backend`.
    fn rocm(&self) -> Choice {
        let heads = self.model.heads.map(|heads| heads / u64::from(self.args.tp_size.max(1)));
        if !self.v.since(4, 7) {
            ("triton", "ROCm before 0.4.7")
        } else if !self.model.attention.is_mla() || matches!(heads, Some(16 | 128)) {
            ("aiter", "ROCm")
        } else {
            ("triton", "ROCm, latents with neither 16 nor 128 heads a rank")
        }
    }

    /// No flag names a backend of any phase: some adjustments ask for that.
    const fn all_unset(&self) -> bool {
        self.args.prefill_attention_backend.is_none()
            && self.args.decode_attention_backend.is_none()
    }

    fn by_architecture(&self) -> Option<Choice> {
        let (v, name) = (self.v, self.model.architecture.as_str());
        let sm100 = self.capability() == Some(10);
        let on_sm100 = |yes, no| if sm100 { yes } else { no };
        let hopper = self.capability() == Some(9);
        let like_deepseek = LIKE_DEEPSEEK.iter().any(|(n, first)| *n == name && v >= *first);
        if like_deepseek && self.all_unset() && self.model.attention.is_mla() && sm100 {
            return Some(("trtllm_mla", "latents of this architecture on compute capability 10"));
        }
        if name == "GptOssForCausalLM" && self.all_unset() {
            let other = if hopper { "fa3" } else { "triton" };
            return Some((on_sm100("trtllm_mha", other), "gpt-oss"));
        }
        if name.contains("Llama4") && v.since(5, 5) {
            let other = if hopper { "fa3" } else { "triton" };
            return Some((on_sm100("trtllm_mha", other), "Llama 4"));
        }
        if name == "Olmo2ForCausalLM" && v.since(5, 4) {
            let ampere = self.capability().is_some_and(|major| major >= 8);
            let other = if ampere { "fa3" } else { "triton" };
            return Some((on_sm100("trtllm_mha", other), "OLMo 2"));
        }
        if name.starts_with("Gemma4") && v.since(5, 11) {
            let held_back = !v.since(5, 13) || (!v.since(5, 16) && self.model.fp4_experts);
            let blackwell = if held_back { "triton" } else { "trtllm_mha" };
            return Some((on_sm100(blackwell, "triton"), "Gemma 4"));
        }
        if sm100 { self.recurrent_on_sm100() } else { None }
    }

    /// States beside attention, whose radix cache wants pages of one token.
    fn recurrent_on_sm100(&self) -> Option<Choice> {
        let (v, a) = (self.v, self.args);
        let rule = "recurrent states on compute capability 10";
        match self.model.architecture.as_str() {
            _ if !v.since(5, 7) => None,
            "NemotronHForCausalLM" | "NemotronHPuzzleForCausalLM" if !v.since(5, 23) => {
                Some(("flashinfer", rule))
            }
            "NemotronHForCausalLM" | "NemotronHPuzzleForCausalLM" => {
                let spec = a.speculative_algorithm.is_some();
                let branches = a.speculative_eagle_topk.is_some_and(|topk| topk > 1);
                Some((if spec && branches { "triton" } else { "trtllm_mha" }, rule))
            }
            "GraniteMoeHybridForCausalLM" | "Lfm2ForCausalLM" => Some(("flashinfer", rule)),
            "FalconH1ForCausalLM" => Some(("triton", rule)),
            name if name.starts_with("Qwen3Next") || name.starts_with("Qwen3_5") => {
                let extra = a.mamba_scheduler_strategy.as_deref();
                let extra = extra.is_some_and(|s| s.contains("extra_buffer"));
                let paged = extra || a.disable_radix_cache || a.speculative_algorithm.is_some();
                let trtllm = v.since(5, 10) && paged && self.trtllm_mha_serves();
                Some((if trtllm { "trtllm_mha" } else { "triton" }, rule))
            }
            _ => None,
        }
    }

    /// Neither speculation that branches, nor (before its default is filled in) speculation that does not say
    /// whether it branches; DFlash never does (0.5.23).
    fn trtllm_mha_serves(&self) -> bool {
        let a = self.args;
        let spec = a.speculative_algorithm.as_deref();
        let never_branches = self.v.since(5, 23) && spec == Some("DFLASH");
        self.does_not_branch()
            && (spec.is_none() || a.speculative_eagle_topk.is_some() || never_branches)
    }

    /// `is_no_spec_infer_or_topk_one`.
    fn does_not_branch(&self) -> bool {
        match self.args.speculative_eagle_topk {
            None => true,
            Some(topk) => topk == 1 && matches!(self.args.page_size, None | Some(1)),
        }
    }

    fn generic(&self) -> Choice {
        let (v, capability) = (self.v, self.capability());
        match (self.model.attention.is_mla(), capability) {
            (true, Some(9)) => ("fa3", "latents on compute capability 9"),
            (true, Some(10)) if v.since(4, 10) => {
                ("flashinfer", "latents on compute capability 10")
            }
            (true, _) => ("triton", "latents on this device"),
            (false, Some(9)) if self.does_not_branch() => ("fa3", "heads on compute capability 9"),
            (false, Some(10)) if v.since(5, 7) && self.trtllm_mha_serves() => {
                if self.model.asymmetric_kv && v.since(5, 18) {
                    ("fa4", "keys and values of two widths on compute capability 10")
                } else {
                    ("trtllm_mha", "heads on compute capability 10")
                }
            }
            (false, Some(_)) => ("flashinfer", "heads on this device"),
            (false, None) => ("flashinfer", "heads; compute capability not known"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(architecture: &str, attention: AttentionArch) -> ModelFacts {
        let architecture = architecture.to_owned();
        ModelFacts { architecture, attention, ..ModelFacts::text(131_072) }
    }

    fn on(cc: u32, version: &str, model: &ModelFacts, change: fn(&mut ServerArgs)) -> String {
        let mut args = ServerArgs::new(version.parse().unwrap(), "m");
        change(&mut args);
        let machine = MachineFacts { gpu_mem_mib: None, compute_capability: Some((cc, 0)) };
        let choice = choose(args.version, &args, &machine, model);
        assert_eq!(choice.origin, Origin::Automatic);
        choice.prefill.unwrap()
    }

    #[test]
    fn heads_take_trtllm_on_blackwell_from_0_5_7() {
        let qwen = facts("Qwen3ForCausalLM", AttentionArch::Mha);
        assert_eq!(on(10, "0.5.6", &qwen, |_| {}), "flashinfer");
        assert_eq!(on(10, "0.5.7", &qwen, |_| {}), "trtllm_mha");
        assert_eq!(on(12, "0.5.23", &qwen, |_| {}), "flashinfer");
        assert_eq!(on(9, "0.5.8", &qwen, |_| {}), "fa3");
        assert_eq!(on(8, "0.5.8", &qwen, |_| {}), "flashinfer");
        let eagle = |a: &mut ServerArgs| a.speculative_algorithm = Some("EAGLE".into());
        assert_eq!(on(10, "0.5.8", &qwen, eagle), "flashinfer");
        let chain = |a: &mut ServerArgs| {
            a.speculative_algorithm = Some("EAGLE".into());
            a.speculative_eagle_topk = Some(1);
        };
        assert_eq!(on(10, "0.5.8", &qwen, chain), "trtllm_mha");
        let tree = |a: &mut ServerArgs| {
            a.speculative_algorithm = Some("EAGLE".into());
            a.speculative_eagle_topk = Some(4);
        };
        assert_eq!(on(10, "0.5.8", &qwen, tree), "flashinfer");
        assert_eq!(on(9, "0.5.8", &qwen, tree), "flashinfer");
        let wide = ModelFacts { asymmetric_kv: true, ..qwen };
        assert_eq!(on(10, "0.5.16", &wide, |_| {}), "trtllm_mha");
        assert_eq!(on(10, "0.5.18", &wide, |_| {}), "fa4");
    }

    #[test]
    fn latents_depend_on_the_architecture() {
        let deepseek = facts("DeepseekV3ForCausalLM", AttentionArch::Mla);
        assert_eq!(on(10, "0.5.3", &deepseek, |_| {}), "flashinfer");
        assert_eq!(on(10, "0.5.4", &deepseek, |_| {}), "trtllm_mla");
        assert_eq!(on(9, "0.5.4", &deepseek, |_| {}), "fa3");
        assert_eq!(on(12, "0.5.8", &deepseek, |_| {}), "triton");
        let kimi = facts("KimiK25ForConditionalGeneration", AttentionArch::Mla);
        assert_eq!(on(10, "0.5.8", &kimi, |_| {}), "flashinfer");
        assert_eq!(on(10, "0.5.9", &kimi, |_| {}), "trtllm_mla");
        let split = |a: &mut ServerArgs| a.decode_attention_backend = Some("flashmla".into());
        assert_eq!(on(10, "0.5.9", &kimi, split), "flashinfer");
        assert_eq!(on(9, "0.5.8", &facts("X", AttentionArch::Dsa), |_| {}), "nsa");
    }

    #[test]
    fn families_have_choices_of_their_own() {
        let gpt = facts("GptOssForCausalLM", AttentionArch::Mha);
        assert_eq!(on(10, "0.5.1", &gpt, |_| {}), "trtllm_mha");
        assert_eq!(
            (on(9, "0.5.8", &gpt, |_| {}), on(12, "0.5.8", &gpt, |_| {})),
            ("fa3".into(), "triton".into())
        );
        let gemma = facts("Gemma4ForConditionalGeneration", AttentionArch::Mha);
        assert_eq!(on(10, "0.5.12", &gemma, |_| {}), "triton");
        assert_eq!(on(10, "0.5.13", &gemma, |_| {}), "trtllm_mha");
        let experts = ModelFacts { fp4_experts: true, ..gemma };
        assert_eq!(on(10, "0.5.14", &experts, |_| {}), "triton");
        assert_eq!(on(10, "0.5.16", &experts, |_| {}), "trtllm_mha");
        let next = facts("Qwen3NextForCausalLM", AttentionArch::Mha);
        assert_eq!(on(10, "0.5.23", &next, |_| {}), "triton");
        assert_eq!(on(10, "0.5.23", &next, |a| a.disable_radix_cache = true), "trtllm_mha");
        assert_eq!(on(10, "0.5.9", &next, |a| a.disable_radix_cache = true), "triton");
        let nemotron = facts("NemotronHForCausalLM", AttentionArch::Mha);
        assert_eq!(on(10, "0.5.22", &nemotron, |_| {}), "flashinfer");
        assert_eq!(on(10, "0.5.23", &nemotron, |_| {}), "trtllm_mha");
        let llama = facts("Llama4ForConditionalGeneration", AttentionArch::Mha);
        assert_eq!(on(8, "0.5.5", &llama, |_| {}), "triton");
    }

    #[test]
    fn rocm_counts_heads_of_latents() {
        let pick = |heads, tp| {
            let mut args = ServerArgs::new(Version::new(0, 5, 8), "m");
            (args.platform, args.tp_size) = (Platform::Rocm, tp);
            let model = ModelFacts { heads: Some(heads), ..facts("X", AttentionArch::Mla) };
            choose(args.version, &args, &MachineFacts::default(), &model).general.unwrap()
        };
        assert_eq!(
            (pick(128, 8), pick(64, 8), pick(64, 4)),
            ("aiter".into(), "triton".into(), "aiter".into())
        );
    }

    #[test]
    fn flags_win_phase_by_phase() {
        let mut args = ServerArgs::new(Version::new(0, 5, 8), "m");
        args.attention_backend = Some("fa3".into());
        args.decode_attention_backend = Some("flashinfer".into());
        let choice = choose(args.version, &args, &MachineFacts::default(), &ModelFacts::text(4096));
        assert_eq!(
            (choice.prefill.as_deref(), choice.decode.as_deref()),
            (Some("fa3"), Some("flashinfer"))
        );
        assert_eq!((choice.origin, choice.uses("flashinfer")), (Origin::Given, true));
        assert_eq!(choice.buffers(AttentionArch::Mha), AttentionBackend::FlashAttention);
    }
}
