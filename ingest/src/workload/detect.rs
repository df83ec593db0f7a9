//! Which format a file has, by what stands at its beginning.

use super::Format;
use serde_json::{Map, Value};

/// The format of a file that begins so.
pub(super) fn format(head: &[u8]) -> Result<Format, String> {
    let text = String::from_utf8_lossy(head);
    let text = text.trim_start_matches('\u{feff}').trim_start();
    let first = text.lines().next().unwrap_or_default();
    let found = match text.chars().next() {
        None => return Err("the file is empty".to_owned()),
        Some('[') => text.contains("\"conversation").then_some(Format::ShareGpt),
        Some('{') => match serde_json::from_str::<Map<String, Value>>(first) {
            Ok(row) => of_row(&|key| row.contains_key(key)),
            // The object goes on below, or the head is cut in it.
            Err(_) => of_row(&|key| text.contains(&format!("\"{key}\":"))),
        },
        Some(_) => of_header(first),
    };
    found.ok_or_else(|| {
        let names: Vec<&str> = Format::ALL.iter().map(|format| format.name()).collect();
        format!(
            "its first line shows no format that is known: `{}`; give one of {}",
            super::error::shown(first),
            names.join(", ")
        )
    })
}

fn of_row(has: &dyn Fn(&str) -> bool) -> Option<Format> {
    let format = if has("t_ns") {
        Format::Plimsoll
    } else if has("hash_id_scope") || has("dependencies") || has("wait_for") {
        Format::AgenticMooncake
    } else if has("input_lens") || has("num_prompts") || has("dataset_name") {
        // Both clients write their lengths so; only SGLang's names the data set and the server's state.
        match has("dataset_name") || has("server_info") || has("tag") {
            true => Format::SglangBench,
            false => Format::VllmBench,
        }
    } else if has("conversations") || has("conversation") {
        Format::ShareGpt
    } else if has("chat_id") || has("parent_chat_id") {
        Format::Alibaba
    } else if has("input_toks") {
        Format::LlmServingSim
    } else if has("session_id") || has("delay") {
        Format::MooncakeDelta
    } else if has("input_length") || has("hash_ids") {
        Format::Mooncake
    } else {
        return None;
    };
    Some(format)
}

fn of_header(line: &str) -> Option<Format> {
    let names: Vec<String> =
        super::tables::cells(line).iter().map(|cell| cell.trim().to_ascii_lowercase()).collect();
    let has = |name: &str| names.iter().any(|other| other == name);
    if has("contexttokens") {
        Some(Format::Azure)
    } else if has("request tokens") {
        Some(Format::BurstGpt)
    } else if has("num_prefill_tokens") {
        Some(Format::Vidur)
    } else {
        None
    }
}
