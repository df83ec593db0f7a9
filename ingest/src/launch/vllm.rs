//! Flags of `vllm serve` into [`EngineArgs`].

use plimsoll_core::policy::vllm::args::{EngineArgs, Generation, SchedulingArgs};
use serde_json::Value as Json;

use super::error::{ErrorCode, LaunchError};
use super::fill::{Flags, check_devices};
use super::place::Place;
use super::sglang::switch;
use super::table::Effect;
use super::{EngineLaunch, Launch, NamedFlag};

/// Fills `args` from the flags, then from the variables of `launch`.
pub(crate) fn fill(mut args: EngineArgs, flags: &mut Flags<'_>, launch: &mut Launch) {
    let size = |flags: &Flags<'_>, name| flags.size(name).unwrap_or(1);
    args.tensor_parallel_size = size(flags, "--tensor-parallel-size");
    args.pipeline_parallel_size = size(flags, "--pipeline-parallel-size");
    args.data_parallel_size = size(flags, "--data-parallel-size");
    args.decode_context_parallel_size = size(flags, "--decode-context-parallel-size");
    args.enable_expert_parallel = flags.on("--enable-expert-parallel");
    memory(&mut args, flags);
    args.scheduling = scheduling(flags);
    compilation(&mut args, flags);
    speculative(&mut args, flags);
    multimodal(&mut args, flags);
    variables(&mut args, flags, launch);
    check(&args, flags, launch);
    launch.engine = EngineLaunch::Vllm(Box::new(args));
}

fn memory(args: &mut EngineArgs, flags: &mut Flags<'_>) {
    args.dtype = flags.text(&["--dtype"]);
    args.quantization = flags.text(&["--quantization"]);
    args.kv_cache_dtype = flags.text(&["--kv-cache-dtype"]);
    args.mamba_ssm_cache_dtype = flags.text(&["--mamba-ssm-cache-dtype"]);
    args.gpu_memory_utilization = flags.float("--gpu-memory-utilization");
    args.kv_cache_memory_bytes = flags.count(&["--kv-cache-memory-bytes"]);
    args.num_gpu_blocks_override = flags.count(&["--num-gpu-blocks-override"]);
    args.max_model_len = flags.signed(&["--max-model-len"]);
    if args.max_model_len == Some(0)
        && let Some(given) = flags.get("--max-model-len")
    {
        flags.error(ErrorCode::OutOfRange, given, "must be at least 1, or -1 for what fits");
    }
    args.max_num_seqs = flags.count(&["--max-num-seqs"]);
    args.max_num_batched_tokens = flags.count(&["--max-num-batched-tokens"]);
    args.block_size = flags.count(&["--block-size"]);
    args.swap_space = flags.float("--swap-space");
    args.cpu_offload_gb = flags.float("--cpu-offload-gb");
    args.enable_chunked_prefill = flags.switch("--enable-chunked-prefill");
    args.enable_prefix_caching = flags.switch("--enable-prefix-caching");
    args.enforce_eager = flags.on("--enforce-eager");
    args.disable_hybrid_kv_cache_manager = flags.on("--disable-hybrid-kv-cache-manager");
    args.async_scheduling = flags.switch("--async-scheduling");
    args.enable_lora = flags.on("--enable-lora");
}

fn scheduling(flags: &Flags<'_>) -> SchedulingArgs {
    SchedulingArgs {
        policy: flags.text(&["--scheduling-policy"]),
        long_prefill_token_threshold: flags.count(&["--long-prefill-token-threshold"]),
        adaptive_threshold: flags.on("--long-prefill-token-threshold-adaptive"),
        reserve_full_isl: flags.switch("--scheduler-reserve-full-isl"),
        watermark: flags.float("--watermark"),
        prefix_cache_retention_interval: flags.count(&["--prefix-cache-retention-interval"]),
        max_num_active_seqs: flags.count(&["--max-num-active-seqs"]),
        prefill_schedule_interval: flags.count(&["--prefill-schedule-interval"]),
    }
}

/// Capture sizes: the list of `--compilation-config`, else `--cudagraph-capture-sizes`, else
/// `--cuda-graph-sizes`, where one number N stands for 1, 2, 4, 8, 16, … N.
/// Level 0 runs without graphs, and before 0.12 in V1 every level below 3 does.
/// Source: vLLM 0.11 `VllmConfig._set_cudagraph_sizes`, `VllmConfig.__post_init__`; 0.12 and later
/// optimisation levels.
fn compilation(args: &mut EngineArgs, flags: &mut Flags<'_>) {
    args.cudagraph_capture_sizes = match flags.list(&["--cuda-graph-sizes"]) {
        Some(sizes) => match sizes.as_slice() {
            [max] => {
                let max = (*max).min(1 << 20);
                let steps = (8..=max).step_by(8);
                Some([1, 2, 4].into_iter().chain(steps).collect())
            }
            _ => Some(sizes),
        },
        None => None,
    };
    if let Some(sizes) = flags.list(&["--cudagraph-capture-sizes"]) {
        args.cudagraph_capture_sizes = Some(sizes);
    }
    args.max_cudagraph_capture_size = flags.count(&["--max-cudagraph-capture-size"]);
    match flags.text(&["--optimization-level"]).as_deref().map(|l| l.trim_start_matches('O')) {
        Some("0") => (args.disable_cudagraphs, args.disable_compilation) = (true, true),
        Some("1") => {
            if let Some(given) = flags.get("--optimization-level") {
                flags.part(given, "piecewise graphs only", &Json::from(1));
            }
        }
        _ => {}
    }
    let Some((given, json)) = flags.json("--compilation-config") else { return };
    match json {
        Json::Object(map) => {
            for (key, value) in map {
                compilation_key(args, flags, given, (key, value));
            }
        }
        Json::Null => {}
        level => compilation_key(args, flags, given, ("level", level)),
    }
}

fn compilation_key(
    args: &mut EngineArgs,
    flags: &mut Flags<'_>,
    given: &super::argv::Given,
    (key, value): (&str, &Json),
) {
    match (key, value) {
        ("cudagraph_capture_sizes", _) => {
            args.cudagraph_capture_sizes = flags.json_sizes(given, key, value);
        }
        ("max_cudagraph_capture_size", _) if value.as_u64() == Some(0) => {
            args.max_cudagraph_capture_size = Some(0);
        }
        ("max_cudagraph_capture_size", _) => {
            args.max_cudagraph_capture_size = flags.json_count(given, key, value);
        }
        ("cudagraph_mode", Json::String(mode)) if mode.eq_ignore_ascii_case("none") => {
            args.disable_cudagraphs = true;
        }
        ("use_cudagraph", Json::Bool(on)) => args.disable_cudagraphs = !on,
        ("level", _) if value.as_u64().is_some_and(|level| level < 3) => {
            args.disable_cudagraphs = true;
            if value.as_u64() == Some(0) {
                args.disable_compilation = true;
            } else {
                flags.part(given, key, value);
            }
        }
        ("level", _) if value.as_u64() == Some(3) => {}
        _ => flags.part(given, key, value),
    }
}

fn speculative(args: &mut EngineArgs, flags: &mut Flags<'_>) {
    args.num_speculative_tokens = flags.count(&["--num-speculative-tokens", "--spec-tokens"]);
    args.speculative_model = flags.text(&["--speculative-model", "--spec-model"]);
    args.spec_method = flags.text(&["--spec-method"]);
    speculative_config(args, flags);
    // Old releases name the method where others name a model.
    if args.speculative_model.as_deref().is_some_and(|m| matches!(m, "[ngram]" | "ngram")) {
        args.speculative_model = None;
        args.spec_method = Some("ngram".to_owned());
    }
}

fn speculative_config(args: &mut EngineArgs, flags: &mut Flags<'_>) {
    let Some((given, map)) = flags.object("--speculative-config") else { return };
    for (key, value) in map {
        match (key.as_str(), value) {
            ("num_speculative_tokens", value) => {
                args.num_speculative_tokens = flags.json_count(given, key, value);
            }
            ("method", Json::String(method)) => args.spec_method = Some(method.to_lowercase()),
            ("model", Json::String(model)) => args.speculative_model = Some(model.clone()),
            _ => flags.part(given, key, value),
        }
    }
}

/// A model without its encoders: `--language-model-only`, or no item of any modality.
fn multimodal(args: &mut EngineArgs, flags: &mut Flags<'_>) {
    args.language_model_only = flags.on("--language-model-only");
    let Some(given) = flags.get("--limit-mm-per-prompt") else { return };
    let Some(text) = given.words.first() else { return };
    let Some(limits) = limits(text) else {
        let allowed = "must be JSON such as {\"image\": 2, \"video\": 0} or image=2,video=0";
        return flags.error(ErrorCode::WrongType, given, allowed);
    };
    let none = |name: &str| limits.iter().any(|(modality, n)| modality == name && *n == 0);
    if limits.iter().all(|(_, n)| *n == 0) && none("image") && none("video") {
        args.language_model_only = true;
    } else {
        flags.parts.push(NamedFlag {
            name: "--limit-mm-per-prompt".to_owned(),
            values: given.words.clone(),
            effect: Effect::MemoryNotModelled,
            place: given.place.clone(),
        });
    }
}

/// `image=10,video=1` (old releases) or JSON whose values are counts or objects with `count`.
fn limits(text: &str) -> Option<Vec<(String, u64)>> {
    if let Ok(Json::Object(map)) = serde_json::from_str(text) {
        let count = |v: &Json| v.as_u64().or_else(|| v.get("count").and_then(Json::as_u64));
        return map.iter().map(|(k, v)| Some((k.clone(), count(v)?))).collect();
    }
    let pair = |item: &str| {
        let (name, n) = item.split_once('=')?;
        Some((name.trim().to_owned(), n.trim().parse().ok()?))
    };
    text.split(',').map(pair).collect()
}

fn variables(args: &mut EngineArgs, flags: &mut Flags<'_>, launch: &Launch) {
    args.generation = switch(launch, "VLLM_USE_V1", flags)
        .map(|v1| if v1 { Generation::V1 } else { Generation::V0 });
    let backend = launch.env.iter().find(|v| v.name == "VLLM_ATTENTION_BACKEND");
    let backend = backend.map(|v| v.value.clone()).filter(|name| !name.is_empty());
    args.attention_backend =
        flags.text(&["--attention-backend"]).or(backend).map(|name| name.to_uppercase());
    args.estimate_cudagraphs = switch(launch, "VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS", flags);
}

/// Checks across flags that vLLM makes while it starts.
fn check(args: &EngineArgs, flags: &mut Flags<'_>, launch: &Launch) {
    if args.model.is_empty() {
        let what = "the model is missing: `vllm serve MODEL`";
        flags.errors.push(LaunchError::new(ErrorCode::MissingValue, what, Place::Whole));
    }
    let (tp, dcp) = (args.tensor_parallel_size, args.decode_context_parallel_size);
    if let Some(given) = flags.get("--decode-context-parallel-size").filter(|_| tp % dcp != 0) {
        let what = format!("tensor_parallel_size ({tp}) must be a multiple of it");
        flags.error(ErrorCode::Inconsistent, given, what);
    }
    // Ranks may sit on other nodes with Ray, several nodes or external load balancing.
    let elsewhere = flags.text(&["--distributed-executor-backend"]).is_some_and(|b| b == "ray")
        || flags.get("--nnodes").is_some()
        || flags.get("--data-parallel-size-local").is_some();
    if !elsewhere {
        let pp = args.pipeline_parallel_size;
        let dp = args.data_parallel_size;
        let how = if dp == 1 {
            format!("tp {tp} × pp {pp}")
        } else {
            format!("tp {tp} × pp {pp} × dp {dp}")
        };
        let world = u64::from(tp) * u64::from(pp) * u64::from(dp);
        flags.errors.extend(check_devices(launch, world, 1, &how));
    }
}
