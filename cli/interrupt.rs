//! Ctrl-C: a run ends at its next step and its recording is closed; a second one ends the program at once.

use crate::exit;
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// Whether the user asked for the end.
#[derive(Clone, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Listens from now on. Where no handler can be set, Ctrl-C ends the program as ever.
    pub fn listen() -> Self {
        let asked = Self::default();
        let signal = signal_hook::consts::SIGINT;
        let code = i32::from(exit::INTERRUPTED);
        // The order counts: at the first signal the flag is not yet set, and nothing is shut down.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, code, asked.0.clone());
        let _ = signal_hook::flag::register(signal, asked.0.clone());
        asked
    }

    /// Whether the end was asked for.
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// From now on the first Ctrl-C ends the program at once, with the code of an interruption: for a verb that
/// has nothing to close.
pub fn exit_at_once() {
    let always = Arc::new(AtomicBool::new(true));
    let code = i32::from(exit::INTERRUPTED);
    let _ =
        signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGINT, code, always);
}
