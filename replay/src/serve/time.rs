//! How long a case's passes take.

use super::ServeError;
use crate::start::{Case, ModelKind};
use plimsoll_core::{
    estimate::{
        roofline::TimeModel,
        time_inputs::{SizedInputs, TimeBasis, TimeInputs},
    },
    model::geometry::Dtype,
    policy::sglang::facts::KvDtype,
    units::Bytes,
};

/// The time model of one rank, and what it rests on: what a profile says, else what is assumed.
pub(super) fn basis(case: &Case, kv: KvDtype) -> Result<TimeBasis, ServeError> {
    let mut basis = assumed(case, kv)?;
    if let Some(profile) = &case.facts.profile {
        basis.calibrate(&case.device, layers(case), &profile.values, &|which| {
            profile.evidence(which)
        });
    }
    Ok(basis)
}

/// Layers of the case's model; 0 where they are not known.
pub(super) fn layers(case: &Case) -> u64 {
    match &case.model.kind {
        ModelKind::Known(geometry) => geometry.layers.len() as u64,
        ModelKind::Cell(known) => known.cell.layers,
    }
}

fn assumed(case: &Case, kv: KvDtype) -> Result<TimeBasis, ServeError> {
    let device = &case.device;
    if let Some(divided) = &case.model.divided {
        let (model, weights) = (&divided.model, divided.weights);
        let inputs = TimeInputs { model, weights, kv_dtype: dtype(kv), device };
        return TimeModel::of(&inputs).map_err(|error| ServeError::Settings(error.to_string()));
    }
    let ModelKind::Cell(known) = &case.model.kind else {
        return Err(ServeError::Missing("the whole model"));
    };
    let weights = case.model.weights.as_ref().map_or(Bytes::ZERO, |figure| figure.value.mid);
    let (kv_bytes_per_token, layers) = (known.cell.bytes_per_token, known.cell.layers);
    Ok(TimeModel::of_sizes(&SizedInputs { weights, kv_bytes_per_token, layers, device }))
}

/// FP4 counts as FP8: half a byte too much of traffic.
const fn dtype(kv: KvDtype) -> Dtype {
    match kv {
        KvDtype::Fp32 => Dtype::F32,
        KvDtype::Fp16 => Dtype::F16,
        KvDtype::Bf16 => Dtype::Bf16,
        KvDtype::Fp8E5m2 => Dtype::Fp8E5m2,
        KvDtype::Fp8E4m3 | KvDtype::Fp4 => Dtype::Fp8E4m3,
    }
}
