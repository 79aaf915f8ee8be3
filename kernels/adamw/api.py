"""The public function over this folder's ops: AdamW's step of many tensors, in place.

Those of one device and of one combination of dtypes take one launch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from portable.dispatch import dispatcher, fast_path, pins
from portable.dispatch.arguments import check_flag, check_tensor, documented
from portable.errors import DeviceError, DtypeError, ParameterError, ShapeError
from portable.kernels.adamw import tables

_one: Any = dispatcher.op("adamw")
_many: Any = dispatcher.op("adamw_multi_tensor")
_NAME = "adamw"
_LISTS = ("grads", "exp_avgs", "exp_avg_sqs")
_HINTS = {
    "max_exp_avg_sqs": " AMSGrad is not computed.",
    "amsgrad": " AMSGrad is not computed.",
    "foreach": " There is one way to compute it.",
    "fused": " There is one way to compute it.",
    "step": " Here it is state_steps, as in torch.",
}


class _Tensors(NamedTuple):
    """What a step takes of one parameter, and its number among them."""

    param: Tensor
    grad: Tensor
    exp_avg: Tensor
    exp_avg_sq: Tensor
    step: Tensor
    number: int


@partial(documented, hints=_HINTS)
def adamw(
    params: Sequence[Tensor],
    grads: Sequence[Tensor],
    exp_avgs: Sequence[Tensor],
    exp_avg_sqs: Sequence[Tensor],
    state_steps: Sequence[Tensor] | Tensor,
    *,
    lr: float | Tensor,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    maximize: bool = False,
    grad_scale: Tensor | None = None,
    found_inf: Tensor | None = None,
    stochastic_rounding: bool = False,
    seed: int = 0,
) -> None:
    """torch's fused AdamW (torch._fused_adamw_) without AMSGrad: writes params, exp_avgs and exp_avg_sqs.

    state_steps: float32, one element each, already counted up for this step; or one for all. grads and the
    moments may have other dtypes than the parameters: float32 moments of bfloat16 parameters, bfloat16
    moments of float32 ones, float32 gradients of bfloat16 parameters and the reverse. lr: a number or a
    tensor, which no call waits for. grad_scale: what gradients are divided by; unlike torch, they are not
    written. found_inf: where it is not 0, nothing is written.

    Arithmetic is in float32 (float64 for float64), and each element of a tensor is rounded once. With
    stochastic_rounding, bfloat16 parameters and bfloat16 exp_avg_sqs go to the value above or below with
    probabilities by the distance, so that steps below half a unit in the last place count on average: by
    Philox4x32-10 of `seed`, the step, the tensor's place in the list and the element's, with the same bits on
    every vendor.

    On a GPU the tensors of one device and of one combination of dtypes take one launch. It reads a table of
    their addresses, which is made anew where one has changed. Under torch.compile each tensor has a launch.
    A CUDA graph may capture the call after one with tensors of the same sizes outside of the graph; the
    tables that it reads stay in memory for good.

    Raises errors that name the argument, and the tensor's place in its list.
    """
    check_flag(_NAME, "maximize", maximize)
    check_flag(_NAME, "stochastic_rounding", stochastic_rounding)
    several = _checked(params, (grads, exp_avgs, exp_avg_sqs), state_steps)
    settings: dict[str, Any] = {"beta1": beta1, "beta2": beta2, "eps": eps, "weight_decay": weight_decay}
    settings |= {"maximize": maximize, "stochastic_rounding": stochastic_rounding, "seed": seed}
    groups: dict[tuple[Any, ...], list[_Tensors]] = {}
    for each in several:
        kinds = each.param.dtype, each.grad.dtype, each.exp_avg.dtype, each.exp_avg_sq.dtype
        groups.setdefault((each.param.device, kinds), []).append(each)
    with torch.no_grad():
        for (device, _), group in groups.items():
            shared = {
                "lr": _number("lr", lr, device),
                "grad_scale": None if grad_scale is None else _number("grad_scale", grad_scale, device),
                "found_inf": None if found_inf is None else _number("found_inf", found_inf, device),
            }
            _step(group, shared, settings)


def _checked(params: Any, lists: Sequence[Any], state_steps: Any) -> list[_Tensors]:
    """What each parameter has, without those of no elements."""
    steps = [state_steps] * len(params) if isinstance(state_steps, Tensor) else state_steps
    for name, each in zip((*_LISTS, "state_steps"), (*lists, steps), strict=True):
        if len(each) != len(params):
            raise ParameterError(
                _NAME, name, f"a list of {len(each)}", f"{len(params)} tensors, as params has"
            )
    found = []
    for number, (param, *rest, step) in enumerate(zip(params, *lists, steps, strict=True)):
        check_tensor(_NAME, f"params[{number}]", param)
        for name, tensor in zip(_LISTS, rest, strict=True):
            place = f"{name}[{number}]"
            check_tensor(_NAME, place, tensor)
            if tensor.shape != param.shape:
                raise ShapeError(
                    _NAME, place, tuple(tensor.shape), f"{tuple(param.shape)}, as params[{number}] has"
                )
            _check_device(place, tensor, param, number)
        place = f"state_steps[{number}]"
        check_tensor(_NAME, place, step)
        _check_device(place, step, param, number)
        if step.dtype != torch.float32:
            raise DtypeError(_NAME, place, step.dtype, "float32", "Convert it, as with step.float()")
        if step.numel() != 1:
            raise ShapeError(_NAME, place, tuple(step.shape), "one element")
        if param.numel():
            found.append(_Tensors._make([param, *rest, step, number]))
    return found


def _check_device(place: str, tensor: Tensor, param: Tensor, number: int) -> None:
    if tensor.device != param.device:
        expected = f"{param.device}, where params[{number}] is"
        raise DeviceError(_NAME, place, str(tensor.device), expected, "Move it there with .to()")


def _number(name: str, value: Any, device: torch.device) -> Tensor:
    """A number or a tensor of one element as the ops take it."""
    if not isinstance(value, Tensor):
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise ParameterError(_NAME, name, value, "a number or a tensor of one element")
        if torch.compiler.is_compiling() or fast_path.is_busy():
            return torch.full((1,), float(value), device=device)
        return tables.number(float(value), device)
    if value.numel() != 1:
        raise ShapeError(_NAME, name, tuple(value.shape), "one element")
    return value.detach().to(device, torch.float32, non_blocking=True).reshape(1)


def _step(group: list[_Tensors], shared: dict[str, Any], settings: dict[str, Any]) -> None:
    """The step of tensors of one device and of one combination of dtypes."""
    if torch.compiler.is_compiling() or fast_path.is_busy() or len(group) == 1:
        for each in group:
            _step_one(each, shared, settings)
        return
    flat: list[_Tensors] = []
    for each in group:
        own = _flat(each)
        if own is None or any(type(tensor) not in fast_path.PLAIN for tensor in each[:5]):
            _step_one(each, shared, settings)
        else:
            flat.append(own)
    if len(flat) > 1 and _has_kernel(flat[0], settings["stochastic_rounding"]):
        _step_many(flat, shared, settings)
    else:
        for each in flat:
            _step_one(each, shared, settings)


def _step_one(each: _Tensors, shared: dict[str, Any], settings: dict[str, Any]) -> None:
    """The step of one tensor; through copies where its elements are no neighbours in one order."""
    own = _flat(each)
    copies = own or _like(each, [t.reshape(-1).clone() for t in each[:4]])
    _one(
        *copies[:4], copies.step.reshape(1), shared["lr"], shared["grad_scale"], shared["found_inf"],
        **settings, number=each.number,
    )  # fmt: skip
    if own is None:
        for tensor, copy in ((each.param, copies.param), (each.exp_avg, copies.exp_avg),
                             (each.exp_avg_sq, copies.exp_avg_sq)):  # fmt: skip
            tensor.copy_(copy.view(tensor.shape))


def _like(each: _Tensors, tensors: list[Tensor]) -> _Tensors:
    """The step of `each` on other tensors."""
    return _Tensors._make([*tensors, each.step, each.number])


def _flat(each: _Tensors) -> _Tensors | None:
    """Views of the tensors in the order of their memory, where that is one order for all and without gaps; a
    gradient of another order is copied into it."""
    param, grad = each.param, each.grad
    if param.is_contiguous() and all(tensor.is_contiguous() for tensor in each[1:4]):
        return _like(each, [tensor.detach().view(-1) for tensor in each[:4]])
    strides = param.stride()
    dense = torch.empty_like(param, device="meta").stride() == strides
    if not dense or each.exp_avg.stride() != strides or each.exp_avg_sq.stride() != strides:
        return None
    if grad.stride() != strides:
        grad = torch.empty_like(param, dtype=grad.dtype).copy_(grad)
    own = (param, grad, each.exp_avg, each.exp_avg_sq)
    return _like(each, [tensor.detach().as_strided((tensor.numel(),), (1,)) for tensor in own])


def _has_kernel(each: _Tensors, stochastic_rounding: bool) -> bool:
    """Whether tensors of these kinds have a kernel that reads addresses from a table. torch's own operations
    do not, and the emulated GPU knows of no memory but that of arguments."""
    kinds = tuple(tensor.dtype for tensor in each[:4])
    pinned: Any = pins.active_pins()
    return _kernel_for(each.param.device, kinds, stochastic_rounding, pinned)


@functools.lru_cache(maxsize=256)
def _kernel_for(
    device: torch.device, kinds: tuple[torch.dtype, ...], stochastic_rounding: bool, pinned: Any
) -> bool:
    own = [torch.empty(1, dtype=kind, device=device) for kind in kinds]
    numbers = [torch.empty(1, device=device) for _ in range(2)]
    table = torch.empty(1, 7, dtype=torch.int64, device=device)
    chunks = torch.empty(1, 2, dtype=torch.int32, device=device)
    found = _many.explain(*own, *numbers, table, chunks, stochastic_rounding=stochastic_rounding)
    return found.choice is not None and found.choice.plan is not None and not found.device.emulated


def _step_many(group: list[_Tensors], shared: dict[str, Any], settings: dict[str, Any]) -> None:
    """One launch. The first tensor stands for all: what the table holds is how far the others are from it."""
    device = group[0].param.device
    first = [tensor.data_ptr() for tensor in group[0][:5]]
    widths = [tensor.element_size() for tensor in group[0][:5]]
    table: list[int] = []
    for each in group:
        table.append(each.param.numel())
        for tensor, base, width in zip(each[:5], first, widths, strict=True):
            table.append((tensor.data_ptr() - base) // width)
        table.append(each.number)
    sizes = tuple(each.param.numel() for each in group)
    rows = tables.addresses(tuple(table), device).view(-1, 7)
    chunks = tables.chunks(_chunks(sizes), device).view(-1, 2)
    _many(
        *group[0][:4], group[0].step.reshape(1), shared["lr"], rows, chunks, shared["grad_scale"],
        shared["found_inf"], **settings,
    )  # fmt: skip
    written = [tensor for each in group[1:] for tensor in (each.param, each.exp_avg, each.exp_avg_sq)]
    torch.autograd.graph.increment_version([tensor for tensor in written if not tensor.is_inference()])


_chunks = functools.lru_cache(maxsize=64)(tables.chunks_of)
