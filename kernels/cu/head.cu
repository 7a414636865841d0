// The softmax of the output head.
//
//   N  rows        V  logits a row (vocabulary)
//
// A block takes a row. A thread sees every 256th group of four logits, with a running maximum and a
// running sum that is rescaled when the maximum grows; threads' results are joined in a fixed tree.

#define HEAD_THREADS 256
#define HEAD_WARPS (HEAD_THREADS / WARP)
// The target of a row that does not count: IGNORED_TARGET of `shapes.rs`.
#define IGNORED_TARGET 0xffffffffu

struct Running {
    float max;
    float sum;
};

// Both parts under one maximum. Minus infinity stands for nothing seen so far.
DEVICE Running join(Running a, Running b) {
    Running joint;
    joint.max = fmaxf(a.max, b.max);
    const float scale_a = a.max == joint.max ? 1.0f : row_exp(a.max - joint.max);
    const float scale_b = b.max == joint.max ? 1.0f : row_exp(b.max - joint.max);
    joint.sum = a.sum * scale_a + b.sum * scale_b;
    return joint;
}

DEVICE Running join_warp(Running own) {
    for (u32 step = WARP / 2; step > 0; step /= 2) {
        Running other;
        other.max = __shfl_xor_sync(ALL_LANES, own.max, step);
        other.sum = __shfl_xor_sync(ALL_LANES, own.sum, step);
        // The lower lane's part comes first on both sides, so that both get the same bits.
        own = threadIdx.x & step ? join(other, own) : join(own, other);
    }
    return own;
}

// The logarithm of each row's sum of exponentials, and its loss in nats.
KERNEL head_forward(const row_t *logits, const u32 *targets, float *log_sums, double *losses,
                    u32 vocabulary) {
    SHARED(Running, parts, HEAD_WARPS);
    const u64 row = blockIdx.x;
    logits += row * vocabulary;
    Running own = {__uint_as_float(0xff800000u), 0.0f};
    for (u32 at = threadIdx.x * 4; at < vocabulary; at += HEAD_THREADS * 4) {
        const u32 count = within(at, vocabulary);
        const Four v = load_four(logits + at, count);
        float max = own.max;
        for (u32 i = 0; i < 4; ++i)
            if (i < count) max = fmaxf(max, v.x[i]);
        float sum = own.max == max ? own.sum : own.sum * row_exp(own.max - max);
        for (u32 i = 0; i < 4; ++i)
            if (i < count) sum += row_exp(v.x[i] - max);
        own.max = max;
        own.sum = sum;
    }
    own = join_warp(own);
    if (threadIdx.x % WARP == 0) parts[threadIdx.x / WARP] = own;
    __syncthreads();
    if (threadIdx.x != 0) return;
    Running all = parts[0];
    for (u32 warp = 1; warp < HEAD_WARPS; ++warp) all = join(all, parts[warp]);
    const double log_sum = double(all.max) + log(double(all.sum));
    log_sums[row] = float(log_sum);
    const u32 target = targets[row];
    losses[row] = target == IGNORED_TARGET ? 0.0 : log_sum - double(to_float(logits[target]));
}

// Logits to the gradient of `scale` times the loss and, of each row, `slope` / 2 times the square of
// its log sum (z-loss), whose gradient is `slope` times the log sum times the probabilities.
KERNEL head_backward(row_t *logits, const u32 *targets, const float *log_sums, u32 rows,
                     u32 vocabulary, float scale, float slope) {
    const u32 pieces = (vocabulary + 3) / 4;
    const u32 piece = u32(thread_index());
    if (piece >= rows * pieces) return;
    const u32 row = piece / pieces;
    const u32 column = (piece - row * pieces) * 4;
    const u32 count = within(column, vocabulary);
    const float log_sum = log_sums[row];
    const float weight = scale + slope * log_sum;
    const u32 target = targets[row];
    row_t *to = logits + u64(row) * vocabulary + column;
    Four v = load_four(to, count);
    for (u32 i = 0; i < 4; ++i) {
        v.x[i] = row_exp(v.x[i] - log_sum) * weight;
        if (column + i == target) v.x[i] -= scale;
        if (target == IGNORED_TARGET) v.x[i] = 0.0f;
    }
    store_four(to, v, count);
}
