// ---- warpgroups: barriers in memory, bulk copies, products of 64 rows (sm_90a) ---------------------

__device__ __forceinline__ uint32 shared_address_of(const void* p) { return (uint32)__cvta_generic_to_shared(p); }

// An operand in shared memory without swizzle, K-major: 8 x 8 core matrices of 128 contiguous bytes, `k_stride` bytes
// between neighbours along K and 128 bytes between neighbours along the rows.
__device__ __forceinline__ uint64 core_matrices(uint32 address, uint32 k_stride) {
    return (uint64)((address & 0x3ffff) >> 4) | ((uint64)(k_stride >> 4) << 16) | ((uint64)(128 >> 4) << 32);
}
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING>
__device__ __forceinline__ void products_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}
// Ordinary stores to shared memory become visible to the tensor cores after this and a barrier.
__device__ __forceinline__ void publish_to_tensor_cores() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

__device__ __forceinline__ void barrier_init(uint64* barrier, uint32 arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address_of(barrier)), "r"(arrivals));
}
__device__ __forceinline__ void barriers_ready() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }
__device__ __forceinline__ void barrier_expect(uint64* barrier, uint32 bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address_of(barrier)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_arrive(uint64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address_of(barrier)) : "memory");
}
// Gives up after seconds: a wrong phase must end in a wrong result, not in a hung device. (A trap here would keep the
// compiler from giving warpgroups registers of their own.)
__device__ __forceinline__ void barrier_wait(uint64* barrier, uint32 parity) {
    const uint32 address = shared_address_of(barrier);
    uint32 done = 0;
    for (uint32 spin = 0; !done && spin < (1u << 22); ++spin) {
        asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                     : "=r"(done) : "r"(address), "r"(parity) : "memory");
    }
}

// Blocks of a cluster. What is sent to another block's shared memory counts its bytes on a barrier there, so that no
// fence waits for it; an arrival without bytes orders nothing but itself.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait;" ::: "memory"); }
template <int SPLIT>
__device__ __forceinline__ uint32 remote_address(uint32 address, uint32 rank) {
    uint32 remote = address;
    if constexpr (SPLIT > 1) asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(address), "r"(rank));
    return remote;
}
__device__ __forceinline__ void send(uint32 address, uint32 a, uint32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];" ::"r"(address), "r"(a), "r"(barrier) : "memory");
}
__device__ __forceinline__ void send(uint32 address, float a, float b, uint32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];"
                 ::"r"(address), "f"(a), "f"(b), "r"(barrier) : "memory");
}
__device__ __forceinline__ void send(uint32 address, float a, float b, float c, float d, uint32 barrier) {
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(address), "f"(a), "f"(b), "f"(c), "f"(d), "r"(barrier) : "memory");
}
template <int SPLIT>
__device__ __forceinline__ void barrier_arrive_remote(uint64* barrier, uint32 rank) {
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];"
                 ::"r"(remote_address<SPLIT>(shared_address_of(barrier), rank)) : "memory");
}

// Contiguous bytes from global to shared memory; completion counts on the barrier.
__device__ __forceinline__ void bulk_copy(void* to, const void* from, uint32 bytes, uint64* barrier) {
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(shared_address_of(to)), "l"(from), "r"(bytes), "r"(shared_address_of(barrier)) : "memory");
}
template <int REGISTERS>
__device__ __forceinline__ void grow_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }
template <int REGISTERS>
__device__ __forceinline__ void shrink_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(REGISTERS)); }
// A barrier of `threads` threads; number 0 is __syncthreads.
__device__ __forceinline__ void group_barrier(uint32 number, uint32 threads) {
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(threads) : "memory");
}

// Where element (row, k) of a tile of core matrices lies, in bytes.
template <int K_STRIDE>
__device__ __forceinline__ uint32 core_offset(uint32 row, uint32 k) { return k / 8 * K_STRIDE + row * 16 + k % 8 * 2; }

// A row or group of W rows that exists: beyond the last one the last one again, whose results nobody stores. Rows are
// independent, and code without conditions keeps all its loads in flight.
template <int ROWS, int W>
__device__ __forceinline__ uint32 last_valid(uint32 row) { return row < ROWS ? row : ROWS - W; }

// The left operand of 64 rows, by 8 warps. A thread gathers 8 of k for `width` rows and stores one core-matrix row of
// 16 bytes at a time. The more rows a group holds, the fewer lanes lie along rows, so that stores fall on different
// banks and loads still cover whole sectors.
template <int INNER, int ROWS, int K_STRIDE, class A>
__device__ __forceinline__ void stage_operand(const A& a, unsigned char* tile, uint32 row0, uint32 warp, uint32 lane) {
    constexpr int W = A::along_inner ? 1 : A::width, ROW_LANES = 32 / W, K_LANES = W, K_GROUPS = INNER / 8;
    constexpr int ROW_BLOCKS = 64 / (ROW_LANES * W), K_BLOCKS = (K_GROUPS + K_LANES - 1) / K_LANES;
    constexpr int TASKS = ROW_BLOCKS * K_BLOCKS, MINE = (TASKS + 7) / 8, MOST = A::words == 0 ? 2 : 8 / W < 4 ? 8 / W : 4, BATCH = MOST < MINE ? MOST : MINE;
    // Groups along k hold up to 8 of them, groups along rows one each.
    constexpr int LOADS = A::along_inner ? 8 / A::width : 8;
#pragma unroll 1
    for (int first = 0; first < MINE; first += BATCH) {
        uint32 raw[BATCH][LOADS][A::words + (A::words == 0)];
        float value[BATCH][LOADS][A::width];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const uint32 task = (first + i) * 8 + warp;
            const uint32 row = task % ROW_BLOCKS * 32 + lane % ROW_LANES * W, group = task / ROW_BLOCKS * K_LANES + lane / ROW_LANES;
            const uint32 from = last_valid<ROWS, W>(row0 + row), some = group < K_GROUPS ? group : K_GROUPS - 1;
#pragma unroll
            for (int l = 0; l < LOADS; ++l) {
                const uint32 k = some * 8 + l * (8 / LOADS);
                a.fetch(raw[i][l], from, k);
                // Where nothing is loaded in words the elements themselves are what must be in flight.
                if constexpr (A::words == 0) a.values(raw[i][l], from, k, value[i][l]);
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const uint32 task = (first + i) * 8 + warp;
            const uint32 row = task % ROW_BLOCKS * 32 + lane % ROW_LANES * W, group = task / ROW_BLOCKS * K_LANES + lane / ROW_LANES;
            const uint32 from = last_valid<ROWS, W>(row0 + row), some = group < K_GROUPS ? group : K_GROUPS - 1;
            if constexpr (A::words != 0) {
#pragma unroll
                for (int l = 0; l < LOADS; ++l) a.values(raw[i][l], from, some * 8 + l * (8 / LOADS), value[i][l]);
            }
            if (task < TASKS && group < K_GROUPS) {
#pragma unroll
                for (int r = 0; r < W; ++r) {
                    float y[8];
#pragma unroll
                    for (int k = 0; k < 8; ++k) y[k] = A::along_inner ? value[i][k / A::width][k % A::width] : value[i][k % LOADS][r];
                    store_group((half_bits*)(tile + core_offset<K_STRIDE>(row + r, group * 8)), y);
                }
            }
        }
    }
}

// The left operand of 64 rows that are normalised on the way, by 8 warps: BATCH rows of a warp at a time.
template <int INNER, int ROWS, int K_STRIDE, class A>
__device__ __forceinline__ void stage_normalised(const A& a, unsigned char* tile, uint32 row0, uint32 warp, uint32 lane) {
    constexpr int GROUPS = (INNER + 32 * A::width - 1) / (32 * A::width);
    constexpr int BATCH = GROUPS * A::width <= 8 ? 8 : GROUPS * A::width <= 16 ? 4 : 2;
    uint32 words[GROUPS][A::norm_words];
#pragma unroll
    for (int c = 0; c < GROUPS; ++c) {
        const uint32 k = (c * 32 + lane) * A::width;
        a.fetch_columns(words[c], k < INNER ? k : 0);
    }
#pragma unroll 1
    for (uint32 first = 0; first < 8; first += BATCH) {
        uint32 raw[BATCH][GROUPS][A::words + (A::words == 0)];
        float x[BATCH][GROUPS][A::width], mean[BATCH], scale[BATCH];
#pragma unroll
        for (int r = 0; r < BATCH; ++r)
#pragma unroll
            for (int c = 0; c < GROUPS; ++c) {
                const uint32 row = last_valid<ROWS, 1>(row0 + warp * 8 + first + r), k = (c * 32 + lane) * A::width;
                a.fetch(raw[r][c], row, k < INNER ? k : 0);
            }
#pragma unroll
        for (int r = 0; r < BATCH; ++r)
#pragma unroll
            for (int c = 0; c < GROUPS; ++c) {
                const uint32 row = last_valid<ROWS, 1>(row0 + warp * 8 + first + r), k = (c * 32 + lane) * A::width;
                a.before(raw[r][c], row, k < INNER ? k : 0, x[r][c]);
                // Lanes beyond the row add nothing to its sum.
                if (INNER % (32 * A::width) != 0 && k >= INNER) {
#pragma unroll
                    for (int j = 0; j < A::width; ++j) x[r][c][j] = 0.0f;
                }
            }
        row_statistics<32, INNER>(x, lane, A::eps, mean, scale);
#pragma unroll
        for (int c = 0; c < GROUPS; ++c)
#pragma unroll
            for (int r = 0; r < BATCH; ++r) {
                const uint32 own = warp * 8 + first + r, k = (c * 32 + lane) * A::width;
                float value[A::width];
                a.after(words[c], last_valid<ROWS, 1>(row0 + own), k < INNER ? k : 0, x[r][c], mean[r], scale[r], value);
                if (INNER % (32 * A::width) == 0 || k < INNER) store_group((half_bits*)(tile + core_offset<K_STRIDE>(own, k)), value);
            }
    }
}

// Accumulators of 64 x (8 COLUMN_GROUPS) into a tile: [row][column] with a pitch of 8 modulo 32 floats, or
// [column][row] with one of 4 modulo 32, either free of bank conflicts.
template <bool ALONG_ROWS, int PITCH, int COUNT>
__device__ __forceinline__ void keep_accumulators(float* tile, const float (&sum)[COUNT], uint32 warp, uint32 lane) {
    const uint32 row = warp * 16 + lane / 4;
#pragma unroll
    for (int j = 0; j < COUNT / 4; ++j) {
        const uint32 column = j * 8 + lane % 4 * 2;
        if constexpr (ALONG_ROWS) {
            tile[column * PITCH + row] = sum[4 * j];
            tile[(column + 1) * PITCH + row] = sum[4 * j + 1];
            tile[column * PITCH + row + 8] = sum[4 * j + 2];
            tile[(column + 1) * PITCH + row + 8] = sum[4 * j + 3];
        } else {
            *(float2*)(tile + row * PITCH + column) = make_float2(sum[4 * j], sum[4 * j + 1]);
            *(float2*)(tile + (row + 8) * PITCH + column) = make_float2(sum[4 * j + 2], sum[4 * j + 3]);
        }
    }
}

// What becomes of a tile of ROWS_OF_TILE x COLUMNS_OF_TILE elements of the product, by THREADS threads. A tile of which
// all rows exist needs no conditions.
template <bool WHOLE, int THREADS, int ROWS_OF_TILE, int COLUMNS_OF_TILE, int PITCH, int ROWS, class E>
__device__ __forceinline__ void finish_groups(const E& e, const float* tile, uint32 row0, uint32 column0, uint32 thread) {
    constexpr int ACROSS = (E::along_rows ? ROWS_OF_TILE : COLUMNS_OF_TILE) / E::width;
    constexpr int GROUPS = ROWS_OF_TILE * COLUMNS_OF_TILE / E::width, ITEMS = (GROUPS + THREADS - 1) / THREADS;
    constexpr int MOST = E::words <= 4 ? 8 : E::words <= 8 ? 4 : 2, BATCH = MOST < ITEMS ? MOST : ITEMS;
    constexpr bool EVEN = GROUPS % (THREADS * BATCH) == 0;
#pragma unroll 1
    for (uint32 first = thread; first < GROUPS; first += THREADS * BATCH) {
        uint32 raw[BATCH][E::words + (E::words == 0)];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const uint32 group = first + i * THREADS, slow = group / ACROSS, fast = group % ACROSS * E::width;
            const uint32 r = E::along_rows ? fast : slow, c = E::along_rows ? slow : fast;
            if ((EVEN || group < GROUPS) && (WHOLE || row0 + r < ROWS)) e.fetch(raw[i], row0 + r, column0 + c);
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const uint32 group = first + i * THREADS, slow = group / ACROSS, fast = group % ACROSS * E::width;
            const uint32 r = E::along_rows ? fast : slow, c = E::along_rows ? slow : fast;
            if (!((EVEN || group < GROUPS) && (WHOLE || row0 + r < ROWS))) continue;
            const float* at = E::along_rows ? tile + c * PITCH + r : tile + r * PITCH + c;
            float u[E::width];
            if constexpr (E::width == 4) {
                const float4 v = *(const float4*)at;
                u[0] = v.x; u[1] = v.y; u[2] = v.z; u[3] = v.w;
            } else if constexpr (E::width == 2) {
                const float2 v = *(const float2*)at;
                u[0] = v.x; u[1] = v.y;
            } else {
                u[0] = at[0];
            }
            e.finish(raw[i], row0 + r, column0 + c, u, at);
        }
    }
}
template <int THREADS, int ROWS_OF_TILE, int COLUMNS_OF_TILE, int PITCH, int ROWS, class E>
__device__ __forceinline__ void finish_tile(const E& e, const float* tile, uint32 row0, uint32 column0, uint32 thread) {
    if (ROWS % ROWS_OF_TILE == 0 || row0 + ROWS_OF_TILE <= ROWS) {
        finish_groups<true, THREADS, ROWS_OF_TILE, COLUMNS_OF_TILE, PITCH, ROWS>(e, tile, row0, column0, thread);
    } else {
        finish_groups<false, THREADS, ROWS_OF_TILE, COLUMNS_OF_TILE, PITCH, ROWS>(e, tile, row0, column0, thread);
    }
}
