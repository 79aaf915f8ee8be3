"""The ops on emulated GPUs: the smoke tier conforms; every instruction it loads has a test of its own."""

from __future__ import annotations

import functools
import runpy
from pathlib import Path

import pytest

from portable.backends.rocm.emulator import launch
from portable.backends.rocm.emulator.backend import EmulatedRocmBackend
from portable.conformance.cases.generate import cases
from portable.conformance.execute import runner
from portable.conformance.execute.behaviour import Behaviour
from portable.runtime import detect
from portable.spec import registry

ARCHS = ("gfx942", "gfx1100")
# Never executed: padding behind a kernel's end, which the tables know and the emulator refuses to run.
PADDING = {"s_code_end"}


@functools.cache
def covered() -> dict[str, set[str]]:
    import instructions

    return instructions.covered()


@pytest.fixture
def arch(request):
    """The emulated GPU of one architecture as this process's only backend."""
    detect.reset(
        detect.Selection({"cpu": EmulatedRocmBackend(registry.vendors()["rocm"], request.param)}, {})
    )
    yield request.param
    detect.reset()


@pytest.mark.slow  # `make test` runs the smoke tier on gfx942 through the command
@pytest.mark.parametrize("op", sorted(registry.op_folders()))
@pytest.mark.parametrize("arch", ARCHS, indirect=True)
def test_the_smoke_tier_conforms(arch, op, monkeypatch):
    loaded: set[str] = set()
    link = launch.linked_program

    def seen(code):
        linked = link(code)
        loaded.update(inst.name for inst in linked.program.instructions() if inst is not None)
        return linked

    monkeypatch.setattr(launch, "linked_program", seen)
    impls = runner.implementations(op)
    languages = {name for each in registry.spec(op).implementations for name in each.languages}
    assert len(impls) >= len(languages & {"triton", "hip"}) > 0
    # A case of attention takes a second; on gfx942 `make test` runs the whole tier.
    few = 6 if registry.spec(op).folder.name == "attention" else 4 if arch == "gfx942" else 1
    results = [
        result
        for case in [*cases(registry.spec(op), "smoke")[::few], Behaviour(op, "rows_alone")]
        for result in runner.answer(case, impls, runner.torch_device())
    ]
    wrong = [f"{r.case.id} on {r.impl}: {r.state}: {r.message}" for r in results if not r.conforms]
    assert not wrong, "\n".join(wrong)
    assert few > 1 or {result.impl for result in results if result.state == "Pass"} == set(impls)
    assert loaded - PADDING <= covered()[arch], f"no test covers {sorted(loaded - PADDING - covered()[arch])}"


def test_the_page_of_missing_instructions_is_of_todays_tables():
    docs = Path(__file__).resolve().parents[3] / "docs"
    made = runpy.run_path(str(docs / "missing_instructions.py"))["page"]()
    assert made == (docs / "emulator_missing.md").read_text(), "run python docs/missing_instructions.py"
    assert "## Others" not in made, "give it a family in docs/missing_instructions.py"


def test_the_page_of_coverage_names_tested_instructions_alone():
    page = Path(__file__).resolve().parents[3] / "docs" / "emulator_coverage.md"
    header, _, *rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.read_text().splitlines()
        if line.startswith("|")
    ]
    arches = header[1:-1]
    assert len(rows) > 300 and len(arches) == 5
    for name, *counts, _ in rows[1:]:
        for arch, count in zip(arches, counts, strict=True):
            assert not count or name in covered()[arch], f"{name} on {arch}: run python docs/coverage.py"
