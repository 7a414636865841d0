// Sums over rows, in groups of a fixed number of rows, and sums of those.
//
//   N  rows        D  columns (width)

// Rows added up as one chain.
#define GROUP_ROWS 16
// Sums of groups that a block adds up, in a chain for each of its warps.
#define AGAIN_ROWS 1024
#define AGAIN_WARPS 8

// The sums of a group of rows for four columns.
template <bool WHOLE>
DEVICE void group_sum(const row_t *x, float *sums, u32 first, u32 end, u32 width, u32 column) {
    const u32 here = within(column, width);
    Four sum = {{0.0f, 0.0f, 0.0f, 0.0f}};
#pragma unroll 8
    for (u32 row = first; row < end; ++row) {
        const Four v = load_part<WHOLE>(x + u64(row) * width + column, here);
        for (u32 i = 0; i < 4; ++i) sum.x[i] += v.x[i];
    }
    store_four(sums + u64(blockIdx.y) * width + column, sum, here);
}

// Sums of each group of rows: `sums` has a row a group. A thread takes four columns.
KERNEL column_sums(const row_t *x, float *sums, u32 rows, u32 width) {
    const u32 column = (blockIdx.x * blockDim.x + threadIdx.x) * 4;
    if (column >= width) return;
    const u32 first = blockIdx.y * GROUP_ROWS;
    const u32 end = min(first + GROUP_ROWS, rows);
    if (width % 4 == 0 && is_aligned(x))
        group_sum<true>(x, sums, first, end, width, column);
    else
        group_sum<false>(x, sums, first, end, width, column);
}

// The same of up to AGAIN_ROWS sums. A block takes 32 columns, a warp of it every eighth sum as a chain,
// and the chains are added in order. With `is_added`, the one group there is continues what `sums` holds.
KERNEL column_sums_again(const float *x, float *sums, u32 rows, u32 width, u32 is_added) {
    SHARED(float, chains, AGAIN_WARPS * WARP);
    const u32 lane = threadIdx.x % WARP;
    const u32 warp = threadIdx.x / WARP;
    const u32 column = blockIdx.x * WARP + lane;
    const u32 first = blockIdx.y * AGAIN_ROWS;
    const u32 end = column < width ? min(first + AGAIN_ROWS, rows) : first;
    float sum = 0.0f;
#pragma unroll 8
    for (u32 row = first + warp; row < end; row += AGAIN_WARPS) sum += x[u64(row) * width + column];
    chains[threadIdx.x] = sum;
    __syncthreads();
    if (warp != 0 || column >= width) return;
    for (u32 other = 1; other < AGAIN_WARPS; ++other) sum += chains[other * WARP + lane];
    float *to = sums + u64(blockIdx.y) * width + column;
    *to = is_added ? *to + sum : sum;
}
