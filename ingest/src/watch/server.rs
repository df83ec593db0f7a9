//! JSON pages of a server: who it is, with which settings.
//!
//! Kept are settings that say something about memory, as numbers, truths or plain words. Paths, addresses
//! and keys, which the same pages hold, are not.

use super::{RankFigures, RankId, plain};
use plimsoll_core::units::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// Which server.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServerKind {
    /// SGLang.
    Sglang,
    /// vLLM.
    Vllm,
}

impl ServerKind {
    /// Its name for people.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Sglang => "SGLang",
            Self::Vllm => "vLLM",
        }
    }
}

/// Settings of SGLang that are kept, by the names of its server arguments and scheduler.
const SGLANG_SETTINGS: &[&str] = &[
    "attention_backend",
    "chunked_prefill_size",
    "context_length",
    "cuda_graph_max_bs",
    "disable_cuda_graph",
    "disable_radix_cache",
    "disaggregation_mode",
    "dp_size",
    "dtype",
    "enable_dp_attention",
    "enable_hierarchical_cache",
    "enable_metrics",
    "enable_mixed_chunk",
    "ep_size",
    "hicache_ratio",
    "hicache_size",
    "kv_cache_dtype",
    "max_prefill_tokens",
    "max_req_input_len",
    "max_running_requests",
    "max_total_num_tokens",
    "max_total_tokens",
    "mem_fraction_static",
    "page_size",
    "pp_size",
    "quantization",
    "schedule_conservativeness",
    "schedule_policy",
    "speculative_algorithm",
    "tp_size",
];

/// What a server says about itself.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ServerFacts {
    /// Its release.
    pub version: Option<String>,
    /// The model, where its name is no path.
    pub model: Option<String>,
    /// Settings by the engine's names.
    pub settings: BTreeMap<String, Value>,
    /// Tokens of the pool of one rank.
    pub capacity_tokens: Option<u64>,
    /// Figures that the page has by rank.
    pub ranks: BTreeMap<RankId, RankFigures>,
    /// What a rank holds, as the server counted it at its start: `weights`, `kv_cache`, `graphs`. SGLang
    /// prints GiB to two decimals.
    pub held: BTreeMap<String, Bytes>,
}

/// Reads SGLang's `/get_server_info` (or `/server_info`): server arguments, scheduler figures and
/// `internal_states`, one a data-parallel rank. `None` when the text is no such page.
///
/// Source: SGLang 0.4.6 to 0.5.23, `srt/entrypoints/http_server.py` and `Scheduler.get_internal_state`.
#[must_use]
pub fn server_info(text: &str) -> Option<ServerFacts> {
    let Value::Object(page) = serde_json::from_str(text).ok()? else { return None };
    // The arguments stand beside everything else; in some releases in an object of their own.
    let nested = page.get("server_args").and_then(Value::as_object);
    let args = nested.unwrap_or(&page);
    if !args.contains_key("mem_fraction_static") && !page.contains_key("internal_states") {
        return None;
    }
    let states: Vec<&Map<String, Value>> = match page.get("internal_states") {
        Some(Value::Array(states)) => states.iter().filter_map(Value::as_object).collect(),
        Some(Value::Object(state)) => vec![state],
        _ => Vec::new(),
    };
    let mut facts = ServerFacts {
        version: page.get("version").and_then(Value::as_str).and_then(plain_word).map(Into::into),
        ..ServerFacts::default()
    };
    let names = ["served_model_name", "model_path"];
    facts.model = names.iter().find_map(|name| model_name(args.get(*name)?.as_str()?));
    for name in SGLANG_SETTINGS {
        let value = args.get(*name).or_else(|| page.get(*name));
        let value = value.or_else(|| states.first().and_then(|state| state.get(*name)));
        if let Some(value) = value.and_then(kept) {
            facts.settings.insert((*name).to_owned(), value);
        }
    }
    facts.capacity_tokens = facts.settings.get("max_total_num_tokens").and_then(Value::as_u64);
    for (index, state) in states.iter().enumerate() {
        internal_state(&mut facts, index, states.len(), state);
    }
    Some(facts)
}

fn internal_state(facts: &mut ServerFacts, index: usize, of: usize, state: &Map<String, Value>) {
    let rank = match u32::try_from(index) {
        Ok(index) if of > 1 => RankId::of_data_parallel(index),
        _ => RankId::SERVER,
    };
    let mut figures = RankFigures::default();
    let rate = state.get("last_gen_throughput").and_then(Value::as_f64);
    figures.output_tokens_per_s = rate.and_then(plain);
    if let Some(usage) = state.get("memory_usage").and_then(Value::as_object) {
        figures.pool_capacity_tokens = usage.get("token_capacity").and_then(Value::as_u64);
        facts.capacity_tokens = facts.capacity_tokens.or(figures.pool_capacity_tokens);
        let names = [
            ("weight", "weights"),
            ("kvcache", "kv_cache"),
            ("graph", "graphs"),
            ("cuda graph", "graphs"),
        ];
        for (name, account) in names {
            let gib = usage.get(name).and_then(Value::as_f64);
            if let Some(gib) = gib.filter(|gib| (0.0..1e6).contains(gib)) {
                facts.held.entry(account.to_owned()).or_insert(Bytes::from_gib_f64(gib));
            }
        }
    }
    facts.ranks.insert(rank, figures);
}

/// Reads SGLang's `/get_load`: requests of each data-parallel rank, those that wait among them. Empty when the
/// text is no such page. Its token count is not taken: what it counts differs between releases.
///
/// Source: SGLang 0.5.0 to 0.5.23, `Scheduler.get_load`.
#[must_use]
pub fn server_load(text: &str) -> BTreeMap<RankId, RankFigures> {
    let rows = match serde_json::from_str(text) {
        Ok(Value::Array(rows)) => rows,
        Ok(row @ Value::Object(_)) => vec![row],
        _ => return BTreeMap::new(),
    };
    let several = rows.len() > 1;
    let row = |(index, row): (usize, &Value)| {
        let all = row.get("num_reqs")?.as_u64()?;
        let waiting = row.get("num_waiting_reqs")?.as_u64()?;
        let dp = row.get("dp_rank").and_then(Value::as_u64).unwrap_or(index as u64);
        let rank = match u32::try_from(dp) {
            Ok(dp) if several => RankId::of_data_parallel(dp),
            _ => RankId::SERVER,
        };
        let figures = RankFigures {
            running_requests: Some(all.saturating_sub(waiting)),
            queued_requests: Some(waiting),
            ..RankFigures::default()
        };
        Some((rank, figures))
    };
    rows.iter().enumerate().filter_map(row).collect()
}

/// Reads `/version` of vLLM: `{"version": "0.11.0"}`.
#[must_use]
pub fn version(text: &str) -> Option<String> {
    let page: Value = serde_json::from_str(text).ok()?;
    page.get("version")?.as_str().and_then(plain_word).map(Into::into)
}

/// Reads `/v1/models`: whose server it is, the model, and `max_model_len` as a setting. `None` when the text
/// is no such page of either server.
#[must_use]
pub fn models(text: &str) -> Option<(ServerKind, ServerFacts)> {
    let page: Value = serde_json::from_str(text).ok()?;
    let first = page.get("data")?.as_array()?.first()?;
    let kind = match first.get("owned_by")?.as_str()? {
        "vllm" => ServerKind::Vllm,
        "sglang" => ServerKind::Sglang,
        _ => return None,
    };
    let mut facts = ServerFacts {
        model: first.get("id").and_then(Value::as_str).and_then(model_name),
        ..ServerFacts::default()
    };
    if let Some(length) = first.get("max_model_len").and_then(kept) {
        facts.settings.insert("max_model_len".to_owned(), length);
    }
    Some((kind, facts))
}

/// A value that can be kept: a number, a truth, or a plain word.
fn kept(value: &Value) -> Option<Value> {
    match value {
        Value::Bool(_) | Value::Number(_) => Some(value.clone()),
        Value::String(text) => plain_word(text).map(Value::from),
        _ => None,
    }
}

/// A short word of letters, digits and `._+-`: no path, address or key phrase.
pub(super) fn plain_word(text: &str) -> Option<&str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._+-".contains(c);
    (!text.is_empty() && text.len() <= 48 && text.chars().all(plain)).then_some(text)
}

/// A model's name where it is one of a hub (`org/name`, or one word) and no path.
fn model_name(text: &str) -> Option<String> {
    let mut parts = text.split('/');
    let (first, second) = (parts.next().and_then(plain_word)?, parts.next());
    let path = first.starts_with('.') || parts.next().is_some();
    match second {
        None => (!path).then(|| first.to_owned()),
        Some(second) => {
            (!path && second.len() <= 96 && plain_long(second)).then(|| format!("{first}/{second}"))
        }
    }
}

fn plain_long(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "._+-:".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_of_a_server_is_no_path_address_or_key() {
        let page = r#"{"model_path":"/data/models/private-name","served_model_name":"org/m-8B",
            "api_key":"sk-1","host":"10.1.2.3","mem_fraction_static":0.83,"kv_cache_dtype":"auto",
            "schedule_policy":"/etc/x","max_total_num_tokens":120000,"version":"0.5.8",
            "internal_states":[{"last_gen_throughput":51.5,"memory_usage":
            {"weight":14.98,"kvcache":12.5,"token_capacity":120000,"graph":0.62}}]}"#;
        let facts = server_info(page).unwrap();
        assert_eq!(facts.version.as_deref(), Some("0.5.8"));
        assert_eq!(facts.model.as_deref(), Some("org/m-8B"));
        assert_eq!(facts.capacity_tokens, Some(120_000));
        assert_eq!(facts.held["weights"], Bytes::from_gib_f64(14.98));
        let text = format!("{facts:?}");
        for secret in ["private", "sk-1", "10.1.2.3", "/etc"] {
            assert!(!text.contains(secret), "{text}");
        }
        assert_eq!(facts.ranks[&RankId::SERVER].output_tokens_per_s, Some(51.5));
        assert_eq!(model_name("/data/m"), None);
        assert_eq!(model_name("a/b/c"), None);
        assert_eq!(model_name("../m"), None);
    }

    #[test]
    fn states_and_loads_of_several_ranks_stay_apart() {
        let page = r#"{"internal_states":[{"last_gen_throughput":1},{"last_gen_throughput":2}]}"#;
        let facts = server_info(page).unwrap();
        assert_eq!(facts.ranks[&RankId::of_data_parallel(1)].output_tokens_per_s, Some(2.0));
        let load = r#"[{"dp_rank":1,"num_reqs":7,"num_waiting_reqs":3},
                       {"dp_rank":0,"num_reqs":5,"num_waiting_reqs":0}]"#;
        let load = server_load(load);
        assert_eq!(load[&RankId::of_data_parallel(1)].running_requests, Some(4));
        assert_eq!(load[&RankId::of_data_parallel(0)].queued_requests, Some(0));
        for other in ["", "[]", "{}", "null", "<html>", "[1]", "{\"data\":[]}"] {
            assert!(server_info(other).is_none() && server_load(other).is_empty(), "{other}");
            assert!(models(other).is_none() && version(other).is_none(), "{other}");
        }
    }
}
