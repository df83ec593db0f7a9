//! Which rank of a server a series is of.

use super::prometheus::Labels;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use std::{fmt, str::FromStr};

/// Labels that tell ranks apart, with their short names. An expert-parallel or pipeline rank 0 is left out:
/// nearly every server has no other.
const AXES: [(&str, &str); 5] = [
    ("engine", "engine"),
    ("dp_rank", "dp"),
    ("pp_rank", "pp"),
    ("tp_rank", "tp"),
    ("moe_ep_rank", "ep"),
];
/// Axes whose 0 is not named.
const QUIET: [&str; 2] = ["pp", "ep"];

/// A rank: `tp0`, `dp1 tp4`, `engine0`; `server` where a series has no such label. In order of its numbers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct RankId([Option<u32>; AXES.len()]);

impl RankId {
    /// The server as a whole.
    pub const SERVER: Self = Self([None; AXES.len()]);

    /// The rank that labels name. A label that is no number (`None`, empty) names none.
    #[must_use]
    pub fn from_labels(labels: &Labels<'_>) -> Self {
        let mut id = Self::SERVER;
        for (slot, (label, short)) in id.0.iter_mut().zip(AXES) {
            let number = labels.get(label).and_then(|text| text.parse().ok());
            *slot = number.filter(|n| *n > 0 || !QUIET.contains(&short));
        }
        id
    }

    /// The data-parallel rank `rank`; SGLang lists its internal states by it.
    #[must_use]
    pub fn of_data_parallel(rank: u32) -> Self {
        let mut id = Self::SERVER;
        for (slot, (label, _)) in id.0.iter_mut().zip(AXES) {
            if label == "dp_rank" {
                *slot = Some(rank);
            }
        }
        id
    }
}

impl fmt::Display for RankId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut first = true;
        for (number, (_, short)) in self.0.iter().zip(AXES) {
            if let Some(number) = number {
                write!(f, "{}{short}{number}", if first { "" } else { " " })?;
                first = false;
            }
        }
        if first { f.write_str("server") } else { Ok(()) }
    }
}

impl FromStr for RankId {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut id = Self::SERVER;
        if text == "server" {
            return Ok(id);
        }
        for word in text.split(' ') {
            let slot = id.0.iter_mut().zip(AXES).find_map(|(slot, (_, short))| {
                let number = word.strip_prefix(short)?.parse().ok()?;
                Some((slot, number))
            });
            let Some((slot, number)) = slot else {
                return Err(format!(
                    "`{text}` is not a rank; expected for example `tp0` or `server`"
                ));
            };
            *slot = Some(number);
        }
        Ok(id)
    }
}

impl Serialize for RankId {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for RankId {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_named_and_ordered_by_their_numbers() {
        let id = |text: &str| text.parse::<RankId>().unwrap();
        assert!(id("tp2") < id("tp10"));
        assert!(id("dp0 tp1") < id("dp1 tp0"));
        assert_eq!(id("dp1 tp0").to_string(), "dp1 tp0");
        assert_eq!(RankId::SERVER.to_string(), "server");
        assert!("tp".parse::<RankId>().is_err() && "gpu1".parse::<RankId>().is_err());
    }
}
