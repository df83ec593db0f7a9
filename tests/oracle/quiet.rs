//! Quiet turns skipped against turns taken, on the workloads of all traces: decisions, turn by turn, and use of
//! the pool are the same.

use super::{sched, traces, vllm_sched};
use plimsoll_core::sched::{
    Decision, LogDetail, NewRequest, RequestId, Scheduler, Turn, Usage, sglang::SglangScheduler,
    vllm::VllmScheduler,
};
use serde_json::Value;

/// The requests and aborts of a trace, with their turns.
struct Load {
    requests: Vec<(u64, NewRequest)>,
    aborts: Vec<(u64, RequestId)>,
    turns: u64,
}

impl Load {
    fn of(trace: &Value, request: impl Fn(usize, &Value) -> NewRequest) -> Self {
        let list = |key: &str| trace[key].as_array().cloned().unwrap_or_default();
        let specs = list("requests");
        let arrival = |(at, spec): (usize, &Value)| {
            let refused = !trace["rejected"][format!("r{at}")].is_null();
            (!refused).then(|| (spec["step"].as_u64().unwrap(), request(at, spec)))
        };
        let abort = |abort: &Value| {
            let prefix = abort["rid"].as_str().unwrap();
            let named = |spec: &Value| spec["rid"].as_str().is_some_and(|r| r.starts_with(prefix));
            let turn = abort["step"].as_u64().unwrap();
            let ids = (0..).zip(&specs).filter(|(_, spec)| named(spec));
            ids.map(|(at, _)| (turn, RequestId(at))).collect::<Vec<_>>()
        };
        let last = list("steps").last().and_then(|step| step["step"].as_u64()).unwrap_or(0);
        Self {
            requests: specs.iter().enumerate().filter_map(arrival).collect(),
            aborts: list("aborts").iter().flat_map(abort).collect(),
            turns: last + 1,
        }
    }

    /// Turns from `turn` on before the next one in which something comes from outside.
    fn undisturbed(&self, turn: u64) -> u64 {
        let arrivals = self.requests.iter().map(|(at, _)| *at);
        let due = arrivals.chain(self.aborts.iter().map(|(at, _)| *at)).filter(|at| *at >= turn);
        due.min().unwrap_or(self.turns).min(self.turns) - turn
    }
}

/// What a scheduler did under a load.
#[derive(PartialEq, Debug, Default)]
struct Story {
    decisions: Vec<(u64, Decision)>,
    /// Use of the pool after each turn that was taken, and after each stretch that was skipped.
    usage: Vec<(u64, Usage)>,
    died: bool,
}

/// Drives a scheduler; answers its story and how many turns were skipped.
fn drive(scheduler: &mut dyn Scheduler, load: &Load, skips: bool) -> (Story, u64) {
    scheduler.set_detail(LogDetail::Decisions);
    let (mut story, mut log, mut turn, mut skipped) = (Story::default(), Vec::new(), 0, 0);
    while turn < load.turns && !story.died {
        let quiet = scheduler.quiet_turns().min(load.undisturbed(turn));
        if skips && quiet > 0 {
            scheduler.skip(quiet);
            skipped += quiet;
            turn += quiet;
            story.usage.push((turn, scheduler.usage()));
            continue;
        }
        for (_, request) in load.requests.iter().filter(|(at, _)| *at == turn) {
            scheduler.submit(request.clone(), &mut log);
        }
        for (_, request) in load.aborts.iter().filter(|(at, _)| *at == turn) {
            scheduler.abort(*request, &mut log);
        }
        let ran: Result<Turn, _> = scheduler.turn(&mut log);
        story.died = ran.is_err() || scheduler.complete(&mut log).is_err();
        turn += 1;
        story.decisions.extend(log.drain(..).map(|decision| (turn, decision)));
        story.usage.push((turn, scheduler.usage()));
    }
    (story, skipped)
}

/// Compares both ways on every trace; answers how many turns were skipped, of how many.
fn check(
    engine: &str,
    release: &str,
    load: impl Fn(&Value) -> Load,
    scheduler: impl Fn(&Value) -> Box<dyn Scheduler>,
) -> (u64, u64) {
    let (mut skipped, mut turns) = (0, 0);
    for (name, trace) in traces(engine, release) {
        let load = load(&trace);
        let (mut taken, _) = drive(scheduler(&trace).as_mut(), &load, false);
        let (short, count) = drive(scheduler(&trace).as_mut(), &load, true);
        let told = |at: u64| short.usage.binary_search_by_key(&at, |(at, _)| *at).is_ok();
        taken.usage.retain(|(at, _)| told(*at));
        assert_eq!(short, taken, "{engine} {release} {name}");
        skipped += count;
        turns += load.turns;
    }
    println!("{engine} {release}: {skipped} of {turns} turns skipped, nothing else changed");
    (skipped, turns)
}

#[test]
fn skipping_is_stepping_on_the_workloads_of_all_traces() {
    let (mut skipped, mut turns) = (0, 0);
    let mut add = |(more, of): (u64, u64)| {
        skipped += more;
        turns += of;
    };
    for release in ["0.5.8", "0.5.23"] {
        let load = |trace: &Value| Load::of(trace, sched::request);
        let scheduler = |trace: &Value| -> Box<dyn Scheduler> {
            Box::new(SglangScheduler::new(sched::config(trace)).unwrap())
        };
        add(check("sched", release, load, scheduler));
    }
    for release in ["0.11", "0.19", "0.33"] {
        let load = |trace: &Value| Load::of(trace, vllm_sched::request);
        let scheduler = |trace: &Value| -> Box<dyn Scheduler> {
            Box::new(VllmScheduler::new(vllm_sched::config(trace)).unwrap())
        };
        add(check("vllm-sched", release, load, scheduler));
    }
    assert!(turns == 0 || skipped > turns / 10, "{skipped} of {turns}");
}
