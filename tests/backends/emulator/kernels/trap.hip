// A kernel that gives up, as an assertion does. Apart from seeded.hip, because what a trap becomes differs
// between generations.
#include "prelude.h"

KERNEL(64) void trap(int* y, int n) {
    y[thread_x()] = n;
    if (n == 7) {
        __builtin_trap(); // BUG
    }
}
