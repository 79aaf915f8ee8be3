"""The sweep: every group makes cases, layouts lie as named, and verdicts follow from the timings."""

from __future__ import annotations

import pytest
import torch

from portable.conformance.perf import bench, sweep
from portable.conformance.perf.sweep import Bar, Group
from portable.spec import registry


@pytest.mark.parametrize("group", sweep.groups(), ids=lambda group: group.name)
def test_every_group_asks_for_cases_of_implementations_that_exist(group):
    for op in group.ops:
        spec = registry.spec(op)
        timed = list(group.cases(op))
        assert len(timed) == len(group.types) * len(group.sizes) * len(group.layouts)
        assert len({each.case.id for each in timed}) == len(timed)
        for each in timed:
            assert all(spec.implementation(name) is not None for name in each.impls)


def test_what_a_parameter_says_may_be_of_any_type():
    row = sweep.uniform_types(registry.spec("quantize_fp8"), "bfloat16")
    assert row is not None and (row["T"], row["Q"]) == ("bfloat16", "float8_e4m3fn")


def test_the_names_of_groups_are_distinct_and_unknown_ones_are_refused():
    names = [group.name for group in sweep.groups()]
    assert len(set(names)) == len(names)
    assert [group.name for group in sweep.chosen(names[1:3])] == names[1:3]
    assert sweep.chosen([]) == list(sweep.groups())
    with pytest.raises(ValueError, match=r"no group 'large product'.*large products"):
        sweep.chosen(["large product"])


@pytest.mark.parametrize(
    ("layout", "strides", "offset"),
    [
        ("bench", (5, 1), 0),
        ("bench-bT", (5, 1), 0),
        ("bench-aT", (1, 3), 0),
        ("bench-a1", (5, 1), 1),
        ("bench-aT2-bT", (1, 3), 2),
    ],
)
def test_layouts(layout, strides, offset):
    made = sweep.laid_out(layout, "a", (3, 5), lambda dims: torch.zeros(list(dims)))
    assert tuple(made.shape) == (3, 5) and made.stride() == strides and made.storage_offset() == offset


def entry(case, impl, us=1.0, **ratios):
    vs = {name: {"median": each} for name, each in ratios.items()}
    return {"case": case, "impl": impl, "device_us": us, "vs": vs}


@pytest.fixture
def toy(monkeypatch):
    bars = (
        Bar("cpp", "torch", 1.05, 0.97),
        Bar("cpp", "best", 1.0, None),
        Bar("triton", "torch", 1.0, None),
    )
    sizes = ({"N": 8, "leading": [2]}, {"N": 9, "leading": [2]})
    group = Group("toy", ("softmax",), ("bfloat16",), sizes, ("",), ("torch",), bars)
    monkeypatch.setattr(sweep, "groups", lambda: (group,))
    return [timed.case.id for timed in group.cases("softmax")]


def test_verdicts(toy):
    first, second = toy
    entries = [
        entry(first, "cpp", torch=1.5, liger=0.8, copy=0.5, dense=0.6),
        entry(second, "cpp", 3.0, torch=0.96, copy=0.5),
        entry("softmax/float32/N=8/normal/bench", "cpp", torch=9.0),
    ]
    over_torch, over_best = sweep.verdicts(entries)
    assert over_torch.mean == pytest.approx(1.2) and over_torch.least == 0.96 and over_torch.at == second
    assert not over_torch.met  # the mean is reached, the least is not
    assert over_best.mean == pytest.approx((0.8 * 0.96) ** 0.5) and not over_best.met and over_best.cases == 2
    assert sweep.lines([over_torch]) == [
        "missed: toy, softmax on cpp over torch: geometric mean of 2 1.200 (bar 1.05), of their sums 1.095, "
        f"least 0.960 (bar 0.97) at {second}"
    ]
    entries[1]["vs"]["torch"]["median"] = 0.98
    assert sweep.verdicts(entries)[0].met


def test_timed_cases_keep_to_the_selected_ops_and_implementations():
    every = bench.timed_cases(["matmul", "softmax"], None, [])
    assert {each.case.op for each in every} == {"matmul", "softmax"}
    few = bench.timed_cases(["softmax"], ["cpp"], ["rows, forward"])
    assert few and all(each.impls == ["cpp"] and each.case.op == "softmax" for each in few)
    own = bench.timed_cases(["softmax"], None, None)
    assert [each.case for each in own] == bench.bench_cases(registry.spec("softmax"))
    assert all(each.baselines is None for each in own)


def test_the_type_of_a_result_that_a_call_says_is_the_first_of_its_operands():
    row = sweep.uniform_types(registry.spec("scaled_mm"), "float8_e4m3fn")
    assert row is not None and (row["TB"], row["R"]) == ("float8_e4m3fn", "bfloat16")
    assert sweep.uniform_types(registry.spec("scaled_mm"), "float8_e5m2") is None
    spec = registry.spec("scaled_mm")
    assert [dict(case.types)["R"] for case in bench.bench_cases(spec)] == ["bfloat16"] * len(spec.bench)
