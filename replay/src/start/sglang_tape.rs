//! The tape of a prefill chunk: its largest single request, where the peak alone says how much is held
//! at once, and what the caching allocator makes of it.

use super::{Case, sglang::run_inputs};
use plimsoll_core::{
    device::DeviceProfile,
    engine::{SamplingBackend, SglangPassInputs},
    estimate::{activation::RunInputs, logits::LogprobChunks, moe::MoeKernel, shape::ShapeInputs},
    model::geometry::{Dtype, ModelGeometry},
    policy::sglang::{Resolved, args::ServerArgs, from_model::model_facts},
    tape::{Code, Experts, MarlinReduce, PrefillChunk, Setup, Tape, TapeModel, prefill_chunk},
};

/// The tape with the largest single request over the layer codes that the release may run; `None`
/// where no tape is known.
pub(super) fn heaviest_tape(
    model: &ModelGeometry,
    device: &DeviceProfile,
    run: &RunInputs,
    chunk: &PrefillChunk,
) -> Option<Tape> {
    let (tape_model, setup) = pass_setup(model, device, run, chunk)?;
    prefill_chunk(&tape_model, &setup, chunk).ok()
}

/// The model for tapes, and the layer code with the largest single request among those that the release
/// may run, judged by `chunk`; `None` where no tape is known.
fn pass_setup(
    model: &ModelGeometry,
    device: &DeviceProfile,
    run: &RunInputs,
    chunk: &PrefillChunk,
) -> Option<(TapeModel, Setup)> {
    let tape_model = TapeModel::from_geometry(model).ok()?;
    let largest = |setup: &Setup| {
        let tape = prefill_chunk(&tape_model, setup, chunk).ok()?;
        tape.largest().map(|live| live.bytes)
    };
    let setups = Code::sglang(run.version).iter().map(|code| setup(*code, model, device, run));
    let heaviest = setups.flatten().max_by_key(largest)?;
    largest(&heaviest)?;
    Some((tape_model, heaviest))
}

/// What the passes of this server depend on, for a plan and for a run alike.
pub(crate) fn pass_inputs(
    case: &Case,
    args: &ServerArgs,
    resolved: &Resolved,
    model: &ModelGeometry,
) -> SglangPassInputs {
    let shape = ShapeInputs::from_geometry(model);
    let run = run_inputs(args, &shape, case);
    let full = PrefillChunk { tokens: resolved.full_chunk(), requests: 1, prefix_tokens: 0 };
    SglangPassInputs {
        recorded: pass_setup(model, &case.device, &run, &full),
        shape,
        run,
        captured_decode: resolved.largest_decode_graph(),
        captured_prefill: resolved.prefill_sizes.last().copied().unwrap_or(0),
        sampling: match args.scheduling.sampling_backend.as_deref() {
            Some("pytorch") => SamplingBackend::Pytorch,
            _ => SamplingBackend::FlashInfer,
        },
        backend: resolved.attention.buffers(model_facts(model).attention),
        page_size: resolved.page_size.max(1),
        logprob_chunks: LogprobChunks::Default,
    }
}

/// What runs a step of this model; `None` for expert kernels without a tape.
pub(super) fn setup(
    code: Code,
    model: &ModelGeometry,
    device: &DeviceProfile,
    run: &RunInputs,
) -> Option<Setup> {
    Some(Setup {
        experts: experts(model, device, run)?,
        shared_experts: run.shared_experts,
        mla_prefix: run.mla_prefix,
        ..Setup::plain(code, run.tp)
    })
}

fn experts(model: &ModelGeometry, device: &DeviceProfile, run: &RunInputs) -> Option<Experts> {
    let atomic = model.dtype == Dtype::F16
        || device.compute_capability().is_some_and(|capability| capability.major >= 9);
    Some(match run.moe_kernel {
        MoeKernel::Triton => Experts::Triton,
        MoeKernel::TritonFp8Block => Experts::TritonFp8Block,
        MoeKernel::Marlin => Experts::Marlin {
            multiprocessors: device.sms.as_ref()?.value,
            reduce: if atomic { MarlinReduce::Atomic } else { MarlinReduce::Scratch },
        },
        _ => return None,
    })
}
