//! Seeds of a sweep: `1..1000`, `1,5,9`, or the first N.

use std::{fmt, str::FromStr};

/// Most seeds of a sweep.
pub const MAX_SEEDS: u64 = 10_000_000;

/// Seeds, as spans whose ends both count.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seeds(Vec<(u64, u64)>);

impl Seeds {
    /// One seed.
    #[must_use]
    pub fn one(seed: u64) -> Self {
        Self(vec![(seed, seed)])
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(first, last)| last - first + 1).sum()
    }

    /// Whether there is none; there always is one.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The seed at a place, from 0.
    #[must_use]
    pub fn get(&self, mut at: u64) -> Option<u64> {
        for (first, last) in &self.0 {
            let count = last - first + 1;
            if at < count {
                return Some(first + at);
            }
            at -= count;
        }
        None
    }
}

impl fmt::Display for Seeds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A single number is a count where it is read.
        if let [(first, last)] = self.0.as_slice() {
            return write!(f, "{first}..{last}");
        }
        for (i, (first, last)) in self.0.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}..{last}")?,
            }
        }
        Ok(())
    }
}

impl FromStr for Seeds {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = "allowed: `1..1000`, `1,5,9`, or `20` for the first 20";
        let number = |text: &str| {
            let seed = text.trim().parse::<u64>().ok().filter(|n| *n <= i64::MAX as u64);
            seed.ok_or_else(|| format!("`{}` is no seed; {form}", text.trim()))
        };
        let mut spans = Vec::new();
        for part in text.split(',') {
            spans.push(match part.split_once("..") {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            });
        }
        if let ([(count, _)], false) = (spans.as_slice(), text.contains("..")) {
            spans = match count {
                0 => return Err(format!("no seed; {form}")),
                count => vec![(1, *count)],
            };
        }
        if let Some((first, last)) = spans.iter().find(|(first, last)| last < first) {
            return Err(format!("`{first}..{last}` ends below its begin; {form}"));
        }
        let mut sorted = spans.clone();
        sorted.sort_unstable();
        if let Some(pair) = sorted.windows(2).find(|pair| pair[1].0 <= pair[0].1) {
            return Err(format!("seed {} stands twice", pair[1].0));
        }
        let count = spans.iter().fold(0_u64, |sum, (a, b)| sum.saturating_add(b - a + 1));
        if count > MAX_SEEDS {
            return Err(format!("{count} seeds; at most {MAX_SEEDS} are run"));
        }
        Ok(Self(spans))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all(text: &str) -> Vec<u64> {
        let seeds: Seeds = text.parse().unwrap();
        assert_eq!(seeds.to_string().parse::<Seeds>().unwrap(), seeds, "{text}");
        (0..seeds.len()).map(|at| seeds.get(at).unwrap()).collect()
    }

    #[test]
    fn spans_lists_and_counts() {
        assert_eq!(all("1..4"), [1, 2, 3, 4]);
        assert_eq!(all("3"), [1, 2, 3]);
        assert_eq!(all("7,5,9..11"), [7, 5, 9, 10, 11]);
        assert_eq!(all("7..7"), [7]);
        assert_eq!("5".parse::<Seeds>().unwrap().get(5), None);
        assert_eq!(Seeds::one(7).to_string(), "7..7");
    }

    #[test]
    fn what_is_no_seed_says_so() {
        for text in ["", "0", "x", "5..2", "1,2,1", "1..3,2", "-1", "1..99999999999", "1.5"] {
            assert!(text.parse::<Seeds>().is_err(), "{text}");
        }
    }
}
