//! Two ways to write the same tree: JSON text and pickle opcodes.

use std::{collections::BTreeMap, fmt::Write as _};

/// Receives a tree in order. `begin_list` and `begin_dict` are closed by `end_list`, `end_dict`; each
/// entry of a dictionary is a `key` and a value.
pub(super) trait Emit {
    fn begin_list(&mut self);
    fn end_list(&mut self);
    fn begin_dict(&mut self);
    fn end_dict(&mut self);
    fn key(&mut self, key: &str);
    fn text(&mut self, text: &str);
    fn int(&mut self, value: i128);
    fn float(&mut self, value: f64);
    fn bool(&mut self, value: bool);
    fn null(&mut self);
    fn pair(&mut self, a: u64, b: u64);
}

/// JSON, without line breaks.
#[derive(Default)]
pub(super) struct Json {
    pub(super) out: String,
    /// Whether the next value needs a comma before it.
    comma: bool,
}

impl Json {
    fn value(&mut self, text: &str) {
        self.separate();
        self.out.push_str(text);
        self.comma = true;
    }

    fn separate(&mut self) {
        if self.comma {
            self.out.push(',');
        }
        self.comma = false;
    }

    fn quoted(&mut self, text: &str) {
        self.out.push('"');
        for c in text.chars() {
            match c {
                '"' => self.out.push_str("\\\""),
                '\\' => self.out.push_str("\\\\"),
                c if c < ' ' => {
                    // Writing to a String cannot fail.
                    let _ = write!(self.out, "\\u{:04x}", c as u32);
                }
                c => self.out.push(c),
            }
        }
        self.out.push('"');
    }
}

impl Emit for Json {
    fn begin_list(&mut self) {
        self.separate();
        self.out.push('[');
    }

    fn end_list(&mut self) {
        self.out.push(']');
        self.comma = true;
    }

    fn begin_dict(&mut self) {
        self.separate();
        self.out.push('{');
    }

    fn end_dict(&mut self) {
        self.out.push('}');
        self.comma = true;
    }

    fn key(&mut self, key: &str) {
        self.separate();
        self.quoted(key);
        self.out.push(':');
    }

    fn text(&mut self, text: &str) {
        self.separate();
        self.quoted(text);
        self.comma = true;
    }

    fn int(&mut self, value: i128) {
        self.separate();
        // Writing to a String cannot fail.
        let _ = write!(self.out, "{value}");
        self.comma = true;
    }

    fn float(&mut self, value: f64) {
        // JSON has no infinities.
        if value.is_finite() {
            let text = format!("{value:?}");
            self.value(&text);
        } else {
            self.value("null");
        }
    }

    fn bool(&mut self, value: bool) {
        self.value(if value { "true" } else { "false" });
    }

    fn null(&mut self) {
        self.value("null");
    }

    fn pair(&mut self, a: u64, b: u64) {
        self.begin_list();
        self.int(a.into());
        self.int(b.into());
        self.end_list();
    }
}

/// Pickle with the opcodes that the reader of `memory_viz` knows. Repeated texts are written once.
pub(super) struct Pickle {
    pub(super) out: Vec<u8>,
    short_strings: bool,
    memo: BTreeMap<String, u32>,
}

impl Pickle {
    /// Protocol 2, 3 or 4.
    pub(super) fn new(protocol: u8) -> Self {
        Self { out: vec![0x80, protocol], short_strings: protocol >= 4, memo: BTreeMap::new() }
    }

    pub(super) fn finish(mut self) -> Vec<u8> {
        self.out.push(b'.');
        self.out
    }

    fn with_index(&mut self, short: u8, long: u8, index: u32) {
        if let Ok(byte) = u8::try_from(index) {
            self.out.extend([short, byte]);
        } else {
            self.out.push(long);
            self.out.extend(index.to_le_bytes());
        }
    }
}

impl Emit for Pickle {
    fn begin_list(&mut self) {
        self.out.extend(b"](");
    }

    fn end_list(&mut self) {
        self.out.push(b'e');
    }

    fn begin_dict(&mut self) {
        self.out.extend(b"}(");
    }

    fn end_dict(&mut self) {
        self.out.push(b'u');
    }

    fn key(&mut self, key: &str) {
        self.text(key);
    }

    fn text(&mut self, text: &str) {
        if let Some(index) = self.memo.get(text).copied() {
            self.with_index(b'h', b'j', index);
            return;
        }
        match u8::try_from(text.len()) {
            Ok(length) if self.short_strings => self.out.extend([0x8c, length]),
            _ => {
                // A text of 4 GiB is cut; snapshots hold names of files.
                let length = u32::try_from(text.len()).unwrap_or(u32::MAX);
                self.out.push(b'X');
                self.out.extend(length.to_le_bytes());
            }
        }
        let bytes = text.as_bytes();
        self.out.extend(&bytes[..bytes.len().min(u32::MAX as usize)]);
        let index = self.memo.len() as u32;
        self.memo.insert(text.to_owned(), index);
        self.with_index(b'q', b'r', index);
    }

    fn int(&mut self, value: i128) {
        if let Ok(byte) = u8::try_from(value) {
            self.out.extend([b'K', byte]);
        } else if let Ok(short) = u16::try_from(value) {
            self.out.push(b'M');
            self.out.extend(short.to_le_bytes());
        } else if let Ok(int) = i32::try_from(value) {
            self.out.push(b'J');
            self.out.extend(int.to_le_bytes());
        } else {
            // Two's complement, as few bytes as keep the sign.
            let bytes = value.to_le_bytes();
            let bits = 129 - if value < 0 { value.leading_ones() } else { value.leading_zeros() };
            let length = bits.div_ceil(8) as usize;
            self.out.extend([0x8a, length as u8]);
            self.out.extend(&bytes[..length]);
        }
    }

    fn float(&mut self, value: f64) {
        self.out.push(b'G');
        self.out.extend(value.to_be_bytes());
    }

    fn bool(&mut self, value: bool) {
        self.out.push(if value { 0x88 } else { 0x89 });
    }

    fn null(&mut self) {
        self.out.push(b'N');
    }

    fn pair(&mut self, a: u64, b: u64) {
        self.int(a.into());
        self.int(b.into());
        self.out.push(0x86);
    }
}
