//! Lines of LMDeploy: TurboMind and the PyTorch engine.

use super::fields::uint_after;
use super::scan::{Known, amount_after, read_by, words};
use crate::log::Lmdeploy;

const LINES: &[Known<Lmdeploy>; 6] = &[
    ("[BlockManager]", blocks),
    ("o enough blocks", |_| Some(Lmdeploy::NoBlocks)),
    ("No enough gpu memory for kv cache", |_| Some(Lmdeploy::NoBlocks)),
    ("No enough gpu memory for runtime", |_| Some(Lmdeploy::OutOfMemory)),
    ("session_len` truncated to ", truncated),
    ("[TM][", out_of_memory),
];

/// Words of which every line that [`read`] understands holds at least one, in any case.
pub(super) const WORDS: &[&str] = &words(LINES);

/// What one undressed line says; `None` when it is no line of this server.
pub(super) fn read(line: &str) -> Option<Lmdeploy> {
    read_by(LINES, line)
}

/// `[BlockManager] block_size = 1 MB, max_block_count = 1234, chunk_size = …`; older ones print
/// `max_block_count = 1234` on a line of its own.
fn blocks(line: &str) -> Option<Lmdeploy> {
    let blocks =
        uint_after(line, "max_block_count = ").or_else(|| uint_after(line, "max_block_count="));
    let block_bytes =
        amount_after(line, "block_size = ").or_else(|| amount_after(line, "block_size="));
    (blocks.is_some() || block_bytes.is_some()).then_some(Lmdeploy::Blocks { blocks, block_bytes })
}

fn truncated(line: &str) -> Option<Lmdeploy> {
    Some(Lmdeploy::SessionTruncated { tokens: uint_after(line, "truncated to ") })
}

fn out_of_memory(line: &str) -> Option<Lmdeploy> {
    line.to_ascii_lowercase().contains("out of memory").then_some(Lmdeploy::OutOfMemory)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_both_engines() {
        assert_eq!(
            read("[TM][ERROR] CUDA runtime error: out of memory"),
            Some(Lmdeploy::OutOfMemory)
        );
        assert_eq!(read("[TM][INFO] Barrier(2)"), None);
        assert_eq!(
            read("RuntimeError: No enough gpu memory for kv cache."),
            Some(Lmdeploy::NoBlocks)
        );
        let line =
            "[TM][INFO] [BlockManager] block_size = 2 MB, max_block_count = 900, chunk_size = 64";
        assert!(matches!(
            read(line),
            Some(Lmdeploy::Blocks { blocks: Some(900), block_bytes: Some(_) })
        ));
    }
}
