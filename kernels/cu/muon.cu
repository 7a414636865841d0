// Muon: Nesterov's look ahead, a matrix divided by its norm, polynomials of its products, and the step.
//
// Element by element, a thread takes four neighbours. Operations are rounded one by one
// (`MuonCoefficients`, `MuonMatrix` of `kernels/src/backend/muon.rs`); what products read and write is in the
// type of activations.

// Elements of a matrix whose squares one block adds up.
#define PIECE 16384
#define PIECE_THREADS 256
// NEWTON_SCHULZ_EPSILON of `kernels/src/backend/muon.rs`.
#define NORM_EPSILON 1e-7

DEVICE float averaged(float m, float clipped, float momentum, float rest) {
    return m * momentum + clipped * rest;
}

// The sum over a block, in all of its threads: halves of a warp are added to halves, and then warps in
// order.
DEVICE double block_sum(double own) {
    SHARED(double, parts, PIECE_THREADS / WARP);
    own = warp_sum(own);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = own;
    __syncthreads();
    double sum = parts[0];
    for (u32 warp = 1; warp < PIECE_THREADS / WARP; ++warp) sum += parts[warp];
    return sum;
}

// Nesterov's average of the new momentum and the gradient, and the sum of squares of each piece of it.
KERNEL muon_look_ahead(const float *m, const float *g, float *u, u64 count, float momentum,
                       float rest, float clip, double *sums) {
    double own = 0.0;
    for (u32 first = 0; first < PIECE; first += PIECE_THREADS * 4) {
        const u64 at = u64(blockIdx.x) * PIECE + first + threadIdx.x * 4;
        const u32 here = within(at, count);
        if (here == 0) break;
        const Four ms = load_four(m + at, here);
        Four us = load_four(g + at, here);
        for (u32 i = 0; i < 4; ++i) {
            const float clipped = clip * us.x[i];
            const float new_m = averaged(ms.x[i], clipped, momentum, rest);
            us.x[i] = averaged(new_m, clipped, momentum, rest);
            if (i < here) own += double(us.x[i]) * double(us.x[i]);
        }
        store_four(u + at, us, here);
    }
    own = block_sum(own);
    if (threadIdx.x == 0) sums[blockIdx.x] = own;
}

// x = u / (norm + epsilon), the factor rounded once. Each block adds up all pieces, in the same order.
KERNEL muon_normalize(const float *u, row_t *x, u64 count, const double *sums, u32 pieces) {
    double own = 0.0;
    for (u32 piece = threadIdx.x; piece < pieces; piece += PIECE_THREADS) own += sums[piece];
    const float scale = float(1.0 / (sqrt(block_sum(own)) + NORM_EPSILON));
    FOUR(count);
    Four us = load_four(u + at, here);
    for (u32 i = 0; i < 4; ++i) us.x[i] *= scale;
    store_four(x + at, us, here);
}

// x = a * x + b * y
KERNEL muon_combine(row_t *x, const row_t *y, u64 count, float a, float b) {
    FOUR(count);
    Four xs = load_four(x + at, here);
    const Four ys = load_four(y + at, here);
    for (u32 i = 0; i < 4; ++i) xs.x[i] = a * xs.x[i] + b * ys.x[i];
    store_four(x + at, xs, here);
}

// Weights after the step along `o`: into `to`, which may be `w`, and as products read them. Either is
// null where nobody asks for it.
KERNEL muon_step(const float *w, const row_t *o, u64 count, float decay, float step, float *to,
                 row_t *form) {
    FOUR(count);
    const Four along = load_four(o + at, here);
    Four ws = load_four(w + at, here);
    for (u32 i = 0; i < 4; ++i) ws.x[i] = ws.x[i] * decay + step * along.x[i];
    if (to) store_four(to + at, ws, here);
    if (form) store_four(form + at, ws, here);
}

// The momentum after the step, in place.
KERNEL muon_momentum(float *m, const float *g, u64 count, float momentum, float rest, float clip) {
    FOUR(count);
    const Four gs = load_four(g + at, here);
    Four ms = load_four(m + at, here);
    for (u32 i = 0; i < 4; ++i) ms.x[i] = averaged(ms.x[i], clip * gs.x[i], momentum, rest);
    store_four(m + at, ms, here);
}
