//! Text to ids and back: from `tokenizer.json`, or from the vocabulary and merges in a GGUF file.
//!
//! From GGUF the tokenizer is built here, without a prefix space: "Once" at the start of a text is the
//! token `Once`, not ` Once`.

mod gguf;

use std::path::Path;

use plimsoll_catalog::files;
use plimsoll_core::model::gguf::MetaValue;
use serde_json::Value;

use crate::{Texts, error::CheckpointError};

/// Replacement character: what an incomplete UTF-8 sequence decodes to.
const BROKEN: char = '\u{fffd}';

/// A tokenizer; cheap to share.
#[derive(Debug)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    /// Put before a text, where `tokenizer.json` does not say so itself.
    begin: Option<u32>,
    /// Texts of the special tokens that templates name.
    pub(crate) bos: Option<String>,
    pub(crate) eos: Option<String>,
}

/// Whether the special tokens around a text are added.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Around {
    /// As the model's configuration says, for a plain prompt.
    Special,
    /// None: the template has written them.
    Nothing,
}

impl Tokenizer {
    pub(crate) fn open(texts: &Texts) -> Result<Self, CheckpointError> {
        match texts {
            Texts::Folder(folder) => Self::folder(folder),
            Texts::Gguf(path, header) => gguf::tokenizer(path, header),
        }
    }

    fn folder(folder: &Path) -> Result<Self, CheckpointError> {
        let path = folder.join("tokenizer.json");
        if !path.is_file() {
            let (path, needed) = (folder.to_owned(), "tokenizer.json");
            return Err(CheckpointError::NoTokenizer { path, needed });
        }
        let inner = files::read_text(&path)?.parse();
        let inner = inner.map_err(|error: tokenizers::Error| CheckpointError::Tokenizer {
            path: path.clone(),
            message: error.to_string(),
        })?;
        let config = json(&folder.join("tokenizer_config.json"))?;
        let named = |key: &str| {
            let value = config.get(key)?;
            let text = value.as_str().or_else(|| value.get("content").and_then(Value::as_str));
            text.map(str::to_owned)
        };
        Ok(Self { inner, begin: None, bos: named("bos_token"), eos: named("eos_token") })
    }

    /// A tokenizer from the text of a `tokenizer.json`, without named special tokens.
    ///
    /// # Errors
    /// `Encode` with what is wrong in it.
    pub fn parse(text: &str) -> Result<Self, CheckpointError> {
        let inner = text.parse();
        let inner = inner.map_err(|e: tokenizers::Error| CheckpointError::Encode(e.to_string()))?;
        Ok(Self { inner, begin: None, bos: None, eos: None })
    }

    /// Ids of a text.
    ///
    /// # Errors
    /// The tokenizer's own.
    pub fn encode(&self, text: &str, around: Around) -> Result<Vec<u32>, CheckpointError> {
        let special = around == Around::Special;
        let encoding = self.inner.encode(text, special);
        let encoding = encoding.map_err(|e| CheckpointError::Encode(e.to_string()))?;
        let begin = self.begin.filter(|_| special);
        Ok(begin.into_iter().chain(encoding.get_ids().iter().copied()).collect())
    }

    /// The text of ids; special tokens are left out.
    ///
    /// # Errors
    /// The tokenizer's own.
    pub fn decode(&self, ids: &[u32]) -> Result<String, CheckpointError> {
        self.inner.decode(ids, true).map_err(|e| CheckpointError::Encode(e.to_string()))
    }

    /// The text of ids; special tokens are written out.
    ///
    /// # Errors
    /// The tokenizer's own.
    pub fn decode_all(&self, ids: &[u32]) -> Result<String, CheckpointError> {
        self.inner.decode(ids, false).map_err(|e| CheckpointError::Encode(e.to_string()))
    }

    /// The token's text in the vocabulary.
    #[must_use]
    pub fn token(&self, id: u32) -> Option<String> {
        self.inner.id_to_token(id)
    }

    /// The id of a token's text in the vocabulary.
    #[must_use]
    pub fn id(&self, token: &str) -> Option<u32> {
        self.inner.token_to_id(token)
    }

    /// Size of the vocabulary, added tokens included.
    #[must_use]
    pub fn size(&self) -> usize {
        self.inner.get_vocab_size(true)
    }

    /// Every id that is no special token, ascending.
    #[must_use]
    pub fn plain_ids(&self) -> Vec<u32> {
        let added = self.inner.get_added_tokens_decoder();
        let is_special = |id: &u32| added.get(id).is_some_and(|token| token.special);
        let ids = 0..u32::try_from(self.size()).unwrap_or(u32::MAX);
        ids.filter(|id| !is_special(id) && self.inner.id_to_token(*id).is_some()).collect()
    }
}

/// Text of a growing list of ids, piece by piece: nothing is given out before its bytes are whole.
#[derive(Clone, Default, Debug)]
pub struct TextStream {
    ids: Vec<u32>,
    /// First id whose text is still needed to see what the next ones add.
    context: usize,
    /// Ids whose text was given out.
    given: usize,
}

impl TextStream {
    /// Adds an id; the text that is certain now, often empty.
    ///
    /// # Errors
    /// The tokenizer's own.
    pub fn push(&mut self, tokenizer: &Tokenizer, id: u32) -> Result<String, CheckpointError> {
        self.ids.push(id);
        let text = self.new_text(tokenizer)?;
        if text.ends_with(BROKEN) || text.is_empty() {
            return Ok(String::new());
        }
        self.context = self.given;
        self.given = self.ids.len();
        Ok(text)
    }

    /// What is left when no more ids come; bytes that are no text are replaced.
    ///
    /// # Errors
    /// The tokenizer's own.
    pub fn finish(&mut self, tokenizer: &Tokenizer) -> Result<String, CheckpointError> {
        let text = self.new_text(tokenizer)?;
        self.given = self.ids.len();
        self.context = self.given;
        Ok(text)
    }

    fn new_text(&self, tokenizer: &Tokenizer) -> Result<String, CheckpointError> {
        let all = tokenizer.decode(self.ids.get(self.context..).unwrap_or_default())?;
        let old = tokenizer.decode(self.ids.get(self.context..self.given).unwrap_or_default())?;
        Ok(all.strip_prefix(old.as_str()).unwrap_or_default().to_owned())
    }
}

/// A JSON file of the folder; null when it is not there.
fn json(path: &Path) -> Result<Value, CheckpointError> {
    if !path.is_file() {
        return Ok(Value::Null);
    }
    serde_json::from_str(&files::read_text(path)?).map_err(|error| CheckpointError::Tokenizer {
        path: path.to_owned(),
        message: error.to_string(),
    })
}

/// Ids that end a text: `generation_config.json`, `config.json`, the tokenizer's own; sorted.
pub(crate) fn end_ids(texts: &Texts, tokenizer: &Tokenizer) -> Result<Vec<u32>, CheckpointError> {
    let mut ids = Vec::new();
    match texts {
        Texts::Folder(folder) => {
            for file in ["generation_config.json", "config.json"] {
                match json(&folder.join(file))?.get("eos_token_id") {
                    Some(Value::Array(list)) => ids.extend(list.iter().filter_map(Value::as_u64)),
                    Some(value) => ids.extend(value.as_u64()),
                    None => {}
                }
            }
        }
        Texts::Gguf(_, header) => {
            for key in ["eos_token_id", "eot_token_id", "eom_token_id"] {
                if let Some(MetaValue::Unsigned(id)) = header.get(&format!("tokenizer.ggml.{key}"))
                {
                    ids.push(*id);
                }
            }
        }
    }
    let mut ids: Vec<u32> = ids.into_iter().filter_map(|id| u32::try_from(id).ok()).collect();
    ids.extend(tokenizer.eos.as_deref().and_then(|token| tokenizer.id(token)));
    ids.sort_unstable();
    ids.dedup();
    Ok(ids)
}

pub(crate) fn chat_template(texts: &Texts) -> Result<Option<String>, CheckpointError> {
    let folder = match texts {
        Texts::Gguf(_, header) => {
            return Ok(match header.get("tokenizer.chat_template") {
                Some(MetaValue::Text(text)) => Some(text.clone()),
                _ => None,
            });
        }
        Texts::Folder(folder) => folder,
    };
    let file = folder.join("chat_template.jinja");
    if file.is_file() {
        return Ok(Some(files::read_text(&file)?));
    }
    let config = json(&folder.join("tokenizer_config.json"))?;
    Ok(match config.get("chat_template") {
        Some(Value::String(text)) => Some(text.clone()),
        // Several by name: the default one.
        Some(Value::Array(list)) => {
            let named = |t: &&Value| t.get("name").and_then(Value::as_str) == Some("default");
            let found = list.iter().find(named).or(list.first());
            found.and_then(|t| t.get("template")).and_then(Value::as_str).map(str::to_owned)
        }
        _ => None,
    })
}
