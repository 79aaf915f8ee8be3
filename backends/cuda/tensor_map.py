"""Tensor maps: how Hopper's copy engine (TMA) is told of a tensor in global memory."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any

from portable import dtypes
from portable.errors import LaunchError
from portable.plan import Scalar

_KEPT = 256  # addresses remembered per map; a training step reuses few


@dataclass(frozen=True)
class TensorMap:
    """A tensor map over `tensor` as a kernel argument: 128 bytes, aligned to 64.

    `sizes` and `box` count elements from the innermost dimension, whose stride is one element;
    `strides` are the bytes between neighbours along the other dimensions, multiples of 16. Copies bring
    boxes of `box` elements, with zeros where a box leaves the tensor, into shared memory with the
    128-byte swizzle; the innermost box is 128 bytes at most. What a copy misses in L2 comes from memory in
    `promotion` bytes, 128 or 256.
    """

    tensor: str
    dtype: str
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    promotion: int = 256
    size: int = 128
    alignment: int = 64
    _encoded: dict[int, bytes] = field(default_factory=dict, init=False, repr=False, compare=False)

    def encode(self, address: int) -> bytes:
        """The map's bytes for the tensor at `address`, a multiple of 16.

        Raises LaunchError where the driver refuses the geometry.
        """
        found = self._encoded.get(address)
        if found is None:
            if len(self._encoded) >= _KEPT:
                self._encoded.clear()
            found = self._encoded[address] = self._ask_driver(address)
        return found

    def _ask_driver(self, address: int) -> bytes:
        from cuda.bindings import driver

        def words(values: tuple[int, ...], kind: Any) -> list[Any]:
            return [kind(value) for value in values]

        kinds = driver.CUtensorMapDataType
        dtype = getattr(kinds, f"CU_TENSOR_MAP_DATA_TYPE_{dtypes.of(self.dtype).tma}")
        promotions = driver.CUtensorMapL2promotion
        promotion = {
            128: promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            256: promotions.CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        }[self.promotion]
        status, made = driver.cuTensorMapEncodeTiled(
            dtype,
            len(self.sizes),
            address,
            words(self.sizes, driver.cuuint64_t),
            words(self.strides, driver.cuuint64_t),
            words(self.box, driver.cuuint32_t),
            words((1,) * len(self.sizes), driver.cuuint32_t),
            driver.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            driver.CUtensorMapSwizzle.CU_TENSOR_MAP_SWIZZLE_128B,
            promotion,
            driver.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
        if int(status):
            raise LaunchError(
                f"a tensor map of {self.tensor}",
                f"the driver refused sizes {self.sizes}, byte strides {self.strides}, box {self.box} "
                f"at {address:#x}: {status}",
            )
        return struct.pack("<16Q", *(int(word) for word in made.opaque))


@dataclass(frozen=True)
class TritonDescriptor(TensorMap):
    """A tensor map as an argument of a Triton kernel: a descriptor of tiles of `block` elements, outermost
    dimension first. Triton splits what is wider than the swizzle into boxes and passes the tensor's sizes
    and strides beside the map."""

    block: tuple[int, ...] = ()

    @property
    def triton_type(self) -> str:
        return f"tensordesc<{dtypes.of(self.dtype).triton}{list(self.block)}>"

    def arguments(self, name: str) -> list[tuple[str, Any]]:
        """The map and what follows it in the kernel's parameters."""
        itemsize = dtypes.itemsize(self.dtype)
        sizes = [(f"{name}.size{i}", Scalar("i32", size)) for i, size in enumerate(reversed(self.sizes))]
        steps = [stride // itemsize for stride in reversed(self.strides)] + [1]
        return [(name, self), *sizes, *((f"{name}.stride{i}", Scalar("i64", s)) for i, s in enumerate(steps))]
