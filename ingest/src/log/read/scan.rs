//! Lines known by words in them, as a table; and figures as these servers print them, where `GB` means GiB.

use super::fields::{self, Gb, after};
use crate::log::Amount;

/// What stands between the first `open` and the next `close`.
pub(super) fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    after(text, open)?.split_once(close).map(|(inside, _)| inside)
}

/// The amount at the start of `text`.
pub(super) fn amount(text: &str) -> Option<Amount> {
    fields::amount(text, Gb::Binary)
}

/// The amount after `key`.
pub(super) fn amount_after(text: &str, key: &str) -> Option<Amount> {
    amount(after(text, key)?)
}

/// As [`amount`], of an engine that rounds to two decimals and drops zeros at the end: `0.3 GiB` is
/// 0.30 ± 0.005. Source: vLLM `format_gib`. Without a unit it is GiB: `(110.37/121.69 GiB)`.
pub(super) fn gib2(text: &str) -> Option<Amount> {
    let printed = fields::amount_or_gib(text, Gb::Binary)?;
    Some(Amount { half: printed.half.min(Amount::gib(0.0, 2).half), ..printed })
}

/// [`gib2`] after `key`.
pub(super) fn gib2_after(text: &str, key: &str) -> Option<Amount> {
    gib2(after(text, key)?)
}

/// Whole bytes, printed without a unit, after `key`.
pub(super) fn bytes_after(text: &str, key: &str) -> Option<Amount> {
    i64::try_from(fields::uint_after(text, key)?).ok().map(Amount::exact)
}

/// The file a path names, without its folders.
pub(super) fn file_name(path: &str) -> &str {
    path.rsplit(['/', '\\']).next().unwrap_or(path)
}

/// A line that is known by words in it: the words, and what reads the whole line.
pub(super) type Known<T> = (&'static str, fn(&str) -> Option<T>);

/// The telling words of a table, for the filter before it.
pub(super) const fn words<T, const N: usize>(table: &[Known<T>; N]) -> [&'static str; N] {
    let mut words = [""; N];
    let mut at = 0;
    while at < N {
        words[at] = table[at].0;
        at += 1;
    }
    words
}

/// What the first entry of `table` that understands `line` says of it.
pub(super) fn read_by<T>(table: &[Known<T>], line: &str) -> Option<T> {
    table.iter().filter(|(key, _)| line.contains(key)).find_map(|(_, read)| read(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropped_zeros_do_not_widen_the_interval() {
        assert_eq!(gib2("0.3 GiB"), Some(Amount::gib(0.3, 2)));
        assert_eq!(gib2("110.37/121.69 GiB"), Some(Amount::gib(110.37, 2)));
        assert_eq!(gib2("nothing"), None);
    }
}
