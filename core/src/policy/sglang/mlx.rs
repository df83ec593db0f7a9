//! The laptop backend (MLX on Metal, 0.5.23): slots from the working set and from RAM after loading.

use super::{
    refusal::{Refusal, in_range},
    version::Version,
    whys::{Whys, computed},
};
use crate::{
    pyfloat::{repr, trunc_i64},
    units::{Bytes, Tokens},
};

/// Slots that the pool always has.
pub const MIN_SLOTS: u64 = 256;

/// What the pool depends on.
#[derive(Clone, PartialEq, Debug)]
pub struct MlxInputs {
    /// `mem_fraction_static`.
    pub mem_fraction_static: f64,
    /// Metal's recommended working set (or the memory size).
    pub working_set: Bytes,
    /// Active bytes of MLX once the weights are there.
    pub mlx_active: Bytes,
    /// Available RAM then; the weights are already gone from it.
    pub system_available: Bytes,
    /// Attention layers.
    pub attention_layers: u64,
    /// Full-attention layers; 0 counts all attention layers.
    pub full_attention_layers: u64,
    /// KV heads.
    pub kv_heads: u64,
    /// Width of a head.
    pub head_dim: u64,
    /// Bytes of an element.
    pub kv_itemsize: u64,
    /// `--max-total-tokens`; replaces the sizing.
    pub max_total_tokens: Option<u64>,
    /// `--max-running-requests`.
    pub max_running_requests: Option<u64>,
}

/// What decided the number of slots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MlxBound {
    /// The working set's fraction, less what MLX holds.
    WorkingSet,
    /// The fraction of available RAM.
    SystemMemory,
    /// The least number of slots.
    Floor,
    /// `--max-total-tokens`.
    Given,
}

/// The laptop's pool.
#[derive(Clone, PartialEq, Debug)]
pub struct MlxPool {
    /// Slots without the padding slot; the scheduler's tokens.
    pub slots: Tokens,
    /// Bytes of a slot.
    pub bytes_per_slot: Bytes,
    /// KV budget.
    pub budget: Bytes,
    /// First term: working set.
    pub by_working_set: Bytes,
    /// Second term: RAM.
    pub by_system_memory: Bytes,
    /// What decided.
    pub bound: MlxBound,
    /// Bytes of the buffers, padding slot included.
    pub pool_bytes: Bytes,
    /// Requests that may run.
    pub max_running_requests: u64,
    /// Derivations: `kv_budget`, `pool_slots`.
    pub whys: Whys,
}

/// Sizes the pool.
///
/// Source: SGLang 0.5.23 `MlxModelRunner._compute_pool_size`.
///
/// # Errors
/// [`Refusal::OutOfRange`].
pub fn size(i: &MlxInputs) -> Result<MlxPool, Refusal> {
    in_range("mem_fraction_static", i.mem_fraction_static, -100.0, 100.0)?;
    for (name, bytes) in [
        ("working set", i.working_set),
        ("MLX active bytes", i.mlx_active),
        ("available RAM", i.system_available),
    ] {
        in_range(name, bytes.0, 0, 1 << 50)?;
    }
    in_range("attention layers", i.attention_layers, 1, 10_000)?;
    in_range("full-attention layers", i.full_attention_layers, 0, 10_000)?;
    in_range("num_key_value_heads", i.kv_heads, 1, 1 << 16)?;
    in_range("head_dim", i.head_dim, 1, 1 << 16)?;
    in_range("element bytes", i.kv_itemsize, 1, 8)?;
    in_range("max_total_tokens", i.max_total_tokens.unwrap_or(1), 1, 1 << 40)?;
    let share = |bytes: Bytes| i128::from(trunc_i64(bytes.0 as f64 * i.mem_fraction_static));
    let first = (share(i.working_set) - i128::from(i.mlx_active.0)).max(0);
    let second = share(i.system_available);
    let budget = unsigned(first.min(second));
    let layers =
        if i.full_attention_layers > 0 { i.full_attention_layers } else { i.attention_layers };
    let bytes_per_slot = 2 * layers * i.kv_heads * i.head_dim * i.kv_itemsize;
    let computed_slots = budget / bytes_per_slot;
    let (slots, bound) = match i.max_total_tokens {
        Some(given) => (given, MlxBound::Given),
        None if computed_slots < MIN_SLOTS => (MIN_SLOTS, MlxBound::Floor),
        None if first <= second => (computed_slots, MlxBound::WorkingSet),
        None => (computed_slots, MlxBound::SystemMemory),
    };
    let pool = MlxPool {
        slots: Tokens(slots),
        bytes_per_slot: Bytes(bytes_per_slot),
        budget: Bytes(budget),
        by_working_set: Bytes(unsigned(first)),
        by_system_memory: Bytes(unsigned(second)),
        bound,
        pool_bytes: Bytes((slots + 1).saturating_mul(bytes_per_slot)),
        max_running_requests: (slots / 2).min(i.max_running_requests.unwrap_or(4096)),
        whys: Whys::default(),
    };
    Ok(MlxPool { whys: whys(i, &pool), ..pool })
}

fn unsigned(n: i128) -> u64 {
    u64::try_from(n.max(0)).unwrap_or(u64::MAX)
}

fn whys(i: &MlxInputs, pool: &MlxPool) -> Whys {
    let v = Version::new(0, 5, 23);
    let function = "MlxModelRunner._compute_pool_size";
    let mut whys = Whys::default();
    whys.put(
        "kv_budget",
        computed(v, function, "min(max(trunc(limit * f) - used, 0), trunc(available * f))")
            .with("mem_fraction_static", repr(i.mem_fraction_static))
            .with("limit (working set)", i.working_set)
            .with("used (MLX active)", i.mlx_active)
            .with("available RAM after load", i.system_available)
            .with("kv_budget", format!("{} B", pool.budget.0)),
    );
    whys.put(
        "pool_slots",
        computed(v, function, "max(budget // (2 * layers * heads * head_dim * itemsize), 256)")
            .with("bytes per slot", format!("{} B", pool.bytes_per_slot.0))
            .with("pool_slots", pool.slots),
    );
    whys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn laptop() -> MlxInputs {
        MlxInputs {
            mem_fraction_static: 0.872,
            working_set: Bytes(55_662_788_608),
            mlx_active: Bytes(1_288_490_188),
            system_available: Bytes(41_113_574_440),
            attention_layers: 28,
            full_attention_layers: 28,
            kv_heads: 8,
            head_dim: 128,
            kv_itemsize: 2,
            max_total_tokens: None,
            max_running_requests: None,
        }
    }

    #[test]
    fn the_smaller_term_decides() {
        let pool = size(&laptop()).unwrap();
        assert_eq!((pool.slots, pool.bound), (Tokens(312_596), MlxBound::SystemMemory));
        let heavy = MlxInputs { mlx_active: Bytes::gib(40), ..laptop() };
        assert_eq!(size(&heavy).unwrap().bound, MlxBound::WorkingSet);
        let full = MlxInputs { mlx_active: Bytes::gib(60), ..laptop() };
        let pool = size(&full).unwrap();
        assert_eq!((pool.slots, pool.bound), (Tokens(256), MlxBound::Floor));
        assert_eq!(pool.max_running_requests, 128);
    }

    #[test]
    fn a_given_count_replaces_everything() {
        let pool = size(&MlxInputs { max_total_tokens: Some(10), ..laptop() }).unwrap();
        assert_eq!((pool.slots, pool.bound), (Tokens(10), MlxBound::Given));
    }
}
