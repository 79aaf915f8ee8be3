"""The examples say what they claim to show."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "transformers_attention.py"


@pytest.fixture(scope="module")
def example():
    found = runpy.run_path(str(EXAMPLE))
    found["register"]()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("family", ["Llama", "Gemma 2", "DeepSeek V3"])
def test_transformers_computes_the_same_with_portable_attention(example, family):
    """Logits, gradients and generated tokens of transformers' eager attention, in float32 on the CPU."""
    found = example["compare"](example["configs"]()[family], "cpu", torch.float32)
    assert found.pop("equal tokens") == 16
    ours = {what: value for what, value in found.items() if what.startswith("portable")}
    assert len(ours) == 4 and all(0 < value < 3e-6 for value in ours.values()), found


@pytest.mark.parametrize("run_name, error", [("__main__", SystemExit), ("example", ImportError)])
def test_without_transformers_it_says_what_to_install(monkeypatch, run_name, error):
    """It was a traceback."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(error, match=r"needs transformers .*: pip install 'transformers>=5'$"):
        runpy.run_path(str(EXAMPLE), run_name=run_name)


@pytest.mark.slow
def test_dropout_is_refused(example):
    q = torch.zeros(1, 1, 1, 8)
    with pytest.raises(ValueError, match="dropout"):
        example["attend"](torch.nn.Identity(), q, q, q, None, dropout=0.1)
