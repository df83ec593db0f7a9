// Where keys and values of a position lie. One address range; page p begins at p * page_bytes and
// holds, layer after layer and head after head, the keys and then the values of all its positions.
#pragma once
#include "types.cuh"

// One head of one layer, of one sequence.
template <class S>
struct Paged {
  const S* pool;
  const int* table;
  u64 page_bytes;
  // Elements from the beginning of a page to this head's keys, and from keys to values.
  u64 head, plane;
  int page_tokens, head_dim;
  // 2^32 / page_tokens, rounded down: a division is dear where every lane needs several.
  unsigned reciprocal;

  __device__ __forceinline__ Paged(const void* pool, u64 page_bytes, const int* tables, int start, int layer,
                                   int kv_heads, int kv_head, int page_tokens, int head_dim)
      : pool((const S*)pool), table(tables + start), page_bytes(page_bytes), page_tokens(page_tokens), head_dim(head_dim) {
    plane = (u64)page_tokens * head_dim;
    head = ((u64)layer * kv_heads + kv_head) * 2 * plane;
    reciprocal = 0xffffffffu / (unsigned)page_tokens;
  }

  // position / page_tokens. The product is at most one too small, for every position.
  __device__ __forceinline__ int page_of(int position) const {
    const int page = (int)((u64)(unsigned)position * reciprocal >> 32);
    return position - page * page_tokens >= page_tokens ? page + 1 : page;
  }

  // The keys of a position that is in that page of the pool; its values are `plane` further on.
  __device__ __forceinline__ const S* keys(int position, int page) const {
    const int slot = position - page_of(position) * page_tokens;
    return (const S*)((const char*)pool + (u64)page * page_bytes) + head + (u64)slot * head_dim;
  }

  __device__ __forceinline__ const S* keys(int position) const { return keys(position, table[page_of(position)]); }

  // Whether every row of a head begins at a multiple of `bytes` (a power of two).
  __device__ __forceinline__ bool rows_aligned(int bytes) const {
    return ((u64)pool | page_bytes | (u64)(head_dim * (int)sizeof(S))) % bytes == 0;
  }
};

// `BYTES` bytes of a row from `first` on, as words; those beyond its end are 0. WHOLE: the row begins and
// ends at multiples of BYTES. Otherwise by pairs of bytes: head widths are even.
template <int BYTES, bool WHOLE, class S>
__device__ __forceinline__ void load_part(unsigned* words, const S* row, int first, int row_bytes) {
  const char* at = (const char*)row + first;
#pragma unroll
  for (int i = 0; i < BYTES / 4; i++) words[i] = 0;
  if (WHOLE) {
    if (first < row_bytes) {
      if (BYTES == 16) {
        const uint4 all = *(const uint4*)at;
        words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
      } else {
        const uint2 all = *(const uint2*)at;
        words[0] = all.x, words[1] = all.y;
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < BYTES / 4; i++) {
    if (first + i * 4 < row_bytes) words[i] = *(const unsigned short*)(at + i * 4);
    if (first + i * 4 + 2 < row_bytes) words[i] |= (unsigned)*(const unsigned short*)(at + i * 4 + 2) << 16;
  }
}

// Eight elements of a row as T, in four registers.
template <class T, bool WHOLE, class S>
__device__ __forceinline__ void load_eight(unsigned* pairs, const S* row, int element, int head_dim) {
  if (sizeof(S) == 1) {
    unsigned raw[2];
    load_part<8, WHOLE>(raw, row, element, head_dim);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      pairs[2 * i] = widen<T>(raw[i] & 0xffff);
      pairs[2 * i + 1] = widen<T>(raw[i] >> 16);
    }
  } else {
    load_part<16, WHOLE>(pairs, row, element * 2, head_dim * 2);
  }
}
