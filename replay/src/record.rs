//! Records of the decision log: a kind, a rank, and fields in a fixed order, each with its digest.

use plimsoll_core::{
    pyfloat,
    units::{Bytes, Nanos, Tokens},
};

/// Which digests cover something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DigestScope {
    /// Both digests: it must agree across backends and machines.
    Decisions,
    /// The `full` digest alone: measured on a device or clock.
    Measured,
}

/// Value of a field. Integers wherever it counts something.
#[derive(Clone, PartialEq, Debug)]
pub enum FieldValue {
    /// Bytes, tokens, nanoseconds, counts.
    Unsigned(u64),
    /// A number that may be negative.
    Signed(i64),
    /// A number by which an engine decides; written as its shortest decimal that reads back the same.
    Float(f64),
    /// Text.
    Text(String),
    /// Truth.
    Flag(bool),
    /// Several values.
    List(Vec<FieldValue>),
}

macro_rules! from_values {
    ($($kind:ty => $make:expr),* $(,)?) => {
        $(impl From<$kind> for FieldValue {
            fn from(value: $kind) -> Self {
                let make: fn($kind) -> Self = $make;
                make(value)
            }
        })*
    };
}

from_values! {
    u64 => Self::Unsigned,
    u32 => |v| Self::Unsigned(u64::from(v)),
    i64 => |v| u64::try_from(v).map_or(Self::Signed(v), Self::Unsigned),
    f64 => Self::Float,
    bool => Self::Flag,
    String => Self::Text,
    &str => |v| Self::Text(v.to_owned()),
    Bytes => |v| Self::Unsigned(v.0),
    Tokens => |v| Self::Unsigned(v.0),
    Nanos => |v| Self::Unsigned(v.0),
    Vec<u64> => |v| Self::List(v.into_iter().map(Self::Unsigned).collect()),
    Vec<String> => |v| Self::List(v.into_iter().map(Self::Text).collect()),
}

impl FieldValue {
    /// Adds the value as JSON. Infinities and NaN, which JSON does not have, become texts.
    pub(crate) fn write(&self, out: &mut String) {
        match self {
            Self::Unsigned(v) => out.push_str(&v.to_string()),
            Self::Signed(v) => out.push_str(&v.to_string()),
            Self::Float(v) if v.is_finite() => out.push_str(&pyfloat::repr(*v)),
            Self::Float(v) => write_text(out, &format!("float:{v}")),
            Self::Flag(v) => out.push_str(if *v { "true" } else { "false" }),
            Self::Text(v) => write_text(out, v),
            Self::List(values) => {
                out.push('[');
                for (i, value) in values.iter().enumerate() {
                    if i > 0 {
                        out.push(',');
                    }
                    value.write(out);
                }
                out.push(']');
            }
        }
    }

    /// The value of a JSON value; `None` for null and mappings, which no record has.
    pub(crate) fn read(value: &serde_json::Value) -> Option<Self> {
        use serde_json::Value;
        match value {
            Value::Bool(v) => Some(Self::Flag(*v)),
            Value::Number(v) => v
                .as_u64()
                .map(Self::Unsigned)
                .or_else(|| v.as_i64().map(Self::Signed))
                .or_else(|| v.as_f64().map(Self::Float)),
            Value::String(v) => Some(match v.as_str() {
                "float:inf" => Self::Float(f64::INFINITY),
                "float:-inf" => Self::Float(f64::NEG_INFINITY),
                "float:NaN" => Self::Float(f64::NAN),
                _ => Self::Text(v.clone()),
            }),
            Value::Array(values) => {
                values.iter().map(Self::read).collect::<Option<_>>().map(Self::List)
            }
            Value::Null | Value::Object(_) => None,
        }
    }
}

impl std::fmt::Display for FieldValue {
    /// As in the log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut out = String::new();
        self.write(&mut out);
        f.write_str(&out)
    }
}

/// Adds `text` as a JSON string: quotes, backslashes and control characters are escaped, nothing else.
pub(crate) fn write_text(out: &mut String, text: &str) {
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04x}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
}

/// Fields in their order.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Fields {
    /// Covered by both digests.
    pub decided: Vec<(String, FieldValue)>,
    /// Covered by the `full` digest alone.
    pub measured: Vec<(String, FieldValue)>,
}

impl Fields {
    /// Adds a field at the end of its group.
    pub fn push(&mut self, scope: DigestScope, name: &str, value: impl Into<FieldValue>) {
        let group = match scope {
            DigestScope::Decisions => &mut self.decided,
            DigestScope::Measured => &mut self.measured,
        };
        group.push((name.to_owned(), value.into()));
    }

    /// The field of that name.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&FieldValue> {
        self.decided.iter().chain(&self.measured).find(|(n, _)| n == name).map(|(_, value)| value)
    }

    fn write(group: &[(String, FieldValue)], out: &mut String) {
        for (name, value) in group {
            out.push(',');
            write_text(out, name);
            out.push(':');
            value.write(out);
        }
    }

    /// Adds `,"name":value` for each decided field.
    pub(crate) fn write_decided(&self, out: &mut String) {
        Self::write(&self.decided, out);
    }

    /// Adds `,"measured":{...}` when there are measured fields.
    pub(crate) fn write_measured(&self, out: &mut String) {
        if self.measured.is_empty() {
            return;
        }
        let mut inner = String::new();
        Self::write(&self.measured, &mut inner);
        out.push_str(",\"measured\":{");
        out.push_str(inner.strip_prefix(',').unwrap_or(&inner));
        out.push('}');
    }
}

/// Keys of a line that no field may have.
pub const RESERVED: [&str; 7] = ["schema", "seq", "kind", "rank", "scope", "measured", "footer"];

/// One decision or observation.
#[derive(Clone, PartialEq, Debug)]
pub struct Record {
    /// Position in the log, from 0; the writer sets it.
    pub seq: u64,
    /// The rank it is about; `None` for the server as a whole.
    pub rank: Option<u32>,
    /// What it is, such as `pool_sized`.
    pub kind: String,
    /// [`DigestScope::Measured`] keeps the whole record out of the `decisions` digest.
    pub scope: DigestScope,
    /// Its fields.
    pub fields: Fields,
}

impl Record {
    /// A decision about the server as a whole, without fields yet.
    #[must_use]
    pub fn new(kind: &str) -> Self {
        Self {
            seq: 0,
            rank: None,
            kind: kind.to_owned(),
            scope: DigestScope::Decisions,
            fields: Fields::default(),
        }
    }

    /// An observation that no backend needs to repeat.
    #[must_use]
    pub fn measured(kind: &str) -> Self {
        Self { scope: DigestScope::Measured, ..Self::new(kind) }
    }

    /// About one rank.
    #[must_use]
    pub fn on_rank(mut self, rank: u32) -> Self {
        self.rank = Some(rank);
        self
    }

    /// Adds a field that both digests cover.
    #[must_use]
    pub fn with(mut self, name: &str, value: impl Into<FieldValue>) -> Self {
        self.fields.push(DigestScope::Decisions, name, value);
        self
    }

    /// Adds a field that the `full` digest alone covers.
    #[must_use]
    pub fn with_measured(mut self, name: &str, value: impl Into<FieldValue>) -> Self {
        self.fields.push(DigestScope::Measured, name, value);
        self
    }

    /// The line of the log, without its end.
    #[must_use]
    pub fn line(&self) -> String {
        let mut out = format!("{{\"seq\":{}", self.seq);
        if self.scope == DigestScope::Measured {
            out.push_str(",\"scope\":\"measured\"");
        }
        self.write_rest(&mut out);
        self.fields.write_measured(&mut out);
        out.push('}');
        out
    }

    /// What the `decisions` digest covers: no position, because measured records may stand between.
    #[must_use]
    pub fn decision_line(&self) -> Option<String> {
        if self.scope == DigestScope::Measured {
            return None;
        }
        let mut out = String::from("{");
        self.write_rest(&mut out);
        out.push('}');
        Some(out.replacen("{,", "{", 1))
    }

    fn write_rest(&self, out: &mut String) {
        if let Some(rank) = self.rank {
            out.push_str(&format!(",\"rank\":{rank}"));
        }
        out.push_str(",\"kind\":");
        write_text(out, &self.kind);
        self.fields.write_decided(out);
    }
}
