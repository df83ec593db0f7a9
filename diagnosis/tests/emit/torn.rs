//! Logs with lines missing: what is claimed holds, and nothing panics.

use crate::holds;
use plimsoll_diagnosis::{
    Case,
    emit::{Ask, emit},
    findings,
};
use plimsoll_ingest::log::read_text;
use proptest::prelude::*;

const LOGS: [&str; 6] = [
    include_str!("logs/kimi-0.93.log"),
    include_str!("logs/capture-workspace.log"),
    include_str!("logs/two-cards.log"),
    include_str!("logs/server-args.log"),
    include_str!("logs/load-peak.log"),
    include_str!("logs/host-pool.log"),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn what_is_claimed_of_a_torn_log_holds(log in 0..LOGS.len(), kept in any::<u64>()) {
        let lines = LOGS[log].lines().enumerate();
        // The launch stays: without it there is nothing to emit.
        let torn: String = lines
            .filter(|(at, _)| *at < 3 || kept >> (at % 64) & 1 == 1)
            .map(|(_, line)| format!("{line}\n"))
            .collect();
        let mut case = Case { log: read_text(&torn), ..Case::default() };
        case.asked.device = Some("RTX PRO 6000 Blackwell".to_owned());
        if let Ok(emitted) = emit(&case, &findings(&case), &Ask::default()) {
            if emitted.crash.differs.is_empty() {
                holds(&emitted.crash);
            }
            if let Ok(fixed) = &emitted.fixed {
                holds(fixed);
            }
        }
    }
}
