//! The engine's thread: what comes from outside, turn after turn, until it is drained.

use std::{
    sync::{Arc, mpsc::RecvTimeoutError, mpsc::TryRecvError},
    time::{Duration, Instant},
};

use plimsoll_checkpoint::Tokenizer;
use plimsoll_core::{
    decision::{DecisionSink, Digest, Field},
    engine::{
        live::{Around, BodyError, Did, Live, LiveError, LiveSettings},
        serving::{Arrival, PassSeen, QuietRun, Sampling as Demand, SamplingChoice, Watcher},
    },
    sched::{Decision, Finish, Mode, NewRequest, RequestId, sglang::ConfigError},
    tape::own::{Draw, Outputs, Sequence},
    units::Nanos,
};

use super::{
    asked::Desk,
    body::ModelBody,
    handle::{Command, EngineEnd, Event, Events, Refusal, Submission},
    model::Model,
    status::{Phase, Totals},
};

/// How long an idle engine sleeps at most: memory of the machine is looked at again then.
const IDLE: Duration = Duration::from_millis(100);
/// Decode tokens are counted over this long for the throughput that is told.
const STRETCH: Duration = Duration::from_secs(1);

/// Says how many pages are to be lent to the rest of the machine.
pub trait Pressure: Send {
    /// How often it is asked while there is work.
    fn every(&self) -> Duration;

    /// Pages to lend from here on, of which `lent` are.
    fn target(&mut self, lent: u64) -> u64;
}

/// An engine that is loaded.
pub struct Loaded<M> {
    /// The model with its pool.
    pub model: M,
    /// Its tokenizer.
    pub tokenizer: Arc<Tokenizer>,
    /// Ids that end a text.
    pub eos: Vec<u32>,
    /// How its scheduler is set.
    pub settings: LiveSettings,
    /// Who watches the machine; `None`: the pool is kept.
    pub pressure: Option<Box<dyn Pressure>>,
}

/// Why an engine ended before it was drained.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum EngineError {
    /// The largest prefill or decode did not pass.
    #[error("the {what} that was to prove the plan failed: {error}")]
    Proof {
        /// Which.
        what: &'static str,
        /// Why.
        error: BodyError,
    },
    /// Settings that no scheduler can be made from.
    #[error(transparent)]
    Settings(#[from] ConfigError),
    /// The loop.
    #[error(transparent)]
    Live(#[from] LiveError),
}

/// Proves the plan and serves until [`Command::Drain`]: what happens goes to the tickets, to `sink` and to
/// `watcher`. The model comes back.
///
/// # Errors
///
/// [`EngineError`]; everybody who waits has heard of it.
pub fn run<M: Model>(
    end: &EngineEnd,
    loaded: &mut Loaded<M>,
    sink: &mut dyn DecisionSink,
    watcher: &mut dyn Watcher,
) -> Result<Totals, EngineError> {
    end.enter(Phase::Proving);
    let result = prove(&mut loaded.model, &loaded.settings).and_then(|()| {
        let mut live = Live::new(loaded.settings.config())?;
        end.enter(Phase::Ready);
        serve(end, loaded, &mut live, sink, watcher)
    });
    match &result {
        Ok(_) => end.enter(Phase::Stopped),
        Err(error) => end.enter(Phase::Failed(error.to_string())),
    }
    result
}

/// Runs the largest prefill and the largest decode that the scheduler may form.
fn prove(model: &mut dyn Model, settings: &LiveSettings) -> Result<(), EngineError> {
    let config = settings.config();
    let (page, chunk) = (config.page_size, config.chunked_prefill_size.unwrap_or(1));
    let slots = config.pool_tokens / page * page;
    let longest = chunk.min(slots).min(config.context_len);
    let pages: Vec<u32> = (0..longest.div_ceil(page) as u32).collect();
    let tokens = vec![0_u32; longest as usize];
    let prefill = Sequence { tokens: &tokens, table: &pages, before: 0, outputs: Outputs::Last };
    let draw = model.draws().then_some(Draw { temperature: 1.0, ..Draw::GREEDY });
    let mut step = |what, sequences: &[Sequence<'_>]| {
        let (mut rows, draws) = (0, vec![draw; sequences.len()]);
        match model.step(sequences, &draws, &mut |_| rows += 1) {
            Ok(()) if rows == sequences.len() => Ok(()),
            Ok(()) => {
                let error = BodyError::Failed(format!("it gave {rows} rows"));
                Err(EngineError::Proof { what, error })
            }
            Err(error) => Err(EngineError::Proof { what, error }),
        }
    };
    step("largest prefill", &[prefill])?;
    let requests = config.max_running_requests.min(slots / page);
    // Each has a page of its own for its new token, behind what the first one's prompt left there.
    let before = page.min(longest) as usize - 1;
    let tables: Vec<[u32; 1]> = (0..requests as u32).map(|page| [page]).collect();
    let decode =
        tables.iter().map(|table| Sequence { tokens: &[0], table, before, outputs: Outputs::Last });
    let decode: Vec<Sequence<'_>> = decode.collect();
    step("largest decode", &decode)
}

/// Hears what is decided, for those who asked and for the status.
struct Hears<'a> {
    desk: &'a Desk,
    totals: Totals,
    /// Decode tokens since the throughput was told last.
    decoded: u64,
    also: &'a mut dyn Watcher,
}

impl Watcher for Hears<'_> {
    fn arrived(&mut self, arrival: &Arrival) {
        self.totals.requests += 1;
        self.totals.prompt_tokens += arrival.request.prompt.len();
        self.also.arrived(arrival);
    }

    fn decided(&mut self, decision: &Decision, now: Nanos) {
        match decision {
            Decision::Admitted { request, prefix, .. } => {
                let cached = self.desk.admitted(*request, *prefix);
                self.totals.cached_tokens += cached.unwrap_or_default();
            }
            Decision::Retracted { .. } => self.totals.retracted += 1,
            Decision::Finished { request, finish, .. } => {
                match finish {
                    Finish::Abort => self.totals.aborted += 1,
                    Finish::Stop | Finish::Length => self.totals.finished += 1,
                }
                self.desk.finished(*request, *finish);
            }
            Decision::Refused { request, code } => {
                self.totals.refused += 1;
                let message = match *code {
                    "queue_full" => "too many requests wait",
                    "empty_prompt" => "the prompt is empty",
                    other => other,
                };
                let refusal = Refusal { code, message: message.to_owned() };
                self.desk.refused(*request, refusal);
            }
            _ => {}
        }
        self.also.decided(decision, now);
    }

    fn passed(&mut self, pass: &PassSeen<'_>) {
        let sampled = pass.batch.rows.iter().filter(|row| !row.more_follows).count() as u64;
        self.totals.generation_tokens += sampled;
        self.totals.step_ns = self.totals.step_ns.saturating_add(pass.elapsed.0);
        match pass.batch.mode {
            Mode::Decode => {
                self.totals.decode_steps += 1;
                self.decoded += sampled;
            }
            Mode::Prefill | Mode::Mixed => self.totals.prefill_steps += 1,
        }
        self.also.passed(pass);
    }

    fn repeated(&mut self, run: &QuietRun<'_>) {
        self.also.repeated(run);
    }
}

/// The thread's own state between two turns.
struct Thread<'a> {
    end: &'a EngineEnd,
    desk: &'a Desk,
    draining: bool,
    looked: Instant,
    told: Instant,
}

fn serve<M: Model>(
    end: &EngineEnd,
    loaded: &mut Loaded<M>,
    live: &mut Live,
    sink: &mut dyn DecisionSink,
    also: &mut dyn Watcher,
) -> Result<Totals, EngineError> {
    let Loaded { model, tokenizer, eos, pressure, .. } = loaded;
    let desk = Desk::new(Arc::clone(tokenizer), eos.clone());
    let mut body = ModelBody::new(model, &desk, live.config().page_size);
    let mut hears = Hears { desk: &desk, totals: Totals::default(), decoded: 0, also };
    let now = Instant::now();
    let mut thread = Thread { end, desk: &desk, draining: false, looked: now, told: now };
    let mut clock = LoopClock { mark: now, stepped: 0 };
    let result = loop {
        let mut around = Around { body: &mut body, sink, watcher: &mut hears };
        let idle = match thread.turn(live, pressure, &mut around) {
            Ok(did) => did == Did::Nothing,
            Err(error) => break Err(error),
        };
        clock.turned(&mut hears.totals, idle);
        thread.tell(live, &mut hears, idle);
        if idle && thread.draining && live.is_done() {
            break Ok(hears.totals);
        }
        if idle {
            live.close(sink);
            let mut around = Around { body: &mut body, sink, watcher: &mut hears };
            if let Err(error) = thread.wait(live, pressure, &mut around) {
                break Err(error);
            }
            clock.mark = Instant::now();
        }
    };
    live.close(sink);
    if let Err(error) = &result {
        desk.give_up(&error.to_string());
    }
    Ok(result?)
}

/// What the loop itself costs: its time outside passes while there is work.
struct LoopClock {
    /// Up to when it is counted.
    mark: Instant,
    /// Time in passes up to then, nanoseconds.
    stepped: u64,
}

impl LoopClock {
    /// A turn is over. One that found nothing to do is waiting and not work.
    fn turned(&mut self, totals: &mut Totals, idle: bool) {
        let now = Instant::now();
        let whole = now.duration_since(self.mark).as_nanos();
        let outside = whole.saturating_sub(u128::from(totals.step_ns - self.stepped));
        if !idle {
            let outside = u64::try_from(outside).unwrap_or(u64::MAX);
            totals.loop_ns = totals.loop_ns.saturating_add(outside);
        }
        (self.mark, self.stepped) = (now, totals.step_ns);
    }
}

impl Thread<'_> {
    /// Takes what has come, looks at the machine's memory, and turns once.
    fn turn(
        &mut self,
        live: &mut Live,
        pressure: &mut Option<Box<dyn Pressure>>,
        around: &mut Around<'_>,
    ) -> Result<Did, LiveError> {
        loop {
            match self.end.commands.try_recv() {
                Ok(command) => self.take(command, live, around),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => {
                    self.drain();
                    break;
                }
            }
        }
        self.look(live, pressure, around)?;
        live.turn(around)
    }

    /// Looks at the machine's memory, if it is time.
    fn look(
        &mut self,
        live: &mut Live,
        pressure: &mut Option<Box<dyn Pressure>>,
        around: &mut Around<'_>,
    ) -> Result<(), LiveError> {
        if let Some(pressure) = pressure
            && self.looked.elapsed() >= pressure.every()
        {
            self.looked = Instant::now();
            live.lend(pressure.target(live.lent_pages()), around)?;
        }
        Ok(())
    }

    /// Sleeps until something comes. Meanwhile it looks at the machine's memory; a turn is taken only when
    /// that changes anything.
    fn wait(
        &mut self,
        live: &mut Live,
        pressure: &mut Option<Box<dyn Pressure>>,
        around: &mut Around<'_>,
    ) -> Result<(), LiveError> {
        let lent = live.lent_pages();
        loop {
            match self.end.commands.recv_timeout(IDLE) {
                Ok(command) => self.take(command, live, around),
                Err(RecvTimeoutError::Timeout) => {
                    self.look(live, pressure, around)?;
                    if live.lent_pages() == lent && !self.draining {
                        continue;
                    }
                }
                Err(RecvTimeoutError::Disconnected) => self.drain(),
            }
            return Ok(());
        }
    }

    fn drain(&mut self) {
        if !self.draining {
            self.draining = true;
            self.end.enter(Phase::Draining);
        }
    }

    fn take(&mut self, command: Command, live: &mut Live, around: &mut Around<'_>) {
        match command {
            Command::Submit(id, submission, events) => {
                if let Err(refusal) = self.submit(id, *submission, &events, live, around) {
                    // Who does not listen any more need not hear it.
                    let _ = events.send(Event::Refused(refusal));
                }
            }
            Command::Abort(id) => live.abort(id, around),
            Command::Drain => self.drain(),
        }
    }

    fn submit(
        &self,
        id: RequestId,
        submission: Submission,
        events: &Events,
        live: &mut Live,
        around: &mut Around<'_>,
    ) -> Result<(), Refusal> {
        let refuse = |code, message| Err(Refusal { code, message });
        if self.draining {
            return refuse("draining", "the server takes no new requests".to_owned());
        }
        let (tokens, most) = (submission.prompt.len() as u64, live.longest_prompt());
        if tokens > most {
            let message = format!(
                "the prompt has {tokens} tokens; this server takes at most {most} (context length \
                 {}, pool {} tokens)",
                live.config().context_len,
                live.config().pool_tokens
            );
            return refuse("prompt_too_long", message);
        }
        if submission.prompt_logprobs.is_some() {
            let message = "logprobs of the prompt are not planned for".to_owned();
            return refuse("prompt_logprobs_off", message);
        }
        if let Err(error) = self.desk.take(id, &submission, events.clone()) {
            return refuse("bad_sampling", error.to_string());
        }
        let about = about(&submission);
        let arrival = arrival(id, submission, around.body.now());
        live.submit(arrival, about, around);
        Ok(())
    }

    fn tell(&mut self, live: &Live, hears: &mut Hears<'_>, idle: bool) {
        let over = self.told.elapsed();
        let throughput = (idle || over >= STRETCH).then(|| {
            let rate = hears.decoded as f64 / over.as_secs_f64().max(1e-9);
            (self.told, hears.decoded) = (Instant::now(), 0);
            if idle { 0.0 } else { rate }
        });
        let (usage, lent, page) = (live.usage(), live.lent_pages(), live.config().page_size);
        let totals = hears.totals;
        self.end.set(|status| {
            status.usage = usage;
            status.lent_tokens = lent * page;
            status.totals = totals;
            if let Some(rate) = throughput {
                status.gen_throughput = rate;
            }
        });
    }
}

fn arrival(id: RequestId, submission: Submission, at: Nanos) -> Arrival {
    let options = submission.sampling;
    let choice = match options {
        _ if options.temperature == 0.0 => SamplingChoice::Greedy,
        _ if options.min_p > 0.0 => SamplingChoice::MinP,
        _ if options.top_k > 0 || options.top_p < 1.0 => SamplingChoice::TopKTopP,
        _ => SamplingChoice::Temperature,
    };
    let sampling = Demand {
        choice,
        output_logprobs: options.logprobs.is_some(),
        penalties: options.presence_penalty != 0.0 || options.frequency_penalty != 0.0,
    };
    let request = NewRequest {
        id,
        prompt: submission.prompt.iter().map(|id| u64::from(*id)).collect(),
        max_new_tokens: submission.max_new_tokens,
        // What ends the answer is known when it is made.
        output_len: u64::MAX,
        eos: submission.eos,
        logprob_start: None,
        priority: submission.priority,
        namespace: submission.namespace,
    };
    Arrival { at, request, sampling }
}

/// How tokens are chosen, for who reads the log.
fn about(submission: &Submission) -> Vec<Field> {
    let options = submission.sampling;
    let number =
        |name, value: f32| Field { name, value: f64::from(value).into(), digest: Digest::Full };
    vec![
        number("temperature", options.temperature),
        number("top_p", options.top_p),
        number("min_p", options.min_p),
        Field { name: "top_k", value: u64::from(options.top_k).into(), digest: Digest::Full },
        Field { name: "seed", value: options.seed.into(), digest: Digest::Full },
    ]
}
