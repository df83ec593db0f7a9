//! Chat templates in the dialect of Hugging Face: Jinja with blocks trimmed, `raise_exception`,
//! `strftime_now` and a `tojson` as Python writes it.

use minijinja::{Environment, Error, ErrorKind, value::Kwargs};
use serde_json::{Value, json};

use crate::{Texts, Tokenizer, error::CheckpointError, tokenizer};

const NAME: &str = "chat";

/// The date that a template may print; the caller's, so that a text depends on its inputs alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Today {
    /// Year.
    pub year: u16,
    /// Month from 1.
    pub month: u8,
    /// Day from 1.
    pub day: u8,
}

/// A chat template with the special tokens that it names.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

/// Whether the assistant's turn is opened at the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Turn {
    /// The model goes on as the assistant.
    Assistant,
    /// The conversation as it stands.
    None,
}

impl ChatTemplate {
    pub(crate) fn open(
        texts: &Texts,
        tokenizer: &Tokenizer,
    ) -> Result<Option<Self>, CheckpointError> {
        let Some(text) = tokenizer::chat_template(texts)? else { return Ok(None) };
        let (bos, eos) = (tokenizer.bos.clone(), tokenizer.eos.clone());
        let found = Self::new(&text, bos.unwrap_or_default(), eos.unwrap_or_default());
        let path = texts.path().display();
        let placed = |e: CheckpointError| match e {
            CheckpointError::Template(message) => {
                CheckpointError::Template(format!("{path}: {message}"))
            }
            other => other,
        };
        found.map(Some).map_err(placed)
    }

    /// A template from its text; `bos` and `eos` are what it calls `bos_token` and `eos_token`.
    ///
    /// # Errors
    /// `Template` with the line.
    pub fn new(text: &str, bos: String, eos: String) -> Result<Self, CheckpointError> {
        let mut environment = Environment::new();
        environment.set_trim_blocks(true);
        environment.set_lstrip_blocks(true);
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message))
        });
        environment.add_filter("tojson", to_json);
        environment.set_fuel(Some(10_000_000));
        environment.add_template_owned(NAME, text.to_owned()).map_err(wrong)?;
        Ok(Self { environment, bos, eos })
    }

    /// The prompt of a conversation: `messages` is a list of objects with `role` and `content`, `tools` a
    /// list or null.
    ///
    /// # Errors
    /// `Template`: what the template raises, or a fault in it.
    pub fn render(
        &self,
        messages: &Value,
        tools: &Value,
        turn: Turn,
        today: Today,
    ) -> Result<String, CheckpointError> {
        let mut environment = self.environment.clone();
        environment.add_function("strftime_now", move |format: String| strftime(&format, today));
        let mut context = json!({
            "messages": messages,
            "bos_token": self.bos,
            "eos_token": self.eos,
            "add_generation_prompt": turn == Turn::Assistant,
        });
        // Templates ask whether it is defined.
        if !tools.is_null()
            && let Some(map) = context.as_object_mut()
        {
            map.insert("tools".to_owned(), tools.clone());
        }
        let template = environment.get_template(NAME).map_err(wrong)?;
        template.render(context).map_err(wrong)
    }
}

fn wrong(error: Error) -> CheckpointError {
    let line = error.line().map(|line| format!("line {line}: ")).unwrap_or_default();
    let text = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    CheckpointError::Template(format!("{line}{text}"))
}

/// `json.dumps` without ASCII escapes, with its spaces, and with an indent where one is asked for.
fn to_json(value: &minijinja::Value, options: Kwargs) -> Result<String, Error> {
    let indent: Option<usize> = options.get("indent")?;
    let value = serde_json::to_value(value)
        .map_err(|e| Error::new(ErrorKind::BadSerialization, e.to_string()))?;
    let mut out = String::new();
    write_json(&value, indent.map(|n| n.min(16)), 0, &mut out);
    Ok(out)
}

fn write_json(value: &Value, indent: Option<usize>, depth: usize, out: &mut String) {
    let line = |depth: usize, out: &mut String| {
        if let Some(indent) = indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent * depth));
        }
    };
    let comma = if indent.is_some() { "," } else { ", " };
    match value {
        Value::Array(items) if !items.is_empty() => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { comma });
                line(depth + 1, out);
                write_json(item, indent, depth + 1, out);
            }
            line(depth, out);
            out.push(']');
        }
        Value::Object(items) if !items.is_empty() => {
            out.push('{');
            for (i, (key, item)) in items.iter().enumerate() {
                out.push_str(if i == 0 { "" } else { comma });
                line(depth + 1, out);
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push_str(": ");
                write_json(item, indent, depth + 1, out);
            }
            line(depth, out);
            out.push('}');
        }
        other => out.push_str(&other.to_string()),
    }
}

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The parts of `strftime` that templates use.
fn strftime(format: &str, today: Today) -> Result<String, Error> {
    let month = MONTHS.get(usize::from(today.month).saturating_sub(1)).copied().unwrap_or("");
    let mut out = String::new();
    let mut rest = format.chars();
    while let Some(c) = rest.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        match rest.next() {
            Some('Y') => out.push_str(&format!("{:04}", today.year)),
            Some('m') => out.push_str(&format!("{:02}", today.month)),
            Some('d') => out.push_str(&format!("{:02}", today.day)),
            Some('B') => out.push_str(month),
            Some('b') => out.push_str(month.get(..3).unwrap_or("")),
            Some('%') => out.push('%'),
            other => {
                let found = other.map(String::from).unwrap_or_default();
                let message = format!("strftime_now: `%{found}`; known: %Y %m %d %B %b");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Today = Today { year: 2026, month: 11, day: 3 };

    fn render(text: &str, messages: Value, tools: Value) -> Result<String, String> {
        let template = ChatTemplate::new(text, "<s>".to_owned(), "</s>".to_owned()).unwrap();
        template.render(&messages, &tools, Turn::Assistant, DAY).map_err(|e| e.to_string())
    }

    #[test]
    fn blocks_are_trimmed_and_python_methods_work() {
        let text = "{{ bos_token }}{% for m in messages %}\n    {%- if m.role.startswith('us') %}\n\
                    {{ m['content'].strip() }}\n    {% endif %}\n{% endfor %}|\
                    {% if tools is defined %}T{% endif %}{{ strftime_now('%d %b %Y') }}";
        let messages = json!([{"role": "user", "content": "  hi "}]);
        assert_eq!(render(text, messages, Value::Null).unwrap(), "<s>hi\n|03 Nov 2026");
    }

    #[test]
    fn json_is_pythons() {
        let tools = json!([{"name": "f", "args": {"é": [1, 2.5, null, true], "e": {}}}]);
        let text = "{{ tools | tojson }}";
        let one = r#"[{"name": "f", "args": {"é": [1, 2.5, null, true], "e": {}}}]"#;
        assert_eq!(render(text, json!([]), tools.clone()).unwrap(), one);
        let text = "{{ tools[0].args | tojson(indent=2) }}";
        let many = "{\n  \"é\": [\n    1,\n    2.5,\n    null,\n    true\n  ],\n  \"e\": {}\n}";
        assert_eq!(render(text, json!([]), tools).unwrap(), many);
    }

    #[test]
    fn what_a_template_raises_is_the_message() {
        let text = "\n{{ raise_exception('roles must alternate') }}";
        let error = render(text, json!([]), Value::Null).unwrap_err();
        assert_eq!(error, "chat template: line 2: roles must alternate");
        assert!(ChatTemplate::new("{% for %}", String::new(), String::new()).is_err());
        let endless =
            "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}";
        assert!(render(endless, json!([]), Value::Null).is_err());
    }
}
