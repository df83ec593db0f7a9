//! The run as a still picture, for readers without a script.

use crate::{
    collect::Collected,
    column::base64,
    data::fixed,
    row::{Doing, Row},
};
use plimsoll_core::memory::ledger::Account;
use plimsoll_replay::timeline::{self, Crash, End, Layers, Point, Timeline};

/// The picture in base64, and what it shows in words.
pub(super) fn picture(seen: &Collected) -> Option<(String, String)> {
    let timeline = timeline_of(seen)?;
    let end = match &timeline.end {
        End::Crash(crash) => format!("failure at {}", timeline::time(crash.at_ns)),
        End::Over(outcome) => format!("{outcome} at {}", timeline::time(timeline.end_ns)),
        End::Cut => "cut off".to_owned(),
    };
    let words = format!(
        "Memory of rank {} over time, the pool below it, the queues below that: {end}",
        timeline.rank
    );
    Some((base64(timeline::svg(&timeline).as_bytes()), words))
}

fn timeline_of(seen: &Collected) -> Option<Timeline> {
    let rank = seen.rank();
    let start = seen.served.get(rank as usize)?;
    let others = |row: &Row| row.rank(rank).others.min;
    let least_others = seen.rows.iter().map(others).min().unwrap_or(0);
    let mut held = fixed(start);
    if least_others > 0 {
        held.push((Account::OtherPrograms, least_others));
    }
    let leaked_before = start.of(Account::Unaccounted);
    let point = |row: &Row| {
        let levels = row.rank(rank);
        let live = row.live.max.min(levels.reserved.max);
        Point {
            from_ns: row.from_ns,
            to_ns: row.to_ns,
            doing: match (row.prefills, row.steps) {
                (1.., _) => timeline::Doing::Prefill,
                (0, 1..) => timeline::Doing::Decode,
                (0, 0) => timeline::Doing::Idle,
            },
            layers: Layers {
                others: levels.others.max.saturating_sub(least_others),
                leaked: levels.leaked.max.saturating_sub(leaked_before),
                live,
                cached: levels.reserved.max - live,
            },
            free: levels.free.min,
            used: row.used.max,
            running: row.running.max,
            waiting: row.waiting.max,
        }
    };
    Some(Timeline {
        name: "memory over time".to_owned(),
        rank,
        ranks: u32::try_from(seen.served.len()).unwrap_or(u32::MAX),
        capacity: start.capacity().unwrap_or(0),
        fixed: held,
        pool_tokens: seen.pool_tokens,
        points: seen.rows.iter().filter(|row| row.doing != Doing::End).map(point).collect(),
        end_ns: seen.end_ns,
        end: end(seen),
    })
}

fn end(seen: &Collected) -> End {
    match (&seen.crash, seen.outcome.as_str()) {
        (Some(crash), _) => End::Crash(Crash {
            at_ns: crash.at_ns.unwrap_or(0),
            rank: crash.rank,
            step: crash.step.unwrap_or(0),
            mode: crash.mode.clone(),
            tokens: crash.tokens,
            requests: crash.requests,
            requested: crash.requested,
            free: crash.free,
            allocated: crash.allocated,
            buffer: crash.buffer.clone(),
            message: crash.message.clone(),
        }),
        (None, "") => End::Cut,
        (None, outcome) => End::Over(outcome.to_owned()),
    }
}
