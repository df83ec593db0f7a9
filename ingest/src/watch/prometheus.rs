//! The text form of Prometheus metrics (version 0.0.4, and OpenMetrics as far as gauges and counters go).
//!
//! A line is a sample, a comment or broken; a broken line hides no other.

use std::borrow::Cow;

/// Labels of a sample, in their order.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Labels<'a>(Vec<(&'a str, Cow<'a, str>)>);

impl Labels<'_> {
    /// The value of a label; of one that stands twice, the first.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.iter().find(|(label, _)| *label == name).map(|(_, value)| value)
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(label, value)| (*label, value.as_ref()))
    }
}

/// One sample.
#[derive(Clone, PartialEq, Debug)]
pub struct Sample<'a> {
    /// Name of the series.
    pub name: &'a str,
    /// Its labels.
    pub labels: Labels<'a>,
    /// Its value; may be infinite or not a number.
    pub value: f64,
}

/// What is wrong with a line.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("line {line}: {what}")]
pub struct BadLine {
    /// Line, from 1.
    pub line: usize,
    /// What was expected there.
    pub what: &'static str,
}

/// The samples of a page whose name is `wanted`, and its broken lines. Labels of other series are not looked
/// at.
pub fn samples<'a>(
    text: &'a str,
    wanted: impl Fn(&str) -> bool + 'a,
) -> impl Iterator<Item = Result<Sample<'a>, BadLine>> + 'a {
    text.lines().enumerate().filter_map(move |(at, line)| {
        sample(line, &wanted).map_err(|what| BadLine { line: at + 1, what }).transpose()
    })
}

/// Reads one line. `None`: a comment, a blank line, or a series that nobody wants.
fn sample<'a>(
    line: &'a str,
    wanted: &impl Fn(&str) -> bool,
) -> Result<Option<Sample<'a>>, &'static str> {
    let line = line.trim_matches([' ', '\t']);
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let end = line.find(|c: char| !is_name(c)).unwrap_or(line.len());
    let (name, rest) = line.split_at(end);
    if name.is_empty() || name.starts_with(|c: char| c.is_ascii_digit()) {
        return Err("expected the name of a series");
    }
    if !wanted(name) {
        return Ok(None);
    }
    let (labels, rest) = match rest.trim_start_matches([' ', '\t']).strip_prefix('{') {
        Some(inside) => labels(inside)?,
        None => (Labels::default(), rest),
    };
    // A timestamp or an exemplar may follow.
    let value = rest.split_ascii_whitespace().next().ok_or("expected a value")?;
    let value = value.parse().map_err(|_| "expected a number as value")?;
    Ok(Some(Sample { name, labels, value }))
}

const fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | ':')
}

/// Labels up to the closing brace, and what follows it.
fn labels(mut rest: &str) -> Result<(Labels<'_>, &str), &'static str> {
    let mut found = Vec::new();
    loop {
        rest = rest.trim_start_matches([' ', '\t', ',']);
        if let Some(after) = rest.strip_prefix('}') {
            return Ok((Labels(found), after));
        }
        let (label, after) = rest.split_once('=').ok_or("expected `=` behind a label")?;
        let label = label.trim_matches([' ', '\t']);
        if label.is_empty() || !label.chars().all(is_name) {
            return Err("expected a label, or `}`");
        }
        let inside = after.trim_start_matches([' ', '\t']).strip_prefix('"');
        let (value, after) = quoted(inside.ok_or("expected a quoted value of a label")?)?;
        found.push((label, value));
        rest = after;
    }
}

/// The text up to the closing quote, unescaped, and what follows it.
fn quoted(text: &str) -> Result<(Cow<'_, str>, &str), &'static str> {
    let mut owned: Option<String> = None;
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        let (before, _) = text.split_at(at);
        match c {
            '"' => {
                let after = chars.as_str();
                return Ok((owned.map_or(Cow::Borrowed(before), Cow::Owned), after));
            }
            '\\' => {
                let owned = owned.get_or_insert_with(|| before.to_owned());
                match chars.next() {
                    Some((_, 'n')) => owned.push('\n'),
                    Some((_, c @ ('\\' | '"'))) => owned.push(c),
                    // An unknown escape stands for itself.
                    Some((_, c)) => owned.extend(['\\', c]),
                    None => break,
                }
            }
            c => {
                if let Some(owned) = &mut owned {
                    owned.push(c);
                }
            }
        }
    }
    Err("expected a closing quote")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn all(text: &str) -> Vec<Result<Sample<'_>, BadLine>> {
        samples(text, |_| true).collect()
    }

    #[test]
    fn samples_are_read_with_labels_timestamps_and_exemplars() {
        let text = "# HELP a b\n\na:b{x=\"1\",y=\"q\\\"\\\\\\n\",} 2.5e3 1700000000\nc 7 # {t=\"1\"} 3\n\
                    d {} NaN\r\n";
        let found: Vec<_> = all(text).into_iter().map(Result::unwrap).collect();
        assert_eq!((found[0].name, found[0].value), ("a:b", 2500.0));
        assert_eq!(found[0].labels.get("y"), Some("q\"\\\n"));
        assert_eq!((found[1].name, found[1].value), ("c", 7.0));
        assert!(found[2].value.is_nan());
    }

    #[test]
    fn a_broken_line_has_a_place_and_hides_no_other() {
        let text = "a 1\n<html>\nb{x=1} 2\nb{x=\"1} 2\nb{x=\"1\"}\nb x\nc 3\n";
        let found = all(text);
        let lines: Vec<usize> =
            found.iter().filter_map(|f| f.as_ref().err()).map(|bad| bad.line).collect();
        assert_eq!(lines, [2, 3, 4, 5, 6]);
        assert_eq!(found.iter().filter(|f| f.is_ok()).count(), 2);
    }

    #[test]
    fn series_that_nobody_wants_are_passed_over() {
        assert_eq!(samples("a{broken 1\nb 2\n", |name| name == "b").count(), 1);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(
            name in "[a-z_:][a-z0-9_:]{0,8}",
            labels in prop::collection::vec(("[a-z_]{1,6}", any::<String>()), 0..4),
            value in any::<f64>().prop_filter("finite", |v| v.is_finite()),
        ) {
            let escape = |text: &str| {
                text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
            };
            // A bare carriage return is a line end to nobody but takes part in `\r\n`.
            prop_assume!(labels.iter().all(|(_, text)| !text.contains('\r')));
            let inside: Vec<String> =
                labels.iter().map(|(label, text)| format!("{label}=\"{}\"", escape(text))).collect();
            let line = format!("{name}{{{}}} {value}\n", inside.join(","));
            let found = all(&line);
            prop_assert_eq!(found.len(), 1);
            let sample = found[0].as_ref().unwrap();
            prop_assert_eq!(sample.value, value);
            let read: Vec<(&str, &str)> = sample.labels.iter().collect();
            let wrote: Vec<(&str, &str)> =
                labels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            prop_assert_eq!(read, wrote);
        }

        #[test]
        fn no_text_is_too_much(text in any::<String>()) {
            prop_assert!(all(&text).len() <= text.lines().count());
        }
    }
}
