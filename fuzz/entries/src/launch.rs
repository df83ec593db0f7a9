//! Launch commands: as text, as words, and with a `--config` file.

use crate::{assert_message, in_time, line_count, text};
use plimsoll_ingest::launch::{
    self, Context, EngineLaunch, Launch, LaunchErrors, LaunchInput, Place, text_with_flag,
    with_flag,
};
use std::io;

/// What places may point into.
struct Source<'a> {
    words: usize,
    text: &'a str,
    file: &'a str,
}

impl Source<'_> {
    fn assert_place(&self, place: &Place) {
        match place {
            Place::Token { index } => {
                assert!(*index < self.words, "word {index} of {}", self.words);
            }
            Place::Text { line, column } => assert_within(self.text, *line, *column),
            Place::File { line: Some(line), .. } => {
                let most = line_count(self.file);
                assert!((1..=most).contains(line), "line {line} of {most}");
            }
            Place::File { line: None, .. } | Place::Key { .. } | Place::Whole => {}
        }
    }

    fn assert_errors(&self, errors: &LaunchErrors) {
        assert!(!errors.errors.is_empty(), "refused without an error");
        for error in &errors.errors {
            self.assert_place(&error.place);
            assert!(!error.allowed.is_empty(), "nothing is said to be allowed: {error:?}");
            assert_message(&error.to_string());
        }
    }

    fn assert_launch(&self, launch: &Launch) {
        let variables = launch.env.iter().map(|v| &v.place);
        let named = launch.not_modelled.iter().map(|f| &f.place);
        let unknown = launch.unknown.iter().map(|f| &f.place);
        let warnings = launch.warnings.iter().map(|w| &w.place);
        variables.chain(named).chain(unknown).chain(warnings).for_each(|p| self.assert_place(p));
        assert!(!launch.program.is_empty(), "a launch without a program");
    }
}

/// A column may be the one behind the end of its line.
fn assert_within(text: &str, line: usize, column: usize) {
    let most = line_count(text);
    assert!((1..=most).contains(&line), "line {line} of {most}");
    let width = text.split('\n').nth(line - 1).map_or(0, |l| l.chars().count());
    assert!((1..=width + 1).contains(&column), "{line}:{column}, the line has {width} characters");
}

fn fraction(engine: &EngineLaunch) -> Option<f64> {
    match engine {
        EngineLaunch::Sglang(args) => args.mem_fraction_static,
        EngineLaunch::Vllm(args) => args.gpu_memory_utilization,
    }
}

const fn fraction_flag(engine: &EngineLaunch) -> &'static str {
    match engine {
        EngineLaunch::Sglang(_) => "--mem-fraction-static",
        EngineLaunch::Vllm(_) => "--gpu-memory-utilization",
    }
}

/// A text as pasted. What is read has its fraction set in place, and then has that fraction.
pub fn launch_text(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let ctx = Context::default();
    let source = Source { words: 0, text, file: "" };
    let read = in_time(|| launch::parse_command(LaunchInput::Text(text), &ctx));
    let launch = match read {
        Ok(launch) => launch,
        Err(errors) => return source.assert_errors(&errors),
    };
    source.assert_launch(&launch);
    let flag = fraction_flag(&launch.engine);
    let Some(changed) = in_time(|| text_with_flag(text, flag, Some("0.5"))) else { return };
    match launch::parse_command(LaunchInput::Text(&changed), &ctx) {
        Ok(again) => {
            assert_eq!(fraction(&again.engine), Some(0.5), "changed to {changed:?}");
        }
        Err(errors) => assert!(errors.errors.is_empty(), "changed to {changed:?}: {errors}"),
    }
}

/// Words, one a line. What is read reads the same from the words quoted as a shell text, and with its
/// fraction set.
pub fn launch_argv(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let words: Vec<String> = text.lines().map(str::to_owned).collect();
    let ctx = Context::default();
    let source = Source { words: words.len(), text: "", file: "" };
    let read = in_time(|| launch::parse_command(LaunchInput::Argv(&words), &ctx));
    let launch = match read {
        Ok(launch) => launch,
        Err(errors) => return source.assert_errors(&errors),
    };
    source.assert_launch(&launch);
    if let Some(changed) = with_flag(&words, fraction_flag(&launch.engine), Some("0.5")) {
        match launch::parse_command(LaunchInput::Argv(&changed), &ctx) {
            Ok(again) => assert_eq!(fraction(&again.engine), Some(0.5), "changed to {changed:?}"),
            Err(errors) => assert!(errors.errors.is_empty(), "changed to {changed:?}: {errors}"),
        }
    }
    let line = launch::render(&words);
    match launch::parse_command(LaunchInput::Text(&line), &ctx) {
        Ok(again) => assert_eq!(again.engine, launch.engine, "rendered as {line:?}"),
        Err(errors) => assert!(errors.errors.is_empty(), "rendered as {line:?}: {errors}"),
    }
}

/// A `--config` file of either engine. The command line wins over the file.
pub fn launch_config(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let read_file = |_: &str| -> io::Result<String> { Ok(text.to_owned()) };
    let ctx = Context { read_file: Some(&read_file), ..Context::default() };
    let commands =
        ["python -m sglang.launch_server --config c.yaml", "vllm serve org/model --config c.yaml"];
    for command in commands {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        let source = Source { words: words.len(), text: "", file: text };
        let read = in_time(|| launch::parse_command(LaunchInput::Argv(&words), &ctx));
        let launch = match read {
            Ok(launch) => launch,
            Err(errors) => {
                source.assert_errors(&errors);
                continue;
            }
        };
        source.assert_launch(&launch);
        let wins = with_flag(&words, fraction_flag(&launch.engine), Some("0.5")).unwrap_or(words);
        match launch::parse_command(LaunchInput::Argv(&wins), &ctx) {
            Ok(again) => assert_eq!(fraction(&again.engine), Some(0.5), "the file wins"),
            Err(errors) => assert!(errors.errors.is_empty(), "with the flag beside: {errors}"),
        }
    }
}
