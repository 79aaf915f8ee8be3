"""The behaviour `large_result` at a small scale: LARGE is 2^14 here."""

from __future__ import annotations

import pytest
import torch

import portable
from portable import errors
from portable.conformance.execute import behaviour, large_result
from portable.conformance.execute.runner import function
from portable.conformance.execute.samples import NotApplicable
from portable.spec import registry

CPU = torch.device("cpu")
FAR = 1 << 14
OPS = sorted(op for op in registry.op_folders() if not registry.spec(op).mutated)
RIGHT = {op: function(op) for op in OPS}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(large_result, "LARGE", FAR)
    monkeypatch.setattr(large_result, "CHUNK", FAR // 4)
    monkeypatch.setattr(large_result, "HEADS", 1)
    monkeypatch.setattr(large_result, "LONGER", 1)


def ask(op, spoilt=lambda result, **given: result):
    """What the behaviour says of the op's right function, its results spoilt."""

    def call(**given):
        return spoilt(RIGHT[op](**given), **given)

    spec = registry.spec(op)
    with portable.using(**{op: "torch"}):
        return large_result.large_result(behaviour.caller(spec, call), spec, CPU)


def first(result):
    return result[0] if isinstance(result, tuple) else result


def poisoned(result):
    return torch.empty(result.shape, dtype=result.dtype)


@pytest.mark.parametrize("op", OPS)
def test_the_right_one_passes(op):
    assert ask(op) is None


@pytest.mark.parametrize("op", [op for op in OPS if op != "amax_scale"])  # whose result is one number
def test_zeros_beyond_2_31(op):
    def zeros(result, **given):
        first(result).view(-1)[FAR:] = 0
        return result

    assert "elements: element [" in (ask(op, zeros) or "")


@pytest.mark.parametrize("op", ["softmax", "matmul", "linear", "attention"])
def test_written_modulo_2_31(op):
    """What lies beyond lands before, and nobody writes the rest."""

    def wrapped(result, **given):
        result, flat = first(result), first(result).reshape(-1)
        made = poisoned(result)
        for start in range(0, flat.numel(), FAR):
            part = flat[start : start + FAR]
            made.view(-1)[: len(part)] = part
        return made if op != "attention" else (made, RIGHT[op](**given)[1])

    assert ask(op, wrapped) is not None


@pytest.mark.parametrize("op, name", [("softmax", "x"), ("swiglu", "up"), ("attention", "q")])
def test_read_modulo_2_31(op, name):
    def wrapped(**given):
        flat = given[name].flatten()
        at = torch.arange(flat.numel()) % FAR
        return RIGHT[op](**{**given, name: flat[at].view(given[name].shape)})

    assert ask(op, lambda result, **given: wrapped(**given)) is not None


@pytest.mark.parametrize("columns", [4096, 136])
def test_long_rows_read_modulo_2_31(columns):
    """Of an op with one result a row, whose results are few."""

    def wrapped(result, logits, **given):
        if logits.shape[1] != columns:
            return result
        at = torch.arange(logits.numel()) % FAR
        return RIGHT["cross_entropy"](logits.flatten()[at].view(logits.shape), **given)

    assert "of copy" in (ask("cross_entropy", wrapped) or "")


def test_one_element_behind_2_32():
    def one(result, **given):
        result.view(-1)[2 * FAR + 5] *= 1.1
        return result

    said = ask("softmax", one) or ""
    assert said.startswith("in bfloat16, y of 57344 elements: element [1, 5] of copy [1] is "), said


def test_batches_whose_offset_has_32_bits():
    def wrapped(result, **given):
        if result.dim() > 2:
            result.view(-1)[2 * FAR :] = result.view(-1)[: result.numel() - 2 * FAR].clone()
        return result

    assert "of copy" in (ask("matmul", wrapped) or "")


@pytest.mark.parametrize("op", ["rms_norm_backward", "layer_norm_backward", "activation_backward_sums"])
def test_sums_that_end_at_2_32(op):
    """The rows' own results are right, the sums over them lack those beyond."""

    def short(result, **given):
        rows = {n: t for n, t in given.items() if n in ("dy", "x", "z")}
        count = 2 * FAR // given["dy"].shape[-1]
        fewer = {n: t.flatten(0, -2)[:count] for n, t in rows.items()}
        return (result[0], *RIGHT[op](**{**given, **fewer})[1:])

    assert "the sums are off by 0." in (ask(op, short) or "")


@pytest.mark.parametrize("spoil", [lambda y, **given: y.float(), lambda y, **given: y[1:]])
def test_another_type_or_shape(spoil):
    assert "it is torch." in (ask("softmax", spoil) or "")


def test_a_write_beside_the_result():
    def beside(result, **given):
        made = poisoned(result).copy_(result)
        made.as_strided((1,), (1,), made.storage_offset() + made.numel()).zero_()
        return made

    assert "behind a tensor" in (ask("softmax", beside) or "")


def test_where_memory_lacks_it_is_2_31_and_then_nothing():
    asked = []

    def short_of(limit):
        def call(result, **given):
            asked.append(result.numel())
            if result.numel() > limit:
                raise torch.OutOfMemoryError("CUDA out of memory.\nTried")
            return result

        return call

    assert ask("softmax", short_of(2 * FAR)) is None
    assert asked[0] > 2 * FAR > asked[1] > FAR
    with pytest.raises(NotApplicable, match=r"^CUDA out of memory\.$"):
        ask("softmax", short_of(0))


def test_one_refused_way_is_left_out_and_all_are_a_refusal():
    def refuses(smallest):
        def call(result, a, **given):
            if a.shape[-2] >= smallest:
                raise errors.PinError("matmul", "torch", "too many rows")
            result.view(-1)[FAR:] = 0
            return result

        return call

    assert "c of" in (ask("matmul", refuses(100)) or "")
    with pytest.raises(errors.PinError, match="too many rows"):
        ask("matmul", refuses(0))


@pytest.mark.parametrize("op", OPS)
def test_it_declines_without_a_gpu(op):
    result = behaviour.run(behaviour.Behaviour(op, "large_result"), "torch", CPU)
    assert (result.state, result.message) == ("NotSupported", "needs a GPU")


def test_an_op_of_one_result_a_row_has_a_large_input_and_many_rows():
    """Copies of rows of 4096 columns until 2^31 results are there would take 2^43 columns."""
    ways = large_result._ways(registry.spec("sample"))
    assert [(dict(way.shape.axes)["N"], way.reads) for way in ways] == [(2, False), (4096, True), (136, True)]
