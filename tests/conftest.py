"""A toy op and a toy vendor in temporary folders: what "one folder, nothing else edited" means."""

from __future__ import annotations

import os
import textwrap
from typing import Any

# Set before torch reads it, and inherited by subprocesses: tests run in several processes on few cores, where
# a thread pool in each makes all of them wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import hypothesis
import pytest
import torch

from portable.runtime import detect
from tests.op_folders import fresh

SPEC = """
schema_version: 1
op: twice
summary: y = 2 * x.
axes: {N: 0..}
leading: same
types:
  - {T: float32, acc: float32}
inputs:
  x: {shape: ["...", N], dtype: T, layout: rows}
outputs:
  y: {shape: ["...", N], dtype: T}
reference: {entry: "reference.py:twice"}
tolerance:
  y: {result_ulp: 0.51, accumulation_ulp: "1"}
cost: {flops: "B * N", roof: vector}
cases:
  - {N: 3, leading: [2]}
bench:
  - {N: 3, leading: [2]}
implementations:
  - {name: picky, plan: "toy_impl.py:picky", sources: [twice.toy], language: toy}
  - {name: toy, plan: "toy_impl.py:plan", sources: [twice.toy], language: toy, requires: {arch: ["toy*"]},
     tunables: {FACTOR: [2, 3]}, default: {FACTOR: 2}}
  - {name: torch, run: "torch_impl.py:twice", language: torch}
"""

TOY_IMPL = """
from pathlib import Path
from portable.plan import Launch, NativeKernel, Plan, Pointer, Rejected, Scalar

SOURCE = Path(__file__).with_name("twice.toy")

def picky(call):
    if call["x"].alignment < 16:
        return Rejected("needs an aligned x")
    return plan(call) if call.axes["N"] == 64 else Rejected("needs N of 64")

def plan(call):
    kernel = NativeKernel(SOURCE, "twice", 1, (("FACTOR", call.config.get("FACTOR", 2)),))
    args = (("x", Pointer("x")), ("n", Scalar("i32", call["x"].numel)), ("y", Pointer("y")))
    return Plan((Launch(kernel, (1, 1, 1), args),))
"""

BACKEND = '''
import ctypes, struct
from portable.backend import Backend, Detection, Resources
from portable.plan import Device

class ToyBackend(Backend):
    """A vendor whose kernels scale contiguous floats on the CPU; it counts what it does."""

    name = "toy"
    languages = ("toy", "torch")
    order = -1
    log = []

    @classmethod
    def detect(cls, machine):
        there = machine.environ.get("TOY_GPU") == "1"
        return Detection(there, there, "the toy GPU is here" if there else "no toy GPU: TOY_GPU is not 1")

    def device(self, index):
        return Device("toy", "toy1", "Toy", 0, 1, 1, 1024)

    def targets(self):
        return (self.device(0),)

    def compile_native(self, kernel, device, includes):
        self.log.append(("compile", kernel.defines))
        return repr(dict(kernel.defines)).encode()

    def resources(self, code):
        return Resources(1, 0, 0, 0)

    def load(self, code, device):
        return eval(code.binary)["FACTOR"]

    def launcher(self, factor, code, device, arguments, grid, kernarg):
        def start(stream):
            x, n, y = struct.unpack("<Qi4xQ", bytes(kernarg))
            self.log.append(("launch", n))
            source, target = (ctypes.c_float * n).from_address(x), (ctypes.c_float * n).from_address(y)
            for i in range(n):
                target[i] = factor * source[i]
        return start
'''


@pytest.fixture(autouse=True)
def fresh_dynamo(request):
    """torch counts the compiled forms of a code object over the process, and public functions share
    `documented`'s: a test that compiles one would fail after eight others."""
    if "compile" in request.node.name:
        torch._dynamo.reset()


@pytest.fixture
def toy(tmp_path, monkeypatch):
    """The folders, on the search paths; yields the toy backend's log."""
    monkeypatch.setenv("PORTABLE_CACHE_DIR", str(tmp_path / "cache"))
    op = tmp_path / "ops" / "twice"
    vendor = tmp_path / "vendors" / "toy"
    op.mkdir(parents=True)
    vendor.mkdir(parents=True)
    (op / "spec.yaml").write_text(SPEC)
    (op / "toy_impl.py").write_text(textwrap.dedent(TOY_IMPL))
    (op / "reference.py").write_text("def twice(x):\n    return 2 * x\n")
    (op / "torch_impl.py").write_text("def twice(x):\n    return 2 * x\n")
    (op / "twice.toy").write_text("scale")
    (vendor / "backend.py").write_text(BACKEND)
    monkeypatch.setenv("PORTABLE_KERNEL_PATH", str(tmp_path / "ops"))
    monkeypatch.setenv("PORTABLE_BACKEND_PATH", str(tmp_path / "vendors"))
    monkeypatch.setenv("PORTABLE_BACKEND", "toy")
    monkeypatch.setenv("TOY_GPU", "1")
    fresh()
    backend: Any = detect.backend_class("toy")
    log = backend.log
    log.clear()
    yield log
    monkeypatch.undo()
    fresh()


# `make test` and `make test-all` --------------------------------------------------------------------------

# Tests that draw inputs take their number of examples from here: `make test` has a few, `make test-all` many.
hypothesis.settings.register_profile("default", deadline=None, max_examples=50)
hypothesis.settings.register_profile("all", deadline=None, max_examples=200)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))

SKIPS = (
    "a GPU is here",
    "as root",
    "not as root",
    "no Chromium",
    "no cc",
    "Python 3.10",
)
"""How the reason of a skip may begin. What the extra `test` installs is there: without it a test fails."""

QUICK = 1.5
"""CPU seconds, subprocesses included, that a test without the mark `slow` may take."""

_start = pytest.StashKey[float]()


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    item.stash[_start] = _cpu_seconds()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    _refuse_unlisted_skip(report)
    if call.when == "teardown" and _start in item.stash:
        spent = _cpu_seconds() - item.stash[_start]
        report.user_properties.append(("cpu_seconds", round(spent, 2)))


@pytest.hookimpl(hookwrapper=True)
def pytest_make_collect_report(collector):
    outcome = yield
    _refuse_unlisted_skip(outcome.get_result())


def _refuse_unlisted_skip(report: Any) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    file, line, message = report.longrepr
    reason = message.removeprefix("Skipped: ")
    if not reason.startswith(SKIPS):
        report.outcome = "failed"
        report.longrepr = (
            f"{file}:{line}: skipped, and SKIPS in tests/conftest.py has no such reason: {reason}"
        )


def pytest_terminal_summary(terminalreporter):
    """Lists the tests that want the mark `slow`: they are what `make test` waits for."""
    found = []
    for reports in terminalreporter.stats.values():
        for report in reports:
            properties = dict(getattr(report, "user_properties", ()))
            if properties.get("cpu_seconds", 0) > QUICK and "slow" not in report.keywords:
                found.append((properties["cpu_seconds"], report.nodeid))
    if found:
        terminalreporter.section(f"more than {QUICK:g} s of CPU without the mark 'slow'")
        for seconds, nodeid in sorted(found, reverse=True):
            terminalreporter.write_line(f"{seconds:7.1f} s  {nodeid}")
