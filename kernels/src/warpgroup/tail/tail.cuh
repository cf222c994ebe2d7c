// ---- the tail of a block -------------------------------------------------------------------------
//
// A block of threads takes 64 rows through three products: the projection with the residual and the norm behind it,
// the hidden layer, and the product that follows it, whose operand never leaves the registers. A cluster of `split`
// blocks shares the hidden width of the same rows and adds its partial sums through distributed shared memory.
//
//   a        left operand of the projection
//   residual fetch(raw, row, column), values(raw, row, column, u, r): what is normalised, from the projection's u
//   normal   after(row, column, x, mean, scale, value): the hidden layer's operand
//   hidden   fetch(raw, column), values(raw, column, u, v): a pair of elements of the hidden layer
//   e        fetch, finish: the output, from the sum of r and the last product
__device__ __forceinline__ void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release; barrier.cluster.wait.acquire;" ::: "memory");
}

// Adds accumulators, from the OFFSET-th on, to the columns of the tile that they belong to.
template <int OFFSET, int COUNT, int PITCH, int ALL>
__device__ __forceinline__ void add_to_tile(float* tile, const float (&sum)[ALL], uint32 warp, uint32 lane) {
    float* at = tile + (warp * 16 + lane / 4) * PITCH + OFFSET * 2 + lane % 4 * 2;
#pragma unroll
    for (int j = 0; j < COUNT / 4; ++j) {
        float2* p = (float2*)(at + j * 8);
        float2* q = (float2*)(at + 8 * PITCH + j * 8);
        const float2 u = *p, v = *q;
        *p = make_float2(u.x + sum[OFFSET + 4 * j], u.y + sum[OFFSET + 4 * j + 1]);
        *q = make_float2(v.x + sum[OFFSET + 4 * j + 2], v.y + sum[OFFSET + 4 * j + 3]);
    }
}

template <class C, class A, class R, class N, class H, class E>
__device__ __forceinline__ void run_tail(const A& a, const half_bits* projection, const R& residual, const N& normal, const half_bits* up, const H& hidden, const half_bits* down, const E& e) {
    constexpr int WIDTH = C::width, PITCH = C::tile_pitch, GROUPS = (WIDTH + 127) / 128;
    constexpr int PROJECTION_PIECES = C::inner / 64, CHUNKS = C::chunks;
    extern __shared__ uint4 shared_memory[];
    unsigned char* shared = (unsigned char*)shared_memory;
    unsigned char* stages = shared + C::stage_offset;
    float* tile = (float*)(shared + C::tile_offset);
    uint64* full = (uint64*)(shared + C::barrier_offset);
    uint64* empty = full + C::stages;
    const uint32 row0 = blockIdx.x / C::split * 64, rank = blockIdx.x % C::split;
    if (threadIdx.x == 0) {
        for (int s = 0; s < C::stages; ++s) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, 128);
        }
        barriers_ready();
    }
    __syncthreads();
    const uint32 warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (warp >= 8) {
        shrink_registers<40>();
        if (warp == 8 && lane == 0) {
            // The pieces of the projection, then two for each chunk of the hidden width.
            for (int piece = 0; piece < PROJECTION_PIECES + 2 * CHUNKS; ++piece) {
                const uint32 s = piece % C::stages, chunk = rank * CHUNKS + (piece - PROJECTION_PIECES) / 2;
                if (piece >= C::stages) barrier_wait(empty + s, (piece / C::stages - 1) & 1);
                barrier_expect(full + s, C::stage_bytes);
                const half_bits* from = piece < PROJECTION_PIECES ? projection + piece * (C::stage_bytes / 2)
                                        : ((piece - PROJECTION_PIECES) % 2 ? down : up) + chunk * (C::stage_bytes / 2);
                bulk_copy(stages + s * C::stage_bytes, from, C::stage_bytes, full + s);
            }
        }
        __syncwarp();
        if constexpr (C::split > 1) {
            cluster_barrier();
            cluster_barrier();
        }
    } else {
        grow_registers<232>();
        const uint32 group = warp / 4;
        const uint32 operand = shared_address_of(shared);
        stage_operand<C::inner, C::rows, C::k_stride>(a, shared, row0, warp, lane);
        publish_to_tensor_cores();
        group_barrier(1, 256);
        {
            // Each warpgroup projects to one half of the columns.
            float sum[WIDTH / 4];
#pragma unroll
            for (int piece = 0; piece < PROJECTION_PIECES; ++piece) {
                const uint32 s = piece % C::stages;
                barrier_wait(full + s, (piece / C::stages) & 1);
                const uint32 right = shared_address_of(stages + s * C::stage_bytes) + group * (WIDTH / 2) * 16;
                products_begin();
#pragma unroll
                for (int k = 0; k < 4; ++k)
                    C::project(sum, core_matrices(operand + (piece * 8 + 2 * k) * C::k_stride, C::k_stride), core_matrices(right + 2 * k * WIDTH * 16, WIDTH * 16), piece + k > 0);
                products_commit();
            }
            products_wait<0>();
            keep_accumulators<false, PITCH>(tile + group * (WIDTH / 2), sum, warp % 4, lane);
        }
        group_barrier(1, 256);
        // Both warpgroups have left the pieces of the projection.
        for (int piece = group; piece < PROJECTION_PIECES; piece += 2) barrier_arrive(empty + piece % C::stages);
        {
            // What columns share is loaded once, what rows need all at once.
            uint32 shared_words[GROUPS][R::words + (R::words == 0)], raw[8][GROUPS][R::words + (R::words == 0)];
            uint32 norm_words[GROUPS][N::words + (N::words == 0)];
#pragma unroll
            for (int c = 0; c < GROUPS; ++c) {
                const uint32 k = (c * 32 + lane) * 4 % WIDTH;
                residual.fetch_columns(shared_words[c], k);
                normal.fetch_columns(norm_words[c], k);
            }
#pragma unroll
            for (int r = 0; r < 8; ++r)
#pragma unroll
                for (int c = 0; c < GROUPS; ++c) {
                    const uint32 row = last_valid<C::rows, 1>(row0 + warp * 8 + r), k = (c * 32 + lane) * 4 % WIDTH;
#pragma unroll
                    for (int w = 0; w < R::words; ++w) raw[r][c][w] = shared_words[c][w];
                    residual.fetch(raw[r][c], row, k);
                }
            float x[8][GROUPS][4], mean[8], scale[8];
#pragma unroll
            for (int r = 0; r < 8; ++r)
#pragma unroll
                for (int c = 0; c < GROUPS; ++c) {
                    const uint32 own = warp * 8 + r, k = (c * 32 + lane) * 4 % WIDTH;
                    const float4 v = *(const float4*)(tile + own * PITCH + k);
                    const float u[4] = {v.x, v.y, v.z, v.w};
                    residual.values(raw[r][c], last_valid<C::rows, 1>(row0 + own), k, u, x[r][c]);
                    // Lanes beyond the row add nothing to its sum.
                    if (WIDTH % 128 != 0 && (c * 32 + lane) * 4 >= WIDTH) {
#pragma unroll
                        for (int j = 0; j < 4; ++j) x[r][c][j] = 0.0f;
                    }
                }
            row_statistics<32, WIDTH>(x, lane, N::eps, mean, scale);
#pragma unroll
            for (int c = 0; c < GROUPS; ++c)
#pragma unroll
                for (int r = 0; r < 8; ++r) {
                    const uint32 own = warp * 8 + r, k = (c * 32 + lane) * 4;
                    float value[4];
                    normal.after(norm_words[c], last_valid<C::rows, 1>(row0 + own), k % WIDTH, x[r][c], mean[r], scale[r], value);
                    // The first block of a cluster carries r to the sum.
                    float4 kept = make_float4(x[r][c][0], x[r][c][1], x[r][c][2], x[r][c][3]);
                    if (C::split > 1 && rank != 0) kept = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                    if (WIDTH % 128 == 0 || k < WIDTH) {
                        store_group((half_bits*)(shared + core_offset<C::k_stride>(own, k)), value);
                        *(float4*)(tile + own * PITCH + k) = kept;
                    }
                }
        }
        publish_to_tensor_cores();
        group_barrier(1, 256);
        float sum[WIDTH / 2];
#pragma unroll
        for (int i = 0; i < WIDTH / 2; ++i) sum[i] = 0.0f;
#pragma unroll 1
        for (int chunk = group; chunk < CHUNKS; chunk += 2) {
            const uint32 first = PROJECTION_PIECES + 2 * chunk, second = first + 1;
            const uint32 s = first % C::stages, t = second % C::stages;
            const uint32 up_at = shared_address_of(stages + s * C::stage_bytes), down_at = shared_address_of(stages + t * C::stage_bytes);
            barrier_wait(full + s, (first / C::stages) & 1);
            float h[32];
            products_begin();
#pragma unroll
            for (int k = 0; k < WIDTH / 16; ++k)
                product_shared_64(h, core_matrices(operand + 2 * k * C::k_stride, C::k_stride), core_matrices(up_at + 2 * k * 1024, 1024), k > 0);
            products_commit();
            uint32 words[8][H::words + (H::words == 0)];
            const uint32 column0 = (rank * CHUNKS + chunk) * 64 + lane % 4 * 2;
#pragma unroll
            for (int j = 0; j < 8; ++j) hidden.fetch(words[j], column0 + 8 * j);
            products_wait<0>();
            barrier_arrive(empty + s);
            uint32 left[4][4];
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                float u[2] = {h[4 * j], h[4 * j + 1]}, v[2];
                hidden.values(words[j], column0 + 8 * j, u, v);
                left[j / 2][j % 2 * 2] = to_half2(v[0], v[1]);
                u[0] = h[4 * j + 2];
                u[1] = h[4 * j + 3];
                hidden.values(words[j], column0 + 8 * j, u, v);
                left[j / 2][j % 2 * 2 + 1] = to_half2(v[0], v[1]);
            }
            barrier_wait(full + t, (second / C::stages) & 1);
            products_begin();
#pragma unroll
            for (int k = 0; k < 4; ++k) C::accumulate(sum, left[k], core_matrices(down_at + 2 * k * WIDTH * 16, WIDTH * 16), 1);
            products_commit();
            products_wait<0>();
            barrier_arrive(empty + t);
        }
        // The two warpgroups add their sums to r half by half.
        if (group == 0) add_to_tile<0, WIDTH / 4, PITCH>(tile, sum, warp % 4, lane);
        else add_to_tile<WIDTH / 4, WIDTH / 4, PITCH>(tile, sum, warp % 4, lane);
        group_barrier(1, 256);
        if (group == 0) add_to_tile<WIDTH / 4, WIDTH / 4, PITCH>(tile, sum, warp % 4, lane);
        else add_to_tile<0, WIDTH / 4, PITCH>(tile, sum, warp % 4, lane);
        if constexpr (C::split == 1) {
            group_barrier(1, 256);
            finish_tile<256, 64, WIDTH, PITCH, C::rows>(e, tile, row0, 0, threadIdx.x);
        } else {
            cluster_barrier();
            constexpr int SHARE = 64 / C::split, ACROSS = WIDTH / 4, ITEMS = (SHARE * ACROSS + 255) / 256;
#pragma unroll 2
            for (int i = 0; i < ITEMS; ++i) {
                const uint32 item = i * 256 + threadIdx.x, own = rank * SHARE + item / ACROSS, k = item % ACROSS * 4;
                if (item >= SHARE * ACROSS || row0 + own >= C::rows) continue;
                uint32 words[E::words + (E::words == 0)];
                e.fetch(words, row0 + own, k);
                const uint32 at = shared_address_of(tile + own * PITCH + k);
                float u[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
                for (int other = 0; other < C::split; ++other) {
                    uint32 remote;
                    float4 part;
                    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(at), "r"(other));
                    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                                 : "=f"(part.x), "=f"(part.y), "=f"(part.z), "=f"(part.w) : "r"(remote) : "memory");
                    u[0] += part.x; u[1] += part.y; u[2] += part.z; u[3] += part.w;
                }
                e.finish(words, row0 + own, k, u, tile);
            }
            // No block leaves while another still reads its tile.
            cluster_barrier();
        }
    }
}
