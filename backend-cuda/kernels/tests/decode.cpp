// Attention of single rows, whole and in splits.
#include "pages.h"
#include "tests.h"

namespace {

struct Case {
  Shape shape;
  int window, splits;
  std::vector<int> lengths;
};

template <class T, class S>
void one(const std::string& name, const Case& c) {
  const Shape& shape = c.shape;
  Random random(shape.head_dim * 31 + shape.page_tokens * 7 + c.splits + c.window);
  Pages<S> pages(random, shape, c.lengths);
  // A row for each sequence, at its end, and a padding row in front of the last one.
  const int rows = (int)c.lengths.size() + 1;
  Buffer<int> positions(rows), sequences(rows);
  for (int row = 0; row < rows; row++) {
    int sequence = row < rows - 2 ? row : row - 1;
    bool padding = row == rows - 2;
    positions[row] = padding ? -1 : c.lengths[sequence] - 1;
    sequences[row] = padding ? 1 << 30 : sequence;
    if (padding) continue;
    // What a window hides stays no number, as everything behind the end.
    int from = c.window ? std::max(0, c.lengths[sequence] - c.window) : 0;
    pages.fill(random, sequence, from, c.lengths[sequence]);
  }
  Buffer<T> qkv = random_values<T>(random, (size_t)rows * shape.qkv_width(), 1.5);
  const float scale = (float)(1 / sqrt((double)shape.head_dim));
  std::string what = shape.text() + text(", window %d, %d splits", c.window, c.splits);
  const size_t outputs = (size_t)rows * shape.q_heads * shape.head_dim;
  Buffer<float> partial((size_t)(c.splits > 1 ? rows * shape.q_heads * c.splits * (shape.head_dim + 2) : 0));
  std::string merge = std::string("merge_attention_") + T::name;
  Buffer<T> got = same_in_any_order<T>(name, what, Buffer<T>(outputs), [&](T* out, unsigned seed) {
    launch(name, what, {(unsigned)c.splits, (unsigned)shape.kv_heads, (unsigned)rows}, DECODE_ATTENTION_THREADS, 0, seed,
           c.splits > 1 ? (T*)nullptr : out, partial.at, (const T*)qkv.at, positions.at, sequences.at, pages.table_start.at,
           pages.tables.at, (const void*)pages.pool.at, pages.page_bytes, shape.layer, shape.q_heads, shape.kv_heads,
           shape.head_dim, shape.page_tokens, c.window, scale, c.splits);
    if (c.splits > 1)
      launch(merge, what, {(unsigned)rows, (unsigned)shape.q_heads}, MERGE_ATTENTION_THREADS, 0, seed, out, partial.at, shape.q_heads,
             shape.head_dim, c.splits);
  });
  std::vector<double> want, bounds;
  for (int row = 0; row < rows; row++) {
    for (int head = 0; head < shape.q_heads; head++) {
      if (positions[row] < 0) {
        want.insert(want.end(), shape.head_dim, 0), bounds.insert(bounds.end(), shape.head_dim, 0);
        continue;
      }
      int from = c.window ? std::max(0, positions[row] - c.window + 1) : 0;
      attend(qkv.at + (size_t)row * shape.qkv_width() + head * shape.head_dim, pages, sequences[row], head / shape.group(), from,
             positions[row], scale, want, bounds);
    }
  }
  within(name, what, got, want, bounds);
}

template <class T, class S>
void all(const char* suffix) {
  int merged = 0;
  std::string base = std::string("decode_attention_") + T::name + "_d";
  int cases[257] = {};
  auto run = [&](const Case& c) {
    int width = width_class(c.shape.head_dim);
    one<T, S>(base + std::to_string(width) + suffix, c);
    cases[width]++;
    merged += c.splits > 1;
  };
  // Widths and pages, with ragged lengths.
  int turn = 0;
  for (int head_dim : {16, 20, 40, 64, 96, 128, 192, 256})
    for (int page_tokens : {1, 3, 16, 64})
      run({{4, 2, head_dim, page_tokens}, turn % 3 ? 0 : 21, 1 + turn++ % 7, {1, 16, 17, 75}});
  // Groups, more than one pass among them.
  for (int group : {1, 2, 3, 5, 8, 9, 16, 20}) run({{group * 2, 2, 64, 16}, 0, group % 3 + 1, {33, 70}});
  run({{17, 1, 128, 16}, 0, 2, {40}});
  run({{18, 1, 256, 16}, 0, 2, {40}});
  // Windows around tiles and splits, more splits than tiles, and a long row.
  for (int window : {1, 15, 16, 17, 64}) run({{2, 1, 64, 16}, window, 3, {1, 16, 100}});
  for (int splits : {1, 4, 7}) run({{2, 2, 128, 16}, 0, splits, {3, 333}});
  for (int width : {64, 128, 256})
    if (cases[width]) passed(base + std::to_string(width) + suffix, cases[width]);
  passed(std::string("merge_attention_") + T::name + " (" + (*suffix ? "kv8" : T::name) + ")", merged);
}

}  // namespace

void test_decode() {
  all<Bf16, Bf16>("");
  all<F16, F16>("");
  all<Bf16, Fp8>("_kv8");
  all<F16, Fp8>("_kv8");
}
