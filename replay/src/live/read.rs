//! Settings, plan and inputs of a recording.

use super::{LiveAgainError, PlannedRow, kinds::KINDS, text};
use crate::{
    record::{FieldValue, Record},
    wire::Log,
};
use plimsoll_core::{
    decision::Value,
    engine::live::{Input, Inputs, LiveSettings},
    kv::Run,
    sched::{EosRule, NewRequest, RequestId},
    units::Bytes,
};

/// All that the decisions of a recording depended on.
pub(super) struct Recorded {
    pub(super) settings: LiveSettings,
    pub(super) plan: Vec<PlannedRow>,
    pub(super) inputs: Inputs,
}

/// Reads it from the records.
///
/// # Errors
///
/// [`LiveAgainError`] with the record and the field.
pub(super) fn recorded(log: &Log) -> Result<Recorded, LiveAgainError> {
    let (mut settings, mut plan, mut inputs) = (None, Vec::new(), Inputs::default());
    for record in &log.records {
        let of = Of(record);
        of.check()?;
        match record.kind.as_str() {
            "settings" => {
                let read = LiveSettings::of_fields(|name| record.fields.get(name).map(value));
                settings = Some(read.map_err(|error| of.without(error.0))?);
            }
            "memory_planned" => plan.push(PlannedRow {
                account: text(record, "account").ok_or_else(|| of.without("account"))?.to_owned(),
                bytes: Bytes(of.amount("size_bytes")?),
            }),
            "request_arrived" => {
                inputs.push(of.amount("turn")?, Input::Arrived(Box::new(of.request()?)))?;
            }
            "given_up" => {
                let request = RequestId(of.amount("request")?);
                inputs.push(of.amount("turn")?, Input::GivenUp(request))?;
            }
            "lend" => inputs.push(of.amount("turn")?, Input::Lend(of.amount("target_pages")?))?,
            "step" | "decode_run" => {
                let one = record.kind == "step";
                let steps = if one { 1 } else { of.amount("steps")? };
                let made = of.amounts("made")?.into_iter().map(u32::try_from);
                let made: Result<Vec<u32>, _> = made.collect();
                let made = made.map_err(|_| of.without("made"))?;
                // A decode pass makes a token for each of its requests.
                if !one && steps > made.len() as u64 {
                    return Err(of.without("steps"));
                }
                inputs.passes(steps, &made, &of.amounts("ended")?);
            }
            _ => {}
        }
    }
    let settings = settings.ok_or(LiveAgainError::NoSettings)?;
    Ok(Recorded { settings, plan, inputs })
}

/// A record that is asked for its fields.
#[derive(Clone, Copy)]
struct Of<'a>(&'a Record);

impl Of<'_> {
    /// Whether it has the fields of its kind.
    fn check(self) -> Result<(), LiveAgainError> {
        let kind = KINDS.iter().find(|kind| kind.name == self.0.kind);
        let fault = match kind {
            Some(kind) => kind.fault(self.0),
            None => Some("no recording of a server has this kind".to_owned()),
        };
        let Some(fault) = fault else { return Ok(()) };
        Err(LiveAgainError::Form { seq: self.0.seq, kind: self.0.kind.clone(), fault })
    }

    fn without(self, field: &'static str) -> LiveAgainError {
        LiveAgainError::Field { seq: self.0.seq, kind: self.0.kind.clone(), field }
    }

    fn amount(self, name: &'static str) -> Result<u64, LiveAgainError> {
        match self.0.fields.get(name) {
            Some(FieldValue::Unsigned(n)) => Ok(*n),
            _ => Err(self.without(name)),
        }
    }

    /// An amount that may be unknown.
    fn maybe(self, name: &'static str) -> Result<Option<u64>, LiveAgainError> {
        if text(self.0, name).is_some() { Ok(None) } else { self.amount(name).map(Some) }
    }

    fn amounts(self, name: &'static str) -> Result<Vec<u64>, LiveAgainError> {
        let Some(FieldValue::List(list)) = self.0.fields.get(name) else {
            return Err(self.without(name));
        };
        let amount = |value: &FieldValue| match value {
            FieldValue::Unsigned(n) => Ok(*n),
            _ => Err(self.without(name)),
        };
        list.iter().map(amount).collect()
    }

    fn request(self) -> Result<NewRequest, LiveAgainError> {
        let prompt = self.amounts("prompt")?;
        let run = |pair: &[u64]| match pair {
            [first, len] => Some(Run { first: *first, len: *len }),
            _ => None,
        };
        let prompt: Option<Vec<Run>> = prompt.chunks(2).map(run).collect();
        let prompt = prompt.ok_or_else(|| self.without("prompt"))?;
        let ignored = self.0.fields.get("ignore_eos") == Some(&FieldValue::Flag(true));
        let priority = match self.0.fields.get("priority") {
            Some(FieldValue::Unsigned(n)) => i64::try_from(*n).ok(),
            Some(FieldValue::Signed(n)) => Some(*n),
            _ => None,
        };
        Ok(NewRequest {
            id: RequestId(self.amount("request")?),
            prompt: prompt.into_iter().collect(),
            max_new_tokens: self.maybe("max_new_tokens")?,
            output_len: u64::MAX,
            eos: if ignored { EosRule::Ignored } else { EosRule::Ends },
            logprob_start: self.maybe("logprob_start")?,
            priority,
            namespace: self.amount("namespace")?,
        })
    }
}

/// As the engine wrote it.
fn value(field: &FieldValue) -> Value {
    match field {
        FieldValue::Unsigned(n) => Value::from(*n),
        FieldValue::Signed(n) => Value::Int(*n),
        FieldValue::Float(x) => Value::Float(*x),
        FieldValue::Text(text) if text == "unknown" => Value::Null,
        FieldValue::Text(text) => Value::Text(text.clone()),
        FieldValue::Flag(flag) => Value::Flag(*flag),
        FieldValue::List(_) => Value::Null,
    }
}
