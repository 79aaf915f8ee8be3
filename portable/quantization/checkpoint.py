"""`load_int4_`: a checkpoint of GPTQ, AWQ, compressed-tensors, tinygemm or Marlin into a model's linears."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import portable
from portable.errors import ArgumentError, ParameterError, PortableError, listed
from portable.quantization.configs import Int4WeightOnlyConfig
from portable.quantization.linear import WIDE, QuantizedLinear

_NAME = "load_int4_"
_GPTQ = {"weight": "qweight", "scale": "scales", "zero_point": "qzeros", "g_idx": "g_idx"}
TENSORS: Mapping[str, Mapping[str, str]] = {
    "gptq": _GPTQ,
    "gptq_v2": _GPTQ,
    "awq": {"weight": "qweight", "scale": "scales", "zero_point": "qzeros"},
    "compressed-tensors": {
        "weight": "weight_packed",
        "scale": "weight_scale",
        "zero_point": "weight_zero_point",
        "g_idx": "weight_g_idx",
    },
    "tinygemm": {"weight": "weight", "scale": "scales_and_zeros"},
    "marlin": {"weight": "B", "scale": "s"},
}
"""Of each format, what `unpack_int4` takes and the names that a checkpoint has for it below a linear's."""
_BESIDE = ("weight_shape", "workspace")
"""compressed-tensors', of which the model's says the same; Marlin's scratch."""


def load_int4_(
    model: nn.Module, checkpoint: str | os.PathLike[str] | Mapping[str, Tensor], format: str | None = None
) -> None:
    """Load `checkpoint` into `model`, in place: linears whose weights it has in 4 bits become
    `QuantizedLinear`s, whose products are `int4_mm`'s; all else is loaded as it is.

    model: with nn.Linears of the checkpoint's names, as AutoModelForCausalLM.from_config makes it, in
    bfloat16, float16 or float32; the products have the dtype of what goes in. checkpoint: a folder with
    config.json and *.safetensors (the package safetensors must be installed), or tensors by name.
    format: "gptq", "gptq_v2", "awq", "compressed-tensors" (pack-quantized), "tinygemm" (weight and
    scales_and_zeros, gpt-fast's names) or "marlin" (B and s, AutoGPTQ's), as `unpack_int4` has them; None is
    what config.json says, which is never "tinygemm", and tensors by name need one. Groups whose columns are
    not neighbours (GPTQ's desc_act, compressed-tensors' actorder) are taken: a linear then sorts its input's
    columns.

    Scales of another dtype than the model's are kept in float32. Nothing is changed before all is checked,
    but for tensors that are not quantised. Raises ParameterError, ShapeError, DtypeError, or ArgumentError
    that names the tensor that is missing or that no module takes.
    """
    if not isinstance(model, nn.Module):
        raise ParameterError(_NAME, "model", model, "an nn.Module")
    tensors, said = _read(checkpoint)
    if format is None and said is not None:
        format = _format_of(said)
    if format is None or format not in TENSORS:
        raise ParameterError(_NAME, "format", format, listed(list(TENSORS)))
    made: dict[str, dict[str, Tensor]] = {}
    linears = {name: each for name, each in model.named_modules() if type(each) is nn.Linear}
    for name, linear in linears.items():
        found = tensors.get(f"{name}.{TENSORS[format]['weight']}")
        if found is not None and not found.is_floating_point():  # a plain weight has tinygemm's name
            made[name] = _buffers(name, linear, tensors, format)
    if not made:
        found = f"{len(tensors)} tensors, and {len(linears)} nn.Linears of other names"
        expected = f"one with a linear's name and .{TENSORS[format]['weight']}"
        raise ArgumentError(_NAME, "checkpoint", found, expected)
    _load_others(model, tensors, made, (*TENSORS[format].values(), *_BESIDE))
    for name, buffers in made.items():
        group = linears[name].in_features // buffers["weight_scale"].shape[1]
        config = Int4WeightOnlyConfig(group, symmetric="weight_zero_point" not in buffers)
        QuantizedLinear.in_place(linears[name], config, buffers)


def _read(checkpoint: Any) -> tuple[dict[str, Tensor], Mapping[str, Any] | None]:
    """The tensors, and what config.json says of their quantisation."""
    if isinstance(checkpoint, Mapping):
        return dict(checkpoint), None
    folder = Path(checkpoint)
    try:
        said = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("quantization_config")
    except (OSError, ValueError) as error:
        raise ArgumentError(
            _NAME, "checkpoint", str(folder), f"a folder with config.json ({error})"
        ) from None
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise PortableError("load_int4_ reads a folder by safetensors: pip install safetensors") from None
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise ArgumentError(_NAME, "checkpoint", str(folder), "a folder with *.safetensors")
    return {name: each for file in files for name, each in load_file(file).items()}, said or {}


def _format_of(said: Mapping[str, Any]) -> str:
    """The format that a quantization_config names. ParameterError for what `unpack_int4` does not take."""
    method = said.get("quant_method")

    def expect(key: str, given: Any, *known: Any) -> Any:
        if given not in known:
            expected = f"{listed(list(known))}, for quant_method {method!r}"
            raise ParameterError(_NAME, f"quantization_config.{key}", given, expected)
        return given

    if method == "gptq":
        expect("bits", said.get("bits"), 4)
        stored = "marlin" if said.get("is_marlin_format") else said.get("checkpoint_format", "gptq")
        return expect("checkpoint_format", stored, "gptq", "gptq_v2", "marlin")
    if method == "awq":
        expect("bits", said.get("bits", said.get("w_bit")), 4)
        expect("version", str(said.get("version", "gemm")).lower(), "gemm")
        return "awq"
    if method == "compressed-tensors":
        expect("format", said.get("format"), "pack-quantized")
        for group in said.get("config_groups", {}).values():
            weights = group.get("weights") or {}
            expect("num_bits", weights.get("num_bits"), 4)
        return "compressed-tensors"
    known = "'gptq', 'awq' or 'compressed-tensors'"
    raise ParameterError(_NAME, "quantization_config.quant_method", method, known)


def _buffers(name: str, linear: nn.Linear, tensors: Mapping[str, Tensor], format: str) -> dict[str, Tensor]:
    """The buffers of the linear as a QuantizedLinear. Raises what `unpack_int4` does, and ArgumentError."""
    given = {part: tensors.get(f"{name}.{own}") for part, own in TENSORS[format].items()}
    if given["scale"] is None:
        own = f"{name}.{TENSORS[format]['scale']}"
        raise ArgumentError(_NAME, own, "missing", f"beside {name}.{TENSORS[format]['weight']}")
    if linear.weight.dtype not in WIDE:
        raise ArgumentError(_NAME, f"{name}.weight", f"of {linear.weight.dtype}", listed(WIDE))
    found = portable.unpack_int4(format, **given)
    shape = (len(found.weight), 2 * found.weight.shape[1])
    if shape != tuple(linear.weight.shape):
        own = f"{name}.{TENSORS[format]['weight']}"
        raise ArgumentError(_NAME, own, f"of a weight {shape}", f"the model's, {tuple(linear.weight.shape)}")
    scale = found.scale if found.scale.dtype == linear.weight.dtype else found.scale.float()
    made = {"weight": found.weight, "weight_scale": scale}
    if found.zero_point is not None:
        made["weight_zero_point"] = found.zero_point
    if found.permutation is not None:
        made["weight_permutation"] = found.permutation.to(torch.int32)
    place = linear.weight.device
    return {each: value if place.type == "meta" else value.to(place) for each, value in made.items()}


def _load_others(
    model: nn.Module, tensors: Mapping[str, Tensor], made: Mapping[str, Any], parts: Collection[str]
) -> None:
    """What is not quantised. ArgumentError for a tensor that no module takes, and for one that is missing."""
    own = model.state_dict(keep_vars=True)  # tied ones by each of their names
    others: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        owner, _, part = name.rpartition(".")
        if owner in made and part in parts:
            continue
        if name in own:
            others[name] = tensor
            continue
        if owner in made and part == "bias" and not tensor.any():  # AutoGPTQ's, of a linear that has none
            continue
        raise ArgumentError(_NAME, name, "in the checkpoint", "a parameter or buffer of the model")
    loaded = {id(own[name]) for name in others} | {id(own[f"{name}.weight"]) for name in made}
    for name, each in own.items():
        if id(each) not in loaded:
            raise ArgumentError(_NAME, name, "missing in the checkpoint", "every parameter of the model")
    model.load_state_dict(others, strict=False, assign=any(each.is_meta for each in own.values()))
