//! What a server's log says of its speed: SGLang's `Decode batch` lines, vLLM's periodic statistics. Each is
//! a window of time with its load.

/// A stretch of a log over which the server says how fast it was.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Window {
    /// Line, from 1.
    pub line: u64,
    /// Requests that ran at its end.
    pub running: f64,
    /// Tokens that they held, where the line says so.
    pub held_tokens: Option<f64>,
    /// Share of the pool, 0 to 1, where it does.
    pub usage: Option<f64>,
    /// Tokens made in a second.
    pub output_per_second: f64,
    /// Prompt tokens in a second; SGLang's line leaves out the time of prefills.
    pub prompt_per_second: f64,
}

/// The windows of a log, steady ones alone: with requests, with a speed, and as many requests as in the
/// window before (the speed is a mean over the window, the load that of its end).
#[must_use]
pub fn windows(text: &str) -> Vec<Window> {
    let mut before: Option<f64> = None;
    let mut out = Vec::new();
    for (number, line) in (1_u64..).zip(text.lines()) {
        if line.contains("Prefill batch") {
            // A decode line's speed counts from the decode line before: prefills between are in it.
            before = None;
            continue;
        }
        let Some(window) = window(line, number) else { continue };
        let steady = before.is_some_and(|running| (running - window.running).abs() < 0.5);
        before = Some(window.running);
        if steady && window.running >= 1.0 && window.output_per_second > 0.0 {
            out.push(window);
        }
    }
    out
}

fn window(line: &str, number: u64) -> Option<Window> {
    if let Some(at) = line.find("Decode batch") {
        let rest = line.get(at..)?;
        return Some(Window {
            line: number,
            running: after(rest, "#running-req: ")?,
            held_tokens: after(rest, "#token: ").or_else(|| after(rest, "#full token: ")),
            usage: after(rest, "token usage: "),
            output_per_second: after(rest, "gen throughput (token/s): ")?,
            prompt_per_second: 0.0,
        });
    }
    let rest = line.get(line.find("Avg prompt throughput: ")?..)?;
    Some(Window {
        line: number,
        running: after(rest, "Running: ")?,
        held_tokens: None,
        usage: after(rest, "GPU KV cache usage: ").map(|percent| percent / 100.0),
        output_per_second: after(rest, "Avg generation throughput: ")?,
        prompt_per_second: after(rest, "Avg prompt throughput: ")?,
    })
}

/// The number behind a word.
fn after(text: &str, word: &str) -> Option<f64> {
    let rest = text.get(text.find(word)? + word.len()..)?;
    let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
    rest.get(..end)?.trim_end_matches('.').parse().ok().filter(|n: &f64| (0.0..=1e9).contains(n))
}
