// What the tests of the kernels share: random numbers, launches under several orders of threads,
// comparison with a reference. The first difference ends the program.
#pragma once
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "../launch.h"
#include "../shim/launch.h"

// Orders of threads that every case runs under; 0 is "in order". Where addresses are checked, which takes
// long, `--orders 2` is enough.
constexpr unsigned SEEDS[] = {0, 1, 7919};
inline size_t orders = sizeof SEEDS / sizeof *SEEDS;

struct Random {
  uint64_t state;
  explicit Random(uint64_t seed) : state(seed * 0x9E3779B97F4A7C15ull + 88172645463325252ull) {}
  uint64_t next() {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state * 0x2545F4914F6CDD1Dull;
  }
  int below(int n) { return (int)((next() >> 33) % (uint64_t)n); }
  double unit() { return (double)(next() >> 11) / 9007199254740992.0; }
  // About normal.
  double normal() {
    double sum = 0;
    for (int i = 0; i < 12; i++) sum += unit();
    return sum - 6;
  }
};

// Just as many bytes as asked for, on the heap.
template <class T>
struct Buffer {
  T* at;
  size_t count;
  explicit Buffer(size_t n) : at(nullptr), count(n) {
    if (posix_memalign((void**)&at, 16, n ? n * sizeof(T) : 1)) abort();
    memset((void*)at, 0xee, n * sizeof(T));
  }
  Buffer(const Buffer& other) : Buffer(other.count) { memcpy((void*)at, other.at, count * sizeof(T)); }
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { free(at); }
  T& operator[](size_t i) { return at[i]; }
  const T& operator[](size_t i) const { return at[i]; }
  bool same(const Buffer& other) const { return !memcmp(at, other.at, count * sizeof(T)); }
};

// The types of the kernels, told apart by name; conversions of the test's own, through doubles.
struct Bf16 {
  uint16_t bits;
  static constexpr const char* name = "bf16";
  // Half a unit in the last place of 1.
  static constexpr double half_step = 1.0 / 256;
};
struct F16 {
  uint16_t bits;
  static constexpr const char* name = "f16";
  static constexpr double half_step = 1.0 / 2048;
};
struct Fp8 {
  uint8_t bits;
};

// The nearest multiple of 2^(exponent of value - bits), ties to even; `lowest` is the least exponent.
inline double rounded(double value, int bits, int lowest) {
  if (value == 0 || !std::isfinite(value)) return value;
  int exponent;
  frexp(value, &exponent);
  double step = ldexp(1, std::max(exponent - 1, lowest) - bits);
  return nearbyint(value / step) * step;
}

inline double value_of(Bf16 x) {
  uint32_t wide = (uint32_t)x.bits << 16;
  float value;
  memcpy(&value, &wide, 4);
  return value;
}

inline double value_of(F16 x) {
  int exponent = x.bits >> 10 & 31, mantissa = x.bits & 1023;
  double value = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
  if (exponent == 31) value = mantissa ? NAN : INFINITY;
  return x.bits & 0x8000 ? -value : value;
}

inline double value_of(Fp8 x) {
  int exponent = x.bits >> 3 & 15, mantissa = x.bits & 7;
  double value = exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
  if ((x.bits & 0x7f) == 0x7f) value = NAN;
  return x.bits & 0x80 ? -value : value;
}

template <class T>
T make(double value);
template <>
inline Bf16 make<Bf16>(double value) {
  float single = (float)rounded(value, 7, -126);
  uint32_t bits;
  memcpy(&bits, &single, 4);
  return {(uint16_t)(bits >> 16)};
}
template <>
inline F16 make<F16>(double value) {
  uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  double size = std::min(rounded(fabs(value), 10, -14), 65504.0);
  if (size < ldexp(1, -14)) return {(uint16_t)(sign | (uint16_t)(size * ldexp(1, 24)))};
  int exponent;
  double part = frexp(size, &exponent);
  return {(uint16_t)(sign | ((exponent + 14) << 10) | ((int)(part * 2048) & 1023))};
}
template <>
inline Fp8 make<Fp8>(double value) {
  uint8_t sign = std::signbit(value) ? 0x80 : 0;
  double size = std::min(rounded(fabs(value), 3, -6), 448.0);
  if (size < ldexp(1, -6)) return {(uint8_t)(sign | (uint8_t)(size * 512))};
  int exponent;
  double part = frexp(size, &exponent);
  return {(uint8_t)(sign | ((exponent + 6) << 3) | ((int)(part * 16) & 7))};
}

template <class T>
Buffer<T> random_values(Random& random, size_t count, double size = 1) {
  Buffer<T> made(count);
  for (size_t i = 0; i < count; i++) made[i] = make<T>(random.normal() * size);
  return made;
}

inline Buffer<float> random_floats(Random& random, size_t count, double size = 1) {
  Buffer<float> made(count);
  for (size_t i = 0; i < count; i++) made[i] = (float)(random.normal() * size);
  return made;
}

[[noreturn]] inline void fail(const std::string& kernel, const std::string& what, const std::string& why) {
  printf("%s, %s: %s\n", kernel.c_str(), what.c_str(), why.c_str());
  exit(1);
}

inline std::string text(const char* format, ...) __attribute__((format(printf, 1, 2)));
inline std::string text(const char* format, ...) {
  char line[512];
  va_list values;
  va_start(values, format);
  vsnprintf(line, sizeof line, format, values);
  va_end(values);
  return line;
}

// Launches `name` with those arguments; their sizes must be those of the kernel's parameters.
struct Grid {
  unsigned x, y = 1, z = 1;
};

template <class... A>
void launch(const std::string& name, const std::string& what, Grid grid, unsigned threads, size_t shared,
            unsigned seed, A... arguments) {
  const ShimKernel* kernel = shim_find(name.c_str());
  if (!kernel) fail(name, what, "no such kernel");
  std::vector<size_t> sizes{sizeof(A)...};
  if (sizes != kernel->parameter_sizes) fail(name, what, "other parameters");
  void* pointers[] = {(void*)&arguments...};
  unsigned sides[] = {grid.x, grid.y, grid.z}, block[] = {threads, 1, 1};
  if (shim_launch(kernel, sides, block, shared, pointers, 2, seed)) fail(name, what, text("seed %u", seed));
}

// `run` fills a fresh copy of `before` under each order of threads: always the same bits. The last
// one is returned.
template <class T>
Buffer<T> same_in_any_order(const std::string& name, const std::string& what, const Buffer<T>& before,
                            const std::function<void(T*, unsigned)>& run) {
  Buffer<T> first(before);
  run(first.at, SEEDS[0]);
  for (size_t i = 1; i < orders; i++) {
    Buffer<T> again(before);
    run(again.at, SEEDS[i]);
    if (!again.same(first)) fail(name, what, text("seed %u gives other bits", SEEDS[i]));
  }
  return first;
}

// Every element as near as `relative` of its size plus `absolute`.
template <class T>
void near(const std::string& name, const std::string& what, const Buffer<T>& got, const std::vector<double>& want,
          double relative, double absolute) {
  if (got.count != want.size()) fail(name, what, "other length");
  for (size_t i = 0; i < want.size(); i++) {
    double value = value_of(got[i]), apart = fabs(value - want[i]);
    if (!(apart <= fabs(want[i]) * relative + absolute))
      fail(name, what, text("element %zu is %.9g, should be %.9g", i, value, want[i]));
  }
}

inline double value_of(float x) { return x; }

inline void passed(const std::string& name, int cases) {
  printf("%-32s %4d cases\n", name.c_str(), cases);
  fflush(stdout);
}
