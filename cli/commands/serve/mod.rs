//! `serve`: a model over HTTP, on memory that is planned before the first request.

mod device;
mod ledger;
pub mod options;
pub mod record;

use crate::{
    args::Format,
    exit::{self, Failure},
    output::Output,
};
use options::ServeArgs;
use plimsoll_core::{engine::serving::Unwatched, units::group_thousands};
use plimsoll_replay::wire::Closing;
use plimsoll_server::{
    engine::Totals,
    http::{ApiKey, Drained, Front, FrontOptions},
    listen,
    start::{Life, LifeError, plan},
};
use record::Log;
use std::net::TcpListener;

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
    let log = Log::begin(args.record.as_deref(), &planned)?;
    let running = planned.start(log, Unwatched).map_err(Failure::no_device)?;
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
    ended(life, drained, output)
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

/// Says what was done, and closes the recording.
fn ended(
    (result, log, _): Life<Log, Unwatched>,
    drained: Drained,
    output: &Output,
) -> Result<u8, Failure> {
    let whole = result.is_ok() && drained == Drained::All;
    let closing = if whole { Closing::Complete } else { Closing::Interrupted };
    let kept = log.end(closing, output);
    if let Drained::Cut { open } = drained {
        output.note(&format!("ended before {open} requests were answered"));
    }
    match result {
        Ok(totals) => {
            output.note(&summary(&totals));
            Ok(if kept { exit::OK } else { exit::FAILED })
        }
        Err(error) => Err(dead(error)),
    }
}

/// An engine that ended before its time: files that are wrong or a machine that does not hold what was planned, or
/// one that died.
pub fn dead(error: LifeError) -> Failure {
    if error.is_of_input() { Failure::input(error) } else { Failure::no_device(error) }
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
