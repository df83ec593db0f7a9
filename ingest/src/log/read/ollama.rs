//! Lines of ollama: its scheduler's `key=value` records. Templates: releases of 2024 to 2026.

use super::fields::{after, uint_after};
use super::scan::{Known, amount, amount_after, bytes_after, read_by, words};
use crate::log::{Amount, Ollama};

const LINES: &[Known<Ollama>; 8] = &[
    ("requires more system memory", system_memory),
    ("model request too large for system", too_large),
    ("layers.offload=", offload),
    ("inference compute", device),
    ("msg=\"gpu memory\"", device),
    ("llama runner process has terminated", |_| Some(Ollama::RunnerEnded)),
    ("llama runner terminated", |_| Some(Ollama::RunnerEnded)),
    ("model runner has unexpectedly stopped", |_| Some(Ollama::RunnerEnded)),
];

/// Words of which every line that [`read`] understands holds at least one, in any case.
pub(super) const WORDS: &[&str] = &words(LINES);

/// What one undressed line says; `None` when it is no line of this server.
pub(super) fn read(line: &str) -> Option<Ollama> {
    read_by(LINES, line)
}

/// The amount of `key=…`, in quotes or list brackets or bare.
fn field(line: &str, key: &str) -> Option<Amount> {
    amount(after(line, key)?.trim_start_matches(['"', '[']))
}

/// `model requires more system memory (12.2 GiB) than is available (7.9 GiB)`.
fn system_memory(line: &str) -> Option<Ollama> {
    Some(Ollama::SystemMemory {
        required: amount_after(line, "system memory ("),
        available: amount_after(line, "available ("),
    })
}

/// `msg="model request too large for system" requested="12.0 GiB" available=8321499136 total=…`.
fn too_large(line: &str) -> Option<Ollama> {
    Some(Ollama::SystemMemory {
        required: field(line, "requested="),
        available: field(line, "available=").or_else(|| bytes_after(line, "available=")),
    })
}

/// `layers.model=49 layers.offload=41 … memory.required.full="18.2 GiB"`.
fn offload(line: &str) -> Option<Ollama> {
    let layers = |key| u32::try_from(uint_after(line, key)?).ok();
    Some(Ollama::Offload {
        required: field(line, "memory.required.full="),
        layers: layers("layers.offload=").zip(layers("layers.model=")),
    })
}

/// `msg="inference compute" … total="15.6 GiB" available="14.2 GiB"`.
fn device(line: &str) -> Option<Ollama> {
    let total = field(line, "total=");
    let free = field(line, "free=").or_else(|| field(line, "available="));
    (total.is_some() || free.is_some()).then_some(Ollama::Device { free, total })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_the_scheduler() {
        let line = "msg=offload library=cuda layers.requested=-1 layers.model=41 layers.offload=33 layers.split=\"\" \
                    memory.available=\"[7.1 GiB]\" memory.required.full=\"9.4 GiB\"";
        let Some(Ollama::Offload { required: Some(required), layers }) = read(line) else {
            panic!("no offload");
        };
        assert_eq!((required, layers), (Amount::gib(9.4, 1), Some((33, 41))));
        let line = "model requires more system memory (21.5 GiB) than is available (11.0 GiB)";
        let Some(Ollama::SystemMemory { required: Some(_), available: Some(there) }) = read(line)
        else {
            panic!("no refusal");
        };
        assert_eq!(there, Amount::gib(11.0, 1));
        assert_eq!(read("msg=\"inference compute\" id=0"), None);
    }
}
