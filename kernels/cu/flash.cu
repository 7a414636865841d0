// Causal attention on tensor cores: bfloat16 operands, 32-bit sums, heads of 64 or 128.
//
//   B  sequences   S  tokens of a slice   H  query heads   G  key heads   D  floats a head
//
// After Dao (arXiv 2307.08691): a block takes 64 rows, 16 a warp, and goes through tiles of the
// others in shared memory; scores stay in registers. The backward pass is two kernels, gradients of
// keys and values over blocks of keys and of queries over blocks of queries, so that nothing needs
// an atomic: seven products where one kernel would need five. Where rows do not see their sequences
// from the beginning, tiles that no row of a block sees are left out; code without a mask has no
// instruction for one.
//
// Fragments are those of mma.m16n8k16. With g = lane / 4 and t = lane % 4, a lane holds of
//   A (16 x 16)  rows g and g + 8, columns 2t, 2t + 1, 2t + 8, 2t + 9
//   B (16 x 8)   rows 2t, 2t + 1, 2t + 8, 2t + 9, column g
//   C (16 x 8)   rows g and g + 8, columns 2t and 2t + 1

#define BLOCK_ROWS 64
#define FLASH_WARPS 4
#define FLASH_THREADS (FLASH_WARPS * WARP)
// Blocks a multiprocessor must be able to hold: no register goes to memory with two.
#define BLOCKS_MIN 2
// bf16s between rows in shared memory beyond a head's: rows begin in different banks.
#define PAD 8
#define LN_2 0.69314718f
#define MINUS_INFINITY __uint_as_float(0xff800000u)

#ifndef EMULATED
// d += a * b
DEVICE void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE u32 shared_address(const void *pointer) {
    u32 address;
    asm("{ .reg .u64 wide; cvta.to.shared.u64 wide, %1; cvt.u32.u64 %0, wide; }"
        : "=r"(address)
        : "l"(pointer));
    return address;
}

// Four 8 x 8 matrices; lane l names row l % 8 of matrix l / 8.
DEVICE void load_matrices(u32 (&r)[4], const bf16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

DEVICE void load_matrices_transposed(u32 (&r)[4], const bf16 *row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

// Copies 16 bytes to shared memory on the way of its own, or zeros if there is nothing. The copies
// since the last `close_copies` are a group; `wait_copies<N>` waits for all groups but the last N.
DEVICE void copy_piece(bf16 *to, const row_t *from, bool is_there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)),
                 "l"(from), "r"(is_there ? 16 : 0)
                 : "memory");
}

DEVICE void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

template <u32 N>
DEVICE void wait_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory");
}

// Two floats rounded, the first in the lower half.
DEVICE u32 pack(float low, float high) {
    u32 both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
#endif

DEVICE float quad_sum(float x) {
    x += __shfl_xor_sync(ALL_LANES, x, 1);
    return x + __shfl_xor_sync(ALL_LANES, x, 2);
}

DEVICE float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 1));
    return fmaxf(x, __shfl_xor_sync(ALL_LANES, x, 2));
}

// A 16 x 16 A fragment at a place in shared memory.
template <u32 STRIDE>
DEVICE void load_a(u32 (&a)[4], const bf16 *tile) {
    const u32 lane = threadIdx.x % WARP;
    load_matrices(a, tile + (lane % 16) * STRIDE + lane / 16 * 8);
}

// B fragments of 16 columns, of a tile whose rows are the product's columns.
template <u32 STRIDE>
DEVICE void load_b_rows(u32 (&b)[4], const bf16 *tile) {
    const u32 lane = threadIdx.x % WARP;
    load_matrices(b, tile + (lane % 8 + lane / 16 * 8) * STRIDE + lane / 8 % 2 * 8);
}

// B fragments of 16 columns, of a tile whose columns are the product's columns.
template <u32 STRIDE>
DEVICE void load_b_columns(u32 (&b)[4], const bf16 *tile) {
    const u32 lane = threadIdx.x % WARP;
    load_matrices_transposed(b, tile + (lane % 16) * STRIDE + lane / 16 * 8);
}

// A fragments of 16 whole rows in memory; rows that are not there are zeros.
template <u32 D>
DEVICE void load_rows(u32 (&a)[D / 16][4], const row_t *low, const row_t *high) {
    const u32 t = threadIdx.x % 4;
#pragma unroll
    for (u32 k = 0; k < D / 16; ++k) {
        const u32 at = k * 16 + t * 2;
        a[k][0] = low ? *reinterpret_cast<const u32 *>(low + at) : 0;
        a[k][1] = high ? *reinterpret_cast<const u32 *>(high + at) : 0;
        a[k][2] = low ? *reinterpret_cast<const u32 *>(low + at + 8) : 0;
        a[k][3] = high ? *reinterpret_cast<const u32 *>(high + at + 8) : 0;
    }
}

// Begins to copy ROWS keys and values from position `first` on; zeros beyond the last.
template <u32 D, u32 ROWS>
DEVICE void stage_keys(bf16 *keys, bf16 *values, const AttentionShape &s, const Slices &slices,
                       u32 sequence, u32 kv_head, u32 first) {
#pragma unroll 4
    for (u32 i = threadIdx.x; i < ROWS * (D / 8); i += FLASH_THREADS) {
        const u32 row = i / (D / 8);
        const u32 column = i % (D / 8) * 8;
        const bool is_there = first + row < s.keys();
        const row_t *key = slices.key(s, sequence, kv_head, is_there ? first + row : 0) + column;
        copy_piece(keys + row * (D + PAD) + column, key, is_there);
        copy_piece(values + row * (D + PAD) + column, key + s.key_width(), is_there);
    }
}

// The keys that a row sees: those from `first` on, and so many behind it.
template <bool MASKED>
struct SeenKeys {
    u32 first, behind;

    DEVICE SeenKeys(const AttentionShape &s, const Mask &mask, u32 sequence, u32 own) {
        const bool is_there = MASKED && own < s.slice_len;
        first = is_there ? mask.first_key(u64(sequence) * s.slice_len + own) : 0;
        behind = s.offset() + own - first;
    }

    DEVICE bool has(u32 position) const {
        return MASKED ? position - first <= behind : position <= behind;
    }
};

// Whether queries from `query` on see all keys before `key_end`: a tile of such has nothing to hide.
template <bool MASKED>
DEVICE bool sees_all(const AttentionShape &s, u32 key_end, u32 query) {
    return !MASKED && key_end <= s.offset() + query + 1;
}

// The first position of the tile with the first key that a block of queries sees.
template <bool MASKED>
DEVICE u32 first_tile(const AttentionShape &s, const Mask &mask, u32 sequence, u32 query, u32 rows) {
    return MASKED ? mask.first_key(u64(sequence) * s.slice_len + query) / rows * rows : 0;
}

template <u32 D, bool MASKED>
DEVICE void forward(const AttentionShape &s, const Slices &slices, const Mask &mask, row_t *out,
                    float *log_sums) {
    // Two tiles in turn: one is read while the next one comes.
    DYNAMIC_SHARED(bf16, shared);
    constexpr u32 TILE = BLOCK_ROWS * (D + PAD);
    const u32 warp = threadIdx.x / WARP;
    const u32 g = threadIdx.x % WARP / 4;
    const u32 t = threadIdx.x % 4;
    const u32 sequence = blockIdx.y / s.heads;
    const u32 head = blockIdx.y % s.heads;
    const u32 kv_head = head / (s.heads / s.kv_heads);
    // Late blocks have the most keys, so they begin first.
    const u32 block_first = (gridDim.x - 1 - blockIdx.x) * BLOCK_ROWS;
    const u32 own[2] = {block_first + warp * 16 + g, block_first + warp * 16 + g + 8};
    const SeenKeys<MASKED> seen[2] = {{s, mask, sequence, own[0]}, {s, mask, sequence, own[1]}};
    const u32 last = s.offset() + min(block_first + BLOCK_ROWS, s.slice_len) - 1;
    const row_t *queries = slices.qkv[s.earlier] +
                           u64(sequence) * s.slice_len * s.row_width() + head * D;
    u32 q[D / 16][4];
    const row_t *none = nullptr;
    load_rows<D>(q, own[0] < s.slice_len ? queries + u64(own[0]) * s.row_width() : none,
                 own[1] < s.slice_len ? queries + u64(own[1]) * s.row_width() : none);
    const float scale = s.scale * LOG2_E;
    float max[2] = {MINUS_INFINITY, MINUS_INFINITY};
    float sum[2] = {0.0f, 0.0f};
    float o[D / 8][4] = {};
    const u32 start = first_tile<MASKED>(s, mask, sequence, block_first, BLOCK_ROWS);
    stage_keys<D, BLOCK_ROWS>(shared, shared + TILE, s, slices, sequence, kv_head, start);
    close_copies();
    for (u32 first = start, side = 0; first <= last; first += BLOCK_ROWS, side ^= 1) {
        const bf16 *keys = shared + side * 2 * TILE;
        const bf16 *values = keys + TILE;
        bf16 *next = shared + (side ^ 1) * 2 * TILE;
        if (first + BLOCK_ROWS <= last)
            stage_keys<D, BLOCK_ROWS>(next, next + TILE, s, slices, sequence, kv_head,
                                      first + BLOCK_ROWS);
        close_copies();
        wait_copies<1>();
        __syncthreads();
        float score[BLOCK_ROWS / 8][4] = {};
#pragma unroll
        for (u32 k = 0; k < D / 16; ++k) {
#pragma unroll
            for (u32 n = 0; n < BLOCK_ROWS / 16; ++n) {
                u32 b[4];
                load_b_rows<D + PAD>(b, keys + n * 16 * (D + PAD) + k * 16);
                mma(score[2 * n], q[k], b[0], b[1]);
                mma(score[2 * n + 1], q[k], b[2], b[3]);
            }
        }
        float new_max[2] = {max[0], max[1]};
        if (!sees_all<MASKED>(s, first + BLOCK_ROWS, block_first + warp * 16)) {
#pragma unroll
            for (u32 n = 0; n < BLOCK_ROWS / 8; ++n) {
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    const u32 position = first + n * 8 + t * 2 + i % 2;
                    if (!seen[i / 2].has(position)) score[n][i] = MINUS_INFINITY;
                }
            }
        }
#pragma unroll
        for (u32 n = 0; n < BLOCK_ROWS / 8; ++n) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                score[n][i] *= scale;
                new_max[i / 2] = fmaxf(new_max[i / 2], score[n][i]);
            }
        }
        float base[2];
#pragma unroll
        for (u32 half = 0; half < 2; ++half) {
            new_max[half] = quad_max(new_max[half]);
            // A row that has seen no key yet keeps its sums of zero.
            const bool is_nothing = MASKED && new_max[half] == MINUS_INFINITY;
            base[half] = is_nothing ? 0.0f : new_max[half];
            const float rescale = fast_exp2(max[half] - base[half]);
            max[half] = new_max[half];
            sum[half] *= rescale;
#pragma unroll
            for (u32 n = 0; n < D / 8; ++n) {
                o[n][half * 2] *= rescale;
                o[n][half * 2 + 1] *= rescale;
            }
        }
#pragma unroll
        for (u32 n = 0; n < BLOCK_ROWS / 8; ++n) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                score[n][i] = fast_exp2(score[n][i] - base[i / 2]);
                sum[i / 2] += score[n][i];
            }
        }
#pragma unroll
        for (u32 k = 0; k < BLOCK_ROWS / 16; ++k) {
            const float(&low)[4] = score[2 * k];
            const float(&high)[4] = score[2 * k + 1];
            const u32 p[4] = {pack(low[0], low[1]), pack(low[2], low[3]), pack(high[0], high[1]),
                              pack(high[2], high[3])};
#pragma unroll
            for (u32 n = 0; n < D / 16; ++n) {
                u32 b[4];
                load_b_columns<D + PAD>(b, values + k * 16 * (D + PAD) + n * 16);
                mma(o[2 * n], p, b[0], b[1]);
                mma(o[2 * n + 1], p, b[2], b[3]);
            }
        }
        // Nobody reads this tile any more: the one after the next may come.
        __syncthreads();
    }
    wait_copies<0>();
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        const float whole = quad_sum(sum[half]);
        if (own[half] >= s.slice_len) continue;
        const u64 row = u64(sequence) * s.slice_len + own[half];
        const float inverse = 1.0f / whole;
        row_t *to = out + row * s.query_width() + head * D + t * 2;
#pragma unroll
        for (u32 n = 0; n < D / 8; ++n)
            *reinterpret_cast<u32 *>(to + n * 8) =
                pack(o[n][half * 2] * inverse, o[n][half * 2 + 1] * inverse);
        if (t == 0) log_sums[row * s.heads + head] = max[half] * LN_2 + logf(whole);
    }
}

KERNEL __launch_bounds__(FLASH_THREADS, BLOCKS_MIN)
    flash_forward_64(AttentionShape s, Slices slices, const u32 *first_keys, row_t *out,
                     float *log_sums) {
    if (first_keys)
        forward<64, true>(s, slices, {first_keys}, out, log_sums);
    else
        forward<64, false>(s, slices, {}, out, log_sums);
}

KERNEL __launch_bounds__(FLASH_THREADS, BLOCKS_MIN)
    flash_forward_128(AttentionShape s, Slices slices, const u32 *first_keys, row_t *out,
                      float *log_sums) {
    if (first_keys)
        forward<128, true>(s, slices, {first_keys}, out, log_sums);
    else
        forward<128, false>(s, slices, {}, out, log_sums);
}

// Queries over which the gradients of keys are summed at a time, and keys for those of queries.
template <u32 D>
struct BackwardTile {
    static constexpr u32 ROWS = D == 64 ? 64 : 32;
};

template <u32 D, bool MASKED>
DEVICE void backward_queries(const AttentionShape &s, const Slices &slices, const Mask &mask,
                             const row_t *gradient, const float *log_sums, const float *products,
                             row_t *qkv) {
    constexpr u32 KEYS = BackwardTile<D>::ROWS;
    DYNAMIC_SHARED(bf16, shared);
    constexpr u32 TILE = KEYS * (D + PAD);
    const u32 warp = threadIdx.x / WARP;
    const u32 g = threadIdx.x % WARP / 4;
    const u32 t = threadIdx.x % 4;
    const u32 sequence = blockIdx.y / s.heads;
    const u32 head = blockIdx.y % s.heads;
    const u32 kv_head = head / (s.heads / s.kv_heads);
    const u32 block_first = (gridDim.x - 1 - blockIdx.x) * BLOCK_ROWS;
    const u32 own[2] = {block_first + warp * 16 + g, block_first + warp * 16 + g + 8};
    const SeenKeys<MASKED> seen[2] = {{s, mask, sequence, own[0]}, {s, mask, sequence, own[1]}};
    const u32 last = s.offset() + min(block_first + BLOCK_ROWS, s.slice_len) - 1;
    const float scale = s.scale * LOG2_E;
    row_t *to[2] = {nullptr, nullptr};
    const row_t *dout[2] = {nullptr, nullptr};
    float log_sum[2] = {0.0f, 0.0f};
    float product[2] = {0.0f, 0.0f};
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        if (own[half] >= s.slice_len) continue;
        const u64 row = u64(sequence) * s.slice_len + own[half];
        to[half] = qkv + row * s.row_width() + head * D;
        dout[half] = gradient + row * s.query_width() + head * D;
        log_sum[half] = log_sums[row * s.heads + head] * LOG2_E;
        product[half] = products[row * s.heads + head];
    }
    u32 q[D / 16][4];
    u32 dy[D / 16][4];
    load_rows<D>(q, to[0], to[1]);
    load_rows<D>(dy, dout[0], dout[1]);
    float dq[D / 8][4] = {};
    const u32 start = first_tile<MASKED>(s, mask, sequence, block_first, KEYS);
    stage_keys<D, KEYS>(shared, shared + TILE, s, slices, sequence, kv_head, start);
    close_copies();
    for (u32 first = start, side = 0; first <= last; first += KEYS, side ^= 1) {
        const bf16 *keys = shared + side * 2 * TILE;
        const bf16 *values = keys + TILE;
        bf16 *next = shared + (side ^ 1) * 2 * TILE;
        if (first + KEYS <= last)
            stage_keys<D, KEYS>(next, next + TILE, s, slices, sequence, kv_head, first + KEYS);
        close_copies();
        wait_copies<1>();
        __syncthreads();
        float score[KEYS / 8][4] = {};
        float slope[KEYS / 8][4] = {};
#pragma unroll
        for (u32 k = 0; k < D / 16; ++k) {
#pragma unroll
            for (u32 n = 0; n < KEYS / 16; ++n) {
                u32 b[4];
                load_b_rows<D + PAD>(b, keys + n * 16 * (D + PAD) + k * 16);
                mma(score[2 * n], q[k], b[0], b[1]);
                mma(score[2 * n + 1], q[k], b[2], b[3]);
                load_b_rows<D + PAD>(b, values + n * 16 * (D + PAD) + k * 16);
                mma(slope[2 * n], dy[k], b[0], b[1]);
                mma(slope[2 * n + 1], dy[k], b[2], b[3]);
            }
        }
#pragma unroll
        for (u32 n = 0; n < KEYS / 8; ++n) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const float weight = fast_exp2(score[n][i] * scale - log_sum[i / 2]);
                slope[n][i] = weight * (slope[n][i] - product[i / 2]);
            }
        }
        if (!sees_all<MASKED>(s, first + KEYS, block_first + warp * 16)) {
#pragma unroll
            for (u32 n = 0; n < KEYS / 8; ++n) {
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    const u32 position = first + n * 8 + t * 2 + i % 2;
                    if (!seen[i / 2].has(position)) slope[n][i] = 0.0f;
                }
            }
        }
#pragma unroll
        for (u32 k = 0; k < KEYS / 16; ++k) {
            const float(&low)[4] = slope[2 * k];
            const float(&high)[4] = slope[2 * k + 1];
            const u32 ds[4] = {pack(low[0], low[1]), pack(low[2], low[3]), pack(high[0], high[1]),
                               pack(high[2], high[3])};
#pragma unroll
            for (u32 n = 0; n < D / 16; ++n) {
                u32 b[4];
                load_b_columns<D + PAD>(b, keys + k * 16 * (D + PAD) + n * 16);
                mma(dq[2 * n], ds, b[0], b[1]);
                mma(dq[2 * n + 1], ds, b[2], b[3]);
            }
        }
        __syncthreads();
    }
    wait_copies<0>();
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        if (!to[half]) continue;
#pragma unroll
        for (u32 n = 0; n < D / 8; ++n)
            *reinterpret_cast<u32 *>(to[half] + n * 8 + t * 2) =
                pack(dq[n][half * 2] * s.scale, dq[n][half * 2 + 1] * s.scale);
    }
}

KERNEL __launch_bounds__(FLASH_THREADS, BLOCKS_MIN)
    flash_backward_queries_64(AttentionShape s, Slices slices, const u32 *first_keys,
                              const row_t *gradient, const float *log_sums,
                              const float *products, row_t *qkv) {
    if (first_keys)
        backward_queries<64, true>(s, slices, {first_keys}, gradient, log_sums, products, qkv);
    else
        backward_queries<64, false>(s, slices, {}, gradient, log_sums, products, qkv);
}

KERNEL __launch_bounds__(FLASH_THREADS, BLOCKS_MIN)
    flash_backward_queries_128(AttentionShape s, Slices slices, const u32 *first_keys,
                               const row_t *gradient, const float *log_sums,
                               const float *products, row_t *qkv) {
    if (first_keys)
        backward_queries<128, true>(s, slices, {first_keys}, gradient, log_sums, products, qkv);
    else
        backward_queries<128, false>(s, slices, {}, gradient, log_sums, products, qkv);
}

// Begins to copy queries of a head and the gradients of their outputs, and copies their log sums
// (base 2) and products.
template <u32 D, u32 ROWS>
DEVICE void stage_queries(bf16 *queries, bf16 *douts, float *row_sums, float *row_products,
                          const AttentionShape &s, const row_t *qkv, const row_t *gradient,
                          const float *log_sums, const float *products, u32 sequence, u32 head,
                          u32 first) {
    const u64 start = u64(sequence) * s.slice_len;
#pragma unroll 2
    for (u32 i = threadIdx.x; i < ROWS * (D / 8); i += FLASH_THREADS) {
        const u32 row = i / (D / 8);
        const u32 column = i % (D / 8) * 8;
        const bool is_there = first + row < s.slice_len;
        const u64 from = start + (is_there ? first + row : 0);
        copy_piece(queries + row * (D + PAD) + column,
                       qkv + from * s.row_width() + head * D + column, is_there);
        copy_piece(douts + row * (D + PAD) + column,
                       gradient + from * s.query_width() + head * D + column, is_there);
    }
    for (u32 row = threadIdx.x; row < ROWS; row += FLASH_THREADS) {
        const bool is_there = first + row < s.slice_len;
        const u64 at = (start + (is_there ? first + row : 0)) * s.heads + head;
        row_sums[row] = is_there ? log_sums[at] * LOG2_E : 0.0f;
        row_products[row] = is_there ? products[at] : 0.0f;
    }
}

// The queries of a slice that see a key: those from `first` on, `count` of them. The first keys of
// rows never fall, so that they follow one another.
template <bool MASKED>
struct SeeingQueries {
    u32 first, count;

    DEVICE SeeingQueries(const AttentionShape &s, const Mask &mask, u32 sequence, u32 key) {
        first = key > s.offset() ? key - s.offset() : 0;
        const u32 end = MASKED ? mask.query_end(s, sequence, key + 1) : s.slice_len;
        count = end > first ? end - first : 0;
    }

    DEVICE bool has(u32 query) const { return query - first < count; }
};

// A block of 64 keys; the scores are transposed, a warp's rows are keys.
template <u32 D, bool MASKED>
DEVICE void backward_keys(const AttentionShape &s, const Slices &slices, const Mask &mask,
                          const SliceGradients &gradients, const row_t *gradient,
                          const float *log_sums, const float *products, u32 is_added) {
    constexpr u32 QUERIES = BackwardTile<D>::ROWS;
    DYNAMIC_SHARED(bf16, shared);
    bf16 *keys = shared;
    bf16 *values = keys + BLOCK_ROWS * (D + PAD);
    bf16 *tiles = values + BLOCK_ROWS * (D + PAD);
    constexpr u32 TILE = QUERIES * (D + PAD);
    float *numbers = reinterpret_cast<float *>(tiles + 4 * TILE);
    const u32 warp = threadIdx.x / WARP;
    const u32 g = threadIdx.x % WARP / 4;
    const u32 t = threadIdx.x % 4;
    const u32 sequence = blockIdx.y / s.kv_heads;
    const u32 kv_head = blockIdx.y % s.kv_heads;
    const u32 group = s.heads / s.kv_heads;
    const u32 first_key = blockIdx.x * BLOCK_ROWS;
    const u32 own[2] = {first_key + warp * 16 + g, first_key + warp * 16 + g + 8};
    const SeeingQueries<MASKED> seeing[2] = {{s, mask, sequence, own[0]},
                                             {s, mask, sequence, own[1]}};
    const float scale = s.scale * LOG2_E;
    stage_keys<D, BLOCK_ROWS>(keys, values, s, slices, sequence, kv_head, first_key);
    const bf16 *own_keys = keys + warp * 16 * (D + PAD);
    const bf16 *own_values = values + warp * 16 * (D + PAD);
    float dk[D / 8][4] = {};
    float dv[D / 8][4] = {};
    const u32 first_seen = first_key > s.offset() ? first_key - s.offset() : 0;
    const u32 start = first_seen / QUERIES * QUERIES;
    const u32 first_head = kv_head * group;
    // The tiles of all heads in turn are one line; two of them are here at a time.
    const u32 key_end = min(first_key + BLOCK_ROWS, s.keys());
    const u32 end = MASKED ? mask.query_end(s, sequence, key_end) : s.slice_len;
    const u32 head_tiles = start < end ? (end - start + QUERIES - 1) / QUERIES : 0;
    const u32 tile_count = group * head_tiles;
    const auto stage = [&](u32 tile) {
        bf16 *to = tiles + tile % 2 * 2 * TILE;
        float *to_numbers = numbers + tile % 2 * 2 * QUERIES;
        stage_queries<D, QUERIES>(to, to + TILE, to_numbers, to_numbers + QUERIES, s,
                                  slices.qkv[s.earlier], gradient, log_sums, products, sequence,
                                  first_head + tile / head_tiles,
                                  start + tile % head_tiles * QUERIES);
    };
    if (tile_count > 0) stage(0);
    close_copies();
    for (u32 tile = 0; tile < tile_count; ++tile) {
        const bf16 *queries = tiles + tile % 2 * 2 * TILE;
        const bf16 *douts = queries + TILE;
        const float *row_sums = numbers + tile % 2 * 2 * QUERIES;
        const float *row_products = row_sums + QUERIES;
        const u32 first = start + tile % head_tiles * QUERIES;
        if (tile + 1 < tile_count) stage(tile + 1);
        close_copies();
        wait_copies<1>();
        __syncthreads();
        float weight[QUERIES / 8][4] = {};
        float slope[QUERIES / 8][4] = {};
        // Not all at once: what is loaded ahead does not fit in registers.
#pragma unroll 4
        for (u32 k = 0; k < D / 16; ++k) {
            u32 key[4];
            u32 value[4];
            load_a<D + PAD>(key, own_keys + k * 16);
            load_a<D + PAD>(value, own_values + k * 16);
#pragma unroll
            for (u32 n = 0; n < QUERIES / 16; ++n) {
                u32 b[4];
                load_b_rows<D + PAD>(b, queries + n * 16 * (D + PAD) + k * 16);
                mma(weight[2 * n], key, b[0], b[1]);
                mma(weight[2 * n + 1], key, b[2], b[3]);
                load_b_rows<D + PAD>(b, douts + n * 16 * (D + PAD) + k * 16);
                mma(slope[2 * n], value, b[0], b[1]);
                mma(slope[2 * n + 1], value, b[2], b[3]);
            }
        }
#pragma unroll
        for (u32 n = 0; n < QUERIES / 8; ++n) {
#pragma unroll
            for (u32 i = 0; i < 4; ++i) {
                const u32 query = n * 8 + t * 2 + i % 2;
                weight[n][i] = fast_exp2(weight[n][i] * scale - row_sums[query]);
                slope[n][i] = weight[n][i] * (slope[n][i] - row_products[query]);
            }
        }
        // Queries beyond the end have no keys; those before the warp's last key do not see all.
        const bool is_inside = first + QUERIES <= s.slice_len;
        if (!is_inside || !sees_all<MASKED>(s, first_key + warp * 16 + 16, first)) {
#pragma unroll
            for (u32 n = 0; n < QUERIES / 8; ++n) {
#pragma unroll
                for (u32 i = 0; i < 4; ++i) {
                    if (seeing[i / 2].has(first + n * 8 + t * 2 + i % 2)) continue;
                    weight[n][i] = 0.0f;
                    slope[n][i] = 0.0f;
                }
            }
        }
#pragma unroll
        for (u32 k = 0; k < QUERIES / 16; ++k) {
            const u32 p[4] = {pack(weight[2 * k][0], weight[2 * k][1]),
                              pack(weight[2 * k][2], weight[2 * k][3]),
                              pack(weight[2 * k + 1][0], weight[2 * k + 1][1]),
                              pack(weight[2 * k + 1][2], weight[2 * k + 1][3])};
            const u32 ds[4] = {pack(slope[2 * k][0], slope[2 * k][1]),
                               pack(slope[2 * k][2], slope[2 * k][3]),
                               pack(slope[2 * k + 1][0], slope[2 * k + 1][1]),
                               pack(slope[2 * k + 1][2], slope[2 * k + 1][3])};
#pragma unroll
            for (u32 n = 0; n < D / 16; ++n) {
                u32 b[4];
                load_b_columns<D + PAD>(b, douts + k * 16 * (D + PAD) + n * 16);
                mma(dv[2 * n], p, b[0], b[1]);
                mma(dv[2 * n + 1], p, b[2], b[3]);
                load_b_columns<D + PAD>(b, queries + k * 16 * (D + PAD) + n * 16);
                mma(dk[2 * n], ds, b[0], b[1]);
                mma(dk[2 * n + 1], ds, b[2], b[3]);
            }
        }
        __syncthreads();
    }
    wait_copies<0>();
#pragma unroll
    for (u32 half = 0; half < 2; ++half) {
        if (own[half] >= s.keys()) continue;
        float *to = gradients.key(s, slices, sequence, kv_head, own[half]) + t * 2;
        const bool adds = is_added && own[half] < s.offset();
#pragma unroll
        for (u32 n = 0; n < D / 8; ++n) {
#pragma unroll
            for (u32 i = 0; i < 2; ++i) {
                float *to_key = to + n * 8 + i;
                float *to_value = to_key + s.key_width();
                const float key = dk[n][half * 2 + i] * s.scale;
                const float value = dv[n][half * 2 + i];
                *to_key = adds ? *to_key + key : key;
                *to_value = adds ? *to_value + value : value;
            }
        }
    }
}

KERNEL __launch_bounds__(FLASH_THREADS, BLOCKS_MIN)
    flash_backward_keys_64(AttentionShape s, Slices slices, const u32 *first_keys,
                           SliceGradients gradients, const row_t *gradient,
                           const float *log_sums, const float *products, u32 is_added) {
    if (first_keys)
        backward_keys<64, true>(s, slices, {first_keys}, gradients, gradient, log_sums, products,
                                is_added);
    else
        backward_keys<64, false>(s, slices, {}, gradients, gradient, log_sums, products,
                                 is_added);
}

KERNEL __launch_bounds__(FLASH_THREADS, BLOCKS_MIN)
    flash_backward_keys_128(AttentionShape s, Slices slices, const u32 *first_keys,
                            SliceGradients gradients, const row_t *gradient,
                            const float *log_sums, const float *products, u32 is_added) {
    if (first_keys)
        backward_keys<128, true>(s, slices, {first_keys}, gradients, gradient, log_sums, products,
                                is_added);
    else
        backward_keys<128, false>(s, slices, {}, gradients, gradient, log_sums, products,
                                 is_added);
}
