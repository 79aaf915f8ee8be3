// Where something lies in shared memory, as instructions of NVIDIA's cards name it.
#pragma once

#include "prelude.h"

DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
