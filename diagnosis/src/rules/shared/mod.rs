//! What any server can die of: the host's memory, shared memory, a driver, a leak.

use super::Rule;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[];
