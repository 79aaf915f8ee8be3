"""Ids are stable and come back as the case they name; every pair of choices meets; tiers keep their size."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from portable.conformance.cases.case import UnknownCase, input_shapes, parse
from portable.conformance.cases.generate import (
    BOUNDARY,
    HUGE,
    MIXED,
    PROBES,
    REGRESSIONS,
    cases,
    elements,
    regressions,
    shard,
    spec_shapes,
)
from portable.conformance.cases.inputs import LAYOUTS, NAMED_VALUES, VALUES
from portable.conformance.cases.pairwise import pairwise
from portable.spec import registry

OPS = sorted(registry.op_folders())


def test_every_pair_meets():
    sizes = [6, 7, 6, 28]
    rows = list(pairwise(sizes))
    assert len(rows) < 1.3 * 7 * 28
    for one, two in combinations(range(4), 2):
        assert {(row[one], row[two]) for row in rows} == {
            (a, b) for a in range(sizes[one]) for b in range(sizes[two])
        }
    assert rows == list(pairwise(sizes))


def layouts_of(spec):
    """An op of one input has no mixed layout."""
    return {layout for layout in LAYOUTS if layout != MIXED or len(spec.inputs) > 1}


@pytest.mark.parametrize("op", OPS)
def test_tiers(op):
    spec = registry.spec(op)
    smoke, core, full = cases(spec, "smoke"), cases(spec, "core"), cases(spec, "full")
    assert 20 <= len(smoke) <= 42
    many = len(spec.types)  # each row of types meets every shape in core, and every value in full
    assert 100 <= len(core) <= max(300, 40 * many)
    assert 500 <= len(full) <= max(1500, 220 * many)
    assert core[: len(smoke)] == smoke and full[: len(core)] == core
    assert len({case.id for case in full}) == len(full)
    assert {case.values for case in smoke} - set(NAMED_VALUES) == set(VALUES)
    assert {case.layout for case in smoke} == layouts_of(spec)


@pytest.mark.parametrize("op", OPS)
def test_a_probe_meets_every_type_and_layout(op):
    spec = registry.spec(op)
    core = cases(spec)
    for values in PROBES:
        met = [case for case in core if case.values == values]
        assert {case.layout for case in met} == layouts_of(spec)
        assert len({case.types for case in met}) == len(spec.types)
    if len(spec.inputs) > 1:
        assert {case.values for case in core if case.layout == MIXED} == set(VALUES)


@pytest.mark.parametrize("op", OPS)
def test_sizes_around_2_16_in_every_axis(op):
    spec = registry.spec(op)
    core = cases(spec)
    for there, sizes in ((core, HUGE[1:]), (cases(spec, "full"), HUGE)):
        least = 1 if spec.boundary and there is core else len(sizes)
        for axis in spec.axes:
            legal = {min(size, spec.axes[axis].high or size) for size in sizes}
            assert len(legal & {dict(case.shape.axes)[axis] for case in there}) >= min(least, len(legal))
        if spec.leading == "same" and any(each.leading for each in spec.inputs.values()):
            met = {lead for case in there for lead in dict(case.shape.leading).values()}
            assert len({(size,) for size in sizes} & met) >= least
    huge = [case.shape for case in core if any(f"{size}" in str(case.shape) for size in HUGE)]
    assert max(elements(spec, shape) for shape in huge) <= 1 << 20


@pytest.mark.parametrize("op", OPS)
def test_the_full_tier_crosses_types_with_values_and_layouts(op):
    spec = registry.spec(op)
    full = set(cases(spec, "full"))
    for shape in spec_shapes(spec):
        met = {(case.types, case.values) for case in full if case.shape == shape and not case.mode}
        assert len(met) == len({types for types, _ in met}) * len(VALUES)
    assert any(
        len({(c.types, c.values, c.layout) for c in full if c.shape == shape})
        >= len(spec.types) * len(VALUES) * len(layouts_of(spec))
        for shape in {case.shape for case in full}
    )
    if not spec.boundary:
        assert max(elements(spec, case.shape) for case in full) >= 1 << 20, "no bench shape"


def test_linear_has_a_square_weight_and_matmul_asks_for_tf32():
    assert any(
        dict(case.shape.axes)["N"] == dict(case.shape.axes)["K"] > 1
        for case in cases(registry.spec("linear"))
    )
    tf32 = [case for case in cases(registry.spec("matmul")) if case.params.get("precision") == "tf32"]
    assert {case.values for case in tf32} >= set(VALUES) - set(PROBES)


@given(st.lists(st.integers()), st.integers(1, 12))
def test_shards_partition(items, n):
    parts = [shard(items, i, n) for i in range(1, n + 1)]
    assert sorted(item for part in parts for item in part) == sorted(items)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert [item for row in range(len(parts[0])) for part in parts for item in part[row : row + 1]] == items


@pytest.mark.parametrize("i, n", [(0, 2), (3, 2), (-1, 2), (1, 0)])
def test_a_shard_that_there_is_not(i, n):
    with pytest.raises(ValueError, match=f"no part {i} of {n}"):
        shard([1, 2, 3], i, n)


@pytest.mark.parametrize("op", OPS)
def test_the_regressions_are_cases_of_core_and_full(op):
    spec = registry.spec(op)
    assert set(regressions(spec)) <= set(cases(spec, "core")) & set(cases(spec, "full"))


def test_a_line_of_regressions(tmp_path):
    spec, file = registry.spec("softmax"), tmp_path / "regressions.txt"
    file.write_text(
        "# a comment\n\nsoftmax/float32/N=5,lead=9/normal/sliced  # why\nswiglu/float32/N=5/normal/sliced\n"
    )
    found = regressions(spec, file)
    assert [case.id for case in found] == ["softmax/float32/N=5,lead=9/normal/sliced"]
    assert found[0] in cases(spec, "core", file) and found[0] not in cases(spec, "smoke", file)


@pytest.mark.parametrize(
    "line, problem",
    [
        ("softmax/float32/N=5,lead=9/nomal/sliced", "expected one of normal"),
        ("softmacks/float32/N=5/normal/sliced", "there is no op 'softmacks'"),
        ("softmax", "is not op/types"),
        ("softmax/behaviour/two_threads", "is not op/types"),
    ],
)
def test_a_wrong_line_is_named(tmp_path, line, problem):
    file = tmp_path / "regressions.txt"
    file.write_text(f"# one\n{line}\n")
    with pytest.raises(UnknownCase, match=r"regressions\.txt:2: .*" + problem):
        regressions(registry.spec("softmax"), file)
    assert REGRESSIONS.is_file()


@pytest.mark.parametrize("op", OPS)
def test_ids_come_back(op):
    spec = registry.spec(op)
    for case in cases(spec, "full"):
        assert parse(case.id, spec) == case


@pytest.mark.parametrize("op", [op for op in OPS if not registry.spec(op).boundary])
def test_every_boundary_in_every_axis(op):
    spec = registry.spec(op)
    for axis in spec.axes:
        assert set(BOUNDARY) <= {dict(case.shape.axes)[axis] for case in cases(spec)}


def test_an_id_reads_as_promised():
    ids = [case.id for case in cases(registry.spec("softmax"))]
    assert ids[0] == "softmax/bfloat16/N=1,lead=1/normal/contiguous"
    assert any(",dim=0/" in text for text in ids)


def test_the_axis_is_where_the_parameter_puts_it():
    spec = registry.spec("softmax")
    case = parse("softmax/float32/N=40,lead=3x5,dim=0/normal/contiguous", spec)
    assert input_shapes(spec, case.shape) == {"x": (40, 3, 5)}


def test_leading_dimensions_per_input():
    spec = registry.spec("matmul")
    case = parse("matmul/float32/M=2,N=3,K=4,lead.a=2x1,lead.b=1x3/normal/contiguous", spec)
    assert input_shapes(spec, case.shape) == {"a": (2, 1, 2, 4), "b": (1, 3, 4, 3)}


@pytest.mark.parametrize(
    "text",
    [
        "softmax",
        "softmax/int8/N=1,lead=1/normal/contiguous",
        "softmax/float32/N=one,lead=1/normal/contiguous",
        "softmax/float32/lead=1/normal/contiguous",
        "softmax/float32/N=1,Q=2/normal/contiguous",
        "softmax/float32/N=1,lead=1/nomal/contiguous",
        "softmax/float32/N=1,lead=1/normal/diagonal",
        "softmax/float32/N=1,lead=1/normal/contiguous/fast",
        "softmax/float32/N=1,no=y/normal/contiguous",
    ],
)
def test_what_is_no_case_is_refused(text):
    with pytest.raises(UnknownCase):
        parse(text, registry.spec("softmax"))
