//! What is wrong with a scenario file: code, place, value, allowed range, near name, source excerpt.
//! All problems of one file travel together, so that they are shown together.

use crate::path::KeyPath;
use serde_json::{Value, json};
use std::fmt::{self, Write as _};

/// Kinds of problems in scenario files; the codes are stable.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Code {
    /// The text is not YAML.
    Syntax,
    /// The text is larger, deeper or expands further than is read.
    TooLarge,
    /// A key stands twice in one mapping.
    DuplicateKey,
    /// A key that the format does not have.
    UnknownKey,
    /// A required key is absent.
    MissingKey,
    /// A value of another type, for example a list for an amount.
    WrongType,
    /// The type is right, the value is not allowed: out of range, no unit, unknown word.
    BadValue,
    /// Keys that are right on their own contradict each other.
    Contradiction,
    /// An override that cannot be applied.
    Override,
    /// The file or folder cannot be read.
    Unreadable,
}

impl Code {
    /// Every code, in the order of its number.
    pub const ALL: [Self; 10] = [
        Self::Syntax,
        Self::TooLarge,
        Self::DuplicateKey,
        Self::UnknownKey,
        Self::MissingKey,
        Self::WrongType,
        Self::BadValue,
        Self::Contradiction,
        Self::Override,
        Self::Unreadable,
    ];

    /// The stable code, `PLM101` to `PLM110`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Syntax => "PLM101",
            Self::TooLarge => "PLM102",
            Self::DuplicateKey => "PLM103",
            Self::UnknownKey => "PLM104",
            Self::MissingKey => "PLM105",
            Self::WrongType => "PLM106",
            Self::BadValue => "PLM107",
            Self::Contradiction => "PLM108",
            Self::Override => "PLM109",
            Self::Unreadable => "PLM110",
        }
    }

    /// One sentence on what the code means.
    #[must_use]
    pub const fn meaning(self) -> &'static str {
        match self {
            Self::Syntax => "The text is not YAML.",
            Self::TooLarge => "The text is larger, deeper or expands further than a scenario may.",
            Self::DuplicateKey => "A key stands twice in one mapping.",
            Self::UnknownKey => "The scenario format has no such key.",
            Self::MissingKey => "A required key is absent.",
            Self::WrongType => "A value has another type than its key takes.",
            Self::BadValue => "A value lies outside what its key allows.",
            Self::Contradiction => "Two keys contradict each other.",
            Self::Override => "An override of the form path=value cannot be applied.",
            Self::Unreadable => "A file or folder cannot be read.",
        }
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Line and column in a text, both counted from 1, columns in characters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Position {
    /// Line, from 1.
    pub line: usize,
    /// Column in characters, from 1.
    pub column: usize,
}

impl Position {
    /// The first character of a text.
    pub const START: Self = Self { line: 1, column: 1 };
}

/// Where a problem lies.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the text of the file.
    Text(Position),
    /// In an override, given as it was typed.
    Override(String),
    /// The file as a whole.
    File,
}

/// One problem.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Its kind.
    pub code: Code,
    /// Where it lies.
    pub place: Place,
    /// Path of the key or value; the root for problems of the whole file.
    pub path: KeyPath,
    /// One sentence, with the value in it.
    pub message: String,
    /// The offending value as read, where there is one.
    pub value: Option<String>,
    /// What is allowed instead.
    pub allowed: Option<String>,
    /// The nearest name or form that would be right, or another next step.
    pub help: Option<String>,
}

impl Problem {
    /// A problem without value, range or help.
    #[must_use]
    pub fn new(code: Code, place: Place, path: KeyPath, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { code, place, path, message, value: None, allowed: None, help: None }
    }

    fn to_json(&self) -> Value {
        let (line, column, set) = match &self.place {
            Place::Text(at) => (json!(at.line), json!(at.column), Value::Null),
            Place::Override(text) => (Value::Null, Value::Null, json!(text)),
            Place::File => (Value::Null, Value::Null, Value::Null),
        };
        json!({
            "code": self.code.as_str(), "path": self.path.to_string(), "line": line,
            "column": column, "override": set, "message": self.message, "value": self.value,
            "allowed": self.allowed, "help": self.help,
        })
    }
}

/// All problems of one file, with its text for the excerpts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problems {
    /// Path of the file, as the user gave it.
    pub file: String,
    /// The text that was read; empty when nothing could be read.
    pub text: String,
    /// The problems, in the order of their places.
    pub list: Vec<Problem>,
}

impl Problems {
    /// Problems of `file`, sorted by place.
    #[must_use]
    pub fn new(file: &str, text: &str, mut list: Vec<Problem>) -> Self {
        list.sort_by_key(|problem| match &problem.place {
            Place::Text(at) => (0, at.line, at.column),
            Place::Override(_) => (1, 0, 0),
            Place::File => (2, 0, 0),
        });
        list.dedup();
        Self { file: file.to_owned(), text: text.to_owned(), list }
    }

    /// A file that could not be read at all.
    #[must_use]
    pub fn unreadable(file: &str, error: &std::io::Error) -> Self {
        let message = format!("cannot read `{file}`: {error}");
        let problem = Problem::new(Code::Unreadable, Place::File, KeyPath::root(), message);
        Self::new(file, "", vec![problem])
    }

    /// Text for people: one block a problem, with the line and a caret below the place.
    #[must_use]
    pub fn render(&self) -> String {
        let lines: Vec<&str> = self.text.lines().collect();
        let mut out = String::new();
        for problem in &self.list {
            if !out.is_empty() {
                out.push('\n');
            }
            render_one(&mut out, &self.file, &lines, problem);
        }
        // Keys and values of a file may hold control characters, which would move the cursor.
        out.chars().map(|c| if c == '\n' { c } else { printable(c) }).collect()
    }

    /// The same for programs: an array of objects with `code`, `path`, `line`, `column`, `override`,
    /// `message`, `value`, `allowed`, `help`.
    #[must_use]
    pub fn to_json(&self) -> Value {
        json!({
            "schema": "plimsoll.problems/1",
            "file": self.file,
            "problems": self.list.iter().map(Problem::to_json).collect::<Vec<_>>(),
        })
    }
}

impl fmt::Display for Problems {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render())
    }
}

impl std::error::Error for Problems {}

/// Widest part of a source line that an excerpt shows, in characters.
const EXCERPT_CHARS: usize = 160;

fn render_one(out: &mut String, file: &str, lines: &[&str], problem: &Problem) {
    // Writing to a String cannot fail, so the results carry nothing.
    let _ = writeln!(out, "error[{}]: {}", problem.code, problem.message);
    let mut margin = 2;
    match &problem.place {
        Place::File => {
            let _ = writeln!(out, "  --> {file}");
        }
        Place::Override(text) => {
            let _ = writeln!(out, "  --> --set {text}");
        }
        Place::Text(at) => {
            margin = at.line.to_string().len() + 1;
            let _ = writeln!(out, "{:margin$}--> {file}:{}:{}", "", at.line, at.column);
            if let Some(line) = lines.get(at.line - 1) {
                excerpt(out, line, *at, margin);
            }
        }
    }
    if let Some(allowed) = &problem.allowed {
        let _ = writeln!(out, "{:margin$}= allowed: {allowed}", "");
    }
    if let Some(help) = &problem.help {
        let _ = writeln!(out, "{:margin$}= help: {help}", "");
    }
}

fn excerpt(out: &mut String, line: &str, at: Position, margin: usize) {
    let chars: Vec<char> = line.chars().collect();
    // A long line is cut so that the place stays inside.
    let start = at.column.saturating_sub(EXCERPT_CHARS / 2);
    let start = if chars.len() > EXCERPT_CHARS { start } else { 0 };
    let shown: String =
        chars.iter().skip(start).take(EXCERPT_CHARS).map(|c| printable(*c)).collect();
    let before = at.column.saturating_sub(1).saturating_sub(start);
    let room = shown.chars().count().saturating_sub(before).max(1);
    let width = token_width(chars.get(at.column.saturating_sub(1)..).unwrap_or_default()).min(room);
    let pad: String = shown
        .chars()
        .take(before)
        .map(|c| if c == '\t' { '\t' } else { ' ' })
        .chain(std::iter::repeat(' '))
        .take(before)
        .collect();
    let _ = writeln!(out, "{:margin$}|", "");
    let _ = writeln!(out, "{:<margin$}| {shown}", at.line);
    let _ = writeln!(out, "{:margin$}| {pad}{}", "", "^".repeat(width));
}

/// Control characters would move the cursor; a tab stays, because the caret line repeats it.
fn printable(c: char) -> char {
    if c.is_control() && c != '\t' { '\u{fffd}' } else { c }
}

/// Characters of the key or value that starts at `rest[0]`; at least 1.
fn token_width(rest: &[char]) -> usize {
    let quoted = matches!(rest.first(), Some('"' | '\''));
    let mut open = 0_i32;
    let mut end = rest.len();
    for (i, c) in rest.iter().enumerate().skip(1) {
        let next_is_blank = rest.get(i + 1).is_none_or(|c| c.is_whitespace());
        let stop = match c {
            '"' | '\'' if quoted && rest.first() == Some(c) => {
                end = i + 1;
                break;
            }
            _ if quoted => false,
            '{' | '[' => {
                open += 1;
                false
            }
            '}' | ']' => {
                open -= 1;
                open < 0 && !matches!(rest.first(), Some('{' | '['))
            }
            ':' | ',' => next_is_blank && !matches!(rest.first(), Some('{' | '[')),
            '#' => rest[i - 1].is_whitespace(),
            _ => false,
        };
        if stop {
            end = i;
            break;
        }
    }
    while end > 1 && rest.get(end - 1).is_some_and(|c| c.is_whitespace()) {
        end -= 1;
    }
    end.max(1)
}

/// The nearest of `names`, if one is near enough to be a slip of the pen.
#[must_use]
pub fn near<'a>(text: &str, names: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let folded = text.to_lowercase().replace(['-', ' '], "_");
    names
        .into_iter()
        .map(|name| {
            (strsim::damerau_levenshtein(&folded, &name.to_lowercase().replace('-', "_")), name)
        })
        .filter(|(distance, name)| *distance <= (name.len().max(folded.len()) / 3).max(1))
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, name)| name)
}
