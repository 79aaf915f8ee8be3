"""Inputs as a pure function of a case id: every machine gets the same bytes.

Bits come from Philox, a counter-based generator, keyed by SHA-256 of the case id and the tensor's
name. Values are made from those bits by integer arithmetic and exact scaling alone: no libm call,
whose last bit differs between machines, and none of NumPy's distributions, whose streams may change
between releases.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from portable import dtypes

POWERS = 16
"""Distinct powers of two in a row: few enough that their sums are exact in float32 in any order, whatever
a matrix core keeps of its addends, and that they fit float16."""

FENCE_BYTES = 256
"""Poisoned bytes on either side of every tensor, at least; multiples keep its base on a 256-byte boundary."""
WIDEST_ROW = 1 << 16
"""Fences are wider by a row of the tensor, up to so many bytes: a write that is one row off is seen."""

DTYPES: dict[str, torch.dtype] = {name: each.storage for name, each in dtypes.DTYPES.items()}
"""What torch holds a tensor of each type in."""


class Bits:
    """A stream of random 64-bit words that depends on nothing but `key`."""

    def __init__(self, key: str):
        digest = hashlib.sha256(key.encode()).digest()
        self._philox = np.random.Philox(key=int.from_bytes(digest[:16], "little"))

    def words(self, count: int) -> np.ndarray:
        return self._philox.random_raw(count) if count else np.empty(0, np.uint64)

    def uniform(self, count: int) -> np.ndarray:
        """Float64 in [0, 1), multiples of 2^-53."""
        return (self.words(count) >> np.uint64(11)).astype(np.float64) * 2.0**-53

    def below(self, bound: int, count: int) -> np.ndarray:
        """Integers in [0, bound); the bias of the remainder is under bound / 2^64."""
        return (self.words(count) % np.uint64(bound)).astype(np.int64)

    def sign(self, count: int) -> np.ndarray:
        return 1.0 - 2.0 * self.below(2, count)

    def normal(self, count: int) -> np.ndarray:
        """N(0, 1) to within the tails: the sum of twelve uniforms, less six, exactly in float64.

        Eleven uniforms have 16 bits and the twelfth 48, so that a float32 mantissa is filled.
        """
        words = self.words(4 * count).reshape(4, count)
        mask = np.uint64(0xFFFF)
        total = np.zeros(count, np.uint64)
        for row in words[:3]:
            for shift in (0, 16, 32, 48):
                total += (row >> np.uint64(shift)) & mask
        low = (words[3] >> np.uint64(32)).astype(np.float64) * 2.0**-48
        return total.astype(np.float64) * 2.0**-16 + low - 6.0


def _normal(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    return bits.normal(_count(shape))


def _small_integers(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """Integers in [-4, 4]: sums of products stay exact in float32 up to a million terms."""
    return bits.below(9, _count(shape)) - 4.0


def _ties(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """Integers so large that many sums of products fall half-way between two results."""
    limit = {"float16": 64}.get(dtype, 16 if dtypes.of(dtype).mantissa > 3 else 2)
    return bits.below(2 * limit + 1, _count(shape)) - float(limit)


def _large_range(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """Magnitudes spread evenly over the exponents; squares and long sums stay inside the type."""
    count, limit = _count(shape), {5: 6, 4: 3}.get(dtypes.of(dtype).exponent, 20)
    exponent = bits.below(2 * limit + 1, count) - limit
    return np.ldexp(bits.sign(count) * (1.0 + bits.uniform(count)), exponent)


def _cancellation(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """A large offset plus N(0, 1) in the first tensor; alternating signs of it in the others.

    A mean or variance of the first cancels, and so does a sum of products of two tensors.
    """
    offset = 256.0 if dtype in ("float32", "float64") else 8.0
    values = (bits.normal(_count(shape)) + offset).reshape(shape)
    if position % 2:
        parity = np.zeros(shape, np.int64)
        for index in np.indices(shape, sparse=True):
            parity = parity + index
        values = values * (1.0 - 2.0 * (parity % 2))
    return values.ravel()


def _subnormals(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """Subnormal numbers in the first tensor, N(0, 1) in the others."""
    count = _count(shape)
    if position:
        return bits.normal(count)
    digits = bits.below(2 ** dtypes.of(dtype).mantissa, count).astype(np.float64)
    return bits.sign(count) * digits * torch.finfo(DTYPES[dtype]).smallest_normal * dtypes.of(dtype).eps


def _nonfinite(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """N(0, 1) with signed zeros, and a NaN, an Inf and a -Inf in every tensor of a few rows."""
    values = bits.normal(_count(shape))
    if values.size:
        special = [0.0, -0.0]
        if position == 0 or len(shape) > 1:
            special += [np.nan, np.inf, -np.inf][: max(1, values.size // 16)]
        values[bits.below(values.size, len(special))] = special
    return values


def _one_hot(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """One 1 in every row of the first tensor; full mantissas of one exponent in the others.

    So a product with the first copies elements of the second, and no bit of theirs may go lost.
    """
    count = _count(shape)
    if position:
        return bits.sign(count) * (1.0 + bits.below(2 ** dtypes.of(dtype).mantissa, count) / _steps(dtype))
    rows, length = _rows(shape)
    values = np.zeros((rows, length))
    if count:
        values[np.arange(rows), bits.below(length, rows)] = 1.0
    return values.ravel()


def _powers_of_two(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """Distinct powers of two at random places of every row of the first tensor, zeros between them; 1
    and -1 in the others.

    Each bit of a row's sum with the others says whether one element took part, and with which sign.
    """
    count = _count(shape)
    if position:
        return bits.sign(count)
    rows, length = _rows(shape)
    values = np.zeros((rows, length))
    if count:
        order = np.argsort(bits.words(count).reshape(rows, length), axis=1, kind="stable")[:, :POWERS]
        np.put_along_axis(values, order, np.ldexp(1.0, np.arange(order.shape[1]) - POWERS // 2)[None], 1)
    return values.ravel() * bits.sign(count)


def _signed_zero(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """N(0, 1), and zeros of both signs in the place of every second element or so."""
    count = _count(shape)
    return np.where(bits.below(2, count) == 1, bits.normal(count), bits.sign(count) * 0.0)


def _rows(shape: tuple[int, ...]) -> tuple[int, int]:
    """How many rows there are, and their length."""
    return _count(shape[:-1]), shape[-1] if shape else 1


def _steps(dtype: str) -> float:
    return 2.0 ** dtypes.of(dtype).mantissa


def _mask(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """A mask to be added to scores: 0 or -inf, every fourth row 0 alone and every fourth -inf alone."""
    rows, length = _rows(shape)
    hidden = bits.below(2, _count(shape)).reshape(rows, length) == 1
    kind = bits.below(4, rows)
    return np.where((hidden | (kind == 1)[:, None]) & (kind != 0)[:, None], -np.inf, 0.0).ravel()


def _positive(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """Scales: numbers with full mantissas from 1/2 to 2."""
    count = _count(shape)
    return np.ldexp(1.0 + bits.uniform(count), -bits.below(2, count))


def _powers(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """Scales that are 1, 2, 4 or 8: they keep sums of integers exact, and tell places from each other."""
    return np.ldexp(1.0, bits.below(4, _count(shape)))


def _last_nan(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """N(0, 1); the last element of every second row of the first tensor is NaN."""
    values = bits.normal(_count(shape)).reshape(_rows(shape))
    if not position and values.size:
        values[::2, -1] = np.nan
    return values.ravel()


def _masked(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """N(0, 1); in each row of the first tensor a prefix, a suffix, all but one or nothing is -inf."""
    rows, length = _rows(shape)
    values = bits.normal(_count(shape)).reshape(rows, length)
    if position or not values.size:
        return values.ravel()
    column, cut = np.arange(length), bits.below(length, rows)[:, None]
    kind = (np.arange(rows) % 4)[:, None]
    hidden = np.select([kind == 0, kind == 1, kind == 2], [column < cut, column > cut, column != cut], False)
    return np.where(hidden, -np.inf, values).ravel()


def _hidden_rows(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """N(0, 1); every second row of the first tensor is -inf alone."""
    values = bits.normal(_count(shape)).reshape(_rows(shape))
    if not position:
        values[::2] = -np.inf
    return values.ravel()


def _offset_first(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """N(0, 1); 4000 more in the first tensor, whose variance a difference of squares loses in float32."""
    return bits.normal(_count(shape)) + (0.0 if position else 4000.0)


def _offset_second(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """The same in the second tensor, a gradient's x."""
    return bits.normal(_count(shape)) + (4000.0 if position == 1 else 0.0)


def _extreme(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """N(0, 1), and in every third row numbers within 2^3 to 2^7 of the type's end, of one sign or mixed.

    It is the first row of the first tensor, the second of the second, and so on: no product of two overflows.
    """
    rows, length = _rows(shape)
    row, kind = np.arange(rows), (np.arange(rows) // 3 % 3)[:, None]
    top = int(np.frexp(torch.finfo(DTYPES[dtype]).max)[1])
    sizes = np.ldexp(1.0 + bits.uniform(_count(shape)), top - 4 - bits.below(4, _count(shape)))
    signs = np.select([kind == 0, kind == 1], [-1.0, 1.0], bits.sign(_count(shape)).reshape(rows, length))
    far = (row % 3 == position % 3)[:, None]
    return np.where(
        far, signs * sizes.reshape(rows, length), bits.normal(_count(shape)).reshape(rows, length)
    ).ravel()


def _nonfinite_vectors(bits: Bits, shape: tuple[int, ...], dtype: str, position: int) -> np.ndarray:
    """N(0, 1), and a NaN, an Inf and a -Inf in vectors alone, at places of their own."""
    values = bits.normal(_count(shape))
    if len(shape) == 1 and values.size >= 16:
        step = values.size // 4
        values[bits.below(step, 3) + step * np.arange(3)] = [np.nan, np.inf, -np.inf]
    return values


def _integers_of(
    bits: Bits, shape: tuple[int, ...], kind: dtypes.DType, values: str, below: int | None
) -> np.ndarray:
    """The value classes of integers: indices below `below`, or numbers of the type.

    Indices are uniform; "small_integers" repeats the first four of them, "nonfinite" takes the two ends.
    Numbers are uniform over what 8 bits hold; "small_integers" over nine small ones, "large_range" over the
    whole type, and "nonfinite" has the ends of the type and 0 among them.
    """
    count = _count(shape)
    if kind.kind == "bool":
        return bits.below(2, count)
    if below is not None:
        below = min(below, 1 << kind.bits - kind.signed)  # an int8 index reaches 127 of 300 rows
        if values == "nonfinite":
            return bits.below(2, count) * (below - 1)
        return bits.below(min(below, 4) if values == "small_integers" else below, count)
    if values == "small_integers":
        return bits.below(9, count) - (4 if kind.signed else 0)
    half = 1 << kind.bits - 1
    if values == "large_range":
        words = bits.words(count) >> np.uint64(64 - kind.bits)  # modulo 2^bits
        return words.astype(np.int64) if kind.bits == 64 or not kind.signed else words.astype(np.int64) - half
    numbers = bits.below(256, count) - (128 if kind.signed else 0)
    if values == "nonfinite" and count:
        ends = (-half, half - 1, 0) if kind.signed else (0, (2 * half - 1 if kind.bits < 64 else -1), 0)
        numbers[bits.below(count, 3)] = ends
    return numbers


def _scales_of(bits: Bits, shape: tuple[int, ...], values: str) -> np.ndarray:
    """Codes of e8m0, which holds powers of two alone, 2^(code - 127), and one NaN, 255."""
    count = _count(shape)
    reach = 20 if values == "large_range" else 4
    codes = bits.below(2 * reach + 1, count) + 127 - reach
    if values == "nonfinite" and count:
        codes[bits.below(count, 1)] = 255
    return codes


Maker = Callable[[Bits, "tuple[int, ...]", str, int], np.ndarray]
VALUES: dict[str, Maker] = {
    "normal": _normal,
    "small_integers": _small_integers,
    "large_range": _large_range,
    "cancellation": _cancellation,
    "subnormals": _subnormals,
    "nonfinite": _nonfinite,
    "ties": _ties,
    "one_hot": _one_hot,
    "powers_of_two": _powers_of_two,
    "signed_zero": _signed_zero,
}

NAMED_VALUES: dict[str, Maker] = {
    "last_nan": _last_nan,
    "masked": _masked,
    "hidden_rows": _hidden_rows,
    "offset_first": _offset_first,
    "offset_second": _offset_second,
    "extreme": _extreme,
    "nonfinite_vectors": _nonfinite_vectors,
}
"""Value classes that cases of regressions.txt name; they are combined with nothing."""

OWN_VALUES: dict[str, Maker] = {"mask": _mask, "positive": _positive, "powers": _powers}
"""Values that a spec may name for one input; no value class of cases."""

LAYOUTS = ("contiguous", "transposed", "padded", "sliced", "expanded", "offset", "mixed")
"""transposed: last two dimensions swapped in memory. padded: rows three elements apart from each
other. sliced: every second element of the last dimension. expanded: the first dimension has stride
0. offset: the base is one element past an aligned address. mixed: the inputs of one call differ, as
MIXED says."""

NAMED_LAYOUTS = ("permuted", "gaps", "repeated", "half_offset")
"""Layouts that cases of regressions.txt name; they are combined with nothing. permuted: all dimensions but
the last in the opposite order in memory. gaps: a gap behind each member of the first dimension. repeated: the
last dimension has stride 0. half_offset: the base is 8 bytes past an aligned address."""

REPEATING = ("expanded", "repeated")
"""Layouts whose elements share memory: what is written in place is contiguous in their cases."""

MIXED = ("contiguous", "transposed", "padded", "offset")
MIXED_VECTOR = ("contiguous", "sliced", "offset")
"""The layouts that the inputs of a "mixed" case take in rotation: tensors of two dimensions and more, and
vectors, which have no rows to pad or swap."""


@dataclass(frozen=True)
class Input:
    """A tensor as a view of a guarded, poisoned buffer, so that it moves between devices with its strides,
    and an access outside it is detected."""

    name: str
    buffer: torch.Tensor
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    sha256: str

    def view(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer.as_strided(self.shape, self.strides, self.offset)

    @property
    def tensor(self) -> torch.Tensor:
        return self.view(self.buffer)

    def on(self, device: torch.device | str) -> tuple[torch.Tensor, torch.Tensor]:
        """A copy on `device`: (the view, its whole buffer)."""
        buffer = self.buffer.to(device, copy=True)
        return self.view(buffer), buffer


def make(
    case_id: str,
    name: str,
    shape: tuple[int, ...],
    dtype: str,
    values: str,
    layout: str,
    position: int = 0,
    mantissa: int | None = None,
    below: int | None = None,
    otherwise: int | None = None,
) -> Input:
    """The tensor `name` of case `case_id`, on the CPU. `position` counts the op's inputs from 0;
    `mantissa` rounds float32 values to so many bits; an index is below `below`, or one in four `otherwise`
    where that is given. Packed types are bytes."""
    layout = _layout_at(layout, len(shape), position)
    repeated = _repeated(layout, shape)
    distinct = tuple(1 if dim == repeated else size for dim, size in enumerate(shape))
    bits, kind = Bits(f"{case_id}/{name}"), dtypes.of(dtype)
    if not kind.is_float or not kind.signed:
        logical = _codes(bits, distinct, kind, values, below, otherwise).reshape(distinct)
        return _input(name, logical, shape, layout, repeated)
    data = (VALUES | NAMED_VALUES | OWN_VALUES)[values](bits, distinct, dtype, position)
    if dtype != "float64":
        data = data.astype(np.float32)
    if mantissa is not None and dtype == "float32":
        data = round_mantissa(data, mantissa)
    if kind.bits < 16 and not kind.has_infinity:  # torch makes NaN of Inf, or the largest number, by release
        data = np.clip(data, -torch.finfo(DTYPES[dtype]).max, torch.finfo(DTYPES[dtype]).max)
    logical = torch.from_numpy(np.ascontiguousarray(data)).to(DTYPES[dtype]).reshape(distinct)
    return _input(name, logical, shape, layout, repeated)


def _codes(
    bits: Bits, shape: tuple[int, ...], kind: dtypes.DType, values: str, below: int | None,
    otherwise: int | None,
) -> torch.Tensor:  # fmt: skip
    """The elements of a type that no floating point number converts to exactly: integers, scales, packed."""
    if kind.kind == "packed":
        return torch.from_numpy(bits.below(256, _count(shape)).astype(np.uint8)).view(kind.storage)
    if kind.is_float:
        return torch.from_numpy(_scales_of(bits, shape, values).astype(np.uint8)).view(kind.storage)
    numbers = _integers_of(bits, shape, kind, values, below)
    if otherwise is not None:
        numbers[bits.below(4, len(numbers)) == 0] = otherwise
    return torch.from_numpy(numbers).to(kind.storage)


def place(name: str, logical: torch.Tensor, layout: str, position: int = 0) -> Input:
    """A tensor of given elements in the layout of a case."""
    shape, layout = tuple(logical.shape), _layout_at(layout, logical.dim(), position)
    repeated = _repeated(layout, shape)
    if repeated is not None and (once := logical.narrow(repeated, 0, 1)).eq(logical).all():
        return _input(name, once, shape, layout, repeated)
    return _input(name, logical, shape, layout, None)


def _layout_at(layout: str, rank: int, position: int) -> str:
    """The layout of the input at `position` of a call in this one."""
    layouts = MIXED if rank > 1 else MIXED_VECTOR
    return layouts[position % len(layouts)] if layout == "mixed" else layout


def _repeated(layout: str, shape: tuple[int, ...]) -> int | None:
    """The dimension that has stride 0 in this layout, if one has."""
    if layout == "expanded" and len(shape) > 1 and shape[0] > 1:
        return 0
    return len(shape) - 1 if layout == "repeated" and shape and shape[-1] > 1 else None


def _input(
    name: str, logical: torch.Tensor, shape: tuple[int, ...], layout: str, repeated: int | None
) -> Input:
    """`logical` in its buffer, its dimension `repeated` walked with stride 0."""
    buffer, strides, offset = _place(logical, layout)
    strides = tuple(0 if dim == repeated else stride for dim, stride in enumerate(strides))
    view = buffer.as_strided(shape, strides, offset)
    return Input(name, buffer, shape, strides, offset, fingerprint(view))


def round_mantissa(data: np.ndarray, mantissa: int) -> np.ndarray:
    """Float32 `data` rounded to `mantissa` bits, ties to even. Inf and NaN stay."""
    bits, gone = np.ascontiguousarray(data).view(np.uint32).astype(np.uint64), 23 - mantissa
    bits += ((bits >> np.uint64(gone)) & np.uint64(1)) + np.uint64((1 << gone - 1) - 1)
    bits &= ~np.uint64((1 << gone) - 1)
    return np.where(np.isfinite(data), bits.astype(np.uint32).view(np.float32), data)


def fingerprint(tensor: torch.Tensor) -> str:
    """SHA-256 of dtype, shape and the elements' bytes in row-major order."""
    tensor = tensor.detach().cpu()
    head = f"{str(tensor.dtype).removeprefix('torch.')}{tuple(tensor.shape)}".encode()
    digest = hashlib.sha256(head)
    if tensor.numel():
        digest.update(_integers(tensor).numpy().data)
    return digest.hexdigest()


def fence_bytes(shape: Sequence[int], strides: Sequence[int], itemsize: int) -> int:
    """The bytes of a fence: FENCE_BYTES, and a row of the tensor's memory (all of a vector)."""
    rows = (
        strides[-2:]
        if len(shape) > 1
        else [size * stride for size, stride in zip(shape, strides, strict=True)]
    )
    row = min(max(rows, default=0) * itemsize, WIDEST_ROW)
    return FENCE_BYTES * (1 + -(-row // FENCE_BYTES))


def fenced(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str, layout: str = "contiguous"
) -> tuple[torch.Tensor, torch.Tensor]:
    """A poisoned tensor in a poisoned buffer: (the tensor, its whole buffer)."""
    strides, extent, offset = _strides(shape, layout, dtype.itemsize)
    buffer = poisoned(extent, dtype, device)
    return buffer[offset:].as_strided(shape, strides), buffer


def fence_intact(tensor: torch.Tensor, buffer: torch.Tensor) -> bool:
    """Whether the poison beside a `fenced` tensor, and between its rows, is still there, bit for bit."""
    beside = buffer.clone()
    offset = tensor.storage_offset() - buffer.storage_offset()
    beside[offset:].as_strided(tensor.shape, tensor.stride()).fill_(poison(buffer.dtype))
    return same_bits(beside, poisoned(len(buffer), buffer.dtype, buffer.device))


def poison(dtype: torch.dtype) -> float | int:
    """What memory is filled with that nothing may read or write: NaN, or the integer whose bits are all 1."""
    if dtype.is_floating_point:
        return float("nan")
    return -1 if dtype.is_signed else 1 if dtype == torch.bool else torch.iinfo(dtype).max


def poisoned(count: int, dtype: torch.dtype, device: torch.device | str = "cpu") -> torch.Tensor:
    if dtypes.of(dtype).kind == "packed":  # torch fills no such tensor
        return torch.full((count,), 255, dtype=torch.uint8, device=device).view(dtype)
    return torch.full((count,), poison(dtype), dtype=dtype, device=device)


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors hold the same bytes; NaN equals NaN of the same payload."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.numel() == 0:
        return True
    return torch.equal(_integers(first), _integers(second))


def different_bits(first: torch.Tensor, second: torch.Tensor) -> torch.Tensor:
    """Where two tensors of one shape and dtype differ in a bit; NaN equals NaN of the same payload."""
    return _integers(first) != _integers(second)


def _integers(tensor: torch.Tensor) -> torch.Tensor:
    """The elements' bits as contiguous integers; a dimension of size 1 may keep a stride through
    `contiguous`, so a fresh tensor is filled."""
    dense = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor)
    return dense.view({1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()])


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _place(logical: torch.Tensor, layout: str) -> tuple[torch.Tensor, tuple[int, ...], int]:
    """`logical` inside a poisoned buffer in the given layout: (buffer, strides, storage offset)."""
    shape = tuple(logical.shape)
    strides, extent, offset = _strides(shape, layout, logical.element_size())
    buffer = poisoned(extent, logical.dtype)
    buffer.as_strided(shape, strides, offset).copy_(logical)
    return buffer, strides, offset


def _strides(shape: tuple[int, ...], layout: str, itemsize: int) -> tuple[tuple[int, ...], int, int]:
    """How a layout places a tensor: strides, elements of the buffer, and the place of the first element."""
    padding, step, order = 0, 1, list(range(len(shape)))
    if layout == "padded" and len(shape) > 1:
        padding = 3
    elif layout == "sliced" and shape:
        step = 2
    elif layout == "transposed" and len(shape) > 1:
        order[-2:] = order[-1], order[-2]
    elif layout == "permuted":
        order[:-1] = order[-2::-1]
    strides = [0] * len(shape)
    extent = step
    for depth, dim in enumerate(reversed(order)):
        if layout == "gaps" and depth and depth == len(shape) - 1:
            extent += strides[order[1]]
        strides[dim] = extent
        extent = extent * max(shape[dim], 1) + (padding if depth == 0 else 0)
    fence = fence_bytes(shape, strides, itemsize) // itemsize
    offset = fence + {"offset": 1, "half_offset": max(8 // itemsize, 1)}.get(layout, 0)
    return tuple(strides), extent + offset + fence, offset
