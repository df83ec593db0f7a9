// Stored weights against decoding in doubles, element by element, from the layouts' definitions.
#include "harness.h"
#include "tests.h"

namespace {

struct Encoding {
  const char* name;
  int elements, bytes;
  double (*value)(const unsigned char* block, int i);
  // Where a block's scales are: half precision.
  std::vector<int> halves;
};

double half_at(const unsigned char* at) { return value_of(F16{(uint16_t)(at[0] | at[1] << 8)}); }
int nibble(const unsigned char* at, int i) { return i < 16 ? at[i] & 15 : at[i - 16] >> 4; }

double f32_value(const unsigned char* block, int) {
  float value;
  memcpy(&value, block, 4);
  return value;
}
double f16_value(const unsigned char* block, int) { return half_at(block); }
double bf16_value(const unsigned char* block, int) { return value_of(Bf16{(uint16_t)(block[0] | block[1] << 8)}); }
double q8_0_value(const unsigned char* b, int i) { return (double)(signed char)b[2 + i] * half_at(b); }
double q4_0_value(const unsigned char* b, int i) { return (nibble(b + 2, i) - 8) * half_at(b); }
double q4_1_value(const unsigned char* b, int i) { return nibble(b + 4, i) * half_at(b) + half_at(b + 2); }

double q4k_value(const unsigned char* b, int i) {
  const unsigned char* packed = b + 4;
  int group = i / 32, scale, least;
  if (group < 4) {
    scale = packed[group] % 64, least = packed[group + 4] % 64;
  } else {
    scale = packed[group + 4] % 16 + packed[group - 4] / 64 * 16;
    least = packed[group + 4] / 16 + packed[group] / 64 * 16;
  }
  int byte = b[16 + group / 2 * 32 + i % 32], value = group % 2 ? byte / 16 : byte % 16;
  return half_at(b) * scale * value - half_at(b + 2) * least;
}

double q6k_value(const unsigned char* b, int i) {
  int half = i / 128, in_half = i % 128, quarter = in_half / 32, at = in_half % 32;
  int low = b[half * 64 + (quarter % 2) * 32 + at], high = b[128 + half * 32 + at];
  int value = (quarter < 2 ? low % 16 : low / 16) + ((high >> (2 * quarter)) & 3) * 16 - 32;
  return half_at(b + 208) * (signed char)b[192 + i / 16] * value;
}

const Encoding ENCODINGS[] = {
    {"f32", 1, 4, f32_value, {}},           {"f16", 1, 2, f16_value, {}},
    {"bf16", 1, 2, bf16_value, {}},         {"q8_0", 32, 34, q8_0_value, {0}},
    {"q4_0", 32, 18, q4_0_value, {0}},      {"q4_1", 32, 20, q4_1_value, {0, 2}},
    {"q4k", 256, 144, q4k_value, {0, 2}},   {"q6k", 256, 210, q6k_value, {208}},
};

// Random blocks with finite values.
Buffer<unsigned char> stored_rows(Random& random, const Encoding& e, int rows, int columns) {
  Buffer<unsigned char> stored((size_t)rows * (columns / e.elements) * e.bytes);
  for (size_t i = 0; i < stored.count; i++) stored[i] = (unsigned char)random.next();
  for (size_t block = 0; block < stored.count / e.bytes; block++) {
    unsigned char* at = stored.at + block * e.bytes;
    uint16_t half = make<F16>(random.normal() * 0.02).bits;
    for (int place : e.halves) memcpy(at + place, &half, 2), half = make<F16>(random.normal() * 0.02).bits;
    float value = (float)(random.normal() * (block % 7 ? 1 : 1e5));
    if (!strcmp(e.name, "f32")) memcpy(at, &value, 4);
    half = make<F16>(random.normal()).bits;
    if (!strcmp(e.name, "f16")) memcpy(at, &half, 2);
    half = make<Bf16>(value).bits;
    if (!strcmp(e.name, "bf16")) memcpy(at, &half, 2);
  }
  return stored;
}

template <class T>
void all(const Encoding& e) {
  std::string name = std::string("dequant_") + e.name + "_" + T::name;
  Random random(21);
  int cases = 0;
  struct {
    int columns, first, width, stride;
  } const shapes[] = {{e.elements, 0, e.elements, e.elements},
                      {e.elements * 3, 0, e.elements * 3, e.elements * 3 + 8},
                      {std::max(256, e.elements * 2), std::max(256, e.elements * 2) / 2, 64, 64},
                      // Neither beginning nor end at a multiple of anything, nor rows of the result.
                      {512, 13, 300, 301},
                      {512, 8, 77, 96}};
  for (auto& shape : shapes) {
    if (shape.columns % e.elements || shape.first + shape.width > shape.columns) continue;
    for (unsigned share : {1u, 2u}) {
      const int rows = 3;
      Buffer<unsigned char> stored = stored_rows(random, e, rows, shape.columns);
      std::string what = text("%d columns from %d of %d, %u blocks a row", shape.width, shape.first, shape.columns, share);
      Buffer<T> before((size_t)rows * shape.stride);
      Buffer<T> got = same_in_any_order<T>(name, what, before, [&](T* out, unsigned seed) {
        launch(name, what, {rows, share}, DEQUANT_THREADS, 0, seed, out, (const unsigned char*)stored.at, rows, shape.columns, shape.first,
               shape.width, shape.stride);
      });
      std::vector<double> want;
      for (int row = 0; row < rows; row++) {
        for (int i = 0; i < shape.stride; i++) {
          if (i >= shape.width) {
            want.push_back(value_of(before[(size_t)row * shape.stride + i]));
            continue;
          }
          int column = shape.first + i;
          double value = e.value(stored.at + ((size_t)row * (shape.columns / e.elements) + column / e.elements) * e.bytes, column % e.elements);
          double most = sizeof(T) == 2 && T::half_step < 1e-3 ? 65504 : INFINITY;
          want.push_back(std::max(-most, std::min(most, value)));
        }
      }
      near(name, what, got, want, T::half_step * 1.001, 1e-6);
      cases++;
    }
  }
  passed(name, cases);
}

}  // namespace

void test_dequant() {
  for (auto& encoding : ENCODINGS) {
    all<Bf16>(encoding);
    all<F16>(encoding);
  }
}
