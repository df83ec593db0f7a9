//! A weaker rank decides for all of them.

use crate::scenario::parse;
use plimsoll_core::units::{Bytes, GIB};
use plimsoll_replay::{
    outcome::Figure,
    run::{RunError, run_scenario},
    scenario::Ending,
};
use std::path::Path;

const START: &str = "
name: weaker
why: b
machine: { device: H100 SXM5 80GB, ranks: 2 }
engine:
  name: sglang
  version: 0.5.8
  flags: { model-path: meta-llama/Llama-3.1-8B-Instruct, tp: 2, mem-fraction-static: 0.85 }
";

fn tokens(set: &[&str]) -> Result<i64, RunError> {
    let run = run_scenario(parse(START, set).unwrap(), Path::new("weaker.yaml"))?;
    match run.outcome.get("max_total_num_tokens") {
        Some(Figure::Count(tokens)) => Ok(tokens),
        other => panic!("{other:?}"),
    }
}

#[test]
fn others_on_one_rank_cost_all_ranks() {
    let alone = tokens(&[]).unwrap();
    let weaker = tokens(&["machine.weaker={rank: 1, others_hold: 4 GiB}"]).unwrap();
    let event = "events=[{at: before_load, rank: 1, others_hold: 4 GiB}]";
    assert_eq!(weaker, tokens(&[event]).unwrap());
    // 0.85 of 4 GiB, in cells of 16 layers a rank: 32 layers x 4 heads x 128 x 2 x 2 B.
    let lost = Bytes(4 * GIB).0 as f64 * 0.85 / f64::from(32 * 4 * 128 * 2 * 2);
    assert!(((alone - weaker) as f64 - lost).abs() < 2.0, "{alone} - {weaker}, not {lost}");
}

#[test]
fn less_capacity_on_one_rank_costs_all_ranks() {
    let alone = tokens(&[]).unwrap();
    let smaller = tokens(&["machine.weaker=[{rank: 0, capacity: 76 GiB}]"]).unwrap();
    assert!(smaller < alone);
    let both = "machine.weaker=[{rank: 0, capacity: 76 GiB}, {rank: 1, capacity: 76 GiB}]";
    assert_eq!(tokens(&[both]).unwrap(), smaller, "the least free memory decides");
}

#[test]
fn a_reading_that_the_weaker_rank_cannot_have_is_refused() {
    let declared = "machine.readings.free_before_load=78 GiB";
    assert!(tokens(&[declared]).is_ok());
    let weaker = "machine.weaker={rank: 1, others_hold: 4 GiB}";
    let Err(error) = tokens(&[declared, weaker]) else { panic!("it was accepted") };
    assert!(error.to_string().contains("rank 1 cannot have 78.00 GiB free"), "{error}");
    let each = "machine.readings.free_before_load=[78 GiB, 74 GiB]";
    assert!(tokens(&[each, weaker]).is_ok());
}

/// Releases that compare the ranks refuse what the weaker rank would cost.
#[test]
fn ranks_too_far_apart_are_refused() {
    let set = ["machine.weaker={rank: 1, others_hold: 20 GiB}"];
    let run = run_scenario(parse(START, &set).unwrap(), Path::new("weaker.yaml")).unwrap();
    assert!(run.outcome.refusal.is_some(), "{:?}", run.outcome);
}

/// A host pool takes what is available: RAM less what others hold, unless a reading says otherwise.
#[test]
fn the_host_is_what_is_said_of_it() {
    let hicache = "engine.flags.hicache-size=80";
    let on = "engine.flags.enable-hierarchical-cache=true";
    let ends = |host: &str| {
        let set = [hicache, on, host, "machine.others_on_host=40 GiB"];
        run_scenario(parse(START, &set).unwrap(), Path::new("weaker.yaml")).unwrap().outcome.ending
    };
    // Two ranks want 80 GB each.
    assert_eq!(ends("machine.ram=300 GiB"), Ending::Started);
    assert_ne!(ends("machine.ram=150 GiB"), Ending::Started);
}
