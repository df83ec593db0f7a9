//! Sizes of the launches, as kernels/launch.h has them.

macro_rules! sizes {
    ($($name:ident = $value:literal,)*) => {
        $(pub(super) const $name: u32 = $value;)*
        #[cfg(test)]
        const ALL: &[(&str, u32)] = &[$((stringify!($name), $value),)*];
    };
}

sizes! {
    EMBED_THREADS = 128,
    RMS_NORM_THREADS = 256,
    HEAD_NORM_THREADS = 32,
    BIAS_THREADS = 256,
    ROPE_STORE_THREADS = 256,
    DECODE_ATTENTION_THREADS = 128,
    MERGE_ATTENTION_THREADS = 128,
    PREFILL_ATTENTION_THREADS = 128,
    SWIGLU_THREADS = 512,
    GATHER_THREADS = 128,
    SAMPLE_THREADS = 512,
    COPY_BLOCKS_THREADS = 256,
    DEQUANT_THREADS = 256,
    PREFILL_ATTENTION_SHARED_D64 = 16384,
    PREFILL_ATTENTION_SHARED_D128 = 32768,
    PREFILL_ATTENTION_SHARED_D256 = 98304,
}

#[cfg(test)]
mod tests {
    use super::ALL;

    #[test]
    fn they_are_those_of_the_kernels() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/launch.h");
        let text = std::fs::read_to_string(path).unwrap();
        for (name, value) in ALL {
            let line = format!("#define {name} {value}");
            assert!(text.lines().any(|l| l.trim() == line), "launch.h has no line {line:?}");
        }
    }
}
