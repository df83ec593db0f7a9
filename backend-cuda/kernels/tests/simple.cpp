// Kernels that work element by element or row by row.
#include "harness.h"
#include "tests.h"

namespace {

const int WIDTHS[] = {1, 7, 8, 40, 576, 2047, 2056, 8200};

template <class T>
void rows_picked() {
  Random random(1);
  std::string names[] = {std::string("embed_") + T::name, std::string("gather_") + T::name};
  unsigned threads[] = {EMBED_THREADS, GATHER_THREADS};
  for (int which = 0; which < 2; which++) {
    int cases = 0;
    for (int width : WIDTHS) {
      for (unsigned share : {1u, 3u}) {
        const int rows = 5, of = 9;
        Buffer<T> table = random_values<T>(random, (size_t)of * width);
        Buffer<unsigned> chosen(rows);
        for (int i = 0; i < rows; i++) chosen[i] = i ? random.below(of) : of - 1;
        std::string what = text("width %d, %u blocks a row", width, share);
        auto run = [&](T* out, unsigned seed) {
          launch(names[which], what, {rows, share}, threads[which], 0, seed, out, table.at, chosen.at, width);
        };
        Buffer<T> got = same_in_any_order<T>(names[which], what, Buffer<T>((size_t)rows * width), run);
        for (int i = 0; i < rows * width; i++) {
          if (got[i].bits != table[(size_t)chosen[i / width] * width + i % width].bits)
            fail(names[which], what, text("element %d", i));
        }
        cases++;
      }
    }
    passed(names[which], cases);
  }
}

// x after the addition, and the norm of it.
template <class T>
void rms_reference(const Buffer<T>& x, const Buffer<T>* add, const Buffer<float>& weight, int width, double eps,
                   std::vector<double>& sums, std::vector<double>& normed) {
  for (size_t row = 0; row < x.count / width; row++) {
    double squares = 0;
    for (int i = 0; i < width; i++) {
      double value = value_of(x[row * width + i]);
      if (add) value = value_of(make<T>((float)value + (float)value_of((*add)[row * width + i])));
      sums.push_back(value);
      squares += value * value;
    }
    for (int i = 0; i < width; i++)
      normed.push_back(sums[row * width + i] / sqrt(squares / width + eps) * weight[i]);
  }
}

template <class T>
void rms_norms() {
  Random random(2);
  std::string name = std::string("rms_norm_") + T::name;
  int cases = 0;
  for (int width : {2, 8, 17, 576, 2048, 4099, 8192, 10000}) {
    for (int mode = 0; mode < 3; mode++) {  // 0: norm, 1: add and norm, 2: add alone.
      const int rows = 3;
      Buffer<T> x = random_values<T>(random, (size_t)rows * width, 2), add = random_values<T>(random, (size_t)rows * width);
      Buffer<float> weight = random_floats(random, width);
      std::string what = text("width %d, mode %d", width, mode);
      std::vector<double> sums, normed;
      rms_reference<T>(x, mode ? &add : nullptr, weight, width, 1e-5, sums, normed);
      T* none = nullptr;
      // x and out stand side by side, so that both are compared.
      Buffer<T> both(2 * x.count);
      memcpy(both.at, x.at, x.count * sizeof(T));
      auto run = [&](T* place, unsigned seed) {
        launch(name, what, {rows}, RMS_NORM_THREADS, 0, seed, mode == 2 ? none : place + x.count, place,
               mode ? add.at : none, weight.at, width, 1e-5f);
      };
      Buffer<T> got = same_in_any_order<T>(name, what, both, run), out(x.count), after(x.count);
      memcpy(after.at, got.at, x.count * sizeof(T));
      memcpy(out.at, got.at + x.count, x.count * sizeof(T));
      near(name, what + ", x", after, sums, 0, 0);
      if (mode != 2) near(name, what, out, normed, T::half_step * 1.01, 1e-7);
      cases++;
    }
  }
  passed(name, cases);
}

template <class T>
void head_norms() {
  Random random(3);
  std::string name = std::string("head_norm_") + T::name;
  int cases = 0;
  for (int head_dim : {2, 16, 40, 64, 96, 128, 192, 256}) {
    for (int heads : {1, 3, 8}) {
      const int rows = 3, start = heads * head_dim, row_width = start + heads * head_dim + 6;
      Buffer<T> x = random_values<T>(random, (size_t)rows * row_width, 3);
      Buffer<float> weight = random_floats(random, head_dim);
      std::string what = text("%d heads of %d", heads, head_dim);
      auto run = [&](T* place, unsigned seed) {
        launch(name, what, {rows, (unsigned)heads}, HEAD_NORM_THREADS, 0, seed, place, weight.at, row_width, start, heads,
               head_dim, 1e-6f);
      };
      Buffer<T> got = same_in_any_order<T>(name, what, x, run);
      std::vector<double> want;
      for (size_t i = 0; i < x.count; i++) want.push_back(value_of(x[i]));
      for (int row = 0; row < rows; row++) {
        for (int head = 0; head < heads; head++) {
          double* at = &want[(size_t)row * row_width + start + head * head_dim];
          double squares = 0;
          for (int i = 0; i < head_dim; i++) squares += at[i] * at[i];
          for (int i = 0; i < head_dim; i++) at[i] = at[i] / sqrt(squares / head_dim + 1e-6) * weight[i];
        }
      }
      near(name, what, got, want, T::half_step * 1.01, 1e-7);
      cases++;
    }
  }
  passed(name, cases);
}

template <class T>
void biases_and_gates() {
  Random random(4);
  int cases = 0;
  std::string bias = std::string("bias_") + T::name, swiglu = std::string("swiglu_") + T::name;
  for (int width : WIDTHS) {
    for (unsigned share : {1u, 2u}) {
      const int rows = 3;
      std::string what = text("width %d, %u blocks a row", width, share);
      Buffer<T> x = random_values<T>(random, (size_t)rows * width), both = random_values<T>(random, (size_t)rows * width * 2, 4);
      Buffer<float> added = random_floats(random, width);
      Buffer<T> got = same_in_any_order<T>(bias, what, x, [&](T* place, unsigned seed) {
        launch(bias, what, {rows, share}, BIAS_THREADS, 0, seed, place, added.at, width);
      });
      std::vector<double> sums, gated;
      for (int i = 0; i < rows * width; i++) sums.push_back(value_of(make<T>((float)value_of(x[i]) + added[i % width])));
      near(bias, what, got, sums, 0, 0);
      Buffer<T> out = same_in_any_order<T>(swiglu, what, Buffer<T>(x.count), [&](T* place, unsigned seed) {
        launch(swiglu, what, {rows, share}, SWIGLU_THREADS, 0, seed, place, both.at, width);
      });
      for (int i = 0; i < rows * width; i++) {
        double gate = value_of(both[(size_t)(i / width * 2) * width + i % width]);
        gated.push_back(gate / (1 + exp(-gate)) * value_of(both[(size_t)(i / width * 2 + 1) * width + i % width]));
      }
      near(swiglu, what, out, gated, T::half_step * 1.01, 1e-6);
      cases++;
    }
  }
  passed(bias, cases);
  passed(swiglu, cases);
}

void blocks_copied() {
  Random random(5);
  int cases = 0;
  for (long long bytes : {16, 48, 4096, 10000}) {
    for (unsigned share : {1u, 4u}) {
      const int pairs = 5, blocks = 8;
      Buffer<unsigned char> from(blocks * bytes), to(blocks * bytes);
      for (size_t i = 0; i < from.count; i++) from[i] = (unsigned char)random.next();
      // Five different targets; two of them from one source.
      Buffer<long long> places(2 * pairs);
      const long long sources[] = {7, 0, 3, 3, 1}, targets[] = {0, 7, 2, 5, 4};
      for (int i = 0; i < pairs; i++) places[2 * i] = sources[i], places[2 * i + 1] = targets[i];
      std::string what = text("%lld bytes, %u blocks a pair", bytes, share);
      auto run = [&](unsigned char* place, unsigned seed) {
        launch("copy_blocks", what, {pairs, share}, COPY_BLOCKS_THREADS, 0, seed, (void*)place, (void*)from.at, places.at,
               (unsigned long long)bytes);
      };
      Buffer<unsigned char> got = same_in_any_order<unsigned char>("copy_blocks", what, to, run);
      for (int i = 0; i < pairs; i++) memcpy(to.at + targets[i] * bytes, from.at + sources[i] * bytes, bytes);
      if (!got.same(to)) fail("copy_blocks", what, "other bytes");
      cases++;
    }
  }
  passed("copy_blocks", cases);
}

}  // namespace

void test_simple() {
  rows_picked<Bf16>();
  rows_picked<F16>();
  rms_norms<Bf16>();
  rms_norms<F16>();
  head_norms<Bf16>();
  head_norms<F16>();
  biases_and_gates<Bf16>();
  biases_and_gates<F16>();
  blocks_copied();
}
