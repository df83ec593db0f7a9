//! A start that found no memory, by the names that scenarios claim.

use crate::{
    outcome::{Figure, Outcome},
    scenario::expect::Ending,
};
use plimsoll_core::{backend::BackendError, units::Bytes};

/// The outcome of a start that ended with `error`: host memory is an ending of its own. What was asked for,
/// whose it was to be, and what was free; nothing of these where the device is gone.
#[must_use]
pub(crate) fn outcome(error: &BackendError) -> Outcome {
    let (rank, account, requested, free) = match error {
        BackendError::OutOfMemory { rank, account, requested, free }
        | BackendError::HostOutOfMemory { rank, account, requested, free, .. } => {
            (rank, account, requested, Some(free))
        }
        BackendError::TooLarge { rank, account, requested, .. } => (rank, account, requested, None),
        _ => return Outcome::out_of_memory(),
    };
    let mut outcome = Outcome::ended(match error {
        BackendError::HostOutOfMemory { .. } => Ending::HostOutOfMemory,
        _ => Ending::OutOfMemory,
    });
    let bytes = |bytes: &Bytes| Figure::Bytes(bytes.0);
    let mut put = |name: &str, figure: Figure| {
        // A name or kind that no scenario can claim is left out: no claim can pass on it.
        let _ = outcome.insert(name, figure);
    };
    put("died_in", Figure::Text("start".to_owned()));
    put("died_rank", Figure::Count(i64::from(rank.0)));
    put("died_buffer", Figure::Text(account.label().to_owned()));
    put("died_requested", bytes(requested));
    put("died_segment", bytes(requested));
    if let Some(free) = free {
        put("died_free", bytes(free));
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::{
        backend::{HostLimit, Rank},
        memory::ledger::Account,
    };

    #[test]
    fn a_start_that_dies_says_who_wanted_how_much() {
        let (rank, account) = (Rank(3), Account::KvPool);
        let (requested, free) = (Bytes(40), Bytes(8));
        let device = outcome(&BackendError::OutOfMemory { rank, account, requested, free });
        assert_eq!(device.ending, Ending::OutOfMemory);
        assert_eq!(device.get("died_in"), Some(Figure::Text("start".to_owned())));
        assert_eq!(device.get("died_buffer"), Some(Figure::Text("KV pool".to_owned())));
        assert_eq!(device.get("died_rank"), Some(Figure::Count(3)));
        assert_eq!(device.get("died_free"), Some(Figure::Bytes(8)));
        let limit = HostLimit::Cgroup;
        let host =
            outcome(&BackendError::HostOutOfMemory { rank, account, limit, requested, free });
        assert_eq!(host.ending, Ending::HostOutOfMemory);
        assert_eq!(host.get("died_requested"), Some(Figure::Bytes(40)));
        let lost = outcome(&BackendError::DeviceLost("gone".to_owned()));
        assert_eq!(lost.get("died_in"), None);
    }
}
