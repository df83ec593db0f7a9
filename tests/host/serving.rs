//! The founding crash in real memory: the same passes, the same end, record by record, with and without
//! expandable segments.

use super::starts::{decisions, in_memory};
use plimsoll_backend_sim::{MachineSpec, SimBackend};
use plimsoll_core::{
    decision::Record,
    engine::serving::{Arrival, Change, Clients, Limits, Sampling, ServeEnd, TimedChange, When},
    kv::Runs,
    sched::{Finish, NewRequest, RequestId},
    units::{Bytes, Nanos},
};
use plimsoll_replay::{
    assemble,
    scenario::Scenario,
    serve::{Load, serve},
    start::{self, CaseError, Machine},
};
use std::{collections::VecDeque, path::Path};

const SECOND: u64 = 1_000_000_000;

const KIMI: &str = "
name: test/kimi
why: the founding margin, in real memory
source: solved from two starts
machine:
  device: RTX PRO 6000 Blackwell
  readings:
    free_before_load: { value: 94.0367 GiB, calibrated: true }
    weights: { value: 72.32827 GiB, calibrated: true }
    graph_memory: { value: 3.7607 GiB, calibrated: true }
engine:
  version: 0.5.8
  command: ENV python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static FRACTION
";

/// Short requests, then long ones.
struct List(VecDeque<Arrival>);

impl List {
    fn founding() -> Self {
        let short = (0..150_u64).map(|n| (n / 10, 300 + n % 7 * 50, 40));
        let long = (0..32_u64).map(|n| (16, 9000 + n * 100, 20));
        let arrivals = (0..).zip(short.chain(long)).map(|(id, (at, prompt, output))| Arrival {
            at: Nanos(at * SECOND),
            request: NewRequest::plain(RequestId(id), Runs::of((id + 1) << 32, prompt), output),
            sampling: Sampling::default(),
        });
        Self(arrivals.collect())
    }
}

impl Clients for List {
    fn take(&mut self, now: Nanos) -> Option<Arrival> {
        self.0.pop_front_if(|arrival| arrival.at <= now)
    }

    fn next_at(&self) -> Option<Nanos> {
        self.0.front().map(|arrival| arrival.at)
    }

    fn finished(&mut self, _: RequestId, _: Finish, _: Nanos) {}

    fn is_done(&self) -> bool {
        self.0.is_empty()
    }
}

/// Start and service on one machine: all records, and the end.
fn life(
    fraction: &str,
    environment: &str,
    make: impl FnOnce(&MachineSpec) -> Result<Machine, CaseError>,
) -> (Vec<Record>, ServeEnd) {
    let text = KIMI.replace("FRACTION", fraction).replace("ENV", environment);
    let scenario = Scenario::parse("kimi.yaml", &text, &[]).unwrap();
    let assembled = assemble::of_scenario(&scenario, Path::new("kimi.yaml")).unwrap();
    let mut records = Vec::new();
    let (ran, mut machine) = start::run_on(&assembled.case, make, &mut records).unwrap();
    let rank = plimsoll_core::backend::Rank(5);
    let at = |seconds| When::At(Nanos(seconds * SECOND));
    let changes = [
        TimedChange { when: at(3), change: Change::DeviceOthers { rank, held: Bytes::mib(300) } },
        TimedChange { when: at(5), change: Change::Leak { rank, bytes: Bytes::mib(6) } },
        TimedChange { when: at(7), change: Change::DeviceOthers { rank, held: Bytes::mib(40) } },
    ];
    let load = Load {
        clients: &mut List::founding(),
        changes: &changes,
        limits: Limits { max_steps: 100_000, max_time: Nanos(86_400 * SECOND) },
        interrupted: &|| false,
    };
    let run = serve(&assembled, &ran, machine.as_mut(), load, &mut records).unwrap();
    (records, run.served.end)
}

#[test]
fn the_founding_crash_and_survival_are_the_same_in_real_memory() {
    for environment in ["", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"] {
        for (fraction, dies) in [("0.93", true), ("0.85", false)] {
            let (simulated, end) =
                life(fraction, environment, |m| Ok(Box::new(SimBackend::new(m.clone())?)));
            let mut meter = plimsoll_backend_host::Meter::default();
            let (really, real_end) = life(fraction, environment, |m| {
                let machine = in_memory(m)?;
                meter = machine.meter();
                Ok(Box::new(machine))
            });
            let name = format!("{fraction} {environment}");
            assert_eq!(matches!(end, ServeEnd::OutOfMemory(_)), dies, "{name}: {end:?}");
            assert_eq!(end, real_end, "{name}");
            let (simulated, really) = (decisions(&simulated), decisions(&really));
            let first = simulated.iter().zip(&really).find(|(a, b)| a != b);
            assert_eq!((first, simulated.len()), (None, really.len()), "{name}");
            assert!(meter.read().touched_peak > Bytes::mib(16), "{name}: {:?}", meter.read());
        }
    }
}
