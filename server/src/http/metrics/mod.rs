//! What the front end itself measures: times of requests, statuses of responses.

mod page;

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

pub(crate) use page::{page, phase_name};

/// Upper bounds in seconds of the time to the first token.
const FIRST: &[f64] = &[
    0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0,
    80.0, 100.0, 200.0, 400.0,
];
/// Of the time between tokens.
const NEXT: &[f64] = &[
    0.001, 0.002, 0.004, 0.006, 0.008, 0.01, 0.015, 0.02, 0.025, 0.03, 0.035, 0.04, 0.06, 0.08,
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0,
];
/// Of the time of a whole answer.
const WHOLE: &[f64] = &[
    0.1, 0.2, 0.4, 0.6, 0.8, 1.0, 2.0, 4.0, 6.0, 8.0, 10.0, 20.0, 40.0, 60.0, 80.0, 100.0, 200.0,
    400.0, 600.0, 1200.0, 1800.0, 2400.0,
];

/// Values counted by their size.
#[derive(Clone, Debug)]
struct Histogram {
    bounds: &'static [f64],
    /// One for each bound, and one for what is above all; not summed up.
    counts: Vec<u64>,
    sum: f64,
}

impl Histogram {
    fn new(bounds: &'static [f64]) -> Self {
        Self { bounds, counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    fn add(&mut self, time: Duration) {
        let seconds = time.as_secs_f64();
        let at = self.bounds.partition_point(|bound| *bound < seconds);
        if let Some(count) = self.counts.get_mut(at) {
            *count += 1;
        }
        self.sum += seconds;
    }
}

#[derive(Clone, Debug)]
struct Figures {
    first_token: Histogram,
    next_token: Histogram,
    whole: Histogram,
    /// Responses by status.
    responses: BTreeMap<u16, u64>,
}

/// The figures of the front end.
#[derive(Debug)]
pub(crate) struct Metrics(Mutex<Figures>);

impl Metrics {
    pub(crate) fn new() -> Self {
        Self(Mutex::new(Figures {
            first_token: Histogram::new(FIRST),
            next_token: Histogram::new(NEXT),
            whole: Histogram::new(WHOLE),
            responses: BTreeMap::new(),
        }))
    }

    fn figures(&self) -> MutexGuard<'_, Figures> {
        // Counts alone: what a panicking holder left still counts.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The first token of an answer, since its request came.
    pub(crate) fn first_token(&self, time: Duration) {
        self.figures().first_token.add(time);
    }

    /// A further token, since the one before.
    pub(crate) fn next_token(&self, time: Duration) {
        self.figures().next_token.add(time);
    }

    /// A whole answer, since its request came.
    pub(crate) fn answered(&self, time: Duration) {
        self.figures().whole.add(time);
    }

    /// A response.
    pub(crate) fn response(&self, status: u16) {
        *self.figures().responses.entry(status).or_insert(0) += 1;
    }
}
