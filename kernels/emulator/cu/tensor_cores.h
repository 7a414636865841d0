// Products and loads of tensor cores, lane by lane, after the prelude.

struct Fragments {
    u32 a[4], b[2];
};

static float half_of(u32 pair, u32 index) {
    return __uint_as_float(index ? pair & 0xffff0000u : pair << 16);
}

// d += a * b: m16n8k16 as the PTX manual lays it out.
static void mma(float (&d)[4], const u32 (&a)[4], u32 b0, u32 b1) {
    auto all = emulator::show(Fragments{{a[0], a[1], a[2], a[3]}, {b0, b1}});
    const u32 lane = emulator::current % 32;
    for (u32 i = 0; i < 4; ++i) {
        const u32 row = lane / 4 + (i / 2) * 8;
        const u32 column = lane % 4 * 2 + i % 2;
        double sum = 0.0;
        for (u32 k = 0; k < 16; ++k) {
            // Row r and column k of A: lane r % 8 * 4 + k % 8 / 2, register r / 8 + k / 8 * 2.
            const auto &left = emulator::look<Fragments>(all, row % 8 * 4 + k % 8 / 2);
            // Row k and column c of B: lane c * 4 + k % 8 / 2, register k / 8.
            const auto &right = emulator::look<Fragments>(all, column * 4 + k % 8 / 2);
            sum += double(half_of(left.a[row / 8 + k / 8 * 2], k % 2)) *
                   double(half_of(right.b[k / 8], k % 2));
        }
        d[i] += float(sum);
    }
}

static u32 two(const bf16 *low, const bf16 *high) { return low->bits | u32(high->bits) << 16; }

static void check_row(const bf16 *row) {
    if (reinterpret_cast<u64>(row) % 16 == 0) return;
    fprintf(stderr, "emulator: a row of a matrix does not begin at a multiple of 16 bytes\n");
    abort();
}

static void load_matrices(u32 (&r)[4], const bf16 *row) {
    check_row(row);
    auto rows = emulator::show(row);
    const u32 lane = emulator::current % 32;
    for (u32 i = 0; i < 4; ++i) {
        const bf16 *from = emulator::look<const bf16 *>(rows, i * 8 + lane / 4) + lane % 4 * 2;
        r[i] = two(from, from + 1);
    }
}

static void load_matrices_transposed(u32 (&r)[4], const bf16 *row) {
    check_row(row);
    auto rows = emulator::show(row);
    const u32 lane = emulator::current % 32;
    for (u32 i = 0; i < 4; ++i) {
        const u32 first = i * 8 + lane % 4 * 2;
        r[i] = two(emulator::look<const bf16 *>(rows, first) + lane / 4,
                   emulator::look<const bf16 *>(rows, first + 1) + lane / 4);
    }
}

// Copies that are under way. What they overwrite is lost when they begin, and they arrive when they
// are waited for: a wait or a barrier that is missing shows.
struct Copy {
    bf16 *to;
    const row_t *from;
};
struct Copies {
    Copy copies[256];
    u32 count, closed[256], groups;
};
static Copies copies_of[emulator::THREADS_MAX];

static void check_copies(bool is_fine) {
    if (is_fine) return;
    fprintf(stderr, "emulator: more copies under way than it has room for\n");
    abort();
}

static void copy_piece(bf16 *to, const row_t *from, bool is_there) {
    check_row(to);
    Copies &own = copies_of[emulator::current];
    check_copies(own.count < 256);
    memset(to, 0xff, 16);
    own.copies[own.count++] = {to, is_there ? from : nullptr};
}

static void close_copies() {
    Copies &own = copies_of[emulator::current];
    check_copies(own.groups < 256);
    own.closed[own.groups++] = own.count;
}

template <u32 N>
static void wait_copies() {
    Copies &own = copies_of[emulator::current];
    if (own.groups <= N) return;
    const u32 done = own.closed[own.groups - N - 1];
    for (u32 i = 0; i < done; ++i) {
        if (own.copies[i].from) memcpy(own.copies[i].to, own.copies[i].from, 16);
        else memset(own.copies[i].to, 0, 16);
    }
    memmove(own.copies, own.copies + done, (own.count - done) * sizeof(Copy));
    own.count -= done;
    for (u32 i = 0; i < N; ++i) own.closed[i] = own.closed[own.groups - N + i] - done;
    own.groups = N;
}

static u32 pack(float low, float high) { return bf16_bits(low) | bf16_bits(high) << 16; }
