//! Text that is safe inside a page: names and commands come from files of others.

/// Text for an element or an attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            '\n' | '\t' => out.push(c),
            c if c.is_control() => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// JSON that may stand in a script element: no character in it can end one.
pub(crate) fn script_json(value: &serde_json::Value) -> String {
    value
        .to_string()
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029")
}

/// `<tag class="…">text</tag>` with the text escaped.
pub(crate) fn element(tag: &str, class: &str, text: &str) -> String {
    let class =
        if class.is_empty() { String::new() } else { format!(" class=\"{}\"", escape(class)) };
    format!("<{tag}{class}>{}</{tag}>", escape(text))
}
