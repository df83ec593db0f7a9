//! What a live server's scheduler is set to: Plimsoll's own choices over SGLang's rules.

use crate::{
    decision::{Record, Value},
    kv::EvictionPolicy,
    policy::sglang::version::Version,
    sched::sglang::{LoopKind, PrefixCache, PriorityOptions, QueuePolicy, SglangConfig},
};

/// Release of SGLang whose scheduling rules are followed.
pub const RULES: Version = Version::new(0, 5, 23);

/// Settings of the scheduler, all that decisions depend on beside the inputs.
#[derive(Clone, PartialEq, Debug)]
pub struct LiveSettings {
    /// Pages of the pool.
    pub pool_pages: u64,
    /// Token slots of a page.
    pub page_size: u64,
    /// Tokens of a prefill pass; prompts are cut there.
    pub chunked_prefill_size: u64,
    /// Requests that run at once.
    pub max_running_requests: u64,
    /// Requests that may wait; `None`: any number.
    pub max_queued_requests: Option<u64>,
    /// Longest sequence, prompt and answer.
    pub context_length: u64,
    /// Order of the waiting queue.
    pub policy: QueuePolicy,
    /// `schedule_conservativeness`.
    pub conservativeness: f64,
    /// Scheduling by priority, larger values first.
    pub by_priority: bool,
    /// Whether prefixes are kept.
    pub prefix_cache: bool,
}

/// A record that is no settings, or some that are of another kind.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("the settings have no usable {0:?}")]
pub struct SettingsError(pub &'static str);

const POLICIES: [(&str, QueuePolicy); 4] = [
    ("fcfs", QueuePolicy::Fcfs),
    ("lpm", QueuePolicy::Lpm),
    ("dfs-weight", QueuePolicy::DfsWeight),
    ("lof", QueuePolicy::Lof),
];

impl LiveSettings {
    /// The scheduler's own form. Results are processed before the next pass is decided: the model computes on
    /// the threads that decide. A pass holds at most one chunk of prompt tokens.
    #[must_use]
    pub fn config(&self) -> SglangConfig {
        let page = self.page_size.max(1);
        let chunk = (self.chunked_prefill_size / page * page).max(page);
        let priority = self.by_priority.then(PriorityOptions::default);
        let prefix_cache = match self.prefix_cache {
            true => PrefixCache::Radix(EvictionPolicy::default()),
            false => PrefixCache::Off,
        };
        SglangConfig {
            page_size: page,
            chunked_prefill_size: Some(chunk),
            max_prefill_tokens: chunk,
            max_running_requests: self.max_running_requests,
            request_rows: self.max_running_requests,
            policy: self.policy,
            conservativeness: self.conservativeness,
            loop_kind: LoopKind::Normal,
            max_queued_requests: self.max_queued_requests,
            priority,
            prefix_cache,
            ..SglangConfig::new(RULES, self.pool_pages.saturating_mul(page), self.context_length)
        }
    }

    /// As the log has it.
    #[must_use]
    pub fn record(&self) -> Record {
        let policy = POLICIES.iter().find(|(_, policy)| *policy == self.policy);
        Record::new("settings")
            .with("rules", "sglang 0.5.23")
            .with("pool_pages", self.pool_pages)
            .with("page_size", self.page_size)
            .with("chunked_prefill_size", self.chunked_prefill_size)
            .with("max_running_requests", self.max_running_requests)
            .with("max_queued_requests", self.max_queued_requests)
            .with("context_length", self.context_length)
            .with("schedule_policy", policy.map_or("fcfs", |(name, _)| *name))
            .with("schedule_conservativeness", self.conservativeness)
            .with("by_priority", self.by_priority)
            .with("prefix_cache", self.prefix_cache)
    }

    /// Reads the fields of a [`Self::record`].
    ///
    /// # Errors
    ///
    /// [`SettingsError`] with the field that is missing or of another kind.
    pub fn of_fields(field: impl Fn(&str) -> Option<Value>) -> Result<Self, SettingsError> {
        let field = |name: &'static str| field(name).ok_or(SettingsError(name));
        let amount = |name: &'static str| match field(name)? {
            Value::Int(n) => u64::try_from(n).map_err(|_| SettingsError(name)),
            _ => Err(SettingsError(name)),
        };
        let flag = |name: &'static str| match field(name)? {
            Value::Flag(flag) => Ok(flag),
            _ => Err(SettingsError(name)),
        };
        let queued = "max_queued_requests";
        let max_queued_requests = match field(queued)? {
            Value::Null => None,
            _ => Some(amount(queued)?),
        };
        let policy = match field("schedule_policy")? {
            Value::Text(text) => Self::policy_named(&text),
            _ => None,
        };
        let conservativeness = match field("schedule_conservativeness")? {
            Value::Float(x) => x,
            Value::Int(n) => n as f64,
            _ => return Err(SettingsError("schedule_conservativeness")),
        };
        Ok(Self {
            pool_pages: amount("pool_pages")?,
            page_size: amount("page_size")?,
            chunked_prefill_size: amount("chunked_prefill_size")?,
            max_running_requests: amount("max_running_requests")?,
            max_queued_requests,
            context_length: amount("context_length")?,
            policy: policy.ok_or(SettingsError("schedule_policy"))?,
            conservativeness,
            by_priority: flag("by_priority")?,
            prefix_cache: flag("prefix_cache")?,
        })
    }

    /// The order of that name (`--schedule-policy`).
    #[must_use]
    pub fn policy_named(name: &str) -> Option<QueuePolicy> {
        POLICIES.iter().find(|(known, _)| *known == name).map(|(_, policy)| *policy)
    }

    /// The names of the orders.
    pub fn policies() -> impl Iterator<Item = &'static str> {
        POLICIES.iter().map(|(name, _)| *name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_come_back_from_their_record() {
        let settings = LiveSettings {
            pool_pages: 100,
            page_size: 16,
            chunked_prefill_size: 500,
            max_running_requests: 16,
            max_queued_requests: Some(3),
            context_length: 2048,
            policy: QueuePolicy::Lpm,
            conservativeness: 0.75,
            by_priority: false,
            prefix_cache: true,
        };
        let read = |record: &Record, without: &str| {
            let field = |name: &str| {
                let found = record.fields.iter().find(|f| f.name == name && name != without);
                found.map(|field| field.value.clone())
            };
            LiveSettings::of_fields(field)
        };
        assert_eq!(read(&settings.record(), ""), Ok(settings.clone()));
        let open = LiveSettings { max_queued_requests: None, conservativeness: 1.0, ..settings };
        assert_eq!(read(&open.record(), ""), Ok(open.clone()));
        assert_eq!(open.config().chunked_prefill_size, Some(496), "whole pages");
        assert_eq!(read(&open.record(), "page_size"), Err(SettingsError("page_size")));
    }
}
