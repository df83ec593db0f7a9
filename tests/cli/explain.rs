//! `explain`: its pages are there and true. Figures of scenarios are those of a run, sums are computed again, flags
//! are those that the engines have.

use super::{root, run, snapshot, transcript};
use plimsoll_core::units::Bytes;
use plimsoll_diagnosis::pages::{PAGES, Page};
use plimsoll_ingest::launch::{Engine, has_flag, has_variable};
use serde_json::Value;
use std::{collections::BTreeMap, fs};

/// Fenced blocks of a page: what stands behind the fence, and the lines.
fn fences(page: &Page) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut found = Vec::new();
    for (at, part) in page.text.split("```").enumerate() {
        if at % 2 == 1 {
            let (info, body) = part.split_once('\n').expect("a fence has lines");
            found.push((info, body.lines().collect()));
        }
    }
    found
}

/// What a scenario's run says, by name; names of amounts without their unit too.
fn outcome(scenario: &str) -> BTreeMap<String, Value> {
    let file = format!("scenarios/{scenario}.yaml");
    let shown = run(&["run", &file, "--format", "json"]);
    let run: Value = serde_json::from_str(&shown.stdout).unwrap_or_else(|e| panic!("{file}: {e}"));
    let mut all = BTreeMap::from([("outcome".to_owned(), run["outcome"].clone())]);
    for (name, figure) in run["figures"].as_object().expect("figures") {
        all.insert(name.clone(), figure["value"].clone());
    }
    for (name, value) in run["measures"].as_object().expect("measures") {
        all.insert(name.clone(), value.clone());
        all.insert(name.trim_end_matches("_bytes").to_owned(), value.clone());
    }
    all
}

/// Decimals of a printed figure.
fn decimals(text: &str) -> i32 {
    text.split_once('.').map_or(0, |(_, after)| after.len() as i32)
}

/// Whether a figure as printed is the value, to half of its last digit.
fn agrees(printed: &str, value: &Value) -> bool {
    if let Some(text) = value.as_str() {
        return text == printed;
    }
    let value = value.as_f64().expect("a number");
    let (figure, unit) = printed.split_once(' ').unwrap_or((printed, ""));
    let bare: f64 = figure.replace(',', "").parse().unwrap_or_else(|e| panic!("{printed}: {e}"));
    let factor = unit_factor(unit);
    let half = 0.5 * 10_f64.powi(-decimals(figure)) * factor;
    (bare * factor - value).abs() <= half * 1.000_001
}

fn unit_factor(unit: &str) -> f64 {
    match unit {
        "GB" => 1e9,
        "GiB" | "MiB" | "KiB" | "B" => {
            let bytes: Bytes = format!("1 {unit}").parse().expect("a unit");
            bytes.0 as f64
        }
        _ => 1.0,
    }
}

#[test]
fn figures_of_scenarios_are_those_of_their_runs() {
    let mut runs: BTreeMap<&str, BTreeMap<String, Value>> = BTreeMap::new();
    let mut compared = 0;
    for page in PAGES {
        for (info, lines) in fences(page) {
            let Some(scenario) = info.strip_prefix("scenario ") else { continue };
            let run = runs.entry(scenario).or_insert_with(|| outcome(scenario));
            for line in lines {
                let (name, printed) = line.split_once(": ").expect("name: value");
                let value = run.get(name).unwrap_or_else(|| {
                    panic!("{}: {scenario} has no `{name}`: {:?}", page.key, run.keys())
                });
                let place = format!("{}: {scenario}: {line}", page.key);
                assert!(agrees(printed, value), "{place}: it is {value}");
                compared += 1;
            }
        }
    }
    assert!(compared > 150, "{compared} compared");
}

/// One word of a sum.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Token {
    Number(f64),
    Sign(char),
}

/// Numbers with their units multiplied in, signs and brackets; words before them are a label. A number that
/// stands in brackets, or one without a unit, is as it is.
fn tokens(text: &str) -> Vec<Token> {
    let mut found: Vec<Token> = Vec::new();
    let spaced = text.replace('(', " ( ").replace(')', " ) ");
    for word in spaced.split_whitespace() {
        let number = word.replace(',', "").parse::<f64>();
        match (word, number) {
            (_, Ok(number)) => found.push(Token::Number(number)),
            ("+" | "-" | "×" | "/" | "(" | ")", _) => {
                found.push(Token::Sign(word.chars().next().expect("a sign")));
            }
            _ => {
                if let Some(Token::Number(number)) = found.last_mut() {
                    *number *= unit_factor(word);
                }
            }
        }
    }
    found
}

/// A sum of products, from the left.
fn sum(tokens: &mut &[Token]) -> f64 {
    let mut value = product(tokens);
    while let [Token::Sign(sign @ ('+' | '-')), rest @ ..] = *tokens {
        *tokens = rest;
        let next = product(tokens);
        value += if *sign == '+' { next } else { -next };
    }
    value
}

fn product(tokens: &mut &[Token]) -> f64 {
    let mut value = atom(tokens);
    while let [Token::Sign(sign @ ('×' | '/')), rest @ ..] = *tokens {
        *tokens = rest;
        let next = atom(tokens);
        value = if *sign == '×' { value * next } else { value / next };
    }
    value
}

fn atom(tokens: &mut &[Token]) -> f64 {
    match *tokens {
        [Token::Number(number), rest @ ..] => {
            *tokens = rest;
            *number
        }
        [Token::Sign('('), rest @ ..] => {
            *tokens = rest;
            let value = sum(tokens);
            assert_eq!(tokens.first(), Some(&Token::Sign(')')));
            *tokens = &tokens[1..];
            value
        }
        other => panic!("no number: {other:?}"),
    }
}

/// Text before the sum, where words of a label may hold figures: two blanks end it.
fn without_label(line: &str) -> &str {
    line.get(14..).unwrap_or_else(|| panic!("{line}: a label has 14 columns"))
}

#[test]
fn sums_come_out_as_printed() {
    let mut computed = 0;
    for page in PAGES {
        for (info, lines) in fences(page) {
            if info != "arithmetic" {
                continue;
            }
            for line in lines {
                let (left, right) = without_label(line).split_once(" = ").expect("a result");
                let all = tokens(left);
                let mut rest = all.as_slice();
                let got = sum(&mut rest);
                assert!(rest.is_empty(), "{}: {line}: {rest:?}", page.key);
                let (figure, unit) = right.split_once(' ').unwrap_or((right, ""));
                let want: f64 = figure.replace(',', "").parse().expect("a figure");
                let last = 10_f64.powi(-decimals(figure));
                let got = got / unit_factor(unit);
                // Figures of logs are cut or rounded: within one of the last digit.
                assert!((got - want).abs() < last, "{}: {line}: {got}", page.key);
                computed += 1;
            }
        }
    }
    assert!(computed > 70, "{computed} computed");
}

/// Texts between single backticks outside of fences.
fn spans(page: &Page) -> Vec<&'static str> {
    let outside = page.text.split("```").step_by(2);
    outside.flat_map(|text| text.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn flags_and_variables_exist() {
    let engines = [Engine::Sglang, Engine::Vllm];
    let mut seen = 0;
    for page in PAGES {
        for span in spans(page) {
            let words: Vec<&str> = span.split_whitespace().collect();
            let first = words.first().copied().unwrap_or_default();
            let name = first.split('=').next().unwrap_or_default();
            let variable = name.len() > 3
                && name.contains('_')
                && name.chars().all(|c| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_');
            if first.starts_with("--") {
                let known = engines.iter().any(|engine| has_flag(*engine, name));
                assert!(known, "{}: no engine has `{name}`", page.key);
                seen += 1;
            } else if variable {
                assert!(has_variable(name), "{}: no variable `{name}`", page.key);
                seen += 1;
            } else if first == "plimsoll" {
                let verb = words.get(1).copied().unwrap_or_default();
                let help = run(&[verb, "--help"]);
                assert_eq!(help.code, 0, "{}: {span}", page.key);
                let ours = words.iter().take_while(|word| **word != "--");
                for flag in ours.filter(|word| word.starts_with("--")) {
                    assert!(help.stdout.contains(flag), "{}: {span}: no {flag}", page.key);
                }
            }
        }
        // Where a page sends the reader.
        for see in page.text.split("see `").skip(1) {
            let key = see.split('`').next().unwrap_or_default();
            let there = PAGES.iter().any(|other| other.key == key) && key != page.key;
            assert!(there, "{}: no other page `{key}`", page.key);
        }
    }
    assert!(seen > 150, "{seen} seen");
}

#[test]
fn pages_are_shown_and_near_names_are_said() {
    let args = ["explain", "draft-not-budgeted"];
    snapshot("explain-code", &transcript(&args, &run(&args)));
    let args = ["explain"];
    let list = run(&args);
    assert_eq!(list.stdout, run(&["explain", "--list"]).stdout);
    snapshot("explain-list", &transcript(&args, &list));
    let both = run(&["explain", "Usage was_low", "leak"]);
    assert_eq!(both.code, 0);
    assert!(both.stdout.contains("usage-was-low:") && both.stdout.contains("\nleak:"));
    for (name, near) in [
        ("draft-not-budgetted", "draft-not-budgeted"),
        ("hicache", ""),
        ("logprobs", "prompt-logprobs"),
    ] {
        let shown = run(&["explain", name]);
        assert_eq!((shown.code, shown.stdout.as_str()), (2, ""), "{name}");
        assert!(shown.stderr.contains(near), "{}", shown.stderr);
    }
    for format in ["csv", "sarif"] {
        let shown = run(&["explain", "leak", "--format", format]);
        assert_eq!(shown.code, 2);
        assert!(
            shown.stderr.contains("explain writes human, json, jsonl and md"),
            "{}",
            shown.stderr
        );
    }
}

#[test]
fn machines_get_the_same_pages() {
    let schema: Value = serde_json::from_str(&run(&["schema", "explain"]).stdout).expect("JSON");
    let shown = run(&["explain", "--format", "json"]);
    let all: Value = serde_json::from_str(&shown.stdout).expect("JSON");
    assert_eq!(super::schema_check::check(&schema, &all), Vec::<String>::new());
    assert_eq!(all["pages"].as_array().map(Vec::len), Some(PAGES.len()));
    let lines = run(&["explain", "leak", "healthy", "--format", "jsonl"]).stdout;
    assert_eq!(lines.lines().count(), 2);
}

/// `docs/explain.md` is the list and every page. `PLIMSOLL_WRITE_DOCS=1` writes it anew.
#[test]
fn the_documentation_has_every_page() {
    let list = run(&["explain", "--format", "md"]).stdout;
    let list = list.replace("\n## ", "\n### ").replacen("## ", "### ", 1);
    let keys: Vec<&str> = PAGES.iter().map(|page| page.key).collect();
    let pages = run(&[&["explain"], keys.as_slice(), &["--format", "md"]].concat()).stdout;
    let page = format!(
        "# What a finding means\n\nEvery code of `plimsoll diagnose`, the rules for operating a server, and usual answers \
         that are wrong: what `plimsoll explain` prints.\nThis page is written from the pages in `diagnosis/pages` \
         (`PLIMSOLL_WRITE_DOCS=1 cargo test --test all cli`); a test runs every scenario that is named here and\n\
         computes every sum again.\n\n{list}\n{pages}"
    );
    let path = root().join("docs/explain.md");
    if std::env::var_os("PLIMSOLL_WRITE_DOCS").is_some() {
        fs::write(&path, &page).expect("written");
    } else {
        let found = fs::read_to_string(&path).unwrap_or_default();
        assert!(found == page, "docs/explain.md: PLIMSOLL_WRITE_DOCS=1 cargo test --test all cli");
    }
}
