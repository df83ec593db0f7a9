#include "product.h"

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

// Compiled for several processors; the one that it runs on chooses.
#if defined(__x86_64__)
#define CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CLONES
#endif
#define INLINE static inline __attribute__((always_inline))

namespace {

constexpr size_t LANES = 16;
typedef float Lanes __attribute__((vector_size(64)));

// Rows and columns of D that are summed at a time.
constexpr int BLOCK_M = 4, BLOCK_N = 4;

INLINE Lanes load(const float* from) {
    Lanes lanes;
    memcpy(&lanes, from, sizeof lanes);
    return lanes;
}

template <int M, int N>
INLINE void dots(const float* a, const float* b, size_t stride, float (*sums)[BLOCK_M]) {
    Lanes lanes[N][M];
    for (int j = 0; j < N; j++)
        for (int i = 0; i < M; i++) lanes[j][i] = Lanes{};
    for (size_t at = 0; at < stride; at += LANES) {
        Lanes left[M];
        for (int i = 0; i < M; i++) left[i] = load(a + size_t(i) * stride + at);
        for (int j = 0; j < N; j++) {
            Lanes right = load(b + size_t(j) * stride + at);
            for (int i = 0; i < M; i++) lanes[j][i] += left[i] * right;
        }
    }
    for (int j = 0; j < N; j++)
        for (int i = 0; i < M; i++) {
            float sum = 0;
            for (size_t lane = 0; lane < LANES; lane++) sum += lanes[j][i][lane];
            sums[j][i] = sum;
        }
}

// `a` holds 4 columns of A, `b` all of B, both as floats with zeros behind k.
CLONES void strip(const float* a, const float* b, size_t stride, size_t n, float (*sums)[BLOCK_M]) {
    size_t j = 0;
    for (; j + BLOCK_N <= n; j += BLOCK_N) dots<BLOCK_M, BLOCK_N>(a, b + j * stride, stride, sums + j);
    for (; j < n; j++) dots<BLOCK_M, 1>(a, b + j * stride, stride, sums + j);
}

CLONES void widen_bf16(const uint16_t* from, float* to, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t bits = uint32_t(from[i]) << 16;
        memcpy(to + i, &bits, 4);
    }
}

CLONES void widen_half(const uint16_t* from, float* to, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t rest = uint32_t(from[i] & 0x7fff) << 13, sign = uint32_t(from[i] & 0x8000) << 16;
        float value;
        memcpy(&value, &rest, 4);
        value *= 0x1p112f;
        uint32_t bits;
        memcpy(&bits, &value, 4);
        if ((from[i] & 0x7c00) == 0x7c00) bits = 0x7f800000u | rest;
        bits |= sign;
        memcpy(to + i, &bits, 4);
    }
}

void widen(const ProductWork& w, const uint16_t* from, float* to) {
    if (w.half)
        widen_half(from, to, w.k);
    else
        widen_bf16(from, to, w.k);
}

uint16_t to_bf16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffff) > 0x7f800000) return uint16_t(bits >> 16 | 0x40);
    return uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

uint16_t to_half(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint16_t sign = uint16_t(bits >> 16 & 0x8000);
    bits &= 0x7fffffff;
    if (bits >= 0x47800000) return uint16_t(sign | (bits > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (bits < 0x38800000) {  // subnormal: adding a half rounds at the right place
        float shifted;
        memcpy(&shifted, &bits, 4);
        shifted += 0.5f;
        memcpy(&bits, &shifted, 4);
        return uint16_t(sign | (bits - 0x3f000000));
    }
    return uint16_t(sign | ((bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13));
}

float old(const ProductWork& w, size_t at) {
    float value;
    if (w.wide) return static_cast<const float*>(w.d)[at];
    const uint16_t* stored = static_cast<const uint16_t*>(w.d) + at;
    if (w.half) {
        widen_half(stored, &value, 1);
    } else {
        widen_bf16(stored, &value, 1);
    }
    return value;
}

void store(const ProductWork& w, size_t at, float value) {
    if (w.wide)
        static_cast<float*>(w.d)[at] = value;
    else
        static_cast<uint16_t*>(w.d)[at] = w.half ? to_half(value) : to_bf16(value);
}

void part(const ProductWork& w, const float* b, size_t stride, size_t from, size_t to) {
    std::vector<float> a(BLOCK_M * stride, 0.0f);
    std::vector<float> sums(w.n * BLOCK_M);
    auto* rows = reinterpret_cast<float(*)[BLOCK_M]>(sums.data());
    for (size_t first = from; first < to; first += BLOCK_M) {
        size_t count = std::min<size_t>(BLOCK_M, to - first);
        for (size_t i = 0; i < count; i++) widen(w, w.a + (first + i) * w.lda, a.data() + i * stride);
        strip(a.data(), b, stride, w.n, rows);
        for (size_t j = 0; j < w.n; j++)
            for (size_t i = 0; i < count; i++) {
                size_t at = j * w.ldd + first + i;
                float value = w.alpha * rows[j][i];
                store(w, at, w.beta == 0 ? value : value + w.beta * old(w, at));
            }
    }
}

}  // namespace

void multiply(const ProductWork& w) {
    size_t stride = (w.k + LANES - 1) / LANES * LANES;
    std::vector<float> b(w.n * stride, 0.0f);
    for (size_t j = 0; j < w.n; j++) widen(w, w.b + j * w.ldb, b.data() + j * stride);
    size_t blocks = (w.m + BLOCK_M - 1) / BLOCK_M;
    size_t threads = std::max<size_t>(1, std::min<size_t>(size_t(w.threads), w.m * w.k * w.n / (1 << 18)));
    threads = std::min(threads, blocks);
    std::vector<std::thread> running;
    for (size_t t = 0; t < threads; t++) {
        size_t from = blocks * t / threads * BLOCK_M, to = std::min(w.m, blocks * (t + 1) / threads * BLOCK_M);
        if (t + 1 == threads)
            part(w, b.data(), stride, from, to);
        else
            running.emplace_back([&w, &b, stride, from, to] { part(w, b.data(), stride, from, to); });
    }
    for (auto& thread : running) thread.join();
}
