//! The door for host programs: a command line in, exit code and texts out, and nothing of the process touched.

use crate::{
    args::Cli,
    exit,
    host::{Host, Stop},
    output::{Door, Output, WIDEST},
};
use clap::{ColorChoice, CommandFactory as _, FromArgMatches as _};
use std::{ffi::OsString, sync::Arc};

/// What a call gave: the exit code of the binary, and what it would have printed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// 0 it holds, 1 a claim failed or a problem was found, 2 bad input, 3 no device, 130 interrupted.
    pub code: u8,
    /// The result.
    pub stdout: String,
    /// Everything else: notes and errors.
    pub stderr: String,
}

/// A command line of a host program, with what else the call may use.
#[derive(Clone, Debug, Default)]
pub struct Call {
    args: Vec<OsString>,
    stdin: Option<Arc<[u8]>>,
    stop: Stop,
}

impl Call {
    /// Of the words behind `plimsoll`: `["plan", "--device", "H100", …]`.
    pub fn new(args: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        let args = args.into_iter().map(Into::into).collect();
        Self { args, ..Self::default() }
    }

    /// What the verb finds on stdin. The process's own stdin is never read.
    #[must_use]
    pub fn stdin(mut self, text: impl Into<Arc<[u8]>>) -> Self {
        self.stdin = Some(text.into());
        self
    }

    /// Ends the call early when `stop` asks, as Ctrl-C ends the binary: what was written is whole.
    #[must_use]
    pub fn until(mut self, stop: Stop) -> Self {
        self.stop = stop;
        self
    }

    /// Runs the verb on this thread. Sets no signal handler, prints nothing, ends no process; calls on
    /// several threads do not see each other.
    #[must_use]
    pub fn answer(self) -> Answer {
        let words = std::iter::once("plimsoll".into()).chain(self.args);
        // Without a terminal, help and errors of every machine are alike.
        let command = Cli::command().term_width(WIDEST).color(ColorChoice::Never);
        let matches = command.try_get_matches_from(words);
        let cli = match matches.and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches)) {
            Ok(cli) => cli,
            Err(error) => return told(&error),
        };
        let output = Output::of_host(&cli.output, Host::new(self.stdin, self.stop));
        let code = crate::answer(cli, &output);
        let (stdout, stderr) = match output.into_door() {
            Door::Host(host) => host.into_texts(),
            Door::Process => (String::new(), String::new()),
        };
        Answer { code, stdout, stderr }
    }
}

/// Help and version are results; all else is bad usage.
fn told(error: &clap::Error) -> Answer {
    let text = error.render().to_string();
    if error.use_stderr() {
        Answer { code: exit::BAD_INPUT, stdout: String::new(), stderr: text }
    } else {
        Answer { code: exit::OK, stdout: text, stderr: String::new() }
    }
}

/// Runs one command line, given without the name of the program, and answers what the binary would have
/// printed. [`Call`] has more: a text on stdin, a way to end it.
///
/// ```
/// let answer = plimsoll::invoke(["plan", "--device", "H100", "--model", "Qwen/Qwen3-8B"]);
/// assert_eq!(answer.code, 0);
/// assert!(answer.stdout.contains("KV pool"));
/// ```
#[must_use]
pub fn invoke(args: impl IntoIterator<Item = impl Into<OsString>>) -> Answer {
    Call::new(args).answer()
}
