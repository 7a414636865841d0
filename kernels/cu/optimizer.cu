// AdamW in halves, sums of squares, fingerprints of states.
//
// Operations are rounded one by one (Loshchilov and Hutter, arXiv 1711.05101): multiply-adds are not
// fused by the compiler, and none is written here.

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
    // Where it begins in its layer.
    u64 start;
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

// Some weights after the step, beside the state. `s` is a stretch, or a tensor.
template <typename S>
DEVICE void candidate(const S &s, const Four &gs, u64 at, u32 here) {
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

KERNEL adamw_candidate(Stretches stretches) {
    const Stretch s = stretches.here();
    const u64 at = place(s);
    const u32 here = within(at, s.count);
    if (here == 0) return;
    candidate(s, load_four(s.g + at, here), at, here);
}

// The moments of a thread's elements after the same step in place, and their weights as well where there
// are some. What is left of them is in `ws`, `ms` and `vs`.
DEVICE void in_place(const Stretch &s, u64 at, u32 here, Four &ws, Four &ms, Four &vs) {
    const Four gs = load_four(s.g + at, here);
    ms = load_four(s.m + at, here);
    vs = load_four(s.v + at, here);
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

KERNEL adamw_in_place(Stretches stretches) {
    const Stretch s = stretches.here();
    const u64 at = place(s);
    const u32 here = within(at, s.count);
    if (here == 0) return;
    Four ws = {{0.0f, 0.0f, 0.0f, 0.0f}}, ms, vs;
    in_place(s, at, here, ws, ms, vs);
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
template <typename T>
DEVICE T tensor_of(const T *tensors, u32 count, u64 piece) {
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

// A thread's part of a piece: element i of a piece is added to chain i % 1024, four chains a thread, one
// after the other. Beyond the end there are zeros, which change no bit of a sum of squares.
struct Chains {
    double sums[4];
    u32 nonfinite;

    DEVICE void add(const Four &x) {
        for (u32 i = 0; i < 4; ++i) {
            nonfinite += (__float_as_uint(x.x[i]) & 0x7f800000u) == 0x7f800000u;
            sums[i] += double(x.x[i]) * double(x.x[i]);
        }
    }

    DEVICE Squares squares() const {
        Squares own;
        own.sum = (sums[0] + sums[1]) + (sums[2] + sums[3]);
        own.nonfinite = nonfinite;
        return own;
    }
};

// Where a piece of a tensor begins and how many elements it has.
struct Extent {
    u64 first;
    u32 end;
};

template <typename T>
DEVICE Extent extent(const T &tensor) {
    Extent piece;
    piece.first = (blockIdx.x - tensor.first_piece) * PIECE;
    const u64 left = tensor.count - piece.first;
    piece.end = left < PIECE ? u32(left) : PIECE;
    return piece;
}

// The sum of squares of each piece in f64, in an order that follows from the tensor's length alone.
KERNEL piece_squares(const Tensor *tensors, u32 count, Squares *pieces) {
    const Tensor tensor = tensor_of(tensors, count, blockIdx.x);
    const Extent piece = extent(tensor);
    const float *start = tensor.start + piece.first;
    Chains chains = {{0.0, 0.0, 0.0, 0.0}, 0};
#pragma unroll 4
    for (u32 at = threadIdx.x * 4; at < piece.end; at += SQUARE_THREADS * 4)
        chains.add(load_four(start + at, u32(within(at, piece.end))));
    const Squares own = block_squares(chains.squares());
    if (threadIdx.x == 0) pieces[blockIdx.x] = own;
}

// A tensor whose candidate is computed with its sum of squares, as a stretch.
struct SteppedTensor {
    const float *w, *m, *v, *g;
    float *to;
    row_t *form;
    u64 count;
    u64 first_piece;
    AdamW numbers;
    u32 nothing;
};

// `piece_squares`, and the weights after the step from the same read of the gradient.
KERNEL piece_squares_stepped(const SteppedTensor *tensors, u32 count, Squares *pieces) {
    const SteppedTensor tensor = tensor_of(tensors, count, blockIdx.x);
    const Extent piece = extent(tensor);
    Chains chains = {{0.0, 0.0, 0.0, 0.0}, 0};
#pragma unroll 2
    for (u32 at = threadIdx.x * 4; at < piece.end; at += SQUARE_THREADS * 4) {
        const u32 here = u32(within(at, piece.end));
        const Four gs = load_four(tensor.g + piece.first + at, here);
        chains.add(gs);
        candidate(tensor, gs, piece.first + at, here);
    }
    const Squares own = block_squares(chains.squares());
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

// The two sums of a fingerprint, modulo 2^64: no order changes them. `kernels/src/fingerprint.rs` says what
// they are.
struct StateSums {
    u64 first, second;

    DEVICE void add(const StateSums &other) {
        first += other.first;
        second += other.second;
    }

    // A word, under the key of its place and part.
    DEVICE void add(float x, u64 key) {
        const u64 t = u64(__float_as_uint(x)) * (key | 1);
        const u32 high = u32(t >> 32);
        const u32 low = u32(t) ^ high;
        first += u64(high) << 32 | low;
        second += u64(low) * high;
    }

    // A place's weight and moments.
    DEVICE void add(float w, float m, float v, u64 at) {
        const u64 key = mix((at + 1) * 0x9e3779b97f4a7c15ull);
        add(w, key);
        add(m, key << 21 | key >> 43);
        add(v, key << 42 | key >> 22);
    }
};

#define STATE_THREADS 256

// The sums over a block, in its first thread.
DEVICE StateSums block_sums(StateSums own) {
    SHARED(StateSums, parts, STATE_THREADS / WARP);
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        own.first += __shfl_xor_sync(ALL_LANES, own.first, step);
        own.second += __shfl_xor_sync(ALL_LANES, own.second, step);
    }
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = own;
    __syncthreads();
    if (threadIdx.x != 0) return own;
    for (u32 warp = 1; warp < STATE_THREADS / WARP; ++warp) own.add(parts[warp]);
    return own;
}

// `adamw_in_place`, and each block's part of the sums of the state that it leaves.
KERNEL adamw_in_place_summed(Stretches stretches, StateSums *blocks) {
    const Stretch s = stretches.here();
    const u64 at = place(s);
    const u32 here = within(at, s.count);
    StateSums own = {0, 0};
    if (here != 0) {
        Four ws = {{0.0f, 0.0f, 0.0f, 0.0f}}, ms, vs;
        in_place(s, at, here, ws, ms, vs);
        for (u32 i = 0; i < here; ++i) own.add(ws.x[i], ms.x[i], vs.x[i], s.start + at + i);
    }
    own = block_sums(own);
    if (threadIdx.x == 0) blocks[blockIdx.x] = own;
}

// Each block's part of the sums of a state as it lies. Moments may end before the weights do.
KERNEL state_sums(const float *w, const float *m, const float *v, u64 count, u64 moments,
                  StateSums *blocks) {
    const u64 at = thread_index() * 4;
    const u32 here = within(at, count);
    StateSums own = {0, 0};
    if (here != 0) {
        const Four ws = load_four(w + at, here);
        const u32 held = within(at, moments);
        const Four ms = load_four(m + at, held);
        const Four vs = load_four(v + at, held);
        for (u32 i = 0; i < here; ++i) own.add(ws.x[i], ms.x[i], vs.x[i], at + i);
    }
    own = block_sums(own);
    if (threadIdx.x == 0) blocks[blockIdx.x] = own;
}

// The sums of all blocks' parts, by one block.
KERNEL add_state_sums(const StateSums *blocks, u64 count, StateSums *sums) {
    StateSums own = {0, 0};
    for (u64 at = threadIdx.x; at < count; at += STATE_THREADS) own.add(blocks[at]);
    own = block_sums(own);
    if (threadIdx.x == 0) *sums = own;
}
