//! One file or folder a family of causes.

pub(crate) mod alive;
mod sglang;
mod shared;

use crate::{Case, Cause, Finding, Level};

/// A rule: reads the case, gives what it found.
type Rule = fn(&Case) -> Vec<Finding>;

/// Every rule, by family. The order decides between findings of equal level and weight.
const RULES: &[&[Rule]] = &[sglang::RULES, shared::RULES, alive::RULES];

/// All findings, worst and most specific first.
#[must_use]
pub fn findings(case: &Case) -> Vec<Finding> {
    let mut found: Vec<Finding> =
        RULES.iter().copied().flatten().flat_map(|rule| rule(case)).collect();
    found.sort_by_key(|finding| std::cmp::Reverse((finding.level, finding.weight)));
    once(found)
}

/// Sorted findings without repeats: a weaker one of a code that is already there, and "nothing wrong" beside an error.
fn once(sorted: Vec<Finding>) -> Vec<Finding> {
    let failed = sorted.first().is_some_and(|first| first.level == Level::Error);
    let mut kept: Vec<Finding> = Vec::with_capacity(sorted.len());
    for finding in sorted {
        let repeats = finding.level < Level::Error && kept.iter().any(|k| k.code == finding.code);
        let contradicts = failed && finding.cause == Cause::Healthy;
        if !repeats && !contradicts {
            kept.push(finding);
        }
    }
    kept
}
