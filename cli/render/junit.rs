//! The results of `run` as JUnit XML, in the subset that Jenkins, GitLab and the reporters of GitHub all read.
//!
//! A suite is a folder, a case is a file. `time` is 0 everywhere: the clock of the machine would make two equal
//! runs differ, and the model's time is no duration of a test.

use crate::exit::{self, Failure};
use plimsoll_replay::{outcome::Claim, run::ScenarioRun, verdict::verdict};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    path::{Component, Path},
};

/// What became of one path that was given.
pub enum Case<'a> {
    /// It ran.
    Ran(&'a ScenarioRun),
    /// It did not run: a broken file, an empty folder, a device that is missing.
    Failed(&'a Failure),
    /// The run was interrupted before it.
    NotRun,
}

/// A failure, an error or nothing, as an element.
struct Trouble {
    element: &'static str,
    kind: &'static str,
    message: String,
    body: String,
}

/// The whole file. The order of suites is that of their first cases.
pub fn junit<'a>(cases: impl IntoIterator<Item = (&'a Path, Case<'a>)>) -> String {
    let mut order = Vec::new();
    let mut suites: BTreeMap<String, Vec<(&Path, Case<'_>)>> = BTreeMap::new();
    for (path, case) in cases {
        let name = suite_of(path);
        if !suites.contains_key(&name) {
            order.push(name.clone());
        }
        suites.entry(name).or_default().push((path, case));
    }
    let (mut body, mut all) = (String::new(), Counts::default());
    for name in order {
        let (mut text, mut counts) = (String::new(), Counts::default());
        for (path, case) in suites.remove(&name).unwrap_or_default() {
            text.push_str(&test_case(&name, path, &case, &mut counts));
        }
        let _ = writeln!(body, "  <testsuite name=\"{}\" {}>", attribute(&name), counts.text());
        let _ = writeln!(body, "{text}  </testsuite>");
        all.add(&counts);
    }
    let head = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>";
    format!("{head}\n<testsuites name=\"plimsoll\" {}>\n{body}</testsuites>\n", all.text())
}

/// What the elements around cases count.
#[derive(Default)]
struct Counts {
    tests: u64,
    failures: u64,
    errors: u64,
    skipped: u64,
}

impl Counts {
    const fn add(&mut self, other: &Self) {
        self.tests += other.tests;
        self.failures += other.failures;
        self.errors += other.errors;
        self.skipped += other.skipped;
    }

    fn text(&self) -> String {
        let Self { tests, failures, errors, skipped } = self;
        format!(
            "tests=\"{tests}\" failures=\"{failures}\" errors=\"{errors}\" skipped=\"{skipped}\" \
             time=\"0\""
        )
    }
}

fn test_case(suite: &str, path: &Path, case: &Case<'_>, counts: &mut Counts) -> String {
    counts.tests += 1;
    let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy();
    let (class, file) = (suite.replace('/', "."), path.display().to_string());
    let (class, name, file) = (attribute(&class), attribute(&name), attribute(&file));
    let mut out = format!(
        "    <testcase classname=\"{class}\" name=\"{name}\" file=\"{file}\" time=\"0\">\n"
    );
    match case {
        Case::Ran(run) => {
            if let Some(trouble) = trouble_of_run(run) {
                out.push_str(&trouble.text(counts));
            }
            let _ = writeln!(out, "      <system-out>{}</system-out>", text(&said(run)));
        }
        Case::Failed(failure) => out.push_str(&trouble_of_file(failure).text(counts)),
        Case::NotRun => {
            counts.skipped += 1;
            out.push_str("      <skipped message=\"interrupted before it ran\"/>\n");
        }
    }
    out + "    </testcase>\n"
}

impl Trouble {
    fn text(&self, counts: &mut Counts) -> String {
        match self.element {
            "failure" => counts.failures += 1,
            _ => counts.errors += 1,
        }
        let Self { element, kind, message, body } = self;
        let (message, body) = (attribute(message), text(body));
        format!("      <{element} message=\"{message}\" type=\"{kind}\">{body}</{element}>\n")
    }
}

/// The claims that failed, or the end that nobody expected; all in one element, for some readers take the first
/// alone.
fn trouble_of_run(run: &ScenarioRun) -> Option<Trouble> {
    let headline = super::run::ending(run);
    if run.lost_its_machine() {
        let body = headline.clone();
        return Some(Trouble { element: "error", kind: "device", message: headline, body });
    }
    if run.passed() {
        return None;
    }
    let failed: Vec<String> = run
        .claims
        .iter()
        .filter(|claim| !claim.holds())
        .map(|claim| {
            format!("{}: expected {}, got {}", claim_path(claim), claim.expected, claim.got)
        })
        .collect();
    let (kind, message) = match failed.as_slice() {
        [] => ("outcome", headline.clone()),
        [one] => ("claim", one.clone()),
        several => {
            let (failed, all) = (several.len(), run.claims.len());
            ("claim", format!("{failed} of {all} claims failed; {headline}"))
        }
    };
    let mut lines = failed;
    lines.push(headline);
    let verdict = verdict(run).unwrap_or_default();
    lines.extend(verdict.short.map(|short| format!("short: {short}")));
    lines.extend(verdict.ways.iter().map(|way| format!("help: {way}")));
    Some(Trouble { element: "failure", kind, message, body: lines.join("\n") })
}

/// The path as the file has it, below `expect`.
fn claim_path(claim: &Claim) -> String {
    let path = claim.path.to_string();
    path.strip_prefix("expect.").unwrap_or(&path).to_owned()
}

fn trouble_of_file(failure: &Failure) -> Trouble {
    let kind = if failure.code == exit::NO_DEVICE { "device" } else { "input" };
    let body = failure.message.trim_end().to_owned();
    let message = body.lines().next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message).to_owned();
    Trouble { element: "error", kind, message, body }
}

/// What can be said of every run: how it ended, and the digest that tells whether two runs are the same.
fn said(run: &ScenarioRun) -> String {
    let (name, seed) = (&run.scenario.name, run.scenario.seed);
    let digest = &run.digests.decisions;
    format!("{name}: {}\ndigest decisions {digest}  seed {seed}", super::run::ending(run))
}

/// The folder of a path as typed, with `/` between its names; `.` where it has none.
fn suite_of(path: &Path) -> String {
    let names: Vec<_> = path
        .parent()
        .into_iter()
        .flat_map(Path::components)
        .filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_string_lossy()),
            _ => None,
        })
        .collect();
    if names.is_empty() { ".".to_owned() } else { names.join("/") }
}

/// Text between tags: markup is escaped; what XML cannot hold becomes the replacement character.
fn text(foreign: &str) -> String {
    let mut out = String::with_capacity(foreign.len());
    for c in foreign.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            // `]]>` must not stand in text.
            '>' => out.push_str("&gt;"),
            '\n' | '\t' => out.push(c),
            // A reader would make a line end of it.
            '\r' => out.push_str("&#13;"),
            '\0'..='\u{1f}' | '\u{fffe}' | '\u{ffff}' => out.push('\u{fffd}'),
            _ => out.push(c),
        }
    }
    out
}

/// Text in double quotes: line ends and tabs too, which a reader would make blanks of.
fn attribute(foreign: &str) -> String {
    text(foreign).replace('"', "&quot;").replace('\n', "&#10;").replace('\t', "&#9;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_text_stays_text() {
        let foreign = "a<b>&\"c\"\n]]>\u{1b}[31m\0\u{fffe}";
        assert_eq!(text(foreign), "a&lt;b&gt;&amp;\"c\"\n]]&gt;\u{fffd}[31m\u{fffd}\u{fffd}");
        assert_eq!(attribute("\"\n\t"), "&quot;&#10;&#9;");
    }

    #[test]
    fn a_suite_is_a_folder() {
        for (path, suite) in
            [("scenarios/a/b.yaml", "scenarios/a"), ("b.yaml", "."), ("/x/../y/b.yaml", "x/y")]
        {
            assert_eq!(suite_of(Path::new(path)), suite);
        }
    }

    #[test]
    fn what_did_not_run_is_told() {
        let broken = Failure::input("error: `seed` is -1\n  --> b.yaml:2:7 <here>");
        let lost = Failure::no_device("no driver");
        let cases = [
            ("a/b.yaml", Case::Failed(&broken)),
            ("c/d.yaml", Case::Failed(&lost)),
            ("a/e.yaml", Case::NotRun),
        ];
        let file = junit(cases.map(|(path, case)| (Path::new(path), case)));
        insta::assert_snapshot!(file, @r#"
        <?xml version="1.0" encoding="UTF-8"?>
        <testsuites name="plimsoll" tests="3" failures="0" errors="2" skipped="1" time="0">
          <testsuite name="a" tests="2" failures="0" errors="1" skipped="1" time="0">
            <testcase classname="a" name="b" file="a/b.yaml" time="0">
              <error message="`seed` is -1" type="input">error: `seed` is -1
          --&gt; b.yaml:2:7 &lt;here&gt;</error>
            </testcase>
            <testcase classname="a" name="e" file="a/e.yaml" time="0">
              <skipped message="interrupted before it ran"/>
            </testcase>
          </testsuite>
          <testsuite name="c" tests="1" failures="0" errors="1" skipped="0" time="0">
            <testcase classname="c" name="d" file="c/d.yaml" time="0">
              <error message="no driver" type="device">no driver</error>
            </testcase>
          </testsuite>
        </testsuites>
        "#);
    }
}
