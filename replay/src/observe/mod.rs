//! Live readings that decide, and their recording.
//!
//! `live` stands before a real machine. It derives what the machine should answer from what it last
//! answered and what was taken since, and writes an `observed` record wherever the answer is another: a
//! reading, host memory, a refusal, the accounts. [`played`] derives the same way and answers as recorded, so
//! the recording of a live run gives the same decisions on no machine at all. Calls are counted; a record
//! names the call that it answers.

mod answer;
mod expected;
mod machine;

use crate::{record::Record, start::Machine, wire::Log};
use answer::Answer;
use expected::Expected;
use machine::{Live, Observed, Played};
use plimsoll_backend_sim::MachineSpec;
use plimsoll_core::backend::BackendError;
use std::{cell::RefCell, collections::BTreeMap, rc::Rc};

/// Records on their way into the log, before the decision that rests on them.
pub(crate) type Queue = Rc<RefCell<Vec<Record>>>;

/// What a live machine answered, by the number of the call.
#[derive(Clone, Debug, Default)]
pub struct Observations(BTreeMap<u64, Answer>);

impl Observations {
    /// Those of a recording, as far as it goes. A record that cannot be read answers nothing, and the
    /// decisions show it.
    #[must_use]
    pub fn of(log: &Log) -> Self {
        let records = log.records.iter().filter(|record| record.kind == answer::KIND);
        Self(records.filter_map(answer::read).collect())
    }
}

/// A machine whose own readings decide; what it answers goes to `queue`.
///
/// # Errors
///
/// [`BackendError`] when the declared machine cannot be: expectations begin with it.
pub(crate) fn live(
    spec: &MachineSpec,
    machine: Machine,
    queue: Queue,
) -> Result<Machine, BackendError> {
    let expected = Expected::new(spec, machine.ranks())?;
    Ok(Box::new(Observed::new(expected, Live::new(machine, queue))))
}

/// A machine that answers as one did that was recorded.
///
/// # Errors
///
/// As `live`.
pub fn played(spec: &MachineSpec, seen: Observations) -> Result<Machine, BackendError> {
    let ranks = u32::try_from(spec.devices.len()).unwrap_or(u32::MAX);
    let expected = Expected::new(spec, ranks)?;
    Ok(Box::new(Observed::new(expected, Played::new(seen.0))))
}
