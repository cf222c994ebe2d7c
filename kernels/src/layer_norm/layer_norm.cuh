// ---- layer norm ----------------------------------------------------------------------------------
//
// `F` is emitted: width, words, stored_words, length, rows, eps;
//   fetch(raw, row, k)                loads a group of what is normalised
//   before(raw, row, k, x)            evaluates it
//   finish(row, k, x, mean, scale)    evaluates and stores what is made of the normalised group

// Rows that fit in registers: LANES lanes hold a row, BATCH rows at a time for loads in flight.
template <int LANES, int BATCH, int THREADS, class F>
__device__ __forceinline__ void normalise_rows_in_registers(const F& f) {
    constexpr int GROUPS = (F::length + LANES * F::width - 1) / (LANES * F::width);
    constexpr int ROWS_AT_A_TIME = THREADS / LANES;
    const uint32 lane = threadIdx.x % LANES;
    const uint32 first = blockIdx.x * (ROWS_AT_A_TIME * BATCH) + threadIdx.x / LANES;
    float x[BATCH][GROUPS][F::width], mean[BATCH], scale[BATCH];
    uint32 raw[BATCH][GROUPS][F::words];
#pragma unroll
    for (int r = 0; r < BATCH; ++r)
#pragma unroll
        for (int c = 0; c < GROUPS; ++c) {
            const uint32 row = first + r * ROWS_AT_A_TIME, k = (c * LANES + lane) * F::width;
            if (row < F::rows && k < F::length) f.fetch(raw[r][c], row, k);
        }
#pragma unroll
    for (int r = 0; r < BATCH; ++r)
#pragma unroll
        for (int c = 0; c < GROUPS; ++c) {
            const uint32 row = first + r * ROWS_AT_A_TIME, k = (c * LANES + lane) * F::width;
#pragma unroll
            for (int j = 0; j < F::width; ++j) x[r][c][j] = 0.0f;
            if (row < F::rows && k < F::length) f.before(raw[r][c], row, k, x[r][c]);
        }
    row_statistics<LANES, F::length>(x, lane, F::eps, mean, scale);
#pragma unroll
    for (int c = 0; c < GROUPS; ++c)
#pragma unroll
        for (int r = 0; r < BATCH; ++r) {
            const uint32 row = first + r * ROWS_AT_A_TIME, k = (c * LANES + lane) * F::width;
            if (row < F::rows && k < F::length) f.finish(row, k, x[r][c], mean[r], scale[r]);
        }
}

// Sum over the block; every thread gets it. `partial` holds one float a warp.
template <int THREADS>
__device__ __forceinline__ float sum_over_block(float x, float* partial) {
    x = sum_over_lanes<32>(x);
    __syncthreads();
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < THREADS / 32; ++w) sum += partial[w];
    return sum;
}

// A row of any length for each block, read again for the variance and for the result.
template <int THREADS, class F>
__device__ __forceinline__ void normalise_row_from_memory(const F& f) {
    __shared__ float partial[THREADS / 32];
    const uint32 row = blockIdx.x;
    uint32 raw[F::words];
    float x[F::width];
    float sum = 0.0f;
    for (uint32 k = threadIdx.x * F::width; k < F::length; k += THREADS * F::width) {
        f.fetch(raw, row, k);
        f.before(raw, row, k, x);
#pragma unroll
        for (int j = 0; j < F::width; ++j) sum += x[j];
    }
    const float mean = sum_over_block<THREADS>(sum, partial) * (1.0f / F::length);
    sum = 0.0f;
    for (uint32 k = threadIdx.x * F::width; k < F::length; k += THREADS * F::width) {
        f.fetch(raw, row, k);
        f.before(raw, row, k, x);
#pragma unroll
        for (int j = 0; j < F::width; ++j) sum = fmaf(x[j] - mean, x[j] - mean, sum);
    }
    const float scale = __frsqrt_rn(fmaf(sum_over_block<THREADS>(sum, partial), 1.0f / F::length, F::eps));
    for (uint32 k = threadIdx.x * F::width; k < F::length; k += THREADS * F::width) {
        f.fetch(raw, row, k);
        f.before(raw, row, k, x);
        f.finish(row, k, x, mean, scale);
    }
}
