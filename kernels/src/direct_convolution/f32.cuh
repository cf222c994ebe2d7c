// f32 operands: plain FMA, one column a lane.
//
// A lane computes P consecutive outputs. On block diagonal m it needs one row of the signal, its own, and the 2 P - 1
// taps k[m P - P + 1 .. m P + P - 1], the same for the whole warp, of which P are new: P * P FMA for P / 4 vector loads
// of its own and P / 4 broadcast ones. Rows are four floats longer than P, so that eight lanes that read 16 bytes each
// touch every bank once. Sums of a segment of diagonals are added up apart, which keeps rounding errors small.

template <class S>
struct FloatGeometry {
    using G = Geometry<S>;
    static constexpr uint32 ROW = S::POSITIONS + 4;
    static constexpr uint32 SIGNAL = G::ROWS * ROW;
    static constexpr uint32 CHANNEL = SIGNAL + G::PADDED_LENGTH;
    // Diagonals of a segment: 256 taps. Even, see the loop.
    static constexpr uint32 SEGMENT = 256 / S::POSITIONS;
};

template <uint32 P>
__device__ __forceinline__ void load_values(float (&values)[P], const float* source) {
#pragma unroll
    for (uint32 i = 0; i < P / 4; ++i) {
        const float4 v = load_four(source + 4 * i);
        values[4 * i] = v.x, values[4 * i + 1] = v.y, values[4 * i + 2] = v.z, values[4 * i + 3] = v.w;
    }
}

// sums[r] += sum over s of k[m P + r - s] x[s], with `below` = k[m P - P ..] and `here` = k[m P ..].
template <int P>
__device__ __forceinline__ void multiply_block(float (&sums)[P], const float (&below)[P], const float (&here)[P],
                                               const float (&x)[P]) {
#pragma unroll
    for (int s = 0; s < P; ++s) {
#pragma unroll
        for (int r = 0; r < P; ++r)
            sums[r] = fmaf(r >= s ? here[r >= s ? r - s : 0] : below[r >= s ? 0 : P + r - s], x[s], sums[r]);
    }
}

template <class S, class Operation>
__device__ __forceinline__ void direct_convolution_f32(const Operation& operation) {
    using G = Geometry<S>;
    using H = FloatGeometry<S>;
    constexpr uint32 P = S::POSITIONS;
    static_assert(S::GROUP == 32 && H::SEGMENT % 2 == 0, "one column a lane, pairs of diagonals");
    extern __shared__ uint4 shared_memory[];
    __shared__ uint32 taken;
    const uint32 lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    float* const results = reinterpret_cast<float*>(shared_memory) + warp * G::RESULTS;
    float* const channels = reinterpret_cast<float*>(shared_memory) + S::WARPS * G::RESULTS;
    const Place place = place_of_block<S>();

    if (threadIdx.x == 0) taken = S::WARPS;
#pragma unroll 1
    for (uint32 channel = 0; channel < S::BLOCK_CHANNELS; ++channel) {
        float* const signal = channels + channel * H::CHANNEL;
        fill_with_zeros<G::THREADS>(reinterpret_cast<uint4*>(signal), S::GROUP * H::ROW / 4);
        fill_with_zeros<G::THREADS>(reinterpret_cast<uint4*>(signal + (S::GROUP + G::COLUMNS) * H::ROW),
                                    (G::ROWS - S::GROUP - G::COLUMNS) * H::ROW / 4);
    }
    auto store = [&](float* target, const float(&v)[S::WIDTH]) {
        if constexpr (S::WIDTH == 8) {
            store_four(target, v[0], v[1], v[2], v[3]);
            store_four(target + 4, v[4], v[5], v[6], v[7]);
        } else {
            *target = v[0];
        }
    };
    begin_next();
    stage_signal<S>(operation, place, [&](uint32 channel, uint32 row, uint32 position, const float(&v)[S::WIDTH]) {
        store(channels + channel * H::CHANNEL + (S::GROUP + row) * H::ROW + position, v);
    });
    stage_filter<S>(operation, place, [&](uint32 channel, uint32 tap, const float(&v)[S::WIDTH]) {
        store(channels + channel * H::CHANNEL + H::SIGNAL + tap, v);
    });
    __syncthreads();

    for (uint32 position = first_position(warp); position < G::ITEMS;) {
        const Item item = item_of<S>(position, place);
        if (item.valid) {
            const float* const signal = channels + item.channel * H::CHANNEL;
            const float* const filter = signal + H::SIGNAL;
            const float* row = signal + (S::GROUP + item.first_column + lane) * H::ROW;
            const uint32 diagonals =
                min((item.first_column + S::GROUP - 1) / S::BLOCK_BATCHES, G::TIME_BLOCKS - 1) + 1;

            float total[P] = {}, even[P], odd[P] = {}, x[P];
#pragma unroll 1
            for (uint32 first = 0; first < diagonals; first += H::SEGMENT) {
                float sums[P] = {};
                const uint32 end = min(first + H::SEGMENT, diagonals);
#pragma unroll 1
                for (uint32 m = first; m < end; m += 2) {
                    load_values(even, filter + m * P);
                    load_values(x, row);
                    multiply_block<(int)P>(sums, odd, even, x);
                    row -= S::BLOCK_BATCHES * H::ROW;
                    if (m + 1 == end) break;
                    load_values(odd, filter + (m + 1) * P);
                    load_values(x, row);
                    multiply_block<(int)P>(sums, even, odd, x);
                    row -= S::BLOCK_BATCHES * H::ROW;
                }
#pragma unroll
                for (uint32 r = 0; r < P; ++r) total[r] += sums[r];
            }

            __syncwarp();
#pragma unroll
            for (uint32 i = 0; i < P / 4; ++i)
                store_four(results + lane * G::RESULT_ROW + 4 * i, total[4 * i], total[4 * i + 1], total[4 * i + 2],
                           total[4 * i + 3]);
            __syncwarp();
            finish_columns<S>(operation, place, item, results, lane);
        }
        if (G::ITEMS <= S::WARPS) break;
        position = next_position(&taken, lane);
    }
}
