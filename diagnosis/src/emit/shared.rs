//! A machine whose memory is shared with programs: what was free when the pool was sized is gone later.

use super::{
    draft::{Draft, Entry, amount},
    trial::{self, Trial},
};
use crate::Case;
use std::path::Path;

/// Requests as they ran, and other programs that take all that the start left free: the least that explains a
/// refused allocation on a pool that is nearly empty.
pub(super) fn put(draft: &mut Draft, case: &Case, base: &Path) -> Result<(), String> {
    let ran = Trial::start(draft, base)?;
    let Some(left) = trial::free(&ran, "after_graphs") else { return Ok(()) };
    let last = case.log.activity.iter().next_back().map(|(_, activity)| activity);
    let running = last.filter(|a| a.running.most >= 1.0).map_or(1.0, |a| a.running.most);
    let held = last.filter(|a| a.held_tokens.count > 0).map(|a| a.held_tokens.most);
    let each = held.map_or(512.0, |held| (held / running).max(1.0));
    let note = match held {
        Some(held) => format!("as many as ran, {running}, holding {held} tokens"),
        None => format!("as many as ran, {running}; their lengths are not in the log and chosen"),
    };
    draft.workload = vec![vec![
        Entry::new("name", "requests", note),
        Entry::new("requests", running as i64, ""),
        Entry::new("at", "0 s", ""),
        Entry::new("prompt_tokens", each as i64, ""),
        Entry::new("output_tokens", 512, "not in the log; chosen, so that they still run"),
    ]];
    let text = "# not in the log: other programs take what the start left free";
    draft.events = vec![format!(
        "{{ at: 500 ms, others_grow: {{ by: {}, over: 1 s }} }} {text}",
        amount(left)
    )];
    Ok(())
}
