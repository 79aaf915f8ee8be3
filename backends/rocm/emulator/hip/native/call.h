// How the functions of libamdhip64 reach the Python that answers them.
#pragma once

#include <initializer_list>
#include <pthread.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

// Calls the method of that name with the arguments as words; returns a hipError_t.
extern thread_local bool portable_hip_answering;
int portable_hip_call(const char *name, std::initializer_list<uint64_t> arguments);
