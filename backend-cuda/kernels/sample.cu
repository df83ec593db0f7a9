// The next token of each row of logits: the highest, or one draw from those that top-k, top-p and min-p
// leave. Exact and the same every time: weights are whole numbers (2^-40 of the likeliest), so that their
// sums do not depend on an order; what is kept is the first so many by logit, of equals the lower ids.
#include "reduce.cuh"
#include "types.cuh"

struct Draw {
  float temperature;
  int top_k;
  float top_p, min_p;
  double unit;
};

constexpr int SAMPLE_WARPS = SAMPLE_THREADS / 32;
constexpr int SAMPLE_BINS = 2048;

// A logit's place in the order of sizes, as an unsigned number: larger for larger logits. No number is
// below all; -0 and 0 are equal.
__device__ __forceinline__ unsigned key_of(float logit) {
  if (logit != logit) return 0;
  if (logit == 0.0f) return 0x80000000u;
  const unsigned bits = bits_of(logit);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// The logit of a key.
__device__ __forceinline__ float logit_of(unsigned key) {
  return float_of(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Row of logits, and how likely they are next to the highest.
struct Logits {
  const float* at;
  int vocab;
  float highest, temperature;

  // How many temperatures a logit is below the highest; at least 0.
  __device__ __forceinline__ float distance(float logit) const { return (highest - logit) / temperature; }

  // Of 2^40 for the highest.
  __device__ __forceinline__ u64 weight(float logit) const {
    const float below = distance(logit);
    // Beyond that nothing is left of 2^40; also for what is no number.
    return below < 28.0f ? (u64)(expf(-below) * 1099511627776.0f) : 0;
  }

  // A coarse order that spreads logits evenly: never larger for a larger logit.
  __device__ __forceinline__ int bin(float logit) const {
    const float place = distance(logit) * 64.0f;
    return place < (float)(SAMPLE_BINS - 1) ? (int)place : SAMPLE_BINS - 1;
  }
};

// The first tokens of the order: all with larger keys, and `equals` of those with this one.
struct Cut {
  unsigned key;
  int equals;
};

// What a block shares: counts or weights of bins (the halves of their sums), and what its warps hand over.
struct Board {
  unsigned *low, *high;
  u64 *sums, *found;
};

// 64-bit addition out of two that the device has: the carry shows in what was there before.
__device__ __forceinline__ void add_weight(unsigned* low, unsigned* high, u64 weight) {
  const unsigned part = (unsigned)weight, before = atomicAdd(low, part);
  const unsigned rest = (unsigned)(weight >> 32) + (before + part < before ? 1u : 0u);
  if (rest) atomicAdd(high, rest);
}

// The highest logit and the lowest id that has it; every thread gets both.
__device__ __forceinline__ void find_highest(const float* logits, int vocab, const Board& board, float& highest, int& id) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float most = -infinity();
  int at = 0x7fffffff;
  auto take = [&](float logit, int i) {
    if (logit > most || (logit == most && i < at)) most = logit, at = i;
  };
  int whole = 0;
  if (aligned16(logits)) {
    whole = vocab / 4;
    for (int i = threadIdx.x; i < whole; i += SAMPLE_THREADS) {
      const float4 four = *(const float4*)(logits + i * 4);
      take(four.x, i * 4), take(four.y, i * 4 + 1), take(four.z, i * 4 + 2), take(four.w, i * 4 + 3);
    }
  }
  for (int i = whole * 4 + threadIdx.x; i < vocab; i += SAMPLE_THREADS) take(logits[i], i);
  // Key and complement of the id as one number: the largest is the answer.
  u64 best = (u64)key_of(most) << 32 | (unsigned)~at;
#pragma unroll
  for (int apart = 16; apart > 0; apart >>= 1) {
    const u64 other = shuffle_xor(best, apart);
    if (other > best) best = other;
  }
  if (lane == 0) board.sums[warp] = best;
  __syncthreads();
#pragma unroll 4
  for (int w = 0; w < SAMPLE_WARPS; w++)
    if (board.sums[w] > best) best = board.sums[w];
  __syncthreads();
  id = (int)~(unsigned)best;
  // All logits are minus infinity or no number: the first token.
  if (id >= vocab || id < 0) id = 0;
  highest = logits[id];
}

// The sum over all threads before this one, and the total of all.
__device__ __forceinline__ u64 block_prefix(u64 value, u64* sums, u64& total) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const u64 up_to = warp_prefix(value);
  if (lane == 31) sums[warp] = up_to;
  __syncthreads();
  u64 before = 0;
  total = 0;
#pragma unroll 4
  for (int w = 0; w < SAMPLE_WARPS; w++) {
    if (w < warp) before += sums[w];
    total += sums[w];
  }
  __syncthreads();
  return before + up_to - value;
}

// The rank of a token in the order is measured by count (top-k) or by weight (top-p). One pass over the
// logits that `within` lets through sorts them into bins; then the bin is found in which the measure
// goes past `target`. Returns the bin and adds to `passed` what lies before it.
template <bool WEIGHTS, class Within, class Bin>
__device__ __forceinline__ int crossing_bin(const Logits& row, const Board& board, u64 target, u64& passed, const Within& within,
                                            const Bin& bin_of) {
  for (int i = threadIdx.x; i < SAMPLE_BINS; i += SAMPLE_THREADS) board.low[i] = board.high[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < row.vocab; i += SAMPLE_THREADS) {
    const float logit = row.at[i];
    if (!within(logit)) continue;
    const int bin = bin_of(logit);
    if (WEIGHTS)
      add_weight(board.low + bin, board.high + bin, row.weight(logit));
    else
      atomicAdd(board.low + bin, 1u);
  }
  __syncthreads();
  constexpr int EACH = SAMPLE_BINS / SAMPLE_THREADS;
  u64 own[EACH], sum = 0, total;
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    const int bin = threadIdx.x * EACH + i;
    own[i] = (u64)board.high[bin] << 32 | board.low[bin];
    sum += own[i];
  }
  u64 before = passed + block_prefix(sum, board.sums, total);
  // The bin in which the target is reached; one thread at most finds it.
#pragma unroll
  for (int i = 0; i < EACH; i++) {
    if (before < target && before + own[i] >= target) {
      board.found[0] = (u64)(threadIdx.x * EACH + i);
      board.found[1] = before;
    }
    before += own[i];
  }
  __syncthreads();
  const int bin = (int)board.found[0];
  passed = board.found[1];
  __syncthreads();
  return bin;
}

// The shortest beginning of the order whose measure reaches `target`, which is at least 1 and at most the
// measure of all logits above the key `above`. First a coarse bin, then the key in three parts.
template <bool WEIGHTS>
__device__ __forceinline__ Cut find_cut(const Logits& row, const Board& board, u64 target, unsigned above) {
  u64 passed = 0;
  auto allowed = [&](float logit) { return above == 0 || key_of(logit) > above; };
  const int coarse = crossing_bin<WEIGHTS>(row, board, target, passed, allowed, [&](float logit) { return row.bin(logit); });
  unsigned key = 0, known = 0;
#pragma unroll 1
  for (int part = 0; part < 3; part++) {
    const int shift = part == 0 ? 21 : part == 1 ? 10 : 0;
    const unsigned ones = part == 2 ? 1023 : 2047;
    auto within = [&](float logit) {
      return row.bin(logit) == coarse && (key_of(logit) & known) == key && allowed(logit);
    };
    // Larger keys come first.
    auto bin_of = [&](float logit) { return (int)(~(key_of(logit) >> shift) & ones); };
    const int bin = crossing_bin<WEIGHTS>(row, board, target, passed, within, bin_of);
    key |= (~(unsigned)bin & ones) << shift;
    known |= ones << shift;
  }
  u64 equals = target - passed;
  if (WEIGHTS) {
    const u64 each = row.weight(logit_of(key));
    equals = (equals + each - 1) / each;
  }
  return {key, (int)equals};
}

// The sum of the weights above a key.
__device__ __forceinline__ u64 weight_above(const Logits& row, const Board& board, unsigned key) {
  u64 sum = 0, total;
  for (int i = threadIdx.x; i < row.vocab; i += SAMPLE_THREADS)
    if (key == 0 || key_of(row.at[i]) > key) sum += row.weight(row.at[i]);
  block_prefix(sum, board.sums, total);
  return total;
}

// top-k, then top-p of what it leaves.
__device__ __forceinline__ Cut cut_of(const Logits& row, const Board& board, int top_k, float top_p) {
  Cut cut{0, 0};
  if (top_k > 0 && top_k < row.vocab) cut = find_cut<false>(row, board, top_k, 0);
  if (top_p >= 1.0f) return cut;
  const u64 above = weight_above(row, board, cut.key), each = cut.equals ? row.weight(logit_of(cut.key)) : 0;
  const double wanted = ceil((double)top_p * (double)(above + cut.equals * each));
  const u64 target = wanted < 1.0 ? 1 : (u64)wanted;
  if (target <= above) return find_cut<true>(row, board, target, cut.key);
  if (each > 0) {
    const int needed = (int)((target - above + each - 1) / each);
    if (needed < cut.equals) cut.equals = needed;
  }
  return cut;
}

// What each warp's part of the vocabulary holds of the choice.
struct Part {
  const Logits& row;
  const Draw& draw;
  Cut cut;
  int first, end;

  // The weight of a logit above the cut, and whether it stands on the cut itself.
  __device__ __forceinline__ u64 weight(int i, bool& equal) const {
    equal = false;
    if (i >= end) return 0;
    const float logit = row.at[i];
    const unsigned key = key_of(logit);
    if (key < cut.key || (logit != row.highest && expf(-row.distance(logit)) < draw.min_p)) return 0;
    equal = key == cut.key;
    return row.weight(logit);
  }
};

// The first token, in the order of ids, at which the sum of the weights goes past unit * sum of all.
__device__ __forceinline__ void draw_one(unsigned* chosen, const Logits& row, const Draw& draw, Cut cut, const Board& board, int otherwise) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int each = (row.vocab + SAMPLE_WARPS - 1) / SAMPLE_WARPS;
  Part part{row, draw, cut, least(warp * each, row.vocab), least((warp + 1) * each, row.vocab)};
  u64 *above = board.sums, *equals = board.found, sum = 0, count = 0, level = 0;
  for (int i = part.first + lane; i < part.end; i += 32) {
    bool equal;
    const u64 weight = part.weight(i, equal);
    if (equal) count++, level = weight;
    else sum += weight;
  }
  sum = warp_sum(sum), count = warp_sum(count);
  // All that stand on the cut weigh the same, or nothing where min-p leaves them out.
  const bool some = warp_ballot(count > 0) != 0;
#pragma unroll
  for (int apart = 16; apart > 0; apart >>= 1) {
    const u64 other = shuffle_xor(level, apart);
    if (some && other > level) level = other;
  }
  if (lane == 0) above[warp] = sum, equals[warp] = count << 48 | level;
  __syncthreads();
  const u64 mask = ((u64)1 << 48) - 1;
  u64 total = 0, before = 0, mine = 0;
  int left = cut.equals, my_left = 0;
  for (int w = 0; w < SAMPLE_WARPS; w++) {
    const int standing = (int)(equals[w] >> 48), kept = least(standing, left);
    const u64 own = above[w] + kept * (equals[w] & mask);
    if (w < warp) before += own;
    if (w == warp) mine = own, my_left = left;
    total += own, left -= kept;
  }
  u64 target = (u64)(draw.unit * (double)total);
  if (target >= total) target = total - 1;
  if (threadIdx.x == 0 && total == 0) *chosen = otherwise;
  if (total == 0 || target < before || target >= before + mine) return;
  // This warp's part holds it.
  for (int i = part.first + lane; i - lane < part.end; i += 32) {
    bool equal;
    u64 weight = part.weight(i, equal);
    const unsigned standing = warp_ballot(equal);
    const int rank = popcount(standing & ((1u << lane) - 1));
    if (equal && rank >= my_left) weight = 0;
    my_left -= least(my_left, popcount(standing));
    const u64 up_to = before + warp_prefix(weight);
    if (target >= up_to - weight && target < up_to) *chosen = i;
    before = shuffle_from(up_to, 31);
    if (before > target) return;
  }
}

KERNEL(SAMPLE_THREADS, 1)
sample(unsigned* chosen, const float* logits, const Draw* draws, int vocab) {
  SHARED(unsigned, low, SAMPLE_BINS);
  SHARED(unsigned, high, SAMPLE_BINS);
  SHARED(u64, sums, SAMPLE_WARPS);
  SHARED(u64, found, SAMPLE_WARPS);
  const Board board{low, high, sums, found};
  const Draw draw = draws[blockIdx.x];
  Logits row{logits + offset(blockIdx.x, vocab), vocab, 0.0f, draw.temperature};
  int id;
  find_highest(row.at, vocab, board, row.highest, id);
  const bool draws_one = draw.temperature > 0.0f && row.highest > -infinity() && row.highest < infinity();
  if (!draws_one) {
    if (threadIdx.x == 0) chosen[blockIdx.x] = id;
    return;
  }
  const Cut cut = cut_of(row, board, draw.top_k, draw.top_p);
  __syncthreads();
  draw_one(chosen + blockIdx.x, row, draw, cut, board, id);
}
REGISTER(sample)
