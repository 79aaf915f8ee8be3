"""`portable check` on the toy vendor, and that its call signatures are those of real calls."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import types

import pytest
import torch

import portable
from portable import errors
from portable.backend import Resources
from portable.backends.cuda import compile as nvrtc
from portable.commands import check, cli
from portable.dispatch import compiled_call, select
from portable.spec import registry


def test_every_kernel_of_the_toy_op_compiles(toy):
    work = check.jobs(["twice"], check.targets(["toy1"]))
    found = list(check.run_all(work, 1))
    assert [outcome.state for outcome in found] == ["Pass"]


@pytest.mark.parametrize(
    "resources, state", [(Resources(1, 0, 0, 4), "Spills"), (Resources(1, 9999, 0, 0), "TooMuchShared")]
)
def test_spills_and_too_much_shared_memory_do_not_pass(toy, monkeypatch, resources, state):
    pairs = check.targets(["toy"])
    monkeypatch.setattr(type(pairs[0][0]), "resources", lambda self, code: resources)
    assert [outcome.state for outcome in check.run_all(check.jobs(["twice"], pairs), 1)] == [state]


def test_a_compiler_error_is_an_outcome(toy, monkeypatch):
    def broken(self, kernel, device, includes):
        raise errors.CompileError("twice", "expected ;")

    pairs = check.targets(["toy"])
    monkeypatch.setattr(type(pairs[0][0]), "compile_native", broken)
    (outcome,) = check.run_all(check.jobs(["twice"], pairs), 1)
    assert outcome.state == "CompileError" and "expected ;" in outcome.detail


@pytest.mark.slow
def test_a_compiler_that_is_not_there_is_said_once_for_each_target(toy, tmp_path, monkeypatch, capsys):
    """It was said once for each kernel."""

    def missing(self, kernel, device, includes):
        raise errors.NoCompilerError("Toy", "no toy compiler", "pip install 'portable-kernels[check]'")

    spec = tmp_path / "ops" / "twice" / "spec.yaml"
    spec.write_text(spec.read_text().replace("bench:", "bench:\n  - {N: 64, leading: [2]}"))
    registry.clear_caches()
    here = check.targets(["toy1"])[0]
    two = dataclasses.replace(here[1], arch="toy2")
    monkeypatch.setattr(type(here[0]), "compile_native", missing)
    monkeypatch.setattr(type(here[0]), "targets", lambda self: (here[1], two))
    assert cli.main(["check", "--ops", "twice", "--target", "toy1,toy2"]) == 1
    out = capsys.readouterr().out
    assert out.count("no toy compiler") == 2
    for arch in ("toy1", "toy2"):
        assert f"NoCompiler: {arch}: 2 kernels not compiled: Toy: no toy compiler. Install one" in out
    assert "portable-kernels[check]" in out and out.endswith(
        "0 kernels compile, 4 do not pass, 0 file problems\n"
    )


def _no_library():
    raise RuntimeError("Failure finding libnvrtc.so\nlooked in many places")


@pytest.mark.parametrize(
    "bindings, reason",
    [
        (None, "cuda.bindings"),
        (types.SimpleNamespace(nvrtc=types.SimpleNamespace(nvrtcVersion=_no_library)), "finding libnvrtc.so"),
    ],
    ids=["no bindings", "no library"],
)
def test_nvrtc_that_is_not_there_is_said_with_what_to_install(monkeypatch, bindings, reason):
    """Bindings without NVRTC's library were a traceback."""
    monkeypatch.setitem(sys.modules, "cuda.bindings", bindings)
    with pytest.raises(errors.NoCompilerError, match=rf"{reason}.*pip install 'portable-kernels\[check\]'"):
        nvrtc.version.__wrapped__()


def test_an_unknown_target_is_named_with_the_known_ones():
    with pytest.raises(errors.PortableError, match="gfx942"):
        check.targets(["gfx9999"])


@pytest.mark.parametrize("name", sorted(registry.op_folders()))
def test_a_case_becomes_the_question_that_a_call_would_ask(name):
    spec = registry.spec(name)
    for case in spec.cases:
        types = next((row for row in spec.types if row.get("T") == "float32"), spec.types[0])
        asked = check.call_signature(spec, case, types, aligned=True)
        tensors = [
            None
            if n in case.absent
            else torch.empty(
                *case.leading.get(n, ()),
                *spec.sizes(n, case),
                dtype=getattr(torch, types.get(field.dtype, field.dtype)),
            )
            for n, field in spec.inputs.items()
        ]
        said = spec.dtype_params(types)
        params = [said.get(n, case.params.get(n, p.default)) for n, p in spec.params.items()]
        real, _ = compiled_call.call_signature(spec, tensors, params, None)
        assert asked.axes == real.axes and asked.params == real.params and asked.types == real.types
        for key, info in real.tensors.items():
            mine = asked.tensors[key]
            assert (mine is None) == (info is None)
            if info is not None and mine is not None:
                assert (mine.shape, mine.dtype) == (info.shape, info.dtype)


def test_the_tuned_files_that_ship_are_sound():
    assert check.tuned_problems() == []


@pytest.mark.slow
def test_every_implementation_takes_a_bench_call_on_some_gpu():
    """A planner that rejects everything would make `check` and the claims empty."""
    pairs = check.targets(None)
    for name in registry.op_folders():
        spec = registry.spec(name)
        for implementation in spec.implementations:
            if implementation.kind == "run":
                continue
            planned = 0
            for backend, device in pairs:
                if not check.could_run(implementation, backend, device):
                    continue
                ways = (True, ()), (False, ()), (True, check.matrices(spec)[-1:])  # fp8 wants b column-major
                for row, case, (aligned, column_major) in itertools.product(spec.types, spec.bench, ways):
                    asked = check.call_signature(spec, case, row, aligned, column_major)
                    answer = select.evaluate(implementation, asked, backend, device, static=False)
                    planned += answer.plan is not None
            assert planned, f"{name}.{implementation.name} plans nothing"


def test_portable_is_importable_as_documented():
    choice = portable.explain("softmax", torch.ones(2, 3)).choice
    assert choice is not None and choice.name == "torch"
