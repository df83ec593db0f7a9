//! Pages: the figures in them, text that stays text, the same bytes every time.

use crate::runs::run;
use plimsoll_replay::run::ScenarioRun;
use plimsoll_report::{Budget, Collected, Collector, Column, Told, decode, page};
use serde_json::Value;

fn told() -> Told {
    Told {
        word: "holds".to_owned(),
        ending: "it ends".to_owned(),
        start: "with tokens".to_owned(),
        notes: Vec::new(),
    }
}

fn seen(name: &str, set: &[&str], budget: Budget) -> (ScenarioRun, Collected) {
    let mut collector = Collector::new(budget);
    let run = run(name, set, &mut |record| collector.take(record));
    (run, collector.finish())
}

/// The figures of a page, as its script finds them.
fn data(page: &str) -> Value {
    let begin = "<script type=\"application/json\" id=\"data\">";
    let (_, rest) = page.split_once(begin).unwrap();
    serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
}

fn column(data: &Value, name: &str) -> Vec<u64> {
    let column = &data["columns"][name];
    let kind = if column[0] == 1 { Column::Steps } else { Column::Plain };
    decode(kind, column[1].as_str().unwrap()).unwrap()
}

#[test]
fn the_founding_crash_is_exact() {
    let (run, seen) = seen("founding/margin-0.93.yaml", &[], Budget::default());
    let text = page(&run, &seen, &told());
    let data = data(&text);
    let crash = &data["crash"];
    assert_eq!(crash["requested_bytes"], 939_524_096_u64);
    assert_eq!(crash["free_bytes"], 280_742_586_u64);
    assert_eq!(crash["at_ns"], 12_010_996_671_u64);
    assert_eq!(data["capacity_bytes"], 102_641_958_912_u64);
    let last = column(&data, "doing").iter().position(|doing| *doing == 4).unwrap();
    let at = |name: &str| column(&data, name)[last];
    assert_eq!(at("from"), 12_010_996_671);
    assert_eq!((at("free"), at("reserved"), at("live")), (280_742_586, 599_785_472, 545_302_528));
    assert_eq!((at("used"), at("running")), (55_994, 89));
    assert_eq!(at("waiting") - at("waiting_less"), 31);
    // The accounts of the rank close.
    let fixed: u64 = data["fixed"].as_array().unwrap().iter().map(|f| f[2].as_u64().unwrap()).sum();
    assert_eq!(fixed + at("others") + at("leaked") + at("reserved") + at("free"), 102_641_958_912);
    for words in ["896.00 MiB (939524096 B)", "267.74 MiB (280742586 B)", "12.010996671 s"] {
        assert!(text.contains(words), "{words}");
    }
}

/// What the script reads, for people who review a change of it.
#[test]
fn figures_of_a_small_run() {
    let (run, seen) = seen(
        "founding/margin-0.93.yaml",
        &[
            "workload={requests: 3, at: 1 s, prompt_tokens: 700, output_tokens: 4}",
            "expect={outcome: finished}",
        ],
        Budget::default(),
    );
    let mut data = data(&page(&run, &seen, &told()));
    let columns = data["columns"].as_object().unwrap().clone();
    let names: Vec<String> = columns.keys().cloned().collect();
    let mut shown = String::new();
    for name in names {
        shown.push_str(&format!("{name}: {:?}\n", column(&data, &name)));
    }
    data["columns"] = Value::Null;
    insta::assert_snapshot!("small-run", format!("{data:#}\n{shown}"));
}

#[test]
fn a_page_is_the_same_every_time() {
    let one = || {
        let (run, seen) =
            seen("retraction/llama-3.1-8b-conservativeness-0.3.yaml", &[], Budget::default());
        page(&run, &seen, &told())
    };
    assert_eq!(one(), one());
}

#[test]
fn foreign_text_stays_text() {
    let evil = "</script><img src=x onerror=alert(1)>\u{2028}'\"&";
    let quoted = Value::from(evil).to_string();
    let set = [
        format!("why={quoted}"),
        format!("source={quoted}"),
        "engine.environment={X: \"</script><b>\"}".to_owned(),
    ];
    let set: Vec<&str> = set.iter().map(String::as_str).collect();
    let (mut run, seen) = seen("founding/margin-0.93.yaml", &set, Budget::default());
    evil.clone_into(&mut run.scenario.name);
    run.scenario.engine.command = Some(evil.to_owned());
    let words = Told {
        word: evil.to_owned(),
        ending: evil.to_owned(),
        start: evil.to_owned(),
        notes: vec![evil.to_owned()],
    };
    let text = page(&run, &seen, &words);
    assert!(!text.contains("<img src=x"), "an element of somebody else");
    assert_eq!(text.matches("</script>").count(), 2, "only the page's own scripts end");
    assert_eq!(text.matches("<script").count(), 2);
    assert!(text.contains("&lt;img src=x onerror=alert(1)&gt;"));
}

#[test]
fn a_page_asks_nobody() {
    let (run, seen) = seen("founding/margin-0.93.yaml", &[], Budget::default());
    let text = page(&run, &seen, &told());
    assert!(text.contains("default-src 'none'"));
    // The name of a language, and what PyTorch says.
    let own = text.replace("http://www.w3.org/2000/svg", "").replace("https://pytorch.org/", "");
    for scheme in [
        "http://",
        "https://",
        "url(//",
        "src=\"//",
        "@import",
        "fetch(",
        "XMLHttpRequest",
        "import(",
    ] {
        assert!(!own.contains(scheme), "{scheme}");
    }
}

#[test]
fn a_thinned_run_keeps_the_crash() {
    let budget = Budget { head: 3, tail: 5, pins: 2, body: 12, items: 20 };
    let (run, thin) = seen("founding/margin-0.93.yaml", &[], budget);
    assert!(thin.stretch_ns > 0);
    let text = page(&run, &thin, &told());
    let (_, whole) = seen("founding/margin-0.93.yaml", &[], Budget::default());
    assert_eq!(thin.rows.last(), whole.rows.last());
    assert_eq!(thin.counts(), whole.counts());
    assert!(text.contains("are gathered in stretches of"));
    let least = |seen: &Collected| seen.rows.iter().map(|row| row.rank(0).free.min).min();
    assert_eq!(least(&thin), least(&whole));
}

#[test]
fn a_start_alone_has_its_phases() {
    let (run, seen) = seen("dedicated-gpu/kimi-k2.5-0.93-start.yaml", &[], Budget::default());
    let text = page(&run, &seen, &told());
    assert!(data(&text).is_null());
    assert!(text.contains("after load") && text.contains("KV pool"));
    assert!(!text.contains("id=\"charts\""));
}
