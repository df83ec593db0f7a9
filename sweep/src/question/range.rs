//! Values of one swept path, as typed: ranges in exact decimals, lists, single values.

use std::fmt;

/// Most values of one path.
pub const MAX_VALUES: usize = 100_000;

/// Most digits behind the point.
const MAX_SCALE: u32 = 15;

/// A text that is no range and no list.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{text}`: {why}")]
pub struct RangeError {
    /// As typed.
    pub text: String,
    /// What is wrong, and what is allowed.
    pub why: String,
}

fn wrong(text: &str, why: impl Into<String>) -> RangeError {
    RangeError { text: text.to_owned(), why: why.into() }
}

/// The values of `0.80..0.95:0.01`, `4 GiB..16 GiB:2 GiB`, `[2048,4096]`, `a,b,c` or a single value, each
/// as text, in the order given.
///
/// # Errors
///
/// [`RangeError`]: no value, a value twice, more than [`MAX_VALUES`], a range that does not go up.
pub fn values(text: &str) -> Result<Vec<String>, RangeError> {
    let trimmed = text.trim();
    // A list in brackets, unless they are those of its first and its last value.
    let inner = match parts(trimmed).as_slice() {
        [one] => one.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')),
        _ => None,
    };
    let mut all = Vec::new();
    for part in parts(inner.unwrap_or(trimmed)) {
        let part = part.trim();
        if part.is_empty() {
            return Err(wrong(text, "a value is empty; allowed: `0.80..0.95:0.01` or `a,b,c`"));
        }
        match part.split_once("..") {
            Some((from, rest)) if starts_a_range(from) => all.extend(range(text, from, rest)?),
            _ => all.push(part.to_owned()),
        }
        if all.len() > MAX_VALUES {
            return Err(wrong(text, format!("more than {MAX_VALUES} values")));
        }
    }
    let mut sorted = all.clone();
    sorted.sort_unstable();
    if let Some(pair) = sorted.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(wrong(text, format!("{} stands twice", pair[0])));
    }
    Ok(all)
}

/// A path such as `../model` holds two points too, and is no range.
fn starts_a_range(from: &str) -> bool {
    Amount::parse(from.trim()).is_some()
}

/// Split at commas outside of brackets and quotes.
fn parts(text: &str) -> Vec<&str> {
    let (mut depth, mut quote, mut start) = (0_i32, None, 0);
    let mut parts = Vec::new();
    for (at, c) in text.char_indices() {
        match (c, quote) {
            (_, Some(open)) if c == open => quote = None,
            (_, Some(_)) => {}
            ('"' | '\'', None) => quote = Some(c),
            ('[' | '{', None) => depth += 1,
            (']' | '}', None) => depth -= 1,
            (',', None) if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    parts
}

/// A decimal number with what stands behind it: `digits / 10^scale unit`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Amount<'a> {
    digits: i128,
    scale: u32,
    /// A blank before the unit is part of it, so that values look as typed.
    unit: &'a str,
}

impl<'a> Amount<'a> {
    fn parse(text: &'a str) -> Option<Self> {
        let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+')));
        let (number, unit) = text.split_at(end.unwrap_or(text.len()));
        let unit_is_a_word = unit.trim_start().chars().all(|c| c.is_alphabetic() || c == '/');
        let (negative, number) = match number.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, number.strip_prefix('+').unwrap_or(number)),
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let plain = |text: &str| text.chars().all(|c| c.is_ascii_digit());
        if !unit_is_a_word || whole.is_empty() || !plain(whole) || !plain(part) {
            return None;
        }
        let scale = u32::try_from(part.len()).ok().filter(|scale| *scale <= MAX_SCALE)?;
        let digits: i128 = format!("{whole}{part}").parse().ok()?;
        let digits = if negative { -digits } else { digits };
        (digits.abs() < 10_i128.pow(30)).then_some(Self { digits, scale, unit })
    }

    /// The digits at a scale that is no smaller than its own.
    fn at_scale(self, scale: u32) -> i128 {
        self.digits * 10_i128.pow(scale - self.scale)
    }
}

impl fmt::Display for Amount<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.digits < 0 { "-" } else { "" };
        let (digits, power) = (self.digits.abs(), 10_i128.pow(self.scale));
        write!(f, "{sign}{}", digits / power)?;
        if self.scale > 0 {
            write!(f, ".{:0width$}", digits % power, width = self.scale as usize)?;
        }
        f.write_str(self.unit)
    }
}

/// `from..to:step`; whole numbers may leave the step out.
fn range(text: &str, from: &str, rest: &str) -> Result<Vec<String>, RangeError> {
    const FORM: &str = "allowed: FROM..TO:STEP, such as `0.80..0.95:0.01` or `4 GiB..16 GiB:2 GiB`";
    let (to, step) = match rest.split_once(':') {
        Some((to, step)) => (to, Some(step)),
        None => (rest, None),
    };
    let amount = |part: &'_ str| -> Result<(i128, u32, String), RangeError> {
        let amount = Amount::parse(part.trim())
            .ok_or_else(|| wrong(text, format!("`{}` is no number; {FORM}", part.trim())))?;
        Ok((amount.digits, amount.scale, amount.unit.to_owned()))
    };
    let (from, to) = (amount(from)?, amount(to)?);
    let step = match step {
        Some(step) => amount(step)?,
        None if from.1 == 0 && to.1 == 0 && from.2.is_empty() && to.2.is_empty() => {
            (1, 0, String::new())
        }
        None => return Err(wrong(text, format!("a range of these needs a step; {FORM}"))),
    };
    let unit = one_unit(text, [&from.2, &to.2, &step.2])?;
    let scale = from.1.max(to.1).max(step.1);
    let of = |(digits, scale, _): (i128, u32, String)| Amount { digits, scale, unit: &unit };
    let (from, to, step) = (of(from), of(to), of(step));
    // Values look as the begin and the step are typed.
    let shown = from.scale.max(step.scale);
    let (first, last, by) = (from.at_scale(scale), to.at_scale(scale), step.at_scale(scale));
    if by <= 0 {
        return Err(wrong(text, format!("the step is {step}, and a range goes up; {FORM}")));
    }
    if last < first {
        return Err(wrong(text, format!("it ends at {to}, below its begin {from}; {FORM}")));
    }
    let count = (last - first) / by + 1;
    if count > MAX_VALUES as i128 {
        return Err(wrong(text, format!("{count} values; at most {MAX_VALUES} are run")));
    }
    let value = |n: i128| Amount {
        digits: (first + n * by) / 10_i128.pow(scale - shown),
        scale: shown,
        unit: &unit,
    };
    Ok((0..count).map(|n| value(n).to_string()).collect())
}

/// The unit of a range: all that are given must be one.
fn one_unit(text: &str, units: [&String; 3]) -> Result<String, RangeError> {
    let mut given = units.into_iter().filter(|unit| !unit.is_empty());
    let Some(first) = given.next() else { return Ok(String::new()) };
    match given.find(|unit| unit.trim() != first.trim()) {
        None => Ok(first.clone()),
        Some(other) => Err(wrong(
            text,
            format!("a range has one unit, not `{}` and `{}`", first.trim(), other.trim()),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn list(text: &str) -> Vec<String> {
        values(text).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn ranges_are_exact_decimals_as_typed() {
        assert_eq!(list("0.80..0.84:0.01"), ["0.80", "0.81", "0.82", "0.83", "0.84"]);
        assert_eq!(list("0.8..0.85:0.02"), ["0.80", "0.82", "0.84"]);
        assert_eq!(list("4 GiB..16 GiB:6 GiB"), ["4 GiB", "10 GiB", "16 GiB"]);
        assert_eq!(list("4..8GiB:2"), ["4GiB", "6GiB", "8GiB"]);
        assert_eq!(list("1..4"), ["1", "2", "3", "4"]);
        assert_eq!(list("-1..1"), ["-1", "0", "1"]);
        assert_eq!(list("0.95..0.95:0.01"), ["0.95"]);
        assert_eq!(list("1..2,8"), ["1", "2", "8"]);
        assert_eq!(list("8 /s..12 /s:2 /s"), ["8 /s", "10 /s", "12 /s"]);
    }

    #[test]
    fn lists_keep_their_values_as_typed() {
        assert_eq!(list("[2048,4096, 8192]"), ["2048", "4096", "8192"]);
        assert_eq!(list("auto, fp8_e5m2"), ["auto", "fp8_e5m2"]);
        assert_eq!(list("[[1,2],[3, 4]]"), ["[1,2]", "[3, 4]"]);
        assert_eq!(list("[1,2],[3, 4]"), ["[1,2]", "[3, 4]"]);
        assert_eq!(list("{uniform: [1, 2]},'a,b'"), ["{uniform: [1, 2]}", "'a,b'"]);
        assert_eq!(list("../models/a,../models/b"), ["../models/a", "../models/b"]);
    }

    #[test]
    fn what_is_no_range_says_why() {
        for (text, part) in [
            ("0.9..0.8:0.01", "below its begin"),
            ("0.8..0.9:0", "goes up"),
            ("0.8..0.9", "needs a step"),
            ("4 GiB..8 MiB:1 GiB", "one unit"),
            ("1..x", "no number"),
            ("1,,2", "empty"),
            ("", "empty"),
            ("1,2,1", "twice"),
            ("1..1000000", "at most"),
        ] {
            let error = values(text).expect_err(text).to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    proptest! {
        /// Each value is one step above the one before, in integers of the last digit.
        #[test]
        fn steps_never_add_up_errors(first in 0_i64..10_000, step in 1_i64..500, n in 0_i64..300) {
            let text = |cents: i64| format!("{}.{:02}", cents / 100, cents % 100);
            let range = format!("{}..{}:{}", text(first), text(first + n * step), text(step));
            let expected: Vec<String> = (0..=n).map(|i| text(first + i * step)).collect();
            prop_assert_eq!(values(&range).unwrap(), expected);
        }

        #[test]
        fn no_text_breaks_it(text in "\\PC{0,40}") {
            let _ = values(&text);
        }
    }
}
