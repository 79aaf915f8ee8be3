// A libamdhip64 without a GPU, for tests/backends/test_hip_runtime.py: the functions that
// backends/rocm/runtime.py uses, with the error codes that the HIP documentation gives them.
//
// There are two devices. A launch copies its argument buffer, as the real runtime does, and waits in its
// stream until `fake_synchronize`; what loading, finding and running mean is asked of the test through
// callbacks.
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { DEVICES = 2, MOST_PENDING = 64 };
enum { // hipError_t
    SUCCESS = 0,
    INVALID_VALUE = 1,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    NO_BINARY_FOR_GPU = 209,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    LAUNCH_FAILURE = 719,
};
enum { EXTRA_POINTER = 1, EXTRA_SIZE = 2, EXTRA_END = 3 };
enum { L2 = 19, MAX_THREADS = 56, MULTIPROCESSORS = 63, SHARED = 74, WARP = 87 }; // hipDeviceAttribute_t

typedef struct {
    int device;
    uint64_t handle; // the test's own
} Object;

typedef struct {
    Object *function;
    uint32_t grid[3], block[3], shared;
    void *stream;
    size_t size;
    uint8_t *kernarg;
} Pending;

typedef int (*Load)(int device, const void *image, uint64_t size, uint64_t *handle);
typedef int (*Find)(int device, uint64_t module, const char *name, uint64_t *handle);
typedef int (*Run)(int device, uint64_t function, const uint32_t *grid, const uint32_t *block, uint32_t shared,
                   const void *kernarg, uint64_t size);

static Load load;
static Find find;
static Run run;
static Pending pending[MOST_PENDING];
static int count;
static _Thread_local int current;

void fake_register(Load on_load, Find on_find, Run on_run) {
    load = on_load;
    find = on_find;
    run = on_run;
}

int fake_pending(void) { return count; }

// Run what waits in one stream, in order; the other streams' launches stay.
int fake_synchronize(void *stream) {
    int status = SUCCESS, kept = 0;
    for (int i = 0; i < count; i++) {
        Pending *each = &pending[i];
        if (each->stream != stream) {
            pending[kept++] = *each;
            continue;
        }
        if (status == SUCCESS)
            status = run(each->function->device, each->function->handle, each->grid, each->block, each->shared,
                         each->kernarg, each->size);
        free(each->kernarg);
    }
    count = kept;
    return status;
}

int hipGetDeviceCount(int *answer) {
    *answer = DEVICES;
    return SUCCESS;
}

int hipGetDevice(int *answer) {
    *answer = current;
    return SUCCESS;
}

int hipSetDevice(int device) {
    if (device < 0 || device >= DEVICES)
        return INVALID_DEVICE;
    current = device;
    return SUCCESS;
}

int hipDeviceGetAttribute(int *answer, int attribute, int device) {
    if (device < 0 || device >= DEVICES)
        return INVALID_DEVICE;
    switch (attribute) {
    case L2: *answer = 4 << 20; return SUCCESS;
    case MAX_THREADS: *answer = 1024; return SUCCESS;
    case MULTIPROCESSORS: *answer = device ? 96 : 304; return SUCCESS;
    case SHARED: *answer = 64 << 10; return SUCCESS;
    case WARP: *answer = device ? 32 : 64; return SUCCESS;
    }
    return INVALID_VALUE;
}

// The bytes of an ELF file end with its section headers, where LLVM's linker puts them.
static uint64_t elf_size(const uint8_t *image) {
    uint64_t offset;
    uint16_t size, number;
    memcpy(&offset, image + 40, 8);
    memcpy(&size, image + 58, 2);
    memcpy(&number, image + 60, 2);
    return offset + (uint64_t)size * number;
}

int hipModuleLoadData(void **module, const void *image) {
    if (memcmp(image, "\177ELF", 4) != 0)
        return INVALID_IMAGE;
    Object *made = malloc(sizeof *made);
    made->device = current;
    int status = load(current, image, elf_size(image), &made->handle);
    if (status != SUCCESS) {
        free(made);
        return status;
    }
    *module = made;
    return SUCCESS;
}

int hipModuleUnload(void *module) {
    if (module == NULL)
        return INVALID_HANDLE;
    free(module);
    return SUCCESS;
}

int hipModuleGetFunction(void **function, void *module, const char *name) {
    if (module == NULL)
        return INVALID_HANDLE;
    Object *made = malloc(sizeof *made), *from = module;
    made->device = from->device;
    int status = find(from->device, from->handle, name, &made->handle);
    if (status != SUCCESS) {
        free(made);
        return status;
    }
    *function = made;
    return SUCCESS;
}

int hipModuleLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                          unsigned bz, unsigned shared, void *stream, void **params, void **extra) {
    Object *object = function;
    int figure = 0;
    if (object == NULL || object->device != current)
        return INVALID_HANDLE;
    hipDeviceGetAttribute(&figure, SHARED, current);
    if (shared > (unsigned)figure || bx * by * bz > 1024 || count == MOST_PENDING)
        return INVALID_VALUE;
    if (params != NULL || extra == NULL || extra[0] != (void *)EXTRA_POINTER || extra[2] != (void *)EXTRA_SIZE ||
        extra[4] != (void *)EXTRA_END)
        return INVALID_VALUE;
    size_t size = *(size_t *)extra[3];
    Pending *each = &pending[count++];
    *each = (Pending){object, {gx, gy, gz}, {bx, by, bz}, shared, stream, size, malloc(size + 1)};
    memcpy(each->kernarg, extra[1], size);
    return SUCCESS;
}

const char *hipGetErrorString(int status) {
    switch (status) {
    case SUCCESS: return "no error";
    case INVALID_VALUE: return "invalid argument";
    case INVALID_DEVICE: return "invalid device ordinal";
    case INVALID_IMAGE: return "device kernel image is invalid";
    case NO_BINARY_FOR_GPU: return "no kernel image is available for execution on the device";
    case INVALID_HANDLE: return "invalid resource handle";
    case NOT_FOUND: return "named symbol not found";
    case LAUNCH_FAILURE: return "unspecified launch failure";
    }
    return "unknown error";
}
