//! Exit codes, and the errors that end a verb with 2.

use crate::output::Output;

/// It holds.
pub const OK: u8 = 0;
/// A claim failed, a problem was found, or the margin is too small.
pub const FAILED: u8 = 1;
/// Bad input or usage.
pub const BAD_INPUT: u8 = 2;
/// The device or server is missing or lost.
pub const NO_DEVICE: u8 = 3;
/// The user interrupted a run; what was recorded until then is whole.
pub const INTERRUPTED: u8 = 130;

/// An error of a verb: the text for stderr and the exit code.
#[derive(Debug)]
pub struct Failure {
    /// Exit code.
    pub code: u8,
    /// What to print, without a trailing line end.
    pub message: String,
}

impl Failure {
    /// Bad input, exit 2.
    pub fn input(message: impl ToString) -> Self {
        Self { code: BAD_INPUT, message: message.to_string() }
    }

    /// No device, or none that can be used: exit 3.
    pub fn no_device(message: impl ToString) -> Self {
        Self { code: NO_DEVICE, message: message.to_string() }
    }
}

/// The code of a verb that ran; says what went wrong.
pub fn code(outcome: Result<u8, Failure>, output: &Output) -> u8 {
    match outcome {
        Ok(code) => code,
        Err(failure) => {
            // A rendered problem says itself that it is an error.
            let rendered = failure.message.starts_with("error");
            let start = if rendered { "" } else { "error: " };
            output.note(&format!("{start}{}", failure.message.trim_end()));
            failure.code
        }
    }
}
