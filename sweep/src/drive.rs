//! All points of a shard, on many threads, their rows in order.

use crate::{
    points::{Broken, Points},
    question::header::Shard,
    row::Row,
};
use std::{
    collections::BTreeMap,
    sync::{
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

/// How often the taker hears that time goes by.
const MOMENT: Duration = Duration::from_millis(100);

/// Why a sweep ended early.
#[derive(Debug, thiserror::Error)]
pub enum DriveError<E: std::error::Error + 'static> {
    /// A point that shows a mistake of Plimsoll.
    #[error(transparent)]
    Broken(#[from] Box<Broken>),
    /// Whoever takes the rows cannot.
    #[error(transparent)]
    Taker(E),
    /// No threads can be had.
    #[error("no threads for the sweep: {0}")]
    Threads(#[from] rayon::ThreadPoolBuildError),
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    /// Every point ran.
    Whole,
    /// The user ended it.
    Interrupted,
}

/// How a sweep is driven.
pub struct Drive<'a> {
    /// What runs.
    pub points: &'a Points,
    /// Which part of it.
    pub shard: Shard,
    /// Rows of the part that are there already, from its beginning.
    pub done: u64,
    /// Threads; 0: one a core.
    pub threads: usize,
    /// Whether the user wants it to end.
    pub interrupted: &'a (dyn Fn() -> bool + Sync),
}

/// What happens while a sweep runs, for whoever takes its rows. All of it comes from one thread.
pub trait Taker {
    /// What taking a row may fail with.
    type Error: std::error::Error + Send + 'static;

    /// A point is done; points come in any order.
    fn finished(&mut self, row: &Row);

    /// A moment went by.
    fn waited(&mut self);

    /// The next row, in the order of the points.
    ///
    /// # Errors
    ///
    /// Whatever ends the sweep.
    fn take(&mut self, row: Row) -> Result<(), Self::Error>;
}

impl Drive<'_> {
    /// Runs the points that are left. Threads take points in their order, and rows are handed over in that
    /// order; a row waits for those before it.
    ///
    /// # Errors
    ///
    /// [`DriveError`]; rows that were taken until then are whole.
    pub fn run<T: Taker + Send>(&self, taker: &mut T) -> Result<End, DriveError<T::Error>> {
        let total = self.shard.count(self.points.question.points());
        let left = usize::try_from(total - self.done.min(total)).unwrap_or(usize::MAX);
        let mut pool = rayon::ThreadPoolBuilder::new();
        if self.threads > 0 {
            pool = pool.num_threads(self.threads.min(left.max(1)));
        }
        let pool = pool.build()?;
        let (next, stop) = (AtomicU64::new(self.done), AtomicBool::new(false));
        let (send, receive) = mpsc::channel();
        let ended = pool.in_place_scope(|scope| {
            for _ in 0..pool.current_num_threads() {
                let send = send.clone();
                let (next, stop) = (&next, &stop);
                scope.spawn(move |_| self.work(total, next, stop, &send));
            }
            drop(send);
            let ended = self.collect(&receive, taker);
            stop.store(true, Ordering::Relaxed);
            ended
        })?;
        Ok(if ended == total { End::Whole } else { End::Interrupted })
    }

    /// One thread: point after point.
    fn work(
        &self,
        total: u64,
        next: &AtomicU64,
        stop: &AtomicBool,
        send: &mpsc::Sender<(u64, Result<Row, Box<Broken>>)>,
    ) {
        let asked = || stop.load(Ordering::Relaxed) || (self.interrupted)();
        while !asked() {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let point = self.points.question.point(self.shard.index(at));
            let Some(point) = point.filter(|_| at < total) else { return };
            let row = match self.points.run(&point, &asked) {
                Ok(None) => return,
                Ok(Some(row)) => Ok(row),
                Err(broken) => Err(broken),
            };
            if send.send((at, row)).is_err() {
                return;
            }
        }
    }

    /// Puts rows into order and hands them over. Answers how many rows of the part are there.
    fn collect<T: Taker>(
        &self,
        receive: &mpsc::Receiver<(u64, Result<Row, Box<Broken>>)>,
        taker: &mut T,
    ) -> Result<u64, DriveError<T::Error>> {
        let (mut waiting, mut at) = (BTreeMap::new(), self.done);
        loop {
            let (place, row) = match receive.recv_timeout(MOMENT) {
                Ok((place, row)) => (place, row?),
                Err(mpsc::RecvTimeoutError::Timeout) => {
                    taker.waited();
                    continue;
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(at),
            };
            taker.finished(&row);
            waiting.insert(place, row);
            while let Some(row) = waiting.remove(&at) {
                taker.take(row).map_err(DriveError::Taker)?;
                at += 1;
            }
        }
    }
}
