"""Liger Kernel's ops on this package's: results and gradients as near to float64 as its formulas in torch,
what is handed on, and what the report says.

Liger's own kernels need a GPU, so what is handed on goes to an implementation of the tests.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import liger_kernel.functional as host
import liger_kernel.transformers  # once, ahead of the tests: the report looks at its classes
import pytest
import torch
from liger_kernel import backends
from liger_kernel.backends import (
    Capability,
    ImplNotAvailableError,
    LigerImplFallbackWarning,
    available_impls,
    register_impl,
    resolve_impl,
    set_impl,
)
from torch import Tensor
from torch.nn import functional

import portable
from portable.errors import IntegrationError
from portable.integrations import liger

pytestmark = pytest.mark.xdist_group("transformers")

bf16, f16, f32 = torch.bfloat16, torch.float16, torch.float32
liger_dispatch: Any = backends.dispatch  # torch.compiler.disable hides its parameters
_theirs: set[str] = set()


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    for name in ("LIGER_KERNEL_IMPL", "LIGER_KERNEL_BACKEND", "LIGER_KERNEL_STRICT"):
        monkeypatch.delenv(name, raising=False)
    yield
    set_impl(None)
    liger.disable()
    _theirs.clear()
    assert "portable" not in available_impls("softmax")


def drawn(*shape: int, dtype: torch.dtype = bf16, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def outcome(function: Callable[..., Any], inputs: list[Any], wanted: tuple[int, ...]) -> dict[str, Tensor]:
    """Results and the gradients of the inputs `wanted`, in float64."""
    own = [each.detach().clone() if isinstance(each, Tensor) else each for each in inputs]
    leaves = [own[i].requires_grad_() for i in wanted]
    made = function(*own)
    made = [each for each in (made if isinstance(made, tuple) else (made,)) if each is not None]
    total = sum(
        (each.double() * (1 + drawn(*each.shape, dtype=torch.float64, seed=9))).sum()
        for each in made
        if each.requires_grad
    )
    assert isinstance(total, Tensor)
    found = {f"result {i}": each.detach() for i, each in enumerate(made)}
    grads = torch.autograd.grad(total, leaves)
    return found | {f"gradient {i}": each for i, each in zip(wanted, grads, strict=True)}


def check(
    op: str, formula: Callable[..., Any], inputs: list[Any], wanted: tuple[int, ...], *draws: list[Any]
) -> None:
    """That Liger's registry computes `formula`, with its dtypes, as near to float64 as torch does: over these
    inputs and further `draws`, without which a single number is as near as chance has it."""
    assert resolve_impl(op).impl_name == "portable"
    found: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {}
    for drawn_inputs in (inputs, *draws):
        with warnings.catch_warnings():
            warnings.simplefilter("error", LigerImplFallbackWarning)
            ours = outcome(partial(liger_dispatch, op), drawn_inputs, wanted)
        theirs = outcome(formula, drawn_inputs, wanted)
        wide = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in drawn_inputs]
        exact = outcome(formula, wide, wanted)
        assert ours.keys() == theirs.keys() == exact.keys()
        for name, true in exact.items():
            assert (ours[name].dtype, ours[name].shape) == (theirs[name].dtype, theirs[name].shape), name
            found.setdefault(name, []).append((ours[name], theirs[name], true))
    for name, several in found.items():
        own, eager, true = (torch.stack(each).double() for each in zip(*several, strict=True))
        error, of_torch = ((each - true).square().mean().sqrt().item() for each in (own, eager))
        ulp = torch.finfo(several[0][0].dtype).eps * true.square().mean().sqrt().item()
        assert error <= 1.1 * of_torch + 0.5 * ulp, (name, error, of_torch, ulp)


# Liger's formulas --------------------------------------------------------------------------------------


def wider(x: Tensor) -> Tensor:
    return x.to(torch.promote_types(x.dtype, f32))


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, offset: float, casting_mode: str) -> Tensor:
    normed = wider(x) * torch.rsqrt(wider(x).square().mean(-1, keepdim=True) + eps)
    if casting_mode == "llama":
        normed = wider(normed.to(x.dtype))
    return (normed if weight is None else normed * (offset + wider(weight))).to(x.dtype)


def fused_add_rms_norm(x: Tensor, residual: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    total = x + residual
    return rms_norm(total, *rest), total


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return functional.layer_norm(wider(x), x.shape[-1:], wider(weight), wider(bias), eps).to(x.dtype)


def swiglu(a: Tensor, b: Tensor, gate_multiplier: float = 1.0, down_multiplier: float = 1.0) -> Tensor:
    return functional.silu(wider(a) * gate_multiplier).to(a.dtype) * b * down_multiplier


def geglu(a: Tensor, b: Tensor) -> Tensor:
    return functional.gelu(wider(a), approximate="tanh").to(a.dtype) * b


def rope(
    q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, _=None, dim: int = 1, half: int | None = None
) -> Any:
    if cos.dim() == 4:
        cos, sin = cos.squeeze(dim), sin.squeeze(dim)
    half = half or cos.shape[-1] // 2
    cos, sin = (wider(each[..., :half].expand(len(q), -1, -1)[:, None, : q.shape[2]]) for each in (cos, sin))

    def rotated(x: Tensor) -> Tensor:
        a, b, rest = wider(x).split((half, half, x.shape[-1] - 2 * half), -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1).to(x.dtype)

    return rotated(q), rotated(k)


def cross_entropy(
    logits: Tensor, target: Tensor, weight: Tensor | None = None, ignore_index: int = -100,
    scale: float = 0.0, smoothing: float = 0.0, reduction: str = "mean", softcap: float | None = None,
    return_z_loss: bool = False, *_: Any, dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    s, kept = wider(logits), target != ignore_index
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    weight = None if weight is None else weight.to(s.dtype)
    rows = functional.cross_entropy(
        s, target, weight, ignore_index=ignore_index, label_smoothing=smoothing, reduction="none"
    )
    z = scale * s.logsumexp(-1).square() * kept
    if reduction != "none":
        mean = reduction == "mean" and kept.any()
        count = kept.sum() if mean else 1
        rows, z = (
            rows.sum() / (weight[target[kept]].sum() if mean and weight is not None else count),
            z.sum() / count,
        )
    dtype = dtype or logits.dtype
    return (rows + z).to(dtype), z.detach().to(logits.dtype) if return_z_loss else None


def fused_linear_cross_entropy(
    x: Tensor, weight: Tensor, target: Tensor, _: None, ce_weight: Any, *rest: Any
) -> Any:
    return cross_entropy(x @ weight.T, target, ce_weight, *rest, dtype=wider(x).dtype)


# Results and gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "of_weight"), [(bf16, bf16), (f16, f32), (f32, f32)])
@pytest.mark.parametrize("mode", ["llama", "gemma"])
def test_norms(dtype, of_weight, mode):
    liger.enable()
    x, residual = drawn(3, 5, 40, dtype=dtype), drawn(3, 5, 40, dtype=dtype, seed=1)
    weight, bias = drawn(40, dtype=of_weight, seed=2), drawn(40, dtype=of_weight, seed=3)
    for offset in (0.0, 1.0):
        check("rms_norm", rms_norm, [x, weight, 1e-5, offset, mode], (0, 1))
        check("fused_add_rms_norm", fused_add_rms_norm, [x, residual, weight, 1e-5, offset, mode], (0, 1, 2))
    check("rms_norm", rms_norm, [x[..., ::2], None, 1e-5, 0.0, mode], (0,))
    check("layer_norm", layer_norm, [x, weight, bias, 1e-5], (0, 1, 2))


def test_a_casting_mode_is_where_it_rounds():
    liger.enable()
    x, weight = drawn(64, 512), drawn(512, seed=1)
    ours = {
        mode: host.rms_norm(x, weight, 1e-6, offset=1.0, casting_mode=mode) for mode in ("llama", "gemma")
    }
    for mode, found in ours.items():
        assert (found == rms_norm(x, weight, 1e-6, 1.0, mode)).float().mean() > 0.999
    assert (ours["llama"] == ours["gemma"]).float().mean() < 0.9
    wide = host.rms_norm(x.float(), weight.float(), 1e-6, casting_mode="none")
    assert torch.equal(wide, host.rms_norm(x.float(), weight.float(), 1e-6, casting_mode="gemma"))


@pytest.mark.parametrize("dtype", [bf16, f16, f32])
def test_softmax_and_gated_activations(dtype):
    liger.enable(only=["softmax", "swiglu", "geglu"])
    a, b = drawn(3, 5, 40, dtype=dtype), drawn(3, 5, 40, dtype=dtype, seed=1)
    check("softmax", lambda x: wider(x).softmax(-1).to(x.dtype), [a], (0,))
    check("swiglu", swiglu, [a, b], (0, 1))
    check("swiglu", swiglu, [a, b, 1.0, 0.7], (0, 1))
    check("geglu", geglu, [a, b], (0, 1))


@pytest.mark.parametrize(("dtype", "of_tables"), [(bf16, bf16), (bf16, f32), (f32, f32)])
@pytest.mark.parametrize("batch", [1, 2])
def test_rope(dtype, of_tables, batch):
    """Tables of each sequence or of all, for some columns, in 2 to 4 dimensions, and of one half alone."""
    liger.enable(only="rope")
    q, k = drawn(2, 5, 4, 16, dtype=dtype).transpose(1, 2), drawn(2, 2, 5, 16, dtype=dtype, seed=1)
    for width in (16, 8):
        angle = drawn(batch, 5, width // 2, dtype=torch.float64, seed=2)
        cos, sin = (torch.cat((each, each), -1).to(of_tables) for each in (angle.cos(), angle.sin()))
        check("rope", rope, [q, k, cos, sin], (0, 1))
        check("rope", rope, [q, k, cos[:, None], sin[:, None], None, 1], (0, 1))
        check("rope", rope, [q, k, cos[:, :, None], sin[:, :, None], None, 2], (0, 1))
        if batch == 1:
            check("rope", rope, [q, k, cos[0], sin[0]], (0, 1))
    cos, sin = cos[..., :4], sin[..., :4]
    found = liger_dispatch("rope", q, k, cos, sin, rotary_dim=8)
    expected = rope(q, k, cos, sin, half=4)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    before = q.clone()
    host.rope(q, k, cos.requires_grad_(), sin)  # gets no gradient, as in Liger
    assert torch.equal(q, before)


LOSSES = [
    (None, 0.0, 0.0, "mean", None, False),
    (None, 1e-2, 0.1, "mean", 5.0, True),
    (None, 1e-2, 0.1, "none", None, True),
    (None, 0.0, 0.0, "sum", 5.0, False),
    ("weight", 0.0, 0.1, "mean", None, False),
    ("weight", 1e-2, 0.0, "sum", None, True),
]


@pytest.mark.parametrize("dtype", [bf16, f16, f32])
@pytest.mark.parametrize(("weight", "scale", "smoothing", "reduction", "softcap", "z_loss"), LOSSES)
def test_losses(dtype, weight, scale, smoothing, reduction, softcap, z_loss):
    liger.enable()
    target = torch.randint(0, 50, (9,), generator=torch.Generator().manual_seed(3))
    target[2] = ignored = 7
    of_classes = None if weight is None else drawn(50, dtype=f32, seed=4).abs()
    rest = [ignored, scale, smoothing, reduction, softcap, z_loss]
    check("cross_entropy", cross_entropy, [drawn(9, 50, dtype=dtype), target, of_classes, *rest], (0,))
    rest = [target, None, of_classes, *rest]
    draws = [
        [drawn(9, 16, dtype=dtype, seed=seed), drawn(50, 16, dtype=dtype, seed=seed + 1) / 2, *rest]
        for seed in range(0, 16, 2)
    ]
    check("fused_linear_cross_entropy", fused_linear_cross_entropy, draws[0], (0, 1), *draws[1:])


@pytest.mark.parametrize("dtype", [f16, f32])
def test_a_mean_of_no_row_is_0(dtype):
    liger.enable()
    ignored = torch.full((3,), -100)
    check("cross_entropy", cross_entropy, [drawn(3, 8, dtype=dtype), ignored], (0,))
    x, weight = drawn(3, 4, dtype=dtype), drawn(8, 4, dtype=dtype)
    check("fused_linear_cross_entropy", fused_linear_cross_entropy, [x, weight, ignored, None, None], (0, 1))


def test_liger_s_classes_that_ask_the_registry():
    liger.enable()
    logits, target = drawn(6, 30, dtype=f32).requires_grad_(), torch.arange(6)
    loss = liger_kernel.transformers.LigerCrossEntropyLoss(label_smoothing=0.1)(logits, target)
    torch.testing.assert_close(loss, functional.cross_entropy(logits, target, label_smoothing=0.1))
    values = logits.detach().clone()
    loss.backward()
    assert torch.equal(logits, values)  # Liger's kernel writes the gradient there
    norm = liger_kernel.transformers.LigerLayerNorm(30)
    torch.testing.assert_close(
        norm(logits), functional.layer_norm(logits, (30,), norm.weight, norm.bias, 1e-6)
    )


def test_autocast_changes_nothing_but_the_product():
    liger.enable()
    with torch.autocast("cpu", bf16):
        assert host.softmax(drawn(2, 8)).dtype == bf16
        assert host.rms_norm(drawn(2, 8), drawn(8)).dtype == bf16
        x, weight = drawn(4, 8, dtype=f32), drawn(6, 8, dtype=f32)
        loss = host.fused_linear_cross_entropy(x, weight, torch.arange(4))[0]
    expected = functional.cross_entropy((x.bfloat16() @ weight.bfloat16().T).float(), torch.arange(4))
    torch.testing.assert_close(loss, expected)


TARGETS = torch.tensor([3, -100, 0, 11, 49, 7, 7])
ANGLES = drawn(1, 5, 8, dtype=torch.float64)
AGAINST_LIGER: list[tuple[str, Callable[..., Any], list[Any], tuple[int, ...]]] = [
    ("rms_norm", rms_norm, [drawn(6, 64), drawn(64), 1e-5, 1.0, "gemma"], (0, 1)),
    ("fused_add_rms_norm", fused_add_rms_norm,
     [drawn(6, 64), drawn(6, 64, seed=1), drawn(64), 1e-5, 0.0, "llama"], (0, 1, 2)),
    ("layer_norm", layer_norm, [drawn(6, 64), drawn(64), drawn(64, seed=1), 1e-5], (0, 1, 2)),
    ("softmax", lambda x: wider(x).softmax(-1).to(x.dtype), [drawn(6, 64)], (0,)),
    ("swiglu", swiglu, [drawn(6, 64), drawn(6, 64, seed=1), 1.0, 0.5], (0, 1)),
    ("geglu", geglu, [drawn(6, 64), drawn(6, 64, seed=1)], (0, 1)),
    ("rope", rope, [drawn(2, 4, 5, 16), drawn(2, 2, 5, 16, seed=1),
                    *(torch.cat((f(ANGLES),) * 2, -1).to(bf16) for f in (torch.cos, torch.sin))], (0, 1)),
    ("cross_entropy", cross_entropy, [drawn(7, 50), TARGETS, None, -100, 1e-2, 0.1, "mean", 5.0, True], (0,)),
    ("cross_entropy", cross_entropy,
     [drawn(7, 50), TARGETS, drawn(50, dtype=f32).abs(), -100, 0.0, 0.1, "mean", None, False], (0,)),
    ("fused_linear_cross_entropy", fused_linear_cross_entropy,
     [drawn(7, 16), drawn(50, 16), TARGETS, None, None, -100, 1e-2, 0.1, "sum", None, True], (0, 1)),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("op", "formula", "inputs", "wanted"), AGAINST_LIGER)
def test_against_liger_s_own_kernels_on_an_emulated_gpu(op, formula, inputs, wanted):
    """Both as machine code of gfx942: no result or gradient is further from float64 than Liger's."""
    wide = [x.double() if isinstance(x, Tensor) and x.is_floating_point() else x for x in inputs]
    exact = outcome(formula, wide, wanted)

    def called(impl: str) -> dict[str, Tensor]:
        # Liger's kernels write over what they are given: a copy, which is no leaf.
        return outcome(
            lambda *args: liger_dispatch(
                op, *(x.clone() if isinstance(x, Tensor) else x for x in args), impl=impl
            ),
            inputs,
            wanted,
        )

    liger.enable(only=op)
    with portable.emulated("gfx942"):
        assert str(portable.device()) == "emulated gfx942"
        ours, theirs = called("portable"), called("nvidia-triton")
    assert ours.keys() == theirs.keys() == exact.keys()
    for name, true in exact.items():
        assert (ours[name].dtype, ours[name].shape) == (theirs[name].dtype, theirs[name].shape), name
        error, of_liger = ((x[name].double() - true).square().mean().sqrt().item() for x in (ours, theirs))
        ulp = torch.finfo(ours[name].dtype).eps * true.double().square().mean().sqrt().item()
        assert error <= 1.1 * of_liger + 0.5 * ulp, (name, error, of_liger, ulp)


# What is handed on, and what the report says -----------------------------------------------------------


def register(op: str) -> list[tuple[Any, ...]]:
    """A second implementation of `op`, which notes its calls, until the test ends."""
    seen: list[tuple[Any, ...]] = []
    capability = Capability(predicate=lambda: op in _theirs)
    _theirs.add(op)

    @register_impl(op, impl_name="noting-test", capability=capability, preference_rank=2)
    def noting(*args: Any, **kwargs: Any) -> str:
        seen.append((args, kwargs))
        return "theirs"

    return seen


TARGET = torch.arange(3)
HANDED_ON: list[tuple[str, list[Any], dict[str, Any], str]] = [
    ("rms_norm", [drawn(3, 8), drawn(8), 1e-6, 0.0, "none"], {}, r"casting_mode='none' of torch.bfloat16"),
    ("rms_norm", [drawn(3, 8, dtype=f32), drawn(8), 1e-6], {}, "weight of torch.bfloat16 beside"),
    ("rms_norm", [drawn(3, 8), drawn(8), 1e-6], {"mode": "static_persistent"}, "mode='static_persistent'"),
    ("layer_norm", [drawn(3, 8), drawn(8), drawn(8, dtype=f32), 1e-6], {}, "bias of torch.float32"),
    ("fused_add_rms_norm", [drawn(3, 8), drawn(3, 8, dtype=f32), drawn(8), 1e-6], {}, "beside"),
    ("swiglu", [drawn(3, 8), drawn(3, 8), 0.5, 1.0], {}, "gate_multiplier=0.5"),
    ("rope", [drawn(2, 1, 3, 8, dtype=f32)] * 2 + [drawn(1, 3, 8)] * 2, {}, "cos of torch.bfloat16"),
    ("rope", [drawn(2, 1, 3, 8)] * 2 + [drawn(2, 4, 8)] * 2, {}, r"tables of \(2, 4\) for 2 sequences of 3"),
    ("rope", [drawn(2, 1, 3, 8)] * 2 + [drawn(1, 3, 8)] * 2, {"rotary_dim": 10}, "rotary_dim=10"),
    ("cross_entropy", [drawn(3, 8), TARGET, None, -100, 0.0, 0.0, "mean", None, False, True], {}, "accuracy"),
    ("cross_entropy", [drawn(3, 8), TARGET, drawn(8).abs(), -100, 0.1], {}, "weighted classes"),
    ("fused_linear_cross_entropy", [drawn(3, 4), drawn(8, 4), TARGET, drawn(8)], {}, "a bias"),
    ("fused_linear_cross_entropy",
     [drawn(3, 4), drawn(8, 4), TARGET, None, None, -100, 0.0, 0.0, "mean", None, False, None, True], {},
     "use_token_scaling"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "args", "kwargs", "why"), HANDED_ON)
def test_what_has_no_equal_is_handed_on(op, args, kwargs, why, monkeypatch):
    monkeypatch.setattr(sys.modules["liger_kernel.backends.dispatch"], "_FALLBACK_NOTIFIED", set())
    seen = register(op)
    liger.enable()
    with pytest.warns(
        LigerImplFallbackWarning, match=f"{op}.*no equal for .*{why}.*falling back to 'noting-test'"
    ):
        assert liger_dispatch(op, *args, **kwargs) == "theirs"
    ((given, options),) = seen
    assert options == kwargs and all(one is other for one, other in zip(given, args, strict=True))
    monkeypatch.setenv("LIGER_KERNEL_STRICT", "1")
    with pytest.raises(ImplNotAvailableError, match=why):
        liger_dispatch(op, *args, **kwargs)


def test_the_report():
    with liger.enable() as report:
        replaced = {item.part: item.what for item in report.replaced}
        assert set(replaced) == {*liger.PARTS} - {*liger.BY_NAME}
        assert replaced["rope"] == "functional.rope, liger_rotary_pos_emb"
        assert replaced["layer_norm"] == "functional.layer_norm, LigerLayerNorm"
        assert replaced["cross_entropy"] == "functional.cross_entropy, LigerCrossEntropyLoss"
        around = " ".join(item.what for item in report.left if "past the registry" in item.note)
        for name in (
            "LigerRMSNorm",
            "LigerSwiGLUMLP",
            "LigerFusedLinearCrossEntropyLoss",
            "liger_cross_entropy",
        ):
            assert name in around
        assert resolve_impl("geglu").impl_name != "portable"
        assert available_impls("rms_norm")[0] == "portable"
    assert "portable" not in available_impls("rms_norm")
    with pytest.raises(ImplNotAvailableError, match="portable"):
        host.rms_norm(drawn(2, 8), drawn(8), impl="portable")


@pytest.mark.parametrize("part", ["rmsnorm", "jsd"])
def test_an_unknown_part(part):
    with pytest.raises(IntegrationError, match=rf"only names '{part}', which is none of rms_norm, fused_add"):
        liger.enable(only=[part])


def test_a_pin_goes_first_and_the_report_says_so(monkeypatch):
    register("softmax")
    monkeypatch.setenv("LIGER_KERNEL_IMPL_SOFTMAX", "noting-test")
    report = liger.enable(only=["softmax", "swiglu"])
    assert [item.part for item in report.replaced] == ["swiglu"]
    assert "'noting-test' is pinned; impl='portable' asks for portable's" in str(report)
    assert host.softmax(drawn(2, 8)) == "theirs"
    torch.testing.assert_close(host.softmax(drawn(2, 8), impl="portable"), portable.softmax(drawn(2, 8)))
    set_impl("noting-test")
    with pytest.raises(IntegrationError, match=r"Liger would use none of swiglu: .*'noting-test'.*set_impl"):
        liger.enable(only="swiglu")
    assert "portable" not in available_impls("swiglu")


def test_without_liger_it_says_what_to_install(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("portable.integrations.liger")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "liger_kernel.backends", None)
    with pytest.raises(
        IntegrationError, match=r"needs liger-kernel 0.8.3 or newer.*pip install 'liger-kernel>=0.8.3'"
    ):
        import portable.integrations.liger  # noqa: F401
