//! Serving until a stop, and the end after it.

use std::{future::Future, io, sync::Arc};

use tokio::{net::TcpListener, select, sync::oneshot, time::sleep};

use super::{listen::Limited, options::Front, routes, state::Shared};

/// How serving ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Drained {
    /// Every request was answered.
    All,
    /// The time was up, or the end was asked for at once.
    Cut {
        /// Requests that were not answered to their end.
        open: u64,
    },
}

/// Serves until `stop` is ready, then answers what it has, and returns.
///
/// From `stop` on `/ready` is 503, new requests are refused with 503, streams go on. It ends when the last one
/// is over, when `drain_timeout` is up, or when `at_once` is ready. Connections that are left then end with the
/// runtime.
///
/// # Errors
/// The listener's own.
pub async fn serve(
    listener: TcpListener,
    front: Front,
    stop: impl Future<Output = ()> + Send + 'static,
    at_once: impl Future<Output = ()>,
) -> io::Result<Drained> {
    let listener = Limited::new(listener, front.options.max_connections);
    let limit = front.options.drain_timeout;
    let shared = Arc::new(Shared::new(front));
    let (stopped, drain) = oneshot::channel();
    let draining = Arc::clone(&shared);
    let graceful = async move {
        stop.await;
        draining.drain();
        // Who waits for it waits as long as this function runs.
        let _ = stopped.send(());
        // Connections are taken until then, so that clients are told.
        draining.idle().await;
    };
    let serving = axum::serve(listener, routes(&shared)).with_graceful_shutdown(graceful);
    let time_is_up = async {
        // An error: the sender is gone, and serving is over.
        if drain.await.is_ok() {
            sleep(limit).await;
        }
    };
    let cut = || Ok(Drained::Cut { open: shared.open() });
    select! {
        ended = serving => ended.map(|()| Drained::All),
        () = time_is_up => cut(),
        () = at_once => {
            shared.drain();
            cut()
        }
    }
}
