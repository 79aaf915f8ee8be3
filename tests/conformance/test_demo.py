"""`make demo`: an op called once and judged."""

from __future__ import annotations

import pytest
import torch

from portable.conformance.cases.case import parse
from portable.conformance.commands import demo
from portable.spec import registry


@pytest.mark.parametrize(
    "text",
    [
        "softmax/float32/N=8,lead=2/normal/contiguous",
        "kv_cache_write/float32,I=int64/M=2,G=1,D=8,E=8,P=2,S=4/normal/contiguous",
        "qk_norm_rope_kv_write/float32,I=int64"
        "/Z=1,M=2,H=2,G=1,P=2,C=4,D=8,E=8,N=2,S=4,no=positions/normal/contiguous",
    ],
)
def test_what_an_op_returns_and_what_it_writes_are_judged(text):
    """An op that writes in place ended the demo (2026-11-26)."""
    case = parse(text, registry.spec(text.split("/")[0]))
    row = demo.show(case, torch.device("cpu"), timed=False)
    assert (row.result, row.problem) == ("ok", "")
