//! Pages, samples and summaries over made-up servers.

use super::*;
use plimsoll_core::units::Bytes;
use proptest::prelude::*;
use recording::{Metrics, RecordingError, SCHEMA, read};
use std::collections::BTreeMap;

fn id(text: &str) -> RankId {
    text.parse().unwrap()
}

fn header(server: ServerKind, line: Option<u64>) -> Header {
    let device = |index| Device { index, name: "card".to_owned(), total: Some(Bytes::gib(100)) };
    Header {
        schema: SCHEMA.to_owned(),
        plimsoll: "0.1.0".to_owned(),
        server,
        version: Some("0.5.8".to_owned()),
        model: None,
        metrics: Metrics::On,
        interval_ms: 1000,
        min_free: line.map(Bytes::mib),
        memory: MemoryPlace::NvidiaSmi,
        memory_missing: None,
        devices: vec![device(0), device(1)],
        held: BTreeMap::from([("weights".to_owned(), Bytes::gib(70))]),
        settings: BTreeMap::from([("mem_fraction_static".to_owned(), 0.9.into())]),
    }
}

fn sample(at_ms: u64, free: [u64; 2], ranks: &[(&str, RankFigures)]) -> Line {
    let device = |(index, free): (u32, u64)| DeviceFree { index, free: Bytes::mib(free) };
    Line::Sample(Sample {
        at_ms,
        ranks: ranks.iter().map(|(rank, figures)| (id(rank), figures.clone())).collect(),
        devices: (0..).zip(free).map(device).collect(),
    })
}

fn rank(prefill: u64, usage: f64, retractions: u64) -> RankFigures {
    RankFigures {
        prefill_tokens_total: Some(prefill),
        pool_usage: Some(usage),
        retractions_total: Some(retractions),
        ..RankFigures::default()
    }
}

fn summary(header: &Header, lines: &[Line]) -> Summary {
    let mut summary = Summary::new(header, None);
    lines.iter().for_each(|line| summary.push(line));
    summary
}

#[test]
fn sglang_series_stay_with_their_rank() {
    let page = read_page(
        "sglang:num_running_reqs{engine_type=\"unified\",pp_rank=\"0\",tp_rank=\"0\",dp_rank=\"1\"} 3\n\
         sglang:num_running_reqs{tp_rank=\"0\",dp_rank=\"0\",priority=\"\"} 5\n\
         sglang:num_running_reqs{tp_rank=\"0\",dp_rank=\"0\",priority=\"7\"} 2\n\
         sglang:num_used_tokens{tp_rank=\"0\",dp_rank=\"0\"} 1.5e+03\n\
         sglang:max_total_num_tokens{tp_rank=\"0\",dp_rank=\"0\"} 6000\n\
         sglang:realtime_tokens_total{tp_rank=\"0\",dp_rank=\"0\",mode=\"prefill_compute\"} 100\n\
         sglang:realtime_tokens_total{tp_rank=\"0\",dp_rank=\"0\",mode=\"prefill_cache\"} 999\n\
         sglang:num_retracted_reqs{tp_rank=\"0\",dp_rank=\"0\",pid=\"7\"} 2\n\
         sglang:token_usage{tp_rank=\"0\",dp_rank=\"1\"} NaN\n\
         sglang:some_new_thing{tp_rank=\"0\"} 1\n\
         python_info{version=\"3\"} 1\n\
         sglang:prompt_tokens_total{model_name=\"m\"} 40\n",
    );
    assert_eq!((page.kind, &page.bad), (Some(ServerKind::Sglang), &None));
    let names: Vec<String> = page.ranks.keys().map(RankId::to_string).collect();
    assert_eq!(names, ["server", "dp0 tp0", "dp1 tp0"]);
    let first = &page.ranks[&id("dp0 tp0")];
    assert_eq!((first.running_requests, first.prefill_tokens_total), (Some(5), Some(100)));
    assert_eq!((first.pool_held_tokens, first.pool_usage), (Some(1500), Some(0.25)));
    assert_eq!(first.retracting_requests, Some(2));
    let second = &page.ranks[&id("dp1 tp0")];
    assert_eq!((second.running_requests, second.pool_usage), (Some(3), None));
    assert_eq!(page.ranks[&RankId::SERVER].prompt_tokens_total, Some(40));
}

#[test]
fn vllm_series_of_all_releases_are_read() {
    let page = read_page(
        "vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"1000\",engine=\"0\",\
         gpu_memory_utilization=\"0.92\",enable_prefix_caching=\"True\",cache_dtype=\"auto\"} 1.0\n\
         vllm:gpu_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.9\n\
         vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"m\"} 0.5\n\
         vllm:num_preemptions_total{engine=\"0\"} 4\n\
         vllm:prefix_cache_queries_total{engine=\"0\"} 200\n\
         vllm:gpu_prefix_cache_hits_total{engine=\"0\"} 50\n\
         vllm_num_requests_waiting{engine=\"1\"} 6\n",
    );
    assert_eq!(page.kind, Some(ServerKind::Vllm));
    let first = &page.ranks[&id("engine0")];
    // The newer name counts; tokens follow from blocks.
    assert_eq!((first.pool_usage, first.pool_held_tokens), (Some(0.5), Some(8000)));
    assert_eq!((first.retractions_total, first.cache_hit_tokens_total), (Some(4), Some(50)));
    assert_eq!(page.ranks[&id("engine1")].queued_requests, Some(6));
    assert_eq!(page.settings["gpu_memory_utilization"], 0.92);
    assert_eq!(page.settings["enable_prefix_caching"], true);
}

#[test]
fn the_heaviest_prefill_is_of_one_rank_between_two_neighbours() {
    let header = header(ServerKind::Sglang, Some(2048));
    let missed =
        Line::Missed(Missed { at_ms: 3000, why: "timed_out".to_owned(), devices: Vec::new() });
    let lines = [
        sample(0, [9000, 9500], &[("tp0", rank(1000, 0.1, 0)), ("tp1", rank(90_000, 0.1, 0))]),
        sample(1000, [8000, 9500], &[("tp0", rank(6000, 0.2, 0)), ("tp1", rank(91_000, 0.1, 0))]),
        sample(2000, [8500, 7900], &[("tp0", rank(6100, 0.3, 0)), ("tp1", rank(97_000, 0.2, 0))]),
        missed,
        // More tokens, but nobody knows when in two seconds they came.
        sample(4000, [3000, 9500], &[("tp0", rank(50_000, 0.2, 0))]),
        sample(5000, [9000, 9500], &[("tp0", rank(50_100, 0.2, 0))]),
    ];
    let summary = summary(&header, &lines);
    let heaviest = summary.heaviest.unwrap();
    assert_eq!((heaviest.rank, heaviest.tokens), (id("tp1"), 6000));
    assert_eq!((heaviest.from_ms, heaviest.to_ms), (1000, 2000));
    let least = heaviest.least.unwrap();
    assert_eq!((least.device, least.free), (1, Bytes::mib(7900)));
    assert_eq!(summary.ranks[&id("tp0")].prefill_tokens, Some(49_100));
    assert_eq!((summary.samples, summary.missed, summary.restarts), (5, 1, 0));
    assert_eq!(summary.least().unwrap().free, Bytes::mib(3000));
    assert_eq!(summary.undercut, None);
}

#[test]
fn a_restart_is_seen_and_counts_from_zero() {
    let header = header(ServerKind::Sglang, None);
    let lines = [
        sample(0, [1, 1], &[("tp0", rank(5000, 0.9, 7))]),
        sample(1000, [1, 1], &[("tp0", rank(6000, 0.9, 9))]),
        sample(2000, [1, 1], &[("tp0", rank(5500, 0.1, 1))]),
    ];
    let summary = summary(&header, &lines);
    let rank = &summary.ranks[&id("tp0")];
    assert_eq!((summary.restarts, rank.retractions, rank.prefill_tokens), (1, Some(3), Some(6500)));
    assert_eq!(summary.heaviest.unwrap().tokens, 1000);
}

#[test]
fn the_old_gauge_of_retractions_is_a_lower_bound() {
    let header = header(ServerKind::Sglang, None);
    let at = |at_ms, now| {
        let figures = RankFigures { retracting_requests: Some(now), ..RankFigures::default() };
        sample(at_ms, [1, 1], &[("tp0", figures)])
    };
    let lines = [at(0, 0), at(1, 2), at(2, 2), at(3, 5), at(4, 0), at(5, 1)];
    assert_eq!(summary(&header, &lines).retractions(), Some(6));
}

#[test]
fn an_undercut_names_its_first_and_its_least_sample() {
    let header = header(ServerKind::Sglang, Some(2048));
    let lines = [
        sample(0, [9000, 9000], &[("tp0", rank(0, 0.5, 0))]),
        sample(1000, [9000, 2000], &[("tp0", rank(10, 0.5, 0))]),
        sample(2000, [800, 9000], &[("tp0", rank(20, 0.5, 0))]),
        sample(3000, [9000, 9000], &[("tp0", rank(30, 0.5, 0))]),
    ];
    let summary = summary(&header, &lines);
    let undercut = summary.undercut.unwrap();
    assert_eq!((undercut.first.device, undercut.first.low.sample), (1, 2));
    assert_eq!((undercut.least.device, undercut.least.low.at_ms, undercut.samples), (0, 2000, 2));
    let advice = advise(&header, &summary);
    assert_eq!(advice.verdict, Verdict::Undercut);
    assert!(advice.headline.contains("device 1 at 1.0 s (sample 2)"), "{}", advice.headline);
    // 1248 MiB are missing, one step of 0.02 gives 2 GiB.
    assert_eq!(advice.help[0].value.as_deref(), Some("0.88"));
    assert!(advice.help.iter().all(|help| help.action != "raise"), "{:?}", advice.help);
}

#[test]
fn to_raise_takes_a_full_pool_and_retractions_and_room() {
    let header = header(ServerKind::Sglang, Some(1024));
    let actions = |free: u64, usage: f64, retractions: u64| {
        let lines = [
            sample(0, [free, free], &[("tp0", rank(0, 0.1, 0))]),
            sample(1000, [free, free], &[("tp0", rank(9, usage, retractions))]),
        ];
        let advice = advise(&header, &summary(&header, &lines));
        let helps = advice.help.iter().map(|help| (help.action, help.value.clone()));
        helps.collect::<Vec<_>>()
    };
    assert_eq!(actions(9000, 0.99, 3), [("raise", Some("0.92".to_owned()))]);
    // A step is 2 GiB; 976 MiB are left above the line.
    assert_eq!(actions(2000, 0.99, 3), [("keep", None)]);
    assert_eq!(actions(9000, 0.99, 0), [("keep", None)]);
    assert_eq!(actions(9000, 0.05, 0), [("keep", None)]);
    assert_eq!(actions(9000, 0.5, 3), [("look", None)]);
    // A full pool on one rank and retractions on another do not add up.
    let lines = [
        sample(0, [9000, 9000], &[("tp0", rank(0, 0.1, 0)), ("tp1", rank(0, 0.1, 0))]),
        sample(1000, [9000, 9000], &[("tp0", rank(0, 0.99, 0)), ("tp1", rank(0, 0.2, 3))]),
    ];
    let advice = advise(&header, &summary(&header, &lines));
    assert!(advice.help.iter().all(|help| help.action != "raise"), "{:?}", advice.help);
}

fn recorded() -> (Header, Vec<Line>, String) {
    let header = header(ServerKind::Vllm, Some(2048));
    let lines = vec![
        sample(0, [9000, 9000], &[("engine0", rank(0, 0.5, 0))]),
        Line::Missed(Missed { at_ms: 900, why: "status_503".to_owned(), devices: Vec::new() }),
        sample(1900, [900, 9000], &[("engine0", rank(500, 0.75, 1)), ("server", rank(1, 0.1, 0))]),
        Line::End(End { at_ms: 2000, why: Ending::Lost }),
    ];
    let mut text = serde_json::to_string(&header).unwrap() + "\n";
    for line in &lines {
        text += &(serde_json::to_string(line).unwrap() + "\n");
    }
    (header, lines, text)
}

fn read_back(text: &[u8]) -> Result<(Header, Summary, Option<recording::Cut>), RecordingError> {
    let mut lines = Vec::new();
    let (header, cut) = read(text, |_, line| lines.push(line.clone()))?;
    let summary = summary(&header, &lines);
    Ok((header, summary, cut))
}

#[test]
fn a_recording_reads_back_to_the_same_summary() {
    let (header, lines, text) = recorded();
    let (read_header, read_summary, cut) = read_back(text.as_bytes()).unwrap();
    assert_eq!((read_header, cut), (header.clone(), None));
    assert_eq!(read_summary, summary(&header, &lines));
    // A kind of a later version, a key of a later version, a blank line.
    let later = text.replace("\"kind\":\"end\"", "\"kind\":\"power\",\"watts\":7") + "\n";
    let (_, later, _) =
        read_back(later.replace("\"why\"", "\"new\":1,\"why\"").as_bytes()).unwrap();
    assert_eq!((later.samples, later.ending), (2, None));
}

#[test]
fn a_recording_can_be_cut_anywhere_behind_its_header() {
    let (_, _, text) = recorded();
    let head = text.find('\n').unwrap();
    let ends: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
    for at in 0..text.len() {
        let read = read_back(&text.as_bytes()[..at]);
        if at < head {
            assert!(matches!(read, Err(RecordingError::Line { line: 1, .. })), "{at}");
            continue;
        }
        let (_, summary, cut) = read.unwrap();
        // A line that only lacks its end is whole.
        let whole = ends.iter().filter(|end| **end <= at).count() - 1;
        let seen = summary.samples + summary.missed + u64::from(summary.ending.is_some());
        assert_eq!(seen, whole as u64, "{at}");
        let start = text[..at].rfind('\n').map_or(0, |at| at + 1);
        let broken = at > start && !ends.contains(&at);
        assert_eq!(cut.map(|cut| cut.byte), broken.then_some(start as u64), "{at}");
    }
}

#[test]
fn broken_recordings_are_refused_with_their_line() {
    let (_, _, text) = recorded();
    let said = |text: &str| read_back(text.as_bytes()).err().unwrap().to_string();
    assert!(said("").starts_with("line 1: the file is empty"));
    assert!(said("{\"schema\":\"plimsoll.log/1\"}\n").contains("expected `plimsoll.watch/1`"));
    assert!(said("\u{1b}[2J\n").starts_with("line 1: not a header"));
    let mut lines: Vec<&str> = text.lines().collect();
    lines[2] = "{\"kind\":\"sample\",\"at_ms\":";
    assert!(said(&lines.join("\n")).starts_with("line 3: "));
    assert!(said(&text.replace("tp", "gpu").replace("engine0", "gpu0")).contains("is not a rank"));
}

proptest! {
    #[test]
    fn any_page_is_read_and_its_figures_are_in_range(
        lines in prop::collection::vec(
            (
                prop::sample::select(vec![
                    "sglang:num_running_reqs", "sglang:token_usage", "sglang:num_used_tokens",
                    "sglang:max_total_num_tokens", "sglang:prompt_tokens_total",
                    "vllm:kv_cache_usage_perc", "vllm:num_preemptions_total",
                ]),
                prop::option::of(0_u32..12),
                any::<f64>(),
            ),
            0..40,
        )
    ) {
        let text: String = lines
            .iter()
            .map(|(name, rank, value)| match rank {
                Some(rank) => format!("{name}{{tp_rank=\"{rank}\"}} {value}\n"),
                None => format!("{name} {value}\n"),
            })
            .collect();
        let page = read_page(&text);
        prop_assert_eq!(&page.bad, &None);
        prop_assert!(page.ranks.len() <= 13);
        for figures in page.ranks.values() {
            if let (Some(held), Some(of)) = (figures.pool_held_tokens, figures.pool_capacity_tokens) {
                prop_assert!(of > 0 || held == 0 || figures.pool_usage.is_some());
            }
            let text = serde_json::to_string(figures).unwrap();
            let again: RankFigures = serde_json::from_str(&text).unwrap();
            prop_assert_eq!(&again, figures);
        }
    }
}
