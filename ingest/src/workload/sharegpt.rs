//! ShareGPT: a list of conversations, or one a line. Only the first two turns count, as in both engines'
//! benchmark clients. Of the words only their number is kept, one conversation at a time.

use super::{
    Filter, Reading,
    error::{BadRow, ImportError},
    json,
    trace::NewRow,
};
use serde::{
    Deserialize, Deserializer,
    de::{self, IgnoredAny, MapAccess, SeqAccess, Visitor},
};
use std::{fmt, io::BufRead};

/// Length of a turn.
#[derive(Clone, Copy)]
enum Length {
    Characters(u64),
    Tokens(u64),
}

/// A conversation: its first two turns, and how many it has; or what stands in its place.
#[derive(Default)]
struct Conversation {
    turns: Vec<Option<Length>>,
    count: u64,
    is_object: bool,
    found: bool,
}

/// Whatever stands where something else should.
struct Other;

macro_rules! other {
    ($($visit:ident: $of:ty),*) => {
        $(fn $visit<E: de::Error>(self, _: $of) -> Result<Self::Value, E> {
            Ok(Self::Value::from(Other))
        })*
        fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
            Ok(Self::Value::from(Other))
        }
    };
}

impl From<Other> for Conversation {
    fn from(_: Other) -> Self {
        Self::default()
    }
}

impl<'de> Deserialize<'de> for Conversation {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Parts;
        impl<'de> Visitor<'de> for Parts {
            type Value = Conversation;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a conversation")
            }
            other!(visit_bool: bool, visit_u64: u64, visit_i64: i64, visit_f64: f64, visit_str: &str);
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Conversation, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Conversation::default())
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Conversation, A::Error> {
                let mut conversation = Conversation { is_object: true, ..Conversation::default() };
                while let Some(key) = map.next_key::<Key>()? {
                    if !key.is("conversations") && !key.is("conversation") {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    }
                    let Turns { first, count, is_list } = map.next_value()?;
                    conversation.found |= is_list;
                    conversation.turns = first;
                    conversation.count = count;
                }
                Ok(conversation)
            }
        }
        d.deserialize_any(Parts)
    }
}

/// A key; a long one is none that counts.
struct Key([u8; 16]);

impl Key {
    fn is(&self, name: &str) -> bool {
        let mut other = [0; 16];
        other[..name.len()].copy_from_slice(name.as_bytes());
        self.0 == other
    }
}

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Text;
        impl Visitor<'_> for Text {
            type Value = Key;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a key")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Key, E> {
                let mut key = [0; 16];
                if let Some(part) = key.get_mut(..text.len()) {
                    part.copy_from_slice(text.as_bytes());
                }
                Ok(Key(key))
            }
        }
        d.deserialize_str(Text)
    }
}

#[derive(Default)]
struct Turns {
    first: Vec<Option<Length>>,
    count: u64,
    is_list: bool,
}

impl From<Other> for Turns {
    fn from(_: Other) -> Self {
        Self::default()
    }
}

impl<'de> Deserialize<'de> for Turns {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct List;
        impl<'de> Visitor<'de> for List {
            type Value = Turns;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of turns")
            }
            other!(visit_bool: bool, visit_u64: u64, visit_i64: i64, visit_f64: f64, visit_str: &str);
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Turns, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Turns::default())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Turns, A::Error> {
                let mut turns = Turns { is_list: true, ..Turns::default() };
                while turns.first.len() < 2 {
                    let Some(Turn(length)) = list.next_element()? else { break };
                    turns.first.push(length);
                    turns.count += 1;
                }
                while list.next_element::<IgnoredAny>()?.is_some() {
                    turns.count += 1;
                }
                Ok(turns)
            }
        }
        d.deserialize_any(List)
    }
}

/// One turn: its tokens where it says them, else the characters of its words.
struct Turn(Option<Length>);

impl From<Other> for Turn {
    fn from(_: Other) -> Self {
        Self(None)
    }
}

impl<'de> Deserialize<'de> for Turn {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Parts;
        impl<'de> Visitor<'de> for Parts {
            type Value = Turn;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a turn")
            }
            other!(visit_bool: bool, visit_u64: u64, visit_i64: i64, visit_f64: f64, visit_str: &str);
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Turn, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Turn(None))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Turn, A::Error> {
                let (mut words, mut tokens) = (None, None);
                while let Some(key) = map.next_key::<Key>()? {
                    if key.is("value") || key.is("content") {
                        words = map.next_value::<Characters>()?.0;
                    } else if key.is("tokens") {
                        tokens = map.next_value::<Characters>()?.1;
                    } else {
                        map.next_value::<IgnoredAny>()?;
                    }
                }
                Ok(Turn(tokens.map(Length::Tokens).or(words.map(Length::Characters))))
            }
        }
        d.deserialize_any(Parts)
    }
}

/// Characters of a text, or a number.
struct Characters(Option<u64>, Option<u64>);

impl From<Other> for Characters {
    fn from(_: Other) -> Self {
        Self(None, None)
    }
}

impl<'de> Deserialize<'de> for Characters {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        struct Text;
        impl<'de> Visitor<'de> for Text {
            type Value = Characters;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a text or a number")
            }
            other!(visit_bool: bool, visit_i64: i64, visit_f64: f64);
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Characters, E> {
                Ok(Characters(None, Some(number)))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Characters, E> {
                Ok(Characters(Some(text.chars().count() as u64), None))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Characters, A::Error> {
                while list.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Characters(None, None))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Characters, A::Error> {
                while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Characters(None, None))
            }
        }
        d.deserialize_any(Text)
    }
}

/// Takes conversations as they come.
struct Taker<'r, 'o> {
    reading: &'r mut Reading<'o>,
    number: u64,
    estimated: u64,
    end: Option<ImportError>,
}

impl Taker<'_, '_> {
    fn tokens(&mut self, length: Length) -> u64 {
        match length {
            Length::Tokens(tokens) => tokens,
            Length::Characters(characters) => {
                self.estimated += 1;
                // Nearest token, half up.
                (characters as f64 / self.reading.options.chars_per_token + 0.5).floor() as u64
            }
        }
    }

    fn take(&mut self, conversation: &Conversation) {
        self.number += 1;
        if let Err(end) = self.row(conversation) {
            self.end.get_or_insert(end);
        }
    }

    fn row(&mut self, conversation: &Conversation) -> Result<(), ImportError> {
        let line = self.number;
        let bad = |field: &str, expected: &str| BadRow::missing(field, expected).at(line, None);
        if !conversation.is_object || !conversation.found {
            let expected = "an object with a list of turns";
            return self.reading.drops.bad(bad("conversations", expected));
        }
        if conversation.count < 2 {
            self.reading.drops.unwanted("they have fewer than two turns", line);
            return Ok(());
        }
        let [Some(prompt), Some(answer)] = conversation.turns.as_slice() else {
            return self.reading.drops.bad(bad("value", "a text in each of the first two turns"));
        };
        let (input, output) = (self.tokens(*prompt), self.tokens(*answer));
        if let Some(reason) = unwanted(input, output, self.reading.options) {
            self.reading.drops.unwanted(reason, line);
            return Ok(());
        }
        let Some(lengths) = self.reading.lengths(line, input, output)? else { return Ok(()) };
        let (input, output) = (lengths.input, lengths.output);
        self.reading.rows.push(NewRow { input, output, ..NewRow::default() });
        Ok(())
    }
}

/// Why the filter leaves a conversation out.
fn unwanted(input: u64, output: u64, options: &super::Options) -> Option<&'static str> {
    let together = input.saturating_add(output);
    let context = options.context_length.is_some_and(|most| together > most);
    match options.filter {
        Filter::All => None,
        Filter::Sglang if input < 2 || output < 2 => Some("a side has fewer than 2 tokens"),
        Filter::Sglang if context => Some("they are longer than the context"),
        Filter::Sglang => None,
        Filter::Vllm if input < 4 || output < 4 => Some("a side has fewer than 4 tokens"),
        Filter::Vllm if input > 1024 || together > 2048 => {
            Some("the prompt is above 1024 tokens, or both sides above 2048")
        }
        Filter::Vllm => None,
    }
}

/// The list as a whole: its elements are taken one by one.
struct Whole<'t, 'r, 'o>(&'t mut Taker<'r, 'o>);

impl<'de> de::DeserializeSeed<'de> for Whole<'_, '_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Whole<'_, '_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of conversations")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        while self.0.end.is_none() && !self.0.reading.is_full() {
            match list.next_element::<Conversation>()? {
                Some(conversation) => self.0.take(&conversation),
                None => return Ok(()),
            }
        }
        // Not looked at; ends the reading without an error about what follows.
        Err(de::Error::custom("enough"))
    }
}

pub(super) fn read(input: &mut dyn BufRead, reading: &mut Reading<'_>) -> Result<(), ImportError> {
    let is_list = loop {
        match input.fill_buf()?.first().copied() {
            Some(byte) if byte.is_ascii_whitespace() => input.consume(1),
            first => break first == Some(b'['),
        }
    };
    let mut taker = Taker { reading, number: 0, estimated: 0, end: None };
    let mut json = serde_json::Deserializer::from_reader(input);
    let failed = if is_list {
        de::DeserializeSeed::deserialize(Whole(&mut taker), &mut json).err()
    } else {
        lines(&mut taker, json)
    };
    let full = taker.reading.is_full();
    let (number, estimated, end) = (taker.number, taker.estimated, taker.end);
    if let Some(end) = end {
        return Err(end);
    }
    if let Some(error) = failed.filter(|_| !full) {
        let place = (error.line() as u64, Some(error.column() as u64));
        let bad = BadRow { line: place.0, column: place.1, ..json::bad("", &error) };
        return Err(ImportError::File(format!("after {number} conversations: {bad}")));
    }
    if estimated > 0 {
        reading.notes.push(format!(
            "lengths are estimates, at {} characters a token: give the turns `tokens` for measured ones",
            reading.options.chars_per_token
        ));
    }
    let note = "the file has no times: all rows are due at once, or at the rate that is given";
    reading.notes.push(note.to_owned());
    Ok(())
}

/// One conversation after the other, without a list around them.
fn lines<'de, R: serde_json::de::Read<'de>>(
    taker: &mut Taker<'_, '_>,
    json: serde_json::Deserializer<R>,
) -> Option<serde_json::Error> {
    for conversation in json.into_iter::<Conversation>() {
        match conversation {
            Ok(conversation) => taker.take(&conversation),
            Err(error) => return Some(error),
        }
        if taker.end.is_some() || taker.reading.is_full() {
            return None;
        }
    }
    None
}
