//! What vLLM prints of its arguments: a Python mapping, a `Namespace(…)`, or the engine's configuration.

use crate::log::Vllm;
use crate::log::read::fields::after;

/// Pairs that are kept at most; a release has fewer than 300 arguments.
const PAIRS: usize = 512;
/// Bytes of a value that are kept.
const VALUE: usize = 512;

/// `non-default args: {'max_model_len': 32768, …}`.
pub(super) fn mapping(line: &str) -> Option<Vllm> {
    let inside = after(line, "non-default args: ")?.trim_start().strip_prefix('{')?;
    Some(Vllm::Args(pairs(inside, ':')))
}

/// `args: Namespace(model='…', max_model_len=32768, …)` of older releases.
pub(super) fn namespace(line: &str) -> Option<Vllm> {
    Some(Vllm::Args(pairs(after(line, "args: Namespace(")?, '=')))
}

/// `Initializing a V1 LLM engine (v…) with config: model='…', max_seq_len=…, …`. The configuration's names
/// differ from the flags in one that matters here.
pub(super) fn config(line: &str) -> Option<Vllm> {
    let mut found = pairs(after(line, "with config: ")?, '=');
    for (name, _) in &mut found {
        if &**name == "max_seq_len" {
            *name = "max_model_len".into();
        }
    }
    Some(Vllm::Args(found))
}

/// `name SEP value, …` at the top level: commas inside brackets and quotes belong to the value. Ends at the
/// bracket that closes the whole.
fn pairs(text: &str, separator: char) -> Vec<(Box<str>, Box<str>)> {
    let mut found = Vec::new();
    let mut rest = text;
    while found.len() < PAIRS {
        let end = item_end(rest);
        let (item, behind) = rest.split_at(end);
        if let Some((name, value)) = item.split_once(separator) {
            let name = name.trim().trim_matches(['\'', '"']);
            if is_name(name) && !is_secret(name) {
                found.push((name.into(), clean(value)));
            }
        }
        match behind.strip_prefix(',') {
            Some(next) => rest = next,
            None => break,
        }
    }
    found
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 64
        && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
}

fn is_secret(name: &str) -> bool {
    name.ends_with("api_key") || name.ends_with("_token") || name.ends_with("password")
}

fn clean(value: &str) -> Box<str> {
    let value = value.trim().trim_matches(['\'', '"']);
    let end = value.char_indices().map(|(at, _)| at).find(|at| *at >= VALUE);
    value.get(..end.unwrap_or(value.len())).unwrap_or(value).into()
}

/// Where the item at the start of `text` ends: at a comma or a closing bracket outside every bracket and quote.
fn item_end(text: &str) -> usize {
    let mut depth = 0_u32;
    let mut quote = None;
    for (at, c) in text.char_indices() {
        match (quote, c) {
            (Some(open), _) if open == c => quote = None,
            (Some(_), _) => {}
            (None, '\'' | '"') => quote = Some(c),
            (None, '(' | '[' | '{') => depth += 1,
            (None, ')' | ']' | '}' | ',') if depth == 0 => return at,
            (None, ')' | ']' | '}') => depth -= 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(line: Option<Vllm>) -> Vec<(String, String)> {
        let Some(Vllm::Args(found)) = line else { panic!("no arguments") };
        found.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
    }

    #[test]
    fn a_mapping_keeps_nested_values_whole() {
        let line = "non-default args: {'model_tag': 'org/Model-7B', 'api_key': ['x'], \
                    'max_model_len': 32768, 'limit_mm_per_prompt': {'image': 2, 'video': 0}, 'enable_lora': True}";
        let found = args(mapping(line));
        let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["model_tag", "max_model_len", "limit_mm_per_prompt", "enable_lora"]);
        assert_eq!(found[0].1, "org/Model-7B");
        assert_eq!(found[2].1, "{'image': 2, 'video': 0}");
    }

    #[test]
    fn the_engine_configuration_names_the_length_as_the_flag_does() {
        let line = "Initializing a V1 LLM engine (v0.10.0) with config: model='org/M', speculative_config=None, \
                    max_seq_len=8192, compilation_config={\"level\":3,\"sizes\":[1,2]}";
        let found = args(config(line));
        assert!(found.contains(&("max_model_len".into(), "8192".into())));
        assert_eq!(found.len(), 4);
    }

    #[test]
    fn broken_text_ends_and_is_no_panic() {
        assert_eq!(
            args(mapping("non-default args: {'a': 'unclosed, ")),
            [("a".into(), "unclosed,".into())]
        );
        assert_eq!(mapping("non-default args: nothing"), None);
        assert!(args(namespace("args: Namespace(,,,)")).is_empty());
    }
}
