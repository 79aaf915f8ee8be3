// Kernels whose workgroups meet in global memory. What test_global_races.py asks to be named ends in `// BUG`.
#include "prelude.h"

#define BARRIER()                                                                                            \
    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");                                                   \
    __builtin_amdgcn_s_barrier();                                                                            \
    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup")
#define AGENT __HIP_MEMORY_SCOPE_AGENT

// In place, from the next workgroup's part.
KERNEL(64) void reads_a_neighbour(int* y, int blocks) {
    const int i = block_x() * 64 + thread_x();
    const int v = y[(i + 64) % (64 * blocks)]; // BUG
    y[i] = v + 1; // BUG
}
KERNEL(64) void writes_one_word(int* y, int step) {
    if (thread_x() == 0) y[0] = block_x() * step; // BUG
}
// Chosen by n: nothing comes of what the neighbour has.
KERNEL(64) void reads_and_discards(int* y, int blocks, int n) {
    const int i = block_x() * 64 + thread_x();
    const int own = y[i], v = static_cast<volatile int*>(y)[0] * 0 + y[(i + 64) % (64 * blocks)]; // BUG
    y[i] = (thread_x() < n ? v : own) + 1; // BUG
}
// Halves of a word of two workgroups.
KERNEL(64) void odd_rows(uint16_t* y, const uint16_t* x) {
    if (thread_x() < 63) y[block_x() * 63 + thread_x()] = x[block_x() * 63 + thread_x()] + y[block_x() * 63 + thread_x()];
}
// The last workgroup adds what all have left.
#define LAST_ADDS(name, order)                                                                               \
    KERNEL(64) void name(int* sum, int* parts, int* arrived, const int* x, int blocks) {                     \
        SHARED int last;                                                                                     \
        const int t = thread_x();                                                                            \
        parts[block_x() * 64 + t] = x[block_x() * 64 + t]; /* the race's other side */                       \
        BARRIER();                                                                                           \
        if (t == 0) last = __hip_atomic_fetch_add(arrived, 1, order, AGENT) == blocks - 1;                   \
        BARRIER();                                                                                           \
        if (!last) return;                                                                                   \
        int total = 0;                                                                                       \
        for (int b = 0; b < blocks; ++b) total += parts[b * 64 + t];                                         \
        sum[t] = total;                                                                                      \
    }
LAST_ADDS(last_adds, __ATOMIC_ACQ_REL)
LAST_ADDS(last_adds_relaxed, __ATOMIC_RELAXED) // BUG
LAST_ADDS(last_adds_unacquired, __ATOMIC_RELEASE) // BUG
// The same with fences around relaxed atomics.
KERNEL(128) void last_adds_fenced(int* sum, int* parts, int* arrived, const int* x, int blocks) {
    SHARED int last;
    const int t = thread_x();
    parts[block_x() * 128 + t] = x[block_x() * 128 + t];
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
    BARRIER();
    if (t == 0) last = __hip_atomic_fetch_add(arrived, 1, __ATOMIC_RELAXED, AGENT) == blocks - 1;
    BARRIER();
    if (!last) return;
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
    int total = 0;
    for (int b = 0; b < blocks; ++b) total += parts[b * 128 + t];
    sum[t] = total;
}
KERNEL(64) void adds_atomically(int* sum, const int* x) {
    __hip_atomic_fetch_add(sum + thread_x(), x[block_x() * 64 + thread_x()], __ATOMIC_RELAXED, AGENT);
}
KERNEL(64) void reads_a_sum(int* y, int* sum, const int* x) {
    __hip_atomic_fetch_add(sum + thread_x(), x[block_x() * 64 + thread_x()], __ATOMIC_RELAXED, AGENT); // BUG
    y[block_x() * 64 + thread_x()] = static_cast<int*>(sum)[63 - thread_x()]; // BUG
}
// Each takes the value from the workgroup before it: a store is the release, a load the acquire.
KERNEL(64) void handed_on(int* y, int* value, int* flag) {
    const int b = block_x();
    if (thread_x() == 0)
        while (__hip_atomic_load(flag, __ATOMIC_ACQUIRE, AGENT) != b) __builtin_amdgcn_s_sleep(1);
    BARRIER();
    const int v = value[thread_x()];
    y[b * 64 + thread_x()] = v;
    value[thread_x()] = v + thread_x();
    BARRIER();
    if (thread_x() == 0) __hip_atomic_store(flag, b + 1, __ATOMIC_RELEASE, AGENT);
}
// A lock around a plain sum.
KERNEL(64) void under_a_lock(int* sum, int* lock, const int* x) {
    if (thread_x() == 0)
        while (__hip_atomic_exchange(lock, 1, __ATOMIC_ACQUIRE, AGENT)) __builtin_amdgcn_s_sleep(1);
    BARRIER();
    sum[thread_x()] += x[block_x() * 64 + thread_x()];
    BARRIER();
    if (thread_x() == 0) __hip_atomic_store(lock, 0, __ATOMIC_RELEASE, AGENT);
}
KERNEL(64) void under_no_lock(int* sum, int* lock, const int* x) {
    if (thread_x() == 0)
        while (__hip_atomic_exchange(lock, 1, __ATOMIC_ACQUIRE, AGENT)) __builtin_amdgcn_s_sleep(1);
    BARRIER();
    if (thread_x() == 0) __hip_atomic_store(lock, 0, __ATOMIC_RELEASE, AGENT);
    sum[thread_x()] += x[block_x() * 64 + thread_x()]; // BUG
}
// Compilers make loops of these: a plain load, then compare-and-swap until nobody was between.
#define OF_ALL(name, type, change)                                                                           \
    KERNEL(128) void name(type* sum, const type* x) {                                                        \
        SHARED type s[64];                                                                                   \
        const int t = thread_x();                                                                            \
        if (t < 64) s[t] = 0;                                                                                \
        BARRIER();                                                                                           \
        change(&s[t % 64], x[block_x() * 128 + t], __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_WORKGROUP);          \
        BARRIER();                                                                                           \
        if (t < 64) change(sum + t, s[t], __ATOMIC_RELAXED, AGENT);                                          \
    }
OF_ALL(largest_of_all, double, __hip_atomic_fetch_max)
OF_ALL(floats_of_all, float, __hip_atomic_fetch_add)
OF_ALL(halves_of_all, _Float16, __hip_atomic_fetch_add)
