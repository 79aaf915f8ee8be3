"""The emulated AMD GPU as a backend: when it is selected, its name, the buffers and arguments of a launch."""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import portable
from portable import errors
from portable.backend import CodeObject, Machine
from portable.backends.rocm.backend import TARGETS
from portable.backends.rocm.emulator import launch as launching
from portable.backends.rocm.emulator.backend import EmulatedRocmBackend
from portable.backends.rocm.emulator.runtime import EmulatedRuntime
from portable.backends.rocm.runtime import ATTRIBUTES, Runtime
from portable.commands import cli
from portable.conformance.commands import cli as conformance
from portable.conformance.commands import demo
from portable.conformance.records import record
from portable.dispatch import dispatcher, pins, select
from portable.plan import KernelArgument, Launch, NativeKernel, Pointer, Scalar, TensorInfo
from portable.runtime import build, detect

VARIABLES = ("PORTABLE_BACKEND", "PORTABLE_ROCM_ARCH", "PORTABLE_EMULATE", "PORTABLE_IMPL")
needs_no_gpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a GPU is here: says what a machine without one says"
)


def made_up(*files: str, hip: str | None = None, **environ: str) -> Machine:
    """A machine with these device files; a kfd node is a GPU."""
    return Machine(
        {"cuda": None, "hip": hip},
        environ,
        exists=lambda path: path in files,
        listdir=lambda path: ["1"],
        read=lambda path: "simd_count 304\n",
        which=lambda name: None,
        system="Linux",
    )


@pytest.fixture
def environment(monkeypatch):
    """Sets PORTABLE_* variables of this process and selects again; as it was at the end."""
    for name in VARIABLES:
        monkeypatch.setenv(name, "")  # so that what the code under test sets is undone as well
        monkeypatch.delenv(name)

    def assign(**values: str) -> None:
        for name, value in values.items():
            monkeypatch.setenv(name, value)
        pins.reload()
        detect.reset()

    assign()
    yield assign
    monkeypatch.undo()
    pins.reload()
    detect.reset()


@contextmanager
def recorded(monkeypatch):
    """The launches that reach the emulator, instead of being run."""
    calls = []
    with monkeypatch.context() as patch:
        patch.setattr(launching, "launch", lambda given, count=False: calls.append(given))
        yield calls


# Selection -----------------------------------------------------------------------------------------


def test_a_named_backend_without_its_gpu_is_emulated_and_serves_the_cpus_tensors():
    chosen = detect.select(made_up(PORTABLE_BACKEND="rocm"))
    assert chosen.error is None and list(chosen.backends) == ["cpu"]
    backend = chosen.backends["cpu"]
    assert isinstance(backend, EmulatedRocmBackend) and backend.name == "rocm"
    assert str(backend.device(0)) == backend.device(0).name == "emulated gfx942"
    assert chosen.detections["rocm"].reason == "emulated gfx942 (no AMD GPU: /dev/kfd does not exist)"


def test_without_being_named_it_is_never_chosen():
    assert detect.select(made_up()).backends["cpu"].name == "cpu"
    assert detect.select(made_up(PORTABLE_ROCM_ARCH="gfx1100")).backends["cpu"].name == "cpu"


@pytest.mark.parametrize("arch", [target.arch for target in TARGETS])
def test_every_target_can_be_picked_and_has_its_figures(arch):
    chosen = detect.select(made_up(PORTABLE_BACKEND="rocm", PORTABLE_ROCM_ARCH=arch))
    device = chosen.backends["cpu"].device(0)
    target = next(target for target in TARGETS if target.arch == arch)
    assert device == replace(target, name=f"emulated {arch}", emulated=True)


def test_a_wrong_architecture_is_an_error_that_lists_the_known():
    error = detect.select(made_up(PORTABLE_BACKEND="rocm", PORTABLE_ROCM_ARCH="gfx9000")).error
    assert isinstance(error, errors.BackendError)
    assert "PORTABLE_ROCM_ARCH='gfx9000'" in str(error)
    assert all(target.arch in str(error) for target in TARGETS)


def test_a_gpu_that_is_there_is_used_unless_emulation_is_asked_for():
    kfd = ("/dev/kfd",)
    assert list(detect.select(made_up(*kfd, hip="7.0", PORTABLE_BACKEND="rocm")).backends) == ["cuda"]
    forced = detect.select(made_up(*kfd, hip="7.0", PORTABLE_BACKEND="rocm", PORTABLE_EMULATE="1"))
    assert str(forced.backends["cpu"].device(0)) == "emulated gfx942"
    assert "PORTABLE_EMULATE=1" in forced.detections["rocm"].reason


def test_a_gpu_that_torch_cannot_use_is_not_replaced_in_silence():
    error = detect.select(made_up("/dev/kfd", PORTABLE_BACKEND="rocm")).error
    assert "install a ROCm build of torch" in str(error) and "PORTABLE_EMULATE=1" in str(error)


def test_emulation_can_be_forbidden_and_asked_for_without_a_name():
    error = detect.select(made_up(PORTABLE_BACKEND="rocm", PORTABLE_EMULATE="0")).error
    assert str(error) == "PORTABLE_BACKEND=rocm: no AMD GPU: /dev/kfd does not exist."
    assert detect.select(made_up(PORTABLE_EMULATE="1")).backends["cpu"].name == "rocm"
    assert "expected 0 or 1" in str(detect.select(made_up(PORTABLE_EMULATE="yes")).error)
    for vendor in ("cuda", "cpu"):
        error = detect.select(made_up(PORTABLE_BACKEND=vendor, PORTABLE_EMULATE="1")).error
        assert "this vendor has no emulated GPU" in str(error)


def test_a_missing_extra_is_named(monkeypatch):
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "ziglang" else real(name, *rest)
    )
    error = detect.select(made_up(PORTABLE_BACKEND="rocm")).error
    assert isinstance(error, errors.BackendError)
    assert "pip install 'portable-kernels[emulate]'" in str(error)
    assert detect.select(made_up()).backends["cpu"].name == "cpu"


# Names and choices ---------------------------------------------------------------------------------


@needs_no_gpu
def test_device_explain_and_info_say_that_it_is_emulated(environment, capsys):
    environment(PORTABLE_BACKEND="rocm", PORTABLE_ROCM_ARCH="gfx1100")
    assert str(portable.device()) == "emulated gfx1100"
    text = str(portable.explain("softmax", torch.ones(2, 8)))
    assert text.startswith("softmax(x float32[2, 8], y float32[2, 8]) on emulated gfx1100\n -> cpp")
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^backend rocm +in use: emulated gfx1100 \(no AMD GPU", out, re.MULTILINE)
    assert re.search(r"^device 0 +emulated gfx1100: ", out, re.MULTILINE)


@needs_no_gpu
def test_the_option_of_the_command(environment, capsys):
    assert cli.main(["explain", "softmax"]) == 0
    assert "on CPU" in capsys.readouterr().out
    assert cli.main(["explain", "softmax", "--emulate"]) == 0
    assert "on emulated gfx942" in capsys.readouterr().out


@needs_no_gpu
def test_a_record_names_the_emulated_gpu(environment):
    environment(PORTABLE_BACKEND="rocm")
    head = record.header(portable.device(), ["run"], "smoke")
    assert (head["device"], head["arch"], head["emulated"]) == ("emulated gfx942", "gfx942", True)


def test_torch_is_no_implementation_of_an_emulated_gpu(environment):
    """It would say what the CPU computes: it runs where no kernel does, or pinned, and says so."""
    environment(PORTABLE_BACKEND="rocm")
    assert dispatcher.candidates("softmax") == ("cpp", "triton")
    double = portable.explain("softmax", torch.ones(2, 8, dtype=torch.float64)).choice
    assert double is not None and double.name == "torch"
    assert double.reason is not None
    assert "torch computes it on the CPU, not on the emulated gfx942" in double.reason
    with portable.using(softmax="torch"):
        pinned = portable.explain("softmax", torch.ones(2, 8)).choice
        assert pinned is not None and pinned.reason is not None
        assert pinned.reason.startswith("pinned; torch computes it on the CPU")
        assert torch.equal(portable.softmax(torch.ones(2, 8)), torch.full((2, 8), 0.125))


def test_torch_is_asked_last_wherever_the_spec_has_it(environment, toy):
    """The toy GPU, emulated, with an implementation through torch in front of the others."""
    spec = dispatcher.registry.spec("twice")
    question = select.CallSignature(
        replace(spec, implementations=spec.implementations[::-1]),
        {name: TensorInfo((2, 3), (3, 1), "float32") for name in "xy"},
        {},
        {"N": 3, "B": 2},
        {"T": "float32", "acc": "float32"},
    )
    backend = detect.main_backend()
    real = backend.device(0)
    assert select.choose(question, backend, real).name == "torch"
    assert select.choose(question, backend, replace(real, emulated=True)).name == "toy"


# Arguments of a launch -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "shape, strides, span",
    [
        ((3, 5), (5, 1), 15),
        ((3, 5), (8, 1), 21),
        ((5, 3), (1, 5), 15),
        ((4,), (0,), 1),
        ((), (), 1),
        ((0, 7), (7, 1), 0),
        ((2, 0, 4), (9, 9, 9), 0),
    ],
)
def test_a_tensor_spans_from_its_first_to_its_last_element(shape, strides, span):
    assert TensorInfo(shape, strides, "float16").span == span


def test_arguments_of_a_launch():
    args = (("a", Pointer("x")), ("n", Scalar("i32", 3)), ("b", Pointer("y")), ("w", Pointer("gone")))
    launch = Launch(NativeKernel(Path("k.hip"), "k", 1), (1, 1, 1), args)
    tensors = {"x": TensorInfo((3, 5), (8, 1), "float16"), "y": TensorInfo((4,), (1,), "float64")}
    slots = {"x": 0, "y": 1, "gone": 2}
    code = CodeObject(b"", "k", 1, 0, "hip", 1)
    bound = build.BoundLaunch(launch, slots, code, tensors, frozenset("y"))
    assert bound.arguments == (
        KernelArgument("a", 0, 8, True, 42, False),
        KernelArgument("n", 8, 4),
        KernelArgument("b", 16, 8, True, 32, True),
        KernelArgument("w", 24, 8, True, 0, False),
        KernelArgument("scratch 0", 32, 8),
    )


@pytest.mark.parametrize("impl", ["cpp", "triton"])
def test_the_emulator_gets_each_tensor_with_its_extent(environment, monkeypatch, impl):
    environment(PORTABLE_BACKEND="rocm")
    wide = torch.randn(4, 96)
    x = wide[1:, 8:72]  # 3 rows of 64, 96 elements apart
    with recorded(monkeypatch) as calls, portable.using(softmax=impl):
        y = portable.softmax(x)
    (call,) = calls
    assert call.kernel.code.arch == "gfx942" and call.kernel.wave == 64 and call.block[1:] == (1, 1)
    assert [(each.address, each.nbytes, each.writable) for each in call.buffers] == [
        (x.data_ptr(), (2 * 96 + 64) * 4, False),
        (y.data_ptr(), 3 * 64 * 4, True),
    ]
    for each in call.buffers:
        assert each.address.to_bytes(8, "little") in call.kernarg


def test_workspaces_may_be_written(environment, monkeypatch):
    environment(PORTABLE_BACKEND="rocm")
    with recorded(monkeypatch) as calls, portable.using(rms_norm_backward="cpp"):
        x, weight, rstd = torch.randn(300, 64), torch.randn(64), torch.rand(300)
        arguments = {"dy": x, "x": x, "weight": weight, "rstd": rstd}
        spec = dispatcher.registry.spec("rms_norm_backward")
        portable.rms_norm_backward(**{name: arguments[name] for name in spec.inputs})
    assert len(calls) > 1  # the partial sums go through a workspace
    written = [each.nbytes for call in calls for each in call.buffers if each.writable]
    assert written and all(written)
    inputs = {t.data_ptr() for t in arguments.values()}
    assert all(not each.writable for call in calls for each in call.buffers if each.address in inputs)


def test_an_empty_call_launches_nothing(environment, monkeypatch):
    environment(PORTABLE_BACKEND="rocm")
    with recorded(monkeypatch) as calls:
        assert portable.softmax(torch.empty(0, 5)).shape == (0, 5)
        empty = portable.matmul(torch.empty(3, 0), torch.empty(0, 4))
    assert torch.equal(empty, torch.zeros(3, 4)) or calls  # k of 0: a kernel writes the zeros
    assert all(each.nbytes for call in calls for each in call.buffers)


# The runtime ---------------------------------------------------------------------------------------


def test_the_runtime_has_the_real_ones_methods():
    for name, real in inspect.getmembers(Runtime, inspect.isfunction):
        if name.startswith("_"):
            continue
        wanted = list(inspect.signature(real).parameters.values())
        there = list(inspect.signature(getattr(EmulatedRuntime, name)).parameters.values())
        assert there[: len(wanted)] == wanted, name
        assert all(extra.kind is extra.KEYWORD_ONLY for extra in there[len(wanted) :]), name
    assert set(EmulatedRuntime("gfx942").properties(0)) == set(ATTRIBUTES)


SCALE = """
#include "prelude.h"
KERNEL(128) void scale(float* x) { SHARED float s[64]; s[thread_x() & 63] = 2.0f; barrier();
    x[thread_x()] *= s[63 - (thread_x() & 63)]; }
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory) -> bytes:
    from portable.backends.rocm.compile import compile

    source = tmp_path_factory.mktemp("source") / "scale.hip"
    source.write_text(SCALE)
    return compile(source, (("T", "f32"),), "gfx942", debug=True)


def test_what_the_runtime_refuses(image):
    runtime = EmulatedRuntime("gfx942")
    module = runtime.load_module(image)
    function = runtime.get_function(module, "scale")
    refused = [
        ("loading its 3 bytes", lambda: runtime.load_module(b"ELF")),
        ("it is for gfx942; this is AMD Radeon", lambda: EmulatedRuntime("gfx1100").load_module(image)),
        ("finding it in its code object, which has scale", lambda: runtime.get_function(module, "scal")),
        ("there is no module 99", lambda: runtime.get_function(99, "scale")),
        ("there is no module 99", lambda: runtime.unload_module(99)),
        ("one emulated GPU, device 0", lambda: runtime.properties(1)),
        ("70000 bytes of LDS; a block has 65536", lambda: runtime.set_dynamic_lds(0, 70000, "scale")),
        ("plus 256 static bytes", lambda: launch(shared=65536 - 255)),
        ("at most 128 threads", lambda: launch(block=(129, 1, 1))),
        ("the grid is larger than any GPU supports", lambda: launch(grid=(1, 65536, 1))),
        ("8 bytes of arguments; 4 were given", lambda: launch(kernarg=bytes(4))),
        ("there is no function", lambda: launch(function=999)),
    ]

    def launch(function=function, grid=(1, 1, 1), block=(128, 1, 1), shared=0, kernarg=bytes(8)):
        runtime.launch(function, grid, block, shared, 0, kernarg, "scale")

    for message, call in refused:
        with pytest.raises(errors.LaunchError, match=re.escape(message)):
            call()
    with pytest.raises(errors.LaunchError, match="'gfx9' cannot be emulated"):
        EmulatedRuntime("gfx9")
    runtime.unload_module(module)
    with pytest.raises(errors.LaunchError, match="was its module unloaded"):
        launch()


def test_line_tables_change_no_instruction(image, tmp_path):
    from io import BytesIO

    from elftools.elf.elffile import ELFFile

    from portable.backends.rocm.compile import compile

    source = tmp_path / "scale.hip"
    source.write_text(SCALE)
    plain, lines = ELFFile(BytesIO(compile(source, (("T", "f32"),), "gfx942"))), ELFFile(BytesIO(image))
    for section in (".text", ".rodata"):
        one, other = plain.get_section_by_name(section), lines.get_section_by_name(section)
        assert one is not None and other is not None and one.data() == other.data()
    assert plain.get_section_by_name(".debug_line") is None
    assert lines.get_section_by_name(".debug_line") is not None


# Results -------------------------------------------------------------------------------------------


@needs_no_gpu
@pytest.mark.parametrize("arch", ["gfx942", "gfx1100"])
def test_ops_compute_on_the_emulated_gpu(environment, arch):
    environment(PORTABLE_BACKEND="rocm", PORTABLE_ROCM_ARCH=arch)
    a, b = torch.randn(33, 40), torch.randn(40, 17)
    build.clear_caches()
    torch.testing.assert_close(portable.matmul(a, b), a @ b, rtol=1e-5, atol=1e-5)
    assert build.compiled, "no kernel was built: torch computed it"


@needs_no_gpu
def test_a_scalar_beyond_float32_is_infinite(environment):
    """2026-11-23: an eps of 1e300 was an OverflowError of struct."""
    environment(PORTABLE_BACKEND="rocm")
    assert torch.equal(portable.rms_norm(torch.ones(2, 8), eps=1e300), torch.zeros(2, 8))


def test_tensors_without_memory_reach_no_kernel(environment):
    """2026-11-22: each ended the process or gave numbers from freed memory."""
    environment(PORTABLE_BACKEND="rocm")
    freed, shrunk, ones = torch.ones(3, 16), torch.ones(3, 16), torch.ones(3, 16)
    for x in (freed, shrunk):  # known calls
        torch.testing.assert_close(portable.softmax(x), torch.softmax(x, -1))
    freed.untyped_storage().resize_(0)
    shrunk.untyped_storage().resize_(64)
    for x in (freed, shrunk):
        with pytest.raises(errors.StorageError):
            portable.softmax(x)
        with pytest.raises(errors.StorageError):
            torch.ops.portable.softmax(x)
    private: Any = torch
    assert torch.equal(portable.softmax(private._efficientzerotensor((3, 16))), ones / 16)
    made = portable.softmax(private._to_functional_tensor(torch.zeros(3, 16)))
    assert torch.equal(private._from_functional_tensor(made), ones / 16)
    with pytest.raises(errors.StorageError, match="'out'"):
        portable.matmul(ones, ones.T, out=private._efficientzerotensor((3, 3)))


def test_the_registered_op_gradients_and_compile_reach_it_too(environment):
    environment(PORTABLE_BACKEND="rocm")
    x = torch.randn(3, 64, requires_grad=True)
    _ = portable.softmax  # registered at its first mention
    build.clear_caches()
    y = torch.ops.portable.softmax(x, -1)
    torch.testing.assert_close(y, x.softmax(-1))
    (grad,) = torch.autograd.grad(y.square().sum(), x)
    (expected,) = torch.autograd.grad(x.softmax(-1).square().sum(), x)
    torch.testing.assert_close(grad, expected)
    assert {"softmax_forward", "softmax_backward"} <= set(build.compiled)
    traced = torch.compile(lambda t: portable.softmax(t) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(traced(x.detach()), y.detach() * 2)


@pytest.mark.slow
@needs_no_gpu
def test_the_conformance_command(environment, capsys, tmp_path):
    file = tmp_path / "r.json"
    argv = ["run", "--device", "rocm:gfx1100", "--ops", "softmax", "--tier", "smoke", "-k", "float32/N=33"]
    assert conformance.main([*argv, "--record", str(file)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("emulated gfx1100: ") and "No timings on an emulated device." in out
    assert "on emulated gfx1100" in out.splitlines()[-1]
    read = record.read(file)
    assert read["header"]["device"] == "emulated gfx1100"
    assert {each["impl"] for each in read["results"]} == {"cpp", "triton"}


@needs_no_gpu
@pytest.mark.parametrize(
    "argv, code, words",
    [
        (["--device", "rocm", "--require-hardware"], 3, "no AMD GPU"),
        (["--device", "rocm:gfx1100", "--require-hardware"], 3, "no AMD GPU"),
        (["--require-hardware"], 3, "is no GPU"),
        (["--device", "rocm:gfx9"], 2, "rocm has gfx90a, gfx942"),
        (["--device", "cuda", "--emulate"], 3, "no emulated GPU"),
        (["--device", "rokm"], 2, "Did you mean 'rocm'"),
        (["--device", "rocm", "--bench"], 2, "no timings on emulated gfx942"),
    ],
)
def test_devices_that_the_conformance_command_refuses(environment, capsys, argv, code, words):
    assert conformance.main(["run", "--ops", "softmax", "-k", "float32/N=33", *argv]) == code
    assert words in capsys.readouterr().err


@needs_no_gpu
def test_trace_prints_what_a_launch_did(environment, capsys):
    assert cli.main(["trace", "softmax", "--shape", "2x64", "--impl", "cpp", "--arch", "gfx1100"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("softmax on emulated gfx1100, launches: 1\nsoftmax_forward on a grid of ")
    assert re.search(r"^    .*: [\d,]+", out, re.MULTILINE)
    assert re.search(r"^    \S*softmax\.cu:\d+: [\d,]+ instructions", out, re.MULTILINE)


@needs_no_gpu
@pytest.mark.parametrize(
    "variables, argv, message",
    [
        ({"PORTABLE_BACKEND": "cpu"}, [], "The cpu backend counts nothing"),
        ({}, ["--arch", "gfx9"], "no vendor compiles for 'gfx9'"),
        ({}, ["--arch", "rocm"], "names a vendor; its devices are gfx90a"),
        ({}, ["--arch", "sm_90a"], "no emulated GPU"),
        ({}, ["--impl", "nothing"], "the op has"),
        ({}, ["--shape", "3,3"], "softmax takes x; 2 shapes came"),
    ],
)
def test_trace_refuses_in_one_line(environment, capsys, variables, argv, message):
    environment(**variables)
    assert cli.main(["trace", "softmax", *argv]) == 2
    captured = capsys.readouterr()
    assert message in captured.err and captured.err.count("\n") == 1 and captured.out == ""


@needs_no_gpu
def test_the_demo_runs_every_implementation_and_fails_on_a_wrong_one(environment, capsys, monkeypatch):
    environment(PORTABLE_BACKEND="rocm")
    assert demo.main(["--op", "swiglu"]) == 0
    out = capsys.readouterr().out
    assert len(re.findall(r"^swiglu .* (cpp|triton) +ok ", out, re.MULTILINE)) == 4
    assert "no timings on an emulated device" in out
    with recorded(monkeypatch):  # nothing is computed: the poison stays
        assert demo.main(["--op", "swiglu"]) == 1
    assert capsys.readouterr().err.count("Fail.nonfinite") == 4


@pytest.mark.slow
def test_import_starts_nothing(tmp_path):
    """Selecting the emulated GPU only reads files: no library, no compiler, no process."""
    code = (
        "import sys; events = []\n"
        "import torch\n"
        "watched = ('subprocess.Popen', 'ctypes.dlopen')\n"
        "sys.addaudithook(lambda event, _: events.append(event) if event in watched else None)\n"
        "import portable; seen = list(events)\n"
        "print(seen, portable.device())"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PORTABLE_BACKEND": "rocm", "PORTABLE_EMULATE": "1"},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[] emulated gfx942\n", done.stderr


def test_a_tensor_that_torch_negates_late_is_read_as_its_numbers(environment):
    """2026-11-23: beside an array of NumPy a kernel read the memory, whose numbers have the other sign."""
    environment(PORTABLE_BACKEND="rocm", PORTABLE_EMULATE="1")
    a, b = torch.randn(4, 8), torch.randn(8, 3)
    late = torch.ops.aten._neg_view(a)
    assert late.is_neg()
    torch.testing.assert_close(portable.matmul(late, b), -a @ b)
    torch.testing.assert_close(torch.from_numpy(portable.matmul(late, b.numpy())), -a @ b)
    for given, more in ((a, b), (late, b), (a.numpy(), b)):
        out = torch.ops.aten._neg_view(torch.zeros(4, 3))
        portable.matmul(a, b, out=torch.zeros(4, 3))  # the same call but for that
        with pytest.raises(errors.OutputError, match="torch negates"):
            portable.matmul(given, more, out=out)
