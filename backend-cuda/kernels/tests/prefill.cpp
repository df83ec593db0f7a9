// Attention of the rows of prompts, by tiles.
#include "pages.h"
#include "tests.h"

namespace {

struct alignas(16) Four {
  int first_row, rows, sequence, position;
};

// Rows of one sequence in this step: `rows` of them, after `before` positions that it had.
struct Part {
  int before, rows;
};

struct Case {
  Shape shape;
  int window, tile_rows;
  std::vector<Part> parts;
};

template <class T, class S>
void one(const std::string& name, const Case& c) {
  const Shape& shape = c.shape;
  Random random(shape.head_dim * 13 + shape.page_tokens * 5 + c.window * 3 + c.tile_rows);
  std::vector<int> lengths;
  std::vector<Four> cut;
  int rows = 0;
  for (size_t s = 0; s < c.parts.size(); s++) {
    const Part& part = c.parts[s];
    lengths.push_back(part.before + part.rows);
    for (int done = 0; done < part.rows; done += c.tile_rows)
      cut.push_back({rows + done, std::min(c.tile_rows, part.rows - done), (int)s, part.before + done});
    rows += part.rows;
  }
  // A tile of padding, which names no sequence.
  cut.insert(cut.begin() + cut.size() / 2, {1 << 30, 0, 1 << 30, -1});
  Buffer<Four> tiles(cut.size());
  for (size_t i = 0; i < cut.size(); i++) tiles[i] = cut[i];
  Pages<S> pages(random, shape, lengths);
  for (size_t s = 0; s < c.parts.size(); s++) {
    // What no row of this step sees stays no number.
    int from = c.window ? std::max(0, c.parts[s].before - c.window + 1) : 0;
    pages.fill(random, (int)s, from, lengths[s]);
  }
  Buffer<T> qkv = random_values<T>(random, (size_t)rows * shape.qkv_width(), 1.5);
  const float scale = (float)(1 / sqrt((double)shape.head_dim));
  std::string what = shape.text() + text(", window %d, tiles of %d rows", c.window, c.tile_rows);
  const int width = width_class(shape.head_dim);
  const size_t shared = width == 64    ? PREFILL_ATTENTION_SHARED_D64
                        : width == 128 ? PREFILL_ATTENTION_SHARED_D128
                                       : PREFILL_ATTENTION_SHARED_D256;
  Buffer<T> got = same_in_any_order<T>(name, what, Buffer<T>((size_t)rows * shape.q_heads * shape.head_dim), [&](T* out, unsigned seed) {
    launch(name, what, {(unsigned)tiles.count, (unsigned)shape.q_heads}, PREFILL_ATTENTION_THREADS, shared, seed, out, (const T*)qkv.at,
           (const void*)tiles.at, pages.table_start.at, pages.tables.at, (const void*)pages.pool.at, pages.page_bytes, shape.layer,
           shape.q_heads, shape.kv_heads, shape.head_dim, shape.page_tokens, c.window, scale);
  });
  std::vector<double> want, bounds;
  int row = 0;
  for (size_t s = 0; s < c.parts.size(); s++) {
    for (int i = 0; i < c.parts[s].rows; i++, row++) {
      int position = c.parts[s].before + i, from = c.window ? std::max(0, position - c.window + 1) : 0;
      for (int head = 0; head < shape.q_heads; head++)
        attend(qkv.at + (size_t)row * shape.qkv_width() + head * shape.head_dim, pages, (int)s, head / shape.group(), from, position, scale,
               want, bounds);
    }
  }
  within(name, what, got, want, bounds);
}

template <class T, class S>
void all(const char* suffix) {
  std::string base = std::string("prefill_attention_") + T::name + "_d";
  int cases[257] = {};
  auto run = [&](const Case& c) {
    int width = width_class(c.shape.head_dim);
    one<T, S>(base + std::to_string(width) + suffix, c);
    cases[width]++;
  };
  // Widths and pages; sequences that begin here, that go on in mid-tile, and single rows.
  int turn = 0;
  for (int head_dim : {16, 20, 40, 64, 96, 128, 192, 256}) {
    const int page_tokens[] = {1, 3, 16, 64};
    for (int i = 0; i < (head_dim > 128 ? 2 : 4); i++)
      run({{2, 1, head_dim, page_tokens[(turn + i * (head_dim > 128 ? 2 : 1)) % 4]}, turn % 3 ? 0 : 19, 64, {{0, 17}, {61, 9}, {70, 1}}}), turn++;
  }
  run({{4, 2, 64, 16}, 0, 64, {{0, 130}, {100, 64}}});
  // Tiles that are not full, groups of heads.
  run({{6, 2, 64, 16}, 0, 23, {{5, 50}}});
  run({{5, 5, 64, 3}, 0, 16, {{64, 33}}});
  run({{16, 1, 128, 16}, 0, 64, {{3, 20}}});
  // Windows from one position to more than a tile: whole tiles are behind them.
  for (int window : {1, 16, 63, 64, 65, 130}) run({{1, 1, 64, 16}, window, 64, {{200, 70}, {0, 20}}});
  run({{1, 1, 256, 16}, 30, 64, {{150, 30}}});
  for (int width : {64, 128, 256})
    if (cases[width]) passed(base + std::to_string(width) + suffix, cases[width]);
}

}  // namespace

void test_prefill() {
  all<Bf16, Bf16>("");
  all<F16, F16>("");
  all<Bf16, Fp8>("_kv8");
  all<F16, Fp8>("_kv8");
}
