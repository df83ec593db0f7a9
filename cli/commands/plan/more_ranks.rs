//! The smallest larger number of tensor-parallel ranks at which a start holds that does not now.

use crate::exit::Failure;
use plimsoll_core::units::{Bytes, Tokens};
use plimsoll_ingest::launch::{EngineLaunch, Launch};
use plimsoll_replay::{
    plan::{Level, Plan, plan as plan_case},
    start::Case,
};

/// Most ranks that are tried.
const MOST: u32 = 64;

/// A number of ranks that holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MoreRanks {
    /// `--tp`.
    pub tp: u32,
    /// Tokens of its pool.
    pub tokens: Option<Tokens>,
    /// Left after graphs on each rank.
    pub left: Option<Bytes>,
}

/// Doubles the ranks until the start holds with room, else with little; `None` when it holds now, when a fraction helps, when the
/// weights were measured (they hold for this number of ranks only), or when none does.
pub fn find(
    launch: &Launch,
    plan: &Plan,
    case: impl Fn(&Launch) -> Result<Case, Failure>,
) -> Option<MoreRanks> {
    let fails = matches!(plan.level, Level::Oom | Level::Refused);
    let fraction_helps = super::advised(plan).is_some();
    let measured = case(launch).ok()?.facts.used_by_load.is_some();
    if !fails || fraction_helps || measured || plan.smaller_chunk.is_some() {
        return None;
    }
    // A number of ranks that does not divide the model is passed over.
    let now = tp_of(&launch.engine).max(1);
    let doubled = std::iter::successors(now.checked_mul(2), |tp| tp.checked_mul(2));
    let plans: Vec<(u32, Plan)> = doubled
        .take_while(|tp| *tp <= MOST)
        .filter_map(|tp| Some((tp, plan_case(&case(&with_tp(launch, tp)).ok()?).ok()?)))
        .collect();
    let first = |level: Level| plans.iter().find(|(_, plan)| plan.level == level);
    let (tp, plan) = first(Level::Ok).or_else(|| first(Level::Low))?;
    let (tokens, left) = (plan.pool.map(|p| p.mid), plan.left.map(|l| l.mid));
    Some(MoreRanks { tp: *tp, tokens, left })
}

fn tp_of(engine: &EngineLaunch) -> u32 {
    match engine {
        EngineLaunch::Sglang(args) => args.tp_size,
        EngineLaunch::Vllm(args) => args.tensor_parallel_size,
    }
}

/// The launch with more ranks; experts that were spread over all ranks stay so.
fn with_tp(launch: &Launch, tp: u32) -> Launch {
    let mut launch = launch.clone();
    match &mut launch.engine {
        EngineLaunch::Sglang(args) => {
            if args.ep_size > 1 && args.ep_size == args.tp_size {
                args.ep_size = tp;
            }
            args.tp_size = tp;
        }
        EngineLaunch::Vllm(args) => args.tensor_parallel_size = tp,
    }
    launch
}
