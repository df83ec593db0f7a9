//! What the handlers share: the front, its limits, and the numbers of requests.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{SystemTime, UNIX_EPOCH},
};

use plimsoll_checkpoint::Today;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

use super::{error::ApiError, metrics::Metrics, options::Front};

/// Shared by all requests.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) front: Front,
    pub(crate) metrics: Metrics,
    /// Ids of the vocabulary, from 0.
    pub(crate) vocabulary: u64,
    draining: AtomicBool,
    next: AtomicU64,
    streams: Arc<Semaphore>,
    /// Places that are taken: the semaphore's own figure falls to 0 while it is waited for.
    open: Arc<AtomicU64>,
    bodies: Semaphore,
    preparations: Arc<Semaphore>,
}

/// A request that is let in; dropping it makes room.
#[derive(Debug)]
pub(crate) struct Admission {
    _room: OwnedSemaphorePermit,
    open: Arc<AtomicU64>,
    /// Number of the request, from 0.
    pub(crate) number: u64,
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Shared {
    pub(crate) fn new(front: Front) -> Self {
        let options = &front.options;
        let size = |n: u32| Semaphore::new(n.max(1) as usize);
        let kib = options.body_budget_bytes.max(options.max_body_bytes).div_ceil(1024);
        Self {
            metrics: Metrics::new(),
            vocabulary: front.tokenizer.size() as u64,
            draining: AtomicBool::new(false),
            next: AtomicU64::new(0),
            streams: Arc::new(size(options.max_streams)),
            open: Arc::new(AtomicU64::new(0)),
            bodies: size(u32::try_from(kib).unwrap_or(u32::MAX >> 4)),
            preparations: Arc::new(size(options.preparations)),
            front,
        }
    }

    /// Lets a request in.
    ///
    /// # Errors
    /// 503 while the engine does not serve, 429 when as many are answered as may be.
    pub(crate) fn admit(&self) -> Result<Admission, ApiError> {
        if self.is_draining() {
            return Err(ApiError::draining());
        }
        if let Some(error) = ApiError::of_phase(&self.front.engine.status().phase) {
            return Err(error);
        }
        let room = Arc::clone(&self.streams).try_acquire_owned();
        let room = room.map_err(|_| ApiError::too_many(self.front.options.max_streams))?;
        let open = Arc::clone(&self.open);
        open.fetch_add(1, Ordering::Relaxed);
        Ok(Admission { _room: room, open, number: self.next.fetch_add(1, Ordering::Relaxed) })
    }

    /// Requests that are being answered.
    pub(crate) fn open(&self) -> u64 {
        self.open.load(Ordering::Relaxed)
    }

    /// Takes no new requests from here on.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
        self.front.engine.drain();
    }

    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Waits until no request is being answered.
    pub(crate) async fn idle(&self) {
        // All places at once: the waiting is in order, and nobody comes behind while it drains. The
        // semaphore is never closed.
        let _ = self.streams.acquire_many(self.front.options.max_streams.max(1)).await;
    }

    /// Room for a body, in KiB.
    pub(super) async fn body_budget(&self, kib: u64) -> Option<SemaphorePermit<'_>> {
        self.bodies.acquire_many(u32::try_from(kib).unwrap_or(u32::MAX >> 4)).await.ok()
    }

    /// Does a piece of work on a thread that may compute, when its turn comes.
    pub(crate) async fn compute<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce(&Self) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let turn = Arc::clone(&self.preparations).acquire_owned().await;
        let turn = turn.map_err(|_| ApiError::engine_gone())?;
        let shared = Arc::clone(self);
        let task = tokio::task::spawn_blocking(move || {
            // Kept until the work is done: a client that leaves does not make room before that.
            let _turn = turn;
            work(&shared)
        });
        task.await.unwrap_or_else(|_| Err(ApiError::internal("the request could not be prepared")))
    }

    /// A number that differs from request to request and from server to server.
    pub(crate) fn mixed(&self, number: u64) -> u64 {
        let step = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut z = self.front.options.random_seed.wrapping_add(step);
        // The finaliser of splitmix64: neighbours in, strangers out.
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// The date for templates.
    pub(crate) fn today(&self) -> Today {
        self.front.options.today.unwrap_or_else(today)
    }
}

/// The date of this day, UTC.
#[must_use]
pub fn today() -> Today {
    date(now() / 86_400)
}

/// Seconds since 1970.
pub(crate) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs())
}

/// The date of a day since 1970, in the Gregorian calendar.
fn date(days: u64) -> Today {
    let leap =
        |year: u64| year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400);
    let (mut year, mut left) = (1970, days);
    while left >= 365 + u64::from(leap(year)) && year < u64::from(u16::MAX) {
        left -= 365 + u64::from(leap(year));
        year += 1;
    }
    let february = 28 + u64::from(leap(year));
    let (mut month, lengths) = (1, [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]);
    for length in lengths {
        if left < length || month == 12 {
            break;
        }
        left -= length;
        month += 1;
    }
    Today { year: year as u16, month, day: (left + 1) as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_have_dates() {
        let day = |days| {
            let Today { year, month, day } = date(days);
            (year, month, day)
        };
        assert_eq!(day(0), (1970, 1, 1));
        assert_eq!(day(11_016), (2000, 2, 29));
        assert_eq!(day(11_017), (2000, 3, 1));
        assert_eq!(day(20_787), (2026, 11, 30));
        assert_eq!(day(47_540), (2100, 2, 28));
        assert_eq!(day(47_541), (2100, 3, 1));
    }
}
