//! What a sized pool takes on its rank, account by account, and how each figure came to be.

use super::{
    pool::{Numbers, PoolInputs},
    version::Version,
    whys::{Whys, computed},
};
use crate::{pyfloat::repr, units::Bytes};

/// Bytes of the accounts that pool sizing creates on one rank.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PoolBytes {
    /// Target KV, full or uniform: `(T + page) * allocated cell`, padding rows included.
    pub kv_pool: Bytes,
    /// Target KV of sliding-window layers, padding rows included.
    pub swa_pool: Bytes,
    /// The padding rows in the two figures above: one page each, beyond the budget.
    pub kv_padding: Bytes,
    /// Draft KV, padding rows included.
    pub draft_pool: Bytes,
    /// Linear-attention states, padding slot included (0.5.17 and later).
    pub mamba_state: Bytes,
    /// Intermediate states that speculation keeps.
    pub mamba_draft_state: Bytes,
    /// `req_to_token`: rows * columns * 4, outside the budget.
    pub req_to_token: Bytes,
    /// Lists of free slots or pages (8 bytes each) and the sliding-window mapping.
    pub free_lists: Bytes,
}

impl PoolBytes {
    /// All accounts.
    #[must_use]
    pub fn total(&self) -> Bytes {
        self.inside_budget_accounts()
            .saturating_add(self.req_to_token)
            .saturating_add(self.free_lists)
    }

    /// Pools and states, without the request table and the free lists.
    #[must_use]
    pub fn inside_budget_accounts(&self) -> Bytes {
        [self.kv_pool, self.swa_pool, self.draft_pool, self.mamba_state, self.mamba_draft_state]
            .into_iter()
            .fold(Bytes::ZERO, Bytes::saturating_add)
    }
}

fn bytes(n: i128) -> Bytes {
    Bytes(u64::try_from(n.max(0)).unwrap_or(u64::MAX))
}

/// The accounts. Source: SGLang memory pools and allocators, 0.4.6 to 0.5.23.
pub(crate) fn pool_bytes(v: Version, i: &PoolInputs, n: &Numbers) -> PoolBytes {
    let page = i128::from(i.page_size);
    let cell = i128::from(n.cell.allocated);
    let swa_cell = i128::from(n.cell.allocated_swa);
    let (full_tokens, swa_tokens) = n.swa.map_or((n.tokens, 0), |s| (s.full, s.swa));
    let rows = |tokens: i128| if tokens > 0 { tokens + page } else { 0 };
    let padding = |tokens: i128, cell: i128| if tokens > 0 { page * cell } else { 0 };
    let state = i.kv.mamba().map_or(0, |m| i128::from(m.state_bytes_per_request));
    let slots = n.mamba.map_or(0, |m| m.slots + i128::from(v.since(5, 17)));
    let draft_tokens = i.speculation.as_ref().map_or(0, |s| i128::from(s.num_draft_tokens));
    let draft_requests = n.mamba.map_or(0, |m| m.draft_requests);
    let draft_cell = i128::from(n.cell.allocated_draft);
    PoolBytes {
        kv_pool: bytes(rows(full_tokens) * cell),
        swa_pool: bytes(rows(swa_tokens) * swa_cell),
        kv_padding: bytes(padding(full_tokens, cell) + padding(swa_tokens, swa_cell)),
        draft_pool: bytes(n.draft_pool.map_or(0, |t| rows(t) * draft_cell)),
        mamba_state: bytes(slots * state),
        mamba_draft_state: bytes(draft_requests * draft_tokens * state),
        req_to_token: bytes(i128::from(n.requests.rows) * i128::from(n.requests.columns) * 4),
        free_lists: bytes(free_lists(v, page, full_tokens, n.swa.map(|s| s.swa))),
    }
}

/// One 64-bit entry a page; hybrids keep a second list and a mapping of slots. The mapping counts the
/// window pool in the page-1 releases (to 0.5.7) and one page more than the full pool later.
fn free_lists(v: Version, page: i128, full: i128, swa: Option<i128>) -> i128 {
    let list = |tokens: i128| 8 * (tokens / page);
    let Some(swa) = swa else { return list(full) };
    let mapping = if v.since(5, 8) { full + page + 1 } else { full + swa + 1 };
    list(full) + list(swa) + 8 * mapping
}

/// Derivations of a pool's figures.
pub(crate) fn pool_whys(v: Version, i: &PoolInputs, n: &Numbers, whys: &mut Whys) {
    let late = v.since(5, 11);
    let function = if late { "KVCacheConfigurator" } else { "ModelRunner.init_memory_pool" };
    let gib = |x: f64| format!("{x:.4} GiB");
    whys.put(
        "kv_budget",
        computed(v, function, "A - P * (1 - mem_fraction_static), GiB to bytes, toward zero")
            .with("P (free before load)", gib(i.pre_load_free_gib))
            .with("A (free after load)", gib(i.avail_after_load_gib))
            .with("mem_fraction_static", repr(i.mem_fraction_static))
            .with("withheld", format!("{} MiB", i.withheld_mib))
            .with("kv_budget", format!("{} B", n.budget_bytes)),
    );
    whys.put("cell_size", n.cell.why.clone());
    let rule = match (n.swa.is_some(), late) {
        (false, false) => "budget // cell, capped, rounded down to pages",
        (false, true) => "budget // cell, rounded down to pages, then capped the same way",
        (true, false) => "budget // cell, capped, then split by layer kind; the full pool counts",
        (true, true) => {
            "budget // cell is the full pool, rounded down to pages; the cap splits again"
        }
    };
    let cap = |n: Option<u64>| n.map_or("none".to_owned(), |n| n.to_string());
    let mut why = computed(v, function, rule)
        .with("budget", format!("{} B", n.budget_bytes))
        .with("cell", format!("{} B", n.cell.bytes))
        .with("page_size", i.page_size)
        .with("max_total_tokens", cap(i.max_total_tokens));
    if let Some(m) = n.mamba {
        why = why.with("left after state slots", gib(m.rest_gib));
    }
    if let Some(s) = n.swa {
        why = why.with("full_layer_tokens", s.full).with("swa_layer_tokens", s.swa);
    }
    whys.put("max_total_num_tokens", why.with("max_total_num_tokens", n.tokens));
    if let Some(m) = n.mamba {
        let why = computed(v, function, "state share of the budget // bytes of a request's state")
            .with("max_mamba_cache_size", m.slots)
            .with("slots per running request", m.per_request);
        whys.put("max_mamba_cache_size", why);
    }
    if let Some(t) = n.draft_pool {
        let rule = if v.since(5, 9) {
            "the target's final count"
        } else {
            "the target's count before the cap; its bytes come from the slack"
        };
        whys.put("draft_pool_tokens", computed(v, function, rule).with("tokens", t));
    }
    let r = n.requests;
    whys.put(
        "max_running_requests",
        computed(v, function, "user limit, else clamp(T / context * 512, 2048, 4096) and T // 2")
            .with("max_running_requests", cap(i.max_running_requests))
            .with("context_len", i.context_len)
            .with("attention dp", i.attn_dp_size)
            .with("result", r.max_running_requests),
    );
    whys.put(
        "req_to_token",
        computed(v, "ReqToTokenPool", "rows * columns * 4 B, outside the budget")
            .with("rows", r.rows)
            .with("columns", r.columns),
    );
}
