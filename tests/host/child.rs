//! This test binary again as a process of its own: for what a process does to its own memory.

use std::{
    env,
    process::{Command, Output},
};

/// Where a child finds its task; a child test that does not find it was not started by its parent.
const TASK: &str = "PLIMSOLL_TEST_TASK";

/// Runs one `#[ignore]`d test, by its full name, in a process of its own.
pub(super) fn command(test: &str, task: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args([test, "--exact", "--ignored", "--nocapture"]).env(TASK, task);
    command
}

/// What this child was started for.
pub(super) fn task() -> Option<String> {
    env::var(TASK).ok()
}

/// The child's test has run, once, and passed.
#[track_caller]
pub(super) fn passed(output: &Output) {
    let out = String::from_utf8_lossy(&output.stdout);
    let ran = output.status.success() && out.contains("1 passed");
    assert!(ran, "{}\n{out}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
}
