"""`quantize_`: the linears of a model, in place, by a config."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from torch import nn

from portable.errors import ArgumentError, ParameterError, ShapeError, listed, nearest
from portable.quantization import configs, static_configs
from portable.quantization.configs import QuantizationConfig
from portable.quantization.granularity import hint
from portable.quantization.linear import WIDE, ObservedLinear, QuantizedLinear
from portable.quantization.static_configs import StaticConfig

_NAME = "quantize_"
Filter = Callable[[nn.Module, str], bool]


def quantize_(model: nn.Module, config: QuantizationConfig, filter_fn: Filter | None = None) -> None:
    """Every nn.Linear of `model` becomes a `QuantizedLinear` in place, as torchao's `quantize_` has it.

    config: one of portable.quantization's, by torchao's names; torchao need not be installed.
    filter_fn(linear, its qualified name) is asked about each nn.Linear, of no subclass, and true for those to
    quantise. None: all but those whose weight another module has too, as a head tied to its embedding, which
    would take more memory, not less. A linear stays the same object, with its hooks; its weight becomes
    buffers, and its bias needs no gradient. Of a static config the step "prepare" makes them ObservedLinears,
    which see data, and "convert" those QuantizedLinears. Models on the meta device are taken too, to load a
    checkpoint of quantised weights into.

    Every linear is looked at before the first is changed. Raises ParameterError for what is no config or no
    model, and ArgumentError that names it where no linear is found, or for a weight that is computed
    (weight_norm, pruning), of another dtype, or of a shape that cannot be quantised so.
    """
    if not isinstance(config, QuantizationConfig):
        raise _no_config(config)
    if not isinstance(model, nn.Module):
        raise ParameterError(_NAME, "model", model, "an nn.Module")
    step = config.step if isinstance(config, StaticConfig) else None
    chosen = _chosen(model, filter_fn, ObservedLinear if step == "convert" else nn.Linear)
    by = dict.fromkeys(chosen, config)
    if isinstance(config, StaticConfig) and step == "convert":
        by = {name: _observed(linear, config) for name, linear in chosen.items()}
    for name, linear in chosen.items():
        _check(f"{name}.weight".lstrip("."), linear, by[name], refusable=step != "prepare")
    for name, linear in chosen.items():
        if isinstance(config, StaticConfig) and step == "prepare":
            observer = copy.deepcopy(config.observer)
            observer.name = f"{name}.input".lstrip(".")
            ObservedLinear.in_place(linear, observer)
        else:
            QuantizedLinear.in_place(linear, by[name])
    for each in model.modules():
        if isinstance(each, nn.TransformerEncoderLayer) and any(
            type(part) is not nn.Linear for part in (each.linear1, each.linear2)
        ):
            each.activation_relu_or_gelu = 0  # else it reads their weights itself in inference


def _observed(linear: nn.Linear, config: StaticConfig) -> QuantizationConfig:
    """With the scale that the linear's observer found. Raises ArgumentError where it has seen nothing."""
    observer = cast("ObservedLinear", linear).observer
    if not observer.count:
        remedy = "Run the model on data between the steps, or leave it out by filter_fn"
        raise ArgumentError(_NAME, observer.name, "of no number", 'some since step="prepare"', remedy)
    return dataclasses.replace(config, step=None, act_quant_scale=observer.scale(config.scale_dtype))


def _chosen(model: nn.Module, filter_fn: Filter | None, kind: type[nn.Linear]) -> dict[str, nn.Linear]:
    """Linears by their names. Raises ArgumentError where there is none."""
    linears = {name: each for name, each in model.named_modules() if type(each) is kind}
    if filter_fn is None and kind is nn.Linear:
        owners = Counter(id(each) for module in model.modules() for each in module._parameters.values())
        chosen = {name: each for name, each in linears.items() if owners[id(each.weight)] <= 1}
    else:
        chosen = {name: each for name, each in linears.items() if filter_fn is None or filter_fn(each, name)}
    if not chosen:
        what = "nn.Linear" if kind is nn.Linear else kind.__name__
        found = f"a {type(model).__name__} with {len(linears)} {what}, of which none was chosen"
        remedy = f"filter_fn gets each {what} and its qualified name; one with a tied weight needs it"
        raise ArgumentError(_NAME, "model", found, f"one with an {what} to quantise", remedy)
    return chosen


def _check(name: str, linear: nn.Linear, config: QuantizationConfig, refusable: bool) -> None:
    """Raises ArgumentError or ShapeError."""
    weight = linear._parameters.get("weight")
    if weight is None:
        remedy = "Undo weight_norm, pruning or the like before, or leave it out by filter_fn"
        raise ArgumentError(_NAME, name, "computed at each call", "a parameter", remedy)
    if type(weight) is not nn.Parameter:
        remedy = "Quantise the model once, and before it is sharded; or leave it out by filter_fn"
        raise ArgumentError(_NAME, name, f"a {type(weight).__name__}", "a parameter of plain numbers", remedy)
    if "forward" in vars(linear):
        remedy = "Quantise the model before, or leave it out by filter_fn"
        raise ArgumentError(_NAME, name, "read by a forward that was replaced", "nn.Linear's own", remedy)
    if weight.dtype not in WIDE:
        remedy = "Convert the model before, or leave it out by filter_fn"
        raise ArgumentError(_NAME, name, f"of {weight.dtype}", listed(WIDE), remedy)
    if refusable and (reason := config.refusal(weight)):
        raise ShapeError(_NAME, name, tuple(weight.shape), reason, "Leave it out by filter_fn")


def _no_config(given: Any) -> ArgumentError:
    ends = ("WeightConfig", "WeightOnlyConfig")
    known = [each for each in (*vars(configs), *vars(static_configs)) if each.endswith(ends)]
    expected = f"one of portable.quantization: {listed(known)}"
    if isinstance(given, type) and issubclass(given, QuantizationConfig):
        return ArgumentError(
            _NAME, "config", f"the class {given.__name__}", f"{given.__name__}(...), an object"
        )
    name = given if isinstance(given, str) else type(given).__name__
    close = hint(given) if name in known else nearest(name, known).strip()
    if name.endswith("WeightOnlyConfig") and name not in known:
        close = "No op multiplies activations of 16 bits by such a weight; Int4WeightOnlyConfig has int4_mm"
    return ParameterError(_NAME, "config", given, expected, close)
