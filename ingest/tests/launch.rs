//! Launch commands as people type them, through the public interface.
#![expect(clippy::panic, clippy::expect_used, reason = "helpers of tests fail by panicking")]

use plimsoll_core::policy::sglang::args::{DisaggregationMode, GraphRequest, Platform, ServerArgs};
use plimsoll_core::policy::vllm::args::{EngineArgs, Generation};
use plimsoll_ingest::launch::{
    Context, Effect, Engine, EngineLaunch, ErrorCode, Launch, LaunchErrors, LaunchInput, Place,
    VersionSource, from_flags, parse_command, render, with_flag,
};
use serde_json::json;

fn text(command: &str) -> Result<Launch, LaunchErrors> {
    parse_command(LaunchInput::Text(command), &Context::default())
}

fn sglang(command: &str) -> ServerArgs {
    match text(command).unwrap_or_else(|e| panic!("{command}\n{e}")).engine {
        EngineLaunch::Sglang(args) => *args,
        EngineLaunch::Vllm(_) => panic!("{command}: read as vLLM"),
    }
}

fn vllm(command: &str) -> EngineArgs {
    match text(command).unwrap_or_else(|e| panic!("{command}\n{e}")).engine {
        EngineLaunch::Vllm(args) => *args,
        EngineLaunch::Sglang(_) => panic!("{command}: read as SGLang"),
    }
}

fn errors(command: &str) -> Vec<(ErrorCode, String)> {
    let errors = text(command).expect_err(command).errors;
    errors.into_iter().map(|e| (e.code, e.to_string())).collect()
}

/// Everything of a launch that differs from a launch without flags.
fn summary(result: &Result<Launch, LaunchErrors>) -> String {
    let launch = match result {
        Ok(launch) => launch,
        Err(errors) => return format!("errors\n{errors}\n"),
    };
    let (now, plain) = match &launch.engine {
        EngineLaunch::Sglang(a) => {
            (format!("{a:#?}"), format!("{:#?}", ServerArgs::new(a.version, "")))
        }
        EngineLaunch::Vllm(a) => {
            (format!("{a:#?}"), format!("{:#?}", EngineArgs::new(a.version, "")))
        }
    };
    let plain: Vec<&str> = plain.lines().collect();
    let mut out = format!("{} {}\n", launch.engine.engine(), launch.engine.version());
    out += &format!("version: {:?}\nprogram: {}\n", launch.version, launch.program);
    out += &format!("devices: {:?}\n", launch.devices);
    for line in now.lines().filter(|line| !plain.contains(line)) {
        out += &format!("{}\n", line.trim_end());
    }
    for var in &launch.env {
        out += &format!("env {}={} {:?} at {}\n", var.name, var.value, var.effect, var.place);
    }
    for flag in &launch.not_modelled {
        let (name, values) = (&flag.name, flag.values.join(" "));
        out += &format!("not modelled {name} {values} {:?} at {}\n", flag.effect, flag.place);
    }
    for flag in &launch.unknown {
        let (name, values) = (&flag.name, flag.values.join(" "));
        out += &format!("unknown {name} {values} near {:?} at {}\n", flag.near, flag.place);
    }
    for warning in &launch.warnings {
        out += &format!("warning {warning}\n");
    }
    out
}

#[test]
fn typical_commands() {
    let commands = [
        (
            "sglang_kimi",
            "python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static 0.93 \
             --enable-hierarchical-cache --hicache-size 48 --trust-remote-code --tool-call-parser kimi_k2",
        ),
        (
            "sglang_docker",
            "docker run --gpus all --shm-size 32g -p 30000:30000 -v ~/.cache:/root/.cache \\\n  \
             --env \"HF_TOKEN=secret\" -e SGLANG_ENABLE_SPEC_V2=1 --ipc=host lmsysorg/sglang:v0.5.8-cu126 \\\n  \
             python3 -m sglang.launch_server --model-path Qwen/Qwen3-32B --tp-size 4 \\\n  \
             --speculative-algo eagle3 --speculative-num-steps 3 --speculative-eagle-topk 1 \\\n  \
             --speculative-num-draft-tokens 4 --cuda-graph-bs 1 2 4 8 --host 0.0.0.0\n",
        ),
        (
            "sglang_rocm",
            "sudo podman run -it --device=/dev/kfd -e SGLANG_USE_AITER=1 lmsysorg/sglang:v0.4.9.post3-rocm630-mi30x \
             bash -lc \"cd /sgl-workspace && HIP_VISIBLE_DEVICES=0,1 python3 -m sglang.launch_server --model model --tp 2 2>&1 | tee log\"",
        ),
        (
            "sglang_two_nodes",
            "srun --nodes=2 --gres=gpu:8 --export=ALL,NCCL_IB_DISABLE=1 python3 -m sglang.launch_server --model-path m --tp 16 \
             --dp 16 --enable-dp-attention --nnodes 2 --node-rank 0 --dist-init-addr a:5000 --moe-a2a-backend deepep \
             --deepep-mode low_latency --disaggregation-mode decode --page-size 64 --chunked-prefill-size 131072",
        ),
        (
            "sglang_late",
            "pip install \"sglang[all]==0.5.23\" && sglang serve Qwen/Qwen3-8B --attn-dp-size 4 --tp 4 \
             --cuda-graph-config '{\"decode\": {\"backend\": \"full\", \"max_bs\": 64}, \"prefill\": {\"backend\": \"disabled\", \"max_seq_len\": 8192}}' \
             --context-length 32Ki --cuda-graph-max-bs 16",
        ),
        (
            "sglang_script",
            "#!/bin/bash\nset -euo pipefail\nexport CUDA_VISIBLE_DEVICES=0,1,2,3\nexport PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n\
             MODEL=${MODEL:-org/model}\nARGS=(\n  --tp 4   # four cards\n  --mem-fraction-static \"0.85\"\n)\nARGS+=(--disable-radix-cache)\n\
             nohup python -m sglang.launch_server --model-path \"$MODEL\" \"${ARGS[@]}\" --port $PORT > server.log 2>&1 &\n",
        ),
        (
            "sglang_typos",
            "python -m sglang.launch_server --model-path m --mem_fraction_static 0.8 --max-running-request 4 --chunk-prefill-size 2048 \
             --kv-cache-dtype fp8_e4m3 --enable-torch-compile stray",
        ),
        (
            "vllm_serve",
            "CUDA_VISIBLE_DEVICES=0,1 VLLM_USE_V1=0 uvx --with vllm==0.8.5 vllm serve org/model -tp 2 --max_model_len 32k \
             --gpu-memory-utilization=0.95 --no-enable-prefix-caching --enable-chunked-prefill --swap-space 4 --quantization awq",
        ),
        (
            "vllm_image",
            "docker run --gpus '\"device=0,1\"' vllm/vllm-openai:v0.11.0 --model org/model --tensor-parallel-size 2 \
             --speculative-config '{\"method\": \"eagle3\", \"model\": \"org/draft\", \"num_speculative_tokens\": 3}' \
             --cuda-graph-sizes 32 --limit-mm-per-prompt '{\"image\": 0, \"video\": 0}' -O3",
        ),
        (
            "vllm_dotted",
            "vllm serve org/model --compilation-config.cudagraph_capture_sizes+ 1,2,4 --compilation-config.cudagraph_mode=FULL \
             --kv-cache-memory-bytes 25.6G --max-model-len auto --async-scheduling --max-num-seqs 64 -dcp 2 -tp 4 --block-size 64 \
             --kv-offloading-size 10",
        ),
        (
            "vllm_kubectl",
            "kubectl run v --image=vllm/vllm-openai:v0.19.0 --env=VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=1 -- \
             --model org/model --enforce-eager --cpu-offload-gb 8",
        ),
        (
            "mistakes",
            "vllm serve org/model \\\n  --gpu-memory-utilization 95 \\\n  -tp 0 --max-model-len 8k5 \\\n  --kv-cache-dtype=fp8e4m3 \
             --enforce-eager=true --max-num-seqs",
        ),
        (
            "pasted",
            "$ python -m sglang.launch_server \u{2014}model-path \u{201c}org/model\u{201d} \\ \n  --tp 2\n  --dtype bfloat16\n\
             --quantization <method>\n",
        ),
    ];
    let mut all = String::new();
    for (name, command) in commands {
        all += &format!("## {name}\n{command}\n\n{}\n", summary(&text(command)));
    }
    insta::assert_snapshot!("typical_commands", all);
}

#[test]
fn sglang_fields_take_their_flags() {
    let args = sglang(
        "python -m sglang.launch_server --model m --pp-size 2 --ep 4 --tensor-parallel-size 8 --context-length 4096 \
         --max-total-tokens 5 --max-prefill-tokens 6 --max-running-requests 7 --page-size 8 --cuda-graph-max-bs-decode 9 \
         --torch-compile-max-bs 10 --hicache-ratio 1.5 --swa-full-tokens-ratio 0.5 --mamba-full-memory-ratio 0.9 \
         --max-mamba-cache-size 11 --mamba-radix-cache-strategy extra_buffer --mamba-ssm-dtype bfloat16 --disaggregation-mode prefill \
         --attention-backend fa3 --lora-paths a=b --language-model-only --cpu-offload-gb 3 --chunked-prefill-size -1 \
         --disable-overlap-schedule --enable-two-batch-overlap --disable-hybrid-swa-memory --enable-memory-saver",
    );
    assert_eq!((args.tp_size, args.pp_size, args.ep_size), (8, 2, 4));
    assert_eq!(args.chunked_prefill_size, Some(-1));
    assert_eq!((args.context_length, args.max_total_tokens), (Some(4096), Some(5)));
    assert_eq!((args.max_prefill_tokens, args.max_running_requests), (Some(6), Some(7)));
    assert_eq!((args.page_size, args.cuda_graph_max_bs), (Some(8), Some(9)));
    assert_eq!((args.torch_compile_max_bs, args.max_mamba_cache_size), (Some(10), Some(11)));
    assert_eq!((args.hicache_ratio, args.swa_full_tokens_ratio), (Some(1.5), Some(0.5)));
    assert_eq!(args.mamba_full_memory_ratio, Some(0.9));
    assert_eq!(args.mamba_scheduler_strategy.as_deref(), Some("extra_buffer"));
    assert_eq!(args.mamba_ssm_dtype.as_deref(), Some("bfloat16"));
    assert_eq!(args.disaggregation_mode, DisaggregationMode::Prefill);
    assert_eq!(args.attention_backend.as_deref(), Some("fa3"));
    assert!(args.enable_lora && args.language_only && args.disable_overlap_schedule);
    assert!(args.enable_two_batch_overlap && args.disable_hybrid_swa_memory);
    assert!(args.enable_memory_saver);
    assert_eq!(args.cpu_offload_gb, Some(3.0));
}

#[test]
fn graph_flags_follow_their_order_of_strength() {
    let base = "python -m sglang.launch_server --model-path m ";
    let graphs = |flags: &str| {
        let args = sglang(&format!("{base}{flags}"));
        (args.decode_graph, args.prefill_graph)
    };
    use GraphRequest::{Breakable, Default, Full, Off, On, TcPiecewise};
    assert_eq!(graphs(""), (Default, Default));
    assert_eq!(graphs("--disable-cuda-graph"), (Off, Off));
    assert_eq!(graphs("--disable-cuda-graph --cuda-graph-backend-decode full"), (Full, Off));
    assert_eq!(graphs("--disable-prefill-cuda-graph"), (Default, Off));
    assert_eq!(graphs("--enable-piecewise-cuda-graph"), (Default, On));
    assert_eq!(graphs("--enforce-piecewise-cuda-graph"), (Default, TcPiecewise));
    let json = "--cuda-graph-backend-prefill disabled --cuda-graph-config '{\"prefill\":{\"backend\":\"breakable\"}}'";
    assert_eq!(graphs(json), (Default, Breakable));
    let bad = errors(&format!(
        "{base}--cuda-graph-config '{{\"decode\":{{\"backend\":\"fast\",\"bs\":[0]}},\"x\":1}}'"
    ));
    let codes: Vec<_> = bad.iter().map(|(code, _)| *code).collect();
    assert_eq!(codes, [ErrorCode::NotAChoice, ErrorCode::WrongType, ErrorCode::NotAChoice]);
}

#[test]
fn platforms_come_from_device_image_and_variables() {
    let base = "python -m sglang.launch_server --model-path m";
    assert_eq!(sglang(base).platform, Platform::Cuda);
    assert_eq!(sglang(&format!("{base} --device npu")).platform, Platform::Npu);
    assert_eq!(sglang(&format!("SGLANG_USE_MLX=1 {base}")).platform, Platform::Mlx);
    assert_eq!(sglang(&format!("HIP_VISIBLE_DEVICES=0 {base}")).platform, Platform::Rocm);
    assert!(
        sglang(&format!("SGLANG_ENABLE_POST_CAPTURE_KV_SIZING=true {base}")).post_capture_kv_sizing
    );
    let bad = errors(&format!("SGLANG_USE_MLX=maybe {base}"));
    assert_eq!(bad[0].0, ErrorCode::BadVariable);
}

#[test]
fn switches_that_reach_graphs_heads_and_checks_are_read() {
    let base = "python -m sglang.launch_server --model-path m --tp 8";
    let args = sglang(&format!(
        "{base} --enable-torch-compile --enable-deterministic-inference --enable-symm-mem --enable-eplb \
         --attention-context-parallel-size 4 --dcp-size 2"
    ));
    assert!(args.enable_torch_compile && args.enable_deterministic_inference);
    assert!(args.enable_symm_mem && args.records_expert_distribution);
    assert_eq!((args.attention_cp_size, args.dcp_size), (4, 2));
    let recorder = sglang(&format!("{base} --expert-distribution-recorder-mode stat"));
    assert!(recorder.records_expert_distribution);
    let plain = sglang(base);
    assert!(!plain.records_expert_distribution && !plain.unbalanced_ranks_allowed);
    let bad = errors(&format!("{base} --attn-cp-size 3"));
    assert_eq!((bad.len(), bad[0].0), (1, ErrorCode::Inconsistent));
    let aiter = format!("SGLANG_AITER_HONOR_EXPLICIT_MEM_FRACTION=1 {base}");
    assert!(sglang(&aiter).aiter_honors_explicit_fraction);
    // The release decides which switch is asked.
    let unbalanced = |version: &str, variable: &str| {
        sglang(&format!("pip install sglang=={version}\n{variable} {base}"))
            .unbalanced_ranks_allowed
    };
    assert!(unbalanced("0.5.8", "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0"));
    assert!(!unbalanced("0.5.8", "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=1"));
    assert!(!unbalanced("0.5.8", "SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK=1"));
    assert!(unbalanced("0.5.2", "SGL_DISABLE_TP_MEMORY_INBALANCE_CHECK=1"));
    assert!(!unbalanced("0.5.2", "SGLANG_ENABLE_TP_MEMORY_INBALANCE_CHECK=0"));
}

#[test]
fn vllm_graphs_backends_and_methods_are_read() {
    let graphs = |flags: &str| {
        let args = vllm(&format!("vllm serve m {flags}"));
        (args.disable_cudagraphs, args.disable_compilation, args.max_cudagraph_capture_size)
    };
    let old = |flags: &str| {
        let args = vllm(&format!("pip install vllm==0.11.0\nvllm serve m {flags}"));
        (args.disable_cudagraphs, args.disable_compilation)
    };
    assert_eq!(graphs(""), (false, false, None));
    assert_eq!(graphs("-O0"), (true, true, None));
    assert_eq!(graphs("-O3 --max-cudagraph-capture-size 64"), (false, false, Some(64)));
    assert_eq!(graphs("-cc '{\"cudagraph_mode\": \"NONE\"}'"), (true, false, None));
    assert_eq!(graphs("-cc '{\"max_cudagraph_capture_size\": 0}'"), (false, false, Some(0)));
    assert_eq!((old("-O0"), old("-O1"), old("-O3")), ((true, true), (true, false), (false, false)));
    assert_eq!(old("-O '{\"use_cudagraph\": false}'"), (true, false));
    let backend = |line: &str| vllm(line).attention_backend;
    assert_eq!(
        backend("vllm serve m --attention-backend flashinfer").as_deref(),
        Some("FLASHINFER")
    );
    let variable = "VLLM_ATTENTION_BACKEND=CUTLASS_MLA vllm serve m";
    assert_eq!(backend(variable).as_deref(), Some("CUTLASS_MLA"));
    let both = format!("{variable} --attention-backend FLASHMLA");
    assert_eq!(backend(&both).as_deref(), Some("FLASHMLA"));
    let args = vllm("vllm serve m --mamba-ssm-cache-dtype float16");
    assert_eq!(args.mamba_ssm_cache_dtype.as_deref(), Some("float16"));
    let own = |flags: &str| vllm(&format!("vllm serve m {flags}")).drafts_with_own_layers();
    assert!(own("--spec-method mtp --spec-tokens 2"));
    assert!(!own("--spec-method ngram --spec-tokens 2"));
    assert!(!own("-sc '{\"method\": \"suffix\", \"num_speculative_tokens\": 4}'"));
    let ngram = vllm(
        "pip install vllm==0.6.6\nvllm serve m --speculative-model '[ngram]' --num-speculative-tokens 3",
    );
    assert_eq!((ngram.speculative_model.clone(), ngram.drafts_with_own_layers()), (None, false));
}

#[test]
fn vllm_fields_take_their_flags() {
    let args = vllm(
        "vllm serve --model org/m -pp 2 -dp 3 --enable-expert-parallel -q fp8 --num-gpu-blocks-override 100 \
         --max-num-batched-tokens 8K --disable-hybrid-kv-cache-manager --no-async-scheduling --spec-tokens 2 --spec-model d \
         --language-model-only --enable-lora --disable-chunked-prefill",
    );
    assert_eq!(args.model, "org/m");
    assert_eq!((args.pipeline_parallel_size, args.data_parallel_size), (2, 3));
    assert!(args.enable_expert_parallel && args.disable_hybrid_kv_cache_manager);
    assert_eq!(args.quantization.as_deref(), Some("fp8"));
    assert_eq!(args.num_gpu_blocks_override, Some(100));
    assert_eq!(args.max_num_batched_tokens, Some(8192));
    assert_eq!(args.async_scheduling, Some(false));
    assert_eq!(
        (args.num_speculative_tokens, args.speculative_model.as_deref()),
        (Some(2), Some("d"))
    );
    assert!(args.language_model_only && args.enable_lora);
    assert_eq!(args.enable_chunked_prefill, Some(false));
    let old = vllm(
        "VLLM_USE_V1=0 python3 -m vllm.entrypoints.openai.api_server --model m --enable-chunked-prefill false",
    );
    assert_eq!((old.generation, old.enable_chunked_prefill), (Some(Generation::V0), Some(false)));
    assert_eq!(vllm("vllm serve m --quantization None").quantization, None);
}

#[test]
fn cuda_graph_sizes_of_one_number_are_a_ladder() {
    let sizes = |flags: &str| vllm(&format!("vllm serve m {flags}")).cudagraph_capture_sizes;
    assert_eq!(sizes("--cuda-graph-sizes 24"), Some(vec![1, 2, 4, 8, 16, 24]));
    assert_eq!(sizes("--cuda-graph-sizes 1 2 128"), Some(vec![1, 2, 128]));
    assert_eq!(sizes("-cc '{\"cudagraph_capture_sizes\": [1, 8]}'"), Some(vec![1, 8]));
    assert_eq!(sizes(""), None);
}

#[test]
fn versions_come_from_where_the_command_says_them() {
    let version = |command: &str| {
        let launch = text(command).unwrap();
        (launch.engine.version().to_string(), launch.version)
    };
    let docker = |image: &str| version(&format!("docker run {image} vllm serve m")).0;
    assert_eq!(docker("vllm/vllm-openai:v0.11.0"), "0.11.0");
    assert_eq!(docker("rocm/vllm:rocm6.4.1_vllm_0.10.1_20250909"), "0.10.1");
    assert_eq!(docker("vllm/vllm-openai:latest"), "0.33.0");
    assert!(matches!(version("vllm serve m").1, VersionSource::Default { .. }));
    assert_eq!(version("pip install 'vllm>=0.11' ; vllm serve m").0, "0.11.0");
    assert_eq!(version("uvx vllm@0.19.0 serve m").0, "0.19.0");
    // A requirement of the other engine says nothing.
    assert_eq!(version("pip install sglang==0.5.2 && vllm serve m").0, "0.33.0");
    let ctx = Context { version: Some("0.8.5".parse().unwrap()), ..Context::default() };
    let given =
        parse_command(LaunchInput::Text("docker run vllm/vllm-openai:v0.11.0 --model m"), &ctx);
    let given = given.unwrap();
    assert_eq!(
        (given.engine.version().to_string(), given.version),
        ("0.8.5".to_owned(), VersionSource::Given)
    );
    let bad = errors("pip install sglang==0.x && sglang serve m");
    assert_eq!(bad[0].0, ErrorCode::BadVersion);
}

#[test]
fn every_mistake_is_reported_with_its_place() {
    let bad = errors(
        "python -m sglang.launch_server --tp -2 \\\n --mem-fraction-static 1.2 --page-size x",
    );
    let shown: Vec<&str> = bad.iter().map(|(_, s)| s.as_str()).collect();
    assert_eq!(
        shown,
        [
            "1:37: --tp -2: must be at least 1 and at most 65536",
            "2:24: --mem-fraction-static 1.2: must be above 0 and at most 1",
            "2:40: --page-size x: must be a whole number at least 1",
            "the command: --model-path is missing: which model does the server load?",
        ]
    );
    let percent = errors("vllm serve m --gpu-memory-utilization 95");
    assert!(percent[0].1.ends_with("did you mean `0.95`?"), "{}", percent[0].1);
    let choice = errors("sglang serve m --kv-cache-dtype fp8_e4m4");
    assert!(choice[0].1.ends_with("did you mean `fp8_e4m3`?"), "{}", choice[0].1);
    let early = errors("pip install sglang==0.5.2; sglang serve m --context-length 32k");
    assert!(early[0].1.contains("suffixes are read from 0.5.11"), "{}", early[0].1);
    let suffix = errors("vllm serve m --kv-cache-memory-bytes 3.1G");
    assert!(suffix[0].1.ends_with("did you mean `3.1g`?"), "{}", suffix[0].1);
    let suffix = errors("sglang serve m --context-length 32K");
    assert!(suffix[0].1.ends_with("did you mean `32Ki`?"), "{}", suffix[0].1);
    let unset = errors("sglang serve m --tp $N --port $P");
    assert_eq!(unset.len(), 1);
    assert!(unset[0].1.starts_with("1:21: --tp $N: must be a whole number"), "{}", unset[0].1);
    let prefix = errors("sglang serve m --enable-d 4");
    assert_eq!(prefix[0].0, ErrorCode::Ambiguous);
    assert_eq!(errors("echo hi")[0].0, ErrorCode::NoServer);
    assert_eq!(errors("vllm serve 'm")[0].0, ErrorCode::OpenQuote);
}

#[test]
fn places_inside_a_quoted_command_are_those_of_the_text() {
    let bad = text("bash -c \"vllm serve m \\\n  -tp 0\"").unwrap_err();
    assert_eq!(bad.errors[0].place, Place::Text { line: 2, column: 7 });
    let words: Vec<String> = ["bash", "-c", "vllm serve m -tp 0"].map(str::to_owned).to_vec();
    let bad = parse_command(LaunchInput::Argv(&words), &Context::default()).unwrap_err();
    assert_eq!(bad.errors[0].place, Place::Token { index: 2 });
    let words: Vec<String> = ["vllm", "serve", "m", "-tp", "0"].map(str::to_owned).to_vec();
    let bad = parse_command(LaunchInput::Argv(&words), &Context::default()).unwrap_err();
    assert_eq!(bad.errors[0].place, Place::Token { index: 4 });
}

#[test]
fn values_that_the_engine_refuses_together() {
    let codes = |command: &str| errors(command).into_iter().map(|(c, _)| c).collect::<Vec<_>>();
    let base = "python -m sglang.launch_server --model-path m";
    assert_eq!(
        codes(&format!("{base} --tp 8 --dp 3 --enable-dp-attention")),
        [ErrorCode::Inconsistent]
    );
    assert_eq!(codes(&format!("{base} --tp 3 --nnodes 2")), [ErrorCode::Inconsistent]);
    assert_eq!(
        codes(&format!("{base} --chunked-prefill-size 100 --page-size 64")),
        [ErrorCode::Inconsistent]
    );
    assert_eq!(
        codes(&format!("CUDA_VISIBLE_DEVICES=0,1 {base} --tp 4")),
        [ErrorCode::Inconsistent]
    );
    assert_eq!(
        codes(&format!("{base} --tp 4 --attn-dp-size 2 --dp-size 2")),
        [ErrorCode::Inconsistent]
    );
    assert!(text(&format!("CUDA_VISIBLE_DEVICES=0,1,2,3 {base} --tp 8 --nnodes 2")).is_ok());
    assert_eq!(
        codes("docker run --gpus 2 vllm/vllm-openai:v0.11.0 --model m -tp 4"),
        [ErrorCode::Inconsistent]
    );
    assert!(
        text("CUDA_VISIBLE_DEVICES=0 vllm serve m -tp 4 --distributed-executor-backend ray")
            .is_ok()
    );
}

#[test]
fn a_config_file_goes_before_the_command_line() {
    let file = |path: &str| {
        match path {
        "c.yaml" => Ok("# note\nmodel: org/m\ntensor-parallel-size: 4\nmax_num_seqs: 8\nenforce-eager: true\n\
                        enable-prefix-caching: false\ncompilation-config:\n  cudagraph_capture_sizes: [1, 2]\n\
                        cudagraph-capture-sizes: [4]\n"
            .to_owned()),
        "bad.yaml" => Ok("model-path: m\nmem-fraction-static: 2\n".to_owned()),
        "list.yaml" => Ok("- a\n".to_owned()),
        "broken.yaml" => Ok("a: [1\nb: 2\n".to_owned()),
        _ => Err(std::io::Error::from(std::io::ErrorKind::NotFound)),
    }
    };
    let ctx = Context { read_file: Some(&file), ..Context::default() };
    let read = |command: &str| parse_command(LaunchInput::Text(command), &ctx);
    let launch = read("vllm serve --config c.yaml -tp 2").unwrap();
    let EngineLaunch::Vllm(args) = &launch.engine else { panic!() };
    assert_eq!((args.model.as_str(), args.tensor_parallel_size), ("org/m", 2));
    assert_eq!((args.max_num_seqs, args.enforce_eager), (Some(8), true));
    assert_eq!(args.enable_prefix_caching, Some(false));
    assert_eq!(args.cudagraph_capture_sizes, Some(vec![1, 2]));
    assert!(launch.warnings.is_empty(), "{:?}", launch.warnings);
    let launch = read("vllm serve other --config=c.yaml").unwrap();
    let EngineLaunch::Vllm(args) = &launch.engine else { panic!() };
    assert_eq!(args.model, "other");

    let fail = |file: &str| {
        let command = format!("python -m sglang.launch_server --config {file} --model-path m");
        let error = read(&command).unwrap_err().errors.remove(0);
        (error.code, error.to_string())
    };
    let (code, shown) = fail("bad.yaml");
    assert_eq!(code, ErrorCode::OutOfRange);
    assert!(shown.starts_with("bad.yaml:2 (`mem-fraction-static`): "), "{shown}");
    assert_eq!(fail("none.yaml").0, ErrorCode::ConfigFile);
    assert_eq!(fail("list.yaml").0, ErrorCode::ConfigFile);
    let (code, shown) = fail("broken.yaml");
    assert_eq!(code, ErrorCode::ConfigFile);
    assert!(shown.starts_with("broken.yaml:2: "), "{shown}");
    let without = text("vllm serve m --config c.yaml").unwrap_err();
    assert_eq!(without.errors[0].code, ErrorCode::ConfigFile);
}

#[test]
fn a_mapping_goes_through_the_same_checks() {
    let flags = vec![
        ("model_path".to_owned(), json!("org/m")),
        ("tp".to_owned(), json!(8)),
        ("mem-fraction-static".to_owned(), json!(0.93)),
        ("cuda_graph_bs".to_owned(), json!([1, 2, 4])),
        ("enable_hierarchical_cache".to_owned(), json!(true)),
        ("disable_radix_cache".to_owned(), json!(false)),
        ("chunked_prefill_size".to_owned(), json!(-1)),
        ("page_size".to_owned(), json!(null)),
        ("cuda_graph_config".to_owned(), json!({"decode": {"max_bs": 8}})),
        ("lora_paths".to_owned(), json!([])),
        ("nope".to_owned(), json!("x")),
    ];
    let env = [("SGLANG_USE_MLX".to_owned(), "0".to_owned())];
    let ctx = Context { env: &env, ..Context::default() };
    let launch = from_flags(Engine::Sglang, None, &flags, &ctx).unwrap();
    let EngineLaunch::Sglang(args) = &launch.engine else { panic!() };
    assert_eq!((args.tp_size, args.mem_fraction_static), (8, Some(0.93)));
    assert_eq!(args.cuda_graph_bs, Some(vec![1, 2, 4]));
    assert!(args.enable_hierarchical_cache && !args.disable_radix_cache && !args.enable_lora);
    assert_eq!((args.chunked_prefill_size, args.page_size), (Some(-1), None));
    assert_eq!(args.cuda_graph_max_bs, Some(8));
    assert_eq!(launch.unknown[0].name, "--nope");
    assert_eq!(launch.env[0].name, "SGLANG_USE_MLX");

    let flags = vec![("model".to_owned(), json!("m")), ("max_num_seqs".to_owned(), json!(0.5))];
    let bad = from_flags(Engine::Vllm, None, &flags, &Context::default()).unwrap_err();
    assert_eq!(bad.errors[0].code, ErrorCode::WrongType);
    assert_eq!(bad.errors[0].place, Place::Key { key: "max_num_seqs".to_owned() });
}

#[test]
fn a_flag_of_another_release_is_warned_about() {
    let warnings = |command: &str| {
        text(command).unwrap().warnings.into_iter().map(|w| w.message).collect::<Vec<_>>()
    };
    let early = warnings(
        "docker run lmsysorg/sglang:v0.4.6-cu124 python -m sglang.launch_server --model-path m --mamba-ssm-dtype bfloat16",
    );
    assert_eq!(early, ["SGLang 0.4.6 does not know --mamba-ssm-dtype (first seen in 0.5.2)"]);
    let late = warnings("sglang serve m --enable-deepep-moe");
    assert_eq!(late.len(), 1);
    assert!(late[0].starts_with("SGLang 0.5.23 no longer knows --enable-deepep-moe"), "{late:?}");
    // Between two releases that were read nothing is claimed.
    let between = "docker run lmsysorg/sglang:v0.5.1-cu126 python -m sglang.launch_server --model-path m --mamba-ssm-dtype bfloat16";
    assert_eq!(warnings(between), [""; 0]);
    let twice = warnings("vllm serve m --max-num-seqs 4 --max-num-seqs 8");
    assert_eq!(twice, ["--max-num-seqs stands twice; this one counts, not `--max-num-seqs 4`"]);
}

#[test]
fn nothing_is_dropped() {
    let launch = text("vllm serve m --port 80 --kv-transfer-config '{\"kv_connector\": \"x\"}' --bogus 1 2 extra -tp 1 word").unwrap();
    let named: Vec<_> = launch.not_modelled.iter().map(|f| (f.name.as_str(), f.effect)).collect();
    assert_eq!(
        named,
        [("--port", Effect::NoMemoryEffect), ("--kv-transfer-config", Effect::MemoryNotModelled)]
    );
    let unknown: Vec<_> =
        launch.unknown.iter().map(|f| (f.name.as_str(), f.values.join(" "))).collect();
    assert_eq!(unknown, [("--bogus", "1 2 extra".to_owned()), ("word", String::new())]);
}

#[test]
fn secrets_are_not_repeated() {
    let launch = text("HF_TOKEN=hf_abc vllm serve m --api-key sk-abc").unwrap();
    assert!(!format!("{launch:?}").contains("abc"), "{launch:?}");
}

#[test]
fn a_changed_command_reads_back_changed() {
    let command = "python -m sglang.launch_server --model-path m --tp 8 --mem-fraction-static 0.93";
    let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
    let changed = render(&with_flag(&words, "--mem-fraction-static", Some("0.88")).unwrap());
    assert_eq!(changed, command.replace("0.93", "0.88"));
    assert_eq!(sglang(&changed).mem_fraction_static, Some(0.88));
}

/// Public reports beside the checkout, when they are there: every command that starts an engine reads.
#[test]
fn reported_commands_read() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/reports/logs");
    let folder = std::env::var_os("PLIMSOLL_REPORT_COMMANDS").map_or(folder, Into::into);
    let Ok(entries) = std::fs::read_dir(&folder) else {
        println!("skipped: no folder of reported commands beside the checkout");
        return;
    };
    let mut read = 0;
    for entry in entries {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "cmd") {
            let command = std::fs::read_to_string(&path).unwrap();
            let launch = text(&command).unwrap_or_else(|e| panic!("{command}\n{e}"));
            assert!(launch.unknown.is_empty(), "{command}\n{:?}", launch.unknown);
            read += 1;
        }
    }
    println!("{read} reported commands read");
    assert!(read > 0);
}

#[test]
fn container_descriptions_are_read() {
    let compose = "services:\n  llm:\n    image: lmsysorg/sglang:v0.5.8-cu126\n    environment:\n      SGLANG_ENABLE_SPEC_V2: 1\n    \
                   command: >\n      python3 -m sglang.launch_server --model-path m\n      --tp 2 --mem-fraction-static 0.8\n    \
                   deploy:\n      resources:\n        reservations:\n          devices:\n            - capabilities: [gpu]\n              count: 2\n";
    let launch = text(compose).unwrap();
    let EngineLaunch::Sglang(args) = &launch.engine else { panic!() };
    assert_eq!((args.tp_size, args.mem_fraction_static), (2, Some(0.8)));
    assert_eq!((args.version.to_string(), launch.devices), ("0.5.8".to_owned(), Some(2)));
    assert_eq!(launch.env[0].name, "SGLANG_ENABLE_SPEC_V2");
    let pod = "kind: Pod\nspec:\n  containers:\n  - name: v\n    image: vllm/vllm-openai:v0.11.0\n    args: [--model, m, -tp, \"3\"]\n    \
               env:\n    - {name: VLLM_USE_V1, value: \"1\"}\n    resources: {limits: {nvidia.com/gpu: 2}}\n";
    let bad = text(pod).unwrap_err();
    assert_eq!(bad.errors[0].code, ErrorCode::Inconsistent);
    let launch = text(&pod.replace("\"3\"", "\"2\"")).unwrap();
    let EngineLaunch::Vllm(args) = &launch.engine else { panic!() };
    assert_eq!((args.tensor_parallel_size, args.generation), (2, Some(Generation::V1)));
    let shell = "command: [bash, -c, \"vllm serve m -tp 0\"]\nimage: x/y:1\n";
    assert_eq!(errors(shell)[0].0, ErrorCode::OutOfRange);
    let list = errors(
        "image: vllm/vllm-openai:v0.11.0\ncommand:\n  - --model\n  - m\n  - --max-num-seqs\n  - 0\n",
    );
    assert!(list[0].1.starts_with("6:5: "), "{}", list[0].1);
}
