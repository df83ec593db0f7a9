//! Tests of a server with a host tier.

use super::*;

fn tiered(write_policy: WritePolicy, pool: u64) -> SglangConfig {
    let host = HostTierOptions { tokens: 2 * pool + 1, write_policy };
    SglangConfig {
        prefix_cache: PrefixCache::Hierarchical(EvictionPolicy::Lru, host),
        loop_kind: LoopKind::Normal,
        ..SglangConfig::new(V8, pool, 512)
    }
}

/// Three prompts that do not fit the pool together, then the first one again.
fn round(config: SglangConfig, len: u64) -> Life {
    let first = |turn, id, begin| (turn, plain(id, begin, len, 2));
    let arrivals = [first(0, 0, 0), first(10, 1, 1000), first(20, 2, 2000), first(30, 3, 0)];
    live(config, &arrivals, 60)
}

fn loads(life: &Life) -> Vec<(u64, u64, u64)> {
    let one = |decision: &Decision| match decision {
        Decision::LoadedBack { request, found, loaded } => Some((request.0, *found, *loaded)),
        _ => None,
    };
    life.log.iter().filter_map(one).collect()
}

#[test]
fn a_prompt_that_was_evicted_is_loaded_and_not_computed_again() {
    for policy in
        [WritePolicy::WriteThrough, WritePolicy::WriteThroughSelective, WritePolicy::WriteBack]
    {
        let life = round(tiered(policy, 250), 100);
        // All but the last token: one is left to compute.
        assert_eq!(loads(&life), [(3, 99, 99)], "{policy:?}");
        let admitted = life.log.iter().rev().find_map(|decision| match decision {
            Decision::Admitted { prefix, extend, .. } => Some((*prefix, *extend)),
            _ => None,
        });
        assert_eq!(admitted, Some((99, 1)));
        assert_eq!(finishes(&life.log).len(), 4);
    }
}

#[test]
fn a_short_part_is_computed_again() {
    let config = SglangConfig { max_running_requests: 1, ..tiered(WritePolicy::WriteThrough, 24) };
    let life = round(config, 9);
    assert_eq!(loads(&life), [(3, 8, 0)]);
}

#[test]
fn locks_of_copies_last_until_a_prefill_is_tried() {
    let life = live(tiered(WritePolicy::WriteThrough, 250), &[(0, plain(0, 0, 100, 2))], 20);
    let state = life.scheduler.state();
    assert_eq!((state.evictable, state.protected, state.pending_writes), (0, 100, 1));
    assert_eq!(state.host_available, 501 - 100);
    let config = SglangConfig { version: V23, ..tiered(WritePolicy::WriteThrough, 250) };
    let mut life = live(config, &[(0, plain(0, 0, 100, 2))], 20);
    life.scheduler.turn(&mut life.log).unwrap();
    assert_eq!(life.scheduler.state().pending_writes, 0);
}

#[test]
fn a_host_tier_without_room_ends_a_server_that_writes_back() {
    let host = HostTierOptions { tokens: 50, write_policy: WritePolicy::WriteBack };
    let config = SglangConfig {
        prefix_cache: PrefixCache::Hierarchical(EvictionPolicy::Lru, host),
        ..tiered(WritePolicy::WriteBack, 250)
    };
    let code = round(config, 100).end.map_err(|fatal| fatal.code);
    assert_eq!(code, Err("host_out_of_slots"));
}
