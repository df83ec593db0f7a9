//! Judgements over plain facts; what the binary shows of them is tested with it.

use super::*;
use crate::log::Server;
use plimsoll_core::units::Bytes;

fn process(pid: u32, parent: u32, state: char, title: &str) -> ProcessFacts {
    ProcessFacts {
        pid,
        parent,
        state,
        name: title.chars().take(15).collect(),
        command: if state == 'Z' { Vec::new() } else { vec![title.to_owned()] },
        owner: Owner::Own,
        resident: Bytes::ZERO,
        locked: Bytes::ZERO,
        device_files: Some(BTreeSet::new()),
        segments: BTreeSet::new(),
        port: Port::Free,
    }
}

fn facts(processes: Vec<ProcessFacts>) -> Facts {
    Facts { processes: Some(processes), ..Facts::default() }
}

fn kinds(facts: &Facts) -> Vec<Kind> {
    judge(facts).findings.iter().map(|finding| finding.kind).collect()
}

fn commands(steps: &[Step]) -> Vec<&str> {
    steps.iter().filter_map(|step| step.command.as_deref()).collect()
}

#[test]
fn a_worker_is_an_orphan_once_its_front_is_gone() {
    let front = process(10, 1, 'S', "llama-server");
    let worker = |parent| process(11, parent, 'S', "sglang::scheduler");
    let shell = process(9, 1, 'S', "bash");
    let with = |all: &[&ProcessFacts]| facts(all.iter().map(|p| (*p).clone()).collect());
    assert_eq!(kinds(&with(&[&front, &worker(10)])), [Kind::Server, Kind::Server]);
    assert_eq!(kinds(&with(&[&worker(1)])), [Kind::Orphan]);
    // The parent is gone, and this is another process space.
    assert_eq!(kinds(&with(&[&worker(10)])), [Kind::Orphan]);
    // A script of one's own that started the engine.
    assert_eq!(kinds(&with(&[&shell, &worker(9)])), [Kind::Server]);
    // The server is the first process of its container.
    let first = process(1, 0, 'S', "llama-server");
    assert_eq!(kinds(&with(&[&first, &worker(1)])), [Kind::Server, Kind::Server]);
}

#[test]
fn commands_take_rights_where_a_process_is_somebody_elses() {
    let mut front = process(10, 1, 'S', "llama-server");
    front.owner = Owner::Other;
    let judgement = judge(&facts(vec![front]));
    assert_eq!(commands(&judgement.free), ["sudo kill -TERM 10", "sudo kill -KILL 10"]);
    assert!(!judgement.clear);
}

#[test]
fn zombies_of_the_first_process_take_a_new_container() {
    let judgement = judge(&facts(vec![process(12, 1, 'Z', "sglang::scheduler_TP0")]));
    assert_eq!(commands(&judgement.free), Vec::<&str>::new());
    assert!(judgement.free[0].text.contains("--init"), "{:?}", judgement.free);
}

#[test]
fn a_full_control_group_and_a_shared_memory_below_its_baseline_are_in_the_way() {
    let host = HostFacts {
        total: Bytes::gib(128),
        headroom: Some(Bytes::gib(70)),
        locked: None,
        unevictable: None,
        cgroup: Some((Bytes::gib(61), Bytes::gib(64))),
    };
    let mut facts = Facts { host: Some(host), baseline: Some(Bytes::gib(100)), ..Facts::default() };
    assert_eq!(kinds(&facts), [Kind::Device, Kind::Cgroup]);
    facts.baseline = Some(Bytes::gib(64));
    facts.host = Some(HostFacts { cgroup: Some((Bytes::gib(50), Bytes::gib(64))), ..host });
    assert!(judge(&facts).clear);
}

#[test]
fn a_log_alone_gives_the_steps_of_a_relaunch() {
    let crash = Crash {
        server: Server::Sglang,
        device: Some(3),
        ranks: vec!["TP3".to_owned()],
        baseline: Some(Bytes::from_gib_f64(94.04)),
    };
    let steps = after_crash(&crash);
    let all = commands(&steps).join("\n");
    assert!(all.contains("-i 3") && all.contains("sglang::"), "{all}");
    let last = steps.last().unwrap();
    assert!(last.text.contains("device 3 shows at least 94.04 GiB"), "{last:?}");
    let unknown = Crash { server: Server::Vllm, device: None, ranks: Vec::new(), baseline: None };
    assert!(after_crash(&unknown).iter().all(|step| !step.text.contains("0 B")));
}
