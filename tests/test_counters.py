"""docs/counters.py reads ncu's table as it is, case by case."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

COUNTERS = runpy.run_path(str(Path(__file__).resolve().parent.parent / "docs" / "counters.py"))
TIME, TENSOR = COUNTERS["TIME"], COUNTERS["TENSOR"]
NAMES = '","'.join(COUNTERS["KEPT"])
TABLE = f"""==PROF== Connected to process 7
"ID","Kernel Name","{NAMES}","another"
"","","ms","%","%","%","%","register/thread",""
"0","spin_kernel(long)","0.1","0","1","1","1","16","x"
"1","pack(int)","1.5","0","10","80","50","32","x"
"2","pack(int)","4.5","0","30","40","50","32","x"
"3","product(int)","2,000.25","88.4","90","20","12.5","168","x"
"4","spin_kernel(long)","0.1","0","1","1","1","16","x"
"5","softmax(int)","0.25","0.2","30","91.6","60","40","x"
"""
CASES = [("matmul/x/normal/bench", "realigned"), ("softmax/y/normal/bench", "cpp")]


def test_kernels_belong_to_the_case_whose_mark_stands_before_them():
    first, again, second, third = COUNTERS["parsed"](TABLE, CASES)
    assert (first["case"], first["impl"], first["kernel"]) == (*CASES[0], "pack")
    assert again["kernel"] == "pack"
    assert (second["case"], second["kernel"], third["case"]) == (CASES[0][0], "product", CASES[1][0])
    assert second["counters"][TIME] == [2000.25, "ms"] and second["counters"][TENSOR] == [88.4, "%"]
    assert "another" not in third["counters"]


def test_a_case_without_its_mark_is_an_error():
    with pytest.raises(ValueError, match="3 cases were selected, ncu saw 2"):
        list(COUNTERS["parsed"](TABLE, [*CASES, ("z", "cpp")]))


def test_the_page():
    kernels = list(COUNTERS["parsed"](TABLE, CASES))
    made = {"device": "a GPU", "command": "count", "date": "2026-11-22T01:02:03", "versions": {"ncu": "1"}}
    lines = COUNTERS["page"](made | {"kernels": kernels}).splitlines()
    assert lines[-3:] == [
        "| `matmul/x` | realigned | `pack` | 2 | 6000.0 | 0 | 25 | 50 | 50 | 32 |",
        "| `matmul/x` | realigned | `product` | 1 | 2000250.0 | 88 | 90 | 20 | 12 | 168 |",
        "| `softmax/y` | cpp | `softmax` | 1 | 250.0 | 0 | 30 | 92 | 60 | 40 |",
    ]


def test_every_case_that_is_counted_exists_once():
    asked = [(case.id, impl) for case, impl in COUNTERS["counted"]()]
    assert len(asked) == len(set(asked)) > 40
