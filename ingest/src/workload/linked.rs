//! Rows that hang on others: Mooncake's sessions, Dynamo's agentic Mooncake, and Plimsoll's own rows.

use super::{
    Format, Reading,
    error::{BadRow, ImportError},
    ids::BlockIds,
    json::{self, MILLIS, Name},
    lines::Lines,
    trace::{Link, MAX_BLOCK_SIZE, NewRow, Trigger},
};
use plimsoll_core::units::Nanos;
use serde::{Deserialize, de::IgnoredAny};
use std::{
    collections::{BTreeMap, VecDeque},
    io::BufRead,
    num::NonZeroU32,
};

/// A turn of a session: what it adds to what was said.
#[derive(Deserialize)]
struct Turn {
    session_id: Option<Name>,
    #[serde(alias = "created_time")]
    timestamp: Option<f64>,
    #[serde(alias = "delay_ms")]
    delay: Option<f64>,
    #[serde(alias = "input_tokens")]
    input_length: u64,
    #[serde(alias = "output_tokens")]
    output_length: u64,
    #[serde(default)]
    hash_ids: BlockIds,
}

/// First line of an agentic trace.
#[derive(Deserialize)]
struct Header {
    version: Option<u64>,
    block_size: u64,
}

#[derive(Deserialize)]
struct Agentic {
    request_id: Name,
    input_length: u64,
    output_length: u64,
    #[serde(default)]
    hash_ids: BlockIds,
    #[serde(alias = "timestamp", default)]
    not_before_ms: f64,
    #[serde(default)]
    dependencies: Vec<AgenticLink>,
    /// Of the first version: all of these are answered, and then a time.
    #[serde(default)]
    wait_for: Vec<Name>,
    #[serde(alias = "delay_ms", default)]
    delay: f64,
}

#[derive(Deserialize)]
struct AgenticLink {
    request_id: Name,
    trigger: TriggerName,
    #[serde(default)]
    delay_ms: f64,
}

#[derive(Deserialize, Clone, Copy)]
#[serde(rename_all = "snake_case")]
enum TriggerName {
    #[serde(alias = "arrival", alias = "start")]
    Dispatch,
    #[serde(alias = "completion", alias = "complete", alias = "end")]
    Finish,
}

impl From<TriggerName> for Trigger {
    fn from(name: TriggerName) -> Self {
        match name {
            TriggerName::Dispatch => Self::Dispatch,
            TriggerName::Finish => Self::Finish,
        }
    }
}

/// A row of our own. Times and delays are nanoseconds.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Own {
    id: Option<Name>,
    t_ns: u64,
    r#in: u64,
    out: u64,
    max_out: Option<NonZeroU32>,
    #[serde(default)]
    blocks: BlockIds,
    block_size: Option<u64>,
    session: Option<Name>,
    #[serde(default)]
    after: Vec<OwnLink>,
    lora: Option<Name>,
    images: Option<IgnoredAny>,
    priority: Option<i64>,
    obs: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnLink {
    id: Name,
    on: TriggerName,
    #[serde(default)]
    delay_ns: u64,
}

/// A link whose other end is only known by its name.
struct Open {
    row: u32,
    line: u64,
    on: Name,
    trigger: Trigger,
    delay: Nanos,
}

/// What the rows of a file have in common.
#[derive(Default)]
struct State {
    /// Index of the row of each name.
    names: BTreeMap<Name, u32>,
    open: Vec<Open>,
    /// Last turn of each session, and its time in the file.
    sessions: BTreeMap<Name, (u32, Option<Nanos>)>,
    loras: BTreeMap<Name, u32>,
    with_images: u64,
}

pub(super) fn read(input: &mut dyn BufRead, reading: &mut Reading<'_>) -> Result<(), ImportError> {
    let mut lines = Lines::new(input);
    let mut state = State::default();
    while !reading.is_full()
        && let Some((line, text)) = lines.next()?
    {
        let done = text.map_err(RowError::Bad).and_then(|text| match reading.format {
            Format::MooncakeDelta => state.turn(line, text, reading),
            Format::AgenticMooncake => state.agentic(line, text, reading),
            _ => state.own(line, text, reading),
        });
        match done {
            Ok(()) => {}
            Err(RowError::End(error)) => return Err(error),
            Err(RowError::Bad(bad)) => {
                let column = bad.column;
                reading.drops.bad(bad.at(line, column))?;
            }
        }
    }
    state.close(reading)
}

/// A row that is left out, or the end of the reading.
enum RowError {
    Bad(BadRow),
    End(ImportError),
}

impl From<BadRow> for RowError {
    fn from(bad: BadRow) -> Self {
        Self::Bad(bad)
    }
}

impl From<ImportError> for RowError {
    fn from(error: ImportError) -> Self {
        Self::End(error)
    }
}

impl State {
    /// The next turn of a session comes when the one before is answered, after its delay; without one, after
    /// the time that lies between the two in the file.
    fn turn(&mut self, line: u64, text: &str, reading: &mut Reading<'_>) -> Result<(), RowError> {
        let turn: Turn = json::row(text)?;
        let at = turn.timestamp.map(|at| json::nanos("timestamp", at, MILLIS)).transpose()?;
        let delay = turn.delay.map(|delay| json::nanos("delay", delay, MILLIS)).transpose()?;
        let before =
            turn.session_id.as_ref().and_then(|session| self.sessions.get(session)).copied();
        let Some(lengths) = reading.lengths(line, turn.input_length, turn.output_length)? else {
            return Ok(());
        };
        reading.blocks.see(turn.input_length, turn.hash_ids.0.len());
        let not_before = match before {
            // It waits for the turn before, which is not sent earlier than its own time.
            Some((row, _)) => reading.rows.row(row).map(|row| row.at).unwrap_or_default(),
            None => at.unwrap_or_default(),
        };
        let row = reading.rows.push(NewRow {
            at: not_before,
            input: lengths.input,
            output: lengths.output,
            blocks: &turn.hash_ids.0,
            history: before.map(|(row, _)| row),
            ..NewRow::default()
        });
        if let Some((on, last)) = before {
            let between = at.zip(last).map(|(at, last)| Nanos(at.0.saturating_sub(last.0)));
            let delay = delay.or(between).unwrap_or_default();
            reading.rows.link(Link { row, on, trigger: Trigger::Finish, delay });
        }
        if let Some(session) = turn.session_id {
            self.sessions.insert(session, (row, at));
        }
        Ok(())
    }

    fn agentic(
        &mut self,
        line: u64,
        text: &str,
        reading: &mut Reading<'_>,
    ) -> Result<(), RowError> {
        if self.names.is_empty() && reading.rows.len() == 0 && text.contains("\"block_size\"") {
            let header: Header = json::row(text)?;
            if header.version.is_some_and(|version| version > 2) {
                let version = header.version.unwrap_or_default();
                reading
                    .notes
                    .push(format!("version {version} is read as version 2, the newest known"));
            }
            return set_block_size(header.block_size, reading);
        }
        let row: Agentic = json::row(text)?;
        let at = json::nanos("not_before_ms", row.not_before_ms, MILLIS)?;
        let delay = json::nanos("delay", row.delay, MILLIS)?;
        self.check_name(&row.request_id, "request_id")?;
        let mut links = Vec::new();
        for link in row.dependencies {
            let delay = json::nanos("delay_ms", link.delay_ms, MILLIS)?;
            links.push((link.request_id, link.trigger.into(), delay));
        }
        links.extend(row.wait_for.into_iter().map(|on| (on, Trigger::Finish, delay)));
        let Some(lengths) = reading.lengths(line, row.input_length, row.output_length)? else {
            return Ok(());
        };
        reading.blocks.see(row.input_length, row.hash_ids.0.len());
        let index = reading.rows.push(NewRow {
            at,
            input: lengths.input,
            output: lengths.output,
            blocks: &row.hash_ids.0,
            ..NewRow::default()
        });
        self.add(index, line, Some(row.request_id), links);
        Ok(())
    }

    fn own(&mut self, line: u64, text: &str, reading: &mut Reading<'_>) -> Result<(), RowError> {
        let row: Own = json::row(text)?;
        if let Some(size) = row.block_size {
            set_block_size(size, reading)?;
        }
        if let Some(id) = &row.id {
            self.check_name(id, "id")?;
        }
        let Some(lengths) = reading.lengths(line, row.r#in, row.out)? else { return Ok(()) };
        reading.blocks.see(row.r#in, row.blocks.0.len());
        // Sessions tell rows apart for their reader, `obs` what was measured: neither decides anything.
        let _for_readers = (row.session, row.obs);
        self.with_images += u64::from(row.images.is_some());
        let next = u32::try_from(self.loras.len()).unwrap_or(u32::MAX) + 1;
        let namespace = row.lora.map_or(0, |lora| *self.loras.entry(lora).or_insert(next));
        let index = reading.rows.push(NewRow {
            at: Nanos(row.t_ns),
            input: lengths.input,
            output: lengths.output,
            max_tokens: row.max_out,
            blocks: &row.blocks.0,
            namespace,
            priority: row.priority,
            history: None,
        });
        let links =
            row.after.into_iter().map(|link| (link.id, link.on.into(), Nanos(link.delay_ns)));
        self.add(index, line, row.id, links.collect());
        Ok(())
    }

    fn check_name(&self, name: &Name, field: &str) -> Result<(), BadRow> {
        match self.names.contains_key(name) {
            true => Err(BadRow::new(field, &name.0, "a name that no row before has")),
            false => Ok(()),
        }
    }

    fn add(&mut self, row: u32, line: u64, name: Option<Name>, links: Vec<(Name, Trigger, Nanos)>) {
        if let Some(name) = name {
            self.names.insert(name, row);
        }
        let open = |(on, trigger, delay)| Open { row, line, on, trigger, delay };
        self.open.extend(links.into_iter().map(open));
    }

    /// Resolves the names; a row may wait for one that stands below it.
    fn close(self, reading: &mut Reading<'_>) -> Result<(), ImportError> {
        let mut links: Vec<Link> = Vec::new();
        let (mut lost, mut first) = (0_u64, None);
        for open in self.open {
            let Open { row, line, on, trigger, delay } = open;
            if let Some(on) = self.names.get(&on).copied() {
                links.push(Link { row, on, trigger, delay });
                continue;
            }
            let bad =
                BadRow::new("request it waits for", &on.0, "the name of a row").at(line, None);
            if reading.options.strict && reading.options.limit.is_none() {
                return Err(ImportError::Row(bad));
            }
            lost += 1;
            first.get_or_insert(bad);
        }
        if let Some(first) = first {
            let note = format!("{lost} waits for rows that are not there are left out ({first})");
            reading.notes.push(note);
        }
        if self.with_images > 0 {
            reading
                .notes
                .push(format!("{} rows have images, which take no tokens here", self.with_images));
        }
        if let Some(row) = circle(reading.rows.len(), &links) {
            let message = format!("rows wait for each other in a circle; row {} is in it", row + 1);
            return Err(ImportError::File(message));
        }
        for link in links {
            reading.rows.link(link);
        }
        Ok(())
    }
}

fn set_block_size(size: u64, reading: &mut Reading<'_>) -> Result<(), RowError> {
    if !(1..=MAX_BLOCK_SIZE).contains(&size) {
        let expected = format!("1 to {MAX_BLOCK_SIZE} tokens");
        return Err(BadRow::new("block_size", size, expected).into());
    }
    if reading.options.block_size.is_none() {
        reading.blocks.set(size);
    }
    Ok(())
}

/// A row that can never be sent: it waits, perhaps over others, for itself.
fn circle(rows: usize, links: &[Link]) -> Option<usize> {
    let mut waits = vec![0_u32; rows];
    let mut next: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for link in links {
        waits[link.row as usize] += 1;
        next.entry(link.on).or_default().push(link.row);
    }
    let mut free: VecDeque<usize> = (0..rows).filter(|row| waits[*row] == 0).collect();
    let mut sent = 0;
    while let Some(row) = free.pop_front() {
        sent += 1;
        let row = u32::try_from(row).unwrap_or(u32::MAX);
        for waiting in next.get(&row).into_iter().flatten() {
            let waiting = *waiting as usize;
            waits[waiting] -= 1;
            if waits[waiting] == 0 {
                free.push_back(waiting);
            }
        }
    }
    if sent == rows { None } else { waits.iter().position(|waits| *waits > 0) }
}
