//! Tests of the scheduler: whole lives of small servers, and what must hold at every turn.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::{
    kv::blocks::NULL_BLOCK,
    policy::sglang::version::Version,
    sched::{Batch, EosRule, Finish, Mode},
};
use proptest::prelude::*;

const V11: Version = Version::new(0, 11, 2);
const V19: Version = Version::new(0, 19, 0);
const V33: Version = Version::new(0, 33, 0);

fn plain(id: u64, first: u64, len: u64, out: u64) -> NewRequest {
    NewRequest::plain(RequestId(id), Runs::of(first, len), out)
}

/// What a life left behind.
struct Life {
    scheduler: VllmScheduler,
    log: Vec<Decision>,
    batches: Vec<Batch>,
}

/// Runs turns until nothing is left to do, or `turns` are over; `arrivals` are (turn, request).
fn live(config: VllmConfig, arrivals: &[(u64, NewRequest)], turns: u64) -> Life {
    live_telling(LogDetail::Decisions, config, arrivals, turns)
}

fn live_telling(
    detail: LogDetail,
    config: VllmConfig,
    arrivals: &[(u64, NewRequest)],
    turns: u64,
) -> Life {
    let scheduler = VllmScheduler::new(config).unwrap();
    let mut life = Life { scheduler, log: Vec::new(), batches: Vec::new() };
    life.scheduler.set_detail(detail);
    let last = arrivals.iter().map(|(at, _)| *at).max().unwrap_or(0);
    for turn in 0..turns {
        for (_, request) in arrivals.iter().filter(|(at, _)| *at == turn) {
            life.scheduler.submit(request.clone(), &mut life.log);
        }
        if let Turn::Run(batch) = life.scheduler.turn(&mut life.log).unwrap() {
            life.batches.push(batch);
        }
        life.scheduler.check_blocks();
        life.scheduler.complete(&mut life.log).unwrap();
        life.scheduler.check_blocks();
        if turn >= last && !life.scheduler.has_work() {
            break;
        }
    }
    life
}

impl VllmScheduler {
    /// Every block is free or held by exactly the tables that name it.
    fn check_blocks(&self) {
        let mut held: BTreeMap<BlockId, u32> = BTreeMap::new();
        for at in self.by_id.values() {
            for table in &self.requests[*at].sequence.tables {
                for id in table.blocks.iter().filter(|id| **id != NULL_BLOCK) {
                    *held.entry(*id).or_default() += 1;
                }
            }
        }
        let pool = &self.cache.pool;
        for (id, holders) in &held {
            assert_eq!(pool.holders(*id), *holders, "holders of block {id}");
        }
        let mut free = BTreeSet::new();
        for run in self.free_blocks() {
            for id in run.first..run.first + run.len {
                assert!(free.insert(id), "block {id} is free twice");
                assert!(!held.contains_key(&(id as u32)), "block {id} is free and held");
            }
        }
        assert_eq!(free.len() as u64, pool.free());
        assert_eq!(free.len() + held.len(), pool.total() as usize - 1, "a block is lost");
        let usage = self.usage();
        assert_eq!(usage.used(), held.len() as u64 * self.config.block_size);
    }

    fn check_all_back(&self) {
        assert!(self.is_done() && !self.has_work());
        assert_eq!(self.cache.pool.free(), self.cache.pool.total() - 1);
        assert!(self.by_id.is_empty());
        let nothing_kept = self.cached_blocks() == 0;
        assert!(!nothing_kept || self.cache.pool.prefixes.is_empty(), "a prefix is lost");
    }
}

fn finishes(log: &[Decision]) -> Vec<(u64, u64, Finish)> {
    let one = |decision: &Decision| match decision {
        Decision::Finished { request, outputs, finish } => Some((request.0, *outputs, *finish)),
        _ => None,
    };
    log.iter().filter_map(one).collect()
}

#[test]
fn a_request_is_prefilled_then_decoded_to_its_end() {
    for loop_kind in [LoopKind::Synchronous, LoopKind::Asynchronous] {
        let config = VllmConfig { loop_kind, ..VllmConfig::new(V33, 100, 512) };
        let life = live(config, &[(0, plain(7, 100, 50, 4))], 20);
        // Both ends at once count as the model's.
        assert_eq!(finishes(&life.log), [(7, 4, Finish::Stop)]);
        let shapes: Vec<(Mode, u64, u64)> =
            life.batches.iter().map(|b| (b.mode, b.tokens(), b.prefix_tokens())).collect();
        let decode = |prefix| (Mode::Decode, 1, prefix);
        assert_eq!(shapes, [(Mode::Prefill, 50, 0), decode(50), decode(51), decode(52)]);
        life.scheduler.check_all_back();
    }
}

#[test]
fn the_model_ends_early_and_a_row_is_wasted_in_the_asynchronous_loop() {
    for (loop_kind, passes) in [(LoopKind::Synchronous, 4), (LoopKind::Asynchronous, 5)] {
        let config = VllmConfig { loop_kind, ..VllmConfig::new(V33, 100, 512) };
        let mut request = plain(0, 0, 50, 4);
        request.max_new_tokens = None;
        let life = live(config, &[(0, request)], 20);
        assert_eq!(finishes(&life.log), [(0, 4, Finish::Stop)]);
        assert_eq!(life.batches.len(), passes);
    }
}

#[test]
fn a_long_prompt_goes_in_chunks_beside_decodes_and_is_found_again() {
    let config = VllmConfig {
        max_num_batched_tokens: 100,
        loop_kind: LoopKind::Synchronous,
        ..VllmConfig::new(V33, 200, 1024)
    };
    let arrivals =
        [(0, plain(0, 9000, 20, 40)), (2, plain(1, 0, 250, 2)), (20, plain(2, 0, 250, 2))];
    let life = live(config, &arrivals, 80);
    let row = |id: u64| {
        let rows = life.batches.iter().flat_map(|batch| &batch.rows);
        let rows = rows.filter(move |row| row.request.0 == id);
        rows.map(|row| (row.prefix, row.extend, row.more_follows)).take(3).collect::<Vec<_>>()
    };
    assert_eq!(row(1), [(0, 99, true), (99, 99, true), (198, 52, false)]);
    assert_eq!(row(2), [(240, 10, false), (250, 1, false)]);
    assert!(life.batches.iter().any(|batch| batch.mode == Mode::Mixed));
    life.scheduler.check_all_back();
}

#[test]
fn the_last_of_the_running_gives_way_and_waits_in_front() {
    for version in [V11, V19, V33] {
        // Two prompts of 3 blocks and outputs of 3 more, in 8 blocks.
        let config =
            VllmConfig { loop_kind: LoopKind::Synchronous, ..VllmConfig::new(version, 9, 96) };
        let arrivals: Vec<_> = (0..3).map(|id| (0, plain(id, 1000 * id, 48, 48))).collect();
        let life = live(config, &arrivals, 400);
        let by = |decision: &Decision| match decision {
            Decision::Preempted { request, by, .. } => Some((request.0, by.0)),
            _ => None,
        };
        assert_eq!(life.log.iter().find_map(by), Some((1, 0)), "{version}");
        let order: Vec<u64> = finishes(&life.log).into_iter().map(|(id, ..)| id).collect();
        assert_eq!(order, [0, 1, 2], "{version}");
        life.scheduler.check_all_back();
    }
}

#[test]
fn prompts_without_room_for_an_output_are_turned_away_in_the_engines_words() {
    let config = VllmConfig::new(V33, 100, 100);
    let mut empty = plain(3, 0, 0, 1);
    empty.prompt = Runs::new();
    let arrivals = [
        (0, plain(0, 0, 99, 9)),
        (0, plain(1, 0, 100, 9)),
        (0, plain(2, 0, 1 << 50, 9)),
        (0, empty),
    ];
    let life = live(config, &arrivals, 20);
    let refused = |decision: &Decision| match decision {
        Decision::Refused { request, code } => Some((request.0, *code)),
        _ => None,
    };
    let refused: Vec<_> = life.log.iter().filter_map(refused).collect();
    assert_eq!(refused, [(1, "prompt_too_long"), (2, "prompt_too_long"), (3, "empty_prompt")]);
    assert_eq!(finishes(&life.log), [(0, 1, Finish::Length)]);
    assert_eq!(too_long(99, 100), None);
    assert!(too_long(100, 100).unwrap().contains("(length 100) plus the number"));
    assert!(too_long(101, 100).unwrap().contains("(length 101) is longer"));
}

#[test]
fn settings_that_make_no_scheduler_are_refused() {
    let base = || VllmConfig::new(V19, 100, 512);
    let fails = |config: VllmConfig| VllmScheduler::new(config).err();
    assert_eq!(fails(VllmConfig { num_gpu_blocks: 1, ..base() }), Some(ConfigError::Blocks(1)));
    assert_eq!(fails(VllmConfig { groups: Vec::new(), ..base() }), Some(ConfigError::Groups(0)));
    assert_eq!(fails(VllmConfig { max_num_seqs: 0, ..base() }), Some(ConfigError::NoRequests));
    assert_eq!(fails(VllmConfig { max_model_len: 0, ..base() }), Some(ConfigError::Tokens(0)));
    assert_eq!(fails(VllmConfig { watermark: 2.0, ..base() }), Some(ConfigError::Watermark(2.0)));
    let window = |window| GroupSpec { kind: GroupKind::Window { window }, block_size: 16 };
    let windows = |version| VllmConfig { version, groups: vec![window(8), window(32)], ..base() };
    assert_eq!(fails(windows(V19)), None);
    assert_eq!(fails(windows(V11)), Some(ConfigError::Kinds));
    assert_eq!(
        fails(VllmConfig { groups: vec![window(0)], ..base() }),
        Some(ConfigError::Tokens(0))
    );
}

#[test]
fn a_pool_of_any_size_and_a_long_prompt_cost_little() {
    // A pool that were kept block by block would not fit the machine.
    let config =
        VllmConfig { max_num_batched_tokens: 1 << 19, ..VllmConfig::new(V33, 1 << 31, 1 << 20) };
    let mut scheduler = VllmScheduler::new(config).unwrap();
    let mut log = Vec::new();
    scheduler.submit(plain(0, 0, 1 << 19, 3), &mut log);
    while scheduler.has_work() {
        scheduler.turn(&mut log).unwrap();
        scheduler.complete(&mut log).unwrap();
    }
    assert_eq!(finishes(&log), [(0, 3, Finish::Stop)]);
    assert_eq!(scheduler.usage().used(), 0);
}

#[test]
fn numbers_at_their_ends_are_no_trouble() {
    for version in [V11, V33] {
        for longest in [1, 2, 1 << 40] {
            let config = VllmConfig {
                max_num_batched_tokens: 1 << 40,
                ..VllmConfig::new(version, 40, longest)
            };
            let mut free = plain(1, 7, 20, 0);
            free.max_new_tokens = None;
            free.priority = Some(i64::MIN);
            let mut none = plain(2, u64::MAX - 30, 20, 5);
            none.max_new_tokens = Some(0);
            let arrivals = [(0, plain(0, 0, 1 << 48, u64::MAX)), (0, free), (1, none)];
            live(config, &arrivals, 100);
        }
    }
}

prop_compose! {
    fn any_config()(
        version in prop_oneof![Just(V11), Just(V19), Just(V33), Just(Version::new(0, 15, 0))],
        block in prop_oneof![Just(1_u64), Just(4), Just(16)],
        room in prop_oneof![0_u64..6, 20_u64..80],
        budget in prop_oneof![64_u64..100, Just(512)],
        seqs in prop_oneof![1_u64..4, Just(64)],
        caching in prop_oneof![3 => Just(PrefixCaching::On), 1 => Just(PrefixCaching::Off)],
        policy in prop_oneof![2 => Just(QueuePolicy::Fcfs), 1 => Just(QueuePolicy::Priority)],
        loop_kind in prop_oneof![Just(LoopKind::Synchronous), Just(LoopKind::Asynchronous)],
        other in 0_usize..5,
        threshold in prop_oneof![Just(0_u64), Just(32)],
        whole in any::<bool>(),
        watermark in prop_oneof![Just(0.0), Just(0.2)],
        retention_interval in prop_oneof![Just(None), Just(Some(0)), Just(Some(64))],
    ) -> VllmConfig {
        let longest = 200;
        let spec = |kind| GroupSpec { kind, block_size: block };
        let state = match (caching, version == V11) {
            (PrefixCaching::Off, _) => StateMode::None,
            (PrefixCaching::On, true) => StateMode::All,
            (PrefixCaching::On, false) => StateMode::Align { checkpoints: Some(1) },
        };
        let state_block = if caching == PrefixCaching::Off { longest } else { block };
        let groups = match other {
            0 | 1 => vec![spec(GroupKind::Full)],
            2 => vec![spec(GroupKind::Full), spec(GroupKind::Window { window: 33 })],
            3 => vec![spec(GroupKind::Full), spec(GroupKind::Chunked { chunk: 32 })],
            _ => vec![
                spec(GroupKind::Full),
                GroupSpec { kind: GroupKind::Mamba(state), block_size: state_block },
            ],
        };
        let need: u64 = groups.iter().map(|it| longest.div_ceil(it.block_size) + 2).sum();
        VllmConfig {
            num_gpu_blocks: need + room + 1,
            block_size: block,
            groups,
            max_num_batched_tokens: budget,
            max_num_seqs: seqs,
            prefix_caching: caching,
            policy,
            loop_kind,
            long_prefill_token_threshold: threshold,
            gate: if whole { AdmissionGate::WholeSequence } else { AdmissionGate::NextChunk },
            watermark,
            retention_interval,
            ..VllmConfig::new(version, 2, longest)
        }
    }
}

/// (turn, family of the prompt's beginning, shared tokens, own tokens, outputs)
type Shape = (u64, u64, u64, u64, u64);

fn shapes() -> impl Strategy<Value = Vec<Shape>> {
    proptest::collection::vec((0_u64..60, 0_u64..3, 0_u64..80, 1_u64..80, 1_u64..60), 1..25)
}

fn requests(shapes: &[Shape]) -> Vec<(u64, NewRequest)> {
    let one = |(id, shape): (usize, &Shape)| {
        let (turn, family, shared, own, outputs) = *shape;
        let mut prompt = Runs::of(family * 10_000, shared);
        prompt.extend(&Runs::of(1_000_000 + id as u64 * 10_000, own));
        let mut request = NewRequest::plain(RequestId(id as u64), prompt, outputs);
        request.priority = Some((outputs % 3) as i64);
        request.eos = if own % 4 == 0 { EosRule::Ignored } else { EosRule::Ends };
        (turn, request)
    };
    shapes.iter().enumerate().map(one).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Blocks are never lost or held by more than their tables say (checked at every turn by `live`), limits
    /// are kept, everyone gets an end, and an empty server has everything back.
    #[test]
    fn any_workload_keeps_the_books(config in any_config(), shapes in shapes()) {
        let arrivals = requests(&shapes);
        let life = live(config.clone(), &arrivals, 20_000);
        life.scheduler.check_all_back();
        let mut ended: Vec<u64> = finishes(&life.log).into_iter().map(|(id, ..)| id).collect();
        ended.sort_unstable();
        prop_assert_eq!(ended, (0..arrivals.len() as u64).collect::<Vec<_>>());
        for batch in &life.batches {
            prop_assert!(batch.tokens() <= config.max_num_batched_tokens);
            prop_assert!(batch.rows.len() as u64 <= config.max_num_seqs);
            prop_assert!(batch.rows.iter().all(|row| row.extend > 0));
        }
        for (id, outputs, finish) in finishes(&life.log) {
            let asked = &arrivals[id as usize].1;
            prop_assert!(outputs <= asked.max_new_tokens.unwrap());
            prop_assert!(finish == Finish::Length || outputs == asked.output_len);
        }
    }

    /// Without preemption every token of a request is computed or found, once and in order.
    #[test]
    fn tokens_follow_each_other(config in any_config(), shapes in shapes()) {
        let life = live(config, &requests(&shapes), 20_000);
        let preempted = |decision: &Decision| match decision {
            Decision::Preempted { request, .. } => Some(*request),
            _ => None,
        };
        let preempted: BTreeSet<RequestId> = life.log.iter().filter_map(preempted).collect();
        let mut done: BTreeMap<RequestId, u64> = BTreeMap::new();
        let rows = life.batches.iter().flat_map(|batch| &batch.rows);
        for row in rows.filter(|row| !preempted.contains(&row.request)) {
            let before = done.insert(row.request, row.prefix + row.extend);
            prop_assert!(before.is_none_or(|to| row.prefix == to), "not where it ended");
        }
    }

    /// First come, first served: requests are admitted in the order of arrival.
    #[test]
    fn fcfs_admits_in_order(config in any_config(), shapes in shapes()) {
        let shapes: Vec<Shape> = shapes.into_iter().map(|(_, a, b, c, d)| (0, a, b, c, d)).collect();
        let config = VllmConfig { policy: QueuePolicy::Fcfs, ..config };
        let life = live(config, &requests(&shapes), 20_000);
        let mut seen = BTreeSet::new();
        for row in life.batches.iter().flat_map(|batch| &batch.rows) {
            let after = seen.last().is_none_or(|last| row.request > *last);
            prop_assert!(seen.contains(&row.request) || after);
            seen.insert(row.request);
        }
    }

    /// The same inputs lead to the same decisions.
    #[test]
    fn decisions_repeat(config in any_config(), shapes in shapes()) {
        let arrivals = requests(&shapes);
        let (a, b) = (live(config.clone(), &arrivals, 5000), live(config, &arrivals, 5000));
        prop_assert_eq!(a.log, b.log);
        prop_assert_eq!(a.batches, b.batches);
    }

    /// Quiet turns that are taken in one go lead to the same decisions, state and end.
    #[test]
    fn skipping_is_as_stepping(config in any_config(), shapes in shapes(), most in 1_u64..40) {
        let arrivals = requests(&shapes);
        let stepped = live(config.clone(), &arrivals, 20_000);
        let mut skipped = VllmScheduler::new(config).unwrap();
        let (mut log, mut turn) = (Vec::new(), 0);
        let last = arrivals.iter().map(|(at, _)| *at).max().unwrap_or(0);
        while turn <= last || skipped.has_work() {
            for (_, request) in arrivals.iter().filter(|(at, _)| *at == turn) {
                skipped.submit(request.clone(), &mut log);
            }
            skipped.turn(&mut log).unwrap();
            skipped.complete(&mut log).unwrap();
            turn += 1;
            let next = arrivals.iter().map(|(at, _)| *at).filter(|at| *at >= turn).min();
            let quiet = skipped.quiet_turns().min(most).min(next.map_or(u64::MAX, |at| at - turn));
            skipped.skip(quiet);
            skipped.check_blocks();
            turn += quiet;
        }
        skipped.check_all_back();
        prop_assert_eq!(log, stepped.log);
        let free = |scheduler: &VllmScheduler| scheduler.free_blocks().collect::<Vec<_>>();
        prop_assert_eq!(free(&skipped), free(&stepped.scheduler));
    }

    /// Telling slots changes nothing, and what is told adds up: what was taken and not freed is held, or kept
    /// to be found again.
    #[test]
    fn slots_that_are_told_add_up(config in any_config(), shapes in shapes()) {
        let arrivals = requests(&shapes);
        let quiet = live(config.clone(), &arrivals, 5000);
        let life = live_telling(LogDetail::Slots, config.clone(), &arrivals, 5000);
        let decided: Vec<Decision> =
            life.log.iter().filter(|decision| !decision.is_of_slots()).cloned().collect();
        prop_assert_eq!(decided, quiet.log);
        let mut held = BTreeSet::new();
        for decision in &life.log {
            match decision {
                Decision::SlotsTaken { slots, .. } => {
                    prop_assert!(slots.values().all(|slot| held.insert(slot)), "taken twice");
                }
                Decision::SlotsFreed { slots } => {
                    prop_assert!(slots.values().all(|slot| held.remove(&slot)), "not held");
                }
                _ => {}
            }
        }
        let cached: BTreeSet<u64> = life.scheduler.cached_slots().values().collect();
        prop_assert_eq!(cached, held, "nothing is held at the end");
    }
}
