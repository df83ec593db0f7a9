//! Ctrl-C: a run ends at its next step and its recording is closed; a second one ends the program at once.

use crate::{exit, host::Stop, output::Output};
use std::sync::{Arc, atomic::AtomicBool};

/// Whether the user asked for the end.
#[derive(Clone, Default)]
pub struct Interrupt(Stop);

impl Interrupt {
    /// Listens from now on: to Ctrl-C, or to the host program, whose signals are its own. Where no handler
    /// can be set, Ctrl-C ends the program as ever.
    pub fn listen(output: &Output) -> Self {
        if let Some(host) = output.host() {
            return Self(host.stop.clone());
        }
        let asked = Stop::default();
        let signal = signal_hook::consts::SIGINT;
        let code = i32::from(exit::INTERRUPTED);
        // The order counts: at the first signal the flag is not yet set, and nothing is shut down.
        let _ = signal_hook::flag::register_conditional_shutdown(signal, code, asked.flag());
        let _ = signal_hook::flag::register(signal, asked.flag());
        Self(asked)
    }

    /// Whether the end was asked for.
    pub fn is_asked(&self) -> bool {
        self.0.is_asked()
    }
}

/// From now on the first Ctrl-C ends the program at once, with the code of an interruption: for a verb that
/// has nothing to close. A host program is left alone.
pub fn exit_at_once(output: &Output) {
    if output.host().is_some() {
        return;
    }
    let always = Arc::new(AtomicBool::new(true));
    let code = i32::from(exit::INTERRUPTED);
    let _ =
        signal_hook::flag::register_conditional_shutdown(signal_hook::consts::SIGINT, code, always);
}
