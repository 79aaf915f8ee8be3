"""A step of a model made ready: its inputs, and what a candidate's call computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from portable.conformance.models import functions, quantized
from portable.conformance.models.configs import DECODE, PREFILL, TRAIN, Config, Step
from portable.conformance.models.functions import Cache
from portable.conformance.models.model import Model
from portable.conformance.perf import libraries


@dataclass(frozen=True)
class Candidate:
    """Functions for the model, traced by torch.compile or not, and by this package's pass of Inductor; with a
    scheme those whose linears are quantised so, for decode steps alone; `serves` those for steps without
    gradients alone."""

    name: str
    functions: Callable[..., functions.Torch]
    compiled: bool = False
    inductor_pass: bool = False
    scheme: quantized.Scheme | None = None
    serves: bool = False

    def takes(self, step: Step) -> bool:
        if self.scheme is not None:
            return step.kind == DECODE
        return not (self.serves and step.kind == TRAIN)

    @property
    def eager(self) -> Candidate:
        """torch's eager step of the same operands: what this one's errors are held to."""
        return (
            CANDIDATES[TORCH]
            if self.scheme is None
            else Candidate(TORCH, quantized.Torch, scheme=self.scheme)
        )


TORCH = "torch"
CANDIDATES: Mapping[str, Candidate] = {
    each.name: each
    for each in (
        Candidate(TORCH, functions.Torch),
        Candidate("torch.compile", functions.Torch, compiled=True),
        Candidate("liger", functions.Liger),
        Candidate("portable", functions.Portable),
        Candidate("portable.compile", functions.Portable, compiled=True),
        Candidate("portable.inductor", functions.TorchWithPass, compiled=True, inductor_pass=True),
        Candidate("portable.batch_invariant", functions.BatchInvariant, serves=True),
        Candidate("portable.fp8", quantized.PortableFp8, scheme=quantized.Fp8Rows()),
        Candidate("portable.fp8_kv", quantized.PortableFp8Cache, scheme=quantized.Fp8Rows(cache=True)),
        Candidate("portable.int4", quantized.Portable, scheme=quantized.Int4()),
    )
}


class _FirstWithPass:
    """A call that is compiled at its first time, with the package's pass of Inductor."""

    def __init__(self, call: Callable[[], Any]):
        self._call, self._compiled = call, False

    def __call__(self) -> Any:
        if self._compiled:
            return self._call()
        with libraries.installed("portable.integrations.inductor").enable():
            result = self._call()
        self._compiled = True
        return result


class Ready:
    """One model and step on a device, with random weights, tokens and cache: the same for every candidate."""

    def __init__(self, config: Config, step: Step, device: torch.device, seed: int = 0):
        generator = torch.Generator(device).manual_seed(seed)
        self.config, self.step = config, step
        self.model = Model(config, step.tokens, generator)
        length = {TRAIN: (step.tokens + 1,), PREFILL: (step.tokens,), DECODE: ()}[step.kind]
        self.tokens = torch.randint(
            config.vocab, (step.sequences, *length), generator=generator, device=device
        )
        self.position = torch.tensor([step.tokens - 1], device=device)
        self._caches: list[Cache] = []
        if step.kind == DECODE:
            shape = (step.sequences, step.tokens, config.kv_heads, config.head_dim)

            def cached(scale: float) -> Tensor:
                drawn = torch.randn(shape, generator=generator, device=device)
                return (drawn * scale).to(torch.bfloat16)

            self._caches = [(cached(config.score_scale), cached(1.0)) for _ in range(config.layers)]

    @property
    def graphed(self) -> bool:
        """Whether the step is captured into a graph of the GPU: a decode step on one."""
        return self.step.kind == DECODE and self.tokens.is_cuda

    def call(self, candidate: Candidate) -> Callable[[], Any]:
        """The candidate's step: gradients in the parameters and the loss, or the logits."""
        made = candidate.functions(*([candidate.scheme] if candidate.scheme else []))
        forward = self._forward(self.model, made, self._caches)
        if candidate.compiled:
            forward = torch.compile(forward)
        call = functools.partial(self._step, self.model, made, forward)
        return _FirstWithPass(call) if candidate.inductor_pass else call

    def outcome(self, call: Callable[[], Any]) -> dict[str, Tensor]:
        """What the call computes, by name, in float32: the loss and every gradient, or the logits."""
        return self._named(self.model, call())

    def reference(self, scheme: quantized.Scheme | None = None) -> dict[str, Tensor]:
        """The same, all computed in float32 from the same weights, or from what their codes stand for."""
        model = deepcopy(self.model).float()
        caches: list[Cache] = [(k.float(), v.float()) for k, v in self._caches]
        chosen = functions.Reference() if scheme is None else quantized.Reference(scheme)
        forward = self._forward(model, chosen, caches)
        return self._named(model, self._step(model, chosen, forward))

    def _forward(self, model: Model, chosen: functions.Torch, caches: list[Cache]) -> Callable[[], Tensor]:
        if self.step.kind == DECODE:
            return functools.partial(model.decode, chosen, self.tokens, self.position, caches)
        forward = model.loss if self.step.kind == TRAIN else model.prefill
        return functools.partial(forward, chosen, self.tokens)

    def _step(self, model: Model, chosen: functions.Torch, forward: Callable[[], Tensor]) -> Tensor:
        if self.step.kind != TRAIN:
            with torch.no_grad(), chosen.serving(self.step.kind == DECODE):
                return forward()
        model.zero_grad(set_to_none=True)
        loss = forward()
        loss.backward()
        return loss.detach()

    def _named(self, model: Model, result: Tensor) -> dict[str, Tensor]:
        if self.step.kind != TRAIN:
            return {"logits": result.float()}
        found = {"loss": result.float()}
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            found[f"d {name}"] = parameter.grad.float()
        model.zero_grad(set_to_none=True)
        return found
