"""The real `Runtime` class over a libamdhip64 made for these tests, whose two devices are emulated."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest
import torch

from portable.backend import CodeObject
from portable.backends.rocm.backend import TARGETS, RocmBackend
from portable.backends.rocm.compile import compile
from portable.backends.rocm.emulator.launch import Buffer, KernelLaunch
from portable.backends.rocm.emulator.launch import launch as emulate
from portable.backends.rocm.emulator.runtime import EmulatedRuntime
from portable.backends.rocm.runtime import Runtime
from portable.errors import LaunchError

ARCHS = ("gfx942", "gfx1100")
NO_BINARY_FOR_GPU, NOT_FOUND, LAUNCH_FAILURE = 209, 500, 719
U32x3 = ctypes.POINTER(ctypes.c_uint32)
HANDLE = ctypes.POINTER(ctypes.c_uint64)
LOAD = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, HANDLE)
FIND = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_char_p, HANDLE)
RUN = ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_int, ctypes.c_uint64, U32x3, U32x3),
    *(ctypes.c_uint32, ctypes.c_void_p, ctypes.c_uint64),
)
KERNEL = """
#include "prelude.h"
KERNEL(256) void axpy(float* y, const float* x, float factor, int n) {
    const int i = block_x() * 256 + thread_x();
    if (i < n) {
        y[i] = factor * x[i] + y[i];
    }
}
"""


class Fake:
    """The library, the tensors that its launches may reach, and what went wrong in one of them."""

    def __init__(self, path: Path):
        self.library = ctypes.CDLL(str(path))
        self.library.fake_synchronize.argtypes = (ctypes.c_void_p,)
        self.devices = [EmulatedRuntime(arch) for arch in ARCHS]
        self.tensors: list[torch.Tensor] = []
        self.fault: Exception | None = None
        self._callbacks = (LOAD(self._load), FIND(self._find), RUN(self._run))
        self.library.fake_register(*self._callbacks)

    def _load(self, device, image, size, handle):
        try:
            handle[0] = self.devices[device].load_module(ctypes.string_at(image, size))
        except LaunchError:
            return NO_BINARY_FOR_GPU
        return 0

    def _find(self, device, module, name, handle):
        try:
            handle[0] = self.devices[device].get_function(module, name.decode())
        except LaunchError:
            return NOT_FOUND
        return 0

    def _run(self, device, function, grid, block, shared, kernarg, size):
        buffers = [Buffer(f"t{i}", t.data_ptr(), t.nbytes) for i, t in enumerate(self.tensors)]
        kernel = self.devices[device].kernel(function)
        try:
            segment = ctypes.string_at(kernarg, size)
            emulate(KernelLaunch(kernel, tuple(grid[:3]), tuple(block[:3]), shared, segment, buffers))
        except Exception as error:
            self.fault = error
            return LAUNCH_FAILURE
        return 0

    def synchronize(self, stream: int = 0) -> int:
        return self.library.fake_synchronize(stream)


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("hip") / "libamdhip64.so"
    source = Path(__file__).with_name("fake_hip.c")
    flags = ("-std=c17", "-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    done = subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", *flags, str(source), "-o", str(path)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return path


@pytest.fixture
def fake(library) -> Fake:
    return Fake(library)


@pytest.fixture
def hip(library) -> Runtime:
    runtime = Runtime(library)
    assert runtime._library.hipSetDevice(0) == 0
    return runtime


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> dict[str, bytes]:
    source = tmp_path_factory.mktemp("source") / "axpy.hip"
    source.write_text(KERNEL)
    return {arch: compile(source, (("T", "f32"),), arch) for arch in ARCHS}


def arguments(y: torch.Tensor, x: torch.Tensor, factor: float) -> bytearray:
    return bytearray(struct.pack("<QQfi", y.data_ptr(), x.data_ptr(), factor, x.numel()))


@pytest.mark.parametrize("device", [0, 1], ids=ARCHS)
def test_a_code_object_is_loaded_found_and_launched_on_a_stream(fake, hip, images, device):
    x, y = torch.randn(1000), torch.randn(1000)
    expected, fake.tensors = 3 * x + y, [x, y]
    kernarg = arguments(y, x, 3.0)
    with hip.on_device(device):
        function = hip.get_function(hip.load_module(images[ARCHS[device]]), "axpy")
        hip.launch(function, (4, 1, 1), (256, 1, 1), 0, 7, kernarg, name="axpy")
    kernarg[:] = bytes(len(kernarg))  # the runtime has its own copy
    assert fake.synchronize(8) == 0 and fake.library.fake_pending() == 1
    assert fake.synchronize(7) == 0 and fake.fault is None
    torch.testing.assert_close(y, expected)


def test_the_backend_of_a_real_gpu_launches_through_it(fake, hip, images, monkeypatch):
    monkeypatch.setattr(RocmBackend, "runtime", lambda self: hip)
    backend, device = RocmBackend(Path()), next(target for target in TARGETS if target.arch == "gfx942")
    x, y = torch.randn(1000), torch.randn(1000)
    expected, fake.tensors = 3 * x + y, [x, y]
    code = CodeObject(images["gfx942"], "axpy", 256, 0, "hip")
    kernarg = arguments(y, x, 2.0)
    start = backend.launcher(backend.load(code, device), code, device, (), (4, 1, 1), kernarg)
    kernarg[:] = arguments(y, x, 3.0)  # what it holds at the launch is what counts
    start(7)
    assert fake.synchronize(7) == 0
    torch.testing.assert_close(y, expected)


def test_bytes_serve_as_arguments_too(fake, hip, images):
    x, y = torch.ones(3), torch.ones(3)
    fake.tensors = [x, y]
    function = hip.get_function(hip.load_module(images["gfx942"]), "axpy")
    hip.launch(function, (1, 1, 1), (256, 1, 1), 0, 0, bytes(arguments(y, x, 2.0)))
    assert fake.synchronize() == 0
    assert y.tolist() == [3.0, 3.0, 3.0]


def test_figures_of_two_gpus(fake, hip):
    assert hip.device_count() == 2
    assert [hip.properties(i)["warp_size"] for i in (0, 1)] == [64, 32]
    assert hip.properties(0) == {
        "l2_bytes": 4 << 20,
        "max_threads": 1024,
        "multiprocessors": 304,
        "shared_memory": 64 << 10,
        "warp_size": 64,
    }
    assert set(hip.properties(1)) == set(EmulatedRuntime("gfx1100").properties(0))


def test_the_current_gpu_is_as_it_was(hip):
    current = ctypes.c_int()

    def now() -> int:
        hip._library.hipGetDevice(ctypes.byref(current))
        return current.value

    with hip.on_device(1):
        assert now() == 1
        with hip.on_device(0):
            assert now() == 0
        assert now() == 1
    assert now() == 0
    with pytest.raises(ZeroDivisionError), hip.on_device(1):
        raise ZeroDivisionError
    assert now() == 0


def test_each_thread_has_a_current_device(hip):
    seen = []

    def other():
        with hip.on_device(1):
            seen.append(hip._library.hipSetDevice(1))

    with hip.on_device(0):
        thread = Thread(target=other)
        thread.start()
        thread.join()
        current = ctypes.c_int()
        hip._library.hipGetDevice(ctypes.byref(current))
    assert (seen, current.value) == ([0], 0)


def test_what_the_runtime_refuses(fake, hip, images):
    function = hip.get_function(module := hip.load_module(images["gfx942"]), "axpy")
    with pytest.raises(LaunchError, match="answered 200, device kernel image is invalid"):
        hip.load_module(b"no code object" * 10)
    with hip.on_device(1), pytest.raises(LaunchError, match="answered 209, no kernel image"):
        hip.load_module(images["gfx942"])
    with pytest.raises(LaunchError, match=r"axpyy could not .* answered 500, named symbol not found"):
        hip.get_function(module, "axpyy")
    with pytest.raises(LaunchError, match=r"device 2 .* answered 101, invalid device"), hip.on_device(2):
        pass
    with pytest.raises(LaunchError, match="answered 101"):
        hip.properties(2)
    with pytest.raises(LaunchError, match=r"axpy could not .*66000 bytes of LDS.* answered 1, invalid"):
        hip.launch(function, (1, 1, 1), (256, 1, 1), 66000, 0, bytes(24), name="axpy")
    with pytest.raises(LaunchError, match="needs 66000 bytes of LDS; a block has 65536"):
        hip.set_dynamic_lds(0, 66000, "axpy")
    hip.set_dynamic_lds(0, 65536, "axpy")
    with hip.on_device(1), pytest.raises(LaunchError, match="answered 400, invalid resource handle"):
        hip.launch(function, (1, 1, 1), (256, 1, 1), 0, 0, bytes(24))
    hip.unload_module(module)
    with pytest.raises(LaunchError, match=r"unloading it: .* answered 400"):
        hip.unload_module(0)
    assert fake.library.fake_pending() == 0


def test_a_library_that_is_not_there(tmp_path):
    with pytest.raises(LaunchError, match="cannot be loaded"):
        Runtime(tmp_path / "libamdhip64.so")


def test_a_fault_comes_back_as_a_failed_launch(fake, hip, images):
    """The emulator behind the library still sees it: y is one element short."""
    x, y = torch.ones(1000), torch.ones(999)
    fake.tensors = [x, y]
    function = hip.get_function(hip.load_module(images["gfx942"]), "axpy")
    hip.launch(function, (4, 1, 1), (256, 1, 1), 0, 0, arguments(y, x, 2.0))
    assert fake.synchronize() == LAUNCH_FAILURE
    assert getattr(fake.fault, "kind", None) == "out-of-bounds"
