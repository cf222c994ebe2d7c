// ---- panels --------------------------------------------------------------------------------------
//
// A block keeps 64 rows of the left operand in shared memory as core matrices and streams panels of 64 columns of
// the weight past them: a producer warp copies panels in the background, two warpgroups take turns, so that one
// multiplies while the other finishes its tile.
template <class C, class A, class E>
__device__ __forceinline__ void multiply_panels(const A& a, const half_bits* weight, const E& e) {
    extern __shared__ uint4 shared_memory[];
    unsigned char* shared = (unsigned char*)shared_memory;
    uint64* full = (uint64*)(shared + C::barrier_offset);
    uint64* empty = full + C::stages;
    begin_next();
    const uint32 row0 = blockIdx.x / C::column_groups * 64;
    const uint32 first_panel = blockIdx.x % C::column_groups * C::panels;
    const uint32 left_over = C::all_panels - first_panel, panels = left_over < C::panels ? left_over : C::panels;
    if (threadIdx.x == 0) {
        for (int s = 0; s < C::stages; ++s) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, 128);
        }
        barriers_ready();
    }
    __syncthreads();
    const uint32 warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (warp == 8) {
        if (lane == 0) {
            // Nothing is written before the first panel is there.
            wait_for_inputs();
            for (uint32 p = 0; p < panels; ++p) {
                const uint32 s = p % C::stages;
                if (p >= C::stages) barrier_wait(empty + s, (p / C::stages - 1) & 1);
                barrier_expect(full + s, C::panel_bytes);
                bulk_copy(shared + C::stage_offset + s * C::panel_bytes, (const unsigned char*)weight + (uint64)(first_panel + p) * C::panel_bytes, C::panel_bytes, full + s);
            }
        }
        return;
    }
    if constexpr (A::normalised) stage_normalised<C::inner, C::rows, C::k_stride>(a, shared, row0, warp, lane);
    else stage_operand<C::inner, C::rows, C::k_stride>(a, shared, row0, warp, lane);
    publish_to_tensor_cores();
    group_barrier(1, 256);
    const uint32 group = warp / 4, thread = threadIdx.x % 128;
    float* tile = (float*)(shared + C::tile_offset + group * C::tile_bytes);
    const uint32 left = shared_address_of(shared);
    for (uint32 p = group; p < panels; p += 2) {
        const uint32 s = p % C::stages, right = shared_address_of(shared + C::stage_offset + s * C::panel_bytes);
        barrier_wait(full + s, (p / C::stages) & 1);
        float sum[32];
        products_begin();
#pragma unroll
        for (int k = 0; k < C::inner / 16; ++k)
            product_shared_64(sum, core_matrices(left + 2 * k * C::k_stride, C::k_stride), core_matrices(right + 2 * k * 1024, 1024), k > 0);
        products_commit();
        products_wait<0>();
        barrier_arrive(empty + s);
        group_barrier(2 + group, 128);
        keep_accumulators<E::along_rows, C::tile_pitch>(tile, sum, warp % 4, lane);
        group_barrier(2 + group, 128);
        finish_tile<128, 64, 64, C::tile_pitch, C::rows>(e, tile, row0, (first_panel + p) * 64, thread);
    }
}
