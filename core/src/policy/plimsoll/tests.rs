//! Properties of the plan and of lending.

use proptest::prelude::*;

use super::*;
use crate::{
    tape::own::{DecoderShape, LayerShape, Workspace},
    units::Bytes,
};

/// SmolLM2-135M.
fn shape() -> DecoderShape {
    DecoderShape {
        vocab: 49_152,
        hidden: 576,
        layers: vec![LayerShape { intermediate: 1536, window: None }; 30],
        q_heads: 9,
        kv_heads: 3,
        head_dim: 64,
        norm_eps: 1e-5,
        rope: vec![1.0; 32],
        tied: true,
        qkv_bias: false,
        o_bias: false,
        mlp_bias: false,
        qk_norm: false,
        context: 8192,
    }
}

fn readings(available: Bytes) -> HostReadings {
    HostReadings {
        total: Bytes::gib(16),
        available: Some(available),
        group: None,
        resident: Bytes::mib(12),
        anonymous: Bytes::mib(4),
        maps_max: Some(65_530),
        system_page: Bytes::kib(4),
    }
}

fn try_plan(readings: &HostReadings, args: &PlanArgs, weights: Bytes) -> Result<Plan, Refusal> {
    let shape = shape();
    let cell = KvCell::new(&shape, KvFormat::F32, 16).unwrap();
    let (scratch, threads) = (Bytes::mib(1), 2);
    let budgets = Budgets::default();
    let workspace = Workspace::None;
    plan(
        readings,
        args,
        &Engine { shape: &shape, cell, weights, workspace, scratch, threads, budgets },
    )
}

#[test]
fn a_plan_by_hand() {
    let plan = try_plan(&readings(Bytes::gib(4)), &PlanArgs::default(), Bytes::mib(270)).unwrap();
    assert_eq!(plan.limit.bytes, Bytes::gib(4).saturating_add(Bytes::mib(4)));
    assert_eq!(plan.limit.from, LimitFrom::Available);
    assert_eq!(plan.of(Part::Margin), Bytes(plan.limit.bytes.0 / 16));
    assert_eq!(plan.of(Part::Rotary), Bytes(8192 * 256));
    assert_eq!(plan.of(Part::Requests), Bytes(16 * (49_152 * 8 + 65_536)));
    assert_eq!((plan.settings.limits.tokens, plan.settings.limits.outputs), (528, 16));
    let sum: Bytes = plan.rows.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, plan.limit.bytes);
    assert_eq!(plan.of(Part::KvPool), Bytes(plan.pages * 737_280));
    assert!(plan.of(Part::Rest) < plan.page);
    assert_eq!(plan.ledger().rest(), Ok(Bytes::ZERO));
    assert!(plan.rows.is_sorted_by_key(|row| row.part));
}

#[test]
fn the_limit_is_the_smallest() {
    let mut host = readings(Bytes::gib(4));
    let flag = |host: &HostReadings, flag| host.limit(flag).from.to_string();
    assert_eq!(flag(&host, Some(Bytes::gib(5))), "MemAvailable and what this process has");
    assert_eq!(flag(&host, Some(Bytes::gib(3))), "--memory-limit");
    let (limit, room) = (Bytes::gib(2), Bytes::gib(1));
    host.group = Some(GroupRoom { path: "/pods".to_owned(), limit, room });
    assert_eq!(flag(&host, Some(Bytes::gib(3))), "what control group /pods leaves");
    assert_eq!(host.limit(None).bytes, Bytes::gib(1).saturating_add(Bytes::mib(4)));
    (host.group, host.available) = (None, None);
    assert_eq!(flag(&host, None), "all memory of the machine");
}

#[test]
fn refusals_have_numbers_and_a_flag() {
    let limited = |mib| PlanArgs { memory_limit: Some(Bytes::mib(mib)), ..PlanArgs::default() };
    let host = readings(Bytes::gib(8));
    let say = |args: &PlanArgs| try_plan(&host, args, Bytes::mib(270)).unwrap_err().to_string();
    assert_eq!(
        say(&limited(200)),
        "the weights take 270.00 MiB, and the limit is 200.00 MiB (--memory-limit): 70.00 MiB too \
         little. Raise the limit, or keep the weights in fewer bits (--precision)"
    );
    let engine = say(&limited(300));
    assert!(engine.starts_with("without a pool the engine holds "), "{engine}");
    assert!(engine.contains("a smaller --mem-margin would change that"), "{engine}");
    let sizes = PlanArgs { chunked_prefill_size: Some(4096), ..limited(300) };
    assert!(say(&sizes).contains("a smaller --chunked-prefill-size"), "{}", say(&sizes));
    let total = PlanArgs { max_total_tokens: Some(512), ..PlanArgs::default() };
    assert_eq!(
        say(&total),
        "--max-total-tokens 512 is 32 pages; one chunk of a prompt and a page more are 33. Raise it, or \
         lower --chunked-prefill-size"
    );
    let context = PlanArgs { context_length: Some(9000), ..PlanArgs::default() };
    assert_eq!(say(&context), "--context-length is 9000; allowed: 1 to 8192");
    let none = PlanArgs { max_running_requests: Some(0), ..PlanArgs::default() };
    assert_eq!(say(&none), "--max-running-requests is 0; allowed: 1 to 1048576");
    // Between what the engine holds and what a pool needs.
    let (mut low, mut high) = (300, 1000);
    while high - low > 1 {
        let middle = (low + high) / 2;
        match try_plan(&host, &limited(middle), Bytes::mib(270)) {
            Ok(_) => high = middle,
            Err(_) => low = middle,
        }
    }
    let pool = say(&limited(low));
    assert!(pool.starts_with("the pool has ") && pool.contains("and 33 are needed"), "{pool}");
}

#[test]
fn flags_and_mappings_bound_the_pool() {
    let tokens = PlanArgs { max_total_tokens: Some(10_001), ..PlanArgs::default() };
    let plan = try_plan(&readings(Bytes::gib(8)), &tokens, Bytes::mib(270)).unwrap();
    assert_eq!((plan.pages, plan.pool_tokens()), (626, 10_016));
    let few = HostReadings { maps_max: Some(5096), ..readings(Bytes::gib(8)) };
    let plan = try_plan(&few, &PlanArgs::default(), Bytes::mib(270)).unwrap();
    assert_eq!(plan.pages, 1000);
    let sum: Bytes = plan.rows.iter().map(|row| row.bytes).sum();
    assert_eq!(sum, plan.limit.bytes);
}

proptest! {
    /// Whatever the machine, a plan's rows are the limit, and a refusal is short of something.
    #[test]
    fn rows_are_the_limit(
        (available, weights) in (0_u64..1 << 35, 0_u64..1 << 33),
        limit in prop::option::of(0_u64..1 << 35),
        margin in prop::option::of(0_u64..1 << 32),
        (running, chunk) in (1_u64..300, 1_u64..5000),
        total in prop::option::of(0_u64..1_000_000),
        prompt_logprobs in any::<bool>(),
    ) {
        let args = PlanArgs {
            memory_limit: limit.map(Bytes),
            mem_margin: margin.map(Bytes),
            max_running_requests: Some(running),
            chunked_prefill_size: Some(chunk),
            context_length: None,
            max_total_tokens: total,
            prompt_logprobs,
        };
        let host = readings(Bytes(available));
        match try_plan(&host, &args, Bytes(weights)) {
            Ok(plan) => {
                let sum: Bytes = plan.rows.iter().map(|row| row.bytes).sum();
                prop_assert_eq!(sum, plan.limit.bytes);
                prop_assert_eq!(plan.of(Part::KvPool).0, plan.pages * plan.page.0);
                prop_assert!(plan.pool_tokens() > chunk.min(8192));
                prop_assert!(plan.limit.bytes.0 <= available + (4 << 20));
            }
            Err(refusal) => prop_assert!(!refusal.to_string().is_empty()),
        }
    }

    /// With nothing else changed, a move is the last: the room is then right, or there is nothing to move.
    #[test]
    fn a_move_does_not_come_back(
        room in 0_u64..1 << 34,
        margin in 0_u64..1 << 31,
        page in 1_u64..1 << 26,
        (spare, lent) in (0_u64..5000, 0_u64..5000),
    ) {
        let lending = Lending { margin: Bytes(margin), page: Bytes(page) };
        let at = |room| Room { available: Some(Bytes(room)), ..Room::default() };
        let first = lending.decide(at(room), PoolPages { spare, lent });
        match first {
            Move::Stay => {}
            Move::Give(pages) => {
                prop_assert!(pages > 0 && pages <= spare && room < margin);
                let then = PoolPages { spare: spare - pages, lent: lent + pages };
                let next = lending.decide(at(room + pages * page), then);
                prop_assert!(next == Move::Stay, "{next:?}");
            }
            Move::Take(pages) => {
                prop_assert!(pages > 0 && pages <= lent && room > 2 * margin);
                let left = room - pages * page;
                prop_assert!(left >= margin + margin / 2);
                let then = PoolPages { spare: spare + pages, lent: lent - pages };
                let next = lending.decide(at(left), then);
                prop_assert!(next == Move::Stay, "{next:?}");
            }
        }
    }
}

#[test]
fn the_least_room_counts() {
    let lending = Lending { margin: Bytes::mib(64), page: Bytes::mib(1) };
    let pages = PoolPages { spare: 100, lent: 10 };
    let room = |available, group, limit| Room {
        available: Some(Bytes::mib(available)),
        group: Some(Bytes::mib(group)),
        limit: Some(Bytes::mib(limit)),
    };
    assert_eq!(lending.decide(room(500, 63, 900), pages), Move::Give(33));
    assert_eq!(lending.decide(room(500, 900, 0), pages), Move::Give(96));
    assert_eq!(lending.decide(room(500, 900, 128), pages), Move::Stay);
    assert_eq!(lending.decide(room(129, 900, 900), pages), Move::Take(10));
    assert_eq!(lending.decide(Room::default(), pages), Move::Stay);
}
