//! `docs/cli.md` and the README: their examples are what the binary prints, and it names every key of the results.
//! `PLIMSOLL_WRITE_DOCS=1` writes the examples anew.

use super::{root, run};
use std::fs;

const OPEN: &str = "```console\n$ plimsoll ";

/// Words of a typed line; double quotes hold blanks together.
fn words(line: &str) -> Vec<String> {
    let mut words = vec![String::new()];
    let mut quoted = false;
    for c in line.chars() {
        match c {
            '"' => quoted = !quoted,
            ' ' if !quoted => words.push(String::new()),
            c => words.last_mut().expect("one word at least").push(c),
        }
    }
    words.retain(|word| !word.is_empty());
    words
}

/// The text with every example run anew, and how many there are.
fn renewed(text: &str) -> (String, usize) {
    let mut parts = text.split(OPEN);
    let mut out = parts.next().unwrap_or_default().to_owned();
    let mut count = 0;
    for part in parts {
        let (example, rest) = part.split_once("\n```\n").expect("an example ends");
        // A typed line goes on after a backslash.
        let joined = example.replace("\\\n", " ");
        let typed = joined.lines().next().unwrap_or_default();
        let args = words(typed);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let shown = run(&args);
        let lines = example.lines().take_while(|line| line.ends_with('\\')).count() + 1;
        let typed: Vec<&str> = example.lines().take(lines).collect();
        let printed = format!("{}{}", shown.stdout, shown.stderr);
        out.push_str(&format!("{OPEN}{}\n{}\n```\n{rest}", typed.join("\n"), printed.trim_end()));
        count += 1;
    }
    (out, count)
}

#[test]
fn examples_are_what_the_binary_prints() {
    let pages = [
        ("docs/cli.md", 5),
        ("docs/diagnose.md", 4),
        ("docs/watch.md", 1),
        ("docs/calibrate.md", 1),
        ("README.md", 3),
    ];
    for (page, least) in pages {
        let path = root().join(page);
        let text = fs::read_to_string(&path).expect(page);
        let (fresh, count) = renewed(&text);
        assert!(count >= least, "{page}: {count} examples");
        if std::env::var_os("PLIMSOLL_WRITE_DOCS").is_some() {
            fs::write(&path, &fresh).expect("written");
        } else {
            let how = "PLIMSOLL_WRITE_DOCS=1 cargo test --test all cli";
            assert!(fresh == text, "{page} is not up to date: {how}");
        }
    }
}

#[test]
fn every_key_verb_and_flag_is_named() {
    let text = fs::read_to_string(root().join("docs/cli.md")).expect("docs/cli.md");
    let named =
        |name: &str| assert!(text.contains(&format!("`{name}`")), "`{name}` is not in docs/cli.md");
    for of in [
        "plan",
        "diagnosis",
        "explain",
        "run",
        "profile",
        "sweep",
        "workload",
        "replay",
        "doctor",
        "before-relaunch",
        "bench",
        "serve",
        "watch",
        "diff",
    ] {
        let schema: serde_json::Value =
            serde_json::from_str(&run(&["schema", of]).stdout).expect("JSON");
        schema["properties"].as_object().expect("keys").keys().for_each(|key| named(key));
    }
    for verb in [
        "plan",
        "diagnose",
        "explain",
        "run",
        "calibrate",
        "sweep",
        "workload",
        "serve",
        "bench",
        "chat",
        "replay",
        "diff",
        "watch",
        "doctor",
        "schema",
        "completions",
        "man",
    ] {
        named(verb);
        let help = run(&[verb, "-h"]).stdout;
        let flags = help.split_whitespace().filter_map(|word| word.strip_prefix("--"));
        let flags = flags.map(|flag| flag.trim_matches(|c: char| !c.is_ascii_alphanumeric()));
        let ours = ["", "help", "version", "model-path", "tp-size"];
        for flag in flags.filter(|flag| !ours.contains(flag) && !help_example(flag)) {
            named(&format!("--{flag}"));
        }
    }
}

/// Flags of engines in the examples of a help text.
fn help_example(flag: &str) -> bool {
    ["config", "previous", "random-input-len", "request-rate", "max-model-len"].contains(&flag)
}
