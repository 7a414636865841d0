// AdamW in halves, sums of squares, fingerprints.
//
// Operations are rounded one by one (Loshchilov and Hutter, arXiv 1711.05101): multiply-adds are not
// fused by the compiler, and none is written here.

// Elements that are one chain in a sum of squares, and one part of a fingerprint.
#define CHUNK 65536

struct AdamW {
    float decay, beta1, beta1_rest, beta2, beta2_rest, correction2, epsilon, step, clip;
};

DEVICE float moment1(float g, float m, const AdamW &n) { return m * n.beta1 + g * n.beta1_rest; }

DEVICE float moment2(float g, float v, const AdamW &n) {
    return v * n.beta2 + n.beta2_rest * g * g;
}

DEVICE float stepped(float w, float m, float v, const AdamW &n) {
    const float denominator = sqrtf(v) / n.correction2 + n.epsilon;
    return w * n.decay + n.step * m / denominator;
}

// The weights after the step, beside the state, and in the form products read if `form` is there.
KERNEL adamw_candidate(const float *w, const float *m, const float *v, const float *g,
                       float *candidate, row_t *form, u64 count, AdamW numbers) {
    const u64 at = thread_index() * 4;
    const u32 here = within(at, count);
    if (here == 0) return;
    const Four gs = load_four(g + at, here);
    const Four ms = load_four(m + at, here);
    const Four vs = load_four(v + at, here);
    Four ws = load_four(w + at, here);
    for (u32 i = 0; i < 4; ++i) {
        const float clipped = numbers.clip * gs.x[i];
        const float new_m = moment1(clipped, ms.x[i], numbers);
        const float new_v = moment2(clipped, vs.x[i], numbers);
        ws.x[i] = stepped(ws.x[i], new_m, new_v, numbers);
    }
    store_four(candidate + at, ws, here);
    if (form) store_four(form + at, ws, here);
}

// The moments after the same step, in place.
KERNEL adamw_commit(const float *g, float *m, float *v, u64 count, AdamW numbers) {
    const u64 at = thread_index() * 4;
    const u32 here = within(at, count);
    if (here == 0) return;
    const Four gs = load_four(g + at, here);
    Four ms = load_four(m + at, here);
    Four vs = load_four(v + at, here);
    for (u32 i = 0; i < 4; ++i) {
        const float clipped = numbers.clip * gs.x[i];
        ms.x[i] = moment1(clipped, ms.x[i], numbers);
        vs.x[i] = moment2(clipped, vs.x[i], numbers);
    }
    store_four(m + at, ms, here);
    store_four(v + at, vs, here);
}

// Both at once.
KERNEL adamw_in_place(const float *g, float *w, float *m, float *v, row_t *form, u64 count,
                      AdamW numbers) {
    const u64 at = thread_index() * 4;
    const u32 here = within(at, count);
    if (here == 0) return;
    const Four gs = load_four(g + at, here);
    Four ws = load_four(w + at, here);
    Four ms = load_four(m + at, here);
    Four vs = load_four(v + at, here);
    for (u32 i = 0; i < 4; ++i) {
        const float clipped = numbers.clip * gs.x[i];
        ms.x[i] = moment1(clipped, ms.x[i], numbers);
        vs.x[i] = moment2(clipped, vs.x[i], numbers);
        ws.x[i] = stepped(ws.x[i], ms.x[i], vs.x[i], numbers);
    }
    store_four(w + at, ws, here);
    store_four(m + at, ms, here);
    store_four(v + at, vs, here);
    if (form) store_four(form + at, ws, here);
}

// A tensor's chunk: where it begins, and how many elements it has.
struct Chunk {
    const float *start;
    u64 count;
};

// A sum of squares of one chunk.
struct Squares {
    double sum;
    u64 nonfinite;
};

#define AHEAD 4

// The sum of squares of each chunk in index order: one chain in f64, whatever the device. A warp
// takes a chunk, loads 128 elements ahead of the chain, and all its lanes walk the same chain.
KERNEL sum_squares(const Chunk *chunks, Squares *results) {
    SHARED(double, squares, WARP * AHEAD);
    const Chunk chunk = chunks[blockIdx.x];
    const u32 lane = threadIdx.x;
    double sum = 0.0;
    u32 nonfinite = 0;
    float x[AHEAD];
    for (u32 i = 0; i < AHEAD; ++i) {
        const u64 at = i * WARP + lane;
        x[i] = at < chunk.count ? chunk.start[at] : 0.0f;
    }
    for (u64 first = 0; first < chunk.count; first += WARP * AHEAD) {
        for (u32 i = 0; i < AHEAD; ++i) {
            nonfinite += (__float_as_uint(x[i]) & 0x7f800000u) == 0x7f800000u;
            squares[i * WARP + lane] = double(x[i]) * double(x[i]);
            const u64 at = first + WARP * AHEAD + i * WARP + lane;
            x[i] = at < chunk.count ? chunk.start[at] : 0.0f;
        }
        __syncwarp();
        // Beyond the chunk's end there are zeros, which change no bit of a sum of squares.
#pragma unroll 16
        for (u32 i = 0; i < WARP * AHEAD; ++i) sum += squares[i];
        __syncwarp();
    }
    for (u32 step = WARP / 2; step > 0; step /= 2)
        nonfinite += __shfl_xor_sync(ALL_LANES, nonfinite, step);
    if (lane == 0) {
        results[blockIdx.x].sum = sum;
        results[blockIdx.x].nonfinite = nonfinite;
    }
}

// The finaliser of SplitMix64 (Steele et al., OOPSLA 2014): no two inputs give one output.
DEVICE u64 mix(u64 x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
    return x ^ (x >> 31);
}

#define FINGERPRINT_THREADS 256

// A sum modulo 2^64, which no order changes, of each element mixed with its place.
KERNEL fingerprint(const float *x, u64 *sums, u64 count) {
    SHARED(u64, parts, FINGERPRINT_THREADS / WARP);
    const u64 first = u64(blockIdx.x) * CHUNK;
    const u64 end = first + CHUNK < count ? first + CHUNK : count;
    u64 sum = 0;
    for (u64 at = first + threadIdx.x; at < end; at += FINGERPRINT_THREADS)
        sum += mix((at + 1) * 0x9e3779b97f4a7c15ull ^ __float_as_uint(x[at]));
    for (u32 step = WARP / 2; step > 0; step /= 2) sum += __shfl_xor_sync(ALL_LANES, sum, step);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = sum;
    __syncthreads();
    if (threadIdx.x != 0) return;
    for (u32 warp = 1; warp < FINGERPRINT_THREADS / WARP; ++warp) sum += parts[warp];
    sums[blockIdx.x] = sum;
}
