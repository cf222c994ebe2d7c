// Complex transforms in place in shared memory. Emitted before this file: POINTS, the points of a transform;
// ROW, the distance of two transforms in shared memory; SKEW, see padded(); THREADS of a block; TOGETHER, whether
// neighbouring lanes work on neighbouring transforms instead of neighbouring butterflies of one; `position_of`
// and `bin_at`, the order in which the forward transform leaves its bins. Emitted after it: the butterflies.
//
// The inverse transform runs the forward butterflies on numbers with real and imaginary part exchanged, which
// conjugates every root of unity.

// ---- complex arithmetic --------------------------------------------------------------------------

__device__ __forceinline__ float2 sum(float2 a, float2 b) { return make_float2(a.x + b.x, a.y + b.y); }
__device__ __forceinline__ float2 difference(float2 a, float2 b) { return make_float2(a.x - b.x, a.y - b.y); }
// a - i b and a + i b
__device__ __forceinline__ float2 sum_turned(float2 a, float2 b) { return make_float2(a.x + b.y, a.y - b.x); }
__device__ __forceinline__ float2 difference_turned(float2 a, float2 b) { return make_float2(a.x - b.y, a.y + b.x); }
__device__ __forceinline__ float2 turned(float2 a) { return make_float2(a.y, -a.x); }
__device__ __forceinline__ float2 negative(float2 a) { return make_float2(-a.x, -a.y); }
__device__ __forceinline__ float2 scaled(float c, float2 a) { return make_float2(c * a.x, c * a.y); }
__device__ __forceinline__ float2 accumulated(float c, float2 a, float2 b) {
    return make_float2(fmaf(c, a.x, b.x), fmaf(c, a.y, b.y));
}
__device__ __forceinline__ float2 rotated(float re, float im, float2 a) {
    return make_float2(fmaf(re, a.x, -im * a.y), fmaf(re, a.y, im * a.x));
}
__device__ __forceinline__ float2 exchanged(float2 a) { return make_float2(a.y, a.x); }

// 2 j / SIZE for j < SIZE <= 2^25, correctly rounded to an ulp: by one step of Newton where the division is not exact.
template <uint32 SIZE>
__device__ __forceinline__ float half_turns(uint32 j) {
    constexpr float HALF_TURN = 2.0f / (float)SIZE;
    const float angle = (float)j * HALF_TURN;
    if constexpr ((SIZE & (SIZE - 1)) == 0) return angle;
    return fmaf(fmaf(-angle, (float)SIZE, 2.0f * (float)j), 1.0f / (float)SIZE, angle);
}

// exp(-i pi a) for |a| <= 1/4, each part to 1.5 ulp of one.
__device__ __forceinline__ float2 root_near_one(float a) {
    const float z = a * a;
    const float sine = a * fmaf(fmaf(fmaf(-0.589076877f, z, 2.54976702f), z, -5.16770792f), z, 3.14159274f);
    const float cosine = fmaf(fmaf(fmaf(fmaf(0.232125863f, z, -1.33513784f), z, 4.05871058f), z, -4.93480206f), z, 1.0f);
    return make_float2(cosine, -sine);
}

// exp(-2 pi i j / SIZE) for j < SIZE / PARTS.
template <uint32 SIZE, uint32 PARTS = 1>
__device__ __forceinline__ float2 root(uint32 j) {
    const float angle = half_turns<SIZE>(j);
    if constexpr (PARTS >= 8) {
        return root_near_one(angle);
    } else if constexpr (PARTS >= 4) {
        // An eighth of a turn back and forth again.
        const float2 w = root_near_one(angle - 0.25f);
        return make_float2(0.707106781f * (w.x + w.y), 0.707106781f * (w.y - w.x));
    } else {
        float imaginary, real;
        sincospif(angle, &imaginary, &real);
        return make_float2(real, -imaginary);
    }
}

// v[q] *= exp(-2 pi i q j / SIZE) for j < SIZE / R, by powers of one root; of two, where powers are many.
template <int R, uint32 SIZE>
__device__ __forceinline__ void turn(float2 (&v)[R], uint32 j) {
    if constexpr (R > 1) {
        float2 power[4];
        power[0] = make_float2(1.0f, 0.0f);
        power[1] = root<SIZE, R>(j);
        if (R > 2) power[2] = complex_product(power[1], power[1]);
        if (R > 3) power[3] = complex_product(power[2], power[1]);
        float2 fourth = make_float2(1.0f, 0.0f);
        if constexpr (R >= 16) {
            fourth = root<SIZE, R / 4>(4 * j);
        } else if constexpr (R > 4) {
            fourth = complex_product(power[2], power[2]);
        }
        float2 fourths = fourth;
#pragma unroll
        for (int q = 1; q < R; ++q) {
            if (q < 4) {
                v[q] = complex_product(v[q], power[q]);
            } else {
                if (q % 4 == 0 && q > 4) fourths = complex_product(fourths, fourth);
                v[q] = complex_product(v[q], q % 4 == 0 ? fourths : complex_product(fourths, power[q % 4]));
            }
        }
    }
}

// ---- pairs of entries ----------------------------------------------------------------------------

__device__ __forceinline__ float2 load_pair(const float* p) { return *(const float2*)p; }
__device__ __forceinline__ float2 load_pair(const half_bits* p) {
    const uint32 pair = *(const uint32*)p;
    return make_float2(from_half((half_bits)pair), from_half((half_bits)(pair >> 16)));
}
__device__ __forceinline__ void store_pair(float* p, float a, float b) { *(float2*)p = make_float2(a, b); }
__device__ __forceinline__ void store_pair(half_bits* p, float a, float b) { *(uint32*)p = to_half2(a, b); }

// ---- places --------------------------------------------------------------------------------------

// Place of a position within its row. One place in 16 and one in 2^SKEW is skipped against bank conflicts.
__device__ constexpr __forceinline__ uint32 padded(uint32 position) {
    return position + (position >> 4) + (SKEW < 31 ? position >> SKEW : 0u);
}

// Where butterfly operand `q` of a stage lies: positions that share no bit are padded independently.
template <int R, uint32 M>
__device__ __forceinline__ uint32 place(uint32 base, uint32 q) {
    constexpr bool POWERS = (M & (M - 1)) == 0 && (R & (R - 1)) == 0;
    return POWERS ? padded(base) + padded(q * M) : padded(base + q * M);
}

// Shared memory as source and destination of a stage.
template <int R, uint32 M>
struct Shared {
    float2* memory;
    __device__ __forceinline__ float2 operator()(uint32 row, uint32 base, uint32 q) const {
        return memory[row * ROW + place<R, M>(base, q)];
    }
    __device__ __forceinline__ void operator()(uint32 row, uint32 base, uint32 q, float2 value) const {
        memory[row * ROW + place<R, M>(base, q)] = value;
    }
};

// A source that is asked for position `base + q M` only below FILLED and yields zero beyond.
template <uint32 M, uint32 FILLED, class F>
struct Source {
    F f;
    __device__ __forceinline__ float2 operator()(uint32 row, uint32 base, uint32 q) const {
        const uint32 position = base + q * M;
        if ((q + 1) * M <= FILLED) return f(row, position);
        // Clamped instead of skipped: loads without branches overlap.
        const float2 value = f(row, position < FILLED ? position : FILLED - 1);
        return position < FILLED ? value : make_float2(0.0f, 0.0f);
    }
};
template <uint32 M, uint32 FILLED, class F>
__device__ __forceinline__ Source<M, FILLED, F> source(F f) {
    return Source<M, FILLED, F>{f};
}

// A destination that is given position `base + q M` only below WANTED.
template <uint32 M, uint32 WANTED, class F>
struct Destination {
    F f;
    __device__ __forceinline__ void operator()(uint32 row, uint32 base, uint32 q, float2 value) const {
        const uint32 position = base + q * M;
        if (q * M >= WANTED) return;
        if ((q + 1) * M <= WANTED || position < WANTED) f(row, position, value);
    }
};
template <uint32 M, uint32 WANTED, class F>
__device__ __forceinline__ Destination<M, WANTED, F> destination(F f) {
    return Destination<M, WANTED, F>{f};
}

// ---- stages --------------------------------------------------------------------------------------

// The transform of R points of which those from FILLED on are zero.
template <int R, int FILLED>
struct Dft;

// The roots of unity between two stages.
template <int R, uint32 M>
struct Turn {
    __device__ __forceinline__ void operator()(float2 (&v)[R], uint32, uint32, uint32 j) const {
        if constexpr (M > 1) turn<R, R * M>(v, j);
    }
};
struct Leave {
    template <int R>
    __device__ __forceinline__ void operator()(float2 (&)[R], uint32, uint32, uint32) const {}
};

// One stage of ROWS transforms: butterflies of R points M apart, `before` and `after` on their operands
// (row, base position, base modulo M). Each butterfly reads all of its places before it writes them.
template <int R, int FILLED, uint32 M, uint32 ROWS, class Load, class Before, class After, class Store>
__device__ __forceinline__ void stage(Load load, Before before, After after, Store store) {
    constexpr uint32 EACH = POINTS / R;
#pragma unroll 1
    for (uint32 i = threadIdx.x; i < ROWS * EACH; i += THREADS) {
        const uint32 row = TOGETHER ? i % ROWS : i / EACH;
        const uint32 butterfly = TOGETHER ? i / ROWS : i % EACH;
        const uint32 j = butterfly % M;
        const uint32 base = butterfly / M * (R * M) + j;
        float2 v[R];
#pragma unroll
        for (int q = 0; q < R; ++q) {
            v[q] = q < FILLED ? load(row, base, q) : make_float2(0.0f, 0.0f);
        }
        before(v, row, base, j);
        Dft<R, FILLED>::run(v);
        after(v, row, base, j);
#pragma unroll
        for (int q = 0; q < R; ++q) store(row, base, q, v[q]);
    }
}

// ---- real transforms -----------------------------------------------------------------------------

// Bin k and bin N - k of a spectrum or of a complex transform of N points.
struct Bins {
    float2 bin, mirror;
};

// A real signal x of 2 N points is transformed as z_j = x_2j + i x_2j+1: from bins k and N - k of z (both 0 for
// k = 0) to bins k and N - k of x. `w` is exp(-pi i k / N).
__device__ __forceinline__ Bins real_bins(float2 z, float2 m, float2 w) {
    const float2 even = make_float2(0.5f * (z.x + m.x), 0.5f * (z.y - m.y));
    const float2 odd = make_float2(0.5f * (z.y + m.y), 0.5f * (m.x - z.x));
    const float2 t = complex_product(w, odd);
    return Bins{make_float2(even.x + t.x, even.y + t.y), make_float2(even.x - t.x, t.y - even.y)};
}

// Back from bins k and N - k of x to those of z, times 2 `scale`, parts exchanged for the inverse transform. `edge`
// says that k = 0, where the bins of a real signal have no imaginary part.
__device__ __forceinline__ Bins complex_bins(float2 x, float2 m, float2 w, float scale, bool edge) {
    if (edge) x.y = m.y = 0.0f;
    const float2 even = make_float2(scale * (x.x + m.x), scale * (x.y - m.y));
    const float2 half = make_float2(scale * (x.x - m.x), scale * (x.y + m.y));
    const float2 odd = make_float2(fmaf(half.x, w.x, half.y * w.y), fmaf(half.y, w.x, -half.x * w.y));
    // z_k = even + i odd, z_(N-k) = conj(even - i odd)
    return Bins{make_float2(even.y + odd.x, even.x - odd.y), make_float2(odd.x - even.y, even.x + odd.y)};
}
