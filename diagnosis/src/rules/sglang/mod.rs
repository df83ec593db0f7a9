//! SGLang: why it refused to start, died or refused a request.

use super::Rule;

/// The rules of this family.
pub(super) const RULES: &[Rule] = &[];
