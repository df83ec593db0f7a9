//! Lines for people: wrapped at words, with a hanging indent; colour codes take no width.

/// Wraps `text` so that no line is longer than `width` columns, where words allow it; lines after the
/// first are indented by `indent` blanks.
pub fn wrap(text: &str, width: usize, indent: usize) -> String {
    let words = text.trim_start_matches(' ');
    let mut column = text.len() - words.len();
    let mut out = " ".repeat(column);
    let mut first = true;
    for word in words.split(' ') {
        let length = visible(word);
        if !first && column + 1 + length > width {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        } else if !first {
            out.push(' ');
            column += 1;
        }
        first = false;
        out.push_str(word);
        column += length;
    }
    out
}

/// Columns that a text takes: its characters without colour codes.
fn visible(text: &str) -> usize {
    let mut count = 0;
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        if c == '\u{1b}' {
            // A colour code ends with `m`.
            let _ = chars.by_ref().find(|c| *c == 'm');
        } else {
            count += 1;
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_words_and_hang() {
        let text = "help: one two three four";
        assert_eq!(wrap(text, 14, 6), "help: one two\n      three\n      four");
        assert_eq!(wrap(text, 80, 6), text);
        assert_eq!(wrap("", 80, 6), "");
        assert_eq!(wrap("  pool    1 two", 13, 4), "  pool    1\n    two");
    }

    #[test]
    fn colour_codes_take_no_width_and_long_words_stay_whole() {
        let painted = "\u{1b}[36mhelp:\u{1b}[0m one two";
        assert_eq!(wrap(painted, 13, 2), painted);
        assert_eq!(wrap("a bbbbbbbbbbbbbbbbbbbb c", 8, 2), "a\n  bbbbbbbbbbbbbbbbbbbb\n  c");
    }
}
