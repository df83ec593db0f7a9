//! State slots of linear-attention hybrids: how many, what they take from the budget, what a request needs.

use super::{
    geometry::{MambaHybrid, MambaStrategy},
    pool::{Overlap, PoolInputs, RadixCache},
    refusal::Refusal,
    version::Version,
};
use crate::{
    pyfloat::{floor_div, trunc_i64},
    units::{Bytes, GIB},
};

/// State slots and what is left of the budget.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct MambaNumbers {
    /// `max_mamba_cache_size`, without the padding slot.
    pub(crate) slots: i128,
    /// Slots that one running request takes.
    pub(crate) per_request: i128,
    /// Requests whose intermediate states of speculation are kept; 0 without.
    pub(crate) draft_requests: i128,
    /// Budget left for the KV pool, GiB.
    pub(crate) rest_gib: f64,
}

/// Slots that one running request takes.
///
/// Source: SGLang `handle_max_mamba_cache` and the hybrid configurator, 0.5.2 to 0.5.23.
fn slots_per_request(v: Version, inputs: &PoolInputs, strategy: MambaStrategy) -> i128 {
    if inputs.radix_cache == RadixCache::Disabled || !v.since_post(5, 3, 2) {
        return 1;
    }
    let speculating = inputs.speculation.is_some();
    let extra = strategy == MambaStrategy::ExtraBuffer;
    if v.since(5, 7) && !v.since(5, 8) {
        return if extra && speculating { 4 } else { 5 };
    }
    if !v.since(5, 8) {
        return 3;
    }
    let one = if v.since(5, 10) { inputs.overlap == Overlap::Disabled } else { speculating };
    match strategy {
        MambaStrategy::NoBuffer => 3,
        MambaStrategy::Lazy if v.since(5, 13) => 4,
        MambaStrategy::Lazy => 3,
        MambaStrategy::ExtraBuffer if one => 4,
        MambaStrategy::ExtraBuffer => 5,
    }
}

fn whole(x: f64) -> i128 {
    i128::from(trunc_i64(x))
}

/// One sizing of the slots; amounts in bytes of state, budget in GiB.
struct Sizing<'a> {
    v: Version,
    inputs: &'a PoolInputs,
    state: i128,
    ratio: f64,
    given: Option<i128>,
    requests: Option<i128>,
    draft: i128,
    per_request: i128,
    rest: f64,
    draft_requests: i128,
}

/// The slots of one rank.
///
/// # Errors
/// [`Refusal::NoMambaSlots`] from 0.5.13.
pub(crate) fn size(
    v: Version,
    inputs: &PoolInputs,
    mamba: &MambaHybrid,
    rest_gib: f64,
) -> Result<MambaNumbers, Refusal> {
    let int = |n: u64| i128::from(n);
    let speculation = inputs.speculation.as_ref();
    let mut sizing = Sizing {
        v,
        inputs,
        state: int(mamba.state_bytes_per_request),
        ratio: mamba.ratio,
        given: mamba.max_mamba_cache_size.map(int),
        requests: inputs.max_running_requests.map(int),
        draft: speculation.map_or(0, |s| int(s.num_draft_tokens)),
        per_request: slots_per_request(v, inputs, mamba.strategy),
        rest: rest_gib,
        draft_requests: 0,
    };
    let slots = if v.since(5, 13) {
        sizing.with_draft_inside()?
    } else if v.since(5, 7) {
        sizing.with_draft_first()
    } else {
        sizing.with_draft_per_slot()
    };
    let Sizing { per_request, draft_requests, rest, .. } = sizing;
    Ok(MambaNumbers { slots, per_request, draft_requests, rest_gib: rest })
}

impl Sizing<'_> {
    /// Takes `bytes` from the budget.
    fn charge(&mut self, bytes: i128) {
        self.rest -= bytes as f64 / GIB as f64;
    }

    /// The state's share of the budget, bytes.
    fn share(&self) -> f64 {
        self.rest * self.ratio / (1.0 + self.ratio) * GIB as f64
    }

    /// Given size, else requests, else 512; divided under DP attention.
    fn fixed(&self) -> i128 {
        let dp = i128::from(self.inputs.attn_dp_size.max(1));
        self.given.or(self.requests).unwrap_or(512) / dp
    }

    fn radix_off(&self) -> bool {
        self.inputs.radix_cache == RadixCache::Disabled
    }

    // 0.5.2 to 0.5.6. The size is fixed before 0.5.4; then each slot carries its intermediate states.
    fn with_draft_per_slot(&mut self) -> i128 {
        let shared = self.v.since_post(5, 3, 2);
        let copies = if shared { 1 + self.draft } else { 1 };
        let slots = if !shared || self.radix_off() {
            self.fixed()
        } else {
            let per_state = floor_div(self.share(), self.state as f64);
            whole(floor_div(per_state, copies as f64))
        };
        self.draft_requests = if shared && self.draft > 0 { slots } else { 0 };
        self.charge(slots * self.state * copies);
        slots
    }

    // 0.5.7 to 0.5.12: the intermediate states of all requests are taken first.
    fn with_draft_first(&mut self) -> i128 {
        let fixed = match self.v.since(5, 9) {
            false => self.radix_off() || self.given.is_some(),
            true => self.given.is_some() || (self.radix_off() && self.requests.is_some()),
        };
        if self.draft > 0 && (self.v.since(5, 8) || !fixed) {
            self.draft_requests = self.requests.unwrap_or(0);
            self.charge(self.state * self.draft_requests * self.draft);
        }
        let slots =
            if fixed { self.fixed() } else { whole(floor_div(self.share(), self.state as f64)) };
        self.charge(slots * self.state);
        slots
    }

    // 0.5.13 and later: the intermediate states are inside the share. A padding slot from 0.5.17.
    fn with_draft_inside(&mut self) -> Result<i128, Refusal> {
        let pad = i128::from(self.v.since(5, 17));
        let (state, draft, k) = (self.state, self.draft, self.per_request);
        let requests = self.requests.map(|n| if self.v.since(5, 23) { n.max(1) } else { n });
        let within = |slots: i128| requests.map_or(slots / k, |n| n.min(slots.div_euclid(k)));
        let slots = if let Some(given) = self.given {
            self.draft_requests = within(given) + pad;
            given
        } else if let (true, Some(n)) = (self.radix_off(), requests) {
            self.draft_requests = n + pad;
            n
        } else if draft > 0 {
            let free = self.share() - (pad * state * (1 + draft)) as f64;
            let per_slot = state as f64 * (1.0 + draft as f64 / k as f64);
            let slots = whole(floor_div(free, per_slot));
            self.draft_requests = within(slots) + pad;
            slots
        } else {
            whole(floor_div(self.share() - (pad * state) as f64, state as f64))
        };
        if draft > 0 {
            self.charge(state * self.draft_requests * draft);
        } else {
            self.draft_requests = 0;
        }
        if slots <= 0 {
            let state_bytes = Bytes(u64::try_from(state).unwrap_or(0));
            return Err(Refusal::NoMambaSlots { slots, state_bytes });
        }
        self.charge((slots + pad) * state);
        Ok(slots)
    }
}
