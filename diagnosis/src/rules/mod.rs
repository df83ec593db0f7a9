//! One file or folder a family of causes.

pub(crate) mod alive;
mod sglang;
mod shared;

use crate::{Case, Finding};

/// A rule: reads the case, gives what it found.
type Rule = fn(&Case) -> Vec<Finding>;

/// Every rule, by family. The order decides between findings of equal level and weight.
const RULES: &[&[Rule]] = &[sglang::RULES, shared::RULES, alive::RULES];

/// All findings, worst and most specific first.
#[must_use]
pub fn findings(case: &Case) -> Vec<Finding> {
    let mut found: Vec<Finding> =
        RULES.iter().copied().flatten().flat_map(|rule| rule(case)).collect();
    found.sort_by(|a, b| (b.level, b.weight).cmp(&(a.level, a.weight)));
    found
}
