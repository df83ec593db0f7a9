//! Result files of the engines' benchmark clients: what they sent, and when.

use super::{
    Format, Reading,
    error::{BadRow, ImportError},
    json::{self, SECONDS},
    trace::NewRow,
};
use serde::Deserialize;
use std::io::BufRead;

/// What is taken of a result; all else is skipped.
#[derive(Deserialize, Default)]
struct BenchResult {
    input_lens: Option<Vec<u64>>,
    output_lens: Option<Vec<u64>>,
    start_times: Option<Vec<f64>>,
    #[serde(default)]
    errors: Vec<Option<String>>,
    request_rate: Option<Rate>,
    max_concurrency: Option<u64>,
}

/// `inf` is a word in vLLM's files and a number without digits in SGLang's.
#[derive(Deserialize)]
#[serde(untagged)]
enum Rate {
    Number(f64),
    Word(String),
}

impl Rate {
    fn finite(&self) -> Option<f64> {
        match self {
            Self::Number(rate) => Some(*rate),
            Self::Word(word) => word.parse().ok(),
        }
        .filter(|rate: &f64| rate.is_finite())
    }
}

pub(super) fn read(input: &mut dyn BufRead, reading: &mut Reading<'_>) -> Result<(), ImportError> {
    let name = reading.format.name();
    let mut results =
        serde_json::Deserializer::from_reader(Finite::new(input)).into_iter::<BenchResult>();
    let (mut last, mut count) = (None, 0_u64);
    for result in &mut results {
        let result = result.map_err(|error| {
            let bad = json::bad("", &error);
            let (line, column) = (error.line() as u64, Some(error.column() as u64));
            ImportError::Row(BadRow { column, ..bad }.at(line, column))
        })?;
        count += 1;
        last = Some(result);
    }
    let Some(result) = last else { return Err(ImportError::File("the file is empty".to_owned())) };
    if count > 1 {
        reading.notes.push(format!("the file has {count} results; the last one is taken"));
    }
    let (Some(inputs), Some(outputs)) = (&result.input_lens, &result.output_lens) else {
        let flag = match reading.format {
            Format::SglangBench => "--output-details",
            _ => "--save-result --save-detailed",
        };
        let message =
            format!("`{name}` without `input_lens` and `output_lens`: it was run without {flag}");
        return Err(ImportError::File(message));
    };
    if inputs.len() != outputs.len() {
        let (a, b) = (inputs.len(), outputs.len());
        return Err(ImportError::File(format!(
            "`input_lens` has {a} values and `output_lens` {b}"
        )));
    }
    say_when(&result, inputs.len(), reading);
    for (at, (input, output)) in inputs.iter().zip(outputs).enumerate() {
        if reading.is_full() {
            break;
        }
        row(&result, at, (*input, *output), reading)?;
    }
    Ok(())
}

/// What is known of the times.
fn say_when(result: &BenchResult, rows: usize, reading: &mut Reading<'_>) {
    if result.start_times.as_ref().is_some_and(|times| times.len() == rows) {
        return;
    }
    reading.rows.set_concurrency(result.max_concurrency.filter(|most| *most > 0));
    let rate = result.request_rate.as_ref().and_then(Rate::finite);
    reading.notes.push(match (rate, result.max_concurrency) {
        (Some(rate), _) => {
            format!("the file has no `start_times`: all are due at once; it was run at {rate} requests a second")
        }
        (None, Some(most)) => {
            format!("the file has no `start_times`: at most {most} are under way, as when it was run")
        }
        (None, None) => "the file has no `start_times`: all are due at once".to_owned(),
    });
}

fn row(
    result: &BenchResult,
    at: usize,
    (input, output): (u64, u64),
    reading: &mut Reading<'_>,
) -> Result<(), ImportError> {
    let number = at as u64 + 1;
    if result.errors.get(at).is_some_and(|error| error.as_deref().is_some_and(|e| !e.is_empty()))
        && output == 0
    {
        reading.drops.unwanted("they have no answer: they failed", number);
        return Ok(());
    }
    let times = result.start_times.as_ref().filter(|times| Some(times.len()) == lens(result));
    let time = match times.and_then(|times| times.get(at)) {
        None => Ok(plimsoll_core::units::Nanos(0)),
        Some(time) => json::nanos("start_times", *time, SECONDS),
    };
    match time {
        Err(bad) => reading.drops.bad(bad.at(number, None)),
        Ok(at) => {
            let Some(lengths) = reading.lengths(number, input, output)? else { return Ok(()) };
            let (input, output) = (lengths.input, lengths.output);
            reading.rows.push(NewRow { at, input, output, ..NewRow::default() });
            Ok(())
        }
    }
}

fn lens(result: &BenchResult) -> Option<usize> {
    result.input_lens.as_ref().map(Vec::len)
}

/// Python writes `Infinity` and `NaN` where JSON has no number: they are read as `null`. Inside texts they
/// stay.
struct Finite<'a> {
    input: &'a mut dyn BufRead,
    out: Vec<u8>,
    at: usize,
    quoted: bool,
    escaped: bool,
}

impl<'a> Finite<'a> {
    const fn new(input: &'a mut dyn BufRead) -> Self {
        Self { input, out: Vec::new(), at: 0, quoted: false, escaped: false }
    }

    /// The next piece; a word is never cut, because all of its letters are taken at once.
    fn fill(&mut self) -> std::io::Result<()> {
        self.out.clear();
        self.at = 0;
        while self.out.is_empty() {
            let bytes = self.input.fill_buf()?;
            let Some(first) = bytes.first().copied() else { return Ok(()) };
            let letter = |byte: &u8| byte.is_ascii_alphabetic();
            if !self.quoted && letter(&first) {
                let mut word = Vec::new();
                loop {
                    let bytes = self.input.fill_buf()?;
                    let len = bytes.iter().take_while(|byte| letter(byte)).count();
                    word.extend_from_slice(&bytes[..len]);
                    let ended = len < bytes.len() || bytes.is_empty() || word.len() > 16;
                    self.input.consume(len);
                    if ended {
                        break;
                    }
                }
                match word.as_slice() {
                    b"Infinity" | b"NaN" => {
                        // A sign before it belongs to it.
                        self.out.extend_from_slice(b"null");
                    }
                    word => self.out.extend_from_slice(word),
                }
                continue;
            }
            let mut taken = 0;
            for byte in bytes {
                if !self.quoted && letter(byte) {
                    break;
                }
                taken += 1;
                self.quoted ^= *byte == b'"' && !self.escaped;
                self.escaped = self.quoted && *byte == b'\\' && !self.escaped;
                self.out.push(*byte);
            }
            self.input.consume(taken);
        }
        Ok(())
    }
}

impl std::io::Read for Finite<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        if self.at >= self.out.len() {
            self.fill()?;
        }
        let left = self.out.get(self.at..).unwrap_or_default();
        let len = left.len().min(into.len());
        into[..len].copy_from_slice(&left[..len]);
        self.at += len;
        Ok(len)
    }
}
