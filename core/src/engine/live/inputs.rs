//! What came from outside, read back from a log, and a body that repeats its tokens.

use super::{Around, Body, BodyError, Did, Live, LiveError, LiveRow};
use crate::{
    decision::{DecisionSink, Field},
    engine::serving::{Arrival, Sampling, Watcher},
    kv::Runs,
    sched::{Made, NewRequest, RequestId},
    units::Nanos,
};
use std::collections::VecDeque;

/// Something from outside.
#[derive(Clone, PartialEq, Debug)]
pub enum Input {
    /// A request.
    Arrived(Box<NewRequest>),
    /// A request that nobody waits for any more.
    GivenUp(RequestId),
    /// Pages that are to be lent from here on.
    Lend(u64),
}

/// Turns in a row without anything, while somebody waits, that are taken for a recording gone wrong: a server
/// that can do nothing takes no turns until something comes.
const MOST_WAITING: u64 = 10_000;

/// A log in which inputs and tokens contradict each other.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("input {index} comes before turn {turn}, and the one before it before turn {before}")]
pub struct InputsError {
    /// Which, from 0.
    pub index: usize,
    /// Its turn.
    pub turn: u64,
    /// That of the one before.
    pub before: u64,
}

/// All that a live server's decisions depended on, beside its settings.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Inputs {
    inputs: VecDeque<(u64, Input)>,
    tokens: VecDeque<(u32, bool)>,
    steps: u64,
}

impl Inputs {
    /// Adds an input that came before `turn`.
    ///
    /// # Errors
    ///
    /// [`InputsError`] where an earlier input came later.
    pub fn push(&mut self, turn: u64, input: Input) -> Result<(), InputsError> {
        if let Some((before, _)) = self.inputs.back().filter(|(before, _)| *before > turn) {
            return Err(InputsError { index: self.inputs.len(), turn, before: *before });
        }
        self.inputs.push_back((turn, input));
        Ok(())
    }

    /// Adds `steps` passes, whose tokens are `made` in order; those at the places `ended` end their request.
    pub fn passes(&mut self, steps: u64, made: &[u32], ended: &[u64]) {
        self.steps = self.steps.saturating_add(steps);
        let tokens = made.iter().zip(0..).map(|(token, at)| (*token, ended.contains(&at)));
        self.tokens.extend(tokens);
    }

    /// Decides all of it again: `live` is a fresh server with the recorded settings.
    ///
    /// # Errors
    ///
    /// [`LiveError`] of the loop; that the recording ends is none.
    pub fn again(
        mut self,
        live: &mut Live,
        memory: &mut dyn Pages,
        sink: &mut dyn DecisionSink,
        watcher: &mut dyn Watcher,
    ) -> Result<(), LiveError> {
        let tokens = std::mem::take(&mut self.tokens);
        let mut body = Repeated { tokens, steps: self.steps, memory };
        let mut around = Around { body: &mut body, sink, watcher };
        let mut waited = 0_u64;
        loop {
            let turn = live.totals().turns;
            while self.inputs.front().is_some_and(|(at, _)| *at <= turn) {
                if let Some((_, input)) = self.inputs.pop_front() {
                    put(live, input, &mut around)?;
                }
            }
            match live.turn(&mut around) {
                Ok(Did::Nothing) => match self.inputs.front() {
                    Some((turn, _)) if live.is_done() => live.idle_until(*turn),
                    // A turn with a queue that waits for memory is not nothing: the queue keeps its
                    // prefixes fresh.
                    Some(_) if waited < MOST_WAITING => waited += 1,
                    Some(_) | None => break,
                },
                Ok(Did::Pass | Did::GoesOn) => waited = 0,
                Err(LiveError::Body(BodyError::EndOfRecording)) => break,
                Err(error) => return Err(error),
            }
        }
        live.close(sink);
        Ok(())
    }
}

fn put(live: &mut Live, input: Input, around: &mut Around<'_>) -> Result<(), LiveError> {
    match input {
        Input::Arrived(request) => {
            let at = Nanos(0);
            let arrival = Arrival { at, request: *request, sampling: Sampling::default() };
            live.submit(arrival, Vec::<Field>::new(), around);
        }
        Input::GivenUp(request) => live.abort(request, around),
        Input::Lend(target) => {
            live.lend(target, around)?;
        }
    }
    Ok(())
}

/// Memory of the pool's pages without a model.
pub trait Pages {
    /// As [`Body::lend`].
    ///
    /// # Errors
    ///
    /// [`BodyError`].
    fn lend(&mut self, pages: &Runs) -> Result<(), BodyError>;

    /// As [`Body::take_back`].
    ///
    /// # Errors
    ///
    /// [`BodyError`].
    fn take_back(&mut self, pages: &Runs) -> Result<(), BodyError>;
}

/// A body that makes the recorded tokens.
pub struct Repeated<'a> {
    tokens: VecDeque<(u32, bool)>,
    /// Passes that are left.
    steps: u64,
    memory: &'a mut dyn Pages,
}

impl Body for Repeated<'_> {
    fn now(&mut self) -> Nanos {
        Nanos(0)
    }

    fn step(&mut self, rows: &[LiveRow<'_>], made: &mut Vec<Made>) -> Result<(), BodyError> {
        self.steps = self.steps.checked_sub(1).ok_or(BodyError::EndOfRecording)?;
        for row in rows.iter().filter(|row| row.samples) {
            let (token, ends) = self.tokens.pop_front().ok_or(BodyError::EndOfRecording)?;
            made.push(Made { request: row.request, token, ends });
        }
        Ok(())
    }

    fn lend(&mut self, pages: &Runs) -> Result<(), BodyError> {
        self.memory.lend(pages)
    }

    fn take_back(&mut self, pages: &Runs) -> Result<(), BodyError> {
        self.memory.take_back(pages)
    }
}
