//! The page on scenario files says what the schema says. `PLIMSOLL_WRITE_DOCS=1` writes its table anew.

use crate::scenario::parse;
use plimsoll_replay::{kinds, live, problem::Code, scenario::schema};
use std::{fs, path::PathBuf};

const BEGIN: &str = "<!-- keys: begin -->\n";
const END: &str = "<!-- keys: end -->\n";

fn page() -> (PathBuf, String) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/scenario-format.md");
    let text = fs::read_to_string(&path).unwrap();
    (path, text)
}

#[test]
fn the_table_of_keys_is_that_of_the_schema() {
    let (path, text) = page();
    let (before, rest) = text.split_once(BEGIN).unwrap();
    let (table, after) = rest.split_once(END).unwrap();
    let expected = schema::markdown_table();
    if std::env::var_os("PLIMSOLL_WRITE_DOCS").is_some() {
        fs::write(&path, format!("{before}{BEGIN}{expected}{END}{after}")).unwrap();
        return;
    }
    assert_eq!(table, expected, "run this test with PLIMSOLL_WRITE_DOCS=1 to write the table anew");
    for key in schema::keys() {
        assert!(!key.doc.is_empty(), "`{}` has no text", key.path);
        assert!(!key.kind.contains("any value"), "`{}` has no type", key.path);
    }
}

#[test]
fn the_tables_of_records_are_those_of_the_kinds() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../docs/decision-log.md");
    for (name, kinds) in [("kinds", kinds::KINDS.as_slice()), ("live kinds", &live::kinds::KINDS)] {
        let text = fs::read_to_string(&path).unwrap();
        let (begin, end) = (format!("<!-- {name}: begin -->\n"), format!("<!-- {name}: end -->\n"));
        let (before, rest) = text.split_once(&begin).unwrap();
        let (table, after) = rest.split_once(&end).unwrap();
        let expected = kinds::markdown_table(kinds);
        if std::env::var_os("PLIMSOLL_WRITE_DOCS").is_some() {
            fs::write(&path, format!("{before}{begin}{expected}{end}{after}")).unwrap();
            continue;
        }
        assert_eq!(
            table, expected,
            "run this test with PLIMSOLL_WRITE_DOCS=1 to write the table anew"
        );
    }
}

#[test]
fn every_code_is_on_the_page() {
    let (_, text) = page();
    for code in Code::ALL {
        assert!(text.contains(&format!("| {code} | {} |", code.meaning())), "{code}");
    }
}

#[test]
fn every_whole_example_of_the_page_is_a_scenario() {
    let (_, text) = page();
    let examples: Vec<&str> = text
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("```").next())
        .filter(|example| example.starts_with("name:"))
        .collect();
    assert!(examples.len() >= 3);
    for example in examples {
        if let Err(problems) = parse(example, &[]) {
            panic!("{problems}\n{example}");
        }
    }
}
