// CUDA C++ on a processor: what kernels/cu/prelude.cuh leaves to the device.
//
// A block's threads are fibers. Lanes of a warp run one after the other until each waits at a
// barrier; then they go on. Blocks run one after the other, forwards or backwards, and so do lanes:
// a kernel whose result depends on the order has two results here. One launch runs at a time.
// Tensor cores' products and their loads are in tensor_cores.h.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <utility>

#define EMULATED
#define KERNEL static void
#define DEVICE inline
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
#define SHARED(type, name, count) static type name[count]
#define DYNAMIC_SHARED(type, name) type *name = reinterpret_cast<type *>(emulator::dynamic_shared)

struct dim3 {
    unsigned x, y, z;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};

static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float fast_exp2(float x) { return exp2f(x); }
static inline float fast_inverse(float x) { return 1.0f / x; }
static inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) {
    return {x, y, z, w};
}
static inline float __uint_as_float(unsigned bits) {
    float x;
    memcpy(&x, &bits, 4);
    return x;
}
static inline unsigned __float_as_uint(float x) {
    unsigned bits;
    memcpy(&bits, &x, 4);
    return bits;
}
// A device that has an own clock: each time it is read, a microsecond has gone by.
static inline unsigned long long device_clock_ns() {
    static unsigned long long ns;
    return ns += 1000;
}
static inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }

static dim3 threadIdx, blockIdx, blockDim, gridDim;

// Saves the registers that a function keeps, and goes on with another stack.
extern "C" void emulator_switch(void **save, void *load);
asm(R"(
.text
.type emulator_switch, @function
emulator_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emulator_switch, .-emulator_switch
)");

namespace emulator {

constexpr unsigned WARP_LANES = 32;
constexpr unsigned THREADS_MAX = 1024;
// No power of two: the tops of all stacks would share a few places in the processor's cache.
constexpr size_t STACK_BYTES = (64 << 10) + 832;
constexpr size_t SHARED_BYTES_MAX = 227 << 10;

enum class State { Ready, AtWarp, AtBlock, Done };

struct Fiber {
    // Null until it begins, and once it is done.
    unsigned char *stack;
    void *stack_pointer;
    State state;
};

// No kernel may write behind the shared memory that its launch requested.
constexpr size_t SHARED_FENCE_BYTES = 4096;
alignas(16) static unsigned char dynamic_shared[SHARED_BYTES_MAX + SHARED_FENCE_BYTES];
static Fiber fibers[THREADS_MAX];
static void *scheduler;
static unsigned current;
// Stacks that no fiber is on. The one that was left last is the next one's, so that lanes that wait for nobody
// run on one stack, one after the other, and it stays in the processor's cache.
static unsigned char *idle_stacks[THREADS_MAX];
static unsigned idle_stack_count;
static void (*body)(void *);
static void *body_data;
// What lanes show each other. Two of them in turn, so that a lane which is ahead overwrites nothing.
alignas(32) static unsigned char exchange[THREADS_MAX / WARP_LANES][2][WARP_LANES][32];
static unsigned turns[THREADS_MAX];

// The warp that runs: its lanes `first` to `end`, of which `position` have had their turn in this
// round, and `waiting` of those wait for the others. A round is of lanes in the state `next`.
struct Warp {
    unsigned first, end, position, waiting;
    State next;
    bool reversed;
};
static Warp warp;
// No lane of the warp can go on.
constexpr unsigned NO_LANE = THREADS_MAX;

static void allocate_stacks() {
    auto all = static_cast<unsigned char *>(malloc(THREADS_MAX * STACK_BYTES));
    for (; idle_stack_count < THREADS_MAX; ++idle_stack_count) {
        idle_stacks[idle_stack_count] = all + idle_stack_count * STACK_BYTES;
    }
}

static void begin();

static void prepare(unsigned thread) {
    unsigned char *stack = idle_stacks[--idle_stack_count];
    auto top = reinterpret_cast<size_t>(stack + STACK_BYTES) & ~size_t(15);
    void **place = reinterpret_cast<void **>(top) - 2;
    *place = reinterpret_cast<void *>(begin);
    fibers[thread].stack = stack;
    fibers[thread].stack_pointer = place - 6;
}

// The lane whose turn it is. Lanes that wait for each other go on once all of them do.
static unsigned next_lane() {
    const unsigned lanes = warp.end - warp.first;
    for (;;) {
        while (warp.position < lanes) {
            const unsigned lane = warp.position++;
            const unsigned thread = warp.reversed ? warp.end - 1 - lane : warp.first + lane;
            if (fibers[thread].state == warp.next) return thread;
        }
        if (warp.waiting == 0) return NO_LANE;
        if (warp.waiting < lanes) {
            fprintf(stderr, "emulator: some lanes of a warp wait for others that never come\n");
            abort();
        }
        warp.position = warp.waiting = 0;
        warp.next = State::AtWarp;
    }
}

static void enter(unsigned thread) {
    current = thread;
    threadIdx = {thread, 0, 0};
}

static void resume(unsigned thread, void **save) {
    enter(thread);
    if (!fibers[thread].stack) prepare(thread);
    emulator_switch(save, fibers[thread].stack_pointer);
}

// To the next lane without a detour: it went this way itself, so that a processor foresees where
// each return leads.
static void pause(State state) {
    Fiber &fiber = fibers[current];
    fiber.state = state;
    warp.waiting += state == State::AtWarp;
    const unsigned next = next_lane();
    if (next == NO_LANE) {
        emulator_switch(&fiber.stack_pointer, scheduler);
    } else if (next != current) {
        resume(next, &fiber.stack_pointer);
    }
}

// Lanes that begin one after the other, on one stack for as long as none of them waits: the next one
// then begins where this one is done, without a switch.
static void begin() {
    for (;;) {
        body(body_data);
        Fiber &done = fibers[current];
        done.state = State::Done;
        unsigned char *const stack = done.stack;
        done.stack = nullptr;
        const unsigned next = next_lane();
        if (next != NO_LANE && !fibers[next].stack) {
            fibers[next].stack = stack;
            enter(next);
            continue;
        }
        // Until the switch nobody else begins, and this stack is nobody's.
        idle_stacks[idle_stack_count++] = stack;
        void *left;
        if (next == NO_LANE) {
            emulator_switch(&left, scheduler);
        } else {
            resume(next, &left);
        }
        abort();
    }
}

// One warp until all its lanes wait for the block, or are done.
static void run_warp(unsigned first, unsigned end, bool reversed) {
    warp = {first, end, 0, 0, State::Ready, reversed};
    const unsigned next = next_lane();
    if (next != NO_LANE) resume(next, &scheduler);
}

// False if the block wrote behind its shared memory.
static bool run_block(unsigned threads, size_t shared_bytes, bool reversed) {
    for (unsigned i = 0; i < threads; ++i) fibers[i] = {nullptr, nullptr, State::Ready};
    memset(turns, 0, threads * sizeof *turns);
    // Shared memory begins as anything; NaNs show who reads it unwritten.
    memset(dynamic_shared, 0xff, shared_bytes + SHARED_FENCE_BYTES);
    const unsigned warps = (threads + WARP_LANES - 1) / WARP_LANES;
    for (bool any = true; any;) {
        for (unsigned i = 0; i < warps; ++i) {
            const unsigned warp = reversed ? warps - 1 - i : i;
            run_warp(warp * WARP_LANES, min(threads, (warp + 1) * WARP_LANES), reversed);
        }
        any = false;
        for (unsigned i = 0; i < threads; ++i) {
            if (fibers[i].state != State::AtBlock) continue;
            fibers[i].state = State::Ready;
            any = true;
        }
    }
    const unsigned char *fence = dynamic_shared + shared_bytes;
    return fence[0] == 0xff && memcmp(fence, fence + 1, SHARED_FENCE_BYTES - 1) == 0;
}

template <typename... A, size_t... I>
static void call(void (*kernel)(A...), void **arguments, std::index_sequence<I...>) {
    kernel(*static_cast<std::remove_reference_t<A> *>(arguments[I])...);
}

template <typename... A>
static bool launch(void (*kernel)(A...), const unsigned *grid, unsigned threads,
                   unsigned shared_bytes, bool reversed, void **arguments) {
    auto once = [&] { call(kernel, arguments, std::index_sequence_for<A...>()); };
    body = [](void *data) { (*static_cast<decltype(once) *>(data))(); };
    body_data = &once;
    blockDim = {threads, 1, 1};
    gridDim = {grid[0], grid[1], 1};
    if (!idle_stack_count) allocate_stacks();
    const unsigned blocks = grid[0] * grid[1];
    for (unsigned i = 0; i < blocks; ++i) {
        const unsigned block = reversed ? blocks - 1 - i : i;
        blockIdx = {block % grid[0], block / grid[0], 0};
        if (!run_block(threads, shared_bytes, reversed)) return false;
    }
    return true;
}

// The bytes of what a kernel takes, as many as there is room for; returns how many there are.
template <typename... A>
static size_t sizes(void (*)(A...), size_t *to, size_t room) {
    const size_t all[] = {sizeof(std::remove_reference_t<A>)...};
    for (size_t i = 0; i < sizeof...(A) && i < room; ++i) to[i] = all[i];
    return sizeof...(A);
}

// Shows a value to the other lanes of the warp, and returns where all of theirs lie, until the next
// value is shown.
template <typename T>
static unsigned char (*show(const T &value))[32] {
    static_assert(sizeof(T) <= 32);
    const unsigned warp = current / WARP_LANES;
    auto side = exchange[warp][turns[current]++ % 2];
    memcpy(side[current % WARP_LANES], &value, sizeof(T));
    pause(State::AtWarp);
    return side;
}

template <typename T>
static const T &look(unsigned char (*side)[32], unsigned lane) {
    return *reinterpret_cast<const T *>(side[lane]);
}

}  // namespace emulator

static inline void __syncthreads() { emulator::pause(emulator::State::AtBlock); }
static inline void __syncwarp() { emulator::pause(emulator::State::AtWarp); }

template <typename T>
static T __shfl_xor_sync(unsigned, T value, unsigned step) {
    auto side = emulator::show(value);
    return emulator::look<T>(side, (emulator::current % 32) ^ step);
}
