//! `page_size` as the attention backend decides it.

use super::{
    args::{Platform, ServerArgs},
    attention::AttentionChoice,
    facts::{AttentionArch, ModelFacts},
    settings::Origin,
    version::Version,
    whys::computed,
};
use crate::figure::Why;

/// The page that the pool uses, tokens, and why.
///
/// Source: SGLang attention-backend handlers of `ServerArgs`, read for 0.5.8 and 0.5.23; the default is
/// 1 in every release.
pub(crate) fn page_size(
    v: Version,
    args: &ServerArgs,
    model: &ModelFacts,
    backends: &AttentionChoice,
) -> (u64, Why) {
    let asked = args.page_size;
    let (page, rule) = decide(args, model, backends);
    let shown = asked.map_or("not given".to_owned(), |n| n.to_string());
    let why = computed(v, "attention backend handlers", rule)
        .with("--page-size", shown)
        .with("page_size", page);
    // A backend that the engine chose says so, and how sure that choice is.
    let why = match backends.origin {
        Origin::Automatic => {
            let name = backends.general.as_deref().unwrap_or("unknown");
            let tag = why.tag.max(backends.why.tag);
            let why =
                why.with("attention backend, not given", format!("{name} ({})", backends.why.rule));
            Why { tag, ..why }
        }
        Origin::Given => why,
    };
    (page, why)
}

fn decide(
    args: &ServerArgs,
    model: &ModelFacts,
    backends: &AttentionChoice,
) -> (u64, &'static str) {
    let asked = args.page_size.unwrap_or(1);
    let one_of = |allowed: &[u64], otherwise: u64| {
        if allowed.contains(&asked) { asked } else { otherwise }
    };
    let uses = |name: &str| backends.uses(name);
    let prefill = backends.prefill.as_deref();
    if model.attention == AttentionArch::Dsa && args.platform == Platform::Cuda {
        return (64, "sparse attention on CUDA: 64");
    }
    if model.attention == AttentionArch::Dsa && args.platform == Platform::Rocm {
        return (1, "sparse attention on ROCm: 1");
    }
    if uses("flashmla") {
        return (64, "FlashMLA: 64");
    }
    if uses("cutlass_mla") {
        return (128, "Cutlass MLA: 128");
    }
    if uses("trtllm_mla") {
        return (one_of(&[32, 64], 64), "TRT-LLM MLA: 32 or 64, else 64");
    }
    if uses("trtllm_mha") {
        return (one_of(&[16, 32, 64], 64), "TRT-LLM MHA: 16, 32 or 64, else 64");
    }
    if prefill == Some("fa4") && !model.attention.is_mla() {
        return (128, "FA4 prefill: 128");
    }
    if uses("intel_xpu") {
        return (one_of(&[32, 64, 128], 128), "Intel XPU: 32, 64 or 128, else 128");
    }
    if args.platform == Platform::Npu || uses("ascend") {
        return (args.page_size.unwrap_or(128), "Ascend: 128 unless given");
    }
    if args.platform == Platform::Musa && args.page_size.is_none() {
        return (64, "MUSA: 64");
    }
    (asked, "1 unless given")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        figure::Tag,
        policy::sglang::{attention::choose, facts::MachineFacts},
    };

    #[test]
    fn backends_force_their_page() {
        let v = Version::new(0, 5, 23);
        let page = |backend: &str, asked: Option<u64>| {
            let mut args = ServerArgs::new(v, "m");
            args.attention_backend = Some(backend.to_owned());
            args.page_size = asked;
            let model = ModelFacts::text(4096);
            let choice = choose(v, &args, &MachineFacts::default(), &model);
            page_size(v, &args, &model, &choice).0
        };
        assert_eq!(page("flashinfer", None), 1);
        assert_eq!(page("flashinfer", Some(16)), 16);
        assert_eq!(page("trtllm_mha", Some(16)), 16);
        assert_eq!(page("trtllm_mla", Some(16)), 64);
        assert_eq!(page("cutlass_mla", Some(1)), 128);
        assert_eq!(page("fa4", None), 128);
    }

    #[test]
    fn a_backend_that_the_engine_chose_is_named() {
        let model = ModelFacts::text(4096);
        let of = |compute_capability| {
            let args = ServerArgs::new(Version::new(0, 5, 10), "m");
            let machine = MachineFacts { gpu_mem_mib: None, compute_capability };
            let choice = choose(args.version, &args, &machine, &model);
            page_size(args.version, &args, &model, &choice)
        };
        let (page, why) = of(Some((10, 0)));
        assert_eq!((page, why.tag), (64, Tag::Computed));
        assert!(why.inputs.iter().any(|i| i.value.starts_with("trtllm_mha (")), "{why:?}");
        let (page, why) = of(None);
        assert_eq!((page, why.tag), (1, Tag::Assumed));
        assert_eq!(of(Some((12, 0))).0, 1);
    }
}
