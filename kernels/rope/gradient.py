"""The gradient of rope: rope_backward of the gradients that there are. Neither q nor k is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import portable


def save(inputs: Mapping[str, Any], outputs: Sequence[Any], params: Mapping[str, Any]) -> tuple[Any, ...]:
    """The angles."""
    return inputs["cos"], inputs["sin"], inputs["positions"]


def backward(
    saved: Sequence[Any], params: Mapping[str, Any], needs: Mapping[str, bool], dq: Any, dk: Any
) -> dict[str, Any]:
    """dq and dk from those of the results, which are None where a result has none."""
    given = {"q": dq if needs["q"] else None, "k": dk if needs["k"] else None}
    some = next((each for each in given.values() if each is not None), None)
    found: dict[str, Any] = dict.fromkeys(needs)
    if some is None:
        return found
    no_heads = some[:, :, :0]
    both = [no_heads if each is None else each for each in given.values()]
    made = portable.rope_backward(*both, *saved, interleaved=params["interleaved"])
    return found | {name: d for (name, each), d in zip(given.items(), made, strict=True) if each is not None}
