//! Which releases of SGLang print their lines so: texts changed from release to release, and most logs that people
//! show do not name theirs. Source: the log texts of 0.4.6 to 0.5.23, release by release.

use plimsoll_core::policy::sglang::version::Version;

use crate::launch::{Engine, arguments_known};
use crate::log::{Releases, Sglang};

/// Words that tell a release and stand in no line that is read for more.
pub(super) const WORDS: &[&str] = &["Using KV cache dtype", "Init parallel ends"];

/// Frequent lines that are looked at: all of a server's are of one form.
pub(super) const FREQUENT: u32 = 64;

/// A text: words that stand in the line, words that do not, the first release that prints it and the first that does
/// not any more.
type Clue = (&'static [&'static str], &'static str, Option<Version>, Option<Version>);

const fn v4(patch: u16) -> Option<Version> {
    Some(Version::new(0, 4, patch))
}

const fn v5(patch: u16) -> Option<Version> {
    Some(Version::new(0, 5, patch))
}

const CLUES: &[Clue] = &[
    (&["Init torch distributed ends. mem usage="], "", None, v5(9)),
    (&["Init torch distributed ends. elapsed="], "", v5(9), v5(21)),
    (&["Init parallel ends"], "", v5(21), None),
    (&["Memory baseline taken"], "", v5(21), None),
    (&["Load weight end. type=", "dtype="], "", None, v5(9)),
    (&["Load weight end. elapsed=", ", dtype="], "", v5(9), v5(10)),
    (&["Load weight end. elapsed="], "dtype=", v5(10), None),
    (&["Using KV cache dtype"], "", v5(3), v5(13)),
    (&["KV Cache is allocated. #tokens"], "", None, v5(13)),
    (&["KV Cache is allocated. dtype: "], "", v5(13), None),
    (&["Full KV Cache is allocated"], "", v5(17), None),
    (&["SWA KV Cache is allocated"], "", v5(17), None),
    (&["KV Cache VA upper bound"], "", v5(18), None),
    (&["Use Sliding window memory pool"], "", v4(10), v5(7)),
    (&["Use sliding window memory pool"], "", v5(7), None),
    (&["Mamba Cache is allocated. max_mamba_cache_size"], "", v5(4), None),
    (&["Capture cuda graph begin"], "", None, v5(14)),
    (&["Capture piecewise CUDA graph"], "", v5(6), v5(14)),
    (&["CUDA graph begin. backend="], "", v5(14), None),
    (&["num_tokens_per_bs="], "", v5(14), v5(16)),
    (&["num_tokens_per_req="], "", v5(16), None),
    (&["CUDA graph end. bs="], "", v5(22), None),
    (&["Capturing batches (avail_mem="], "", None, v4(9)),
    (&["Capturing batches (bs="], "", v4(9), None),
    (&["Capturing num tokens ("], "", v5(4), v5(21)),
    (&["Capturing prefill shape ("], "", v5(21), None),
    (&["max_total_num_tokens=", "available_gpu_mem="], "", v4(7), None),
    (&["Current value: self.server_args.mem_fraction_static="], "", v5(3), v5(10)),
    (&["Current value: mem_fraction_static="], "", v5(10), None),
    (&["Loaded weights leave no GPU memory"], "", v5(14), None),
    (&["Decode out of memory happened"], "", None, v4(7)),
    (&["KV cache pool is full. Retract requests"], "", v4(7), None),
    (&["#new_tokens_gained"], "", v5(7), None),
    (&["#aborted_retracted_reqs"], "", v5(3), v5(5)),
    (&["Avaliable tokens"], "", None, v4(7)),
    (&["Prefill batch ["], "", v5(4), None),
    (&["Prefill batch,"], "", v5(5), None),
    (&["Prefill batch."], "", None, v5(5)),
    (&["Prefill batch", "cuda graph: "], "", v5(9), None),
    (&["Prefill batch", "#pending-token"], "", v5(11), None),
    (&["Prefill batch", "#bootstrap-req"], "", v5(12), None),
    (&["Decode batch", "cuda graph: "], "", v4(7), None),
    (&["Decode batch", "accept rate: "], "", v5(4), None),
];

/// Narrows the releases by the texts of a line.
pub(super) fn by_text(releases: &mut Releases, line: &str) {
    for (words, without, since, before) in CLUES {
        let all = words.iter().all(|word| line.contains(word));
        if all && (without.is_empty() || !line.contains(without)) {
            releases.narrow(*since, *before);
        }
    }
}

/// Narrows the releases by the names of the arguments that a server printed: each is there from one release on and
/// some were dropped.
pub(super) fn by_arguments(releases: &mut Releases, what: &Sglang) {
    let Sglang::ServerArgs(args) = what else { return };
    let names = args.iter().map(|(name, _)| &**name);
    let (since, before) = arguments_known(Engine::Sglang, names);
    releases.narrow(since, before);
}
