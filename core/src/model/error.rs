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
    #[error("`{}` is missing{}", shown(path), near.as_ref().map(|n| format!("; `{}` is there, is it meant?", shown(n))).unwrap_or_default())]
    Missing {
        /// Key path from the top of the file.
        path: String,
        /// The nearest key that is there.
        near: Option<String>,
    },
    /// A value of the wrong type or out of its range.
    #[error("`{}` is {}; allowed: {allowed}", shown(path), shown(value))]
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
        "architecture `{}` is not known (nearest known: {}); {cannot}",
        shown(architecture),
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
    #[error("architecture `{}` is recognised but not modelled: {what}", shown(architecture))]
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

/// Longest piece of a file that a message repeats, characters.
const SHOWN_CHARS: usize = 200;

/// A piece of a file for a message: shortened, and its control characters escaped, which would move
/// the cursor of a terminal.
pub(crate) fn shown(text: &str) -> String {
    let mut out = String::new();
    for (index, c) in text.chars().enumerate() {
        if index == SHOWN_CHARS {
            out.push('…');
            break;
        }
        if c.is_control() {
            out.extend(c.escape_debug());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_repeat_nothing_that_moves_the_cursor() {
        let value = format!("a\u{1b}[2J{}", "b".repeat(300));
        let error = ConfigError::Value { path: "k\n".to_owned(), value, allowed: "c".to_owned() };
        let text = error.to_string();
        assert!(text.starts_with("`k\\n` is a\\u{1b}[2Jb"), "{text}");
        assert!(text.ends_with("b…; allowed: c"), "{text}");
    }
}
