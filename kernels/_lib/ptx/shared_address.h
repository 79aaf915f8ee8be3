// The 32-bit shared-memory address that PTX instructions take.
#pragma once

#include "prelude.h"

DEVICE uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }
