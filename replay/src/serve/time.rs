//! How long a case's passes take.

use super::ServeError;
use crate::start::Case;
use plimsoll_core::{
    estimate::roofline::TimeModel, policy::sglang::args::ServerArgs, units::Nanos,
};

/// The time model of one rank.
pub(super) fn model(case: &Case, _args: &ServerArgs) -> Result<TimeModel, ServeError> {
    let weights = case.model.weights.as_ref().map_or(1 << 30, |w| w.value.mid.0);
    Ok(TimeModel {
        weight_bytes: weights,
        kv_bytes_per_token: 70_000,
        flops_per_token: weights / 8,
        flops_per_pair: 100_000,
        flops_per_row: 1_000_000_000,
        bytes_per_second: 1_400_000_000_000,
        flops_per_second: 250_000_000_000_000,
        overhead: Nanos(2_000_000),
    })
}
