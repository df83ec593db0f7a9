//! Pages of running servers, and recordings of them.

use crate::{assert_message, in_time, line_count, text};
use plimsoll_backend_host::nvidia_smi;
use plimsoll_ingest::watch::{
    RankFigures, Summary, advise, models, read_page, recording, server_info, server_load, version,
};

/// A page of a server: of metrics, and any of its JSON pages. Broken lines are there; figures are in range and
/// read back from what is recorded; nothing that is kept is a path.
pub fn server_page(data: &[u8]) {
    let Some(text) = text(data) else { return };
    let page = in_time(|| read_page(text));
    if let Some(bad) = &page.bad {
        assert!((1..=line_count(text)).contains(&bad.line), "line {}", bad.line);
        assert_message(&bad.to_string());
    }
    let (info, load) = in_time(|| (server_info(text), server_load(text)));
    let told = info.iter().flat_map(|info| &info.ranks).chain(&load).chain(&page.ranks);
    for (rank, figures) in told {
        let named = rank.to_string();
        assert_eq!(named.parse().as_ref(), Ok(rank), "{named}");
        in_range(figures);
    }
    let settings = info.iter().flat_map(|info| info.settings.values());
    for value in settings.chain(page.settings.values()) {
        let path = value.as_str().is_some_and(|text| text.contains(['/', '\\', '@', ' ']));
        assert!(!path, "{value} is kept");
    }
    let more = models(text).and_then(|(_, facts)| facts.model);
    for name in info.and_then(|info| info.model).into_iter().chain(more).chain(version(text)) {
        assert!(!name.starts_with(['/', '.', '~']), "{name} is kept");
        assert!(name.matches('/').count() <= 1, "{name} is kept");
    }
    // The table of processes, with a card that a table may name.
    let cards = [(0, "GPU-a".to_owned())];
    match in_time(|| nvidia_smi::parse_processes(text, &cards)) {
        Ok(found) => assert!(found.len() <= line_count(text), "more processes than lines"),
        Err(nvidia_smi::SmiError::Form { line, .. }) => {
            assert!((1..=line_count(text)).contains(&line), "line {line}");
        }
        Err(error) => assert!(!error.to_string().is_empty(), "an error without words"),
    }
}

fn in_range(figures: &RankFigures) {
    let rates = [figures.pool_usage, figures.output_tokens_per_s, figures.cache_hit_rate];
    for rate in rates.into_iter().flatten() {
        assert!((0.0..=1e9).contains(&rate), "{rate}");
    }
    let again = serde_json::to_string(figures).map(|text| serde_json::from_str(&text));
    assert!(matches!(again, Ok(Ok(again)) if figures == &again), "{figures:?}");
}

/// A recording. A broken line is named; what was read sums up, and whatever is cut off, the lines before count.
pub fn watch_recording(data: &[u8]) {
    let mut summary: Option<Summary> = None;
    let read = in_time(|| {
        recording::read(data, |header, line| {
            summary.get_or_insert_with(|| Summary::new(header, None)).push(line);
        })
    });
    match read {
        Ok((header, cut)) => {
            let summary = summary.unwrap_or_else(|| Summary::new(&header, None));
            let advice = advise(&header, &summary);
            assert!(!advice.headline.is_empty(), "no verdict");
            if let Some(least) = summary.least() {
                assert!(summary.devices.values().all(|device| device.least.free >= least.free));
            }
            if let Some(undercut) = summary.undercut {
                assert!(undercut.least.free <= undercut.first.free, "{undercut:?}");
                assert!(Some(undercut.least.free) < summary.min_free, "{undercut:?}");
            }
            let Some(cut) = cut else { return };
            let lines = data.iter().filter(|byte| **byte == b'\n').count() as u64;
            assert_eq!(cut.line, lines + 1, "the cut is in the last line");
            assert!(cut.byte < data.len() as u64, "byte {}", cut.byte);
        }
        Err(error) => assert_message(&error.to_string()),
    }
}

/// Pages of both servers, and a table of processes.
pub(crate) fn pages() -> Vec<Vec<u8>> {
    let pages: [&str; 6] = [
        include_str!("../../seeds/server_page/sglang.txt"),
        include_str!("../../seeds/server_page/vllm.txt"),
        include_str!("../../seeds/server_page/server_info.json"),
        "[{\"dp_rank\":0,\"num_reqs\":9,\"num_waiting_reqs\":4},{\"num_reqs\":1,\"num_waiting_reqs\":0}]",
        "{\"data\":[{\"id\":\"org/m\",\"owned_by\":\"vllm\",\"max_model_len\":4096}]}",
        "GPU-a, 4001, 71000\nGPU-b, 5000, [N/A]\n",
    ];
    pages.iter().map(|page| page.as_bytes().to_vec()).collect()
}

pub(crate) const PAGE_WORDS: &[&str] = &[
    "sglang:",
    "vllm:",
    "num_running_reqs",
    "token_usage",
    "num_used_tokens",
    "max_total_num_tokens",
    "realtime_tokens_total",
    "mode=\"prefill_compute\"",
    "tp_rank=\"",
    "dp_rank=\"",
    "engine=\"",
    "{",
    "} ",
    "\\\"",
    "# TYPE ",
    "NaN",
    "+Inf",
    "-1",
    "1e300",
    "cache_config_info",
    "num_gpu_blocks=\"",
    "block_size=\"",
    "kv_cache_usage_perc",
    "\"internal_states\":",
    "\"memory_usage\":",
    "\"model_path\":",
    "\"num_reqs\":",
];

/// A recording that ended, with every kind of line.
pub(crate) fn recordings() -> Vec<Vec<u8>> {
    vec![include_bytes!("../../seeds/watch_recording/lost.jsonl").to_vec()]
}

pub(crate) const RECORDING_WORDS: &[&str] = &[
    "{\"kind\":\"sample\",\"at_ms\":",
    "\"ranks\":{",
    "\"tp0\":",
    "\"devices\":[",
    "{\"index\":0,\"free_bytes\":",
    "{\"kind\":\"missed\",",
    "\"why\":\"lost\"",
    "\"kind\":\"end\"",
    "\"prefill_tokens_total\":",
    "\"retractions_total\":",
    "\"pool_usage\":",
    "18446744073709551615",
    "\"min_free_bytes\":",
    "\n",
];
