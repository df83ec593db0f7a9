//! Ballast: what every backend must do, and what only real memory shows.

use super::support::{CHILD, Ended, build, child as run_child};
use plimsoll_backend_cuda::{
    CudaBackend, CudaSpec, Declared, HostSpec, OpenError, RankSpec, Share,
};
use plimsoll_core::{
    backend::{
        Backend, BackendError, KvMove, Place, Rank, StepWork,
        conformance::{Bench, checks},
    },
    memory::ledger::Account,
    sched::Mode,
    units::{Bytes, Nanos},
};
use std::path::Path;

/// A share of `capacity`, 12 MiB of it reserved and 20 MiB held by others.
pub(crate) fn share(capacity: Bytes, granularity: Bytes) -> Declared {
    let driver_reserve = Bytes::mib(12);
    Declared {
        capacity,
        tool_capacity: Some(capacity),
        total: Some(capacity.saturating_sub(driver_reserve)),
        driver_reserve,
        others: Bytes::mib(20),
        granularity,
    }
}

/// A host of which 300 MiB are free.
pub(crate) const HOST: HostSpec =
    HostSpec { available: Some(Bytes::mib(300)), pinned_limit: Bytes::mib(64) };

/// Two ranks on one card and a weaker one on another.
pub(crate) fn three_ranks(granularity: Bytes) -> CudaSpec {
    let rank = |device, mib| RankSpec {
        device,
        share: Share::Declared(share(Bytes::mib(mib), granularity)),
    };
    let mut spec = CudaSpec::of(vec![rank(0, 512), rank(0, 512), rank(1, 400)]);
    spec.host = HOST;
    spec
}

fn whole() -> CudaSpec {
    let mut spec = CudaSpec::whole_cards(1);
    spec.host = HOST;
    spec
}

fn conforms(spec: &CudaSpec, bench: &Bench) {
    for (name, check) in checks() {
        let mut machine = CudaBackend::open(spec).unwrap();
        assert_eq!(check(&mut machine, bench), Ok(()), "{name} on {spec:?}");
    }
}

fn open_error(spec: &CudaSpec) -> String {
    match CudaBackend::open(spec) {
        Ok(_) => "opened".to_owned(),
        Err(error) => error.to_string(),
    }
}

/// Not a case of its own: what the others start.
#[test]
fn child() {
    let Some(part) = std::env::var_os(CHILD) else { return };
    match part.to_str().unwrap() {
        "declared ranks conform" => {
            for granularity in [Bytes::ZERO, Bytes::mib(2)] {
                conforms(&three_ranks(granularity), &Bench::exact(Bytes::mib(2)));
            }
        }
        "a whole card conforms" => {
            // The driver keeps a page for graphs until the last is gone.
            let slack = Bytes::mib(2);
            let bench = Bench { unit: Bytes::mib(2), device_slack: slack, host_slack: Bytes::ZERO };
            conforms(&whole(), &bench);
        }
        "open" => println!("{}", open_error(&three_ranks(Bytes::ZERO))),
        "open whole" => println!("{}", open_error(&whole())),
        "shared whole" => {
            let mut spec = three_ranks(Bytes::ZERO);
            spec.ranks[1].share = Share::Whole;
            println!("{}", open_error(&spec));
        }
        "the card agrees" => the_card_agrees(),
        "a whole card" => a_whole_card(),
        "graphs" => graphs(),
        "host pools" => host_pools(),
        other => panic!("no part {other}"),
    }
}

fn start(part: &str, settings: &[(&str, &str)]) -> Option<Ended> {
    let folder = build(&[])?;
    Some(run_child("ballast::child", part, &folder, settings))
}

const TWO_CARDS: [(&str, &str); 2] =
    [("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_TOTAL", "4294967296")];

#[test]
fn declared_ranks_conform() {
    let Some(ended) = start("declared ranks conform", &TWO_CARDS) else { return };
    ended.nothing_leaked();
    assert!(ended.report["copied_bytes"] > 0 && ended.report["launches"] > 0);
}

#[test]
fn a_whole_card_conforms() {
    for settings in [&[][..], &[("FAKE_CUDA_NVML", "0")], &[("FAKE_CUDA_FOREIGN", "1073741824")]] {
        let Some(ended) = start("a whole card conforms", settings) else { return };
        ended.nothing_leaked();
    }
}

#[test]
fn what_cannot_be_opened_says_why() {
    for (part, settings, expected) in [
        (
            "open",
            &[("FAKE_CUDA_DEVICES", "1")][..],
            "there is no CUDA device 1: the driver shows 1",
        ),
        (
            "open",
            &[("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_TOTAL", "1073741824")],
            "declare 1000.00 MiB",
        ),
        ("open whole", &[("FAKE_CUDA_TOTAL", "1000000")], "device 0 has no room for a context"),
        ("open whole", &[("FAKE_CUDA_INIT", "100")], "shows no device"),
        ("open whole", &[("FAKE_CUDA_VERSION", "10010")], "too old (CUDA 10.1)"),
        ("shared whole", &[("FAKE_CUDA_DEVICES", "2")], "device 0 is given to several ranks"),
    ] {
        let Some(ended) = start(part, settings) else { return };
        assert!(ended.text.contains(expected), "{settings:?}: {}", ended.text);
        ended.nothing_leaked();
    }
    let Some(folder) = build(&["-DFAKE_OLD"]) else { return };
    let ended = run_child("ballast::child", "open whole", &folder, &[]);
    assert!(ended.text.contains("too old (it has no cuMem"), "{}", ended.text);
}

#[test]
fn no_driver_is_an_answer() {
    let empty = Path::new(env!("CARGO_TARGET_TMPDIR")).join("no-driver");
    std::fs::create_dir_all(&empty).unwrap();
    // On a machine with a device the other tests say what happens.
    if let Err(OpenError::Probe(error)) = CudaBackend::open(&whole()) {
        let ended = run_child("ballast::child", "open whole", &empty, &[]);
        assert!(ended.text.contains(&error.to_string()), "{}", ended.text);
    }
}

/// The declaration decides; the card's own reading follows it to the page, and its driver refuses
/// what the declaration refuses.
fn the_card_agrees() {
    let mut spec = CudaSpec::on_one_card(0, &[share(Bytes::gib(1), Bytes::ZERO)]);
    spec.host = HOST;
    let mut machine = CudaBackend::open(&spec).unwrap();
    let rank = Rank(0);
    let agree = |machine: &mut CudaBackend| {
        let reading = machine.memory(rank).unwrap();
        let measured = reading.measured_free.unwrap();
        let apart = measured.0.abs_diff(reading.free.0);
        assert!(apart < Bytes::mib(2).0, "declared {:?}, measured {measured:?}", reading.free);
        reading.free
    };
    assert_eq!(agree(&mut machine), Bytes::mib(1024 - 12 - 20));
    let pool = machine.allocate(rank, Account::KvPool, Place::Device, Bytes::mib(700)).unwrap();
    agree(&mut machine);
    let odd = Bytes(Bytes::mib(3).0 + 17);
    let small = machine.allocate(rank, Account::Workspaces, Place::Device, odd).unwrap();
    agree(&mut machine);
    machine.set_others(rank, Bytes::mib(200)).unwrap();
    let free = agree(&mut machine);
    let refused = machine.allocate(rank, Account::Activations, Place::Device, Bytes::mib(400));
    let due = BackendError::OutOfMemory {
        rank,
        account: Account::Activations,
        requested: Bytes::mib(400),
        free,
    };
    assert_eq!(refused, Err(due));
    let report = machine.report();
    assert_eq!((report.refusals_confirmed, report.refusals_disputed), (1, 0));
    assert_eq!(report.cards[0].context, Bytes::mib(512 + 4));
    machine.free(pool).unwrap();
    machine.free(small).unwrap();
    machine.set_others(rank, Bytes::ZERO).unwrap();
    assert_eq!(agree(&mut machine), Bytes::mib(1024 - 12));
}

#[test]
fn the_card_agrees_with_the_declaration() {
    if let Some(ended) = start("the card agrees", &[]) {
        ended.nothing_leaked();
    }
}

/// 3 GiB of others, 512 MiB of context and 4 MiB of staging buffers on a card of 8 GiB.
fn a_whole_card() {
    let mut machine = CudaBackend::open(&whole()).unwrap();
    let rank = Rank(0);
    let reading = machine.memory(rank).unwrap();
    println!("{reading:?}");
    println!("{:?}", machine.held(rank).unwrap());
    let largest = reading.free;
    let beyond = machine.allocate(rank, Account::KvPool, Place::Device, Bytes::gib(9));
    assert!(
        matches!(beyond, Err(BackendError::TooLarge { capacity, .. }) if capacity == Bytes::gib(8))
    );
    let pool = machine.allocate(rank, Account::KvPool, Place::Device, largest).unwrap();
    assert_eq!(machine.memory(rank).unwrap().free, Bytes::ZERO);
    let one = machine.allocate(rank, Account::Activations, Place::Device, Bytes(1));
    assert!(matches!(one, Err(BackendError::OutOfMemory { free: Bytes::ZERO, .. })), "{one:?}");
    machine.free(pool).unwrap();
    // A pass writes into live activation memory, segments and mapped parts alike.
    machine.allocate(rank, Account::Activations, Place::Device, Bytes(5)).unwrap();
    let range = machine.reserve(rank, Account::Activations, Bytes::gib(9)).unwrap();
    machine.map(range, Bytes::mib(20), Bytes::mib(20)).unwrap();
    let step = StepWork { mode: Mode::Decode, tokens: 1, requests: 1, time: Nanos(5) };
    let done = machine.execute(&step).unwrap();
    assert_eq!(done.elapsed, Nanos(5));
    assert!(done.measured.unwrap() > Nanos(0));
    machine.move_kv(rank, KvMove::ToHost, Bytes::gib(1)).unwrap();
    let report = machine.report();
    assert_eq!((report.moved, report.copied), (Bytes::gib(1), Bytes::mib(64)));
}

#[test]
fn a_whole_card_reads_itself() {
    let others = [("FAKE_CUDA_FOREIGN", "3221225472")];
    let Some(ended) = start("a whole card", &others) else { return };
    ended.nothing_leaked();
    let text = &ended.text;
    assert!(text.contains("capacity: Some(9235857408 B), total: Some(8589934592 B)"), "{text}");
    assert!(text.contains("others: Some(3221225472 B)"), "{text}");
    assert!(text.contains("(DriverReserve, 645922816 B), (OtherPrograms, 3221225472 B)"), "{text}");
    assert!(text.contains("(Context, 541065216 B)"), "{text}");
    // Without NVML a context and other programs cannot be told apart.
    let blind = [others[0], ("FAKE_CUDA_NVML", "0")];
    let text = start("a whole card", &blind).unwrap().text;
    assert!(text.contains("capacity: None, total: Some(8589934592 B)"), "{text}");
    assert!(text.contains("[(Context, 3762290688 B), (Free,"), "{text}");
}

/// 64 nodes of 1 MiB cost more than 40 MiB planned; 4 nodes less.
fn graphs() {
    let mut spec = CudaSpec::on_one_card(0, &[share(Bytes::gib(1), Bytes::ZERO)]);
    spec.host = HOST;
    let mut machine = CudaBackend::open(&spec).unwrap();
    let rank = Rank(0);
    let measured = |machine: &mut CudaBackend| {
        let reading = machine.memory(rank).unwrap();
        (reading.free, reading.measured_free.unwrap())
    };
    let before = measured(&mut machine);
    let small = machine.capture(rank, 1, Bytes::mib(40)).unwrap();
    assert_eq!(machine.report().graph_cost, Bytes::mib(4));
    let after = measured(&mut machine);
    assert_eq!(before.0.0 - after.0.0, Bytes::mib(40).0);
    assert_eq!(before.1.0 - after.1.0, Bytes::mib(40).0);
    let large = machine.capture(rank, 160, Bytes::mib(40)).unwrap();
    assert_eq!(machine.report().graph_cost, Bytes::mib(68));
    let last = measured(&mut machine);
    assert_eq!(after.0.0 - last.0.0, Bytes::mib(40).0);
    assert_eq!(after.1.0 - last.1.0, Bytes::mib(64).0);
    // What graphs took beyond the plan comes from the filler, not from the rank.
    let free = last.0;
    let rest = machine.allocate(rank, Account::KvPool, Place::Device, free).unwrap();
    assert!(machine.report().filler_given >= Bytes::mib(24));
    for segment in [rest, large, small] {
        machine.free(segment).unwrap();
    }
    assert_eq!(machine.memory(rank).unwrap().free, before.0);
}

#[test]
fn graphs_are_captured_and_topped_up() {
    let Some(ended) = start("graphs", &[("FAKE_CUDA_NODE", "1048576")]) else { return };
    ended.nothing_leaked();
    assert_eq!(ended.report["launches"], 2);
}

/// 64 MiB may be pinned; what is beyond is accounted without memory.
fn host_pools() {
    let mut machine = CudaBackend::open(&whole()).unwrap();
    let take = |machine: &mut CudaBackend, mib| {
        machine.allocate(Rank(0), Account::KvPool, Place::Host, Bytes::mib(mib))
    };
    let pinned = take(&mut machine, 60).unwrap();
    assert_eq!(machine.report().host_accounted_only, Bytes::ZERO);
    let counted = take(&mut machine, 100).unwrap();
    assert_eq!(machine.report().host_accounted_only, Bytes::mib(100));
    assert_eq!(machine.host_available().unwrap(), Bytes::mib(140));
    assert!(matches!(take(&mut machine, 141), Err(BackendError::HostOutOfMemory { .. })));
    assert!(matches!(take(&mut machine, 301), Err(BackendError::TooLarge { .. })));
    machine.free(counted).unwrap();
    machine.free(pinned).unwrap();
    assert_eq!(machine.host_available().unwrap(), Bytes::mib(300));
}

#[test]
fn host_pools_are_pinned_to_a_limit() {
    if let Some(ended) = start("host pools", &[]) {
        ended.nothing_leaked();
    }
}
