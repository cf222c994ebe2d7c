// ---- the product skeleton ------------------------------------------------------------------------
//
// A block computes tile_rows x tile_columns elements of the product at a time, for `column_tiles` column tiles one
// after the other, in steps of the inner dimension. Emitted beside this file:
//   config      every extent, pitch and offset
//   left, right how operand elements come from memory (`row` is a row of x or of the weight):
//     copy(target, row, k, valid)                  a group that is stored in operand format already, in the background
//     fetch(raw, row, k), values(raw, row, k, v)   a group that is computed: its words, then its elements
//     fetch_async / landed                         the same words through shared memory, several steps ahead
//     before(raw, row, k, x), after(row, k, x, mean, scale, v)   with a layer norm over k in between
//   epilogue    what becomes of the product: fetch(raw, row, column), finish(raw, row, column, u, tile)
//
// The words of a computed operand land in a part of shared memory where every thread reads only what it
// copied itself, so that they need no barrier; only finished operand tiles do.

// Where the groups of an operand tile of MAJOR rows and DEPTH of the inner dimension go.
template <class C, class O, int MAJOR, int DEPTH, int PITCH>
struct Staging {
    static constexpr int across = (O::along_inner ? DEPTH : MAJOR) / O::width;
    static constexpr int groups = MAJOR * DEPTH / O::width;
    static constexpr int items = (groups + C::threads - 1) / C::threads;

    uint32 major, depth, offset;
    bool inside;
    __device__ __forceinline__ explicit Staging(uint32 item) {
        const uint32 group = item * C::threads + threadIdx.x;
        inside = groups % C::threads == 0 || group < groups;
        const uint32 slow = group / across, fast = group % across * O::width;
        major = O::along_inner ? slow : fast;
        depth = O::along_inner ? fast : slow;
        offset = (slow * PITCH + fast) * C::element_bytes;
    }

    // Begins the copies of a tile whose first row and k are given.
    static __device__ __forceinline__ void begin(const O& o, unsigned char* shared, uint32 tile, uint32 landing, uint32 row0, uint32 k0, uint32 limit) {
#pragma unroll
        for (int item = 0; item < items; ++item) {
            const Staging at(item);
            const uint32 row = row0 + at.major, k = k0 + at.depth;
            const bool valid = row < limit && k < C::inner;
            if (!at.inside) continue;
            if constexpr (O::direct) o.copy(shared_address(shared + tile + at.offset), row, k, valid);
            else o.template fetch_async<C::threads>(shared_address(shared + landing) + item * (O::words * 4 * C::threads), row, k, valid);
        }
    }

    static __device__ __forceinline__ void store(unsigned char* target, float (&value)[O::width]) {
        if constexpr (C::element_bytes == 2) {
            store_group((half_bits*)target, value);
        } else {
            if constexpr (O::round) {
#pragma unroll
                for (int j = 0; j < O::width; ++j) value[j] = round_tf32(value[j]);
            }
            store_group((float*)target, value);
        }
    }

    static __device__ __forceinline__ void finish_group(const O& o, const uint32 (&raw)[O::words + (O::words == 0)], unsigned char* target, uint32 row, uint32 k, bool valid) {
        float value[O::width];
#pragma unroll
        for (int j = 0; j < O::width; ++j) value[j] = 0.0f;
        if (valid) o.values(raw, row, k, value);
        store(target, value);
    }

    // Turns landed words into a finished tile.
    static __device__ __forceinline__ void finish(const O& o, unsigned char* shared, uint32 tile, uint32 landing, uint32 row0, uint32 k0, uint32 limit) {
#pragma unroll
        for (int item = 0; item < items; ++item) {
            const Staging at(item);
            const uint32 row = row0 + at.major, k = k0 + at.depth;
            uint32 raw[O::words + (O::words == 0)];
            if (!at.inside) continue;
            o.template landed<C::threads>(raw, shared_address(shared + landing) + item * (O::words * 4 * C::threads));
            finish_group(o, raw, shared + tile + at.offset, row, k, row < limit && k < C::inner);
        }
    }

    // A whole tile through registers, BATCH groups a thread in flight.
    static __device__ __forceinline__ void through_registers(const O& o, unsigned char* shared, uint32 tile, uint32 row0, uint32 limit) {
        constexpr int BATCH = O::words <= 1 ? 32 : O::words <= 2 ? 16 : O::words <= 4 ? 8 : 4;
#pragma unroll 1
        for (int first = 0; first < items; first += BATCH) {
            uint32 raw[BATCH][O::words + (O::words == 0)];
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                const Staging at(first + i);
                const uint32 row = row0 + at.major;
                if (first + i < items && at.inside && row < limit && at.depth < C::inner) o.fetch(raw[i], row, at.depth);
            }
#pragma unroll
            for (int i = 0; i < BATCH; ++i) {
                const Staging at(first + i);
                const uint32 row = row0 + at.major;
                if (first + i >= items || !at.inside) continue;
                finish_group(o, raw[i], shared + tile + at.offset, row, at.depth, row < limit && at.depth < C::inner);
            }
        }
    }

    // A whole tile of rows that are normalised on the way: a warp for BATCH rows at a time, the next ones in flight.
    static __device__ __forceinline__ void normalised(const O& o, unsigned char* shared, uint32 tile, uint32 row0, uint32 limit) {
        constexpr int WARPS = C::threads / 32, GROUPS = (DEPTH + 32 * O::width - 1) / (32 * O::width);
        constexpr int MOST = 32 / (GROUPS * O::width), ROWS = MAJOR / WARPS;
        constexpr int BATCH = MOST >= 8 && ROWS >= 8 ? 8 : MOST >= 4 && ROWS >= 4 ? 4 : MOST >= 2 && ROWS >= 2 ? 2 : 1;
        static_assert(ROWS % BATCH == 0, "rows of a warp come in whole batches");
        const uint32 lane = threadIdx.x % 32, warp_row = threadIdx.x / 32 * ROWS;
        uint32 raw[BATCH][GROUPS][O::words + (O::words == 0)];
        auto fetch = [&](uint32 first) {
#pragma unroll
            for (int r = 0; r < BATCH; ++r)
#pragma unroll
                for (int c = 0; c < GROUPS; ++c) {
                    const uint32 row = row0 + warp_row + first + r, k = (c * 32 + lane) * O::width;
                    if (row < limit && k < C::inner) o.fetch(raw[r][c], row, k);
                }
        };
        fetch(0);
        // What all rows share, once.
        uint32 words[GROUPS][O::norm_words];
#pragma unroll
        for (int c = 0; c < GROUPS; ++c) {
            const uint32 k = (c * 32 + lane) * O::width;
            if (k < C::inner) o.fetch_columns(words[c], k);
        }
#pragma unroll 1
        for (uint32 first = 0; first < ROWS; first += BATCH) {
            float x[BATCH][GROUPS][O::width], mean[BATCH], scale[BATCH];
#pragma unroll
            for (int r = 0; r < BATCH; ++r)
#pragma unroll
                for (int c = 0; c < GROUPS; ++c) {
                    const uint32 row = row0 + warp_row + first + r, k = (c * 32 + lane) * O::width;
#pragma unroll
                    for (int j = 0; j < O::width; ++j) x[r][c][j] = 0.0f;
                    if (row < limit && k < C::inner) o.before(raw[r][c], row, k, x[r][c]);
                }
            if (first + BATCH < ROWS) fetch(first + BATCH);
            row_statistics<32, C::inner>(x, lane, O::eps, mean, scale);
#pragma unroll
            for (int c = 0; c < GROUPS; ++c)
#pragma unroll
                for (int r = 0; r < BATCH; ++r) {
                    const uint32 row = row0 + warp_row + first + r, k = (c * 32 + lane) * O::width;
                    float value[O::width];
#pragma unroll
                    for (int j = 0; j < O::width; ++j) value[j] = 0.0f;
                    if (row < limit && k < C::inner) o.after(words[c], row, k, x[r][c], mean[r], scale[r], value);
                    if (k < DEPTH) store(shared + tile + ((warp_row + first + r) * PITCH + k) * C::element_bytes, value);
                }
        }
    }
};

// The product tile in shared memory, [row][column], or [column][row] for an epilogue that runs along rows.
template <class C, class E>
__device__ __forceinline__ void keep_product(float* tile, const float (&sum)[C::fragments_m][C::fragments_n][4], uint32 row, uint32 column, uint32 lane) {
#pragma unroll
    for (int m = 0; m < C::fragments_m; ++m)
#pragma unroll
        for (int n = 0; n < C::fragments_n; ++n) {
            const uint32 r = row + m * 16 + lane / 4, c = column + n * 8 + lane % 4 * 2;
            if constexpr (E::along_rows) {
                tile[c * C::tile_pitch + r] = sum[m][n][0];
                tile[(c + 1) * C::tile_pitch + r] = sum[m][n][1];
                tile[c * C::tile_pitch + r + 8] = sum[m][n][2];
                tile[(c + 1) * C::tile_pitch + r + 8] = sum[m][n][3];
            } else {
                *(float2*)(tile + r * C::tile_pitch + c) = make_float2(sum[m][n][0], sum[m][n][1]);
                *(float2*)(tile + (r + 8) * C::tile_pitch + c) = make_float2(sum[m][n][2], sum[m][n][3]);
            }
        }
}

template <class C, class E>
__device__ __forceinline__ void finish_product(const E& e, const float* tile, uint32 row0, uint32 column0) {
    constexpr int ROWS = C::tile_rows - C::halo;
    constexpr int ACROSS = (E::along_rows ? ROWS : C::tile_columns) / E::width;
    constexpr int GROUPS = ROWS * C::tile_columns / E::width;
    constexpr int ITEMS = (GROUPS + C::threads - 1) / C::threads;
    constexpr int MOST = E::words <= 4 ? 4 : E::words <= 8 ? 2 : 1, BATCH = MOST < ITEMS ? MOST : ITEMS;
    // The values of the group, behind those of the rows before it that a short convolution reads.
    constexpr int BEFORE = E::along_rows ? C::halo : 0;
#pragma unroll 1
    for (uint32 first = threadIdx.x; first < GROUPS; first += C::threads * BATCH) {
        uint32 raw[BATCH][E::words + (E::words == 0)];
        uint32 r[BATCH], c[BATCH];
        bool valid[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const uint32 group = first + i * C::threads;
            const uint32 slow = group / ACROSS, fast = group % ACROSS * E::width;
            r[i] = C::halo + (E::along_rows ? fast : slow);
            c[i] = E::along_rows ? slow : fast;
            valid[i] = group < GROUPS && row0 + r[i] < C::rows && column0 + c[i] < C::columns;
            if (valid[i]) e.fetch(raw[i], row0 + r[i], column0 + c[i]);
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            if (!valid[i]) continue;
            const float* at = E::along_rows ? tile + c[i] * C::tile_pitch + r[i] : tile + r[i] * C::tile_pitch + c[i];
            float u[BEFORE + E::width];
#pragma unroll
            for (int j = 0; j < BEFORE + E::width; j += E::width) {
                if constexpr (E::width == 4) {
                    const float4 v = *(const float4*)(at - BEFORE + j);
                    u[j] = v.x; u[j + 1] = v.y; u[j + 2] = v.z; u[j + 3] = v.w;
                } else if constexpr (E::width == 2) {
                    const float2 v = *(const float2*)(at - BEFORE + j);
                    u[j] = v.x; u[j + 1] = v.y;
                } else {
                    u[j] = at[j - BEFORE];
                }
            }
            e.finish(raw[i], row0 + r[i], column0 + c[i], u, at);
        }
    }
}

template <class C, class A, class B, class E>
__device__ __forceinline__ void multiply(const A& a, const B& b, const E& e) {
    begin_next();
    extern __shared__ uint4 shared_memory[];
    unsigned char* shared = (unsigned char*)shared_memory;
    using Left = Staging<C, A, C::tile_rows, C::resident ? C::steps * C::step : C::step, C::a_pitch>;
    using Right = Staging<C, B, C::tile_columns, C::step, C::b_pitch>;
    const uint32 lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32 warp_row = warp / C::warps_n * (C::fragments_m * 16), warp_column = warp % C::warps_n * (C::fragments_n * 8);
    // Neighbouring blocks share rows, which then come from L2. Rows before the first are beyond the limit as well.
    const uint32 row0 = blockIdx.x / C::column_groups * (C::tile_rows - C::halo) - C::halo;
    const uint32 first_tile = blockIdx.x % C::column_groups * C::column_tiles;
    const uint32 all_tiles = (C::columns + C::tile_columns - 1) / C::tile_columns;
    const uint32 tiles = C::column_tiles == 1 || first_tile + C::column_tiles <= all_tiles ? C::column_tiles : all_tiles - first_tile;
    const uint32 total = tiles * C::steps;

    // Step s of the block is step s % steps of its column tile s / steps.
    auto begin = [&](uint32 s) {
        if (s < total) {
            const uint32 k0 = s % C::steps * C::step, slot = s % C::stages;
            if constexpr (!C::resident)
                Left::begin(a, shared, C::a_offset + slot * C::a_bytes, C::a_landing_offset + slot * C::a_landing_bytes, row0, k0, C::rows);
            Right::begin(b, shared, C::b_offset + slot * C::b_bytes, C::b_landing_offset + slot * C::b_landing_bytes, (first_tile + s / C::steps) * C::tile_columns, k0, C::columns);
        }
        commit_copies();
    };
    auto finish = [&](uint32 s) {
        if (s >= total) return;
        const uint32 k0 = s % C::steps * C::step, slot = s % C::stages;
        if constexpr (!C::resident && !A::direct)
            Left::finish(a, shared, C::a_offset + s % 2 * C::a_bytes, C::a_landing_offset + slot * C::a_landing_bytes, row0, k0, C::rows);
        if constexpr (!B::direct)
            Right::finish(b, shared, C::b_offset + s % 2 * C::b_bytes, C::b_landing_offset + slot * C::b_landing_bytes, (first_tile + s / C::steps) * C::tile_columns, k0, C::columns);
    };

    if constexpr (C::resident && A::direct) Left::begin(a, shared, C::a_offset, 0, row0, 0, C::rows);
#pragma unroll 1
    for (uint32 s = 0; s + 1 < C::stages; ++s) begin(s);
    if constexpr (C::resident && A::normalised) Left::normalised(a, shared, C::a_offset, row0, C::rows);
    else if constexpr (C::resident && !A::direct) Left::through_registers(a, shared, C::a_offset, row0, C::rows);
    wait_for_copies<C::stages - 2>();
    finish(0);

    float* tile = (float*)(shared + C::tile_offset);
    uint32 s = 0;
#pragma unroll 1
    for (uint32 t = 0; t < tiles; ++t) {
        float sum[C::fragments_m][C::fragments_n][4];
#pragma unroll
        for (int m = 0; m < C::fragments_m; ++m)
#pragma unroll
            for (int n = 0; n < C::fragments_n; ++n)
#pragma unroll
                for (int i = 0; i < 4; ++i) sum[m][n][i] = 0.0f;
#pragma unroll 1
        for (uint32 i = 0; i < C::steps; ++i, ++s) {
            // Step s is in place for all threads, and all have left step s - 1, whose slots are filled anew.
            __syncthreads();
            begin(s + C::stages - 1);
            const uint32 a_slot = C::resident ? 0 : A::direct ? s % C::stages : s % 2, b_slot = B::direct ? s % C::stages : s % 2;
            const uint32 a_step = C::resident ? i * C::step * (A::along_inner ? 1 : C::a_pitch) : 0;
            multiply_step<C, A::along_inner>(
                sum,
                shared_address(shared + C::a_offset + a_slot * C::a_bytes) + (a_step + warp_row * (A::along_inner ? C::a_pitch : 1)) * C::element_bytes,
                shared_address(shared + C::b_offset + b_slot * C::b_bytes) + warp_column * (C::b_pitch * C::element_bytes),
                lane);
            wait_for_copies<C::stages - 2>();
            finish(s + 1);
        }
        // The tile takes the place of the operands unless more steps follow.
        if constexpr (C::column_tiles == 1) __syncthreads();
        keep_product<C, E>(tile, sum, warp_row, warp_column, lane);
        __syncthreads();
        wait_for_inputs();
        finish_product<C>(e, tile, row0, (first_tile + t) * C::tile_columns);
    }
}
