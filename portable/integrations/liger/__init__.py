"""This package's ops as an implementation, `portable`, of Liger Kernel's ops.

    from portable.integrations import liger
    print(liger.enable())   # what Liger's calls reach now, and what goes around its registry
    ...
    liger.disable()

Liger picks an implementation of an op at each call, from its registry (`liger_kernel.backends`): the one
that the call, the environment or `set_impl` names, else the available one of the lowest `preference_rank`.
`enable` registers one below Liger's own. Nothing of Liger is patched: classes that call its Triton kernels
themselves keep them, and the report names them.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from importlib.metadata import version
from types import FunctionType
from typing import Any

from portable.errors import IntegrationError, listed
from portable.integrations.report import Enabled, Report, items, named

try:
    import liger_kernel.functional as host
    from liger_kernel.backends import (
        Capability,
        ImplNotAvailableError,
        clear_available_cache,
        register_impl,
        resolve_impl,
    )

    from portable.integrations.liger.handing import NAME, implementation
except ImportError as error:
    raise IntegrationError(
        "liger",
        f"needs liger-kernel 0.8.3 or newer, the first with a registry ({error})",
        "Install it: pip install 'liger-kernel>=0.8.3'",
    ) from error

from portable.integrations.liger import calls, losses

__all__ = ["BY_NAME", "NAME", "PARTS", "Report", "disable", "enable"]

_CALLS = {
    "rms_norm": (calls.rms_norm, "portable.rms_norm"),
    "fused_add_rms_norm": (calls.fused_add_rms_norm, "portable.fused_add_rms_norm"),
    "layer_norm": (calls.layer_norm, "portable.layer_norm"),
    "softmax": (calls.softmax, "portable.softmax"),
    "swiglu": (calls.swiglu, "portable.swiglu"),
    "geglu": (calls.geglu, "portable.gelu_tanh and torch's product"),
    "rope": (calls.rope, "portable.rope; q and k are not overwritten"),
    "cross_entropy": (losses.cross_entropy, "portable.cross_entropy; logits are not overwritten"),
    "fused_linear_cross_entropy": (losses.fused_linear_cross_entropy, "portable.linear_cross_entropy"),
}
PARTS = tuple(_CALLS)
"""What `enable(only=...)` takes: Liger's names of its ops."""
BY_NAME = ("geglu",)
"""Parts that are replaced where `only` names them alone."""
_RANK = -1  # Liger's own have 4 to 80, and the lowest goes first
_OTHERS = ("jsd", "kl_div", "fused_linear_jsd")

# What liger_kernel.transformers.<op> has for each op.
_ENTRIES = {
    "rms_norm": "LigerRMSNorm",
    "fused_add_rms_norm": "LigerFusedAddRMSNorm",
    "layer_norm": "LigerLayerNorm",
    "softmax": "LigerSoftmax",
    "swiglu": "LigerSwiGLUMLP",
    "geglu": "LigerGEGLUMLP",
    "rope": "liger_rotary_pos_emb",
    "cross_entropy": "LigerCrossEntropyLoss",
    "fused_linear_cross_entropy": "LigerFusedLinearCrossEntropyLoss",
}

_enabled: set[str] = set()


def enable(only: Sequence[str] | None = None) -> Enabled:
    """Register this package's ops with Liger, ahead of its own implementations; print the report.

    only: the parts, of PARTS. None: all but those of BY_NAME, which take two launches where Liger has one.
    Another call begins anew. Each is available as impl="portable" too, also where another one is pinned.

    A call with arguments that the op has no equal for is handed on to Liger's next implementation, with
    Liger's `LigerImplFallbackWarning`, once, which says why; with LIGER_KERNEL_STRICT=1 it raises Liger's
    ImplNotAvailableError. As a context manager, `with enable(): ...`, it disables at the end.

    Raises IntegrationError for an unknown part, and where another implementation is pinned for every part.
    """
    parts = _checked(only)
    disable()
    _enabled.update(parts)
    for part in parts:
        call, note = _CALLS[part]
        register_impl(
            part,
            impl_name=NAME,
            capability=Capability(predicate=lambda part=part: part in _enabled),
            preference_rank=_RANK,
            notes=note,
        )(implementation(part, call))
    replaced: list[tuple[str, str, str]] = []
    left: list[tuple[str, str, str]] = []
    pins: dict[str, None] = {}
    for part in PARTS:
        asking, around = _entries(part)
        if part not in parts:
            why = "only does not name it" if only is not None else "two launches; enable(only=...) takes it"
            left.append((part, asking, why))
            continue
        pin = _pin(part)
        if pin is None:
            replaced.append((part, asking, _CALLS[part][1]))
        else:
            pins[pin] = None
            left.append((part, asking, f"{pin}; impl={NAME!r} asks for portable's"))
        if around:
            left.append((part, around, "its own kernel, past the registry"))
    left.append(("other", ", ".join(_OTHERS), "no op of this package"))
    if not replaced:
        disable()
        raise IntegrationError(
            "liger",
            f"Liger would use none of {listed(parts)}: {'; '.join(pins)}",
            "Take the pin away: liger_kernel.backends.set_impl(None), or unset LIGER_KERNEL_IMPL*",
        )
    return Enabled(f"liger-kernel {version('liger-kernel')}", items(replaced), items(left), disable)


def disable() -> None:
    """Liger's calls run its own implementations again. `impl="portable"` is Liger's ImplNotAvailableError."""
    _enabled.clear()
    clear_available_cache()


def _checked(only: Sequence[str] | None) -> tuple[str, ...]:
    if only is None:
        return tuple(part for part in PARTS if part not in BY_NAME)
    return named("liger", only, PARTS)


def _pin(part: str) -> str | None:
    """Why Liger picks another implementation where no call names one."""
    try:
        name = resolve_impl(part).impl_name
    except ImplNotAvailableError as error:
        return str(error).rstrip(".")
    return None if name == NAME else f"{name!r} is pinned"


def _entries(part: str) -> tuple[str, str]:
    """Functions and classes of Liger for an op: those that ask the registry, and those that go around it."""
    asking, around = [f"functional.{part}"], []
    for module, name in ((part, _ENTRIES[part]), ("functional", f"liger_{part}")):
        try:
            entry = getattr(importlib.import_module(f"liger_kernel.transformers.{module}"), name)
        except (ImportError, AttributeError):  # another version has none
            continue
        (asking if _asks(entry) else around).append(name)
    return ", ".join(asking), ", ".join(around)


def _asks(entry: Any) -> bool:
    """Whether a function, or a module's forward, calls `dispatch` or what is in `liger_kernel.functional`."""
    function = entry.forward if isinstance(entry, type) else entry
    if not isinstance(function, FunctionType):
        return False
    called = [function.__globals__.get(name) for name in function.__code__.co_names]
    homes = (host.__name__, host.dispatch.__module__)
    return any(isinstance(each, FunctionType) and each.__module__ in homes for each in called)
