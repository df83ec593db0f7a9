//! What stands around a line: colours, the prefixes of containers, journals, pods, Ray and the engines' own
//! logging. What is taken off gives the rank and the stamp; a prefix that is not known stays and costs nothing.

use std::borrow::Cow;

use super::stamp::{self, Stamp, StampForm};
use crate::log::Rank;

/// A line without what stands around it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Undressed<'a> {
    /// The bare text, indentation kept.
    pub(super) text: &'a str,
    /// Who wrote it.
    pub(super) rank: Rank,
    /// A process that is told apart only by its number (`RayWorkerWrapper pid=…`): a digest of the number and
    /// its address.
    pub(super) process: Option<u64>,
    /// The innermost stamp of a full form.
    pub(super) stamp: Option<Stamp>,
    /// Whether the engine's own prefix was there: such a line is no continuation of another.
    pub(super) tagged: bool,
}

/// Prefixes that are taken off one line at most.
const PREFIXES: usize = 12;

/// Takes off everything that is known.
pub(super) fn undress(line: &str) -> Undressed<'_> {
    let mut bare =
        Undressed { text: line, rank: Rank::NONE, process: None, stamp: None, tagged: false };
    for _ in 0..PREFIXES {
        let text = bare.text;
        let trimmed = text.trim_start_matches([' ', '\t']);
        let Some(rest) = strip(trimmed, &mut bare) else { break };
        bare.text = rest;
    }
    bare.text = bare.text.trim_end();
    if bare.text.ends_with("across cluster]")
        && let Some(at) = bare.text.rfind(" [repeated ")
    {
        bare.text = bare.text.get(..at).unwrap_or(bare.text);
    }
    bare
}

/// One prefix, chosen by its first byte.
fn strip<'a>(text: &'a str, bare: &mut Undressed<'_>) -> Option<&'a str> {
    match *text.as_bytes().first()? {
        b'>' => text.strip_prefix('>').map(one_blank),
        b'`' if text.starts_with("```") => Some(""),
        b'[' => brackets(text, bare),
        b'(' => process(text, bare),
        b'0'..=b'9' => stamped(text, bare)
            .or_else(|| stream(text))
            .or_else(|| label(text))
            .or_else(|| compose(text)),
        first => level(text)
            .or_else(|| if first.is_ascii_uppercase() { journal(text, bare) } else { None })
            .or_else(|| compose(text))
            .or_else(|| grep(text))
            .or_else(|| place(text)),
    }
}

fn one_blank(text: &str) -> &str {
    text.strip_prefix(' ').unwrap_or(text)
}

fn note(bare: &mut Undressed<'_>, stamp: Stamp) {
    if bare.stamp.is_none_or(|old| stamp.form != StampForm::Daytime || old.form == stamp.form) {
        bare.stamp = Some(stamp);
    }
}

/// `[2026-01-02 03:04:05 DP0 TP1]`, `[TP0]`, `[gpu_id=0]`, `[rank3]:`, `[pod/name/container]`, `[INFO]`,
/// `[gpu_worker.py:298]`.
fn brackets<'a>(text: &'a str, bare: &mut Undressed<'_>) -> Option<&'a str> {
    let (inside, rest) = text.strip_prefix('[')?.split_once(']')?;
    if inside.len() > 120 {
        return None;
    }
    if let Some((stamp, after)) = stamp::leading(inside) {
        note(bare, stamp);
        bare.tagged = true;
        for word in after.split([' ', ',']) {
            take_tag(word, &mut bare.rank);
        }
    } else if let Some(rank) = only_tags(inside) {
        bare.rank = rank;
        bare.tagged = true;
    } else if !(is_level(inside) || inside.starts_with("pod/") || is_place(inside)) {
        return None;
    }
    let rest = rest.strip_prefix(':').unwrap_or(rest);
    Some(one_blank(rest))
}

fn only_tags(inside: &str) -> Option<Rank> {
    let mut rank = Rank::NONE;
    let all = inside.split([' ', ',']).all(|word| take_tag(word, &mut rank));
    (all && !rank.is_none()).then_some(rank)
}

/// One tag of a rank: `TP3`, `DP0`, `gpu_id=0`, `rank3`, `rank=3`, `default0`; whether it was one.
fn take_tag(word: &str, rank: &mut Rank) -> bool {
    let name_end = word.find(|c: char| c.is_ascii_digit()).unwrap_or(word.len());
    let (name, digits) = word.split_at(name_end);
    let Ok(number) = digits.parse::<u32>() else { return false };
    let slot = match name.trim_end_matches('=') {
        "DP" | "dp" => &mut rank.dp,
        "PP" | "pp" => &mut rank.pp,
        "TP" | "tp" => &mut rank.tp,
        "EP" | "ep" => &mut rank.ep,
        "gpu_id" | "rank" | "default" | "Rank" => &mut rank.worker,
        _ => return false,
    };
    *slot = Some(number);
    true
}

/// `(EngineCore_DP0 pid=1)`, `(Worker_TP3 pid=1)`, `(VllmWorker rank=3 pid=1)`, `(RayWorkerWrapper pid=1, ip=…)`.
fn process<'a>(text: &'a str, bare: &mut Undressed<'_>) -> Option<&'a str> {
    let (inside, rest) = text.strip_prefix('(')?.split_once(')')?;
    let at = inside.find("pid=")?;
    if inside.len() > 160 {
        return None;
    }
    let name = inside.get(..at)?;
    let mut rank = Rank::NONE;
    for word in name.split(['_', ' ', ',']) {
        take_tag(word, &mut rank);
    }
    bare.tagged = true;
    // vLLM's own processes are one each; of Ray's actors and of workers without a number there are many.
    let single =
        name.starts_with("EngineCore") || name.contains("APIServer") || name.contains("ApiServer");
    if !rank.is_none() {
        bare.rank = rank;
    } else if !single {
        bare.process = Some(digest(inside.get(at..)?));
    }
    Some(one_blank(rest))
}

/// FNV-1a: tells processes of one log apart, no more.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// A stamp of docker, a pod or a logger at the beginning of the line.
fn stamped<'a>(text: &'a str, bare: &mut Undressed<'_>) -> Option<&'a str> {
    let (stamp, rest) = stamp::leading(text)?;
    let rest = rest.strip_prefix([' ', ']', '\t', '|', ':']).or(rest.is_empty().then_some(rest))?;
    note(bare, stamp);
    let rest = rest.strip_prefix("- ").unwrap_or(rest);
    Some(stream(rest).unwrap_or(rest))
}

/// `stdout F ` of the container runtime interface.
fn stream(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("stdout ").or_else(|| text.strip_prefix("stderr "))?;
    rest.strip_prefix("F ").or_else(|| rest.strip_prefix("P "))
}

/// `12: ` of `srun --label`, before something that looks like a log line.
fn label(text: &str) -> Option<&str> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let rest = text.get(digits..)?.strip_prefix(": ")?;
    (digits <= 5 && (rest.starts_with(['[', '(']) || level(rest).is_some())).then_some(rest)
}

/// `name-1  | ` of docker compose.
fn compose(text: &str) -> Option<&str> {
    let name = text.bytes().take_while(|b| is_name(*b)).count();
    let rest = text.get(name..)?;
    let bar = rest.trim_start_matches(' ').strip_prefix('|')?;
    (name > 0 && rest.starts_with(' ')).then(|| one_blank(bar))
}

/// `Jan 02 03:04:05 host unit[123]: `.
fn journal<'a>(text: &'a str, bare: &mut Undressed<'_>) -> Option<&'a str> {
    let (stamp, rest) = stamp::leading(text)?;
    let rest = rest.strip_prefix(' ')?;
    let (head, tail) = rest.split_once(": ").or_else(|| Some((rest.strip_suffix(':')?, "")))?;
    if head.len() > 160 || head.split(' ').count() > 2 {
        return None;
    }
    note(bare, stamp);
    Some(tail)
}

/// `INFO 01-02 03:04:05 ` keeps its stamp for the next round; `ERROR: `, `WARNING:  ` too.
fn level(text: &str) -> Option<&str> {
    let end = text.bytes().take_while(u8::is_ascii_alphabetic).count();
    let (word, rest) = text.split_at(end);
    if !is_level(word) {
        return None;
    }
    if let Some(rest) = rest.strip_prefix(':') {
        return Some(rest.trim_start_matches(' '));
    }
    rest.strip_prefix([' ', '\t'])
}

fn is_level(word: &str) -> bool {
    const LEVELS: [&str; 13] = [
        "INFO", "WARNING", "ERROR", "DEBUG", "CRITICAL", "WARN", "info", "warning", "error",
        "debug", "FATAL", "TRACE", "critical",
    ];
    LEVELS.contains(&word)
}

/// `gpu_worker.py:298]` of vLLM up to 0.7.
fn place(text: &str) -> Option<&str> {
    let end = text.bytes().take_while(|b| is_name(*b) || *b == b':').count();
    let (head, rest) = text.split_at(end);
    if !is_place(head) {
        return None;
    }
    Some(one_blank(rest.strip_prefix(']')?))
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_./-".contains(&byte)
}

/// `server.log:123:` of grep over several files.
fn grep(text: &str) -> Option<&str> {
    let (file, rest) = text.split_at(text.bytes().take_while(|b| is_name(*b)).count());
    let rest = rest.strip_prefix(':')?;
    if ![".log", ".txt", ".out", ".err"].iter().any(|end| file.ends_with(end)) {
        return None;
    }
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    match rest.get(digits..).and_then(|after| after.strip_prefix(':')) {
        Some(after) if digits > 0 => Some(after),
        _ => Some(rest),
    }
}

/// `gpu_worker.py:298`.
fn is_place(text: &str) -> bool {
    text.split_once(".py:").is_some_and(|(file, line)| {
        !line.is_empty() && line.bytes().all(|b| b.is_ascii_digit()) && file.bytes().all(is_name)
    })
}

/// The line without escape sequences of a terminal and without NULs.
pub(super) fn plain(bytes: &[u8]) -> Cow<'_, [u8]> {
    if memchr::memchr2(0x1b, 0, bytes).is_none() {
        return Cow::Borrowed(bytes);
    }
    let mut clean = Vec::with_capacity(bytes.len());
    let mut rest = bytes.iter().copied().peekable();
    while let Some(byte) = rest.next() {
        match byte {
            0 => {}
            0x1b => match rest.next() {
                // A control sequence ends at its first letter, an operating system command at BEL or ESC.
                Some(b'[') => while rest.next().is_some_and(|b| !(0x40..=0x7e).contains(&b)) {},
                Some(b']') => {
                    while rest.next().is_some_and(|b| b != 7 && b != 0x1b && b != b'\\') {}
                }
                _ => {}
            },
            byte => clean.push(byte),
        }
    }
    Cow::Owned(clean)
}

/// The message of a JSON log line (`{"log":"…\n"}`, `message`, `msg`, `text`), with its stamp where one stands
/// in `time`, `timestamp`, `ts` or `@timestamp`.
pub(super) fn json_message(line: &str) -> Option<(String, Option<Stamp>)> {
    let line = line.trim();
    if !line.starts_with('{') || !line.ends_with('}') {
        return None;
    }
    let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(line).ok()?;
    let text = |names: &[&str]| {
        names.iter().find_map(|name| fields.get(*name)?.as_str().map(str::to_owned))
    };
    let message =
        text(&["log", "message", "msg", "MESSAGE", "text", "textPayload", "body", "event"])?;
    let stamp = text(&["time", "timestamp", "@timestamp", "ts", "asctime"])
        .and_then(|time| Some(stamp::leading(&time)?.0));
    Some((message, stamp))
}
