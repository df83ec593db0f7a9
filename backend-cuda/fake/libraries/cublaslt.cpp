// A cuBLASLt over the fake driver: products of bf16 and f16, accumulated in float32, put on the fake
// driver's streams so that graphs record them. It checks what the library checks: layouts, types,
// alignment, the workspace of the algorithm, and that an algorithm is the product's own.
// Compiled with -DFAKE_OLD_LIBRARIES it lacks a symbol.
#include "../driver.h"
#include "product.h"

#include <cstring>

using namespace fake;

namespace {

enum Status { OK = 0, NO_MEMORY = 3, INVALID = 7, FAILED = 13, UNSUPPORTED = 15 };
enum Type { F32 = 0, F16 = 2, BF16 = 14 };

struct Handle {
    int device;
    size_t bytes;
};
struct Layout {
    int type;
    uint64_t rows, columns;
    int64_t leading;
};
struct Product {
    int compute, scale, transpose_a = 0, transpose_b = 0;
};
struct Preference {
    uint64_t workspace = 0;
};
struct Algorithm {
    uint64_t mark, workspace, m, n, k, type;
    uint64_t rest[2];
};
struct Found {
    Algorithm algorithm;
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};
static_assert(sizeof(Found) == 96, "as the library's");

constexpr uint64_t MARK = 0x706c696d736f6c6cull;

// Code for a type of product is loaded at its first use and stays.
std::map<int, std::set<int>> loaded;

template <class T>
T* made(const char* name, T* thing) {
    driver.made[name]++;
    return thing;
}
template <class T>
int destroyed(const char* name, void* thing) {
    Lock held(driver.lock);
    if (!thing) return INVALID;
    driver.made[name]--;
    delete static_cast<T*>(thing);
    return OK;
}

bool sixteen(int type) { return type == F16 || type == BF16; }

// Sizes of D = op(A) op(B), or false.
bool sizes(const Product& p, const Layout& a, const Layout& b, const Layout& c, const Layout& d, uint64_t* m,
           uint64_t* n, uint64_t* k) {
    *m = p.transpose_a ? a.columns : a.rows;
    *k = p.transpose_a ? a.rows : a.columns;
    *n = p.transpose_b ? b.rows : b.columns;
    bool same = (p.transpose_b ? b.columns : b.rows) == *k && d.rows == *m && d.columns == *n;
    return same && c.rows == d.rows && c.columns == d.columns && *m && *n && *k;
}
// Only what the backend uses is computed.
bool supported(const Product& p, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
    bool types = sixteen(a.type) && a.type == b.type && (d.type == a.type || d.type == F32) && c.type == d.type;
    return types && p.compute == 68 && p.scale == F32 && p.transpose_a && !p.transpose_b && a.leading % 8 == 0 &&
           b.leading % 8 == 0;
}

}  // namespace

API cublasLtCreate(void** handle) {
    Lock held(driver.lock);
    if (enter_context()) return 1;
    size_t bytes = up(setting("FAKE_CUBLASLT_HANDLE", size_t(8) << 20), PAGE);
    if (refused() || !charge(current, bytes)) return NO_MEMORY;
    *handle = made("lt_handles", new Handle{current, bytes});
    return OK;
}
API cublasLtDestroy(void* handle) {
    {
        Lock held(driver.lock);
        if (!handle) return INVALID;
        auto* gone = static_cast<Handle*>(handle);
        discharge(gone->device, gone->bytes);
    }
    return destroyed<Handle>("lt_handles", handle);
}
#ifndef FAKE_OLD_LIBRARIES
extern "C" __attribute__((visibility("default"))) size_t cublasLtGetVersion() { return 130000; }
#endif
API cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
    Lock held(driver.lock);
    if (!sixteen(type) && type != F32) return INVALID;
    if (leading < int64_t(rows)) return INVALID;
    *layout = made("lt_layouts", new Layout{type, rows, columns, leading});
    return OK;
}
API cublasLtMatrixLayoutDestroy(void* layout) { return destroyed<Layout>("lt_layouts", layout); }
API cublasLtMatmulDescCreate(void** product, int compute, int scale) {
    Lock held(driver.lock);
    *product = made("lt_products", new Product{compute, scale});
    return OK;
}
API cublasLtMatmulDescDestroy(void* product) { return destroyed<Product>("lt_products", product); }
API cublasLtMatmulDescSetAttribute(void* product, int attribute, const void* value, size_t size) {
    Lock held(driver.lock);
    if (size != 4 || (attribute != 3 && attribute != 4)) return INVALID;
    auto* p = static_cast<Product*>(product);
    memcpy(attribute == 3 ? &p->transpose_a : &p->transpose_b, value, 4);
    return OK;
}
API cublasLtMatmulPreferenceCreate(void** preference) {
    Lock held(driver.lock);
    *preference = made("lt_preferences", new Preference);
    return OK;
}
API cublasLtMatmulPreferenceDestroy(void* preference) { return destroyed<Preference>("lt_preferences", preference); }
API cublasLtMatmulPreferenceSetAttribute(void* preference, int attribute, const void* value, size_t size) {
    Lock held(driver.lock);
    if (attribute == 1 && size == 8) {
        memcpy(&static_cast<Preference*>(preference)->workspace, value, 8);
        return OK;
    }
    return attribute >= 5 && attribute <= 8 && size == 4 ? OK : INVALID;
}
// Three ways, the first of which wants the most workspace; those that fit.
API cublasLtMatmulAlgoGetHeuristic(void*, void* product, void* a, void* b, void* c, void* d, void* preference, int room,
                                   Found* found, int* count) {
    Lock held(driver.lock);
    if (enter_context()) return 1;
    auto &p = *static_cast<Product*>(product);
    auto &la = *static_cast<Layout*>(a), &lb = *static_cast<Layout*>(b), &lc = *static_cast<Layout*>(c),
         &ld = *static_cast<Layout*>(d);
    uint64_t m, n, k;
    *count = 0;
    if (!sizes(p, la, lb, lc, ld, &m, &n, &k)) return INVALID;
    if (!supported(p, la, lb, lc, ld)) return UNSUPPORTED;
    for (uint64_t workspace : {uint64_t(8) << 20, uint64_t(1) << 20, uint64_t(0)}) {
        if (workspace > static_cast<Preference*>(preference)->workspace || *count >= room) continue;
        found[*count] = Found{};
        found[*count].algorithm = Algorithm{MARK, workspace, m, n, k, uint64_t(la.type), {}};
        found[*count].workspace = workspace;
        ++*count;
    }
    return *count ? OK : UNSUPPORTED;
}
API cublasLtMatmul(void* handle, void* product, const float* alpha, Pointer a, void* layout_a, Pointer b, void* layout_b,
                   const float* beta, Pointer c, void* layout_c, Pointer d, void* layout_d, const Algorithm* algorithm,
                   Pointer workspace, size_t workspace_bytes, void* stream) {
    Lock held(driver.lock);
    if (enter_context()) return FAILED;
    if (static_cast<Handle*>(handle)->device != current) return INVALID;
    auto &p = *static_cast<Product*>(product);
    auto &la = *static_cast<Layout*>(layout_a), &lb = *static_cast<Layout*>(layout_b),
         &lc = *static_cast<Layout*>(layout_c), &ld = *static_cast<Layout*>(layout_d);
    uint64_t m, n, k;
    if (!sizes(p, la, lb, lc, ld, &m, &n, &k) || !algorithm) return INVALID;
    const Algorithm& way = *algorithm;
    if (way.mark != MARK || way.m != m || way.n != n || way.k != k || way.type != uint64_t(la.type)) return INVALID;
    if (!supported(p, la, lb, lc, ld) || (a | b | c | d) % 16 || c != d) return UNSUPPORTED;
    if (workspace_bytes < way.workspace || (way.workspace && workspace % 16)) return INVALID;
    int type = la.type * 2 + (ld.type == F32);
    if (loaded[current].insert(type).second) {
        size_t bytes = up(setting("FAKE_CUBLASLT_KERNEL", size_t(2) << 20), PAGE);
        if (refused() || !charge(current, bytes)) {
            loaded[current].erase(type);
            return NO_MEMORY;
        }
        driver.devices[current].code += bytes;
    }
    ProductWork work{m, n, k, size_t(la.leading), size_t(lb.leading), size_t(ld.leading), la.type == F16, ld.type == F32,
                     *alpha, *beta, reinterpret_cast<const uint16_t*>(a), reinterpret_cast<const uint16_t*>(b),
                     reinterpret_cast<void*>(d), driver.settings.threads};
    size_t element = ld.type == F32 ? 4 : 2;
    Work run = [work] { multiply(work); };
    run = touching(a, ((m - 1) * work.lda + k) * 2, run);
    run = touching(b, ((n - 1) * work.ldb + k) * 2, run);
    run = touching(d, ((n - 1) * work.ldd + m) * element, run);
    size_t scratch = way.workspace;
    if (scratch) run = touching(workspace, scratch, [=] {
        auto* bytes = reinterpret_cast<char*>(workspace);
        bytes[0] = bytes[scratch - 1] = char(0xEE);
        run();
    });
    return put(stream, KERNEL, run) ? FAILED : OK;
}
