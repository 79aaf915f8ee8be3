"""torch.optim.AdamW over `portable.adamw`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from portable.errors import ParameterError
from portable.kernels.adamw.api import adamw

_NAME = "AdamW"
_MOMENTS = ("exp_avg", "exp_avg_sq")


class AdamW(torch.optim.Optimizer):
    """torch.optim.AdamW(params, fused=True) with the step of `portable.adamw`: on a GPU one launch for all
    tensors of one device and one combination of dtypes, and torch's that count the steps.

    Arguments, groups of parameters and state (step, exp_avg, exp_avg_sq) are torch's, and either loads the
    other's state_dict(). amsgrad and differentiable must be False; foreach, capturable and fused change
    nothing. `torch.amp.GradScaler` passes its scale and overflows, as to torch's; gradients are not written.

    state_dtype: the moments' dtype; None for that of the parameter, as torch has it. load_state_dict() keeps
    the dtype that was saved, or makes it state_dtype, where torch's makes it the parameter's.
    stochastic_rounding, seed: of `portable.adamw`; each group has random bits of its own.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float | Tensor = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        amsgrad: bool = False,
        *,
        maximize: bool = False,
        foreach: bool | None = None,
        capturable: bool = False,
        differentiable: bool = False,
        fused: bool | None = None,
        state_dtype: torch.dtype | None = None,
        stochastic_rounding: bool = False,
        seed: int = 0,
    ):
        for name, value in (("amsgrad", amsgrad), ("differentiable", differentiable)):
            if value:
                raise ParameterError(_NAME, name, value, "False", "Use torch.optim.AdamW for it")
        numbers = {
            "lr": lr,
            "betas[0]": betas[0],
            "betas[1]": betas[1],
            "eps": eps,
            "weight_decay": weight_decay,
        }
        for name, value in numbers.items():
            if isinstance(value, Tensor):
                continue  # a number on the GPU: looking at it would wait
            if not value >= 0 or (name.startswith("betas") and value >= 1):
                below = " and below 1" if name.startswith("betas") else ""
                raise ParameterError(_NAME, name, value, f"at least 0{below}")
        if state_dtype not in (None, torch.float32, torch.bfloat16, torch.float16, torch.float64):
            raise ParameterError(_NAME, "state_dtype", state_dtype, "a floating point torch.dtype or None")
        # Those that torch's groups have, as each loads the other's. `fused` keeps the steps on the device.
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "maximize": maximize,
            "amsgrad": False, "foreach": None, "capturable": False, "differentiable": False, "fused": True,
            "decoupled_weight_decay": True,
        }  # fmt: skip
        super().__init__(params, defaults)
        self.state_dtype, self.stochastic_rounding, self.seed = state_dtype, stochastic_rounding, seed
        self._step_supports_amp_scaling = True  # torch's GradScaler then sets grad_scale and found_inf

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One step; returns what `closure`, which computes the loss anew, returns."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        grad_scale, found_inf = getattr(self, "grad_scale", None), getattr(self, "found_inf", None)
        for number, group in enumerate(self.param_groups):
            params = [param for param in group["params"] if param.grad is not None]
            states = [self._state_of(param) for param in params]
            if not params:
                continue
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1)  # pyright: ignore[reportPrivateImportUsage]
            beta1, beta2 = group["betas"]
            adamw(
                params,
                [param.grad for param in params],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                steps,
                lr=group["lr"],
                beta1=float(beta1),
                beta2=float(beta2),
                eps=group["eps"],
                weight_decay=group["weight_decay"],
                maximize=group["maximize"],
                grad_scale=grad_scale,
                found_inf=found_inf,
                stochastic_rounding=self.stochastic_rounding,
                seed=self.seed + number,
            )
            if found_inf is not None:
                for step in steps:
                    step.sub_(found_inf.to(step.device).reshape(step.shape))
        return loss

    def _state_of(self, param: Tensor) -> dict[str, Any]:
        state = self.state[param]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32, device=param.device)
            for name in _MOMENTS:
                state[name] = torch.zeros_like(
                    param, dtype=self.state_dtype, memory_format=torch.preserve_format
                )
        return state

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """torch's, with moments of the saved dtype, or of `state_dtype`."""
        super().load_state_dict(state_dict)
        saved = [number for group in state_dict["param_groups"] for number in group["params"]]
        own = [param for group in self.param_groups for param in group["params"]]
        for number, param in zip(saved, own, strict=True):
            for name in _MOMENTS:
                value = state_dict["state"].get(number, {}).get(name)
                if value is not None:  # of more digits than torch's copy may have
                    kind = self.state_dtype or value.dtype
                    self.state[param][name] = value.detach().to(param.device, kind, copy=True)
        for group in self.param_groups:
            group |= {"fused": True, "foreach": None, "capturable": False}
