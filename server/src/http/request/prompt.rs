//! Prompts: texts or ids, one or several, as they come and as tokens.

use std::{fmt, sync::Arc};

use plimsoll_checkpoint::Around;
use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor, value::SeqAccessDeserializer},
};

use super::MAX_CHOICES;
use crate::http::{error::ApiError, state::Shared};

/// Text that a context may need for each of its tokens, in bytes. Longer text is refused before it is
/// tokenized: that would take seconds, to come out too long.
const BYTES_PER_TOKEN: u64 = 64;
/// Text that is always tokenized.
const BYTES_ALWAYS: u64 = 64 << 10;

/// One prompt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum OnePrompt {
    /// A text.
    Text(String),
    /// Ids.
    Ids(Vec<u32>),
}

/// What stands under `prompt`, `text` or `input_ids`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Prompts {
    /// One.
    One(OnePrompt),
    /// A list, which may have one entry.
    Many(Vec<OnePrompt>),
}

/// A prompt as tokens.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Encoded {
    /// Its ids; not empty.
    pub(crate) ids: Arc<[u32]>,
    /// Its text, where it is to be repeated.
    pub(crate) echo: Option<String>,
}

impl<'de> Deserialize<'de> for OnePrompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Prompts::deserialize(deserializer)? {
            Prompts::One(one) => Ok(one),
            Prompts::Many(list) if list.is_empty() => Ok(Self::Ids(Vec::new())),
            Prompts::Many(_) => Err(serde::de::Error::custom("lists are nested too deep")),
        }
    }
}

impl<'de> Deserialize<'de> for Prompts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(PromptsVisitor)
    }
}

struct PromptsVisitor;

impl<'de> Visitor<'de> for PromptsVisitor {
    type Value = Prompts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a list of texts, a list of token ids, or a list of such lists")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Prompts, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E>(self, text: String) -> Result<Prompts, E> {
        Ok(Prompts::One(OnePrompt::Text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Prompts, A::Error> {
        match items.next_element()? {
            None => Ok(Prompts::Many(Vec::new())),
            Some(Item::Id(first)) => {
                let mut ids = vec![first];
                while let Some(id) = items.next_element()? {
                    ids.push(id);
                }
                Ok(Prompts::One(OnePrompt::Ids(ids)))
            }
            Some(Item::Prompt(first)) => {
                let mut list = vec![first];
                while let Some(item) = items.next_element()? {
                    list.push(item);
                }
                Ok(Prompts::Many(list))
            }
        }
    }
}

/// An entry of a list: an id, or a prompt of its own.
enum Item {
    Id(u32),
    Prompt(OnePrompt),
}

impl<'de> Deserialize<'de> for Item {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(ItemVisitor)
    }
}

struct ItemVisitor;

impl<'de> Visitor<'de> for ItemVisitor {
    type Value = Item;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a token id, a text or a list of token ids")
    }

    fn visit_u64<E: serde::de::Error>(self, id: u64) -> Result<Item, E> {
        u32::try_from(id)
            .map(Item::Id)
            .map_err(|_| E::invalid_value(serde::de::Unexpected::Unsigned(id), &"a token id"))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Item, E> {
        self.visit_string(text.to_owned())
    }

    fn visit_string<E>(self, text: String) -> Result<Item, E> {
        Ok(Item::Prompt(OnePrompt::Text(text)))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, items: A) -> Result<Item, A::Error> {
        let ids = Vec::<u32>::deserialize(SeqAccessDeserializer::new(items))?;
        Ok(Item::Prompt(OnePrompt::Ids(ids)))
    }
}

impl Prompts {
    /// All of them, and whether they came as a list.
    pub(crate) fn list(self) -> (Vec<OnePrompt>, bool) {
        match self {
            Self::One(one) => (vec![one], false),
            Self::Many(list) => (list, true),
        }
    }
}

/// How prompts are encoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Encoding {
    /// Whether the model's special tokens are put around a text.
    pub(super) around: Around,
    /// Whether the text is kept, to be repeated.
    pub(super) echo: bool,
}

/// Prompts as tokens.
///
/// # Errors
/// As of each.
pub(super) fn encode_all(
    shared: &Shared,
    prompts: Vec<OnePrompt>,
    how: Encoding,
) -> Result<Vec<Encoded>, ApiError> {
    if !(1..=MAX_CHOICES).contains(&prompts.len()) {
        let found = format!("a list of {}", prompts.len());
        return Err(ApiError::value("prompt", found, &format!("1 to {MAX_CHOICES} prompts")));
    }
    prompts.into_iter().map(|prompt| encode(shared, prompt, how)).collect()
}

/// A prompt as tokens.
///
/// # Errors
/// 413 for one that no context holds, 400 for an empty one or ids that the model does not have.
pub(super) fn encode(
    shared: &Shared,
    prompt: OnePrompt,
    how: Encoding,
) -> Result<Encoded, ApiError> {
    let tokenizer = &shared.front.tokenizer;
    let (ids, echo) = match prompt {
        OnePrompt::Text(text) => {
            check_text(shared, &text)?;
            (tokenizer.encode(&text, how.around)?, how.echo.then_some(text))
        }
        OnePrompt::Ids(ids) => {
            check_ids(shared, &ids)?;
            let text = how.echo.then(|| tokenizer.decode(&ids)).transpose()?;
            (ids, text)
        }
    };
    check_length(shared, ids.len() as u64)?;
    Ok(Encoded { ids: ids.into(), echo })
}

/// Refuses a text that is too long to be worth tokenizing.
pub(super) fn check_text(shared: &Shared, text: &str) -> Result<(), ApiError> {
    let context = shared.front.engine.info().context_length;
    let limit = context.saturating_mul(BYTES_PER_TOKEN).max(BYTES_ALWAYS);
    let bytes = text.len() as u64;
    if context == 0 || bytes <= limit {
        return Ok(());
    }
    Err(ApiError::prompt_too_long(format!(
        "the prompt has {bytes} bytes of text; for a context of {context} tokens at most {limit} \
         bytes are taken"
    )))
}

/// Refuses ids that the model does not have.
pub(super) fn check_ids(shared: &Shared, ids: &[u32]) -> Result<(), ApiError> {
    let most = shared.vocabulary;
    match ids.iter().find(|id| u64::from(**id) >= most) {
        None => Ok(()),
        Some(id) => {
            let allowed = format!("token ids from 0 to {}", most.saturating_sub(1));
            Err(ApiError::value("prompt", format!("a list with {id}"), &allowed))
        }
    }
}

fn check_length(shared: &Shared, tokens: u64) -> Result<(), ApiError> {
    let context = shared.front.engine.info().context_length;
    if tokens == 0 {
        return Err(ApiError::value("prompt", "empty", "at least one token"));
    }
    if context > 0 && tokens >= context {
        return Err(ApiError::prompt_too_long(format!(
            "the prompt has {tokens} tokens; the context is {context} tokens, of which the answer \
             needs at least one"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Prompts, String> {
        serde_json::from_str(text).map_err(|e| e.to_string())
    }

    #[test]
    fn four_forms() {
        let text = |text: &str| OnePrompt::Text(text.to_owned());
        assert_eq!(read("\"a\""), Ok(Prompts::One(text("a"))));
        assert_eq!(read("[\"a\",\"b\"]"), Ok(Prompts::Many(vec![text("a"), text("b")])));
        assert_eq!(read("[1,2]"), Ok(Prompts::One(OnePrompt::Ids(vec![1, 2]))));
        let lists = vec![OnePrompt::Ids(vec![1]), OnePrompt::Ids(vec![])];
        assert_eq!(read("[[1],[]]"), Ok(Prompts::Many(lists)));
        assert_eq!(read("[]"), Ok(Prompts::Many(vec![])));
        let wrong =
            ["1", "true", "{}", "[1,\"a\"]", "[-1]", "[1.5]", "[4294967296]", "[[[1]]]", "[{}]"];
        for wrong in wrong {
            assert!(read(wrong).is_err(), "{wrong}");
        }
    }
}
