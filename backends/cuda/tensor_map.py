"""Tensor maps for the driver: the 128 bytes of a plan's TensorMap at an address (cuTensorMapEncodeTiled)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

from portable import dtypes
from portable.errors import LaunchError
from portable.plan import TensorMap

_MAX_KEPT = 256  # addresses remembered per map; a training step reuses few


def encoder(tensor_map: TensorMap) -> Callable[[int], bytes]:
    """A function of the tensor's address, a multiple of 16, to the map's bytes.

    It raises LaunchError where the driver refuses the geometry.
    """
    encoded: dict[int, bytes] = {}

    def encode(address: int) -> bytes:
        found = encoded.get(address)
        if found is None:
            if len(encoded) >= _MAX_KEPT:
                encoded.clear()
            found = encoded[address] = _encode_tiled(tensor_map, address)
        return found

    return encode


def _encode_tiled(tensor_map: TensorMap, address: int) -> bytes:
    from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue] - an extension module

    def words(values: tuple[int, ...], kind: Any) -> list[Any]:
        return [kind(value) for value in values]

    kinds = driver.CUtensorMapDataType
    dtype = getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{dtypes.of(tensor_map.dtype).tma}")
    promotions = driver.CUtensorMapL2promotion
    promotion = {
        128: promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        256: promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
    }[tensor_map.promotion]
    status, made = driver.cuTensorMapEncodeTiled(
        dtype,
        len(tensor_map.sizes),
        address,
        words(tensor_map.sizes, driver.cuuint64_t),
        words(tensor_map.strides, driver.cuuint64_t),
        words(tensor_map.box, driver.cuuint32_t),
        words((1,) * len(tensor_map.sizes), driver.cuuint32_t),
        driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
        promotion,
        driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    if int(status):
        raise LaunchError(
            f"a tensor map of {tensor_map.tensor}",
            f"the driver refused sizes {tensor_map.sizes}, byte strides {tensor_map.strides}, "
            f"box {tensor_map.box} at {address:#x}: {status}",
        )
    return struct.pack("<16Q", *(int(word) for word in made.opaque))
