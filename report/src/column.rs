//! Columns of integers as short text: differences, in as many bytes as they need, runs of zeros as one,
//! all of it in base64.

/// How a column is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Column {
    /// Values as they are: counts, most of them small.
    Plain,
    /// Differences to the value before: levels, which move little.
    Steps,
}

const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

impl Column {
    /// The text of a column.
    #[must_use]
    pub fn encode(self, values: impl IntoIterator<Item = u64>) -> String {
        let mut bytes = Vec::new();
        let (mut before, mut zeros) = (0_u64, 0_u64);
        for value in values {
            let code = match self {
                Self::Plain => value,
                Self::Steps => zigzag(value.wrapping_sub(before)),
            };
            before = value;
            if code == 0 {
                zeros += 1;
                continue;
            }
            put_zeros(&mut bytes, &mut zeros);
            varint(&mut bytes, code);
        }
        put_zeros(&mut bytes, &mut zeros);
        base64(&bytes)
    }
}

/// A zero is followed by how many more there are.
fn put_zeros(bytes: &mut Vec<u8>, zeros: &mut u64) {
    if let Some(more) = zeros.checked_sub(1) {
        bytes.push(0);
        varint(bytes, more);
        *zeros = 0;
    }
}

/// A difference with its sign in the lowest bit.
const fn zigzag(difference: u64) -> u64 {
    let signed = difference as i64;
    ((signed << 1) ^ (signed >> 63)) as u64
}

fn varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// Base64 with padding.
pub(crate) fn base64(bytes: &[u8]) -> String {
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for group in bytes.chunks(3) {
        let byte = |at: usize| u32::from(group.get(at).copied().unwrap_or(0));
        let word = (byte(0) << 16) | (byte(1) << 8) | byte(2);
        for digit in 0..4 {
            let index = (word >> (18 - 6 * digit)) & 63;
            let known = digit <= group.len();
            out.push(if known { DIGITS[index as usize] as char } else { '=' });
        }
    }
    out
}

/// Reads a column back, as the page does; `None` where the text is not one.
#[must_use]
pub fn decode(column: Column, text: &str) -> Option<Vec<u64>> {
    let mut bytes = Vec::new();
    let (mut word, mut bits) = (0_u32, 0);
    for c in text.bytes().filter(|c| *c != b'=') {
        let digit = DIGITS.iter().position(|d| *d == c)?;
        word = (word << 6) | u32::try_from(digit).ok()?;
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((word >> bits) as u8);
            word &= (1 << bits) - 1;
        }
    }
    let mut out = Vec::new();
    let mut bytes = bytes.into_iter();
    let mut before = 0_u64;
    while let Some(code) = read_varint(&mut bytes) {
        let times = if code == 0 { read_varint(&mut bytes)?.checked_add(1)? } else { 1 };
        for _ in 0..times {
            before = match column {
                Column::Plain => code,
                Column::Steps => before.wrapping_add((code >> 1) ^ (code & 1).wrapping_neg()),
            };
            out.push(before);
        }
    }
    Some(out)
}

fn read_varint(bytes: &mut impl Iterator<Item = u8>) -> Option<u64> {
    let (mut value, mut shift) = (0_u64, 0);
    for byte in bytes {
        value |= u64::from(byte & 0x7f).checked_shl(shift)?;
        shift += 7;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}
