"""quantize_fp8_columns in Triton in one launch, as NVIDIA's GPUs take it, on an emulated GPU."""

from __future__ import annotations

import pytest
import torch

import portable
from portable.backends.rocm.emulator.backend import EmulatedRocmBackend
from portable.dispatch import dispatcher
from portable.kernels.quantize_fp8 import columns_triton
from portable.kernels.quantize_fp8.reference import columns
from portable.runtime import detect
from portable.spec import registry


@pytest.fixture
def emulated():
    detect.reset(detect.Selection({"cpu": EmulatedRocmBackend(registry.vendors()["rocm"], "gfx942")}, {}))
    yield
    detect.reset()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wide", "ahead", "shape"),
    [
        (8, 2, (300, 200)),
        (2, 10**9, (300, 300)),  # three bands, the last of one strip, one band ahead
        (1, 10**9, (3, 272, 72)),
        (4, 10**9, (2, 5, 3)),
        (1, 2, (2, 600, 64)),
    ],
)
def test_magnitudes_and_codes_in_one_launch(emulated, monkeypatch, wide, ahead, shape):
    """As many bands ahead as there are, and one: then all three parts of the order occur."""
    monkeypatch.setattr(columns_triton, "AT_ONCE", ("rocm",))
    monkeypatch.setattr(columns_triton, "WIDE", wide)
    monkeypatch.setattr(columns_triton, "AHEAD", ahead)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    dispatcher.clear_caches()
    with portable.using(quantize_fp8_columns="triton"):
        call = dispatcher.op("quantize_fp8_columns")
        explained = str(call.explain(x, dtype=torch.float8_e4m3fn))
        q, scale = call(x, dtype=torch.float8_e4m3fn)
    dispatcher.clear_caches()
    assert "columns_at_once" in explained
    types = {"T": "bfloat16", "Q": "float8_e4m3fn"}
    wanted, scales = columns(x.double(), False, 1e-10, types)
    assert torch.equal(scale.double(), scales.double()) and torch.equal(q.double(), wanted.double())
