//! What a token and a page of the KV pool take.

use crate::{tape::own::DecoderShape, units::Bytes};

/// How keys and values are stored. Arithmetic on them is float32 in every format.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub enum KvFormat {
    /// float32: as computed.
    #[default]
    F32,
    /// float16, rounded to the nearest even; beyond ±65504 the largest of that sign.
    F16,
    /// bfloat16, rounded to the nearest even.
    Bf16,
    /// float8 of 4 exponent and 3 mantissa bits, rounded to the nearest even; beyond ±448 the largest of that sign.
    Fp8E4m3,
}

impl KvFormat {
    /// Every format, the widest first.
    pub const ALL: [Self; 4] = [Self::F32, Self::F16, Self::Bf16, Self::Fp8E4m3];

    /// Bytes of a value.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Fp8E4m3 => 1,
        }
    }

    /// Name, as in a flag.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "float32",
            Self::F16 => "float16",
            Self::Bf16 => "bfloat16",
            Self::Fp8E4m3 => "fp8_e4m3",
        }
    }

    /// The format of that name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|format| format.name() == name)
    }
}

/// A page: `page_tokens` consecutive positions of one request, keys and values of all layers, in one
/// stretch of memory. So a page can be given back to the system alone.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KvCell {
    /// Layers.
    pub layers: u64,
    /// Key-value heads of a layer.
    pub kv_heads: u64,
    /// Values of a head.
    pub head_dim: u64,
    /// How a value is stored.
    pub format: KvFormat,
    /// Positions of a page.
    pub page_tokens: u64,
}

/// Why there is no such page.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{what} is {value}; allowed: {allowed}")]
pub struct CellError {
    /// The field.
    pub what: &'static str,
    /// As given, or as it would be.
    pub value: u64,
    /// What would be right.
    pub allowed: &'static str,
}

/// Largest page.
const PAGE_MAX: u64 = 1 << 40;

impl KvCell {
    /// The page of a model.
    ///
    /// # Errors
    /// [`CellError`] for no tokens, more than 65536 of them, and pages larger than 1 TiB.
    pub fn new(
        shape: &DecoderShape,
        format: KvFormat,
        page_tokens: u64,
    ) -> Result<Self, CellError> {
        let wrong = |what, value, allowed| Err(CellError { what, value, allowed });
        if !(1..=1 << 16).contains(&page_tokens) {
            return wrong("tokens of a page", page_tokens, "1 to 65536");
        }
        let cell = Self {
            layers: shape.layers.len() as u64,
            kv_heads: shape.kv_heads,
            head_dim: shape.head_dim,
            format,
            page_tokens,
        };
        let sizes = [cell.layers, cell.kv_heads, cell.head_dim, page_tokens, 2 * format.bytes()];
        let bytes = sizes.into_iter().try_fold(1_u64, u64::checked_mul);
        match bytes {
            Some(1..=PAGE_MAX) => Ok(cell),
            _ => wrong("bytes of a page", bytes.unwrap_or(u64::MAX), "1 to 2^40"),
        }
    }

    /// Keys and values of a token in all layers.
    #[must_use]
    pub const fn token_bytes(&self) -> Bytes {
        Bytes(2 * self.layers * self.kv_heads * self.head_dim * self.format.bytes())
    }

    /// A page in whole pages of the system: its tokens, rounded up.
    #[must_use]
    pub fn page_bytes(&self, system_page: Bytes) -> Bytes {
        Bytes(self.token_bytes().0 * self.page_tokens).round_up_to(system_page)
    }

    /// Pages that hold `tokens` positions, rounded up.
    #[must_use]
    pub const fn pages_for(&self, tokens: u64) -> u64 {
        tokens.div_ceil(self.page_tokens)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(format: KvFormat, page_tokens: u64) -> KvCell {
        KvCell { layers: 30, kv_heads: 3, head_dim: 64, format, page_tokens }
    }

    #[test]
    fn smollm2_by_hand() {
        let page = Bytes(4096);
        assert_eq!(cell(KvFormat::F32, 16).token_bytes(), Bytes(46_080));
        assert_eq!(cell(KvFormat::F32, 16).page_bytes(page), Bytes(737_280));
        // 23040 bytes are 5.6 pages of the system.
        assert_eq!(cell(KvFormat::F16, 1).page_bytes(page), Bytes(24_576));
        assert_eq!(cell(KvFormat::Bf16, 16).pages_for(17), 2);
        assert_eq!(cell(KvFormat::Bf16, 16).pages_for(16), 1);
    }

    #[test]
    fn names() {
        for format in KvFormat::ALL {
            assert_eq!(KvFormat::named(format.name()), Some(format));
        }
        assert_eq!(KvFormat::named("float8"), None);
    }
}
