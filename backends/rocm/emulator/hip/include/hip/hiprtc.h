// hiprtc of emulated programs, after AMD's HIP RTC API reference.
#pragma once

#include <stddef.h>

#define PORTABLE_HIPRTC_RESULTS(X)                                                                                     \
    X(HIPRTC_SUCCESS, 0)                                                                                               \
    X(HIPRTC_ERROR_OUT_OF_MEMORY, 1)                                                                                   \
    X(HIPRTC_ERROR_PROGRAM_CREATION_FAILURE, 2)                                                                        \
    X(HIPRTC_ERROR_INVALID_INPUT, 3)                                                                                   \
    X(HIPRTC_ERROR_INVALID_PROGRAM, 4)                                                                                 \
    X(HIPRTC_ERROR_INVALID_OPTION, 5)                                                                                  \
    X(HIPRTC_ERROR_COMPILATION, 6)                                                                                     \
    X(HIPRTC_ERROR_INTERNAL_ERROR, 11)

typedef enum hiprtcResult {
#define X(name, value) name = value,
    PORTABLE_HIPRTC_RESULTS(X)
#undef X
} hiprtcResult;

typedef struct portable_hiprtc_program *hiprtcProgram;

#if defined(__cplusplus)
extern "C" {
#endif
hiprtcResult hiprtcVersion(int *major, int *minor);
const char *hiprtcGetErrorString(hiprtcResult result);
hiprtcResult hiprtcCreateProgram(hiprtcProgram *program, const char *source, const char *name, int count,
                                 const char **headers, const char **header_names);
hiprtcResult hiprtcDestroyProgram(hiprtcProgram *program);
hiprtcResult hiprtcCompileProgram(hiprtcProgram program, int count, const char **options);
hiprtcResult hiprtcGetProgramLogSize(hiprtcProgram program, size_t *bytes);
hiprtcResult hiprtcGetProgramLog(hiprtcProgram program, char *log);
hiprtcResult hiprtcGetCodeSize(hiprtcProgram program, size_t *bytes);
hiprtcResult hiprtcGetCode(hiprtcProgram program, char *code);
#if defined(__cplusplus)
}
#endif
