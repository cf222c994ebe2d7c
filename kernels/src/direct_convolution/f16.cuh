// f16 operands, f32 accumulation: Toeplitz tiles on the tensor cores, mma.sync.m16n8k16.
//
// A tile of K depends only on the difference q of its row and column of tiles: T_q[r, s] = k[16 q + r - s]. In the
// register layout of the A operand, lane 4 g + t holds for T_q the pairs
//     a0 = a3 = H(2 q),  a1 = H(2 q + 1),  a2 = H(2 q - 1),   H(j) = (k[x], k[x - 1]) with x = 8 j + g - 2 t.
// A block diagonal with T = P / 16 tiles a side needs q = T m - T + 1 .. T m + T - 1: those below T m are still in
// registers from the diagonal before, and each of the others takes two loads.
//
// The filter lies reversed in shared memory, tap x at C - x with C the padded length, in two copies: one as it is and
// one shifted by one element. Lanes with even g read the first and lanes with odd g the second, so that a pair is one
// aligned 4-byte load. A warp touches seven consecutive words of each copy, and the copies lie 16 banks apart: no
// conflicts. Rows of the signal are 16 bytes longer than P elements, so that ldmatrix has none either.

__device__ __forceinline__ void load_matrices(uint32 (&r)[4], uint32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address));
}

__device__ __forceinline__ void load_matrices(uint32 (&r)[2], uint32 address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(address));
}

__device__ __forceinline__ void multiply_accumulate(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <class S>
struct HalfGeometry {
    using G = Geometry<S>;
    static constexpr uint32 TILES = S::POSITIONS / 16;
    static constexpr uint32 COLUMN_TILES = S::GROUP / 8;
    // A single column tile keeps two sums for each tile of rows, so that the tensor cores are not latency-bound.
    static constexpr uint32 SUMS = COLUMN_TILES == 1 && TILES > 1 ? 2 : 1;
    // Registers of B that one ldmatrix fills: two tiles of 16 positions, or the only one.
    static constexpr uint32 FILL = TILES > 1 ? 4 : 2;
    static constexpr uint32 ROW = S::POSITIONS + 8;
    static constexpr uint32 SIGNAL = G::ROWS * ROW;
    // At least 8 elements beyond the reversed filter are zero, and a copy is 16 banks more than a multiple of 32.
    static constexpr uint32 COPY = (G::PADDED_LENGTH + 8 + 31) / 64 * 64 + 32;
    static constexpr uint32 CHANNEL = SIGNAL + 2 * COPY;
};

// A operands of the tiles q = T m + i of block diagonal m.
template <uint32 T>
using FilterTiles = uint32[T][4];

// `taps` is the lane's address of H(0) of the diagonal, `edge` H(-1), of which it leaves that of the next.
//
// mma.sync wants its four registers in a row, so that a pair which serves twice needs two copies. The compiler would
// make one copy and move it about before every product; it cannot know that the grid has one row, and so keeps both.
template <uint32 T>
__device__ __forceinline__ void load_filter_tiles(FilterTiles<T>& a, uint32& edge, const half_bits* taps) {
    const uint32 zero = blockIdx.y;
#pragma unroll
    for (uint32 i = 0; i < T; ++i) {
        a[i][0] = *reinterpret_cast<const uint32*>(taps - 16 * (int)i);
        a[i][3] = a[i][0] ^ zero;
        a[i][2] = edge ^ zero;
        a[i][1] = edge = *reinterpret_cast<const uint32*>(taps - 16 * (int)i - 8);
    }
}

template <class S>
using SignalTiles = uint32[S::GROUP / 8][HalfGeometry<S>::TILES * 2 / HalfGeometry<S>::FILL][HalfGeometry<S>::FILL];

template <class S>
__device__ __forceinline__ void load_signal_tiles(SignalTiles<S>& b, uint32 address) {
    using H = HalfGeometry<S>;
#pragma unroll
    for (uint32 n = 0; n < H::COLUMN_TILES; ++n) {
#pragma unroll
        for (uint32 i = 0; i < H::TILES * 2 / H::FILL; ++i)
            load_matrices(b[n][i], address + 2 * (n * 8 * H::ROW + i * 32));
    }
}

template <class S>
using Sums = float[HalfGeometry<S>::SUMS][S::GROUP / 8][HalfGeometry<S>::TILES][4];

// Tile of rows r += tile of the filter times tile s of the signal, for every tile of columns.
template <class S>
__device__ __forceinline__ void multiply_tile(Sums<S>& sums, const uint32 (&a)[4], const SignalTiles<S>& b, uint32 r,
                                              uint32 s) {
    using H = HalfGeometry<S>;
#pragma unroll
    for (uint32 n = 0; n < H::COLUMN_TILES; ++n)
        multiply_accumulate(sums[s % H::SUMS][n][r], a, b[n][2 * s / H::FILL][2 * s % H::FILL],
                            b[n][2 * s / H::FILL][2 * s % H::FILL + 1]);
}

// The tiles of a block diagonal above its main one, which are those of the diagonal before.
template <class S>
__device__ __forceinline__ void multiply_above(Sums<S>& sums, const FilterTiles<HalfGeometry<S>::TILES>& a,
                                               const SignalTiles<S>& b) {
    using H = HalfGeometry<S>;
#pragma unroll
    for (uint32 d = 1; d < H::TILES; ++d) {
#pragma unroll
        for (uint32 s = d; s < H::TILES; ++s) multiply_tile<S>(sums, a[H::TILES - d], b, s - d, s);
    }
}

// The tiles on the main diagonal and below.
template <class S>
__device__ __forceinline__ void multiply_rest(Sums<S>& sums, const FilterTiles<HalfGeometry<S>::TILES>& a,
                                              const SignalTiles<S>& b) {
    using H = HalfGeometry<S>;
#pragma unroll
    for (uint32 d = 0; d < H::TILES; ++d) {
#pragma unroll
        for (uint32 r = H::TILES; r-- > d;) multiply_tile<S>(sums, a[d], b, r, r - d);
    }
}

template <class S, class Operation>
__device__ __forceinline__ void direct_convolution_f16(const Operation& operation) {
    using G = Geometry<S>;
    using H = HalfGeometry<S>;
    constexpr uint32 T = H::TILES, C = G::PADDED_LENGTH;
    extern __shared__ uint4 shared_memory[];
    __shared__ uint32 taken;
    const uint32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float* const results = reinterpret_cast<float*>(shared_memory) + warp * G::RESULTS;
    half_bits* const channels =
        reinterpret_cast<half_bits*>(reinterpret_cast<float*>(shared_memory) + S::WARPS * G::RESULTS);
    const Place place = place_of_block<S>();

    if (threadIdx.x == 0) taken = S::WARPS;
#pragma unroll 1
    for (uint32 channel = 0; channel < S::BLOCK_CHANNELS; ++channel) {
        half_bits* const signal = channels + channel * H::CHANNEL;
        fill_with_zeros<G::THREADS>(reinterpret_cast<uint4*>(signal), S::GROUP * H::ROW / 8);
        fill_with_zeros<G::THREADS>(reinterpret_cast<uint4*>(signal + (S::GROUP + G::COLUMNS) * H::ROW),
                                    (G::ROWS - S::GROUP - G::COLUMNS) * H::ROW / 8);
        // Taps -1 to -7 in both copies; tap 0, which shares a vector with them in the first, comes from staging.
        if (threadIdx.x < 7) {
            signal[H::SIGNAL + C + 1 + threadIdx.x] = 0;
            signal[H::SIGNAL + H::COPY + C + threadIdx.x] = 0;
        }
    }
    begin_next();
    stage_signal<S>(operation, place, [&](uint32 channel, uint32 row, uint32 position, const float(&v)[S::WIDTH]) {
        half_bits* const target = channels + channel * H::CHANNEL + (S::GROUP + row) * H::ROW + position;
        if constexpr (S::WIDTH == 8) {
            store_eight(target, to_half2(v[0], v[1]), to_half2(v[2], v[3]), to_half2(v[4], v[5]), to_half2(v[6], v[7]));
        } else {
            *target = to_half(v[0]);
        }
    });
    stage_filter<S>(operation, place, [&](uint32 channel, uint32 tap, const float(&v)[S::WIDTH]) {
        half_bits* const first = channels + channel * H::CHANNEL + H::SIGNAL + C - tap;  // of this tap
        half_bits* const second = first + H::COPY - 1;
        if constexpr (S::WIDTH == 8) {
            *first = to_half(v[0]);
            *reinterpret_cast<uint32*>(first - 2) = to_half2(v[2], v[1]);
            *reinterpret_cast<uint32*>(first - 4) = to_half2(v[4], v[3]);
            *reinterpret_cast<uint32*>(first - 6) = to_half2(v[6], v[5]);
            *(first - 7) = to_half(v[7]);
            store_eight(second - 7, to_half2(v[7], v[6]), to_half2(v[5], v[4]), to_half2(v[3], v[2]),
                        to_half2(v[1], v[0]));
        } else {
            *first = *second = to_half(v[0]);
        }
    });
    __syncthreads();

    // The lane's place in A (g, t) and the row and 16-byte chunk it addresses for ldmatrix.
    const uint32 g = lane >> 2, t = lane & 3;
    const uint32 pair = H::SIGNAL + (g & 1) * H::COPY + C - g + 2 * t - (g & 1);
    const uint32 chunk = (lane & 7) * H::ROW + (H::FILL == 4 ? lane >> 3 : (lane >> 3) & 1) * 8;
    for (uint32 position = first_position(warp); position < G::ITEMS;) {
        const Item item = item_of<S>(position, place);
        if (item.valid) {
            const half_bits* const signal = channels + item.channel * H::CHANNEL;
            const half_bits* taps = signal + pair;
            uint32 address = (uint32)__cvta_generic_to_shared(signal + (S::GROUP + item.first_column) * H::ROW + chunk);
            const uint32 last = min((item.first_column + S::GROUP - 1) / S::BLOCK_BATCHES, G::TIME_BLOCKS - 1);

            // Diagonals alternate between two sets of registers. The operands of one are loaded while the one before
            // is multiplied: its tiles above the main diagonal first, after which the older pairs are free. Behind the
            // last diagonal the same operands are loaded again.
            Sums<S> sums = {};
            FilterTiles<T> even, odd;
            SignalTiles<S> b_even, b_odd;
            uint32 edge = 0;
            auto load = [&](bool more, FilterTiles<T>& a, SignalTiles<S>& b) {
                taps -= more ? 16 * T : 0;
                address -= more ? 2 * S::BLOCK_BATCHES * H::ROW : 0;
                load_filter_tiles<T>(a, edge, taps);
                load_signal_tiles<S>(b, address);
            };
            load(false, even, b_even);
            load(last > 0, odd, b_odd);
            multiply_rest<S>(sums, even, b_even);
#pragma unroll 1
            for (uint32 m = 1; m <= last; m += 2) {
                multiply_above<S>(sums, even, b_odd);
                load(m < last, even, b_even);
                multiply_rest<S>(sums, odd, b_odd);
                if (m == last) break;
                multiply_above<S>(sums, odd, b_even);
                load(m + 1 < last, odd, b_odd);
                multiply_rest<S>(sums, even, b_even);
            }

            __syncwarp();
#pragma unroll
            for (uint32 n = 0; n < H::COLUMN_TILES; ++n) {
#pragma unroll
                for (uint32 r = 0; r < T; ++r) {
                    float sum[4];
#pragma unroll
                    for (uint32 i = 0; i < 4; ++i) {
                        sum[i] = sums[0][n][r][i];
                        if (H::SUMS == 2) sum[i] += sums[H::SUMS - 1][n][r][i];
                    }
                    float* const target = results + (8 * n + 2 * t) * G::RESULT_ROW + 16 * r + g;
                    target[0] = sum[0];
                    target[G::RESULT_ROW] = sum[1];
                    target[8] = sum[2];
                    target[G::RESULT_ROW + 8] = sum[3];
                }
            }
            __syncwarp();
            finish_columns<S>(operation, place, item, results, lane);
        }
        if (G::ITEMS <= S::WARPS) break;
        position = next_position(&taken, lane);
    }
}
