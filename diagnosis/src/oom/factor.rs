//! A failed request as rows × vocabulary, or as tokens of a chunk.

use plimsoll_core::units::group_thousands;
use plimsoll_ingest::log::Amount;

use super::size;

/// PyTorch rounds a request of a megabyte or more up to whole segments of this size.
/// Source: PyTorch 2.x `CUDACachingAllocator`, `get_allocation_size`.
const SEGMENT: i64 = 2 << 20;

/// The largest vocabulary of a published model (Gemma): fewer rows than this gives are impossible.
const LARGEST_VOCABULARY: i64 = 262_208;

/// A request as a product.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rows {
    /// Fewest rows that print so.
    pub least: i64,
    /// Most rows that print so.
    pub most: i64,
    /// Entries of a row.
    pub width: i64,
    /// Bytes of an entry.
    pub item: i64,
}

impl Rows {
    /// `616.00 MiB = 1,059 to 1,061 rows × 152,064 × 4 B`.
    #[must_use]
    pub fn words(&self, requested: Amount) -> String {
        let rows = if self.least == self.most {
            number(self.least)
        } else {
            format!("{} to {}", number(self.least), number(self.most))
        };
        let (width, item) = (number(self.width), self.item);
        format!("{} = {rows} rows × {width} × {item} B", size(requested))
    }
}

fn number(value: i64) -> String {
    group_thousands(u64::try_from(value).unwrap_or(0))
}

/// The rows of `width` entries of `item` bytes that a request can stand for; `None` where no whole number fits.
#[must_use]
pub fn rows(requested: Amount, width: u64, item: i64) -> Option<Rows> {
    let width = i64::try_from(width).ok().filter(|w| *w > 0)?;
    let row = width.checked_mul(item)?;
    let least = requested.least().saturating_sub(SEGMENT).max(0) / row + 1;
    let most = requested.most() / row;
    (least <= most && most > 0).then_some(Rows { least, most, width, item })
}

/// Fewest rows of float logits that a request can be, whatever the model.
#[must_use]
pub fn fewest_logit_rows(requested: Amount) -> i64 {
    requested.least().saturating_sub(SEGMENT).max(0) / (LARGEST_VOCABULARY * 4)
}

/// Bytes a token of a chunk: the request over the tokens.
#[must_use]
pub fn bytes_per_token(requested: Amount, tokens: u64) -> Option<i64> {
    let tokens = i64::try_from(tokens).ok().filter(|t| *t > 0)?;
    Some(requested.bytes / tokens)
}

/// The largest power of two of tokens, from 512 up, whose request of the same kind fits into what was free.
#[must_use]
pub fn chunk_that_fits(requested: Amount, free: Amount, chunk: u64) -> Option<u64> {
    let per_token = bytes_per_token(requested, chunk).filter(|b| *b > 0)?;
    let fits = u64::try_from((free.least() / per_token).max(0)).ok()?;
    let power = 1_u64.checked_shl(fits.checked_ilog2()?)?;
    (power >= 512 && power < chunk).then_some(power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_of_logits_gives_its_rows() {
        let found = rows(Amount { bytes: 616 << 20, half: 5243 }, 152_064, 4).unwrap();
        assert!(found.least <= 1061 && 1061 <= found.most, "{found:?}");
        assert_eq!(
            found.words(Amount::exact(616 << 20)),
            "616.00 MiB = 1,059 to 1,061 rows × 152,064 × 4 B"
        );
        assert_eq!(rows(Amount::exact(2 << 20), 10_000_000, 4), None);
    }

    #[test]
    fn a_chunk_is_the_largest_that_fits() {
        let (asked, free) = (Amount::gib(6.86, 2), Amount::gib(5.15, 2));
        assert_eq!(chunk_that_fits(asked, free, 131_072), Some(65_536));
        assert_eq!(chunk_that_fits(asked, Amount::exact(0), 131_072), None);
        assert_eq!(chunk_that_fits(asked, asked, 512), None);
    }
}
