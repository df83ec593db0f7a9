//! vLLM: why it refused to start, died or preempts.

mod capture;
mod crash;
mod figures;
mod levers;
mod machine;
mod no_blocks;
mod remedy;
mod serving;
mod settings;
mod stage;
mod start;
mod too_long;

use super::Rule;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[
    start::free_below_desired,
    start::free_grew,
    no_blocks::no_blocks,
    too_long::too_long,
    capture::sampler,
    serving::encoder_worst,
    crash::allocation,
    serving::workspace_locked,
    serving::mamba_blocks,
    start::swap_space,
    start::not_memory,
    serving::no_swap_space,
    serving::preemption,
    capture::lora_graphs,
    serving::encoder_item,
    capture::graphs_above_estimate,
    serving::sleep_mode,
    start::prompt_too_long,
    serving::hybrid_pool,
];
