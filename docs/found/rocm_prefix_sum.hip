// The prefix sum of AMD's rocm-examples (Applications/prefix_sum, commit 7dfb7d4), reduced: its kernel builds a tree over
// `size` numbers, all that the program has, in LDS for the 2 * 128 numbers of one workgroup.
//
//     portable emulate --gpu gfx942 docs/found/rocm_prefix_sum.hip
//
// With more than 256 numbers (`prefix_sum -n 512` there) a level of the tree adds into bytes behind LDS. A GPU drops
// such a write, or it meets LDS that another workgroup owns. The loop must end at min(size, 2 * blockDim.x).
#include <hip/hip_runtime.h>

#include <cstdio>

__global__ void add_up_a_tree(const float* numbers, float* sum, int size) {
    extern __shared__ float held[];
    const int thread = (int)threadIdx.x;
    held[2 * thread] = numbers[2 * thread];
    held[2 * thread + 1] = numbers[2 * thread + 1];
    int distance = 1;
    for (int pairs = size / 2; pairs > 0; pairs /= 2, distance *= 2) {
        __syncthreads();
        if (thread < pairs) held[distance * (2 * thread + 2) - 1] += held[distance * (2 * thread + 1) - 1];
    }
    __syncthreads();
    if (thread == 0) *sum = held[2 * blockDim.x - 1];
}

int main(int count, char**) {
    const int threads = 128, size = count > 1 ? 2 * threads : 512;  // any argument: the size that is right
    float numbers[512], sum = 0, *device;
    for (int i = 0; i < 512; i++) numbers[i] = 1;
    if (hipMalloc(&device, sizeof numbers + sizeof sum) != hipSuccess) return 2;
    (void)hipMemcpy(device, numbers, sizeof numbers, hipMemcpyHostToDevice);
    add_up_a_tree<<<1, threads, 2 * threads * sizeof(float)>>>(device, device + 512, size);
    if (hipMemcpy(&sum, device + 512, sizeof sum, hipMemcpyDeviceToHost) != hipSuccess) return 1;
    printf("sum of one workgroup's 256 ones: %g\n", sum);
    return sum == 256 ? 0 : 1;
}
