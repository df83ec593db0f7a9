//! A diagnosis as SARIF 2.1.0: a result a finding, its lines as locations, the pages of `explain` as rules.

use super::{View, help, machine};
use plimsoll_diagnosis::{
    Evidence, Finding, Level,
    codes::{self, CODES},
    pages,
};
use serde_json::{Value, json};

/// The log file of a run.
pub fn sarif(view: &View<'_>) -> Value {
    let rules: Vec<Value> = CODES.iter().map(rule).collect();
    let findings = &view.report.findings;
    let results: Vec<Value> = findings.iter().map(|finding| result(view, finding)).collect();
    let artifacts: Vec<Value> =
        view.names.iter().map(|name| json!({ "location": { "uri": uri(name) } })).collect();
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "plimsoll",
                "version": env!("CARGO_PKG_VERSION"),
                "rules": rules,
            }},
            "artifacts": artifacts,
            "results": results,
        }],
    })
}

/// A code with its page as help.
fn rule(code: &codes::Code) -> Value {
    let page = pages::find(code.code);
    let meaning = page.map_or(code.title, |page| page.meaning());
    let text = page.map_or(code.title, |page| page.text);
    json!({
        "id": code.code,
        "shortDescription": { "text": code.title },
        "fullDescription": { "text": meaning },
        "help": { "text": text, "markdown": text },
        "properties": { "cause": code.cause.name() },
    })
}

fn result(view: &View<'_>, finding: &Finding) -> Value {
    // What is well is no failure, and a result without failure has no level.
    let (kind, level) = match finding.level {
        _ if finding.code == "healthy" => ("pass", "none"),
        Level::Note => ("fail", "note"),
        Level::Warning => ("fail", "warning"),
        Level::Error => ("fail", "error"),
    };
    let index = CODES.iter().position(|code| code.code == finding.code);
    let lines: Vec<&Evidence> = finding.evidence.iter().filter(|line| line.line > 0).collect();
    let (last, others) = match lines.split_last() {
        Some((last, others)) => (vec![location(view, last)], others),
        None => (Vec::new(), &[][..]),
    };
    let related: Vec<Value> = others.iter().map(|line| location(view, line)).collect();
    json!({
        "ruleId": finding.code,
        "ruleIndex": index,
        "kind": kind,
        "level": level,
        "message": { "text": message(finding) },
        "locations": last,
        "relatedLocations": related,
        "properties": machine::finding(finding),
    })
}

/// The headline, and what to set.
fn message(finding: &Finding) -> String {
    let help = finding.help.first().map_or_else(String::new, |lever| {
        format!(". Help: {}{}", help::change(lever), help::gives(lever))
    });
    format!("{}{help}", finding.headline)
}

fn location(view: &View<'_>, line: &Evidence) -> Value {
    let name = view.names.get(usize::from(line.file)).map_or("log", String::as_str);
    json!({ "physicalLocation": {
        "artifactLocation": { "uri": uri(name), "index": line.file },
        "region": { "startLine": line.line, "snippet": { "text": line.text } },
    }})
}

/// A path as a URI reference: whatever is not plain is escaped.
fn uri(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte);
    path.bytes()
        .map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_become_references() {
        assert_eq!(super::uri("logs/run 1.log"), "logs/run%201.log");
        assert_eq!(super::uri("<stdin>"), "%3Cstdin%3E");
    }
}
