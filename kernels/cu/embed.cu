// Token and position embeddings.
//
//   T  tokens (rows)        D  floats a row (width)
//   S  tokens a sequence

// One thread takes four columns of a row. Rows count through sequences if no positions are given.
KERNEL embed_forward(const u32 *tokens, const u32 *positions, const float *token_table,
                     const float *position_table, row_t *out, u32 rows, u32 width,
                     u32 sequence_len) {
    const u32 pieces = (width + 3) / 4;
    const u32 piece = u32(thread_index());
    if (piece >= rows * pieces) return;
    const u32 row = piece / pieces;
    const u32 column = (piece - row * pieces) * 4;
    const u32 count = within(column, width);
    Four x = load_four(token_table + u64(tokens[row]) * width + column, count);
    if (position_table) {
        const u32 position = positions ? positions[row] : row % sequence_len;
        const Four p = load_four(position_table + u64(position) * width + column, count);
        for (u32 i = 0; i < 4; ++i) x.x[i] = x.x[i] + p.x[i];
    }
    store_four(out + u64(row) * width + column, x, count);
}

// Rows of `gradient` added to rows of `table`, each row of the table by one block, in the order of
// `rows`: entry e owns row `entries[e]` of the table and the gradient's rows
// `rows[starts[e] .. starts[e + 1]]`.
KERNEL embed_backward(const u32 *entries, const u32 *starts, const u32 *rows,
                      const row_t *gradient, float *table, u32 width) {
    const u32 entry = blockIdx.x;
    float *to = table + u64(entries[entry]) * width;
    for (u32 column = threadIdx.x; column < width; column += blockDim.x) {
        float sum = to[column];
        u32 at = starts[entry];
        const u32 end = starts[entry + 1];
        // Loads of four rows are under way together; the additions keep their order.
        for (; at + 4 <= end; at += 4) {
            float x[4];
            for (u32 i = 0; i < 4; ++i)
                x[i] = to_float(gradient[u64(rows[at + i]) * width + column]);
            for (u32 i = 0; i < 4; ++i) sum += x[i];
        }
        for (; at < end; ++at) sum += to_float(gradient[u64(rows[at]) * width + column]);
        to[column] = sum;
    }
}

// Rows at the same place in their sequences, added up in the order of sequences.
KERNEL position_backward(const row_t *gradient, float *table, u32 sequences, u32 sequence_len,
                         u32 width) {
    const u64 element = thread_index();
    if (element >= u64(sequence_len) * width) return;
    float sum = table[element];
    for (u32 sequence = 0; sequence < sequences; ++sequence)
        sum += to_float(gradient[u64(sequence) * sequence_len * width + element]);
    table[element] = sum;
}
