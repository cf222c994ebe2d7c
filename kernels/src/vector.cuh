// ---- groups of adjacent elements ------------------------------------------------------------------

// Loads BYTES into the words raw[FIRST ..]; `p` is aligned to them.
template <int FIRST, int BYTES, int WORDS>
__device__ __forceinline__ void load_words(uint32 (&raw)[WORDS], const void* p) {
    if constexpr (BYTES == 16) {
        const uint4 v = __ldg((const uint4*)p);
        raw[FIRST] = v.x; raw[FIRST + 1] = v.y; raw[FIRST + 2] = v.z; raw[FIRST + 3] = v.w;
    } else if constexpr (BYTES == 8) {
        const uint2 v = __ldg((const uint2*)p);
        raw[FIRST] = v.x; raw[FIRST + 1] = v.y;
    } else if constexpr (BYTES == 4) {
        raw[FIRST] = __ldg((const uint32*)p);
    } else {
        raw[FIRST] = __ldg((const half_bits*)p);
    }
}

// Stores a group with the widest accesses its size allows; `p` is aligned to the group.
template <int WIDTH>
__device__ __forceinline__ void store_group(float* p, const float (&y)[WIDTH]) {
    if constexpr (WIDTH % 4 == 0) {
#pragma unroll
        for (int j = 0; j < WIDTH; j += 4) *(float4*)(p + j) = make_float4(y[j], y[j + 1], y[j + 2], y[j + 3]);
    } else if constexpr (WIDTH == 2) {
        *(float2*)p = make_float2(y[0], y[1]);
    } else {
        p[0] = y[0];
    }
}
template <int WIDTH>
__device__ __forceinline__ void store_group(half_bits* p, const float (&y)[WIDTH]) {
    if constexpr (WIDTH == 8) {
        *(uint4*)p = make_uint4(to_half2(y[0], y[1]), to_half2(y[2], y[3]), to_half2(y[4], y[5]), to_half2(y[6], y[7]));
    } else if constexpr (WIDTH == 4) {
        *(uint2*)p = make_uint2(to_half2(y[0], y[1]), to_half2(y[2], y[3]));
    } else if constexpr (WIDTH == 2) {
        *(uint32*)p = to_half2(y[0], y[1]);
    } else {
        p[0] = to_half(y[0]);
    }
}

template <int LANES>
__device__ __forceinline__ float sum_over_lanes(float x) {
#pragma unroll
    for (int distance = LANES / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(0xffffffffu, x, distance);
    return x;
}

// Mean and 1 / sqrt(variance + eps) of ROWS rows whose elements lie in the registers of LANES lanes:
// group c of lane l holds elements (c * LANES + l) * WIDTH ... of the row, and those beyond LENGTH are zero.
template <int LANES, int LENGTH, int ROWS, int GROUPS, int WIDTH>
__device__ __forceinline__ void row_statistics(const float (&x)[ROWS][GROUPS][WIDTH], uint32 lane, float eps,
                                               float (&mean)[ROWS], float (&scale)[ROWS]) {
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        float sum = 0.0f;
#pragma unroll
        for (int c = 0; c < GROUPS; ++c)
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) sum += x[r][c][j];
        mean[r] = sum_over_lanes<LANES>(sum) * (1.0f / LENGTH);
    }
#pragma unroll
    for (int r = 0; r < ROWS; ++r) {
        float sum = 0.0f;
#pragma unroll
        for (int c = 0; c < GROUPS; ++c) {
            const bool inside = (c * LANES + lane) * WIDTH < LENGTH;
#pragma unroll
            for (int j = 0; j < WIDTH; ++j) {
                const float d = inside ? x[r][c][j] - mean[r] : 0.0f;
                sum = fmaf(d, d, sum);
            }
        }
        scale[r] = __frsqrt_rn(fmaf(sum_over_lanes<LANES>(sum), 1.0f / LENGTH, eps));
    }
}
__device__ __forceinline__ void store_one(float* p, float y) { *p = y; }
__device__ __forceinline__ void store_one(half_bits* p, float y) { *p = to_half(y); }
