//! The front end on a thread of its own, from the loading of the model to the last answer.

use std::{io, net::TcpListener, time::Duration};

use tokio::{
    net::TcpListener as Listener,
    runtime::Builder,
    signal::unix::{SignalKind, signal},
    sync::watch,
    time::sleep,
};

use crate::{
    engine::Phase,
    http::{Drained, Front, serve},
    start::Running,
};

/// How often the engine's life is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Serves until SIGTERM or SIGINT, or until the engine has died. A second signal ends it at once. `told` hears
/// once whether the engine became ready.
///
/// # Errors
///
/// What the system says to the socket or the signals.
pub fn listen<S: Send, W: Send>(
    listener: TcpListener,
    front: Front,
    running: &Running<S, W>,
    told: &dyn Fn(bool),
) -> io::Result<Drained> {
    listener.set_nonblocking(true)?;
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let (signals, counted) = watch::channel(0_u32);
    let engine = front.engine.clone();
    let serving = async move {
        let listener = Listener::from_std(listener)?;
        let (mut first, mut second) = (counted.clone(), counted);
        let stop = async move {
            // The sender lives as long as the process: an error cannot come.
            let _ = first.wait_for(|count| *count >= 1).await;
        };
        let at_once = async move {
            let _ = second.wait_for(|count| *count >= 2).await;
        };
        serve(listener, front, stop, at_once).await
    };
    runtime.block_on(async {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let watch = async {
            let mut waits = true;
            loop {
                tokio::select! {
                    _ = terminate.recv() => signals.send_modify(|count| *count += 1),
                    _ = interrupt.recv() => signals.send_modify(|count| *count += 1),
                    () = sleep(LOOK) => {}
                }
                let phase = engine.status().phase;
                if waits && !matches!(phase, Phase::Loading | Phase::Proving) {
                    waits = false;
                    told(phase == Phase::Ready);
                }
                if running.is_over() && *signals.borrow() == 0 {
                    signals.send_modify(|count| *count = 2);
                }
            }
        };
        tokio::select! {
            ended = serving => ended,
            never = watch => never,
        }
    })
}
