//! Results of `run`.

use super::{figures, json, ledger, life, metrics, text::wrap};
use crate::{
    args::{RunArgs, ViewArgs},
    commands::views,
    exit::Failure,
    output::{Output, Tone},
};
use plimsoll_core::{
    engine::{
        serving::ServeEnd,
        startup::{Refused, Remedy, StartEnd},
    },
    estimate::Engine,
    memory::ledger::Account,
    units::Tokens,
};
use plimsoll_replay::{
    ledger_at::{Moment, ledger_at},
    outcome::{Claim, Figure},
    record::Record,
    run::ScenarioRun,
    serve::ServedRun,
    start::CaseLaunch,
    verdict::{Verdict, verdict},
};
use serde_json::{Map, Value, json};
use std::fmt::Write as _;

/// The word that says it all.
pub fn word(run: &ScenarioRun) -> &'static str {
    match (run.passed(), run.claims.is_empty()) {
        (true, false) => "holds",
        (true, true) => "ok",
        (false, _) => "FAILS",
    }
}

/// The first line of a result: the word that says it all, and the scenario.
fn headline(run: &ScenarioRun, output: &Output) -> String {
    let tone = if run.passed() { Tone::Good } else { Tone::Bad };
    format!("{}  {}  {}", output.paint(tone, word(run)), run.scenario.name, ending(run))
}

/// How the run ended, in one sentence.
pub fn ending(run: &ScenarioRun) -> String {
    verdict(run).map_or_else(|| start_ending(run), |verdict| verdict.what)
}

/// How the start ended, in one sentence.
pub fn start_ending(run: &ScenarioRun) -> String {
    match &run.ran.start.end {
        StartEnd::Ready => {
            let tokens = ["max_total_num_tokens", "kv_cache_tokens"];
            let tokens = tokens.iter().find_map(|name| run.ran.start.figure(name));
            let tokens = tokens.map_or_else(String::new, |f| figures::value(&f.value));
            let left = run.ran.start.reading("after_graphs").map(|free| free.least());
            let left = left.map_or_else(String::new, |bytes| {
                format!(", {:.2} GiB left after graphs", bytes.as_gib_f64())
            });
            format!("started with {tokens} tokens{left}")
        }
        StartEnd::Refused(refused) => format!("refused ({}): {}", refused.code, refused.message),
        StartEnd::OutOfMemory(error) => {
            let doing = run.ran.start.died.map_or("", |doing| doing.words());
            format!("the start dies {doing}: {error}")
        }
    }
}

/// One line.
pub fn brief(run: &ScenarioRun, output: &Output) -> String {
    headline(run, output) + "\n"
}

/// One result for people; `views` is what was asked for beside it.
pub fn human(run: &ScenarioRun, args: &RunArgs, views: &str, output: &Output) -> String {
    let mut out = headline(run, output);
    let _ = writeln!(out);
    let verdict = verdict(run);
    if let Some(verdict) = &verdict {
        out.push_str(&life_lines(run, verdict, output));
    }
    for claim in &run.claims {
        let _ = writeln!(out, "{}", claim_line(claim, output));
    }
    match &run.ran.start.end {
        StartEnd::Refused(refused) => out.push_str(&ways_out(refused, output)),
        StartEnd::OutOfMemory(_) => out.push_str(&start_remedies(run, output)),
        StartEnd::Ready => {}
    }
    if let Some(line) = too_little_left(run).filter(|_| verdict.is_none()) {
        let _ = writeln!(out, "  {} {line}", output.paint(Tone::Close, "low  "));
    }
    out.push_str(&metrics::human(run, output));
    out.push_str(&last_records(run));
    out.push_str(views);
    if (!run.passed() && args.views.at.is_none()) || args.why {
        match ledger_at(&run.log, Moment::Crash).ok().filter(|_| verdict.is_some()) {
            Some(at) if !args.why => out.push_str(&life::accounts(&at)),
            _ => out.push_str(&ledger::table(&run.ran.ledger, &beside(run)).human()),
        }
    }
    if args.why {
        out.push_str(&figures::derivations(run.ran.start.figures()));
        if let Some(served) = &run.served {
            out.push_str(&figures::derivations(served.time.iter()));
        }
    }
    for note in notes(run) {
        let _ = writeln!(out, "{}", wrap(&format!("  note: {note}"), output.width(), 8));
    }
    let digests = &run.digests;
    let seed = run.scenario.seed;
    let line = format!(
        "  digest decisions {} full {}  seed {seed}",
        short(&digests.decisions),
        short(&digests.full)
    );
    let _ = writeln!(out, "{}", output.paint(Tone::Dim, &line));
    out
}

/// Records that are shown of a run that does not end by itself.
const LAST_RECORDS: usize = 6;

/// The last records of a run that hangs, or that its limits ended: what it was doing.
fn last_records(run: &ScenarioRun) -> String {
    let endless = |served: &ServedRun| {
        matches!(served.served.end, ServeEnd::Hung | ServeEnd::Limit(_) | ServeEnd::Interrupted)
    };
    if !run.served.as_ref().is_some_and(endless) {
        return String::new();
    }
    let mut out = "  last records\n".to_owned();
    let of_the_server = |record: &&Record| record.kind != "metrics";
    let records: Vec<&Record> = run.log.records.iter().filter(of_the_server).collect();
    for record in &records[records.len().saturating_sub(LAST_RECORDS)..] {
        let _ = writeln!(out, "    {}", record.line());
    }
    out
}

/// What of the launch the run did not execute.
fn notes(run: &ScenarioRun) -> &[String] {
    run.served.as_ref().map_or(&[], |served| &served.notes)
}

/// The number that was too small, the state of the server, the ways out.
fn life_lines(run: &ScenarioRun, verdict: &Verdict, output: &Output) -> String {
    let mut out = String::new();
    let mut line = |name: &str, text: &str| {
        let _ = writeln!(out, "{}", wrap(&format!("  {name} {text}"), output.width(), 8));
    };
    if let Some(short) = &verdict.short {
        line(&output.paint(Tone::Bad, "short"), short);
    }
    if let Some(chunk) = &verdict.chunk {
        line("chunk", chunk);
    }
    let start = start_ending(run);
    line("start", start.strip_prefix("started ").unwrap_or(&start));
    if let Some(state) = &verdict.state {
        line("pool ", state);
    }
    if let Some(blind) = &verdict.blind {
        line("blind", &format!("without the calibrated readings: {blind}"));
    }
    for way in &verdict.ways {
        line(&output.paint(Tone::Change, "help:"), way);
    }
    out
}

/// A start that is ready and has less left than its heaviest known step needs.
fn too_little_left(run: &ScenarioRun) -> Option<String> {
    let left = run.ran.start.reading("after_graphs")?.least();
    let (step, need) = run.ran.basis.need.as_ref()?;
    if run.ran.start.end != StartEnd::Ready || need.value.mid <= left {
        return None;
    }
    let (left, need) = (left.as_gib_f64(), need.value.mid.as_gib_f64());
    Some(format!("{left:.2} GiB left after graphs; {step} needs {need:.2} GiB"))
}

fn short(digest: &str) -> &str {
    digest.get(..16).unwrap_or(digest)
}

fn claim_line(claim: &Claim, output: &Output) -> String {
    let path = claim.path.to_string();
    let path = path.strip_prefix("expect.").unwrap_or(&path);
    if claim.holds() {
        format!("  {} {path}: {}", output.paint(Tone::Good, "ok   "), claim.got)
    } else {
        let word = output.paint(Tone::Bad, "FAILS");
        format!("  {word} {path}: expected {}, got {}", claim.expected, claim.got)
    }
}

/// The engine's words and what to change.
pub fn ways_out(refused: &Refused, output: &Output) -> String {
    let mut out = String::new();
    if let Some(message) = &refused.engine_message {
        let line = format!("  the engine prints: {message}");
        let _ = writeln!(out, "{}", wrap(&line, output.width(), 4));
    }
    out + &remedies(&refused.remedies, output)
}

/// Ways out of a start that found no memory, by the phase in which it died.
fn start_remedies(run: &ScenarioRun, output: &Output) -> String {
    let engine = match &run.assembled.case.launch {
        CaseLaunch::Sglang(_) => Engine::Sglang,
        CaseLaunch::Vllm(_) => Engine::Vllm,
    };
    let died = run.ran.start.died;
    died.map_or_else(String::new, |phase| remedies(&phase.remedies(engine), output))
}

fn remedies(list: &[Remedy], output: &Output) -> String {
    let mut out = String::new();
    for remedy in list {
        let value = remedy.value.as_deref().map_or_else(String::new, |v| format!(" to {v}"));
        let change = match remedy.direction {
            "act" => remedy.flag.clone(),
            direction => format!("{direction} {}{value}", remedy.flag),
        };
        let line = format!("  help: {}: {}", output.paint(Tone::Change, &change), remedy.effect);
        let _ = writeln!(out, "{}", wrap(&line, output.width(), 8));
    }
    out
}

/// Tokens beside the pool.
fn beside(run: &ScenarioRun) -> Vec<ledger::Beside> {
    let count = |name: &str| match run.ran.start.figure(name).map(|f| &f.value) {
        Some(plimsoll_core::figure::FigureValue::Count(n)) => Some(Tokens(*n)),
        _ => None,
    };
    let pool = count("max_total_num_tokens").or_else(|| count("kv_cache_tokens"));
    pool.map(|tokens| ledger::Beside { account: Account::KvPool, tokens }).into_iter().collect()
}

/// One result for machines.
///
/// # Errors
///
/// A moment that the run does not have.
pub fn machine(run: &ScenarioRun, asked: &ViewArgs) -> Result<Value, Failure> {
    let claims: Vec<Value> = run
        .claims
        .iter()
        .map(|claim| {
            json!({
                "path": claim.path.to_string(),
                "expected": claim.expected,
                "got": claim.got,
                "holds": claim.holds(),
            })
        })
        .collect();
    let refusal = match &run.ran.start.end {
        StartEnd::Refused(refused) => json::refusal(refused),
        StartEnd::Ready | StartEnd::OutOfMemory(_) => Value::Null,
    };
    let verdict = verdict(run).unwrap_or_default();
    Ok(json!({
        "schema": "plimsoll.run/1",
        "scenario": run.scenario.name,
        "seed": run.scenario.seed,
        "passed": run.passed(),
        "outcome": run.outcome.ending.as_str(),
        "headline": ending(run),
        "short": verdict.short,
        "help": verdict.ways,
        "refusal": refusal,
        "claims": claims,
        "figures": json::figures(run.ran.start.figures()),
        "measures": measures(run),
        "metrics": metrics::machine(run),
        "ledger": json::ledger(&run.ran.ledger),
        "moment": views::moment(&run.log, asked)?,
        "timeline": views::timeline(&run.log, asked),
        "notes": notes(run),
        "digests": { "decisions": run.digests.decisions, "full": run.digests.full },
    }))
}

/// What the run produced, by the names that scenarios claim; amounts and times have their unit last.
fn measures(run: &ScenarioRun) -> Value {
    let measure = |(name, figure): (&str, &Figure)| match figure {
        Figure::Bytes(bytes) => (format!("{name}_bytes"), json!(bytes)),
        Figure::Duration(time) => (format!("{name}_ns"), json!(time.0)),
        Figure::Count(count) => (name.to_owned(), json!(count)),
        Figure::Number(number) => (name.to_owned(), json!(number)),
        Figure::Text(text) => (name.to_owned(), json!(text)),
    };
    Value::Object(run.outcome.figures().map(measure).collect::<Map<_, _>>())
}

/// One row a scenario.
pub fn table(runs: &[ScenarioRun], format: crate::args::Format) -> String {
    use super::table::{Align, Table, csv_cell};
    let columns = [
        ("scenario", Align::Left),
        ("passed", Align::Left),
        ("outcome", Align::Left),
        ("pool_tokens", Align::Right),
        ("free_after_graphs_bytes", Align::Right),
        ("died_in", Align::Left),
        ("died_at_ns", Align::Right),
        ("least_free_bytes", Align::Right),
        ("peak_used_tokens", Align::Right),
        ("finished_requests", Align::Right),
        ("steps", Align::Right),
        ("throughput_output", Align::Right),
        ("ttft_p99_ns", Align::Right),
        ("tpot_p99_ns", Align::Right),
        ("goodput", Align::Right),
        ("decisions_digest", Align::Left),
    ];
    let mut table = Table::new(&columns);
    let mut csv = columns.map(|(name, _)| name).join(",") + "\n";
    for run in runs {
        let tokens = beside(run).first().map(|b| b.tokens.0.to_string()).unwrap_or_default();
        let left = run.ran.start.reading("after_graphs").map(|free| free.least().0.to_string());
        let cell = |name: &str| cell(run, name);
        let cells = vec![
            run.scenario.name.clone(),
            run.passed().to_string(),
            run.outcome.ending.as_str().to_owned(),
            tokens,
            left.unwrap_or_default(),
            cell("died_in"),
            cell("died_at"),
            cell("least_free"),
            cell("peak_used_tokens"),
            cell("finished_requests"),
            cell("steps"),
            cell("throughput_output"),
            cell("ttft_p99"),
            cell("tpot_p99"),
            cell("goodput"),
            run.digests.decisions.clone(),
        ];
        let line: Vec<String> = cells.iter().map(|cell| csv_cell(cell)).collect();
        let _ = writeln!(csv, "{}", line.join(","));
        table.row(cells);
    }
    match format {
        crate::args::Format::Md => table.markdown(),
        _ => csv,
    }
}

/// A measure as a cell: a bare number or text; empty when the run did not produce it.
fn cell(run: &ScenarioRun, name: &str) -> String {
    match run.outcome.get(name) {
        None => String::new(),
        Some(Figure::Bytes(bytes)) => bytes.to_string(),
        Some(Figure::Duration(time)) => time.0.to_string(),
        Some(Figure::Count(count)) => count.to_string(),
        Some(Figure::Number(number)) => number.to_string(),
        Some(Figure::Text(text)) => text,
    }
}
