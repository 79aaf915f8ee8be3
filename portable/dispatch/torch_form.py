"""Calls in the form of torch's own function: `layer_norm(x, (5,), w)`, `softmax(input=x, dtype=...)`.

A spec's `torch_form` names a function of torch's arguments that returns the op's, by name. A call in the op's
own form never comes here.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch

from portable.dispatch.arguments import MISSING, Parameters
from portable.errors import SignatureError
from portable.spec import registry

if TYPE_CHECKING:
    from portable.spec.model import Spec

SHAPES = frozenset((tuple, list, torch.Size))
"""Types of torch's `normalized_shape`, which stands where the op takes a tensor."""


def is_shape(value: Any) -> bool:
    """Whether it is a `normalized_shape`, and not a list of numbers in the place of a tensor."""
    return type(value) in SHAPES and all(isinstance(size, (int, torch.SymInt)) for size in value)


def shape_slot(spec: Spec) -> str | None:
    """The input in whose place torch's form may have a shape: the second one, where it may be None."""
    second = list(spec.inputs.values())[1:2]
    return second[0].name if spec.torch_form and second and second[0].optional else None


class TorchForm:
    """The torch form of one op; `text` is its signature."""

    def __init__(self, spec: Spec):
        assert spec.torch_form is not None
        self._own = frozenset(spec.signature.parameters)
        self._function = registry.load_entry(spec.torch_form)
        self._parameters = Parameters(spec.op, inspect.signature(self._function))
        self.text = self._parameters.text

    def arguments(self, given: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any] | None:
        """The op's arguments by name for a call with torch's; None where they are not torch's either."""
        present = [value for value in given if value is not MISSING]
        if not (any(name not in self._own for name in named) or any(map(is_shape, present[1:2]))):
            return None  # nothing in it is torch's alone: the op's own words fit the mistake better
        try:
            values = self._parameters.bind(present, named)
        except SignatureError:
            return None
        return self._function(**dict(zip(self._parameters.names, values, strict=True)))
