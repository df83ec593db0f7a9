//! One file or folder a family of causes.

mod other;
mod sglang;
mod shared;
mod vllm;

use crate::{Case, Finding};

/// A rule: reads the case, gives what it found.
type Rule = fn(&Case) -> Vec<Finding>;

/// Every rule, by family. The order decides between findings of equal level and weight.
const RULES: &[&[Rule]] = &[sglang::RULES, vllm::RULES, other::RULES, shared::RULES];

/// All findings, worst and most specific first.
#[must_use]
pub fn findings(case: &Case) -> Vec<Finding> {
    let mut found: Vec<Finding> =
        RULES.iter().copied().flatten().flat_map(|rule| rule(case)).collect();
    found.sort_by_key(|finding| std::cmp::Reverse((finding.level, finding.weight)));
    found
}
