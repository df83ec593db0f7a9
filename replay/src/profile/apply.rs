//! A profile put on a case: its rates where the device and the engine are the same, its memory where the
//! model and its division are the same too.

use super::{Basis, EngineWord, HoldsFor, Profile, Remainder, RemainderName};
use crate::start::{Case, CaseLaunch, Fact};
use plimsoll_core::{
    estimate::coefficients::{Coefficient, Coefficients},
    figure::Tag,
    policy::sglang::version::Version,
};

/// A profile of something else.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the profile {file} is of {theirs}, and this is {ours}: {why}")]
pub struct Mismatch {
    file: String,
    theirs: String,
    ours: String,
    why: &'static str,
}

/// What of a profile a case uses.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AppliedProfile {
    /// Its file, as given.
    pub file: String,
    /// SHA-256 of the file.
    pub sha256: String,
    /// The coefficients of the time model.
    pub values: Coefficients,
    /// Those of them that were fitted.
    pub fitted: Vec<Coefficient>,
    /// What is said about its use.
    pub notes: Vec<String>,
}

impl AppliedProfile {
    /// Tag and source of a coefficient.
    #[must_use]
    pub fn evidence(&self, which: Coefficient) -> (Tag, String) {
        match self.fitted.contains(&which) {
            true => (Tag::Calibrated, format!("profile {}", self.file)),
            false => (Tag::Assumed, format!("profile {}: not moved by its data", self.file)),
        }
    }
}

impl HoldsFor {
    /// What a case is, in the terms of a profile.
    #[must_use]
    pub fn of(case: &Case) -> Self {
        let (engine, version, model, data_parallel, kv) = match &case.launch {
            CaseLaunch::Sglang(args) => (
                EngineWord::Sglang,
                args.version,
                args.model_path.clone(),
                args.dp_size,
                args.kv_cache_dtype.clone(),
            ),
            CaseLaunch::Vllm(args) => (
                EngineWord::Vllm,
                args.version,
                args.model.clone(),
                args.data_parallel_size,
                args.kv_cache_dtype.clone(),
            ),
        };
        let divided = case.model.divided.as_ref();
        Self {
            engine,
            release: version.to_string(),
            device: case.device.name.clone(),
            model,
            layers: case.model.geometry().map_or(0, |model| model.layers.len() as u64),
            weights_bytes: case.model.weights.as_ref().map_or(0, |figure| figure.value.mid.0),
            ranks: u64::from(case.ranks),
            data_parallel: u64::from(data_parallel.max(1)),
            dtype: divided.map_or_else(
                || "unknown".to_owned(),
                |divided| format!("{:?}", divided.model.engine_dtype()).to_lowercase(),
            ),
            kv_cache_dtype: kv.unwrap_or_else(|| "auto".to_owned()),
        }
    }

    /// What differs besides engine, release and device, in words; none: the memory holds as well.
    fn differences(&self, ours: &Self) -> Vec<String> {
        let mut out = Vec::new();
        let mut see = |what: &str, theirs: String, ours: String| {
            if theirs != ours {
                out.push(format!("{what} {theirs}, here {ours}"));
            }
        };
        let count = |n: u64| n.to_string();
        // Another name of the same shape is the same model.
        if self.layers != ours.layers || self.weights_bytes != ours.weights_bytes {
            see("model", self.model.clone(), ours.model.clone());
        }
        see("layers", count(self.layers), count(ours.layers));
        see("weights of a rank", count(self.weights_bytes), count(ours.weights_bytes));
        see("ranks", count(self.ranks), count(ours.ranks));
        see("data-parallel ranks", count(self.data_parallel), count(ours.data_parallel));
        see("dtype", self.dtype.clone(), ours.dtype.clone());
        see("KV dtype", self.kv_cache_dtype.clone(), ours.kv_cache_dtype.clone());
        out
    }
}

impl Profile {
    /// Puts the profile on a case; what the case has measured or declared itself stays. `file` and
    /// `sha256` name the profile.
    ///
    /// # Errors
    ///
    /// [`Mismatch`]: another device or engine.
    pub fn apply(&self, file: &str, sha256: &str, case: &mut Case) -> Result<(), Mismatch> {
        let (theirs, ours) = (&self.holds_for, HoldsFor::of(case));
        let mismatch = |theirs: String, ours: String, why| {
            Err(Mismatch { file: file.to_owned(), theirs, ours, why })
        };
        if theirs.engine != ours.engine {
            let word = |word: EngineWord| format!("{word:?}").to_lowercase();
            let why = "the passes of one engine say nothing of another's";
            return mismatch(word(theirs.engine), word(ours.engine), why);
        }
        if theirs.device != ours.device {
            let why = "the rates of one device say nothing of another";
            return mismatch(theirs.device.clone(), ours.device, why);
        }
        let mut notes = Vec::new();
        let minor = |text: &str| text.parse::<Version>().ok().map(|v| (v.minor, v.patch));
        if minor(&theirs.release) != minor(&ours.release) {
            notes.push(format!(
                "the profile is of release {}, and {} runs here: kernels and graphs may differ",
                theirs.release, ours.release
            ));
        }
        let differences = theirs.differences(&ours);
        if differences.is_empty() {
            self.memory.iter().for_each(|remainder| put(case, remainder, file));
        } else {
            let memory = match self.memory.is_empty() {
                true => "",
                false => "; its memory is left out, its rates hold for the device",
            };
            notes.push(format!(
                "the profile is of another launch ({}){memory}",
                differences.join("; ")
            ));
        }
        let assumed = Coefficients::assumed(case.device.link);
        let fitted = self.time.iter().filter(|rate| rate.basis == Basis::Fitted);
        let fitted = fitted.filter_map(|rate| Coefficient::named(&rate.name)).collect();
        case.facts.profile = Some(Box::new(AppliedProfile {
            file: file.to_owned(),
            sha256: sha256.to_owned(),
            values: self.coefficients(assumed),
            fitted,
            notes,
        }));
        Ok(())
    }
}

/// Memory of a profile stands where nothing better does.
fn put(case: &mut Case, remainder: &Remainder, file: &str) {
    let facts = &mut case.facts;
    let taken = match remainder.name {
        RemainderName::FreeBeforeLoad => facts.free_before_load.is_some(),
        // Free memory after loading says the same.
        RemainderName::Weights => facts.used_by_load.is_some() || facts.free_after_load.is_some(),
        RemainderName::GraphMemory => {
            facts.graph_memory.is_some() || facts.free_after_graphs.is_some()
        }
        RemainderName::NonTorch => facts.non_torch.is_some(),
        RemainderName::ActivationPeak => facts.activation_peak.is_some(),
        RemainderName::GraphEstimate => facts.graph_estimate.is_some(),
    };
    if taken {
        return;
    }
    let slot = match remainder.name {
        RemainderName::FreeBeforeLoad => &mut facts.free_before_load,
        RemainderName::Weights => &mut facts.used_by_load,
        RemainderName::GraphMemory => &mut facts.graph_memory,
        RemainderName::NonTorch => &mut facts.non_torch,
        RemainderName::ActivationPeak => &mut facts.activation_peak,
        RemainderName::GraphEstimate => &mut facts.graph_estimate,
    };
    let source = format!("profile {file} ({})", remainder.place);
    *slot = Some(Fact::all(remainder.measured(), Tag::Calibrated, source));
}
