//! vLLM's scheduler and passes as a started case sets them.

use super::{Parts, ServeError};
use crate::start::{Case, Policy, Ran};
use plimsoll_core::{
    decision::Record,
    engine::{
        TopKTopP, VllmPassInputs, VllmPasses,
        serving::{ServerProcesses, Wording},
    },
    estimate::shape::ShapeInputs,
    memory::caching_allocator::TorchVersion,
    model::geometry::ModelGeometry,
    policy::{
        sglang::{facts::KvDtype, version::Version},
        vllm::{
            args::{EngineArgs, Generation},
            capacity::{self, Pool},
            settings::{MambaMode, Settings},
            spec::{Kind, LayerSpec},
        },
    },
    sched::vllm::{
        AdmissionGate, ChunkedPrefill, GroupKind, GroupSpec, LoopKind, PrefixCaching, QueuePolicy,
        StateMode, VllmConfig, VllmScheduler,
    },
    tape::{Code, Setup, TapeModel},
};

pub(super) fn parts(case: &Case, args: &EngineArgs, ran: &Ran) -> Result<Parts, ServeError> {
    let Policy::Vllm(start) = &ran.policy else { return Err(ServeError::Missing("vLLM's start")) };
    let settings = start.settings().ok_or(ServeError::Missing("how the settings are resolved"))?;
    if settings.rules.generation == Generation::V0 {
        let message = "this version runs the start of vLLM's V0 engine only, not its scheduler: leave \
                       `workload` out";
        return Err(ServeError::NotExecuted(message.to_owned()));
    }
    let pool = capacity::size_pool(settings, start.ranks())
        .map_err(|_| ServeError::Missing("num_gpu_blocks"))?;
    let config = config(args, settings, &pool)?;
    let started = started(&config);
    let scheduler =
        VllmScheduler::new(config).map_err(|error| ServeError::Settings(error.to_string()))?;
    let model = case.model.geometry().ok_or(ServeError::Missing("the model's layers"))?;
    let passes = VllmPasses::new(pass_inputs(args, settings, model));
    Ok(Parts {
        scheduler: Box::new(scheduler),
        tapes: Box::new(passes),
        time: super::time::basis(case, kv_dtype(args))?,
        wording: Wording::torch(torch(args.version), ServerProcesses::Vllm),
        started,
        notes: notes(args, settings),
    })
}

/// The record that opens a run under load.
fn started(config: &VllmConfig) -> Record {
    Record::new("serving_started")
        .with("pool_tokens", (config.num_gpu_blocks - 1).saturating_mul(config.block_size))
        .with("num_gpu_blocks", config.num_gpu_blocks)
        .with("block_size", config.block_size)
        .with("max_num_seqs", config.most_running())
        .with("max_num_batched_tokens", config.max_num_batched_tokens)
        .with("max_model_len", config.max_model_len)
}

fn config(args: &EngineArgs, settings: &Settings, pool: &Pool) -> Result<VllmConfig, ServeError> {
    let flags = &args.scheduling;
    let ranks = settings.decode_context_parallel_size.max(1);
    let groups = pool.grouping.groups.iter();
    let groups = groups.map(|group| group_spec(&group.spec, settings, ranks));
    let groups = groups.collect::<Result<Vec<GroupSpec>, ServeError>>()?;
    let full = groups.iter().find(|group| group.kind == GroupKind::Full);
    let smallest = groups.iter().map(|group| group.block_size).min();
    let block_size = full.map(|group| group.block_size).or(smallest).unwrap_or(1);
    let base = VllmConfig::new(args.version, pool.num_blocks, pool.max_model_len);
    Ok(VllmConfig {
        block_size,
        groups,
        max_num_batched_tokens: settings.max_num_batched_tokens,
        max_num_seqs: settings.max_num_seqs,
        prefix_caching: match settings.prefix_caching.is_on() {
            true => PrefixCaching::On,
            false => PrefixCaching::Off,
        },
        chunked_prefill: match settings.chunked_prefill.is_on() {
            true => ChunkedPrefill::On,
            false => ChunkedPrefill::Off,
        },
        long_prefill_token_threshold: flags.long_prefill_token_threshold.unwrap_or(0),
        adaptive_threshold: flags.adaptive_threshold,
        policy: match flags.policy.as_deref() {
            None | Some("fcfs") => QueuePolicy::Fcfs,
            Some("priority") => QueuePolicy::Priority,
            Some(other) => {
                let known = "fcfs and priority";
                return Err(ServeError::Settings(format!(
                    "--scheduling-policy {other}: this version runs {known}"
                )));
            }
        },
        loop_kind: match settings.async_scheduling.is_on() {
            true => LoopKind::Asynchronous,
            false => LoopKind::Synchronous,
        },
        gate: match flags.reserve_full_isl {
            Some(true) => AdmissionGate::WholeSequence,
            Some(false) => AdmissionGate::NextChunk,
            None => base.gate,
        },
        watermark: flags.watermark.unwrap_or(0.0),
        retention_interval: Some(flags.prefix_cache_retention_interval.unwrap_or(0)),
        max_num_active_seqs: flags.max_num_active_seqs,
        prefill_schedule_interval: flags.prefill_schedule_interval.unwrap_or(1),
        ..base
    })
}

/// What a group keeps, for the scheduler. Under decode context parallelism a block holds the tokens of all
/// ranks of the context.
fn group_spec(spec: &LayerSpec, settings: &Settings, ranks: u64) -> Result<GroupSpec, ServeError> {
    let kind = match spec.kind {
        Kind::Full | Kind::Latent => GroupKind::Full,
        Kind::SlidingWindow { window } => GroupKind::Window { window },
        Kind::ChunkedLocal { chunk } => GroupKind::Chunked { chunk },
        Kind::Mamba => GroupKind::Mamba(match settings.mamba_mode {
            MambaMode::None => StateMode::None,
            MambaMode::All => StateMode::All,
            MambaMode::Align => StateMode::Align { checkpoints: None },
        }),
        Kind::EncoderOnly | Kind::CrossAttention { .. } => {
            let what = format!("{} layers are sized, and this version runs none", spec.kind.name());
            return Err(ServeError::NotExecuted(what));
        }
    };
    Ok(GroupSpec { kind, block_size: spec.block_size.saturating_mul(ranks) })
}

fn pass_inputs(args: &EngineArgs, settings: &Settings, model: &ModelGeometry) -> VllmPassInputs {
    let shape = ShapeInputs::from_geometry(model);
    let tp = u64::from(args.tensor_parallel_size.max(1));
    // Experts of fewer bits than 16 run kernels that were not recorded.
    let quantised = model.quantization.is_some() || args.quantization.is_some();
    let known = shape.moe.is_none() || !quantised;
    let tape = TapeModel::from_geometry(model).ok().filter(|_| known);
    VllmPassInputs {
        shape,
        tp,
        recorded: tape.map(|tape| (tape, Setup::plain(Code::Vllm019, tp))),
        captured: settings.capture_sizes.last().copied().unwrap_or(0),
        top_k_top_p: match args.version.since(11, 1) {
            true => TopKTopP::Fused,
            false => TopKTopP::Sorted,
        },
    }
}

/// `auto` is the model's own 16 bits.
fn kv_dtype(args: &EngineArgs) -> KvDtype {
    match args.kv_cache_dtype.as_deref() {
        Some("fp8_e5m2") => KvDtype::Fp8E5m2,
        Some(name) if name.starts_with("fp8") => KvDtype::Fp8E4m3,
        _ => KvDtype::Bf16,
    }
}

/// Release of torch that a vLLM release is built on, as far as its error text differs.
///
/// Source: the packages' own requirements: 2.6 in 0.8, 2.7 in 0.9 and 0.10, 2.8 in 0.11.0, then 2.9 and later.
fn torch(version: Version) -> TorchVersion {
    match () {
        () if version.since(11, 1) => TorchVersion::new(2, 9),
        () if version.since(11, 0) => TorchVersion::new(2, 8),
        () if version.since(9, 0) => TorchVersion::new(2, 7),
        () => TorchVersion::new(2, 6),
    }
}

/// What of the launch the run does not execute.
fn notes(args: &EngineArgs, settings: &Settings) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |applies: bool, text: &str| {
        if applies {
            notes.push(text.to_owned());
        }
    };
    note(args.pipeline_parallel_size > 1, "pipeline stages are sized, and run as one stage");
    note(args.data_parallel_size > 1, "data-parallel ranks are sized, and run as one scheduler");
    note(
        args.enable_expert_parallel,
        "expert parallelism is sized; its exchange buffers are not executed",
    );
    note(settings.num_speculative_tokens > 0, "speculation is sized; steps decode one token each");
    note(
        args.cpu_offload_gb.unwrap_or(0.0) > 0.0,
        "offloaded weights are sized, and move at no cost",
    );
    notes
}
