//! The logs of a diagnosis: files in order, or stdin; and what to say of a text that is no server's.

use crate::{args::DiagnoseArgs, exit::Failure, host::Stop, output::Output};
use plimsoll_core::units::group_thousands;
use plimsoll_ingest::log::{self, Log, Redact};
use std::{
    fs::File,
    io::{self, BufRead, BufReader, IsTerminal as _, Read},
    path::Path,
};

/// A log, the names of its files by index, and what its first bytes look like.
pub struct Input {
    /// What it says.
    pub log: Log,
    /// Names of the files, as typed.
    pub names: Vec<String>,
    /// What kind of text it is, from its beginning.
    pub kind: Kind,
}

/// What a text looks like.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Text, or what can be read as it.
    Text,
    /// Bytes that no log has.
    Binary,
    /// A page of the web.
    Html,
}

/// What to write when there is no log.
const NO_LOG: &str = "give a log: a file, or a pipe into `plimsoll diagnose -`\n\n  \
    plimsoll diagnose server.log\n  docker logs server 2>&1 | plimsoll diagnose";

/// What to write when there is a command and no log.
const COMMAND_ALONE: &str = "there is a launch command but no log; `plimsoll plan` says what a command alone will \
    do:\n\n  plimsoll plan --device \"H100 SXM\" -- COMMAND";

/// Bytes that a text is judged by.
const HEAD: usize = 4096;

/// Size of the buffer of a file.
const BUFFER: usize = 256 * 1024;

/// Reads the logs.
pub fn read(args: &DiagnoseArgs, output: &Output) -> Result<Input, Failure> {
    let has_command = args.command.is_some() || !args.launch.is_empty();
    let nothing = || Failure::input(if has_command { COMMAND_ALONE } else { NO_LOG });
    let mut files: Vec<(String, Box<dyn BufRead>)> = Vec::new();
    if args.logs.is_empty() {
        let nobody_types = match output.host() {
            Some(host) => host.stdin.is_none(),
            None => io::stdin().is_terminal(),
        };
        if nobody_types {
            return Err(nothing());
        }
        files.push(stdin(output));
    }
    for path in &args.logs {
        files.push(if path == Path::new("-") { stdin(output) } else { open(path, output)? });
    }
    let kind = kind(&mut files).map_err(Failure::input)?;
    let inputs = files.iter_mut().map(|(name, text)| log::Input { name, text });
    let mut inputs: Vec<_> = inputs.collect();
    let log = log::read(&mut inputs, redact(args)).map_err(Failure::input)?;
    drop(inputs);
    if log.bytes == 0 {
        let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
        return Err(match args.logs.is_empty() {
            true => nothing(),
            false => Failure::input(format!("{}: empty", names.join(", "))),
        });
    }
    let names = files.into_iter().map(|(name, _)| name).collect();
    Ok(Input { log, names, kind })
}

/// Whether what identifies people and machines is cut.
pub const fn redact(args: &DiagnoseArgs) -> Redact {
    if args.no_redact { Redact::No } else { Redact::Yes }
}

fn stdin(output: &Output) -> (String, Box<dyn BufRead>) {
    let text: Box<dyn BufRead> = match output.host() {
        Some(host) => Box::new(io::Cursor::new(host.stdin.clone().unwrap_or_default())),
        None => Box::new(BufReader::with_capacity(BUFFER, io::stdin())),
    };
    ("<stdin>".to_owned(), text)
}

fn open(path: &Path, output: &Output) -> Result<(String, Box<dyn BufRead>), Failure> {
    let name = path.display().to_string();
    let place = |error: io::Error| Failure::input(format!("{name}: {error}"));
    let file = File::open(path).map_err(place)?;
    if file.metadata().map_err(place)?.is_dir() {
        return Err(Failure::input(format!("{name}: a folder; name its files, in their order")));
    }
    let stop = output.host().map(|host| host.stop.clone()).unwrap_or_default();
    let named = Named { name: name.clone(), file, stop };
    Ok((name, Box::new(BufReader::with_capacity(BUFFER, named))))
}

/// A file whose errors name it, and that ends where the host program asks for the end.
struct Named {
    name: String,
    file: File,
    stop: Stop,
}

impl Read for Named {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.stop.is_asked() {
            return Err(io::Error::other(format!("{}: interrupted", self.name)));
        }
        let named = |error: io::Error| match error.kind() {
            io::ErrorKind::Interrupted => error,
            kind => io::Error::new(kind, format!("{}: {error}", self.name)),
        };
        self.file.read(buffer).map_err(named)
    }
}

/// What the first text looks like, without taking anything from it.
fn kind(files: &mut [(String, Box<dyn BufRead>)]) -> io::Result<Kind> {
    let Some((_, text)) = files.first_mut() else { return Ok(Kind::Text) };
    let head = text.fill_buf()?;
    Ok(kind_of(head.get(..HEAD).unwrap_or(head)))
}

fn kind_of(head: &[u8]) -> Kind {
    // UTF-16 and gzip hold zeros too, and are read.
    let known = [&[0xff, 0xfe][..], &[0xfe, 0xff], &[0x1f, 0x8b]];
    let start = head.trim_ascii_start();
    let tag = |name: &[u8]| start.get(..name.len()).is_some_and(|b| b.eq_ignore_ascii_case(name));
    if tag(b"<!doctype html") || tag(b"<html") {
        Kind::Html
    } else if head.contains(&0) && !known.iter().any(|mark| head.starts_with(mark)) {
        Kind::Binary
    } else {
        Kind::Text
    }
}

/// No line of any server: what was seen instead.
pub fn nothing_known(input: &Input) -> Failure {
    let kind = match input.kind {
        Kind::Text => "of text",
        Kind::Binary => "of binary data",
        Kind::Html => "of a web page",
    };
    let (lines, bytes) = (group_thousands(input.log.lines), group_thousands(input.log.bytes));
    let s = if input.log.lines == 1 { "" } else { "s" };
    let odd: String = input.log.oddities.iter().map(|line| format!("\n  {line}")).collect();
    Failure::input(format!(
        "{}: no line of a server that is known (SGLang, vLLM, llama.cpp, ollama, TensorRT-LLM, TGI, LMDeploy); seen: \
         {lines} line{s}, {bytes} bytes {kind}{odd}\n\nhelp: --server NAME says whose log it is",
        input.names.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_told_from_what_is_none() {
        assert_eq!(kind_of(b"[2026-01-02] Load weight begin."), Kind::Text);
        assert_eq!(kind_of(b"\n <!DOCTYPE html><p>"), Kind::Html);
        assert_eq!(kind_of(b"\x7fELF\0\0"), Kind::Binary);
        assert_eq!(kind_of(&[0xff, 0xfe, b'a', 0]), Kind::Text);
        assert_eq!(kind_of(b""), Kind::Text);
    }
}
