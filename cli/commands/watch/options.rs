//! The flags of `watch`.

use clap::{Args, ValueEnum};
use plimsoll_core::units::Bytes;
use plimsoll_replay::scenario::time::nanos;
use std::{path::PathBuf, time::Duration};

/// Shown under the help of `watch`.
pub const EXAMPLES: &str = "Examples:
  plimsoll watch http://127.0.0.1:30000 --record night.jsonl --for 8h --min-free 2GiB
  plimsoll watch http://127.0.0.1:8000 --once --format json
  plimsoll watch --read night.jsonl --min-free 4GiB

It only reads: /metrics, and the server's own pages about itself.";

/// `plimsoll watch`.
#[derive(Args, Debug)]
pub struct WatchArgs {
    /// Where the server listens: `http://127.0.0.1:30000`.
    #[arg(value_name = "URL", required_unless_present = "read", conflicts_with = "read")]
    pub url: Option<String>,
    /// Write every sample to this file as it comes.
    #[arg(long, value_name = "FILE", conflicts_with = "read")]
    pub record: Option<PathBuf>,
    /// Summarize a recording, whole or cut off, instead of watching.
    #[arg(long, value_name = "FILE")]
    pub read: Option<PathBuf>,
    /// Time between samples, 100 ms to 1 h.
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = interval)]
    pub interval: Duration,
    /// Longest that a page of the server may take.
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = interval)]
    pub timeout: Duration,
    /// Stop after this time. Default: at Ctrl-C.
    #[arg(long = "for", value_name = "TIME", value_parser = time)]
    pub span: Option<Duration>,
    /// Take one sample.
    #[arg(long, conflicts_with = "span")]
    pub once: bool,
    /// Exit 1 when less than this is free on any device, at any sample.
    #[arg(long, visible_alias = "min-margin", value_name = "AMOUNT", value_parser = crate::args::parse_bytes, allow_hyphen_values = true)]
    pub min_free: Option<Bytes>,
    /// Name of the environment variable that holds the server's API key.
    #[arg(long, value_name = "NAME", conflicts_with = "api_key_file")]
    pub api_key_env: Option<String>,
    /// File that holds the server's API key.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Whose memory to read beside the server.
    #[arg(long, value_enum, default_value = "auto")]
    pub memory: MemoryFrom,
    /// Look at these devices alone: `0,1`. Default: all.
    #[arg(long, value_name = "INDICES", value_delimiter = ',')]
    pub gpus: Vec<u32>,
}

/// Whose memory is read.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub enum MemoryFrom {
    /// This machine's, when the URL leads to it.
    Auto,
    /// This machine's, wherever the URL leads (a port of a container, for example).
    Here,
    /// Nobody's (the URL is a tunnel to another machine).
    None,
}

fn time(text: &str) -> Result<Duration, String> {
    // People write minutes as `m` on a command line.
    let minutes =
        text.trim().strip_suffix('m').filter(|n| n.ends_with(|c: char| c.is_ascii_digit()));
    let found = match minutes {
        Some(number) => nanos(&format!("{number} min")),
        None => nanos(text),
    }?;
    match found.0 {
        0 => Err("a time above 0".to_owned()),
        n => Ok(Duration::from_nanos(n)),
    }
}

fn interval(text: &str) -> Result<Duration, String> {
    let (least, most) = (Duration::from_millis(100), Duration::from_secs(3600));
    match time(text)? {
        found if (least..=most).contains(&found) => Ok(found),
        _ => Err("allowed: 100 ms to 1 h".to_owned()),
    }
}
