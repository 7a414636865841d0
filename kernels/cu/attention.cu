// Causal attention on plain multiply-adds, for heads of any width up to 256.
//
//   B  sequences   S  tokens of a slice   H  query heads   G  key heads   D  floats a head
//
// A warp takes one query, or one key for the gradients of keys and values, and goes through tiles of
// 32 of the others, a lane each. Scores are never stored: the backward pass computes them again from
// the logarithms of their sums (Dao et al., arXiv 2205.14135, section 3.1). Keys are counted from the
// beginning of the sequence and so are their tiles, so a query's result is the same whichever rows
// are computed beside it, and whether its sequence is cut into slices or not. Tiles before the first key
// that a block's queries see, and behind the last query that sees a block's keys, are left out.

#define WARPS 8
#define THREADS (WARPS * WARP)
#define TILE WARP
#define PARTS 8

#define MINUS_INFINITY __uint_as_float(0xff800000u)

// A lane's share of a row of D floats: columns lane, lane + 32, ...
struct Share {
    float x[PARTS];
};

DEVICE Share no_share() {
    Share share;
    for (u32 i = 0; i < PARTS; ++i) share.x[i] = 0.0f;
    return share;
}

// share += sum over the tile of weight[j] * rows[j]
DEVICE void add_tile(Share &share, const float *weights, const float *rows, u32 stride, u32 width) {
    const u32 lane = threadIdx.x % WARP;
#pragma unroll
    for (u32 i = 0; i < PARTS; ++i) {
        const u32 column = lane + i * WARP;
        if (column >= width) break;
        float sum = share.x[i];
#pragma unroll 8
        for (u32 j = 0; j < TILE; ++j) sum = fmaf(weights[j], rows[j * stride + column], sum);
        share.x[i] = sum;
    }
}

DEVICE float dot(const float *a, const float *b, u32 width) {
    float sum = 0.0f;
    for (u32 i = 0; i < width; ++i) sum = fmaf(a[i], b[i], sum);
    return sum;
}

DEVICE void load_row(float *to, const row_t *from, u32 width) {
    for (u32 i = threadIdx.x % WARP; i < width; i += WARP) to[i] = to_float(from[i]);
}

// Keys or values of a tile, by all warps; zeros beyond the last.
DEVICE void load_keys(float *keys, float *values, const AttentionShape &s, const Slices &slices,
                      u32 sequence, u32 kv_head, u32 first) {
    const u32 width = s.head_width;
    for (u32 j = threadIdx.x / WARP; j < TILE; j += WARPS) {
        const u32 position = first + j;
        const bool is_there = position < s.keys();
        const row_t *key = slices.key(s, sequence, kv_head, is_there ? position : 0);
        for (u32 i = threadIdx.x % WARP; i < width; i += WARP) {
            keys[j * (width + 1) + i] = is_there ? to_float(key[i]) : 0.0f;
            values[j * (width + 1) + i] = is_there ? to_float(key[s.key_width() + i]) : 0.0f;
        }
    }
}

KERNEL __launch_bounds__(THREADS, 2)
    attention_forward(AttentionShape s, Slices slices, const u32 *first_keys, row_t *out,
                      float *log_sums) {
    DYNAMIC_SHARED(float, shared);
    const u32 width = s.head_width;
    const u32 stride = width + 1;
    const u32 warp = threadIdx.x / WARP;
    const u32 lane = threadIdx.x % WARP;
    float *keys = shared;
    float *values = keys + TILE * stride;
    float *query = values + TILE * stride + warp * (width + TILE);
    float *weights = query + width;
    const u32 sequence = blockIdx.y / s.heads;
    const u32 head = blockIdx.y % s.heads;
    const u32 kv_head = head / (s.heads / s.kv_heads);
    const u32 own = blockIdx.x * WARPS + warp;
    const bool is_row = own < s.slice_len;
    const u32 position = s.offset() + own;
    const u32 last = s.offset() + min(blockIdx.x * WARPS + WARPS, s.slice_len) - 1;
    const u64 row = u64(sequence) * s.slice_len + own;
    const Mask mask = {first_keys};
    const u32 first_key = is_row ? mask.first_key(row) : 0;
    const u32 start =
        mask.first_key(u64(sequence) * s.slice_len + blockIdx.x * WARPS) / TILE * TILE;
    if (is_row)
        load_row(query, slices.qkv[s.earlier] + row * s.row_width() + head * width, width);
    float max = MINUS_INFINITY;
    float sum = 0.0f;
    Share share = no_share();
    for (u32 first = start; first <= last; first += TILE) {
        __syncthreads();
        load_keys(keys, values, s, slices, sequence, kv_head, first);
        __syncthreads();
        if (!is_row || first > position || first + TILE <= first_key) continue;
        const bool is_seen = first + lane <= position && first + lane >= first_key;
        const float score =
            is_seen ? dot(query, keys + lane * stride, width) * s.scale : MINUS_INFINITY;
        const float new_max = fmaxf(max, warp_max(score));
        const float rescale = fixed_exp(max - new_max);
        const float weight = is_seen ? fixed_exp(score - new_max) : 0.0f;
        weights[lane] = weight;
        sum = fmaf(sum, rescale, warp_sum(weight));
        for (u32 i = 0; i < PARTS; ++i) share.x[i] *= rescale;
        max = new_max;
        __syncwarp();
        add_tile(share, weights, values, stride, width);
        __syncwarp();
    }
    if (!is_row) return;
    const float inverse = 1.0f / sum;
    row_t *to = out + row * s.query_width() + head * width;
#pragma unroll
    for (u32 i = 0; i < PARTS; ++i)
        if (lane + i * WARP < width) to[lane + i * WARP] = As<row_t>::from(share.x[i] * inverse);
    if (lane == 0) log_sums[row * s.heads + head] = float(double(max) + log(double(sum)));
}

// The product of each row of a head's output with its gradient. A warp takes one.
KERNEL attention_products(const row_t *out, const row_t *gradient, float *products, u32 count,
                          u32 head_width) {
    const u32 index = blockIdx.x * WARPS + threadIdx.x / WARP;
    if (index >= count) return;
    const u64 start = u64(index) * head_width;
    float sum = 0.0f;
    for (u32 i = threadIdx.x % WARP; i < head_width; i += WARP)
        sum = fmaf(to_float(out[start + i]), to_float(gradient[start + i]), sum);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) products[index] = sum;
}

// The gradients of queries, over the queries. Nobody reads another's query.
KERNEL __launch_bounds__(THREADS, 2)
    attention_backward_queries(AttentionShape s, Slices slices, const u32 *first_keys,
                               const row_t *gradient, const float *log_sums,
                               const float *products, row_t *qkv) {
    DYNAMIC_SHARED(float, shared);
    const u32 width = s.head_width;
    const u32 stride = width + 1;
    const u32 warp = threadIdx.x / WARP;
    const u32 lane = threadIdx.x % WARP;
    float *keys = shared;
    float *values = keys + TILE * stride;
    float *query = values + TILE * stride + warp * (2 * width + TILE);
    float *dout = query + width;
    float *weights = dout + width;
    const u32 sequence = blockIdx.y / s.heads;
    const u32 head = blockIdx.y % s.heads;
    const u32 kv_head = head / (s.heads / s.kv_heads);
    const u32 own = blockIdx.x * WARPS + warp;
    const bool is_row = own < s.slice_len;
    const u32 position = s.offset() + own;
    const u32 last = s.offset() + min(blockIdx.x * WARPS + WARPS, s.slice_len) - 1;
    const u64 row = u64(sequence) * s.slice_len + own;
    const Mask mask = {first_keys};
    const u32 first_key = is_row ? mask.first_key(row) : 0;
    const u32 start =
        mask.first_key(u64(sequence) * s.slice_len + blockIdx.x * WARPS) / TILE * TILE;
    row_t *to = qkv + row * s.row_width() + head * width;
    float log_sum = 0.0f;
    float product = 0.0f;
    if (is_row) {
        load_row(query, to, width);
        load_row(dout, gradient + row * s.query_width() + head * width, width);
        log_sum = log_sums[row * s.heads + head];
        product = products[row * s.heads + head];
    }
    Share share = no_share();
    for (u32 first = start; first <= last; first += TILE) {
        __syncthreads();
        load_keys(keys, values, s, slices, sequence, kv_head, first);
        __syncthreads();
        if (!is_row || first > position || first + TILE <= first_key) continue;
        float slope = 0.0f;
        if (first + lane <= position && first + lane >= first_key) {
            const float score = dot(query, keys + lane * stride, width) * s.scale;
            const float weight = fixed_exp(score - log_sum);
            slope = weight * (dot(dout, values + lane * stride, width) - product) * s.scale;
        }
        weights[lane] = slope;
        __syncwarp();
        add_tile(share, weights, keys, stride, width);
        __syncwarp();
    }
    if (!is_row) return;
#pragma unroll
    for (u32 i = 0; i < PARTS; ++i)
        if (lane + i * WARP < width) to[lane + i * WARP] = As<row_t>::from(share.x[i]);
}

// Queries of one head and the gradients of their outputs, a tile of them; zeros beyond the last.
DEVICE void load_queries(float *queries, float *douts, const AttentionShape &s, const row_t *qkv,
                         const row_t *gradient, u32 sequence, u32 head, u32 first) {
    const u32 width = s.head_width;
    for (u32 j = threadIdx.x / WARP; j < TILE; j += WARPS) {
        const bool is_there = first + j < s.slice_len;
        const u64 row = u64(sequence) * s.slice_len + (is_there ? first + j : 0);
        const row_t *query = qkv + row * s.row_width() + head * width;
        const row_t *dout = gradient + row * s.query_width() + head * width;
        for (u32 i = threadIdx.x % WARP; i < width; i += WARP) {
            queries[j * (width + 1) + i] = is_there ? to_float(query[i]) : 0.0f;
            douts[j * (width + 1) + i] = is_there ? to_float(dout[i]) : 0.0f;
        }
    }
}

// The gradients of keys and values from this slice's queries, heads and queries in order.
KERNEL __launch_bounds__(THREADS, 2)
    attention_backward_keys(AttentionShape s, Slices slices, const u32 *first_keys,
                            SliceGradients gradients, const row_t *gradient,
                            const float *log_sums, const float *products, u32 is_added) {
    DYNAMIC_SHARED(float, shared);
    const u32 width = s.head_width;
    const u32 stride = width + 1;
    const u32 warp = threadIdx.x / WARP;
    const u32 lane = threadIdx.x % WARP;
    float *queries = shared;
    float *douts = queries + TILE * stride;
    float *key = douts + TILE * stride + warp * 2 * (width + TILE);
    float *value = key + width;
    float *weights = value + width;
    float *slopes = weights + TILE;
    const u32 sequence = blockIdx.y / s.kv_heads;
    const u32 kv_head = blockIdx.y % s.kv_heads;
    const u32 group = s.heads / s.kv_heads;
    const u32 first_key = blockIdx.x * WARPS;
    const u32 position = first_key + warp;
    const bool is_row = position < s.keys();
    if (is_row) {
        const row_t *from = slices.key(s, sequence, kv_head, position);
        load_row(key, from, width);
        load_row(value, from + s.key_width(), width);
    }
    Share key_share = no_share();
    Share value_share = no_share();
    const u32 first_seen = first_key > s.offset() ? first_key - s.offset() : 0;
    const Mask mask = {first_keys};
    const u32 end = mask.query_end(s, sequence, min(first_key + WARPS, s.keys()));
    for (u32 head = kv_head * group; head < kv_head * group + group; ++head) {
        for (u32 first = first_seen / TILE * TILE; first < end; first += TILE) {
            __syncthreads();
            load_queries(queries, douts, s, slices.qkv[s.earlier], gradient, sequence, head,
                         first);
            __syncthreads();
            if (!is_row || s.offset() + first + TILE <= position) continue;
            const u32 own = first + lane;
            float weight = 0.0f;
            float slope = 0.0f;
            const u64 query_row = u64(sequence) * s.slice_len + own;
            if (own < s.slice_len && s.offset() + own >= position &&
                mask.first_key(query_row) <= position) {
                const u64 row = query_row * s.heads + head;
                const float score = dot(key, queries + lane * stride, width) * s.scale;
                weight = fixed_exp(score - log_sums[row]);
                slope = dot(value, douts + lane * stride, width) - products[row];
                slope = weight * slope * s.scale;
            }
            weights[lane] = weight;
            slopes[lane] = slope;
            __syncwarp();
            add_tile(value_share, weights, douts, stride, width);
            add_tile(key_share, slopes, queries, stride, width);
            __syncwarp();
        }
    }
    if (!is_row) return;
    float *to = gradients.key(s, slices, sequence, kv_head, position);
    const bool adds = is_added && position < s.offset();
#pragma unroll
    for (u32 i = 0; i < PARTS; ++i) {
        const u32 column = lane + i * WARP;
        if (column >= width) break;
        float *dk = to + column;
        float *dv = dk + s.key_width();
        *dk = adds ? *dk + key_share.x[i] : key_share.x[i];
        *dv = adds ? *dv + value_share.x[i] : value_share.x[i];
    }
}

// The gradients of a slice's own keys and values over them: what later slices have left, and then
// its own.
KERNEL attention_store_keys(AttentionShape s, const float *later, const float *own, row_t *qkv) {
    const u32 index = u32(thread_index());
    const u32 width = 2 * s.key_width();
    if (index >= s.sequences * s.slice_len * width) return;
    const u32 row = index / width;
    row_t *to = qkv + u64(row) * s.row_width() + s.query_width() + (index - row * width);
    *to = As<row_t>::from(later ? later[index] + own[index] : own[index]);
}
