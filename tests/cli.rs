//! The binary as its users run it: plans, formats, errors, exit codes, help, documentation.
//!
//! The environment is empty and no `nvidia-smi` can be found, so that every machine shows the same.

mod calibrate;
mod diagnose;
mod docs;
mod doctor;
mod errors;
mod explain;
mod json;
mod junit;
mod life;
mod metrics;
mod plans;
mod relaunch;
pub(crate) mod schema_check;
mod show;
mod sweep;
mod verbs;
mod watch;
mod workload;

use std::{
    path::Path,
    process::{Command, Stdio},
};

/// What one run showed.
struct Shown {
    code: i32,
    stdout: String,
    stderr: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.args(args).env_clear().current_dir(root()).stdin(Stdio::null());
    command
}

fn run(args: &[&str]) -> Shown {
    shown(command(args))
}

fn shown(mut command: Command) -> Shown {
    let output = command.output().expect("the binary runs");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output is UTF-8");
    Shown {
        code: output.status.code().expect("no signal"),
        stdout: text(output.stdout),
        stderr: text(output.stderr),
    }
}

/// The command as typed, its exit code, stdout and stderr.
fn transcript(args: &[&str], shown: &Shown) -> String {
    let quoted = |arg: &&str| match arg.contains([' ', '"', '\'', '\n']) || arg.is_empty() {
        true => format!("{arg:?}"),
        false => (*arg).to_owned(),
    };
    let typed: Vec<String> = args.iter().map(quoted).collect();
    let mut text = format!("$ plimsoll {}\n[exit {}]\n", typed.join(" "), shown.code);
    text.push_str(&shown.stdout);
    if !shown.stderr.is_empty() {
        text.push_str("--- stderr\n");
        text.push_str(&shown.stderr);
    }
    text
}

/// Compares with `tests/snapshots/cli-NAME.snap`; `INSTA_UPDATE=always` accepts anew.
fn snapshot(name: &str, text: &str) {
    let mut settings = insta::Settings::clone_current();
    settings.set_snapshot_path(root().join("tests/snapshots"));
    settings.set_prepend_module_to_snapshot(false);
    settings.set_omit_expression(true);
    settings.add_filter(&format!("plimsoll {}", env!("CARGO_PKG_VERSION")), "plimsoll [version]");
    settings.bind(|| insta::assert_snapshot!(format!("cli-{name}"), text));
}
