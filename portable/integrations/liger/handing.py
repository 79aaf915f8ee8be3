"""An implementation for Liger's registry, that hands on the calls which an op has no equal for."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
from liger_kernel import backends
from liger_kernel.backends.dispatch import emit_fallback_warning
from torch import Tensor

from portable.errors import IntegrationError

try:
    from torch.distributed.tensor import DTensor
except ImportError:  # a build of torch without distributed
    DTensor = ()

NAME = "portable"
_dispatch: Any = backends.dispatch  # torch.compiler.disable hides its parameters


class NotTaken(Exception):
    """An op has no equal for the arguments of a call; the message says for which."""


def implementation(op: str, call: Callable[..., Any]) -> Callable[..., Any]:
    """`call`, with the arguments of Liger's op, or Liger's next implementation where it raises NotTaken."""

    def portable(*args: Any, mode: str | None = None, **kwargs: Any) -> Any:
        try:
            _hold(args, mode)
            with _without_autocast(call, args[0]):
                return call(*args, **kwargs)
        except NotTaken as reason:
            why = str(reason)
        return _hand_on(op, why, args, kwargs if mode is None else {**kwargs, "mode": mode})

    return portable


def _hold(args: tuple[Any, ...], mode: str | None) -> None:
    if mode not in (None, "default"):
        raise NotTaken(f"mode={mode!r}")
    for each in args:
        if isinstance(each, Tensor) and each.device.type not in ("cpu", "cuda"):
            raise NotTaken(f"a tensor on {each.device.type}")
        if isinstance(each, DTensor):
            raise NotTaken("a DTensor")


def _without_autocast(call: Callable[..., Any], x: Tensor) -> Any:
    """Liger's kernels take the dtypes that they get; this package's ops follow torch's list of autocast."""
    kind = x.device.type
    if getattr(call, "follows_autocast", False) or not torch.is_autocast_enabled(kind):
        return nullcontext()
    return torch.autocast(kind, enabled=False)


def _hand_on(op: str, why: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    device = next((each.device for each in args if isinstance(each, Tensor) and each.is_cuda), None)
    others = [name for name in backends.available_impls(op, device) if name != NAME]
    if not others:
        raise IntegrationError(
            "liger",
            f"{op}: no op of this package has an equal for {why}, and Liger has no implementation here",
            "Install one of Liger's own, or leave the argument out",
        )
    emit_fallback_warning(op, NAME, others[0], f"it has no equal for {why}")
    return _dispatch(op, *args, impl=others[0], **kwargs)
