// What emitted kernels need of a device, on the host: a thread is a fibre, a warp meets at its collective
// operations, a block at its barriers.
//
// The emulation is unkind on purpose. Copies in the background happen as late as waiting for them allows, shared
// memory begins as NaN, warps run in a shuffled order from barrier to barrier, and every operand ends at a page
// that cannot be read.

#include <ucontext.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <vector>

#define __device__
#define __host__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define __shared__ static
#define __expf expf

typedef unsigned short half_bits;
typedef unsigned int uint32;
typedef unsigned long long uint64;

struct alignas(16) uint4 { uint32 x, y, z, w; };
struct alignas(8) uint2 { uint32 x, y; };
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(8) float2 { float x, y; };
inline uint4 make_uint4(uint32 x, uint32 y, uint32 z, uint32 w) { return {x, y, z, w}; }
inline uint2 make_uint2(uint32 x, uint32 y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline float2 make_float2(float x, float y) { return {x, y}; }

struct Position { uint32 x, y, z; };
struct Copy { uint32 target; const void* source; int bytes; bool valid; };
// A warp's rows of a warpgroup's product: registers that nobody may touch before it has been waited for.
struct Product { float* sum; const uint32* a; uint64 b; int columns; bool accumulates; };
enum class Waits { nothing, warp, block, ended };
struct Thread {
    ucontext_t context;
    Position index;
    std::vector<Copy> open;
    std::deque<std::vector<Copy>> groups;
    std::vector<Product> open_products;
    std::deque<std::vector<Product>> products;
    Waits waits;
};
struct Warp { uint32 value[32][8]; };

inline Thread* current;
inline ucontext_t scheduler;
inline Position block_index;
inline char* shared_base;
inline std::vector<Warp> warps;
#define threadIdx (current->index)
#define blockIdx block_index

[[noreturn]] inline void fail(const char* what) {
    std::fprintf(stderr, "%s in block %u, thread %u\n", what, block_index.x, current ? current->index.x : 0u);
    std::exit(3);
}
inline void wait(Waits what) {
    current->waits = what;
    swapcontext(&current->context, &scheduler);
}
inline void __syncthreads() { wait(Waits::block); }
inline Warp& warp() { return warps[current->index.x / 32]; }
inline uint32 lane() { return current->index.x % 32; }

template <class To, class From>
inline To bits(From x) {
    static_assert(sizeof(To) == sizeof(From));
    To y;
    std::memcpy(&y, &x, sizeof x);
    return y;
}
inline uint32 __float_as_uint(float x) { return bits<uint32>(x); }
inline float __uint_as_float(uint32 x) { return bits<float>(x); }
inline float __int_as_float(int x) { return bits<float>(x); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __frsqrt_rn(float x) { return (float)(1.0 / std::sqrt((double)x)); }
inline float cospif(float x) { return (float)std::cos(M_PI * (double)x); }
inline float sinpif(float x) { return (float)std::sin(M_PI * (double)x); }
inline void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
inline uint32 min(uint32 a, uint32 b) { return a < b ? a : b; }
inline uint32 atomicAdd(uint32* p, uint32 x) { return (*p += x) - x; }
inline void __syncwarp() { wait(Waits::warp); }
template <class T>
inline T __ldg(const T* p) { return *p; }
inline uint32 __shfl_sync(uint32, uint32 x, int source) {
    warp().value[lane()][0] = x;
    wait(Waits::warp);
    const uint32 other = warp().value[source][0];
    wait(Waits::warp);
    return other;
}
inline float __shfl_xor_sync(uint32, float x, int distance) {
    warp().value[lane()][0] = bits<uint32>(x);
    wait(Waits::warp);
    const float other = bits<float>(warp().value[lane() ^ distance][0]);
    wait(Waits::warp);
    return other;
}

inline float from_half(half_bits h) { return (float)bits<_Float16>(h); }
inline half_bits to_half(float x) { return bits<half_bits>((_Float16)x); }
inline uint32 to_half2(float low, float high) { return to_half(low) | (uint32)to_half(high) << 16; }
inline uint32 nearest_tf32(float x) { return (bits<uint32>(x) + 0x1000u) & 0xffffe000u; }

inline char* shared_at(uint32 address, uint32 bytes) {
    if (address % bytes != 0 || address + bytes > KERNEL_SHARED_BYTES) fail("bad shared address");
    return shared_base + address;
}
inline size_t __cvta_generic_to_shared(const void* p) { return (const char*)p - shared_base; }
inline void store_shared_word(uint32 address, uint32 word) { std::memcpy(shared_at(address, 4), &word, 4); }
template <int FIRST, int COUNT, int WORDS>
inline void load_shared_words(uint32 (&raw)[WORDS], uint32 address) {
    static_assert(FIRST + COUNT <= WORDS);
    std::memcpy(raw + FIRST, shared_at(address, 4 * COUNT), 4 * COUNT);
}
template <int BYTES>
inline void copy_async(uint32 target, const void* source, bool valid) {
    if (valid && (size_t)source % BYTES != 0) fail("misaligned copy");
    shared_at(target, BYTES);
    current->open.push_back({target, source, BYTES, valid});
}
inline void commit_copies() {
    current->groups.push_back(current->open);
    current->open.clear();
}
template <int PENDING>
inline void wait_for_copies() {
    while (current->groups.size() > PENDING) {
        for (const Copy& copy : current->groups.front()) {
            if (copy.valid) std::memcpy(shared_base + copy.target, copy.source, copy.bytes);
            else std::memset(shared_base + copy.target, 0, copy.bytes);
        }
        current->groups.pop_front();
    }
}

template <int COUNT>
inline void load_matrices_as(uint32 (&r)[COUNT], uint32 address, bool transposed) {
    warp().value[lane()][0] = address;
    wait(Waits::warp);
    for (int m = 0; m < COUNT; ++m) {
        auto element = [&](int row, int column) {
            half_bits h;
            std::memcpy(&h, shared_at(warp().value[m * 8 + row][0], 16) + 2 * column, 2);
            return (uint32)h;
        };
        const int slow = lane() / 4, fast = lane() % 4 * 2;
        r[m] = transposed ? element(fast, slow) | element(fast + 1, slow) << 16
                          : element(slow, fast) | element(slow, fast + 1) << 16;
    }
    wait(Waits::warp);
}
inline void load_matrices(uint32 (&r)[4], uint32 address) { load_matrices_as(r, address, false); }
inline void load_matrices(uint32 (&r)[2], uint32 address) { load_matrices_as(r, address, false); }
inline void load_matrices_transposed(uint32 (&r)[4], uint32 address) { load_matrices_as(r, address, true); }

// What a tensor core's accumulator keeps: it truncates.
inline float towards_zero(double x) {
    const float y = (float)x;
    return std::fabs((double)y) > std::fabs(x) ? std::nextafter(y, 0.0f) : y;
}

// Fragments as the PTX manual draws them: `chunk` is 8 elements of f16 or 4 of tf32, PER_REGISTER of them in one register.
template <int CHUNK, int PER_REGISTER, class Decode>
inline void multiply_fragments(float (&c)[4], const uint32 (&a)[4], const uint32 (&b)[2], Decode decode) {
    for (int i = 0; i < 4; ++i) warp().value[lane()][i] = a[i];
    for (int i = 0; i < 2; ++i) warp().value[lane()][4 + i] = b[i];
    wait(Waits::warp);
    auto element = [&](int first, int row, int k) {
        const int source = row % 8 * 4 + k % CHUNK / PER_REGISTER;
        return decode(warp().value[source][first], k % PER_REGISTER);
    };
    for (int i = 0; i < 4; ++i) {
        const int row = lane() / 4 + i / 2 * 8, column = lane() % 4 * 2 + i % 2;
        double sum = c[i];
        for (int k = 0; k < 2 * CHUNK; ++k)
            sum += (double)element(row / 8 + 2 * (k / CHUNK), row, k) * (double)element(4 + k / CHUNK, column, k);
        c[i] = towards_zero(sum);
    }
    wait(Waits::warp);
}
inline void multiply_f16(float (&c)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
    multiply_fragments<8, 2>(c, a, b, [](uint32 word, int k) { return from_half((half_bits)(word >> 16 * k)); });
}
inline void multiply_accumulate(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
    multiply_f16(d, a, {b0, b1});
}
inline void multiply_tf32(float (&c)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
    multiply_fragments<4, 1>(c, a, b, [](uint32 word, int) { return bits<float>(word & 0xffffe000u); });
}

// ---- products of warpgroups: as late as waiting for them allows ------------------------------------

inline void products_begin() {}
inline void publish_to_tensor_cores() {}
inline void products_commit() {
    current->products.push_back(current->open_products);
    current->open_products.clear();
}
// Each warp has 16 of the 64 rows, with the fragments of mma.sync. The right operand has no swizzle and lies K-major in
// core matrices of 8 lines of 16 bytes, as its descriptor says.
inline void multiply_rows(const Product& product) {
    const auto field = [&](int first) { return (uint32)(product.b >> first & 0x3fff) * 16; };
    const uint32 address = field(0), along_k = field(16), along_columns = field(32);
    if (product.b >> 46) fail("a descriptor with swizzle or offset");
    for (int i = 0; i < 4; ++i) warp().value[lane()][i] = product.a[i];
    wait(Waits::warp);
    for (int i = 0; i < product.columns / 2; ++i) {
        const uint32 row = lane() / 4 + i / 2 % 2 * 8, column = i / 4 * 8 + lane() % 4 * 2 + i % 2;
        double sum = product.accumulates ? product.sum[i] : 0.0;
        for (uint32 k = 0; k < 16; ++k) {
            const uint32 word = warp().value[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2];
            half_bits right;
            std::memcpy(&right, shared_at(address + k / 8 * along_k + column / 8 * along_columns + column % 8 * 16, 16) + k % 8 * 2, 2);
            sum += (double)from_half((half_bits)(word >> 16 * (k % 2))) * (double)from_half(right);
        }
        product.sum[i] = towards_zero(sum);
    }
    wait(Waits::warp);
}
template <int PENDING>
inline void products_wait() {
    while (current->products.size() > PENDING) {
        for (const Product& product : current->products.front()) multiply_rows(product);
        current->products.pop_front();
    }
}
#define PRODUCT_PREFIX(N)                                                                                         \
    template <int ALL>                                                                                            \
    inline void product_prefix_##N(float (&sum)[ALL], const uint32 (&a)[4], uint64 b, int accumulate) {           \
        static_assert(N / 2 <= ALL);                                                                              \
        current->open_products.push_back({sum, a, b, N, accumulate != 0});                                        \
    }
PRODUCT_PREFIX(8) PRODUCT_PREFIX(16) PRODUCT_PREFIX(24) PRODUCT_PREFIX(32) PRODUCT_PREFIX(40) PRODUCT_PREFIX(48)
PRODUCT_PREFIX(56) PRODUCT_PREFIX(64) PRODUCT_PREFIX(72) PRODUCT_PREFIX(80) PRODUCT_PREFIX(88) PRODUCT_PREFIX(96)
PRODUCT_PREFIX(104) PRODUCT_PREFIX(112) PRODUCT_PREFIX(120) PRODUCT_PREFIX(128)
