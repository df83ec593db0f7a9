//! Words read as the engines' argument parsers read them: Python `int`, `float`, JSON, sizes with a suffix.

use plimsoll_core::policy::sglang::version::Version;

use super::Engine;
use super::error::{ErrorCode, LaunchError};
use super::place::{Place, Warning};
use super::table::{Effect, Kind, Row, Table, nearest};

/// A value in its type.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Value {
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(String),
    Json(serde_json::Value),
}

/// `int(text)` of Python: blanks around, a sign, digits with single underscores between.
pub(crate) fn python_int(text: &str) -> Option<i64> {
    let text = text.trim();
    let digits = text.strip_prefix(['+', '-']).unwrap_or(text);
    let fits = |d: &str| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit());
    if !digits.split('_').all(fits) {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// `float(text)` of Python, without `nan`.
pub(crate) fn python_float(text: &str) -> Option<f64> {
    let text = text.trim();
    if text.starts_with('_') || text.ends_with('_') || text.contains("__") {
        return None;
    }
    text.replace('_', "").parse().ok().filter(|x: &f64| !x.is_nan())
}

/// A whole number with a suffix. vLLM: `k m g t` are powers of 1000 and may follow a decimal,
/// `K M G T` powers of 1024 after a whole number. SGLang: `k M G T` are powers of 1000 and may
/// follow a decimal, `Ki Mi Gi Ti` powers of 1024 after a whole number.
/// Source: `human_readable_int` in vLLM 0.33 `utils/argparse_utils.py`, SGLang 0.5.23
/// `srt/utils/common.py`.
pub(crate) fn suffixed_int(engine: Engine, text: &str) -> Option<i64> {
    let text = text.trim();
    let cut = text.find(|c: char| !(c.is_ascii_digit() || c == '.'))?;
    let (number, suffix) = text.split_at(cut);
    let (base, power): (i64, u32) = match (engine, suffix) {
        (_, "k") => (1000, 1),
        (Engine::Vllm, "m") | (Engine::Sglang, "M") => (1000, 2),
        (Engine::Vllm, "g") | (Engine::Sglang, "G") => (1000, 3),
        (Engine::Vllm, "t") | (Engine::Sglang, "T") => (1000, 4),
        (Engine::Vllm, "K") | (Engine::Sglang, "Ki") => (1024, 1),
        (Engine::Vllm, "M") | (Engine::Sglang, "Mi") => (1024, 2),
        (Engine::Vllm, "G") | (Engine::Sglang, "Gi") => (1024, 3),
        (Engine::Vllm, "T") | (Engine::Sglang, "Ti") => (1024, 4),
        _ => return None,
    };
    let scale = base.pow(power);
    if number.contains('.') {
        let (whole, part) = number.split_once('.')?;
        if base == 1024 || whole.is_empty() || part.is_empty() || part.contains('.') {
            return None;
        }
        return decimal_times(whole, part, scale, engine);
    }
    number.parse::<i64>().ok()?.checked_mul(scale)
}

/// `int(whole.part * scale)`: vLLM multiplies doubles, SGLang decimals.
fn decimal_times(whole: &str, part: &str, scale: i64, engine: Engine) -> Option<i64> {
    if engine == Engine::Vllm {
        let product = format!("{whole}.{part}").parse::<f64>().ok()? * scale as f64;
        return (product.abs() < 9e18).then_some(product as i64);
    }
    let part = part.get(..part.len().min(18))?;
    let digits: i128 = format!("{whole}{part}").parse().ok()?;
    let divisor = 10_i128.checked_pow(u32::try_from(part.len()).ok()?)?;
    i64::try_from(digits.checked_mul(i128::from(scale))? / divisor).ok()
}

/// What a value is judged by.
pub(crate) struct Judge<'a> {
    pub engine: Engine,
    pub version: Version,
    pub table: &'static Table,
    pub errors: &'a mut Vec<LaunchError>,
    pub warnings: &'a mut Vec<Warning>,
}

impl Judge<'_> {
    /// One word of `row`, or `None` after an error was noted.
    pub(crate) fn read(
        &mut self,
        row: &'static Row,
        typed: &str,
        text: &str,
        place: &Place,
    ) -> Option<Value> {
        let unset = matches!(place, Place::Text { .. }) && text.contains(['$', '`']);
        if unset && row.kind != Kind::Str && row.effect != Effect::Modelled {
            return Some(Value::Str(text.to_owned()));
        }
        let value = match row.kind {
            Kind::Int => self.integer(row, text).map(Value::Int),
            Kind::Float => python_float(text).map(Value::Float),
            Kind::Json => self.json(row, text).map(Value::Json),
            Kind::Bool => Some(Value::Bool(python_bool(text)?)),
            Kind::Str => Some(Value::Str(text.to_owned())),
        };
        let error = |code, allowed: String| {
            LaunchError::new(code, allowed, place.clone()).flag(typed).value(text)
        };
        let Some(value) = value else {
            let what = expected(self.engine, row, self.version);
            let hint = if unset { "; its value is not in this text, write it here" } else { "" };
            let error = error(ErrorCode::WrongType, format!("must be {what}{hint}"));
            self.errors.push(error.near(self.near_size(row, text).as_deref()));
            return None;
        };
        let number = match &value {
            Value::Int(n) => Some(*n as f64),
            Value::Float(x) => Some(*x),
            _ => None,
        };
        if let (Some(range), Some(x)) = (&row.range, number)
            && !range.contains(x)
        {
            self.errors.push(error(ErrorCode::OutOfRange, format!("must be {}", range.describe())));
            return None;
        }
        self.choice(row, typed, text, place)?;
        Some(value)
    }

    fn integer(&self, row: &Row, text: &str) -> Option<i64> {
        if row.name == "--max-model-len" && text.trim().eq_ignore_ascii_case("auto") {
            return Some(-1);
        }
        let suffixed = row.suffix_from.is_some_and(|from| self.version >= from);
        python_int(text).or_else(|| suffixed.then(|| suffixed_int(self.engine, text)).flatten())
    }

    /// The nearest way to write a size whose suffix the engine does not read: `3.1g` for `3.1G`.
    fn near_size(&self, row: &Row, text: &str) -> Option<String> {
        row.suffix_from.filter(|from| self.version >= *from)?;
        let lower = text.to_ascii_lowercase();
        let upper = lower.trim_end_matches('k').len() == lower.len();
        let si =
            if upper && self.engine == Engine::Sglang { text.to_ascii_uppercase() } else { lower };
        let binary = format!("{text}i");
        let reads = |t: &String| suffixed_int(self.engine, t).is_some();
        [binary, si].into_iter().find(|t| reads(t))
    }

    /// JSON; the compilation level of `--compilation-config` may stand alone as a number.
    fn json(&self, row: &Row, text: &str) -> Option<serde_json::Value> {
        let value: serde_json::Value = serde_json::from_str(text).ok()?;
        let level = row.name == "--compilation-config" && value.is_u64();
        (value.is_object() || value.is_array() || value.is_null() || level).then_some(value)
    }

    /// A word outside the known values is an error where the list is closed and the release is
    /// one that was read, else a warning.
    fn choice(&mut self, row: &Row, typed: &str, text: &str, place: &Place) -> Option<()> {
        if row.choices.is_empty() || row.choices.contains(&text) {
            return Some(());
        }
        let near = nearest(text, row.choices.iter().copied()).first().copied();
        let newest = self.table.newest().is_some_and(|newest| self.version <= newest);
        if newest && !row.open_choices {
            let allowed = format!("must be one of {}", row.choices.join(", "));
            let error = LaunchError::new(ErrorCode::NotAChoice, allowed, place.clone());
            self.errors.push(error.flag(typed).value(text).near(near));
            return None;
        }
        let hint = near.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default();
        let message = format!("`{text}` is not among the values of {typed} known here{hint}");
        self.warnings.push(Warning::new(message, place.clone()));
        Some(())
    }
}

/// `true` and `false` as flags with an optional value read them.
pub(crate) fn python_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "true" => Some(true),
        "false" => Some(false),
        _ => None,
    }
}

fn expected(engine: Engine, row: &Row, version: Version) -> String {
    match row.kind {
        Kind::Int => {
            let range = row.range.map(|r| format!(" {}", r.describe())).unwrap_or_default();
            let suffix = match (row.suffix_from, engine) {
                (Some(from), _) if version < from => {
                    format!(" without a suffix (suffixes are read from {from})")
                }
                (Some(_), Engine::Sglang) => " (32k = 32,000, 32Ki = 32,768)".to_owned(),
                (Some(_), Engine::Vllm) => " (32k = 32,000, 32K = 32,768)".to_owned(),
                (None, _) => String::new(),
            };
            format!("a whole number{range}{suffix}")
        }
        Kind::Float => {
            let range = row.range.map(|r| format!(" {}", r.describe())).unwrap_or_default();
            format!("a number{range}")
        }
        Kind::Json => "JSON, in single quotes so that the shell leaves its quotes alone".to_owned(),
        Kind::Bool => "true or false".to_owned(),
        Kind::Str => "text".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_read_as_python_reads_them() {
        assert_eq!(python_int(" +1_000 "), Some(1000));
        assert_eq!(python_int("-1"), Some(-1));
        for bad in ["", "1__0", "_1", "1_", "1.0", "0x10", "1e3", "+-1", "99999999999999999999"] {
            assert_eq!(python_int(bad), None, "{bad}");
        }
        assert_eq!(python_float("1_0.5"), Some(10.5));
        assert_eq!(python_float("nan"), None);
    }

    #[test]
    fn suffixes_differ_between_the_engines() {
        use Engine::{Sglang, Vllm};
        assert_eq!(suffixed_int(Vllm, "32k"), Some(32_000));
        assert_eq!(suffixed_int(Vllm, "32K"), Some(32_768));
        assert_eq!(suffixed_int(Vllm, "1M"), Some(1_048_576));
        assert_eq!(suffixed_int(Vllm, "25.6k"), Some(25_600));
        assert_eq!(suffixed_int(Vllm, "25.6K"), None);
        assert_eq!(suffixed_int(Vllm, "32Ki"), None);
        assert_eq!(suffixed_int(Sglang, "1M"), Some(1_000_000));
        assert_eq!(suffixed_int(Sglang, "1Mi"), Some(1_048_576));
        assert_eq!(suffixed_int(Sglang, "32K"), None);
        assert_eq!(suffixed_int(Sglang, "25.6k"), Some(25_600));
        assert_eq!(suffixed_int(Sglang, "1.5Ki"), None);
        assert_eq!(suffixed_int(Sglang, "99999999999999T"), None);
        assert_eq!(suffixed_int(Vllm, "1..5k"), None);
    }
}
