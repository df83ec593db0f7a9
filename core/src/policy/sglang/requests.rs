//! How many requests may run, and the table that maps their tokens to slots.

use super::{pool::PoolInputs, version::Version};

/// Limits on requests and the shape of `req_to_token`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Requests {
    /// `req_pool_size`, the number that the engine passes to the table.
    pub req_pool_size: u64,
    /// Rows that are allocated (padding row from 0.5.11, extra slots of the decode role).
    pub rows: u64,
    /// Columns, tokens.
    pub columns: u64,
    /// `max_running_requests` per DP worker.
    pub max_running_requests: u64,
}

/// Rows when the user gives no limit: `clamp(trunc(T / context * 512), 2048, 4096)`.
///
/// Source: SGLang `init_memory_pool`, all releases.
#[must_use]
pub fn estimated_requests(tokens: i128, context_len: u64) -> i128 {
    let ratio = tokens as f64 / context_len.max(1) as f64;
    ((ratio * 512.0).trunc() as i128).clamp(2048, 4096)
}

/// Counts that the limits are made from.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitQuestion<'a> {
    pub(crate) version: Version,
    pub(crate) inputs: &'a PoolInputs,
    /// Uncapped count (before cap and enlargement), used to 0.5.9.
    pub(crate) uncapped: i128,
    /// Final count.
    pub(crate) tokens: i128,
    /// Requests that the state slots allow.
    pub(crate) by_state: Option<i128>,
}

impl LimitQuestion<'_> {
    fn user(&self) -> Option<i128> {
        self.inputs.max_running_requests.map(i128::from)
    }

    /// `max_num_reqs`: what the table is made for.
    pub(crate) fn table(&self) -> i128 {
        let v = self.version;
        let by_state = |n: i128| self.by_state.map_or(n, |limit| n.min(limit));
        if !v.since(5, 10) {
            let estimate = || estimated_requests(self.uncapped, self.inputs.context_len);
            return by_state(self.user().unwrap_or_else(estimate));
        }
        let estimate = estimated_requests(self.tokens, self.inputs.context_len);
        let half = self.tokens.div_euclid(2);
        let dp = i128::from(self.inputs.attn_dp_size.max(1));
        let n = match self.user() {
            None => estimate.min(half),
            Some(user) if !v.since(5, 14) => (user / dp).min(estimate),
            Some(user) if !v.since(5, 23) => (user / dp).min(half),
            Some(user) => (user / dp).max(1).min(half),
        };
        by_state(n)
    }

    fn running(&self, table: i128, size: i128) -> i128 {
        if self.version.since(5, 10) {
            return table;
        }
        let dp = i128::from(self.inputs.attn_dp_size.max(1));
        self.user().map_or(self.tokens.div_euclid(2), |user| user / dp).min(size)
    }

    /// Everything.
    ///
    /// Source: SGLang `init_memory_pool` (to 0.5.10), `resolve_max_num_reqs` and the pool
    /// configurators (later).
    pub(crate) fn answer(&self) -> Requests {
        let (v, table) = (self.version, self.table());
        let size = if v.since(4, 7) { table } else { table + 1 };
        let padding = i128::from(v.since(5, 11));
        let extra = if self.inputs.decode_role() && v.since(4, 7) {
            i128::from(self.inputs.extra_slots(table))
        } else {
            0
        };
        let narrow = |n: i128| u64::try_from(n.max(0)).unwrap_or(u64::MAX);
        Requests {
            req_pool_size: narrow(size),
            rows: narrow(size + padding + extra),
            columns: self.columns(),
            max_running_requests: narrow(self.running(table, size)),
        }
    }

    /// Tokens of one row: context, plus what decoding may write past it.
    fn columns(&self) -> u64 {
        let (v, i) = (self.version, self.inputs);
        let Some(s) = i.speculation.as_ref() else { return i.context_len + 4 };
        let plain = 4 + if v.since(5, 1) { s.num_draft_tokens } else { 0 };
        let reserve = s.decode_reserve(i.page_size);
        let past = if i.page_size <= 1 || !v.since(5, 13) {
            plain
        } else if v.since(5, 16) {
            plain.max(reserve + i.page_size - 1)
        } else if s.topk > 1 {
            plain.max(reserve)
        } else {
            plain
        };
        i.context_len + past
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_estimate_is_clamped() {
        assert_eq!(estimated_requests(231_120, 262_144), 2048);
        assert_eq!(estimated_requests(231_120, 32_768), 3611);
        assert_eq!(estimated_requests(231_120, 4_096), 4096);
        assert_eq!(estimated_requests(-5, 4_096), 2048);
    }
}
