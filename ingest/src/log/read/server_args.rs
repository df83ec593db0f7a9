//! The arguments in `ServerArgs(name=value, …)`: Python's print of a data class.

/// Arguments that are kept at most.
const ARGS: usize = 1024;

/// Bytes of a value that are kept.
const VALUE: usize = 2048;

/// Names with values as printed, without the quotes of strings, from the text behind `ServerArgs(` up to the
/// bracket that closes it or the end of the text. Secrets are left out.
pub(super) fn read(text: &str) -> Vec<(Box<str>, Box<str>)> {
    let mut args = Vec::new();
    let mut rest = text;
    while args.len() < ARGS {
        let end = value_end(rest);
        let item = rest.get(..end).unwrap_or(rest);
        if let Some((name, value)) = item.split_once('=') {
            let name = name.trim();
            let is_name =
                !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
            if is_name && !is_secret(name) {
                args.push((name.into(), unquoted(value.trim())));
            }
        }
        match rest.get(end..).and_then(|tail| tail.strip_prefix(',')) {
            Some(tail) => rest = tail,
            None => break,
        }
    }
    args
}

fn is_secret(name: &str) -> bool {
    name.ends_with("api_key") || name.ends_with("_token") || name.contains("password")
}

fn unquoted(value: &str) -> Box<str> {
    let bare = ['\'', '"']
        .iter()
        .find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote))
        .unwrap_or(value);
    let end = (0..=bare.len().min(VALUE)).rev().find(|end| bare.is_char_boundary(*end));
    bare.get(..end.unwrap_or(0)).unwrap_or("").into()
}

/// Where the first item ends: at its comma or at the bracket that closes the whole.
fn value_end(text: &str) -> usize {
    let mut depth = 0_u32;
    let mut quote = None;
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate() {
        if escaped {
            escaped = false;
            continue;
        }
        match (quote, byte) {
            (Some(_), b'\\') => escaped = true,
            (Some(open), _) if open == byte => quote = None,
            (Some(_), _) => {}
            (None, b'\'' | b'"') => quote = Some(byte),
            (None, b'(' | b'[' | b'{') => depth += 1,
            (None, b')' | b']' | b'}') if depth == 0 => return at,
            (None, b')' | b']' | b'}') => depth -= 1,
            (None, b',') if depth == 0 => return at,
            (None, _) => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_values_and_quotes_are_kept_whole() {
        let args = read(
            "model_path='org/m (v1), x', tp_size=4, api_key='sk-1', cuda_graph_bs=[1, 2, 4], \
             json_model_override_args='{\"a\": \"b,c\"}', mem_fraction_static=0.85, x=Kind(a=1, b='=')) tail=1",
        );
        let args: Vec<_> = args.iter().map(|(name, value)| format!("{name}={value}")).collect();
        assert_eq!(
            args,
            [
                "model_path=org/m (v1), x",
                "tp_size=4",
                "cuda_graph_bs=[1, 2, 4]",
                "json_model_override_args={\"a\": \"b,c\"}",
                "mem_fraction_static=0.85",
                "x=Kind(a=1, b='=')",
            ]
        );
    }

    #[test]
    fn a_text_cut_off_gives_what_is_there() {
        assert_eq!(
            read("tp_size=4, model_path='or"),
            [("tp_size".into(), "4".into()), ("model_path".into(), "'or".into())]
        );
    }
}
