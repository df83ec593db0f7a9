// The arithmetic of the fake cuBLASLt: D = alpha A^T B + beta D, columns first.
#pragma once
#include <cstddef>
#include <cstdint>

struct ProductWork {
    // A is k by m, B is k by n, D is m by n; lda, ldb, ldd from column to column.
    size_t m, n, k, lda, ldb, ldd;
    bool half, wide;
    float alpha, beta;
    const uint16_t *a, *b;
    void* d;
    int threads;
};

// Every element is one sum in one order, whatever the sizes and the number of threads.
void multiply(const ProductWork& work);
