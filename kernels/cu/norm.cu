// LayerNorm and RMSNorm of rows, and QK-norm: RMSNorm of each head of queries and keys.
//
//   N  rows        D  floats a row (width)
//
// `is_layer`: mean and inverse deviation are kept for a row; otherwise the inverse alone.
// A warp takes a row; a lane takes every 32nd group of four columns.

#define NORM_WARPS 4
// Rows whose shares of the parameters' gradient are one chain.
#define GROUP_ROWS 16
#define BACKWARD_WARPS 8

template <bool WHOLE>
DEVICE float row_sum(const row_t *x, u32 width) {
    float sum = 0.0f;
#pragma unroll 4
    for (u32 at = threadIdx.x % WARP * 4; at < width; at += WARP * 4) {
        const Four v = load_part<WHOLE>(x + at, within(at, width));
        for (u32 i = 0; i < 4; ++i) sum += v.x[i];
    }
    return warp_sum(sum);
}

template <bool WHOLE>
DEVICE float square_sum(const row_t *x, u32 width, float mean) {
    float sum = 0.0f;
#pragma unroll 4
    for (u32 at = threadIdx.x % WARP * 4; at < width; at += WARP * 4) {
        const u32 count = within(at, width);
        const Four v = load_part<WHOLE>(x + at, count);
        for (u32 i = 0; i < 4; ++i) {
            const float centred = i < count ? v.x[i] - mean : 0.0f;
            sum = fmaf(centred, centred, sum);
        }
    }
    return warp_sum(sum);
}

template <bool WHOLE>
DEVICE void forward_row(const row_t *x, const float *weight, const float *bias, row_t *y,
                        float *statistics, u32 width, u32 is_layer, float epsilon) {
    const u32 lane = threadIdx.x % WARP;
    const float mean = is_layer ? row_sum<WHOLE>(x, width) / float(width) : 0.0f;
    const float inverse =
        1.0f / sqrtf(square_sum<WHOLE>(x, width, mean) / float(width) + epsilon);
    if (lane == 0) {
        if (is_layer) *statistics++ = mean;
        *statistics = inverse;
    }
#pragma unroll 2
    for (u32 at = lane * 4; at < width; at += WARP * 4) {
        const u32 count = within(at, width);
        Four v = load_part<WHOLE>(x + at, count);
        const Four w = load_part<WHOLE>(weight + at, count);
        Four b = {{0.0f, 0.0f, 0.0f, 0.0f}};
        if (bias) b = load_part<WHOLE>(bias + at, count);
        for (u32 i = 0; i < 4; ++i) v.x[i] = fmaf((v.x[i] - mean) * inverse, w.x[i], b.x[i]);
        store_four(y + at, v, count);
    }
}

KERNEL norm_forward(const row_t *x, const float *weight, const float *bias, row_t *y,
                    float *statistics, u32 rows, u32 width, u32 is_layer, float epsilon) {
    const u32 row = blockIdx.x * NORM_WARPS + threadIdx.x / WARP;
    if (row >= rows) return;
    const bool is_whole = width % 4 == 0 && is_aligned(x) && is_aligned(y) &&
                          is_aligned(weight) && (!bias || is_aligned(bias));
    x += u64(row) * width;
    y += u64(row) * width;
    statistics += u64(row) * (is_layer ? 2 : 1);
    if (is_whole)
        forward_row<true>(x, weight, bias, y, statistics, width, is_layer, epsilon);
    else
        forward_row<false>(x, weight, bias, y, statistics, width, is_layer, epsilon);
}

// The sums of a group's rows for each column: dy * unit, and behind them dy if there is a bias.
template <bool WHOLE>
DEVICE void group_sums(const row_t *dy, const row_t *x, const float *statistics, float *partials,
                       u32 first, u32 end, u32 width, u32 is_layer) {
    for (u32 column = threadIdx.x * 4; column < width; column += blockDim.x * 4) {
        const u32 here = within(column, width);
        Four weight_sum = {{0.0f, 0.0f, 0.0f, 0.0f}};
        Four bias_sum = {{0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll 4
        for (u32 row = first; row < end; ++row) {
            const float mean = is_layer ? statistics[u64(row) * 2] : 0.0f;
            const float inverse = is_layer ? statistics[u64(row) * 2 + 1] : statistics[row];
            const Four d = load_part<WHOLE>(dy + u64(row) * width + column, here);
            const Four v = load_part<WHOLE>(x + u64(row) * width + column, here);
            for (u32 i = 0; i < 4; ++i) {
                weight_sum.x[i] = fmaf(d.x[i], (v.x[i] - mean) * inverse, weight_sum.x[i]);
                bias_sum.x[i] += d.x[i];
            }
        }
        store_four(partials + column, weight_sum, here);
        if (is_layer) store_four(partials + width + column, bias_sum, here);
    }
}

// The gradient of a row is written to `to`, which may be `dy` or `x`: a lane reads and writes the
// same columns.
template <bool WHOLE>
DEVICE void backward_row(const row_t *dy, const row_t *skip, const float *weight, const row_t *x,
                         row_t *to, u32 width, u32 is_layer, float mean, float inverse) {
    const u32 lane = threadIdx.x % WARP;
    float sum = 0.0f;
    float product = 0.0f;
#pragma unroll 2
    for (u32 at = lane * 4; at < width; at += WARP * 4) {
        const u32 count = within(at, width);
        const Four d = load_part<WHOLE>(dy + at, count);
        const Four w = load_part<WHOLE>(weight + at, count);
        const Four v = load_part<WHOLE>(x + at, count);
        for (u32 i = 0; i < 4; ++i) {
            const float weighted = d.x[i] * w.x[i];
            sum += weighted;
            product = fmaf(weighted, (v.x[i] - mean) * inverse, product);
        }
    }
    const float mean_gradient = is_layer ? warp_sum(sum) / float(width) : 0.0f;
    const float mean_product = warp_sum(product) / float(width);
#pragma unroll 2
    for (u32 at = lane * 4; at < width; at += WARP * 4) {
        const u32 count = within(at, width);
        const Four d = load_part<WHOLE>(dy + at, count);
        const Four w = load_part<WHOLE>(weight + at, count);
        Four v = load_part<WHOLE>(x + at, count);
        Four s = {{0.0f, 0.0f, 0.0f, 0.0f}};
        if (skip) s = load_part<WHOLE>(skip + at, count);
        for (u32 i = 0; i < 4; ++i) {
            const float unit = (v.x[i] - mean) * inverse;
            const float through = d.x[i] * w.x[i] - mean_gradient - unit * mean_product;
            v.x[i] = fmaf(through, inverse, s.x[i]);
        }
        store_four(to + at, v, count);
    }
}

template <bool WHOLE>
DEVICE void backward_group(const row_t *dy, const row_t *skip, const float *weight,
                           const float *statistics, row_t *x, float *partials, u32 rows,
                           u32 width, u32 is_layer) {
    const u32 first = blockIdx.x * GROUP_ROWS;
    const u32 end = min(first + GROUP_ROWS, rows);
    partials += u64(blockIdx.x) * width * (is_layer ? 2 : 1);
    group_sums<WHOLE>(dy, x, statistics, partials, first, end, width, is_layer);
    __syncthreads();
    for (u32 row = first + threadIdx.x / WARP; row < end; row += BACKWARD_WARPS) {
        const float mean = is_layer ? statistics[u64(row) * 2] : 0.0f;
        const float inverse = is_layer ? statistics[u64(row) * 2 + 1] : statistics[row];
        const u64 start = u64(row) * width;
        backward_row<WHOLE>(dy + start, skip ? skip + start : skip, weight, x + start, x + start,
                            width, is_layer, mean, inverse);
    }
}

// A block takes a group of rows: first the columns' sums, then row by row the gradient over x. The
// second reading of a group comes from the caches.
KERNEL norm_backward(const row_t *dy, const row_t *skip, const float *weight,
                     const float *statistics, row_t *x, float *partials, u32 rows, u32 width,
                     u32 is_layer) {
    const bool is_whole = width % 4 == 0 && is_aligned(dy) && is_aligned(x) &&
                          is_aligned(weight) && (!skip || is_aligned(skip));
    if (is_whole)
        backward_group<true>(dy, skip, weight, statistics, x, partials, rows, width, is_layer);
    else
        backward_group<false>(dy, skip, weight, statistics, x, partials, rows, width, is_layer);
}

// A warp takes a head of a row's queries or keys, and keeps it as it was.
KERNEL qk_norm_forward(const float *weights, row_t *qkv, row_t *before, float *statistics,
                       u32 rows, u32 query_heads, u32 qk_heads, u32 head_width, u32 row_width,
                       float epsilon) {
    const u64 index = u64(blockIdx.x) * NORM_WARPS + threadIdx.x / WARP;
    if (index >= u64(rows) * qk_heads) return;
    const u64 row = index / qk_heads;
    const u32 head = u32(index - row * qk_heads);
    row_t *x = qkv + row * row_width + u64(head) * head_width;
    before += index * head_width;
    const float *weight = weights + (head < query_heads ? 0 : head_width);
    const float inverse =
        1.0f / sqrtf(square_sum<false>(x, head_width, 0.0f) / float(head_width) + epsilon);
    const u32 lane = threadIdx.x % WARP;
    if (lane == 0) statistics[index] = inverse;
    for (u32 at = lane * 4; at < head_width; at += WARP * 4) {
        const u32 count = within(at, head_width);
        Four v = load_four(x + at, count);
        const Four w = load_four(weight + at, count);
        store_four(before + at, v, count);
        for (u32 i = 0; i < 4; ++i) v.x[i] = v.x[i] * inverse * w.x[i];
        store_four(x + at, v, count);
    }
}

// The sums of the heads of a group's rows for each column: first those of queries, then of keys.
DEVICE void qk_norm_sums(const row_t *before, const float *statistics, const row_t *gradient,
                         float *partials, u32 first, u32 end, u32 query_heads, u32 qk_heads,
                         u32 head_width, u32 row_width) {
    for (u32 at = threadIdx.x; at < 2 * head_width; at += blockDim.x) {
        const bool is_key = at >= head_width;
        const u32 column = is_key ? at - head_width : at;
        const u32 head_end = is_key ? qk_heads : query_heads;
        float sum = 0.0f;
        for (u64 row = first; row < end; ++row) {
            for (u32 head = is_key ? query_heads : 0; head < head_end; ++head) {
                const u64 index = row * qk_heads + head;
                const float d =
                    to_float(gradient[row * row_width + u64(head) * head_width + column]);
                const float unit =
                    to_float(before[index * head_width + column]) * statistics[index];
                sum = fmaf(d, unit, sum);
            }
        }
        partials[at] = sum;
    }
}

// A block takes a group of rows, as `norm_backward` does; a warp takes a head. The gradient of
// what was normalised replaces that of the result.
KERNEL qk_norm_backward(const row_t *before, const float *statistics, const float *weights,
                        row_t *gradient, float *partials, u32 rows, u32 query_heads,
                        u32 qk_heads, u32 head_width, u32 row_width) {
    const u32 first = blockIdx.x * GROUP_ROWS;
    const u32 end = min(first + GROUP_ROWS, rows);
    partials += u64(blockIdx.x) * head_width * 2;
    qk_norm_sums(before, statistics, gradient, partials, first, end, query_heads, qk_heads,
                 head_width, row_width);
    __syncthreads();
    const u32 heads = (end - first) * qk_heads;
    for (u32 at = threadIdx.x / WARP; at < heads; at += BACKWARD_WARPS) {
        const u64 row = first + at / qk_heads;
        const u32 head = at % qk_heads;
        const u64 index = row * qk_heads + head;
        const float *weight = weights + (head < query_heads ? 0 : head_width);
        row_t *dy = gradient + row * row_width + u64(head) * head_width;
        backward_row<false>(dy, nullptr, weight, before + index * head_width, dy, head_width, 0,
                            0.0f, statistics[index]);
    }
}
