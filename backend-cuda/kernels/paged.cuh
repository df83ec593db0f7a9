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

  __device__ __forceinline__ Paged(const void* pool, u64 page_bytes, const int* tables, int start, int layer,
                                   int kv_heads, int kv_head, int page_tokens, int head_dim)
      : pool((const S*)pool), table(tables + start), page_bytes(page_bytes), page_tokens(page_tokens), head_dim(head_dim) {
    plane = (u64)page_tokens * head_dim;
    head = ((u64)layer * kv_heads + kv_head) * 2 * plane;
  }

  // The keys of a position; its values are `plane` further on.
  __device__ __forceinline__ const S* keys(int position) const {
    const int page = position / page_tokens, slot = position - page * page_tokens;
    return in_page(table[page], slot);
  }

  __device__ __forceinline__ const S* in_page(int page, int slot) const {
    return (const S*)((const char*)pool + (u64)page * page_bytes) + head + (u64)slot * head_dim;
  }

  // Whether every row of a head begins at a multiple of `bytes` (a power of two).
  __device__ __forceinline__ bool rows_aligned(int bytes) const {
    return ((u64)pool | page_bytes | (u64)(head_dim * (int)sizeof(S))) % bytes == 0;
  }
};

// `BYTES` bytes of a row from `first` on, as words; those beyond its end are 0. `whole`: the row
// begins and ends at multiples of BYTES. Otherwise by pairs of bytes: head widths are even.
template <int BYTES, class S>
__device__ __forceinline__ void load_part(unsigned* words, const S* row, int first, int row_bytes, bool whole) {
  const char* at = (const char*)row + first;
  if (whole) {
    if (first < row_bytes) {
      if (BYTES == 16) {
        const uint4 all = *(const uint4*)at;
        words[0] = all.x, words[1] = all.y, words[2] = all.z, words[3] = all.w;
      } else {
        const uint2 all = *(const uint2*)at;
        words[0] = all.x, words[1] = all.y;
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < BYTES / 4; i++) words[i] = 0;
    return;
  }
#pragma unroll
  for (int i = 0; i < BYTES / 4; i++) {
    unsigned low = 0, high = 0;
    if (first + i * 4 < row_bytes) low = *(const unsigned short*)(at + i * 4);
    if (first + i * 4 + 2 < row_bytes) high = *(const unsigned short*)(at + i * 4 + 2);
    words[i] = low | high << 16;
  }
}
