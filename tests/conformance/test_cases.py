"""Ids are stable and come back as the case they name; every pair of choices meets; tiers keep their size."""

from __future__ import annotations

from itertools import combinations

import pytest

from portable import catalog
from portable.conformance.cases import BOUNDARY, UnknownCase, cases, input_shapes, pairwise, parse
from portable.conformance.inputs import LAYOUTS, VALUES

OPS = sorted(catalog.op_folders())


def test_every_pair_meets():
    sizes = [6, 7, 6, 28]
    rows = list(pairwise(sizes))
    assert len(rows) < 1.3 * 7 * 28
    for one, two in combinations(range(4), 2):
        assert {(row[one], row[two]) for row in rows} == {
            (a, b) for a in range(sizes[one]) for b in range(sizes[two])
        }
    assert rows == list(pairwise(sizes))


@pytest.mark.parametrize("op", OPS)
def test_tiers(op):
    spec = catalog.spec(op)
    smoke, core = cases(spec, "smoke"), cases(spec, "core")
    assert 20 <= len(smoke) < 40
    assert 100 <= len(core) <= 400
    assert len({case.id for case in core}) == len(core)
    assert {case.values for case in smoke} == set(VALUES)
    assert {case.layout for case in smoke} == set(LAYOUTS)
    assert set(smoke) <= set(core)


@pytest.mark.parametrize("op", OPS)
def test_ids_come_back(op):
    spec = catalog.spec(op)
    for case in cases(spec):
        assert parse(case.id, spec) == case


@pytest.mark.parametrize("op", OPS)
def test_every_boundary_in_every_axis(op):
    spec = catalog.spec(op)
    for axis in spec.axes:
        assert set(BOUNDARY) <= {dict(case.shape.axes)[axis] for case in cases(spec)}


def test_an_id_reads_as_promised():
    ids = [case.id for case in cases(catalog.spec("softmax"))]
    assert ids[0] == "softmax/bfloat16/N=1,lead=1/normal/contiguous"
    assert any(",dim=0/" in text for text in ids)


def test_the_axis_is_where_the_parameter_puts_it():
    spec = catalog.spec("softmax")
    case = parse("softmax/float32/N=40,lead=3x5,dim=0/normal/contiguous", spec)
    assert input_shapes(spec, case.shape) == {"x": (40, 3, 5)}


def test_leading_dimensions_per_input():
    spec = catalog.spec("matmul")
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
        parse(text, catalog.spec("softmax"))
