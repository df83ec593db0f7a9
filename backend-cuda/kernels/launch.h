// Sizes of every launch: threads of a block and bytes of dynamic shared memory. Plain lines of
// `#define NAME NUMBER`: the Rust side reads this file too and compares.
#pragma once

#define EMBED_THREADS 128
#define RMS_NORM_THREADS 256
#define HEAD_NORM_THREADS 32
#define BIAS_THREADS 256
#define ROPE_STORE_THREADS 256
#define DECODE_ATTENTION_THREADS 128
#define MERGE_ATTENTION_THREADS 128
#define PREFILL_ATTENTION_THREADS 128
#define SWIGLU_THREADS 512
#define GATHER_THREADS 128
#define SAMPLE_THREADS 512
#define COPY_BLOCKS_THREADS 256
#define DEQUANT_THREADS 256

// Rows of a tile of prefill attention at most, and tokens of keys and values that it holds at a time.
#define PREFILL_TILE_ROWS 64
#define PREFILL_TILE_TOKENS 64

// Keys and values of 64 tokens, 2 bytes an element; at a head width of 256 the queries too.
#define PREFILL_ATTENTION_SHARED_D64 16384
#define PREFILL_ATTENTION_SHARED_D128 32768
#define PREFILL_ATTENTION_SHARED_D256 98304

// Positions that a warp of decode attention takes at a time: a split is a whole number of them.
#define DECODE_TILE_TOKENS 16
