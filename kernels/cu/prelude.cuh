// What every file of kernels begins with: types, bfloat16 without headers, functions with fixed
// bits, and sums over a warp.
//
// Multiply-adds are fused where `fmaf` is written and nowhere else, and no function of the math
// library is called whose last bit is not fixed by a device. Where activations are bfloat16, exponentials
// of activations and of the head are the hardware's, which a model of device fixes.
//
// The same text is compiled for processors by the tests (`tests/emulated/`): what is not plain C++
// stands behind a function or a macro here.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define WARP 32
#define ALL_LANES 0xffffffffu

#ifndef EMULATED
#define KERNEL extern "C" __global__ void
#define DEVICE __device__ __forceinline__
#define SHARED(type, name, count) __shared__ type name[count]
// Shared memory whose size the launch says.
#define DYNAMIC_SHARED(type, name)                              \
    extern __shared__ __align__(16) unsigned char shared_raw[]; \
    type *name = reinterpret_cast<type *>(shared_raw)
#endif

#ifndef EMULATED
DEVICE u64 device_clock_ns() {
    u64 ns;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns));
    return ns;
}
#endif

// A bfloat16 in memory.
struct bf16 {
    u16 bits;
};

DEVICE float to_float(float x) { return x; }

DEVICE float to_float(bf16 x) { return __uint_as_float(u32(x.bits) << 16); }

// To the nearest, ties to even; a NaN stays one.
DEVICE u32 bf16_bits(float x) {
    const u32 bits = __float_as_uint(x);
    const u32 rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return (bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded;
}

template <typename T>
struct As;

template <>
struct As<float> {
    static DEVICE float from(float x) { return x; }
};

template <>
struct As<bf16> {
    static DEVICE bf16 from(float x) {
        bf16 y;
        y.bits = u16(bf16_bits(x));
        return y;
    }
};

#if ROW_IS_BF16
typedef bf16 row_t;
#else
typedef float row_t;
#endif

// Rounded to the type of activations, as a number to go on with.
DEVICE float rounded(float x) { return to_float(As<row_t>::from(x)); }

// Four neighbours. Their address may be anything: where it allows, they move as one.
struct Four {
    float x[4];
};

// Whether four neighbours at an address move as one.
DEVICE bool is_aligned(const float *at) { return (u64(at) & 15) == 0; }

DEVICE bool is_aligned(const bf16 *at) { return (u64(at) & 7) == 0; }

DEVICE Four load_whole(const float *from) {
    Four four;
    const float4 whole = *reinterpret_cast<const float4 *>(from);
    four.x[0] = whole.x, four.x[1] = whole.y, four.x[2] = whole.z, four.x[3] = whole.w;
    return four;
}

DEVICE Four load_whole(const bf16 *from) {
    Four four;
    const uint2 whole = *reinterpret_cast<const uint2 *>(from);
    four.x[0] = __uint_as_float(whole.x << 16);
    four.x[1] = __uint_as_float(whole.x & 0xffff0000u);
    four.x[2] = __uint_as_float(whole.y << 16);
    four.x[3] = __uint_as_float(whole.y & 0xffff0000u);
    return four;
}

DEVICE Four load_four(const float *from, u32 count) {
    if (count == 4 && is_aligned(from)) return load_whole(from);
    Four four;
    for (u32 i = 0; i < 4; ++i) four.x[i] = i < count ? from[i] : 0.0f;
    return four;
}

DEVICE Four load_four(const bf16 *from, u32 count) {
    if (count == 4 && is_aligned(from)) return load_whole(from);
    Four four;
    for (u32 i = 0; i < 4; ++i) four.x[i] = i < count ? to_float(from[i]) : 0.0f;
    return four;
}

// The same in a loop over a row. Where every load is WHOLE there is no branch between them, so that
// several are under way together.
template <bool WHOLE, typename T>
DEVICE Four load_part(const T *from, u32 count) {
    if (WHOLE) return load_whole(from);
    return load_four(from, count);
}

DEVICE void store_four(float *to, const Four &four, u32 count) {
    if (count == 4 && is_aligned(to)) {
        *reinterpret_cast<float4 *>(to) =
            make_float4(four.x[0], four.x[1], four.x[2], four.x[3]);
        return;
    }
    for (u32 i = 0; i < 4; ++i)
        if (i < count) to[i] = four.x[i];
}

DEVICE void store_four(bf16 *to, const Four &four, u32 count) {
    if (count == 4 && is_aligned(to)) {
        const u32 low = bf16_bits(four.x[0]) | bf16_bits(four.x[1]) << 16;
        const u32 high = bf16_bits(four.x[2]) | bf16_bits(four.x[3]) << 16;
        *reinterpret_cast<uint2 *>(to) = make_uint2(low, high);
        return;
    }
    for (u32 i = 0; i < 4; ++i)
        if (i < count) to[i] = As<bf16>::from(four.x[i]);
}

// How many of four elements from `at` on lie before `end`.
DEVICE u32 within(u64 at, u64 end) { return at >= end ? 0 : end - at < 4 ? u32(end - at) : 4; }

// The index of this thread in the grid.
DEVICE u64 thread_index() { return u64(blockIdx.x) * blockDim.x + threadIdx.x; }

// Four neighbours a thread: `here` of them begin at `at`.
#define FOUR(count) \
    const u64 at = thread_index() * 4; \
    const u32 here = within(at, count); \
    if (here == 0) return

// A sum over the lanes of a warp, in all of them: halves are added to halves.
DEVICE float warp_sum(float x) {
    for (u32 step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

DEVICE double warp_sum(double x) {
    for (u32 step = WARP / 2; step > 0; step /= 2) x += __shfl_xor_sync(ALL_LANES, x, step);
    return x;
}

DEVICE float warp_max(float x) {
    for (u32 step = WARP / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, step));
    return x;
}

// e^x by the polynomial that processors use (`kernels/src/cpu/math.rs`): relative error below
// 2e-7, zero below -87.34, about 2.4e38 above 88.37; a NaN stays one.
DEVICE float fixed_exp(float x) {
    const float clamped = fminf(88.37626f, fmaxf(-87.33654f, x));
    const float n = rintf(clamped * 1.44269504f);
    float r = fmaf(n, -355.0f / 512.0f, clamped);
    r = fmaf(n, 2.1219444e-4f, r);
    float p = 1.9875691e-4f;
    p = fmaf(p, r, 1.3981999e-3f);
    p = fmaf(p, r, 8.333452e-3f);
    p = fmaf(p, r, 4.1665796e-2f);
    p = fmaf(p, r, 1.6666665e-1f);
    p = fmaf(p, r, 0.5f);
    p = fmaf(p, r * r, r) + 1.0f;
    const float power = __uint_as_float(u32(int(n) + 127) << 23);
    if (x < -87.33654f) return 0.0f;
    return x == x ? p * power : x;
}

#define LOG2_E 1.44269504f

#ifndef EMULATED
// Within two units of the last place (PTX ISA, ex2).
DEVICE float fast_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Within one unit of the last place (PTX ISA, rcp).
DEVICE float fast_inverse(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}
#endif

// e^x and 1 / x of activations, and of logits, which are rounded as such: for bfloat16 the polynomial's last
// bits are worth nothing, and computing them takes longer than moving the operands does. Beyond what
// `fixed_exp` is cut at the hardware's goes on to infinity.
#if ROW_IS_BF16
DEVICE float row_exp(float x) { return fast_exp2(x * LOG2_E); }
DEVICE float row_inverse(float x) { return fast_inverse(x); }
#else
DEVICE float row_exp(float x) { return fixed_exp(x); }
DEVICE float row_inverse(float x) { return 1.0f / x; }
#endif

DEVICE float sigmoid(float x) { return row_inverse(1.0f + row_exp(0.0f - x)); }

#define GELU_SCALE (2.0f * 0.7978846f)
#define GELU_CUBE 0.044715f

// GELU in its tanh form (Hendrycks and Gimpel, arXiv 1606.08415, section 2).
DEVICE float gelu(float x) {
    const float cube = fmaf(x * x, GELU_CUBE, 1.0f);
    return x * sigmoid(x * cube * GELU_SCALE);
}

DEVICE float gelu_slope(float x) {
    const float square = x * x;
    const float s = sigmoid(x * fmaf(square, GELU_CUBE, 1.0f) * GELU_SCALE);
    const float inner = fmaf(square, 3.0f * GELU_CUBE, 1.0f) * GELU_SCALE;
    return fmaf(x * s * (1.0f - s), inner, s);
}

DEVICE float silu(float x) { return x * sigmoid(x); }

DEVICE float silu_slope(float x) {
    const float s = sigmoid(x);
    return s * fmaf(x, 1.0f - s, 1.0f);
}

// Slices that a sequence may be cut into.
#define SLICES_MAX 64

// Attention's shape. A row of queries, keys and values holds `heads * head_width` query floats,
// then `kv_heads * head_width` keys, then as many values. Queries are those of one slice; keys are
// counted from the beginning of the sequence, through the `earlier` slices, which have `before` rows
// of each sequence.
struct AttentionShape {
    u32 sequences, slice_len, heads, kv_heads, head_width, earlier, before;
    float scale;

    DEVICE u32 query_width() const { return heads * head_width; }
    DEVICE u32 key_width() const { return kv_heads * head_width; }
    DEVICE u32 row_width() const { return query_width() + 2 * key_width(); }
    // Keys before the slice's own.
    DEVICE u32 offset() const { return before; }
    DEVICE u32 keys() const { return before + slice_len; }
};

// Where a position of a sequence is: in which slice, and in which of its rows.
struct Place {
    u32 slice;
    u64 row;
};

// Rows of each slice, in order; the last is the queries' own. Slice i begins at position `first[i]`.
struct Slices {
    const row_t *qkv[SLICES_MAX];
    u32 first[SLICES_MAX + 1];

    DEVICE Place place(const AttentionShape &s, u32 sequence, u32 position) const {
        Place place;
        place.slice = s.earlier;
        while (position < first[place.slice]) --place.slice;
        const u32 start = first[place.slice];
        place.row = u64(sequence) * (first[place.slice + 1] - start) + position - start;
        return place;
    }

    // The key of one head at a position of a sequence; its value is `key_width` further on.
    DEVICE const row_t *key(const AttentionShape &s, u32 sequence, u32 kv_head, u32 position) const {
        const Place at = place(s, sequence, position);
        return qkv[at.slice] + at.row * s.row_width() + s.query_width() + kv_head * s.head_width;
    }
};

// The position of the first key that each row sees, if rows do not see their sequences from the
// beginning: of packed documents (a block-diagonal mask), of a sliding window, or of both. Within a
// sequence it never falls.
struct Mask {
    const u32 *first_keys;

    DEVICE u32 first_key(u64 row) const { return first_keys ? first_keys[row] : 0; }

    // The end of the queries of a slice's sequence that see a key before `key_end`.
    DEVICE u32 query_end(const AttentionShape &s, u32 sequence, u32 key_end) const {
        if (!first_keys) return s.slice_len;
        const u32 *of_sequence = first_keys + u64(sequence) * s.slice_len;
        u32 end = 0;
        for (u32 rest = s.slice_len; rest > 0;) {
            const u32 half = rest / 2;
            const bool sees = of_sequence[end + half] < key_end;
            end = sees ? end + half + 1 : end;
            rest = sees ? rest - half - 1 : half;
        }
        return end;
    }
};

// Where the gradients of keys and values go: rows of `key_width` floats of each, for each slice.
// What earlier slices have is added to if `is_added`; the slice's own is always overwritten.
struct SliceGradients {
    float *key_value[SLICES_MAX];

    DEVICE float *key(const AttentionShape &s, const Slices &slices, u32 sequence, u32 kv_head,
                      u32 position) const {
        const Place at = slices.place(s, sequence, position);
        return key_value[at.slice] + at.row * 2 * s.key_width() + kv_head * s.head_width;
    }
};
