"""The real driver.py over a libcuda made for these tests: what reaches the driver, and what a call costs."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
import torch

import portable
from portable.backend import Backend, Detection
from portable.backends.cuda import driver
from portable.backends.cuda.backend import TARGETS, CudaBackend
from portable.dispatch import dispatcher
from portable.errors import LaunchError
from portable.runtime import build, detect
from portable.spec import registry

HOPPER = next(target for target in TARGETS if target.arch == "sm_90a")
FUNCTION = 0xF0


class Launch(ctypes.Structure):
    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_uint64),
        ("values", ctypes.c_uint64 * 16),
        ("pdl", ctypes.c_uint32),
    ]


class Fake:
    def __init__(self, path: Path):
        self.library = ctypes.CDLL(str(path))
        self.library.fake_last.restype = ctypes.POINTER(Launch)

    def arguments(self, *sizes: int) -> None:
        self.library.fake_arguments(len(sizes), (ctypes.c_uint32 * len(sizes))(*sizes))

    @property
    def launches(self) -> int:
        return self.library.fake_launches()

    @property
    def last(self) -> Launch:
        """The calling thread's last launch."""
        return self.library.fake_last().contents


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("cuda") / "libcuda.so"
    source = Path(__file__).with_name("fake_cuda.c")
    flags = ("-std=c17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    command = [sys.executable, "-m", "ziglang", "cc", *flags, str(source), "-o", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def fake(library, monkeypatch) -> Fake:
    fake = Fake(library)
    monkeypatch.setattr(driver, "_library", lambda: fake.library)
    fake.library.cuCtxSetCurrent(None)
    return fake


def launcher(
    kernarg: bytearray, offsets=(0, 8), shared=0, function=FUNCTION, pdl=False
) -> Callable[[int], None]:
    return driver.launcher(function, "k", 128, shared, 0, offsets, (7, 5, 3), kernarg, pdl)


def test_the_driver_gets_what_the_buffer_holds_at_the_launch(fake):
    kernarg = bytearray((11).to_bytes(8, "little") + (22).to_bytes(8, "little"))
    fake.arguments(8, 4)
    start = launcher(kernarg, shared=70000)
    kernarg[:8] = (33).to_bytes(8, "little")
    start(0x1234)
    last = fake.last
    assert (list(last.grid), list(last.block), last.shared) == ([7, 5, 3], [128, 1, 1], 70000)
    assert (last.stream, list(last.values[:2])) == (0x1234, [33, 22])
    start(2**48 + 1)
    assert fake.last.stream == 2**48 + 1


def test_a_kernel_without_arguments_is_launched(fake):
    fake.arguments()
    launcher(bytearray(), offsets=())(0)
    assert list(fake.last.grid) == [7, 5, 3]


@pytest.mark.slow
def test_only_an_early_kernel_may_start_before_the_one_before_it_ends(fake):
    fake.arguments(8, 8)
    for pdl in (False, True, False):
        start = launcher(bytearray(16), pdl=pdl)
        gc.collect()
        for _ in range(2):
            start(0)
            assert fake.last.pdl == pdl


def test_a_thread_without_a_context_gets_torchs(fake):
    failed = []

    def work():
        try:
            launcher(bytearray(16))(0)
        except LaunchError as error:
            failed.append(error)

    thread = Thread(target=work)
    thread.start()
    thread.join()
    assert failed == []


def test_the_drivers_refusal_is_named(fake):
    refused = r"k on a grid of \(7, 5, 3\).* answered 400 CUDA_ERROR_INVALID_HANDLE: invalid resource"
    with pytest.raises(LaunchError, match=refused):
        launcher(bytearray(16), function=1)(0)


class OnTheCpu(CudaBackend):
    """A Hopper GPU with CPU tensors, whose kernels do nothing."""

    device_type = "cpu"
    count = Backend.count
    current = staticmethod(Backend.current)
    stream = staticmethod(lambda index: 0x5)
    empty = staticmethod(torch._C._dynamo.guards._empty_strided_cpu)  # type: ignore[attr-defined]

    def device(self, index):
        return HOPPER

    def language_missing(self, language):
        return None

    def load(self, code, device):
        return FUNCTION


class OneOfTwo(OnTheCpu):
    """The same beside another GPU, which is the current one."""

    now = 1
    entered: ClassVar[list[int]] = []
    count = staticmethod(lambda: 2)
    current = staticmethod(lambda: OneOfTwo.now)

    @contextlib.contextmanager
    def on(self, index):
        OneOfTwo.entered.append(index)
        OneOfTwo.now = index
        yield
        OneOfTwo.now = 1


@pytest.fixture
def hopper(fake, library, monkeypatch):
    monkeypatch.setenv("PORTABLE_CACHE_DIR", str(library.parent))
    backend = OnTheCpu(registry.vendors()["cuda"])
    detect.reset(detect.Selection({"cpu": backend}, {"cuda": Detection(True, True, "for a test")}))
    build.clear_caches()
    yield fake
    detect.reset()
    build.clear_caches()


def test_a_call_is_one_launch_with_its_tensors(hopper):
    hopper.arguments(8, 8, 8, 8)
    x = torch.randn(16, 1024, dtype=torch.bfloat16)
    with portable.using(softmax="triton"):
        for _ in range(3):
            before = hopper.launches
            y = portable.softmax(x)
            last = hopper.last
            assert hopper.launches == before + 1 and last.stream == 5
            assert {x.data_ptr(), y.data_ptr()} <= set(last.values)
    assert y.shape == x.shape and y.dtype == x.dtype and y.is_contiguous()


def test_a_call_on_another_gpu_makes_it_the_current_one_meanwhile(hopper):
    backend = OneOfTwo(registry.vendors()["cuda"])
    detect.reset(detect.Selection({"cpu": backend}, {"cuda": Detection(True, True, "for a test")}))
    OneOfTwo.entered.clear()
    x = torch.randn(16, 1024, dtype=torch.bfloat16)
    with portable.using(softmax="triton"):
        for calls in (1, 2, 3):
            before = hopper.launches
            portable.softmax(x)
            assert hopper.launches == before + 1 and OneOfTwo.entered == [0] * calls


def test_threads_share_a_plan_but_no_argument(hopper):
    hopper.arguments(8, 8, 8, 8)
    xs = [torch.randn(16, 1024, dtype=torch.bfloat16) for _ in range(4)]
    wrong = []

    def work(x):
        with portable.using(softmax="triton"):
            for _ in range(300):
                y = portable.softmax(x)
                if not {x.data_ptr(), y.data_ptr()} <= set(hopper.last.values):
                    wrong.append(x)

    threads = [Thread(target=work, args=(x,)) for x in xs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == [] and len(dispatcher.op("softmax").plan_cache) == 1


def least(calls: dict[str, Callable[[], object]], times: int = 300, rounds: int = 25) -> dict[str, float]:
    """Of each call its least microseconds, measured in rotation."""
    found = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(times):
                call()
            found[name] = min(found[name], (time.perf_counter() - start) / times * 1e6)
    return found


# Against torch.softmax of 8 numbers, which is all host (2026-11-21: 2.1, 3.7, 3.2; before, 8 and 50). The
# bounds are twice that: another job on the machine must not fail them, going back to the dispatcher must.
MOST = {"a call": 4.5, "with a gradient": 7.5, "two shapes in turn": 9.0}


@pytest.mark.slow
@pytest.mark.parametrize("impl", ["cpp", "triton"])
def test_what_a_call_costs_the_host(hopper, impl, record_property):
    x, y = (torch.randn(n, 1024, dtype=torch.bfloat16) for n in (16, 8))
    leaf = torch.randn(16, 1024, dtype=torch.bfloat16, requires_grad=True)
    small, small_leaf = torch.randn(1, 8), torch.randn(1, 8, requires_grad=True)
    with portable.using(softmax=impl):
        found = least(
            {
                "torch": lambda: torch.softmax(small, -1),
                "torch, with a gradient": lambda: torch.softmax(small_leaf, -1),
                "a call": lambda: portable.softmax(x),
                "with a gradient": lambda: portable.softmax(leaf),
                "two shapes in turn": lambda: (portable.softmax(x), portable.softmax(y)),
            }
        )
    ratios = {
        "a call": found["a call"] / found["torch"],
        "with a gradient": found["with a gradient"] / found["torch, with a gradient"],
        "two shapes in turn": found["two shapes in turn"] / found["torch"],
    }
    record_property("host_cost", ratios)
    assert all(ratios[name] < most for name, most in MOST.items()), (ratios, found)


FIRST = """
import ctypes, json, sys, time
start = time.process_time()
import torch
times = {"import torch": (time.process_time() - start) * 1e3}
import portable
from portable.runtime import detect
from portable.spec import registry
from portable.backend import Backend, Detection
from portable.backends.cuda import driver
from portable.backends.cuda.backend import TARGETS, CudaBackend

library = ctypes.CDLL(sys.argv[1])
driver._library = lambda: library

class OnTheCpu(CudaBackend):
    device_type = "cpu"
    count = Backend.count
    current, stream, empty = (staticmethod(getattr(Backend, name)) for name in ("current", "stream", "empty"))
    device = lambda self, index: TARGETS[1]
    language_missing = lambda self, language: None
    load = lambda self, code, device: 0xF0

backend = OnTheCpu(registry.vendors()["cuda"])
detect.reset(detect.Selection({"cpu": backend}, {"cuda": Detection(True, True, "for a test")}))
x, weight = torch.randn(16, 1024).bfloat16(), torch.randn(1024).bfloat16()
for op, tensors in {"softmax": (x,), "rms_norm": (x, weight)}.items():
    start = time.process_time()
    with portable.using(**{op: sys.argv[2]}):
        getattr(portable, op)(*tensors)
    times[op] = (time.process_time() - start) * 1e3
print(json.dumps(times))
"""


@pytest.mark.slow
def test_a_first_call_with_a_warm_cache_is_quick(library, tmp_path, record_property):
    """At most a quarter of the CPU time of torch's own import; 0.14 on quiet cores."""
    environ = {**os.environ, "PORTABLE_CACHE_DIR": str(tmp_path)}
    command = [sys.executable, "-c", FIRST, str(library), "triton"]
    runs = []
    for _ in range(4):
        done = subprocess.run(command, env=environ, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        runs.append(json.loads(done.stdout))
    warm = {name: min(run[name] for run in runs[1:]) for name in runs[0]}
    record_property("first_call_ms", {"cold": runs[0], "warm": warm})
    # A share, because on busy cores all of it takes longer alike.
    share = {op: min(run[op] / run["import torch"] for run in runs[1:]) for op in ("softmax", "rms_norm")}
    assert all(each < 0.25 for each in share.values()), (share, runs)


def test_triton_compiles_once_for_all_processes(hopper, tmp_path, monkeypatch):
    monkeypatch.setenv("PORTABLE_CACHE_DIR", str(tmp_path))
    x = torch.randn(16, 1024, dtype=torch.bfloat16)
    compiled = []
    compile_triton = build.triton_build.compile_triton
    monkeypatch.setattr(
        build.triton_build, "compile_triton", lambda *a: compiled.append(a[0].name) or compile_triton(*a)
    )

    def call():
        build.clear_caches()
        dispatcher.clear_caches()
        with portable.using(softmax="triton"):
            portable.softmax(x)
        return next(iter(build._code.values()))

    first, again = call(), call()
    assert first == again and len(compiled) == 1 and first.binary[:4] == b"\x7fELF"
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")  # Triton may compile otherwise under its variables
    call()
    assert len(compiled) == 2
