//! The hierarchical cache's host pool: tokens, pinned bytes, and the check against host memory.

use super::{
    pool::Pool,
    refusal::{Refusal, in_range},
    rules::RulesFor,
    settings::Resolved,
    version::Version,
    whys::{Whys, computed},
};
use crate::{
    pyfloat::{floor_div, trunc_i64},
    units::{Bytes, Tokens},
};

/// What every release leaves free on the host: `10 * 2^30` bytes.
pub const HOST_RESERVE: Bytes = Bytes::gib(10);

/// How the device pool is used by the host tier; decides the largest automatic ratio.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum HostTier {
    /// The usual cache.
    #[default]
    Cache,
    /// Only a transfer buffer.
    BufferOnly,
}

/// What the host pool of one rank depends on.
#[derive(Clone, PartialEq, Debug)]
pub struct HicacheInputs {
    /// Release.
    pub version: Version,
    /// `--hicache-size`, decimal GB per rank; `None` or 0 leaves it to the ratio.
    pub hicache_size_gb: Option<f64>,
    /// `--hicache-ratio`.
    pub hicache_ratio: Option<f64>,
    /// Device tokens of the rank.
    pub device_tokens: Tokens,
    /// Bytes of a token over all layers of the rank (a latent row is whole on every rank).
    pub bytes_per_token: Bytes,
    /// `page_size`, tokens.
    pub page_size: u64,
    /// Available RAM of the host at start.
    pub os_available: Bytes,
    /// cgroup headroom, when limited.
    pub cgroup_headroom: Option<Bytes>,
    /// Ranks of this server on this host.
    pub ranks_on_host: u64,
    /// Tier.
    pub tier: HostTier,
}

/// Memory of the host that a server's ranks share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HostMemory {
    /// Available RAM at start.
    pub os_available: Bytes,
    /// cgroup headroom, when limited.
    pub cgroup_headroom: Option<Bytes>,
    /// Ranks of this server on this host.
    pub ranks_on_host: u64,
}

impl HicacheInputs {
    /// The host pool that belongs to a sized device pool; `None` without `--enable-hierarchical-cache`.
    /// A token counts every layer of the rank, sliding-window layers included.
    #[must_use]
    pub fn for_pool(resolved: &Resolved, pool: &Pool, host: HostMemory) -> Option<Self> {
        let a = &resolved.args;
        a.enable_hierarchical_cache.then(|| Self {
            version: a.version,
            hicache_size_gb: a.hicache_size,
            hicache_ratio: a.hicache_ratio,
            device_tokens: pool.max_total_num_tokens,
            bytes_per_token: Bytes(pool.cell.allocated.saturating_add(pool.cell.allocated_swa)),
            page_size: resolved.page_size,
            os_available: host.os_available,
            cgroup_headroom: host.cgroup_headroom,
            ranks_on_host: host.ranks_on_host,
            tier: HostTier::Cache,
        })
    }
}

/// The host pool of one rank and of the host.
#[derive(Clone, PartialEq, Debug)]
pub struct HostPool {
    /// Tokens that the size or the ratio gives, before pages.
    pub requested_tokens: Tokens,
    /// Tokens of the pool.
    pub tokens: Tokens,
    /// Ratio used; `None` when the size decided.
    pub ratio: Option<f64>,
    /// Pinned bytes of this rank.
    pub bytes: Bytes,
    /// Pinned bytes of all ranks of this host.
    pub host_bytes: Bytes,
    /// What the check allowed this rank.
    pub allowed: Bytes,
    /// How much all ranks together exceed `available - 10 GiB`; to 0.5.18 no rank sees it.
    pub overcommitted: Option<Bytes>,
    /// What the engine would warn about.
    pub warnings: Vec<String>,
    /// Derivations: `host_tokens`, `host_check`.
    pub whys: Whys,
}

/// Plans the host pool of one rank.
///
/// Source: SGLang `HostKVCache.__init__` and `HiRadixCache`, 0.4.6 to 0.5.23; the automatic ratio
/// 0.5.18 and later.
///
/// # Errors
/// [`Refusal::NotEnoughHostMemory`]; [`Refusal::HostPoolNotLarger`] to 0.5.14.
pub fn plan(i: &HicacheInputs) -> Result<HostPool, Refusal> {
    check(i)?;
    let v = RulesFor::version(i.version).used;
    let allowed = allowed(v, i);
    let bpt = i.bytes_per_token.0;
    let (requested, ratio) = match i.hicache_size_gb.filter(|gb| *gb > 0.0) {
        Some(gb) => (unsigned(floor_div(gb * 1e9, bpt as f64)), None),
        None => {
            let ratio = i.hicache_ratio.unwrap_or_else(|| default_ratio(v, i, allowed));
            (unsigned(i.device_tokens.0 as f64 * ratio), Some(ratio))
        }
    };
    let tokens = to_pages(v, requested, i.page_size);
    let bytes = Bytes(tokens.saturating_mul(bpt));
    let mut warnings = Vec::new();
    if tokens <= i.device_tokens.0 {
        let (host_tokens, device_tokens) = (tokens, i.device_tokens.0);
        if !v.since(5, 15) {
            return Err(Refusal::HostPoolNotLarger { host_tokens, device_tokens });
        }
        warnings.push(format!(
            "the host pool ({host_tokens} tokens) is not larger than the device pool ({device_tokens})"
        ));
    }
    if bytes > allowed {
        let raw = !v.since_post(4, 9, 3);
        let printed_free = if raw { i.os_available } else { allowed };
        return Err(Refusal::NotEnoughHostMemory { requested: bytes, free: allowed, printed_free });
    }
    let host_bytes = Bytes(bytes.0.saturating_mul(i.ranks_on_host));
    let free = i.os_available.saturating_sub(HOST_RESERVE);
    let overcommitted = host_bytes.checked_sub(free).filter(|b| *b > Bytes::ZERO);
    Ok(HostPool {
        requested_tokens: Tokens(requested),
        tokens: Tokens(tokens),
        ratio,
        bytes,
        host_bytes,
        allowed,
        overcommitted,
        warnings,
        whys: whys(v, i, ratio, (requested, tokens), allowed),
    })
}

fn check(i: &HicacheInputs) -> Result<(), Refusal> {
    in_range("hicache_size", i.hicache_size_gb.unwrap_or(0.0), 0.0, 1e6)?;
    in_range("hicache_ratio", i.hicache_ratio.unwrap_or(1.0), 0.0, 1e6)?;
    in_range("device tokens", i.device_tokens.0, 0, 1 << 40)?;
    in_range("KV bytes of a token", i.bytes_per_token.0, 1, 1 << 40)?;
    in_range("page_size", i.page_size, 1, 1 << 20)?;
    in_range("ranks on this host", i.ranks_on_host, 1, 1 << 16)
}

/// Toward zero; negative and not-a-number become zero.
fn unsigned(x: f64) -> u64 {
    u64::try_from(trunc_i64(x).max(0)).unwrap_or(0)
}

fn allowed(v: Version, i: &HicacheInputs) -> Bytes {
    if !v.since(5, 19) {
        return i.os_available.saturating_sub(HOST_RESERVE);
    }
    let available = i.cgroup_headroom.map_or(i.os_available, |c| c.min(i.os_available));
    Bytes(available.saturating_sub(HOST_RESERVE).0 / i.ranks_on_host)
}

fn default_ratio(v: Version, i: &HicacheInputs, allowed: Bytes) -> f64 {
    if !v.since(5, 18) {
        return 2.0;
    }
    let most = match i.tier {
        HostTier::Cache => 2.0,
        HostTier::BufferOnly => 1.2,
    };
    let budget = trunc_i64(allowed.0 as f64 * 0.8) as f64;
    let device = i.device_tokens.0 as f64 * i.bytes_per_token.0 as f64;
    if device > 0.0 { (0.95 * budget / device).min(most) } else { most }
}

/// Down to pages, or from 0.5.5.post3 always at least one page more.
fn to_pages(v: Version, tokens: u64, page: u64) -> u64 {
    let pages = tokens / page;
    if v.since_post(5, 5, 3) { (pages + 1).saturating_mul(page) } else { pages * page }
}

fn whys(
    v: Version,
    i: &HicacheInputs,
    ratio: Option<f64>,
    (requested, tokens): (u64, u64),
    allowed: Bytes,
) -> Whys {
    let mut whys = Whys::default();
    let why = match ratio {
        None => {
            computed(v, "HostKVCache", "trunc(hicache_size * 1e9 // bytes per token), to pages")
                .with("hicache_size", format!("{} GB (decimal)", i.hicache_size_gb.unwrap_or(0.0)))
        }
        Some(ratio) => computed(v, "HostKVCache", "trunc(device tokens * hicache_ratio), to pages")
            .with("hicache_ratio", ratio)
            .with("device tokens", i.device_tokens),
    };
    let why = why
        .with("bytes per token", format!("{} B", i.bytes_per_token.0))
        .with("before pages", requested)
        .with("page_size", i.page_size);
    whys.put("host_tokens", why.with("host tokens", tokens));
    let rule = if v.since(5, 19) {
        "need <= (min(available, cgroup) - 10 GiB) // ranks on this host"
    } else {
        "need <= available - 10 GiB, each rank alone"
    };
    let why = computed(v, "HostKVCache", rule)
        .with("available", i.os_available)
        .with("ranks on this host", i.ranks_on_host)
        .with("allowed to this rank", allowed);
    whys.put("host_check", why);
    whys
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(version: &str) -> HicacheInputs {
        HicacheInputs {
            version: version.parse().unwrap(),
            hicache_size_gb: None,
            hicache_ratio: None,
            device_tokens: Tokens(1000),
            bytes_per_token: Bytes(1 << 20),
            page_size: 64,
            os_available: Bytes::gib(100),
            cgroup_headroom: None,
            ranks_on_host: 4,
            tier: HostTier::Cache,
        }
    }

    #[test]
    fn pages_are_rounded_down_and_later_one_up() {
        assert_eq!(plan(&inputs("0.5.5.post2")).unwrap().tokens, Tokens(1984));
        assert_eq!(plan(&inputs("0.5.5.post3")).unwrap().tokens, Tokens(2048));
        let exact = HicacheInputs { device_tokens: Tokens(1024), ..inputs("0.5.8") };
        assert_eq!(plan(&exact).unwrap().tokens, Tokens(2048 + 64));
    }

    #[test]
    fn a_small_host_pool_is_refused_and_later_warned_about() {
        let small = |v: &str| HicacheInputs { hicache_ratio: Some(0.5), ..inputs(v) };
        assert!(matches!(plan(&small("0.5.14")), Err(Refusal::HostPoolNotLarger { .. })));
        assert_eq!(plan(&small("0.5.15")).unwrap().warnings.len(), 1);
    }

    #[test]
    fn each_rank_looks_alone_to_0_5_18() {
        let big = |v: &str| HicacheInputs {
            hicache_size_gb: Some(48.0),
            ranks_on_host: 8,
            os_available: Bytes::gib(256),
            ..inputs(v)
        };
        let alone = plan(&big("0.5.18")).unwrap();
        assert!(alone.overcommitted.is_some_and(|b| b > Bytes::gib(100)));
        let refusal = plan(&big("0.5.19")).unwrap_err();
        assert!(
            matches!(refusal, Refusal::NotEnoughHostMemory { free, .. } if free == Bytes(Bytes::gib(246).0 / 8))
        );
    }

    #[test]
    fn the_printed_free_figure_differs_before_0_4_9_post3() {
        let big = |v: &str| {
            let inputs = HicacheInputs { hicache_size_gb: Some(200.0), ..inputs(v) };
            plan(&inputs).unwrap_err().engine_message(v.parse().unwrap()).unwrap()
        };
        assert!(big("0.4.6").contains("only have 107.37 GB free"));
        assert!(big("0.5.8").contains("only have 96.64 GB free"));
    }

    #[test]
    fn without_size_and_ratio_the_host_decides_from_0_5_18() {
        let i = HicacheInputs { device_tokens: Tokens(100_000), ..inputs("0.5.23") };
        let pool = plan(&i).unwrap();
        let budget = (Bytes::gib(90).0 / 4) as f64 * 0.8;
        let expected = 0.95 * budget.trunc() / (100_000.0 * 1_048_576.0);
        assert_eq!(pool.ratio, Some(expected));
        assert_eq!(plan(&inputs("0.5.17")).unwrap().ratio, Some(2.0));
    }
}
