"""The sizes that the bars on speed are held to (sweep_groups/*.yaml), as cases to time, and their verdicts.

A group is one op, or several, at several sizes in several types and layouts, timed against some baselines. In
`layouts`, "bT" stores b with its last two dimensions swapped, "a1" starts a one element beyond an aligned
address, "aT1" does both, "" is contiguous, "tail" makes varlen sequences of a long tail of lengths, and any
other word only tells the case from another. A case's own layout is "bench", or "bench-" and these words.

A bar holds an implementation's speed over a baseline's: the geometric mean over the group's cases, and the
least of them. "best" is the fastest baseline of each case. "copy" moves the same bytes, "dense" is the op on
dense tensors with the same flops, "wide" the op over a cache or rows of 16 bits: none computes the same, so
none is the best.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from portable import dtypes
from portable.conformance.cases.case import Case, make_shape
from portable.errors import listed, nearest
from portable.spec import registry, strict_yaml
from portable.spec.model import Spec

FOLDER = Path(__file__).with_name("sweep_groups")
FILES = ("products", "low_precision", "rows", "tokens", "attention")
"""In the order that groups are listed and timed in."""
BEST = "best"
TAIL = "tail"
YARDSTICKS = ("copy", "dense", "wide")
"""What is timed beside an op though it computes something else: a copy of the same bytes, the op on dense
tensors with the same flops, the op over a cache or rows that are not quantised. Never the best baseline."""
_KEYS = {"name", "op", "types", "sizes", "layouts", "baselines", "bars"}
_BAR_KEYS = {"impl", "over", "mean", "least"}
_TOKEN = re.compile(r"([a-z_]+?)(T?)(\d*)")


@dataclass(frozen=True)
class TimedCase:
    """One case to time: on which implementations and against which baselines, None for all of them."""

    case: Case
    impls: Sequence[str] | None
    baselines: Sequence[str] | None


@dataclass(frozen=True)
class Bar:
    """What an implementation's speed over a baseline's must be: the geometric mean over a group's cases of
    each op, and the least of them. `over` is a baseline's name, or "best"."""

    impl: str
    over: str
    mean: float
    least: float | None


def uniform_types(spec: Spec, dtype: str) -> Mapping[str, str] | None:
    """The first row of types in which the first variable is `dtype`, and every other that or the accumulator,
    float32 or int32; indices are of any type, and so is what a parameter says. "bfloat16/float8_e4m3fn" is of
    a first variable of bfloat16, and others of both."""
    said, names = spec.dtype_variables.values(), dtype.split("/")
    for row in spec.types:
        floats = {each for name, each in row.items() if name not in said and dtypes.of(each).is_float}
        wanted = row[spec.type_variables[0]] == names[0] and row["acc"] in ("float32", "int32")
        if wanted and floats <= {*names, row["acc"]} and set(names) <= set(row.values()):
            return row
    return None


@dataclass(frozen=True)
class Group:
    """Ops at several sizes, types and layouts."""

    name: str
    ops: tuple[str, ...]
    types: tuple[str, ...]
    sizes: tuple[Mapping[str, Any], ...]
    layouts: tuple[str, ...]
    baselines: tuple[str, ...]
    bars: tuple[Bar, ...]

    def cases(self, op: str) -> Iterator[TimedCase]:
        """The cases of one op of the group."""
        spec = registry.spec(op)
        impls = list(dict.fromkeys(bar.impl for bar in self.bars))
        for dtype in self.types:
            row = uniform_types(spec, dtype)
            assert row is not None, f"{self.name}: {op} has no types of {dtype} alone"
            types = tuple(row.items())
            for size in self.sizes:
                axes = {name: size[name] for name in spec.axes}
                params = {name: size[name] for name in spec.params if name in size}
                shape = make_shape(spec, axes, size.get("leading", ()), params, size.get("absent", ()))
                for layout in self.layouts:
                    name = f"bench-{layout}" if layout else "bench"
                    yield TimedCase(Case(op, types, shape, layout=name), impls, self.baselines)


@dataclass(frozen=True)
class Verdict:
    """Timings against a bar: the mean and the least of the `cases` ratios, where the least is, and the ratio
    of the sums of all times."""

    group: str
    op: str
    bar: Bar
    cases: int
    mean: float
    least: float
    at: str
    total: float

    @property
    def met(self) -> bool:
        return self.mean >= self.bar.mean and (self.bar.least is None or self.least >= self.bar.least)


@functools.cache
def groups() -> tuple[Group, ...]:
    """The groups of all files, read and checked. Raises ValueError with the file, group and key."""
    paths = [FOLDER / f"{name}.yaml" for name in FILES]
    return tuple(_group(raw, path.name) for path in paths for raw in strict_yaml.load(path)["groups"])


def _group(raw: Mapping[str, Any], file: str) -> Group:
    _known(raw, _KEYS, f"{file}: {raw.get('name', 'a group')}")
    bars = []
    for bar in raw["bars"]:
        _known(bar, _BAR_KEYS, f"{file}: a bar of {raw['name']}")
        least = float(bar["least"]) if "least" in bar else None
        bars.append(Bar(bar["impl"], bar["over"], float(bar["mean"]), least))
    return Group(
        raw["name"],
        tuple(raw["op"] if isinstance(raw["op"], list) else [raw["op"]]),
        tuple(raw["types"]),
        tuple(raw["sizes"]),
        tuple(raw.get("layouts", [""])),
        tuple(raw["baselines"]),
        tuple(bars),
    )


def _known(raw: Mapping[str, Any], keys: set[str], where: str) -> None:
    for key in raw:
        if key not in keys:
            raise ValueError(f"{where}: unknown key {key!r}.{nearest(key, keys)}")


def chosen(names: Sequence[str]) -> list[Group]:
    """The groups of these names, all where there are none. Raises ValueError for an unknown one."""
    known = {group.name: group for group in groups()}
    for name in names:
        if name not in known:
            hint = nearest(name, known) or f" There are {listed(known)}."
            raise ValueError(f"no group {name!r} in the sweep.{hint}")
    return [known[name] for name in names] if names else list(known.values())


def tokens(layout: str) -> list[str]:
    """The tokens of a layout after "bench"."""
    return layout.split("-")[1:]


def laid_out(layout: str, name: str, shape: Sequence[int], fill: Callable[[Sequence[int]], Tensor]) -> Tensor:
    """A tensor of `shape`, in memory as the layout says for input `name`; `fill(shape)` makes a contiguous
    one."""
    for token in tokens(layout):
        match = _TOKEN.fullmatch(token)
        if match is None or match[1] != name:
            continue
        swapped = [*shape[:-2], shape[-1], shape[-2]] if match[2] else list(shape)
        offset = int(match[3] or 0)
        tensor = fill([math.prod(swapped) + offset])[offset:].view(swapped) if offset else fill(swapped)
        return tensor.mT if match[2] else tensor
    return fill(shape)


def verdicts(entries: Sequence[Mapping[str, Any]]) -> list[Verdict]:
    """Every bar that some of a record's timings speak of, op by op."""
    times = {(each["case"], each["impl"]): each for each in entries}
    found = []
    for group in groups():
        for op in group.ops:
            cases = [each.case.id for each in group.cases(op)]
            for bar in group.bars:
                ratios = {
                    case: ratio
                    for case in cases
                    if (case, bar.impl) in times
                    and (ratio := _ratio(times[case, bar.impl]["vs"], bar.over)) is not None
                }
                if ratios:
                    mean = math.exp(sum(map(math.log, ratios.values())) / len(ratios))
                    at = min(ratios, key=ratios.__getitem__)
                    ours = [times[case, bar.impl]["device_us"] for case in ratios]
                    total = sum(ratio * us for ratio, us in zip(ratios.values(), ours, strict=True)) / sum(
                        ours
                    )
                    found.append(Verdict(group.name, op, bar, len(ratios), mean, ratios[at], at, total))
    return found


def _ratio(vs: Mapping[str, Mapping[str, float]], over: str) -> float | None:
    """Our speed over a baseline's; over the best one's, the least ratio there is."""
    if over != BEST:
        return vs[over]["median"] if over in vs else None
    return min((each["median"] for name, each in vs.items() if name not in YARDSTICKS), default=None)


def lines(found: Sequence[Verdict]) -> list[str]:
    """The verdicts as lines for people."""
    texts = []
    for each in found:
        least = f", least {each.least:.3f}" + (f" (bar {each.bar.least:.2f})" if each.bar.least else "")
        word = "met" if each.met else "missed"
        texts.append(
            f"{word}: {each.group}, {each.op} on {each.bar.impl} over {each.bar.over}: geometric mean of "
            f"{each.cases} {each.mean:.3f} (bar {each.bar.mean:.2f}), of their sums {each.total:.3f}"
            f"{least} at {each.at}"
        )
    return texts
