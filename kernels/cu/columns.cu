// Sums over rows, in groups of a fixed number of rows, and sums of those.
//
//   N  rows        D  columns (width)

// Rows added up as one chain.
#define GROUP_ROWS 32

// Sums of each group of rows: `sums` has a row a group.
KERNEL column_sums(const row_t *x, float *sums, u32 rows, u32 width) {
    const u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= width) return;
    const u32 first = blockIdx.y * GROUP_ROWS;
    const u32 end = min(first + GROUP_ROWS, rows);
    float sum = 0.0f;
    for (u32 row = first; row < end; ++row) sum += to_float(x[u64(row) * width + column]);
    sums[u64(blockIdx.y) * width + column] = sum;
}

// The same of sums. With `is_added`, the one group there is continues what `sums` holds.
KERNEL column_sums_again(const float *x, float *sums, u32 rows, u32 width, u32 is_added) {
    const u32 column = blockIdx.x * blockDim.x + threadIdx.x;
    if (column >= width) return;
    const u32 first = blockIdx.y * GROUP_ROWS;
    const u32 end = min(first + GROUP_ROWS, rows);
    float sum = 0.0f;
    for (u32 row = first; row < end; ++row) sum += x[u64(row) * width + column];
    float *to = sums + u64(blockIdx.y) * width + column;
    *to = is_added ? *to + sum : sum;
}
