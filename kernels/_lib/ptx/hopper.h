// Hopper's asynchronous machinery as functions: bulk tensor copies (TMA), warpgroup matrix
// instructions (wgmma), clusters. Needs sm_90a and -DELEMENT=bf16|f16.
#pragma once

#include "prelude.h"

#include "mbarrier.h"
#include "pdl.h"

#define STRING_OF(x) #x
#define STRING(x) STRING_OF(x)
#define ELEMENT_NAME STRING(ELEMENT)  // prelude.h and PTX call these types the same

// What cuTensorMapEncodeTiled makes; a kernel takes it as `const __grid_constant__ TensorMap`.
struct alignas(64) TensorMap {
    uint64_t opaque[16];
};

// --- clusters ---

DEVICE int cluster_rank() {
    int rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}
DEVICE void cluster_barrier() {
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

// Arrives at the mbarrier that lies at the same place in block `rank` of the cluster.
DEVICE void barrier_arrive_at(uint32_t at, int rank) {
    asm volatile(
        "{\n.reg .b32 remote;\nmapa.shared::cluster.u32 remote, %0, %1;\n"
        "mbarrier.arrive.shared::cluster.b64 _, [remote];\n}" ::"r"(at), "r"(rank) : "memory");
}

// --- bulk tensor copies of four-dimensional boxes; coordinates run from the innermost dimension ---

DEVICE void prefetch_map(const TensorMap* map) {
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}
DEVICE void load_box(uint32_t to, const TensorMap* map, uint32_t barrier, int x, int y, int z, int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
        "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to), "l"(map), "r"(barrier), "r"(x), "r"(y), "r"(z), "r"(w)
        : "memory");
}
// Brings a box into L2.
DEVICE void prefetch_box(const TensorMap* map, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(x), "r"(y),
                 "r"(z), "r"(w)
                 : "memory");
}
// The same box to the same place in every block of the cluster named in `mask`.
DEVICE void load_box_to(uint16_t mask, uint32_t to, const TensorMap* map, uint32_t barrier, int x, int y, int z,
                        int w) {
    asm volatile(
        "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "
        "[%0], [%1, {%4, %5, %6, %7}], [%2], %3;" ::"r"(to), "l"(map), "r"(barrier), "h"(mask), "r"(x), "r"(y),
        "r"(z), "r"(w)
        : "memory");
}
DEVICE void store_box(const TensorMap* map, uint32_t from, int x, int y, int z, int w) {
    asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
                 "r"(from), "r"(x), "r"(y), "r"(z), "r"(w)
                 : "memory");
}
DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
// Waits until at most PENDING groups of stores still read shared memory.
template <int PENDING> DEVICE void wait_stores_read() {
    asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(PENDING) : "memory");
}
// Before the copy engine reads shared memory that this thread wrote.
DEVICE void copy_engine_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// --- warpgroups ---

template <int COUNT> DEVICE void registers_down() {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(COUNT));
}
template <int COUNT> DEVICE void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(COUNT)); }

DEVICE void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
DEVICE void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int PENDING> DEVICE void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

// The descriptor of an operand in shared memory with the 128-byte swizzle: groups of eight 128-byte
// lines, `group_stride` bytes from group to group; `block_stride` bytes from one 64-element block to the
// next along M or N where the lines run that way (unused where they run along k).
DEVICE uint64_t descriptor(uint32_t address, int block_stride, int group_stride) {
    return static_cast<uint64_t>((address & 0x3ffff) >> 4) | static_cast<uint64_t>(block_stride >> 4) << 16 |
           static_cast<uint64_t>(group_stride >> 4) << 32 | 1ull << 62;
}

#define ACCUMULATORS_8(d, i)                                                                              \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),           \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define ACCUMULATORS_32(d, i)                                                                             \
    ACCUMULATORS_8(d, i), ACCUMULATORS_8(d, i + 8), ACCUMULATORS_8(d, i + 16), ACCUMULATORS_8(d, i + 24)
#define OPERANDS_0 \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define OPERANDS_1 \
    ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define OPERANDS_2 \
    ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
    "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define OPERANDS_3 \
    ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
    "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"

#define OPERANDS_1H \
    OPERANDS_1 ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79"

// d (64 x N, float32) = a (64 x 16) @ b (16 x N), plus d where `accumulate`; operands by descriptor.
// ALONG_M, ALONG_N say that an operand's unit stride is not along k. A, B, P, TA, TB are the numbers of
// the operands after the accumulators.
#define WGMMA(N, OPERANDS, A, B, P, TA, TB, ...)                                                    \
    template <> struct Wgmma<N> {                                                                         \
        template <bool A_ALONG_M, bool B_ALONG_N>                                                         \
        static DEVICE void run(float* d, uint64_t a, uint64_t b, int accumulate) {                         \
            asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #P ", 0;\n"                                 \
                         "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." ELEMENT_NAME "." ELEMENT_NAME  \
                         " {" OPERANDS "}, %" #A ", %" #B ", p, 1, 1, %" #TA ", %" #TB ";\n}"             \
                         : __VA_ARGS__                                                                    \
                         : "l"(a), "l"(b), "r"(accumulate), "n"(int(A_ALONG_M)), "n"(int(B_ALONG_N)));    \
        }                                                                                                 \
    }
template <int N> struct Wgmma;
WGMMA(64, OPERANDS_0, 32, 33, 34, 35, 36, ACCUMULATORS_32(d, 0));
WGMMA(128, OPERANDS_0 OPERANDS_1, 64, 65, 66, 67, 68, ACCUMULATORS_32(d, 0), ACCUMULATORS_32(d, 32));
WGMMA(160, OPERANDS_0 OPERANDS_1H, 80, 81, 82, 83, 84, ACCUMULATORS_32(d, 0), ACCUMULATORS_32(d, 32),
      ACCUMULATORS_8(d, 64), ACCUMULATORS_8(d, 72));
WGMMA(192, OPERANDS_0 OPERANDS_1 OPERANDS_2, 96, 97, 98, 99, 100, ACCUMULATORS_32(d, 0), ACCUMULATORS_32(d, 32),
      ACCUMULATORS_32(d, 64));
WGMMA(256, OPERANDS_0 OPERANDS_1 OPERANDS_2 OPERANDS_3, 128, 129, 130, 131, 132, ACCUMULATORS_32(d, 0),
      ACCUMULATORS_32(d, 32), ACCUMULATORS_32(d, 64), ACCUMULATORS_32(d, 96));
