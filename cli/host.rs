//! A host program in the place of a terminal: it gives stdin, keeps what is written, and owns Ctrl-C.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

/// Asks a call to end at its next step. Clones ask the same call.
#[derive(Clone, Debug, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks.
    pub fn ask(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// The flag itself, for a signal handler.
    pub(crate) fn flag(&self) -> Arc<AtomicBool> {
        self.0.clone()
    }

    /// Whether the end was asked for.
    #[must_use]
    pub fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

/// One call of a host program.
#[derive(Default)]
pub(crate) struct Host {
    /// What the verb reads where the binary reads stdin; none is as a terminal that nobody types on.
    pub(crate) stdin: Option<Arc<[u8]>>,
    /// The host's word for Ctrl-C.
    pub(crate) stop: Stop,
    stdout: Mutex<String>,
    stderr: Mutex<String>,
}

impl Host {
    /// A call that reads `stdin` and ends when `stop` asks.
    pub(crate) fn new(stdin: Option<Arc<[u8]>>, stop: Stop) -> Self {
        Self { stdin, stop, ..Self::default() }
    }

    /// Keeps a piece of the result.
    pub(crate) fn write(&self, text: &str) {
        self.stdout.lock().unwrap_or_else(PoisonError::into_inner).push_str(text);
    }

    /// Keeps what was said beside the result.
    pub(crate) fn note(&self, line: &str) {
        let mut kept = self.stderr.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push_str(line);
        kept.push('\n');
    }

    /// All that was written: stdout, then stderr.
    pub(crate) fn into_texts(self) -> (String, String) {
        let text = |kept: Mutex<String>| kept.into_inner().unwrap_or_else(PoisonError::into_inner);
        (text(self.stdout), text(self.stderr))
    }
}
