//! `nvidia-smi --query-gpu`: its table as a pure reader over text, and the command itself. SGLang
//! decides its tier by the totals that this prints, so they are read the same way: all cards,
//! whatever CUDA_VISIBLE_DEVICES says.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// One card. A `None` is a field that the tool does not give: `[N/A]` and `[Not Supported]`
/// (unified memory, MIG parents without permission).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SmiGpu {
    /// Index in the tool's order (PCI bus order).
    pub index: u32,
    /// Name.
    pub name: String,
    /// Total in MiB.
    pub total_mib: Option<u64>,
    /// Free in MiB.
    pub free_mib: Option<u64>,
    /// Used in MiB.
    pub used_mib: Option<u64>,
}

/// Why there is no table.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SmiError {
    /// The command is not there.
    #[error("nvidia-smi is not found: no NVIDIA driver, or a container without `--gpus all`")]
    NotFound,
    /// It ran longer than allowed.
    #[error("nvidia-smi gave no answer in {0:?}; the driver may hang (see `dmesg | grep -i nvrm`)")]
    TimedOut(Duration),
    /// It failed.
    #[error("nvidia-smi failed: {0}")]
    Failed(String),
    /// It says that there is no device.
    #[error("nvidia-smi shows no device")]
    NoDevices,
    /// A line has another form than expected.
    #[error("nvidia-smi, line {line}: {column} is `{value}`; expected {expected}")]
    Form {
        /// Line, from 1.
        line: usize,
        /// Column.
        column: &'static str,
        /// As written.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
}

/// The query that [`run`] makes and [`parse`] reads.
pub const QUERY: &str = "--query-gpu=index,name,memory.total,memory.free,memory.used";

const COLUMNS: [&str; 5] = ["index", "name", "memory.total", "memory.free", "memory.used"];

/// Reads the table of [`QUERY`] with or without header (`--format=csv`, `noheader`) and units
/// (`nounits`).
///
/// With a header the columns may come in any order and number (`name` at least); others are passed
/// over.
///
/// # Errors
/// `NoDevices` for an empty table or the tool's text for it, `Failed` with the tool's own failure
/// text, `Form` with line and column for anything else.
pub fn parse(text: &str) -> Result<Vec<SmiGpu>, SmiError> {
    let mut order: Vec<Option<usize>> = (0..COLUMNS.len()).map(Some).collect();
    let mut gpus = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        if line.starts_with("No devices were found") {
            return Err(SmiError::NoDevices);
        }
        if line.contains("NVIDIA-SMI has failed") || line.starts_with("Failed to initialize NVML") {
            return Err(SmiError::Failed(line.to_owned()));
        }
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        if let Some(header) = header(&cells) {
            order = header;
            continue;
        }
        gpus.push(row(index + 1, &cells, &order, gpus.len())?);
    }
    if gpus.is_empty() { Err(SmiError::NoDevices) } else { Ok(gpus) }
}

/// For each known column its place, when this line is a header.
fn header(cells: &[&str]) -> Option<Vec<Option<usize>>> {
    let title = |cell: &&str| cell.split(" [").next().unwrap_or_default().to_owned();
    let titles: Vec<String> = cells.iter().map(title).collect();
    titles.iter().any(|t| t == "name").then(|| {
        COLUMNS.iter().map(|column| titles.iter().position(|title| title == column)).collect()
    })
}

fn row(
    line: usize,
    cells: &[&str],
    order: &[Option<usize>],
    before: usize,
) -> Result<SmiGpu, SmiError> {
    let form = |column, value: &str, expected| SmiError::Form {
        line,
        column,
        value: value.to_owned(),
        expected,
    };
    let cell = |column: usize| order[column].and_then(|place| cells.get(place)).copied();
    let Some(name) = cell(1) else {
        return Err(form(
            "name",
            &cells.join(", "),
            "five columns: index, name, total, free, used",
        ));
    };
    let index = match cell(0) {
        Some(text) => text.parse().map_err(|_| form("index", text, "a whole number"))?,
        None => u32::try_from(before).unwrap_or(u32::MAX),
    };
    let memory = |column: usize| -> Result<Option<u64>, SmiError> {
        let text = match (cell(column), order[column]) {
            (Some(text), _) => text,
            (None, None) => return Ok(None),
            (None, Some(_)) => return Err(form(COLUMNS[column], "", "MiB or [N/A]")),
        };
        if absent(text) {
            return Ok(None);
        }
        let number = text.trim_end_matches("MiB").trim();
        number.parse().map(Some).map_err(|_| form(COLUMNS[column], text, "MiB or [N/A]"))
    };
    Ok(SmiGpu {
        index,
        name: name.to_owned(),
        total_mib: memory(2)?,
        free_mib: memory(3)?,
        used_mib: memory(4)?,
    })
}

/// What the tool prints for a field that it does not give.
fn absent(text: &str) -> bool {
    const ABSENT: [&str; 6] = [
        "n/a",
        "not supported",
        "insufficient permissions",
        "unknown error",
        "gpu is lost",
        "not found",
    ];
    let inner = text.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    ABSENT.contains(&inner.as_str())
}

/// Runs the query and reads its table; stops the command after `limit`.
///
/// # Errors
/// As [`parse`], and `NotFound`, `TimedOut`, `Failed`.
pub fn run(limit: Duration) -> Result<Vec<SmiGpu>, SmiError> {
    run_command("nvidia-smi", limit)
}

/// [`run`] with another program name (tests).
///
/// # Errors
/// As [`run`].
pub fn run_command(program: &str, limit: Duration) -> Result<Vec<SmiGpu>, SmiError> {
    let said = ask(program, QUERY, limit)?;
    said.unless_failed(parse(&said.out))
}

/// What a device is held by.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SmiProcess {
    /// Index of the card; `None` when no card has the UUID.
    pub index: Option<u32>,
    /// Its number, in the process space of the driver: inside a container it may be nobody's.
    pub pid: u32,
    /// What it holds, in MiB; `None` where the tool does not say.
    pub used_mib: Option<u64>,
}

/// The processes that compute on each card. None are shown inside most containers.
///
/// # Errors
/// As [`run`].
pub fn processes(program: &str, limit: Duration) -> Result<Vec<SmiProcess>, SmiError> {
    let said = ask(program, "--query-gpu=index,uuid", limit)?;
    let cards = said.unless_failed(uuids(&said.out))?;
    let said = ask(program, "--query-compute-apps=gpu_uuid,pid,used_memory", limit)?;
    said.unless_failed(parse_processes(&said.out, &cards))
}

/// Reads `index, uuid`, a card a line.
fn uuids(text: &str) -> Result<Vec<(u32, String)>, SmiError> {
    let mut cards = Vec::new();
    for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let (index, uuid) = line.split_once(',').unwrap_or((line, ""));
        let index = index.trim();
        let wrong = |_| SmiError::Form {
            line: at + 1,
            column: "index",
            value: index.to_owned(),
            expected: "a whole number",
        };
        cards.push((index.parse().map_err(wrong)?, uuid.trim().to_owned()));
    }
    if cards.is_empty() { Err(SmiError::NoDevices) } else { Ok(cards) }
}

/// Reads `gpu_uuid, pid, used_memory`, a process a line; `cards` are indices with their UUIDs.
///
/// # Errors
/// `Form` with line and column.
pub fn parse_processes(text: &str, cards: &[(u32, String)]) -> Result<Vec<SmiProcess>, SmiError> {
    let mut found = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        // With no process the tool prints nothing, or says so.
        if line.is_empty() || line.starts_with("No running processes") {
            continue;
        }
        let form = |column, value: &str, expected| SmiError::Form {
            line: at + 1,
            column,
            value: value.to_owned(),
            expected,
        };
        let cells: Vec<&str> = line.split(',').map(str::trim).collect();
        let [uuid, pid, used] = cells[..] else {
            return Err(form("gpu_uuid", line, "three columns: gpu_uuid, pid, used_memory"));
        };
        let pid = pid.parse().map_err(|_| form("pid", pid, "a whole number"))?;
        let number = used.trim_end_matches("MiB").trim();
        let used_mib = match number.parse() {
            Ok(mib) => Some(mib),
            Err(_) if absent(used) => None,
            Err(_) => return Err(form("used_memory", used, "MiB or [N/A]")),
        };
        let index = cards.iter().find(|(_, card)| card == uuid).map(|(index, _)| *index);
        found.push(SmiProcess { index, pid, used_mib });
    }
    Ok(found)
}

/// What the tool said.
struct Said {
    out: String,
    complaint: String,
    success: bool,
}

impl Said {
    /// The tool's own complaint in place of a table that could not be read for it.
    fn unless_failed<T>(&self, result: Result<T, SmiError>) -> Result<T, SmiError> {
        match result {
            Err(SmiError::NoDevices | SmiError::Form { .. }) if !self.success => {
                let text = format!("{} {}", self.out.trim(), self.complaint.trim());
                Err(if text.contains("No devices were found") {
                    SmiError::NoDevices
                } else {
                    SmiError::Failed(text.trim().chars().take(400).collect())
                })
            }
            result => result,
        }
    }
}

/// Runs one query; stops the command after `limit`.
fn ask(program: &str, query: &str, limit: Duration) -> Result<Said, SmiError> {
    let child = Command::new(program)
        .args([query, "--format=csv,noheader,nounits"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => SmiError::NotFound,
        _ => SmiError::Failed(error.to_string()),
    })?;
    // A few lines a card: they fit the pipe, so nothing need be read before the end.
    let success = wait(&mut child, limit)?;
    let read = |pipe: Option<&mut dyn std::io::Read>| {
        let mut bytes = Vec::new();
        // What cannot be read is shown as an empty table.
        if let Some(pipe) = pipe {
            let _ = pipe.take(1 << 20).read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    };
    let out = read(child.stdout.as_mut().map(|p| p as &mut dyn std::io::Read));
    let complaint = read(child.stderr.as_mut().map(|p| p as &mut dyn std::io::Read));
    Ok(Said { out, complaint, success })
}

/// Whether the command ended well; kills it at the limit.
fn wait(child: &mut Child, limit: Duration) -> Result<bool, SmiError> {
    let start = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status.success()),
            Ok(None) if start.elapsed() < limit => std::thread::sleep(Duration::from_millis(10)),
            Ok(None) => {
                // Both fail only when it has ended meanwhile.
                let _ = child.kill();
                let _ = child.wait();
                return Err(SmiError::TimedOut(limit));
            }
            Err(error) => return Err(SmiError::Failed(error.to_string())),
        }
    }
}
