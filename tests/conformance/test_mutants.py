"""The judge is judged: wrong kernels are rejected by a case of the suite, right ones by none.

A sample of both; `make mutants` (PORTABLE_MUTANTS=all) runs all of them. docs/mutants.md has the table.
"""

from __future__ import annotations

import importlib
import inspect
import os
from pathlib import Path
from unittest import mock

import pytest

from portable.conformance.states import STATES
from portable.dispatch import select
from portable.plan import NativeKernel
from portable.runtime import build, detect
from portable.spec import registry

from .mutants import catalogue, hunt, orders
from .mutants.registry import Edit, Mutant

ALL = os.environ.get("PORTABLE_MUTANTS") == "all"
SEEDS = 1000 if ALL else 60
CHUNK = 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant", catalogue.every() if ALL else catalogue.sample(), ids=lambda each: each.id.replace(" ", "-")
)
def test_a_mutant_is_rejected(mutant):
    kill = hunt.hunt(mutant)
    if mutant.id in catalogue.SURVIVORS:
        assert not kill.killed, f"{kill.case} rejects it now: take it off catalogue.SURVIVORS"
        pytest.xfail(catalogue.SURVIVORS[mutant.id])
    assert kill.killed, f"survived all of {kill.tried} cases"
    assert kill.state in STATES and kill.message


COMPUTATIONS = [each for each in catalogue.every() if each.kind == "torch"]


@pytest.mark.parametrize("mutant", COMPUTATIONS, ids=lambda each: each.id)
def test_a_mutant_takes_what_the_op_gives_it(mutant):
    """One that cannot be called is rejected by every case, whatever the suite sees."""
    spec = registry.spec(mutant.op)
    inputs, params = dict.fromkeys(spec.inputs), dict.fromkeys(spec.params)
    signature = inspect.signature(mutant.function)
    if hunt.by_position(mutant.function, inputs):
        signature.bind(*inputs, **params)
    else:
        signature.bind(**inputs, **params)


def test_what_cannot_be_called_is_not_killed():
    emulated = next(each for each in catalogue.every() if each.arch)
    for mutant in (catalogue.every()[0], emulated):
        kill = hunt.Kill(mutant, "a case", "Crash", "TypeError: f() got an unexpected argument")
        assert not kill.killed
    assert hunt.Kill(emulated, "a case", "Crash", "KernelFault: f: lds-race: ...").killed
    assert {each.id for each in catalogue.every() if not each.arch} >= catalogue.CRASHES


def test_an_op_that_imports_from_another_s_folder_gets_the_changed_module():
    """Imported before, the right module stayed an attribute of its package, and the mutant was never run."""
    entry = "portable.kernels.quantize_fp8.triton_impl"
    right = importlib.import_module(entry)
    changed = "silu_and_mul_quant_1x128: triton on gfx942: up is gate"
    with hunt.in_place(next(each for each in catalogue.every() if each.id == changed)):
        user = importlib.import_module("portable.kernels.silu_and_mul_quant.triton_impl")
        assert user.quantize_fp8 is not right and "mutant-" in user.quantize_fp8.__file__
    package = importlib.import_module("portable.kernels.quantize_fp8")
    assert package.triton_impl is right and importlib.import_module(entry) is right


def test_every_change_still_applies():
    """The sample runs few of the changed sources; a kernel that was rewritten must take its mutants along."""
    kernels = Path(__file__).resolve().parents[2] / "kernels"
    for mutant in catalogue.every():
        for edit in mutant.edits:
            text = (kernels / edit.file).read_text()
            assert edit.applied(text) != text, mutant.id


def test_a_change_survives_renames():
    edit = Edit("k.cu", "if ($row < $rows) $out = f($row);", "if ($row <= $rows) $out = f($row);")
    assert edit.applied("{ if (r <  c.R)\n  y = f(r); }") == "{ if (r <= c.R) y = f(r); }"
    for text in ("if (r < R) y = f(s);", "", 2 * "if (r < R) y = f(r);"):
        with pytest.raises(ValueError, match=r"k\.cu has .* [02] times, not 1"):
            edit.applied(text)


def test_a_change_reaches_every_folder_of_an_op():
    """Headers that another folder includes and modules are the changed ones; then the right ones are back."""
    header, tiles = "attention/device/seqlen_info.h", "attention/triton/tiles.py"
    names = [f"portable.kernels.attention.triton.{name}" for name in ("tiles", "fwd")]
    right = [importlib.import_module(name) for name in names]
    edits = (
        Edit(header, "#pragma once", "#pragma once\n// changed"),
        Edit(tiles, "from __future__ import annotations", "CHANGED = True"),
    )
    source = hunt.KERNELS / "attention/gfx/fwd.hip"
    rocm = detect.backend_class("rocm")(registry.vendors()["rocm"])
    varlen = next(each for each in registry.spec("attention_varlen").implementations if each.name == "triton")
    seen = {}

    def reads(kernel, backend, device):
        seen["text"] = build.source_text(kernel.source, build.include_folders(kernel.source, backend))

    mutant = Mutant("attention", "toy", "source", None, edits, "mfma", "gfx942")
    with mock.patch.object(build, "_build_native", reads), hunt.in_place(mutant):
        build._build_native(NativeKernel(source, "toy", 64), rocm, rocm.targets()[0])
        changed = [importlib.import_module(name) for name in names]
        assert "mutant-" in select.entry_function(varlen).__code__.co_filename
        assert changed[0].CHANGED and changed[1] is not right[1]
    assert b"// changed" in seen["text"]
    assert [importlib.import_module(name) for name in names] == right and not hasattr(right[0], "CHANGED")


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, SEEDS, CHUNK))
def test_right_computations_pass_in_any_order(first):
    wrong = [
        f"{each.case}, {each.order}: {each.verdict}"
        for seed in range(first, first + CHUNK)
        for each in orders.judged(seed)
        if each.verdict.state != "Pass"
    ]
    assert not wrong, "\n".join(wrong)


def test_the_catalogue_is_whole():
    names = [each.id for each in catalogue.every()]
    assert len(names) == len(set(names)) >= 172
    assert {"gfx942", "gfx1100"} <= {each.arch for each in catalogue.every()}
    assert set(catalogue.SURVIVORS) <= set(names)


def test_the_right_implementation_is_back():
    """A mutant leaves nothing behind: the same cases pass before and after it."""
    mutant = next(each for each in catalogue.every() if each.id == "softmax: wrong axis")
    kill = hunt.hunt(mutant)
    case = next(case for _, case in hunt.suite("softmax") if case.id == kill.case)
    right = catalogue.Mutant("softmax", "none", "torch", hunt.right("softmax"))
    with hunt.in_place(right):
        assert hunt.judge(right, case).state == "Pass"
