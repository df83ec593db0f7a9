//! The lower end of the feasible window of `mem_fraction_static`: the least fraction that gives a pool
//! of a wanted size, found by the sizing itself so that it always agrees with it.

use super::{
    pool::{PoolInputs, tokens},
    refusal::Refusal,
};
use crate::{figure::Tag, figure::Why, units::Tokens};

/// The least fraction for a pool.
#[derive(Clone, PartialEq, Debug)]
pub struct FractionFloor {
    /// The least double that gives the pool; the one below it does not.
    pub exact: f64,
    /// The least value in thousandths, as users type it and the engine rounds it.
    pub thousandths: f64,
    /// Tokens at `thousandths`.
    pub tokens: Tokens,
    /// Derivation.
    pub why: Why,
}

/// Floors for an interval of what is used by weights and buffers; `low` belongs to the least use.
#[derive(Clone, PartialEq, Debug)]
pub struct FloorRange {
    /// With the least use; `None` when no fraction below 1 does.
    pub low: Option<FractionFloor>,
    /// With the largest use.
    pub high: Option<FractionFloor>,
}

/// `max_total_num_tokens` at another fraction.
///
/// # Errors
/// As [`super::pool::size`].
pub fn tokens_at(inputs: &PoolInputs, mem_fraction_static: f64) -> Result<Tokens, Refusal> {
    tokens(&PoolInputs { mem_fraction_static, ..inputs.clone() })
}

/// The least fraction that gives at least `wanted` tokens (and at least one page); `None` when even
/// 0.999 does not, for example under a cap.
///
/// Counts rise with the fraction, except that a state slot more (linear-attention hybrids) can cost a
/// few tokens: there every thousandth is tried.
#[must_use]
pub fn smallest_fraction(inputs: &PoolInputs, wanted: Tokens) -> Option<FractionFloor> {
    let wanted = wanted.max(Tokens(1));
    let mut trial = inputs.clone();
    let mut holds = |f: f64| {
        trial.mem_fraction_static = f;
        tokens(&trial).is_ok_and(|t| t >= wanted)
    };
    let thousandth = |n: u32| f64::from(n) / 1000.0;
    let n = if inputs.kv.mamba().is_some() {
        (1..1000).find(|&n| holds(thousandth(n)))?
    } else {
        first_that_holds(&mut |n| holds(thousandth(n)))?
    };
    let (mut fails, mut works) = (thousandth(n - 1), thousandth(n));
    loop {
        let middle = fails + (works - fails) / 2.0;
        if middle <= fails || middle >= works {
            break;
        }
        if holds(middle) {
            works = middle;
        } else {
            fails = middle;
        }
    }
    let found = tokens_at(inputs, thousandth(n)).ok()?;
    let why = Why::new(
        Tag::Computed,
        "least fraction f with tokens(A - P * (1 - f)) >= wanted, by the sizing rules themselves",
        format!("SGLang {} pool sizing", inputs.version),
    )
    .with("wanted", wanted)
    .with("P (free before load)", format!("{:.4} GiB", inputs.pre_load_free_gib))
    .with("A (free after load)", format!("{:.4} GiB", inputs.avail_after_load_gib))
    .with("tokens there", found);
    Some(FractionFloor { exact: works, thousandths: thousandth(n), tokens: found, why })
}

/// Least `n` in 1..1000 with `holds(n)`, for a predicate that stays true once true.
fn first_that_holds(holds: &mut impl FnMut(u32) -> bool) -> Option<u32> {
    let (mut fails, mut works) = (0, 999);
    if !holds(works) {
        return None;
    }
    while works - fails > 1 {
        let middle = (fails + works) / 2;
        if holds(middle) {
            works = middle;
        } else {
            fails = middle;
        }
    }
    Some(works)
}

/// Floors when the use `P - A` is known only as an interval in GiB.
#[must_use]
pub fn floor_range(inputs: &PoolInputs, used_gib: (f64, f64), wanted: Tokens) -> FloorRange {
    let at = |used: f64| {
        let avail_after_load_gib = inputs.pre_load_free_gib - used;
        smallest_fraction(&PoolInputs { avail_after_load_gib, ..inputs.clone() }, wanted)
    };
    FloorRange { low: at(used_gib.0.min(used_gib.1)), high: at(used_gib.0.max(used_gib.1)) }
}
