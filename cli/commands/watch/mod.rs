//! `watch`: attaches to a running server and reads: its metrics, and the free memory beside it.

pub mod client;
mod memory;
pub mod options;
mod recorder;
mod server;
mod view;

use crate::{
    args::Format,
    exit::{self, Failure},
    interrupt::Interrupt,
    output::Output,
    render,
};
use client::{Client, Place};
use memory::Memory;
use options::WatchArgs;
use plimsoll_ingest::watch::{
    Advice, End, Ending, Header, Line, MemoryPlace, Missed, Sample, Summary, Verdict, advise,
    recording,
};
use recorder::Recorder;
use server::Server;
use std::{
    fs::{self, File},
    io::BufReader,
    path::Path,
    time::{Duration, Instant},
};
use view::View;
pub use view::margin;

/// So many moments without an answer, one behind the other, and the server counts as lost.
const PATIENCE: u32 = 3;

/// Watches a server, or reads what a watch recorded. Exit 1 when free memory fell below the line, 3 when the
/// server is missing or lost, 130 when interrupted.
pub fn watch(args: &WatchArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    match (&args.read, &args.url) {
        (Some(path), _) => read(path, args, format, output),
        (None, Some(url)) => live(url, args, format, output),
        (None, None) => Err(Failure::input("watch needs the URL of a server, or --read FILE")),
    }
}

fn read(path: &Path, args: &WatchArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    let named = |what: String| Failure::input(format!("{}: {what}", path.display()));
    let file = File::open(path).map_err(|error| named(error.to_string()))?;
    let mut summary: Option<Summary> = None;
    let (header, cut) = recording::read(BufReader::new(file), |header, line| {
        summary.get_or_insert_with(|| Summary::new(header, args.min_free)).push(line);
    })
    .map_err(|error| named(error.to_string()))?;
    let summary = summary.unwrap_or_else(|| Summary::new(&header, args.min_free));
    if let Some(cut) = cut {
        output.note(&format!(
            "note: {} breaks off in line {} (byte {}); the lines before it count",
            path.display(),
            cut.line,
            cut.byte
        ));
    }
    if args.min_free.is_some() && header.memory == MemoryPlace::None {
        return Err(named("holds no free memory to compare --min-free with".to_owned()));
    }
    let advice = show(&header, &summary, format, output)?;
    // How the watch ended says nothing of a server that is not asked now.
    let failed = summary.undercut.is_some() || advice.verdict == Verdict::Nothing;
    Ok(if failed { exit::FAILED } else { exit::OK })
}

fn live(url: &str, args: &WatchArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    let place = Place::parse(url).map_err(|what| Failure::input(format!("URL: {what}")))?;
    let key = key(args.api_key_env.as_deref(), args.api_key_file.as_deref())?;
    let client = Client::new(&place, key.as_deref(), args.timeout)?;
    let server = Server::find(client, &place.shown())?;
    let memory = Memory::find(&place, args.memory, &args.gpus);
    if let (Some(_), Some(missing)) = (args.min_free, &memory.missing) {
        return Err(Failure::no_device(format!(
            "--min-free needs free memory, which cannot be seen from here: {missing}"
        )));
    }
    let header = header(args, &server, &memory);
    let mut watch = Watch {
        recorder: Recorder::begin(args.record.as_deref(), &header)?,
        summary: Summary::new(&header, None),
        view: View::new(&header, output),
        memory,
        server,
        began: Instant::now(),
    };
    let interrupt = Interrupt::listen(output);
    let ending = watch.run(args, &interrupt);
    watch.view.clear();
    let ending = ending?;
    show(&header, &watch.summary, format, output)?;
    Ok(match (ending, watch.summary.undercut) {
        (Ending::Lost, _) => exit::NO_DEVICE,
        (_, Some(_)) => exit::FAILED,
        (Ending::Interrupted, None) => exit::INTERRUPTED,
        (Ending::Done, None) if watch.summary.samples == 0 => exit::NO_DEVICE,
        (Ending::Done, None) => exit::OK,
    })
}

/// The API key, from the environment or a file, never from the command line.
///
/// # Errors
///
/// It is not there, or is no key.
pub fn key(variable: Option<&str>, file: Option<&Path>) -> Result<Option<String>, Failure> {
    let (what, key) = match (variable, file) {
        (Some(name), _) => {
            let value = std::env::var(name).map_err(|_| {
                Failure::input(format!("--api-key-env {name}: there is no such variable"))
            })?;
            (format!("--api-key-env {name}"), value)
        }
        (None, Some(path)) => {
            let what = format!("--api-key-file {}", path.display());
            let value = fs::read_to_string(path)
                .map_err(|error| Failure::input(format!("{what}: {error}")))?;
            (what, value)
        }
        (None, None) => return Ok(None),
    };
    let key = key.trim();
    if key.is_empty() || !key.chars().all(|c| c.is_ascii_graphic()) {
        return Err(Failure::input(format!("{what} holds no key: expected one visible word")));
    }
    Ok(Some(key.to_owned()))
}

fn header(args: &WatchArgs, server: &Server, memory: &Memory) -> Header {
    Header {
        schema: recording::SCHEMA.to_owned(),
        plimsoll: env!("CARGO_PKG_VERSION").to_owned(),
        server: server.kind,
        version: server.facts.version.clone(),
        model: server.facts.model.clone(),
        metrics: server.metrics,
        interval_ms: millis(args.interval),
        min_free: args.min_free,
        memory: memory.place,
        memory_missing: memory.missing.clone(),
        devices: memory.devices.clone(),
        held: server.facts.held.clone(),
        settings: server.facts.settings.clone(),
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Prints the summary on stdout.
fn show(
    header: &Header,
    summary: &Summary,
    format: Format,
    output: &Output,
) -> Result<Advice, Failure> {
    let advice = advise(header, summary);
    let text = match format {
        Format::Json => format!("{:#}\n", render::watch::json(header, summary, &advice)),
        Format::Jsonl => format!("{}\n", render::watch::json(header, summary, &advice)),
        Format::Human | Format::Csv | Format::Md | Format::Sarif => {
            render::watch::human(header, summary, &advice, output)
        }
    };
    output.write(&text)?;
    Ok(advice)
}

struct Watch<'a> {
    server: Server,
    memory: Memory,
    summary: Summary,
    recorder: Recorder,
    view: View<'a>,
    began: Instant,
}

impl Watch<'_> {
    /// Takes samples until the end, and records how it ended.
    fn run(&mut self, args: &WatchArgs, interrupt: &Interrupt) -> Result<Ending, Failure> {
        let mut silent = 0;
        let mut next = self.began;
        let ending = loop {
            let line = self.line();
            silent = if matches!(line, Line::Missed(_)) { silent + 1 } else { 0 };
            self.recorder.write(&line)?;
            self.summary.push(&line);
            self.view.show(&line, &self.summary);
            next += args.interval;
            let now = Instant::now();
            // A slow answer delays; what was missed is not made up for.
            if next < now {
                next = now;
            }
            let over = args.span.is_some_and(|span| next - self.began > span);
            if silent >= PATIENCE {
                break Ending::Lost;
            }
            if args.once || over {
                break Ending::Done;
            }
            if !sleep_until(next, interrupt) {
                break Ending::Interrupted;
            }
        };
        let end = Line::End(End { at_ms: millis(self.began.elapsed()), why: ending });
        self.recorder.write(&end)?;
        self.summary.push(&end);
        Ok(ending)
    }

    /// Reads the device, then the server: what the device shows is never newer than what the server did.
    fn line(&mut self) -> Line {
        let devices = self.memory.read();
        let ranks = self.server.sample();
        let at_ms = millis(self.began.elapsed());
        match ranks {
            Ok(ranks) => Line::Sample(Sample { at_ms, ranks, devices }),
            Err(error) => Line::Missed(Missed { at_ms, why: error.word(), devices }),
        }
    }
}

/// Waits; `false` when the user asked for the end.
fn sleep_until(when: Instant, interrupt: &Interrupt) -> bool {
    const SLICE: Duration = Duration::from_millis(50);
    loop {
        if interrupt.is_asked() {
            return false;
        }
        let left = when.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return true;
        }
        std::thread::sleep(left.min(SLICE));
    }
}
