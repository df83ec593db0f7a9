//! A reader of shell text as people paste it: quotes, continuations, comments, separators, variables.
//! It splits and expands; it never runs anything. What a shell would refuse but a reader can
//! understand (a missing `\`, smart quotes, a prompt) is read with a warning.

use std::collections::BTreeMap;

use super::place::{Place, Warning, Word};

/// Longest text that variables may expand to, bytes.
const EXPANSION_LIMIT: usize = 1 << 20;

/// Shell variables: a scalar is a list of one.
pub(crate) type Vars = BTreeMap<String, Vec<String>>;

/// Why a text cannot be split.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum ShellError {
    /// A quote that is opened here and never closed.
    OpenQuote { quote: char, place: Place },
    /// Variables that expand to more than [`EXPANSION_LIMIT`].
    TooLong { place: Place },
}

/// Splits a text into simple commands, one at a time.
pub(crate) struct Lexer<'a> {
    text: &'a str,
    at: usize,
    place_of: &'a dyn Fn(usize) -> Place,
    expanded: usize,
    /// What was read leniently.
    pub warnings: Vec<Warning>,
}

/// A word being built.
#[derive(Default)]
struct Builder {
    text: String,
    map: Vec<u32>,
    start: Option<usize>,
    /// Behind the last character that belongs to it; 0 where that is inside an expansion.
    end: usize,
    /// It shares an expansion with another word.
    spread: bool,
}

impl Builder {
    fn open(&mut self, at: usize) {
        self.start.get_or_insert(at);
    }

    fn push(&mut self, c: char, at: usize) {
        self.open(at);
        self.text.push(c);
        let from = u32::try_from(at).unwrap_or(u32::MAX);
        self.map.extend(std::iter::repeat_n(from, c.len_utf8()));
    }

    fn push_str(&mut self, text: &str, at: usize) {
        self.open(at);
        for c in text.chars() {
            self.push(c, at);
        }
    }
}

/// Whether an expansion stands in double quotes.
#[derive(Clone, Copy, PartialEq)]
enum Quoting {
    None,
    Double,
}

/// What ends a word or a command.
enum Step {
    Word,
    Command,
    Continue,
}

impl<'a> Lexer<'a> {
    pub(crate) fn new(text: &'a str, place_of: &'a dyn Fn(usize) -> Place) -> Self {
        Self { text, at: 0, place_of, expanded: 0, warnings: Vec::new() }
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn bump(&mut self) -> Option<char> {
        let c = self.peek()?;
        self.at += c.len_utf8();
        Some(c)
    }

    fn place(&self, at: usize) -> Place {
        (self.place_of)(at)
    }

    fn warn(&mut self, message: impl Into<String>, at: usize) {
        let place = self.place(at);
        self.warnings.push(Warning::new(message, place));
    }

    /// The next command that has words, or `None` at the end of the text.
    pub(crate) fn next_command(&mut self, vars: &Vars) -> Result<Option<Vec<Word>>, ShellError> {
        let mut words = Vec::new();
        self.skip_fence();
        loop {
            let mut word = Builder::default();
            let step = self.word(&mut word, vars, &mut words)?;
            self.finish(word, &mut words);
            match step {
                Step::Word | Step::Continue if self.peek().is_some() => {}
                _ if !words.is_empty() => return Ok(Some(words)),
                _ if self.peek().is_none() => return Ok(None),
                _ => self.skip_fence(),
            }
        }
    }

    /// A line of a fenced block of Markdown is no command.
    fn skip_fence(&mut self) {
        let trimmed = self.rest().trim_start_matches([' ', '\t']);
        if trimmed.starts_with("```") {
            self.at = self.text.len() - trimmed.len();
            self.skip_line();
        }
    }

    fn skip_line(&mut self) {
        self.at += self.rest().find('\n').unwrap_or(self.rest().len());
    }

    fn finish(&self, word: Builder, words: &mut Vec<Word>) {
        if let Some(start) = word.start {
            let end = Some(word.end).filter(|end| *end > start);
            let start_known = (!word.spread).then_some(start);
            let place = self.place(start);
            words.push(Word { text: word.text, place, map: word.map, start: start_known, end });
        }
    }

    fn word(
        &mut self,
        word: &mut Builder,
        vars: &Vars,
        words: &mut Vec<Word>,
    ) -> Result<Step, ShellError> {
        while let Some(c) = self.peek() {
            let at = self.at;
            word.end = at;
            match c {
                '\n' => {
                    self.bump();
                    if self.line_continues(at) {
                        return Ok(Step::Word);
                    }
                    return Ok(Step::Command);
                }
                c if c.is_whitespace() || c == '\u{200b}' => {
                    self.bump();
                    if word.start.is_some() {
                        return Ok(Step::Word);
                    }
                }
                '#' if word.start.is_none() => self.skip_line(),
                '\\' => self.backslash(word),
                '\'' | '"' | '\u{2018}' | '\u{2019}' | '\u{201c}' | '\u{201d}' => {
                    self.quoted(word, vars, words)?;
                }
                '$' => self.dollar(word, vars, words, Quoting::None)?,
                '`' => self.backtick(word),
                '&' | ';' | '|' => {
                    self.bump();
                    if c == '&' && self.peek() == Some('>') {
                        continue;
                    }
                    return Ok(Step::Command);
                }
                '(' if word.text.ends_with('=') => self.array(word, vars)?,
                '(' | ')' if word.start.is_none() => {
                    self.bump();
                    return Ok(Step::Command);
                }
                '<' if self.placeholder(word) => {}
                '<' | '>' => return self.redirection(word, vars),
                _ => {
                    self.bump();
                    word.push(c, at);
                }
            }
        }
        word.end = self.at;
        Ok(Step::Continue)
    }

    /// After a newline at `at`: whether the next line goes on with flags although no `\` stood here.
    fn line_continues(&mut self, at: usize) -> bool {
        let next = self.rest().trim_start();
        let mut chars = next.trim_start_matches('-').chars();
        let flag = next.starts_with('-')
            && !next.starts_with("---")
            && chars.next().is_some_and(|c| c.is_ascii_alphabetic());
        if flag && at > 0 {
            self.warn("the next line starts with a flag, so it is read as part of this command although no `\\` stands here", at);
        }
        flag && at > 0
    }

    fn backslash(&mut self, word: &mut Builder) {
        let at = self.at;
        self.bump();
        let line = self.rest().split('\n').next().unwrap_or_default();
        if line.trim().is_empty() && self.rest().contains('\n') {
            if !line.is_empty() && line != "\r" {
                self.warn(
                    "blanks after `\\`: a shell ends the command here; read as a continuation",
                    at,
                );
            }
            self.at += line.len() + 1;
        } else if let Some(c) = self.bump() {
            word.push(c, at);
        }
    }

    fn quoted(
        &mut self,
        word: &mut Builder,
        vars: &Vars,
        words: &mut Vec<Word>,
    ) -> Result<(), ShellError> {
        let opened = self.at;
        let Some(open) = self.bump() else { return Ok(()) };
        word.open(opened);
        let close: &[char] = match open {
            '\'' => &['\''],
            '"' => &['"'],
            '\u{2018}' | '\u{2019}' => &['\u{2018}', '\u{2019}', '\''],
            _ => &['\u{201c}', '\u{201d}', '"'],
        };
        if !open.is_ascii() {
            self.warn(format!("`{open}` is read as a plain quote"), opened);
        }
        let raw = close.contains(&'\'');
        while let Some(c) = self.peek() {
            let at = self.at;
            if close.contains(&c) {
                self.bump();
                return Ok(());
            }
            match c {
                '\\' if !raw => {
                    self.bump();
                    match self.peek() {
                        Some('\n') => drop(self.bump()),
                        Some(c @ ('"' | '\\' | '$' | '`')) => {
                            self.bump();
                            word.push(c, at);
                        }
                        _ => word.push('\\', at),
                    }
                }
                '$' if !raw => {
                    self.dollar(word, vars, words, Quoting::Double)?;
                }
                _ => {
                    self.bump();
                    word.push(c, at);
                }
            }
        }
        Err(ShellError::OpenQuote { quote: open, place: self.place(opened) })
    }

    /// `$NAME`, `${NAME}`, `${NAME:-default}`, `${NAME[@]}`, `$'…'`; anything else stays as typed.
    fn dollar(
        &mut self,
        word: &mut Builder,
        vars: &Vars,
        words: &mut Vec<Word>,
        quoting: Quoting,
    ) -> Result<(), ShellError> {
        let at = self.at;
        self.bump();
        let rest = self.rest();
        if rest.starts_with('(') {
            self.at = at;
            self.literal(word, balanced(rest) + 1);
            return Ok(());
        }
        if rest.starts_with('\'') && quoting == Quoting::None {
            return self.ansi_quoted(word, at);
        }
        let (name, default, length) = parameter(rest);
        if name.is_empty() {
            word.push('$', at);
            return Ok(());
        }
        self.at += length;
        let values: Vec<String> = match (vars.get(name), default) {
            (Some(values), _) => values.clone(),
            (None, Some(default)) => vec![default.to_owned()],
            (None, None) => {
                self.warn(format!("`${name}` is not set in this text; kept as typed"), at);
                word.push_str(self.text.get(at..self.at).unwrap_or_default(), at);
                return Ok(());
            }
        };
        self.expanded += values.iter().map(String::len).sum::<usize>();
        if self.expanded > EXPANSION_LIMIT {
            return Err(ShellError::TooLong { place: self.place(at) });
        }
        self.expand(word, &values, (at, quoting), words);
        Ok(())
    }

    /// The elements of an expansion are words of their own; outside quotes blanks split them too.
    fn expand(
        &self,
        word: &mut Builder,
        values: &[String],
        (at, quoting): (usize, Quoting),
        words: &mut Vec<Word>,
    ) {
        let fields: Vec<&str> = match quoting {
            Quoting::None => values.iter().flat_map(|v| v.split_whitespace()).collect(),
            Quoting::Double => values.iter().map(String::as_str).collect(),
        };
        for (i, field) in fields.iter().enumerate() {
            if i > 0 {
                word.end = 0;
                self.finish(std::mem::take(word), words);
            }
            word.push_str(field, at);
            word.spread |= fields.len() > 1;
        }
    }

    fn ansi_quoted(&mut self, word: &mut Builder, opened: usize) -> Result<(), ShellError> {
        self.bump();
        word.open(opened);
        while let Some(c) = self.peek() {
            let at = self.at;
            self.bump();
            match c {
                '\'' => return Ok(()),
                '\\' => match self.bump() {
                    Some('n') => word.push('\n', at),
                    Some('t') => word.push('\t', at),
                    Some(c) => word.push(c, at),
                    None => break,
                },
                c => word.push(c, at),
            }
        }
        Err(ShellError::OpenQuote { quote: '\'', place: self.place(opened) })
    }

    /// A command substitution is kept as typed; an open one is a plain character.
    fn backtick(&mut self, word: &mut Builder) {
        let line = self.rest().split('\n').next().unwrap_or_default();
        let close = line.get(1..).and_then(|inner| inner.find('`'));
        self.literal(word, close.map_or(1, |at| at + 2));
    }

    /// Takes the next `bytes` as they stand.
    fn literal(&mut self, word: &mut Builder, bytes: usize) {
        let end = self.at + bytes;
        while let Some(c) = self.peek().filter(|_| self.at < end) {
            word.push(c, self.at);
            self.bump();
        }
    }

    /// `NAME=( … )`: the words become one word, joined by a mark.
    fn array(&mut self, word: &mut Builder, vars: &Vars) -> Result<(), ShellError> {
        self.bump();
        let mut inner = Vec::new();
        loop {
            let end = self.rest().trim_start();
            if end.is_empty() || end.starts_with(')') {
                self.at = (self.text.len() - end.len() + 1).min(self.text.len());
                break;
            }
            let before = self.at;
            let mut item = Builder::default();
            self.array_item(&mut item, vars, &mut inner)?;
            self.finish(item, &mut inner);
            if self.at == before {
                self.bump();
            }
        }
        let at = word.start.unwrap_or(self.at);
        let items: Vec<&str> = inner.iter().map(|w| w.text.as_str()).collect();
        word.push_str(&items.join(&WORD_BREAK.to_string()), at);
        Ok(())
    }

    fn array_item(
        &mut self,
        item: &mut Builder,
        vars: &Vars,
        inner: &mut Vec<Word>,
    ) -> Result<(), ShellError> {
        while let Some(c) = self.peek() {
            let at = self.at;
            match c {
                c if c.is_whitespace() => {
                    self.bump();
                    if item.start.is_some() {
                        return Ok(());
                    }
                }
                ')' => return Ok(()),
                '#' if item.start.is_none() => self.skip_line(),
                '\\' => self.backslash(item),
                '\'' | '"' => self.quoted(item, vars, inner)?,
                '$' => self.dollar(item, vars, inner, Quoting::None)?,
                _ => {
                    self.bump();
                    item.push(c, at);
                }
            }
        }
        Ok(())
    }

    /// `<your-model>`, as documentation writes it, is a word and no redirection.
    fn placeholder(&mut self, word: &mut Builder) -> bool {
        let rest = self.rest();
        let Some(end) = rest.find(['>', '\n']) else { return false };
        let inner = rest.get(1..end).unwrap_or_default();
        let plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '/' | '.');
        if !rest[end..].starts_with('>') || inner.is_empty() || !inner.chars().all(plain) {
            return false;
        }
        let at = self.at;
        word.push_str(&rest[..=end], at);
        self.at += end + 1;
        true
    }

    /// `> file`, `2>&1`, `<< EOF`: dropped together with the target.
    fn redirection(&mut self, word: &mut Builder, vars: &Vars) -> Result<Step, ShellError> {
        if word.text.chars().all(|c| c.is_ascii_digit()) {
            *word = Builder::default();
        }
        while matches!(self.peek(), Some('<' | '>' | '&' | '|' | '-')) {
            self.bump();
        }
        while matches!(self.peek(), Some(' ' | '\t')) {
            self.bump();
        }
        let mut target = Builder::default();
        let mut ignored = Vec::new();
        while let Some(c) = self.peek() {
            let at = self.at;
            match c {
                c if c.is_whitespace() || matches!(c, ';' | '&' | '|' | ')') => break,
                '\'' | '"' => self.quoted(&mut target, vars, &mut ignored)?,
                _ => {
                    self.bump();
                    target.push(c, at);
                }
            }
        }
        Ok(Step::Word)
    }
}

/// Separates the elements of an array inside one word; no shell text can hold it as a character.
pub(crate) const WORD_BREAK: char = '\u{1f}';

/// Bytes of `(…)` at the start of `text`, to the end when it is not closed.
fn balanced(text: &str) -> usize {
    let mut depth = 0_usize;
    for (i, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => continue,
        }
        if depth == 0 {
            return i + 1;
        }
    }
    text.len()
}

/// Name, default and length of the parameter after a `$`.
fn parameter(rest: &str) -> (&str, Option<&str>, usize) {
    let name_end =
        |s: &str| s.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(s.len());
    let Some(inner) = rest.strip_prefix('{') else {
        let end = name_end(rest);
        let digit = rest.starts_with(|c: char| c.is_ascii_digit());
        return if digit { ("", None, 0) } else { (&rest[..end], None, end) };
    };
    let Some(close) = inner.find('}') else { return ("", None, 0) };
    let body = &inner[..close];
    let (name, tail) = body.split_at(name_end(body));
    let default = match tail {
        "" | "[@]" | "[*]" => None,
        _ => match tail.strip_prefix(":-").or_else(|| tail.strip_prefix('-')) {
            Some(default) => Some(default),
            None => return ("", None, 0),
        },
    };
    (name, default, close + 2)
}

/// `word` written so that a POSIX shell reads it back as one word.
#[must_use]
pub fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./:=,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

/// `words` as one line that a POSIX shell splits into the same words.
#[must_use]
pub fn render(words: &[String]) -> String {
    let quoted: Vec<String> = words.iter().map(|w| quote(w)).collect();
    quoted.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::place::Lines;

    fn split(text: &str) -> Vec<Vec<String>> {
        let lines = Lines::new(text);
        let place_of = |at| lines.place(at);
        let mut lexer = Lexer::new(text, &place_of);
        let mut vars = Vars::new();
        vars.insert("N".into(), vec!["8".into()]);
        vars.insert("A".into(), vec!["--tp".into(), "a b".into()]);
        vars.insert("S".into(), vec!["--x 1".into()]);
        let mut out = Vec::new();
        while let Some(words) = lexer.next_command(&vars).unwrap() {
            out.push(words.into_iter().map(|w| w.text).collect());
        }
        out
    }

    #[test]
    fn commands_split_as_a_shell_splits_them() {
        assert_eq!(split("a 'b c'\\''d' \"e\\\"$N\" f\\ g"), [["a", "b c'd", "e\"8", "f g"]]);
        assert_eq!(split("cd x && a; b | c &"), [vec!["cd", "x"], vec!["a"], vec!["b"], vec!["c"]]);
        assert_eq!(split("a 2>&1 > log # note\nb"), [["a"], ["b"]]);
        assert_eq!(split("a &> log b"), [["a", "b"]]);
        assert_eq!(split("a \\\n  --b \\\n  # no\n  --c"), [["a", "--b", "--c"]]);
        assert_eq!(split("a ${M:-d/e} ${N} $N$N"), [["a", "d/e", "8", "88"]]);
        assert_eq!(split("a \"${A[@]}\" z $S"), [["a", "--tp", "a b", "z", "--x", "1"]]);
        assert_eq!(split("```bash\na --m <model>\n```\n"), [["a", "--m", "<model>"]]);
        assert_eq!(split("a $(nproc --all) `b c`"), [["a", "$(nproc --all)", "`b c`"]]);
        assert_eq!(split("a ''"), [["a", ""]]);
        assert_eq!(split("\n\n  \n"), Vec::<Vec<String>>::new());
    }

    #[test]
    fn a_missing_backslash_is_read_and_said() {
        let text = "a\n  --b 1";
        let lines = Lines::new(text);
        let place_of = |at| lines.place(at);
        let mut lexer = Lexer::new(text, &place_of);
        let words = lexer.next_command(&Vars::new()).unwrap().unwrap();
        assert_eq!(words[1].place, Place::Text { line: 2, column: 3 });
        assert_eq!(lexer.warnings[0].place, Place::Text { line: 1, column: 2 });
    }

    #[test]
    fn an_open_quote_says_where_it_opened() {
        let text = "a 'b\nc";
        let lines = Lines::new(text);
        let place_of = |at| lines.place(at);
        let error = Lexer::new(text, &place_of).next_command(&Vars::new()).unwrap_err();
        let place = Place::Text { line: 1, column: 3 };
        assert_eq!(error, ShellError::OpenQuote { quote: '\'', place });
    }

    #[test]
    fn rendering_reads_back() {
        let words = ["a".to_owned(), "it's {\"k\": 1}".to_owned(), String::new()];
        assert_eq!(split(&render(&words)), [words.to_vec()]);
    }
}
