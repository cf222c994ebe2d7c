// ---- tensor cores --------------------------------------------------------------------------------
//
// An operand tile lies in shared memory with the inner dimension contiguous ([row][k]), or for the left operand
// also with rows contiguous ([k][row]). A *slab* is 32 bytes of the inner dimension: 16 elements of f16, 8 of tf32
// or f32. Fragments of a slab have the same shape in all formats: for the left operand two rows of 16-byte chunks
// times two chunks, which is what ldmatrix gives; pitches are odd multiples of 16 bytes, free of bank conflicts.

__device__ __forceinline__ uint32 shared_address(const void* p) { return (uint32)__cvta_generic_to_shared(p); }

// Copies BYTES from global to shared memory in the background; zeros where not `valid`.
template <int BYTES>
__device__ __forceinline__ void copy_async(uint32 target, const void* source, bool valid) {
    if constexpr (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(target), "l"(source), "r"(valid ? 16 : 0) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(target), "l"(source), "n"(BYTES), "r"(valid ? BYTES : 0) : "memory");
    }
}
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most PENDING groups of this thread are still under way.
template <int PENDING>
__device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

__device__ __forceinline__ void store_shared_word(uint32 address, uint32 word) {
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(word) : "memory");
}
// Brings BYTES to where their thread reads them later, in the background unless they are too narrow for that.
template <int BYTES>
__device__ __forceinline__ void land(uint32 target, const void* source, bool valid) {
    if constexpr (BYTES >= 4) {
        copy_async<BYTES>(target, source, valid);
    } else {
        const uint32 word = valid ? __ldg((const half_bits*)source) : 0u;
        store_shared_word(target, word);
    }
}

template <int FIRST, int COUNT, int WORDS>
__device__ __forceinline__ void load_shared_words(uint32 (&raw)[WORDS], uint32 address) {
    if constexpr (COUNT == 4) {
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(raw[FIRST]), "=r"(raw[FIRST + 1]), "=r"(raw[FIRST + 2]), "=r"(raw[FIRST + 3]) : "r"(address) : "memory");
    } else if constexpr (COUNT == 2) {
        asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(raw[FIRST]), "=r"(raw[FIRST + 1]) : "r"(address) : "memory");
    } else {
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(raw[FIRST]) : "r"(address) : "memory");
    }
}

__device__ __forceinline__ void load_matrices(uint32 (&r)[4], uint32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_matrices(uint32 (&r)[2], uint32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_matrices_transposed(uint32 (&r)[4], uint32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

__device__ __forceinline__ void multiply_f16(float (&c)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ __forceinline__ void multiply_tf32(float (&c)[4], const uint32 (&a)[4], const uint32 (&b)[2]) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ uint32 nearest_tf32(float x) {
    uint32 r;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(x));
    return r;
}
// x = high + low up to a relative 2^-22, both tf32.
template <int COUNT>
__device__ __forceinline__ void split_tf32(const uint32 (&x)[COUNT], uint32 (&high)[COUNT], uint32 (&low)[COUNT]) {
#pragma unroll
    for (int i = 0; i < COUNT; ++i) {
        high[i] = nearest_tf32(__uint_as_float(x[i]));
        low[i] = nearest_tf32(__uint_as_float(x[i]) - __uint_as_float(high[i]));
    }
}

// The left fragments of one slab for 16 rows. `tile` points at the warp's first row and the slab's first k.
template <int ELEMENT_BYTES, bool ALONG_INNER, int PITCH>
__device__ __forceinline__ void load_left(uint32 (&a)[4], uint32 tile, uint32 lane) {
    if constexpr (ALONG_INNER) {
        load_matrices(a, tile + (lane % 16) * (PITCH * ELEMENT_BYTES) + lane / 16 * 16);
    } else if constexpr (ELEMENT_BYTES == 2) {
        const uint32 k = lane / 16 * 8 + lane % 8, row = lane / 8 % 2 * 8;
        load_matrices_transposed(a, tile + (k * PITCH + row) * 2);
    } else {
        const uint32 at = tile + (lane % 4 * PITCH + lane / 4) * 4;
        load_shared_words<0, 1>(a, at);
        load_shared_words<1, 1>(a, at + 32);
        load_shared_words<2, 1>(a, at + 16 * PITCH);
        load_shared_words<3, 1>(a, at + 16 * PITCH + 32);
    }
}

// The product of one step: every slab of the tiles `a` and `b`, which point at the warp's first row and column.
// Precision 0 is f16, 1 is tf32; 2 splits f32 into two tf32 parts, takes the three large products, and adds them up
// outside the tensor core, whose accumulator truncates.
template <class C, bool ALONG_INNER>
__device__ __forceinline__ void multiply_step(float (&sum)[C::fragments_m][C::fragments_n][4], uint32 a, uint32 b, uint32 lane) {
    constexpr int BYTES = C::element_bytes, SLABS = C::step * BYTES / 32;
    constexpr int A_SLAB = ALONG_INNER ? 32 : 32 / BYTES * C::a_pitch * BYTES;
    constexpr int A_FRAGMENT = 16 * BYTES * (ALONG_INNER ? C::a_pitch : 1);
    // Split operands take too many registers for more at a time.
    constexpr int UNROLLED = C::precision == 2 ? 2 : SLABS;
#pragma unroll UNROLLED
    for (int slab = 0; slab < SLABS; ++slab) {
        uint32 right[C::fragments_n][2];
        if constexpr (C::fragments_n % 2 == 0) {
#pragma unroll
            for (int n = 0; n < C::fragments_n; n += 2) {
                uint32 pair[4];
                const uint32 column = n * 8 + lane / 16 * 8 + lane % 8;
                load_matrices(pair, b + column * (C::b_pitch * BYTES) + slab * 32 + lane / 8 % 2 * 16);
                right[n][0] = pair[0]; right[n][1] = pair[1];
                right[n + 1][0] = pair[2]; right[n + 1][1] = pair[3];
            }
        } else {
#pragma unroll
            for (int n = 0; n < C::fragments_n; ++n) {
                const uint32 column = n * 8 + lane % 8;
                load_matrices(right[n], b + column * (C::b_pitch * BYTES) + slab * 32 + lane / 8 % 2 * 16);
            }
        }
        if constexpr (C::precision == 2) {
            uint32 right_high[C::fragments_n][2], right_low[C::fragments_n][2];
#pragma unroll
            for (int n = 0; n < C::fragments_n; ++n) split_tf32(right[n], right_high[n], right_low[n]);
#pragma unroll
            for (int m = 0; m < C::fragments_m; ++m) {
                uint32 left[4], high[4], low[4];
                load_left<BYTES, ALONG_INNER, C::a_pitch>(left, a + m * A_FRAGMENT + slab * A_SLAB, lane);
                split_tf32(left, high, low);
#pragma unroll
                for (int n = 0; n < C::fragments_n; ++n) {
                    float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                    multiply_tf32(part, low, right_high[n]);
                    multiply_tf32(part, high, right_low[n]);
                    multiply_tf32(part, high, right_high[n]);
#pragma unroll
                    for (int i = 0; i < 4; ++i) sum[m][n][i] += part[i];
                }
            }
        } else {
#pragma unroll
            for (int m = 0; m < C::fragments_m; ++m) {
                uint32 left[4];
                load_left<BYTES, ALONG_INNER, C::a_pitch>(left, a + m * A_FRAGMENT + slab * A_SLAB, lane);
#pragma unroll
                for (int n = 0; n < C::fragments_n; ++n) {
                    if constexpr (C::precision == 0) multiply_f16(sum[m][n], left, right[n]);
                    else multiply_tf32(sum[m][n], left, right[n]);
                }
            }
        }
    }
}
