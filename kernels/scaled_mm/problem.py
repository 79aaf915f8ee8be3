"""The call of scaled_mm or scaled_mm_block as planners take it: matrices with strides, scales with theirs."""

from __future__ import annotations

from dataclasses import dataclass

from portable.kernels.matmul.problem import Operand, Problem, free_strides
from portable.layout import ceil_div
from portable.plan import Argument, Call, Device, Pointer, Scalar, TensorInfo

OCP, FNUZ = ("float8_e4m3fn", "float8_e5m2"), ("float8_e4m3fnuz", "float8_e5m2fnuz")
BLOCK = 128
"""Elements along k, and columns of b, that share a scale of scaled_mm_block."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Scales in memory: that of a row of a and a block of k, or of a block of k and a column (block) of b, is
    `outer` elements of its first index and `inner` of its second from the base. A stride of 0 repeats."""

    tensor: str
    outer: int
    inner: int


@dataclass(frozen=True, slots=True)
class ScaledProblem:
    """c = (a @ b) * scale_a * scale_b + bias in `product`, whose a, b and c are "mat_a", "mat_b" and "c".

    `blocked`: the scales are those of blocks of 128. `mx`: they are bytes of e8m0, those of 32 along k of a
    row of a and of a column of b, which is scale_b's first index. `fast` allows sums in less than float32 to
    their end."""

    product: Problem
    scale_a: Scale
    scale_b: Scale
    blocked: bool
    fast: bool
    mx: bool = False

    @property
    def k_blocks(self) -> int:
        """Blocks of 128 along k, the last one smaller perhaps."""
        return ceil_div(self.product.K, BLOCK)


def has_instructions(device: Device, *types: str) -> bool:
    """Whether an AMD GPU has matrix instructions for operands of these types."""
    if device.arch == "gfx942":
        return all(each in FNUZ for each in types)
    return (device.arch == "gfx950" or device.arch.startswith("gfx12")) and all(each in OCP for each in types)


def triton_decodes(device: Device, *types: str) -> bool:
    """Whether Triton makes bfloat16 numbers of codes of these types on this AMD GPU: of two types too, which
    Triton 3.6 does not compile (gfx1201), or multiplies wrongly (gfx950)."""
    return not has_instructions(device, *types) or len({*types}) > 1


def from_call(call: Call, blocked: bool, mx: bool = False) -> ScaledProblem:
    """The problem of a call of scaled_mm or, `blocked`, of scaled_mm_block or, `mx`, of scaled_mm_mx."""
    scale_a, scale_b = (Scale(name, *call[name].strides) for name in ("scale_a", "scale_b"))
    fast = call.params.get("use_fast_accum", False)
    return ScaledProblem(product_of(call), scale_a, scale_b, blocked, fast, mx)


def product_of(call: Call, a: str = "mat_a", b: str = "mat_b") -> Problem:
    """c [M, N] = a [M, K] @ b [K, N], plus a bias where there is one: what a call says but for its scales."""
    (M, K), N = call[a].shape, call[b].shape[1]
    sides = {a: (M, K), b: (K, N), "c": (M, N)}
    operands = [_operand(name, call[name], *sizes) for name, sizes in sides.items()]
    bias = call["bias"] if call.has("bias") else None
    return Problem(
        M, N, K, (1, 1), *operands,
        bias=None if bias is None else "bias",
        bias_alignment=16 if bias is None else bias.alignment,
    )  # fmt: skip


def scale_strides(call: Call) -> dict[str, int]:
    """Those of scale_a and scale_b, as the C++ kernels take them; 0 where a call has no scales."""
    a, b = (call[name].strides if call.has(name) else (0, 0) for name in ("scale_a", "scale_b"))
    return {"scale_a_row": a[0], "scale_a_k": a[1], "scale_b_k": b[0], "scale_b_col": b[1]}


def in_words(scales: TensorInfo) -> bool:
    """Whether those of four groups along k, [lines, groups] bytes, are an aligned word, in all lines."""
    lines, along = scales.shape
    whole = along % 4 == 0 and (lines == 1 or scales.strides[0] % 4 == 0)
    return scales.strides[1] == 1 and scales.alignment >= 4 and whole


def pointer(call: Call, name: str) -> Argument:
    """That of a tensor, or null where a call has none."""
    return Pointer(name) if call.has(name) else Scalar("i64", 0)


def _operand(name: str, info: TensorInfo, rows: int, cols: int) -> Operand:
    return Operand(name, info.dtype, *free_strides(rows, cols, *info.strides), (0, 0), info.alignment)
