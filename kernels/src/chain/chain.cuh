// Device half of the family `chain`: products of a tile of rows with one layer's weights, all in f32.

// Copies a [columns][K] block of weights into rows of STRIDE floats, zero-filled up to K4. Where rows are
// whole 16-byte pieces the copy is asynchronous; the caller commits and waits.
template <int K, int K4, int STRIDE, int THREADS>
__device__ __forceinline__ void stage_weights(float* to, const float* __restrict__ from, int columns) {
    if constexpr (K % 4 == 0) {
        for (int e = threadIdx.x; e < columns * (K / 4); e += THREADS) {
            int column = e / (K / 4), piece = e % (K / 4);
            uint32 address = (uint32)__cvta_generic_to_shared(to + column * STRIDE + piece * 4);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(address), "l"(from + column * K + piece * 4));
        }
    } else {
        for (int e = threadIdx.x; e < columns * K4; e += THREADS) {
            int column = e / K4, k = e % K4;
            to[column * STRIDE + k] = k < K ? from[column * K + k] : 0.0f;
        }
    }
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;"); }
template <int PENDING>
__device__ __forceinline__ void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING));
}

// sum[i][j] = sum_k rows[row_lane + 4 i][k] * weights[column + 64 j][k]. A warp owns 8 neighbouring columns of
// each group of 64, so that every weight is read once by the block; strides are odd multiples of 4 floats, so
// that 8 lanes reading 16 bytes each touch all banks.
template <int ROWS, int COLUMNS, int K4, int STRIDE>
__device__ __forceinline__ void tile_product(const float* rows, const float* weights, float (&sum)[ROWS][COLUMNS]) {
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const float* a = rows + (lane >> 3) * STRIDE;
    const float* b = weights + (warp * 8 + (lane & 7)) * STRIDE;
#pragma unroll
    for (int i = 0; i < ROWS; i++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) sum[i][j] = 0.0f;
#pragma unroll 2
    for (int k = 0; k < K4; k += 4) {
        float4 w[COLUMNS];
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) w[j] = *(const float4*)(b + j * 64 * STRIDE + k);
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float4 x = *(const float4*)(a + i * 4 * STRIDE + k);
#pragma unroll
            for (int j = 0; j < COLUMNS; j++) {
                sum[i][j] = fmaf(x.x, w[j].x, sum[i][j]);
                sum[i][j] = fmaf(x.y, w[j].y, sum[i][j]);
                sum[i][j] = fmaf(x.z, w[j].z, sum[i][j]);
                sum[i][j] = fmaf(x.w, w[j].w, sum[i][j]);
            }
        }
    }
}
