//! Single tokens as text and bytes, with their logprobs.

use plimsoll_backend_host::model::Logprob;
use plimsoll_checkpoint::Tokenizer;

/// What is told of a probability of 0, for which JSON has no number.
const LEAST: f32 = -9999.0;

/// A token by itself.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TokenText {
    /// Its text. Of a token that is no whole text, its bytes as `bytes:\xe2\x80`.
    pub(super) text: String,
    /// Its bytes.
    pub(super) bytes: Vec<u8>,
}

/// A token by itself.
pub(super) fn text(tokenizer: &Tokenizer, id: u32) -> TokenText {
    let name = tokenizer.token(id).unwrap_or_default();
    let decoded = tokenizer.decode(&[id]).unwrap_or_default();
    if decoded.contains('\u{fffd}')
        && let Some(bytes) = bytes_of_name(&name)
    {
        if let Ok(text) = String::from_utf8(bytes.clone()) {
            return TokenText { text, bytes };
        }
        let escaped: String = bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
        return TokenText { text: format!("bytes:{escaped}"), bytes };
    }
    // A special token is no text: its name stands for it.
    let text = if decoded.is_empty() { name } else { decoded };
    TokenText { bytes: text.clone().into_bytes(), text }
}

/// Bytes behind a name in a vocabulary of bytes: characters that stand for bytes, or `<0xE2>`.
fn bytes_of_name(name: &str) -> Option<Vec<u8>> {
    let hex = name.strip_prefix("<0x").and_then(|rest| rest.strip_suffix('>'));
    if let Some(byte) = hex.and_then(|hex| u8::from_str_radix(hex, 16).ok()) {
        return Some(vec![byte]);
    }
    name.chars().map(byte_of).collect()
}

/// The byte that a character of a byte-level vocabulary stands for: printable ones of Latin-1 for themselves,
/// the others in their order from 256 on.
fn byte_of(c: char) -> Option<u8> {
    let code = u32::from(c);
    let itself = |code: u32| matches!(code, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    if itself(code) {
        return u8::try_from(code).ok();
    }
    let place = code.checked_sub(256)?;
    let others = (0..=255_u8).filter(|byte| !itself(u32::from(*byte)));
    others.into_iter().nth(place as usize)
}

/// A logprob that JSON can hold.
pub(super) fn finite(logprob: f32) -> f32 {
    // Also of what is not a number.
    if logprob > LEAST { logprob } else { LEAST }
}

/// The likeliest tokens with their texts.
pub(super) fn texts<'a>(
    tokenizer: &'a Tokenizer,
    top: &'a [Logprob],
) -> impl Iterator<Item = (TokenText, f32)> + 'a {
    top.iter().map(|one| (text(tokenizer, one.token), finite(one.logprob)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_bytes() {
        assert_eq!(bytes_of_name("Ġa"), Some(b" a".to_vec()));
        assert_eq!(bytes_of_name("Ċ"), Some(b"\n".to_vec()));
        assert_eq!(bytes_of_name("Ã"), Some(vec![0xc3]));
        assert_eq!(bytes_of_name("<0xE2>"), Some(vec![0xe2]));
        assert_eq!(bytes_of_name("\u{143}"), Some(vec![0xad]));
        assert_eq!(bytes_of_name("東"), None);
        assert_eq!(finite(f32::NEG_INFINITY), LEAST);
        assert_eq!(finite(f32::NAN), LEAST);
    }
}
