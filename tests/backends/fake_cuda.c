// A libcuda without a GPU, for tests/backends/test_cuda_launch.py: the functions that
// backends/cuda/driver.py uses. It keeps the last launch, with the arguments read through their pointers.
#include <stdint.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_CONTEXT = 201, INVALID_HANDLE = 400, MOST = 16 };
enum { PROGRAMMATIC_STREAM_SERIALIZATION = 6 };
enum { CONTEXT = 0xc0, MODULE = 0x30, FUNCTION = 0xf0 };

typedef struct { // CUlaunchAttribute
    int id;
    char padding[4];
    int value[16];
} Attribute;

typedef struct { // CUlaunchConfig
    uint32_t grid[3], block[3], shared;
    void *stream;
    const Attribute *attributes;
    uint32_t attribute_count;
} Config;

typedef struct {
    uint32_t grid[3], block[3], shared;
    uint64_t stream;
    uint64_t values[MOST];
    uint32_t pdl;
} Launch;

static uint32_t sizes[MOST];
static int count, launches;
static _Thread_local Launch last;
static _Thread_local uint64_t context;

// How many bytes each of the next kernel's arguments has.
void fake_arguments(int n, const uint32_t *bytes) {
    count = n;
    memcpy(sizes, bytes, n * sizeof *sizes);
}

const Launch *fake_last(void) { return &last; }
int fake_launches(void) { return launches; }

int cuLaunchKernelEx(const Config *config, uint64_t function, void **arguments, void **extra) {
    if (context == 0)
        return INVALID_CONTEXT;
    if (function != FUNCTION || extra != 0)
        return INVALID_HANDLE;
    last.pdl = 0;
    for (uint32_t i = 0; i < config->attribute_count; i++) {
        if (config->attributes[i].id != PROGRAMMATIC_STREAM_SERIALIZATION)
            return INVALID_HANDLE;
        last.pdl = config->attributes[i].value[0];
    }
    memcpy(last.grid, config->grid, sizeof last.grid);
    memcpy(last.block, config->block, sizeof last.block);
    last.shared = config->shared;
    last.stream = (uint64_t)config->stream;
    for (int i = 0; i < count; i++) {
        last.values[i] = 0;
        memcpy(&last.values[i], arguments[i], sizes[i]);
    }
    launches++;
    return SUCCESS;
}

int cuCtxGetCurrent(uint64_t *answer) { return *answer = context, SUCCESS; }
int cuCtxSetCurrent(uint64_t given) { return context = given, SUCCESS; }
int cuDeviceGet(int *answer, int index) { return *answer = index, SUCCESS; }
int cuDevicePrimaryCtxRetain(uint64_t *answer, int device) { return *answer = CONTEXT + device, SUCCESS; }
int cuModuleLoadData(uint64_t *answer, const void *image) { return (void)image, *answer = MODULE, SUCCESS; }

int cuModuleGetFunction(uint64_t *answer, uint64_t module, const char *name) {
    (void)module, (void)name;
    return *answer = FUNCTION, SUCCESS;
}

int cuFuncSetAttribute(uint64_t function, int attribute, int value) {
    (void)function, (void)attribute, (void)value;
    return SUCCESS;
}

int cuGetErrorName(int status, const char **answer) {
    *answer = status == INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_INVALID_HANDLE";
    return SUCCESS;
}

int cuGetErrorString(int status, const char **answer) {
    *answer = status == INVALID_CONTEXT ? "invalid device context" : "invalid resource handle";
    return SUCCESS;
}
