//! KV that moves between the device and the host tier.

use super::{ServeEnd, Server};
use crate::{
    backend::{KvMove, Rank},
    sched::Decision,
    units::Bytes,
};

/// A move is at most this part of the pool: window layers hold fewer tokens than the pool has slots.
const PART: u64 = 4;

impl Server<'_, '_> {
    /// Moves on every rank what a decision moves. It takes no time: the engine copies beside its passes.
    pub(super) fn move_kv(&mut self, decision: &Decision) -> Result<(), ServeEnd> {
        let (way, mut tokens) = match decision {
            Decision::BackedUp { stored, .. } => (KvMove::ToHost, *stored),
            Decision::LoadedBack { loaded, .. } => (KvMove::ToDevice, *loaded),
            _ => return Ok(()),
        };
        let most = (self.totals.pool_tokens / PART).max(1);
        while tokens > 0 {
            let part = tokens.min(most);
            tokens -= part;
            let size = Bytes(part.saturating_mul(self.parts.host_token.0));
            for rank in (0..self.backend.ranks()).map(Rank) {
                self.backend.move_kv(rank, way, size)?;
            }
        }
        Ok(())
    }
}
