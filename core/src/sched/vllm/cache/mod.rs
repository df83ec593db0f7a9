//! The KV cache of a vLLM server: which blocks a request needs, gets, gives back, and finds again.
//!
//! Source: vLLM `KVCacheManager`, its coordinators and single-type managers.

mod find;
mod group;
mod grow;
mod need;
mod register;
mod retention;
mod sequence;
mod states;

pub(super) use self::{
    find::Hit, group::floor_to, need::Ask, sequence::Sequence, states::checkpoint_fits,
};

use std::collections::BTreeSet;

use self::group::{Group, index};
use super::{
    config::{GroupKind, LoopKind, PrefixCaching, VllmConfig},
    rules::Rules,
};
use crate::kv::{
    Runs,
    blocks::{BlockId, BlockPool, BlockTable, Chain, Key},
};

/// New blocks of a request in a group, nulls that were put before them included.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NewBlocks {
    /// The group.
    pub group: usize,
    /// The blocks.
    pub blocks: Vec<BlockId>,
}

/// The pool, and what the groups remember of a turn.
#[derive(Clone, Debug)]
pub(super) struct BlockCache {
    pub(super) pool: BlockPool,
    rules: Rules,
    groups: Vec<Group>,
    /// Groups of equal spec, in group order, full attention first.
    kinds: Vec<Vec<usize>>,
    caching: PrefixCaching,
    /// Tokens of a unit of prefixes.
    unit: u64,
    /// Tokens at which the blocks of all groups end.
    align: u64,
    retention: Option<u64>,
    max_model_len: u64,
    /// By group, keys that were registered since the turn began.
    recent: Vec<BTreeSet<Key>>,
    /// By group, requests with a table.
    tables: Vec<u64>,
    /// What the latest allocation gave.
    pub(super) given: Vec<NewBlocks>,
    /// Blocks that were taken, and those of them that lost what they were found by, since last asked.
    counts: (u64, u64),
}

impl BlockCache {
    pub(super) fn new(config: &VllmConfig) -> Self {
        let rules = Rules::of(config.version);
        let sizes = || config.groups.iter().map(|group| group.block_size);
        let unit = sizes().fold(0, gcd).max(1);
        // Blocks that end together beyond any sequence never do.
        let align = sizes().fold(1, |all: u64, size| all.saturating_mul(size / gcd(all, size)));
        let in_flight = config.max_num_batched_tokens
            * if config.loop_kind == LoopKind::Asynchronous { 2 } else { 1 };
        let longest = config.max_model_len;
        let groups: Vec<Group> = config
            .groups
            .iter()
            .enumerate()
            .map(|(at, spec)| {
                let group = Group::new(at, *spec, unit);
                let most = match group.kind {
                    GroupKind::Window { window } => {
                        Some(group.blocks((window - 1 + in_flight).min(longest)) + 1)
                    }
                    GroupKind::Chunked { chunk } => {
                        Some(group.blocks((chunk + in_flight).min(longest)))
                    }
                    GroupKind::Full | GroupKind::Mamba(_) => None,
                };
                Group { most: most.filter(|_| rules.gate_knows_windows()), ..group }
            })
            .collect();
        let blocks = BlockId::try_from(config.num_gpu_blocks).unwrap_or(BlockId::MAX);
        Self {
            pool: BlockPool::new(blocks, rules.release()),
            rules,
            kinds: kinds(config),
            caching: config.prefix_caching,
            unit,
            align,
            retention: config.retention_interval.filter(|_| rules.registers_sparsely()),
            max_model_len: longest,
            recent: vec![BTreeSet::new(); groups.len()],
            tables: vec![0; groups.len()],
            given: Vec::new(),
            counts: (0, 0),
            groups,
        }
    }

    /// Tokens of a unit of prefixes.
    pub(super) const fn unit(&self) -> u64 {
        self.unit
    }

    /// Whether a model of this server keeps the latest states only, and where inside chunks all its groups
    /// can keep one.
    pub(super) fn states(&self) -> Option<Option<u64>> {
        let mut aligned = self.groups.iter().filter(|group| group.aligns()).map(Group::checkpoints);
        let first = aligned.next()?;
        Some(if aligned.all(|it| it.is_some()) { first } else { None })
    }

    /// A request with these tokens, which holds nothing yet.
    pub(super) fn sequence(&mut self, prompt: &Runs, namespace: u64) -> Sequence {
        let caching = self.caching == PrefixCaching::On;
        let chain =
            caching.then(|| Chain::new(&mut self.pool.prefixes, self.unit, namespace, prompt));
        Sequence {
            prompt: prompt.len(),
            known: prompt.len(),
            computed: 0,
            in_flight: 0,
            boundary: 0,
            chain,
            tables: vec![BlockTable::default(); self.groups.len()],
        }
    }

    /// Whether a request keeps all its blocks to its end.
    pub(super) fn keeps_all(&self) -> bool {
        self.groups.iter().all(|group| group.kind == GroupKind::Full)
    }

    /// Blocks that a request which keeps all takes for `tokens` more.
    pub(super) fn blocks_beyond(&self, of: &Sequence, tokens: u64) -> u64 {
        let more = |group: &Group| {
            let held = of.tables[group.at].blocks.len() as u64;
            group.blocks(of.computed + tokens).saturating_sub(held)
        };
        self.groups.iter().map(more).sum()
    }

    /// A turn begins.
    pub(super) fn begin_turn(&mut self) {
        self.recent.iter_mut().for_each(BTreeSet::clear);
    }

    /// A request gives all its blocks back, the last ones first.
    ///
    /// Source: vLLM `SingleTypeKVCacheManager.free`.
    pub(super) fn free(&mut self, of: &mut Sequence) {
        for (at, table) in of.tables.iter_mut().enumerate() {
            let table = std::mem::take(table);
            self.tables[at] -= u64::from(table.known);
            self.pool.release(table.blocks.into_iter().rev());
        }
    }

    /// A request is over; it holds no blocks any more.
    pub(super) fn forget(&mut self, of: &mut Sequence) {
        if let Some(chain) = of.chain.take() {
            chain.release(&mut self.pool.prefixes);
        }
    }

    /// Blocks that were taken, and those of them that lost what they were found by, since the last call.
    pub(super) fn take_counts(&mut self) -> (u64, u64) {
        std::mem::take(&mut self.counts)
    }

    /// By group, leading blocks of `first` that all requests with a table share.
    ///
    /// Source: vLLM `FullAttentionManager.get_num_common_prefix_blocks`.
    pub(super) fn common_prefix(&self, first: Option<&Sequence>) -> Vec<u64> {
        let counts = self.rules.counts_common_prefix() && self.caching == PrefixCaching::On;
        let shared = |group: &Group| {
            let table = first.filter(|_| counts && group.kind == GroupKind::Full)?;
            let everyone = self.tables[group.at];
            let blocks = table.tables[group.at].blocks.iter();
            let shared =
                blocks.take_while(|id| u64::from(self.pool.holders(**id)) == everyone).count();
            Some(shared as u64)
        };
        self.groups.iter().map(|group| shared(group).unwrap_or(0)).collect()
    }

    /// The engine knows a table of this request from now on.
    fn know(&mut self, of: &mut Sequence, group: usize) {
        let table = &mut of.tables[group];
        if !table.known {
            table.known = true;
            self.tables[group] += 1;
        }
    }

    fn key(&self, of: &Sequence, group: &Group, block: usize) -> Option<Key> {
        let end = (block as u64 + 1).checked_mul(group.block)?;
        let prefix = of.chain.as_ref()?.prefix(end)?;
        Some(Key { space: group.space, prefix })
    }
}

const fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

/// Groups of equal spec in group order, those of full attention first.
fn kinds(config: &VllmConfig) -> Vec<Vec<usize>> {
    let mut kinds: Vec<Vec<usize>> = Vec::new();
    for (at, spec) in config.groups.iter().enumerate() {
        match kinds.iter_mut().find(|kind| config.groups[kind[0]] == *spec) {
            Some(kind) => kind.push(at),
            None => kinds.push(vec![at]),
        }
    }
    kinds.sort_by_key(|kind| config.groups[kind[0]].kind != GroupKind::Full);
    kinds
}
