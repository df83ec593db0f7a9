//! The user's command with one flag changed, for "pass this instead".

use super::argv::is_flag;
use super::place::Word;
use super::table::{Arity, Lookup, Row, Table};
use super::{Engine, default_version, program};

/// `tokens` with `flag` set to `value` (`None`: a flag without a value), everything else as typed.
///
/// A flag that stands already, in whatever spelling, gets the new value in place (the last one, which
/// counts; earlier ones stay). Otherwise it goes at the end of the server's own words. A command inside
/// a quoted word (`bash -c "…"`) is changed inside that word, which is then rendered anew. Tokens that
/// start no server get the flag at the end.
#[must_use]
pub fn with_flag(tokens: &[String], flag: &str, value: Option<&str>) -> Vec<String> {
    let found = program::search_argv(tokens).ok();
    let server = found.as_ref().and_then(|found| found.servers.first());
    let Some(server) = server else { return appended(tokens, flag, value) };
    // The arguments of a server in plain words are the tail of the tokens.
    let direct = tokens.len().checked_sub(server.args.len()).filter(|start| {
        let tail = tokens.get(*start..).unwrap_or_default();
        *start > 0 && tail.iter().zip(&server.args).all(|(a, b)| *a == b.text)
    });
    if let Some(start) = direct {
        return in_words(server.engine, tokens, start, flag, value);
    }
    let mut out = tokens.to_vec();
    for slot in out.iter_mut().filter(|t| t.contains(char::is_whitespace)) {
        if let Some(changed) = text_with_flag(slot, flag, value) {
            *slot = changed;
            return out;
        }
    }
    appended(tokens, flag, value)
}

fn spelled(flag: &str, value: Option<&str>) -> Vec<String> {
    let mut out = vec![flag.to_owned()];
    match value {
        // `-1` may follow a flag; another word with a dash would be taken for one.
        Some(value) if is_flag(value) => out = vec![format!("{flag}={value}")],
        Some(value) => out.push(value.to_owned()),
        None => {}
    }
    out
}

fn appended(tokens: &[String], flag: &str, value: Option<&str>) -> Vec<String> {
    let mut out = tokens.to_vec();
    out.extend(spelled(flag, value));
    out
}

fn row_of(engine: Engine, name: &str) -> Option<&'static Row> {
    let dashed = if name.starts_with("--") { name.replace('_', "-") } else { name.to_owned() };
    match Table::of(engine).look_up(&dashed, default_version(engine)) {
        Lookup::Exact(row, _) | Lookup::Prefix(row, ..) => Some(row),
        Lookup::Ambiguous(_) | Lookup::Unknown => None,
    }
}

fn in_words(
    engine: Engine,
    tokens: &[String],
    start: usize,
    flag: &str,
    value: Option<&str>,
) -> Vec<String> {
    let wanted = row_of(engine, flag).map(|row| row.name);
    let name = |token: &str| token.split('=').next().unwrap_or_default().to_owned();
    let same = |token: &String| {
        let name = name(token);
        name == flag || (wanted.is_some() && row_of(engine, &name).map(|r| r.name) == wanted)
    };
    let tail = tokens.get(start..).unwrap_or_default();
    let Some(at) = tail.iter().rposition(|t| is_flag(t) && same(t)).map(|i| i + start) else {
        return appended(tokens, flag, value);
    };
    let Some(token) = tokens.get(at) else { return appended(tokens, flag, value) };
    let typed = name(token);
    let (old, attached) = (row_of(engine, &typed), token.contains('='));
    let after = tokens.get(at + 1..).unwrap_or_default();
    let values = after.iter().take_while(|t| !is_flag(t)).count();
    let dropped = match old.map(|row| row.arity) {
        _ if attached => 0,
        Some(Arity::None) => 0,
        Some(Arity::One | Arity::Optional) => values.min(1),
        Some(Arity::AtLeastOne | Arity::Any) => values,
        None => values.min(usize::from(value.is_some())),
    };
    let mut out = tokens.get(..at).unwrap_or_default().to_vec();
    match value {
        Some(value) if attached => out.push(format!("{typed}={value}")),
        _ => out.extend(spelled(&typed, value)),
    }
    out.extend(after.iter().skip(dropped).cloned());
    out
}

/// `text`, a shell text that starts a server, with `flag` set to `value`.
///
/// A text of one plain command is changed as [`with_flag`] changes words and rendered anew. In a script
/// the flag goes behind the server's last word, where it wins over an earlier one, and the rest stays as
/// typed. `None` when the text starts no server.
#[must_use]
pub fn text_with_flag(text: &str, flag: &str, value: Option<&str>) -> Option<String> {
    let found = program::search_text(text).ok()?;
    let server = found.servers.first()?;
    let plain = !text.contains(['\n', '$', '>', '<', '`', ';', '|', '&', '#']);
    let words = shlex::split(text).filter(|words| plain && !words.is_empty());
    if let Some(words) = words {
        return Some(super::render(&with_flag(&words, flag, value)));
    }
    let insert: Vec<String> = spelled(flag, value).iter().map(|w| super::quote(w)).collect();
    let at =
        server.args.last().and_then(|word| end_of(text, word)).unwrap_or(text.trim_end().len());
    let (before, after) = text.split_at_checked(at)?;
    Some(format!("{before} {}{after}", insert.join(" ")))
}

/// The byte of `text` behind `word`, closing quotes included.
fn end_of(text: &str, word: &Word) -> Option<usize> {
    let last = *word.map.last()? as usize;
    let rest = text.get(last..)?;
    let source = rest.chars().next()?;
    if source != '$' && !word.text.ends_with(source) {
        return None;
    }
    let stop = |c: char| c.is_whitespace() || matches!(c, ';' | '|' | '&' | '>' | '<' | ')');
    let skip = source.len_utf8();
    Some(last + skip + rest.get(skip..)?.find(stop).unwrap_or(rest.len() - skip))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn edit(command: &str, flag: &str, value: Option<&str>) -> String {
        let tokens = shlex::split(command).unwrap();
        super::super::render(&with_flag(&tokens, flag, value))
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
    }

    #[test]
    fn a_script_keeps_its_text() {
        let text = "export N=8\nvllm serve m \\\n  -tp $N > log 2>&1 # go\n";
        let want = "export N=8\nvllm serve m \\\n  -tp $N --enforce-eager > log 2>&1 # go\n";
        assert_eq!(text_with_flag(text, "--enforce-eager", None).as_deref(), Some(want));
        assert_eq!(text_with_flag("echo", "--x", None), None);
    }
}
