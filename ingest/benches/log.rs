//! Reading server logs of 1 GB: time, and the largest memory the process held. `cargo bench -p plimsoll-ingest
//! --bench log`; a number as argument sets the size in MiB.
//!
//! A text of a few MiB is made once and given over and over, so that making it costs nothing; the line numbers go
//! on. Target: 1 GB in under 5 s on one core, memory that does not grow with the log.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a bench prints, and stops where a test would"
)]

use std::fmt::Write as _;
use std::io::{self, BufRead, Read};
use std::time::Instant;

use plimsoll_ingest::log::{Input, Redact, read};

/// The same bytes again and again, up to a length.
struct Again<'a> {
    text: &'a [u8],
    at: usize,
    left: usize,
}

impl BufRead for Again<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        let end = (self.at + 256 * 1024).min(self.text.len()).min(self.at + self.left);
        Ok(&self.text[self.at..end])
    }

    fn consume(&mut self, amount: usize) {
        self.left -= amount;
        self.at += amount;
        if self.at == self.text.len() {
            self.at = 0;
        }
    }
}

impl Read for Again<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.fill_buf()?.read(into)?;
        self.consume(count);
        Ok(count)
    }
}

/// A server that serves: batches of four ranks, requests, a retraction now and then.
fn sglang(prefix: &str) -> String {
    let mut text = String::new();
    for at in 0..20_000_u32 {
        let (minute, second) = (at / 60 % 60, at % 60);
        let rank = at % 4;
        let stamp = format!("2026-03-04 05:{minute:02}:{second:02}");
        match at % 10 {
            0 | 1 => writeln!(
                text,
                "{prefix}[{stamp} TP{rank}] Prefill batch, #new-seq: {}, #new-token: {}, #cached-token: {}, \
                 token usage: 0.{:02}, #running-req: {}, #queue-req: {}, cuda graph: False, \
                 input throughput (token/s): 9{at}.25",
                at % 9,
                at % 8192,
                at % 700,
                at % 97,
                at % 120,
                at % 7,
            ),
            2..=6 => writeln!(
                text,
                "{prefix}[{stamp} TP{rank}] Decode batch, #running-req: {}, #token: {}, token usage: 0.{:02}, \
                 cuda graph: True, gen throughput (token/s): {at}.50, #queue-req: {}",
                at % 120,
                at * 3,
                at % 97,
                at % 7,
            ),
            9 if at % 1000 == 9 => writeln!(
                text,
                "{prefix}[{stamp} TP{rank}] KV cache pool is full. Retract requests. #retracted_reqs: 1, \
                 #new_tokens_gained: 812, #new_token_ratio: 0.5312 -> 0.7001"
            ),
            _ => writeln!(
                text,
                "{prefix}[{stamp}] INFO:     10.0.{}.{}:5{at:04} - \"POST /v1/chat/completions HTTP/1.1\" 200 OK",
                at % 7,
                at % 250,
            ),
        }
        .unwrap();
    }
    text
}

/// vLLM with its statistics, requests, and lines that say nothing.
fn vllm() -> String {
    let mut text = String::new();
    for at in 0..20_000_u32 {
        let (minute, second) = (at / 60 % 60, at % 60);
        match at % 8 {
            0 => writeln!(
                text,
                "(APIServer pid=77) INFO 03-04 05:{minute:02}:{second:02} [loggers.py:123] Engine 000: Avg prompt \
                 throughput: 12.5 tokens/s, Avg generation throughput: {at}.1 tokens/s, Running: {} reqs, \
                 Waiting: {} reqs, GPU KV cache usage: {}.3%, Prefix cache hit rate: 3.1%",
                at % 90,
                at % 5,
                at % 99,
            ),
            1..=4 => writeln!(
                text,
                "(APIServer pid=77) INFO:     10.0.0.{}:40{at:03} - \"POST /v1/completions HTTP/1.1\" 200 OK",
                at % 250,
            ),
            _ => writeln!(
                text,
                "(EngineCore_DP0 pid=91) DEBUG 03-04 05:{minute:02}:{second:02} [core.py:{at}] request cmpl-{at:08x} \
                 scheduled with parameters that nobody needs to know for anything at all"
            ),
        }
        .unwrap();
    }
    text
}

/// Seconds that the process has run on a core; Linux only. On a busy machine the clock on the wall says little.
fn busy() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/schedstat").ok()?;
    Some(text.split_whitespace().next()?.parse::<f64>().ok()? / 1e9)
}

/// The most memory that the process ever held, in MiB; Linux only.
fn peak() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? / 1024)
}

fn main() {
    let size =
        std::env::args().skip(1).find_map(|word| word.parse::<usize>().ok()).unwrap_or(954) << 20;
    let texts = [
        ("sglang, serving", sglang("")),
        ("sglang, docker stamps", sglang("2026-03-04T05:06:07.123456789Z ")),
        ("vllm, serving and debugging", vllm()),
        (
            "nothing of interest",
            "a line of some program that has nothing to do with memory\n".repeat(9000),
        ),
    ];
    for (name, text) in &texts {
        let mut again = Again { text: text.as_bytes(), at: 0, left: size };
        let (start, before) = (Instant::now(), busy());
        let log = read(&mut [Input { name: "log", text: &mut again }], Redact::Yes).unwrap();
        let wall = start.elapsed().as_secs_f64();
        let seconds = busy().zip(before).map_or(wall, |(after, before)| after - before);
        println!(
            "{name:28} {:5.2} GB in {seconds:5.2} s of a core ({wall:5.2} s on the clock), {:4.2} GB/s, {:3.0} ns a line, {} events, peak {} MiB",
            log.bytes as f64 / 1e9,
            log.bytes as f64 / 1e9 / seconds,
            seconds * 1e9 / log.lines as f64,
            log.events.len(),
            peak().unwrap_or(0),
        );
    }
}
