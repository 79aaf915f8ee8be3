"""The two step lists of CONTRIBUTING.md, followed as written in a folder of their own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from portable.commands import cli

TEXT = (Path(__file__).resolve().parents[1] / "CONTRIBUTING.md").read_text()
PROGRAM = """
import torch, portable
from portable.spec import registry
from portable.spec.reader import load_spec
load_spec(registry.op_folders()["squared_relu"])
x = torch.tensor([[-1.0, 2.0, float("nan")]], requires_grad=True)
y = portable.squared_relu(x)
y[:, :2].sum().backward()
print(portable.explain("squared_relu", x.detach()).choice.name, y.tolist(), x.grad.tolist())
"""
JUDGE = ("-m", "portable.conformance.commands.cli", "run", "--ops", "squared_relu", "--tier", "smoke")


def blocks(section: str) -> list[tuple[str, str]]:
    """The fenced blocks of a section, with their languages, in order."""
    body = re.search(rf"^## {section}\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    assert body is not None, section
    found = re.findall(r"^ *```(\w+)\n(.*?)^ *```$", body[1], re.MULTILINE | re.DOTALL)
    return [(language, textwrap.dedent(code)) for language, code in found]


@pytest.fixture
def op(tmp_path) -> Path:
    """The op's folder after the first list."""
    (tmp_path / "ops").mkdir()
    assert cli.main(["new-op", "squared_relu", "--at", str(tmp_path / "ops")]) == 0
    folder = tmp_path / "ops" / "squared_relu"
    names = ("spec.yaml", "reference.py", "triton_impl.py", "squared_relu.cu", "gradient.py")
    assert {each.name for each in folder.iterdir()} == set(names[:-1])
    for name, (_, code) in zip(names, blocks("Add an op"), strict=True):
        (folder / name).write_text(code)
    spec = folder / "spec.yaml"
    spec.write_text(spec.read_text().replace("\ntolerance:", '\ngradient: "gradient.py"\ntolerance:'))
    return folder


@pytest.fixture
def environment(tmp_path) -> dict[str, str]:
    paths = {"PORTABLE_KERNEL_PATH": tmp_path / "ops", "PORTABLE_CACHE_DIR": tmp_path / "cache"}
    return {**os.environ, **{name: str(path) for name, path in paths.items()}}


def run(environment: dict[str, str], *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_add_an_op(op, environment):
    environment["PORTABLE_BACKEND"] = "cpu"
    assert run(environment, "-c", PROGRAM) == "torch [[0.0, 4.0, nan]] [[0.0, 4.0, nan]]\n"
    judged = run(environment, *JUDGE)
    assert "\nCONFORMS: " in judged


@pytest.mark.slow
def test_the_op_compiles_for_gpus_that_are_not_there(op, environment):
    targets = "sm_90a,gfx942"
    table = run(
        environment, "-m", "portable", "check", "--quick", "--ops", "squared_relu", "--target", targets
    )
    assert "4 kernels compile, 0 do not pass" in table


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="no cc: apt install gcc")
def test_add_a_vendor(op, tmp_path, environment):
    folder = tmp_path / "vendors" / "acme"
    folder.mkdir(parents=True)
    first, second, third, row, kernel, plan = (code for _, code in blocks("Add a vendor"))
    body = [textwrap.indent(code, "    ") for code in (second, third)]
    (folder / "backend.py").write_text("\n".join([first, *body]))
    (op / "squared_relu.acme").write_text(kernel)
    (op / "acme.py").write_text(plan)
    spec = op / "spec.yaml"
    line = textwrap.indent(textwrap.dedent(row), "  ")
    spec.write_text(spec.read_text().replace("implementations:\n", f"implementations:\n{line}"))

    environment |= {"PORTABLE_BACKEND_PATH": str(folder.parent), "PORTABLE_BACKEND": "acme"}
    assert "-> torch" in run(environment, "-m", "portable", "explain", "softmax")
    assert run(environment, "-c", PROGRAM).startswith("acme [[0.0, 4.0, nan]]")
    table = run(environment, "-m", "portable", "check", "--ops", "squared_relu", "--target", "acme")
    assert "1 kernels compile, 0 do not pass" in table
    judged = run(environment, *JUDGE)
    assert "\nCONFORMS: " in judged and "on Acme One (acme1)" in judged


@pytest.mark.slow
def test_what_new_op_writes_fails_and_says_what_to_fill_in(tmp_path, environment):
    (tmp_path / "ops").mkdir()
    assert cli.main(["new-op", "squared_relu", "--at", str(tmp_path / "ops")]) == 0
    done = subprocess.run(
        [sys.executable, *JUDGE, "--device", "cpu", "-k", "N=33"],
        env=environment, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    assert "fill in squared_relu/reference.py: what squared_relu computes" in done.stdout
