//! One memory for device and host: what either side holds is missing on the other, and which figure an
//! engine reads decides what it sees.

use plimsoll_core::{
    backend::{BackendError, Place, Rank},
    memory::ledger::Account,
    units::Bytes,
};
use plimsoll_replay::{
    accounts::Accounts,
    assemble, checker,
    run::{ScenarioRun, run_scenario},
    scenario::Scenario,
    start::{self, Machine, Ran},
};
use std::path::Path;

const SPARK: &str = "
name: test/spark
why: one memory
machine: { device: GB10, page_cache: CACHE GiB, others_on_host: OTHERS GiB }
engine:
  version: VERSION
  command: COMMAND
";
const SGLANG: &str =
    "python -m sglang.launch_server --model-path Qwen/Qwen3-8B --mem-fraction-static 0.80";
const VLLM: &str = "vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.30";

fn started(version: &str, command: &str, cache: u64, others: u64) -> (Ran, Machine) {
    let text = SPARK.replace("VERSION", version).replace("COMMAND", command);
    let text = text.replace("CACHE", &cache.to_string()).replace("OTHERS", &others.to_string());
    let scenario = Scenario::parse("spark.yaml", &text, &[]).unwrap();
    let assembled = assemble::of_scenario(&scenario, Path::new("spark.yaml")).unwrap();
    start::run_on(&assembled.case, start::simulator, &mut Vec::new()).unwrap()
}

fn seen(version: &str, command: &str, cache: u64, others: u64) -> Bytes {
    let (ran, _) = started(version, command, cache, others);
    ran.start.reading("before_load").unwrap().least()
}

#[test]
fn page_cache_is_used_for_those_who_read_mem_free() {
    for (old, new, command) in [("0.5.3", "0.5.4", SGLANG), ("0.11.0", "0.12.0", VLLM)] {
        let (none, some) = (seen(old, command, 0, 6), seen(old, command, 60, 6));
        assert_eq!(none.saturating_sub(some), Bytes::gib(60), "{old}");
        assert_eq!(seen(new, command, 0, 6), seen(new, command, 60, 6), "{new}");
        // What programs hold is gone for both.
        for version in [old, new] {
            let more = seen(version, command, 0, 26);
            assert_eq!(none.saturating_sub(more), Bytes::gib(20), "{version}");
        }
    }
}

#[test]
fn both_sides_take_from_one_pool() {
    let (_, mut machine) = started("0.5.8", SGLANG, 10, 6);
    let rank = Rank(0);
    let available = machine.host_available().unwrap();
    assert_eq!(machine.memory(rank).unwrap().free, available);
    let size = Bytes::gib(1);
    machine.allocate(rank, Account::Activations, Place::Device, size).unwrap();
    assert_eq!(machine.host_available().unwrap(), available.saturating_sub(size));
    machine.allocate(rank, Account::KvPool, Place::Host, size).unwrap();
    let left = available.saturating_sub(size).saturating_sub(size);
    assert_eq!(machine.memory(rank).unwrap().free, left);
    machine.set_host_others(Bytes::gib(6) + left).unwrap();
    assert!(machine.allocate(rank, Account::Activations, Place::Device, size).is_err());
    machine.set_host_others(Bytes::gib(6)).unwrap();
    machine.allocate(rank, Account::Activations, Place::Device, size).unwrap();
}

const LAPTOP: &str = "
name: test/laptop
why: Metal
machine:
  device: { name: Apple 64 GB, capacity: 53084 MiB }
  others_on_host: 9 GiB
  readings: { host_available_at_sizing: 50 GiB, mlx_active: 1.15 GiB }
engine:
  version: 0.5.23
  environment: { SGLANG_USE_MLX: '1' }
  command: python -m sglang.launch_server --model-path Qwen/Qwen3-0.6B --mem-fraction-static 0.4
";

/// Programs on the host and the server take from the same RAM, and the device's part ends at the working set.
#[test]
fn a_laptop_has_one_memory_and_a_working_set() {
    let scenario = Scenario::parse("laptop.yaml", LAPTOP, &[]).unwrap();
    let assembled = assemble::of_scenario(&scenario, Path::new("laptop.yaml")).unwrap();
    let (ran, mut machine) =
        start::run_on(&assembled.case, start::simulator, &mut Vec::new()).unwrap();
    let rank = Rank(0);
    let after = ran.start.reading("after_load").unwrap().least();
    assert_eq!(after, Bytes::gib(50));
    let free = machine.memory(rank).unwrap().free;
    machine.set_host_others(Bytes::gib(9) + Bytes::gib(5)).unwrap();
    assert_eq!(machine.memory(rank).unwrap().free, free.saturating_sub(Bytes::gib(5)));
    // Everyone leaves: now the working set is what ends a request.
    machine.set_host_others(Bytes::ZERO).unwrap();
    let held: Bytes = machine.held(rank).unwrap().into_iter().map(|(_, bytes)| bytes).sum();
    assert_eq!(held, Bytes::gib(64));
    let set = Bytes::mib(53_084);
    let never = machine.allocate(rank, Account::Activations, Place::Device, Bytes::gib(53));
    assert!(matches!(never, Err(BackendError::TooLarge { capacity, .. }) if capacity == set));
}

const LIFE: &str = "
name: test/spark-life
why: one memory under load
machine: { device: GB10, page_cache: 40 GiB, others_on_host: 6 GiB }
engine:
  version: VERSION
  command: python -m sglang.launch_server --model-path Qwen/Qwen3-8B --mem-fraction-static 0.80 --max-total-tokens 20000 --enable-hierarchical-cache --hicache-size 8
workload:
  - { name: chat, requests: 8, concurrency: 2, prompt_tokens: 500, output_tokens: 40 }
  - { name: document, requests: 2, at: 60 s, prompt_tokens: 8000, output_tokens: 20 }
events:
  - { at: 0.5 s, host_others_grow: { to: HELD GiB, over: 5 s } }
  - { at: 30 s, others_hold: 1 GiB }
";

fn life(version: &str, held: u64) -> ScenarioRun {
    let text = LIFE.replace("VERSION", version).replace("HELD", &held.to_string());
    let scenario = Scenario::parse("life.yaml", &text, &[]).unwrap();
    run_scenario(scenario, Path::new("life.yaml")).unwrap()
}

/// The checker reads every byte of both sides; the accounts of a log end where the machine's do.
#[test]
fn logs_of_one_memory_add_up() {
    for (version, held, dies) in
        [("0.5.3", 10, false), ("0.5.3", 200, true), ("0.5.8", 10, false), ("0.5.8", 200, true)]
    {
        let run = life(version, held);
        assert_eq!(checker::check(&run.log), [], "{version} {held}");
        let died = run.log.records.iter().any(|record| record.kind == "out_of_memory");
        assert_eq!(died, dies, "{version} {held}");
        let mut accounts = Accounts::default();
        run.log.records.iter().for_each(|record| accounts.take(record));
        for row in run.log.records.iter().filter(|record| record.kind == "ledger") {
            let name = row.fields.get("account").map(ToString::to_string).unwrap_or_default();
            let account = Account::ALL.into_iter().find(|a| name.contains(a.name())).unwrap();
            let held = row.fields.get("held_bytes").map(ToString::to_string);
            let ours = accounts.rank(0).map(|rank| rank.of(account).to_string());
            assert_eq!(ours, held, "{version} {name}");
        }
    }
}
