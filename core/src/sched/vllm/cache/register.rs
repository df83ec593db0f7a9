//! Making full blocks findable.

use super::{BlockCache, Group, Sequence, floor_to, index};
use crate::sched::vllm::config::PrefixCaching;

impl BlockCache {
    /// Registers the whole blocks of a request's first `tokens`, whose ids are known: as soon as they are
    /// scheduled.
    ///
    /// Source: vLLM `KVCacheCoordinator.cache_blocks`.
    pub(in super::super) fn register(&mut self, of: &mut Sequence, tokens: u64) {
        if self.caching == PrefixCaching::Off {
            return;
        }
        let in_steps = self.rules.registers_sparsely() && self.groups.len() > 1;
        let tokens = if in_steps { floor_to(tokens, self.align) } else { tokens };
        for at in 0..self.groups.len() {
            let group = self.groups[at];
            let from = of.tables[at].registered.unwrap_or(0);
            self.register_blocks(of, &group, tokens);
            self.register_states(of, group, tokens, from);
        }
    }

    fn register_blocks(&mut self, of: &mut Sequence, group: &Group, tokens: u64) {
        let table = &of.tables[group.at];
        let to = index(tokens.min(of.named()) / group.block);
        let from = table.registered.unwrap_or(0);
        if to <= from {
            return;
        }
        let retention = self.retention(of, group);
        for at in (from..to).filter(|at| !table.is_null(*at) && retention.keeps(*at)) {
            let Some(key) = self.key(of, group, at) else { continue };
            let id = table.blocks[at];
            self.pool.forget(id);
            self.pool.enter(key, id, (at as u64 + 1) * group.block);
        }
        of.tables[group.at].registered = Some(to);
    }
}
