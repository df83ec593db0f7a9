//! A page of metrics → figures by rank.

use super::{
    RankFigures, RankId, plain,
    prometheus::{BadLine, Labels, samples},
    series::{CACHE_CONFIG, Field, SERIES, split},
    server::{ServerKind, plain_word},
};
use serde_json::Value;
use std::collections::BTreeMap;

/// Most ranks of a page; series of more are left out.
const MOST_RANKS: usize = 4096;
/// Counts above this are not exact in the double that the page carries.
const EXACT: f64 = 9_007_199_254_740_992.0;
/// Settings among the labels of vLLM's cache configuration.
const CACHE_SETTINGS: [&str; 5] = [
    "block_size",
    "num_gpu_blocks",
    "gpu_memory_utilization",
    "enable_prefix_caching",
    "cache_dtype",
];

/// What a page of metrics says.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Page {
    /// Whose page it is; `None` when no series of either server stands in it.
    pub kind: Option<ServerKind>,
    /// Figures by rank.
    pub ranks: BTreeMap<RankId, RankFigures>,
    /// Settings that the page tells (vLLM's cache configuration).
    pub settings: BTreeMap<String, Value>,
    /// The first broken line among the series that were looked for.
    pub bad: Option<BadLine>,
}

impl Page {
    /// Fills what follows: a capacity that the server told on another page, tokens held, usage.
    pub fn complete(&mut self, capacity_tokens: Option<u64>) {
        self.ranks.values_mut().for_each(|rank| rank.complete(capacity_tokens));
    }
}

/// Reads a page. Unknown series are ignored, and so are values that are no number.
#[must_use]
pub fn read_page(text: &str) -> Page {
    let mut reading = Reading::default();
    let wanted = |name: &str| split(name).is_some();
    for sample in samples(text, wanted) {
        match sample {
            Ok(sample) => {
                let Some((kind, name)) = split(sample.name) else { continue };
                reading.page.kind.get_or_insert(kind);
                if kind == ServerKind::Vllm && name == CACHE_CONFIG {
                    reading.cache_config(&sample.labels);
                } else {
                    reading.sample(kind, name, &sample.labels, sample.value);
                }
            }
            Err(bad) => {
                reading.page.bad.get_or_insert(bad);
            }
        }
    }
    reading.finish()
}

#[derive(Default)]
struct Reading {
    page: Page,
    /// Values by rank and entry of the table.
    values: BTreeMap<(RankId, usize), f64>,
}

impl Reading {
    fn has_room(&mut self, id: RankId) -> bool {
        let ranks = &mut self.page.ranks;
        let room = ranks.len() < MOST_RANKS || ranks.contains_key(&id);
        if room {
            ranks.entry(id).or_default();
        }
        room
    }

    fn sample(&mut self, kind: ServerKind, name: &str, labels: &Labels<'_>, value: f64) {
        let found = SERIES.iter().enumerate().find(|(_, series)| {
            let only = series.only.is_none_or(|(label, text)| labels.get(label) == Some(text));
            series.kind == kind && series.name == name && only
        });
        let Some((entry, series)) = found else { return };
        let id = RankId::from_labels(labels);
        if !value.is_finite() || value < 0.0 || !self.has_room(id) {
            return;
        }
        let sum = self.values.entry((id, entry)).or_insert(0.0);
        *sum = match series.field {
            Field::Counter(_) => *sum + value,
            Field::Gauge(_) | Field::Part(_) => sum.max(value),
        };
    }

    fn finish(mut self) -> Page {
        // Backwards: of two names for one figure the first is written last.
        for ((id, entry), value) in self.values.into_iter().rev() {
            let (Some(rank), Some(series)) = (self.page.ranks.get_mut(&id), SERIES.get(entry))
            else {
                continue;
            };
            match series.field {
                Field::Part(slot) => *slot(rank) = plain(value),
                Field::Gauge(slot) | Field::Counter(slot) if value < EXACT => {
                    *slot(rank) = Some(value.round() as u64);
                }
                Field::Gauge(_) | Field::Counter(_) => {}
            }
        }
        self.page.complete(None);
        self.page
    }

    fn cache_config(&mut self, labels: &Labels<'_>) {
        let number = |label: &str| labels.get(label).and_then(|text| text.parse::<u64>().ok());
        let blocks = number("num_gpu_blocks").zip(number("block_size"));
        let tokens = number("kv_cache_size_tokens")
            .or_else(|| blocks.and_then(|(blocks, size)| blocks.checked_mul(size)));
        for name in CACHE_SETTINGS {
            if let Some(value) = labels.get(name).and_then(setting) {
                self.page.settings.insert(name.to_owned(), value);
            }
        }
        let id = RankId::from_labels(labels);
        if self.has_room(id)
            && let Some(rank) = self.page.ranks.get_mut(&id)
        {
            rank.pool_capacity_tokens = tokens.filter(|tokens| *tokens > 0);
        }
    }
}

/// A label's text as the value that it stands for.
fn setting(text: &str) -> Option<Value> {
    match text {
        "True" => Some(Value::Bool(true)),
        "False" => Some(Value::Bool(false)),
        text => match serde_json::from_str::<serde_json::Number>(text) {
            Ok(number) => Some(Value::Number(number)),
            Err(_) => plain_word(text).filter(|word| *word != "None").map(Value::from),
        },
    }
}
