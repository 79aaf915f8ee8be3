"""Every element type, once: its size and precision, and its name in torch, C++, Triton and TMA descriptors.

    dtypes.of("bfloat16").itemsize            2
    dtypes.of(tensor.dtype).triton            "bf16"
    dtypes.of("float8_e4m3fn").torch          torch.float8_e4m3fn

Importing this module imports nothing heavy; `torch` is looked up at its first use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    import torch

Kind = Literal["float", "int", "bool", "packed"]


@dataclass(frozen=True, slots=True)
class DType:
    """One element type.

    `bits` are those of one element; a packed type has several elements in the byte that torch counts as one
    (`per_item`). `mantissa` are the stored fraction bits and `exponent` the exponent bits of a floating point
    element, 0 for an integer. `c` is the type's name in the preludes (backends/*/prelude.h), or the name of
    its storage where they have no such type; `short` is a plan's name of a scalar of it, `triton` its name in
    a Triton signature, `tma` its CUtensorMapDataType, `struct` its format character.
    """

    name: str
    kind: Kind
    bits: int
    short: str
    c: str
    triton: str
    tma: str | None = None
    struct: str | None = None
    mantissa: int = 0
    exponent: int = 0
    signed: bool = True
    has_infinity: bool = False
    has_nan: bool = False
    per_item: int = 1
    in_torch: bool = True

    @property
    def itemsize(self) -> int:
        """Bytes of one torch element: of `per_item` packed ones."""
        return self.bits * self.per_item // 8

    @property
    def eps(self) -> float:
        """The step from 1 to the next number; torch.finfo gives half of it for float8_e5m2fnuz (2.13)."""
        return 2.0**-self.mantissa

    @property
    def bias(self) -> int:
        """What is taken from an exponent field: half its range less one, one more in the fnuz types."""
        return (1 << (self.exponent - 1)) - 1 + self.name.endswith("fnuz")

    @property
    def largest_code(self) -> int:
        """The bits of the largest finite number of a type of 8 or 4 bits."""
        if self.has_infinity:  # the greatest exponent is that of Inf and NaN
            return ((1 << self.exponent) - 1 << self.mantissa) - 1
        return (1 << self.bits - self.signed) - 1 - (self.has_nan and not self.name.endswith("fnuz"))

    @property
    def nan_code(self) -> int | None:
        """The bits that a conversion makes of NaN, of a type of 8 or 4 bits; None where it has no NaN."""
        if not self.has_nan:
            return None
        return 1 << self.bits - 1 if self.name.endswith("fnuz") else (1 << self.bits - self.signed) - 1

    @property
    def is_float(self) -> bool:
        """Whether an element holds a floating point number that is not packed."""
        return self.kind == "float"

    @property
    def torch(self) -> torch.dtype | None:
        """torch's dtype, or None where this torch has none."""
        import torch

        return getattr(torch, self.name, None) if self.in_torch else None

    @property
    def storage(self) -> torch.dtype:
        """The torch dtype of tensors that hold such elements: its own, or bytes where torch has none."""
        import torch

        return self.torch or torch.uint8


def _float(
    name: str, short: str, c: str, triton: str, exponent: int, mantissa: int, tma: str | None = None,
    struct: str | None = None, infinity: bool = False, signed: bool = True,
) -> DType:  # fmt: skip
    bits = signed + exponent + mantissa
    return DType(
        name, "float", bits, short, c, triton, tma, struct, mantissa, exponent, signed, infinity, True
    )


def _int(bits: int, struct: str, signed: bool = True, tma: str | None = None) -> DType:
    short = f"{'i' if signed else 'u'}{bits}"
    name = f"{'' if signed else 'u'}int{bits}"
    return DType(name, "int", bits, short, f"{name}_t", short, tma, struct, signed=signed)


_ALL = (
    _float("bfloat16", "bf16", "bf16", "bf16", 8, 7, "BFLOAT16", infinity=True),
    _float("float16", "f16", "f16", "fp16", 5, 10, "FLOAT16", "e", infinity=True),
    _float("float32", "f32", "f32", "fp32", 8, 23, "FLOAT32", "f", infinity=True),
    _float("float64", "f64", "double", "fp64", 11, 52, "FLOAT64", "d", infinity=True),
    _float("float8_e4m3fn", "e4m3fn", "uint8_t", "fp8e4nv", 4, 3, "UINT8"),
    _float("float8_e5m2", "e5m2", "uint8_t", "fp8e5", 5, 2, "UINT8", infinity=True),
    _float("float8_e4m3fnuz", "e4m3fnuz", "uint8_t", "fp8e4b8", 4, 3, "UINT8"),
    _float("float8_e5m2fnuz", "e5m2fnuz", "uint8_t", "fp8e5b16", 5, 2, "UINT8"),
    _float("float8_e8m0fnu", "e8m0fnu", "uint8_t", "u8", 8, 0, "UINT8", signed=False),
    DType("float4_e2m1fn_x2", "packed", 4, "e2m1x2", "uint8_t", "u8", "UINT8", None, 1, 2, per_item=2),
    DType("int4_x2", "packed", 4, "i4x2", "uint8_t", "u8", "UINT8", per_item=2, in_torch=False),
    _int(8, "b", tma="UINT8"),  # bits are copied
    _int(16, "h"),
    _int(32, "i", tma="INT32"),
    _int(64, "q", tma="INT64"),
    _int(8, "B", signed=False, tma="UINT8"),
    _int(16, "H", signed=False, tma="UINT16"),
    _int(32, "I", signed=False, tma="UINT32"),
    _int(64, "Q", signed=False, tma="UINT64"),
    DType("bool", "bool", 8, "b8", "bool", "i1", "UINT8", "?", signed=False),
)
DTYPES: dict[str, DType] = {each.name: each for each in _ALL}
"""By name, as specs and plans write it."""
_BY_SHORT = {each.short: each for each in _ALL}


def of(dtype: str | torch.dtype) -> DType:
    """The DType of a name ("bfloat16") or of torch's dtype. Raises KeyError for any other."""
    return DTYPES[dtype if isinstance(dtype, str) else str(dtype).removeprefix("torch.")]


def scalar(kind: str) -> DType:
    """The DType of a plan's scalar kind: "i32", "i64", "u32", "f32"."""
    return _BY_SHORT[kind]


def itemsize(dtype: str) -> int:
    """Bytes of one torch element of this name."""
    return DTYPES[dtype].itemsize
