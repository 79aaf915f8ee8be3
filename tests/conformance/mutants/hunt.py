"""Puts a mutant in the place of its implementation and runs the suite's own cases until one rejects it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import inspect
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import portable
from portable.conformance.cases.case import Case
from portable.conformance.cases.generate import cases
from portable.conformance.execute import behaviour, runner
from portable.conformance.execute.result import Result
from portable.conformance.judge import reference
from portable.dispatch import dispatcher
from portable.runtime import build, detect
from portable.spec import registry
from portable.spec.model import Implementation

from . import catalogue
from .registry import Mutant
from .tools import right

__all__ = ["Kill", "by_position", "hunt", "in_place", "judge", "right", "runner", "suite"]

BEHAVIOURS = ("rows_alone", "two_threads", "autograd", "beyond_2_31", "scaling", "bad_arguments", "probes")
ON_EMULATED_GPUS = ("rows_alone", "probes")
KERNELS = registry.kernel_roots()[0]


@dataclass(frozen=True)
class Kill:
    """The first case that rejected a mutant, and in which state; no case where it survived.

    `tried` counts the cases that ran until then, `tier` is the case's. A survivor that got a
    warning names its first one: it was seen, but a warning conforms.
    """

    mutant: Mutant
    case: str = ""
    state: str = "survived"
    message: str = ""
    tier: str = ""
    tried: int = 0

    @property
    def killed(self) -> bool:
        """Not by the compiler, nor by an error that is neither the fault nor the emulated GPU's: what does
        not compile, or cannot be called, says nothing of the suite."""
        if self.state == "Crash" and not (self.mutant.arch and self.message.startswith("KernelFault:")):
            return self.mutant.id in catalogue.CRASHES
        return self.state not in ("survived", "QualityWarning", "CompileError")


@functools.cache
def suite(op: str) -> tuple[tuple[str, Case], ...]:
    """The cases of the smoke tier, then the rest of the core tier."""
    spec = registry.spec(op)
    first = cases(spec, "smoke")
    return tuple(
        [("smoke", case) for case in first]
        + [("core", case) for case in cases(spec, "core") if case not in set(first)]
    )


@functools.lru_cache(maxsize=400)
def materialize(case: Case) -> reference.MaterializedCase:
    return reference.materialize(case, registry.spec(case.op))


def hunt(mutant: Mutant) -> Kill:
    """Run the suite against `mutant`. The right implementation is back in its place afterwards."""
    with in_place(mutant):
        return _first_rejection(mutant)


def judge(mutant: Mutant, case: Case) -> Result:
    """One case on what now stands for the mutant's implementation."""
    return runner.run_case(materialize(case), mutant.impl, runner.torch_device())


def _first_rejection(mutant: Mutant) -> Kill:
    device = runner.torch_device()
    noticed, tried = Kill(mutant), 0
    for tier, case in suite(mutant.op):
        result = judge(mutant, case)
        tried += 1
        if not result.conforms:
            return Kill(mutant, case.id, result.state, result.message, tier, tried)
        if result.state == "QualityWarning" and not noticed.case:
            noticed = Kill(mutant, case.id, result.state, result.message, tier, tried)
    for name in ON_EMULATED_GPUS if mutant.arch else BEHAVIOURS:
        with _claim(mutant):
            result = behaviour.run(behaviour.Behaviour(mutant.op, name), mutant.impl, device)
        tried += 1
        if not result.conforms:
            return Kill(mutant, result.case.id, result.state, result.message, "behaviour", tried)
    return dataclasses.replace(noticed, tried=tried)


def _claim(mutant: Mutant) -> contextlib.AbstractContextManager[Any]:
    """A mutant whose fault is that it is not batch invariant is asked, whatever the right one's spec says."""
    if not mutant.claims_batch_invariance:
        return contextlib.nullcontext()
    return mock.patch.object(Implementation, "batch_invariant", property(lambda _: True))


@contextlib.contextmanager
def in_place(mutant: Mutant) -> Iterator[None]:
    """The mutant runs wherever its implementation would; afterwards the right one does."""
    with contextlib.ExitStack() as stack:
        before = detect._selection
        stack.callback(detect.reset, before)
        detect.reset(detect.Selection({"cpu": _backend(mutant.arch)}, {}))
        if mutant.kind == "torch":
            stack.enter_context(mock.patch.object(registry, "of_tensors", _of_tensors(mutant)))
        elif mutant.kind == "call":
            assert mutant.function is not None
            wrapped = functools.partial(mutant.function, getattr(portable, mutant.op))
            stack.enter_context(mock.patch.object(portable, mutant.op, wrapped, create=True))
        else:
            folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mutant-"))
            _substitute(mutant, Path(folder), stack)
        dispatcher.clear_caches()
        yield


def _backend(arch: str) -> Any:
    vendors = registry.vendors()
    if not arch:
        return detect.backend_class("cpu")(vendors["cpu"])
    from portable.backends.rocm.emulator.backend import EmulatedRocmBackend

    return EmulatedRocmBackend(vendors["rocm"], arch)


def _of_tensors(mutant: Mutant) -> Any:
    """`registry.of_tensors` with the mutant for its op's torch implementation."""
    replaced = next(
        each.entry for each in registry.spec(mutant.op).implementations if each.name == mutant.impl
    )
    real, function = registry.of_tensors, mutant.function
    assert function is not None

    def of_tensors(entry: Any, inputs: Iterable[str], params: Mapping[str, Any]) -> Any:
        if entry != replaced:
            return real(entry, inputs, params)
        return (
            functools.partial(function, **params)
            if by_position(function, tuple(inputs))
            else (lambda *tensors: function(**dict(zip(inputs, tensors, strict=True)), **params))
        )

    return of_tensors


def by_position(function: Callable[..., Any], inputs: Iterable[str]) -> bool:
    """Whether a mutant takes the op's tensors in their order, not by their names."""
    taken = inspect.signature(function).parameters.values()
    names = {each.name for each in taken}
    whatever = any(each.kind is each.VAR_KEYWORD for each in taken)
    return not (whatever or names.issuperset(inputs))


@contextlib.contextmanager
def _imported_from(folder: Path, op: str) -> Iterator[None]:
    """The modules of an op are those of the copy in `folder`; afterwards they are the right ones again."""
    package = importlib.import_module(f"portable.kernels.{op}")
    prefix, path = f"{package.__name__}.", package.__path__
    right_ones = {name: module for name, module in sys.modules.items() if name.startswith(prefix)}
    _forget(package)
    package.__path__ = [str(folder / op)]
    try:
        yield
    finally:
        package.__path__ = path
        _forget(package)
        sys.modules.update(right_ones)
        for name, module in right_ones.items():
            if "." not in name.removeprefix(prefix):
                setattr(package, name.removeprefix(prefix), module)


def _forget(package: ModuleType) -> None:
    """The package's modules are imported anew: `from package import module` asks its attributes first."""
    prefix = f"{package.__name__}."
    for name in [name for name in sys.modules if name.startswith(prefix)]:
        del sys.modules[name]
        vars(package).pop(name.removeprefix(prefix), None)


def _substitute(mutant: Mutant, folder: Path, stack: contextlib.ExitStack) -> None:
    """A changed copy of kernels/ in `folder`, and the compilers made to read that."""
    for file in KERNELS.rglob("*"):
        if file.suffix in (".cu", ".hip", ".h", ".py"):
            copy = folder / file.relative_to(KERNELS)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(file.read_bytes())
    for edit in mutant.edits:
        file = folder / edit.file
        file.write_text(edit.applied(file.read_text()))
    changed = {edit.file.split("/")[0] for edit in mutant.edits if edit.file.endswith(".py")}
    if changed:  # the op's own modules hold functions of those that they imported
        changed.add(registry.op_folders()[mutant.op].parent.name)
    for op in changed:
        stack.enter_context(_imported_from(folder, op))
    real_build = build._build_native

    def build_native(kernel: Any, backend: Any, device: Any) -> Any:
        source = kernel.source.resolve()  # a changed plan names its own copy
        if source.is_relative_to(KERNELS):
            source = folder / source.relative_to(KERNELS)
        return real_build(dataclasses.replace(kernel, source=source), backend, device)

    def include_folders(source: Path, backend: Any) -> tuple[Path, ...]:
        return (backend.folder, source.parent, folder)

    compiler = importlib.import_module("portable.backends.rocm.compile")
    stack.enter_context(mock.patch.object(compiler, "_KERNELS", folder))
    stack.enter_context(mock.patch.object(build, "_build_native", build_native))
    stack.enter_context(mock.patch.object(build, "include_folders", include_folders))
    build.clear_caches()
    stack.callback(build.clear_caches)
