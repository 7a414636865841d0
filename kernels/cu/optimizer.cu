// AdamW in halves, sums of squares, fingerprints.
//
// Operations are rounded one by one (Loshchilov and Hutter, arXiv 1711.05101): multiply-adds are not
// fused by the compiler, and none is written here.

// Elements that are one part of a fingerprint.
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

// Stretches that one launch takes.
#define STRETCHES_MAX 16

// Neighbouring weights of a layer, with what belongs to them, under the numbers of their update. `to`
// receives weights and `form` the form that products read; either is null where nobody asks for it.
struct Stretch {
    float *w, *m, *v;
    const float *g;
    float *to;
    row_t *form;
    u64 count;
    AdamW numbers;
    u32 first_block;
};

struct Stretches {
    Stretch of[STRETCHES_MAX];

    // The one that a block works on. Those that are not there begin behind the last block.
    DEVICE Stretch here() const {
        u32 i = 0;
        while (i + 1 < STRETCHES_MAX && blockIdx.x >= of[i + 1].first_block) ++i;
        return of[i];
    }
};

// The first of a thread's four elements.
DEVICE u64 place(const Stretch &s) {
    return (u64(blockIdx.x - s.first_block) * blockDim.x + threadIdx.x) * 4;
}

// The weights after the step, beside the state.
KERNEL adamw_candidate(Stretches stretches) {
    const Stretch s = stretches.here();
    const u64 at = place(s);
    const u32 here = within(at, s.count);
    if (here == 0) return;
    const Four gs = load_four(s.g + at, here);
    const Four ms = load_four(s.m + at, here);
    const Four vs = load_four(s.v + at, here);
    Four ws = load_four(s.w + at, here);
    for (u32 i = 0; i < 4; ++i) {
        const float clipped = s.numbers.clip * gs.x[i];
        const float new_m = moment1(clipped, ms.x[i], s.numbers);
        const float new_v = moment2(clipped, vs.x[i], s.numbers);
        ws.x[i] = stepped(ws.x[i], new_m, new_v, s.numbers);
    }
    if (s.to) store_four(s.to + at, ws, here);
    if (s.form) store_four(s.form + at, ws, here);
}

// The moments after the same step in place, and the weights as well where there are some.
KERNEL adamw_in_place(Stretches stretches) {
    const Stretch s = stretches.here();
    const u64 at = place(s);
    const u32 here = within(at, s.count);
    if (here == 0) return;
    const Four gs = load_four(s.g + at, here);
    Four ms = load_four(s.m + at, here);
    Four vs = load_four(s.v + at, here);
    Four ws = {{0.0f, 0.0f, 0.0f, 0.0f}};
    if (s.w) ws = load_four(s.w + at, here);
    for (u32 i = 0; i < 4; ++i) {
        const float clipped = s.numbers.clip * gs.x[i];
        ms.x[i] = moment1(clipped, ms.x[i], s.numbers);
        vs.x[i] = moment2(clipped, vs.x[i], s.numbers);
        ws.x[i] = stepped(ws.x[i], ms.x[i], vs.x[i], s.numbers);
    }
    store_four(s.m + at, ms, here);
    store_four(s.v + at, vs, here);
    if (s.w) store_four(s.w + at, ws, here);
    if (s.form) store_four(s.form + at, ws, here);
}

// Elements of a tensor that one block adds up.
#define PIECE 16384
#define SQUARE_THREADS 256

// Where a tensor begins, how many elements it has, and the number of its first piece.
struct Tensor {
    const float *start;
    u64 count;
    u64 first_piece;
};

// A sum of squares, and how many elements are not finite.
struct Squares {
    double sum;
    u64 nonfinite;
};

// The sum over a block, in its first thread: halves of a warp are added to halves, and then warps in
// order.
DEVICE Squares block_squares(Squares own) {
    SHARED(Squares, parts, SQUARE_THREADS / WARP);
    own.sum = warp_sum(own.sum);
    for (u32 step = WARP / 2; step > 0; step /= 2)
        own.nonfinite += __shfl_xor_sync(ALL_LANES, own.nonfinite, step);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = own;
    __syncthreads();
    if (threadIdx.x != 0) return own;
    for (u32 warp = 1; warp < SQUARE_THREADS / WARP; ++warp) {
        own.sum += parts[warp].sum;
        own.nonfinite += parts[warp].nonfinite;
    }
    return own;
}

// The tensor that a piece is of: the last one that begins no later. One without elements has no piece,
// and the one behind it begins at the same.
DEVICE Tensor tensor_of(const Tensor *tensors, u32 count, u64 piece) {
    u32 low = 0;
    u32 high = count;
    while (high - low > 1) {
        const u32 middle = low + (high - low) / 2;
        if (tensors[middle].first_piece <= piece) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return tensors[low];
}

// The sum of squares of each piece in f64, in an order that follows from the tensor's length alone:
// element i of a piece is added to chain i % 1024, four chains a thread, one after the other.
KERNEL piece_squares(const Tensor *tensors, u32 count, Squares *pieces) {
    const Tensor tensor = tensor_of(tensors, count, blockIdx.x);
    const u64 first = (blockIdx.x - tensor.first_piece) * PIECE;
    const u64 left = tensor.count - first;
    const u32 end = left < PIECE ? u32(left) : PIECE;
    const float *start = tensor.start + first;
    double sums[4] = {0.0, 0.0, 0.0, 0.0};
    u32 nonfinite = 0;
#pragma unroll 4
    for (u32 at = threadIdx.x * 4; at < end; at += SQUARE_THREADS * 4) {
        // Beyond the end there are zeros, which change no bit of a sum of squares.
        const Four x = load_four(start + at, u32(within(at, end)));
        for (u32 i = 0; i < 4; ++i) {
            nonfinite += (__float_as_uint(x.x[i]) & 0x7f800000u) == 0x7f800000u;
            sums[i] += double(x.x[i]) * double(x.x[i]);
        }
    }
    Squares own;
    own.sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
    own.nonfinite = nonfinite;
    own = block_squares(own);
    if (threadIdx.x == 0) pieces[blockIdx.x] = own;
}

// The sum of each tensor's pieces: piece i is added to thread i % 256.
KERNEL tensor_squares(const Tensor *tensors, const Squares *pieces, Squares *results) {
    const Tensor tensor = tensors[blockIdx.x];
    const u64 end = (tensor.count + PIECE - 1) / PIECE;
    Squares own = {0.0, 0};
    for (u64 at = threadIdx.x; at < end; at += SQUARE_THREADS) {
        const Squares piece = pieces[tensor.first_piece + at];
        own.sum += piece.sum;
        own.nonfinite += piece.nonfinite;
    }
    own = block_squares(own);
    if (threadIdx.x == 0) results[blockIdx.x] = own;
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
