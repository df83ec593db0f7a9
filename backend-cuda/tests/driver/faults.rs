//! Faults at every point: a refused request changes nothing, a lost device is an answer, and nothing
//! leaks or panics.

use super::ballast::{HOST, share, three_ranks};
use super::support::{CHILD, Ended, build, child as run_child};
use plimsoll_backend_cuda::{CudaBackend, CudaSpec, OpenError, Share};
use plimsoll_core::{
    backend::{
        Backend, BackendError, KvMove, MemoryReading, Place, RangeId, Rank, SegmentId, StepWork,
    },
    memory::ledger::Account,
    sched::Mode,
    units::{Bytes, Nanos},
};

/// What a machine says of itself, but for what a card measured.
type Seen = (Vec<MemoryReading>, Vec<Vec<(Account, Bytes)>>, Bytes);

fn see(machine: &mut CudaBackend) -> Result<Seen, BackendError> {
    let ranks = (0..machine.ranks()).map(Rank);
    let mut readings = Vec::new();
    let mut held = Vec::new();
    for rank in ranks {
        readings.push(MemoryReading { measured_free: None, ..machine.memory(rank)? });
        held.push(machine.held(rank)?);
    }
    Ok((readings, held, machine.host_available()?))
}

/// Counts the answers of a life.
#[derive(Default, Debug)]
struct Answers {
    done: u32,
    out_of_memory: u32,
    lost: Vec<String>,
}

struct Life {
    machine: CudaBackend,
    answers: Answers,
}

impl Life {
    /// One call. A refusal changes nothing; after a loss every call answers so.
    fn step<T>(
        &mut self,
        call: impl FnOnce(&mut CudaBackend) -> Result<T, BackendError>,
    ) -> Option<T> {
        let before = see(&mut self.machine);
        match call(&mut self.machine) {
            Ok(value) => {
                self.answers.done += 1;
                return Some(value);
            }
            Err(BackendError::OutOfMemory { .. } | BackendError::HostOutOfMemory { .. }) => {
                self.answers.out_of_memory += 1;
                assert_eq!(see(&mut self.machine), before, "a refusal changed something");
            }
            Err(BackendError::DeviceLost(text)) => self.answers.lost.push(text),
            Err(other) => panic!("{other:?}"),
        }
        None
    }

    fn take(&mut self, rank: Rank, account: Account, place: Place, mib: u64) -> Option<SegmentId> {
        self.step(|machine| machine.allocate(rank, account, place, Bytes::mib(mib)))
    }

    fn serve(&mut self) {
        let rank = Rank(0);
        let mut segments = Vec::new();
        for rank in (0..self.machine.ranks()).map(Rank) {
            for account in [Account::Weights, Account::KvPool, Account::Workspaces] {
                segments.extend(self.take(rank, account, Place::Device, 60));
            }
            segments.extend(self.step(|machine| machine.capture(rank, 8, Bytes::mib(6))));
        }
        segments.extend(self.take(rank, Account::KvPool, Place::Host, 30));
        let range: Option<RangeId> =
            self.step(|machine| machine.reserve(rank, Account::Activations, Bytes::gib(1)));
        if let Some(range) = range {
            let mapped = self.step(|machine| machine.map(range, Bytes::ZERO, Bytes::mib(40)));
            let live = self.take(rank, Account::Activations, Place::Device, 20);
            let work = StepWork { mode: Mode::Prefill, tokens: 64, requests: 1, time: Nanos(9) };
            self.step(|machine| machine.execute(&work));
            if mapped.is_some() {
                self.step(|machine| machine.unmap(range, Bytes::ZERO, Bytes::mib(40)));
            }
            segments.extend(live);
            self.step(|machine| machine.unreserve(range));
        }
        for mib in [50, 30, 90] {
            self.step(|machine| machine.set_others(rank, Bytes::mib(mib)));
        }
        for way in [KvMove::ToHost, KvMove::ToDevice] {
            self.step(|machine| machine.move_kv(rank, way, Bytes::mib(5)));
        }
        // Half of the segments are left to the end of the machine.
        for segment in segments.into_iter().step_by(2) {
            self.step(|machine| machine.free(segment));
        }
    }
}

/// A life on `spec`; what could not be opened is an answer too.
fn live(spec: &CudaSpec) {
    let machine = match CudaBackend::open(spec) {
        Ok(machine) => machine,
        Err(error @ (OpenError::CardFull(_) | OpenError::TooLittle { .. })) => {
            println!("not opened: {error}");
            return;
        }
        // The device is lost, or the driver does not even begin.
        Err(error @ (OpenError::Backend(BackendError::DeviceLost(_)) | OpenError::Probe(_))) => {
            println!("lost: {error}");
            return;
        }
        Err(other) => panic!("{other:?}"),
    };
    let mut life = Life { machine, answers: Answers::default() };
    life.serve();
    println!("lived: {:?}", life.answers);
}

/// Parts of ranges: a mapping is split, and what stays is mapped anew.
fn split() {
    let mut spec = CudaSpec::on_one_card(0, &[share(Bytes::gib(1), Bytes::ZERO)]);
    let Share::Declared(declared) = &mut spec.ranks[0].share else { return };
    declared.others = Bytes::ZERO;
    let Ok(mut machine) = CudaBackend::open(&spec) else {
        println!("not opened");
        return;
    };
    let rank = Rank(0);
    let Ok(range) = machine.reserve(rank, Account::Activations, Bytes::mib(64)) else { return };
    if machine.map(range, Bytes::ZERO, Bytes::mib(40)).is_err() {
        return;
    }
    let held = |machine: &CudaBackend| {
        let rows = machine.held(rank).unwrap();
        rows.iter().find(|row| row.0 == Account::Activations).map_or(Bytes::ZERO, |row| row.1)
    };
    match machine.unmap(range, Bytes::mib(10), Bytes::mib(10)) {
        Ok(()) => assert_eq!(held(&machine), Bytes::mib(30)),
        // What the driver did not give again is missing, and the account says so.
        Err(BackendError::OutOfMemory { requested, .. }) => {
            assert_eq!(held(&machine), Bytes::mib(30).saturating_sub(requested));
            println!("short of {requested}");
        }
        Err(other) => panic!("{other:?}"),
    }
    let total: Bytes = machine.held(rank).unwrap().iter().map(|row| row.1).sum();
    assert_eq!(total, Bytes::gib(1));
    let work = StepWork { mode: Mode::Decode, tokens: 1, requests: 1, time: Nanos(1) };
    machine.execute(&work).unwrap();
}

/// Not a case of its own: what the others start.
#[test]
fn child() {
    let Some(part) = std::env::var_os(CHILD) else { return };
    match part.to_str().unwrap() {
        "declared" => live(&three_ranks(Bytes::mib(2))),
        // A live host reading would move while another process runs.
        "whole" => live(&CudaSpec { host: HOST, ..CudaSpec::whole_cards(2) }),
        "split" => split(),
        other => panic!("no part {other}"),
    }
}

const TWO_CARDS: [(&str, &str); 2] =
    [("FAKE_CUDA_DEVICES", "2"), ("FAKE_CUDA_TOTAL", "4294967296")];

fn start(part: &str, setting: &str, value: i64) -> Option<Ended> {
    let folder = build(&[])?;
    let value = value.to_string();
    let settings = [TWO_CARDS[0], TWO_CARDS[1], (setting, &value)];
    Some(run_child("faults::child", part, &folder, &settings))
}

#[test]
fn a_refusal_at_any_request_leaks_nothing() {
    for part in ["declared", "whole", "split"] {
        let Some(calm) = start(part, "FAKE_CUDA_FAIL_AT", 0) else { return };
        calm.nothing_leaked();
        let requests = calm.report["requests"];
        assert!(requests >= 6, "{:?}", calm.report);
        let mut refused = 0;
        for setting in ["FAKE_CUDA_FAIL_AT", "FAKE_CUDA_FAIL_FROM"] {
            for at in 1..=requests {
                let ended = start(part, setting, at).unwrap();
                ended.nothing_leaked();
                let said = ["not opened", "out_of_memory: ", "short of"];
                let quiet = ended.text.contains("out_of_memory: 0,");
                refused += i64::from(!quiet && said.iter().any(|s| ended.text.contains(s)));
                assert!(!ended.text.contains("lost: [\""), "{}", ended.text);
            }
        }
        // A single refusal may be made good from the filler; one that lasts may not.
        assert!(refused >= requests / 2, "{part}: {refused} of {requests} requests answered");
    }
}

#[test]
fn a_device_lost_at_any_call_is_an_answer() {
    for part in ["declared", "whole"] {
        let Some(calm) = start(part, "FAKE_CUDA_LOST_AT", 0) else { return };
        let calls = calm.report["calls"];
        assert!(calls > 100, "{:?}", calm.report);
        // Every call of opening, and then samples: each costs a process.
        let points = (1..40).chain((40..calls).step_by(usize::try_from(calls / 40).unwrap()));
        let mut lost = 0;
        for at in points {
            let ended = start(part, "FAKE_CUDA_LOST_AT", at).unwrap();
            let named = ended.text.contains("CUDA_ERROR_LAUNCH_FAILED (719)")
                || ended.text.contains("returned CUDA error 719");
            lost += i64::from(named);
            assert_eq!(ended.report["contexts"], 0, "a lost context is released as well");
        }
        assert!(lost >= 60, "{part}: only {lost} losses were seen");
    }
}

#[test]
fn a_lost_device_stays_lost_and_says_by_what() {
    let Some(folder) = build(&[]) else { return };
    for (code, name) in
        [("214", "CUDA_ERROR_ECC_UNCORRECTABLE (214)"), ("4242", "CUDA error 4242 (4242)")]
    {
        let settings = [
            TWO_CARDS[0],
            TWO_CARDS[1],
            ("FAKE_CUDA_LOST_AT", "160"),
            ("FAKE_CUDA_LOST_CODE", code),
        ];
        let ended = run_child("faults::child", "whole", &folder, &settings);
        let text = &ended.text;
        assert!(text.matches(name).count() > 5, "every call after the loss names it: {text}");
    }
}
