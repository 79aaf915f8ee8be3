"""Plain torch code under torch.compile on this package's ops, with no edit of the code.

    from portable.integrations import inductor
    inductor.enable()                        # before torch.compile's first call
    model = torch.compile(model)
    print(inductor.explain(model, *inputs))  # what is replaced where, and what nearly is and why not

`enable` installs a pass of Inductor that runs on Dynamo's graph, ahead of autograd: what it finds is replaced by
an op, and the gradient is the op's own. What is compiled already stays as it is until torch._dynamo.reset().
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.fx import GraphModule

from portable.errors import IntegrationError, listed, nearest
from portable.integrations.report import Report, items

if tuple(int(each) for each in torch.__version__.split(".")[:2]) < (2, 11):
    raise IntegrationError("inductor", f"needs torch 2.11 or newer, and {torch.__version__} is installed",
                           "Install it: pip install 'torch>=2.11'")  # fmt: skip

from torch._inductor import config

from portable.integrations.inductor.graph_pass import BY_NAME, PARTS, FusedOps

__all__ = ["BY_NAME", "PARTS", "Report", "disable", "enable", "explain"]

_LABELS = {
    "rope": "rotary embedding of queries and keys: portable.rope",
    "rms_norm": "RMS norms, with the addition before: portable.rms_norm, portable.fused_add_rms_norm",
    "linear_cross_entropy": "cross entropy of a linear: portable.linear_cross_entropy",
    "gated_linear": "act(x @ gate.T) * (x @ up.T) of one weight: portable.gated_linear",
    "gated_activation": "act(gate) * up: portable.swiglu, silu_and_mul, gelu_and_mul, gelu_tanh_and_mul",
    "attention": "scaled_dot_product_attention: portable.scaled_dot_product_attention",
    "softmax": "softmax: portable.softmax",
    "layer_norm": "layer_norm: portable.layer_norm",
}


class Enabled(Report):
    """The answer of `enable`. As a context manager it disables at the end."""

    def __enter__(self) -> Enabled:
        return self

    def __exit__(self, *_: Any) -> None:
        disable()


def enable(only: Sequence[str] | None = None) -> Enabled:
    """Run patterns of torch's functions in what torch.compile compiles from now on on this package's ops.

    only: the parts to replace, of PARTS. None: all but those of BY_NAME, for which torch has fused kernels of its
    own; `gated_linear` then only where no gradient is wanted, as its gradient computes the products again. A second
    call begins anew. A `pre_grad_custom_pass` that is there already goes first, and the report says so.

    Answers a report of the parts; `explain` tells what becomes of a model. `with enable(): ...` disables at the end.
    Raises IntegrationError for an unknown part.
    """
    parts = _checked(only)
    disable()
    before = _passes(config.pre_grad_custom_pass)
    made = FusedOps(parts, before)
    config.pre_grad_custom_pass = made
    left = [(part, _LABELS[part], "torch has kernels of its own for it: enable(only=...) takes it" if only is None
             else "only does not name it") for part in PARTS if part not in made.parts]  # fmt: skip
    for each in before:
        name = getattr(each, "__qualname__", type(each).__qualname__)
        note = (
            "goes first"
            if made.uuid() is not None
            else "goes first, and without uuid() Inductor caches nothing"
        )
        left.append(("other", f"the pre_grad_custom_pass {name}", note))
    done = [(part, *_LABELS[part].split(": ")) for part in made.parts]
    return Enabled(f"torch {torch.__version__}, Inductor", items(done), items(left))


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
    """What the pass replaces in `model(*example_inputs, **example_kwargs)`, where, and what it nearly replaces.

    The model is traced by Dynamo and runs once, in torch; torch._dynamo.reset() is called before and after, so what
    was compiled is compiled again. `only` is that of `enable`, which need not be called.
    Each line names the module's class, and the file and line of the code that is replaced; for what is left alone,
    the reason. Code that is like no pattern is not listed.
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
        return module.forward

    inner = getattr(model, "_orig_mod", None) or getattr(model, "_torchdynamo_orig_callable", None) or model
    torch._dynamo.reset()
    try:
        torch.compile(inner, backend=backend)(*example_inputs, **example_kwargs)
    finally:
        torch._dynamo.reset()  # of this trace nothing is kept
    return Report(f"torch {torch.__version__}, Inductor", items(replaced), items(left))


def _passes(installed: Any) -> tuple[Any, ...]:
    if installed is None:
        return ()
    return tuple(installed) if isinstance(installed, (list, tuple)) else (installed,)


def _checked(only: Sequence[str] | None) -> tuple[str, ...] | None:
    if only is None:
        return None
    asked = (only,) if isinstance(only, str) else tuple(only)
    for part in asked:
        if part not in PARTS:
            raise IntegrationError(
                "inductor",
                f"enable: only names {part!r}, which is none of {listed(PARTS)}",
                nearest(part, PARTS).strip(),
            )
    return asked
