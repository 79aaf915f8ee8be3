"""Tensor maps: plans describe them, the CUDA backend makes their bytes, others refuse them."""

from __future__ import annotations

import pytest

from portable.backends.cuda import tensor_map
from portable.backends.cuda.backend import CudaBackend
from portable.errors import LaunchError
from portable.plan import TensorMap
from portable.runtime import detect
from portable.spec import registry

MAP = TensorMap("a", "bfloat16", (64, 32), (128,), (64, 32))


def test_a_map_is_made_once_per_address(monkeypatch):
    made = []

    def encode_tiled(described, address):
        assert described is MAP
        made.append(address)
        return address.to_bytes(128, "little")

    monkeypatch.setattr(tensor_map, "_encode_tiled", encode_tiled)
    encode = CudaBackend(registry.vendors()["cuda"]).encoder(MAP)
    assert [encode(address) for address in (16, 32, 16)] == [n.to_bytes(128, "little") for n in (16, 32, 16)]
    assert made == [16, 32]
    for address in range(1024, 1024 + 16 * tensor_map._MAX_KEPT, 16):
        encode(address)
    encode(16)
    assert made.count(16) == 2  # the addresses of many calls are not all remembered


@pytest.mark.parametrize("vendor", ["rocm", "cpu"])
def test_a_vendor_without_tensor_maps_refuses_them(vendor):
    backend = detect.backend_class(vendor)(registry.vendors()[vendor])
    with pytest.raises(LaunchError, match="TensorMap"):
        backend.encoder(MAP)
