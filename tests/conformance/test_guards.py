"""Memory that an op allocates is poisoned and fenced, and what it does to the fences is seen."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch

from portable.conformance.cases.generate import cases
from portable.conformance.execute import runner
from portable.conformance.execute.guards import guarded_memory
from portable.conformance.judge.reference import materialize

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


def test_bands_are_there_where_the_tensors_are_not_poisoned():
    with guarded_memory(poisoned=False) as guards:
        made = torch.empty(300, 40)
        made.fill_(1)
        assert torch.zeros(5).eq(0).all() and guards.fault() == ""
        made.as_strided((1,), (1,), made.storage_offset() + made.numel() + 40).fill_(0)
        assert "4 bytes behind" in guards.fault() and "byte +160 from its end" in guards.fault()


@pytest.mark.parametrize("shape", [(1000,), (3, 1000), (2, 3, 1000)])
def test_a_write_one_row_off_is_seen_of_vectors_too(shape):
    with guarded_memory() as guards:
        made = torch.empty(shape)
        made.as_strided((1,), (1,), made.storage_offset() - 1000).fill_(0)
        assert "byte -3997 from its start" in guards.fault()


def test_integers_and_empty_tensors():
    with guarded_memory() as guards:
        assert (torch.empty(7, dtype=torch.int32) == -1).all()
        assert torch.empty(0, 5).shape == (0, 5) and torch.empty(0, 5, dtype=torch.int8).dtype == torch.int8
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
        target = torch.ones(4)
        assert torch.empty(4, out=target) is target
    assert guards.fault() == "" and len(guards._buffers) == 1


def test_a_tensor_is_no_view_and_takes_gradients():
    with guarded_memory():
        made = torch.empty(4).fill_(2)
        assert not made._is_view()
        (made.requires_grad_() * 3).sum().backward()
    assert (made.grad == 3).all()


@pytest.mark.parametrize(
    "make, shape, strides",
    [
        (lambda: torch.empty(2, 3), (2, 3), (3, 1)),
        (lambda: torch.empty((2, 3)), (2, 3), (3, 1)),
        (lambda: torch.empty([2, 3]), (2, 3), (3, 1)),
        (lambda: torch.empty(size=(2, 3)), (2, 3), (3, 1)),
        (lambda: torch.empty(torch.Size([2, 3])), (2, 3), (3, 1)),
        (lambda: torch.empty(1, 2, 3, 4, memory_format=torch.channels_last), (1, 2, 3, 4), (24, 1, 8, 2)),
        (lambda: torch.empty_like(torch.ones(2, 3).T), (3, 2), (1, 3)),
        (lambda: torch.empty_strided((3, 3), (0, 1)), (3, 3), (0, 1)),
        (lambda: torch.empty_strided((2, 2), (1, 1)), (2, 2), (1, 1)),
        (lambda: torch.empty_strided((2, 2), (100, 7)), (2, 2), (100, 7)),
        (lambda: torch.empty_permuted((2, 3, 4), (2, 0, 1)), (2, 3, 4), (3, 1, 6)),
        (lambda: torch.ones(1).new_empty(2, 3), (2, 3), (3, 1)),
        (lambda: torch.ones(1).new_empty((2, 3)), (2, 3), (3, 1)),
        (lambda: torch.ones(1).new_empty_strided((2, 3), (4, 1)), (2, 3), (4, 1)),
    ],
)
def test_every_way_to_ask_gives_what_torch_gives(make, shape, strides):
    plain = make()
    with guarded_memory() as guards:
        made = make()
        assert (made.shape, made.stride(), made.dtype) == (plain.shape, plain.stride(), plain.dtype)
        assert (tuple(made.shape), made.stride()) == (shape, strides)
        assert made.isnan().all() and len(guards._buffers) == 1
        made.fill_(1)
        assert guards.fault() == ""
        last = made.storage_offset() + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        made.as_strided((1,), (1,), last + 1).fill_(0)
        assert "4 bytes behind" in guards.fault()


@pytest.mark.parametrize(
    "dtype",
    [
        torch.bool, torch.uint8, torch.int64, torch.complex64, torch.complex128, torch.float8_e4m3fn,
        torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz,
    ],
)  # fmt: skip
def test_every_type_is_guarded_and_a_float_is_no_number(dtype):
    with guarded_memory() as guards:
        made = torch.empty(5, dtype=dtype)
        assert len(guards._buffers) == 1 and made.dtype == dtype and made.data_ptr() % 64 == 0
        if dtype.is_floating_point:
            assert made.float().isnan().all()
        made.view(torch.uint8).fill_(3)
        assert guards.fault() == ""
        made.as_strided((1,), (1,), made.storage_offset() - 1).view(torch.uint8).fill_(3)
        assert "before" in guards.fault()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(2, 3), lambda: torch.zeros_like(torch.ones(3, 2).T), lambda: torch.zeros(()),
        lambda: torch.ones(2).new_zeros(3), lambda: torch.ones(2).new_full((2,), 7),
        lambda: torch.full((4,), 2.5),
        lambda: torch.full_like(torch.ones(2, dtype=torch.int32), 4),
    ],
)  # fmt: skip
def test_what_is_asked_with_a_value_has_it_and_is_fenced(make):
    plain = make()
    with guarded_memory() as guards:
        made = make()
        assert torch.equal(made, plain) and made.dtype == plain.dtype and made.stride() == plain.stride()
        assert guards.fault() == "" and len(guards._buffers) == 1
        made.as_strided((1,), (1,), made.storage_offset() + made.numel()).fill_(1)
        assert "behind" in guards.fault()


def test_an_empty_tensor_may_take_memory():
    """`out=` of no elements is resized; what is written then is its own."""
    with guarded_memory() as guards:
        out = torch.empty(0)
        torch.add(torch.ones(30), 1, out=out)
        assert out.shape == (30,)
    assert guards.fault() == ""


def test_named_and_pinned_tensors_stay_what_they_are():
    with guarded_memory():
        if hasattr(torch.Tensor, "has_names"):
            named: Any = torch.empty  # the types of torch 2.13 know no names
            assert named(2, 3, names=("a", "b")).names == ("a", "b")
        if torch.cuda.is_available():
            assert torch.empty(2, pin_memory=True).is_pinned()


def test_a_tensor_outlives_its_block():
    with guarded_memory() as guards:
        made = torch.empty(1000).fill_(3)
    del guards
    assert made.sum() == 3000 and torch.empty(3).untyped_storage().nbytes() == 12


def test_blocks_nest_and_those_of_threads_do_not_mix():
    plain = torch.empty
    barrier = threading.Barrier(2)
    wrong = []

    def work(number: int) -> None:
        barrier.wait()
        for _ in range(20):
            with guarded_memory() as guards:
                torch.empty(number + 1).as_strided((1,), (1,), 0).fill_(0)
                with guarded_memory() as inner:
                    torch.empty(1).fill_(0)
                if len(guards._buffers) != 2 or len(inner._buffers) != 1 or "before" not in guards.fault():
                    wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and torch.empty is plain


def test_a_large_output_is_there_once(monkeypatch):
    """The tensor that gives shape and strides is gone before the guarded one is made."""
    from portable.conformance.execute import guards as module

    alive = []

    class Seen(module.Guards):
        def allocate(self, *like):
            alive.append([each for each in gc.get_objects() if type(each) is torch.Tensor and is_large(each)])
            return super().allocate(*like)

    def is_large(tensor):
        return tensor.device.type == "cpu" and tensor.numel() == 1234567

    monkeypatch.setattr(module, "Guards", Seen)
    with guarded_memory():
        torch.empty(1234567)
    assert alive == [[]]


@pytest.mark.slow
def test_a_graph_that_is_compiled_inside_is_left_alone():
    @torch.compile(backend="eager", fullgraph=True)
    def double(x):
        return torch.empty_like(x).copy_(x) + torch.zeros(x.shape) + x

    with guarded_memory() as guards:
        assert (double(torch.ones(3)) == 2).all()
    assert guards.fault() == ""


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
    result = runner.run_case(materialize(case, norm), "plain", torch.device("cpu"))
    assert result.state == "Fail.bounds_write" and "that the op allocated" in result.message
