// Rotary positions, and keys and values in their pages.
#include "pages.h"
#include "tests.h"

namespace {

template <class S>
bool same_bits(S a, S b) {
  return a.bits == b.bits;
}

// A stored element may be the neighbour of the nearest one: the rotation is in float32.
template <class S>
double step_of(double value);
template <>
double step_of<Bf16>(double value) {
  return fabs(value) / 256 * 1.01 + 1e-6;
}
template <>
double step_of<F16>(double value) {
  return fabs(value) / 2048 * 1.01 + 1e-6;
}
template <>
double step_of<Fp8>(double value) {
  return fabs(value) / 16 * 1.01 + 1e-3;
}

template <class T, class S>
void check_head(const std::string& name, const std::string& what, const T* before, const S* after, const float* cos,
                const float* sin, int head_dim) {
  for (int i = 0; i < head_dim / 2; i++) {
    double a = value_of(before[i]), b = value_of(before[i + head_dim / 2]);
    double wants[] = {a * cos[i] - b * sin[i], b * cos[i] + a * sin[i]};
    for (int h = 0; h < 2; h++) {
      double got = value_of(after[i + h * head_dim / 2]), want = wants[h];
      if (sizeof(S) == 1) want = std::max(-448.0, std::min(448.0, want));
      if (!(fabs(got - want) <= step_of<S>(want) + (fabs(a) + fabs(b)) * 2e-7))
        fail(name, what, text("plane %d, half %d is %.9g, should be %.9g", i, h, got, want));
    }
  }
}

template <class T, class S>
int one(const std::string& name, Shape shape, int gap) {
  Random random(shape.head_dim * 7 + shape.page_tokens);
  const std::vector<int> lengths = {1, 2 * shape.page_tokens, 3 * shape.page_tokens + 2};
  Pages<S> pages(random, shape, lengths, gap);
  // Each sequence's last position, a padding row, and an earlier position.
  const int rows = 5, half = shape.head_dim / 2;
  Buffer<int> positions(rows), sequences(rows);
  const int at[] = {0, lengths[1] - 1, -1, lengths[2] - 1, lengths[2] / 2}, of[] = {0, 1, 1 << 30, 2, 2};
  for (int i = 0; i < rows; i++) positions[i] = at[i], sequences[i] = of[i];
  const int longest = lengths[2];
  Buffer<float> cos((size_t)longest * half), sin((size_t)longest * half);
  for (size_t i = 0; i < cos.count; i++) cos[i] = (float)::cos((double)i), sin[i] = (float)::sin((double)i);
  const int width = shape.qkv_width();
  // Some beyond what fp8 can hold.
  Buffer<T> qkv = random_values<T>(random, (size_t)rows * width, shape.page_tokens == 3 ? 300 : 2);
  std::string what = shape.text();
  // Queries and pages behind each other, so that both are compared under all orders.
  Buffer<char> both(qkv.count * sizeof(T) + 16 + pages.pool.count * sizeof(S));
  const size_t second = (qkv.count * sizeof(T) + 15) / 16 * 16;
  memcpy(both.at, qkv.at, qkv.count * sizeof(T));
  memcpy(both.at + second, pages.pool.at, pages.pool.count * sizeof(S));
  Buffer<char> got = same_in_any_order<char>(name, what, both, [&](char* place, unsigned seed) {
    launch(name, what, {rows}, ROPE_STORE_THREADS, 0, seed, (T*)place, positions.at, sequences.at, pages.table_start.at,
           pages.tables.at, cos.at, sin.at, (void*)(place + second), pages.page_bytes, shape.layer, shape.q_heads, shape.kv_heads,
           shape.head_dim, shape.page_tokens);
  });
  const T* after = (const T*)got.at;
  S* stored = (S*)(got.at + second);
  for (int row = 0; row < rows; row++) {
    const T* mine = qkv.at + (size_t)row * width;
    for (int i = 0; i < width; i++) {
      bool rotated = positions[row] >= 0 && i < shape.q_heads * shape.head_dim;
      if (!rotated && !same_bits(after[(size_t)row * width + i], mine[i])) fail(name, what, text("row %d, element %d changed", row, i));
    }
    if (positions[row] < 0) continue;
    const float *c = cos.at + (size_t)positions[row] * half, *s = sin.at + (size_t)positions[row] * half;
    for (int head = 0; head < shape.q_heads; head++)
      check_head(name, what, mine + head * shape.head_dim, after + (size_t)row * width + head * shape.head_dim, c, s, shape.head_dim);
    for (int head = 0; head < shape.kv_heads; head++) {
      const T* key = mine + (shape.q_heads + head) * shape.head_dim;
      check_head(name, what, key, stored + pages.at(sequences[row], positions[row], head, 0), c, s, shape.head_dim);
      const T* value = mine + (shape.q_heads + shape.kv_heads + head) * shape.head_dim;
      for (int i = 0; i < shape.head_dim; i++) {
        S& place = stored[pages.at(sequences[row], positions[row], head, 1) + i];
        if (!same_bits(place, make<S>(value_of(value[i])))) fail(name, what, text("row %d, value %d", row, i));
      }
      // Seen: back to what it was, so that what remains must be untouched.
      for (int kind = 0; kind < 2; kind++)
        memset((void*)(stored + pages.at(sequences[row], positions[row], head, kind)), 0xff, shape.head_dim * sizeof(S));
    }
  }
  if (memcmp(stored, pages.pool.at, pages.pool.count * sizeof(S))) fail(name, what, "wrote where nothing belongs");
  return 1;
}

template <class T, class S>
void all(const char* suffix) {
  std::string name = std::string("rope_store_") + T::name + suffix;
  int cases = 0;
  for (int head_dim : {2, 16, 40, 64, 96, 128, 192, 256})
    for (int page_tokens : {1, 3, 16, 64}) {
      Shape shape{page_tokens == 3 ? 6 : 4, page_tokens == 16 ? 4 : 2, head_dim, page_tokens};
      // A gap of one element puts every second page at an odd place.
      cases += one<T, S>(name, shape, page_tokens == 1 ? 2 : 0);
    }
  passed(name, cases);
}

}  // namespace

void test_rope() {
  all<Bf16, Bf16>("");
  all<F16, F16>("");
  all<Bf16, Fp8>("_kv8");
  all<F16, Fp8>("_kv8");
}
