// The choice of the next token against sorting everything.
#include <numeric>

#include "harness.h"
#include "tests.h"

namespace {

struct Draw {
  float temperature;
  int top_k;
  float top_p, min_p;
  double unit;
};

// By definition: everything sorted, in doubles. `margin` is how near the decision was to another one.
unsigned choose(const float* logits, int vocab, const Draw& draw, double& margin) {
  std::vector<int> order(vocab);
  std::iota(order.begin(), order.end(), 0);
  auto size = [&](int i) { return std::isnan(logits[i]) ? -INFINITY : (double)logits[i]; };
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return size(a) > size(b); });
  margin = 1;
  if (draw.temperature == 0 || !std::isfinite(size(order[0]))) return order[0];
  auto weight = [&](int i) { return exp((size(i) - size(order[0])) / (double)draw.temperature); };
  if (draw.top_k > 0 && draw.top_k < vocab) order.resize(draw.top_k);
  double total = 0, sum = 0;
  for (int i : order) total += weight(i);
  std::vector<int> kept;
  for (int i : order) {
    if (!kept.empty()) margin = std::min(margin, fabs(weight(i) - draw.min_p) / std::max(1e-9, (double)draw.min_p));
    if (!kept.empty() && weight(i) < draw.min_p) break;
    kept.push_back(i);
    sum += weight(i);
    if (draw.top_p < 1) margin = std::min(margin, fabs(sum / total - draw.top_p) * 1e3);
    if (draw.top_p < 1 && sum >= draw.top_p * total) break;
  }
  std::sort(kept.begin(), kept.end());
  double passed = 0;
  for (int i : kept) {
    passed += weight(i);
    margin = std::min(margin, fabs(passed / sum - draw.unit) * 1e3);
    if (passed > draw.unit * sum) return i;
  }
  return kept.back();
}

struct Rows {
  int vocab;
  std::vector<float> logits;
  std::vector<Draw> draws;
  void add(const std::vector<float>& row, Draw draw) {
    logits.insert(logits.end(), row.begin(), row.end());
    draws.push_back(draw);
  }
};

int cases = 0, near_ones = 0;

void check(const Rows& rows, const std::string& what) {
  const unsigned count = (unsigned)rows.draws.size();
  Buffer<float> logits(rows.logits.size());
  Buffer<Draw> draws(count);
  memcpy(logits.at, rows.logits.data(), rows.logits.size() * 4);
  memcpy((void*)draws.at, rows.draws.data(), count * sizeof(Draw));
  Buffer<unsigned> got = same_in_any_order<unsigned>("sample", what, Buffer<unsigned>(count), [&](unsigned* out, unsigned seed) {
    launch("sample", what, {count}, SAMPLE_THREADS, 0, seed, out, (const float*)logits.at, (const void*)draws.at, rows.vocab);
  });
  for (unsigned i = 0; i < count; i++) {
    double margin;
    const Draw& d = draws[i];
    unsigned want = choose(logits.at + (size_t)i * rows.vocab, rows.vocab, d, margin);
    cases++;
    if (got[i] == want) continue;
    // Too near to call between doubles and whole numbers of 2^-40; there must be next to none of those.
    if (margin < 1e-4 && ++near_ones < 3) continue;
    fail("sample", what, text("row %u (temperature %g, top-k %d, top-p %g, min-p %g, unit %.17g): %u, should be %u (margin %g)", i,
                              d.temperature, d.top_k, d.top_p, d.min_p, d.unit, got[i], want, margin));
  }
}

std::vector<float> normal_row(Random& random, int vocab, double size) {
  std::vector<float> row;
  for (int i = 0; i < vocab; i++) row.push_back((float)(random.normal() * size));
  return row;
}

void greedy() {
  Random random(11);
  for (int vocab : {1, 2, 31, 1000, 1025, 4999}) {
    Rows rows{vocab, {}, {}};
    Draw draw{0, 5, 0.5f, 0.1f, 0.7};
    rows.add(normal_row(random, vocab, 3), draw);
    // All equal; equals at the top, apart; nothing but minus infinity; some that are no number.
    rows.add(std::vector<float>(vocab, -1.5f), draw);
    std::vector<float> row = normal_row(random, vocab, 1);
    row[vocab / 3] = row[vocab / 2] = row[vocab - 1] = 50;
    rows.add(row, draw);
    rows.add(std::vector<float>(vocab, -INFINITY), draw);
    row[vocab / 3] = NAN, row[0] = vocab > 1 ? -INFINITY : 1;
    rows.add(row, draw);
    row.assign(vocab, -0.0f), row[vocab - 1] = 0.0f;
    rows.add(row, draw);
    check(rows, text("greedy, %d tokens", vocab));
  }
}

void drawn() {
  Random random(12);
  for (int vocab : {1, 3, 33, 1024, 3001}) {
    Rows rows{vocab, {}, {}};
    for (int turn = 0; turn < 24; turn++) {
      Draw draw{(float)(0.2 + random.unit() * 1.6), 0, 1, 0, random.unit()};
      if (turn % 2) draw.top_k = 1 + random.below(turn % 3 ? 60 : vocab + 5);
      if (turn % 3 == 1) draw.top_p = (float)(0.05 + random.unit() * 0.94);
      if (turn % 4 == 2) draw.min_p = (float)(random.unit() * 0.3);
      if (turn == 5) draw.unit = 0;
      if (turn == 7) draw.unit = 1 - ldexp(1, -53);
      rows.add(normal_row(random, vocab, turn % 5 ? 2.5 : 12), draw);
    }
    check(rows, text("drawn, %d tokens", vocab));
  }
}

// Few different logits: every cut goes through equals.
void ties() {
  Random random(13);
  for (int vocab : {40, 1500}) {
    Rows rows{vocab, {}, {}};
    for (int turn = 0; turn < 24; turn++) {
      std::vector<float> row;
      for (int i = 0; i < vocab; i++) row.push_back((float)random.below(turn % 2 ? 3 : 12) * 0.75f - 2);
      if (turn % 5 == 0) row[3] = NAN, row[4] = -INFINITY;
      Draw draw{0.8f, turn % 2 ? 1 + random.below(vocab) : 0, turn % 3 ? (float)(0.1 + random.unit() * 0.8) : 1.0f,
                turn % 4 == 3 ? 0.2f : 0.0f, random.unit()};
      rows.add(row, draw);
    }
    check(rows, text("ties, %d tokens", vocab));
  }
}

// Hot and cold, and logits far below the highest.
void extremes() {
  Random random(14);
  const int vocab = 777;
  Rows rows{vocab, {}, {}};
  for (float temperature : {1e-6f, 0.01f, 2.0f, 100.0f}) {
    for (double size : {1e-6, 1.0, 1000.0}) {
      rows.add(normal_row(random, vocab, size), {temperature, 0, 0.9f, 0, random.unit()});
      rows.add(normal_row(random, vocab, size), {temperature, 50, 1, 0.05f, random.unit()});
    }
  }
  check(rows, "extremes");
}

}  // namespace

void test_sample() {
  greedy();
  drawn();
  ties();
  extremes();
  passed("sample", cases);
}
