"""What the row kernels do on an emulated AMD GPU: widths of accesses, and how often a row is read."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import pytest
import torch

import portable
from portable.commands import trace as tracing
from portable.runtime import detect


@pytest.fixture(scope="module", autouse=True)
def gpu():
    """The command's device is the process's, by variables that other programs get too."""
    with mock.patch.dict(os.environ):
        tracing.choose("gfx942")
        yield
    detect.reset()


def launched(op: str, implementation: str, *tensors: torch.Tensor) -> tuple[torch.Tensor, Any]:
    with detect.main_backend().trace() as traces, portable.using(**{op: implementation}):
        result = getattr(portable, op)(*tensors)
    return result, traces[0]


def lane_bytes(trace: Any, kind: str) -> float:
    counted = trace.figures["memory"][kind]
    return counted["bytes"] / counted["lanes"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_rows_of_an_odd_length_are_moved_by_vectors(dtype: torch.dtype):
    x = torch.randn(3, 5003).to(dtype)
    y, trace = launched("softmax", "cpp", x)
    exact = x.float().softmax(-1)
    assert torch.allclose(y.float(), exact, rtol=max(1e-5, torch.finfo(dtype).eps), atol=0.0)
    assert min(lane_bytes(trace, "global loads"), lane_bytes(trace, "global stores")) > 15
    stores = trace.figures["memory"]["global stores"]
    assert stores["cache_lines"] < 1.15 * stores["fewest_cache_lines"]
    # Where a row lies does not change its bits.
    assert torch.equal(y[1], launched("softmax", "cpp", x[1:2].clone())[0][0])


def test_a_lone_element_keeps_the_vector_beside_it_whole():
    """float32: a load of one element was merged with the vector's, into a dword and three."""
    x, weight = torch.randn(2, 1003), torch.randn(1003)
    y, trace = launched("rms_norm", "cpp", x, weight)
    assert torch.allclose(y, torch.nn.functional.rms_norm(x, (1003,), weight, 1e-6), atol=1e-5)
    assert lane_bytes(trace, "global loads") > 15


@pytest.mark.parametrize("implementation", ["cpp", "triton"])
def test_rows_of_64k_elements_are_read_once(implementation: str):
    x = torch.randn(1, 65536)
    y, trace = launched("softmax", implementation, x)
    assert torch.allclose(y, x.softmax(-1), atol=1e-6)
    assert trace.figures["memory"]["global loads"]["bytes"] == x.nbytes
    assert trace.figures["spills"] == 0


@pytest.mark.parametrize(
    ("op", "parameters", "vector"), [("softmax", 0, 16.0), ("rms_norm", 1, 14.2), ("layer_norm", 2, 20.8)]
)
def test_vector_instructions_of_a_row(op: str, parameters: int, vector: float):
    """Per element and lane, for 4,096 of bfloat16. The lanes of a wave exchange nothing through LDS."""
    x = torch.randn(2, 4096).bfloat16()
    _, trace = launched(op, "cpp", x, *[torch.randn(4096).bfloat16()] * parameters)
    assert trace.figures["lds"]["exchanges"]["lanes"] == 0
    waves = x.numel() / 16 / 64
    assert trace.figures["instructions"]["vector"] / waves / 16 < vector
