//! A byte-level BPE tokenizer from the vocabulary and merges of a GGUF file.

use std::path::Path;

use plimsoll_core::model::{
    gguf::{Gguf, MetaValue},
    near,
};
use serde_json::{Map, Value, json};

use super::Tokenizer;
use crate::error::CheckpointError;

/// How a text is cut before merges, by `tokenizer.ggml.pre`. Source: llama.cpp `llama-vocab.cpp` and the
/// `tokenizer.json` of the models that it names.
const CUTS: [(&str, Cut); 6] = [
    ("smollm", Cut::DigitsApart),
    ("llama-bpe", Cut::Llama3),
    ("llama3", Cut::Llama3),
    ("llama-v3", Cut::Llama3),
    ("qwen2", Cut::Qwen2),
    ("deepseek-r1-qwen", Cut::Qwen2),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Cut {
    /// Single digits, then GPT-2's pattern.
    DigitsApart,
    /// Llama 3's pattern: up to three digits; a whole word of the vocabulary is not merged.
    Llama3,
    /// Qwen 2's pattern: single digits; text is composed first (NFC).
    Qwen2,
}

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

impl Cut {
    fn pre_tokenizer(self) -> Value {
        let bytes = |pattern: bool| {
            json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                   "use_regex": pattern})
        };
        let split = |pattern: &str| {
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
                   "invert": false})
        };
        let parts = match self {
            Self::DigitsApart => {
                vec![json!({"type": "Digits", "individual_digits": true}), bytes(true)]
            }
            Self::Llama3 => vec![split(LLAMA3), bytes(false)],
            Self::Qwen2 => vec![split(QWEN2), bytes(false)],
        };
        json!({"type": "Sequence", "pretokenizers": parts})
    }

    fn normalizer(self) -> Value {
        if self == Self::Qwen2 { json!({"type": "NFC"}) } else { Value::Null }
    }
}

/// The tokenizer of a GGUF file.
pub(super) fn tokenizer(path: &Path, header: &Gguf) -> Result<Tokenizer, CheckpointError> {
    let meta = Meta { path, header };
    let kind = meta.text("model")?;
    if kind != "gpt2" {
        return Err(meta.wrong("model", kind, "gpt2 (byte-level BPE)".to_owned()));
    }
    let pre = meta.text("pre")?;
    let Some((_, cut)) = CUTS.iter().find(|(name, _)| *name == pre) else {
        let names = CUTS.map(|(name, _)| name);
        let near = near::nearest(pre, names, 50).map(|n| format!("; nearest: {n}"));
        let allowed = format!("{}{}", names.join(", "), near.unwrap_or_default());
        return Err(meta.wrong("pre", pre, allowed));
    };
    let tokens = meta.texts("tokens")?;
    let special = special(&meta, tokens)?;
    let text = document(*cut, tokens, meta.texts("merges")?, &special);
    let inner = text.to_string().parse().map_err(|error: tokenizers::Error| {
        let path = path.to_owned();
        CheckpointError::Tokenizer { path, message: error.to_string() }
    })?;
    let token = |key: &str| {
        let id = meta.number(key)?;
        Some((u32::try_from(id).ok()?, tokens.get(usize::try_from(id).ok()?)?.clone()))
    };
    let bos = token("bos_token_id");
    let adds = match header.get("tokenizer.ggml.add_bos_token") {
        Some(MetaValue::Bool(adds)) => *adds,
        _ => *cut == Cut::Llama3,
    };
    Ok(Tokenizer {
        inner,
        begin: bos.as_ref().map(|b| b.0).filter(|_| adds),
        bos: bos.map(|b| b.1),
        eos: token("eos_token_id").map(|e| e.1),
    })
}

/// Tokens that are found in a text before anything is cut: ids, and whether they are control tokens.
fn special(meta: &Meta<'_>, tokens: &[String]) -> Result<Vec<(usize, bool)>, CheckpointError> {
    let kinds: Vec<i64> = match meta.get("token_type") {
        Some(MetaValue::Integers(kinds)) => kinds.clone(),
        Some(MetaValue::Numbers(kinds)) => kinds.iter().map(|k| *k as i64).collect(),
        _ => Vec::new(),
    };
    if !kinds.is_empty() && kinds.len() != tokens.len() {
        let allowed = format!("a list of {} numbers", tokens.len());
        return Err(meta.wrong("token_type", &format!("a list of {}", kinds.len()), allowed));
    }
    // ggml's token types: 3 control, 4 user defined.
    let found = kinds.iter().enumerate().filter(|(_, kind)| matches!(kind, 3 | 4));
    Ok(found.map(|(id, kind)| (id, *kind == 3)).collect())
}

/// The same as a `tokenizer.json`.
fn document(cut: Cut, tokens: &[String], merges: &[String], special: &[(usize, bool)]) -> Value {
    let vocab: Map<String, Value> =
        tokens.iter().enumerate().map(|(id, token)| (token.clone(), json!(id))).collect();
    let added: Vec<Value> = special
        .iter()
        .filter_map(|(id, control)| {
            let content = tokens.get(*id)?;
            Some(json!({"id": id, "content": content, "single_word": false, "lstrip": false,
                        "rstrip": false, "normalized": false, "special": control}))
        })
        .collect();
    let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
                       "use_regex": true});
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": added,
        "normalizer": cut.normalizer(),
        "pre_tokenizer": cut.pre_tokenizer(),
        "post_processor": null,
        "decoder": bytes,
        "model": {"type": "BPE", "dropout": null, "unk_token": null,
                  "continuing_subword_prefix": null, "end_of_word_suffix": null,
                  "fuse_unk": false, "byte_fallback": false,
                  "ignore_merges": cut == Cut::Llama3,
                  "vocab": vocab, "merges": merges},
    })
}

struct Meta<'a> {
    path: &'a Path,
    header: &'a Gguf,
}

impl<'a> Meta<'a> {
    fn wrong(&self, key: &str, value: &str, allowed: String) -> CheckpointError {
        let (path, key) = (self.path.to_owned(), format!("tokenizer.ggml.{key}"));
        CheckpointError::Value { path, key, value: value.to_owned(), allowed }
    }

    fn get(&self, key: &str) -> Option<&'a MetaValue> {
        self.header.get(&format!("tokenizer.ggml.{key}"))
    }

    fn number(&self, key: &str) -> Option<u64> {
        match self.get(key) {
            Some(MetaValue::Unsigned(n)) => Some(*n),
            _ => None,
        }
    }

    fn text(&self, key: &'static str) -> Result<&'a str, CheckpointError> {
        match self.get(key) {
            Some(MetaValue::Text(text)) => Ok(text),
            Some(_) => Err(self.wrong(key, "not a text", "a text".to_owned())),
            None => Err(self.none()),
        }
    }

    fn texts(&self, key: &'static str) -> Result<&'a [String], CheckpointError> {
        match self.get(key) {
            Some(MetaValue::Texts(texts)) => Ok(texts),
            Some(_) => Err(self.wrong(key, "not a list of texts", "a list of texts".to_owned())),
            None => Err(self.none()),
        }
    }

    fn none(&self) -> CheckpointError {
        let needed = "tokenizer.ggml.model, .pre, .tokens or .merges";
        CheckpointError::NoTokenizer { path: self.path.to_owned(), needed }
    }
}
