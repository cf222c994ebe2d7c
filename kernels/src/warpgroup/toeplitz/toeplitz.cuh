// ---- Toeplitz products by warpgroups -------------------------------------------------------------
//
// One channel a block. As in common.cuh, with P = 64, column c is time block c / B of batch c % B, and block diagonal m
// multiplies the Toeplitz matrix K_m by the columns of the signal that lie m B before. Columns are stored backwards: those
// that a diagonal reaches, c >= m B, are then the first ones, so that later diagonals are narrower products, and moving
// on by a diagonal adds a constant to the address of the right operand. Two warpgroups take turns with diagonals.
//
// K_m comes from registers. Tile q of 16 x 16 is T_q[r, s] = k[16 q + r - s]; lane 4 g + t holds the pairs
//     a0 = a3 = H(2 q),  a1 = H(2 q + 1),  a2 = H(2 q - 1),   H(j) = (k[x], k[x - 1]) with x = 8 j + g - 2 t,
// and warp w needs the tiles q = 4 m + w - 3 .. 4 m + w: nine pairs. The filter lies reversed in two copies, tap x at C - x
// and at C - x - 1, so that every pair is an aligned word in one of them.

template <class S>
struct ToeplitzGeometry {
    using G = Geometry<S>;
    static constexpr uint32 COLUMNS = G::COLUMNS, STEP = S::STEP, WIDEST = divide_up(COLUMNS, STEP) * STEP;
    // An odd number of 16-byte lines between groups of 8 of K: neighbouring strips fall on different banks.
    static constexpr uint32 K_STRIDE = ((COLUMNS + STEP) | 1) * 16;
    static constexpr uint32 SIGNAL_BYTES = 8 * K_STRIDE;
    static constexpr uint32 TAPS = G::PADDED_LENGTH;
    // 16 banks more than a multiple of 32.
    static constexpr uint32 COPY = (TAPS + 66 + 31) / 64 * 64 + 32;
};

template <class S, class Operation>
struct Toeplitz {
    using G = Geometry<S>;
    using T = ToeplitzGeometry<S>;
    float sum[T::WIDEST / 2];
    uint32 pair[9];
    const half_bits* taps;
    uint32 signal, diagonal;

    __device__ __forceinline__ void load() {
        // Behind the last diagonal the pairs of the last one are loaded again.
        const uint32 m = diagonal < G::TIME_BLOCKS ? diagonal : G::TIME_BLOCKS - 1;
#pragma unroll
        for (int i = 0; i < 9; ++i) pair[i] = *(const uint32*)(taps - 64 * (int)m + 8 * i);
    }
    // All diagonals that reach more than N - STEP columns, then narrower ones.
    template <int N>
    __device__ __forceinline__ void multiply() {
        // Products read registers of their own while the next pairs are loaded. The compiler would make them one; it cannot
        // know that the grid has one row.
        const uint32 zero = blockIdx.y;
#pragma unroll 1
        for (; diagonal < G::TIME_BLOCKS && T::COLUMNS - diagonal * S::BLOCK_BATCHES + S::STEP > N; diagonal += 2) {
            uint32 a[4][4];
#pragma unroll
            for (int k = 0; k < 4; ++k) {
                a[k][0] = pair[2 * k + 1] ^ zero;
                a[k][3] = pair[2 * k + 1] ^ zero;
                a[k][1] = pair[2 * k] ^ zero;
                a[k][2] = pair[2 * k + 2] ^ zero;
            }
            const uint32 right = signal + diagonal * (S::BLOCK_BATCHES * 16);
            products_begin();
#pragma unroll
            for (int k = 0; k < 4; ++k) S::template product<N>(sum, a[k], core_matrices(right + 2 * k * T::K_STRIDE, T::K_STRIDE));
            products_commit();
            diagonal += 2;
            load();
            diagonal -= 2;
            products_wait<0>();
        }
        if constexpr (N > S::STEP) multiply<N - S::STEP>();
    }
};

template <class S, class Operation>
__device__ __forceinline__ void toeplitz(const Operation& operation) {
    using G = Geometry<S>;
    using T = ToeplitzGeometry<S>;
    begin_next();
    extern __shared__ uint4 shared_memory[];
    unsigned char* const signal = (unsigned char*)shared_memory;
    half_bits* const filter = (half_bits*)(signal + T::SIGNAL_BYTES);
    // The same in all lanes, as the compiler has to know: warpgroups take different turns.
    const uint32 lane = threadIdx.x % 32, warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
    const Place place = place_of_block<S>();
    for (uint32 i = threadIdx.x; i < 8 * (T::K_STRIDE / 16 - T::COLUMNS); i += G::THREADS)
        *(uint4*)(signal + i % 8 * T::K_STRIDE + (T::COLUMNS + i / 8) * 16) = make_uint4(0, 0, 0, 0);
    if (threadIdx.x < 64) {
        filter[T::TAPS + 1 + threadIdx.x] = 0;
        filter[T::COPY + T::TAPS + threadIdx.x] = 0;
    }
    stage_signal<S>(operation, place, [&](uint32, uint32 column, uint32 position, const float(&v)[S::WIDTH]) {
        half_bits* const target = (half_bits*)(signal + position / 8 * T::K_STRIDE + (T::COLUMNS - 1 - column) * 16) + position % 8;
        if constexpr (S::WIDTH == 8) {
            store_eight(target, to_half2(v[0], v[1]), to_half2(v[2], v[3]), to_half2(v[4], v[5]), to_half2(v[6], v[7]));
        } else {
            *target = to_half(v[0]);
        }
    });
    stage_filter<S>(operation, place, [&](uint32, uint32 tap, const float(&v)[S::WIDTH]) {
        half_bits* const first = filter + T::TAPS - tap;
        half_bits* const second = first + T::COPY - 1;
        if constexpr (S::WIDTH == 8) {
            *first = to_half(v[0]);
            *(uint32*)(first - 2) = to_half2(v[2], v[1]);
            *(uint32*)(first - 4) = to_half2(v[4], v[3]);
            *(uint32*)(first - 6) = to_half2(v[6], v[5]);
            *(first - 7) = to_half(v[7]);
            store_eight(second - 7, to_half2(v[7], v[6]), to_half2(v[5], v[4]), to_half2(v[3], v[2]), to_half2(v[1], v[0]));
        } else {
            *first = *second = to_half(v[0]);
        }
    });
    publish_to_tensor_cores();
    __syncthreads();

    const uint32 g = lane / 4, t = lane % 4, rows = warp % 4;
    Toeplitz<S, Operation> work;
#pragma unroll
    for (int i = 0; i < T::WIDEST / 2; ++i) work.sum[i] = 0.0f;
    work.taps = filter + (g % 2 ? T::COPY - 1 : 0) + T::TAPS - g + 2 * t - 8 * (2 * (int)rows + 1);
    work.signal = shared_address_of(signal);
    work.diagonal = warp / 4;
    work.load();
    work.template multiply<T::WIDEST>();

    // The warpgroups add up in shared memory, where signal and filter are no longer needed.
    float* const results = (float*)shared_memory;
#pragma unroll
    for (int turn = 0; turn < 2; ++turn) {
        __syncthreads();
        if (warp / 4 == turn) {
#pragma unroll
            for (int i = 0; i < T::WIDEST / 2; ++i) {
                const int column = (int)T::COLUMNS - 1 - (i / 4 * 8 + (int)t * 2 + i % 2);
                float* const to = results + column * (int)G::RESULT_ROW + rows * 16 + g + i / 2 % 2 * 8;
                if (column >= 0) *to = turn == 0 ? work.sum[i] : *to + work.sum[i];
            }
        }
    }
    __syncthreads();
    const Item item{0, warp * S::GROUP, true};
    if (item.first_column < T::COLUMNS) finish_columns<S>(operation, place, item, results + item.first_column * G::RESULT_ROW, lane);
}
