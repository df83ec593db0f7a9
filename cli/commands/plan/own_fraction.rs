//! Where all programs share one memory the automatic fraction rests on a snapshot of that moment: what
//! a fraction set by hand would give.

use plimsoll_core::units::{Bytes, Tokens};
use plimsoll_replay::{
    plan::{Plan, plan as plan_case},
    start::{Case, CaseLaunch, Policy},
};

/// At 0.4 of what was available the founding laptop case finished all of its 128 requests at
/// concurrency 32; at the automatic 0.872 a forward pass failed with 5 % of the pool in use.
const SEEN_TO_HOLD: f64 = 0.4;

/// A fraction set by hand.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct OwnFraction {
    /// `--mem-fraction-static`.
    pub fraction: f64,
    /// Tokens of its pool.
    pub tokens: Tokens,
    /// Left beside the pool.
    pub left: Bytes,
}

/// A start at the fraction that was seen to hold; `None` on a device of its own, or where the launch
/// sets no more than that.
pub fn find(case: &Case, plan: &Plan) -> Option<OwnFraction> {
    let CaseLaunch::Sglang(args) = &case.launch else { return None };
    if !matches!(plan.ran.policy, Policy::Mlx(_)) || plan.fraction? <= SEEN_TO_HOLD {
        return None;
    }
    let mut args = args.clone();
    args.mem_fraction_static = Some(SEEN_TO_HOLD);
    let other = plan_case(&Case { launch: CaseLaunch::Sglang(args), ..case.clone() }).ok()?;
    let (tokens, left) = (other.pool?.mid, other.left?.mid);
    Some(OwnFraction { fraction: SEEN_TO_HOLD, tokens, left })
}
