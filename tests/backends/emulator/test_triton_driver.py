"""Any Triton program on an emulated GPU: plain `kernel[grid](cpu_tensors, ...)`, no op of ours."""

from __future__ import annotations

import gc
import struct
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs

from portable.backends.rocm.emulator import launch as launching
from portable.backends.rocm.emulator import triton_arguments
from portable.backends.rocm.emulator.faults import EmulatorError, KernelFault
from portable.backends.rocm.emulator.triton_driver import EmulatedDriver, emulated
from portable.errors import LaunchError

ARCHS = ("gfx90a", "gfx942", "gfx950", "gfx1100", "gfx1201")
jit: Any = triton.jit  # a launch takes numbers where the kernel's signature says constexpr


@jit
def add(x_ptr, y_ptr, out_ptr, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets, mask) + tl.load(y_ptr + offsets, mask), mask)


@jit
def careless(x_ptr, out_ptr, BLOCK: tl.constexpr):
    offsets = tl.arange(0, BLOCK)
    tl.store(out_ptr + offsets, tl.load(x_ptr + offsets))


@jit
def row_sum(x_ptr, out_ptr, stride, n, scale, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    offsets = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * stride + offsets, offsets < n, other=0.0)
    tl.store(out_ptr + row, tl.sum(x, 0) * scale)


@jit
def product(a_ptr, b_ptr, c_ptr, K, M: tl.constexpr, N: tl.constexpr, BLOCK_K: tl.constexpr):
    rows, cols, ks = tl.arange(0, M), tl.arange(0, N), tl.arange(0, BLOCK_K)
    total = tl.zeros((M, N), tl.float32)
    for k in range(0, K, BLOCK_K):
        a = tl.load(a_ptr + rows[:, None] * K + k + ks[None, :])
        b = tl.load(b_ptr + (k + ks[:, None]) * N + cols[None, :])
        total = tl.dot(a, b, total)
    tl.store(c_ptr + rows[:, None] * N + cols[None, :], total)


@jit
def scalars(out_ptr, a, b, c, d, e):
    tl.store(out_ptr, a + 0.0)
    tl.store(out_ptr + 1, b + 0.0)
    tl.store(out_ptr + 2, c + 0.0)
    tl.store(out_ptr + 3, d + 0.0)
    tl.store(out_ptr + 4, tl.where(e, 1.0, 2.0))


@pytest.fixture
def recorded(monkeypatch):
    """The launches that reach the emulator, instead of being run."""
    calls = []
    monkeypatch.setattr(launching, "launch", lambda given, count=False: calls.append(given))
    return calls


# Results -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ARCHS)
def test_a_plain_launch(arch):
    x, y, out = torch.randn(1000), torch.randn(1000), torch.full((1000,), torch.nan)
    with emulated(arch):
        add[(8,)](x, y, out, 1000, BLOCK=128)
    assert torch.equal(out, x + y)


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_strided_rows_and_a_float_argument(arch):
    x, out = torch.randn(5, 100)[:, :77], torch.empty(5)
    with emulated(arch):
        row_sum[(5,)](x, out, x.stride(0), 77, 0.5, BLOCK=128)
    torch.testing.assert_close(out, x.sum(1) * 0.5)


@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_the_matrix_cores(arch, dtype):
    a, b, c = torch.randn(32, 64).to(dtype), torch.randn(64, 32).to(dtype), torch.empty(32, 32)
    with emulated(arch):
        product[(1,)](a, b, c, 64, M=32, N=32, BLOCK_K=32, num_warps=4)
    # Triton's float32 dot may round its operands to fewer bits; products of 16-bit floats are exact.
    tolerance = 2e-2 if dtype is torch.float32 else 1e-5
    torch.testing.assert_close(c.double(), a.double() @ b.double(), rtol=tolerance, atol=tolerance)


def test_scalars_arrive_as_they_are():
    out = torch.empty(5)
    with emulated():
        scalars[(1,)](out, -3, 2**40, 2.5, 7, True)
    assert out.tolist() == [-3, 2**40, 2.5, 7, 1]


def test_a_read_beyond_a_tensor_is_an_error_that_names_it():
    x, out = torch.randn(128), torch.empty(128)
    with emulated(), pytest.raises(KernelFault) as caught:
        careless[(1,)](x[:100], out, BLOCK=128)
    assert caught.value.kind == "out-of-bounds" and caught.value.kernel == "careless"
    assert "test_triton_driver.py" in (caught.value.source or "")
    with emulated():
        careless[(1,)](x, out, BLOCK=128)
    assert torch.equal(out, x)


def test_an_autotuner_with_one_config_runs():
    tuned = triton.autotune([triton.Config({"BLOCK": 64})], key=["n"])(add)
    x, out = torch.randn(100), torch.empty(100)
    with emulated():
        tuned[(2,)](x, x, out, 100)
    assert torch.equal(out, x + x)


# Arguments of a launch -----------------------------------------------------------------------------


def test_buffers_are_the_tensors(recorded):
    x, y, out = torch.randn(4, 50)[1:, 3:40], torch.randn(8), torch.empty(0)
    with emulated():
        add[(3, 2)](x, y, out, 17, BLOCK=128)
    (call,) = recorded
    assert (call.kernel.name, call.grid, call.block) == ("add", (3, 2, 1), (4 * 64, 1, 1))
    assert [(b.name, b.address, b.nbytes) for b in call.buffers] == [
        ("x_ptr", x.data_ptr(), (2 * 50 + 37) * 4),
        ("y_ptr", y.data_ptr(), 32),
    ]
    values = (x.data_ptr(), y.data_ptr(), out.data_ptr(), 17, 0, 0)
    assert call.kernarg == struct.pack("<QQQi4xQQ", *values)
    assert len(call.kernarg) == call.kernel.kernarg_size


def test_arguments_lie_where_the_code_object_wants_them(recorded):
    with emulated():
        scalars[(1,)](torch.empty(5), -3, 2**40, 2.5, 7, True)
    kernel, kernarg = recorded[0].kernel, recorded[0].kernarg
    offsets = [each[".offset"] for each in kernel.arguments][1:6]
    forms = zip(("<i", "<q", "<f", "<i", "<?"), offsets, strict=True)
    values = [struct.unpack_from(form, kernarg, at)[0] for form, at in forms]
    assert values == [-3, 2**40, 2.5, 7, True]
    assert len(kernarg) == kernel.kernarg_size


def test_scratch_that_a_kernel_asks_for_is_a_buffer(recorded):
    """Made by hand: no kernel here needs any."""
    made = SimpleNamespace(
        name="k", warp_size=64, num_ctas=1, global_scratch_size=100, global_scratch_align=128,
        profile_scratch_size=0, profile_scratch_align=1,
    )  # fmt: skip
    source = SimpleNamespace(signature={"x": "bf16", "c": "constexpr", "y": "u8"})
    packed = triton_arguments.Arguments("k", source.signature, made).pack((2, 3, 1), (1.5, None, 255), "view")
    (scratch,) = packed.buffers
    assert scratch.nbytes == 600 and scratch.address % 128 == 0 and len(packed.kept) == 1
    assert packed.kernarg == struct.pack("<HB5xQQ", 0x3FC0, 255, scratch.address, 0)


def test_hooks_and_empty_grids(recorded, monkeypatch):
    seen = []
    monkeypatch.setattr(knobs.runtime, "launch_enter_hook", lambda data: seen.append("enter"))
    monkeypatch.setattr(knobs.runtime, "launch_exit_hook", lambda data: seen.append("exit"))
    x = torch.ones(4)
    with emulated():
        add[(0,)](x, x, x, 4, BLOCK=16)
        assert recorded == [] and seen == ["enter", "exit"]
        add[(1,)](x, x, x, 4, BLOCK=16)
    assert len(recorded) == 1 and seen == ["enter", "exit"] * 2


def test_each_architecture_has_its_own_machine_code(recorded):
    """Triton keys compiled kernels by device number: a second GPU must not get the code of the first."""
    x = torch.ones(4)
    for arch in ("gfx942", "gfx1100", "gfx942"):
        with emulated(arch) as driver:
            assert driver.get_current_target() == triton.runtime.driver.active.get_current_target()
            add[(1,)](x, x, x, 4, BLOCK=16)
    assert [call.kernel.code.arch for call in recorded] == ["gfx942", "gfx1100", "gfx942"]
    assert [call.block[0] for call in recorded] == [256, 128, 256]


# The driver itself ---------------------------------------------------------------------------------


def test_the_former_driver_comes_back():
    config: Any = triton.runtime.driver
    before = config._active
    with emulated("gfx942") as outer:
        with emulated("gfx1100"):
            assert config.active.get_current_target().arch == "gfx1100"
        assert config.active is outer
        with pytest.raises(ZeroDivisionError), emulated("gfx950"):
            raise ZeroDivisionError
        assert config.active is outer
    assert config._active is before


def test_a_forgotten_kernel_leaves_the_next_driver_alone(recorded, capsys):
    """Triton 3.9 unloads a kernel's module through whichever driver is active when it is collected."""

    @jit
    def short_lived(x_ptr):
        tl.store(x_ptr, 1.0)

    with emulated():
        compiled = short_lived[(1,)](torch.ones(1))
    assert compiled.module is None and compiled.n_regs > 0 and compiled.n_max_threads == 256
    del compiled, short_lived
    gc.collect()
    assert "Exception ignored" not in capsys.readouterr().err


@pytest.mark.parametrize("arch", ARCHS)
def test_the_driver_answers_what_triton_asks(arch):
    driver = EmulatedDriver(arch)
    target, figures = driver.get_current_target(), driver.utils.get_device_properties(0)
    assert (target.backend, target.arch) == ("hip", arch)
    assert target.warp_size == figures["warpSize"] == (64 if arch.startswith("gfx9") else 32)
    assert figures["max_shared_mem"] == (160 if arch == "gfx950" else 64) * 1024
    assert driver.get_active_torch_device() == torch.device("cpu")
    assert driver.get_current_stream(driver.get_current_device()) == 0
    assert driver.get_device_interface().current_device() == driver.get_current_device()
    driver.get_device_interface().synchronize()
    assert driver.map_python_to_cpp_type("*fp32") == "hipDeviceptr_t"
    assert driver.map_python_to_cpp_type("u8") == "uint8_t"
    assert set(triton_arguments.C_TYPES) == set(triton_arguments.FORMATS)
    assert not EmulatedDriver.is_active()


def test_an_unknown_gpu():
    with pytest.raises(LaunchError, match="gfx90a, gfx942"):
        EmulatedDriver("gfx9")


def test_time_is_refused():
    driver = EmulatedDriver()
    event = driver.get_device_interface().Event
    for ask in (driver.get_benchmarker, driver.get_empty_cache_for_benchmark, event):
        with pytest.raises(EmulatorError, match="No timings on an emulated GPU"):
            ask()
    tuned = triton.autotune([triton.Config({"BLOCK": 64}), triton.Config({"BLOCK": 128})], key=["n"])(add)
    x = torch.ones(4)
    with emulated(), pytest.raises(EmulatorError, match="one config"):
        tuned[(1,)](x, x, x, 4)


def test_what_it_does_not_take():
    x = torch.ones(16)
    with emulated(), pytest.raises(LaunchError, match="'x_ptr' is on meta"):
        careless[(1,)](x.to("meta"), x, BLOCK=16)


def test_an_address_without_a_tensor_is_refused(recorded):
    class Address:
        dtype = torch.float32

        def data_ptr(self):
            return 4096

    with emulated(), pytest.raises(LaunchError, match="is a Address, whose extent is not known"):
        careless[(1,)](Address(), torch.ones(16), BLOCK=16)
    assert recorded == []


def test_a_reinterpreted_tensor_is_its_own_memory(recorded):
    x = torch.zeros(16, dtype=torch.int32)
    with emulated():
        careless[(1,)](triton.reinterpret(x, tl.float32), torch.ones(16), BLOCK=16)
    first = recorded[0].buffers[0]
    assert (first.address, first.nbytes) == (x.data_ptr(), 64)
