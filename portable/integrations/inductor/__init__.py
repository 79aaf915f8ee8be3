"""Plain torch code under torch.compile on this package's ops, with no edit of the code.

    from portable.integrations import inductor
    inductor.enable()                        # before torch.compile's first call
    model = torch.compile(model)
    print(inductor.explain(model, *inputs))  # what is replaced where, and what nearly is and why not

`enable` installs a pass of Inductor that runs on Dynamo's graph, ahead of autograd: what it finds is replaced
by an op, and the gradient is the op's own. What is compiled already stays so until torch._dynamo.reset().
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.fx import GraphModule

from portable.backend import Modelled
from portable.errors import IntegrationError
from portable.integrations.report import Enabled, Report, items, named
from portable.runtime import detect

if tuple(int(each) for each in torch.__version__.split(".")[:2]) < (2, 11):
    raise IntegrationError("inductor", f"needs torch 2.11 or newer, and {torch.__version__} is installed",
                           "Install it: pip install 'torch>=2.11'")  # fmt: skip

from torch._inductor import config

from portable.integrations.inductor.graph_pass import BY_NAME, PARTS, FusedOps

__all__ = ["BY_NAME", "PARTS", "Report", "disable", "enable", "explain"]

_LABELS = {
    "rope": ("rotary embedding of queries and keys", "portable.rope"),
    "rms_norm": ("RMS norms, with the addition before", "portable.rms_norm, portable.fused_add_rms_norm"),
    "linear_cross_entropy": ("cross entropy of a linear", "portable.linear_cross_entropy"),
    "gated_linear": ("act(x @ gate.T) * (x @ up.T) of one weight", "portable.gated_linear"),
    "gated_activation": ("act(gate) * up", "portable.swiglu, and silu_and_mul and the like of [gate | up]"),
    "attention": ("scaled_dot_product_attention", "portable.scaled_dot_product_attention"),
    "softmax": ("softmax", "portable.softmax"),
    "layer_norm": ("layer_norm", "portable.layer_norm"),
}


def enable(only: Sequence[str] | None = None) -> Enabled:
    """Run patterns of torch's functions in what torch.compile compiles from now on on this package's ops.

    only: the parts to replace, of PARTS. None: all but those of BY_NAME, which torch has kernels for, and
    `gated_linear` only where no gradient is wanted, as its gradient computes the products again. Another
    call begins anew. A `pre_grad_custom_pass` that is there already goes first, and the report says so.

    Answers a report of the parts; `explain` tells what becomes of a model. As a context manager, `with
    enable(): ...`, it disables at the end: what is to be compiled with it must be called within.
    Raises IntegrationError for an unknown part.
    """
    parts = _checked(only)
    disable()
    before = _passes(config.pre_grad_custom_pass)
    made = FusedOps(parts, before)
    config.pre_grad_custom_pass = made
    why = "only does not name it"
    if only is None:
        why = "torch has kernels of its own for it; enable(only=...) takes it"
    left = [(part, _LABELS[part][0], why) for part in PARTS if part not in made.parts]
    for each in before:
        name = getattr(each, "__qualname__", type(each).__qualname__)
        note = (
            "goes first"
            if made.uuid() is not None
            else "goes first, and without uuid() Inductor caches nothing"
        )
        left.append(("other", f"the pre_grad_custom_pass {name}", note))
    done = [(part, *_LABELS[part]) for part in made.parts]
    return Enabled(f"torch {torch.__version__}, Inductor", items(done), items(left), disable)


def disable() -> None:
    """Take the pass out, and put back the one that was there before. What is compiled keeps its ops."""
    installed = _passes(config.pre_grad_custom_pass)
    if not any(isinstance(each, FusedOps) for each in installed):
        return
    kept = [one for each in installed for one in (each.first if isinstance(each, FusedOps) else (each,))]
    config.pre_grad_custom_pass = kept[0] if len(kept) == 1 else kept or None


def explain(
    model: Callable[..., Any], *example_inputs: Any, only: Sequence[str] | None = None, **example_kwargs: Any
) -> Report:
    """What the pass replaces in `model(*example_inputs, **example_kwargs)`, where, and what it nearly does.

    Dynamo traces the model, which runs once, in torch. torch._dynamo.reset() is called before and after:
    what was compiled is compiled again. `only` is that of `enable`, which need not be called. Each line
    names the module's class, and the file and line of the code; and the op, or why the code is left alone.
    Code that is like no pattern is not listed.

    On an emulated GPU with a timing model the replaced forward pass runs instead, a few workgroups of each
    launch, and the report lists its kernels with their modelled times, the slowest first.
    """
    chosen = FusedOps(_checked(only))
    replaced: list[tuple[str, str, str]] = []
    left: list[tuple[str, str, str]] = []

    def backend(module: GraphModule, _: Any) -> Any:
        changed = copy.deepcopy(module)
        for each in [part for part in changed.modules() if isinstance(part, GraphModule)]:
            found = chosen.rewrite(each.graph)
            replaced.extend(found.replaced)
            left.extend(found.left)
        if not modelling:
            return module.forward
        changed.recompile()
        return changed.forward

    device = detect.main_backend()
    modelling = device.modelled_roof() is not None
    inner = getattr(model, "_orig_mod", None) or getattr(model, "_torchdynamo_orig_callable", None) or model
    torch._dynamo.reset()
    try:
        with device.model() if modelling else nullcontext([]) as launches:
            torch.compile(inner, backend=backend)(*example_inputs, **example_kwargs)
    finally:
        torch._dynamo.reset()  # of this trace nothing is kept
    return Report(
        f"torch {torch.__version__}, Inductor", items(replaced), items(left), modelled=_slowest(launches)
    )


def _slowest(launches: Sequence[Modelled]) -> tuple[str, ...]:
    """A line for each kernel, the slowest first, below what the times are."""
    kernels: dict[str, list[float]] = {}
    for each in launches:
        kernels.setdefault(each.kernel, []).append(each.seconds * 1e6)
    times = sorted(kernels.items(), key=lambda item: -sum(item[1]))
    lines = [f"{name} x {len(each)}: {sum(each):.1f} us" for name, each in times]
    return (f"modelled on {detect.device()}, {launches[0].accuracy}:", *lines) if lines else ()


def _passes(installed: Any) -> tuple[Any, ...]:
    if installed is None:
        return ()
    return tuple(installed) if isinstance(installed, (list, tuple)) else (installed,)


def _checked(only: Sequence[str] | None) -> tuple[str, ...] | None:
    if only is None:
        return None
    return named("inductor", only, PARTS)
