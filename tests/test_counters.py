"""docs/counters.py reads ncu's table as it is, case by case."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

COUNTERS = runpy.run_path(str(Path(__file__).resolve().parent.parent / "docs" / "counters.py"))
TENSOR = "sm__inst_executed_pipe_tensor_op_gmma.avg.pct_of_peak_sustained_active"
TABLE = f"""==PROF== Connected to process 7
"ID","Kernel Name","{COUNTERS["TIME"]}","{COUNTERS["SM"]}","{COUNTERS["DRAM"]}","{COUNTERS["WARPS"]}",\
"{COUNTERS["REGISTERS"]}","{TENSOR}","another"
"","","ms","%","%","%","register/thread","%",""
"0","spin_kernel(long)","0.1","1","1","1","16","0","x"
"1","pack(int)","1.5","10","80","50","32","0","x"
"2","product(int)","2,000.25","90","20","12.5","168","88.4","x"
"3","spin_kernel(long)","0.1","1","1","1","16","0","x"
"4","softmax(int)","0.25","30","91.6","60","40","","x"
""".replace("\\\n", "")
CASES = [("matmul/x/normal/bench", "packed"), ("softmax/y/normal/bench", "native")]


def test_kernels_belong_to_the_case_whose_mark_stands_before_them():
    first, second, third = COUNTERS["parsed"](TABLE, CASES)
    assert (first["case"], first["impl"], first["kernel"]) == (*CASES[0], "pack")
    assert (second["case"], second["kernel"], third["case"]) == (CASES[0][0], "product", CASES[1][0])
    assert second["counters"][COUNTERS["TIME"]] == [2000.25, "ms"]
    assert second["counters"][TENSOR] == [88.4, "%"]
    assert TENSOR not in third["counters"] and "another" not in third["counters"]


def test_a_case_without_its_mark_is_an_error():
    with pytest.raises(ValueError, match="3 cases were asked for, ncu saw 2"):
        list(COUNTERS["parsed"](TABLE, [*CASES, ("z", "native")]))


def test_the_page():
    kernels = list(COUNTERS["parsed"](TABLE, CASES))
    made = {"device": "a card", "command": "count", "date": "2026-11-22T01:02:03", "versions": {"ncu": "1"}}
    lines = COUNTERS["page"](made | {"kernels": kernels}).splitlines()
    assert "| `matmul/x` | packed | `product` | 2000250.0 | 88 | 90 | 20 | 12 | 168 |" in lines
    assert lines[-1] == "| `softmax/y` | native | `softmax` | 250.0 | - | 30 | 92 | 60 | 40 |"


def test_every_case_that_is_counted_exists_once():
    asked = [(case.id, impl) for case, impl in COUNTERS["asked"]()]
    assert len(asked) == len(set(asked)) > 40
