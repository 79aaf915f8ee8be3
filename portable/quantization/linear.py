"""A linear whose weight is quantised: what `quantize_` makes of an nn.Linear."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from portable.errors import DtypeError, RankError, ShapeError, UnsupportedGradientError, listed
from portable.quantization.configs import QuantizationConfig
from portable.quantization.observer import Observer

WIDE = (torch.bfloat16, torch.float16, torch.float32)
_NAME = "quantization.QuantizedLinear"


class QuantizedLinear(nn.Module):
    """y = x @ weight.T + bias, of a weight that was quantised once; x is quantised at each call, where the
    config says so.

    x is (..., K) of bfloat16, float16 or float32, y (..., N) of x's dtype, as the bias is. Under autocast x
    and the bias are converted to its dtype. The weight's codes and scales are buffers, named in `config`;
    they move between devices and keep their dtypes under `.to(dtype)` and `.half()`. There is no gradient:
    backward raises UnsupportedGradientError. Raises DtypeError, RankError or ShapeError.
    """

    in_features: int
    out_features: int
    config: QuantizationConfig
    bias: nn.Parameter | None

    @classmethod
    def from_float(cls, linear: nn.Linear, config: QuantizationConfig) -> QuantizedLinear:
        """A new one; `linear` stays as it is, and the bias is shared."""
        made = cls.__new__(cls)
        nn.Module.__init__(made)
        made.in_features, made.out_features = linear.in_features, linear.out_features
        made.training = linear.training
        made.register_parameter("bias", linear.bias)
        made._quantize(linear.weight, config)
        return made

    @classmethod
    def in_place(
        cls, linear: nn.Linear, config: QuantizationConfig, buffers: Mapping[str, Tensor] | None = None
    ) -> None:
        """The same object becomes one, so that its hooks and all that refers to it stay; of `buffers`, the
        config's, where the weight is quantised already."""
        weight = linear.weight
        vars(linear).pop("observer", None)
        del linear.weight
        linear.__class__ = cls  # type: ignore[assignment]  # as torch's LazyLinear becomes a Linear
        made: Any = linear
        made._quantize(weight, config, buffers)

    def _quantize(
        self, weight: Tensor, config: QuantizationConfig, buffers: Mapping[str, Tensor] | None = None
    ) -> None:
        self.config = config.stored
        with torch.no_grad():
            for name, value in (buffers or config.quantized(weight.detach())).items():
                self.register_buffer(name, value)
        if self.bias is not None:
            self.bias = nn.Parameter(self.bias.detach(), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        bias, kind = self.bias, x.device.type
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            lower = torch.get_autocast_dtype(kind)
            x, bias = x.to(lower), None if bias is None else bias.to(lower)
        self._check(x, bias)
        wanted = [each for each in (x, bias) if each is not None and each.requires_grad]
        rows = x.detach().reshape(-1, self.in_features)
        y = self.config.product(rows, self._buffers, None if bias is None else bias.detach())
        y = y.reshape(*x.shape[:-1], self.out_features)
        return _WithoutGradient.apply(y, *wanted) if wanted and torch.is_grad_enabled() else y

    def _check(self, x: Tensor, bias: Tensor | None) -> None:
        """Raises RankError, ShapeError or DtypeError."""
        if x.dim() < 1:
            raise RankError(_NAME, "x", 0, "at least 1: (..., K)")
        if x.shape[-1] != self.in_features:
            raise ShapeError(_NAME, "x", tuple(x.shape), f"(..., {self.in_features})")
        if x.dtype not in WIDE:
            raise DtypeError(_NAME, "x", x.dtype, listed(WIDE))
        if bias is not None and bias.dtype != x.dtype:
            remedy = f"Convert x, or the model: model.to({x.dtype}) leaves codes and scales as they are"
            raise DtypeError(_NAME, "bias", bias.dtype, f"{x.dtype}, as x has", remedy)

    def extra_repr(self) -> str:
        sizes = f"in_features={self.in_features}, out_features={self.out_features}"
        return f"{sizes}, bias={self.bias is not None}, {self.config}"

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> QuantizedLinear:
        # Codes and scales as integers of their size: conversions of dtype leave integers alone.
        held = {name: each for name, each in self._buffers.items() if each is not None}
        for name, each in held.items():
            self._buffers[name] = each.view(_INTEGERS[each.element_size()])
        super()._apply(fn, recurse)
        for name, each in held.items():
            after = self._buffers[name]
            assert after is not None
            self._buffers[name] = after.view(each.dtype)
        return self

    def _load_from_state_dict(self, state_dict: Any, prefix: str, *args: Any) -> None:
        # copy_ would convert a weight that is not quantised to codes, and say nothing.
        for name, each in self._buffers.items():
            given = state_dict.get(prefix + name)
            if each is not None and given is not None and given.dtype != each.dtype:
                args[-1].append(
                    f"{prefix}{name} has dtype {given.dtype}, not {each.dtype}: a checkpoint that is not "
                    "quantised so is loaded before portable.quantize_"
                )
                state_dict = {key: value for key, value in state_dict.items() if key != prefix + name}
        super()._load_from_state_dict(state_dict, prefix, *args)


class ObservedLinear(nn.Linear):
    """An nn.Linear whose observer sees its inputs. Made by the step "prepare" of a static config."""

    observer: Observer

    @classmethod
    def in_place(cls, linear: nn.Linear, observer: Observer) -> None:
        """The same object becomes one."""
        linear.__class__ = cls
        vars(linear)["observer"] = observer

    def forward(self, input: Tensor) -> Tensor:
        self.observer.update(input)
        return super().forward(input)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, {self.observer}"


_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


_REFUSED = "its weight is quantised, for inference"
_INSTEAD = "Train before portable.quantize_, or call the model under torch.no_grad()"


class _WithoutGradient(torch.autograd.Function):
    """y, whose backward says that there is none, for what would have got one."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, *wanted: Tensor) -> Tensor:
        return y.view_as(y)

    @staticmethod
    def backward(ctx: Any, *_: Tensor) -> Any:
        if torch.compiler.is_compiling():  # Dynamo, which traces this, shows the text of builtin errors alone
            raise RuntimeError(f"{_NAME}: no gradient: {_REFUSED}. {_INSTEAD}.")
        raise UnsupportedGradientError(_NAME, _REFUSED, _INSTEAD)
