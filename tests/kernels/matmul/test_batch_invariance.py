"""Which products run where rows are to have the same bits in every batch: by the number of rows only such
as were found to give the same ones (`rows_alone`, unpinned, on an H200)."""

from __future__ import annotations

import functools

import pytest

import portable
from portable.backend import Backend
from portable.dispatch import select
from portable.plan import Device, TensorInfo
from portable.runtime import detect
from portable.spec import registry

ROWS = (1, 2, 16, 17, 32, 33, 64, 65, 100, 128, 200, 500, 1000, 4096, 16384)
SIZES = [(256, 256), (1024, 4096), (72, 1032), (8192, 8192), (1025, 2050), (129, 130)]


@functools.cache
def backend_and_device(vendor: str, arch: str) -> tuple[Backend, Device]:
    """A vendor's GPU, on a machine that need not have its compilers."""
    backend = detect.backend_class(vendor)(registry.vendors()[vendor])
    backend.language_missing = lambda _: None  # type: ignore[method-assign]
    return backend, next(each for each in backend.targets() if each.arch == arch)


def matrix(rows: int, columns: int, dtype: str) -> TensorInfo:
    return TensorInfo((rows, columns), (columns, 1), dtype, 16)


def call_of(op: str, M: int, N: int, K: int, dtype: str) -> select.CallSignature:
    """One product, all tensors contiguous."""
    spec = registry.spec(op)
    params = {name: param.default for name, param in spec.params.items()}
    types = dict.fromkeys(spec.types[0], dtype) | {"acc": "float32"}
    axes = {"M": M, "N": N, "K": K} if op == "matmul" else {"N": N, "K": K}
    if op == "matmul":
        tensors = {"a": matrix(M, K, dtype), "b": matrix(K, N, dtype), "c": matrix(M, N, dtype)}
    else:
        bias = TensorInfo((N,), (1,), dtype, 16)
        tensors = {"x": matrix(M, K, dtype), "weight": matrix(N, K, dtype), "bias": bias}
        tensors["y"] = matrix(M, N, dtype)
    return select.CallSignature(spec, tensors, params, {**axes, "B": 1 if op == "matmul" else M}, types)


@pytest.mark.parametrize("op", ["matmul", "linear"])
@pytest.mark.parametrize(
    "vendor, arch, dtype, same",
    [
        ("cuda", "sm_90a", "bfloat16", {"wgmma", "realigned", "mma"}),
        ("cuda", "sm_80", "bfloat16", {"mma"}),
        ("cuda", "sm_90a", "float32", {"simt"}),
        ("rocm", "gfx942", "bfloat16", {"mfma"}),
        ("rocm", "gfx1100", "float16", {"wmma"}),
    ],
)
def test_the_choice_is_among_those_of_equal_bits(op, vendor, arch, dtype, same):
    backend, device = backend_and_device(vendor, arch)
    chosen = set()
    for N, K in SIZES:
        for M in ROWS:
            with portable.using(batch_invariant=True):
                chosen.add(select.choose(call_of(op, M, N, K, dtype), backend, device).name)
    assert chosen <= same
    few = select.choose(call_of(op, 16, 8192, 8192, dtype), backend, device).name
    assert arch != "sm_90a" or few == "skinny"  # outside of the block


def test_every_implementation_that_promises_it_is_known():
    """A spec that says nothing promises it: what is new here has to be found so."""
    for op, names in {
        "matmul": {"wgmma", "realigned", "mma", "mfma", "wmma", "simt"},
        "linear": {"wgmma", "realigned", "mma", "mfma", "wmma", "simt"},
        "gated_linear": {"wgmma", "realigned", "mma", "mfma", "wmma"},
    }.items():
        assert {each.name for each in registry.spec(op).implementations if each.batch_invariant} == names
