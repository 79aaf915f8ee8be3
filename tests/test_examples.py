"""The examples say what they claim to show."""

from __future__ import annotations

import importlib
import math
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch

FOLDER = Path(__file__).resolve().parent.parent / "examples"
EXAMPLE = FOLDER / "transformers_model.py"
QUANTIZED = FOLDER / "quantize_llama.py"


@pytest.mark.slow
@pytest.mark.xdist_group("transformers")
@pytest.mark.parametrize("model", ["llama", "gemma2"])
def test_a_model_of_transformers_computes_the_same(monkeypatch, capsys, model):
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE), "--device", "cpu", "--model", model])
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    told = capsys.readouterr().out
    assert "RMSNorm x 5: portable.rms_norm" in told or "RMSNorm x 9: portable.rms_norm" in told
    difference = re.search(r"gradients differ by (\S+) of", told)
    assert difference and 0 < float(difference[1]) < 3e-6
    assert "equal tokens: 16 of 16" in told


@pytest.mark.slow
@pytest.mark.xdist_group("transformers")
def test_a_quantised_llama_is_smaller_and_its_logits_are_near(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [str(QUANTIZED), "--device", "cpu"])
    runpy.run_path(str(QUANTIZED), run_name="__main__")
    before, *told = capsys.readouterr().out.splitlines()
    size = float(before.split()[-2])
    found = [re.match(r"(.*\S) +(\S+) MB, logits +(\S+)% away", line) for line in told]
    rows = {row[1]: (float(row[2]), float(row[3])) for row in found if row}
    assert len(rows) == len(told) == 8 and all(float(small) < 0.75 * size for small, _ in rows.values())
    near = {
        "int8": (0.5, 5),
        "int4": (5, 30),
        "fp8": (2, 15),
        "mxfp8": (2, 15),
        "mxfp4": (10, 60),
        "nvfp4": (10, 60),
    }
    for name, (_, away) in rows.items():
        least, most = near[name.partition(",")[0]]
        assert least < away < most, name


@pytest.mark.parametrize("run_name, error", [("__main__", SystemExit), ("example", ImportError)])
@pytest.mark.parametrize("example", [EXAMPLE, QUANTIZED], ids=["transformers_model", "quantize_llama"])
def test_without_transformers_it_says_what_to_install(monkeypatch, example, run_name, error):
    """It was a traceback."""
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(error, match=r"needs transformers .*: pip install 'transformers>=5.4'$"):
        runpy.run_path(str(example), run_name=run_name)


@pytest.mark.parametrize("installed", [None, "4.57.0", "5.3.0"])
def test_the_integration_without_transformers_says_what_to_install(monkeypatch, installed):
    from types import ModuleType

    from portable.errors import IntegrationError

    module = None if installed is None else ModuleType("transformers")
    if module is not None:
        module.__version__ = installed  # type: ignore[attr-defined]
    for name in [name for name in sys.modules if name.startswith("portable.integrations.transformers")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "transformers", module)
    with pytest.raises(IntegrationError, match=r"needs transformers 5.4 or newer \(.*Install it: pip"):
        import portable.integrations.transformers  # noqa: F401


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


@pytest.mark.slow
def test_sampled_text_depends_on_no_other_row(programs):
    torch.manual_seed(0)
    model, generate = programs["llama"].Llama(programs["llama"].Config()), programs["generate"].generate
    prompt = torch.tensor([list(b"import torch"), list(b"def generate")])
    both = generate(model, prompt, 8, temperature=1.0, top_p=0.9, seed=5)
    assert not torch.equal(both, generate(model, prompt, 8))
    for row in range(2):
        assert torch.equal(generate(model, prompt[row : row + 1], 8, 1.0, 0.9, seed=5 + row)[0], both[row])


PROGRAMS = {"train.py": ["--steps", "2"], "generate.py": ["--tokens", "3"], "serve.py": []}


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_runs_from_anywhere(name, tmp_path):
    command = [sys.executable, str(FOLDER / name), *PROGRAMS[name], "--device", "cpu"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr
