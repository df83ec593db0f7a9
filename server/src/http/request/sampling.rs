//! Parameters → what the engine is asked for, checked.

use plimsoll_backend_host::model::Sampling;
use plimsoll_core::sched::EosRule;
use sha2::{Digest, Sha256};

use super::{
    Common,
    fields::{MAX_STOPS, Stop},
    within,
};
use crate::{engine::Submission, http::error::ApiError};

/// Longest text that may end an answer, in bytes.
const STOP_BYTES: usize = 1024;
/// Most ids that may end an answer.
const STOP_IDS: usize = 256;

impl Common {
    /// The request to the engine, but for its prompt, seed and length.
    pub(super) fn submission(&self, defaults: &Sampling) -> Result<Submission, ApiError> {
        let real = |given: Option<f64>, default: f32| given.map_or(default, |value| value as f32);
        let sampling = Sampling {
            temperature: real(self.temperature, defaults.temperature),
            top_k: self.top_k.map_or(Ok(defaults.top_k), top_k)?,
            top_p: real(self.top_p, defaults.top_p),
            min_p: real(self.min_p, defaults.min_p),
            repetition_penalty: real(self.repetition_penalty, defaults.repetition_penalty),
            presence_penalty: real(self.presence_penalty, defaults.presence_penalty),
            frequency_penalty: real(self.frequency_penalty, defaults.frequency_penalty),
            seed: 0,
            logprobs: None,
        };
        sampling.check()?;
        let stop_token_ids = self.stop_token_ids.clone().unwrap_or_default();
        if stop_token_ids.len() > STOP_IDS {
            let found = format!("a list of {}", stop_token_ids.len());
            return Err(ApiError::value("stop_token_ids", found, &format!("up to {STOP_IDS} ids")));
        }
        let ignored = self.ignore_eos.unwrap_or(false);
        Ok(Submission {
            prompt: Vec::new(),
            sampling,
            max_new_tokens: None,
            stop: stops(self.stop.as_ref())?,
            stop_token_ids,
            eos: if ignored { EosRule::Ignored } else { EosRule::Ends },
            priority: self.priority,
            namespace: self.cache_salt.as_deref().map_or(0, namespace),
            prompt_logprobs: None,
        })
    }
}

fn top_k(given: i64) -> Result<u32, ApiError> {
    // -1 is how others say 0. No vocabulary has more than 32 bits count.
    let k = if given == -1 { 0 } else { within("top_k", given, 0..=i64::MAX)? };
    Ok(u32::try_from(k).unwrap_or(u32::MAX))
}

fn stops(given: Option<&Stop>) -> Result<Vec<String>, ApiError> {
    let texts = given.map(|stop| stop.0.clone()).unwrap_or_default();
    if let Some(text) = texts.iter().find(|text| !(1..=STOP_BYTES).contains(&text.len())) {
        let found = format!("a text of {} bytes", text.len());
        let allowed = format!("up to {MAX_STOPS} texts of 1 to {STOP_BYTES} bytes");
        return Err(ApiError::value("stop", found, &allowed));
    }
    Ok(texts)
}

/// The namespace of a salt; never the common one.
fn namespace(salt: &str) -> u64 {
    if salt.is_empty() {
        return 0;
    }
    let digest = Sha256::digest(salt.as_bytes());
    let number = digest.iter().take(8).fold(0, |sum: u64, byte| sum << 8 | u64::from(*byte));
    number.max(1)
}
