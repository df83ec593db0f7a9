//! Figures in a line: the number, or the amount of memory, that stands behind a key.
//!
//! All of these take the text at which the figure begins (blanks before it are skipped) and never fail on
//! what follows it. A number that does not fit its type is no number.

use crate::log::Amount;

/// What a unit written `GB` or `MB` means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Gb {
    /// 2^30 bytes: SGLang's and vLLM's lines.
    Binary,
    /// 10^9 bytes: SGLang's host pools, systemd.
    Decimal,
}

/// What follows the first `key`.
pub(super) fn after<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.find(key).and_then(|at| text.get(at + key.len()..))
}

/// The leading whole number; commas and underscores between digits are separators.
pub(super) fn uint(text: &str) -> Option<u64> {
    let digits = digits(text.trim_start());
    digits.parse().ok().or_else(|| {
        let plain: String = digits.chars().filter(char::is_ascii_digit).collect();
        plain.parse().ok()
    })
}

/// The leading whole number with its sign.
pub(super) fn int(text: &str) -> Option<i64> {
    let text = text.trim_start();
    let (sign, rest) = match text.strip_prefix('-') {
        Some(rest) => (-1, rest),
        None => (1, text),
    };
    Some(sign * i64::try_from(uint(rest)?).ok()?)
}

/// The leading decimal number with its sign.
pub(super) fn float(text: &str) -> Option<f64> {
    number(text.trim_start()).map(|(value, _, _)| value)
}

/// The leading amount of memory with its unit: `672.00 MiB`, `4 bytes`, `93.60 GB`, `4.55GiB`, `-2.14 GiB`.
/// Without a unit it is none.
pub(super) fn amount(text: &str, gb: Gb) -> Option<Amount> {
    let (value, decimals, rest) = number(text.trim_start())?;
    scaled(value, decimals, unit(rest.trim_start(), gb)?)
}

/// As [`amount`]; a number without a unit is GiB.
pub(super) fn amount_or_gib(text: &str, gb: Gb) -> Option<Amount> {
    let (value, decimals, rest) = number(text.trim_start())?;
    scaled(value, decimals, unit(rest.trim_start(), gb).unwrap_or((1_u64 << 30) as f64))
}

/// The amount behind `key`.
pub(super) fn amount_after(text: &str, key: &str, gb: Gb) -> Option<Amount> {
    amount(after(text, key)?, gb)
}

/// The whole number behind `key`.
pub(super) fn uint_after(text: &str, key: &str) -> Option<u64> {
    uint(after(text, key)?)
}

/// The decimal number behind `key`.
pub(super) fn float_after(text: &str, key: &str) -> Option<f64> {
    float(after(text, key)?)
}

/// Half of the last printed digit becomes the amount's half; whole bytes are exact. What no machine holds
/// saturates.
fn scaled(value: f64, decimals: u32, unit: f64) -> Option<Amount> {
    if !value.is_finite() {
        return None;
    }
    let half = if unit > 1.0 {
        (0.5 * 0.1_f64.powi(i32::try_from(decimals).ok()?) * unit).ceil()
    } else {
        0.0
    };
    let bytes = ((value * unit).round() as i64).max(-i64::MAX);
    Some(Amount { bytes, half: half as i64 })
}

fn digits(text: &str) -> &str {
    let mut end = 0;
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'0'..=b'9' => end = at + 1,
            b',' | b'_' if at > 0 && end == at => {}
            _ => break,
        }
    }
    text.get(..end).unwrap_or("")
}

/// Value, printed decimals, and what follows. Thousands may be separated by commas.
fn number(text: &str) -> Option<(f64, u32, &str)> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let sign = text.len() - unsigned.len();
    let whole = digits(unsigned).len();
    let rest = unsigned.get(whole..)?;
    let fraction = match rest.strip_prefix('.') {
        Some(tail) => {
            let count = tail.bytes().take_while(u8::is_ascii_digit).count();
            if count == 0 { 0 } else { count + 1 }
        }
        None => 0,
    };
    if whole == 0 && fraction == 0 {
        return None;
    }
    let end = sign + whole + fraction;
    let printed = text.get(..end)?;
    let value = match printed.parse() {
        Ok(value) => value,
        Err(_) => printed.replace([',', '_'], "").parse().ok()?,
    };
    Some((value, u32::try_from(fraction.saturating_sub(1)).ok()?, text.get(end..)?))
}

fn unit(text: &str, gb: Gb) -> Option<f64> {
    let end = text.bytes().take_while(u8::is_ascii_alphabetic).count();
    let word = text.get(..end)?.to_ascii_lowercase();
    let step: f64 = if gb == Gb::Decimal { 1000.0 } else { 1024.0 };
    let power = match word.as_str() {
        "bytes" | "byte" | "b" => 0,
        "kib" | "k" | "kb" => 1,
        "mib" | "m" | "mb" => 2,
        "gib" | "g" | "gb" => 3,
        "tib" | "t" | "tb" => 4,
        _ => return None,
    };
    let step = if word.ends_with("ib") { 1024.0 } else { step };
    Some(step.powi(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stop_where_they_end() {
        assert_eq!(uint("436,544 tokens"), Some(436_544));
        assert_eq!(uint(" 12, next"), Some(12));
        assert_eq!(uint("x"), None);
        assert_eq!(uint("99999999999999999999999"), None);
        assert_eq!(int("-561981."), Some(-561_981));
        assert_eq!(float("0.9411)."), Some(0.9411));
        assert_eq!(float("1.x"), Some(1.0));
        assert_eq!(float("-"), None);
    }

    #[test]
    fn amounts_keep_their_rounding() {
        let mib = amount("672.00 MiB. GPU", Gb::Binary).unwrap();
        assert_eq!(mib.bytes, 672 << 20);
        assert_eq!(mib.half, 5243);
        assert_eq!(amount("0 bytes memory", Gb::Binary), Some(Amount::exact(0)));
        assert_eq!(amount("-5.29 GB.", Gb::Binary).unwrap().bytes, -5_680_094_249);
        assert_eq!(amount("40.00 GB", Gb::Decimal).unwrap().bytes, 40_000_000_000);
        assert_eq!(amount("4.5", Gb::Binary), None);
        assert_eq!(amount("17179869184.00 GiB", Gb::Binary).unwrap().bytes, i64::MAX);
        assert_eq!(amount_or_gib("12.59)", Gb::Binary).unwrap().bytes, Amount::gib(12.59, 2).bytes);
    }
}
