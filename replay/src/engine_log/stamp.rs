//! Dates of model time, counted from 1970-01-01 00:00:00.

use plimsoll_core::units::Nanos;

/// A moment as the parts of a date.
struct Date {
    year: u64,
    month: u64,
    day: u64,
    second: u64,
}

fn date(at: Nanos) -> Date {
    let seconds = at.0 / 1_000_000_000;
    let (mut day, mut year) = (seconds / 86_400, 1970);
    while day >= days_of(year) {
        day -= days_of(year);
        year += 1;
    }
    let february = 28 + u64::from(days_of(year) == 366);
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31] {
        if day < days {
            break;
        }
        day -= days;
        month += 1;
    }
    Date { year, month, day: day + 1, second: seconds % 86_400 }
}

const fn days_of(year: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    if leap { 366 } else { 365 }
}

fn clock(second: u64) -> String {
    format!("{:02}:{:02}:{:02}", second / 3_600, second / 60 % 60, second % 60)
}

/// `1970-01-01 00:00:15`, as SGLang's log has it.
pub(super) fn with_year(at: Nanos) -> String {
    let Date { year, month, day, second } = date(at);
    format!("{year}-{month:02}-{day:02} {}", clock(second))
}

/// `01-01 00:00:15`, as vLLM's log has it.
pub(super) fn without_year(at: Nanos) -> String {
    let Date { month, day, second, .. } = date(at);
    format!("{month:02}-{day:02} {}", clock(second))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_become_dates() {
        let at = |seconds: u64| with_year(Nanos(seconds * 1_000_000_000 + 999_999_999));
        assert_eq!(at(0), "1970-01-01 00:00:00");
        assert_eq!(at(86_399), "1970-01-01 23:59:59");
        assert_eq!(at(59 * 86_400), "1970-03-01 00:00:00");
        // 1972 is a leap year.
        assert_eq!(at((2 * 365 + 59) * 86_400), "1972-02-29 00:00:00");
        assert_eq!(at((2 * 365 + 366) * 86_400), "1973-01-01 00:00:00");
        assert_eq!(without_year(Nanos(3_661_000_000_000)), "01-01 01:01:01");
    }
}
