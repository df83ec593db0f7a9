//! Stamps of log lines: `2026-01-02 03:04:05`, `2026-01-02T03:04:05.123Z`, `01-02 03:04:05` (vLLM),
//! `Jan  2 03:04:05` (syslog), `03:04:05`.

/// A point in time as a line prints it. Only differences of stamps of one form mean anything: no clock or zone
/// is known.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    /// Seconds since an origin that belongs to the form.
    pub(super) seconds: i64,
    /// Whether a year, a day, or neither was printed.
    pub(super) form: StampForm,
}

/// How much of a date is printed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum StampForm {
    /// With its year.
    Dated,
    /// Month and day.
    Yearless,
    /// The time alone.
    Daytime,
}

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// The stamp at the beginning of a text and what follows it.
pub(super) fn leading(text: &str) -> Option<(Stamp, &str)> {
    let first = text.bytes().next()?;
    if first.is_ascii_digit() {
        return numeric(text);
    }
    if !first.is_ascii_uppercase() {
        return None;
    }
    let month = MONTHS.iter().position(|month| text.starts_with(month))?;
    let rest = text.get(3..)?.strip_prefix(' ')?.trim_start();
    let (day, rest) = number(rest, 1..=2)?;
    let (time, rest) = daytime(rest.strip_prefix(' ')?)?;
    let seconds = days(1972, i64::try_from(month).ok()? + 1, day) * 86400 + time;
    Some((Stamp { seconds, form: StampForm::Yearless }, rest))
}

fn numeric(text: &str) -> Option<(Stamp, &str)> {
    if let Some((time, rest)) = daytime(text) {
        return Some((Stamp { seconds: time, form: StampForm::Daytime }, rest));
    }
    let (year, form, rest) = match number(text, 4..=4) {
        Some((year, rest)) => (year, StampForm::Dated, rest.strip_prefix(['-', '/'])?),
        None => (1972, StampForm::Yearless, text),
    };
    let (month, rest) = number(rest, 2..=2)?;
    let (day, rest) = number(rest.strip_prefix(['-', '/'])?, 2..=2)?;
    let (time, rest) = daytime(rest.strip_prefix(['T', ' ', '_'])?)?;
    let plausible = (1..=12).contains(&month) && (1..=31).contains(&day);
    plausible.then(|| (Stamp { seconds: days(year, month, day) * 86400 + time, form }, rest))
}

/// `03:04:05`, with a fraction and a zone that are passed over.
fn daytime(text: &str) -> Option<(i64, &str)> {
    let (hour, rest) = number(text, 2..=2)?;
    let (minute, rest) = number(rest.strip_prefix(':')?, 2..=2)?;
    let (second, mut rest) = number(rest.strip_prefix(':')?, 2..=2)?;
    if let Some(fraction) = rest.strip_prefix(['.', ',']) {
        let count = fraction.bytes().take_while(u8::is_ascii_digit).count();
        if count > 0 {
            rest = fraction.get(count..)?;
        }
    }
    if let Some(zone) = rest.strip_prefix('Z') {
        rest = zone;
    } else if let Some(zone) = rest.strip_prefix(['+', '-'])
        && let Some((_, after)) = number(zone, 2..=2)
    {
        let after = after.strip_prefix(':').unwrap_or(after);
        rest = number(after, 2..=2).map_or(after, |(_, after)| after);
    }
    let plausible = hour < 24 && minute < 60 && second < 61;
    plausible.then_some((hour * 3600 + minute * 60 + second, rest))
}

fn number(text: &str, width: std::ops::RangeInclusive<usize>) -> Option<(i64, &str)> {
    let count = text.bytes().take_while(u8::is_ascii_digit).count();
    if !width.contains(&count) {
        return None;
    }
    Some((text.get(..count)?.parse().ok()?, text.get(count..)?))
}

/// Days since 0000-03-01 of the proleptic Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    365 * year + year.div_euclid(4) - year.div_euclid(100)
        + year.div_euclid(400)
        + (153 * month + 2) / 5
        + day
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_of_every_form() {
        let seconds = |text: &str| leading(text).unwrap().0.seconds;
        let first = seconds("2026-02-28 23:59:59] x");
        assert_eq!(seconds("2026-03-01T00:00:01.250+02:00 x") - first, 2);
        assert_eq!(leading("2026-03-01T00:00:01.25Z x").unwrap().1, " x");
        assert_eq!(seconds("Mar  1 00:00:01 h") - seconds("Feb 29 23:59:59 h"), 2);
        assert_eq!(seconds("03-01 00:00:01 x"), seconds("Mar 01 00:00:01"));
        assert_eq!(leading("03:04:05,123 - x").unwrap().1, " - x");
        for no in ["2026-13-01 00:00:00", "12", "1234:5", "Maybe 1 00:00:01", "24:00:00"] {
            assert_eq!(leading(no), None, "{no}");
        }
    }
}
