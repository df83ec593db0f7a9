//! The founding margin, end to end on the simulator, with clients written out.

use super::*;
use crate::{assemble, scenario::Scenario, start};
use plimsoll_backend_sim::SimBackend;
use plimsoll_core::{
    engine::serving::{Arrival, Sampling, ServeEnd},
    kv::Runs,
    sched::{Finish, NewRequest, RequestId},
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
    let make = |spec: &_| Ok(Box::new(SimBackend::new(Clone::clone(spec))?) as start::Machine);
    let (ran, mut machine) = start::run_on(&assembled.case, make).unwrap();
    let limits = Limits { max_steps: 100_000, max_time: Nanos(86_400_000_000_000) };
    serve(&assembled, &ran, machine.as_mut(), Load { clients, changes: &[], limits }).unwrap()
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
