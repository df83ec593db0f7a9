//! SGLang's scheduler and passes as a started case sets them.

use super::{Parts, ServeError};
use crate::start::{Case, Policy, Ran, pass_inputs};
use plimsoll_core::{
    decision::Record,
    engine::{
        MlxPasses, SglangPasses,
        serving::{PassTapes, ServerProcesses, Wording},
    },
    estimate::shape::ShapeInputs,
    figure::FigureValue,
    kv::{EvictionPolicy, HostTierOptions, WritePolicy},
    memory::caching_allocator::TorchVersion,
    policy::sglang::{Resolved, args::ServerArgs, from_model, version::Version},
    sched::sglang::{
        LoopKind, MixedChunk, PrefixCache, PriorityOptions, PriorityOrder, QueuePolicy,
        SglangConfig, SglangScheduler, SwaOptions, TooLong,
    },
    units::Bytes,
};

pub(super) fn parts(case: &Case, args: &ServerArgs, ran: &Ran) -> Result<Parts, ServeError> {
    let resolved = resolved(ran)?;
    let swa = swa(case, ran)?;
    let config = SglangConfig { swa, ..config(args, ran, resolved)? };
    let scheduler =
        SglangScheduler::new(config).map_err(|error| ServeError::Settings(error.to_string()))?;
    let (tapes, wording) = tapes(case, args, ran, resolved)?;
    Ok(Parts {
        scheduler: Box::new(scheduler),
        tapes,
        time: super::time::basis(case, resolved.kv_cache_dtype)?,
        wording,
        started: started(case, ran)?,
        notes: notes(args, resolved, swa.is_some()),
    })
}

fn resolved(ran: &Ran) -> Result<&Resolved, ServeError> {
    let resolved = match &ran.policy {
        Policy::Sglang(start) => start.resolved(),
        Policy::Mlx(start) => start.resolved(),
        Policy::Vllm(_) => None,
    };
    resolved.ok_or(ServeError::Missing("how the settings are resolved"))
}

fn count(ran: &Ran, name: &'static str) -> Result<u64, ServeError> {
    match ran.start.figure(name).map(|figure| &figure.value) {
        Some(FigureValue::Count(n)) => Ok(*n),
        _ => Err(ServeError::Missing(name)),
    }
}

/// The window pool that the start sized beside a full pool. A model whose layers all slide has one pool.
fn swa(case: &Case, ran: &Ran) -> Result<Option<SwaOptions>, ServeError> {
    let size = |name| count(ran, name).unwrap_or(0);
    let (full, pool_tokens) = (size("full_max_total_num_tokens"), size("swa_max_total_num_tokens"));
    if full == 0 || pool_tokens == 0 {
        return Ok(None);
    }
    let window = case.model.geometry().and_then(from_model::sliding_window_size);
    let window = window.ok_or(ServeError::Missing("the sliding window"))?;
    Ok(Some(SwaOptions { pool_tokens, window }))
}

/// The record that opens a run under load.
fn started(case: &Case, ran: &Ran) -> Result<Record, ServeError> {
    let resolved = resolved(ran)?;
    let chunk = u64::try_from(resolved.scheduler_chunk).ok().filter(|chunk| *chunk > 0);
    let record = Record::new("serving_started")
        .with("pool_tokens", count(ran, "max_total_num_tokens")?)
        .with("page_size", resolved.page_size)
        .with("max_running_requests", count(ran, "max_running_requests")?)
        .with("chunked_prefill_size", chunk);
    Ok(match swa(case, ran)? {
        Some(swa) => record
            .with("window_pool_tokens", swa.pool_tokens)
            .with("sliding_window_size", swa.window),
        None => record,
    })
}

fn config(args: &ServerArgs, ran: &Ran, resolved: &Resolved) -> Result<SglangConfig, ServeError> {
    let running = count(ran, "max_running_requests")?;
    let rows = count(ran, "req_to_token_pool_size").unwrap_or(running);
    let flags = &args.scheduling;
    let chunk = u64::try_from(resolved.scheduler_chunk).ok().filter(|chunk| *chunk > 0);
    let settings = |message: String| ServeError::Settings(message);
    Ok(SglangConfig {
        page_size: resolved.page_size,
        chunked_prefill_size: chunk,
        max_prefill_tokens: args.prefill_budget(),
        max_running_requests: running,
        request_rows: rows,
        policy: match flags.schedule_policy.as_deref() {
            None | Some("fcfs") => QueuePolicy::Fcfs,
            Some("lpm") => QueuePolicy::Lpm,
            Some("dfs-weight") => QueuePolicy::DfsWeight,
            Some("lof") => QueuePolicy::Lof,
            Some(other) => {
                let known = "fcfs, lpm, dfs-weight and lof";
                return Err(settings(format!(
                    "--schedule-policy {other}: this version runs {known}"
                )));
            }
        },
        conservativeness: flags.schedule_conservativeness.unwrap_or(1.0),
        mixed_chunk: if flags.enable_mixed_chunk { MixedChunk::On } else { MixedChunk::Off },
        loop_kind: match args.disable_overlap_schedule {
            true => LoopKind::Normal,
            false => LoopKind::Overlap,
        },
        prefix_cache: prefix_cache(args, ran)?,
        too_long: if flags.allow_auto_truncate { TooLong::Truncate } else { TooLong::Abort },
        prefill_max_requests: flags.prefill_max_requests,
        max_queued_requests: flags.max_queued_requests,
        priority: flags.enable_priority_scheduling.then(|| PriorityOptions {
            order: match flags.schedule_low_priority_values_first {
                true => PriorityOrder::SmallerFirst,
                false => PriorityOrder::LargerFirst,
            },
            threshold: flags
                .priority_scheduling_preemption_threshold
                .and_then(|threshold| i64::try_from(threshold).ok())
                .unwrap_or(PriorityOptions::default().threshold),
        }),
        ..SglangConfig::new(args.version, count(ran, "max_total_num_tokens")?, resolved.context_len)
    })
}

fn prefix_cache(args: &ServerArgs, ran: &Ran) -> Result<PrefixCache, ServeError> {
    if args.disable_radix_cache {
        return Ok(PrefixCache::Off);
    }
    let policy = match args.scheduling.radix_eviction_policy.as_deref() {
        None | Some("lru") => EvictionPolicy::Lru,
        Some("lfu") => EvictionPolicy::Lfu,
        Some("slru") if args.version.since(5, 16) => EvictionPolicy::Slru,
        Some("fifo") => EvictionPolicy::Fifo,
        Some("mru") => EvictionPolicy::Mru,
        Some("filo") => EvictionPolicy::Filo,
        Some("priority") => EvictionPolicy::Priority,
        Some(other) => {
            let known = "lru, lfu, slru (from 0.5.16), fifo, mru, filo and priority";
            let message = format!("--radix-eviction-policy {other}: this version runs {known}");
            return Err(ServeError::Settings(message));
        }
    };
    Ok(match host_tier(args, ran)? {
        Some(host) => PrefixCache::Hierarchical(policy, host),
        None => PrefixCache::Radix(policy),
    })
}

/// The host tier, of the size that the start gave it; `None` where it made none.
fn host_tier(args: &ServerArgs, ran: &Ran) -> Result<Option<HostTierOptions>, ServeError> {
    let Ok(tokens) = count(ran, "host_pool_tokens") else { return Ok(None) };
    let write_policy = match args.scheduling.hicache_write_policy.as_deref() {
        None => default_write_policy(args.version),
        Some("write_through") => WritePolicy::WriteThrough,
        Some("write_through_selective") => WritePolicy::WriteThroughSelective,
        Some("write_back") => WritePolicy::WriteBack,
        Some(other) => {
            let known = "write_through, write_through_selective and write_back";
            return Err(ServeError::Settings(format!(
                "--hicache-write-policy {other}: known are {known}"
            )));
        }
    };
    Ok(Some(HostTierOptions { tokens, write_policy }))
}

/// Source: SGLang `ServerArgs.hicache_write_policy`; selective in 0.4.6 and 0.4.10, through in 0.5.2 and
/// later.
const fn default_write_policy(version: Version) -> WritePolicy {
    if version.since(5, 2) { WritePolicy::WriteThrough } else { WritePolicy::WriteThroughSelective }
}

/// Bytes of a token in the host tier of one rank; 0 without one.
pub(super) fn host_token(ran: &Ran) -> Bytes {
    let bytes = match ran.start.figure("host_pool_bytes").map(|figure| &figure.value) {
        Some(FigureValue::Bytes(bytes)) => bytes.0,
        _ => 0,
    };
    Bytes(bytes / count(ran, "host_pool_tokens").unwrap_or(1).max(1))
}

fn tapes(
    case: &Case,
    args: &ServerArgs,
    ran: &Ran,
    resolved: &Resolved,
) -> Result<(Box<dyn PassTapes>, Wording), ServeError> {
    let model = case.model.geometry().ok_or(ServeError::Missing("the model's layers"))?;
    if matches!(ran.policy, Policy::Mlx(_)) {
        let passes = MlxPasses::new(ShapeInputs::from_geometry(model));
        return Ok((Box::new(passes), Wording::Metal));
    }
    let passes = SglangPasses::new(pass_inputs(case, args, resolved, model));
    Ok((Box::new(passes), Wording::torch(torch(args.version), ServerProcesses::Sglang)))
}

/// Release of torch that an SGLang release is built on, as far as its error text differs.
///
/// Source: the packages' own requirements: 2.6 in 0.4.6, 2.7 and 2.8 until 0.5.5, then 2.9.
fn torch(version: Version) -> TorchVersion {
    match () {
        () if version.since(5, 6) => TorchVersion::new(2, 9),
        () if version.since(5, 0) => TorchVersion::new(2, 8),
        () => TorchVersion::new(2, 6),
    }
}

/// What of the launch the run does not execute.
fn notes(args: &ServerArgs, resolved: &Resolved, hybrid: bool) -> Vec<String> {
    let mut notes = Vec::new();
    let mut note = |applies: bool, text: &str| {
        if applies {
            notes.push(text.to_owned());
        }
    };
    note(args.pp_size > 1, "pipeline stages are sized, and run as one stage");
    note(args.dp_size > 1, "data-parallel ranks are sized, and run as one scheduler");
    note(args.ep_size > 1, "expert parallelism is sized; its exchange buffers are not executed");
    note(
        hybrid && args.version != Version::new(0, 5, 8),
        "a sliding window is scheduled by the rules of 0.5.8; other releases were not run with one",
    );
    note(
        hybrid && args.enable_hierarchical_cache,
        "the host cache is sized and held; KV of a sliding-window hybrid is not moved to it",
    );
    note(resolved.speculation.is_some(), "speculation is sized; steps decode one token each");
    note(
        args.enable_hierarchical_cache && args.version.since(5, 16),
        "the host cache follows the rules of 0.5.8, with transfers polled in every turn",
    );
    notes
}
