//! What a machine answered, as a record and back.

use crate::{
    accounts::{number, text},
    record::Record,
};
use plimsoll_core::{
    backend::{BackendError, HostLimit, MemoryReading, Rank},
    memory::ledger::Account,
    units::Bytes,
};

/// Amounts above a PiB are no answer of a machine, and would overflow where they are added up.
const LARGEST: u64 = 1 << 50;

/// The kind of record.
pub(super) const KIND: &str = "observed";

/// One answer that could not be derived.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// Memory of a rank.
    Reading(Rank, MemoryReading),
    /// Available on the host.
    Host(Bytes),
    /// Every account of a rank.
    Held(Rank, Vec<(Account, Bytes)>),
    /// A call was refused.
    Refused(BackendError),
}

/// The record of an answer; all of it is measured.
pub(super) fn record(call: u64, answer: &Answer) -> Record {
    let new = |what: &str| Record::measured(KIND).with("call", call).with("what", what);
    match answer {
        Answer::Reading(rank, reading) => {
            let mut record = new("reading").on_rank(rank.0);
            let amounts = [
                ("tool_bytes", reading.capacity),
                ("total_bytes", reading.total),
                ("free_bytes", Some(reading.free)),
                ("others_bytes", reading.others),
            ];
            for (name, bytes) in amounts {
                record = match bytes {
                    Some(bytes) => record.with(name, bytes),
                    None => record.with(name, "unknown"),
                };
            }
            record
        }
        Answer::Host(available) => new("host").with("available_bytes", *available),
        Answer::Held(rank, held) => {
            held.iter().fold(new("held").on_rank(rank.0), |record, (account, bytes)| {
                record.with(account.name(), *bytes)
            })
        }
        Answer::Refused(error) => refused(new("refused"), error),
    }
}

fn refused(record: Record, error: &BackendError) -> Record {
    let asked = |record: Record, how: &str, rank: &Rank, account: &Account, size: &Bytes| {
        let record = record.on_rank(rank.0).with("error", how);
        record.with("account", account.name()).with("requested_bytes", *size)
    };
    match error {
        BackendError::OutOfMemory { rank, account, requested, free } => {
            asked(record, "out_of_memory", rank, account, requested).with("free_bytes", *free)
        }
        BackendError::TooLarge { rank, account, requested, capacity } => {
            asked(record, "too_large", rank, account, requested).with("capacity_bytes", *capacity)
        }
        BackendError::HostOutOfMemory { rank, account, limit, requested, free } => {
            let record = asked(record, "host_out_of_memory", rank, account, requested);
            record.with("free_bytes", *free).with("limit", limit.name())
        }
        BackendError::DeviceLost(why) => {
            record.with("error", "device_lost").with("message", why.as_str())
        }
        other => record.with("error", "device_lost").with("message", other.to_string()),
    }
}

/// The number of the call and its answer; `None` for a record that is none.
pub(super) fn read(record: &Record) -> Option<(u64, Answer)> {
    let bytes = |name: &str| amount(record, name);
    let rank = || record.rank.map(Rank);
    let answer = match text(record, "what") {
        "reading" => {
            let reading = MemoryReading {
                capacity: bytes("tool_bytes"),
                total: bytes("total_bytes"),
                free: bytes("free_bytes")?,
                others: bytes("others_bytes"),
                common: None,
                measured_free: None,
            };
            Answer::Reading(rank()?, reading)
        }
        "host" => Answer::Host(bytes("available_bytes")?),
        "held" => {
            let rows = Account::ALL.into_iter();
            let rows = rows.filter_map(|account| Some((account, bytes(account.name())?)));
            Answer::Held(rank()?, rows.collect())
        }
        "refused" => Answer::Refused(error(record)?),
        _ => return None,
    };
    Some((number(record, "call")?, answer))
}

fn amount(record: &Record, name: &str) -> Option<Bytes> {
    number(record, name).filter(|bytes| *bytes <= LARGEST).map(Bytes)
}

fn error(record: &Record) -> Option<BackendError> {
    let bytes = |name: &str| amount(record, name);
    let how = text(record, "error");
    if how == "device_lost" {
        return Some(BackendError::DeviceLost(text(record, "message").to_owned()));
    }
    let rank = Rank(record.rank?);
    let name = text(record, "account");
    let account = Account::ALL.into_iter().find(|account| account.name() == name)?;
    let requested = bytes("requested_bytes")?;
    let limits = [HostLimit::Host, HostLimit::Cgroup];
    let limit = limits.into_iter().find(|limit| limit.name() == text(record, "limit"));
    Some(match how {
        "out_of_memory" => {
            BackendError::OutOfMemory { rank, account, requested, free: bytes("free_bytes")? }
        }
        "too_large" => {
            let capacity = bytes("capacity_bytes")?;
            BackendError::TooLarge { rank, account, requested, capacity }
        }
        "host_out_of_memory" => {
            let (free, limit) = (bytes("free_bytes")?, limit?);
            BackendError::HostOutOfMemory { rank, account, limit, requested, free }
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn there_and_back(answer: &Answer) {
        assert_eq!(read(&record(7, answer)), Some((7, answer.clone())));
    }

    #[test]
    fn every_answer_reads_back() {
        let (rank, account) = (Rank(3), Account::Activations);
        let (requested, free) = (Bytes::gib(2), Bytes(17));
        let reading = MemoryReading {
            capacity: None,
            total: Some(Bytes::gib(80)),
            free,
            others: Some(Bytes::ZERO),
            common: None,
            measured_free: None,
        };
        there_and_back(&Answer::Reading(rank, reading));
        there_and_back(&Answer::Host(free));
        let held = Account::ALL.into_iter().zip((1..).map(Bytes)).collect();
        there_and_back(&Answer::Held(rank, held));
        let limit = HostLimit::Cgroup;
        for error in [
            BackendError::OutOfMemory { rank, account, requested, free },
            BackendError::TooLarge { rank, account, requested, capacity: free },
            BackendError::HostOutOfMemory { rank, account, limit, requested, free },
            BackendError::DeviceLost("error 46".to_owned()),
        ] {
            there_and_back(&Answer::Refused(error));
        }
        assert_eq!(read(&Record::measured(KIND).with("call", 1_u64)), None);
    }
}
