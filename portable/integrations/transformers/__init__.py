"""Models of Hugging Face transformers on this package's ops, with no edit of the model.

    from portable.integrations import transformers as portable_transformers
    print(portable_transformers.enable(model))   # what was replaced, and what was left alone and why
    ...
    portable_transformers.disable(model)

The norms, gated MLPs and activations of the given model get another forward, on the module itself; its
attention, mask and loss are set through transformers' own interfaces (`set_attn_implementation`,
`loss_function`). The function that rotates queries and keys is one per modelling file, so every model of that
file in the process gets it. The mapping of the `kernels` package is not used: where the installed version is
not one that transformers asks for, its decorators do nothing and say nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import MethodType
from typing import Any
from weakref import WeakSet

from portable.errors import IntegrationError, listed
from portable.integrations.report import Item, Report, items, named

try:
    import transformers as host

    if tuple(map(int, host.__version__.split(".")[:2])) < (5, 4):  # masks of positions, not of q_length
        raise ImportError(f"{host.__version__} is installed")
    from transformers.loss.loss_utils import LOSS_MAPPING

    from portable.integrations.transformers import attention, loss, modules, rotary
except ImportError as error:
    raise IntegrationError(
        "transformers",
        f"needs transformers 5.4 or newer ({error})",
        "Install it: pip install 'transformers>=5.4'",
    ) from error

__all__ = ["PARTS", "Report", "disable", "enable"]

PARTS = ("attention", "rms_norm", "rotary", "mlp", "activation", "loss")
"""What `enable(only=...)` takes."""
_OF_MODULES = ("rms_norm", "mlp", "activation")
_STATE = "_portable_integration"  # in the model's __dict__, so that a copy of the model can be disabled too

_enabled: WeakSet[Any] = WeakSet()
_rotary: dict[tuple[str, str], tuple[Any, Any]] = {}  # (module, function): what was there, and what is


def enable(model: Any = None, *, only: Sequence[str] | None = None) -> Report:
    """Run a model of transformers on this package's ops; print the report to see what was replaced.

    model: a `PreTrainedModel`, in any dtype and on any device, before torch.compile. None: no model is
    touched, and attn_implementation="portable" becomes known, for `from_pretrained` and `from_config`.
    only: the parts to replace, of PARTS; all by default. A second call on a model begins anew.

    A module is told from what it computes: a copy with small weights is run once, in torch, and compared with
    the formulas of the ops. What computes anything else is left alone, and the report says so. Calls that an
    op does not take, such as a norm whose weight has another dtype than its input, run the module's own
    forward.

    Raises IntegrationError where nothing could be replaced, where a part is asked for that needs a model and
    none is given, and for an unknown part; TypeError for a model that is not of transformers.
    """
    parts = _checked(only)
    if model is None:
        return _without_model(parts, only is not None)
    if not isinstance(model, host.PreTrainedModel):
        raise TypeError(
            f"portable.integrations.transformers.enable: {type(model).__name__} is no PreTrainedModel of "
            "transformers; pass the model itself, before torch.compile or another wrapper"
        )
    disable(model)
    model.__dict__[_STATE] = state = {"modules": [], "attention": None, "rotary": set()}
    _enabled.add(model)
    replaced: list[tuple[str, str, str]] = []
    left: list[tuple[str, str, str]] = []
    if "attention" in parts:
        _enable_attention(model, state, replaced, left)
    if "rotary" in parts:
        _enable_rotary(model, state, replaced, left)
    _enable_modules(model, parts, state, replaced, left)
    if "loss" in parts:
        _enable_loss(model, replaced, left)
    report = Report(_host(), items(replaced), items(left))
    if not replaced:
        disable(model)
        raise IntegrationError(
            "transformers",
            f"nothing of {type(model).__name__} was replaced: {'; '.join(str(item) for item in report.left)}",
            "Leave the model as it is",
        )
    return report


def disable(model: Any = None) -> None:
    """Put back what `enable` replaced: in `model`, or with None in every model, and what transformers knows.

    A model that was not enabled is left as it is."""
    for each in [*_enabled] if model is None else [model]:
        _disable(each)
    kept = set().union(*(each.__dict__[_STATE]["rotary"] for each in _enabled))
    for key in [key for key in _rotary if key not in kept]:
        before, ours = _rotary.pop(key)
        module = sys.modules[key[0]]
        if getattr(module, key[1]) is ours:
            setattr(module, key[1], before)
    if model is None:
        attention.unregister()


def _disable(model: Any) -> None:
    state = getattr(model, "__dict__", {}).pop(_STATE, None)
    _enabled.discard(model)
    if state is None:
        return
    for module in state["modules"]:
        module.__dict__.pop("forward", None)
    if state["attention"] is not None:
        model.set_attn_implementation(state["attention"])
    if model.__dict__.get("_loss_function") is loss.causal_lm_loss:
        del model._loss_function


def _checked(only: Sequence[str] | None) -> tuple[str, ...]:
    if only is None:
        return PARTS
    return named("transformers", only, PARTS)


def _host() -> str:
    return f"transformers {host.__version__}"


def _without_model(parts: tuple[str, ...], named: bool) -> Report:
    needing = [part for part in parts if part != "attention"]
    if named and needing:
        raise IntegrationError(
            "transformers",
            f"enable: {listed(needing)} can be replaced in a model alone, and none was given. "
            f"transformers replaces them by the `kernels` package, {_kernels()}",
            "Pass the model: enable(model)",
        )
    attention.register()
    done = Item(
        "attention", 'attn_implementation="portable"', 1, "portable.attention, for models that ask for it"
    )
    left = tuple(Item(part, "every model", 1, "needs the model: enable(model)") for part in needing)
    return Report(_host(), (done,), left)


def _kernels() -> str:
    """What becomes of the decorators of modelling files."""
    from transformers.utils import import_utils

    least, most = (getattr(import_utils, f"KERNELS_{end}_VERSION", "unknown") for end in ("MIN", "MAX"))
    wanted = f"{least} <= version < {most}"
    try:
        available = import_utils.is_kernels_available()
    except ValueError:  # 5.4 reads the version of a package that is not installed
        available = False
    if available:
        return f"whose mapping this integration does not use ({wanted} is installed)"
    return f"which is not installed in a version that it takes ({wanted}), and then its decorators do nothing"


def _enable_attention(model: Any, state: dict[str, Any], replaced: list[Any], left: list[Any]) -> None:
    name = type(model).__name__
    drops = {
        value
        for module in model.modules()
        for value in [getattr(module, "attention_dropout", None)]
        if isinstance(value, float) and value > 0
    }
    if drops:
        left.append(
            ("attention", name, f"its config has attention_dropout={drops.pop()}, and the op has none")
        )
        return
    attention.register()
    before = {"": model.config._attn_implementation}
    for key in model.config.sub_configs:
        if (each := getattr(model.config, key, None)) is not None:
            before[key] = each._attn_implementation
    try:
        model.set_attn_implementation(attention.NAME)
    except (ValueError, NotImplementedError, ImportError) as error:
        left.append(("attention", name, f"transformers refuses another attention: {error}"))
        model.set_attn_implementation(before)
        return
    if model.config._attn_implementation != attention.NAME:
        left.append(("attention", name, "it does not go through AttentionInterface"))
        return
    state["attention"] = before
    replaced.append(("attention", name, "portable.attention, attn_implementation='portable'"))


def _enable_rotary(model: Any, state: dict[str, Any], replaced: list[Any], left: list[Any]) -> None:
    for file in sorted({type(module).__module__ for module in model.modules()}):
        home = sys.modules[file]
        for name in sorted(vars(home)):
            function = vars(home)[name]
            if not name.startswith("apply_") or "rotary" not in name or not callable(function):
                continue
            what = f"{file.rpartition('.')[2]}.{name}"
            if (file, name) in _rotary and function is _rotary[file, name][1]:
                function = _rotary[file, name][0]
            ours, note = rotary.replacement(function)
            if ours is None:
                left.append(("rotary", what, note))
                continue
            if (file, name) in _rotary and vars(home)[name] is _rotary[file, name][1]:
                ours = _rotary[file, name][1]  # another model has it: what is compiled stays valid
            setattr(home, name, ours)
            _rotary[file, name] = function, ours
            state["rotary"].add((file, name))
            replaced.append(("rotary", what, f"{note}, in every model of this file"))


def _enable_modules(
    model: Any, parts: tuple[str, ...], state: dict[str, Any], replaced: list[Any], left: list[Any]
) -> None:
    within: set[int] = set()  # activations of MLPs that no longer call them
    for module in model.modules():
        name = type(module).__name__
        if id(module) in within:
            continue
        try:
            found = modules.replacement(module)
        except modules.NotReplaced as reason:
            if reason.part in parts:
                left.append((reason.part, name, str(reason)))
            continue
        if found is None:
            if module._parameters:
                left.append(("other", name, "no op of this integration"))
            continue
        if found.part not in parts:
            continue
        if "forward" in module.__dict__:
            left.append((found.part, name, "its forward was replaced already, by another"))
            continue
        if found.part == "mlp":
            within |= {id(each) for each in module.children() if not [*each.parameters()]}
        module.forward = MethodType(found.forward, module)
        state["modules"].append(module)
        replaced.append((found.part, name, found.note))


def _enable_loss(model: Any, replaced: list[Any], left: list[Any]) -> None:
    name = type(model).__name__
    if not name.endswith(("ForCausalLM", "ForConditionalGeneration")):
        left.append(("loss", name, "it has no loss of a language model"))
    elif getattr(model, "loss_function", None) is not LOSS_MAPPING["ForCausalLM"]:
        left.append(("loss", name, "its loss_function is not transformers' ForCausalLMLoss"))
    else:
        model.loss_function = loss.causal_lm_loss
        replaced.append(("loss", name, "portable.cross_entropy; the head's product is torch's"))
