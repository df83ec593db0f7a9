//! The forms of SGLang's lines while it serves, by release.

use plimsoll_core::policy::sglang::version::Version;

/// Use of a hybrid's window pool.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct WindowUse {
    pub(super) tokens: u64,
    pub(super) usage: f64,
}

/// Figures of a `Prefill batch` line.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct PrefillLine {
    /// Number of the pass, from 1.
    pub(super) iter: u64,
    pub(super) new_seq: u64,
    pub(super) new_token: u64,
    pub(super) cached_token: u64,
    pub(super) usage: f64,
    pub(super) window: Option<WindowUse>,
    pub(super) running: u64,
    pub(super) queue: u64,
    pub(super) pending_token: u64,
    pub(super) graph: bool,
    /// Tokens a second.
    pub(super) throughput: f64,
}

/// Figures of a `Decode batch` line.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct DecodeLine {
    /// Number of the pass, from 1.
    pub(super) iter: u64,
    pub(super) running: u64,
    pub(super) tokens: u64,
    pub(super) usage: f64,
    pub(super) window: Option<WindowUse>,
    pub(super) graph: bool,
    /// Tokens a second.
    pub(super) throughput: f64,
    pub(super) queue: u64,
}

/// Figures of the warning after a retraction.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct RetractLine {
    pub(super) requests: u64,
    pub(super) slots: u64,
    pub(super) before: f64,
    pub(super) after: f64,
}

/// What stands behind `Prefill batch` and `Decode batch`: 0.5.4 numbers its passes, 0.5.5 and later have a
/// comma where the number was.
fn head(version: Version, iter: u64) -> String {
    match () {
        () if version.since(5, 5) => ", ".to_owned(),
        () if version.since(5, 4) => format!(" [{iter}], "),
        () => ". ".to_owned(),
    }
}

const fn python(flag: bool) -> &'static str {
    if flag { "True" } else { "False" }
}

impl PrefillLine {
    /// Source: SGLang `log_prefill_stats`, 0.4.6 to 0.5.23.
    pub(super) fn text(&self, version: Version) -> String {
        let head = head(version, self.iter);
        let used = match self.window {
            Some(window) => {
                let (full, swa) = (self.usage, window.usage);
                format!("full token usage: {full:.2}, swa token usage: {swa:.2}")
            }
            None => format!("token usage: {:.2}", self.usage),
        };
        let mut out = format!(
            "Prefill batch{head}#new-seq: {}, #new-token: {}, #cached-token: {}, {used}, \
             #running-req: {}, #queue-req: {}",
            self.new_seq, self.new_token, self.cached_token, self.running, self.queue
        );
        if version.since(4, 10) {
            out.push_str(", ");
        }
        if version.since(5, 11) {
            out.push_str(&format!("#pending-token: {}, ", self.pending_token));
        }
        if version.since(5, 9) {
            out.push_str(&format!("cuda graph: {}", python(self.graph)));
        }
        if version.since(5, 10) {
            out.push_str(&format!(", input throughput (token/s): {:.2}", self.throughput));
        }
        out
    }
}

impl DecodeLine {
    /// Source: SGLang `log_decode_stats`, 0.4.6 to 0.5.23.
    pub(super) fn text(&self, version: Version) -> String {
        let head = head(version, self.iter);
        let graph = match version.since(4, 7) {
            true => format!("cuda graph: {}, ", python(self.graph)),
            false => String::new(),
        };
        let tail = if version.since(4, 10) && !version.since(5, 9) { ", " } else { "" };
        let (tokens, usage) = (self.tokens, self.usage);
        let used = match self.window {
            Some(WindowUse { tokens: swa, usage: share }) => format!(
                "#full token: {tokens}, full token usage: {usage:.2}, #swa token: {swa}, \
                 swa token usage: {share:.2}"
            ),
            None => format!("#token: {tokens}, token usage: {usage:.2}"),
        };
        format!(
            "Decode batch{head}#running-req: {}, {used}, {graph}gen throughput (token/s): {:.2}, \
             #queue-req: {}{tail}",
            self.running, self.throughput, self.queue
        )
    }
}

impl RetractLine {
    /// Source: SGLang `update_running_batch`, 0.4.6 to 0.5.23.
    pub(super) fn text(&self, version: Version) -> String {
        let what = match version.since(4, 7) {
            true => "KV cache pool is full. Retract requests.",
            false => "Decode out of memory happened.",
        };
        let more = match () {
            () if version.since(5, 7) => format!(", #new_tokens_gained: {}", self.slots),
            () if version.since(5, 3) && !version.since(5, 5) => {
                ", #aborted_retracted_reqs: 0".to_owned()
            }
            () => String::new(),
        };
        format!(
            "{what} #retracted_reqs: {}{more}, #new_token_ratio: {:.4} -> {:.4}",
            self.requests, self.before, self.after
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const V46: Version = Version::new(0, 4, 6);
    const V54: Version = Version::new(0, 5, 4);
    const V58: Version = Version::new(0, 5, 8);
    const V523: Version = Version::new(0, 5, 23);

    #[test]
    fn prefill_lines_have_the_form_of_their_release() {
        let line = PrefillLine {
            iter: 7,
            new_seq: 2,
            new_token: 8192,
            cached_token: 64,
            usage: 0.305,
            window: None,
            running: 3,
            queue: 4,
            pending_token: 900,
            graph: false,
            throughput: 1234.5,
        };
        let middle = "#new-seq: 2, #new-token: 8192, #cached-token: 64, token usage: 0.30, \
                      #running-req: 3, #queue-req: 4";
        assert_eq!(line.text(V46), format!("Prefill batch. {middle}"));
        assert_eq!(line.text(V54), format!("Prefill batch [7], {middle}, "));
        assert_eq!(line.text(V58), format!("Prefill batch, {middle}, "));
        let tail = "#pending-token: 900, cuda graph: False, input throughput (token/s): 1234.50";
        assert_eq!(line.text(V523), format!("Prefill batch, {middle}, {tail}"));
        let line = PrefillLine { window: Some(WindowUse { tokens: 90, usage: 0.9 }), ..line };
        let hybrid = "#cached-token: 64, full token usage: 0.30, swa token usage: 0.90, #running";
        assert!(line.text(V58).contains(hybrid), "{}", line.text(V58));
    }

    #[test]
    fn decode_lines_have_the_form_of_their_release() {
        let line = DecodeLine {
            iter: 40,
            running: 5,
            tokens: 1100,
            usage: 0.55,
            window: None,
            graph: true,
            throughput: 200.0,
            queue: 1,
        };
        let [first, last] = [
            "#running-req: 5, #token: 1100, token usage: 0.55, ",
            "gen throughput (token/s): 200.00, #queue-req: 1",
        ];
        assert_eq!(line.text(V46), format!("Decode batch. {first}{last}"));
        assert_eq!(line.text(V58), format!("Decode batch, {first}cuda graph: True, {last}, "));
        assert_eq!(line.text(V523), format!("Decode batch, {first}cuda graph: True, {last}"));
        let line = DecodeLine { window: Some(WindowUse { tokens: 90, usage: 0.9 }), ..line };
        let hybrid = "#running-req: 5, #full token: 1100, full token usage: 0.55, #swa token: 90, \
                      swa token usage: 0.90, cuda graph: True, ";
        assert_eq!(line.text(V58), format!("Decode batch, {hybrid}{last}, "));
    }

    #[test]
    fn retractions_have_the_form_of_their_release() {
        let line = RetractLine { requests: 2, slots: 300, before: 0.5, after: 0.61234 };
        let ratio = "#new_token_ratio: 0.5000 -> 0.6123";
        let old = format!("Decode out of memory happened. #retracted_reqs: 2, {ratio}");
        assert_eq!(line.text(V46), old);
        let new = "KV cache pool is full. Retract requests. #retracted_reqs: 2, ";
        assert_eq!(line.text(V54), format!("{new}#aborted_retracted_reqs: 0, {ratio}"));
        assert_eq!(line.text(V58), format!("{new}#new_tokens_gained: 300, {ratio}"));
    }
}
