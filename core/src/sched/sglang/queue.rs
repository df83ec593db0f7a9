//! Order of the waiting queue.

use std::cmp::Reverse;

use super::{SglangScheduler, config::QueuePolicy, request::Idx};
use crate::kv::{EvictionPolicy, NodeId, RadixTree, TreeClock, TreeOptions};

/// A longer queue is not sorted by prefix. Source: SGLang `SchedulePolicy._determine_active_policy`.
const LPM_LIMIT: usize = 128;
/// Requests whose cached prefix is at most this are compared with each other.
/// Source: `IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD`.
const CHECK: u64 = 32;
/// Tokens shared with another waiting request that put one last.
/// Source: `IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD`.
const DEPRIORITIZE: u64 = 32;
/// Orderings between two refreshes, and requests that one refreshes. Source: 0.5.23 `SchedulePolicy`.
const REFRESH_EVERY: u64 = 32;
const REFRESH_COUNT: usize = 128;

impl SglangScheduler {
    /// Orders the queue in place: the order of one turn is where the next begins.
    ///
    /// Source: SGLang `SchedulePolicy.calc_priority`.
    pub(super) fn order_queue(&mut self) {
        let long = self.waiting.len() > LPM_LIMIT;
        let no_tree = self.tree.is_none();
        match self.config.policy {
            QueuePolicy::Lpm if !long && !no_tree => self.sort_by_prefix(),
            QueuePolicy::DfsWeight if !no_tree => self.sort_by_weight(),
            QueuePolicy::Lof => {
                let priority = self.config.priority;
                self.sort_by(|it, at| {
                    let rank = if priority.is_some() { it.rank(at) } else { 0 };
                    (rank, Reverse(it.requests[at].limit))
                });
                self.refresh_queue();
            }
            QueuePolicy::Fcfs | QueuePolicy::Lpm | QueuePolicy::DfsWeight => {
                if self.config.priority.is_some() {
                    self.sort_by(|it, at| (it.rank(at), it.requests[at].entry));
                }
                self.refresh_queue();
            }
        }
    }

    /// Stable.
    fn sort_by<K: Ord>(&mut self, key: impl Fn(&Self, Idx) -> K) {
        let mut waiting = std::mem::take(&mut self.waiting);
        waiting.make_contiguous().sort_by_cached_key(|at| key(self, *at));
        self.waiting = waiting;
    }

    /// Touches the prefixes of the head of the queue, so that they are not evicted before their turn.
    fn refresh_queue(&mut self) {
        let lru = self.config.prefix_cache.eviction() == Some(EvictionPolicy::Lru);
        let applies = self.rules.refreshes_queue() && lru;
        if !applies || self.waiting.is_empty() {
            return;
        }
        if self.orderings.is_multiple_of(REFRESH_EVERY) {
            let head = self.waiting.len().min(REFRESH_COUNT);
            for place in (0..head).rev() {
                self.match_all(self.waiting[place]);
            }
        }
        self.orderings += 1;
    }

    /// Matches all that a request has, its last token too. Returns the node and the length.
    fn match_all(&mut self, at: Idx) -> (NodeId, u64) {
        let request = &self.requests[at];
        match &mut self.tree {
            Some(tree) => {
                let found = tree.match_prefix(request.namespace, request.ids.cursor());
                (found.node, found.len)
            }
            None => (NodeId::ROOT, 0),
        }
    }

    /// Matches every waiting request. Of those with little in the cache, all but the first that begin alike
    /// are marked: once the first is computed, the others find its prefix.
    ///
    /// Source: SGLang `SchedulePolicy._compute_prefix_matches`.
    fn match_waiting(&mut self) -> Vec<Found> {
        let mut begun = RadixTree::new(TreeOptions {
            page_size: 1,
            eviction: EvictionPolicy::Lru,
            clock: TreeClock::PerCall,
        });
        let mut found = Vec::with_capacity(self.waiting.len());
        for place in 0..self.waiting.len() {
            let at = self.waiting[place];
            let (node, len) = self.match_all(at);
            let request = &mut self.requests[at];
            request.prefix = len;
            request.node = node;
            let (namespace, ids) = (request.namespace, request.ids.cursor());
            let mut last = false;
            if len <= CHECK {
                last = begun.match_prefix(namespace, ids).len >= DEPRIORITIZE;
                if !last {
                    begun.insert(namespace, ids, ids, 0);
                }
            }
            found.push(Found { at, node, len, last });
        }
        found
    }

    fn sort_by_prefix(&mut self) {
        let mut found = self.match_waiting();
        let capped = self.rules.caps_sorted_match();
        let requests = &self.requests;
        found.sort_by_key(|it| {
            let most = requests[it.at].len().saturating_sub(1);
            let len = if capped { it.len.min(most) } else { it.len };
            (it.last, Reverse(if it.last { 0 } else { len }))
        });
        self.waiting = found.into_iter().map(|it| it.at).collect();
    }

    fn sort_by_weight(&mut self) {
        let found = self.match_waiting();
        let Some(tree) = &self.tree else { return };
        let weights: Vec<(NodeId, u64)> = found.iter().map(|it| (it.node, 1)).collect();
        let mut by_node: std::collections::BTreeMap<NodeId, Vec<Idx>> =
            std::collections::BTreeMap::new();
        for it in &found {
            by_node.entry(it.node).or_default().push(it.at);
        }
        let order = tree.heavy_first(&weights);
        self.waiting =
            order.iter().flat_map(|node| by_node.remove(node).unwrap_or_default()).collect();
    }
}

/// A waiting request and its cached prefix.
#[derive(Clone, Copy, Debug)]
struct Found {
    at: Idx,
    node: NodeId,
    len: u64,
    /// Goes last.
    last: bool,
}
