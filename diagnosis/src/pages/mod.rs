//! Pages that explain a code, an operating rule, or an answer that is often given and wrong.
//!
//! A page is a Markdown file below `pages/`: first what it means, then sections. Its title stands in the table
//! below, or for a code in [`crate::codes`].

mod table;

use crate::codes;

pub use table::PAGES;

/// What a page is about.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum PageKind {
    /// A code of a finding.
    Code,
    /// A rule for operating a server.
    Rule,
    /// An answer that is often given and wrong.
    WrongAnswer,
}

impl PageKind {
    /// Every kind, in printing order.
    pub const ALL: [Self; 3] = [Self::Code, Self::Rule, Self::WrongAnswer];

    /// Name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Code => "code",
            Self::Rule => "rule",
            Self::WrongAnswer => "wrong_answer",
        }
    }

    /// Heading of a list of such pages.
    #[must_use]
    pub const fn heading(self) -> &'static str {
        match self {
            Self::Code => "Codes of findings",
            Self::Rule => "Operating rules",
            Self::WrongAnswer => "Wrong answers",
        }
    }
}

/// A page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Page {
    /// What it is about.
    pub kind: PageKind,
    /// What it is asked for by: a code, or a topic in words joined by dashes.
    pub key: &'static str,
    /// The Markdown file.
    pub text: &'static str,
    /// One line, as a heading; empty for a code, which has its own.
    own_title: &'static str,
}

/// A part of a page below a heading.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Section<'a> {
    /// The heading; empty for what stands before the first one.
    pub heading: &'a str,
    /// Its Markdown, trimmed.
    pub text: &'a str,
}

impl Page {
    /// One line, as a heading.
    #[must_use]
    pub fn title(&self) -> &'static str {
        codes::find(self.key).map_or(self.own_title, |code| code.title)
    }

    /// The parts in order. The first one has no heading and says what the page is about.
    #[must_use]
    pub fn sections(&self) -> Vec<Section<'static>> {
        let mut sections = Vec::new();
        for (at, part) in self.text.split("\n## ").enumerate() {
            let (heading, text) = match at {
                0 => ("", part),
                _ => part.split_once('\n').unwrap_or((part, "")),
            };
            sections.push(Section { heading: heading.trim(), text: text.trim() });
        }
        sections
    }

    /// What it means, before the first heading.
    #[must_use]
    pub fn meaning(&self) -> &'static str {
        self.text.split("\n## ").next().unwrap_or_default().trim()
    }
}

/// The page that is asked for by a name; case, blanks and underscores are forgiven.
#[must_use]
pub fn find(name: &str) -> Option<&'static Page> {
    let key = key_of(name);
    PAGES.iter().find(|page| page.key == key)
}

/// A name as keys are written.
#[must_use]
pub fn key_of(name: &str) -> String {
    let name = name.trim().to_ascii_lowercase();
    name.split([' ', '_', '-']).filter(|word| !word.is_empty()).collect::<Vec<_>>().join("-")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_forgiven() {
        assert_eq!(find("Weights above_fraction").map(|p| p.key), Some("weights-above-fraction"));
        assert_eq!(find("weights"), None);
        assert_eq!(key_of("  Raise   the fraction "), "raise-the-fraction");
    }

    #[test]
    fn every_code_has_a_page_and_every_page_a_title() {
        for code in codes::CODES {
            assert!(find(code.code).is_some(), "no page of {}", code.code);
        }
        for page in PAGES {
            assert!(!page.title().is_empty(), "{} is no code and has no title", page.key);
            assert_eq!(key_of(page.key), page.key);
        }
        let mut keys: Vec<&str> = PAGES.iter().map(|page| page.key).collect();
        keys.sort_unstable();
        keys.dedup();
        assert_eq!(keys.len(), PAGES.len(), "a key stands twice");
    }

    #[test]
    fn pages_have_the_parts_that_readers_look_for() {
        for page in PAGES {
            let sections = page.sections();
            let headings: Vec<&str> = sections.iter().map(|s| s.heading).collect();
            let wanted: &[&str] = match page.kind {
                PageKind::Code => {
                    &["", "In a log", "Arithmetic", "What to do", "What does not help", "Sources"]
                }
                PageKind::Rule => &["", "Arithmetic", "What to do", "Sources"],
                PageKind::WrongAnswer => &["", "Arithmetic", "What is right", "Sources"],
            };
            assert_eq!(headings, wanted, "{}", page.key);
            for section in sections {
                assert!(section.text.len() > 20, "{}: `{}` is empty", page.key, section.heading);
            }
        }
    }
}
