//! A server that is up, but of which nothing heavier than a health check has been asked.

use plimsoll_core::units::group_thousands;
use plimsoll_ingest::log::{Sglang, Vllm};

use super::{activities, largest_prefill};
use crate::study::Study;
use crate::{Case, Cause, Confidence, Finding, Level, Lever, Move, Phase};

pub(super) fn find(study: &Study<'_>) -> Option<Finding> {
    let case = study.case;
    let chunk = study.rank().and_then(|rank| rank.limits.chunk)?;
    if !ready(case) {
        return None;
    }
    let largest = largest_prefill(case).unwrap_or(0);
    // Half a chunk shows the order of what a whole one needs.
    if chunk == 0 || largest >= chunk / 2 {
        return None;
    }
    // Batches ran whose prefill lines the log does not have.
    if largest == 0 && activities(case).any(|activity| activity.running.most > 0.0) {
        return None;
    }
    let answered: u64 = activities(case).map(|activity| activity.answered).sum();
    let probes: u64 = activities(case).map(|activity| activity.probes).sum();
    let seen = match (largest, answered) {
        (0, 0) if probes > 0 => "only health checks have passed".to_owned(),
        (0, 0) => "no request has passed".to_owned(),
        (0, answered) => format!("{answered} requests have passed, of unknown length"),
        (largest, _) => {
            format!("the largest prefill had {} tokens", group_thousands(largest))
        }
    };
    let headline =
        format!("up, not proven: {seen}; a prefill chunk has {} tokens", group_thousands(chunk));
    let finding = Finding::new("never-proven", Cause::Healthy, Phase::None, headline)
        .level(Level::Note)
        .sure(Confidence::Certain, 35)
        .because(
            "A server that answers is not stable: the first full chunk takes memory that no health check \
             asks for. Send one prompt of the longest length, and many at once, and look at free memory.",
        )
        .int("largest_prefill_tokens", i64::try_from(largest).unwrap_or(i64::MAX))
        .int("chunked_prefill_tokens", i64::try_from(chunk).unwrap_or(i64::MAX));
    let proof = Lever::new("--skip-server-warmup", Move::Unset)
        .gives("at least one request before the server says it is ready");
    let skips = case.arg("skip_server_warmup") == Some("True");
    Some(if skips { finding.set(proof) } else { finding })
}

fn ready(case: &Case) -> bool {
    let said = case.sglang().any(|(_, line)| matches!(line, Sglang::Ready))
        || case.vllm().any(|(_, line)| matches!(line, Vllm::Ready));
    said || activities(case).any(|activity| activity.lines.is_some() || activity.answered > 0)
}
