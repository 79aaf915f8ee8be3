// What the runtime calls after main; the compiler is told to read this file with the host's code.
#pragma once

extern "C" {
extern __attribute__((visibility("hidden"))) void *__dso_handle;
void __cxa_finalize(void *);

// The program's functions of atexit and the destructors of its objects, as exit runs them.
__attribute__((used, visibility("default"))) void portable_hip_finish() { __cxa_finalize(&__dso_handle); }
}
