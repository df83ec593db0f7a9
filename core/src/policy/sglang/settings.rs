//! From launch flags to resolved settings: what SGLang fills in or changes by itself before it loads a model.

use super::{
    args::{DisaggregationMode, GraphRequest, Platform, ServerArgs},
    attention::{self, AttentionChoice},
    facts::{
        AttentionArch, Checkpoint, Family, KvDtype, MachineFacts, ModelFacts, Multimodal,
        MultimodalPrefill,
    },
    fraction::{FractionQuestion, Reserve},
    graphs::{DecodeList, Padding, Speculating, cpu_sizes},
    page::page_size,
    prefill_graph::{PrefillGraph, PrefillQuestion},
    refusal::{Refusal, in_range},
    rules::RulesFor,
    speculation::Speculation,
    tiers::TierInputs,
    version::Version,
    whys::{Whys, computed},
};
use crate::{
    figure::{Tag, Why},
    pyfloat::repr,
};

/// Where a fraction came from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Origin {
    /// A flag.
    Given,
    /// Chosen by the engine.
    Automatic,
}

/// The settings with which a server would start.
#[derive(Clone, PartialEq, Debug)]
pub struct Resolved {
    /// Rules used, and a note when they are not the asked version's own.
    pub rules: RulesFor,
    /// The flags as given.
    pub args: ServerArgs,
    /// `chunked_prefill_size` before division by dp, tokens; -1 is off. The reserve uses this one.
    pub chunked_prefill_size: i64,
    /// `chunked_prefill_size` after division under DP attention; what the log prints.
    pub chunked_prefill_size_after_dp: i64,
    /// What the scheduler chunks by: as before, or -1 where the model cannot chunk multimodal prompts.
    pub scheduler_chunk: i64,
    /// `cuda_graph_max_bs`; `None` where the release leaves it unset.
    pub cuda_graph_max_bs: Option<u64>,
    /// Batch sizes of decode graphs, before the filter at capture.
    pub decode_bs: Vec<u64>,
    /// Why decode runs without graphs; `None` when it runs with them.
    pub decode_graphs_off: Option<&'static str>,
    /// Prefill graphs as the reserve sees them.
    pub prefill_graph: PrefillGraph,
    /// Token counts of the prefill graphs that are captured; empty without graphs.
    pub prefill_sizes: Vec<u64>,
    /// `mem_fraction_static` after argument handling.
    pub mem_fraction_static: f64,
    /// Given or automatic.
    pub fraction_origin: Origin,
    /// Fraction that sizes the pool: `mem_fraction_static` after what the model runner still changes.
    pub pool_fraction: f64,
    /// The reserve behind an automatic fraction.
    pub reserve: Option<Reserve>,
    /// The pool is sized after graph capture.
    pub post_capture: bool,
    /// Attention backends, as named or as the engine chooses them.
    pub attention: AttentionChoice,
    /// `page_size`, tokens.
    pub page_size: u64,
    /// `max_running_requests` as given or as speculation sets it.
    pub max_running_requests: Option<u64>,
    /// Speculation.
    pub speculation: Option<Speculation>,
    /// KV storage.
    pub kv_cache_dtype: KvDtype,
    /// Ranks that share one request's attention: `tp / dp` under DP attention, else tp.
    pub attn_tp_size: u64,
    /// Attention-DP width: dp under DP attention, else 1.
    pub attn_dp_size: u64,
    /// `context_len`, tokens.
    pub context_len: u64,
    /// The model is loaded as a multimodal one.
    pub multimodal: bool,
    /// What is weaker than a verified rule here.
    pub notes: Vec<String>,
    /// Derivations by the names of the figures above.
    pub whys: Whys,
}

impl Resolved {
    /// Most new tokens of one prefill pass: a chunk, or without chunks a prefill batch; at most the context.
    #[must_use]
    pub fn full_chunk(&self) -> u64 {
        let chunk = u64::try_from(self.chunked_prefill_size_after_dp).ok().filter(|c| *c > 0);
        chunk.unwrap_or_else(|| self.args.prefill_budget()).min(self.context_len.max(1))
    }

    /// Largest batch that decodes in a graph; 0 without graphs.
    #[must_use]
    pub fn largest_decode_graph(&self) -> u64 {
        let captured = self.decode_graphs_off.is_none();
        self.decode_bs.last().copied().filter(|_| captured).unwrap_or(0)
    }
}

/// Resolves the settings.
///
/// Source: SGLang `ServerArgs.__post_init__` and its handlers, 0.4.6 to 0.5.23.
///
/// # Errors
/// [`Refusal`]: a value out of range, unknown capacity in 0.4.6, a chunk that is not a multiple of the
/// page, a KV type that is not modelled.
pub fn resolve(
    args: &ServerArgs,
    machine: &MachineFacts,
    model: &ModelFacts,
) -> Result<Resolved, Refusal> {
    check_ranges(args, machine, model)?;
    let rules = RulesFor::version(args.version);
    let v = rules.used;
    let first = SizeSettings::fill(v, args, machine, model);
    let prefill = PrefillQuestion { version: v, args, model, chunk: first.chunk }.decide();
    let decode = decode_off(v, args);
    let question = FractionQuestion {
        version: v,
        args,
        model,
        gpu_mem_mib: machine.gpu_mem_mib,
        chunk: first.chunk,
        max_bs: first.max_bs,
        prefill: &prefill,
        decode_graphs: decode.is_none(),
    };
    let mut whys = first.whys.clone();
    let (fraction, origin, reserve) = match args.mem_fraction_static {
        Some(given) => {
            let why = Why::new(Tag::Measured, "as given", "--mem-fraction-static");
            whys.put("mem_fraction_static", why);
            (given, Origin::Given, None)
        }
        None => {
            let auto = question.answer()?;
            whys.put("mem_fraction_static", auto.why);
            (auto.value, Origin::Automatic, auto.reserve)
        }
    };
    let post_capture = question.post_capture();
    let attention = attention::choose(v, args, machine, model);
    let aiter = attention.general.as_deref() == Some("aiter");
    let pool_fraction = pool_fraction(v, args, model, (fraction, origin, aiter), &mut whys);
    let dp = DpSettings::of(args);
    let (page, page_why) = page_size(v, args, model, &attention);
    whys.put("page_size", page_why);
    whys.put("attention_backend", attention.why.clone());
    let after_dp = first.chunk.div_euclid(dp.chunk_divisor);
    if after_dp > 0 && u64::try_from(after_dp).is_ok_and(|c| !c.is_multiple_of(page)) {
        return Err(Refusal::ChunkNotPageMultiple { chunk: after_dp, page_size: page });
    }
    let speculation = Speculation::resolve(v, args, model);
    if let Some((_, why)) = &speculation {
        whys.put("speculative_num_draft_tokens", why.clone());
    }
    let speculation = speculation.map(|(s, _)| s);
    let by_speculation = speculation.as_ref().and_then(|s| s.default_max_running_requests(v));
    let (kv_cache_dtype, kv_why) = kv_dtype(v, args, machine, model)?;
    whys.put("kv_cache_dtype", kv_why);
    whys.put("chunked_prefill_size_after_dp", chunk_why(v, first.chunk, dp.chunk_divisor));
    Ok(Resolved {
        args: args.clone(),
        chunked_prefill_size: first.chunk,
        chunked_prefill_size_after_dp: after_dp,
        scheduler_chunk: if prefills_whole(v, args, model) { -1 } else { after_dp },
        cuda_graph_max_bs: first.max_bs,
        decode_bs: decode_sizes(v, args, machine, first.max_bs),
        decode_graphs_off: decode.or_else(|| late_decode_off(v, args, &attention)),
        prefill_sizes: prefill_sizes_to_capture(v, &prefill, after_dp, dp.width),
        prefill_graph: prefill,
        mem_fraction_static: fraction,
        fraction_origin: origin,
        pool_fraction,
        reserve,
        post_capture,
        page_size: page,
        max_running_requests: args.max_running_requests.or(by_speculation),
        speculation,
        kv_cache_dtype,
        attn_tp_size: dp.attn_tp,
        attn_dp_size: dp.width,
        context_len: args.context_length.unwrap_or(model.context_len),
        multimodal: model.multimodal != Multimodal::No && !args.language_only,
        notes: notes(v, args, model, &attention, post_capture),
        attention,
        rules,
        whys,
    })
}

fn check_ranges(a: &ServerArgs, machine: &MachineFacts, model: &ModelFacts) -> Result<(), Refusal> {
    const TOKENS: u64 = 1 << 28;
    in_range("tp_size", a.tp_size, 1, 4096)?;
    in_range("pp_size", a.pp_size, 1, 4096)?;
    in_range("dp_size", a.dp_size, 1, 4096)?;
    in_range("attention_cp_size", a.attention_cp_size, 1, 4096)?;
    in_range("chunked_prefill_size", a.chunked_prefill_size.unwrap_or(1), -1, 1 << 28)?;
    in_range("max_prefill_tokens", a.max_prefill_tokens.unwrap_or(1), 1, TOKENS)?;
    in_range("max_running_requests", a.max_running_requests.unwrap_or(1), 1, 1 << 32)?;
    in_range("max_total_tokens", a.max_total_tokens.unwrap_or(1), 1, 1 << 40)?;
    in_range("page_size", a.page_size.unwrap_or(1), 1, 1 << 20)?;
    in_range("cuda_graph_max_bs", a.cuda_graph_max_bs.unwrap_or(1), 1, 1 << 20)?;
    in_range("torch_compile_max_bs", a.torch_compile_max_bs.unwrap_or(1), 1, 1 << 20)?;
    let listed = a.cuda_graph_bs.iter().flatten().copied().max().unwrap_or(1);
    in_range("cuda_graph_bs", listed, 1, 1 << 20)?;
    in_range("prefill_graph_max_tokens", a.prefill_graph_max_tokens.unwrap_or(1), 1, TOKENS)?;
    for (name, value) in [
        ("speculative_num_steps", a.speculative_num_steps),
        ("speculative_eagle_topk", a.speculative_eagle_topk),
        ("speculative_num_draft_tokens", a.speculative_num_draft_tokens),
    ] {
        in_range(name, value.unwrap_or(1), 1, 65_536)?;
    }
    in_range("context_length", a.context_length.unwrap_or(model.context_len), 1, 1 << 40)?;
    in_range("mem_fraction_static", a.mem_fraction_static.unwrap_or(0.5), -100.0, 100.0)?;
    in_range("gpu_mem", machine.gpu_mem_mib.unwrap_or(1.0), 1.0, 1e9)
}

/// Chunk and largest decode graph.
#[derive(Clone, Debug)]
struct SizeSettings {
    chunk: i64,
    max_bs: Option<u64>,
    whys: Whys,
}

impl SizeSettings {
    fn fill(v: Version, args: &ServerArgs, machine: &MachineFacts, model: &ModelFacts) -> Self {
        let inputs = TierInputs {
            version: v,
            gpu_mem_mib: machine.gpu_mem_mib,
            tp_size: args.tp_size,
            disaggregation_mode: args.disaggregation_mode,
            platform: args.platform,
        };
        let (preset, tier) = (inputs.ascend_preset(), inputs.values());
        let chunk = args
            .chunked_prefill_size
            .or(preset.map(|p| p.chunked_prefill_size))
            .unwrap_or(tier.chunked_prefill_size);
        let listed = args.cuda_graph_bs.iter().flatten().copied().max().filter(|_| v.since(5, 3));
        let chosen = listed.or(args.cuda_graph_max_bs).or(preset.and_then(|p| p.cuda_graph_max_bs));
        let mut max_bs = chosen.or(tier.cuda_graph_max_bs);
        if v.since(5, 22)
            && chosen.is_none()
            && let (Some(bs), Some(requests)) = (max_bs, args.max_running_requests)
        {
            max_bs = Some(bs.min(requests));
        }
        if chosen.is_none() && raises_to_requests(v, machine, model) {
            max_bs = max_bs.max(args.max_running_requests.filter(|&n| n <= 512));
        }
        if args.platform == Platform::Cpu && v.since(5, 10) {
            max_bs = Some(args.torch_compile_max_bs.unwrap_or(32));
        }
        let mut whys = Whys::default();
        let mib = machine.gpu_mem_mib.map_or("unknown".to_owned(), |g| format!("{g} MiB"));
        let function = if v.since(5, 3) { "_handle_gpu_memory_settings" } else { "__post_init__" };
        let why = |rule: &str, given: bool| {
            let rule = if given { "as given" } else { rule };
            computed(v, function, rule).with("gpu_mem", &mib).with("tp_size", args.tp_size)
        };
        whys.put(
            "chunked_prefill_size",
            why("tier of gpu_mem", args.chunked_prefill_size.is_some()).with("tokens", chunk),
        );
        let bs = max_bs.map_or("unset".to_owned(), |n| n.to_string());
        whys.put(
            "cuda_graph_max_bs",
            why("tier of gpu_mem and tp_size", chosen.is_some()).with("requests", bs),
        );
        Self { chunk, max_bs, whys }
    }
}

/// Qwen3-VL on Hopper with 60 GiB and more captures up to the request limit (0.5.20 and later).
fn raises_to_requests(v: Version, machine: &MachineFacts, model: &ModelFacts) -> bool {
    v.since(5, 20)
        && model.family == Family::Qwen3Vl
        && machine.compute_capability.is_some_and(|(major, _)| major == 9)
        && machine.gpu_mem_mib.is_some_and(|g| g >= 61_440.0)
}

struct DpSettings {
    width: u64,
    attn_tp: u64,
    chunk_divisor: i64,
}

impl DpSettings {
    fn of(args: &ServerArgs) -> Self {
        // dp_size 1 turns DP attention off, early or late; dividing by 1 changes nothing.
        let width = if args.enable_dp_attention { args.dp_size.max(1) } else { 1 };
        // Context parallelism takes its ranks from those that share heads (0.5.10 and later).
        let attn_tp = u64::from(args.tp_size / width / args.attention_cp_size.max(1)).max(1);
        Self { width: u64::from(width), attn_tp, chunk_divisor: i64::from(width) }
    }
}

fn chunk_why(v: Version, chunk: i64, divisor: i64) -> Why {
    computed(v, "_handle_data_parallelism", "chunked_prefill_size // dp_size under DP attention")
        .with("chunked_prefill_size", chunk)
        .with("attention dp", divisor)
}

/// Why decode graphs are off as the reserve sees it.
fn decode_off(v: Version, args: &ServerArgs) -> Option<&'static str> {
    let asked_on = !matches!(args.decode_graph, GraphRequest::Default | GraphRequest::Off);
    if args.decode_graph == GraphRequest::Off {
        return Some("switched off by a flag");
    }
    if args.disaggregation_mode == DisaggregationMode::Prefill && v.since(5, 16) {
        return Some("the prefill role does not decode");
    }
    (args.platform == Platform::Xpu && v.since(5, 15) && !asked_on)
        .then_some("off on XPU unless asked for")
}

/// What switches decode graphs off after the reserve was computed.
fn late_decode_off(
    v: Version,
    args: &ServerArgs,
    attention: &AttentionChoice,
) -> Option<&'static str> {
    if matches!(attention.decode.as_deref(), Some("torch_native" | "flex_attention")) {
        return Some("this attention backend has no graphs");
    }
    let deepep = args.moe_a2a_backend.as_deref() == Some("deepep");
    if deepep && args.deepep_mode.as_deref() == Some("normal") {
        return Some("DeepEP in normal mode has no graphs");
    }
    if args.platform == Platform::Mlx {
        return Some("MLX captures no graphs");
    }
    let prefill_role = args.disaggregation_mode == DisaggregationMode::Prefill;
    (prefill_role && !v.since(4, 7)).then_some("the prefill role does not decode")
}

fn decode_sizes(
    v: Version,
    args: &ServerArgs,
    machine: &MachineFacts,
    max_bs: Option<u64>,
) -> Vec<u64> {
    if let Some(given) = &args.cuda_graph_bs {
        let mut list = given.clone();
        list.sort_unstable();
        list.dedup();
        return list;
    }
    if let (Platform::Cpu, true, Some(max)) = (args.platform, v.since(5, 10), max_bs) {
        return cpu_sizes(max);
    }
    let speculating = match args.speculative_algorithm {
        Some(_) => Speculating::Yes,
        None => Speculating::No,
    };
    DecodeList {
        version: v,
        gpu_mem_mib: machine.gpu_mem_mib,
        max_bs,
        speculating,
        dp_size: args.dp_size,
        padding: if args.disable_cuda_graph_padding { Padding::Off } else { Padding::On },
    }
    .sizes()
}

/// Prefill sizes to capture: none without graphs; with DP attention not above the divided chunk
/// (0.5.16 and later; the reserve was computed before).
fn prefill_sizes_to_capture(v: Version, graph: &PrefillGraph, after_dp: i64, dp: u64) -> Vec<u64> {
    if !graph.backend.is_on() {
        return Vec::new();
    }
    let mut sizes = graph.sizes.clone();
    if v.since(5, 16) && dp > 1 && after_dp > 0 {
        sizes.retain(|&n| i64::try_from(n).is_ok_and(|n| n <= after_dp));
    }
    sizes
}

/// Multimodal models whose prefill the engine does not chunk.
fn prefills_whole(v: Version, args: &ServerArgs, model: &ModelFacts) -> bool {
    let multimodal = model.multimodal != Multimodal::No && !args.language_only;
    multimodal && (!v.since(4, 7) || model.multimodal_prefill == MultimodalPrefill::Whole)
}

/// What changes the fraction after it was chosen or given.
fn pool_fraction(
    v: Version,
    args: &ServerArgs,
    model: &ModelFacts,
    (fraction, origin, aiter): (f64, Origin, bool),
    whys: &mut Whys,
) -> f64 {
    let mut f = fraction;
    let mut changes = Vec::new();
    if model.multimodal != Multimodal::No && !v.since(4, 9) {
        f *= 0.9;
        changes.push("x 0.90: multimodal model, in the model runner");
    }
    let context = args.context_length.unwrap_or(model.context_len);
    let kept = v.since(5, 23) && args.aiter_honors_explicit_fraction && origin == Origin::Given;
    if aiter && args.platform == Platform::Rocm && context > 8_192 && v.since(4, 7) && !kept {
        f *= 0.85;
        changes.push("x 0.85: aiter attention with a context above 8192");
    }
    if !changes.is_empty() {
        let why = computed(v, "ModelRunner / attention backend handler", changes.join("; "))
            .with("mem_fraction_static", repr(fraction))
            .with("result", repr(f));
        whys.put("pool_fraction", why);
    }
    f
}

/// KV storage: the flag, else what the device and the checkpoint ask for.
///
/// Source: SGLang `configure_kv_cache_dtype` and the DSA handler (read for 0.5.8 and 0.5.23); FP8
/// from the checkpoint 0.5.3 and later.
fn kv_dtype(
    v: Version,
    args: &ServerArgs,
    machine: &MachineFacts,
    model: &ModelFacts,
) -> Result<(KvDtype, Why), Refusal> {
    let function = "ModelRunner.configure_kv_cache_dtype";
    let given = named_dtype("--kv-cache-dtype", args.kv_cache_dtype.as_deref())?;
    let own = named_dtype("--dtype", args.dtype.as_deref())?.unwrap_or(model.dtype);
    let (dtype, rule) = if let Some(dtype) = given {
        (dtype, "as given")
    } else if model.attention == AttentionArch::Dsa && v.since(5, 4) {
        match machine.compute_capability {
            Some((major, _)) if major >= 10 => {
                (KvDtype::Fp8E4m3, "sparse attention on compute capability 10 and above")
            }
            _ => (KvDtype::Bf16, "sparse attention below compute capability 10"),
        }
    } else if model.checkpoint == Checkpoint::Fp8Kv && v.since(5, 3) {
        (KvDtype::Fp8E4m3, "the checkpoint's KV quantisation")
    } else {
        (own, "the model's dtype")
    };
    Ok((dtype, computed(v, function, rule).with("kv_cache_dtype", dtype.name())))
}

/// A type by name; `None` for `auto` and when not given, a refusal for a name that is not modelled.
fn named_dtype(flag: &str, name: Option<&str>) -> Result<Option<KvDtype>, Refusal> {
    match name {
        None | Some("auto") => Ok(None),
        Some(name) => match KvDtype::from_name(name) {
            Some(dtype) => Ok(Some(dtype)),
            None => Err(Refusal::NotModelled {
                what: format!("{flag} {name}"),
                why: "known are auto, bfloat16, float16, float32, fp8_e4m3, fp8_e5m2, fp4_e2m1",
            }),
        },
    }
}

/// What of these settings is weaker than a verified rule.
fn notes(
    v: Version,
    args: &ServerArgs,
    model: &ModelFacts,
    attention: &AttentionChoice,
    post_capture: bool,
) -> Vec<String> {
    let multimodal = model.multimodal != Multimodal::No && !args.language_only;
    let checks = [
        (
            post_capture,
            "the pool is sized again after graph capture; the count before it is an upper bound",
        ),
        (
            multimodal && v.since(5, 16),
            "some multimodal architectures keep prefill graphs; the list is not known here",
        ),
        (
            multimodal && v.since(5, 18),
            "1024 MB more leave the budget when image features travel by CUDA IPC",
        ),
        (
            model.family == Family::DeepseekV4,
            "DeepSeek-V4 has pools of its own, which are not modelled",
        ),
        (
            attention.origin == Origin::Automatic
                && args.page_size.is_none()
                && attention.why.tag == Tag::Assumed,
            "the attention backend that the engine chooses by itself is assumed; it may raise page_size",
        ),
    ];
    checks.iter().filter(|(holds, _)| *holds).map(|(_, text)| (*text).to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(version: &str, change: impl Fn(&mut ServerArgs, &mut ModelFacts)) -> Resolved {
        try_settings(version, change).unwrap()
    }

    fn try_settings(
        version: &str,
        change: impl Fn(&mut ServerArgs, &mut ModelFacts),
    ) -> Result<Resolved, Refusal> {
        let mut args = ServerArgs::new(version.parse().unwrap(), "m");
        let mut model = ModelFacts::text(131_072);
        change(&mut args, &mut model);
        let machine =
            MachineFacts { gpu_mem_mib: Some(81_559.0), compute_capability: Some((9, 0)) };
        resolve(&args, &machine, &model)
    }

    #[test]
    fn dp_attention_divides_the_chunk_after_the_reserve() {
        let r = settings("0.5.23", |a, _| {
            (a.tp_size, a.dp_size, a.enable_dp_attention) = (8, 8, true);
        });
        assert_eq!((r.chunked_prefill_size, r.chunked_prefill_size_after_dp), (8192, 1024));
        assert_eq!((r.attn_tp_size, r.attn_dp_size), (1, 8));
        assert_eq!(r.prefill_graph.max_tokens, Some(8192));
        assert_eq!(r.prefill_sizes.last(), Some(&1024));
    }

    #[test]
    fn context_parallel_ranks_share_no_heads() {
        let r = settings("0.5.23", |a, _| (a.tp_size, a.attention_cp_size) = (8, 4));
        assert_eq!((r.attn_tp_size, r.attn_dp_size), (2, 1));
        assert!(r.prefill_sizes.is_empty());
    }

    #[test]
    fn speculation_sets_a_request_limit() {
        let spec = |name: &str| {
            let name = name.to_owned();
            move |a: &mut ServerArgs, _: &mut ModelFacts| {
                a.speculative_algorithm = Some(name.clone())
            }
        };
        assert_eq!(settings("0.4.6", spec("EAGLE")).max_running_requests, Some(48));
        assert_eq!(settings("0.5.1", spec("STANDALONE")).max_running_requests, None);
        assert_eq!(settings("0.5.3", spec("NGRAM")).max_running_requests, Some(48));
        // The limit that speculation sets does not cap the graphs.
        assert_eq!(settings("0.5.23", spec("EAGLE")).cuda_graph_max_bs, Some(256));
    }

    #[test]
    fn a_request_limit_caps_the_graphs_from_0_5_22() {
        let limited = |a: &mut ServerArgs, _: &mut ModelFacts| a.max_running_requests = Some(100);
        assert_eq!(settings("0.5.21", limited).cuda_graph_max_bs, Some(256));
        assert_eq!(settings("0.5.22", limited).cuda_graph_max_bs, Some(100));
        let vl = |a: &mut ServerArgs, m: &mut ModelFacts| {
            a.max_running_requests = Some(400);
            m.family = Family::Qwen3Vl;
        };
        assert_eq!(settings("0.5.23", vl).cuda_graph_max_bs, Some(400));
        assert_eq!(settings("0.5.19", vl).cuda_graph_max_bs, Some(256));
    }

    #[test]
    fn kv_types_follow_flag_checkpoint_and_device() {
        let fp8 = |_: &mut ServerArgs, m: &mut ModelFacts| m.checkpoint = Checkpoint::Fp8Kv;
        assert_eq!(settings("0.5.2", fp8).kv_cache_dtype, KvDtype::Bf16);
        assert_eq!(settings("0.5.3", fp8).kv_cache_dtype, KvDtype::Fp8E4m3);
        let unknown =
            |a: &mut ServerArgs, _: &mut ModelFacts| a.kv_cache_dtype = Some("mxfp8".into());
        assert!(matches!(try_settings("0.5.23", unknown), Err(Refusal::NotModelled { .. })));
    }

    #[test]
    fn chunks_have_to_be_whole_pages() {
        let odd = |a: &mut ServerArgs, _: &mut ModelFacts| {
            (a.chunked_prefill_size, a.page_size) = (Some(1000), Some(64));
        };
        assert!(matches!(try_settings("0.5.23", odd), Err(Refusal::ChunkNotPageMultiple { .. })));
        let off = |a: &mut ServerArgs, _: &mut ModelFacts| {
            (a.chunked_prefill_size, a.page_size) = (Some(-1), Some(64));
        };
        assert_eq!(settings("0.5.23", off).scheduler_chunk, -1);
    }

    #[test]
    fn fractions_change_after_they_were_chosen() {
        let vision = |_: &mut ServerArgs, m: &mut ModelFacts| {
            m.multimodal = Multimodal::WithVisionConfig { layers: None, hidden: None };
        };
        let r = settings("0.4.8", vision);
        assert_eq!(r.pool_fraction, r.mem_fraction_static * 0.9);
        let aiter = |a: &mut ServerArgs, _: &mut ModelFacts| {
            a.platform = Platform::Rocm;
            a.mem_fraction_static = Some(0.9);
        };
        assert_eq!(settings("0.5.23", aiter).pool_fraction, 0.9 * 0.85);
        assert_eq!(settings("0.4.6", aiter).pool_fraction, 0.9);
        let honoured = |a: &mut ServerArgs, m: &mut ModelFacts| {
            aiter(a, m);
            a.aiter_honors_explicit_fraction = true;
        };
        assert_eq!(settings("0.5.23", honoured).pool_fraction, 0.9);
    }

    #[test]
    fn unknown_capacity_on_three_versions() {
        let f = |version: &str| {
            let args = ServerArgs::new(version.parse().unwrap(), "m");
            resolve(&args, &MachineFacts::default(), &ModelFacts::text(4096))
                .map(|r| r.mem_fraction_static)
        };
        assert!(matches!(f("0.4.6"), Err(Refusal::CapacityUnknown { .. })));
        assert_eq!(f("0.4.6.post5"), Ok(0.88));
        assert_eq!(f("0.5.19"), Ok(0.88));
        assert_eq!(f("0.5.20"), Ok(0.95));
    }

    #[test]
    fn values_out_of_range_are_named() {
        let zero = |a: &mut ServerArgs, _: &mut ModelFacts| a.tp_size = 0;
        let refusal = try_settings("0.5.8", zero).unwrap_err();
        assert_eq!(refusal.to_string(), "tp_size is 0; it has to be between 1 and 4096");
    }
}
