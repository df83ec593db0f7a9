//! SGLang releases: parsing, order, and the nearest release whose rules are known.

use std::{fmt, str::FromStr};

/// A release `major.minor.patch`, with its post-release number (0 for none).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Version {
    /// First number.
    pub major: u16,
    /// Second number.
    pub minor: u16,
    /// Third number.
    pub patch: u16,
    /// `N` of `.postN`; 0 for the release itself.
    pub post: u16,
}

impl Version {
    /// The release without a post-release.
    #[must_use]
    pub const fn new(major: u16, minor: u16, patch: u16) -> Self {
        Self { major, minor, patch, post: 0 }
    }

    /// Post-release `n` of `major.minor.patch`.
    #[must_use]
    pub const fn post(major: u16, minor: u16, patch: u16, n: u16) -> Self {
        Self { major, minor, patch, post: n }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)?;
        if self.post > 0 { write!(f, ".post{}", self.post) } else { Ok(()) }
    }
}

/// A text that names no release.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a release; write for example `0.5.8` or `0.4.9.post3`")]
pub struct VersionError(pub String);

impl FromStr for Version {
    type Err = VersionError;

    /// Accepts `0.5.8`, `v0.5.8`, `0.5.8.post1`; suffixes such as `rc1`, `+cu130`, `-dev`, `.dev3` are
    /// ignored (the release they lead to is meant).
    fn from_str(text: &str) -> Result<Self, VersionError> {
        let bad = || VersionError(text.to_owned());
        let body = text.trim().trim_start_matches(['v', 'V']);
        let body = body.split(['+', '-', ' ']).next().unwrap_or_default();
        let mut parts = body.split('.');
        let mut number = || -> Result<u16, VersionError> {
            let part = parts.next().ok_or_else(bad)?;
            let end = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part[..end].parse().map_err(|_| bad())
        };
        let (major, minor, patch) = (number()?, number()?, number()?);
        let post = body
            .split_once(".post")
            .and_then(|(_, n)| n.split('.').next())
            .map_or(Ok(0), str::parse)
            .map_err(|_| bad())?;
        Ok(Self { major, minor, patch, post })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_parse_and_order() {
        let parse = |s: &str| s.parse::<Version>().unwrap();
        assert_eq!(parse("v0.5.16-cu130"), Version::new(0, 5, 16));
        assert_eq!(parse("0.4.9.post3"), Version::post(0, 4, 9, 3));
        assert_eq!(parse("0.5.12rc0"), Version::new(0, 5, 12));
        assert!(parse("0.4.10") > parse("0.4.9.post6"));
        assert!("main".parse::<Version>().is_err());
    }
}
