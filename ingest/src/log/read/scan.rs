//! Figures out of a line: the pieces that the parsers of this folder are made of.

use plimsoll_core::units::GIB;

use crate::log::Amount;

/// What follows the first `key` of `text`.
pub(super) fn after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.split_once(key).map(|(_, rest)| rest)
}

/// What stands between the first `open` and the next `close`.
pub(super) fn between<'a>(text: &'a str, open: &str, close: &str) -> Option<&'a str> {
    after(text, open)?.split_once(close).map(|(inside, _)| inside)
}

/// The whole number at the start of `text`, thousands separators included.
pub(super) fn count(text: &str) -> Option<u64> {
    let text = text.trim_start();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == ',')).unwrap_or(text.len());
    text.get(..end)?.replace(',', "").parse().ok()
}

/// The whole number after `key`.
pub(super) fn count_after(text: &str, key: &str) -> Option<u64> {
    count(after(text, key)?)
}

/// The decimal number at the start of `text`, with the digits behind its point and what follows it.
fn decimal(text: &str) -> Option<(f64, u32, &str)> {
    let text = text.trim_start();
    let digits = text.strip_prefix('-').unwrap_or(text);
    let end = digits.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(digits.len());
    let (number, rest) = (digits.get(..end)?.trim_end_matches('.'), digits.get(end..)?);
    let value: f64 = number.parse().ok()?;
    let places = number.split_once('.').map_or(0, |(_, behind)| behind.len());
    let sign = if text.starts_with('-') { -1.0 } else { 1.0 };
    Some((sign * value, u32::try_from(places).ok()?, rest))
}

/// The decimal number after `key`.
pub(super) fn decimal_after(text: &str, key: &str) -> Option<f64> {
    decimal(after(text, key)?).map(|(value, ..)| value)
}

/// The amount at the start of `text`, with its unit (`8.11 GiB`, `43.64GiB`, `448.00 KiB`, `150995968 bytes`).
/// `GB` and `MB` stand for GiB and MiB: the engines mean these. A bare number has no unit and is no amount.
pub(super) fn amount(text: &str) -> Option<Amount> {
    let (value, places, rest) = decimal(text)?;
    let unit = unit(rest.trim_start())?;
    Some(rounded(value, places, unit))
}

/// The amount after `key`.
pub(super) fn amount_after(text: &str, key: &str) -> Option<Amount> {
    amount(after(text, key)?)
}

/// As [`amount`], of an engine that prints two decimals and drops zeros at the end: `0.3 GiB` is 0.30 ± 0.005.
pub(super) fn amount2(text: &str) -> Option<Amount> {
    let (value, places, rest) = decimal(text)?;
    let unit = unit(rest.trim_start())?;
    Some(rounded(value, places.max(2), unit))
}

/// The amount of two decimals after `key`.
pub(super) fn amount2_after(text: &str, key: &str) -> Option<Amount> {
    amount2(after(text, key)?)
}

/// A number without its unit, which the words around it give: `(110.37/121.69 GiB)`.
pub(super) fn gib2(text: &str) -> Option<Amount> {
    decimal(text).map(|(value, places, _)| rounded(value, places.max(2), GIB))
}

fn unit(text: &str) -> Option<u64> {
    let end = text.find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len());
    Some(match text.get(..end)? {
        "TiB" | "TB" => GIB << 10,
        "GiB" | "GB" | "G" => GIB,
        "MiB" | "MB" | "M" => GIB >> 10,
        "KiB" | "KB" | "kB" => GIB >> 20,
        "bytes" | "byte" | "B" => 1,
        _ => return None,
    })
}

fn rounded(value: f64, places: u32, unit: u64) -> Amount {
    let bytes = (value * unit as f64).round() as i64;
    if unit == 1 {
        return Amount::exact(bytes);
    }
    let half = 0.5 * 0.1_f64.powi(i32::try_from(places).unwrap_or(i32::MAX)) * unit as f64;
    Amount { bytes, half: half.ceil() as i64 }
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

/// What the first matching entry of `table` says of `line`.
pub(super) fn read_by<T>(table: &[Known<T>], line: &str) -> Option<T> {
    table.iter().filter(|(key, _)| line.contains(key)).find_map(|(_, read)| read(line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_carry_the_interval_of_their_last_digit() {
        let printed = amount("8.11 GiB of").unwrap();
        assert_eq!(printed, Amount::gib(8.11, 2));
        assert_eq!(amount2("0.3 GiB").unwrap(), Amount::gib(0.3, 2));
        assert_eq!(amount("43.64GiB").unwrap().bytes, 46_858_094_019);
        assert_eq!(amount("150995968 bytes").unwrap(), Amount::exact(150_995_968));
        assert_eq!(amount("448.00 KiB").unwrap().bytes, 448 << 10);
        assert_eq!(amount("-2.14 GiB").unwrap().bytes, -2_297_807_503);
        assert_eq!(amount("12 apples"), None);
        assert_eq!(amount(""), None);
    }

    #[test]
    fn numbers_with_separators() {
        assert_eq!(count("1,196,643 tokens"), Some(1_196_643));
        assert_eq!(count(" 17,"), Some(17));
        assert_eq!(count("x"), None);
        assert_eq!(count("99999999999999999999999"), None);
    }
}
