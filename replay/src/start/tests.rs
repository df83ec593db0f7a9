//! Where a start dies, what it takes for a while, and that nothing of it stays.

use crate::{
    assemble, plan,
    scenario::Scenario,
    start::{self, Ran},
};
use plimsoll_core::{
    decision::{Record, Value},
    engine::startup::Taking,
    memory::ledger::Account,
    units::Bytes,
};
use std::path::Path;

const TEXT: &str = "
name: test/transients
why: a card on which each of them decides
source: made for this test
machine:
  device: B200
  readings:
    free_before_load: 176 GiB
    weights: 30 GiB
READINGS
engine:
  version: 0.5.16
  command: python -m sglang.launch_server --model-path Qwen/Qwen3-30B-A3B-FP8 --mem-fraction-static 0.90 FLAGS
";

fn started(readings: &str, flags: &str) -> (Ran, Vec<Record>) {
    let text = TEXT.replace("READINGS", readings).replace("FLAGS", flags);
    let scenario = Scenario::parse("test.yaml", &text, &[]).unwrap();
    let assembled = assemble::of_scenario(&scenario, Path::new("test.yaml")).unwrap();
    let mut records = Vec::new();
    let (ran, _) = start::run_on(&assembled.case, start::simulator, &mut records).unwrap();
    (ran, records)
}

/// A text field of a record.
fn field<'a>(record: &'a Record, name: &str) -> Option<&'a Value> {
    record.fields.iter().find(|field| field.name == name).map(|field| &field.value)
}

fn left(ran: &Ran) -> Option<Bytes> {
    ran.start.reading("after_graphs").map(|free| free.least())
}

#[test]
fn a_start_says_in_which_phase_it_died() {
    let tuned = "--moe-runner-backend flashinfer_trtllm";
    for (readings, flags, doing) in [
        ("    load_peak: 150 GiB", "", Taking::Load),
        ("    autotune_scratch: 20 GiB", tuned, Taking::Autotune),
        ("    graph_memory: 20 GiB", "", Taking::Graphs),
    ] {
        let (ran, records) = started(readings, flags);
        assert_eq!(ran.start.died, Some(doing), "{readings}");
        let died = records.iter().find(|record| record.kind == "out_of_memory").unwrap();
        assert_eq!(field(died, "phase"), Some(&Value::from(doing.name())));
    }
    let (ran, _) = started("", "");
    assert_eq!(ran.start.died, None);
}

#[test]
fn what_is_taken_for_a_while_does_not_stay() {
    let (with, records) = started("    load_peak: 20 GiB\n    autotune_scratch: 15 GiB", "");
    let (without, _) = started("    load_peak: 0 B\n    autotune_scratch: 0 B", "");
    assert_eq!(left(&with), left(&without));
    assert_eq!(
        with.start.figure("max_total_num_tokens"),
        without.start.figure("max_total_num_tokens")
    );
    for account in [Account::LoadScratch, Account::AutotuneScratch] {
        assert_eq!(with.ledger.of(account), Bytes::ZERO);
        let of = |kind: &str| {
            let here = |record: &&Record| {
                record.kind == kind
                    && field(record, "account") == Some(&Value::from(account.name()))
            };
            records.iter().filter(here).count()
        };
        assert_eq!((of("segment_allocated"), of("segment_freed")), (1, 1));
    }
}

#[test]
fn a_declared_sum_decides_whatever_the_pool_would_like() {
    // Less than the private pool alone, and more than all.
    for sum in ["16 MiB", "3 GiB"] {
        let (ran, _) = started(&format!("    graph_memory: {sum}"), "");
        let after_pool = ran.start.reading("after_pool").unwrap().least();
        let took = after_pool.saturating_sub(left(&ran).unwrap());
        assert_eq!(took, ran.ledger.of(Account::Graphs));
        assert_eq!(took, if sum == "3 GiB" { Bytes::gib(3) } else { Bytes::mib(16) });
    }
}

const KIMI: &str = "
name: test/kimi
why: the founding margin
source: the founding case
machine:
  device: RTX PRO 6000 Blackwell
  readings:
    free_before_load: { value: 94.037 GiB, calibrated: true }
    weights: { value: 72.328 GiB, calibrated: true }
    graph_memory: { value: 3.7607 GiB, calibrated: true }
engine:
  version: 0.5.8
  command: python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static FRACTION
";

fn planned(fraction: &str) -> plan::Plan {
    let text = KIMI.replace("FRACTION", fraction);
    let scenario = Scenario::parse("kimi.yaml", &text, &[]).unwrap();
    let assembled = assemble::of_scenario(&scenario, Path::new("kimi.yaml")).unwrap();
    plan::plan(&assembled.case).unwrap()
}

#[test]
fn a_plan_names_the_smallest_prompt_that_kills() {
    let thin = planned("0.93");
    let killed = thin.kills.plain.as_ref().unwrap();
    assert_eq!(killed.kind, plan::MixKind::OnePrompt);
    assert_eq!((killed.requests, killed.prefix_tokens), (1, 0));
    // 0.1865 MiB a token in 0.82 GiB: 4502 by the sum of what lives; segments take a little more.
    assert!((4300..=4503).contains(&killed.tokens), "{}", killed.tokens);
    // The last request before the peak of the first layer with experts.
    assert_eq!(killed.death.buffer, "layer 1 mlp.experts.out");
    assert_eq!(thin.smaller_chunk.unwrap().tokens, 4096);
    for fraction in ["0.85", "0.88"] {
        let plan = planned(fraction);
        assert_eq!(plan.kills.plain, None, "{fraction}");
        // What a request must ask for is told apart.
        assert!(plan.kills.on_demand.is_some(), "{fraction}");
    }
}

#[test]
fn the_allocators_need_is_the_peak_and_a_little_more() {
    let plan = planned("0.88");
    let (need, peak) = (plan.allocator_need.unwrap().0, plan.need.unwrap().1.value.mid.0);
    // At the end of a long prompt, what attention leaves cached is no room for the experts.
    assert!(need >= peak && need < peak + peak / 6, "{need} {peak}");
}
