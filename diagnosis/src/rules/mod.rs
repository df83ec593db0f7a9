//! One file or folder a family of causes.

pub(crate) mod alive;
mod other;
mod sglang;
mod shared;
mod vllm;

use crate::{Case, Confidence, Finding, Level, study::Study};

/// A rule: reads the case, gives what it found.
type Rule = fn(&Case) -> Vec<Finding>;

/// Every rule, by family. The order decides between findings of equal level and weight.
const RULES: &[&[Rule]] = &[sglang::RULES, vllm::RULES, other::RULES, shared::RULES];

/// All findings, worst and most specific first.
#[must_use]
pub fn findings(case: &Case) -> Vec<Finding> {
    of_study(&Study::of(case))
}

/// The same of a case that is already studied.
pub(crate) fn of_study(study: &Study<'_>) -> Vec<Finding> {
    let rules = RULES.iter().copied().flatten();
    let mut found: Vec<Finding> = rules.flat_map(|rule| rule(study.case)).collect();
    found.extend(alive::findings(study));
    if found.iter().all(|finding| finding.level < Level::Error) {
        found.extend(sglang::unexplained(study.case));
    }
    if found.iter().all(|finding| finding.level < Level::Warning) {
        found.extend(alive::healthy(study));
    }
    found.sort_by_key(|finding| std::cmp::Reverse((finding.level, finding.weight)));
    once(found)
}

/// Sorted findings without repeats of a code that is already there: remarks, and guesses beside what is surer.
fn once(sorted: Vec<Finding>) -> Vec<Finding> {
    let mut kept: Vec<Finding> = Vec::with_capacity(sorted.len());
    for finding in sorted {
        let weak = finding.level < Level::Error || finding.confidence == Confidence::Possible;
        let repeats = weak && kept.iter().any(|k| k.code == finding.code);
        if !repeats {
            kept.push(finding);
        }
    }
    kept
}
