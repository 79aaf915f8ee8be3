"""A toy op and a toy vendor in temporary folders: what "one folder, nothing else edited" means."""

from __future__ import annotations

import textwrap

import pytest
import torch

from portable.dispatch import pins
from portable.runtime import detect
from portable.spec import registry

SPEC = """
edition: 1
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
  y: {result: 0.51, sum: "1"}
cost: {flops: "B * N", peak: vector}
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
        there = machine.environ.get("TOY_CARD") == "1"
        return Detection(there, there, "the toy card is here" if there else "no toy card: TOY_CARD is not 1")

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
    monkeypatch.setenv("TOY_CARD", "1")
    fresh()
    log = detect.backend_class("toy").log
    log.clear()
    yield log
    monkeypatch.undo()
    fresh()


def fresh() -> None:
    """Forget what was found on the search paths and in the environment."""
    from portable.dispatch import dispatcher
    from portable.runtime import build

    registry.forget()
    pins.reload()
    detect.reset()
    dispatcher.forget()
    build.forget()


@pytest.fixture
def one_thread():
    """Of torch: where two processes of tests share two cores, threads of both wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
