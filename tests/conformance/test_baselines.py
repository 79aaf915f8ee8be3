"""Baselines: what is not the op is refused, and every library's adapter speaks its library's signatures.

The libraries need a GPU, so modules of the same names (`fake_libraries`) stand in for them.
"""

from __future__ import annotations

import inspect
import sys
import types
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import portable
from portable.conformance.perf import baselines, libraries
from portable.conformance.perf.libraries import LIBRARIES
from portable.spec import registry
from portable.spec.model import size_of

from . import fake_libraries as fakes

ROWS = (2, 3, 64)
PAIRS = [(name, op) for name, (_, adapters) in LIBRARIES.items() for op in sorted(adapters)]


@pytest.fixture(autouse=True)
def uncompiled(monkeypatch):
    """torch.compile gives the function back: inductor takes most of a minute for the first one."""
    monkeypatch.setattr(torch, "compile", lambda function, **options: function)


@pytest.fixture
def installed(monkeypatch):
    """All three libraries; answers their namespaces by module name."""
    made = {**fakes.liger(), **fakes.flag_gems(), **fakes.quack()}
    for name, members in made.items():
        module = types.ModuleType(name)
        module.__path__ = []
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    return {name: vars(sys.modules[name]) for name in made}


def call_of(op, dtype=torch.float32, absent=(), **params):
    """Two buffer sets of an op, its parameters and its outputs on the first set."""
    spec = registry.spec(op)
    sizes = {"M": 5, "N": ROWS[-1], "K": 7}
    sizes |= {"Z": 2, "H": 3, "G": 1, "P": 9, "C": 4, "D": 8}
    generator = torch.Generator().manual_seed(0)
    sets = []
    for _ in range(2):
        tensors = dict.fromkeys(spec.inputs)
        for name, field in spec.inputs.items():
            if name not in (*absent, "positions"):
                own = [size_of(dim, sizes) for dim in field.dims]
                shape = (*ROWS[:-1], *own) if field.leading and spec.leading == "same" else own
                tensors[name] = torch.randn(*shape, generator=generator).to(dtype)
        sets.append(tensors)
    if op == "activation_backward" or op == "linear":
        params = {"activation": "gelu", **params}
    with portable.using(**{op: "torch"}):
        outputs = getattr(portable, op)(**sets[0], **params)
    return spec, sets, params, list(outputs) if isinstance(outputs, tuple) else [outputs]


# Libraries ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "op"), PAIRS)
def test_every_adapter_computes_its_op(name, op, installed):
    spec, sets, params, outputs = call_of(op)
    found, reasons = baselines.ready(spec, sets, params, outputs)
    assert name not in reasons and len(found[name]) == 2
    if (name, op) != ("liger", "rope"):  # it rotates in place: `ready` compared the first call
        assert baselines.difference(outputs, found[name][0]()) == ""
    assert baselines.difference(outputs, found[name][1]()) != "", "bound to its own buffer set"
    assert set(found) | set(reasons) == set(baselines.NAMES)


@pytest.mark.parametrize("activation", ["relu", "gelu", "gelu_tanh", "silu"])
@pytest.mark.parametrize("op", ["linear", "activation_backward"])
def test_every_activation(op, activation, installed):
    found, reasons = baselines.ready(*call_of(op, activation=activation))
    assert "flag_gems" in found and ("quack" in found) == (op == "linear"), reasons


@pytest.mark.parametrize("library", ["flag_gems", "quack"])
def test_a_linear_without_bias_and_activation(library, installed):
    assert library in baselines.ready(*call_of("linear", absent=["bias"], activation=None))[0]


@pytest.mark.parametrize(
    ("op", "absent", "params", "library", "reason"),
    [
        ("swiglu", (), {}, "quack", "has no swiglu"),
        ("matmul", (), {}, "liger", "has no matmul"),
        ("layer_norm", ["bias"], {}, "liger", "needs bias"),
        ("rms_norm", ["weight"], {}, "flag_gems", "needs weight"),
        ("softmax", (), {"dim": 0}, "liger", "takes the last dimension only, not dim 0"),
        ("softmax_backward", (), {"dim": 1}, "quack", "takes the last dimension only, not dim 1"),
        ("matmul", (), {"precision": "tf32"}, "quack", "has no precision tf32"),
    ],
)
def test_what_a_library_does_not_do(op, absent, params, library, reason, installed):
    assert baselines.ready(*call_of(op, absent=absent, **params))[1][library] == reason


def test_a_weight_that_quack_does_not_take(installed):
    reasons = baselines.ready(*call_of("layer_norm", torch.bfloat16))[1]
    assert reasons["quack"] == "takes a float32 weight, not bfloat16"


def test_statistics_rounded_to_bfloat16_are_close_enough(installed):
    found, reasons = baselines.ready(*call_of("layer_norm_backward", torch.bfloat16))
    assert "flag_gems" in found and "liger" in found, reasons


def test_a_library_that_is_not_there_is_a_reason(monkeypatch):
    for package in ("liger_kernel", "flag_gems", "quack"):
        monkeypatch.setitem(sys.modules, package, None)
    found, reasons = baselines.ready(*call_of("softmax"))
    assert {name: reasons[name] for name in LIBRARIES} == dict.fromkeys(LIBRARIES, "not installed")
    assert set(found) == {"torch", "torch.compile"}


def test_a_library_whose_own_need_is_missing_is_a_reason(installed, monkeypatch):
    def broken(name):
        raise ModuleNotFoundError("No module named 'cutlass'", name="cutlass")

    call = call_of("softmax")
    monkeypatch.setattr(libraries.importlib, "import_module", broken)
    reasons = baselines.ready(*call)[1]
    assert reasons["quack"] == "ModuleNotFoundError: No module named 'cutlass'"


def test_a_library_that_another_version_changed_is_a_reason(installed):
    installed["quack"]["softmax"] = lambda x, dim: x
    del installed["liger_kernel.ops"]["LigerSoftmaxFunction"]
    reasons = baselines.ready(*call_of("softmax"))[1]
    assert reasons["quack"].startswith("TypeError: ") and reasons["liger"].startswith("AttributeError: ")


# What is no baseline --------------------------------------------------------------------------------


def test_something_else_is_refused(installed):
    installed["quack"]["softmax"] = lambda x: torch.log_softmax(x, -1)
    found, reasons = baselines.ready(*call_of("softmax"))
    assert "quack" not in found and reasons["quack"].startswith("computes something else: output 0 differs")


def test_what_writes_over_its_inputs_is_refused_and_the_inputs_restored(installed):
    def greedy(a, b, gate_multiplier=1.0, down_multiplier=1.0):
        y = F.silu(a) * b
        a.zero_()
        return y

    installed["liger_kernel.ops"]["LigerSiLUMulFunction"] = fakes.function_of(greedy)
    spec, sets, params, outputs = call_of("swiglu")
    before = sets[0]["gate"].clone()
    found, reasons = baselines.ready(spec, sets, params, outputs)
    assert reasons["liger"] == "writes over its input gate" and "liger" not in found
    assert torch.equal(sets[0]["gate"], before) and "flag_gems" in found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_another_order_of_roundings_is_alike(dtype):
    """Rounding every intermediate to the type is what unfused kernels do; one more bit lost is not alike."""
    generator = torch.Generator().manual_seed(1)
    gate, up = (torch.randn(64, 257, generator=generator).to(dtype) for _ in range(2))
    fused = (F.silu(gate.double()) * up.double()).to(dtype)
    assert baselines.difference([fused], F.silu(gate) * up) == ""
    coarse = {torch.bfloat16: 2.0**-4, torch.float16: 2.0**-6, torch.float32: 2.0**-11}[dtype]
    assert baselines.difference([fused], fused * (1 + coarse))


def test_tf32_is_not_float32():
    def tf32(x):
        return ((x.view(torch.int32) + 0x1000) & ~0x1FFF).view(torch.float32)

    generator = torch.Generator().manual_seed(2)
    a, b = torch.randn(64, 512, generator=generator), torch.randn(512, 64, generator=generator)
    exact = (a.double() @ b.double()).float()
    assert baselines.difference([exact], a @ b) == ""
    rounded = (tf32(a).double() @ tf32(b).double()).float()
    assert "relative error is 0.0003, the limit is 5e-05" in baselines.difference([exact], rounded)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (torch.ones(3), r"output 0 is \[3\], the op's is \[4\]"),
        (None, "output 0 is NoneType"),
        ((), "0 outputs where the op has 1"),
        (torch.full((4,), torch.nan), "relative error is nan"),
        (torch.full((4,), torch.inf), "relative error is inf"),
        (torch.zeros(4), "relative error is 1,"),
    ],
)
def test_wrong_results_are_named(result, words):
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(baselines.difference([torch.ones(4)], result))


def test_outputs_that_are_empty_or_zero():
    assert baselines.difference([torch.empty(0), torch.ones(2)], (None, torch.ones(2))) == ""
    assert baselines.difference([torch.zeros(2)], torch.zeros(2)) == ""
    assert baselines.difference([torch.zeros(2)], torch.ones(2)) != ""


# torch ----------------------------------------------------------------------------------------------


def test_torch_compile_gets_torchs_function_and_is_reset(monkeypatch):
    log = []

    def compiled(function, **options):
        log.append((function, options))
        return function

    monkeypatch.setattr(torch, "compile", compiled)
    monkeypatch.setattr(torch.compiler, "reset", lambda: log.append("reset"))
    found, _ = baselines.ready(*call_of("softmax"))
    spec = registry.spec("softmax")
    assert log == ["reset", (baselines.torch_function(spec), {"fullgraph": False, "dynamic": False})]
    assert len(found["torch.compile"]) == 2


def test_a_compiler_that_fails_is_a_reason(monkeypatch):
    def compiled(function, **options):
        raise RuntimeError("InductorError: no compiler found\nstack")

    monkeypatch.setattr(torch, "compile", compiled)
    found, reasons = baselines.ready(*call_of("softmax"))
    assert reasons["torch.compile"] == "RuntimeError: InductorError: no compiler found" and "torch" in found


def test_torchs_own_of_a_spec_without_a_baseline_is_its_torch_implementation():
    spec = registry.spec("swiglu")
    without = replace(spec, cost=replace(spec.cost, baseline=None))
    assert baselines.torch_function(without).__module__ != baselines.torch_function(spec).__module__
    assert "torch" in baselines.ready(without, *call_of("swiglu")[1:])[0]


def test_statistics_are_given_where_they_are_asked_for(monkeypatch):
    """To the fused backward passes of the norms, as training would have kept them from the forward pass."""

    def layer_norm_backward(dy, x, weight=None, bias=None, *, eps=1e-5, mean, rstd):
        assert mean.shape == rstd.shape == (*x.shape[:-1], 1) and mean.dtype == torch.float32
        return torch.ops.aten.native_layer_norm_backward(
            dy, x, x.shape[-1:], mean, rstd, weight, bias, [True, True, True]
        )

    def rms_norm_backward(dy, x, weight=None, *, eps=1e-6, rstd, **_):
        rstd = rstd.squeeze(-1)
        return fakes.norm_grads(dy, x, weight, torch.zeros_like(rstd), rstd, False)[:2]

    for function in (layer_norm_backward, rms_norm_backward):
        monkeypatch.setattr(baselines, "torch_function", lambda spec, function=function: function)
        found, reasons = baselines.ready(*call_of(function.__name__, eps=0.1))
        assert "torch" in found and "torch.compile" in found, reasons


@pytest.mark.parametrize("op", ["layer_norm_backward", "rms_norm_backward"])
def test_the_norms_own_baselines_ask_for_their_statistics(op):
    asked = set(inspect.signature(baselines.torch_function(registry.spec(op))).parameters)
    assert "rstd" in asked and ("mean" in asked) == (op == "layer_norm_backward")


def test_an_exception_is_one_short_line_without_this_machines_folders():
    assert baselines.explained(AssertionError()) == "AssertionError"
    assert baselines.explained(ValueError("\nfirst\nsecond")) == "ValueError: first"
    assert baselines.explained(ValueError("x" * 1000)) == "ValueError: " + "x" * 240 + " ..."
    message = baselines.explained(
        OSError("'/home/someone/.cache/lib.so': bytes/s, cuda/rocm, see /tmp/a/b.log")
    )
    assert message == "OSError: 'lib.so': bytes/s, cuda/rocm, see b.log"
