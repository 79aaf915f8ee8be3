"""Memory that an op allocates is poisoned and fenced, and what it does to the fences is seen."""

from __future__ import annotations

import threading

import pytest
import torch

from portable.conformance import runner
from portable.conformance.cases import cases
from portable.conformance.guards import guarded_memory
from portable.conformance.oracle import ask

TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


@pytest.mark.parametrize("dtype", TYPES)
def test_what_is_allocated_is_poisoned(dtype):
    like = torch.zeros(3, 5, dtype=dtype).t()
    with guarded_memory() as guards:
        for made in (
            torch.empty(100, dtype=dtype), torch.empty_like(like), like.new_empty(4),
            torch.empty_strided((3, 2), (1, 3), dtype=dtype),
        ):  # fmt: skip
            assert made.isnan().all() and made.dtype == dtype
            made.fill_(1)
        assert torch.empty_like(like).stride() == like.stride()
    assert guards.fault() == ""
    assert torch.empty.__name__ == "empty"


def test_integers_and_empty_tensors():
    with guarded_memory() as guards:
        assert (torch.empty(7, dtype=torch.int32) == -1).all()
        assert torch.empty(0, 5).shape == (0, 5)
        assert torch.empty(()).isnan()
    assert guards.fault() == ""


@pytest.mark.parametrize("place, words", [(-1, "before"), (12, "behind"), (12 + 63, "behind")])
def test_a_write_beside_it_is_seen(place, words):
    with guarded_memory() as guards:
        made = torch.empty(12)
        made.as_strided((1,), (1,), made.storage_offset() + place).fill_(0)
        assert words in guards.fault() and "tensor of 48 bytes" in guards.fault()


def test_a_nan_written_beside_it_is_seen():
    with guarded_memory() as guards:
        made = torch.empty(12, dtype=torch.bfloat16)
        made.as_strided((1,), (1,), made.storage_offset() + 12).fill_(float("nan"))
        assert "2 bytes behind" in guards.fault() and "byte +0 from its end" in guards.fault()


def test_other_threads_are_guarded_and_other_tensors_left_alone():
    with guarded_memory() as guards:
        thread = threading.Thread(target=lambda: torch.empty(5).fill_(0))
        thread.start()
        thread.join()
        assert torch.empty(4, device="meta").device.type == "meta"
        assert torch.empty(4, requires_grad=True).requires_grad
        target = torch.zeros(4)
        assert torch.empty(4, out=target) is target
    assert guards.fault() == "" and len(guards._buffers) == 1


def test_a_tensor_is_no_view_and_takes_gradients():
    with guarded_memory():
        made = torch.empty(4).fill_(2)
        assert not made._is_view()
        (made.requires_grad_() * 3).sum().backward()
    assert (made.grad == 3).all()


def test_an_op_that_writes_beside_what_it_allocated_fails(norm, monkeypatch):
    """Its result is right; only the band knows."""
    import portable

    case = next(case for case in cases(norm) if case.values == "normal" and case.mode == "")
    real = portable.toy_norm

    def careless(*args, **params):
        result = torch.empty_like(real(*args, **params)).copy_(real(*args, **params))
        behind = result.storage_offset() + result.numel()
        if result.untyped_storage().nbytes() > behind * result.element_size():
            result.as_strided((1,), (1,), behind).fill_(0)
        return result

    monkeypatch.setattr(portable, "toy_norm", careless)
    result = runner.run_case(ask(case, norm), "plain", torch.device("cpu"))
    assert result.state == "Fail.bounds_write" and "that the op allocated" in result.message
