//! The user's command with one flag changed, for "pass this instead".

use super::argv::is_flag;
use super::place::Word;
use super::table::{Arity, Lookup, Row, Table};
use super::{Engine, default_version, program, yaml};

/// `tokens` with `flag` set to `value` (`None`: a flag without a value), everything else as typed.
///
/// A flag that stands already, in whatever spelling, gets the new value in place (the last one, which
/// counts; earlier ones stay). Otherwise it goes at the end of the server's own words. A command inside
/// a quoted word (`bash -c "…"`) is changed inside that word, which is then rendered anew; `None` when it
/// cannot be. Tokens that start no server get the flag at the end.
#[must_use]
pub fn with_flag(tokens: &[String], flag: &str, value: Option<&str>) -> Option<Vec<String>> {
    let found = program::search_argv(tokens).ok();
    let server = found.as_ref().and_then(|found| found.servers.first());
    let Some(server) = server else {
        return Some(Change::behind(tokens, flag, value.as_slice()).applied(tokens));
    };
    if !server.nested {
        // The arguments of a server in plain words are the tail of the tokens.
        let (head, tail) = tokens.split_at(tokens.len().saturating_sub(server.args.len()));
        let change = Change::of(server.engine, tail, flag, value.as_slice());
        return Some([head, &change.applied(tail)].concat());
    }
    let mut out = tokens.to_vec();
    for slot in out.iter_mut().filter(|t| t.contains(char::is_whitespace)) {
        if let Some(changed) = text_with_flag(slot, flag, value) {
            *slot = changed;
            return Some(out);
        }
    }
    None
}

/// `text`, a shell text that starts a server, with `flag` set to `value`.
///
/// A flag that stands already gets the new value in place; a new one, or one that comes out of a variable,
/// goes behind the server's last word. Everything else stays as typed, continuations and comments included.
/// `None` when the text starts no server, or cannot be changed so: the result is read again, and must hold
/// the server's words with this one change. A Compose or Kubernetes description is not changed.
#[must_use]
pub fn text_with_flag(text: &str, flag: &str, value: Option<&str>) -> Option<String> {
    text_with_values(text, flag, value.as_slice())
}

/// [`text_with_flag`] for a flag of any number of values.
#[must_use]
pub fn text_with_values(text: &str, flag: &str, values: &[&str]) -> Option<String> {
    if !matches!(yaml::search(text), Ok(None)) {
        return None;
    }
    let found = program::search_text(text).ok()?;
    let server = found.servers.first()?;
    let words: Vec<String> = server.args.iter().map(|w| w.text.clone()).collect();
    let in_place = Change::of(server.engine, &words, flag, values);
    [in_place, Change::behind(&words, flag, values)].iter().find_map(|change| {
        let changed = change.in_text(text, &server.args)?;
        let again = program::search_text(&changed).ok()?;
        let args = again.servers.first()?.args.iter().map(|w| w.text.as_str());
        args.eq(change.applied(&words).iter().map(String::as_str)).then_some(changed)
    })
}

/// `dropped` words from `at` give way to `insert`.
struct Change {
    at: usize,
    dropped: usize,
    insert: Vec<String>,
}

impl Change {
    /// In place of the last `flag` among `words`, in whatever spelling, else behind them.
    fn of(engine: Engine, words: &[String], flag: &str, values: &[&str]) -> Self {
        let wanted = row_of(engine, flag).map(|row| row.name);
        let found = words.iter().enumerate().rfind(|(_, word)| {
            let name = word.split('=').next().unwrap_or_default();
            let same = || wanted.is_some() && row_of(engine, name).map(|row| row.name) == wanted;
            is_flag(word) && (name == flag || same())
        });
        let Some((at, word)) = found else { return Self::behind(words, flag, values) };
        match (word.split_once('='), values) {
            (Some((typed, _)), [value]) => {
                Self { at, dropped: 1, insert: vec![format!("{typed}={value}")] }
            }
            (Some((typed, _)), values) => Self { at, dropped: 1, insert: spelled(typed, values) },
            (None, values) => {
                let after = words.get(at + 1..).unwrap_or_default();
                let dropped = 1 + taken(engine, word, after);
                Self { at, dropped, insert: spelled(word, values) }
            }
        }
    }

    fn behind(words: &[String], flag: &str, values: &[&str]) -> Self {
        Self { at: words.len(), dropped: 0, insert: spelled(flag, values) }
    }

    fn applied(&self, words: &[String]) -> Vec<String> {
        let head = words.get(..self.at).unwrap_or_default();
        let tail = words.get(self.at + self.dropped..).unwrap_or_default();
        [head, &self.insert, tail].concat()
    }

    fn in_text(&self, text: &str, words: &[Word]) -> Option<String> {
        let insert: Vec<String> = self.insert.iter().map(|w| super::quote(w)).collect();
        let insert = insert.join(" ");
        if self.dropped == 0 {
            let end = words.last()?.end?;
            return Some(format!("{} {insert}{}", text.get(..end)?, text.get(end..)?));
        }
        let (start, _) = words.get(self.at)?.span()?;
        let (_, end) = words.get(self.at + self.dropped - 1)?.span()?;
        Some(format!("{}{insert}{}", text.get(..start)?, text.get(end..)?))
    }
}

fn spelled(flag: &str, values: &[&str]) -> Vec<String> {
    match values {
        // `-1` may follow a flag; another word with a dash would be taken for one.
        [value] if is_flag(value) => vec![format!("{flag}={value}")],
        values => std::iter::once(flag).chain(values.iter().copied()).map(str::to_owned).collect(),
    }
}

fn row_of(engine: Engine, name: &str) -> Option<&'static Row> {
    let dashed = if name.starts_with("--") { name.replace('_', "-") } else { name.to_owned() };
    match Table::of(engine).look_up(&dashed, default_version(engine)) {
        Lookup::Exact(row, _) | Lookup::Prefix(row, ..) => Some(row),
        Lookup::Ambiguous(_) | Lookup::Unknown => None,
    }
}

/// How many of the words after a flag are its values.
fn taken(engine: Engine, typed: &str, after: &[String]) -> usize {
    let values = after.iter().take_while(|word| !is_flag(word)).count();
    match row_of(engine, typed).map(|row| row.arity) {
        Some(Arity::None) => 0,
        Some(Arity::One | Arity::Optional) | None => values.min(1),
        Some(Arity::AtLeastOne | Arity::Any) => values,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(command: &str, flag: &str, value: Option<&str>) -> String {
        let tokens = shlex::split(command).unwrap();
        super::super::render(&with_flag(&tokens, flag, value).unwrap())
    }

    #[test]
    fn a_flag_is_replaced_in_the_spelling_that_stands() {
        let base = "sudo python -m sglang.launch_server --model m --tp 8";
        assert_eq!(
            edit(base, "--tensor-parallel-size", Some("4")),
            base.replace("--tp 8", "--tp 4")
        );
        let both = format!("{base} --mem-fraction-static=0.93 --trust-remote-code");
        let want = both.replace("0.93", "0.88");
        assert_eq!(edit(&both, "--mem-fraction-static", Some("0.88")), want);
        let lists = format!("{base} --cuda-graph-bs 1 2 4 --log-level info");
        let want = lists.replace("1 2 4", "8");
        assert_eq!(edit(&lists, "--cuda-graph-bs", Some("8")), want);
        let vllm = "vllm serve m -tp 2 --max_model_len 8192";
        let want = vllm.replace("8192", "4096");
        assert_eq!(edit(vllm, "--max-model-len", Some("4096")), want);
        assert_eq!(edit(vllm, "--tensor-parallel-size", Some("4")), vllm.replace("-tp 2", "-tp 4"));
    }

    #[test]
    fn a_flag_is_added_at_the_end() {
        let base = "CUDA_VISIBLE_DEVICES=0 vllm serve m";
        assert_eq!(edit(base, "--enforce-eager", None), format!("{base} --enforce-eager"));
        assert_eq!(edit(base, "--x", Some("-a")), format!("{base} --x=-a"));
        assert_eq!(
            edit(base, "--chunked-prefill-size", Some("-1")),
            format!("{base} --chunked-prefill-size -1")
        );
        assert_eq!(edit("ls", "--tp", Some("2")), "ls --tp 2");
    }

    #[test]
    fn a_command_inside_a_quoted_word_is_changed_there() {
        let out =
            edit("bash -c 'cd /x && vllm serve m -tp 2 | tee log'", "--max-num-seqs", Some("8"));
        assert_eq!(out, "bash -c 'cd /x && vllm serve m -tp 2 --max-num-seqs 8 | tee log'");
        let out = edit("bash -lc 'vllm serve m -tp 2'", "-tp", Some("8"));
        assert_eq!(out, "bash -lc 'vllm serve m -tp 8'");
        // Where the server's words come out of a substitution, a flag has no place.
        let words = ["bash", "-c", "vllm serve m$( -tp 2"].map(str::to_owned);
        assert_eq!(with_flag(&words, "--x", None), None);
    }

    #[test]
    fn a_script_keeps_its_text() {
        let text = "export N=8\nvllm serve m \\\n  -tp $N > log 2>&1 # go\n";
        let want = "export N=8\nvllm serve m \\\n  -tp $N --enforce-eager > log 2>&1 # go\n";
        assert_eq!(text_with_flag(text, "--enforce-eager", None).as_deref(), Some(want));
        let want = text.replace("-tp $N", "-tp 4");
        assert_eq!(text_with_flag(text, "--tensor-parallel-size", Some("4")), Some(want));
        let text = "sglang serve m \\\n  --cuda-graph-bs 1 2 \\\n  --dtype='half' # x";
        let want = text.replace("1 2", "1");
        assert_eq!(text_with_flag(text, "--cuda-graph-bs", Some("1")), Some(want));
        let want = text.replace("--dtype='half'", "--dtype=auto");
        assert_eq!(text_with_flag(text, "--dtype", Some("auto")), Some(want));
        let text = "A='--tp 8 --page-size 16'\nsglang serve m $A && echo";
        let want = text.replace("$A &&", "$A --tp 4 &&");
        assert_eq!(text_with_flag(text, "--tp", Some("4")), Some(want));
        let text = "C='vllm serve m -tp 2'\nbash -c \"$C\"";
        assert_eq!(text_with_flag(text, "-tp", Some("4")), None);
        let text = "a=1\ndocker run i bash -c \"vllm serve m -tp 2\" && echo";
        let want = text.replace("-tp 2", "-tp 2 --enforce-eager");
        assert_eq!(text_with_flag(text, "--enforce-eager", None), Some(want));
        let want = text.replace("-tp 2", "-tp 8");
        assert_eq!(text_with_flag(text, "-tp", Some("8")), Some(want));
        let want = text.replace("-tp 2", "-tp 2 --hf-overrides '{}'");
        assert_eq!(text_with_flag(text, "--hf-overrides", Some("{}")), Some(want));
        // In single quotes the same would end the outer word.
        let text = "cd / && bash -c 'vllm serve m -tp 2'";
        assert_eq!(text_with_flag(text, "--hf-overrides", Some("{\"a\": 1}")), None);
        let text = "sglang serve m --cuda-graph-bs=8 -x";
        let want = text.replace("=8", " 1 2");
        assert_eq!(text_with_values(text, "--cuda-graph-bs", &["1", "2"]), Some(want));
        assert_eq!(text_with_flag("echo", "--x", None), None);
        // The server of the description decides, not what looks like one in its lines.
        let text = "x: vllm serve m\nimage: vllm/vllm-openai:v0.11.0\ncommand: --model m\n";
        assert_eq!(text_with_flag(text, "--tp", Some("2")), None);
    }
}
