//! From a log to scenario files: one that dies as the log did, and one with the way out.
//!
//! What the log prints goes in as printed, with its line; what it rounds is solved from what it prints whole.
//! Both files are run before anything is claimed of them.

mod death;
mod draft;
mod expect;
mod fix;
mod load;
mod machine;
mod readings;
mod refusal;
mod server;
mod settings;
mod shared;
mod solve;
mod trial;

use crate::logged::Logged;
use crate::{Case, Finding, Phase};
use death::{Death, How};
use draft::Draft;
use plimsoll_core::{policy::sglang::version::Version, units::Bytes};
use plimsoll_replay::assemble::Places;
use server::Known;
use std::{fmt, path::Path};
use trial::Trial;

/// What the user adds to the log and to [`crate::Asked`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Ask<'a> {
    /// The launch command as typed; it wins over one in the log.
    pub command: Option<&'a str>,
    /// The release; it wins over the one in the log.
    pub version: Option<Version>,
}

/// All that the user says, in one place.
#[derive(Clone, Copy, Debug)]
struct Given<'a> {
    command: Option<&'a str>,
    version: Option<Version>,
    model: Option<&'a str>,
    device: Option<&'a str>,
    places: &'a Places,
}

/// A file to write.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct File {
    /// Its name, without a folder: `crash.yaml`, `fixed.yaml`.
    pub name: &'static str,
    /// Its text.
    pub text: String,
    /// What its run showed, in a sentence.
    pub shows: String,
    /// What of the log its run does not show, a line each; empty for a file that is claimed.
    pub differs: Vec<String>,
}

/// The files of a log.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Emitted {
    /// The start or the life that the log shows.
    pub crash: File,
    /// The same with one change, which lives; else why there is none.
    pub fixed: Result<File, String>,
}

/// What must be known and is not.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Missing {
    /// Each with the flag that gives it.
    pub facts: Vec<MissingFact>,
}

/// One of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MissingFact {
    /// What, in words.
    pub what: String,
    /// The flag that gives it; empty where no flag does.
    pub give: &'static str,
    /// Why it is not known.
    pub why: String,
}

impl Missing {
    fn one(what: &str, give: &'static str, why: String) -> Self {
        Self { facts: vec![MissingFact { what: what.to_owned(), give, why }] }
    }

    fn server() -> Self {
        let why = "only SGLang and vLLM are modelled; this log is another server's";
        Self::one("a server that can be simulated", "", why.to_owned())
    }

    fn run(why: String) -> Self {
        Self::one("figures that make a start", "", why)
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, fact) in self.facts.iter().enumerate() {
            let gap = if at > 0 { "\n" } else { "" };
            write!(f, "{gap}missing: {}", fact.what)?;
            if !fact.give.is_empty() {
                write!(f, " (give {})", fact.give)?;
            }
            write!(f, ": {}", fact.why)?;
        }
        Ok(())
    }
}

impl std::error::Error for Missing {}

/// Writes the scenario files of a log; relative paths in them start at the base of the case's places. `findings` are those of the case, the first being the answer: its phase
/// tells where memory was refused, its levers are tried first.
///
/// # Errors
///
/// [`Missing`]: every fact that is needed and that neither the log nor the user gives.
pub fn emit(case: &Case, findings: &[Finding], ask: &Ask<'_>) -> Result<Emitted, Missing> {
    let given = &Given {
        command: ask.command,
        version: ask.version,
        model: case.asked.model.as_deref(),
        device: case.asked.device.as_deref(),
        places: &case.asked.places,
    };
    let base = given.places.base.as_path();
    let first = findings.first();
    let death = Death::of(case, first);
    let known = server::launch_of(case, given)?;
    if let Some(why) = death.not_simulated(case, first) {
        return Err(Missing::one("an end that can be simulated", "", why));
    }
    let logged = Logged::of(case, known.tp(), death.rank());
    let mut draft = base_of(case, given, (&known, &logged), &death)?;
    draft.why = why(&death, first);
    readings::put(&mut draft, &known, &logged, &death);
    let parts = Parts { case, known: &known, logged: &logged, death: &death, base };
    parts.solve(&mut draft).map_err(Missing::run)?;
    draft.expect = expect::crash(&known, &logged, &death);
    let trial = Trial::of(&draft, base).map_err(Missing::run)?;
    if let How::OutOfMemory { shortage, .. } = death.how
        && !draft.workload.is_empty()
    {
        expect::block(&mut draft, &trial, shortage, &death.place());
    }
    draft.differs = trial.failures();
    if let How::OutOfMemory { phase, .. } = death.how {
        draft.differs.extend(trial.other_phase(phase));
    }
    let shows = shows(&trial);
    let crash =
        File { name: "crash.yaml", text: draft.text(), shows, differs: draft.differs.clone() };
    let fixed = fixed(&draft, first, &trial, &death, base);
    Ok(Emitted { crash, fixed })
}

/// The file before its figures; all that is missing of machine and model is said together.
fn base_of(
    case: &Case,
    given: &Given<'_>,
    (known, logged): (&Known, &Logged),
    death: &Death,
) -> Result<Draft, Missing> {
    let device = machine::device(case, given, logged, death);
    match (device, server::model(known, given, death)) {
        (Ok(device), Ok(model)) => Ok(server::draft(known, device, model)),
        (Err(mut device), Err(model)) => {
            device.facts.extend(model.facts);
            Err(device)
        }
        (Err(missing), Ok(_)) | (Ok(_), Err(missing)) => Err(missing),
    }
}

/// All that a draft is completed from.
struct Parts<'a> {
    case: &'a Case,
    known: &'a Known,
    logged: &'a Logged,
    death: &'a Death,
    base: &'a Path,
}

impl Parts<'_> {
    fn solve(&self, draft: &mut Draft) -> Result<(), String> {
        let Self { case, known, logged, death, base } = *self;
        settings::put(draft, case, known, logged, death, base);
        refusal::complete(draft, death, base)?;
        solve::pool(draft, known, logged, base)?;
        if !known.mlx() {
            solve::remainder(draft, logged, base)?;
        }
        let How::OutOfMemory { phase, shortage } = death.how else {
            return match death.how {
                How::Nothing => solve::left(draft, logged, base),
                _ => Ok(()),
            };
        };
        match phase {
            Phase::Capture => solve::capture(draft, shortage, &death.place(), base),
            Phase::Load => solve::load_peak(draft, shortage, &death.place(), base),
            Phase::Prefill | Phase::Decode | Phase::Unknown if known.mlx() => {
                shared::put(draft, case, base)
            }
            Phase::Prefill | Phase::Decode | Phase::Unknown => {
                solve::left(draft, logged, base)?;
                load::put(draft, case, logged, (phase, shortage), base)?;
                if draft.workload.is_empty() && phase == Phase::Unknown {
                    // No pass does it, so the start did.
                    solve::capture(draft, shortage, &death.place(), base)?;
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn why(death: &Death, first: Option<&Finding>) -> String {
    let place = death.place();
    let what = match &death.how {
        How::WeightsTooLarge { .. } => {
            format!("The start is refused at {place}: nothing is left for the pool")
        }
        How::HostPool { .. } => {
            format!("The start is refused at {place}: the host pool does not fit")
        }
        How::FreeBelow => {
            format!("The start is refused at {place}: less is free than the fraction asks for")
        }
        How::NoBlocks => format!("The start is refused at {place}: no block is left for the cache"),
        How::TooLong { .. } | How::LongerThanPool { .. } => {
            format!("The start is refused at {place}: the longest request does not fit the cache")
        }
        How::OutOfMemory { phase: Phase::Unknown, .. } => format!("Memory is refused at {place}"),
        How::OutOfMemory { phase, .. } => {
            format!("Memory is refused at {place}, in the phase {phase}")
        }
        How::Nothing => "The start as the log shows it".to_owned(),
    };
    match first {
        Some(finding) if !finding.headline.is_empty() => format!("{what}. {}", finding.headline),
        _ => format!("{what}."),
    }
}

/// What a run showed, in a sentence.
fn shows(trial: &Trial) -> String {
    let verdict = plimsoll_replay::verdict::verdict(&trial.0);
    if let Some(verdict) = verdict {
        return match verdict.short {
            Some(short) => format!("{}: {short}", verdict.what),
            None => verdict.what,
        };
    }
    match trial.refused() {
        Some(refused) => format!("refused: {}", refused.message),
        None => match (trial.0.ran.start.died, trial.bytes("died_free")) {
            (Some(died), Some(free)) => {
                let free = Bytes(free.unsigned_abs());
                format!("the start runs out of memory {}, with {free} free", died.words())
            }
            (Some(died), None) => format!("the start runs out of memory {}", died.words()),
            (None, _) => trial.ending().as_str().to_owned(),
        },
    }
}

fn fixed(
    crash: &Draft,
    first: Option<&Finding>,
    trial: &Trial,
    death: &Death,
    base: &Path,
) -> Result<File, String> {
    if death.how == How::Nothing {
        return Err("nothing failed in this log".to_owned());
    }
    if !crash.differs.is_empty() {
        return Err("the crash is not reproduced, so no change can be tried on it".to_owned());
    }
    if crash.model.as_ref().is_some_and(|model| model.value.contains("kv_bytes_per_token")) {
        return Err(
            "the model is not known, so what a change gives cannot be computed; give --model"
                .to_owned(),
        );
    }
    let fix::Fixed { mut draft, gives } = fix::find(crash, first, &trial.0, base)?;
    let checked = Trial::of(&draft, base)?;
    draft.differs = checked.failures();
    let differs = draft.differs.clone();
    Ok(File { name: "fixed.yaml", text: draft.text(), shows: gives, differs })
}

/// How the last start or its server ended, in the words of scenario files, and where that stands.
pub(crate) fn ending(case: &Case) -> (&'static str, String) {
    let death = Death::of(case, None);
    let word = match death.how {
        How::Nothing => "started",
        How::OutOfMemory { .. } => "out_of_memory",
        _ => "refused",
    };
    (word, death.place())
}
