"""The examples say what they claim to show."""

from __future__ import annotations

import importlib
import math
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parent.parent / "examples"
EXAMPLE = FOLDER / "transformers_attention.py"


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


@pytest.fixture
def programs(monkeypatch):
    """The examples around llama.py, which import it from beside them."""
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("llama", "train", "generate", "serve")
    found = {name: importlib.import_module(name) for name in names}
    yield found
    for name in names:
        monkeypatch.delitem(sys.modules, name)


@pytest.mark.slow
def test_the_training_loop_learns(programs):
    losses = programs["train"].train(12, "cpu")
    assert losses[-1] < losses[0] - 1 and all(map(math.isfinite, losses))


@pytest.mark.slow
def test_serving_makes_the_tokens_of_the_generation_loop_and_of_no_cache(programs):
    """Requests of other lengths beside it, pages, prefill and decode change no token."""
    torch.manual_seed(0)
    model = programs["llama"].Llama(programs["llama"].Config())
    wanted = {b"import torch": 5, b"def": 40, b"The quick brown fox jumps over the lazy dog": 12}
    requests = [programs["serve"].Request(list(text), count) for text, count in wanted.items()]
    server = programs["serve"].Server(model, pages=10)
    server.run(requests)
    assert sorted(server.free) == list(range(10))  # every page is given back, once
    for each in requests:
        alone = programs["generate"].generate(model, torch.tensor([each.prompt]), each.wanted)
        assert each.made == alone[0].tolist() and len(each.made) == each.wanted
        whole = torch.tensor([each.prompt + each.made[:-1]])
        positions = torch.arange(whole.shape[1])[None]
        h = model(whole, positions, lambda _, q, k, v: programs["llama"].causal(q, k, v))
        assert each.made == model.logits(h[0, len(each.prompt) - 1 :]).argmax(-1).tolist()


PROGRAMS = {"train.py": ["--steps", "2"], "generate.py": ["--tokens", "3"], "serve.py": []}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_from_anywhere(name, tmp_path):
    command = [sys.executable, str(FOLDER / name), *PROGRAMS[name], "--device", "cpu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
