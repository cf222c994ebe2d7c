// Shared by every kernel of a plan. Includes nothing, so that NVRTC needs no headers.

typedef unsigned short half_bits;  // a binary16 as its bits
typedef unsigned int uint32;
typedef unsigned long long uint64;

// ---- formats -------------------------------------------------------------------------------------

__device__ __forceinline__ half_bits to_half(float x) {
    half_bits h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}
__device__ __forceinline__ float from_half(half_bits h) {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}
// Two binary16 in one register, `low` in the low half.
__device__ __forceinline__ uint32 to_half2(float low, float high) {
    uint32 pair;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}
// The bits of x with the mantissa rounded to 10 bits, to nearest even; infinities and NaN stay.
__device__ __forceinline__ float round_tf32(float x) {
    uint32 bits = __float_as_uint(x);
    uint32 rounded = bits + 0x0fffu + ((bits >> 13) & 1u);
    bits = (bits & 0x7f800000u) == 0x7f800000u ? bits : rounded & 0xffffe000u;
    return __uint_as_float(bits);
}

__device__ __forceinline__ float load_f32(const float* p) { return *p; }
__device__ __forceinline__ float load_f16(const half_bits* p) { return from_half(*p); }
__device__ __forceinline__ float2 load_c64(const float2* p) { return *p; }

// ---- overlapping launches ------------------------------------------------------------------------

// Lets the launches that depend on this one begin as soon as all blocks have come here; they wait themselves.
__device__ __forceinline__ void begin_next() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the launches that this one depends on have ended, where it began before that. Every block comes here
// before it writes anything that outlives it.
__device__ __forceinline__ void wait_for_inputs() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// ---- scalar functions ----------------------------------------------------------------------------

// Sine of r + quadrant pi / 2, |r| at most about pi / 4.
__device__ __forceinline__ float sine_in_quadrant(float r, uint32 quadrant) {
    float z = r * r;
    float sin_r = fmaf(fmaf(fmaf(fmaf(2.7525562e-06f, z, -1.9840874e-04f), z, 8.3333310e-03f), z, -1.6666667e-01f) * z, r, r);
    float cos_r = fmaf(fmaf(fmaf(fmaf(2.4433157e-05f, z, -1.3887316e-03f), z, 4.1666646e-02f), z, -0.5f), z, 1.0f);
    float value = (quadrant & 1) ? cos_r : sin_r;
    return (quadrant & 2) ? -value : value;
}

// Sine to about one unit in the last place where |x| is at most 32768: three-term Cody-Waite reduction, no branch.
// Beyond, `far` becomes true and the value means nothing. Adding 1.5 * 2^23 rounds the quotient to an integer, whose
// low bits are then those of the sum.
__device__ __forceinline__ float near_sine(float x, bool& far) {
    float shifted = fmaf(x, 0.636619772367581343f, 12582912.0f);
    float k = shifted - 12582912.0f;
    float r = fmaf(k, -1.5707962513e+00f, x);
    r = fmaf(k, -7.5497894159e-08f, r);
    r = fmaf(k, -5.3903029534e-15f, r);
    far = far || fabsf(x) > 32768.0f;
    return sine_in_quadrant(r, __float_as_uint(shifted));
}

// Sine to about one unit in the last place for every finite argument, without a stack frame: reduced in double
// precision where near_sine ends.
__device__ __forceinline__ float sine(float x) {
    bool far = false;
    float value = near_sine(x, far);
    if (far) {
        double d = (double)x;
        double q = rint(d * 0.63661977236758134308);
        double s = fma(q, -1.57079632679489655800, d);
        s = fma(q, -6.12323399573676603587e-17, s);
        value = sine_in_quadrant((float)s, (uint32)(int)(q - 4.0 * floor(0.25 * q)));
    }
    return value;
}

// x / 2 (1 + tanh(y)) = x / (1 + exp(-2 y)), y = sqrt(2 / pi) (x + 0.044715 x^3).
__device__ __forceinline__ float gelu_tanh(float x) {
    float y = 0.7978845608028654f * fmaf(0.044715f * x * x, x, x);
    return __fdividef(x, 1.0f + __expf(-2.0f * y));
}

// The same for a result that is rounded to binary16: the hardware's hyperbolic tangent is good to 11 bits.
__device__ __forceinline__ float gelu_tanh_f16(float x) {
    float t, y = x * fmaf(0.044715f * 0.7978845608028654f * x, x, 0.7978845608028654f);
    asm("tanh.approx.f32 %0, %1;" : "=f"(t) : "f"(y));
    const float half = 0.5f * x;
    return fmaf(half, t, half);
}

// Column `column` of row `row` of the positional embedding. Divisions are by constants, folded by the compiler;
// angles are reduced in double, since the filter network amplifies their error.
template <uint32 POSITIONS, uint32 BANDS>
__device__ __forceinline__ float positional_embedding(uint32 row, uint32 column) {
    constexpr double spacing = POSITIONS > 1 ? 1.0 / (double)(POSITIONS > 1 ? POSITIONS - 1 : 1) : 0.0;
    constexpr double step = BANDS > 1 ? ((double)(BANDS - 1) - 1e-4) / (double)(BANDS > 1 ? BANDS - 1 : 1) : 0.0;
    if (column == 0) return (float)((double)row * spacing);
    uint32 band = column <= BANDS ? column - 1 : column - 1 - BANDS;
    double turns = (double)row * ((1e-4 + (double)band * step) * (1.0 / (double)POSITIONS));
    float angle = 2.0f * (float)(turns - rint(turns));
    return column <= BANDS ? cospif(angle) : -sinpif(angle);
}

__device__ __forceinline__ float2 complex_product(float2 a, float2 b) {
    return make_float2(fmaf(a.x, b.x, -a.y * b.y), fmaf(a.x, b.y, a.y * b.x));
}
