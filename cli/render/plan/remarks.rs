//! What is not modelled, not known, or weaker than a verified rule.

use super::View;
use crate::output::Tone;
use plimsoll_core::engine::startup::StartEnd;
use plimsoll_ingest::launch::{Effect, Launch, VersionSource};

/// How much a remark weighs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Something in the launch that no engine knows.
    Warning,
    /// Good to know.
    Note,
}

impl Kind {
    pub(super) const fn word(self) -> &'static str {
        match self {
            Self::Warning => "warning:",
            Self::Note => "note:",
        }
    }

    pub(super) const fn tone(self) -> Tone {
        match self {
            Self::Warning => Tone::Close,
            Self::Note => Tone::Dim,
        }
    }
}

/// All remarks, warnings first.
pub(super) fn all(view: &View<'_>) -> Vec<(Kind, String)> {
    let warning = |line| (Kind::Warning, line);
    let note = |line| (Kind::Note, line);
    let mut lines: Vec<(Kind, String)> = unknown(view.launch).into_iter().map(warning).collect();
    lines.extend(view.plan.notes.iter().cloned().map(note));
    lines.extend(view.device_note.iter().cloned().map(note));
    lines.extend(version(view.launch).map(note));
    lines.extend(not_modelled(view.launch).into_iter().map(note));
    lines.extend(view.launch.warnings.iter().map(|warning| note(warning.message.clone())));
    if view.plan.ran.start.end == StartEnd::Ready {
        let unknown = view.plan.ran.basis.unknown.join("; ");
        lines.push(note(format!("not counted: {unknown}")));
    }
    lines
}

/// The same as lines of text.
pub(super) fn texts(view: &View<'_>) -> Vec<String> {
    all(view).into_iter().map(|(_, line)| line).collect()
}

/// Flags and variables that no known release has.
fn unknown(launch: &Launch) -> Vec<String> {
    let near = |name: Option<&String>| name.map_or_else(String::new, |n| format!(" (near: {n})"));
    let flags = launch.unknown.iter().map(|flag| {
        format!(
            "{} is no flag of this engine and is not counted{}",
            flag.name,
            near(flag.near.first())
        )
    });
    let variables = launch.env.iter().filter(|v| v.effect.is_none() && v.near.is_some());
    let variables = variables.map(|v| {
        format!(
            "{} is no variable of this engine and is not counted{}",
            v.name,
            near(v.near.as_ref())
        )
    });
    flags.chain(variables).collect()
}

/// Flags and variables that are known to move memory, without a rule here.
fn not_modelled(launch: &Launch) -> Vec<String> {
    let flags = launch.not_modelled.iter().filter(|f| f.effect == Effect::MemoryNotModelled);
    let variables = launch.env.iter().filter(|v| v.effect == Some(Effect::MemoryNotModelled));
    let names = flags.map(|f| f.name.as_str()).chain(variables.map(|v| v.name.as_str()));
    let names: Vec<&str> = names.collect();
    let line = format!("may move memory and is not modelled: {}", names.join(", "));
    (!names.is_empty()).then_some(line).into_iter().collect()
}

fn version(launch: &Launch) -> Option<String> {
    match &launch.version {
        VersionSource::Default { note } => {
            Some(format!("{note}; say another with --engine-version"))
        }
        VersionSource::Given | VersionSource::Requirement { .. } | VersionSource::Image { .. } => {
            None
        }
    }
}
