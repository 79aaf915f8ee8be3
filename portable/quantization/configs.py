"""How a linear's weight and activations are quantised: one dataclass each, by torchao's names.

A config makes the buffers of a `QuantizedLinear` of a weight (N, K), and multiplies by them. Buffers have the
names of checkpoints of vLLM and ModelOpt: `weight`, the codes; `weight_scale`; `weight_zero_point`, int4's;
`weight_permutation`, where int4's groups are not of neighbours; `weight_scale_2`, NVFP4's of the whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import portable
from portable.errors import ParameterError, listed
from portable.quantization.granularity import BLOCKS, Granularity, PerRow, PerTensor, pair

E4M3, E5M2, FNUZ = torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz
FP4 = torch.float4_e2m1fn_x2
Buffers = Mapping[str, Any]  # tensors: the `_buffers` of a module


class QuantizationConfig:
    """The base of the configs. One of your own has `quantized` and `product`."""

    @property
    def stored(self) -> QuantizationConfig:
        """What the quantised linear keeps of it: no tensors."""
        return self

    def refusal(self, weight: Tensor) -> str:
        """Why a weight cannot be quantised so, or an empty string."""
        del weight
        return ""

    def quantized(self, weight: Tensor) -> dict[str, Tensor]:
        """The buffers of a weight (N, K); `weight`, the codes, is one of them."""
        raise NotImplementedError

    def product(self, x: Tensor, buffers: Buffers, bias: Tensor | None) -> Tensor:
        """x @ weight.T + bias, (M, N), of x's dtype, of x (M, K)."""
        raise NotImplementedError

    def _check_types(self, same: tuple[torch.dtype, torch.dtype]) -> None:
        """Raises ParameterError for types of 8 bits that have no product: there is none of two e5m2."""
        of_x, of_weight = (getattr(self, name) for name in ("activation_dtype", "weight_dtype"))
        types = ((E4M3, E4M3), (E5M2, E4M3), (E4M3, E5M2), same)
        beside = [a for a, b in types if b == of_weight]
        if not beside:
            raise self._wrong("weight_dtype", listed(dict.fromkeys(b for _, b in types)))
        if of_x not in beside:
            expected = " or ".join(map(str, beside))
            raise self._wrong("activation_dtype", f"{expected} beside a weight_dtype of {of_weight}")

    def _check_group(self) -> None:
        """Raises ParameterError for a group_size that no weight in int4 has."""
        size = getattr(self, "group_size")  # noqa: B009 (of the subclasses that have one)
        if size is not None and (type(size) is not int or size < 2 or size % 2):
            raise self._wrong("group_size", "an even int from 2 on, or None for whole rows")

    def _mapping(self, field: str) -> str:
        """ "symmetric" or "asymmetric", also of a member of torchao's MappingType. Raises ParameterError."""
        given = getattr(self, field)
        mapping = str(getattr(given, "name", given)).lower()
        if mapping not in ("symmetric", "asymmetric"):
            raise self._wrong(field, "'symmetric' or 'asymmetric'")
        return mapping

    def _wrong(self, field: str, expected: str, remedy: str = "") -> ParameterError:
        name = type(self).__name__
        return ParameterError(f"quantization.{name}", field, getattr(self, field), expected, remedy)


@dataclass(frozen=True)
class Float8MMConfig:
    """use_fast_accum: matrix cores may keep 13 bits of a sum where they are faster so, as Hopper's are."""

    use_fast_accum: bool = False


@dataclass(frozen=True)
class Float8Config(QuantizationConfig):
    """What the two configs of fp8 share."""

    activation_dtype: torch.dtype = E4M3
    weight_dtype: torch.dtype = E4M3
    granularity: Any = None
    mm_config: Float8MMConfig = Float8MMConfig()

    def __post_init__(self) -> None:
        self._check_types((FNUZ, FNUZ))

    @property
    def pair(self) -> tuple[Granularity, Granularity]:
        """The granularities of activations and of weights."""
        return pair(type(self).__name__, self.granularity, PerTensor(), blocks=True)

    def quantized(self, weight: Tensor) -> dict[str, Tensor]:
        scaling = _OF_FP8[self.pair[1]][0]
        codes, scale = portable.quantize_fp8(weight, scaling, dtype=self.weight_dtype)
        return {"weight": codes, "weight_scale": scale}

    def multiplied(
        self, q: Tensor, scale: Tensor, buffers: Buffers, bias: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """The product of codes of x, of this dtype."""
        of_x, of_weight = (_OF_FP8[each][1] for each in self.pair)
        weight_scale = buffers["weight_scale"]
        return portable.scaled_mm(
            q, buffers["weight"].t(), scale, of_x, weight_scale.t() if weight_scale.dim() else weight_scale,
            of_weight, bias=bias, output_dtype=dtype, use_fast_accum=self.mm_config.use_fast_accum,
        )  # fmt: skip


_OF_FP8 = {
    PerTensor(): ("tensor", "TensorWise"),
    PerRow(): ("row", "RowWise"),
    BLOCKS[0]: ("1x128", "BlockWise1x128"),
    BLOCKS[1]: ("128x128", "BlockWise128x128"),
}
"""The scaling of quantize_fp8 and the recipe of scaled_mm."""


@dataclass(frozen=True)
class Float8DynamicActivationFloat8WeightConfig(Float8Config):
    """fp8 weights, and activations quantised to fp8 at each call: `quantize_fp8`, `scaled_mm`.

    granularity: PerTensor() (None means it, as torchao has it), PerRow(), a pair of them, of activations and
    of weights, or [PerBlock([1, 128]), PerBlock([128, 128])]. PerTensor() of activations depends on every row
    of the batch. activation_dtype, weight_dtype: float8_e4m3fn both, float8_e5m2 one of them, or
    float8_e4m3fnuz both, gfx942's own; the device never chooses. mm_config: unlike torchao's, use_fast_accum
    is off where it is not asked for. K and N are any. Raises ParameterError.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        _ = self.pair

    def product(self, x: Tensor, buffers: Buffers, bias: Tensor | None) -> Tensor:
        q, scale = portable.quantize_fp8(x, _OF_FP8[self.pair[0]][0], dtype=self.activation_dtype)
        return self.multiplied(q, scale, buffers, bias, x.dtype)


@dataclass(frozen=True)
class Int8DynamicActivationInt8WeightConfig(QuantizationConfig):
    """int8 weights, symmetric, and activations quantised to int8 at each call: `quantize_int8`,
    `int8_scaled_mm`, whose sums are exact.

    granularity: PerRow() (None means it), PerTensor(), or a pair of them, of activations and of weights.
    act_mapping_type: "symmetric", or "asymmetric", with a zero point per row of activations; torchao's
    MappingType is taken too. Raises ParameterError.
    """

    act_mapping_type: Any = "symmetric"
    granularity: Any = None

    def __post_init__(self) -> None:
        mapping = self._mapping("act_mapping_type")
        if mapping == "asymmetric" and self.pair[0] != PerRow():
            raise self._wrong("granularity", "PerRow() of activations where act_mapping_type is 'asymmetric'")
        object.__setattr__(self, "act_mapping_type", mapping)
        _ = self.pair

    @property
    def pair(self) -> tuple[Granularity, Granularity]:
        """The granularities of activations and of weights."""
        return pair(type(self).__name__, self.granularity, PerRow(), blocks=False)

    def quantized(self, weight: Tensor) -> dict[str, Tensor]:
        return int8_weight(weight, self.pair[1])

    def product(self, x: Tensor, buffers: Buffers, bias: Tensor | None) -> Tensor:
        zero_point = None
        if self.act_mapping_type == "asymmetric":
            q, scale, zero_point = portable.quantize_int8(x, symmetric=False)
        else:
            q, scale = portable.quantize_int8(x, _OF_INT8[self.pair[0]])
        return int8_product(q, scale, zero_point, buffers, bias, x.dtype)


_OF_INT8 = {PerTensor(): "tensor", PerRow(): "row"}


def int8_weight(weight: Tensor, granularity: Granularity) -> dict[str, Tensor]:
    """The buffers of a weight in int8."""
    codes, scale = portable.quantize_int8(weight, _OF_INT8[granularity])
    return {"weight": codes, "weight_scale": scale}


def int8_product(
    q: Tensor,
    scale: Tensor,
    zero_point: Tensor | None,
    buffers: Buffers,
    bias: Tensor | None,
    dtype: torch.dtype,
) -> Tensor:
    """The product of int8 codes of x, of this dtype."""
    weight_scale = buffers["weight_scale"]
    return portable.int8_scaled_mm(
        q, buffers["weight"].t(), scale, weight_scale.t() if weight_scale.dim() else weight_scale, bias,
        zero_point, output_dtype=dtype,
    )  # fmt: skip


@dataclass(frozen=True)
class Int4WeightOnlyConfig(QuantizationConfig):
    """int4 weights in groups along K, activations as they are: `quantize_int4`, `int4_mm`, which never rounds
    a weight to 16 bits.

    group_size: even, and a divisor of K; None is all of a row. symmetric: without zero points; torchao's
    default has them. Raises ParameterError.
    """

    group_size: int | None = 128
    symmetric: bool = False

    def __post_init__(self) -> None:
        self._check_group()
        if not isinstance(self.symmetric, bool):
            raise self._wrong("symmetric", "True or False")

    def refusal(self, weight: Tensor) -> str:
        if self.group_size is not None and weight.shape[1] % self.group_size:
            return f"a multiple of group_size = {self.group_size} columns"
        return _odd(weight)

    def quantized(self, weight: Tensor) -> dict[str, Tensor]:
        found = portable.quantize_int4(weight, self.group_size, symmetric=self.symmetric)
        buffers = {"weight": found.weight, "weight_scale": found.scale}
        return buffers if found.zero_point is None else buffers | {"weight_zero_point": found.zero_point}

    def product(self, x: Tensor, buffers: Buffers, bias: Tensor | None) -> Tensor:
        zero_point, order = buffers.get("weight_zero_point"), buffers.get("weight_permutation")
        if order is not None:  # of a checkpoint with GPTQ's desc_act
            x = x.index_select(-1, order)
        return portable.int4_mm(x, buffers["weight"], buffers["weight_scale"], zero_point, bias=bias)


@dataclass(frozen=True)
class Int8DynamicActivationInt4WeightConfig(QuantizationConfig):
    """int4 weights in groups along K, and activations quantised to int8 by rows at each call (W4A8):
    `quantize_int4`, `quantize_int8`, `int8_int4_mm`, whose sums within a group are exact.

    group_size: even, and a divisor of K; None is all of a row. mapping_type: "symmetric", or "asymmetric"
    with a zero point for each group of the weight; torchao's MappingType is taken too. act_mapping_type:
    "symmetric" alone, where torchao's default is asymmetric. Raises ParameterError.
    """

    group_size: int | None = 32
    mapping_type: Any = "symmetric"
    act_mapping_type: Any = "symmetric"

    def __post_init__(self) -> None:
        self._check_group()
        object.__setattr__(self, "mapping_type", self._mapping("mapping_type"))
        if self._mapping("act_mapping_type") != "symmetric":
            remedy = "Int8DynamicActivationInt8WeightConfig has zero points of activations"
            raise self._wrong("act_mapping_type", "'symmetric'", remedy)
        object.__setattr__(self, "act_mapping_type", "symmetric")

    @property
    def of_weight(self) -> Int4WeightOnlyConfig:
        """The config of the same weight alone."""
        return Int4WeightOnlyConfig(self.group_size, self.mapping_type == "symmetric")

    def refusal(self, weight: Tensor) -> str:
        return self.of_weight.refusal(weight)

    def quantized(self, weight: Tensor) -> dict[str, Tensor]:
        return self.of_weight.quantized(weight)

    def product(self, x: Tensor, buffers: Buffers, bias: Tensor | None) -> Tensor:
        q, scale = portable.quantize_int8(x)
        return portable.int8_int4_mm(
            q, buffers["weight"], scale, buffers["weight_scale"], buffers.get("weight_zero_point"), bias,
            output_dtype=x.dtype,
        )  # fmt: skip


@dataclass(frozen=True)
class MXDynamicActivationMXWeightConfig(QuantizationConfig):
    """MXFP8 or MXFP4 of weights, and of activations at each call: `quantize_mx`, `scaled_mm`. A power of two
    for each 32 along K, of the last ones where they are fewer too.

    activation_dtype, weight_dtype: float8_e4m3fn both, float8_e5m2 one of them, or float4_e2m1fn_x2 both,
    whose K must be even. scaling_mode: "rceil", "floor", "ceil" or "even"; torchao's ScaleCalculationMode is
    taken too. Raises ParameterError.
    """

    block_size: int = 32
    activation_dtype: torch.dtype = E4M3
    weight_dtype: torch.dtype = E4M3
    scaling_mode: Any = "rceil"

    def __post_init__(self) -> None:
        mode = str(getattr(self.scaling_mode, "name", self.scaling_mode)).lower()
        if self.block_size != 32:
            raise self._wrong("block_size", "32, as MX has it")
        self._check_types((FP4, FP4))
        if mode not in ("rceil", "floor", "ceil", "even"):
            raise self._wrong("scaling_mode", "'rceil', 'floor', 'ceil' or 'even'")
        object.__setattr__(self, "scaling_mode", mode)

    def refusal(self, weight: Tensor) -> str:
        return _odd(weight) if self.weight_dtype == FP4 else ""

    def quantized(self, weight: Tensor) -> dict[str, Tensor]:
        codes, scale = portable.quantize_mx(weight, dtype=self.weight_dtype, rounding=self.scaling_mode)
        return {"weight": _kept(codes), "weight_scale": scale}

    def product(self, x: Tensor, buffers: Buffers, bias: Tensor | None) -> Tensor:
        q, scale = portable.quantize_mx(x, dtype=self.activation_dtype, rounding=self.scaling_mode)
        codes, recipe = buffers["weight"].view(self.weight_dtype), "BlockWise1x32"
        return portable.scaled_mm(
            q, codes.t(), scale, recipe, buffers["weight_scale"], recipe, bias=bias, output_dtype=x.dtype
        )


@dataclass(frozen=True)
class NVFP4DynamicActivationNVFP4WeightConfig(QuantizationConfig):
    """NVFP4 of weights, and of activations at each call: `quantize_nvfp4`, `scaled_mm`. A scale in
    float8_e4m3fn for each 16 along K, and one of the whole; K must be even.

    use_dynamic_per_tensor_scale: the scale of the whole is computed, that of activations from every row of
    the batch; else it is 1, and groups beyond 6 * 448 saturate.
    """

    use_dynamic_per_tensor_scale: bool = True

    def refusal(self, weight: Tensor) -> str:
        return _odd(weight)

    def _quantize(self, x: Tensor) -> Any:
        whole = None if self.use_dynamic_per_tensor_scale else torch.ones((), device=x.device)
        return portable.quantize_nvfp4(x, global_scale=whole)

    def quantized(self, weight: Tensor) -> dict[str, Tensor]:
        codes, scale, whole = self._quantize(weight)
        return {"weight": _kept(codes), "weight_scale": scale, "weight_scale_2": whole}

    def product(self, x: Tensor, buffers: Buffers, bias: Tensor | None) -> Tensor:
        q, scale, whole = self._quantize(x)
        recipe: Sequence[str] = ["BlockWise1x16", "TensorWise"]
        return portable.scaled_mm(
            q, buffers["weight"].view(FP4).t(), [scale, whole], recipe,
            [buffers["weight_scale"], buffers["weight_scale_2"]], recipe, bias=bias, output_dtype=x.dtype,
        )  # fmt: skip


def _odd(weight: Tensor) -> str:
    return "an even number of columns: two numbers of 4 bits share a byte" if weight.shape[1] % 2 else ""


def _kept(codes: Tensor) -> Tensor:
    """Codes of 4 bits as bytes: torch copies and saves few tensors of float4_e2m1fn_x2."""
    return codes.view(torch.uint8) if codes.dtype == FP4 else codes
