"""Functions that torch has whole, and fused kernels for: one op for each, taken by name alone."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Node

import portable
from portable.integrations.inductor.reading import View, argument, number, op, tensor
from portable.integrations.inductor.rewriting import Match, NotTaken, call


def attention(node: Node, view: View) -> Match | None:
    """torch.nn.functional.scaled_dot_product_attention."""
    if op(node) != "scaled_dot_product_attention":
        return None
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    if given.pop("dropout_p", 0.0) != 0.0:
        raise NotTaken("it has dropout")
    if given.get("scale") is not None and number(given["scale"]) is None:
        raise NotTaken("its scale is no constant")
    if given.get("attn_mask") is None:
        given.pop("attn_mask", None)
    tensors = {name: each for name, each in given.items() if isinstance(each, Node)}
    if any(tensor(each) is None for each in tensors.values()):
        return None
    rest = {name: each for name, each in given.items() if name not in tensors}

    def compute(*found: Any) -> Any:
        named = dict(zip(tensors, found, strict=True))
        return call(portable.scaled_dot_product_attention, **named, **rest)

    return Match((*tensors.values(),), (node,), (node,), compute, "portable.scaled_dot_product_attention")


def softmax(node: Node, view: View) -> Match | None:
    """torch.softmax."""
    if op(node) != "softmax":
        return None
    dim = argument(node, 1, "dim")
    if not isinstance(dim, int):
        raise NotTaken("its dimension is not given")
    if node.kwargs.get("dtype") is not None or (
        len(node.args) > 2 and isinstance(node.args[-1], torch.dtype)
    ):
        raise NotTaken("it has a dtype of its own")

    def compute(x: Any) -> Any:
        return torch.ops.portable.softmax.default(x, dim)

    return Match((argument(node, 0, "input"),), (node,), (node,), compute, "portable.softmax")


def layer_norm(node: Node, view: View) -> Match | None:
    """torch.nn.functional.layer_norm over the last dimension."""
    if op(node) != "layer_norm":
        return None
    names = ("input", "normalized_shape", "weight", "bias", "eps")
    given: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
    shape, eps = given["normalized_shape"], number(given.get("eps", 1e-5))
    if not isinstance(shape, (tuple, list)) or len(shape) != 1:
        raise NotTaken(f"it normalises over {shape}, where the op has the last dimension")
    if eps is None:
        raise NotTaken("its eps is no constant")
    present = [name for name in ("weight", "bias") if given.get(name) is not None]

    def compute(x: Any, *more: Any) -> Any:
        named = dict(zip(present, more, strict=True))
        return torch.ops.portable.layer_norm.default(
            x, named.get("weight"), named.get("bias"), eps=float(eps)
        )

    inputs: tuple[Any, ...] = (given["input"], *(given[name] for name in present))
    return Match(inputs, (node,), (node,), compute, "portable.layer_norm")
