//! The founding margin, end to end on the simulator, with clients written out.

use super::*;
use crate::{assemble, scenario::Scenario, start};
use plimsoll_core::{
    engine::serving::{Arrival, Sampling, ServeEnd},
    kv::Runs,
    sched::{Finish, LogDetail, NewRequest, RequestId},
    units::Nanos,
};
use std::{collections::VecDeque, path::Path};

/// Requests at fixed times.
struct List(VecDeque<Arrival>);

impl List {
    fn of(requests: impl IntoIterator<Item = (u64, u64, u64)>) -> Self {
        let arrival = |(id, (seconds, prompt, output)): (u64, (u64, u64, u64))| Arrival {
            at: Nanos(seconds * 1_000_000_000),
            request: NewRequest::plain(RequestId(id), Runs::of((id + 1) << 32, prompt), output),
            sampling: Sampling::default(),
        };
        Self((0..).zip(requests).map(arrival).collect())
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

const KIMI: &str = "
name: test/kimi
why: the founding margin
source: solved from two starts
machine:
  device: RTX PRO 6000 Blackwell
  readings:
    free_before_load: { value: 94.0367 GiB, calibrated: true }
    weights: { value: 72.32827 GiB, calibrated: true }
    graph_memory: { value: 3.7607 GiB, calibrated: true }
engine:
  version: 0.5.8
  command: python -m sglang.launch_server --model-path moonshotai/Kimi-K2.5 --tp 8 --mem-fraction-static FRACTION
";

fn run(fraction: &str, clients: &mut List) -> ServedRun {
    let text = KIMI.replace("FRACTION", fraction);
    let scenario = Scenario::parse("kimi.yaml", &text, &[]).unwrap();
    let assembled = assemble::of_scenario(&scenario, Path::new("kimi.yaml")).unwrap();
    let (ran, mut machine) =
        start::run_on(&assembled.case, start::simulator, &mut Vec::new()).unwrap();
    let limits = Limits { max_steps: 100_000, max_time: Nanos(86_400_000_000_000) };
    serve(
        &assembled,
        &ran,
        machine.as_mut(),
        Load {
            clients,
            changes: &[],
            limits,
            detail: LogDetail::Decisions,
            interrupted: &|| false,
        },
        &mut Vec::new(),
    )
    .unwrap()
}

fn founding() -> List {
    let short = (0..150).map(|at| (at / 10, 300 + at % 7 * 50, 200));
    List::of(short.chain((0..32).map(|at| (20, 9000 + at * 100, 200))))
}

#[test]
fn the_thin_margin_dies_in_a_prefill_and_the_wide_one_lives() {
    let died = run("0.93", &mut founding());
    let ServeEnd::OutOfMemory(failure) = &died.served.end else { panic!("{:?}", died.served) };
    assert_eq!(failure.refused.buffer.to_string(), "layer 1 mlp.experts.intermediate_cache13");
    println!("{:?}\n{:?}", failure, died.served.totals);
    let lived = run("0.85", &mut founding());
    println!("{:?}", lived.served);
    assert_eq!(lived.served.end, ServeEnd::Finished);
    assert_eq!(lived.served.totals.finished, 182);
}

const LAPTOP: &str = "
name: test/laptop
why: the empty pool
source: solved from the printed tokens
machine:
  device: { name: Apple 64 GB, capacity: 53084 MiB }
  readings:
    host_available_at_sizing: { value: AVAILABLE GiB, calibrated: true }
    mlx_active: { value: 1.15 GiB, calibrated: true }
engine:
  version: 0.5.23
  environment: { SGLANG_USE_MLX: \"1\" }
  command: python -m sglang.launch_server --model-path Qwen/Qwen3-0.6B --disable-cuda-graph FRACTION
";

#[test]
fn the_empty_pool() {
    use plimsoll_core::{backend::Rank, units::Bytes};
    for (available, fraction, growth) in
        [("38.288195", "", 20), ("48.48562", "--mem-fraction-static 0.4", 20), ("38.288195", "", 0)]
    {
        let text = LAPTOP.replace("FRACTION", fraction).replace("AVAILABLE", available);
        let scenario = Scenario::parse("kimi.yaml", &text, &[]).unwrap();
        let assembled = assemble::of_scenario(&scenario, Path::new("kimi.yaml")).unwrap();
        let (ran, mut machine) =
            start::run_on(&assembled.case, start::simulator, &mut Vec::new()).unwrap();
        let limits = Limits { max_steps: 100_000, max_time: Nanos(86_400_000_000_000) };
        let changes: Vec<TimedChange> = (1..=20)
            .map(|at| TimedChange {
                when: plimsoll_core::engine::serving::When::At(Nanos(at * 500_000_000)),
                change: plimsoll_core::engine::serving::Change::DeviceOthers {
                    rank: Rank(0),
                    held: Bytes::gib(growth * at / 20),
                },
            })
            .collect();
        let mut clients = List::of((0..128).map(|_| (0, 500, 128)));
        let run = serve(
            &assembled,
            &ran,
            machine.as_mut(),
            Load {
                clients: &mut clients,
                changes: &changes,
                limits,
                detail: LogDetail::Decisions,
                interrupted: &|| false,
            },
            &mut Vec::new(),
        )
        .unwrap();
        println!("{:?} {:?}", run.served.end, run.served.totals);
    }
}
