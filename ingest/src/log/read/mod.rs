//! From the text of logs to a [`Log`].
//!
//! `source` gives pieces of lines in constant memory, `filter` finds those that hold a telling word, `undress`
//! takes off what stands around them, the parsers (a file for each kind of line) read what they say, and
//! `collect` puts it together: who wrote it (`undress`), in which start (`starts`), what is kept (`kept`).

mod clues;
mod collect;
mod command;
mod devices;
mod fields;
mod filter;
mod frequent;
mod kept;
mod llama_cpp;
mod lmdeploy;
mod ollama;
mod redact;
mod scan;
mod server_args;
mod sglang;
mod source;
mod stamp;
mod starts;
mod system;
mod tensorrt_llm;
mod tgi;
mod torch;
mod traceback;
mod undress;
mod version;
mod vllm;

use std::io::{self, BufRead};

pub use redact::Redact;

use super::Log;
use collect::Collector;

/// A text to read.
pub struct Input<'a> {
    /// What it is called in remarks on the text itself.
    pub name: &'a str,
    /// The text: plain or gzip, UTF-8 or UTF-16 with a byte order mark.
    pub text: &'a mut dyn BufRead,
}

/// Reads logs, in the order given, as one.
///
/// # Errors
/// What a reader answers. Texts that are odd (cut off, no UTF-8) are no error but stand in [`Log::oddities`].
pub fn read(inputs: &mut [Input<'_>], redact: Redact) -> io::Result<Log> {
    let mut collector = Collector::new(redact);
    for (index, input) in inputs.iter_mut().enumerate() {
        collector.file(u16::try_from(index).unwrap_or(u16::MAX));
        let name = input.name;
        let amounts = source::pieces(input.text, &mut |piece| collector.piece(piece, name))?;
        collector.amounts(amounts.lines, amounts.bytes);
        if amounts.damaged {
            collector.odd(format!("{name}: the compressed file ends early or is damaged"));
        }
    }
    Ok(collector.finish())
}

/// Reads one text.
#[must_use]
pub fn read_text(text: &str) -> Log {
    let mut bytes = text.as_bytes();
    let mut inputs = [Input { name: "log", text: &mut bytes }];
    read(&mut inputs, Redact::Yes).unwrap_or_default()
}
