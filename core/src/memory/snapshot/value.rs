//! Free-form parts of a snapshot.

/// A value of a snapshot that has no fixed shape.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// `None`, `null`.
    Null,
    /// Truth value.
    Bool(bool),
    /// Whole number.
    Int(i64),
    /// Floating-point number.
    Float(f64),
    /// Text.
    Str(String),
    /// List or tuple.
    List(Vec<Self>),
    /// Entries in their order.
    Dict(Vec<(String, Self)>),
}

impl Value {
    /// The value of a key, when this is a dictionary that has it.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Self> {
        match self {
            Self::Dict(entries) => entries.iter().find(|(k, _)| k == key).map(|(_, value)| value),
            _ => None,
        }
    }
}
