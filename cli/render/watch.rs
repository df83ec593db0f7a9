//! What a watch saw, for people and for machines.

use super::text::wrap;
use crate::output::{Output, Tone};
use plimsoll_core::units::{Bytes, group_thousands};
use plimsoll_ingest::watch::{
    Advice, Header, MemoryPlace, PrefillBy, RankSummary, Reading, ServerKind, Summary, Verdict,
};
use serde_json::{Value, json};
use std::fmt::Write as _;

/// Verdict, memory, heaviest prefill, ranks, help.
pub fn human(header: &Header, summary: &Summary, advice: &Advice, output: &Output) -> String {
    let tone = match advice.verdict {
        Verdict::Ok => Tone::Good,
        Verdict::Undercut | Verdict::Lost => Tone::Bad,
        Verdict::Nothing => Tone::Close,
    };
    let head = format!("{}: {}", output.paint(tone, advice.verdict.word()), advice.headline);
    let mut out = format!("{}\n\n", wrap(&head, output.width(), 2));
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(out, "{}", wrap(&format!("  {name:<8} {text}"), output.width(), 11));
    };
    line("server", &server(header));
    line("watched", &watched(summary));
    for (index, device) in &summary.devices {
        let name = match header.memory {
            MemoryPlace::Host => "host".to_owned(),
            _ => format!("device {index}"),
        };
        line(
            &name,
            &format!(
                "free {} at first, {} at least (at {}), {} at last",
                device.first,
                device.least.free,
                seconds(device.least.low.at_ms),
                device.last
            ),
        );
    }
    line("prefill", &prefill(summary));
    for (id, rank) in summary.ranks.iter().filter(|(_, rank)| is_told(rank)) {
        line(&id.to_string(), &of_rank(header.server, rank));
    }
    for help in &advice.help {
        let text = format!("{} {}", output.paint(Tone::Change, "help:"), help.text);
        let _ = writeln!(out, "{}", wrap(&text, output.width(), 6));
    }
    out
}

fn server(header: &Header) -> String {
    let mut text = header.server.name().to_owned();
    for part in [&header.version, &header.model].into_iter().flatten() {
        let _ = write!(text, " {part}");
    }
    let names = ["mem_fraction_static", "gpu_memory_utilization", "chunked_prefill_size"];
    for name in names {
        if let Some(value) = header.settings.get(name) {
            let _ = write!(text, ", {name} {value}");
        }
    }
    text
}

fn watched(summary: &Summary) -> String {
    let mut text = format!("{} samples in {}", summary.samples, seconds(summary.span_ms));
    if summary.missed > 0 {
        let _ = write!(text, ", {} without an answer", summary.missed);
    }
    if summary.restarts > 0 {
        let _ = write!(text, ", {} restarts of the server", summary.restarts);
    }
    text
}

fn prefill(summary: &Summary) -> String {
    let Some(heaviest) = summary.heaviest else {
        return "none was seen: free memory during the heaviest prefill is not known".to_owned();
    };
    let free = heaviest
        .least
        .map_or_else(|| "free memory not seen".to_owned(), |least| format!("{} free", least.free));
    let margin = match (heaviest.least, summary.min_free) {
        (Some(least), Some(line)) => {
            format!(", margin {}", crate::commands::watch::margin(least.free, line))
        }
        _ => String::new(),
    };
    let by = match heaviest.by {
        PrefillBy::Computed => "",
        PrefillBy::Prompts => ", by the prompts of requests that got through",
    };
    format!(
        "{free} around the heaviest{margin}: {} tokens of {} from {} to {}{by}",
        group_thousands(heaviest.tokens),
        heaviest.rank,
        seconds(heaviest.from_ms),
        seconds(heaviest.to_ms)
    )
}

fn is_told(rank: &RankSummary) -> bool {
    rank.peak_usage.is_some() || rank.most_running.is_some()
}

fn of_rank(server: ServerKind, rank: &RankSummary) -> String {
    let mut parts = Vec::new();
    if let Some(usage) = rank.peak_usage {
        let held = rank.peak_held_tokens.map_or_else(String::new, |held| {
            let of = rank.capacity_tokens.map_or_else(|| "?".to_owned(), group_thousands);
            format!(", {} of {of} tokens", group_thousands(held))
        });
        parts.push(format!("pool at most {:.0} % held{held}", usage * 100.0));
    }
    let retracted = match server {
        ServerKind::Sglang => "retractions",
        ServerKind::Vllm => "preemptions",
    };
    let named = [
        ("running at most", rank.most_running),
        ("queue at most", rank.most_queued),
        (retracted, rank.retractions),
    ];
    for (name, value) in named {
        if let Some(value) = value {
            parts.push(format!("{name} {}", group_thousands(value)));
        }
    }
    if let Some(rate) = rank.cache_hit_rate {
        parts.push(format!("cache hits {:.0} %", rate * 100.0));
    }
    parts.join("; ")
}

fn seconds(ms: u64) -> String {
    format!("{}.{} s", ms / 1000, ms % 1000 / 100)
}

/// All keys are always there.
pub fn json(header: &Header, summary: &Summary, advice: &Advice) -> Value {
    let least = summary.least();
    json!({
        "schema": "plimsoll.watch_summary/1",
        "verdict": advice.verdict.word(),
        "headline": advice.headline,
        "server": header.server,
        "version": header.version,
        "model": header.model,
        "settings": header.settings,
        "memory": header.memory,
        "samples": summary.samples,
        "missed": summary.missed,
        "restarts": summary.restarts,
        "span_ms": summary.span_ms,
        "ending": summary.ending,
        "min_free_bytes": summary.min_free.map(|b| b.0),
        "least": least.map(|least| reading(&least)),
        "margin_bytes": least.zip(summary.min_free).map(|(least, line)| signed(least.free, line)),
        "undercut": summary.undercut.map(|undercut| json!({
            "first": reading(&undercut.first),
            "least": reading(&undercut.least),
            "samples": undercut.samples,
        })),
        "heaviest_prefill": heaviest(summary),
        "devices": devices(summary),
        "ranks": summary.ranks.iter().map(|(id, rank)| (id.to_string(), of_rank_json(rank)))
            .collect::<serde_json::Map<_, _>>(),
        "help": advice.help.iter().map(|help| json!({
            "action": help.action,
            "flag": help.flag,
            "value": help.value,
            "text": help.text,
        })).collect::<Value>(),
    })
}

fn reading(reading: &Reading) -> Value {
    json!({
        "device": reading.device,
        "free_bytes": reading.free.0,
        "sample": reading.low.sample,
        "at_ms": reading.low.at_ms,
    })
}

/// Bytes above the line; below it, negative.
fn signed(free: Bytes, line: Bytes) -> i64 {
    let above = i128::from(free.0) - i128::from(line.0);
    i64::try_from(above).unwrap_or(if above < 0 { i64::MIN } else { i64::MAX })
}

fn heaviest(summary: &Summary) -> Value {
    let Some(heaviest) = summary.heaviest else { return Value::Null };
    let margin = heaviest.least.zip(summary.min_free);
    json!({
        "rank": heaviest.rank,
        "by": match heaviest.by {
            PrefillBy::Computed => "prefill_tokens_total",
            PrefillBy::Prompts => "prompt_tokens_total",
        },
        "tokens": heaviest.tokens,
        "from_ms": heaviest.from_ms,
        "to_ms": heaviest.to_ms,
        "least": heaviest.least.map(|least| reading(&least)),
        "margin_bytes": margin.map(|(least, line)| signed(least.free, line)),
    })
}

fn devices(summary: &Summary) -> Value {
    let device = |(index, device): (&u32, &plimsoll_ingest::watch::DeviceSummary)| {
        json!({
            "index": index,
            "first_free_bytes": device.first.0,
            "least": reading(&device.least),
            "last_free_bytes": device.last.0,
        })
    };
    summary.devices.iter().map(device).collect()
}

fn of_rank_json(rank: &RankSummary) -> Value {
    json!({
        "capacity_tokens": rank.capacity_tokens,
        "peak_usage": rank.peak_usage,
        "peak_held_tokens": rank.peak_held_tokens,
        "most_running_requests": rank.most_running,
        "most_queued_requests": rank.most_queued,
        "retractions": rank.retractions,
        "prefill_tokens": rank.prefill_tokens,
        "output_tokens": rank.output_tokens,
        "cache_hit_rate": rank.cache_hit_rate,
    })
}
