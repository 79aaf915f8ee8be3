// The functions of hiprtc.h.
#include "call.h"

#include <hip/hip_version.h>
#include <hip/hiprtc.h>

#define W(value) ((uint64_t)(value))
#define API(name, parameters, ...)                                                                                     \
    extern "C" EXPORT hiprtcResult name parameters { return (hiprtcResult)portable_hip_call(#name, {__VA_ARGS__}); }

API(hiprtcCreateProgram,
    (hiprtcProgram * program, const char *source, const char *name, int count, const char **headers, const char **names),
    W(program), W(source), W(name), W(count), W(headers), W(names))
API(hiprtcDestroyProgram, (hiprtcProgram * program), W(program))
API(hiprtcCompileProgram, (hiprtcProgram program, int count, const char **options), W(program), W(count), W(options))
API(hiprtcGetProgramLogSize, (hiprtcProgram program, size_t *bytes), W(program), W(bytes))
API(hiprtcGetProgramLog, (hiprtcProgram program, char *log), W(program), W(log))
API(hiprtcGetCodeSize, (hiprtcProgram program, size_t *bytes), W(program), W(bytes))
API(hiprtcGetCode, (hiprtcProgram program, char *code), W(program), W(code))

extern "C" EXPORT hiprtcResult hiprtcVersion(int *major, int *minor) {
    *major = HIP_VERSION_MAJOR, *minor = HIP_VERSION_MINOR;
    return HIPRTC_SUCCESS;
}
extern "C" EXPORT const char *hiprtcGetErrorString(hiprtcResult result) {
#define X(name, value) if (result == value) return #name;
    PORTABLE_HIPRTC_RESULTS(X)
#undef X
    return "HIPRTC_ERROR_UNKNOWN";
}
