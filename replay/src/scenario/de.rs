//! From the tree to typed values, with structured errors: path, kind, value and what is allowed.
//! (serde's usual errors are sentences; a renderer needs the parts.)

use crate::path::{KeyPath, Step};
use crate::yaml::Part;
use serde::de::{
    self, DeserializeSeed, Deserializer, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, Visitor,
};
use serde_json::{Map, Value};
use std::fmt;

/// What is wrong with one value.
#[derive(Debug)]
pub(crate) enum FaultKind {
    /// A rule of a value type, as a sentence.
    Rule(String),
    /// Another type was expected.
    Type { expected: String },
    /// The type is right, the value is not.
    Value { expected: String },
    /// A word that is not one of `allowed`.
    Word { found: String, allowed: &'static [&'static str] },
    /// A key that is not one of `allowed`.
    UnknownKey { found: String, allowed: &'static [&'static str] },
    /// A key that must be there.
    MissingKey(&'static str),
}

/// A [`FaultKind`] and where it was found; the path is filled in by the innermost value.
#[derive(Debug)]
pub(crate) struct Fault {
    pub(crate) path: Option<KeyPath>,
    pub(crate) part: Part,
    pub(crate) kind: FaultKind,
}

impl Fault {
    fn new(kind: FaultKind) -> Self {
        Self { path: None, part: Part::Value, kind }
    }

    fn at(mut self, path: &KeyPath, part: Part) -> Self {
        if self.path.is_none() {
            self.path = Some(path.clone());
            self.part = part;
        }
        self
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.kind)
    }
}

impl std::error::Error for Fault {}

impl de::Error for Fault {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(FaultKind::Rule(message.to_string()))
    }

    fn invalid_type(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(FaultKind::Type { expected: expected.to_string() })
    }

    fn invalid_value(_: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::new(FaultKind::Value { expected: expected.to_string() })
    }

    fn unknown_variant(found: &str, allowed: &'static [&'static str]) -> Self {
        Self::new(FaultKind::Word { found: found.to_owned(), allowed })
    }

    fn unknown_field(found: &str, allowed: &'static [&'static str]) -> Self {
        Self::new(FaultKind::UnknownKey { found: found.to_owned(), allowed })
    }

    fn missing_field(name: &'static str) -> Self {
        Self::new(FaultKind::MissingKey(name))
    }
}

/// One value of the tree, with its path.
#[derive(Clone)]
pub(crate) struct Node<'de> {
    pub(crate) value: &'de Value,
    pub(crate) path: KeyPath,
}

impl<'de> Node<'de> {
    fn scalar<V: Visitor<'de>>(&self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(v) => visitor.visit_bool(*v),
            Value::String(v) => visitor.visit_borrowed_str(v),
            Value::Number(v) => match (v.as_u64(), v.as_i64(), v.as_f64()) {
                (Some(v), _, _) => visitor.visit_u64(v),
                (None, Some(v), _) => visitor.visit_i64(v),
                (None, None, v) => visitor.visit_f64(v.unwrap_or(f64::NAN)),
            },
            Value::Array(list) => {
                visitor.visit_seq(List { list: list.iter(), path: &self.path, next: 0 })
            }
            Value::Object(map) => {
                visitor.visit_map(Keys { map: map.iter(), path: &self.path, current: None })
            }
        }
    }
}

impl<'de> Deserializer<'de> for Node<'de> {
    type Error = Fault;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.scalar(visitor).map_err(|fault| fault.at(&self.path, Part::Value))
    }

    /// A key without a value counts as absent.
    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        let path = self.path.clone();
        match self.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
        .map_err(|fault| fault.at(&path, Part::Value))
    }

    /// A number where text is asked for is its text: the text's own rule then says what is wrong.
    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        match self.value {
            Value::Number(v) => visitor.visit_string(v.to_string()),
            _ => self.scalar(visitor),
        }
        .map_err(|fault| fault.at(&self.path, Part::Value))
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Fault> {
        self.deserialize_str(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault> {
        match self.value {
            Value::String(word) => {
                let word: de::value::StrDeserializer<'_, Fault> = word.as_str().into_deserializer();
                visitor.visit_enum(word)
            }
            _ => Err(Fault::new(FaultKind::Type { expected: one_of(words) })),
        }
        .map_err(|fault| fault.at(&self.path, Part::Value))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char bytes byte_buf unit unit_struct seq
        tuple tuple_struct map struct identifier ignored_any
    }
}

/// `a`, `b` or `c`, quoted.
pub(crate) fn one_of(words: &[&str]) -> String {
    match words {
        [] => String::new(),
        [only] => format!("`{only}`"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(|word| format!("`{word}`")).collect();
            format!("{} or `{last}`", first.join(", "))
        }
    }
}

struct List<'de, 'p> {
    list: std::slice::Iter<'de, Value>,
    path: &'p KeyPath,
    next: usize,
}

impl<'de> SeqAccess<'de> for List<'de, '_> {
    type Error = Fault;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault> {
        let Some(value) = self.list.next() else { return Ok(None) };
        let path = self.path.index(self.next);
        self.next += 1;
        seed.deserialize(Node { value, path }).map(Some)
    }
}

struct Keys<'de, 'p> {
    map: serde_json::map::Iter<'de>,
    path: &'p KeyPath,
    current: Option<(&'de String, &'de Value)>,
}

impl<'de> MapAccess<'de> for Keys<'de, '_> {
    type Error = Fault;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault> {
        self.current = self.map.next();
        let Some((key, _)) = self.current else { return Ok(None) };
        let text: de::value::BorrowedStrDeserializer<'de, Fault> =
            de::value::BorrowedStrDeserializer::new(key);
        seed.deserialize(text)
            .map(Some)
            .map_err(|fault| fault.at(&self.path.key(key), Part::Key(1)))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Fault> {
        let Some((key, value)) = self.current.take() else {
            return Err(de::Error::custom("a value without a key"));
        };
        let path = self.path.key(key);
        seed.deserialize(Node { value, path: path.clone() })
            .map_err(|fault| fault.at(&path, Part::Value))
    }
}

/// The value at `path`, if the tree has it.
pub(crate) fn get<'de>(tree: &'de Value, path: &KeyPath) -> Option<&'de Value> {
    path.0.iter().try_fold(tree, |value, step| match step {
        Step::Key(key) => value.get(key),
        Step::Index(index) => value.get(index),
    })
}

/// Removes the value at `path`; later elements of a list move up.
pub(crate) fn remove(tree: &mut Value, path: &KeyPath) {
    let Some((last, above)) = path.0.split_last() else { return };
    let parent = above.iter().try_fold(tree, |value, step| match step {
        Step::Key(key) => value.get_mut(key),
        Step::Index(index) => value.get_mut(index),
    });
    match (parent, last) {
        (Some(Value::Object(map)), Step::Key(key)) => {
            shift_remove(map, key);
        }
        (Some(Value::Array(list)), Step::Index(index)) if *index < list.len() => {
            list.remove(*index);
        }
        _ => {}
    }
}

fn shift_remove(map: &mut Map<String, Value>, key: &str) {
    let _removed: Option<Value> = map.shift_remove(key);
}
