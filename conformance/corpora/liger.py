"""Functions of `liger_kernel.transformers.functional`, forward and backward, beside float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from portable.conformance.corpora.program import LIMITS, Compared, Program, with_gradients

FLOATS = (torch.float32, torch.bfloat16)
EPS = 1e-6
TF32, TF32_PRODUCTS = 1e-2, {"fused_neighborhood_attention"}
"""Products of float32 with Triton's default precision, which is TF32 where a GPU has it (gfx942)."""


def programs() -> list[Program]:
    """One of each function and dtype; ImportError where liger_kernel is not installed."""
    from liger_kernel.transformers import functional

    found = []
    for name, (make, reference, dtypes) in FUNCTIONS.items():
        function, _, variant = name.partition("/")
        ours = getattr(functional, f"liger_{function}")
        for dtype in dtypes:
            title = f"{function}/{str(dtype).removeprefix('torch.')}" + f"/{variant}" * bool(variant)
            limit = max(LIMITS[dtype], TF32) if function in TF32_PRODUCTS else LIMITS[dtype]
            found.append(Program(title, _run(ours, reference, make, dtype, limit)))
    return found


def _run(
    ours: Callable[..., Any],
    reference: Callable[..., Any],
    make: Callable[..., Any],
    dtype: torch.dtype,
    limit: float,
) -> Callable[[], list[Compared]]:
    def run() -> list[Compared]:
        torch.manual_seed(0)
        inputs, options = make(dtype)
        fixed = inputs.pop("fixed", {})  # what has no gradient, by name
        return with_gradients(
            lambda *args: ours(*args, **fixed, **options),
            lambda *args: reference(*args, **_double(fixed), **options),
            inputs,
            limit,
        )

    return run


def _double(values: dict[str, Any]) -> dict[str, Any]:
    floats = {k: v for k, v in values.items() if isinstance(v, Tensor) and v.is_floating_point()}
    return {**values, **{name: value.double() for name, value in floats.items()}}


# Inputs: (by name, options) of a dtype -----------------------------------------------------------


def _normal(*shape: int, scale: float = 1.0) -> Callable[[torch.dtype], Tensor]:
    return lambda dtype: (torch.randn(shape) * scale).to(dtype)


def _of(options: dict[str, Any] | None = None, /, **shapes: Callable[[torch.dtype], Tensor]) -> Any:
    return lambda dtype: ({name: make(dtype) for name, make in shapes.items()}, options or {})


def _labelled(options: dict[str, Any], ignored: int, /, **shapes: Callable[[torch.dtype], Tensor]) -> Any:
    """With a label out of 129 for each of 23 rows, some of which are ignored."""

    def make(dtype: torch.dtype) -> Any:
        target = torch.randint(0, 129, (23,))
        target[:ignored] = -100
        values = {name: shape(dtype) for name, shape in shapes.items()}
        return {**values, "fixed": {"target": target}}, options

    return make


def _distributions(logarithms: bool) -> Any:
    def make(dtype: torch.dtype) -> Any:
        first, second = torch.randn(9, 300), torch.randn(9, 300)
        first = first.log_softmax(-1) if logarithms else first.softmax(-1)
        options = {"reduction": "batchmean"} if logarithms else {}
        return {"input": first.to(dtype), "fixed": {"target": second.softmax(-1).to(dtype)}}, options

    return make


def _taught(dtype: torch.dtype) -> Any:
    x, w, teacher_input, teacher_weight = (
        torch.randn(rows, 64).to(dtype) * scale for rows, scale in ((23, 1), (129, 0.1), (23, 1), (129, 0.1))
    )
    fixed = {"teacher_input": teacher_input, "teacher_weight": teacher_weight}
    return {"x": x, "w": w, "fixed": fixed}, {}


def _two_logarithms(dtype: torch.dtype) -> Any:
    first, second = torch.randn(9, 300).log_softmax(-1), torch.randn(9, 300).log_softmax(-1)
    return {"input": first.to(dtype), "fixed": {"target": second.to(dtype)}}, {}


def _angles(*shape: int) -> dict[str, Tensor]:
    angle = torch.rand(*shape) * 6
    angle = torch.cat([angle, angle], -1)
    return {"cos": angle.cos(), "sin": angle.sin()}


def _heads(fixed: dict[str, Tensor], options: dict[str, Any]) -> Any:
    def make(dtype: torch.dtype) -> Any:
        q, k = torch.randn(2, 4, 19, 64), torch.randn(2, 2, 19, 64)
        same = {name: value.to(dtype) for name, value in fixed.items()}
        return {"q": q.to(dtype), "k": k.to(dtype), "fixed": same}, options

    return make


# References, in the dtype of their inputs ---------------------------------------------------------


def _scaled(x: Tensor, eps: float = EPS) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt()


def _rms_norm(x: Tensor, w: Tensor, eps: float = EPS, offset: float = 0.0, **_: Any) -> Tensor:
    return _scaled(x, eps) * (w + offset)


def _layer_norm(x: Tensor, w: Tensor, b: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, x.shape[-1:], w, b, eps)


def _group_norm(x: Tensor, w: Tensor, b: Tensor, num_groups: int, eps: float, **_: Any) -> Tensor:
    return F.group_norm(x, num_groups, w, b, eps)


def _add_rms_norm(x: Tensor, r: Tensor, w: Tensor, eps: float, **_: Any) -> tuple[Tensor, Tensor]:
    return _scaled(x + r, eps) * w, x + r


def _modulated(x: Tensor, w: Tensor, scale: Tensor, shift: Tensor, **_: Any) -> Tensor:
    return (1 + scale[:, None]) * (_scaled(x) * w) + shift[:, None]


def _poly_norm(x: Tensor, w: Tensor, b: Tensor, **_: Any) -> Tensor:
    return w[0] * _scaled(x**3) + w[1] * _scaled(x**2) + w[2] * _scaled(x) + b


def _dyt(x: Tensor, alpha: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
    return gamma * (alpha * x).tanh() + beta


def _sparsemax(x: Tensor, dim: int) -> Tensor:
    ordered, _ = x.sort(dim, descending=True)
    count = torch.arange(1, x.shape[dim] + 1, dtype=x.dtype)
    sums = ordered.cumsum(dim) - 1
    support = (ordered * count > sums).sum(dim, keepdim=True)
    return (x - sums.gather(dim, support - 1) / support).clamp(min=0)


def _cross_entropy(x: Tensor, target: Tensor, softcap: float | None = None, **options: Any) -> Tensor:
    x = x if softcap is None else softcap * (x / softcap).tanh()
    return F.cross_entropy(x, target, **options)


def _linear_cross_entropy(x: Tensor, w: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x @ w.T, target)


def _kl_div(x: Tensor, target: Tensor, reduction: str) -> Tensor:
    return F.kl_div(x, target, reduction=reduction)


def _jsd(x: Tensor, target: Tensor) -> Tensor:
    mean = (0.5 * (x.exp() + target.exp())).log()
    halves = [F.kl_div(mean, each, reduction="batchmean", log_target=True) for each in (x, target)]
    return 0.5 * (halves[0] + halves[1])


def _linear_jsd(x: Tensor, w: Tensor, teacher_input: Tensor, teacher_weight: Tensor) -> Tensor:
    return _jsd((x @ w.T).log_softmax(-1), (teacher_input @ teacher_weight.T).log_softmax(-1))


def _tvd(x: Tensor, target: Tensor) -> Tensor:
    return 0.5 * (x - target).abs().sum() / x.numel()


def _multi_token(scores: Tensor, w: Tensor, b: Tensor, padding: int) -> Tensor:
    upper = torch.ones(scores.shape[-2:]).triu(1).bool()
    probabilities = scores.masked_fill(upper, float("-inf")).softmax(-1)
    return F.conv2d(probabilities, w, b, padding=padding).masked_fill(upper, 0)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat([-second, first], -1) * sin


def _rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    return _rotated(q, cos[:, None], sin[:, None]), _rotated(k, cos[:, None], sin[:, None])


def _mrope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, mrope_section: list[int]) -> tuple[Tensor, Tensor]:
    parts = [
        torch.cat([part[n % 3] for n, part in enumerate(each.split(2 * mrope_section, -1))], -1)
        for each in (cos, sin)
    ]
    return _rope(q, k, *parts)


def _attn_res(v: Tensor, query: Tensor, w: Tensor) -> Tensor:
    scores = ((_scaled(v) * w) * query).sum(-1, keepdim=True)
    return (scores.softmax(0) * v).sum(0)


def _mhc_pre(x: Tensor, h: Tensor) -> Tensor:
    return (h[..., None] * x).sum(-2)


def _neighbourhood(q: Tensor, k: Tensor, v: Tensor, kernel_size: int) -> Tensor:
    places = torch.arange(q.shape[-2])
    far = (places[:, None] - places).abs() > kernel_size // 2
    scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).masked_fill(far, float("-inf"))
    return scores.softmax(-1) @ v


_ROWS = {"x": _normal(7, 300), "w": _normal(300)}
_GATED = {"a": _normal(5, 300), "b": _normal(5, 300)}
_GROUPS = {"num_channels": 12, "num_groups": 3, "eps": EPS}
_F32 = (torch.float32,)
FUNCTIONS: dict[str, tuple[Any, Callable[..., Any], tuple[torch.dtype, ...]]] = {
    "rms_norm": (_of({"eps": EPS}, **_ROWS), _rms_norm, FLOATS),
    "rms_norm/gemma": (_of({"eps": EPS, "offset": 1.0, "casting_mode": "gemma"}, **_ROWS), _rms_norm, FLOATS),
    "layer_norm": (_of({"eps": EPS}, **_ROWS, b=_normal(300)), _layer_norm, FLOATS),
    "group_norm": (
        _of(_GROUPS, x=_normal(2, 12, 33), w=_normal(12), b=_normal(12)), _group_norm, FLOATS,
    ),
    "fused_add_rms_norm": (
        _of({"eps": EPS}, x=_normal(7, 300), r=_normal(7, 300), w=_normal(300)), _add_rms_norm, FLOATS,
    ),
    "modulated_rms_norm": (
        _of(x=_normal(2, 5, 300), w=_normal(300), scale=_normal(2, 300), shift=_normal(2, 300)),
        _modulated, FLOATS,
    ),
    "poly_norm": (_of(x=_normal(7, 300), w=_normal(3), b=_normal()), _poly_norm, _F32),
    "dyt": (_of(x=_normal(7, 300), alpha=_normal(1), gamma=_normal(300), beta=_normal(300)), _dyt, FLOATS),
    "softmax": (_of(x=_normal(7, 300)), lambda x: x.softmax(-1), FLOATS),
    "softmax/long": (_of(x=_normal(2, 5000)), lambda x: x.softmax(-1), FLOATS),
    "sparsemax": (_of({"dim": -1}, x=_normal(7, 300)), _sparsemax, _F32),
    "relu_squared": (_of(x=_normal(7, 300)), lambda x: x.relu().square(), FLOATS),
    "swiglu": (_of(**_GATED), lambda a, b: F.silu(a) * b, FLOATS),
    "geglu": (_of(**_GATED), lambda a, b: F.gelu(a, approximate="tanh") * b, FLOATS),
    "cross_entropy": (_labelled({}, 3, x=_normal(23, 129)), _cross_entropy, FLOATS),
    "cross_entropy/smoothed": (
        _labelled({"label_smoothing": 0.1, "softcap": 5.0, "reduction": "sum"}, 0, x=_normal(23, 129)),
        _cross_entropy, FLOATS,
    ),
    "fused_linear_cross_entropy": (
        _labelled({}, 3, x=_normal(23, 64), w=_normal(129, 64, scale=0.1)), _linear_cross_entropy, FLOATS,
    ),
    "fused_linear_jsd": (_taught, _linear_jsd, _F32),
    "kl_div": (_distributions(True), _kl_div, FLOATS),
    "jsd": (_two_logarithms, _jsd, FLOATS),
    "tvd": (_distributions(False), _tvd, FLOATS),
    "multi_token_attention": (
        _of({"padding": 1}, s=_normal(2, 2, 17, 17), w=_normal(3, 2, 3, 3), b=_normal(3)), _multi_token, _F32,
    ),
    "rope": (_heads(_angles(1, 19, 32), {}), _rope, FLOATS),
    "qwen2vl_mrope": (_heads(_angles(3, 2, 19, 32), {"mrope_section": [8, 12, 12]}), _mrope, FLOATS),
    "attn_res": (_of(v=_normal(4, 2, 5, 96), query=_normal(96), w=_normal(96)), _attn_res, FLOATS),
    "mhc_pre": (_of(x=_normal(9, 4, 128), h=_normal(9, 4)), _mhc_pre, _F32),
    "fused_neighborhood_attention": (
        _of({"kernel_size": 7}, q=_normal(1, 2, 40, 32), k=_normal(1, 2, 40, 32), v=_normal(1, 2, 40, 32)),
        _neighbourhood, _F32,
    ),
}  # fmt: skip
"""Inputs, reference and dtypes by function and, after a slash, variant."""
