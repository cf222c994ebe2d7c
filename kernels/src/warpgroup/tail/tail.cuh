// ---- the tail of a block -------------------------------------------------------------------------
//
// Everything is transposed: the rows of a product of 64 rows are rows of a weight, its columns are `tokens` rows of the
// region. A fragment of 8 x 8 accumulators is then exactly one core matrix of the next product's right operand, which
// stores reach without bank conflicts. A cluster of `split` blocks shares tokens: each block projects to its share
// of the channels, all blocks receive all normalised channels through distributed shared memory, each takes its share of
// the hidden width, and the partial sums go to the block that owns the channel.
//
//   a        right operand of the projection
//   residual fetch(raw, row, column), values(raw, row, column, u, r): what is normalised, from the projection's u
//   normal   after(raw, row, column, x, mean, scale, value): the hidden layer's operand
//   hidden   fetch(raw, column), values(raw, column, u, v): an element of the hidden layer
//   e        fetch, finish: the output, from the sum of r and the last product

// The right operand: 8 x 8 core matrices whose lines of 16 bytes hold 8 tokens of one k.
template <int TOKENS>
__device__ __forceinline__ uint32 token_offset(uint32 k, uint32 token) {
    return k / 8 * (TOKENS * 16) + token / 8 * 128 + k % 8 * 16 + token % 8 * 2;
}
template <int TOKENS>
__device__ __forceinline__ uint64 token_matrices(uint32 address) {
    return (uint64)((address & 0x3ffff) >> 4) | ((uint64)TOKENS << 16) | ((uint64)(128 >> 4) << 32);
}

constexpr int largest_divisor(int of, int most) {
    int best = 1;
    for (int d = 1; d <= most; ++d) best = of % d == 0 ? d : best;
    return best;
}

// Brings TOKENS rows of the projection's operand into shared memory, by 8 warps: a quarter of a warp fills a core matrix.
template <int INNER, int TOKENS, int ROWS, bool PLAIN, class A>
__device__ __forceinline__ void stage_tokens(const A& a, unsigned char* tile, uint32 row0, uint32 warp, uint32 lane) {
    constexpr int ACROSS = TOKENS / 8, MATRICES = INNER / 8 * ACROSS, ROUNDS = (MATRICES + 31) / 32;
    // Groups along tokens hold some of one k; groups along k hold some of one token.
    constexpr int LOADS = 8 / A::width, MOST = PLAIN ? 8 : LOADS < 4 ? 4 : 2, BATCH = largest_divisor(ROUNDS, MOST);
#pragma unroll 1
    for (int first = 0; first < ROUNDS; first += BATCH) {
        uint32 raw[BATCH][LOADS][A::words + (A::words == 0)];
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const uint32 matrix = (first + i) * 32 + warp * 4 + lane / 8, some = matrix < MATRICES ? matrix : MATRICES - 1;
            const uint32 k = some / ACROSS * 8, token = some % ACROSS * 8;
#pragma unroll
            for (int l = 0; l < LOADS; ++l) {
                if constexpr (A::along_inner) a.fetch(raw[i][l], last_valid<ROWS, 1>(row0 + token + lane % 8), k + l * A::width);
                else a.fetch(raw[i][l], last_valid<ROWS, A::width>(row0 + token + l * A::width), k + lane % 8);
            }
        }
#pragma unroll
        for (int i = 0; i < BATCH; ++i) {
            const uint32 matrix = (first + i) * 32 + warp * 4 + lane / 8;
            if (MATRICES % 32 != 0 && matrix >= MATRICES) continue;
            const uint32 k = matrix / ACROSS * 8, token = matrix % ACROSS * 8;
            if constexpr (PLAIN) {
                *(uint4*)(tile + token_offset<TOKENS>(k + lane % 8, token)) = make_uint4(raw[i][0][0], raw[i][0][1], raw[i][0][2], raw[i][0][3]);
            } else {
                float y[8];
#pragma unroll
                for (int l = 0; l < LOADS; ++l) {
                    float value[A::width];
                    if constexpr (A::along_inner) a.values(raw[i][l], last_valid<ROWS, 1>(row0 + token + lane % 8), k + l * A::width, value);
                    else a.values(raw[i][l], last_valid<ROWS, A::width>(row0 + token + l * A::width), k + lane % 8, value);
#pragma unroll
                    for (int w = 0; w < A::width; ++w) y[l * A::width + w] = value[w];
                }
                if constexpr (A::along_inner) {
#pragma unroll
                    for (int j = 0; j < 8; ++j) *(half_bits*)(tile + token_offset<TOKENS>(k + j, token + lane % 8)) = to_half(y[j]);
                } else {
                    store_group((half_bits*)(tile + token_offset<TOKENS>(k + lane % 8, token)), y);
                }
            }
        }
    }
}

// Sums over the 8 lanes that hold other channels of the same tokens, with a value of each token that all of them know.
// Each step hands half of the tokens over while that is possible: of COUNT a thread keeps the first `sums_kept`, which
// begin with the `base`-th.
template <int COUNT, int DISTANCE, int ALL>
__device__ __forceinline__ void sum_over_channels(float (&sum)[ALL], float (&squares)[ALL], float (&known)[ALL], uint32 lane, uint32& base, bool& keeps) {
    constexpr int HALF = COUNT % 2 == 0 ? COUNT / 2 : COUNT;
    const bool upper = lane & DISTANCE;
#pragma unroll
    for (int i = 0; i < HALF; ++i) {
        if constexpr (HALF < COUNT) {
            const float sent = upper ? sum[i] : sum[i + HALF], also = upper ? squares[i] : squares[i + HALF];
            sum[i] = (upper ? sum[i + HALF] : sum[i]) + __shfl_xor_sync(0xffffffffu, sent, DISTANCE);
            squares[i] = (upper ? squares[i + HALF] : squares[i]) + __shfl_xor_sync(0xffffffffu, also, DISTANCE);
            known[i] = upper ? known[i + HALF] : known[i];
        } else {
            sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], DISTANCE);
            squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], DISTANCE);
        }
    }
    if constexpr (HALF < COUNT) base += upper ? HALF : 0;
    else keeps = keeps && !upper;
    if constexpr (DISTANCE > 4) sum_over_channels<HALF, DISTANCE / 2>(sum, squares, known, lane, base, keeps);
}
constexpr int sums_kept(int count, int steps) { return steps == 0 ? count : sums_kept(count % 2 == 0 ? count / 2 : count, steps - 1); }

template <class C, class A, class R, class N, class H, class E>
__device__ __forceinline__ void run_tail(const A& a, const half_bits* projection, const R& residual, const N& normal, const half_bits* up, const H& hidden, const half_bits* down, const E& e) {
    constexpr int WIDTH = C::width, TOKENS = C::tokens, SPLIT = C::split, STAGES = C::stages, ROUNDS = C::rounds;
    constexpr int TILES = WIDTH / 64, SLOTS = TILES / 2, OWN = TILES / SPLIT, K_PIECES = WIDTH / 128;
    constexpr int SHARE = ROUNDS * 128, GROUPS = TOKENS / 8, COUNT = TOKENS / 2;
    constexpr int K_STRIDE = TOKENS * 16, PIECE = 16384, HALF_LAYER = 128 * TOKENS * 2;
    // Where the pieces of the hidden layer and of the last product begin: the next round's hidden layer comes first.
    constexpr int FIRST_UP = OWN * K_PIECES, PER_ROUND = 2 * K_PIECES + TILES;
    static_assert(OWN == 1 || OWN == 2, "a warpgroup owns one tile of channels or none");
    extern __shared__ uint4 shared_memory[];
    unsigned char* shared = (unsigned char*)shared_memory;
    unsigned char* layer = shared + WIDTH * TOKENS * 2;
    unsigned char* stages = shared + C::stage_offset;
    float2* norms = (float2*)(shared + C::norm_offset);
    uint64* full = (uint64*)(shared + C::barrier_offset);
    uint64* empty = full + STAGES;
    uint64* statistics_full = empty + STAGES;
    uint64* normal_full = statistics_full + 1;
    uint64* ready = statistics_full + 2;
    uint64* pushed = statistics_full + 3;
    begin_next();
    const uint32 row0 = blockIdx.x / SPLIT * TOKENS, rank = blockIdx.x % SPLIT;
    if (threadIdx.x == 0) {
        for (int s = 0; s < STAGES; ++s) {
            barrier_init(full + s, 1);
            barrier_init(empty + s, 128);
        }
        barrier_init(statistics_full, 1);
        // Its own warps arrive, the other blocks send.
        barrier_init(normal_full, 1 + 4 * OWN);
        barrier_init(ready, SPLIT);
        barrier_init(pushed, 1);
        barriers_ready();
        barrier_expect(statistics_full, 4 * TILES * TOKENS * 8);
        barrier_expect(normal_full, (WIDTH - OWN * 64) * TOKENS * 2);
        if (SPLIT > 1) barrier_expect(pushed, (SPLIT - 1) * OWN * 64 * TOKENS * 4);
    }
    __syncthreads();
    if constexpr (SPLIT > 1) cluster_arrive();
    const uint32 warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
    if (warp >= 8) {
        shrink_registers<40>();
        if (warp == 8 && lane == 0) {
            int piece = 0;
            const auto bring = [&](const half_bits* from) {
                const uint32 s = piece % STAGES;
                if (piece >= STAGES) barrier_wait(empty + s, (piece / STAGES - 1) & 1);
                barrier_expect(full + s, PIECE);
                bulk_copy(stages + s * PIECE, from, PIECE, full + s);
                ++piece;
            };
            const auto bring_up = [&](int round) {
                for (int k = 0; k < K_PIECES; ++k)
                    for (int g = 0; g < 2; ++g) bring(up + ((rank * (SHARE / 64) + round * 2 + g) * (WIDTH / 8) + k * 16) * 512);
            };
            for (int k = 0; k < K_PIECES; ++k)
                for (int o = 0; o < OWN; ++o) bring(projection + ((rank * OWN + o) * (WIDTH / 8) + k * 16) * 512);
            bring_up(0);
            for (int round = 0; round < ROUNDS; ++round) {
                if (round + 1 < ROUNDS) bring_up(round + 1);
                for (int t = 0; t < TILES; ++t) bring(down + (t * (SPLIT * SHARE / 8) + (rank * SHARE + round * 128) / 8) * 512);
            }
        }
        __syncwarp();
        if constexpr (SPLIT > 1) cluster_wait();
        return;
    }
    grow_registers<232>();
    const uint32 group = warp / 4, operand = shared_address_of(shared), layer_at = shared_address_of(layer);
    // The tile of channels that this warpgroup owns, if it does, and where it sums it up.
    const uint32 own = OWN == 1 ? rank : rank * 2 + group, own_slot = own / 2;
    const bool owner = OWN > 1 || rank % 2 == group;
    const uint32 within = warp % 4 * 16 + lane / 4, channel = own * 64 + within, pair = lane % 4 * 2;
    const uint32 channels[2] = {channel, channel + 8};
    float d[SLOTS][COUNT], u[COUNT];
    // Pieces of a tile of a weight, one after the other; each is given back when its products are done, the last one by
    // the caller.
    const auto multiply = [&](uint32 first, uint32 step, uint32 right) {
#pragma unroll
        for (int k = 0; k < K_PIECES; ++k) {
            const uint32 piece = first + k * step, s = piece % STAGES, left = shared_address_of(stages + s * PIECE);
            barrier_wait(full + s, (piece / STAGES) & 1);
            products_begin();
#pragma unroll
            for (int i = 0; i < 8; ++i)
                C::product(u, core_matrices(left + i * 2048, 1024), token_matrices<TOKENS>(right + (k * 16 + 2 * i) * K_STRIDE), k + i > 0);
            products_commit();
            if (k > 0) {
                products_wait<1>();
                barrier_arrive(empty + (piece - step) % STAGES);
            }
        }
    };
    const auto give_back = [&](uint32 piece) { barrier_arrive(empty + piece % STAGES); };
    {
        uint32 of_column[2][R::words + (R::words == 0)], raw[R::quads ? 1 : COUNT][R::words + (R::words == 0)];
        uint32 quad[R::quads ? GROUPS : 1][R::row_words * 4 + (R::row_words == 0)];
        uint32 norm_words[2][N::words + (N::words == 0)];
        if (owner) {
#pragma unroll
            for (int c = 0; c < 2; ++c) {
                residual.fetch_columns(of_column[c], channels[c]);
                normal.fetch_columns(norm_words[c], channels[c]);
            }
            if constexpr (R::quads) {
                // Whole sectors: four channels of a token. They change places in shared memory.
#pragma unroll
                for (int j = 0; j < GROUPS; ++j)
                    residual.fetch_quad(quad[j], last_valid<C::rows, 1>(row0 + j * 8 + lane / 4), own * 64 + warp % 4 * 16 + pair * 2);
            } else {
#pragma unroll
                for (int i = 0; i < COUNT; ++i) {
#pragma unroll
                    for (int w = 0; w < R::words; ++w) raw[i][w] = of_column[i / 2 % 2][w];
                    residual.fetch(raw[i], last_valid<C::rows, 1>(row0 + i / 4 * 8 + pair + i % 2), channels[i / 2 % 2]);
                }
            }
        }
        wait_for_inputs();
        stage_tokens<WIDTH, TOKENS, C::rows, C::plain>(a, shared, row0, warp, lane);
        publish_to_tensor_cores();
        group_barrier(1, 256);
        if (owner) {
            const uint32 first = OWN == 1 ? 0 : group;
            multiply(first, OWN, operand);
            products_wait<0>();
            give_back(first + (K_PIECES - 1) * OWN);
            if constexpr (R::quads) {
                constexpr int PITCH = 20, ROOM = 384 * TOKENS / (8 * 32 * PITCH), PATCHES = ROOM < 1 ? 1 : ROOM < GROUPS ? ROOM : GROUPS;
                float* patch = (float*)(layer + 128 * TOKENS) + warp * (PATCHES * 8 * PITCH);
#pragma unroll
                for (int word = 0; word < R::row_words; ++word)
#pragma unroll
                    for (int begin = 0; begin < GROUPS; begin += PATCHES) {
                        __syncwarp();
#pragma unroll
                        for (int j = begin; j < begin + PATCHES && j < GROUPS; ++j)
                            *(uint4*)(patch + (j - begin) * 8 * PITCH + lane / 4 * PITCH + pair * 2) = make_uint4(quad[j][4 * word], quad[j][4 * word + 1], quad[j][4 * word + 2], quad[j][4 * word + 3]);
                        __syncwarp();
#pragma unroll
                        for (int j = begin; j < begin + PATCHES && j < GROUPS; ++j)
#pragma unroll
                            for (int i = 0; i < 4; ++i)
                                quad[j][4 * word + i] = __float_as_uint(patch[(j - begin) * 8 * PITCH + (pair + i % 2) * PITCH + lane / 4 + i / 2 * 8]);
                    }
            }
#pragma unroll
            for (int i = 0; i < COUNT; ++i) {
                const float in[1] = {u[i]};
                float out[1];
                uint32 words[R::words + (R::words == 0)];
                if constexpr (R::quads) {
                    uint32 own_words[R::row_words];
#pragma unroll
                    for (int w = 0; w < R::words; ++w) words[w] = of_column[i / 2 % 2][w];
#pragma unroll
                    for (int w = 0; w < R::row_words; ++w) own_words[w] = quad[i / 4][4 * w + i % 4];
                    residual.place(words, own_words);
                } else {
#pragma unroll
                    for (int w = 0; w < R::words; ++w) words[w] = raw[i][w];
                }
                residual.values(words, last_valid<C::rows, 1>(row0 + i / 4 * 8 + pair + i % 2), channels[i / 2 % 2], in, out);
                u[i] = out[0];
            }
        }
        if constexpr (SPLIT > 1) cluster_wait();
        float2* statistics = (float2*)layer;
        if (owner) {
            // Mean and sum of squares of 16 channels, from the distance to one of them: what is far from zero keeps its variance.
            float pivot[COUNT / 2], sum[COUNT / 2], squares[COUNT / 2];
#pragma unroll
            for (int i = 0; i < COUNT / 2; ++i) {
                const float x = u[i / 2 * 4 + i % 2], y = u[i / 2 * 4 + i % 2 + 2];
                pivot[i] = __shfl_sync(0xffffffffu, x, lane % 4);
                sum[i] = (x - pivot[i]) + (y - pivot[i]);
                squares[i] = fmaf(x - pivot[i], x - pivot[i], (y - pivot[i]) * (y - pivot[i]));
            }
            uint32 base = 0;
            bool keeps = true;
            sum_over_channels<COUNT / 2, 16>(sum, squares, pivot, lane, base, keeps);
            uint32 to[SPLIT], arrived[SPLIT];
#pragma unroll
            for (int r = 0; r < SPLIT; ++r) {
                to[r] = remote_address<SPLIT>(shared_address_of(statistics) + (own * 4 + warp % 4) * (TOKENS * 8), r);
                arrived[r] = remote_address<SPLIT>(shared_address_of(statistics_full), r);
            }
#pragma unroll
            for (int i = 0; i < sums_kept(COUNT / 2, 3); ++i) {
                const uint32 index = base + i, token = index / 2 * 8 + pair + index % 2;
                const float mean = fmaf(sum[i], 1.0f / 16.0f, pivot[i]), rest = fmaf(-sum[i] * (1.0f / 16.0f), sum[i], squares[i]);
                if (keeps) {
#pragma unroll
                    for (int r = 0; r < SPLIT; ++r) send(to[r] + token * 8, mean, rest, arrived[r]);
                }
            }
        }
        barrier_wait(statistics_full, 0);
        if (threadIdx.x < TOKENS) {
            float mean = 0.0f, rest = 0.0f, part[4 * TILES];
#pragma unroll
            for (int i = 0; i < 4 * TILES; ++i) {
                const float2 s = statistics[i * TOKENS + threadIdx.x];
                part[i] = s.x;
                mean += s.x;
                rest += s.y;
            }
            mean *= 1.0f / (4 * TILES);
#pragma unroll
            for (int i = 0; i < 4 * TILES; ++i) rest = fmaf(16.0f * (part[i] - mean), part[i] - mean, rest);
            norms[threadIdx.x] = make_float2(mean, __frsqrt_rn(fmaf(rest, 1.0f / WIDTH, N::eps)));
        }
        group_barrier(1, 256);
        if (owner) {
            // This many channels of this many tokens at a time: the tile of every block of the cluster receives them.
            uint32 to[SPLIT], arrived[SPLIT];
#pragma unroll
            for (int r = 0; r < SPLIT; ++r) {
                const uint32 other = (rank + r) % SPLIT;
                to[r] = remote_address<SPLIT>(operand + token_offset<TOKENS>(channel, pair), other);
                arrived[r] = remote_address<SPLIT>(shared_address_of(normal_full), other);
            }
            unsigned char* here = shared + token_offset<TOKENS>(channel, pair);
#pragma unroll
            for (int j = 0; j < GROUPS; ++j) {
                const float4 norm = *(const float4*)(norms + j * 8 + pair);
                float value[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float in[1] = {u[4 * j + i]};
                    float out[1];
                    uint32 words[N::words + (N::words == 0)];
#pragma unroll
                    for (int w = 0; w < N::words; ++w) words[w] = norm_words[i / 2][w];
                    normal.after(words, last_valid<C::rows, 1>(row0 + j * 8 + pair + i % 2), channels[i / 2], in, i % 2 ? norm.z : norm.x, i % 2 ? norm.w : norm.y, out);
                    value[i] = out[0];
                }
                const uint32 low = to_half2(value[0], value[1]), high = to_half2(value[2], value[3]);
                *(uint32*)(here + j * 128) = low;
                *(uint32*)(here + j * 128 + K_STRIDE) = high;
#pragma unroll
                for (int r = 1; r < SPLIT; ++r) {
                    send(to[r] + j * 128, low, arrived[r]);
                    send(to[r] + j * 128 + K_STRIDE, high, arrived[r]);
                }
            }
            publish_to_tensor_cores();
            __syncwarp();
            if (lane == 0) barrier_arrive(normal_full);
        }
#pragma unroll
        for (int s = 0; s < SLOTS; ++s)
#pragma unroll
            for (int i = 0; i < COUNT; ++i) d[s][i] = owner && own_slot == s ? u[i] : 0.0f;
        barrier_wait(normal_full, 0);
        publish_to_tensor_cores();
    }
    uint32 words[2][H::words + (H::words == 0)];
    const auto fetch_hidden = [&](int round) {
        const uint32 column = rank * SHARE + round * 128 + group * 64 + within;
        hidden.fetch(words[0], column);
        hidden.fetch(words[1], column + 8);
    };
    const auto activate = [&](int round, int from, int to_group) {
        const uint32 column = rank * SHARE + round * 128 + group * 64 + within;
        unsigned char* to = layer + (round + ROUNDS) % 2 * HALF_LAYER + token_offset<TOKENS>(group * 64 + within, pair);
#pragma unroll
        for (int j = from; j < to_group; ++j) {
            float v[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const float in[1] = {u[4 * j + i]};
                float out[1];
                hidden.values(words[i / 2], column + i / 2 * 8, in, out);
                v[i] = out[0];
            }
            *(uint32*)(to + j * 128) = to_half2(v[0], v[1]);
            *(uint32*)(to + j * 128 + K_STRIDE) = to_half2(v[2], v[3]);
        }
    };
    // Loads while products run need registers that wide tiles do not have.
    constexpr bool AHEAD = TOKENS <= 96;
    if (AHEAD) fetch_hidden(0);
    multiply(FIRST_UP + group, 2, operand);
    products_wait<0>();
    give_back(FIRST_UP + group + (K_PIECES - 1) * 2);
    if (!AHEAD) fetch_hidden(0);
    activate(0, 0, GROUPS);
    publish_to_tensor_cores();
    group_barrier(1, 256);
    const auto accumulate = [&](int round, int t, uint32 first) {
        const uint32 right = layer_at + (round + ROUNDS) % 2 * HALF_LAYER;
        const uint32 piece = first + 2 * t, s = piece % STAGES, left = shared_address_of(stages + s * PIECE);
        barrier_wait(full + s, (piece / STAGES) & 1);
        products_begin();
#pragma unroll
        for (int i = 0; i < 8; ++i) C::product(d[t], core_matrices(left + i * 2048, 1024), token_matrices<TOKENS>(right + 2 * i * K_STRIDE), 1);
        products_commit();
    };
#pragma unroll 1
    for (int round = 0; round + 1 < ROUNDS; ++round) {
        const uint32 next_up = FIRST_UP + 2 * K_PIECES + round * PER_ROUND + group, first_down = next_up + 2 * K_PIECES;
        if (AHEAD) fetch_hidden(round + 1);
        multiply(next_up, 2, operand);
        accumulate(round, 0, first_down);
        // The hidden layer of the next round is complete: its pieces make room for those of the last product.
        products_wait<1>();
        give_back(next_up + (K_PIECES - 1) * 2);
#pragma unroll
        for (int t = 1; t < SLOTS; ++t) accumulate(round, t, first_down);
        if (!AHEAD) fetch_hidden(round + 1);
        // Half way through the activation the first half of the last product is done.
        activate(round + 1, 0, GROUPS / 2);
        products_wait<SLOTS - 1>();
        give_back(first_down);
        activate(round + 1, GROUPS / 2, GROUPS);
        if constexpr (SLOTS > 1) {
            products_wait<0>();
            give_back(first_down + 2);
        }
        publish_to_tensor_cores();
        group_barrier(1, 256);
    }
    if (SPLIT > 1 && threadIdx.x == 0) {
        // Nothing reads the normalised rows and the other half of the layer any more: sums may arrive there.
#pragma unroll
        for (int r = 0; r < SPLIT; ++r) barrier_arrive_remote<SPLIT>(ready, r);
    }
#pragma unroll
    for (int t = 0; t < SLOTS; ++t) accumulate(ROUNDS - 1, t, FIRST_UP + 2 * K_PIECES + (ROUNDS - 1) * PER_ROUND + group);
    products_wait<0>();
    // Neither warpgroup reads weights any more.
    group_barrier(1, 256);
    if constexpr (SPLIT > 1) {
        barrier_wait(ready, 0);
#pragma unroll
        for (int t = 0; t < SLOTS; ++t) {
            const uint32 tile = 2 * t + group, to = tile / OWN, source = rank < to ? rank : rank - 1;
            if (to != rank) {
                const uint32 at = remote_address<SPLIT>(operand + (source * OWN + tile % OWN) * (GROUPS * 2048) + threadIdx.x % 128 * 16, to);
                const uint32 arrived = remote_address<SPLIT>(shared_address_of(pushed), to);
#pragma unroll
                for (int j = 0; j < GROUPS; ++j) send(at + j * 2048, d[t][4 * j], d[t][4 * j + 1], d[t][4 * j + 2], d[t][4 * j + 3], arrived);
            }
        }
    }
    if (!owner) return;
    // Four channels of a token lie in one thread for the result: they change places as the residual did, where the
    // weights have been.
    constexpr int PITCH = 20, PATCHES = GROUPS < 8 ? GROUPS : 8;
    float* patch = (float*)stages + warp * (PATCHES * 8 * PITCH);
    const uint32 first_channel = own * 64 + warp % 4 * 16 + pair * 2;
    uint32 end_words[E::words + (E::words == 0)];
    e.fetch_columns(end_words, first_channel);
#pragma unroll
    for (int i = 0; i < COUNT; ++i) u[i] = SLOTS == 1 || own_slot == 0 ? d[0][i] : d[SLOTS - 1][i];
    if constexpr (SPLIT > 1) barrier_wait(pushed, 0);
    const unsigned char* received = shared + (own % OWN) * (GROUPS * 2048) + threadIdx.x % 128 * 16;
#pragma unroll
    for (int begin = 0; begin < GROUPS; begin += PATCHES) {
        // Unknown to the compiler, which would keep the places in memory of all tokens in registers that sums need.
        uint32 first_row = row0;
        asm volatile("" : "+r"(first_row));
        __syncwarp();
#pragma unroll
        for (int j = begin; j < begin + PATCHES && j < GROUPS; ++j) {
#pragma unroll
            for (int source = 0; source < SPLIT - 1; ++source) {
                const float4 part = *(const float4*)(received + (source * OWN * GROUPS + j) * 2048);
                u[4 * j] += part.x; u[4 * j + 1] += part.y; u[4 * j + 2] += part.z; u[4 * j + 3] += part.w;
            }
#pragma unroll
            for (int i = 0; i < 4; ++i) patch[((j - begin) * 8 + pair + i % 2) * PITCH + lane / 4 + i / 2 * 8] = u[4 * j + i];
        }
        __syncwarp();
#pragma unroll
        for (int j = begin; j < begin + PATCHES && j < GROUPS; ++j) {
            const uint32 row = first_row + j * 8 + lane / 4;
            const float4 sum = *(const float4*)(patch + ((j - begin) * 8 + lane / 4) * PITCH + pair * 2);
            const float in[4] = {sum.x, sum.y, sum.z, sum.w};
            if (row >= C::rows) continue;
            uint32 raw[E::words + (E::words == 0)];
#pragma unroll
            for (int w = 0; w < E::words; ++w) raw[w] = end_words[w];
            e.fetch(raw, row, first_channel);
            e.finish(raw, row, first_channel, in);
        }
    }
}
