//! Sliding-window hybrids: how one budget becomes a full pool and a window pool.

use super::{
    geometry::SwaHybrid,
    pool::{Overlap, PoolInputs, RadixCache},
    refusal::Refusal,
    version::Version,
};
use crate::{
    pyfloat::{floor_div, trunc_i64},
    units::Bytes,
};

/// Tokens of both pools; `full` is 0 when every layer slides.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct SwaNumbers {
    pub(crate) full: i128,
    pub(crate) swa: i128,
}

impl SwaNumbers {
    /// What `max_total_num_tokens` becomes.
    pub(crate) fn total(self) -> i128 {
        if self.full == 0 { self.swa } else { self.full }
    }
}

/// Bytes of a token in one layer of each kind.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LayerBytes {
    pub(crate) full: i128,
    pub(crate) swa: i128,
    /// Draft layers charged at full width.
    pub(crate) draft: i128,
}

fn whole(x: f64) -> i128 {
    i128::from(trunc_i64(x))
}

/// `tokens` rounded down to pages, toward minus infinity.
pub(crate) fn page_floor(tokens: i128, page: u64) -> i128 {
    let page = i128::from(page.max(1));
    tokens.div_euclid(page) * page
}

/// Split of a uniform count, to 0.5.10: the uniform pool's memory is dealt out by layer kind.
///
/// Source: SGLang `set_num_tokens_hybrid` / `set_num_tokens_hybrid_swa`, 0.4.10 to 0.5.10.
pub(crate) fn split_uniform(
    v: Version,
    tokens: i128,
    hybrid: &SwaHybrid,
    bytes: LayerBytes,
    page: u64,
) -> SwaNumbers {
    let (r, t) = (hybrid.ratio, tokens);
    if hybrid.layers.full == 0 {
        return SwaNumbers { full: 0, swa: t };
    }
    let lists = if v.since(5, 9) { hybrid.layers } else { hybrid.split_by };
    let (n_full, n_swa) = (i128::from(lists.full), i128::from(lists.swa));
    let full = if v.since(5, 9) {
        let (f, s) = (bytes.full, bytes.swa);
        let all = (t * (f * n_full + s * n_swa)) as f64;
        whole(all / ((f * n_full) as f64 + r * s as f64 * n_swa as f64))
    } else {
        let all = t * i128::from(lists.total);
        whole(all as f64 / (r * n_swa as f64 + n_full as f64))
    };
    if !v.since(5, 7) {
        return SwaNumbers { full, swa: whole(full as f64 * r) };
    }
    let floored = page_floor(full, page);
    let base = if v.since(5, 10) { floored } else { full };
    SwaNumbers { full: floored, swa: page_floor(whole(base as f64 * r), page) }
}

/// Split of a full-pool count, 0.5.11 and later.
///
/// Source: SGLang hybrid SWA pool configurator.
///
/// # Errors
/// [`Refusal::SwaPoolTooSmall`] from 0.5.16.
pub(crate) fn split_full(
    v: Version,
    tokens: i128,
    hybrid: &SwaHybrid,
    page: u64,
) -> Result<SwaNumbers, Refusal> {
    let full = page_floor(tokens, page);
    let swa = page_floor(whole(full as f64 * hybrid.ratio), page);
    if let Some(window) = hybrid.window
        && v.since(5, 16)
        && i128::from(window) + i128::from(page) >= swa
    {
        return Err(Refusal::SwaPoolTooSmall { swa_tokens: swa, window, page_size: page });
    }
    Ok(SwaNumbers { full, swa })
}

/// Tokens that the window pool needs for a capped number of requests; `None` when the mode is off:
/// it takes a disabled radix cache, a given request limit and (from 0.5.22) a chunk above 0.
///
/// Source: SGLang request-capped SWA pool, 0.5.14 to 0.5.23.
pub(crate) fn request_cap(v: Version, inputs: &PoolInputs, hybrid: &SwaHybrid) -> Option<i128> {
    let requests = inputs.user_max_running_requests.map(i128::from)?;
    let chunk = i128::from(inputs.chunked_prefill_size);
    let on = v.since(5, 14)
        && inputs.radix_cache == RadixCache::Disabled
        && hybrid.layers.full > 0
        && (chunk > 0 || !v.since(5, 22));
    if !on {
        return None;
    }
    let page = i128::from(inputs.page_size);
    let window = i128::from(hybrid.window.unwrap_or(0));
    let (draft, decode) = match &inputs.speculation {
        None => (1, page),
        Some(s) => {
            let reserve = i128::from(s.decode_reserve(inputs.page_size));
            let pages = reserve.div_euclid(page) + i128::from(reserve.rem_euclid(page) != 0);
            // The verified runs are without speculation; with it the reserve is taken in whole pages.
            (i128::from(s.num_draft_tokens), (pages * page).max(page))
        }
    };
    let per_request = window + 128 * draft + page + decode;
    let chunks = if inputs.overlap == Overlap::Disabled { 1 } else { 2 };
    let need = if inputs.decode_role() {
        per_request * requests + (window + page) * i128::from(inputs.extra_slots(requests))
    } else {
        per_request * requests + chunks * chunk + page
    };
    Some(page_floor(need + page - 1, inputs.page_size))
}

/// The capped window pool, and the full pool from the rest of the budget.
///
/// # Errors
/// [`Refusal::SwaCapLeavesNoRoom`].
pub(crate) fn split_capped(
    budget: i128,
    swa: i128,
    inputs: &PoolInputs,
    hybrid: &SwaHybrid,
    bytes: LayerBytes,
) -> Result<SwaNumbers, Refusal> {
    let taken = swa * bytes.swa * i128::from(hybrid.layers.swa);
    let full_cell = bytes.full * (i128::from(hybrid.layers.full) + bytes.draft);
    let full = page_floor((budget - taken).div_euclid(full_cell.max(1)), inputs.page_size);
    if full <= 0 {
        let positive = |n: i128| u64::try_from(n.max(0)).unwrap_or(u64::MAX);
        return Err(Refusal::SwaCapLeavesNoRoom {
            swa_tokens: positive(swa),
            swa_bytes: Bytes(positive(taken)),
            requests: inputs.user_max_running_requests.unwrap_or(0),
        });
    }
    Ok(SwaNumbers { full, swa })
}

/// Tokens of a real-valued or whole cell: `budget // cell` as Python divides.
pub(crate) fn tokens_of(budget: i128, cell: f64, whole_cell: Option<i128>) -> i128 {
    match whole_cell {
        Some(cell) => budget.div_euclid(cell.max(1)),
        None => whole(floor_div(budget as f64, cell)),
    }
}
