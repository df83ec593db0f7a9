//! Which release's rules hold for a version that was asked for, and what to say when it is not known.
//! Rules compare versions in order, so a post-release carries exactly the rules that start at or before it.

use super::version::Version;

/// First release whose rules are known.
pub const FIRST: Version = Version::new(0, 4, 6);
/// Last release whose rules are known.
pub const LAST: Version = Version::new(0, 5, 23);

/// Releases that were read, each with its last post-release that was read.
/// Source: the releases on the package index from 0.4.6 to 0.5.23; there is no 0.5.0.
const READ: &[(Version, u16)] = &[
    (Version::new(0, 4, 6), 5),
    (Version::new(0, 4, 7), 1),
    (Version::new(0, 4, 8), 1),
    (Version::new(0, 4, 9), 6),
    (Version::new(0, 4, 10), 2),
    (Version::new(0, 5, 1), 3),
    (Version::new(0, 5, 2), 0),
    (Version::new(0, 5, 3), 3),
    (Version::new(0, 5, 4), 3),
    (Version::new(0, 5, 5), 3),
    (Version::new(0, 5, 6), 2),
    (Version::new(0, 5, 7), 0),
    (Version::new(0, 5, 8), 1),
    (Version::new(0, 5, 9), 0),
    (Version::new(0, 5, 10), 1),
    (Version::new(0, 5, 11), 0),
    (Version::new(0, 5, 12), 1),
    (Version::new(0, 5, 13), 1),
    (Version::new(0, 5, 14), 0),
    (Version::new(0, 5, 15), 1),
    (Version::new(0, 5, 16), 0),
    (Version::new(0, 5, 17), 0),
    (Version::new(0, 5, 18), 0),
    (Version::new(0, 5, 19), 0),
    (Version::new(0, 5, 20), 0),
    (Version::new(0, 5, 21), 0),
    (Version::new(0, 5, 22), 0),
    (Version::new(0, 5, 23), 0),
];

/// The newest release that was read and is older than `bound`.
#[must_use]
pub fn newest_before(bound: Version) -> Option<Version> {
    READ.iter().map(|(version, _)| *version).rfind(|version| *version < bound)
}

/// The version asked for, the version whose rules are used, and what may differ between them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RulesFor {
    /// As asked.
    pub asked: Version,
    /// Version that every rule below is compared against.
    pub used: Version,
    /// Why `used` is not a release that was read, and what may differ; `None` when it was read.
    pub note: Option<String>,
}

impl RulesFor {
    /// The nearest known rules. Older than 0.4.6 follows 0.4.6, newer than 0.5.23 follows 0.5.23, a
    /// release or post-release in between that was not read follows the one before it (0.5.0: 0.5.1).
    #[must_use]
    pub fn version(asked: Version) -> Self {
        let base = Version::new(asked.major, asked.minor, asked.patch);
        if let Some(&(_, last_post)) = READ.iter().find(|(v, _)| *v == base) {
            return match asked.post <= last_post {
                true => Self { asked, used: asked, note: None },
                false => Self::unread_post(asked, base, last_post),
            };
        }
        let (used, note) = if asked < FIRST {
            (
                FIRST,
                format!(
                    "{asked} is older than the first release whose rules are known ({FIRST}); its tiers, \
                 fraction constants and request limits may differ"
                ),
            )
        } else if asked > LAST {
            (
                LAST,
                format!(
                    "{asked} is newer than the last release whose rules are known ({LAST}); the reserve, the \
                 prefill-graph defaults and the pool layouts change most often and may differ"
                ),
            )
        } else {
            let used = READ.iter().map(|(v, _)| *v).find(|v| *v > base).unwrap_or(LAST);
            (used, format!("{asked} is not a known release; the rules of {used} are used"))
        };
        Self { asked, used, note: Some(note) }
    }

    fn unread_post(asked: Version, base: Version, last: u16) -> Self {
        let used = Version { post: last, ..base };
        let note = format!(
            "post-release {asked} was not read; the rules of {used} are used, and it may already carry \
             a rule of the next release"
        );
        Self { asked, used, note: Some(note) }
    }
}

impl Version {
    /// Whether a rule that starts with release `0.minor.patch` holds here.
    #[must_use]
    pub const fn since(self, minor: u16, patch: u16) -> bool {
        self.since_post(minor, patch, 0)
    }

    /// Whether a rule that starts with post-release `0.minor.patch.post` holds here.
    #[must_use]
    pub const fn since_post(self, minor: u16, patch: u16, post: u16) -> bool {
        let (a, b) = (self.key(), Self::post(0, minor, patch, post).key());
        a >= b
    }

    const fn key(self) -> u64 {
        (self.major as u64) << 48
            | (self.minor as u64) << 32
            | (self.patch as u64) << 16
            | self.post as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_and_unknown_versions() {
        let rules = |s: &str| RulesFor::version(s.parse().unwrap());
        assert_eq!(rules("0.5.8").note, None);
        assert_eq!(rules("0.5.8.post1").note, None);
        assert_eq!(rules("0.5.24").used, LAST);
        assert!(rules("0.5.24").note.unwrap().contains("newer"));
        assert_eq!(rules("0.3.1").used, FIRST);
        assert_eq!(rules("0.5.0").used, Version::new(0, 5, 1));
        assert_eq!(rules("0.5.9.post7").used, Version::new(0, 5, 9));
        assert_eq!(rules("0.4.10.post9").used, Version::post(0, 4, 10, 2));
        assert_eq!(rules("1.0.0").used, LAST);
    }

    #[test]
    fn a_post_release_carries_the_rules_that_start_with_it() {
        let v = Version::post(0, 4, 7, 1);
        assert!(v.since_post(4, 7, 1) && !v.since(4, 8) && v.since(4, 7));
        assert!(Version::new(0, 4, 10).since_post(4, 9, 3));
    }
}
