//! What can be wrong with a model configuration, with the key's path and what is allowed.

/// Why a configuration gives no geometry.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Not JSON.
    #[error("line {line}, column {column}: not valid JSON: {message}")]
    Json {
        /// 1-based line.
        line: usize,
        /// 1-based column.
        column: usize,
        /// The parser's words.
        message: String,
    },
    /// A key that the architecture needs is not there.
    #[error("`{path}` is missing{}", near.as_ref().map(|n| format!("; `{n}` is there, is it meant?")).unwrap_or_default())]
    Missing {
        /// Key path from the top of the file.
        path: String,
        /// The nearest key that is there.
        near: Option<String>,
    },
    /// A value of the wrong type or out of its range.
    #[error("`{path}` is {value}; allowed: {allowed}")]
    Value {
        /// Key path from the top of the file.
        path: String,
        /// As written, shortened.
        value: String,
        /// What would be right.
        allowed: String,
    },
    /// No rule for this architecture.
    #[error(
        "architecture `{architecture}` is not known (nearest known: {}); {cannot}",
        nearest.unwrap_or("none")
    )]
    UnknownArchitecture {
        /// `architectures[0]`, or `model_type` when that is missing.
        architecture: String,
        /// The known name nearest to it.
        nearest: Option<&'static str>,
        /// What cannot be known, and what to give instead.
        cannot: &'static str,
    },
    /// Recognised, but its rules are not in this version.
    #[error("architecture `{architecture}` is recognised but not modelled: {what}")]
    NotModelled {
        /// `architectures[0]`.
        architecture: String,
        /// The part that is not modelled, and what to give instead.
        what: &'static str,
    },
}

/// What an unknown architecture leaves open.
pub(crate) const CANNOT: &str = "its KV bytes per token and its weights cannot be known from the \
     configuration; give them with --kv-bytes-per-token and --weights";
