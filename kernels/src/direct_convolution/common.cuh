// Direct causal convolution: what both operand formats share.
//
// Time is cut into blocks of P = S::POSITIONS. Column c of the computation is time block c / N of batch c % N, where N
// is the number of batches that a thread block handles, and
//
//     Y[:, c] = sum over m <= c / N of K_m U[:, c - m N],     K_m[r, s] = k[m P + r - s], zero for a negative index.
//
// One block diagonal further is therefore a constant subtracted from the column, for every batch at once. Columns
// before the first lie in memory as zero rows, so that a group of columns needs no guards, and blocks that the
// sequence does not fill are padded with zeros.
//
// `S` holds the shape and the schedule, `Operation` the region's own expressions for the signal, the filter and what
// happens to the convolution's result.

__host__ __device__ constexpr uint32 divide_up(uint32 a, uint32 b) { return (a + b - 1) / b; }

template <class S>
struct Geometry {
    static constexpr uint32 THREADS = 32 * S::WARPS;
    static constexpr uint32 TIME_BLOCKS = divide_up(S::LENGTH, S::POSITIONS);
    static constexpr uint32 PADDED_LENGTH = TIME_BLOCKS * S::POSITIONS;
    static constexpr uint32 COLUMNS = TIME_BLOCKS * S::BLOCK_BATCHES;
    static constexpr uint32 GROUPS = divide_up(COLUMNS, S::GROUP);
    // Rows of the signal of one channel: a group of zero rows, then one row a column.
    static constexpr uint32 ROWS = (GROUPS + 1) * S::GROUP;
    static constexpr uint32 CHANNEL_BLOCKS = divide_up(S::CHANNELS, S::BLOCK_CHANNELS);
    static constexpr uint32 BATCH_BLOCKS = divide_up(S::BATCHES, S::BLOCK_BATCHES);
    // Groups of columns, one channel each, that the warps of a thread block share out.
    static constexpr uint32 ITEMS = divide_up(GROUPS, S::SPLITS) * S::BLOCK_CHANNELS;
    // A warp's results on their way to the epilogue: four floats of padding keep its stores free of bank conflicts.
    static constexpr uint32 RESULT_ROW = S::POSITIONS + 4;
    static constexpr uint32 RESULTS = S::GROUP * RESULT_ROW;
};

// What a thread block works on.
struct Place {
    uint32 channel, batch, split;
};

template <class S>
__device__ __forceinline__ Place place_of_block() {
    using G = Geometry<S>;
    const uint32 rest = blockIdx.x / G::CHANNEL_BLOCKS;
    return Place{blockIdx.x % G::CHANNEL_BLOCKS * S::BLOCK_CHANNELS, rest % G::BATCH_BLOCKS * S::BLOCK_BATCHES,
                 rest / G::BATCH_BLOCKS};
}

// One channel and one group of columns.
struct Item {
    uint32 channel, first_column;
    bool valid;
};

// Items in order of decreasing work. Splits take turns in alternating order, so that their sums are nearly equal.
template <class S>
__device__ __forceinline__ Item item_of(uint32 position, const Place& place) {
    using G = Geometry<S>;
    const uint32 turn = position / S::BLOCK_CHANNELS, channel = position % S::BLOCK_CHANNELS;
    const uint32 rank = turn * S::SPLITS + ((turn & 1) ? S::SPLITS - 1 - place.split : place.split);
    const bool valid = rank < G::GROUPS && place.channel + channel < S::CHANNELS;
    return Item{channel, (rank < G::GROUPS ? G::GROUPS - 1 - rank : 0) * S::GROUP, valid};
}

// Items that the warps begin with: warps of one scheduler are four apart, and rows of four alternate in order, so that
// every scheduler gets heavy and light ones.
__device__ __forceinline__ uint32 first_position(uint32 warp) {
    return (warp & 4) ? warp ^ 3 : warp;
}

// The next item for this warp. Which warp computes an item has no influence on its result.
__device__ __forceinline__ uint32 next_position(uint32* taken, uint32 lane) {
    uint32 position = 0;
    if (lane == 0) position = atomicAdd(taken, 1u);
    return __shfl_sync(0xffffffffu, position, 0);
}

// Whether element j of a strip is one of the sequence's: the last strip may end in the padding of a row.
template <class S>
__device__ __forceinline__ bool within(uint32 strip, uint32 j) {
    return S::LENGTH % S::WIDTH == 0 || strip * S::WIDTH + j < S::LENGTH;
}

// Hands `store(channel, row, position, values)` the signal, S::WIDTH elements at a time, zero outside the sequence.
// Loads are unconditional (surplus threads repeat the last strip), so that several are in flight at once.
template <class S, class Operation, class Store>
__device__ __forceinline__ void stage_signal(const Operation& operation, const Place& place, Store store) {
    using G = Geometry<S>;
    constexpr uint32 STRIPS = G::PADDED_LENGTH / S::WIDTH, LAST = (S::LENGTH - 1) / S::WIDTH;
    constexpr uint32 TOTAL = STRIPS * S::BLOCK_BATCHES * S::BLOCK_CHANNELS;
#pragma unroll (S::WIDTH == 1 ? 8 : 4)
    for (uint32 round = 0; round < divide_up(TOTAL, G::THREADS); ++round) {
        const uint32 i = min(round * G::THREADS + threadIdx.x, TOTAL - 1);
        const uint32 strip = i % STRIPS, line = i / STRIPS;
        const uint32 batch = line % S::BLOCK_BATCHES, channel = line / S::BLOCK_BATCHES;
        const bool inside =
            strip <= LAST && place.batch + batch < S::BATCHES && place.channel + channel < S::CHANNELS;
        float values[S::WIDTH];
        operation.signal(min(place.batch + batch, S::BATCHES - 1), min(place.channel + channel, S::CHANNELS - 1),
                         min(strip, LAST), values);
#pragma unroll
        for (uint32 j = 0; j < S::WIDTH; ++j) values[j] = inside && within<S>(strip, j) ? values[j] : 0.0f;
        const uint32 time = strip * S::WIDTH;
        store(channel, time / S::POSITIONS * S::BLOCK_BATCHES + batch, time % S::POSITIONS, values);
    }
}

// The same for the filter: `store(channel, tap, values)`.
template <class S, class Operation, class Store>
__device__ __forceinline__ void stage_filter(const Operation& operation, const Place& place, Store store) {
    using G = Geometry<S>;
    constexpr uint32 STRIPS = G::PADDED_LENGTH / S::WIDTH, LAST = (S::LENGTH - 1) / S::WIDTH;
    constexpr uint32 TOTAL = STRIPS * S::BLOCK_CHANNELS;
#pragma unroll (S::WIDTH == 1 ? 8 : 4)
    for (uint32 round = 0; round < divide_up(TOTAL, G::THREADS); ++round) {
        const uint32 i = min(round * G::THREADS + threadIdx.x, TOTAL - 1);
        const uint32 strip = i % STRIPS, channel = i / STRIPS;
        const bool inside = strip <= LAST && place.channel + channel < S::CHANNELS;
        float values[S::WIDTH];
        operation.filter(min(place.channel + channel, S::CHANNELS - 1), min(strip, LAST), values);
#pragma unroll
        for (uint32 j = 0; j < S::WIDTH; ++j) values[j] = inside && within<S>(strip, j) ? values[j] : 0.0f;
        store(channel, strip * S::WIDTH, values);
    }
}

// The epilogue of a group of columns, by one warp: results[column][position] in shared memory, S::WIDTH at a time along
// time, so that neighbouring threads touch neighbouring addresses.
template <class S, class Operation>
__device__ __forceinline__ void finish_columns(const Operation& operation, const Place& place, const Item& item,
                                               const float* results, uint32 lane) {
    using G = Geometry<S>;
    constexpr uint32 STRIPS = S::POSITIONS / S::WIDTH, TOTAL = S::GROUP * STRIPS, LAST = (S::LENGTH - 1) / S::WIDTH;
#pragma unroll 4
    for (uint32 round = 0; round < divide_up(TOTAL, 32); ++round) {
        const uint32 i = min(round * 32 + lane, TOTAL - 1);
        const uint32 column = i / STRIPS, position = i % STRIPS * S::WIDTH;
        const uint32 c = item.first_column + column;
        const uint32 batch = place.batch + c % S::BLOCK_BATCHES;
        const uint32 strip = (c / S::BLOCK_BATCHES * S::POSITIONS + position) / S::WIDTH;
        const bool inside = round * 32 + lane < TOTAL && c < G::COLUMNS && batch < S::BATCHES && strip <= LAST;
        float y[S::WIDTH];
#pragma unroll
        for (uint32 j = 0; j < S::WIDTH; ++j) y[j] = results[column * G::RESULT_ROW + position + j];
        operation.finish(min(batch, S::BATCHES - 1), place.channel + item.channel, min(strip, LAST), y, inside);
    }
}

template <uint32 THREADS>
__device__ __forceinline__ void fill_with_zeros(uint4* target, uint32 count) {
    for (uint32 i = threadIdx.x; i < count; i += THREADS) target[i] = make_uint4(0, 0, 0, 0);
}

// ---- eight elements at once, at an address that is a multiple of eight elements -------------------

__device__ __forceinline__ uint4 load_eight(const half_bits* p) { return *reinterpret_cast<const uint4*>(p); }
__device__ __forceinline__ float low_half(uint32 pair) { return from_half((half_bits)(pair & 0xffffu)); }
__device__ __forceinline__ float high_half(uint32 pair) { return from_half((half_bits)(pair >> 16)); }
__device__ __forceinline__ float4 load_four(const float* p) { return *reinterpret_cast<const float4*>(p); }
__device__ __forceinline__ void store_four(float* p, float a, float b, float c, float d) {
    *reinterpret_cast<float4*>(p) = make_float4(a, b, c, d);
}
__device__ __forceinline__ void store_eight(half_bits* p, uint32 a, uint32 b, uint32 c, uint32 d) {
    *reinterpret_cast<uint4*>(p) = make_uint4(a, b, c, d);
}
