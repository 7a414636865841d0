// Stages that touch each element once, rotary embedding, and conversions.
//
// A thread takes four neighbours.

// y += bias
KERNEL finish_plain(const float *bias, row_t *y, u32 rows, u32 width) {
    const u32 pieces = (width + 3) / 4;
    const u32 piece = u32(thread_index());
    if (piece >= rows * pieces) return;
    const u32 row = piece / pieces;
    const u32 column = (piece - row * pieces) * 4;
    const u32 here = within(column, width);
    row_t *to = y + u64(row) * width + column;
    Four v = load_four(to, here);
    const Four b = load_four(bias + column, here);
    for (u32 i = 0; i < 4; ++i) v.x[i] += b.x[i];
    store_four(to, v, here);
}

// before = y + bias; y = gelu(before), of what `before` holds once it is rounded.
KERNEL finish_gelu(const float *bias, row_t *before, row_t *y, u32 rows, u32 width) {
    const u32 pieces = (width + 3) / 4;
    const u32 piece = u32(thread_index());
    if (piece >= rows * pieces) return;
    const u32 row = piece / pieces;
    const u32 column = (piece - row * pieces) * 4;
    const u32 here = within(column, width);
    const u64 start = u64(row) * width + column;
    Four v = load_four(y + start, here);
    Four b = {{0.0f, 0.0f, 0.0f, 0.0f}};
    if (bias) b = load_four(bias + column, here);
    for (u32 i = 0; i < 4; ++i) v.x[i] = rounded(v.x[i] + b.x[i]);
    store_four(before + start, v, here);
    for (u32 i = 0; i < 4; ++i) v.x[i] = gelu(v.x[i]);
    store_four(y + start, v, here);
}

KERNEL gelu_forward(const row_t *before, row_t *h, u64 count) {
    FOUR(count);
    Four v = load_four(before + at, here);
    for (u32 i = 0; i < 4; ++i) v.x[i] = gelu(v.x[i]);
    store_four(h + at, v, here);
}

// before = gradient * gelu'(before)
KERNEL gelu_backward(const row_t *gradient, row_t *before, u64 count) {
    FOUR(count);
    const Four d = load_four(gradient + at, here);
    Four v = load_four(before + at, here);
    for (u32 i = 0; i < 4; ++i) v.x[i] = d.x[i] * gelu_slope(v.x[i]);
    store_four(before + at, v, here);
}

// A row of `gate_up` holds `width` floats of each.
KERNEL swiglu_forward(const row_t *gate_up, row_t *h, u32 rows, u32 width) {
    const u32 pieces = (width + 3) / 4;
    const u32 piece = u32(thread_index());
    if (piece >= rows * pieces) return;
    const u32 row = piece / pieces;
    const u32 column = (piece - row * pieces) * 4;
    const u32 here = within(column, width);
    const row_t *gate = gate_up + u64(row) * 2 * width + column;
    Four g = load_four(gate, here);
    const Four u = load_four(gate + width, here);
    for (u32 i = 0; i < 4; ++i) g.x[i] = silu(g.x[i]) * u.x[i];
    store_four(h + u64(row) * width + column, g, here);
}

KERNEL swiglu_backward(const row_t *gradient, row_t *gate_up, u32 rows, u32 width) {
    const u32 pieces = (width + 3) / 4;
    const u32 piece = u32(thread_index());
    if (piece >= rows * pieces) return;
    const u32 row = piece / pieces;
    const u32 column = (piece - row * pieces) * 4;
    const u32 here = within(column, width);
    row_t *gate = gate_up + u64(row) * 2 * width + column;
    const Four d = load_four(gradient + u64(row) * width + column, here);
    Four g = load_four(gate, here);
    Four u = load_four(gate + width, here);
    for (u32 i = 0; i < 4; ++i) {
        const float up = d.x[i] * silu(g.x[i]);
        g.x[i] = d.x[i] * u.x[i] * silu_slope(g.x[i]);
        u.x[i] = up;
    }
    store_four(gate, g, here);
    store_four(gate + width, u, here);
}

// Queries and keys turned by their position; halves, not pairs (Su et al., arXiv 2104.09864). A
// position has `head_width / 2` cosines and then as many sines. A thread takes four pairs.
KERNEL rotate(const float *angles, row_t *qkv, u32 rows, u32 sequence_len, u32 turned_heads,
              u32 head_width, u32 row_width, float sign) {
    const u32 half = head_width / 2;
    const u32 pieces = (half + 3) / 4;
    const u32 index = u32(thread_index());
    const u32 row_pieces = turned_heads * pieces;
    if (index >= rows * row_pieces) return;
    const u32 row = index / row_pieces;
    const u32 head = (index - row * row_pieces) / pieces;
    const u32 pair = (index - row * row_pieces) % pieces * 4;
    const u32 here = within(pair, half);
    const float *angle = angles + u64(row % sequence_len) * head_width + pair;
    const Four cosine = load_four(angle, here);
    const Four sine = load_four(angle + half, here);
    row_t *low = qkv + u64(row) * row_width + u64(head) * head_width + pair;
    Four a = load_four(low, here);
    Four b = load_four(low + half, here);
    for (u32 i = 0; i < 4; ++i) {
        const float turned = sign * sine.x[i];
        const float before = a.x[i];
        a.x[i] = before * cosine.x[i] - b.x[i] * turned;
        b.x[i] = b.x[i] * cosine.x[i] + before * turned;
    }
    store_four(low, a, here);
    store_four(low + half, b, here);
}

KERNEL rows_from_floats(const float *from, row_t *to, u64 count) {
    FOUR(count);
    store_four(to + at, load_four(from + at, here), here);
}

KERNEL floats_from_rows(const row_t *from, float *to, u64 count) {
    FOUR(count);
    store_four(to + at, load_four(from + at, here), here);
}

// to += from
KERNEL add_floats(const float *from, float *to, u64 count) {
    FOUR(count);
    const Four f = load_four(from + at, here);
    Four v = load_four(to + at, here);
    for (u32 i = 0; i < 4; ++i) v.x[i] += f.x[i];
    store_four(to + at, v, here);
}

// weights = base + scale * b * a, of rows of `inputs` elements: products in the order of the rank.
KERNEL add_low_rank(const float *base, const float *a, const float *b, row_t *weights, u32 count,
                    u32 inputs, u32 rank, float scale) {
    const u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    const float *factors = b + u64(at / inputs) * rank;
    const float *column = a + at % inputs;
    float sum = 0.0f;
    for (u32 k = 0; k < rank; ++k) sum = fmaf(factors[k], column[u64(k) * inputs], sum);
    weights[at] = As<row_t>::from(fmaf(scale, sum, base[at]));
}

// Columns from `first` on of rows of `width` elements, multiplied.
KERNEL scale_columns(const row_t *from, row_t *to, u32 count, u32 width, u32 first, u32 columns,
                     float scale) {
    const u32 at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    const u64 source = u64(at / columns) * width + first + at % columns;
    to[at] = As<row_t>::from(scale * to_float(from[source]));
}
