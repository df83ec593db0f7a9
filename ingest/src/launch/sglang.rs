//! Flags of `sglang.launch_server` into [`ServerArgs`].

use plimsoll_core::policy::sglang::{
    args::{DisaggregationMode, GraphRequest, Platform, ServerArgs},
    scheduling::SchedulingArgs,
};
use serde_json::Value as Json;

use super::error::{ErrorCode, LaunchError};
use super::fill::Flags;
use super::place::{Place, Warning};
use super::value::python_float;
use super::{EngineLaunch, Launch};

/// Fills `args` from the flags; the notes of `launch` (variables, devices) come last.
pub(crate) fn fill(mut args: ServerArgs, flags: &mut Flags<'_>, launch: &mut Launch) {
    parallel(&mut args, flags);
    memory(&mut args, flags);
    graphs(&mut args, flags);
    speculative(&mut args, flags);
    caches(&mut args, flags);
    backends(&mut args, flags);
    platform(&mut args, flags, launch);
    check(&args, flags, launch);
    launch.engine = EngineLaunch::Sglang(Box::new(args));
}

fn parallel(args: &mut ServerArgs, flags: &mut Flags<'_>) {
    let size = |flags: &Flags<'_>, name| flags.size(name).unwrap_or(1);
    args.tp_size = size(flags, "--tensor-parallel-size");
    args.pp_size = size(flags, "--pipeline-parallel-size");
    args.dp_size = size(flags, "--data-parallel-size");
    args.ep_size = size(flags, "--expert-parallel-size");
    args.nnodes = size(flags, "--nnodes");
    args.enable_dp_attention = flags.on("--enable-dp-attention");
    args.attention_cp_size = size(flags, "--attn-cp-size");
    args.dcp_size = size(flags, "--dcp-size");
    // 0.5.23 counts attention groups with a flag of their own; `--dp-size` counts replicas.
    // Source: `handle_deprecated_dp_attention`, which turns the old spelling into the new one.
    let width = size(flags, "--attn-dp-size");
    if width > 1 {
        if let Some(dp) = flags.get("--data-parallel-size").filter(|_| args.dp_size > 1)
            && !args.enable_dp_attention
        {
            let allowed = "replicas and attention data parallelism do not go together; \
                           leave out --dp-size or --attn-dp-size";
            flags.error(ErrorCode::Inconsistent, dp, allowed);
        }
        args.enable_dp_attention = true;
        args.dp_size = width;
    }
}

fn memory(args: &mut ServerArgs, flags: &Flags<'_>) {
    args.dtype = flags.text(&["--dtype"]);
    args.quantization = flags.text(&["--quantization"]);
    args.kv_cache_dtype = flags.text(&["--kv-cache-dtype"]);
    args.context_length = flags.count(&["--context-length"]);
    args.mem_fraction_static = flags.float("--mem-fraction-static");
    args.chunked_prefill_size = flags.signed(&["--chunked-prefill-size"]);
    args.max_prefill_tokens = flags.count(&["--max-prefill-tokens"]);
    args.max_running_requests = flags.count(&["--max-running-requests"]);
    args.max_total_tokens = flags.count(&["--max-total-tokens"]);
    args.page_size = flags.count(&["--page-size"]);
    args.cpu_offload_gb = flags.float("--cpu-offload-gb");
    args.enable_memory_saver = flags.on("--enable-memory-saver");
    let paths = flags.get("--lora-paths").is_some_and(|g| !g.values.is_empty());
    args.enable_lora = flags.switch("--enable-lora").unwrap_or(paths);
    args.language_only = flags.on("--language-only") || flags.on("--language-model-only");
}

/// Lowest to highest: switches of old releases, per-phase switches, per-phase backends, JSON.
/// Source: SGLang 0.5.14 `_parse_cuda_graph_config`.
fn graphs(args: &mut ServerArgs, flags: &mut Flags<'_>) {
    args.cuda_graph_max_bs = flags.count(&["--cuda-graph-max-bs", "--cuda-graph-max-bs-decode"]);
    args.cuda_graph_bs = flags.list(&["--cuda-graph-bs", "--cuda-graph-bs-decode"]);
    args.prefill_graph_max_tokens =
        flags.count(&["--piecewise-cuda-graph-max-tokens", "--cuda-graph-max-bs-prefill"]);
    args.disable_cuda_graph_padding = flags.on("--disable-cuda-graph-padding");
    args.torch_compile_max_bs = flags.count(&["--torch-compile-max-bs"]);
    let switches = [
        ("--enable-piecewise-cuda-graph", GraphRequest::On),
        ("--disable-piecewise-cuda-graph", GraphRequest::Off),
        ("--enforce-piecewise-cuda-graph", GraphRequest::TcPiecewise),
        ("--enable-breakable-cuda-graph", GraphRequest::Breakable),
        ("--disable-cuda-graph", GraphRequest::Off),
        ("--disable-prefill-cuda-graph", GraphRequest::Off),
    ];
    for (_, request) in switches.iter().filter(|(name, _)| flags.on(name)) {
        args.prefill_graph = *request;
    }
    if flags.on("--disable-cuda-graph") || flags.on("--disable-decode-cuda-graph") {
        args.decode_graph = GraphRequest::Off;
    }
    let backend = |name| flags.text(&[name]).and_then(|text| graph_backend(&text));
    if let Some(request) = backend("--cuda-graph-backend-decode") {
        args.decode_graph = request;
    }
    if let Some(request) = backend("--cuda-graph-backend-prefill") {
        args.prefill_graph = request;
    }
    graph_config(args, flags);
}

fn graph_backend(text: &str) -> Option<GraphRequest> {
    match text {
        "full" => Some(GraphRequest::Full),
        "breakable" => Some(GraphRequest::Breakable),
        "tc_piecewise" => Some(GraphRequest::TcPiecewise),
        "disabled" => Some(GraphRequest::Off),
        _ => None,
    }
}

/// `--cuda-graph-config '{"decode": {"backend": "full", "max_bs": 256}, "prefill": {…}}'`.
fn graph_config(args: &mut ServerArgs, flags: &mut Flags<'_>) {
    let Some((given, json)) = flags.json("--cuda-graph-config") else { return };
    let Some(phases) = json.as_object() else {
        let allowed = "must be a JSON object of the phases decode and prefill";
        return flags.error(ErrorCode::WrongType, given, allowed);
    };
    for (phase, settings) in phases {
        let Some(settings) =
            settings.as_object().filter(|_| phase == "decode" || phase == "prefill")
        else {
            let allowed =
                format!("`{phase}` must be decode or prefill, with a JSON object of settings");
            flags.error(ErrorCode::NotAChoice, given, allowed);
            continue;
        };
        for (key, value) in settings {
            graph_setting(args, flags, given, (phase, key, value));
        }
    }
}

fn graph_setting(
    args: &mut ServerArgs,
    flags: &mut Flags<'_>,
    given: &super::argv::Given,
    (phase, key, value): (&str, &str, &Json),
) {
    let path = format!("{phase}.{key}");
    match (phase, key) {
        (_, "backend") => match value.as_str().and_then(graph_backend) {
            Some(request) if phase == "decode" => args.decode_graph = request,
            Some(request) => args.prefill_graph = request,
            None => {
                let allowed = format!(
                    "`{path}` must be full, breakable, tc_piecewise or disabled, not {value}"
                );
                flags.error(ErrorCode::NotAChoice, given, allowed);
            }
        },
        ("decode", "max_bs") => args.cuda_graph_max_bs = flags.json_count(given, &path, value),
        ("prefill", "max_bs") => {
            args.prefill_graph_max_tokens = flags.json_count(given, &path, value);
        }
        ("decode", "bs") => args.cuda_graph_bs = flags.json_sizes(given, &path, value),
        _ => flags.part(given, &path, value),
    }
}

fn speculative(args: &mut ServerArgs, flags: &Flags<'_>) {
    let name = flags.text(&["--speculative-algorithm"]);
    args.speculative_algorithm = name.map(|name| name.to_uppercase());
    args.speculative_draft_model_path = flags.text(&["--speculative-draft-model-path"]);
    args.speculative_num_steps = flags.count(&["--speculative-num-steps"]);
    args.speculative_eagle_topk = flags.count(&["--speculative-eagle-topk"]);
    args.speculative_num_draft_tokens = flags.count(&["--speculative-num-draft-tokens"]);
}

fn scheduling(flags: &Flags<'_>) -> SchedulingArgs {
    SchedulingArgs {
        schedule_policy: flags.text(&["--schedule-policy"]),
        schedule_conservativeness: flags.float("--schedule-conservativeness"),
        enable_mixed_chunk: flags.on("--enable-mixed-chunk"),
        radix_eviction_policy: flags.text(&["--radix-eviction-policy"]),
        hicache_write_policy: flags.text(&["--hicache-write-policy"]),
        max_queued_requests: flags.count(&["--max-queued-requests"]),
        prefill_max_requests: flags.count(&["--prefill-max-requests"]),
        decode_log_interval: flags.count(&["--decode-log-interval"]),
        enable_priority_scheduling: flags.on("--enable-priority-scheduling"),
        schedule_low_priority_values_first: flags.on("--schedule-low-priority-values-first"),
        priority_scheduling_preemption_threshold: flags
            .count(&["--priority-scheduling-preemption-threshold"]),
        disable_priority_preemption: flags.on("--disable-priority-preemption"),
        allow_auto_truncate: flags.on("--allow-auto-truncate"),
        sampling_backend: flags.text(&["--sampling-backend"]),
    }
}

fn caches(args: &mut ServerArgs, flags: &Flags<'_>) {
    args.scheduling = scheduling(flags);
    args.disable_radix_cache = flags.on("--disable-radix-cache");
    args.enable_torch_compile = flags.on("--enable-torch-compile");
    args.enable_deterministic_inference = flags.on("--enable-deterministic-inference");
    args.enable_symm_mem = flags.on("--enable-symm-mem");
    let recorder = flags.text(&["--expert-distribution-recorder-mode"]).is_some();
    args.records_expert_distribution = recorder || flags.on("--enable-eplb");
    args.disable_overlap_schedule = flags.on("--disable-overlap-schedule");
    args.enable_two_batch_overlap = flags.on("--enable-two-batch-overlap");
    args.enable_hierarchical_cache = flags.on("--enable-hierarchical-cache");
    args.hicache_ratio = flags.float("--hicache-ratio");
    args.hicache_size = flags.float("--hicache-size");
    args.swa_full_tokens_ratio = flags.float("--swa-full-tokens-ratio");
    args.disable_hybrid_swa_memory = flags.on("--disable-hybrid-swa-memory");
    args.mamba_full_memory_ratio = flags.float("--mamba-full-memory-ratio");
    args.max_mamba_cache_size = flags.count(&["--max-mamba-cache-size"]);
    args.mamba_scheduler_strategy =
        flags.text(&["--mamba-scheduler-strategy", "--mamba-radix-cache-strategy"]);
    args.mamba_ssm_dtype = flags.text(&["--mamba-ssm-dtype"]);
}

fn backends(args: &mut ServerArgs, flags: &Flags<'_>) {
    args.disaggregation_mode = match flags.text(&["--disaggregation-mode"]).as_deref() {
        Some("prefill") => DisaggregationMode::Prefill,
        Some("decode") => DisaggregationMode::Decode,
        _ => DisaggregationMode::Null,
    };
    let deepep = flags.on("--enable-deepep-moe").then(|| "deepep".to_owned());
    args.moe_runner_backend = flags.text(&["--moe-runner-backend"]);
    args.disable_flashinfer_autotune = flags.on("--disable-flashinfer-autotune");
    args.moe_a2a_backend = flags.text(&["--moe-a2a-backend"]).or(deepep);
    args.deepep_mode = flags.text(&["--deepep-mode"]);
    args.attention_backend = flags.text(&["--attention-backend"]);
    args.prefill_attention_backend = flags.text(&["--prefill-attention-backend"]);
    args.decode_attention_backend = flags.text(&["--decode-attention-backend"]);
}

/// `--device`, else what the image or a variable gives away.
fn platform(args: &mut ServerArgs, flags: &mut Flags<'_>, launch: &mut Launch) {
    let image = launch.image.as_deref().unwrap_or_default();
    let rocm = ["rocm", "mi30", "mi35"].iter().any(|mark| image.contains(mark))
        || launch
            .env
            .iter()
            .any(|v| matches!(&*v.name, "HIP_VISIBLE_DEVICES" | "ROCR_VISIBLE_DEVICES"));
    let device = flags.text(&["--device"]);
    args.platform = match device.as_deref() {
        None | Some("cuda") if rocm => Platform::Rocm,
        None | Some("cuda") => Platform::Cuda,
        Some("npu") => Platform::Npu,
        Some("hpu") => Platform::Hpu,
        Some("xpu") => Platform::Xpu,
        Some("musa") => Platform::Musa,
        Some("cpu") => Platform::Cpu,
        Some("mps") => Platform::Mps,
        Some(other) => {
            if let Some(given) = flags.get("--device") {
                let message = format!("--device {other} is not known here; sized as cuda");
                launch.warnings.push(Warning::new(message, given.place.clone()));
            }
            Platform::Cuda
        }
    };
    if switch(launch, "SGLANG_USE_MLX", flags) == Some(true) {
        args.platform = Platform::Mlx;
    }
    args.post_capture_kv_sizing =
        switch(launch, "SGLANG_ENABLE_POST_CAPTURE_KV_SIZING", flags) == Some(true);
    args.aiter_honors_explicit_fraction =
        switch(launch, "SGLANG_AITER_HONOR_EXPLICIT_MEM_FRACTION", flags) == Some(true);
    // To 0.5.6 a switch turns the check of unequal ranks off; from 0.5.7 another one keeps it on.
    let older =
        ["SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK", "SGLANG_DISABLE_TP_MEMORY_INBALANCE_CHECK"];
    let off = older.iter().any(|name| switch(launch, name, flags) == Some(true));
    let on = switch(launch, "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK", flags);
    args.unbalanced_ranks_allowed = if args.version.since(5, 7) { on == Some(false) } else { off };
}

/// A variable that must be a switch.
pub(crate) fn switch(launch: &Launch, name: &str, flags: &mut Flags<'_>) -> Option<bool> {
    let var = launch.env.iter().find(|v| v.name == name)?;
    let on = var.switch();
    if on.is_none() {
        let error = LaunchError::new(
            ErrorCode::BadVariable,
            "must be 0 or 1, true or false",
            var.place.clone(),
        );
        flags.errors.push(error.flag(name).value(var.value.clone()));
    }
    on
}

/// Checks across flags that SGLang makes while it starts.
fn check(args: &ServerArgs, flags: &mut Flags<'_>, launch: &Launch) {
    let place = |flags: &Flags<'_>, name| flags.get(name).map_or(Place::Whole, |g| g.place.clone());
    let inconsistent =
        |allowed: String, place| LaunchError::new(ErrorCode::Inconsistent, allowed, place);
    if args.model_path.is_empty() {
        let what = "--model-path is missing: which model does the server load?";
        flags.errors.push(LaunchError::new(ErrorCode::MissingValue, what, Place::Whole));
    }
    if args.enable_dp_attention && !args.tp_size.is_multiple_of(args.dp_size) {
        let (tp, dp) = (args.tp_size, args.dp_size);
        let what = format!(
            "with attention data parallelism tp_size ({tp}) must be a multiple of dp_size ({dp})"
        );
        flags.errors.push(inconsistent(what, place(flags, "--data-parallel-size")));
    }
    let dp = if args.enable_dp_attention { u64::from(args.dp_size) } else { 1 };
    let cp = u64::from(args.attention_cp_size);
    if cp > 1 && !u64::from(args.tp_size).is_multiple_of(dp * cp) {
        let what = format!(
            "tp_size ({}) must be a multiple of attention dp ({dp}) x attn_cp_size ({cp})",
            args.tp_size
        );
        flags.errors.push(inconsistent(what, place(flags, "--attn-cp-size")));
    }
    let world = u64::from(args.tp_size) * u64::from(args.pp_size);
    if !world.is_multiple_of(u64::from(args.nnodes)) {
        let nodes = args.nnodes;
        let what = format!("tp_size · pp_size ({world}) must be a multiple of nnodes ({nodes})");
        flags.errors.push(inconsistent(what, place(flags, "--nnodes")));
    }
    if let (Some(chunk), Some(page)) = (args.chunked_prefill_size, args.page_size)
        && let Ok(chunk) = u64::try_from(chunk)
        && chunk > 0
        && !chunk.is_multiple_of(page)
    {
        let what =
            format!("chunked_prefill_size ({chunk}) must be a multiple of page_size ({page})");
        flags.errors.push(inconsistent(what, place(flags, "--chunked-prefill-size")));
    }
    let replicas = if args.enable_dp_attention { 1 } else { u64::from(args.dp_size) };
    let how = format!("tp {} × pp {} × {replicas} replicas", args.tp_size, args.pp_size);
    let how =
        if replicas == 1 { format!("tp {} × pp {}", args.tp_size, args.pp_size) } else { how };
    let missing =
        super::fill::check_devices(launch, world * replicas, u64::from(args.nnodes), &how);
    flags.errors.extend(missing);
    utilisation_style(flags);
}

/// `--mem-fraction-static 90` is a percentage by mistake: the range error gets a near value.
fn utilisation_style(flags: &mut Flags<'_>) {
    for error in &mut flags.errors {
        near_fraction(error);
    }
}

/// Names `0.9` for a fraction written as `90`.
pub(crate) fn near_fraction(error: &mut LaunchError) {
    let percent = error.value.as_deref().and_then(python_float);
    if error.code == ErrorCode::OutOfRange
        && error.allowed.ends_with("above 0 and at most 1")
        && let Some(percent) = percent.filter(|p| (2.0..=100.0).contains(p))
    {
        error.near = Some(format!("{}", percent / 100.0));
    }
}
