//! `serve`: a model over HTTP, on memory that is planned before the first request.

mod ledger;
pub mod options;

use crate::{
    args::Format,
    exit::{self, Failure},
    output::Output,
};
use options::ServeArgs;
use plimsoll_core::{
    decision::{DecisionSink, Record},
    engine::serving::Unwatched,
    policy::plimsoll::PlanRow,
    units::group_thousands,
};
use plimsoll_replay::{
    live::{self, PlannedRow, Recorder},
    record::FieldValue,
    wire::Closing,
};
use plimsoll_server::{
    engine::Totals,
    http::{ApiKey, Drained, Front, FrontOptions},
    listen,
    start::{Life, Planned, plan},
};
use std::{fs::File, net::TcpListener, path::Path};

/// A recording, where one is asked for.
struct Log(Option<Recorder<File>>);

impl DecisionSink for Log {
    fn record(&mut self, record: Record) {
        if let Some(recorder) = &mut self.0 {
            recorder.record(record);
        }
    }
}

/// Plans, loads, proves, serves until it is told to stop, and says what was done.
pub fn serve(args: &ServeArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    let planned = plan(args.model.ask()?).map_err(|error| Failure::input(error.to_string()))?;
    let text = match format {
        Format::Json => format!("{:#}\n", ledger::machine(&planned)),
        Format::Jsonl => format!("{}\n", ledger::machine(&planned)),
        Format::Human | Format::Csv | Format::Md | Format::Sarif => ledger::human(&planned),
    };
    output.write(&text)?;
    if args.plan_only {
        return Ok(exit::OK);
    }
    if output.host().is_some() {
        return Err(Failure::input("serve runs in a process of its own: plimsoll serve …"));
    }
    let (host, port) = (args.host, args.port);
    let listener = TcpListener::bind((host, port)).map_err(|error| {
        Failure::input(format!(
            "cannot listen on {host}:{port}: {error}; --port takes another, 0 any"
        ))
    })?;
    let log = log(args, &planned)?;
    let lend = planned.pressure();
    let running =
        planned.start(lend, log, Unwatched).map_err(|error| Failure::input(error.to_string()))?;
    let address =
        listener.local_addr().map_or_else(|_| format!("{host}:{port}"), |a| a.to_string());
    let front = Front {
        engine: running.engine.clone(),
        tokenizer: running.tokenizer.clone(),
        template: running.template.clone(),
        options: front_options(args),
    };
    let told = |ready: bool| {
        if ready {
            output.note(&format!(
                "ready: http://{address}/v1, model {}",
                running.engine.info().model
            ));
        }
    };
    let drained = listen::listen(listener, front, &running, &told)
        .map_err(|error| Failure::input(format!("cannot serve on {address}: {error}")))?;
    let life = running.end().ok_or_else(|| Failure::no_device("the engine's thread panicked"))?;
    ended(life, drained, args.record.as_deref(), output)
}

fn front_options(args: &ServeArgs) -> FrontOptions {
    FrontOptions {
        api_key: args.api_key.clone().map(ApiKey),
        max_body_bytes: args.max_body.0,
        max_streams: args.max_streams,
        max_connections: args.max_streams.saturating_add(64),
        random_seed: args.random_seed.unwrap_or_else(drawn),
        drain_timeout: args.drain_timeout,
        ..FrontOptions::default()
    }
}

/// A seed that differs from start to start.
fn drawn() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _};
    std::hash::RandomState::new().build_hasher().finish()
}

fn log(args: &ServeArgs, planned: &Planned) -> Result<Log, Failure> {
    let Some(path) = &args.record else { return Ok(Log(None)) };
    let wrong = |error: &dyn std::fmt::Display| {
        Failure::input(format!("cannot write {}: {error}", path.display()))
    };
    let file = File::create(path).map_err(|error| wrong(&error))?;
    let about = [
        ("version", FieldValue::from(env!("CARGO_PKG_VERSION").to_owned())),
        ("backend", FieldValue::from("host".to_owned())),
        ("model", FieldValue::from(planned.name().to_owned())),
    ];
    let mut recorder = Recorder::new(file, &live::header(&about)).map_err(|error| wrong(&error))?;
    let row = |row: &PlanRow| PlannedRow {
        account: row.part.account().name().to_owned(),
        bytes: row.bytes,
    };
    let rows: Vec<PlannedRow> = planned.memory.plan.rows.iter().map(row).collect();
    live::begin(&planned.settings, &rows, &mut recorder);
    Ok(Log(Some(recorder)))
}

/// Says what was done, and closes the recording.
fn ended(
    (result, log, _): Life<Log, Unwatched>,
    drained: Drained,
    record: Option<&Path>,
    output: &Output,
) -> Result<u8, Failure> {
    let mut code = exit::OK;
    if let (Some(recorder), Some(path)) = (log.0, record) {
        let whole = result.is_ok() && drained == Drained::All;
        let closing = if whole { Closing::Complete } else { Closing::Interrupted };
        match recorder.finish(closing) {
            Ok(_) => output.note(&format!("recorded: plimsoll replay {}", path.display())),
            Err(error) => {
                output.note(&format!("the recording {} is cut off: {error}", path.display()));
                code = exit::FAILED;
            }
        }
    }
    if let Drained::Cut { open } = drained {
        output.note(&format!("ended before {open} requests were answered"));
    }
    match result {
        Ok(totals) => {
            output.note(&summary(&totals));
            Ok(code)
        }
        Err(error) => Err(Failure::no_device(error.to_string())),
    }
}

fn summary(totals: &Totals) -> String {
    let n = group_thousands;
    format!(
        "drained: {} requests answered, {} given up, {} refused; {} prompt tokens ({} from the prefix cache), \
         {} made; {} retractions",
        n(totals.finished),
        n(totals.aborted),
        n(totals.refused),
        n(totals.prompt_tokens),
        n(totals.cached_tokens),
        n(totals.generation_tokens),
        n(totals.retracted)
    )
}
