//! SGLang: why it refused to start, died or refused a request.

mod crash;
mod crash_levers;
mod hicache;
mod levers;
mod neighbour;
mod not_memory;
mod pool_full;
mod settings;
mod sizing;
mod start;
mod state;
mod unexplained;

use super::Rule;

pub(super) use unexplained::ended as unexplained;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    sizing::weights_leave_nothing,
    sizing::not_enough_memory,
    sizing::profiled_below_asked,
    sizing::nothing_after_load,
    crash::allocation,
    state::aiter,
    state::mamba,
    state::lora,
    state::capped_by_state,
    pool_full::prefill_exhausted,
    pool_full::decode_exhausted,
    pool_full::request_slots,
    pool_full::lost_slots,
    pool_full::input_too_long,
    pool_full::retractions,
    pool_full::smaller_than_context,
    pool_full::running_capped,
    hicache::refused,
    hicache::died_there,
    neighbour::unbalanced,
    neighbour::first_reading,
    neighbour::smaller_than_last_time,
    neighbour::readings_rise,
    not_memory::capture,
    not_memory::stopped_in_capture,
    not_memory::silent,
];
