//! `bench`: a load in real time, on the engine of this process or on a server, measured as the simulator measures.

mod drive;
mod fold;
mod load;
mod local;
pub mod options;
mod remote;

pub use drive::{Driven, Ending};

use crate::{
    args::Format,
    commands::{
        serve::{dead, options::ModelArgs, record::Log},
        watch::{
            self,
            client::{Client, Place},
        },
    },
    exit::{self, Failure},
    interrupt::Interrupt,
    output::Output,
    render,
};
use drive::drive;
use fold::Fold;
use load::Load;
use local::Local;
use options::BenchArgs;
use plimsoll_core::{
    engine::metrics::{Metrics, MetricsReport, Slo},
    sched::EosRule,
    units::Nanos,
};
use plimsoll_replay::wire::Closing;
use plimsoll_server::{
    engine::Totals,
    start::{Life, Running, plan},
};
use remote::Remote;
use std::future::Future;
use tokio::runtime::Builder;

/// What an engine of this process counted itself.
pub struct EngineSide {
    /// How weights, keys and values are kept.
    pub precision: String,
    /// Token slots of its pool.
    pub pool_tokens: u64,
    /// Its own metrics, from its own clock.
    pub metrics: MetricsReport,
    /// Its sums.
    pub totals: Totals,
}

impl EngineSide {
    /// Time of the loop between passes, in millionths of the time in passes; `None` without a pass.
    pub fn scheduler_ppm(&self) -> Option<u64> {
        let (outside, inside) = (u128::from(self.totals.loop_ns), u128::from(self.totals.step_ns));
        (inside > 0).then(|| u64::try_from((outside * 1_000_000 + inside / 2) / inside).ok())?
    }
}

/// A load that was sent.
pub struct Bench {
    /// Where to: `in process`, or host and port.
    pub place: String,
    /// The model's name there.
    pub model: String,
    /// What was sent.
    pub workload: String,
    /// Seed of what was drawn.
    pub seed: u64,
    /// Requests of the whole load.
    pub requests: u64,
    /// What the client measured.
    pub driven: Driven,
    /// What the engine counted, where it ran here.
    pub engine: Option<EngineSide>,
    /// What else is to be known.
    pub notes: Vec<String>,
}

impl Bench {
    /// One word for how it ended.
    pub fn verdict(&self) -> &'static str {
        match &self.driven.ending {
            Ending::Lost(_) => "lost",
            Ending::Interrupted => "interrupted",
            Ending::Whole if self.driven.failures.is_empty() => "completed",
            Ending::Whole => "failed",
        }
    }

    fn code(&self) -> u8 {
        match self.verdict() {
            "lost" => exit::NO_DEVICE,
            "interrupted" => exit::INTERRUPTED,
            "failed" => exit::FAILED,
            _ => exit::OK,
        }
    }
}

/// Sends the load and says what was measured.
pub fn bench(args: &BenchArgs, format: Format, output: &Output) -> Result<u8, Failure> {
    if args.base_url.is_none() && (args.model_name.is_some() || args.api_key_env.is_some()) {
        return Err(Failure::input(
            "--model-name and --api-key-env are for a server: --base-url URL",
        ));
    }
    let mut load = Load::of(args)?;
    load.notes.iter().for_each(|note| output.note(note));
    let interrupt = Interrupt::listen(output);
    let stop = || interrupt.is_asked();
    let (bench, kept) = match (&args.base_url, &args.model) {
        (Some(url), _) => (online(args, url, &mut load, &stop)?, true),
        (None, Some(model)) => in_process(args, model, &mut load, &stop, output)?,
        (None, None) => return Err(Failure::input("give --model-path PATH or --base-url URL")),
    };
    output.write(&match format {
        Format::Human | Format::Sarif => render::bench::human(&bench, output),
        Format::Json => format!("{:#}\n", render::bench::machine(&bench)),
        Format::Jsonl => format!("{}\n", render::bench::machine(&bench)),
        Format::Csv | Format::Md => render::bench::table(&bench, format),
    })?;
    match &bench.driven.ending {
        Ending::Lost(why) => output.note(&format!("error: {}: {why}", bench.place)),
        Ending::Interrupted => output.note("interrupted"),
        Ending::Whole => {}
    }
    Ok(if kept { bench.code() } else { bench.code().max(exit::FAILED) })
}

const fn eos(args: &BenchArgs) -> EosRule {
    if args.disable_ignore_eos { EosRule::Ends } else { EosRule::Ignored }
}

/// Runs what waits on this thread. Tasks that it leaves behind are gone afterwards.
fn block_on<T>(future: impl Future<Output = T>) -> Result<T, Failure> {
    let runtime = Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(|error| Failure::input(format!("no timer: {error}")))?;
    Ok(runtime.block_on(future))
}

/// The load on an engine of this process; and whether its recording is whole.
fn in_process(
    args: &BenchArgs,
    model: &ModelArgs,
    load: &mut Load,
    stop: &dyn Fn() -> bool,
    output: &Output,
) -> Result<(Bench, bool), Failure> {
    let planned = plan(model.ask()?).map_err(Failure::input)?;
    let log = Log::begin(args.record.as_deref(), &planned)?;
    let metrics = Metrics::new(planned.settings.page_size, Slo::default());
    let running = planned.start(log, metrics).map_err(Failure::no_device)?;
    if !running.wait_ready() {
        let (result, log, _) = over(running)?;
        log.end(Closing::Interrupted, output);
        return Err(result
            .err()
            .map_or_else(|| Failure::no_device("the engine ended before it was ready"), dead));
    }
    let info = running.engine.info().clone();
    let fold = Fold::of_tokenizer(&running.tokenizer);
    let mut target = Local { engine: running.engine.clone(), fold, eos: eos(args) };
    let mut driven = block_on(drive(&mut load.clients, &mut target, stop))?;
    drop(target);
    let (result, log, metrics) = over(running)?;
    let whole = result.is_ok() && driven.ending == Ending::Whole;
    let kept = log.end(if whole { Closing::Complete } else { Closing::Interrupted }, output);
    let totals = match result {
        Ok(totals) => totals,
        Err(error) => {
            driven.ending = Ending::Lost(error.to_string());
            Totals::default()
        }
    };
    let engine = EngineSide {
        precision: info.precision,
        pool_tokens: info.max_total_num_tokens,
        metrics: metrics.report(Nanos(u64::MAX)),
        totals,
    };
    let place = "in process".to_owned();
    Ok((result_of(load, driven, (place, info.model), Some(engine)), kept))
}

fn over(running: Running<Log, Metrics>) -> Result<Life<Log, Metrics>, Failure> {
    running.end().ok_or_else(|| Failure::no_device("the engine's thread ended in a panic"))
}

/// The load on a server.
fn online(
    args: &BenchArgs,
    url: &str,
    load: &mut Load,
    stop: &dyn Fn() -> bool,
) -> Result<Bench, Failure> {
    let wrong = |what| Failure::input(format!("--base-url: {what}"));
    let place = Place::parse(url).map_err(wrong)?;
    let key = watch::key(args.api_key_env.as_deref(), None)?;
    let client = Client::new(&place, key.as_deref(), args.timeout)?;
    let model = match (remote::first_model(&client, &place.shown()), &args.model_name) {
        // For who knows the name, a server that is there is enough.
        (Err(failure), Some(name)) if failure.code != exit::NO_DEVICE => name.clone(),
        (listed, name) => {
            let first = listed?;
            name.clone().unwrap_or(first)
        }
    };
    let fold = Fold::of((args.token_ids.low..args.token_ids.high).collect());
    let mut target = Remote::new(client, model.clone(), fold, args.prompt_as, eos(args));
    let driven = block_on(drive(&mut load.clients, &mut target, stop))?;
    Ok(result_of(load, driven, (place.shown(), model), None))
}

fn result_of(
    load: &Load,
    driven: Driven,
    (place, model): (String, String),
    engine: Option<EngineSide>,
) -> Bench {
    let mut notes = Vec::new();
    if let (meant, Some(counted)) = driven.prompts
        && meant != counted
    {
        notes.push(format!(
            "the server counts {counted} tokens of prompts that are meant to have {meant}; input tokens and \
             throughput are as meant"
        ));
    }
    if engine.is_none() && driven.metrics.arrived > remote::MOST_STREAMS as u64 {
        notes.push(format!(
            "at most {} streams are open at once; requests that wait for one count their waiting",
            remote::MOST_STREAMS
        ));
    }
    Bench {
        place,
        model,
        workload: load.name.clone(),
        seed: load.seed,
        requests: load.total,
        driven,
        engine,
        notes,
    }
}
