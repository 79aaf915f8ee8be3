// HIP's cooperative groups: the grid, a block, tiles of a wave, the active lanes.
#pragma once

#include <hip/hip_runtime.h>

#if defined(__HIP__)
namespace cooperative_groups {

// A group whose threads are counted by `size`, this one by `thread_rank`.
class thread_group {
  public:
    enum Kind { BLOCK, TILE, LANES };
    __device__ unsigned size() const { return size_; }
    __device__ unsigned num_threads() const { return size_; }
    __device__ unsigned thread_rank() const { return rank_; }
    __device__ bool is_valid() const { return true; }
    __device__ void sync() const {
        if (kind_ == BLOCK)
            __syncthreads();
        else
            __syncwarp();
    }
    __device__ thread_group(Kind kind, unsigned size, unsigned rank, unsigned long long mask = 0)
        : kind_(kind), size_(size), rank_(rank), mask_(mask) {}

  protected:
    Kind kind_;
    unsigned size_, rank_;
    unsigned long long mask_;
    friend __device__ thread_group tiled_partition(const thread_group &parent, unsigned size);
};

PORTABLE_HIP_DEVICE unsigned portable_hip_rank_in_block() {
    return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}

// The blocks of a launch that have come to its next barrier, and how many barriers there were.
__attribute__((device, weak, visibility("default"))) unsigned portable_hip_grid_arrived, portable_hip_grid_round;

class thread_block : public thread_group {
  public:
    __device__ thread_block()
        : thread_group(BLOCK, blockDim.x * blockDim.y * blockDim.z, portable_hip_rank_in_block()) {}
    static __device__ dim3 group_index() { return blockIdx; }
    static __device__ dim3 thread_index() { return threadIdx; }
    static __device__ dim3 group_dim() { return blockDim; }
    static __device__ dim3 dim_threads() { return blockDim; }
};
PORTABLE_HIP_DEVICE thread_block this_thread_block() { return thread_block(); }

// All blocks of a cooperative launch, which the runtime holds at once.
class grid_group {
  public:
    __device__ unsigned long long size() const { return (unsigned long long)blocks() * this_thread_block().size(); }
    __device__ unsigned long long num_threads() const { return size(); }
    __device__ unsigned num_blocks() const { return blocks(); }
    __device__ unsigned block_rank() const { return (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x; }
    __device__ unsigned long long thread_rank() const {
        const thread_block block;
        return (unsigned long long)block_rank() * block.size() + block.thread_rank();
    }
    __device__ bool is_valid() const { return true; }
    __device__ void sync() const {
        __threadfence();
        __syncthreads();
        if (portable_hip_rank_in_block() == 0) {
            const unsigned round = atomicOr(&portable_hip_grid_round, 0);
            if (atomicAdd(&portable_hip_grid_arrived, 1) + 1 == blocks()) {
                atomicExch(&portable_hip_grid_arrived, 0);
                __threadfence();
                atomicAdd(&portable_hip_grid_round, 1);
            } else
                while (atomicOr(&portable_hip_grid_round, 0) == round) __builtin_amdgcn_s_sleep(8);
        }
        __threadfence();
        __syncthreads();
    }

  private:
    static __device__ unsigned blocks() { return gridDim.x * gridDim.y * gridDim.z; }
};
PORTABLE_HIP_DEVICE grid_group this_grid() { return grid_group(); }

template <unsigned Size> class thread_block_tile : public thread_group {
    static_assert(Size > 0 && Size <= 64 && (Size & (Size - 1)) == 0, "a tile has a power of two of threads, at most 64");

  public:
    __device__ thread_block_tile() : thread_group(TILE, Size, portable_hip_rank_in_block() % Size) {}
    __device__ unsigned meta_group_rank() const { return portable_hip_rank_in_block() / Size; }
    __device__ unsigned meta_group_size() const {
        return (blockDim.x * blockDim.y * blockDim.z + Size - 1) / Size;
    }
    template <class T> __device__ T shfl(T value, int rank) const { return __shfl(value, rank, Size); }
    template <class T> __device__ T shfl_up(T value, unsigned delta) const { return __shfl_up(value, delta, Size); }
    template <class T> __device__ T shfl_down(T value, unsigned delta) const { return __shfl_down(value, delta, Size); }
    template <class T> __device__ T shfl_xor(T value, unsigned mask) const { return __shfl_xor(value, mask, Size); }
    __device__ unsigned long long ballot(int predicate) const { return __ballot(predicate) >> first_lane() & mask(); }
    __device__ int any(int predicate) const { return ballot(predicate) != 0; }
    __device__ int all(int predicate) const { return ballot(!predicate) == 0; }

  protected:
    static __device__ unsigned first_lane() { return __lane_id() & ~(Size - 1); }
    static __device__ unsigned long long mask() { return ~0ull >> (64 - Size); }
};
template <unsigned Size, class Parent> PORTABLE_HIP_DEVICE thread_block_tile<Size> tiled_partition(const Parent &) {
    return thread_block_tile<Size>();
}
__device__ inline thread_group tiled_partition(const thread_group &parent, unsigned size) {
    return thread_group(thread_group::TILE, size, parent.thread_rank() % size);
}

class coalesced_group : public thread_group {
  public:
    __device__ explicit coalesced_group(unsigned long long lanes)
        : thread_group(LANES, __popcll(lanes), __popcll(lanes & ((1ull << __lane_id()) - 1)), lanes) {}
    template <class T> __device__ T shfl(T value, int rank) const {
        unsigned long long lanes = mask_;
        for (; rank > 0; rank--) lanes &= lanes - 1;
        return portable_hip_from_lane(value, __ffsll(lanes) - 1);
    }
    __device__ unsigned long long ballot(int predicate) const {
        unsigned long long found = 0, all = __ballot(predicate) & mask_;
        int rank = 0;
        for (unsigned long long lanes = mask_; lanes; lanes &= lanes - 1, rank++)
            if (all & (lanes & -lanes)) found |= 1ull << rank;
        return found;
    }
    __device__ int any(int predicate) const { return ballot(predicate) != 0; }
    __device__ int all(int predicate) const { return ballot(!predicate) == 0; }
};
PORTABLE_HIP_DEVICE coalesced_group coalesced_threads() { return coalesced_group(__activemask()); }

template <class Group> PORTABLE_HIP_DEVICE void sync(const Group &group) { group.sync(); }

}  // namespace cooperative_groups
#endif
