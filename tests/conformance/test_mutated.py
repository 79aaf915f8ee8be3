"""The judge of what is written in place: all contents after a call, each call from the same."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from portable.conformance import check
from portable.conformance.cases.case import parse
from portable.conformance.execute import behaviour
from portable.conformance.judge import reference
from portable.kernels.kv_cache_write.torch_impl import kv_cache_write as right
from portable.spec import registry

OP = "kv_cache_write"
SIZES = "M=5,G=2,D=64,E=64,P=3,S=16"
CASE = f"{OP}/bfloat16,I=int64/{SIZES}/normal/contiguous"
NONFINITE = f"{OP}/bfloat16,I=int64/{SIZES}/nonfinite/contiguous"
PADDED = f"{OP}/float32,I=int32/{SIZES}/normal/padded"


def judged(function, case=CASE) -> str:
    report = check(function, OP, "cpu", cases=[case])
    return "" if report.conforms else str(report)


@pytest.mark.parametrize("case", [CASE, NONFINITE, PADDED])
def test_a_right_function_passes(case):
    assert judged(right, case) == ""


@pytest.mark.parametrize("layout", ["expanded", "repeated", "sliced"])
def test_what_is_written_and_derived_has_memory_of_its_own(layout):
    """All elements of such an input may be equal, and a layout could then repeat one."""
    spec = registry.spec("adamw")
    case = parse(f"adamw/float32/N=33,no=grad_scale+found_inf/normal/{layout}", spec)
    entry = "portable.conformance.judge.reference.derived"
    equal = {"exp_avg_sq": torch.ones(33), "step": torch.ones(1), "lr": torch.ones(1)}
    with mock.patch(entry, lambda *_: equal):
        made = reference.materialize(case, spec).inputs["exp_avg_sq"]
    assert made.strides == ((2,) if layout == "sliced" else (1,))


def test_nothing_written():
    assert "elements wrong" in judged(lambda k, v, k_cache, v_cache, slots: None)


def test_values_left_out():
    def keys_alone(k, v, k_cache, v_cache, slots):
        right(k, v, k_cache, v_cache.clone(), slots)

    assert "v_cache: Fail.value" in judged(keys_alone)


def test_the_rest_of_the_cache_keeps_its_bits():
    """A NaN's payload is part of them: through float32, torch makes every NaN of bfloat16 the same."""

    def through_float32(k, v, k_cache, v_cache, slots):
        right(k, v, k_cache, v_cache, slots)
        for cache in (k_cache, v_cache):
            bits = cache.view(torch.int16)
            bits[cache.isnan()] ^= 1

    assert judged(through_float32) == ""
    assert "changed that the op does not write" in judged(through_float32, NONFINITE)


def test_a_zero_keeps_its_sign():
    def plus_zero(k, v, k_cache, v_cache, slots):
        right(k, v, k_cache, v_cache, slots)
        k_cache += 0.0

    assert "k_cache: Fail" in judged(plus_zero, CASE.replace("normal", "signed_zero"))


def test_memory_beside_the_cache():
    def beside(k, v, k_cache, v_cache, slots):
        right(k, v, k_cache, v_cache, slots)
        k_cache.as_strided((1,), (1,), k_cache.storage_offset() + 64).fill_(0)  # behind the first head's row

    assert "memory beside it, was written" in judged(beside, PADDED)


def test_another_input():
    def keys_too(k, v, k_cache, v_cache, slots):
        right(k, v, k_cache, v_cache, slots)
        k[0, 0, 0] += 1
        k[0, 0, 0] -= 1

    assert "Fail.behaviour" in judged(keys_too)


def test_each_call_begins_from_the_same_contents():
    calls = []

    def every_second(k, v, k_cache, v_cache, slots):
        calls.append(k_cache.clone())
        if len(calls) % 2:
            right(k, v, k_cache, v_cache, slots)

    assert judged(every_second)
    assert torch.equal(calls[0], calls[1])


def test_a_result_that_there_is_not():
    assert judged(lambda k, v, k_cache, v_cache, slots: k_cache)


def test_what_is_kept_is_found_by_the_reference():
    spec = registry.spec(OP)
    made = reference.materialize(parse(CASE, spec), spec)
    kept = made.expected["k_cache"].kept
    slots = made.inputs["slots"].tensor
    places = slots[(slots >= 0) & (slots < 48)]
    assert kept is not None and len(places) >= 3
    assert sorted(set(range(48)) - set(places.tolist())) == (
        kept.flatten(0, 1).flatten(1).all(1).nonzero().flatten().tolist()
    )
    assert not kept.flatten(0, 1)[places].any()


def test_what_is_written_in_place_has_an_element_per_address():
    spec = registry.spec(OP)
    for layout in ("expanded", "repeated"):
        made = reference.materialize(parse(CASE.replace("contiguous", layout), spec), spec)
        assert made.inputs["k_cache"].tensor.is_contiguous() and 0 in made.inputs["k"].strides


def test_behaviours_leave_what_they_are_given():
    spec = registry.spec(OP)
    call = behaviour.caller(spec, right)
    tensors = behaviour.sample(spec, torch.device("cpu"))
    kept = {name: each.clone() for name, each in tensors.items()}
    k_cache, _ = call(tensors)
    assert not torch.equal(k_cache, kept["k_cache"])
    assert all(torch.equal(tensors[name], each) for name, each in kept.items())
    far = {**tensors, "k_cache": torch.empty(1 << 21).as_strided((20, 16, 4, 64), (1 << 16, 256, 64, 1))}
    far["k_cache"].copy_(kept["k_cache"])
    far = {name: each.float() if name != "slots" else each for name, each in far.items()}
    assert torch.equal(call(far)[0].bfloat16(), k_cache) and torch.equal(
        far["k_cache"].bfloat16(), kept["k_cache"]
    )
