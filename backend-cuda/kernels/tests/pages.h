// Keys and values of some sequences in scattered pages, as the tests of attention need them.
#pragma once
#include "harness.h"

// What is the same for a whole step.
struct Shape {
  int q_heads, kv_heads, head_dim, page_tokens;
  int layers = 2, layer = 1;
  int qkv_width() const { return (q_heads + 2 * kv_heads) * head_dim; }
  int group() const { return q_heads / kv_heads; }
  std::string text() const {
    return ::text("%d/%d heads of %d, pages of %d", q_heads, kv_heads, head_dim, page_tokens);
  }
};

template <class S>
struct Pages {
  Shape shape;
  unsigned long long page_bytes;
  Buffer<int> table_start, tables;
  Buffer<S> pool;

  static int pages_of(int tokens, int page_tokens) { return (tokens + page_tokens - 1) / page_tokens; }

  // Pages for sequences of those lengths, in random order, with one page that nobody owns; all of it is
  // not a number until it is written. `gap` elements stay between pages.
  Pages(Random& random, Shape shape, const std::vector<int>& lengths, int gap = 0)
      : shape(shape), table_start(lengths.size()), tables(total(lengths, shape.page_tokens)), pool(elements(shape, gap) * (tables.count + 1)) {
    page_bytes = elements(shape, gap) * sizeof(S);
    int next = 0;
    for (size_t s = 0; s < lengths.size(); s++) {
      table_start[s] = next;
      next += pages_of(lengths[s], shape.page_tokens);
    }
    std::vector<int> order;
    for (size_t i = 0; i <= tables.count; i++) order.push_back((int)i);
    for (size_t i = order.size() - 1; i > 0; i--) std::swap(order[i], order[random.below((int)i + 1)]);
    for (size_t i = 0; i < tables.count; i++) tables[i] = order[i];
    memset((void*)pool.at, 0xff, pool.count * sizeof(S));
  }
  static size_t elements(const Shape& s, int gap) {
    return (size_t)s.layers * s.kv_heads * 2 * s.page_tokens * s.head_dim + gap;
  }
  static int total(const std::vector<int>& lengths, int page_tokens) {
    int sum = 0;
    for (int length : lengths) sum += pages_of(length, page_tokens);
    return sum;
  }

  // Index in the pool of a position's keys (0) or values (1).
  size_t at(int sequence, int position, int head, int kind) const {
    size_t page = tables[table_start[sequence] + position / shape.page_tokens];
    size_t plane = (size_t)shape.page_tokens * shape.head_dim;
    return page * (page_bytes / sizeof(S)) + ((size_t)(shape.layer * shape.kv_heads + head) * 2 + kind) * plane +
           (size_t)(position % shape.page_tokens) * shape.head_dim;
  }

  void fill(Random& random, int sequence, int from, int to) {
    for (int position = from; position < to; position++)
      for (int head = 0; head < shape.kv_heads; head++)
        for (int kind = 0; kind < 2; kind++)
          for (int i = 0; i < shape.head_dim; i++) pool[at(sequence, position, head, kind) + i] = make<S>(random.normal());
  }
};

// What a query sees from `from` up to `to` (included): the output, and for each element how far a result may be
// from it whose weights are rounded to T.
template <class T, class S>
void attend(const T* query, const Pages<S>& pages, int sequence, int head, int from, int to, double scale,
            std::vector<double>& out, std::vector<double>& bounds) {
  const int width = pages.shape.head_dim;
  std::vector<double> weights;
  double most = -INFINITY, sum = 0;
  for (int position = from; position <= to; position++) {
    double score = 0;
    const S* key = &pages.pool[pages.at(sequence, position, head, 0)];
    for (int i = 0; i < width; i++) score += value_of(query[i]) * value_of(key[i]);
    weights.push_back(score * scale);
    most = std::max(most, score * scale);
  }
  for (double& weight : weights) sum += weight = exp(weight - most);
  std::vector<double> own(width), sizes(width);
  for (int position = from; position <= to; position++) {
    const S* value = &pages.pool[pages.at(sequence, position, head, 1)];
    double weight = weights[position - from] / sum;
    for (int i = 0; i < width; i++) {
      own[i] += weight * value_of(value[i]);
      sizes[i] += weight * fabs(value_of(value[i]));
    }
  }
  for (int i = 0; i < width; i++) {
    out.push_back(own[i]);
    bounds.push_back(T::half_step * (sizes[i] + 2 * fabs(own[i])) * 1.05 + 2e-5);
  }
}

template <class T>
void within(const std::string& name, const std::string& what, const Buffer<T>& got, const std::vector<double>& want,
            const std::vector<double>& bounds) {
  if (got.count != want.size()) fail(name, what, "other length");
  for (size_t i = 0; i < want.size(); i++)
    if (!(fabs(value_of(got[i]) - want[i]) <= bounds[i]))
      fail(name, what, text("element %zu is %.9g, should be %.9g, within %.3g", i, value_of(got[i]), want[i], bounds[i]));
}

// The name of a kernel and the width that it is made for.
inline int width_class(int head_dim) { return head_dim <= 64 ? 64 : head_dim <= 128 ? 128 : 256; }
