// Attention of single rows over their pages, split along the positions, and the merge of the splits.
//
// A warp takes 16 positions at a time. The query heads of a KV head are the 16 rows of a tensor-core
// product, so keys and values are read once for all of them, and straight into the registers that the
// products want: the order of a head's elements within a product is free, so a lane takes 16 neighbouring
// bytes. The warps of a block walk the tiles in turn, each with its own online softmax, and are merged at the end.
#include "mma.cuh"
#include "paged.cuh"

constexpr int DECODE_WARPS = DECODE_ATTENTION_THREADS / 32;
// Rows of a product: query heads of a KV head that are taken in one pass.
constexpr int DECODE_HEADS = 16;
constexpr float LOG2_E = 1.44269504f;

template <class T, class S>
struct Stored;
// Elements of a head that a lane loads at a time, and their bytes.
template <class T>
struct Stored<T, T> {
  static constexpr int PART = 8;
};
template <class T>
struct Stored<T, fp8> {
  static constexpr int PART = 16;
};

// The registers of PART elements of T (two each), widened where they are stored as fp8.
template <class T, bool WHOLE, class S>
__device__ __forceinline__ void load_elements(unsigned* pairs, const S* row, int element, int head_dim) {
  load_part<16, WHOLE>(pairs, row, element * (int)sizeof(S), head_dim * (int)sizeof(S));
  if (sizeof(S) == 1) {
    const unsigned raw[4] = {pairs[0], pairs[1], pairs[2], pairs[3]};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      pairs[2 * i] = widen<T>(raw[i] & 0xffff);
      pairs[2 * i + 1] = widen<T>(raw[i] >> 16);
    }
  }
}

// The positions of a split, as tiles of 16 from the beginning of the sequence: [first, end).
struct Split {
  int lowest, first, end;
  __device__ __forceinline__ Split(int position, int window, int splits, int split) {
    lowest = window > 0 ? most(position - window + 1, 0) : 0;
    const int begin = lowest / DECODE_TILE_TOKENS, tiles = position / DECODE_TILE_TOKENS + 1 - begin;
    const int each = (tiles + splits - 1) / splits;
    first = begin + least(split * each, tiles);
    end = begin + least((split + 1) * each, tiles);
  }
};

// The positions of a tile that this lane loads: keys of two, values of four. Positions that are not seen
// stand for the nearest one that is: what is loaded for them is a number, and their weight is 0.
struct Tile {
  int first, lowest, position;
  __device__ __forceinline__ int at(int token) const { return most(least(first + token, position), lowest); }
  __device__ __forceinline__ int key(int i) const { return at(i * 8 + (threadIdx.x & 31) / 4); }
  __device__ __forceinline__ int value(int i) const { return at((i >> 1) * 8 + (threadIdx.x & 3) * 2 + (i & 1)); }
};

// Who does what: a warp walks every WALKERS-th tile and gathers OUT elements of the output. Of the widest heads
// it takes half, since registers are too few for all; two warps then read the same keys.
template <int D>
struct Plan {
  static constexpr int OUT = D > 128 ? 128 : D, HALVES = D / OUT, WALKERS = DECODE_WARPS / HALVES;
  int walker, half;
  __device__ __forceinline__ Plan() : walker(threadIdx.x / 32 / HALVES), half(threadIdx.x / 32 % HALVES) {}
};

// What a warp knows of its heads: of rows g and g + 8 the maximum and this lane's part of the sum, and
// the output, element j of chunk c: of row g (0), (1) and of row g + 8 (2), (3).
template <int D>
struct Running {
  static constexpr int OUT = Plan<D>::OUT;
  float most[2], sum[2], out[OUT / 64][8][4];
};

// Scores of 16 heads and the tile's 16 positions: two products of 8 positions.
template <class T, class S, int D, bool WHOLE>
__device__ __forceinline__ void scores(float (*score)[4], const uint4* query, const Paged<S>& paged, const Tile& tile,
                                       const int* pages) {
  constexpr int PART = Stored<T, S>::PART;
  const int t = threadIdx.x & 3;
#pragma unroll
  for (int n = 0; n < 2; n++) {
    const S* row = paged.keys(tile.key(n), pages[n]);
#pragma unroll
    for (int i = 0; i < 4; i++) score[n][i] = 0.0f;
#pragma unroll
    for (int c = 0; c < D / (4 * PART); c++) {
      unsigned pairs[PART / 2];
      load_elements<T, WHOLE>(pairs, row, (c * 4 + t) * PART, paged.head_dim);
#pragma unroll
      for (int k = 0; k < PART / 4; k++) {
        // In registers, or a lane's own in shared memory.
        const uint4 four = query[(c * (PART / 4) + k) * (D > 128 ? 32 : 1)];
        const unsigned a[4] = {four.x, four.y, four.z, four.w};
        multiply<T>(score[n], a, pairs + 2 * k);
      }
    }
  }
}

// Scores become weights; what was summed before is scaled to the new maximum.
template <class T, int D>
__device__ __forceinline__ void soften(unsigned* weights, float (*score)[4], Running<D>& run, const Tile& tile, float scale) {
  const int t = threadIdx.x & 3;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float highest = -infinity();
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int at = tile.first + n * 8 + 2 * t + e;
        float& own = score[n][2 * h + e];
        own = at >= tile.lowest && at <= tile.position ? own * scale : -infinity();
        highest = fmaxf(highest, own);
      }
    }
    highest = fmaxf(highest, shuffle_xor(highest, 1));
    highest = fmaxf(highest, shuffle_xor(highest, 2));
    // A tile of a split holds a position that is seen, so the maximum is a number.
    const float next = fmaxf(run.most[h], highest), before = exp2_fast(run.most[h] - next);
    run.most[h] = next;
    run.sum[h] *= before;
#pragma unroll
    for (int n = 0; n < 2; n++) {
      const unsigned pair = pack_weights<T>(exp2_fast(score[n][2 * h] - next), exp2_fast(score[n][2 * h + 1] - next));
      weights[2 * n + h] = pair;
      // The weights as they are multiplied: equal values come out as they are.
      run.sum[h] += low_of<T>(pair) + high_of<T>(pair);
    }
#pragma unroll
    for (int c = 0; c < Running<D>::OUT / 64; c++) {
#pragma unroll
      for (int j = 0; j < 8; j++) run.out[c][j][2 * h] *= before, run.out[c][j][2 * h + 1] *= before;
    }
  }
}

// out += weights · values. A lane's four positions are the rows of b that it holds; its eight columns of a
// chunk are those of eight products.
template <class T, class S, int D, bool WHOLE>
__device__ __forceinline__ void add_values(Running<D>& run, const unsigned* weights, const Paged<S>& paged, const Tile& tile,
                                           const int* pages) {
  const int g = (threadIdx.x & 31) >> 2;
  const S* row[4];
#pragma unroll
  for (int i = 0; i < 4; i++) row[i] = paged.keys(tile.value(i), pages[i]) + paged.plane;
  const int begin = Plan<D>().half * Running<D>::OUT;
#pragma unroll
  for (int c = 0; c < Running<D>::OUT / 64; c++) {
    unsigned pairs[4][4];
#pragma unroll
    for (int i = 0; i < 4; i++) load_eight<T, WHOLE>(pairs[i], row[i], begin + c * 64 + g * 8, paged.head_dim);
#pragma unroll
    for (int j = 0; j < 8; j++) {
      unsigned b[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const unsigned one = pairs[2 * i][j / 2], two = pairs[2 * i + 1][j / 2];
        b[i] = j % 2 ? one >> 16 | (two & 0xffff0000u) : (one & 0xffffu) | two << 16;
      }
      multiply<T>(run.out[c][j], weights, b);
    }
  }
}

// The heads' queries as rows of products, in the order in which the keys' elements come.
template <class T, int PART, int D>
__device__ __forceinline__ uint4 query_part(const T* queries, int heads, int head_dim, int step) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int element = step / (PART / 4) * 4 * PART + t * PART + step % (PART / 4) * 4;
  unsigned pairs[2][2];
#pragma unroll
  for (int h = 0; h < 2; h++) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const bool there = g + 8 * h < heads && element + 2 * i < head_dim;
      pairs[h][i] = there ? *(const unsigned*)(queries + (u64)(g + 8 * h) * head_dim + element + 2 * i) : 0;
    }
  }
  return {pairs[0][0], pairs[1][0], pairs[0][1], pairs[1][1]};
}

// The walkers' shares become the first one's.
template <int D>
__device__ __forceinline__ void merge_warps(Running<D>& run, float (*maxima)[DECODE_HEADS], float* sums) {
  constexpr int OUT = Plan<D>::OUT, HALVES = Plan<D>::HALVES, WALKERS = Plan<D>::WALKERS;
  const Plan<D> plan;
  const int lane = threadIdx.x & 31, g = lane >> 2;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    run.sum[h] += shuffle_xor(run.sum[h], 1);
    run.sum[h] += shuffle_xor(run.sum[h], 2);
    if ((lane & 3) == 0 && plan.half == 0) maxima[plan.walker][g + 8 * h] = run.most[h];
  }
  __syncthreads();
#pragma unroll
  for (int h = 0; h < 2; h++) {
    float highest = -infinity();
#pragma unroll
    for (int w = 0; w < WALKERS; w++) highest = fmaxf(highest, maxima[w][g + 8 * h]);
    // The first walker has a tile in every split that is not empty; others may have none.
    const float factor = exp2_fast(run.most[h] - highest);
    run.most[h] = highest;
    run.sum[h] *= factor;
#pragma unroll
    for (int c = 0; c < Running<D>::OUT / 64; c++) {
#pragma unroll
      for (int j = 0; j < 8; j++) run.out[c][j][2 * h] *= factor, run.out[c][j][2 * h + 1] *= factor;
    }
  }
  constexpr int SHARE = (OUT / 2 + 2) * 32;
#pragma unroll
  for (int apart = 1; apart < WALKERS; apart *= 2) {
    float* place = sums + (apart == 1 ? plan.walker / 2 * HALVES + plan.half : 0) * SHARE + lane;
    if (apart > 1) __syncthreads();
    if (plan.walker % (2 * apart) == apart) {
      place[0] = run.sum[0], place[32] = run.sum[1];
#pragma unroll
      for (int i = 0; i < OUT / 2; i++) place[(i + 2) * 32] = run.out[i / 32][i / 4 % 8][i % 4];
    }
    __syncthreads();
    if (plan.walker % (2 * apart) == 0) {
      run.sum[0] += place[0], run.sum[1] += place[32];
#pragma unroll
      for (int i = 0; i < OUT / 2; i++) run.out[i / 32][i / 4 % 8][i % 4] += place[(i + 2) * 32];
    }
  }
}

// What the first walker writes: the output itself, or a split's share of it.
template <class T, int D>
__device__ __forceinline__ void write_out(T* out, const Running<D>& run, int heads, int head_dim) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
  const int begin = Plan<D>().half * Running<D>::OUT;
  const bool vectors = head_dim % 8 == 0 && aligned16(out);
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (g + 8 * h >= heads) continue;
    const float factor = 1.0f / run.sum[h];
    T* row = out + (u64)(g + 8 * h) * head_dim;
#pragma unroll
    for (int c = 0; c < Running<D>::OUT / 64; c++) {
#pragma unroll
      for (int e = 0; e < 2; e++) {
        const int first = begin + c * 64 + t * 16 + e * 8;
        float values[8];
#pragma unroll
        for (int j = 0; j < 8; j++) values[j] = run.out[c][j][2 * h + e] * factor;
        if (vectors) {
          if (first < head_dim) store16(row + first, pack8<T>(values));
        } else {
#pragma unroll
          for (int j = 0; j < 8; j++)
            if (first + j < head_dim) row[first + j] = from_float<T>(values[j]);
        }
      }
    }
  }
}

template <int D>
__device__ __forceinline__ void write_partial(float* partial, const Running<D>& run, int heads, int head_dim, int splits) {
  const int lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3, begin = Plan<D>().half * Running<D>::OUT;
#pragma unroll
  for (int h = 0; h < 2; h++) {
    if (g + 8 * h >= heads) continue;
    float* row = partial + (u64)(g + 8 * h) * splits * (head_dim + 2);
#pragma unroll
    for (int c = 0; c < Running<D>::OUT / 64; c++) {
#pragma unroll
      for (int i = 0; i < 16; i++) {
        const int at = begin + c * 64 + t * 16 + i;
        if (at < head_dim) row[at] = run.out[c][i % 8][2 * h + i / 8];
      }
    }
    // The maximum of the scores themselves, not of their logarithms to base 2.
    if (t == 0 && begin == 0) row[head_dim] = run.most[h] / LOG2_E, row[head_dim + 1] = run.sum[h];
  }
}

// Nothing to see: zeros, or a split's share that says so.
template <class T>
__device__ __forceinline__ void write_nothing(T* out, float* partial, int heads, int head_dim, int splits) {
  if (splits == 1) {
    for (int i = threadIdx.x; i < heads * head_dim; i += DECODE_ATTENTION_THREADS) out[i] = from_float<T>(0.0f);
    return;
  }
  for (int i = threadIdx.x; i < heads * (head_dim + 2); i += DECODE_ATTENTION_THREADS) {
    const int head = i / (head_dim + 2), at = i - head * (head_dim + 2);
    partial[(u64)head * splits * (head_dim + 2) + at] = at == head_dim ? -infinity() : 0.0f;
  }
}

// A warp's tiles of a split.
template <class T, class S, int D, bool WHOLE>
__device__ __forceinline__ void walk(Running<D>& run, const uint4* query, const uint4* shared_query, const Paged<S>& paged,
                                     const Split& share, int position, float scale) {
  const int lane = threadIdx.x & 31;
  const Plan<D> plan;
  Tile tile{(share.first + plan.walker) * DECODE_TILE_TOKENS, share.lowest, position};
  // Pages are looked up ahead: those of keys while the tile before is worked on, those of values with the
  // keys.
  int key_pages[2], value_pages[4];
#pragma unroll
  for (int k = 0; k < 2; k++) key_pages[k] = paged.table[paged.page_of(tile.key(k))];
  for (int i = share.first + plan.walker; i < share.end; i += Plan<D>::WALKERS) {
    float score[2][4];
    unsigned weights[4];
#pragma unroll
    for (int k = 0; k < 4; k++) value_pages[k] = paged.table[paged.page_of(tile.value(k))];
    scores<T, S, D, WHOLE>(score, D > 128 ? shared_query + lane : query, paged, tile, key_pages);
    const Tile next{tile.first + Plan<D>::WALKERS * DECODE_TILE_TOKENS, tile.lowest, position};
#pragma unroll
    for (int k = 0; k < 2; k++) key_pages[k] = paged.table[paged.page_of(next.key(k))];
    soften<T, D>(weights, score, run, tile, scale);
    add_values<T, S, D, WHOLE>(run, weights, paged, tile, value_pages);
    tile = next;
  }
}

template <class T, class S, int D>
__device__ __forceinline__ void decode_attention(T* out, float* partial, const T* qkv, const int* positions, const int* seq_of,
                                                 const int* table_start, const int* tables, const void* pool, u64 page_bytes,
                                                 int layer, int q_heads, int kv_heads, int head_dim, int page_tokens, int window,
                                                 float scale, int splits) {
  constexpr int PART = Stored<T, S>::PART, STEPS = D / 16;
  constexpr bool QUERY_SHARED = D > 128;
  SHARED(float, maxima, DECODE_WARPS * DECODE_HEADS);
  SHARED(float, sums, 2 * (Plan<D>::OUT / 2 + 2) * 32);
  SHARED(uint4, shared_query, QUERY_SHARED ? STEPS * 32 : 1);
  const int split = blockIdx.x, kv_head = blockIdx.y, row = blockIdx.z, position = positions[row];
  const int group = q_heads / kv_heads, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u64 first_head = (u64)row * q_heads + kv_head * group;
  out += first_head * head_dim;
  partial += (first_head * splits + split) * (head_dim + 2);
  const Split share(position, window, splits, split);
  if (position < 0 || share.first >= share.end) {
    write_nothing<T>(out, partial, group, head_dim, splits);
    return;
  }
  const Paged<S> paged(pool, page_bytes, tables, table_start[seq_of[row]], layer, kv_heads, kv_head, page_tokens, head_dim);
  const bool whole = paged.rows_aligned(16);
  const T* queries = qkv + offset(row, (u64)(q_heads + 2 * kv_heads) * head_dim) + (u64)kv_head * group * head_dim;
  for (int done = 0; done < group; done += DECODE_HEADS) {
    const int heads = least(group - done, DECODE_HEADS);
    uint4 query[QUERY_SHARED ? 1 : STEPS];
    if (QUERY_SHARED) {
      // The pass before has read its queries and sums.
      __syncthreads();
      for (int step = warp; step < STEPS; step += DECODE_WARPS)
        shared_query[step * 32 + lane] = query_part<T, PART, D>(queries, heads, head_dim, step);
      __syncthreads();
    } else {
      if (done) __syncthreads();
#pragma unroll
      for (int step = 0; step < STEPS; step++)
        query[QUERY_SHARED ? 0 : step] = query_part<T, PART, D>(queries, heads, head_dim, step);
    }
    Running<D> run;
    run.most[0] = run.most[1] = -infinity(), run.sum[0] = run.sum[1] = 0.0f;
#pragma unroll
    for (int i = 0; i < Plan<D>::OUT / 2; i++) run.out[i / 32][i / 4 % 8][i % 4] = 0.0f;
    if (whole)
      walk<T, S, D, true>(run, query, shared_query, paged, share, position, scale * LOG2_E);
    else
      walk<T, S, D, false>(run, query, shared_query, paged, share, position, scale * LOG2_E);
    merge_warps<D>(run, (float(*)[DECODE_HEADS])maxima, sums);
    if (Plan<D>().walker == 0) {
      if (splits == 1)
        write_out<T, D>(out, run, heads, head_dim);
      else
        write_partial<D>(partial, run, heads, head_dim, splits);
    }
    queries += (u64)heads * head_dim;
    out += (u64)heads * head_dim;
    partial += (u64)heads * splits * (head_dim + 2);
  }
}

#define DECODE_ATTENTION(SUFFIX, T, S, D, BLOCKS)                                                                       \
  KERNEL(DECODE_ATTENTION_THREADS, BLOCKS)                                                                              \
  decode_attention_##SUFFIX(T* out, float* partial, const T* qkv, const int* positions, const int* seq_of,              \
                            const int* table_start, const int* tables, const void* pool, u64 page_bytes, int layer,     \
                            int q_heads, int kv_heads, int head_dim, int page_tokens, int window, float scale,          \
                            int splits) {                                                                               \
    decode_attention<T, S, D>(out, partial, qkv, positions, seq_of, table_start, tables, pool, page_bytes, layer, q_heads, \
                              kv_heads, head_dim, page_tokens, window, scale, splits);                                  \
  }                                                                                                                     \
  REGISTER(decode_attention_##SUFFIX)

#define DECODE_ATTENTION_WIDTHS(T)                           \
  DECODE_ATTENTION(T##_d64, T, T, 64, 3)                     \
  DECODE_ATTENTION(T##_d128, T, T, 128, 2)                   \
  DECODE_ATTENTION(T##_d256, T, T, 256, 2)                   \
  DECODE_ATTENTION(T##_d64_kv8, T, fp8, 64, 3)               \
  DECODE_ATTENTION(T##_d128_kv8, T, fp8, 128, 2)             \
  DECODE_ATTENTION(T##_d256_kv8, T, fp8, 256, 2)

DECODE_ATTENTION_WIDTHS(bf16)
DECODE_ATTENTION_WIDTHS(f16)

// The splits of a head together. Row and head without any position: zeros.
template <class T>
__device__ __forceinline__ void merge_attention(T* out, const float* partial, int q_heads, int head_dim, int splits) {
  const u64 head = (u64)blockIdx.x * q_heads + blockIdx.y;
  const int width = head_dim + 2;
  partial += head * splits * width;
  float highest = -infinity();
  for (int s = 0; s < splits; s++) highest = fmaxf(highest, partial[s * width + head_dim]);
  const float base = highest == -infinity() ? 0.0f : highest;
  for (int i = threadIdx.x; i < head_dim; i += MERGE_ATTENTION_THREADS) {
    float value = 0.0f, sum = 0.0f;
    for (int s = 0; s < splits; s++) {
      const float factor = exp2_fast((partial[s * width + head_dim] - base) * LOG2_E);
      value += partial[s * width + i] * factor;
      sum += partial[s * width + head_dim + 1] * factor;
    }
    out[head * head_dim + i] = from_float<T>(sum > 0.0f ? value / sum : 0.0f);
  }
}

#define MERGE_ATTENTION(T)                                                                            \
  KERNEL(MERGE_ATTENTION_THREADS, 1)                                                                  \
  merge_attention_##T(T* out, const float* partial, int q_heads, int head_dim, int splits) {          \
    merge_attention<T>(out, partial, q_heads, head_dim, splits);                                      \
  }                                                                                                   \
  REGISTER(merge_attention_##T)

MERGE_ATTENTION(bf16)
MERGE_ATTENTION(f16)
