// Device half of the family `network`. Needs matrix.cuh.
//
// Products are transposed: a layer's weights are the left operand, 16 columns of the layer by 16 k, and live in
// registers; the activations of 8 positions are the right operand and go through shared memory. Values in full
// precision are split, x = high + 2^-11 low, both f16: 22 bits of mantissa for |x| from 2^-14 to 65504, an absolute
// error of 2^-36 below.
//
// A step of 16 k and an octet of positions is four matrices of 8 k by 8 positions: high parts of k with k % 4 < 2,
// then of the others, then the low parts. Within a matrix the rows are in order of k; those of every second matrix
// are swapped in halves, so that neither ldmatrix nor the stores of a fragment meet bank conflicts. A thread's four
// k of a step are then adjacent in memory: 4 lane % 4 and the three behind it.

#define LOW_SCALE 2048.0f

// x, of which the compiler knows nothing: what is computed from it in a loop is not kept in registers from turn to turn.
__device__ __forceinline__ uint32 opaque(uint32 x) {
    asm volatile("" : "+r"(x));
    return x;
}

// Byte offset of the high part of k at a position, for tiles of OCTETS times 8 positions.
template <int OCTETS>
__device__ __forceinline__ uint32 activation_offset(uint32 k, uint32 position) {
    const uint32 step = k / 16, half = k / 2 % 2, row = k % 16 / 4 * 2 + k % 2;
    return (((step * OCTETS + position / 8) * 4 + half) * 8 + (row ^ (half * 4))) * 16 + position % 8 * 2;
}

__device__ __forceinline__ float low_part(float x, float high) { return (x - high) * LOW_SCALE; }
__device__ __forceinline__ void split_pair(float x, float y, uint32& high, uint32& low) {
    high = to_half2(x, y);
    low = to_half2(low_part(x, from_half((half_bits)high)), low_part(y, from_half((half_bits)(high >> 16))));
}

// One element of the first layer's operand.
template <int OCTETS>
__device__ __forceinline__ void store_operand(void* tile, uint32 k, uint32 position, float x) {
    half_bits* to = (half_bits*)((char*)tile + activation_offset<OCTETS>(k, position));
    const half_bits high = to_half(x);
    to[0] = high;
    to[128] = to_half(low_part(x, from_half(high)));
}

// ---- weights -------------------------------------------------------------------------------------
//
// w[tile][step] holds for the rows lane / 4 and lane / 4 + 8 of a tile of 16 columns the four k of this lane: first as
// they are in memory, then as the fragments of their high and low parts.

template <int COLUMNS, int INNER, int TILES, int STEPS>
__device__ __forceinline__ void load_weights(uint32 (&w)[TILES][STEPS][8], const float* __restrict__ from, uint32 first, uint32 lane) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32 n = first + tile * 16 + half * 8 + lane / 4, k = step * 16 + lane % 4 * 4;
                uint32* to = w[tile][step] + half * 4;
                if constexpr (INNER % 4 == 0) {
                    uint4 four = make_uint4(0u, 0u, 0u, 0u);
                    if (n < COLUMNS && k < INNER) four = __ldg((const uint4*)(from + n * INNER + k));
                    to[0] = four.x; to[1] = four.y; to[2] = four.z; to[3] = four.w;
                } else {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        to[i] = 0u;
                        if (n < COLUMNS && k + i < INNER) to[i] = __ldg((const uint32*)(from + n * INNER + k + i));
                    }
                }
            }
}
template <int COLUMNS, int INNER, int TILES, int STEPS>
__device__ __forceinline__ void load_weights(uint32 (&w)[TILES][STEPS][8], const half_bits* __restrict__ from, uint32 first, uint32 lane) {
#pragma unroll
    for (int step = 0; step < STEPS; ++step)
#pragma unroll
        for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32 n = first + tile * 16 + half * 8 + lane / 4, k = step * 16 + lane % 4 * 4;
                // Rows of f16 begin at multiples of 16 bytes.
                constexpr uint32 PITCH = (INNER + 7) / 8 * 8;
                uint32* to = w[tile][step] + half * 4;
                if constexpr (INNER % 4 == 0) {
                    uint2 four = make_uint2(0u, 0u);
                    if (n < COLUMNS && k < INNER) four = __ldg((const uint2*)(from + n * PITCH + k));
                    to[0] = four.x; to[1] = four.y;
                } else {
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        uint32 low = 0u, high = 0u;
                        if (n < COLUMNS && k + 2 * i < INNER) low = __ldg(from + n * PITCH + k + 2 * i);
                        if (n < COLUMNS && k + 2 * i + 1 < INNER) high = __ldg(from + n * PITCH + k + 2 * i + 1);
                        to[i] = low | high << 16;
                    }
                }
            }
}

// From what was loaded to fragments: of f32 into both parts (SPLIT) or rounded, of f16 as they are.
template <bool SPLIT, bool STORED_F16, int TILES, int STEPS>
__device__ __forceinline__ void make_fragments(uint32 (&w)[TILES][STEPS][8]) {
#pragma unroll
    for (int tile = 0; tile < TILES; ++tile)
#pragma unroll
        for (int step = 0; step < STEPS; ++step) {
            uint32 (&x)[8] = w[tile][step];
            if constexpr (STORED_F16) {
                const uint32 second = x[1];
                x[1] = x[4]; x[2] = second; x[3] = x[5];
            } else {
                uint32 high[4], low[4];
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    // Fragment i: row i % 2 of the pair, the first or the last two of its four k.
                    const int at = i % 2 * 4 + i / 2 * 2;
                    const float a = __uint_as_float(x[at]), b = __uint_as_float(x[at + 1]);
                    if constexpr (SPLIT) split_pair(a, b, high[i], low[i]);
                    else high[i] = to_half2(a, b);
                }
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    x[i] = high[i];
                    if constexpr (SPLIT) x[4 + i] = low[i];
                }
            }
        }
}

// ---- layers --------------------------------------------------------------------------------------

// Sums of PART octets of positions, beginning at `tile` (a shared address), for all columns of the warp: element i of
// sum[octet][tile] is column lane / 4 + i / 2 * 8 of the tile at position 2 (lane % 4) + i % 2 of the octet. In full
// precision the three large products are taken; steps are added up outside the tensor core, whose
// accumulator truncates.
template <bool SPLIT, int OCTETS, int PART, int TILES, int STEPS>
__device__ __forceinline__ void multiply_layer(float (&sum)[PART][TILES][4], const uint32 (&w)[TILES][STEPS][8], uint32 tile, uint32 lane) {
    const uint32 address = tile + lane / 8 * 128 + (lane % 8 ^ lane / 8 % 2 * 4) * 16;
#pragma unroll
    for (int octet = 0; octet < PART; ++octet) {
        uint32 b[STEPS][4];
#pragma unroll
        for (int step = 0; step < STEPS; ++step) load_matrices_transposed(b[step], address + (step * OCTETS + octet) * 512);
#pragma unroll
        for (int t = 0; t < TILES; ++t) {
            float (&total)[4] = sum[octet][t];
            float left[4] = {0.0f, 0.0f, 0.0f, 0.0f}, right[4] = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll
            for (int i = 0; i < 4; ++i) total[i] = 0.0f;
#pragma unroll
            for (int step = 0; step < STEPS; ++step) {
                const uint32 high[4] = {w[t][step][0], w[t][step][1], w[t][step][2], w[t][step][3]};
                const uint32 b_high[2] = {b[step][0], b[step][1]};
                if constexpr (SPLIT) {
                    const uint32 low[4] = {w[t][step][4], w[t][step][5], w[t][step][6], w[t][step][7]};
                    const uint32 b_low[2] = {b[step][2], b[step][3]};
                    float part[4] = {0.0f, 0.0f, 0.0f, 0.0f};
                    multiply_f16(part, high, b_high);
                    multiply_f16(left, low, b_high);
                    multiply_f16(right, high, b_low);
#pragma unroll
                    for (int i = 0; i < 4; ++i) total[i] += part[i];
                } else {
                    multiply_f16(total, high, b_high);
                }
            }
            if constexpr (SPLIT) {
#pragma unroll
                for (int i = 0; i < 4; ++i) total[i] = fmaf(left[i] + right[i], 1.0f / LOW_SCALE, total[i]);
            }
        }
    }
}

struct any_sine {
    __device__ __forceinline__ float operator()(float x) const { return sine(x); }
};
struct sine_if_near {
    bool& far;
    __device__ __forceinline__ float operator()(float x) const { return near_sine(x, far); }
};

template <int ROWS, int COLUMNS, int PART, int TILES, int HELD, class Sine, class Function>
__device__ __forceinline__ void apply_with(float (&y)[PART][TILES][4], const float (&x)[PART][TILES][4], const float (&held)[TILES][2][HELD],
                                           uint32 row, uint32 column, uint32 lane, const Sine& sine_of, const Function& f) {
#pragma unroll
    for (int octet = 0; octet < PART; ++octet)
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32 r = row + octet * 8 + lane % 4 * 2 + i % 2, n = column + t * 16 + i / 2 * 8 + lane / 4;
                y[octet][t][i] = f(sine_of, x[octet][t][i], held[t][i / 2], r < ROWS ? r : ROWS - 1, n < COLUMNS ? n : COLUMNS - 1);
            }
}
// Applies `f(sine, sum, held, row, n)` to every element, with what the lane holds of its columns. Sines are taken
// without a branch, so that those of several elements overlap; where one argument is too far for that, all are
// taken again.
template <int ROWS, int COLUMNS, int PART, int TILES, int HELD, class Function>
__device__ __forceinline__ void apply(float (&x)[PART][TILES][4], const float (&held)[TILES][2][HELD], uint32 row, uint32 column, uint32 lane, const Function& f) {
    float y[PART][TILES][4];
    bool far = false;
    apply_with<ROWS, COLUMNS>(y, x, held, row, column, lane, sine_if_near{far}, f);
    if (__builtin_expect(far, false)) apply_with<ROWS, COLUMNS>(y, x, held, row, column, lane, any_sine{}, f);
#pragma unroll
    for (int octet = 0; octet < PART; ++octet)
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int i = 0; i < 4; ++i) x[octet][t][i] = y[octet][t][i];
}

// Stores elements as the operand of the next layer; `tile` points at the first octet.
template <bool SPLIT, int OCTETS, int PART, int TILES>
__device__ __forceinline__ void store_layer(const float (&x)[PART][TILES][4], uint32 tile, uint32 column, uint32 lane) {
#pragma unroll
    for (int octet = 0; octet < PART; ++octet)
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32 k = column + t * 16 + half * 8 + lane / 4;
                const uint32 to = tile + activation_offset<OCTETS>(k, octet * 8 + lane % 4 * 2);
                const float a = x[octet][t][half * 2], b = x[octet][t][half * 2 + 1];
                if constexpr (SPLIT) {
                    uint32 high, low;
                    split_pair(a, b, high, low);
                    store_shared_word(to, high);
                    store_shared_word(to + 256, low);
                } else {
                    store_shared_word(to, to_half2(a, b));
                }
            }
}

// ---- the result ----------------------------------------------------------------------------------

__device__ __forceinline__ void put(float* to, float x) { *to = x; }
__device__ __forceinline__ void put(half_bits* to, float x) { *to = to_half(x); }
__device__ __forceinline__ void put_pair(float* to, float x, float y) { *(float2*)to = make_float2(x, y); }
__device__ __forceinline__ void put_pair(half_bits* to, float x, float y) { *(uint32*)to = to_half2(x, y); }

// Into a tile of [column][position], or of [position][column], in the order of the output; `column` and `position` are
// the warp's first.
template <bool ALONG_POSITIONS, int PITCH, class Element, int PART, int TILES>
__device__ __forceinline__ void stage_result(const float (&x)[PART][TILES][4], Element* tile, uint32 position, uint32 column, uint32 lane) {
#pragma unroll
    for (int octet = 0; octet < PART; ++octet)
#pragma unroll
        for (int t = 0; t < TILES; ++t)
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint32 n = column + t * 16 + half * 8 + lane / 4, p = position + octet * 8 + lane % 4 * 2;
                const float a = x[octet][t][half * 2], b = x[octet][t][half * 2 + 1];
                if constexpr (ALONG_POSITIONS) {
                    put_pair(tile + n * PITCH + p, a, b);
                } else {
                    put(tile + p * PITCH + n, a);
                    put(tile + (p + 1) * PITCH + n, b);
                }
            }
}
