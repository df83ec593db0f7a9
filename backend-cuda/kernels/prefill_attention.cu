// Attention of the rows of a prompt: tiles of up to 64 rows of one sequence, causal, over their pages.
//
// Four warps of 16 rows each. Keys and values of 64 positions at a time are in shared memory, 16-byte
// parts of a row placed by the row's number so that matrices are read without bank conflicts. The next
// keys are copied while values are multiplied, the next values while keys are: one place for each is
// enough, and with head widths up to 128 two blocks fit a multiprocessor. fp8 is widened on its way
// into shared memory, so those copies are not asynchronous.
#include "mma.cuh"
#include "paged.cuh"

constexpr int PREFILL_TOKENS = PREFILL_TILE_TOKENS;
constexpr int PREFILL_WARPS = PREFILL_ATTENTION_THREADS / 32;
// "No such position" among the rows of a tile of keys.
constexpr u64 NOWHERE = ~0ull;

// Rows of D elements of T in shared memory.
template <class T, int D>
struct Rows {
  T* at;
  __device__ __forceinline__ T* part(int row, int part) const {
    return at + (u64)row * D + ((part ^ (row & 7)) << 3);
  }
};

// Eight elements of T from a row, into shared memory; zeros beyond its end.
template <class T, bool WHOLE, class S>
__device__ __forceinline__ void load_into(T* to, const S* row, int element, int head_dim) {
  unsigned pairs[4];
  load_eight<T, WHOLE>(pairs, row, element, head_dim);
  store16(to, uint4{pairs[0], pairs[1], pairs[2], pairs[3]});
}

// The parts of a tile that a thread fetches one after the other.
template <int D>
struct Share {
  static constexpr int PARTS = D / 8, COUNT = PREFILL_TOKENS * PARTS / PREFILL_ATTENTION_THREADS;
  int row, part;
  __device__ __forceinline__ explicit Share(int i) {
    const int at = i * PREFILL_ATTENTION_THREADS + threadIdx.x;
    row = at / PARTS, part = at % PARTS;
  }
};

// fp8 through registers: some parts are under way together.
template <class T, int D, bool WHOLE>
__device__ __forceinline__ void fetch_widened(Rows<T, D> to, const fp8* pool, const u64* places, u64 plane, int head_dim) {
  constexpr int TOGETHER = 4;
#pragma unroll 1
  for (int i = 0; i < Share<D>::COUNT; i += TOGETHER) {
    unsigned pairs[TOGETHER][4];
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) {
      const Share<D> share(i + j);
      const u64 place = places[share.row];
      const bool there = place != NOWHERE;
      load_eight<T, WHOLE>(pairs[j], pool + (there ? place + plane : 0), share.part * 8, there ? head_dim : 0);
    }
#pragma unroll
    for (int j = 0; j < TOGETHER; j++) {
      const Share<D> share(i + j);
      store16(to.part(share.row, share.part), uint4{pairs[j][0], pairs[j][1], pairs[j][2], pairs[j][3]});
    }
  }
}

// Keys or values of 64 positions; `places` are the offsets of their keys in the pool.
template <class T, int D>
__device__ __forceinline__ void fetch(Rows<T, D> to, const fp8* pool, const u64* places, u64 plane, int head_dim, bool whole) {
  if (whole)
    fetch_widened<T, D, true>(to, pool, places, plane, head_dim);
  else
    fetch_widened<T, D, false>(to, pool, places, plane, head_dim);
  copies_done();
}

template <class T, int D>
__device__ __forceinline__ void fetch(Rows<T, D> to, const T* pool, const u64* places, u64 plane, int head_dim, bool whole) {
  // More copies in one go would cost registers that the products need.
#pragma unroll(D > 64 ? 2 : 1)
  for (int i = 0; i < Share<D>::COUNT; i++) {
    const Share<D> share(i);
    const u64 place = places[share.row];
    const bool there = place != NOWHERE && share.part * 8 < head_dim;
    const T* from = there ? pool + place + plane : pool;
    if (whole)
      copy_async(to.part(share.row, share.part), from + (there ? share.part * 8 : 0), there);
    else
      load_into<T, false>(to.part(share.row, share.part), from, share.part * 8, there ? head_dim : 0);
  }
  copies_done();
}

// What the tile sees, and what its kernel was called with.
template <class S>
struct Seen {
  Paged<S> paged;
  int lowest, highest;
  // Where a position's keys lie, as an offset in the pool.
  __device__ __forceinline__ u64 place(int position) const {
    if (position < lowest || position > highest) return NOWHERE;
    return (u64)(paged.keys(position) - paged.pool);
  }
};

template <int D>
struct PrefillRun {
  float most[2], sum[2], out[D / 8][4];
};

// The A side of a product: 16 rows, elements 16 * step and on. Rows that are not there are 0.
template <class T>
__device__ __forceinline__ void query_registers(unsigned* a, const T* queries, u64 row_width, int row, int rows, int step, int head_dim) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int own = row + g + (i & 1) * 8, element = step * 16 + 2 * t + (i >> 1) * 8;
    const bool there = own < rows && element < head_dim;
    a[i] = there ? *(const unsigned*)(queries + (u64)own * row_width + element) : 0;
  }
}

// Scores of a warp's 16 rows and the 64 positions in shared memory.
template <class T, int D>
__device__ __forceinline__ void prefill_scores(float (*score)[4], const unsigned (*query)[4], const Rows<T, D>& queries, int row,
                                               const Rows<T, D>& keys) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = 0; n < PREFILL_TOKENS / 8; n++)
#pragma unroll
    for (int i = 0; i < 4; i++) score[n][i] = 0.0f;
#pragma unroll(D > 128 ? 1 : D / 16)
  for (int step = 0; step < D / 16; step++) {
    unsigned a[4];
    if (D > 128) {
      // Matrices: rows 0 to 7 and 8 to 15 of the first eight elements, then of the second.
      load_matrices<false>(a, queries.part(row + (lane & 15), step * 2 + (lane >> 4)));
    } else {
#pragma unroll
      for (int i = 0; i < 4; i++) a[i] = query[step][i];
    }
#pragma unroll
    for (int n = 0; n < PREFILL_TOKENS / 16; n++) {
      unsigned b[4];
      // Positions 0 to 7 with both halves of the elements, then positions 8 to 15.
      load_matrices<false>(b, keys.part(n * 16 + (lane & 7) + (lane >> 4) * 8, step * 2 + (lane >> 3 & 1)));
      multiply<T>(score[2 * n], a, b);
      multiply<T>(score[2 * n + 1], a, b + 2);
    }
  }
}

// Scores to weights in base 2, hidden positions to none; the output so far is scaled to the new maximum.
template <class T, int D>
__device__ __forceinline__ void prefill_soften(float (*score)[4], PrefillRun<D>& run, int first, int position, int window, bool masked,
                                               float scale) {
  const int t = threadIdx.x & 3;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    const int mine = position + 8 * h;
    float highest = run.most[h];
#pragma unroll
    for (int n = 0; n < PREFILL_TOKENS / 8; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        float& own = score[n][2 * h + e];
        const int at = first + n * 8 + 2 * t + e;
        if (masked && (at > mine || (window > 0 && at <= mine - window))) own = -infinity();
        highest = fmaxf(highest, own);
      }
    }
    highest = fmaxf(highest, shuffle_xor(highest, 1));
    highest = fmaxf(highest, shuffle_xor(highest, 2));
    // A row may see nothing of this tile.
    const float base = highest == -infinity() ? 0.0f : highest * scale;
    const float before = exp2_fast(run.most[h] * scale - base);
    run.most[h] = highest;
    run.sum[h] *= before;
#pragma unroll
    for (int n = 0; n < PREFILL_TOKENS / 8; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) score[n][2 * h + e] = exp2_fast(score[n][2 * h + e] * scale - base);
    }
#pragma unroll
    for (int j = 0; j < D / 8; j++) run.out[j][2 * h] *= before, run.out[j][2 * h + 1] *= before;
  }
}

template <class T, int D>
__device__ __forceinline__ void prefill_values(PrefillRun<D>& run, const float (*score)[4], const Rows<T, D>& values) {
  const int lane = threadIdx.x & 31;
#pragma unroll
  for (int n = 0; n < PREFILL_TOKENS / 16; n++) {
    unsigned a[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float* pair = score[2 * n + (i >> 1)] + (i & 1) * 2;
      a[i] = pack_weights<T>(pair[0], pair[1]);
      // The weights as they are multiplied: equal values come out as they are.
      run.sum[i & 1] += low_of<T>(a[i]) + high_of<T>(a[i]);
    }
#pragma unroll
    for (int j = 0; j < D / 16; j++) {
      unsigned b[4];
      // Positions 0 to 7 and 8 to 15 of eight elements, then of the next eight.
      load_matrices<true>(b, values.part(n * 16 + (lane & 15), j * 2 + (lane >> 4)));
      multiply<T>(run.out[2 * j], a, b);
      multiply<T>(run.out[2 * j + 1], a, b + 2);
    }
  }
}

template <class T, int D>
__device__ __forceinline__ void prefill_write(T* out, PrefillRun<D>& run, u64 row_width, int row, int rows, int head_dim) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float sum = run.sum[h];
    sum += shuffle_xor(sum, 1);
    sum += shuffle_xor(sum, 2);
    const float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
    const int own = row + g + 8 * h;
    if (own < rows) {
      T* at = out + (u64)own * row_width;
#pragma unroll
      for (int j = 0; j < D / 8; j++) {
        const int element = j * 8 + 2 * t;
        if (element < head_dim)
          *(unsigned*)(at + element) = pack<T>(run.out[j][2 * h] * factor, run.out[j][2 * h + 1] * factor);
      }
    }
  }
}

// Queries into shared memory, where registers are too few for them.
template <class T, int D>
__device__ __forceinline__ void fetch_queries(Rows<T, D> to, const T* queries, u64 row_width, int rows, int head_dim) {
  constexpr int PARTS = D / 8;
  const bool whole = ((u64)queries | row_width * 2 | (u64)(head_dim * 2)) % 16 == 0;
#pragma unroll 1
  for (int at = threadIdx.x; at < PREFILL_TILE_ROWS * PARTS; at += PREFILL_ATTENTION_THREADS) {
    const int row = at / PARTS, part = at % PARTS;
    const bool there = row < rows;
    const T* from = there ? queries + (u64)row * row_width : queries;
    if (whole)
      load_into<T, true>(to.part(row, part), from, part * 8, there ? head_dim : 0);
    else
      load_into<T, false>(to.part(row, part), from, part * 8, there ? head_dim : 0);
  }
}

template <class T, class S, int D>
__device__ __forceinline__ void prefill_attention(T* out, const T* qkv, const int4* tiles, const int* table_start, const int* tables,
                                                  const void* pool, u64 page_bytes, int layer, int q_heads, int kv_heads, int head_dim,
                                                  int page_tokens, int window, float scale) {
  DYNAMIC_SHARED(T, shared);
  SHARED(u64, places, PREFILL_TOKENS);
  const Rows<T, D> keys{shared}, values{shared + PREFILL_TOKENS * D}, queries{shared + 2 * PREFILL_TOKENS * D};
  // x: first row, y: rows, z: sequence, w: position of the first row.
  const int4 tile = tiles[blockIdx.x];
  if (tile.y == 0) return;
  const int head = blockIdx.y, kv_head = head / (q_heads / kv_heads), lane = threadIdx.x & 31, row = (threadIdx.x >> 5) * 16;
  const u64 in_width = (u64)(q_heads + 2 * kv_heads) * head_dim, out_width = (u64)q_heads * head_dim;
  const T* own = qkv + tile.x * in_width + (u64)head * head_dim;
  const Seen<S> seen{Paged<S>(pool, page_bytes, tables, table_start[tile.z], layer, kv_heads, kv_head, page_tokens, head_dim),
                     window > 0 ? most(tile.w - window + 1, 0) : 0, tile.w + tile.y - 1};
  const bool whole = seen.paged.rows_aligned(sizeof(S) * 8);
  const int first_row = tile.w + row, last_row = least(first_row + 15, seen.highest);
  PrefillRun<D> run;
  run.most[0] = run.most[1] = -infinity(), run.sum[0] = run.sum[1] = 0.0f;
#pragma unroll
  for (int j = 0; j < D / 8; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) run.out[j][i] = 0.0f;
  unsigned query[D > 128 ? 1 : D / 16][4];
  int at = seen.lowest / PREFILL_TOKENS * PREFILL_TOKENS;
  if (threadIdx.x < PREFILL_TOKENS) places[threadIdx.x] = seen.place(at + threadIdx.x);
  if (D > 128) {
    fetch_queries<T, D>(queries, own, in_width, tile.y, head_dim);
  } else {
#pragma unroll
    for (int step = 0; step < D / 16; step++) query_registers<T>(query[D > 128 ? 0 : step], own, in_width, row, tile.y, step, head_dim);
  }
  __syncthreads();
  fetch<T, D>(keys, seen.paged.pool, places, 0, head_dim, whole);
  fetch<T, D>(values, seen.paged.pool, places, seen.paged.plane, head_dim, whole);
  for (; at <= seen.highest; at += PREFILL_TOKENS) {
    const int next = at + PREFILL_TOKENS;
    // A warp whose rows see nothing here only takes part in the copies.
    const bool used = row < tile.y && at <= last_row && (window <= 0 || next > first_row - window + 1);
    float score[PREFILL_TOKENS / 8][4];
    await_copies<1>();
    __syncthreads();
    // Nobody reads the places of this tile any more: its values are on their way.
    if (threadIdx.x < PREFILL_TOKENS) places[threadIdx.x] = seen.place(next + threadIdx.x);
    if (used) prefill_scores<T, D>(score, query, queries, row, keys);
    __syncthreads();
    if (next <= seen.highest) fetch<T, D>(keys, seen.paged.pool, places, 0, head_dim, whole);
    else copies_done();
    if (used) {
      const bool masked = next - 1 > first_row || (window > 0 && at <= first_row + 15 - window);
      prefill_soften<T, D>(score, run, at, first_row + (lane >> 2), window, masked, scale * 1.44269504f);
    }
    await_copies<1>();
    __syncthreads();
    if (used) prefill_values<T, D>(run, score, values);
    __syncthreads();
    if (next <= seen.highest) fetch<T, D>(values, seen.paged.pool, places, seen.paged.plane, head_dim, whole);
  }
  prefill_write<T, D>(out + tile.x * out_width + (u64)head * head_dim, run, out_width, row, tile.y, head_dim);
}

#define PREFILL_ATTENTION(SUFFIX, T, S, D, BLOCKS)                                                                           \
  KERNEL(PREFILL_ATTENTION_THREADS, BLOCKS)                                                                                  \
  prefill_attention_##SUFFIX(T* out, const T* qkv, const int4* tiles, const int* table_start, const int* tables,             \
                             const void* pool, u64 page_bytes, int layer, int q_heads, int kv_heads, int head_dim,           \
                             int page_tokens, int window, float scale) {                                                     \
    prefill_attention<T, S, D>(out, qkv, tiles, table_start, tables, pool, page_bytes, layer, q_heads, kv_heads, head_dim,   \
                               page_tokens, window, scale);                                                                  \
  }                                                                                                                          \
  REGISTER(prefill_attention_##SUFFIX)

#define PREFILL_ATTENTION_WIDTHS(T)                           \
  PREFILL_ATTENTION(T##_d64, T, T, 64, 3)                     \
  PREFILL_ATTENTION(T##_d128, T, T, 128, 2)                   \
  PREFILL_ATTENTION(T##_d256, T, T, 256, 1)                   \
  PREFILL_ATTENTION(T##_d64_kv8, T, fp8, 64, 2)               \
  PREFILL_ATTENTION(T##_d128_kv8, T, fp8, 128, 2)             \
  PREFILL_ATTENTION(T##_d256_kv8, T, fp8, 256, 1)

PREFILL_ATTENTION_WIDTHS(bf16)
PREFILL_ATTENTION_WIDTHS(f16)
