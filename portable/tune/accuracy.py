"""Whether a config's outputs are what the spec says, judged on the device that ran it.

The reference is the spec's own, in float64 on the same device; where that does not fit its memory, the first
outputs computed (the default config's) take its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from portable.dispatch import select
from portable.runtime import detect
from portable.runtime.tensors import widened
from portable.spec import registry
from portable.spec.model import Entry
from portable.tune.problem import Problem

STAND_IN = 8.0
"""Bound on the length of the difference from outputs that replace the reference, in roundings of the type."""


class Judge:
    """The expected outputs of one call."""

    def __init__(self, problem: Problem, tensors: Mapping[str, Any]):
        self._problem = problem
        self._first: Sequence[Any] | None = None
        self._refs: dict[str, Any] | None = None
        self._scales: dict[str, Any] = {}
        try:
            self._refer(tensors)
        except torch.OutOfMemoryError:
            self._refs, self._scales = None, {}
            torch.get_device_module(next(iter(tensors.values())).device).empty_cache()
        self.kind = "the default's outputs" if self._refs is None else "float64"

    def _refer(self, tensors: Mapping[str, Any]) -> None:
        spec = self._problem.spec
        wide = {
            name: None if each is None else widened(each, spec.inputs[name].below is not None)
            for name, each in tensors.items()
        }
        given = {**wide, **dict(zip(spec.params, self._problem.values(), strict=True))}
        facts = {"types": self._problem.signature.types, "axes": self._problem.signature.facts}

        def called(entry: Entry) -> dict[str, Any]:
            return _named(spec, registry.call_by_name(registry.load_entry(entry), given, facts))

        self._refs = called(spec.reference.entry)
        if spec.reference.error_scale is not None:
            self._scales = called(spec.reference.error_scale)

    def wrong(self, outputs: Sequence[Any]) -> str:
        """What is wrong with the outputs and what was written in place, or an empty string."""
        if self._refs is None and self._first is None:
            self._first = [None if each is None else each.clone() for each in outputs]
        for place, (name, field) in enumerate(self._problem.spec.results.items()):
            got = outputs[place]
            if got is None or not got.numel() or (field.when and self._problem.shapes[field.when] is None):
                continue
            if not got.is_floating_point():
                expected = (self._first or outputs)[place] if self._refs is None else self._refs[name]
                if different := int((got != expected).sum()):
                    return f"{name} is wrong: {different} of {got.numel()} integers differ"
                continue
            if not bool(torch.isfinite(got.float() if got.element_size() == 1 else got).all()):
                return f"{name} holds numbers that are not finite"
            worst = self._bounded(name, got) if self._refs is not None else self._alike(place, got)
            if not worst <= 1.0:
                return f"{name} is wrong: |error| is {worst:.3g} of the bound"
        return ""

    def _bounded(self, name: str, got: Any) -> float:
        """The largest |error| as a share of the spec's bound."""
        spec, facts = self._problem.spec, self._problem.signature.facts
        assert self._refs is not None
        ref, limits = self._refs[name].broadcast_to(got.shape), spec.tolerance[name]
        acc, kind = torch.finfo(getattr(torch, self._acc())), torch.finfo(got.dtype)
        own = select.accumulation_ulp(self._problem.imp, detect.main_backend(), detect.device())
        steps = float((own or limits.accumulation_ulp).evaluate(**facts)) * acc.eps
        bound = ref.abs() * (limits.result_ulp * kind.eps + steps)
        if self._scales.get(name) is not None:
            bound += steps * self._scales[name].abs()
        bound += kind.smallest_normal * kind.eps + acc.smallest_normal
        return float(((got.to(torch.float64) - ref).abs() / bound).max())

    def _alike(self, place: int, got: Any) -> float:
        assert self._first is not None
        first = self._first[place].float()
        apart = ((got.float() - first).square().sum() / first.square().sum()).sqrt()
        return float(apart) / (STAND_IN * torch.finfo(got.dtype).eps)

    def _acc(self) -> str:
        return self._problem.signature.types["acc"]

    def same(self, one: Sequence[Any], other: Sequence[Any]) -> bool:
        """Whether two runs gave the same bits."""
        return all(
            (a is None and b is None) or torch.equal(_integers(a), _integers(b))
            for a, b in zip(one, other, strict=True)
        )

    def digest(self, outputs: Sequence[Any]) -> str:
        """A digest: equal bits, equal digests."""
        found = hashlib.sha256()
        for each in outputs:
            if each is not None and each.numel():
                bits = _integers(each).reshape(-1).to(torch.int64)
                weights = torch.arange(1, bits.numel() + 1, device=bits.device)
                mixed = (bits * 0x9E3779B1 + weights * 0x85EBCA77).bitwise_xor(bits << 21)
                found.update(f"{int(mixed.sum())} {int((mixed * (2 * weights + 1)).sum())}".encode())
        return found.hexdigest()[:16]


def _integers(tensor: Any) -> Any:
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return tensor.contiguous().view(kinds[tensor.element_size()])


def _named(spec: Any, result: Any) -> dict[str, Any]:
    if isinstance(result, Mapping):
        return dict(result)
    several = result if isinstance(result, (tuple, list)) else (result,)
    return dict(zip(spec.results, several, strict=True))
