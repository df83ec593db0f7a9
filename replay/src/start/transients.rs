//! What an SGLang start takes for a while or late: copies while loading, kernels under tuning, the
//! private pool of its graphs, and the graphs of a draft.

use super::{Case, sglang::run_inputs, sglang_tape::setup};
use plimsoll_core::{
    engine::startup::Capture,
    estimate::{
        Engine, Figure,
        graphs::{DecodeGraphs, LayerKind, Speculation, decode_graphs},
        shape::ShapeInputs,
        transients::{Conversion, autotune_scratch, load_scratch},
        workspace::cublas_workspace,
    },
    model::geometry::ModelGeometry,
    policy::sglang::{Resolved, args::ServerArgs, version::Version},
    tape::{Code, TapeModel, captured_decode},
    units::Bytes,
};

/// Copies beside the weights while they load.
pub(super) fn while_loading(
    case: &Case,
    args: &ServerArgs,
    shape: Option<&ShapeInputs>,
    weights: Bytes,
) -> Figure {
    if let Some(fact) = &case.facts.load_peak {
        return fact.figure("held beside the weights while they load, as measured");
    }
    let (Some(model), Some(shape)) = (case.model.geometry(), shape) else {
        return Figure::none("not known without the model's layers", "rule");
    };
    load_scratch(shape, u64::from(args.tp_size), conversion(case, args, model), weights)
}

/// What loading does to the tensors.
///
/// Source: SGLang quantisation methods, `process_weights_after_loading` (AWQ, GPTQ, compressed tensors
/// and MXFP4 write a kernel's layout; FP8 blocks get power-of-two scales for DeepGEMM on compute
/// capability 10; `--quantization fp8` on a 16-bit checkpoint quantises what was loaded).
fn conversion(case: &Case, args: &ServerArgs, model: &ModelGeometry) -> Conversion {
    let Some(quantization) = &model.quantization else {
        let online = args.quantization.as_deref().is_some_and(|name| name.contains("fp8"));
        return if online { Conversion::QuantisedAfterLoad } else { Conversion::Copied };
    };
    let newest = case.device.compute_capability().is_some_and(|cc| cc.major == 10);
    match quantization.weight_bits {
        bits @ ..8 => Conversion::Repacked { bits },
        8 if newest && quantization.method == "fp8" && quantization.group_size > 0 => {
            Conversion::Requantised
        }
        _ => Conversion::Copied,
    }
}

/// Expert kernels that SGLang tunes before it captures graphs.
///
/// Source: SGLang 0.5.8 to 0.5.23 `_should_run_flashinfer_autotune`: these runners, compute capability
/// 9 and later, unless switched off.
const TUNED_RUNNERS: [&str; 3] = ["flashinfer_trtllm", "flashinfer_mxfp4", "flashinfer_cutedsl"];

/// Tokens of the pass under tuning where no graph is captured: rows of the request table by default.
const TABLE_ROWS: u64 = 2048;

/// What kernels under tuning take before the graphs.
pub(super) fn while_tuning(
    case: &Case,
    args: &ServerArgs,
    shape: Option<&ShapeInputs>,
    resolved: Option<&Resolved>,
) -> Figure {
    if let Some(fact) = &case.facts.autotune_scratch {
        return fact.figure("taken while kernels are tuned, as measured");
    }
    let source = "SGLang kernel_warmup";
    let runner = args.moe_runner_backend.as_deref().unwrap_or("auto");
    let new = case.device.compute_capability().is_some_and(|cc| cc.major >= 9);
    let known = args.version >= Version::new(0, 5, 8);
    if args.disable_flashinfer_autotune || !TUNED_RUNNERS.contains(&runner) || !new || !known {
        return Figure::none("no kernel is tuned at the start", source).with("runner", runner);
    }
    let (Some(shape), Some(resolved)) = (shape, resolved) else {
        return Figure::none("not known without the model's layers", "rule");
    };
    let captured = resolved.decode_bs.last().copied().filter(|_| args.version >= NEW_PASS);
    let tokens = captured.unwrap_or_else(|| args.max_running_requests.unwrap_or(TABLE_ROWS));
    autotune_scratch(shape, &run_inputs(args, shape, case), tokens)
}

/// From here on the pass under tuning uses the buffers of the largest captured batch.
const NEW_PASS: Version = Version::new(0, 5, 23);

/// The decode graphs of every rank with the segments of their pool; nothing where the layers have no
/// tape. Between two recorded codes the one that takes more.
pub(super) fn capture(case: &Case, args: &ServerArgs, resolved: Option<&Resolved>) -> Capture {
    let played = || {
        let (model, resolved) = (case.model.geometry()?, resolved?);
        if resolved.decode_graphs_off.is_some() {
            return None;
        }
        let shape = ShapeInputs::from_geometry(model);
        let run = run_inputs(args, &shape, case);
        let tape_model = TapeModel::from_geometry(model).ok()?.shortened();
        let workspace = cublas_workspace(&case.device).value.mid;
        let batches: Vec<u64> = resolved.decode_bs.iter().rev().copied().collect();
        let total = case.device.runtime_total.value.mid;
        let play = |code: &Code| {
            let setup = setup(*code, model, &case.device, &run)?;
            // The stream's workspace is made once.
            let bytes = |nth: usize| if nth == 0 { workspace } else { Bytes::ZERO };
            let tape = |(nth, batch): (usize, &u64)| {
                captured_decode(&tape_model, &setup, *batch, bytes(nth)).ok()
            };
            let tapes: Option<Vec<_>> = batches.iter().enumerate().map(tape).collect();
            Capture::play(batches.clone(), &tapes?, total).ok()
        };
        Code::sglang(run.version).iter().filter_map(play).max_by_key(Capture::pool)
    };
    played().unwrap_or_default()
}

/// The graphs' figure with what the sum divides into.
pub(super) fn explain_graphs(graphs: Figure, capture: &Capture) -> Figure {
    if capture.batches.is_empty() || graphs.value.mid == Bytes::ZERO {
        return graphs;
    }
    let shares = capture.divide(graphs.value.mid);
    let pool: Bytes = shares.pool.iter().copied().sum();
    graphs.with("private pool, played", pool).with("driver and not explained", shares.driver)
}

/// Graphs of the draft: drafting and its extension are captured for each size.
///
/// Source: SGLang EAGLE worker, `init_cuda_graphs` (draft decode and draft extend); sizes by the fit of
/// [`decode_graphs`], so only a prior.
pub(super) fn draft_graphs(case: &Case, args: &ServerArgs, resolved: Option<&Resolved>) -> Figure {
    let none = |why: &str| Figure::none(why, "rule");
    let (Some(draft), Some(resolved)) = (case.model.draft.as_deref(), resolved) else {
        return none("no draft model");
    };
    if case.facts.graph_memory.is_some() {
        return none("counted with the graphs");
    }
    if resolved.decode_graphs_off.is_some() {
        return none("no graph is captured");
    }
    let figure = decode_graphs(&DecodeGraphs {
        engine: Engine::Sglang,
        version: args.version,
        sizes: 2 * resolved.decode_bs.len() as u64,
        layers: draft.layers.len() as u64,
        kind: LayerKind::Dense,
        tp: u64::from(args.tp_size),
        speculation: Speculation::Absent,
    });
    figure.with("captures", "draft decode and draft extend")
}
