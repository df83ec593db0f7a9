//! The largest single request of a prefill chunk, from the tape: fragmentation and free memory are
//! judged by it, where the peak alone says how much is held at once.

use plimsoll_core::{
    device::DeviceProfile,
    estimate::{activation::RunInputs, moe::MoeKernel},
    model::geometry::{Dtype, ModelGeometry},
    tape::{Code, Experts, Live, MarlinReduce, PrefillChunk, Setup, TapeModel, prefill_chunk},
};

/// The largest over the layer codes that the release may run; `None` where no tape is known.
pub(super) fn largest_request(
    model: &ModelGeometry,
    device: &DeviceProfile,
    run: &RunInputs,
    chunk: &PrefillChunk,
) -> Option<Live> {
    let tape_model = TapeModel::from_geometry(model).ok()?;
    let experts = experts(model, device, run)?;
    let largest = |code: &Code| {
        let setup = Setup {
            experts,
            shared_experts: run.shared_experts,
            mla_prefix: run.mla_prefix,
            ..Setup::plain(*code, run.tp)
        };
        prefill_chunk(&tape_model, &setup, chunk).ok()?.largest()
    };
    Code::sglang(run.version).iter().filter_map(largest).max_by_key(|live| live.bytes)
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
