//! A server without memory: the scheduler, a clock, and what a watcher would be told.

use super::*;
use crate::sched::{Scheduler, Turn, sglang::SglangScheduler};

/// When decisions of a result are stamped in the overlap loop, where the next pass is launched before.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stamps {
    /// With the end of the latest pass.
    AtOnce,
    /// With the end of the pass whose result it is.
    OfTheResult,
}

/// How long a pass takes: something that differs from pass to pass.
fn elapsed(batch: &Batch) -> u64 {
    3_000 + 7 * batch.prefix_tokens() + 31 * batch.tokens()
}

/// Turns until nothing is left to do, or `turns` are over.
pub(super) fn live(
    config: &SglangConfig,
    arrivals: Vec<Arrival>,
    stamps: Stamps,
    turns: u64,
) -> Vec<Told> {
    let mut scheduler = SglangScheduler::new(config.clone()).unwrap();
    let mut arrivals = arrivals.into_iter().peekable();
    let (mut told, mut log) = (Vec::new(), Vec::new());
    let (mut now, mut before, mut idle) = (0, 0, 0);
    let note = |log: &mut Vec<Decision>, told: &mut Vec<Told>, now: u64| {
        told.extend(log.drain(..).map(|decision| Told::Decided(decision, Nanos(now))));
    };
    for _ in 0..turns {
        while let Some(arrival) = arrivals.next_if(|arrival| arrival.at.0 <= now) {
            told.push(Told::Arrived(arrival.clone()));
            scheduler.submit(arrival.request, &mut log);
            note(&mut log, &mut told, now);
        }
        let turn = scheduler.turn(&mut log);
        note(&mut log, &mut told, now);
        let Ok(turn) = turn else { break };
        let ended = now;
        if let Turn::Run(batch) = turn {
            idle = 0;
            let (at, elapsed) = (Nanos(now), Nanos(elapsed(&batch)));
            now += elapsed.0;
            let (usage, beside) = (scheduler.usage(), scheduler.beside(&batch));
            told.push(Told::Passed { batch, at, elapsed, usage, beside });
        } else {
            idle += 1;
        }
        let result = match (config.loop_kind, stamps) {
            (LoopKind::Overlap, Stamps::OfTheResult) => ended.max(before),
            _ => now,
        };
        let completed = scheduler.complete(&mut log);
        note(&mut log, &mut told, result);
        before = result;
        if completed.is_err() {
            break;
        }
        if idle > 3 {
            let Some(next) = arrivals.peek() else { break };
            (now, idle) = (now.max(next.at.0), 0);
        }
    }
    told
}
